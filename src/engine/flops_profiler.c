/* engine/flops_profiler.c: the configuration's flops_profiler: the report of one step;
 * and ds_model_profile, of a forward without an engine.
 *
 * In the step that is reported rank 0 counts the costs of its forward
 * (base/profile.h) and waits for its device at the end of each module and each
 * phase, so that times are those of the work. With gradient accumulation the report
 * is of the last micro step.
 *
 * Invariants: flops is set from the forward of such a step to its report, or to the
 * next forward. The timers are on (config/batch.c), so the step is no graph.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/list.h"
#include "base/log.h"
#include "base/profile.h"
#include "engine.h"
#include "flops_report.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <string.h>

static dsi_device *device_of(ds_module *model)
{
    const ds_tensor *x = ds_module_params(model) ? ds_module_param_at(model, 0, NULL) : NULL;
    return x ? x->device : dsi_device_current();
}

static void device_wait(void *device)
{
    dsi_device *d = device;
    if (d->type->immediate || !d->type->sync || dsi_graph_capturing(d)) return;
    bool was = dsi_graph_note(d, false);
    d->type->sync(&d->stream);
    dsi_graph_note(d, was);
}

/* ---- a step of an engine ------------------------------------------------------------------------------ */

ds_status dsi_engine_flops_check(const ds_engine *e)
{
    const char *path = e->config->flops_profiler.output_file;
    if (!e->config->flops_profiler.enabled || !path || !*path || ds_comm_rank(e->comm) != 0)
        return DS_OK;
    char *folder = dsi_strdup(path), *name = strrchr(folder, '/');
    if (name) *name = 0;
    ds_status status = name > folder ? dsi_mkdirs(folder) : DS_OK;
    dsi_free(folder);
    if (status == DS_OK) status = dsi_file_check_replace(path);
    return dsi_fail_in("initialize: flops_profiler.output_file", status);
}

bool dsi_engine_flops_begin(ds_engine *e)
{
    const dsi_config *c = e->config;
    if (!c->flops_profiler.enabled || e->flops_reported || ds_comm_rank(e->comm) != 0 ||
        e->global_steps != c->flops_profiler.profile_step || !ds_module_training(e->model))
        return false;
    dsi_flops_free(e->flops);
    e->flops = NULL;
    if (dsi_costs_run()) {
        dsi_log(DSI_WARNING, "flops_profiler: no report: this thread profiles already "
                             "(ds_profile_begin)");
        e->flops_reported = true;
        return false;
    }
    dsi_costs_start(device_wait, device_of(e->model));
    return true;
}

void dsi_engine_flops_end(ds_engine *e)
{
    dsi_costs_stop();
    e->flops = dsi_flops_of(e->model);
}

void dsi_engine_flops_wait(const ds_engine *e)
{
    if (e->flops) device_wait(device_of(e->model));
}

/* To the file, or to stdout. */
static ds_status report_print(const char *path, const dsi_text *t)
{
    if (!path || !*path) {
        fputs(t->s, stdout);
        return fflush(stdout) ? dsi_fail(DS_EIO, "stdout: %s", strerror(errno)) : DS_OK;
    }
    dsi_file *f = dsi_file_replace(path);
    dsi_file_write(f, t->s, t->n);
    return dsi_file_commit(f);
}

/* A report that cannot be written does not end the training. */
void dsi_engine_flops_report(ds_engine *e)
{
    const dsi_config *c = e->config;
    if (!e->flops) return;
    dsi_flops_step step = {.world_size = ds_comm_size(e->comm),
                           .micro_batch = c->train_micro_batch_size_per_gpu,
                           .moe = e->flops->experts > 0,
                           .forward = dsi_phase_last(e->timers, DSI_FWD),
                           .backward = dsi_phase_last(e->timers, DSI_BWD),
                           .step = dsi_phase_last(e->timers, DSI_STEP),
                           .backward_factor = 2 + c->flops_profiler.recompute_fwd_factor};
    dsi_flops_format how = {.step = e->global_steps,
                            .depths = c->flops_profiler.module_depth,
                            .top = c->flops_profiler.top_modules,
                            .detailed = c->flops_profiler.detailed,
                            .more = &step};
    dsi_text t = {0};
    int before = dsi_error_count();
    dsi_flops_write(e->flops, &how, &t);
    if (report_print(c->flops_profiler.output_file, &t) != DS_OK) {
        dsi_log(DSI_ERROR, "flops_profiler: %s", dsi_error_latest());
        dsi_error_forget(before);
    }
    dsi_text_free(&t);
    dsi_flops_free(e->flops);
    e->flops = NULL;
    e->flops_reported = true;
}

void dsi_engine_flops_free(ds_engine *e)
{
    const dsi_config *c = e->config;
    if (c && c->flops_profiler.enabled && e->optim && !e->flops_reported && e->comm &&
        !ds_error() && ds_comm_rank(e->comm) == 0 &&
        e->global_steps <= c->flops_profiler.profile_step)
        dsi_log(DSI_WARNING,
                "flops_profiler: no report: there were %lld steps, and profile_step is %lld",
                (long long)e->global_steps, (long long)c->flops_profiler.profile_step);
    dsi_flops_free(e->flops);
}

/* ---- a forward without an engine ---------------------------------------------------------------------- */

typedef struct Modes { /* of a tree, in its order */
    DSI_LIST(bool)
} Modes;

static void modes_save(ds_module *m, Modes *modes)
{
    dsi_list_add(modes, ds_module_training(m));
    for (int i = 0; i < ds_module_children(m); i++) modes_save(ds_module_child(m, i), modes);
}

static void modes_restore(ds_module *m, const Modes *modes, int *at)
{
    ds_module_train(m, modes->at[(*at)++]); /* children follow */
    for (int i = 0; i < ds_module_children(m); i++) modes_restore(ds_module_child(m, i), modes, at);
}

/* The forwards, of which only the last one counts. */
static ds_status profile_run(ds_module *model, ds_tensor **in, int n, int warm_up)
{
    for (int i = 0; i <= warm_up && !ds_error(); i++) {
        ds_scope *scope = ds_scope_open();
        if (i == warm_up) dsi_costs_start(device_wait, device_of(model));
        ds_call_n(model, in, n);
        if (i == warm_up) dsi_costs_stop();
        ds_scope_close(scope);
    }
    return ds_error() ? ds_error_status() : DS_OK;
}

static bool profile_check_opts(const char *call, const ds_model_profile_opts *o)
{
    if (o->module_depth >= 0 && o->top_modules >= 0) return true;
    return dsi_refuse("%s: .module_depth is %d, .top_modules %d: expected 0 or more", call,
                      o->module_depth, o->top_modules);
}

static bool profile_check(const ds_model_profile_opts *o)
{
    if (!dsi_costs_run()) return profile_check_opts("model_profile", o);
    dsi_fail(DS_ESTATE, "model_profile: a profile of this thread runs: end it first "
                        "(ds_profile_end)");
    return false;
}

/* Of the costs that were counted. */
static ds_model_costs profile_answer(ds_module *model, const ds_model_profile_opts *o, int step)
{
    dsi_flops *f = dsi_flops_of(model);
    const dsi_flops_row all = f->row[0];
    dsi_flops_format how = {.step = step,
                            .depths = o->module_depth ? o->module_depth : -1,
                            .top = o->top_modules ? o->top_modules : 1,
                            .detailed = !o->brief};
    dsi_text t = {0};
    if (o->to) dsi_flops_write(f, &how, &t), fputs(t.s, o->to);
    dsi_text_free(&t);
    dsi_flops_free(f);
    return (ds_model_costs){all.params, all.macs, all.flops, all.seconds};
}

ds_model_costs ds_model_profile_with(ds_module *model, ds_tensor **in, int n,
                                     ds_model_profile_opts o)
{
    ds_model_costs costs = {0};
    bool there = dsi_live(model, "model_profile");
    for (int i = 0; i < n; i++) there = there && in[i];
    if (!there) dsi_null_operand("model_profile");
    if (!there || !profile_check(&o)) return costs;
    int warm_up = o.warm_up > 0 ? o.warm_up : o.warm_up == 0, at = 0;
    Modes modes = {0};
    modes_save(model, &modes);
    bool grad = ds_set_grad(false);
    ds_module_train(model, false);
    ds_status status = profile_run(model, in, n, warm_up);
    ds_set_grad(grad);
    modes_restore(model, &modes, &at);
    dsi_list_free(&modes);
    return status == DS_OK ? profile_answer(model, &o, warm_up) : costs;
}

ds_model_costs ds_profile_model_with(ds_module *model, ds_model_profile_opts o)
{
    ds_model_costs none = {0};
    if (!dsi_live(model, "profile_model"))
        dsi_null_operand("profile_model");
    else if (dsi_costs_run())
        dsi_fail(DS_ESTATE, "profile_model: a profile of this thread runs: end it first "
                            "(ds_profile_end)");
    else if (profile_check_opts("profile_model", &o))
        return profile_answer(model, &o, o.warm_up);
    return none;
}
