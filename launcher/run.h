/* launcher/run.h: from the plan to the exit status.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_RUN_H
#define LAUNCHER_RUN_H

#include "plan.h"

/* Starts what the plan says, watches it, ends it. Returns the exit status of the command, after one line on
 * stderr if it is not 0; a single local rank is executed in place of this process. */
int run_plan(launch_plan *p);

#endif
