/* engine/log_lines.h: what an engine prints, in DeepSpeed's words.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/engine.h>

/* The version, the configuration, and the first line of progress. */
void dsi_engine_log_start(const ds_engine *e);

/* After an overflow, before the loss scale is updated. bad_param_path: the
 * parameter whose gradient has inf or NaN; NULL: another rank's. Rank 0
 * prints. */
void dsi_engine_log_overflow(const ds_engine *e, const char *bad_param_path);

/* At the end of ds_engine_step, after all counters: progress, throughput,
 * times, and scalars for the monitor. Collective at a boundary if there is a
 * monitor: the loss is averaged over the ranks. */
ds_status dsi_engine_log_step(ds_engine *e, bool boundary);

/* Memory in use "before forward" and so on, if memory_breakdown is set. */
void dsi_engine_log_memory(const ds_engine *e, const char *when);

/* The momentum of a group in a line of progress: betas, as Python's list or
 * tuple; or one number, which Python prints as a float or, like torch's default
 * of a momentum, as an integer. */
typedef struct dsi_log_momentum {
    enum { DSI_LOG_LIST, DSI_LOG_TUPLE, DSI_LOG_FLOAT, DSI_LOG_INT } form;
    double x[2]; /* both numbers of a list or tuple; else the first */
} dsi_log_momentum;

/* "step=10, skipped=0, lr=[0.001], mom=[[0.8, 0.999]]": at the start with step
 * 0, then every steps_per_print steps. lr, mom: [groups]. */
void dsi_log_progress(int64_t step, int64_t skipped, int groups, const double *lr,
                      const dsi_log_momentum *mom);
