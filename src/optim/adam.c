/* optim/adam.c: Adam and AdamW: torch.optim's, and DeepSpeed's FusedAdam and CPUAdam, which are AdamW.
 * SPDX-License-Identifier: MIT */
#include "optim.h"

static ds_status run(const ds_tensor *p, const dsi_optim_options *o, int n, const dsi_span *x)
{
    return dsi_run(p, adam, &o->adam, n, x) ? DS_OK : ds_error_status();
}

static ds_optim *make(const char *name, ds_module *model, ds_adam_opts o, bool decoupled)
{
    o.beta1 = dsi_optim_default(o.beta1, 0.9);
    o.beta2 = dsi_optim_default(o.beta2, 0.999);
    o.eps = dsi_optim_default(o.eps, 1e-8);
    if (!dsi_optim_not_negative(name, "lr", o.lr) || !dsi_optim_not_negative(name, "eps", o.eps) ||
        !dsi_optim_not_negative(name, "weight_decay", o.weight_decay) ||
        !dsi_optim_is_beta(name, "beta1", o.beta1) || !dsi_optim_is_beta(name, "beta2", o.beta2))
        return NULL;
    dsi_optim_rule rule = {.name = name,
                           .run = run,
                           .moment = {"exp_avg", "exp_avg_sq", o.amsgrad ? "max_exp_avg_sq" : NULL},
                           .options.adam = {o.lr, o.beta1, o.beta2, o.eps, o.weight_decay,
                                            decoupled, o.amsgrad, o.maximize,
                                            !o.no_bias_correction}};
    return dsi_optim_new(model, &rule);
}

ds_optim *ds_optim_adam_with(ds_module *model, ds_adam_opts opts)
{
    return make("adam", model, opts, false);
}

ds_optim *ds_optim_adamw_with(ds_module *model, ds_adam_opts opts)
{
    return make("adamw", model, opts, true);
}
