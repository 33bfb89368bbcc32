/* device/cuda/launch_normalize.c: layer norm of kernels.h.
 *
 *     y = (x - mean) rstd weight + bias, mean and rstd = 1 / sqrt(var + eps) over
 *     the columns of each row of [M,D]; without `mean` the mean counts as 0,
 *     which is RMS norm
 *
 * var is the biased one, as torch.nn.functional normalizes with.
 *
 * Invariants: which threads add which elements depends on shapes alone, so
 * results have the same bits on each run. dw and db are optional.
 * SPDX-License-Identifier: MIT */
#include "held.h"
#include "kernels/normalize.h"
#include "launch.h"
#include "operands.h"

#include "base/error.h"

#define ROW_BLOCK 256
#define LONG      1024 /* columns of a row that takes a block */
#define PARTS     64   /* of a layer norm's rows, whose sums are added in a second kernel */
#define PART_ROWS 64   /* at least, in a part */
#define ROW_PARTS 512  /* parts times blocks of columns, of rows of aligned vectors */

static bool is_aligned(const void *p) { return (uintptr_t)p % 16 == 0; }

/* Whether the kernels of rows of aligned vectors take p. */
static bool has_vectors(const dsi_cuda_norm_args *p, const dsi_view *x)
{
    int64_t vector = 16 / (int64_t)ds_dtype_size(x->dtype);
    const dsi_cuda_line *lines[] = {&p->weight, &p->bias};
    bool fits = x->dtype != DS_F64 && x->d[1] % vector == 0 && is_aligned(p->a) &&
                is_aligned(p->b) && is_aligned(p->y);
    for (int i = 0; i < 2 && fits; i++)
        fits = !lines[i]->p ||
               (lines[i]->dtype == (int)x->dtype && lines[i]->s == 1 && is_aligned(lines[i]->p));
    return fits;
}

/* A row is summed by a team: a warp, or the whole block where it is long. Rows
 * without columns need no kernel. A norm by vectors may wait. */
static ds_status rows_launch(dsi_stream *s, const char *kernel, const char *by_vectors,
                             const dsi_view *x, dsi_cuda_norm_args *p)
{
    p->rows = x->d[0], p->columns = x->d[1], p->dtype = (int)x->dtype;
    p->team = p->columns > LONG ? ROW_BLOCK : 32;
    bool vectors = has_vectors(p, x) && p->columns <= 32 * p->team;
    if (!p->columns) return DS_OK;
    dsi_cuda_grid grid = dsi_cuda_blocks((p->rows * p->team + ROW_BLOCK - 1) / ROW_BLOCK,
                                         ROW_BLOCK);
    if (vectors && !p->b) return dsi_cuda_hold_norm(s, grid, p);
    return dsi_cuda_launch(s, DSI_CUDA_normalize, vectors ? by_vectors : kernel,
                           vectors ? dsi_cuda_dtype_suffix(x->dtype) : dsi_cuda_suffix(x->dtype),
                           grid, p);
}

ds_status dsi_cuda_layer_norm(dsi_stream *s, double eps, dsi_view x, dsi_view weight, dsi_view bias,
                              dsi_view y, dsi_view mean, dsi_view rstd)
{
    dsi_cuda_norm_args p = {.a = x.p,
                            .y = y.p,
                            .mean = dsi_cuda_line_of(&mean),
                            .rstd = dsi_cuda_line_of(&rstd),
                            .weight = dsi_cuda_line_of(&weight),
                            .bias = dsi_cuda_line_of(&bias),
                            .eps = eps};
    ds_status status = dsi_cuda_floating("layer_norm", x.dtype);
    return status == DS_OK ? rows_launch(s, "layer_norm", "layer_norm_rows", &x, &p) : status;
}

ds_status dsi_cuda_rms_norm_shifted(dsi_stream *s, double eps, double term, dsi_view x,
                                    dsi_view weight, dsi_view y)
{
    dsi_cuda_norm_args p = {
        .a = x.p, .y = y.p, .weight = dsi_cuda_line_of(&weight), .eps = eps, .term = term};
    ds_status status = dsi_cuda_floating("rms_norm", x.dtype);
    return status == DS_OK ? rows_launch(s, "layer_norm", "layer_norm_rows", &x, &p) : status;
}

/* dw = sum dy h, db = sum dy over rows, h = (x - mean) rstd. At most PARTS
 * parts, or of aligned vectors as many as make ROW_PARTS blocks, each of at least
 * PART_ROWS rows: blocks of 32 columns or vectors each write the sums of a part
 * to scratch [parts][2][columns], and layer_norm_dw_sum adds the parts in
 * order. */
static ds_status layer_norm_dw(dsi_stream *s, const dsi_view *x, dsi_cuda_norm_args *p)
{
    int64_t rows = x->d[0], columns = x->d[1];
    bool vectors = has_vectors(p, x);
    int64_t width = vectors ? 32 * 16 / (int64_t)ds_dtype_size(x->dtype) : 32,
            across = (columns + width - 1) / width;
    int64_t most = !vectors ? PARTS : across < ROW_PARTS ? ROW_PARTS / (across ? across : 1) : 1;
    p->part_rows = (rows + most - 1) / most;
    if (p->part_rows < PART_ROWS) p->part_rows = PART_ROWS;
    p->parts = (rows + p->part_rows - 1) / p->part_rows;
    p->rows = rows, p->columns = columns, p->dtype = (int)x->dtype;
    size_t bytes = (size_t)(p->parts * columns) * 2 * sizeof *p->sums;
    if (bytes && !(p->sums = dsi_cuda_scratch(s, bytes))) return DS_ENOMEM;
    dsi_cuda_grid grid = dsi_cuda_blocks(across, 256);
    grid.blocks[1] = (unsigned)p->parts;
    ds_status status = dsi_cuda_launch(
        s, DSI_CUDA_normalize, vectors ? "layer_norm_rows_dw" : "layer_norm_dw",
        vectors ? dsi_cuda_dtype_suffix(x->dtype) : dsi_cuda_suffix(x->dtype), grid, p);
    if (status == DS_OK)
        status = dsi_cuda_launch(s, DSI_CUDA_normalize, "layer_norm_dw_sum", "",
                                 dsi_cuda_blocks((columns + 31) / 32, 256), p);
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
                            .mean = dsi_cuda_line_of(&mean),
                            .rstd = dsi_cuda_line_of(&rstd),
                            .weight = dsi_cuda_line_of(&weight),
                            .dw = dsi_cuda_line_of(&dw),
                            .db = dsi_cuda_line_of(&db)};
    ds_status status = dsi_cuda_floating("layer_norm_dx", x.dtype);
    if (status == DS_OK && dx.p)
        status = rows_launch(s, "layer_norm_dx", "layer_norm_rows_dx", &x, &p);
    if (status == DS_OK && (dw.p || db.p)) status = layer_norm_dw(s, &x, &p);
    return status;
}
