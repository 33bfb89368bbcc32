/* deepspeed/checkpoint.h: state dicts to and from files.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_CHECKPOINT_H
#define DEEPSPEED_CHECKPOINT_H

#include <deepspeed/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A .safetensors file: written beside, synced, then renamed; what was there stays until then. Tensors
 * are written row-major in the order of the state dict. metadata: key, value, key, value, ..., NULL; or NULL. */
DS_API DS_MUST_CHECK ds_status ds_safetensors_save(const ds_state *state, const char *path,
                                                   const char *const *metadata);

/* Reads it, on the CPU. Refuses what the format forbids (holes, overlaps, trailing bytes, wrong sizes)
 * and what hides mistakes (a name twice, unknown fields); the message says which tensor. */
DS_API ds_state *ds_safetensors_load(const char *path);

/* By the end of the path: ".safetensors". */
DS_API DS_MUST_CHECK ds_status ds_save(const ds_state *state, const char *path);
DS_API ds_state *ds_load(const char *path);

#ifdef __cplusplus
}
#endif
#endif
