/* ops/places.c: elements and slices by index, and written to places, made of
 * gather, scatter and index_select; results are new tensors.
 *
 * Elements of the largest, or smallest, of each place are found by order:
 * sorted ascending, the last one that scatter writes is the largest.
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include <deepspeed/ops_math.h>

#include <math.h>

/* ---- scatter_reduce ------------------------------------------------------------------------------------ */

/* The first elements of src, as many as the index has; NULL with the message. */
static ds_tensor *beside_index(const char *op, ds_tensor *src, const ds_tensor *index)
{
    bool fits = src->shape.n == index->shape.n;
    for (int i = 0; fits && i < src->shape.n; i++) fits = index->shape.d[i] <= src->shape.d[i];
    if (!fits)
        return dsi_refuse("%s: the index is %s, src %s: expected an index that is not larger", op,
                          dsi_shape_text(index->shape), dsi_shape_text(src->shape));
    for (int i = 0; src && i < index->shape.n; i++)
        if (index->shape.d[i] < src->shape.d[i]) src = ds_slice(src, i, 0, index->shape.d[i]);
    return src;
}

/* x with that number at the places that index names. */
static ds_tensor *scatter_number(ds_tensor *x, int dim, ds_tensor *index, double value)
{
    ds_tensor *src = x ? dsi_fill(dsi_new(x, index->shape), value) : NULL;
    return src ? ds_scatter(x, dim, index, src) : NULL;
}

/* Sums over counts; of integers rounded down. */
static ds_tensor *reduce_mean(ds_tensor *x, int dim, ds_tensor *index, ds_tensor *src, bool self)
{
    ds_tensor *base = self ? x : scatter_number(x, dim, index, 0);
    ds_dtype dtype = dsi_is_float(x) ? x->dtype : DS_I64;
    ds_tensor *sums = ds_scatter_add(dsi_upcast(base), dim, index, dsi_upcast(src));
    if (!sums) return NULL;
    ds_tensor *count = dsi_fill(dsi_new_dtype(x, sums->dtype, x->shape), self);
    count = ds_scatter_add(count, dim, index, dsi_fill(dsi_new(sums, index->shape), 1));
    count = ds_clamp(count, 1, INFINITY);
    ds_tensor *y = dsi_is_float(x) ? ds_div(sums, count) : ds_floor_divide(sums, count);
    return y ? ds_cast(y, dsi_is_float(x) ? dtype : x->dtype) : NULL;
}

typedef struct ReduceTo {
    int dim;
    bool self;
} ReduceTo;

/* Saved: x, index, src, y. Equal ones share dy, as in PyTorch. */
static void scatter_amax_backward(dsi_node *n, ds_tensor *dy)
{
    const ReduceTo *o = dsi_attr(n);
    ds_tensor *x = dsi_saved_tensor(n, 0), *index = dsi_saved_tensor(n, 1),
              *src = dsi_saved_tensor(n, 2), *y = dsi_saved_tensor(n, 3);
    ds_tensor *is = ds_cast(ds_eq(x, y), x->dtype);
    ds_tensor *src_is = ds_cast(ds_eq(src, ds_gather(y, o->dim, index)), x->dtype);
    ds_tensor *share = ds_div(dy, ds_scatter_add(is, o->dim, index, src_is));
    if (dsi_needs_input_grad(n, 0)) {
        ds_tensor *dx = ds_mul(is, share);
        dsi_accumulate_grad(n, 0, o->self ? dx : scatter_number(dx, o->dim, index, 0));
    }
    if (dsi_needs_input_grad(n, 1))
        dsi_accumulate_grad(n, 1, ds_mul(src_is, ds_gather(share, o->dim, index)));
}

const dsi_op dsi_op_scatter_amax = {"scatter_amax", scatter_amax_backward, .acquires = true};

/* dim from the front. */
static ds_tensor *reduce_amax(ds_tensor *x, int dim, ds_tensor *index, ds_tensor *src, bool self)
{
    bool recording = ds_set_grad(false);
    ds_tensor *order = NULL, *sorted = ds_sort(src, dim, false, &order);
    ds_tensor *y = sorted ? ds_scatter(x, dim, ds_gather(index, dim, order), sorted) : NULL;
    if (self && y) y = ds_maximum(x, y);
    ds_set_grad(recording);
    if (!y || !dsi_is_float(y)) return y;
    dsi_node *n = dsi_record(&dsi_op_scatter_amax, y, x, src);
    dsi_save_for_backward(n, x), dsi_save_for_backward(n, index);
    dsi_save_for_backward(n, src), dsi_save_for_backward(n, y);
    dsi_set_attr(n, &(ReduceTo){dim, self}, sizeof(ReduceTo));
    return y;
}

static ds_tensor *scatter_reduced(ds_tensor *x, int dim, ds_tensor *index, ds_tensor *src,
                                  ds_scatter_reduction how, bool self)
{
    ds_tensor *y, *base;
    switch (how) {
    case DS_SCATTER_SUM:
        return ds_scatter_add(self ? x : scatter_number(x, dim, index, 0), dim, index, src);
    case DS_SCATTER_PROD:
        base = dsi_upcast(self ? x : scatter_number(x, dim, index, 1));
        y = ds_scatter_multiply(base, dim, index, dsi_upcast(src));
        return y ? ds_cast(y, x->dtype) : NULL;
    case DS_SCATTER_MEAN:
        return reduce_mean(x, dim, index, src, self);
    case DS_SCATTER_AMAX:
        return reduce_amax(x, dim, index, src, self);
    default:
        y = reduce_amax(dsi_turned(x), dim, index, dsi_turned(src), self);
        return y ? dsi_turned(y) : NULL;
    }
}

ds_tensor *ds_scatter_reduce(ds_tensor *x, int dim, ds_tensor *index, ds_tensor *src,
                             ds_scatter_reduction how, bool exclude_self)
{
    const char *op = "scatter_reduce";
    if (!dsi_live_all(op, x, index, src)) return dsi_null_operand(op);
    if ((unsigned)how > DS_SCATTER_AMIN) return dsi_refuse("%s: there is no way %d", op, (int)how);
    if ((dim = dsi_want_dim(op, x, dim)) < 0 || !dsi_same_kind(op, x, src)) return NULL;
    ds_dims one = ds_shape(1), shape = x->shape;
    if (!shape.n && !index->shape.n && !src->shape.n)
        x = ds_reshape(x, one), index = ds_reshape(index, one), src = ds_reshape(src, one);
    if (!x || !index || !src || !(src = beside_index(op, src, index)) ||
        !(index = dsi_wide_index(index)))
        return NULL;
    ds_tensor *y = scatter_reduced(x, dim, index, src, how, !exclude_self);
    if (!y) return dsi_fail_in(op, ds_error_status()), NULL;
    return ds_reshape(y, shape);
}

/* ---- slices -------------------------------------------------------------------------------------------- */

/* One index as int64 with negative ones counted from the end of a dimension. */
static ds_tensor *index_wrapped(const char *op, ds_tensor *index, int64_t size)
{
    if (dsi_is_float(index) || index->dtype == DS_BOOL)
        return dsi_refuse("%s: an index is %s: expected int64", op, ds_dtype_name(index->dtype));
    if (!(index = ds_cast(index, DS_I64))) return NULL;
    ds_tensor *below = ds_lt(index, dsi_number_beside(index, 0));
    ds_tensor *y = ds_where(below, ds_shift(index, (double)size), index);
    ds_tensor *out = ds_logical_or(ds_lt(y, dsi_number_beside(index, 0)),
                                   ds_ge(y, dsi_number_beside(index, (double)size)));
    ds_tensor *any = out ? ds_any(out) : NULL;
    if (!any || !y) return NULL;
    if (ds_item(any) == 0) return y;
    return dsi_refuse("%s: an index is outside of %lld to %lld", op, -(long long)size,
                      (long long)size - 1);
}

/* index [K] as [1,..,K,..,1] expanded to source's shape; NULL with the message. */
static ds_tensor *along(const char *op, ds_tensor *index, const ds_tensor *source, int dim)
{
    ds_dims around = {.n = source->shape.n};
    if (index->shape.n > 1 || dsi_numel(index->shape) != source->shape.d[dim])
        return dsi_refuse("%s: the index is %s, source %s: expected [%lld]", op,
                          dsi_shape_text(index->shape), dsi_shape_text(source->shape),
                          (long long)source->shape.d[dim]);
    for (int i = 0; i < around.n; i++) around.d[i] = i == dim ? source->shape.d[i] : 1;
    return ds_contiguous(ds_expand(ds_reshape(dsi_wide_index(index), around), source->shape));
}

ds_tensor *ds_index_copy(ds_tensor *x, int dim, ds_tensor *index, ds_tensor *source)
{
    const char *op = "index_copy";
    if (!dsi_live_all(op, x, index, source)) return dsi_null_operand(op);
    if ((dim = dsi_want_dim(op, x, dim)) < 0 || !dsi_same_kind(op, x, source)) return NULL;
    if (!x->shape.n) {
        x = ds_index_copy(ds_reshape(x, ds_shape(1)), 0, index, ds_reshape(source, ds_shape(1)));
        return ds_reshape(x, (ds_dims){0});
    }
    ds_dims want = x->shape;
    if (source->shape.n == want.n) want.d[dim] = source->shape.d[dim];
    if (!dsi_same_shape(want, source->shape))
        return dsi_refuse("%s: x is %s, source %s: expected equal shapes but in dimension %d", op,
                          dsi_shape_text(x->shape), dsi_shape_text(source->shape), dim);
    ds_tensor *all = along(op, index, source, dim);
    ds_tensor *y = all ? ds_scatter(x, dim, all, source) : NULL;
    if (!y) dsi_fail_in(op, ds_error_status());
    return y;
}

ds_tensor *ds_index_fill(ds_tensor *x, int dim, ds_tensor *index, double value)
{
    const char *op = "index_fill";
    if (!dsi_live_all(op, x, index)) return dsi_null_operand(op);
    if ((dim = dsi_want_dim(op, x, dim)) < 0) return NULL;
    int64_t size = x->shape.n ? x->shape.d[dim] : 1;
    if (!(index = index_wrapped(op, index, size))) return NULL;
    ds_tensor *mask = dsi_fill(dsi_new_dtype(x, DS_BOOL, ds_shape(size)), 0);
    ds_tensor *named = dsi_fill(dsi_new_dtype(x, DS_BOOL, ds_shape(dsi_numel(index->shape))), 1);
    mask = mask && named ? ds_index_copy(mask, 0, index, named) : NULL;
    ds_dims around = {.n = x->shape.n};
    for (int i = 0; i < around.n; i++) around.d[i] = i == dim ? size : 1;
    ds_tensor *y = mask ? ds_masked_fill(x, ds_reshape(mask, around), value) : NULL;
    if (!y) dsi_fail_in(op, ds_error_status());
    return y;
}

/* ---- elements by several indices ----------------------------------------------------------------------- */

/* The indices of the first dimensions of x, broadcast, as one place [K] among
 * them; and the shape that x[indices] has. A bool mask is the places of its
 * true ones. */
typedef struct Indexed {
    ds_tensor *at;       /* int64 [K] */
    ds_dims shape, rows; /* of the result; of x, as [places, the rest] */
} Indexed;

static bool index_places(const char *op, const ds_tensor *x, ds_tensor **list, int n, Indexed *to)
{
    ds_dims shape = {0}, rest = x->shape;
    if (n < 1 || n > x->shape.n)
        return dsi_refuse("%s: %d indices of x %s: expected 1 to %d", op, n,
                          dsi_shape_text(x->shape), x->shape.n);
    ds_tensor *at = NULL;
    int64_t places = 1;
    for (int i = 0; i < n; i++) {
        if (!dsi_live(list[i], op)) return dsi_null_operand(op);
        int64_t size = x->shape.d[i];
        ds_tensor *one = index_wrapped(op, list[i], size);
        if (!one || !dsi_broadcast(op, shape, one->shape, &shape)) return false;
        at = at ? ds_add(ds_scale(at, (double)size), one) : one;
        places *= size;
    }
    rest.n -= n;
    for (int i = 0; i < rest.n; i++) rest.d[i] = x->shape.d[n + i];
    to->rows = ds_shape(places, dsi_numel(rest));
    if (shape.n + rest.n > DS_MAX_DIMS)
        return dsi_refuse("%s: the result has %d dimensions: expected at most %d", op,
                          shape.n + rest.n, DS_MAX_DIMS);
    to->at = at ? ds_reshape(at, ds_shape(dsi_numel(shape))) : NULL;
    to->shape = shape;
    for (int i = 0; i < rest.n; i++) to->shape.d[to->shape.n++] = rest.d[i];
    return to->at;
}

/* A mask as its places, in its place of the list: *n indices then. False with
 * the
 * message. */
static bool index_masks(const char *op, ds_tensor *x, ds_tensor **in, int n, ds_tensor **out,
                        int *count)
{
    *count = 0;
    for (int i = 0; i < n; i++) {
        if (!dsi_live(in[i], op)) return dsi_null_operand(op);
        int dims = in[i]->dtype == DS_BOOL ? in[i]->shape.n : 1;
        if (*count + dims > x->shape.n)
            return dsi_refuse("%s: more indices than the %d dimensions of x %s", op, x->shape.n,
                              dsi_shape_text(x->shape));
        if (in[i]->dtype != DS_BOOL) {
            out[(*count)++] = in[i];
            continue;
        }
        for (int d = 0; d < dims; d++)
            if (in[i]->shape.d[d] != x->shape.d[*count + d])
                return dsi_refuse("%s: a mask is %s, x %s: expected equal sizes", op,
                                  dsi_shape_text(in[i]->shape), dsi_shape_text(x->shape));
        ds_tensor *places = ds_nonzero(in[i]);
        for (int d = 0; d < dims; d++)
            if (!(out[(*count)++] = ds_select(places, 1, d))) return false;
    }
    return true;
}

static bool index_read(const char *op, ds_tensor *x, ds_tensor **indices, int n, Indexed *to)
{
    ds_tensor *list[DS_MAX_DIMS];
    int count;
    if (!dsi_live(x, op) || !indices) return dsi_null_operand(op);
    return index_masks(op, x, indices, n, list, &count) && index_places(op, x, list, count, to);
}

ds_tensor *ds_index(ds_tensor *x, ds_tensor **indices, int n)
{
    Indexed i;
    if (!index_read("index", x, indices, n, &i)) return NULL;
    return ds_reshape(ds_index_select(ds_reshape(x, i.rows), 0, i.at), i.shape);
}

ds_tensor *ds_index_put(ds_tensor *x, ds_tensor **indices, int n, ds_tensor *values,
                        bool accumulate)
{
    const char *op = "index_put";
    Indexed i;
    if (!dsi_live(values, op)) return dsi_null_operand(op);
    if (!index_read(op, x, indices, n, &i) || !dsi_same_kind(op, x, values)) return NULL;
    ds_tensor *all = ds_expand(values, i.shape);
    if (!all) return dsi_fail_in(op, ds_error_status()), NULL;
    all = ds_reshape(all, ds_shape(i.at->shape.d[0], i.rows.d[1]));
    ds_tensor *rows = ds_reshape(x, i.rows);
    rows = accumulate ? ds_index_add(rows, 0, i.at, all, 1) : ds_index_copy(rows, 0, i.at, all);
    return rows ? ds_reshape(rows, x->shape) : NULL;
}

ds_tensor *ds_take(ds_tensor *x, ds_tensor *index)
{
    if (!dsi_live_all("take", x, index)) return dsi_null_operand("take");
    ds_tensor *line = ds_reshape(x, ds_shape(dsi_numel(x->shape)));
    ds_tensor *y = line ? ds_index(line, &index, 1) : NULL;
    if (!y) dsi_fail_in("take", ds_error_status());
    return y;
}

ds_tensor *ds_take_along_dim(ds_tensor *x, ds_tensor *index, int dim)
{
    const char *op = "take_along_dim";
    if (!dsi_live_all(op, x, index)) return dsi_null_operand(op);
    if ((dim = dsi_want_dim(op, x, dim)) < 0) return NULL;
    ds_dims a = x->shape, b = index->shape, shape;
    if (!a.n || a.n != b.n)
        return dsi_refuse("%s: x is %s, the index %s: expected as many dimensions", op,
                          dsi_shape_text(a), dsi_shape_text(b));
    a.d[dim] = b.d[dim] = 1;
    if (!dsi_broadcast(op, a, b, &shape)) return NULL;
    if (!(index = index_wrapped(op, index, x->shape.d[dim]))) return NULL;
    a = b = shape;
    a.d[dim] = x->shape.d[dim], b.d[dim] = index->shape.d[dim];
    ds_tensor *y = ds_gather(ds_expand(x, a), dim, ds_contiguous(ds_expand(index, b)));
    if (!y) dsi_fail_in(op, ds_error_status());
    return y;
}

/* The k-th true place gets the k-th element of source. */
ds_tensor *ds_masked_scatter(ds_tensor *x, ds_tensor *mask, ds_tensor *source)
{
    const char *op = "masked_scatter";
    ds_dims shape;
    if (!dsi_live_all(op, x, mask, source)) return dsi_null_operand(op);
    if (!dsi_same_kind(op, x, source) || !dsi_same_device(op, x, mask)) return NULL;
    if (mask->dtype != DS_BOOL)
        return dsi_refuse("%s: the mask is %s: expected bool", op, ds_dtype_name(mask->dtype));
    if (!dsi_broadcast(op, x->shape, mask->shape, &shape)) return NULL;
    mask = ds_expand(mask, shape), x = ds_expand(x, shape);
    int64_t n = dsi_numel(shape), most = dsi_numel(source->shape);
    ds_tensor *taken = ds_sum(mask);
    if (!taken || !x) return NULL;
    if (ds_item(taken) > (double)most)
        return dsi_refuse("%s: source %s has %lld elements: expected at least %.0f", op,
                          dsi_shape_text(source->shape), (long long)most, ds_item(taken));
    if (!most) return ds_clone(x);
    ds_tensor *at = ds_cumsum(ds_reshape(mask, ds_shape(n)), 0);
    at = ds_clamp(ds_shift(at, -1), 0, (double)most - 1);
    ds_tensor *line = ds_index_select(ds_reshape(source, ds_shape(most)), 0, at);
    return ds_where(mask, ds_reshape(line, shape), x);
}
