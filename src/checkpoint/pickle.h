/* checkpoint/pickle.h: reads and writes the pickles of a .pth file.
 *
 * Note [Pickles] A pickle is a program for a stack machine. Python's own reader
 * lets it call any function that it names. Here the machine calls nothing of
 * Python: it makes values. A table has the few classes and functions of Python
 * that are known, with a C function that makes the result of a call from its
 * arguments. A name outside of the table is an error, with the name in the
 * message. If the caller sets `objects`, a call of an unknown name makes a
 * DS_VALUE_OBJECT instead, which has that name and the arguments.
 *
 * Source: pickletools.py of CPython documents each opcode.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/map.h"
#include "base/text.h"
#include "save_plan.h"

/* PyTorch's names of a dtype, "torch.float32", and of its storage's class,
 * "FloatStorage". Static. */
const char *dsi_torch_dtype(ds_dtype dtype);
const char *dsi_torch_storage(ds_dtype dtype);
/* Puts the dtype that is called "torch.float32" into *out; false, without a
 * message, if the name is not one of ds_dtype. */
bool dsi_torch_dtype_named(const char *name, ds_dtype *out);

/* Appends v as a pickle of protocol 2, its tensors as views of the planned
 * storages. False with the message, which begins with `what`. */
bool dsi_pickle_write(dsi_text *out, const char *what, const ds_value *v,
                      const dsi_save_plan *stored);

/* ---- read ------------------------------------------------------------------------------------------------ */

/* A storage that the pickle names, v->storage of a DSI_VALUE_STORAGE. The
 * pickle does not contain its bytes; pth_read.c finds them in the file. */
typedef struct dsi_pickle_storage {
    char *key;         /* "0", or "94081170312800" */
    const char *dtype; /* "torch.float32"; NULL: untyped bytes; static */
    int64_t numel;
    ds_value *value; /* counted: its DSI_VALUE_STORAGE */
    ds_tensor *flat; /* counted: its elements, [numel]; NULL: not read yet */
} dsi_pickle_storage;

/* The machine. The caller sets what, p, bytes and options, leaves the rest 0,
 * calls dsi_unpickle for each pickle in p, and dsi_unpickler_free. */
typedef struct dsi_unpickler {
    const char *what; /* in front of messages */
    const uint8_t *p; /* the pickle */
    size_t bytes, at; /* of it; read so far */
    size_t made;      /* bytes of values that calls made */
    int protocol;
    bool objects; /* an unknown class makes an object, not an error */
    /* Only these names of the table are allowed; NULL at the end. NULL: all. */
    const char *const *names;
    /* The limit of the memory of all values, in bytes; 0: only the limit of
     * calls that dsi_unpickle_reserve has. */
    size_t max_bytes;
    /* Long bytes, and arrays of bytes, are not copied but point into the
     * pickle, which must outlive the values. */
    bool in_place;
    bool bomb; /* a limit was exceeded: no object may replace that failure */
    dsi_value_items stack;
    struct {
        DSI_LIST(int)
    } marks;              /* heights of the stack */
    dsi_value_items memo; /* NULL: not yet */
    ds_value *small[256]; /* the ints 0 to 255, counted; NULL: not yet */
    /* All lists, dicts and sets that were made, counted: one that contains
     * itself never reaches a count of 0, so it is freed by emptying it. */
    dsi_value_items holders;
    bool failed; /* dsi_unpickler_free empties all of them */
    struct {
        DSI_LIST(dsi_pickle_storage *)
    } storages; /* of all pickles that were read */
    dsi_map by_key;
    dsi_map unknown; /* names outside of the table -> what they are */
} dsi_unpickler;

/* Runs the pickle that begins at u->p + u->at and moves u->at behind it.
 * Returns its value, which the caller frees; NULL with the message. Tensors
 * have a view spec and no values yet (dsi_resolve_tensors). */
ds_value *dsi_unpickle(dsi_unpickler *u);
/* Frees all but the values that were returned. If the caller gives up on those,
 * it sets u->failed first. */
void dsi_unpickler_free(dsi_unpickler *u);

/* ---- between the machine and what it knows of Python ------------------------------------------------------ */

typedef struct dsi_pickle_global { /* a name that may be in a pickle */
    const char *name;              /* "torch._utils._rebuild_tensor_v2" */
    /* Makes the result of a call with args, a tuple; NULL with the message. The
     * member is NULL for a name that cannot be called. */
    ds_value *(*call)(dsi_unpickler *u, const struct dsi_pickle_global *g, const ds_value *args);
    const char *class_name; /* of the result; NULL: call, or its kind, says it */
    const char *dtype;      /* of a storage's class; "": untyped bytes */
} dsi_pickle_global;

void dsi_pickle_free_unknown(dsi_unpickler *u);
/* The i-th argument of a call; NULL if it has fewer. */
static inline const ds_value *dsi_pickle_arg(const ds_value *args, int i)
{
    return i >= 0 && i < args->items.n ? args->items.at[i] : NULL;
}

/* The ints of a tuple, at most DS_MAX_DIMS; false: v is not that. */
bool dsi_pickle_dims(const ds_value *v, ds_dims *out);

/* GLOBAL: returns the name as a value; NULL with the message if it is unknown
 * or not allowed. */
ds_value *dsi_pickle_global_of(dsi_unpickler *u, const char *module, const char *name);
/* REDUCE, NEWOBJ: returns the result of f(*args); NULL with the message. */
ds_value *dsi_pickle_call(dsi_unpickler *u, const ds_value *f, const ds_value *args);
/* BUILD: changes obj as obj.__setstate__(state) would; false with the
 * message. */
bool dsi_pickle_build(dsi_unpickler *u, ds_value *obj, const ds_value *state);
/* BINPERSID: returns the storage that a persistent id names, the same value for
 * the same key; NULL with the message. */
ds_value *dsi_pickle_persistent(dsi_unpickler *u, const ds_value *id);

/* pickle_numpy.c: functions by which NumPy pickles scalars and arrays. */
ds_value *dsi_numpy_dtype(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
ds_value *dsi_numpy_scalar(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
ds_value *dsi_numpy_array(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
ds_value *dsi_numpy_frombuffer(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
bool dsi_numpy_build(dsi_unpickler *u, ds_value *obj, const ds_value *state);

/* pickle_objects.c: classes of Python's library. */
ds_value *dsi_object_tuple(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
ds_value *dsi_object_complex(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
ds_value *dsi_object_decimal(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
ds_value *dsi_object_path(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
ds_value *dsi_object_timedelta(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
ds_value *dsi_object_timezone(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
ds_value *dsi_object_datetime(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
/* Objects of unknown classes. _unknown makes one, of the class called `name` (a
 * string), with args as items 0, 1, ...; _append adds the next item, as to a
 * list; _build adds the attributes in the state of BUILD. */
ds_value *dsi_object_unknown(dsi_unpickler *u, ds_value *name, const ds_value *args);
bool dsi_object_append(dsi_unpickler *u, ds_value *object, ds_value *item);
bool dsi_object_build(dsi_unpickler *u, ds_value *object, const ds_value *state);

/* Fails with "what: pickle, byte 123: ..."; returns false. */
bool dsi_unpickle_wrong(const dsi_unpickler *u, const char *format, ...) DS_PRINTF(2, 3);
/* The same for functions that return a value: NULL. */
#define dsi_unpickle_refuse(...) (dsi_unpickle_wrong(__VA_ARGS__), NULL)
/* Call it before a call makes values of that many bytes. False with the message
 * if all calls together would make more than 16 times the pickle's size (plus
 * 1 MiB), or more than max_bytes: a small file must not fill the memory. */
bool dsi_unpickle_reserve(dsi_unpickler *u, size_t bytes);
#define DSI_PAIR_BYTES \
    ((size_t)64) /* of a key with its value, about: the pair, its place, a key that is made */
