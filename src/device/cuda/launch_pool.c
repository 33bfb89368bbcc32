/* device/cuda/launch_pool.c: the pooling entries of kernels.h.
 *
 * Invariants: the index of max pooling is h W + w of the maximum in its plane,
 * int32; backward knows it alone, not the windows. Kernels count elements of a
 * launch in 32 bits, so a larger batch is cut into launches of whole samples.
 * Planes of x have at most 65535 rows and columns.
 *
 * Forward takes a thread an output. Backward of averages gathers: a thread an
 * element of dx sums the windows that contain it. Backward of maxima takes a
 * block a piece of a plane (c NULL), which adds all windows with an index in
 * the piece in their order; or, where none occurs twice, writes them.
 * SPDX-License-Identifier: MIT */
#include "held.h"
#include "kernels/pool.h"
#include "launch.h"
#include "operands.h"

#include "base/error.h"

#define MOST (INT64_C(1) << 31) /* elements of one launch: kernels count in 32 bits */

#define PIECE 2048 /* elements of a plane that a block of max_pool_dx holds: pool.cu's */

/* The operands of one entry. op is the name for messages, kernel that of the
 * kernel without suffix; back: from y's side to x's. */
typedef struct Pooling {
    const char *op, *kernel;
    dsi_view x, y, index; /* x may be dx, y may be dy */
    dsi_view max;         /* of max_pool2d_dx: dy counts where it is positive; or absent */
    bool back, relu;
} Pooling;

static dsi_cuda_pool_args pool_args(const dsi_pool2d *c, const Pooling *o)
{
    const dsi_view *x = &o->x, *y = &o->y;
    dsi_cuda_pool_args p = {.from = o->back ? y->p : x->p,
                            .to = o->back ? x->p : y->p,
                            .index = o->index.p,
                            .max = o->max.p,
                            .planes = (unsigned)(x->d[0] * x->d[1]),
                            .c = (unsigned)x->d[1],
                            .h = (int)x->d[2],
                            .w = (int)x->d[3],
                            .p = (int)y->d[2],
                            .q = (int)y->d[3],
                            .dtype = (int)x->dtype,
                            .relu = o->relu};
    for (int i = 0; i < 4; i++)
        p.xs[i] = x->s[i], p.ys[i] = y->s[i], p.is[i] = o->index.p ? o->index.s[i] : 0,
        p.ms[i] = o->max.p ? o->max.s[i] : 0;
    for (int i = 0; c && i < 2; i++) {
        p.kernel[i] = (int)c->kernel[i], p.stride[i] = (int)c->stride[i];
        p.padding[i] = (int)c->padding[i], p.dilation[i] = (int)c->dilation[i];
    }
    if (c) p.divisor = c->divisor, p.exclude_pad = c->exclude_pad, p.adaptive = c->adaptive;
    return p;
}

/* The first n samples of v, or those from n on. */
static void first_samples(dsi_view *v, int64_t n, bool rest)
{
    if (!v->p) return;
    if (rest) v->p = (char *)v->p + n * v->s[0] * (int64_t)ds_dtype_size(v->dtype);
    v->d[0] = rest ? v->d[0] - n : n;
}

/* Launches o in parts of n samples: as many as have fewer than MOST elements on
 * both sides, at least one. o advances past what is launched. c NULL:
 * max_pool_dx. Empty outputs need no kernel. */
static ds_status pool_launch(dsi_stream *s, const dsi_pool2d *c, Pooling o)
{
    ds_status status = dsi_cuda_floating(o.op, o.x.dtype);
    int64_t in = dsi_cuda_elements_in(&o.x), out = dsi_cuda_elements_in(&o.y), n = o.x.d[0];
    if (status != DS_OK || !in || !(o.back ? in : out)) return status;
    if (o.x.d[2] > 65535 || o.x.d[3] > 65535)
        return dsi_fail(DS_EINVAL, "%s: a plane of %lld x %lld: expected at most 65535 x 65535",
                        o.op, (long long)o.x.d[2], (long long)o.x.d[3]);
    while (n > 1 && (in / o.x.d[0] * n >= MOST || out / o.x.d[0] * n >= MOST)) n /= 2;
    for (int64_t left = o.x.d[0]; left > 0 && status == DS_OK; left -= n) {
        Pooling part = o;
        if (n > left) n = left;
        first_samples(&part.x, n, false), first_samples(&part.y, n, false);
        first_samples(&part.index, n, false), first_samples(&part.max, n, false);
        dsi_cuda_pool_args p = pool_args(c, &part);
        if (c && !o.back && n == o.x.d[0] && o.index.p && dsi_cuda_held_pool(s, &p, &status))
            return status;
        int64_t plane = o.back ? (int64_t)p.h * p.w : (int64_t)p.p * p.q;
        dsi_cuda_grid grid = dsi_cuda_blocks((p.planes * plane + 255) / 256, 256);
        if (!c) grid = dsi_cuda_blocks(p.planes * ((plane + PIECE - 1) / PIECE), 256);
        status = dsi_cuda_launch(s, DSI_CUDA_pool, o.kernel, dsi_cuda_suffix(o.x.dtype), grid, &p);
        first_samples(&o.x, n, true), first_samples(&o.y, n, true);
        first_samples(&o.index, n, true), first_samples(&o.max, n, true);
    }
    return status;
}

ds_status dsi_cuda_max_pool2d(dsi_stream *s, const dsi_pool2d *c, dsi_view x, dsi_view y,
                              dsi_view index)
{
    return pool_launch(
        s, c, (Pooling){.op = "max_pool2d", .kernel = "max_pool", .x = x, .y = y, .index = index});
}

ds_status dsi_cuda_relu_max_pool2d(dsi_stream *s, const dsi_pool2d *c, dsi_view x, dsi_view y,
                                   dsi_view index)
{
    return pool_launch(s, c,
                       (Pooling){.op = "relu_max_pool2d",
                                 .kernel = "max_pool",
                                 .x = x,
                                 .y = y,
                                 .index = index,
                                 .relu = true});
}

ds_status dsi_cuda_max_pool2d_dx(dsi_stream *s, dsi_view dy, dsi_view index, dsi_view dx)
{
    return pool_launch(s, NULL,
                       (Pooling){.op = "max_pool2d_dx",
                                 .kernel = "max_pool_dx",
                                 .x = dx,
                                 .y = dy,
                                 .index = index,
                                 .back = true});
}

ds_status dsi_cuda_relu_max_pool2d_dx(dsi_stream *s, dsi_view dy, dsi_view max, dsi_view index,
                                      dsi_view dx)
{
    return pool_launch(s, NULL,
                       (Pooling){.op = "relu_max_pool2d_dx",
                                 .kernel = "max_pool_dx_once",
                                 .x = dx,
                                 .y = dy,
                                 .index = index,
                                 .max = max,
                                 .back = true});
}

ds_status dsi_cuda_avg_pool2d(dsi_stream *s, const dsi_pool2d *c, dsi_view x, dsi_view y)
{
    return pool_launch(s, c, (Pooling){.op = "avg_pool2d", .kernel = "avg_pool", .x = x, .y = y});
}

ds_status dsi_cuda_avg_pool2d_dx(dsi_stream *s, const dsi_pool2d *c, dsi_view dy, dsi_view dx)
{
    return pool_launch(
        s, c,
        (Pooling){.op = "avg_pool2d_dx", .kernel = "avg_pool_dx", .x = dx, .y = dy, .back = true});
}
