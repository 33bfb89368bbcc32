/* device/cuda/held_step.c: the backward of a small network's first convolution
 * waits for SGD's step, and is one launch with it (kernels/conv_step.cu).
 *
 * They are fused if all is float32 and what the step writes is no memory of the
 * backward, nor its gradients any but dw and db as a whole, so that blocks do
 * not depend on each other. Values are those of two launches, to the bit.
 * SPDX-License-Identifier: MIT */
#include "held_own.h"
#include "kernels/conv_step.h"

#define MOST (1 << 22) /* elements: more are faster in vectors */

_Static_assert(sizeof(dsi_cuda_conv_step) <= 4096, "conv_step.h: an argument's limit");

typedef dsi_cuda_extent Extent;
enum { READS = 4, WRITES = 2 };

static void extents(const dsi_cuda_conv_args *c, Extent in[READS], Extent out[WRITES])
{
    const dsi_cuda_pooled *o = &c->pooled;
    const long long channels = (long long)c->groups * c->k,
                    x[] = {c->n, (long long)c->groups * c->c, c->h, c->width},
                    pooled[] = {c->n, channels, o->p, o->q}, w[] = {channels, c->c, c->r, c->s};
    in[0] = dsi_cuda_extent_of(c->x, DS_F32, 4, x, c->xs);
    in[1] = dsi_cuda_extent_of(o->value, DS_F32, 4, pooled, o->vs);
    in[2] = dsi_cuda_extent_of(o->index, DS_I32, 4, pooled, o->is);
    in[3] = dsi_cuda_extent_of(o->relu ? o->max : NULL, DS_F32, 4, pooled, o->ms);
    out[0] = dsi_cuda_extent_of(c->out, DS_F32, 4, w, c->ws);
    out[1] = dsi_cuda_extent_of(c->db, DS_F32, 1, &channels, &c->db_s);
}

static bool written(const Extent out[WRITES], Extent x)
{
    return dsi_cuda_overlap(out[0], x) || dsi_cuda_overlap(out[1], x);
}

static bool touched(const dsi_cuda_conv_args *c, Extent x)
{
    Extent in[READS], out[WRITES];
    extents(c, in, out);
    bool reads = false;
    for (int i = 0; i < READS; i++) reads = reads || dsi_cuda_overlap(in[i], x);
    return reads || written(out, x);
}

/* Adds a span to p: false if it must wait for the backward. */
static bool span_fuse(dsi_cuda_conv_step *p, const dsi_span *x)
{
    Extent in[READS], out[WRITES], g = dsi_cuda_memory_of(x->g, x->n * (int64_t)sizeof(float));
    int64_t bytes = x->n * (int64_t)sizeof(float);
    bool plain = x->dtype == DS_F32 && x->g_dtype == DS_F32 && !x->low && !x->rest;
    if (!plain || touched(&p->dw, dsi_cuda_memory_of(x->p, bytes)) ||
        touched(&p->dw, dsi_cuda_memory_of(x->m, bytes)))
        return false;
    extents(&p->dw, in, out);
    dsi_cuda_step_span span = {
        .p = x->p, .m = x->m, .g = x->g, .g_scale = x->g_scale, .step = x->step, .n = (int)x->n};
    for (int i = 0; i < WRITES; i++) {
        int64_t elements = (int64_t)p->dw.groups * p->dw.k * (i ? 1 : p->dw.taps);
        bool whole = g.begin == out[i].begin && g.end == out[i].end && x->n == elements;
        if (!whole || p->own[i].p) continue;
        p->own[i] = span;
        return true;
    }
    if (written(out, g) || p->n == K_STEP_SPANS) return false;
    p->x[p->n++] = span;
    return true;
}

/* Numbers the pieces; returns how many there are. */
static int pieces_count(dsi_cuda_conv_step *p)
{
    int pieces = 0;
    for (int i = 0; i < p->n; i++) {
        p->x[i].first = pieces;
        pieces += (p->x[i].n + K_STEP_PIECE - 1) / K_STEP_PIECE;
    }
    return pieces;
}

ds_status dsi_cuda_hold_back(dsi_stream *s, dsi_cuda_grid grid, const dsi_cuda_conv_back *p)
{
    struct dsi_cuda_held *h;
    if (!grid.blocks[0]) return dsi_cuda_held_launch(s->device->own);
    ds_status status = dsi_cuda_held_new(s, DSI_CUDA_BACK, grid, &h);
    if (status != DS_OK) return status;
    h->back = *p;
    return dsi_cuda_held(s);
}

struct dsi_cuda_held *dsi_cuda_held_aside(dsi_stream *s)
{
    struct dsi_cuda_held *h = dsi_cuda_held_as(s, DSI_CUDA_BACK);
    if (h) ((dsi_cuda_gpu *)s->device->own)->held = NULL;
    return h;
}

bool dsi_cuda_held_disjoint(dsi_stream *s, const dsi_view *y)
{
    const struct dsi_cuda_held *h = dsi_cuda_held_as(s, DSI_CUDA_BACK);
    int64_t bytes = dsi_cuda_elements_in(y) * (int64_t)ds_dtype_size(y->dtype);
    return h && !touched(&h->back.dw, dsi_cuda_memory_of(y->p, bytes));
}

bool dsi_cuda_held_sgd(dsi_stream *s, const dsi_cuda_optimizer *a, int n, const dsi_span *x,
                       ds_status *status)
{
    struct dsi_cuda_held *h = dsi_cuda_held_as(s, DSI_CUDA_BACK);
    Extent in[READS], out[WRITES];
    int64_t elements = 0;
    for (int i = 0; i < n; i++) elements += x[i].n;
    if (!h || !(s->device->launch_fusions & DSI_FUSE_CONV_STEP) || !elements || elements > MOST)
        return false;
    dsi_cuda_conv_step p = {.dw = h->back.dw,
                            .dw_blocks = h->grid.blocks[0],
                            .team_bits = h->back.team_bits,
                            .blocks = h->back.blocks,
                            .outputs = h->back.outputs,
                            .nesterov = a->nesterov,
                            .maximize = a->maximize,
                            .momentum = a->momentum,
                            .lr = a->lr,
                            .b1 = a->b1,
                            .decay = a->decay,
                            .take = a->take,
                            .scalars = a->scalars,
                            .g_factor = a->g_factor,
                            .skip = a->skip,
                            .fault = a->fault};
    extents(&p.dw, in, out);
    if (written(out, dsi_cuda_memory_of(a->scalars, sizeof *a->scalars)) ||
        written(out, dsi_cuda_memory_of(a->g_factor, sizeof *a->g_factor)) ||
        written(out, dsi_cuda_memory_of(a->skip, sizeof *a->skip)))
        return false;
    for (int i = 0; i < n; i++)
        if (x[i].n && !span_fuse(&p, &x[i])) return false;
    h->grid.blocks[0] += (unsigned)pieces_count(&p);
    h->what = DSI_CUDA_NOTHING; /* launching enters the device */
    *status = dsi_cuda_launch(s, DSI_CUDA_conv_step, "conv2d_dw_sgd", "_f32", h->grid, &p);
    return true;
}
