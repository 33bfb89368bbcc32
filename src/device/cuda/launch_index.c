/* device/cuda/launch_index.c: rows and elements named by an index, experts.
 *
 * Invariants: an index outside of its range sets the fault flag with its place
 * and value, and its row is not touched; the launch still returns DS_OK, and
 * dsi_device_check reports it. Scattered values are added in the order of the
 * index, by one thread an element: not by atomics, whose order changes from run
 * to run. Outputs that are added to are cleared on the same stream before.
 *
 * Rows are scattered in one of two ways. Up to FEW_ROWS, a block a position
 * looks at all other positions, which costs their square. Above, positions are
 * sorted by row with a radix sort (8 bits a pass, stable, so that the positions
 * of a row keep their order), and a block adds one row.
 * SPDX-License-Identifier: MIT */
#include "kernels/index.h"
#include "launch.h"
#include "operands.h"

#define BLOCKS   8192
#define FEW_ROWS 2048 /* up to this number, each block reads all positions */

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

/* Sorts the positions by their row, from the lowest 8 bits of the row's number
 * to the highest; a pass counts digits of each chunk, adds up, and places.
 * a->to and a->from change places in each pass; at the end a->from has the
 * result. The number of rows, y.d[0], is a key too: that of positions that are
 * left out. */
static ds_status sort_rows(dsi_stream *s, dsi_cuda_index *a)
{
    dsi_cuda_grid chunks = dsi_cuda_blocks(a->chunks < BLOCKS ? a->chunks : BLOCKS, 256);
    ds_status status = dsi_cuda_launch(s, DSI_CUDA_index, "sort_rows_keys", "",
                                       dsi_cuda_grid_of(a->n), a);
    for (int shift = 0; status == DS_OK && a->y.d[0] >> shift; shift += 8) {
        unsigned long long *from = a->to;
        a->to = a->from, a->from = from, a->shift = shift;
        status = dsi_cuda_launch(s, DSI_CUDA_index, "sort_rows_count", "", chunks, a);
        if (status == DS_OK)
            status = dsi_cuda_launch(s, DSI_CUDA_index, "sort_rows_sum", "",
                                     dsi_cuda_blocks(1, K_SORT_DIGITS), a);
        if (status == DS_OK)
            status = dsi_cuda_launch(s, DSI_CUDA_index, "sort_rows_place", "", chunks, a);
    }
    a->from = a->to;
    return status;
}

/* Scatters n rows in time that grows with n. Scratch is one block: two arrays
 * of n keys (row << 32 | position, so both are below 2^32), then the counts
 * [digits][chunks]. */
static ds_status scatter_many(dsi_stream *s, dsi_cuda_index *a, int64_t n, unsigned threads,
                              const char *suffix)
{
    int64_t chunks = (n + K_SORT_CHUNK - 1) / K_SORT_CHUNK;
    size_t keys = (size_t)n * sizeof *a->from, counts = (size_t)chunks * K_SORT_DIGITS * 4;
    char *memory = dsi_cuda_scratch(s, 2 * keys + counts);
    if (!memory) return DS_ENOMEM;
    a->n = n, a->chunks = chunks;
    a->from = (void *)memory;
    a->to = (void *)(memory + keys);
    a->counts = (void *)(memory + 2 * keys);
    ds_status status = sort_rows(s, a);
    if (status == DS_OK)
        status = dsi_cuda_launch(s, DSI_CUDA_index, "scatter_sorted", suffix,
                                 dsi_cuda_blocks(n < BLOCKS ? n : BLOCKS, threads), a);
    dsi_cuda_scratch_free(s, memory, 2 * keys + counts);
    return status;
}

ds_status dsi_cuda_scatter_rows(dsi_stream *s, dsi_view dy, dsi_view index, int64_t skip,
                                dsi_view dw)
{
    dsi_cuda_index a = index_args(s, &dy, &index, NULL, &dw);
    int64_t rows = dy.d[0], threads = dy.d[1] < 256 ? (dy.d[1] + 31) / 32 * 32 : 256;
    ds_status status = dsi_cuda_fill(s, 0, dw);
    if (status != DS_OK || !dy.d[1]) return status;
    a.skip = skip;
    if (rows > FEW_ROWS && rows < UINT32_MAX && dw.d[0] < UINT32_MAX)
        return scatter_many(s, &a, rows, (unsigned)threads, dsi_cuda_suffix(dy.dtype));
    dsi_cuda_grid grid = dsi_cuda_blocks(rows < BLOCKS ? rows : BLOCKS, (unsigned)threads);
    return dsi_cuda_launch_floating(s, DSI_CUDA_index, "scatter_rows", dy.dtype, grid, &a);
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
    ds_status status = dsi_cuda_fill(s, 0, dx);
    if (status != DS_OK) return status;
    return dsi_cuda_launch_floating(s, DSI_CUDA_index, "scatter_add", dx.dtype,
                                    dsi_cuda_grid_of(dy.d[0] * dy.d[2]), &a);
}

/* Tokens to the slots of experts. A slot is named at most once, so rows are
 * written, not added; those that no token takes stay 0. */
ds_status dsi_cuda_dispatch(dsi_stream *s, dsi_view x, dsi_view slot, dsi_view w, dsi_view y)
{
    dsi_cuda_index a = index_args(s, &x, &slot, &w, &y);
    ds_status status = dsi_cuda_fill(s, 0, y);
    if (status != DS_OK) return status;
    return dsi_cuda_launch_floating(s, DSI_CUDA_index, "dispatch", x.dtype,
                                    dsi_cuda_grid_of(x.d[0] * slot.d[1] * x.d[1]), &a);
}

ds_status dsi_cuda_combine(dsi_stream *s, dsi_view x, dsi_view slot, dsi_view w, dsi_view y)
{
    dsi_cuda_index a = index_args(s, &x, &slot, &w, &y);
    return dsi_cuda_launch_floating(s, DSI_CUDA_index, "combine", x.dtype,
                                    dsi_cuda_grid_of(y.d[0] * y.d[1]), &a);
}

/* A warp, 32 threads, sums one weight. The argument w is the output here, and y
 * is dy. */
ds_status dsi_cuda_combine_dw(dsi_stream *s, dsi_view dy, dsi_view x, dsi_view slot, dsi_view dw)
{
    dsi_cuda_index a = index_args(s, &x, &slot, &dw, &dy);
    return dsi_cuda_launch_floating(s, DSI_CUDA_index, "combine_dw", x.dtype,
                                    dsi_cuda_grid_of(dw.d[0] * dw.d[1] * 32), &a);
}
