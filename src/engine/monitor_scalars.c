/* engine/monitor_scalars.c: numbers of a step, under DeepSpeed's tags.
 * SPDX-License-Identifier: MIT */
#include "monitor_scalars.h"

#include "base/log.h"
#include "comm/sync_status.h"
#include "engine.h"

/* Configuration and sinks have to be the same on all ranks, so that all of them
 * take part in the loss's mean. */
bool dsi_engine_is_monitored(const ds_engine *e)
{
    return e->config->tensorboard.enabled || e->config->csv_monitor.enabled ||
           ds_monitor_sinks(e->monitor) > 0;
}

/* At the first update only, since ranks wait for each other here: one that is
 * not monitored would not come to the mean of the losses, for which the others
 * wait. */
static ds_status sinks_compare(ds_engine *e)
{
    bool has = dsi_engine_is_monitored(e);
    int64_t any[] = {has, !has};
    if (e->sinks_compared) return DS_OK;
    e->sinks_compared = true;
    if (dsi_sync_max(e->comm, any, 2) != DS_OK) return ds_error_status();
    if (!any[0] || !any[1]) return DS_OK;
    return dsi_fail(DS_ESTATE,
                    "engine_step: this rank has %s, unlike others: add sinks on all ranks alike, "
                    "before the first update",
                    has ? "sinks" : "no sinks");
}

/* The loss of the global batch: the mean over the ranks of their means. */
static ds_status loss_mean_over_ranks(const ds_engine *e, double *loss)
{
    *loss = e->loss_sum;
    if (ds_comm_size(e->comm) == 1) return DS_OK;
    return dsi_request_run(&(dsi_request){
        DSI_NUMBERS(e->comm, DSI_ALL_REDUCE, DS_F64, loss, loss, 1), .op = DS_REDUCE_AVG,
        .purpose = "the loss for the monitor: add sinks on all ranks alike"});
}

typedef struct Scalar {
    const char *tag;
    double value;
    bool sent;
} Scalar;

/* The x axis is the number of samples seen by all ranks. */
ds_status dsi_engine_send_scalars(ds_engine *e)
{
    double loss;
    ds_status status = sinks_compare(e);
    if (status != DS_OK || !dsi_engine_is_monitored(e)) return status;
    status = loss_mean_over_ranks(e, &loss);
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
        /* printed once: the sink is closed */
        dsi_log(DSI_WARNING, "%s: training continues without it", dsi_error_latest());
        dsi_error_forget(before);
    }
    return DS_OK;
}
