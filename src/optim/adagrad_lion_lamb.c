/* optim/adagrad_lion_lamb.c: Adagrad, RMSprop and Adadelta as in torch.optim; Lion and LAMB as in DeepSpeed.
 * SPDX-License-Identifier: MIT */
#include "optim.h"

/* ---- Adagrad ------------------------------------------------------------------------------------------- */

typedef struct Adagrad {
    dsi_adagrad c;
    double initial; /* of the sum */
} Adagrad;

static ds_status adagrad_step(void *self, const ds_optim_values *v, const ds_optim_update *x, int n)
{
    const Adagrad *a = self;
    dsi_adagrad c = a->c;
    c.lr = v->lr, c.weight_decay = v->weight_decay;
    for (int i = 0; i < n; i++)
        if (x[i].step == 1 && !dsi_fill(x[i].moment[1], a->initial)) return ds_error_status();
    return dsi_optim_run(&(dsi_optimizer){.rule = DSI_ADAGRAD, .adagrad = c}, x, n);
}

static const ds_optim_option adagrad_options[] = {
    {"lr_decay", DS_OPTION_DOUBLE, offsetof(Adagrad, c.lr_decay)},
    {"eps", DS_OPTION_DOUBLE, offsetof(Adagrad, c.eps)},
    {"initial_accumulator_value", DS_OPTION_DOUBLE, offsetof(Adagrad, initial)},
    {"maximize", DS_OPTION_BOOL, offsetof(Adagrad, c.maximize)},
    {"foreach", DS_OPTION_NONE, 0},
    {"differentiable", DS_OPTION_FALSE, 0},
    {"fused", DS_OPTION_NONE, 0},
    {0}};

ds_optim *ds_optim_adagrad_with(ds_module *model, ds_adagrad_opts o)
{
    static const ds_optim_type type = {.name = "adagrad",
                                       .self_size = sizeof(Adagrad),
                                       .moment = {NULL, "sum"},
                                       .step_n = adagrad_step,
                                       .mixed = true,
                                       .options = adagrad_options};
    o.eps = dsi_optim_default(o.eps, 1e-10);
    if (!dsi_optim_not_negative("adagrad", "lr", o.lr) ||
        !dsi_optim_not_negative("adagrad", "lr_decay", o.lr_decay) ||
        !dsi_optim_not_negative("adagrad", "weight_decay", o.weight_decay) ||
        !dsi_optim_not_negative("adagrad", "initial_accumulator_value",
                                o.initial_accumulator_value) ||
        !dsi_optim_not_negative("adagrad", "eps", o.eps))
        return NULL;
    ds_optim_values v = {.lr = o.lr, .weight_decay = o.weight_decay};
    Adagrad self = {{.lr_decay = o.lr_decay, .eps = o.eps, .maximize = o.maximize},
                    o.initial_accumulator_value};
    return dsi_optim_with(model, &type, v, &self);
}

/* ---- RMSprop ------------------------------------------------------------------------------------------- */

static ds_status rmsprop_step(void *self, const ds_optim_values *v, const ds_optim_update *x, int n)
{
    dsi_rmsprop c = *(const dsi_rmsprop *)self;
    c.lr = v->lr, c.momentum = v->momentum, c.weight_decay = v->weight_decay;
    return dsi_optim_run(&(dsi_optimizer){.rule = DSI_RMSPROP, .rmsprop = c}, x, n);
}

static bool rmsprop_uses(const void *self, const ds_optim_values *v, int i)
{
    return i == 0 ? v->momentum != 0 : i == 1 || ((const dsi_rmsprop *)self)->centered;
}

static const ds_optim_option rmsprop_options[] = {
    {"alpha", DS_OPTION_DOUBLE, offsetof(dsi_rmsprop, alpha)},
    {"eps", DS_OPTION_DOUBLE, offsetof(dsi_rmsprop, eps)},
    {"centered", DS_OPTION_BOOL, offsetof(dsi_rmsprop, centered)},
    {"maximize", DS_OPTION_BOOL, offsetof(dsi_rmsprop, maximize)},
    {"foreach", DS_OPTION_NONE, 0},
    {"capturable", DS_OPTION_FALSE, 0},
    {"differentiable", DS_OPTION_FALSE, 0},
    {0}};

ds_optim *ds_optim_rmsprop_with(ds_module *model, ds_rmsprop_opts o)
{
    static const ds_optim_type type = {.name = "rmsprop",
                                       .self_size = sizeof(dsi_rmsprop),
                                       .moment = {"momentum_buffer", "square_avg", "grad_avg"},
                                       .step_n = rmsprop_step,
                                       .uses = rmsprop_uses,
                                       .has_momentum = true,
                                       .mixed = true,
                                       .options = rmsprop_options};
    o.alpha = dsi_optim_default(o.alpha, 0.99);
    o.eps = dsi_optim_default(o.eps, 1e-8);
    if (!dsi_optim_not_negative("rmsprop", "lr", o.lr) ||
        !dsi_optim_not_negative("rmsprop", "eps", o.eps) ||
        !dsi_optim_not_negative("rmsprop", "momentum", o.momentum) ||
        !dsi_optim_not_negative("rmsprop", "weight_decay", o.weight_decay) ||
        !dsi_optim_not_negative("rmsprop", "alpha", o.alpha))
        return NULL;
    ds_optim_values v = {.lr = o.lr, .weight_decay = o.weight_decay, .momentum = o.momentum};
    dsi_rmsprop self = {
        .alpha = o.alpha, .eps = o.eps, .centered = o.centered, .maximize = o.maximize};
    return dsi_optim_with(model, &type, v, &self);
}

/* ---- Adadelta ------------------------------------------------------------------------------------------ */

static ds_status adadelta_step(void *self, const ds_optim_values *v, const ds_optim_update *x,
                               int n)
{
    dsi_adadelta c = *(const dsi_adadelta *)self;
    c.lr = v->lr, c.weight_decay = v->weight_decay;
    return dsi_optim_run(&(dsi_optimizer){.rule = DSI_ADADELTA, .adadelta = c}, x, n);
}

static const ds_optim_option adadelta_options[] = {
    {"rho", DS_OPTION_DOUBLE, offsetof(dsi_adadelta, rho)},
    {"eps", DS_OPTION_DOUBLE, offsetof(dsi_adadelta, eps)},
    {"maximize", DS_OPTION_BOOL, offsetof(dsi_adadelta, maximize)},
    {"foreach", DS_OPTION_NONE, 0},
    {"capturable", DS_OPTION_FALSE, 0},
    {"differentiable", DS_OPTION_FALSE, 0},
    {0}};

ds_optim *ds_optim_adadelta_with(ds_module *model, ds_adadelta_opts o)
{
    static const ds_optim_type type = {.name = "adadelta",
                                       .self_size = sizeof(dsi_adadelta),
                                       .moment = {"acc_delta", "square_avg"},
                                       .step_n = adadelta_step,
                                       .mixed = true,
                                       .options = adadelta_options};
    o.rho = dsi_optim_default(o.rho, 0.9);
    o.eps = dsi_optim_default(o.eps, 1e-6);
    if (!dsi_optim_not_negative("adadelta", "lr", o.lr) ||
        !dsi_optim_not_negative("adadelta", "eps", o.eps) ||
        !dsi_optim_not_negative("adadelta", "weight_decay", o.weight_decay))
        return NULL;
    if (!(o.rho >= 0 && o.rho <= 1))
        return dsi_refuse("adadelta: rho is %g: expected 0 to 1", o.rho);
    ds_optim_values v = {.lr = o.lr, .weight_decay = o.weight_decay};
    dsi_adadelta self = {.rho = o.rho, .eps = o.eps, .maximize = o.maximize};
    return dsi_optim_with(model, &type, v, &self);
}

/* ---- Lion ---------------------------------------------------------------------------------------------- */

static ds_status lion_step(void *self, const ds_optim_values *v, const ds_optim_update *x, int n)
{
    (void)self;
    dsi_lion c = {v->lr, v->betas[0], v->betas[1], v->weight_decay};
    return dsi_optim_run(&(dsi_optimizer){.rule = DSI_LION, .lion = c}, x, n);
}

ds_optim *ds_optim_lion_with(ds_module *model, ds_lion_opts o)
{
    static const ds_optim_type type = {.name = "lion",
                                       .moment = {"exp_avg"},
                                       .step_n = lion_step,
                                       .has_betas = true,
                                       .mixed = true};
    o.beta1 = dsi_optim_default(o.beta1, 0.9);
    o.beta2 = dsi_optim_default(o.beta2, 0.99);
    if (!dsi_optim_not_negative("lion", "lr", o.lr) ||
        !dsi_optim_not_negative("lion", "weight_decay", o.weight_decay) ||
        !dsi_optim_is_beta("lion", "beta1", o.beta1) ||
        !dsi_optim_is_beta("lion", "beta2", o.beta2))
        return NULL;
    ds_optim_values v = {o.lr, o.weight_decay, .betas = {o.beta1, o.beta2}};
    return ds_optim_new(model, &type, v);
}

/* ---- LAMB ---------------------------------------------------------------------------------------------- */

static ds_status lamb_step(void *self, const ds_optim_values *v, const ds_optim_update *x, int n)
{
    dsi_lamb c = *(const dsi_lamb *)self;
    c.lr = v->lr, c.beta1 = v->betas[0], c.beta2 = v->betas[1], c.weight_decay = v->weight_decay;
    return dsi_optim_run(&(dsi_optimizer){.rule = DSI_LAMB, .lamb = c}, x, n);
}

static const ds_optim_option lamb_options[] = {
    {"eps", DS_OPTION_DOUBLE, offsetof(dsi_lamb, eps)},
    {"max_coeff", DS_OPTION_DOUBLE, offsetof(dsi_lamb, max_coeff)},
    {"min_coeff", DS_OPTION_DOUBLE, offsetof(dsi_lamb, min_coeff)},
    {"bias_correction", DS_OPTION_BOOL, offsetof(dsi_lamb, bias_correction)},
    {"eps_inside_sqrt", DS_OPTION_BOOL, offsetof(dsi_lamb, eps_inside_sqrt)},
    {0}};

ds_optim *ds_optim_lamb_with(ds_module *model, ds_lamb_opts o)
{
    static const ds_optim_type type = {.name = "lamb",
                                       .self_size = sizeof(dsi_lamb),
                                       .moment = {"exp_avg", "exp_avg_sq"},
                                       .step_n = lamb_step,
                                       .has_betas = true,
                                       .whole = true,
                                       .mixed = true,
                                       .options = lamb_options};
    o.beta1 = dsi_optim_default(o.beta1, 0.9);
    o.beta2 = dsi_optim_default(o.beta2, 0.999);
    o.eps = dsi_optim_default(o.eps, 1e-8);
    o.max_coeff = dsi_optim_default(o.max_coeff, 10);
    o.min_coeff = dsi_optim_default(o.min_coeff, 0.01);
    if (!dsi_optim_not_negative("lamb", "lr", o.lr) ||
        !dsi_optim_not_negative("lamb", "eps", o.eps) ||
        !dsi_optim_not_negative("lamb", "weight_decay", o.weight_decay) ||
        !dsi_optim_not_negative("lamb", "min_coeff", o.min_coeff) ||
        !dsi_optim_is_beta("lamb", "beta1", o.beta1) ||
        !dsi_optim_is_beta("lamb", "beta2", o.beta2))
        return NULL;
    if (!(o.min_coeff <= o.max_coeff))
        return dsi_refuse("lamb: min_coeff is %g, which is more than max_coeff %g", o.min_coeff,
                          o.max_coeff);
    ds_optim_values v = {o.lr, o.weight_decay, .betas = {o.beta1, o.beta2}};
    dsi_lamb self = {.eps = o.eps,
                     .max_coeff = o.max_coeff,
                     .min_coeff = o.min_coeff,
                     .bias_correction = !o.no_bias_correction,
                     .eps_inside_sqrt = o.eps_inside_sqrt};
    return dsi_optim_with(model, &type, v, &self);
}
