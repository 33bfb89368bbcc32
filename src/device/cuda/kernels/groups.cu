/* device/cuda/kernels/groups.cu: products of rows with the matrix of their
 * group. Which rows a group has is in the GPU's memory: a grid has blocks for
 * the most tiles that there may be, and each block finds its own.
 *
 *     groups         tiles as those of `matmul` (gemm.cu), with its bits
 *     groups_rows    few rows a group
 *
 * groups_mma.cu has the same in 16 bits by tensor cores.
 * SPDX-License-Identifier: MIT */
#include "gemm_small.cuh"
#include "groups.cuh"
#include "matrix.cuh"
#include "tile.cuh"

/* Blocks: row tiles, column tiles, and, over the rows, groups. */
template <class C, int R> DEVICE void groups_tiles(const dsi_cuda_groups_args &P)
{
    typedef tile_stage<C, R> Stage;
    SHARED(Stage, stage, [2]);
    constexpr int EDGE = 16 * R;
    group_tile t = group_tile_find(P, EDGE);
    if (t.g < 0) return; /* all of the block */
    void *w = P.w[t.g], *y = P.over ? w : P.y;
    const long long *bs = P.over ? P.bs : P.ws, *ys = P.over ? P.ws : P.ys;
    long long column = blockIdx.y * (long long)EDGE;
    matrix_operand a = {P.a, P.dtype, 0, t.end, t.to, P.as[P.over], P.as[!P.over], false};
    matrix_operand b = {P.over ? P.b : w, P.dtype, 0, P.n, t.to, bs[1], bs[0], false};
    C acc[R][R] = {};
    tile_product<C, R>(acc, stage, a, a.ks == 1, b, b.ks == 1, t.row, column, t.from, t.to);
    const C *tile = tile_result<C, R>(acc, stage);
#pragma unroll 1
    for (int e = threadIdx.x; e < EDGE * EDGE; e += 256) {
        int r = e / EDGE, c = e % EDGE;
        if (t.row + r < t.end && column + c < P.n)
            store<C>(y, P.dtype, (t.row + r) * ys[0] + (column + c) * ys[1],
                     tile[r * (EDGE + 1) + c]);
    }
}
KERNEL(groups_f32, dsi_cuda_groups_args, 256) { groups_tiles<float, 4>(P); }
KERNEL(groups_f64, dsi_cuda_groups_args, 256) { groups_tiles<double, 2>(P); }

/* Few rows a group: blocks of 4 warps, a warp a column of ROWS rows, as
 * matmul_rows (gemm_small.cu), with its bits. a and w have unit stride along k. */
template <class T> DEVICE void groups_rows(const dsi_cuda_groups_args &P)
{
    group_tile t = group_tile_of(P, ROWS);
    long long column = blockIdx.y * 4ll + threadIdx.x / 32;
    if (t.g < 0 || column >= P.n) return;
    const T *b = (const T *)P.w[t.g] + column * P.ws[1], *a[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) a[r] = (const T *)P.a + min(t.row + r, t.end - 1) * P.as[0];
    float acc[ROWS] = {};
    if (P.whole)
        rows_product<T, float, true>(acc, a, b, (int)P.k);
    else
        rows_product<T, float, false>(acc, a, b, (int)P.k);
    float v = rows_sum(acc);
    long long row = t.row + threadIdx.x % 32 / 8;
    if (threadIdx.x % 8 == 0 && row < t.end)
        store<float>(P.y, P.dtype, row * P.ys[0] + column * P.ys[1], v);
}
KERNEL(groups_rows_f32, dsi_cuda_groups_args, 128) { groups_rows<float>(P); }
KERNEL(groups_rows_f16, dsi_cuda_groups_args, 128) { groups_rows<__half>(P); }
KERNEL(groups_rows_bf16, dsi_cuda_groups_args, 128) { groups_rows<__nv_bfloat16>(P); }
