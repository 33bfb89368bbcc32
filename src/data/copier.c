/* data/copier.c: see copier.h.
 *
 *     device's stream  | step 1 |given| step 2       |wait| step 3
 *     own stream                  wait | copy batch 3 |done
 *
 * The memory of batch 3 is taken when batch 2 is handed out: other tensors may
 * have had it before, so its copy waits for what the device's stream was given
 * until then (`given`), and not for step 2. Step 3 waits for the copy (`done`).
 *
 * Invariants: `given` and the wait for it are queued when the memory is taken,
 * before any copy to it. done[slot] is recorded behind the last copy from the
 * slot, which is read-only until then. Memory is given back to the device's
 * cache only when no copy writes to it: a batch that was handed out has been
 * waited for by the device's stream, and dsi_copier_stop waits on the host.
 * Only dsi_copier_release and _stop block.
 * SPDX-License-Identifier: MIT */
#include "copier.h"

#include "base/int.h"
#include "base/log.h"
#include "base/mem.h"
#include "device/graph.h"
#include "resident.h"

#define LEAST_BYTES ((size_t)64 << 10) /* copies of less cost less than the events around them */
#define ALIGN       64

struct dsi_copier {
    dsi_device *device;
    dsi_stream stream;
    int n_fields, slots;
    ds_dims shape[DS_MAX_FIELDS]; /* of a batch; [0] is set for each */
    ds_dtype dtype[DS_MAX_FIELDS];
    size_t offset[DS_MAX_FIELDS], slot_bytes; /* in a slot */
    char *pinned;                             /* [slots][slot_bytes] */
    dsi_event given, *done;                   /* done: [slots] */
    ds_tensor *field[DS_MAX_FIELDS];          /* of the batch ahead, counted; [0] NULL: none is */
    int queued;                               /* the slot from which its copy is queued; -1: none */
    bool pending;                             /* a copy was queued since the host has waited */
};

/* Sets what follows from the data set. */
static void layout_make(dsi_copier *c, const ds_dataset *d, int64_t rows)
{
    c->n_fields = ds_dataset_fields(d);
    for (int f = 0; f < c->n_fields; f++) {
        const ds_field *of = ds_dataset_field(d, f);
        c->shape[f] = dsi_dataset_batch_shape(d, f, rows);
        c->dtype[f] = of->dtype;
        c->offset[f] = c->slot_bytes;
        int64_t bytes = dsi_numel(c->shape[f]) * (int64_t)ds_dtype_size(of->dtype);
        c->slot_bytes += (size_t)dsi_round_up(bytes, ALIGN);
    }
}

ds_status dsi_copier_new(ds_dataset *d, dsi_device *device, int64_t rows, int slots,
                         dsi_copier **out)
{
    const dsi_device_type *type = device->type;
    dsi_copier made = {.device = device, .slots = slots, .queued = -1};
    *out = NULL;
    layout_make(&made, d, rows);
    if (!type->stream_open || made.slot_bytes < LEAST_BYTES) return DS_OK;
    made.pinned = type->alloc_host(device, (size_t)slots * made.slot_bytes);
    if (!made.pinned) {
        dsi_log(DSI_INFO,
                "loader of %s: there are no %zu bytes of pinned host memory: batches are copied "
                "to %s between steps",
                ds_dataset_name(d), (size_t)slots * made.slot_bytes,
                ds_device_name(dsi_device_id(device)));
        return DS_OK;
    }
    if (type->stream_open(device, &made.stream) != DS_OK) {
        type->free_host(device, made.pinned);
        return ds_error_status();
    }
    dsi_log(DSI_DEBUG,
            "loader of %s: %zu bytes of host memory are pinned for %s: %d batches of %zu bytes",
            ds_dataset_name(d), (size_t)slots * made.slot_bytes,
            ds_device_name(dsi_device_id(device)), slots, made.slot_bytes);
    *out = dsi_alloc(sizeof **out);
    **out = made;
    (*out)->done = dsi_alloc((size_t)slots * sizeof *made.done);
    return DS_OK;
}

void dsi_copier_free(dsi_copier *c)
{
    if (!c) return;
    const dsi_device_type *type = c->device->type;
    for (int k = 0; k < c->slots; k++) type->free_event(c->device, &c->done[k]);
    type->free_event(c->device, &c->given);
    type->stream_close(&c->stream);
    type->free_host(c->device, c->pinned);
    dsi_free(c->done);
    dsi_free(c);
}

char *dsi_copier_memory(const dsi_copier *c, int slot, int f)
{
    return c->pinned + (size_t)slot * c->slot_bytes + c->offset[f];
}

/* ---- the batch ahead ----------------------------------------------------------------------------- */

static void batch_drop(dsi_copier *c)
{
    for (int f = 0; f < c->n_fields; f++) dsi_hold(&c->field[f], NULL);
    c->queued = -1;
}

static ds_status batch_reserve(dsi_copier *c, int64_t n)
{
    const dsi_device_type *type = c->device->type;
    ds_scope *here = ds_scope_open();
    ds_status status = DS_OK;
    for (int f = 0; status == DS_OK && f < c->n_fields; f++) {
        c->shape[f].d[0] = n;
        c->field[f] = dsi_ref(dsi_new_on(c->device, c->dtype[f], c->shape[f]));
        if (!c->field[f]) status = ds_error_status();
    }
    ds_scope_close(here);
    if (status == DS_OK) status = type->record(&c->device->stream, &c->given);
    if (status == DS_OK) status = type->wait(&c->stream, &c->given);
    if (status != DS_OK) batch_drop(c);
    return status;
}

static ds_status batch_queue(dsi_copier *c, int slot)
{
    const dsi_device_type *type = c->device->type;
    ds_status status = DS_OK;
    c->pending = true;
    for (int f = 0; status == DS_OK && f < c->n_fields; f++)
        status = type->queue_in(&c->stream, dsi_v(c->field[f]).p, dsi_copier_memory(c, slot, f),
                                (size_t)dsi_numel(c->field[f]->shape) * ds_dtype_size(c->dtype[f]));
    if (status == DS_OK) status = type->record(&c->stream, &c->done[slot]);
    c->queued = slot;
    if (status != DS_OK) dsi_copier_stop(c);
    return status;
}

ds_status dsi_copier_ahead(dsi_copier *c, int slot, int64_t n)
{
    /* of a batch before, which failed */
    if (c->queued >= 0 && c->queued != slot) dsi_copier_stop(c);
    if (c->field[0] && c->field[0]->shape.d[0] != n) batch_drop(c);
    ds_status status = c->field[0] ? DS_OK : batch_reserve(c, n);
    return status == DS_OK && slot != c->queued ? batch_queue(c, slot) : status;
}

bool dsi_copier_is_queued(const dsi_copier *c, int slot) { return c->queued == slot; }

bool dsi_copier_batch(dsi_copier *c, int slot, int64_t n, ds_tensor **field)
{
    dsi_device *d = c->device;
    ds_status status = dsi_graph_forbid(d, "it copies from host memory (a loader's batch)");
    if (status == DS_OK) status = dsi_copier_ahead(c, slot, n);
    if (status == DS_OK) status = d->type->wait(&d->stream, &c->done[slot]);
    if (status != DS_OK) return false;
    for (int f = 0; f < c->n_fields; f++) {
        field[f] = dsi_scope_add(c->field[f]);
        c->field[f] = NULL;
    }
    c->queued = -1;
    return true;
}

/* ---- slots ------------------------------------------------------------------------------------------ */

/* All copies that were queued. */
static ds_status copies_wait(dsi_copier *c)
{
    ds_status status = c->pending ? c->device->type->sync(&c->stream) : DS_OK;
    c->pending = false;
    return status;
}

ds_status dsi_copier_release(dsi_copier *c, int slot, bool wait, bool *out)
{
    ds_status status = c->device->type->reached(&c->stream, &c->done[slot], out);
    if (status != DS_OK || *out || !wait) return status;
    *out = true;
    return copies_wait(c);
}

void dsi_copier_stop(dsi_copier *c)
{
    (void)copies_wait(c); /* a failure is this thread's error */
    batch_drop(c);
}
