/* tests/reference/lr.c: the files of folder lr: learning rates and betas of
 * DeepSpeed's schedules, alone and in the engine. Bit for bit, except ln and
 * cos.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference.h"

#include <deepspeed/engine.h>

/* ---- what a case is about ---------------------------------------------------------------------------- */

static double tolerance(const char *scheduler, const json_t *params)
{
    if (strstr(scheduler, "Cosine")) return 1e-15;
    return strstr(scheduler, "Warmup") &&
                   strcmp(reference_text(params, "warmup_type", "log"), "log") == 0
               ? 1e-15
               : 0;
}

/* DeepSpeed warns of an unknown warmup_type and takes log; here it is refused. */
static bool is_refused_here_only(const json_t *params)
{
    const char *type = reference_text(params, "warmup_type", "log");
    return strcmp(type, "log") != 0 && strcmp(type, "linear") != 0;
}

static ds_schedule *make_schedule(ds_optim *o, const char *type, const json_t *params)
{
    char *text = params ? json_dumps(params, 0) : NULL;
    ds_schedule *s = ds_schedule_by_name(o, type, text);
    free(text);
    return s;
}

/* Whether it could be made when it should; a line if not. */
static bool as_wanted(Reference *r, bool made, const char *type, const json_t *params, bool raises)
{
    if (!raises && !made && is_refused_here_only(params))
        reference_skip(r, "%s", ds_error());
    else if (!raises && !made)
        reference_fail(r, "%s: %s", type, ds_error());
    else if (raises && made)
        reference_fail(r, "%s takes what it must refuse", type);
    else if (raises && (ds_error_status() != DS_EINVAL || !strstr(ds_error(), "scheduler.")))
        reference_fail(r, "%s: no message about the schedule: %s", type, ds_error());
    return made && !raises;
}

/* ---- alone --------------------------------------------------------------------------------------------- */

/* One parameter a group; the rates and betas are those of the reference's
 * optimizers. */
static ds_optim *make_optim(const Reference *r, ds_module *m)
{
    int groups = (int)reference_int(r->json, "groups", 1);
    const json_t *lrs = json_object_get(r->json, "group_lrs");
    double lr = reference_double(r->json, "base_lr", 0.05);
    bool adam = !strcmp(reference_text(r->json, "optimizer", "Adam"), "Adam");
    for (int g = 0; g < groups; g++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", g);
        ds_module_param(m, name, ds_zeros(DS_F32, ds_shape(1)));
    }
    ds_optim *o = adam ? ds_optim_adam(m, lr, .beta1 = 0.7, .beta2 = 0.95)
                       : ds_optim_sgd(m, lr, .momentum = 0.5);
    for (int g = 1; g < groups; g++)
        ds_optim_add_group_of(o, (ds_tensor *[]){ds_module_param_at(m, g, NULL)}, 1);
    for (int g = 0; g < groups; g++)
        ds_optim_set_group_lr(o, g, reference_number(json_array_get(lrs, (size_t)g), lr));
    return o;
}

/* Values after k steps: a number or one a group. */
static void check_rates(Reference *r, const ds_schedule *s, size_t k, int groups, double rtol)
{
    const json_t *want = json_array_get(json_object_get(json_object_get(r->json, "expected"), "lr"),
                                        k);
    for (int g = 0; g < groups; g++) {
        char what[64];
        const json_t *one = groups > 1 ? json_array_get(want, (size_t)g) : want;
        snprintf(what, sizeof what, "lr[%zu] of group %d", k, g);
        reference_number_within(r, what, ds_schedule_lr(s, g), reference_number(one, NAN),
                                rtol / 10, rtol);
    }
}

static void check_betas(Reference *r, const ds_optim *o, size_t k, int groups)
{
    const json_t *all = json_object_get(json_object_get(r->json, "expected"), "betas");
    if (!all) return;
    for (int g = 0; g < groups; g++) {
        char what[64];
        double got[2] = {NAN, NAN};
        const json_t *want = json_array_get(all, k);
        if (groups > 1) want = json_array_get(want, (size_t)g);
        ds_optim_group_betas(o, g, got);
        for (size_t i = 0; i < 2; i++) {
            snprintf(what, sizeof what, "betas[%zu][%zu] of group %d", k, i, g);
            reference_number_within(r, what, got[i], reference_number(json_array_get(want, i), NAN),
                                    0, 0);
        }
    }
}

static ds_schedule *resume(Reference *r, ds_schedule *s, ds_optim *o, const char *type,
                           const json_t *params)
{
    int64_t last = ds_schedule_last(s);
    ds_schedule_free(s);
    s = make_schedule(o, type, params);
    if (ds_schedule_set_last(s, last) != DS_OK) reference_fail(r, "%s", ds_error());
    return s;
}

static void alone(Reference *r)
{
    static const ds_module_type given = {.name = "Given"};
    ds_module *m = ds_module_new(NULL, "given", &given);
    const char *type = reference_text(r->json, "scheduler", "");
    const json_t *params = json_object_get(r->json, "params");
    json_t *expected = json_object_get(r->json, "expected");
    int groups = (int)reference_int(r->json, "groups", 1);
    size_t steps = json_array_size(json_object_get(expected, "lr"));
    double rtol = tolerance(type, params);
    ds_optim *o = make_optim(r, m);
    ds_schedule *s = make_schedule(o, type, params);
    bool raises = json_object_get(expected, "raises") && !steps;
    bool runs = as_wanted(r, s != NULL, type, params, raises);
    for (size_t k = 0; runs && k < steps && !r->failures; k++) {
        if (k > 0 && (int64_t)k - 1 == reference_int(r->json, "resume_at", -1))
            s = resume(r, s, o, type, params);
        if (k > 0) ds_schedule_step(s);
        check_rates(r, s, k, groups, rtol);
        check_betas(r, o, k, groups);
    }
    int64_t last = reference_int(json_object_get(expected, "state_dict"), "last_batch_iteration",
                                 ds_schedule_last(s));
    if (runs && !r->failures && ds_schedule_last(s) != last)
        reference_fail(r, "last_batch_iteration is %lld, want %lld", (long long)ds_schedule_last(s),
                       (long long)last);
    ds_schedule_free(s);
    ds_optim_free(o);
    ds_module_free(m);
}

/* ---- in the engine --------------------------------------------------------------------------------- */

static void check_row(Reference *r, const json_t *row, const char *key, double got, double rtol)
{
    char what[64];
    const json_t *want = json_object_get(row, key);
    if (!want || json_is_null(want)) return;
    snprintf(what, sizeof what, "%s of micro step %d", key,
             (int)reference_int(row, "micro_step", -1));
    reference_number_within(r, what, got, reference_number(want, NAN), rtol / 10, rtol);
}

/* The reference's loop: loss = mean(model(x)^2). */
static void follow(Reference *r, ds_engine *e, double rtol)
{
    const json_t *rows = json_object_get(r->json, "rows");
    for (size_t i = 0; i < json_array_size(rows) && !r->failures; i++) {
        ds_scope *scope = ds_scope_open();
        const json_t *row = json_array_get(rows, i);
        ds_tensor *y = ds_engine_forward(e, ds_randn(DS_F32, ds_shape(2, 3)));
        ds_engine_backward(e, ds_mean(ds_mul(y, y)));
        if (ds_engine_is_gradient_accumulation_boundary(e) !=
            reference_bool(row, "updates_weights", false))
            reference_fail(r, "micro step %zu: another accumulation boundary", i);
        check_row(r, row, "lr_used", ds_engine_lr(e), rtol);
        if (ds_engine_step(e) != DS_OK) reference_fail(r, "step: %s", ds_error());
        check_row(r, row, "get_lr_after", ds_engine_lr(e), rtol);
        check_row(r, row, "global_steps_after", (double)ds_engine_global_steps(e), 0);
        ds_scope_close(scope);
    }
}

static void in_engine(Reference *r)
{
    const json_t *config = json_object_get(r->json, "config");
    const json_t *scheduler = json_object_get(config, "scheduler");
    const json_t *params = json_object_get(scheduler, "params");
    const char *type = reference_text(scheduler, "type", "");
    char *text = json_dumps(config, 0);
    ds_module *model = ds_nn_sequential(NULL, "model");
    ds_nn_linear(model, "0", 3, 2);
    ds_engine *e = ds_initialize(.model = model, .config = text);
    if (as_wanted(r, e != NULL, type, params, json_object_get(r->json, "raises") != NULL))
        follow(r, e, tolerance(type, params));
    ds_engine_free(e);
    free(text);
}

static void run(Reference *r)
{
    if (!strcmp(reference_text(r->json, "kind", ""), "engine"))
        in_engine(r);
    else
        alone(r);
}

static void lr(void **state)
{
    (void)state;
    CHECK_INT(reference_each("lr", run), 0);
}

TEST_MAIN(cmocka_unit_test(lr))
