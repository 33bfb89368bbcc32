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

void dsi_log_progress(int64_t step, int64_t skipped, int groups, const double *lr,
                      const double *mom, int each, bool tuple)
{
    dsi_text t = dsi_text_of("step=%lld, skipped=%lld, lr=[", (long long)step, (long long)skipped);
    progress_add_list(&t, lr, groups);
    dsi_text_add(&t, "], mom=[");
    for (int g = 0; g < groups; g++) {
        dsi_text_add(&t, "%s%s", g ? ", " : "", each == 1 ? "" : tuple ? "(" : "[");
        progress_add_list(&t, mom + g * each, each);
        dsi_text_add(&t, "%s", each == 1 ? "" : tuple ? ")" : "]");
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
 * optimizer and the momenta of OneCycle as tuples. */
static bool progress_has_tuples(const ds_engine *e)
{
    const dsi_config_named *o = &e->config->optimizer, *s = &e->config->scheduler;
    bool cycle = s->type && !strcmp(s->type, "OneCycle") && e->schedule;
    if (cycle && !params_have(s->params, "\"cycle_momentum\":false")) return true;
    return !e->config_made || !params_have(o->params, "\"betas\":");
}

/* "step=10, skipped=0, lr=[0.001], mom=[[0.8, 0.999]]" */
static void log_progress(const ds_engine *e)
{
    double lr[MOST_GROUPS] = {0}, mom[2 * MOST_GROUPS] = {0};
    int groups = ds_optim_groups(e->optim), each = 1;
    if (groups > MOST_GROUPS) groups = MOST_GROUPS;
    for (int g = 0; g < groups; g++) {
        double betas[2] = {0, 0}, momentum = 0;
        lr[g] = ds_optim_group_lr(e->optim, g);
        if (ds_optim_group_betas(e->optim, g, betas)) each = 2;
        if (each == 1) ds_optim_group_momentum(e->optim, g, &momentum);
        mom[each * g] = each == 2 ? betas[0] : momentum;
        if (each == 2) mom[2 * g + 1] = betas[1];
    }
    dsi_log_progress(e->global_steps, e->skipped_steps, groups, lr, mom, each,
                     progress_has_tuples(e));
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

void dsi_engine_log_overflow(const ds_engine *e, const char *bad)
{
    dsi_text line = {0};
    int rank = ds_comm_rank(e->comm);
    if (rank != 0) return;
    if (e->config->fp16.enabled)
        dsi_scaler_overflow_text(&e->scaler, rank, &line);
    else
        dsi_text_add(&line, "[deepspeed] OVERFLOW! Rank %d Skipping step.", rank);
    dsi_log(DSI_REQUESTED, "%s (inf or NaN in the gradient of %s)", line.s,
            bad ? bad : "another rank's parameter");
    dsi_text_free(&line);
}

/* DeepSpeed's order: progress, throughput, times of the micro step, monitor,
 * times up to the boundary. */
ds_status dsi_engine_log_step(ds_engine *e, bool boundary)
{
    int64_t every = e->config->steps_per_print;
    if (boundary && every && e->global_steps % every == 0) log_progress(e);
    dsi_throughput_stop(&e->throughput, boundary);
    dsi_phases_log_micro(e->timers);
    ds_status status = boundary ? dsi_engine_send_scalars(e) : DS_OK;
    if (boundary) dsi_phases_log_global(e->timers);
    return status;
}
