/* device/cuda/launch_index.c: rows and elements named by an index, experts.
 * SPDX-License-Identifier: MIT */
#include "kernels/index.h"
#include "launch.h"
#include "operands.h"

#define BLOCKS 8192

/* x, index, w (optional), y as arguments; w NULL: absent. */
static dsi_cuda_index index_args(dsi_stream *s, const dsi_view *x, const dsi_view *index,
                                 const dsi_view *w, const dsi_view *y)
{
    dsi_cuda_index a = {.x = dsi_cuda_view_of(x),
                        .index = dsi_cuda_view_of(index),
                        .y = dsi_cuda_view_of(y),
                        .fault = dsi_cuda_fault(s)};
    if (w) a.w = dsi_cuda_view_of(w);
    return a;
}

ds_status dsi_cuda_gather_rows(dsi_stream *s, dsi_view w, dsi_view index, dsi_view y)
{
    dsi_cuda_index a = index_args(s, &w, &index, NULL, &y);
    return dsi_cuda_launch(s, DSI_CUDA_index, "gather_rows", "",
                           dsi_cuda_grid_of(dsi_cuda_elements_in(&y)), &a);
}

ds_status dsi_cuda_scatter_rows(dsi_stream *s, dsi_view dy, dsi_view index, int64_t skip,
                                dsi_view dw)
{
    dsi_cuda_index a = index_args(s, &dy, &index, NULL, &dw);
    int64_t rows = dy.d[0], threads = dy.d[1] < 256 ? (dy.d[1] + 31) / 32 * 32 : 256;
    ds_status status = dsi_cuda_floating("scatter_rows", dy.dtype);
    if (status == DS_OK) status = dsi_cuda_fill(s, 0, dw);
    if (status != DS_OK || !dy.d[1]) return status;
    a.skip = skip;
    return dsi_cuda_launch(s, DSI_CUDA_index, "scatter_rows", dsi_cuda_suffix(dy.dtype),
                           dsi_cuda_blocks(rows < BLOCKS ? rows : BLOCKS, (unsigned)threads), &a);
}

ds_status dsi_cuda_gather(dsi_stream *s, dsi_view x, dsi_view index, dsi_view y)
{
    dsi_cuda_index a = index_args(s, &x, &index, NULL, &y);
    return dsi_cuda_launch(s, DSI_CUDA_index, "gather", "",
                           dsi_cuda_grid_of(dsi_cuda_elements_in(&y)), &a);
}

ds_status dsi_cuda_scatter_add(dsi_stream *s, dsi_view dy, dsi_view index, dsi_view dx)
{
    dsi_cuda_index a = index_args(s, &dy, &index, NULL, &dx);
    ds_status status = dsi_cuda_floating("scatter_add", dx.dtype);
    if (status == DS_OK) status = dsi_cuda_fill(s, 0, dx);
    if (status != DS_OK) return status;
    return dsi_cuda_launch(s, DSI_CUDA_index, "scatter_add", dsi_cuda_suffix(dx.dtype),
                           dsi_cuda_grid_of(dy.d[0] * dy.d[2]), &a);
}

ds_status dsi_cuda_dispatch(dsi_stream *s, dsi_view x, dsi_view slot, dsi_view w, dsi_view y)
{
    dsi_cuda_index a = index_args(s, &x, &slot, &w, &y);
    ds_status status = dsi_cuda_floating("dispatch", x.dtype);
    if (status == DS_OK) status = dsi_cuda_fill(s, 0, y);
    if (status != DS_OK) return status;
    return dsi_cuda_launch(s, DSI_CUDA_index, "dispatch", dsi_cuda_suffix(x.dtype),
                           dsi_cuda_grid_of(x.d[0] * slot.d[1] * x.d[1]), &a);
}

ds_status dsi_cuda_combine(dsi_stream *s, dsi_view x, dsi_view slot, dsi_view w, dsi_view y)
{
    dsi_cuda_index a = index_args(s, &x, &slot, &w, &y);
    ds_status status = dsi_cuda_floating("combine", x.dtype);
    if (status != DS_OK) return status;
    return dsi_cuda_launch(s, DSI_CUDA_index, "combine", dsi_cuda_suffix(x.dtype),
                           dsi_cuda_grid_of(y.d[0] * y.d[1]), &a);
}

ds_status dsi_cuda_combine_dw(dsi_stream *s, dsi_view dy, dsi_view x, dsi_view slot, dsi_view dw)
{
    dsi_cuda_index a = index_args(s, &x, &slot, &dw, &dy);
    ds_status status = dsi_cuda_floating("combine_dw", x.dtype);
    if (status != DS_OK) return status;
    return dsi_cuda_launch(s, DSI_CUDA_index, "combine_dw", dsi_cuda_suffix(x.dtype),
                           dsi_cuda_grid_of(dw.d[0] * dw.d[1] * 32), &a);
}
