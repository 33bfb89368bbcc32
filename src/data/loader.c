/* data/loader.c: batches of a data set, in the order of an epoch, filled ahead
 * by worker threads.
 *
 * A slot is the memory of one batch: a tensor for each field. Slots are a ring;
 * workers write samples into their rows (base/prefetch.c) and never see a
 * tensor. Handing out a batch makes second handles on the slot's tensors, in
 * the scope of the turn. If one of them is still held when the turn ends
 * (ds_keep, or a graph), the slot leaves that memory to its holder and takes
 * new memory.
 *
 *     ds_loader_next:  end the turn, release its slot -> wait for the next slot -> open a turn, hand out
 *
 * Without workers there is one slot, which ds_loader_next fills: a small batch
 * stays in the cache until it is used.
 *
 * On a GPU, samples of a data set that has a byte form are copied there when
 * the first epoch begins (resident.h), and batches are made there when they are
 * read, of the same samples in the same order; then slots and workers are not
 * used. Other data sets have slots of pinned memory there, and the batch after
 * the one in use is copied to the GPU meanwhile (copier.h); without workers it
 * is not made before it is asked for, as its get may draw random numbers, and
 * its copy then runs beside the step before.
 *
 * An epoch draws the same numbers from the thread's generator as PyTorch's
 * DataLoader: one integer for its workers (unused here), and with `shuffle` one
 * more, the seed of the order. So the numbers drawn afterwards are PyTorch's
 * too. With `weights` it is one more as well, from which the order can be made
 * again; PyTorch's WeightedRandomSampler draws all of it from the thread's
 * generator, unless it is given one.
 *
 * Invariants: one thread, the consumer, calls the functions of a loader;
 * workers call slot_fill alone, and read data, order, row_bytes and their slot.
 * Batch b uses slot b % n_slots, which belongs to a worker until
 * dsi_prefetch_wait(b) and to the consumer until dsi_prefetch_release(b). order
 * holds indices of the data set, [samples], valid while `running`. next is the
 * batch to hand out; batches from `released` to next - 1 still have their
 * slots: the turn's one, with a copier those whose copies run. Only
 * ds_loader_next, _stop, _free, _seek and _set_epoch wait for workers and
 * copies.
 * SPDX-License-Identifier: MIT */
#include "loader.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/prefetch.h"
#include "copier.h"
#include "resident.h"
#include "sampler.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <string.h>

#define MOST_WORKERS 256
#define AHEAD_BYTES  (2 << 20) /* small batches are made further ahead, up to this much memory ... */
#define AHEAD_MOST   64        /* ... and this number of batches: workers are woken less often */

typedef struct slot {
    ds_tensor *field[DS_MAX_FIELDS]; /* [batch_size, ...], counted; NULL: no memory was to be had */
    char *data[DS_MAX_FIELDS];
    ds_status status; /* of making the batch; with the message of its first failure */
    char message[512];
} slot;

struct ds_loader {
    ds_dataset *data;
    ds_loader_opts o;
    int n_fields;
    size_t row_bytes[DS_MAX_FIELDS];
    int64_t len;     /* samples of the data set */
    int64_t drawn;   /* of an epoch, of all ranks */
    int64_t samples; /* of this rank in an epoch */
    int64_t batches; /* in an epoch */
    int64_t rows;    /* of the largest batch */

    slot *slots;            /* [n_slots], 2 at least */
    int n_slots;            /* in use */
    dsi_prefetch *prefetch; /* NULL: batches are made in ds_loader_next */

    int64_t epoch;           /* that runs, or that begins at the next call */
    bool taken;              /* an engine frees it */
    bool running;            /* order holds this epoch's */
    bool seeded;             /* seed is this epoch's, though it may not run yet */
    uint64_t seed;           /* of its order */
    int64_t *order;          /* [samples] */
    int64_t next;            /* the batch to hand out */
    int64_t released;        /* slots of batches below it may be filled again */
    dsi_resident *resident;  /* NULL: none */
    dsi_copier *copier;      /* NULL: none */
    bool full;               /* the device has no memory for a batch ahead, in this epoch */
    const dsi_device *asked; /* the device of which these are, or which has none */
    ds_scope *turn;          /* NULL: none */
    uint64_t turn_number;
};

/* ---- making a batch: on a worker, or in ds_loader_next ------------------------------------------- */

/* The samples of batch b of this rank: the last one may be smaller. */
static int64_t batch_len(const ds_loader *l, int64_t b)
{
    int64_t rest = l->samples - b * l->o.batch_size;
    return rest < l->o.batch_size ? rest : l->o.batch_size;
}

/* Fills slot `place` with the samples of batch b. Runs on a worker, so a
 * failure is stored in the slot and not in this thread's error. */
static void slot_fill(void *arg, int64_t b, int place)
{
    ds_loader *l = arg;
    slot *s = &l->slots[place];
    const int64_t *index = l->order + b * l->o.batch_size;
    int64_t n = batch_len(l, b);
    void *row[DS_MAX_FIELDS];
    s->status = DS_OK;
    for (int f = 0; f < l->n_fields; f++) row[f] = s->data[f];
    for (int64_t i = 0; i < n; i++) {
        int before = dsi_error_count();
        ds_status status = ds_dataset_get(l->data, index[i], row);
        if (status != DS_OK) {
            bool told = dsi_error_count() > before;
            const char *why = told ? dsi_error_latest() : "its get failed and did not say why";
            s->status = status;
            snprintf(s->message, sizeof s->message, "loader: sample %lld of %s: %s",
                     (long long)index[i], ds_dataset_name(l->data), why);
            dsi_error_forget(before); /* the consumer reports it when it takes this batch */
            return;
        }
        for (int f = 0; f < l->n_fields; f++) row[f] = (char *)row[f] + l->row_bytes[f];
    }
}

/* ---- slots ---------------------------------------------------------------------------------------- */

/* Releases the slot's count of field f's tensor; other holders keep its
 * memory. */
static void slot_drop_memory(slot *s, int f)
{
    ds_drop(s->field[f]);
    s->field[f] = NULL;
    s->data[f] = NULL;
}

/* Gives the slot memory for each field, at first and where the consumer has
 * kept the last batch. storage->refs > 1: somebody else holds the storage. */
static ds_status slot_own_memory(ds_loader *l, int place)
{
    slot *s = &l->slots[place];
    for (int f = 0; f < l->n_fields; f++) {
        if (l->copier) {
            slot_drop_memory(s, f);
            s->data[f] = dsi_copier_memory(l->copier, place, f);
            continue;
        }
        if (s->field[f] && s->field[f]->storage->refs > 1) slot_drop_memory(s, f);
        if (s->field[f]) continue;
        const ds_field *field = ds_dataset_field(l->data, f);
        ds_dims shape = dsi_dataset_batch_shape(l->data, f, l->rows);
        ds_scope *here = ds_scope_open();
        s->field[f] = ds_keep(dsi_new_host(field->dtype, shape));
        ds_scope_close(here);
        if (!s->field[f]) return ds_error_status();
        s->data[f] = dsi_v(s->field[f]).p;
    }
    return DS_OK;
}

/* ---- an epoch -------------------------------------------------------------------------------------- */

/* Draws this epoch's seed, once: with ranks it is opts.seed + epoch, as in
 * DistributedSampler, and equal on all ranks; else it is drawn from the
 * thread's generator. */
static void loader_draw_seed(ds_loader *l)
{
    if (l->seeded) return;
    dsi_rng_i64(dsi_rng_default()); /* PyTorch's seed of the workers */
    if (l->o.ranks > 0)
        l->seed = l->o.seed + (uint64_t)l->epoch;
    else
        l->seed = l->o.shuffle || l->o.weights ? (uint64_t)dsi_rng_i64(dsi_rng_default()) : 0;
    l->seeded = true;
}

/* Fills `order` with this rank's indices of the epoch. Ranks draw the same
 * order of the whole data set, and each takes its share. */
static void loader_make_order(ds_loader *l)
{
    bool shared = l->o.ranks > 0;
    int64_t *all = shared ? dsi_alloc((size_t)l->drawn * sizeof *all) : l->order;
    dsi_rng g;
    dsi_rng_seed(&g, l->seed);
    if (l->o.weights)
        dsi_order_weighted(&g, l->o.weights, l->len, !l->o.no_replacement, all, l->drawn);
    else if (l->o.shuffle)
        dsi_order_random(&g, l->len, false, all, l->drawn);
    else
        for (int64_t i = 0; i < l->len; i++) all[i] = i;
    if (!shared) return;
    if (l->o.global_batch)
        dsi_order_of_batches(all, l->drawn, l->o.batch_size, l->o.rank, l->o.ranks, l->order,
                             l->samples);
    else
        dsi_order_of_rank(all, l->drawn, l->o.rank, l->o.ranks, l->order, l->samples);
    dsi_free(all);
}

/* How batches get to the current device. */
static ds_status loader_choose_device(ds_loader *l)
{
    dsi_device *d = dsi_device_current();
    if (!d || d == l->asked) return d ? DS_OK : ds_error_status();
    dsi_resident_free(l->resident);
    dsi_copier_free(l->copier);
    l->resident = NULL;
    l->copier = NULL;
    l->asked = d;
    ds_status status = DS_OK;
    if (d->type->kind != DS_CPU) status = dsi_resident_new(l->data, d, l->samples, &l->resident);
    if (status == DS_OK && d->type->kind != DS_CPU && !l->resident && !l->o.no_pin_memory)
        status = dsi_copier_new(l->data, d, l->rows, l->prefetch ? l->n_slots : 2, &l->copier);
    if (!l->prefetch) l->n_slots = l->copier ? 2 : 1;
    return status;
}

/* Starts the epoch at batch l->next; workers begin to fill slots. */
static ds_status loader_begin_epoch(ds_loader *l)
{
    if (loader_choose_device(l) != DS_OK) return ds_error_status();
    for (int k = 0; k < l->n_slots && !l->resident; k++)
        if (slot_own_memory(l, k) != DS_OK) return ds_error_status();
    loader_draw_seed(l);
    loader_make_order(l);
    ds_dataset_set_epoch(l->data, l->epoch);
    l->running = true;
    l->released = l->next;
    l->full = false;
    if (l->resident) return dsi_resident_set_order(l->resident, l->order, l->samples);
    if (l->prefetch) dsi_prefetch_begin(l->prefetch, l->next, l->batches);
    return DS_OK;
}

/* Closes the turn's scope, unless it was closed already, for example with a
 * scope around it. */
static void batch_end(ds_loader *l)
{
    dsi_scope_close_if(l->turn, l->turn_number);
    l->turn = NULL;
    if (l->resident)
        (void)dsi_resident_end_batch(l->resident); /* a failure is this thread's error */
}

/* Stops the workers, which blocks until they have finished the batches that
 * they are filling, and waits for copies of batches; sets next to 0, which
 * ds_loader_seek may change afterwards. */
static void loader_leave_epoch(ds_loader *l)
{
    batch_end(l);
    if (l->running && l->prefetch && !l->resident) dsi_prefetch_stop(l->prefetch);
    if (l->copier) dsi_copier_stop(l->copier);
    l->running = l->seeded = false;
    l->released = l->next = 0;
}

/* ---- the face -------------------------------------------------------------------------------------- */

/* The options of the order; false with the message. */
static bool loader_check_order(const char *name, const ds_loader_opts *o, int64_t len)
{
    if (o->weights && o->shuffle)
        return dsi_invalid("loader of %s: weights and shuffle: expected one of them", name);
    if (o->draws < 0 || o->draws > INT32_MAX || (o->draws && !o->weights && !o->shuffle))
        return dsi_invalid("loader of %s: draws is %lld: expected 1 to %d with shuffle or weights, "
                           "or 0",
                           name, (long long)o->draws, INT32_MAX);
    if (o->no_replacement && !o->weights)
        return dsi_invalid("loader of %s: no_replacement is for weights", name);
    if (!o->weights) return true;
    int64_t bad, positive = dsi_rng_weights(o->weights, len, &bad);
    int64_t least = o->no_replacement ? o->draws ? o->draws : len : 1;
    if (positive < 0)
        return dsi_invalid("loader of %s: weight %lld is %g: expected a finite one that is not "
                           "below 0",
                           name, (long long)bad, o->weights[bad]);
    if (positive >= least) return true;
    return dsi_invalid("loader of %s: %lld weights are above 0: expected at least %lld%s", name,
                       (long long)positive, (long long)least,
                       o->no_replacement ? ", the draws without replacement" : "");
}

static bool loader_check_opts(ds_dataset *data, const ds_loader_opts *o, int64_t len)
{
    const char *name = ds_dataset_name(data);
    if (o->batch_size < 1)
        return dsi_invalid("loader of %s: batch_size is %lld, expected at least 1", name,
                           (long long)o->batch_size);
    if (o->workers < 0 || o->workers > MOST_WORKERS)
        return dsi_invalid("loader of %s: %d workers, expected 0 to %d", name, o->workers,
                           MOST_WORKERS);
    if (o->prefetch < 0)
        return dsi_refuse("loader of %s: prefetch is %d, expected at least 0", name, o->prefetch) !=
               NULL;
    if (o->ranks < 0 || o->rank < 0 || o->rank >= (o->ranks ? o->ranks : 1))
        return dsi_refuse("loader of %s: there is no rank %d of %d", name, o->rank, o->ranks) !=
               NULL;
    int64_t turn = o->batch_size * o->ranks; /* of all ranks */
    if (o->global_batch && (!turn || o->global_batch < 0 || o->global_batch % turn))
        return dsi_invalid(
            "loader of %s: global_batch is %lld: expected a multiple of batch_size times "
            "ranks, which is %lld",
            name, (long long)o->global_batch, (long long)turn);
    if (len < 1) return dsi_invalid("loader of %s: it has no samples", name);
    return loader_check_order(name, o, len);
}

/* Places of the ring: what is ahead of use, and the batch in use; no more than
 * there are batches. */
static int loader_count_slots(const ds_loader *l)
{
    if (!l->o.workers) return 1;
    size_t bytes = 1;
    for (int f = 0; f < l->n_fields; f++) bytes += l->row_bytes[f] * (size_t)l->rows;
    int64_t ahead = (int64_t)(AHEAD_BYTES / bytes), least = 2 * (int64_t)l->o.workers;
    if (ahead > AHEAD_MOST) ahead = AHEAD_MOST;
    if (ahead < least) ahead = least;
    if (l->o.prefetch) ahead = l->o.prefetch;
    if (ahead >= l->batches) ahead = l->batches ? l->batches - 1 : 0;
    return (int)ahead + 1;
}

static int64_t loader_rank_samples(const ds_loader_opts *o, int64_t len)
{
    if (!o->ranks) return len;
    if (!o->global_batch) return dsi_order_share(len, o->ranks, o->drop_uneven);
    int64_t steps = (len + (o->drop_last ? 0 : o->global_batch - 1)) / o->global_batch;
    return steps * o->global_batch / o->ranks;
}

static const dsi_handle_kind loader_kind = {"loader", NULL, NULL, NULL};

ds_loader *ds_loader_new_with(ds_dataset *data, ds_loader_opts opts)
{
    if (!dsi_live(data, "loader")) return dsi_null_operand("loader");
    int64_t len = ds_dataset_len(data);
    if (!loader_check_opts(data, &opts, len)) {
        ds_dataset_free(data);
        return NULL;
    }
    ds_loader *l = dsi_alloc(sizeof *l);
    dsi_handle_call("loader_new");
    dsi_handle_made(l, &loader_kind);
    *l = (ds_loader){.data = data, .o = opts, .len = len};
    l->n_fields = ds_dataset_fields(data);
    for (int f = 0; f < l->n_fields; f++) {
        const ds_field *field = ds_dataset_field(data, f);
        l->row_bytes[f] = (size_t)dsi_numel(field->shape) * ds_dtype_size(field->dtype);
    }
    l->drawn = opts.draws ? opts.draws : len;
    l->samples = loader_rank_samples(&opts, l->drawn);
    if (opts.weights) {
        double *weights = dsi_alloc((size_t)len * sizeof *weights);
        l->o.weights = memcpy(weights, opts.weights, (size_t)len * sizeof *weights);
    }
    int64_t whole = l->samples / opts.batch_size, rest = l->samples % opts.batch_size;
    l->batches = whole + (rest && !opts.drop_last);
    if (!l->batches && !opts.rank)
        dsi_log(DSI_WARNING,
                "loader of %s: there is no batch: %lld samples are less than one of %lld, and "
                "drop_last leaves them out",
                ds_dataset_name(data), (long long)l->samples, (long long)opts.batch_size);
    l->rows = l->samples < opts.batch_size ? l->samples : opts.batch_size;
    l->order = dsi_alloc((size_t)l->samples * sizeof *l->order);
    l->n_slots = loader_count_slots(l);
    l->slots = dsi_alloc((size_t)(l->n_slots > 1 ? l->n_slots : 2) * sizeof *l->slots);
    if (opts.workers) l->prefetch = dsi_prefetch_new(opts.workers, l->n_slots, slot_fill, l);
    return l;
}

void ds_loader_free(ds_loader *l)
{
    if (!dsi_live(l, "loader_free")) return;
    if (l->taken) {
        dsi_fail(DS_ESTATE, "loader_free: the loader belongs to an engine, which frees it");
        return;
    }
    const char *was = dsi_handle_reason("ds_loader_free");
    bool quarantined = dsi_handle_freed(l);
    loader_leave_epoch(l);
    dsi_prefetch_free(l->prefetch);
    dsi_resident_free(l->resident);
    dsi_copier_free(l->copier);
    for (int k = 0; k < l->n_slots; k++)
        for (int f = 0; f < l->n_fields; f++) slot_drop_memory(&l->slots[k], f);
    ds_dataset_free(l->data);
    dsi_free(l->slots);
    dsi_free(l->order);
    dsi_free((double *)l->o.weights);
    dsi_handle_reason_end(was);
    if (!quarantined) dsi_free(l);
}

void dsi_loader_take(ds_loader *l, bool taken)
{
    if (l) l->taken = taken;
}

/* The batch's tensors, of n rows: on the device, or views of its slot's
 * tensors. */
static bool batch_fields(ds_loader *l, int64_t n, ds_tensor **field)
{
    int place = (int)(l->next % l->n_slots);
    const slot *s = &l->slots[place];
    if (l->resident) return dsi_resident_batch(l->resident, l->next * l->o.batch_size, n, field);
    if (l->copier) return dsi_copier_batch(l->copier, place, n, field);
    for (int f = 0; f < l->n_fields; f++) {
        ds_dims shape = s->field[f]->shape;
        shape.d[0] = n;
        field[f] = dsi_view_of(s->field[f], shape, s->field[f]->stride, 0);
    }
    return true;
}

/* Opens the turn and makes the batch's handles in it. */
static bool batch_hand_out(ds_loader *l, ds_batch *out)
{
    int64_t n = batch_len(l, l->next);
    l->turn = ds_scope_open();
    l->turn_number = dsi_scope_number(l->turn);
    if (!batch_fields(l, n, out->field)) return false;
    for (int f = 0; f < l->n_fields; f++)
        if (!(out->field[f] = dsi_to_current(out->field[f]))) return false;
    out->x = out->field[0];
    out->y = out->field[1];
    out->size = n;
    out->index = l->order + l->next * l->o.batch_size;
    return true;
}

/* Returns the slots of batches that were handed out to the workers: after they
 * have got new memory for the fields that the consumer kept, or when they were
 * copied, for which the host waits only if the next batch needs the slot. */
static ds_status slots_release(ds_loader *l)
{
    for (; l->running && !l->resident && l->released < l->next; l->released++) {
        int place = (int)(l->released % l->n_slots);
        bool free = true, needed = l->next - l->released == l->n_slots;
        ds_status status = l->copier ? dsi_copier_release(l->copier, place, needed, &free)
                                     : slot_own_memory(l, place);
        if (status != DS_OK || !free) return status;
        if (l->prefetch) dsi_prefetch_release(l->prefetch, l->released);
    }
    return DS_OK;
}

/* Batch l->next is in its slot, unless the copy that was begun ahead has read
 * it. False, with the message, if one of its samples failed. */
static bool slot_wait(ds_loader *l)
{
    int place = (int)(l->next % l->n_slots);
    const slot *s = &l->slots[place];
    if (l->copier && dsi_copier_is_queued(l->copier, place)) return true;
    if (l->prefetch)
        dsi_prefetch_wait(l->prefetch, l->next);
    else
        slot_fill(l, l->next, place);
    return s->status == DS_OK || dsi_fail(s->status, "%s", s->message) == DS_OK;
}

/* The batch after the one that was handed out: gets memory of the device, and
 * is copied to it if workers have filled its slot. Without memory it waits
 * until the batch in use has gone. */
static bool batch_prepare(ds_loader *l)
{
    int place = (int)(l->next % l->n_slots), before = dsi_error_count();
    if (l->next == l->batches || l->full) return true;
    bool filled = l->prefetch && dsi_prefetch_is_done(l->prefetch, l->next) &&
                  l->slots[place].status == DS_OK;
    ds_status status = dsi_copier_ahead(l->copier, filled ? place : -1, batch_len(l, l->next));
    l->full = status == DS_ENOMEM;
    if (l->full) dsi_error_forget(before);
    return status == DS_OK || l->full;
}

/* After a failure, which made the NULL, nothing is said. */
static bool loader_refuse_null(void)
{
    if (!ds_error())
        dsi_fail(DS_EINVAL, "loader_next: the loader is NULL: ds_engine_loader returns that for an "
                            "engine without .training_data");
    return false;
}

/* A call ends the last turn also if it then fails. */
bool ds_loader_next(ds_loader *l, ds_batch *out)
{
    if (!out) return dsi_invalid("loader_next: out is NULL");
    *out = (ds_batch){0};
    if (!dsi_live(l, "loader_next")) return loader_refuse_null();
    batch_end(l);
    if (ds_error()) return false; /* what failed in the turn ends the loop */
    if (slots_release(l) != DS_OK) return false;
    if (!l->running && loader_begin_epoch(l) != DS_OK) return false;
    if (l->next >= l->batches) {
        loader_leave_epoch(l);
        l->epoch++;
        return false;
    }
    dsi_handle_call("loader_next"); /* not ds_scope_close makes the batch */
    bool ok = (l->resident || slot_wait(l)) && batch_hand_out(l, out);
    if (ok || !l->resident) l->next++; /* a batch that failed is left out if the caller continues */
    return ok && (!l->copier || batch_prepare(l));
}

/* A stopped epoch counts: the next call of ds_loader_next begins the next
 * one. */
void ds_loader_stop(ds_loader *l)
{
    if (!l) return;
    bool begun = l->running;
    loader_leave_epoch(l);
    if (begun) l->epoch++;
}

int64_t ds_loader_len(const ds_loader *l) { return l ? l->batches : 0; }
int64_t ds_loader_epoch(const ds_loader *l) { return l ? l->epoch : 0; }
ds_dataset *ds_loader_dataset(ds_loader *l) { return l ? l->data : NULL; }

void ds_loader_set_epoch(ds_loader *l, int64_t epoch)
{
    if (!l) return;
    loader_leave_epoch(l);
    l->epoch = epoch;
}

bool dsi_loader_begun(const ds_loader *l) { return l->seeded; }
uint64_t dsi_loader_seed(const ds_loader *l) { return l->o.seed; }
void dsi_loader_set_seed(ds_loader *l, uint64_t seed) { l->o.seed = seed; }

/* Draws the seed of an epoch that has not begun, so that it can be saved. */
ds_loader_position ds_loader_tell(ds_loader *l)
{
    if (!l) return (ds_loader_position){0};
    loader_draw_seed(l);
    return (ds_loader_position){l->epoch, l->next, l->seed};
}

/* The data set's order is made again from the seed when the epoch begins. */
ds_status ds_loader_seek(ds_loader *l, ds_loader_position position)
{
    if (!dsi_live(l, "loader_seek")) return dsi_null_argument("loader_seek");
    if (position.epoch < 0 || position.batch < 0 || position.batch > l->batches)
        return dsi_fail(
            DS_EINVAL, "loader_seek: epoch %lld, batch %lld: expected a batch of 0 to %lld",
            (long long)position.epoch, (long long)position.batch, (long long)l->batches);
    loader_leave_epoch(l);
    l->epoch = position.epoch;
    l->next = position.batch;
    l->seed = position.seed;
    l->seeded = true;
    return DS_OK;
}
