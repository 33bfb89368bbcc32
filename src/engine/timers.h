/* engine/timers.h: times of the parts of a step, under DeepSpeed's names.
 *
 * Invariants: a timer exists from its first start. Times from start to stop add
 * up until the timer is logged, which resets it. Micro-step timers are logged
 * in every ds_engine_step, global ones at boundaries after them.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/types.h>

/* ---- phases (wall_clock_breakdown) ------------------------------------------------------------------ */

/* NULL is a disabled set of timers: all functions accept it and do nothing. */
typedef struct dsi_timers dsi_timers;
dsi_timers *dsi_timers_new(void);
void dsi_timers_free(dsi_timers *t);

/* Each phase of a step has a timer of the micro step (fwd_microstep,
 * bwd_microstep, bwd_inner_microstep, bwd_allreduce_microstep, step_microstep)
 * and a global one up to the accumulation boundary (fwd, bwd, bwd_inner,
 * bwd_allreduce, step). BWD contains BWD_INNER and BWD_ALLREDUCE. A second start
 * discards the first (a failed pass has no stop); a stop without a start does
 * nothing. */
typedef enum dsi_phase {
    DSI_FWD,
    DSI_BWD,
    DSI_BWD_INNER,
    DSI_BWD_ALLREDUCE,
    DSI_STEP,
    DSI_PHASES
} dsi_phase;

void dsi_phase_start(dsi_timers *t, dsi_phase phase);
void dsi_phase_stop(dsi_timers *t, dsi_phase phase);
/* Divides the BWD that has just stopped: `reducing` seconds are BWD_ALLREDUCE,
 * the rest is BWD_INNER. */
void dsi_phase_split_backward(dsi_timers *t, double reducing);
/* Prints the times of the parts of ZeRO's update, in seconds; stage 0 has none. */
void dsi_phases_log_update(dsi_timers *t, int stage, double allgather, double gradients,
                           double update);
/* Seconds of the last one, in this micro step; 0: none. */
double dsi_phase_last(const dsi_timers *t, dsi_phase phase);
double dsi_phase_ms(const dsi_timers *t, dsi_phase phase); /* since the last boundary */
/* Of the last line that has this timer, 0: none yet; NaN: no such timer, or t is NULL. */
double dsi_timer_logged_ms(const dsi_timers *t, const char *name);
/* Print "time (ms) | fwd: 1.23 | bwd: 4.56" for the timers that were started,
 * and reset these. */
void dsi_phases_log_micro(dsi_timers *t);  /* at the end of each ds_engine_step */
void dsi_phases_log_global(dsi_timers *t); /* after it, at a boundary */

/* ---- throughput ------------------------------------------------------------------------------------- */

/* Samples per second from forward to step, without data loading; the first two
 * steps are a warm-up and not counted. Callers read the fields and do not write
 * them, except for ds_engine_load. */
typedef struct dsi_throughput {
    bool off;                /* timers.throughput.enabled: false */
    int64_t batch_size;      /* samples of one global step, over all ranks */
    int64_t steps_per_print; /* 0: no lines */
    int64_t epoch, micro_step, global_step;
    double current; /* samples per second of the last global step; 0 before the third */
    double begun, step_seconds, total_seconds;
    bool running, timed;
} dsi_throughput;

void dsi_throughput_start(dsi_throughput *t); /* at the begin of each forward in training */
/* At the end of each step; every steps_per_print global steps the line
 * "epoch=0/micro_step=..". */
void dsi_throughput_stop(dsi_throughput *t, bool global_step);
/* samples per second; 0 before the third step */
double dsi_throughput_average(const dsi_throughput *t);
