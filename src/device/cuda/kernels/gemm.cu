/* device/cuda/kernels/gemm.cu: products of matrices of any strides.
 *
 *     matmul       a tile of 64 x 64 a block (float64: 32 x 32)
 *     matmul_few   few elements, long sums: a warp an element
 *
 * gemm_mma.cu has the same for 16 bits by tensor cores, where strides allow.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "gemm.h"
#include "matrix.cuh"
#include "tile.cuh"

/* Blocks: column tiles, row tiles, batches. */
template <class C, int R> DEVICE void matmul_tiles(const dsi_cuda_matmul_args &P)
{
    typedef tile_stage<C, R> Stage;
    SHARED(Stage, stage, [2]);
    long long row = blockIdx.y * 16ll * R, column = blockIdx.x * 16ll * R;
    for (long long z = blockIdx.z; z < P.batch; z += gridDim.z) {
        matrix_operand a = {P.a, P.dtype, z * P.as[0], P.m, P.k, P.as[1], P.as[2], false};
        matrix_operand b = {P.b, P.dtype, z * P.bs[0], P.n, P.k, P.bs[2], P.bs[1], P.sums != 0};
        C acc[R][R] = {};
        tile_product<C, R>(acc, stage, a, P.as[2] == 1, b, P.bs[1] == 1, row, column, 0, P.k);
        const C *tile = tile_result<C, R>(acc, stage);
#pragma unroll 1
        for (int e = threadIdx.x; e < 256 * R * R; e += 256) {
            int r = P.ys[1] == 1 ? e % (16 * R) : e / (16 * R);
            int c = P.ys[1] == 1 ? e / (16 * R) : e % (16 * R);
            C v = tile[r * (16 * R + 1) + c];
            if (row + r < P.m && column + c == P.n && P.sums)
                store<C>(P.sums, P.y_dtype, (row + r) * P.sums_s, v);
            if (row + r >= P.m || column + c >= P.n) continue;
            if (P.bias) v += load<C>(P.bias, P.bias_dtype, (column + c) * P.bias_s);
            store<C>(P.y, P.y_dtype, z * P.ys[0] + (row + r) * P.ys[1] + (column + c) * P.ys[2], v);
        }
        __syncthreads();
    }
}
KERNEL(matmul_f32, dsi_cuda_matmul_args, 256) { matmul_tiles<float, 4>(P); }
KERNEL(matmul_f64, dsi_cuda_matmul_args, 256) { matmul_tiles<double, 2>(P); }

/* Blocks of 4 warps; a warp an element, counted over [batch,m,n]. */
template <class C> DEVICE void matmul_few(const dsi_cuda_matmul_args &P)
{
    unsigned i = blockIdx.x * 4 + threadIdx.x / 32, n = (unsigned)P.n, m = (unsigned)P.m;
    if (i >= P.batch * P.m * P.n) return;
    long long column = i % n, row = i / n % m, z = i / n / m;
    long long a = z * P.as[0] + row * P.as[1], b = z * P.bs[0] + column * P.bs[2];
    C sum = 0;
#pragma unroll 1
    for (long long k = threadIdx.x % 32; k < P.k; k += 32)
        sum += load<C>(P.a, P.dtype, a + k * P.as[2]) * load<C>(P.b, P.dtype, b + k * P.bs[1]);
    sum = lanes_sum(sum);
    if (threadIdx.x % 32) return;
    if (P.bias) sum += load<C>(P.bias, P.bias_dtype, column * P.bias_s);
    store<C>(P.y, P.y_dtype, z * P.ys[0] + row * P.ys[1] + column * P.ys[2], sum);
}
FLOAT_AND_DOUBLE(matmul_few, dsi_cuda_matmul_args, 128)
