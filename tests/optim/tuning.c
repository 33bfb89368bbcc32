/* tests/optim/tuning.c: schedules by the options of a program.
 * SPDX-License-Identifier: MIT */
#include "optim/given.h"

#include <argp.h>

#define ARGS 12

/* Parses "--a 1 --b" as a program of one child would; false if the parser
 * refuses it. */
static bool parse(const char *line, ds_tuning_arguments *a)
{
    static char text[400], program[] = "program"; /* arguments point into it */
    char *argv[ARGS] = {program}, *rest = NULL;
    int argc = 1;
    snprintf(text, sizeof text, "%s", line);
    for (char *w = strtok_r(text, " ", &rest); w && argc < ARGS; w = strtok_r(NULL, " ", &rest))
        argv[argc++] = w;
    return argp_parse(ds_add_tuning_arguments(), argc, argv, ARGP_NO_EXIT | ARGP_NO_ERRS, NULL,
                      a) == 0;
}

/* The rates of the first updates, and beta1 of the second. */
static void check(const char *line, double first, double third, double beta1)
{
    ds_scope *scope = ds_scope_open();
    ds_tuning_arguments a;
    double betas[2];
    ds_module *m = given_new(DS_F32);
    ds_optim *o = ds_optim_adam(m, 0.5, .beta1 = 0.6);
    CHECK(parse(line, &a));
    ds_schedule *s = ds_tuning_schedule(o, &a);
    CHECK(s);
    CHECK_CLOSE(ds_schedule_lr(s, 0), first, 1e-15);
    ds_schedule_step(s);
    CHECK(ds_optim_group_betas(o, 0, betas));
    CHECK_CLOSE(betas[0], beta1, 1e-15);
    ds_schedule_step(s);
    CHECK_CLOSE(ds_schedule_lr(s, 0), third, 1e-15);
    ds_schedule_free(s);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

static void schedules(void **state)
{
    (void)state;
    check("--lr_schedule WarmupLR --warmup_num_steps 10 --warmup_type linear", 0, 1e-4, 0.6);
    check("--lr-schedule WarmupLR --warmup-num-steps=10 --warmup-max-lr=1e0", 0, log(2) / log(10),
          0.6);
    check("--lr_schedule LRRangeTest", 0.001, 0.001 * 1.002, 0.6);
    check("--lr_schedule LRRangeTest --lr_range_test_staircase true", 0.001, 0.001, 0.6);
    check("--lr_schedule LRRangeTest --lr_range_test_staircase False", 0.001, 0.001 * 1.002, 0.6);
    check("--lr_schedule OneCycle --cycle_first_step_size 10", 0.01, 0.01 + 0.09 * 0.2, 0.6);
    check("--lr_schedule OneCycle --cycle_first_step_size 10 --cycle_momentum", 0.01,
          0.01 + 0.09 * 0.2, 0.89);
    check("--lr_schedule WarmupDecayLR --total_num_steps 100 --warmup_num_steps 2", 0, 0.001, 0.6);
    check("--lr_schedule WarmupCosineLR --total_num_steps 100 --warmup_num_steps 100", 0,
          0.5 * (0.01 + 0.99 * log(2) / log(100)), 0.6);
}

static void check_refused(const char *line, const char *message)
{
    ds_tuning_arguments a;
    ds_module *m = given_new(DS_F32);
    ds_optim *o = ds_optim_adam(m, 0.5);
    CHECK(parse(line, &a));
    CHECK_REFUSED(ds_tuning_schedule(o, &a), message);
    ds_optim_free(o);
    ds_module_free(m);
}

static void refused(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tuning_arguments a;
    check_refused("", "tuning_schedule: no --lr_schedule was given");
    check_refused("--lr_schedule OneCycel", "did you mean OneCycle");
    check_refused("--lr_schedule StepLR", "--lr_schedule StepLR: expected one of WarmupLR, W");
    check_refused("--lr_schedule WarmupLR --warmup_max_lr much",
                  "scheduler.params.warmup_max_lr is \"much\": expected a number");
    check_refused("--lr_schedule WarmupLR --warmup_max_lr inf", "warmup_max_lr is \"inf\"");
    check_refused("--lr_schedule WarmupLR --warmup_num_steps 1.5", "warmup_num_steps is 1.5");
    check_refused("--lr_schedule WarmupDecayLR", "has no \"total_num_steps\"");
    CHECK(!parse("--no_such_option", &a));
    CHECK(!ds_tuning_schedule(NULL, &a));
    CHECK_ERROR("tuning_schedule");
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(schedules), cmocka_unit_test(refused))
