/* parallel/shard.h: parameters that are divided among ranks as they are made (ds_zero_init), until an engine
 * takes them over.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_PARALLEL_SHARD_H
#define DSI_PARALLEL_SHARD_H

#include "comm/comm.h"
#include "tensor/tensor.h"

/* Whether x is divided, by ds_zero_init. The rest takes only such tensors. */
bool dsi_is_shard(const ds_tensor *x);

/* For users: whole until as many ends; what `modifier` wrote is kept (-1: nothing was written). */
ds_status dsi_shard_gather(ds_tensor *x);
ds_status dsi_shard_end(ds_tensor *x, int modifier);

/* For who takes over: another dtype; this rank's slice, as flat.h lays out a parameter that is alone,
 * borrowed; x whole again, and no shard any more; x no shard any more, without storage. */
ds_status dsi_shard_to(ds_tensor *x, ds_dtype dtype);
ds_tensor *dsi_shard_part(const ds_tensor *x);
ds_status dsi_shard_join(ds_tensor *x);
void dsi_shard_drop(ds_tensor *x);

#endif
