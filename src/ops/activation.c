/* ops/activation.c: activations that are made of other ops, and vectors of a
 * given length.
 *
 *     glu         a sigmoid(b), a and b the halves of x
 *     softsign    x / (1 + |x|)
 *     tanhshrink  x - tanh x
 *     hardshrink  x where |x| > lambda, else 0
 *     softshrink  x - min(max(x, -lambda), lambda)
 *     threshold   x where x > threshold, else value
 *     normalize   x / max(|x|, eps)
 * 16-bit operands are computed in float32, and the result is rounded once.
 * SPDX-License-Identifier: MIT */
#include "base/option.h"
#include "op.h"

#include <math.h>

/* ---- activations ------------------------------------------------------------------------------------- */

/* x of floats, in float32 for 16 bits; NULL with the message. */
static ds_tensor *operand(const char *op, ds_tensor *x)
{
    if (!dsi_live(x, op)) return dsi_null_operand(op);
    return dsi_want_float(op, x) ? dsi_upcast(x) : NULL;
}

ds_tensor *ds_glu(ds_tensor *x, int dim)
{
    ds_tensor *wide = operand("glu", x), *half[2];
    if (!wide || (dim = dsi_want_dim("glu", x, dim)) < 0) return NULL;
    if (!x->shape.n || x->shape.d[dim] % 2)
        return dsi_refuse("glu: x is %s: expected an even size of dimension %d, whose halves are "
                          "multiplied",
                          dsi_shape_text(x->shape), dim);
    int64_t n = x->shape.d[dim] / 2;
    for (int i = 0; i < 2; i++) half[i] = ds_slice(wide, dim, i * n, (i + 1) * n);
    return ds_cast(ds_mul(half[0], ds_sigmoid(half[1])), x->dtype);
}

ds_tensor *ds_softmin(ds_tensor *x, int dim)
{
    dsi_autocast_wide(&x);
    ds_tensor *wide = operand("softmin", x);
    if (!wide || (dim = dsi_want_dim("softmin", x, dim)) < 0) return NULL;
    return ds_cast(ds_softmax(ds_neg(wide), dim), x->dtype);
}

ds_tensor *ds_softsign(ds_tensor *x)
{
    ds_tensor *wide = operand("softsign", x);
    return wide ? ds_cast(ds_div(wide, ds_shift(ds_abs(wide), 1)), x->dtype) : NULL;
}

ds_tensor *ds_tanhshrink(ds_tensor *x)
{
    ds_tensor *wide = operand("tanhshrink", x);
    return wide ? ds_cast(ds_sub(wide, ds_tanh(wide)), x->dtype) : NULL;
}

/* bool: where x is between -lambda and lambda */
static ds_tensor *near_zero(ds_tensor *x, double lambda)
{
    return ds_logical_and(ds_ge(x, dsi_number_beside(x, -lambda)),
                          ds_le(x, dsi_number_beside(x, lambda)));
}

ds_tensor *ds_hardshrink(ds_tensor *x, double lambda)
{
    if (!operand("hardshrink", x)) return NULL;
    return ds_masked_fill(x, near_zero(x, dsi_option(lambda, 0.5)), 0);
}

ds_tensor *ds_softshrink(ds_tensor *x, double lambda)
{
    ds_tensor *wide = operand("softshrink", x);
    lambda = dsi_option(lambda, 0.5);
    if (!wide) return NULL;
    if (!(lambda >= 0)) return dsi_refuse("softshrink: lambda is %g: expected 0 or more", lambda);
    ds_tensor *nearer = ds_sub(wide, ds_clamp(wide, -lambda, lambda));
    return ds_cast(ds_masked_fill(nearer, near_zero(wide, lambda), 0), x->dtype);
}

ds_tensor *ds_threshold(ds_tensor *x, double threshold, double value)
{
    if (!operand("threshold", x)) return NULL;
    return ds_masked_fill(x, ds_le(x, dsi_number_beside(x, threshold)), value);
}

/* Klambauer et al., arXiv:1706.02515: dropped elements become selu's lower
 * limit -1.0507 1.6733, and the result's mean and variance stay. `keep` is 1,
 * or 1 / (1 - p) after ds_dropout, and 0. */
static ds_tensor *alpha_dropout(ds_tensor *x, ds_tensor *keep, double p)
{
    double low = -1.7580993408473766, q = 1 - p, scale = 1 / sqrt(q * (1 + p * low * low));
    if (!keep) return NULL;
    ds_tensor *kept = ds_scale(keep, q); /* 0 and 1 */
    ds_tensor *y = ds_add(ds_mul(dsi_upcast(x), kept), ds_scale(ds_shift(kept, -1), -low));
    return ds_cast(ds_shift(ds_scale(y, scale), -scale * low * p), x->dtype);
}

/* The shape of the draws: x's, or [N,C,1,...]. */
static ds_tensor *alpha_dropout_of(const char *op, ds_tensor *x, double p, bool training,
                                   bool channels)
{
    ds_tensor *wide = operand(op, x);
    if (!wide) return NULL;
    if (!(p >= 0 && p <= 1)) return dsi_refuse("%s: p is %g: expected 0 to 1", op, p);
    if (channels && x->shape.n < 2)
        return dsi_refuse("%s: x is %s: expected [N,C,...]", op, dsi_shape_text(x->shape));
    if (!training || p == 0) return x;
    if (p == 1) return ds_scale(x, 0);
    ds_dims shape = x->shape;
    for (int i = 2; channels && i < shape.n; i++) shape.d[i] = 1;
    ds_tensor *ones = dsi_fill(dsi_new(wide, shape), 1);
    return ones ? alpha_dropout(x, ds_dropout(ones, p, true), p) : NULL;
}

ds_tensor *ds_alpha_dropout(ds_tensor *x, double p, bool training)
{
    return alpha_dropout_of("alpha_dropout", x, p, training, false);
}

ds_tensor *ds_feature_alpha_dropout(ds_tensor *x, double p, bool training)
{
    return alpha_dropout_of("feature_alpha_dropout", x, p, training, true);
}

/* ---- lengths ----------------------------------------------------------------------------------------- */

ds_tensor *ds_normalize(ds_tensor *x, double p, int dim, double eps)
{
    dsi_autocast_wide(&x);
    ds_tensor *wide = operand("normalize", x);
    if (!wide || (dim = dsi_want_dim("normalize", x, dim)) < 0) return NULL;
    ds_norm_opts o = {.p = p, .dims = ds_shape(dim), .keepdim = true};
    ds_tensor *length = ds_clamp(ds_norm_with(wide, o), dsi_option(eps, 1e-12), INFINITY);
    return ds_cast(ds_div(wide, length), x->dtype);
}

/* (k + alpha mean of x^2 over `size` channels around each)^-beta x; the mean
 * counts the zeros beyond the first and the last channel. */
ds_tensor *ds_local_response_norm_with(ds_tensor *x, ds_local_response_norm_opts o)
{
    dsi_autocast_wide(&x);
    const char *op = "local_response_norm";
    ds_tensor *wide = operand(op, x);
    if (!wide) return NULL;
    if (x->shape.n < 3 || o.size < 1)
        return dsi_refuse("%s: x is %s, the size %d: expected [N,C,...] and at least 1", op,
                          dsi_shape_text(x->shape), o.size);
    int64_t n = x->shape.d[0], c = x->shape.d[1];
    if (!dsi_numel(x->shape)) return x;
    ds_tensor *rows = ds_reshape(ds_mul(wide, wide), ds_shape(n, 1, c, -1));
    rows = ds_pad(rows, ds_shape(0, 0, o.size / 2, (o.size - 1) / 2));
    ds_tensor *mean = ds_avg_pool2d(rows, o.size, .kernel_w = 1, .stride = 1);
    if (!mean) return NULL;
    mean = ds_shift(ds_scale(ds_reshape(mean, x->shape), dsi_option(o.alpha, 1e-4)),
                    dsi_option(o.k, 1));
    return ds_cast(ds_mul(wide, ds_pow(mean, -dsi_option(o.beta, 0.75))), x->dtype);
}
