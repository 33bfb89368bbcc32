/* device/cuda/kernels/groups.cu: products of rows with the matrix of their
 * group. Which rows a group has is in the GPU's memory: a grid has blocks for
 * the most tiles that there may be, and each block finds its own.
 *
 *     groups    tiles as those of `matmul` (gemm.cu), with its bits
 *
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "groups.h"
#include "matrix.cuh"
#include "tile.cuh"

/* The work of a block: rows `row` .. `end` - 1 of a product, sums over `from` ..
 * `to` - 1, of group g; g < 0: nothing. */
struct group_tile {
    int g;
    long long row, end, from, to;
};

/* The tile of EDGE rows of number blockIdx.x, counted group by group; the same
 * in each warp. */
DEVICE group_tile group_tile_of(const dsi_cuda_groups_args &P, int edge)
{
    int lane = threadIdx.x % 32, tile = (int)blockIdx.x;
    for (int g = 0; g < P.groups; g += 32) {
        int first = 0, end = 0;
        if (g + lane < P.groups) first = (int)P.begin[g + lane], end = (int)P.begin[g + lane + 1];
        int n = (end - first + edge - 1) / edge, upto = n;
        for (int d = 1; d < 32; d *= 2) {
            int other = __shfl_up_sync(ALL_LANES, upto, d);
            if (lane >= d) upto += other;
        }
        unsigned past = __ballot_sync(ALL_LANES, upto <= tile); /* lanes 0 .. at - 1 */
        int at = __popc(past), before = upto - n;
        if (at < 32) {
            first = __shfl_sync(ALL_LANES, first + (tile - before) * edge, at);
            return {g + at, first, __shfl_sync(ALL_LANES, end, at), 0, P.k};
        }
        tile -= __shfl_sync(ALL_LANES, upto, 31);
    }
    return {-1, 0, 0, 0, 0};
}

/* Blocks: row tiles, column tiles, and, over the rows, groups. */
template <class C, int R> DEVICE void groups_tiles(const dsi_cuda_groups_args &P)
{
    typedef tile_stage<C, R> Stage;
    SHARED(Stage, stage, [2]);
    constexpr int EDGE = 16 * R;
    group_tile t;
    if (P.over) {
        int g = (int)blockIdx.z;
        t = {P.w[g] ? g : -1, blockIdx.x * (long long)EDGE, P.m, P.begin[g], P.begin[g + 1]};
    } else {
        t = group_tile_of(P, EDGE);
    }
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
