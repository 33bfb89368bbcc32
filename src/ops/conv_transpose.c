/* ops/conv_transpose.c: conv_transpose2d, the gradient of conv2d for its input;
 * conv_transpose1d, of images of one row; conv_transpose3d, of planes.
 *
 * conv_transpose2d  x [N,C,H,W], w [C,K/groups,R,S], b [K] or none -> y [N,K,P,Q]
 *                   P = (H-1) stride - 2 padding + dilation (R-1) + output_padding + 1, Q likewise
 * The kernels are conv2d's, for a convolution that makes x of y: forward is its
 * dx, dx its forward, dw its dw with x and dy in each other's place. Zeiler et
 * al., CVPR 2010; Dumoulin and Visin, arXiv:1603.07285, chapter 4.
 *
 * conv_transpose3d  x [N,C,D,H,W], w [C,K/groups,T,R,S] -> y [N,K,O,P,Q]
 * A plane d of x makes T planes, those of a conv_transpose2d with K T channels;
 * plane t is a summand of plane d stride + t dilation - padding of y.
 * SPDX-License-Identifier: MIT */
#include "op.h"

/* Saved: x, w. */
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
    if (dsi_needs_input_grad(n, 2)) {
        ds_tensor *db = dsi_new_grad(n, 2, w, ds_shape(dy->shape.d[1]));
        dsi_accumulate_grad(n, 2, dsi_result_if(dsi_conv_db(dy, db), db));
    }
}

const dsi_op dsi_op_conv_transpose2d = {"conv_transpose2d", conv_transpose2d_backward,
                                        .saved_for = {1u << 1, 1u << 0}};

/* Dtypes, devices, ranks and channels agree; b [K]. */
static bool conv_transpose_check_operands(const char *op, const ds_tensor *x, const ds_tensor *w,
                                          const ds_tensor *b, int64_t groups)
{
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
static bool conv_transpose_check(const char *op, const ds_tensor *x, const ds_tensor *w,
                                 ds_conv_transpose2d_opts o, dsi_conv2d *c, ds_dims *out)
{
    int64_t more[2];
    *c = (dsi_conv2d){.groups = o.groups ? o.groups : 1};
    dsi_pair(c->stride, o.stride, o.stride_w, 1);
    dsi_pair(c->padding, o.padding, o.padding_w, 0);
    dsi_pair(c->dilation, o.dilation, o.dilation_w, 1);
    dsi_pair(more, o.output_padding, o.output_padding_w, 0);
    if (!conv_transpose_check_operands(op, x, w, o.bias, c->groups)) return false;
    *out = ds_shape(x->shape.d[0], w->shape.d[1] * c->groups, 0, 0);
    for (int i = 0; i < 2; i++) {
        int64_t stride = c->stride[i], padding = c->padding[i], dilation = c->dilation[i];
        if (stride < 1 || padding < 0 || dilation < 1 || more[i] < 0)
            return dsi_refuse("%s: stride %lld, padding %lld, dilation %lld, "
                              "output_padding %lld: expected at least 1, 0, 1, 0",
                              op, (long long)stride, (long long)padding, (long long)dilation,
                              (long long)more[i]);
        if (more[i] >= stride && more[i] >= dilation)
            return dsi_refuse("%s: output_padding %lld, stride %lld, dilation %lld: "
                              "expected output_padding below one of them",
                              op, (long long)more[i], (long long)stride, (long long)dilation);
        out->d[2 + i] = (x->shape.d[2 + i] - 1) * stride - 2 * padding +
                        dilation * (w->shape.d[2 + i] - 1) + more[i] + 1;
        if (out->d[2 + i] < 1 || x->shape.d[2 + i] < 1 || w->shape.d[2 + i] < 1)
            return dsi_refuse("%s: x is %s, weight is %s, padding %lld: the output "
                              "would have %lld %s",
                              op, dsi_shape_text(x->shape), dsi_shape_text(w->shape),
                              (long long)padding, (long long)out->d[2 + i], i ? "columns" : "rows");
    }
    return true;
}

/* For x of 4 dimensions; a bias by a fusion. */
static ds_tensor *conv_transpose_images(const char *op, ds_tensor *x, ds_tensor *w,
                                        ds_conv_transpose2d_opts o)
{
    dsi_conv2d c;
    ds_dims out;
    if (!x || !w || !conv_transpose_check(op, x, w, o, &c, &out)) return NULL;
    if (!(w = ds_contiguous(w)) || !dsi_acquire(x, w, o.bias)) return NULL;

    ds_tensor *y = dsi_new_images(x, out, c.groups);

    bool done = o.bias ? dsi_run_fusion(y, conv2d_dx_bias, &c, dsi_v(x), dsi_v(w), dsi_v(o.bias),
                                        dsi_v(y))
                       : dsi_run(y, conv2d_dx, &c, dsi_v(x), dsi_v(w), dsi_v(y));
    if (!done) return NULL;
    dsi_cost_products(x, w->shape.d[1] * w->shape.d[2] * w->shape.d[3],
                      o.bias ? dsi_numel(out) : 0);

    dsi_node *n = dsi_record(&dsi_op_conv_transpose2d, y, x, w, o.bias);
    dsi_save_for_backward(n, x), dsi_save_for_backward(n, w), dsi_set_attr(n, &c, sizeof c);
    return y;
}

/* A bias without the fusion: 16-bit operands are computed in float32, so that y
 * is rounded once. x has 4 dimensions. */
static ds_tensor *conv_transpose_named(const char *op, ds_tensor *x, ds_tensor *w,
                                       ds_conv_transpose2d_opts o)
{
    if (!x || !w || !o.bias || dsi_fusion(x->device, conv2d_dx_bias))
        return conv_transpose_images(op, x, w, o);
    dsi_conv2d c;
    ds_dims out;
    if (!conv_transpose_check(op, x, w, o, &c, &out)) return NULL;
    ds_tensor *bias = dsi_upcast(o.bias);
    o.bias = NULL;
    ds_tensor *y = conv_transpose_images(op, dsi_upcast(x), dsi_upcast(w), o);
    if (y) dsi_cost_elements(y, 1);
    return y ? ds_cast(ds_add(y, ds_reshape(bias, ds_shape(-1, 1, 1))), x->dtype) : NULL;
}

ds_tensor *ds_conv_transpose2d_with(ds_tensor *x, ds_tensor *w, ds_conv_transpose2d_opts o)
{
    dsi_autocast_low(&x, &w, &o.bias);
    if (!dsi_live_all("conv_transpose2d", x, w)) return dsi_null_operand("conv_transpose2d");
    if (x->shape.n != 3) return conv_transpose_named("conv_transpose2d", x, w, o);
    return ds_squeeze(conv_transpose_named("conv_transpose2d", ds_unsqueeze(x, 0), w, o), 0);
}

/* x [N,C,L] as images of one row, w [C,K/groups,R] */
static ds_tensor *conv_transpose_rows(ds_tensor *x, ds_tensor *w, ds_conv_transpose1d_opts o)
{
    ds_conv_transpose2d_opts rows = {.bias = o.bias,
                                     .stride = 1,
                                     .stride_w = o.stride ? o.stride : 1,
                                     .padding_w = o.padding ? o.padding : -1,
                                     .output_padding_w = o.output_padding ? o.output_padding : -1,
                                     .groups = o.groups,
                                     .dilation = 1,
                                     .dilation_w = o.dilation ? o.dilation : 1};
    ds_tensor *images = ds_unsqueeze(x, 2);
    return ds_squeeze(conv_transpose_named("conv_transpose1d", images, ds_unsqueeze(w, 2), rows),
                      2);
}

ds_tensor *ds_conv_transpose1d_with(ds_tensor *x, ds_tensor *w, ds_conv_transpose1d_opts o)
{
    dsi_autocast_low(&x, &w, &o.bias);
    if (!dsi_live_all("conv_transpose1d", x, w)) return dsi_null_operand("conv_transpose1d");
    if ((x->shape.n != 2 && x->shape.n != 3) || w->shape.n != 3)
        return dsi_refuse("conv_transpose1d: x is %s, weight is %s: expected [N,C,L] or [C,L], and "
                          "[C,K/groups,R]",
                          dsi_shape_text(x->shape), dsi_shape_text(w->shape));
    if (o.stride < 0 || o.padding < 0 || o.dilation < 0 || o.output_padding < 0)
        return dsi_refuse("conv_transpose1d: stride %d, padding %d, dilation %d, output_padding "
                          "%d: expected at least 1, 0, 1, 0",
                          o.stride, o.padding, o.dilation, o.output_padding);
    if (x->shape.n == 3) return conv_transpose_rows(x, w, o);
    return ds_squeeze(conv_transpose_rows(ds_unsqueeze(x, 0), w, o), 0);
}

/* ---- conv_transpose3d -------------------------------------------------------------------------------- */

typedef struct Transpose3d {
    int64_t stride[3], padding[3], dilation[3], more[3], groups;
    int64_t depth; /* of y, before padding is cut off */
} Transpose3d;

/* x and w of 5 dimensions; what the planes check is left to them. */
static bool conv_transpose3d_check(const ds_tensor *x, const ds_tensor *w,
                                   ds_conv_transpose3d_opts o, Transpose3d *c)
{
    const char *op = "conv_transpose3d";
    if (x->shape.n != 5 || w->shape.n != 5)
        return dsi_refuse("%s: x is %s, weight is %s: expected [N,C,D,H,W] or [C,D,H,W], and "
                          "[C,K/groups,T,R,S]",
                          op, dsi_shape_text(x->shape), dsi_shape_text(w->shape));
    c->groups = o.groups ? o.groups : 1;
    if (!dsi_triple(op, "stride", o.stride, 1, 1, c->stride) ||
        !dsi_triple(op, "padding", o.padding, 0, 0, c->padding) ||
        !dsi_triple(op, "dilation", o.dilation, 1, 1, c->dilation) ||
        !dsi_triple(op, "output_padding", o.output_padding, 0, 0, c->more))
        return false;
    if (c->more[0] >= c->stride[0] && c->more[0] >= c->dilation[0])
        return dsi_refuse("%s: output_padding %lld, stride %lld, dilation %lld: expected "
                          "output_padding below one of them",
                          op, (long long)c->more[0], (long long)c->stride[0],
                          (long long)c->dilation[0]);
    c->depth = (x->shape.d[2] - 1) * c->stride[0] + c->dilation[0] * (w->shape.d[2] - 1) + 1 +
               c->more[0];
    if (x->shape.d[2] < 1 || w->shape.d[2] < 1 || c->depth <= 2 * c->padding[0])
        return dsi_refuse("%s: x is %s, weight is %s, padding %lld: the output would have %lld "
                          "planes",
                          op, dsi_shape_text(x->shape), dsi_shape_text(w->shape),
                          (long long)c->padding[0], (long long)(c->depth - 2 * c->padding[0]));
    return true;
}

/* -> [N D, K T, P, Q] */
static ds_tensor *conv_transpose3d_planes(ds_tensor *x, ds_tensor *w, const Transpose3d *c)
{
    if (!x || !w) return NULL;
    const int64_t *s = x->shape.d, *k = w->shape.d;
    ds_conv_transpose2d_opts planes = {.stride = (int)c->stride[1],
                                       .stride_w = (int)c->stride[2],
                                       .padding = (int)c->padding[1],
                                       .padding_w = c->padding[2] ? (int)c->padding[2] : -1,
                                       .output_padding = (int)c->more[1],
                                       .output_padding_w = c->more[2] ? (int)c->more[2] : -1,
                                       .groups = (int)c->groups,
                                       .dilation = (int)c->dilation[1],
                                       .dilation_w = (int)c->dilation[2]};
    x = ds_reshape(ds_permute(x, ds_shape(0, 2, 1, 3, 4)), ds_shape(s[0] * s[2], s[1], s[3], s[4]));
    w = ds_reshape(w, ds_shape(k[0], k[1] * k[2], k[3], k[4]));
    return conv_transpose_named("conv_transpose3d", x, w, planes);
}

/* Plane d T + t of the sums belongs to this plane of y: [D T]. */
static ds_tensor *conv_transpose3d_index(const ds_tensor *x, int64_t taps, const Transpose3d *c)
{
    ds_tensor *index = dsi_new_host(DS_I64, ds_shape(x->shape.d[2] * taps));
    int64_t *at = ds_data_mut(index);
    for (int64_t i = 0; at && i < index->shape.d[0]; i++)
        at[i] = i / taps * c->stride[0] + i % taps * c->dilation[0];
    return at ? dsi_beside(index, x, DS_I64) : NULL;
}

/* 16-bit operands are computed in float32, so that y is rounded once. */
static ds_tensor *conv_transpose3d_volumes(ds_tensor *x, ds_tensor *w, ds_conv_transpose3d_opts o)
{
    Transpose3d c;
    const char *op = "conv_transpose3d";
    if (!x || !conv_transpose3d_check(x, w, o, &c)) return NULL;
    if (!dsi_same_kind(op, x, w) || !dsi_same_kind(op, x, o.bias)) return NULL;
    int64_t n = x->shape.d[0], depth = x->shape.d[2], taps = w->shape.d[2];
    int64_t k = w->shape.d[1] * c.groups;
    if (o.bias && (o.bias->shape.n != 1 || o.bias->shape.d[0] != k))
        return dsi_refuse("%s: bias is %s: expected [%lld]", op, dsi_shape_text(o.bias->shape),
                          (long long)k);
    ds_tensor *y = conv_transpose3d_planes(dsi_upcast(x), dsi_upcast(w), &c);
    if (!y) return NULL;
    int64_t p = y->shape.d[2], q = y->shape.d[3];
    y = ds_permute(ds_reshape(y, (ds_dims){6, {n, depth, k, taps, p, q}}),
                   (ds_dims){6, {0, 2, 1, 3, 4, 5}});
    if (!(y = ds_reshape(y, ds_shape(n, k, depth * taps, p, q)))) return NULL;
    ds_tensor *sums = dsi_fill(dsi_new(y, ds_shape(n, k, c.depth, p, q)), 0);
    y = ds_index_add(sums, 2, conv_transpose3d_index(x, taps, &c), y, 1);
    y = ds_slice(y, 2, c.padding[0], c.depth - c.padding[0]);
    if (y && o.bias) dsi_cost_elements(y, 1);
    if (o.bias) y = ds_add(y, ds_reshape(dsi_upcast(o.bias), ds_shape(-1, 1, 1, 1)));
    return y ? ds_contiguous(ds_cast(y, x->dtype)) : NULL;
}

ds_tensor *ds_conv_transpose3d_with(ds_tensor *x, ds_tensor *w, ds_conv_transpose3d_opts o)
{
    dsi_autocast_low(&x, &w, &o.bias);
    if (!dsi_live_all("conv_transpose3d", x, w)) return dsi_null_operand("conv_transpose3d");
    if (x->shape.n != 4) return conv_transpose3d_volumes(x, w, o);
    return ds_squeeze(conv_transpose3d_volumes(ds_unsqueeze(x, 0), w, o), 0);
}
