/* device/cuda/kernels/gemm.h: arguments of gemm.cu, gemm_mma.cu,
 * gemm_wgmma.cu, gemm_lines.cu, gemm_small.cu and gemm_joined.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

/* A second output of a product, written by the thread that has y (cublasLt and
 * CUTLASS call it an epilogue). Those from SILU on are of gemm_joined.cu alone,
 * and computed from y as it is stored. */
enum {
    K_EPILOGUE_NONE,
    K_EPILOGUE_RELU,    /* relu(y) */
    K_EPILOGUE_RELU_DX, /* y where epilogue_in, a ReLU's result, is not <= 0, else 0 */
    K_EPILOGUE_SILU,
    K_EPILOGUE_GELU,
    K_EPILOGUE_GELU_TANH,
    K_EPILOGUE_MUL /* y epilogue_in */
};

/* y [batch,m,n] = a [batch,m,k] b [batch,k,n] + bias [n]; strides in elements,
 * of batch, row, column. All memory is the caller's.
 *
 * sums [m], of y's dtype, of the rows of a: only of the kernels matmul, for one
 * batch and n that is no multiple of its tile, and matmul_columns, for one
 * batch.
 *
 * Of gemm_small.cu and gemm_joined.cu:
 * - whole: lines of a and b are aligned for 4 elements at a time.
 * - parts: into how many k is cut: 1, 2, 4, 8, or 0 for thin_product, which has
 *   sums, k <= K_THIN, one batch, float32, vectors of 4 elements of b and y,
 *   and no bias and epilogue.
 * - epilogue: K_EPILOGUE_..., for one batch. epilogue_out [m,n] is written,
 *   epilogue_in [m,n] read where a line above has it; both are contiguous, and
 *   of y's dtype.
 * linear_entropy.cu has the epilogues NONE and RELU_DX. */
enum { K_THIN = 4, K_THIN_ROWS = 32 };
typedef struct dsi_cuda_matmul_args {
    long long m, n, k, batch, last_k;
    const void *a, *b, *bias; /* bias may be NULL */
    void *y, *sums;           /* sums may be NULL */
    long long as[3], bs[3], ys[3], bias_s, sums_s;
    int dtype, bias_dtype, y_dtype, vectors; /* dtype: a's and b's */
    int whole, parts, epilogue;
    void *epilogue_out;
    const void *epilogue_in;
} dsi_cuda_matmul_args;

/* Two products that do not need each other; the first has `blocks` blocks. The
 * second may be absent. */
typedef struct dsi_cuda_matmul_pair {
    dsi_cuda_matmul_args of[2];
    unsigned blocks;
} dsi_cuda_matmul_pair;

/* n products of one batch and the same number of rows.
 * fused_pair 0: they do not need each other; blocks[i] blocks compute of[i].
 * fused_pair 1 (a dual GEMM of CUTLASS): n is 2, both have one shape, and each
 * of blocks[0] blocks computes the same part of the first, then of the second:
 * epilogue_in of the second may be an output of the first. */
enum { K_GROUP = 3 };
typedef struct dsi_cuda_matmul_group {
    dsi_cuda_matmul_args of[K_GROUP];
    unsigned blocks[K_GROUP];
    int n, fused_pair;
} dsi_cuda_matmul_group;
