/* parallel/ema.h: the exponential moving average of a module's parameters, for
 * evaluation.
 *
 *     after each step   dsi_ema_update(e);
 *     around testing    dsi_ema_swap(e);  accuracy(net);  dsi_ema_swap(e);
 *
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/nn.h>

typedef struct dsi_ema dsi_ema;

/* For a trainer that keeps the trained values apart from the module
 * (dsi_zero_shard, dsi_zero_publish): then float32 master weights are averaged,
 * and each rank averages its shards. i counts as in ds_module_param_at. */
typedef struct dsi_ema_shards {
    void *arg;
    ds_tensor *(*shard)(
        void *arg,
        int i); /* the trained values of parameter i, borrowed, always of one size; NULL: none on this rank */
    ds_status (*publish)(void *arg); /* writes changed shards to the module; collective */
    /* optional: ends the use of what shard has given; changed: it was written */
    ds_status (*release)(void *arg, int i, bool changed);
} dsi_ema_shards;

/* Averages in float32 (float64 for float64); they begin with the present
 * values. decay: 0 is 0.999. shards NULL: the parameters themselves. The module
 * is
 * borrowed. */
dsi_ema *dsi_ema_new(ds_module *model, double decay, const dsi_ema_shards *shards);
void dsi_ema_free(dsi_ema *e); /* while swapped, the trained values are lost */

/* average = decay average + (1 - decay) parameter; the first time, average =
 * parameter. */
ds_status dsi_ema_update(dsi_ema *e);

/* Exchanges averages and trained values; the second call restores the trained
 * values bit for bit. In between their memory is needed twice, and no step may
 * be made. Collective: all ranks call it. */
ds_status dsi_ema_swap(dsi_ema *e);
bool dsi_ema_swapped(const dsi_ema *e);

/* For checkpoints: the average of this rank's shard of parameter i (borrowed;
 * NULL: none), the number of updates, and setting it after the averages were
 * loaded. */
ds_tensor *dsi_ema_average(const dsi_ema *e, int i);
int64_t dsi_ema_updates(const dsi_ema *e);
double dsi_ema_decay(const dsi_ema *e);
void dsi_ema_set_updates(dsi_ema *e, int64_t updates);
