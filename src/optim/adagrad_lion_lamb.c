/* optim/adagrad_lion_lamb.c: Adagrad, RMSprop and Adadelta as in torch.optim;
 * Lion and LAMB as in DeepSpeed.
 *
 * Each optimizer is a step, a table of its options in state dicts, a type, a
 * table of its parameters, a constructor and an entry of optim/list.h. The
 * step fills the kernel's struct from self and the group's values; moments are
 * those of x, and x[i].step counts from 1.
 * SPDX-License-Identifier: MIT */
#include "list.h"
#include "optim.h"

/* ---- Adagrad ------------------------------------------------------------------------------------------- */

typedef struct Adagrad {
    dsi_adagrad c;
    double initial; /* of the sum */
} Adagrad;

/* s += g^2; p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps). The sum
 * begins at `initial`, not at 0, so it is filled at a parameter's first
 * step. */
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

static const ds_optim_type adagrad_type = {.name = "adagrad",
                                           .self_size = sizeof(Adagrad),
                                           .moment = {NULL, "sum"},
                                           .step_n = adagrad_step,
                                           .mixed = true,
                                           .options = adagrad_options};

/* The options, and what configurations alone have. */
typedef struct AdagradParams {
    ds_adagrad_opts o;
    bool fp32_optimizer_states;
} AdagradParams;

static const dsi_param adagrad_params[] = {
    DSI_LR(ds_adagrad_opts, 1e-2),
    DSI_NUMBER(ds_adagrad_opts, lr_decay, "of the rate, with the step", 0),
    DSI_WEIGHT_DECAY(ds_adagrad_opts, 0),
    DSI_NUMBER(ds_adagrad_opts, initial_accumulator_value, "of the sum of squares", 0),
    DSI_EPS(ds_adagrad_opts, 1e-10),
    DSI_MAXIMIZE(ds_adagrad_opts),
    DSI_IGNORED("amsgrad"),
    DSI_PARAM("fp32_optimizer_states", BOOL, ANY, AdagradParams, fp32_optimizer_states,
              .value = {true}, .help = "false is refused: moments are float32"),
    DSI_TORCH_IGNORED,
    {0}};

/* A rule that the table cannot express; the constructor's options have no such
 * field. */
static bool adagrad_check(const char *prefix, const void *params)
{
    if (((const AdagradParams *)params)->fp32_optimizer_states) return true;
    return dsi_refuse("%sfp32_optimizer_states is false: moments are float32 here", prefix);
}

ds_optim *ds_optim_adagrad_with(ds_module *model, ds_adagrad_opts o)
{
    return dsi_optim_from(model, &adagrad_type, adagrad_params, &o, sizeof o);
}

const dsi_optim_entry dsi_optim_adagrad = {.name = "Adagrad",
                                           .type = &adagrad_type,
                                           .source = "torch.optim.Adagrad",
                                           .deepspeed = true,
                                           .zero_tested = true,
                                           .params = adagrad_params,
                                           .params_size = sizeof(AdagradParams),
                                           .check = adagrad_check};

/* ---- RMSprop ------------------------------------------------------------------------------------------- */

/* v = alpha v + (1 - alpha) g^2; p -= lr g / (sqrt(v) + eps), with a momentum
 * of that quotient, and centered with the variance in place of v. */
static ds_status rmsprop_step(void *self, const ds_optim_values *v, const ds_optim_update *x, int n)
{
    dsi_rmsprop c = *(const dsi_rmsprop *)self;
    c.lr = v->lr, c.momentum = v->momentum, c.weight_decay = v->weight_decay;
    return dsi_optim_run(&(dsi_optimizer){.rule = DSI_RMSPROP, .rmsprop = c}, x, n);
}

/* Moment 0 is the momentum's buffer, 1 the mean of squares, 2 the mean of
 * gradients: only those are allocated that the options need. Moment 1 is
 * always needed. */
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

static const ds_optim_type rmsprop_type = {.name = "rmsprop",
                                           .self_size = sizeof(dsi_rmsprop),
                                           .moment = {"momentum_buffer", "square_avg", "grad_avg"},
                                           .step_n = rmsprop_step,
                                           .uses = rmsprop_uses,
                                           .has_momentum = true,
                                           .mixed = true,
                                           .options = rmsprop_options};

static const dsi_param rmsprop_params[] = {
    DSI_LR(ds_rmsprop_opts, 1e-2),
    DSI_NUMBER(ds_rmsprop_opts, alpha, "decay of the mean of squares", 0.99),
    DSI_EPS(ds_rmsprop_opts, 1e-8),
    DSI_WEIGHT_DECAY(ds_rmsprop_opts, 0),
    DSI_NUMBER(ds_rmsprop_opts, momentum, "factor of the last update", 0),
    DSI_FLAG(ds_rmsprop_opts, centered, "divide by the standard deviation"),
    DSI_MAXIMIZE(ds_rmsprop_opts),
    DSI_TORCH_IGNORED,
    {0}};

ds_optim *ds_optim_rmsprop_with(ds_module *model, ds_rmsprop_opts o)
{
    return dsi_optim_from(model, &rmsprop_type, rmsprop_params, &o, sizeof o);
}

const dsi_optim_entry dsi_optim_rmsprop = {.name = "RMSprop",
                                           .type = &rmsprop_type,
                                           .source = "torch.optim.RMSprop",
                                           .params = rmsprop_params,
                                           .params_size = sizeof(ds_rmsprop_opts)};

/* ---- Adadelta ------------------------------------------------------------------------------------------ */

/* Moment 0 is the mean of squared updates, 1 that of squared gradients; the
 * update is their roots' ratio times g. */
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

static const ds_optim_type adadelta_type = {.name = "adadelta",
                                            .self_size = sizeof(dsi_adadelta),
                                            .moment = {"acc_delta", "square_avg"},
                                            .step_n = adadelta_step,
                                            .mixed = true,
                                            .options = adadelta_options};

static const dsi_param adadelta_params[] = {DSI_LR(ds_adadelta_opts, 1),
                                            DSI_PARAM("rho", NUMBER, FRACTION, ds_adadelta_opts,
                                                      rho, .value = {0.9},
                                                      .help = "decay of both means of squares"),
                                            DSI_EPS(ds_adadelta_opts, 1e-6),
                                            DSI_WEIGHT_DECAY(ds_adadelta_opts, 0),
                                            DSI_MAXIMIZE(ds_adadelta_opts),
                                            DSI_TORCH_IGNORED,
                                            {0}};

ds_optim *ds_optim_adadelta_with(ds_module *model, ds_adadelta_opts o)
{
    return dsi_optim_from(model, &adadelta_type, adadelta_params, &o, sizeof o);
}

const dsi_optim_entry dsi_optim_adadelta = {.name = "Adadelta",
                                            .type = &adadelta_type,
                                            .source = "torch.optim.Adadelta",
                                            .params = adadelta_params,
                                            .params_size = sizeof(ds_adadelta_opts)};

/* ---- Lion ---------------------------------------------------------------------------------------------- */

/* p -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay p); then m = beta2 m +
 * (1 - beta2) g. */
static ds_status lion_step(void *self, const ds_optim_values *v, const ds_optim_update *x, int n)
{
    (void)self;
    dsi_lion c = {v->lr, v->betas[0], v->betas[1], v->weight_decay};
    return dsi_optim_run(&(dsi_optimizer){.rule = DSI_LION, .lion = c}, x, n);
}

static const ds_optim_type lion_type = {
    .name = "lion", .moment = {"exp_avg"}, .step_n = lion_step, .has_betas = true, .mixed = true};

DSI_ASSERT_BETAS(ds_lion_opts);
static const dsi_param lion_params[] = {
    DSI_LR(ds_lion_opts, 1e-3),           DSI_BETAS(ds_lion_opts, 0.9, 0.999),
    DSI_WEIGHT_DECAY(ds_lion_opts, 0),    DSI_IGNORED("set_grad_none"),
    DSI_IGNORED("fp32_optimizer_states"), {0}};

ds_optim *ds_optim_lion_with(ds_module *model, ds_lion_opts o)
{
    if (o.beta2 == 0) o.beta2 = 0.99; /* the paper's; a configuration has DeepSpeed's 0.999 */
    return dsi_optim_from(model, &lion_type, lion_params, &o, sizeof o);
}

const dsi_optim_entry dsi_optim_lion = {.name = "Lion",
                                        .type = &lion_type,
                                        .source = "deepspeed.ops.lion.FusedLion",
                                        .deepspeed = true,
                                        .zero_tested = true,
                                        .params = lion_params,
                                        .params_size = sizeof(ds_lion_opts)};

/* ---- LAMB ---------------------------------------------------------------------------------------------- */

/* Adam's update times a trust ratio: the norm of the parameter over that of the
 * update, between min_coeff and max_coeff. So it needs whole parameters
 * (.whole). */
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

static const ds_optim_type lamb_type = {.name = "lamb",
                                        .self_size = sizeof(dsi_lamb),
                                        .moment = {"exp_avg", "exp_avg_sq"},
                                        .step_n = lamb_step,
                                        .has_betas = true,
                                        .whole = true,
                                        .mixed = true,
                                        .options = lamb_options};

/* The options, and what configurations alone have. */
typedef struct LambParams {
    ds_lamb_opts o;
    bool amsgrad;
} LambParams;

DSI_ASSERT_BETAS(ds_lamb_opts);
static const dsi_param lamb_params[] = {
    DSI_LR(ds_lamb_opts, 1e-3),
    DSI_BETAS(ds_lamb_opts, 0.9, 0.999),
    DSI_EPS(ds_lamb_opts, 1e-8),
    DSI_WEIGHT_DECAY(ds_lamb_opts, 0),
    DSI_PARAM("bias_correction", NOT, ANY, ds_lamb_opts, no_bias_correction, .value = {true},
              .help = "of the rate"),
    DSI_FLAG(ds_lamb_opts, eps_inside_sqrt, "eps is added before the root"),
    DSI_NUMBER(ds_lamb_opts, max_coeff, "largest trust ratio", 10),
    DSI_NUMBER(ds_lamb_opts, min_coeff, "smallest trust ratio", 0.01),
    DSI_PARAM("amsgrad", BOOL, ANY, LambParams, amsgrad, .value = {false},
              .help = "refused: DeepSpeed's class does not have it"),
    {0}};

/* prefix: "lamb: ", or "optimizer.params." for a configuration. */
static bool lamb_check_coeffs(const char *prefix, const ds_lamb_opts *o)
{
    if (o->min_coeff <= o->max_coeff) return true;
    return dsi_refuse("%smin_coeff is %g, which is more than max_coeff %g", prefix, o->min_coeff,
                      o->max_coeff);
}

static bool lamb_check(const char *prefix, const void *params)
{
    const LambParams *p = params;
    if (p->amsgrad) return dsi_refuse("%samsgrad: DeepSpeed's class does not have it", prefix);
    return lamb_check_coeffs(prefix, &p->o);
}

/* The coefficients are compared with their defaults in place, so on a copy:
 * dsi_optim_from reads the caller's options once. */
ds_optim *ds_optim_lamb_with(ds_module *model, ds_lamb_opts o)
{
    ds_lamb_opts with_defaults = o;
    if (!dsi_params_check("lamb", lamb_params, &with_defaults, sizeof o) ||
        !lamb_check_coeffs("lamb: ", &with_defaults))
        return NULL;
    return dsi_optim_from(model, &lamb_type, lamb_params, &o, sizeof o);
}

const dsi_optim_entry dsi_optim_lamb = {.name = "Lamb",
                                        .type = &lamb_type,
                                        .source = "deepspeed.ops.lamb.FusedLamb",
                                        .deepspeed = true,
                                        .params = lamb_params,
                                        .params_size = sizeof(LambParams),
                                        .check = lamb_check};
