/* comm/thread_slots.c: the slots of a group, in a ring that grows.
 * SPDX-License-Identifier: MIT */
#include "thread_slots.h"

#include "base/mem.h"

/* Grows the ring for slots up to `number`. */
static void comm_group_grow_ring(comm_group *g, uint64_t number)
{
    uint64_t room = g->room ? g->room : 16;
    while (number - g->oldest >= room) room *= 2;
    if (room == g->room) return;
    slot **ring = dsi_alloc(room * sizeof *ring);
    for (uint64_t k = g->oldest; g->room && k < g->newest; k++)
        ring[k % room] = g->ring[k % g->room];
    dsi_free(g->ring);
    g->ring = ring;
    g->room = room;
}

slot *dsi_slot_at(comm_group *g, uint64_t number)
{
    comm_group_grow_ring(g, number);
    slot **m = &g->ring[number % g->room];
    if (*m) return *m;
    *m = dsi_alloc(sizeof **m + (size_t)g->size * sizeof(dsi_request *));
    **m = (slot){.group = g, .number = number};
    if (number >= g->newest) g->newest = number + 1;
    return *m;
}

static void slot_free(slot *m)
{
    if (m) dsi_free(m->squares);
    dsi_free(m);
}

void dsi_slot_release(slot *m)
{
    comm_group *g = m->group;
    if (m->users || m->left < g->size) return;
    g->ring[m->number % g->room] = NULL;
    while (g->oldest < g->newest && !g->ring[g->oldest % g->room]) g->oldest++;
    slot_free(m);
}

void dsi_comm_group_free(comm_group *g)
{
    for (uint64_t k = g->oldest; k < g->newest; k++) slot_free(g->ring[k % g->room]);
    for (int k = 0; g->pair && k < g->size * g->size; k++)
        if (g->pair[k]) dsi_comm_group_free(g->pair[k]);
    dsi_free(g->pair);
    dsi_free(g->ring);
    dsi_free(g->world_rank);
    dsi_free(g->comm_rank);
    for (int r = 0; r < g->size; r++) dsi_free(g->departure[r].messages);
    dsi_free(g->departure);
    dsi_free(g);
}

comm_group *dsi_comm_group_new(rank_threads *t, int size)
{
    comm_group *g = dsi_alloc(sizeof *g);
    *g = (comm_group){.threads = t, .refs = size, .size = size};
    g->world_rank = dsi_alloc((size_t)size * sizeof *g->world_rank);
    g->comm_rank = dsi_alloc((size_t)size * sizeof *g->comm_rank);
    g->departure = dsi_alloc((size_t)size * sizeof *g->departure);
    for (int r = 0; r < size; r++) g->comm_rank[r] = r;
    return g;
}
