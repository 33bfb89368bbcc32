/* checkpoint/value_read.c: reads nested values: items, paths, typed getters,
 * state dicts.
 *
 * A path is keys and indices between slashes, "optimizer/state/0/step". A part
 * is looked up as a string key first, then as a number.
 * SPDX-License-Identifier: MIT */
#include "value.h"

#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Tells whether v has its content in `text`. */
static bool is_text(const ds_value *v)
{
    return v->kind == DS_VALUE_STRING || v->kind == DS_VALUE_BYTES || v->kind == DS_VALUE_BIG_INT ||
           v->kind == DS_VALUE_NAME;
}

ds_value_kind ds_value_kind_of(const ds_value *v)
{
    return v ? (ds_value_kind)v->kind : DS_VALUE_NONE;
}

/* The name that Python's type(v).__name__ would give. */
const char *ds_value_class(const ds_value *v)
{
    static const char *const names[] = {"NoneType", "bool",   "int",  "float", "str",
                                        "bytes",    "Tensor", "list", "tuple", "dict",
                                        "set",      "int",    "name"};
    if (v && v->kind == DS_VALUE_OBJECT) return v->dict->name->text.s;
    if (!v) return "NoneType";
    if (v->kind == DS_VALUE_NAME && v->class_name && !strncmp(v->class_name, "torch.", 6))
        return "dtype";
    if (v->class_name) return v->class_name;
    return (size_t)v->kind < sizeof names / sizeof *names ? names[v->kind] : "global";
}

/* Bytes of a text, items of a container, 0 for all others. */
int64_t ds_value_len(const ds_value *v)
{
    if (!v) return 0;
    if (is_text(v)) return (int64_t)v->text.n;
    if (dsi_value_has_items(v)) return v->items.n;
    return dsi_value_has_keys(v) ? v->dict->n : 0;
}

/* A dict counts its items in the order in which their keys were added. */
ds_value *ds_value_at(const ds_value *v, int64_t i)
{
    if (!v || is_text(v) || i < 0 || i >= ds_value_len(v)) return NULL;
    return dsi_value_has_keys(v) ? v->dict->at[i].value : v->items.at[i];
}

/* NULL for a value that has no keys. */
ds_value *ds_value_key_at(const ds_value *dict, int64_t i)
{
    bool there = dict && dsi_value_has_keys(dict) && i >= 0 && i < dict->dict->n;
    return there ? dict->dict->at[i].key : NULL;
}

const char *ds_value_text(const ds_value *v) { return v && is_text(v) ? v->text.s : NULL; }

/* ---- paths ------------------------------------------------------------------------------------------- */

/* Parses "12" or "-1"; false if part is no number of up to 18 digits. */
static bool whole_number(const char *part, int64_t *out)
{
    char *end;
    size_t digits = strspn(part + (*part == '-'), "0123456789");
    if (!digits || digits > 18) return false;
    *out = strtoll(part, &end, 10);
    return !*end;
}

/* Returns the item of v that one part of a path names; NULL if there is
 * none. */
static ds_value *path_step(const ds_value *v, const char *part)
{
    ds_value *item = ds_value_get(v, part);
    int64_t i;
    if (item || !v || !whole_number(part, &i)) return item;
    return dsi_value_has_keys(v) ? ds_value_get_int(v, i) : ds_value_at(v, i);
}

/* Returns the value at path; NULL if there is none. *last: the last value on
 * the path that exists; *known: the length of the path to it, for messages. */
static ds_value *path_walk(const ds_value *v, const char *path, const ds_value **last,
                           size_t *known)
{
    char *copy = dsi_strdup(path);
    const ds_value *at = v;
    *known = 0;
    *last = v;
    for (char *part = copy; at && *part;) {
        char *slash = strchr(part, '/');
        if (slash) *slash = 0;
        *last = at;
        *known = part > copy ? (size_t)(part - copy) - 1 : 0;
        at = path_step(at, part);
        if (!slash) break;
        part = slash + 1;
    }
    dsi_free(copy);
    return (ds_value *)(uintptr_t)at;
}

/* An empty path, and NULL, name v itself. */
ds_value *ds_value_find(const ds_value *v, const char *path)
{
    const ds_value *last;
    size_t known;
    return path_walk(v, path ? path : "", &last, &known);
}

/* Appends the first keys of a dict, "epoch, loss, ...". */
static void text_add_keys(dsi_text *t, const ds_value *dict)
{
    int64_t n = ds_value_len(dict), shown = n < 8 ? n : 8;
    for (int64_t i = 0; i < shown; i++) {
        const ds_value *key = ds_value_key_at(dict, i);
        dsi_text_add(t, "%s", i ? ", " : "");
        if (key->kind == DS_VALUE_STRING)
            dsi_text_add(t, "%.60s", key->text.s);
        else if (key->kind == DS_VALUE_INT)
            dsi_text_add(t, "%" PRId64, key->i);
        else
            dsi_text_add(t, "(a %s)", ds_value_class(key));
    }
    if (n > shown) dsi_text_add(t, ", ... (%" PRId64 " keys)", n);
    if (!n) dsi_text_add(t, "nothing: it is empty");
}

/* Fails with what the last existing value on the path holds instead. */
static ds_status path_absent(const char *path, const ds_value *last, size_t known)
{
    dsi_text t = {0};
    if (last && dsi_value_has_keys(last))
        text_add_keys(&t, last);
    else if (last && dsi_value_has_items(last))
        dsi_text_add(&t, "%" PRId64 " items", ds_value_len(last));
    else
        dsi_text_add(&t, "a value of class %s", ds_value_class(last));
    dsi_fail(DS_EINVAL, "value: there is no %s; %.*s%sholds %s", path, (int)known, path,
             known ? " " : "what was given ", t.s);
    dsi_text_free(&t);
    return DS_EINVAL;
}

/* Returns the value at path (NULL: v itself); NULL with the message. */
static const ds_value *path_find(const ds_value *v, const char *path)
{
    const ds_value *last;
    size_t known;
    if (!v) return dsi_null_operand("value");
    const ds_value *at = path_walk(v, path ? path : "", &last, &known);
    if (!at) path_absent(path, last, known);
    return at;
}

/* Fails because the value at path is not of the wanted kind. */
static ds_status path_other_kind(const char *path, const ds_value *v, const char *wanted)
{
    return dsi_fail(DS_EINVAL, "value: %s is of class %s: expected %s",
                    path && *path ? path : "the value", ds_value_class(v), wanted);
}

/* Ints are no bools here, though Python's bool is an int. */
ds_status ds_value_read_bool(const ds_value *v, const char *path, bool *out)
{
    const ds_value *at = path_find(v, path);
    if (!at) return ds_error_status();
    if (at->kind != DS_VALUE_BOOL) return path_other_kind(path, at, "a bool");
    *out = at->b;
    return DS_OK;
}

/* Reads a tensor of one element as a number; false if v is none. A step count
 * is a tensor in some of PyTorch's optimizers and an int in others. */
static bool tensor_element(const ds_value *v, double *out)
{
    if (v->kind != DS_VALUE_TENSOR || !v->tensor.x || ds_numel(v->tensor.x) != 1) return false;
    *out = ds_item(v->tensor.x);
    return true;
}

/* A float is refused, also 3.0: truncation would hide a wrong path. */
ds_status ds_value_read_int(const ds_value *v, const char *path, int64_t *out)
{
    const ds_value *at = path_find(v, path);
    double x;
    if (!at) return ds_error_status();
    if (at->kind == DS_VALUE_INT) {
        *out = at->i;
    } else if (tensor_element(at, &x)) {
        if (!(x > -9e15 && x < 9e15) || x != (double)(int64_t)x)
            return dsi_fail(DS_EINVAL, "value: %s is a tensor of %g: expected a whole number",
                            path ? path : "it", x);
        *out = (int64_t)x;
    } else {
        return path_other_kind(path, at, "an int");
    }
    return DS_OK;
}

/* An int is converted; a bool is not. */
ds_status ds_value_read_float(const ds_value *v, const char *path, double *out)
{
    const ds_value *at = path_find(v, path);
    if (!at) return ds_error_status();
    if (at->kind == DS_VALUE_FLOAT)
        *out = at->f;
    else if (at->kind == DS_VALUE_INT)
        *out = (double)at->i;
    else if (!tensor_element(at, out))
        return path_other_kind(path, at, "a float");
    return DS_OK;
}

/* *out is the value's text, valid as long as the value. */
ds_status ds_value_read_string(const ds_value *v, const char *path, const char **out)
{
    const ds_value *at = path_find(v, path);
    if (!at) return ds_error_status();
    if (at->kind != DS_VALUE_STRING) return path_other_kind(path, at, "a str");
    *out = at->text.s;
    return DS_OK;
}

/* Reads the values of a dsi_tensor_reader into memory, once. */
static ds_status value_materialize(ds_value *v)
{
    const dsi_tensor_reader *from = v->tensor.reader;
    if (v->tensor.x) return DS_OK;
    DSI_ASSERT(from);
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = dsi_new_host(from->dtype, from->shape);
    size_t bytes = (size_t)ds_numel(x) * ds_dtype_size(from->dtype);
    ds_status status = x ? DS_OK : ds_error_status();
    if (x && bytes) status = from->read(from->arg, 0, ds_data_mut(x), bytes);
    if (status == DS_OK) v->tensor.x = dsi_ref(x);
    ds_scope_close(scope);
    return status;
}

/* *out is the value's tensor, not a new handle. */
ds_status ds_value_read_tensor(const ds_value *v, const char *path, ds_tensor **out)
{
    const ds_value *at = path_find(v, path);
    if (!at) return ds_error_status();
    if (at->kind != DS_VALUE_TENSOR) return path_other_kind(path, at, "a tensor");
    ds_status status = value_materialize((ds_value *)(uintptr_t)at);
    if (status == DS_OK) *out = at->tensor.x;
    return status;
}

/* ---- state dicts ------------------------------------------------------------------------------------- */

/* Handles are shared with the state dict; values are not copied. */
ds_value *ds_value_of_state(const ds_state *state)
{
    if (!state) return dsi_null_operand("value_of_state");
    ds_value *dict = ds_value_dict();
    dict->class_name = "OrderedDict";
    for (int i = 0; i < ds_state_len(state); i++)
        ds_value_set(dict, ds_state_name(state, i), ds_value_tensor(ds_state_at(state, i)));
    return dict;
}

/* Names to tensors, and nothing else; an empty dict is a state dict too. */
bool dsi_value_is_state(const ds_value *v)
{
    bool ok = v->kind == DS_VALUE_DICT;
    for (int i = 0; ok && i < v->dict->n; i++)
        ok = v->dict->at[i].key->kind == DS_VALUE_STRING && *v->dict->at[i].key->text.s &&
             v->dict->at[i].value->kind == DS_VALUE_TENSOR;
    return ok;
}

/* Adds item i of dict to the state dict; fails if it is no tensor with a
 * name. */
static ds_status text_add_item(ds_state *state, const ds_value *dict, int64_t i)
{
    const ds_value *key = ds_value_key_at(dict, i), *item = ds_value_at(dict, i);
    bool named = key->kind == DS_VALUE_STRING;
    if (!named || item->kind != DS_VALUE_TENSOR) {
        dsi_text keys = {0};
        text_add_keys(&keys, dict);
        dsi_fail(DS_EINVAL,
                 "state_of_value: no dict of tensors: %s is of class %s; it holds %s: "
                 "ds_value_load and ds_value_get reach the state dict that may be in it",
                 named ? key->text.s : "a key", ds_value_class(named ? item : key), keys.s);
        dsi_text_free(&keys);
        return DS_EINVAL;
    }
    ds_tensor *x = NULL;
    ds_status status = ds_value_read_tensor(item, "", &x);
    return status == DS_OK ? ds_state_set(state, key->text.s, x) : status;
}

/* The state dict shares the tensors; readers are read into memory first. */
ds_state *ds_state_of_value(const ds_value *dict)
{
    if (!dict && !ds_error())
        return dsi_refuse(
            "state_of_value: the value is NULL: ds_value_get returns that where there "
            "is no such key");
    if (!dict) return NULL;
    if (dict->kind != DS_VALUE_DICT)
        return dsi_refuse("state_of_value: a value of class %s: expected a dict of tensors",
                          ds_value_class(dict));
    ds_state *state = ds_state_new();
    ds_status status = DS_OK;
    for (int64_t i = 0; status == DS_OK && i < ds_value_len(dict); i++)
        status = text_add_item(state, dict, i);
    if (status == DS_OK) return state;
    ds_state_free(state);
    return NULL;
}
