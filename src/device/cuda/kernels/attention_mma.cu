/* device/cuda/kernels/attention_mma.cu: attention.cuh in 16 bits, with products
 * by tensor cores (tile_mma.cuh). Scores, softmax and sums are float32. The
 * factors of values, keys and queries (probabilities and gradients of scores)
 * are sums of two numbers of the operands' dtype, because one alone would lose
 * half of the result's bits where terms of both signs add up.
 * SPDX-License-Identifier: MIT */
#include "attention.cuh"
#include "common.cuh"
#include "team.cuh"
#include "tile_mma.cuh"

#define ACROSS (MMA_TILE + 8) /* elements of a line */

struct alignas(16) attention_mma_shared {
    union {
        mma_tile_stage stage[2];
        struct {
            half_bits b[MMA_TILE][ACROSS];   /* lines across the sum */
            half_bits low[MMA_TILE][ACROSS]; /* what p lacks */
        } factor;
    };
    half_bits p[MMA_TILE][ACROSS];
    float tile[MMA_TILE][MMA_TILE + 1];
};

/* Invariants: between a warp's last read of a part of the shared memory and
 * another's next write to it is a barrier: those of mma_tile_product, the one
 * of times, and that at the end of mma_tile_result. */
template <bool BF16> struct mma_engine {
    typedef float C;
    enum { R = 4 };
    typedef attention_mma_shared Shared;

    static DEVICE_MEMBER void product(float (&p)[4][4], Shared &s, const row_operand &a,
                                      const row_operand &b, long long i, long long j,
                                      long long width)
    {
        float acc[4][4] = {};
        mma_tile_product<BF16>(acc, s.stage, a, true, b, true, i, j, 0, width);
        mma_tile_result(acc, s.tile[0]);
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                p[r][c] = s.tile[threadIdx.x / 16 + 16 * r][threadIdx.x % 16 + 16 * c];
    }

    static DEVICE_MEMBER void times(float (&y)[4][4], Shared &s, const float (&p)[4][4],
                                    const row_operand &b, long long at, long long first)
    {
        int ty = threadIdx.x / 16, tx = threadIdx.x % 16, lane = threadIdx.x % 32,
            warp = threadIdx.x / 32, row = warp / 2 * 16, column = warp % 2 * 32;
        const int dtype = BF16 ? K_BF16 : K_F16;
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                half_bits *high = &s.p[ty + 16 * r][tx + 16 * c];
                store<float>(high, dtype, 0, p[r][c]);
                store<float>(&s.factor.low[ty + 16 * r][tx + 16 * c], dtype, 0,
                             p[r][c] - load<float>(high, dtype, 0));
            }
#pragma unroll 4
        for (int j = 0; j < 16; j++) {
            int k = threadIdx.x / 64 + 4 * j, n = threadIdx.x % 64;
            long long from = b.place(first + k, at + n);
            s.factor.b[k][n] = from >= 0 ? ((const half_bits *)b.p)[from] : (half_bits)0;
        }
        __syncthreads();
        float acc[4][4] = {};
#pragma unroll
        for (int k = 0; k < MMA_TILE; k += 16) {
            unsigned f[4], low[4], g[2][4];
            ldmatrix_x4(f, &s.p[row + lane % 16][k + lane / 16 * 8]);
            ldmatrix_x4(low, &s.factor.low[row + lane % 16][k + lane / 16 * 8]);
#pragma unroll
            for (int j = 0; j < 2; j++)
                ldmatrix_x4_trans(g[j],
                                  &s.factor.b[k + lane % 16][column + j * 16 + lane / 16 * 8]);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                mma_tile_mma<BF16>(acc[j], low, &g[j / 2][j % 2 * 2]);
                mma_tile_mma<BF16>(acc[j], f, &g[j / 2][j % 2 * 2]);
            }
        }
        mma_tile_result(acc, s.tile[0]);
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < 4; c++) y[r][c] += s.tile[ty + 16 * r][tx + 16 * c];
    }
};

#define ATTENTION_MMA(suffix, bf16) \
    KERNEL(attention_##suffix, dsi_cuda_attention_args, 256) \
    { \
        attention_forward<mma_engine<bf16>>(P); \
    } \
    KERNEL(attention_dq_##suffix, dsi_cuda_attention_args, 256) \
    { \
        attention_dq<mma_engine<bf16>>(P); \
    } \
    KERNEL(attention_dkv_##suffix, dsi_cuda_attention_args, 256) \
    { \
        attention_dkv<mma_engine<bf16>>(P); \
    }
ATTENTION_MMA(f16, false)
ATTENTION_MMA(bf16, true)
