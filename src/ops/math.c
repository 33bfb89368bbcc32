/* ops/math.c: functions of single elements that are made of other ops, and
 * tests of values. 16-bit operands are computed in float32, and the result is
 * rounded once.
 * SPDX-License-Identifier: MIT */
#include "base/option.h"
#include "op.h"

#include <deepspeed/ops_math.h>

#include <float.h>
#include <math.h>

/* ---- one operand ------------------------------------------------------------------------------------- */

/* *x, which autocast makes float32, in float32, of float64 itself; NULL with
 * the message. */
static ds_tensor *operand(const char *op, ds_tensor **x)
{
    dsi_autocast_wide(x);
    if (!dsi_live(*x, op)) return dsi_null_operand(op);
    return dsi_is_float(*x) ? dsi_upcast(*x) : ds_cast(*x, DS_F32);
}

/* y in x's dtype; of integers it stays float32. */
static ds_tensor *result(ds_tensor *y, const ds_tensor *x)
{
    return dsi_is_float(x) ? ds_cast(y, x->dtype) : y;
}

ds_tensor *dsi_integer_beside(const char *op, ds_tensor *x, double number)
{
    if (!(fabs(number) < 0x1p63 && number == trunc(number)))
        return dsi_refuse("%s: x is %s, the number %g: expected an integer (or ds_cast it)", op,
                          ds_dtype_name(x->dtype), number);
    return dsi_fill(dsi_new_dtype(x, DS_I64, (ds_dims){0}), number);
}

ds_tensor *ds_square(ds_tensor *x)
{
    if (!dsi_live(x, "square")) return dsi_null_operand("square");
    if (x->dtype == DS_BOOL) return dsi_refuse("square: x is bool: expected numbers");
    return ds_mul(x, x);
}

ds_tensor *ds_reciprocal(ds_tensor *x)
{
    dsi_autocast_wide(&x);
    if (!dsi_live(x, "reciprocal")) return dsi_null_operand("reciprocal");
    return ds_div(dsi_number_beside(x, 1), x);
}

ds_tensor *ds_tan(ds_tensor *x)
{
    ds_tensor *wide = operand("tan", &x);
    return wide ? result(ds_div(ds_sin(wide), ds_cos(wide)), x) : NULL;
}

/* e^x - 1 keeps the digits near 0. */
ds_tensor *ds_sinh(ds_tensor *x)
{
    ds_tensor *wide = operand("sinh", &x);
    if (!wide) return NULL;
    ds_tensor *twice = ds_sub(ds_expm1(wide), ds_expm1(ds_neg(wide)));
    return result(ds_scale(twice, 0.5), x);
}

ds_tensor *ds_cosh(ds_tensor *x)
{
    ds_tensor *wide = operand("cosh", &x);
    if (!wide) return NULL;
    ds_tensor *twice = ds_add(ds_exp(wide), ds_exp(ds_neg(wide)));
    return result(ds_scale(twice, 0.5), x);
}

static ds_tensor *logarithm(const char *op, ds_tensor *x, double factor)
{
    ds_tensor *wide = operand(op, &x);
    return wide ? result(ds_scale(ds_log(wide), factor), x) : NULL;
}

ds_tensor *ds_log2(ds_tensor *x) { return logarithm("log2", x, 1 / log(2)); }
ds_tensor *ds_log10(ds_tensor *x) { return logarithm("log10", x, 1 / log(10)); }

ds_tensor *ds_trunc(ds_tensor *x)
{
    if (!dsi_live(x, "trunc")) return dsi_null_operand("trunc");
    if (!dsi_is_float(x)) return ds_clone(x);
    return ds_where(ds_lt(x, dsi_number_beside(x, 0)), ds_ceil(x), ds_floor(x));
}

/* The largest number of a floating dtype. */
static double largest(ds_dtype dtype)
{
    return dtype == DS_F64    ? DBL_MAX
           : dtype == DS_F16  ? 65504
           : dtype == DS_BF16 ? 0x1.fep127
                              : (double)FLT_MAX;
}

ds_tensor *ds_nan_to_num_with(ds_tensor *x, ds_nan_to_num_opts o)
{
    if (!dsi_live(x, "nan_to_num")) return dsi_null_operand("nan_to_num");
    if (!dsi_is_float(x)) return ds_clone(x);
    double high = dsi_option(o.posinf, largest(x->dtype));
    double low = dsi_option(o.neginf, -largest(x->dtype));
    ds_tensor *y = ds_masked_fill(x, ds_isnan(x), dsi_option(o.nan, 0));
    y = ds_masked_fill(y, ds_eq(x, dsi_number_beside(x, INFINITY)), high);
    return ds_masked_fill(y, ds_eq(x, dsi_number_beside(x, -INFINITY)), low);
}

/* ---- several operands -------------------------------------------------------------------------------- */

static bool alike(const char *op, ds_tensor *a, ds_tensor *b)
{
    ds_dims shape;
    return dsi_want_float(op, a) && dsi_same_kind(op, a, b) &&
           dsi_broadcast(op, a->shape, b->shape, &shape);
}

/* As torch, from the nearer end: a at 0 and b at 1 to the bit. */
ds_tensor *ds_lerp(ds_tensor *a, ds_tensor *b, double weight)
{
    if (!dsi_live_all("lerp", a, b)) return dsi_null_operand("lerp");
    if (!alike("lerp", a, b)) return NULL;
    ds_tensor *begin = dsi_upcast(a), *end = dsi_upcast(b), *way = ds_sub(end, begin);
    ds_tensor *y = fabs(weight) < 0.5 ? ds_add_scaled(begin, way, weight)
                                      : ds_add_scaled(end, way, weight - 1);
    return ds_cast(y, a->dtype);
}

/* x + value op(a, b) */
static ds_tensor *add_pair(const char *name, ds_tensor *x, ds_tensor *op(ds_tensor *, ds_tensor *),
                           ds_tensor *a, ds_tensor *b, double value)
{
    if (!dsi_live_all(name, x, a, b)) return dsi_null_operand(name);
    ds_dtype dtype = dsi_promoted3(x, a, b), wide = dtype;
    if (dtype == DS_F16 || dtype == DS_BF16) wide = DS_F32;
    if (op == ds_div && dtype > DS_BF16)
        return dsi_refuse("%s: operands are %s: expected a floating-point one", name,
                          ds_dtype_name(dtype));
    ds_tensor *y = op(ds_cast(a, wide), ds_cast(b, wide));
    return ds_cast(ds_add_scaled(ds_cast(x, wide), y, value), dtype);
}

ds_tensor *ds_addcmul(ds_tensor *x, ds_tensor *a, ds_tensor *b, double value)
{
    return add_pair("addcmul", x, ds_mul, a, b, value);
}

ds_tensor *ds_addcdiv(ds_tensor *x, ds_tensor *a, ds_tensor *b, double value)
{
    return add_pair("addcdiv", x, ds_div, a, b, value);
}

/* The larger one and ln(1 + e^-|a - b|); equal infinite ones as they are. */
ds_tensor *ds_logaddexp(ds_tensor *a, ds_tensor *b)
{
    if (!dsi_live_all("logaddexp", a, b)) return dsi_null_operand("logaddexp");
    if (!alike("logaddexp", a, b)) return NULL;
    ds_tensor *x = dsi_upcast(a), *y = dsi_upcast(b);
    ds_tensor *larger = ds_maximum(x, y), *distance = ds_abs(ds_sub(x, y));
    ds_tensor *sum = ds_add(larger, ds_log1p(ds_exp(ds_neg(distance))));
    ds_tensor *kept = ds_logical_and(ds_eq(x, y), ds_isinf(x));
    return ds_cast(ds_where(kept, larger, sum), a->dtype);
}

/* ---- tests of values ----------------------------------------------------------------------------------- */

ds_tensor *ds_isnan(ds_tensor *x)
{
    return dsi_live(x, "isnan") ? ds_ne(x, x) : dsi_null_operand("isnan");
}

/* No integer is different from itself. */
ds_tensor *ds_isinf(ds_tensor *x)
{
    if (!dsi_live(x, "isinf")) return dsi_null_operand("isinf");
    return dsi_is_float(x) ? ds_eq(ds_abs(x), dsi_number_beside(x, INFINITY)) : ds_ne(x, x);
}

ds_tensor *ds_isfinite(ds_tensor *x)
{
    if (!dsi_live(x, "isfinite")) return dsi_null_operand("isfinite");
    return dsi_is_float(x) ? ds_lt(ds_abs(x), dsi_number_beside(x, INFINITY)) : ds_eq(x, x);
}

/* How many elements differ from 0, or are 0; NULL with op's message. */
static ds_tensor *counted(const char *op, ds_tensor *x, bool zeros, ds_reduce_opts o)
{
    if (!dsi_live(x, op)) return dsi_null_operand(op);
    ds_tensor *zero = dsi_number_beside(x, 0);
    return dsi_sum_as(op, zeros ? ds_eq(x, zero) : ds_ne(x, zero), o);
}

ds_tensor *ds_count_nonzero_with(ds_tensor *x, ds_reduce_opts o)
{
    return counted("count_nonzero", x, false, o);
}

ds_tensor *ds_any_with(ds_tensor *x, ds_reduce_opts o)
{
    ds_tensor *n = counted("any", x, false, o);
    return n ? ds_cast(n, DS_BOOL) : NULL;
}

ds_tensor *ds_all_with(ds_tensor *x, ds_reduce_opts o)
{
    ds_tensor *n = counted("all", x, true, o);
    return n ? ds_logical_not(n) : NULL;
}

ds_tensor *ds_count_nonzero(ds_tensor *x) { return ds_count_nonzero_with(x, (ds_reduce_opts){0}); }
ds_tensor *ds_any(ds_tensor *x) { return ds_any_with(x, (ds_reduce_opts){0}); }
ds_tensor *ds_all(ds_tensor *x) { return ds_all_with(x, (ds_reduce_opts){0}); }

/* Infinite ones are close to themselves alone. 16 bits are compared as they
 * are, the difference in float32; integers in float64. */
ds_tensor *ds_isclose(ds_tensor *a, ds_tensor *b, ds_close_opts o)
{
    ds_dims shape;
    if (!dsi_live_all("isclose", a, b)) return dsi_null_operand("isclose");
    if (a->dtype != b->dtype)
        return dsi_refuse("isclose: a is %s, b %s: expected one dtype", ds_dtype_name(a->dtype),
                          ds_dtype_name(b->dtype));
    if (!dsi_broadcast("isclose", a->shape, b->shape, &shape)) return NULL;
    double rtol = dsi_option(o.rtol, 1e-5), atol = dsi_option(o.atol, 1e-8);
    if (!(rtol >= 0 && atol >= 0))
        return dsi_refuse("isclose: rtol is %g, atol %g: expected 0 or more", rtol, atol);
    ds_tensor *x = dsi_is_float(a) ? dsi_upcast(a) : ds_cast(a, DS_F64);
    ds_tensor *y = dsi_is_float(b) ? dsi_upcast(b) : ds_cast(b, DS_F64);
    ds_tensor *distance = ds_abs(ds_sub(x, y));
    ds_tensor *near = ds_le(distance, ds_shift(ds_scale(ds_abs(y), rtol), atol));
    ds_tensor *close = ds_logical_or(ds_eq(a, b), ds_logical_and(ds_isfinite(y), near));
    if (!o.equal_nan) return close;
    return ds_logical_or(close, ds_logical_and(ds_isnan(a), ds_isnan(b)));
}

/* The only element of x, which is released. */
static bool is_true(ds_scope *s, ds_tensor *x)
{
    bool yes = x && ds_item(x) == 1;
    ds_scope_close(s);
    return yes;
}

bool ds_allclose(ds_tensor *a, ds_tensor *b, ds_close_opts o)
{
    if (!dsi_live_all("allclose", a, b)) return dsi_null_operand("allclose"), false;
    ds_scope *s = ds_scope_open();
    return is_true(s, ds_all(ds_isclose(a, b, o)));
}

bool ds_equal(ds_tensor *a, ds_tensor *b)
{
    if (!dsi_live_all("equal", a, b)) return dsi_null_operand("equal"), false;
    if (!dsi_same_shape(a->shape, b->shape)) return false;
    ds_scope *s = ds_scope_open();
    return is_true(s, ds_all(ds_eq(a, b)));
}
