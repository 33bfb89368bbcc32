/* engine/log_lines.c: what an engine prints, in DeepSpeed's words, which
 * scripts read. The line of progress has the form of _report_progress
 * (deepspeed/runtime/engine.py), with numbers as Python prints them.
 * SPDX-License-Identifier: MIT */
#include "log_lines.h"

#include "base/log.h"
#include "engine.h"
#include "memory_report.h"
#include "monitor_scalars.h"

#include <stdio.h>
#include <string.h>

#define MOST_GROUPS 64 /* of the optimizer, in a line */

static void progress_add_list(dsi_text *t, const double *x, int n)
{
    for (int i = 0; i < n; i++) {
        if (i) dsi_text_add(t, ", ");
        dsi_text_add_double(t, x[i]);
    }
}

static void progress_add_momentum(dsi_text *t, const dsi_log_momentum *m)
{
    bool tuple = m->form == DSI_LOG_TUPLE, list = m->form == DSI_LOG_LIST;
    if (m->form == DSI_LOG_INT) {
        dsi_text_add(t, "%.0f", m->x[0]);
        return;
    }
    dsi_text_add(t, "%s", tuple ? "(" : list ? "[" : "");
    progress_add_list(t, m->x, tuple || list ? 2 : 1);
    dsi_text_add(t, "%s", tuple ? ")" : list ? "]" : "");
}

void dsi_log_progress(int64_t step, int64_t skipped, int groups, const double *lr,
                      const dsi_log_momentum *mom)
{
    dsi_text t = dsi_text_of("step=%lld, skipped=%lld, lr=[", (long long)step, (long long)skipped);
    progress_add_list(&t, lr, groups);
    dsi_text_add(&t, "], mom=[");
    for (int g = 0; g < groups; g++) {
        if (g) dsi_text_add(&t, ", ");
        progress_add_momentum(&t, &mom[g]);
    }
    dsi_log(DSI_REQUESTED, "%s]", t.s);
    dsi_text_free(&t);
}

/* Whether the JSON text of params has the text; jansson writes it without
 * blanks. */
static bool params_have(const char *params, const char *text)
{
    return params && strstr(params, text);
}

/* Python prints betas of the configuration as a list, but the defaults of an
 * optimizer, what torch.optim.Adam keeps and the momenta of OneCycle as
 * tuples. */
static bool progress_has_tuples(const ds_engine *e)
{
    const dsi_config_named *o = &e->config->optimizer, *s = &e->config->scheduler;
    bool cycle = s->type && !strcmp(s->type, "OneCycle") && e->schedule &&
                 !ds_optim_group_momentum(e->optim, 0, &(double){0});
    if (cycle && !params_have(s->params, "\"cycle_momentum\":false")) return true;
    return !e->config_made || !params_have(o->params, "\"betas\":") ||
           params_have(o->params, "\"torch_adam\":true");
}

/* get_mom() of DeepSpeed's engine: betas, for SGD and RMSprop the momentum, and
 * 0.0 for a group that has neither. The matrices of Muon have no betas. */
static dsi_log_momentum progress_momentum(const ds_engine *e, int group)
{
    dsi_log_momentum m = {.form = DSI_LOG_FLOAT};
    double momentum = 0;
    bool has_momentum = ds_optim_group_momentum(e->optim, group, &momentum);
    bool has_betas = ds_optim_group_betas(e->optim, group, m.x);
    if (has_betas && (!has_momentum || m.x[0] != 0 || m.x[1] != 0)) {
        m.form = progress_has_tuples(e) ? DSI_LOG_TUPLE : DSI_LOG_LIST;
    } else if (has_momentum && !has_betas) {
        m.x[0] = momentum;
        if (momentum == 0) m.form = DSI_LOG_INT;
    }
    return m;
}

/* "step=10, skipped=0, lr=[0.001], mom=[[0.8, 0.999]]" */
static void log_progress(const ds_engine *e)
{
    double lr[MOST_GROUPS] = {0};
    dsi_log_momentum mom[MOST_GROUPS];
    int groups = ds_optim_groups(e->optim);
    if (groups > MOST_GROUPS) groups = MOST_GROUPS;
    for (int g = 0; g < groups; g++) {
        lr[g] = ds_optim_group_lr(e->optim, g);
        mom[g] = progress_momentum(e, g);
    }
    dsi_log_progress(e->global_steps, e->skipped_steps, groups, lr, mom);
}

void dsi_engine_log_start(const ds_engine *e)
{
    dsi_log(DSI_INFO, "DeepSpeed info: version=%s (deepspeed.c)", DS_VERSION);
    dsi_config_print(e->config);
    if (e->optim && dsi_log_on(DSI_INFO)) log_progress(e);
    dsi_engine_log_memory(e, "after initialize");
}

void dsi_engine_log_memory(const ds_engine *e, const char *when)
{
    char text[64];
    if (!e->config->memory_breakdown) return;
    snprintf(text, sizeof text, "Engine %s", when);
    dsi_memory_report_log(text);
}

void dsi_engine_log_overflow(const ds_engine *e, const char *bad_param_path)
{
    dsi_text line = {0};
    int rank = ds_comm_rank(e->comm);
    if (rank != 0) return;
    dsi_scaler_overflow_text(&e->scaler, rank, &line);
    dsi_log(DSI_REQUESTED, "%s (inf or NaN in the gradient of %s)", line.s,
            bad_param_path ? bad_param_path : "another rank's parameter");
    dsi_text_free(&line);
}

/* DeepSpeed's order: progress, throughput, report of the flops profiler, times
 * of the micro step, monitor, times up to the boundary. */
ds_status dsi_engine_log_step(ds_engine *e, bool boundary)
{
    int64_t every = e->config->steps_per_print;
    if (boundary && every && e->global_steps % every == 0) log_progress(e);
    dsi_throughput_stop(&e->throughput, boundary);
    if (boundary) dsi_engine_flops_report(e);
    dsi_phases_log_micro(e->timers);
    ds_status status = boundary ? dsi_engine_send_scalars(e) : DS_OK;
    if (boundary) dsi_phases_log_global(e->timers);
    return status;
}
