/* checkpoint/pickle.h: the pickles that a .pth holds.
 *
 * Note [Pickles] A pickle is a program for a stack machine, which Python's own
 * reader lets call any function that it names. Here nothing is called: the
 * machine makes values, a table of names says which few of Python's classes and
 * functions are known, and what they make of their arguments is written in C. A
 * name outside of the table ends the reading, with the name in the message; or,
 * if the caller wants what can be read, a call of it makes a DS_VALUE_OBJECT,
 * which has that name and the arguments.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_CHECKPOINT_PICKLE_H
#define DSI_CHECKPOINT_PICKLE_H

#include "base/map.h"
#include "base/text.h"
#include "save_plan.h"

/* "torch.float32", and "FloatStorage", as torch has them. */
const char *dsi_torch_dtype(ds_dtype dtype);
const char *dsi_torch_storage(ds_dtype dtype);
bool dsi_torch_dtype_named(const char *name, ds_dtype *out); /* false: none of ours */

/* v as a pickle of protocol 2, its tensors as views of the planned storages.
 * False with the message. */
bool dsi_pickle_write(dsi_text *out, const char *what, const ds_value *v,
                      const dsi_save_plan *stored);

/* ---- read ------------------------------------------------------------------------------------------------ */

/* A storage that the pickle names: v->storage of a DSI_VALUE_STORAGE. Who reads
 * the file finds its bytes. */
typedef struct dsi_pickle_storage {
    char *key;         /* "0", or "94081170312800" */
    const char *dtype; /* "torch.float32"; NULL: untyped bytes; static */
    int64_t numel;
    ds_value *value; /* counted: the one that stands for it */
    ds_tensor *flat; /* counted: its elements, [numel], once they are known */
} dsi_pickle_storage;

typedef struct dsi_unpickler {
    const char *what; /* in front of messages */
    const uint8_t *p; /* the pickle */
    size_t bytes, at; /* of it; read so far */
    size_t made;      /* bytes of values that calls made */
    int protocol;
    bool objects; /* what is not known becomes an object */
    /* Of a caller that needs little: the names that the pickle may hold, NULL
     * at the end (NULL: all that are known); what its values may take, in bytes
     * (0: no limit); and whether bytes, and arrays of bytes, that are longer
     * than a name stay where the pickle has them, so that the pickle must
     * outlive the values. */
    const char *const *names;
    size_t max_bytes;
    bool in_place;
    bool bomb; /* it asks for much more than it is: no objects then */
    dsi_value_items stack;
    struct {
        DSI_LIST(int)
    } marks;              /* heights of the stack */
    dsi_value_items memo; /* NULL: not yet */
    ds_value *small[256]; /* the ints 0 to 255, counted; NULL: not yet */
    /* lists, dicts and sets that were made: one that holds itself is freed only
     * by being emptied */
    dsi_value_items holders;
    bool failed; /* they are to be emptied */
    struct {
        DSI_LIST(dsi_pickle_storage *)
    } storages; /* of all pickles that were read */
    dsi_map by_key;
    dsi_map unknown; /* names outside of the table -> what they are */
} dsi_unpickler;

/* The next pickle at u->p + u->at -> what it holds; NULL with the message.
 * Tensors have no values yet. */
ds_value *dsi_unpickle(dsi_unpickler *u);
void dsi_unpickler_free(dsi_unpickler *u);

/* ---- between the machine and what it knows of Python ------------------------------------------------------ */

typedef struct dsi_pickle_global { /* a name that may be in a pickle */
    const char *name;              /* "torch._utils._rebuild_tensor_v2" */
    /* What a call of it gives, of args, a tuple; NULL with the message. NULL:
     * it cannot be called. */
    ds_value *(*call)(dsi_unpickler *u, const struct dsi_pickle_global *g, const ds_value *args);
    const char *class_name; /* of what the call makes */
    const char *dtype;      /* of a storage's class */
} dsi_pickle_global;

void dsi_pickle_free_unknown(dsi_unpickler *u);
/* The i-th argument of a call; NULL: there are not so many. */
static inline const ds_value *dsi_pickle_arg(const ds_value *args, int i)
{
    return i >= 0 && i < args->items.n ? args->items.at[i] : NULL;
}

/* The name as a value; NULL with the message if it is not known. */
ds_value *dsi_pickle_global_of(dsi_unpickler *u, const char *module, const char *name);
/* What a call of f with these arguments, a tuple, gives; NULL with the message. */
ds_value *dsi_pickle_call(dsi_unpickler *u, const ds_value *f, const ds_value *args);
/* What obj.__setstate__(state) makes of obj, in place. */
bool dsi_pickle_build(dsi_unpickler *u, ds_value *obj, const ds_value *state);
/* The storage that a persistent id names. */
ds_value *dsi_pickle_persistent(dsi_unpickler *u, const ds_value *id);

/* What NumPy's scalars and arrays are made by. */
ds_value *dsi_numpy_dtype(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
ds_value *dsi_numpy_scalar(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
ds_value *dsi_numpy_array(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
ds_value *dsi_numpy_frombuffer(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
bool dsi_numpy_build(dsi_unpickler *u, ds_value *obj, const ds_value *state);

/* Objects of Python's library: pickle_objects.c */
ds_value *dsi_object_tuple(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
ds_value *dsi_object_complex(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
ds_value *dsi_object_decimal(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
ds_value *dsi_object_path(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
ds_value *dsi_object_timedelta(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
ds_value *dsi_object_timezone(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
ds_value *dsi_object_datetime(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args);
/* One of the class of that name, a string, which is not known, made of args; an
 * item for it, as if it were a list; what its __setstate__ would get. */
ds_value *dsi_object_unknown(dsi_unpickler *u, ds_value *name, const ds_value *args);
bool dsi_object_append(dsi_unpickler *u, ds_value *object, ds_value *item);
bool dsi_object_build(dsi_unpickler *u, ds_value *object, const ds_value *state);

/* "what: pickle, byte 123: ..."; always false. */
bool dsi_unpickle_wrong(const dsi_unpickler *u, const char *format, ...) DS_PRINTF(2, 3);
/* The same for functions that return a value: NULL. */
#define dsi_unpickle_refuse(...) (dsi_unpickle_wrong(__VA_ARGS__), NULL)
/* A call is about to make so many bytes: a small pickle that asks for much more
 * than itself is refused. */
bool dsi_unpickle_reserve(dsi_unpickler *u, size_t bytes);
#define DSI_PAIR_BYTES \
    ((size_t)64) /* of a key with its value, about: the pair, its place, a key that is made */

#endif
