/* comm/thread_slots.c: the slots of a group, in a ring that grows.
 * SPDX-License-Identifier: MIT */
#include "thread_slots.h"

#include "base/mem.h"

/* Grows the ring for slots up to `number`. */
static void group_grow_ring(group *g, uint64_t number)
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

slot *dsi_slot_at(group *g, uint64_t number)
{
    group_grow_ring(g, number);
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
    group *g = m->group;
    if (m->users || m->left < g->size) return;
    g->ring[m->number % g->room] = NULL;
    while (g->oldest < g->newest && !g->ring[g->oldest % g->room]) g->oldest++;
    slot_free(m);
}

void dsi_group_free(group *g)
{
    for (uint64_t k = g->oldest; k < g->newest; k++) slot_free(g->ring[k % g->room]);
    for (int k = 0; g->pair && k < g->size * g->size; k++)
        if (g->pair[k]) dsi_group_free(g->pair[k]);
    dsi_free(g->pair);
    dsi_free(g->ring);
    dsi_free(g->member);
    dsi_free(g->called);
    for (int r = 0; r < g->size; r++) dsi_free(g->gone[r].messages);
    dsi_free(g->gone);
    dsi_free(g);
}

group *dsi_group_new(team *t, int size)
{
    group *g = dsi_alloc(sizeof *g);
    *g = (group){.team = t, .refs = size, .size = size};
    g->member = dsi_alloc((size_t)size * sizeof *g->member);
    g->called = dsi_alloc((size_t)size * sizeof *g->called);
    g->gone = dsi_alloc((size_t)size * sizeof *g->gone);
    for (int r = 0; r < size; r++) g->called[r] = r;
    return g;
}
