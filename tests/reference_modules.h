/* tests/reference_modules.h: a layer by torch's name and its constructor's
 * arguments.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/nn.h>

#include <jansson.h>

/* A root of that name, as the type of torch.nn is called; NULL: it is not here. */
ds_module *reference_module(const char *name, const json_t *arguments);
