/* device/cpu/conv/conv_depthwise.c: depthwise convolutions: each group has one
 * input and one output channel (groups = C = K).
 *
 * Vectors of VF channels are computed in pixel order; other layouts are copied
 * first. y and dx are the same loop: a pixel of the result sums some pixels of
 * a source, whose rows and columns two tables name. Away from the borders four
 * pixels share the loads of the weights. dw keeps the taps of one kernel row in
 * registers, or all nine of a 3x3 kernel. A sample is summed first, then the
 * samples are added in their order. Threads divide rows of y or dx, and
 * (channels, kernel row) of dw, so no sum depends on them. Of 16 bits a thread
 * converts what it reads, and rounds what it wrote: strips of rows, or for dw a
 * sample of some channels.
 * SPDX-License-Identifier: MIT */
#include "conv.h"
#include "device/cpu/simd/half.h"
#include "device/cpu/table.h"

#define GRAIN    20000 /* vector products of an iteration of a parallel loop */
#define MAX_TAPS 7     /* taps of a kernel row that are summed in registers */
#define PIXELS   4     /* pixels that share the loads of weights */
#define STRIP    32768 /* elements of a strip of 16 bits */
#define LINE     32    /* channels of 16 bits that a unit of dw reads: a line of the cache */

typedef struct {
    const dsi_conv2d *c;
    dsi_view x, y; /* source and result (dw: input and gradient), channels side by side */
    int64_t C, R, S;
    int64_t padded; /* channels, in whole vectors */
    /* row[i R + r]: the row of x that kernel row r reads for row i of y; -1:
     * padding. col[j S + s] likewise */
    int64_t *row, *col;
    /* pixels q0 .. q1-1 of a row read no padding: `next` columns on from pixel
     * to pixel, `tap` columns on from tap to tap */
    int64_t q0, q1, next, tap;
    float *w, *bias; /* [R S][padded], [padded] */
    float *total;    /* dw: [R S][padded], summed over samples */
} Job;

static bool depthwise_fits(const dsi_conv2d *c, const dsi_view *w, const dsi_view *x,
                           const dsi_view *y)
{
    return c->groups > 1 && w->d[1] == 1 && w->d[0] == c->groups && x->dtype == y->dtype;
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

/* PIXELS pixels of y from pixel q on, all between q0 and q1, for all whole
 * vectors of channels. */
static void pixels_inside(const Job *o, const float *x, const int64_t *rows, int64_t q, float *y)
{
    const int64_t next = o->next * o->x.s[3], tap = o->tap * o->x.s[3], step = o->y.s[3];
    for (int64_t c = 0; c + VF <= o->C; c += VF) {
        vf sum[PIXELS];
        UNROLL for (int i = 0; i < PIXELS; i++) sum[i] = vf_load(o->bias + c);
        for (int64_t r = 0; r < o->R; r++) {
            if (rows[r] < 0) continue;
            const float *at = x + rows[r] * o->x.s[2] + o->col[q * o->S] * o->x.s[3] + c;
            const float *w = o->w + r * o->S * o->padded + c;
            for (int64_t v = 0; v < o->S; v++, at += tap, w += o->padded) {
                vf wv = vf_load(w);
                IN_REGISTER(wv);
                UNROLL for (int i = 0; i < PIXELS; i++)
                    sum[i] = vf_fma(vf_load(at + i * next), wv, sum[i]);
            }
        }
        UNROLL for (int i = 0; i < PIXELS; i++) vf_store(y + i * step + c, sum[i]);
    }
}

/* One pixel of y, for the channels from c on. */
static void pixel_anywhere(const Job *o, const float *x, const int64_t *rows, int64_t q, int64_t c,
                           float *y)
{
    const int64_t *cols = o->col + q * o->S;
    for (; c < o->C; c += VF) {
        int lanes = lanes_from(o, c);
        vf bias = vf_load(o->bias + c);
        if (lanes == VF)
            vf_store(y + c, pixel(o, x + c, rows, cols, o->w + c, bias, false, VF));
        else
            vf_store_n(y + c, pixel(o, x + c, rows, cols, o->w + c, bias, true, lanes), lanes);
    }
}

/* Row p of a sample of y, whose first element is y; x is the sample's. */
static void row_of_y(const Job *o, const float *x, int64_t p, float *y)
{
    int64_t Q = o->y.d[3], whole = o->C / VF * VF;
    const int64_t *rows = o->row + p * o->R;
    for (int64_t q = 0, n; q < Q; q += n, y += n * o->y.s[3]) {
        bool inside = q >= o->q0 && q + PIXELS <= o->q1;
        n = inside ? PIXELS : 1;
        if (inside) pixels_inside(o, x, rows, q, y);
        for (int64_t j = 0; j < n && (!inside || whole < o->C); j++)
            pixel_anywhere(o, x, rows, q + j, inside ? whole : 0, y + j * o->y.s[3]);
    }
}

/* Rows begin .. end-1 of all samples of y. */
static void rows_of_y(void *arg, int64_t begin, int64_t end)
{
    const Job *o = arg;
    int64_t P = o->y.d[2];
    for (int64_t i = begin; i < end; i++)
        row_of_y(o, (const float *)o->x.p + i / P * o->x.s[0], i % P,
                 (float *)o->y.p + i / P * o->y.s[0] + i % P * o->y.s[2]);
}

/* ---- y, dx of 16 bits --------------------------------------------------------------------------------------------- */

/* x and y of `job` have 16 bits. A thread computes with a copy of `job`, whose
 * x and y are floats in its slot of `work`, without gaps. */
typedef struct {
    const Job *job;
    int64_t rows, strips; /* rows of y in a strip; strips of a sample */
    int64_t channels;     /* of a unit of dw */
    int64_t floats;       /* of a slot */
    float *work;
    Slots slots;
} HalfJob;

/* Rows first .. first+n-1 of y read rows *row0 .. *row1-1 of x at most. */
static void rows_read(const Job *o, int64_t first, int64_t n, int64_t *row0, int64_t *row1)
{
    *row0 = o->x.d[2], *row1 = 0;
    for (int64_t i = first * o->R; i < (first + n) * o->R; i++) {
        if (o->row[i] < 0) continue;
        *row0 = dsi_min(*row0, o->row[i]);
        *row1 = dsi_max(*row1, o->row[i] + 1);
    }
}

/* `rows` rows of sample n of v, from `row` on, channels c .. c+k-1 -> floats
 * [rows][W][k] */
static void load_pixels(const dsi_view *v, int64_t n, int64_t row, int64_t rows, int64_t c,
                        int64_t k, float *to)
{
    bool dense = v->s[3] == k;
    int64_t lines = dense ? 1 : v->d[3], each = dense ? k * v->d[3] : k;
    for (int64_t r = row; r < row + rows; r++) {
        const uint16_t *from = (const uint16_t *)v->p + n * v->s[0] + r * v->s[2] + c;
        for (int64_t i = 0; i < lines; i++, from += v->s[3], to += each)
            half_to_floats(v->dtype, from, to, each);
    }
}

/* floats [W][C] -> row `row` of sample n of v, rounded */
static void store_pixels(const dsi_view *v, int64_t n, int64_t row, const float *from)
{
    bool dense = v->s[3] == v->d[1];
    int64_t lines = dense ? 1 : v->d[3], each = dense ? v->d[1] * v->d[3] : v->d[1];
    uint16_t *to = (uint16_t *)v->p + n * v->s[0] + row * v->s[2];
    for (int64_t i = 0; i < lines; i++, from += each, to += v->s[3])
        floats_to_half(v->dtype, from, to, each);
}

/* A copy of the job for k channels of one sample, x and y of which are floats. */
static Job float_job(const Job *job, int64_t k)
{
    Job o = *job;
    o.C = o.x.d[1] = o.y.d[1] = k;
    o.x.d[0] = o.y.d[0] = 1;
    o.x = pixel_strides(o.x), o.y = pixel_strides(o.y);
    return o;
}

/* Strips begin .. end-1 of all samples of y. */
static void strips_of_y(void *arg, int64_t begin, int64_t end)
{
    HalfJob *h = arg;
    const dsi_view *to = &h->job->y;
    Job o = float_job(h->job, h->job->C);
    int slot = slot_take(&h->slots);
    float *y = h->work + slot * h->floats, *x = y + dsi_round_up(o.y.s[2], VF);
    for (int64_t i = begin; i < end; i++) {
        int64_t n = i / h->strips, first = i % h->strips * h->rows, row0, row1;
        int64_t rows = dsi_min(h->rows, to->d[2] - first);
        rows_read(&o, first, rows, &row0, &row1);
        if (row1 > row0) load_pixels(&h->job->x, n, row0, row1 - row0, 0, o.C, x);
        for (int64_t p = first; p < first + rows; p++) {
            row_of_y(&o, x - row0 * o.x.s[2], p, y);
            store_pixels(to, n, p, y);
        }
    }
    slot_release(&h->slots, slot);
}

/* Memory for a slot for each thread of a loop of n items. The caller releases
 * it. */
static ds_status slots_prepare(dsi_stream *s, HalfJob *h, int64_t n)
{
    h->floats = dsi_round_up(h->floats, 16);
    h->work = dsi_scratch(s, (size_t)(dsi_min(ds_threads(), n) * h->floats) * sizeof(float));
    return h->work ? DS_OK : DS_ENOMEM;
}

/* y of 16 bits; each: vector products of a row. */
static ds_status depthwise_strips(dsi_stream *s, const Job *job, int64_t each)
{
    const dsi_view *y = &job->y;
    HalfJob h = {.job = job};
    int64_t line = job->C * y->d[3], most = 0, row0, row1;
    h.strips = dsi_max(1, dsi_div_up(y->d[2], dsi_max(4 * job->R, STRIP / (line + 1))));
    h.rows = dsi_div_up(y->d[2], h.strips);
    for (int64_t i = 0; i < h.strips; i++) {
        rows_read(job, i * h.rows, dsi_min(h.rows, y->d[2] - i * h.rows), &row0, &row1);
        most = dsi_max(most, row1 - row0);
    }
    h.floats = dsi_round_up(line, VF) + most * job->C * job->x.d[3];
    ds_status status = slots_prepare(s, &h, y->d[0] * h.strips);
    if (!status) dsi_parallel(y->d[0] * h.strips, 1 + GRAIN / (each * h.rows + 1), strips_of_y, &h);
    dsi_scratch_release(s, h.work);
    return status;
}

/* ---- y, dx: the kernels -------------------------------------------------------------------------------------------- */

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

/* Sets the pixels that read no padding, for a table of columns that fill_table
 * made. */
static void find_inside(Job *o, const dsi_conv2d *c, bool back)
{
    o->next = back ? 1 : c->stride[1], o->tap = back ? -c->dilation[1] : c->dilation[1];
    o->q0 = o->q1 = 0;
    if (back && c->stride[1] != 1) return;
    for (int64_t q = 0; q < o->y.d[3]; q++) {
        bool inside = o->col[q * o->S] >= 0 && o->col[q * o->S + o->S - 1] >= 0;
        if (inside && o->q1 == 0) o->q0 = q;
        if (inside) o->q1 = q + 1;
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
        o->bias[c] = in && b->p ? (float)view_value(b, c * b->s[0]) : 0;
        for (int64_t i = 0; i < o->R * o->S; i++) {
            int64_t at = c * w->s[0] + i / o->S * w->s[2] + i % o->S * w->s[3];
            o->w[i * o->padded + c] = in ? (float)view_value(w, at) : 0;
        }
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
        find_inside(&o, c, back);
        int64_t each = y.d[3] * o.padded / VF * o.R * o.S;
        if (is_half(y.dtype))
            status = depthwise_strips(s, &o, each);
        else
            dsi_parallel(y.d[0] * y.d[2], 1 + GRAIN / (each + 1), rows_of_y, &o);
        if (!status && o.y.p != y.p) status = KERNEL(copy)(s, o.y, y);
    }
    dsi_scratch_release(s, o.w);
    return status;
}

bool depth_forward(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b,
                   dsi_view y, ds_status *status)
{
    if (!depthwise_fits(c, &w, &x, &y)) return false;
    *status = depthwise_run(s, c, false, x, w, b, y);
    return true;
}

bool depth_dx(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w, dsi_view dx,
              ds_status *status)
{
    if (!depthwise_fits(c, &w, &dy, &dx)) return false;
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

/* total[v] += a sample's products for VF channels from c on, kernel row r, taps
 * v .. v + taps-1; x and dy are the sample's. */
static void dw_taps(const Job *o, const float *x, const float *dy, int64_t c, int64_t r, int64_t v,
                    int taps)
{
    vf sum[MAX_TAPS];
    for (int j = 0; j < taps; j++) sum[j] = vf_zero();
    for (int64_t p = 0; p < o->y.d[2]; p++) {
        int64_t row = o->row[p * o->R + r];
        if (row >= 0)
            add_row_of(taps, o, x + row * o->x.s[2] + c, dy + p * o->y.s[2] + c, v,
                       lanes_from(o, c), sum);
    }
    for (int j = 0; j < taps; j++) {
        float *total = o->total + (r * o->S + v + j) * o->padded + c;
        vf_store(total, vf_add(vf_load(total), sum[j]));
    }
}

/* sum[3][3] += the products of pixels q0 .. q1-1 of a row of dy with the pixels
 * of x that the kernel meets, from tap (0,0) of pixel q0 on. */
static void dw_nine_inside(const Job *o, const float *x, const float *dy, vf *sum)
{
    const int64_t next = o->next * o->x.s[3], tap = o->tap * o->x.s[3],
                  down = o->c->dilation[0] * o->x.s[2], step = o->y.s[3];
    vf a[9];
    UNROLL for (int j = 0; j < 9; j++) a[j] = sum[j];
    for (int64_t q = o->q0; q < o->q1; q++, x += next, dy += step) {
        vf g = vf_load(dy);
        UNROLL for (int r = 0; r < 3; r++) UNROLL for (int v = 0; v < 3; v++)
            a[3 * r + v] = vf_fma(g, vf_load(x + r * down + v * tap), a[3 * r + v]);
    }
    UNROLL for (int j = 0; j < 9; j++) sum[j] = a[j];
}

/* sum[v] += the products of pixels begin .. end-1 of a row. */
static void dw_some_pixels(const Job *o, const float *x, const float *dy, int64_t begin,
                           int64_t end, vf *sum)
{
    for (int64_t q = begin; q < end; q++)
        for (int v = 0; v < 3; v++) {
            int64_t col = o->col[3 * q + v];
            if (col < 0) continue;
            sum[v] = vf_fma(vf_load(dy + q * o->y.s[3]), vf_load(x + col * o->x.s[3]), sum[v]);
        }
}

/* As dw_taps of all taps of a 3x3 kernel, for a whole vector of channels. */
static void dw_nine(const Job *o, const float *x, const float *dy, int64_t c)
{
    vf sum[9];
    x += c, dy += c;
    for (int j = 0; j < 9; j++) sum[j] = vf_zero();
    for (int64_t p = 0; p < o->y.d[2]; p++, dy += o->y.s[2]) {
        const int64_t *rows = o->row + 3 * p;
        bool inside = rows[0] >= 0 && rows[2] >= 0 && o->q1 > o->q0;
        int64_t q0 = inside ? o->q0 : o->y.d[3], q1 = inside ? o->q1 : o->y.d[3];
        for (int r = 0; r < 3; r++)
            if (rows[r] >= 0) dw_some_pixels(o, x + rows[r] * o->x.s[2], dy, 0, q0, sum + 3 * r);
        if (inside)
            dw_nine_inside(o, x + rows[0] * o->x.s[2] + o->col[3 * q0] * o->x.s[3],
                           dy + q0 * o->y.s[3], sum);
        for (int r = 0; r < 3; r++)
            if (rows[r] >= 0)
                dw_some_pixels(o, x + rows[r] * o->x.s[2], dy, q1, o->y.d[3], sum + 3 * r);
    }
    for (int j = 0; j < 9; j++) {
        float *total = o->total + j * o->padded + c;
        vf_store(total, vf_add(vf_load(total), sum[j]));
    }
}

/* (vector of channels, kernel row) units begin .. end-1, sample by sample */
static void units_of_dw(void *arg, int64_t begin, int64_t end)
{
    const Job *o = arg;
    bool nine = o->R == 3 && o->S == 3;
    int64_t rows = nine ? 1 : o->R;
    for (int64_t n = 0; n < o->y.d[0]; n++) {
        const float *x = (const float *)o->x.p + n * o->x.s[0];
        const float *dy = (const float *)o->y.p + n * o->y.s[0];
        for (int64_t unit = begin; unit < end; unit++) {
            int64_t c = unit / rows * VF;
            if (nine && lanes_from(o, c) == VF) {
                dw_nine(o, x, dy, c);
                continue;
            }
            for (int64_t r = nine ? 0 : unit % rows; r < (nine ? 3 : unit % rows + 1); r++)
                for (int64_t v = 0, taps; v < o->S; v += taps) {
                    taps = dsi_min(MAX_TAPS, o->S - v);
                    dw_taps(o, x, dy, c, r, v, (int)taps);
                }
        }
    }
}

/* Units begin .. end-1 of 16 bits, `channels` wide, sample by sample. */
static void half_units_of_dw(void *arg, int64_t begin, int64_t end)
{
    HalfJob *h = arg;
    const Job *job = h->job;
    int slot = slot_take(&h->slots);
    float *x = h->work + slot * h->floats;
    for (int64_t c = begin * h->channels; c < dsi_min(end * h->channels, job->C);
         c += h->channels) {
        Job o = float_job(job, dsi_min(h->channels, job->C - c));
        int64_t rows = o.R == 3 && o.S == 3 ? 1 : o.R;
        o.total += c;
        o.x.p = x, o.y.p = x + dsi_round_up(o.x.s[0], VF);
        for (int64_t n = 0; n < job->y.d[0]; n++) {
            load_pixels(&job->x, n, 0, o.x.d[2], c, o.C, o.x.p);
            load_pixels(&job->y, n, 0, o.y.d[2], c, o.C, o.y.p);
            units_of_dw(&o, 0, dsi_div_up(o.C, VF) * rows);
        }
    }
    slot_release(&h->slots, slot);
}

/* each: vector products of a unit of dw. */
static ds_status half_dw(dsi_stream *s, const Job *job, int64_t each)
{
    HalfJob h = {.job = job, .channels = dsi_min(LINE, job->padded)};
    if (job->C < 2 * h.channels * ds_threads()) h.channels = VF;
    h.floats = h.channels * (job->x.d[2] * job->x.d[3] + job->y.d[2] * job->y.d[3]) + VF;
    int64_t units = dsi_div_up(job->C, h.channels);
    ds_status status = slots_prepare(s, &h, units);
    if (!status)
        dsi_parallel(units, 1 + GRAIN / (h.channels / VF * each + 1), half_units_of_dw, &h);
    dsi_scratch_release(s, h.work);
    return status;
}

/* total [R S][padded] += dw */
static ds_status depthwise_add_dw(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x,
                                  dsi_view dw, float *total)
{
    Job o = {.c = c, .total = total};
    ds_status status = depthwise_prepare(s, &o, &x, &dy, &dw);
    if (!status && o.y.p != dy.p) status = KERNEL(copy)(s, dy, o.y);
    if (!status) {
        fill_table(c, 0, false, dy.d[2], x.d[2], o.R, o.row);
        fill_table(c, 1, false, dy.d[3], x.d[3], o.S, o.col);
        find_inside(&o, c, false);
        int64_t rows = o.R == 3 && o.S == 3 ? 1 : o.R;
        int64_t each = dy.d[0] * dy.d[2] * dy.d[3] * o.S * (o.R / rows);
        if (is_half(x.dtype))
            status = half_dw(s, &o, each * rows);
        else
            dsi_parallel(o.padded / VF * rows, 1 + GRAIN / (each + 1), units_of_dw, &o);
    }
    dsi_scratch_release(s, o.w);
    return status;
}

bool depth_dw(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x, dsi_view dw,
              ds_status *status)
{
    if (!depthwise_fits(c, &dw, &x, &dy)) return false;
    int64_t C = dw.d[0], R = dw.d[2], S = dw.d[3], padded = dsi_round_up(C, VF);
    float *total = dsi_scratch(s, (size_t)(R * S * padded) * sizeof *total);
    for (int64_t i = 0; total && i < R * S * padded; i++) total[i] = 0;
    *status = total ? depthwise_add_dw(s, c, dy, x, dw, total) : DS_ENOMEM;
    for (int64_t i = 0; !*status && i < C * R * S; i++) {
        int64_t k = i / (R * S), r = i / S % R, v = i % S;
        view_set_value(&dw, k * dw.s[0] + r * dw.s[2] + v * dw.s[3],
                       (double)total[(r * S + v) * padded + k]);
    }
    dsi_scratch_release(s, total);
    return true;
}
