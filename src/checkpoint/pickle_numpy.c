/* checkpoint/pickle_numpy.c: NumPy's scalars and arrays in a pickle.
 *
 *     dtype("f8", False, True), state (3, "<", None, ...)                     the byte order
 *     scalar(dtype, b"...")                                                   a number
 *     _reconstruct(ndarray, (0,), b"b"), state (1, shape, dtype, fortran, b"...")
 *     _frombuffer(b"...", dtype, shape, "C")
 *
 * A scalar becomes a number, an array a tensor of its own.
 * SPDX-License-Identifier: MIT */
#include "base/half.h"
#include "base/mem.h"
#include "pickle.h"

#include <stdio.h>
#include <string.h>

typedef struct Type {
    const char *code; /* NumPy's */
    ds_dtype dtype;
    const char *name;
} Type;

/* "<f8" -> its row; NULL with the message. */
static const Type *type_of(dsi_unpickler *u, const ds_value *v, bool *swapped)
{
    static const Type types[] = {
        {"f4", DS_F32, "float32"}, {"f8", DS_F64, "float64"}, {"f2", DS_F16, "float16"},
        {"i8", DS_I64, "int64"},   {"i4", DS_I32, "int32"},   {"i2", DS_I16, "int16"},
        {"i1", DS_I8, "int8"},     {"u1", DS_U8, "uint8"},    {"b1", DS_BOOL, "bool"}};
    if (!v || v->kind != DS_VALUE_NAME || strcmp(ds_value_class(v), "numpy.dtype") != 0) {
        dsi_unpickle_wrong(u, "a NumPy value without its dtype");
        return NULL;
    }
    const char *code = v->text.s + (v->text.n > 2);
    *swapped = v->text.s[0] == '>';
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(code, types[i].code)) return &types[i];
    dsi_unpickle_wrong(u, "NumPy's dtype %.20s: f2 f4 f8 i1 i2 i4 i8 u1 b1 are read", v->text.s);
    return NULL;
}

ds_value *dsi_numpy_dtype(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args)
{
    const ds_value *code = args->items.n ? args->items.at[0] : NULL;
    if (!code || code->kind != DS_VALUE_STRING || code->text.n > 16) {
        dsi_unpickle_wrong(u, "%s of something else than a short name", g->name);
        return NULL;
    }
    ds_value *v = dsi_value_text(DS_VALUE_NAME, code->text.s, code->text.n);
    v->class_name = g->class_name;
    return v;
}

/* "f8" with "<" becomes "<f8"; the byte order "|" is that of single bytes. */
static bool build_dtype(dsi_unpickler *u, ds_value *dtype, const ds_value *state)
{
    const ds_value *order = state->items.n > 1 ? state->items.at[1] : NULL;
    if (!order || order->kind != DS_VALUE_STRING || order->text.n != 1)
        return dsi_unpickle_wrong(u, "a NumPy dtype without byte order");
    if (dtype->text.n > 2) return true; /* it is said already */
    char text[8];
    int n = snprintf(text, sizeof text, "%s%s", order->text.s, dtype->text.s);
    dsi_free(dtype->text.s);
    dtype->text.s = dsi_strdup(text);
    dtype->text.n = (size_t)n;
    return true;
}

/* n elements, turned around if they come with their highest byte first. */
static void put_elements(void *to, const char *from, int64_t n, size_t size, bool swapped)
{
    unsigned char *p = to;
    if (n) memcpy(p, from, (size_t)n * size);
    for (int64_t i = 0; swapped && i < n; i++, p += size)
        for (size_t k = 0; k < size / 2; k++) {
            unsigned char c = p[k];
            p[k] = p[size - 1 - k];
            p[size - 1 - k] = c;
        }
}

ds_value *dsi_numpy_scalar(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args)
{
    bool swapped = false;
    const Type *t = type_of(u, args->items.n ? args->items.at[0] : NULL, &swapped);
    const ds_value *bytes = args->items.n > 1 ? args->items.at[1] : NULL;
    if (!t) return NULL;
    size_t size = ds_dtype_size(t->dtype);
    if (!bytes || bytes->kind != DS_VALUE_BYTES || bytes->text.n != size) {
        dsi_unpickle_wrong(u, "%s: a %s has not %zu bytes", g->name, t->name, size);
        return NULL;
    }
    uint64_t room = 0;
    put_elements(&room, bytes->text.s, 1, size, swapped);
    int shift = 64 - 8 * (int)size; /* for the sign */
    float f;
    double d;
    memcpy(&f, &room, sizeof f);
    memcpy(&d, &room, sizeof d);
    ds_value *v = t->dtype == DS_F32    ? ds_value_float(f)
                  : t->dtype == DS_F64  ? ds_value_float(d)
                  : t->dtype == DS_F16  ? ds_value_float(dsi_f16_to_f32((uint16_t)room))
                  : t->dtype == DS_BOOL ? ds_value_bool(room != 0)
                  : t->dtype == DS_U8   ? ds_value_int((int64_t)room)
                                        : ds_value_int((int64_t)(room << shift) >> shift);
    v->class_name = t->name;
    return v;
}

/* An array that waits for its state: an empty name. */
ds_value *dsi_numpy_array(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args)
{
    (void)u;
    (void)args;
    ds_value *v = dsi_value_text(DS_VALUE_NAME, NULL, 0);
    v->class_name = g->class_name;
    return v;
}

/* Sizes as a shape, and how many elements they are; false if they are none. */
static bool shape_of(const ds_value *v, ds_dims *shape, int64_t *n)
{
    if (v->kind != DS_VALUE_TUPLE || v->items.n > DS_MAX_DIMS) return false;
    shape->n = v->items.n;
    *n = 1;
    for (int i = 0; i < shape->n; i++) {
        const ds_value *d = v->items.at[i];
        if (d->kind != DS_VALUE_INT || d->i < 0 || __builtin_mul_overflow(*n, d->i, n))
            return false;
        shape->d[i] = d->i;
    }
    return true;
}

/* The array of these bytes as a counted tensor; NULL with the message. */
static ds_tensor *array_of(dsi_unpickler *u, const ds_value *sizes, const ds_value *dtype,
                           bool fortran, const ds_value *bytes)
{
    bool swapped = false;
    int64_t n = 0;
    ds_dims shape = {0};
    if (!shape_of(sizes, &shape, &n))
        return dsi_unpickle_wrong(u, "an array of NumPy whose shape is none"), NULL;
    const Type *t = type_of(u, dtype, &swapped);
    if (!t) return NULL;
    size_t size = ds_dtype_size(t->dtype);
    if (bytes->kind != DS_VALUE_BYTES || bytes->text.n / size != (uint64_t)n ||
        bytes->text.n % size)
        return dsi_unpickle_wrong(u, "an array of NumPy has other data than its shape says"), NULL;
    if (!dsi_unpickle_charge(u, bytes->text.n)) return NULL;
    for (size_t i = 0; t->dtype == DS_BOOL && i < bytes->text.n; i++)
        if ((unsigned char)bytes->text.s[i] > 1)
            return dsi_unpickle_wrong(u, "a bool is neither 0 nor 1"), NULL;

    ds_scope *scope = ds_scope_open();
    ds_tensor *x = dsi_new_on(dsi_device_get((ds_device){DS_CPU, 0}), t->dtype, ds_shape(n));
    if (x) put_elements(ds_data_mut(x), bytes->text.s, n, size, swapped);
    int64_t stride[DS_MAX_DIMS] = {0}, step = 1;
    dsi_row_major(shape, stride);
    for (int i = 0; fortran && i < shape.n; i++) {
        stride[i] = step;
        step *= shape.d[i];
    }
    x = dsi_ref(dsi_view_of(x, shape, stride, 0));
    ds_scope_close(scope);
    return x;
}

/* (version, shape, dtype, whether in Fortran's order, bytes) */
static bool build_array(dsi_unpickler *u, ds_value *array, const ds_value *state)
{
    if (array->kind != DS_VALUE_NAME || state->items.n != 5 ||
        state->items.at[3]->kind != DS_VALUE_BOOL)
        return dsi_unpickle_wrong(u, "an array of NumPy whose state is not that of one");
    ds_value *const *at = state->items.at;
    ds_tensor *x = array_of(u, at[1], at[2], at[3]->b, at[4]);
    if (!x) return false;
    dsi_free(array->text.s);
    array->kind = DS_VALUE_TENSOR;
    memset(&array->tensor, 0, sizeof array->tensor);
    array->tensor.x = x;
    return true;
}

/* _frombuffer(bytes, dtype, shape, "C" or "F"): of protocol 5 */
ds_value *dsi_numpy_frombuffer(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args)
{
    ds_value *const *at = args->items.at;
    if (args->items.n != 4 || at[3]->kind != DS_VALUE_STRING)
        return dsi_unpickle_wrong(u, "%s has other arguments than NumPy writes", g->name), NULL;
    ds_tensor *x = array_of(u, at[2], at[1], !strcmp(at[3]->text.s, "F"), at[0]);
    if (!x) return NULL;
    ds_value *v = dsi_value_new(DS_VALUE_TENSOR);
    v->class_name = g->class_name;
    v->tensor.x = x;
    return v;
}

bool dsi_numpy_build(dsi_unpickler *u, ds_value *obj, const ds_value *state)
{
    if (state->kind != DS_VALUE_TUPLE)
        return dsi_unpickle_wrong(u, "a NumPy value whose state is no tuple");
    return obj->kind == DS_VALUE_NAME && !strcmp(ds_value_class(obj), "numpy.dtype")
               ? build_dtype(u, obj, state)
               : build_array(u, obj, state);
}
