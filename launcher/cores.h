/* launcher/cores.h: which processors a rank runs on.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_CORES_H
#define LAUNCHER_CORES_H

#include "base/text.h"

#include <stdbool.h>

typedef struct cores {
    int *at; /* [n] numbers of processors */
    int n;
} cores;

void cores_free(cores *c);

/* "0,2-5": numbers and ranges, ascending, none twice. false: it is not such a list, and `why` says so. */
bool cores_parse(const char *list, cores *c, dsi_text *why);

/* One processor of each physical core that this process may run on, NUMA node after NUMA node. node[k]: the
 * number of processors of the k-th node among them; free() it. */
void cores_of_machine(cores *c, int **node, int *n_nodes);

/* The share of local rank r of n: as many processors for each; where whole nodes or equal parts of nodes can
 * be dealt, none gets parts of two. false: there are fewer processors than ranks. */
bool cores_share(const cores *all, const int *node, int n_nodes, int r, int n, cores *share);

/* Binds this process; OMP_NUM_THREADS becomes their number. list NULL: all of the machine. false: it
 * cannot be, and `why` says it. */
bool cores_bind(const char *list, int r, int n, dsi_text *why);

#endif
