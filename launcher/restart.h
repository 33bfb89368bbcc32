/* launcher/restart.h: --max_restarts: the ranks of a job are started again after
 * a failure.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "job.h"
#include "plan.h"

/* One attempt to run the job, from the start of its ranks to their end. */
typedef struct attempt {
    job_report *report; /* filled by its processes */
    /* Called in this process when the ranks are being ended, NULL or with arg. */
    void (*ending)(void *arg);
    void *arg;
    int ended_by; /* the signal to this process that ended it; 0: none */
} attempt;

/* The steps of each attempt, in this order. */
typedef struct restart_job {
    /* Plans the hosts that there are, all of them or as many as --min_nodes and
     * --min_ranks need; waits for those. Returns 0, or the status of the command
     * after a line. NULL: the hosts that answer over ssh. */
    int (*find_hosts)(void *arg, bool all);
    /* Returns the status of the attempt after a line about a failure. */
    int (*run)(void *arg, attempt *a);
    /* No hosts may have been found. again: another attempt follows. May be NULL. */
    void (*finish)(void *arg, int status, bool again);
    void *arg;
} restart_job;

/* Runs the plan's job until it succeeds, somebody ends it, or --max_restarts is
 * used up. Returns the status of the command. */
int restart_run(launch_plan *p, const restart_job *how);
