/* parallel/reduce.c: gradients of several ranks are collected in buckets and
 * summed while backward runs: Note [Buckets].
 * Source: Li et al., PyTorch Distributed, arXiv 2006.15704; ZeRO, arXiv 1910.02054.
 *
 * Invariants:
 * - Bucket k is unit k of the layout. Buckets are sent in the order 0, 1, .. on
 *   all ranks: `next` is the first that has not been sent in this pass,
 *   `arrived` the first whose sum is not in place. A bucket that is full before
 *   its turn waits.
 * - While a request runs, its `wire` (and `pieces`) belong to the communicator.
 * - With `partition` at most two buckets exist at a time: one that is being
 *   summed, one that fills.
 * - Hooks run inside of backward and return nothing: their first failure is
 *   kept in `status`, and the pass reports it at its end.
 * SPDX-License-Identifier: MIT */
#include "reduce_state.h"

#include "autograd/node.h"
#include "base/clock.h"
#include "base/mem.h"
#include "device/graph.h"
#include "mapped.h"

typedef dsi_reduce_leaf Leaf;
typedef dsi_reduce_bucket Bucket;

/* ---- small arithmetic: 16 bits are added in float32 and rounded once --------------------------------------- */

/* x += y */
static ds_status grad_add(ds_tensor *x, ds_tensor *y)
{
    bool same = x->dtype == y->dtype;
    ds_dtype wide = same ? x->dtype : DS_F32;
    ds_tensor *a = dsi_to_dtype(x, wide), *b = dsi_to_dtype(y, wide);
    if (!a || !b || !dsi_acquire(b) || !dsi_acquire_to_write(a)) return ds_error_status();
    if (!dsi_run_op(a, binary, DSI_ADD, 1.0, dsi_v(a), dsi_v(b), dsi_v(a)))
        return ds_error_status();
    return a == x ? DS_OK : dsi_copy(x, a);
}

/* x *= factor */
static ds_status grad_scale(ds_tensor *x, double factor)
{
    if (!dsi_acquire_to_write(x)) return ds_error_status();
    if (factor == 1 || dsi_run(x, affine, factor, 0.0, dsi_v(x), dsi_v(x))) return DS_OK;
    return ds_error_status();
}

static ds_status grad_zero(ds_tensor *x)
{
    if (x && !dsi_numel(x->shape)) return DS_OK;
    return dsi_fill(x, 0) ? DS_OK : ds_error_status();
}

/* ---- the bucket's memory -------------------------------------------------------------------------------------- */

/* Zeroes the gaps between the parameters of unit u: they are sent, and counted
 * in norms. */
static ds_status bucket_zero_gaps(const dsi_flat *f, const dsi_flat_unit *u, const ds_tensor *full)
{
    for (int i = u->first; i < u->first + u->count; i++) {
        const dsi_flat_param *p = &f->param[i];
        int64_t next = i + 1 < u->first + u->count ? p[1].at : u->n;
        if (p->at + p->n < next && grad_zero(dsi_flat_range(full, p->at + p->n, next)) != DS_OK)
            return ds_error_status();
    }
    return DS_OK;
}

static ds_dtype bucket_dtype(const dsi_reduce *r)
{
    return r->widen && !r->o.partition ? r->o.accum : r->f->param[0].x->dtype;
}

/* [n], that stay until the step. */
static ds_tensor *sums_new(const dsi_reduce *r, ds_dtype dtype, int64_t n)
{
    if (r->folder) return dsi_mapped_new("gradients", r->folder, r->f->rank, dtype, n);
    return dsi_new_on(r->f->param[0].x->device, dtype, ds_shape(n));
}

static ds_status shard_open(dsi_reduce *r, ds_dtype dtype)
{
    if (r->owned && r->owned->dtype == dtype) return DS_OK;
    dsi_unref(r->owned);
    r->owned = dsi_ref(sums_new(r, dtype, r->f->owned));
    return r->owned ? DS_OK : ds_error_status();
}

/* ---- a sum has arrived --------------------------------------------------------------------------------------------------- */

/* This rank's shard of unit k: in its flat buffer of sums; in a tensor [n] laid
 * out as the unit. */
static ds_tensor *shard_view(const dsi_reduce *r, int k)
{
    const dsi_flat_unit *u = &r->f->unit[k];
    return dsi_flat_range(r->owned, u->owned_at, u->owned_at + u->shard_size);
}

static ds_tensor *bucket_shard(const dsi_reduce *r, int k, const ds_tensor *full)
{
    const dsi_flat_unit *u = &r->f->unit[k];
    return dsi_flat_range(full, u->rank * u->shard_size, (u->rank + 1) * u->shard_size);
}

/* The factor on the sum of unit k. For a mean over the unit's ranks it converts
 * to the mean over all ranks. */
static double factor_after(const dsi_reduce *r, int k)
{
    return r->op == DS_REDUCE_AVG ? (double)r->f->unit[k].ranks / r->f->ranks : r->after;
}

/* The sum of unit k's shard, which has arrived, to the sum over the passes so
 * far. */
static ds_status shard_accumulate(dsi_reduce *r, int k)
{
    Bucket *b = &r->bucket[k];
    if (r->tree) return dsi_tree_add(r->tree, k, b->pieces);
    ds_tensor *owned = shard_view(r, k), *sum = b->direct ? owned : bucket_shard(r, k, b->wire);
    ds_status status = grad_scale(sum, factor_after(r, k));
    if (status == DS_OK && !b->direct)
        status = b->added ? grad_add(owned, sum) : dsi_copy(owned, sum);
    b->added = true;
    return status;
}

/* Stages 2 and 3: this rank keeps its shard of the sum; the bucket is freed. */
static ds_status bucket_keep_shard(dsi_reduce *r, int k)
{
    Bucket *b = &r->bucket[k];
    const dsi_flat_unit *u = &r->f->unit[k];
    ds_status status = shard_accumulate(r, k);
    for (int i = u->first; i < u->first + u->count; i++) r->leaf[i].holds = false;
    dsi_hold(&b->full, NULL);
    return status;
}

/* Whether a rank gets the sum of its shard alone. */
static bool reduce_scatters(const dsi_reduce *r) { return r->f->partition && !r->o.all_reduce; }

/* Stages 0 and 1: the sum, or at stage 1 this rank's shard of it, stays in the
 * bucket. */
static ds_status bucket_keep_whole(dsi_reduce *r, int k)
{
    Bucket *b = &r->bucket[k];
    ds_tensor *sum = reduce_scatters(r) ? bucket_shard(r, k, b->wire) : b->wire;
    if (grad_scale(sum, factor_after(r, k)) != DS_OK) return ds_error_status();
    if (b->wire == b->full) return DS_OK;
    return dsi_copy(reduce_scatters(r) ? bucket_shard(r, k, b->full) : b->full, sum);
}

/* Waits for the sum of bucket k, if it was sent, and puts it into its place. */
static ds_status bucket_finish(dsi_reduce *r, int k)
{
    Bucket *b = &r->bucket[k];
    if (!b->wire) return DS_OK;
    ds_scope *scope = ds_scope_open();
    ds_status status = b->request ? dsi_request_wait(b->request) : DS_OK;
    b->request = NULL;
    if (status == DS_OK)
        status = r->o.partition ? bucket_keep_shard(r, k) : bucket_keep_whole(r, k);
    dsi_hold(&b->wire, NULL);
    dsi_hold(&b->pieces, NULL);
    ds_scope_close(scope);
    return status;
}

/* Waits for all buckets that were sent but the newest n. */
static ds_status buckets_finish_but(dsi_reduce *r, int n)
{
    ds_status status = DS_OK;
    for (; status == DS_OK && r->arrived < r->next - n; r->arrived++)
        status = bucket_finish(r, r->arrived);
    return status;
}

/* Before bucket k is allocated: with `partition` at most two buckets exist, one
 * that is being summed and one that fills, so this may block. */
static ds_status bucket_limit_count(dsi_reduce *r, int k)
{
    return r->o.partition && !r->bucket[k].full ? buckets_finish_but(r, k == r->next) : DS_OK;
}

static ds_status bucket_open(dsi_reduce *r, int k, ds_dtype dtype)
{
    Bucket *b = &r->bucket[k];
    const dsi_flat_unit *u = &r->f->unit[k];
    if (b->full && b->full->dtype == dtype) return DS_OK;
    if (bucket_limit_count(r, k) != DS_OK) return ds_error_status();
    ds_tensor *full = r->o.partition ? dsi_new_on(r->f->param[0].x->device, dtype, ds_shape(u->n))
                                     : sums_new(r, dtype, u->n);
    if (!full || bucket_zero_gaps(r->f, u, full) != DS_OK) return ds_error_status();
    dsi_hold(&b->full, full);
    return DS_OK;
}

/* ---- a bucket is sent ---------------------------------------------------------------------------------------------------- */

/* Moves the gradient of x to its place in the bucket, which is open. */
static ds_status bucket_move_in(Leaf *l, ds_tensor *x)
{
    const dsi_flat *f = l->r->f;
    ds_tensor *g = ds_grad(x),
              *place = dsi_flat_in_unit(f, l->i, l->r->bucket[f->param[l->i].unit].full);
    ds_status status = dsi_acquire(g) ? DS_OK : ds_error_status();
    /* else backward wrote it there, or DDP left it there, to be added to */
    if (status == DS_OK && g->storage != place->storage)
        status = l->holds ? grad_add(place, g) : dsi_copy(place, g);
    l->holds = true;
    ds_set_grad_of(x, NULL);
    return status;
}

/* A gradient that fills a bucket becomes the bucket, without a copy; not once a
 * device has recorded a pass, which a graph repeats in the same memory. */
static bool bucket_adopt(Leaf *l, ds_tensor *x)
{
    dsi_reduce *r = l->r;
    const dsi_flat_param *p = &r->f->param[l->i];
    Bucket *b = &r->bucket[p->unit];
    ds_tensor *g = ds_grad(x);
    r->stays = r->stays || dsi_graph_recording(x->device);
    if (r->stays || r->folder || !dsi_flat_fills_unit(r->f, l->i) || l->holds ||
        g->dtype != bucket_dtype(r) || g->pooled[0] || g->refs != 1 || g->storage->refs != 1 ||
        !dsi_is_contiguous(g))
        return false;
    dsi_hold(&b->full, dsi_flat_range(g, 0, p->n));
    l->holds = true;
    ds_set_grad_of(x, NULL);
    return true;
}

/* A parameter that this pass did not use has the gradient of earlier ones, or
 * none. */
static ds_status bucket_fill_missing(const dsi_reduce *r, int k)
{
    const dsi_flat_unit *u = &r->f->unit[k];
    ds_status status = DS_OK;
    for (int i = u->first; status == DS_OK && i < u->first + u->count; i++) {
        ds_tensor *x = r->f->param[i].x;
        if (ds_grad(x))
            status = bucket_move_in(&r->leaf[i], x);
        else if (!r->leaf[i].holds)
            status = grad_zero(dsi_flat_in_unit(r->f, i, r->bucket[k].full));
    }
    return status;
}

/* The bucket as it is sent; counted in b->wire. */
static ds_status bucket_load_wire(dsi_reduce *r, Bucket *b)
{
    b->wire = dsi_ref(dsi_to_dtype(b->full, r->o.comm));
    return b->wire ? grad_scale(b->wire, r->before) : ds_error_status();
}

/* Sends each rank its shard of this rank's bucket (all-to-all). With one rank
 * nothing is sent. */
static dsi_request *bucket_exchange(dsi_reduce *r, Bucket *b)
{
    b->pieces = dsi_ref(r->comm ? dsi_new(b->wire, b->wire->shape) : b->wire);
    return r->comm && b->pieces
               ? dsi_all_to_all_start(r->comm, b->wire->device, dsi_v(b->wire), dsi_v(b->pieces))
               : NULL;
}

static dsi_request *bucket_send(dsi_reduce *r, int k)
{
    Bucket *b = &r->bucket[k];
    if (r->tree) return bucket_exchange(r, b);
    dsi_view v = dsi_v(b->wire);
    ds_comm *comm = r->f->unit[k].comm;
    b->direct = reduce_scatters(r) && r->o.partition && !b->added &&
                r->owned->dtype == b->wire->dtype;
    /* as it arrives it is kept: neither rounded again, nor scaled, nor added to */
    b->counted = r->o.squares && factor_after(r, k) == 1 &&
                 (r->o.partition ? b->direct : b->wire == b->full);
    b->squares = 0;
    double *squares = b->counted ? &b->squares : NULL;
    if (!reduce_scatters(r)) return dsi_all_reduce_start(comm, b->wire->device, v, r->op, squares);
    return dsi_reduce_scatter_start(
        comm, b->wire->device, v, dsi_v(b->direct ? shard_view(r, k) : bucket_shard(r, k, b->wire)),
        r->op, squares);
}

/* Allocates bucket k if needed, fills it up, and starts its collective; without
 * overlap waits for it. */
static ds_status bucket_start(dsi_reduce *r, int k)
{
    Bucket *b = &r->bucket[k];
    if (bucket_open(r, k, bucket_dtype(r)) != DS_OK || bucket_fill_missing(r, k) != DS_OK ||
        bucket_load_wire(r, b) != DS_OK)
        return ds_error_status();
    b->direct = false;
    b->request = bucket_send(r, k);
    if (!b->request && (r->comm || !b->pieces)) return ds_error_status();
    r->next = k + 1;
    return buckets_finish_but(r, r->o.overlap ? r->f->units : 0);
}

/* Sends buckets in their order, up to the first that is not full, or all. */
static ds_status buckets_send_full(dsi_reduce *r, bool all)
{
    ds_status status = DS_OK;
    while (status == DS_OK && r->next < r->f->units && (all || !r->bucket[r->next].missing)) {
        double begun = dsi_now();
        ds_scope *scope = ds_scope_open();
        status = bucket_start(r, r->next);
        ds_scope_close(scope);
        r->seconds += dsi_now() - begun;
    }
    return status;
}

/* ---- during the pass ----------------------------------------------------------------------------------------------- */

/* Frees a bucket for bucket k, if it needs one; the wait is counted in
 * `seconds`. */
static void bucket_await(dsi_reduce *r, int k)
{
    double begun = dsi_now();
    r->status = bucket_limit_count(r, k);
    r->seconds += dsi_now() - begun;
}

/* Ends the communication of all ranks at once: a rank that has failed to send a
 * bucket must not start another collective in its place. */
static void reduce_abort_on_failure(const dsi_reduce *r)
{
    if (r->status != DS_OK && r->comm) dsi_comm_abort(r->comm, ds_error());
}

/* The grad-buffer hook: where in its bucket backward may write the gradient;
 * NULL: elsewhere. */
static ds_tensor *leaf_grad_buffer(void *arg, ds_tensor *x)
{
    Leaf *l = arg;
    dsi_reduce *r = l->r;
    int k = r->f->param[l->i].unit;
    if (!r->runs || r->status != DS_OK || !r->comm || l->holds ||
        (dsi_flat_fills_unit(r->f, l->i) && !r->stays) || bucket_dtype(r) != x->dtype)
        return NULL;
    bucket_await(r, k);
    if (r->status == DS_OK) r->status = bucket_open(r, k, x->dtype);
    reduce_abort_on_failure(r);
    return r->status == DS_OK ? dsi_flat_in_unit(r->f, l->i, r->bucket[k].full) : NULL;
}

#define MAPPED_ELEMENTS 16384 /* smaller gradients stay in memory */

/* One rank: moves the gradient of x to a file, where the next micro step adds
 * to
 * it. */
static ds_status grad_move_to_file(Leaf *l, ds_tensor *x)
{
    ds_tensor *g = ds_grad(x);
    int64_t stride[DS_MAX_DIMS];
    if (l->mapped && g->storage == l->mapped->storage) return DS_OK;
    if (!dsi_acquire(g)) return ds_error_status();
    if (!l->mapped || l->mapped->dtype != g->dtype) {
        dsi_unref(l->mapped);
        l->mapped = dsi_ref(sums_new(l->r, g->dtype, ds_numel(g)));
    }
    if (!l->mapped) return ds_error_status();
    dsi_row_major(x->shape, stride);
    ds_tensor *to = dsi_view_of(l->mapped, x->shape, stride, 0);
    return dsi_copy(to, g) == DS_OK ? ds_set_grad_of(x, to) : ds_error_status();
}

/* The ready hook: moves the gradient into its bucket and sends buckets that are
 * full. On one rank, gradients that accumulate in their own dtype stay where
 * backward made them. */
static void leaf_ready(void *arg, ds_tensor *x)
{
    Leaf *l = arg;
    dsi_reduce *r = l->r;
    bool sends = r->tree || (r->comm && (r->last || r->o.partition));
    int k = r->f->param[l->i].unit;
    if (r->runs && r->status == DS_OK && r->folder && !r->comm && !r->tree &&
        ds_numel(x) >= MAPPED_ELEMENTS)
        r->status = r->widen ? DS_OK : grad_move_to_file(l, x);
    l->final = r->runs && r->last && r->status == DS_OK;
    if (r->runs && r->o.on_ready) r->o.on_ready(r->o.on_ready_arg, x);
    if (!r->runs || r->status != DS_OK || (!r->comm && !r->widen)) return;
    bucket_await(r, k);
    if (r->status == DS_OK && !bucket_adopt(l, x)) {
        r->status = bucket_open(r, k, bucket_dtype(r));
        if (r->status == DS_OK) r->status = bucket_move_in(l, x);
    }
    if (r->status == DS_OK && sends) {
        r->bucket[k].missing--;
        r->status = buckets_send_full(r, false);
    }
    reduce_abort_on_failure(r);
}

void dsi_reduce_spare_kept(dsi_reduce *r)
{
    for (int k = 0; k < r->f->units && !r->stays; k++) {
        const dsi_flat_unit *u = &r->f->unit[k];
        Bucket *b = &r->bucket[k];
        int known = 1;
        for (int i = u->first; b->full && i < u->first + u->count; i++) {
            const ds_tensor *g = ds_grad(r->f->param[i].x);
            known += g && g->storage == b->full->storage;
        }
        if (!b->full || b->full->storage->refs == known) continue;
        dsi_hold(&b->full, NULL);
    }
}

ds_status dsi_reduce_begin(dsi_reduce *r, bool last)
{
    if (dsi_reduce_wait(r) != DS_OK) return ds_error_status();
    r->local = r->tree && !r->comm && !r->open && last;
    if (!r->open) r->widen = !last && r->o.accum != r->f->param[0].x->dtype;
    r->open = r->runs = true;
    r->last = last;
    r->next = r->arrived = 0;
    r->seconds = 0;
    r->status = DS_OK;
    for (int k = 0; k < r->f->units; k++) r->bucket[k].missing = r->f->unit[k].count;
    for (int i = 0; i < r->f->n; i++) r->leaf[i].final = false;
    if (r->tree) dsi_tree_next(r->tree);
    if (!r->o.partition || r->tree) return DS_OK;
    return shard_open(r, r->widen ? r->o.accum : r->f->param[0].x->dtype);
}

ds_status dsi_reduce_end(dsi_reduce *r)
{
    r->runs = false;
    for (int i = 0; r->local && i < r->f->n; i++)
        r->local = ds_grad(r->f->param[i].x); /* else it is zeros, as on several ranks */
    if (r->local) return r->status;
    if (r->status == DS_OK && (r->tree || (r->comm && (r->last || r->o.partition))))
        r->status = buckets_send_full(r, true);
    return r->status;
}

/* Shards have been reduced in each pass; whole buckets are sent now. */
ds_status dsi_reduce_complete_now(dsi_reduce *r)
{
    if (!r->o.partition) return dsi_reduce_begin(r, true) == DS_OK ? dsi_reduce_end(r) : r->status;
    r->last = true;
    return r->status;
}

ds_status dsi_reduce_wait(dsi_reduce *r)
{
    if (r->status == DS_OK) r->status = buckets_finish_but(r, 0);
    if (r->status != DS_OK || !r->tree || r->local || !dsi_reduce_complete(r)) return r->status;
    dsi_hold(&r->owned, dsi_tree_total(r->tree));
    return r->owned ? DS_OK : (r->status = ds_error_status());
}

bool dsi_reduce_finishes_early(const dsi_reduce *r) { return r && !r->tree && !r->widen; }

bool dsi_reduce_is_final(const dsi_reduce *r, int i)
{
    return r->comm ? r->last && r->f->param[i].unit < r->arrived : r->leaf[i].final;
}

bool dsi_reduce_complete(const dsi_reduce *r) { return r->open && r->last; }
double dsi_reduce_seconds(const dsi_reduce *r) { return r->seconds; }

/* ---- the result ---------------------------------------------------------------------------------------------------- */

ds_tensor *dsi_reduce_grad(const dsi_reduce *r, int i)
{
    if (r->local) return ds_grad(r->f->param[i].x);
    if (r->o.partition) return dsi_flat_in_owned(r->f, i, r->owned);
    if (!r->leaf[i].holds && !r->comm) return ds_grad(r->f->param[i].x);
    return dsi_flat_owned_in_unit(r->f, i, r->bucket[r->f->param[i].unit].full);
}

int dsi_reduce_shards(const dsi_reduce *r, dsi_view *views, double *squares)
{
    int n = 0;
    *squares = 0;
    for (int k = 0; k < r->f->units; k++) {
        const Bucket *b = &r->bucket[k];
        if (b->counted)
            *squares += b->squares;
        else
            views[n++] = dsi_v(r->o.partition ? shard_view(r, k) : bucket_shard(r, k, b->full));
    }
    return n;
}

void dsi_reduce_forget_squares(dsi_reduce *r, int i)
{
    r->bucket[r->f->param[i].unit].counted = false;
}

void dsi_reduce_reset(dsi_reduce *r)
{
    if (r->status == DS_OK)
        r->status = buckets_finish_but(r, 0); /* a later sum would be added to */
    r->open = r->local = false;
    if (r->tree) dsi_tree_reset(r->tree);
    for (int i = 0; i < r->f->n; i++) r->leaf[i].holds = false;
    for (int k = 0; k < r->f->units; k++) r->bucket[k].added = false;
}

int64_t dsi_reduce_bytes(const dsi_reduce *r)
{
    int64_t bytes = r->tree    ? dsi_tree_bytes(r->tree)
                    : r->owned ? (int64_t)r->owned->storage->bytes
                               : 0;
    if (r->folder) return 0;
    for (int k = 0; k < r->f->units; k++)
        if (r->bucket[k].full) bytes += (int64_t)r->bucket[k].full->storage->bytes;
    return bytes;
}

/* ---- life ------------------------------------------------------------------------------------------------------------ */

/* By default the communicator takes the mean, in float32 for 16 bits, so that
 * fp16 sums do not overflow. A tree adds gradients that are the mean's parts
 * already. */
static void reduce_choose_factors(dsi_reduce *r)
{
    int ranks = r->f->ranks;
    double f = r->o.predivide > 0 ? r->o.predivide : 1;
    bool plain = (!r->o.prescale && f == 1) || r->tree;
    r->op = plain ? DS_REDUCE_AVG : DS_REDUCE_SUM;
    r->before = plain ? 1 : r->o.prescale ? 1.0 / ranks : 1 / f;
    r->after = plain || r->o.prescale ? 1 : f / ranks;
}

dsi_reduce *dsi_reduce_new(const dsi_flat *f, ds_comm *comm, const dsi_reduce_opts *o)
{
    dsi_reduce *r = dsi_alloc(sizeof *r);
    r->f = f;
    r->comm = f->ranks > 1 ? comm : NULL;
    r->o = *o;
    if (o->folder && ds_device_of(f->param[0].x).kind == DS_CPU) r->folder = dsi_strdup(o->folder);
    r->o.partition = o->tree || (o->partition && r->comm);
    if (o->tree) r->tree = dsi_tree_new(f);
    reduce_choose_factors(r);
    r->leaf = dsi_alloc((size_t)f->n * sizeof *r->leaf);
    r->bucket = dsi_alloc((size_t)f->units * sizeof *r->bucket);
    for (int i = 0; i < f->n; i++) {
        r->leaf[i] = (Leaf){.r = r, .i = i};
        dsi_set_grad_ready_hook(f->param[i].x, leaf_ready, &r->leaf[i]);
        dsi_set_grad_buffer_hook(f->param[i].x, leaf_grad_buffer);
    }
    return r;
}

void dsi_reduce_free(dsi_reduce *r)
{
    if (!r) return;
    for (int i = 0; i < r->f->n; i++) dsi_set_grad_ready_hook(r->f->param[i].x, NULL, NULL);
    for (int k = 0; k < r->f->units; k++) {
        if (r->bucket[k].request)
            dsi_request_wait(r->bucket[k].request); /* its memory is freed below */
        dsi_unref(r->bucket[k].wire);
        dsi_unref(r->bucket[k].pieces);
        dsi_unref(r->bucket[k].full);
    }
    dsi_tree_free(r->tree);
    for (int i = 0; i < r->f->n; i++) dsi_unref(r->leaf[i].mapped);
    dsi_free(r->folder);
    dsi_unref(r->owned);
    dsi_free(r->leaf);
    dsi_free(r->bucket);
    dsi_free(r);
}
