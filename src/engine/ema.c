/* engine/ema.c: an exponential moving average of an engine's parameters.
 * parallel/ema.c keeps it; this rank's part of each parameter is ZeRO's.
 * SPDX-License-Identifier: MIT */
#include "engine.h"

static ds_tensor *ema_zero_shard(void *zero, int i) { return dsi_zero_shard(zero, i); }
static ds_status ema_zero_publish(void *zero) { return dsi_zero_publish(zero); }

static ds_status ema_zero_release(void *zero, int i, bool changed)
{
    return dsi_zero_release(zero, i, changed);
}

ds_status ds_engine_use_ema(ds_engine *e, double decay)
{
    if (!dsi_live(e, "engine_use_ema")) return dsi_null_argument("engine_use_ema");
    if (e->ema) return dsi_fail(DS_ESTATE, "engine_use_ema: there are averages already");
    dsi_ema_shards parts = {e->zero, ema_zero_shard, ema_zero_publish, ema_zero_release};
    e->ema = dsi_ema_new(e->model, decay, e->zero ? &parts : NULL);
    return e->ema ? DS_OK : ds_error_status();
}

ds_status ds_engine_swap_ema(ds_engine *e)
{
    if (!dsi_live(e, "engine_swap_ema")) return dsi_null_argument("engine_swap_ema");
    if (!e->ema)
        return dsi_fail(DS_ESTATE, "engine_swap_ema: there are no averages: call ds_engine_use_ema "
                                   "before training");
    return dsi_ema_swap(e->ema);
}
