/* tensor/deferred.c: a ReLU that is computed when its result is first read.
 *
 * Note [Deferred ReLU] max(0, .) and the maximum of a window commute, so
 * max-pooling can compute the ReLU too, on a quarter of the values, and one
 * pass over the largest tensors of a network is saved. But an op is called
 * alone. So the ReLU of planes [N,C,H,W] only allocates its result and records
 * its source in the storage (`relu_of`). Max-pooling reads `relu_of`; for all
 * other ops the ReLU is computed when they acquire the result (Note [Residency]
 * in acquire.c), which cannot fail.
 *
 * Invariants:
 * - relu_of of a storage is the source, counted; the source's storage points
 *   back by `reader`, at one reader at most.
 * - The source keeps its values until the ReLU is computed: whoever writes to
 *   it in place has the reader computed first (dsi_acquire_to_write), as do the
 *   functions that take its storage away.
 * - A storage whose address was given out for writing, or of a trained leaf, is
 *   never a source.
 * SPDX-License-Identifier: MIT */
#include "tensor.h"

/* Refuses if x may change before y is read: x is being read by another deferred
 * ReLU, its address was given out, or an optimizer writes to it. */
bool dsi_defer_relu(ds_tensor *y, ds_tensor *x)
{
    dsi_storage *s = x->storage;
    bool fixed = s && !s->reader && !s->written && !x->requires_grad &&
                 dsi_fusion(x->device, relu_max_pool2d);
    if (!fixed || s->relu_of || x->shape.n != 4 || x->dtype == DS_F64 || !dsi_same_layout(x, y))
        return false;
    y->storage->relu_of = dsi_ref(x);
    s->reader = y->storage;
    return true;
}

/* Only if y is the whole result: a view of it has another layout or offset. */
ds_tensor *dsi_deferred_relu(const ds_tensor *y)
{
    ds_tensor *x = y->storage ? y->storage->relu_of : NULL;
    return x && !y->offset && dsi_same_layout(x, y) ? x : NULL;
}

/* Forgets the ReLU without computing it: no reader of s is left. */
void dsi_drop_deferred_relu(dsi_storage *s)
{
    ds_tensor *x = s->relu_of;
    if (!x) return;
    s->relu_of = NULL;
    x->storage->reader = NULL;
    dsi_unref(x);
}

void dsi_flush_relu(dsi_storage *s)
{
    ds_tensor *x = dsi_ref(s->relu_of);
    dsi_drop_deferred_relu(s);
    dsi_view from = dsi_v(x), to = from;
    to.p = s->p;
    ds_status status = s->device->kernels->unary(&s->device->stream, DSI_RELU, 0, from, to);
    DSI_ASSERT(status == DS_OK);
    dsi_unref(x);
}
