/* device/cuda/launch_copy.c: copy, fill and arange. Contiguous memory that
 * needs no conversion is copied by the driver, without a kernel.
 *
 * Views are joined first (operands.h): dense means that nothing is left of the
 * dimensions, or one with stride 1, in which case both views have the same
 * order in memory too. Conversions are PyTorch's on x86: a float becomes an
 * integer by truncation, and NaN the smallest one.
 * SPDX-License-Identifier: MIT */
#include "held.h"
#include "kernels/copy.h"
#include "launch.h"
#include "operands.h"

#include <math.h>

/* Whether a view of e is one run of memory: no dimensions (one element), or one
 * whose elements are neighbours. */
static bool is_dense(const dsi_cuda_elements *e, int view)
{
    return e->n == 0 || (e->n == 1 && e->s[view][0] == 1);
}

enum { LONG_LINE = 512, MANY_LINES = 128 }; /* from which on a block copies a line */

/* Lines of neighbours of 2 bytes in both views. */
static bool is_lines(const dsi_cuda_elements *e)
{
    return e->n == 2 && e->s[0][1] == 1 && e->s[1][1] == 1 && e->d[1] >= LONG_LINE &&
           e->d[0] >= MANY_LINES && ds_dtype_size((ds_dtype)e->dtype[0]) == 2;
}

static ds_status launch_lines(dsi_stream *s, const dsi_cuda_padding *p, int64_t lines)
{
    return dsi_cuda_launch(s, DSI_CUDA_copy, "pad_lines", "", dsi_cuda_blocks(lines, 256), p);
}

static ds_status copy_lines(dsi_stream *s, const dsi_cuda_elements *e)
{
    dsi_cuda_padding p = {.x = e->p[0],
                          .y = e->p[1],
                          .lines = e->d[0],
                          .columns = e->d[1],
                          .all_columns = e->d[1],
                          .xs = e->s[0][0],
                          .ys = e->s[1][0],
                          .bytes = 2};
    return launch_lines(s, &p, e->d[0]);
}

ds_status dsi_cuda_pad(dsi_stream *s, dsi_view x, dsi_view y)
{
    dsi_cuda_padding p = {.x = x.p,
                          .y = y.p,
                          .lines = x.d[0],
                          .columns = x.d[1],
                          .all_columns = y.d[1],
                          .xs = x.s[0],
                          .ys = y.s[0],
                          .bytes = (int)ds_dtype_size(x.dtype)};
    return launch_lines(s, &p, y.d[0]);
}

/* y = x, converted to y's dtype. Equal dtypes are moved as bits, so the payload
 * of a NaN is kept. */
ds_status dsi_cuda_copy(dsi_stream *s, dsi_view x, dsi_view y)
{
    dsi_cuda_elements e = DSI_CUDA_ELEMENTS(&x, &y);
    bool same = x.dtype == y.dtype;
    size_t size = ds_dtype_size(x.dtype);
    if (same && e.count == 1)
        return dsi_cuda_hold_copy(s, &(dsi_cuda_element){x.p, y.p, (long long)size});
    if (same && e.count && is_dense(&e, 0) && is_dense(&e, 1))
        return s->device->type->copy(s, y.p, s->device, x.p, (size_t)e.count * size);
    if (same && is_lines(&e)) return copy_lines(s, &e);
    return dsi_cuda_launch(s, DSI_CUDA_copy, same ? "copy_same" : "copy_convert", "",
                           dsi_cuda_grid_of(e.count), &e);
}

/* y = value, converted to y's dtype. Zero is all bits 0 in every dtype: the
 * driver's memset does it. -0.0 has a bit in floats. */
ds_status dsi_cuda_fill(dsi_stream *s, double value, dsi_view y)
{
    if (dsi_cuda_held_fill(s, value, &y)) return DS_OK;
    dsi_cuda_pointwise a = {.e = DSI_CUDA_ELEMENTS(&y), .a = value};
    if (value == 0 && !signbit(value) && a.e.count && is_dense(&a.e, 0)) {
        const dsi_cuda_gpu *g = dsi_cuda_held_disjoint(s, &y) ? dsi_cuda_context(s->device)
                                                              : dsi_cuda_enter(s->device);
        CUresult result = g->f->set((CUdeviceptr)(uintptr_t)y.p, 0,
                                    (size_t)a.e.count * ds_dtype_size(y.dtype), s->handle);
        return dsi_cuda_check(s->device->index, result, "fill");
    }
    return dsi_cuda_launch(s, DSI_CUDA_copy, "fill", "", dsi_cuda_grid_of(a.e.count), &a);
}

ds_status dsi_cuda_arange(dsi_stream *s, double begin, double step, dsi_view y)
{
    dsi_cuda_pointwise a = {.e = DSI_CUDA_ELEMENTS(&y), .a = begin, .b = step};
    return dsi_cuda_launch(s, DSI_CUDA_copy, "arange", "", dsi_cuda_grid_of(a.e.count), &a);
}
