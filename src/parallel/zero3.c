/* parallel/zero3.c: when partitioned parameters are gathered and evicted: Note
 * [Stage 3].
 * Source: Rajbhandari et al., ZeRO, arXiv 1910.02054, section 5; ZeRO-Infinity,
 * arXiv 2104.07857, section 6.
 *
 * Invariants:
 * - A unit's index is that of the layout. Units whose parameter is not
 *   partitioned have an entry too, which is never used.
 * - `home` holds this rank's shards of the units before first_on_disk, end to
 *   end as the layout says; the others are in `swap`.
 * - While `follows`, trace[0 .. at) are this micro step's uses and trace[at ..)
 *   those that are expected. Else the trace ends at `at` and is being recorded.
 * SPDX-License-Identifier: MIT */
#include "zero3.h"

#include "autograd/node.h"
#include "base/list.h"
#include "base/map.h"
#include "nn/module.h"
#include "partition.h"
#include "zero_init.h"

#include <stdlib.h>

typedef struct Unit {
    dsi_partition p; /* first */
    dsi_zero3 *z;
    int k, param; /* of the layout */
    bool partitioned;
    bool read_ahead; /* the shard was asked for ahead of its gather */
} Unit;

/* A module with partitioned parameters of its own. */
typedef struct Owner {
    const ds_module *m;
    int n;
    Unit **unit; /* [n] */
} Owner;

struct dsi_zero3 {
    ds_module *model;
    const dsi_flat *f;
    ds_comm *comm;
    dsi_zero3_opts o;
    dsi_call_hooks hooks;
    ds_tensor *home; /* counted */
    int first_on_disk;
    dsi_param_swap *swap; /* NULL: all shards are in memory */
    Unit *unit;           /* [f->units] */
    struct {
        DSI_LIST(Owner)
    } owners; /* by address */

    int calls;     /* of modules, that run, one in the other */
    bool backward; /* a backward pass runs */
    int64_t live;  /* elements of units that are present or being gathered */

    struct {
        DSI_LIST(int)
    } trace;                /* units */
    int at;                 /* next use */
    bool follows, followed; /* followed: to the end of the latest backward pass */
    void (*after_use)(void *arg);
    void *after_use_arg;
};

static int64_t unit_elements(const Unit *u) { return u->z->f->unit[u->k].n; }

/* ---- the owner of partitions --------------------------------------------------------------------------- */

/* Evicts parameters that are not in use, until u fits into max_live. */
static void unit_before_gather(dsi_partition *p)
{
    Unit *u = (Unit *)p;
    dsi_zero3 *z = u->z;
    u->read_ahead = false; /* the gather takes what was read */
    for (int k = 0; k < z->f->units && z->live + unit_elements(u) > z->o.max_live; k++) {
        dsi_partition *other = &z->unit[k].p;
        if (z->unit[k].partitioned && !other->pinned && !dsi_is_acquired(other->x))
            dsi_partition_evict(other);
    }
}

/* Where all buffers of the swap are busy, gathers that began earlier come to an
 * end. */
static ds_status unit_free_buffer(dsi_partition *p)
{
    Unit *u = (Unit *)p;
    dsi_zero3 *z = u->z;
    ds_status status = DS_OK;
    for (int k = z->first_on_disk; status == DS_OK && k < z->f->units; k++) {
        if (dsi_param_swap_has_room(z->swap, u->k)) break;
        status = dsi_partition_gather_wait(&z->unit[k].p);
    }
    return status;
}

static ds_status unit_wait_gathers(dsi_partition *p)
{
    return dsi_zero3_wait_gathers(((Unit *)p)->z);
}

/* In backward; or in a forward that uses another module's parameter. */
static ds_status unit_materialize(dsi_partition *p)
{
    Unit *u = (Unit *)p;
    dsi_zero3 *z = u->z;
    if (!z->calls && !z->backward)
        return dsi_fail(DS_ESTATE,
                        "zero: %s is divided among %d ranks (stage 3): read it between ds_gathered "
                        "and ds_gathered_end, on all ranks",
                        dsi_flat_path(z->f, z->model, u->param), z->f->unit[u->k].ranks);
    ds_status status = dsi_partition_gather(p);
    p->pinned = status == DS_OK;
    return status;
}

static const dsi_partition_owner unit_owner = {
    .materialize = unit_materialize,
    .before_gather = unit_before_gather,
    .free_buffer = unit_free_buffer,
    .wait_gathers = unit_wait_gathers,
};

/* ---- the trace ------------------------------------------------------------------------------------------ */

/* Evaluation is not a part of a step. */
static bool is_traced(const dsi_zero3 *z) { return z->backward || ds_grad_enabled(); }

/* Starts gathers, and reads from disk, for the next uses of the trace. All
 * ranks start the same gathers in the same order. */
static ds_status prefetch_next(dsi_zero3 *z)
{
    int64_t ahead = 0;
    int buffers = z->o.swap.buffer_count; /* one of them stays for reads that are not ahead */
    for (int t = z->at; z->follows && t < z->trace.n; t++) {
        Unit *u = &z->unit[z->trace.at[t]];
        int64_t n = unit_elements(u);
        ahead += n;
        if (ahead > z->o.prefetch) break;
        if (u->p.state != DSI_EVICTED) continue;
        if (z->live + n > z->o.max_live) break;
        if (u->p.swap && --buffers < 1) break;
        if (u->p.swap && !u->read_ahead) {
            dsi_param_swap_ahead(z->swap, u->k);
            u->read_ahead = true; /* on all ranks, whether there was a buffer or not */
            continue;
        }
        ds_scope *scope = ds_scope_open();
        ds_status status = dsi_partition_gather_start(&u->p);
        u->read_ahead = false;
        ds_scope_close(scope);
        if (status != DS_OK) return dsi_comm_all_or_none(z->comm, status);
    }
    return DS_OK;
}

/* A use: the next one of the trace, or the trace is wrong; while there is none
 * it is recorded. */
static void trace_use(Unit *u)
{
    dsi_zero3 *z = u->z;
    if (!is_traced(z)) return;
    if (z->follows && (z->at == z->trace.n || z->trace.at[z->at] != u->k)) {
        z->follows = false;
        z->trace.n = z->at; /* the uses so far are right; the rest is recorded again */
    }
    if (!z->follows) dsi_list_add(&z->trace, u->k);
    z->at++;
}

/* Whether evicting u now would cost a gather within max_reuse_distance
 * elements. */
static bool is_used_again_soon(const Unit *u)
{
    const dsi_zero3 *z = u->z;
    int64_t distance = 0;
    if (!z->follows || !is_traced(z) || z->live > z->o.max_live) return false;
    for (int t = z->at; t < z->trace.n && distance <= z->o.max_reuse_distance; t++) {
        if (z->trace.at[t] == u->k) return true;
        distance += z->f->unit[z->trace.at[t]].n;
    }
    return false;
}

/* ---- hooks ---------------------------------------------------------------------------------------------- */

static int owner_by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const Owner *)a)->m, y = (uintptr_t)((const Owner *)b)->m;
    return x < y ? -1 : x > y;
}

static Owner *owner_find(const dsi_zero3 *z, const ds_module *m)
{
    Owner key = {.m = m};
    if (!z->owners.n) return NULL;
    return bsearch(&key, z->owners.at, (size_t)z->owners.n, sizeof key, owner_by_address);
}

/* The hook before a module's call: gathers its own parameters, which stay while
 * it runs (users). Blocks; collective. */
static ds_status gather_before_call(void *arg, ds_module *m)
{
    dsi_zero3 *z = arg;
    Owner *o = owner_find(z, m);
    ds_status status = DS_OK;
    for (int i = 0; o && status == DS_OK && i < o->n; i++) {
        Unit *u = o->unit[i];
        trace_use(u);
        status = dsi_partition_gather(&u->p);
        if (status == DS_OK)
            u->p.users++;
        else
            for (int j = 0; j < i; j++) o->unit[j]->p.users--;
    }
    if (status == DS_OK && o) status = prefetch_next(z);
    if (status == DS_OK) z->calls++;
    return status;
}

/* The hook after a module's call, of whatever result. */
static ds_status evict_after_call(void *arg, ds_module *m, ds_tensor *y)
{
    dsi_zero3 *z = arg;
    Owner *o = owner_find(z, m);
    (void)y;
    z->calls--;
    for (int i = 0; o && i < o->n; i++) {
        o->unit[i]->p.users--;
        if (!is_used_again_soon(o->unit[i])) dsi_partition_evict(&o->unit[i]->p);
    }
    return DS_OK;
}

/* A node that saved u's parameter has passed. */
static void evict_after_use(void *arg, ds_tensor *x)
{
    Unit *u = arg;
    (void)x;
    trace_use(u);
    u->p.pinned = false;
    if (!is_used_again_soon(u)) dsi_partition_evict(&u->p);
    prefetch_next(u->z); /* after a failure all that follows fails */
    if (u->z->backward && u->z->after_use) u->z->after_use(u->z->after_use_arg);
}

void dsi_zero3_set_after_use(dsi_zero3 *z, void (*fn)(void *arg), void *arg)
{
    z->after_use = fn;
    z->after_use_arg = arg;
}

static void evict_all(dsi_zero3 *z)
{
    for (int k = 0; k < z->f->units; k++)
        if (z->unit[k].partitioned) dsi_partition_evict(&z->unit[k].p);
}

/* The uses so far are those of a micro step: one that ended early was another
 * one. */
static void trace_end(dsi_zero3 *z)
{
    z->trace.n = z->at;
    z->follows = true;
    z->at = 0;
}

void dsi_zero3_set_backward(dsi_zero3 *z, bool runs)
{
    z->backward = runs;
    if (runs) return;
    evict_all(z);
    z->followed = z->follows && z->at == z->trace.n;
    trace_end(z);
}

ds_status dsi_zero3_wait_gathers(dsi_zero3 *z)
{
    ds_status status = DS_OK;
    for (int k = 0; k < z->f->units; k++)
        if (dsi_partition_cancel(&z->unit[k].p) != DS_OK) status = ds_error_status();
    return status;
}

uint64_t dsi_zero3_followed(const dsi_zero3 *z)
{
    size_t bytes = (size_t)z->trace.n * sizeof *z->trace.at;
    return z->followed ? dsi_fnv1a(DSI_FNV1A, z->trace.at, bytes) : 0;
}

bool dsi_zero3_will_follow(const dsi_zero3 *z, uint64_t trace)
{
    for (int k = 0; k < z->f->units; k++)
        if (z->unit[k].partitioned && z->unit[k].p.state != DSI_EVICTED) return false;
    return !z->at && z->follows && trace && dsi_zero3_followed(z) == trace;
}

void dsi_zero3_shards_changed(dsi_zero3 *z)
{
    evict_all(z);
    if (z->at) trace_end(z);
    for (int k = 0; k < z->f->units; k++) z->unit[k].read_ahead = false;
}

/* ---- life ----------------------------------------------------------------------------------------------- */

/* This rank's elements of the parameter, which is whole or ds_zero_init's, to
 * its shard. */
static ds_status unit_take_shard(Unit *u)
{
    const dsi_flat *f = u->z->f;
    const dsi_flat_unit *l = &f->unit[u->k];
    dsi_partition *p = &u->p;
    if (u->k >= u->z->first_on_disk)
        p->swap = u->z->swap;
    else
        p->shard = dsi_ref(dsi_flat_range(u->z->home, l->owned_at, l->owned_at + l->shard_size));
    int64_t n = f->param[u->param].end - f->param[u->param].begin;
    if (!n) return DS_OK;
    ds_tensor *from = dsi_zero_init_shard(p->x);
    from = dsi_flat_range(from ? from : dsi_flat_in_param(f, u->param), 0, n);
    if (p->swap) return dsi_shard_to_disk(p, from);
    p->owned = dsi_ref(dsi_flat_in_owned(f, u->param, u->z->home));
    return dsi_copy(dsi_flat_range(p->owned, 0, n), from);
}

/* Makes unit k's partition from its parameter, whose storage is released. Units
 * of several small parameters stay whole. */
static ds_status unit_partition(dsi_zero3 *z, int k)
{
    const dsi_flat_unit *l = &z->f->unit[k];
    Unit *u = &z->unit[k];
    *u = (Unit){.z = z, .k = k, .param = l->first};
    if (!l->solo) return DS_OK;
    u->p = (dsi_partition){.owner = &unit_owner,
                           .x = z->f->param[l->first].x,
                           .comm = l->comm,
                           .world = z->comm,
                           .n = z->f->param[l->first].n,
                           .shard_size = l->shard_size,
                           .live = &z->live,
                           .staging = z->o.staging,
                           .unit = k};
    DSI_ASSERT(u->z);
    if (unit_take_shard(u) != DS_OK) return ds_error_status();
    u->partitioned = true;
    dsi_zero_init_drop(u->p.x);
    dsi_release_storage(u->p.x);
    dsi_partition_attach(&u->p);
    dsi_set_after_use_hook(u->p.x, evict_after_use, u);
    return DS_OK;
}

/* Lists m and the modules below it that have partitioned parameters of their
 * own. */
static void owner_add(dsi_zero3 *z, const ds_module *m)
{
    int direct = ds_module_params(m); /* without those of its children */
    for (int i = 0; i < ds_module_children(m); i++) {
        const ds_module *child = ds_module_child(m, i);
        direct -= ds_module_params(child);
        owner_add(z, child);
    }
    Owner o = {.m = m, .unit = dsi_alloc((size_t)direct * sizeof *o.unit)};
    for (int i = 0; i < direct; i++) { /* a module's own parameters come first */
        dsi_partition *p = dsi_partition_of(ds_module_param_at(m, i, NULL));
        if (p && p->owner == &unit_owner) o.unit[o.n++] = (Unit *)p;
    }
    if (o.n)
        dsi_list_add(&z->owners, o);
    else
        dsi_free(o.unit);
}

/* Memory for the shards of the first units, up to max_in_cpu elements, and a
 * file for those of the others, if there is to be one. */
static ds_status make_home(dsi_zero3 *z)
{
    const dsi_flat *f = z->f;
    const ds_tensor *like = f->param[0].x;
    const dsi_param_swap_opts *o = &z->o.swap;
    int64_t left = o->nvme_path ? o->max_in_cpu : INT64_MAX;
    for (int k = 0; k < f->units && z->first_on_disk == k; k++) {
        if (f->unit[k].solo) left -= f->unit[k].shard_size;
        if (left >= 0) z->first_on_disk++;
    }
    bool disk = z->first_on_disk < f->units;
    int64_t n = disk ? f->unit[z->first_on_disk].owned_at : f->owned;
    ds_scope *scope = ds_scope_open();
    z->home = dsi_ref(z->o.staging
                          ? dsi_staging_memory(z->o.staging, like->dtype, n)
                          : dsi_fill(dsi_new_on(like->device, like->dtype, ds_shape(n)), 0));
    ds_scope_close(scope);
    if (z->home && disk)
        z->swap = dsi_param_swap_new(f, z->model, z->first_on_disk, o->nvme_path, o, z->o.staging);
    return z->home && (z->swap || !disk) ? DS_OK : ds_error_status();
}

static ds_status partition_model(dsi_zero3 *z)
{
    if (make_home(z) != DS_OK) return ds_error_status();
    for (int k = 0; k < z->f->units; k++) {
        ds_scope *scope = ds_scope_open();
        ds_status status = unit_partition(z, k);
        ds_scope_close(scope);
        if (status != DS_OK) return status;
    }
    owner_add(z, z->model);
    if (z->owners.n)
        qsort(z->owners.at, (size_t)z->owners.n, sizeof *z->owners.at, owner_by_address);
    z->hooks = (dsi_call_hooks){z, gather_before_call, evict_after_call};
    dsi_module_set_hooks(z->model, &z->hooks);
    return DS_OK;
}

dsi_zero3 *dsi_zero3_new(ds_module *model, const dsi_flat *f, ds_comm *comm,
                         const dsi_zero3_opts *o)
{
    dsi_zero3 *z = dsi_alloc(sizeof *z);
    z->model = model;
    z->f = f;
    z->comm = comm;
    z->o = *o;
    z->unit = dsi_alloc((size_t)f->units * sizeof *z->unit);
    if (partition_model(z) == DS_OK) return z;
    dsi_zero3_free(z);
    return NULL;
}

void dsi_zero3_free(dsi_zero3 *z)
{
    if (!z) return;
    if (z->hooks.arg) dsi_module_set_hooks(z->model, NULL);
    for (int k = 0; k < z->f->units; k++) {
        dsi_partition *p = &z->unit[k].p;
        if (p->x) dsi_partition_detach(p);
        if (z->unit[k].partitioned) dsi_set_after_use_hook(p->x, NULL, NULL);
    }
    for (int i = 0; i < z->owners.n; i++) dsi_free(z->owners.at[i].unit);
    dsi_list_free(&z->owners);
    dsi_list_free(&z->trace);
    dsi_param_swap_free(z->swap);
    dsi_unref(z->home);
    dsi_free(z->unit);
    dsi_free(z);
}

/* ---- shards --------------------------------------------------------------------------------------------- */

static dsi_partition *param_partition(const dsi_zero3 *z, int i)
{
    return &z->unit[z->f->param[i].unit].p;
}

bool dsi_zero3_has_unit(const dsi_zero3 *z, int unit) { return z && z->unit[unit].partitioned; }
ds_tensor *dsi_zero3_shard(const dsi_zero3 *z, int i) { return param_partition(z, i)->owned; }

bool dsi_zero3_on_disk(const dsi_zero3 *z, int i)
{
    return z && param_partition(z, i)->swap && param_partition(z, i)->owned;
}

ds_status dsi_zero3_shard_alloc(dsi_zero3 *z, int i)
{
    return dsi_shard_alloc(param_partition(z, i));
}

ds_status dsi_zero3_shard_store(dsi_zero3 *z, int i)
{
    return dsi_shard_store(param_partition(z, i));
}

void dsi_zero3_shard_evict(dsi_zero3 *z, int i) { dsi_shard_evict(param_partition(z, i)); }

int64_t dsi_zero3_memory_bytes(const dsi_zero3 *z)
{
    int64_t buffers = z->swap ? dsi_param_swap_memory(z->swap) : 0;
    return (int64_t)ds_dtype_size(z->home->dtype) * dsi_numel(z->home->shape) + buffers;
}

int64_t dsi_zero3_disk_bytes(const dsi_zero3 *z)
{
    return z->swap ? dsi_param_swap_file(z->swap) : 0;
}
