/* ops/conv_transpose.c: conv_transpose2d, the gradient of conv2d for its input.
 *
 * conv_transpose2d  x [N,C,H,W], w [C,K/groups,R,S], b [K] or none -> y [N,K,P,Q]
 *                   P = (H-1) stride - 2 padding + dilation (R-1) + output_padding + 1, Q likewise
 * The kernels are conv2d's, for a convolution that makes x of y: forward is its
 * dx, dx its forward, dw its dw with x and dy in each other's place. Zeiler et
 * al., CVPR 2010; Dumoulin and Visin, arXiv:1603.07285, chapter 4.
 * SPDX-License-Identifier: MIT */
#include "op.h"

/* Saved: x, w. db is dy's sum over all but the channels. */
static void conv_transpose2d_backward(dsi_node *n, ds_tensor *dy)
{
    const dsi_conv2d *c = dsi_attr(n);
    ds_tensor *x = dsi_saved_tensor(n, 0), *w = dsi_saved_tensor(n, 1);
    if (dsi_needs_input_grad(n, 0)) {
        ds_tensor *dx = dsi_new_like(x);
        bool done = dsi_run(dx, conv2d, c, dsi_v(dy), dsi_v(w), dsi_v(NULL), dsi_v(dx));
        dsi_accumulate_grad(n, 0, dsi_result_if(done, dx));
    }
    if (dsi_needs_input_grad(n, 1)) {
        ds_tensor *dw = dsi_new_grad(n, 1, w, w->shape);
        bool done = dsi_run(dw, conv2d_dw, c, dsi_v(x), dsi_v(dy), dsi_v(dw));
        dsi_accumulate_grad(n, 1, dsi_result_if(done, dw));
    }
}

const dsi_op dsi_op_conv_transpose2d = {"conv_transpose2d", conv_transpose2d_backward,
                                        .saved_for = {1u << 1, 1u << 0}};

/* Dtypes, devices, ranks and channels agree; b [K]. */
static bool conv_transpose_check_operands(const ds_tensor *x, const ds_tensor *w,
                                          const ds_tensor *b, int64_t groups)
{
    const char *op = "conv_transpose2d";
    if (!dsi_want_float(op, x) || !dsi_same_kind(op, x, w) || !dsi_same_kind(op, x, b))
        return false;
    if (x->shape.n != 4 || w->shape.n != 4)
        return dsi_refuse("%s: x is %s, weight is %s: expected [N,C,H,W] or [C,H,W], and "
                          "[C,K/groups,R,S]",
                          op, dsi_shape_text(x->shape), dsi_shape_text(w->shape));
    if (x->shape.d[1] != w->shape.d[0] || groups < 1 || x->shape.d[1] % groups)
        return dsi_refuse("%s: x %s has %lld channels, weight %s takes %lld, in groups of %lld", op,
                          dsi_shape_text(x->shape), (long long)x->shape.d[1],
                          dsi_shape_text(w->shape), (long long)w->shape.d[0], (long long)groups);
    int64_t k = w->shape.d[1] * groups;
    if (b && (b->shape.n != 1 || b->shape.d[0] != k))
        return dsi_refuse("%s: bias is %s, weight is %s, groups %lld: expected [%lld]", op,
                          dsi_shape_text(b->shape), dsi_shape_text(w->shape), (long long)groups,
                          (long long)k);
    return true;
}

/* The convolution that makes x of y -> *c, y's shape -> *out; false with the
 * message. */
static bool conv_transpose_check(const ds_tensor *x, const ds_tensor *w, ds_conv_transpose2d_opts o,
                                 dsi_conv2d *c, ds_dims *out)
{
    int64_t more[2];
    *c = (dsi_conv2d){.groups = o.groups ? o.groups : 1};
    dsi_pair(c->stride, o.stride, o.stride_w, 1);
    dsi_pair(c->padding, o.padding, o.padding_w, 0);
    dsi_pair(c->dilation, o.dilation, o.dilation_w, 1);
    dsi_pair(more, o.output_padding, o.output_padding_w, 0);
    if (!conv_transpose_check_operands(x, w, o.bias, c->groups)) return false;
    *out = ds_shape(x->shape.d[0], w->shape.d[1] * c->groups, 0, 0);
    for (int i = 0; i < 2; i++) {
        int64_t stride = c->stride[i], padding = c->padding[i], dilation = c->dilation[i];
        if (stride < 1 || padding < 0 || dilation < 1 || more[i] < 0)
            return dsi_refuse("conv_transpose2d: stride %lld, padding %lld, dilation %lld, "
                              "output_padding %lld: expected at least 1, 0, 1, 0",
                              (long long)stride, (long long)padding, (long long)dilation,
                              (long long)more[i]);
        if (more[i] >= stride && more[i] >= dilation)
            return dsi_refuse("conv_transpose2d: output_padding %lld, stride %lld, dilation %lld: "
                              "expected output_padding below one of them",
                              (long long)more[i], (long long)stride, (long long)dilation);
        out->d[2 + i] = (x->shape.d[2 + i] - 1) * stride - 2 * padding +
                        dilation * (w->shape.d[2 + i] - 1) + more[i] + 1;
        if (out->d[2 + i] < 1 || x->shape.d[2 + i] < 1 || w->shape.d[2 + i] < 1)
            return dsi_refuse("conv_transpose2d: x is %s, weight is %s, padding %lld: the output "
                              "would have %lld %s",
                              dsi_shape_text(x->shape), dsi_shape_text(w->shape),
                              (long long)padding, (long long)out->d[2 + i], i ? "columns" : "rows");
    }
    return true;
}

/* Without the bias, for x of 4 dimensions. */
static ds_tensor *conv_transpose_images(ds_tensor *x, ds_tensor *w, ds_conv_transpose2d_opts o)
{
    dsi_conv2d c;
    ds_dims out;
    if (!x || !w || !conv_transpose_check(x, w, o, &c, &out)) return NULL;
    if (!(w = ds_contiguous(w)) || !dsi_acquire(x, w)) return NULL;

    ds_tensor *y = dsi_new(x, out);

    if (!dsi_run(y, conv2d_dx, &c, dsi_v(x), dsi_v(w), dsi_v(y))) return NULL;

    dsi_node *n = dsi_record(&dsi_op_conv_transpose2d, y, x, w);
    dsi_save_for_backward(n, x), dsi_save_for_backward(n, w), dsi_set_attr(n, &c, sizeof c);
    return y;
}

/* With a bias, 16-bit operands are computed in float32, so that y is rounded
 * once. */
ds_tensor *ds_conv_transpose2d_with(ds_tensor *x, ds_tensor *w, ds_conv_transpose2d_opts o)
{
    if (!dsi_live_all("conv_transpose2d", x, w)) return dsi_null_operand("conv_transpose2d");
    bool one = x->shape.n == 3;
    ds_dtype dtype = x->dtype;
    if (one) x = ds_unsqueeze(x, 0);
    if (!o.bias) {
        ds_tensor *y = conv_transpose_images(x, w, o);
        return one ? ds_squeeze(y, 0) : y;
    }
    if (!dsi_same_kind("conv_transpose2d", x, w) || !dsi_same_kind("conv_transpose2d", x, o.bias))
        return NULL;
    o.bias = dsi_upcast(o.bias);
    ds_tensor *y = conv_transpose_images(dsi_upcast(x), dsi_upcast(w), o);
    y = y ? ds_cast(ds_add(y, ds_reshape(o.bias, ds_shape(-1, 1, 1))), dtype) : NULL;
    return one ? ds_squeeze(y, 0) : y;
}
