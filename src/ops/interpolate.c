/* ops/interpolate.c: images and sequences in another size.
 *
 * nearest  y[i] = x[floor(i s)], nearest-exact x[floor((i + 1/2) s)]
 * linear   y[i] = (1 - t) x[k] + t x[k + 1], k + t = max(0, (i + 1/2) s - 1/2), or i s with
 *          align_corners; bilinear: along columns, then rows
 * bicubic  y[i] = sum over j = -1 .. 2 of f_j(t) x[k + j], k + t = (i + 1/2) s - 1/2, or i s, and
 *          k + j cut to the places of x; f are Keys' cubics
 * area     adaptive_avg_pool2d; of a volume its planes, then their depth
 * s is the input's size over the output's, or 1 / scale_factor; with
 * align_corners (input size - 1) / (output size - 1). Places are computed in
 * float32, as PyTorch does, for float64 tensors in float64. Each op is made of
 * others, along one dimension after the other.
 * SPDX-License-Identifier: MIT */
#include "base/int.h"
#include "op.h"

#include <math.h>

typedef struct Axis {
    int dim;
    int64_t in, out; /* sizes */
    double step;     /* s above */
    bool align;      /* align_corners */
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

static ds_tensor *axis_nearest(ds_tensor *x, Axis a, double shift)
{
    ds_tensor *index = dsi_new_host(DS_I64, ds_shape(a.out));
    int64_t *k = index ? ds_data_mut(index) : NULL;
    for (int64_t i = 0; k && i < a.out; i++) {
        k[i] = (int64_t)floor(to_place(x, ((double)i + shift) * a.step));
        if (k[i] > a.in - 1) k[i] = a.in - 1;
    }
    return axis_select(x, a.dim, index);
}

/* Where output i is in x. */
static double axis_place(const ds_tensor *x, Axis a, int64_t i)
{
    return to_place(x, a.align ? (double)i * a.step : fma((double)i + 0.5, a.step, -0.5));
}

/* Neighbours -> k0, k1, and the second one's weight -> t. */
static void axis_neighbours(const ds_tensor *x, Axis a, int64_t *k0, int64_t *k1, double *t)
{
    for (int64_t i = 0; i < a.out; i++) {
        double at = axis_place(x, a, i);
        if (at < 0) at = 0;
        k0[i] = (int64_t)at < a.in - 1 ? (int64_t)at : a.in - 1;
        k1[i] = k0[i] < a.in - 1 ? k0[i] + 1 : k0[i];
        t[i] = fmin(fmax(at - (double)k0[i], 0), 1);
    }
}

/* Weights [out] on the host, along a's dimension of x, beside it. */
static ds_tensor *axis_weights(const ds_tensor *x, Axis a, ds_tensor *t)
{
    ds_dims along = {.n = x->shape.n - a.dim, .d = {a.out}}; /* t from dimension dim on */
    for (int i = 1; i < along.n; i++) along.d[i] = 1;
    return ds_reshape(ds_to(t, dsi_device_id(x->device), x->dtype), along);
}

static ds_tensor *axis_linear(ds_tensor *x, Axis a)
{
    ds_tensor *k0 = dsi_new_host(DS_I64, ds_shape(a.out)),
              *k1 = dsi_new_host(DS_I64, ds_shape(a.out));
    ds_tensor *t = dsi_new_host(DS_F64, ds_shape(a.out));
    if (!x || !ds_data_mut(k0) || !ds_data_mut(k1) || !ds_data_mut(t)) return NULL;
    axis_neighbours(x, a, ds_data_mut(k0), ds_data_mut(k1), ds_data_mut(t));
    t = axis_weights(x, a, t);
    return ds_add(ds_mul(axis_select(x, a.dim, k0), ds_shift(ds_neg(t), 1)),
                  ds_mul(axis_select(x, a.dim, k1), t));
}

/* Keys' cubic at distance d from the place, 0 <= d < 2, with a = -3/4. */
static double cubic(double d)
{
    const double a = -0.75;
    return d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1 : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
}

static ds_tensor *axis_cubic(ds_tensor *x, Axis a)
{
    ds_tensor *y = NULL;
    for (int j = -1; j <= 2 && x; j++) {
        ds_tensor *index = dsi_new_host(DS_I64, ds_shape(a.out)),
                  *weight = dsi_new_host(DS_F64, ds_shape(a.out));
        int64_t *k = index ? ds_data_mut(index) : NULL;
        double *w = weight ? ds_data_mut(weight) : NULL;
        if (!k || !w) return NULL;
        for (int64_t i = 0; i < a.out; i++) {
            double place = axis_place(x, a, i), first = floor(place);
            k[i] = dsi_max(0, dsi_min((int64_t)first + j, a.in - 1));
            w[i] = cubic(fabs(place - first - j));
        }
        ds_tensor *term = ds_mul(axis_select(x, a.dim, index), axis_weights(x, a, weight));
        y = j == -1 ? term : ds_add(y, term);
    }
    return y;
}

/* ---- the op ------------------------------------------------------------------------------------------ */

typedef struct Mode {
    const char *name;
    int least, most; /* dimensions of x */
    bool aligns;     /* takes align_corners */
} Mode;

static const Mode modes[] = {[DS_NEAREST] = {"nearest", 3, 5, false},
                             [DS_LINEAR] = {"linear", 3, 3, true},
                             [DS_BILINEAR] = {"bilinear", 4, 4, true},
                             [DS_AREA] = {"area", 3, 5, false},
                             [DS_NEAREST_EXACT] = {"nearest-exact", 3, 5, false},
                             [DS_BICUBIC] = {"bicubic", 4, 4, true},
                             [DS_TRILINEAR] = {"trilinear", 5, 5, true}};

static const char *const shapes[] = {"[N,C,L]", "[N,C,H,W]", "[N,C,D,H,W]"};

static bool interpolate_check(const ds_tensor *x, ds_interpolate_opts o)
{
    if (!dsi_want_float("interpolate", x)) return false;
    if ((unsigned)o.mode > DS_TRILINEAR)
        return dsi_refuse("interpolate: there is no mode %d", (int)o.mode);
    const Mode *mode = &modes[o.mode];
    int n = x->shape.n;
    if (n < mode->least || n > mode->most)
        return dsi_refuse("interpolate: x is %s: mode %s expects %s%s", dsi_shape_text(x->shape),
                          mode->name, shapes[mode->least - 3],
                          mode->most > mode->least ? ", [N,C,H,W] or [N,C,D,H,W]" : "");
    bool by_factor = o.scale_factor != 0 || o.scale_factor_w != 0 || o.scale_factor_h != 0;
    if (!o.size.n == !by_factor)
        return dsi_refuse("interpolate: %s size and scale_factor: expected one of them",
                          o.size.n ? "both" : "neither");
    if (o.size.n > 1 && o.size.n != n - 2)
        return dsi_refuse("interpolate: size is %s, x is %s: expected %d", dsi_shape_text(o.size),
                          dsi_shape_text(x->shape), n - 2);
    if (by_factor && !(o.scale_factor > 0 && o.scale_factor_w >= 0 && o.scale_factor_h >= 0))
        return dsi_refuse("interpolate: scale_factor is %g, %g, %g: expected above 0",
                          o.scale_factor, o.scale_factor_h, o.scale_factor_w);
    if (o.align_corners && !mode->aligns)
        return dsi_refuse("interpolate: align_corners with mode %s: expected a linear one, or "
                          "bicubic",
                          mode->name);
    return true;
}

/* Dimension dim of x, from 2 on, and its size in the output; false with the
 * message. */
static bool interpolate_axis(const ds_tensor *x, int dim, ds_interpolate_opts o, Axis *a)
{
    bool columns = dim > 2 && dim == x->shape.n - 1, rows = dim == 3 && !columns;
    double own = columns ? o.scale_factor_w : rows ? o.scale_factor_h : 0;
    double factor = own > 0 ? own : o.scale_factor;
    *a = (Axis){dim, x->shape.d[dim], 0, 0, o.align_corners};
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
    if (!x) return NULL;
    const int64_t *d = x->shape.d;
    if (x->shape.n == 4) return ds_adaptive_avg_pool2d(x, a[0].out, a[1].out);
    if (x->shape.n == 3)
        return ds_squeeze(ds_adaptive_avg_pool2d(ds_unsqueeze(x, 2), 1, a[0].out), 2);
    ds_tensor *y = ds_adaptive_avg_pool2d(ds_reshape(x, ds_shape(d[0], d[1] * d[2], d[3], d[4])),
                                          a[1].out, a[2].out);
    y = ds_reshape(y, ds_shape(d[0], d[1], d[2], a[1].out * a[2].out));
    y = ds_adaptive_avg_pool2d(y, a[0].out, a[1].out * a[2].out);
    return ds_reshape(y, ds_shape(d[0], d[1], a[0].out, a[1].out, a[2].out));
}

/* 16-bit elements are computed in float32 and rounded once. */
ds_tensor *ds_interpolate_with(ds_tensor *x, ds_interpolate_opts o)
{
    if (!dsi_live(x, "interpolate")) return dsi_null_operand("interpolate");
    if (!interpolate_check(x, o)) return NULL;
    Axis a[3] = {{0}};
    for (int dim = 2; dim < x->shape.n; dim++)
        if (!interpolate_axis(x, dim, o, &a[dim - 2])) return NULL;
    if (o.mode == DS_AREA) { /* of a volume two ops, so 16 bits are rounded once */
        ds_tensor *y = interpolate_area(x->shape.n == 5 ? dsi_upcast(x) : x, a);
        return y ? ds_cast(y, x->dtype) : NULL;
    }
    bool nearest = !modes[o.mode].aligns;
    ds_tensor *y = nearest ? x : dsi_upcast(x);
    for (int dim = x->shape.n - 1; dim >= 2 && y; dim--)
        y = nearest                ? axis_nearest(y, a[dim - 2], o.mode == DS_NEAREST ? 0 : 0.5)
            : o.mode == DS_BICUBIC ? axis_cubic(y, a[dim - 2])
                                   : axis_linear(y, a[dim - 2]);
    return y ? ds_cast(y, x->dtype) : NULL;
}
