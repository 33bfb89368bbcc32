/* device/cuda/kernels/gemm_mma.cu: products of 16-bit matrices by tensor cores
 * (gemm_mma.cuh).
 *
 * Where tiles are too few for a GPU, the sum over k is cut: then a "batch" is a
 * part of k, y the parts' sums in float32, and matmul_parts of gemm_lines.cu adds
 * these in order.
 * SPDX-License-Identifier: MIT */
#include "gemm_mma.cuh"

/* Blocks of COLUMNS threads: tiles; batches along z. */
template <bool BF16, bool A_K, bool B_K, int COLUMNS>
DEVICE void matmul_mma(const dsi_cuda_matmul_args &P)
{
    typedef mma_stage<COLUMNS> Stage;
    DYNAMIC_SHARED(float4, shared);
    Stage *stage = (Stage *)shared;
    int warp = threadIdx.x / 32, across = COLUMNS / 64, row, column;
    int wm = warp / across * 64, wn = warp % across * 64;
    tile_of<COLUMNS>(P, &row, &column);
#pragma unroll 1
    for (long long z = blockIdx.z; z < P.batch; z += gridDim.z) {
        mma_source<A_K, ROWS, COLUMNS> a((const half_bits *)P.a + z * P.as[0],
                                         A_K ? P.as[1] : P.as[2], row, (int)P.m);
        mma_source<B_K, COLUMNS, COLUMNS> b((const half_bits *)P.b + z * P.bs[0],
                                            B_K ? P.bs[2] : P.bs[1], column, (int)P.n);
        int depth = (int)(z == P.batch - 1 ? P.last_k : P.k);
        float acc[4][8][4] = {};
        mma_product<BF16, A_K, B_K, COLUMNS>(acc, stage, a, b, depth, wm, wn);
        mma_write(P, acc, (float *)stage + warp * 16 * SLAB, z, row + wm, column + wn);
        __syncthreads();
    }
}

/* Names: the letter of a and b is n where lines run along their second
 * dimension, as in BLAS, else t. */
#define MATMUL_MMA(columns, suffix, bf16) \
    KERNEL(matmul_##columns##_nn_##suffix, dsi_cuda_matmul_args, columns) \
    { \
        matmul_mma<bf16, true, false, columns>(P); \
    } \
    KERNEL(matmul_##columns##_nt_##suffix, dsi_cuda_matmul_args, columns) \
    { \
        matmul_mma<bf16, true, true, columns>(P); \
    } \
    KERNEL(matmul_##columns##_tn_##suffix, dsi_cuda_matmul_args, columns) \
    { \
        matmul_mma<bf16, false, false, columns>(P); \
    } \
    KERNEL(matmul_##columns##_tt_##suffix, dsi_cuda_matmul_args, columns) \
    { \
        matmul_mma<bf16, false, true, columns>(P); \
    }
MATMUL_MMA(128, f16, false)
MATMUL_MMA(128, bf16, true)
MATMUL_MMA(256, f16, false)
MATMUL_MMA(256, bf16, true)
