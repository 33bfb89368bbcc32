/* optim/others.c: Adagrad and RMSprop as in torch.optim; Lion and LAMB as in DeepSpeed.
 * SPDX-License-Identifier: MIT */
#include "optim.h"

static ds_status run_adagrad(const ds_tensor *p, const dsi_optim_options *o, int n,
                             const dsi_span *x)
{
    return dsi_run(p, adagrad, &o->adagrad, n, x) ? DS_OK : ds_error_status();
}

ds_optim *ds_optim_adagrad_with(ds_module *model, ds_adagrad_opts o)
{
    o.eps = dsi_optim_default(o.eps, 1e-10);
    if (!dsi_optim_not_negative("adagrad", "lr", o.lr) ||
        !dsi_optim_not_negative("adagrad", "lr_decay", o.lr_decay) ||
        !dsi_optim_not_negative("adagrad", "weight_decay", o.weight_decay) ||
        !dsi_optim_not_negative("adagrad", "initial_accumulator_value",
                                o.initial_accumulator_value) ||
        !dsi_optim_not_negative("adagrad", "eps", o.eps))
        return NULL;
    dsi_optim_rule rule = {
        .name = "adagrad",
        .run = run_adagrad,
        .moment = {NULL, "sum"},
        .initial = {0, o.initial_accumulator_value},
        .options.adagrad = {o.lr, o.lr_decay, o.weight_decay, o.eps, o.maximize}};
    return dsi_optim_new(model, &rule);
}

static ds_status run_rmsprop(const ds_tensor *p, const dsi_optim_options *o, int n,
                             const dsi_span *x)
{
    return dsi_run(p, rmsprop, &o->rmsprop, n, x) ? DS_OK : ds_error_status();
}

ds_optim *ds_optim_rmsprop_with(ds_module *model, ds_rmsprop_opts o)
{
    o.alpha = dsi_optim_default(o.alpha, 0.99);
    o.eps = dsi_optim_default(o.eps, 1e-8);
    if (!dsi_optim_not_negative("rmsprop", "lr", o.lr) ||
        !dsi_optim_not_negative("rmsprop", "eps", o.eps) ||
        !dsi_optim_not_negative("rmsprop", "momentum", o.momentum) ||
        !dsi_optim_not_negative("rmsprop", "weight_decay", o.weight_decay) ||
        !dsi_optim_not_negative("rmsprop", "alpha", o.alpha))
        return NULL;
    dsi_optim_rule rule = {.name = "rmsprop",
                           .run = run_rmsprop,
                           .moment = {o.momentum != 0 ? "momentum_buffer" : NULL, "square_avg",
                                      o.centered ? "grad_avg" : NULL},
                           .options.rmsprop = {o.lr, o.alpha, o.eps, o.weight_decay, o.momentum,
                                               o.centered, o.maximize}};
    return dsi_optim_new(model, &rule);
}

static ds_status run_lion(const ds_tensor *p, const dsi_optim_options *o, int n, const dsi_span *x)
{
    return dsi_run(p, lion, &o->lion, n, x) ? DS_OK : ds_error_status();
}

ds_optim *ds_optim_lion_with(ds_module *model, ds_lion_opts o)
{
    o.beta1 = dsi_optim_default(o.beta1, 0.9);
    o.beta2 = dsi_optim_default(o.beta2, 0.99);
    if (!dsi_optim_not_negative("lion", "lr", o.lr) ||
        !dsi_optim_not_negative("lion", "weight_decay", o.weight_decay) ||
        !dsi_optim_is_beta("lion", "beta1", o.beta1) ||
        !dsi_optim_is_beta("lion", "beta2", o.beta2))
        return NULL;
    dsi_optim_rule rule = {.name = "lion",
                           .run = run_lion,
                           .moment = {"exp_avg"},
                           .options.lion = {o.lr, o.beta1, o.beta2, o.weight_decay}};
    return dsi_optim_new(model, &rule);
}

static ds_status run_lamb(const ds_tensor *p, const dsi_optim_options *o, int n, const dsi_span *x)
{
    return dsi_run(p, lamb, &o->lamb, n, x) ? DS_OK : ds_error_status();
}

ds_optim *ds_optim_lamb_with(ds_module *model, ds_lamb_opts o)
{
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
    dsi_optim_rule rule = {.name = "lamb",
                           .run = run_lamb,
                           .needs_whole = true,
                           .moment = {"exp_avg", "exp_avg_sq"},
                           .options.lamb = {o.lr, o.beta1, o.beta2, o.eps, o.weight_decay,
                                            o.max_coeff, o.min_coeff, !o.no_bias_correction}};
    return dsi_optim_new(model, &rule);
}
