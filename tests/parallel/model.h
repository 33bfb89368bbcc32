/* tests/parallel/model.h: the net of net.h with AdamW under ZeRO, on each rank
 * of ds_world().
 * SPDX-License-Identifier: MIT */
#pragma once

#include "net.h"
#include "ranks.h"

#include "parallel/zero.h"

typedef struct Model {
    ds_module *net;
    ds_optim *optim;
    dsi_zero *z;
} Model;

static inline Model model_new(const dsi_zero_opts *o)
{
    Model m = {.net = net_new()};
    m.optim = ds_optim_adamw(m.net, 1e-2);
    m.z = dsi_zero_new(m.net, m.optim, ds_world(), o);
    return m;
}

static inline void model_free(Model *m)
{
    dsi_zero_free(m->z);
    ds_optim_free(m->optim);
    ds_module_free(m->net);
}
