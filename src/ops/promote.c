/* ops/promote.c: the dtype of a result of operands of several dtypes
 * (torch.result_type).
 *
 * Among tensors with dimensions, and among those without, the wider dtype of
 * the higher kind wins: bool, integers, floats. A tensor without dimensions
 * decides only if its kind is higher. uint8 beside int8 is int16; float16
 * beside bfloat16 is float32.
 * SPDX-License-Identifier: MIT */
#include "op.h"

static bool dtype_is_float(ds_dtype d) { return d <= DS_BF16; }

/* 0: bool, 1: integer, 2: float */
static int dtype_kind(ds_dtype d) { return dtype_is_float(d) ? 2 : d != DS_BOOL; }

/* Of two tensors with dimensions. The wider dtype wins within a kind; equal
 * widths are the two pairs below. */
static ds_dtype promoted_pair(ds_dtype a, ds_dtype b)
{
    if (a == b) return a;
    if (dtype_kind(a) != dtype_kind(b)) return dtype_kind(a) > dtype_kind(b) ? a : b;
    size_t wide_a = ds_dtype_size(a), wide_b = ds_dtype_size(b);
    if (wide_a != wide_b) return wide_a > wide_b ? a : b;
    return dtype_is_float(a) ? DS_F32 : DS_I16; /* both of 16 bits; uint8 and int8 */
}

ds_dtype dsi_promoted3(const ds_tensor *a, const ds_tensor *b, const ds_tensor *c)
{
    const ds_tensor *all[] = {a, b, c};
    bool is[2] = {false, false}; /* of tensors with dimensions, and without */
    ds_dtype dtype[2];
    for (int i = 0; i < 3; i++) {
        int at = !all[i]->shape.n;
        dtype[at] = is[at] ? promoted_pair(dtype[at], all[i]->dtype) : all[i]->dtype;
        is[at] = true;
    }
    if (!is[0] || !is[1]) return dtype[is[1]];
    return dtype[dtype_kind(dtype[0]) < dtype_kind(dtype[1])];
}

ds_dtype dsi_promoted(const ds_tensor *a, const ds_tensor *b) { return dsi_promoted3(a, b, a); }

/* A number of the host is moved to the other operand's device. */
static ds_tensor *promote_number(ds_tensor *x, const ds_tensor *other)
{
    bool moves = !x->shape.n && x->device != other->device && x->device->type->kind == DS_CPU;
    return moves ? dsi_beside(x, other, x->dtype) : x;
}

bool dsi_promote(const char *op, ds_tensor **a, ds_tensor **b, ds_dtype dtype)
{
    *a = promote_number(*a, *b);
    if (*a) *b = promote_number(*b, *a);
    if (!*a || !*b || !dsi_same_device(op, *a, *b)) return false;
    *a = ds_cast(*a, dtype);
    *b = *a ? ds_cast(*b, dtype) : NULL;
    dsi_handle_call(op); /* not ds_cast makes the result */
    return *b;
}
