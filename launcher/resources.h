/* launcher/resources.h: the hosts and slots that a command line asks for.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"
#include "hosts.h"

#include "base/text.h"

typedef enum host_origin {
    HOSTS_LOCAL,   /* this machine alone */
    HOSTS_OF_FILE, /* a hostfile: names that ssh knows */
    HOSTS_OF_JOB,  /* the scheduler's job that the launcher runs in */
    HOSTS_UNNAMED, /* the runner will choose them: node-0, node-1, ... */
    HOSTS_JOINING  /* they will join node 0: node-0, node-1, ... */
} host_origin;

/* Fills h. find_hosts: the runner's own (runner.h), or NULL. Lines that
 * DeepSpeed prints on the way are added to `notices`, each with its newline. */
ds_status resources_find(ds_hosts *h, host_origin *origin, dsi_text *notices, const options *o,
                         ds_status (*find_hosts)(ds_hosts *, host_origin *, const options *));

/* Is the same command typed on each of several nodes? */
bool resources_per_node(const options *o, bool have_hostfile);

/* DS_EINVAL, with the message, for --num_gpus beyond the GPUs of this machine.
 * gpus: how many it has; 0: none, or all are hidden, and ranks compute on the
 * CPU. */
ds_status resources_check_gpus(const options *o, int gpus);
