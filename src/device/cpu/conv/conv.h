/* device/cpu/conv/conv.h: what the files of the convolution share.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_DEVICE_CPU_CONV_CONV_H
#define DSI_DEVICE_CPU_CONV_CONV_H

#include "base/int.h"
#include "device/cpu/simd/isa.h"

#include <stdatomic.h>

/* How a kernel's work is cut for threads: into quanta of about 10 us, as dsi_parallel wants them. Each
 * call of its body takes a slot of its own, with memory to work in. */
typedef struct {
    int64_t quanta, slots;
    atomic_int taken;
} Cut;

static inline void cut_work(Cut *o, double ns)
{
    o->quanta = dsi_max(1, (int64_t)(ns / 10000));
    o->slots = dsi_min(ds_threads(), o->quanta);
    atomic_init(&o->taken, 0);
}

/* ---- conv_pack.c: one sample, rearranged ------------------------------------------------------------ */

/* A rectangle of a plane: rows row0 .. row0+rows-1; outside of the plane lie zeros. */
typedef struct {
    int64_t row0, rows, col0, cols;
} Rect;

/* Planes side by side: [C][rows][phases][cols / phases, rounded up]. Columns are dealt out to the
 * phases in turn, so that every phases-th column lies side by side. */
#define planes_pitch KERNEL(conv_planes_pitch)
#define pack_planes  KERNEL(conv_pack_planes)
int64_t planes_pitch(Rect r, int64_t phases); /* elements from row to row */
void pack_planes(const dsi_view *x, int64_t n, Rect r, int64_t phases, float *to, int64_t plane);

/* How few channels' planes become pixels, or pixels planes, by permuting whole vectors:
 * out[o] has in[i]'s lane index[o] where mask[o][i] is set. */
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

/* Pixels side by side, the channels of a pixel together: [rows][cols][C], with room for a vector
 * behind. Back: only what lies in the plane. */
#define pack_pixels   KERNEL(conv_pack_pixels)
#define unpack_pixels KERNEL(conv_unpack_pixels)
void pack_pixels(const Mix *mix, const dsi_view *x, int64_t n, Rect r, float *to);
void unpack_pixels(const Mix *mix, const float *from, Rect r, const dsi_view *x, int64_t n);

/* ---- lines of the kernel, for gradients --------------------------------------------------------------
 *
 * In pixel order, what one output touches of one kernel row is one line of S C neighbours (or, if
 * columns are dilated or channels grouped, S lines of C). */
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

/* where line i begins, relative to the first */
static inline int64_t line_at(const Lines *o, int64_t i)
{
    int64_t each = o->S / o->merged;
    return i / each * o->step[0] + i % each * o->step[1];
}

/* Where each element of the lines lies in w [K,C,R,S], relative to its output channel: [count][length]. */
#define line_weights KERNEL(conv_line_weights)
void line_weights(const Lines *o, const dsi_view *w, int32_t *at);

#define MAX_LINES 5 /* that a tile for pooled gradients keeps in registers, times two vectors */

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

/* [N,C,H,W] with the channels side by side: v itself, or room for it at `copy`, of so many floats. */
static inline dsi_view pixels(dsi_view v, float *copy)
{
    if (v.s[1] == 1) return v;
    v.p = copy;
    v.s[0] = v.d[1] * v.d[2] * v.d[3], v.s[1] = 1, v.s[2] = v.d[1] * v.d[3], v.s[3] = v.d[1];
    return v;
}

static inline int64_t copy_floats(const dsi_view *v)
{
    return v->s[1] == 1 ? 0 : dsi_round_up(view_numel(v), VF);
}

/* ---- ways for some shapes: false where they do not fit, else *status --------------------------------------- */

#define point_forward KERNEL(conv_point_forward)
#define point_dx      KERNEL(conv_point_dx)
#define point_dw      KERNEL(conv_point_dw)
bool point_forward(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b,
                   dsi_view y, ds_status *status);
bool point_dx(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w, dsi_view dx,
              ds_status *status);
bool point_dw(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x, dsi_view dw,
              ds_status *status);

/* bfloat16 */
#define amx_forward KERNEL(conv_amx_forward)
#define amx_dx      KERNEL(conv_amx_dx)
#define amx_dw      KERNEL(conv_amx_dw)
bool amx_forward(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b, dsi_view y,
                 ds_status *status);
bool amx_dx(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w, dsi_view dx,
            ds_status *status);
bool amx_dw(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x, dsi_view dw,
            ds_status *status);

#define depth_forward KERNEL(conv_depth_forward)
#define depth_dx      KERNEL(conv_depth_dx)
#define depth_dw      KERNEL(conv_depth_dw)
bool depth_forward(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b,
                   dsi_view y, ds_status *status);
bool depth_dx(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w, dsi_view dx,
              ds_status *status);
bool depth_dw(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x, dsi_view dw,
              ds_status *status);

#define winograd_forward KERNEL(conv_winograd_forward)
#define winograd_dx      KERNEL(conv_winograd_dx)
#define winograd_dw      KERNEL(conv_winograd_dw)
bool winograd_forward(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b,
                      dsi_view y, ds_status *status);
bool winograd_dx(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w, dsi_view dx,
                 ds_status *status);
bool winograd_dw(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x, dsi_view dw,
                 ds_status *status);

#endif
