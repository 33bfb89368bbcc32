/* ops/pool.c: the maximum, or the average, of each window of a plane.
 *
 * x [N,C,H,W] -> y [N,C,P,Q], in x's order of memory.
 *   P = (H + 2 padding - dilation (kernel-1) - 1) / stride + 1, Q likewise, rounded down; or up, as long
 *   as the last window begins inside the input or its left padding.
 * max       remembers where each maximum was; where windows do not overlap, its gradient is handed down
 *           in pooled form (Note [Pooled gradients])
 * SPDX-License-Identifier: MIT */
#include "op.h"

/* Attributes that backward needs beside dy. */
typedef struct Pool {
    dsi_pool2d c;
    int64_t h, w; /* of x */
    bool channels_last;
} Pool;

/* [N,C,h,w] with N and C of `like` */
static ds_tensor *new_planes(const ds_tensor *like, int64_t h, int64_t w, bool channels_last)
{
    ds_dims shape = ds_shape(like->shape.d[0], like->shape.d[1], h, w);
    return channels_last ? dsi_new_channels_last(like, shape) : dsi_new(like, shape);
}

/* ---- sizes ------------------------------------------------------------------------------------------- */

ds_tensor *dsi_samples(const char *op, ds_tensor *x, int n)
{
    static const char *const rest[] = {"L", "H,W", "D,H,W"};
    if (!dsi_live(x, op)) return dsi_null_operand(op);
    if (!dsi_want_float(op, x)) return NULL;
    if (x->shape.n == n) return x;
    if (x->shape.n == n - 1) return ds_unsqueeze(x, 0);
    return dsi_refuse("%s: x is %s: expected [N,C,%s] or [C,%s]", op, dsi_shape_text(x->shape),
                      rest[n - 3], rest[n - 3]);
}

bool dsi_want_sizes(const char *op, ds_dims size, int64_t least)
{
    int64_t places = 1;
    bool fits = true;
    for (int i = 0; i < size.n && fits; i++)
        if ((fits = size.d[i] >= least && size.d[i] <= INT32_MAX / places) && size.d[i])
            places *= size.d[i];
    return fits || dsi_invalid("%s: the output's size is %s: expected at least %lld, and fewer "
                               "than 2^31 places",
                               op, dsi_shape_text(size), (long long)least);
}

ds_tensor *dsi_no_windows(ds_tensor *x, ds_dims size, ds_tensor **indices)
{
    ds_dims shape = ds_shape(x->shape.d[0], x->shape.d[1]);
    for (int i = 0; i < size.n; i++) shape.d[shape.n++] = size.d[i];
    if (indices && !(*indices = dsi_new_dtype(x, DS_I64, shape))) return NULL;
    return ds_reshape(ds_slice(x, 2, 0, 0), shape);
}

bool dsi_adaptive_fits(const char *op, const ds_tensor *x, ds_dims size)
{
    for (int i = 0; i < size.n; i++)
        if (!x->shape.d[2 + i])
            return dsi_invalid("%s: x is %s: expected one that is not empty", op,
                               dsi_shape_text(x->shape));
    return dsi_want_sizes(op, size, 0);
}

/* Sets *out to the number of windows along dimension i (0: rows, 1: columns),
 * which has `size` elements; up: ceil_mode. False, with the message, for wrong
 * options. */
static bool windows(const char *op, const dsi_pool2d *c, int i, int64_t size, bool up, int64_t *out)
{
    int64_t stride = c->stride[i], padding = c->padding[i], field;
    bool fits = dsi_check_window(op, c->kernel[i], stride, c->dilation[i], padding);
    if (!fits || stride < 1) return false; /* the second for the analyzer */
    field = c->dilation[i] * (c->kernel[i] - 1) + 1;
    if (padding > field / 2)
        return dsi_refuse("%s: padding %lld: expected at most half the kernel, which reaches over "
                          "%lld",
                          op, (long long)padding, (long long)field);
    int64_t room = size + 2 * padding - field;
    if (room < (up ? 1 - stride : 0))
        return dsi_refuse("%s: a window reaches over %lld %s, but x has %lld with padding %lld", op,
                          (long long)field, i ? "columns" : "rows", (long long)size,
                          (long long)padding);
    /* rounded up, the last window may hang over the end, but not begin there */
    *out = (up ? room + stride - 1 : room) / stride + 1;
    if ((*out - 1) * stride >= size + padding) --*out;
    return true;
}

/* Fills *p from the options, with their defaults (stride: the kernel), and
 * out[2] with P and Q. x is [N,C,H,W]. */
static bool pool_check(const char *op, const ds_tensor *x, ds_pool2d_opts o, Pool *p,
                       int64_t out[2])
{
    *p = (Pool){.c = {.exclude_pad = o.exclude_pad, .divisor = o.divisor},
                .h = x->shape.d[2],
                .w = x->shape.d[3],
                .channels_last = dsi_is_channels_last(x)};
    dsi_pair(p->c.kernel, o.kernel, o.kernel_w, 0);
    dsi_pair(p->c.padding, o.padding, o.padding_w, 0);
    dsi_pair(p->c.dilation, o.dilation, o.dilation_w, 1);
    p->c.stride[0] = o.stride ? o.stride : p->c.kernel[0];
    p->c.stride[1] = o.stride_w ? o.stride_w : o.stride ? o.stride : p->c.kernel[1];
    return windows(op, &p->c, 0, p->h, o.ceil_mode, &out[0]) &&
           windows(op, &p->c, 1, p->w, o.ceil_mode, &out[1]);
}

/* ---- maximum ----------------------------------------------------------------------------------------- */

/* True if windows overlap. An element in two windows has a sum as gradient,
 * which pooled form cannot express. */
static bool overlap(const dsi_pool2d *c)
{
    for (int i = 0; i < 2; i++)
        if (c->stride[i] < c->dilation[i] * (c->kernel[i] - 1) + 1) return true;
    return false;
}

/* True if the device has kernels for a gradient in pooled form. */
static bool takes_pooled(const dsi_device *d)
{
    return (dsi_fusion(d, conv2d_dx_pooled) && dsi_fusion(d, conv2d_dw_pooled)) ||
           dsi_fusion(d, relu_max_pool2d_dx);
}

/* Saved: y, index. If windows do not overlap, the gradient is handed on in
 * pooled form: y is needed there, because a ReLU below can be applied to its
 * values. */
static void max_pool2d_backward(dsi_node *n, ds_tensor *dy)
{
    const Pool *p = dsi_attr(n);
    ds_tensor *y = dsi_saved_tensor(n, 0), *index = dsi_saved_tensor(n, 1);
    if (!overlap(&p->c) && takes_pooled(dy->device)) {
        ds_dims shape = ds_shape(dy->shape.d[0], dy->shape.d[1], p->h, p->w);
        dsi_accumulate_grad(n, 0, dsi_new_pooled(dy, y, index, shape));
        return;
    }
    ds_tensor *dx = new_planes(dy, p->h, p->w, p->channels_last);
    dsi_accumulate_grad(
        n, 0, dsi_result_if(dsi_run(dx, max_pool2d_dx, dsi_v(dy), dsi_v(index), dsi_v(dx)), dx));
}

const dsi_op dsi_op_max_pool2d = {.name = "max_pool2d", .backward = max_pool2d_backward};

/* The places of maxima: int32, which is enough for a plane and half of int64,
 * with y's strides, as the kernels expect. */
static ds_tensor *new_index(const ds_tensor *y)
{
    ds_tensor *index = y ? dsi_new_dtype(y, DS_I32, y->shape) : NULL;
    for (int i = 0; index && i < y->shape.n; i++) index->stride[i] = y->stride[i];
    return index;
}

/* x [N,C,H,W] -> y [N,C,P,Q], and for backward the place of each maximum in its
 * plane, int32. op: the name that messages begin with. */
static ds_tensor *max_pool_images(const char *op, ds_tensor *x, ds_pool2d_opts o)
{
    Pool p;
    int64_t out[2];
    if (!pool_check(op, x, o, &p, out)) return NULL;
    if (p.h * p.w > INT32_MAX)
        return dsi_refuse("%s: x is %s: a plane has more elements than an int32 index", op,
                          dsi_shape_text(x->shape));

    /* The places of maxima that the ReLU makes zero would be others; their
     * gradients are zero. */
    ds_tensor *source = o.indices ? NULL : dsi_deferred_relu(x); /* Note [Deferred ops] */
    if (!dsi_acquire(source ? source : x)) return NULL;

    ds_tensor *y = new_planes(x, out[0], out[1], p.channels_last), *index = new_index(y);

    if (!index ||
        !(source ? dsi_run_fusion(y, relu_max_pool2d, &p.c, dsi_v(source), dsi_v(y), dsi_v(index))
                 : dsi_run(y, max_pool2d, &p.c, dsi_v(x), dsi_v(y), dsi_v(index))))
        return NULL;
    if (o.indices && !(*o.indices = ds_cast(index, DS_I64))) return NULL;

    dsi_cost_elements(x, 1);
    /* y is saved for relu's backward below, which asks whether the maximum was
     * positive */
    dsi_node *n = dsi_record(&dsi_op_max_pool2d, y, x);
    dsi_save_for_backward(n, y), dsi_save_for_backward(n, index), dsi_set_attr(n, &p, sizeof p);
    return y;
}

/* Without dimension dim, of size 1, in y and in the indices. */
static ds_tensor *max_pool_squeeze(ds_tensor *y, ds_tensor **indices, int dim)
{
    if (y && indices) *indices = ds_squeeze(*indices, dim);
    return ds_squeeze(y, dim);
}

ds_tensor *ds_max_pool2d_with(ds_tensor *x, ds_pool2d_opts o)
{
    if (o.indices) *o.indices = NULL;
    ds_tensor *images = dsi_samples("max_pool2d", x, 4);
    ds_tensor *y = images ? max_pool_images("max_pool2d", images, o) : NULL;
    return images == x ? y : max_pool_squeeze(y, o.indices, 0);
}

/* ---- average ----------------------------------------------------------------------------------------- */

/* Nothing is saved: an element's gradient is dy / divisor, summed over its
 * windows. */
static void avg_pool2d_backward(dsi_node *n, ds_tensor *dy)
{
    const Pool *p = dsi_attr(n);
    ds_tensor *dx = new_planes(dy, p->h, p->w, p->channels_last);
    dsi_accumulate_grad(n, 0,
                        dsi_result_if(dsi_run(dx, avg_pool2d_dx, &p->c, dsi_v(dy), dsi_v(dx)), dx));
}

const dsi_op dsi_op_avg_pool2d = {.name = "avg_pool2d", .backward = avg_pool2d_backward};

/* The divisor is the window's size, with its padding unless .exclude_pad. */
static ds_tensor *avg_pool_images(const char *op, ds_tensor *x, ds_pool2d_opts o)
{
    Pool p;
    int64_t out[2];
    if (o.dilation > 1 || o.dilation_w > 1 || o.indices)
        return dsi_refuse("%s: dilation and indices are options of max_pool2d", op);
    if (!pool_check(op, x, o, &p, out) || !dsi_acquire(x)) return NULL;

    ds_tensor *y = new_planes(x, out[0], out[1], p.channels_last);

    if (!dsi_run(y, avg_pool2d, &p.c, dsi_v(x), dsi_v(y))) return NULL;

    dsi_cost_elements(x, 1);
    dsi_set_attr(dsi_record(&dsi_op_avg_pool2d, y, x), &p, sizeof p);
    return y;
}

ds_tensor *ds_avg_pool2d_with(ds_tensor *x, ds_pool2d_opts o)
{
    ds_tensor *images = dsi_samples("avg_pool2d", x, 4);
    ds_tensor *y = images ? avg_pool_images("avg_pool2d", images, o) : NULL;
    return images == x ? y : ds_squeeze(y, 0);
}

const dsi_op dsi_op_adaptive_avg_pool2d = {.name = "adaptive_avg_pool2d",
                                           .backward = avg_pool2d_backward};

/* x [N,C,H,W]; window p is rows floor(p H / h) to ceil((p + 1) H / h) - 1:
 * windows may overlap. */
static ds_tensor *adaptive_avg_images(const char *op, ds_tensor *x, int64_t h, int64_t w)
{
    if (!x || !dsi_adaptive_fits(op, x, ds_shape(h, w))) return NULL;
    if (!h || !w) return dsi_no_windows(x, ds_shape(h, w), NULL);
    if (!dsi_acquire(x)) return NULL;
    Pool p = {.c.adaptive = true,
              .h = x->shape.d[2],
              .w = x->shape.d[3],
              .channels_last = dsi_is_channels_last(x)};

    ds_tensor *y = new_planes(x, h, w, p.channels_last);

    if (!dsi_run(y, avg_pool2d, &p.c, dsi_v(x), dsi_v(y))) return NULL;

    dsi_cost_elements(x, 1);
    dsi_set_attr(dsi_record(&dsi_op_adaptive_avg_pool2d, y, x), &p, sizeof p);
    return y;
}

ds_tensor *ds_adaptive_avg_pool2d(ds_tensor *x, int64_t h, int64_t w)
{
    ds_tensor *images = dsi_samples("adaptive_avg_pool2d", x, 4);
    ds_tensor *y = adaptive_avg_images("adaptive_avg_pool2d", images, h, w);
    return images == x ? y : ds_squeeze(y, 0);
}

/* Window i of n along a dimension is places [*begin, *end); the same for
 * averages. */
static void adaptive_window(int64_t i, int64_t n, int64_t size, int64_t *begin, int64_t *end)
{
    *begin = i * size / n, *end = ((i + 1) * size + n - 1) / n;
}

/* int64 [h w, L] on x's device: the places in a plane [H,W] of each window in
 * row-major order; a window with fewer than L repeats its last one, which
 * changes neither the maximum nor which one is the first, or the last NaN. */
static ds_tensor *adaptive_places(const ds_tensor *x, int64_t h, int64_t w)
{
    int64_t height = x->shape.d[2], width = x->shape.d[3], most[2] = {0, 0}, r[2], c[2];
    for (int64_t i = 0; i < h; i++) {
        adaptive_window(i, h, height, &r[0], &r[1]);
        if (r[1] - r[0] > most[0]) most[0] = r[1] - r[0];
    }
    for (int64_t i = 0; i < w; i++) {
        adaptive_window(i, w, width, &c[0], &c[1]);
        if (c[1] - c[0] > most[1]) most[1] = c[1] - c[0];
    }
    int64_t length = most[0] * most[1];
    ds_tensor *places = dsi_new_host(DS_I64, ds_shape(h * w, length));
    int64_t *at = ds_data_mut(places);
    for (int64_t i = 0; at && i < h * w; i++, at += length) {
        int64_t n = 0;
        adaptive_window(i / w, h, height, &r[0], &r[1]);
        adaptive_window(i % w, w, width, &c[0], &c[1]);
        for (int64_t row = r[0]; row < r[1]; row++)
            for (int64_t column = c[0]; column < c[1]; column++) at[n++] = row * width + column;
        for (; n < length; n++) at[n] = at[n - 1];
    }
    return at ? dsi_beside(places, x, DS_I64) : NULL;
}

/* x [N,C,H,W]. Made of index_select, which copies the windows, and max_pool2d,
 * whose windows are then rows. */
static ds_tensor *adaptive_max_images(const char *op, ds_tensor *x, int64_t h, int64_t w,
                                      ds_tensor **indices)
{
    if (!x || !dsi_adaptive_fits(op, x, ds_shape(h, w))) return NULL;
    if (!h || !w) return dsi_no_windows(x, ds_shape(h, w), indices);
    const int64_t *s = x->shape.d;
    ds_dims shape = ds_shape(s[0], s[1], h, w);
    ds_tensor *places = adaptive_places(x, h, w), *at = NULL;
    if (!places) return NULL;
    int64_t windows = h * w, length = places->shape.d[1];
    places = ds_reshape(places, ds_shape(windows * length));
    ds_tensor *lines = ds_index_select(ds_reshape(x, ds_shape(s[0], s[1], s[2] * s[3])), 2, places);
    lines = ds_reshape(lines, ds_shape(s[0], s[1], windows, length));
    ds_pool2d_opts o = {.kernel = 1, .kernel_w = (int)length, .indices = indices ? &at : NULL};
    ds_tensor *y = lines ? ds_reshape(max_pool_images(op, lines, o), shape) : NULL;
    if (y && indices) {
        at = ds_index_select(places, 0, ds_reshape(at, ds_shape(-1)));
        if (!(*indices = ds_reshape(at, shape))) return NULL;
    }
    return y;
}

ds_tensor *ds_adaptive_max_pool2d(ds_tensor *x, int64_t h, int64_t w, ds_tensor **indices)
{
    if (indices) *indices = NULL;
    ds_tensor *images = dsi_samples("adaptive_max_pool2d", x, 4);
    ds_tensor *y = adaptive_max_images("adaptive_max_pool2d", images, h, w, indices);
    return images == x ? y : max_pool_squeeze(y, indices, 0);
}

/* ---- one dimension ----------------------------------------------------------------------------------- */

/* x [N,C,L] or [C,L] as images [N,C,1,L] of one row; NULL with the message. */
static ds_tensor *one_row(const char *op, ds_tensor *x)
{
    return ds_unsqueeze(dsi_samples(op, x, 3), 2);
}

/* y [N,C,1,P] and its indices as [N,C,P], or, where x is [C,L], [C,P]. */
static ds_tensor *one_row_back(ds_tensor *y, ds_tensor **indices, const ds_tensor *x)
{
    y = max_pool_squeeze(y, indices, 2);
    return x->shape.n == 3 ? y : max_pool_squeeze(y, indices, 0);
}

/* The options that make windows of one row; false with the message. */
static bool pool1d_rows(const char *op, ds_pool1d_opts o, ds_pool2d_opts *rows)
{
    if (o.stride < 0 || o.padding < 0 || o.dilation < 0)
        return dsi_invalid("%s: stride %d, padding %d, dilation %d: expected at least 1, 0, 1", op,
                           o.stride, o.padding, o.dilation);
    *rows = (ds_pool2d_opts){.kernel = 1,
                             .kernel_w = o.kernel ? o.kernel : -1,
                             .stride = 1,
                             .stride_w = o.stride ? o.stride : o.kernel,
                             .padding_w = o.padding ? o.padding : -1,
                             .dilation = 1,
                             .dilation_w = o.dilation ? o.dilation : 1,
                             .ceil_mode = o.ceil_mode,
                             .exclude_pad = o.exclude_pad,
                             .indices = o.indices};
    return true;
}

ds_tensor *ds_max_pool1d_with(ds_tensor *x, ds_pool1d_opts o)
{
    ds_pool2d_opts rows;
    if (o.indices) *o.indices = NULL;
    ds_tensor *images = one_row("max_pool1d", x);
    if (!images || !pool1d_rows("max_pool1d", o, &rows)) return NULL;
    return one_row_back(max_pool_images("max_pool1d", images, rows), o.indices, x);
}

ds_tensor *ds_avg_pool1d_with(ds_tensor *x, ds_pool1d_opts o)
{
    ds_pool2d_opts rows;
    ds_tensor *images = one_row("avg_pool1d", x);
    if (!images || !pool1d_rows("avg_pool1d", o, &rows)) return NULL;
    return one_row_back(avg_pool_images("avg_pool1d", images, rows), NULL, x);
}

ds_tensor *ds_adaptive_avg_pool1d(ds_tensor *x, int64_t n)
{
    const char *op = "adaptive_avg_pool1d";
    ds_tensor *y = adaptive_avg_images(op, one_row(op, x), 1, n);
    return y ? one_row_back(y, NULL, x) : NULL;
}

ds_tensor *ds_adaptive_max_pool1d(ds_tensor *x, int64_t n, ds_tensor **indices)
{
    const char *op = "adaptive_max_pool1d";
    if (indices) *indices = NULL;
    ds_tensor *y = adaptive_max_images(op, one_row(op, x), 1, n, indices);
    return y ? one_row_back(y, indices, x) : NULL;
}
