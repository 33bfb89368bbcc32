/* nn/moe.c: MoE: a layer of experts, of which k process each token.
 *
 *     x [S,M] -gate-> routes, weights       (gate.c)
 *             -dispatch->  rows of tokens, expert by expert
 *             -exchange->  with ep_size > 1: to the ranks that have the experts
 *             -experts->   each on its rows, as many as there are
 *             -exchange, combine->  y [S,M], the answers times their weights
 *
 * Where the host knows the routes, only rows that hold a token are moved,
 * exchanged and computed: capacity limits how many tokens an expert takes, and
 * is not the size of a buffer. Where the device alone knows them, each expert
 * has as many rows as it may take, and those without a token are 0; without
 * dropping, experts that can are computed together, by products of groups
 * (grouped.h).
 *
 * Invariants:
 *  - An expert without a token is called with a row of zeros whose output is not
 *    used. So it always has a gradient, and all ranks call all of their experts in
 *    the same order: with stage 3 each call is a collective.
 *  - With ep_size > 1 all ranks call the layer and its backward in the same order.
 *  - `groups` is shared and counted by all layers below one root that have the same
 *    ep_size and world; making it is a collective, freeing it too.
 *  - aux, chosen and taken are references to the last call's; recomputation
 *    (checkpointing) leaves them.
 *
 * Parameters are named as DeepSpeed's, except that experts keep their number in
 * the layer on every rank; Note [Experts] of module.h says which ranks have
 * which. All experts begin with the same values, as there.
 * Source: DeepSpeed-MoE, arXiv 2201.05596 (residual layers: section 4.1).
 * SPDX-License-Identifier: MIT */
#include "moe.h"

#include "base/error.h"
#include "grouped.h"
#include "ops/route.h"
#include "tensor/tensor.h"

#include <deepspeed/autograd.h>

#include <stdlib.h>

/* Communicators that layers of one ep_size share. */
typedef struct Groups {
    ds_comm *world, *expert, *data;
    int refs;
} Groups;

typedef struct MoE {
    dsi_gate gate;
    dsi_experts mark;
    Groups *groups; /* NULL: ep_size is 1 */
    dsi_row_agreement agreement;
    int64_t hidden;
    ds_module *experts;              /* its children are this rank's */
    ds_module *mlp, *coefficient;    /* residual; else NULL */
    ds_tensor *aux, *chosen, *taken; /* of the last call, kept */
    int64_t capacity;
} MoE;

static int moe_local_experts(const MoE *l) { return l->mark.all / l->mark.ep_size; }

/* ---- forward ----------------------------------------------------------------------------------------- */

/* n numbers that last as long as the call; NULL with the message. They are
 * zeros, the memory of a tensor of the current scope. */
static int64_t *moe_int64s(int64_t n)
{
    ds_tensor *x = dsi_fill(dsi_new_host(DS_I64, ds_shape(n)), 0);
    return x ? ds_data_mut(x) : NULL;
}

/* Where the rows of each of n experts begin, of which each has at least
 * `least`: [n + 1]. begin[n] is the number of all rows. least is 1 where
 * experts are called, and 0 where rows are only sent. */
static int64_t *moe_row_offsets(const int64_t *rows, int n, int64_t least)
{
    int64_t *begin = rows ? moe_int64s(n + 1) : NULL;
    for (int e = 0; begin && e < n; e++)
        begin[e + 1] = begin[e] + (rows[e] > least ? rows[e] : least);
    return begin;
}

/* The experts one after the other, each on rows begin[e] .. begin[e + 1]. */
static ds_tensor *call_each(const MoE *l, ds_tensor *rows, const int64_t *begin)
{
    int n = moe_local_experts(l);
    if (n == 1) return ds_call(ds_module_child(l->experts, 0), rows);
    ds_tensor **answer = calloc((size_t)n, sizeof(ds_tensor *)), *all = NULL;
    if (!answer) {
        ds_fail(DS_ENOMEM, "no memory for a list of %d experts", n);
        return NULL;
    }
    for (int e = 0; e < n; e++) {
        answer[e] = ds_call(ds_module_child(l->experts, e),
                            ds_slice(rows, 0, begin[e], begin[e + 1]));
        if (!answer[e]) break;
        if (e == n - 1) all = ds_cat(answer, n, 0);
    }
    free(answer);
    return all;
}

/* rows [n, hidden], and the experts' answers y, which must have the same shape,
 * since they go back to the rows' tokens. */
static ds_tensor *moe_answers(const MoE *l, ds_tensor *rows, ds_tensor *y)
{
    if (!y || (ds_ndim(y) == 2 && ds_size(y, 0) == ds_size(rows, 0) && ds_size(y, 1) == l->hidden))
        return y;
    return dsi_refuse(
        "the experts' answers have %d dimensions, %lld x %lld, for rows of %lld x %lld: "
        "expected the same",
        ds_ndim(y), (long long)ds_size(y, 0), (long long)ds_size(y, 1), (long long)ds_size(rows, 0),
        (long long)l->hidden);
}

/* rows sorted by expert. */
static ds_tensor *moe_run_experts(const MoE *l, ds_tensor *rows, const int64_t *begin)
{
    return moe_answers(l, rows, call_each(l, rows, begin));
}

/* Slots [S,k]: the row of each choice, if experts' rows begin there. */
static ds_tensor *moe_slots(const dsi_routes *r, const int64_t *begin)
{
    ds_tensor *slots = begin ? dsi_new_host(DS_I64, ds_shape_of(r->expert)) : NULL;
    int64_t *slot = slots ? ds_data_mut(slots) : NULL;
    const int64_t *expert = ds_data(r->expert), *place = ds_data(r->place);
    if (!slot || !expert || !place) return NULL;
    for (int64_t i = 0; i < ds_numel(slots); i++)
        slot[i] = place[i] < 0 ? -1 : begin[expert[i]] + place[i];
    return slots;
}

/* The same where each has `rows`. */
static int64_t *moe_equal_offsets(int64_t rows, int n)
{
    int64_t *begin = moe_int64s(n + 1);
    for (int e = 0; begin && e <= n; e++) begin[e] = e * rows;
    return begin;
}

/* ep_size 1, without dropping, routed on the device: a row for each choice. */
static ds_tensor *moe_grouped(const MoE *l, ds_tensor *x, const dsi_groups *g, ds_tensor *w)
{
    ds_tensor *rows = dsi_dispatch_to(x, g->row, ds_numel(g->row));
    ds_tensor *y = rows ? dsi_children_grouped(l->experts, rows, g->begin) : NULL;
    return dsi_combine_from(moe_answers(l, rows, y), g->row, w);
}

/* ep_size 1: all experts are on this rank. */
static ds_tensor *moe_local(const MoE *l, ds_tensor *x, const dsi_routes *r, ds_tensor *w)
{
    if (r->groups.row) return moe_grouped(l, x, &r->groups, w);
    int n = l->mark.all;
    const int64_t *begin = r->slot ? moe_equal_offsets(r->rows, n)
                                   : moe_row_offsets(ds_data(r->taken), n, 1);
    ds_tensor *slots = r->slot ? r->slot : moe_slots(r, begin);
    if (!slots || !begin) return NULL;
    ds_tensor *rows = dsi_dispatch_to(x, slots, begin[n]);
    return dsi_combine_from(moe_run_experts(l, rows, begin), slots, w);
}

/* rows: received from all ranks, by rank and then by expert: count [ranks][n].
 * Sorts them by expert, runs the experts, and restores the order. Rows of one
 * expert come from several ranks and are not together; slots [rows,1] say
 * where each is among the sorted ones, and combine without weights brings the
 * answers back. A single expert with rows needs no sorting. */
static ds_tensor *moe_run_received(const MoE *l, ds_tensor *rows, const int64_t *count)
{
    int n = moe_local_experts(l), ranks = l->mark.ep_size;
    int64_t *sum = moe_int64s(n), at = 0;
    if (!sum || !rows) return NULL;
    for (int i = 0; i < ranks * n; i++) sum[i % n] += count[i];
    int64_t *begin = moe_row_offsets(sum, n, 1);
    if (!begin) return NULL;
    if (n == 1 && sum[0] > 0) return moe_run_experts(l, rows, begin);

    ds_tensor *slots = dsi_new_host(DS_I64, ds_shape(ds_size(rows, 0), 1));
    int64_t *slot = slots ? ds_data_mut(slots) : NULL, *next = moe_row_offsets(sum, n, 1);
    if (!next || (!slot && ds_size(rows, 0))) return NULL;
    for (int i = 0; slot && i < ranks * n; i++)
        for (int64_t k = 0; k < count[i]; k++) slot[at++] = next[i % n]++;
    ds_tensor *sorted = dsi_dispatch_to(rows, slots, begin[n]);
    return dsi_combine_from(moe_run_experts(l, sorted, begin), slots, NULL);
}

/* x [a b, rest] -> [b a, rest]: the order of two indices is exchanged. */
static ds_tensor *moe_transpose(ds_tensor *x, int64_t a, int64_t b)
{
    int64_t rows = x ? ds_size(x, 0) / (a * b) : 0, hidden = x ? ds_size(x, 1) : 0;
    ds_tensor *y = ds_transpose(ds_reshape(x, ds_shape(a, b, rows * hidden)), 0, 1);
    return ds_reshape(y, ds_shape(a * b * rows, hidden));
}

/* ep_size > 1, routed on the device: each rank sends r->rows rows for each
 * expert, by rank and then by expert, and an expert has those of all ranks. */
static ds_tensor *moe_equal_rows(const MoE *l, ds_tensor *x, const dsi_routes *r, ds_tensor *w)
{
    int n = moe_local_experts(l), ranks = l->mark.ep_size;
    int64_t *each = moe_int64s(ranks);
    const int64_t *begin = moe_equal_offsets(ranks * r->rows, n);
    if (!each || !begin) return NULL;
    for (int q = 0; q < ranks; q++) each[q] = n * r->rows;
    ds_tensor *rows = dsi_dispatch_to(x, r->slot, l->mark.all * r->rows);
    ds_tensor *arrived = ds_exchange_rows(rows, l->mark.expert, each, each);
    ds_tensor *answers = moe_run_experts(l, moe_transpose(arrived, ranks, n), begin);
    answers = ds_exchange_rows(moe_transpose(answers, n, ranks), l->mark.expert, each, each);
    return dsi_combine_from(answers, r->slot, w);
}

/* The same, routed on the host: the ranks exchange the numbers of rows, then
 * the rows. taken [all] is by expert, and n experts in a row are one rank's, so
 * it is also the list of counts by rank. Answers return by the same exchange
 * with both lists swapped. */
static ds_tensor *moe_expert_parallel(const MoE *l, ds_tensor *x, const dsi_routes *r, ds_tensor *w)
{
    if (r->slot) return moe_equal_rows(l, x, r, w);
    int n = moe_local_experts(l), all = l->mark.all;
    ds_tensor *counts = dsi_new_host(DS_I64, ds_shape(all)); /* [ranks][n]: from each rank */
    if (!counts || ds_all_to_all(l->mark.expert, counts, r->taken) != DS_OK) return NULL;
    const int64_t *count = ds_data(counts), *taken = ds_data(r->taken);
    int64_t *to = moe_int64s(l->mark.ep_size), *from = moe_int64s(l->mark.ep_size);
    const int64_t *begin = moe_row_offsets(taken, all, 0);
    ds_tensor *slots = moe_slots(r, begin);
    if (!count || !to || !from || !slots) return NULL;
    for (int e = 0; e < all; e++) {
        to[e / n] += taken[e];
        from[e / n] += count[e];
    }
    ds_tensor *rows = dsi_dispatch_to(x, slots, begin[all]);
    ds_tensor *arrived = ds_exchange_rows(rows, l->mark.expert, to, from);
    ds_tensor *answers = moe_run_received(l, arrived, count);
    return dsi_combine_from(ds_exchange_rows(answers, l->mark.expert, from, to), slots, w);
}

/* c[...,0] y + c[...,1] mlp(x), c the softmax of two coefficients */
static ds_tensor *moe_residual(const MoE *l, ds_tensor *x, ds_tensor *y)
{
    ds_tensor *c = ds_softmax(ds_call(l->coefficient, x), -1);
    return ds_add(ds_mul(y, ds_slice(c, -1, 0, 1)),
                  ds_mul(ds_call(l->mlp, x), ds_slice(c, -1, 1, 2)));
}

/* x is kept in *at, beyond the scope of the call; the last call's is
 * dropped. */
static void moe_replace(ds_tensor **at, ds_tensor *x)
{
    ds_drop(*at);
    *at = ds_keep(x);
}

/* Statistics of the last call are kept outside of its scope, and not changed
 * while a checkpointed part runs again. x [..., hidden] -> y of x's shape. */
static ds_tensor *moe_forward(void *self, ds_tensor **in, int n)
{
    MoE *l = self;
    ds_tensor *x = in[0], *w, *aux;
    dsi_routes r;
    if (n > 2 || !ds_numel(x) || ds_size(x, -1) != l->hidden)
        return dsi_refuse(
            "MoE takes x [...,%lld] and perhaps used_token: it was given %d tensors, the first "
            "of %lld elements, its last dimension %lld",
            (long long)l->hidden, n, (long long)ds_numel(x), (long long)ds_size(x, -1));
    if (!l->experts) return NULL; /* its constructor has refused */
    ds_tensor *tokens = ds_reshape(x, ds_shape(-1, l->hidden));
    l->gate.training = ds_module_training(ds_module_of(self));
    l->gate.grouped = n == 1 && !l->groups && l->gate.o.no_drop_tokens &&
                      dsi_children_can_group(l->experts);
    if (!tokens || !dsi_gate_run(&l->gate, tokens, n == 2 ? in[1] : NULL, &r, &w, &aux))
        return NULL;
    ds_checkpoint_output(aux);
    if (!ds_recomputing()) {
        moe_replace(&l->aux, aux);
        moe_replace(&l->chosen, r.chosen);
        moe_replace(&l->taken, r.taken);
        l->capacity = r.capacity;
    }
    ds_tensor *y = l->groups ? moe_expert_parallel(l, tokens, &r, w) : moe_local(l, tokens, &r, w);
    y = ds_reshape(y, ds_shape_of(x));
    return l->coefficient ? moe_residual(l, x, y) : y;
}

/* ---- asking ------------------------------------------------------------------------------------------ */

static void moe_free(void *self);
static void moe_describe(void *self, FILE *to);

static const ds_module_type moe_type = {"MoE", sizeof(MoE), .forward_n = moe_forward,
                                        .free = moe_free, .describe = moe_describe};

static const MoE *moe_layer_of(const ds_module *m)
{
    return m && ds_module_type_of(m)->forward_n == moe_forward ? ds_self((ds_module *)m) : NULL;
}

int ds_moe_layers(const ds_module *m)
{
    int n = moe_layer_of(m) != NULL;
    for (int i = 0; i < ds_module_children(m); i++) n += ds_moe_layers(ds_module_child(m, i));
    return n;
}

/* The i-th layer of experts in the order of the tree; *i counts down on the
 * way. */
static ds_module *moe_layer_at(ds_module *m, int *i)
{
    if (moe_layer_of(m) && (*i)-- == 0) return m;
    for (int k = 0; k < ds_module_children(m); k++) {
        ds_module *found = moe_layer_at(ds_module_child(m, k), i);
        if (found) return found;
    }
    return NULL;
}

ds_module *ds_moe_layer(ds_module *m, int i) { return m && i >= 0 ? moe_layer_at(m, &i) : NULL; }

/* The sum over all layers of their last call, with its graph: it is added to
 * the loss and trained with it. */
ds_tensor *ds_moe_aux_loss(ds_module *m)
{
    ds_tensor *sum = NULL;
    if (!m) return NULL;
    for (int i = 0; i < ds_moe_layers(m); i++) {
        ds_tensor *aux = moe_layer_of(ds_moe_layer(m, i))->aux;
        if (aux) sum = sum ? ds_add(sum, aux) : ds_scale(aux, 1); /* it outlives the next call */
    }
    return sum ? sum : ds_scalar(DS_F32, 0);
}

ds_tensor *ds_moe_exp_counts(ds_module *m)
{
    return moe_layer_of(m) ? moe_layer_of(m)->chosen : NULL;
}
ds_tensor *ds_moe_taken_counts(ds_module *m)
{
    return moe_layer_of(m) ? moe_layer_of(m)->taken : NULL;
}
int64_t ds_moe_capacity(const ds_module *m)
{
    const MoE *l = moe_layer_of(m);
    if (!l || l->capacity >= 0) return l ? l->capacity : 0;
    ds_tensor *most = ds_to(l->taken, (ds_device){0}, DS_I64);
    const int64_t *taken = most ? ds_data(most) : NULL;
    int64_t all = 0;
    for (int e = 0; taken && e < l->mark.all; e++) all = taken[e] > all ? taken[e] : all;
    return all;
}

dsi_gate *dsi_moe_gate(ds_module *m) { return moe_layer_of(m) ? &((MoE *)ds_self(m))->gate : NULL; }

dsi_experts dsi_moe_experts(const ds_module *m)
{
    return moe_layer_of(m) ? moe_layer_of(m)->mark : (dsi_experts){0};
}

static void moe_describe(void *self, FILE *to)
{
    const MoE *l = self;
    fprintf(to, "num_experts=%d, ep_size=%d, k=%d", l->mark.all, l->mark.ep_size, l->gate.o.k);
}

/* ---- groups ------------------------------------------------------------------------------------------ */

/* Those of a layer below m that shares its experts in the same way, if there is
 * one. */
static Groups *moe_find_groups(const ds_module *m, int ep_size, const ds_comm *world)
{
    const MoE *l = moe_layer_of(m);
    if (l && l->groups && l->mark.ep_size == ep_size && l->groups->world == world) return l->groups;
    for (int i = 0; i < ds_module_children(m); i++) {
        Groups *found = moe_find_groups(ds_module_child(m, i), ep_size, world);
        if (found) return found;
    }
    return NULL;
}

static void moe_release_groups(Groups *g)
{
    if (!g || --g->refs) return;
    ds_comm_free(g->expert);
    ds_comm_free(g->data);
    free(g);
}

/* Ranks 0 .. ep_size-1 have all experts between them, as have the next ones.
 * All ranks call it. */
static Groups *moe_new_groups(ds_comm *world, int ep_size)
{
    int rank = ds_comm_rank(world);
    Groups *g = calloc(1, sizeof *g);
    if (!g) {
        ds_fail(DS_ENOMEM, "MoE: no memory for its groups");
        return NULL;
    }
    g->refs = 1;
    g->world = world;
    g->expert = ds_comm_split(world, rank / ep_size, rank);
    g->data = g->expert ? ds_comm_split(world, rank % ep_size, rank) : NULL;
    if (g->data) return g;
    moe_release_groups(g);
    return NULL;
}

/* Layers of one model with the same ep_size share two communicators, which the
 * last layer frees: a rank's experts are spread over `expert`, and `data` joins
 * the ranks that have the same ones. */
static bool moe_join_groups(MoE *l, const ds_module *m, const char *name)
{
    const ds_moe_opts *o = &l->gate.o;
    if (o->ep_size == 1) return true;
    ds_comm *world = o->comm ? o->comm : ds_world();
    int ranks = ds_comm_size(world);
    if (ranks % o->ep_size)
        return dsi_invalid(
            "MoE %s: ep_size is %d, but the number of ranks is %d: expected a divisor of that%s",
            name, o->ep_size, ranks,
            ranks == 1 && !ds_is_distributed()
                ? " (ds_init_distributed() before the model is made brings the others)"
                : "");
    l->groups = moe_find_groups(dsi_module_root(m), o->ep_size, world);
    if (l->groups)
        l->groups->refs++;
    else
        l->groups = moe_new_groups(world, o->ep_size);
    if (!l->groups) return false;
    l->mark.expert = l->groups->expert;
    l->mark.data = l->groups->data;
    return true;
}

/* ---- life -------------------------------------------------------------------------------------------- */

static void moe_free(void *self)
{
    MoE *l = self;
    ds_drop(l->aux);
    ds_drop(l->chosen);
    ds_drop(l->taken);
    dsi_list_free(&l->agreement.agreed);
    moe_release_groups(l->groups);
}

/* The first one draws its values, the others draw the same ones again; so
 * however many there are here, the generator continues from one place. */
static void moe_make_experts(MoE *l, ds_module *list, ds_module *m)
{
    const ds_moe_opts *o = &l->gate.o;
    ds_tensor *before = ds_rng_state();
    for (int e = 0; e < moe_local_experts(l) && !ds_error(); e++) {
        char name[16];
        snprintf(name, sizeof name, "%d", l->mark.first + e);
        if (e) ds_set_rng_state(before);
        if (!o->expert(list, name, o->arg) && !ds_error())
            ds_fail(DS_EINVAL, "MoE %s: .expert returned NULL", ds_module_name(m));
    }
    if (o->use_residual && !ds_error()) {
        ds_set_rng_state(before);
        l->mlp = o->expert(m, "mlp", o->arg);
    }
    int made = ds_module_children(list);
    if (!ds_error() && made != moe_local_experts(l))
        ds_fail(DS_EINVAL,
                "MoE %s: .expert made %d modules below the parent that it was given: expected one "
                "for each of %d experts",
                ds_module_name(m), made, moe_local_experts(l));
    if (!ds_error()) l->experts = list;
}

/* Checks the size, that .expert is given, and that experts do not nest; the
 * gate checks the rest. */
static bool moe_check(const MoE *l, const ds_module *m, const char *name, int64_t hidden)
{
    if (hidden < 1 || !l->gate.o.expert)
        ds_fail(DS_EINVAL,
                "MoE %s: hidden is %lld, .expert is %s: expected at least 1, and what "
                "makes an expert",
                name, (long long)hidden, l->gate.o.expert ? "given" : "NULL");
    else if (dsi_module_in_expert(m))
        ds_fail(DS_EINVAL,
                "MoE %s: it is inside of an expert: expected no layers of experts "
                "there",
                name);
    else
        return true;
    return false;
}

/* The tree has DeepSpeed's names (deepspeed_moe.gate.wg,
 * deepspeed_moe.experts.deepspeed_experts.N), so checkpoints fit both ways.
 * Initial values are drawn experts first, then wg, then coefficient. */
ds_module *ds_nn_moe_with(ds_module *parent, const char *name, int64_t hidden, ds_moe_opts opts)
{
    static const ds_module_type layer_type = {"MOELayer", 0, .forward = NULL},
                                gate_type = {"TopKGate", 0, .forward = NULL},
                                experts_type = {"Experts", 0, .forward = NULL};
    ds_module *m = ds_module_new(parent, name, &moe_type);
    MoE *l = ds_self(m);
    l->hidden = hidden;
    if (!dsi_gate_open(&l->gate, name, &opts) || !moe_check(l, m, name, hidden)) return m;
    const ds_moe_opts *o = &l->gate.o;
    l->mark = (dsi_experts){.all = o->num_experts, .ep_size = o->ep_size};
    if (!moe_join_groups(l, m, name)) return m;
    l->agreement.comm = l->mark.expert;
    l->gate.ranks = l->groups ? &l->agreement : NULL;
    if (l->mark.expert) l->mark.first = ds_comm_rank(l->mark.expert) * moe_local_experts(l);

    ds_scope *scope = ds_scope_open();
    ds_module *inner = ds_module_new(m, "deepspeed_moe", &layer_type);
    ds_module *gate = ds_module_new(inner, "gate", &gate_type);
    ds_module *list = ds_nn_module_list(ds_module_new(inner, "experts", &experts_type),
                                        "deepspeed_experts");
    dsi_module_set_experts(list, &l->mark);
    moe_make_experts(l, list, m);
    dsi_gate_make_wg(&l->gate, gate, hidden);
    if (o->use_residual) l->coefficient = ds_nn_linear(m, "coefficient", hidden, 2);
    ds_scope_close(scope);
    return m;
}
