/* device/slabs.c: see slabs.h.
 *
 * Invariants: the gaps of a slab are what is cut from it no more, or never was:
 * in the order of addresses, none empty, none next to another. A piece that was
 * taken back may be cut again at once: work on the device's stream is in order,
 * as with blocks of the cache.
 * SPDX-License-Identifier: MIT */
#include "slabs.h"

#include "base/list.h"

#include <string.h>

#define UNIT  ((size_t)256) /* of sizes and addresses: whole lines of a GPU's caches */
#define SHARE 8             /* a piece is at most this part of a slab */

typedef struct Gap {
    size_t begin, bytes;
} Gap;

struct dsi_slab {
    dsi_slab *next;
    char *p;
    size_t used; /* bytes of pieces */
    bool fixed;
    struct {
        DSI_LIST(Gap)
    } gaps;
};

static size_t piece_bytes(size_t bytes) { return (bytes + UNIT - 1) / UNIT * UNIT; }

/* At the first gap that is large enough; NULL: there is none. */
static char *piece_cut(dsi_slab *s, size_t bytes)
{
    for (int i = 0; i < s->gaps.n; i++) {
        Gap *gap = &s->gaps.at[i];
        if (gap->bytes < bytes) continue;
        char *p = s->p + gap->begin;
        gap->begin += bytes;
        gap->bytes -= bytes;
        if (!gap->bytes) memmove(gap, gap + 1, (size_t)(--s->gaps.n - i) * sizeof *gap);
        s->used += bytes;
        return p;
    }
    return NULL;
}

static dsi_slab *slab_new(dsi_device *d, dsi_slab **slabs, bool fixed)
{
    size_t bytes = d->type->slab_bytes;
    char *p = fixed ? d->type->alloc_fixed(d, bytes) : d->type->alloc(d, bytes);
    if (!p) return NULL;
    dsi_slab *s = dsi_alloc(sizeof *s);
    *s = (dsi_slab){.next = *slabs, .p = p, .fixed = fixed};
    dsi_list_add(&s->gaps, (Gap){0, bytes});
    return *slabs = s;
}

/* A sanitizer sees the ends of blocks that are the device's own. */
void *dsi_slab_cut(dsi_device *d, dsi_slab **slabs, bool fixed, size_t bytes)
{
    char *p = NULL;
    if (DSI_SANITIZED || bytes > d->type->slab_bytes / SHARE) return NULL;
    for (dsi_slab *s = *slabs; s && !p; s = s->next)
        if (s->fixed == fixed) p = piece_cut(s, piece_bytes(bytes));
    if (p) return p;
    dsi_slab *s = slab_new(d, slabs, fixed);
    return s ? piece_cut(s, piece_bytes(bytes)) : NULL;
}

/* Adds a gap, which becomes one with those next to it. */
static void gap_add(dsi_slab *s, Gap gap)
{
    int i = 0;
    while (i < s->gaps.n && s->gaps.at[i].begin < gap.begin) i++;
    dsi_list_add(&s->gaps, gap);
    Gap *at = s->gaps.at;
    memmove(at + i + 1, at + i, (size_t)(s->gaps.n - 1 - i) * sizeof *at);
    at[i] = gap;
    for (int k = i + 1; k >= i; k--) {
        if (k < 1 || k >= s->gaps.n || at[k - 1].begin + at[k - 1].bytes != at[k].begin) continue;
        at[k - 1].bytes += at[k].bytes;
        memmove(at + k, at + k + 1, (size_t)(--s->gaps.n - k) * sizeof *at);
    }
}

bool dsi_slab_join(dsi_device *d, dsi_slab **slabs, void *p, size_t bytes)
{
    uintptr_t address = (uintptr_t)p;
    dsi_slab **at = slabs;
    while (*at && address - (uintptr_t)(*at)->p >= d->type->slab_bytes) at = &(*at)->next;
    dsi_slab *s = *at;
    if (!s) return false;
    gap_add(s, (Gap){address - (uintptr_t)s->p, piece_bytes(bytes)});
    s->used -= piece_bytes(bytes);
    if (s->used) return true;
    *at = s->next;
    (s->fixed ? d->type->free_fixed : d->type->free)(d, s->p);
    dsi_list_free(&s->gaps);
    dsi_free(s);
    return true;
}
