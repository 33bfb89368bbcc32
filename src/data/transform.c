/* data/transform.c: data sets over a data set that change its field 0, an image
 * [C,H,W], or its dtypes.
 *
 * The inner data set writes into the memory that the outer one was given, and
 * the outer one works in place. Crop and cast, whose input is larger or of
 * another dtype, allocate memory for each sample. A byte has 256 values, so any
 * elementwise function of bytes is a table of 256 floats per channel: to_float
 * makes the table, and a normalize over it changes the table and adds no pass
 * over the data.
 *
 * Invariants: a transform owns its inner data set, and its struct begins with
 * the pointer to it. get runs on several threads and writes only to the fields
 * that it is given. epoch changes only while no get runs.
 *
 * Random transforms draw the numbers of chance.h.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/half.h"
#include "base/mem.h"
#include "chance.h"
#include "resident.h"
#include "resize.h"
#include "tensor/tensor.h"

#include <deepspeed/data.h>

#include <stdlib.h>
#include <string.h>

/* The channels of a shape [C,H,W]; other shapes count as one channel. */
static int64_t image_channels(ds_dims shape) { return shape.n == 3 ? shape.d[0] : 1; }

/* Frees d and returns NULL: a constructor takes d also when it fails. */
static ds_dataset *refuse_dataset(ds_dataset *d)
{
    ds_dataset_free(d);
    return NULL;
}

/* The same with the reason, which may be in words of d. */
#define REFUSE(d, ...) (ds_fail(DS_EINVAL, __VA_ARGS__), refuse_dataset(d))

/* d is NULL: keeps the message of the constructor that failed, or sets one. */
static ds_dataset *refuse_null_dataset(const char *what)
{
    if (!ds_error()) ds_fail(DS_EINVAL, "%s: the data set is NULL", what);
    return NULL;
}

/* The beginning of every transform's struct, and functions that need only
 * it. */
typedef struct inner {
    ds_dataset *data;
} inner;

static int64_t inner_len(void *self) { return ds_dataset_len(((inner *)self)->data); }
static void inner_free(void *self) { ds_dataset_free(((inner *)self)->data); }

static void inner_epoch(void *self, int64_t epoch)
{
    ds_dataset_set_epoch(((inner *)self)->data, epoch);
}

/* Returns a data set with *self, a struct of `type`, and with `image` as field
 * 0; NULL with the message. Takes what *self owns, also when it fails. */
static ds_dataset *wrap_dataset(const ds_dataset_type *type, void *self, ds_field image,
                                void (*on_epoch)(void *self, int64_t epoch))
{
    const ds_dataset *d = ((inner *)self)->data;
    ds_field field[DS_MAX_FIELDS];
    int n = ds_dataset_fields(d);
    for (int f = 0; f < n; f++) field[f] = *ds_dataset_field(d, f);
    field[0] = image;
    ds_dataset *t = ds_dataset_new(type, n, field);
    if (!t) {
        type->free(self);
        return NULL;
    }
    memcpy(ds_dataset_self(t), self, type->self_size);
    ds_dataset_on_epoch(t, on_epoch);
    return t;
}

/* ---- bytes to floats ------------------------------------------------------------------------------ */

typedef struct to_float {
    ds_dataset *data;
    int64_t channels, plane; /* elements of a channel */
    float (*table)[256];     /* [channels] */
} to_float;

/* Converts n bytes, which are at the end of the memory of x [n], to the floats
 * of x, first to last. Byte i is byte 3 n + i of that memory, and float i ends
 * at byte 4 i + 3 <= 3 n + i: no byte is overwritten before it was read. */
static void table_normalize(float *x, const uint8_t *bytes, int64_t n, const float *table)
{
    for (int64_t i = 0; i < n; i++) x[i] = table[bytes[i]];
}

/* The inner data set writes the bytes of the image to the end of the floats'
 * memory. */
static ds_status to_float_get(void *self, int64_t i, void **field)
{
    to_float *t = self;
    float *x = field[0];
    int64_t n = t->channels * t->plane;
    uint8_t *bytes = (uint8_t *)(x + n) - n;
    void *within[DS_MAX_FIELDS];
    memcpy(within, field, (size_t)ds_dataset_fields(t->data) * sizeof *within);
    within[0] = bytes;
    ds_status status = ds_dataset_get(t->data, i, within);
    if (status != DS_OK) return status;
    for (int64_t c = 0; c < t->channels; c++)
        table_normalize(x + c * t->plane, bytes + c * t->plane, t->plane, t->table[c]);
    return DS_OK;
}

static ds_status to_float_get_bytes(void *self, int64_t i, void **field)
{
    ds_dataset *d = ((to_float *)self)->data;
    return dsi_dataset_byte_form(d)->get(ds_dataset_self(d), i, field);
}

static const float *to_float_table(void *self) { return ((to_float *)self)->table[0]; }

static void to_float_free(void *self)
{
    dsi_free(((to_float *)self)->table);
    inner_free(self);
}

static const char to_float_name[] = "ToFloat"; /* an array: no user's string has its address */
static const ds_dataset_type to_float_type = {to_float_name, sizeof(to_float), inner_len,
                                              to_float_get, to_float_free};

ds_dataset *ds_transform_to_float(ds_dataset *d)
{
    if (!d) return refuse_null_dataset("to_float");
    ds_field image = *ds_dataset_field(d, 0);
    if (image.dtype != DS_U8)
        return REFUSE(d, "to_float: field 0 of %s is %s, expected uint8", ds_dataset_name(d),
                      ds_dtype_name(image.dtype));
    int64_t n = image_channels(image.shape);
    float(*table)[256] = dsi_alloc((size_t)(n ? n : 1) * sizeof *table);
    for (int64_t c = 0; c < n; c++)
        for (int v = 0; v < 256; v++) table[c][v] = (float)v / 255;
    image.dtype = DS_F32;
    static const dsi_byte_form bytes = {to_float_get_bytes, to_float_table};
    to_float self = {d, n, n ? dsi_numel(image.shape) / n : 0, table};
    bool fixed = dsi_dataset_byte_form(d) != NULL; /* its bytes are the same in each epoch */
    ds_dataset *t = wrap_dataset(&to_float_type, &self, image, inner_epoch);
    if (fixed) dsi_dataset_set_byte_form(t, &bytes);
    return t;
}

/* ---- normalize ------------------------------------------------------------------------------------ */

/* (x - mean) / std per channel, for floats; bytes use the table of to_float. */
typedef struct normalize {
    ds_dataset *data;
    int64_t channels, plane;
    float *mean, *std; /* [channels], in one block */
} normalize;

static ds_status normalize_get(void *self, int64_t i, void **field)
{
    normalize *t = self;
    ds_status status = ds_dataset_get(t->data, i, field);
    float *x = field[0];
    for (int64_t c = 0; status == DS_OK && c < t->channels; c++, x += t->plane) {
        float mean = t->mean[c], std = t->std[c];
        for (int64_t k = 0; k < t->plane; k++) x[k] = (x[k] - mean) / std;
    }
    return status;
}

static void normalize_free(void *self)
{
    dsi_free(((normalize *)self)->mean);
    inner_free(self);
}

/* Checks the arguments; false with the message. n is 1, for all channels, or
 * their number. A std of 0 would give infinities without a message. */
static bool can_normalize(ds_dataset *d, int n, const float *mean, const float *std)
{
    const ds_field *image = ds_dataset_field(d, 0);
    const char *name = ds_dataset_name(d);
    int64_t c = image_channels(image->shape);
    if (image->dtype != DS_F32)
        return dsi_invalid(
            "normalize: field 0 of %s is %s, expected float32: ds_transform_to_float first", name,
            ds_dtype_name(image->dtype));
    if (!mean || !std || (n != 1 && n != c))
        return dsi_invalid("normalize: %d values for the %lld channels of %s, expected 1 or %lld",
                           mean && std ? n : 0, (long long)c, name, (long long)c);
    for (int k = 0; k < n; k++)
        if (!(std[k] > 0))
            return dsi_invalid("normalize: std[%d] is %g, expected above 0", k, (double)std[k]);
    return true;
}

/* Over a to_float it changes that data set's table and returns d itself. */
ds_dataset *ds_transform_normalize(ds_dataset *d, int n, const float *mean, const float *std)
{
    static const ds_dataset_type type = {"Normalize", sizeof(normalize), inner_len, normalize_get,
                                         normalize_free};
    if (!d) return refuse_null_dataset("normalize");
    if (!can_normalize(d, n, mean, std)) return refuse_dataset(d);
    ds_field image = *ds_dataset_field(d, 0);
    int64_t c = image_channels(image.shape);
    if (ds_dataset_name(d) == to_float_name) { /* see the head of this file */
        to_float *t = ds_dataset_self(d);
        for (int64_t k = 0; k < c; k++)
            for (int v = 0; v < 256; v++)
                t->table[k][v] = (t->table[k][v] - mean[n > 1 ? k : 0]) / std[n > 1 ? k : 0];
        return d;
    }
    float *values = dsi_alloc((size_t)(c ? 2 * c : 1) * sizeof *values);
    for (int64_t k = 0; k < c; k++) {
        values[k] = mean[n > 1 ? k : 0];
        values[c + k] = std[n > 1 ? k : 0];
    }
    normalize self = {d, c, c ? dsi_numel(image.shape) / c : 0, values, values + c};
    return wrap_dataset(&type, &self, image, inner_epoch);
}

/* ---- at random ------------------------------------------------------------------------------------ */

/* The beginning of every random transform's struct. */
typedef struct random_inner {
    ds_dataset *data;
    dsi_chance chance;
} random_inner;

static void random_epoch(void *self, int64_t epoch)
{
    ((random_inner *)self)->chance.epoch = epoch;
    inner_epoch(self, epoch);
}

/* Images [c,from_h,from_w] to windows [c,h,w] at a random place, after
 * `padding` zeros on each side. */
typedef struct crop {
    ds_dataset *data;
    dsi_chance chance;
    int64_t c, from_h, from_w, h, w, padding;
    size_t element; /* bytes */
} crop;

/* Copies the window of h x w whose corner is (top, left) of image
 * [C,from_h,from_w] to out [C,h,w]; zeros where it is outside of the image. */
static void crop_window(const crop *t, const char *image, int64_t top, int64_t left, char *out)
{
    int64_t begin = left < 0 ? -left : 0;
    int64_t end = left + t->w > t->from_w ? t->from_w - left : t->w;
    if (begin > t->w) begin = t->w;
    if (end < begin) end = begin;
    size_t e = t->element;
    for (int64_t c = 0; c < t->c; c++)
        for (int64_t y = top; y < top + t->h; y++, out += (size_t)t->w * e) {
            memset(out, 0, (size_t)t->w * e);
            if (y < 0 || y >= t->from_h || begin == end) continue;
            const char *row = image + (size_t)(c * t->from_h + y) * (size_t)t->from_w * e;
            memcpy(out + (size_t)begin * e, row + (size_t)(left + begin) * e,
                   (size_t)(end - begin) * e);
        }
}

/* Two random numbers: the row of the corner, then its column. */
static ds_status crop_get(void *self, int64_t i, void **field)
{
    crop *t = self;
    size_t bytes = (size_t)(t->c * t->from_h * t->from_w) * t->element;
    char *image = malloc(bytes ? bytes : 1);
    if (!image)
        return ds_fail(DS_ENOMEM, "random_crop: no memory for an image of %zu bytes", bytes);
    void *within[DS_MAX_FIELDS];
    memcpy(within, field, (size_t)ds_dataset_fields(t->data) * sizeof *within);
    within[0] = image;
    ds_status status = ds_dataset_get(t->data, i, within);
    if (status == DS_OK) {
        uint64_t draw = dsi_chance_first(&t->chance, i, 1);
        int64_t top = dsi_chance_below(draw, t->from_h + 2 * t->padding - t->h + 1) - t->padding;
        int64_t left = dsi_chance_below(dsi_chance_next(draw),
                                        t->from_w + 2 * t->padding - t->w + 1) -
                       t->padding;
        crop_window(t, image, top, left, field[0]);
    }
    free(image);
    return status;
}

static bool is_image(const char *what, ds_dataset *d)
{
    const ds_field *image = ds_dataset_field(d, 0);
    if (image->shape.n == 3) return true;
    return dsi_invalid("%s: field 0 of %s has %d dimensions, expected an image [C,H,W]", what,
                       ds_dataset_name(d), image->shape.n);
}

/* A window may be larger than the image, but not larger than the padded
 * image. */
ds_dataset *ds_transform_random_crop(ds_dataset *d, int64_t h, int64_t w, int padding,
                                     uint64_t seed)
{
    static const ds_dataset_type type = {"RandomCrop", sizeof(crop), inner_len, crop_get,
                                         inner_free};
    if (!d) return refuse_null_dataset("random_crop");
    if (!is_image("random_crop", d)) return refuse_dataset(d);
    ds_field image = *ds_dataset_field(d, 0);
    int64_t from_h = image.shape.d[1], from_w = image.shape.d[2];
    if (padding < 0 || h < 1 || w < 1 || h > from_h + 2 * (int64_t)padding ||
        w > from_w + 2 * (int64_t)padding)
        return REFUSE(d, "random_crop: no %lld x %lld window in %lld x %lld with padding %d",
                      (long long)h, (long long)w, (long long)from_h, (long long)from_w, padding);
    crop t = {d, {seed, 0}, image.shape.d[0],          from_h, from_w, h,
              w, padding,   ds_dtype_size(image.dtype)};
    image.shape.d[1] = h;
    image.shape.d[2] = w;
    return wrap_dataset(&type, &t, image, random_epoch);
}

typedef struct flip {
    ds_dataset *data;
    dsi_chance chance;
    double p;        /* of being turned around */
    int64_t rows, w; /* of all channels; elements of a row */
    size_t element;  /* bytes */
} flip;

#define REVERSE(type) \
    static void reverse_##type(char *row, int64_t n) \
    { \
        type left, right; \
        for (char *a = row, *b = row + n * (int64_t)sizeof left; (b -= sizeof left) > a; \
             a += sizeof left) { \
            memcpy(&left, a, sizeof left); \
            memcpy(&right, b, sizeof left); \
            memcpy(a, &right, sizeof left); \
            memcpy(b, &left, sizeof left); \
        } \
    }

REVERSE(uint8_t)
REVERSE(uint16_t)
REVERSE(uint32_t)
REVERSE(uint64_t)

/* Reverses each row with probability p. */
static ds_status flip_get(void *self, int64_t i, void **field)
{
    flip *t = self;
    ds_status status = ds_dataset_get(t->data, i, field);
    if (status != DS_OK) return status;
    if (dsi_chance_unit(dsi_chance_first(&t->chance, i, 2)) >= t->p) return DS_OK;
    void (*reverse)(char *, int64_t) = t->element == 1   ? reverse_uint8_t
                                       : t->element == 2 ? reverse_uint16_t
                                       : t->element == 4 ? reverse_uint32_t
                                                         : reverse_uint64_t;
    char *row = field[0];
    for (int64_t y = 0; y < t->rows && t->w > 1; y++, row += t->w * (int64_t)t->element)
        reverse(row, t->w);
    return DS_OK;
}

/* p is checked so that NaN is refused too. */
ds_dataset *ds_transform_random_flip(ds_dataset *d, double p, uint64_t seed)
{
    static const ds_dataset_type type = {"RandomFlip", sizeof(flip), inner_len, flip_get,
                                         inner_free};
    if (!d) return refuse_null_dataset("random_flip");
    if (!is_image("random_flip", d)) return refuse_dataset(d);
    if (!(p >= 0 && p <= 1)) return REFUSE(d, "random_flip: p is %g, expected 0 to 1", p);
    ds_field image = *ds_dataset_field(d, 0);
    flip t = {d,
              {seed, 0},
              p,
              image.shape.d[0] * image.shape.d[1],
              image.shape.d[2],
              ds_dtype_size(image.dtype)};
    return wrap_dataset(&type, &t, image, random_epoch);
}

/* ---- another size --------------------------------------------------------------------------------- */

typedef struct resize {
    ds_dataset *data;
    int64_t from_h, from_w, h, w;
    bool bicubic;
} resize;

/* The inner data set writes planes, which become pixels of three bytes. */
static ds_status resize_get(void *self, int64_t i, void **field)
{
    resize *t = self;
    int64_t plane = t->from_h * t->from_w;
    uint8_t *planes = malloc((size_t)(6 * plane));
    if (!planes)
        return ds_fail(DS_ENOMEM, "resize: no memory for %lld x %lld pixels", (long long)t->from_w,
                       (long long)t->from_h);
    void *within[DS_MAX_FIELDS];
    memcpy(within, field, (size_t)ds_dataset_fields(t->data) * sizeof *within);
    within[0] = planes;
    ds_status status = ds_dataset_get(t->data, i, within);
    uint8_t *pixels = planes + 3 * plane;
    for (int c = 0; status == DS_OK && c < 3; c++)
        for (int64_t k = 0; k < plane; k++) pixels[3 * k + c] = planes[c * plane + k];
    dsi_resize r = {.in = pixels, .row = 3 * t->from_w, .h = t->from_h, .w = t->from_w};
    r.to_h = r.out_h = t->h;
    r.to_w = r.out_w = t->w;
    r.bicubic = t->bicubic;
    if (status == DS_OK) status = dsi_resize_run(&r, field[0]);
    free(planes);
    return status;
}

ds_dataset *ds_transform_resize(ds_dataset *d, int64_t h, int64_t w, bool bicubic)
{
    static const ds_dataset_type type = {"Resize", sizeof(resize), inner_len, resize_get,
                                         inner_free};
    if (!d) return refuse_null_dataset("resize");
    if (!is_image("resize", d)) return refuse_dataset(d);
    ds_field image = *ds_dataset_field(d, 0);
    ds_dims from = image.shape;
    if (image.dtype != DS_U8 || from.d[0] != 3 || from.d[1] < 1 || from.d[2] < 1)
        return REFUSE(d, "resize: field 0 of %s is %s %s, expected uint8 [3,H,W]",
                      ds_dataset_name(d), ds_dtype_name(image.dtype), dsi_shape_text(from));
    if (h < 1 || w < 1 || h > DSI_RESIZE_MOST || w > DSI_RESIZE_MOST)
        return REFUSE(d, "resize: to %lld x %lld pixels, expected 1 to %d in each direction",
                      (long long)h, (long long)w, DSI_RESIZE_MOST);
    image.shape.d[1] = h;
    image.shape.d[2] = w;
    resize t = {d, from.d[1], from.d[2], h, w, bicubic};
    return wrap_dataset(&type, &t, image, inner_epoch);
}

/* ---- another dtype ------------------------------------------------------------------------------------ */

typedef struct cast {
    ds_dataset *data;
    ds_dtype to;
    ds_dtype from[DS_MAX_FIELDS];
    /* elements of a field to convert; 0: it is written where it belongs */
    int64_t n[DS_MAX_FIELDS];
    size_t at[DS_MAX_FIELDS]; /* where the inner data set writes it, bytes into a sample's memory */
    size_t bytes;             /* of that memory */
} cast;

static bool is_float(ds_dtype dtype) { return (unsigned)dtype <= DS_BF16; }

#define PART 256 /* elements that are converted at a time, through float32 */

/* x[0 .. n-1] = elements begin .. begin + n - 1 of `from`, as float32. */
static void cast_widen(float *x, const void *from, ds_dtype dtype, int64_t begin, int64_t n)
{
    const double *f64 = from;
    const float *f32 = from;
    const uint16_t *half = from;
    if (dtype == DS_F64)
        for (int64_t i = 0; i < n; i++) x[i] = (float)f64[begin + i];
    else if (dtype == DS_F32)
        memcpy(x, f32 + begin, (size_t)n * sizeof *x);
    else if (dtype == DS_F16)
        for (int64_t i = 0; i < n; i++) x[i] = dsi_f16_to_f32(half[begin + i]);
    else
        for (int64_t i = 0; i < n; i++) x[i] = dsi_bf16_to_f32(half[begin + i]);
}

/* Elements begin .. begin + n - 1 of `to` = x[0 .. n-1], rounded to nearest
 * even. */
static void cast_narrow(void *to, ds_dtype dtype, const float *x, int64_t begin, int64_t n)
{
    double *f64 = to;
    float *f32 = to;
    uint16_t *half = to;
    if (dtype == DS_F64)
        for (int64_t i = 0; i < n; i++) f64[begin + i] = x[i];
    else if (dtype == DS_F32)
        memcpy(f32 + begin, x, (size_t)n * sizeof *x);
    else if (dtype == DS_F16)
        for (int64_t i = 0; i < n; i++) half[begin + i] = dsi_f32_to_f16(x[i]);
    else
        for (int64_t i = 0; i < n; i++) half[begin + i] = dsi_f32_to_bf16(x[i]);
}

/* Fields that are not converted are written to their place by the inner data
 * set. */
static ds_status cast_get(void *self, int64_t i, void **field)
{
    cast *t = self;
    void *within[DS_MAX_FIELDS];
    int n_fields = ds_dataset_fields(t->data);
    char *sample = malloc(t->bytes ? t->bytes : 1);
    if (!sample) return ds_fail(DS_ENOMEM, "cast: no memory for a sample of %zu bytes", t->bytes);
    for (int f = 0; f < n_fields; f++) within[f] = t->n[f] ? sample + t->at[f] : field[f];
    ds_status status = ds_dataset_get(t->data, i, within);
    for (int f = 0; f < n_fields && status == DS_OK; f++)
        for (int64_t k = 0; k < t->n[f]; k += PART) {
            float x[PART];
            int64_t n = t->n[f] - k < PART ? t->n[f] - k : PART;
            cast_widen(x, within[f], t->from[f], k, n);
            cast_narrow(field[f], t->to, x, k, n);
        }
    free(sample);
    return status;
}

static ds_status cast_get_bytes(void *self, int64_t i, void **field)
{
    const ds_dataset *d = ((cast *)self)->data;
    return dsi_dataset_byte_form(d)->get(ds_dataset_self((ds_dataset *)d), i, field);
}

static const float *cast_table(void *self)
{
    const ds_dataset *d = ((cast *)self)->data;
    return dsi_dataset_byte_form(d)->table(ds_dataset_self((ds_dataset *)d));
}

/* Only fields of another floating-point dtype are converted; labels stay. */
ds_dataset *ds_transform_cast(ds_dataset *d, ds_dtype dtype)
{
    static const ds_dataset_type type = {"Cast", sizeof(cast), inner_len, cast_get, inner_free};
    static const dsi_byte_form bytes = {cast_get_bytes, cast_table};
    bool first = true; /* no other field is converted */
    if (!d) return refuse_null_dataset("cast");
    if (!is_float(dtype))
        return REFUSE(d, "cast: %s: expected a floating-point dtype", ds_dtype_name(dtype));
    cast t = {.data = d, .to = dtype};
    ds_field fields[DS_MAX_FIELDS];
    for (int f = 0; f < ds_dataset_fields(d); f++) {
        fields[f] = *ds_dataset_field(d, f);
        t.from[f] = fields[f].dtype;
        if (!is_float(t.from[f]) || t.from[f] == dtype) continue;
        first = first && f == 0;
        fields[f].dtype = dtype;
        t.n[f] = dsi_numel(fields[f].shape);
        t.at[f] = t.bytes;
        t.bytes += ((size_t)t.n[f] * ds_dtype_size(t.from[f]) + 15) / 16 * 16;
    }
    ds_dataset *out = ds_dataset_new(&type, ds_dataset_fields(d), fields);
    if (!out) return refuse_dataset(d);
    ds_dataset_on_epoch(out, inner_epoch);
    if (first && dsi_dataset_byte_form(d)) dsi_dataset_set_byte_form(out, &bytes);
    *(cast *)ds_dataset_self(out) = t;
    return out;
}
