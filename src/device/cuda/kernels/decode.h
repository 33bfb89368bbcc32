/* device/cuda/kernels/decode.h: arguments of decode.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

enum { K_STEP_WARPS = 32 };                   /* of attention_step, at most */
enum { K_FAULT_PLACE = K_FAULT_ELEMENT + 2 }; /* one more of args.h's, behind route.h's */

/* Strides, in elements, of batch, head and (caches) row; that of an element of a head
 * is 1. cos NULL: heads do not turn. part: of each block its largest score, its sum of
 * exp(score - largest), and `depth` sums of these times values; splits 1: not used. */
typedef struct dsi_cuda_attention_step {
    const void *q, *k, *v;
    void *cache_k, *cache_v, *y, *fault;
    const long long *at, *pads; /* [batches]; pads NULL: zeros */
    const float *cos, *sin;
    long long qs[2], ks[2], vs[2], ys[2], cache_ks[3], cache_vs[3], turn_s;
    long long rows, window; /* of a cache; keys that are seen, 0: all */
    float *part;            /* [batches,heads,splits,2 + depth] */
    int heads, group, depth, pairs, splits, dtype;
    float scale, cap;
} dsi_cuda_attention_step;

/* x [rows,n] -> token[row]; counters [count] += 1 */
typedef struct dsi_cuda_choose {
    const void *x;
    long long *token, *counters;
    long long n, xs, token_s;
    int dtype, count;
} dsi_cuda_choose;
