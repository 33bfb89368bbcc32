/* device/cuda/held_norm.c: a held sum and the norms around it, of held.h: a
 * team of threads has a row in registers from the first to the last.
 * SPDX-License-Identifier: MIT */
#include "held_own.h"

typedef dsi_cuda_extent Extent;

/* ---- memory ------------------------------------------------------------- */

enum { READ = 3, WRITTEN = 3 };

static int64_t norm_count(const dsi_cuda_norm_args *p) { return p->rows * p->columns; }

static Extent elements_extent(const void *p, int dtype, int64_t count)
{
    return dsi_cuda_memory_of(p, count * (int64_t)ds_dtype_size((ds_dtype)dtype));
}

static Extent line_extent(const dsi_cuda_line *v, long long n)
{
    return dsi_cuda_extent_of(v->p, v->dtype, 1, &n, &v->s);
}

/* read: x, weight, bias; written: y, mean, rstd */
static void norm_extents(const dsi_cuda_norm_args *p, Extent read[READ], Extent written[WRITTEN])
{
    read[0] = elements_extent(p->a, p->dtype, norm_count(p));
    read[1] = line_extent(&p->weight, p->columns), read[2] = line_extent(&p->bias, p->columns);
    written[0] = elements_extent(p->y, p->dtype, norm_count(p));
    written[1] = line_extent(&p->mean, p->rows), written[2] = line_extent(&p->rstd, p->rows);
}

static bool meets(Extent own, const Extent *all, int n)
{
    for (int i = 0; i < n; i++)
        if (dsi_cuda_overlap(own, all[i])) return true;
    return false;
}

/* ---- launching ---------------------------------------------------------- */

ds_status dsi_cuda_held_norm_launch(struct dsi_cuda_held *h)
{
    const dsi_cuda_norm_sum *n = &h->norm.joined;
    const char *suffix = dsi_cuda_dtype_suffix((ds_dtype)n->of[n->first].dtype);
    if (n->first && !n->of[1].y) return dsi_cuda_sum_launch(h->s, &h->norm.sum);
    if (!n->sum)
        return dsi_cuda_launch(h->s, DSI_CUDA_normalize, "layer_norm_rows", suffix, h->grid,
                               &n->of[0]);
    return dsi_cuda_launch(h->s, DSI_CUDA_normalize, "layer_norm_sum", suffix, h->grid, n);
}

/* ---- a sum -------------------------------------------------------------- */

/* Fuses p with the held norm: false if it is no sum of its result, or memory
 * overlaps. */
static bool sum_fuse(struct dsi_cuda_held *h, const dsi_cuda_pointwise *p)
{
    dsi_cuda_norm_sum *n = &h->norm.joined;
    const dsi_cuda_norm_args *first = &n->of[0];
    const int dtype = p->e.dtype[0];
    const void *other = p->e.p[p->e.p[0] == first->y], *sum = p->e.p[2];
    Extent read[READ], written[WRITTEN], added = elements_extent(other, dtype, p->e.count),
                                         own = elements_extent(sum, dtype, p->e.count);
    if (n->first || n->sum || dtype != first->dtype || p->e.count != norm_count(first) ||
        (p->e.p[0] != first->y && p->e.p[1] != first->y))
        return false;
    norm_extents(first, read, written);
    if (meets(added, written, WRITTEN) || meets(own, written, WRITTEN) || meets(own, read, READ) ||
        (sum != other && dsi_cuda_overlap(own, added)))
        return false;
    n->other = other, n->sum = p->e.p[2];
    return true;
}

ds_status dsi_cuda_hold_sum(dsi_stream *s, const dsi_cuda_pointwise *p)
{
    struct dsi_cuda_held *h = dsi_cuda_held_as(s, DSI_CUDA_NORM);
    if (h && s->device->launch_fusions & DSI_FUSE_NORM && sum_fuse(h, p)) return DS_OK;
    ds_status status = dsi_cuda_held_new(s, DSI_CUDA_NORM, (dsi_cuda_grid){.shared = 0}, &h);
    if (status != DS_OK) return status;
    h->norm = (dsi_cuda_held_norm){
        .joined = {.a = p->e.p[0], .other = p->e.p[1], .sum = p->e.p[2], .first = 1}, .sum = *p};
    h->norm.joined.of[1].dtype = p->e.dtype[0];
    return dsi_cuda_held(s);
}

/* ---- a norm ------------------------------------------------------------- */

/* Fuses p with the held sum: false if it is no norm of it, or memory overlaps. */
static bool norm_fuse(struct dsi_cuda_held *h, const dsi_cuda_norm_args *p)
{
    dsi_cuda_norm_sum *n = &h->norm.joined;
    const dsi_cuda_norm_args *first = &n->of[0];
    const int64_t count = norm_count(p);
    if (!n->sum || p->a != n->sum || p->dtype != n->of[n->first].dtype ||
        (n->first ? h->norm.sum.e.count != count
                  : p->columns != first->columns || p->rows != first->rows))
        return false;
    Extent read[2 * READ + 2], written[2 * WRITTEN];
    norm_extents(p, read, written);
    Extent sum = read[0];
    read[0] = elements_extent(n->a, p->dtype, count);
    read[READ] = elements_extent(n->other, p->dtype, count), read[READ + 1] = sum;
    int reads = READ + 2, writes = WRITTEN;
    if (!n->first) {
        norm_extents(first, read + reads, written + writes);
        reads += READ, writes += WRITTEN;
    }
    for (int i = 0; i < WRITTEN; i++)
        if (meets(written[i], read, reads) ||
            meets(written[i], written + WRITTEN, writes - WRITTEN))
            return false;
    for (int line = 1; line < READ; line++)
        if (dsi_cuda_overlap(read[line], sum) ||
            meets(read[line], written + WRITTEN, writes - WRITTEN))
            return false;
    n->of[1] = *p;
    return true;
}

ds_status dsi_cuda_hold_norm(dsi_stream *s, dsi_cuda_grid grid, const dsi_cuda_norm_args *p)
{
    struct dsi_cuda_held *h = dsi_cuda_held_as(s, DSI_CUDA_NORM);
    if (h && s->device->launch_fusions & DSI_FUSE_NORM && norm_fuse(h, p)) {
        h->grid = grid;
        return dsi_cuda_held_launch(s->device->own);
    }
    if (!grid.blocks[0]) return dsi_cuda_held_launch(s->device->own);
    ds_status status = dsi_cuda_held_new(s, DSI_CUDA_NORM, grid, &h);
    if (status != DS_OK) return status;
    h->norm = (dsi_cuda_held_norm){.joined = {.of = {*p}, .a = p->a}};
    return dsi_cuda_held(s);
}
