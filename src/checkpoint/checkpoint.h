/* checkpoint/checkpoint.h: between the formats.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_CHECKPOINT_CHECKPOINT_H
#define DSI_CHECKPOINT_CHECKPOINT_H

#include <deepspeed/checkpoint.h>

/* Whether it is called as torch.save's files are: .pth, .pt, and .bin, which is
 * Hugging Face's. */
bool dsi_is_pth(const char *path);
bool dsi_shards_is_index(const char *path); /* "model.safetensors.index.json" */
ds_state *dsi_shards_load(const char *path);

/* A dict of names and tensors, some of which may be sources (value.h), as
 * ds_save, ds_save_sharded and ds_safetensors_save write a state dict. */
ds_status dsi_save_dict(const ds_value *dict, const char *path);
ds_status dsi_save_dict_sharded(const ds_value *dict, const char *path, int64_t max_bytes);
ds_status dsi_safetensors_save_dict(const ds_value *dict, const char *path,
                                    const char *const *metadata);

#endif
