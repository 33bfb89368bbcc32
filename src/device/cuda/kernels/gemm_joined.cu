/* device/cuda/kernels/gemm_joined.cu: products of gemm_small.cu that do not need each
 * other, as queries, keys and values, and with an activation behind them, by one launch.
 * SPDX-License-Identifier: MIT */
#include "gemm_small_products.cuh"

/* Blocks: those of all products, or of the first; rows as of matmul_rows. */
template <class T> DEVICE void matmul_rows_joined(const dsi_cuda_matmul_group &group)
{
    unsigned block = blockIdx.x;
    int i = 0;
    while (!group.fused_pair && i + 1 < group.n && block >= group.blocks[i])
        block -= group.blocks[i++];
    int last = group.fused_pair ? group.n - 1 : i;
#pragma unroll 1
    for (; i <= last; i++) matmul_rows<T, float, true>(group.of[i], block);
}

#define GEMM_JOINED(suffix, T) \
    KERNEL(matmul_rows_joined_##suffix, dsi_cuda_matmul_group, 128) { matmul_rows_joined<T>(P); } \
    KERNEL(matmul_columns_joined_##suffix, dsi_cuda_matmul_pair, 256) \
    { \
        matmul_columns<T, float, true>(P); \
    }
GEMM_JOINED(f32, float)
GEMM_JOINED(f16, __half)
GEMM_JOINED(bf16, __nv_bfloat16)
