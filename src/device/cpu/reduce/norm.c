/* device/cpu/reduce/norm.c: batch norm per channel of [N,C,I], layer norm per
 * row of [M,D]. There are two kinds of loops for channels: if they are
 * contiguous (NHWC), a line holds one element of each channel, and vectors run
 * along channels; if not (NCHW), a line belongs to one channel. Other strides
 * use the second kind, slowly.
 *
 *     batch norm   y = (x - mean[c]) rstd[c] weight[c] + bias[c]
 *     layer norm   y = (x - mean[row]) rstd[row] weight[d] + bias[d]
 *     RMS norm     the same with mean 0: entries of layer norm without a mean
 *
 * Invariants: sums are kept in T (the type of x) for at most 64 additions, then
 * in double. Threads divide channels, rows, or fixed parts of the rows, so no
 * sum depends on them. 16-bit elements are converted in pieces on the stack.
 * SPDX-License-Identifier: MIT */
#include "base/int.h"
#include "device/cpu/simd/strided.h"
#include "device/cpu/simd/upcast.h"
#include "device/cpu/table.h"
#include "lines.h"

#include <string.h>

#define CHANNELS  128  /* channels that are computed at a time: their sums are in the first cache */
#define ROWS      64   /* rows whose sum is kept in T */
#define BLOCK     1024 /* elements of a line whose sum is kept in T */
#define HALF_ROWS 2048 /* 16-bit elements that are converted at a time: in the first cache */
#define PIECE     512  /* elements of a layer norm's row at a time */
#define FIRST     64   /* elements of it whose mean is taken for that of all */
#define FETCHED   1024 /* most bytes of a row, or plane, that are fetched ahead */
#define TOGETHER  4    /* rows that are added to dw at a time */
/* A layer norm's rows are divided into parts, whose sums dw are added in order. */
#define PARTS         16
#define PART_ELEMENTS (1 << 16)

typedef struct {
    dsi_view dy, x, y; /* y: the output, dx on the way back */
    dsi_view mean, var, rstd, weight, bias, dw, db;
    dsi_view factor, term;
    bool batch;
    bool relu;        /* y is the ReLU of batch norm + dy, and dx is of that */
    int64_t channels; /* group_norm_dx: C of a sample */
    double eps;
    int64_t fetched; /* layer norm: bytes of a row that are fetched ahead, or 0 */
    double *part;    /* layer_norm_dx: [parts][2][D], sums of dw and db; or NULL */
    int64_t part_rows;
} job;

/* Bytes of a row of x [M,D] that are fetched ahead: the processor by itself
 * stops at each page. 0 if x and y fit into the second cache, or if a row is
 * more than can be on its way at a time: then the loop waits for its
 * fetches. */
static int64_t row_fetched(const dsi_view *x)
{
    int64_t bytes = x->d[1] * (int64_t)ds_dtype_size(x->dtype);
    return bytes <= FETCHED && x->d[0] * bytes > dsi_cpu_l2_bytes() / 2 ? bytes : 0;
}

ALWAYS_INLINE void row_fetch(const job *j, const dsi_view *v, int64_t row, bool to_write)
{
    uintptr_t from = (uintptr_t)v->p + (uintptr_t)(row * j->fetched);
    if (to_write)
        FETCH(from, j->fetched, 1);
    else
        FETCH(from, j->fetched, 0);
}

/* True if the channels of [N,C,I] are neighbours in memory. */
static bool channels_dense(const dsi_view *v) { return v->s[1] == 1 && v->d[1] > 1; }

/* True if two or more rows of this many channels are taken as one. */
static bool channels_few(int64_t channels) { return 2 * channels <= CHANNELS; }

/* Rows (n, i) of [N,C,I]: the elements from one to the next, and whether that
 * holds from sample to sample too. */
static int64_t row_step(const dsi_view *v) { return v->d[2] == 1 ? v->s[0] : v->s[2]; }
static bool rows_join(const dsi_view *v) { return v->d[2] == 1 || v->s[0] == v->d[2] * v->s[2]; }

/* Fetches the plane of y [N,C,I] that is written after the one at element `at`.
 * A long one is fetched by the processor itself. */
static void plane_fetch(const dsi_view *y, int64_t at)
{
    int64_t size = (int64_t)ds_dtype_size(y->dtype), bytes = y->d[2] * size;
    uintptr_t next = (uintptr_t)y->p + (uintptr_t)((at + y->s[y->d[0] > 1 ? 0 : 1]) * size);
    if (bytes <= FETCHED && y->s[2] == 1) FETCH(next, bytes, 1);
}

/* Into how many parts the sums of rows of all samples are cut, for threads. Of
 * more channels, threads share those. */
static int64_t row_parts(int64_t rows, int64_t channels)
{
    if (channels > CHANNELS) return 1;
    return dsi_max(1, dsi_min(rows * channels / PART_ELEMENTS, PARTS));
}

/* x's first elements of its first samples, whose mean is near that of all. */
static dsi_view view_sample(dsi_view x)
{
    x.d[0] = dsi_min(x.d[0], x.d[2] < 4 ? 32 : 8), x.d[2] = dsi_min(x.d[2], 4);
    return x;
}

/* Numbers up to it become 0 in that dtype. */
static double rounds_to_zero(ds_dtype dtype)
{
    return dtype == DS_F16 ? 0x1p-25 : dtype == DS_BF16 ? 0x1p-134 : 0;
}

/* True if a mean is `off` from the number about which `square` is the mean
 * square, and the variance left has 3 bits less than that, or is 0, or the
 * squares were too large for their sum. */
static bool shift_far(double off, double square)
{
    return !(8 * off * off <= 7 * square) || (isinf(square) && isfinite(off));
}

/* Two sums of a line, a lane of its vectors each. */
typedef struct {
    double first[8], second[8];
} lanes;

static void lanes_sum(const lanes *s, double *first, double *second)
{
    for (int j = 0; j < 8; j++) *first += s->first[j], *second += s->second[j];
}

/* Elements of a line of n that are taken at a time: all, or, if an operand has
 * 16 bits, as many as its buffer holds. */
static int64_t line_at_once(int64_t n, const dsi_view *a, const dsi_view *b, const dsi_view *c)
{
    return is_half(a->dtype) || is_half(b->dtype) || is_half(c->dtype) ? dsi_min(n, HALF_ROWS) : n;
}

/* True if lines of a plane of [N,C,I] are bfloat16 that need no buffer. */
static bool line_bf16(const dsi_view *v) { return v->dtype == DS_BF16 && v->s[2] == 1; }

/* y = a g + b (x - mean) + c of n elements; without a g: NULL */
static void apply_line_bf16(float a, float b, float c, float mean, int64_t n, const uint16_t *g,
                            const uint16_t *x, uint16_t *y)
{
    if (g) INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = bf16_of(a * dsi_bf16_to_f32(g[i]) + b * (dsi_bf16_to_f32(x[i]) - mean) + c);
    else INDEPENDENT for (int64_t i = 0; i < n; i++)
        y[i] = bf16_of(b * (dsi_bf16_to_f32(x[i]) - mean) + c);
}

/* The same of a row, each element with its own numbers; g may be NULL. */
static void apply_row_bf16(const float *a, const float *b, const float *c, const float *mean,
                           int64_t n, const uint16_t *g, const uint16_t *x, uint16_t *y)
{
    if (g) INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = bf16_of(b[i] * (dsi_bf16_to_f32(x[i]) - mean[i]) + c[i] +
                       a[i] * dsi_bf16_to_f32(g[i]));
    else INDEPENDENT for (int64_t i = 0; i < n; i++)
        y[i] = bf16_of(b[i] * (dsi_bf16_to_f32(x[i]) - mean[i]) + c[i]);
}

#define T           float
#define NAMED(name) name##_f32
#include "norm.inc"
#define T           double
#define NAMED(name) name##_f64
#include "norm.inc"

typedef void body(void *arg, int64_t begin, int64_t end);

/* Runs f32 or f64 over n items of `each` elements; a thread takes at least
 * `least` of them. */
static ds_status norm_run(const char *kernel, ds_dtype dtype, int64_t n, int64_t each,
                          int64_t least, body *f32, body *f64, job *j)
{
    if (dtype > DS_BF16) return no_dtype(kernel, dtype);
    if (n > 0)
        dsi_parallel(n, PARALLEL_ELEMENTS / (each + 1) + least, dtype == DS_F64 ? f64 : f32, j);
    return DS_OK;
}

#define CACHE_LINE 64 /* bytes, to which two threads do not write */

/* True if threads share the rows of v, or there is no v. */
static bool shares_rows(const dsi_view *v)
{
    bool dense = channels_dense(v) && rows_join(v);
    return !v->p || (dense && row_parts(v->d[0] * v->d[2], v->d[1]) >= PARTS / 2);
}

/* Over the channels of x, unless threads share rows. A few channels that are
 * dense are never divided: rows of all of them are joined, and the order of
 * sums would depend on the division. */
static ds_status run_channels(const char *kernel, body *f32, body *f64, job *j)
{
    int64_t c = j->x.d[1];
    bool whole = channels_dense(&j->x) && channels_few(c);
    whole |= shares_rows(&j->x) && shares_rows(&j->y) && shares_rows(&j->dy);
    int64_t least = whole ? c : CACHE_LINE / (int64_t)ds_dtype_size(j->x.dtype);
    return norm_run(kernel, j->x.dtype, c, j->x.d[0] * j->x.d[2], least, f32, f64, j);
}

ds_status KERNEL(batch_stats)(dsi_stream *s, dsi_view x, dsi_view mean, dsi_view var)
{
    (void)s;
    job j = {.x = x, .mean = mean, .var = var};
    return run_channels("batch_stats", stats_channels_f32, stats_channels_f64, &j);
}

ds_status KERNEL(batch_norm)(dsi_stream *s, dsi_view x, dsi_view mean, dsi_view rstd,
                             dsi_view weight, dsi_view bias, dsi_view y)
{
    (void)s;
    job j = {.x = x, .y = y, .mean = mean, .rstd = rstd, .weight = weight, .bias = bias};
    return run_channels("batch_norm", batch_norm_channels_f32, batch_norm_channels_f64, &j);
}

ds_status KERNEL(batch_norm_dx)(dsi_stream *s, bool batch, dsi_view dy, dsi_view x, dsi_view mean,
                                dsi_view rstd, dsi_view weight, dsi_view dx, dsi_view dw,
                                dsi_view db)
{
    (void)s;
    job j = {.dy = dy,
             .x = x,
             .y = dx,
             .mean = mean,
             .rstd = rstd,
             .weight = weight,
             .dw = dw,
             .db = db,
             .batch = batch};
    return run_channels("batch_norm_dx", batch_norm_dx_channels_f32, batch_norm_dx_channels_f64,
                        &j);
}

/* contiguous [N,C,I] or [N,C] as [1,N C,I] or [N C] */
static dsi_view samples_joined(dsi_view v)
{
    if (!v.p) return v;
    bool planes = v.n == 3;
    int64_t n = v.d[0] * v.d[1], size = planes ? v.d[2] : 1;
    if (!planes) return v.n = 1, v.d[0] = n, v.s[0] = 1, v;
    v.d[0] = 1, v.d[1] = n, v.s[0] = n * size, v.s[1] = size, v.s[2] = 1;
    return v;
}

ds_status KERNEL(group_norm_dx)(dsi_stream *s, dsi_view dy, dsi_view x, dsi_view mean,
                                dsi_view rstd, dsi_view weight, dsi_view dx, dsi_view dw,
                                dsi_view db)
{
    (void)s;
    job j = {.dy = samples_joined(dy),
             .x = samples_joined(x),
             .y = samples_joined(dx),
             .mean = samples_joined(mean),
             .rstd = samples_joined(rstd),
             .weight = weight,
             .dw = samples_joined(dw),
             .db = samples_joined(db),
             .channels = x.d[1]};
    int64_t groups = j.mean.d[0];
    return norm_run("group_norm_dx", x.dtype, groups, groups ? view_numel(&x) / groups : 0, 1,
                    group_norm_dx_groups_f32, group_norm_dx_groups_f64, &j);
}

ds_status KERNEL(batch_norm_relu)(dsi_stream *s, dsi_view x, dsi_view mean, dsi_view factor,
                                  dsi_view term, dsi_view add, dsi_view y)
{
    (void)s;
    job j = {.dy = add, .x = x, .y = y, .mean = mean, .rstd = factor, .bias = term, .relu = true};
    return run_channels("batch_norm_relu", batch_norm_channels_f32, batch_norm_channels_f64, &j);
}

ds_status KERNEL(batch_norm_relu_dx)(dsi_stream *s, dsi_view dy, dsi_view x, dsi_view mean,
                                     dsi_view rstd, dsi_view factor, dsi_view term, dsi_view dx,
                                     dsi_view dw, dsi_view db)
{
    (void)s;
    job j = {.dy = dy,
             .x = x,
             .y = dx,
             .mean = mean,
             .rstd = rstd,
             .factor = factor,
             .term = term,
             .dw = dw,
             .db = db,
             .batch = true,
             .relu = true};
    return run_channels("batch_norm_relu_dx", batch_norm_dx_channels_f32,
                        batch_norm_dx_channels_f64, &j);
}

ds_status KERNEL(layer_norm)(dsi_stream *s, double eps, dsi_view x, dsi_view weight, dsi_view bias,
                             dsi_view y, dsi_view mean, dsi_view rstd)
{
    if ((weight.p && is_half(weight.dtype)) || (bias.p && is_half(bias.dtype)))
        IN_F32(s, 0, KERNEL(layer_norm)(s, eps, x, weight, bias, y, mean, rstd), &weight, &bias);
    job j = {
        .x = x, .y = y, .mean = mean, .rstd = rstd, .weight = weight, .bias = bias, .eps = eps};
    j.fetched = row_fetched(&x);
    return norm_run("layer_norm", x.dtype, x.d[0], x.d[1], 1, layer_norm_rows_f32,
                    layer_norm_rows_f64, &j);
}

ds_status KERNEL(layer_norm_dx)(dsi_stream *s, dsi_view dy, dsi_view x, dsi_view weight,
                                dsi_view mean, dsi_view rstd, dsi_view dx, dsi_view dw, dsi_view db)
{
    if (weight.p && is_half(weight.dtype))
        IN_F32(s, 0, KERNEL(layer_norm_dx)(s, dy, x, weight, mean, rstd, dx, dw, db), &weight);
    job j = {.dy = dy,
             .x = x,
             .y = dx,
             .mean = mean,
             .rstd = rstd,
             .weight = weight,
             .dw = dw,
             .db = db};
    int64_t m = x.d[0], d = x.d[1], parts = 1 + m * d / PART_ELEMENTS;
    bool sums = dw.p || db.p;
    if (parts > PARTS) parts = PARTS;
    j.fetched = row_fetched(&x);
    j.part_rows = (m / parts + TOGETHER) / TOGETHER * TOGETHER;
    parts = (m + j.part_rows - 1) / j.part_rows;
    size_t bytes = (size_t)(2 * parts * d) * sizeof *j.part;
    if (sums && !(j.part = dsi_scratch(s, bytes))) return DS_ENOMEM;
    if (sums) memset(j.part, 0, bytes);
    ds_status status = norm_run("layer_norm_dx", x.dtype, parts, j.part_rows * d, 1,
                                layer_norm_dx_parts_f32, layer_norm_dx_parts_f64, &j);
    for (int64_t i = 0; sums && i < d; i++) {
        double w = 0, b = 0;
        for (int64_t part = 0; part < parts; part++)
            w += j.part[2 * part * d + i], b += j.part[(2 * part + 1) * d + i];
        if (dw.p) view_set_value(&dw, i * dw.s[0], w);
        if (db.p) view_set_value(&db, i * db.s[0], b);
    }
    dsi_scratch_release(s, j.part);
    return status;
}
