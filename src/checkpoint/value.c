/* checkpoint/value.c: nested values: constructors, containers, freeing.
 *
 * Invariants: refs counts the containers, stacks and callers that hold a value;
 * it is not atomic. A value owns a count of each item, key and of its tensor.
 * dict->at[0 .. n-1] are the pairs in the order in which their keys came;
 * slot[] is a hash table of 1 + their index, 0: free, at most half full.
 * Freeing uses a work list, no recursion: containers may be nested to any
 * depth. A container that holds itself is freed only after
 * dsi_value_clear.
 * SPDX-License-Identifier: MIT */
#include "value.h"

#include "base/map.h"

#include <string.h>

/* ---- make -------------------------------------------------------------------------------------------- */

ds_value *dsi_value_new(int kind)
{
    ds_value *v = dsi_alloc(sizeof *v);
    v->refs = 1;
    v->kind = kind;
    if (dsi_value_has_keys(v)) v->dict = dsi_alloc(sizeof *v->dict);
    return v;
}

/* A 0 is added behind the n bytes, which may contain others. */
ds_value *dsi_value_text(int kind, const void *bytes, size_t n)
{
    ds_value *v = dsi_value_new(kind);
    v->text.s = dsi_alloc(n + 1);
    if (n) memcpy(v->text.s, bytes, n);
    v->text.n = n;
    return v;
}

ds_value *dsi_value_ref(ds_value *v)
{
    if (v) v->refs++;
    return v;
}

ds_value *ds_value_none(void) { return dsi_value_new(DS_VALUE_NONE); }
ds_value *ds_value_list(void) { return dsi_value_new(DS_VALUE_LIST); }
ds_value *ds_value_tuple(void) { return dsi_value_new(DS_VALUE_TUPLE); }
ds_value *ds_value_dict(void) { return dsi_value_new(DS_VALUE_DICT); }

ds_value *ds_value_bool(bool b)
{
    ds_value *v = dsi_value_new(DS_VALUE_BOOL);
    v->b = b;
    return v;
}

ds_value *ds_value_int(int64_t i)
{
    ds_value *v = dsi_value_new(DS_VALUE_INT);
    v->i = i;
    return v;
}

ds_value *ds_value_float(double f)
{
    ds_value *v = dsi_value_new(DS_VALUE_FLOAT);
    v->f = f;
    return v;
}

ds_value *ds_value_string(const char *utf8)
{
    if (!utf8) return dsi_null_operand("value_string");
    return dsi_value_text(DS_VALUE_STRING, utf8, strlen(utf8));
}

ds_value *ds_value_bytes(const void *bytes, size_t n)
{
    if (!bytes && n) return dsi_null_operand("value_bytes");
    return dsi_value_text(DS_VALUE_BYTES, bytes, n);
}

/* The value holds a count of the tensor, not a copy. */
ds_value *ds_value_tensor(ds_tensor *x)
{
    if (!x) return dsi_null_operand("value_tensor");
    ds_value *v = dsi_value_new(DS_VALUE_TENSOR);
    v->tensor.x = dsi_ref(x);
    return v;
}

/* The value has no tensor.x until value_materialize reads it. */
ds_value *dsi_value_reader(ds_dtype dtype, const int64_t *shape, int ndim,
                           ds_status (*read)(void *arg, int64_t offset, void *to, size_t bytes),
                           void *arg)
{
    DSI_ASSERT(ndim >= 0 && ndim <= DS_MAX_DIMS);
    ds_value *v = dsi_value_new(DS_VALUE_TENSOR);
    v->tensor.reader = dsi_alloc(sizeof *v->tensor.reader);
    *v->tensor.reader = (dsi_tensor_reader){
        .dtype = dtype, .shape.n = ndim, .read = read, .arg = arg};
    for (int i = 0; i < ndim; i++) v->tensor.reader->shape.d[i] = shape[i];
    return v;
}

/* Attributes are put into `dict` afterwards. */
ds_value *dsi_value_object(ds_value *class_name)
{
    ds_value *v = dsi_value_new(DS_VALUE_OBJECT);
    v->dict->name = class_name;
    return v;
}

/* Moves v's contents to a second value, which is freed last: class_name may be
 * in it. */
void dsi_value_make_object(ds_value *v, const char *class_name)
{
    ds_value *name = ds_value_string(class_name), /* a copy: it may be v's text */
        *was = v->kind == DS_VALUE_DICT ? NULL : dsi_value_new(DS_VALUE_NONE);
    if (was) {
        *was = *v;
        was->refs = 1;
        v->dict = dsi_alloc(sizeof *v->dict);
    }
    v->kind = DS_VALUE_OBJECT;
    v->class_name = NULL;
    v->dict->name = name;
    ds_value_free(was);
}

/* ---- free -------------------------------------------------------------------------------------------- */

/* Decrements v's count; at 0 moves v to the work list. */
static void value_release(dsi_value_items *dead, ds_value *v)
{
    if (v && --v->refs == 0) dsi_list_add(dead, v);
}

/* Moves v's items to the work list, and leaves v an empty container. */
static void value_empty(dsi_value_items *dead, ds_value *v)
{
    if (dsi_value_has_keys(v)) {
        for (int i = 0; i < v->dict->n; i++) {
            value_release(dead, v->dict->at[i].key);
            value_release(dead, v->dict->at[i].value);
        }
        dsi_list_free(v->dict);
        dsi_free(v->dict->slot);
        *v->dict = (dsi_value_dict){.name = v->dict->name};
    } else if (dsi_value_has_items(v)) {
        for (int i = 0; i < v->items.n; i++) value_release(dead, v->items.at[i]);
        dsi_list_free(&v->items);
    }
}

/* Frees v, whose count is 0, and releases what it holds. */
static void value_free_one(dsi_value_items *dead, ds_value *v)
{
    value_empty(dead, v);
    switch (v->kind) {
    case DS_VALUE_STRING:
    case DS_VALUE_BYTES:
    case DS_VALUE_BIG_INT:
    case DS_VALUE_NAME:
        if (!v->in_place) dsi_free(v->text.s);
        break;
    case DS_VALUE_DICT:
    case DS_VALUE_OBJECT:
        value_release(dead, v->dict->name);
        dsi_free(v->dict);
        break;
    case DS_VALUE_TENSOR:
        dsi_unref(v->tensor.x);
        dsi_free(v->tensor.reader);
        if (v->tensor.view) value_release(dead, v->tensor.view->storage);
        dsi_free(v->tensor.view);
        break;
    default:
        break;
    }
    dsi_free(v);
}

/* Frees the values on the work list and those that this adds to it. */
static void values_free(dsi_value_items *dead)
{
    while (dead->n) value_free_one(dead, dead->at[--dead->n]);
    dsi_list_free(dead);
}

/* Values of any depth, without recursion: what loses its last count is added to
 * the work list. */
void ds_value_free(ds_value *v)
{
    dsi_value_items dead = {0};
    value_release(&dead, v);
    values_free(&dead);
}

/* Breaks loops: a list that contains itself can be freed afterwards. */
void dsi_value_clear(ds_value *v)
{
    dsi_value_items dead = {0};
    value_empty(&dead, v);
    values_free(&dead);
}

/* ---- lists ------------------------------------------------------------------------------------------- */

/* Takes item, also if it fails. */
ds_status ds_value_append(ds_value *list, ds_value *item)
{
    if (!list || !item) {
        ds_value_free(item);
        return dsi_null_argument("value_append");
    }
    if (list->kind != DS_VALUE_LIST && list->kind != DS_VALUE_TUPLE) {
        ds_value_free(item);
        return dsi_fail(DS_EINVAL, "value_append: to a value of class %s: expected a list or tuple",
                        ds_value_class(list));
    }
    dsi_list_add(&list->items, item);
    return DS_OK;
}

/* ---- dicts ------------------------------------------------------------------------------------------- */

#define KEY_DEPTH 8 /* tuples in tuples */

/* Adds v to the hash *h; false if v cannot be a key. Equal keys have equal
 * hashes: -0.0 and 0.0, and 1 and 1.0, are different keys here. */
static bool hash_key(const ds_value *v, uint64_t *h, int depth)
{
    *h = dsi_fnv1a(*h, &v->kind, sizeof v->kind);
    switch (v->kind) {
    case DS_VALUE_NONE:
        return true;
    case DS_VALUE_BOOL:
        *h = dsi_fnv1a(*h, &v->b, sizeof v->b);
        return true;
    case DS_VALUE_INT:
    case DS_VALUE_FLOAT:
        *h = dsi_fnv1a(*h, &v->i, sizeof v->i);
        return true;
    case DS_VALUE_STRING:
    case DS_VALUE_BYTES:
    case DS_VALUE_BIG_INT:
    case DS_VALUE_NAME:
        *h = dsi_fnv1a(*h, v->text.s, v->text.n);
        return true;
    case DS_VALUE_TUPLE:
        for (int i = 0; i < v->items.n && depth < KEY_DEPTH; i++)
            if (!hash_key(v->items.at[i], h, depth + 1)) return false;
        return depth < KEY_DEPTH;
    case DS_VALUE_OBJECT: /* by identity: __eq__ of its class is unknown */
        *h = dsi_fnv1a(*h, &v, sizeof v);
        return true;
    default:
        return false;
    }
}

/* Hashing visits all of a key, so it finds a part that cannot be hashed. */
bool dsi_value_is_key(const ds_value *v)
{
    uint64_t hash = 0;
    return hash_key(v, &hash, 0);
}

/* Keys are equal if they have the same kind and the same bits or text. */
static bool equal_keys(const ds_value *a, const ds_value *b)
{
    if (a->kind != b->kind) return false;
    switch (a->kind) {
    case DS_VALUE_NONE:
        return true;
    case DS_VALUE_BOOL:
        return a->b == b->b;
    case DS_VALUE_INT:
    case DS_VALUE_FLOAT:
        return a->i == b->i;
    case DS_VALUE_TUPLE:
        if (a->items.n != b->items.n) return false;
        for (int i = 0; i < a->items.n; i++)
            if (!equal_keys(a->items.at[i], b->items.at[i])) return false;
        return true;
    case DS_VALUE_OBJECT:
        return a == b;
    default:
        return a->text.n == b->text.n && !memcmp(a->text.s, b->text.s, a->text.n);
    }
}

/* Returns the slot of key, or the free slot into which it would be put. */
static size_t dict_find_slot(const dsi_value_dict *d, const ds_value *key, uint64_t hash)
{
    size_t i = hash & (d->slots - 1);
    for (; d->slot[i]; i = (i + 1) & (d->slots - 1)) {
        const dsi_value_pair *p = &d->at[d->slot[i] - 1];
        if (p->hash == hash && equal_keys(p->key, key)) break;
    }
    return i;
}

/* Grows the table for one more key: it stays at most half full. */
static void dict_grow_table(dsi_value_dict *d)
{
    if (2 * ((size_t)d->n + 1) <= d->slots) return;
    d->slots = d->slots ? 4 * d->slots : 16;
    dsi_free(d->slot);
    d->slot = dsi_alloc(d->slots * sizeof *d->slot);
    for (int i = 0; i < d->n; i++) d->slot[dict_find_slot(d, d->at[i].key, d->at[i].hash)] = i + 1;
}

/* A new key is appended, so the order of insertion stays; an equal key keeps
 * its place and gets the new item. */
ds_status dsi_value_put(ds_value *dict, ds_value *key, ds_value *item)
{
    uint64_t hash = 14695981039346656037u;
    ds_status status = DS_OK;
    if (!dict || !key || !item)
        status = dsi_null_argument("value_set");
    else if (!dsi_value_has_keys(dict))
        status = dsi_fail(DS_EINVAL, "value_set: to a value of class %s: expected a dict",
                          ds_value_class(dict));
    else if (!hash_key(key, &hash, 0))
        status = dsi_fail(DS_EINVAL, "value_set: a value of class %s cannot be a key",
                          ds_value_class(key));
    if (status != DS_OK) {
        ds_value_free(key);
        ds_value_free(item);
        return status;
    }
    dsi_value_dict *d = dict->dict;
    dict_grow_table(d);
    size_t slot = dict_find_slot(d, key, hash);
    if (d->slot[slot]) {
        dsi_value_pair *p = &d->at[d->slot[slot] - 1];
        ds_value_free(p->value);
        ds_value_free(key);
        p->value = item;
        return DS_OK;
    }
    dsi_list_add(d, (dsi_value_pair){key, item, hash});
    d->slot[slot] = d->n;
    return DS_OK;
}

ds_status ds_value_set(ds_value *dict, const char *key, ds_value *item)
{
    return dsi_value_put(dict, key ? ds_value_string(key) : NULL, item);
}

/* The int 1 and the string "1" are different keys. */
ds_status ds_value_set_int(ds_value *dict, int64_t key, ds_value *item)
{
    return dsi_value_put(dict, ds_value_int(key), item);
}

/* Returns the item of key; NULL, without a message, if there is none. */
static ds_value *dict_get(const ds_value *dict, const ds_value *key)
{
    if (!dict || !dsi_value_has_keys(dict) || !dict->dict->n) return NULL;
    uint64_t hash = 14695981039346656037u;
    hash_key(key, &hash, 0);
    const dsi_value_dict *d = dict->dict;
    int at = d->slot[dict_find_slot(d, key, hash)];
    return at ? d->at[at - 1].value : NULL;
}

/* The key is a value on the C stack, which needs no allocation. */
ds_value *ds_value_get(const ds_value *dict, const char *key)
{
    if (!key) return NULL;
    size_t n = strlen(key);
    ds_value k = {.kind = DS_VALUE_STRING, .text = {(char *)(uintptr_t)key, n}};
    return dict_get(dict, &k);
}

ds_value *ds_value_get_int(const ds_value *dict, int64_t key)
{
    ds_value k = {.kind = DS_VALUE_INT, .i = key};
    return dict_get(dict, &k);
}
