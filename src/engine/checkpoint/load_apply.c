/* engine/checkpoint/load_take.c: a checkpoint that fits, into the engine.
 * SPDX-License-Identifier: MIT */
#include "load.h"

#include "base/log.h"
#include "base/rng.h"
#include "data/loader.h"

#include <math.h>
#include <string.h>

/* ---- values that may not be there ---------------------------------------------------------------------- */

/* The integer at a path of v; `otherwise` if it is missing or of another
 * type. */
static int64_t value_int_or(const ds_value *v, const char *path, int64_t otherwise)
{
    int64_t x;
    const ds_value *at = ds_value_find(v, path);
    return ds_value_kind_of(at) == DS_VALUE_INT && ds_value_read_int(at, "", &x) == DS_OK
               ? x
               : otherwise;
}

static double value_float_or(const ds_value *v, const char *path, double otherwise)
{
    double x;
    const ds_value *at = ds_value_find(v, path);
    bool number = ds_value_kind_of(at) == DS_VALUE_FLOAT || ds_value_kind_of(at) == DS_VALUE_INT;
    return number && ds_value_read_float(at, "", &x) == DS_OK ? x : otherwise;
}

static bool value_bool_or(const ds_value *v, const char *path, bool otherwise)
{
    bool x;
    const ds_value *at = ds_value_find(v, path);
    return ds_value_kind_of(at) == DS_VALUE_BOOL && ds_value_read_bool(at, "", &x) == DS_OK
               ? x
               : otherwise;
}

/* ---- weights and buffers ------------------------------------------------------------------------------- */

/* Copies elements [begin, end) of a tensor of the model to `to`, of any dtype:
 * from the float32 weights if the checkpoint has them. */
static ds_status apply_weights(const dsi_loaded *l, const char *name, int64_t begin, int64_t end,
                               ds_tensor *to)
{
    const dsi_load_param *p = dsi_load_find_param(l, name);
    const ds_value *own = ds_value_get(ds_value_get(l->rank, DSI_STATE_BUFFERS), name),
                   *whole = own ? own : dsi_load_model_value(l, name);
    if (p && dsi_load_count(p, DSI_LOAD_WEIGHTS, begin, end) == end - begin)
        return dsi_load_copy_param(p, DSI_LOAD_WEIGHTS, begin, end, to);
    if (!whole) return DS_OK; /* .not_strict */
    const ds_tensor *x = dsi_load_read_tensor(whole, "");
    return x ? dsi_load_copy_range(x, begin, end - begin, dsi_flat_range(to, 0, end - begin))
             : ds_error_status();
}

/* Parameters that ZeRO updates are written to its masters and published; all
 * others to the model. */
static ds_status apply_model(const dsi_loaded *l, ds_engine *e)
{
    const dsi_flat *f = e->zero ? dsi_zero_flat(e->zero) : NULL;
    ds_state *state = ds_module_state(e->model);
    ds_status status = DS_OK;
    for (int k = 0; f && status == DS_OK && k < f->n; k++) {
        ds_tensor *part = dsi_zero_shard(e->zero, f->param[k].index);
        if (part)
            status = apply_weights(l, dsi_flat_path(f, e->model, k), f->param[k].begin,
                                   f->param[k].end, part);
        if (status == DS_OK) status = dsi_zero_release(e->zero, f->param[k].index, true);
    }
    for (int i = 0; status == DS_OK && i < ds_state_len(state); i++) {
        ds_tensor *x = ds_state_at(state, i);
        bool apart = dsi_state_first(state, i) < i;
        for (int k = 0; f && k < f->n; k++) apart = apart || f->param[k].x == x;
        if (!apart) status = apply_weights(l, ds_state_name(state, i), 0, dsi_numel(x->shape), x);
    }
    ds_state_free(state);
    return status == DS_OK && e->zero ? dsi_zero_publish(e->zero) : status;
}

/* ---- the optimizer ------------------------------------------------------------------------------------- */

/* A parameter that was never updated has step 0 and no moments in the
 * checkpoint: they become zeros. */
static ds_status apply_moments(const dsi_loaded *l, ds_engine *e, const dsi_flat_param *f,
                               const char *name)
{
    const ds_optim *o = e->optim;
    const dsi_load_param *p = dsi_load_find_param(l, name);
    dsi_optim_param *x = &o->params[f->index];
    if (!x->p || f->begin == f->end) return DS_OK;
    x->step = p ? p->step : 0;
    ds_status status = dsi_optim_make_moments(o, x);
    for (int i = 0; status == DS_OK && i < DS_OPTIM_MOMENTS; i++) {
        if (!x->moment[i]) continue;
        if (x->step)
            status = dsi_load_copy_param(p, o->type->moment[i], f->begin, f->end, x->moment[i]);
        else if (!dsi_fill(x->moment[i], 0))
            status = ds_error_status();
    }
    return status == DS_OK && e->zero ? dsi_zero_release(e->zero, f->index, true) : status;
}

/* Rates, betas and so on of the parameter groups. */
static void apply_groups(const dsi_loaded *l, ds_engine *e, bool rates)
{
    const ds_value *groups = l->own
                                 ? ds_value_find(l->own, DSI_STATE_OPTIMIZER "/" DSI_STATE_GROUPS)
                                 : ds_value_get(l->universal, DSI_STATE_PARAM_GROUPS);
    int n = ds_optim_groups(e->optim);
    if (ds_value_len(groups) != n) {
        if (l->own || l->universal)
            dsi_log(DSI_WARNING,
                    "engine_load: %s has %lld groups of parameters, this optimizer %d: their rates "
                    "stay",
                    l->folder, (long long)ds_value_len(groups), n);
        return;
    }
    for (int g = 0; g < n; g++) {
        const ds_value *v = ds_value_at(groups, g);
        double betas[2], momentum;
        if (rates)
            ds_optim_set_group_lr(e->optim, g,
                                  value_float_or(v, "lr", ds_optim_group_lr(e->optim, g)));
        ds_optim_set_group_weight_decay(
            e->optim, g,
            value_float_or(v, "weight_decay", ds_optim_group_weight_decay(e->optim, g)));
        if (ds_optim_group_betas(e->optim, g, betas)) {
            betas[0] = value_float_or(v, "betas/0", betas[0]);
            betas[1] = value_float_or(v, "betas/1", betas[1]);
            ds_optim_set_group_betas(e->optim, g, betas);
        }
        if (ds_optim_group_momentum(e->optim, g, &momentum))
            ds_optim_set_group_momentum(e->optim, g, value_float_or(v, "momentum", momentum));
    }
}

static ds_status apply_averages(const dsi_loaded *l, ds_engine *e)
{
    const dsi_flat *f = dsi_zero_flat(e->zero);
    int64_t updates = value_int_or(l->own, DSI_STATE_EMA "/updates", 0);
    ds_status status = DS_OK;
    for (int k = 0; updates && status == DS_OK && k < f->n; k++) {
        const char *name = dsi_flat_path(f, e->model, k);
        const dsi_load_param *p = dsi_load_find_param(l, name);
        const dsi_flat_param *x = &f->param[k];
        ds_tensor *to = dsi_ema_average(e->ema, x->index);
        if (!to || !p) continue;
        status = dsi_load_copy_param(p, DSI_LOAD_AVERAGE, x->begin, x->end, to);
    }
    dsi_ema_set_updates(e->ema, updates); /* 0: the next update begins with the weights */
    return status;
}

static ds_status apply_optimizer(const dsi_loaded *l, ds_engine *e)
{
    const dsi_flat *f = dsi_zero_flat(e->zero);
    ds_status status = DS_OK;
    for (int k = 0; status == DS_OK && k < f->n; k++)
        status = apply_moments(l, e, &f->param[k], dsi_flat_path(f, e->model, k));
    if (status == DS_OK && e->ema) status = apply_averages(l, e);
    return status;
}

/* ---- schedule, scale, counters ------------------------------------------------------------------------- */

/* Whether the saved schedule has the engine's type; true if neither exists. A
 * universal checkpoint of DeepSpeed names no type. */
static bool schedule_is_same(const dsi_loaded *l, const ds_engine *e)
{
    if (!l->own && l->universal) return !e->schedule;
    const char *saved = NULL, *name = ds_schedule_name(e->schedule);
    const ds_value *v = ds_value_find(l->own, DSI_STATE_LR_SCHEDULER "/name");
    if (ds_value_kind_of(v) == DS_VALUE_STRING) saved = ds_value_text(v);
    return l->own && (saved && name ? !strcmp(saved, name) : !saved && !name);
}

/* DeepSpeed's checkpoints of stage 0 may lack a schedule: its step follows
 * from the number of updates. */
static ds_status apply_schedule(const dsi_loaded *l, ds_engine *e)
{
    int64_t steps = value_int_or(l->model, DSI_STATE_GLOBAL_STEPS, 0) -
                    value_int_or(l->model, DSI_STATE_SKIPPED_STEPS, 0);
    int64_t last = value_int_or(
        l->model, DSI_STATE_LR_SCHEDULER "/" DSI_STATE_LAST_BATCH_ITERATION,
        value_int_or(l->model, DSI_STATE_LR_SCHEDULER "/" DSI_STATE_LAST_EPOCH, steps - 1));
    return e->schedule ? ds_schedule_set_last(e->schedule, last) : DS_OK;
}

/* DeepSpeed's: an object in each shard, of which attributes were read and
 * nothing was run; in stage 0, which has no shards, the same names are in the
 * optimizer's dict, and in optimizer_state.pt of a universal checkpoint of
 * ours. */
const ds_value *dsi_load_scaler(const dsi_loaded *l)
{
    const ds_value *own = ds_value_get(l->universal, DSI_STATE_LOSS_SCALER);
    if (l->universal) return ds_value_kind_of(own) == DS_VALUE_DICT ? own : l->universal;
    for (int i = 0; i < l->files.n; i++) {
        const ds_value *v = ds_value_find(l->files.at[i].value,
                                          DSI_STATE_OPTIMIZER_STATE_DICT "/" DSI_STATE_LOSS_SCALER);
        if (ds_value_kind_of(v) == DS_VALUE_DICT) return v;
    }
    return ds_value_get(l->model, DSI_STATE_OPTIMIZER);
}

/* The state of the scaler; window, hysteresis and minimum come from the
 * configuration. */
static void apply_scaler(const dsi_loaded *l, dsi_scaler *s)
{
    const ds_value *v = ds_value_get(l->own, DSI_STATE_LOSS_SCALER),
                   *theirs = v ? NULL : dsi_load_scaler(l);
    bool dynamic = value_bool_or(theirs, "dynamic",
                                 value_bool_or(theirs, DSI_STATE_DYNAMIC_LOSS_SCALE, true));
    if (!s->dynamic || !value_bool_or(v, "dynamic", dynamic)) return;
    s->scale = fmax(
        value_float_or(v, "scale", value_float_or(theirs, DSI_STATE_CUR_SCALE, s->scale)),
        s->min_scale);
    s->iter = value_int_or(v, "iter", value_int_or(theirs, DSI_STATE_CUR_ITER, s->iter));
    s->last_overflow = value_int_or(
        v, "last_overflow", value_int_or(theirs, DSI_STATE_LAST_OVERFLOW_ITER, s->last_overflow));
    s->hysteresis_left = value_int_or(
        v, "hysteresis_left", value_int_or(theirs, DSI_STATE_CUR_HYSTERESIS, s->hysteresis_left));
    s->skipped = value_int_or(v, "skipped", s->skipped);
}

/* micro_steps of another accumulation number would be wrong: it is derived
 * from the updates. */
static void apply_counters(const dsi_loaded *l, ds_engine *e)
{
    int64_t gas = e->config->gradient_accumulation_steps;
    bool same = value_int_or(l->own, DSI_STATE_GAS, 0) == gas;
    e->global_steps = value_int_or(l->model, DSI_STATE_GLOBAL_STEPS, 0);
    e->skipped_steps = value_int_or(l->model, DSI_STATE_SKIPPED_STEPS, 0);
    e->global_samples = value_int_or(l->model, DSI_STATE_GLOBAL_SAMPLES,
                                     e->global_steps * e->config->train_batch_size);
    e->micro_steps = same ? value_int_or(l->own, DSI_STATE_MICRO_STEPS, 0) : e->global_steps * gas;
    e->norm = value_float_or(l->own, DSI_STATE_GRAD_NORM, NAN);
    e->applied = value_bool_or(l->own, DSI_STATE_STEP_APPLIED, false);
    e->loss_sum = 0;
    e->throughput.epoch = value_int_or(l->own, DSI_STATE_THROUGHPUT "/epoch", 0);
    e->throughput.micro_step = value_int_or(l->own, DSI_STATE_THROUGHPUT "/micro_step",
                                            e->micro_steps);
    e->throughput.global_step = value_int_or(l->own, DSI_STATE_THROUGHPUT "/global_step",
                                             e->global_steps);
    e->throughput.total_seconds = value_float_or(l->own, DSI_STATE_THROUGHPUT "/total_seconds", 0);
}

/* ---- state of each rank --------------------------------------------------------------------- */

/* A rank that did not exist when the checkpoint was saved seeds its generator
 * from rank 0's state and its own number. */
static ds_status apply_rng_state(const dsi_loaded *l, int rank)
{
    const ds_tensor *state = l->rank ? dsi_load_read_tensor(l->rank, "rng_state") : NULL;
    if (!l->rank) return DS_OK;
    if (!state || ds_set_rng_state((ds_tensor *)state) != DS_OK) return ds_error_status();
    if (rank < l->ranks) return DS_OK;
    dsi_rng first = *dsi_rng_default();
    dsi_rng_seed(dsi_rng_default(), dsi_rng_u64(&first) + (uint64_t)rank);
    return DS_OK;
}

/* Samples of the epoch that were used, on all ranks, are not used again. */
static ds_status apply_loader_position(const dsi_loaded *l, ds_engine *e)
{
    const ds_value *v = ds_value_get(l->rank, DSI_STATE_LOADER);
    if (!e->loader || ds_value_kind_of(v) != DS_VALUE_DICT) return DS_OK;
    int64_t epoch = value_int_or(v, "epoch", 0), batch = value_int_or(v, "batch", 0);
    int64_t before = value_int_or(l->own, DSI_STATE_MICRO_BATCH, 1) * l->ranks;
    int64_t now = e->config->train_micro_batch_size_per_gpu * ds_comm_size(e->comm),
            samples = batch * before;
    dsi_loader_set_seed(
        e->loader, (uint64_t)value_int_or(v, "base_seed", (int64_t)dsi_loader_seed(e->loader)));
    if (!value_bool_or(v, "begun", false)) {
        ds_loader_set_epoch(e->loader, epoch);
        return DS_OK;
    }
    if (before != now && samples % now && !ds_comm_rank(e->comm))
        dsi_log(
            DSI_WARNING,
            "engine_load: %lld samples of the epoch were used, which batches of %lld do not give: "
            "%lld come again",
            (long long)samples, (long long)now, (long long)(samples % now));
    if (before != now) batch = samples / now;
    /* ranks that do not divide the samples give an epoch another length */
    if (l->ranks != ds_comm_size(e->comm) && batch > ds_loader_len(e->loader))
        batch = ds_loader_len(e->loader);
    return ds_loader_seek(e->loader,
                          (ds_loader_position){epoch, batch, (uint64_t)value_int_or(v, "seed", 0)});
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

/* Random numbers come last: nothing before may draw from the generator after
 * it was set. */
ds_status dsi_load_apply(const dsi_loaded *l, ds_engine *e, const ds_load_opts *o)
{
    bool optimizer = e->zero && !o->module_only && !o->no_optimizer;
    ds_status status = apply_model(l, e);
    if (e->zero) dsi_zero_zero_grad(e->zero);
    if (status == DS_OK && optimizer) status = apply_optimizer(l, e);
    if (status != DS_OK || o->module_only) return status;
    if (!o->no_schedule) status = apply_schedule(l, e);
    if (optimizer) apply_groups(l, e, schedule_is_same(l, e) && !o->no_schedule);
    apply_scaler(l, &e->scaler);
    apply_counters(l, e);
    if (status == DS_OK) status = apply_loader_position(l, e);
    return status == DS_OK ? apply_rng_state(l, ds_comm_rank(e->comm)) : status;
}
