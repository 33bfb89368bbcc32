/* ops/loss_composed.c: losses of pairs of elements, and of probabilities.
 *
 *     l1_loss       |x - y|
 *     smooth_l1     d = |x - y|: d < beta ? d^2 / (2 beta) : d - beta / 2
 *     huber         d = |x - y|: d < delta ? d^2 / 2 : delta (d - delta / 2)
 *     kl_div        t (log t - x), 0 for t = 0; e^t (t - x) if t is a logarithm
 *     bce           -w (t log x + (1 - t) log(1 - x)), logarithms cut at -100
 *     with logits   w ((1 - t) x + (1 + (p - 1) t) log(1 + e^-x))
 *     nll_loss      -w[label] x[label]
 * Made of other ops, except bce's gradient, and nll_loss where a device has a
 * kernel. 16-bit operands are computed in float32, and the result is rounded
 * once.
 * SPDX-License-Identifier: MIT */
#include "base/option.h"
#include "loss.h"

#include <math.h>

ds_tensor *dsi_loss_reduced(ds_tensor *losses, ds_reduction how, ds_dtype dtype)
{
    ds_tensor *y = how == DS_NONE ? losses : how == DS_SUM ? ds_sum(losses) : ds_mean(losses);
    return y ? ds_cast(y, dtype) : NULL;
}

bool dsi_loss_check(const char *op, ds_tensor *x, ds_tensor *y, bool broadcast,
                    ds_reduction reduction)
{
    if (!dsi_live_all(op, x, y)) return dsi_null_operand(op), false;
    if (!dsi_want_float(op, x) || !dsi_same_kind(op, x, y)) return false;
    if (!broadcast && !dsi_same_shape(x->shape, y->shape))
        return dsi_invalid("%s: x is %s, the target %s: expected the same", op,
                           dsi_shape_text(x->shape), dsi_shape_text(y->shape));
    ds_dims shape;
    if (!dsi_broadcast(op, x->shape, y->shape, &shape)) return false;
    if ((unsigned)reduction > DS_NONE)
        return dsi_invalid("%s: there is no reduction number %d", op, (int)reduction);
    return true;
}

bool dsi_loss_operands(const char *op, ds_tensor **x, ds_tensor **y, bool broadcast,
                       ds_reduction reduction)
{
    if (!dsi_loss_check(op, *x, *y, broadcast, reduction)) return false;
    *x = dsi_upcast(*x), *y = dsi_upcast(*y);
    return *x && *y;
}

/* ---- distances --------------------------------------------------------------------------------------- */

/* x and y broadcast, as in torch; the gradient at x = y is 0, that of
 * ds_abs. */
ds_tensor *ds_l1_loss_with(ds_tensor *x, ds_tensor *y, ds_reduction reduction)
{
    dsi_autocast_wide(&x, &y);
    ds_dtype dtype = x ? x->dtype : DS_F32;
    if (!dsi_loss_check("l1_loss", x, y, true, reduction)) return NULL;
    return dsi_loss_reduced(ds_abs(dsi_difference(x, y)), reduction, dtype);
}

ds_tensor *ds_l1_loss(ds_tensor *x, ds_tensor *y) { return ds_l1_loss_with(x, y, DS_MEAN); }

/* huber with edge beta, over beta after the sum; beta 0 is the limit, l1_loss. */
ds_tensor *ds_smooth_l1_loss(ds_tensor *x, ds_tensor *y, double beta, ds_reduction reduction)
{
    dsi_autocast_wide(&x, &y);
    ds_dtype dtype = x ? x->dtype : DS_F32;
    beta = dsi_option(beta, 1);
    if (!dsi_loss_check("smooth_l1_loss", x, y, true, reduction)) return NULL;
    if (!(beta >= 0)) return dsi_refuse("smooth_l1_loss: beta is %g: expected 0 or more", beta);
    ds_tensor *d = dsi_difference(x, y);
    if (!d || beta == 0) return dsi_loss_reduced(ds_abs(d), reduction, dtype);
    ds_tensor *loss = dsi_loss_reduced(dsi_huber(d, beta), reduction, d->dtype);
    return loss ? ds_cast(ds_scale(loss, 1 / beta), dtype) : NULL;
}

ds_tensor *ds_huber_loss(ds_tensor *x, ds_tensor *y, double delta, ds_reduction reduction)
{
    dsi_autocast_wide(&x, &y);
    ds_dtype dtype = x ? x->dtype : DS_F32;
    delta = dsi_option(delta, 1);
    if (!dsi_loss_check("huber_loss", x, y, true, reduction)) return NULL;
    if (!(delta > 0)) return dsi_refuse("huber_loss: delta is %g: expected more than 0", delta);
    return dsi_loss_reduced(dsi_huber(dsi_difference(x, y), delta), reduction, dtype);
}

/* ---- probabilities ----------------------------------------------------------------------------------- */

/* t log t, 0 for t = 0 */
static ds_tensor *entropy(ds_tensor *t)
{
    ds_tensor *zero = t ? dsi_number_beside(t, 0) : NULL;
    return ds_where(ds_eq(t, zero), zero, ds_mul(t, ds_log(t)));
}

ds_tensor *ds_kl_div(ds_tensor *x, ds_tensor *target, ds_kl_div_opts o)
{
    dsi_autocast_wide(&x, &target);
    ds_dtype dtype = x ? x->dtype : DS_F32;
    if (!dsi_loss_operands("kl_div", &x, &target, true, o.reduction)) return NULL;
    if (o.batchmean && !x->shape.n)
        return dsi_refuse("kl_div: x is []: expected rows for the mean over a batch");
    ds_tensor *loss = o.log_target ? ds_mul(ds_exp(target), ds_sub(target, x))
                                   : ds_sub(entropy(target), ds_mul(target, x));
    if (!o.batchmean) return dsi_loss_reduced(loss, o.reduction, dtype);
    return dsi_loss_reduced(ds_scale(ds_sum(loss), 1 / (double)x->shape.d[0]), DS_NONE, dtype);
}

/* log x, at least -100 */
static ds_tensor *cut_log(ds_tensor *x) { return ds_clamp(ds_log(x), -100, INFINITY); }

/* Saved: x, target. dx = (x - t) / max(x (1 - x), 1e-12) dy, dt = (log(1 - x) -
 * log x) dy, as in PyTorch. */
static void binary_cross_entropy_backward(dsi_node *n, ds_tensor *dy)
{
    ds_tensor *x = dsi_saved_tensor(n, 0), *t = dsi_saved_tensor(n, 1);
    ds_tensor *other = ds_shift(ds_neg(x), 1);
    if (dsi_needs_input_grad(n, 0)) {
        ds_tensor *slope = ds_div(ds_sub(x, t), ds_clamp(ds_mul(x, other), 1e-12, INFINITY));
        dsi_accumulate_grad(n, 0, ds_mul(dy, slope));
    }
    if (dsi_needs_input_grad(n, 1))
        dsi_accumulate_grad(n, 1, ds_mul(dy, ds_sub(ds_log(other), ds_log(x))));
}

const dsi_op dsi_op_binary_cross_entropy = {"binary_cross_entropy", binary_cross_entropy_backward,
                                            .acquires = true};

/* -(t log x + (1 - t) log(1 - x)) */
static ds_tensor *binary_entropy(ds_tensor *x, ds_tensor *t)
{
    bool recording = ds_set_grad(false);
    ds_tensor *other = cut_log(ds_shift(ds_neg(x), 1));
    ds_tensor *y = ds_sub(ds_mul(ds_shift(t, -1), other), ds_mul(t, cut_log(x)));
    ds_set_grad(recording);
    dsi_node *n = dsi_record(&dsi_op_binary_cross_entropy, y, x, t);
    dsi_save_for_backward(n, x), dsi_save_for_backward(n, t);
    return y;
}

bool dsi_loss_weight(const char *op, ds_tensor **weight)
{
    if (!*weight) return true;
    if (!dsi_wants_grad(weight, 1)) return (*weight = dsi_upcast(*weight));
    return dsi_invalid("%s: a weight has no gradient here: ds_detach it", op);
}

/* The same of a weight that broadcasts to x. */
static bool loss_weight_beside(const char *op, const ds_tensor *x, ds_tensor **weight)
{
    ds_dims shape;
    return !*weight ||
           (dsi_broadcast(op, x->shape, (*weight)->shape, &shape) && dsi_loss_weight(op, weight));
}

/* False, with the message, if an element of x is not in 0 to 1. */
static bool between_0_and_1(const char *op, const char *what, ds_tensor *x)
{
    ds_tensor *inside = ds_logical_and(ds_ge(x, dsi_number_beside(x, 0)),
                                       ds_le(x, dsi_number_beside(x, 1)));
    ds_tensor *count = inside ? ds_sum(inside) : NULL;
    if (!count) return false;
    if (ds_item(count) == (double)dsi_numel(x->shape)) return true;
    return dsi_invalid("%s: an element of %s is not between 0 and 1: expected probabilities "
                       "(ds_sigmoid makes them of logits)",
                       op, what);
}

ds_tensor *ds_binary_cross_entropy_with(ds_tensor *x, ds_tensor *target,
                                        ds_binary_cross_entropy_opts o)
{
    const char *op = "binary_cross_entropy";
    ds_dtype dtype = x ? x->dtype : DS_F32;
    if (!dsi_loss_operands(op, &x, &target, false, o.reduction)) return NULL;
    if (o.pos_weight)
        return dsi_refuse("%s: takes no pos_weight: ds_binary_cross_entropy_with_logits does", op);
    if (!loss_weight_beside(op, x, &o.weight) || !between_0_and_1(op, "x", x) ||
        !between_0_and_1(op, "the target", target))
        return NULL;
    ds_tensor *loss = binary_entropy(x, target);
    return dsi_loss_reduced(o.weight ? ds_mul(loss, o.weight) : loss, o.reduction, dtype);
}

ds_tensor *ds_binary_cross_entropy(ds_tensor *x, ds_tensor *target)
{
    return ds_binary_cross_entropy_with(x, target, (ds_binary_cross_entropy_opts){0});
}

ds_tensor *ds_binary_cross_entropy_with_logits(ds_tensor *x, ds_tensor *target,
                                               ds_binary_cross_entropy_opts o)
{
    dsi_autocast_wide(&x, &target, &o.weight, &o.pos_weight);
    const char *op = "binary_cross_entropy_with_logits";
    ds_dtype dtype = x ? x->dtype : DS_F32;
    if (!dsi_loss_operands(op, &x, &target, false, o.reduction)) return NULL;
    if (!loss_weight_beside(op, x, &o.weight) || !loss_weight_beside(op, x, &o.pos_weight))
        return NULL;
    ds_tensor *tail = ds_neg(ds_logsigmoid(x)); /* log(1 + e^-x) */
    if (o.pos_weight) tail = ds_mul(tail, ds_shift(ds_mul(target, ds_shift(o.pos_weight, -1)), 1));
    ds_tensor *loss = ds_add(ds_sub(x, ds_mul(target, x)), tail);
    return dsi_loss_reduced(o.weight ? ds_mul(loss, o.weight) : loss, o.reduction, dtype);
}

/* ---- classes ----------------------------------------------------------------------------------------- */

/* x [N,C,...] or [C], label [N,...] or []; weight [C] */
static bool nll_check(const ds_tensor *x, const ds_tensor *label, ds_cross_entropy_opts o)
{
    const char *op = "nll_loss";
    int classes = x->shape.n > 1 ? 1 : 0;
    bool fits = x->shape.n >= 1 && label->shape.n == x->shape.n - 1;
    for (int i = 0; fits && i < label->shape.n; i++)
        fits = label->shape.d[i] == x->shape.d[i < classes ? i : i + 1];
    if (!dsi_want_float(op, x) || !dsi_same_device(op, x, label) || !dsi_same_kind(op, x, o.weight))
        return false;
    if (!fits || label->dtype != DS_I64)
        return dsi_refuse("%s: x is %s, labels are %s %s: expected [N,C,...] and int64 [N,...]", op,
                          dsi_shape_text(x->shape), ds_dtype_name(label->dtype),
                          dsi_shape_text(label->shape));
    if (o.weight && (o.weight->shape.n != 1 || o.weight->shape.d[0] != x->shape.d[classes]))
        return dsi_refuse("%s: weight is %s, x %s: expected [%lld]", op,
                          dsi_shape_text(o.weight->shape), dsi_shape_text(x->shape),
                          (long long)x->shape.d[classes]);
    if (o.label_smoothing != 0)
        return dsi_refuse("%s: takes no label_smoothing: ds_cross_entropy does", op);
    if ((unsigned)o.reduction > DS_NONE)
        return dsi_refuse("%s: there is no reduction number %d", op, (int)o.reduction);
    return true;
}

typedef struct Nll {
    dsi_cross_entropy how;
    ds_dims x; /* shape */
} Nll;

/* The loss, or its gradient, as the kernels see it: [], or [N,I]. */
static dsi_view nll_view(const ds_tensor *loss, const Nll *l, ds_dims labels)
{
    return l->how.reduction == DS_NONE ? dsi_v_shape(loss, labels) : dsi_v(loss);
}

/* [N,I], what x [N,C,I] has beside its classes. */
static ds_dims nll_labels(const dsi_view *x) { return ds_shape(x->d[0], x->d[2]); }

/* Saved: label, weight, divisor. */
static void nll_loss_backward(dsi_node *n, ds_tensor *dy)
{
    const Nll *l = dsi_attr(n);
    ds_tensor *label = dsi_saved_tensor(n, 0), *weight = dsi_saved_tensor(n, 1),
              *divisor = dsi_saved_tensor(n, 2), *dx = dsi_new(dy, l->x), *g = ds_contiguous(dy);
    bool done = false;
    if (dx && g) {
        dsi_view v = dsi_v_around(dx, l->x.n > 1);
        done = dsi_run_fusion(dx, nll_loss_dx, &l->how, nll_view(g, l, nll_labels(&v)),
                              dsi_v_shape(label, nll_labels(&v)), dsi_v(weight), dsi_v(divisor), v);
    }
    dsi_accumulate_grad(n, 0, dsi_result_if(done, dx));
}

const dsi_op dsi_op_nll_loss = {.name = "nll_loss", .backward = nll_loss_backward};

/* By the fusion; x and label have been checked. */
static ds_tensor *nll_loss_fused(ds_tensor *x, ds_tensor *label, ds_cross_entropy_opts o)
{
    Nll l = {{.ignore_index = o.ignore ? o.ignore_index : -100, .reduction = (int)o.reduction},
             x->shape};
    x = ds_contiguous(x), label = ds_contiguous(label);
    if (!x || !label || !dsi_acquire(x, label, o.weight)) return NULL;
    dsi_view v = dsi_v_around(x, x->shape.n > 1);
    ds_tensor *loss = dsi_new(x, o.reduction == DS_NONE ? label->shape : (ds_dims){0});
    ds_tensor *divisor = dsi_new_upcast(x, (ds_dims){0});
    if (!loss || !divisor) return NULL;
    if (!dsi_run_named(loss, "nll_loss", fusions, nll_loss, &l.how, v,
                       dsi_v_shape(label, nll_labels(&v)), dsi_v(o.weight),
                       nll_view(loss, &l, nll_labels(&v)), dsi_v(divisor)) ||
        dsi_device_check_early(loss->device) != DS_OK)
        return dsi_fail_in("nll_loss", ds_error_status()), NULL;
    dsi_node *n = dsi_record(&dsi_op_nll_loss, loss, x);
    dsi_save_for_backward(n, label), dsi_save_for_backward(n, o.weight),
        dsi_save_for_backward(n, divisor), dsi_set_attr(n, &l, sizeof l);
    return loss;
}

ds_tensor *ds_nll_loss_with(ds_tensor *x, ds_tensor *label, ds_cross_entropy_opts o)
{
    dsi_autocast_wide(&x, &o.weight);
    if (!dsi_live_all("nll_loss", x, label)) return dsi_null_operand("nll_loss");
    label = dsi_wide_labels(label);
    if (!label || !nll_check(x, label, o) || !dsi_loss_weight("nll_loss", &o.weight)) return NULL;
    if (dsi_fusion(x->device, nll_loss)) return nll_loss_fused(x, label, o);
    ds_dtype dtype = x->dtype;
    int dim = x->shape.n > 1 ? 1 : 0;
    ds_tensor *ignored = ds_eq(
        label, dsi_number_beside(label, (double)(o.ignore ? o.ignore_index : -100)));
    ds_tensor *at = ds_where(ignored, dsi_number_beside(label, 0), label);
    ds_tensor *picked = at ? ds_gather(dsi_upcast(x), dim, ds_unsqueeze(at, dim)) : NULL;
    if (!picked) return dsi_fail_in("nll_loss", ds_error_status()), NULL;
    ds_tensor *weight = o.weight ? ds_index_select(o.weight, 0, ds_reshape(at, ds_shape(-1)))
                                 : NULL;
    weight = o.weight ? (weight ? ds_reshape(weight, at->shape) : NULL)
                      : ds_like(ds_squeeze(picked, dim), 1);
    weight = weight ? ds_where(ignored, dsi_number_beside(weight, 0), weight) : NULL;
    /* where, because the value that an ignored label would take may be infinite */
    ds_tensor *value = ds_squeeze(picked, dim);
    value = value ? ds_where(ignored, dsi_number_beside(value, 0), value) : NULL;
    ds_tensor *loss = ds_neg(ds_mul(value, weight));
    if (o.reduction == DS_MEAN) loss = ds_div(ds_sum(loss), ds_sum(weight));
    return dsi_loss_reduced(loss, o.reduction == DS_MEAN ? DS_NONE : o.reduction, dtype);
}

ds_tensor *ds_nll_loss(ds_tensor *x, ds_tensor *label)
{
    return ds_nll_loss_with(x, label, (ds_cross_entropy_opts){0});
}

/* Probabilities as the target: with e = label smoothing, t' = (1 - e) t + e /
 * C, -sum over c of w[c] t'[c] log softmax(x)[c]; the mean is over N and
 * further
 * dimensions. */
ds_tensor *dsi_cross_entropy_soft(ds_tensor *x, ds_tensor *target, ds_cross_entropy_opts o)
{
    const char *op = "cross_entropy";
    ds_dtype dtype = x->dtype;
    int dim = x->shape.n > 1 ? 1 : 0;
    if (!dsi_loss_operands(op, &x, &target, false, o.reduction)) return NULL;
    if (!x->shape.n) return dsi_refuse("%s: logits are []: expected classes", op);
    if (o.ignore && o.ignore_index >= 0)
        return dsi_refuse("%s: ignore_index is %lld beside probabilities: expected labels", op,
                          (long long)o.ignore_index);
    int64_t classes = x->shape.d[dim];
    if (o.weight && (o.weight->shape.n != 1 || o.weight->shape.d[0] != classes))
        return dsi_refuse("%s: weight is %s, logits %s: expected [%lld]", op,
                          dsi_shape_text(o.weight->shape), dsi_shape_text(x->shape),
                          (long long)classes);
    if (!dsi_loss_weight(op, &o.weight)) return NULL;
    double e = o.label_smoothing;
    if (e != 0) target = ds_shift(ds_scale(target, 1 - e), e / (double)classes);
    ds_tensor *log_p = ds_log_softmax(x, dim);
    if (o.weight) {
        ds_dims shape = {.n = x->shape.n};
        for (int i = 0; i < shape.n; i++) shape.d[i] = i == dim ? classes : 1;
        log_p = ds_mul(log_p, ds_reshape(o.weight, shape));
    }
    ds_tensor *loss = ds_neg(
        ds_sum_with(ds_mul(log_p, target), (ds_reduce_opts){.dims = ds_shape(dim)}));
    return dsi_loss_reduced(loss, o.reduction, dtype);
}

/* ---- angles ------------------------------------------------------------------------------------------ */

/* max(|x|, least); the gradient is that of |x| also where least takes its
 * place, as in
 * PyTorch. */
static ds_tensor *length_at_least(ds_tensor *x, ds_tensor *least, ds_dims over)
{
    ds_tensor *norm = ds_norm_with(x, (ds_norm_opts){.dims = over});
    return ds_add(norm, ds_detach(ds_relu(ds_sub(least, norm)))); /* 0, mostly; of inf too */
}

/* The sum of x1 x2 by both lengths, which are at least eps; x1 is divided by
 * its own before, so that the products do not overflow. */
ds_tensor *ds_cosine_similarity(ds_tensor *x1, ds_tensor *x2, int dim, double eps)
{
    dsi_autocast_wide(&x1, &x2);
    const char *op = "cosine_similarity";
    ds_dims shape;
    if (!dsi_live_all(op, x1, x2)) return dsi_null_operand(op);
    if (!dsi_want_float(op, x1) || !dsi_same_kind(op, x1, x2) ||
        !dsi_broadcast(op, x1->shape, x2->shape, &shape))
        return NULL;
    ds_dtype dtype = x1->dtype;
    x1 = ds_expand(dsi_upcast(x1), shape), x2 = ds_expand(dsi_upcast(x2), shape);
    if (!x1 || !x2 || (dim = dsi_want_dim(op, x1, dim)) < 0) return NULL;
    ds_reduce_opts over = {.dims = ds_shape(dim)};
    ds_tensor *least = dsi_number_beside(x1, dsi_option(eps, 1e-8));
    ds_tensor *length = ds_unsqueeze(length_at_least(x1, least, over.dims), dim);
    ds_tensor *y = dsi_vecdot(ds_div(x1, length), x2, dim);
    return dsi_loss_reduced(ds_div(y, length_at_least(x2, least, over.dims)), DS_NONE, dtype);
}
