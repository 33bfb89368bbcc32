/* device/cuda/kernels/gemm_tile.cuh: what products of 16-bit matrices by tensor
 * cores share, gemm_mma.cu and gemm_wgmma.cu: which tile a block computes, and
 * how a row of it is written.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "gemm.h"
#include "team.cuh"
#include "vector.cuh"

#define ROWS  128 /* of the tile */
#define GROUP 16  /* rows of tiles whose blocks run one after the other, so that they share b */

typedef unsigned short half_bits;

DEVICE int bytes_of(int elements) { return elements < 0 ? 0 : elements < 8 ? elements * 2 : 16; }

/* The first row and column of a block's tile: GROUP rows of tiles, column by
 * column, then the next GROUP. */
template <int COLUMNS>
DEVICE void tile_of(const dsi_cuda_matmul_args &P, int *row, int *column)
{
    int down = (int)((P.m + ROWS - 1) / ROWS), across = (int)((P.n + COLUMNS - 1) / COLUMNS);
    int first = (int)blockIdx.x / (GROUP * across) * GROUP, at = (int)blockIdx.x - first * across;
    int rows = min(GROUP, down - first);
    *row = (first + at % rows) * ROWS, *column = at / rows * COLUMNS;
}

/* Writes 8 columns from x on of one row of y, which begins at element `at`. */
DEVICE void row_write(const dsi_cuda_matmul_args &P, long long at, long long x, const float *from,
                      const float (&bias)[8])
{
    const float4 low = ((const float4 *)from)[0], high = ((const float4 *)from)[1];
    if (P.vectors && x + 8 <= P.n) {
        float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] += bias[e];
        if (P.y_dtype == K_BF16)
            vector_store<__nv_bfloat16>(P.y, at + x, v);
        else if (P.y_dtype == K_F16)
            vector_store<__half>(P.y, at + x, v);
        else {
            ((float4 *)((float *)P.y + at + x))[0] = make_float4(v[0], v[1], v[2], v[3]);
            ((float4 *)((float *)P.y + at + x))[1] = make_float4(v[4], v[5], v[6], v[7]);
        }
        return;
    }
#pragma unroll 1
    for (int e = 0; e < 8 && x + e < P.n; e++) {
        float v = from[e];
        if (P.bias) v += load<float>(P.bias, P.bias_dtype, (x + e) * P.bias_s);
        store<float>(P.y, P.y_dtype, at + (x + e) * P.ys[2], v);
    }
}
