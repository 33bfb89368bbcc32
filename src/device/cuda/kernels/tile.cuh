/* device/cuda/kernels/tile.cuh: a tile of a product, the body of matmul and of
 * the convolutions: 256 threads, each R x R elements of y, for a tile of 16 R x
 * 16 R. Two stages of shared memory: while one is multiplied, the next is
 * loaded, so that a step of DEPTH has one barrier.
 *
 * An operand is a struct with p, dtype and place(i, k): where element i along
 * the tile, k along the sum is; OUTSIDE counts as 0, ONE as 1: a column of ones
 * gives the sums of the other operand's rows.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "place.cuh"

#define DEPTH 16

template <class C, int R> struct tile_stage {
    C a[DEPTH][16 * R + 4], b[DEPTH][16 * R + 4];
};

/* Which elements of a stage this thread loads: (i + j di, k + j dk), j < R. */
struct tile_share {
    int i, k, di, dk;
};

/* along_k: whether elements are neighbours in memory along k. */
template <int R> DEVICE tile_share tile_share_of(bool along_k)
{
    int t = threadIdx.x;
    return along_k ? tile_share{t / DEPTH, t % DEPTH, 16, 0}
                   : tile_share{t % (16 * R), t / (16 * R), 0, 16 / R};
}

template <class T, class C, int R>
DEVICE void tile_read(C (&to)[R], const void *p, const long long (&at)[R])
{
#pragma unroll
    for (int j = 0; j < R; j++)
        to[j] = at[j] >= 0 ? (C)up(((const T *)p)[at[j]]) : (C)(at[j] == ONE);
}

template <class C, int R, class A>
DEVICE void tile_load(C (&to)[R], const A &a, tile_share s, long long i, long long k)
{
    long long at[R];
#pragma unroll
    for (int j = 0; j < R; j++) at[j] = a.place(i + s.i + j * s.di, k + s.k + j * s.dk);
    if (sizeof(C) == 8)
        tile_read<double, C, R>(to, a.p, at);
    else if (a.dtype == K_F32)
        tile_read<float, C, R>(to, a.p, at);
    else if (a.dtype == K_F16)
        tile_read<__half, C, R>(to, a.p, at);
    else
        tile_read<__nv_bfloat16, C, R>(to, a.p, at);
}

template <class C, int R>
DEVICE void tile_put(C (&to)[DEPTH][16 * R + 4], const C (&from)[R], tile_share s)
{
#pragma unroll
    for (int j = 0; j < R; j++) to[s.k + j * s.dk][s.i + j * s.di] = from[j];
}

template <class C, int R> DEVICE void tile_multiply(C (&acc)[R][R], const tile_stage<C, R> &s)
{
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll 4
    for (int k = 0; k < DEPTH; k++) {
        C x[R], y[R];
#pragma unroll
        for (int j = 0; j < R; j++) x[j] = s.a[k][ty + 16 * j], y[j] = s.b[k][tx + 16 * j];
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int c = 0; c < R; c++) acc[r][c] += x[r] * y[c];
    }
}

/* acc[r][c] += sum over k in [begin, end) of a(i + 16 r + t / 16, k)
 * b(j + 16 c + t % 16, k); t: the thread */
template <class C, int R, class A, class B>
DEVICE void tile_product(C (&acc)[R][R], tile_stage<C, R> *stage, const A &a, bool a_along_k,
                         const B &b, bool b_along_k, long long i, long long j, long long begin,
                         long long end)
{
    tile_share share_a = tile_share_of<R>(a_along_k), share_b = tile_share_of<R>(b_along_k);
    int now = 0;
    C next_a[R], next_b[R];
#pragma unroll 1
    for (long long k = begin - DEPTH; k < end; k += DEPTH, now ^= 1) {
        bool more = k + DEPTH < end;
        if (more) {
            tile_load<C, R>(next_a, a, share_a, i, k + DEPTH);
            tile_load<C, R>(next_b, b, share_b, j, k + DEPTH);
        }
        if (k >= begin) tile_multiply<C, R>(acc, stage[now]);
        if (more) {
            tile_put<C, R>(stage[now ^ 1].a, next_a, share_a);
            tile_put<C, R>(stage[now ^ 1].b, next_b, share_b);
        }
        __syncthreads();
    }
}

/* The tile in shared memory, which stages no longer need: element (r, c) is
 * tile_result<R>(stage)[r * (16 R + 1) + c]. A barrier before the next product
 * is the caller's. */
template <class C, int R> DEVICE const C *tile_result(const C (&acc)[R][R], tile_stage<C, R> *stage)
{
    C *to = (C *)stage;
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < R; c++)
            to[(threadIdx.x / 16 + 16 * r) * (16 * R + 1) + threadIdx.x % 16 + 16 * c] = acc[r][c];
    __syncthreads();
    return to;
}
