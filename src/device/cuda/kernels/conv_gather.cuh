/* device/cuda/kernels/conv_gather.cuh: the operands of the products of
 * conv_last.cu and conv_wgmma.cu: which pixels a block has, what is under their
 * taps, and how a stage of a sum is filled.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "conv.cuh"
#include "conv_last.cuh"

#define MOST_TAPS 32 /* r s: a bit each */

/* The convolution that a block is a part of: `inner` channels of a group of
 * `in`, h x width, give `channels` of the output, of which this class has rows
 * x columns: y0 + out_stride[0] i, x0 + out_stride[1] j. is, os: strides. */
template <class E> struct conv_map {
    const E *in, *w;
    const long long *is, *os;
    int h, width, y0, x0, rows, columns, stride[2], out_stride[2], inner, channels, group;
};
template <class E> DEVICE conv_map<E> map_of(const dsi_cuda_conv_args &P, bool dx)
{
    conv_map<E> m;
    int classes = dx ? P.stride[0] * P.stride[1] : 1, group = blockIdx.z / classes,
        kind = blockIdx.z % classes;
    m.group = group;
    m.is = dx ? P.ys : P.xs, m.os = dx ? P.xs : P.ys;
    m.h = dx ? P.p : P.h, m.width = dx ? P.q : P.width;
    m.inner = dx ? P.k : P.c, m.channels = dx ? P.c : P.k;
    m.y0 = dx ? kind / P.stride[1] : 0, m.x0 = dx ? kind % P.stride[1] : 0;
    for (int i = 0; i < 2; i++)
        m.stride[i] = dx ? 1 : P.stride[i], m.out_stride[i] = dx ? P.stride[i] : 1;
    m.rows = ((dx ? P.h : P.p) - m.y0 + m.out_stride[0] - 1) / m.out_stride[0];
    m.columns = ((dx ? P.width : P.q) - m.x0 + m.out_stride[1] - 1) / m.out_stride[1];
    m.in = (const E *)(dx ? P.dy : P.x) + group * m.inner;
    m.w = (const E *)P.w + (long long)group * m.channels * P.r * P.s * m.inner;
    return m;
}

/* A tap (r, s) that contributes to the block's pixels. */
struct conv_tap_at {
    int y, x, from, weights; /* from, weights: distances in elements */
};

/* A pixel of the tile: where its tap (0, 0) is, which taps are inside of the
 * image, and its place in the output, -1: none. */
struct conv_row {
    int at;
    unsigned inside;
    int out;
};

template <int ROWS> struct conv_shared {
    conv_tap_at tap[MOST_TAPS];
    int taps;
    conv_row row[ROWS];
};

/* By the first warp, a lane a tap. */
template <class E>
DEVICE void conv_taps_of(const dsi_cuda_conv_args &P, const conv_map<E> &m, bool dx,
                         conv_tap_at *tap, int *taps)
{
    int i = threadIdx.x, y = i / P.s * P.dilation[0] - P.padding[0],
        x = i % P.s * P.dilation[1] - P.padding[1];
    if (dx) y = m.y0 - y, x = m.x0 - x;
    bool used = i < P.r * P.s && !(dx && (y % P.stride[0] || x % P.stride[1]));
    if (dx) y /= P.stride[0], x /= P.stride[1];
    unsigned all = __ballot_sync(ALL_LANES, used);
    if (used)
        tap[__popc(all & ((1u << i) - 1))] = {y, x, (int)(y * m.is[2] + x * m.is[3]), i * m.inner};
    if (i == 0) *taps = __popc(all);
}

template <class E>
DEVICE conv_row conv_row_of(const conv_map<E> &m, const conv_tap_at *tap, int taps, int n,
                            unsigned pixel)
{
    unsigned plane = m.rows * m.columns, image = pixel / plane, rest = pixel - image * plane,
             line = rest / m.columns;
    int y = line, x = rest - line * m.columns;
    conv_row row = {0, 0, -1};
    if ((int)image >= n) return row;
    row.out = (int)(image * m.os[0] + (m.y0 + y * m.out_stride[0]) * m.os[2] +
                    (m.x0 + x * m.out_stride[1]) * m.os[3]);
    y *= m.stride[0], x *= m.stride[1];
    row.at = (int)(image * m.is[0] + y * m.is[2] + x * m.is[3]);
#pragma unroll 1
    for (int t = 0; t < taps; t++) {
        unsigned h = y + tap[t].y, w = x + tap[t].x;
        row.inside |= (unsigned)(h < (unsigned)m.h && w < (unsigned)m.width) << t;
    }
    return row;
}

/* A thread's place in the sum, where its next piece is. */
struct conv_place {
    int tap, c;
};
DEVICE void next_place(conv_place &at, int by, int inner)
{
    at.c += by;
    while (at.c >= inner) at.c -= inner, at.tap++;
}
/* A stage on. Where channels are whole stages, all taps of `depth` channels
 * follow each other, so that the first cache has what they share of the
 * input. */
DEVICE void next_stage(conv_place &at, int depth, int inner, int taps)
{
    if (inner % depth)
        next_place(at, depth, inner);
    else if (++at.tap == taps)
        at.tap = 0, at.c += depth;
}

/* Fills a stage: LINES lines at a time, a thread the same piece of each. */
template <int A, int B, int LINES, int ROWS, class E>
DEVICE void conv_fill(const conv_map<E> &m, const conv_shared<ROWS> &s, const conv_row (&row)[A],
                      conv_place at, int column0, int all_taps, uint4 *a, uint4 *b)
{
    int line0 = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
    bool in = at.tap < s.taps;
    conv_tap_at tap = s.tap[in ? at.tap : 0];
#pragma unroll
    for (int j = 0; j < A; j++) {
        bool ok = in && row[j].inside >> at.tap & 1;
        cp_async16_again(&a[along_at(line0 + j * LINES, piece)],
                         m.in + (ok ? row[j].at + tap.from + at.c : 0), ok ? 16 : 0);
    }
#pragma unroll
    for (int j = 0; j < B; j++) {
        int k = column0 + line0 + j * LINES;
        bool ok = in && k < m.channels;
        cp_async16(&b[along_at(line0 + j * LINES, piece)],
                   m.w + (ok ? k * all_taps * m.inner + tap.weights + at.c : 0), ok ? 16 : 0);
    }
}

/* ---- dw ---- */

/* x under a thread's tap and channels, of whichever pixel; c < 0: none. */
struct conv_column {
    int y, x, c;
};
DEVICE conv_column conv_column_of(const dsi_cuda_conv_args &P, int column)
{
    int tap = column / P.c, r = tap / P.s, s = tap % P.s;
    return {r * P.dilation[0] - P.padding[0], s * P.dilation[1] - P.padding[1],
            column < P.taps ? column % P.c : -1};
}
