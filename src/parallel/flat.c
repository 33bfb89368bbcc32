/* parallel/flat.c: computes the layout of Note [Layout] in flat.h, and makes
 * views by it.
 * SPDX-License-Identifier: MIT */
#include "flat.h"

#include "base/int.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "nn/module.h"
#include "same.h"

#include <deepspeed/autograd.h>

/* ---- who has what ------------------------------------------------------------------------------------- */

/* The experts that x belongs to, if ranks share them; else NULL. */
static const dsi_experts *shared(const ds_module *model, const ds_tensor *x)
{
    const dsi_experts *e = dsi_module_expert_of(model, x).of;
    return e && e->ep_size > 1 ? e : NULL;
}

ds_comm *dsi_flat_comm_of(const ds_module *model, const ds_tensor *x, ds_comm *comm)
{
    const dsi_experts *e = shared(model, x);
    return e ? e->data : comm;
}

ds_status dsi_flat_begin_equal(const ds_module *model, ds_comm *comm,
                               bool (*skip)(const ds_tensor *x))
{
    ds_status status = dsi_same_model(model, comm);
    ds_state *state = ds_module_state(model);
    for (int i = 0; status == DS_OK && i < ds_state_len(state); i++) {
        ds_tensor *x = ds_state_at(state, i);
        if (!skip || !skip(x)) status = ds_broadcast(dsi_flat_comm_of(model, x, comm), x, 0);
    }
    ds_state_free(state);
    return status;
}

/* ---- the layout ---------------------------------------------------------------------------------------- */

/* Tokens are exchanged, and gradients divided, among as many ranks as the layer
 * was made for. */
static bool param_check_experts(const dsi_flat *f, const ds_module *model, int i,
                                const dsi_flat_opts *o)
{
    const dsi_experts *e = shared(model, f->param[i].x);
    int made_for = e ? e->ep_size * dsi_comm_size(e->data) : 0;
    if (!e || !o->comm || made_for == o->ranks) return true;
    return dsi_refuse("zero: %s is of experts that %d of %d ranks share, but here are %d ranks: "
                      "expected the communicator with which the layer was made",
                      dsi_flat_path(f, model, i), e->ep_size, made_for, o->ranks);
}

/* The trained parameters, last one first. */
static bool list_params(dsi_flat *f, ds_module *model, const dsi_flat_opts *o)
{
    int count = ds_module_params(model);
    f->param = dsi_alloc((size_t)count * sizeof *f->param);
    for (int i = count - 1; i >= 0; i--) {
        ds_tensor *x = ds_module_param_at(model, i, NULL);
        if (!x->requires_grad) continue;
        f->param[f->n++] = (dsi_flat_param){.x = dsi_ref(x), .index = i, .n = ds_numel(x)};
        if (x->device != f->param[0].x->device)
            return dsi_refuse("zero: %s is on another device than the last parameter",
                              dsi_flat_path(f, model, f->n - 1));
        if (!param_check_experts(f, model, f->n - 1, o)) return false;
    }
    if (f->n) return true;
    return dsi_refuse("zero: no parameter of %s requires a gradient", ds_module_name(model));
}

/* How many shards of `size` elements the unit's parameters fill, in their order
 * and none of them cut; `at` of each, if place. */
static int64_t unit_pack(dsi_flat *f, const dsi_flat_unit *u, int64_t size, bool place)
{
    int64_t shard = 0, used = 0;
    for (int i = u->first; i < u->first + u->count; i++) {
        int64_t n = dsi_round_up(f->param[i].n, DSI_FLAT_ALIGN);
        if (used + n > size) shard++, used = 0;
        if (place) f->param[i].at = shard * size + used;
        used += n;
    }
    return shard + 1;
}

/* Makes the shards as short as whole parameters allow, by bisection. */
static void unit_keep_whole(dsi_flat *f, dsi_flat_unit *u)
{
    int64_t low = u->n / u->ranks, high = u->n; /* high is enough */
    for (int i = u->first; i < u->first + u->count; i++)
        if (low < f->param[i].n) low = f->param[i].n;
    low = dsi_round_up(low, DSI_FLAT_ALIGN);
    while (low < high) {
        int64_t size = (low + high) / 2 / DSI_FLAT_ALIGN * DSI_FLAT_ALIGN;
        if (unit_pack(f, u, size, false) <= u->ranks)
            high = size;
        else
            low = size + DSI_FLAT_ALIGN;
    }
    unit_pack(f, u, high, true);
    u->n = high * u->ranks;
}

/* Rounds the unit up, so that it divides into equal aligned shards. */
static void unit_close(dsi_flat *f, bool whole)
{
    dsi_flat_unit *u = &f->unit[f->units++];
    u->n = dsi_round_up(u->n, (int64_t)u->ranks * DSI_FLAT_ALIGN);
    if (whole && f->partition && u->ranks > 1) unit_keep_whole(f, u);
    u->shard_size = u->n / u->ranks;
    u->base = f->total;
    u->owned_at = f->owned;
    f->total += u->n;
    f->owned += f->partition ? u->shard_size : u->n;
}

/* Begins an empty unit at parameter `first`. e: the experts that its ranks
 * share; NULL: all ranks have it. */
static void unit_open(dsi_flat *f, const dsi_flat_opts *o, const dsi_experts *e, int first)
{
    dsi_flat_unit *u = &f->unit[f->units];
    int share = e && o->ranks % e->ep_size == 0 ? e->ep_size : 1;
    *u = (dsi_flat_unit){.first = first,
                         .rank = o->rank / share,
                         .ranks = o->ranks / share,
                         .comm = share > 1 && o->comm ? e->data : o->comm};
    f->shared |= share > 1;
}

/* Fills units in the order of parameters. A unit ends where the next parameter
 * is a unit by itself, belongs to other ranks, or would exceed the bucket. */
static void units_make(dsi_flat *f, const ds_module *model, const dsi_flat_opts *o)
{
    bool closed = true;
    int64_t small = 0; /* elements of parameters below the threshold so far */
    const dsi_experts *last = NULL;
    f->unit = dsi_alloc((size_t)f->n * sizeof *f->unit);
    for (int i = 0; i < f->n; i++) {
        dsi_flat_param *p = &f->param[i];
        bool solo = p->n > o->solo_threshold || p->n > o->small_total_threshold - small;
        const dsi_experts *e = shared(model, p->x);
        ds_comm *had = last ? last->data : NULL, *has = e ? e->data : NULL;
        if (!solo) small += p->n;
        if (!closed && (solo || has != had || f->unit[f->units].n + p->n > o->bucket)) {
            unit_close(f, o->whole);
            closed = true;
        }
        last = e;
        dsi_flat_unit *u = &f->unit[f->units];
        if (closed) unit_open(f, o, e, i);
        p->unit = f->units;
        p->at = u->n;
        u->n = dsi_round_up(u->n + p->n, DSI_FLAT_ALIGN);
        u->count++;
        u->solo = solo;
        closed = solo;
        if (solo) unit_close(f, false);
    }
    if (!closed) unit_close(f, o->whole);
}

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

bool dsi_flat_fills_unit(const dsi_flat *f, int i)
{
    return f->param[i].n == f->unit[f->param[i].unit].n;
}

void dsi_flat_shard_range(const dsi_flat *f, int i, int rank, int64_t *begin, int64_t *end)
{
    const dsi_flat_param *p = &f->param[i];
    int64_t shard_size = f->unit[p->unit].shard_size, from = rank * shard_size - p->at;
    *begin = f->partition ? clamp(from, 0, p->n) : 0;
    *end = f->partition ? clamp(from + shard_size, 0, p->n) : p->n;
}

/* Which elements of each parameter are this rank's, and their place in its flat
 * buffers. */
static void find_owned_ranges(dsi_flat *f)
{
    for (int i = 0; i < f->n; i++) {
        dsi_flat_param *p = &f->param[i];
        const dsi_flat_unit *u = &f->unit[p->unit];
        dsi_flat_shard_range(f, i, u->rank, &p->begin, &p->end);
        p->owned_at = f->partition ? u->owned_at + p->at + p->begin - u->rank * u->shard_size
                                   : u->base + p->at;
    }
}

dsi_flat *dsi_flat_new(ds_module *model, const dsi_flat_opts *o)
{
    dsi_flat *f = dsi_alloc(sizeof *f);
    f->rank = o->rank;
    f->ranks = o->ranks;
    f->partition = o->partition;
    if (!list_params(f, model, o)) {
        dsi_flat_free(f);
        return NULL;
    }
    units_make(f, model, o);
    find_owned_ranges(f);
    return f;
}

void dsi_flat_free(dsi_flat *f)
{
    if (!f) return;
    for (int i = 0; i < f->n; i++) dsi_unref(f->param[i].x);
    dsi_free(f->param);
    dsi_free(f->unit);
    dsi_free(f);
}

/* ---- views ------------------------------------------------------------------------------------------------ */

static ds_tensor *flat_view(const ds_tensor *x, ds_dims shape, int64_t begin)
{
    int64_t stride[DS_MAX_DIMS];
    dsi_row_major(shape, stride);
    return dsi_view_of(x, shape, stride, x->offset + begin);
}

ds_tensor *dsi_flat_range(const ds_tensor *x, int64_t begin, int64_t end)
{
    return x ? flat_view(x, ds_shape(end - begin), begin) : NULL;
}

ds_tensor *dsi_flat_in_unit(const dsi_flat *f, int i, const ds_tensor *unit)
{
    return unit ? flat_view(unit, f->param[i].x->shape, f->param[i].at) : NULL;
}

static ds_tensor *flat_shard_view(const dsi_flat_param *p, const ds_tensor *x, int64_t at)
{
    int64_t n = p->end - p->begin;
    if (!x || n == 0) return NULL;
    return flat_view(x, n == p->n ? p->x->shape : ds_shape(n), at);
}

ds_tensor *dsi_flat_in_owned(const dsi_flat *f, int i, const ds_tensor *owned)
{
    return flat_shard_view(&f->param[i], owned, f->param[i].owned_at);
}

ds_tensor *dsi_flat_owned_in_unit(const dsi_flat *f, int i, const ds_tensor *unit)
{
    return flat_shard_view(&f->param[i], unit, f->param[i].at + f->param[i].begin);
}

ds_tensor *dsi_flat_owned_in(const dsi_flat *f, int i, const ds_tensor *whole)
{
    return flat_shard_view(&f->param[i], whole, f->param[i].begin);
}

ds_tensor *dsi_flat_in_param(const dsi_flat *f, int i)
{
    return dsi_flat_owned_in(f, i, f->param[i].x);
}

const char *dsi_flat_path(const dsi_flat *f, const ds_module *model, int i)
{
    const char *path = NULL;
    ds_module_param_at(model, f->param[i].index, &path);
    return path;
}
