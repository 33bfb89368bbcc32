/* comm/nccl_other.c: reductions that NCCL has not, by another of its collectives
 * between kernels of the device:
 *
 *     sums, maxima, minima of int16    the same in int32
 *     maxima and minima of floats      the ranks' values side by side, of which a
 *                                      kernel takes the maximum: a NaN stays one,
 *                                      which NCCL may drop. Minima: negated
 *
 * Invariants: kernels and memory are of the device's stream, on which NCCL's
 * stream waits at the start, and which waits for it before the end.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/int.h"
#include "nccl.h"

static bool takes_extremes(const dsi_request *r)
{
    return dsi_dtype_is_float(r->dtype) && (r->op == DS_REDUCE_MAX || r->op == DS_REDUCE_MIN);
}

bool dsi_nccl_other_needed(const dsi_request *r)
{
    return dsi_collective_reduces(r->what) && r->n && (r->dtype == DS_I16 || takes_extremes(r));
}

/* [n] */
static dsi_view line(const void *p, ds_dtype dtype, int64_t n)
{
    return (dsi_view){.p = (void *)(uintptr_t)p, .dtype = dtype, .n = 1, .d = {n}, .s = {1}};
}

static ds_status begin_wider(const dsi_request *r, int64_t n, dsi_nccl_other *o)
{
    dsi_device *d = r->device;
    int32_t *wide = o->memory;
    o->r.dtype = DS_I32;
    o->r.in = wide;
    o->r.out = wide + (r->what == DSI_REDUCE_SCATTER ? r->comm->rank * r->n : 0);
    return d->kernels->copy(&d->stream, line(r->in, DS_I16, n), line(wide, DS_I32, n));
}

static ds_status begin_extremes(const dsi_request *r, int64_t n, dsi_nccl_other *o)
{
    dsi_device *d = r->device;
    char *all = o->memory;
    char *negated = all + (size_t)(r->n * r->comm->size) * ds_dtype_size(r->dtype);
    o->r.what = r->what == DSI_ALL_REDUCE ? DSI_ALL_GATHER
                : r->what == DSI_REDUCE   ? DSI_GATHER
                                          : DSI_ALL_TO_ALL;
    o->r.out = all;
    if (r->op == DS_REDUCE_MAX) return DS_OK;
    o->r.in = negated;
    return d->kernels->affine(&d->stream, -1, 0, line(r->in, r->dtype, n),
                              line(negated, r->dtype, n));
}

ds_status dsi_nccl_other_begin(const dsi_request *r, dsi_nccl_other *o)
{
    int64_t n = r->what == DSI_REDUCE_SCATTER ? r->n * r->comm->size : r->n;
    bool extremes = takes_extremes(r);
    int64_t elements = extremes ? r->n * r->comm->size + n : n;
    o->r = *r;
    o->bytes = (size_t)elements * ds_dtype_size(extremes ? r->dtype : DS_I32);
    o->bytes = (size_t)dsi_round_up((int64_t)o->bytes, sizeof(int64_t));
    o->at = o->bytes;
    if (extremes) o->bytes += (size_t)r->n * sizeof(int64_t);
    o->memory = dsi_cache_alloc(r->device, o->bytes);
    if (!o->memory) return ds_error_status();
    return extremes ? begin_extremes(r, n, o) : begin_wider(r, n, o);
}

/* Only the root of reduce_to has a result. */
static ds_status end_values(const dsi_request *r, const dsi_nccl_other *o)
{
    dsi_device *d = r->device;
    dsi_view y = line(r->out, r->dtype, r->n);
    if (r->what == DSI_REDUCE && r->root != r->comm->rank) return DS_OK;
    if (!takes_extremes(r)) return d->kernels->copy(&d->stream, line(o->r.out, DS_I32, r->n), y);
    dsi_view all = {.p = o->r.out,
                    .dtype = r->dtype,
                    .n = 3,
                    .d = {1, r->comm->size, r->n},
                    .s = {r->n * r->comm->size, r->n, 1}};
    dsi_view most = {
        .p = r->out, .dtype = r->dtype, .n = 3, .d = {1, 1, r->n}, .s = {r->n, r->n, 1}};
    dsi_view index = most;
    index.p = (char *)o->memory + o->at;
    index.dtype = DS_I64;
    ds_status status = d->kernels->reduce(&d->stream, DSI_MAX, 1, all, most, index);
    if (status != DS_OK || r->op == DS_REDUCE_MAX) return status;
    return d->kernels->affine(&d->stream, -1, 0, y, y);
}

ds_status dsi_nccl_other_end(const dsi_request *r, dsi_nccl_other *o, bool arrived)
{
    if (!o->memory) return DS_OK;
    ds_status status = arrived ? end_values(r, o) : DS_OK;
    dsi_cache_free(r->device, o->memory, o->bytes);
    o->memory = NULL;
    return status;
}
