/* device/cuda/launch_normalize.c: batch norm and layer norm of kernels.h.
 *
 *     batch norm   mean, var over N and I of each channel of [N,C,I];
 *                  y = (x - mean) rstd weight + bias
 *     layer norm   the same over the columns of each row of [M,D],
 *                  rstd = 1 / sqrt(var + eps); without `mean` the mean
 *                  counts as 0, which is RMS norm
 *
 * var is the biased one, as torch.nn.functional normalizes with. Sums over a
 * channel end in double. A variance is the sum of squared differences from the
 * mean, found by a second pass: the mean of x^2 less the square of the mean
 * would lose its digits where the mean is large.
 *
 * Invariants: which threads add which elements depends on shapes and strides
 * alone, so results have the same bits on each run. dw and db are optional.
 * SPDX-License-Identifier: MIT */
#include "kernels/normalize.h"
#include "launch.h"
#include "operands.h"

#include "base/error.h"

#define ROW_BLOCK 256
#define LONG      1024 /* columns of a row that takes a block */
#define PARTS     64   /* of a layer norm's rows, whose sums are added in a second kernel */
#define PART_ROWS 64   /* at least, in a part */

/* A vector: one value a channel or a row. Absent: p NULL. */
static dsi_cuda_line line_of(const dsi_view *v)
{
    return (dsi_cuda_line){.p = v->p, .s = v->p ? v->s[0] : 0, .dtype = (int)v->dtype};
}

/* ---- batch norm ---- */

/* Sums over the channels of a and b [N,C,I]. Neighbours in memory are read by
 * neighbouring threads. */
static dsi_cuda_norm_args channels_of(const dsi_view *a, const dsi_view *b)
{
    dsi_cuda_norm_args p = {.a = a->p,
                            .b = b->p,
                            .n = a->d[0],
                            .channels = a->d[1],
                            .inner = a->d[2],
                            .dtype = (int)a->dtype,
                            .width = b->s[1] == 1 && b->d[1] > 1 ? 32 : 1};
    for (int i = 0; i < 3; i++) p.as[i] = a->s[i], p.bs[i] = b->s[i];
    return p;
}

/* Launches a kernel that sums over channels: `width` of them a block of 256
 * threads. A thread counts the elements of a channel in 32 bits. */
static ds_status channels_launch(dsi_stream *s, const char *kernel, const dsi_view *x,
                                 const dsi_cuda_norm_args *p)
{
    if (p->n * p->inner > INT32_MAX)
        return dsi_fail(DS_EINVAL, "%s: a channel has %lld elements: expected less than 2^31",
                        kernel, (long long)(p->n * p->inner));
    return dsi_cuda_launch(s, DSI_CUDA_normalize, kernel, dsi_cuda_suffix(x->dtype),
                           dsi_cuda_blocks((p->channels + p->width - 1) / p->width, 256), p);
}

/* A view of v's shape in which the place of an element is its channel's number. */
static dsi_view channel_numbers(dsi_view v)
{
    for (int i = 0; i < v.n; i++) v.s[i] = i == 1;
    return v;
}

ds_status dsi_cuda_batch_stats(dsi_stream *s, dsi_view x, dsi_view mean, dsi_view var)
{
    dsi_cuda_norm_args p = channels_of(&x, &x);
    p.mean = line_of(&mean), p.rstd = line_of(&var);
    ds_status status = dsi_cuda_floating("batch_stats", x.dtype);
    return status == DS_OK ? channels_launch(s, "batch_stats", &x, &p) : status;
}

ds_status dsi_cuda_batch_norm(dsi_stream *s, dsi_view x, dsi_view mean, dsi_view rstd,
                              dsi_view weight, dsi_view bias, dsi_view y)
{
    dsi_view channel = channel_numbers(x);
    dsi_cuda_norm_args p = {.e = DSI_CUDA_ELEMENTS(&x, &channel, &y),
                            .mean = line_of(&mean),
                            .rstd = line_of(&rstd),
                            .weight = line_of(&weight),
                            .bias = line_of(&bias)};
    return dsi_cuda_launch_floating(s, DSI_CUDA_normalize, "batch_norm", x.dtype,
                                    dsi_cuda_grid_of(p.e.count), &p);
}

/* batch: mean and rstd are x's own, and so have gradients: dx = rstd weight (dy
 * - (s1 + (x - mean) rstd^2 s2) / count), s1 = sum dy, s2 = sum dy (x - mean).
 * Else they are running statistics, constants: dx = rstd weight dy, and the
 * sums are needed for dw = rstd s2 and db = s1 alone. */
ds_status dsi_cuda_batch_norm_dx(dsi_stream *s, bool batch, dsi_view dy, dsi_view x, dsi_view mean,
                                 dsi_view rstd, dsi_view weight, dsi_view dx, dsi_view dw,
                                 dsi_view db)
{
    dsi_cuda_norm_args p = channels_of(&dy, &x);
    dsi_view channel = channel_numbers(x);
    size_t bytes = (size_t)p.channels * 2 * sizeof *p.sums;
    ds_status status = dsi_cuda_floating("batch_norm_dx", x.dtype);
    if (status != DS_OK || !p.channels) return status;
    p.mean = line_of(&mean), p.rstd = line_of(&rstd), p.weight = line_of(&weight);
    p.dw = line_of(&dw), p.db = line_of(&db), p.batch = batch;
    if (!(p.sums = dsi_cuda_scratch(s, bytes))) return DS_ENOMEM;
    if (batch || dw.p || db.p) status = channels_launch(s, "batch_norm_sums", &x, &p);
    if (status == DS_OK && dx.p) {
        p.e = DSI_CUDA_ELEMENTS(&dy, &x, &channel, &dx);
        status = dsi_cuda_launch(s, DSI_CUDA_normalize, "batch_norm_dx", dsi_cuda_suffix(x.dtype),
                                 dsi_cuda_grid_of(p.e.count), &p);
    }
    dsi_cuda_scratch_free(s, p.sums, bytes);
    return status;
}

/* ---- layer norm ---- */

/* A row is summed by a team: a warp, or the whole block where it is long. Rows
 * without columns need no kernel. */
static ds_status rows_launch(dsi_stream *s, const char *kernel, const dsi_view *x,
                             dsi_cuda_norm_args *p)
{
    p->rows = x->d[0], p->columns = x->d[1], p->dtype = (int)x->dtype;
    p->team = p->columns > LONG ? ROW_BLOCK : 32;
    if (!p->columns) return DS_OK;
    return dsi_cuda_launch(
        s, DSI_CUDA_normalize, kernel, dsi_cuda_suffix(x->dtype),
        dsi_cuda_blocks((p->rows * p->team + ROW_BLOCK - 1) / ROW_BLOCK, ROW_BLOCK), p);
}

ds_status dsi_cuda_layer_norm(dsi_stream *s, double eps, dsi_view x, dsi_view weight, dsi_view bias,
                              dsi_view y, dsi_view mean, dsi_view rstd)
{
    dsi_cuda_norm_args p = {.a = x.p,
                            .y = y.p,
                            .mean = line_of(&mean),
                            .rstd = line_of(&rstd),
                            .weight = line_of(&weight),
                            .bias = line_of(&bias),
                            .eps = eps};
    ds_status status = dsi_cuda_floating("layer_norm", x.dtype);
    return status == DS_OK ? rows_launch(s, "layer_norm", &x, &p) : status;
}

/* dw = sum dy h, db = sum dy over rows, h = (x - mean) rstd. At most PARTS
 * parts, each of at least PART_ROWS rows: blocks of 32 columns each write the
 * sums of a part to scratch [parts][2][columns], and layer_norm_dw_sum adds the
 * parts in order. */
static ds_status layer_norm_dw(dsi_stream *s, const dsi_view *x, dsi_cuda_norm_args *p)
{
    int64_t rows = x->d[0], columns = x->d[1];
    p->part_rows = (rows + PARTS - 1) / PARTS;
    if (p->part_rows < PART_ROWS) p->part_rows = PART_ROWS;
    p->parts = (rows + p->part_rows - 1) / p->part_rows;
    p->rows = rows, p->columns = columns, p->dtype = (int)x->dtype;
    size_t bytes = (size_t)(p->parts * columns) * 2 * sizeof *p->sums;
    if (bytes && !(p->sums = dsi_cuda_scratch(s, bytes))) return DS_ENOMEM;
    dsi_cuda_grid grid = dsi_cuda_blocks((columns + 31) / 32, 256);
    grid.blocks[1] = (unsigned)p->parts;
    ds_status status = dsi_cuda_launch(s, DSI_CUDA_normalize, "layer_norm_dw",
                                       dsi_cuda_suffix(x->dtype), grid, p);
    if (status == DS_OK)
        status = dsi_cuda_launch(s, DSI_CUDA_normalize, "layer_norm_dw_sum", "",
                                 dsi_cuda_grid_of(columns), p);
    dsi_cuda_scratch_free(s, p->sums, bytes);
    return status;
}

ds_status dsi_cuda_layer_norm_dx(dsi_stream *s, dsi_view dy, dsi_view x, dsi_view weight,
                                 dsi_view mean, dsi_view rstd, dsi_view dx, dsi_view dw,
                                 dsi_view db)
{
    dsi_cuda_norm_args p = {.a = dy.p,
                            .b = x.p,
                            .y = dx.p,
                            .mean = line_of(&mean),
                            .rstd = line_of(&rstd),
                            .weight = line_of(&weight),
                            .dw = line_of(&dw),
                            .db = line_of(&db)};
    ds_status status = dsi_cuda_floating("layer_norm_dx", x.dtype);
    if (status == DS_OK && dx.p) status = rows_launch(s, "layer_norm_dx", &x, &p);
    if (status == DS_OK && (dw.p || db.p)) status = layer_norm_dw(s, &x, &p);
    return status;
}
