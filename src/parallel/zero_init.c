/* parallel/zero_init.c: deepspeed.zero.Init: a model whose parameters are
 * partitioned over ranks as they are made, so that no rank ever has it whole.
 *
 * A layer gives its parameters their first values after they were made; so a
 * parameter is partitioned when the next one is made, or when the making ends.
 * Until then an op that reads or writes a partitioned one gathers it again: all
 * ranks run the same constructors.
 *
 * With remote_device "nvme" each shard is a mapped file that has no name. Its
 * pages need not stay in memory: the kernel writes them back.
 *
 * Invariants:
 * - A partition belongs to its parameter's handle, and is freed with it, or
 *   when an engine takes the parameter over.
 * - Partitions that are `unfinished` are in making.pending, and the other way
 *   round: their parameter is present, with values that the shards do not have.
 * SPDX-License-Identifier: MIT */
#include "zero_init.h"

#include "base/list.h"
#include "base/text.h"
#include "config/config.h"
#include "mapped.h"
#include "nn/module.h"
#include "partition.h"

#include <deepspeed/parallel.h>

#include <string.h>
#include <unistd.h>

/* The state of this thread between ds_zero_init and ds_zero_init_end. */
static _Thread_local struct {
    ds_comm *comm; /* NULL: nothing is partitioned */
    char *folder;  /* of shards in files; NULL: they are in memory */
    bool on_host;  /* shards of a GPU's parameters are in the host's memory, or in files */
    ds_dtype dtype;
    struct {
        DSI_LIST(dsi_partition *)
    } pending;
} making;

/* ---- the owner of partitions --------------------------------------------------------------------------- */

static void pending_add(dsi_partition *p)
{
    if (!p->unfinished) dsi_list_add(&making.pending, p);
    p->unfinished = true;
}

static ds_status made_materialize(dsi_partition *p)
{
    if (!making.comm)
        return dsi_fail(DS_ESTATE,
                        "zero_init: a parameter %s is divided among %d ranks: read it between "
                        "ds_gathered and ds_gathered_end, on all ranks",
                        dsi_shape_text(p->x->shape), ds_comm_size(p->comm));
    ds_status status = dsi_partition_gather(p);
    if (status == DS_OK) pending_add(p); /* the op may write to it */
    return status;
}

static const dsi_partition_owner made_owner = {.materialize = made_materialize};

static dsi_partition *made_partition(const ds_tensor *x)
{
    dsi_partition *p = dsi_partition_of(x);
    return p && p->owner == &made_owner ? p : NULL;
}

/* p's parameter is freed, or taken over. */
static void made_free(void *arg)
{
    dsi_partition *p = arg;
    for (int i = 0; p->unfinished && i < making.pending.n; i++)
        if (making.pending.at[i] == p) making.pending.at[i] = making.pending.at[--making.pending.n];
    dsi_partition_detach(p);
    dsi_free(p);
}

/* ---- partitioning --------------------------------------------------------------------------------------- */

/* [shard_size] zeros, where shards are kept. */
static ds_tensor *made_shard_new(const dsi_partition *p)
{
    ds_dims shape = ds_shape(p->shard_size);
    if (making.folder)
        return dsi_mapped_new("zero_init", making.folder, dsi_comm_rank(p->comm), p->x->dtype,
                              p->shard_size);
    return dsi_fill(making.on_host ? dsi_new_host(p->x->dtype, shape) : dsi_new(p->x, shape), 0);
}

/* The parameter gets the dtype that was asked for; its values go to the shards,
 * and it is evicted. */
static ds_status made_finish(dsi_partition *p)
{
    ds_tensor *x = p->x;
    if (x->dtype != making.dtype && x->dtype <= DS_BF16) {
        ds_tensor *y = dsi_to_dtype(x, making.dtype);
        if (!y) return ds_error_status();
        dsi_tensor_set_data(x, y);
    }
    if (!p->shard) {
        int64_t begin, end;
        dsi_partition_range(p, &begin, &end);
        p->shard = dsi_ref(made_shard_new(p));
        if (!p->shard) return ds_error_status();
        if (begin < end) p->owned = dsi_ref(dsi_flat_range(p->shard, 0, end - begin));
    }
    if (dsi_partition_scatter(p, 0) != DS_OK) return ds_error_status();
    p->unfinished = false;
    dsi_partition_evict(p);
    dsi_mapped_release_pages(p->shard);
    return DS_OK;
}

/* Constructors go on after a failure; this rank may have made a parameter less
 * than the others. */
static ds_status pending_finish(void)
{
    ds_status status = ds_error() ? ds_error_status() : DS_OK;
    for (int i = 0; status == DS_OK && i < making.pending.n; i++) {
        ds_scope *scope = ds_scope_open();
        status = made_finish(making.pending.at[i]);
        ds_scope_close(scope);
    }
    making.pending.n = 0;
    return dsi_comm_all_or_none(making.comm, status);
}

/* x has been made: those before it have their values by now. */
static ds_status made_add(void *arg, ds_tensor *x)
{
    (void)arg;
    if (pending_finish() != DS_OK) return ds_error_status();
    if (!ds_numel(x)) return DS_OK;
    int64_t ranks = ds_comm_size(making.comm), unit = ranks * DSI_FLAT_ALIGN;
    dsi_partition *p = dsi_alloc(sizeof *p);
    *p = (dsi_partition){.owner = &made_owner,
                         .x = x,
                         .comm = making.comm,
                         .world = making.comm,
                         .n = ds_numel(x),
                         .state = DSI_PRESENT};
    p->shard_size = (p->n + unit - 1) / unit * DSI_FLAT_ALIGN;
    dsi_partition_attach(p);
    x->hooks->on_free = made_free;
    pending_add(p);
    return DS_OK;
}

/* Reads the options of parameters from the configuration: o->dtype,
 * o->remote_device, *folder (to be freed; NULL: in memory), and whether they
 * are partitioned at all. */
static ds_status config_apply(ds_zero_init_opts *o, int ranks, char **folder, bool *partition)
{
    dsi_config *c = o->config ? dsi_config_read(o->config, ranks) : NULL;
    if (o->config && !c) return ds_error_status();
    static const char *const remote[] = {[DSI_OFFLOAD_CPU] = "cpu", [DSI_OFFLOAD_NVME] = "nvme"};
    if (c && !o->remote_device) o->remote_device = remote[c->zero.offload_param.device];
    const char *device = o->remote_device, *path = c ? c->zero.offload_param.nvme_path : NULL;
    bool nvme = device && !strcmp(device, "nvme");
    ds_status status = DS_OK;
    if (device && !nvme && strcmp(device, "cpu") != 0)
        status = dsi_fail(DS_EINVAL, "zero_init: remote_device is \"%s\": expected cpu or nvme",
                          device);
    else if (nvme && (!path || !*path))
        status = dsi_fail(DS_EINVAL, "zero_init: shards in files need a folder: give a config with "
                                     "zero_optimization.offload_param.nvme_path");
    if (c) o->dtype = c->fp16.enabled ? DS_F16 : c->bf16.enabled ? DS_BF16 : DS_F32;
    *partition = !c || c->zero.stage == 3;
    if (status == DS_OK && nvme && *partition)
        *folder = dsi_text_of("%s/zero_stage_3", path).s; /* DeepSpeed's place */
    dsi_config_free(c);
    return status;
}

ds_status ds_zero_init_with(ds_zero_init_opts opts)
{
    ds_comm *comm = opts.comm ? opts.comm : ds_world();
    bool partition = true;
    char *folder = NULL;
    if (!comm) return ds_error_status();
    if (making.comm)
        return dsi_fail(DS_ESTATE, "zero_init: called twice without ds_zero_init_end between");
    if (opts.dtype != DS_F32 && opts.dtype != DS_F16 && opts.dtype != DS_BF16)
        return dsi_fail(DS_EINVAL, "zero_init: dtype is %s: expected float32, float16 or bfloat16",
                        ds_dtype_name(opts.dtype));
    if (config_apply(&opts, ds_comm_size(comm), &folder, &partition) != DS_OK)
        return ds_error_status();
    bool from_gpu = opts.remote_device && ds_current_device().kind != DS_CPU;
    bool streams = folder || from_gpu || (opts.config && opts.dtype != DS_F32);
    if (!partition || (ds_comm_size(comm) == 1 && !streams)) return DS_OK;
    making.comm = comm;
    making.folder = folder;
    making.on_host = opts.remote_device != NULL;
    making.dtype = opts.dtype;
    dsi_on_param(made_add, NULL);
    return DS_OK;
}

ds_status ds_zero_init(void) { return ds_zero_init_with((ds_zero_init_opts){0}); }

ds_status ds_zero_init_end(void)
{
    if (!making.comm) return DS_OK;
    ds_status status = pending_finish();
    dsi_on_param(NULL, NULL);
    dsi_list_free(&making.pending);
    if (making.folder) rmdir(making.folder); /* all ranks have made their files */
    dsi_free(making.folder);
    making.folder = NULL;
    making.comm = NULL;
    return status;
}

/* ---- taking over ---------------------------------------------------------------------------------------- */

bool dsi_zero_init_has(const ds_tensor *x) { return made_partition(x) != NULL; }

ds_tensor *dsi_zero_init_shard(const ds_tensor *x)
{
    const dsi_partition *p = made_partition(x);
    return p ? p->shard : NULL;
}

ds_status dsi_zero_init_to(ds_tensor *x, ds_dtype dtype)
{
    dsi_partition *p = made_partition(x);
    if (!p || p->state == DSI_PRESENT || x->dtype == dtype) return DS_OK;
    ds_tensor *shard = dsi_to_dtype(p->shard, dtype);
    if (!shard) return ds_error_status();
    if (p->owned) {
        ds_tensor *owned = dsi_flat_range(shard, 0, dsi_numel(p->owned->shape));
        dsi_hold(&p->owned, owned);
    }
    dsi_hold(&p->shard, shard);
    x->dtype = dtype;
    return DS_OK;
}

ds_status dsi_zero_init_join(ds_tensor *x)
{
    dsi_partition *p = made_partition(x);
    ds_status status = p ? dsi_partition_gather(p) : DS_OK;
    if (status == DS_OK) dsi_zero_init_drop(x);
    return status;
}

void dsi_zero_init_drop(ds_tensor *x)
{
    dsi_partition *p = made_partition(x);
    if (!p) return;
    x->hooks->on_free = NULL;
    made_free(p);
}
