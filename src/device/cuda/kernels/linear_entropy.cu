/* device/cuda/kernels/linear_entropy.cu: the last layer of a small network, its
 * cross entropy, and the gradients of both, by one block: as kernels of their
 * own they take as long each as all of them. The bits are those of matmul_rows,
 * entropy_lanes and matmul_columns.
 *
 *     y = x w' + b                           a warp 4 rows and a column
 *     loss, dy                               a warp a row, a lane a class
 *     dx = dy w, dw = dy' x, db              a warp 4 rows and 32 columns
 *
 * Invariants: y and dy are passed on in shared memory. Gradients are written
 * when all else is, because their memory may have been that of y, lse or
 * divisor.
 * SPDX-License-Identifier: MIT */
#include "entropy.cuh"
#include "gemm_small.cuh"
#include "linear_entropy.h"

#define WARPS ((int)K_LINEAR_ENTROPY_THREADS / 32)
#define LINE  32 /* classes at most */

DEVICE void linear_lines(const dsi_cuda_matmul_args &P, float *line)
{
    int groups = ((int)P.m + ROWS - 1) / ROWS, part = (int)threadIdx.x % 32 / 8;
#pragma unroll 1
    for (int i = (int)threadIdx.x / 32; i < (int)P.n * groups; i += WARPS) {
        int column = i / groups, row = (i - column * groups) * ROWS;
        const float *b = (const float *)P.b + column * (int)P.bs[2], *a[ROWS];
        float bias = P.bias ? ((const float *)P.bias)[column * (int)P.bias_s] : 0.f;
UNROLL
        for (int r = 0; r < ROWS; r++)
            a[r] = (const float *)P.a + min(row + r, (int)P.m - 1) * (int)P.as[1];
        float acc[ROWS] = {};
        rows_product<float, float, true>(acc, a, b, (int)P.k);
        float v = rows_sum(acc);
        row += part;
        if (threadIdx.x % 8 || row >= (int)P.m) continue;
        if (P.bias) v += bias;
        line[row * LINE + column] = v;
        ((float *)P.y)[row * (int)P.ys[1] + column * (int)P.ys[2]] = v;
    }
}

/* ROWS rows and 32 columns of a gradient. */
struct Tile {
    int row, column;
    float v[ROWS], sums[ROWS]; /* sums of lines of a */
};

/* a, in shared memory, has steps `across` along rows, and `along` along k. */
DEVICE void tile_compute(const dsi_cuda_matmul_args &P, const float *a, int across, int along,
                         Tile &t)
{
    enum { LOADS = 4 };
    int parts = max(P.parts, 1), at[ROWS];
    const float *b = (const float *)P.b + min(t.column, (int)P.n - 1);
UNROLL
    for (int r = 0; r < ROWS; r++)
        at[r] = min(t.row + r, (int)P.m - 1) * across, t.v[r] = t.sums[r] = 0;
#pragma unroll 1
    for (int part = 0; part < parts; part++) {
        float acc[ROWS] = {}, sum[ROWS] = {};
#pragma unroll 1
        for (int first = part; first < (int)P.k; first += LOADS * parts) {
            float w[LOADS];
UNROLL
            for (int u = 0; u < LOADS; u++) {
                int k = first + u * parts;
                w[u] = k < (int)P.k ? b[k * (int)P.bs[1]] : 0.f;
            }
UNROLL
            for (int u = 0; u < LOADS; u++) {
                int k = first + u * parts;
UNROLL
                for (int r = 0; r < ROWS; r++) {
                    float x = k < (int)P.k ? a[at[r] + k * along] : 0.f;
                    acc[r] += x * w[u], sum[r] += x;
                }
            }
        }
UNROLL
        for (int r = 0; r < ROWS; r++) t.v[r] += acc[r], t.sums[r] += sum[r];
    }
}

DEVICE void tile_store(const dsi_cuda_matmul_args &P, const Tile &t)
{
    if (t.column >= (int)P.n) return;
UNROLL
    for (int r = 0; r < ROWS; r++) {
        int row = t.row + r, at = row * (int)P.n + t.column;
        if (row >= (int)P.m) return;
        ((float *)P.y)[row * (int)P.ys[1] + t.column * (int)P.ys[2]] = t.v[r];
        if (P.epilogue)
            ((float *)P.epilogue_out)[at] =
                ((const float *)P.epilogue_in)[at] <= 0 ? 0.f : t.v[r];
        if (P.sums && t.column == 0) ((float *)P.sums)[row * (int)P.sums_s] = t.sums[r];
    }
}

DEVICE int tiles_of(const dsi_cuda_matmul_args &P)
{
    return ((int)P.m + ROWS - 1) / ROWS * (((int)P.n + 31) / 32);
}

/* The last warp, which has fewer tiles, stores the loss meanwhile. */
DEVICE void gradients(const dsi_cuda_linear_entropy &P, const float *dy, float divisor,
                      const float *losses)
{
    int warp = threadIdx.x / 32, first = tiles_of(P.of[0]), all = first + tiles_of(P.of[1]);
    if (warp == WARPS - 1) lanes_total(P.entropy, divisor, losses);
#pragma unroll 1
    for (int i = warp; i < max(all, WARPS); i += WARPS) {
        int k = i < first ? 0 : 1, tile = k ? i - first : i;
        const dsi_cuda_matmul_args &of = P.of[k];
        int across = P.transposed[k] ? 1 : LINE, tiles = max(((int)of.n + 31) / 32, 1);
        Tile t;
        t.row = tile / tiles * ROWS, t.column = tile % tiles * 32 + (int)threadIdx.x % 32;
        if (i < all) tile_compute(of, dy, across, LINE + 1 - across, t);
        if (i < WARPS) __syncthreads();
        if (i < all) tile_store(of, t);
    }
}

KERNEL(linear_entropy_f32, dsi_cuda_linear_entropy, K_LINEAR_ENTROPY_THREADS)
{
    SHARED(float, line, [K_FEW_ROWS * LINE]); /* y, then dy */
    SHARED(float, losses, [K_FEW_ROWS]);
    const dsi_cuda_entropy_args &E = P.entropy;
    int lane = threadIdx.x % 32;
    lanes_labels labels = labels_of(E);
    linear_lines(P.linear, line);
    float divisor = lanes_divisor(E, labels), g = (float)E.seed_value / divisor;
    __syncthreads();
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < (int)E.rows; row += WARPS) {
        bool inside = lane < (int)E.columns;
        float dy = lanes_row(E, row, inside ? line[row * LINE + lane] : -INFINITY, g, losses);
        if (!inside || !E.dx) continue;
        line[row * LINE + lane] = dy;
        ((float *)E.dx)[row * (int)E.dxs[0] + lane * (int)E.dxs[1]] = dy;
    }
    __syncthreads();
    gradients(P, line, divisor, losses);
}
