/* checkpoint/value.h: the representation of a nested value.
 *
 * Values are counted, so that a value that a file contains once and refers to
 * twice is one value in two containers. Callers of the public functions see a
 * tree: an item belongs to its container. Values belong to the thread that made
 * them.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"
#include "base/shared.h"
#include "tensor/tensor.h"

#include <deepspeed/checkpoint.h>

/* How deep containers may be nested: walks over values are recursive. */
#define DSI_VALUE_DEPTH 500

/* Kinds that only the reader of pickles has, on its stack. */
enum {
    DSI_VALUE_GLOBAL = 100, /* a class or function of Python, described by `global` */
    DSI_VALUE_STORAGE       /* memory that tensors are views of */
};

/* A tensor that is not in memory: read puts `bytes` bytes of its row-major
 * elements, from byte offset on, at `to`. memory (NULL: there is none) returns all of
 * them where they are in memory by now, else NULL. */
typedef struct dsi_tensor_reader {
    ds_dtype dtype;
    ds_dims shape;
    ds_status (*read)(void *arg, int64_t offset, void *to, size_t bytes);
    const void *(*memory)(const void *arg);
    void *arg;
} dsi_tensor_reader;

/* The arguments of torch's _rebuild_tensor_v2, kept until the storages have
 * been read; then dsi_resolve_tensors makes the tensor. */
typedef struct dsi_view_spec {
    ds_value *storage; /* counted */
    const char *dtype; /* "torch.float32"; NULL: the storage's */
    ds_dims shape;
    int64_t offset, stride[DS_MAX_DIMS]; /* elements */
} dsi_view_spec;

typedef struct dsi_value_pair {
    ds_value *key, *value;
    uint64_t hash;
} dsi_value_pair;

/* The size of a container, computed by dsi_resolve_tensors. */
typedef struct dsi_tree_size {
    int64_t values; /* the container and all values below it, as a tree */
    int height;     /* levels of containers below it */
} dsi_tree_size;

typedef struct dsi_value_items { /* of a list, tuple or set */
    DSI_LIST(ds_value *)
    dsi_tree_size size;
} dsi_value_items;

typedef struct dsi_value_dict {
    DSI_LIST(dsi_value_pair)
    int *slot; /* [slots]: 1 + the index of a pair; 0: free */
    size_t slots;
    dsi_tree_size size;
    ds_value *name; /* of an object's class, a string, counted */
    int64_t items;  /* of an object: its arguments, and what was appended to it */
} dsi_value_dict;

struct ds_value {
    int refs;
    int kind; /* ds_value_kind, or one of the reader's */
    /* Python's name of its class where the kind does not say it
     * ("OrderedDict"); static, or NULL */
    const char *class_name;
    uint8_t seen;       /* state of the walk of dsi_resolve_tensors */
    bool requires_grad; /* of a tensor */
    bool in_place;      /* of bytes: `text` is part of a pickle, without a 0 behind its end */
    union {
        bool b;
        int64_t i;
        double f;
        struct { /* a string, bytes, a name, the digits of a big int; a 0 behind the end */
            char *s;
            size_t n;
        } text;
        dsi_value_items items;
        dsi_value_dict *dict; /* of an object too */
        struct {              /* x; or, until it is made, reader or view */
            ds_tensor *x;
            dsi_tensor_reader *reader;
            dsi_view_spec *view;
        } tensor;
        const struct dsi_pickle_global *global;
        void *storage; /* dsi_pickle_storage of the unpickler */
    };
};

/* Makes a value of that kind, empty or 0. The caller owns one count; each call
 * of ds_value_free releases one. */
ds_value *dsi_value_new(int kind);
/* Makes a string, bytes, name or big int with a copy of n bytes. */
ds_value *dsi_value_text(int kind, const void *bytes, size_t n);
/* Adds a count and returns v, which may be NULL. */
DSI_SHARED ds_value *dsi_value_ref(ds_value *v);
/* Removes the items of a container; nothing for other values. */
void dsi_value_clear(ds_value *v);
/* Makes an object of the class of that name; takes the string. */
ds_value *dsi_value_object(ds_value *class_name);
/* Changes v, of any kind, into an object without attributes, in place: all its
 * holders see the object. The items of a dict become its attributes. */
void dsi_value_make_object(ds_value *v, const char *class_name);

static inline bool dsi_value_has_items(const ds_value *v) /* in `items` */
{
    return v->kind == DS_VALUE_LIST || v->kind == DS_VALUE_TUPLE || v->kind == DS_VALUE_SET;
}

static inline bool dsi_value_has_keys(const ds_value *v)
{
    return v->kind == DS_VALUE_DICT || v->kind == DS_VALUE_OBJECT;
}

/* Tells whether v can be a key of a dict: a scalar, a text, a tuple of
 * these. */
bool dsi_value_is_key(const ds_value *v);
/* Puts item under key, in place of one with an equal key. Takes both, also if
 * it fails. DS_EINVAL for a key that Python could not hash. */
ds_status dsi_value_put(ds_value *dict, ds_value *key, ds_value *item);

bool dsi_value_is_state(const ds_value *v); /* a dict of names and tensors */

/* Whether all bytes are 0 or 1: others are no bool, and undefined to read as
 * one. */
static inline bool dsi_are_bools(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    size_t i = 0;
    while (i < n && p[i] <= 1) i++;
    return i == n;
}

/* Makes the value of a tensor that is read when it is needed
 * (dsi_tensor_reader). arg must live as long as the value. */
DSI_SHARED ds_value *
dsi_value_reader(ds_dtype dtype, const int64_t *shape, int ndim,
                 ds_status (*read)(void *arg, int64_t offset, void *to, size_t bytes), void *arg);

/* As ds_value_load, for a file whose checksums were compared before: reads the
 * pickle and the directory only. Pages of tensors are read when they are
 * accessed. partly: parts of them will be accessed, and the caller names those
 * first (dsi_mapping_prefetch), so the system does not read ahead. */
ds_value *dsi_pth_open(const char *path, bool partly);
/* Compares the checksums of all entries of an archive, which reads it once.
 * DS_OK for a file of the old format, which has none. */
ds_status dsi_pth_check(const char *path);

/* Writes v as ds_value_save, but to path itself, which is synced and not
 * renamed. *crc (or NULL): CRC-32 of the whole file (dsi_crc32). */
ds_status dsi_pth_write(const ds_value *v, const char *path, uint32_t *crc);
