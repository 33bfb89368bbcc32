/* checkpoint/resolve.c: makes the values that a caller gets of the values that
 * were read from a file.
 *
 * A value that the file contains once and refers to twice is in two containers.
 * The walk visits it once, and computes the size and depth of the tree that a
 * caller sees. They are limited: 40 lists, each with two references to the next
 * one, are small in the file, but a tree of 2^40 values.
 *
 * Invariants: v->seen is NEW before the walk, UNDER_WAY while its items are
 * visited (meeting such a value again is a loop), DONE afterwards. The size of
 * a container that is DONE counts it as a tree. A tensor that is DONE has
 * tensor.x and no tensor.view, or has become an object. The recursion is at
 * most DSI_VALUE_DEPTH deep.
 * SPDX-License-Identifier: MIT */
#include "resolve.h"

#include <inttypes.h>
#include <string.h>

/* Values that a file of any size may hold; each byte of it allows 16 more. */
#define MANY ((int64_t)1 << 20)
/* Bytes that a tensor of any file may have: strides of 0 repeat elements. */
#define MANY_BYTES ((int64_t)1 << 30)

enum { NEW, UNDER_WAY, DONE };

/* One walk: the path to the current value, for messages, and the limits. */
typedef struct Walk {
    const char *what;
    dsi_text path;
    int64_t max_values;
    int64_t file_bytes;
    int64_t widened; /* bytes that integers took which are wider here than there */
    bool bomb;       /* they are too many */
    bool objects;    /* what is no value here becomes an object */
} Walk;

static bool resolve_wrong(const Walk *w, const char *format, ...) DS_PRINTF(2, 3);
static bool resolve_wrong(const Walk *w, const char *format, ...)
{
    dsi_text t = {0};
    va_list args;
    va_start(args, format);
    dsi_text_add_args(&t, format, args);
    va_end(args);
    bool top = !w->path.n;
    dsi_fail(DS_EFORMAT, "%s: %.300s %s", w->what, top ? "what it holds" : w->path.s, t.s);
    dsi_text_free(&t);
    return false;
}

/* v was just refused, with failures since `before`. If objects are wanted,
 * forgets those, makes v an object of that class and returns true. */
static bool make_refused_object(const Walk *w, ds_value *v, const char *class_name, int before)
{
    if (!w->objects) return false;
    dsi_error_forget(before);
    dsi_value_make_object(v, class_name);
    return true;
}

/* ---- tensors ------------------------------------------------------------------------------------------------- */

/* Tells whether all elements of the view are inside of its storage of `stored`
 * elements, without overflow. *numel: how many elements it has. */
static bool view_is_inside(const dsi_view_spec *r, int64_t stored, int64_t *numel)
{
    int64_t last = r->offset, span;
    *numel = 1;
    if (r->offset < 0) return false;
    for (int i = 0; i < r->shape.n; i++) {
        int64_t d = r->shape.d[i];
        if (d < 0 || r->stride[i] < 0 || __builtin_mul_overflow(*numel, d, numel)) return false;
    }
    if (!*numel) return true; /* an empty view may begin behind its storage: x[12:, 1:] */
    for (int i = 0; i < r->shape.n; i++)
        if (__builtin_mul_overflow(r->shape.d[i] - 1, r->stride[i], &span) ||
            __builtin_add_overflow(last, span, &last))
            return false;
    return last < stored;
}

/* ---- integers without a sign ------------------------------------------------------------------------------------ */

/* An unsigned dtype that ds_dtype lacks: its elements, in a storage of bytes,
 * become those of a wider signed dtype. */
typedef struct Wide {
    const char *name;
    size_t size;
    ds_dtype to;
} Wide;

/* Returns the row of such a dtype; NULL if the view's dtype is another one. */
static const Wide *unsigned_of(const dsi_view_spec *r, const dsi_pickle_storage *s)
{
    static const Wide all[] = {
        {"torch.uint16", 2, DS_I32}, {"torch.uint32", 4, DS_I64}, {"torch.uint64", 8, DS_I64}};
    for (size_t i = 0; r->dtype && !s->dtype && s->flat && i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, r->dtype)) return &all[i];
    return NULL;
}

/* Tells whether the view has a dtype that cannot be read. */
static bool view_is_foreign(const dsi_view_spec *r, const dsi_pickle_storage *s)
{
    if (unsigned_of(r, s)) return false;
    return !s->flat || !s->dtype || (r->dtype && strcmp(r->dtype, s->dtype) != 0);
}

/* Converts the elements of the view r, whose storage begins at `from`, to the
 * tensor `to`, row-major; false if one is 2^63 or more. */
static bool upcast_elements(const dsi_view_spec *r, const unsigned char *from, const Wide *wide,
                            ds_tensor *to)
{
    int64_t at[DS_MAX_DIMS] = {0}, offset = r->offset, n = ds_numel(to);
    void *p = ds_data_mut(to);
    for (int64_t i = 0; i < n; i++) {
        uint64_t x = 0;
        memcpy(&x, from + (size_t)offset * wide->size, wide->size); /* lowest byte first */
        if (x > INT64_MAX) return false;
        if (wide->to == DS_I32)
            ((int32_t *)p)[i] = (int32_t)x;
        else
            ((int64_t *)p)[i] = (int64_t)x;
        for (int d = r->shape.n; d-- > 0;) { /* the next place */
            offset += r->stride[d];
            if (++at[d] < r->shape.d[d]) break;
            offset -= at[d] * r->stride[d];
            at[d] = 0;
        }
    }
    return true;
}

/* Makes v->tensor.x, a converted copy; false with the message. */
static bool resolve_unsigned(Walk *w, ds_value *v, const Wide *wide, int64_t numel)
{
    const dsi_view_spec *r = v->tensor.view;
    const dsi_pickle_storage *s = r->storage->storage;
    w->widened += numel * (int64_t)ds_dtype_size(wide->to);
    w->bomb = w->widened > MANY + 16 * w->file_bytes;
    if (w->bomb) return resolve_wrong(w, "repeats elements to more bytes than are read");
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = dsi_new_host(wide->to, r->shape);
    bool fits = x && upcast_elements(r, ds_data(s->flat), wide, x);
    if (x && !fits)
        resolve_wrong(w, "is a tensor of %s with elements from 2^63 on, which there are not",
                      r->dtype);
    if (fits) v->tensor.x = dsi_ref(x);
    ds_scope_close(scope);
    return fits;
}

/* ---- views -------------------------------------------------------------------------------------------------------- */

/* Releases the storage; the tensor holds its memory. */
static void free_view_spec(ds_value *v)
{
    ds_value_free(v->tensor.view->storage);
    dsi_free(v->tensor.view);
    v->tensor.view = NULL;
}

/* Makes v->tensor.x, a view of the storage's `flat`, and frees the view spec;
 * false with the message. */
static bool resolve_tensor(Walk *w, ds_value *v)
{
    const dsi_view_spec *r = v->tensor.view;
    if (!r) return true;
    const dsi_pickle_storage *s = r->storage->storage;
    const char *dtype = r->dtype ? r->dtype : s->dtype;
    const Wide *wide = unsigned_of(r, s);
    if (view_is_foreign(r, s))
        return resolve_wrong(
            w,
            "is a tensor of %s, which there is not: float64, 32, 16, bfloat16, int64, 32, "
            "16, 8, uint8 and bool are read, uint16, 32 and 64 as wider ones. Convert it "
            "in Python with "
            "x.to(...) and save it again",
            dtype ? dtype : "untyped bytes");
    int64_t numel, stored = wide ? s->numel / (int64_t)wide->size : s->numel;
    if (!view_is_inside(r, stored, &numel))
        return resolve_wrong(w, "%s at element %" PRId64 " is outside of its storage of %" PRId64,
                             dsi_shape_text(r->shape), r->offset, stored);
    int64_t bytes, most = MANY_BYTES + 16 * w->file_bytes;
    if (__builtin_mul_overflow(numel, (int64_t)ds_dtype_size(wide ? wide->to : s->flat->dtype),
                               &bytes) ||
        bytes > most)
        return resolve_wrong(w, "%s repeats %" PRId64 " elements to more bytes than are read",
                             dsi_shape_text(r->shape), stored);
    if (wide) {
        if (!resolve_unsigned(w, v, wide, numel)) return false;
    } else {
        ds_scope *scope = ds_scope_open();
        v->tensor.x = dsi_ref(dsi_view_of(s->flat, r->shape, r->stride, numel ? r->offset : 0));
        ds_scope_close(scope);
    }
    free_view_spec(v);
    return v->tensor.x != NULL;
}

/* The same; but if objects are wanted, a tensor of a dtype that cannot be read
 * becomes an object "torch.Tensor" with attributes "dtype" and "shape". */
static bool resolve_tensor_or_object(Walk *w, ds_value *v)
{
    int before = dsi_error_count();
    if (resolve_tensor(w, v)) return true;
    const dsi_view_spec *r = v->tensor.view;
    const dsi_pickle_storage *s = r ? r->storage->storage : NULL;
    if (!s || w->bomb || !(view_is_foreign(r, s) || unsigned_of(r, s))) return false;
    const char *dtype = r->dtype ? r->dtype : s->dtype;
    ds_dims dims = r->shape;
    if (!make_refused_object(w, v, "torch.Tensor", before)) return false;
    ds_value *name = dsi_value_text(DS_VALUE_NAME, dtype ? dtype : "", dtype ? strlen(dtype) : 0),
             *shape = ds_value_tuple();
    for (int i = 0; i < dims.n; i++) dsi_list_add(&shape->items, ds_value_int(dims.d[i]));
    name->class_name = dtype;
    (void)ds_value_set(v, "dtype", name);
    (void)ds_value_set(v, "shape", shape);
    return true;
}

/* ---- the walk ------------------------------------------------------------------------------------------------ */

static bool value_resolve(Walk *w, ds_value *v, int depth);

/* If item i of v contains v, replaces it by an object "..."; if it is a bare
 * storage, by an object "torch.UntypedStorage". */
static void break_loop(ds_value *v, int64_t i)
{
    ds_value **item = dsi_value_has_keys(v) ? &v->dict->at[i].value : &v->items.at[i];
    bool storage = (*item)->kind == DSI_VALUE_STORAGE;
    if (!storage && (*item)->seen != UNDER_WAY) return;
    ds_value *was = *item;
    *item = dsi_value_object(ds_value_string(storage ? "torch.UntypedStorage" : "..."));
    ds_value_free(was);
}

/* Resolves item i of v, with its key at the end of the path. Keys that are
 * tuples or objects may contain tensors, and are resolved too. */
static bool resolve_item(Walk *w, ds_value *v, int64_t i, int depth)
{
    size_t n = w->path.n;
    const ds_value *key = ds_value_key_at(v, i);
    const char *slash = n ? "/" : "";
    if (key && key->kind == DS_VALUE_STRING)
        dsi_text_add(&w->path, "%s%.200s", slash, key->text.s);
    else if (key && key->kind == DS_VALUE_INT)
        dsi_text_add(&w->path, "%s%" PRId64, slash, key->i);
    else if (key)
        dsi_text_add(&w->path, "%s(a %s)", slash, ds_value_class(key));
    else
        dsi_text_add(&w->path, "%s%" PRId64, slash, i);
    bool compound = key && (key->kind == DS_VALUE_TUPLE || key->kind == DS_VALUE_OBJECT);
    if (compound && !value_resolve(w, ds_value_key_at(v, i), depth)) return false;
    if (w->objects) break_loop(v, i);
    if (!value_resolve(w, ds_value_at(v, i), depth)) return false;
    w->path.n = n;
    if (w->path.s) w->path.s[n] = 0;
    return true;
}

/* Returns the size of a value that is DONE. */
static dsi_tree_size value_extent(const ds_value *v)
{
    if (!dsi_value_has_items(v) && !dsi_value_has_keys(v)) return (dsi_tree_size){1, 0};
    return dsi_value_has_keys(v) ? v->dict->size : v->items.size;
}

/* Recursion must not exhaust the C stack, here or in a caller. */
static bool refuse_depth(const Walk *w)
{
    return resolve_wrong(w, "is more than %d lists deep", DSI_VALUE_DEPTH);
}

/* Resolves the items of a container and stores its size; false with the message
 * if the tree is too deep or too large. */
static bool resolve_items(Walk *w, ds_value *v, int depth)
{
    if (depth >= DSI_VALUE_DEPTH) return refuse_depth(w);
    dsi_tree_size all = {1, 0};
    for (int64_t i = 0; i < ds_value_len(v); i++) {
        if (!resolve_item(w, v, i, depth + 1)) return false;
        dsi_tree_size one = value_extent(ds_value_at(v, i));
        all.values += one.values;
        if (one.height + 1 > all.height) all.height = one.height + 1;
        if (all.values > w->max_values)
            return resolve_wrong(
                w, "holds the same lists again and again: more than %" PRId64 " values",
                w->max_values);
    }
    if (dsi_value_has_keys(v))
        v->dict->size = all;
    else
        v->items.size = all;
    return true;
}

/* Resolves v, which is `depth` containers below the root; false with the
 * message. */
static bool value_resolve(Walk *w, ds_value *v, int depth)
{
    if (v->seen == DONE)
        return depth + value_extent(v).height <= DSI_VALUE_DEPTH || refuse_depth(w);
    if (v->seen == UNDER_WAY) return resolve_wrong(w, "is a list or dict that holds itself");
    v->seen = UNDER_WAY;
    bool ok = true;
    int before = dsi_error_count();
    switch (v->kind) {
    case DS_VALUE_LIST:
    case DS_VALUE_TUPLE:
    case DS_VALUE_SET:
    case DS_VALUE_DICT:
    case DS_VALUE_OBJECT:
        ok = resolve_items(w, v, depth);
        break;
    case DS_VALUE_TENSOR:
        ok = resolve_tensor_or_object(w, v);
        break;
    case DS_VALUE_NAME:
        ok = v->text.n || resolve_wrong(w, "is an array of NumPy without data") ||
             make_refused_object(w, v, "numpy.ndarray", before);
        break;
    case DSI_VALUE_GLOBAL:
        ok = resolve_wrong(w, "is %s itself, no value", v->global->name) ||
             make_refused_object(w, v, v->global->name, before);
        break;
    case DSI_VALUE_STORAGE:
        ok = resolve_wrong(w, "is a bare storage: save tensors");
        break;
    default:
        break;
    }
    v->seen = DONE;
    return ok;
}

/* After a refusal v may contain itself: set u.failed before it is freed. */
bool dsi_resolve_tensors(const char *what, ds_value *v, size_t file_bytes, bool objects)
{
    Walk w = {.what = what, .file_bytes = (int64_t)file_bytes, .objects = objects};
    w.max_values = MANY + 16 * w.file_bytes;
    bool ok = value_resolve(&w, v, 0);
    dsi_text_free(&w.path);
    return ok;
}
