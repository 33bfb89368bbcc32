/* ops/interpolate.c: images and sequences in another size.
 *
 * nearest  y[i] = x[floor(i s)], nearest-exact x[floor((i + 1/2) s)]
 * linear   y[i] = (1 - t) x[k] + t x[k + 1], k + t = max(0, (i + 1/2) s - 1/2), or i s with
 *          align_corners; bilinear: along columns, then rows
 * bicubic  y[i] = sum over j = -1 .. 2 of f_j(t) x[k + j], k + t = (i + 1/2) s - 1/2, or i s, and
 *          k + j cut to the places of x; f are Keys' cubics
 * antialias  of bilinear and bicubic: y[i] = sum of f((k + 1/2 - m) / max(s, 1)) x[k] over the sum
 *          of these f, m = (i + 1/2) s; f is the triangle 1 - |d|, or Keys' cubic with a = -1/2
 * area     adaptive_avg_pool2d; of a volume its planes, then their depth
 * s is the input's size over the output's, or 1 / scale_factor; with
 * align_corners (input size - 1) / (output size - 1). Places are computed in
 * float32, as PyTorch does, for float64 tensors in float64. One dimension comes
 * after the other, the last one first.
 *
 * Weighted sums are the op `resample`: lists of elements and weights for each
 * output, computed on the host, for backward once more and sorted by elements.
 * SPDX-License-Identifier: MIT */
#include "base/int.h"
#include "op.h"

#include <math.h>

typedef struct Axis Axis;
/* The elements of x that output i is a sum of, and their weights: at most
 * a->most; -> how
 * many. */
typedef int64_t axis_taps(const Axis *a, int64_t i, int64_t *index, double *weight);

struct Axis {
    int dim;
    int64_t in, out; /* sizes */
    double step;     /* s above */
    bool align;      /* align_corners */
    bool f64;        /* places are computed in float64 */
    axis_taps *taps;
    int64_t most;
};

static double axis_round(const Axis *a, double place)
{
    return a->f64 ? place : (double)(float)place;
}

/* ---- nearest ----------------------------------------------------------------------------------------- */

static ds_tensor *axis_nearest(ds_tensor *x, const Axis *a, double shift)
{
    ds_tensor *index = dsi_new_host(DS_I64, ds_shape(a->out));
    int64_t *k = index ? ds_data_mut(index) : NULL;
    for (int64_t i = 0; k && i < a->out; i++)
        k[i] = dsi_min((int64_t)floor(axis_round(a, ((double)i + shift) * a->step)), a->in - 1);
    ds_dims around = {.n = x->shape.n}, shape = x->shape;
    for (int i = 0; i < around.n; i++) around.d[i] = 1;
    around.d[a->dim] = shape.d[a->dim] = a->out;
    index = k ? dsi_beside(index, x, DS_I64) : NULL;
    return index ? ds_gather(x, a->dim, ds_expand(ds_reshape(index, around), shape)) : NULL;
}

/* ---- weights of neighbours --------------------------------------------------------------------------- */

/* Where output i is in x. */
static double axis_place(const Axis *a, int64_t i)
{
    return axis_round(a, a->align ? (double)i * a->step : fma((double)i + 0.5, a->step, -0.5));
}

static int64_t taps_linear(const Axis *a, int64_t i, int64_t *index, double *weight)
{
    double at = fmax(axis_place(a, i), 0);
    index[0] = dsi_min((int64_t)at, a->in - 1);
    index[1] = dsi_min(index[0] + 1, a->in - 1);
    weight[1] = axis_round(a, fmin(fmax(at - (double)index[0], 0), 1));
    weight[0] = 1 - weight[1];
    return 2;
}

/* Keys' cubic at distance d from the place. */
static double cubic(double a, double d)
{
    if (d >= 2) return 0;
    return d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1 : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
}

static int64_t taps_cubic(const Axis *a, int64_t i, int64_t *index, double *weight)
{
    double place = axis_place(a, i), first = floor(place);
    for (int j = 0; j < 4; j++) {
        index[j] = dsi_max(0, dsi_min((int64_t)first + j - 1, a->in - 1));
        weight[j] = cubic(-0.75, fabs(place - first - (j - 1)));
    }
    return 4;
}

/* ---- antialias --------------------------------------------------------------------------------------- */

/* Half of the window's width: of one element, or of `step` of them in a smaller
 * image. */
static double antialias_support(const Axis *a, double half) { return half * fmax(a->step, 1); }

static int64_t antialias_taps(const Axis *a, int64_t i, int64_t *index, double *weight,
                              bool cubic_filter)
{
    double half = cubic_filter ? 2 : 1, support = axis_round(a, antialias_support(a, half));
    double middle = axis_round(a, a->step * ((double)i + 0.5)), sum = 0;
    int64_t first = dsi_max((int64_t)(axis_round(a, middle - support) + 0.5), 0);
    int64_t end = dsi_min((int64_t)(axis_round(a, middle + support) + 0.5), a->in);
    int64_t n = dsi_max(0, dsi_min(end - first, a->most));
    for (int64_t j = 0; j < n; j++) {
        double d = fabs((axis_round(a, (double)(first + j) - middle) + 0.5) / fmax(a->step, 1));
        index[j] = first + j;
        sum += weight[j] = cubic_filter ? cubic(-0.5, d) : fmax(1 - d, 0);
    }
    for (int64_t j = 0; j < n && sum != 0; j++) weight[j] /= sum;
    return n;
}

static int64_t taps_linear_antialias(const Axis *a, int64_t i, int64_t *index, double *weight)
{
    return antialias_taps(a, i, index, weight, false);
}

static int64_t taps_cubic_antialias(const Axis *a, int64_t i, int64_t *index, double *weight)
{
    return antialias_taps(a, i, index, weight, true);
}

/* ---- resample: sums of neighbours along one dimension ------------------------------------------------ */

/* Elements begin[k] .. begin[k + 1] - 1 of the lists belong to output k, row[e]
 * is k. In host memory, of tensors of the current scope. */
typedef struct Taps {
    int64_t n, *begin, *row, *index; /* n: length of the lists */
    double *weight;
    ds_tensor *begins, *rows, *indices, *weights;
} Taps;

static bool taps_new(Taps *t, int64_t outputs, int64_t most)
{
    t->begins = dsi_new_host(DS_I64, ds_shape(outputs + 1));
    t->rows = dsi_new_host(DS_I64, ds_shape(most)),
    t->indices = dsi_new_host(DS_I64, ds_shape(most));
    t->weights = dsi_new_host(DS_F64, ds_shape(most));
    return (t->begin = ds_data_mut(t->begins)) && (t->row = ds_data_mut(t->rows)) &&
           (t->index = ds_data_mut(t->indices)) && (t->weight = ds_data_mut(t->weights));
}

static bool taps_forward(Taps *t, const Axis *a)
{
    if (!taps_new(t, a->out, a->out * a->most)) return false;
    t->n = 0;
    for (int64_t i = 0; i < a->out; i++) {
        int64_t n = a->taps(a, i, t->index + t->n, t->weight + t->n);
        t->begin[i] = t->n;
        for (; n > 0; n--) t->row[t->n++] = i;
    }
    t->begin[a->out] = t->n;
    return true;
}

/* Those of dx: output and element in each other's place, sorted by the element. */
static bool taps_backward(Taps *t, const Axis *a)
{
    Taps f;
    if (!taps_forward(&f, a) || !taps_new(t, a->in, f.n)) return false;
    t->n = f.n;
    for (int64_t i = 0; i <= a->in; i++) t->begin[i] = 0;
    for (int64_t e = 0; e < f.n; e++) t->begin[f.index[e] + 1]++;
    for (int64_t i = 0; i < a->in; i++) t->begin[i + 1] += t->begin[i];
    for (int64_t e = 0; e < f.n; e++) { /* begin[i] moves to where element i ends */
        int64_t at = t->begin[f.index[e]]++;
        t->row[at] = f.index[e], t->index[at] = f.row[e], t->weight[at] = f.weight[e];
    }
    for (int64_t i = a->in; i > 0; i--) t->begin[i] = t->begin[i - 1];
    t->begin[0] = 0;
    return true;
}

/* n elements of a list on y's device, as [1,n,1], broadcast to v's shape. */
static dsi_view taps_view(const ds_tensor *list, dsi_view v)
{
    v.p = dsi_v(list).p, v.dtype = list->dtype;
    v.s[0] = v.s[2] = 0, v.s[1] = 1;
    return v;
}

/* = fusion resample */
static bool resample_by_scatter(ds_tensor *y, dsi_view from, const Taps *t, ds_tensor *weight,
                                dsi_view to)
{
    ds_device device = dsi_device_id(y->device);
    ds_tensor *index = ds_to(t->indices, device, DS_I64), *row = ds_to(t->rows, device, DS_I64);
    ds_tensor *terms = dsi_new(y, ds_shape(from.d[0], t->n, from.d[2]));
    if (!index || !row || !terms || !(weight = ds_to(weight, device, y->dtype))) return false;
    dsi_view v = dsi_v(terms);
    return dsi_run(y, gather, from, taps_view(index, v), v) &&
           dsi_run_op(y, binary, DSI_MUL, 1.0, v, taps_view(weight, v), v) &&
           dsi_run(y, scatter_add, v, taps_view(row, v), to);
}

/* y of x along dim: sums as t says, n of them. */
static ds_tensor *resample_run(ds_tensor *x, int dim, const Taps *t, int64_t n)
{
    ds_tensor *weight = ds_to(t->weights, (ds_device){DS_CPU, 0}, x->dtype);
    ds_dims shape = x->shape;
    shape.d[dim] = n;
    if (!(x = ds_contiguous(x)) || !weight || !dsi_acquire(x)) return NULL;
    ds_tensor *y = dsi_new(x, shape);
    if (!y) return NULL;
    dsi_view from = dsi_v_around(x, dim), to = dsi_v_around(y, dim);
    bool done = dsi_fusion(y->device, resample)
                    ? dsi_run_fusion(y, resample, from, dsi_v(t->begins), dsi_v(t->indices),
                                     dsi_v(weight), to)
                    : resample_by_scatter(y, from, t, weight, to);
    return dsi_result_if(done, y);
}

static void resample_backward(dsi_node *n, ds_tensor *dy)
{
    const Axis *a = dsi_attr(n);
    Taps t;
    dsi_accumulate_grad(n, 0, taps_backward(&t, a) ? resample_run(dy, a->dim, &t, a->in) : NULL);
}

const dsi_op dsi_op_resample = {"resample", resample_backward, .acquires = true};

static ds_tensor *resample(ds_tensor *x, const Axis *a)
{
    Taps t;
    bool recording = ds_set_grad(false);
    ds_tensor *y = taps_forward(&t, a) ? resample_run(x, a->dim, &t, a->out) : NULL;
    ds_set_grad(recording);
    dsi_set_attr(dsi_record(&dsi_op_resample, y, x), a, sizeof *a);
    return y;
}

/* ---- the op ------------------------------------------------------------------------------------------ */

typedef struct Mode {
    const char *name;
    int least, most; /* dimensions of x */
    axis_taps *taps; /* NULL: no weights, nor align_corners */
    axis_taps *antialias;
} Mode;

static const Mode modes[] = {[DS_NEAREST] = {"nearest", 3, 5, NULL, NULL},
                             [DS_LINEAR] = {"linear", 3, 3, taps_linear, NULL},
                             [DS_BILINEAR] = {"bilinear", 4, 4, taps_linear, taps_linear_antialias},
                             [DS_AREA] = {"area", 3, 5, NULL, NULL},
                             [DS_NEAREST_EXACT] = {"nearest-exact", 3, 5, NULL, NULL},
                             [DS_BICUBIC] = {"bicubic", 4, 4, taps_cubic, taps_cubic_antialias},
                             [DS_TRILINEAR] = {"trilinear", 5, 5, taps_linear, NULL}};

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
    if (o.antialias && !mode->antialias)
        return dsi_refuse("interpolate: antialias with mode %s: expected bilinear or bicubic",
                          mode->name);
    if (o.align_corners && !mode->taps)
        return dsi_refuse("interpolate: align_corners with mode %s: expected a linear one, or "
                          "bicubic",
                          mode->name);
    return true;
}

/* True if a dimension that keeps its length is copied whatever its factor: what
 * PyTorch does, except in these modes. */
static bool copies_same_length(const ds_tensor *x, ds_interpolate_opts o)
{
    if (o.mode == DS_NEAREST) return x->shape.n == 4;
    return o.mode != DS_NEAREST_EXACT && (o.mode != DS_BICUBIC || o.antialias);
}

/* Dimension dim of x, from 2 on, and its size in the output; false with the
 * message. */
static bool interpolate_axis(const ds_tensor *x, int dim, ds_interpolate_opts o, Axis *a)
{
    bool columns = dim > 2 && dim == x->shape.n - 1, rows = dim == 3 && !columns;
    double own = columns ? o.scale_factor_w : rows ? o.scale_factor_h : 0;
    double factor = own > 0 ? own : o.scale_factor;
    *a = (Axis){.dim = dim,
                .in = x->shape.d[dim],
                .align = o.align_corners,
                .f64 = x->dtype == DS_F64,
                .taps = o.antialias ? modes[o.mode].antialias : modes[o.mode].taps,
                .most = o.mode == DS_BICUBIC ? 4 : 2};
    double out = o.size.n ? (double)o.size.d[o.size.n > 1 ? dim - 2 : 0]
                          : floor((double)a->in * factor);
    int least = o.mode != DS_AREA;
    if (a->in < 1 || !(out >= least && out <= INT32_MAX))
        return dsi_refuse("interpolate: dimension %d of x %s would be %g long: expected at least "
                          "1 element before, and %d to %d after",
                          dim, dsi_shape_text(x->shape), out, least, INT32_MAX);
    a->out = (int64_t)out;
    bool given = !o.size.n && !o.recompute_scale_factor;
    if (a->out == a->in && copies_same_length(x, o)) given = false;
    if (o.align_corners)
        a->step = a->out > 1 ? (double)(a->in - 1) / (double)(a->out - 1) : 0;
    else
        a->step = given ? 1 / factor : (double)a->in / (double)a->out;
    a->step = axis_round(a, a->step);
    if (o.antialias) a->most = 2 * (int64_t)ceil(antialias_support(a, (double)a->most / 2)) + 1;
    return true;
}

static ds_tensor *interpolate_area(ds_tensor *x, const Axis *a)
{
    if (!x) return NULL;
    const int64_t *d = x->shape.d;
    ds_dims size = {.n = x->shape.n - 2, .d = {a[0].out, a[1].out, a[2].out}};
    if (!dsi_numel(size)) return dsi_no_windows(x, size, NULL);
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
    if (o.mode != DS_AREA) dsi_autocast_wide(&x);
    if (!dsi_live(x, "interpolate")) return dsi_null_operand("interpolate");
    if (!interpolate_check(x, o)) return NULL;
    Axis a[3] = {{0}};
    for (int dim = 2; dim < x->shape.n; dim++)
        if (!interpolate_axis(x, dim, o, &a[dim - 2])) return NULL;
    if (o.mode == DS_AREA) { /* of a volume two ops, so 16 bits are rounded once */
        ds_tensor *y = interpolate_area(x->shape.n == 5 ? dsi_upcast(x) : x, a);
        if (y) dsi_cost_elements(y, 1);
        return y ? ds_cast(y, x->dtype) : NULL;
    }
    bool nearest = !modes[o.mode].taps;
    ds_tensor *y = nearest ? x : dsi_upcast(x);
    for (int dim = x->shape.n - 1; dim >= 2 && y; dim--)
        y = nearest ? axis_nearest(y, &a[dim - 2], o.mode == DS_NEAREST ? 0 : 0.5)
                    : resample(y, &a[dim - 2]);
    if (y) dsi_cost_elements(y, 1);
    return y ? ds_cast(y, x->dtype) : NULL;
}
