/* device/cuda/kernels/conv.cu: convolution as products whose operands are
 * gathered (implicit gemm), a tile of 64 x 64 a block:
 *
 *     conv2d      y [k, pixels]  = w [k, taps] x [taps, pixels]
 *     conv2d_dx   dx [c, pixels] = w^T [c, taps] dy [taps, pixels]
 *     conv2d_dw   dw [k, taps]   = dy [k, pixels] x [pixels, taps], whose sum is
 *                 long: it is cut into parts, which conv2d_dw_sum adds in order
 *
 * 16 bits are computed by conv_mma.cu where there are tensor cores. And directly, a thread (dw: a block) an element:
 * float64, and groups of few channels.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "conv.cuh"
#include "team.cuh"
#include "tile.cuh"

/* ---- tiles ---- */

typedef tile_stage<float, 4> conv_stage;

/* y, or dx */
DEVICE void conv_forward(const dsi_cuda_conv_args &P, bool dx)
{
    SHARED(conv_stage, stage, [2]);
    long long column = blockIdx.x * (long long)TILE, row = blockIdx.y * (long long)TILE,
              group = blockIdx.z;
    conv_weights a = {P.w, P.dtype, P, group, dx};
    conv_pixels b = {dx ? P.dy : P.x, P.dtype, P, group, dx};
    float acc[4][4] = {};
    tile_product<float, 4>(acc, stage, a, true, b, P.channels_last != 0, row, column, 0, P.taps);
    conv_write(P, dx, tile_result<float, 4>(acc, stage), row, column, group);
}
KERNEL(conv2d_tile, dsi_cuda_conv_args, 256) { conv_forward(P, false); }
KERNEL(conv2d_dx_tile, dsi_cuda_conv_args, 256) { conv_forward(P, true); }

/* blockIdx.z: group splits + split */
KERNEL(conv2d_dw_tile, dsi_cuda_conv_args, 256)
{
    SHARED(conv_stage, stage, [2]);
    long long column = blockIdx.x * (long long)TILE, row = blockIdx.y * (long long)TILE,
              group = blockIdx.z / P.splits, split = blockIdx.z % P.splits;
    long long begin = split * P.split_pixels;
    conv_outputs a = {P.dy, P.dtype, P, group};
    conv_taps b = {P.x, P.dtype, P, group};
    float acc[4][4] = {};
    tile_product<float, 4>(acc, stage, a, !P.channels_last, b, !P.channels_last, row, column, begin,
                           min(begin + P.split_pixels, (long long)P.pixels));
    conv_dw_write(P, tile_result<float, 4>(acc, stage), row, column, group, split);
}

KERNEL(conv2d_dw_sum, dsi_cuda_conv_args, 256)
{
    long long each = (long long)P.groups * P.k * P.columns;
    GRID_LOOP(i, each)
    {
        float sum = 0;
#pragma unroll 4
        for (int j = 0; j < P.splits; j++) sum += P.part[j * each + i];
        dw_store(P, i / P.columns, i % P.columns, sum);
    }
}

/* ---- directly ---- */

template <class C> DEVICE void conv2d_direct(const dsi_cuda_conv_args &P)
{
    long long channels = (long long)P.groups * P.k;
    GRID_LOOP(e, channels * P.pixels)
    {
        long long k = e / P.pixels, group = k / P.k;
        conv_pixel at = pixel_of(P, (unsigned)(e % P.pixels));
        C sum = P.bias ? load<C>(P.bias, P.bias_dtype, k * P.bias_s) : (C)0;
#pragma unroll 1
        for (int c = 0; c < P.c; c++)
#pragma unroll 1
            for (int r = 0; r < P.r; r++)
#pragma unroll 1
                for (int s = 0; s < P.s; s++) {
                    long long x = under_tap(P, at, group * P.c + c, r, s),
                              w = k * P.ws[0] + c * P.ws[1] + r * P.ws[2] + s * P.ws[3];
                    if (x >= 0) sum += load<C>(P.x, P.dtype, x) * load<C>(P.w, P.dtype, w);
                }
        store<C>(P.out, P.dtype, at.n * P.ys[0] + k * P.ys[1] + at.y * P.ys[2] + at.x * P.ys[3],
                 sum);
    }
}
FLOAT_AND_DOUBLE(conv2d_direct, dsi_cuda_conv_args, 256)

template <class C> DEVICE void conv2d_dx_direct(const dsi_cuda_conv_args &P)
{
    long long channels = (long long)P.groups * P.c;
    GRID_LOOP(e, channels * P.pixels)
    {
        long long c = e / P.pixels, group = c / P.c;
        conv_pixel at = pixel_of(P, (unsigned)(e % P.pixels));
        C sum = 0;
#pragma unroll 1
        for (long long k = group * P.k; k < (group + 1) * P.k; k++)
#pragma unroll 1
            for (int r = 0; r < P.r; r++)
#pragma unroll 1
                for (int s = 0; s < P.s; s++) {
                    long long y = over_tap(P, at, k, r, s),
                              w = k * P.ws[0] + c % P.c * P.ws[1] + r * P.ws[2] + s * P.ws[3];
                    if (y >= 0) sum += load<C>(P.dy, P.dtype, y) * load<C>(P.w, P.dtype, w);
                }
        store<C>(P.out, P.dtype, at.n * P.xs[0] + c * P.xs[1] + at.y * P.xs[2] + at.x * P.xs[3],
                 sum);
    }
}
FLOAT_AND_DOUBLE(conv2d_dx_direct, dsi_cuda_conv_args, 256)

/* A block an element (k, tap). */
template <class C> DEVICE void conv2d_dw_direct(const dsi_cuda_conv_args &P)
{
    SHARED(C, part, [8]);
    long long k = blockIdx.x / P.taps, group = k / P.k;
    unsigned tap = (unsigned)(blockIdx.x % P.taps);
    conv_tap t = tap_of(P, tap);
    C sum = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < P.pixels; i += 128) {
        conv_pixel at = pixel_of(P, (unsigned)i);
        long long x = under_tap(P, at, group * P.c + t.c, t.r, t.s),
                  y = at.n * P.ys[0] + k * P.ys[1] + at.y * P.ys[2] + at.x * P.ys[3];
        if (x >= 0) sum += load<C>(P.dy, P.dtype, y) * load<C>(P.x, P.dtype, x);
    }
    sum = team_sum(sum, 128, part);
    if (threadIdx.x == 0) store<C>(P.out, P.dtype, dw_place(P, k, tap), sum);
}
FLOAT_AND_DOUBLE(conv2d_dw_direct, dsi_cuda_conv_args, 128)
