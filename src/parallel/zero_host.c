/* parallel/zero_host.c: ZeRO where the optimizer, or the model's own shards,
 * are in the host's memory and the model on a GPU.
 *
 *     gradients    GPU -> `host_grads`: those that are complete are queued while
 *                  backward runs, the others by the step; one wait, then the
 *                  optimizer
 *     parameters   the optimizer's kernel writes 16 bits to `outgoing_params`, or
 *                  float32 to the masters, from where they are queued to the GPU;
 *                  the next forward is behind them on the GPU, and the host waits
 *                  for none
 *
 * Invariants: outgoing_params[i] is NULL where the optimizer and the model's
 * elements of parameter i are on one device. Copies from it have ended before
 * it is written again: the optimizer waits for gradients, which were queued
 * behind it, and other writers call dsi_zero_host_wait.
 * SPDX-License-Identifier: MIT */
#include "base/int.h"
#include "base/mem.h"
#include "zero_state.h"

static bool on_gpu(const ds_tensor *x) { return x && x->device->type->kind != DS_CPU; }

ds_status dsi_zero_host_open(dsi_zero *z)
{
    const ds_tensor *x = z->flat->param[0].x;
    if (!on_gpu(x)) return DS_OK;
    z->o.offload_optimizer |= z->o.files.nvme_path != NULL; /* by way of the host's memory */
    z->o.offload_param |= z->o.param_files.nvme_path != NULL;
    if (!z->o.offload_optimizer && !z->o.offload_param) return DS_OK;
    z->staging = dsi_staging_new(x->device);
    return z->staging ? DS_OK : ds_error_status();
}

void dsi_zero_host_close(dsi_zero *z)
{
    for (int i = 0; z->outgoing_params && i < z->flat->n; i++) dsi_unref(z->outgoing_params[i]);
    for (int i = 0; z->outgoing_grads && i < z->flat->n; i++) dsi_unref(z->outgoing_grads[i]);
    dsi_unref(z->host_grads);
    dsi_free(z->outgoing_params);
    dsi_free(z->outgoing_grads);
    dsi_staging_free(z->staging);
}

ds_status dsi_zero_host_wait(dsi_zero *z)
{
    return z->staging ? dsi_staging_wait(z->staging) : DS_OK;
}

/* ---- parameters ------------------------------------------------------------------------------------------ */

/* Whether the optimizer's results for parameter i must cross to the GPU. */
static bool crosses_to_gpu(const dsi_zero *z, int i)
{
    return z->staging && z->o.offload_optimizer && on_gpu(dsi_zero_model_shard(z, i));
}

/* Elements between the begins of two parameters in the memory of
 * outgoing_params. */
static int64_t outgoing_room(const ds_tensor *x)
{
    return dsi_round_up(dsi_numel(x->shape), DSI_FLAT_ALIGN);
}

ds_status dsi_zero_host_prepare(dsi_zero *z)
{
    const dsi_flat *f = z->flat;
    bool masters = z->masters && z->o.dtype == DS_F32;
    int64_t n = 0, at = 0;
    if (!z->staging) return DS_OK;
    z->outgoing_params = dsi_alloc((size_t)f->n * sizeof *z->outgoing_params);
    if (z->o.offload_optimizer)
        z->outgoing_grads = dsi_alloc((size_t)f->n * sizeof *z->outgoing_grads);
    for (int i = 0; i < f->n; i++)
        if (crosses_to_gpu(z, i)) n += outgoing_room(dsi_zero_model_shard(z, i));
    ds_tensor *all = masters || !n ? NULL : dsi_staging_memory(z->staging, z->o.dtype, n);
    ds_status status = masters || !n || all ? DS_OK : ds_error_status();
    for (int i = 0; status == DS_OK && i < f->n; i++) {
        if (!crosses_to_gpu(z, i)) continue;
        const ds_tensor *x = dsi_zero_model_shard(z, i);
        int64_t stride[DS_MAX_DIMS];
        dsi_row_major(x->shape, stride);
        z->outgoing_params[i] = dsi_ref(masters ? dsi_flat_in_owned(f, i, z->masters)
                                                : dsi_view_of(all, x->shape, stride, at));
        at += outgoing_room(x);
        status = dsi_staging_copy(z->staging, z->outgoing_params[i], x, NULL);
    }
    return status == DS_OK ? dsi_zero_host_wait(z) : status;
}

ds_status dsi_zero_host_send_param(const dsi_zero *z, int i)
{
    return dsi_staging_copy(z->staging, dsi_zero_model_shard(z, i), z->outgoing_params[i], NULL);
}

ds_status dsi_zero_host_join_params(const dsi_zero *z)
{
    return z->staging ? dsi_staging_join(z->staging, NULL) : DS_OK;
}

/* ---- gradients ------------------------------------------------------------------------------------------- */

ds_tensor *dsi_zero_host_grad(dsi_zero *z, int i, ds_tensor *g)
{
    if (!z->host_grads || z->host_grads->dtype != g->dtype) {
        dsi_zero_host_grads_drop(z);
        dsi_unref(z->host_grads);
        z->host_grads = dsi_ref(dsi_staging_memory(z->staging, g->dtype, z->flat->owned));
        if (!z->host_grads) return NULL;
    }
    ds_tensor *to = dsi_flat_in_owned(z->flat, i, z->host_grads);
    if (z->outgoing_grads[i]) return to;
    if (!dsi_is_contiguous(g)) {
        ds_tensor *dense = dsi_new(g, g->shape);
        if (dsi_copy(dense, g) != DS_OK) return NULL;
        g = dense;
    }
    if (dsi_staging_copy(z->staging, to, g, NULL) != DS_OK) return NULL;
    z->outgoing_grads[i] = dsi_ref(g);
    return to;
}

/* Whether the last pass of a step has completed the gradient of parameter i. */
static bool grad_is_final(const dsi_zero *z, int i, const ds_tensor *x)
{
    return z->reduce ? dsi_reduce_is_final(z->reduce, i) : z->flat->param[i].x == x;
}

void dsi_zero_host_grads_ahead(dsi_zero *z, const ds_tensor *x)
{
    bool early = z->outgoing_grads && z->last_pass &&
                 (!z->reduce || dsi_reduce_finishes_early(z->reduce));
    int before = dsi_error_count();
    if (!early || ds_error()) return;
    ds_scope *scope = ds_scope_open();
    for (int i = 0; i < z->flat->n; i++) {
        if (z->outgoing_grads[i] || !z->shard[i] || !grad_is_final(z, i, x)) continue;
        ds_tensor *g = dsi_zero_shard_grad(z, i);
        if (g && dsi_is_contiguous(g) && g->device != z->shard[i]->device &&
            !dsi_zero_host_grad(z, i, g))
            dsi_error_forget(before);
    }
    ds_scope_close(scope);
}

void dsi_zero_host_grads_drop(dsi_zero *z)
{
    bool some = false;
    for (int i = 0; z->outgoing_grads && i < z->flat->n; i++) some |= z->outgoing_grads[i] != NULL;
    if (some) dsi_staging_join(z->staging, NULL);
    for (int i = 0; some && i < z->flat->n; i++) dsi_hold(&z->outgoing_grads[i], NULL);
}

ds_status dsi_zero_host_grads_wait(dsi_zero *z)
{
    if (!z->staging || !z->o.offload_optimizer) return DS_OK;
    ds_status status = dsi_staging_wait(z->staging);
    return status == DS_OK ? dsi_device_check(z->flat->param[0].x->device) : status;
}
