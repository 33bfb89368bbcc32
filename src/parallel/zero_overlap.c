/* parallel/zero_overlap.c: the optimizer's pass over its file begins while
 * backward runs.
 *
 * A block of masters and moments is updated as soon as the gradients of its
 * parameters are complete: they complete in the order of the blocks (flat.h).
 * So the disk works while backward computes, and the step updates what is left.
 * The values are those of a pass after backward, bit for bit: an update needs
 * nothing but its own gradients if they are neither clipped nor searched for
 * overflow.
 *
 * It is done in stage 3 with parameters and optimizer state in files: a
 * parameter's elements are then written to its file, not to memory that
 * backward may still read. It happens between two nodes of the graph
 * (dsi_zero3_set_after_use), so that no node sees a new value.
 *
 * Elsewhere, and where gradients are clipped, the first blocks are read during
 * backward, so that the step finds its buffers full: after each gradient, files
 * go on.
 *
 * Invariant: between the begin of the last backward pass and the step,
 * z->overlap_active is true; parameters that were updated have their gradients
 * until the step ends, for the norm.
 * SPDX-License-Identifier: MIT */
#include "zero_state.h"

#include "autograd/node.h"
#include "base/trace.h"

/* Whether the gradient of parameter i is complete; then the optimizer gets
 * it. */
static bool grad_is_final(void *arg, int i)
{
    dsi_zero *z = arg;
    if (!z->shard[i]) return true;
    if (!dsi_reduce_is_final(z->reduce, i)) return false;
    ds_tensor *g = dsi_reduce_grad(z->reduce, i);
    if (!g || !dsi_acquire(g)) return false;
    return g == ds_grad(z->shard[i]) || ds_set_grad_of(z->shard[i], g) == DS_OK;
}

static void update_some(void *arg)
{
    dsi_zero *z = arg;
    if (z->overlap_status != DS_OK) return;
    ds_scope *scope = ds_scope_open();
    bool was = ds_set_grad(false);
    dsi_trace_begin("optimizer in backward");
    z->overlap_status = dsi_offload_advance(z->offload, 1, dsi_zero_model(z), grad_is_final, z);
    dsi_trace_end();
    ds_set_grad(was);
    ds_scope_close(scope);
}

/* Rules that need whole parameters which stage 3 has cut wait for the step. */
ds_status dsi_zero_overlap_begin(dsi_zero *z)
{
    if (!z->offload) return DS_OK;
    bool can = z->o.overlap_update && z->zero3 && !z->o.deterministic && z->o.dtype != DS_F16 &&
               z->flat->param[0].x->device->type->kind == DS_CPU &&
               !dsi_optim_needs_whole(z->optim);
    if (!can || !dsi_reduce_finishes_early(z->reduce)) return dsi_offload_read_ahead(z->offload);
    z->overlap_active = true;
    z->overlap_status = dsi_offload_begin(z->offload);
    dsi_zero3_set_after_use(z->zero3, update_some, z);
    return z->overlap_status;
}

void dsi_zero_overlap_continue(void *zero, ds_tensor *x)
{
    dsi_zero *z = zero;
    dsi_zero_host_grads_ahead(z, x);
    if (z->offload) dsi_offload_continue(z->offload);
}

void dsi_zero_overlap_hook(dsi_zero *z, bool on)
{
    bool hooks = (z->offload || z->outgoing_grads) && !z->reduce;
    for (int i = 0; hooks && i < z->flat->n; i++)
        dsi_set_grad_ready_hook(z->flat->param[i].x, on ? dsi_zero_overlap_continue : NULL, z);
}

ds_status dsi_zero_overlap_pause(dsi_zero *z)
{
    if (z->overlap_active) dsi_zero3_set_after_use(z->zero3, NULL, NULL);
    return z->overlap_active ? z->overlap_status : DS_OK;
}

bool dsi_zero_overlap_end(dsi_zero *z)
{
    bool was = z->overlap_active;
    z->overlap_active = false;
    return was;
}
