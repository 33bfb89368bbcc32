/* device/cuda/kernels/gemm_small_products.cuh: the products of gemm_small.cu, and of
 * gemm_joined.cu (JOINED), which also has activations of a product.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "activation.cuh"
#include "gemm_small.cuh"
#include "vector.cuh"

/* For kernels of a token alone, so it is no part of each of them. */
static __device__ __noinline__ float activation_of(int epilogue, float x)
{
    if (epilogue == K_EPILOGUE_SILU) return silu_of(x);
    return epilogue == K_EPILOGUE_GELU ? gelu_of(x) : gelu_tanh_of(x);
}

#define AHEAD 3 /* steps along k whose loads are in flight */

/* y, and the epilogue: see gemm.h. */
template <class C, bool JOINED>
DEVICE void put_product(const dsi_cuda_matmul_args &P, long long z, long long row, long long column,
                        C v)
{
    if (P.bias) v += load<C>(P.bias, P.bias_dtype, column * P.bias_s);
    long long at = z * P.ys[0] + row * P.ys[1] + column * P.ys[2], i = row * P.n + column;
    store<C>(P.y, P.y_dtype, at, v);
    if (P.epilogue == K_EPILOGUE_NONE) return;
    if (JOINED && P.epilogue >= K_EPILOGUE_SILU) {
        C x = load<C>(P.y, P.y_dtype, at); /* as it is stored */
        if (P.epilogue == K_EPILOGUE_MUL) x *= load<C>(P.epilogue_in, P.y_dtype, i);
        store<C>(P.epilogue_out, P.y_dtype, i,
                 P.epilogue == K_EPILOGUE_MUL ? x : (C)activation_of(P.epilogue, (float)x));
        return;
    }
    C mask = P.epilogue == K_EPILOGUE_RELU ? v : load<C>(P.epilogue_in, P.y_dtype, i);
    bool none = P.epilogue == K_EPILOGUE_RELU ? mask < 0 : mask <= 0;
    store<C>(P.epilogue_out, P.y_dtype, i, none ? (C)0 : v);
}

/* Blocks of 4 warps: 4 columns, ROWS rows, batches. */
template <class T, class C, bool JOINED>
DEVICE void matmul_rows(const dsi_cuda_matmul_args &P, unsigned block)
{
    int part = threadIdx.x % 32 / 8;
    long long column = block * 4ll + threadIdx.x / 32, row = blockIdx.y * (long long)ROWS;
    if (column >= P.n) return;
    for (long long z = blockIdx.z; z < P.batch; z += gridDim.z) {
        const T *b = (const T *)P.b + z * P.bs[0] + column * P.bs[2], *a[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            a[r] = (const T *)P.a + z * P.as[0] + min(row + r, P.m - 1) * P.as[1];
        C acc[ROWS] = {};
        if (P.whole)
            rows_product<T, C, true>(acc, a, b, (int)P.k);
        else
            rows_product<T, C, false>(acc, a, b, (int)P.k);
        C v = rows_sum(acc);
        if (threadIdx.x % 8 == 0 && row + part < P.m)
            put_product<C, JOINED>(P, z, row + part, column, v);
    }
}

/* Sums of at most K_THIN products in float32: the gradient of weights for few
 * samples. A warp 4 rows, a lane 4 columns, whose b stays in registers. */
DEVICE void thin_product(const dsi_cuda_matmul_args &P, unsigned block)
{
    unsigned across = (unsigned)((P.n + 127) / 128);
    int column = (int)(block % across * 128 + threadIdx.x % 32 * 4),
        first = (int)(block / across * K_THIN_ROWS + threadIdx.x / 32 * 4);
    float b[K_THIN][4] = {};
    if (column >= (int)P.n) return;
#pragma unroll
    for (int i = 0; i < K_THIN; i++)
        if (i < (int)P.k) vector_load<float>(b[i], P.b, column + i * (int)P.bs[1]);
#pragma unroll 1
    for (int row = first; row < min(first + 4, (int)P.m); row += 2) {
        float x[2][K_THIN];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float *a = (const float *)P.a + min(row + r, (int)P.m - 1) * (int)P.as[1];
#pragma unroll
            for (int i = 0; i < K_THIN; i++) x[r][i] = i < (int)P.k ? a[i * (int)P.as[2]] : 0.f;
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float v[4] = {}, sum = 0;
#pragma unroll
            for (int i = 0; i < K_THIN; i++) {
                sum += x[r][i];
#pragma unroll
                for (int e = 0; e < 4; e++) v[e] += x[r][i] * b[i][e];
            }
            if (row + r >= (int)P.m) return;
            vector_store<float>(P.y, (row + r) * (int)P.ys[1] + column, v);
            if (P.sums && column == 0) ((float *)P.sums)[(row + r) * P.sums_s] = sum;
        }
    }
}

/* Blocks of 8 warps: 32 columns, 8 / parts times ROWS rows; and batches. Without
 * parts: 128 columns, K_THIN_ROWS rows. */
template <class T, class C, bool JOINED>
DEVICE void matmul_columns(const dsi_cuda_matmul_pair &pair)
{
    bool first_of_pair = blockIdx.x < pair.blocks;
    const dsi_cuda_matmul_args &P = pair.of[first_of_pair ? 0 : 1];
    unsigned block = first_of_pair ? blockIdx.x : blockIdx.x - pair.blocks,
             across = (unsigned)((P.n + 31) / 32);
    SHARED(C, part, [8][ROWS + 1][32]); /* the last row: sums of a */
    if (!JOINED && sizeof(T) == 4 && !P.parts) {
        thin_product(P, block);
        return;
    }
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = warp % P.parts;
    long long column = block % across * 32ll + lane,
              row = (block / across * (long long)(8 / P.parts) + warp / P.parts) * ROWS;
    /* Rows and columns past the last one are that one, and are not written. */
    long long from = min(row, P.m - 1);
    int at[ROWS], next_a = P.parts * (int)P.as[2], next_b = P.parts * (int)P.bs[1];
#pragma unroll
    for (int r = 0; r < ROWS; r++) at[r] = (int)(min(row + r, P.m - 1) - from) * (int)P.as[1];
    for (long long z = blockIdx.z; z < P.batch; z += gridDim.z) {
        const T *a = (const T *)P.a + z * P.as[0] + from * P.as[1] + first * P.as[2],
                *b = (const T *)P.b + z * P.bs[0] + min(column, P.n - 1) + first * P.bs[1];
        C acc[ROWS] = {}, sums[ROWS] = {};
#pragma unroll 1
        for (int k = first; k < (int)P.k; k += AHEAD * P.parts) {
            C w[AHEAD], x[AHEAD][ROWS];
#pragma unroll
            for (int u = 0; u < AHEAD; u++, a += next_a, b += next_b) {
                bool there = k + u * P.parts < (int)P.k;
                w[u] = there ? up(*b) : (C)0;
#pragma unroll
                for (int r = 0; r < ROWS; r++) x[u][r] = there ? up(a[at[r]]) : (C)0;
            }
#pragma unroll
            for (int u = 0; u < AHEAD; u++)
#pragma unroll
                for (int r = 0; r < ROWS; r++)
                    acc[r] += x[u][r] * w[u], sums[r] += x[u][r];
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            part[warp][r][lane] = acc[r];
            if (lane == r) part[warp][ROWS][r] = sums[r];
        }
        __syncthreads();
#pragma unroll 1
        for (int r = first; r < ROWS; r += P.parts) {
            C v = 0, sum = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                bool there = i < P.parts;
                v += there ? part[warp - first + i][r][lane] : (C)0;
                sum += there ? part[warp - first + i][ROWS][r] : (C)0;
            }
            if (row + r >= P.m || column >= P.n) continue;
            put_product<C, JOINED>(P, z, row + r, column, v);
            if (P.sums && column == 0) store<C>(P.sums, P.y_dtype, (row + r) * P.sums_s, sum);
        }
        __syncthreads();
    }
}
