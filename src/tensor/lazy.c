/* tensor/lazy.c: tensors without storage, which their owner materializes.
 *
 * Note [Lazy tensors] ZeRO-3 partitions a parameter's values over ranks;
 * offloading keeps values on disk. The handle, which modules and nodes of the
 * graph hold, stays and keeps shape, dtype, gradient and hooks; only its
 * storage is released. It comes back when an op acquires the tensor (Note
 * [Residency] in acquire.c): that calls the materialize hook of its owner.
 *
 * Invariants:
 * - A tensor without storage has offset 0 and row-major strides, and is not in
 *   pooled form. The hook gives it storage by dsi_tensor_set_data with a
 *   row-major tensor, at any offset.
 * - Views are handles on the storage: a view keeps the values alive after the
 *   owner has released the tensor's own hold on them.
 * - The owner decides when storage is released; nothing in this folder does.
 * SPDX-License-Identifier: MIT */
#include "tensor.h"

void dsi_release_storage(ds_tensor *x)
{
    if (!x->storage) return;
    if (x->storage->reader) dsi_flush_relu(x->storage->reader);
    dsi_storage_unref(x->storage);
    x->storage = NULL;
    x->offset = 0;
    dsi_row_major(x->shape, x->stride);
}

void dsi_set_materialize_hook(ds_tensor *x, ds_status (*materialize)(void *arg, ds_tensor *x),
                              void *arg)
{
    if (!x || (!materialize && !x->hooks)) return;
    dsi_hooks *h = dsi_hooks_of(x);
    h->materialize = materialize;
    h->materialize_arg = arg;
}

ds_tensor *dsi_new_lazy(dsi_device *d, ds_dtype dtype, ds_dims shape,
                        ds_status (*materialize)(void *arg, ds_tensor *x), void *arg)
{
    /* no elements: this storage, which is dropped below, takes no memory */
    ds_tensor *x = dsi_new_on(d, dtype, ds_shape(0));
    if (!x) return NULL;
    dsi_release_storage(x);
    x->shape = shape;
    dsi_row_major(shape, x->stride);
    dsi_set_materialize_hook(x, materialize, arg);
    return x;
}

/* The hook gets the tensor's own handle (`self`), as x is const here. */
ds_status dsi_materialize(const ds_tensor *x)
{
    if (!x || x->storage || x->pooled[0]) return DS_OK;
    const dsi_hooks *h = x->hooks;
    if (!h || !h->materialize)
        return dsi_fail(DS_ESTATE, "tensor: %s %s has been released: it has no values",
                        ds_dtype_name(x->dtype), dsi_shape_text(x->shape));
    ds_status status = h->materialize(h->materialize_arg, h->self);
    DSI_ASSERT(status != DS_OK || (x->storage && dsi_is_contiguous(x)));
    return status;
}
