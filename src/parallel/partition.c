/* parallel/partition.c: one parameter that is partitioned over ranks: Note
 * [Partitions] of partition.h.
 * SPDX-License-Identifier: MIT */
#include "partition.h"

#include "base/int.h"

#include <deepspeed/parallel.h>

static ds_status partition_materialize(void *arg, ds_tensor *x)
{
    dsi_partition *p = arg;
    (void)x;
    return p->owner->materialize(p);
}

dsi_partition *dsi_partition_of(const ds_tensor *x)
{
    return x && x->hooks && x->hooks->materialize == partition_materialize
               ? x->hooks->materialize_arg
               : NULL;
}

void dsi_partition_attach(dsi_partition *p)
{
    dsi_set_materialize_hook(p->x, partition_materialize, p);
}

void dsi_partition_detach(dsi_partition *p)
{
    if (p->request) dsi_request_wait(p->request);
    p->request = NULL;
    if (p->gathered && p->staging) dsi_staging_join(p->staging, &p->brought);
    if (p->staging) dsi_staging_forget(p->staging, &p->brought);
    dsi_hold(&p->gathered, NULL);
    dsi_hold(&p->shard, NULL);
    if (p->owned) dsi_set_materialize_hook(p->owned, NULL, NULL);
    dsi_hold(&p->owned, NULL);
    if (dsi_partition_of(p->x) == p) dsi_set_materialize_hook(p->x, NULL, NULL);
}

void dsi_partition_range(const dsi_partition *p, int64_t *begin, int64_t *end)
{
    *begin = dsi_min(p->n, p->shard_size * dsi_comm_rank(p->comm));
    *end = dsi_min(p->n, *begin + p->shard_size);
}

/* ---- the shard ---------------------------------------------------------------------------------------- */

static bool on_disk(const dsi_partition *p) { return p->swap != NULL; }

/* [shard_size], borrowed, to be read until it is closed. */
static ds_tensor *shard_open(dsi_partition *p)
{
    if (!on_disk(p)) return p->shard;
    return p->owner->free_buffer(p) == DS_OK ? dsi_param_swap_open(p->swap, p->unit) : NULL;
}

static void shard_close(const dsi_partition *p)
{
    if (on_disk(p)) dsi_param_swap_close(p->swap, p->unit);
}

/* The materialize hook of `owned`: reads it from disk. */
static ds_status shard_materialize(void *arg, ds_tensor *owned)
{
    dsi_partition *p = arg;
    ds_scope *scope = ds_scope_open();
    ds_tensor *shard = shard_open(p), *t = shard ? dsi_new(shard, owned->shape) : NULL;
    int64_t n = dsi_numel(owned->shape);
    ds_status status = t ? dsi_copy(dsi_flat_range(t, 0, n), dsi_flat_range(shard, 0, n))
                         : ds_error_status();
    if (shard) shard_close(p);
    if (status == DS_OK) dsi_tensor_set_data(owned, t);
    ds_scope_close(scope);
    return status;
}

ds_status dsi_shard_alloc(dsi_partition *p)
{
    ds_tensor *owned = p->owned;
    if (!on_disk(p) || !owned || owned->storage) return DS_OK;
    ds_scope *scope = ds_scope_open();
    ds_tensor *t = dsi_new(owned, owned->shape);
    if (t) dsi_tensor_set_data(owned, t);
    ds_scope_close(scope);
    return t ? DS_OK : ds_error_status();
}

ds_status dsi_shard_store(dsi_partition *p)
{
    if (!on_disk(p) || !p->owned || !p->owned->storage) return DS_OK;
    if (p->owner->free_buffer(p) != DS_OK ||
        dsi_param_swap_write(p->swap, p->unit, p->owned) != DS_OK)
        return ds_error_status();
    dsi_release_storage(p->owned);
    return DS_OK;
}

void dsi_shard_evict(dsi_partition *p)
{
    if (on_disk(p) && p->owned) dsi_release_storage(p->owned);
}

ds_status dsi_shard_to_disk(dsi_partition *p, const ds_tensor *values)
{
    int64_t n = dsi_numel(values->shape);
    ds_dims shape = n == p->n ? p->x->shape : ds_shape(n);
    dsi_device *host = dsi_device_get((ds_device){DS_CPU, 0});
    p->owned = dsi_ref(dsi_new_lazy(host, p->x->dtype, shape, shard_materialize, p));
    if (!p->owned) return ds_error_status();
    return dsi_param_swap_write(p->swap, p->unit, values);
}

/* ---- gather and evict --------------------------------------------------------------------------------- */

static void set_state(dsi_partition *p, dsi_partition_state state)
{
    int64_t elements = p->shard_size * dsi_comm_size(p->comm);
    if (p->live && (p->state == DSI_EVICTED) != (state == DSI_EVICTED))
        *p->live += state == DSI_EVICTED ? -elements : elements;
    p->state = state;
}

/* Copies a shard of the host's to its place in `all`, on the GPU; *shard
 * becomes that. The GPU waits for it here if other ranks do, else where it is
 * used. */
static ds_status shard_bring(dsi_partition *p, const ds_tensor *all, ds_tensor **shard)
{
    int64_t at = p->shard_size * dsi_comm_rank(p->comm);
    ds_tensor *from = *shard;
    *shard = dsi_flat_range(all, at, at + p->shard_size);
    if (!p->staging) return dsi_copy(*shard, dsi_flat_range(from, 0, p->shard_size));
    ds_status status = dsi_staging_copy(p->staging, *shard, from, &p->brought);
    if (status != DS_OK || dsi_comm_size(p->comm) == 1) return status;
    return dsi_staging_join(p->staging, &p->brought);
}

ds_status dsi_partition_gather_start(dsi_partition *p)
{
    if (p->state != DSI_EVICTED) return DS_OK;
    ds_tensor *all = dsi_new(p->x, ds_shape(p->shard_size * dsi_comm_size(p->comm)));
    ds_tensor *shard = all ? shard_open(p) : NULL;
    if (!shard) return ds_error_status();
    bool apart = shard->device != all->device;
    ds_status status = apart ? shard_bring(p, all, &shard) : DS_OK;
    if (status == DS_OK && (!apart || dsi_comm_size(p->comm) > 1)) {
        p->request = dsi_all_gather_start(p->comm, all->device, dsi_v(shard), dsi_v(all),
                                          "ZeRO stage 3, a module's parameter: all ranks call the "
                                          "same modules in the same order");
        if (!p->request) status = ds_error_status();
    }
    if (status != DS_OK) {
        shard_close(p);
        return status;
    }
    p->gathered = dsi_ref(all);
    set_state(p, DSI_GATHERING);
    return DS_OK;
}

/* The GPU's stream is behind the gather; a buffer of the swap may be read into
 * again, so the host waits for its copy. */
static ds_status gather_wait(dsi_partition *p)
{
    ds_status status = p->request ? dsi_request_wait(p->request) : DS_OK;
    p->request = NULL;
    if (p->staging && status == DS_OK) status = dsi_staging_join(p->staging, &p->brought);
    if (p->staging && on_disk(p) && dsi_staging_wait(p->staging) != DS_OK)
        status = ds_error_status();
    return status;
}

/* Ends the gather; x gets what was gathered if it is wanted. */
static ds_status gather_end(dsi_partition *p, bool wanted)
{
    if (p->state != DSI_GATHERING) return DS_OK;
    ds_status status = gather_wait(p);
    shard_close(p);
    bool present = wanted && status == DS_OK;
    if (present) {
        int64_t stride[DS_MAX_DIMS];
        dsi_row_major(p->x->shape, stride);
        dsi_tensor_set_data(p->x, dsi_view_of(p->gathered, p->x->shape, stride, 0));
    }
    set_state(p, present ? DSI_PRESENT : DSI_EVICTED);
    dsi_hold(&p->gathered, NULL);
    return status;
}

ds_status dsi_partition_gather_wait(dsi_partition *p) { return gather_end(p, true); }
ds_status dsi_partition_cancel(dsi_partition *p) { return gather_end(p, false); }

ds_status dsi_partition_gather(dsi_partition *p)
{
    if (p->state == DSI_PRESENT) return DS_OK;
    if (p->state == DSI_EVICTED && p->owner->before_gather) p->owner->before_gather(p);
    ds_scope *scope = ds_scope_open();
    ds_status status = dsi_partition_gather_start(p);
    if (status == DS_OK) status = dsi_partition_gather_wait(p);
    ds_scope_close(scope);
    return dsi_comm_all_or_none(p->world, status);
}

void dsi_partition_evict(dsi_partition *p)
{
    if (p->state != DSI_PRESENT || p->users || p->unfinished) return;
    dsi_release_storage(p->x);
    p->pinned = false;
    set_state(p, DSI_EVICTED);
}

ds_status dsi_partition_scatter(dsi_partition *p, int root)
{
    int64_t begin, end;
    dsi_partition_range(p, &begin, &end);
    if (p->owner->wait_gathers && p->owner->wait_gathers(p) != DS_OK) return ds_error_status();
    if (ds_broadcast(p->comm, p->x, root) != DS_OK || dsi_shard_alloc(p) != DS_OK)
        return ds_error_status();
    if (begin < end && dsi_copy(dsi_flat_range(p->owned, 0, end - begin),
                                dsi_flat_range(p->x, begin, end)) != DS_OK)
        return ds_error_status();
    return dsi_shard_store(p);
}

/* ---- for users ---------------------------------------------------------------------------------------- */

ds_status ds_gathered(ds_tensor **params, int n)
{
    if (n > 0 && !params) return dsi_null_argument("gathered");
    ds_status status = DS_OK;
    for (int i = 0; status == DS_OK && i < n; i++) {
        dsi_partition *p = dsi_partition_of(params[i]);
        if (!p) continue;
        status = dsi_partition_gather(p);
        if (status == DS_OK) p->users++;
    }
    return status;
}

ds_status ds_gathered_end(ds_tensor **params, int n, int modifier_rank)
{
    if (n > 0 && !params) return dsi_null_argument("gathered_end");
    ds_status status = DS_OK;
    ds_scope *scope = ds_scope_open();
    for (int i = 0; status == DS_OK && i < n; i++) {
        dsi_partition *p = dsi_partition_of(params[i]);
        if (!p || !p->users) continue;
        /* of a shared expert: the rank in the modifier's place among those that
         * have the same ones */
        int groups = dsi_comm_size(p->world) / dsi_comm_size(p->comm);
        if (modifier_rank >= 0) status = dsi_partition_scatter(p, modifier_rank / groups);
        p->users--;
        dsi_partition_evict(p);
    }
    ds_scope_close(scope);
    return status;
}
