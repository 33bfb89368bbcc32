/* checkpoint/checkpoint.h: between the formats.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_CHECKPOINT_CHECKPOINT_H
#define DSI_CHECKPOINT_CHECKPOINT_H

#include <deepspeed/checkpoint.h>

bool dsi_shards_is_index(const char *path); /* "model.safetensors.index.json" */
ds_state *dsi_shards_load(const char *path);

#endif
