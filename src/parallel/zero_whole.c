/* parallel/zero_whole.c: stage 3 with optimizers whose rule needs whole
 * parameters (Muon, LAMB).
 *
 * The shards of such a parameter come together on one rank for its update and
 * return to their ranks: gradient, master and moments. As many parameters as
 * there are ranks travel at a time, so each rank updates one of them. A rank
 * that has elements of a parameter sends them as one packet of float32:
 *
 *     | step | gradient | master | moments .. |
 *
 * Small parameters, which stage 3 keeps on all ranks, are not cut (flat.h), and
 * are updated as in stages 1 and 2.
 *
 * Invariants:
 * - All ranks of a unit's communicator know the same parameters, in the same
 *   order: round n has parameters n ranks to n ranks + ranks - 1.
 * - The whole parameter is in memory of its owner only during a round.
 * SPDX-License-Identifier: MIT */
#include "zero_state.h"

#include "base/mem.h"

/* Words of a packet, beside the step. */
enum { GRAD, MASTER, MOMENT };

typedef struct Round {
    dsi_zero *z;
    dsi_device *device;
    ds_comm *comm;
    int n, first; /* parameters of the unit's ranks: list[first], .. */
    const int *list;
    ds_tensor **grad;  /* [flat->n]: of this rank's shards; NULL: none */
    int64_t *out, *in; /* [ranks]: floats to and from each rank */
} Round;

static int words_of(const dsi_zero *z, int i, int moment[DS_OPTIM_MOMENTS])
{
    int n = MOMENT, group = z->optim->params[z->flat->param[i].index].group;
    for (int k = 0; k < DS_OPTIM_MOMENTS; k++)
        if (dsi_optim_uses(z->optim, group, k)) moment[n++ - MOMENT] = k;
    return n;
}

/* Floats of rank r's packet of parameter i. */
static int64_t packet_size(const dsi_zero *z, int i, int r)
{
    int64_t begin, end;
    int moment[DS_OPTIM_MOMENTS];
    dsi_flat_shard_range(z->flat, i, r, &begin, &end);
    return begin < end ? 1 + words_of(z, i, moment) * (end - begin) : 0;
}

/* Word w of this rank's shard of parameter i. */
static ds_tensor *shard_word(const Round *r, int i, int w, const int *moment)
{
    const dsi_optim_param *p = &r->z->optim->params[r->z->flat->param[i].index];
    return w == GRAD ? r->grad[i] : w == MASTER ? p->p : p->moment[moment[w - MOMENT]];
}

/* This rank's packet of parameter i, at `at` of `all`: written from the shard,
 * or to it, without the gradient. */
static ds_status packet_copy(const Round *r, int i, ds_tensor *all, int64_t at, bool to_packet)
{
    const dsi_flat_param *p = &r->z->flat->param[i];
    int64_t n = p->end - p->begin;
    int moment[DS_OPTIM_MOMENTS], words = words_of(r->z, i, moment);
    dsi_optim_param *x = &r->z->optim->params[p->index];
    if (!n) return DS_OK;
    if (dsi_optim_make_moments(r->z->optim, x) != DS_OK) return ds_error_status();
    if (to_packet && !dsi_fill(dsi_flat_range(all, at, at + 1), (double)x->step))
        return ds_error_status();
    for (int w = to_packet ? GRAD : MASTER; w < words; w++) {
        ds_tensor *in_packet = dsi_flat_range(all, at + 1 + w * n, at + 1 + (w + 1) * n);
        ds_tensor *in_shard = shard_word(r, i, w, moment);
        if (!dsi_acquire(in_shard)) return ds_error_status();
        in_shard = dsi_flat_range(in_shard, 0, n);
        if (dsi_copy(to_packet ? in_packet : in_shard, to_packet ? in_shard : in_packet) != DS_OK)
            return ds_error_status();
    }
    return DS_OK;
}

/* Words of parameter i between its packets in `all` and whole tensors. */
static ds_status whole_copy(const Round *r, int i, ds_tensor *all, ds_tensor **word, int words,
                            bool to_packets)
{
    ds_status status = DS_OK;
    int64_t at = 0, begin, end;
    for (int k = 0; k < ds_comm_size(r->comm); at += packet_size(r->z, i, k++)) {
        dsi_flat_shard_range(r->z->flat, i, k, &begin, &end);
        for (int w = to_packets ? MASTER : GRAD; status == DS_OK && begin < end && w < words; w++) {
            int64_t from = at + 1 + w * (end - begin);
            ds_tensor *part = dsi_flat_range(all, from, from + end - begin);
            ds_tensor *place = dsi_flat_range(word[w], begin, end);
            status = dsi_copy(to_packets ? part : place, to_packets ? place : part);
        }
    }
    return status;
}

/* Updates the whole of parameter i, whose packets are in `all`: that of rank 0
 * is first, and every parameter has elements there. */
static ds_status owner_update(const Round *r, int i, ds_tensor *all, double scale)
{
    const dsi_flat_param *p = &r->z->flat->param[i];
    int moment[DS_OPTIM_MOMENTS], words = words_of(r->z, i, moment);
    ds_tensor *word[MOMENT + DS_OPTIM_MOMENTS] = {NULL};
    ds_tensor *step = ds_to(dsi_flat_range(all, 0, 1), (ds_device){DS_CPU, 0}, DS_F32);
    const float *count = ds_data(step);
    if (!count) return ds_error_status();
    for (int w = 0; w < words; w++) {
        word[w] = dsi_new_on(r->device, DS_F32, p->x->shape);
        if (!word[w]) return ds_error_status();
    }
    dsi_optim_piece piece = {
        .i = p->index, .p = word[MASTER], .grad = word[GRAD], .step = (int64_t)*count};
    for (int w = MOMENT; w < words; w++) piece.moment[moment[w - MOMENT]] = word[w];
    ds_status status = whole_copy(r, i, all, word, words, false);
    if (status == DS_OK) status = dsi_optim_step_pieces(r->z->optim, &piece, 1, scale);
    return status == DS_OK ? whole_copy(r, i, all, word, words, true) : status;
}

/* After the update of a shard: its step, its 16-bit copy, which may have to
 * cross to a GPU, its place in a file. */
static ds_status shard_finish(dsi_zero *z, int i)
{
    const dsi_flat_param *p = &z->flat->param[i];
    const dsi_optim_param *x = &z->optim->params[p->index];
    if (!z->shard[i]) return DS_OK;
    ds_status status = dsi_optim_count(z->optim, p->index);
    int64_t n = p->end - p->begin;
    if (status == DS_OK && z->split) return dsi_split_release(z->split, i, true);
    if (status == DS_OK && x->low)
        status = dsi_optim_round(dsi_flat_range(x->low, 0, n), dsi_flat_range(x->p, 0, n));
    if (status == DS_OK && z->offload)
        status = dsi_zero_copies_master(z, i) ? dsi_zero_copy_master(z, i)
                                              : dsi_zero_shard_close(z, i, true);
    return status == DS_OK && z->offload ? dsi_offload_store(z->offload, i) : status;
}

/* One round: shards to owners, updates, and back. Blocks; collective. */
static ds_status round_run(const Round *r, double scale)
{
    int ranks = ds_comm_size(r->comm), rank = ds_comm_rank(r->comm);
    int n = r->n - r->first < ranks ? r->n - r->first : ranks;
    int64_t out = 0, in = 0;
    for (int k = 0; k < ranks; k++) {
        r->out[k] = k < n ? packet_size(r->z, r->list[r->first + k], rank) : 0;
        r->in[k] = rank < n ? packet_size(r->z, r->list[r->first + rank], k) : 0;
        out += r->out[k], in += r->in[k];
    }
    ds_tensor *mine = dsi_new_on(r->device, DS_F32, ds_shape(out));
    ds_tensor *all = dsi_new_on(r->device, DS_F32, ds_shape(in));
    ds_status status = mine && all ? DS_OK : ds_error_status();
    for (int64_t k = 0, at = 0; status == DS_OK && k < n; at += r->out[k++])
        status = packet_copy(r, r->list[r->first + k], mine, at, true);
    if (status == DS_OK) status = ds_all_to_all_rows(r->comm, all, r->in, mine, r->out);
    if (status == DS_OK && rank < n) status = owner_update(r, r->list[r->first + rank], all, scale);
    if (status == DS_OK) status = ds_all_to_all_rows(r->comm, mine, r->out, all, r->in);
    for (int64_t k = 0, at = 0; status == DS_OK && k < n; at += r->out[k++]) {
        status = packet_copy(r, r->list[r->first + k], mine, at, false);
        if (status == DS_OK) status = shard_finish(r->z, r->list[r->first + k]);
    }
    return status;
}

static bool is_cut(const dsi_zero *z, int i)
{
    const dsi_flat_param *p = &z->flat->param[i];
    return z->zero3 && z->flat->unit[p->unit].ranks > 1 && dsi_zero3_has_unit(z->zero3, p->unit) &&
           dsi_optim_group_needs_whole(z->optim, z->optim->params[p->index].group);
}

/* The rounds of all cut parameters whose units have this communicator. */
static ds_status comm_rounds(Round *r, int *list, double scale)
{
    const dsi_flat *f = r->z->flat;
    int ranks = ds_comm_size(r->comm);
    ds_status status = DS_OK;
    r->list = list, r->n = 0;
    for (int i = 0; i < f->n; i++)
        if (is_cut(r->z, i) && f->unit[f->param[i].unit].comm == r->comm) list[r->n++] = i;
    r->out = dsi_alloc((size_t)ranks * sizeof *r->out);
    r->in = dsi_alloc((size_t)ranks * sizeof *r->in);
    for (r->first = 0; status == DS_OK && r->first < r->n; r->first += ranks) {
        ds_scope *scope = ds_scope_open();
        status = round_run(r, scale);
        ds_scope_close(scope);
    }
    dsi_free(r->out), dsi_free(r->in);
    return status;
}

/* The gradients of cut parameters, which the optimizer is not to see. */
static bool grads_take(dsi_zero *z, ds_tensor **grad)
{
    bool any = false;
    for (int i = 0; i < z->flat->n; i++) {
        if (!is_cut(z, i)) continue;
        any = true;
        if (!z->shard[i]) continue;
        grad[i] = dsi_ref(ds_grad(z->shard[i]));
        ds_set_grad_of(z->shard[i], NULL);
    }
    return any;
}

ds_status dsi_zero_step_whole(dsi_zero *z, double scale, ds_status (*step)(dsi_zero *, double))
{
    const dsi_flat *f = z->flat;
    Round r = {.z = z, .grad = dsi_alloc((size_t)f->n * sizeof *r.grad)};
    bool any = grads_take(z, r.grad), was = ds_set_grad(false);
    int *list = dsi_alloc((size_t)f->n * sizeof *list);
    ds_status status = step(z, scale);
    r.device = z->o.offload_optimizer ? dsi_device_get((ds_device){DS_CPU, 0})
                                      : f->param[0].x->device;
    for (int k = 0; any && status == DS_OK && k < f->units; k++) {
        bool first = true; /* of the units with this communicator */
        for (int j = 0; j < k; j++) first = first && f->unit[j].comm != f->unit[k].comm;
        r.comm = f->unit[k].comm;
        if (first) status = comm_rounds(&r, list, scale);
    }
    for (int i = 0; i < f->n; i++) dsi_unref(r.grad[i]);
    ds_set_grad(was);
    dsi_free(r.grad), dsi_free(list);
    return status;
}
