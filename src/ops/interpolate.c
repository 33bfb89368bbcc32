/* ops/interpolate.c: images and sequences in another size.
 *
 * nearest  y[i] = x[floor(i s)]
 * linear   y[i] = (1 - t) x[k] + t x[k + 1], k + t = max(0, (i + 1/2) s - 1/2), or i s with
 *          align_corners; bilinear: along columns, then rows
 * area     adaptive_avg_pool2d
 * s is the input's size over the output's, or 1 / scale_factor; with
 * align_corners (input size - 1) / (output size - 1). Places are computed in
 * float32, as PyTorch does, for float64 tensors in float64. Each op is made of
 * others, along one dimension after the other.
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include <math.h>

typedef struct Axis {
    int dim;
    int64_t in, out; /* sizes */
    double step;     /* s above */
} Axis;

/* x[index] along dim; index int64 [n]. */
static ds_tensor *axis_select(ds_tensor *x, int dim, ds_tensor *index)
{
    if (!x || !index) return NULL;
    ds_dims around = {.n = x->shape.n}, shape = x->shape;
    for (int i = 0; i < around.n; i++) around.d[i] = 1;
    around.d[dim] = shape.d[dim] = index->shape.d[0];
    index = ds_to(index, dsi_device_id(x->device), DS_I64);
    return index ? ds_gather(x, dim, ds_expand(ds_reshape(index, around), shape)) : NULL;
}

static double to_place(const ds_tensor *x, double place)
{
    return x->dtype == DS_F64 ? place : (double)(float)place;
}

static ds_tensor *axis_nearest(ds_tensor *x, Axis a)
{
    ds_tensor *index = dsi_new_host(DS_I64, ds_shape(a.out));
    int64_t *k = index ? ds_data_mut(index) : NULL;
    for (int64_t i = 0; k && i < a.out; i++) {
        k[i] = (int64_t)floor(to_place(x, (double)i * a.step));
        if (k[i] > a.in - 1) k[i] = a.in - 1;
    }
    return axis_select(x, a.dim, index);
}

/* Neighbours -> k0, k1, and the second one's weight -> t. */
static void axis_neighbours(const ds_tensor *x, Axis a, bool align, int64_t *k0, int64_t *k1,
                            double *t)
{
    for (int64_t i = 0; i < a.out; i++) {
        double at = align ? to_place(x, (double)i * a.step)
                          : to_place(x, fma((double)i + 0.5, a.step, -0.5));
        if (at < 0) at = 0;
        k0[i] = (int64_t)at < a.in - 1 ? (int64_t)at : a.in - 1;
        k1[i] = k0[i] < a.in - 1 ? k0[i] + 1 : k0[i];
        t[i] = fmin(fmax(at - (double)k0[i], 0), 1);
    }
}

static ds_tensor *axis_linear(ds_tensor *x, Axis a, bool align)
{
    ds_tensor *k0 = dsi_new_host(DS_I64, ds_shape(a.out)),
              *k1 = dsi_new_host(DS_I64, ds_shape(a.out));
    ds_tensor *t = dsi_new_host(DS_F64, ds_shape(a.out));
    if (!x || !ds_data_mut(k0) || !ds_data_mut(k1) || !ds_data_mut(t)) return NULL;
    axis_neighbours(x, a, align, ds_data_mut(k0), ds_data_mut(k1), ds_data_mut(t));
    ds_dims along = {.n = x->shape.n - a.dim, .d = {a.out}}; /* t from dimension dim on */
    for (int i = 1; i < along.n; i++) along.d[i] = 1;
    t = ds_reshape(ds_to(t, dsi_device_id(x->device), x->dtype), along);
    return ds_add(ds_mul(axis_select(x, a.dim, k0), ds_shift(ds_neg(t), 1)),
                  ds_mul(axis_select(x, a.dim, k1), t));
}

/* ---- the op ------------------------------------------------------------------------------------------ */

static bool interpolate_check(const ds_tensor *x, ds_interpolate_opts o)
{
    static const char *const modes[] = {"nearest", "linear", "bilinear", "area"};
    if (!dsi_want_float("interpolate", x)) return false;
    if ((unsigned)o.mode > DS_AREA) return dsi_refuse("interpolate: there is no mode %d", o.mode);
    int n = x->shape.n, most = o.mode == DS_LINEAR ? 3 : 4, least = o.mode == DS_BILINEAR ? 4 : 3;
    if (n < least || n > most)
        return dsi_refuse("interpolate: x is %s: mode %s expects %s%s%s", dsi_shape_text(x->shape),
                          modes[o.mode], least == 3 ? "[N,C,L]" : "", least < most ? " or " : "",
                          most == 4 ? "[N,C,H,W]" : "");
    bool by_factor = o.scale_factor != 0 || o.scale_factor_w != 0;
    if (!o.size.n == !by_factor)
        return dsi_refuse("interpolate: %s size and scale_factor: expected one of them",
                          o.size.n ? "both" : "neither");
    if (o.size.n > 1 && o.size.n != n - 2)
        return dsi_refuse("interpolate: size is %s, x is %s: expected %d", dsi_shape_text(o.size),
                          dsi_shape_text(x->shape), n - 2);
    if (by_factor && !(o.scale_factor > 0 && o.scale_factor_w >= 0))
        return dsi_refuse("interpolate: scale_factor is %g, %g: expected above 0", o.scale_factor,
                          o.scale_factor_w);
    if (o.align_corners && o.mode != DS_LINEAR && o.mode != DS_BILINEAR)
        return dsi_refuse("interpolate: align_corners with mode %s: expected linear or bilinear",
                          modes[o.mode]);
    return true;
}

/* Dimension dim of x, from 2 on, and its size in the output; false with the
 * message. */
static bool interpolate_axis(const ds_tensor *x, int dim, ds_interpolate_opts o, Axis *a)
{
    double factor = dim == 3 && o.scale_factor_w > 0 ? o.scale_factor_w : o.scale_factor;
    *a = (Axis){dim, x->shape.d[dim], 0, 0};
    a->out = o.size.n ? o.size.d[o.size.n > 1 ? dim - 2 : 0]
                      : (int64_t)floor((double)a->in * factor);
    if (a->in < 1 || a->out < 1)
        return dsi_refuse("interpolate: dimension %d of x %s would be %lld long: expected at least "
                          "1 element before and after",
                          dim, dsi_shape_text(x->shape), (long long)a->out);
    bool given = !o.size.n && !o.recompute_scale_factor;
    if (o.align_corners)
        a->step = a->out > 1 ? (double)(a->in - 1) / (double)(a->out - 1) : 0;
    else
        a->step = given ? 1 / factor : (double)a->in / (double)a->out;
    a->step = to_place(x, a->step);
    return true;
}

static ds_tensor *interpolate_area(ds_tensor *x, const Axis *a)
{
    if (x->shape.n == 4) return ds_adaptive_avg_pool2d(x, a[0].out, a[1].out);
    return ds_squeeze(ds_adaptive_avg_pool2d(ds_unsqueeze(x, 2), 1, a[0].out), 2);
}

/* 16-bit elements are computed in float32 and rounded once. */
ds_tensor *ds_interpolate_with(ds_tensor *x, ds_interpolate_opts o)
{
    if (!dsi_live(x, "interpolate")) return dsi_null_operand("interpolate");
    if (!interpolate_check(x, o)) return NULL;
    Axis a[2] = {{0}};
    for (int dim = 2; dim < x->shape.n; dim++)
        if (!interpolate_axis(x, dim, o, &a[dim - 2])) return NULL;
    if (o.mode == DS_AREA) return interpolate_area(x, a);
    bool linear = o.mode != DS_NEAREST;
    ds_tensor *y = linear ? dsi_upcast(x) : x;
    for (int dim = x->shape.n - 1; dim >= 2 && y; dim--)
        y = linear ? axis_linear(y, a[dim - 2], o.align_corners) : axis_nearest(y, a[dim - 2]);
    return y ? ds_cast(y, x->dtype) : NULL;
}
