/* tensor/lazy.c: tensors without storage, which their owner materializes.
 *
 * Note [Lazy tensors] ZeRO-3 partitions a parameter's values over ranks;
 * offloading keeps values on disk. The handle, which modules and nodes of the
 * graph hold, stays and keeps shape, dtype, gradient and hooks; only its
 * storage is released. It comes back when an op acquires the tensor (Note
 * [Residency] in acquire.c): that calls the materialize hook of its owner. A
 * loader's batch on a GPU is lazy too: its values are mostly wanted in the
 * inputs of a step's graph, where its owner writes them (lazy.h).
 *
 * Invariants:
 * - A tensor without storage has offset 0 and row-major strides, and is not in
 *   pooled form. The hook gives it storage by dsi_tensor_set_data with a
 *   row-major tensor, at any offset.
 * - Views are handles on the storage: a view keeps the values alive after the
 *   owner has released the tensor's own hold on them.
 * - The owner decides when storage is released; nothing in this folder does.
 * SPDX-License-Identifier: MIT */
#include "lazy.h"

#include "device/graph.h"

void dsi_release_storage(ds_tensor *x)
{
    if (!x->storage) return;
    dsi_leave_to_reader(x);
    dsi_share_end(x);
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

/* ---- an owner that writes where the values are wanted --------------------------------------------------- */

static ds_status owned_materialize(void *arg, ds_tensor *x)
{
    dsi_lazy_owner *owner = arg;
    const char *why = "it reads a loader's batch that is not among its inputs";
    ds_status status = dsi_graph_forbid(x->device, why);
    return status == DS_OK ? owner->materialize(owner, x) : status;
}

ds_tensor *dsi_new_owned(dsi_device *d, ds_dtype dtype, ds_dims shape, dsi_lazy_owner *owner)
{
    return dsi_new_lazy(d, dtype, shape, owned_materialize, owner);
}

/* Whose x is, if it can write x's values to `to`; else NULL. */
static dsi_lazy_owner *writer_of(const ds_tensor *x, const ds_tensor *to)
{
    const dsi_hooks *h = x->hooks;
    bool fits = h && h->materialize == owned_materialize && !x->storage && x->dtype == to->dtype &&
                x->device == to->device && dsi_same_shape(x->shape, to->shape) &&
                dsi_is_contiguous(to);
    return fits ? h->materialize_arg : NULL;
}

void dsi_copies_recorded(int n, ds_tensor *const *to, ds_tensor *const *x, bool *recorded)
{
    const dsi_lazy_owner *owner = NULL;
    for (int i = 0; i < n; i++) {
        const dsi_lazy_owner *writer = writer_of(x[i], to[i]);
        bool twice = false;
        for (int j = 0; j < i; j++) twice |= x[j] == x[i];
        recorded[i] = writer && !twice && (!owner || writer == owner) && writer->is_recorded &&
                      writer->is_recorded(writer);
        if (recorded[i]) owner = writer;
    }
}

/* A tensor that is named twice is written once, and then copied, which
 * materializes it. */
ds_status dsi_copy_all(int n, ds_tensor *const *to, ds_tensor *const *x)
{
    ds_tensor *written[DSI_COPIES], *place[DSI_COPIES];
    dsi_lazy_owner *owner = NULL;
    int k = 0;
    for (int i = 0; i < n; i++) {
        if (to[i] == x[i]) continue;
        dsi_lazy_owner *writer = writer_of(x[i], to[i]);
        bool twice = false;
        for (int j = 0; j < k; j++) twice |= written[j] == x[i];
        if (!writer || twice || (owner && writer != owner)) {
            if (dsi_copy(to[i], x[i]) != DS_OK) return ds_error_status();
            continue;
        }
        if (!dsi_acquire_to_write(to[i])) return ds_error_status();
        owner = writer, written[k] = x[i], place[k++] = to[i];
    }
    return k ? owner->write(owner, k, written, place) : DS_OK;
}
