/* comm/nccl_composed.c: reductions that NCCL does not have, composed of another
 * of its collectives and kernels of the device before and after it:
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

static bool is_float_minmax(const dsi_request *r)
{
    return dsi_dtype_is_float(r->dtype) && (r->op == DS_REDUCE_MAX || r->op == DS_REDUCE_MIN);
}

bool dsi_nccl_is_composed(const dsi_request *r)
{
    return dsi_collective_reduces(r->what) && r->n && (r->dtype == DS_I16 || is_float_minmax(r));
}

/* [n] */
static dsi_view line(const void *p, ds_dtype dtype, int64_t n)
{
    return (dsi_view){.p = (void *)(uintptr_t)p, .dtype = dtype, .n = 1, .d = {n}, .s = {1}};
}

static ds_status begin_int32(const dsi_request *r, int64_t n, dsi_nccl_composed *c)
{
    dsi_device *d = r->device;
    int32_t *wide = c->memory;
    c->request.dtype = DS_I32;
    c->request.in = wide;
    c->request.out = wide + (r->what == DSI_REDUCE_SCATTER ? r->comm->rank * r->n : 0);
    return d->kernels->copy(&d->stream, line(r->in, DS_I16, n), line(wide, DS_I32, n));
}

static ds_status begin_minmax(const dsi_request *r, int64_t n, dsi_nccl_composed *c)
{
    dsi_device *d = r->device;
    char *all = c->memory;
    char *negated = all + (size_t)(r->n * r->comm->size) * ds_dtype_size(r->dtype);
    c->request.what = r->what == DSI_ALL_REDUCE ? DSI_ALL_GATHER
                      : r->what == DSI_REDUCE   ? DSI_GATHER
                                                : DSI_ALL_TO_ALL;
    c->request.out = all;
    if (r->op == DS_REDUCE_MAX) return DS_OK;
    c->request.in = negated;
    return d->kernels->affine(&d->stream, -1, 0, line(r->in, r->dtype, n),
                              line(negated, r->dtype, n));
}

ds_status dsi_nccl_composed_begin(const dsi_request *r, dsi_nccl_composed *c)
{
    int64_t n = r->what == DSI_REDUCE_SCATTER ? r->n * r->comm->size : r->n;
    bool minmax = is_float_minmax(r);
    int64_t elements = minmax ? r->n * r->comm->size + n : n;
    c->request = *r;
    c->bytes = (size_t)elements * ds_dtype_size(minmax ? r->dtype : DS_I32);
    c->bytes = (size_t)dsi_round_up((int64_t)c->bytes, sizeof(int64_t));
    c->index_at = c->bytes;
    if (minmax) c->bytes += (size_t)r->n * sizeof(int64_t);
    c->memory = dsi_cache_alloc(r->device, c->bytes);
    if (!c->memory) return ds_error_status();
    return minmax ? begin_minmax(r, n, c) : begin_int32(r, n, c);
}

/* Only the root of reduce_to has a result. */
static ds_status end_values(const dsi_request *r, const dsi_nccl_composed *c)
{
    dsi_device *d = r->device;
    dsi_view y = line(r->out, r->dtype, r->n);
    if (r->what == DSI_REDUCE && r->root != r->comm->rank) return DS_OK;
    if (!is_float_minmax(r))
        return d->kernels->copy(&d->stream, line(c->request.out, DS_I32, r->n), y);
    dsi_view all = {.p = c->request.out,
                    .dtype = r->dtype,
                    .n = 3,
                    .d = {1, r->comm->size, r->n},
                    .s = {r->n * r->comm->size, r->n, 1}};
    dsi_view most = {
        .p = r->out, .dtype = r->dtype, .n = 3, .d = {1, 1, r->n}, .s = {r->n, r->n, 1}};
    dsi_view index = most;
    index.p = (char *)c->memory + c->index_at;
    index.dtype = DS_I64;
    ds_status status = d->kernels->reduce(&d->stream, DSI_MAX, 1, all, most, index);
    if (status != DS_OK || r->op == DS_REDUCE_MAX) return status;
    return d->kernels->affine(&d->stream, -1, 0, y, y);
}

ds_status dsi_nccl_composed_end(const dsi_request *r, dsi_nccl_composed *c, bool arrived)
{
    if (!c->memory) return DS_OK;
    ds_status status = arrived ? end_values(r, c) : DS_OK;
    dsi_cache_free(r->device, c->memory, c->bytes);
    c->memory = NULL;
    return status;
}
