/* engine/checkpoint/load_take.c: a checkpoint that fits, into the engine.
 * SPDX-License-Identifier: MIT */
#include "load.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "data/loader.h"
#include "optim/optim.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

/* ---- values that may not be there ---------------------------------------------------------------------- */

static int64_t int_or(const ds_value *v, const char *path, int64_t otherwise)
{
    int64_t x;
    const ds_value *at = ds_value_find(v, path);
    return ds_value_kind_of(at) == DS_VALUE_INT && ds_value_read_int(at, "", &x) == DS_OK
               ? x
               : otherwise;
}

static double float_or(const ds_value *v, const char *path, double otherwise)
{
    double x;
    const ds_value *at = ds_value_find(v, path);
    bool number = ds_value_kind_of(at) == DS_VALUE_FLOAT || ds_value_kind_of(at) == DS_VALUE_INT;
    return number && ds_value_read_float(at, "", &x) == DS_OK ? x : otherwise;
}

static bool bool_or(const ds_value *v, const char *path, bool otherwise)
{
    bool x;
    const ds_value *at = ds_value_find(v, path);
    return ds_value_kind_of(at) == DS_VALUE_BOOL && ds_value_read_bool(at, "", &x) == DS_OK
               ? x
               : otherwise;
}

/* ---- weights and buffers ------------------------------------------------------------------------------- */

/* Elements begin .. end of a tensor of the model to `to`, of any dtype: from the float32 weights, if
 * there are some. */
static ds_status take_weights(const dsi_loaded *l, const char *name, int64_t begin, int64_t end,
                              ds_tensor *to)
{
    const dsi_load_param *p = dsi_load_param_of(l, name);
    const ds_value *own = ds_value_get(ds_value_get(l->rank, "buffers"), name),
                   *whole = own ? own : dsi_load_whole(l, name);
    if (p && dsi_load_covered(p, DSI_LOAD_WEIGHTS, begin, end) == end - begin)
        return dsi_load_copy(p, DSI_LOAD_WEIGHTS, begin, end, to);
    if (!whole) return DS_OK; /* passed over: .not_strict */
    const ds_tensor *x = dsi_load_tensor(whole, "");
    return x ? dsi_load_range(x, begin, end - begin, dsi_flat_range(to, 0, end - begin))
             : ds_error_status();
}

/* What ZeRO keeps apart is written there, and published; the rest where it is. */
static ds_status take_model(const dsi_loaded *l, ds_engine *e)
{
    const dsi_flat *f = e->zero ? dsi_zero_flat(e->zero) : NULL;
    ds_state *state = ds_module_state(e->model);
    ds_status status = DS_OK;
    for (int k = 0; f && status == DS_OK && k < f->n; k++) {
        ds_tensor *part = dsi_zero_part(e->zero, f->param[k].index);
        if (part)
            status = take_weights(l, dsi_flat_path(f, e->model, k), f->param[k].begin,
                                  f->param[k].end, part);
        if (status == DS_OK) status = dsi_zero_release(e->zero, f->param[k].index, true);
    }
    for (int i = 0; status == DS_OK && i < ds_state_len(state); i++) {
        ds_tensor *x = ds_state_at(state, i);
        bool apart = false;
        for (int k = 0; f && k < f->n; k++) apart = apart || f->param[k].x == x;
        if (!apart) status = take_weights(l, ds_state_name(state, i), 0, dsi_numel(x->shape), x);
    }
    ds_state_free(state);
    return status == DS_OK && e->zero ? dsi_zero_publish(e->zero) : status;
}

/* ---- the optimizer ------------------------------------------------------------------------------------- */

static ds_status take_moments(const dsi_loaded *l, ds_engine *e, const dsi_flat_param *f,
                              const char *name)
{
    const ds_optim *o = e->optim;
    const dsi_load_param *p = dsi_load_param_of(l, name);
    dsi_optim_param *x = &o->params[f->index];
    if (!x->p || f->begin == f->end) return DS_OK;
    x->step = p ? p->step : 0;
    ds_status status = dsi_optim_make_moments(o, x);
    for (int i = 0; status == DS_OK && i < DS_OPTIM_MOMENTS; i++) {
        if (!x->moment[i]) continue;
        if (x->step)
            status = dsi_load_copy(p, o->type->moment[i], f->begin, f->end, x->moment[i]);
        else if (!dsi_run(x->moment[i], fill, 0.0, dsi_v(x->moment[i])))
            status = ds_error_status();
    }
    return status == DS_OK && e->zero ? dsi_zero_release(e->zero, f->index, true) : status;
}

/* The groups' own values: of ours, or of torch.optim's dict that DeepSpeed keeps. */
static void take_groups(const dsi_loaded *l, ds_engine *e, bool rates)
{
    const ds_value *groups = ds_value_find(l->own, "optimizer/groups");
    int n = ds_optim_groups(e->optim);
    if (ds_value_len(groups) != n) {
        if (l->own)
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
            ds_optim_set_group_lr(e->optim, g, float_or(v, "lr", ds_optim_group_lr(e->optim, g)));
        ds_optim_set_group_weight_decay(
            e->optim, g, float_or(v, "weight_decay", ds_optim_group_weight_decay(e->optim, g)));
        if (ds_optim_group_betas(e->optim, g, betas)) {
            betas[0] = float_or(v, "betas/0", betas[0]);
            betas[1] = float_or(v, "betas/1", betas[1]);
            ds_optim_set_group_betas(e->optim, g, betas);
        }
        if (ds_optim_group_momentum(e->optim, g, &momentum))
            ds_optim_set_group_momentum(e->optim, g, float_or(v, "momentum", momentum));
    }
}

static ds_status take_averages(const dsi_loaded *l, ds_engine *e)
{
    const dsi_flat *f = dsi_zero_flat(e->zero);
    int64_t updates = int_or(l->own, "ema/updates", 0);
    ds_status status = DS_OK;
    for (int k = 0; updates && status == DS_OK && k < f->n; k++) {
        const char *name = dsi_flat_path(f, e->model, k);
        const dsi_load_param *p = dsi_load_param_of(l, name);
        const dsi_flat_param *x = &f->param[k];
        ds_tensor *to = dsi_ema_part(e->ema, x->index);
        if (!to || !p) continue;
        status = dsi_load_copy(p, DSI_LOAD_AVERAGE, x->begin, x->end, to);
    }
    dsi_ema_set_updates(e->ema, updates); /* 0: the next update begins with the weights */
    return status;
}

static ds_status take_optimizer(const dsi_loaded *l, ds_engine *e)
{
    const dsi_flat *f = dsi_zero_flat(e->zero);
    ds_status status = DS_OK;
    for (int k = 0; status == DS_OK && k < f->n; k++)
        status = take_moments(l, e, &f->param[k], dsi_flat_path(f, e->model, k));
    if (status == DS_OK && e->ema) status = take_averages(l, e);
    return status;
}

/* ---- schedule, scale, counters ------------------------------------------------------------------------- */

/* Whether the saved schedule is of the engine's kind; true if neither has one. */
static bool same_schedule(const dsi_loaded *l, const ds_engine *e)
{
    const char *saved = NULL, *name = ds_schedule_name(e->schedule);
    const ds_value *v = ds_value_find(l->own, "lr_scheduler/name");
    if (ds_value_kind_of(v) == DS_VALUE_STRING) saved = ds_value_text(v);
    return l->own && (saved && name ? !strcmp(saved, name) : !saved && !name);
}

static ds_status take_schedule(const dsi_loaded *l, ds_engine *e)
{
    int64_t steps = int_or(l->model, "global_steps", 0) - int_or(l->model, "skipped_steps", 0);
    int64_t last = int_or(l->model, "lr_scheduler/last_batch_iteration",
                          int_or(l->model, "lr_scheduler/last_epoch", steps - 1));
    return e->schedule ? ds_schedule_set_last(e->schedule, last) : DS_OK;
}

/* DeepSpeed's: an object in each shard, of which attributes were read and nothing was run; in stage 0, which has no
 * shards, the same names stand in the optimizer's dict. */
static const ds_value *others_scaler(const dsi_loaded *l)
{
    for (int i = 0; i < l->files.n; i++) {
        const ds_value *v = ds_value_find(l->files.at[i].value, "optimizer_state_dict/loss_scaler");
        if (ds_value_kind_of(v) == DS_VALUE_DICT) return v;
    }
    return ds_value_get(l->model, "optimizer");
}

/* How far the scale has come; window, hysteresis and minimum are the configuration's. */
static void take_scaler(const dsi_loaded *l, dsi_scaler *s)
{
    const ds_value *v = ds_value_get(l->own, "loss_scaler"), *theirs = v ? NULL : others_scaler(l);
    bool dynamic = bool_or(theirs, "dynamic", bool_or(theirs, "dynamic_loss_scale", true));
    if (!s->dynamic || !bool_or(v, "dynamic", dynamic)) return;
    s->scale = fmax(float_or(v, "scale", float_or(theirs, "cur_scale", s->scale)), s->min_scale);
    s->iter = int_or(v, "iter", int_or(theirs, "cur_iter", s->iter));
    s->last_overflow = int_or(v, "last_overflow",
                              int_or(theirs, "last_overflow_iter", s->last_overflow));
    s->hysteresis_left = int_or(v, "hysteresis_left",
                                int_or(theirs, "cur_hysteresis", s->hysteresis_left));
    s->skipped = int_or(v, "skipped", s->skipped);
}

static void take_counters(const dsi_loaded *l, ds_engine *e)
{
    int64_t gas = e->config->gradient_accumulation_steps;
    bool same = int_or(l->own, "gradient_accumulation_steps", 0) == gas;
    e->global_steps = int_or(l->model, "global_steps", 0);
    e->skipped_steps = int_or(l->model, "skipped_steps", 0);
    e->global_samples = int_or(l->model, "global_samples",
                               e->global_steps * e->config->train_batch_size);
    e->micro_steps = same ? int_or(l->own, "micro_steps", 0) : e->global_steps * gas;
    e->norm = float_or(l->own, "grad_norm", NAN);
    e->applied = bool_or(l->own, "step_applied", false);
    e->loss_sum = 0;
    e->throughput.epoch = int_or(l->own, "throughput/epoch", 0);
    e->throughput.micro_step = int_or(l->own, "throughput/micro_step", e->micro_steps);
    e->throughput.global_step = int_or(l->own, "throughput/global_step", e->global_steps);
    e->throughput.total_seconds = float_or(l->own, "throughput/total_seconds", 0);
}

/* ---- what each rank has of its own --------------------------------------------------------------------- */

/* The same numbers on as many ranks as before; a rank that there was not begins with some that depend on
 * those of the first one, and on which rank it is. */
static ds_status take_random(const dsi_loaded *l, int rank)
{
    const ds_tensor *state = l->rank ? dsi_load_tensor(l->rank, "rng_state") : NULL;
    if (!l->rank) return DS_OK;
    if (!state || ds_set_rng_state((ds_tensor *)state) != DS_OK) return ds_error_status();
    if (rank < l->ranks) return DS_OK;
    dsi_rng first = *dsi_rng_default();
    dsi_rng_seed(dsi_rng_default(), dsi_rng_u64(&first) + (uint64_t)rank);
    return DS_OK;
}

/* Samples that were used of the epoch, on all ranks, stay used. */
static ds_status take_place(const dsi_loaded *l, ds_engine *e)
{
    const ds_value *v = ds_value_get(l->rank, "loader");
    if (!e->loader || ds_value_kind_of(v) != DS_VALUE_DICT) return DS_OK;
    int64_t epoch = int_or(v, "epoch", 0), batch = int_or(v, "batch", 0);
    int64_t before = int_or(l->own, "train_micro_batch_size_per_gpu", 1) * l->ranks;
    int64_t now = e->config->train_micro_batch_size_per_gpu * ds_comm_size(e->comm),
            samples = batch * before;
    dsi_loader_set_seed(e->loader,
                        (uint64_t)int_or(v, "base_seed", (int64_t)dsi_loader_seed(e->loader)));
    if (!bool_or(v, "begun", false)) {
        ds_loader_set_epoch(e->loader, epoch);
        return DS_OK;
    }
    if (before != now && samples % now && !ds_comm_rank(e->comm))
        dsi_log(
            DSI_WARNING,
            "engine_load: %lld samples of the epoch were used, which batches of %lld do not give: "
            "%lld come again",
            (long long)samples, (long long)now, (long long)(samples % now));
    if (before != now)
        batch = samples / now < ds_loader_len(e->loader) ? samples / now : ds_loader_len(e->loader);
    return ds_loader_seek(e->loader,
                          (ds_loader_position){epoch, batch, (uint64_t)int_or(v, "seed", 0)});
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

ds_status dsi_load_take(const dsi_loaded *l, ds_engine *e, const ds_load_opts *o)
{
    bool optimizer = e->zero && !o->module_only && !o->no_optimizer;
    ds_status status = take_model(l, e);
    if (e->zero) dsi_zero_zero_grad(e->zero);
    if (status == DS_OK && optimizer) status = take_optimizer(l, e);
    if (status != DS_OK || o->module_only) return status;
    if (!o->no_schedule) status = take_schedule(l, e);
    if (optimizer) take_groups(l, e, same_schedule(l, e) && !o->no_schedule);
    take_scaler(l, &e->scaler);
    take_counters(l, e);
    if (status == DS_OK) status = take_place(l, e);
    return status == DS_OK ? take_random(l, ds_comm_rank(e->comm)) : status;
}
