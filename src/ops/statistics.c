/* ops/statistics.c: of all elements or over dimensions: largest and smallest,
 * products, variance, norms, log sum exp; made of other ops.
 *
 *     amax       y = max x, dx = dy / m at the m elements that are the maximum
 *     prod       y = x0 x1 ..., by halves
 *     var        y = sum (x - mean)^2 / (n - correction)
 *     vecdot     y = sum a b, da = dy b, db = dy a: sums of squares of norm
 *     deviations y = sum (x - mean)^2, dx = 2 dy (x - mean): in var
 *     norm       y = (sum |x|^p)^(1/p), max |x|, min |x|; of zeros the gradient is 0
 *     logsumexp  y = log sum exp x, dx = dy exp(x - y)
 * 16-bit operands are computed in float32, and the result is rounded once.
 * SPDX-License-Identifier: MIT */
#include "base/option.h"
#include "op.h"

#include <math.h>

/* Which dimensions are reduced, and what is left. */
typedef struct Over {
    bool reduced[DS_MAX_DIMS];
    ds_dims kept;   /* shape with 1 where it is reduced */
    ds_dims shape;  /* of the result */
    ds_dims last;   /* the order of dimensions with the reduced ones last */
    int64_t n;      /* elements of each result */
    bool nan_takes; /* amax: where the maximum is NaN, NaNs share the gradient */
} Over;

/* As dsi_want_dims. */
static bool over_find(const char *op, const ds_tensor *x, ds_reduce_opts o, Over *v)
{
    unsigned over;
    if (!dsi_want_dims(op, x, o.dims, &over)) return false;
    *v = (Over){.kept = x->shape, .n = 1};
    for (int i = 0; i < x->shape.n; i++) {
        if ((v->reduced[i] = over >> i & 1)) v->kept.d[i] = 1, v->n *= x->shape.d[i];
        if (o.keepdim || !v->reduced[i]) v->shape.d[v->shape.n++] = v->kept.d[i];
    }
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < x->shape.n; i++)
            if (v->reduced[i] == pass) v->last.d[v->last.n++] = i;
    return true;
}

/* over_find of a float x; 16-bit ones become float32 in *x. The caller notes
 * x's dtype before, to round the result to it. */
static bool statistic_check(const char *op, ds_tensor **x, ds_reduce_opts o, Over *v)
{
    if (!dsi_live(*x, op)) return dsi_null_operand(op), false;
    if (!dsi_want_float(op, *x) || !over_find(op, *x, o, v)) return false;
    *x = dsi_upcast(*x);
    return *x;
}

/* y, of v->kept, with the result's shape and dtype. */
static ds_tensor *statistic(ds_tensor *y, const Over *v, ds_dtype dtype)
{
    return ds_cast(ds_reshape(y, v->shape), dtype);
}

/* The sum of shape v->kept, with its graph; a scalar is its own sum. */
static ds_tensor *sum_over(ds_tensor *x, const Over *v)
{
    ds_reduce_opts o = {.keepdim = true};
    for (int i = 0; i < v->kept.n; i++)
        if (v->reduced[i]) o.dims.d[o.dims.n++] = i;
    return o.dims.n ? ds_sum_with(x, o) : x;
}

/* ---- the largest ------------------------------------------------------------------------------------- */

/* The maxima of x, of v->kept, without a graph. */
static ds_tensor *amax_find(ds_tensor *x, const Over *v)
{
    if (dsi_is_float(x) && dsi_fusion(x->device, amax)) {
        if (!dsi_acquire(x)) return NULL;
        ds_tensor *y = dsi_new(x, v->kept);
        return dsi_result_if(dsi_run_fusion(y, amax, dsi_v(x), dsi_v(y)), y);
    }
    ds_dims rows = {.n = 2, .d = {dsi_numel(v->kept), v->n}};
    int reduced = 0, dim = 0;
    for (int i = 0; i < x->shape.n; i++)
        if (v->reduced[i]) reduced++, dim = i;
    bool recording = ds_set_grad(false);
    ds_tensor *y = x;
    if (reduced == 1) {
        y = ds_max(x, dim, true);
    } else {
        if (x->shape.n) y = ds_permute(x, v->last);
        y = ds_reshape(ds_max(ds_reshape(y, rows), 1, false), v->kept);
    }
    ds_set_grad(recording);
    return y;
}

/* Saved: x, y of v->kept. Of several maxima, and of several NaNs if nan_takes,
 * each takes an equal share. Else all of a line with a NaN is 0 / 0, as in
 * PyTorch. */
static void amax_backward(dsi_node *n, ds_tensor *dy)
{
    const Over *v = dsi_attr(n);
    ds_tensor *x = dsi_saved_tensor(n, 0), *y = dsi_saved_tensor(n, 1), *is = ds_eq(x, y);
    if (v->nan_takes) is = ds_logical_or(is, ds_ne(x, x));
    ds_tensor *count = ds_cast(sum_over(is, v), dy->dtype);
    ds_tensor *share = ds_div(ds_reshape(dy, v->kept), count);
    dsi_accumulate_grad(n, 0, ds_where(is, share, ds_div(dsi_number_beside(dy, 0), count)));
}

const dsi_op dsi_op_amax = {"amax", amax_backward, .acquires = true};

/* The maxima of v->kept; integers have no gradient. */
static ds_tensor *amax(ds_tensor *x, const Over *v)
{
    ds_tensor *y = x ? amax_find(x, v) : NULL;
    if (!y || !dsi_is_float(x)) return y;
    dsi_node *n = dsi_record(&dsi_op_amax, y, x);
    dsi_save_for_backward(n, x), dsi_save_for_backward(n, y), dsi_set_attr(n, v, sizeof *v);
    return y;
}

ds_tensor *dsi_turned(ds_tensor *x)
{
    if (!x || dsi_is_float(x)) return ds_neg(x);
    return x->dtype == DS_BOOL ? ds_logical_not(x) : ds_sub(dsi_number_beside(x, -1), x);
}

static ds_tensor *extreme(const char *op, ds_tensor *x, ds_reduce_opts o, bool largest)
{
    Over v;
    if (!dsi_live(x, op)) return dsi_null_operand(op);
    if (!over_find(op, x, o, &v)) return NULL;
    if (!v.n)
        return dsi_refuse("%s: x is %s: expected elements to choose from", op,
                          dsi_shape_text(x->shape));
    ds_dtype dtype = x->dtype;
    if (!dsi_is_float(x)) x = ds_cast(x, DS_I64);
    return statistic(largest ? amax(x, &v) : dsi_turned(amax(dsi_turned(x), &v)), &v, dtype);
}

ds_tensor *ds_amax(ds_tensor *x) { return ds_amax_with(x, (ds_reduce_opts){0}); }
ds_tensor *ds_amin(ds_tensor *x) { return ds_amin_with(x, (ds_reduce_opts){0}); }
ds_tensor *ds_amax_with(ds_tensor *x, ds_reduce_opts opts)
{
    return extreme("amax", x, opts, true);
}
ds_tensor *ds_amin_with(ds_tensor *x, ds_reduce_opts opts)
{
    return extreme("amin", x, opts, false);
}

/* ---- products ---------------------------------------------------------------------------------------- */

/* x [n,k], k at least 1 -> [n,1]: one half times the other, k - 1 products. */
static ds_tensor *rows_product(ds_tensor *x)
{
    for (int64_t k; x && (k = x->shape.d[1]) > 1;) {
        int64_t half = k / 2;
        ds_tensor *y = ds_mul(ds_slice(x, 1, 0, half), ds_slice(x, 1, half, 2 * half));
        x = k % 2 ? ds_cat((ds_tensor *[]){y, ds_slice(x, 1, k - 1, k)}, 2, 1) : y;
    }
    return x;
}

ds_tensor *ds_prod_with(ds_tensor *x, ds_reduce_opts o)
{
    dsi_autocast_wide(&x);
    Over v;
    if (!dsi_live(x, "prod")) return dsi_null_operand("prod");
    if (!over_find("prod", x, o, &v)) return NULL;
    ds_dtype dtype = dsi_is_float(x) ? x->dtype : DS_I64;
    x = dsi_is_float(x) ? dsi_upcast(x) : ds_cast(x, DS_I64);
    if (!x || !x->shape.n) return statistic(x, &v, dtype);
    if (!v.n) return statistic(ds_add(sum_over(x, &v), dsi_number_beside(x, 1)), &v, dtype);
    ds_dims rows = ds_shape(dsi_numel(v.kept), v.n);
    return statistic(rows_product(ds_reshape(ds_permute(x, v.last), rows)), &v, dtype);
}

ds_tensor *ds_prod(ds_tensor *x) { return ds_prod_with(x, (ds_reduce_opts){0}); }

/* ---- dot products ------------------------------------------------------------------------------------ */

/* Saved: a, and b where it is another. */
static void vecdot_backward(dsi_node *n, ds_tensor *dy)
{
    ds_tensor *a = dsi_saved_tensor(n, 0), *b = dsi_saved_tensor(n, 1);
    if (!b) {
        dsi_accumulate_grad(n, 0, ds_mul(ds_scale(dy, 2), a));
        return;
    }
    if (dsi_needs_input_grad(n, 0)) dsi_accumulate_grad(n, 0, ds_mul(dy, b));
    if (dsi_needs_input_grad(n, 1)) dsi_accumulate_grad(n, 1, ds_mul(dy, a));
}

const dsi_op dsi_op_vecdot = {"vecdot", vecdot_backward, .acquires = true};

/* True if x is contiguous, and its last dimensions are reduced. */
static bool rows_are_reduced(const ds_tensor *x, const Over *v)
{
    for (int i = 0; i < v->last.n; i++)
        if (v->last.d[i] != i) return false;
    return dsi_is_contiguous(x);
}

/* The sum of a b, of one shape and dtype, of v->kept. */
static ds_tensor *vecdot(ds_tensor *a, ds_tensor *b, const Over *v)
{
    if (!a || !b) return NULL;
    if (!dsi_fusion(a->device, vecdot) || !rows_are_reduced(a, v) || !rows_are_reduced(b, v))
        return sum_over(ds_mul(a, b), v);
    if (!dsi_acquire(a, b)) return NULL;
    ds_dims rows = ds_shape(dsi_numel(v->kept), v->n);

    ds_tensor *y = dsi_new(a, v->kept);

    if (!y || !dsi_run_fusion(y, vecdot, dsi_v_shape(a, rows), dsi_v_shape(b, rows),
                              dsi_v_shape(y, ds_shape(rows.d[0]))))
        return NULL;

    dsi_node *n = dsi_record(&dsi_op_vecdot, y, a, b == a ? NULL : b);
    dsi_save_for_backward(n, a);
    if (b != a) dsi_save_for_backward(n, b);
    return y;
}

ds_tensor *dsi_vecdot(ds_tensor *a, ds_tensor *b, int dim)
{
    Over v;
    if (!a || !b || !over_find("vecdot", a, (ds_reduce_opts){.dims = ds_shape(dim)}, &v))
        return NULL;
    ds_tensor *y = vecdot(a, b, &v);
    return y ? ds_reshape(y, v.shape) : NULL;
}

/* ---- variance ---------------------------------------------------------------------------------------- */

/* The means of x, of v->kept, without a gradient. Those of equal numbers that
 * are small multiples of a power of 2 are exact. */
static ds_tensor *means_of(ds_tensor *x, const Over *v)
{
    ds_tensor *d = ds_detach(x);
    if (x && x->dtype == DS_F64) return ds_div(sum_over(d, v), dsi_number_beside(d, (double)v->n));
    ds_reduce_opts o = {.keepdim = true};
    for (int i = 0; i < v->kept.n; i++)
        if (v->reduced[i]) o.dims.d[o.dims.n++] = i;
    return o.dims.n ? ds_mean_with(d, o) : d;
}

/* d - mean, in place */
static ds_tensor *subtract(ds_tensor *d, ds_tensor *mean)
{
    if (!d || !mean || !dsi_acquire(d, mean)) return NULL;
    return dsi_result_if(
        dsi_run_op(d, binary, DSI_ADD, -1.0, dsi_v(d), dsi_v_expand(mean, d->shape), dsi_v(d)), d);
}

/* x less its mean, which has no gradient: the sum of x - mean is 0. It is
 * subtracted twice, since a rounded mean of large numbers is far from it beside
 * their distances. */
static ds_tensor *less_mean(ds_tensor *x, const Over *v)
{
    ds_tensor *d = ds_sub(x, means_of(x, v));
    return subtract(d, means_of(d, v));
}

/* Saved: x, mean, rest. */
static void deviations_backward(dsi_node *n, ds_tensor *dy)
{
    ds_tensor *x = dsi_saved_tensor(n, 0);
    ds_tensor *d = subtract(ds_sub(x, dsi_saved_tensor(n, 1)), dsi_saved_tensor(n, 2));
    dsi_accumulate_grad(n, 0, ds_mul(ds_scale(ds_cast(dy, x->dtype), 2), d));
}

const dsi_op dsi_op_deviations = {"deviations", deviations_backward, .acquires = true};

/* By one kernel; x is contiguous, its last dimensions are reduced. */
static ds_tensor *deviations(ds_tensor *x, const Over *v)
{
    if (!dsi_acquire(x)) return NULL;
    ds_dims rows = ds_shape(dsi_numel(v->kept), v->n), each = ds_shape(rows.d[0]);

    ds_tensor *y = dsi_new_dtype(x, DS_F64, v->kept), *mean = dsi_new(x, v->kept),
              *rest = dsi_new(x, v->kept);

    if (!y || !mean || !rest ||
        !dsi_run_fusion(y, deviations, dsi_v_shape(x, rows), dsi_v_shape(y, each),
                        dsi_v_shape(mean, each), dsi_v_shape(rest, each)))
        return NULL;

    dsi_node *n = dsi_record(&dsi_op_deviations, y, x);
    dsi_save_for_backward(n, x), dsi_save_for_backward(n, mean), dsi_save_for_backward(n, rest);
    return y;
}

/* The sums of squares of x less its mean, of v->kept, in float64: their roots
 * may be of numbers whose squares float32 does not hold. Dimensions that are
 * not the last are made so for the kernel. */
static ds_tensor *squares_sum(ds_tensor *x, const Over *v)
{
    Over rows;
    if (!x) return NULL;
    if (!dsi_fusion(x->device, deviations)) {
        ds_tensor *d = ds_cast(less_mean(x, v), DS_F64);
        return sum_over(ds_mul(d, d), v);
    }
    if (rows_are_reduced(x, v)) return deviations(x, v);
    x = ds_reshape(ds_contiguous(ds_permute(x, v->last)), ds_shape(dsi_numel(v->kept), v->n));
    if (!x || !over_find("var", x, (ds_reduce_opts){.dims = ds_shape(1)}, &rows)) return NULL;
    return ds_reshape(deviations(x, &rows), v->kept);
}

/* Saved: x. dx = dy times infinity, or NaN at the mean itself. */
static void endless_backward(dsi_node *n, ds_tensor *dy)
{
    ds_tensor *x = dsi_saved_tensor(n, 0), *at_mean = ds_eq(x, means_of(x, dsi_attr(n)));
    ds_tensor *slope = ds_where(at_mean, dsi_number_beside(x, NAN), dsi_number_beside(x, INFINITY));
    dsi_accumulate_grad(n, 0, ds_mul(ds_cast(dy, x->dtype), slope));
}

static const dsi_op op_endless = {"var", endless_backward, .acquires = true};

/* The variances of float32 or float64 x, of v->kept, in float64. all: no
 * dimension was named, for which torch has another gradient where n is not
 * above the correction. */
static ds_tensor *variance(ds_tensor *x, const Over *v, double correction, bool all)
{
    double n = (double)v->n;
    ds_tensor *sum = squares_sum(all && n <= correction ? ds_detach(x) : x, v);
    if (all && n <= correction) {
        ds_tensor *y = ds_scale(sum, INFINITY);
        dsi_node *node = dsi_record(&op_endless, y, x);
        dsi_save_for_backward(node, x), dsi_set_attr(node, v, sizeof *v);
        return y;
    }
    if (n >= correction) return ds_scale(sum, 1 / (n - correction));
    /* infinite, but torch's gradient divides by the negative number */
    ds_tensor *y = ds_scale(sum, 1 / (n - correction));
    return ds_add(y, ds_scale(ds_detach(sum), INFINITY));
}

/* Saved: y. */
static void root_backward(dsi_node *n, ds_tensor *dy)
{
    ds_tensor *y = dsi_saved_tensor(n, 0), *zero = dsi_number_beside(y, 0);
    dsi_accumulate_grad(n, 0, ds_where(ds_eq(y, zero), zero, ds_div(dy, ds_scale(y, 2))));
}

const dsi_op dsi_op_root = {"root", root_backward, .acquires = true};

/* sqrt x, with the gradient 0 where x is 0 */
static ds_tensor *root_of(ds_tensor *x)
{
    bool recording = ds_set_grad(false);
    ds_tensor *y = ds_sqrt(x);
    ds_set_grad(recording);

    dsi_save_for_backward(dsi_record(&dsi_op_root, y, x), y);
    return y;
}

ds_tensor *ds_var_with(ds_tensor *x, ds_var_opts o)
{
    Over v;
    ds_dtype dtype = x ? x->dtype : DS_F32;
    if (!statistic_check("var", &x, (ds_reduce_opts){o.dims, o.keepdim}, &v)) return NULL;
    bool all = !o.dims.n || !x->shape.n;
    return statistic(variance(x, &v, dsi_option(o.correction, 1), all), &v, dtype);
}

ds_tensor *ds_std_with(ds_tensor *x, ds_var_opts o)
{
    Over v;
    ds_dtype dtype = x ? x->dtype : DS_F32;
    if (!statistic_check("std", &x, (ds_reduce_opts){o.dims, o.keepdim}, &v)) return NULL;
    bool all = !o.dims.n || !x->shape.n;
    return statistic(root_of(variance(x, &v, dsi_option(o.correction, 1), all)), &v, dtype);
}

ds_tensor *ds_var(ds_tensor *x) { return ds_var_with(x, (ds_var_opts){0}); }
ds_tensor *ds_std(ds_tensor *x) { return ds_std_with(x, (ds_var_opts){0}); }

/* ---- norms ------------------------------------------------------------------------------------------- */

/* The p-norms of float32 or float64 x, of v->kept. */
static ds_tensor *norm_over(ds_tensor *x, const Over *v, double p)
{
    if (p == 1) return sum_over(ds_abs(x), v);
    if (p == 2) return root_of(vecdot(x, x, v));
    Over shared = *v;
    shared.nan_takes = true;
    if (p == (double)INFINITY) return amax(ds_abs(x), &shared);
    if (p == -(double)INFINITY) return ds_neg(amax(ds_neg(ds_abs(x)), &shared));
    ds_tensor *zero = x ? dsi_number_beside(x, 0) : NULL, *none = p < 1 ? ds_eq(x, zero) : NULL;
    if (p == 0) /* a count, whose gradient is 0 */
        return sum_over(ds_masked_fill(ds_masked_fill(x, ds_logical_not(none), 1), none, 0), v);
    ds_tensor *power = ds_abs(x);
    if (p < 1) power = ds_where(none, ds_shift(zero, 1), power); /* 0^(p-1) is infinite */
    power = ds_pow(power, p);
    if (p < 1) power = ds_where(none, p < 0 ? ds_like(zero, INFINITY) : zero, power);
    ds_tensor *sum = sum_over(power, v);
    none = ds_eq(sum, zero);
    ds_tensor *root = ds_pow(ds_where(none, ds_shift(zero, 1), sum), 1 / p);
    return ds_where(none, p < 0 ? ds_like(zero, INFINITY) : zero, root); /* all infinite: p < 0 */
}

ds_tensor *ds_norm_with(ds_tensor *x, ds_norm_opts o)
{
    dsi_autocast_wide(&x);
    Over v;
    double p = dsi_option(o.p, 2);
    ds_dtype dtype = x ? x->dtype : DS_F32;
    if (!statistic_check("norm", &x, (ds_reduce_opts){o.dims, o.keepdim}, &v)) return NULL;
    if (isnan(p)) return dsi_refuse("norm: p is NaN: expected a number");
    if (isinf(p) && !v.n)
        return dsi_refuse("norm: x is %s: expected elements to choose from",
                          dsi_shape_text(x->shape));
    return statistic(norm_over(x, &v, p), &v, dtype);
}

ds_tensor *ds_norm(ds_tensor *x) { return ds_norm_with(x, (ds_norm_opts){0}); }

/* ---- log sum exp ------------------------------------------------------------------------------------- */

/* Saved: x, y of v->kept. */
static void logsumexp_backward(dsi_node *n, ds_tensor *dy)
{
    const Over *v = dsi_attr(n);
    ds_tensor *softmax = ds_exp(ds_sub(dsi_saved_tensor(n, 0), dsi_saved_tensor(n, 1)));
    dsi_accumulate_grad(n, 0, ds_mul(ds_reshape(dy, v->kept), softmax));
}

const dsi_op dsi_op_logsumexp = {"logsumexp", logsumexp_backward, .acquires = true};

/* Of v->kept without a graph; where the maximum is infinite, 0 is in its
 * place. */
static ds_tensor *logsumexp_find(ds_tensor *x, const Over *v)
{
    bool recording = ds_set_grad(false);
    ds_tensor *zero = dsi_number_beside(x, 0), *max = v->n ? amax_find(x, v) : zero;
    ds_tensor *finite = max ? ds_lt(ds_abs(max), ds_like(zero, INFINITY)) : NULL;
    max = ds_where(finite, max, zero);
    ds_tensor *y = ds_add(ds_log(sum_over(ds_exp(ds_sub(x, max)), v)), max);
    ds_set_grad(recording);
    return y;
}

ds_tensor *ds_logsumexp(ds_tensor *x, ds_reduce_opts opts)
{
    dsi_autocast_wide(&x);
    Over v;
    if (x && !dsi_is_float(x)) x = ds_cast(x, DS_F32);
    ds_dtype dtype = x ? x->dtype : DS_F32;
    if (!statistic_check("logsumexp", &x, opts, &v)) return NULL;

    ds_tensor *y = logsumexp_find(x, &v);

    dsi_node *n = dsi_record(&dsi_op_logsumexp, y, x);
    dsi_save_for_backward(n, x), dsi_save_for_backward(n, y), dsi_set_attr(n, &v, sizeof v);
    return statistic(y, &v, dtype);
}
