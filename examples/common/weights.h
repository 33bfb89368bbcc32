/* examples/common/weights.h: weights from the files that programs here and in
 * PyTorch save.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed.h>

/* Loads a state dict, or the "model_state_dict" of a tutorial's checkpoint.
 * Returns NULL and sets ds_error() on failure. */
ds_state *weights_load(const char *path);
