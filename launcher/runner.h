/* launcher/runner.h: which engine starts the ranks, and its command line.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_RUNNER_H
#define LAUNCHER_RUNNER_H

#include "argv.h"
#include "plan.h"

/* The engine for p->o.launcher and p->hosts. */
ds_status engine_choose(launch_plan *p);
/* Sets p->starter to the program to run, and p->hydra. Where it is missing: the message says which program was
 * looked for and which package has it, and p->starter is its usual name. */
ds_status engine_look(launch_plan *p);
/* Whether the engine can start ranks on hosts of these names and slots, with the words of --launcher_args. */
ds_status engine_accepts(const launch_plan *p);

/* The argv of the process that starts all ranks, or (ENGINE_DIRECT) that is the only one. */
char **engine_command(const launch_plan *p);
/* Variables that the engine's own programs want, into p->environment's words. */
void engine_environment(const launch_plan *p, words *environment);

/* The host as ssh and the MPIs call it is its name; as an address it is without user@. */
const char *host_address(const ds_host *h);

#endif
