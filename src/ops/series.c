/* ops/series.c: along a dimension: running maxima and log sum exp, differences
 * and integrals; places in sorted numbers, and counts of bins. Made of other
 * ops: no host reads values, but where the header says so.
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include <deepspeed/ops_math.h>

#include <float.h>
#include <math.h>

/* ---- running ones: element k and k - step, for step = 1, 2, 4, ... ------------------------------------- */

/* Elements from `begin` on, of n - step of them, along dim. */
static ds_tensor *part(ds_tensor *x, int dim, int64_t begin, int64_t n)
{
    return ds_slice(x, dim, begin, begin + n);
}

/* The first `step` of x, then the rest. */
static ds_tensor *joined(ds_tensor *x, int dim, int64_t step, ds_tensor *rest)
{
    return ds_cat((ds_tensor *[]){part(x, dim, 0, step), rest}, 2, dim);
}

/* int64 of x's shape on its device: the places along dim. */
static ds_tensor *places_along(const ds_tensor *x, int dim)
{
    if (!x) return NULL;
    ds_dims around = {.n = x->shape.n};
    for (int i = 0; i < around.n; i++) around.d[i] = i == dim ? x->shape.d[i] : 1;
    ds_tensor *line = ds_arange(DS_I64, 0, (double)x->shape.d[dim], 1);
    return ds_expand(ds_reshape(dsi_beside(line, x, DS_I64), around), x->shape);
}

/* The place of the last of the largest, or smallest, up to each element; of
 * NaNs the last one. x without a graph, of a dimension at least. */
static ds_tensor *extremum_places(ds_tensor *x, int dim, bool largest)
{
    ds_tensor *at = places_along(x, dim);
    int64_t size = x ? x->shape.d[dim] : 0;
    for (int64_t step = 1; step < size && x && at; step *= 2) {
        int64_t n = size - step;
        ds_tensor *left = part(x, dim, 0, n), *right = part(x, dim, step, n);
        ds_tensor *wins = largest ? ds_ge(right, left) : ds_le(right, left);
        wins = ds_logical_or(wins, ds_ne(right, right));
        ds_tensor *place = ds_where(wins, part(at, dim, step, n), part(at, dim, 0, n));
        x = joined(x, dim, step, ds_where(wins, right, left));
        at = joined(at, dim, step, place);
    }
    return x ? at : NULL;
}

static ds_tensor *running_extremum(const char *op, ds_tensor *x, int dim, bool largest,
                                   ds_tensor **indices)
{
    if (indices) *indices = NULL;
    if (!dsi_live(x, op)) return dsi_null_operand(op);
    if ((dim = dsi_want_dim(op, x, dim)) < 0) return NULL;
    ds_dims shape = x->shape;
    ds_tensor *line = shape.n ? x : ds_reshape(x, ds_shape(1));
    ds_tensor *at = extremum_places(ds_detach(line), dim, largest);
    if (!at) return NULL;
    if (indices && !(*indices = ds_reshape(at, shape))) return NULL;
    return ds_reshape(ds_gather(line, dim, at), shape);
}

ds_tensor *ds_cummax(ds_tensor *x, int dim, ds_tensor **indices)
{
    return running_extremum("cummax", x, dim, true, indices);
}

ds_tensor *ds_cummin(ds_tensor *x, int dim, ds_tensor **indices)
{
    return running_extremum("cummin", x, dim, false, indices);
}

ds_tensor *ds_logcumsumexp(ds_tensor *x, int dim)
{
    if (!dsi_live(x, "logcumsumexp")) return dsi_null_operand("logcumsumexp");
    if (!dsi_want_float("logcumsumexp", x)) return NULL;
    if ((dim = dsi_want_dim("logcumsumexp", x, dim)) < 0) return NULL;
    int64_t size = x->shape.n ? x->shape.d[dim] : 1;
    ds_tensor *y = dsi_upcast(x);
    for (int64_t step = 1; step < size && y; step *= 2) {
        int64_t n = size - step;
        y = joined(y, dim, step, ds_logaddexp(part(y, dim, step, n), part(y, dim, 0, n)));
    }
    return y ? ds_cast(y, x->dtype) : NULL;
}

/* ---- the most frequent --------------------------------------------------------------------------------- */

/* In a sorted line the place of the last of the smallest of the most frequent:
 * the first of the longest distances from where a value begins. */
static ds_tensor *mode_place(ds_tensor *line, int dim)
{
    int64_t n = line->shape.d[dim];
    ds_tensor *at = places_along(line, dim);
    ds_tensor *begins = ds_ne(part(line, dim, 1, n - 1), part(line, dim, 0, n - 1));
    ds_tensor *from = ds_mul(part(at, dim, 1, n - 1), begins);
    ds_tensor *begin = ds_cummax(joined(at, dim, 1, from), dim, NULL);
    ds_tensor *longest = ds_argmax(ds_sub(at, begin), dim);
    return longest ? ds_unsqueeze(longest, dim) : NULL;
}

ds_tensor *ds_mode(ds_tensor *x, int dim, bool keepdim, ds_tensor **indices)
{
    if (indices) *indices = NULL;
    if (!dsi_live(x, "mode")) return dsi_null_operand("mode");
    if ((dim = dsi_max_check("mode", x, dim)) < 0) return NULL;
    ds_tensor *line = x->shape.n ? x : ds_reshape(x, ds_shape(1)), *order = NULL;
    ds_tensor *sorted = line ? ds_sort(ds_detach(line), dim, false, &order) : NULL;
    ds_tensor *place = sorted ? mode_place(sorted, dim) : NULL;
    ds_tensor *at = place ? ds_gather(order, dim, place) : NULL;
    ds_tensor *y = at ? ds_gather(line, dim, at) : NULL;
    bool keeps = keepdim && x->shape.n;
    if (indices && y) *indices = keeps ? at : ds_select(at, dim, 0);
    return y && !keeps ? ds_select(y, dim, 0) : y;
}

/* ---- differences and integrals ------------------------------------------------------------------------- */

ds_tensor *ds_diff(ds_tensor *x, int64_t n, int dim)
{
    if (!dsi_live(x, "diff")) return dsi_null_operand("diff");
    if (!x->shape.n) return dsi_refuse("diff: x is []: expected a dimension");
    if ((dim = dsi_want_dim("diff", x, dim)) < 0) return NULL;
    if (n < 0) return dsi_refuse("diff: n is %lld: expected 0 or more", (long long)n);
    for (int64_t size = x->shape.d[dim]; n > 0 && x && size > 0; n--, size--) {
        ds_tensor *left = part(x, dim, 0, size - 1), *right = part(x, dim, 1, size - 1);
        x = x->dtype == DS_BOOL ? ds_ne(right, left) : ds_sub(right, left);
    }
    return x;
}

/* x, the places of y's elements along dim, or of all of them, as distances of
 * neighbours of that dtype, which broadcast with y; NULL with the message. */
static ds_tensor *distances(ds_tensor *x, const ds_tensor *y, int dim, ds_dtype dtype)
{
    ds_dims around = {.n = y->shape.n};
    if (dsi_is_float(x) && !(x = ds_cast(x, dtype))) return NULL;
    if (x->shape.n != 1) return ds_cast(ds_diff(x, 1, dim - y->shape.n), dtype);
    if (x->shape.d[0] != y->shape.d[dim])
        return dsi_refuse("trapezoid: x is %s, dimension %d of y %s: expected as many",
                          dsi_shape_text(x->shape), dim, dsi_shape_text(y->shape));
    for (int i = 0; i < around.n; i++) around.d[i] = 1;
    around.d[dim] = x->shape.d[0] > 0 ? x->shape.d[0] - 1 : 0;
    return ds_cast(ds_reshape(ds_diff(x, 1, 0), around), dtype);
}

ds_tensor *ds_trapezoid(ds_tensor *y, ds_tensor *x, double dx, int dim)
{
    if (!dsi_live(y, "trapezoid") || (x && !dsi_live(x, "trapezoid")))
        return dsi_null_operand("trapezoid");
    if (!y->shape.n) return dsi_refuse("trapezoid: y is []: expected a dimension");
    if (y->dtype == DS_BOOL || (x && x->dtype == DS_BOOL))
        return dsi_refuse("trapezoid: y or x is bool: expected numbers (ds_cast it)");
    if ((dim = dsi_want_dim("trapezoid", y, dim)) < 0) return NULL;
    int64_t n = y->shape.d[dim] > 0 ? y->shape.d[dim] - 1 : 0;
    ds_dtype dtype = x ? dsi_promoted(y, x) : y->dtype;
    if (dtype > DS_BF16) dtype = DS_F32;
    ds_tensor *wide = ds_cast(y, dtype == DS_F64 ? DS_F64 : DS_F32);
    ds_tensor *step = x && wide ? distances(x, y, dim, wide->dtype) : NULL;
    if (!wide || (x && !step)) return NULL;
    ds_tensor *sums = ds_add(part(wide, dim, 0, n), part(wide, dim, y->shape.d[dim] - n, n));
    if (x) sums = ds_mul(sums, step);
    if (!sums) return dsi_fail_in("trapezoid", ds_error_status()), NULL;
    sums = ds_sum_with(sums, (ds_reduce_opts){.dims = ds_shape(dim - y->shape.n)});
    return ds_cast(ds_scale(sums, x ? 0.5 : dx / 2), dtype);
}

/* ---- sorted numbers ------------------------------------------------------------------------------------ */

/* int64 of x's shape [...,K]: how many of the sorted line [...,M] are smaller
 * than each x, or not larger; by halving log2 M times. nans: the line may end
 * in NaNs, which are larger. */
static ds_tensor *search(ds_tensor *line, ds_tensor *x, bool right, bool nans)
{
    int64_t m = line->shape.d[line->shape.n - 1];
    ds_tensor *low = dsi_fill(dsi_new_dtype(x, DS_I64, x->shape), 0);
    ds_tensor *high = dsi_fill(dsi_new_dtype(x, DS_I64, x->shape), (double)m);
    ds_tensor *one = low ? dsi_number_beside(low, 1) : NULL;
    ds_tensor *two = low ? dsi_number_beside(low, 2) : NULL;
    for (int64_t left = m; left > 0 && low && high; left /= 2) {
        ds_tensor *sum = ds_add(low, high), *by = two;
        ds_tensor *middle = sum && by ? dsi_binary(DSI_FLOOR_DIVIDE, &sum, &by) : NULL;
        ds_tensor *value = middle ? ds_gather(line, -1, ds_clamp(middle, 0, (double)m - 1)) : NULL;
        ds_tensor *stays = right ? ds_gt(value, x) : ds_ge(value, x), *open = ds_lt(low, high);
        if (nans) stays = ds_logical_or(stays, ds_isnan(value));
        ds_tensor *goes = ds_logical_and(open, ds_logical_not(stays));
        high = ds_where(ds_logical_and(open, stays), middle, high);
        low = ds_where(goes, ds_add(middle, one), low);
    }
    return low && high ? low : NULL;
}

ds_tensor *ds_searchsorted(ds_tensor *sorted, ds_tensor *x, bool right)
{
    const char *op = "searchsorted";
    if (!dsi_live_all(op, sorted, x)) return dsi_null_operand(op);
    if (!dsi_same_kind(op, sorted, x)) return NULL;
    ds_dims want = sorted->shape, shape = x->shape;
    if (want.n && want.n == shape.n) want.d[want.n - 1] = shape.d[want.n - 1];
    if (!want.n || (want.n > 1 && !dsi_same_shape(want, shape)))
        return dsi_refuse("%s: sorted is %s, x %s: expected [M], or equal leading dimensions", op,
                          dsi_shape_text(sorted->shape), dsi_shape_text(shape));
    ds_tensor *line = ds_contiguous(ds_detach(sorted)), *of = ds_detach(x);
    if (want.n == 1) of = ds_reshape(of, ds_shape(dsi_numel(shape)));
    if (!line || !of) return NULL;
    return ds_reshape(search(line, of, right, false), shape);
}

ds_tensor *ds_bucketize(ds_tensor *x, ds_tensor *boundaries, bool right)
{
    if (!dsi_live_all("bucketize", x, boundaries)) return dsi_null_operand("bucketize");
    if (boundaries->shape.n != 1)
        return dsi_refuse("bucketize: boundaries are %s: expected [M]",
                          dsi_shape_text(boundaries->shape));
    ds_tensor *y = ds_searchsorted(boundaries, x, right);
    return y ? y : (dsi_fail_in("bucketize", ds_error_status()), NULL);
}

ds_tensor *ds_isin(ds_tensor *x, ds_tensor *test)
{
    if (!dsi_live_all("isin", x, test)) return dsi_null_operand("isin");
    if (!dsi_promote("isin", &x, &test, dsi_promoted(x, test))) return NULL;
    int64_t m = dsi_numel(test->shape);
    if (!m) return dsi_fill(dsi_new_dtype(x, DS_BOOL, x->shape), 0);
    if (x->dtype == DS_BOOL) x = ds_cast(x, DS_U8), test = ds_cast(test, DS_U8);
    ds_tensor *line = test ? ds_reshape(ds_detach(test), ds_shape(m)) : NULL;
    line = ds_sort(line, 0, false, NULL);
    ds_tensor *of = x ? ds_reshape(ds_detach(x), ds_shape(dsi_numel(x->shape))) : NULL;
    if (!line || !of) return NULL;
    ds_tensor *at = ds_clamp(search(line, of, false, dsi_is_float(line)), 0, (double)m - 1);
    return ds_reshape(ds_eq(ds_index_select(line, 0, at), of), x->shape);
}

/* ---- counts -------------------------------------------------------------------------------------------- */

/* *low and *high of finite x, the smallest and largest element if both are 0;
 * false with the message. */
static bool histc_range(ds_tensor *x, double *low, double *high)
{
    if (*low == *high && dsi_numel(x->shape)) {
        ds_tensor *least = ds_amin(x), *most = ds_amax(x);
        if (!least || !most) return false;
        *low = ds_item(least), *high = ds_item(most);
    }
    if (!isfinite(*low) || !isfinite(*high) || *low > *high)
        return dsi_refuse("histc: from %g to %g: expected finite numbers in order", *low, *high);
    if (*low == *high) *low -= 1, *high += 1;
    return true;
}

ds_tensor *ds_histc(ds_tensor *x, int64_t bins, double low, double high)
{
    if (!dsi_live(x, "histc")) return dsi_null_operand("histc");
    if (!dsi_want_float("histc", x)) return NULL;
    if (bins < 1) return dsi_refuse("histc: %lld bins: expected at least 1", (long long)bins);
    ds_tensor *line = ds_reshape(dsi_upcast(ds_detach(x)), ds_shape(dsi_numel(x->shape)));
    if (!line || !histc_range(line, &low, &high)) return NULL;
    ds_tensor *inside = ds_logical_and(ds_ge(line, dsi_number_beside(line, low)),
                                       ds_le(line, dsi_number_beside(line, high)));
    ds_tensor *at = ds_div(ds_shift(line, -low), dsi_number_beside(line, high - low));
    at = ds_scale(at, (double)bins);
    at = inside ? ds_where(inside, at, dsi_number_beside(line, 0)) : NULL;
    at = ds_clamp(ds_cast(at, DS_I64), 0, (double)bins - 1);
    ds_tensor *sums = dsi_fill(dsi_new_dtype(line, DS_I64, ds_shape(bins)), 0);
    sums = ds_index_add(sums, 0, at, ds_cast(inside, DS_I64), 1);
    return sums ? ds_cast(sums, x->dtype) : NULL;
}
