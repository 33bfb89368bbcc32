/* device/cuda/launch_batch_norm.c: batch norm of kernels.h.
 *
 *     mean, var over N and I of each channel of [N,C,I];
 *     y = (x - mean) rstd weight + bias
 *
 * var is the biased one, as torch.nn.functional normalizes with. Sums over a
 * channel are cut into parts, which a second kernel adds; kernels/batch_norm.cu
 * says how.
 *
 *     batch_norm_last  channels are neighbours in memory, float32 and 16 bits
 *     batch_norm       all else
 *
 * Invariants: which threads add which elements depends on shapes, strides and
 * alignment alone, so results have the same bits on each run. dw and db are
 * optional.
 * SPDX-License-Identifier: MIT */
#include "kernels/batch_norm.h"
#include "launch.h"
#include "operands.h"

#include "base/error.h"
#include "base/int.h"

#define BLOCK        256
#define BLOCKS       528  /* that fill a GPU */
#define BLOCKS_APPLY 2112 /* of kernels without sums: a late block is a small one */
#define ROWS         8    /* of a thread, at least, where rows are cut into parts */
#define COLUMNS      8    /* of 16 bytes in a block of batch_norm_last.cu, at most */

/* The distance of neighbouring rows (n, i) of v [N,C,I], whose channels are
 * neighbours and whose rows are 16-byte aligned; 0: v is not such. */
static int64_t last_row(const dsi_view *v)
{
    int64_t per16 = 16 / (int64_t)ds_dtype_size(v->dtype);
    int64_t row = v->d[2] > 1 ? v->s[2] : v->s[0];
    bool one = v->d[2] <= 1 || v->d[0] <= 1 || v->s[0] == row * v->d[2];
    bool aligned = (uintptr_t)v->p % 16 == 0 && v->d[1] % per16 == 0 && row % per16 == 0;
    return v->s[1] == 1 && one && aligned && row > 0 ? row : 0;
}

/* The operands; y may be NULL or absent. b is a where a kernel reads one
 * alone. */
static ds_status batch_norm_args(const dsi_view *a, const dsi_view *b, const dsi_view *y,
                                 dsi_cuda_batch_norm_args *p)
{
    const dsi_view *all[] = {a, b, y};
    int64_t rows = a->d[0] * a->d[2];
    if (rows > INT32_MAX)
        return dsi_fail(DS_EINVAL,
                        "batch_norm: a channel has %lld elements: expected less than 2^31",
                        (long long)rows);
    p->a = a->p, p->b = b->p, p->y = y ? y->p : NULL;
    p->channels = a->d[1], p->rows = (unsigned)rows, p->inner = (unsigned)a->d[2];
    p->dtype = (int)a->dtype, p->last = a->dtype <= DS_BF16 && a->dtype != DS_F64;
    for (int i = 0; i < 3; i++) {
        p->as[i] = a->s[i], p->bs[i] = b->s[i];
        if (!all[i] || !all[i]->p) continue;
        p->row[i] = last_row(all[i]);
        p->last = p->last && p->row[i] && all[i]->dtype == a->dtype;
    }
    return DS_OK;
}

/* Cuts the rows into parts: about `most` blocks. */
static dsi_cuda_grid cut_rows(dsi_cuda_batch_norm_args *p, int64_t most)
{
    int64_t size = (int64_t)ds_dtype_size((ds_dtype)p->dtype), rows = p->rows;
    int64_t columns = p->last ? p->channels * size / 16 : p->channels;
    p->width = p->bs[1] == 1 && p->channels > 1 ? 32 : 1;
    if (p->last)
        for (p->width = 1; p->width < COLUMNS && p->width < columns;) p->width *= 2;
    int64_t blocks = (columns + p->width - 1) / p->width, step = BLOCK / p->width;
    int64_t parts = dsi_max(dsi_min(most / dsi_max(blocks, 1), rows / (step * ROWS)), 1);
    int64_t each = (rows + parts - 1) / parts;
    p->part_rows = (unsigned)dsi_max((each + step - 1) / step * step, 1);
    p->parts = (unsigned)((rows + p->part_rows - 1) / p->part_rows);
    dsi_cuda_grid grid = dsi_cuda_blocks(blocks, BLOCK);
    grid.blocks[1] = p->parts;
    return grid;
}

/* The kernel `name`, or name + "_last". */
static ds_status batch_norm_launch(dsi_stream *s, const char *name, const char *last,
                                   dsi_cuda_grid grid, const dsi_cuda_batch_norm_args *p)
{
    if (p->last)
        return dsi_cuda_launch(s, DSI_CUDA_batch_norm_last, last,
                               dsi_cuda_dtype_suffix((ds_dtype)p->dtype), grid, p);
    return dsi_cuda_launch(s, DSI_CUDA_batch_norm, name, dsi_cuda_suffix((ds_dtype)p->dtype), grid,
                           p);
}

/* Two sums a channel: `name` writes those of the parts, and `end` adds them, by
 * a warp a channel. */
static ds_status channel_sums(dsi_stream *s, const char *name, const char *last, const char *end,
                              dsi_cuda_batch_norm_args *p)
{
    dsi_cuda_grid grid = cut_rows(p, BLOCKS);
    size_t bytes = (size_t)(p->channels * p->parts) * 2 * sizeof *p->part;
    if (bytes && !(p->part = dsi_cuda_scratch(s, bytes))) return DS_ENOMEM;
    ds_status status = batch_norm_launch(s, name, last, grid, p);
    if (status == DS_OK)
        status = dsi_cuda_launch(s, DSI_CUDA_batch_norm, end, "",
                                 dsi_cuda_blocks((p->channels * 32 + BLOCK - 1) / BLOCK, BLOCK), p);
    dsi_cuda_scratch_free(s, p->part, bytes);
    return status;
}

static ds_status statistics(dsi_stream *s, const dsi_view *x, dsi_cuda_batch_norm_args *p)
{
    ds_status status = dsi_cuda_floating("batch_stats", x->dtype);
    if (status == DS_OK) status = batch_norm_args(x, x, NULL, p);
    if (status != DS_OK) return status;
    return channel_sums(s, "batch_stats", "batch_stats_last", "batch_stats_end", p);
}

ds_status dsi_cuda_batch_stats(dsi_stream *s, dsi_view x, dsi_view mean, dsi_view var)
{
    dsi_cuda_batch_norm_args p = {.mean = dsi_cuda_line_of(&mean), .var = dsi_cuda_line_of(&var)};
    return statistics(s, &x, &p);
}

ds_status dsi_cuda_batch_norm_stats(dsi_stream *s, double eps, double momentum, dsi_view x,
                                    dsi_view mean, dsi_view rstd, dsi_view running_mean,
                                    dsi_view running_var, dsi_view weight, dsi_view bias,
                                    dsi_view factor, dsi_view term)
{
    dsi_cuda_batch_norm_args p = {.mean = dsi_cuda_line_of(&mean),
                                  .rstd = dsi_cuda_line_of(&rstd),
                                  .weight = dsi_cuda_line_of(&weight),
                                  .bias = dsi_cuda_line_of(&bias),
                                  .factor = dsi_cuda_line_of(&factor),
                                  .term = dsi_cuda_line_of(&term),
                                  .running_mean = dsi_cuda_line_of(&running_mean),
                                  .running_var = dsi_cuda_line_of(&running_var),
                                  .eps = eps,
                                  .momentum = momentum};
    return statistics(s, &x, &p);
}

/* A view of v's shape in which the place of an element is its channel's number. */
static dsi_view channel_numbers(dsi_view v)
{
    for (int i = 0; i < v.n; i++) v.s[i] = i == 1;
    return v;
}

/* y, or dx: a thread an element, or rows of 16 bytes */
static ds_status apply(dsi_stream *s, const char *name, const char *last,
                       dsi_cuda_batch_norm_args *p)
{
    dsi_cuda_grid grid = p->last ? cut_rows(p, BLOCKS_APPLY) : dsi_cuda_grid_of(p->e.count);
    return batch_norm_launch(s, name, last, grid, p);
}

ds_status dsi_cuda_batch_norm(dsi_stream *s, dsi_view x, dsi_view mean, dsi_view rstd,
                              dsi_view weight, dsi_view bias, dsi_view y)
{
    dsi_view channel = channel_numbers(x);
    dsi_cuda_batch_norm_args p = {.e = DSI_CUDA_ELEMENTS(&x, &channel, &y),
                                  .mean = dsi_cuda_line_of(&mean),
                                  .rstd = dsi_cuda_line_of(&rstd),
                                  .weight = dsi_cuda_line_of(&weight),
                                  .bias = dsi_cuda_line_of(&bias)};
    ds_status status = dsi_cuda_floating("batch_norm", x.dtype);
    if (status == DS_OK) status = batch_norm_args(&x, &x, &y, &p);
    return status == DS_OK ? apply(s, "batch_norm", "batch_norm_last", &p) : status;
}

ds_status dsi_cuda_batch_norm_relu(dsi_stream *s, dsi_view x, dsi_view mean, dsi_view factor,
                                   dsi_view term, dsi_view add, dsi_view y)
{
    dsi_view channel = channel_numbers(x), b = add.p ? add : x;
    dsi_cuda_batch_norm_args p = {.mean = dsi_cuda_line_of(&mean),
                                  .rstd = dsi_cuda_line_of(&factor),
                                  .bias = dsi_cuda_line_of(&term),
                                  .relu = true};
    ds_status status = dsi_cuda_floating("batch_norm_relu", x.dtype);
    if (status == DS_OK) status = batch_norm_args(&x, &b, &y, &p);
    if (status != DS_OK) return status;
    if (!p.last) p.e = DSI_CUDA_ELEMENTS(&x, &channel, &b, &y);
    if (!add.p) p.b = NULL;
    return apply(s, "batch_norm", "batch_norm_relu_last", &p);
}

/* batch: mean and rstd are x's own, and so have gradients: dx = rstd weight (dy
 * - (s1 + (x - mean) rstd^2 s2) / count), s1 = sum dy, s2 = sum dy (x - mean).
 * Else they are running statistics, constants: dx = rstd weight dy, and the
 * sums are needed for dw = rstd s2 and db = s1 alone. */
static ds_status backward(dsi_stream *s, const char *name, const dsi_view *dy, const dsi_view *x,
                          const dsi_view *dx, dsi_cuda_batch_norm_args *p)
{
    dsi_view channel = channel_numbers(*x);
    size_t bytes = (size_t)x->d[1] * 2 * sizeof *p->sums;
    ds_status status = dsi_cuda_floating(name, x->dtype);
    if (status == DS_OK) status = batch_norm_args(dy, x, dx, p);
    if (status != DS_OK || !p->channels) return status;
    if (!(p->sums = dsi_cuda_scratch(s, bytes))) return DS_ENOMEM;
    if (p->batch || p->dw.p || p->db.p)
        status = channel_sums(s, "batch_norm_sums",
                              p->relu ? "batch_norm_relu_sums_last" : "batch_norm_sums_last",
                              "batch_norm_sums_end", p);
    if (status == DS_OK && dx->p) {
        p->e = DSI_CUDA_ELEMENTS(dy, x, &channel, dx);
        status = apply(s, "batch_norm_dx",
                       p->relu ? "batch_norm_relu_dx_last" : "batch_norm_dx_last", p);
    }
    dsi_cuda_scratch_free(s, p->sums, bytes);
    return status;
}

ds_status dsi_cuda_batch_norm_dx(dsi_stream *s, bool batch, dsi_view dy, dsi_view x, dsi_view mean,
                                 dsi_view rstd, dsi_view weight, dsi_view dx, dsi_view dw,
                                 dsi_view db)
{
    dsi_cuda_batch_norm_args p = {.mean = dsi_cuda_line_of(&mean),
                                  .rstd = dsi_cuda_line_of(&rstd),
                                  .weight = dsi_cuda_line_of(&weight),
                                  .dw = dsi_cuda_line_of(&dw),
                                  .db = dsi_cuda_line_of(&db),
                                  .batch = batch};
    return backward(s, "batch_norm_dx", &dy, &x, &dx, &p);
}

ds_status dsi_cuda_batch_norm_relu_dx(dsi_stream *s, dsi_view dy, dsi_view x, dsi_view mean,
                                      dsi_view rstd, dsi_view factor, dsi_view term, dsi_view dx,
                                      dsi_view dw, dsi_view db)
{
    dsi_cuda_batch_norm_args p = {.mean = dsi_cuda_line_of(&mean),
                                  .rstd = dsi_cuda_line_of(&rstd),
                                  .factor = dsi_cuda_line_of(&factor),
                                  .term = dsi_cuda_line_of(&term),
                                  .dw = dsi_cuda_line_of(&dw),
                                  .db = dsi_cuda_line_of(&db),
                                  .batch = true,
                                  .relu = true};
    return backward(s, "batch_norm_relu_dx", &dy, &x, &dx, &p);
}
