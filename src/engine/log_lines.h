/* engine/log_lines.h: what an engine prints, in DeepSpeed's words.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/engine.h>

/* The version, the configuration, and the first line of progress. */
void dsi_engine_log_start(const ds_engine *e);

/* After an overflow, before the loss scale is updated. bad: the parameter whose
 * gradient has inf or NaN; NULL: another rank's. Rank 0 prints. */
void dsi_engine_log_overflow(const ds_engine *e, const char *bad);

/* At the end of ds_engine_step, after all counters: progress, throughput,
 * times, and scalars for the monitor. Collective at a boundary if there is a
 * monitor: the loss is averaged over the ranks. */
ds_status dsi_engine_log_step(ds_engine *e, bool boundary);

/* Memory in use "before forward" and so on, if memory_breakdown is set. */
void dsi_engine_log_memory(const ds_engine *e, const char *when);

/* "step=10, skipped=0, lr=[0.001], mom=[[0.8, 0.999]]": at the start with step
 * 0, then every steps_per_print steps. lr [groups]; mom [groups * each], where
 * each is 2 for betas and 1 for a momentum. tuple: betas print as Python's
 * tuples, mom=[(0.9, 0.999)]. */
void dsi_log_progress(int64_t step, int64_t skipped, int groups, const double *lr,
                      const double *mom, int each, bool tuple);
