/* launcher/run.h: from the plan to the exit status.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "plan.h"

/* Starts what the plan says, waits for it, ends it. Returns the exit status of
 * the command, after one line on stderr if that is not 0. A single local rank
 * replaces this process. */
int run_plan(launch_plan *p);
