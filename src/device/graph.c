/* device/graph.c: see graph.h.
 * SPDX-License-Identifier: MIT */
#include "graph.h"

#include "base/error.h"
#include "base/list.h"
#include "pool.h"

#include <stdio.h>
#include <string.h>

#define SLOT_BYTES   ((size_t)65536) /* 4096 dropouts; those used are copied before a launch */
#define RESULT_BYTES ((size_t)256)   /* all results, behind them; copied after it */
#define ALIGNMENT    16

typedef struct Hook {
    const dsi_graph_hook *type;
    void *arg;
} Hook;

typedef struct Seed {
    uint64_t seed;
    const uint64_t *slot;
} Seed;

struct dsi_graph {
    dsi_device *d;
    dsi_block_pool *pool;           /* owned */
    dsi_block_pool *transient_pool; /* the caller's, shared with its other graphs; or NULL */
    void *work;                     /* the device's; NULL: nothing is captured */
    bool capturing, forbidden, unnoted, accumulates;
    char why[256];
    _Alignas(ALIGNMENT) char host[SLOT_BYTES + RESULT_BYTES]; /* values of slots and results */
    char *slots;                                              /* the same in the device's memory */
    size_t used, results;                                     /* bytes of slots, of results */
    _Alignas(ALIGNMENT) char sent[SLOT_BYTES]; /* what the first sent_bytes of `slots` hold */
    size_t sent_bytes;
    const dsi_step_scalars *scalars;
    dsi_graph_decision decision;
    int64_t scalar_uses;
    struct {
        DSI_LIST(Hook)
    } hooks;
    struct {
        DSI_LIST(Seed)
    } seeds; /* of the step that is recorded */
};

dsi_graph *dsi_graph_new(dsi_device *d, dsi_block_pool *transient_pool)
{
    if (!d->type->capture_begin) return NULL;
    dsi_graph *g = dsi_alloc(sizeof *g);
    g->d = d;
    g->pool = dsi_pool_new(d);
    g->transient_pool = transient_pool;
    return g;
}

bool dsi_graph_collides(const dsi_graph *g)
{
    return g->transient_pool && dsi_pool_blocks_in_use(g->transient_pool);
}

void dsi_graph_part(dsi_graph *g) { g->transient_pool = NULL; }

void dsi_graph_cancel(dsi_graph *g)
{
    if (g->work) g->d->type->graph_free(g->d, g->work);
    g->work = NULL;
    if (g->capturing) (void)g->d->type->capture_end(&g->d->stream, false, &g->work);
}

void dsi_graph_reset(dsi_graph *g)
{
    dsi_graph_cancel(g);
    for (int i = 0; i < g->hooks.n; i++) g->hooks.at[i].type->release(g->hooks.at[i].arg);
    g->hooks.n = g->seeds.n = 0;
    g->used = g->results = 0;
    g->forbidden = false;
}

void dsi_graph_free(dsi_graph *g)
{
    if (!g) return;
    dsi_graph_reset(g);
    dsi_list_free(&g->hooks);
    dsi_list_free(&g->seeds);
    if (g->slots) g->d->type->free_fixed(g->d, g->slots);
    dsi_pool_free(g->pool);
    dsi_free(g);
}

/* Nothing of the step was done. */
static void hooks_undo(const dsi_graph *g)
{
    for (int i = g->hooks.n - 1; i >= 0; i--) {
        const Hook *h = &g->hooks.at[i];
        if (h->type->undo) h->type->undo(h->arg);
    }
}

/* ---- recording ---------------------------------------------------------------------------------------- */

ds_status dsi_graph_begin(dsi_graph *g, bool capture)
{
    dsi_device *d = g->d;
    ds_status status = DS_OK;
    if (d->recording) return dsi_fail(DS_ESTATE, "step_graph: a step is recorded inside of a step");
    dsi_graph_reset(g);
    if (capture && !g->slots) g->slots = d->type->alloc_fixed(d, sizeof g->host);
    if (capture && !g->slots)
        return dsi_fail(DS_ENOMEM, "step_graph: no memory for %zu bytes on %s", sizeof g->host,
                        ds_device_name(dsi_device_id(d)));
    if (capture) status = d->type->capture_begin(&d->stream);
    if (status != DS_OK) return status;
    g->capturing = capture;
    g->scalar_uses = 0;
    g->scalars = NULL;
    g->decision = (dsi_graph_decision){0};
    g->unnoted = g->accumulates = false;
    d->recording = g;
    d->recordings++;
    if (capture && g->transient_pool) dsi_pool_move_transient(g->pool, g->transient_pool);
    dsi_pool_use(d, g->pool);
    if (capture && g->transient_pool) dsi_pool_use_transient(d, g->transient_pool);
    return DS_OK;
}

ds_status dsi_graph_end(dsi_graph *g, bool keep)
{
    dsi_device *d = g->d;
    bool captured = g->capturing;
    dsi_pool_use(d, NULL);
    d->recording = NULL;
    g->capturing = false;
    if (!captured) dsi_pool_note_persistent(g->pool);
    if (!captured) return DS_OK;
    ds_status status = d->type->capture_end(&d->stream, keep, &g->work);
    if (status != DS_OK || !keep) {
        hooks_undo(g);
        dsi_graph_reset(g);
    }
    if (g->transient_pool) dsi_pool_trim(g->transient_pool);
    return status;
}

const char *dsi_graph_why_not(const dsi_graph *g) { return g->forbidden ? g->why : NULL; }

bool dsi_graph_holds(const dsi_graph *g)
{
    for (int i = 0; i < g->hooks.n; i++) {
        const Hook *h = &g->hooks.at[i];
        if (h->type->holds && !h->type->holds(h->arg)) return false;
    }
    return g->work != NULL;
}

bool dsi_graph_asks(const dsi_graph *g)
{
    for (int i = 0; i < g->hooks.n; i++)
        if (g->hooks.at[i].type->agrees) return true;
    return false;
}

bool dsi_graph_agrees(const dsi_graph *g)
{
    bool all = true;
    for (int i = 0; i < g->hooks.n; i++) {
        const Hook *h = &g->hooks.at[i];
        if (h->type->agrees && !h->type->agrees(h->arg)) all = false;
    }
    return all;
}

void dsi_graph_feed(dsi_graph *g)
{
    for (int i = 0; i < g->hooks.n; i++) {
        const Hook *h = &g->hooks.at[i];
        if (h->type->give) (void)h->type->give(h->arg, NULL);
    }
    g->d->fed = g;
}

void dsi_graph_fed(dsi_graph *g) { g->d->fed = NULL; }

bool dsi_graph_give(const dsi_device *d, const dsi_graph_hook *type, const void *what)
{
    const dsi_graph *g = d->fed;
    for (int i = 0; g && i < g->hooks.n; i++)
        if (g->hooks.at[i].type == type && type->give(g->hooks.at[i].arg, what)) return true;
    return false;
}

/* ---- launching ---------------------------------------------------------------------------------------- */

/* Slots are copied only if a value changed: a copy takes about as long as a
 * small kernel. */
static ds_status graph_work_launch(dsi_graph *g)
{
    bool same = g->used <= g->sent_bytes && !memcmp(g->host, g->sent, g->used);
    ds_status status = g->d->type->graph_launch(&g->d->stream, g->work, g->slots, g->host,
                                                same ? 0 : g->used);
    if (same && status == DS_OK) return DS_OK;
    memcpy(g->sent, g->host, g->used);
    g->sent_bytes = status == DS_OK ? g->used : 0;
    return status;
}

ds_status dsi_graph_launch(dsi_graph *g)
{
    const dsi_device_type *type = g->d->type;
    ds_status status = graph_work_launch(g);
    if (status != DS_OK) hooks_undo(g);
    for (int i = 0; status == DS_OK && i < g->hooks.n; i++) {
        const Hook *h = &g->hooks.at[i];
        if (h->type->queued) status = h->type->queued(h->arg);
    }
    if (status == DS_OK && g->results)
        status = type->copy_out(&g->d->stream, g->host + SLOT_BYTES, g->slots + SLOT_BYTES,
                                g->results);
    for (int i = 0; status == DS_OK && i < g->hooks.n; i++) {
        const Hook *h = &g->hooks.at[i];
        if (h->type->after) status = h->type->after(h->arg);
    }
    return status;
}

ds_status dsi_graph_replay(dsi_graph *g)
{
    g->d->replays++;
    for (int i = 0; i < g->hooks.n; i++) {
        const Hook *h = &g->hooks.at[i];
        if (h->type->before) h->type->before(h->arg);
    }
    return dsi_graph_launch(g);
}

/* ---- Note [Graph votes] ------------------------------------------------------------------------------- */

void dsi_step_collectives_add(dsi_device *d, dsi_graph_voters *v)
{
    dsi_step_collectives *c = d->collectives;
    if (!c || c->largest == v) return;
    bool other = c->largest != NULL;
    if (!other || v->size > c->largest->size) c->largest = v;
    c->separate_groups = (c->separate_groups || other) && !c->largest->has_all_ranks;
}

void dsi_step_collectives_queued(dsi_device *d, int n)
{
    if (d->collectives) d->collectives->queued += n;
}

void dsi_graph_voters_end(dsi_device *d, dsi_graph_voters *v)
{
    if (d->collectives && d->collectives->largest == v) d->collectives->largest = NULL;
    v->comm = NULL;
    dsi_graph_voters_unref(v);
}

dsi_graph_voters *dsi_graph_voters_ref(dsi_graph_voters *v)
{
    v->users++;
    return v;
}

void dsi_graph_voters_unref(dsi_graph_voters *v)
{
    if (v && !--v->users) dsi_free(v);
}

/* ---- in a step ---------------------------------------------------------------------------------------- */

bool dsi_graph_capturing(const dsi_device *d)
{
    return d && d->recording && d->recording->capturing;
}

ds_status dsi_graph_forbid(dsi_device *d, const char *why)
{
    dsi_graph *g = d->recording;
    if (!g) return DS_OK;
    if (g->capturing)
        return dsi_fail(DS_ESTATE, "step_graph: %s, which it did not when it ran before", why);
    if (g->unnoted) return DS_OK;
    if (!g->forbidden) snprintf(g->why, sizeof g->why, "%s", why);
    g->forbidden = true;
    return DS_OK;
}

void dsi_graph_forbid_call(const char *call)
{
    dsi_device *d = dsi_device_recording();
    if (!d) return;
    char why[sizeof d->recording->why];
    snprintf(why, sizeof why, "it calls ds_%s, which a replay would not", call);
    (void)dsi_graph_forbid(d, why);
}

bool dsi_graph_note(dsi_device *d, bool on)
{
    if (!d || !d->recording) return true;
    bool was = !d->recording->unnoted;
    d->recording->unnoted = !on;
    return was;
}

void dsi_graph_accumulate(dsi_device *d)
{
    if (d->recording) d->recording->accumulates = true;
}

bool dsi_graph_accumulates(const dsi_device *d)
{
    return d->recording && d->recording->accumulates;
}

void dsi_graph_add_hook(dsi_device *d, const dsi_graph_hook *hook, void *arg)
{
    DSI_ASSERT(dsi_graph_capturing(d));
    dsi_list_add(&d->recording->hooks, (Hook){hook, arg});
}

/* The next bytes of those from `begin` on; their address here to *host. */
static void *graph_memory(dsi_graph *g, size_t bytes, size_t begin, size_t size, size_t *used,
                          void *host)
{
    size_t at = begin + *used;
    if (bytes > size - *used) {
        dsi_fail(DS_ESTATE, "step_graph: its changing values take more than %zu bytes", size);
        return NULL;
    }
    *used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    char *value = g->host + at;
    memcpy(host, &value, sizeof value);
    return g->slots + at;
}

void *dsi_graph_slot(dsi_device *d, size_t bytes, void *host)
{
    dsi_graph *g = d->recording;
    DSI_ASSERT(dsi_graph_capturing(d));
    return graph_memory(g, bytes, 0, SLOT_BYTES, &g->used, host);
}

void *dsi_graph_slot_sent(const dsi_device *d, const void *host)
{
    dsi_graph *g = d->recording;
    DSI_ASSERT(dsi_graph_capturing(d));
    return g->sent + ((const char *)host - g->host);
}

void dsi_graph_add_seed(dsi_device *d, uint64_t seed, const uint64_t *slot)
{
    dsi_list_add(&d->recording->seeds, (Seed){seed, slot});
}

bool dsi_graph_find_seed(const dsi_device *d, uint64_t seed, const uint64_t **slot)
{
    const dsi_graph *g = d->recording;
    for (int i = g->seeds.n - 1; i >= 0; i--) {
        if (g->seeds.at[i].seed != seed) continue;
        *slot = g->seeds.at[i].slot;
        return true;
    }
    return false;
}

void *dsi_graph_result(dsi_device *d, size_t bytes, void *host)
{
    dsi_graph *g = d->recording;
    DSI_ASSERT(dsi_graph_capturing(d));
    return graph_memory(g, bytes, SLOT_BYTES, RESULT_BYTES, &g->results, host);
}

bool dsi_graph_has_results(const dsi_device *d)
{
    return dsi_graph_capturing(d) && d->recording->results;
}

bool dsi_graph_allocated(const dsi_device *d, const void *p)
{
    const dsi_graph *g = d->recording;
    return g && (dsi_pool_took(g->pool, p) ||
                 (g->capturing && g->transient_pool && dsi_pool_took(g->transient_pool, p)));
}

const dsi_step_scalars *dsi_graph_use_scalars(dsi_device *d)
{
    if (!d->recording) return NULL;
    d->recording->scalar_uses++;
    return d->recording->scalars;
}

void dsi_graph_set_scalars(dsi_device *d, const dsi_step_scalars *scalars)
{
    if (d->recording) d->recording->scalars = scalars;
}

int64_t dsi_graph_scalar_uses(const dsi_device *d)
{
    return d->recording ? d->recording->scalar_uses : 0;
}

dsi_graph_decision dsi_graph_decided(const dsi_device *d)
{
    return dsi_graph_capturing(d) ? d->recording->decision : (dsi_graph_decision){0};
}

void dsi_graph_decide(dsi_device *d, dsi_graph_decision decision)
{
    if (d->recording) d->recording->decision = decision;
}
