/* device/cpu/pool/pool.c: max, average and adaptive average pooling. x
 * [N,C,H,W] -> y [N,C,P,Q], any strides. index [N,C,P,Q] int32 is the place of
 * a maximum in its plane, h W + w.
 *
 * Three kinds of loops: by planes (NCHW; a plane is one channel of one sample),
 * by pixels (channels_last; a line holds all channels of a pixel, and vectors
 * run along channels), and the special case of 2x2 windows of stride 2
 * (pool_quad.h).
 *
 * Invariants: planes are independent of each other, and threads divide planes
 * (or samples, by pixels). A window is summed row by row, so no sum depends on
 * threads. pool_plain.h is included twice, for float and double.
 * SPDX-License-Identifier: MIT */
#include "base/int.h"
#include "device/cpu/reduce/lines.h"
#include "device/cpu/simd/upcast.h"
#include "device/cpu/table.h"
#include "pool_quad.h"

#include <math.h>
#include <string.h>

/* A window along one axis. */
typedef struct {
    int64_t begin, end; /* rows or columns, without padding */
    int64_t padded;     /* their number, with padding */
} Window;

/* One pooling of all planes; x may be dx, y may be dy. */
typedef struct Pool {
    const dsi_pool2d *c;          /* NULL: adaptive */
    const Window *rows, *columns; /* averages: [P] and [Q] windows */
    bool relu;                    /* maxima: of relu(x) */
    bool whole;                   /* averages: one window, a contiguous plane */
    bool pairs;                   /* averages: windows of two contiguous columns */
    int64_t C, H, W, P, Q;
    int64_t xh, xw, yh, yw, ih, iw; /* strides in a plane */
    dsi_view x, y, index;
} Pool;

/* Window i along `axis` (0: rows, 1: columns) of avg_pool2d. */
static Window window_fixed(const Pool *o, int axis, int64_t i)
{
    const dsi_pool2d *c = o->c;
    int64_t length = axis ? o->W : o->H, begin = i * c->stride[axis] - c->padding[axis];
    int64_t end = dsi_min(begin + c->kernel[axis], length + c->padding[axis]);
    return (Window){dsi_max(begin, 0), dsi_min(end, length), end - begin};
}

/* The same of a maximum: from its first element inside. */
static Window window_max(const Pool *o, int axis, int64_t i)
{
    const dsi_pool2d *c = o->c;
    int64_t length = axis ? o->W : o->H, begin = i * c->stride[axis] - c->padding[axis];
    int64_t end = dsi_min(begin + (c->kernel[axis] - 1) * c->dilation[axis] + 1, length);
    while (begin < 0) begin += c->dilation[axis];
    return (Window){.begin = begin, .end = end};
}

/* Of adaptive_avg_pool2d: bounds as in PyTorch, begin rounded down,
 * end up. */
static Window window_adaptive(const Pool *o, int axis, int64_t i)
{
    int64_t in = axis ? o->W : o->H, out = axis ? o->Q : o->P;
    int64_t begin = i * in / out, end = ((i + 1) * in + out - 1) / out;
    return (Window){begin, end, end - begin};
}

/* The divisor of the sum of window v x h, according to the options. */
static int64_t divisor(const Pool *o, Window v, Window h)
{
    if (o->c && o->c->divisor) return o->c->divisor;
    if (o->c && o->c->exclude_pad) return dsi_max((v.end - v.begin) * (h.end - h.begin), 1);
    return v.padded * h.padded;
}

/* Where plane i of x, y or the index begins. */
static int64_t plane_offset(const dsi_view *v, int64_t i, int64_t channels)
{
    if (v->s[0] == channels * v->s[1]) return i * v->s[1]; /* without a division */
    return i / channels * v->s[0] + i % channels * v->s[1];
}
#define X(o, type, i) ((type *)(o)->x.p + plane_offset(&(o)->x, i, (o)->C))
#define Y(o, type, i) ((type *)(o)->y.p + plane_offset(&(o)->y, i, (o)->C))
#define I(o, i)       ((int32_t *)(o)->index.p + plane_offset(&(o)->index, i, (o)->C))

/* Channels of a pixel are neighbours in x and y. */
static bool by_pixels(const Pool *o) { return o->x.s[1] == 1 && o->y.s[1] == 1 && o->C > 1; }

/* The same for maxima: also in the index; and x has no gaps between rows, so
 * that an index is an offset. */
static bool max_by_pixels(const Pool *o)
{
    return by_pixels(o) && o->index.s[1] == 1 && o->xh == o->W * o->xw;
}

#define MAX_RUN 256 /* windows of a row whose maxima, or sums, are found together */

#define MAX_SPAN 64 /* columns of such a window with stride 2 */

/* Of n windows whose columns are w + i stride: the first that is inside of 0 ..
 * W - 1, and the end of those. */
static int64_t run_inside(int64_t W, int64_t w, int64_t stride, int64_t n, int64_t *first)
{
    *first = w < 0 ? (-w + stride - 1) / stride : 0;
    if (w + (n - 1) * stride < W) return n; /* without a division */
    return w < W ? (W - 1 - w) / stride + 1 : 0;
}

#define REAL        double
#define PLAIN(name) name##_f64
#include "pool_plain.h"
#undef REAL
#undef PLAIN
#define REAL        float
#define PLAIN(name) name##_f32
#include "pool_plain.h"

static Pool pool_of(const dsi_pool2d *c, dsi_view x, dsi_view y, dsi_view index)
{
    return (Pool){.c = c,
                  .C = x.d[1],
                  .H = x.d[2],
                  .W = x.d[3],
                  .P = y.d[2],
                  .Q = y.d[3],
                  .xh = x.s[2],
                  .xw = x.s[3],
                  .yh = y.s[2],
                  .yw = y.s[3],
                  .ih = index.s[2],
                  .iw = index.s[3],
                  .x = x,
                  .y = y,
                  .index = index};
}

typedef void Part(void *arg, int64_t begin, int64_t end);
static Part *const maxima[] = {maxima_f32, maxima_f64};
static Part *const maxima_dx[] = {maxima_dx_f32, maxima_dx_f64};
static Part *const means[] = {means_f32, means_f64};
static Part *const means_dx[] = {means_dx_f32, means_dx_f64};

/* `rows` rows of 2x2 windows of stride 2 without padding; ystep: from a row of
 * y to the next. */
static void quad_rows(const Pool *o, QuadRow row, int64_t rows, int64_t ystep)
{
    for (int64_t p = 0; p < rows; p++) {
        if (o->x.s[1] == 1)
            quad_channels(&row, o->Q, o->C);
        else
            quad_columns(&row, o->Q);
        row.x += 2 * row.below, row.y += ystep, row.index += o->ih, row.at += 2 * row.width;
    }
}

/* Maxima of planes begin .. end-1; if the channels are neighbours, of samples
 * begin .. end-1. */
static void max_quads(void *arg, int64_t begin, int64_t end)
{
    const Pool *o = arg;
    for (int64_t i = begin; i < end; i++) {
        int64_t at = o->x.s[1] == 1 ? i * o->C : i; /* plane */
        QuadRow row = {.x = X(o, float, at),
                       .y = Y(o, float, at),
                       .index = I(o, at),
                       .below = o->xh,
                       .xw = o->xw,
                       .yw = o->yw,
                       .iw = o->iw,
                       .width = (int32_t)o->W,
                       .floor = o->relu ? 0 : -INFINITY};
        quad_rows(o, row, o->P, o->yh);
    }
}

/* Elements of x that are upcast at a time: 16 KB of floats, in the first cache. */
#define HALF_BAND 4096

/* Upcasts `rows` lines of `line` elements, `step` apart, to floats without
 * gaps. If the lines have no gaps either, they are one. floats_to_band is the
 * reverse. */
static void band_to_floats(ds_dtype dtype, const uint16_t *from, int64_t step, int64_t rows,
                           int64_t line, float *to)
{
    if (step == line) line *= rows, rows = 1;
    for (int64_t i = 0; i < rows; i++) half_to_floats(dtype, from + i * step, to + i * line, line);
}

static void floats_to_band(ds_dtype dtype, const float *from, int64_t step, int64_t rows,
                           int64_t line, uint16_t *to)
{
    if (step == line) line *= rows, rows = 1;
    for (int64_t i = 0; i < rows; i++) floats_to_half(dtype, from + i * line, to + i * step, line);
}

/* Contiguous elements of a row: W of one channel, or W C of all. */
static int64_t row_elements(const Pool *o) { return o->x.s[1] == 1 ? o->W * o->C : o->W; }

/* Rows p .. p + n - 1 of windows of plane (or sample) `at`, 16 bits: upcast,
 * maxima of floats, rounded. */
static void half_band(const Pool *o, int64_t at, int64_t p, int64_t n)
{
    int64_t line = row_elements(o), pixel = o->x.s[1] == 1 ? o->C : 1;
    /* every element that is read has been written; zeros only for analyzers */
    float x[HALF_BAND], y[HALF_BAND / 4] = {0};
    band_to_floats(o->x.dtype, X(o, uint16_t, at) + 2 * p * o->xh, o->xh, 2 * n, line, x);
    QuadRow row = {.x = x,
                   .y = y,
                   .index = I(o, at) + p * o->ih,
                   .below = line,
                   .xw = pixel,
                   .yw = pixel,
                   .iw = o->iw,
                   .at = (int32_t)(2 * p * o->W),
                   .width = (int32_t)o->W,
                   .floor = o->relu ? 0 : -INFINITY};
    quad_rows(o, row, n, o->Q * pixel);
    floats_to_band(o->y.dtype, y, o->yh, n, o->Q * pixel, Y(o, uint16_t, at) + p * o->yh);
}

static void max_quads_half(void *arg, int64_t begin, int64_t end)
{
    const Pool *o = arg;
    int64_t most = HALF_BAND / 2 / row_elements(o), lanes = o->x.s[1] == 1 ? o->C : 1;
    for (int64_t i = begin; i < end; i++)
        for (int64_t p = 0; p < o->P; p += most)
            half_band(o, i * lanes, p, dsi_min(most, o->P - p));
}

/* True if the shape and strides are those of max_quads or max_quads_half. */
static bool quads(const Pool *o)
{
    const dsi_pool2d *c = o->c;
    for (int i = 0; i < 2; i++)
        if (c->kernel[i] != 2 || c->stride[i] != 2 || c->padding[i] || c->dilation[i] != 1)
            return false;
    bool inside = 2 * o->P <= o->H && 2 * o->Q <= o->W; /* no window cut off by ceil_mode */
    bool columns = o->xw == 1 && o->yw == 1 && o->iw == 1;
    bool channels = o->x.s[1] == 1 && o->y.s[1] == 1 && o->index.s[1] == 1;
    bool half = is_half(o->x.dtype);
    if (half) /* pixels without gaps; a row of windows must fit into the buffer */
        channels = channels && o->xw == o->C && o->yw == o->C;
    if (half && 2 * row_elements(o) > HALF_BAND) return false;
    bool known = o->x.dtype == DS_F32 || half;
    return known && inside && (columns || channels);
}

/* Runs part[0] (float32) or part[1] (float64) over all samples, if `pixels`, or
 * all
 * planes. */
static ds_status pool_run(const char *name, Pool o, Part *const *part, bool pixels)
{
    if (o.x.dtype != DS_F32 && o.x.dtype != DS_F64) return no_dtype(name, o.x.dtype);
    int64_t each = pixels ? o.C : 1;               /* planes done at once */
    int64_t work = (o.H * o.W + o.P * o.Q) * each; /* elements, up to a nanosecond each */
    dsi_parallel(o.x.d[0] * o.C / each, 1 + 20000 / (work + 1), part[o.x.dtype == DS_F64], &o);
    return DS_OK;
}

/* The same for averages: computes the windows of rows and columns once, and
 * looks for the special cases `whole` and `pairs`. */
static ds_status run_means(dsi_stream *s, const char *name, Pool o, Part *const *part)
{
    Window *windows = dsi_scratch(s, (size_t)(o.P + o.Q) * sizeof *windows);
    if (!windows) return DS_ENOMEM;
    for (int64_t i = 0; i < o.P + o.Q; i++) {
        int axis = i >= o.P;
        int64_t at = axis ? i - o.P : i;
        windows[i] = o.c ? window_fixed(&o, axis, at) : window_adaptive(&o, axis, at);
    }
    o.rows = windows, o.columns = windows + o.P;
    const Window *v = windows, *h = o.columns;
    o.whole = o.P * o.Q == 1 && !by_pixels(&o) && o.xw == 1 && o.xh == o.W &&
              v->end - v->begin == o.H && h->end - h->begin == o.W &&
              divisor(&o, *v, *h) == o.H * o.W;
    o.pairs = o.xw == 1 && o.yw == 1;
    for (int64_t q = 0; q < o.Q; q++)
        o.pairs &= o.columns[q].begin == 2 * q && o.columns[q].end == 2 * q + 2 &&
                   o.columns[q].padded == 2;
    ds_status status = pool_run(name, o, part, by_pixels(&o));
    dsi_scratch_release(s, windows);
    return status;
}

static ds_status pool_maxima(dsi_stream *s, bool relu, const dsi_pool2d *c, dsi_view x, dsi_view y,
                             dsi_view index)
{
    Pool o = pool_of(c, x, y, index);
    o.relu = relu;
    if (quads(&o)) {
        int64_t lanes = x.s[1] == 1 ? o.C : 1; /* planes done at once */
        dsi_parallel(x.d[0] * o.C / lanes, 1 + 100000 / (o.P * o.Q * lanes + 1),
                     is_half(x.dtype) ? max_quads_half : max_quads, &o);
        return DS_OK;
    }
    if (is_half(x.dtype)) IN_F32(s, 1, pool_maxima(s, relu, c, x, y, index), &y, &x);
    return pool_run(relu ? "relu_max_pool2d" : "max_pool2d", o, maxima, max_by_pixels(&o));
}

ds_status KERNEL(max_pool2d)(dsi_stream *s, const dsi_pool2d *c, dsi_view x, dsi_view y,
                             dsi_view index)
{
    return pool_maxima(s, false, c, x, y, index);
}

ds_status KERNEL(relu_max_pool2d)(dsi_stream *s, const dsi_pool2d *c, dsi_view x, dsi_view y,
                                  dsi_view index)
{
    return pool_maxima(s, true, c, x, y, index);
}

ds_status KERNEL(max_pool2d_dx)(dsi_stream *s, dsi_view dy, dsi_view index, dsi_view dx)
{
    if (is_half(dx.dtype)) IN_F32(s, 1, KERNEL(max_pool2d_dx)(s, dy, index, dx), &dx, &dy);
    Pool o = pool_of(NULL, dx, dy, index);
    return pool_run("max_pool2d_dx", o, maxima_dx, max_by_pixels(&o));
}

ds_status KERNEL(avg_pool2d)(dsi_stream *s, const dsi_pool2d *c, dsi_view x, dsi_view y)
{
    if (is_half(y.dtype)) IN_F32(s, 1, KERNEL(avg_pool2d)(s, c, x, y), &y, &x);
    Pool o = pool_of(c->adaptive ? NULL : c, x, y, (dsi_view){0});
    return run_means(s, c->adaptive ? "adaptive_avg_pool2d" : "avg_pool2d", o, means);
}

ds_status KERNEL(avg_pool2d_dx)(dsi_stream *s, const dsi_pool2d *c, dsi_view dy, dsi_view dx)
{
    if (is_half(dx.dtype)) IN_F32(s, 1, KERNEL(avg_pool2d_dx)(s, c, dy, dx), &dx, &dy);
    Pool o = pool_of(c->adaptive ? NULL : c, dx, dy, (dsi_view){0});
    return run_means(s, c->adaptive ? "adaptive_avg_pool2d_dx" : "avg_pool2d_dx", o, means_dx);
}
