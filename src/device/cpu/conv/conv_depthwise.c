/* device/cpu/conv/conv_depthwise.c: depthwise convolutions: each group has one
 * input and one output channel (groups = C = K).
 *
 * There is nothing to sum over but the kernel, so no value is used often enough
 * for register tiles. Vectors of VF channels are computed pixel by pixel, in
 * pixel order; other layouts are copied first. y and dx are the same loop: a
 * pixel of the result sums some pixels of a source, whose rows and columns two
 * tables name. dw keeps the taps of one kernel row in registers. A sample is
 * summed first, then the samples are added in their order. Threads divide rows
 * of y or dx, and (channels, kernel row) of dw, so no sum depends on them.
 * SPDX-License-Identifier: MIT */
#include "conv.h"
#include "device/cpu/table.h"

#define GRAIN    20000 /* vector products of an iteration of a parallel loop */
#define MAX_TAPS 7     /* taps of a kernel row that are summed in registers */

typedef struct {
    const dsi_conv2d *c;
    dsi_view x, y; /* source and result (dw: input and gradient), channels side by side */
    int64_t C, R, S;
    int64_t padded; /* channels, in whole vectors */
    /* row[i R + r]: the row of x that kernel row r reads for row i of y; -1:
     * padding. col[j S + s] likewise */
    int64_t *row, *col;
    float *w, *bias; /* [R S][padded], [padded] */
    dsi_view dw;
} Job;

static bool depthwise_fits(const dsi_conv2d *c, const dsi_view *w)
{
    return c->groups > 1 && w->d[1] == 1 && w->d[0] == c->groups;
}

/* Channels of the vector that begins at c: VF, or fewer at the end. */
static int lanes_from(const Job *o, int64_t c) { return (int)dsi_min(VF, o->C - c); }

/* ---- y, dx ----------------------------------------------------------------------------------------------------- */

/* sum + the products of one pixel, for VF channels (the first `lanes` if
 * `part`): rows [R] and cols [S] are its rows of the tables. */
ALWAYS_INLINE vf pixel(const Job *o, const float *x, const int64_t *rows, const int64_t *cols,
                       const float *w, vf sum, bool part, int lanes)
{
    for (int64_t r = 0; r < o->R; r++) {
        if (rows[r] < 0) continue;
        const float *line = x + rows[r] * o->x.s[2], *wr = w + r * o->S * o->padded;
        for (int64_t v = 0; v < o->S; v++) {
            if (cols[v] < 0) continue;
            const float *at = line + cols[v] * o->x.s[3];
            sum = vf_fma(part ? vf_load_n(at, lanes) : vf_load(at), vf_load(wr + v * o->padded),
                         sum);
        }
    }
    return sum;
}

/* Rows begin .. end-1 of all samples of y. */
static void rows_of_y(void *arg, int64_t begin, int64_t end)
{
    const Job *o = arg;
    int64_t P = o->y.d[2], Q = o->y.d[3];
    for (int64_t i = begin; i < end; i++) {
        const float *x = (const float *)o->x.p + i / P * o->x.s[0];
        float *y = (float *)o->y.p + i / P * o->y.s[0] + i % P * o->y.s[2];
        const int64_t *rows = o->row + i % P * o->R;
        for (int64_t q = 0; q < Q; q++, y += o->y.s[3])
            for (int64_t c = 0; c < o->C; c += VF) {
                int lanes = lanes_from(o, c);
                const int64_t *cols = o->col + q * o->S;
                vf bias = vf_load(o->bias + c);
                if (lanes == VF)
                    vf_store(y + c, pixel(o, x + c, rows, cols, o->w + c, bias, false, VF));
                else
                    vf_store_n(y + c, pixel(o, x + c, rows, cols, o->w + c, bias, true, lanes),
                               lanes);
            }
    }
}

/* Fills a table [outputs][taps]. Forward: output i reads i stride + r dilation
 * - padding by tap r. Backward: it reads the output for which that is i, if
 * any. */
static void fill_table(const dsi_conv2d *c, int axis, bool back, int64_t outputs, int64_t inputs,
                       int64_t taps, int64_t *at)
{
    int64_t stride = c->stride[axis], dilation = c->dilation[axis], padding = c->padding[axis];
    for (int64_t i = 0; i < outputs; i++)
        for (int64_t r = 0; r < taps; r++) {
            int64_t from = back ? i + padding - r * dilation : i * stride + r * dilation - padding;
            bool none = from < 0 || (back && from % stride);
            if (back) from /= stride;
            *at++ = none || from >= inputs ? -1 : from;
        }
}

/* Allocates one block for weights, tables and copies, and copies x if it is not
 * in pixel order. The caller releases o->w, whatever the result. */
static ds_status depthwise_prepare(dsi_stream *s, Job *o, const dsi_view *x, const dsi_view *y,
                                   const dsi_view *w)
{
    o->C = x->d[1], o->R = w->d[2], o->S = w->d[3], o->padded = dsi_round_up(o->C, VF);
    int64_t table = dsi_round_up(2 * (y->d[2] * o->R + y->d[3] * o->S), 16); /* in floats */
    int64_t floats = (o->R * o->S + 1) * o->padded, copies = copy_floats(x) + copy_floats(y);
    o->w = dsi_scratch(s, (size_t)(floats + table + copies) * sizeof(float));
    if (!o->w) return DS_ENOMEM;
    o->bias = o->w + floats - o->padded;
    o->row = (int64_t *)(o->w + floats);
    o->col = o->row + y->d[2] * o->R;
    float *copy = o->w + floats + table;
    o->x = pixels(*x, copy);
    o->y = pixels(*y, copy + copy_floats(x));
    return o->x.p == x->p ? DS_OK : KERNEL(copy)(s, *x, o->x);
}

/* w [C,1,R,S] -> [R][S][padded channels], bias -> [padded]; zeros behind C. */
static void depthwise_pack(const Job *o, const dsi_view *w, const dsi_view *b)
{
    for (int64_t c = 0; c < o->padded; c++) {
        bool in = c < o->C;
        o->bias[c] = in && b->p ? ((const float *)b->p)[c * b->s[0]] : 0;
        for (int64_t r = 0; r < o->R; r++)
            for (int64_t v = 0; v < o->S; v++)
                o->w[(r * o->S + v) * o->padded + c] =
                    in ? ((const float *)w->p)[c * w->s[0] + r * w->s[2] + v * w->s[3]] : 0;
    }
}

static ds_status depthwise_run(dsi_stream *s, const dsi_conv2d *c, bool back, dsi_view x,
                               dsi_view w, dsi_view b, dsi_view y)
{
    Job o = {.c = c};
    ds_status status = depthwise_prepare(s, &o, &x, &y, &w);
    if (!status) {
        depthwise_pack(&o, &w, &b);
        fill_table(c, 0, back, y.d[2], x.d[2], o.R, o.row);
        fill_table(c, 1, back, y.d[3], x.d[3], o.S, o.col);
        int64_t each = y.d[3] * o.padded / VF * o.R * o.S;
        dsi_parallel(y.d[0] * y.d[2], 1 + GRAIN / (each + 1), rows_of_y, &o);
        if (o.y.p != y.p) status = KERNEL(copy)(s, o.y, y);
    }
    dsi_scratch_release(s, o.w);
    return status;
}

bool depth_forward(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b,
                   dsi_view y, ds_status *status)
{
    if (!depthwise_fits(c, &w)) return false;
    *status = depthwise_run(s, c, false, x, w, b, y);
    return true;
}

bool depth_dx(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w, dsi_view dx,
              ds_status *status)
{
    if (!depthwise_fits(c, &w)) return false;
    *status = depthwise_run(s, c, true, dy, w, (dsi_view){0}, dx);
    return true;
}

/* ---- dw --------------------------------------------------------------------------------------------------------- */

/* sum[v] += the products of a row of gradients with the row of x that kernel
 * row r meets: taps v .. v + taps-1. */
ALWAYS_INLINE void depthwise_add_row(int taps, const Job *o, const float *x, const float *dy,
                                     int64_t v, bool part, int lanes, vf *sum)
{
    vf a[MAX_TAPS];
    UNROLL for (int j = 0; j < taps; j++) a[j] = sum[j];
    for (int64_t q = 0; q < o->y.d[3]; q++) {
        const float *g = dy + q * o->y.s[3];
        const int64_t *cols = o->col + q * o->S + v;
        vf gq = part ? vf_load_n(g, lanes) : vf_load(g);
        UNROLL for (int j = 0; j < taps; j++)
        {
            if (cols[j] < 0) continue;
            const float *at = x + cols[j] * o->x.s[3];
            a[j] = vf_fma(gq, part ? vf_load_n(at, lanes) : vf_load(at), a[j]);
        }
    }
    UNROLL for (int j = 0; j < taps; j++) sum[j] = a[j];
}

static void add_row_of(int taps, const Job *o, const float *x, const float *dy, int64_t v,
                       int lanes, vf *sum)
{
    if (lanes < VF || (taps != 3 && taps != 5)) /* the common ones have a loop of their own */
        for (int j = 0; j < taps; j++) depthwise_add_row(1, o, x, dy, v + j, true, lanes, sum + j);
    else if (taps == 3)
        depthwise_add_row(3, o, x, dy, v, false, VF, sum);
    else
        depthwise_add_row(5, o, x, dy, v, false, VF, sum);
}

/* dw of VF channels from c on, kernel row r, columns v .. v + taps-1, summed
 * over all rows of all samples. */
static void dw_taps(const Job *o, int64_t c, int64_t r, int64_t v, int taps)
{
    int lanes = lanes_from(o, c);
    vf total[MAX_TAPS];
    for (int j = 0; j < taps; j++) total[j] = vf_zero();
    for (int64_t n = 0; n < o->y.d[0]; n++) {
        vf sum[MAX_TAPS];
        for (int j = 0; j < taps; j++) sum[j] = vf_zero();
        const float *x = (const float *)o->x.p + n * o->x.s[0] + c;
        const float *dy = (const float *)o->y.p + n * o->y.s[0] + c;
        for (int64_t p = 0; p < o->y.d[2]; p++) {
            int64_t row = o->row[p * o->R + r];
            if (row >= 0)
                add_row_of(taps, o, x + row * o->x.s[2], dy + p * o->y.s[2], v, lanes, sum);
        }
        for (int j = 0; j < taps; j++) total[j] = vf_add(total[j], sum[j]);
    }
    for (int j = 0; j < taps; j++) {
        float lane[VF], *dw = (float *)o->dw.p + r * o->dw.s[2] + (v + j) * o->dw.s[3];
        vf_store(lane, total[j]);
        for (int i = 0; i < lanes; i++) dw[(c + i) * o->dw.s[0]] = lane[i];
    }
}

/* (vector of channels, kernel row) units begin .. end-1 */
static void units_of_dw(void *arg, int64_t begin, int64_t end)
{
    const Job *o = arg;
    for (int64_t unit = begin; unit < end; unit++)
        for (int64_t v = 0, taps; v < o->S; v += taps) {
            taps = dsi_min(MAX_TAPS, o->S - v);
            dw_taps(o, unit / o->R * VF, unit % o->R, v, (int)taps);
        }
}

bool depth_dw(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x, dsi_view dw,
              ds_status *status)
{
    if (!depthwise_fits(c, &dw)) return false;
    Job o = {.c = c, .dw = dw};
    *status = depthwise_prepare(s, &o, &x, &dy, &dw);
    if (!*status && o.y.p != dy.p) *status = KERNEL(copy)(s, dy, o.y);
    if (!*status) {
        fill_table(c, 0, false, dy.d[2], x.d[2], o.R, o.row);
        fill_table(c, 1, false, dy.d[3], x.d[3], o.S, o.col);
        int64_t each = dy.d[0] * dy.d[2] * dy.d[3] * o.S;
        dsi_parallel(o.padded / VF * o.R, 1 + GRAIN / (each + 1), units_of_dw, &o);
    }
    dsi_scratch_release(s, o.w);
    return true;
}
