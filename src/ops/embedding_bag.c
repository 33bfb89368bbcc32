/* ops/embedding_bag.c: embedding_bag, made of embedding, index_add and max; sums and means
 * of float32 and float64 by one kernel where the device has it.
 *
 * Position m of the indices is in bag g[m], the last one that begins at or
 * before m:  y[b] = sum over g[m] = b of f[m] w[index[m]], f[m] = 1, the
 * position's weight, or 0 at padding_idx; a mean divides by the number of
 * positions that are no padding. The largest: of as many rows as the longest
 * bag has, of which those that are not in the bag are -inf.
 * SPDX-License-Identifier: MIT */
#include "base/int.h"
#include "op.h"

#include <math.h>

static bool embedding_bag_check(const ds_tensor *w, const ds_tensor *index, int64_t padding_idx,
                                ds_embedding_bag_opts o)
{
    const ds_tensor *offsets = o.offsets, *each = o.per_sample_weights;
    if (!dsi_want_float("embedding_bag", w) || !dsi_same_kind("embedding_bag", w, each))
        return false;
    if (!dsi_same_device("embedding_bag", w, index)) return false;
    if (w->shape.n != 2 || index->dtype != DS_I64 || index->shape.n != (offsets ? 1 : 2))
        return dsi_refuse("embedding_bag: weight is %s, indices are %s %s: expected [V,D], and "
                          "int64 %s",
                          dsi_shape_text(w->shape), ds_dtype_name(index->dtype),
                          dsi_shape_text(index->shape),
                          offsets ? "[M] with offsets" : "[B,L] without offsets");
    if (offsets && (offsets->dtype != DS_I64 || offsets->shape.n != 1 || !offsets->shape.d[0]))
        return dsi_refuse("embedding_bag: offsets are %s %s: expected int64 [B]",
                          ds_dtype_name(offsets->dtype), dsi_shape_text(offsets->shape));
    if (each && (o.mode != DS_BAG_SUM || !dsi_same_shape(each->shape, index->shape)))
        return dsi_refuse("embedding_bag: per_sample_weights are %s, indices are %s: expected the "
                          "same shape, and .mode DS_BAG_SUM",
                          dsi_shape_text(each->shape), dsi_shape_text(index->shape));
    if (o.scale_grad_by_freq && o.mode == DS_BAG_MAX)
        return dsi_refuse("embedding_bag: .scale_grad_by_freq with .mode DS_BAG_MAX: expected mean "
                          "or sum");
    if ((unsigned)o.mode > DS_BAG_MAX)
        return dsi_refuse("embedding_bag: there is no mode %d", (int)o.mode);
    if (padding_idx < -1 || padding_idx >= w->shape.d[0])
        return dsi_refuse("embedding_bag: padding_idx is %lld, weight has %lld rows",
                          (long long)padding_idx, (long long)w->shape.d[0]);
    return true;
}

/* Where bags begin, and the end of the last one, on the host: int64 [bags + 1];
 * NULL with the message. */
static ds_tensor *bags_find(const ds_tensor *index, const ds_embedding_bag_opts *o)
{
    int64_t n = dsi_numel(index->shape), given = o->offsets ? o->offsets->shape.d[0] : 0;
    int64_t bags = !o->offsets ? index->shape.d[0] : given - o->include_last_offset;
    const int64_t *begin = o->offsets ? ds_data(o->offsets) : NULL;
    ds_tensor *ends = dsi_new_host(DS_I64, ds_shape(bags + 1));
    int64_t *at = ends ? ds_data_mut(ends) : NULL;
    if (!at || (o->offsets && !begin)) return NULL;
    for (int64_t i = 0; i < given; i++)
        if (begin[i] < (i ? begin[i - 1] : 0) || begin[i] > n || (!i && begin[0]))
            return dsi_refuse("embedding_bag: offsets[%lld] is %lld: expected 0 as the first, "
                              "ascending numbers, and at most %lld",
                              (long long)i, (long long)begin[i], (long long)n);
    for (int64_t i = 0; i < bags; i++) at[i] = begin ? begin[i] : i * index->shape.d[1];
    at[bags] = begin && o->include_last_offset ? begin[bags] : n;
    return ends;
}

/* g above, int64 [M] on the indices' device. */
static ds_tensor *bags_of_positions(const ds_tensor *index, const int64_t *at, int64_t bags)
{
    int64_t n = at[bags];
    ds_tensor *bag = dsi_new_host(DS_I64, ds_shape(n));
    int64_t *g = ds_data_mut(bag);
    for (int64_t b = 0; g && b < bags; b++)
        for (int64_t m = at[b]; m < at[b + 1]; m++) g[m] = b;
    return g ? dsi_beside(bag, index, DS_I64) : NULL;
}

/* Sums of the rows of x [M,...] that are in each bag -> [bags,...]. */
static ds_tensor *bags_sum(ds_tensor *x, ds_tensor *bag, int64_t bags)
{
    if (!x) return NULL;
    ds_dims shape = x->shape;
    shape.d[0] = bags;
    return ds_index_add(dsi_fill(dsi_new(x, shape), 0), 0, bag, x, 1);
}

/* rows [M,D], counted [M,1]: 1, or 0 for padding -> the largest [bags,D]. Place j of bag
 * b is row at[b] + j, or row M, which is -inf; then a bag without rows is 0. */
static ds_tensor *bags_max(ds_tensor *rows, ds_tensor *counted, const int64_t *at, int64_t bags)
{
    int64_t longest = 1, n = rows->shape.d[0];
    for (int64_t b = 0; b < bags; b++) longest = dsi_max(longest, at[b + 1] - at[b]);
    ds_tensor *place = dsi_new_host(DS_I64, ds_shape(bags * longest));
    int64_t *p = place ? ds_data_mut(place) : NULL;
    for (int64_t i = 0; p && i < bags * longest; i++) {
        int64_t b = i / longest, m = at[b] + i % longest;
        p[i] = m < at[b + 1] ? m : n;
    }
    ds_tensor *least = dsi_fill(dsi_new(rows, ds_shape(1, rows->shape.d[1])), -(double)INFINITY);
    rows = ds_where(ds_eq(counted, ds_like(counted, 0)), least, rows);
    rows = ds_cat((ds_tensor *[]){rows, least}, 2, 0);
    if (!p || !rows) return NULL;
    rows = ds_index_select(rows, 0, dsi_beside(place, rows, DS_I64));
    ds_tensor *y = ds_max(ds_reshape(rows, ds_shape(bags, longest, ds_size(rows, 1))), 1, false);
    return y ? ds_where(ds_eq(y, dsi_number_beside(y, -(double)INFINITY)), ds_like(y, 0), y) : NULL;
}

/* ---- sums by one kernel -------------------------------------------------------------------------------- */

/* Saved: index [M], bag [M]. Row index[m] gets the gradient of bag[m]. */
static void embedding_bag_backward(dsi_node *n, ds_tensor *dy)
{
    const ds_dims *weight = dsi_attr(n);
    ds_tensor *index = dsi_saved_tensor(n, 0), *bag = dsi_saved_tensor(n, 1);
    ds_tensor *dw = dsi_new_grad(n, 0, dy, *weight), *g = ds_contiguous(dy);
    ds_tensor *rows = dsi_new(g, ds_shape(index->shape.d[0], weight->d[1]));
    bool done = dw && rows && dsi_run(rows, gather_rows, dsi_v(g), dsi_v(bag), dsi_v(rows)) &&
                dsi_run(dw, scatter_rows, dsi_v(rows), dsi_v(index), (int64_t)-1, dsi_v(dw));
    dsi_accumulate_grad(n, 0, dsi_result_if(done, dw));
}

const dsi_op dsi_op_embedding_bag = {.name = "embedding_bag", .backward = embedding_bag_backward};

/* Which rows of w are in each bag, without padding: begin [bags + 1], index and bag [M];
 * in host memory. taken: the rows of flat, not of w, are counted. */
typedef struct BagRows {
    ds_tensor *begin, *index, *bag;
} BagRows;

static bool bag_rows(const ds_tensor *w, const ds_tensor *flat, bool taken, int64_t padding_idx,
                     const int64_t *at, int64_t bags, BagRows *b)
{
    int64_t m = 0;
    b->begin = dsi_new_host(DS_I64, ds_shape(bags + 1));
    b->index = dsi_new_host(DS_I64, flat->shape), b->bag = dsi_new_host(DS_I64, flat->shape);
    const int64_t *from = ds_data((ds_tensor *)flat);
    int64_t *begin = ds_data_mut(b->begin), *index = ds_data_mut(b->index),
            *bag = ds_data_mut(b->bag);
    if (!from || !begin || !index || !bag) return false;
    for (int64_t i = 0; i < bags; i++) {
        begin[i] = m;
        for (int64_t e = at[i]; e < at[i + 1]; e++) {
            if (from[e] < 0 || from[e] >= w->shape.d[0])
                return dsi_invalid("embedding_bag: index %lld at position %lld is outside 0..%lld",
                                   (long long)from[e], (long long)e, (long long)w->shape.d[0] - 1);
            if (from[e] != padding_idx) index[m] = taken ? e : from[e], bag[m++] = i;
        }
    }
    begin[bags] = m;
    b->index = ds_slice(b->index, 0, 0, m), b->bag = ds_slice(b->bag, 0, 0, m);
    return b->index && b->bag;
}

/* The sums, or means, of a bag's rows by the fusion resample; of 16 bits those of the rows'
 * float32 copies. */
static ds_tensor *bags_resample(ds_tensor *w, const ds_tensor *flat, int64_t padding_idx,
                                const int64_t *at, int64_t bags, bool mean)
{
    BagRows b;
    bool half = dsi_is_16bit(w);
    ds_dtype dtype = w->dtype;
    if (!bag_rows(w, flat, half, padding_idx, at, bags, &b)) return NULL;
    w = half ? dsi_upcast(ds_embedding(w, (ds_tensor *)flat, -1)) : ds_contiguous(w);
    if (!w || !dsi_acquire(w)) return NULL;
    int64_t width = w->shape.d[1];
    ds_tensor *one = dsi_fill(dsi_new(w, b.index->shape), 1);
    ds_tensor *y = dsi_new(w, ds_shape(bags, width));
    if (!one || !y ||
        !dsi_run_fusion(y, resample, dsi_v_shape(w, ds_shape(1, w->shape.d[0], width)),
                        dsi_v(b.begin), dsi_v(b.index), dsi_v(one),
                        dsi_v_shape(y, ds_shape(1, bags, width))))
        return NULL;
    dsi_node *n = dsi_record(&dsi_op_embedding_bag, y, w);
    dsi_save_for_backward(n, b.index), dsi_save_for_backward(n, b.bag);
    dsi_set_attr(n, &w->shape, sizeof w->shape);
    if (!mean) return ds_cast(y, dtype);
    ds_tensor *count = ds_sub(ds_slice(b.begin, 0, 1, bags + 1), ds_slice(b.begin, 0, 0, bags));
    count = ds_clamp(ds_cast(count, w->dtype), 1, (double)INFINITY);
    return ds_cast(ds_div(y, ds_reshape(count, ds_shape(bags, 1))), dtype);
}

ds_tensor *ds_embedding_bag_with(ds_tensor *w, ds_tensor *index, int64_t padding_idx,
                                 ds_embedding_bag_opts o)
{
    if (!dsi_live_all("embedding_bag", w, index)) return dsi_null_operand("embedding_bag");
    index = dsi_wide_index(index);
    if (o.offsets && !(o.offsets = dsi_wide_index(o.offsets))) return NULL;
    if (!index || !embedding_bag_check(w, index, padding_idx, o)) return NULL;
    ds_tensor *ends = bags_find(index, &o);
    if (!ends) return NULL;
    const int64_t *at = ds_data(ends);
    int64_t bags = ends->shape.d[0] - 1, n = at[bags];
    ds_tensor *flat = ds_slice(ds_reshape(index, ds_shape(-1)), 0, 0, n);
    if (flat && o.mode != DS_BAG_MAX && !o.per_sample_weights && !o.scale_grad_by_freq &&
        dsi_fusion(w->device, resample))
        return bags_resample(w, flat, padding_idx, at, bags, o.mode == DS_BAG_MEAN);
    ds_embedding_opts each_row = {o.scale_grad_by_freq};
    ds_tensor *rows = flat ? dsi_upcast(ds_embedding_with(w, flat, -1, each_row)) : NULL;
    if (!rows) return NULL;
    ds_tensor *padding = dsi_fill(dsi_new_dtype(index, DS_I64, (ds_dims){0}), (double)padding_idx);
    ds_tensor *factor = ds_reshape(ds_cast(ds_ne(flat, padding), rows->dtype), ds_shape(n, 1));
    if (o.mode == DS_BAG_MAX) {
        ds_tensor *y = factor ? bags_max(rows, factor, at, bags) : NULL;
        return y ? ds_cast(y, w->dtype) : NULL;
    }
    ds_tensor *bag = bags_of_positions(index, at, bags);
    ds_tensor *count = o.mode == DS_BAG_MEAN ? bags_sum(factor, bag, bags) : NULL;
    ds_tensor *each = o.per_sample_weights;
    if (each && !(each = ds_slice(ds_reshape(dsi_upcast(each), ds_shape(-1, 1)), 0, 0, n)))
        return NULL;
    if (each) factor = ds_mul(factor, each);
    if (each || padding_idx >= 0) rows = ds_mul(rows, factor);
    ds_tensor *y = bags_sum(rows, bag, bags);
    if (o.mode == DS_BAG_MEAN) y = ds_div(y, ds_clamp(count, 1, (double)INFINITY));
    return y ? ds_cast(y, w->dtype) : NULL;
}
