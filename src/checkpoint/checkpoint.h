/* checkpoint/checkpoint.h: functions that the formats' files call of each
 * other.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/shared.h"

#include <deepspeed/checkpoint.h>

/* Tells whether the path has an ending of torch.save's files: .pth, .pt, or
 * Hugging Face's .bin. */
DSI_SHARED bool dsi_is_pth(const char *path);
/* Tells whether the path is an index's: "model.safetensors.index.json". */
DSI_SHARED bool dsi_shards_is_index(const char *path);
/* Names the kind of a file that a wrong download left in place of weights, a
 * pointer of Git LFS or a page of HTML, and what to do. NULL: neither. Static. */
const char *dsi_file_not_downloaded(const void *bytes, size_t n);
/* Loads all tensors that the index at path names. The caller frees the state
 * dict; NULL with the message. */
ds_state *dsi_shards_load(const char *path);

/* Write a dict of names and tensors as ds_save, ds_save_sharded and
 * ds_safetensors_save write a state dict. Tensors may be readers (value.h). */
ds_status dsi_save_dict(const ds_value *dict, const char *path);
DSI_SHARED ds_status dsi_save_dict_sharded(const ds_value *dict, const char *path,
                                           int64_t max_bytes);
ds_status dsi_safetensors_save_dict(const ds_value *dict, const char *path,
                                    const char *const *metadata);
