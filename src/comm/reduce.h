/* comm/reduce.h: what ranks add up, on memory that one thread sees.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_COMM_REDUCE_H
#define DSI_COMM_REDUCE_H

#include <deepspeed/comm.h>

#define DSI_REDUCE_BLOCK 1024 /* elements */

/* acc[i] = in[0][i] op in[1][i] op ... in that order, for i < n <= DSI_REDUCE_BLOCK; `acc` has room for a
 * block of 8-byte elements. 16-bit floats are added in float32 and rounded once. */
void dsi_reduce_block(ds_dtype dtype, ds_redop op, int ranks, const void *const *in, int64_t n,
                      void *acc);

#endif
