/* device/cuda/launch_route.c: route, topk and noise of kernels.h.
 *
 * route is two launches. In the first a warp chooses the experts of a token; in
 * the second a block counts, selects and numbers the routes of an expert.
 * Between them is `to`, the routes in the order in which places are given: 4
 * bytes each, which each block of the second reads whole (twice; where an
 * expert is full and its tokens are selected, some times more: a radix select
 * of 8 bits at a time).
 *
 * Invariants: no block reads what another one of the same launch writes.
 * fresh_seed is in device memory: a captured kernel would otherwise draw the
 * same numbers at each replay.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/int.h"
#include "kernels/route.h"
#include "launch.h"
#include "operands.h"

enum { MOST_BLOCKS = 8192, WARPS = 8 }; /* where a warp takes a row */

_Static_assert((int)K_ROUTE_EXPERTS == (int)DSI_ROUTE_EXPERTS, "experts");
_Static_assert((int)K_DROP_LAST == (int)DSI_DROP_LAST && (int)K_DROP_LEAST == (int)DSI_DROP_LEAST &&
                   (int)K_DROP_RANDOM == (int)DSI_DROP_RANDOM,
               "dsi_drop");

static dsi_cuda_route_args route_args(const dsi_route *c, const dsi_view *score,
                                      const dsi_view *second, const dsi_view *expert)
{
    dsi_cuda_route_args a = {.score = score->p,
                             .second = second->p ? second->p : score->p,
                             .tokens = score->d[0],
                             .capacity = c->capacity,
                             .rows = c->rows,
                             .experts = (int)score->d[1],
                             .k = (int)expert->d[1],
                             .drop = (int)c->drop,
                             .by_choice = c->by_choice};
    if (c->random) {
        a.seed = c->random->seed, a.offset = c->random->offset;
        a.fresh_seed = (const unsigned long long *)c->random->fresh_seed;
    }
    return a;
}

/* A warp a token, 8 of them a block; then a block an expert. */
static ds_status route_launch(dsi_stream *s, const dsi_cuda_route_args *a)
{
    int64_t blocks = dsi_min(dsi_div_up(a->tokens, WARPS), MOST_BLOCKS);
    ds_status status = dsi_cuda_launch(s, DSI_CUDA_route, "route_choose", "",
                                       dsi_cuda_blocks(blocks, 32 * WARPS), a);
    if (status != DS_OK) return status;
    return dsi_cuda_launch(s, DSI_CUDA_route, "route_place", "",
                           dsi_cuda_blocks(a->experts, K_ROUTE_THREADS), a);
}

ds_status dsi_cuda_route(dsi_stream *s, const dsi_route *c, dsi_view score, dsi_view second,
                         dsi_view used, dsi_view expert, dsi_view place, dsi_view slot,
                         dsi_view counts)
{
    dsi_cuda_route_args a = route_args(c, &score, &second, &expert);
    if (a.experts > K_ROUTE_EXPERTS || a.tokens * a.k >= INT32_MAX - K_ROUTE_THREADS * 4)
        return dsi_fail(DS_EINVAL,
                        "route: %lld tokens, %d choices of %d experts: expected fewer than 2^31 "
                        "choices, and at most %d experts",
                        (long long)a.tokens, a.k, a.experts, K_ROUTE_EXPERTS);
    a.used = used.p, a.expert = expert.p, a.place = place.p, a.slot = slot.p, a.counts = counts.p;
    size_t bytes = (size_t)(a.tokens * a.k) * sizeof *a.to;
    a.to = dsi_cuda_scratch(s, bytes);
    if (!a.to) return DS_ENOMEM;
    ds_status status = route_launch(s, &a);
    dsi_cuda_scratch_free(s, a.to, bytes);
    return status;
}

ds_status dsi_cuda_topk(dsi_stream *s, dsi_view x, dsi_view index)
{
    dsi_cuda_topk_args a = {x.p, index.p, x.d[0], (int)x.d[1], (int)index.d[1], (int)x.dtype};
    return dsi_cuda_launch(
        s, DSI_CUDA_route, "topk", "",
        dsi_cuda_blocks(dsi_min(dsi_div_up(a.rows, WARPS), MOST_BLOCKS), 32 * WARPS), &a);
}

ds_status dsi_cuda_noise(dsi_stream *s, const dsi_philox *random, bool gumbel, double low,
                         double high, dsi_view y)
{
    dsi_cuda_noise_args a = {.y = y.p,
                             .count = dsi_cuda_elements_in(&y),
                             .gumbel = gumbel,
                             .low = (float)low,
                             .high = (float)high,
                             .seed = random->seed,
                             .offset = random->offset,
                             .fresh_seed = (const unsigned long long *)random->fresh_seed};
    return dsi_cuda_launch(s, DSI_CUDA_route, "noise", "", dsi_cuda_grid_of((a.count + 3) / 4), &a);
}
