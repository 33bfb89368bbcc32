/* device/cuda/kernels/gemm_mma.cu: products of 16-bit matrices by tensor cores,
 * from compute capability 8.0 on: mma.m16n8k16, operands by cp.async in two
 * stages and ldmatrix. Each of a and b has unit stride along one of its
 * dimensions, and 16-byte aligned lines along it.
 *
 * A block of 8 warps computes a tile of 128 x 128, a warp 64 x 32 of it.
 *
 * Invariants: while one stage is multiplied, the other is filled; a barrier
 * between reading a stage and filling it. What is outside of a matrix arrives as
 * zeros.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "gemm.h"
#include "ptx.cuh"
#include "team.cuh"

#define EDGE  128 /* of the tile */
#define DEPTH 32  /* of a stage */
#define ALONG_K (DEPTH + 8) /* elements of a line: 8 more, so that ldmatrix has no bank conflicts */
#define ACROSS_K (EDGE + 8)

typedef unsigned short half_bits;

struct alignas(16) mma_stage {
    half_bits a[EDGE * ALONG_K], b[EDGE * ALONG_K]; /* [EDGE][ALONG_K] or [DEPTH][ACROSS_K] */
};

/* Fills a stage of one operand from line `i` along the tile and `k` on. Lines
 * along k: s elements apart; else lines along the tile, one a k. */
template <bool LINES_K>
DEVICE void mma_fill(half_bits *to, const half_bits *from, long long s, long long i, long long n,
                     long long k, long long depth)
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        int c = threadIdx.x + j * 256; /* of 512 pieces of 8 elements */
        int line = LINES_K ? c / 4 : c / 16, at = LINES_K ? c % 4 * 8 : c % 16 * 8;
        long long y = (LINES_K ? i : k) + line, x = (LINES_K ? k : i) + at;
        long long left = (LINES_K ? depth : n) - x;
        int bytes = y < (LINES_K ? n : depth) && left > 0 ? (left < 8 ? (int)left * 2 : 16) : 0;
        cp_async16(&to[line * (LINES_K ? ALONG_K : ACROSS_K) + at], bytes ? from + y * s + x : from,
                   bytes);
    }
}

/* The 16 x 16 elements of a from (row, k) on. */
template <bool LINES_K> DEVICE void mma_load_a(unsigned *f, const half_bits *a, int row, int k)
{
    int lane = threadIdx.x % 32;
    if (LINES_K)
        ldmatrix_x4(f, &a[(row + lane % 16) * ALONG_K + k + lane / 16 * 8]);
    else
        ldmatrix_x4_trans(f, &a[(k + lane / 16 * 8 + lane % 8) * ACROSS_K + row + lane / 8 % 2 * 8]);
}

/* The 16 x 16 elements of b from (k, column) on: two fragments of 8 columns. */
template <bool LINES_K> DEVICE void mma_load_b(unsigned *f, const half_bits *b, int column, int k)
{
    int lane = threadIdx.x % 32;
    if (LINES_K)
        ldmatrix_x4(f, &b[(column + lane / 16 * 8 + lane % 8) * ALONG_K + k + lane / 8 % 2 * 8]);
    else
        ldmatrix_x4_trans(f, &b[(k + lane % 16) * ACROSS_K + column + lane / 16 * 8]);
}

template <bool BF16, bool A_K, bool B_K>
DEVICE void mma_multiply(float (&acc)[4][4][4], const mma_stage &s, int row, int column)
{
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        unsigned a[4][4], b[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) mma_load_a<A_K>(a[i], s.a, row + i * 16, k);
#pragma unroll
        for (int j = 0; j < 2; j++) mma_load_b<B_K>(b[j], s.b, column + j * 16, k);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (BF16)
                    mma_bf16_16816(acc[i][j], a[i], &b[j / 2][j % 2 * 2], acc[i][j]);
                else
                    mma_f16_16816(acc[i][j], a[i], &b[j / 2][j % 2 * 2], acc[i][j]);
            }
    }
}

/* Writes a warp's 64 x 32, 16 rows at a time by way of its own shared memory. */
DEVICE void mma_write(const dsi_cuda_matmul_args &P, const float (&acc)[4][4][4], float *slab,
                      long long batch, long long row, long long column)
{
    int lane = threadIdx.x % 32;
    long long x = column + lane;
    float bias = P.bias && x < P.n ? load<float>(P.bias, P.bias_dtype, x * P.bias_s) : 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                slab[(lane / 4 + e / 2 * 8) * 33 + j * 8 + lane % 4 * 2 + e % 2] = acc[i][j][e];
        __syncwarp();
#pragma unroll 1
        for (int r = 0; r < 16; r++) {
            long long y = row + i * 16 + r;
            if (y < P.m && x < P.n)
                store<float>(P.y, P.y_dtype, batch * P.ys[0] + y * P.ys[1] + x * P.ys[2],
                             slab[r * 33 + lane] + bias);
        }
    }
}

/* Blocks: column tiles, row tiles, batches. */
template <bool BF16, bool A_K, bool B_K> DEVICE void matmul_mma(const dsi_cuda_matmul_args &P)
{
    SHARED(mma_stage, stage, [2]);
    int warp = threadIdx.x / 32, wm = warp / 4 * 64, wn = warp % 4 * 32;
    long long row = blockIdx.y * (long long)EDGE, column = blockIdx.x * (long long)EDGE;
    long long sa = A_K ? P.as[1] : P.as[2], sb = B_K ? P.bs[2] : P.bs[1];
#pragma unroll 1
    for (long long z = blockIdx.z; z < P.batch; z += gridDim.z) {
        const half_bits *a = (const half_bits *)P.a + z * P.as[0],
                        *b = (const half_bits *)P.b + z * P.bs[0];
        float acc[4][4][4] = {};
        mma_fill<A_K>(stage[0].a, a, sa, row, P.m, 0, P.k);
        mma_fill<B_K>(stage[0].b, b, sb, column, P.n, 0, P.k);
        cp_async_commit();
        int now = 0;
#pragma unroll 1
        for (long long k = 0; k < P.k; k += DEPTH, now ^= 1) {
            if (k + DEPTH < P.k) {
                mma_fill<A_K>(stage[now ^ 1].a, a, sa, row, P.m, k + DEPTH, P.k);
                mma_fill<B_K>(stage[now ^ 1].b, b, sb, column, P.n, k + DEPTH, P.k);
            }
            cp_async_commit(); /* maybe of nothing: one group a step */
            cp_async_wait(1);
            __syncthreads();
            mma_multiply<BF16, A_K, B_K>(acc, stage[now], wm, wn);
            __syncthreads(); /* this stage may be filled again */
        }
        cp_async_wait(0);
        __syncthreads();
        mma_write(P, acc, (float *)stage + warp * 16 * 33, z, row + wm, column + wn);
        __syncthreads();
    }
}

/* Names: the letter of a and b is n where lines run along their second
 * dimension, as in BLAS, else t. */
#define MATMUL_MMA(suffix, bf16) \
    KERNEL(matmul_nn_##suffix, dsi_cuda_matmul_args, 256) { matmul_mma<bf16, true, false>(P); } \
    KERNEL(matmul_nt_##suffix, dsi_cuda_matmul_args, 256) { matmul_mma<bf16, true, true>(P); } \
    KERNEL(matmul_tn_##suffix, dsi_cuda_matmul_args, 256) { matmul_mma<bf16, false, false>(P); } \
    KERNEL(matmul_tt_##suffix, dsi_cuda_matmul_args, 256) { matmul_mma<bf16, false, true>(P); }
MATMUL_MMA(f16, false)
MATMUL_MMA(bf16, true)
