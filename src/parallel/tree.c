/* parallel/tree.c: Note [Fixed tree] of tree.h.
 * SPDX-License-Identifier: MIT */
#include "tree.h"

#include "base/mem.h"

#define MAX_LEVELS 31

struct dsi_tree {
    const dsi_flat *f;
    ds_tensor
        *level[MAX_LEVELS]; /* float32 [f->owned], counted: bit l of done: a sum of 2^l passes */
    int64_t done;           /* passes before this one */
    bool runs;              /* a pass has begun and is not in `done` */
};

dsi_tree *dsi_tree_new(const dsi_flat *f)
{
    dsi_tree *t = dsi_alloc(sizeof *t);
    t->f = f;
    return t;
}

void dsi_tree_free(dsi_tree *t)
{
    for (int l = 0; t && l < MAX_LEVELS; l++) dsi_unref(t->level[l]);
    dsi_free(t);
}

void dsi_tree_reset(dsi_tree *t)
{
    t->done = 0;
    t->runs = false;
}

void dsi_tree_next(dsi_tree *t)
{
    t->done += t->runs;
    t->runs = true;
}

/* to = x + y */
static ds_status node_add(const ds_tensor *x, const ds_tensor *y, const ds_tensor *to)
{
    if (!dsi_acquire(x, y) || !dsi_acquire_to_write(to)) return ds_error_status();
    return dsi_run_op(x, binary, DSI_ADD, 1.0, dsi_v(x), dsi_v(y), dsi_v(to)) ? DS_OK
                                                                              : ds_error_status();
}

static ds_tensor *level_shard(const dsi_tree *t, int l, int k)
{
    const dsi_flat_unit *u = &t->f->unit[k];
    return dsi_flat_range(t->level[l], u->owned_at, u->owned_at + u->shard_size);
}

/* Allocates the sums of level l; their memory is kept for later steps. */
static ds_status level_open(dsi_tree *t, int l)
{
    if (!t->level[l])
        t->level[l] = dsi_ref(dsi_new_on(t->f->param[0].x->device, DS_F32, ds_shape(t->f->owned)));
    return t->level[l] ? DS_OK : ds_error_status();
}

static ds_tensor *rank_piece(const ds_tensor *pieces, int64_t shard_size, int i)
{
    return dsi_flat_range(pieces, i * shard_size, (i + 1) * shard_size);
}

/* The pieces added up across ranks, pair by pair: float32 [shard_size], in `to`
 * or, if that is NULL or there is nothing to add, in the first of them. */
static ds_tensor *sum_ranks_pairwise(const dsi_flat *f, ds_tensor *pieces, ds_tensor *to)
{
    int64_t shard_size = dsi_numel(pieces->shape) / f->ranks;
    pieces = dsi_to_dtype(pieces, DS_F32);
    if (!pieces) return NULL;
    ds_tensor *sum = rank_piece(pieces, shard_size, 0);
    for (int step = 1; step < f->ranks; step *= 2)
        for (int i = 0; i + step < f->ranks; i += 2 * step) {
            ds_tensor *x = rank_piece(pieces, shard_size, i), *place = x;
            if (i == 0 && 2 * step >= f->ranks && to) place = sum = to; /* the last one */
            if (node_add(x, rank_piece(pieces, shard_size, i + step), place) != DS_OK) return NULL;
        }
    return sum;
}

/* The last addition writes where the sum stays. */
ds_status dsi_tree_add(dsi_tree *t, int k, ds_tensor *pieces)
{
    int level = 0;
    while (t->done >> level & 1) level++;
    DSI_ASSERT(level < MAX_LEVELS);
    if (level_open(t, level) != DS_OK) return ds_error_status();
    ds_tensor *to = level_shard(t, level, k),
              *sum = sum_ranks_pairwise(t->f, pieces, level ? NULL : to);
    if (!sum) return ds_error_status();
    for (int l = 0; l < level; l++) {
        ds_tensor *place = l == level - 1 ? to : sum;
        if (node_add(sum, level_shard(t, l, k), place) != DS_OK) return ds_error_status();
        sum = place;
    }
    return sum == to ? DS_OK : dsi_copy(to, sum);
}

/* Sums that still wait for a neighbour are added from the lowest level up. */
ds_tensor *dsi_tree_total(dsi_tree *t)
{
    int64_t passes = t->done + t->runs;
    int lowest = 0, top;
    while (!(passes >> lowest & 1)) lowest++;
    for (int l = top = lowest; l < MAX_LEVELS; l++) {
        if (!(passes >> l & 1) || l == lowest) continue;
        if (node_add(t->level[l], t->level[top], t->level[l]) != DS_OK) return NULL;
        top = l;
    }
    t->done = (int64_t)1 << top;
    t->runs = false;
    return t->level[top];
}

int64_t dsi_tree_bytes(const dsi_tree *t)
{
    int64_t bytes = 0;
    for (int l = 0; l < MAX_LEVELS; l++)
        if (t->level[l]) bytes += (int64_t)t->level[l]->storage->bytes;
    return bytes;
}
