/* tests/reference/lr.c: the files of folder lr: learning rates and betas of DeepSpeed's schedules, alone
 * and in the order of an engine (optimizer step, then schedule step). Bit for bit, but for ln and cos.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference.h"

#include <deepspeed/optim.h>

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

/* Whether s is there when it should be; a line if not. */
static bool as_wanted(Reference *r, const ds_schedule *s, const char *type, const json_t *params,
                      bool raises)
{
    if (!raises && !s && is_refused_here_only(params))
        reference_skip(r, "%s", ds_error());
    else if (!raises && !s)
        reference_fail(r, "%s: %s", type, ds_error());
    else if (raises && s)
        reference_fail(r, "%s takes what it must refuse", type);
    else if (raises &&
             (ds_error_status() != DS_EINVAL || strncmp(ds_error(), "scheduler.", 10) != 0))
        reference_fail(r, "%s: no message about the schedule: %s", type, ds_error());
    return s && !raises;
}

/* ---- alone --------------------------------------------------------------------------------------------- */

/* One parameter a group; the rates and betas are those of the reference's optimizers. */
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

static void alone(Reference *r, ds_module *m)
{
    const char *type = reference_text(r->json, "scheduler", "");
    const json_t *params = json_object_get(r->json, "params");
    json_t *expected = json_object_get(r->json, "expected");
    int groups = (int)reference_int(r->json, "groups", 1);
    size_t steps = json_array_size(json_object_get(expected, "lr"));
    double rtol = tolerance(type, params);
    ds_optim *o = make_optim(r, m);
    ds_schedule *s = make_schedule(o, type, params);
    bool raises = json_object_get(expected, "raises") && !steps;
    bool runs = as_wanted(r, s, type, params, raises);
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
}

/* ---- in the engine's loop ---------------------------------------------------------------------------------- */

static void check_row(Reference *r, const json_t *row, const char *key, double got, double rtol)
{
    char what[64];
    const json_t *want = json_object_get(row, key);
    snprintf(what, sizeof what, "%s of micro step %d", key,
             (int)reference_int(row, "micro_step", -1));
    if (want && !json_is_null(want))
        reference_number_within(r, what, got, reference_number(want, NAN), rtol / 10, rtol);
}

static void follow(Reference *r, ds_module *m, ds_optim *o, ds_schedule *s, double rtol)
{
    const json_t *rows = json_object_get(r->json, "rows");
    for (size_t i = 0; i < json_array_size(rows) && !r->failures; i++) {
        const json_t *row = json_array_get(rows, i);
        if (reference_bool(row, "updates_weights", false)) {
            check_row(r, row, "lr_used", ds_optim_group_lr(o, 0), rtol);
            for (int k = 0; k < ds_module_params(m); k++) {
                ds_tensor *p = ds_module_param_at(m, k, NULL);
                ds_set_grad_of(p, ds_like(p, 0.5));
            }
            if (ds_optim_step(o) != DS_OK) reference_fail(r, "step: %s", ds_error());
            ds_schedule_step(s);
        }
        check_row(r, row, "get_lr_after", ds_optim_group_lr(o, 0), rtol);
    }
}

static void in_engine(Reference *r, ds_module *m)
{
    const json_t *config = json_object_get(r->json, "config");
    const json_t *optimizer = json_object_get(config, "optimizer");
    const json_t *scheduler = json_object_get(config, "scheduler");
    const char *type = reference_text(scheduler, "type", "");
    const json_t *params = json_object_get(scheduler, "params");
    double lr = reference_double(json_object_get(optimizer, "params"), "lr", 1e-3);
    ds_module_param(m, "weight", ds_ones(DS_F32, ds_shape(2, 3)));
    ds_optim *o = !strcmp(reference_text(optimizer, "type", ""), "SGD") ? ds_optim_sgd(m, lr)
                                                                        : ds_optim_adam(m, lr);
    ds_schedule *s = scheduler ? make_schedule(o, type, params) : NULL;
    bool raises = json_object_get(r->json, "raises") != NULL;
    if (!scheduler || as_wanted(r, s, type, params, raises))
        follow(r, m, o, s, tolerance(type, params));
    ds_schedule_free(s);
    ds_optim_free(o);
}

static void run(Reference *r)
{
    static const ds_module_type type = {.name = "Given"};
    ds_module *m = ds_module_new(NULL, "given", &type);
    if (!strcmp(reference_text(r->json, "kind", ""), "engine"))
        in_engine(r, m);
    else
        alone(r, m);
    ds_module_free(m);
}

static void lr(void **state)
{
    (void)state;
    CHECK_INT(reference_each("lr", run), 0);
}

TEST_MAIN(cmocka_unit_test(lr))
