/* launcher/cores.h: the processors that a rank runs on.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"
#include "base/text.h"

#include <stdbool.h>

typedef struct cores { /* numbers of processors */
    DSI_LIST(int)
} cores;

/* Reads "0,2-5": numbers and ranges, ascending, none twice. false with `why`. */
bool cores_parse(const char *list, cores *c, dsi_text *why);

/* One processor of each physical core that this process may use, NUMA node
 * after NUMA node. (*node)[k]: how many of them belong to the k-th node
 * (dsi_free). */
void cores_of_machine(cores *c, int **node, int *n_nodes);

/* The share of local rank r of n. Each gets the same number; if n is a multiple
 * of the number of nodes, no share spans two. false: fewer processors than
 * ranks. */
bool cores_share(const cores *all, const int *node, int n_nodes, int r, int n, cores *share);

/* The share of rank r of n near its GPU: an equal part of the cores of NUMA node
 * node[r], among the ranks whose GPUs are there too. root: a folder in front of
 * /sys, for tests; else "". false: a rank would have no core. */
bool cores_share_of_node(const char *root, const int *node, int r, int n, cores *share);

/* Binds this process to the share of local rank r of n, and sets
 * OMP_NUM_THREADS to the number of processors. list: as for cores_parse; NULL:
 * all of the machine. gpu: [n] each rank's GPU, whose NUMA node decides; NULL,
 * or not known: equal parts. false with `why`. */
bool cores_bind(const char *list, const int *gpu, int r, int n, dsi_text *why);
