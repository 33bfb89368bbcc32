/* base/profile.h: who looks at what a thread runs: its profile
 * (deepspeed/profile.h) and its trace (DS_TRACE); and where it is: in which
 * module, in whose backward.
 *
 *     dsi_place before = dsi_observe_module();
 *     ...
 *     dsi_observe_end(before);
 *
 * Invariants: a thread is observed while a profile runs, and from the opening
 * of its first device on if there is a trace. Observing may begin or end
 * between the two lines. A thread that is not observed pays a branch for each.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>

extern _Thread_local bool dsi_observed __attribute__((__visibility__("hidden")));

typedef struct dsi_place {
    const char *module; /* its path; memory of the thread; NULL: none */
    const char *op;     /* whose backward it is; NULL: none */
    bool traced;        /* the trace has its begin */
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
