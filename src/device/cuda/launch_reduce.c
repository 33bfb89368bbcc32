/* device/cuda/launch_reduce.c: sums, maxima, norms.
 *
 * A sum with many outputs whose neighbours are neighbours in x takes a thread an
 * output, others a block an output. Where outputs are few and terms many, a sum
 * is cut into parts, so that the GPU has work; how many depends on the shape
 * alone. Columns of a matrix without gaps are summed by vectors of 16 bytes.
 *
 * Maxima take a block an output from 128 terms on; of equals the first is
 * found, and NaN is larger than all numbers, as in PyTorch. A norm is of
 * several tensors at once: pieces of K_NORM_PIECE elements each give a double,
 * and one block adds the pieces in a fixed order.
 *
 * Invariants: no atomics; each partial sum has its place in scratch, and a
 * second kernel adds them in order. How a sum is cut depends on shapes and
 * strides, not on the GPU.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/int.h"

#include "kernels/reduce.h"
#include "launch.h"
#include "operands.h"

#include <math.h>

#define BUSY          16384 /* threads that keep a GPU busy */
#define THREAD_TERMS  64    /* at least, of a part that one thread sums */
#define BLOCK_TERMS   8192  /* the same for a block */
#define MOST_PARTS    512
#define BLOCKS        8192
#define COLUMN_ROWS   64  /* at least, of a part of columns */
#define COLUMN_BLOCKS 512 /* that keep a GPU busy */

/* ---- sums ---- */

/* x over the dimensions that y keeps, or over those that are summed. */
static dsi_view dimensions_of(const dsi_view *x, const dsi_view *sizes, const dsi_view *y,
                              bool kept)
{
    dsi_view v = {.p = x->p, .dtype = x->dtype};
    for (int i = 0; i < y->n; i++)
        if ((y->d[i] == sizes->d[i]) == kept) v.d[v.n] = sizes->d[i], v.s[v.n++] = x->s[i];
    return v;
}

/* The distance in x between neighbours along the innermost dimension, in
 * elements. No dimension: larger than any. */
static int64_t inner_stride(const dsi_cuda_elements *e)
{
    int64_t s = e->n ? e->s[0][e->n - 1] : INT64_MAX;
    return s < 0 ? -s : s;
}

/* The kernel: by threads, if neighbours of y are closer in x than terms are. */
static bool sum_is_by_threads(const dsi_cuda_reduce *a)
{
    if (a->in.count < 32) return true;
    return a->out.count >= 32 && inner_stride(&a->out) < inner_stride(&a->in);
}

/* parts: as many as the GPU needs to be busy, with no fewer than THREAD_TERMS
 * or BLOCK_TERMS terms each; `each` is terms of a part, of which the last may
 * have fewer. An empty sum is one part without terms: 0. */
static void choose_parts(dsi_cuda_reduce *a, bool threads)
{
    int64_t unit = threads ? THREAD_TERMS : BLOCK_TERMS, busy = threads ? BUSY : BUSY / 256;
    int64_t most = busy / (a->out.count ? a->out.count : 1), parts = a->in.count / unit;
    if (parts > most) parts = most;
    if (parts > MOST_PARTS) parts = MOST_PARTS;
    if (parts < 1) parts = 1;
    a->each = (a->in.count + parts - 1) / parts;
    a->parts = a->each ? (a->in.count + a->each - 1) / a->each : 1;
}

static const char *reduce_suffix(ds_dtype dtype)
{
    return dtype == DS_I64 ? "_i64" : dsi_cuda_suffix(dtype);
}

/* ---- columns ---- */

/* Whether x is a matrix of aligned vectors whose columns are summed, of which
 * there are enough for a kernel of their own. */
static bool columns_fit(const dsi_cuda_reduce *a, const dsi_view *x)
{
    int64_t vector = 16 / (int64_t)ds_dtype_size(x->dtype);
    return (x->dtype == DS_F32 || x->dtype == DS_F16 || x->dtype == DS_BF16) && a->out.n == 1 &&
           a->in.n == 1 && a->out.s[0][0] == 1 && a->in.count >= COLUMN_ROWS &&
           a->out.count % vector == 0 && a->in.s[0][0] % vector == 0 && (uintptr_t)x->p % 16 == 0;
}

/* At least COLUMN_ROWS rows in a part; more parts where there are few columns. */
static ds_status columns_launch(dsi_stream *s, const dsi_cuda_reduce *a, ds_dtype dtype)
{
    int64_t width = 32 * 16 / (int64_t)ds_dtype_size(dtype), rows = a->in.count;
    int64_t across = (a->out.count + width - 1) / width;
    int64_t parts = dsi_min(dsi_max(COLUMN_BLOCKS / across, 1), rows / COLUMN_ROWS);
    dsi_cuda_columns p = {.x = a->out.p[0],
                          .y = a->out.p[1],
                          .factor = (float)a->factor,
                          .rows = rows,
                          .columns = a->out.count,
                          .stride = a->in.s[0][0],
                          .y_s = a->out.s[1][0],
                          .each = (rows + parts - 1) / parts,
                          .y_dtype = a->out.dtype[1]};
    p.parts = (int)((rows + p.each - 1) / p.each);
    size_t bytes = (size_t)(p.parts * p.columns) * sizeof(float);
    if (!(p.partial = dsi_cuda_scratch(s, bytes))) return DS_ENOMEM;
    dsi_cuda_grid grid = dsi_cuda_blocks(across, 256);
    grid.blocks[1] = (unsigned)p.parts;
    ds_status status = dsi_cuda_launch(s, DSI_CUDA_reduce, "sum_columns",
                                       dsi_cuda_dtype_suffix(dtype), grid, &p);
    if (status == DS_OK)
        status = dsi_cuda_launch(s, DSI_CUDA_reduce, "sum_column_parts", "",
                                 dsi_cuda_blocks((p.columns + 31) / 32, 256), &p);
    dsi_cuda_scratch_free(s, p.partial, bytes);
    return status;
}

/* y = factor sum of x over the dimensions in which y's size differs from x's.
 * partial has the type of the sum: float, or 8 bytes for float64 and int64. */
static ds_status sum_launch(dsi_stream *s, double factor, dsi_view x, dsi_view y)
{
    dsi_view from = dimensions_of(&x, &x, &y, true), to = dimensions_of(&y, &x, &y, true),
             terms = dimensions_of(&x, &x, &y, false);
    dsi_cuda_reduce a = {
        .out = DSI_CUDA_ELEMENTS(&from, &to), .in = DSI_CUDA_ELEMENTS(&terms), .factor = factor};
    const char *suffix = reduce_suffix(x.dtype);
    bool threads = sum_is_by_threads(&a);
    if (!a.out.count) return DS_OK;
    if (columns_fit(&a, &x)) return columns_launch(s, &a, x.dtype);
    choose_parts(&a, threads);
    size_t bytes = (size_t)(a.out.count * a.parts) *
                   (x.dtype == DS_F64 || x.dtype == DS_I64 ? 8 : 4);
    if (a.parts > 1 && !(a.partial = dsi_cuda_scratch(s, bytes))) return DS_ENOMEM;
    int64_t work = a.out.count * a.parts;
    unsigned block = a.each < 256 ? (unsigned)(a.each + 31) / 32 * 32 : 256;
    dsi_cuda_grid grid = threads ? dsi_cuda_grid_of(work)
                                 : dsi_cuda_blocks(work < BLOCKS ? work : BLOCKS, block);
    ds_status status = dsi_cuda_launch(s, DSI_CUDA_reduce, threads ? "sum_threads" : "sum_blocks",
                                       suffix, grid, &a);
    if (status == DS_OK && a.partial)
        status = dsi_cuda_launch(s, DSI_CUDA_reduce, "sum_parts", suffix,
                                 dsi_cuda_grid_of(a.out.count), &a);
    dsi_cuda_scratch_free(s, a.partial, bytes);
    return status;
}

ds_status dsi_cuda_reduce_op(dsi_stream *s, dsi_reduce_op op, double factor, dsi_view x, dsi_view y,
                             dsi_view index)
{
    ds_status status = x.dtype == DS_I64 ? DS_OK : dsi_cuda_floating(dsi_reduce_name(op), x.dtype);
    if (status != DS_OK) return status;
    if (op == DSI_SUM) return sum_launch(s, factor, x, y);
    dsi_cuda_reduce_max a = {dsi_cuda_view_of(&x), dsi_cuda_view_of(&y), dsi_cuda_view_of(&index)};
    int64_t outputs = x.d[0] * x.d[2];
    bool blocks = x.d[1] >= 128;
    return dsi_cuda_launch(s, DSI_CUDA_reduce, blocks ? "max_blocks" : "max_threads",
                           reduce_suffix(x.dtype),
                           blocks ? dsi_cuda_blocks(outputs < BLOCKS ? outputs : BLOCKS, 256)
                                  : dsi_cuda_grid_of(outputs),
                           &a);
}

ds_status dsi_cuda_sum_channels(dsi_stream *s, dsi_view x, dsi_view y)
{
    dsi_view wide = {y.p, y.dtype, 4, {1, x.d[1], 1, 1}, {0, y.s[0], 0, 0}};
    return sum_launch(s, 1, x, wide);
}

/* ---- norms ---- */

/* One launch for views begin .. end - 1, whose pieces are first .. */
static ds_status norm_launch(dsi_stream *s, dsi_cuda_norm *a, int n, const dsi_view *x,
                             double *partial)
{
    int64_t pieces = 0;
    a->n = n;
    a->partial = partial;
    for (int i = 0; i < n; i++) {
        int64_t count = dsi_cuda_elements_in(&x[i]);
        a->x[i].p = x[i].p;
        a->x[i].dtype = (int)x[i].dtype;
        a->x[i].n = count;
        a->x[i].first = pieces;
        pieces += (count + K_NORM_PIECE - 1) / K_NORM_PIECE;
    }
    a->pieces = pieces;
    return dsi_cuda_launch(s, DSI_CUDA_reduce, "norm_pieces", "", dsi_cuda_blocks(pieces, 256), a);
}

/* Whether x's elements are neighbours in memory, in whatever order. */
static bool is_solid(const dsi_view *x)
{
    dsi_cuda_elements e = DSI_CUDA_ELEMENTS(x);
    return e.n == 0 || (e.n == 1 && e.s[0][0] == 1);
}

/* How many views from x on one launch takes: those without gaps. */
static int solid_views(int n, const dsi_view *x)
{
    int k = 0;
    while (k < n && k < K_NORM_VIEWS && is_solid(&x[k])) k++;
    return k;
}

/* A view with gaps, by way of a copy without. */
static ds_status norm_of_gaps(dsi_stream *s, dsi_cuda_norm *a, const dsi_view *x, double *partial)
{
    dsi_view solid = *x;
    size_t bytes = (size_t)dsi_cuda_elements_in(x) * ds_dtype_size(x->dtype);
    solid.p = dsi_cuda_scratch(s, bytes);
    if (!solid.p) return DS_ENOMEM;
    for (int64_t i = x->n - 1, step = 1; i >= 0; step *= x->d[i--]) solid.s[i] = step;
    ds_status status = dsi_cuda_copy(s, *x, solid);
    if (status == DS_OK) status = norm_launch(s, a, 1, &solid, partial);
    dsi_cuda_scratch_free(s, solid.p, bytes);
    return status;
}

ds_status dsi_cuda_norm_of(dsi_stream *s, double p, int n, const dsi_view *x, dsi_view norm)
{
    dsi_cuda_norm a = {.kind = p == 1 ? K_NORM_1 : p == 2 ? K_NORM_2 : K_NORM_INFINITY};
    int64_t pieces = 1, first = 0;
    ds_status status = DS_OK;
    if (p != 1 && p != 2 && !isinf(p)) return dsi_fail(DS_EINVAL, "norm: no cuda kernel for p");
    for (int i = 0; i < n; i++) {
        status = dsi_cuda_floating("norm", x[i].dtype);
        if (status != DS_OK) return status;
        pieces += (dsi_cuda_elements_in(&x[i]) + K_NORM_PIECE - 1) / K_NORM_PIECE;
    }
    size_t bytes = (size_t)pieces * sizeof(double);
    double *partial = dsi_cuda_scratch(s, bytes);
    if (!partial) return DS_ENOMEM;
    for (int i = 0; i < n && status == DS_OK;) {
        int k = solid_views(n - i, x + i);
        status = k ? norm_launch(s, &a, k, x + i, partial + first)
                   : norm_of_gaps(s, &a, x + i, partial + first);
        first += a.pieces;
        i += k ? k : 1;
    }
    a.partial = partial;
    a.pieces = first;
    a.y = norm.p;
    if (status == DS_OK)
        status = dsi_cuda_launch(s, DSI_CUDA_reduce, "norm_end", "", dsi_cuda_blocks(1, 256), &a);
    dsi_cuda_scratch_free(s, partial, bytes);
    return status;
}
