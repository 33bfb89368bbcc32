/* parallel/zero_param.c: the gradient, float32 value and moments of one
 * parameter, for programs that look at them or change them.
 *
 * Invariants: index is that of ds_module_param_at. All functions are collective
 * among the ranks that have the parameter. After a gradient was written, what
 * was made of it on the way is made again: squares of the norm, copies on the
 * host.
 * SPDX-License-Identifier: MIT */
#include "zero_state.h"

#include "comm/sync_status.h"

/* This rank's elements of parameter k of the layout; NULL: none, or not made
 * yet. */
static ds_tensor *part_of(const dsi_zero *z, int k, int part)
{
    if (!z->shard[k]) return NULL;
    if (part == DSI_ZERO_GRAD) return dsi_zero_shard_grad(z, k);
    if (part == DSI_ZERO_MASTER) return z->shard[k];
    return z->optim->params[z->flat->param[k].index].moment[part];
}

/* Whether reading it brings something to memory that leaves again. */
static bool part_leaves(const dsi_zero *z, int k, int part)
{
    if (part == DSI_ZERO_GRAD) return false;
    return (z->offload && !dsi_offload_in_memory(z->offload, k)) ||
           (z->split && part == DSI_ZERO_MASTER && !dsi_split_in_memory(z->split, k));
}

/* to = from, which may be on another device and of another dtype. */
static ds_status part_copy(ds_tensor *to, ds_tensor *from)
{
    if (!to || !from) return ds_error() ? ds_error_status() : DS_OK;
    from = ds_to(ds_reshape(ds_detach(from), to->shape), dsi_device_id(to->device), to->dtype);
    return from ? dsi_copy(to, from) : ds_error_status();
}

const char *dsi_zero_part_busy(const dsi_zero *z, int part)
{
    if (z->overlap_active)
        return "the update has begun during backward: set pipeline_read or pipeline_write to false";
    if (part != DSI_ZERO_GRAD && z->offload)
        return "the update reads the optimizer's file already: call it before ds_engine_backward "
               "or after ds_engine_step";
    return NULL;
}

bool dsi_zero_has_param(const dsi_zero *z, int index) { return dsi_zero_find(z, index) >= 0; }

int64_t dsi_zero_part_size(const dsi_zero *z, int index)
{
    const dsi_flat_param *p = &z->flat->param[dsi_zero_find(z, index)];
    return p->end - p->begin;
}

ds_tensor *dsi_zero_part(dsi_zero *z, int index, int part, bool local)
{
    int k = dsi_zero_find(z, index);
    const dsi_flat_param *p = &z->flat->param[k];
    ds_tensor *x = dsi_new_dtype(p->x, DS_F32, local ? ds_shape(p->end - p->begin) : p->x->shape);
    ds_status status = x && dsi_fill(x, 0) ? DS_OK : ds_error_status();
    if (status == DS_OK && z->reduce) status = dsi_reduce_wait(z->reduce);
    bool leaves = part_leaves(z, k, part);
    if (status == DS_OK)
        status = part_copy(local ? x : dsi_flat_owned_in(z->flat, k, x), part_of(z, k, part));
    if (leaves) dsi_zero_release(z, index, false);
    if (status == DS_OK && !local) status = dsi_zero_assemble(z, k, x);
    return dsi_comm_all_or_none(z->comm, status) == DS_OK ? x : NULL;
}

static ds_status part_write(dsi_zero *z, int k, int part, ds_tensor *value)
{
    ds_status status = part == DSI_ZERO_GRAD ? dsi_zero_make_grad(z, k) : DS_OK;
    if (part >= 0 && z->shard[k] && status == DS_OK)
        status = dsi_optim_make_moments(z->optim, &z->optim->params[z->flat->param[k].index]);
    if (status == DS_OK) status = part_copy(part_of(z, k, part), value);
    if (part != DSI_ZERO_GRAD) {
        ds_status stored = dsi_zero_release(z, z->flat->param[k].index, true);
        return status == DS_OK ? stored : status;
    }
    if (z->reduce) dsi_reduce_forget_squares(z->reduce, k);
    dsi_zero_host_grads_drop(z);
    return status;
}

ds_status dsi_zero_set_part(dsi_zero *z, int index, int part, ds_tensor *value, bool local)
{
    int k = dsi_zero_find(z, index);
    ds_status status = z->reduce ? dsi_reduce_wait(z->reduce) : DS_OK;
    if (status == DS_OK && part == DSI_ZERO_MASTER && z->zero3)
        status = dsi_zero3_wait_gathers(z->zero3);
    ds_tensor *own = local ? value : dsi_flat_owned_in(z->flat, k, ds_contiguous(value));
    if (status == DS_OK) status = part_write(z, k, part, own);
    status = dsi_comm_all_or_none(z->comm, status);
    return status == DS_OK && part == DSI_ZERO_MASTER ? dsi_zero_publish(z) : status;
}
