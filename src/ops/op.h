/* ops/op.h: what an op family's file needs: checks, recording, kernels.
 *
 * An op is one function of five paragraphs: check, acquire, make, compute,
 * record; its backward stands above it. A backward that gives dy itself gives a
 * second handle on it (dsi_alias, or a view), so that no leaf takes for its own
 * sum what another node still has to read.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_OPS_OP_H
#define DSI_OPS_OP_H

#include "autograd/node.h"
#include "table.h"

#include <deepspeed/ops.h>

/* x is float16 or bfloat16. Kernels compute these in float32 and round once, so
 * that an op of one kernel need not ask. What takes several kernels does it in
 * float32 between dsi_upcast and ds_cast. */
static inline bool dsi_is_16bit(const ds_tensor *x)
{
    return x && (x->dtype == DS_F16 || x->dtype == DS_BF16);
}

static inline bool dsi_is_float(const ds_tensor *x) { return x->dtype <= DS_BF16; }

/* A 16-bit x in float32, others as they are; NULL passes. */
static inline ds_tensor *dsi_upcast(ds_tensor *x)
{
    return dsi_is_16bit(x) ? ds_cast(x, DS_F32) : x;
}

/* For what a backward keeps beside x's elements (mean, lse): float32 for a
 * 16-bit x. */
static inline ds_tensor *dsi_new_upcast(const ds_tensor *x, ds_dims shape)
{
    return x ? dsi_new_dtype(x, dsi_is_16bit(x) ? DS_F32 : x->dtype, shape) : NULL;
}

/* True if a and b (which may be NULL) agree in dtype and device; else sets the
 * message. */
bool dsi_same_kind(const char *op, const ds_tensor *a, const ds_tensor *b);
bool dsi_same_device(const char *op, const ds_tensor *a, const ds_tensor *b); /* device alone */
bool dsi_want_float(const char *op, const ds_tensor *x);

/* dim counted from the front, for x of at least one dimension (a scalar counts
 * as [1]); -1, with the message, if x has no such dimension. */
int dsi_want_dim(const char *op, const ds_tensor *x, int dim);

/* The shape that a and b broadcast to -> *out; else false, with the message. */
bool dsi_broadcast(const char *op, ds_dims a, ds_dims b, ds_dims *out);

/* g summed to `shape`, from which it was broadcast: the gradient of a broadcast
 * input. Never g itself. */
ds_tensor *dsi_sum_to(ds_tensor *g, ds_dims shape);

/* x, if the kernel that fills it ran; else NULL, which is what
 * dsi_accumulate_grad and callers take for a failure. */
#define dsi_result_if(ran, x) ((ran) ? (x) : NULL)

/* x seen as [outer, d[dim], inner]: contiguous x, dim counted from the front. */
dsi_view dsi_v_around(const ds_tensor *x, int dim);

/* Dimensions from..to-1 of x lie in memory as one dimension: its stride ->
 * *stride. */
bool dsi_merged(const ds_tensor *x, int from, int to, int64_t *stride);

/* x [...,M,N] seen as [B,M,N]. Its leading dimensions lie as one (dsi_merged). */
dsi_view dsi_v_matrices(const ds_tensor *x);

/* An option's [vertical, horizontal] values: the horizontal one is 0 for "the
 * same" or -1 for none. */
static inline void dsi_pair(int64_t out[2], int vertical, int horizontal, int if_zero)
{
    out[0] = vertical ? vertical : if_zero;
    out[1] = horizontal == 0 ? out[0] : horizontal == -1 ? 0 : horizontal;
}

#endif
