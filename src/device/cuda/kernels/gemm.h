/* device/cuda/kernels/gemm.h: arguments of gemm.cu, gemm_mma.cu,
 * gemm_wgmma.cu, gemm_lines.cu, gemm_small.cu and gemm_joined.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

/* y [batch,m,n] = a [batch,m,k] b [batch,k,n] + bias [n]; strides in elements,
 * of batch, row, column. sums [m] of y's dtype, of the rows of a: only of the
 * kernels matmul, for one batch and n that is no multiple of its tile, and
 * matmul_columns, for one batch. Of gemm_small.cu: whole, lines of a and b are
 * aligned for 4 elements at a time; parts, into how many k is cut: 1, 2, 4, 8, or
 * 0 for thin_product, which has sums, k <= K_THIN, one batch, float32, vectors of
 * 4 elements of b and y, and no bias and second output; also, a second output [m,n]
 * of y's dtype, contiguous, for one batch: the ReLU of y, or y where mask [m,n] is
 * not <= 0, else 0; of gemm_joined.cu also an activation of y, or y mask. */
enum { K_THIN = 4, K_THIN_ROWS = 32 };
enum { K_NOTHING, K_RELU_OF, K_WHERE_POSITIVE, K_SILU_OF, K_GELU_OF, K_GELU_TANH_OF, K_TIMES };
typedef struct dsi_cuda_matmul_args {
    long long m, n, k, batch, last_k;
    const void *a, *b, *bias; /* bias may be NULL */
    void *y, *sums;           /* sums may be NULL */
    long long as[3], bs[3], ys[3], bias_s, sums_s;
    int dtype, bias_dtype, y_dtype, vectors; /* dtype: a's and b's */
    int whole, parts, also;
    void *second;
    const void *mask;
} dsi_cuda_matmul_args;

/* Two products that do not need each other; the first has `blocks` blocks. The
 * second may be absent. */
typedef struct dsi_cuda_matmul_pair {
    dsi_cuda_matmul_args of[2];
    unsigned blocks;
} dsi_cuda_matmul_pair;

/* n products of one batch and the same number of rows, of[i] by blocks[i] blocks. together:
 * of one shape, and each block computes a part of all, in order: a later one may read what
 * an earlier one writes at the same place. */
enum { K_GROUP = 3 };
typedef struct dsi_cuda_matmul_group {
    dsi_cuda_matmul_args of[K_GROUP];
    unsigned blocks[K_GROUP];
    int n, together;
} dsi_cuda_matmul_group;
