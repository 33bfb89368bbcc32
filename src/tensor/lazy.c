/* tensor/lazy.c: tensors whose storage is away.
 *
 * Note [Absent tensors]
 * ZeRO-3 divides a parameter's values among ranks. Its handle, which modules and nodes of the graph hold, stays
 * and keeps shape, dtype, gradient and hooks; its storage goes, and comes back when values are read: every
 * kernel sees a tensor by dsi_v, which then calls the tensor's fetch. So nobody need ask whether a tensor is
 * there, and backward brings back only what it reads.
 *
 * dsi_v cannot fail, but a fetch can. The kernel then runs on zeros that stand in for the values, and dsi_run,
 * which called it, says afterwards that it failed: nobody sees what it computed. Who asks for memory without
 * a kernel (ds_data, ds_item), or makes a view, asks dsi_materialize before.
 * SPDX-License-Identifier: MIT */
#include "base/mem.h"
#include "tensor.h"

typedef struct dsi_placeholder {
    struct dsi_placeholder *next;
} Stand_in;

#define HEAD_BYTES 64 /* sizeof (Stand_in), so that what follows is aligned as storage is */
#define ROOM_BYTES 64 /* that a vector may read past the end */

void dsi_release_storage(ds_tensor *x)
{
    if (!x->storage) return;
    if (x->storage->reader) dsi_flush_relu(x->storage->reader);
    dsi_storage_unref(x->storage);
    x->storage = NULL;
    x->offset = 0;
    dsi_row_major(x->shape, x->stride);
}

void dsi_set_materialize_hook(ds_tensor *x, ds_status (*fetch)(void *arg, ds_tensor *x), void *arg)
{
    if (!x || (!fetch && !x->hooks)) return;
    dsi_hooks *h = dsi_hooks_of(x);
    h->fetch = fetch;
    h->fetch_arg = arg;
}

ds_tensor *dsi_new_lazy(dsi_device *d, ds_dtype dtype, ds_dims shape,
                        ds_status (*fetch)(void *arg, ds_tensor *x), void *arg)
{
    ds_tensor *x = dsi_new_on(d, dtype, ds_shape(0)); /* so that it takes no memory even now */
    if (!x) return NULL;
    dsi_release_storage(x);
    x->shape = shape;
    dsi_row_major(shape, x->stride);
    dsi_set_materialize_hook(x, fetch, arg);
    return x;
}

ds_status dsi_materialize(const ds_tensor *x)
{
    if (!x || x->storage || x->pooled[0]) return DS_OK;
    const dsi_hooks *h = x->hooks;
    if (!h || !h->fetch)
        return dsi_fail(DS_ESTATE, "tensor: %s %s has been released: it has no values",
                        ds_dtype_name(x->dtype), dsi_shape_text(x->shape));
    ds_status status = h->fetch(h->fetch_arg, h->self);
    DSI_ASSERT(status != DS_OK || (x->storage && dsi_is_contiguous(x)));
    return status;
}

void *dsi_make_placeholder(const ds_tensor *x)
{
    size_t bytes = (size_t)dsi_numel(x->shape) * ds_dtype_size(x->dtype);
    Stand_in *s = dsi_alloc(HEAD_BYTES + bytes + ROOM_BYTES);
    s->next = x->device->stand_ins;
    x->device->stand_ins = s;
    return (char *)s + HEAD_BYTES;
}

bool dsi_free_placeholders(dsi_device *d)
{
    while (d->stand_ins) {
        Stand_in *s = d->stand_ins;
        d->stand_ins = s->next;
        dsi_free(s);
    }
    return false;
}
