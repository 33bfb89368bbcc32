/* optim/muon.c: Muon for matrices, AdamW for the rest: DeepSpeed's
 * MuonWithAuxAdam.
 *
 * A matrix moves by its momentum with all singular values brought near 1. That
 * is made of products (ds_matmul), which take nearly all of the time; AdamW is
 * the kernel of adam.c.
 *
 * Invariants: a group is updated by one of the two, values->use_muon; its
 * parameters have moments 0 and 1 (AdamW) or moment 2 (Muon). A matrix is
 * updated as a whole, so ZeRO brings each to one rank.
 *
 * Source: kellerjordan.github.io/posts/muon; tridao.me/blog/2026/gram-newton-schulz.
 * SPDX-License-Identifier: MIT */
#include "list.h"
#include "optim.h"

#include <math.h>
#include <strings.h>

enum { BUFFER = 2 }; /* the moment of Muon's momentum */

typedef struct Muon {
    dsi_adam adam;
    bool standard, no_nesterov;
    int steps;
    double a, b, c; /* a step brings a singular value x in (0, 1] to a x + b x^3 + c x^5 */
    ds_muon_adjust adjust;
} Muon;

/* ---- orthogonal matrices ------------------------------------------------------------------------------- */

static ds_tensor *transposed(ds_tensor *x) { return ds_transpose(x, -2, -1); }

/* b g + c g^2 of a Gram matrix g. Polynomials of g = x x^T act on the singular
 * values of x alone. */
static ds_tensor *polynomial(const Muon *s, ds_tensor *g)
{
    return ds_add_scaled(ds_scale(g, s->b), ds_matmul(g, g), s->c);
}

/* a x + z y. With z = polynomial(x x^T) this is one step of Newton and Schulz:
 * every singular value v of x becomes a v + b v^3 + c v^5. */
static ds_tensor *iterate(const Muon *s, ds_tensor *z, ds_tensor *x)
{
    return ds_add_scaled(ds_matmul(z, x), x, s->a);
}

/* The products are of [n,m] with n <= m. */
static ds_tensor *orthogonal_standard(const Muon *s, ds_tensor *x)
{
    for (int i = 0; i < s->steps; i++)
        x = iterate(s, polynomial(s, ds_matmul(x, transposed(x))), x);
    return x;
}

/* The same with the iterations on x x^T [n,n] in place of x [n,m]: a step of x
 * is x = (a + z) x, that of its Gram matrix r = (a + z) r (a + z). The product
 * of the factors is applied after two steps, as in DeepSpeed, and at the end. */
static ds_tensor *orthogonal_gram(const Muon *s, ds_tensor *x)
{
    const int restart = 2;
    ds_tensor *r = ds_matmul(x, transposed(x)), *q = NULL;
    for (int i = 0; i < s->steps; i++) {
        if (i == restart) {
            x = ds_matmul(q, x);
            r = ds_matmul(x, transposed(x)), q = NULL;
        }
        ds_tensor *z = polynomial(s, r);
        if (q) {
            q = iterate(s, z, q);
        } else { /* a + z */
            ds_dims size = ds_shape(ds_size(z, -1));
            ds_tensor *at = ds_arange(DS_I64, 0, (double)size.d[0], 1);
            at = ds_to(at, ds_device_of(z), DS_I64);
            ds_tensor *one = ds_cast(ds_eq(ds_unsqueeze(at, 1), at), ds_dtype_of(z));
            q = ds_add_scaled(z, one, s->a);
        }
        if (i + 1 < s->steps && i + 1 != restart) r = iterate(s, z, iterate(s, z, r));
    }
    return ds_matmul(q, x);
}

/* x [..,a,b] -> near U V^T of its singular values' decomposition U S V^T. x is
 * divided by its Frobenius norm first, which brings all singular values into
 * (0, 1], the range of the polynomial. A tall matrix is transposed, so that
 * the Gram matrix is the smaller one. A square one saves nothing by the Gram
 * form. */
static ds_tensor *orthogonal(const Muon *s, ds_tensor *x)
{
    bool tall = ds_size(x, -2) > ds_size(x, -1);
    if (tall) x = transposed(x);
    ds_reduce_opts both = {.dims = {.n = 2, .d = {-2, -1}}, .keepdim = true};
    ds_tensor *norm = ds_sqrt(ds_sum_with(ds_mul(x, x), both));
    x = ds_div(x, ds_shift(norm, 1e-7));
    bool square = ds_size(x, -2) == ds_size(x, -1);
    x = s->standard || square ? orthogonal_standard(s, x) : orthogonal_gram(s, x);
    return tall ? transposed(x) : x;
}

/* ---- the step ------------------------------------------------------------------------------------------ */

/* As DeepSpeed, of the parameter's last two dimensions, of a filter too. */
static double rate_factor(ds_muon_adjust adjust, const ds_tensor *p)
{
    double rows = (double)ds_size(p, -2), columns = (double)ds_size(p, -1);
    switch (adjust) {
    case DS_MUON_MATCH_RMS_ADAMW:
        return 0.2 * sqrt(fmax(rows, columns));
    case DS_MUON_UNCLAMPED:
        return sqrt(rows / columns);
    default:
        return sqrt(fmax(1, rows / columns));
    }
}

static ds_status matrix_update(const Muon *s, const ds_optim_values *v, const ds_optim_update *x)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *m = x->moment[BUFFER], *g = ds_cast(x->grad, ds_dtype_of(m));
    if (x->grad_scale != 1) g = ds_scale(g, x->grad_scale);
    m = dsi_optim_moment_update(m, v->momentum, g);
    ds_tensor *u = s->no_nesterov ? m : ds_add_scaled(ds_scale(g, 1 - v->momentum), m, v->momentum);
    if (u && ds_ndim(u) == 4) u = ds_reshape(u, ds_shape(ds_size(u, 0), -1));
    if (u) u = orthogonal(s, u);
    if (u) u = ds_reshape(u, ds_shape_of(x->p));
    ds_tensor *p = ds_scale(ds_cast(x->p, ds_dtype_of(x->moment[BUFFER])),
                            1 - v->lr * v->weight_decay);
    ds_tensor *y = ds_add_scaled(p, u, -v->lr * rate_factor(s->adjust, x->p));
    ds_status status = y ? ds_copy(x->p, y) : ds_error_status();
    if (status == DS_OK && x->copy)
        status = dsi_optim_round(ds_reshape(x->copy, ds_shape_of(x->p)), x->p);
    ds_scope_close(scope);
    return status;
}

static ds_status muon_step(void *self, const ds_optim_values *v, const ds_optim_update *x, int n)
{
    const Muon *s = self;
    ds_status status = DS_OK;
    for (int i = 0; v->use_muon && status == DS_OK && i < n; i++)
        status = matrix_update(s, v, &x[i]);
    if (v->use_muon) return status;
    dsi_adam c = s->adam;
    c.lr = v->lr, c.beta1 = v->betas[0], c.beta2 = v->betas[1], c.weight_decay = v->weight_decay;
    return dsi_optim_run(&(dsi_optimizer){.rule = DSI_ADAM, .adam = c}, x, n);
}

static bool muon_uses(const void *self, const ds_optim_values *v, int i)
{
    (void)self;
    return (i == BUFFER) == v->use_muon;
}

static const ds_optim_option muon_options[] = {{"eps", DS_OPTION_DOUBLE, offsetof(Muon, adam.eps)},
                                               {0}};

static const ds_optim_type muon_type = {.name = "muon",
                                        .self_size = sizeof(Muon),
                                        .moment = {"exp_avg", "exp_avg_sq", "momentum_buffer"},
                                        .step_n = muon_step,
                                        .uses = muon_uses,
                                        .has_betas = true,
                                        .has_momentum = true,
                                        .whole = true,
                                        .mixed = true,
                                        .options = muon_options};

/* ---- constructor and entry ------------------------------------------------------------------------------ */

/* The options, and what configurations alone have. */
typedef struct MuonParams {
    ds_muon_opts o;
    double muon_lr;
    int ns_method;
    bool adam_w_mode, per_head_muon, fp32_optimizer_states;
} MuonParams;

DSI_ASSERT_BETAS(ds_muon_opts);
#define UNSET (-1) /* a rate that the configuration does not name */
#define RATE(key, self, member, default_, what) \
    DSI_PARAM(key, NUMBER, NOT_NEGATIVE, self, member, .exact = true, .value = {UNSET}, \
              .otherwise = default_, .help = what)
static const char *const ns_methods[] = {"gram", "standard", NULL};
static const dsi_param muon_params[] = {
    RATE("lr", ds_muon_opts, lr, "`muon_lr` 0.02, `adam_lr` 0.0003", "learning rate"),
    RATE("muon_lr", MuonParams, muon_lr, "`lr`", "rate of the matrices that Muon updates"),
    RATE("adam_lr", ds_muon_opts, adam_lr, "`lr`", "rate of the parameters that AdamW updates"),
    DSI_PARAM("momentum", NUMBER, BETA, ds_muon_opts, momentum, .value = {0.95},
              .help = "factor of the last update"),
    DSI_BETAS(ds_muon_opts, 0.9, 0.95),
    DSI_EPS(ds_muon_opts, 1e-10),
    DSI_WEIGHT_DECAY(ds_muon_opts, 0),
    DSI_PARAM("ns_method", CHOICE, ANY, MuonParams, ns_method, .choices = ns_methods,
              .help = "which matrices the iterations multiply: the same result"),
    DSI_PARAM("adam_w_mode", BOOL, ANY, MuonParams, adam_w_mode, .value = {true},
              .help = "AdamW's weight decay; false: Adam's, for what Muon does not update"),
    DSI_PARAM("per_head_muon", BOOL, ANY, MuonParams, per_head_muon, .value = {false},
              .help = "true is refused: a matrix is updated as a whole"),
    DSI_PARAM("fp32_optimizer_states", BOOL, ANY, MuonParams, fp32_optimizer_states,
              .value = {true}, .help = "false is refused: moments are float32"),
    DSI_IGNORED("torch_adam"), /* the same rule, with the same defaults */
    {0}};

static bool muon_check(const char *prefix, const void *params)
{
    const MuonParams *p = params;
    if (p->per_head_muon)
        return dsi_refuse("%sper_head_muon is true: a matrix is updated as a whole here", prefix);
    if (!p->fp32_optimizer_states)
        return dsi_refuse("%sfp32_optimizer_states is false: moments are float32 here", prefix);
    return true;
}

static bool is_for_adam(void *arg, const char *path, const ds_tensor *p)
{
    (void)arg;
    if (ds_ndim(p) < 2) return true;
    for (; *path; path++)
        if (!strncasecmp(path, "embed", 5) || !strncasecmp(path, "lm_head", 7)) return true;
    return false;
}

static void groups_make(ds_optim *optim, const ds_muon_opts *o)
{
    int matrices = 0;
    for (int i = 0; i < optim->n; i++)
        matrices += !is_for_adam(NULL, optim->params[i].path, optim->params[i].of);
    int adam = matrices == optim->n ? -1
               : matrices           ? ds_optim_add_group(optim, is_for_adam, NULL)
                                    : 0;
    if (matrices)
        optim->groups[0] = (ds_optim_values){o->lr, o->weight_decay, o->momentum, .use_muon = true};
    if (adam >= 0)
        optim->groups[adam] = (ds_optim_values){o->adam_lr, o->weight_decay,
                                                .betas = {o->beta1, o->beta2}};
}

ds_optim *ds_optim_muon_with(ds_module *model, ds_muon_opts o)
{
    if (o.adam_lr == 0) o.adam_lr = o.lr;
    if (!dsi_params_check("muon", muon_params, &o, sizeof o)) return NULL;
    if (o.ns_steps < 0 || o.ns_steps > 100)
        return dsi_refuse("muon: ns_steps is %d: expected 1 to 100, or 0 for 5", o.ns_steps);
    const double *given = o.ns_coefficients, usual[3] = {3.4445, -4.7750, 2.0315};
    for (int i = 0; i < 3; i++)
        if (!isfinite(given[i]))
            return dsi_refuse("muon: ns_coefficients[%d] is %g: expected a number", i, given[i]);
    const double *k = given[0] != 0 || given[1] != 0 || given[2] != 0 ? given : usual;
    ds_optim *optim = ds_optim_new(model, &muon_type, (ds_optim_values){0});
    if (!optim) return NULL;
    *(Muon *)optim->self = (Muon){
        .adam = {.eps = o.eps, .decoupled = true, .bias_correction = true},
        .standard = o.ns_standard,
        .no_nesterov = o.no_nesterov,
        .steps = o.ns_steps ? o.ns_steps : 5,
        .a = k[0],
        .b = k[1],
        .c = k[2],
        .adjust = o.adjust_lr,
    };
    groups_make(optim, &o);
    return optim;
}

static double first_set(double a, double b, double otherwise)
{
    return a != UNSET ? a : b != UNSET ? b : otherwise;
}

static ds_optim *muon_make(ds_module *model, const void *params)
{
    MuonParams p = *(const MuonParams *)params;
    double lr = p.o.lr;
    p.o.lr = first_set(p.muon_lr, lr, 0.02);
    p.o.adam_lr = first_set(p.o.adam_lr, lr, 3e-4);
    p.o.ns_standard = p.ns_method == 1;
    ds_optim *optim = ds_optim_muon_with(model, p.o);
    if (optim) ((Muon *)optim->self)->adam.decoupled = p.adam_w_mode;
    return optim;
}

const dsi_optim_entry dsi_optim_muon = {.name = "Muon",
                                        .type = &muon_type,
                                        .source = "deepspeed.runtime.zero.muon",
                                        .deepspeed = true,
                                        .zero_tested = true,
                                        .params = muon_params,
                                        .params_size = sizeof(MuonParams),
                                        .check = muon_check,
                                        .make = muon_make};
