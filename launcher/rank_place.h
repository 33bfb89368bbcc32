/* launcher/rank_place.h: which rank of the world this process is, from the
 * variables of the runner that started it (runner.h).
 * SPDX-License-Identifier: MIT */
#pragma once

#include "hosts.h"

#include "base/text.h"

/* Of a rank in the world. Ranks are numbered host by host. */
typedef struct rank_place {
    int rank, node, local_rank;
} rank_place;

/* node: -1, or the one whose ranks alone the runner started. Without any
 * runner's variables it is the only rank. false: the runner started another
 * world, and `why` says how it differs. */
bool rank_place_find(const ds_hosts *world, int node, rank_place *p, dsi_text *why);
/* Where rank 0 is, if the launcher could not know (dsi_free); NULL with `why`. */
char *rank_place_master(dsi_text *why);
/* Removes all runners' variables from the environment: the launcher itself may
 * have been started by a runner. */
void rank_place_forget(void);
