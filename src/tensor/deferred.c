/* tensor/deferred.c: a ReLU that waits for who reads it.
 *
 * Note [Deferred ReLU]
 * max(0, .) and the maximum of a window commute, so max-pooling can do the ReLU on its way, on a quarter
 * of the values, and a pass over the largest tensors of a network is saved. But an op is written and
 * called alone. So the ReLU of a plane set [N,C,H,W] allocates its result and only notes, in the
 * storage, of what it is to be the ReLU. Max-pooling looks for that note; all other ops have it computed
 * as they acquire it (Note [Residency] in acquire.c), which cannot fail.
 *
 * The source must keep its values until then. Its storage knows its one reader: whoever writes to the
 * source in place (dsi_acquire_to_write) has the reader computed before; a storage whose address has
 * been given out for writing, or of a trained leaf, is never a source.
 * SPDX-License-Identifier: MIT */
#include "tensor.h"

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

ds_tensor *dsi_deferred_relu(const ds_tensor *y)
{
    ds_tensor *x = y->storage ? y->storage->relu_of : NULL;
    return x && !y->offset && dsi_same_layout(x, y) ? x : NULL;
}

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
