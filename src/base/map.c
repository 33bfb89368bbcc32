/* base/map.c: an ordered map from names to pointers.
 *
 * Invariants: at[0 .. n-1] are the entries in the order in which they were
 * added. The hash table (FNV-1a, open addressing, at most half full) holds 1 +
 * an index of `at`, 0 for a free slot; up to FEW entries there is no table.
 * Names are copies that belong to the map; values are the caller's. Nothing is
 * ever removed.
 * SPDX-License-Identifier: MIT */
#include "map.h"

#include "list.h"

#include <string.h>

#define FEW 8 /* entries that are found faster without the table */

uint64_t dsi_fnv1a(uint64_t h, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 1099511628211u;
    return h;
}

uint64_t dsi_fnv1a_text(const char *s) { return dsi_fnv1a(DSI_FNV1A, s, strlen(s)); }

/* The slot of that name, or the free one in which it would lie. */
static size_t map_find_slot(const dsi_map *m, const char *name, uint64_t hash)
{
    size_t i = hash & (m->slots - 1);
    for (; m->slot[i]; i = (i + 1) & (m->slots - 1)) {
        const dsi_map_entry *e = &m->at[m->slot[i] - 1];
        if (e->hash == hash && !strcmp(e->name, name)) break;
    }
    return i;
}

static void map_grow_table(dsi_map *m)
{
    if (m->n <= FEW || 2 * (size_t)m->n <= m->slots) return;
    while (m->slots < 4 * (size_t)m->n) m->slots = m->slots ? 2 * m->slots : 4 * FEW;
    dsi_free(m->slot);
    m->slot = dsi_alloc(m->slots * sizeof *m->slot);
    for (int i = 0; i < m->n; i++) m->slot[map_find_slot(m, m->at[i].name, m->at[i].hash)] = i + 1;
}

static dsi_map_entry *map_find(const dsi_map *m, const char *name, uint64_t hash)
{
    if (m->slots) {
        int k = m->slot[map_find_slot(m, name, hash)];
        return k ? &m->at[k - 1] : NULL;
    }
    for (int i = 0; i < m->n; i++)
        if (m->at[i].hash == hash && !strcmp(m->at[i].name, name)) return &m->at[i];
    return NULL;
}

void *dsi_map_set(dsi_map *m, const char *name, void *value)
{
    uint64_t hash = dsi_fnv1a_text(name);
    dsi_map_entry *e = map_find(m, name, hash);
    if (e) {
        void *was = e->value;
        e->value = value;
        return was;
    }
    dsi_list_add(m, (dsi_map_entry){dsi_strdup(name), value, hash});
    if (m->slots) m->slot[map_find_slot(m, name, hash)] = m->n;
    map_grow_table(m);
    return NULL;
}

void *dsi_map_get(const dsi_map *m, const char *name)
{
    const dsi_map_entry *e = m->n ? map_find(m, name, dsi_fnv1a_text(name)) : NULL;
    return e ? e->value : NULL;
}

void dsi_map_free(dsi_map *m)
{
    for (int i = 0; i < m->n; i++) dsi_free(m->at[i].name);
    dsi_free(m->at);
    dsi_free(m->slot);
    *m = (dsi_map){0};
}
