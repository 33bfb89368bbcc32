/* ops/route.c: see route.h.
 *
 * Random numbers are the device's: their seed is one draw of the host's
 * generator, as for dropout (dropout.c), so that ds_seed repeats them, and a
 * recorded step draws new ones at each replay.
 *
 * Note [Equal rows] How many rows an expert has is known to the host: its
 * capacity, which depends on the number of tokens of a batch. Ranks with other
 * numbers have other capacities, so their hosts agree on the largest in each
 * call. A replay agrees too, before it is launched, once for each call of the
 * captured step. If that gives another number on any rank the step's function
 * runs on all of them; it does not agree again.
 * SPDX-License-Identifier: MIT */
#include "route.h"

#include "op.h"

#include "base/mem.h"
#include "comm/comm.h"
#include "device/graph.h"

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

ds_tensor *dsi_uniform_like(const ds_tensor *x, ds_dtype dtype, double low, double high)
{
    if (!x) return dsi_null_operand("uniform_like");
    if (dsi_fusion(x->device, noise)) return ds_cast(dsi_noise_like(x, false, low, high), dtype);
    return dsi_fill_uniform("uniform_like", dsi_new_dtype(x, dtype, x->shape), low, high);
}

/* ---- Note [Equal rows] -------------------------------------------------------------------------------- */

/* A call in a captured step. */
typedef struct Agreed {
    dsi_row_agreement *a;
    int64_t mine, rows;
} Agreed;

static int64_t rows_exchange(const dsi_row_agreement *a, int64_t rows)
{
    ds_status status = dsi_request_run(
        &(dsi_request){DSI_NUMBERS(a->comm, DSI_ALL_REDUCE, DS_I64, &rows, &rows, 1),
                       .op = DS_REDUCE_MAX, .internal = true});
    return status == DS_OK ? rows : 0;
}

static bool agreed_agrees(void *arg)
{
    const Agreed *x = arg;
    int64_t rows = rows_exchange(x->a, x->mine);
    dsi_list_add(&x->a->agreed, rows);
    return rows == x->rows;
}

static void agreed_forget(dsi_row_agreement *a) { a->next = a->agreed.n = 0; }

/* The step is replayed: its function takes none. */
static void agreed_before(void *arg) { agreed_forget(((const Agreed *)arg)->a); }

static void agreed_release(void *arg) { dsi_free(arg); }

int64_t dsi_agree_on_rows(dsi_row_agreement *a, dsi_device *d, int64_t rows)
{
    static const dsi_graph_hook hook = {
        .agrees = agreed_agrees, .before = agreed_before, .release = agreed_release};
    int64_t most = 0;
    if (a->next < a->agreed.n)
        most = a->agreed.at[a->next++];
    else
        most = rows_exchange(a, rows);
    if (a->next == a->agreed.n) agreed_forget(a);
    if (!most || !dsi_graph_capturing(d)) return most;
    Agreed *x = dsi_alloc(sizeof *x);
    *x = (Agreed){a, rows, most};
    dsi_graph_add_hook(d, &hook, x);
    return most;
}
