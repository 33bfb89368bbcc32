/* parallel/zero_init.h: parameters that ds_zero_init has partitioned, until an
 * engine takes them over.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "tensor/tensor.h"

/* Whether ds_zero_init has partitioned x. The functions below do nothing for
 * other tensors. */
bool dsi_zero_init_has(const ds_tensor *x);

ds_status dsi_zero_init_to(ds_tensor *x, ds_dtype dtype); /* converts the shards */
ds_tensor *
dsi_zero_init_shard(const ds_tensor *x);    /* [shard_size] of Note [Partitions]; borrowed */
ds_status dsi_zero_init_join(ds_tensor *x); /* x is whole again; collective */
void dsi_zero_init_drop(ds_tensor *x);      /* x stays without its shard */
