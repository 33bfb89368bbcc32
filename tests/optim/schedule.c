/* tests/optim/schedule.c: schedules: a custom one, torch's beside PyTorch's
 * values, resuming from a checkpoint, and all that is refused. DeepSpeed's
 * values are in tests/reference/lr.c.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/mem.h"
#include "optim/given.h"

#define LR 0.05

/* An optimizer with the learning rate LR, alone in a scope. */
typedef struct Bench {
    ds_scope *scope;
    ds_module *m;
    ds_optim *o;
} Bench;

static Bench open_bench(void)
{
    Bench b = {ds_scope_open(), given_new(DS_F32), NULL};
    b.o = ds_optim_adam(b.m, LR, .beta1 = 0.7, .beta2 = 0.95);
    CHECK(b.o);
    return b;
}

static void close_bench(Bench b)
{
    ds_optim_free(b.o);
    ds_module_free(b.m);
    ds_scope_close(b.scope);
}

/* ---- a custom one -------------------------------------------------------------------------------------- */

typedef struct Halving {
    double first;
    int *freed;
} Halving;

static void halving_apply(void *self, ds_optim *o, int64_t it)
{
    ds_optim_set_group_lr(o, 0, ldexp(((Halving *)self)->first, -(int)(it + 1)));
}

static void halving_free(void *self) { ++*((Halving *)self)->freed; }

static void a_schedule_of_ones_own(void **state)
{
    (void)state;
    static const ds_schedule_type type = {"Halving", sizeof(Halving), halving_apply, halving_free};
    Bench b = open_bench();
    int freed = 0;
    ds_schedule *s = ds_schedule_new(b.o, &type);
    *(Halving *)ds_schedule_self(s) = (Halving){8, &freed};
    CHECK_INT(ds_schedule_last(s), -1);
    CHECK_CLOSE(ds_optim_lr(b.o), LR, 0);
    CHECK(ds_schedule_set_last(s, -1) == DS_OK);
    CHECK_CLOSE(ds_optim_lr(b.o), 8, 0);
    ds_schedule_step(s);
    ds_schedule_step(s);
    CHECK_INT(ds_schedule_last(s), 1);
    CHECK_CLOSE(ds_schedule_lr(s, 0), 2, 0);
    assert_string_equal(ds_schedule_name(s), "Halving");
    CHECK(ds_schedule_set_last(s, -2) == DS_EINVAL);
    CHECK_ERROR("schedule_set_last: the step is -2: expected -1 to 2^40");
    CHECK_CLOSE(ds_schedule_lr(s, 0), 2, 0);
    ds_schedule_free(s);
    CHECK_INT(freed, 1);
    close_bench(b);
}

static void null_passes(void **state)
{
    (void)state;
    CHECK_REFUSED(ds_schedule_by_name(NULL, "WarmupLR", NULL), "schedule_by_name");
    CHECK_REFUSED(ds_schedule_new(NULL, NULL), "schedule_new");
    CHECK(ds_schedule_set_last(NULL, 0) == DS_EINVAL);
    CHECK_ERROR("schedule_set_last");
    ds_schedule_step(NULL);
    ds_schedule_free(NULL);
    CHECK_INT(ds_schedule_last(NULL), -1);
    CHECK(!ds_schedule_self(NULL) && !ds_schedule_name(NULL));
}

/* ---- torch's ------------------------------------------------------------------------------------------- */

#define EPOCHS 8

/* PyTorch 2.15, base rate LR. */
static const struct {
    const char *type, *params;
    double lr[EPOCHS];
} torchs[] = {
    {"StepLR",
     "{\"step_size\": 2}",
     {0.05, 0.05, 0.005000000000000001, 0.005000000000000001, 0.0005000000000000001,
      0.0005000000000000001, 5.0000000000000016e-05, 5.0000000000000016e-05}},
    {"MultiStepLR",
     "{\"milestones\": [1, 4, 4], \"gamma\": 0.5}",
     {0.05, 0.025, 0.025, 0.025, 0.00625, 0.00625, 0.00625, 0.00625}},
    {"ExponentialLR",
     "{\"gamma\": 0.9}",
     {0.05, 0.045000000000000005, 0.04050000000000001, 0.03645000000000001, 0.03280500000000001,
      0.02952450000000001, 0.02657205000000001, 0.02391484500000001}},
    {"CosineAnnealingLR",
     "{\"T_max\": 3, \"eta_min\": 0.001}",
     {0.05, 0.037750000000000006, 0.013250000000000008, 0.001, 0.013249999999999998,
      0.03775000000000003, 0.05000000000000003, 0.037750000000000034}},
    {"ConstantLR",
     NULL,
     {0.016666666666666666, 0.016666666666666666, 0.016666666666666666, 0.016666666666666666,
      0.016666666666666666, 0.05, 0.05, 0.05}},
    {"LinearLR",
     "{\"total_iters\": 4}",
     {0.016666666666666666, 0.025, 0.03333333333333334, 0.04166666666666667, 0.05, 0.05, 0.05,
      0.05}},
    {"PolynomialLR",
     "{\"power\": 2}",
     {0.05, 0.03200000000000001, 0.018000000000000002, 0.008000000000000002, 0.0019999999999999996,
      0, 0, 0}},
};

static void torchs_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof torchs / sizeof *torchs; i++) {
        Bench b = open_bench();
        ds_schedule *s = ds_schedule_by_name(b.o, torchs[i].type, torchs[i].params);
        CHECK(s);
        for (int e = 0; e < EPOCHS; e++, ds_schedule_step(s))
            CHECK_CLOSE(ds_optim_lr(b.o), torchs[i].lr[e], 1e-16);
        for (int e = EPOCHS - 1; e >= 0; e -= 3) { /* and back */
            CHECK(ds_schedule_set_last(s, e - 1) == DS_OK);
            CHECK_CLOSE(ds_schedule_lr(s, 0), torchs[i].lr[e], 1e-16);
        }
        ds_schedule_free(s);
        close_bench(b);
    }
}

/* The closed forms that docs/schedules.md gives, with the parameters of
 * `torchs`. */
static double closed_form(const char *type, int e)
{
    if (!strcmp(type, "StepLR")) return LR * pow(0.1, e / 2);
    if (!strcmp(type, "MultiStepLR")) return LR * pow(0.5, (e >= 1) + 2 * (e >= 4));
    if (!strcmp(type, "ExponentialLR")) return LR * pow(0.9, e);
    if (!strcmp(type, "CosineAnnealingLR"))
        return 0.001 + (LR - 0.001) * (1 + cos(3.14159265358979323846 * e / 3)) / 2;
    if (!strcmp(type, "ConstantLR")) return e < 5 ? LR / 3 : LR;
    if (!strcmp(type, "LinearLR")) return LR * (1. / 3 + (1 - 1. / 3) * fmin(e, 4) / 4);
    return LR * pow(1 - fmin(e, 5) / 5, 2);
}

static void closed_forms(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof torchs / sizeof *torchs; i++) {
        Bench b = open_bench();
        ds_schedule *s = ds_schedule_by_name(b.o, torchs[i].type, torchs[i].params);
        for (int e = 0; e < 30; e++, ds_schedule_step(s))
            CHECK_CLOSE(ds_schedule_lr(s, 0), closed_form(torchs[i].type, e), 1e-15);
        ds_schedule_free(s);
        close_bench(b);
    }
}

/* ---- DeepSpeed's ----------------------------------------------------------------------------------------- */

/* A new schedule that has the number of the old one continues with the same
 * values. */
static void a_resumed_schedule_goes_on(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"WarmupLR", "{\"warmup_num_steps\": 10, \"warmup_max_lr\": 0.1}"},
        {"WarmupDecayLR", "{\"warmup_num_steps\": 4, \"total_num_steps\": 20}"},
        {"WarmupCosineLR", "{\"warmup_num_steps\": 4, \"total_num_steps\": 20}"},
        {"LRRangeTest", "{\"lr_range_test_step_size\": 3}"},
        {"OneCycle",
         "{\"cycle_min_lr\": 0.01, \"cycle_max_lr\": 0.1, \"cycle_first_step_size\": 9}"},
        {"CosineAnnealingLR", "{\"T_max\": 9}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Bench a = open_bench(), b = open_bench();
        double ours[2], theirs[2];
        ds_schedule *s = ds_schedule_by_name(a.o, cases[i][0], cases[i][1]);
        ds_schedule *t = ds_schedule_by_name(b.o, cases[i][0], cases[i][1]);
        CHECK(s && t);
        for (int k = 0; k < 7; k++) ds_schedule_step(s);
        CHECK(ds_schedule_set_last(t, ds_schedule_last(s)) == DS_OK);
        for (int k = 0; k < 20; k++, ds_schedule_step(s), ds_schedule_step(t)) {
            CHECK_CLOSE(ds_schedule_lr(s, 0), ds_schedule_lr(t, 0), 0);
            CHECK(ds_optim_group_betas(a.o, 0, ours) && ds_optim_group_betas(b.o, 0, theirs));
            CHECK(ours[0] == theirs[0] && ours[1] == theirs[1]);
        }
        ds_schedule_free(s);
        ds_schedule_free(t);
        close_bench(b);
        close_bench(a);
    }
}

/* Given a number of its own, it leaves the rate alone until the next step, as
 * DeepSpeed's. */
static void last_batch_iteration(void **state)
{
    (void)state;
    Bench b = open_bench();
    ds_schedule *s = ds_schedule_by_name(b.o, "WarmupLR",
                                         "{\"warmup_num_steps\": 10, \"warmup_type\": \"linear\", "
                                         "\"last_batch_iteration\": 3}");
    CHECK_CLOSE(ds_schedule_lr(s, 0), LR, 0);
    CHECK_INT(ds_schedule_last(s), 3);
    ds_schedule_step(s);
    CHECK_CLOSE(ds_schedule_lr(s, 0), LR * 0.4, 0);
    ds_schedule_free(s);
    close_bench(b);
}

/* ---- refusals -------------------------------------------------------------------------------------------- */

static void refused(void **state)
{
    (void)state;
    static const struct {
        const char *type, *params, *message;
    } cases[] = {
        {"WarmupLr", "{}", "scheduler.type is \"WarmupLr\": did you mean \"WarmupLR\"?"},
        {"NoSuchThing", "{}", "scheduler.type is \"NoSuchThing\": expected one of WarmupLR, Warm"},
        {"OneCycleLR", "{}", "scheduler.type: OneCycleLR of torch.optim.lr_scheduler is not"},
        {"WarmupLR", "{\"warmup_max_Lr\": 1}",
         "scheduler.params.warmup_max_Lr: did you mean \"warmup_max_lr\"? WarmupLR takes "
         "warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type, last_batch_iteration"},
        {"WarmupLR", "{\"warmup_steps\": 10}", "did you mean \"warmup_num_steps\"?"},
        {"WarmupLR", "{\"total_num_steps\": 10}", "scheduler.params.total_num_steps: "},
        {"WarmupLR", "{\"warmup_num_steps\": 0}",
         "scheduler.params.warmup_num_steps is 0: expected an integer, without point or "
         "exponent, more than 0"},
        {"WarmupLR", "{\"warmup_num_steps\": 10.0}",
         "scheduler.params.warmup_num_steps is 10.0: expected an integer"},
        {"WarmupLR", "{\"warmup_num_steps\": true}", "warmup_num_steps is true: expected"},
        {"WarmupLR", "{\"warmup_num_steps\": \"10\"}", "warmup_num_steps is \"10\": expected"},
        {"WarmupLR", "{\"warmup_min_lr\": -1}",
         "warmup_min_lr is -1: expected a number, 0 or more"},
        {"WarmupLR", "{\"warmup_min_lr\": \"auto\"}",
         "warmup_min_lr is \"auto\": expected a number"},
        {"WarmupLR", "{\"warmup_max_lr\": [1, 2]}",
         "scheduler.params.warmup_max_lr has 2 values: expected one for each parameter group of "
         "the optimizer, which has 1"},
        {"WarmupLR", "{\"warmup_max_lr\": [\"a\"]}", "warmup_max_lr is \"a\": expected a number"},
        {"WarmupLR", "{\"warmup_type\": \"cosine\"}",
         "scheduler.params.warmup_type is \"cosine\": expected \"log\" or \"linear\""},
        {"WarmupLR", "{\"warmup_type\": 1}", "warmup_type is 1: expected \"log\" or \"linear\""},
        {"WarmupLR", "{\"last_batch_iteration\": -2}", "last_batch_iteration is -2: expected"},
        {"WarmupLR", "[]", "scheduler.params is not an object"},
        {"WarmupLR", "{\"warmup_min_lr\": 1,}", "scheduler.params: line 1, column 21"},
        {"WarmupLR", "{\"warmup_min_lr\": 1, \"warmup_min_lr\": 2}", "duplicate object key"},
        {"WarmupDecayLR", "{}",
         "scheduler.params has no \"total_num_steps\", which WarmupDecayLR needs"},
        {"WarmupDecayLR", "{\"total_num_steps\": null}", "total_num_steps is null: expected"},
        {"WarmupCosineLR", "{\"total_num_steps\": -1}", "total_num_steps is -1: expected"},
        {"OneCycle", "{\"cycle_min_lr\": 0.1}", "has no \"cycle_max_lr\", which OneCycle needs"},
        {"OneCycle", "{\"cycle_min_lr\": 0.1, \"cycle_max_lr\": 1, \"cycle_first_step_size\": 0}",
         "cycle_first_step_size is 0: expected a number, more than 0"},
        {"OneCycle", "{\"cycle_momentum\": 1}", "cycle_momentum is 1: expected true or false"},
        {"OneCycle", "{\"cycle_max_mom\": 1}", "cycle_max_mom is 1: expected a number, 0 or more"},
        {"OneCycle", "{\"cycle_first_stair_count\": 2.5}",
         "cycle_first_stair_count is 2.5: expected a whole number"},
        {"LRRangeTest", "{\"lr_range_test_step_size\": 2.0}", "step_size is 2.0: expected an inte"},
        {"StepLR", "{}", "scheduler.params has no \"step_size\", which StepLR needs"},
        {"MultiStepLR", "{\"milestones\": 5}", "milestones is 5: expected a list of whole numbers"},
        {"MultiStepLR", "{\"milestones\": [5, 2]}", "milestones is [5,2]: expected a list of"},
        {"MultiStepLR", "{\"milestones\": [1], \"milestone\": 2}", "did you mean \"milestones\"?"},
        {"CosineAnnealingLR", "{\"T_max\": 0}", "T_max is 0: expected a whole number, more than 0"},
        {"ConstantLR", "{\"factor\": 0}", "factor is 0: expected a number, more than 0, and at"},
        {"LinearLR", "{\"end_factor\": 1.5}", "end_factor is 1.5: expected a number, 0 to 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Bench b = open_bench();
        CHECK_REFUSED(ds_schedule_by_name(b.o, cases[i].type, cases[i].params), cases[i].message);
        CHECK_CLOSE(ds_optim_lr(b.o), LR, 0);
        close_bench(b);
    }
}

/* docs/schedules.md names each parameter; the message about an unknown name
 * lists them. */
static void documented(void **state)
{
    (void)state;
    static const char *const types[] = {"WarmupLR",      "WarmupDecayLR",     "WarmupCosineLR",
                                        "OneCycle",      "LRRangeTest",       "StepLR",
                                        "MultiStepLR",   "CosineAnnealingLR", "ConstantLR",
                                        "ExponentialLR", "LinearLR",          "PolynomialLR"};
    size_t bytes;
    char *page = dsi_file_read(DS_SOURCE_DIR "/docs/schedules.md", &bytes);
    CHECK(page);
    Bench b = open_bench();
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        ds_error_clear();
        char names[1000], quoted[100], *rest = NULL;
        CHECK(!ds_schedule_by_name(b.o, types[i], "{\"?\": 1}"));
        snprintf(names, sizeof names, "%s", strstr(ds_error(), " takes ") + 7);
        for (char *name = strtok_r(names, ", ", &rest); name; name = strtok_r(NULL, ", ", &rest)) {
            snprintf(quoted, sizeof quoted, "`%s`", name);
            if (!strstr(page, quoted)) fail_msg("docs/schedules.md has no %s", quoted);
        }
        CHECK(strstr(page, types[i]));
    }
    ds_error_clear();
    close_bench(b);
    dsi_free(page);
}

TEST_MAIN(cmocka_unit_test(a_schedule_of_ones_own), cmocka_unit_test(null_passes),
          cmocka_unit_test(torchs_values), cmocka_unit_test(closed_forms),
          cmocka_unit_test(a_resumed_schedule_goes_on), cmocka_unit_test(last_batch_iteration),
          cmocka_unit_test(refused), cmocka_unit_test(documented))
