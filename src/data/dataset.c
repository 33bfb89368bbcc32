/* data/dataset.c: data sets: what they have in common; one made of tensors.
 *
 * Invariants: a data set is a const type, a description of its fields, and
 * behind them in the same block the type's own struct. It owns copies of its
 * fields' names, and a data set that it wraps. Many threads read it at the same
 * time, and none changes it; only its epoch changes, between two epochs, when
 * no thread reads.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/handle.h"
#include "base/mem.h"
#include "resident.h"

#include <stdlib.h>
#include <string.h>

struct ds_dataset {
    const ds_dataset_type *type;
    int n_fields;
    ds_field field[DS_MAX_FIELDS];
    void (*on_epoch)(void *self, int64_t epoch); /* or NULL */
    const dsi_byte_form *bytes;                  /* or NULL */
    max_align_t self[];                          /* type->self_size bytes */
};

/* Checks a field; false with the message. A batch has one dimension more than a
 * sample, and a tensor at most DS_MAX_DIMS. */
static bool is_field(const char *name, int f, const ds_field *field)
{
    if (!ds_dtype_size(field->dtype))
        return dsi_invalid("%s: field %d: there is no dtype number %d", name, f, (int)field->dtype);
    if (field->shape.n < 0 || field->shape.n >= DS_MAX_DIMS)
        return dsi_invalid("%s: field %d has %d dimensions, expected 0 to %d", name, f,
                           field->shape.n, DS_MAX_DIMS - 1);
    for (int i = 0; i < field->shape.n; i++)
        if (field->shape.d[i] < 0)
            return dsi_invalid("%s: field %d: size %lld of dimension %d is negative", name, f,
                               (long long)field->shape.d[i], i);
    return true;
}

static const dsi_handle_kind dataset_kind = {"data set", NULL, "a loader frees its data set", NULL};

ds_dataset *ds_dataset_new(const ds_dataset_type *type, int n_fields, const ds_field *fields)
{
    if (!type || !type->len || !type->get)
        return dsi_refuse("dataset_new: a data set type needs len and get");
    const char *name = type->name ? type->name : "data set";
    if (!fields || n_fields < 1 || n_fields > DS_MAX_FIELDS)
        return dsi_refuse("%s: %d fields, expected 1 to %d", name, n_fields, DS_MAX_FIELDS);
    for (int f = 0; f < n_fields; f++)
        if (!is_field(name, f, &fields[f])) return NULL;

    ds_dataset *d = dsi_alloc(sizeof *d + type->self_size);
    dsi_handle_call("dataset_new");
    dsi_handle_made(d, &dataset_kind);
    d->type = type;
    d->n_fields = n_fields;
    for (int f = 0; f < n_fields; f++) {
        d->field[f] = fields[f];
        if (fields[f].name) d->field[f].name = dsi_strdup(fields[f].name);
    }
    return d;
}

/* The type's free releases what self owns, not self, which is part of d. */
void ds_dataset_free(ds_dataset *d)
{
    if (!dsi_live(d, "dataset_free")) return;
    bool quarantined = dsi_handle_freed_by(d, "ds_dataset_free");
    if (d->type->free) d->type->free(d->self);
    for (int f = 0; f < d->n_fields; f++) dsi_free((char *)d->field[f].name);
    if (!quarantined) dsi_free(d);
}

void *ds_dataset_self(ds_dataset *d) { return dsi_live(d, "dataset_self") ? d->self : NULL; }
int64_t ds_dataset_len(ds_dataset *d)
{
    return dsi_live(d, "dataset_len") ? d->type->len(d->self) : 0;
}
int ds_dataset_fields(const ds_dataset *d) { return d ? d->n_fields : 0; }

const ds_field *ds_dataset_field(const ds_dataset *d, int f)
{
    return d && f >= 0 && f < d->n_fields ? &d->field[f] : NULL;
}

const char *ds_dataset_name(const ds_dataset *d)
{
    return d && d->type->name ? d->type->name : "data set";
}

ds_status ds_dataset_get(ds_dataset *d, int64_t i, void **field)
{
    if (!d) return dsi_null_argument("dataset_get");
    int64_t n = d->type->len(d->self);
    if (i < 0 || i >= n)
        return dsi_fail(DS_EINVAL, "%s: there is no sample %lld: it has %lld", ds_dataset_name(d),
                        (long long)i, (long long)n);
    return d->type->get(d->self, i, field);
}

void ds_dataset_on_epoch(ds_dataset *d, void (*on_epoch)(void *self, int64_t epoch))
{
    if (d) d->on_epoch = on_epoch;
}

/* Wrapping data sets pass the epoch on, so it reaches each random transform. */
void ds_dataset_set_epoch(ds_dataset *d, int64_t epoch)
{
    if (d && d->on_epoch) d->on_epoch(d->self, epoch);
}

void dsi_dataset_set_byte_form(ds_dataset *d, const dsi_byte_form *form)
{
    if (d) d->bytes = form;
}

const dsi_byte_form *dsi_dataset_byte_form(const ds_dataset *d) { return d ? d->bytes : NULL; }

ds_dims dsi_dataset_batch_shape(const ds_dataset *d, int f, int64_t n)
{
    const ds_dims *sample = &ds_dataset_field(d, f)->shape;
    ds_dims shape = {sample->n + 1, {n}};
    memcpy(shape.d + 1, sample->d, (size_t)sample->n * sizeof *sample->d);
    return shape;
}

/* ---- tensors as a data set ------------------------------------------------------------------------ */

/* Row i of each tensor is sample i. The values are copied: tensors belong to
 * the thread that made them, but loader threads read samples. */
typedef struct rows {
    int64_t n;
    int n_fields;
    size_t bytes[DS_MAX_FIELDS]; /* of one row */
    char *data[DS_MAX_FIELDS];
} rows;

static int64_t rows_len(void *self) { return ((rows *)self)->n; }

static ds_status rows_get(void *self, int64_t i, void **field)
{
    rows *r = self;
    for (int f = 0; f < r->n_fields; f++)
        memcpy(field[f], r->data[f] + (size_t)i * r->bytes[f], r->bytes[f]);
    return DS_OK;
}

static void rows_free(void *self)
{
    rows *r = self;
    for (int f = 0; f < r->n_fields; f++) free(r->data[f]);
}

/* Copies x's elements, row-major whatever its strides, to r->data[f]; false
 * with the message. */
static bool rows_copy(rows *r, int f, ds_tensor *x)
{
    size_t bytes = (size_t)ds_numel(x) * ds_dtype_size(ds_dtype_of(x));
    const void *values = ds_data(x);
    if (!values) return false;
    r->data[f] = malloc(bytes ? bytes : 1);
    if (!r->data[f])
        return dsi_fail(DS_ENOMEM, "tensor_dataset: no memory for the %zu bytes of tensor %d",
                        bytes, f) == DS_OK;
    memcpy(r->data[f], values, bytes);
    r->bytes[f] = r->n ? bytes / (size_t)r->n : 0;
    return true;
}

/* All tensors must have the same first dimension, the number of samples. */
ds_dataset *ds_tensor_dataset(ds_tensor **x, int n)
{
    static const ds_dataset_type type = {"TensorDataset", sizeof(rows), rows_len, rows_get,
                                         rows_free};
    ds_field field[DS_MAX_FIELDS];
    if (!x || n < 1 || n > DS_MAX_FIELDS)
        return dsi_refuse("tensor_dataset: %d tensors, expected 1 to %d", n, DS_MAX_FIELDS);
    for (int f = 0; f < n; f++) {
        if (!x[f]) return dsi_null_operand("tensor_dataset");
        ds_dims shape = ds_shape_of(x[f]);
        if (shape.n < 1)
            return dsi_refuse("tensor_dataset: tensor %d is []: expected a dimension of samples",
                              f);
        if (shape.d[0] != ds_size(x[0], 0))
            return dsi_refuse("tensor_dataset: tensor %d has %lld rows, tensor 0 has %lld", f,
                              (long long)(shape.n ? shape.d[0] : 0), (long long)ds_size(x[0], 0));
        field[f] = (ds_field){ds_dtype_of(x[f]), {shape.n - 1, {0}}, NULL};
        memcpy(field[f].shape.d, shape.d + 1, (size_t)(shape.n - 1) * sizeof *shape.d);
    }
    ds_dataset *d = ds_dataset_new(&type, n, field);
    rows *r = ds_dataset_self(d);
    r->n = ds_size(x[0], 0);
    /* ds_data of a tensor that is not contiguous makes a copy in this scope. */
    ds_scope *copies = ds_scope_open();
    bool ok = true;
    for (; ok && r->n_fields < n; r->n_fields++) ok = rows_copy(r, r->n_fields, x[r->n_fields]);
    ds_scope_close(copies);
    if (ok) return d;
    ds_dataset_free(d);
    return NULL;
}
