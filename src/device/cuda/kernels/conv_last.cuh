/* device/cuda/kernels/conv_last.cuh: tiles of products by tensor cores, for the
 * convolutions of conv_last.cu: a warp computes 64 x 64 of a tile, 64 x 32 in
 * float32, operands arrive by cp.async in STAGES stages.
 *
 * Shared memory is counted in pieces of 16 bytes, N elements of E. Lines of a
 * stage are along the sum, PIECES pieces, or across it, as long as the tile; the
 * sum of a stage is PIECES N long. Which piece of its line has an element depends
 * on the line, so that what a warp reads at once is in different banks.
 *
 * Tensor cores have no float32: its operands are sums of two tf32, of 11 bits
 * each, and a product is that of three pairs of them; what is left out is as small
 * as a rounding in float32. Tensor cores round sums toward zero, so that long
 * ones are added outside of them (Ootomo, Yokota, Recovering single precision
 * accuracy from Tensor Cores, 2022). An infinite operand gives NaN.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "conv_tiles.h"
#include "ptx.cuh"
#include "ptx_tf32.cuh"

#define WARP   K_CONV_WARP
#define PIECES K_CONV_PIECES
#define STAGES K_CONV_STAGES

/* Elements of a piece; of a stage's sum; columns of a warp's tile. */
template <class E> struct count_of {
    static constexpr int PIECE = 16 / (int)sizeof(E), DEPTH = PIECES * PIECE,
                         COLUMNS = sizeof(E) == 4 ? 32 : 64;
};

/* Where a line along the sum has its piece i. */
DEVICE int along_at(int line, int i) { return line * PIECES + (i ^ (line / 2 & 3)); }

/* Where line k across the sum, of `pieces` pieces, has piece i. */
template <class E> DEVICE int across_at(int k, int i, int pieces)
{
    return k * pieces + (i ^ (sizeof(E) == 4 ? (k & 3) * 2 : k & 7));
}

template <class E> struct warp_sums {
    float v[4][count_of<E>::COLUMNS / 8][4]; /* of 16 rows, 8 columns, a lane's four */
};

/* ---- fragments: 16 rows, or 16 columns, and 32 bytes of the sum ---- */

DEVICE void multiply(float (&acc)[4], const unsigned *a, const unsigned *b, __half)
{
    mma_f16_16816(acc, a, b, acc);
}

DEVICE void multiply(float (&acc)[4], const unsigned *a, const unsigned *b, __nv_bfloat16)
{
    mma_bf16_16816(acc, a, b, acc);
}

/* acc += a b; rows `row` of 16, columns `column` of 16 */
template <class E>
DEVICE void multiply(warp_sums<E> &acc, int row, int column, const unsigned (&a)[4],
                     const unsigned (&b)[4])
{
#pragma unroll
    for (int j = 0; j < 2; j++) multiply(acc.v[row][column * 2 + j], a, &b[j * 2], E());
}

/* x = high + low; the tensor core drops the last 13 bits of low. */
DEVICE void split(const unsigned (&x)[4], unsigned (&high)[4], unsigned (&low)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        high[i] = (x[i] + 0x1000) & 0xffffe000u;
        low[i] = __float_as_uint(__uint_as_float(x[i]) - __uint_as_float(high[i]));
    }
}

DEVICE void multiply(warp_sums<float> &acc, int row, int column, const unsigned (&a)[4],
                     const unsigned (&b)[4])
{
    unsigned ah[4], al[4], bh[4], bl[4];
    split(a, ah, al), split(b, bh, bl);
    float sum[2][4] = {};
#pragma unroll
    for (int j = 0; j < 2; j++) mma_tf32_1688(sum[j], al, &bh[j * 2], sum[j]);
#pragma unroll
    for (int j = 0; j < 2; j++) mma_tf32_1688(sum[j], ah, &bl[j * 2], sum[j]);
#pragma unroll
    for (int j = 0; j < 2; j++) mma_tf32_1688(sum[j], ah, &bh[j * 2], sum[j]);
#pragma unroll
    for (int e = 0; e < 8; e++) acc.v[row][column * 2 + e / 4][e % 4] += sum[e / 4][e % 4];
}

/* acc += a stage: lines row ... of a and column ... of b, along the sum */
template <class E>
DEVICE void warp_along(warp_sums<E> &acc, const uint4 *a, int row, const uint4 *b, int column)
{
    constexpr int COLUMNS = count_of<E>::COLUMNS / 16;
    int lane = threadIdx.x % 32, line = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int k = 0; k < PIECES; k += 2) {
        unsigned x[4][4], y[COLUMNS][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            ldmatrix_x4(x[i], &a[along_at(row + i * 16 + lane % 16, k + lane / 16)]);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            ldmatrix_x4(y[j], &b[along_at(column + j * 16 + line, k + lane / 8 % 2)]);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) multiply(acc, i, j, x[i], y[j]);
    }
}

/* Element `at` of line k across the sum, of float32. */
DEVICE unsigned across_word(const uint4 *a, int k, int at, int pieces)
{
    return ((const unsigned *)&a[across_at<float>(k, at / 4, pieces)])[at % 4];
}

/* The fragments of 16 rows (columns) from `at` on. */
template <class E, bool B>
DEVICE void across_load(unsigned (&f)[4], const uint4 *a, int k, int at, int pieces)
{
    int lane = threadIdx.x % 32;
    if (sizeof(E) == 4) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int side = B ? i / 2 : i % 2, deep = B ? i % 2 : i / 2;
            f[i] = across_word(a, k + lane % 4 + deep * 4, at + lane / 4 + side * 8, pieces);
        }
    } else {
        int side = B ? lane / 16 : lane / 8 % 2, deep = B ? lane / 8 % 2 : lane / 16;
        ldmatrix_x4_trans(f, &a[across_at<E>(k + deep * 8 + lane % 8, at / 8 + side, pieces)]);
    }
}

/* acc += a stage: rows row ... of a and columns column ... of b, lines across the
 * sum of a_line and b_line pieces */
template <class E>
DEVICE void warp_across(warp_sums<E> &acc, const uint4 *a, int row, int a_line, const uint4 *b,
                        int column, int b_line)
{
    constexpr int COLUMNS = count_of<E>::COLUMNS / 16;
#pragma unroll
    for (int k = 0; k < count_of<E>::DEPTH; k += count_of<E>::PIECE * 2) {
        unsigned x[4][4], y[COLUMNS][4];
#pragma unroll
        for (int i = 0; i < 4; i++) across_load<E, false>(x[i], a, k, row + i * 16, a_line);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) across_load<E, true>(y[j], b, k, column + j * 16, b_line);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) multiply(acc, i, j, x[i], y[j]);
    }
}
