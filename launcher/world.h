/* launcher/world.h: the ranks of a job and their devices.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_WORLD_H
#define LAUNCHER_WORLD_H

#include "base/text.h"

#include <stdbool.h>

typedef struct world_node {
    char *name;
    int *slots; /* [n_slots] device numbers, by local rank */
    int n_slots;
} world_node;

typedef struct world {
    world_node *nodes; /* [n_nodes], in the order of ranks */
    int n_nodes, size;
} world;

/* Of a rank in the world. */
typedef struct place {
    int rank, node, local_rank;
} place;

/* world_info: {"host": [slots]} in base64url. false after one message. */
bool world_read(world *w, const char *world_info);
void world_free(world *w);

place world_place(const world *w, int rank);

#endif
