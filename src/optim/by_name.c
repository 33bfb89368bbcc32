/* optim/by_name.c: the "optimizer" block of a DeepSpeed configuration: type and params -> an optimizer.
 *
 * A table says of each type which parameters it takes, another of each parameter what it may be (params.h). As in
 * DeepSpeed 0.19, its own names are known in any case of letters, all others are classes of torch.optim
 * and must match; Adam is AdamW unless adam_w_mode is false, AdamW is always; torch_adam chooses torch's
 * classes, with their defaults. Only what says how torch computes the same is taken and ignored.
 * SPDX-License-Identifier: MIT */
#include "optim.h"
#include "params.h"

#include "base/text.h"

#include <jansson.h>
#include <string.h>
#include <strings.h>

/* All parameters that any type takes. */
typedef struct Params {
    double lr, betas[2], eps, weight_decay, momentum, dampening, alpha, rho, momentum_decay;
    double lr_decay, initial_accumulator_value, max_coeff, min_coeff;
    bool nesterov, centered, maximize, amsgrad, bias_correction, eps_inside_sqrt;
    bool adam_w_mode, decoupled_weight_decay, torch_adam, fp32_optimizer_states;
} Params;

/* ---- the types ------------------------------------------------------------------------------------------- */

/* 0 is a number here, and "the default" in options. */
static double given(double x) { return x == 0 ? 1e-300 : x; }

static ds_optim *make_adam(ds_module *m, const Params *p, bool decoupled)
{
    ds_adam_opts o = {.lr = p->lr,
                      .beta1 = given(p->betas[0]),
                      .beta2 = given(p->betas[1]),
                      .eps = given(p->eps),
                      .weight_decay = p->weight_decay,
                      .amsgrad = p->amsgrad,
                      .maximize = p->maximize,
                      .no_bias_correction = !p->bias_correction};
    return decoupled ? ds_optim_adamw_with(m, o) : ds_optim_adam_with(m, o);
}

static ds_optim *adam(ds_module *m, const Params *p)
{
    return make_adam(m, p, p->adam_w_mode || p->decoupled_weight_decay);
}

static ds_optim *adamw(ds_module *m, const Params *p) { return make_adam(m, p, true); }

static ds_optim *adagrad(ds_module *m, const Params *p)
{
    return ds_optim_adagrad(m, p->lr, .lr_decay = p->lr_decay, .weight_decay = p->weight_decay,
                            .initial_accumulator_value = p->initial_accumulator_value,
                            .eps = given(p->eps), .maximize = p->maximize);
}

static ds_optim *lamb(ds_module *m, const Params *p)
{
    return ds_optim_lamb(m, p->lr, .beta1 = given(p->betas[0]), .beta2 = given(p->betas[1]),
                         .eps = given(p->eps), .weight_decay = p->weight_decay,
                         .max_coeff = given(p->max_coeff), .min_coeff = given(p->min_coeff),
                         .no_bias_correction = !p->bias_correction,
                         .eps_inside_sqrt = p->eps_inside_sqrt);
}

static ds_optim *lion(ds_module *m, const Params *p)
{
    return ds_optim_lion(m, p->lr, .beta1 = given(p->betas[0]), .beta2 = given(p->betas[1]),
                         .weight_decay = p->weight_decay);
}

static ds_optim *sgd(ds_module *m, const Params *p)
{
    return ds_optim_sgd(m, p->lr, .momentum = p->momentum, .dampening = p->dampening,
                        .weight_decay = p->weight_decay, .nesterov = p->nesterov,
                        .maximize = p->maximize);
}

static ds_optim *rmsprop(ds_module *m, const Params *p)
{
    return ds_optim_rmsprop(m, p->lr, .alpha = given(p->alpha), .eps = given(p->eps),
                            .weight_decay = p->weight_decay, .momentum = p->momentum,
                            .centered = p->centered, .maximize = p->maximize);
}

static ds_optim *adadelta(ds_module *m, const Params *p)
{
    return ds_optim_adadelta(m, p->lr, .rho = given(p->rho), .eps = given(p->eps),
                             .weight_decay = p->weight_decay, .maximize = p->maximize);
}

static ds_adam_variant_opts variant(const Params *p)
{
    return (ds_adam_variant_opts){.lr = p->lr,
                                  .beta1 = given(p->betas[0]),
                                  .beta2 = given(p->betas[1]),
                                  .eps = given(p->eps),
                                  .weight_decay = p->weight_decay,
                                  .momentum_decay = given(p->momentum_decay),
                                  .decoupled = p->decoupled_weight_decay,
                                  .maximize = p->maximize};
}

static ds_optim *adamax(ds_module *m, const Params *p)
{
    return ds_optim_adamax_with(m, variant(p));
}
static ds_optim *nadam(ds_module *m, const Params *p) { return ds_optim_nadam_with(m, variant(p)); }
static ds_optim *radam(ds_module *m, const Params *p) { return ds_optim_radam_with(m, variant(p)); }

typedef struct Type {
    const char *name;
    bool own; /* DeepSpeed's: in any case of letters */
    ds_optim *(*make)(ds_module *m, const Params *p);
    const char *keys;   /* the parameters that it takes */
    double lr, eps;     /* defaults */
    const char *refuse; /* why there is none here, or NULL */
} Type;

/* clang-format off */
#define WAYS    " foreach fused capturable differentiable " /* of computing the same */
#define MOMENTS " lr betas eps weight_decay maximize "
#define ADAM    " lr betas eps weight_decay bias_correction amsgrad adam_w_mode torch_adam " \
                "set_grad_none fp32_optimizer_states "
#define ADAGRAD " lr lr_decay weight_decay initial_accumulator_value eps maximize amsgrad " \
                "fp32_optimizer_states "
#define LAMB    " lr betas eps weight_decay bias_correction eps_inside_sqrt max_coeff min_coeff amsgrad "
#define LION    " lr betas weight_decay set_grad_none fp32_optimizer_states "
#define SGD     " lr momentum dampening weight_decay nesterov maximize "
#define RMSPROP " lr alpha eps weight_decay momentum centered maximize "
#define DELTA   " lr rho eps weight_decay maximize "
#define ONE_BIT "it compresses what ranks exchange to one bit, which is not offered here: use Adam or Lamb"
#define MUP     "it scales rates by the widths that package mup notes: use parameter groups"
#define MUON    "its orthogonalised updates are not offered here: use AdamW"
#define TORCH   "of torch.optim there are " \
                "Adam, AdamW, Adamax, NAdam, RAdam, SGD, RMSprop, Adagrad, Adadelta here"

static const Type types[] = {
    {"Adam",     true,  adam,     ADAM,                                          1e-3, 1e-8,  NULL},
    {"AdamW",    true,  adamw,    ADAM,                                          1e-3, 1e-8,  NULL},
    {"Adagrad",  true,  adagrad,  ADAGRAD WAYS,                                  1e-2, 1e-10, NULL},
    {"Lamb",     true,  lamb,     LAMB,                                          1e-3, 1e-8,  NULL},
    {"Lion",     true,  lion,     LION,                                          1e-3, 0,     NULL},
    {"SGD",      false, sgd,      SGD WAYS,                                      1e-3, 0,     NULL},
    {"RMSprop",  false, rmsprop,  RMSPROP WAYS,                                  1e-2, 1e-8,  NULL},
    {"Adadelta", false, adadelta, DELTA WAYS,                                    1,    1e-6,  NULL},
    {"Adamax",   false, adamax,   MOMENTS WAYS,                                  2e-3, 1e-8,  NULL},
    {"NAdam",    false, nadam,    MOMENTS "momentum_decay decoupled_weight_decay" WAYS, 2e-3, 1e-8, NULL},
    {"RAdam",    false, radam,    MOMENTS "decoupled_weight_decay" WAYS,         1e-3, 1e-8,  NULL},
    {.name = "OneBitAdam",  .own = true, .refuse = ONE_BIT},
    {.name = "ZeroOneAdam", .own = true, .refuse = ONE_BIT},
    {.name = "OneBitLamb",  .own = true, .refuse = ONE_BIT},
    {.name = "MuAdam",      .own = true, .refuse = MUP},
    {.name = "MuAdamW",     .own = true, .refuse = MUP},
    {.name = "MuSGD",       .own = true, .refuse = MUP},
    {.name = "Muon",        .own = true, .refuse = MUON},
    {.name = "ASGD",        .refuse = TORCH},
    {.name = "Rprop",       .refuse = TORCH},
    {.name = "Adafactor",   .refuse = TORCH},
    {.name = "LBFGS",       .refuse = TORCH},
    {.name = "SparseAdam",  .refuse = TORCH},
};
/* clang-format on */

#define TYPES (int)(sizeof types / sizeof *types)

/* What Adam and AdamW take with torch_adam: true, that is torch's two classes. */
#define TORCH_ADAMW " lr betas eps weight_decay amsgrad maximize adam_w_mode torch_adam " WAYS
#define TORCH_ADAM  " decoupled_weight_decay " TORCH_ADAMW

/* The type whose class in DeepSpeed or torch has that name, as "FusedAdam"; or NULL. */
static const char *type_of_class(const char *name)
{
    static const char *const before[] = {"Fused", "DeepSpeedCPU", "CPU", "torch.optim."};
    for (size_t k = 0; k < sizeof before / sizeof *before; k++) {
        size_t n = strlen(before[k]);
        for (int i = 0; i < TYPES && !strncasecmp(name, before[k], n); i++)
            if (!types[i].refuse && !strcasecmp(types[i].name, name + n)) return types[i].name;
    }
    return NULL;
}

static const Type *find_type(const char *name)
{
    const char *names[TYPES];
    int n = 0;
    for (int i = 0; i < TYPES; i++) {
        const Type *t = &types[i];
        if (!t->refuse) names[n++] = t->name;
        if ((t->own ? strcasecmp : strcmp)(t->name, name) != 0) continue;
        if (!t->refuse) return t;
        return dsi_refuse("optimizer.type \"%s\": %s", name, t->refuse);
    }
    const char *near = type_of_class(name);
    if (!near) near = dsi_nearest(name, names, n);
    if (near)
        return dsi_refuse("optimizer.type \"%s\": there is no such optimizer; did you mean \"%s\"?",
                          name, near);
    return dsi_refuse("optimizer.type \"%s\": there is no such optimizer; there are Adam, AdamW, "
                      "Adagrad, Lamb, Lion, SGD, RMSprop, Adadelta, Adamax, NAdam, RAdam",
                      name);
}

/* ---- the parameters -------------------------------------------------------------------------------------- */

typedef struct Key {
    const char *name;
    dsi_param_kind kind;
    dsi_range range;
    size_t at; /* in Params */
} Key;

/* clang-format off */
#define NUMBER(member) {#member, DSI_PARAM_NUMBER, DSI_NOT_NEGATIVE, offsetof(Params, member)}
#define FLAG(member)   {#member, DSI_PARAM_BOOL, DSI_ANY, offsetof(Params, member)}
#define IGNORED(name)  {name, DSI_PARAM_IGNORED, DSI_ANY, 0}
/* clang-format on */

static const Key keys[] = {
    NUMBER(lr),
    {"betas", DSI_PARAM_PAIR, DSI_BETA, offsetof(Params, betas)},
    NUMBER(eps),
    NUMBER(weight_decay),
    NUMBER(momentum),
    {"dampening", DSI_PARAM_NUMBER, DSI_ANY, offsetof(Params, dampening)},
    NUMBER(alpha),
    {"rho", DSI_PARAM_NUMBER, DSI_UNIT, offsetof(Params, rho)},
    NUMBER(lr_decay),
    NUMBER(momentum_decay),
    NUMBER(initial_accumulator_value),
    NUMBER(max_coeff),
    NUMBER(min_coeff),
    FLAG(nesterov),
    FLAG(centered),
    FLAG(maximize),
    FLAG(amsgrad),
    FLAG(bias_correction),
    FLAG(eps_inside_sqrt),
    FLAG(adam_w_mode),
    FLAG(decoupled_weight_decay),
    FLAG(torch_adam),
    FLAG(fp32_optimizer_states),
    IGNORED("set_grad_none"),
    IGNORED("foreach"),
    IGNORED("fused"),
    IGNORED("capturable"),
    IGNORED("differentiable"),
};

#define KEYS (int)(sizeof keys / sizeof *keys)

/* Parameters that DeepSpeed has, or had, where nothing stands for them here. */
static bool refused(const char *name)
{
    static const char *const one_bit[] = {
        "freeze_step",        "var_freeze_step", "var_update_scaler", "local_step_scaler",
        "local_step_clipper", "cuda_aware",      "coeff_beta",        "factor_max",
        "comm_backend_name",  "factor_min",      "factor_threshold"};
    if (!strcmp(name, "max_grad_norm"))
        return dsi_refuse("optimizer.params.max_grad_norm: DeepSpeed has \"gradient_clipping\", at "
                          "the top of the file, for it"),
               true;
    for (size_t i = 0; i < sizeof one_bit / sizeof *one_bit; i++)
        if (!strcmp(name, one_bit[i]))
            return dsi_refuse("optimizer.params.%s is of the 1-bit optimizers, which are not "
                              "offered here",
                              name),
                   true;
    return false;
}

static bool takes(const char *list, const char *key)
{
    size_t n = strlen(key);
    for (const char *at = list; (at = strstr(at, key)); at += n)
        if (at[-1] == ' ' && at[n] == ' ') return true;
    return false;
}

/* What the single parameters cannot tell. */
static bool check(const Type *t, const Params *p)
{
    bool is_adam = t->make == adam || t->make == adamw;
    if (p->amsgrad && ((is_adam && !p->torch_adam) || t->make == lamb))
        dsi_refuse("optimizer.params.amsgrad: DeepSpeed's %s has it not%s", t->name,
                   is_adam ? "; torch's has: \"torch_adam\": true" : "");
    else if (!p->fp32_optimizer_states)
        dsi_refuse("optimizer.params.fp32_optimizer_states is false: moments are float32 here");
    else if (p->nesterov && (p->momentum == 0 || p->dampening != 0))
        dsi_refuse("optimizer.params.nesterov: it needs a momentum and no dampening");
    else if (!(p->min_coeff <= p->max_coeff))
        dsi_refuse("optimizer.params.min_coeff is %g, which is more than max_coeff %g",
                   p->min_coeff, p->max_coeff);
    else
        return true;
    return false;
}

/* The defaults, and the list of the parameters that the type takes, as DeepSpeed and torch have them. */
static const char *begin(const Type *t, json_t *object, Params *p)
{
    *p = (Params){.lr = t->lr,
                  .betas = {0.9, 0.999},
                  .eps = t->eps,
                  .alpha = 0.99,
                  .rho = 0.9,
                  .momentum_decay = 0.004,
                  .max_coeff = 10,
                  .min_coeff = 0.01,
                  .bias_correction = true,
                  .adam_w_mode = true,
                  .fp32_optimizer_states = true};
    if (!takes(t->keys, "torch_adam") || !json_is_true(json_object_get(object, "torch_adam")))
        return t->keys;
    bool is_adamw = t->make == adamw || !json_is_false(json_object_get(object, "adam_w_mode"));
    p->weight_decay = is_adamw ? 0.01 : 0;
    return is_adamw ? TORCH_ADAMW : TORCH_ADAM;
}

static bool read_params(const Type *t, const char *text, json_t *object, Params *p)
{
    const char *list = begin(t, object, p), *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        if (refused(name)) return false;
    }
    dsi_param table[KEYS];
    int n = 0;
    for (int i = 0; i < KEYS; i++)
        if (takes(list, keys[i].name))
            table[n++] = (dsi_param){.name = keys[i].name,
                                     .kind = keys[i].kind,
                                     .to = (char *)p + keys[i].at,
                                     .range = keys[i].range};
    dsi_params_from from = {"optimizer.params", t->name, 1};
    return dsi_params_read(&from, text, table, n) == DS_OK && check(t, p);
}

ds_optim *ds_optim_by_name(ds_module *model, const char *type, const char *params)
{
    if (!model || !type) return dsi_null_operand("optim_by_name");
    const Type *t = find_type(type);
    if (!t) return NULL;
    json_t *object = params ? json_loads(params, 0, NULL) : NULL; /* to look ahead */
    Params p;
    bool good = read_params(t, params, object, &p);
    json_decref(object);
    return good ? t->make(model, &p) : NULL;
}
