/* ops/embedding_bag.c: embedding_bag, made of embedding and index_add.
 *
 * Position m of the indices is in bag g[m], the last one that begins at or
 * before m:  y[b] = sum over g[m] = b of f[m] w[index[m]], f[m] = 1, the
 * position's weight, or 0 at padding_idx; a mean divides by the number of
 * positions that are no padding.
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include <math.h>

static bool embedding_bag_check(const ds_tensor *w, const ds_tensor *index, int64_t padding_idx,
                                ds_embedding_bag_opts o)
{
    const ds_tensor *offsets = o.offsets, *each = o.per_sample_weights;
    if (!dsi_want_float("embedding_bag", w) || !dsi_same_kind("embedding_bag", w, each))
        return false;
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
    if ((unsigned)o.mode > DS_BAG_SUM)
        return dsi_refuse("embedding_bag: there is no mode %d", (int)o.mode);
    if (padding_idx < -1 || padding_idx >= w->shape.d[0])
        return dsi_refuse("embedding_bag: padding_idx is %lld, weight has %lld rows",
                          (long long)padding_idx, (long long)w->shape.d[0]);
    return true;
}

/* g above, int64 [M] on the indices' device; NULL with the message. */
static ds_tensor *bags_of_positions(const ds_tensor *index, ds_tensor *offsets)
{
    int64_t n = dsi_numel(index->shape), bags = offsets ? offsets->shape.d[0] : 0, b = 0;
    const int64_t *begin = offsets ? ds_data(offsets) : NULL;
    if (offsets && !begin) return NULL;
    for (int64_t i = 0; i < bags; i++)
        if (begin[i] < (i ? begin[i - 1] : 0) || begin[i] > n || (!i && begin[0]))
            return dsi_refuse("embedding_bag: offsets[%lld] is %lld: expected 0 as the first, "
                              "ascending numbers, and at most %lld",
                              (long long)i, (long long)begin[i], (long long)n);
    ds_tensor *bag = dsi_new_host(DS_I64, ds_shape(n));
    int64_t *g = ds_data_mut(bag);
    for (int64_t m = 0; g && m < n; m++) {
        while (b + 1 < bags && begin[b + 1] <= m) b++;
        g[m] = begin ? b : m / index->shape.d[1];
    }
    return g ? ds_to(bag, dsi_device_id(index->device), DS_I64) : NULL;
}

/* Sums of the rows of x [M,...] that are in each bag -> [bags,...]. */
static ds_tensor *bags_sum(ds_tensor *x, ds_tensor *bag, int64_t bags)
{
    if (!x) return NULL;
    ds_dims shape = x->shape;
    shape.d[0] = bags;
    return ds_index_add(dsi_fill(dsi_new(x, shape), 0), 0, bag, x, 1);
}

ds_tensor *ds_embedding_bag_with(ds_tensor *w, ds_tensor *index, int64_t padding_idx,
                                 ds_embedding_bag_opts o)
{
    if (!dsi_live_all("embedding_bag", w, index)) return dsi_null_operand("embedding_bag");
    if (!embedding_bag_check(w, index, padding_idx, o)) return NULL;
    int64_t n = dsi_numel(index->shape), bags = (o.offsets ? o.offsets : index)->shape.d[0];
    ds_tensor *bag = bags_of_positions(index, o.offsets), *flat = ds_reshape(index, ds_shape(n));
    ds_tensor *rows = bag ? dsi_upcast(ds_embedding(w, flat, -1)) : NULL;
    if (!rows) return NULL;
    ds_tensor *padding = dsi_fill(dsi_new_dtype(index, DS_I64, (ds_dims){0}), (double)padding_idx);
    ds_tensor *factor = ds_reshape(ds_cast(ds_ne(flat, padding), rows->dtype), ds_shape(n, 1));
    ds_tensor *count = o.mode == DS_BAG_MEAN ? bags_sum(factor, bag, bags) : NULL;
    ds_tensor *each = o.per_sample_weights;
    if (each) factor = ds_mul(factor, ds_reshape(dsi_upcast(each), ds_shape(n, 1)));
    if (each || padding_idx >= 0) rows = ds_mul(rows, factor);
    ds_tensor *y = bags_sum(rows, bag, bags);
    if (o.mode == DS_BAG_MEAN) y = ds_div(y, ds_clamp(count, 1, (double)INFINITY));
    return y ? ds_cast(y, w->dtype) : NULL;
}
