/* optim/sgd.c: stochastic gradient descent: torch.optim.SGD.
 * SPDX-License-Identifier: MIT */
#include "optim.h"

static ds_status step(void *self, const ds_optim_values *v, const ds_optim_update *x, int n)
{
    dsi_sgd c = *(const dsi_sgd *)self;
    c.lr = v->lr, c.momentum = v->momentum, c.weight_decay = v->weight_decay;
    return dsi_optim_run(&(dsi_optimizer){.rule = DSI_SGD, .sgd = c}, x, n);
}

static bool uses(const void *self, const ds_optim_values *v, int i)
{
    (void)self, (void)i;
    return v->momentum != 0;
}

static const ds_optim_option options[] = {
    {"dampening", DS_OPTION_DOUBLE, offsetof(dsi_sgd, dampening)},
    {"nesterov", DS_OPTION_BOOL, offsetof(dsi_sgd, nesterov)},
    {"maximize", DS_OPTION_BOOL, offsetof(dsi_sgd, maximize)},
    {"foreach", DS_OPTION_NONE, 0},
    {"differentiable", DS_OPTION_FALSE, 0},
    {"fused", DS_OPTION_NONE, 0},
    {0}};

ds_optim *ds_optim_sgd_with(ds_module *model, ds_sgd_opts o)
{
    static const ds_optim_type type = {.name = "sgd",
                                       .self_size = sizeof(dsi_sgd),
                                       .moment = {"momentum_buffer"},
                                       .step_n = step,
                                       .uses = uses,
                                       .has_momentum = true,
                                       .mixed = true,
                                       .options = options,
                                       .no_step = true};
    if (!dsi_optim_not_negative("sgd", "lr", o.lr) ||
        !dsi_optim_not_negative("sgd", "momentum", o.momentum) ||
        !dsi_optim_not_negative("sgd", "weight_decay", o.weight_decay))
        return NULL;
    if (o.nesterov && (o.momentum == 0 || o.dampening != 0))
        return dsi_refuse("sgd: nesterov needs a momentum and no dampening, but they are %g and %g",
                          o.momentum, o.dampening);
    ds_optim_values v = {.lr = o.lr, .weight_decay = o.weight_decay, .momentum = o.momentum};
    dsi_sgd self = {.dampening = o.dampening, .nesterov = o.nesterov, .maximize = o.maximize};
    return dsi_optim_with(model, &type, v, &self);
}
