/* launcher/select.h: selects among hosts and slots.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "hosts.h"

/* --include, --exclude: NAME[:SLOT[,SLOT...]][@NAME...]; NULL or "": not given.
 * Hosts keep the hostfile's order, slots are sorted. None may remain. */
ds_status select_hosts(ds_hosts *h, const char *include, const char *exclude);
/* --num_nodes, --num_gpus: keeps the first hosts, and gives each the slots 0 to
 * per_node-1, whether they exist or not; <= 0: all. */
void select_counts(ds_hosts *h, int num_nodes, int per_node);
void select_nonempty(ds_hosts *h); /* hosts with a slot */
