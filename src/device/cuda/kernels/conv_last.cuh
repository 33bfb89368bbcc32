/* device/cuda/kernels/conv_last.cuh: tiles of products of 16-bit operands by
 * tensor cores, for the convolutions of conv_last.cu: a warp computes 64 x 64 of
 * a tile, operands arrive by cp.async in STAGES stages of DEPTH along the sum.
 *
 * Shared memory is counted in pieces of 16 bytes, 8 elements. Lines of a stage
 * are along the sum, 4 pieces, or across it, as long as the tile; which piece of
 * its line has an element depends on the line, so that the 8 lines that ldmatrix
 * reads at once are in different banks.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "ptx.cuh"

#define WARP   64 /* rows and columns of a warp's tile */
#define DEPTH  32
#define STAGES 4

typedef unsigned short half_bits;

/* Where a line along the sum has its piece i of 4. */
DEVICE int along_at(int line, int i) { return line * DEPTH + (i ^ (line / 2 & 3)) * 8; }

/* Where line k across the sum, of `pieces` pieces, has piece i. */
DEVICE int across_at(int k, int i, int pieces) { return (k * pieces + (i ^ (k & 7))) * 8; }

struct warp_sums {
    float v[4][8][4]; /* 4 x 16 rows, 8 x 8 columns, a lane's four */
};

template <bool BF16>
DEVICE void warp_multiply(warp_sums &acc, const unsigned (&a)[4][4], const unsigned (&b)[4][4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (BF16)
                mma_bf16_16816(acc.v[i][j], a[i], &b[j / 2][j % 2 * 2], acc.v[i][j]);
            else
                mma_f16_16816(acc.v[i][j], a[i], &b[j / 2][j % 2 * 2], acc.v[i][j]);
        }
}

/* acc += a [row ..][k] b [column ..][k], lines along the sum */
template <bool BF16>
DEVICE void warp_along(warp_sums &acc, const half_bits *a, int row, const half_bits *b, int column)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < DEPTH / 8; k += 2) {
        unsigned x[4][4], y[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            ldmatrix_x4(x[i], &a[along_at(row + i * 16 + lane % 16, k + lane / 16)]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            ldmatrix_x4(y[j],
                        &b[along_at(column + j * 16 + lane / 16 * 8 + lane % 8, k + lane / 8 % 2)]);
        warp_multiply<BF16>(acc, x, y);
    }
}

/* acc += a [k][row ..] b [k][column ..], lines across the sum; rows and columns
 * are those of the tile */
template <bool BF16>
DEVICE void warp_across(warp_sums &acc, const half_bits *a, int row, int rows, const half_bits *b,
                        int column, int columns)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        unsigned x[4][4], y[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            ldmatrix_x4_trans(x[i], &a[across_at(k + lane / 16 * 8 + lane % 8,
                                                 row / 8 + i * 2 + lane / 8 % 2, rows / 8)]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            ldmatrix_x4_trans(
                y[j], &b[across_at(k + lane % 16, column / 8 + j * 2 + lane / 16, columns / 8)]);
        warp_multiply<BF16>(acc, x, y);
    }
}
