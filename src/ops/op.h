/* ops/op.h: what an op family's file needs: checks, recording, kernels.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_OPS_OP_H
#define DSI_OPS_OP_H

#include "autograd/node.h"

#include <deepspeed/ops.h>

/* x is float16 or bfloat16: the op is computed in float32 and rounded once. An op begins with
 *     if (dsi_is_16bit(x)) return ds_cast(ds_softmax(ds_cast(x, DS_F32), dim), x->dtype);
 * where the casts have the right gradients. */
static inline bool dsi_is_16bit(const ds_tensor *x)
{
    return x->dtype == DS_F16 || x->dtype == DS_BF16;
}

static inline bool dsi_is_float(const ds_tensor *x) { return x->dtype <= DS_BF16; }

/* True if a and b (which may be NULL) agree in dtype and device; else sets the message. */
bool dsi_same_kind(const char *op, const ds_tensor *a, const ds_tensor *b);
bool dsi_want_float(const char *op, const ds_tensor *x);

/* The shape that a and b broadcast to -> *out; else false, with the message. */
bool dsi_broadcast(const char *op, ds_dims a, ds_dims b, ds_dims *out);

/* g summed to `shape`, from which it was broadcast: the gradient of a broadcast input. */
ds_tensor *dsi_sum_to(ds_tensor *g, ds_dims shape);

/* x seen as [outer, d[dim], inner]: contiguous x, dim counted from the front. */
dsi_view dsi_v_around(const ds_tensor *x, int dim);

#endif
