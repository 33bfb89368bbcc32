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
 * in double. Threads divide channels (or rows), so no sum depends on them.
 * SPDX-License-Identifier: MIT */
#include "device/cpu/simd/strided.h"
#include "device/cpu/simd/upcast.h"
#include "device/cpu/table.h"
#include "lines.h"

#include <string.h>

#define CHANNELS 128 /* channels that are computed at a time: their sums are in the first cache */
/* Columns of a layer norm's dw at a time: rows are read in runs of 2 KB. */
#define NORM_COLUMNS 512
#define ROWS         64   /* rows whose sum is kept in T */
#define BLOCK        1024 /* elements of a line whose sum is kept in T */
#define BUFFER       512  /* elements of dy weight at a time */

typedef struct {
    dsi_view dy, x, y; /* y: the output, dx on the way back */
    dsi_view mean, var, rstd, weight, bias, dw, db;
    bool batch;
    double eps;
} job;

/* True if the channels of [N,C,I] are neighbours in memory. */
static bool channels_dense(const dsi_view *v) { return v->s[1] == 1 && v->d[1] > 1; }

/* Rows (n, i) of [N,C,I]: the elements from one to the next, and whether that
 * holds from sample to sample too. */
static int64_t row_step(const dsi_view *v) { return v->d[2] == 1 ? v->s[0] : v->s[2]; }
static bool rows_join(const dsi_view *v) { return v->d[2] == 1 || v->s[0] == v->d[2] * v->s[2]; }

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
    if (dtype != DS_F32 && dtype != DS_F64) return no_dtype(kernel, dtype);
    if (n > 0)
        dsi_parallel(n, PARALLEL_ELEMENTS / (each + 1) + least, dtype == DS_F32 ? f32 : f64, j);
    return DS_OK;
}

#define LEAST_CHANNELS 16 /* two threads do not write to one cache line */

/* Over the channels of x. A few that are dense are not divided: rows of all of
 * them are joined, and the order of sums would depend on the division. */
static ds_status run_channels(const char *kernel, body *f32, body *f64, job *j)
{
    int64_t c = j->x.d[1];
    bool few = channels_dense(&j->x) && 2 * c <= CHANNELS;
    return norm_run(kernel, j->x.dtype, c, j->x.d[0] * j->x.d[2], few ? c : LEAST_CHANNELS, f32,
                    f64, j);
}

ds_status KERNEL(batch_stats)(dsi_stream *s, dsi_view x, dsi_view mean, dsi_view var)
{
    if (is_half(x.dtype)) IN_F32(s, 0, KERNEL(batch_stats)(s, x, mean, var), &x);
    job j = {.x = x, .mean = mean, .var = var};
    return run_channels("batch_stats", stats_channels_f32, stats_channels_f64, &j);
}

ds_status KERNEL(batch_norm)(dsi_stream *s, dsi_view x, dsi_view mean, dsi_view rstd,
                             dsi_view weight, dsi_view bias, dsi_view y)
{
    if (is_half(x.dtype))
        IN_F32(s, 1, KERNEL(batch_norm)(s, x, mean, rstd, weight, bias, y), &y, &x, &weight, &bias);
    job j = {.x = x, .y = y, .mean = mean, .rstd = rstd, .weight = weight, .bias = bias};
    return run_channels("batch_norm", batch_norm_channels_f32, batch_norm_channels_f64, &j);
}

ds_status KERNEL(batch_norm_dx)(dsi_stream *s, bool batch, dsi_view dy, dsi_view x, dsi_view mean,
                                dsi_view rstd, dsi_view weight, dsi_view dx, dsi_view dw,
                                dsi_view db)
{
    if (is_half(x.dtype))
        IN_F32(s, 3, KERNEL(batch_norm_dx)(s, batch, dy, x, mean, rstd, weight, dx, dw, db), &dx,
               &dw, &db, &dy, &x, &weight);
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

ds_status KERNEL(layer_norm)(dsi_stream *s, double eps, dsi_view x, dsi_view weight, dsi_view bias,
                             dsi_view y, dsi_view mean, dsi_view rstd)
{
    if (is_half(x.dtype))
        IN_F32(s, 1, KERNEL(layer_norm)(s, eps, x, weight, bias, y, mean, rstd), &y, &x, &weight,
               &bias);
    job j = {
        .x = x, .y = y, .mean = mean, .rstd = rstd, .weight = weight, .bias = bias, .eps = eps};
    return norm_run("layer_norm", x.dtype, x.d[0], x.d[1], 1, layer_norm_rows_f32,
                    layer_norm_rows_f64, &j);
}

ds_status KERNEL(layer_norm_dx)(dsi_stream *s, dsi_view dy, dsi_view x, dsi_view weight,
                                dsi_view mean, dsi_view rstd, dsi_view dx, dsi_view dw, dsi_view db)
{
    if (is_half(x.dtype))
        IN_F32(s, 3, KERNEL(layer_norm_dx)(s, dy, x, weight, mean, rstd, dx, dw, db), &dx, &dw, &db,
               &dy, &x, &weight);
    job j = {.dy = dy,
             .x = x,
             .y = dx,
             .mean = mean,
             .rstd = rstd,
             .weight = weight,
             .dw = dw,
             .db = db};
    ds_status status = DS_OK;
    if (dx.p)
        status = norm_run("layer_norm_dx", x.dtype, x.d[0], x.d[1], 1, layer_norm_dx_rows_f32,
                          layer_norm_dx_rows_f64, &j);
    if (!status && (dw.p || db.p))
        status = norm_run("layer_norm_dx", x.dtype, x.d[1], x.d[0], LEAST_CHANNELS,
                          layer_norm_dw_columns_f32, layer_norm_dw_columns_f64, &j);
    return status;
}
