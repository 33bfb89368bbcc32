/* device/cuda/kernels/conv.cuh: what the convolutions by tiles have in common:
 * operands that are gathered, and writing a tile; conv.cu computes tiles with
 * float32 products, conv_mma.cu with tensor cores.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "conv.h"
#include "place.cuh"
#include "team.cuh"

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

/* x at (tap, pixel), for dw; with db a column of ones behind the taps */
struct conv_taps {
    const void *p;
    int dtype;
    const dsi_cuda_conv_args &P;
    long long group;
    DEVICE_MEMBER long long place(long long i, long long j) const
    {
        if (i >= P.columns || j >= P.pixels) return OUTSIDE;
        if (i == P.taps) return ONE;
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

#define TILE 64

/* Rows of y, or of dx, from `row` on and pixels from `column` on; tile: [TILE]
 * [TILE + 1] in shared memory. */
DEVICE void conv_write(const dsi_cuda_conv_args &P, bool dx, const float *tile, long long row,
                       long long column, long long group)
{
    int channels = dx ? P.c : P.k;
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

/* Element (k, tap) of dw */
DEVICE long long dw_place(const dsi_cuda_conv_args &P, long long k, unsigned tap)
{
    conv_tap t = tap_of(P, tap);
    return k * P.ws[0] + t.c * P.ws[1] + t.r * P.ws[2] + t.s * P.ws[3];
}

/* The same, or of db behind the taps. */
DEVICE void dw_store(const dsi_cuda_conv_args &P, long long k, long long column, float v)
{
    if (column == P.taps)
        store<float>(P.db, P.dtype, k * P.db_s, v);
    else
        store<float>(P.out, P.dtype, dw_place(P, k, (unsigned)column), v);
}

/* Rows of dw from `row` on and taps from `column` on, or their part of the
 * sum. */
DEVICE void conv_dw_write(const dsi_cuda_conv_args &P, const float *tile, long long row,
                          long long column, long long group, long long split)
{
#pragma unroll 1
    for (int e = threadIdx.x; e < TILE * TILE; e += 256) {
        long long i = row + e / TILE, j = column + e % TILE, k = group * P.k + i;
        if (i >= P.k || j >= P.columns) continue;
        float v = tile[e / TILE * (TILE + 1) + e % TILE];
        if (P.splits > 1)
            P.part[(split * P.groups * P.k + k) * P.columns + j] = v;
        else
            dw_store(P, k, j, v);
    }
}
