/* device/cuda/kernels/gemm_mma.cuh: a tile of a product of 16-bit matrices by
 * tensor cores, for gemm_mma.cu and groups_mma.cu, from compute capability 8.0
 * on: mma.m16n8k16, operands by cp.async and ldmatrix. Each of a and b has unit
 * stride along one of its dimensions, and 16-byte aligned lines along it.
 *
 * A block of 4 or 8 warps computes a tile of 128 x 128 or 128 x 256, a warp 64
 * x 64 of it; the larger one needs less of the second cache's bandwidth. Pieces
 * of 8 elements are stored in a stage with their place XORed by their line's
 * number, so that neither cp.async nor ldmatrix has bank conflicts.
 *
 * Invariants: of STAGES stages one is multiplied while the others arrive. The
 * barrier of a step says both that its stage has arrived for all threads, and
 * that all have read the one before, which may be filled again. Elements
 * outside of a matrix arrive as zeros.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "common.cuh"
#include "gemm_tile.cuh"
#include "ptx.cuh"

#define DEPTH  32 /* of a stage */
#define STAGES 4
#define SLAB   72 /* floats of a row of a warp's results; no bank conflicts */

template <int COLUMNS> struct alignas(16) mma_stage {
    half_bits a[ROWS * DEPTH], b[COLUMNS * DEPTH];
};

/* Where a piece is: [EDGE][DEPTH / 8], lines along k, or [DEPTH][EDGE / 8]. */
template <bool LINES_K, int EDGE> DEVICE int piece_place(int line, int piece)
{
    return LINES_K ? line * DEPTH + (piece ^ line / 2 % 4) * 8
                   : line * EDGE + (piece ^ line % 8) * 8;
}

/* The pieces of an operand that this one of THREADS brings: COUNT a stage, NEXT
 * lines apart. */
template <bool LINES_K, int EDGE, int THREADS> struct mma_source {
    enum {
        PIECES = LINES_K ? DEPTH / 8 : EDGE / 8, /* of a line */
        NEXT = THREADS / PIECES,
        COUNT = EDGE * DEPTH / 8 / THREADS
    };
    const half_bits *matrix, *p; /* p: of the next stage */
    long long step;              /* elements between lines */
    int place, n, k; /* n: lines, or elements of a line, from the first piece on; k: its k */
    bool inside;     /* the whole tile */

    DEVICE_MEMBER mma_source(const half_bits *of, long long s, int i, int size)
    {
        int line = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
        matrix = of, step = s, place = piece_place<LINES_K, EDGE>(line, piece);
        n = size - i - (LINES_K ? line : piece * 8), k = LINES_K ? piece * 8 : line;
        p = matrix + (LINES_K ? (i + line) * s + piece * 8 : line * s + i + piece * 8);
        inside = i + EDGE <= size;
    }
    /* Of the next stage, from which on `depth` of k are left. */
    DEVICE_MEMBER void fill(half_bits *to, int depth)
    {
        const half_bits *at = p;
        int whole = LINES_K ? bytes_of(depth - k) : bytes_of(n);
        to += place;
        if (inside && depth >= DEPTH)
#pragma unroll
            for (int j = 0; j < COUNT; j++, at += NEXT * step)
                cp_async16(&to[j * NEXT * (LINES_K ? DEPTH : EDGE)], at, 16);
        else
#pragma unroll
            for (int j = 0; j < COUNT; j++, at += NEXT * step) {
                int bytes = j * NEXT < (LINES_K ? n : depth - k) ? whole : 0;
                cp_async16(&to[j * NEXT * (LINES_K ? DEPTH : EDGE)], bytes ? at : matrix, bytes);
            }
        p += LINES_K ? DEPTH : DEPTH * step;
    }
};

/* The 16 x 16 elements of a from (row, k) on. */
template <bool LINES_K> DEVICE void mma_load_a(unsigned *f, const half_bits *a, int row, int k)
{
    int lane = threadIdx.x % 32;
    if (LINES_K)
        ldmatrix_x4(f, &a[piece_place<true, ROWS>(row + lane % 16, k / 8 + lane / 16)]);
    else
        ldmatrix_x4_trans(
            f, &a[piece_place<false, ROWS>(k + lane / 16 * 8 + lane % 8, row / 8 + lane / 8 % 2)]);
}

/* The 16 x 16 elements of b from (k, column) on: two fragments of 8 columns. */
template <bool LINES_K, int COLUMNS>
DEVICE void mma_load_b(unsigned *f, const half_bits *b, int column, int k)
{
    int lane = threadIdx.x % 32;
    if (LINES_K)
        ldmatrix_x4(f, &b[piece_place<true, COLUMNS>(column + lane / 16 * 8 + lane % 8,
                                                     k / 8 + lane / 8 % 2)]);
    else
        ldmatrix_x4_trans(f,
                          &b[piece_place<false, COLUMNS>(k + lane % 16, column / 8 + lane / 16)]);
}

template <bool BF16, bool A_K, bool B_K, int COLUMNS>
DEVICE void mma_multiply(float (&acc)[4][8][4], const mma_stage<COLUMNS> &s, int row, int column)
{
    unsigned a[2][4][4], b[2][4][4];
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            mma_load_a<A_K>(a[k][i], s.a, row + i * 16, k * 16);
            mma_load_b<B_K, COLUMNS>(b[k][i], s.b, column + i * 16, k * 16);
        }
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                if (BF16)
                    mma_bf16_16816(acc[i][j], a[k][i], &b[k][j / 2][j % 2 * 2], acc[i][j]);
                else
                    mma_f16_16816(acc[i][j], a[k][i], &b[k][j / 2][j % 2 * 2], acc[i][j]);
            }
}

/* Writes a warp's 64 x 64, 16 rows at a time by way of its own shared memory. */
DEVICE void mma_write(const dsi_cuda_matmul_args &P, const float (&acc)[4][8][4], float *slab,
                      long long batch, long long row, long long column)
{
    int lane = threadIdx.x % 32;
    long long x = column + lane % 8 * 8;
    float bias[8] = {};
    if (P.bias)
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (x + e < P.n) bias[e] = load<float>(P.bias, P.bias_dtype, (x + e) * P.bias_s);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                *(float2 *)&slab[(lane / 4 + e * 8) * SLAB + j * 8 + lane % 4 * 2] = make_float2(
                    acc[i][j][e * 2], acc[i][j][e * 2 + 1]);
        __syncwarp();
#pragma unroll 1
        for (int r = lane / 8; r < 16; r += 4) {
            long long y = row + i * 16 + r;
            if (y < P.m)
                row_write(P, batch * P.ys[0] + y * P.ys[1], x, &slab[r * SLAB + lane % 8 * 8],
                          bias);
        }
    }
}

/* acc = a warp's 64 x 64, from (row, column) of the tile on, of a b over
 * `depth` of k. Ends with a barrier: the stages may be used for something
 * else. */
template <bool BF16, bool A_K, bool B_K, int COLUMNS>
DEVICE void mma_product(float (&acc)[4][8][4], mma_stage<COLUMNS> *stage,
                        mma_source<A_K, ROWS, COLUMNS> &a, mma_source<B_K, COLUMNS, COLUMNS> &b,
                        int depth, int row, int column)
{
#pragma unroll 1
    for (int k = 0; k < (STAGES - 1) * DEPTH; k += DEPTH) {
        if (k < depth) {
            a.fill(stage[k / DEPTH].a, depth - k);
            b.fill(stage[k / DEPTH].b, depth - k);
        }
        cp_async_commit(); /* maybe of nothing: one group a step */
    }
    int now = 0, next = STAGES - 1;
#pragma unroll 1
    for (int k = 0; k < depth; k += DEPTH) {
        cp_async_wait(STAGES - 2);
        __syncthreads();
        int ahead = k + (STAGES - 1) * DEPTH;
        if (ahead < depth) {
            a.fill(stage[next].a, depth - ahead);
            b.fill(stage[next].b, depth - ahead);
        }
        cp_async_commit();
        mma_multiply<BF16, A_K, B_K, COLUMNS>(acc, stage[now], row, column);
        now = now + 1 == STAGES ? 0 : now + 1, next = next + 1 == STAGES ? 0 : next + 1;
    }
    cp_async_wait(0);
    __syncthreads();
}
