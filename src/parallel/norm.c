/* parallel/norm.c: Note [Norm] of norm.h.
 * SPDX-License-Identifier: MIT */
#include "norm.h"

#include "comm/comm.h"
#include "flat.h"

#include <deepspeed/autograd.h>

#include <math.h>

dsi_view dsi_norm_line(ds_tensor *g)
{
    dsi_view v = dsi_v(g && !dsi_is_dense(g) ? ds_contiguous(ds_detach(g)) : g);
    v.n = 1;
    v.d[0] = ds_numel(g);
    v.s[0] = 1;
    return v;
}

ds_status dsi_norm_of(const ds_tensor *x, int n, const dsi_view *lines, double *norm)
{
    *norm = 0;
    return n == 0 || dsi_run(x, norm, 2.0, n, lines, norm) ? DS_OK : ds_error_status();
}

ds_status dsi_norm_over(ds_comm *comm, ds_tensor *room, double squares, double *norm)
{
    int ranks = dsi_comm_size(comm);
    double *sums = ds_data_mut(room), total = 0;
    sums[ranks] = squares;
    if (ds_all_gather(comm, dsi_flat_range(room, 0, ranks),
                      dsi_flat_range(room, ranks, ranks + 1)) != DS_OK)
        return ds_error_status();
    for (int r = 0; r < ranks; r++) total += sums[r];
    *norm = sqrt(total);
    return DS_OK;
}
