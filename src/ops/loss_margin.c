/* ops/loss_margin.c: losses of distances and margins, and of distributions with
 * parameters.
 *
 *     hinge_embedding        y = 1: x; y = -1: max(0, margin - x)
 *     margin_ranking         max(0, margin - y (x1 - x2))
 *     cosine_embedding       y = 1: 1 - cos; y = -1: max(0, cos - margin)
 *     soft_margin            log(1 + e^(-y x))
 *     multi_margin           sum over j != label of max(0, margin - x[label] + x[j])^p / C
 *     multilabel_margin      sum over labels l, others j of max(0, 1 - x[l] + x[j]) / C
 *     multilabel_soft_margin mean over classes of log(1 + e^-x) + (1 - y) x
 *     triplet_margin         max(0, margin + |a - p| - |a - n|)
 *     gaussian_nll           (log v + (x - t)^2 / v) / 2
 *     poisson_nll            e^x - t x
 * Made of other ops. 16-bit operands are computed in float32, and the result is
 * rounded once.
 * SPDX-License-Identifier: MIT */
#include "base/option.h"
#include "loss.h"

#include <math.h>

/* ---- pairs that are alike, or not --------------------------------------------------------------------- */

/* *y of 1 and -1 in x's dtype, where it may be of integers. */
static bool signs(const char *op, const ds_tensor *x, ds_tensor **y)
{
    if (!dsi_live(*y, op)) return dsi_null_operand(op), false;
    if (x && !dsi_is_float(*y)) *y = ds_cast(*y, x->dtype);
    return *y;
}

/* yes where y is not -1, plus no where y is not 1 */
static ds_tensor *by_sign(ds_tensor *y, ds_tensor *yes, ds_tensor *no)
{
    if (!y || !yes || !no) return NULL;
    ds_tensor *zero = dsi_number_beside(yes, 0);
    return ds_add(ds_where(ds_ne(y, dsi_number_beside(y, -1)), yes, zero),
                  ds_where(ds_ne(y, dsi_number_beside(y, 1)), no, zero));
}

ds_tensor *ds_hinge_embedding_loss(ds_tensor *x, ds_tensor *y, double margin,
                                   ds_reduction reduction)
{
    dsi_autocast_wide(&x, &y);
    const char *op = "hinge_embedding_loss";
    ds_dtype dtype = x ? x->dtype : DS_F32;
    if (!signs(op, x, &y) || !dsi_loss_operands(op, &x, &y, true, reduction)) return NULL;
    ds_tensor *no = ds_relu(ds_shift(ds_neg(x), dsi_option(margin, 1)));
    return dsi_loss_reduced(by_sign(y, x, no), reduction, dtype);
}

ds_tensor *ds_margin_ranking_loss(ds_tensor *x1, ds_tensor *x2, ds_tensor *y, double margin,
                                  ds_reduction reduction)
{
    dsi_autocast_wide(&x1, &x2, &y);
    const char *op = "margin_ranking_loss";
    ds_dtype dtype = x1 ? x1->dtype : DS_F32;
    if (!signs(op, x1, &y) || !dsi_loss_check(op, x1, y, true, reduction) ||
        !dsi_loss_operands(op, &x1, &x2, true, reduction) || !(y = dsi_upcast(y)))
        return NULL;
    ds_tensor *loss = ds_mul(ds_neg(y), ds_sub(x1, x2));
    return dsi_loss_reduced(ds_relu(ds_shift(loss, dsi_option(margin, 0))), reduction, dtype);
}

/* The sum of a b along dimension 1 of [N,D], or of [D] */
static ds_tensor *dot(ds_tensor *a, ds_tensor *b) { return dsi_vecdot(a, b, -1); }

/* PyTorch adds 1e-12 to each square, where ds_cosine_similarity has a least
 * length. */
ds_tensor *ds_cosine_embedding_loss(ds_tensor *x1, ds_tensor *x2, ds_tensor *y, double margin,
                                    ds_reduction reduction)
{
    dsi_autocast_wide(&x1, &x2, &y);
    const char *op = "cosine_embedding_loss";
    ds_dtype dtype = x1 ? x1->dtype : DS_F32;
    if (!signs(op, x1, &y) || !dsi_loss_operands(op, &x1, &x2, false, reduction) ||
        !(y = dsi_upcast(y)) || !dsi_same_kind(op, x1, y))
        return NULL;
    if (x1->shape.n < 1 || x1->shape.n > 2 || y->shape.n != x1->shape.n - 1 ||
        (y->shape.n && y->shape.d[0] != x1->shape.d[0]))
        return dsi_refuse("%s: x1 is %s, y %s: expected [N,D] and [N], or [D] and []", op,
                          dsi_shape_text(x1->shape), dsi_shape_text(y->shape));
    ds_tensor *lengths = ds_mul(ds_shift(dot(x1, x1), 1e-12), ds_shift(dot(x2, x2), 1e-12));
    ds_tensor *angle = ds_div(dot(x1, x2), ds_sqrt(lengths));
    ds_tensor *yes = ds_shift(ds_neg(angle), 1);
    ds_tensor *no = ds_relu(ds_shift(angle, -dsi_option(margin, 0)));
    return dsi_loss_reduced(by_sign(y, yes, no), reduction, dtype);
}

ds_tensor *ds_soft_margin_loss(ds_tensor *x, ds_tensor *y, ds_reduction reduction)
{
    dsi_autocast_wide(&x, &y);
    const char *op = "soft_margin_loss";
    ds_dtype dtype = x ? x->dtype : DS_F32;
    if (!signs(op, x, &y) || !dsi_loss_operands(op, &x, &y, false, reduction)) return NULL;
    return dsi_loss_reduced(ds_neg(ds_logsigmoid(ds_mul(y, x))), reduction, dtype);
}

ds_tensor *ds_pairwise_distance(ds_tensor *x1, ds_tensor *x2, double p, double eps, bool keepdim)
{
    dsi_autocast_wide(&x1, &x2);
    const char *op = "pairwise_distance";
    ds_dtype dtype = x1 ? x1->dtype : DS_F32;
    if (!dsi_loss_operands(op, &x1, &x2, true, DS_NONE)) return NULL;
    if (!x1->shape.n && !x2->shape.n)
        return dsi_refuse("%s: x1 and x2 are []: expected [...,D]", op);
    ds_tensor *d = ds_shift(ds_sub(x1, x2), dsi_option(eps, 1e-6));
    ds_norm_opts o = {.p = p, .dims = ds_shape(-1), .keepdim = keepdim};
    return ds_cast(ds_norm_with(d, o), dtype);
}

ds_tensor *ds_triplet_margin_loss(ds_tensor *anchor, ds_tensor *positive, ds_tensor *negative,
                                  ds_triplet_margin_loss_opts o)
{
    dsi_autocast_wide(&anchor, &positive, &negative);
    const char *op = "triplet_margin_loss";
    ds_dtype dtype = anchor ? anchor->dtype : DS_F32;
    double margin = dsi_option(o.margin, 1);
    if (!dsi_loss_check(op, anchor, negative, true, o.reduction) ||
        !dsi_loss_operands(op, &anchor, &positive, true, o.reduction) ||
        !(negative = dsi_upcast(negative)))
        return NULL;
    if (!(margin > 0)) return dsi_refuse("%s: margin is %g: expected above 0", op, margin);
    ds_tensor *near = ds_pairwise_distance(anchor, positive, o.p, o.eps, false);
    ds_tensor *far = ds_pairwise_distance(anchor, negative, o.p, o.eps, false);
    if (o.swap && far)
        far = ds_minimum(far, ds_pairwise_distance(positive, negative, o.p, o.eps, false));
    return dsi_loss_reduced(ds_relu(ds_shift(ds_sub(near, far), margin)), o.reduction, dtype);
}

/* ---- classes ------------------------------------------------------------------------------------------ */

/* x [N,C] or [C] as [N,C], labels as [N], or [N,C] if `all`: a row has as many
 * as classes. False, with the message. */
static bool rows_of_classes(const char *op, ds_tensor **x, ds_tensor **labels, bool all,
                            ds_reduction reduction)
{
    if (!dsi_live_all(op, *x, *labels)) return dsi_null_operand(op), false;
    if (!dsi_want_float(op, *x) || !dsi_want_int64(op, "labels", *x, *labels)) return false;
    ds_dims s = (*x)->shape, l = (*labels)->shape;
    bool one = s.n == 1, fits = (one || s.n == 2) && l.n == (all ? s.n : s.n - 1);
    for (int i = 0; fits && i < l.n; i++) fits = l.d[i] == s.d[i];
    if (!fits || !s.d[s.n - 1])
        return dsi_invalid("%s: x is %s, labels are %s: expected [N,C] and [N%s], or [C] and [%s]",
                           op, dsi_shape_text(s), dsi_shape_text(l), all ? ",C" : "",
                           all ? "C" : "");
    if ((unsigned)reduction > DS_NONE)
        return dsi_invalid("%s: there is no reduction number %d", op, (int)reduction);
    if (one) *x = ds_unsqueeze(*x, 0), *labels = ds_unsqueeze(*labels, 0);
    *x = dsi_upcast(*x);
    return *x && *labels;
}

/* The losses [N] of rows, or [] where x was one row. */
static ds_tensor *of_rows(ds_tensor *losses, bool one, ds_reduction reduction, ds_dtype dtype)
{
    if (losses && one) losses = ds_squeeze(losses, 0);
    return dsi_loss_reduced(losses, reduction, dtype);
}

ds_tensor *ds_multi_margin_loss(ds_tensor *x, ds_tensor *labels, ds_multi_margin_loss_opts o)
{
    dsi_autocast_wide(&x, &o.weight);
    const char *op = "multi_margin_loss";
    ds_dtype dtype = x ? x->dtype : DS_F32;
    bool one = x && x->shape.n == 1;
    if (!rows_of_classes(op, &x, &labels, false, o.reduction) || !dsi_loss_weight(op, &o.weight))
        return NULL;
    int64_t classes = x->shape.d[1];
    int p = o.p ? o.p : 1;
    if (p != 1 && p != 2) return dsi_refuse("%s: p is %d: expected 1 or 2", op, p);
    if (o.weight && (o.weight->shape.n != 1 || o.weight->shape.d[0] != classes))
        return dsi_refuse("%s: weight is %s: expected [%lld]", op, dsi_shape_text(o.weight->shape),
                          (long long)classes);
    ds_tensor *at = ds_unsqueeze(labels, 1), *right = ds_gather(x, 1, at);
    ds_tensor *loss = ds_relu(ds_shift(ds_sub(x, right), dsi_option(o.margin, 1)));
    if (p == 2) loss = ds_mul(loss, loss);
    loss = ds_masked_fill(loss, ds_cast(ds_one_hot(labels, classes), DS_BOOL), 0);
    if (o.weight) loss = ds_mul(loss, ds_unsqueeze(ds_index_select(o.weight, 0, labels), 1));
    return of_rows(ds_mean_with(loss, (ds_reduce_opts){.dims = ds_shape(1)}), one, o.reduction,
                   dtype);
}

/* Of each row only the labels before its first -1 count. */
ds_tensor *ds_multilabel_margin_loss(ds_tensor *x, ds_tensor *labels, ds_reduction reduction)
{
    dsi_autocast_wide(&x);
    const char *op = "multilabel_margin_loss";
    ds_dtype dtype = x ? x->dtype : DS_F32;
    bool one = x && x->shape.n == 1;
    if (!rows_of_classes(op, &x, &labels, true, reduction)) return NULL;
    int64_t rows = x->shape.d[0], classes = x->shape.d[1];
    ds_tensor *zero = dsi_number_beside(labels, 0);
    ds_tensor *counts = ds_cumprod(ds_ge(labels, zero), 1); /* int64: 1 before the first -1 */
    ds_tensor *at = ds_mul(labels, counts);
    if (!at) return NULL;
    ds_tensor *ones = ds_cast(counts, x->dtype), *is = dsi_fill(dsi_new(x, x->shape), 0);
    is = ds_scatter_add(is, 1, at,
                        ones); /* [N,C]: above 0 for labels; a label twice counts twice */
    ds_tensor *pair = ds_sub(ds_unsqueeze(x, 1), ds_unsqueeze(ds_gather(x, 1, at), 2));
    pair = ds_relu(ds_shift(pair, 1)); /* [N,label,class] */
    pair = ds_mul(pair, ds_unsqueeze(ones, 2));
    pair = is ? ds_masked_fill(pair, ds_unsqueeze(ds_gt(is, dsi_number_beside(is, 0)), 1), 0)
              : NULL;
    ds_tensor *loss = ds_sum_with(ds_reshape(pair, ds_shape(rows, classes * classes)),
                                  (ds_reduce_opts){.dims = ds_shape(1)});
    return of_rows(ds_scale(loss, 1 / (double)classes), one, reduction, dtype);
}

ds_tensor *ds_multilabel_soft_margin_loss(ds_tensor *x, ds_tensor *y, ds_tensor *weight,
                                          ds_reduction reduction)
{
    dsi_autocast_wide(&x, &y, &weight);
    const char *op = "multilabel_soft_margin_loss";
    ds_dtype dtype = x ? x->dtype : DS_F32;
    ds_dims shape;
    if (!signs(op, x, &y) || !dsi_loss_operands(op, &x, &y, false, reduction)) return NULL;
    if (weight &&
        (!dsi_broadcast(op, x->shape, weight->shape, &shape) || !dsi_loss_weight(op, &weight)))
        return NULL;
    if (!x->shape.n) return dsi_refuse("%s: x is []: expected [...,C]", op);
    ds_tensor *loss = ds_sub(ds_sub(x, ds_mul(y, x)), ds_logsigmoid(x));
    if (weight) loss = ds_mul(loss, weight);
    loss = ds_mean_with(loss, (ds_reduce_opts){.dims = ds_shape(-1)});
    return dsi_loss_reduced(loss, reduction, dtype);
}

/* ---- distributions ------------------------------------------------------------------------------------ */

/* max(var, eps), whose gradient is var's own everywhere, as in PyTorch */
static ds_tensor *variance_at_least(ds_tensor *var, double eps)
{
    ds_tensor *more = ds_detach(ds_sub(ds_clamp(var, eps, INFINITY), var));
    return ds_add(var, more);
}

ds_tensor *ds_gaussian_nll_loss(ds_tensor *x, ds_tensor *target, ds_tensor *var,
                                ds_gaussian_nll_loss_opts o)
{
    const char *op = "gaussian_nll_loss";
    ds_dtype dtype = x ? x->dtype : DS_F32;
    double eps = dsi_option(o.eps, 1e-6);
    if (!dsi_live_all(op, x, target, var)) return dsi_null_operand(op);
    if (var->shape.n == x->shape.n - 1) var = ds_unsqueeze(var, -1); /* one for a row */
    if (!dsi_loss_check(op, x, var, true, o.reduction) ||
        !dsi_loss_operands(op, &x, &target, true, o.reduction) || !(var = dsi_upcast(var)))
        return NULL;
    if (!(eps > 0)) return dsi_refuse("%s: eps is %g: expected above 0", op, eps);
    ds_tensor *below = ds_sum(ds_lt(var, dsi_number_beside(var, 0)));
    if (!below) return NULL;
    if (ds_item(below) > 0)
        return dsi_refuse("%s: an element of var is below 0: expected variances", op);
    ds_tensor *v = variance_at_least(var, eps), *d = ds_sub(x, target);
    ds_tensor *loss = ds_scale(ds_add(ds_log(v), ds_div(ds_mul(d, d), v)), 0.5);
    if (o.full) loss = ds_shift(loss, 0.91893853320467274178); /* log(2 pi) / 2 */
    return dsi_loss_reduced(loss, o.reduction, dtype);
}

/* Stirling's log t!: t log t - t + log(2 pi t) / 2, and 0 for t <= 1 */
static ds_tensor *stirling(ds_tensor *t)
{
    ds_tensor *one = t ? dsi_number_beside(t, 1) : NULL;
    ds_tensor *large = ds_gt(t, one), *u = ds_where(large, t, one);
    ds_tensor *y = ds_sub(ds_mul(u, ds_log(u)), u);
    y = ds_add(y, ds_scale(ds_log(ds_scale(u, 6.28318530717958647693)), 0.5));
    return y ? ds_where(large, y, dsi_number_beside(y, 0)) : NULL;
}

ds_tensor *ds_poisson_nll_loss(ds_tensor *x, ds_tensor *target, ds_poisson_nll_loss_opts o)
{
    dsi_autocast_wide(&x, &target);
    const char *op = "poisson_nll_loss";
    ds_dtype dtype = x ? x->dtype : DS_F32;
    if (!dsi_loss_operands(op, &x, &target, true, o.reduction)) return NULL;
    ds_tensor *loss = o.no_log_input
                          ? ds_sub(x, ds_mul(target, ds_log(ds_shift(x, dsi_option(o.eps, 1e-8)))))
                          : ds_sub(ds_exp(x), ds_mul(target, x));
    if (o.full) loss = ds_add(loss, stirling(target));
    return dsi_loss_reduced(loss, o.reduction, dtype);
}
