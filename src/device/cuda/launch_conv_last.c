/* device/cuda/launch_conv_last.c: see conv_last.h.
 *
 * Invariants: WARP and STAGES are those of kernels/conv_last.cuh, and tiles
 * those of conv_last.cu: 128 pixels x 128 channels, or "narrow", 256 x 64. A
 * grid counts tiles of pixels along x, of channels along y, groups times
 * classes of pixels along z.
 * SPDX-License-Identifier: MIT */
#include "conv_last.h"
#include "launch.h"
#include "operands.h"

#include "base/int.h"

#define MOST_TAPS 32
#define MOST_Z    65535
#define STAGES    4
#define WARP      64
#define LINE      64 /* bytes of a line of a stage */
#define THREADS   128

/* Channels are neighbours, pixels 16-byte aligned, places below 2^31. */
static bool channels_last(const dsi_view *v)
{
    int64_t span = 1;
    if (v->s[1] != 1 || (uintptr_t)v->p % 16) return false;
    for (int i = 0; i < 4; i++) {
        if (i != 1 && v->d[i] > 1 && (v->s[i] % 8 || v->s[i] < 0)) return false;
        span += (v->d[i] - 1) * v->s[i];
    }
    return span <= INT32_MAX;
}

bool dsi_cuda_conv_last_takes(const dsi_stream *s, const dsi_cuda_conv_args *p, const dsi_view *x,
                              const dsi_view *y)
{
    const dsi_cuda_gpu *g = s->device->own;
    int64_t taps = (int64_t)p->r * p->s, classes = (int64_t)p->stride[0] * p->stride[1];
    bool half = p->dtype == DS_F16 || p->dtype == DS_BF16;
    return half && g->capability >= 80 && p->c % 8 == 0 && p->k % 8 == 0 && taps <= MOST_TAPS &&
           p->groups * classes <= MOST_Z && taps * p->c * p->k * p->groups <= INT32_MAX &&
           channels_last(x) && channels_last(y);
}

static unsigned tiles(int64_t n, int64_t tile) { return (unsigned)((n + tile - 1) / tile); }

/* Weights in the order of the sum: a copy in `to`. */
static ds_status weights_launch(dsi_stream *s, dsi_cuda_conv_args p, bool dx, void *to)
{
    dsi_cuda_grid grid = dsi_cuda_blocks(tiles(p.c, 32), 256);
    grid.blocks[1] = tiles(p.k, 32), grid.blocks[2] = (unsigned)p.groups;
    grid.shared = 32u * (unsigned)(32 * p.r * p.s + 2) * 2;
    p.out = to;
    return dsi_cuda_launch(s, DSI_CUDA_conv_last, dx ? "conv2d_dx_weights" : "conv2d_weights", "",
                           grid, &p);
}

static dsi_cuda_grid tiles_grid(const dsi_cuda_conv_args *p, bool dx, bool narrow)
{
    int64_t rows = narrow ? 4 * WARP : 2 * WARP, columns = narrow ? WARP : 2 * WARP;
    int64_t h = dx ? p->h : p->p, w = dx ? p->width : p->q, classes = 1;
    if (dx) { /* the first class has the most pixels */
        h = (h + p->stride[0] - 1) / p->stride[0], w = (w + p->stride[1] - 1) / p->stride[1];
        classes = (int64_t)p->stride[0] * p->stride[1];
    }
    dsi_cuda_grid grid = dsi_cuda_blocks(tiles(p->n * h * w, rows), THREADS);
    grid.blocks[1] = tiles(dx ? p->c : p->k, columns);
    grid.blocks[2] = (unsigned)(p->groups * classes);
    grid.shared = (unsigned)((rows + columns) * LINE * STAGES);
    return grid;
}

ds_status dsi_cuda_conv_last(dsi_stream *s, const dsi_cuda_conv_args *p, bool dx)
{
    static const char *const names[2][2] = {{"conv2d_last", "conv2d_last_narrow"},
                                            {"conv2d_dx_last", "conv2d_dx_last_narrow"}};
    bool narrow = (dx ? p->c : p->k) <= WARP;
    size_t bytes = (size_t)p->groups * (size_t)p->k * (size_t)(p->c * p->r * p->s) * 2;
    dsi_cuda_conv_args q = *p;
    void *weights = dsi_cuda_scratch(s, bytes);
    if (!weights) return DS_ENOMEM;
    q.w = weights;
    ds_status status = weights_launch(s, *p, dx, weights);
    if (status == DS_OK)
        status = dsi_cuda_launch(s, DSI_CUDA_conv_last, names[dx][narrow],
                                 p->dtype == DS_F16 ? "_f16" : "_bf16", tiles_grid(p, dx, narrow),
                                 &q);
    dsi_cuda_scratch_free(s, weights, bytes);
    return status;
}
