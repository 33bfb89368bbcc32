/* parallel/norm.c: Note [Norm] of norm.h.
 * SPDX-License-Identifier: MIT */
#include "norm.h"

#include "flat.h"

#include <deepspeed/autograd.h>

#include <math.h>

dsi_view dsi_norm_line(ds_tensor *g)
{
    if (!dsi_acquire(g)) g = NULL;
    dsi_view v = dsi_v(g && !dsi_is_dense(g) ? ds_contiguous(ds_detach(g)) : g);
    v.n = 1;
    v.d[0] = ds_numel(g);
    v.s[0] = 1;
    return v;
}

ds_status dsi_norm_of(const ds_tensor *x, int n, const dsi_view *lines, double *norm)
{
    *norm = 0;
    return n == 0 ? DS_OK : dsi_norm(x->device, 2, n, lines, norm);
}

dsi_request *dsi_norm_send(ds_comm *comm, ds_tensor *buffer, double squares)
{
    int64_t ranks = dsi_comm_size(comm);
    ((double *)ds_data_mut(buffer))[ranks] = squares;
    return dsi_all_gather_start(comm, buffer->device,
                                dsi_v(dsi_flat_range(buffer, ranks, ranks + 1)),
                                dsi_v(dsi_flat_range(buffer, 0, ranks)), "the norm of gradients");
}

/* [ranks] of the buffer. */
static dsi_view norm_of_ranks(const ds_tensor *buffer)
{
    return dsi_v(dsi_flat_range(buffer, 0, ds_numel(buffer) - 1));
}

dsi_request *dsi_norm_queue(ds_comm *comm, ds_tensor *buffer, int n, const dsi_view *lines)
{
    int64_t ranks = dsi_comm_size(comm);
    dsi_view own = dsi_v(dsi_flat_range(buffer, ranks, ranks + 1)), one = own;
    one.n = 0;
    bool done = n < 0    ? false
                : n == 0 ? dsi_run(buffer, fill, 0.0, own)
                         : dsi_run(buffer, norm, 2, n, lines, one);
    return done ? dsi_all_gather_start(comm, buffer->device, own, norm_of_ranks(buffer),
                                       "the norm of gradients")
                : NULL;
}

ds_status dsi_norm_total(dsi_request *sent, ds_tensor *buffer, dsi_view norm)
{
    dsi_view all = norm_of_ranks(buffer);
    if (dsi_request_wait(sent) != DS_OK) return ds_error_status();
    return dsi_run(buffer, norm, 2, 1, &all, norm) ? DS_OK : ds_error_status();
}

static ds_status norm_take_queued(dsi_request *sent, ds_tensor *buffer, double *norm)
{
    dsi_view all = norm_of_ranks(buffer);
    ds_status status = dsi_request_wait(sent);
    return status == DS_OK ? dsi_norm(buffer->device, 2, 1, &all, norm) : status;
}

ds_status dsi_norm_take(dsi_request *sent, ds_tensor *buffer, double *norm)
{
    if (buffer->device->type->kind != DS_CPU) return norm_take_queued(sent, buffer, norm);
    const double *sums = ds_data(buffer);
    double total = 0;
    if (dsi_request_wait(sent) != DS_OK) return ds_error_status();
    for (int64_t r = 0; r < ds_numel(buffer) - 1; r++) total += sums[r];
    *norm = sqrt(total);
    return DS_OK;
}
