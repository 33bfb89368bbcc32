/* ops/route.c: see route.h.
 *
 * Random numbers are the device's: their seed is one draw of the host's
 * generator, as for dropout (dropout.c), so that ds_seed repeats them, and a
 * recorded step draws new ones at each replay.
 * SPDX-License-Identifier: MIT */
#include "route.h"

#include "op.h"

bool dsi_can_route(const ds_tensor *x, int k, int experts)
{
    return x && dsi_fusion(x->device, route) && dsi_fusion(x->device, noise) &&
           experts <= DSI_ROUTE_EXPERTS && x->shape.d[0] * k <= INT32_MAX / 2;
}

bool dsi_route_tokens(dsi_route c, int k, ds_tensor *score, ds_tensor *second, ds_tensor *used,
                      dsi_routed *out)
{
    if (!(score = ds_contiguous(score)) || (second && !(second = ds_contiguous(second))))
        return false;
    if ((used && !(used = ds_contiguous(used))) || !dsi_acquire(score, second, used)) return false;
    ds_dims routes = ds_shape(score->shape.d[0], k);
    dsi_philox random;
    if (c.drop == DSI_DROP_RANDOM && !dsi_seed_take(score->device, &random)) return false;
    c.random = c.drop == DSI_DROP_RANDOM ? &random : NULL;
    *out = (dsi_routed){dsi_new_dtype(score, DS_I64, routes), dsi_new_dtype(score, DS_I64, routes),
                        dsi_new_dtype(score, DS_I64, routes),
                        dsi_new_dtype(score, DS_I64, ds_shape(3, score->shape.d[1]))};
    if (!out->expert || !out->place || !out->slot || !out->counts) return false;
    return dsi_run_fusion(score, route, &c, dsi_v(score), dsi_v(second), dsi_v(used),
                          dsi_v(out->expert), dsi_v(out->place), dsi_v(out->slot),
                          dsi_v(out->counts));
}

ds_tensor *dsi_noise_like(const ds_tensor *x, bool gumbel, double low, double high)
{
    ds_tensor *y = dsi_new_dtype(x, DS_F32, x->shape);
    dsi_philox random;
    bool done = y && dsi_seed_take(y->device, &random) &&
                dsi_run_fusion(y, noise, &random, gumbel, low, high, dsi_v(y));
    return dsi_result_if(done, y);
}
