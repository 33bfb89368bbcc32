/* device/cuda/kernels/gemm.h: arguments of gemm.cu and gemm_mma.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

/* y [batch,m,n] = a [batch,m,k] b [batch,k,n] + bias [n]; strides in elements,
 * of batch, row, column. sums [m] of y's dtype, of the rows of a: only of the
 * kernel matmul, for one batch and n that is no multiple of its tile. */
typedef struct dsi_cuda_matmul_args {
    long long m, n, k, batch, last_k;
    const void *a, *b, *bias; /* bias may be NULL */
    void *y, *sums;           /* sums may be NULL */
    long long as[3], bs[3], ys[3], bias_s, sums_s;
    int dtype, bias_dtype, y_dtype, vectors; /* dtype: a's and b's */
} dsi_cuda_matmul_args;
