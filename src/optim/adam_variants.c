/* optim/adam_variants.c: Adamax, NAdam, RAdam as in torch.optim: Adam's
 * moments, other steps.
 *
 * Written in ops, as an optimizer of a user's may be: several passes over a
 * parameter where a kernel has one. They are for configurations that name them.
 * SPDX-License-Identifier: MIT */
#include "list.h"
#include "optim.h"

#include <math.h>

typedef struct Variant {
    double eps, momentum_decay;
    bool decoupled, maximize;
    /* NAdam: the product of mu(1) .. mu(at) for this beta */
    int64_t at;
    double beta;
    float product;
} Variant;

/* The beginning of all three: p and g in the moments' dtype, g with its sign
 * and decay, p decayed. */
typedef struct Begun {
    ds_tensor *p, *g;
} Begun;

static Begun variant_begin(const Variant *s, const ds_optim_values *v, const ds_optim_update *x)
{
    ds_dtype dtype = ds_dtype_of(x->moment[0]);
    ds_tensor *p = ds_cast(x->p, dtype), *g = ds_cast(x->grad, dtype);
    if (s->maximize) g = ds_neg(g);
    if (s->decoupled)
        p = ds_scale(p, 1 - v->lr * v->weight_decay);
    else if (v->weight_decay != 0)
        g = ds_add_scaled(g, p, v->weight_decay);
    return (Begun){p, g};
}

/* p = from + rate u */
static ds_status variant_finish(ds_tensor *p, ds_tensor *from, ds_tensor *u, double rate)
{
    ds_tensor *y = ds_add_scaled(from, u, rate);
    return y ? ds_copy(p, y) : ds_error_status();
}

/* u = max(b2 u, |g| + eps); p -= lr / (1 - b1^t) m / u */
static ds_status adamax_step(void *self, const ds_optim_values *v, const ds_optim_update *x)
{
    const Variant *s = self;
    Begun b = variant_begin(s, v, x);
    ds_tensor *m = dsi_optim_moment_update(x->moment[0], v->betas[0], b.g);
    ds_tensor *old = ds_scale(x->moment[1], v->betas[1]), *now = ds_shift(ds_abs(b.g), s->eps);
    ds_tensor *u = ds_where(ds_lt(old, now), now, old);
    if (!u || ds_copy(x->moment[1], u) != DS_OK) return ds_error_status();
    return variant_finish(x->p, b.p, ds_div(m, u),
                          -v->lr / (1 - pow(v->betas[0], (double)x->step)));
}

/* NAdam's momentum of step t: Dozat, ICLR workshop 2016, with torch's
 * schedule. */
static double mu(const Variant *s, double beta, int64_t t)
{
    return beta * (1 - 0.5 * pow(0.96, (double)t * s->momentum_decay));
}

/* In float32, as torch.optim keeps it, whatever the parameters' dtype.
 * Parameters take the same steps as a rule, so that the last product serves for
 * the next. */
static double mu_product(Variant *s, double beta, int64_t t)
{
    if (s->beta != beta || s->at > t || s->at == 0) s->beta = beta, s->at = 0, s->product = 1;
    while (s->at < t) s->product = (float)((float)mu(s, beta, ++s->at) * s->product);
    return (double)s->product;
}

/* arXiv 1412.6980 with Nesterov's momentum, whose factor grows with t: p -= lr
 * ((1 - mu_t) / (1 - prod mu) g + mu_(t+1) / (1 - prod mu mu_(t+1)) m) /
 * (sqrt(v^) + eps) */
static ds_status nadam_step(void *self, const ds_optim_values *v, const ds_optim_update *x)
{
    Variant *s = self;
    double b1 = v->betas[0], b2 = v->betas[1];
    double product = mu_product(s, b1, x->step), next = mu(s, b1, x->step + 1);
    Begun b = variant_begin(s, v, x);
    ds_tensor *m = dsi_optim_moment_update(x->moment[0], b1, b.g),
              *q = dsi_optim_moment_update(x->moment[1], b2, ds_mul(b.g, b.g));
    double c2 = 1 - pow(b2, (double)x->step);
    ds_tensor *root = ds_shift(ds_sqrt(ds_scale(q, 1 / c2)), s->eps);
    ds_tensor *u = ds_add_scaled(ds_scale(b.g, (1 - mu(s, b1, x->step)) / (1 - product)), m,
                                 next / (1 - product * next));
    return variant_finish(x->p, b.p, ds_div(u, root), -v->lr);
}

/* arXiv 1908.03265: without the second moment until its variance can be told
 * (rho > 5). */
static ds_status radam_step(void *self, const ds_optim_values *v, const ds_optim_update *x)
{
    const Variant *s = self;
    double b1 = v->betas[0], b2 = v->betas[1], t = (double)x->step;
    double c1 = 1 - pow(b1, t), c2 = 1 - pow(b2, t);
    double most = 2 / (1 - b2) - 1, rho = most - 2 * t * (1 - c2) / c2;
    Begun b = variant_begin(s, v, x);
    ds_tensor *m = dsi_optim_moment_update(x->moment[0], b1, b.g),
              *q = dsi_optim_moment_update(x->moment[1], b2, ds_mul(b.g, b.g));
    if (!m || !q) return ds_error_status();
    if (!(rho > 5)) return variant_finish(x->p, b.p, m, -v->lr / c1);
    double rect = sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho));
    return variant_finish(x->p, b.p, ds_div(m, ds_shift(ds_sqrt(q), s->eps)),
                          -v->lr / c1 * rect * sqrt(c2));
}

/* ---- types --------------------------------------------------------------------------------------------- */

#define COMMON \
    {"eps", DS_OPTION_DOUBLE, offsetof(Variant, eps)}, \
        {"maximize", DS_OPTION_BOOL, offsetof(Variant, maximize)}, {"foreach", DS_OPTION_NONE, 0}, \
        {"capturable", DS_OPTION_FALSE, 0}, \
    { \
        "differentiable", DS_OPTION_FALSE, 0 \
    }
#define DECOUPLED \
    { \
        "decoupled_weight_decay", DS_OPTION_BOOL, offsetof(Variant, decoupled) \
    }

static const ds_optim_option adamax_options[] = {COMMON, {0}};
static const ds_optim_option radam_options[] = {COMMON, DECOUPLED, {0}};
static const ds_optim_option nadam_options[] = {
    COMMON,
    DECOUPLED,
    {"momentum_decay", DS_OPTION_DOUBLE, offsetof(Variant, momentum_decay)},
    {0}};

static double nadam_product(void *self, const ds_optim_values *v, int64_t step)
{
    Variant s = *(Variant *)self;
    return mu_product(&s, v->betas[0], step);
}

static const ds_optim_type adamax_type = {.name = "adamax",
                                          .self_size = sizeof(Variant),
                                          .moment = {"exp_avg", "exp_inf"},
                                          .step = adamax_step,
                                          .has_betas = true,
                                          .options = adamax_options};
static const ds_optim_type nadam_type = {.name = "nadam",
                                         .self_size = sizeof(Variant),
                                         .moment = {"exp_avg", "exp_avg_sq"},
                                         .step = nadam_step,
                                         .has_betas = true,
                                         .options = nadam_options,
                                         .derived = "mu_product",
                                         .derive = nadam_product};
static const ds_optim_type radam_type = {.name = "radam",
                                         .self_size = sizeof(Variant),
                                         .moment = {"exp_avg", "exp_avg_sq"},
                                         .step = radam_step,
                                         .has_betas = true,
                                         .options = radam_options};

/* ---- constructors and entries -------------------------------------------------------------------------- */

DSI_ASSERT_BETAS(ds_adam_variant_opts);
#define PARAMS(rate) \
    DSI_LR(ds_adam_variant_opts, rate), DSI_BETAS(ds_adam_variant_opts, 0.9, 0.999), \
        DSI_EPS(ds_adam_variant_opts, 1e-8), DSI_WEIGHT_DECAY(ds_adam_variant_opts, 0), \
        DSI_MAXIMIZE(ds_adam_variant_opts), DSI_TORCH_IGNORED
#define PARAM_DECOUPLED \
    { \
        .name = "decoupled_weight_decay", .kind = DSI_PARAM_BOOL, \
        .offset = offsetof(ds_adam_variant_opts, decoupled), .help = "AdamW's weight decay" \
    }

static const dsi_param adamax_params[] = {PARAMS(2e-3), {0}};
static const dsi_param nadam_params[] = {
    PARAMS(2e-3),
    DSI_NUMBER(ds_adam_variant_opts, momentum_decay, "of the momentum's growth", 0.004),
    PARAM_DECOUPLED,
    {0}};
static const dsi_param radam_params[] = {PARAMS(1e-3), PARAM_DECOUPLED, {0}};

ds_optim *ds_optim_adamax_with(ds_module *model, ds_adam_variant_opts o)
{
    if (o.decoupled) return dsi_refuse("adamax: its weight decay is part of the gradient");
    return dsi_optim_from(model, &adamax_type, nadam_params, &o, sizeof o);
}

ds_optim *ds_optim_nadam_with(ds_module *model, ds_adam_variant_opts o)
{
    return dsi_optim_from(model, &nadam_type, nadam_params, &o, sizeof o);
}

ds_optim *ds_optim_radam_with(ds_module *model, ds_adam_variant_opts o)
{
    return dsi_optim_from(model, &radam_type, nadam_params, &o, sizeof o);
}

#define ENTRY(id, called) \
    const dsi_optim_entry dsi_optim_##id = {.name = called, \
                                            .type = &id##_type, \
                                            .source = "torch.optim." called, \
                                            .params = id##_params, \
                                            .params_size = sizeof(ds_adam_variant_opts)};
ENTRY(adamax, "Adamax")
ENTRY(nadam, "NAdam")
ENTRY(radam, "RAdam")
