/* ops/conv.c: convolutions.
 *
 * conv1d           a conv2d of one row
 * conv_transpose2d conv2d's dx as forward; its backward is conv2d's forward
 * (dx) and dw, in which x
 *                  and dy change places
 * conv2d    x [N,C,H,W], w [K,C/groups,R,S], b [K] or none -> y [N,K,P,Q]
 *           P = (H + 2 padding - dilation (R-1) - 1) / stride + 1, Q likewise; a cross-correlation, as
 *           in PyTorch
 * backward  dx = dy (*) w turned around, dw = x (*) dy, db = dy summed over N, P, Q
 *           (Goodfellow, Bengio, Courville: Deep Learning, 9.5)
 *
 * Two decisions about memory: y is channels-last where its channels fill
 * vectors, else it has planes; and backward takes a gradient in pooled form as
 * it is (Note [Pooled gradients]).
 * SPDX-License-Identifier: MIT */
#include "op.h"

bool dsi_conv_db(const ds_tensor *dy, ds_tensor *db)
{
    if (!db) return false;
    if (dsi_fusion(db->device, sum_channels))
        return dsi_run_fusion(db, sum_channels, dsi_v(dy), dsi_v(db));
    return dsi_run_op(db, reduce, DSI_SUM, 1.0, dsi_v(dy),
                      dsi_v_shape(db, ds_shape(1, db->shape.d[0], 1, 1)), dsi_v(NULL));
}

static bool conv2d_takes_pooled(const dsi_device *d)
{
    return dsi_fusion(d, conv2d_dx_pooled) && dsi_fusion(d, conv2d_dw_pooled);
}

/* [K,C/groups,R,S] */
static ds_tensor *weight_grad(dsi_node *n, const ds_tensor *w)
{
    return dsi_is_contiguous(w) ? dsi_new_grad(n, 1, w, w->shape) : dsi_new_like(w);
}

/* dw, and db as a sum over all but the channels: by one kernel, if the device
 * has it. */
static void conv2d_weight_grads(dsi_node *n, const ds_tensor *dy, const ds_tensor *x,
                                const ds_tensor *w)
{
    const dsi_conv2d *c = dsi_attr(n);
    const ds_tensor *values = dy->pooled[0] ? dy->pooled[0] : dy; /* all of dy that is not zero */
    bool wanted[] = {dsi_needs_input_grad(n, 1), dsi_needs_input_grad(n, 2)}, done = false,
         both = wanted[0] && wanted[1] && !dy->pooled[0] && dsi_fusion(w->device, conv2d_dw_db);
    ds_tensor *db = wanted[1] ? dsi_new_grad(n, 2, w, ds_shape(w->shape.d[0])) : NULL, *dw = NULL;
    if (wanted[0]) dw = weight_grad(n, w);
    if (both) {
        done = db && dsi_run_fusion(dw, conv2d_dw_db, c, dsi_v(dy), dsi_v(x), dsi_v(dw), dsi_v(db));
    } else if (dy->pooled[0]) {
        dsi_pooled p = dsi_pooled_view(dy);
        done = dw && dsi_run_fusion(dw, conv2d_dw_pooled, c, &p, dsi_v(x), dsi_v(dw));
    } else if (wanted[0]) {
        done = dsi_run(dw, conv2d_dw, c, dsi_v(dy), dsi_v(x), dsi_v(dw));
    }
    dsi_accumulate_grad(n, 1, dsi_result_if(done, dw));
    if (!both && wanted[1]) done = dsi_conv_db(values, db);
    dsi_accumulate_grad(n, 2, dsi_result_if(done, db));
}

/* Whether the device computes all gradients of dy, in pooled form, by one
 * kernel. */
static bool conv2d_back_pooled_pays(const dsi_conv2d *c, const ds_tensor *dy, const ds_tensor *x,
                                    const ds_tensor *w)
{
    bool pays = false;
    dsi_view none = {.p = NULL};
    if (!dy->pooled[0] || !dsi_fusion(w->device, conv2d_back_pooled)) return false;
    if (!dsi_acquire_pooled(dy) || !dsi_acquire(x, w)) return false;
    dsi_pooled p = dsi_pooled_view(dy);
    w->device->used_fusions->conv2d_back_pooled(&w->device->stream, c, &p, dsi_v(x), dsi_v(w), none,
                                                none, none, &pays);
    return pays;
}

static void conv2d_back_pooled(dsi_node *n, const ds_tensor *dy, const ds_tensor *x,
                               const ds_tensor *w)
{
    bool wanted[3], done = false, computed = false;
    for (int i = 0; i < 3; i++) wanted[i] = dsi_needs_input_grad(n, i);
    ds_tensor *dx = wanted[0] ? dsi_new_like(x) : NULL, *dw = weight_grad(n, w),
              *db = wanted[2] ? dsi_new_grad(n, 2, w, ds_shape(w->shape.d[0])) : NULL;
    dsi_pooled p = dsi_pooled_view(dy);
    if (dw && !!dx == wanted[0] && !!db == wanted[2])
        done = dsi_run_fusion(dw, conv2d_back_pooled, dsi_attr(n), &p, dsi_v(x), dsi_v(w),
                              dsi_v(dx), dsi_v(dw), dsi_v(db), &computed) &&
               computed;
    ds_tensor *gradient[] = {dx, dw, db};
    for (int i = 0; i < 3; i++)
        if (wanted[i]) dsi_accumulate_grad(n, i, dsi_result_if(done, gradient[i]));
}

/* Saved: x, w. dy may be in pooled form; then dx and dw are computed by
 * fusions, or it is made dense. */
static void conv2d_backward(dsi_node *n, ds_tensor *dy)
{
    const dsi_conv2d *c = dsi_attr(n);
    ds_tensor *x = dsi_saved_tensor(n, 0), *w = dsi_saved_tensor(n, 1);
    if (dsi_needs_input_grad(n, 1) && conv2d_back_pooled_pays(c, dy, x, w)) {
        conv2d_back_pooled(n, dy, x, w);
        return;
    }
    if (!conv2d_takes_pooled(dy->device) && !dsi_acquire(dy)) {
        for (int i = 0; i < 3; i++) dsi_accumulate_grad(n, i, NULL);
        return;
    }
    bool pooled = dy->pooled[0];
    dsi_pooled p;
    if (pooled) p = dsi_pooled_view(dy);

    if (dsi_needs_input_grad(n, 0)) {
        ds_tensor *dx = dsi_new_like(x); /* [N,C,H,W] in x's order of memory */
        bool done = pooled ? dsi_run_fusion(dx, conv2d_dx_pooled, c, &p, dsi_v(w), dsi_v(dx))
                           : dsi_run(dx, conv2d_dx, c, dsi_v(dy), dsi_v(w), dsi_v(dx));
        dsi_accumulate_grad(n, 0, dsi_result_if(done, dx));
    }
    conv2d_weight_grads(n, dy, x, w);
}

/* dw reads x, dx reads w */
const dsi_op dsi_op_conv2d = {"conv2d", conv2d_backward, .takes_pooled = true,
                              .saved_for = {1u << 1, 1u << 0}};

/* Shapes, dtypes and devices agree. op: the name that messages begin with. */
static bool conv2d_check_operands(const char *op, const ds_tensor *x, const ds_tensor *w,
                                  const ds_tensor *b, int64_t groups)
{
    if (!dsi_want_float(op, x) || !dsi_same_kind(op, x, w) || !dsi_same_kind(op, x, b))
        return false;
    if (x->shape.n != 4 || w->shape.n != 4)
        return dsi_refuse("%s: x is %s, weight is %s: expected [N,C,H,W] and [K,C/groups,R,S]", op,
                          dsi_shape_text(x->shape), dsi_shape_text(w->shape));
    if (groups < 1 || w->shape.d[0] % groups)
        return dsi_refuse("%s: weight is %s: its %lld output channels are not a multiple of "
                          "groups = %lld",
                          op, dsi_shape_text(w->shape), (long long)w->shape.d[0],
                          (long long)groups);
    if (x->shape.d[1] != w->shape.d[1] * groups)
        return dsi_refuse("%s: x %s has %lld channels, weight %s with groups = %lld takes %lld", op,
                          dsi_shape_text(x->shape), (long long)x->shape.d[1],
                          dsi_shape_text(w->shape), (long long)groups,
                          (long long)(w->shape.d[1] * groups));
    if (b && (b->shape.n != 1 || b->shape.d[0] != w->shape.d[0]))
        return dsi_refuse("%s: bias is %s, weight is %s: expected [%lld]", op,
                          dsi_shape_text(b->shape), dsi_shape_text(w->shape),
                          (long long)w->shape.d[0]);
    return true;
}

/* The options with their defaults -> *c, y's shape [N,K,P,Q] -> *out; false
 * with the message. */
static bool conv2d_check(const char *op, const ds_tensor *x, const ds_tensor *w, ds_conv2d_opts o,
                         dsi_conv2d *c, ds_dims *out)
{
    *c = (dsi_conv2d){.groups = o.groups ? o.groups : 1};
    dsi_pair(c->stride, o.stride, o.stride_w, 1);
    dsi_pair(c->padding, o.padding, o.padding_w, 0);
    dsi_pair(c->dilation, o.dilation, o.dilation_w, 1);
    if (!conv2d_check_operands(op, x, w, o.bias, c->groups)) return false;
    *out = ds_shape(x->shape.d[0], w->shape.d[0], 0, 0);
    for (int i = 0; i < 2; i++) {
        int64_t stride = c->stride[i], padding = c->padding[i], dilation = c->dilation[i];
        if (stride < 1 || padding < 0 || dilation < 1)
            return dsi_refuse("%s: stride %lld, padding %lld, dilation %lld: expected at least "
                              "1, 0, 1",
                              op, (long long)stride, (long long)padding, (long long)dilation);
        int64_t field = dilation * (w->shape.d[2 + i] - 1) + 1;
        int64_t room = x->shape.d[2 + i] + 2 * padding - field;
        if (room < 0 || w->shape.d[2 + i] < 1)
            return dsi_refuse("%s: x is %s with padding %lld, weight is %s: the kernel reaches "
                              "over %lld of %lld %s",
                              op, dsi_shape_text(x->shape), (long long)padding,
                              dsi_shape_text(w->shape), (long long)field, (long long)(room + field),
                              i ? "columns" : "rows");
        out->d[2 + i] = room / stride + 1;
    }
    return true;
}

/* y [N,K,P,Q] in the order of memory that the device's kernels like best: with
 * the channels innermost, if they fill vectors; pointwise ops and pooling above
 * keep it. A group of a few channels fills none: planes stay planes, whose
 * vectors are of pixels. */
ds_tensor *dsi_new_images(const ds_tensor *x, ds_dims out, int64_t groups)
{
    int64_t each = out.d[1] / groups;
    bool few = groups > 1 && each > 1 && each < 16 && !dsi_is_channels_last(x);
    bool last = !few && out.d[1] % 8 == 0 && out.d[1] >= x->device->type->channels_last_from;
    return last ? dsi_new_channels_last(x, out) : dsi_new(x, out);
}

/* x [N,C,H,W], w [K,C/groups,R,S], bias [K] -> y [N,K,P,Q], P = (H + 2 padding
 * - dilation (R - 1) - 1) / stride + 1. Backward needs x and w. */
static ds_tensor *conv2d_named(const char *op, ds_tensor *x, ds_tensor *w, ds_conv2d_opts o)
{
    dsi_conv2d c;
    ds_dims out;
    if (!conv2d_check(op, x, w, o, &c, &out) || !dsi_acquire(x, w, o.bias)) return NULL;

    ds_tensor *y = dsi_new_images(x, out, c.groups);

    if (!dsi_run(y, conv2d, &c, dsi_v(x), dsi_v(w), dsi_v(o.bias), dsi_v(y))) return NULL;
    dsi_cost_products(y, w->shape.d[1] * w->shape.d[2] * w->shape.d[3],
                      o.bias ? dsi_numel(out) : 0);

    dsi_node *n = dsi_record(&dsi_op_conv2d, y, x, w, o.bias);
    dsi_save_for_backward(n, x), dsi_save_for_backward(n, w), dsi_set_attr(n, &c, sizeof c);
    return y;
}

/* An output as large as the input. An even kernel needs one zero more on one
 * side, in torch after x: here both sides get it, and the first output is cut
 * off. */
static ds_tensor *conv2d_same(const char *op, ds_tensor *x, ds_tensor *w, ds_conv2d_opts o)
{
    int64_t stride[2], padding[2], dilation[2], zeros[2];
    dsi_pair(stride, o.stride, o.stride_w, 1);
    dsi_pair(padding, o.padding, o.padding_w, 0);
    dsi_pair(dilation, o.dilation, o.dilation_w, 1);
    for (int i = 0; i < 2; i++) {
        if (stride[i] != 1 || padding[i] || dilation[i] < 1 || w->shape.n != 4)
            return dsi_refuse("%s: same with stride %lld, padding %lld, dilation %lld, weight %s: "
                              "expected 1, 0, at least 1",
                              op, (long long)stride[i], (long long)padding[i],
                              (long long)dilation[i], dsi_shape_text(w->shape));
        zeros[i] = dilation[i] * (w->shape.d[2 + i] - 1);
        padding[i] = (zeros[i] + 1) / 2;
    }
    o.padding = (int)padding[0], o.padding_w = padding[1] ? (int)padding[1] : -1;
    ds_tensor *y = conv2d_named(op, x, w, o);
    for (int i = 0; i < 2; i++)
        if (y && zeros[i] % 2) y = ds_slice(y, 2 + i, 1, DS_END);
    return y;
}

static ds_tensor *conv2d_padded(const char *op, ds_tensor *x, ds_tensor *w, ds_conv2d_opts o)
{
    dsi_autocast_low(&x, &w, &o.bias);
    if (!dsi_live_all(op, x, w)) return dsi_null_operand(op);
    return o.same ? conv2d_same(op, x, w, o) : conv2d_named(op, x, w, o);
}

ds_tensor *ds_conv2d_with(ds_tensor *x, ds_tensor *w, ds_conv2d_opts o)
{
    if (!x || x->shape.n != 3) return conv2d_padded("conv2d", x, w, o);
    return ds_squeeze(conv2d_padded("conv2d", ds_unsqueeze(x, 0), w, o), 0);
}

/* ---- conv1d ------------------------------------------------------------------------------------------ */

/* x [N,C,L] as images of one row, w [K,C/groups,R] */
static ds_tensor *conv1d_rows(ds_tensor *x, ds_tensor *w, ds_conv1d_opts o)
{
    ds_conv2d_opts rows = {.bias = o.bias,
                           .stride = 1,
                           .stride_w = o.stride ? o.stride : 1,
                           .padding_w = o.padding ? o.padding : -1,
                           .dilation = 1,
                           .dilation_w = o.dilation ? o.dilation : 1,
                           .groups = o.groups,
                           .same = o.same};
    return ds_squeeze(conv2d_padded("conv1d", ds_unsqueeze(x, 2), ds_unsqueeze(w, 2), rows), 2);
}

ds_tensor *ds_conv1d_with(ds_tensor *x, ds_tensor *w, ds_conv1d_opts o)
{
    if (!dsi_live_all("conv1d", x, w)) return dsi_null_operand("conv1d");
    if ((x->shape.n != 2 && x->shape.n != 3) || w->shape.n != 3)
        return dsi_refuse("conv1d: x is %s, weight is %s: expected [N,C,L] or [C,L], and "
                          "[K,C/groups,R]",
                          dsi_shape_text(x->shape), dsi_shape_text(w->shape));
    if (o.stride < 0 || o.padding < 0 || o.dilation < 0)
        return dsi_refuse("conv1d: stride %d, padding %d, dilation %d: expected at least 1, 0, 1",
                          o.stride, o.padding, o.dilation);
    ds_tensor *batch = x->shape.n == 3 ? x : ds_unsqueeze(x, 0);
    ds_tensor *y = conv1d_rows(batch, w, o);
    return x->shape.n == 3 ? y : ds_squeeze(y, 0);
}
