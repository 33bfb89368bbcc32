/* ops/route.h: what a layer of experts needs of a device that routes tokens
 * itself (kernels.h: route, noise), and its tokens' way there and back.
 *
 * Contract: a call that returns NULL or false has set the message; no result
 * has a gradient but those of dispatch and combine.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"
#include "device/kernels.h"
#include "tensor/tensor.h"

#include <deepspeed/comm.h>

/* int64, on the device: expert, place, slot [S,k], counts [3,E]. */
typedef struct dsi_routed {
    ds_tensor *expert, *place, *slot, *counts;
} dsi_routed;

/* Whether x's device routes its rows to k of `experts` experts each. */
bool dsi_can_route(const ds_tensor *x, int k, int experts);

/* score float32 [S,E]; second NULL or the same; used NULL or int64 [S], all on
 * one device that can -> k choices of each token. c->random is ignored: it is
 * drawn here, for DSI_DROP_RANDOM. */
bool dsi_route_tokens(dsi_route c, int k, ds_tensor *score, ds_tensor *second, ds_tensor *used,
                      dsi_routed *out);

/* Ranks that share experts exchange equally many rows for each of them: the
 * most that one of them has places for. `agreed` are numbers that the replay of
 * a step has agreed on, from `next` on, which the step's function takes if the
 * replay does not hold. Freed by dsi_list_free(&agreed), after all graphs. */
typedef struct dsi_row_agreement {
    ds_comm *comm; /* borrowed */
    int next;
    struct {
        DSI_LIST(int64_t)
    } agreed;
} dsi_row_agreement;

/* The most of the ranks' `rows`, at least 1; 0 with the message. A collective
 * of the hosts, which no device waits for. While d captures, replays do it
 * too. */
int64_t dsi_agree_on_rows(dsi_row_agreement *a, dsi_device *d, int64_t rows);

/* float32, of x's shape, drawn on x's device, which can route; kernels.h:
 * noise. */
ds_tensor *dsi_noise_like(const ds_tensor *x, bool gumbel, double low, double high);

/* Of x's shape, uniform from low to high: in float32, then cast, by a device
 * that draws itself; else torch.empty_like(x, dtype).uniform_'s of the host. */
ds_tensor *dsi_uniform_like(const ds_tensor *x, ds_dtype dtype, double low, double high);

/* moe.c: ds_dispatch and ds_combine of slots that the library has made: that
 * none is outside or occurs twice is not looked at, which would read them on
 * the host. */
ds_tensor *dsi_dispatch_to(ds_tensor *x, ds_tensor *slots, int64_t rows);
ds_tensor *dsi_combine_from(ds_tensor *x, ds_tensor *slots, ds_tensor *weights);
