/* base/profile.h: who looks at what a thread runs: its profile
 * (deepspeed/profile.h), its trace (DS_TRACE) and the costs of its modules; and
 * where it is: in which module, in whose backward.
 *
 *     dsi_place before = dsi_observe_module();
 *     ...
 *     dsi_observe_end(before);
 *
 * Invariants: a thread is observed while a profile runs or costs are counted, and
 * from the opening of its first device on if there is a trace. Observing may begin or end
 * between the two lines. A thread that is not observed pays a branch for each.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>
#include <stdint.h>

extern _Thread_local bool dsi_observed __attribute__((__visibility__("hidden")));

typedef struct dsi_place {
    const char *module; /* its path; memory of the thread; NULL: none */
    const char *op;     /* whose backward it is; NULL: none */
    bool traced;        /* the trace has its begin */
    double begun;       /* of the module's call; 0: costs are not counted */
} dsi_place;

/* Around the call of the module whose path the error context has, and around
 * the backward of a node that was recorded in `module`. They return the place
 * before, which the end is given. */
dsi_place dsi_observe_module_now(void);
dsi_place dsi_observe_backward_now(const char *module, const char *op);
void dsi_observe_end_now(dsi_place before);

static inline dsi_place dsi_observe_module(void)
{
    return dsi_observed ? dsi_observe_module_now() : (dsi_place){0};
}

static inline dsi_place dsi_observe_backward(const char *module, const char *op)
{
    return dsi_observed ? dsi_observe_backward_now(module, op) : (dsi_place){0};
}

static inline void dsi_observe_end(dsi_place before)
{
    if (dsi_observed) dsi_observe_end_now(before);
}

/* The module that runs now, for dsi_observe_backward; NULL: none. */
const char *dsi_observed_module(void);

/* Of this thread: forgets the last profile and starts one; ends it. */
void dsi_profile_start(void);
void dsi_profile_stop(void);
bool dsi_profile_runs(void);

/* Adds a call to the row of that name (a literal) and the present place. wait:
 * for a collective. Without a profile it does nothing. */
void dsi_profile_add(const char *name, bool wait, double seconds, double flops, double bytes);

/* ---- costs of modules ---------------------------------------------------------------------------------- */

/* Of the calls of a module's forward since dsi_costs_start. Seconds have those
 * of the modules below it; flops and macs have the ops that it ran itself.
 * Backward counts nothing. */
typedef struct dsi_cost {
    int64_t calls;
    double seconds, flops, macs;
} dsi_cost;

/* Of this thread: forgets all costs, and counts from now on; ends counting, which
 * keeps them. wait, with arg, waits for the device before the clock is read; it may
 * be NULL. A profile counts costs too. */
void dsi_costs_start(void (*wait)(void *arg), void *arg);
void dsi_costs_stop(void);
bool dsi_costs_run(void);

/* Of the module with this path ("net.fc1"); zeros: none was counted. */
dsi_cost dsi_cost_of(const char *path);

/* Adds to the module that runs now. An op calls it once, with the numbers of
 * DeepSpeed's flops profiler. */
void dsi_cost_add_now(double flops, double macs);
static inline void dsi_cost_add(double flops, double macs)
{
    if (dsi_observed) dsi_cost_add_now(flops, macs);
}

/* While it is off, dsi_cost_add does nothing: for an op that is composed of others
 * and has counted itself. Returns what it was. */
bool dsi_cost_set(bool on);
