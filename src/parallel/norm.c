/* parallel/norm.c: Note [Norm] of norm.h.
 * SPDX-License-Identifier: MIT */
#include "norm.h"

#include "flat.h"

#include <deepspeed/autograd.h>

#include <math.h>

#define PIECE 16384 /* elements of 16 bits that are widened at a time */

dsi_view dsi_norm_line(ds_tensor *g)
{
    dsi_view v = dsi_v(g && !dsi_is_dense(g) ? ds_contiguous(ds_detach(g)) : g);
    v.n = 1;
    v.d[0] = ds_numel(g);
    v.s[0] = 1;
    return v;
}

/* Adds the squares of a 16-bit line, widened piece by piece where the first caches hold it. */
static ds_status add_squares(const dsi_view *line, ds_tensor *room, double *sum)
{
    int64_t most = dsi_numel(room->shape), n = line->d[0];
    for (int64_t at = 0; at < n; at += most) {
        dsi_view from = *line, to = dsi_v(room);
        from.p = (char *)line->p + at * (int64_t)ds_dtype_size(line->dtype);
        from.d[0] = to.d[0] = n - at < most ? n - at : most;
        double norm = 0;
        if (!dsi_run(room, copy, from, to) || !dsi_run(room, norm, 2.0, 1, &to, &norm))
            return ds_error_status();
        *sum += norm * norm;
    }
    return DS_OK;
}

ds_status dsi_norm_of(const ds_tensor *x, int n, const dsi_view *lines, double *norm)
{
    double sum = 0;
    *norm = 0;
    if (n == 0) return DS_OK;
    if (lines[0].dtype == DS_F32)
        return dsi_run(x, norm, 2.0, n, lines, norm) ? DS_OK : ds_error_status();
    ds_tensor *room = dsi_new_on(x->device, DS_F32, ds_shape(PIECE));
    for (int i = 0; i < n; i++)
        if (!room || add_squares(&lines[i], room, &sum) != DS_OK) return ds_error_status();
    *norm = sqrt(sum);
    return DS_OK;
}

ds_status dsi_norm_over(ds_comm *comm, ds_tensor *room, double *norm)
{
    int ranks = ds_comm_size(comm);
    double *sums = ds_data_mut(room), total = 0;
    sums[ranks] = *norm * *norm;
    if (ds_all_gather(comm, dsi_flat_range(room, 0, ranks),
                      dsi_flat_range(room, ranks, ranks + 1)) != DS_OK)
        return ds_error_status();
    for (int r = 0; r < ranks; r++) total += sums[r];
    *norm = sqrt(total);
    return DS_OK;
}
