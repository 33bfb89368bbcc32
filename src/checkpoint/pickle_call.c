/* checkpoint/pickle_call.c: the names of Python that a pickle may contain, and
 * what calls of them make: Note [Pickles].
 *
 * The table has the names that torch.load(weights_only=True) allows for plain
 * tensors, NumPy's scalars and arrays, argparse.Namespace, and the few classes
 * that DeepSpeed puts into its checkpoints. All of them become plain values: an
 * object a dict of its attributes, an enumeration its number.
 * SPDX-License-Identifier: MIT */
#include "pickle.h"

#include <inttypes.h>
#include <string.h>

typedef dsi_pickle_global Global;

/* ---- arguments --------------------------------------------------------------------------------------------- */

static bool is_kind(const ds_value *v, int kind) { return v && v->kind == kind; }

static ds_value *refuse_call_args(dsi_unpickler *u, const Global *g)
{
    return dsi_unpickle_refuse(u, "%s has other arguments than torch.save writes", g->name);
}

bool dsi_pickle_dims(const ds_value *v, ds_dims *out)
{
    if (!is_kind(v, DS_VALUE_TUPLE) || v->items.n > DS_MAX_DIMS) return false;
    out->n = v->items.n;
    for (int i = 0; i < out->n; i++) {
        const ds_value *d = v->items.at[i];
        if (d->kind != DS_VALUE_INT) return false;
        out->d[i] = d->i;
    }
    return true;
}

/* ---- plain values -------------------------------------------------------------------------------------------- */

static bool dict_put_pair(ds_value *dict, ds_value *key, ds_value *item)
{
    return dsi_value_put(dict, dsi_value_ref(key), dsi_value_ref(item)) == DS_OK;
}

static bool dict_put_all(dsi_unpickler *u, const Global *g, ds_value *dict, const ds_value *from)
{
    bool list = from->kind == DS_VALUE_LIST;
    int n = list ? from->items.n : from->dict->n;
    if (!dsi_unpickle_reserve(u, (size_t)n * sizeof(dsi_value_pair))) return false;
    for (int i = 0; i < n; i++) {
        ds_value *pair = list ? from->items.at[i] : NULL;
        bool two = !list || ((pair->kind == DS_VALUE_LIST || pair->kind == DS_VALUE_TUPLE) &&
                             pair->items.n == 2);
        bool ok = two &&
                  (list ? dict_put_pair(dict, pair->items.at[0], pair->items.at[1])
                        : dict_put_pair(dict, from->dict->at[i].key, from->dict->at[i].value));
        if (!ok) return refuse_call_args(u, g), false;
    }
    return true;
}

/* dict(), OrderedDict(), also of a list of pairs; Counter({...});
 * defaultdict(list), whose factory is not kept. */
static ds_value *make_dict(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    const ds_value *from = dsi_pickle_arg(args, args->items.n - 1);
    bool some = is_kind(from, DS_VALUE_LIST) || is_kind(from, DS_VALUE_DICT);
    if (from && !some && from->kind != DSI_VALUE_GLOBAL && from->kind != DS_VALUE_NONE)
        return refuse_call_args(u, g);
    ds_value *dict = ds_value_dict();
    if (!some || dict_put_all(u, g, dict, from)) return dict;
    ds_value_free(dict);
    return NULL;
}

/* Returns a container of `kind` with the items of the first argument, which it
 * shares; without an argument it is empty. */
static ds_value *copy_items(dsi_unpickler *u, const Global *g, const ds_value *args, int kind)
{
    const ds_value *from = dsi_pickle_arg(args, 0);
    bool known = !from || from->kind == DS_VALUE_LIST || from->kind == DS_VALUE_TUPLE ||
                 from->kind == DS_VALUE_SET;
    if (!known) return refuse_call_args(u, g);
    if (from && !dsi_unpickle_reserve(u, (size_t)from->items.n * sizeof from)) return NULL;
    ds_value *v = dsi_value_new(kind);
    for (int i = 0; from && i < from->items.n; i++)
        dsi_list_add(&v->items, dsi_value_ref(from->items.at[i]));
    return v;
}

static ds_value *make_set(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    return copy_items(u, g, args, DS_VALUE_SET);
}

static ds_value *make_deque(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    return copy_items(u, g, args, DS_VALUE_LIST);
}

static ds_value *make_size(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    return copy_items(u, g, args, DS_VALUE_TUPLE);
}

/* _codecs.encode("text of characters below 256", "latin1"), as protocol 2
 * writes bytes, or bytearray of bytes. In UTF-8 such a character is one byte,
 * or two of which the first is 0xc2 or 0xc3. */
static ds_value *make_bytes(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    const ds_value *text = dsi_pickle_arg(args, 0), *codec = dsi_pickle_arg(args, 1);
    bool latin = codec && codec->kind == DS_VALUE_STRING &&
                 (!strcmp(codec->text.s, "latin1") || !strcmp(codec->text.s, "latin-1"));
    bool plain = is_kind(text, DS_VALUE_BYTES) && !codec;
    if (!text) return dsi_value_text(DS_VALUE_BYTES, NULL, 0); /* bytes(), bytearray() */
    if (!plain && !(text->kind == DS_VALUE_STRING && latin)) return refuse_call_args(u, g);
    if (!dsi_unpickle_reserve(u, text->text.n)) return NULL;
    ds_value *v = dsi_value_text(DS_VALUE_BYTES, text->text.s, text->text.n);
    if (plain) return v;
    size_t n = 0;
    for (size_t i = 0; i < text->text.n; i++) {
        unsigned char c = (unsigned char)text->text.s[i];
        if (c > 0xc3) {
            ds_value_free(v);
            return refuse_call_args(u, g);
        }
        if (c >= 0xc0) c = (unsigned char)(c << 6 | (text->text.s[++i] & 0x3f));
        v->text.s[n++] = (char)c;
    }
    v->text.s[n] = 0;
    v->text.n = n;
    return v;
}

/* torch.device("cuda", 0) -> the name "cuda:0" */
static ds_value *make_device(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    const ds_value *kind = dsi_pickle_arg(args, 0), *index = dsi_pickle_arg(args, 1);
    if (!is_kind(kind, DS_VALUE_STRING) || (index && index->kind != DS_VALUE_INT))
        return refuse_call_args(u, g);
    if (!dsi_unpickle_reserve(u, kind->text.n)) return NULL;
    dsi_text t = dsi_text_of("%s", kind->text.s);
    if (index) dsi_text_add(&t, ":%" PRId64, index->i);
    ds_value *v = dsi_value_text(DS_VALUE_STRING, t.s, t.n);
    dsi_text_free(&t);
    return v;
}

static ds_value *make_named(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    const ds_value *name = dsi_pickle_arg(args, 0);
    if (!is_kind(name, DS_VALUE_STRING) || args->items.n != 1) return refuse_call_args(u, g);
    if (!dsi_unpickle_reserve(u, name->text.n)) return NULL;
    return dsi_value_text(DS_VALUE_NAME, name->text.s, name->text.n);
}

static ds_value *make_number(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    const ds_value *number = dsi_pickle_arg(args, 0);
    bool good = is_kind(number, DS_VALUE_INT) && args->items.n == 1;
    return good ? ds_value_int(number->i) : refuse_call_args(u, g);
}

static ds_value *make_object(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    return args->items.n ? refuse_call_args(u, g) : ds_value_dict();
}

/* ---- tensors ------------------------------------------------------------------------------------------------- */

/* Whether a tensor's metadata, {"neg": True}, say that its elements are those
 * of the storage with the other sign: torch's x._neg_view(), z.conj().imag. */
static bool is_negative_view(const ds_value *metadata)
{
    const ds_value *neg = is_kind(metadata, DS_VALUE_DICT) ? ds_value_get(metadata, "neg") : NULL;
    return is_kind(neg, DS_VALUE_BOOL) && neg->b;
}

/* _rebuild_tensor(storage, offset, size, stride); _v2(..., requires_grad,
 * hooks, metadata); _v3(..., requires_grad, hooks, dtype, metadata) */
static ds_value *make_tensor(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    const ds_value *storage = dsi_pickle_arg(args, 0), *offset = dsi_pickle_arg(args, 1),
                   *flag = dsi_pickle_arg(args, 4);
    bool v3 = strstr(g->name, "_v3") != NULL;
    const ds_value *dtype = v3 ? dsi_pickle_arg(args, 6) : NULL;
    dsi_view_spec r = {0};
    ds_dims stride = {0};
    if (!is_kind(storage, DSI_VALUE_STORAGE) || !is_kind(offset, DS_VALUE_INT) ||
        !dsi_pickle_dims(dsi_pickle_arg(args, 2), &r.shape) ||
        !dsi_pickle_dims(dsi_pickle_arg(args, 3), &stride) || stride.n != r.shape.n ||
        (flag && flag->kind != DS_VALUE_BOOL) || (v3 && !is_kind(dtype, DS_VALUE_NAME))) {
        const ds_value *size = dsi_pickle_arg(args, 2);
        if (is_kind(size, DS_VALUE_TUPLE) && size->items.n > DS_MAX_DIMS)
            return dsi_unpickle_refuse(u, "a tensor of %d dimensions: at most %d work",
                                       size->items.n, DS_MAX_DIMS);
        return refuse_call_args(u, g);
    }
    if (is_negative_view(dsi_pickle_arg(args, v3 ? 7 : 6)))
        return dsi_unpickle_refuse(u, "a tensor whose elements are negated when they are read: "
                                      "save x.resolve_neg() in Python");
    r.storage = dsi_value_ref((ds_value *)(uintptr_t)storage);
    r.offset = offset->i;
    memcpy(r.stride, stride.d, sizeof r.stride);
    ds_value *v = dsi_value_new(DS_VALUE_TENSOR);
    v->tensor.view = dsi_alloc(sizeof r);
    *v->tensor.view = r;
    v->tensor.view->dtype = v3 ? dtype->class_name : NULL;
    v->requires_grad = flag && flag->b;
    return v;
}

/* _rebuild_parameter(data, requires_grad, hooks), ..._with_state(..., state),
 * Parameter(data, requires_grad): a second value for the same view. */
static ds_value *make_parameter(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    const ds_value *data = dsi_pickle_arg(args, 0), *flag = dsi_pickle_arg(args, 1);
    if (!is_kind(data, DS_VALUE_TENSOR) || (flag && flag->kind != DS_VALUE_BOOL))
        return refuse_call_args(u, g);
    if (!dsi_unpickle_reserve(u, sizeof *data + sizeof *data->tensor.view)) return NULL;
    ds_value *v = dsi_value_new(DS_VALUE_TENSOR);
    v->requires_grad = !flag || flag->b;
    v->tensor.x = dsi_ref(data->tensor.x);
    if (data->tensor.view) {
        v->tensor.view = dsi_alloc(sizeof *v->tensor.view);
        *v->tensor.view = *data->tensor.view;
        dsi_value_ref(v->tensor.view->storage);
    }
    return v;
}

/* The result of a call, of the class that the table says. */
static ds_value *global_call(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    ds_value *v = g->call(u, g, args);
    if (v && g->class_name) v->class_name = g->class_name;
    return v;
}

/* _rebuild_from_type_v2(function, class, arguments, state): the tensor alone. */
static ds_value *make_from_type(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    const ds_value *f = dsi_pickle_arg(args, 0), *of = dsi_pickle_arg(args, 1),
                   *with = dsi_pickle_arg(args, 2);
    bool plain = is_kind(f, DSI_VALUE_GLOBAL) && is_kind(of, DSI_VALUE_GLOBAL) &&
                 is_kind(with, DS_VALUE_TUPLE) &&
                 (f->global->call == make_tensor || f->global->call == make_parameter);
    return plain ? global_call(u, f->global, with) : refuse_call_args(u, g);
}

/* ---- the table ----------------------------------------------------------------------------------------------- */

#define STORAGE(name, type) \
    { \
        "torch." name "Storage", NULL, NULL, "torch." type \
    }
#define DTYPE(name) \
    { \
        "torch." name, NULL, "dtype", NULL \
    }

#define PATHS(name) \
    {"pathlib." name, dsi_object_path, name, NULL}, \
    { \
        "pathlib._local." name, dsi_object_path, name, NULL /* Python 3.13's */ \
    }

/* The table of names: a name, what a call makes, the class of the result, and
 * for storages the dtype. NULL as call: the name is only an argument of
 * others. */
static const Global known[] = {
    {"torch._utils._rebuild_tensor_v2", make_tensor, NULL, NULL},
    {"torch._utils._rebuild_tensor", make_tensor, NULL, NULL},
    {"torch._utils._rebuild_tensor_v3", make_tensor, NULL, NULL},
    {"torch._utils._rebuild_parameter", make_parameter, "Parameter", NULL},
    {"torch._utils._rebuild_parameter_with_state", make_parameter, "Parameter", NULL},
    {"torch.nn.parameter.Parameter", make_parameter, "Parameter", NULL},
    {"torch._tensor._rebuild_from_type_v2", make_from_type, NULL, NULL},
    {"torch.Tensor", NULL, NULL, NULL},
    {"torch.Size", make_size, "Size", NULL},
    {"torch.device", make_device, "device", NULL},
    {"torch.serialization._get_layout", make_named, "layout", NULL},
    {"collections.OrderedDict", make_dict, "OrderedDict", NULL},
    {"collections.Counter", make_dict, "Counter", NULL},
    {"collections.defaultdict", make_dict, "defaultdict", NULL},
    {"builtins.dict", make_dict, NULL, NULL},
    {"builtins.list", NULL, NULL, NULL}, /* factories of defaultdict */
    {"builtins.int", NULL, NULL, NULL},
    {"builtins.float", NULL, NULL, NULL},
    {"builtins.set", make_set, NULL, NULL},
    {"builtins.frozenset", make_set, "frozenset", NULL},
    {"builtins.bytes", make_bytes, NULL, NULL},
    {"builtins.bytearray", make_bytes, "bytearray", NULL},
    {"_codecs.encode", make_bytes, NULL, NULL},
    {"argparse.Namespace", make_object, "Namespace", NULL},
    {"types.SimpleNamespace", make_object, "SimpleNamespace", NULL},
    {"builtins.complex", dsi_object_complex, "complex", NULL},
    {"builtins.xrange", dsi_object_tuple, "range", NULL}, /* Python 2's, which protocol 2 names */
    {"builtins.range", dsi_object_tuple, "range", NULL},
    {"builtins.slice", dsi_object_tuple, "slice", NULL},
    {"collections.deque", make_deque, "deque", NULL},
    {"datetime.date", dsi_object_datetime, "date", NULL},
    {"datetime.time", dsi_object_datetime, "time", NULL},
    {"datetime.datetime", dsi_object_datetime, "datetime", NULL},
    {"datetime.timedelta", dsi_object_timedelta, "timedelta", NULL},
    {"datetime.timezone", dsi_object_timezone, "timezone", NULL},
    {"decimal.Decimal", dsi_object_decimal, "Decimal", NULL},
    PATHS("PosixPath"),
    PATHS("PurePosixPath"),
    PATHS("WindowsPath"),
    PATHS("PureWindowsPath"),

    {"numpy.dtype", dsi_numpy_dtype, "numpy.dtype", NULL},
    {"numpy.ndarray", NULL, NULL, NULL},
    {"numpy._core.multiarray.scalar", dsi_numpy_scalar, NULL, NULL},
    {"numpy.core.multiarray.scalar", dsi_numpy_scalar, NULL, NULL},
    {"numpy._core.multiarray._reconstruct", dsi_numpy_array, "ndarray", NULL},
    {"numpy.core.multiarray._reconstruct", dsi_numpy_array, "ndarray", NULL},
    {"numpy._core.numeric._frombuffer", dsi_numpy_frombuffer, "ndarray", NULL},
    {"numpy.core.numeric._frombuffer", dsi_numpy_frombuffer, "ndarray", NULL},

    {"deepspeed.runtime.fp16.loss_scaler.LossScaler", make_object, "LossScaler", NULL},
    {"deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler", make_object, "DynamicLossScaler",
     NULL},
    {"deepspeed.utils.tensor_fragment.fragment_address", make_object, "fragment_address", NULL},
    {"deepspeed.runtime.zero.config.ZeroStageEnum", make_number, "ZeroStageEnum", NULL},

    STORAGE("Float", "float32"),
    STORAGE("Double", "float64"),
    STORAGE("Half", "float16"),
    STORAGE("BFloat16", "bfloat16"),
    STORAGE("Long", "int64"),
    STORAGE("Int", "int32"),
    STORAGE("Short", "int16"),
    STORAGE("Char", "int8"),
    STORAGE("Byte", "uint8"),
    STORAGE("Bool", "bool"),
    STORAGE("ComplexFloat", "complex64"),
    STORAGE("ComplexDouble", "complex128"),
    STORAGE("QInt8", "qint8"),
    STORAGE("QUInt8", "quint8"),
    STORAGE("QInt32", "qint32"),
    {"torch.storage.UntypedStorage", NULL, NULL, ""},

    DTYPE("float32"),
    DTYPE("float64"),
    DTYPE("float16"),
    DTYPE("bfloat16"),
    DTYPE("int64"),
    DTYPE("int32"),
    DTYPE("int16"),
    DTYPE("int8"),
    DTYPE("uint8"),
    DTYPE("bool"),
    DTYPE("uint16"),
    DTYPE("uint32"),
    DTYPE("uint64"),
    DTYPE("complex32"),
    DTYPE("complex64"),
    DTYPE("complex128"),
    DTYPE("float8_e4m3fn"),
    DTYPE("float8_e4m3fnuz"),
    DTYPE("float8_e5m2"),
    DTYPE("float8_e5m2fnuz"),
    DTYPE("float8_e8m0fnu"),
    DTYPE("float4_e2m1fn_x2"),
    DTYPE("qint8"),
    DTYPE("quint8"),
    DTYPE("qint32"),
};

/* Fails with a message that names the class and a remedy. Returns NULL. */
static void *refuse_global(const dsi_unpickler *u, const char *name)
{
    const char *rest = ".objects = true of ds_value_load (ds_show --objects) reads the rest of it";
    if (!strncmp(name, "torch.nn.", 9) || strstr(name, "__main__.") == name)
        return dsi_unpickle_refuse(u,
                                   "it holds an object of class %s, which only Python can make: "
                                   "save the module's state_dict() instead of the module; %s",
                                   name, rest);
    if (!strncmp(name, "torch.", 6))
        return dsi_unpickle_refuse(u,
                                   "it wants %s, a kind of tensor that is not known here: save "
                                   "plain tensors (dense, not quantized); %s",
                                   name, rest);
    return dsi_unpickle_refuse(u,
                               "it wants Python's %s, which is not on the list of what is read; "
                               "nothing was run. %s; or load it in Python and save what you "
                               "need of it as tensors, numbers, strings, lists and dicts",
                               name, rest);
}

static bool global_is_allowed(dsi_unpickler *u, const char *name)
{
    if (!u->names) return true;
    for (int i = 0; u->names[i]; i++)
        if (!strcmp(u->names[i], name)) return true;
    return dsi_unpickle_wrong(u, "it wants Python's %s, which is not read here; nothing was run",
                              name);
}

static const Global *global_find(const char *name)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, name)) return &known[i];
    return NULL;
}

/* A name outside of the table, kept in u->unknown until the machine is
 * freed. */
typedef struct Unknown {
    Global global; /* is first */
    ds_value *name;
} Unknown;

static ds_value *make_unknown(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    return dsi_object_unknown(u, ((const Unknown *)g)->name, args);
}

/* Returns an entry for an unknown name, whose calls make objects; NULL with the
 * message unless u->objects. */
static const Global *global_unknown(dsi_unpickler *u, const char *name)
{
    Unknown *x = dsi_map_get(&u->unknown, name);
    if (x) return &x->global;
    if (!u->objects) return refuse_global(u, name);
    x = dsi_alloc(sizeof *x);
    x->name = ds_value_string(name);
    x->global = (Global){.name = x->name->text.s, .call = make_unknown};
    dsi_map_set(&u->unknown, name, x);
    return &x->global;
}

void dsi_pickle_free_unknown(dsi_unpickler *u)
{
    for (int i = 0; i < u->unknown.n; i++) {
        Unknown *x = u->unknown.at[i].value;
        ds_value_free(x->name);
        dsi_free(x);
    }
    dsi_map_free(&u->unknown);
}

/* Python 2's module __builtin__ is builtins; a torch.cuda.FloatStorage is read
 * as torch.FloatStorage, into host memory. */
ds_value *dsi_pickle_global_of(dsi_unpickler *u, const char *module, const char *name)
{
    bool python2 = !strcmp(module, "__builtin__"), cuda = !strcmp(module, "torch.cuda");
    bool storage = strlen(name) > 7 && !strcmp(name + strlen(name) - 7, "Storage");
    dsi_text full = dsi_text_of("%.200s.%.200s",
                                python2           ? "builtins"
                                : cuda && storage ? "torch"
                                                  : module,
                                name);
    const Global *found = global_is_allowed(u, full.s) ? global_find(full.s) : NULL;
    if (!found && !u->names) found = global_unknown(u, full.s);
    ds_value *v = NULL;
    if (found && found->class_name && !strcmp(found->class_name, "dtype")) {
        v = dsi_value_text(DS_VALUE_NAME, found->name, strlen(found->name));
        v->class_name = found->name; /* for make_tensor; ds_value_class says "dtype" */
    } else if (found) {
        v = dsi_value_new(DSI_VALUE_GLOBAL);
        v->global = found;
    }
    dsi_text_free(&full);
    return v;
}

/* ---- calls ----------------------------------------------------------------------------------------------------- */

/* If objects are wanted and no limit was exceeded, forgets the failures since
 * `before`: the value that could not be made becomes an object. */
static bool unpickle_forgive(const dsi_unpickler *u, int before)
{
    if (!u->objects || u->bomb) return false;
    dsi_error_forget(before);
    return true;
}

ds_value *dsi_pickle_call(dsi_unpickler *u, const ds_value *f, const ds_value *args)
{
    int before = dsi_error_count();
    if (f->kind == DS_VALUE_OBJECT && u->objects) /* of what a call gave, a function perhaps */
        return dsi_object_unknown(u, f->dict->name, args);
    if (f->kind != DSI_VALUE_GLOBAL)
        return dsi_unpickle_refuse(u, "a call of a value of class %s", ds_value_class(f));
    ds_value *v = f->global->call ? global_call(u, f->global, args) : NULL;
    if (v) return v;
    if (!f->global->call) dsi_unpickle_wrong(u, "%s is called", f->global->name);
    if (!unpickle_forgive(u, before)) return NULL;
    ds_value *name = ds_value_string(f->global->name);
    v = dsi_object_unknown(u, name, args);
    ds_value_free(name);
    return v;
}

/* ---- state ----------------------------------------------------------------------------------------------------- */

/* Adds the attributes in state, a dict or None, to the object's dict. */
static bool object_set_attributes(dsi_unpickler *u, ds_value *obj, const ds_value *state)
{
    if (state->kind != DS_VALUE_NONE && state->kind != DS_VALUE_DICT)
        return dsi_unpickle_wrong(u, "the state of a %s is of class %s", ds_value_class(obj),
                                  ds_value_class(state));
    return dsi_object_build(u, obj, state);
}

static bool build_known(dsi_unpickler *u, ds_value *obj, const ds_value *state)
{
    const char *class_name = ds_value_class(obj);
    if (obj->kind == DS_VALUE_OBJECT) return dsi_object_build(u, obj, state);
    if (!strcmp(class_name, "OrderedDict"))
        return true; /* _metadata of a module's state dict: versions of its layers, not kept */
    if (!strcmp(class_name, "numpy.dtype") || !strcmp(class_name, "ndarray"))
        return dsi_numpy_build(u, obj, state);
    if (obj->kind == DS_VALUE_DICT && obj->class_name) return object_set_attributes(u, obj, state);
    return dsi_unpickle_wrong(u, "a state for a value of class %s", class_name);
}

bool dsi_pickle_build(dsi_unpickler *u, ds_value *obj, const ds_value *state)
{
    int before = dsi_error_count();
    bool waits = obj->kind == DS_VALUE_NAME; /* an array before its state */
    if (build_known(u, obj, state)) return true;
    if (obj->kind == DS_VALUE_TENSOR)
        return unpickle_forgive(u, before); /* what else it has is not kept */
    if ((!waits && obj->kind != DS_VALUE_DICT) || !unpickle_forgive(u, before)) return false;
    dsi_value_make_object(obj, ds_value_class(obj));
    if (waits) dsi_list_add(&u->holders, dsi_value_ref(obj));
    return dsi_object_build(u, obj, state);
}

/* ---- storages ---------------------------------------------------------------------------------------------------- */

/* A storage that was named before: the same value, if dtype and size agree. */
static ds_value *storage_again(dsi_unpickler *u, const dsi_pickle_storage *s, const char *dtype,
                               int64_t numel)
{
    if (s->numel == numel && (s->dtype == dtype || (s->dtype && dtype && !strcmp(s->dtype, dtype))))
        return dsi_value_ref(s->value);
    return dsi_unpickle_refuse(
        u, "storage %.40s is %" PRId64 " elements of %s, and elsewhere %" PRId64 " of %s", s->key,
        s->numel, s->dtype ? s->dtype : "bytes", numel, dtype ? dtype : "bytes");
}

/* id is ("storage", torch.FloatStorage, "0", "cpu", numel). Before PyTorch 1.6
 * it had a sixth item: None, or (key, offset, size) if this storage was a view
 * of a part of another one. The device, "cpu", is ignored. */
ds_value *dsi_pickle_persistent(dsi_unpickler *u, const ds_value *id)
{
    bool tuple = is_kind(id, DS_VALUE_TUPLE) && id->items.n >= 5;
    const ds_value *what = tuple ? dsi_pickle_arg(id, 0) : NULL,
                   *type = tuple ? dsi_pickle_arg(id, 1) : NULL;
    const ds_value *key = tuple ? dsi_pickle_arg(id, 2) : NULL,
                   *numel = tuple ? dsi_pickle_arg(id, 4) : NULL;
    const ds_value *view = tuple ? dsi_pickle_arg(id, 5) : NULL;
    if (!is_kind(what, DS_VALUE_STRING) || strcmp(what->text.s, "storage") != 0 ||
        !is_kind(type, DSI_VALUE_GLOBAL) || !type->global->dtype ||
        !is_kind(key, DS_VALUE_STRING) || !is_kind(numel, DS_VALUE_INT) || numel->i < 0)
        return dsi_unpickle_refuse(u, "a persistent id that does not name a storage%s%.40s",
                                   is_kind(what, DS_VALUE_STRING) ? ": " : "",
                                   is_kind(what, DS_VALUE_STRING) ? what->text.s : "");
    if (view && view->kind != DS_VALUE_NONE)
        return dsi_unpickle_refuse(
            u,
            "storage %.40s is a view of another one, as before PyTorch 0.4: load "
            "the file with a newer PyTorch and save it again",
            key->text.s);
    const char *dtype = *type->global->dtype ? type->global->dtype : NULL;
    const dsi_pickle_storage *s = dsi_map_get(&u->by_key, key->text.s);
    if (s) return storage_again(u, s, dtype, numel->i);
    if (!dsi_unpickle_reserve(u, key->text.n)) return NULL;
    dsi_pickle_storage *made = dsi_alloc(sizeof *made);
    made->key = dsi_strdup(key->text.s);
    made->dtype = dtype;
    made->numel = numel->i;
    made->value = dsi_value_new(DSI_VALUE_STORAGE);
    made->value->storage = made;
    dsi_list_add(&u->storages, made);
    dsi_map_set(&u->by_key, made->key, made);
    return dsi_value_ref(made->value);
}
