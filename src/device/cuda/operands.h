/* device/cuda/operands.h: views and dtypes as kernels take them.
 *
 * Invariants: an args struct holds plain pointers of the GPU and is copied at
 * launch; it owns nothing. Dimensions and strides count elements, not bytes.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "driver.h"
#include "kernels/args.h"
#include "kernels/conv.h"
#include "kernels/line.h"

/* n views of one shape, of which the last is the output: its strides order the
 * dimensions; those of size 1 are dropped, and neighbours that are contiguous
 * in every view are joined. */
dsi_cuda_elements dsi_cuda_elements_of(int n, const dsi_view *const *views);
#define DSI_CUDA_ELEMENTS(...) \
    dsi_cuda_elements_of( \
        (int)(sizeof((const dsi_view *const[]){__VA_ARGS__}) / sizeof(const dsi_view *)), \
        (const dsi_view *const[]){__VA_ARGS__})

/* A view as it is: pointer, dimensions, strides. */
dsi_cuda_view dsi_cuda_view_of(const dsi_view *v);

/* A vector: one value a channel or a row. Absent: p NULL. */
dsi_cuda_line dsi_cuda_line_of(const dsi_view *v);

/* The product of its dimensions; 1 for none, 0 if one is 0. */
int64_t dsi_cuda_elements_in(const dsi_view *v);

/* Row-major without gaps. */
bool dsi_cuda_contiguous(const dsi_view *v);

/* A thread an element: kernels loop with the stride of the grid, so that the
 * number of blocks is bounded. No blocks for count 0. */
dsi_cuda_grid dsi_cuda_grid_of(int64_t count);

/* `blocks` blocks of `threads` threads. */
dsi_cuda_grid dsi_cuda_blocks(int64_t blocks, unsigned threads);

/* Blocks along y or z for n items: kernels loop where the driver takes no more. */
static inline unsigned dsi_cuda_loops(int64_t n)
{
    int64_t most = dsi_cuda_most_yz();
    return (unsigned)(n < most ? n : most);
}

/* How the name of the instance ends that computes in float or double: "_f32"
 * for 16 bits too. */
const char *dsi_cuda_suffix(ds_dtype dtype);

/* The same of kernels with an instance for each floating dtype: "_bf16". */
const char *dsi_cuda_dtype_suffix(ds_dtype dtype);

/* DS_OK for a floating dtype, else the message that names the kernel. */
ds_status dsi_cuda_floating(const char *kernel, ds_dtype dtype);

/* Launches the instance of a kernel for a floating dtype; for another, the
 * message that names the kernel. */
ds_status dsi_cuda_launch_floating(dsi_stream *s, dsi_cuda_family family, const char *kernel,
                                   ds_dtype dtype, dsi_cuda_grid grid, const void *args);

/* The GPU's fault flag, for the arguments of kernels that may set it. */
void *dsi_cuda_fault(dsi_stream *s);

/* Memory of the device for one call's partial results, at least bytes; to be
 * given back with dsi_cuda_scratch_free after the launches that use it: the
 * cache hands it out again on the same stream. NULL with the message. */
void *dsi_cuda_scratch(dsi_stream *s, size_t bytes);
void dsi_cuda_scratch_free(dsi_stream *s, void *p, size_t bytes);

/* Division of numbers below 2^31 by d, by a product and a shift.
 * Source: Granlund and Montgomery, Division by invariant integers using
 * multiplication (1994). */
dsi_cuda_divisor dsi_cuda_divisor_of(int64_t d);
