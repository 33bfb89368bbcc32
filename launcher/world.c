/* launcher/world.c: the ranks of a job and their devices, as --world_info gives
 * them to each rank.
 * SPDX-License-Identifier: MIT */
#include "world.h"

#include "base/mem.h"
#include "base/text.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The value of a character of base64, in both alphabets; -1: it is none. */
static int base64_value(char c)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(letters, c) : NULL;
    return at ? (int)(at - letters) : c == '-' ? 62 : c == '_' ? 63 : -1;
}

/* false: s is not base64. */
static bool base64_decode(const char *s, dsi_text *out)
{
    uint32_t bits = 0;
    int have = 0;
    for (; base64_value(*s) >= 0; s++) {
        bits = bits << 6 | (uint32_t)base64_value(*s);
        have += 6;
        if (have < 8) continue;
        have -= 8;
        dsi_text_add_bytes(out, &(char){(char)(bits >> have & 0xff)}, 1);
    }
    return s[strspn(s, "=")] == 0;
}

static bool world_node_read(world_node *n, const char *name, json_t *slots)
{
    if (!json_is_array(slots)) return false;
    *n = (world_node){.name = dsi_strdup(name),
                      .slots = dsi_alloc((json_array_size(slots) + 1) * sizeof *n->slots),
                      .n_slots = (int)json_array_size(slots)};
    for (int i = 0; i < n->n_slots; i++) {
        json_t *slot = json_array_get(slots, (size_t)i);
        if (!json_is_integer(slot)) return false;
        n->slots[i] = (int)json_integer_value(slot);
    }
    return true;
}

bool world_read(world *w, const char *world_info)
{
    dsi_text text = {0};
    json_t *info = base64_decode(world_info, &text) && text.s ? json_loads(text.s, 0, NULL) : NULL,
           *slots;
    const char *name;
    bool good = json_is_object(info);
    dsi_text_free(&text);
    *w = (world){0};
    if (good) {
        w->nodes = dsi_alloc((json_object_size(info) + 1) * sizeof *w->nodes);
        json_object_foreach(info, name, slots)
        {
            world_node *n = &w->nodes[w->n_nodes++];
            good = world_node_read(n, name, slots) && good;
            w->size += n->n_slots;
        }
    }
    json_decref(info);
    if (good && w->size > 0) return true;
    fprintf(stderr,
            "deepspeed: --world_info=%s: expected base64 of {\"host\": [device, ...], ...}\n",
            world_info);
    return false;
}

void world_free(world *w)
{
    for (int i = 0; i < w->n_nodes; i++) {
        dsi_free(w->nodes[i].name);
        dsi_free(w->nodes[i].slots);
    }
    dsi_free(w->nodes);
    *w = (world){0};
}

place world_place(const world *w, int rank)
{
    place p = {.rank = rank, .local_rank = rank};
    while (p.node < w->n_nodes - 1 && p.local_rank >= w->nodes[p.node].n_slots)
        p.local_rank -= w->nodes[p.node++].n_slots;
    return p;
}
