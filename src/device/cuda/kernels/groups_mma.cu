/* device/cuda/kernels/groups_mma.cu: products of rows with the matrix of their
 * group, in 16 bits by tensor cores (gemm_mma.cuh), with the bits of gemm_mma.cu
 * where that does not cut the sum.
 * SPDX-License-Identifier: MIT */
#include "gemm_mma.cuh"
#include "groups.cuh"

#define COLUMNS 128

/* Blocks: row tiles, column tiles, and, over the rows, groups. */
template <bool BF16, bool OVER, bool B_K> DEVICE void groups_mma(const dsi_cuda_groups_args &P)
{
    typedef mma_stage<COLUMNS> Stage;
    DYNAMIC_SHARED(float4, shared);
    Stage *stage = (Stage *)shared;
    group_tile t = group_tile_find(P, ROWS);
    if (t.g < 0) return; /* all of the block */
    int warp = threadIdx.x / 32, wm = warp / 2 * 64, wn = warp % 2 * 64;
    int column = (int)blockIdx.y * COLUMNS;
    half_bits *w = (half_bits *)P.w[t.g];
    mma_source<!OVER, ROWS, COLUMNS> a((const half_bits *)P.a + (OVER ? t.from * P.as[0] : 0),
                                       P.as[0], (int)t.row, (int)t.end);
    mma_source<B_K, COLUMNS, COLUMNS> b(OVER ? (const half_bits *)P.b + t.from * P.bs[0] : w,
                                        OVER  ? P.bs[0]
                                        : B_K ? P.ws[1]
                                              : P.ws[0],
                                        column, (int)P.n);
    float acc[4][8][4] = {};
    mma_product<BF16, !OVER, B_K, COLUMNS>(acc, stage, a, b, (int)(t.to - t.from), wm, wn);
    dsi_cuda_matmul_args y = {};
    y.m = t.end, y.n = P.n, y.y = OVER ? w : P.y, y.y_dtype = P.dtype, y.vectors = P.whole;
    y.ys[1] = OVER ? P.ws[0] : P.ys[0], y.ys[2] = OVER ? P.ws[1] : P.ys[1];
    mma_write(y, acc, (float *)stage + warp * 16 * SLAB, 0, t.row + wm, column + wn);
}

/* Names: nt y = a w with lines of w along k, nn along n; tn: over the rows. */
#define GROUPS_MMA(suffix, bf16) \
    KERNEL(groups_nt_##suffix, dsi_cuda_groups_args, COLUMNS) \
    { \
        groups_mma<bf16, false, true>(P); \
    } \
    KERNEL(groups_nn_##suffix, dsi_cuda_groups_args, COLUMNS) \
    { \
        groups_mma<bf16, false, false>(P); \
    } \
    KERNEL(groups_tn_##suffix, dsi_cuda_groups_args, COLUMNS) { groups_mma<bf16, true, false>(P); }
GROUPS_MMA(f16, false)
GROUPS_MMA(bf16, true)
