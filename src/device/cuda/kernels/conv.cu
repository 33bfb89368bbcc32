/* device/cuda/kernels/conv.cu: convolution as products whose operands are
 * gathered (implicit gemm), a tile of 64 x 64 a block:
 *
 *     conv2d      y [k, pixels]  = w [k, taps] x [taps, pixels]
 *     conv2d_dx   dx [c, pixels] = w^T [c, taps] dy [taps, pixels]
 *     conv2d_dw   dw [k, taps]   = dy [k, pixels] x [pixels, taps], whose sum is
 *                 long: it is cut into parts, which conv2d_dw_sum adds in order
 *
 * and directly, a thread (dw: a block) an element: float64, and groups of few
 * channels.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "conv.h"
#include "team.cuh"
#include "tile.cuh"

/* ---- numbers of pixels and taps ---- */

DEVICE unsigned divide(unsigned n, const dsi_cuda_divisor &d)
{
    return ((unsigned)((unsigned long long)n * d.mul >> 32) + n) >> d.shift;
}

struct conv_pixel {
    int n, y, x;
};
DEVICE conv_pixel pixel_of(const dsi_cuda_conv_args &P, unsigned i)
{
    unsigned n = divide(i, P.plane), rest = i - n * P.plane.d, y = divide(rest, P.row);
    return {(int)n, (int)y, (int)(rest - y * P.row.d)};
}

struct conv_tap {
    int c, r, s;
};
DEVICE conv_tap tap_of(const dsi_cuda_conv_args &P, unsigned i)
{
    unsigned u = divide(i, P.outer), rest = i - u * P.outer.d, v = divide(rest, P.inner),
             w = rest - v * P.inner.d;
    return P.channels_last ? conv_tap{(int)w, (int)u, (int)v} : conv_tap{(int)u, (int)v, (int)w};
}

/* Offset of x [n,c] under tap (r,s) of output (y,x); -1: in the padding. */
DEVICE long long under_tap(const dsi_cuda_conv_args &P, conv_pixel i, long long c, int r, int s)
{
    int h = i.y * P.stride[0] + r * P.dilation[0] - P.padding[0],
        w = i.x * P.stride[1] + s * P.dilation[1] - P.padding[1];
    if (h < 0 || h >= P.h || w < 0 || w >= P.width) return -1;
    return i.n * P.xs[0] + c * P.xs[1] + h * P.xs[2] + w * P.xs[3];
}

/* Offset of dy [n,k] at the output whose tap (r,s) is over input (y,x); -1:
 * there is none. */
DEVICE long long over_tap(const dsi_cuda_conv_args &P, conv_pixel i, long long k, int r, int s)
{
    int h = i.y + P.padding[0] - r * P.dilation[0], w = i.x + P.padding[1] - s * P.dilation[1];
    if (h < 0 || w < 0) return -1;
    unsigned p = divide((unsigned)h, P.by_stride[0]), q = divide((unsigned)w, P.by_stride[1]);
    if (p * P.stride[0] != (unsigned)h || q * P.stride[1] != (unsigned)w) return -1;
    if (p >= (unsigned)P.p || q >= (unsigned)P.q) return -1;
    return i.n * P.ys[0] + k * P.ys[1] + p * P.ys[2] + q * P.ys[3];
}

/* ---- operands of tiles ---- */

/* w at (k, tap), or (tap, c) for dx */
struct conv_weights {
    const void *p;
    int dtype;
    const dsi_cuda_conv_args &P;
    long long group;
    bool dx;
    DEVICE_MEMBER long long place(long long i, long long j) const
    {
        if (i >= (dx ? P.c : P.k) || j >= P.taps) return -1;
        conv_tap t = tap_of(P, (unsigned)j);
        long long k = group * P.k + (dx ? t.c : i), c = dx ? i : t.c;
        return k * P.ws[0] + c * P.ws[1] + t.r * P.ws[2] + t.s * P.ws[3];
    }
};

/* x at (pixel, tap), or dy for dx */
struct conv_pixels {
    const void *p;
    int dtype;
    const dsi_cuda_conv_args &P;
    long long group;
    bool dx;
    DEVICE_MEMBER long long place(long long i, long long j) const
    {
        if (i >= P.pixels || j >= P.taps) return -1;
        conv_pixel at = pixel_of(P, (unsigned)i);
        conv_tap t = tap_of(P, (unsigned)j);
        return dx ? over_tap(P, at, group * P.k + t.c, t.r, t.s)
                  : under_tap(P, at, group * P.c + t.c, t.r, t.s);
    }
};

/* x at (tap, pixel), for dw */
struct conv_taps {
    const void *p;
    int dtype;
    const dsi_cuda_conv_args &P;
    long long group;
    DEVICE_MEMBER long long place(long long i, long long j) const
    {
        if (i >= P.taps || j >= P.pixels) return -1;
        conv_tap t = tap_of(P, (unsigned)i);
        return under_tap(P, pixel_of(P, (unsigned)j), group * P.c + t.c, t.r, t.s);
    }
};

/* dy at (k, pixel), for dw */
struct conv_outputs {
    const void *p;
    int dtype;
    const dsi_cuda_conv_args &P;
    long long group;
    DEVICE_MEMBER long long place(long long i, long long j) const
    {
        if (i >= P.k || j >= P.pixels) return -1;
        conv_pixel at = pixel_of(P, (unsigned)j);
        return at.n * P.ys[0] + (group * P.k + i) * P.ys[1] + at.y * P.ys[2] + at.x * P.ys[3];
    }
};

/* ---- tiles: blocks are tiles of pixels (taps), tiles of channels, groups ---- */

typedef tile_stage<float, 4> conv_stage;
#define TILE 64

/* y, or dx */
DEVICE void conv_forward(const dsi_cuda_conv_args &P, bool dx)
{
    SHARED(conv_stage, stage, [2]);
    long long column = blockIdx.x * (long long)TILE, row = blockIdx.y * (long long)TILE,
              group = blockIdx.z;
    int channels = dx ? P.c : P.k;
    conv_weights a = {P.w, P.dtype, P, group, dx};
    conv_pixels b = {dx ? P.dy : P.x, P.dtype, P, group, dx};
    float acc[4][4] = {};
    tile_product<float, 4>(acc, stage, a, true, b, P.channels_last != 0, row, column, 0, P.taps);
    const float *tile = tile_result<float, 4>(acc, stage);
    const long long *s = dx ? P.xs : P.ys;
#pragma unroll 1
    for (int e = threadIdx.x; e < TILE * TILE; e += 256) {
        int i = s[1] == 1 ? e % TILE : e / TILE, j = s[1] == 1 ? e / TILE : e % TILE;
        if (row + i >= channels || column + j >= P.pixels) continue;
        long long k = group * channels + row + i;
        conv_pixel at = pixel_of(P, (unsigned)(column + j));
        float v = tile[i * (TILE + 1) + j];
        if (P.bias) v += load<float>(P.bias, P.bias_dtype, k * P.bias_s);
        store<float>(P.out, P.dtype, at.n * s[0] + k * s[1] + at.y * s[2] + at.x * s[3], v);
    }
}
KERNEL(conv2d_tile, dsi_cuda_conv_args, 256) { conv_forward(P, false); }
KERNEL(conv2d_dx_tile, dsi_cuda_conv_args, 256) { conv_forward(P, true); }

/* Element (k, tap) of dw */
DEVICE long long dw_place(const dsi_cuda_conv_args &P, long long k, unsigned tap)
{
    conv_tap t = tap_of(P, tap);
    return k * P.ws[0] + t.c * P.ws[1] + t.r * P.ws[2] + t.s * P.ws[3];
}

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
    const float *tile = tile_result<float, 4>(acc, stage);
#pragma unroll 1
    for (int e = threadIdx.x; e < TILE * TILE; e += 256) {
        long long i = row + e / TILE, j = column + e % TILE, k = group * P.k + i;
        if (i >= P.k || j >= P.taps) continue;
        float v = tile[e / TILE * (TILE + 1) + e % TILE];
        if (P.splits > 1)
            P.part[(split * P.groups * P.k + k) * P.taps + j] = v;
        else
            store<float>(P.out, P.dtype, dw_place(P, k, (unsigned)j), v);
    }
}

KERNEL(conv2d_dw_sum, dsi_cuda_conv_args, 256)
{
    long long each = (long long)P.groups * P.k * P.taps;
    GRID_LOOP (i, each) {
        float sum = 0;
#pragma unroll 4
        for (int j = 0; j < P.splits; j++) sum += P.part[j * each + i];
        store<float>(P.out, P.dtype, dw_place(P, i / P.taps, (unsigned)(i % P.taps)), sum);
    }
}

/* ---- directly ---- */

template <class C> DEVICE void conv2d_direct(const dsi_cuda_conv_args &P)
{
    long long channels = (long long)P.groups * P.k;
    GRID_LOOP (e, channels * P.pixels) {
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
    GRID_LOOP (e, channels * P.pixels) {
        long long c = e / P.pixels, group = c / P.c;
        conv_pixel at = pixel_of(P, (unsigned)(e % P.pixels));
        C sum = 0;
#pragma unroll 1
        for (long long k = group * P.k; k < (group + 1) * P.k; k++)
#pragma unroll 1
            for (int r = 0; r < P.r; r++)
#pragma unroll 1
                for (int s = 0; s < P.s; s++) {
                    long long y = over_tap(P, at, k, r, s), w = k * P.ws[0] + c % P.c * P.ws[1] +
                                                                r * P.ws[2] + s * P.ws[3];
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
