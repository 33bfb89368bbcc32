/* launcher/resources.h: which hosts and slots a command line asks for.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_RESOURCES_H
#define LAUNCHER_RESOURCES_H

#include "args.h"
#include "hosts.h"

#include "base/text.h"

typedef enum origin {
    FROM_MACHINE,  /* this machine alone */
    FROM_HOSTFILE, /* names that ssh knows */
    FROM_SLURM,    /* the nodes of the allocation that we are in */
    FROM_SRUN,     /* nodes that srun will choose: their names are not known */
    FROM_NODES     /* nodes that will join: their names are not known */
} origin;

/* Fills h. Lines that DeepSpeed prints on the way go to `said`, each with its \n. */
ds_status resources_find(ds_hosts *h, origin *from, dsi_text *said, const options *o);

/* Whether the same command is typed on each of several nodes. */
bool resources_per_node(const options *o, bool have_hostfile);

#endif
