/* checkpoint/value.h: inside of a nested value.
 *
 * A value counts those that hold it, so that what a file holds twice is held
 * twice; the face hands out a tree: an item has one owner, who frees it. Values
 * belong to the thread that made them.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_CHECKPOINT_VALUE_H
#define DSI_CHECKPOINT_VALUE_H

#include "base/list.h"
#include "tensor/tensor.h"

#include <deepspeed/checkpoint.h>

/* How deep lists may lie in lists: the walks over values are recursive. */
#define DSI_VALUE_DEPTH 500

/* Kinds that only the reader of pickles has, on its stack. */
enum {
    DSI_VALUE_GLOBAL = 100, /* a class or function of Python: what it is stands in `global` */
    DSI_VALUE_STORAGE       /* memory that tensors are views of */
};

/* Where the bytes of a tensor come from that is not in memory. */
typedef struct dsi_tensor_reader {
    ds_dtype dtype;
    ds_dims shape;
    ds_status (*read)(void *arg, int64_t offset, void *to, size_t bytes);
    void *arg;
} dsi_tensor_reader;

/* What a pickle says of a tensor, until the file's storages are there. */
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

typedef struct dsi_tree_size { /* of a value with items: what settling finds */
    int64_t values;            /* in it and below, as a tree */
    int height;                /* lists in lists below it */
} dsi_tree_size;

typedef struct dsi_value_items { /* of a list, tuple or set */
    DSI_LIST(ds_value *)
    dsi_tree_size size;
} dsi_value_items;

typedef struct dsi_value_dict {
    DSI_LIST(dsi_value_pair)
    int *slot; /* [slots]: 1 + the pair that lies there, 0: none */
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
    uint8_t seen;       /* of the walk that settles a file's values */
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
        struct {              /* x, or what it is to be made of */
            ds_tensor *x;
            dsi_tensor_reader *reader;
            dsi_view_spec *view;
        } tensor;
        const struct dsi_pickle_global *global;
        void *storage; /* the reader's */
    };
};

ds_value *dsi_value_new(int kind);
ds_value *dsi_value_text(int kind, const void *bytes, size_t n);
ds_value *dsi_value_ref(ds_value *v);
void dsi_value_clear(ds_value *v); /* of its items, if it has some */
/* An object of the class of that name; takes the string. */
ds_value *dsi_value_object(ds_value *class_name);
/* v, whatever it was, becomes an object without attributes; a dict keeps its
 * items as such. */
void dsi_value_make_object(ds_value *v, const char *class_name);

static inline bool dsi_value_has_items(const ds_value *v) /* in `items` */
{
    return v->kind == DS_VALUE_LIST || v->kind == DS_VALUE_TUPLE || v->kind == DS_VALUE_SET;
}

static inline bool dsi_value_has_keys(const ds_value *v)
{
    return v->kind == DS_VALUE_DICT || v->kind == DS_VALUE_OBJECT;
}

bool dsi_value_is_key(const ds_value *v);
/* Takes key and item, and replaces what has an equal key. Refuses a key that
 * Python could not hash. */
ds_status dsi_value_put(ds_value *dict, ds_value *key, ds_value *item);

bool dsi_value_is_state(const ds_value *v); /* a dict of names and tensors */

/* A tensor whose bytes, row-major, come when they are wanted: read puts those
 * from offset on at `to`. */
ds_value *dsi_value_reader(ds_dtype dtype, const int64_t *shape, int ndim,
                           ds_status (*read)(void *arg, int64_t offset, void *to, size_t bytes),
                           void *arg);

/* As ds_value_load, of a file whose check sums were compared already: only what
 * says where tensors lie is read, and they when somebody looks at them; partly:
 * at parts of them, which are named first (dsi_mapping_prefetch). */
ds_value *dsi_pth_open(const char *path, bool partly);
/* Compares the check sums of an archive, which is read once; of what is none
 * there are none. */
ds_status dsi_pth_check(const char *path);

/* Writes v as ds_value_save, but to path itself, which is synced and not
 * renamed. *crc (or NULL): CRC-32 of the whole file (dsi_crc32). */
ds_status dsi_pth_write(const ds_value *v, const char *path, uint32_t *crc);

#endif
