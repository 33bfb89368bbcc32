/* device/cpu/conv/conv.h: what the files of the convolution share.
 *
 * Names of sizes, in all files: x [N,C,H,W], w [K,C/groups,R,S], y [N,K,P,Q],
 * so
 *
 *     y[n,k,p,q] = bias[k] + sum over c, r, s of
 *                  x[n, c, p stride - padding + r dilation,
 *                          q stride - padding + s dilation] w[k,c,r,s]
 *
 * A *plane* is one channel of one sample. *Planes* is the layout
 * [C][rows][cols] (PyTorch's NCHW), *pixels* the layout [rows][cols][C]
 * (channels_last, NHWC). A *tap* is one (c, r, s) of the kernel.
 *
 * Invariants: every kernel takes any strides; where it needs a layout, it
 * copies one sample, or the whole tensor, into scratch memory. Threads never
 * share a sum.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/int.h"
#include "device/cpu/simd/isa.h"
#include "device/cpu/simd/slots.h"

/* How a kernel's work is divided for threads: into quanta of about 10 us, which
 * is the size that dsi_parallel expects. A quantum is a range of work units,
 * whose results do not depend on the range. There is working memory for `slots`
 * calls of the loop's body at a time. */
typedef struct {
    int64_t quanta, slots;
    Slots taken;
} Cut;

/* For work that takes about `ns` nanoseconds on one thread. */
static inline void cut_work(Cut *o, double ns)
{
    o->quanta = dsi_max(1, (int64_t)(ns / 10000));
    o->slots = dsi_min(ds_threads(), o->quanta);
    atomic_init(&o->taken, 0);
}

/* True if threads have enough to do with n equal items each of which one
 * computes. */
static inline bool shares_evenly(int64_t n)
{
    int64_t rounds = dsi_div_up(n, ds_threads());
    return 8 * n >= 7 * rounds * ds_threads();
}

/* ---- conv_pack.c: one sample, rearranged ------------------------------------------------------------ */

/* A rectangle of a plane: rows row0 .. row0+rows-1, columns likewise. It may
 * reach beyond the plane, where values are zeros: so padding is part of the
 * copy. */
typedef struct {
    int64_t row0, rows, col0, cols;
} Rect;

/* Copies sample n of x into planes [C][rows][phases][cols / phases, rounded
 * up], one every `plane` elements. Column j is stored in phase j % phases, so
 * columns that are `phases` apart become neighbours: with phases = stride, a
 * strided convolution reads neighbours. */
#define planes_pitch KERNEL(conv_planes_pitch)
#define pack_planes  KERNEL(conv_pack_planes)
int64_t planes_pitch(Rect r, int64_t phases); /* elements from row to row */
void pack_planes(const dsi_view *x, int64_t n, Rect r, int64_t phases, float *to, int64_t plane);

/* How planes of at most MIX_CHANNELS channels become pixels, or the reverse, by
 * permuting vectors in registers: lane l of out[o] is lane index[o][l] of that
 * in[i] whose mask[o][i] is set at l. */
#define MIX_CHANNELS 8
typedef struct {
    int C; /* 0: too many channels, or no such instructions */
    int32_t index[MIX_CHANNELS][VF];
#if defined(DSI_ISA_avx512)
    __mmask16 mask[MIX_CHANNELS][MIX_CHANNELS];
#else
    int32_t mask[MIX_CHANNELS][MIX_CHANNELS][VF];
#endif
} Mix;

#define mix_to_pixels KERNEL(conv_mix_to_pixels)
#define mix_to_planes KERNEL(conv_mix_to_planes)
Mix mix_to_pixels(int64_t C);
Mix mix_to_planes(int64_t C);

/* pack_pixels copies sample n of x into pixels [rows][cols][C]; `to` has memory
 * for one more vector at its end, which tiles read. unpack_pixels copies back
 * the part of the rectangle that is inside the plane. */
#define pack_pixels   KERNEL(conv_pack_pixels)
#define unpack_pixels KERNEL(conv_unpack_pixels)
void pack_pixels(const Mix *mix, const dsi_view *x, int64_t n, Rect r, float *to);
void unpack_pixels(const Mix *mix, const float *from, Rect r, const dsi_view *x, int64_t n);

/* ---- lines of the kernel, for gradients --------------------------------------------------------------
 *
 * In pixel order, the inputs that one output reads for one row of the kernel are
 * one contiguous line of S C floats. If columns are dilated or channels are
 * grouped, they are S lines of C floats. */
typedef struct {
    int64_t count, length, padded; /* lines; floats of one; the same in whole vectors */
    int64_t merged;                /* kernel columns in a line: S or 1 */
    int64_t R, S, C;               /* of the weight: C is the group's */
    Rect rect;                     /* of x, with the padding that the kernel reaches */
    int64_t row, pixel;            /* in a packed sample: from output row to row, pixel to pixel */
    int64_t step[2];               /* from kernel row to row, column to column */
} Lines;

#define lines_of KERNEL(conv_lines_of)
Lines lines_of(const dsi_conv2d *c, const dsi_view *x, const dsi_view *w, int64_t P, int64_t Q);

/* Elements from the beginning of line 0 to that of line i, in a packed sample. */
static inline int64_t line_at(const Lines *o, int64_t i)
{
    int64_t each = o->S / o->merged;
    return i / each * o->step[0] + i % each * o->step[1];
}

/* at [count][length] = the offset of each element of the lines in w [K,C,R,S],
 * from the beginning of its output channel. */
#define line_weights KERNEL(conv_line_weights)
void line_weights(const Lines *o, const dsi_view *w, int32_t *at);

/* Pixels of a tile of outputs, or channels of one for dw: 2 vectors of each, or
 * 1 of two rows, are in 32 registers (avx512) or 16. */
#if defined(DSI_ISA_avx512)
#define MAX_TILE     12
#define EACH_TILE(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#else
#define MAX_TILE     6
#define EACH_TILE(X) X(1) X(2) X(3) X(4) X(5) X(6)
#endif

/* Lines that a tile for pooled gradients keeps in registers, two vectors of
 * each. */
#define MAX_LINES     5
#define EACH_LINES(X) X(1) X(2) X(3) X(4) X(5)

/* ---- conv_forward.c, conv_dw.c, conv_dx.c: float32 ----------------------------------------------------- */

#define conv_forward   KERNEL(conv_forward)
#define conv_dx        KERNEL(conv_dx)
#define conv_dx_pooled KERNEL(conv_dx_pooled)
#define conv_dw        KERNEL(conv_dw)
#define conv_dw_pooled KERNEL(conv_dw_pooled)
ds_status conv_forward(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b,
                       dsi_view y);
ds_status conv_dx(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w, dsi_view dx);
ds_status conv_dx_pooled(dsi_stream *s, const dsi_conv2d *c, const dsi_pooled *dy, dsi_view w,
                         dsi_view dx);
ds_status conv_dw(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x, dsi_view dw);
ds_status conv_dw_pooled(dsi_stream *s, const dsi_conv2d *c, const dsi_pooled *dy, dsi_view x,
                         dsi_view dw);

/* v [N,C,H,W] with the strides of pixel order, without gaps: [N][H][W][C]. */
static inline dsi_view pixel_strides(dsi_view v)
{
    v.s[1] = 1, v.s[3] = v.d[1], v.s[2] = v.d[3] * v.s[3], v.s[0] = v.d[2] * v.s[2];
    return v;
}

/* v [N,C,H,W] if its channels are neighbours in memory; otherwise a view of the
 * same shape in pixel order at `copy`, which the caller fills, of
 * copy_floats(v). */
static inline dsi_view pixels(dsi_view v, float *copy)
{
    if (v.s[1] == 1) return v;
    v.p = copy;
    return pixel_strides(v);
}

static inline int64_t copy_floats(const dsi_view *v)
{
    return v->s[1] == 1 ? 0 : dsi_round_up(view_numel(v), VF);
}

/* b [C] as v [N,C,H,W], the same in all but the channels. */
static inline dsi_view bias_like(dsi_view b, const dsi_view *v)
{
    return (dsi_view){b.p, b.dtype, 4, {v->d[0], v->d[1], v->d[2], v->d[3]}, {0, b.s[0], 0, 0}};
}

/* ---- kernels for some shapes ---------------------------------------------------------------------------
 *
 * Each returns false, and does nothing, if it is not made for this shape. Otherwise
 * it computes and sets *status. */

typedef bool conv_forward_if(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b,
                             dsi_view y, ds_status *status);
typedef bool conv_dx_if(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w, dsi_view dx,
                        ds_status *status);
typedef bool conv_dw_if(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x, dsi_view dw,
                        ds_status *status);

/* conv_1x1.c */
#define point_forward KERNEL(conv_point_forward)
#define point_dx      KERNEL(conv_point_dx)
#define point_dw      KERNEL(conv_point_dw)
/* conv_bf16.c: bfloat16 */
#define bf16_forward KERNEL(conv_bf16_forward)
#define bf16_dx      KERNEL(conv_bf16_dx)
#define bf16_dw      KERNEL(conv_bf16_dw)
/* conv_depthwise.c */
#define depth_forward KERNEL(conv_depth_forward)
#define depth_dx      KERNEL(conv_depth_dx)
#define depth_dw      KERNEL(conv_depth_dw)
/* conv_winograd.c: 3x3 */
#define winograd_forward KERNEL(conv_winograd_forward)
#define winograd_dx      KERNEL(conv_winograd_dx)
#define winograd_dw      KERNEL(conv_winograd_dw)

conv_forward_if point_forward, bf16_forward, depth_forward, winograd_forward;
conv_dx_if point_dx, depth_dx, winograd_dx;
/* dx + b; b.p is NULL if there is none */
bool bf16_dx(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w, dsi_view b, dsi_view dx,
             ds_status *status);
conv_dw_if point_dw, bf16_dw, depth_dw, winograd_dw;
