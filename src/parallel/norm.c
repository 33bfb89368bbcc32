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
                                dsi_v(dsi_flat_range(buffer, 0, ranks)));
}

ds_status dsi_norm_take(dsi_request *sent, ds_tensor *buffer, double *norm)
{
    const double *sums = ds_data(buffer);
    double total = 0;
    if (dsi_request_wait(sent) != DS_OK) return ds_error_status();
    for (int64_t r = 0; r < ds_numel(buffer) - 1; r++) total += sums[r];
    *norm = sqrt(total);
    return DS_OK;
}
