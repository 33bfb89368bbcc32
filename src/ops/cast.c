/* ops/cast.c: to another dtype or device, to row-major order, to a copy; each
 * with its gradient.
 *
 * Integers and booleans have no gradient: a cast to one of them ends the graph.
 *
 * Invariants: ds_to returns x itself if nothing changes, ds_clone always
 * another tensor, ds_contiguous x itself if it is row-major. A move between
 * devices is always of row-major elements, and the dtype changes on the
 * source's device, before the move.
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include <string.h>

typedef struct From {
    ds_device device;
    ds_dtype dtype;
} From;

/* dx is dy in x's dtype and on x's device. */
static void cast_backward(dsi_node *n, ds_tensor *dy)
{
    const From *from = dsi_attr(n);
    dsi_accumulate_grad(n, 0, ds_to(dy, from->device, from->dtype));
}

const dsi_op dsi_op_cast = {.name = "cast", .backward = cast_backward};

/* x in another dtype on its own device, in the same order of memory if it is
 * dense. */
static ds_tensor *converted(const ds_tensor *x, ds_dtype dtype)
{
    ds_tensor *y = dsi_new_dtype(x, dtype, x->shape);
    if (y && dsi_is_dense(x)) memcpy(y->stride, x->stride, sizeof y->stride);
    return dsi_copy(y, x) == DS_OK ? y : NULL;
}

/* Across devices go row-major elements of one dtype; so x is made such first. */
static ds_tensor *cast_moved(ds_tensor *x, dsi_device *to, ds_dtype dtype)
{
    ds_tensor *from = x->dtype == dtype ? x : converted(x, dtype);
    if (from && !dsi_is_contiguous(from)) {
        ds_tensor *row = dsi_new(from, from->shape);
        from = dsi_copy(row, from) == DS_OK ? row : NULL;
    }
    ds_tensor *y = from ? dsi_new_on(to, dtype, x->shape) : NULL;
    return dsi_copy(y, from) == DS_OK ? y : NULL;
}

/* Another device or dtype; x itself if it has both. The gradient is cast and
 * copied back. */
ds_tensor *ds_to(ds_tensor *x, ds_device device, ds_dtype dtype)
{
    if (!dsi_live(x, "to")) return dsi_null_operand("to");
    dsi_device *to = dsi_device_get(device);
    if (!to) return NULL;
    if (to == x->device && x->dtype == dtype) return x;

    ds_tensor *y = to == x->device ? converted(x, dtype) : cast_moved(x, to, dtype);

    if (!y || !dsi_is_float(y)) return y;
    dsi_set_attr(dsi_record(&dsi_op_cast, y, x), &(From){dsi_device_id(x->device), x->dtype},
                 sizeof(From));
    return y;
}

/* ds_to on x's own device; x itself if it has the dtype. */
ds_tensor *ds_cast(ds_tensor *x, ds_dtype dtype)
{
    if (!dsi_live(x, "cast")) return dsi_null_operand("cast");
    if (x->dtype == dtype) return x;
    return ds_to(x, dsi_device_id(x->device), dtype);
}

/* ---- copies of the same values ----------------------------------------------------------------------- */

static void clone_backward(dsi_node *n, ds_tensor *dy) { dsi_accumulate_grad(n, 0, dsi_alias(dy)); }

const dsi_op dsi_op_clone = {.name = "clone", .backward = clone_backward};

/* y, new, = x */
static ds_tensor *copied(ds_tensor *y, ds_tensor *x)
{
    if (dsi_copy(y, x) != DS_OK) return NULL;
    dsi_record(&dsi_op_clone, y, x);
    return y;
}

/* New memory with x's order of dimensions (strides), with the gradient passed
 * on. */
ds_tensor *ds_clone(ds_tensor *x)
{
    if (!dsi_live(x, "clone")) return dsi_null_operand("clone");
    return copied(dsi_new_like(x), x);
}

/* Kernels that walk rows ask for it. A copy is row-major; its gradient is
 * dy. */
ds_tensor *ds_contiguous(ds_tensor *x)
{
    if (!dsi_live(x, "contiguous")) return dsi_null_operand("contiguous");
    if (dsi_is_contiguous(x)) return x;
    return copied(dsi_new(x, x->shape), x);
}
