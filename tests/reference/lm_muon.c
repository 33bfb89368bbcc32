/* tests/reference/lm_muon.c: traces of Muon by torch.optim and DeepSpeed, beside
 * the same rule in float64: matrices after 20 given gradients.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference.h"

#include <deepspeed/optim.h>

static ds_module *given_module(const ds_state *given)
{
    static const ds_module_type type = {.name = "Given"};
    ds_module *m = ds_module_new(NULL, "given", &type);
    for (int i = 0; i < ds_state_len(given); i++) {
        const char *name = ds_state_name(given, i);
        if (!strncmp(name, "init.", 5))
            ds_module_param(m, name + 5, ds_clone(ds_state_at(given, i)));
    }
    return m;
}

static ds_muon_opts options(const Reference *r)
{
    const json_t *p = json_object_get(r->json, "defaults"); /* with what the case sets */
    const char *adjust = reference_text(p, "adjust_lr_fn", "");
    const json_t *k = json_object_get(p, "ns_coefficients");
    return (ds_muon_opts){
        .lr = reference_double(p, "lr", 0),
        .momentum = reference_double(p, "momentum", 0),
        .weight_decay = reference_double(p, "weight_decay", 0),
        .no_nesterov = !reference_bool(p, "nesterov", true),
        .ns_steps = (int)reference_int(p, "ns_steps", 5),
        .ns_coefficients = {json_number_value(json_array_get(k, 0)),
                            json_number_value(json_array_get(k, 1)),
                            json_number_value(json_array_get(k, 2))},
        .ns_standard = strcmp(reference_text(p, "ns_method", "standard"), "gram") != 0,
        .adjust_lr = !strcmp(adjust, "match_rms_adamw")      ? DS_MUON_MATCH_RMS_ADAMW
                     : !strcmp(adjust, "spectral_unclamped") ? DS_MUON_UNCLAMPED
                                                             : DS_MUON_ORIGINAL};
}

static void set_grads(Reference *r, ds_module *m, const ds_state *given, int step)
{
    for (int i = 0; i < ds_module_params(m); i++) {
        const char *path;
        char name[100];
        ds_tensor *p = ds_module_param_at(m, i, &path), *g;
        snprintf(name, sizeof name, "grad%02d.%s", step, path);
        g = ds_state_get(given, name);
        if (!g || ds_set_grad_of(p, ds_clone(g)) != DS_OK) reference_fail(r, "no %s", name);
    }
}

/* The float64 rule within what float32 rounds, their own result within what 16
 * bits do. Their weights are kept for the last step alone: those of the others
 * in the file are the last ones too. */
static void check_params(Reference *r, ds_module *m, int step, bool last)
{
    const json_t *exact = json_object_get(r->json, "tolerance_against_f64"),
                 *theirs = json_object_get(r->json, "tolerance_against_this");
    for (int i = 0; i < ds_module_params(m); i++) {
        const char *path;
        char name[100];
        ds_tensor *p = ds_module_param_at(m, i, &path);
        snprintf(name, sizeof name, "f64.step%02d.%s", step, path);
        ds_tensor *want = reference_tensor(r, name);
        if (!want) reference_fail(r, "the file has no %s", name);
        reference_within(r, name, ds_cast(p, ds_dtype_of(want)), want,
                         reference_double(exact, path, 0), 0);
        if (last)
            reference_within(r, name + 4, p, reference_tensor(r, name + 4),
                             reference_double(theirs, path, 0), 0);
    }
}

static void trace(Reference *r)
{
    ds_state *given = reference_load(r, reference_text(r->json, "given", ""));
    ds_module *m = given_module(given);
    ds_optim *o = ds_optim_muon_with(m, options(r));
    const json_t *kept = json_object_get(r->json, "kept_steps");
    int last = (int)json_integer_value(json_array_get(kept, json_array_size(kept) - 1));
    size_t next = 0;
    if (!o || last < 1) reference_fail(r, "%s", o ? "no steps" : ds_error());
    for (int k = 1; o && k <= last; k++) {
        ds_scope *scope = ds_scope_open();
        set_grads(r, m, given, k);
        if (ds_optim_step(o) != DS_OK) reference_fail(r, "step %d: %s", k, ds_error());
        if (json_integer_value(json_array_get(kept, next)) == k)
            check_params(r, m, k, k == last), next++;
        ds_scope_close(scope);
    }
    ds_optim_free(o);
    ds_module_free(m);
    ds_state_free(given);
}

static void muon(void **state)
{
    (void)state;
    CHECK_INT(reference_each("lm/muon", trace), 0);
}

TEST_MAIN(cmocka_unit_test(muon))
