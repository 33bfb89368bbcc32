/* tensor/pooled.c: gradients in pooled form.
 *
 * Note [Pooled gradients] Max-pooling with windows that do not overlap sends
 * each gradient to one element of its window; for 2x2 windows three of four
 * elements of the dense gradient are zero. So its backward gives the values
 * [N,C,P,Q], the places of these elements, and the maxima themselves. ReLU and
 * convolution take that form as it is (ReLU's output at those places is the
 * maximum, so it needs no other memory; the convolution's backward then does a
 * quarter of the work). For all others it is made dense first.
 * SPDX-License-Identifier: MIT */
#include "tensor.h"

dsi_pooled dsi_pooled_view(const ds_tensor *x)
{
    return (dsi_pooled){
        .value = dsi_v(x->pooled[0]),
        .max = dsi_v(x->pooled[1]),
        .index = dsi_v(x->pooled[2]),
        .h = x->shape.d[x->shape.n - 2],
        .w = x->shape.d[x->shape.n - 1],
    };
}

ds_status dsi_make_dense(ds_tensor *x)
{
    if (!x || !x->pooled[0]) return DS_OK;
    if (!dsi_acquire_pooled(x)) return ds_error_status();
    ds_tensor *y = dsi_new(x, x->shape);
    dsi_pooled p = dsi_pooled_view(x);
    if (!dsi_run(y, max_pool2d_dx, p.value, p.index, dsi_v(y))) return ds_error_status();
    x->storage = y->storage;
    x->storage->refs++;
    for (int i = 0; i < 3; i++) {
        dsi_unref(x->pooled[i]);
        x->pooled[i] = NULL;
    }
    return DS_OK;
}
