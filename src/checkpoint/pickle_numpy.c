/* checkpoint/pickle_numpy.c: NumPy's scalars and arrays in a pickle.
 *
 *     dtype("f8", False, True), state (3, "<", None, ...)                     the byte order
 *     scalar(dtype, b"...")                                                   a number
 *     _reconstruct(ndarray, (0,), b"b"), state (1, shape, dtype, fortran, b"...")
 *     _frombuffer(b"...", dtype, shape, "C")
 *
 * A scalar becomes a number, a string, bytes, or a tuple of real and imaginary
 * part; an array becomes a tensor with its own storage, or in the pickle's
 * memory if it is an array of bytes and the caller asked for that (in_place).
 *
 * A dtype is a DS_VALUE_NAME, "f8", then "<f8" after its state. An array is an
 * empty DS_VALUE_NAME until its state makes it a tensor.
 * SPDX-License-Identifier: MIT */
#include "base/half.h"
#include "pickle.h"

#include <stdio.h>
#include <string.h>

typedef struct Type {
    /* NumPy's code without the byte order. Its digit is the size of an element
     * in NumPy, in bytes. */
    const char *code;
    /* Of our tensor. uint16, 32 and 64, which ds_dtype lacks, become wider
     * signed integers. */
    ds_dtype dtype;
    const char *name;
} Type;

/* The digit of the code. */
static size_t numpy_item_bytes(const Type *t) { return (size_t)(t->code[1] - '0'); }

/* Returns the row of v, a dtype "<f8"; NULL with the message if v is none that
 * is read. *swapped: elements have their highest byte first. */
static const Type *numpy_type_of(dsi_unpickler *u, const ds_value *v, bool *swapped)
{
    static const Type types[] = {
        {"f4", DS_F32, "float32"}, {"f8", DS_F64, "float64"}, {"f2", DS_F16, "float16"},
        {"i8", DS_I64, "int64"},   {"i4", DS_I32, "int32"},   {"i2", DS_I16, "int16"},
        {"i1", DS_I8, "int8"},     {"u1", DS_U8, "uint8"},    {"b1", DS_BOOL, "bool"},
        {"u2", DS_I32, "uint16"},  {"u4", DS_I64, "uint32"},  {"u8", DS_I64, "uint64"}};
    if (!v || v->kind != DS_VALUE_NAME || strcmp(ds_value_class(v), "numpy.dtype") != 0)
        return dsi_unpickle_refuse(u, "a NumPy value without its dtype");
    const char *code = v->text.s + (v->text.n > 2 && strchr("<>|=", v->text.s[0]) != NULL);
    *swapped = v->text.s[0] == '>';
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(code, types[i].code)) return &types[i];
    return dsi_unpickle_refuse(
        u,
        "NumPy's dtype %.20s: f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 b1 are read, of "
        "scalars c8 c16 U S too",
        v->text.s);
}

/* dtype("f8", align, copy): a name; only the code is kept. */
ds_value *dsi_numpy_dtype(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args)
{
    const ds_value *code = args->items.n ? args->items.at[0] : NULL;
    if (!code || code->kind != DS_VALUE_STRING || code->text.n > 16)
        return dsi_unpickle_refuse(u, "%s of something else than a short name", g->name);
    return dsi_value_text(DS_VALUE_NAME, code->text.s, code->text.n);
}

/* state is (3, "<", ...): "f8" becomes "<f8". The byte order of single bytes is
 * "|". */
static bool numpy_build_dtype(dsi_unpickler *u, ds_value *dtype, const ds_value *state)
{
    const ds_value *order = state->items.n > 1 ? state->items.at[1] : NULL;
    if (!order || order->kind != DS_VALUE_STRING || order->text.n != 1)
        return dsi_unpickle_wrong(u, "a NumPy dtype without byte order");
    if (strchr("<>|=", dtype->text.s[0])) return true; /* the code has one */
    char text[24];
    int n = snprintf(text, sizeof text, "%s%s", order->text.s, dtype->text.s);
    dsi_free(dtype->text.s);
    dtype->text.s = dsi_strdup(text);
    dtype->text.n = (size_t)n;
    return true;
}

/* Returns the bits of element i; each element has `size` bytes. */
static uint64_t numpy_bits_at(const char *from, int64_t i, size_t size, bool swapped)
{
    const unsigned char *p = (const unsigned char *)from + (size_t)i * size;
    uint64_t x = 0;
    for (size_t k = 0; k < size; k++) x |= (uint64_t)p[swapped ? size - 1 - k : k] << 8 * k;
    return x;
}

/* Converts n elements of t to our dtype; false if one does not fit into
 * int64. */
static bool numpy_put_elements(void *to, const Type *t, const char *from, int64_t n, bool swapped)
{
    size_t size = numpy_item_bytes(t), room = ds_dtype_size(t->dtype);
    if (room == size && !swapped && (size == 1 || t->code[0] != 'u')) {
        if (n) memcpy(to, from, (size_t)n * size);
        return true;
    }
    for (int64_t i = 0; i < n; i++) {
        uint64_t x = numpy_bits_at(from, i, size, swapped);
        if (t->code[0] == 'u' && x > INT64_MAX) return false;
        memcpy((char *)to + (size_t)i * room, &x, room);
    }
    return true;
}

/* The value of a float of 2, 4 or 8 bytes from its bits. */
static double numpy_real(uint64_t bits, size_t size)
{
    float f;
    double d;
    uint32_t low = (uint32_t)bits;
    memcpy(&f, &low, sizeof f);
    memcpy(&d, &bits, sizeof d);
    return size == 2 ? (double)dsi_f16_to_f32((uint16_t)bits) : size == 4 ? (double)f : d;
}

/* ---- scalars --------------------------------------------------------------------------------------------------- */

/* "<c8": a tuple (real, imaginary) of class complex64; size is that of a
 * part. */
static ds_value *numpy_complex(const char *from, size_t size, bool swapped)
{
    ds_value *v = ds_value_tuple();
    v->class_name = size == 4 ? "complex64" : "complex128";
    for (int i = 0; i < 2; i++)
        dsi_list_add(&v->items,
                     ds_value_float(numpy_real(numpy_bits_at(from, i, size, swapped), size)));
    return v;
}

/* "<U5": five code points of four bytes each, zeros after the last character.
 * Returns the string in UTF-8; NULL with the message. */
static ds_value *numpy_characters(dsi_unpickler *u, const ds_value *bytes, bool swapped)
{
    dsi_text t = {0};
    if (!dsi_unpickle_reserve(u, bytes->text.n)) return NULL;
    for (int64_t i = 0; i < (int64_t)(bytes->text.n / 4); i++) {
        uint64_t c = numpy_bits_at(bytes->text.s, i, 4, swapped);
        if (!c) break;
        if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) {
            dsi_text_free(&t);
            return dsi_unpickle_refuse(u, "a text of NumPy has a character %llx",
                                       (unsigned long long)c);
        }
        char p[4] = {(char)(0xf0 | c >> 18), (char)(0x80 | (c >> 12 & 0x3f)),
                     (char)(0x80 | (c >> 6 & 0x3f)), (char)(0x80 | (c & 0x3f))};
        int n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        if (n == 1) p[3] = (char)c;
        if (n == 2) p[2] = (char)(0xc0 | c >> 6);
        if (n == 3) p[1] = (char)(0xe0 | c >> 12);
        dsi_text_add_bytes(&t, p + 4 - n, (size_t)n);
    }
    ds_value *v = dsi_value_text(DS_VALUE_STRING, t.s, t.n);
    v->class_name = "str_";
    dsi_text_free(&t);
    return v;
}

/* Returns a scalar that is a string, bytes or a complex number; NULL if it is
 * another one, or with the message. */
static ds_value *numpy_special_scalar(dsi_unpickler *u, const ds_value *dtype,
                                      const ds_value *bytes)
{
    bool known = dtype && dtype->kind == DS_VALUE_NAME &&
                 !strcmp(ds_value_class(dtype), "numpy.dtype") && bytes &&
                 bytes->kind == DS_VALUE_BYTES && dtype->text.n > 1;
    if (!known) return NULL;
    bool swapped = dtype->text.s[0] == '>';
    const char *code = dtype->text.s + (strchr("<>|=", dtype->text.s[0]) != NULL);
    if (*code == 'U' && bytes->text.n % 4 == 0) return numpy_characters(u, bytes, swapped);
    if (*code == 'S' && dsi_unpickle_reserve(u, bytes->text.n))
        return dsi_value_text(DS_VALUE_BYTES, bytes->text.s, bytes->text.n);
    if (!strcmp(code, "c8") && bytes->text.n == 8) return numpy_complex(bytes->text.s, 4, swapped);
    if (!strcmp(code, "c16") && bytes->text.n == 16)
        return numpy_complex(bytes->text.s, 8, swapped);
    return NULL;
}

/* Integers are extended by their sign; uint64 from 2^63 on becomes a big
 * int. */
ds_value *dsi_numpy_scalar(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args)
{
    bool swapped = false;
    const ds_value *dtype = args->items.n ? args->items.at[0] : NULL,
                   *bytes = args->items.n > 1 ? args->items.at[1] : NULL;
    ds_value *other = numpy_special_scalar(u, dtype, bytes);
    if (other) return other;
    const Type *t = numpy_type_of(u, dtype, &swapped);
    if (!t) return NULL;
    size_t size = numpy_item_bytes(t);
    if (!bytes || bytes->kind != DS_VALUE_BYTES || bytes->text.n != size)
        return dsi_unpickle_refuse(u, "%s: a %s has not %zu bytes", g->name, t->name, size);
    uint64_t bits = numpy_bits_at(bytes->text.s, 0, size, swapped);
    if (!strcmp(t->code, "u8") && bits > INT64_MAX) {
        char digits[24];
        int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)bits);
        return dsi_value_text(DS_VALUE_BIG_INT, digits, (size_t)n);
    }
    int shift = 64 - 8 * (int)size; /* for the sign */
    ds_value *v = t->code[0] == 'f'   ? ds_value_float(numpy_real(bits, size))
                  : t->code[0] == 'b' ? ds_value_bool(bits != 0)
                  : t->code[0] == 'u' ? ds_value_int((int64_t)bits)
                                      : ds_value_int((int64_t)(bits << shift) >> shift);
    v->class_name = t->name;
    return v;
}

/* ---- arrays ---------------------------------------------------------------------------------------------------- */

/* _reconstruct: an array without its state, an empty name. */
ds_value *dsi_numpy_array(dsi_unpickler *u, const dsi_pickle_global *g, const ds_value *args)
{
    (void)u, (void)g, (void)args;
    return dsi_value_text(DS_VALUE_NAME, NULL, 0);
}

/* The shape of a tuple, and its number of elements. */
static bool numpy_shape(const ds_value *v, ds_dims *shape, int64_t *n)
{
    bool good = dsi_pickle_dims(v, shape);
    *n = 1;
    for (int i = 0; good && i < shape->n; i++)
        good = shape->d[i] >= 0 && !__builtin_mul_overflow(*n, shape->d[i], n);
    return good;
}

/* Returns the array as a tensor, with a count that is the caller's; NULL with
 * the message. In Fortran's order the first dimension has stride 1. */
static ds_tensor *numpy_array_of(dsi_unpickler *u, const ds_value *sizes, const ds_value *dtype,
                                 bool fortran, const ds_value *bytes)
{
    bool swapped = false;
    int64_t n = 0;
    ds_dims shape = {0};
    if (!numpy_shape(sizes, &shape, &n))
        return dsi_unpickle_refuse(u, "an array of NumPy whose shape is none");
    const Type *t = numpy_type_of(u, dtype, &swapped);
    if (!t) return NULL;
    size_t size = numpy_item_bytes(t);
    if (bytes->kind != DS_VALUE_BYTES || bytes->text.n / size != (uint64_t)n ||
        bytes->text.n % size)
        return dsi_unpickle_refuse(u, "an array of NumPy has other data than its shape says");
    bool in_place = bytes->in_place && size == 1;
    if (!dsi_unpickle_reserve(u, in_place ? sizeof(ds_tensor) + sizeof(dsi_storage)
                                          : bytes->text.n / size * ds_dtype_size(t->dtype)))
        return NULL;
    if (t->dtype == DS_BOOL && !dsi_are_bools(bytes->text.s, bytes->text.n))
        return dsi_unpickle_refuse(u, "a bool is neither 0 nor 1");

    ds_scope *scope = ds_scope_open();
    dsi_device *cpu = dsi_device_get((ds_device){DS_CPU, 0});
    dsi_view here = {.p = bytes->text.s, .dtype = t->dtype, .n = 1, .d = {n}, .s = {1}};
    ds_tensor *x = in_place ? dsi_borrow(cpu, here) : dsi_new_on(cpu, t->dtype, ds_shape(n));
    bool fits = x && (in_place || numpy_put_elements(ds_data_mut(x), t, bytes->text.s, n, swapped));
    if (x && !fits)
        dsi_unpickle_wrong(u, "an array of %s has elements from 2^63 on, which there are not",
                           t->name);
    int64_t stride[DS_MAX_DIMS] = {0}, step = 1;
    dsi_row_major(shape, stride);
    for (int i = 0; fortran && i < shape.n; i++) {
        stride[i] = step;
        step *= shape.d[i];
    }
    x = fits ? dsi_ref(dsi_view_of(x, shape, stride, 0)) : NULL;
    ds_scope_close(scope);
    return x;
}

/* state is (version, shape, dtype, is it in Fortran's order, bytes). */
static bool numpy_build_array(dsi_unpickler *u, ds_value *array, const ds_value *state)
{
    if (array->kind != DS_VALUE_NAME || state->items.n != 5 ||
        state->items.at[3]->kind != DS_VALUE_BOOL)
        return dsi_unpickle_wrong(u, "an array of NumPy whose state is not that of one");
    ds_value *const *at = state->items.at;
    ds_tensor *x = numpy_array_of(u, at[1], at[2], at[3]->b, at[4]);
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
        return dsi_unpickle_refuse(u, "%s has other arguments than NumPy writes", g->name);
    ds_tensor *x = numpy_array_of(u, at[2], at[1], !strcmp(at[3]->text.s, "F"), at[0]);
    if (!x) return NULL;
    ds_value *v = dsi_value_new(DS_VALUE_TENSOR);
    v->tensor.x = x;
    return v;
}

/* BUILD of a dtype or of an array. */
bool dsi_numpy_build(dsi_unpickler *u, ds_value *obj, const ds_value *state)
{
    if (state->kind != DS_VALUE_TUPLE)
        return dsi_unpickle_wrong(u, "a NumPy value whose state is no tuple");
    return obj->kind == DS_VALUE_NAME && !strcmp(ds_value_class(obj), "numpy.dtype")
               ? numpy_build_dtype(u, obj, state)
               : numpy_build_array(u, obj, state);
}
