/* device/cuda/kernels/attention.h: arguments of attention.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

/* q, dy, y [batches,l,...], k, v [batches / group,s,...], mask [batches,l,s]:
 * strides of batch and row. Batch b is (b / heads, b % heads), with a stride
 * each; heads counts those of q, heads / group those of k. Outputs: y or, in the
 * backward, dq, dk, dv. dot [b,l] = sum(dy y), in the type that is computed in.
 * drops: weights whose word is below `kept` are multiplied by factor, others are
 * 0; else factor is 1. fresh_seed (NULL: none) is in place of seed. */
typedef struct dsi_cuda_attention_args {
    const void *q, *k, *v, *mask, *dy, *y;
    void *out, *dq, *dk, *dv, *lse, *dot;
    long long qs[3], ks[3], vs[3], ys[3], dys[3], dqs[3], dks[3], dvs[3], lse_s[3], mask_s[4];
    long long batches, heads, group, l, s, d, e;
    double scale, softcap, softcap_inverse; /* 0, 0: no cap */
    int dtype, mask_dtype, causal;
    long long window; /* 0: none */
    int drops;
    unsigned kept;
    double factor;
    unsigned long long seed, offset;
    const unsigned long long *fresh_seed;
} dsi_cuda_attention_args;
