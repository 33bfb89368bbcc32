/* ops/op.c: checks and views that all op families use.
 *
 * A check returns false, or -1, with the message; it never changes its
 * operands. Views here describe memory to a kernel and hold no count: they are
 * valid as long as their tensor.
 * SPDX-License-Identifier: MIT */
#include "op.h"

/* b is NULL, or has the dtype and the device of a; else false with the
 * message. Two floating dtypes are a common mistake of mixed precision, so
 * that message says how to convert. */
bool dsi_same_kind(const char *op, const ds_tensor *a, const ds_tensor *b)
{
    if (!a || !b || (a->dtype == b->dtype && a->device == b->device)) return true;
    if (a->device != b->device) return dsi_same_device(op, a, b);
    if (dsi_is_float(a) && dsi_is_float(b))
        return dsi_refuse(
            "%s: operands are %s %s and %s %s: expected the same dtype (ds_cast the input, "
            "ds_transform_cast the data set, or set fp16.auto_cast)",
            op, ds_dtype_name(a->dtype), dsi_shape_text(a->shape), ds_dtype_name(b->dtype),
            dsi_shape_text(b->shape));
    return dsi_refuse("%s: operands are %s %s and %s %s: expected the same dtype (ds_cast one)", op,
                      ds_dtype_name(a->dtype), dsi_shape_text(a->shape), ds_dtype_name(b->dtype),
                      dsi_shape_text(b->shape));
}

/* x NULL is false without another message: the call that made x has written
 * one. */
bool dsi_want_float(const char *op, const ds_tensor *x)
{
    if (!x || dsi_is_float(x)) return x != NULL;
    return dsi_invalid("%s: x is %s %s: expected a floating-point dtype (ds_cast it)", op,
                       ds_dtype_name(x->dtype), dsi_shape_text(x->shape));
}

bool dsi_want_int64(const char *op, const char *what, const ds_tensor *x, const ds_tensor *index)
{
    if (!dsi_same_device(op, x, index)) return false;
    if (index->dtype == DS_I64) return true;
    return dsi_refuse("%s: %s are %s: expected int64 (ds_cast them)", op, what,
                      ds_dtype_name(index->dtype));
}

/* dim -1 is the last one, as in PyTorch; a scalar has dimensions -1 and 0. */
int dsi_want_dim(const char *op, const ds_tensor *x, int dim)
{
    int n = x->shape.n ? x->shape.n : 1, i = dsi_dim(dim, n);
    if (i < 0)
        dsi_refuse("%s: dimension %d of x %s: expected %d to %d", op, dim, dsi_shape_text(x->shape),
                   -n, n - 1);
    return i;
}

/* *out: the common shape by PyTorch's rules, from the last dimension on. A
 * size of 1 becomes the other's, also if that is 0; a missing dimension is
 * 1. */
bool dsi_broadcast(const char *op, ds_dims a, ds_dims b, ds_dims *out)
{
    out->n = a.n > b.n ? a.n : b.n;
    for (int i = 1; i <= out->n; i++) {
        int64_t da = i <= a.n ? a.d[a.n - i] : 1, db = i <= b.n ? b.d[b.n - i] : 1;
        if (da != db && da != 1 && db != 1)
            return dsi_invalid(
                "%s: shapes %s and %s do not broadcast: %lld beside %lld in dimension %d", op,
                dsi_shape_text(a), dsi_shape_text(b), (long long)da, (long long)db, out->n - i);
        out->d[out->n - i] = da == 1 ? db : da;
    }
    return true;
}

/* The gradient of a broadcast: g summed over the dimensions in which `shape`
 * is 1 or absent. The kernel sees y with as many dimensions as g, so missing
 * ones are reduced like those of size 1. An equal shape gives a second handle
 * on g's memory. */
ds_tensor *dsi_sum_to(ds_tensor *g, ds_dims shape)
{
    if (!g) return NULL;
    if (dsi_same_shape(g->shape, shape)) return dsi_alias(g);
    if (!dsi_acquire(g)) return NULL;
    ds_dims ones = {.n = g->shape.n}; /* shape with as many dimensions as g */
    for (int i = 1; i <= ones.n; i++) ones.d[ones.n - i] = i <= shape.n ? shape.d[shape.n - i] : 1;
    ds_tensor *y = dsi_new(g, shape);
    return y && dsi_run_op(y, reduce, DSI_SUM, 1.0, dsi_v(g), dsi_v_shape(y, ones), dsi_v(NULL))
               ? y
               : NULL;
}

/* Without dimensions on a side, its size is 1; so a kernel along any dimension
 * is written once, for three. */
#define LONG_ROW 1024 /* elements, beside which those between rows do not count */

ds_tensor *dsi_new_rows(const ds_tensor *like, ds_dims shape)
{
    int64_t unit = 16 / (int64_t)ds_dtype_size(like->dtype), columns = shape.d[1],
            step = (columns + unit - 1) / unit * unit, strides[] = {step, 1};
    if (like->device->type->kind == DS_CPU || columns < LONG_ROW || step == columns)
        return dsi_new(like, shape);
    ds_tensor *memory = dsi_new(like, ds_shape(shape.d[0], step));
    return memory ? dsi_view_of(memory, shape, strides, 0) : NULL;
}

dsi_view dsi_v_around(const ds_tensor *x, int dim)
{
    ds_dims d = {3, {1, 1, 1}};
    for (int i = 0; i < x->shape.n; i++) d.d[i < dim ? 0 : i == dim ? 1 : 2] *= x->shape.d[i];
    return dsi_v_shape(x, d);
}

/* Whether dimensions from .. to - 1 of x can be walked with one stride, which
 * is set then. No dimensions, or only ones of size 1, are one with stride 0. */
bool dsi_merged(const ds_tensor *x, int from, int to, int64_t *stride)
{
    int64_t size = 1;
    *stride = 0;
    for (int i = to - 1; i >= from; i--) {
        if (x->shape.d[i] == 1) continue;
        if (size == 1)
            *stride = x->stride[i];
        else if (x->stride[i] != *stride * size)
            return false;
        size *= x->shape.d[i];
    }
    return true;
}

/* [...,M,N] as [B,M,N]; dsi_merged must hold for the leading dimensions. */
dsi_view dsi_v_matrices(const ds_tensor *x)
{
    dsi_view v = dsi_v(x);
    int lead = x->shape.n - 2;
    int64_t batch = 1;
    for (int i = 0; i < lead; i++) batch *= x->shape.d[i];
    dsi_merged(x, 0, lead, &v.s[0]);
    v.n = 3;
    v.d[0] = batch;
    for (int i = 0; i < 2; i++) {
        v.d[1 + i] = x->shape.d[lead + i];
        v.s[1 + i] = x->stride[lead + i];
    }
    return v;
}
