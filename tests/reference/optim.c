/* tests/reference/optim.c: the files of folder optim: parameter traces over
 * given gradients, by torch's and DeepSpeed's optimizers, gradient clipping,
 * and what DeepSpeed makes of optimizer blocks.
 *
 * A trace's options are read strictly: one that is not known here fails the
 * case. torch's zeros for betas, eps and alpha, where 0 means the default in
 * our options, become DS_ZERO.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference.h"

#include <deepspeed/optim.h>

/* ---- options from JSON ----------------------------------------------------------------------------- */

/* The variable of a number or a truth value of "params". */
typedef struct Option {
    const char *key;
    double *number;
    bool *flag;
} Option;

static double as_option(double x) { return x == 0 ? DS_ZERO : x; }

/* Ways of computing the same. */
static bool is_implementation(const char *key)
{
    static const char *const known[] = {"foreach", "fused", "capturable", "differentiable",
                                        "set_grad_none"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(key, known[i])) return true;
    return false;
}

static void read_one(Reference *r, const char *key, json_t *value, const Option *o)
{
    for (; o->key; o++) {
        if (!strcmp(o->key, "betas") && !strcmp(key, "betas")) {
            o[0].number[0] = as_option(reference_number(json_array_get(value, 0), NAN));
            o[0].number[1] = as_option(reference_number(json_array_get(value, 1), NAN));
            return;
        }
        if (strcmp(o->key, key) != 0) continue;
        if (o->flag)
            *o->flag = json_is_true(value);
        else
            *o->number = reference_number(value, NAN);
        return;
    }
    if (!is_implementation(key)) reference_fail(r, "option %s is not known here", key);
}

static void read_options(Reference *r, const Option *options)
{
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(r->json, "params"), key, value)
        read_one(r, key, value, options);
}

/* ---- optimizers by name ------------------------------------------------------------------------------ */

static ds_optim *make_sgd(Reference *r, ds_module *m)
{
    ds_sgd_opts o = {.lr = 1e-3};
    read_options(r, (Option[]){{"lr", &o.lr, NULL},
                               {"momentum", &o.momentum, NULL},
                               {"dampening", &o.dampening, NULL},
                               {"weight_decay", &o.weight_decay, NULL},
                               {"nesterov", NULL, &o.nesterov},
                               {"maximize", NULL, &o.maximize},
                               {0}});
    return ds_optim_sgd_with(m, o);
}

static ds_optim *make_adam_like(Reference *r, ds_module *m, ds_adam_opts o, bool decoupled)
{
    double betas[2] = {0.9, 0.999};
    bool bias_correction = true, fp32_states = true;
    o.lr = 1e-3;
    o.eps = 1e-8;
    read_options(r, (Option[]){{"lr", &o.lr, NULL},
                               {"betas", betas, NULL},
                               {"eps", &o.eps, NULL},
                               {"weight_decay", &o.weight_decay, NULL},
                               {"amsgrad", NULL, &o.amsgrad},
                               {"maximize", NULL, &o.maximize},
                               {"bias_correction", NULL, &bias_correction},
                               {"decoupled_weight_decay", NULL, &decoupled},
                               {"adam_w_mode", NULL, &decoupled},
                               {"adamw_mode", NULL, &decoupled},
                               {"fp32_optimizer_states", NULL, &fp32_states},
                               {0}});
    if (!fp32_states) {
        reference_skip(r, "moments of less than float32 are not offered");
        return NULL;
    }
    o.beta1 = betas[0];
    o.beta2 = betas[1];
    o.eps = as_option(o.eps);
    o.no_bias_correction = !bias_correction;
    return decoupled ? ds_optim_adamw_with(m, o) : ds_optim_adam_with(m, o);
}

static ds_optim *make_adam(Reference *r, ds_module *m)
{
    return make_adam_like(r, m, (ds_adam_opts){0}, false);
}

static ds_optim *make_adamw(Reference *r, ds_module *m)
{
    return make_adam_like(r, m, (ds_adam_opts){.weight_decay = 0.01}, true);
}

static ds_optim *make_deepspeed_adam(Reference *r, ds_module *m)
{
    /* an option of ours, but not of DeepSpeed's name for it */
    if (reference_bool(json_object_get(r->json, "params"), "amsgrad", false))
        return ds_optim_by_name(m, "Adam", "{\"amsgrad\": true}");
    return make_adam_like(r, m, (ds_adam_opts){0}, true);
}

static ds_optim *make_adagrad(Reference *r, ds_module *m)
{
    ds_adagrad_opts o = {.lr = 1e-2, .eps = 1e-10};
    bool amsgrad; /* DeepSpeed's class takes it and does nothing with it */
    read_options(r, (Option[]){{"lr", &o.lr, NULL},
                               {"lr_decay", &o.lr_decay, NULL},
                               {"weight_decay", &o.weight_decay, NULL},
                               {"initial_accumulator_value", &o.initial_accumulator_value, NULL},
                               {"eps", &o.eps, NULL},
                               {"maximize", NULL, &o.maximize},
                               {"amsgrad", NULL, &amsgrad},
                               {0}});
    o.eps = as_option(o.eps);
    return ds_optim_adagrad_with(m, o);
}

static ds_optim *make_rmsprop(Reference *r, ds_module *m)
{
    ds_rmsprop_opts o = {.lr = 1e-2, .alpha = 0.99, .eps = 1e-8};
    read_options(r, (Option[]){{"lr", &o.lr, NULL},
                               {"alpha", &o.alpha, NULL},
                               {"eps", &o.eps, NULL},
                               {"weight_decay", &o.weight_decay, NULL},
                               {"momentum", &o.momentum, NULL},
                               {"centered", NULL, &o.centered},
                               {"maximize", NULL, &o.maximize},
                               {0}});
    o.alpha = as_option(o.alpha);
    o.eps = as_option(o.eps);
    return ds_optim_rmsprop_with(m, o);
}

static ds_optim *make_adadelta(Reference *r, ds_module *m)
{
    ds_adadelta_opts o = {.lr = 1, .rho = 0.9, .eps = 1e-6};
    read_options(r, (Option[]){{"lr", &o.lr, NULL},
                               {"rho", &o.rho, NULL},
                               {"eps", &o.eps, NULL},
                               {"weight_decay", &o.weight_decay, NULL},
                               {"maximize", NULL, &o.maximize},
                               {0}});
    o.rho = as_option(o.rho);
    o.eps = as_option(o.eps);
    return ds_optim_adadelta_with(m, o);
}

static ds_optim *make_adam_variant(Reference *r, ds_module *m)
{
    const char *name = reference_text(r->json, "optimizer", "");
    double betas[2] = {0.9, 0.999};
    ds_adam_variant_opts o = {.lr = strstr(name, "RAdam") ? 1e-3 : 2e-3};
    read_options(r, (Option[]){{"lr", &o.lr, NULL},
                               {"betas", betas, NULL},
                               {"eps", &o.eps, NULL},
                               {"weight_decay", &o.weight_decay, NULL},
                               {"momentum_decay", &o.momentum_decay, NULL},
                               {"decoupled_weight_decay", NULL, &o.decoupled},
                               {"maximize", NULL, &o.maximize},
                               {0}});
    o.beta1 = betas[0];
    o.beta2 = betas[1];
    if (strstr(name, "Adamax")) return ds_optim_adamax_with(m, o);
    return strstr(name, "NAdam") ? ds_optim_nadam_with(m, o) : ds_optim_radam_with(m, o);
}

static ds_optim *make_lion(Reference *r, ds_module *m)
{
    ds_lion_opts o = {.lr = 1e-3};
    double betas[2] = {0.9, 0.999}; /* DeepSpeed's default; the paper's, and ours, is 0.99 */
    read_options(r, (Option[]){{"lr", &o.lr, NULL},
                               {"betas", betas, NULL},
                               {"weight_decay", &o.weight_decay, NULL},
                               {0}});
    o.beta1 = betas[0];
    o.beta2 = betas[1];
    return ds_optim_lion_with(m, o);
}

static ds_optim *make_muon(Reference *r, ds_module *m)
{
    ds_muon_opts o = {0};
    bool unused; /* which rule the group has, and how its iterations compute */
    read_options(r, (Option[]){{"lr", &o.lr, NULL},
                               {"momentum", &o.momentum, NULL},
                               {"weight_decay", &o.weight_decay, NULL},
                               {"use_muon", NULL, &unused},
                               {"adam_w_mode", NULL, &unused},
                               {"ns_method", NULL, &unused},
                               {0}});
    return ds_optim_muon_with(m, o);
}

static const struct {
    const char *name;
    ds_optim *(*make)(Reference *r, ds_module *m);
} optimizers[] = {
    {"torch.SGD", make_sgd},
    {"torch.Adam", make_adam},
    {"torch.AdamW", make_adamw},
    {"torch.Adagrad", make_adagrad},
    {"torch.RMSprop", make_rmsprop},
    {"torch.Adadelta", make_adadelta},
    {"torch.Adamax", make_adam_variant},
    {"torch.NAdam", make_adam_variant},
    {"torch.RAdam", make_adam_variant},
    {"deepspeed.FusedAdam", make_deepspeed_adam},
    {"deepspeed.DeepSpeedCPUAdam", make_deepspeed_adam},
    {"deepspeed.DeepSpeedCPULion", make_lion},
    {"deepspeed.DeepSpeedCPUAdagrad", make_adagrad},
    {"deepspeed.MuonWithAuxAdam", make_muon},
};

/* ---- traces ---------------------------------------------------------------------------------------------- */

static ds_dtype dtype_named(const char *name)
{
    for (int i = 0; i < DS_DTYPES; i++)
        if (!strcmp(ds_dtype_name((ds_dtype)i), name)) return (ds_dtype)i;
    return DS_F32;
}

/* A module whose parameters are the "init.NAME" of the given file. */
static ds_module *make_module(const ds_state *given, ds_dtype dtype, bool zero)
{
    static const ds_module_type type = {.name = "Given"};
    ds_module *m = ds_module_new(NULL, "given", &type);
    for (int i = 0; i < ds_state_len(given); i++) {
        const char *name = ds_state_name(given, i);
        ds_tensor *x = ds_state_at(given, i);
        if (strncmp(name, "init.", 5) != 0) continue;
        x = zero ? ds_zeros(dtype, ds_shape_of(x)) : ds_clone(ds_cast(x, dtype));
        ds_module_param(m, name + 5, x);
    }
    return m;
}

static ds_tensor *numbered(const ds_state *state, const char *what, int step, const char *param)
{
    char name[200];
    snprintf(name, sizeof name, "%s%02d.%s", what, step, param);
    return ds_state_get(state, name);
}

static bool has_no_grad(const Reference *r, const char *param, int step)
{
    const json_t *steps = json_object_get(json_object_get(r->json, "no_grad_at"), param);
    for (size_t i = 0; i < json_array_size(steps); i++)
        if (json_integer_value(json_array_get(steps, i)) == step) return true;
    return false;
}

/* Each parameter after each step. */
static void follow(Reference *r, ds_module *m, ds_optim *o, const ds_state *given)
{
    const json_t *rates = json_object_get(r->json, "lr_per_step");
    double atol = reference_double(r->json, "atol", 0), rtol = reference_double(r->json, "rtol", 0);
    int steps = (int)reference_int(r->json, "steps", 0);
    if (steps < 1) reference_fail(r, "the case has no steps");
    for (int k = 1; k <= steps && !r->failures; k++) {
        ds_scope *scope = ds_scope_open();
        const char *path;
        json_t *rate = json_array_get(rates, (size_t)k - 1);
        if (json_is_number(rate)) ds_optim_set_lr(o, json_number_value(rate));
        ds_optim_zero_grad(o);
        for (int i = 0; i < ds_module_params(m); i++) {
            ds_tensor *p = ds_module_param_at(m, i, &path);
            if (has_no_grad(r, path, k)) continue;
            ds_set_grad_of(p, ds_clone(ds_cast(numbered(given, "grad", k, path), ds_dtype_of(p))));
        }
        if (ds_optim_step(o) != DS_OK) reference_fail(r, "step %d: %s", k, ds_error());
        for (int i = 0; i < ds_module_params(m); i++) {
            char what[200];
            ds_tensor *p = ds_module_param_at(m, i, &path);
            snprintf(what, sizeof what, "step%02d.%s", k, path);
            reference_within(r, what, p, reference_tensor(r, what), atol, rtol);
        }
        ds_scope_close(scope);
    }
}

static double largest(ds_tensor *x)
{
    double most = 0;
    const float *p = ds_data(ds_cast(x, DS_F32));
    for (int64_t i = 0; p && i < ds_numel(x); i++) most = fmax(most, fabs((double)p[i]));
    return most;
}

/* How far off a moment may be, relative to the largest: the files size no
 * tolerance for them. 20 roundings; and DeepSpeed's kernels compute 1 - beta2
 * in float32, which is off by up to 2^-24. */
static double state_tolerance(const Reference *r)
{
    json_t *all = json_object_get(r->json, "all_hyperparameters");
    double beta2 = reference_number(json_array_get(json_object_get(all, "betas"), 1), 0);
    bool deepspeed = !strncmp(reference_text(r->json, "optimizer", ""), "deepspeed.", 10);
    return 20 * 6e-8 + (deepspeed ? 6e-8 / (1 - beta2) : 0);
}

/* The moments at the end: "state.NAME.exp_avg" is our "exp_avg.NAME".
 * DeepSpeed's Adagrad calls its sum exp_avg_sq, and its Lion has one that
 * nothing uses. NAdam's mu_product follows from the step. */
static void check_state(Reference *r, const ds_optim *o)
{
    const char *optimizer = reference_text(r->json, "optimizer", "");
    double tolerance = state_tolerance(r);
    ds_state *state = ds_optim_state(o);
    for (int i = 0; i < ds_state_len(r->tensors); i++) {
        char param[100], kind[100], ours[220];
        const char *name = ds_state_name(r->tensors, i);
        if (sscanf(name, "state.%99[^.].%99s", param, kind) != 2) continue;
        if (!strcmp(kind, "exp_avg_sq") && strstr(optimizer, "Lion")) continue;
        if (!strcmp(kind, "mu_product")) continue;
        if (!strcmp(kind, "exp_avg_sq") && strstr(optimizer, "Adagrad")) snprintf(kind, 100, "sum");
        snprintf(ours, sizeof ours, "%s.%s", kind, param);
        ds_tensor *want = ds_state_at(r->tensors, i), *got = ds_state_get(state, ours);
        if (got) got = ds_cast(got, ds_dtype_of(want));
        reference_within(r, name, got, want, tolerance * largest(want), 0);
    }
    ds_state_free(state);
}

static void trace(Reference *r)
{
    const char *name = reference_text(r->json, "optimizer", "");
    bool raises = json_object_get(r->json, "raises") != NULL;
    size_t n = sizeof optimizers / sizeof *optimizers, i = 0;
    while (i < n && strcmp(optimizers[i].name, name) != 0) i++;
    if (i == n) {
        reference_fail(r, "optimizer %s is not known here", name);
        return;
    }
    ds_state *given = reference_load(r, reference_text(r->json, "given", "given.safetensors"));
    ds_module *m = make_module(given, dtype_named(reference_text(r->json, "dtype", "float32")),
                               false);
    ds_optim *o = optimizers[i].make(r, m);
    if (raises && o)
        reference_fail(r, "%s takes what it must refuse", name);
    else if (raises && !r->skipped && ds_error_status() != DS_EINVAL)
        reference_fail(r, "%s refuses without a message", name);
    else if (!raises && !o && !r->skipped)
        reference_fail(r, "%s: %s", name, ds_error());
    if (o && !raises) {
        follow(r, m, o, given);
        if (!r->failures) check_state(r, o);
    }
    ds_optim_free(o);
    ds_module_free(m);
    ds_state_free(given);
}

/* ---- clipping -------------------------------------------------------------------------------------------- */

static double l2(ds_module *m)
{
    double sum = 0;
    for (int i = 0; i < ds_module_params(m); i++) {
        ds_tensor *g = ds_grad(ds_module_param_at(m, i, NULL));
        const float *p = ds_data(g);
        for (int64_t k = 0; p && k < ds_numel(g); k++) sum += (double)p[k] * (double)p[k];
    }
    return sqrt(sum);
}

static void set_grads(ds_module *m, const ds_state *given, const json_t *c)
{
    const char *path, *poison = reference_text(c, "poison", "");
    for (int i = 0; i < ds_module_params(m); i++) {
        ds_tensor *p = ds_module_param_at(m, i, &path);
        ds_tensor *g = ds_clone(numbered(given, "grad", (int)reference_int(c, "step", 0), path));
        if (!strcmp(path, poison)) set_element(g, 0, reference_double(c, "value", NAN));
        ds_set_grad_of(p, g);
    }
}

static void check_first_values(Reference *r, ds_module *m, const json_t *c, const char *what,
                               double rtol)
{
    const json_t *all = json_object_get(c, "first_values_after");
    for (int i = 0; i < ds_module_params(m); i++) {
        const char *path;
        const float *g = ds_data(ds_grad(ds_module_param_at(m, i, &path)));
        const json_t *want = json_object_get(all, path);
        for (size_t k = 0; g && k < json_array_size(want); k++) {
            char element[300];
            snprintf(element, sizeof element, "%s, %s[%zu]", what, path, k);
            reference_number_within(r, element, (double)g[k],
                                    reference_number(json_array_get(want, k), NAN), 0, rtol);
        }
    }
}

static void clip(Reference *r)
{
    ds_state *given = reference_load(r, reference_text(r->json, "given", "given.safetensors"));
    double rtol = reference_double(r->json, "rtol", 0);
    const json_t *cases = json_object_get(r->json, "cases");
    if (!json_array_size(cases)) reference_fail(r, "the file has no cases");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        char what[100];
        snprintf(what, sizeof what, "case %zu", i);
        ds_scope *scope = ds_scope_open();
        ds_module *m = make_module(given, DS_F32, true);
        set_grads(m, given, c);
        double norm = ds_item(ds_clip_grad_norm(m, reference_double(c, "max_norm", NAN),
                                                reference_double(c, "norm_type", 2)));
        if (json_object_get(c, "raises")) {
            if (!ds_error()) reference_fail(r, "%s takes what it must refuse", what);
        } else {
            reference_number_within(r, what, norm, reference_double(c, "returned_norm", NAN), 0,
                                    rtol);
            reference_number_within(r, what, l2(m), reference_double(c, "l2_after", NAN), 0, rtol);
            check_first_values(r, m, c, what, rtol);
        }
        ds_error_clear();
        ds_module_free(m);
        ds_scope_close(scope);
    }
    ds_state_free(given);
}

/* ---- what DeepSpeed makes of an optimizer block ----------------------------------------------------------- */

/* Whether DeepSpeed's refusal is of the optimizer itself: it has no LAMB and
 * Lion for the CPU, which we have, and what ZeRO permits is the engine's
 * matter. */
static bool refusal_is_ours(const json_t *raises)
{
    const char *message = reference_text(raises, "message", "");
    return !strstr(message, "not been implemented on CPU") && !strstr(message, "untested ZeRO");
}

/* The class that DeepSpeed built with all its hyperparameters, made by the
 * plain constructors here. */
static ds_optim *make_expected(Reference *r, const json_t *c, ds_module *m)
{
    static const struct {
        const char *class, *name;
    } classes[] = {{"FusedAdam", "deepspeed.FusedAdam"},
                   {"DeepSpeedCPUAdam", "deepspeed.FusedAdam"},
                   {"DeepSpeedCPULion", "deepspeed.DeepSpeedCPULion"},
                   {"DeepSpeedCPUAdagrad", "deepspeed.DeepSpeedCPUAdagrad"},
                   {"MuonWithAuxAdam", "deepspeed.MuonWithAuxAdam"},
                   {"SGD", "torch.SGD"},
                   {"Adam", "torch.Adam"},
                   {"AdamW", "torch.AdamW"},
                   {"Adagrad", "torch.Adagrad"},
                   {"RMSprop", "torch.RMSprop"},
                   {"Adadelta", "torch.Adadelta"}};
    const char *class = strrchr(reference_text(c, "basic_optimizer", "."), '.') + 1;
    json_t *params = json_deep_copy(json_object_get(c, "hyperparameters"));
    json_object_del(params, "step"); /* a counter, not a parameter */
    if (json_object_get(c, "adam_w_mode"))
        json_object_set(params, "adam_w_mode", json_object_get(c, "adam_w_mode"));
    if (!strcmp(class, "Adamax") || !strcmp(class, "NAdam") || !strcmp(class, "RAdam")) {
        char *all = json_dumps(params, 0); /* with every default written out */
        ds_optim *o = ds_optim_by_name(m, class, all);
        free(all);
        json_decref(params);
        return o;
    }
    Reference with = *r;
    with.json = json_pack("{s:o}", "params", params);
    ds_optim *o = NULL;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        for (size_t k = 0; k < sizeof optimizers / sizeof *optimizers; k++)
            if (!strcmp(classes[i].class, class) && !strcmp(classes[i].name, optimizers[k].name))
                o = optimizers[k].make(&with, m);
    r->failures = with.failures;
    json_decref(with.json);
    return o;
}

/* Both take the same three steps, bit for bit. */
static void same_steps(Reference *r, const char *what, ds_module *m[2], ds_optim *o[2])
{
    const float g[] = {0.5f, -2, 0, 3e-4f, 1e3f, -1};
    for (int t = 0; t < 3; t++) {
        for (int i = 0; i < 2; i++) {
            ds_tensor *grad = ds_scale(ds_from_data(DS_F32, ds_shape(6), g), t - 1.5);
            ds_tensor *p = ds_module_param_at(m[i], 0, NULL);
            ds_set_grad_of(p, ds_reshape(grad, ds_shape_of(p)));
            if (ds_optim_step(o[i]) != DS_OK) reference_fail(r, "%s: %s", what, ds_error());
        }
        reference_within(r, what, ds_module_param_at(m[0], 0, NULL),
                         ds_module_param_at(m[1], 0, NULL), 0, 0);
    }
}

/* A vector for all but Muon, which has a rule for matrices. */
static void map_block(Reference *r, const json_t *c, const char *what)
{
    static const ds_module_type type = {.name = "Given"};
    const float w[] = {1, -2, 3, -4, 5, -6};
    const json_t *block = json_object_get(json_object_get(c, "config"), "optimizer");
    const char *name = reference_text(block, "type", NULL);
    const json_t *raises = json_object_get(c, "raises");
    if (!name) return;
    ds_module *m[2];
    for (int i = 0; i < 2; i++) {
        m[i] = ds_module_new(NULL, "given", &type);
        ds_dims shape = strcmp(name, "Muon") != 0 ? ds_shape(6) : ds_shape(2, 3);
        ds_module_param(m[i], "w", ds_from_data(DS_F32, shape, w));
    }
    char *params = json_dumps(json_object_get(block, "params"), 0);
    ds_optim *o[2] = {ds_optim_by_name(m[0], name, params), NULL};
    if (raises && o[0] && refusal_is_ours(raises)) {
        reference_fail(r, "%s: takes what DeepSpeed refuses: %s", what, params);
    } else if (!o[0] && !(raises && refusal_is_ours(raises))) {
        reference_fail(r, "%s: %s", what, ds_error());
    } else if (!raises) {
        o[1] = make_expected(r, c, m[1]);
        if (o[1])
            same_steps(r, what, m, o);
        else
            reference_fail(r, "%s: no optimizer to compare with", what);
    }
    ds_error_clear();
    free(params);
    for (int i = 0; i < 2; i++) ds_optim_free(o[i]), ds_module_free(m[i]);
}

static void mapping(Reference *r)
{
    const json_t *cases = json_object_get(r->json, "cases");
    if (!json_array_size(cases)) reference_fail(r, "the file has no cases");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        char what[100];
        snprintf(what, sizeof what, "case %zu", i);
        map_block(r, json_array_get(cases, i), what);
    }
}

static void run(Reference *r)
{
    if (!strcmp(r->id, "engine_mapping"))
        mapping(r);
    else if (json_object_get(r->json, "optimizer"))
        trace(r);
    else if (json_object_get(r->json, "cases"))
        clip(r);
    else
        reference_fail(r, "neither a trace nor a list of cases");
}

static void optim(void **state)
{
    (void)state;
    CHECK_INT(reference_each("optim", run), 0);
}

TEST_MAIN(cmocka_unit_test(optim))
