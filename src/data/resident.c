/* data/resident.c: see resident.h.
 *
 * Invariants: fields are [samples, elements] on the device, field 0 uint8;
 * `order` holds the current epoch's indices there. All of it is written when
 * the loader begins (an epoch), and only read between. The tensors of a batch
 * are lazy (Note [Lazy tensors]) as long as it is the turn's: all get their
 * values together. At the end of the turn those that are still held get them.
 * SPDX-License-Identifier: MIT */
#include "resident.h"

#include "base/mem.h"
#include "tensor/lazy.h"

#define COPY_BYTES ((size_t)1 << 20) /* samples that are read before they are copied */

struct dsi_resident {
    dsi_lazy_owner owner; /* of a batch's tensors */
    ds_dataset *data;
    int n_fields;
    ds_tensor *field[DS_MAX_FIELDS]; /* counted, as all of these */
    ds_tensor *order, *table;        /* int64 [samples of an epoch]; float32 [channels, 256] */
    ds_tensor *batch[DS_MAX_FIELDS]; /* of the turn; NULL: there is none */
    int64_t begin, rows;             /* its samples in `order` */
};

void dsi_resident_free(dsi_resident *r)
{
    if (!r) return;
    (void)dsi_resident_end_batch(r);
    for (int f = 0; f < r->n_fields; f++) dsi_unref(r->field[f]);
    dsi_unref(r->order);
    dsi_unref(r->table);
    dsi_free(r);
}

/* Field 0 is kept as the bytes that it is made from, a quarter of its floats;
 * the others as they are. */
static ds_dtype stored_dtype(const ds_dataset *d, int f)
{
    return f ? ds_dataset_field(d, f)->dtype : DS_U8;
}

static size_t stored_bytes(const ds_dataset *d, int f)
{
    return (size_t)dsi_numel(ds_dataset_field(d, f)->shape) * ds_dtype_size(stored_dtype(d, f));
}

/* Of all fields of a sample, as they are stored. */
static size_t sample_bytes(const ds_dataset *d)
{
    size_t bytes = 0;
    for (int f = 0; f < ds_dataset_fields(d); f++) bytes += stored_bytes(d, f);
    return bytes;
}

/* Whether the samples take at most half of the memory that is free. */
static bool has_room(ds_dataset *d, dsi_device *device, int64_t most)
{
    size_t unused = 0, all = 0;
    size_t need = (size_t)ds_dataset_len(d) * sample_bytes(d) + (size_t)most * sizeof(int64_t);
    return device->type->room && device->type->room(device, &unused, &all) == DS_OK &&
           need <= unused / 2;
}

/* Samples begin .. begin + n - 1 to the device. memory: n samples. */
static ds_status samples_copy(const dsi_resident *r, const dsi_byte_form *form, int64_t begin,
                              int64_t n, char *memory)
{
    char *place[DS_MAX_FIELDS] = {NULL};
    void *field[DS_MAX_FIELDS] = {NULL};
    ds_status status = DS_OK;
    for (int f = 0; f < r->n_fields; f++) {
        place[f] = memory;
        memory += (size_t)n * stored_bytes(r->data, f);
    }
    for (int64_t i = 0; status == DS_OK && i < n; i++) {
        for (int f = 0; f < r->n_fields; f++)
            field[f] = place[f] + (size_t)i * stored_bytes(r->data, f);
        status = form->get(ds_dataset_self(r->data), begin + i, field);
    }
    for (int f = 0; status == DS_OK && f < r->n_fields; f++) {
        size_t bytes = stored_bytes(r->data, f);
        dsi_device *d = r->field[f]->device;
        char *to = dsi_v(r->field[f]).p;
        status = d->type->copy_in(&d->stream, to + (size_t)begin * bytes, place[f],
                                  (size_t)n * bytes);
    }
    return status;
}

/* All samples, about COPY_BYTES at a time: one copy a sample and field would
 * cost more than its bytes. */
static ds_status samples_upload(const dsi_resident *r)
{
    const dsi_byte_form *form = dsi_dataset_byte_form(r->data);
    int64_t len = ds_dataset_len(r->data), at_once = (int64_t)(COPY_BYTES / sample_bytes(r->data));
    if (at_once < 1) at_once = 1;
    char *memory = dsi_alloc((size_t)at_once * sample_bytes(r->data));
    ds_status status = DS_OK;
    for (int64_t i = 0; status == DS_OK && i < len; i += at_once)
        status = samples_copy(r, form, i, len - i < at_once ? len - i : at_once, memory);
    dsi_free(memory);
    return status;
}

/* Allocates fields, order and table, and copies the table. Memory that was
 * allocated before a failure is freed with r. */
static ds_status memory_make(dsi_resident *r, dsi_device *device, int64_t most)
{
    int64_t len = ds_dataset_len(r->data), channels = ds_dataset_field(r->data, 0)->shape.d[0];
    const float *table = dsi_dataset_byte_form(r->data)->table(ds_dataset_self(r->data));
    bool good = true;
    for (int f = 0; good && f < ds_dataset_fields(r->data); f++) {
        int64_t elements = dsi_numel(ds_dataset_field(r->data, f)->shape);
        ds_tensor *x = dsi_new_on(device, stored_dtype(r->data, f), ds_shape(len, elements));
        good = x != NULL;
        if (good) r->field[r->n_fields++] = dsi_ref(x);
    }
    if (!good) return ds_error_status();
    r->order = dsi_ref(dsi_new_on(device, DS_I64, ds_shape(most)));
    r->table = dsi_ref(dsi_new_on(device, DS_F32, ds_shape(channels, 256)));
    if (!r->order || !r->table) return ds_error_status();
    return device->type->copy_in(&device->stream, dsi_v(r->table).p, table,
                                 (size_t)channels * 256 * sizeof *table);
}

_Static_assert((int)DS_MAX_FIELDS <= (int)DSI_BATCH_FIELDS, "gather_batch takes all fields");

/* ---- a batch ------------------------------------------------------------------------------------------- */

/* The batch's samples -> to[f], for fields f that are not NULL, by one kernel.
 * Nothing is copied from the host: the indices are a view of the order
 * there. */
static ds_status batch_gather(const dsi_resident *r, ds_tensor *const *to)
{
    dsi_view x[DS_MAX_FIELDS], y[DS_MAX_FIELDS], index = dsi_v(r->order);
    int64_t channels = r->table->shape.d[0];
    index.p = (int64_t *)index.p + r->begin;
    index.d[0] = r->rows;
    for (int f = 0; f < r->n_fields; f++) {
        int64_t all = r->field[f]->shape.d[0], elements = r->field[f]->shape.d[1];
        int64_t parts = f ? 1 : channels;
        x[f] = dsi_v_shape(r->field[f], ds_shape(all, parts, elements / parts));
        y[f] = to[f] ? dsi_v_shape(to[f], ds_shape(r->rows, parts, elements / parts)) : dsi_v(NULL);
    }
    return dsi_run_fusion(r->order, gather_batch, index, dsi_v(r->table), r->n_fields, x, y)
               ? DS_OK
               : ds_error_status();
}

/* All fields get their values, whichever is asked for. */
static ds_status batch_materialize(dsi_lazy_owner *owner, ds_tensor *x)
{
    dsi_resident *r = (dsi_resident *)owner;
    ds_tensor *y[DS_MAX_FIELDS] = {NULL};
    ds_scope *scope = ds_scope_open();
    bool good = true;
    (void)x;
    for (int f = 0; good && f < r->n_fields; f++)
        good = (y[f] = dsi_new(r->batch[f], r->batch[f]->shape)) != NULL;
    ds_status status = good ? batch_gather(r, y) : ds_error_status();
    for (int f = 0; status == DS_OK && f < r->n_fields; f++) dsi_tensor_set_data(r->batch[f], y[f]);
    ds_scope_close(scope);
    return status;
}

static ds_status batch_write(dsi_lazy_owner *owner, int n, ds_tensor *const *x,
                             ds_tensor *const *to)
{
    const dsi_resident *r = (const dsi_resident *)owner;
    ds_tensor *y[DS_MAX_FIELDS] = {NULL};
    for (int f = 0; f < r->n_fields; f++)
        for (int i = 0; i < n; i++)
            if (x[i] == r->batch[f]) y[f] = to[i];
    return batch_gather(r, y);
}

/* It takes the place of a launch, as one that is fused does. */
static bool batch_is_recorded(const dsi_lazy_owner *owner)
{
    return ((const dsi_resident *)owner)->order->device->launch_fusions & DSI_FUSE_BATCH;
}

/* ---- the loader's ---------------------------------------------------------------------------------------- */

ds_status dsi_resident_new(ds_dataset *d, dsi_device *device, int64_t most, dsi_resident **out)
{
    *out = NULL;
    const dsi_byte_form *form = dsi_dataset_byte_form(d);
    if (!form || !form->table(ds_dataset_self(d)) || !dsi_fusion(device, gather_batch) ||
        ds_dataset_field(d, 0)->shape.n != 3 || sample_bytes(d) > INT32_MAX ||
        !has_room(d, device, most))
        return DS_OK;
    ds_scope *scope = ds_scope_open();
    dsi_resident *r = dsi_alloc(sizeof *r);
    r->owner = (dsi_lazy_owner){batch_materialize, batch_write, batch_is_recorded};
    r->data = d;
    ds_status status = memory_make(r, device, most);
    if (status == DS_OK) status = samples_upload(r);
    ds_scope_close(scope);
    if (status == DS_OK)
        *out = r;
    else
        dsi_resident_free(r);
    return status;
}

/* Batches that were begun read their own indices, and those after them these,
 * since the stream keeps the order. */
ds_status dsi_resident_set_order(dsi_resident *r, const int64_t *order, int64_t n)
{
    dsi_device *d = r->order->device;
    return d->type->copy_in(&d->stream, dsi_v(r->order).p, order, (size_t)n * sizeof *order);
}

bool dsi_resident_batch(dsi_resident *r, int64_t begin, int64_t n, ds_tensor **field)
{
    r->begin = begin, r->rows = n;
    for (int f = 0; f < r->n_fields; f++) {
        const ds_field *of = ds_dataset_field(r->data, f);
        field[f] = dsi_new_owned(r->order->device, of->dtype,
                                 dsi_dataset_batch_shape(r->data, f, n), &r->owner);
        if (!field[f]) return false;
        r->batch[f] = dsi_ref(field[f]);
    }
    return true;
}

ds_status dsi_resident_end_batch(dsi_resident *r)
{
    ds_status status = DS_OK;
    for (int f = 0; f < r->n_fields; f++)
        if (r->batch[f] && r->batch[f]->refs > 1 && status == DS_OK && !dsi_acquire(r->batch[f]))
            status = ds_error_status();
    for (int f = 0; f < r->n_fields; f++) {
        dsi_set_materialize_hook(r->batch[f], NULL, NULL);
        dsi_unref(r->batch[f]);
        r->batch[f] = NULL;
    }
    return status;
}
