/* engine/timers.h: how long the parts of a step take, in the words and rules of DeepSpeed.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_ENGINE_TIMERS_H
#define DSI_ENGINE_TIMERS_H

#include <deepspeed/types.h>

/* ---- timers by name (wall_clock_breakdown) --------------------------------------------------------- */

/* NULL is a set of timers that is switched off: all functions take it and do nothing. */
typedef struct dsi_timers dsi_timers;
dsi_timers *dsi_timers_new(void);
void dsi_timers_free(dsi_timers *t);

/* A timer is there from its first start; times from start to stop add up until it is logged. A second
 * start begins anew (a pass that failed has no stop), a stop without a start does nothing. */
void dsi_timer_start(dsi_timers *t, const char *name);
void dsi_timer_stop(dsi_timers *t, const char *name);
double dsi_timer_ms(const dsi_timers *t, const char *name);      /* their sum; 0 if there is none */
double dsi_timer_mean_ms(const dsi_timers *t, const char *name); /* of one start to stop */

/* "time (ms) | fwd: 1.23 | bwd: 4.56" of those of the names that there are, which begin at 0 again. */
void dsi_timers_log(dsi_timers *t, int n, const char *const *names);

/* The engine's own: each phase has a timer of the micro step (fwd_microstep, bwd_microstep,
 * bwd_inner_microstep, bwd_allreduce_microstep, step_microstep) and one that adds up to the boundary of
 * accumulation (fwd, bwd, bwd_inner, bwd_allreduce, step). BWD holds BWD_INNER and BWD_ALLREDUCE. */
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
/* Of the BWD that has just stopped so many seconds were BWD_ALLREDUCE; BWD_INNER is the rest. */
void dsi_phase_split_backward(dsi_timers *t, double reducing);
/* An update of ZeRO's: the line of its parts, in the names of that stage; stage 0 has none. */
void dsi_phases_log_update(dsi_timers *t, int stage, double allgather, double gradients,
                           double update);
double dsi_phase_ms(const dsi_timers *t, dsi_phase phase); /* since the last boundary */
void dsi_phases_log_micro(dsi_timers *t);                  /* at the end of each ds_engine_step */
void dsi_phases_log_global(dsi_timers *t);                 /* after it, at a boundary */

/* ---- throughput ------------------------------------------------------------------------------------- */

/* From a start to its stop, data loading left out; the first two steps warm up and are not counted.
 * Fields are read from outside, written by the functions. */
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
/* At the end of each step; every steps_per_print global steps the line "epoch=0/micro_step=..". */
void dsi_throughput_stop(dsi_throughput *t, bool global_step);
/* samples per second; 0 before the third step */
double dsi_throughput_average(const dsi_throughput *t);

#endif
