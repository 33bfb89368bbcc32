/* launcher/select.h: which of the hosts and slots are used.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_SELECT_H
#define LAUNCHER_SELECT_H

#include "hosts.h"

/* --include, --exclude: NAME[:SLOT[,SLOT...]][@NAME...]; NULL or "": none. Hosts keep the hostfile's order, slots
 * are sorted. All may be gone afterwards. */
ds_status select_hosts(ds_hosts *h, const char *include, const char *exclude);
/* --num_nodes, --num_gpus: the first hosts, the slots 0 to per_node-1 of each, whether they exist or not; 0 and
 * less: all. */
void select_counts(ds_hosts *h, int num_nodes, int per_node);
void select_some(ds_hosts *h); /* those with a slot */

#endif
