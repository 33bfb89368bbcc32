/* checkpoint/save_plan.c: which memory a save writes for the tensors of a
 * value: Note [Storages].
 *
 * Invariants: tensors.at[i] is the i-th tensor of the walk over the value,
 * which pickle_write.c repeats in the same order; its storage is an index of
 * storages.at. Storages are numbered in the order of the first tensor that uses
 * them, so that equal values make equal files. A plan holds a count of the
 * memory that it points to, not of the value, which must live longer.
 * SPDX-License-Identifier: MIT */
#include "save_plan.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of a chunk: the write finds them in the CPU's cache after the
 * checksum. */
#define PIECE_BYTES ((size_t)1 << 20)

/* The bytes that a tensor in memory spans, from its first element to its
 * last. */
typedef struct Span {
    dsi_storage *memory;
    int64_t begin, end; /* bytes of memory */
    int tensor;         /* of dsi_save_plan.tensors */
} Span;

typedef struct Spans {
    DSI_LIST(Span)
} Spans;

/* ---- walk ------------------------------------------------------------------------------------------------ */

/* Adds x as a view with its own strides; its storage is found later. */
static void plan_add_in_memory(dsi_save_plan *s, Spans *spans, const ds_value *v, ds_tensor *x)
{
    dsi_view view = dsi_v(x);
    int64_t size = (int64_t)ds_dtype_size(x->dtype), last = 0;
    dsi_planned_tensor row = {.value = v, .dtype = x->dtype, .shape = x->shape};
    for (int i = 0; i < x->shape.n; i++) {
        row.stride[i] = x->stride[i];
        last += (x->shape.d[i] - 1) * x->stride[i];
    }
    int64_t begin = (const char *)view.p - (const char *)x->storage->p;
    dsi_list_add(spans, (Span){x->storage, begin, begin + (last + 1) * size, s->tensors.n});
    dsi_list_add(&s->tensors, row);
}

/* Adds v as a row-major tensor with its own storage, whose bytes come from
 * another device or from a reader. A value that occurs twice has one
 * storage. */
static void plan_add_row_major(dsi_save_plan *s, ds_value *v, ds_dtype dtype, ds_dims shape)
{
    dsi_planned_tensor row = {.value = v, .dtype = dtype, .shape = shape, .storage = s->storages.n};
    dsi_row_major(shape, row.stride);
    for (int i = 0; v->refs > 1 && i < s->storages.n; i++) /* a value that is there twice */
        if (s->storages.at[i].from == v) row.storage = i;
    dsi_list_add(&s->tensors, row);
    if (row.storage < s->storages.n) return;
    dsi_list_add(&s->storages,
                 (dsi_planned_storage){.dtype = dtype, .numel = dsi_numel(shape), .from = v});
}

/* Adds one tensor; false with the message if its values cannot be brought to
 * memory. */
static bool plan_add_tensor(dsi_save_plan *s, Spans *spans, ds_value *v)
{
    ds_tensor *x = v->tensor.x;
    const dsi_tensor_reader *source = v->tensor.reader;
    if (!x) {
        DSI_ASSERT(source);
        plan_add_row_major(s, v, source->dtype, source->shape);
        return true;
    }
    if (dsi_make_dense(x) != DS_OK) return false;
    bool here = x->storage && x->device->type->kind == DS_CPU && dsi_numel(x->shape);
    if (here && !dsi_acquire(x)) return false;
    if (here)
        plan_add_in_memory(s, spans, v, x);
    else
        plan_add_row_major(s, v, x->dtype, x->shape);
    return true;
}

/* Adds all tensors of v, keys before items; false with the message. */
static bool plan_add_value(dsi_save_plan *s, Spans *spans, const char *what, ds_value *v, int depth)
{
    if (depth > DSI_VALUE_DEPTH)
        return dsi_invalid("%s: lists lie in lists more than %d deep", what, DSI_VALUE_DEPTH);
    if (v->kind == DS_VALUE_TENSOR) return plan_add_tensor(s, spans, v);
    if (v->kind == DS_VALUE_OBJECT)
        return dsi_invalid(
            "%s: an object of %s is not written: leave it out, or write what you need of it", what,
            ds_value_class(v));
    int64_t n = v->kind == DS_VALUE_STRING || v->kind == DS_VALUE_BYTES ? 0 : ds_value_len(v);
    for (int64_t i = 0; i < n; i++) {
        ds_value *item = ds_value_at(v, i), *key = ds_value_key_at(v, i);
        if (key && !plan_add_value(s, spans, what, key, depth + 1))
            return false; /* it may hold an object */
        if (item && !plan_add_value(s, spans, what, item, depth + 1)) return false;
    }
    return true;
}

/* ---- storages ---------------------------------------------------------------------------------------------- */

/* For qsort: by memory, then by place in it, then by the order of the walk. */
static int spans_by_address(const void *a, const void *b)
{
    const Span *x = a, *y = b;
    uintptr_t p = (uintptr_t)x->memory, q = (uintptr_t)y->memory;
    if (p != q) return p < q ? -1 : 1;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

/* Tells whether x spans more than twice its own bytes, as a column does. */
static bool span_is_sparse(const dsi_planned_tensor *x, const Span *at)
{
    int64_t own = dsi_numel(x->shape) * (int64_t)ds_dtype_size(x->dtype);
    return at->end - at->begin > 2 * own;
}

/* Adds one storage for spans[0 .. n-1], which overlap and end at byte `end`. */
static void plan_add_storage(dsi_save_plan *s, const Span *spans, int n, int64_t end)
{
    const dsi_planned_tensor *first = &s->tensors.at[spans[0].tensor];
    int64_t size = (int64_t)ds_dtype_size(first->dtype);
    for (int i = 0; i < n; i++) {
        dsi_planned_tensor *x = &s->tensors.at[spans[i].tensor];
        x->storage = s->storages.n;
        x->offset = (spans[i].begin - spans[0].begin) / size;
    }
    dsi_storage *memory = spans[0].memory;
    memory->refs++;
    dsi_list_add(&s->storages,
                 (dsi_planned_storage){.dtype = first->dtype,
                                       .numel = (end - spans[0].begin) / size,
                                       .begin = (const char *)memory->p + spans[0].begin,
                                       .memory = memory});
}

/* Tells whether a and b can be views of one storage: the same memory and dtype,
 * whole elements apart. Views of different dtypes are rare and are written
 * separately. */
static bool spans_share_memory(const dsi_save_plan *s, const Span *a, const Span *b)
{
    ds_dtype dtype = s->tensors.at[a->tensor].dtype;
    return a->memory == b->memory && s->tensors.at[b->tensor].dtype == dtype &&
           (b->begin - a->begin) % (int64_t)ds_dtype_size(dtype) == 0;
}

/* Returns the end of the run of spans that begins at `from`: each overlaps
 * those before it. *end: the last byte of the run, plus 1. */
static int spans_overlapping(const dsi_save_plan *s, const Spans *spans, int from, int64_t *end)
{
    int next = from + 1;
    *end = spans->at[from].end;
    for (; next < spans->n && spans->at[next].begin < *end; next++) {
        if (!spans_share_memory(s, &spans->at[from], &spans->at[next])) break;
        if (spans->at[next].end > *end) *end = spans->at[next].end;
    }
    return next;
}

/* A sparse view inside of a storage that is written for other tensors becomes a
 * view of that storage. The others are written row-major, each as a storage.
 * Both lists are sorted by address. */
static void plan_add_sparse(dsi_save_plan *s, const Spans *sparse, const Spans *written)
{
    for (int i = 0, k = 0; i < sparse->n; i++) {
        const Span *x = &sparse->at[i];
        dsi_planned_tensor *row = &s->tensors.at[x->tensor];
        while (k + 1 < written->n && spans_by_address(&written->at[k + 1], x) <= 0) k++;
        const Span *in = k < written->n ? &written->at[k] : NULL;
        if (in && in->begin <= x->begin && x->end <= in->end && spans_share_memory(s, in, x)) {
            row->storage = s->tensors.at[in->tensor].storage;
            row->offset = (x->begin - in->begin) / (int64_t)ds_dtype_size(row->dtype);
            continue;
        }
        row->storage = s->storages.n;
        dsi_row_major(row->shape, row->stride);
        dsi_list_add(&s->storages,
                     (dsi_planned_storage){.dtype = row->dtype,
                                           .numel = dsi_numel(row->shape),
                                           .from = (ds_value *)(uintptr_t)row->value});
    }
}

/* Assigns a storage to each tensor that is in memory. */
static void plan_add_storages(dsi_save_plan *s, Spans *spans)
{
    Spans dense = {0}, sparse = {0}, written = {0};
    if (spans->n) qsort(spans->at, (size_t)spans->n, sizeof *spans->at, spans_by_address);
    for (int i = 0; i < spans->n; i++) {
        bool few = span_is_sparse(&s->tensors.at[spans->at[i].tensor], &spans->at[i]);
        dsi_list_add(few ? &sparse : &dense, spans->at[i]);
    }
    for (int i = 0, next; i < dense.n; i = next) {
        int64_t end;
        next = spans_overlapping(s, &dense, i, &end);
        plan_add_storage(s, &dense.at[i], next - i, end);
        dsi_list_add(&written,
                     (Span){dense.at[i].memory, dense.at[i].begin, end, dense.at[i].tensor});
    }
    plan_add_sparse(s, &sparse, &written);
    dsi_list_free(&dense);
    dsi_list_free(&sparse);
    dsi_list_free(&written);
}

/* Numbers the storages in the order of the tensors. They were sorted by
 * address, which differs from run to run and must not change the file. */
static void plan_number_storages(dsi_save_plan *s)
{
    int n = s->storages.n, used = 0;
    int *number = dsi_alloc((size_t)n * sizeof *number);
    dsi_planned_storage *sorted = dsi_alloc((size_t)n * sizeof *sorted);
    for (int i = 0; i < s->tensors.n; i++) {
        int *to = &number[s->tensors.at[i].storage];
        if (!*to) {
            sorted[used++] = s->storages.at[s->tensors.at[i].storage];
            *to = used;
        }
        s->tensors.at[i].storage = *to - 1;
    }
    dsi_free(number);
    dsi_free(s->storages.at);
    s->storages.at = sorted;
    s->storages.room = n;
}

/* The walk comes first: tensors in memory become spans, which are then joined
 * to storages. */
bool dsi_save_plan_make(dsi_save_plan *s, const char *what, ds_value *v)
{
    Spans spans = {0};
    *s = (dsi_save_plan){0};
    bool ok = plan_add_value(s, &spans, what, v, 0);
    if (ok) {
        plan_add_storages(s, &spans);
        plan_number_storages(s);
    }
    dsi_list_free(&spans);
    if (!ok) dsi_save_plan_free(s);
    return ok;
}

/* Releases the memory that the storages hold; values were not counted. */
void dsi_save_plan_free(dsi_save_plan *s)
{
    for (int i = 0; i < s->storages.n; i++) dsi_storage_unref(s->storages.at[i].memory);
    dsi_list_free(&s->storages);
    dsi_list_free(&s->tensors);
}

/* ---- bytes --------------------------------------------------------------------------------------------------- */

typedef void Sink(void *arg, const void *data, size_t bytes);

/* Hands contiguous bytes to sink, in chunks. */
static void sink_memory(const char *p, size_t bytes, Sink *sink, void *arg)
{
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        sink(arg, p + at, n);
    }
}

/* Hands the elements of a strided x to sink in row-major order: makes
 * contiguous copies of as many rows as fit into a chunk, and divides a row that
 * is larger than two chunks in the same way. */
static ds_status sink_rows(ds_tensor *x, Sink *sink, void *arg)
{
    size_t bytes = (size_t)dsi_numel(x->shape) * ds_dtype_size(x->dtype);
    int64_t rows = x->shape.n ? x->shape.d[0] : 1;
    if (bytes > PIECE_BYTES && rows == 1 && x->shape.n > 1) {
        ds_dims rest = {.n = x->shape.n - 1};
        memcpy(rest.d, x->shape.d + 1, (size_t)rest.n * sizeof *rest.d);
        ds_tensor *row = dsi_view_of(x, rest, x->stride + 1, x->offset);
        return row ? sink_rows(row, sink, arg) : ds_error_status();
    }
    int64_t some = bytes > PIECE_BYTES ? (int64_t)(PIECE_BYTES * (size_t)rows / bytes) : rows;
    if (some < 1) some = 1;
    for (int64_t at = 0; at < rows; at += some) {
        ds_dims part = x->shape;
        if (part.n) part.d[0] = rows - at < some ? rows - at : some;
        ds_scope *scope = ds_scope_open();
        ds_tensor *view = dsi_view_of(x, part, x->stride,
                                      x->offset + (part.n ? at * x->stride[0] : 0));
        size_t part_bytes = (size_t)dsi_numel(part) * ds_dtype_size(x->dtype);
        ds_status status = DS_OK;
        if (view && part_bytes > 2 * PIECE_BYTES && part.n > 1) {
            status = sink_rows(view, sink, arg);
        } else {
            const void *p = view ? ds_data(view) : NULL;
            if (p) sink(arg, p, part_bytes);
            if (!p) status = ds_error_status();
        }
        ds_scope_close(scope);
        if (status != DS_OK) return status;
    }
    return DS_OK;
}

/* Tensors on another device are copied to the host as a whole by ds_data. */
ds_status dsi_tensor_bytes(ds_tensor *x, Sink *sink, void *arg)
{
    size_t bytes = (size_t)dsi_numel(x->shape) * ds_dtype_size(x->dtype);
    if (!bytes) return DS_OK;
    if (!dsi_acquire(x)) return ds_error_status();
    ds_scope *scope = ds_scope_open();
    ds_status status = DS_OK;
    if (x->device->type->kind == DS_CPU && !dsi_is_contiguous(x)) {
        status = sink_rows(x, sink, arg);
    } else {
        const char *p = ds_data(x);
        if (p) sink_memory(p, bytes, sink, arg);
        if (!p) status = ds_error_status();
    }
    ds_scope_close(scope);
    return status;
}

/* Hands the bytes of a reader to sink, in chunks. */
static ds_status sink_reader(const dsi_tensor_reader *from, size_t bytes, Sink *sink, void *arg)
{
    const void *memory = from->memory ? from->memory(from->arg) : NULL;
    if (memory) sink_memory(memory, bytes, sink, arg);
    if (memory || !bytes) return DS_OK;
    char *piece = malloc(bytes < PIECE_BYTES ? bytes : PIECE_BYTES);
    if (!piece) return dsi_fail(DS_ENOMEM, "save: no memory to read %zu bytes", PIECE_BYTES);
    ds_status status = DS_OK;
    for (size_t at = 0, n; at < bytes && status == DS_OK; at += n) {
        n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        status = from->read(from->arg, (int64_t)at, piece, n);
        if (status == DS_OK) sink(arg, piece, n);
    }
    free(piece);
    return status;
}

/* A value that was read into memory keeps its reader; the tensor counts. */
ds_dtype dsi_value_dtype(const ds_value *v)
{
    return v->tensor.x ? v->tensor.x->dtype : v->tensor.reader->dtype;
}

ds_dims dsi_value_shape(const ds_value *v)
{
    return v->tensor.x ? v->tensor.x->shape : v->tensor.reader->shape;
}

/* Bytes of the elements, row-major; the storage may be larger. */
int64_t dsi_value_size(const ds_value *v)
{
    return dsi_numel(dsi_value_shape(v)) * (int64_t)ds_dtype_size(dsi_value_dtype(v));
}

/* A reader's bytes come from its callback, others from memory. */
ds_status dsi_value_bytes(const ds_value *v, Sink *sink, void *arg)
{
    if (v->tensor.x) return dsi_tensor_bytes(v->tensor.x, sink, arg);
    return sink_reader(v->tensor.reader, (size_t)dsi_value_size(v), sink, arg);
}

/* Storages of memory are contiguous; those of a value are made row-major
 * here. */
ds_status dsi_save_plan_write(const dsi_save_plan *s, int i, Sink *sink, void *arg)
{
    const dsi_planned_storage *at = &s->storages.at[i];
    if (!at->begin) return dsi_value_bytes(at->from, sink, arg);
    sink_memory(at->begin, (size_t)at->numel * ds_dtype_size(at->dtype), sink, arg);
    return DS_OK;
}
