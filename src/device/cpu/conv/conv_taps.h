/* device/cpu/conv/conv_taps.h: what conv_bf16.c, conv_taps.c and
 * conv_taps_dw.c share.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "conv.h"
#include "device/cpu/cpu.h"

typedef struct Unfolding {
    const uint16_t *x; /* [N][H][W][C] */
    int64_t H, W, C;
    int64_t N, P, Q; /* output pixels; each has a line */
    int64_t R, S;
    int64_t stride[2], dilation[2], padding[2];
    int64_t length, depth; /* R S C, and from line to line: the same in whole lines of tiles */
    uint16_t *to;          /* [rows][Q][depth] lines of the current block */
    int64_t row0;          /* its first row, counted over [N][P] */
} Unfolding;

/* True if a convolution of these lines is faster without them: where vectors
 * multiply bfloat16. */
#define taps_take KERNEL(conv_taps_take)
bool taps_take(const Unfolding *u);

/* Channels c .. c+out-1 of the dense image `to` = u->x times w + bias.
 * w: [out][u->depth], channels fastest; bias [out] or its p is NULL. */
#define taps_correlate KERNEL(conv_taps_correlate)
ds_status taps_correlate(dsi_stream *s, const Unfolding *u, const uint16_t *w, int64_t out,
                         dsi_view bias, const dsi_view *to, int64_t c);

/* The same of dw, for `samples` images with C and K channels of a group. */
#define taps_take_dw KERNEL(conv_taps_take_dw)
bool taps_take_dw(int64_t samples, int64_t C, int64_t K);

/* sums [K][u->length] = dw of channels c .. c+K-1 of the dense image dy and of
 * u->x, in float32. */
#define taps_dw KERNEL(conv_taps_dw)
ds_status taps_dw(dsi_stream *s, const Unfolding *u, const dsi_view *dy, int64_t c, int64_t K,
                  float *sums);

/* True if y, dx, or mostly dw, of bfloat16 [N,K,P,Q] takes less time so than by
 * Winograd's filtering in float32: the instruction multiplies twice as much,
 * and the more of a plane is near its edge, the fewer taps are inside. */
static inline bool taps_are_faster(const dsi_view *y)
{
    return y->dtype == DS_BF16 && dsi_cpu_bf16() && y->d[2] * y->d[3] <= 256;
}
