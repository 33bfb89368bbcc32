/* ops/pixel.c: places of images: shuffled channels, windows as columns, samples
 * at given coordinates.
 *
 *     pixel_shuffle    [...,C r^2,H,W] -> [...,C,H r,W r]
 *     unfold           [N,C,H,W] -> [N,C R S,P Q], the windows of a convolution
 *     fold             its transpose: overlapping windows add up
 *     grid_sample      y[n,c,p,q] = x at grid[n,p,q] = (column, row), each -1 to 1
 * Made of views and of ops that select and add by index.
 * SPDX-License-Identifier: MIT */
#include "base/option.h"
#include "op.h"

/* ---- channels ---------------------------------------------------------------------------------------- */

/* x of at least n dimensions, of any dtype; false with the message. */
static bool images(const char *op, const ds_tensor *x, int n, const char *expected)
{
    if (!dsi_live(x, op)) return dsi_null_operand(op), false;
    if (x->shape.n >= n) return true;
    return dsi_invalid("%s: x is %s: expected %s", op, dsi_shape_text(x->shape), expected);
}

/* The first sizes of x, `leading` of them, then those of s. */
static ds_dims sizes(const ds_tensor *x, int leading, ds_dims s)
{
    ds_dims d = {.n = leading + s.n};
    for (int i = 0; i < d.n; i++) d.d[i] = i < leading ? x->shape.d[i] : s.d[i - leading];
    return d;
}

/* The identity on `leading` dimensions, then the five of `order` behind them. */
static ds_tensor *permuted(ds_tensor *x, int leading, const int order[5])
{
    ds_dims d = {.n = leading + 5};
    for (int i = 0; i < leading; i++) d.d[i] = i;
    for (int i = 0; i < 5; i++) d.d[leading + i] = leading + order[i];
    return ds_permute(x, d);
}

ds_tensor *ds_pixel_shuffle(ds_tensor *x, int64_t factor)
{
    const char *op = "pixel_shuffle";
    if (!images(op, x, 3, "[...,C,H,W]")) return NULL;
    int n = x->shape.n - 3;
    const int64_t *s = x->shape.d + n;
    if (n > DS_MAX_DIMS - 5 || factor < 1 || factor > INT32_MAX || s[0] % (factor * factor))
        return dsi_refuse("%s: x is %s, the factor %lld: expected [...,C,H,W] with a C that is a "
                          "multiple of its square",
                          op, dsi_shape_text(x->shape), (long long)factor);
    int64_t c = s[0] / (factor * factor), h = s[1] * factor, w = s[2] * factor;
    if (!dsi_numel(x->shape)) return ds_reshape(x, sizes(x, n, ds_shape(c, h, w)));
    ds_tensor *y = ds_reshape(x, sizes(x, n, ds_shape(c, factor, factor, s[1], s[2])));
    y = permuted(y, n, (int[]){0, 3, 1, 4, 2});
    return ds_reshape(y, sizes(x, n, ds_shape(c, h, w)));
}

ds_tensor *ds_pixel_unshuffle(ds_tensor *x, int64_t factor)
{
    const char *op = "pixel_unshuffle";
    if (!images(op, x, 3, "[...,C,H,W]")) return NULL;
    int n = x->shape.n - 3;
    const int64_t *s = x->shape.d + n;
    if (n > DS_MAX_DIMS - 5 || factor < 1 || factor > INT32_MAX || s[1] % factor || s[2] % factor)
        return dsi_refuse("%s: x is %s, the factor %lld: expected [...,C,H,W] with H and W that "
                          "are multiples of it",
                          op, dsi_shape_text(x->shape), (long long)factor);
    int64_t c = s[0] * factor * factor, h = s[1] / factor, w = s[2] / factor;
    if (!dsi_numel(x->shape)) return ds_reshape(x, sizes(x, n, ds_shape(c, h, w)));
    ds_tensor *y = ds_reshape(x, sizes(x, n, ds_shape(s[0], h, factor, w, factor)));
    y = permuted(y, n, (int[]){0, 2, 4, 1, 3});
    return ds_reshape(y, sizes(x, n, ds_shape(c, h, w)));
}

ds_tensor *ds_channel_shuffle(ds_tensor *x, int64_t groups)
{
    const char *op = "channel_shuffle";
    if (!images(op, x, 3, "[N,C,...]")) return NULL;
    int64_t n = x->shape.d[0], c = x->shape.d[1];
    if (groups < 1 || c % groups)
        return dsi_refuse("%s: x is %s, groups %lld: expected [N,C,...] with a C that is a "
                          "multiple of groups",
                          op, dsi_shape_text(x->shape), (long long)groups);
    if (!dsi_numel(x->shape)) return x;
    ds_tensor *y = ds_reshape(x, ds_shape(n, groups, c / groups, -1));
    return ds_reshape(ds_transpose(y, 1, 2), x->shape);
}

/* ---- windows as columns ------------------------------------------------------------------------------ */

/* Rows and columns: of the kernel, its steps, the padded plane, and the
 * windows. */
typedef struct Windows {
    int64_t kernel[2], stride[2], padding[2], dilation[2], plane[2], count[2];
} Windows;

/* Of a plane h x w. False with the message. */
static bool find_windows(const char *op, ds_unfold_opts o, int64_t h, int64_t w, Windows *v)
{
    dsi_pair(v->kernel, o.kernel, o.kernel_w, 0);
    dsi_pair(v->stride, o.stride, o.stride_w, 1);
    dsi_pair(v->padding, o.padding, o.padding_w, 0);
    dsi_pair(v->dilation, o.dilation, o.dilation_w, 1);
    const int64_t size[2] = {h, w};
    for (int i = 0; i < 2; i++) {
        int64_t field = v->dilation[i] * (v->kernel[i] - 1) + 1;
        v->plane[i] = size[i] + 2 * v->padding[i];
        if (!dsi_check_window(op, v->kernel[i], v->stride[i], v->dilation[i], v->padding[i]))
            return false;
        if (field > v->plane[i])
            return dsi_invalid("%s: a window reaches over %lld %s, but an image has %lld with "
                               "padding %lld",
                               op, (long long)field, i ? "columns" : "rows", (long long)size[i],
                               (long long)v->padding[i]);
        v->count[i] = (v->plane[i] - field) / v->stride[i] + 1;
    }
    if (v->plane[0] > INT32_MAX / v->plane[1])
        return dsi_invalid("%s: an image has %lld x %lld places with its padding: expected fewer "
                           "than 2^31",
                           op, (long long)v->plane[0], (long long)v->plane[1]);
    return true;
}

/* int64 [R S P Q] on x's device: the place of each element of each window in
 * the padded plane. */
static ds_tensor *window_places(const ds_tensor *x, const Windows *v)
{
    int64_t taps = v->kernel[0] * v->kernel[1], columns = v->count[0] * v->count[1];
    ds_tensor *places = dsi_new_host(DS_I64, ds_shape(taps * columns));
    int64_t *at = ds_data_mut(places);
    for (int64_t t = 0; at && t < taps; t++)
        for (int64_t i = 0; i < columns; i++) {
            int64_t row = i / v->count[1] * v->stride[0] + t / v->kernel[1] * v->dilation[0];
            int64_t column = i % v->count[1] * v->stride[1] + t % v->kernel[1] * v->dilation[1];
            *at++ = row * v->plane[1] + column;
        }
    return at ? dsi_beside(places, x, DS_I64) : NULL;
}

ds_tensor *ds_unfold_with(ds_tensor *x, ds_unfold_opts o)
{
    const char *op = "unfold";
    Windows v;
    if (!images(op, x, 3, "[N,C,H,W] or [C,H,W]")) return NULL;
    if (x->shape.n == 3) return ds_squeeze(ds_unfold_with(ds_unsqueeze(x, 0), o), 0);
    if (!dsi_want_float(op, x)) return NULL;
    if (x->shape.n != 4)
        return dsi_refuse("%s: x is %s: expected [N,C,H,W] or [C,H,W]", op,
                          dsi_shape_text(x->shape));
    const int64_t *s = x->shape.d;
    if (!find_windows(op, o, s[2], s[3], &v)) return NULL;
    ds_tensor *plane = ds_pad(x, ds_shape(v.padding[1], v.padding[1], v.padding[0], v.padding[0]));
    plane = ds_reshape(plane, ds_shape(s[0] * s[1], v.plane[0] * v.plane[1]));
    ds_tensor *y = ds_index_select(plane, 1, window_places(x, &v));
    return ds_reshape(y, ds_shape(s[0], s[1] * v.kernel[0] * v.kernel[1], v.count[0] * v.count[1]));
}

ds_tensor *ds_fold_with(ds_tensor *x, int64_t h, int64_t w, ds_unfold_opts o)
{
    const char *op = "fold";
    Windows v;
    if (!images(op, x, 2, "[N,C R S,L] or [C R S,L]")) return NULL;
    if (x->shape.n == 2) return ds_squeeze(ds_fold_with(ds_unsqueeze(x, 0), h, w, o), 0);
    if (!dsi_want_float(op, x) || !dsi_want_sizes(op, ds_shape(h, w), 1) ||
        !find_windows(op, o, h, w, &v))
        return NULL;
    const int64_t *s = x->shape.d, taps = v.kernel[0] * v.kernel[1],
                  columns = v.count[0] * v.count[1];
    if (x->shape.n != 3 || s[1] % taps || s[2] != columns)
        return dsi_refuse("%s: x is %s: expected [N,C %lld,%lld], the windows of %lld x %lld", op,
                          dsi_shape_text(x->shape), (long long)taps, (long long)columns,
                          (long long)h, (long long)w);
    int64_t channels = s[1] / taps;
    ds_tensor *wide = dsi_upcast(x);
    ds_tensor *plane = wide ? dsi_new(wide, ds_shape(s[0] * channels, v.plane[0] * v.plane[1]))
                            : NULL;
    plane = ds_index_add(dsi_fill(plane, 0), 1, window_places(x, &v),
                         ds_reshape(wide, ds_shape(s[0] * channels, taps * columns)), 1);
    plane = ds_reshape(plane, ds_shape(s[0], channels, v.plane[0], v.plane[1]));
    ds_dims cut = ds_shape(-v.padding[1], -v.padding[1], -v.padding[0], -v.padding[0]);
    return ds_cast(ds_pad(plane, cut), x->dtype);
}
