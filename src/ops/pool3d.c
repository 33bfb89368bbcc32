/* ops/pool3d.c: pools of volumes, made of pools of images.
 *
 * The maximum and the average of a window of a volume are those, over the
 * depth, of the maxima and averages of its planes: the divisor of a window is a
 * product of three numbers, and of equal maxima the first one is in the first
 * plane that has it. So
 *     [N,C,D,H,W] = [N,C D,H,W] -> [N,C,D,P Q] -> [N,C,O,P Q]
 * 16-bit averages are computed in float32, and rounded once.
 * SPDX-License-Identifier: MIT */
#include "op.h"

typedef struct Pool3d {
    int64_t kernel[3], stride[3], padding[3], dilation[3];
} Pool3d;

/* Whether padding is at most half of a window, and, without `partial` ones, one
 * fits. x [N,C,D,H,W] */
static bool pool3d_fits(const char *op, const ds_tensor *x, const Pool3d *p, bool partial)
{
    for (int i = 0; i < 3; i++) {
        int64_t field = p->dilation[i] * (p->kernel[i] - 1) + 1, size = x->shape.d[2 + i];
        if (p->padding[i] > field / 2)
            return dsi_invalid("%s: padding %lld: expected at most half the kernel, which reaches "
                               "over %lld",
                               op, (long long)p->padding[i], (long long)field);
        if (!partial && field > size + 2 * p->padding[i])
            return dsi_invalid("%s: x is %s: a window reaches over %lld of dimension %d, which has "
                               "%lld with padding %lld",
                               op, dsi_shape_text(x->shape), (long long)field, 2 + i,
                               (long long)size, (long long)p->padding[i]);
    }
    return true;
}

static ds_tensor *pool3d_check(const char *op, ds_tensor *x, ds_pool3d_opts o, Pool3d *p,
                               bool partial)
{
    ds_tensor *v = dsi_samples(op, x, 5);
    bool good = v && dsi_triple(op, "kernel", o.kernel, 0, 1, p->kernel) &&
                dsi_triple(op, "stride", o.stride.n ? o.stride : o.kernel, 0, 1, p->stride) &&
                dsi_triple(op, "padding", o.padding, 0, 0, p->padding) &&
                dsi_triple(op, "dilation", o.dilation, 1, 1, p->dilation) &&
                pool3d_fits(op, v, p, partial);
    return dsi_result_if(good, v);
}

/* The options of the pool of rows and columns, and of that of the depth. */
static ds_pool2d_opts along(const Pool3d *p, bool depth, const ds_pool3d_opts *o)
{
    int i = depth ? 0 : 1;
    ds_pool2d_opts a = {.kernel = (int)p->kernel[i],
                        .kernel_w = depth ? 1 : (int)p->kernel[2],
                        .stride = (int)p->stride[i],
                        .stride_w = depth ? 1 : (int)p->stride[2],
                        .padding = (int)p->padding[i],
                        .padding_w = depth || !p->padding[2] ? -1 : (int)p->padding[2],
                        .dilation = (int)p->dilation[i],
                        .dilation_w = depth ? 1 : (int)p->dilation[2],
                        .ceil_mode = o->ceil_mode,
                        .exclude_pad = o->exclude_pad};
    return a;
}

/* [N,C,D,P,Q] as [N,C,D,P Q] */
static ds_tensor *depth_of(ds_tensor *y, const ds_tensor *v)
{
    if (!y) return NULL;
    int64_t points = y->shape.d[2] * y->shape.d[3];
    return ds_reshape(y, ds_shape(v->shape.d[0], v->shape.d[1], v->shape.d[2], points));
}

/* y [N,C,O,P Q] as [N,C,O,P,Q], or without N */
static ds_tensor *volumes_of(ds_tensor *y, int64_t rows, int64_t columns, bool one)
{
    if (!y) return NULL;
    const int64_t *s = y->shape.d;
    y = ds_reshape(y, ds_shape(s[0], s[1], s[2], rows, columns));
    return one ? ds_squeeze(y, 0) : y;
}

/* The place of a maximum in its volume: `depth`, [N,C,O,P Q], has its place
 * among [D,P Q], and `plane`, [N,C,D,P Q], the place in [H,W] there. */
static ds_tensor *place_in_volume(ds_tensor *depth, ds_tensor *plane, const ds_tensor *v)
{
    if (!depth || !plane) return NULL;
    const int64_t *s = plane->shape.d;
    ds_dims lines = ds_shape(s[0], s[1], s[2] * s[3]);
    int64_t places = depth->shape.d[2] * depth->shape.d[3];
    ds_tensor *at = ds_reshape(depth, ds_shape(s[0], s[1], places));
    ds_tensor *in = ds_gather(ds_reshape(plane, lines), 2, at);
    double columns = (double)s[3], area = (double)(v->shape.d[3] * v->shape.d[4]);
    ds_tensor *d = ds_floor_divide(at, dsi_number_beside(at, columns));
    return ds_reshape(ds_add(in, ds_mul(d, dsi_number_beside(d, area))), depth->shape);
}

ds_tensor *ds_max_pool3d_with(ds_tensor *x, ds_pool3d_opts o)
{
    const char *op = "max_pool3d";
    Pool3d p;
    if (o.indices) *o.indices = NULL;
    ds_tensor *v = pool3d_check(op, x, o, &p, o.ceil_mode), *plane_at = NULL, *depth_at = NULL;
    if (!v) return NULL;
    if (o.exclude_pad || o.divisor)
        return dsi_refuse("%s: exclude_pad and divisor are options of avg_pool3d", op);
    const int64_t *s = v->shape.d;
    ds_pool2d_opts plane = along(&p, false, &o), depth = along(&p, true, &o);
    if (o.indices) plane.indices = &plane_at, depth.indices = &depth_at;
    ds_tensor *y = ds_max_pool2d_with(ds_reshape(v, ds_shape(s[0], s[1] * s[2], s[3], s[4])),
                                      plane);
    int64_t rows = y ? y->shape.d[2] : 0, columns = y ? y->shape.d[3] : 0;
    y = y ? ds_max_pool2d_with(depth_of(y, v), depth) : NULL;
    if (!y) return dsi_fail_in(op, ds_error_status()), NULL;
    bool one = x->shape.n == 4;
    if (o.indices) {
        ds_tensor *at = place_in_volume(depth_at, depth_of(plane_at, v), v);
        if (!(*o.indices = volumes_of(at, rows, columns, one))) return NULL;
    }
    return volumes_of(y, rows, columns, one);
}

ds_tensor *ds_avg_pool3d_with(ds_tensor *x, ds_pool3d_opts o)
{
    const char *op = "avg_pool3d";
    Pool3d p;
    ds_tensor *v = pool3d_check(op, x, o, &p, false);
    if (!v) return NULL;
    if (o.dilation.n || o.indices)
        return dsi_refuse("%s: dilation and indices are options of max_pool3d", op);
    const int64_t *s = v->shape.d;
    ds_pool2d_opts plane = along(&p, false, &o), depth = along(&p, true, &o);
    if (o.divisor) plane.divisor = depth.divisor = 1;
    ds_tensor *y = ds_reshape(dsi_upcast(v), ds_shape(s[0], s[1] * s[2], s[3], s[4]));
    y = ds_avg_pool2d_with(y, plane);
    int64_t rows = y ? y->shape.d[2] : 0, columns = y ? y->shape.d[3] : 0;
    y = y ? ds_avg_pool2d_with(depth_of(y, v), depth) : NULL;
    if (y && o.divisor) y = ds_scale(y, 1 / (double)o.divisor);
    if (!y) return dsi_fail_in(op, ds_error_status()), NULL;
    return ds_cast(volumes_of(y, rows, columns, x->shape.n == 4), x->dtype);
}

/* ---- adaptive ---------------------------------------------------------------------------------------- */

ds_tensor *ds_adaptive_avg_pool3d(ds_tensor *x, int64_t d, int64_t h, int64_t w)
{
    const char *op = "adaptive_avg_pool3d";
    ds_tensor *v = dsi_samples(op, x, 5);
    if (!v || !dsi_adaptive_fits(op, v, ds_shape(d, h, w))) return NULL;
    if (!d || !h || !w) {
        ds_tensor *none = dsi_no_windows(v, ds_shape(d, h, w), NULL);
        return v == x ? none : ds_squeeze(none, 0);
    }
    const int64_t *s = v->shape.d;
    ds_tensor *y = ds_reshape(dsi_upcast(v), ds_shape(s[0], s[1] * s[2], s[3], s[4]));
    y = ds_adaptive_avg_pool2d(depth_of(ds_adaptive_avg_pool2d(y, h, w), v), d, h * w);
    return y ? ds_cast(volumes_of(y, h, w, x->shape.n == 4), x->dtype) : NULL;
}

ds_tensor *ds_adaptive_max_pool3d(ds_tensor *x, int64_t d, int64_t h, int64_t w,
                                  ds_tensor **indices)
{
    const char *op = "adaptive_max_pool3d";
    if (indices) *indices = NULL;
    ds_tensor *v = dsi_samples(op, x, 5), *plane_at = NULL, *depth_at = NULL;
    if (!v || !dsi_adaptive_fits(op, v, ds_shape(d, h, w))) return NULL;
    if (!d || !h || !w) {
        ds_tensor *none = dsi_no_windows(v, ds_shape(d, h, w), indices);
        if (v == x || !none) return none;
        if (indices) *indices = ds_squeeze(*indices, 0);
        return ds_squeeze(none, 0);
    }
    const int64_t *s = v->shape.d;
    ds_tensor *y = ds_reshape(v, ds_shape(s[0], s[1] * s[2], s[3], s[4]));
    y = ds_adaptive_max_pool2d(y, h, w, indices ? &plane_at : NULL);
    y = ds_adaptive_max_pool2d(depth_of(y, v), d, h * w, indices ? &depth_at : NULL);
    if (!y) return NULL;
    bool one = x->shape.n == 4;
    if (indices) {
        ds_tensor *at = place_in_volume(depth_at, depth_of(plane_at, v), v);
        if (!(*indices = volumes_of(at, h, w, one))) return NULL;
    }
    return volumes_of(y, h, w, one);
}

/* ---- back from maxima -------------------------------------------------------------------------------- */

/* A place that several windows name gets the value of the last of them. */
ds_tensor *ds_max_unpool(ds_tensor *x, ds_tensor *indices, ds_dims size)
{
    const char *op = "max_unpool";
    if (!dsi_live_all(op, x, indices)) return dsi_null_operand(op);
    if (!dsi_want_float(op, x) || !dsi_want_int64(op, "indices", x, indices)) return NULL;
    if (size.n < 1 || size.n > 3 || x->shape.n != size.n + 2 ||
        !dsi_same_shape(x->shape, indices->shape))
        return dsi_refuse("%s: x is %s, indices are %s, the size %s: expected [N,C,...] twice, and "
                          "the 1 to 3 sizes behind [N,C]",
                          op, dsi_shape_text(x->shape), dsi_shape_text(indices->shape),
                          dsi_shape_text(size));
    if (!dsi_want_sizes(op, size, 1)) return NULL;
    ds_dims shape = ds_shape(x->shape.d[0], x->shape.d[1]);
    int64_t plane = 1;
    for (int i = 0; i < size.n; i++) shape.d[shape.n++] = size.d[i], plane *= size.d[i];
    ds_tensor *zero = dsi_fill(dsi_new(x, ds_shape(shape.d[0], shape.d[1], plane)), 0);
    ds_tensor *y = ds_scatter(zero, 2, ds_flatten(indices, 2), ds_flatten(x, 2));
    return y ? ds_reshape(y, shape) : NULL;
}
