/* ops/conv3d.c: conv3d, as a conv2d whose channels are planes.
 *
 * Plane o of the output is made of T planes of the input, o stride + t dilation
 * of the padded depth. With these as channels,
 *     x [N,C,D,H,W] -> [N O, C T, H, W],  w [K,C/groups,T,R,S] = [K, C/groups T, R, S]
 * one conv2d computes all sums: each is rounded once, and its kernels do the
 * work. A channel's planes stay together, so groups stay what they are.
 * SPDX-License-Identifier: MIT */
#include "op.h"

typedef struct Conv3d {
    int64_t stride[3], padding[3], dilation[3], groups;
} Conv3d;

bool dsi_triple(const char *op, const char *name, ds_dims d, int64_t usual, int64_t least,
                int64_t to[3])
{
    if (d.n != 0 && d.n != 1 && d.n != 3)
        return dsi_refuse("%s: %s is %s: expected 1 or 3 numbers", op, name, dsi_shape_text(d));
    for (int i = 0; i < 3; i++) {
        to[i] = d.n ? d.d[d.n == 3 ? i : 0] : usual;
        if (to[i] < least || to[i] > INT32_MAX)
            return dsi_refuse("%s: %s is %lld: expected %lld to %d", op, name, (long long)to[i],
                              (long long)least, INT32_MAX);
    }
    return true;
}

static bool conv3d_options(ds_conv3d_opts o, Conv3d *c)
{
    c->groups = o.groups ? o.groups : 1;
    return dsi_triple("conv3d", "stride", o.stride, 1, 1, c->stride) &&
           dsi_triple("conv3d", "padding", o.padding, 0, 0, c->padding) &&
           dsi_triple("conv3d", "dilation", o.dilation, 1, 1, c->dilation);
}

/* x of 5 dimensions; *depth: planes of the output. */
static bool conv3d_check(const ds_tensor *x, const ds_tensor *w, const ds_tensor *b, Conv3d c,
                         int64_t *depth)
{
    if (!dsi_want_float("conv3d", x) || !dsi_same_kind("conv3d", x, w) ||
        !dsi_same_kind("conv3d", x, b))
        return false;
    const int64_t *s = x->shape.d, *k = w->shape.d;
    if (x->shape.n != 5 || w->shape.n != 5)
        return dsi_refuse("conv3d: x is %s, weight is %s: expected [N,C,D,H,W] or [C,D,H,W], and "
                          "[K,C/groups,T,R,S]",
                          dsi_shape_text(x->shape), dsi_shape_text(w->shape));
    if (c.groups < 1 || k[1] * c.groups != s[1] || k[0] % c.groups)
        return dsi_refuse("conv3d: x %s has %lld channels, weight %s takes %lld, in %lld groups",
                          dsi_shape_text(x->shape), (long long)s[1], dsi_shape_text(w->shape),
                          (long long)(k[1] * c.groups), (long long)c.groups);
    if (b && (b->shape.n != 1 || b->shape.d[0] != k[0]))
        return dsi_refuse("conv3d: bias is %s: expected [%lld]", dsi_shape_text(b->shape),
                          (long long)k[0]);
    for (int i = 2; i >= 0; i--) {
        int64_t left = s[2 + i] + 2 * c.padding[i] - c.dilation[i] * (k[2 + i] - 1) - 1;
        if (left < 0 || k[2 + i] < 1)
            return dsi_refuse("conv3d: x is %s, weight is %s: the window is larger than the padded "
                              "input in dimension %d",
                              dsi_shape_text(x->shape), dsi_shape_text(w->shape), 2 + i);
        *depth = left / c.stride[i] + 1;
    }
    return true;
}

/* The planes above: x [N,C,D,H,W] -> [N depth, C taps, H, W]. */
static ds_tensor *conv3d_planes(ds_tensor *x, Conv3d c, int64_t depth, int64_t taps)
{
    if (c.padding[0]) x = ds_pad(x, ds_shape(0, 0, 0, 0, c.padding[0], c.padding[0]));
    if (!x) return NULL;
    const int64_t *s = x->shape.d;
    ds_tensor *index = dsi_new_host(DS_I64, ds_shape(depth * s[1] * taps));
    int64_t *at = ds_data_mut(index), *next = at;
    for (int64_t o = 0; at && o < depth; o++)
        for (int64_t channel = 0; channel < s[1]; channel++)
            for (int64_t t = 0; t < taps; t++)
                *next++ = channel * s[2] + o * c.stride[0] + t * c.dilation[0];
    if (!at || !(index = dsi_beside(index, x, DS_I64))) return NULL;
    ds_tensor *planes = ds_index_select(ds_reshape(x, ds_shape(s[0], s[1] * s[2], s[3] * s[4])), 1,
                                        index);
    return ds_reshape(planes, ds_shape(s[0] * depth, s[1] * taps, s[3], s[4]));
}

/* x with the zeros that make the output as large as it is; torch's odd one is
 * after x. */
static ds_tensor *conv3d_same(ds_tensor *x, const ds_tensor *w, const Conv3d *c)
{
    ds_dims pad = {.n = 6};
    if (x->shape.n != 5 || w->shape.n != 5) return x; /* for conv3d_check */
    for (int i = 0; i < 3; i++) {
        int64_t zeros = c->dilation[i] * (w->shape.d[2 + i] - 1);
        if (c->stride[i] != 1 || c->padding[i])
            return dsi_refuse("conv3d: same with stride %lld and padding %lld: expected 1 and 0",
                              (long long)c->stride[i], (long long)c->padding[i]);
        pad.d[4 - 2 * i] = zeros / 2, pad.d[5 - 2 * i] = zeros - zeros / 2;
    }
    return ds_pad(x, pad);
}

ds_tensor *ds_conv3d_with(ds_tensor *x, ds_tensor *w, ds_conv3d_opts o)
{
    dsi_autocast_low(&x, &w, &o.bias);
    Conv3d c;
    int64_t depth = 0;
    if (!dsi_live_all("conv3d", x, w)) return dsi_null_operand("conv3d");
    bool one = x->shape.n == 4;
    if (one) x = ds_unsqueeze(x, 0);
    if (!x || !conv3d_options(o, &c) || (o.same && !(x = conv3d_same(x, w, &c))) ||
        !conv3d_check(x, w, o.bias, c, &depth))
        return NULL;
    const int64_t *k = w->shape.d;
    ds_conv2d_opts images = {.bias = o.bias,
                             .stride = (int)c.stride[1],
                             .stride_w = (int)c.stride[2],
                             .padding = (int)c.padding[1],
                             .padding_w = c.padding[2] ? (int)c.padding[2] : -1,
                             .dilation = (int)c.dilation[1],
                             .dilation_w = (int)c.dilation[2],
                             .groups = (int)c.groups};
    ds_tensor *y = ds_conv2d_with(conv3d_planes(x, c, depth, k[2]),
                                  ds_reshape(w, ds_shape(k[0], k[1] * k[2], k[3], k[4])), images);
    if (!y) return NULL;
    y = ds_reshape(y, ds_shape(x->shape.d[0], depth, k[0], y->shape.d[2], y->shape.d[3]));
    y = ds_contiguous(ds_permute(y, ds_shape(0, 2, 1, 3, 4)));
    return one ? ds_squeeze(y, 0) : y;
}
