/* ops/scatter.c: slices along a dimension by their numbers, and elements to
 * places.
 *
 * x is seen as [outer,C,inner] around dimension dim; indices are int64.
 *     index_select   y[o,k,i] = x[o,index[k],i]
 *     index_add      y = x, y[o,index[k],i] += alpha source[o,k,i]
 *     scatter_add    y = x, y[o,index[o,k,i],i] += src[o,k,i]
 *     scatter        the same with = in place of +=; a place named twice gets
 *                    the last, in the order of index
 *     scatter_multiply  the same with *=
 *
 * Invariants: index_add never writes into x or source: it adds up the source
 * in zeros of its own, and then adds x. Slices are brought to the front, so
 * that one kernel for rows serves every dimension.
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include <string.h>

/* ---- slices ------------------------------------------------------------------------------------------ */

/* Dimension dim of x, counted from the front, for an index [K] or []; -1 with
 * the message. */
static int slices_check(const char *op, const ds_tensor *x, const ds_tensor *index, int dim)
{
    dim = dsi_want_dim(op, x, dim);
    if (dim < 0 || !dsi_same_device(op, x, index)) return -1;
    if (index->dtype == DS_I64 && index->shape.n <= 1) return dim;
    dsi_refuse("%s: the index is %s %s: expected int64 [K]", op, ds_dtype_name(index->dtype),
               dsi_shape_text(index->shape));
    return -1;
}

/* x with dimension dim first, as a matrix of its slices. [size of dim, the
 * rest]; usually a copy if dim is not the first dimension. */
static ds_tensor *slices_as_rows(ds_tensor *x, int dim)
{
    if (!x) return NULL;
    ds_tensor *t = dim ? ds_transpose(x, 0, dim) : x;
    int64_t rows = x->shape.d[dim], width = 1;
    for (int i = 0; i < x->shape.n; i++) width *= i == dim ? 1 : x->shape.d[i];
    return ds_reshape(t, ds_shape(rows, width));
}

/* The way back: rows [K,...] as a tensor of x's shape with K in dim. */
static ds_tensor *rows_as_slices(ds_tensor *rows, const ds_tensor *x, int dim)
{
    if (!rows) return NULL;
    ds_dims shape = x->shape;
    shape.d[dim] = shape.d[0];
    shape.d[0] = rows->shape.d[0];
    ds_tensor *t = ds_reshape(rows, shape);
    return dim ? ds_transpose(t, 0, dim) : t;
}

/* y[k,:] = x[index[k],:], of any dtype; of floats it is an embedding. */
static ds_tensor *rows_gather(ds_tensor *x, ds_tensor *index)
{
    if (dsi_is_float(x)) return ds_embedding(x, index, -1);
    if (!dsi_acquire(x, index)) return NULL;
    ds_tensor *y = dsi_new(x, ds_shape(index->shape.d[0], x->shape.d[1]));
    bool done = y && dsi_run_index(y, gather_rows, dsi_v(x), dsi_v(index), dsi_v(y));
    return dsi_result_if(done, y);
}

/* Slices of another dimension than the first: the same index for all elements. */
static ds_tensor *slices_gather(ds_tensor *x, int dim, ds_tensor *index)
{
    ds_dims around = {.n = x->shape.n}, shape = x->shape;
    for (int i = 0; i < around.n; i++) around.d[i] = 1;
    around.d[dim] = shape.d[dim] = ds_numel(index);
    ds_tensor *line = ds_reshape(index, around);
    return line ? ds_gather(x, dim, ds_expand(line, shape)) : NULL;
}

ds_tensor *ds_index_select(ds_tensor *x, int dim, ds_tensor *index)
{
    if (!dsi_live_all("index_select", x, index)) return dsi_null_operand("index_select");
    index = dsi_wide_index(index);
    if (!index || (dim = slices_check("index_select", x, index, dim)) < 0) return NULL;
    if (!x->shape.n) return ds_reshape(ds_index_select(ds_unsqueeze(x, 0), 0, index), (ds_dims){0});
    ds_tensor *y = NULL;
    if (dim) {
        y = slices_gather(x, dim, index);
    } else {
        ds_tensor *rows = slices_as_rows(x, dim);
        index = ds_reshape(index, ds_shape(-1));
        if (!rows || !index || !(rows = ds_contiguous(rows)) || !(index = ds_contiguous(index)))
            return NULL;
        y = rows_gather(rows, index);
    }
    if (!y) dsi_fail_in("index_select", ds_error_status());
    return dim ? y : rows_as_slices(y, x, dim);
}

/* y = x, y[o,index[o,k,i],i] += alpha src[o,k,i] of integers and bools, on the
 * host: they wrap around, and have no gradient. */
static ds_tensor *integers_add(const char *op, ds_tensor *x, int dim, ds_tensor *index,
                               ds_tensor *src, double alpha)
{
    if (!index || !src) return NULL;
    if (alpha != (double)(int64_t)alpha)
        return dsi_refuse("%s: alpha is %g beside %s: expected an integer", op, alpha,
                          ds_dtype_name(x->dtype));
    ds_device device = dsi_device_id(x->device), cpu = {DS_CPU, 0};
    ds_tensor *y = ds_to(ds_cast(x, DS_I64), cpu, DS_I64), *s = ds_to(src, cpu, DS_I64);
    y = ds_contiguous(y);
    if (y && y->storage == x->storage) y = ds_clone(y);
    const int64_t *from = ds_data(ds_contiguous(s)), *at = ds_data(index);
    uint64_t *to = ds_data_mut(y);
    if (!from || !at || !to) return NULL;
    dsi_view v = dsi_v_around(index, dim);
    int64_t size = x->shape.d[dim];
    for (int64_t o = 0; o < v.d[0]; o++)
        for (int64_t k = 0; k < v.d[1] * v.d[2]; k++) {
            int64_t c = at[o * v.d[1] * v.d[2] + k];
            if (c < 0 || c >= size)
                return dsi_refuse("%s: index %lld is outside 0..%lld", op, (long long)c,
                                  (long long)size - 1);
            to[(o * size + c) * v.d[2] + k % v.d[2]] += (uint64_t)(int64_t)alpha *
                                                        (uint64_t)from[o * v.d[1] * v.d[2] + k];
        }
    return ds_to(y, device, x->dtype);
}

/* Saved: index. The gradient of row k is row index[k] of dy. */
static void index_add_backward(dsi_node *n, ds_tensor *dy)
{
    dsi_accumulate_grad(n, 0, rows_gather(ds_contiguous(dy), dsi_saved_tensor(n, 0)));
}

const dsi_op dsi_op_index_add = {.name = "index_add", .backward = index_add_backward};

/* y [V,D] = 0, then y[index[k],:] += source[k,:] */
static ds_tensor *rows_add(ds_tensor *source, ds_tensor *index, int64_t rows)
{
    if (!(source = ds_contiguous(source)) || !dsi_acquire(source, index)) return NULL;
    ds_tensor *y = dsi_new(source, ds_shape(rows, source->shape.d[1]));
    if (!y || !dsi_run_index(y, scatter_rows, dsi_v(source), dsi_v(index), (int64_t)-1, dsi_v(y)))
        return NULL;
    dsi_save_for_backward(dsi_record(&dsi_op_index_add, y, source), index);
    return y;
}

typedef struct ScatterAdd {
    int dim;
    double alpha;
} ScatterAdd;

/* Saved: index. */
static void scatter_add_backward(dsi_node *n, ds_tensor *dy)
{
    const ScatterAdd *s = dsi_attr(n);
    dsi_accumulate_grad(n, 0, ds_gather(dy, s->dim, dsi_saved_tensor(n, 0)));
}

const dsi_op dsi_op_scatter_add = {"scatter_add", scatter_add_backward, .acquires = true};

/* Saved: index. Of y = x + alpha sums of src. */
static void scatter_sum_backward(dsi_node *n, ds_tensor *dy)
{
    const ScatterAdd *s = dsi_attr(n);
    if (dsi_needs_input_grad(n, 0)) dsi_accumulate_grad(n, 0, dsi_alias(dy));
    if (!dsi_needs_input_grad(n, 1)) return;
    ds_tensor *g = ds_gather(dy, s->dim, dsi_saved_tensor(n, 0));
    dsi_accumulate_grad(n, 1, s->alpha == 1 ? g : ds_scale(g, s->alpha));
}

static const dsi_op op_scatter_sum = {"scatter_add", scatter_sum_backward, .acquires = true};

/* x, += alpha src of the index, by the fusion. */
static ds_tensor *scatter_sum(const char *op, ds_tensor *x, int dim, ds_tensor *index,
                              ds_tensor *src, double alpha)
{
    if (!(x = ds_contiguous(x)) || !src || !(src = ds_contiguous(src)) ||
        !dsi_acquire(x, index, src))
        return NULL;
    ds_tensor *y = dsi_new(x, x->shape);
    if (!y) return NULL;
    if (!dsi_run_named(y, op, fusions, scatter_sum, alpha, dsi_v_around(x, dim),
                       dsi_v_index(index, dim), dsi_v_around(src, dim), dsi_v_around(y, dim)) ||
        dsi_device_check_early(y->device) != DS_OK)
        return dsi_fail_in(op, ds_error_status()), NULL;
    dsi_node *node = dsi_record(&op_scatter_sum, y, x, src);
    dsi_save_for_backward(node, index);
    dsi_set_attr(node, &(ScatterAdd){dim, alpha}, sizeof(ScatterAdd));
    return y;
}

/* Whether the fusions for an index of x's shape, but along dim, can be used. */
static bool scatter_fits(const ds_tensor *x, int dim, const ds_tensor *index)
{
    ds_dims shape = index->shape;
    shape.d[dim] = x->shape.d[dim];
    return dsi_same_shape(shape, x->shape);
}

/* y of index's shape with n elements along dim: 0, then += src; index as
 * dsi_v_index takes it */
static ds_tensor *elements_add(const char *op, ds_tensor *src, int dim, ds_tensor *index, int64_t n)
{
    if (!src || !(src = ds_contiguous(src)) || !dsi_acquire(src, index)) return NULL;
    ds_dims shape = index->shape;
    shape.d[dim] = n;
    ds_tensor *y = dsi_new(src, shape);
    if (!y || !dsi_run_index(y, scatter_add, dsi_v_around(src, dim), dsi_v_index(index, dim),
                             dsi_v_around(y, dim)))
        return dsi_fail_in(op, ds_error_status()), NULL;
    dsi_node *node = dsi_record(&dsi_op_scatter_add, y, src);
    dsi_save_for_backward(node, index),
        dsi_set_attr(node, &(ScatterAdd){.dim = dim}, sizeof(ScatterAdd));
    return y;
}

ds_tensor *ds_index_add(ds_tensor *x, int dim, ds_tensor *index, ds_tensor *source, double alpha)
{
    const char *op = "index_add";
    if (!dsi_live_all(op, x, index, source)) return dsi_null_operand(op);
    index = dsi_wide_index(index);
    if (!index || !dsi_same_kind(op, x, source) || (dim = slices_check(op, x, index, dim)) < 0)
        return NULL;
    if (!x->shape.n && !source->shape.n) {
        x = ds_index_add(ds_unsqueeze(x, 0), 0, index, ds_unsqueeze(source, 0), alpha);
        return ds_reshape(x, (ds_dims){0});
    }
    index = ds_contiguous(ds_reshape(index, ds_shape(-1)));
    ds_dims want = x->shape;
    if (index && want.n) want.d[dim] = index->shape.d[0];
    if (!index || !dsi_same_shape(source->shape, want))
        return index ? dsi_refuse("%s: x is %s, source %s: expected %s, one slice for each index",
                                  op, dsi_shape_text(x->shape), dsi_shape_text(source->shape),
                                  dsi_shape_text(want))
                     : NULL;
    ds_dims around = {.n = want.n};
    for (int i = 0; i < want.n; i++) around.d[i] = i == dim ? want.d[dim] : 1;
    ds_tensor *all = ds_expand(ds_reshape(index, around), want);
    if (!dsi_is_float(x)) return integers_add(op, x, dim, ds_contiguous(all), source, alpha);
    if ((dim || dsi_is_16bit(x)) && dsi_fusion(x->device, scatter_sum))
        return scatter_sum(op, x, dim, all, source, alpha);
    ds_tensor *sums = dim ? elements_add(op, dsi_upcast(source), dim, all, x->shape.d[dim])
                          : rows_add(slices_as_rows(dsi_upcast(source), 0), index, x->shape.d[0]);
    if (!sums) return dsi_fail_in(op, ds_error_status()), NULL;
    if (!dim) sums = ds_reshape(sums, x->shape);
    return ds_cast(ds_add_scaled(dsi_upcast(x), sums, alpha), x->dtype);
}

/* ---- elements ---------------------------------------------------------------------------------------- */

/* Dimension dim from the front, for an index that is no larger than src, and no
 * larger than x except along dim; -1 with the message. */
static int elements_check(const char *op, const ds_tensor *x, const ds_tensor *index,
                          const ds_tensor *src, int dim)
{
    dim = dsi_want_dim(op, x, dim);
    if (dim < 0 || !dsi_same_device(op, x, index) || !dsi_same_kind(op, x, src)) return -1;
    bool fits = index->shape.n == x->shape.n && src->shape.n == x->shape.n;
    for (int i = 0; i < x->shape.n && fits; i++)
        fits = index->shape.d[i] <= src->shape.d[i] &&
               (i == dim || index->shape.d[i] <= x->shape.d[i]);
    if (fits && index->dtype == DS_I64) return dim;
    dsi_refuse("%s: x is %s, the index %s %s, src %s: expected int64, no larger than src, nor than "
               "x except in dimension %d",
               op, dsi_shape_text(x->shape), ds_dtype_name(index->dtype),
               dsi_shape_text(index->shape), dsi_shape_text(src->shape), dim);
    return -1;
}

/* The first elements of x in each dimension, a view of that shape. */
static ds_tensor *corner(ds_tensor *x, ds_dims shape)
{
    for (int i = 0; i < shape.n && x; i++)
        if (shape.d[i] != x->shape.d[i]) x = ds_slice(x, i, 0, shape.d[i]);
    return x;
}

/* y with zeros behind it up to that shape. */
static ds_tensor *padded_to(ds_tensor *y, ds_dims shape)
{
    const int64_t before[DS_MAX_DIMS] = {0};
    int64_t after[DS_MAX_DIMS] = {0};
    if (!y || dsi_same_shape(y->shape, shape)) return y;
    for (int i = 0; i < shape.n; i++) after[i] = shape.d[i] - y->shape.d[i];
    return dsi_pad(y, before, after, 0);
}

/* ds_scatter_add of integers and bools; elements outside of the index stay. */
static ds_tensor *integers_scatter_add(ds_tensor *x, int dim, ds_tensor *index, ds_tensor *src)
{
    ds_dims shape = index->shape;
    shape.d[dim] = x->shape.d[dim];
    ds_tensor *part = corner(x, shape), *y = ds_clone(x);
    if (!part || !y || !dsi_numel(index->shape)) return part ? y : NULL;
    part = integers_add("scatter_add", part, dim, index, corner(src, index->shape), 1);
    return part && dsi_copy(corner(y, shape), part) == DS_OK ? y : NULL;
}

ds_tensor *ds_scatter_add(ds_tensor *x, int dim, ds_tensor *index, ds_tensor *src)
{
    if (!dsi_live_all("scatter_add", x, index, src)) return dsi_null_operand("scatter_add");
    index = dsi_wide_index(index);
    if (!index || (dim = elements_check("scatter_add", x, index, src, dim)) < 0) return NULL;
    if (!x->shape.n)
        return ds_squeeze(
            ds_scatter_add(ds_unsqueeze(x, 0), 0, ds_unsqueeze(index, 0), ds_unsqueeze(src, 0)), 0);
    if (!(index = ds_contiguous(index))) return NULL;
    if (!dsi_is_float(x)) return integers_scatter_add(x, dim, index, src);
    ds_tensor *part = corner(src, index->shape);
    if (scatter_fits(x, dim, index) && dsi_fusion(x->device, scatter_sum))
        return scatter_sum("scatter_add", x, dim, index, part, 1);
    part = elements_add("scatter_add", dsi_upcast(part), dim, index, x->shape.d[dim]);
    return ds_cast(ds_add(dsi_upcast(x), padded_to(part, x->shape)), x->dtype);
}

/* The sources of element [o,c,i] are the src[o,k,i] with index[o,k,i] == c, in
 * the order of k. It gets the last of them, or the nth, counted from 0. */
enum { LAST_SOURCE = -1 };

/* Finds the source of each element, on the host. All arrays but index_data
 * (index's memory) are [o,c,i] with `size` elements along dim:
 *     skip        in: n for the nth source, overwritten; NULL: the last source
 *     source_k    out: the k of the source; not written if there is none
 *     has_source  out: 1 if there is a source, else not written
 * False with the message if an index is out of range. */
static bool source_k_find(const char *op, const ds_tensor *index, int dim, int64_t size,
                          const int64_t *index_data, int64_t *skip, int64_t *source_k,
                          uint8_t *has_source)
{
    dsi_view v = dsi_v_around(index, dim);
    for (int64_t o = 0; o < v.d[0]; o++)
        for (int64_t k = 0; k < v.d[1]; k++)
            for (int64_t i = 0; i < v.d[2]; i++) {
                int64_t c = index_data[(o * v.d[1] + k) * v.d[2] + i];
                if (c < 0 || c >= size)
                    return dsi_refuse("%s: index %lld at [%lld, %lld] is outside 0..%lld", op,
                                      (long long)c, (long long)o, (long long)(k * v.d[2] + i),
                                      (long long)size - 1);
                int64_t element = (o * size + c) * v.d[2] + i;
                if (!skip || skip[element]-- == 0) source_k[element] = k, has_source[element] = 1;
            }
    return true;
}

/* The sources of the elements of x. */
typedef struct Sources {
    ds_tensor *has_source; /* bool, x's shape */
    ds_tensor *values;     /* src's dtype, x's shape; where there is no source, any value */
    bool any;              /* an element has a source */
} Sources;

/* nth: LAST_SOURCE, or from 0 on. False with the message. */
static bool sources_gather(const char *op, ds_tensor *x, int dim, ds_tensor *index, ds_tensor *src,
                           int64_t nth, Sources *sources)
{
    ds_dims shape = index->shape;
    shape.d[dim] = x->shape.d[dim];
    bool last = nth == LAST_SOURCE;
    ds_tensor *source_k = dsi_fill(dsi_new_host(DS_I64, shape), 0),
              *has_source = dsi_fill(dsi_new_host(DS_BOOL, shape), 0),
              *skip = last ? NULL : dsi_fill(dsi_new_host(DS_I64, shape), (double)nth);
    const int64_t *index_data = ds_data(index);
    uint8_t *flags = has_source ? ds_data_mut(has_source) : NULL;
    if (!source_k || !flags || !index_data || (!last && !skip) ||
        !source_k_find(op, index, dim, shape.d[dim], index_data, last ? NULL : ds_data_mut(skip),
                       ds_data_mut(source_k), flags))
        return false;
    sources->any = memchr(flags, 1, (size_t)dsi_numel(shape));
    ds_device device = dsi_device_id(x->device);
    source_k = ds_to(source_k, device, DS_I64), has_source = ds_to(has_source, device, DS_BOOL);
    ds_tensor *values = index->shape.d[dim] ? ds_gather(src, dim, source_k) : corner(x, shape);
    sources->has_source = padded_to(has_source, x->shape);
    sources->values = padded_to(values, x->shape);
    return sources->has_source && sources->values;
}

/* Saved: index. */
static void scatter_backward(dsi_node *n, ds_tensor *dy)
{
    int dim = *(const int *)dsi_attr(n);
    ds_tensor *index = dsi_saved_tensor(n, 0), *g = ds_contiguous(dy), *dx = dsi_new_like(g),
              *dsrc = dsi_new(dy, index->shape);
    bool done = dx && dsrc &&
                dsi_run_fusion(dx, scatter_dx, dsi_v_around(g, dim), dsi_v_around(index, dim),
                               dsi_v_around(dx, dim), dsi_v_around(dsrc, dim));
    if (dsi_needs_input_grad(n, 0)) dsi_accumulate_grad(n, 0, dsi_result_if(done, dx));
    if (dsi_needs_input_grad(n, 1)) dsi_accumulate_grad(n, 1, dsi_result_if(done, dsrc));
}

const dsi_op dsi_op_scatter = {.name = "scatter", .backward = scatter_backward};

/* scatter by the fusion, for an index of x's shape, but along dim. */
static ds_tensor *scatter_fused(ds_tensor *x, int dim, ds_tensor *index, ds_tensor *src)
{
    if (!(x = ds_contiguous(x)) || !(src = ds_contiguous(src)) || !dsi_acquire(x, index, src))
        return NULL;
    ds_tensor *y = dsi_new(x, x->shape);
    if (!y) return NULL;
    if (!dsi_run_fusion(y, scatter, dsi_v_around(x, dim), dsi_v_around(index, dim),
                        dsi_v_around(src, dim), dsi_v_around(y, dim)) ||
        dsi_device_check_early(y->device) != DS_OK)
        return dsi_fail_in("scatter", ds_error_status()), NULL;
    dsi_node *n = dsi_record(&dsi_op_scatter, y, x, src);
    dsi_save_for_backward(n, index), dsi_set_attr(n, &dim, sizeof dim);
    return y;
}

/* x, with src in place of the elements that the index names, or, if `multiply`,
 * multiplied by it: one round for each source of the same element. */
static ds_tensor *scatter(const char *op, ds_tensor *x, int dim, ds_tensor *index, ds_tensor *src,
                          bool multiply)
{
    if (!dsi_live_all(op, x, index, src)) return dsi_null_operand(op);
    index = dsi_wide_index(index);
    if (!index || (dim = elements_check(op, x, index, src, dim)) < 0) return NULL;
    if (!x->shape.n)
        return ds_squeeze(scatter(op, ds_unsqueeze(x, 0), 0, ds_unsqueeze(index, 0),
                                  ds_unsqueeze(src, 0), multiply),
                          0);
    if (!(index = ds_contiguous(index)) || !(src = corner(src, index->shape))) return NULL;
    Sources sources;
    if (!multiply && scatter_fits(x, dim, index) && dsi_fusion(x->device, scatter))
        return scatter_fused(x, dim, index, src);
    if (!multiply)
        return sources_gather(op, x, dim, index, src, LAST_SOURCE, &sources)
                   ? ds_where(sources.has_source, sources.values, x)
                   : NULL;
    for (int64_t nth = 0; x; nth++) {
        if (!sources_gather(op, x, dim, index, src, nth, &sources)) return NULL;
        if (!sources.any) break;
        x = ds_where(sources.has_source, ds_mul(x, sources.values), x);
    }
    return x;
}

ds_tensor *ds_scatter(ds_tensor *x, int dim, ds_tensor *index, ds_tensor *src)
{
    return scatter("scatter", x, dim, index, src, false);
}

ds_tensor *ds_scatter_multiply(ds_tensor *x, int dim, ds_tensor *index, ds_tensor *src)
{
    return scatter("scatter_multiply", x, dim, index, src, true);
}
