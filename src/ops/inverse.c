/* ops/inverse.c: inverses of sine, cosine, tangent, their hyperbolic siblings,
 * erf and the sigmoid. Values are made of other ops; gradients are formulas of
 * x, since those of the parts do not exist everywhere.
 * SPDX-License-Identifier: MIT */
#include "base/option.h"
#include "op.h"

#include <deepspeed/ops_math.h>

#include <math.h>

static ds_tensor *number(ds_tensor *x, double value)
{
    return x ? dsi_number_beside(x, value) : NULL;
}

/* term + factor x^2 */
static ds_tensor *of_square(ds_tensor *x, double factor, double term)
{
    return ds_shift(ds_scale(ds_mul(x, x), factor), term);
}

/* ---- values of float32 or float64 x, and slopes ------------------------------------------------------- */

static ds_tensor *atan_value(ds_tensor *x) { return ds_atan2(x, number(x, 1)); }
static ds_tensor *atan_slope(ds_tensor *x) { return ds_reciprocal(of_square(x, 1, 1)); }

/* sqrt(1 - x^2), with the digits of 1 - x */
static ds_tensor *other_side(ds_tensor *x)
{
    return ds_sqrt(ds_mul(ds_shift(ds_neg(x), 1), ds_shift(x, 1)));
}

static ds_tensor *asin_value(ds_tensor *x) { return ds_atan2(x, other_side(x)); }
static ds_tensor *asin_slope(ds_tensor *x) { return ds_rsqrt(of_square(x, -1, 1)); }
static ds_tensor *acos_value(ds_tensor *x) { return ds_atan2(other_side(x), x); }
static ds_tensor *acos_slope(ds_tensor *x) { return ds_neg(asin_slope(x)); }

/* sign(x) log(|x| + sqrt(x^2 + 1)): log1p keeps the digits of small ones; large
 * ones, whose squares overflow, are log(2 |x|). */
static ds_tensor *asinh_value(ds_tensor *x)
{
    ds_tensor *a = ds_abs(x), *square = ds_mul(a, a);
    ds_tensor *more = ds_div(square, ds_shift(ds_sqrt(ds_shift(square, 1)), 1));
    ds_tensor *large = ds_shift(ds_log(a), log(2));
    ds_tensor *y = ds_where(ds_gt(a, number(a, 1e9)), large, ds_log1p(ds_add(a, more)));
    return ds_where(ds_lt(x, number(x, 0)), ds_neg(y), y);
}
static ds_tensor *asinh_slope(ds_tensor *x) { return ds_rsqrt(of_square(x, 1, 1)); }

/* log(x + sqrt(x^2 - 1)), of t = x - 1 */
static ds_tensor *acosh_value(ds_tensor *x)
{
    ds_tensor *t = ds_shift(x, -1), *large = ds_shift(ds_log(x), log(2));
    ds_tensor *root = ds_mul(ds_sqrt(t), ds_sqrt(ds_shift(t, 2))); /* NaN below 1 */
    return ds_where(ds_gt(x, number(x, 1e9)), large, ds_log1p(ds_add(t, root)));
}
static ds_tensor *acosh_slope(ds_tensor *x) { return ds_rsqrt(of_square(x, 1, -1)); }

/* log((1 + x) / (1 - x)) / 2, of |x| */
static ds_tensor *atanh_value(ds_tensor *x)
{
    ds_tensor *a = ds_abs(x);
    ds_tensor *y = ds_log1p(ds_div(ds_scale(a, 2), ds_shift(ds_neg(a), 1)));
    return ds_scale(ds_where(ds_lt(x, number(x, 0)), ds_neg(y), y), 0.5);
}
static ds_tensor *atanh_slope(ds_tensor *x) { return ds_reciprocal(of_square(x, -1, 1)); }

/* ((c[n-1] x + c[n-2]) x + ...) + c[0] */
static ds_tensor *polynomial(ds_tensor *x, int n, const double *c)
{
    ds_tensor *y = ds_shift(ds_scale(x, c[n - 1]), c[n - 2]);
    for (int i = n - 3; i >= 0; i--) y = ds_shift(ds_mul(y, x), c[i]);
    return y;
}

/* Rational functions of the centre and of the tails, as PyTorch's, and two
 * steps of Newton's method. */
static ds_tensor *erfinv_value(ds_tensor *x)
{
    static const double a[] = {0.886226899, -1.645349621, 0.914624893, -0.140543331},
                        b[] = {1, -2.118377725, 1.442710462, -0.329097515, 0.012229801},
                        c[] = {-1.970840454, -1.624906493, 3.429567803, 1.641345311},
                        d[] = {1, 3.543889200, 1.637067800};
    ds_tensor *size = ds_abs(x), *square = ds_mul(x, x);
    ds_tensor *centre = ds_div(ds_mul(x, polynomial(square, 4, a)), polynomial(square, 5, b));
    ds_tensor *far = ds_sqrt(ds_neg(ds_log(ds_scale(ds_shift(ds_neg(size), 1), 0.5))));
    far = ds_mul(ds_sign(x), ds_div(polynomial(far, 4, c), polynomial(far, 3, d)));
    ds_tensor *y = ds_where(ds_le(size, number(x, 0.7)), centre, far);
    for (int i = 0; i < 2; i++) {
        ds_tensor *slope = ds_scale(ds_exp(of_square(y, -1, 0)), 2 / sqrt(acos(-1)));
        y = ds_sub(y, ds_div(ds_sub(ds_erf(y), x), slope));
    }
    ds_tensor *one = number(x, 1), *endless = ds_mul(x, number(x, INFINITY));
    y = ds_where(ds_eq(size, one), endless, y);
    return ds_where(ds_gt(size, one), number(x, NAN), y);
}

static ds_tensor *erfinv_slope(ds_tensor *x)
{
    ds_tensor *y = erfinv_value(x);
    return ds_scale(ds_exp(ds_mul(y, y)), sqrt(acos(-1)) / 2);
}

/* ---- the ops ------------------------------------------------------------------------------------------ */

typedef ds_tensor *of_x(ds_tensor *x);

static ds_tensor *inverse(const dsi_op *op, ds_tensor *x, of_x *value)
{
    if (!dsi_live(x, op->name)) return dsi_null_operand(op->name);
    if (!dsi_is_float(x)) x = ds_cast(x, DS_F32);
    if (!x) return NULL;
    bool recording = ds_set_grad(false);
    ds_tensor *y = value(dsi_upcast(x));
    y = y ? ds_cast(y, x->dtype) : NULL;
    ds_set_grad(recording);
    dsi_save_for_backward(dsi_record(op, y, x), x);
    return y;
}

/* Saved: x. */
static void inverse_backward(dsi_node *n, ds_tensor *dy, of_x *slope)
{
    ds_tensor *g = ds_mul(dsi_upcast(dy), slope(dsi_upcast(dsi_saved_tensor(n, 0))));
    dsi_accumulate_grad(n, 0, g ? ds_cast(g, dy->dtype) : NULL);
}

static void no_autocast(ds_tensor **x) { (void)x; }
static void autocast_wide(ds_tensor **x) { dsi_autocast_wide(x); }

#define INVERSE(f, autocast) \
    static void f##_backward(dsi_node *n, ds_tensor *dy) { inverse_backward(n, dy, f##_slope); } \
    const dsi_op dsi_op_##f = {#f, f##_backward, .acquires = true}; \
    ds_tensor *ds_##f(ds_tensor *x) \
    { \
        autocast(&x); \
        return inverse(&dsi_op_##f, x, f##_value); \
    }
INVERSE(atan, no_autocast)
INVERSE(asin, autocast_wide)
INVERSE(acos, autocast_wide)
INVERSE(asinh, no_autocast)
INVERSE(acosh, no_autocast)
INVERSE(atanh, no_autocast)
INVERSE(erfinv, autocast_wide)

/* Saved: x. dx = dy / (x (1 - x)), outside of the bounds 0, without them NaN. */
static void logit_backward(dsi_node *n, ds_tensor *dy)
{
    double eps = *(const double *)dsi_attr(n), low = eps > 0 ? eps : 0;
    ds_tensor *x = dsi_upcast(dsi_saved_tensor(n, 0));
    ds_tensor *g = ds_div(dsi_upcast(dy), ds_sub(x, ds_mul(x, x)));
    ds_tensor *out = ds_logical_or(ds_lt(x, number(x, low)), ds_gt(x, number(x, 1 - low)));
    g = ds_where(out, number(x, eps > 0 ? 0 : NAN), g);
    dsi_accumulate_grad(n, 0, g ? ds_cast(g, dy->dtype) : NULL);
}

const dsi_op dsi_op_logit = {"logit", logit_backward, .acquires = true};

ds_tensor *ds_logit(ds_tensor *x, double eps)
{
    if (!dsi_live(x, "logit")) return dsi_null_operand("logit");
    if (!(eps >= 0 && eps <= 0.5)) return dsi_refuse("logit: eps is %g: expected 0 to 0.5", eps);
    if (!dsi_is_float(x)) x = ds_cast(x, DS_F32);
    bool recording = ds_set_grad(false);
    ds_tensor *z = dsi_upcast(eps > 0 ? ds_clamp(x, eps, 1 - eps) : x);
    ds_tensor *y = ds_sub(ds_log(z), ds_log1p(ds_neg(z)));
    y = y ? ds_cast(y, x->dtype) : NULL;
    ds_set_grad(recording);
    dsi_node *n = dsi_record(&dsi_op_logit, y, x);
    dsi_save_for_backward(n, x), dsi_set_attr(n, &eps, sizeof eps);
    return y;
}
