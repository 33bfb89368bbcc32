/* ops/index.c: ops with an index: embedding, gather, one_hot, max, argmax.
 *
 * Indices are int64. o, k, i are the dimensions of a tensor seen as
 * [outer,K,inner] around dimension dim. A bad index sets the device's fault
 * flag (dsi_run_index).
 * embedding  y[i,:] = w[index[i],:],             dw[index[i],:] += dy[i,:]
 * gather     y[o,k,i] = x[o,index[o,k,i],i],     dx[o,index[o,k,i],i] += dy[o,k,i]
 * max        y = x[o,index[o,i],i], the largest,  dx there = dy, 0 elsewhere
 * SPDX-License-Identifier: MIT */
#include "op.h"

/* ---- embedding --------------------------------------------------------------------------------------- */

typedef struct Embedding {
    ds_dims weight; /* shape */
    int64_t padding_idx;
    bool by_frequency;
} Embedding;

/* contiguous indices as [M] */
static dsi_view embedding_flat(const ds_tensor *index)
{
    return dsi_v_shape(index, ds_shape(dsi_numel(index->shape)));
}

/* [..., D] as [M, D] */
static dsi_view embedding_rows(const ds_tensor *y, int64_t width)
{
    ds_dims lead = y->shape;
    lead.n--;
    return dsi_v_shape(y, ds_shape(dsi_numel(lead), width));
}

/* g [...,D] / how often index [...] names the row, of `rows`. */
static ds_tensor *embedding_by_frequency(ds_tensor *g, ds_tensor *index, int64_t rows)
{
    ds_dims each = index->shape, places = ds_shape(dsi_numel(index->shape));
    each.d[each.n++] = 1;
    ds_tensor *one = dsi_fill(dsi_new_upcast(g, places), 1), *flat = ds_reshape(index, places);
    ds_tensor *counts = dsi_fill(dsi_new_upcast(g, ds_shape(rows)), 0);
    counts = ds_index_select(ds_index_add(counts, 0, flat, one, 1), 0, flat);
    return ds_cast(ds_mul(dsi_upcast(g), ds_reshape(ds_div(one, counts), each)), g->dtype);
}

/* Saved: index. dw is [V,D], dense; rows that no index names are 0, as is the
 * row padding_idx. A row that several positions name gets the sum of their
 * gradients. */
static void embedding_backward(dsi_node *n, ds_tensor *dy)
{
    const Embedding *e = dsi_attr(n);
    ds_tensor *index = dsi_saved_tensor(n, 0), *dw = dsi_new_grad(n, 0, dy, e->weight);
    ds_tensor *g = e->by_frequency ? embedding_by_frequency(dy, index, e->weight.d[0]) : dy;
    g = ds_contiguous(g);
    bool done = dw && g &&
                dsi_run(dw, scatter_rows, embedding_rows(g, e->weight.d[1]), embedding_flat(index),
                        e->padding_idx, dsi_v(dw));
    dsi_accumulate_grad(n, 0, dsi_result_if(done, dw));
}

const dsi_op dsi_op_embedding = {.name = "embedding", .backward = embedding_backward};

/* w [V,D]; index int64 of any shape; padding_idx -1 (none) or a row of w. The
 * values of the indices are not read here: on a GPU that would wait for it. */
static bool embedding_check(const ds_tensor *w, const ds_tensor *index, int64_t padding_idx)
{
    if (!dsi_want_float("embedding", w)) return false;
    if (w->shape.n != 2 || index->shape.n == DS_MAX_DIMS)
        return dsi_refuse("embedding: weight is %s, indices are %s: expected [V,D] and at most %d "
                          "dimensions",
                          dsi_shape_text(w->shape), dsi_shape_text(index->shape), DS_MAX_DIMS - 1);
    if (!dsi_want_int64("embedding", "indices", w, index)) return false;
    if (padding_idx < -1 || padding_idx >= w->shape.d[0])
        return dsi_refuse("embedding: padding_idx is %lld, weight has %lld rows",
                          (long long)padding_idx, (long long)w->shape.d[0]);
    return true;
}

/* w [V,D], index [...] -> y [...,D], row by row. A bad index sets the device's
 * fault flag, which the next synchronisation reports. */
ds_tensor *ds_embedding_with(ds_tensor *w, ds_tensor *index, int64_t padding_idx,
                             ds_embedding_opts opts)
{
    if (!dsi_live_all("embedding", w, index)) return dsi_null_operand("embedding");
    index = dsi_wide_index(index);
    if (!index || !embedding_check(w, index, padding_idx)) return NULL;
    if (!(index = ds_contiguous(index)) || !dsi_acquire(w, index)) return NULL;

    Embedding e = {w->shape, padding_idx, opts.scale_grad_by_freq};
    ds_dims shape = index->shape;
    shape.d[shape.n++] = w->shape.d[1];
    ds_tensor *y = dsi_new(w, shape);

    if (!y || !dsi_run_index(y, gather_rows, dsi_v(w), embedding_flat(index),
                             embedding_rows(y, w->shape.d[1])))
        return NULL;

    dsi_node *n = dsi_record(&dsi_op_embedding, y, w);
    dsi_save_for_backward(n, index), dsi_set_attr(n, &e, sizeof e);
    return y;
}

ds_tensor *ds_embedding(ds_tensor *w, ds_tensor *index, int64_t padding_idx)
{
    return ds_embedding_with(w, index, padding_idx, (ds_embedding_opts){0});
}

/* ---- gather ------------------------------------------------------------------------------------------ */

typedef struct Gather {
    ds_dims x; /* shape */
    int dim;
} Gather;

/* True if the index differs along dim alone, as after ds_expand: it is read
 * without a copy. */
static bool index_is_line(const ds_tensor *index, int dim)
{
    for (int i = 0; i < index->shape.n; i++)
        if (i != dim && index->shape.d[i] != 1 && index->stride[i] != 0) return false;
    return true;
}

dsi_view dsi_v_index(const ds_tensor *index, int dim)
{
    if (!index_is_line(index, dim)) return dsi_v_around(index, dim);
    dsi_view v = dsi_v(index);
    int64_t around[2] = {1, 1};
    for (int i = 0; i < v.n; i++)
        if (i != dim) around[i > dim] *= v.d[i];
    return (dsi_view){v.p, v.dtype, 3, {around[0], v.d[dim], around[1]}, {0, v.s[dim], 0}};
}

/* Saved: index. dx is 0 except in the elements that were read. */
static void gather_backward(dsi_node *n, ds_tensor *dy)
{
    const Gather *c = dsi_attr(n);
    ds_tensor *index = dsi_saved_tensor(n, 0), *dx = dsi_new(dy, c->x), *g = ds_contiguous(dy);
    bool done = dx && g &&
                dsi_run(dx, scatter_add, dsi_v_around(g, c->dim), dsi_v_index(index, c->dim),
                        dsi_v_around(dx, c->dim));
    dsi_accumulate_grad(n, 0, dsi_result_if(done, dx));
}

const dsi_op dsi_op_gather = {.name = "gather", .backward = gather_backward};

/* x's dimension dim, from the front; -1, with the message. The index is no
 * larger than x except along dim. */
static int gather_check(const ds_tensor *x, const ds_tensor *index, int dim)
{
    if (!dsi_same_device("gather", x, index)) return -1;
    int at = dsi_want_dim("gather", x, dim);
    if (at < 0) return -1;
    bool fits = index->shape.n == x->shape.n && x->shape.n;
    for (int i = 0; fits && i < x->shape.n; i++)
        fits = i == at || index->shape.d[i] <= x->shape.d[i];
    if (index->dtype == DS_I64 && fits) return at;
    dsi_refuse("gather: x is %s, the index %s %s: expected int64, no larger than x except in "
               "dimension %d",
               dsi_shape_text(x->shape), ds_dtype_name(index->dtype), dsi_shape_text(index->shape),
               dim);
    return -1;
}

/* y has the index's shape: y[..,i,..] = x[..,index[..,i,..],..] along dim. */
ds_tensor *ds_gather(ds_tensor *x, int dim, ds_tensor *index)
{
    if (!dsi_live_all("gather", x, index)) return dsi_null_operand("gather");
    index = dsi_wide_index(index);
    if (index && !x->shape.n && !index->shape.n)
        return ds_squeeze(ds_gather(ds_unsqueeze(x, 0), dim, ds_unsqueeze(index, 0)), 0);
    if (!index || (dim = gather_check(x, index, dim)) < 0) return NULL;
    for (int i = 0; i < x->shape.n; i++)
        if (i != dim && index->shape.d[i] < x->shape.d[i])
            if (!(x = ds_slice(x, i, 0, index->shape.d[i]))) return NULL;
    if (!index_is_line(index, dim)) index = ds_contiguous(index);
    if (!index || !(x = ds_contiguous(x)) || !dsi_acquire(x, index)) return NULL;

    ds_tensor *y = dsi_new(x, index->shape);

    if (!y || !dsi_run_index(y, gather, dsi_v_around(x, dim), dsi_v_index(index, dim),
                             dsi_v_around(y, dim)))
        return NULL;
    if (!dsi_is_float(x)) return y;

    dsi_node *n = dsi_record(&dsi_op_gather, y, x);
    dsi_save_for_backward(n, index), dsi_set_attr(n, &(Gather){x->shape, dim}, sizeof(Gather));
    return y;
}

/* ---- one-hot ----------------------------------------------------------------------------------------- */

/* Reads the labels on the host: a label out of range would silently give a row
 * of
 * zeros. */
static bool labels_in_range(ds_tensor *labels, int64_t classes)
{
    const int64_t *p = ds_data(labels);
    for (int64_t i = 0, n = dsi_numel(labels->shape); p && i < n; i++)
        if (p[i] < 0 || p[i] >= classes)
            return dsi_refuse("one_hot: label %lld is %lld: expected 0 to %lld", (long long)i,
                              (long long)p[i], (long long)classes - 1);
    return p;
}

/* labels [...] -> int64 [...,classes]. No gradient: labels have none. */
ds_tensor *ds_one_hot(ds_tensor *labels, int64_t classes)
{
    if (!dsi_live(labels, "one_hot")) return dsi_null_operand("one_hot");
    if (labels->dtype != DS_I64 || labels->shape.n == DS_MAX_DIMS || classes < 1)
        return dsi_refuse("one_hot: labels are %s %s, classes %lld: expected int64 of at most %d "
                          "dimensions, and at least 1 class",
                          ds_dtype_name(labels->dtype), dsi_shape_text(labels->shape),
                          (long long)classes, DS_MAX_DIMS - 1);
    if (!labels_in_range(labels, classes)) return NULL;
    /* [...,1] beside [classes]: equal where the class is the label */
    ds_tensor *names = dsi_arange(labels, 0, classes, 1);
    return ds_cast(ds_eq(ds_unsqueeze(labels, -1), names), DS_I64);
}

/* ---- maximum ----------------------------------------------------------------------------------------- */

/* x's shape without dimension dim; or with 1 there. */
static ds_dims shape_without(ds_dims x, int dim, bool keep)
{
    ds_dims shape = {.n = 0};
    for (int i = 0; i < x.n; i++)
        if (i != dim || keep) shape.d[shape.n++] = i == dim ? 1 : x.d[i];
    return shape;
}

/* [outer, 1, inner]: what is left of x seen around dim. */
static ds_dims max_left(const dsi_view *x) { return ds_shape(x->d[0], 1, x->d[2]); }

typedef struct Max {
    ds_dims x; /* shape */
    int dim;
} Max;

/* Saved: index. dy is the gradient of the elements that were the maximum. */
static void max_backward(dsi_node *n, ds_tensor *dy)
{
    const Max *m = dsi_attr(n);
    ds_tensor *index = dsi_saved_tensor(n, 0), *dx = dsi_new(dy, m->x), *g = ds_contiguous(dy);
    bool done = false;
    if (dx && g) {
        dsi_view v = dsi_v_around(dx, m->dim);
        done = dsi_run(dx, scatter_add, dsi_v_shape(g, max_left(&v)),
                       dsi_v_shape(index, max_left(&v)), v);
    }
    dsi_accumulate_grad(n, 0, dsi_result_if(done, dx));
}

const dsi_op dsi_op_max = {.name = "max", .backward = max_backward};

/* The maxima of contiguous x -> y (may be NULL), their places -> the result, of
 * shape `shape`. */
static ds_tensor *max_find(const ds_tensor *x, int dim, ds_dims shape, ds_tensor *y)
{
    if (!dsi_acquire(x)) return NULL;
    dsi_view v = dsi_v_around(x, dim);
    ds_tensor *index = dsi_new_dtype(x, DS_I64, shape);
    if (!index) return NULL;
    dsi_view values = y ? dsi_v_shape(y, max_left(&v)) : dsi_v(NULL);
    return dsi_result_if(
        dsi_run_op(index, reduce, DSI_MAX, 1.0, v, values, dsi_v_shape(index, max_left(&v))),
        index);
}

/* Returns dim counted from the front; -1, with the message, if that dimension
 * is empty and has no maximum. */
int dsi_max_check(const char *op, const ds_tensor *x, int dim)
{
    int at = dsi_want_dim(op, x, dim);
    if (at < 0 || !x->shape.n || x->shape.d[at]) return at;
    dsi_refuse("%s: dimension %d of x %s is empty", op, dim, dsi_shape_text(x->shape));
    return -1;
}

/* The maxima along dim; dy is added to the elements that were the maximum, the
 * first of equal ones, as in PyTorch. */
ds_tensor *ds_max(ds_tensor *x, int dim, bool keepdim)
{
    if (!dsi_live(x, "max")) return dsi_null_operand("max");
    if ((dim = dsi_max_check("max", x, dim)) < 0) return NULL;
    if (!dsi_is_float(x) && x->dtype != DS_I64)
        return ds_cast(ds_max(ds_cast(x, DS_I64), dim, keepdim), x->dtype);
    if (!(x = ds_contiguous(x))) return NULL;

    ds_dims shape = shape_without(x->shape, dim, keepdim);
    ds_tensor *y = dsi_new(x, shape);

    ds_tensor *index = y ? max_find(x, dim, shape, y) : NULL;
    if (!index) return NULL;
    if (!dsi_is_float(x)) return y;

    dsi_node *n = dsi_record(&dsi_op_max, y, x);
    dsi_save_for_backward(n, index), dsi_set_attr(n, &(Max){x->shape, dim}, sizeof(Max));
    return y;
}

/* int64 places along dim, without a graph. */
ds_tensor *ds_argmax(ds_tensor *x, int dim)
{
    if (!dsi_live(x, "argmax")) return dsi_null_operand("argmax");
    if ((dim = dsi_max_check("argmax", x, dim)) < 0) return NULL;
    if (x->dtype == DS_BOOL) return dsi_refuse("argmax: x is bool: expected numbers (ds_cast it)");
    if (!dsi_is_float(x)) x = ds_cast(x, DS_I64);
    if (!x || !(x = ds_contiguous(x))) return NULL;
    return max_find(x, dim, shape_without(x->shape, dim, false), NULL);
}
