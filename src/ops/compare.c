/* ops/compare.c: comparisons and logic, element by element, with broadcasting:
 * results are bool and have no gradient; and numbers where a mask is true.
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include <float.h>
#include <math.h>

/* Any dtypes, in the one that they promote to, because labels are compared too.
 * Not recorded: the gradient of a comparison is 0. */
static ds_tensor *compare(const char *op, dsi_compare_op how, ds_tensor *a, ds_tensor *b)
{
    ds_dims shape;
    if (!dsi_live_all(op, a, b)) return dsi_null_operand(op);
    if (!dsi_promote(op, &a, &b, dsi_promoted(a, b))) return NULL;
    if (!dsi_broadcast(op, a->shape, b->shape, &shape) || !dsi_acquire(a, b)) return NULL;

    ds_tensor *y = dsi_new_dtype(a, DS_BOOL, shape);

    return dsi_result_if(
        dsi_run_op(y, compare, how, dsi_v_expand(a, shape), dsi_v_expand(b, shape), dsi_v(y)), y);
}

ds_tensor *ds_eq(ds_tensor *a, ds_tensor *b) { return compare("eq", DSI_EQ, a, b); }
ds_tensor *ds_ne(ds_tensor *a, ds_tensor *b) { return compare("ne", DSI_NE, a, b); }
ds_tensor *ds_lt(ds_tensor *a, ds_tensor *b) { return compare("lt", DSI_LT, a, b); }
ds_tensor *ds_le(ds_tensor *a, ds_tensor *b) { return compare("le", DSI_LE, a, b); }
/* Two orders are enough for kernels: a > b is b < a. A comparison with NaN is
 * false either way, except ne. */
ds_tensor *ds_gt(ds_tensor *a, ds_tensor *b) { return compare("gt", DSI_LT, b, a); }
ds_tensor *ds_ge(ds_tensor *a, ds_tensor *b) { return compare("ge", DSI_LE, b, a); }

/* ---- logic: a number counts as true if it is not 0 ---------------------------------------------------- */

/* Both operands as bool; false with the message. */
static bool logical_operands(const char *op, ds_tensor **a, ds_tensor **b)
{
    ds_dims shape;
    if (!dsi_live_all(op, *a, *b)) return dsi_null_operand(op);
    return dsi_promote(op, a, b, DS_BOOL) && dsi_broadcast(op, (*a)->shape, (*b)->shape, &shape);
}

/* Both are bool by then, so a selects: of true it is b, of false a itself. */
ds_tensor *ds_logical_and(ds_tensor *a, ds_tensor *b)
{
    return logical_operands("logical_and", &a, &b) ? ds_where(a, b, a) : NULL;
}

ds_tensor *ds_logical_or(ds_tensor *a, ds_tensor *b)
{
    return logical_operands("logical_or", &a, &b) ? ds_where(a, a, b) : NULL;
}

ds_tensor *ds_logical_xor(ds_tensor *a, ds_tensor *b)
{
    return logical_operands("logical_xor", &a, &b) ? compare("logical_xor", DSI_NE, a, b) : NULL;
}

ds_tensor *ds_logical_not(ds_tensor *x)
{
    if (!dsi_live(x, "logical_not")) return dsi_null_operand("logical_not");
    ds_tensor *truth = ds_cast(x, DS_BOOL);
    return compare("logical_not", DSI_EQ, truth, dsi_number_beside(truth, 0));
}

/* ---- where a mask is true --------------------------------------------------------------------------- */

/* Whether a tensor of that dtype can hold the number, which is then rounded or,
 * for integers, truncated; uint8 wraps around below 0, as in PyTorch. */
static bool number_fits(ds_dtype dtype, double x)
{
    static const double limits[][2] = {
        [DS_F32] = {-(double)FLT_MAX, (double)FLT_MAX},
        [DS_F64] = {-DBL_MAX, DBL_MAX},
        [DS_F16] = {-65504, 65504},
        [DS_BF16] = {-0x1.fep127, 0x1.fep127},
        [DS_I64] = {-0x1p63, 0x1.fffffffffffffp62},
        [DS_I32] = {INT32_MIN, INT32_MAX},
        [DS_I16] = {INT16_MIN, INT16_MAX},
        [DS_I8] = {INT8_MIN, INT8_MAX},
        [DS_U8] = {-UINT8_MAX, UINT8_MAX + 0.999},
        [DS_BOOL] = {-DBL_MAX, DBL_MAX},
    };
    if (!isfinite(x)) return dtype <= DS_BF16 || dtype == DS_BOOL;
    return x >= limits[dtype][0] && x <= limits[dtype][1];
}

/* value where the mask is true, x elsewhere; of x's dtype */
ds_tensor *ds_masked_fill(ds_tensor *x, ds_tensor *mask, double value)
{
    if (!dsi_live_all("masked_fill", x, mask)) return dsi_null_operand("masked_fill");
    if (mask->dtype != DS_BOOL)
        return dsi_refuse("masked_fill: the mask is %s %s: expected bool",
                          ds_dtype_name(mask->dtype), dsi_shape_text(mask->shape));
    if (!number_fits(x->dtype, value))
        return dsi_refuse("masked_fill: x is %s, the value %g: expected one that it can hold%s",
                          ds_dtype_name(x->dtype), value,
                          dsi_is_float(x) ? ", such as -INFINITY" : "");
    ds_dims shape;
    if (!dsi_broadcast("masked_fill", mask->shape, x->shape, &shape)) return NULL;
    return ds_where(mask, dsi_number_beside(x, value), x);
}
