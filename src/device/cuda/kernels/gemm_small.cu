/* device/cuda/kernels/gemm_small.cu: products of few multiplications, for which
 * tiles would leave most of a GPU idle. Operands are read from the caches; what
 * counts is how many loads are in flight, and how many instructions there are.
 *
 *     matmul_rows      a and b with unit stride along k: a warp a column, 4 rows
 *     matmul_columns   b with unit stride along n: a warp 32 columns, 4 rows, and
 *                      a part of k; the parts are added in order. Two products at
 *                      once: the gradients of a layer's input and of its weights
 *
 * SPDX-License-Identifier: MIT */
#include "gemm_small_products.cuh"

#define GEMM_SMALL(suffix, T, C) \
    KERNEL(matmul_rows_##suffix, dsi_cuda_matmul_args, 128) { matmul_rows<T, C, false>(P, blockIdx.x); } \
    KERNEL(matmul_columns_##suffix, dsi_cuda_matmul_pair, 256) { matmul_columns<T, C, false>(P); }
GEMM_SMALL(f32, float, float)
GEMM_SMALL(f64, double, double)
GEMM_SMALL(f16, __half, float)
GEMM_SMALL(bf16, __nv_bfloat16, float)
