/* device/graph.c: see graph.h.
 * SPDX-License-Identifier: MIT */
#include "graph.h"

#include "base/error.h"
#include "base/list.h"

#include <stdio.h>
#include <string.h>

#define SLOT_BYTES ((size_t)4096) /* all slots of a graph; copied before each launch */
#define ALIGNMENT  16

typedef struct Hook {
    const dsi_graph_hook *type;
    void *arg;
} Hook;

struct dsi_graph {
    dsi_device *d;
    dsi_block_pool *pool;
    void *work; /* the device's; NULL: nothing is captured */
    bool capturing, forbidden;
    char why[256];
    _Alignas(ALIGNMENT) char host[SLOT_BYTES]; /* values of the slots */
    void *slots;                               /* the same in the device's memory */
    size_t used;
    const dsi_step_scalars *scalars;
    int64_t scalar_uses;
    struct {
        DSI_LIST(Hook)
    } hooks;
};

dsi_graph *dsi_graph_new(dsi_device *d)
{
    if (!d->type->capture_begin) return NULL;
    dsi_graph *g = dsi_alloc(sizeof *g);
    g->d = d;
    g->pool = dsi_pool_new(d);
    return g;
}

void dsi_graph_reset(dsi_graph *g)
{
    if (g->work) g->d->type->graph_free(g->d, g->work);
    g->work = NULL;
    for (int i = 0; i < g->hooks.n; i++) g->hooks.at[i].type->release(g->hooks.at[i].arg);
    g->hooks.n = 0;
    g->used = 0;
    g->forbidden = false;
}

void dsi_graph_free(dsi_graph *g)
{
    if (!g) return;
    dsi_graph_reset(g);
    dsi_list_free(&g->hooks);
    if (g->slots) g->d->type->free_fixed(g->d, g->slots);
    dsi_pool_free(g->pool);
    dsi_free(g);
}

/* ---- recording ---------------------------------------------------------------------------------------- */

ds_status dsi_graph_begin(dsi_graph *g, bool capture)
{
    dsi_device *d = g->d;
    ds_status status = DS_OK;
    if (d->recording) return dsi_fail(DS_ESTATE, "step_graph: a step is recorded inside of a step");
    dsi_graph_reset(g);
    if (capture && !g->slots) g->slots = d->type->alloc_fixed(d, SLOT_BYTES);
    if (capture && !g->slots)
        return dsi_fail(DS_ENOMEM, "step_graph: no memory for %zu bytes on %s", SLOT_BYTES,
                        ds_device_name(dsi_device_id(d)));
    if (capture) status = d->type->capture_begin(&d->stream);
    if (status != DS_OK) return status;
    g->capturing = capture;
    g->scalar_uses = 0;
    d->recording = g;
    dsi_pool_use(d, g->pool);
    return DS_OK;
}

ds_status dsi_graph_end(dsi_graph *g, bool keep)
{
    dsi_device *d = g->d;
    bool captured = g->capturing;
    dsi_pool_use(d, NULL);
    d->recording = NULL;
    g->capturing = false;
    if (!captured) return DS_OK;
    ds_status status = d->type->capture_end(&d->stream, keep, &g->work);
    if (status != DS_OK || !keep) dsi_graph_reset(g);
    return status;
}

const char *dsi_graph_why_not(const dsi_graph *g) { return g->forbidden ? g->why : NULL; }
bool dsi_graph_captured(const dsi_graph *g) { return g->work != NULL; }

bool dsi_graph_holds(const dsi_graph *g)
{
    for (int i = 0; i < g->hooks.n; i++) {
        const Hook *h = &g->hooks.at[i];
        if (h->type->holds && !h->type->holds(h->arg)) return false;
    }
    return true;
}

/* ---- launching ---------------------------------------------------------------------------------------- */

ds_status dsi_graph_launch(dsi_graph *g)
{
    return g->d->type->graph_launch(&g->d->stream, g->work, g->slots, g->host, g->used);
}

ds_status dsi_graph_replay(dsi_graph *g)
{
    for (int i = 0; i < g->hooks.n; i++) {
        const Hook *h = &g->hooks.at[i];
        if (h->type->before) h->type->before(h->arg);
    }
    ds_status status = dsi_graph_launch(g);
    for (int i = 0; status == DS_OK && i < g->hooks.n; i++) {
        const Hook *h = &g->hooks.at[i];
        if (h->type->after) status = h->type->after(h->arg);
    }
    return status;
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
    if (!g->forbidden) snprintf(g->why, sizeof g->why, "%s", why);
    g->forbidden = true;
    return DS_OK;
}

void dsi_graph_add_hook(dsi_device *d, const dsi_graph_hook *hook, void *arg)
{
    DSI_ASSERT(dsi_graph_capturing(d));
    dsi_list_add(&d->recording->hooks, (Hook){hook, arg});
}

void *dsi_graph_slot(dsi_device *d, size_t bytes, void *host)
{
    dsi_graph *g = d->recording;
    DSI_ASSERT(dsi_graph_capturing(d));
    size_t at = g->used;
    if (bytes > SLOT_BYTES - at) {
        dsi_fail(DS_ESTATE, "step_graph: its changing values take more than %zu bytes", SLOT_BYTES);
        return NULL;
    }
    g->used = (at + bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    char *value = g->host + at;
    memcpy(host, &value, sizeof value);
    return (char *)g->slots + at;
}

bool dsi_graph_allocated(const dsi_device *d, const void *p)
{
    return d->recording && dsi_pool_took(d->recording->pool, p);
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
