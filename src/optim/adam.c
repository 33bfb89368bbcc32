/* optim/adam.c: Adam and AdamW: torch.optim's, and DeepSpeed's FusedAdam and CPUAdam, which are AdamW.
 * SPDX-License-Identifier: MIT */
#include "optim.h"

static ds_status step(void *self, const ds_optim_values *v, const ds_optim_update *x, int n)
{
    dsi_adam c = *(const dsi_adam *)self;
    c.lr = v->lr, c.beta1 = v->betas[0], c.beta2 = v->betas[1], c.weight_decay = v->weight_decay;
    return dsi_optim_run(&(dsi_optimizer){.rule = DSI_ADAM, .adam = c}, x, n);
}

static bool uses(const void *self, const ds_optim_values *v, int i)
{
    (void)v;
    return i < 2 || ((const dsi_adam *)self)->amsgrad;
}

static const ds_optim_option options[] = {
    {"eps", DS_OPTION_DOUBLE, offsetof(dsi_adam, eps)},
    {"amsgrad", DS_OPTION_BOOL, offsetof(dsi_adam, amsgrad)},
    {"maximize", DS_OPTION_BOOL, offsetof(dsi_adam, maximize)},
    {"bias_correction", DS_OPTION_BOOL, offsetof(dsi_adam, bias_correction)}, /* DeepSpeed's */
    {"decoupled_weight_decay", DS_OPTION_BOOL, offsetof(dsi_adam, decoupled)},
    {"foreach", DS_OPTION_NONE, 0},
    {"capturable", DS_OPTION_FALSE, 0},
    {"differentiable", DS_OPTION_FALSE, 0},
    {"fused", DS_OPTION_NONE, 0},
    {0}};

#define ADAM_TYPE(called) \
    { \
        .name = called, .self_size = sizeof(dsi_adam), \
        .moment = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, .step_n = step, .uses = uses, \
        .has_betas = true, .mixed = true, .options = options \
    }

static ds_optim *make(const ds_optim_type *type, ds_module *model, ds_adam_opts o, bool decoupled)
{
    const char *name = type->name;
    o.beta1 = dsi_optim_default(o.beta1, 0.9);
    o.beta2 = dsi_optim_default(o.beta2, 0.999);
    o.eps = dsi_optim_default(o.eps, 1e-8);
    if (!dsi_optim_not_negative(name, "lr", o.lr) || !dsi_optim_not_negative(name, "eps", o.eps) ||
        !dsi_optim_not_negative(name, "weight_decay", o.weight_decay) ||
        !dsi_optim_is_beta(name, "beta1", o.beta1) || !dsi_optim_is_beta(name, "beta2", o.beta2))
        return NULL;
    ds_optim_values v = {o.lr, o.weight_decay, .betas = {o.beta1, o.beta2}};
    dsi_adam self = {.eps = o.eps,
                     .decoupled = decoupled,
                     .amsgrad = o.amsgrad,
                     .maximize = o.maximize,
                     .bias_correction = !o.no_bias_correction};
    return dsi_optim_with(model, type, v, &self);
}

ds_optim *ds_optim_adam_with(ds_module *model, ds_adam_opts opts)
{
    static const ds_optim_type type = ADAM_TYPE("adam");
    return make(&type, model, opts, false);
}

ds_optim *ds_optim_adamw_with(ds_module *model, ds_adam_opts opts)
{
    static const ds_optim_type type = ADAM_TYPE("adamw");
    return make(&type, model, opts, true);
}
