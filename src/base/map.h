/* base/map.h: an ordered map from names to pointers.
 *
 *     dsi_map m = {0};
 *     dsi_map_set(&m, "fc1.weight", w);
 *     for (int i = 0; i < m.n; i++) use(m.at[i].name, m.at[i].value);
 *     dsi_map_free(&m);
 *
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* FNV-1a of n bytes, from the hash h of what came before, at first DSI_FNV1A;
 * and of a text. */
#define DSI_FNV1A 14695981039346656037u
uint64_t dsi_fnv1a(uint64_t h, const void *bytes, size_t n);
uint64_t dsi_fnv1a_text(const char *s);

typedef struct dsi_map_entry {
    char *name; /* a copy */
    void *value;
    uint64_t hash;
} dsi_map_entry;

typedef struct dsi_map {
    dsi_map_entry *at; /* [n], in the order in which the names came */
    int n, room;
    int *slot;    /* [slots]: 1 + the index of the slot's entry, 0: none */
    size_t slots; /* a power of 2 */
} dsi_map;

/* Returns what had the name, or NULL. A name that is known keeps its place. */
void *dsi_map_set(dsi_map *m, const char *name, void *value);
void *dsi_map_get(const dsi_map *m, const char *name); /* NULL if absent */
void dsi_map_free(dsi_map *m);                         /* values are the caller's */
