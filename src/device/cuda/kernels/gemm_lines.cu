/* device/cuda/kernels/gemm_lines.cu: products of float32 matrices whose lines,
 * along one of their dimensions, are aligned vectors of 16 bytes; gemm.cu has
 * the rest.
 *
 * A block of 256 threads computes a tile of 128 x 128; a thread 8 x 8 of it, as
 * four quads of 4 x 4 that are 64 rows or columns apart, so that it reads
 * shared memory by 16 bytes without bank conflicts. Two stages: while one is
 * multiplied, the next is loaded to registers.
 *
 * Where tiles are too few for a GPU, the sum over k is cut: then a "batch" is a
 * part of k, y the parts' sums, and matmul_parts adds these in order. It does
 * so for gemm_mma.cu too.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "gemm.h"
#include "vector.cuh"

#define DEVICE_MEMBER __device__ __forceinline__

#define EDGE  128
#define DEPTH 16
#define LINE  (EDGE + 4)
#define GROUP 16 /* rows of tiles whose blocks run one after the other */

struct alignas(16) lines_stage {
    float a[DEPTH][LINE], b[DEPTH][LINE];
};

/* The elements of an operand that this thread copies: two vectors a stage, NEXT
 * lines apart. */
template <bool LINES_K> struct line_source {
    enum { NEXT = LINES_K ? 64 : 8 };
    const float *p;
    long long step;       /* elements between lines */
    int line, piece, n;   /* n: elements, or lines, of the tile's dimension from i on */

    DEVICE_MEMBER line_source(const float *matrix, long long s, int i, int size)
    {
        line = LINES_K ? threadIdx.x / 4 : threadIdx.x / 32;
        piece = (LINES_K ? threadIdx.x % 4 : threadIdx.x % 32) * 4;
        step = s, n = size - i;
        p = matrix + (LINES_K ? (i + line) * s + piece : line * s + i + piece);
    }
    /* depth: what is left of k */
    DEVICE_MEMBER void load(float (&v)[2][4], long long k, int depth) const
    {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int l = line + j * NEXT, left = (LINES_K ? depth : n) - piece;
            const float *from = p + (LINES_K ? k : k * step) + j * NEXT * step;
            bool inside = l < (LINES_K ? n : depth);
            if (inside && left >= 4)
                vector_load<float>(v[j], from, 0);
            else
#pragma unroll
                for (int e = 0; e < 4; e++) v[j][e] = inside && e < left ? from[e] : 0;
        }
    }
    DEVICE_MEMBER void put(float (*to)[LINE], const float (&v)[2][4]) const
    {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if (LINES_K)
#pragma unroll
                for (int e = 0; e < 4; e++) to[piece + e][line + j * NEXT] = v[j][e];
            else
                vector_store<float>(&to[line + j * NEXT][piece], 0, v[j]);
        }
    }
};

DEVICE void lines_multiply(float (&acc)[8][8], const lines_stage &s, int y, int x)
{
#pragma unroll 4
    for (int k = 0; k < DEPTH; k++) {
        float a[2][4], b[2][4];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            vector_load<float>(a[h], &s.a[k][y + h * 64], 0);
            vector_load<float>(b[h], &s.b[k][x + h * 64], 0);
        }
#pragma unroll
        for (int r = 0; r < 8; r++)
#pragma unroll
            for (int c = 0; c < 8; c++) acc[r][c] += a[r / 4][r % 4] * b[c / 4][c % 4];
    }
}

/* Writes 4 columns from x on of row y. */
DEVICE void quad_write(const dsi_cuda_matmul_args &P, long long z, long long y, long long x,
                       const float *v)
{
    if (y >= P.m) return;
    long long at = z * P.ys[0] + y * P.ys[1];
    float sum[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        sum[e] = v[e];
        if (P.bias && x + e < P.n)
            sum[e] += load<float>(P.bias, P.bias_dtype, (x + e) * P.bias_s);
    }
    if (P.vectors && x + 4 <= P.n)
        vector_store<float>(P.y, at + x, sum);
    else
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (x + e < P.n) store<float>(P.y, P.y_dtype, at + (x + e) * P.ys[2], sum[e]);
}

/* The first row and column of a block's tile: GROUP rows of tiles, column by
 * column, then the next GROUP. */
DEVICE void tile_of(const dsi_cuda_matmul_args &P, int *row, int *column)
{
    int down = (int)((P.m + EDGE - 1) / EDGE), across = (int)((P.n + EDGE - 1) / EDGE);
    int first = (int)blockIdx.x / (GROUP * across) * GROUP, at = (int)blockIdx.x - first * across;
    int rows = min(GROUP, down - first);
    *row = (first + at % rows) * EDGE, *column = at / rows * EDGE;
}

/* Blocks: tiles; batches along z. */
template <bool A_K, bool B_K> DEVICE void matmul_lines(const dsi_cuda_matmul_args &P)
{
    SHARED(lines_stage, stage, [2]);
    int row, column, y = threadIdx.x / 16 * 4, x = threadIdx.x % 16 * 4;
    tile_of(P, &row, &column);
#pragma unroll 1
    for (long long z = blockIdx.z; z < P.batch; z += gridDim.z) {
        line_source<A_K> a((const float *)P.a + z * P.as[0], A_K ? P.as[1] : P.as[2], row, (int)P.m);
        line_source<B_K> b((const float *)P.b + z * P.bs[0], B_K ? P.bs[2] : P.bs[1], column,
                           (int)P.n);
        int depth = (int)(z == P.batch - 1 ? P.last_k : P.k), now = 0;
        float acc[8][8] = {}, next_a[2][4], next_b[2][4];
        a.load(next_a, 0, depth), b.load(next_b, 0, depth);
        a.put(stage[0].a, next_a), b.put(stage[0].b, next_b);
        __syncthreads();
#pragma unroll 1
        for (int k = 0; k < depth; k += DEPTH, now ^= 1) {
            int ahead = k + DEPTH;
            if (ahead < depth)
                a.load(next_a, ahead, depth - ahead), b.load(next_b, ahead, depth - ahead);
            lines_multiply(acc, stage[now], y, x);
            if (ahead < depth) a.put(stage[now ^ 1].a, next_a), b.put(stage[now ^ 1].b, next_b);
            __syncthreads();
        }
#pragma unroll
        for (int r = 0; r < 8; r++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                quad_write(P, z, row + y + r % 4 + r / 4 * 64, column + x + h * 64, &acc[r][h * 4]);
    }
}

/* Names: the letter of a and b is n where lines run along their second
 * dimension, as in BLAS, else t. */
KERNEL(matmul_lines_nn, dsi_cuda_matmul_args, 256) { matmul_lines<true, false>(P); }
KERNEL(matmul_lines_nt, dsi_cuda_matmul_args, 256) { matmul_lines<true, true>(P); }
KERNEL(matmul_lines_tn, dsi_cuda_matmul_args, 256) { matmul_lines<false, false>(P); }
KERNEL(matmul_lines_tt, dsi_cuda_matmul_args, 256) { matmul_lines<false, true>(P); }

/* y = sum over the batches of a, parts of a sum in float32, + bias; 4 columns a
 * thread. a's lines are aligned and whole vectors. */
KERNEL(matmul_parts, dsi_cuda_matmul_args, 256)
{
    unsigned across = (unsigned)(P.n + 3) / 4;
    GRID_LOOP (i, P.m * across) {
        long long y = (unsigned)i / across, x = (unsigned)i % across * 4ll;
        const float *from = (const float *)P.a + y * P.as[1] + x;
        float sum[4] = {};
#pragma unroll 4
        for (long long z = 0; z < P.batch; z++) {
            float4 v = *(const float4 *)(from + z * P.as[0]);
            sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (P.bias && x + e < P.n)
                sum[e] += load<float>(P.bias, P.bias_dtype, (x + e) * P.bias_s);
        long long at = y * P.ys[1] + x * P.ys[2];
        if (P.vectors && x + 4 <= P.n && P.y_dtype == K_F32)
            *(float4 *)((float *)P.y + at) = make_float4(sum[0], sum[1], sum[2], sum[3]);
        else if (P.vectors && x + 4 <= P.n && P.y_dtype == K_BF16)
            *(uint2 *)((__nv_bfloat16 *)P.y + at) =
                make_uint2(pair_pack<__nv_bfloat16>(sum[0], sum[1]),
                           pair_pack<__nv_bfloat16>(sum[2], sum[3]));
        else
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (x + e < P.n) store<float>(P.y, P.y_dtype, at + e * P.ys[2], sum[e]);
    }
}
