/* launcher/world.h: which rank of which world this process is.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_WORLD_H
#define LAUNCHER_WORLD_H

#include "base/text.h"

#include <stdbool.h>

typedef struct world_node {
    char *name;
    int *slots; /* [n_slots] */
    int n_slots;
} world_node;

typedef struct world {
    world_node *nodes; /* [n_nodes], in the order of ranks */
    int n_nodes, size;
} world;

typedef struct place {
    int rank, node, local_rank;
} place;

/* Of {"host": [slots]} in base64url. false after one message. */
bool world_read(world *w, const char *world_info);
void world_free(world *w);

place world_place(const world *w, int rank);
/* This process's place, as the engine that started it says. node: -1, or the one whose ranks alone the engine
 * started. false: the engine started another world, and `why` says how. */
bool world_find_me(const world *w, int node, place *p, dsi_text *why);

/* Takes what an engine said out of the environment: the launcher may have been started by one itself. */
void world_forget_engine(void);

/* On this machine alone: TMPDIR for mpirun or orted (ranks put back what it was), and a folder for the shared
 * memory of ranks; "": what is usual. */
void world_set_folders(const char *tmpdir, const char *shared);
void world_take_folders(void); /* in a rank */

#endif
