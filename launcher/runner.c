/* launcher/runner.c: the list of runners.
 * SPDX-License-Identifier: MIT */
#include "runner.h"

#include <strings.h>

/* A rank asks them in this order which one has started it. Hydra's variables
 * come after Open MPI's and before Slurm's: both run in jobs of Slurm too. */
const runner *const runners[] = {
    &runner_openmpi, &runner_mpich, &runner_mvapich, &runner_slurm, &runner_per_node,
    &runner_direct,  NULL};

const runner *runner_find(const char *launcher, const char **value)
{
    if (!launcher) launcher = "ssh";
    for (const runner *const *r = runners; *r; r++)
        for (const char *const *name = (*r)->launchers; name && *name; name++)
            if (!strcasecmp(launcher, *name)) {
                *value = *name;
                return *r;
            }
    return NULL;
}
