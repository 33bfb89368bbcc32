/* engine/announce.c: what an engine prints, in DeepSpeed's words, and what it sends to its monitor.
 * SPDX-License-Identifier: MIT */
#include "engine.h"

#include "base/log.h"
#include "comm/comm.h"
#include "report.h"

#include <stdio.h>
#include <string.h>

/* ---- lines ---------------------------------------------------------------------------------------------- */

#define MOST_GROUPS 64 /* of the optimizer, in a line */

static bool has(const char *params, const char *text) { return params && strstr(params, text); }

/* In Python betas of the configuration are a list, an optimizer's defaults and OneCycle's momenta are tuples. */
static bool prints_tuples(const ds_engine *e)
{
    const dsi_config_named *o = &e->config->optimizer, *s = &e->config->scheduler;
    bool cycle = s->type && !strcmp(s->type, "OneCycle") && e->schedule;
    if (cycle && !has(s->params, "\"cycle_momentum\":false")) return true;
    return !e->config_made || !has(o->params, "\"betas\":");
}

/* "step=10, skipped=0, lr=[0.001], mom=[[0.8, 0.999]]" */
static void print_progress(const ds_engine *e)
{
    double lr[MOST_GROUPS], mom[2 * MOST_GROUPS];
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
    dsi_report_progress(e->global_steps, e->skipped_steps, groups, lr, mom, each, prints_tuples(e));
}

void dsi_engine_announce_start(const ds_engine *e)
{
    dsi_log(DSI_INFO, "DeepSpeed info: version=%s (deepspeed.c)", DS_VERSION);
    dsi_config_print(e->config);
    if (e->optim && dsi_log_on(DSI_INFO)) print_progress(e);
    dsi_engine_announce_memory(e, "after initialize");
}

void dsi_engine_announce_memory(const ds_engine *e, const char *where)
{
    char text[64];
    if (!e->config->memory_breakdown) return;
    snprintf(text, sizeof text, "Engine %s", where);
    dsi_report_memory(text);
}

/* Once, from rank 0, though all ranks skip the step. */
void dsi_engine_announce_overflow(const ds_engine *e, const char *bad)
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

/* ---- scalars --------------------------------------------------------------------------------------------- */

/* The loss of the global batch: the mean over the ranks of their means. */
static ds_status mean_loss(const ds_engine *e, double *loss)
{
    *loss = e->loss_sum;
    if (ds_comm_size(e->comm) == 1) return DS_OK;
    dsi_request mean = {.comm = e->comm,
                        .what = DSI_ALL_REDUCE,
                        .dtype = DS_F64,
                        .in = loss,
                        .out = loss,
                        .n = 1,
                        .op = DS_REDUCE_AVG,
                        .blocking = true,
                        .purpose = "the loss for the monitor: add sinks on all ranks alike"};
    dsi_request *r = dsi_request_start(&mean);
    return r ? dsi_request_wait(r) : ds_error_status();
}

typedef struct Scalar {
    const char *tag;
    double value;
    bool sent;
} Scalar;

/* The x axis is the number of samples seen by all ranks. */
static ds_status send_scalars(ds_engine *e)
{
    double loss;
    ds_status status = mean_loss(e, &loss);
    bool timed = e->timers != NULL, fast = e->throughput.current > 0;
    const Scalar scalars[] = {
        {"Train/Samples/train_loss", loss, true},
        {"Train/Samples/lr", ds_optim_lr(e->optim), true},
        {"Train/Samples/loss_scale", e->scaler.scale, e->config->fp16.enabled},
        {"Train/Samples/grad_norm", e->norm, true},
        {"Train/Samples/skipped_steps", (double)e->skipped_steps, true},
        {"Train/Samples/samples_per_sec", e->throughput.current, fast},
        {"Train/Samples/elapsed_time_ms_forward", dsi_phase_ms(e->timers, DSI_FWD), timed},
        {"Train/Samples/elapsed_time_ms_backward", dsi_phase_ms(e->timers, DSI_BWD), timed},
        {"Train/Samples/elapsed_time_ms_backward_inner", dsi_phase_ms(e->timers, DSI_BWD_INNER),
         timed},
        {"Train/Samples/elapsed_time_ms_backward_allreduce",
         dsi_phase_ms(e->timers, DSI_BWD_ALLREDUCE), timed},
        {"Train/Samples/elapsed_time_ms_step", dsi_phase_ms(e->timers, DSI_STEP), timed},
    };
    if (status != DS_OK || ds_comm_rank(e->comm) != 0) return status;
    for (size_t i = 0; i < sizeof scalars / sizeof *scalars; i++) {
        const Scalar *s = &scalars[i];
        int before = dsi_error_count();
        if (!s->sent || ds_monitor_write(e->monitor, s->tag, s->value, e->global_samples) == DS_OK)
            continue;
        /* said once: it is closed */
        dsi_log(DSI_WARNING, "%s: training goes on without it", dsi_error_latest());
        dsi_error_forget(before);
    }
    return DS_OK;
}

ds_status dsi_engine_announce_step(ds_engine *e, bool boundary)
{
    int64_t every = e->config->steps_per_print;
    if (boundary && every && e->global_steps % every == 0) print_progress(e);
    dsi_throughput_stop(&e->throughput, boundary);
    dsi_phases_log_micro(e->timers);
    ds_status status = boundary && dsi_engine_watched(e) ? send_scalars(e) : DS_OK;
    if (boundary) dsi_phases_log_global(e->timers);
    return status;
}
