/* device/cuda/kernels/attention.cu: attention.cuh with products of tile.cuh:
 * float32 and float64, and 16 bits where there are no tensor cores.
 * SPDX-License-Identifier: MIT */
#include "attention.cuh"
#include "common.cuh"
#include "team.cuh"
#include "tile.cuh"

template <class C, int R> struct attention_shared {
    tile_stage<C, R> stage[2];
    C tile[16 * R][16 * R + 1];
};

/* acc[r][c] += sum over k < 16 R of tile[16 r + t / 16][k] b[first + k][at + 16 c + t % 16] */
template <class C, int R>
DEVICE void tile_times(C (&acc)[R][R], attention_shared<C, R> &s, const row_operand &b,
                       long long at, long long first)
{
    column_operand columns = {b, b.p, b.dtype};
    tile_share share = tile_share_of<R>(false);
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll 1
    for (int k = 0, now = 0; k < 16 * R; k += DEPTH, now ^= 1) {
        C next[R];
        tile_load<C, R>(next, columns, share, at, first + k);
        tile_put<C, R>(s.stage[now].b, next, share);
        __syncthreads(); /* also: the tile is written */
#pragma unroll 4
        for (int i = 0; i < DEPTH; i++) {
            C x[R], y[R];
#pragma unroll
            for (int j = 0; j < R; j++)
                x[j] = s.tile[ty + 16 * j][k + i], y[j] = s.stage[now].b[i][tx + 16 * j];
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int c = 0; c < R; c++) acc[r][c] += x[r] * y[c];
        }
    }
    __syncthreads(); /* tile and stages may be written again */
}

template <class T, int N> struct tile_engine {
    typedef T C;
    enum { R = N };
    typedef attention_shared<T, N> Shared;
    static DEVICE_MEMBER void product(T (&p)[N][N], Shared &s, const row_operand &a,
                                      const row_operand &b, long long i, long long j,
                                      long long width)
    {
        tile_product<T, N>(p, s.stage, a, true, b, true, i, j, 0, width);
    }
    static DEVICE_MEMBER void times(T (&y)[N][N], Shared &s, const T (&p)[N][N],
                                    const row_operand &b, long long at, long long first)
    {
        tile_keep<T, N>(s, p);
        tile_times<T, N>(y, s, b, at, first);
    }
};
typedef tile_engine<float, 4> floats;
typedef tile_engine<double, 2> doubles;

KERNEL(attention_f32, dsi_cuda_attention_args, 256) { attention_forward<floats>(P); }
KERNEL(attention_f64, dsi_cuda_attention_args, 256) { attention_forward<doubles>(P); }
KERNEL(attention_dq_f32, dsi_cuda_attention_args, 256) { attention_dq<floats>(P); }
KERNEL(attention_dq_f64, dsi_cuda_attention_args, 256) { attention_dq<doubles>(P); }
KERNEL(attention_dkv_f32, dsi_cuda_attention_args, 256) { attention_dkv<floats>(P); }
KERNEL(attention_dkv_f64, dsi_cuda_attention_args, 256) { attention_dkv<doubles>(P); }

/* Blocks of 4 warps, a warp a row: dot = sum(dy y) */
template <class C> DEVICE void attention_dot(const dsi_cuda_attention_args &P)
{
    long long i = blockIdx.x * 4ll + threadIdx.x / 32;
    if (i >= P.batches * P.l) return;
    long long batch = i / P.l, row = i % P.l,
              dy = batch_place(P.dys, batch, P.heads) + row * P.dys[2],
              y = batch_place(P.ys, batch, P.heads) + row * P.ys[2];
    C sum = 0;
#pragma unroll 1
    for (long long e = threadIdx.x % 32; e < P.e; e += 32)
        sum += load<C>(P.dy, P.dtype, dy + e) * load<C>(P.y, P.dtype, y + e);
    sum = lanes_sum(sum);
    if (threadIdx.x % 32 == 0) ((C *)P.dot)[i] = sum;
}
FLOAT_AND_DOUBLE(attention_dot, dsi_cuda_attention_args, 128)
