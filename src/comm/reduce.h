/* comm/reduce.h: what ranks add up, on memory that one thread sees.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/comm.h>

/* out[k][i] = in[0][i] op in[1][i] op ... in that order, for i < n and k <
 * outs, 1 or more; an out may be an in. 16-bit floats are added in float32 and
 * rounded once. *squares, if not NULL, grows by the squares of the result,
 * which are floats. */
void dsi_reduce_ranks(ds_dtype dtype, ds_redop op, int ranks, const void *const *in, int64_t n,
                      int outs, void *const *out, double *squares);
