/* optim/adam_variants.c: Adamax, NAdam, RAdam as in torch.optim: Adam's moments, other steps.
 *
 * Written in ops, as an optimizer of a user's may be: several passes over a parameter where a kernel has
 * one. They are for configurations that name them.
 * SPDX-License-Identifier: MIT */
#include "optim.h"

#include <math.h>

typedef struct Variant {
    double eps, momentum_decay;
    bool decoupled, maximize;
    /* NAdam: the product of mu(1) .. mu(at) for this beta */
    int64_t at;
    double beta, product;
} Variant;

/* What all three begin with: p and g in the moments' dtype, g with its sign and decay, p decayed. */
typedef struct Begun {
    ds_tensor *p, *g;
} Begun;

static Begun begin(const Variant *s, const ds_optim_values *v, const ds_optim_update *x)
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

/* moment = beta moment + (1 - beta) x, returned */
static ds_tensor *mix(ds_tensor *moment, double beta, ds_tensor *x)
{
    ds_tensor *y = ds_add_scaled(ds_scale(moment, beta), x, 1 - beta);
    return y && ds_copy(moment, y) == DS_OK ? moment : NULL;
}

/* p = from + rate u */
static ds_status finish(ds_tensor *p, ds_tensor *from, ds_tensor *u, double rate)
{
    ds_tensor *y = ds_add_scaled(from, u, rate);
    return y ? ds_copy(p, y) : ds_error_status();
}

/* u = max(b2 u, |g| + eps); p -= lr / (1 - b1^t) m / u */
static ds_status adamax(void *self, const ds_optim_values *v, const ds_optim_update *x)
{
    const Variant *s = self;
    Begun b = begin(s, v, x);
    ds_tensor *m = mix(x->moment[0], v->betas[0], b.g);
    ds_tensor *old = ds_scale(x->moment[1], v->betas[1]), *now = ds_shift(ds_abs(b.g), s->eps);
    ds_tensor *u = ds_where(ds_lt(old, now), now, old);
    if (!u || ds_copy(x->moment[1], u) != DS_OK) return ds_error_status();
    return finish(x->p, b.p, ds_div(m, u), -v->lr / (1 - pow(v->betas[0], (double)x->step)));
}

static double mu(const Variant *s, double beta, int64_t t)
{
    return beta * (1 - 0.5 * pow(0.96, (double)t * s->momentum_decay));
}

/* Parameters take the same steps as a rule, so that the last product serves for the next. */
static double mu_product(Variant *s, double beta, int64_t t)
{
    if (s->beta != beta || s->at > t || s->at == 0) s->beta = beta, s->at = 0, s->product = 1;
    while (s->at < t) s->product *= mu(s, beta, ++s->at);
    return s->product;
}

/* arXiv 1412.6980 with Nesterov's momentum, whose factor grows with t:
 * p -= lr ((1 - mu_t) / (1 - prod mu) g + mu_(t+1) / (1 - prod mu mu_(t+1)) m) / (sqrt(v^) + eps) */
static ds_status nadam(void *self, const ds_optim_values *v, const ds_optim_update *x)
{
    Variant *s = self;
    double b1 = v->betas[0], b2 = v->betas[1];
    double product = mu_product(s, b1, x->step), next = mu(s, b1, x->step + 1);
    Begun b = begin(s, v, x);
    ds_tensor *m = mix(x->moment[0], b1, b.g), *q = mix(x->moment[1], b2, ds_mul(b.g, b.g));
    double c2 = 1 - pow(b2, (double)x->step);
    ds_tensor *root = ds_shift(ds_sqrt(ds_scale(q, 1 / c2)), s->eps);
    ds_tensor *u = ds_add_scaled(ds_scale(b.g, (1 - mu(s, b1, x->step)) / (1 - product)), m,
                                 next / (1 - product * next));
    return finish(x->p, b.p, ds_div(u, root), -v->lr);
}

/* arXiv 1908.03265: without the second moment until its variance can be told (rho > 5). */
static ds_status radam(void *self, const ds_optim_values *v, const ds_optim_update *x)
{
    const Variant *s = self;
    double b1 = v->betas[0], b2 = v->betas[1], t = (double)x->step;
    double c1 = 1 - pow(b1, t), c2 = 1 - pow(b2, t);
    double most = 2 / (1 - b2) - 1, rho = most - 2 * t * (1 - c2) / c2;
    Begun b = begin(s, v, x);
    ds_tensor *m = mix(x->moment[0], b1, b.g), *q = mix(x->moment[1], b2, ds_mul(b.g, b.g));
    if (!m || !q) return ds_error_status();
    if (!(rho > 5)) return finish(x->p, b.p, m, -v->lr / c1);
    double rect = sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho));
    return finish(x->p, b.p, ds_div(m, ds_shift(ds_sqrt(q), s->eps)),
                  -v->lr / c1 * rect * sqrt(c2));
}

/* ---- constructors ---------------------------------------------------------------------------------------- */

static ds_optim *make(const ds_optim_type *type, ds_module *model, ds_adam_variant_opts o)
{
    const char *name = type->name;
    o.beta1 = dsi_optim_default(o.beta1, 0.9);
    o.beta2 = dsi_optim_default(o.beta2, 0.999);
    o.eps = dsi_optim_default(o.eps, 1e-8);
    o.momentum_decay = dsi_optim_default(o.momentum_decay, 0.004);
    if (!dsi_optim_not_negative(name, "lr", o.lr) || !dsi_optim_not_negative(name, "eps", o.eps) ||
        !dsi_optim_not_negative(name, "weight_decay", o.weight_decay) ||
        !dsi_optim_not_negative(name, "momentum_decay", o.momentum_decay) ||
        !dsi_optim_is_beta(name, "beta1", o.beta1) || !dsi_optim_is_beta(name, "beta2", o.beta2))
        return NULL;
    ds_optim_values v = {o.lr, o.weight_decay, .betas = {o.beta1, o.beta2}};
    Variant self = {.eps = o.eps,
                    .momentum_decay = o.momentum_decay,
                    .decoupled = o.decoupled,
                    .maximize = o.maximize};
    return dsi_optim_with(model, type, v, &self);
}

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

ds_optim *ds_optim_adamax_with(ds_module *model, ds_adam_variant_opts opts)
{
    static const ds_optim_type type = {
        "adamax",       sizeof(Variant),   {"exp_avg", "exp_inf"},
        .step = adamax, .has_betas = true, .options = adamax_options};
    if (opts.decoupled) return dsi_refuse("adamax: its weight decay is part of the gradient");
    return make(&type, model, opts);
}

ds_optim *ds_optim_nadam_with(ds_module *model, ds_adam_variant_opts opts)
{
    static const ds_optim_type type = {"nadam",
                                       sizeof(Variant),
                                       {"exp_avg", "exp_avg_sq"},
                                       .step = nadam,
                                       .has_betas = true,
                                       .options = nadam_options,
                                       .derived = "mu_product",
                                       .derive = nadam_product};
    return make(&type, model, opts);
}

ds_optim *ds_optim_radam_with(ds_module *model, ds_adam_variant_opts opts)
{
    static const ds_optim_type type = {"radam",       sizeof(Variant),   {"exp_avg", "exp_avg_sq"},
                                       .step = radam, .has_betas = true, .options = radam_options};
    return make(&type, model, opts);
}
