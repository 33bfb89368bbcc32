/* ops/loss.c: losses.
 *
 * cross_entropy  logits x [N,C,I] (I: all further dimensions), label [N,I], weight w [C]
 *   with p = softmax(x) over C, e = label smoothing and used(n,i) = label[n,i] is not the ignored one:
 *   loss[n,i] = -(1 - e) w[label] log p[label] - e/C sum over c of w[c] log p[c], 0 where not used
 *   mean      = sum loss / sum over the used of w[label]; NaN where nothing is used
 * mse_loss       (x - y)^2, composed of other ops
 * SPDX-License-Identifier: MIT */
#include "op.h"

/* Views for the kernels: logits [N,C,I], label [N,I]; log sum exp [N,I] and the
 * mean's divisor []. */
typedef struct Views {
    ds_dims ni;
    dsi_view x, label, lse, divisor;
} Views;

/* Whether x is a matrix whose rows have no gaps, though there may be some
 * between them, as dsi_new_rows makes it. */
static bool has_rows(const ds_tensor *x)
{
    return x->shape.n == 2 && x->stride[1] == 1 && x->stride[0] >= x->shape.d[1];
}

/* x as [N,C,I] */
static dsi_view logits_view(const ds_tensor *x)
{
    if (!has_rows(x)) return dsi_v_around(x, 1);
    return (dsi_view){
        dsi_v(x).p, x->dtype, 3, {x->shape.d[0], x->shape.d[1], 1}, {x->stride[0], 1, 1}};
}

/* kept [N I + 1] holds the log sums, then the divisor: one tensor, because they
 * are always saved and freed together. */
static Views views(const ds_tensor *x, const ds_tensor *label, const ds_tensor *kept)
{
    Views v = {.x = logits_view(x)};
    v.ni = ds_shape(v.x.d[0], v.x.d[2]);
    v.label = dsi_v_shape(label, v.ni);
    v.lse = v.divisor = dsi_v_shape(kept, v.ni);
    v.divisor.n = 0;
    v.divisor.p = (char *)v.lse.p + (size_t)dsi_numel(v.ni) * ds_dtype_size(kept->dtype);
    return v;
}

/* The loss, or its gradient: [], or [N,I] without a reduction. */
static dsi_view loss_view(const ds_tensor *loss, const dsi_cross_entropy *c, ds_dims ni)
{
    return c->reduction == DS_NONE ? dsi_v_shape(loss, ni) : dsi_v(loss);
}

/* Saved: x, label, weight, and lse with the divisor of the mean behind it. dx =
 * (softmax(x) - target) weight / divisor dy. */
static void cross_entropy_backward(dsi_node *n, ds_tensor *dy)
{
    const dsi_cross_entropy *c = dsi_attr(n);
    ds_tensor *x = dsi_saved_tensor(n, 0), *label = dsi_saved_tensor(n, 1),
              *weight = dsi_saved_tensor(n, 2);
    Views v = views(x, label, dsi_saved_tensor(n, 3));
    ds_tensor *dx = x->shape.n == 2 ? dsi_new_rows(x, x->shape) : dsi_new(x, x->shape);
    ds_tensor *g = ds_contiguous(dy);
    bool done = dx && g &&
                dsi_run(dx, cross_entropy_dx, c, loss_view(g, c, v.ni), v.x, v.label, dsi_v(weight),
                        v.lse, v.divisor, logits_view(dx));
    dsi_accumulate_grad(n, 0, dsi_result_if(done, dx));
}

const dsi_op dsi_op_cross_entropy = {.name = "cross_entropy", .backward = cross_entropy_backward};

/* label has x's shape without dimension 1. */
static bool labels_fit(const ds_tensor *x, const ds_tensor *label)
{
    bool fit = x->shape.n >= 2 && label->shape.n == x->shape.n - 1;
    for (int i = 0; fit && i < label->shape.n; i++)
        fit = label->shape.d[i] == x->shape.d[i ? i + 1 : 0];
    return fit;
}

static bool smoothing_check(ds_cross_entropy_opts o)
{
    const char *op = "cross_entropy";
    if (!(o.label_smoothing >= 0 && o.label_smoothing <= 1))
        return dsi_refuse("%s: label_smoothing is %g: expected 0 to 1", op, o.label_smoothing);
    if ((unsigned)o.reduction > DS_NONE)
        return dsi_refuse("%s: there is no reduction number %d", op, (int)o.reduction);
    return true;
}

/* x [N,C,...]; label int64 [N,...] of the same further dimensions; weight [C]
 * or
 * NULL. */
static bool cross_entropy_check(const ds_tensor *x, const ds_tensor *label, ds_cross_entropy_opts o)
{
    const char *op = "cross_entropy";
    if (!dsi_want_float(op, x) || !dsi_same_kind(op, x, o.weight)) return false;
    if (!labels_fit(x, label))
        return dsi_refuse(
            "%s: logits are %s, labels %s %s: expected [N,C,...] and [N,...], or [C] and [], or "
            "probabilities of the logits' shape and dtype%s",
            op, dsi_shape_text(x->shape), ds_dtype_name(label->dtype), dsi_shape_text(label->shape),
            label->shape.n == x->shape.n && label->shape.d[label->shape.n - 1] == 1
                ? " (a data set's field of labels has the shape {0})"
                : "");
    if (!dsi_want_int64(op, "labels", x, label)) return false;
    if (o.weight && (o.weight->shape.n != 1 || o.weight->shape.d[0] != x->shape.d[1]))
        return dsi_refuse("%s: weight is %s, logits are %s: expected [%lld]", op,
                          dsi_shape_text(o.weight->shape), dsi_shape_text(x->shape),
                          (long long)x->shape.d[1]);
    /* refused rather than left out: a weight that learns nothing is found too
     * late */
    if (dsi_wants_grad(&o.weight, 1))
        return dsi_refuse("%s: weight has no gradient here: ds_detach it", op);
    return smoothing_check(o);
}

/* x [N,C,...], label [N,...] -> [] or, without a reduction, label's shape. The
 * mean divides by the sum of the labels' weights. */
ds_tensor *ds_cross_entropy_with(ds_tensor *x, ds_tensor *label, ds_cross_entropy_opts o)
{
    dsi_autocast_wide(&x, &label, &o.weight);
    if (!dsi_live_all("cross_entropy", x, label)) return dsi_null_operand("cross_entropy");
    if (dsi_is_float(label) && dsi_same_shape(x->shape, label->shape))
        return smoothing_check(o) ? dsi_cross_entropy_soft(x, label, o) : NULL;
    label = dsi_wide_labels(label);
    if (x->shape.n == 1 && label && !label->shape.n) /* one sample */
        return ds_reshape(ds_cross_entropy_with(ds_unsqueeze(x, 0), ds_unsqueeze(label, 0), o),
                          (ds_dims){0});
    if (!label || !cross_entropy_check(x, label, o)) return NULL;
    x = has_rows(x) ? x : ds_contiguous(x), label = ds_contiguous(label);
    if (!x || !label || !dsi_acquire(x, label, o.weight)) return NULL;
    dsi_cross_entropy c = {.ignore_index = o.ignore ? o.ignore_index : -100,
                           .smoothing = o.label_smoothing,
                           .reduction = (int)o.reduction};

    /* backward takes lse: softmax(x) is exp(x - lse), and need not be stored */
    ds_tensor *loss = dsi_new(x, o.reduction == DS_NONE ? label->shape : (ds_dims){0});
    ds_tensor *kept = dsi_new_upcast(x, ds_shape(dsi_numel(label->shape) + 1));

    if (!loss || !kept) return NULL;
    Views v = views(x, label, kept);
    if (!dsi_run_index(loss, cross_entropy, &c, v.x, v.label, dsi_v(o.weight),
                       loss_view(loss, &c, v.ni), v.lse, v.divisor))
        return NULL;

    dsi_node *n = dsi_record(&dsi_op_cross_entropy, loss, x);
    dsi_save_for_backward(n, x), dsi_save_for_backward(n, label),
        dsi_save_for_backward(n, o.weight), dsi_save_for_backward(n, kept);
    dsi_set_attr(n, &c, sizeof c);
    return loss;
}

ds_tensor *ds_cross_entropy(ds_tensor *logits, ds_tensor *labels)
{
    return ds_cross_entropy_with(logits, labels, (ds_cross_entropy_opts){0});
}

/* ---- x - y, and its square --------------------------------------------------------------------------- */

ds_tensor *dsi_difference(ds_tensor *x, ds_tensor *y)
{
    ds_dims shape;
    if (!dsi_is_16bit(x) || x->device->type->kind != DS_CPU)
        return ds_sub(dsi_upcast(x), dsi_upcast(y));
    if (!dsi_broadcast("sub", x->shape, y->shape, &shape) || !dsi_acquire(x, y)) return NULL;
    ds_tensor *d = dsi_new_upcast(x, shape);
    if (!dsi_run_op(d, binary, DSI_ADD, -1, dsi_v_expand(x, shape), dsi_v_expand(y, shape),
                    dsi_v(d)))
        return NULL;
    dsi_record_add(d, x, y, -1);
    return d;
}

/* (x - y)^2, in float32 for 16-bit operands, so that a mean over many elements
 * does not overflow. */
ds_tensor *ds_mse_loss_with(ds_tensor *x, ds_tensor *y, ds_reduction reduction)
{
    dsi_autocast_wide(&x, &y);
    if (!dsi_live_all("mse_loss", x, y)) return dsi_null_operand("mse_loss");
    if (!dsi_want_float("mse_loss", x) || !dsi_same_kind("mse_loss", x, y)) return NULL;
    if (!dsi_same_shape(x->shape, y->shape))
        return dsi_refuse("mse_loss: x is %s, y is %s: expected the same", dsi_shape_text(x->shape),
                          dsi_shape_text(y->shape));
    if ((unsigned)reduction > DS_NONE)
        return dsi_refuse("mse_loss: there is no reduction number %d", (int)reduction);
    ds_dtype dtype = x->dtype;
    ds_scope *scope = ds_scope_open(); /* float32 copies end with it */
    ds_tensor *d = dsi_scope_return(scope, dsi_ref(dsi_difference(x, y)));
    ds_tensor *square = ds_mul(d, d);
    return ds_cast(reduction == DS_NONE  ? square
                   : reduction == DS_SUM ? ds_sum(square)
                                         : ds_mean(square),
                   dtype);
}

ds_tensor *ds_mse_loss(ds_tensor *x, ds_tensor *y) { return ds_mse_loss_with(x, y, DS_MEAN); }
