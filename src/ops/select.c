/* ops/select.c: selections whose size depends on values, and results of sorting
 * that are made of ds_sort. The host reads the values that decide; elements are
 * gathered on the device, with gradients.
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include <deepspeed/ops_math.h>

#include <math.h>

/* ---- order --------------------------------------------------------------------------------------------- */

ds_tensor *ds_min(ds_tensor *x, int dim, bool keepdim)
{
    if (!dsi_live(x, "min")) return dsi_null_operand("min");
    if (dsi_max_check("min", x, dim) < 0) return NULL;
    return dsi_turned(ds_max(dsi_turned(x), dim, keepdim));
}

ds_tensor *ds_argmin(ds_tensor *x, int dim)
{
    if (!dsi_live(x, "argmin")) return dsi_null_operand("argmin");
    return dsi_max_check("argmin", x, dim) < 0 ? NULL : ds_argmax(dsi_turned(x), dim);
}

ds_tensor *ds_argsort(ds_tensor *x, int dim, bool descending)
{
    ds_tensor *places = NULL;
    if (!dsi_live(x, "argsort")) return dsi_null_operand("argsort");
    if (dsi_want_dim("argsort", x, dim) < 0) return NULL;
    return ds_sort(x, dim, descending, &places) ? places : NULL;
}

/* Sorted along dim, in one dimension at least, with the places; false with the
 * message, also if there is no element. */
static bool sorted_line(const char *op, ds_tensor *x, int *dim, ds_tensor **y, ds_tensor **places)
{
    if (!dsi_live(x, op)) return dsi_null_operand(op);
    if ((*dim = dsi_want_dim(op, x, *dim)) < 0) return false;
    ds_tensor *line = x->shape.n ? x : ds_reshape(x, ds_shape(1));
    if (line && !line->shape.d[*dim])
        return dsi_refuse("%s: x is %s: expected elements in dimension %d", op,
                          dsi_shape_text(x->shape), *dim);
    return line && (*y = ds_sort(line, *dim, false, places));
}

/* Element i of a sorted line, with dim kept if x has it. */
static ds_tensor *line_at(ds_tensor *line, int dim, int64_t i, bool keepdim)
{
    return keepdim ? ds_slice(line, dim, i, i + 1) : ds_select(line, dim, i);
}

ds_tensor *ds_kthvalue(ds_tensor *x, int64_t k, int dim, bool keepdim, ds_tensor **indices)
{
    ds_tensor *y, *places;
    if (indices) *indices = NULL;
    if (!sorted_line("kthvalue", x, &dim, &y, &places)) return NULL;
    if (k < 1 || k > y->shape.d[dim])
        return dsi_refuse("kthvalue: k is %lld: expected 1 to %lld, the size of dimension %d",
                          (long long)k, (long long)y->shape.d[dim], dim);
    keepdim = keepdim && x->shape.n;
    if (indices) *indices = line_at(places, dim, k - 1, keepdim);
    return line_at(y, dim, k - 1, keepdim);
}

/* NaN is sorted behind all numbers, so the last one says whether there is
 * one. */
ds_tensor *ds_median(ds_tensor *x, int dim, bool keepdim, ds_tensor **indices)
{
    ds_tensor *y, *places;
    if (indices) *indices = NULL;
    if (!sorted_line("median", x, &dim, &y, &places)) return NULL;
    int64_t n = y->shape.d[dim];
    keepdim = keepdim && x->shape.n;
    ds_tensor *last = line_at(y, dim, n - 1, keepdim), *bad = ds_isnan(last);
    if (indices)
        *indices = ds_where(bad, line_at(places, dim, n - 1, keepdim),
                            line_at(places, dim, (n - 1) / 2, keepdim));
    return ds_where(bad, last, line_at(y, dim, (n - 1) / 2, keepdim));
}

ds_tensor *ds_quantile(ds_tensor *x, double q, int dim, bool keepdim)
{
    ds_tensor *y, *places;
    if (!dsi_live(x, "quantile")) return dsi_null_operand("quantile");
    if (!dsi_want_float("quantile", x)) return NULL;
    if (!(q >= 0 && q <= 1)) return dsi_refuse("quantile: q is %g: expected 0 to 1", q);
    if (!sorted_line("quantile", x, &dim, &y, &places)) return NULL;
    keepdim = keepdim && x->shape.n;
    double rank = q * (double)(y->shape.d[dim] - 1);
    ds_tensor *last = line_at(y, dim, y->shape.d[dim] - 1, keepdim);
    ds_tensor *low = line_at(y, dim, (int64_t)floor(rank), keepdim);
    ds_tensor *high = line_at(y, dim, (int64_t)ceil(rank), keepdim);
    return ds_where(ds_isnan(last), last, ds_lerp(low, high, rank - floor(rank)));
}

/* ---- selection --------------------------------------------------------------------------------------- */

/* int64 [K], on the host: the places, counted row by row, where mask is true;
 * NULL with the message. */
static ds_tensor *true_places(ds_tensor *mask)
{
    const bool *is = ds_data(mask);
    int64_t n = mask ? dsi_numel(mask->shape) : 0, count = 0;
    if (!is) return NULL;
    for (int64_t i = 0; i < n; i++) count += is[i];
    ds_tensor *places = dsi_new_host(DS_I64, ds_shape(count));
    int64_t *to = ds_data_mut(places);
    for (int64_t i = 0; to && i < n; i++)
        if (is[i]) *to++ = i;
    return to ? places : NULL;
}

ds_tensor *ds_nonzero(ds_tensor *x)
{
    if (!dsi_live(x, "nonzero")) return dsi_null_operand("nonzero");
    ds_tensor *flat = true_places(ds_ne(x, dsi_number_beside(x, 0)));
    if (!flat) return NULL;
    int64_t count = flat->shape.d[0];
    ds_tensor *y = dsi_new_host(DS_I64, ds_shape(count, x->shape.n));
    const int64_t *from = ds_data(flat);
    int64_t *to = ds_data_mut(y);
    if (!to) return NULL;
    for (int64_t i = 0; i < count; i++) {
        int64_t place = from[i];
        for (int d = x->shape.n - 1; d >= 0; place /= x->shape.d[d--])
            to[i * x->shape.n + d] = place % x->shape.d[d];
    }
    return dsi_beside(y, x, DS_I64);
}

ds_tensor *ds_masked_select(ds_tensor *x, ds_tensor *mask)
{
    ds_dims shape;
    if (!dsi_live_all("masked_select", x, mask)) return dsi_null_operand("masked_select");
    if (!dsi_same_device("masked_select", x, mask)) return NULL;
    if (mask->dtype != DS_BOOL)
        return dsi_refuse("masked_select: the mask is %s: expected bool",
                          ds_dtype_name(mask->dtype));
    if (!dsi_broadcast("masked_select", x->shape, mask->shape, &shape)) return NULL;
    ds_tensor *places = true_places(ds_expand(mask, shape));
    ds_tensor *line = ds_reshape(ds_expand(x, shape), ds_shape(dsi_numel(shape)));
    if (!places) return NULL;
    return ds_index_select(line, 0, dsi_beside(places, x, DS_I64));
}

/* bool [N]: whether an element of the sorted line [N] differs from the one
 * before it. */
static ds_tensor *line_begins(ds_tensor *line)
{
    int64_t n = line->shape.d[0];
    if (!n) return dsi_new_dtype(line, DS_BOOL, line->shape);
    ds_tensor *parts[] = {
        dsi_fill(dsi_new_dtype(line, DS_BOOL, ds_shape(1)), 1),
        ds_ne(ds_slice(line, 0, 1, n), ds_slice(line, 0, 0, n - 1)),
    };
    return ds_cat(parts, 2, 0);
}

ds_tensor *ds_unique(ds_tensor *x, ds_tensor **inverse, ds_tensor **counts)
{
    ds_tensor *places = NULL;
    if (inverse) *inverse = NULL;
    if (counts) *counts = NULL;
    if (!dsi_live(x, "unique")) return dsi_null_operand("unique");
    ds_tensor *flat = ds_reshape(ds_detach(x), ds_shape(dsi_numel(x->shape)));
    ds_tensor *line = ds_sort(flat, 0, false, &places);
    ds_tensor *begins = line ? line_begins(line) : NULL;
    ds_tensor *y = ds_masked_select(line, begins);
    if (!y || (!inverse && !counts)) return y;
    ds_tensor *group = ds_cumsum(begins, 0);
    group = group ? ds_sub(group, dsi_number_beside(group, 1)) : NULL;
    if (counts && !(*counts = ds_bincount(group, y->shape.d[0]))) return NULL;
    if (!inverse) return y;
    *inverse = ds_reshape(ds_scatter(group, 0, places, group), x->shape);
    return *inverse ? y : NULL;
}

ds_tensor *ds_bincount(ds_tensor *x, int64_t minlength)
{
    if (!dsi_live(x, "bincount")) return dsi_null_operand("bincount");
    if (x->shape.n != 1 || dsi_is_float(x) || x->dtype == DS_BOOL)
        return dsi_refuse("bincount: x is %s %s: expected integers [N]", ds_dtype_name(x->dtype),
                          dsi_shape_text(x->shape));
    if (minlength < 0)
        return dsi_refuse("bincount: minlength is %lld: expected 0 or more", (long long)minlength);
    const int64_t *at = ds_data(ds_cast(x, DS_I64));
    int64_t n = x->shape.d[0], size = minlength;
    if (!at) return NULL;
    for (int64_t i = 0; i < n; i++) {
        if (at[i] < 0 || at[i] >= INT64_MAX / 8)
            return dsi_refuse("bincount: element %lld is %lld: expected 0 to 2^60", (long long)i,
                              (long long)at[i]);
        size = at[i] >= size ? at[i] + 1 : size;
    }
    ds_tensor *y = dsi_fill(dsi_new_host(DS_I64, ds_shape(size)), 0);
    int64_t *to = ds_data_mut(y);
    if (!to) return NULL;
    for (int64_t i = 0; i < n; i++) to[at[i]]++;
    return dsi_beside(y, x, DS_I64);
}
