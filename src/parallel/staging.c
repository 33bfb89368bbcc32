/* parallel/staging.c: see staging.h.
 * SPDX-License-Identifier: MIT */
#include "staging.h"

#include "base/mem.h"
#include "device/graph.h"

#include <string.h>

#define BEHIND 64 /* bytes that dsi_from_blob asks for */

struct dsi_staging {
    dsi_device *device;
    dsi_stream stream; /* without a handle: the device copies at once */
    dsi_event given;   /* what the device's stream was given before a copy */
    dsi_event all;     /* the end of what was queued */
    bool pending;      /* since the host has waited */
};

dsi_staging *dsi_staging_new(dsi_device *d)
{
    dsi_staging *s = dsi_alloc(sizeof *s);
    s->device = d;
    if (!d->type->stream_open || d->type->stream_open(d, &s->stream) == DS_OK) return s;
    dsi_free(s);
    return NULL;
}

void dsi_staging_free(dsi_staging *s)
{
    if (!s) return;
    dsi_staging_wait(s);
    dsi_staging_forget(s, &s->given);
    dsi_staging_forget(s, &s->all);
    if (s->stream.handle) s->device->type->stream_close(&s->stream);
    dsi_free(s);
}

typedef struct Pinned {
    dsi_device *device;
    void *p;
} Pinned;

static void pinned_free(void *owner)
{
    Pinned *m = owner;
    m->device->type->free_host(m->device, m->p);
    dsi_free(m);
}

ds_tensor *dsi_staging_memory(dsi_staging *s, ds_dtype dtype, int64_t n)
{
    if (!s->stream.handle) return dsi_fill(dsi_new_host(dtype, ds_shape(n)), 0);
    size_t bytes = (size_t)n * ds_dtype_size(dtype) + BEHIND;
    void *p = s->device->type->alloc_host(s->device, bytes);
    if (!p)
        return dsi_refuse_with(
            DS_ENOMEM,
            "offload: there are no %zu bytes of pinned host memory (%s [%lld]) for %s: see "
            "ulimit -l, or offload to files (\"nvme\")",
            bytes, ds_dtype_name(dtype), (long long)n, ds_device_name(dsi_device_id(s->device)));
    memset(p, 0, bytes);
    Pinned *m = dsi_alloc(sizeof *m);
    *m = (Pinned){s->device, p};
    return dsi_from_blob(dtype, n, p, pinned_free, m);
}

ds_status dsi_staging_copy(dsi_staging *s, ds_tensor *dst, const ds_tensor *src, dsi_event *done)
{
    if (!s->stream.handle) return dsi_copy(dst, src);
    if (!dsi_acquire(src) || !dsi_acquire_to_write(dst)) return ds_error_status();
    const dsi_device_type *type = s->device->type;
    size_t bytes = (size_t)dsi_numel(src->shape) * ds_dtype_size(src->dtype);
    DSI_ASSERT(dst->dtype == src->dtype && dsi_numel(dst->shape) == dsi_numel(src->shape));
    ds_status status = dsi_graph_forbid(s->device, "its state is in host memory or in files");
    if (status == DS_OK) status = type->record(&s->device->stream, &s->given);
    if (status == DS_OK) status = type->wait(&s->stream, &s->given);
    if (status != DS_OK) return status;
    status = dst->device == s->device
                 ? type->queue_in(&s->stream, dsi_v(dst).p, dsi_v(src).p, bytes)
                 : type->queue_out(&s->stream, dsi_v(dst).p, dsi_v(src).p, bytes);
    s->pending = true;
    return status == DS_OK && done ? type->record(&s->stream, done) : status;
}

ds_status dsi_staging_join(dsi_staging *s, dsi_event *done)
{
    if (!s->stream.handle) return DS_OK;
    const dsi_device_type *type = s->device->type;
    ds_status status = done ? DS_OK : type->record(&s->stream, &s->all);
    return status == DS_OK ? type->wait(&s->device->stream, done ? done : &s->all) : status;
}

ds_status dsi_staging_wait(dsi_staging *s)
{
    if (!s->pending) return DS_OK;
    s->pending = false;
    return s->device->type->sync(&s->stream);
}

void dsi_staging_forget(dsi_staging *s, dsi_event *done)
{
    if (s->stream.handle) s->device->type->free_event(s->device, done);
}
