/* parallel/tree.c: Note [Fixed tree] of tree.h.
 * SPDX-License-Identifier: MIT */
#include "tree.h"

#include "base/mem.h"

#define LEVELS 31

struct dsi_tree {
    const dsi_flat *f;
    ds_tensor *level[LEVELS]; /* float32 [f->own], counted: bit l of done: a sum of 2^l passes */
    int64_t done;             /* passes before this one */
    bool runs;                /* a pass has begun and is not in `done` */
};

dsi_tree *dsi_tree_new(const dsi_flat *f)
{
    dsi_tree *t = dsi_alloc(sizeof *t);
    t->f = f;
    return t;
}

void dsi_tree_free(dsi_tree *t)
{
    for (int l = 0; t && l < LEVELS; l++) dsi_unref(t->level[l]);
    dsi_free(t);
}

void dsi_tree_forget(dsi_tree *t)
{
    t->done = 0;
    t->runs = false;
}

void dsi_tree_next(dsi_tree *t)
{
    t->done += t->runs;
    t->runs = true;
}

static ds_status add(ds_tensor *x, const ds_tensor *y)
{
    return dsi_run(x, add, 1.0, dsi_v(x), dsi_v(y), dsi_v(x)) ? DS_OK : ds_error_status();
}

static ds_tensor *slice_of(const dsi_tree *t, int l, int k)
{
    const dsi_flat_unit *u = &t->f->unit[k];
    return dsi_flat_range(t->level[l], u->own_at, u->own_at + u->slice);
}

static ds_status open_level(dsi_tree *t, int l)
{
    if (!t->level[l])
        t->level[l] = dsi_ref(dsi_new_on(t->f->param[0].x->device, DS_F32, ds_shape(t->f->own)));
    return t->level[l] ? DS_OK : ds_error_status();
}

/* The pieces added up across ranks, pair by pair, into the first of them: float32 [slice]. */
static ds_tensor *across(const dsi_flat *f, ds_tensor *pieces)
{
    int64_t slice = dsi_numel(pieces->shape) / f->ranks;
    if (pieces->dtype != DS_F32) {
        ds_tensor *wide = dsi_new_dtype(pieces, DS_F32, pieces->shape);
        if (dsi_copy(wide, pieces) != DS_OK) return NULL;
        pieces = wide;
    }
    for (int step = 1; step < f->ranks; step *= 2)
        for (int i = 0; i + step < f->ranks; i += 2 * step)
            if (add(dsi_flat_range(pieces, i * slice, (i + 1) * slice),
                    dsi_flat_range(pieces, (i + step) * slice, (i + step + 1) * slice)) != DS_OK)
                return NULL;
    return dsi_flat_range(pieces, 0, slice);
}

ds_status dsi_tree_add(dsi_tree *t, int k, ds_tensor *pieces)
{
    ds_tensor *sum = across(t->f, pieces);
    int l = 0;
    if (!sum) return ds_error_status();
    for (; t->done >> l & 1; l++)
        if (add(sum, slice_of(t, l, k)) != DS_OK) return ds_error_status();
    DSI_ASSERT(l < LEVELS);
    return open_level(t, l) == DS_OK ? dsi_copy(slice_of(t, l, k), sum) : ds_error_status();
}

/* What waits for a neighbour that does not come is added from the lowest level up. */
ds_tensor *dsi_tree_total(dsi_tree *t)
{
    int64_t passes = t->done + t->runs;
    int lowest = 0, top;
    while (!(passes >> lowest & 1)) lowest++;
    for (int l = top = lowest; l < LEVELS; l++) {
        if (!(passes >> l & 1) || l == lowest) continue;
        if (add(t->level[l], t->level[top]) != DS_OK) return NULL;
        top = l;
    }
    t->done = (int64_t)1 << top;
    t->runs = false;
    return t->level[top];
}

int64_t dsi_tree_bytes(const dsi_tree *t)
{
    int64_t bytes = 0;
    for (int l = 0; l < LEVELS; l++)
        if (t->level[l]) bytes += (int64_t)t->level[l]->storage->bytes;
    return bytes;
}
