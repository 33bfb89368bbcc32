/* parallel/reduce_record.c: the state of the buckets around a backward pass that a
 * device has captured, on several ranks with its collectives. A replay computes
 * the values; which parameters have a gradient, and where, is set from here.
 * SPDX-License-Identifier: MIT */
#include "base/mem.h"
#include "reduce_state.h"

struct dsi_reduce_record {
    bool open, widen, last;
    int leaves, buckets;
    bool *holds;      /* [leaves] */
    bool *added;      /* [buckets] */
    ds_tensor **full; /* [buckets], counted */
    ds_tensor *owned; /* counted; or NULL */
};

dsi_reduce_record *dsi_reduce_record_new(const dsi_reduce *r)
{
    if (!r) return NULL;
    dsi_reduce_record *x = dsi_alloc(sizeof *x);
    *x = (dsi_reduce_record){.open = r->open,
                             .widen = r->widen,
                             .last = r->last,
                             .leaves = r->f->n,
                             .buckets = r->f->units};
    x->holds = dsi_alloc((size_t)x->leaves * sizeof *x->holds);
    x->added = dsi_alloc((size_t)x->buckets * sizeof *x->added);
    x->full = dsi_alloc((size_t)x->buckets * sizeof *x->full);
    x->owned = dsi_ref(r->owned);
    for (int i = 0; i < x->leaves; i++) x->holds[i] = r->leaf[i].holds;
    for (int k = 0; k < x->buckets; k++) {
        x->added[k] = r->bucket[k].added;
        x->full[k] = dsi_ref(r->bucket[k].full);
    }
    return x;
}

void dsi_reduce_record_free(dsi_reduce_record *x)
{
    if (!x) return;
    for (int k = 0; k < x->buckets; k++) dsi_unref(x->full[k]);
    dsi_unref(x->owned);
    dsi_free(x->full);
    dsi_free(x->added);
    dsi_free(x->holds);
    dsi_free(x);
}

bool dsi_reduce_is_as(const dsi_reduce *r, const dsi_reduce_record *x)
{
    if (!r || !x) return !r && !x;
    if (r->owned != x->owned || r->open != x->open ||
        (r->open && (r->widen != x->widen || r->last != x->last)))
        return false;
    for (int i = 0; i < x->leaves; i++)
        if (r->leaf[i].holds != x->holds[i]) return false;
    for (int k = 0; k < x->buckets; k++)
        if (r->bucket[k].full != x->full[k] || r->bucket[k].added != x->added[k]) return false;
    return true;
}

void dsi_reduce_set_as(dsi_reduce *r, const dsi_reduce_record *x)
{
    if (!r || !x) return;
    r->open = x->open, r->widen = x->widen, r->last = x->last;
    for (int i = 0; i < x->leaves; i++) r->leaf[i].holds = x->holds[i];
    for (int k = 0; k < x->buckets; k++) {
        r->bucket[k].added = x->added[k];
        dsi_hold(&r->bucket[k].full, x->full[k]);
    }
}
