/* engine/checkpoint/save_state.c: what the files of a checkpoint hold, as
 * nested values under DeepSpeed's names.
 *
 *     mp_rank_00_model_states.pt                          rank 0; stage 3: zero_pp_rank_R_..., every rank
 *         module            parameters and buffers in the model's dtype (stage 3: empty ones, see the shards)
 *         optimizer         stage 0 without bf16: torch.optim's state; with fp16 in FP16_UnfusedOptimizer's form
 *         param_shapes      of each group of a shard, in its order; buffer_names, frozen_param_..., shared_params
 *         lr_scheduler, global_steps, global_samples, skipped_steps, dp_world_size, ds_config, ds_version, ...
 *         deepspeed_c       what DeepSpeed has no name for
 *         ...               the caller's client_state
 *     [bf16_]zero_pp_rank_R_mp_rank_00_optim_states.pt    a shard, stages 1 to 3 and bf16
 *         optimizer_state_dict: base_optimizer_state, single_partition_of_fp32_groups, param_slice_mappings, ...
 *         deepspeed_c       parameters and elements of each group; averages
 *     layer_L_expert_E_mp_rank_00_model_states.pt, expp_rank_R_mp_rank_00_optim_states.pt    Note [Expert files]
 *     rank_R_states.pt                                    random numbers, place in the data, buffers of other ranks
 *
 * SPDX-License-Identifier: MIT */
#include "save_state.h"

#include "checkpoint/value.h"
#include "config/reader.h"
#include "data/loader.h"
#include "nn/module.h"

typedef dsi_save_maker Maker;

/* ---- values of the program and of the optimizer ---------------------------------------------------------------------------------- */

/* A copy of a value; its tensors are not copied. */
static ds_value *value_copy(Maker *m, const ds_value *v)
{
    ds_value *copy;
    ds_tensor *x;
    switch (ds_value_kind_of(v)) {
    case DS_VALUE_TENSOR:
        return ds_value_read_tensor(v, "", &x) == DS_OK
                   ? dsi_save_tensor_of(&m->f->tensors, ds_contiguous(ds_detach(x)), -1)
                   : NULL;
    case DS_VALUE_LIST:
    case DS_VALUE_TUPLE:
    case DS_VALUE_SET:
        copy = dsi_value_new((int)ds_value_kind_of(v));
        for (int64_t i = 0; i < ds_value_len(v); i++)
            dsi_save_append(m, copy, value_copy(m, ds_value_at(v, i)));
        break;
    case DS_VALUE_DICT:
        copy = ds_value_dict();
        for (int64_t i = 0; i < ds_value_len(v); i++)
            if (dsi_value_put(copy, value_copy(m, ds_value_key_at(v, i)),
                              value_copy(m, ds_value_at(v, i))) != DS_OK)
                m->status = ds_error_status();
        break;
    default: /* immutable */
        return dsi_value_ref((ds_value *)v);
    }
    copy->class_name = v->class_name;
    return copy;
}

/* ---- the optimizer, whole ------------------------------------------------------------------------------- */

/* The master of parameter k of the layout, or its average. */
static ds_value *param_value(Maker *m, int k, bool average)
{
    int i = m->flat->param[k].index;
    return dsi_save_tensor_of(
        &m->f->tensors, average ? dsi_ema_average(m->e->ema, i) : dsi_zero_shard(m->e->zero, i), i);
}

/* In the order in which torch.optim's state dict numbers parameters: group
 * by group. */
ds_value *dsi_save_param_names(Maker *m)
{
    const ds_optim *o = m->e->optim;
    ds_value *names = ds_value_list();
    for (int g = 0; g < o->n_groups; g++)
        for (int i = 0; i < o->n; i++)
            if (o->params[i].group == g)
                dsi_save_append(m, names, ds_value_string(o->params[i].path));
    return names;
}

/* FP16_UnfusedOptimizer's dict: the scaler's state and the float32 masters. */
static ds_value *optimizer_fp16_value(Maker *m)
{
    const dsi_scaler *s = &m->e->scaler;
    ds_value *v = ds_value_dict(), *all = ds_value_list();
    dsi_save_put(m, v, DSI_STATE_DYNAMIC_LOSS_SCALE, ds_value_bool(s->dynamic));
    dsi_save_put(m, v, DSI_STATE_CUR_SCALE, ds_value_float(s->scale));
    dsi_save_put(m, v, DSI_STATE_CUR_ITER, ds_value_int(s->iter));
    if (s->dynamic) {
        dsi_save_put(m, v, DSI_STATE_LAST_OVERFLOW_ITER, ds_value_int(s->last_overflow));
        dsi_save_put(m, v, DSI_STATE_SCALE_FACTOR, ds_value_float(2));
        dsi_save_put(m, v, DSI_STATE_SCALE_WINDOW, ds_value_int(s->window));
    }
    dsi_save_put(m, v, DSI_STATE_OPTIMIZER_STATE_DICT, value_copy(m, m->optimizer));
    for (int g = 0; g < m->groups.n; g++) {
        ds_value *group = ds_value_list();
        for (int i = 0; i < m->groups.at[g].n; i++)
            dsi_save_append(m, group, param_value(m, m->groups.at[g].at[i], false));
        dsi_save_append(m, all, group);
    }
    dsi_save_put(m, v, DSI_STATE_FP32_GROUPS, all);
    dsi_save_put(m, v, DSI_STATE_CLIP_GRAD, ds_value_float(m->e->config->gradient_clipping));
    return v;
}

/* None if the state is in the shards. */
ds_value *dsi_save_optimizer(Maker *m)
{
    if (!m->e->zero || dsi_save_is_sharded(m->e)) return ds_value_none();
    return m->e->config->fp16.enabled ? optimizer_fp16_value(m) : value_copy(m, m->optimizer);
}

/* ---- the model ----------------------------------------------------------------------------------------- */

/* The number of parameter x in the layout; -1: it is not trained. */
static int param_index(const Maker *m, const ds_tensor *x)
{
    for (int k = 0; m->flat && k < m->flat->n; k++)
        if (m->flat->param[k].x == x) return k;
    return -1;
}

bool dsi_save_is_partitioned(const Maker *m, const ds_tensor *x)
{
    return m->e->config->zero.stage == 3 && param_index(m, x) >= 0;
}

/* For a partitioned parameter an empty tensor, like DeepSpeed. */
ds_value *dsi_save_model_tensor(Maker *m, ds_tensor *x)
{
    if (dsi_save_is_partitioned(m, x))
        return dsi_save_tensor_value(dsi_save_tensor_new(&m->f->tensors), x->dtype, ds_shape(0));
    return dsi_save_tensor_of(&m->f->tensors, x, -1);
}

/* Module, buffers, shapes, frozen parameters and tied names. Experts are in their own
 * files. */
static void model_put(Maker *m, ds_value *to)
{
    ds_state *state = ds_module_state(m->e->model);
    ds_value *module = ds_value_dict(), *buffers = ds_value_list(), *shapes = ds_value_dict(),
             *frozen = ds_value_dict(), *shared = ds_value_dict();
    for (int i = 0; i < ds_state_len(state); i++) {
        const char *name = ds_state_name(state, i);
        ds_tensor *x = ds_state_at(state, i);
        bool param = dsi_module_has_param(m->e->model, x),
             stays = param && m->flat && param_index(m, x) < 0;
        if ((stays && m->o->exclude_frozen) || dsi_save_in_expert(m->e, x)) continue;
        dsi_save_put(m, module, name, dsi_save_model_tensor(m, x));
        if (!param) dsi_save_append(m, buffers, ds_value_string(name));
        int first = dsi_state_first(state, i);
        if (first < i) dsi_save_put(m, shared, name, ds_value_string(ds_state_name(state, first)));
        if (!stays || first < i) continue;
        dsi_save_put(m, shapes, name, dsi_save_shape(m, x->shape));
        dsi_save_put(m, frozen, name, dsi_save_model_tensor(m, x));
    }
    ds_state_free(state);
    dsi_save_put(m, to, DSI_STATE_MODULE, module);
    dsi_save_put(m, to, DSI_STATE_BUFFER_NAMES, buffers);
    bool apart = dsi_save_has_experts(m->e);
    dsi_save_put(m, to, DSI_STATE_OPTIMIZER, apart ? ds_value_none() : dsi_save_optimizer(m));
    if (apart) dsi_save_put(m, to, DSI_STATE_NUM_EXPERTS, dsi_save_num_experts(m));
    dsi_save_put(m, to, DSI_STATE_PARAM_SHAPES, dsi_save_param_shapes(m));
    dsi_save_put(m, to, DSI_STATE_FROZEN_SHAPES, shapes);
    dsi_save_put(m, to, DSI_STATE_SHARED_PARAMS, shared);
    dsi_save_put(m, to, DSI_STATE_FROZEN_FRAGMENTS, frozen);
}

/* ---- deepspeed_c of the model file -------------------------------------------------------------------- */

static ds_value *own_scaler_value(Maker *m)
{
    const dsi_scaler *s = &m->e->scaler;
    ds_value *v = ds_value_dict();
    dsi_save_put(m, v, "scale", ds_value_float(s->scale));
    dsi_save_put(m, v, "dynamic", ds_value_bool(s->dynamic));
    dsi_save_put(m, v, "hysteresis_left", ds_value_int(s->hysteresis_left));
    dsi_save_put(m, v, "iter", ds_value_int(s->iter));
    dsi_save_put(m, v, "last_overflow", ds_value_int(s->last_overflow));
    dsi_save_put(m, v, "skipped", ds_value_int(s->skipped));
    return v;
}

static ds_value *own_throughput_value(Maker *m)
{
    const dsi_throughput *t = &m->e->throughput;
    ds_value *v = ds_value_dict();
    dsi_save_put(m, v, "epoch", ds_value_int(t->epoch));
    dsi_save_put(m, v, "micro_step", ds_value_int(t->micro_step));
    dsi_save_put(m, v, "global_step", ds_value_int(t->global_step));
    dsi_save_put(m, v, "total_seconds", ds_value_float(t->total_seconds));
    return v;
}

/* Moments and parameters by name, which torch.optim's state dict does not
 * have. */
static ds_value *own_optimizer_value(Maker *m)
{
    ds_value *v = ds_value_dict(), *groups = ds_value_list(), *moments = ds_value_list();
    const ds_optim *o = m->e->optim;
    dsi_save_put(m, v, "name", ds_value_string(ds_optim_name(o)));
    for (int g = 0; g < o->n_groups; g++) dsi_save_append(m, groups, dsi_save_group_values(m, g));
    for (int i = 0; i < DS_OPTIM_MOMENTS; i++)
        if (o->type->moment[i]) dsi_save_append(m, moments, ds_value_string(o->type->moment[i]));
    dsi_save_put(m, v, DSI_STATE_GROUPS, groups);
    dsi_save_put(m, v, "moments", moments);
    dsi_save_put(m, v, DSI_STATE_PARAMS, dsi_save_param_names(m));
    return v;
}

static ds_value *own_schedule_value(Maker *m)
{
    if (!m->e->schedule) return ds_value_none();
    ds_value *v = ds_value_dict();
    const char *name = ds_schedule_name(m->e->schedule);
    dsi_save_put(m, v, "name", name ? ds_value_string(name) : ds_value_none());
    dsi_save_put(m, v, "last", ds_value_int(ds_schedule_last(m->e->schedule)));
    return v;
}

ds_value *dsi_save_averages(Maker *m)
{
    ds_value *all = ds_value_dict();
    for (int k = m->flat->n - 1; k >= 0; k--)
        dsi_save_put(m, all, dsi_save_param_path(m, k), param_value(m, k, true));
    return all;
}

/* The averages themselves are in the shards or in the experts' files, if
 * there are some. */
static ds_value *own_averages_value(Maker *m)
{
    if (!m->e->ema || !m->flat) return ds_value_none();
    ds_value *v = ds_value_dict();
    dsi_save_put(m, v, "decay", ds_value_float(dsi_ema_decay(m->e->ema)));
    dsi_save_put(m, v, "updates", ds_value_int(dsi_ema_updates(m->e->ema)));
    bool elsewhere = dsi_save_is_sharded(m->e) || dsi_save_has_experts(m->e);
    if (!elsewhere) dsi_save_put(m, v, DSI_STATE_AVERAGES, dsi_save_averages(m));
    return v;
}

/* State that a resumed run needs and DeepSpeed has no key for. */
static ds_value *own_value(Maker *m)
{
    const ds_engine *e = m->e;
    ds_value *v = ds_value_dict();
    dsi_save_put(m, v, DSI_STATE_FORMAT, ds_value_int(DSI_FORMAT));
    dsi_save_put(m, v, "version", ds_value_string(DS_VERSION));
    dsi_save_put(m, v, DSI_STATE_ZERO_STAGE, ds_value_int(e->config->zero.stage));
    dsi_save_put(m, v, "dtype", ds_value_string(ds_dtype_name(e->dtype)));
    dsi_save_put(m, v, DSI_STATE_RANKS, ds_value_int(ds_comm_size(e->comm)));
    dsi_save_put(m, v, DSI_STATE_SHARDS,
                 ds_value_int(!dsi_save_is_sharded(e) || !m->flat ? 0
                              : m->flat->partition                ? m->flat->ranks
                                                                  : dsi_save_writer_count(e)));
    dsi_save_put(m, v, "train_batch_size", ds_value_int(e->config->train_batch_size));
    dsi_save_put(m, v, DSI_STATE_MICRO_BATCH,
                 ds_value_int(e->config->train_micro_batch_size_per_gpu));
    dsi_save_put(m, v, DSI_STATE_GAS, ds_value_int(e->config->gradient_accumulation_steps));
    dsi_save_put(m, v, DSI_STATE_MICRO_STEPS, ds_value_int(e->micro_steps));
    dsi_save_put(m, v, DSI_STATE_GRAD_NORM, ds_value_float(e->norm));
    dsi_save_put(m, v, DSI_STATE_STEP_APPLIED, ds_value_bool(e->applied));
    dsi_save_put(m, v, DSI_STATE_LOSS_SCALER, own_scaler_value(m));
    dsi_save_put(m, v, DSI_STATE_THROUGHPUT, own_throughput_value(m));
    dsi_save_put(m, v, DSI_STATE_LR_SCHEDULER, own_schedule_value(m));
    dsi_save_put(m, v, DSI_STATE_OPTIMIZER, e->optim ? own_optimizer_value(m) : ds_value_none());
    dsi_save_put(m, v, DSI_STATE_EMA, own_averages_value(m));
    return v;
}

/* ---- the model file ------------------------------------------------------------------------------------ */

/* The user's configuration as a dict, which DeepSpeed stores too. */
static ds_value *value_from_json(Maker *m, const json_t *j)
{
    const char *key;
    json_t *item;
    size_t i;
    switch (json_typeof(j)) {
    case JSON_OBJECT: {
        ds_value *v = ds_value_dict();
        json_object_foreach((json_t *)j, key, item)
            dsi_save_put(m, v, key, value_from_json(m, item));
        return v;
    }
    case JSON_ARRAY: {
        ds_value *v = ds_value_list();
        json_array_foreach((json_t *)j, i, item) dsi_save_append(m, v, value_from_json(m, item));
        return v;
    }
    case JSON_STRING:
        return ds_value_string(json_string_value(j));
    case JSON_INTEGER:
        return ds_value_int(json_integer_value(j));
    case JSON_REAL:
        return ds_value_float(json_real_value(j));
    case JSON_NULL:
        return ds_value_none();
    default:
        return ds_value_bool(json_is_true(j));
    }
}

ds_value *dsi_save_config(Maker *m) { return value_from_json(m, m->e->config->trees->given); }

/* A client state may not have a key of the engine. */
static void client_state_put(Maker *m, ds_value *to)
{
    const ds_value *client = m->o->client_state;
    for (int64_t i = 0; client && m->status == DS_OK && i < ds_value_len(client); i++) {
        const ds_value *name = ds_value_key_at(client, i);
        const char *key = ds_value_kind_of(name) == DS_VALUE_STRING ? ds_value_text(name) : NULL;
        if (!key || ds_value_get(to, key))
            m->status = dsi_fail(
                DS_EINVAL,
                "engine_save: client_state has the key \"%.80s\", which is the engine's: "
                "use another name",
                key ? key : "(a number)");
        else
            dsi_save_put(m, to, key, value_copy(m, ds_value_at(client, i)));
    }
}

/* client_state comes last: it may not have a key that is there already. */
static ds_value *model_file_value(Maker *m)
{
    const ds_engine *e = m->e;
    ds_value *v = ds_value_dict(), *dims = ds_value_dict(), *schedule = ds_value_none();
    model_put(m, v);
    if (e->schedule) {
        ds_value_free(schedule);
        schedule = ds_value_dict();
        dsi_save_put(m, schedule, DSI_STATE_LAST_BATCH_ITERATION,
                     ds_value_int(ds_schedule_last(e->schedule)));
    }
    dsi_save_put(m, v, DSI_STATE_LR_SCHEDULER, schedule);
    dsi_save_put(m, v, DSI_STATE_DATA_SAMPLER, ds_value_none());
    dsi_save_put(m, v, DSI_STATE_RANDOM_LTD, ds_value_none());
    dsi_save_put(m, v, DSI_STATE_SKIPPED_STEPS, ds_value_int(e->skipped_steps));
    dsi_save_put(m, v, DSI_STATE_GLOBAL_STEPS, ds_value_int(e->global_steps));
    dsi_save_put(m, v, DSI_STATE_GLOBAL_SAMPLES, ds_value_int(e->global_samples));
    dsi_save_put(m, v, DSI_STATE_DP_WORLD_SIZE, ds_value_int(ds_comm_size(e->comm)));
    dsi_save_put(m, v, DSI_STATE_MP_WORLD_SIZE, ds_value_int(1));
    dsi_save_put(m, dims, "pp_degree", ds_value_int(1));
    dsi_save_put(m, dims, "tp_degree", ds_value_int(1));
    dsi_save_put(m, v, DSI_STATE_PARALLEL_DIMENSIONS, dims);
    dsi_save_put(m, v, DSI_STATE_DS_CONFIG, dsi_save_config(m));
    dsi_save_put(m, v, DSI_STATE_DS_VERSION, ds_value_string(DSI_DS_VERSION));
    dsi_save_put(m, v, DSI_STATE_OWN, own_value(m));
    client_state_put(m, v);
    return v;
}

/* ---- the file of a rank --------------------------------------------------------------------- */

/* The position in the epoch: apply_loader_position converts it to other
 * batch sizes. */
static ds_value *loader_value(Maker *m)
{
    if (!m->e->loader) return ds_value_none();
    bool begun = dsi_loader_begun(m->e->loader);
    ds_loader_position at = {ds_loader_epoch(m->e->loader), 0, 0};
    if (begun)
        at = ds_loader_tell(
            m->e->loader); /* before an epoch begins ds_loader_tell would draw its seed */
    ds_value *v = ds_value_dict();
    dsi_save_put(m, v, "epoch", ds_value_int(at.epoch));
    dsi_save_put(m, v, "batch", ds_value_int(at.batch));
    dsi_save_put(m, v, "seed", ds_value_int((int64_t)at.seed));
    dsi_save_put(m, v, "begun", ds_value_bool(begun));
    dsi_save_put(m, v, "base_seed", ds_value_int((int64_t)dsi_loader_seed(m->e->loader)));
    return v;
}

/* Running statistics differ among ranks; rank 0's are in the model file. */
static ds_value *rank_buffers_value(Maker *m)
{
    ds_value *v = ds_value_dict();
    if (ds_comm_rank(m->e->comm) == 0 || m->e->config->zero.stage == 3) return v;
    ds_state *state = ds_module_state(m->e->model);
    for (int i = 0; i < ds_state_len(state); i++)
        if (!dsi_module_has_param(m->e->model, ds_state_at(state, i)))
            dsi_save_put(m, v, ds_state_name(state, i),
                         dsi_save_model_tensor(m, ds_state_at(state, i)));
    ds_state_free(state);
    return v;
}

/* State that differs among ranks and that DeepSpeed does not save. */
static ds_value *rank_file_value(Maker *m)
{
    ds_value *v = ds_value_dict();
    dsi_save_put(m, v, DSI_STATE_FORMAT, ds_value_int(DSI_FORMAT));
    dsi_save_put(m, v, DSI_STATE_RNG, dsi_save_tensor_of(&m->f->tensors, ds_rng_state(), -1));
    dsi_save_put(m, v, DSI_STATE_LOADER, loader_value(m));
    dsi_save_put(m, v, DSI_STATE_BUFFERS, rank_buffers_value(m));
    return v;
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

void dsi_save_add_file(Maker *m, ds_value *value, dsi_text name)
{
    dsi_list_add(m->f, (dsi_save_file){name.s, value});
    if (!value) m->status = ds_error_status();
}

/* Rank 0 writes the model file, in stage 3 every rank; a shard is written by
 * each rank that has one. */
ds_status dsi_save_files_make(dsi_save_files *f, ds_engine *e, const ds_save_opts *o)
{
    int rank = ds_comm_rank(e->comm);
    Maker m = {.f = f, .e = e, .o = o, .flat = e->zero ? dsi_zero_flat(e->zero) : NULL};
    f->tensors.zero = e->zero;
    if (e->optim && !(m.optimizer = ds_optim_state_dict(e->optim))) return ds_error_status();
    if (m.flat) dsi_save_groups_make(&m);
    if (e->config->zero.stage == 3)
        dsi_save_add_file(&m, model_file_value(&m), dsi_text_of(DSI_FILE_MODEL_RANK, rank));
    else if (rank == 0)
        dsi_save_add_file(&m, model_file_value(&m), dsi_text_of(DSI_FILE_MODEL));
    if (dsi_save_is_sharded(e) && m.flat && (rank < dsi_save_writer_count(e) || m.flat->partition))
        dsi_save_add_file(
            &m, dsi_save_shard(&m),
            dsi_text_of(e->config->bf16.enabled ? DSI_FILE_SHARD_BF16 : DSI_FILE_SHARD,
                        (long long)rank));
    dsi_save_add_experts(&m);
    dsi_save_add_file(&m, rank_file_value(&m), dsi_text_of(DSI_FILE_RANK, rank));
    dsi_save_groups_free(&m);
    ds_value_free(m.optimizer);
    return m.status;
}

void dsi_save_files_free(dsi_save_files *f)
{
    for (int i = 0; i < f->n; i++) {
        dsi_free(f->at[i].name);
        ds_value_free(f->at[i].value);
    }
    dsi_list_free(f);
    dsi_save_tensors_free(&f->tensors);
}
