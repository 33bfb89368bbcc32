/* parallel/zero_make.c: ZeRO is set up: the model converted and equal on all
 * ranks, its parameters laid out, divided or joined, masters and files made,
 * and the optimizer told what it updates. zero.c runs the steps.
 * SPDX-License-Identifier: MIT */
#include "base/mem.h"
#include "zero_init.h"
#include "zero_state.h"

/* ---- parameters as the model has them -------------------------------------------------------------------- */

ds_tensor *dsi_zero_model_shard(const dsi_zero *z, int i)
{
    return dsi_zero3_has_unit(z->zero3, z->flat->param[i].unit) ? dsi_zero3_shard(z->zero3, i)
                                                                : dsi_flat_in_param(z->flat, i);
}

bool dsi_zero_on_disk(const dsi_zero *z, int i) { return dsi_zero3_on_disk(z->zero3, i); }

static bool is_outgoing(const dsi_zero *z, int i)
{
    return z->outgoing_params && z->outgoing_params[i];
}

bool dsi_zero_copies_master(const dsi_zero *z, int i)
{
    bool apart = z->masters && dsi_zero_model_shard(z, i) && !is_outgoing(z, i) &&
                 z->masters->device != dsi_zero_model_shard(z, i)->device;
    return z->o.dtype == DS_F32 || apart || dsi_zero_on_disk(z, i);
}

ds_tensor *dsi_zero_shard_open(void *arg, int i, bool write)
{
    const dsi_zero *z = arg;
    if (write && is_outgoing(z, i)) return z->outgoing_params[i];
    if (write && dsi_zero_on_disk(z, i) && dsi_zero3_shard_alloc(z->zero3, i) != DS_OK) return NULL;
    return dsi_zero_model_shard(z, i);
}

ds_status dsi_zero_shard_close(void *arg, int i, bool write)
{
    const dsi_zero *z = arg;
    if (write && is_outgoing(z, i)) return dsi_zero_host_send_param(z, i);
    if (!dsi_zero_on_disk(z, i)) return DS_OK;
    if (write) return dsi_zero3_shard_store(z->zero3, i);
    dsi_zero3_shard_evict(z->zero3, i);
    return DS_OK;
}

dsi_offload_model dsi_zero_model(dsi_zero *z)
{
    return (dsi_offload_model){dsi_zero_shard_open, dsi_zero_shard_close, z};
}

/* ---- making -------------------------------------------------------------------------------------------- */

static ds_status zero_check_opts(const dsi_zero_opts *o)
{
    if (o->stage < 0 || o->stage > 3)
        return dsi_fail(DS_EINVAL, "zero: stage is %d: expected 0 to 3", o->stage);
    if (o->dtype != DS_F32 && o->dtype != DS_F16 && o->dtype != DS_BF16)
        return dsi_fail(DS_EINVAL, "zero: dtype is %s: expected float32, float16 or bfloat16",
                        ds_dtype_name(o->dtype));
    if (o->accum_dtype != DS_F32 && o->accum_dtype != o->dtype)
        return dsi_fail(DS_EINVAL, "zero: gradients of %s cannot be added up in %s: expected %s",
                        ds_dtype_name(o->dtype), ds_dtype_name(o->accum_dtype),
                        o->dtype == DS_F32 ? "float32" : "float32 or the model's dtype");
    return DS_OK;
}

dsi_flat_opts dsi_zero_layout(const dsi_zero_opts *o, int rank, int ranks)
{
    int64_t bucket = o->reduce_bucket ? o->reduce_bucket : DSI_ZERO_BUCKET;
    int64_t gather = o->allgather_bucket ? o->allgather_bucket : DSI_ZERO_BUCKET;
    /* from one rank too */
    bool away = o->stage == 3 && (o->param_files.nvme_path || o->offload_param);
    bool partition = (o->stage > 0 && ranks > 1) || away;
    bool divide = o->stage == 3 && (ranks > 1 || away);
    if (partition && gather < bucket) bucket = gather;
    return (dsi_flat_opts){.rank = rank,
                           .ranks = ranks,
                           .partition = partition,
                           .bucket = bucket,
                           .solo_threshold = divide ? o->persistence_threshold : INT64_MAX,
                           .small_total_threshold = divide ? o->model_persistence_threshold
                                                           : INT64_MAX};
}

/* Makes z->flat and the arrays that are indexed as it is. */
static ds_status make_layout(dsi_zero *z, int ranks)
{
    dsi_flat_opts o = dsi_zero_layout(&z->o, dsi_comm_rank(z->comm), ranks);
    o.comm = z->comm ? z->comm : ranks == 1 ? z->self : NULL;
    o.whole = dsi_optim_needs_whole(z->optim);
    z->flat = dsi_flat_new(z->model, &o);
    if (!z->flat) return ds_error_status();
    if (z->o.deterministic && z->flat->shared)
        return dsi_fail(DS_EINVAL, "zero: deterministic: the bits of experts that ranks share "
                                   "depend on how many tokens come together: use ep_size 1");
    z->shard = dsi_alloc((size_t)z->flat->n * sizeof *z->shard);
    z->grad_views = dsi_alloc((size_t)z->flat->n * sizeof *z->grad_views);
    if (!o.partition) return DS_OK;
    z->unit_params = dsi_alloc((size_t)z->flat->units * sizeof *z->unit_params);
    z->unit_gathers = dsi_alloc((size_t)z->flat->units * sizeof *z->unit_gathers);
    return DS_OK;
}

/* Converts the shards of ds_zero_init to the model's dtype. */
static ds_status convert_shards(const dsi_zero *z)
{
    ds_status status = DS_OK;
    for (int i = 0; status == DS_OK && i < ds_module_params(z->model); i++) {
        ds_tensor *x = ds_module_param_at(z->model, i, NULL);
        if (dsi_zero_init_has(x)) status = dsi_zero_init_to(x, z->o.dtype);
    }
    return status;
}

/* Gathers the parameters of ds_zero_init that the stage does not partition.
 * Collective. */
static ds_status join_shards(const dsi_zero *z)
{
    const dsi_flat *f = z->flat;
    ds_status status = DS_OK;
    for (int i = 0, k; status == DS_OK && i < ds_module_params(z->model); i++) {
        ds_tensor *x = ds_module_param_at(z->model, i, NULL);
        for (k = 0; k < f->n && f->param[k].x != x;) k++;
        bool stays = k < f->n && z->unit_params && z->o.stage == 3 &&
                     f->unit[f->param[k].unit].solo;
        if (dsi_zero_init_has(x) && !stays) status = dsi_zero_init_join(x);
    }
    return status;
}

/* Where DeepSpeed has its files; to be freed. NULL passes. */
static char *folder_in(const dsi_zero *z, const char *nvme_path)
{
    dsi_text folder = {0};
    if (nvme_path) dsi_text_add(&folder, "%s/zero_stage_%d", nvme_path, z->o.stage);
    return folder.s;
}

static ds_status make_zero3(dsi_zero *z)
{
    dsi_zero3_opts o = {.prefetch = z->o.prefetch_bucket,
                        .max_live = z->o.max_live,
                        .max_reuse_distance = z->o.max_reuse_distance,
                        .swap = z->o.param_files,
                        .staging = z->o.offload_param ? z->staging : NULL};
    char *folder = folder_in(z, o.swap.nvme_path);
    o.swap.nvme_path = folder;
    z->zero3 = dsi_zero3_new(z->model, z->flat, z->comm, &o);
    dsi_free(folder);
    return z->zero3 ? DS_OK : ds_error_status();
}

/* The parameters of a unit into one piece of memory, where all_gather finds
 * them. */
static ds_status unit_join(dsi_zero *z, int k)
{
    const dsi_flat *f = z->flat;
    const dsi_flat_unit *u = &f->unit[k];
    if (dsi_zero3_has_unit(z->zero3, k)) return DS_OK;
    ds_tensor *all = dsi_new(f->param[0].x, ds_shape(u->n));
    if (!dsi_fill(all, 0)) return ds_error_status();
    z->unit_params[k] = dsi_ref(all);
    for (int i = u->first; i < u->first + u->count; i++) {
        ds_tensor *place = dsi_flat_in_unit(f, i, all);
        if (dsi_copy(place, f->param[i].x) != DS_OK) return ds_error_status();
        dsi_tensor_set_data(f->param[i].x, place);
    }
    return DS_OK;
}

/* Where masters and moments are, and the optimizer runs. */
static dsi_device *optimizer_device(const dsi_zero *z)
{
    return z->o.offload_optimizer ? dsi_device_get((ds_device){DS_CPU, 0})
                                  : z->flat->param[0].x->device;
}

/* The masters, with the values of the parameters, which are rounded already: as
 * DeepSpeed begins. */
static ds_status make_masters(dsi_zero *z)
{
    const dsi_flat *f = z->flat;
    bool staged = z->staging && z->o.offload_optimizer && z->o.dtype == DS_F32;
    z->masters = dsi_ref(
        staged ? dsi_staging_memory(z->staging, DS_F32, f->owned)
               : dsi_fill(dsi_new_on(optimizer_device(z), DS_F32, ds_shape(f->owned)), 0));
    if (!z->masters) return ds_error_status();
    for (int i = 0; i < f->n; i++) {
        ds_tensor *to = dsi_flat_in_owned(f, i, z->masters);
        if (to && dsi_copy(to, dsi_zero_model_shard(z, i)) != DS_OK) return ds_error_status();
        if (dsi_zero_on_disk(z, i)) dsi_zero3_shard_evict(z->zero3, i);
    }
    return DS_OK;
}

bool dsi_zero_splits(const dsi_zero_opts *o)
{
    return o->dtype == DS_BF16 && !o->offload_param && !o->offload_optimizer &&
           !o->files.nvme_path && !o->param_files.nvme_path;
}

static ds_tensor *split_shard(void *zero, int i) { return dsi_zero_model_shard(zero, i); }

static ds_status make_split(dsi_zero *z)
{
    z->split = dsi_split_new(z->flat, split_shard, z);
    return z->split ? DS_OK : ds_error_status();
}

static ds_status make_offload(dsi_zero *z)
{
    char *folder = folder_in(z, z->o.files.nvme_path);
    z->offload = dsi_offload_new(z->flat, z->optim, folder, &z->o.files, dsi_zero_model(z));
    dsi_free(folder);
    return z->offload ? DS_OK : ds_error_status();
}

/* Says to the optimizer what it updates. */
static ds_status set_shards(dsi_zero *z)
{
    const dsi_flat *f = z->flat;
    bool apart = z->masters || z->split || z->offload;
    for (int i = 0; i < f->n; i++) {
        ds_tensor *x = f->param[i].x,
                  *mine = z->unit_params || apart ? dsi_zero_model_shard(z, i) : x;
        z->shard[i] = dsi_ref(z->offload   ? dsi_offload_shard(z->offload, i)
                              : z->split   ? dsi_split_master(z->split, i)
                              : z->masters ? dsi_flat_in_owned(f, i, z->masters)
                                           : mine);
        if (z->shard[i] != x && dsi_optim_set_param(z->optim, f->param[i].index, z->shard[i],
                                                    dsi_zero_copies_master(z, i) ? NULL
                                                    : is_outgoing(z, i) ? z->outgoing_params[i]
                                                                        : mine) != DS_OK)
            return ds_error_status();
        if (z->split) dsi_optim_set_rest(z->optim, f->param[i].index, dsi_split_rest(z->split, i));
    }
    return DS_OK;
}

static ds_status start_reduction(dsi_zero *z)
{
    /* with parameters and moments in files, gradients are all that would grow
     * with the model */
    char *folder = z->offload ? folder_in(z, z->o.param_files.nvme_path) : NULL;
    /* a GPU's sums need not pass the host */
    bool on_host = ds_device_of(z->flat->param[0].x).kind == DS_CPU;
    z->reduce = dsi_reduce_new(z->flat, z->comm,
                               &(dsi_reduce_opts){.partition = z->o.stage >= 2,
                                                  .tree = z->o.deterministic,
                                                  .all_reduce = !z->o.reduce_scatter,
                                                  .overlap = z->o.overlap_comm,
                                                  .squares = on_host,
                                                  .prescale = z->o.prescale,
                                                  .predivide = z->o.predivide,
                                                  .accum = z->o.accum_dtype,
                                                  .comm = z->o.comm_dtype,
                                                  .folder = folder,
                                                  .on_ready = dsi_zero_overlap_continue,
                                                  .on_ready_arg = z});
    dsi_free(folder);
    if (!z->comm) return DS_OK;
    dsi_device *d = z->flat->param[0].x->device;
    ds_dims shape = ds_shape(dsi_comm_size(z->comm) + 1);
    z->norm_sums = dsi_ref(dsi_comm_is_queued(z->comm, d) ? dsi_new_on(d, DS_F64, shape)
                                                          : dsi_new_host(DS_F64, shape));
    return z->norm_sums ? DS_OK : ds_error_status();
}

static ds_status zero_prepare(dsi_zero *z)
{
    ds_status status = convert_shards(z);
    if (status == DS_OK) status = ds_module_to(z->model, z->o.dtype);
    if (status == DS_OK && z->comm)
        status = dsi_flat_begin_equal(z->model, z->comm, dsi_zero_init_has);
    if (status == DS_OK) status = make_layout(z, dsi_comm_size(z->comm));
    if (status == DS_OK) status = dsi_zero_host_open(z);
    if (status == DS_OK) status = join_shards(z);
    if (status == DS_OK && z->unit_params && z->o.stage == 3) status = make_zero3(z);
    for (int k = 0; status == DS_OK && z->unit_params && k < z->flat->units; k++)
        status = unit_join(z, k);
    if (status == DS_OK && z->o.files.nvme_path)
        status = make_offload(z);
    else if (status == DS_OK && dsi_zero_splits(&z->o) && dsi_optim_takes_halves(z->optim))
        status = make_split(z);
    else if (status == DS_OK && (z->o.dtype != DS_F32 || z->o.offload_optimizer ||
                                 z->o.offload_param || z->o.param_files.nvme_path))
        status = make_masters(z);
    if (status == DS_OK) status = dsi_zero_host_prepare(z);
    if (status == DS_OK) status = set_shards(z);
    bool sums = z->comm || z->zero3 || z->o.deterministic || z->o.accum_dtype != z->o.dtype;
    if (status == DS_OK && sums) status = start_reduction(z);
    if (status == DS_OK) dsi_zero_overlap_hook(z, true);
    return status;
}

dsi_zero *dsi_zero_new(ds_module *model, ds_optim *optim, ds_comm *comm, const dsi_zero_opts *o)
{
    if (!dsi_live_all("zero", model, optim)) return dsi_null_operand("zero");
    dsi_zero *z = dsi_alloc(sizeof *z);
    z->model = model;
    z->optim = optim;
    z->comm = dsi_comm_size(comm) > 1 ? comm : NULL;
    z->self = comm ? comm : ds_world();
    z->o = *o;
    if (z->o.deterministic && z->o.stage == 0) z->o.stage = 1;
    if (zero_check_opts(&z->o) != DS_OK) {
        dsi_free(z);
        return NULL;
    }
    ds_scope *scope = ds_scope_open();
    ds_status status = dsi_comm_all_or_none(z->comm, zero_prepare(z));
    ds_scope_close(scope);
    /* what the model was made in is of other sizes than what a step needs */
    if (z->flat) dsi_cache_empty(z->flat->param[0].x->device);
    if (status == DS_OK) return z;
    dsi_zero_free(z);
    return NULL;
}

void dsi_zero_free(dsi_zero *z)
{
    if (!z) return;
    dsi_zero_host_wait(z);
    if (z->flat) dsi_zero_overlap_hook(z, false);
    dsi_reduce_free(z->reduce);
    dsi_zero3_free(z->zero3);
    for (int i = 0; z->flat && z->shard && i < z->flat->n; i++) dsi_unref(z->shard[i]);
    for (int k = 0; z->flat && z->unit_params && k < z->flat->units; k++)
        dsi_unref(z->unit_params[k]);
    dsi_split_free(z->split);
    dsi_offload_free(z->offload);
    dsi_zero_host_close(z);
    dsi_unref(z->masters);
    dsi_unref(z->norm_sums);
    dsi_flat_free(z->flat);
    dsi_free(z->shard);
    dsi_free(z->unit_params);
    dsi_free(z->unit_gathers);
    dsi_free(z->grad_views);
    dsi_free(z->bad_param_path);
    dsi_free(z);
}
