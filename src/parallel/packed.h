/* parallel/packed.h: tensors of a GPU side by side in one block of its memory,
 * so that one copy takes all of them to another GPU (torch's
 * broadcast_coalesced and reduce_add_coalesced).
 *
 * Invariants: a block is a uint8 tensor [bytes] of the thread that made it. A
 * tensor's place in it has its dtype and shape, and its strides if it is dense,
 * else row-major ones. at[i] is its first byte, a multiple of 64; -1: not there.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "tensor/tensor.h"

int64_t dsi_packed_bytes(dsi_view v); /* of its values */

/* The places of the n views that are not NULL; returns the bytes of the block. */
int64_t dsi_packed_places(int n, const dsi_view *v, int64_t *at);

/* A new block on d, in the current scope, with the values of the views, which
 * are on d too. NULL with the message. */
ds_tensor *dsi_packed_of(dsi_device *d, int n, const dsi_view *v, const int64_t *at, int64_t bytes);

/* The place of `like` in a block at p. */
dsi_view dsi_packed_view(void *p, int64_t at, dsi_view like);

/* x becomes a handle on the place of `like` in the block. */
void dsi_packed_bind(ds_tensor *x, const ds_tensor *block, int64_t at, dsi_view like);
