/* tensor/tensor.c: life of a tensor and of its storage; its properties.
 *
 * Invariants:
 * - Handles and storages come from pools of their thread and return to them
 *   with their last count. The pools end with the thread.
 * - A storage returns its memory to the device's cache, unless it is borrowed
 *   or has `release`.
 * - `live` counts this thread's handles, `hooked` those with hooks: if there
 *   are none, the backward pass counts no uses.
 * SPDX-License-Identifier: MIT */
#include "tensor.h"

#include "base/mem.h"
#include "base/thread.h"

#include <stdio.h>
#include <string.h>

static _Thread_local dsi_pool tensors = {sizeof(ds_tensor), NULL, 0};
static _Thread_local dsi_pool storages = {sizeof(dsi_storage), NULL, 0};
static _Thread_local int64_t live;
static _Thread_local int hooked;          /* live tensors that have hooks */
static _Thread_local bool end_registered; /* clear_pools runs at this thread's end */

/* ---- shapes ------------------------------------------------------------------------------------------ */

int64_t dsi_numel(ds_dims shape)
{
    int64_t n = 1;
    for (int i = 0; i < shape.n; i++) n *= shape.d[i];
    return n;
}

bool dsi_same_shape(ds_dims a, ds_dims b)
{
    return a.n == b.n && !memcmp(a.d, b.d, (size_t)a.n * sizeof *a.d);
}

void dsi_row_major(ds_dims shape, int64_t *stride)
{
    int64_t step = 1;
    for (int i = shape.n - 1; i >= 0; i--) {
        stride[i] = step;
        step *= shape.d[i];
    }
}

int dsi_dim(int dim, int n)
{
    if (dim < 0) dim += n;
    return dim < 0 || dim >= n ? -1 : dim;
}

const char *dsi_shape_text(ds_dims shape)
{
    enum { TEXT_BYTES = DS_MAX_DIMS * 22 + 4, TEXTS = 4 }; /* texts that one message may hold */
    static _Thread_local void *ring;
    static _Thread_local int next;
    char *text = (char *)dsi_thread_memory(&ring, TEXTS * TEXT_BYTES) +
                 (next = (next + 1) % TEXTS) * TEXT_BYTES;
    char *p = text + snprintf(text, TEXT_BYTES, "["), *end = text + TEXT_BYTES;
    for (int i = 0; i < shape.n; i++)
        p += snprintf(p, (size_t)(end - p), "%s%lld", i ? ", " : "", (long long)shape.d[i]);
    snprintf(p, (size_t)(end - p), "]");
    return text;
}

/* Checks sizes, number of dimensions and dtype, and computes *bytes. False,
 * with the message, also if the bytes exceed a quarter of the address space, so
 * that sums of sizes and alignment cannot overflow. */
static bool shape_fits(ds_dims shape, ds_dtype dtype, size_t *bytes)
{
    size_t total = ds_dtype_size(dtype);
    if (!total) return dsi_refuse("tensor: there is no dtype number %d", (int)dtype);
    if (shape.n < 0 || shape.n > DS_MAX_DIMS)
        return dsi_refuse("tensor: %d dimensions: expected 0 to %d", shape.n, DS_MAX_DIMS);
    bool empty = false;
    for (int i = 0; i < shape.n; i++) {
        if (shape.d[i] < 0)
            return dsi_refuse("tensor: shape %s has a negative size", dsi_shape_text(shape));
        empty |= shape.d[i] == 0;
    }
    for (int i = 0; i < shape.n && !empty; i++)
        if (__builtin_mul_overflow(total, (size_t)shape.d[i], &total) || total > SIZE_MAX / 4)
            return dsi_fail(DS_ENOMEM, "tensor: shape %s of %s is larger than any memory",
                            dsi_shape_text(shape), ds_dtype_name(dtype)) == DS_OK;
    *bytes = empty ? 0 : total;
    return true;
}

/* ---- life -------------------------------------------------------------------------------------------- */

static void clear_pools(void)
{
    dsi_pool_clear(&tensors);
    dsi_pool_clear(&storages);
}

static void tensor_describe(const void *p, char *text, size_t room)
{
    const ds_tensor *x = p;
    snprintf(text, room, "%s %s", ds_dtype_name(x->dtype), dsi_shape_text(x->shape));
}

static const dsi_handle_kind tensor_kind = {"tensor", tensor_describe,
                                            "ds_keep(x) keeps a tensor until ds_drop(x)", NULL};

/* A handle without storage and strides, counted once by the caller. */
static ds_tensor *new_handle(dsi_device *d, ds_dtype dtype, ds_dims shape)
{
    if (!end_registered) {
        dsi_at_thread_end(DSI_END_HANDLES, clear_pools);
        end_registered = true;
    }
    ds_tensor *x = dsi_pool_get(&tensors);
    memset(x, 0, sizeof *x);
    x->refs = 1;
    x->dtype = dtype;
    x->shape = shape;
    x->device = d;
    live++;
    dsi_handle_made(x, &tensor_kind);
    return x;
}

/* Memory from the device's cache, without values; counted once. NULL: none. */
static dsi_storage *new_storage(dsi_device *d, size_t bytes, ds_dtype dtype, const ds_dims *shape)
{
    void *p = dsi_cache_alloc_for(d, bytes, dtype, shape);
    if (!p) return NULL;
    dsi_storage *s = dsi_pool_get(&storages);
    *s = (dsi_storage){.refs = 1, .device = d, .p = p, .bytes = bytes};
    return s;
}

void dsi_storage_unref(dsi_storage *s)
{
    if (!s || --s->refs > 0) return;
    dsi_drop_deferred(s);
    if (s->release)
        s->release(s->owner);
    else if (!s->borrowed)
        dsi_cache_free(s->device, s->p, s->bytes);
    dsi_pool_put(&storages, s);
}

ds_tensor *dsi_new_on(dsi_device *d, ds_dtype dtype, ds_dims shape)
{
    size_t bytes = 0;
    if (!d || !shape_fits(shape, dtype, &bytes)) return NULL;
    dsi_storage *storage = new_storage(d, bytes, dtype, &shape);
    if (!storage) return NULL;
    ds_tensor *x = new_handle(d, dtype, shape);
    x->storage = storage;
    dsi_row_major(shape, x->stride);
    return dsi_scope_add(x);
}

ds_tensor *dsi_new_host(ds_dtype dtype, ds_dims shape)
{
    return dsi_new_on(dsi_device_get((ds_device){DS_CPU, 0}), dtype, shape);
}

ds_tensor *dsi_new(const ds_tensor *like, ds_dims shape)
{
    return like ? dsi_new_on(like->device, like->dtype, shape) : NULL;
}

ds_tensor *dsi_new_dtype(const ds_tensor *like, ds_dtype dtype, ds_dims shape)
{
    return like ? dsi_new_on(like->device, dtype, shape) : NULL;
}

ds_tensor *dsi_new_like(const ds_tensor *x)
{
    ds_tensor *y = x ? dsi_new(x, x->shape) : NULL;
    if (y && dsi_is_dense(x)) memcpy(y->stride, x->stride, sizeof y->stride);
    return y;
}

ds_tensor *dsi_new_channels_last(const ds_tensor *like, ds_dims shape)
{
    ds_tensor *y = dsi_new(like, shape);
    if (!y) return NULL;
    int64_t c = shape.d[1], w = shape.d[3];
    int64_t stride[4] = {shape.d[2] * w * c, 1, w * c, c};
    memcpy(y->stride, stride, sizeof stride);
    return y;
}

ds_tensor *dsi_view_of(const ds_tensor *x, ds_dims shape, const int64_t *stride, int64_t offset)
{
    if (!x) return NULL;
    if (!x->storage) { /* lazy: offset counts from 0 until it is materialized, then from x->offset */
        if (!dsi_acquire(x)) return NULL;
        offset += x->offset;
    }
    if (x->shares) { /* no view may be of what a sharer then leaves */
        offset -= x->offset;
        if (!dsi_make_own((ds_tensor *)x)) return NULL;
        offset += x->offset;
    }
    ds_tensor *y = new_handle(x->device, x->dtype, shape);
    y->storage = x->storage;
    y->storage->refs++;
    memcpy(y->stride, stride, (size_t)shape.n * sizeof *stride);
    y->offset = offset;
    return dsi_scope_add(y);
}

ds_tensor *dsi_alias(const ds_tensor *x)
{
    if (x && x->pooled[0]) {
        ds_tensor *y = dsi_new_pooled(x->pooled[0], x->pooled[1], x->pooled[2], x->shape);
        y->pooled_relu = x->pooled_relu;
        return y;
    }
    return x ? dsi_view_of(x, x->shape, x->stride, x->offset) : NULL;
}

ds_tensor *dsi_new_pooled(ds_tensor *value, ds_tensor *max, ds_tensor *index, ds_dims dense)
{
    if (!value || !max || !index) return NULL;
    ds_tensor *x = new_handle(value->device, value->dtype, dense);
    dsi_row_major(dense, x->stride);
    x->pooled[0] = dsi_ref(value);
    x->pooled[1] = dsi_ref(max);
    x->pooled[2] = dsi_ref(index);
    return dsi_scope_add(x);
}

/* `written`: the owner may change the values between two uses here, so no
 * result that reads them may be deferred. */
ds_dims dsi_view_dims(dsi_view v)
{
    ds_dims shape = {.n = v.n};
    memcpy(shape.d, v.d, sizeof v.d);
    return shape;
}

ds_tensor *dsi_borrow(dsi_device *d, dsi_view v)
{
    ds_tensor *x = new_handle(d, v.dtype, dsi_view_dims(v));
    x->storage = dsi_pool_get(&storages);
    *x->storage = (dsi_storage){
        .refs = 1, .device = d, .p = v.p, .written = true, .borrowed = true};
    memcpy(x->stride, v.s, sizeof v.s);
    return dsi_scope_add(x);
}

ds_tensor *dsi_from_blob(ds_dtype dtype, int64_t n, void *p, void (*release)(void *owner),
                         void *owner)
{
    dsi_device *d = dsi_device_get((ds_device){DS_CPU, 0});
    ds_tensor *x = new_handle(d, dtype, ds_shape(n));
    x->storage = dsi_pool_get(&storages);
    *x->storage = (dsi_storage){.refs = 1,
                                .device = d,
                                .p = p,
                                .bytes = (size_t)n * ds_dtype_size(dtype),
                                .release = release,
                                .owner = owner};
    x->stride[0] = 1;
    return dsi_scope_add(x);
}

ds_tensor *dsi_ref(ds_tensor *x)
{
    if (x) x->refs++;
    return x;
}

void dsi_unref(ds_tensor *x)
{
    if (!x || --x->refs > 0) return;
    bool quarantined = dsi_handle_freed(x);
    dsi_share_end(x);
    dsi_storage_unref(x->storage);
    dsi_unref(x->grad);
    for (int i = 0; i < 3; i++) dsi_unref(x->pooled[i]);
    if (x->node) ((dsi_grad_fn *)x->node)->unref(x->node);
    if (x->hooks) {
        if (x->hooks->on_free) x->hooks->on_free(x->hooks->materialize_arg);
        dsi_free(x->hooks);
        hooked--;
    }
    if (!quarantined) dsi_pool_put(&tensors, x);
    live--;
}

void dsi_hold(ds_tensor **at, ds_tensor *x)
{
    ds_tensor *was = *at;
    *at = dsi_ref(x);
    dsi_unref(was);
}

void dsi_tensor_set_data(ds_tensor *x, const ds_tensor *y)
{
    DSI_ASSERT(dsi_same_shape(x->shape, y->shape) && !x->pooled[0] && y->storage);
    dsi_leave_to_reader(x);
    dsi_share_end(x);
    y->storage->refs++;
    dsi_storage_unref(x->storage);
    x->storage = y->storage;
    x->device = y->device;
    x->dtype = y->dtype;
    x->offset = y->offset;
    x->has_item = false;
    memcpy(x->stride, y->stride, sizeof x->stride);
}

dsi_hooks *dsi_hooks_of(ds_tensor *x)
{
    if (!x->hooks) {
        x->hooks = dsi_alloc(sizeof *x->hooks);
        x->hooks->self = x;
        hooked++;
    }
    return x->hooks;
}

int dsi_hooked_tensors(void) { return hooked; }

int64_t ds_live_tensors(void) { return live; }

ds_tensor *ds_keep(ds_tensor *x)
{
    if (!dsi_live(x, "keep")) return NULL;
    x->keeps++;
    return dsi_ref(x);
}

void ds_drop(ds_tensor *x)
{
    if (!dsi_live(x, "drop")) return;
    if (x->keeps < 1) {
        dsi_fail(DS_ESTATE, "drop: %s %s is not kept: each ds_drop(x) ends one ds_keep(x)",
                 ds_dtype_name(x->dtype), dsi_shape_text(x->shape));
        return;
    }
    x->keeps--;
    const char *was = dsi_handle_reason("ds_drop");
    dsi_unref(x);
    dsi_handle_reason_end(was);
}

/* ---- asking ------------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    size_t size;
} dtypes[DS_DTYPES] = {
    [DS_F32] = {"float32", 4},   [DS_F64] = {"float64", 8}, [DS_F16] = {"float16", 2},
    [DS_BF16] = {"bfloat16", 2}, [DS_I64] = {"int64", 8},   [DS_I32] = {"int32", 4},
    [DS_I16] = {"int16", 2},     [DS_I8] = {"int8", 1},     [DS_U8] = {"uint8", 1},
    [DS_BOOL] = {"bool", 1},
};

size_t ds_dtype_size(ds_dtype dtype)
{
    return (unsigned)dtype < DS_DTYPES ? dtypes[dtype].size : 0;
}
const char *ds_dtype_name(ds_dtype dtype)
{
    return (unsigned)dtype < DS_DTYPES ? dtypes[dtype].name : "?";
}

bool dsi_same_device(const char *op, const ds_tensor *a, const ds_tensor *b)
{
    if (!a || !b || a->device == b->device) return true;
    ds_device at = dsi_device_id(a->device), other = dsi_device_id(b->device);
    if (at.kind == other.kind && at.index == other.index)
        return dsi_refuse("%s: operands were made by two threads: a tensor, or a module with its "
                          "parameters, is used by the thread that made it",
                          op);
    return dsi_refuse("%s: operands are on %s and %s: expected the same device (ds_to)", op,
                      ds_device_name(at), ds_device_name(other));
}

bool dsi_same_layout(const ds_tensor *a, const ds_tensor *b)
{
    return dsi_same_shape(a->shape, b->shape) &&
           !memcmp(a->stride, b->stride, (size_t)a->shape.n * sizeof *a->stride);
}

bool dsi_is_contiguous(const ds_tensor *x)
{
    int64_t step = 1;
    for (int i = x->shape.n - 1; i >= 0; i--) {
        if (x->shape.d[i] != 1 && x->stride[i] != step) return false;
        step *= x->shape.d[i];
    }
    return true;
}

/* Looks for an order of the dimensions in which each stride is the product of
 * the sizes before it: such a tensor is contiguous after a permutation. */
bool dsi_is_dense(const ds_tensor *x)
{
    if (dsi_is_contiguous(x)) return true;
    bool used_dim[DS_MAX_DIMS] = {false};
    int64_t step = 1;
    for (int k = 0; k < x->shape.n; k++) {
        int found = -1;
        for (int i = x->shape.n - 1; i >= 0 && found < 0; i--)
            if (!used_dim[i] && (x->shape.d[i] == 1 || x->stride[i] == step)) found = i;
        if (found < 0) return false;
        used_dim[found] = true;
        step *= x->shape.d[found];
    }
    return true;
}

bool dsi_is_channels_last(const ds_tensor *x)
{
    const int64_t *d = x->shape.d, *s = x->stride;
    return x->shape.n == 4 && s[1] == 1 && s[3] == d[1] && s[2] == d[3] * d[1] &&
           (d[0] == 1 || s[0] == d[2] * d[3] * d[1]);
}

ds_dtype ds_dtype_of(const ds_tensor *x) { return dsi_live(x, "dtype_of") ? x->dtype : DS_F32; }
ds_device ds_device_of(const ds_tensor *x)
{
    return dsi_live(x, "device_of") ? dsi_device_id(x->device) : (ds_device){DS_CPU, 0};
}
ds_dims ds_shape_of(const ds_tensor *x)
{
    return dsi_live(x, "shape_of") ? x->shape : (ds_dims){0};
}
int ds_ndim(const ds_tensor *x) { return dsi_live(x, "ndim") ? x->shape.n : 0; }
int64_t ds_numel(const ds_tensor *x) { return dsi_live(x, "numel") ? dsi_numel(x->shape) : 0; }

int64_t ds_size(const ds_tensor *x, int dim)
{
    int i = dsi_live(x, "size") ? dsi_dim(dim, x->shape.n) : -1;
    return i < 0 ? 0 : x->shape.d[i];
}

/* ---- as kernels see it ------------------------------------------------------------------------------- */

dsi_view dsi_v(const ds_tensor *x)
{
    dsi_view v;
    if (!x) {
        v.p = NULL;
        v.n = 0;
        v.dtype = DS_F32;
        return v;
    }
    DSI_ASSERT(dsi_is_present(x)); /* the op must acquire it first: Note [Residency] */
    v.p = (char *)x->storage->p + x->offset * (int64_t)dtypes[x->dtype].size;
    v.dtype = x->dtype;
    v.n = x->shape.n;
    for (int i = 0; i < x->shape.n; i++) {
        v.d[i] = x->shape.d[i];
        v.s[i] = x->stride[i];
    }
    return v;
}

dsi_view dsi_v_shape(const ds_tensor *x, ds_dims shape)
{
    dsi_view v = dsi_v(x);
    v.n = shape.n;
    memcpy(v.d, shape.d, sizeof v.d);
    dsi_row_major(shape, v.s);
    return v;
}

/* Missing leading dimensions and those of size 1 get stride 0. */
dsi_view dsi_v_expand(const ds_tensor *x, ds_dims shape)
{
    dsi_view v = dsi_v(x);
    int missing = shape.n - x->shape.n;
    for (int i = shape.n - 1; i >= 0; i--) {
        int from = i - missing;
        v.d[i] = shape.d[i];
        v.s[i] = from >= 0 && x->shape.d[from] == shape.d[i] ? x->stride[from] : 0;
    }
    v.n = shape.n;
    return v;
}
