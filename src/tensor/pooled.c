/* tensor/pooled.c: gradients in pooled form.
 *
 * Note [Pooled gradients] Max-pooling with windows that do not overlap sends
 * each gradient to one element of its window; for 2x2 windows three of four
 * elements of the dense gradient are zero. So its backward passes on three
 * tensors [N,C,P,Q]: the values, the positions of these elements (index), and
 * the maxima (max). ReLU and convolution use them directly: ReLU's output at
 * those positions is the maximum, so ReLU needs no other memory, and the
 * convolution's backward does a quarter of the work. For all other ops the
 * gradient is made dense first. A device without such convolutions may have
 * relu_max_pool2d_dx: then ReLU only leaves a mark (pooled_relu), and one kernel
 * does its backward and makes the gradient dense; or, in conv2d_back_pooled, all
 * of a small convolution's backward.
 *
 * Invariants: a tensor in pooled form has no storage; `pooled` holds all three
 * parts, counted, or none. shape is that of the dense gradient [N,C,H,W]. Once
 * dense, a tensor never returns to pooled form.
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
        .relu = x->pooled_relu,
    };
}

/* Takes over the storage of a temporary tensor, which stays in the current
 * scope. */
ds_status dsi_make_dense(ds_tensor *x)
{
    if (!x || !x->pooled[0]) return DS_OK;
    if (!dsi_acquire_pooled(x)) return ds_error_status();
    ds_tensor *y = dsi_new(x, x->shape);
    dsi_pooled p = dsi_pooled_view(x);
    if (!(x->pooled_relu ? dsi_run_fusion(y, relu_max_pool2d_dx, p.value, p.max, p.index, dsi_v(y))
                         : dsi_run(y, max_pool2d_dx, p.value, p.index, dsi_v(y))))
        return ds_error_status();
    x->storage = y->storage;
    x->storage->refs++;
    for (int i = 0; i < 3; i++) dsi_hold(&x->pooled[i], NULL);
    return DS_OK;
}
