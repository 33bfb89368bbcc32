/* checkpoint/settle.c: values that were read become what the caller gets.
 *
 * What the file names twice is one value that two lists hold. The walk goes into each once (`seen`), and
 * reckons how large and how deep the tree is: a list of two lists of two lists ... is small in the file and
 * endless for who walks over it.
 * SPDX-License-Identifier: MIT */
#include "settle.h"

#include "base/mem.h"

#include <inttypes.h>
#include <string.h>

#define MANY       ((int64_t)1 << 20) /* values that any file may hold */
#define MANY_BYTES ((int64_t)1 << 30) /* that any tensor may have, by repeating its elements */

enum { NEW, UNDER_WAY, DONE };

typedef struct Walk {
    const char *what;
    dsi_text path;
    int64_t max_values;
    int64_t file_bytes;
} Walk;

static bool wrong(const Walk *w, const char *format, ...) DS_PRINTF(2, 3);
static bool wrong(const Walk *w, const char *format, ...)
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

/* ---- tensors ------------------------------------------------------------------------------------------------- */

/* Whether the view lies in its storage; *numel: its elements. */
static bool inside(const dsi_rebuilt *r, int64_t stored, int64_t *numel)
{
    int64_t last = r->offset, span;
    *numel = 1;
    if (r->offset < 0) return false;
    for (int i = 0; i < r->shape.n; i++) {
        int64_t d = r->shape.d[i];
        if (d < 0 || r->stride[i] < 0 || __builtin_mul_overflow(*numel, d, numel)) return false;
    }
    if (!*numel)
        return true; /* PyTorch keeps where it began: x[12:, 1:] begins behind its storage */
    for (int i = 0; i < r->shape.n; i++)
        if (__builtin_mul_overflow(r->shape.d[i] - 1, r->stride[i], &span) ||
            __builtin_add_overflow(last, span, &last))
            return false;
    return last < stored;
}

static bool settle_tensor(Walk *w, ds_value *v)
{
    const dsi_rebuilt *r = v->tensor.rebuilt;
    if (!r) return true;
    const dsi_pickle_storage *s = r->storage->storage;
    const char *dtype = r->dtype ? r->dtype : s->dtype;
    if (!s->flat || (r->dtype && (!s->dtype || strcmp(r->dtype, s->dtype) != 0)))
        return wrong(w,
                     "is a tensor of %s, which there is not: float64, 32, 16, bfloat16, int64, 32, "
                     "16, 8, uint8 and bool are read. Convert it in Python with x.to(...) and save "
                     "it again",
                     dtype ? dtype : "untyped bytes");
    int64_t numel;
    if (!inside(r, s->numel, &numel))
        return wrong(w, "%s at element %" PRId64 " is outside of its storage of %" PRId64,
                     dsi_shape_text(r->shape), r->offset, s->numel);
    int64_t bytes, most = MANY_BYTES + 16 * w->file_bytes;
    if (__builtin_mul_overflow(numel, (int64_t)ds_dtype_size(s->flat->dtype), &bytes) ||
        bytes > most)
        return wrong(w, "%s repeats %" PRId64 " elements to more bytes than are read",
                     dsi_shape_text(r->shape), s->numel);
    ds_scope *scope = ds_scope_open();
    v->tensor.x = dsi_ref(dsi_view_of(s->flat, r->shape, r->stride, numel ? r->offset : 0));
    ds_scope_close(scope);
    ds_value_free(r->storage);
    dsi_free(v->tensor.rebuilt);
    v->tensor.rebuilt = NULL;
    return v->tensor.x != NULL;
}

/* ---- the walk ------------------------------------------------------------------------------------------------ */

static bool settle(Walk *w, ds_value *v, int depth);

/* Item i of v, with its key at the end of the path. */
static bool settle_item(Walk *w, const ds_value *v, int64_t i, int depth)
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
    if (!settle(w, ds_value_at(v, i), depth)) return false;
    w->path.n = n;
    if (w->path.s) w->path.s[n] = 0;
    return true;
}

static bool has_items(const ds_value *v)
{
    return v->kind == DS_VALUE_LIST || v->kind == DS_VALUE_TUPLE || v->kind == DS_VALUE_SET ||
           v->kind == DS_VALUE_DICT;
}

/* Of a value that was walked over. */
static dsi_value_extent extent_of(const ds_value *v)
{
    if (!has_items(v)) return (dsi_value_extent){1, 0};
    return v->kind == DS_VALUE_DICT ? v->dict->extent : v->items.extent;
}

static bool too_deep(const Walk *w)
{
    return wrong(w, "lies more than %d lists deep", DSI_VALUE_DEPTH);
}

static bool settle_items(Walk *w, ds_value *v, int depth)
{
    if (depth >= DSI_VALUE_DEPTH) return too_deep(w);
    dsi_value_extent all = {1, 0};
    for (int64_t i = 0; i < ds_value_len(v); i++) {
        if (!settle_item(w, v, i, depth + 1)) return false;
        dsi_value_extent one = extent_of(ds_value_at(v, i));
        all.values += one.values;
        if (one.height + 1 > all.height) all.height = one.height + 1;
        if (all.values > w->max_values)
            return wrong(w, "holds the same lists again and again: more than %" PRId64 " values",
                         w->max_values);
    }
    if (v->kind == DS_VALUE_DICT)
        v->dict->extent = all;
    else
        v->items.extent = all;
    return true;
}

static bool settle(Walk *w, ds_value *v, int depth)
{
    if (v->seen == DONE) return depth + extent_of(v).height <= DSI_VALUE_DEPTH || too_deep(w);
    if (v->seen == UNDER_WAY) return wrong(w, "is a list or dict that holds itself");
    v->seen = UNDER_WAY;
    bool ok = true;
    switch (v->kind) {
    case DS_VALUE_LIST:
    case DS_VALUE_TUPLE:
    case DS_VALUE_SET:
    case DS_VALUE_DICT:
        ok = settle_items(w, v, depth);
        break;
    case DS_VALUE_TENSOR:
        ok = settle_tensor(w, v);
        break;
    case DS_VALUE_NAME:
        ok = v->text.n || wrong(w, "is an array of NumPy without data");
        break;
    case DSI_VALUE_GLOBAL:
        ok = wrong(w, "is %s itself, no value", v->global->name);
        break;
    case DSI_VALUE_STORAGE:
        ok = wrong(w, "is a bare storage: save tensors");
        break;
    default:
        break;
    }
    v->seen = DONE;
    return ok;
}

bool dsi_settle_values(const char *what, ds_value *v, size_t file_bytes)
{
    Walk w = {.what = what, .file_bytes = (int64_t)file_bytes};
    w.max_values = MANY + 16 * w.file_bytes;
    bool ok = settle(&w, v, 0);
    dsi_text_free(&w.path);
    return ok;
}
