/* device/cuda/kernels/tile_mma.cuh: a tile of 64 x 64 of a product of 16-bit
 * operands by tensor cores, with operands as in tile.cuh, which may be gathered:
 * so elements are loaded one by one, and not by cp.async. 256 threads; a warp
 * computes 16 x 32 of the tile. Two stages, one barrier a step. compute_80.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "place.cuh"
#include "ptx.cuh"

#define MMA_TILE  64
#define MMA_DEPTH 32
#define MMA_LINE  (MMA_DEPTH + 8)              /* 8 more, so that ldmatrix has no bank conflicts */
#define MMA_EACH  (MMA_TILE * MMA_DEPTH / 256) /* elements of an operand that a thread loads */

typedef unsigned short half_bits;

/* Lines along k. */
struct alignas(16) mma_tile_stage {
    half_bits a[MMA_TILE][MMA_LINE], b[MMA_TILE][MMA_LINE];
};

/* Element j of this thread's: along_k says whether elements are neighbours in
 * memory along k. */
struct mma_share {
    int i, k, di, dk;
};
DEVICE mma_share mma_share_of(bool along_k)
{
    int t = threadIdx.x;
    return along_k ? mma_share{t / MMA_DEPTH, t % MMA_DEPTH, 256 / MMA_DEPTH, 0}
                   : mma_share{t % MMA_TILE, t / MMA_TILE, 0, 256 / MMA_TILE};
}

template <class A>
DEVICE void mma_tile_load(half_bits (&to)[MMA_EACH], const A &a, mma_share s, long long i,
                          long long k)
{
#pragma unroll
    for (int j = 0; j < MMA_EACH; j++) {
        long long at = a.place(i + s.i + j * s.di, k + s.k + j * s.dk);
        to[j] = at >= 0     ? ((const half_bits *)a.p)[at]
                : at == ONE ? (half_bits)(a.dtype == K_BF16 ? 0x3f80 : 0x3c00)
                            : (half_bits)0;
    }
}

DEVICE void mma_tile_put(half_bits (&to)[MMA_TILE][MMA_LINE], const half_bits (&from)[MMA_EACH],
                         mma_share s)
{
#pragma unroll
    for (int j = 0; j < MMA_EACH; j++) to[s.i + j * s.di][s.k + j * s.dk] = from[j];
}

/* acc += a [16,16] b [16,8] */
template <bool BF16> DEVICE void mma_tile_mma(float (&acc)[4], const unsigned *a, const unsigned *b)
{
    if (BF16)
        mma_bf16_16816(acc, a, b, acc);
    else
        mma_f16_16816(acc, a, b, acc);
}

/* acc += a warp's 16 x 32 of a [row ..][k ..] times b [column ..][k ..], over
 * `depth` of k; lines of `line` elements. */
template <bool BF16>
DEVICE void mma_tile_step(float (&acc)[4][4], const half_bits *a, const half_bits *b, int line,
                          int depth)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp / 2 * 16,
        column = warp % 2 * 32;
#pragma unroll
    for (int k = 0; k < depth; k += 16) {
        unsigned x[4], y[2][4];
        ldmatrix_x4(x, &a[(row + lane % 16) * line + k + lane / 16 * 8]);
#pragma unroll
        for (int j = 0; j < 2; j++)
            ldmatrix_x4(
                y[j],
                &b[(column + j * 16 + lane / 16 * 8 + lane % 8) * line + k + lane / 8 % 2 * 8]);
#pragma unroll
        for (int j = 0; j < 4; j++) mma_tile_mma<BF16>(acc[j], x, &y[j / 2][j % 2 * 2]);
    }
}

/* acc += sum over k in [begin, end) of a(i + row, k) b(j + column, k). Ends with
 * a barrier. */
template <bool BF16, class A, class B>
DEVICE void mma_tile_product(float (&acc)[4][4], mma_tile_stage *stage, const A &a, bool a_along_k,
                             const B &b, bool b_along_k, long long i, long long j, long long begin,
                             long long end)
{
    mma_share share_a = mma_share_of(a_along_k), share_b = mma_share_of(b_along_k);
    int now = 0;
    half_bits next_a[MMA_EACH], next_b[MMA_EACH];
#pragma unroll 1
    for (long long k = begin - MMA_DEPTH; k < end; k += MMA_DEPTH, now ^= 1) {
        bool more = k + MMA_DEPTH < end;
        if (more) {
            mma_tile_load(next_a, a, share_a, i, k + MMA_DEPTH);
            mma_tile_load(next_b, b, share_b, j, k + MMA_DEPTH);
        }
        if (k >= begin)
            mma_tile_step<BF16>(acc, stage[now].a[0], stage[now].b[0], MMA_LINE, MMA_DEPTH);
        if (more) {
            mma_tile_put(stage[now ^ 1].a, next_a, share_a);
            mma_tile_put(stage[now ^ 1].b, next_b, share_b);
        }
        __syncthreads();
    }
}

/* The tile to shared memory: element (r, c) is to[r * (MMA_TILE + 1) + c]. Ends
 * with a barrier. */
DEVICE void mma_tile_result(const float (&acc)[4][4], float *to)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int row = warp / 2 * 16 + lane / 4, column = warp % 2 * 32 + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            to[(row + e / 2 * 8) * (MMA_TILE + 1) + column + j * 8 + e % 2] = acc[j][e];
    __syncthreads();
}
