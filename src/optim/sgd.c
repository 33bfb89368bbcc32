/* optim/sgd.c: stochastic gradient descent: torch.optim.SGD.
 * SPDX-License-Identifier: MIT */
#include "optim.h"

static ds_status run(const ds_tensor *p, const dsi_optim_options *o, int n, const dsi_span *x)
{
    return dsi_run(p, sgd, &o->sgd, n, x) ? DS_OK : ds_error_status();
}

ds_optim *ds_optim_sgd_with(ds_module *model, ds_sgd_opts o)
{
    if (!dsi_optim_not_negative("sgd", "lr", o.lr) ||
        !dsi_optim_not_negative("sgd", "momentum", o.momentum) ||
        !dsi_optim_not_negative("sgd", "weight_decay", o.weight_decay))
        return NULL;
    if (o.nesterov && (o.momentum == 0 || o.dampening != 0))
        return dsi_refuse("sgd: nesterov needs a momentum and no dampening, but they are %g and %g",
                          o.momentum, o.dampening);
    dsi_optim_rule rule = {
        .name = "sgd",
        .run = run,
        .moment = {o.momentum != 0 ? "momentum_buffer" : NULL},
        .options.sgd = {o.lr, o.momentum, o.dampening, o.weight_decay, o.nesterov, o.maximize}};
    return dsi_optim_new(model, &rule);
}
