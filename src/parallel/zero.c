/* parallel/zero.c: ZeRO at all stages (the table in zero.h): one step over the
 * elements of the parameters that this rank updates.
 *
 * The optimizer updates, for each parameter (Note [Layout] says which elements
 * are a rank's):
 *   float32   the parameter itself, or this rank's shard of it;
 *   16 bits   a float32 master of them in one flat buffer, or on disk; the parameter
 *             is the low-precision copy that the optimizer writes beside it;
 *             or, of bfloat16, the parameter and the rest of its master (split.h).
 *             Gradients stay 16-bit and are upcast as the optimizer reads them.
 * On one rank gradients stay where backward made them and nothing is copied; on
 * several they come from buckets (reduce.h). Unscaling and clipping are one
 * factor by which the optimizer multiplies gradients as it reads them.
 *
 * Invariants:
 * - Index i is a parameter of the layout; the functions for checkpoints take
 *   that of the module (dsi_zero_find).
 * - All ranks call backward, step, publish and whole in the same order; these
 *   block. A failure on one rank ends the communication of all
 *   (dsi_comm_all_or_none).
 * - z->shard[i] is what the optimizer updates and has the gradient during a
 *   step; after a step, of whatever result, no gradient is left.
 *
 * Source: Rajbhandari et al., ZeRO, arXiv 1910.02054; mixed precision: arXiv 1710.03740.
 * SPDX-License-Identifier: MIT */
#include "zero_state.h"

#include "autograd/node.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/trace.h"
#include "comm/sync_status.h"
#include "norm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- gradients ----------------------------------------------------------------------------------------- */

static ds_status stage_backward(dsi_zero *z, ds_tensor *loss, double factor, bool last)
{
    z->last_pass = last;
    if (last) dsi_zero_host_grads_drop(z); /* of a pass that was dropped */
    if (!z->reduce) {
        ds_status status = last ? dsi_zero_overlap_begin(z) : DS_OK;
        return status == DS_OK ? dsi_backward_scaled(loss, factor) : status;
    }
    if (dsi_reduce_complete(z->reduce))
        return dsi_comm_all_or_none(z->comm,
                                    dsi_fail(DS_ESTATE, "zero: a backward pass after the last one, "
                                                        "without a step between"));
    if (z->o.deterministic) factor /= dsi_comm_size(z->comm);
    ds_status status = dsi_reduce_begin(z->reduce, last);
    if (status == DS_OK && last) status = dsi_zero_overlap_begin(z);
    if (z->zero3) dsi_zero3_set_backward(z->zero3, true);
    if (status == DS_OK) status = dsi_backward_scaled(loss, factor);
    if (z->zero3) dsi_zero3_set_backward(z->zero3, false);
    if (dsi_zero_overlap_pause(z) != DS_OK && status == DS_OK) status = z->overlap_status;
    if (status == DS_OK) status = dsi_reduce_end(z->reduce);
    return dsi_comm_all_or_none(z->comm, status);
}

ds_status dsi_zero_backward(dsi_zero *z, ds_tensor *loss, double factor, bool last)
{
    if (!dsi_live(z, "zero_backward")) return dsi_null_argument("zero_backward");
    dsi_trace_begin("engine backward");
    ds_status status = stage_backward(z, loss, factor, last);
    dsi_trace_end();
    return status;
}

ds_status dsi_zero_complete(dsi_zero *z)
{
    ds_scope *scope = ds_scope_open();
    ds_status status = z->reduce ? dsi_reduce_complete_now(z->reduce) : DS_OK;
    ds_scope_close(scope);
    return dsi_comm_all_or_none(z->comm, status);
}

void dsi_zero_on_norm(dsi_zero *z, ds_status (*fn)(void *arg), void *arg)
{
    z->on_norm = fn;
    z->on_norm_arg = arg;
}

double dsi_zero_reducing(const dsi_zero *z)
{
    return z && z->reduce ? dsi_reduce_seconds(z->reduce) : 0;
}

void dsi_zero_zero_grad(dsi_zero *z)
{
    if (!z) return;
    if (dsi_zero_overlap_end(z) && dsi_offload_end(z->offload))
        dsi_fail(DS_ESTATE, "zero: gradients are dropped whose update has begun during backward: "
                            "set pipeline_write to false");
    dsi_zero_host_grads_drop(z);
    for (int i = 0; i < z->flat->n; i++) {
        ds_set_grad_of(z->flat->param[i].x, NULL);
        if (z->shard[i]) ds_set_grad_of(z->shard[i], NULL);
    }
    if (z->reduce) dsi_reduce_reset(z->reduce);
}

ds_tensor *dsi_zero_shard_grad(const dsi_zero *z, int i)
{
    ds_tensor *g = z->reduce ? dsi_reduce_grad(z->reduce, i) : z->flat->param[i].x->grad;
    return dsi_acquire(g) ? g : NULL;
}

ds_status dsi_zero_make_grad(dsi_zero *z, int i)
{
    ds_tensor *x = z->flat->param[i].x;
    if (z->comm || !z->shard[i] || dsi_zero_shard_grad(z, i)) return DS_OK;
    ds_tensor *g = dsi_fill(dsi_new(x, x->shape), 0);
    return g ? ds_set_grad_of(x, g) : ds_error_status();
}

ds_status dsi_zero_hand_over(dsi_zero *z)
{
    for (int i = 0; i < z->flat->n; i++) {
        if (dsi_zero_make_grad(z, i) != DS_OK) return ds_error_status();
        ds_tensor *g = z->shard[i] ? dsi_zero_shard_grad(z, i) : NULL;
        if (g && g->device != z->shard[i]->device) {
            g = dsi_zero_host_grad(z, i, g);
            if (!g) return ds_error_status();
        }
        if (g && g != z->shard[i]->grad && ds_set_grad_of(z->shard[i], g) != DS_OK)
            return ds_error_status();
    }
    return dsi_zero_host_grads_wait(z);
}

/* ---- the norm: Note [Norm] ----------------------------------------------------------------------------- */

int dsi_zero_norm_lines(const dsi_zero *z, double *squares)
{
    int n = 0;
    *squares = 0;
    if (z->comm) return dsi_reduce_shards(z->reduce, z->grad_views, squares);
    for (int i = 0; i < z->flat->n; i++) {
        ds_tensor *g = z->shard[i] ? z->shard[i]->grad : NULL;
        if (!ds_numel(g)) continue;
        z->grad_views[n] = dsi_norm_line(g);
        if (!z->grad_views[n++].p) return -1;
    }
    return n;
}

bool dsi_zero_norm_is_queued(const dsi_zero *z)
{
    return z->norm_sums && z->norm_sums->device->type->kind != DS_CPU;
}

/* Computes this rank's sum of squares and starts its all-gather, *norm_request.
 * On one rank *norm is the result and *norm_request stays NULL. */
static ds_status norm_start(dsi_zero *z, dsi_request **norm_request, double *norm)
{
    double counted; /* squares */
    int n = dsi_zero_norm_lines(z, &counted);
    const ds_tensor *with = z->comm ? z->flat->param[0].x : z->shard[0]; /* one device has them */
    if (n >= 0 && dsi_zero_norm_is_queued(z)) {
        *norm_request = dsi_norm_queue(z->comm, z->norm_sums, n, z->grad_views);
        return *norm_request ? DS_OK : ds_error_status();
    }
    bool was = dsi_graph_note(with->device, false); /* a capture leaves it on the device */
    ds_status status = n < 0 ? ds_error_status() : dsi_norm_of(with, n, z->grad_views, norm);
    dsi_graph_note(with->device, was);
    if (status != DS_OK) return status;
    if (!z->comm) return DS_OK;
    *norm_request = dsi_norm_send(z->comm, z->norm_sums, *norm * *norm + counted);
    return *norm_request ? DS_OK : ds_error_status();
}

/* Waits for *norm_request, if there is one; *norm becomes that of unscaled
 * gradients. */
static ds_status norm_finish(dsi_zero *z, dsi_request **norm_request, double scale, double *norm)
{
    dsi_device *d = z->flat->param[0].x->device;
    bool was = dsi_graph_note(d, false);
    ds_status status = *norm_request ? dsi_norm_take(*norm_request, z->norm_sums, norm) : DS_OK;
    dsi_graph_note(d, was);
    *norm_request = NULL;
    *norm *= scale;
    return status;
}

#define PATH 256 /* bytes */

/* z->bad_param_path is the path of the first of all ranks' parameters; an
 * expert has another one on each rank. */
static ds_status bad_param_broadcast(dsi_zero *z, int64_t first)
{
    int n = z->flat->n, ranks = dsi_comm_size(z->comm);
    int64_t where = first * ranks + dsi_comm_rank(z->comm);
    char path[PATH] = "";
    if (first < n) snprintf(path, PATH, "%s", dsi_flat_path(z->flat, z->model, n - 1 - (int)first));
    if (z->comm) {
        where = -where; /* the smallest of all ranks */
        if (dsi_sync_max(z->comm, &where, 1) != DS_OK) return ds_error_status();
        where = -where;
        if (where / ranks == n) return DS_OK;
        if (dsi_broadcast_bytes(z->comm, path, PATH, (int)(where % ranks)) != DS_OK)
            return ds_error_status();
    }
    z->bad_param_path = *path ? dsi_strdup(path) : NULL;
    return DS_OK;
}

/* The first parameter, in the model's order, whose gradient is not finite on
 * some rank: z->bad_param_path. */
static ds_status bad_param_find(dsi_zero *z)
{
    int64_t first = z->flat->n; /* counted from the model's first */
    for (int i = z->flat->n - 1; i >= 0 && first == z->flat->n; i--) {
        ds_tensor *g = z->shard[i] ? z->shard[i]->grad : NULL;
        double norm = 0;
        dsi_view v = dsi_norm_line(g);
        if (g && (!v.p || dsi_norm_of(g, 1, &v, &norm) != DS_OK)) return ds_error_status();
        if (!isfinite(norm)) first = z->flat->n - 1 - i;
    }
    dsi_free(z->bad_param_path);
    z->bad_param_path = NULL;
    return bad_param_broadcast(z, first);
}

/* ---- the step ------------------------------------------------------------------------------------------ */

/* torch.nn.utils.clip_grad_norm_'s factor; not "< 1", so that gradients of a
 * NaN norm become NaN too. */
static double clip_factor(double norm, double max_norm)
{
    double factor = max_norm / (norm + 1e-6);
    return factor >= 1 ? 1 : factor;
}

/* All-gathers every unit in place; all gathers run at the same time. Blocks. */
static ds_status units_gather(dsi_zero *z)
{
    const dsi_flat *f = z->flat;
    ds_status status = DS_OK;
    int begun = 0;
    for (; status == DS_OK && begun < f->units; begun++) {
        const dsi_flat_unit *u = &f->unit[begun];
        int64_t at = u->rank * u->shard_size;
        ds_tensor *all = z->unit_params[begun];
        z->unit_gathers[begun] = NULL;
        if (!all) continue;
        z->unit_gathers[begun] = dsi_all_gather_start(
            u->comm, all->device, dsi_v(dsi_flat_range(all, at, at + u->shard_size)), dsi_v(all),
            "updated parameters");
        if (!z->unit_gathers[begun]) status = ds_error_status();
    }
    for (int k = 0; k < begun; k++)
        if (z->unit_gathers[k] && dsi_request_wait(z->unit_gathers[k]) != DS_OK)
            status = ds_error_status();
    return status;
}

/* Copies this rank's master of parameter i to its shard in the model. */
ds_status dsi_zero_copy_master(dsi_zero *z, int i)
{
    ds_tensor *mine = dsi_zero_shard_open(z, i, true);
    bool itself = mine && mine->storage && mine->storage == z->shard[i]->storage;
    ds_status status = itself ? DS_OK : dsi_optim_round(mine, z->shard[i]);
    return status == DS_OK ? dsi_zero_shard_close(z, i, true) : status;
}

/* The shards have changed: the model's parameters too, where they are whole. */
static ds_status params_publish(dsi_zero *z)
{
    ds_status status = DS_OK;
    for (int i = 0; status == DS_OK && z->masters && i < z->flat->n; i++) {
        if (z->outgoing_params && z->outgoing_params[i])
            status = dsi_zero_host_send_param(z, i);
        else if (z->shard[i] && dsi_zero_copies_master(z, i))
            status = dsi_zero_copy_master(z, i);
    }
    if (status == DS_OK) status = dsi_zero_host_join_params(z);
    if (status == DS_OK && z->unit_params) status = units_gather(z);
    if (status == DS_OK && z->zero3) dsi_zero3_shards_changed(z->zero3);
    return status;
}

/* Seconds since *from, which becomes now. */
static double lap_seconds(double *from)
{
    double now = dsi_now(), seconds = now - *from;
    *from = now;
    return seconds;
}

static ds_status optimizer_step(dsi_zero *z, double scale)
{
    return z->offload ? dsi_offload_step(z->offload, scale, dsi_zero_model(z))
                      : dsi_optim_step_scaled(z->optim, scale);
}

ds_status dsi_zero_update(dsi_zero *z, double scale, double *from, dsi_zero_step_result *out)
{
    dsi_trace_begin("optimizer");
    ds_status status = dsi_split_store(z->split);
    if (status == DS_OK)
        status = z->zero3 && dsi_optim_needs_whole(z->optim)
                     ? dsi_zero_step_whole(z, scale, optimizer_step)
                     : optimizer_step(z, scale);
    dsi_trace_end();
    out->update_s = lap_seconds(from);
    if (status == DS_OK) status = params_publish(z);
    out->gather_s = lap_seconds(from);
    return status;
}

ds_status dsi_zero_skip(dsi_zero *z, dsi_zero_step_result *out)
{
    dsi_device *d = z->flat->param[0].x->device;
    bool was = dsi_graph_note(d, false);
    ds_status status = bad_param_find(z);
    if (status == DS_OK) status = dsi_optim_skip(z->optim);
    dsi_graph_note(d, was);
    out->overflow = true;
    out->bad_param_path = z->bad_param_path;
    return status;
}

/* The order matters: a norm that decides (clipping, overflow) is waited for
 * before the update, and on a GPU any norm, for which the host has to wait
 * once; a norm that is only reported is gathered during the update. */
static ds_status stage_step(dsi_zero *z, double loss_scale, double max_norm, bool check_overflow,
                            bool want_norm, dsi_zero_step_result *out)
{
    double unscale = 1 / loss_scale, scale = unscale;
    bool decides = max_norm > 0 || check_overflow;
    bool early = decides || (want_norm && dsi_zero_norm_is_queued(z));
    dsi_request *norm_request = NULL;
    if (z->reduce && !dsi_reduce_complete(z->reduce))
        return dsi_fail(DS_ESTATE, "zero: a step without the last backward pass before it");
    if (z->reduce && dsi_reduce_wait(z->reduce) != DS_OK) return ds_error_status();
    double from = dsi_now();
    if (dsi_zero_hand_over(z) != DS_OK) return ds_error_status();
    if ((early || want_norm) && norm_start(z, &norm_request, &out->norm) != DS_OK)
        return ds_error_status();
    if (early && norm_finish(z, &norm_request, unscale, &out->norm) != DS_OK)
        return ds_error_status();
    if (decides && z->on_norm && z->on_norm(z->on_norm_arg) != DS_OK) return ds_error_status();
    ds_status status = z->zero3 ? dsi_zero3_wait_gathers(z->zero3) : DS_OK;
    if (status == DS_OK && check_overflow && !isfinite(out->norm)) {
        if (z->zero3) dsi_zero3_shards_changed(z->zero3);
        return dsi_zero_skip(z, out);
    }
    if (max_norm > 0) scale *= clip_factor(out->norm, max_norm);
    out->gradients_s = lap_seconds(&from);
    if (status == DS_OK) status = dsi_zero_update(z, scale, &from, out);
    /* after a failure too: others read what this rank has sent */
    bool pending = want_norm && !early;
    if (pending && norm_finish(z, &norm_request, unscale, &out->norm) != DS_OK)
        status = ds_error_status();
    return status;
}

ds_status dsi_zero_step(dsi_zero *z, double loss_scale, double max_norm, bool check_overflow,
                        bool want_norm, dsi_zero_step_result *out)
{
    if (!dsi_live(z, "zero_step")) return dsi_null_argument("zero_step");
    dsi_zero_step_result result = {.norm = NAN};
    ds_scope *scope = ds_scope_open();
    dsi_trace_begin("step");
    ds_status status = stage_step(z, loss_scale, max_norm, check_overflow, want_norm, &result);
    dsi_zero_zero_grad(z);
    dsi_trace_end();
    ds_scope_close(scope);
    if (out) *out = result;
    return dsi_comm_all_or_none(z->comm, status);
}

/* ---- for checkpoints and averages ---------------------------------------------------------------------- */

int dsi_zero_find(const dsi_zero *z, int index)
{
    for (int i = 0; z && i < z->flat->n; i++)
        if (z->flat->param[i].index == index) return i;
    return -1;
}

const dsi_flat *dsi_zero_flat(const dsi_zero *z) { return z->flat; }

ds_tensor *dsi_zero_shard(const dsi_zero *z, int i)
{
    int k = dsi_zero_find(z, i);
    return k < 0 ? NULL : z->shard[k];
}

ds_status dsi_zero_release(dsi_zero *z, int i, bool changed)
{
    int k = dsi_zero_find(z, i);
    if (k >= 0 && z->split) return dsi_split_release(z->split, k, changed);
    if (k < 0 || !z->offload) return DS_OK;
    if (changed) return dsi_offload_store(z->offload, k);
    dsi_offload_release(z->offload, k);
    return DS_OK;
}

ds_status dsi_zero_publish(dsi_zero *z)
{
    if (!dsi_live(z, "zero_publish")) return dsi_null_argument("zero_publish");
    ds_scope *scope = ds_scope_open();
    ds_status status = z->zero3 ? dsi_zero3_wait_gathers(z->zero3) : DS_OK;
    if (status == DS_OK) status = dsi_zero_host_wait(z);
    if (status == DS_OK) status = dsi_split_store(z->split);
    for (int i = 0; status == DS_OK && (z->masters || z->offload) && i < z->flat->n; i++) {
        if (z->shard[i]) status = dsi_zero_copy_master(z, i);
        if (status == DS_OK && z->offload) status = dsi_offload_store(z->offload, i);
    }
    if (status == DS_OK) status = params_publish(z);
    ds_scope_close(scope);
    return dsi_comm_all_or_none(z->comm, status);
}

ds_status dsi_zero_assemble(dsi_zero *z, int k, ds_tensor *whole)
{
    const dsi_flat_unit *u = &z->flat->unit[z->flat->param[k].unit];
    ds_status status = DS_OK;
    for (int r = 0; status == DS_OK && z->unit_params && r < u->ranks; r++) {
        int64_t begin, end;
        dsi_flat_shard_range(z->flat, k, r, &begin, &end);
        if (begin < end) status = ds_broadcast(u->comm, dsi_flat_range(whole, begin, end), r);
    }
    return status;
}

/* Every rank's elements of parameter k of the layout, from where they are
 * updated. */
static ds_status param_assemble(dsi_zero *z, int k, ds_tensor *whole)
{
    bool materializes = (z->offload && !dsi_offload_in_memory(z->offload, k)) ||
                        (z->split && !dsi_split_in_memory(z->split, k));
    /* NULL: none of its elements, if it has any */
    ds_tensor *owned = dsi_flat_owned_in(z->flat, k, whole);
    ds_status status = owned && z->shard[k] ? dsi_copy(owned, z->shard[k]) : DS_OK;
    if (materializes) dsi_zero_release(z, z->flat->param[k].index, false);
    return status == DS_OK ? dsi_zero_assemble(z, k, whole) : status;
}

ds_tensor *dsi_zero_whole(dsi_zero *z, int i)
{
    ds_tensor *x = z ? ds_module_param_at(z->model, i, NULL) : NULL;
    if (!x) return dsi_refuse("zero: there is no parameter %d", i);
    int k = dsi_zero_find(z, i);
    ds_tensor *whole = dsi_new_dtype(x, DS_F32, x->shape);
    ds_status status = !whole  ? ds_error_status()
                       : k < 0 ? dsi_copy(whole, x)
                               : param_assemble(z, k, whole);
    return dsi_comm_all_or_none(z->comm, status) == DS_OK ? whole : NULL;
}

/* ---- what it takes ------------------------------------------------------------------------------------- */

dsi_zero_bytes dsi_zero_memory(const dsi_zero *z)
{
    dsi_zero_bytes bytes = {0};
    if (!z) return bytes;
    for (int i = 0; i < z->flat->n; i++)
        if (!dsi_zero3_has_unit(z->zero3, z->flat->param[i].unit))
            bytes.parameters += z->flat->param[i].n * (int64_t)ds_dtype_size(z->o.dtype);
    if (z->zero3) {
        bytes.parameters += dsi_zero3_memory_bytes(z->zero3);
        bytes.file = dsi_zero3_disk_bytes(z->zero3);
    }
    bytes.gradients = z->comm ? dsi_reduce_bytes(z->reduce) : bytes.parameters;
    if (z->offload) {
        bytes.optimizer = dsi_offload_memory(z->offload);
        bytes.file += dsi_offload_file(z->offload);
        return bytes;
    }
    if (z->masters) bytes.optimizer += z->flat->owned * (int64_t)sizeof(float);
    if (z->split) bytes.optimizer += dsi_split_bytes(z->split);
    ds_state *moments = ds_optim_state(z->optim);
    for (int i = 0; i < ds_state_len(moments); i++) {
        const ds_tensor *x = ds_state_at(moments, i);
        bytes.optimizer += ds_numel(x) * (int64_t)ds_dtype_size(ds_dtype_of(x));
    }
    ds_state_free(moments);
    return bytes;
}
