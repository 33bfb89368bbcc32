/* device/cuda/kernels/attention.h: arguments of attention.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

/* q, dy, y [batches,l,...], k, v [batches / group,s,...]: strides of batch and
 * row; mask [batches,l,s]. Outputs: y or, in the backward, dq, dk, dv. dot [b,l]
 * = sum(dy y), in the type that is computed in. */
typedef struct dsi_cuda_attention_args {
    const void *q, *k, *v, *mask, *dy, *y;
    void *out, *dq, *dk, *dv, *lse, *dot;
    long long qs[2], ks[2], vs[2], ys[2], dys[2], dqs[2], dks[2], dvs[2], lse_s[2], mask_s[3];
    long long batches, group, l, s, d, e;
    double scale;
    int dtype, mask_dtype, causal;
} dsi_cuda_attention_args;
