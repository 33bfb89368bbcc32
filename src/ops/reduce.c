/* ops/reduce.c: sums and means over dimensions.
 *
 * y = factor sum of x, with factor 1, or 1 / (number of elements in each sum);
 * dx = factor dy, repeated. The maximum, which remembers a place, is in
 * index.c.
 * SPDX-License-Identifier: MIT */
#include "op.h"

typedef struct Sum {
    double factor;
    unsigned over; /* bit i: dimension i of x is summed */
    ds_dims x;     /* shape */
} Sum;

/* x's shape with size 1 in the dimensions that are summed, as with keepdim. */
static ds_dims kept_shape(const Sum *s)
{
    ds_dims kept = s->x;
    for (int i = 0; i < kept.n; i++)
        if (s->over >> i & 1) kept.d[i] = 1;
    return kept;
}

/* dy, whatever dimensions it dropped, repeated over x's shape. */
static dsi_view repeated(const ds_tensor *dy, const Sum *s)
{
    dsi_view v = dsi_v_shape(dy, kept_shape(s));
    for (int i = 0; i < v.n; i++) {
        if (s->over >> i & 1) v.s[i] = 0;
        v.d[i] = s->x.d[i];
    }
    return v;
}

/* dx = factor dy, repeated over the dimensions that were summed; factor: 1, or
 * 1 / n for a mean over n elements. */
static void sum_backward(dsi_node *n, ds_tensor *dy)
{
    const Sum *s = dsi_attr(n);
    ds_tensor *g = ds_contiguous(dy), *dx = dsi_new(dy, s->x);
    bool done = g &&
                (s->factor == 1 ? dsi_run(dx, copy, repeated(g, s), dsi_v(dx))
                                : dsi_run(dx, affine, s->factor, 0.0, repeated(g, s), dsi_v(dx)));
    dsi_accumulate_grad(n, 0, dsi_result_if(done, dx));
}

const dsi_op dsi_op_sum = {.name = "sum", .backward = sum_backward};

bool dsi_want_dims(const char *op, const ds_tensor *x, ds_dims dims, unsigned *over)
{
    int n = x->shape.n ? x->shape.n : 1;
    if (dims.n < 0 || dims.n > n)
        return dsi_invalid("%s: %d dimensions of x %s: expected 0 to %d", op, dims.n,
                           dsi_shape_text(x->shape), n);
    *over = dims.n ? 0 : (1u << x->shape.n) - 1;
    for (int i = 0; i < dims.n; i++) {
        int64_t d = dims.d[i];
        if (d < -n || d >= n)
            return dsi_invalid("%s: dimension %lld of x %s: expected %d to %d", op, (long long)d,
                               dsi_shape_text(x->shape), -n, n - 1);
        int dim = (int)(d < 0 ? d + n : d);
        if (*over >> dim & 1)
            return dsi_invalid("%s: dimension %d occurs twice in %s", op, dim,
                               dsi_shape_text(dims));
        *over |= 1u << dim;
    }
    return true;
}

/* The sum over opts.dims of x, or the mean. */
static ds_tensor *reduce_op(const char *op, ds_tensor *x, ds_reduce_opts o, bool mean)
{
    Sum s = {.factor = 1};
    if (!dsi_live(x, op)) return dsi_null_operand(op);
    if (!dsi_is_float(x) && !mean) x = ds_cast(x, DS_I64);
    if (!x || (mean && !dsi_want_float(op, x)) || !dsi_want_dims(op, x, o.dims, &s.over) ||
        !dsi_acquire(x))
        return NULL;
    s.x = x->shape;
    ds_dims kept = kept_shape(&s), shape = {.n = 0};
    for (int i = 0; i < kept.n; i++)
        if (o.keepdim || !(s.over >> i & 1)) shape.d[shape.n++] = kept.d[i];
    /* elements of y / elements of x; of no elements the mean is NaN, as in
     * PyTorch */
    if (mean) s.factor = (double)dsi_numel(kept) / (double)dsi_numel(x->shape);

    ds_tensor *y = dsi_new(x, shape);

    if (!y ||
        !dsi_run_op(y, reduce, DSI_SUM, s.factor, dsi_v(x), dsi_v_shape(y, kept), dsi_v(NULL)))
        return NULL;

    if (dsi_is_float(x)) dsi_set_attr(dsi_record(&dsi_op_sum, y, x), &s, sizeof s);
    return y;
}

ds_tensor *ds_sum(ds_tensor *x) { return ds_sum_with(x, (ds_reduce_opts){0}); }
ds_tensor *ds_mean(ds_tensor *x) { return ds_mean_with(x, (ds_reduce_opts){0}); }
ds_tensor *dsi_sum_as(const char *op, ds_tensor *x, ds_reduce_opts opts)
{
    dsi_autocast_wide(&x);
    return reduce_op(op, x, opts, false);
}

ds_tensor *ds_sum_with(ds_tensor *x, ds_reduce_opts opts) { return dsi_sum_as("sum", x, opts); }
ds_tensor *ds_mean_with(ds_tensor *x, ds_reduce_opts opts)
{
    return reduce_op("mean", x, opts, true);
}
