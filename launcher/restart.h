/* launcher/restart.h: --max_restarts: the ranks of a job are started again after
 * a failure.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "job.h"
#include "plan.h"

/* One attempt to run the job, from the start of its ranks to their end. */
typedef struct attempt {
    job_report *report; /* filled by its processes */
    int ended_by;       /* the signal to this process that ended it; 0: none */
} attempt;

/* Runs the plan's job with `run`, which returns the status of the attempt after
 * a line about a failure, until it succeeds, somebody ends it, or
 * --max_restarts is used up. Each time the plan gets the hosts that answer.
 * Returns the status of the command. */
int restart_run(launch_plan *p, int (*run)(const launch_plan *p, attempt *a));
