/* launcher/runner_process.h: the runner of a job, a child of the launcher whose
 * stdout and stderr are pipes.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "job.h"

typedef struct runner_process {
    int process, out, err; /* -1: ended, closed */
    wire_reader reader;    /* of err */
} runner_process;

/* Starts the job's command, which ends when this process does. false with
 * errno. */
bool runner_process_start(runner_process *p, const job *j);
