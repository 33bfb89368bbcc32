/* optim/tuning.c: schedules by the options of a program (deepspeed.add_tuning_arguments).
 *
 * Defaults are DeepSpeed's for options, which are not those of its classes. Three things work here that
 * do not there: a second part of -1 steps is as long as the first; --cycle_momentum decides; and
 * --total_num_steps, which is not DeepSpeed's, gives two schedules what they need.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/text.h"

#include <deepspeed/optim.h>

#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Which schedule an option is for. */
enum { RANGE = 1, CYCLE = 2, WARMUP = 4, DECAY = 8, COSINE = 16 };

static const char *const schedules[] = {"LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR",
                                        "WarmupCosineLR"};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

/* name, with hyphens, argument or 0, default or NULL, schedules, help */
/* clang-format off */
#define OPTIONS(X) \
    X(lr_range_test_min_lr, "lr-range-test-min-lr", "LR", "0.001", RANGE, "first rate of the range test") \
    X(lr_range_test_step_rate, "lr-range-test-step-rate", "X", "1.0", RANGE, "growth a step of the test") \
    X(lr_range_test_step_size, "lr-range-test-step-size", "N", "1000", RANGE, "updates a step") \
    X(lr_range_test_staircase, "lr-range-test-staircase", "BOOL", "false", RANGE, "rise in stairs") \
    X(cycle_first_step_size, "cycle-first-step-size", "N", "1000", CYCLE, "updates up") \
    X(cycle_second_step_size, "cycle-second-step-size", "N", "-1", CYCLE, "updates down; -1: as up") \
    X(cycle_first_stair_count, "cycle-first-stair-count", "N", "-1", CYCLE, "stairs up; -1: a slope") \
    X(cycle_second_stair_count, "cycle-second-stair-count", "N", "-1", CYCLE, "stairs down") \
    X(decay_step_size, "decay-step-size", "N", "1000", CYCLE, "updates a decay after the cycle") \
    X(cycle_min_lr, "cycle-min-lr", "LR", "0.01", CYCLE, "lowest rate of the cycle") \
    X(cycle_max_lr, "cycle-max-lr", "LR", "0.1", CYCLE, "highest") \
    X(decay_lr_rate, "decay-lr-rate", "X", "0.0", CYCLE, "decay of the rate") \
    X(cycle_momentum, "cycle-momentum", 0, "false", CYCLE, "cycle the momentum too") \
    X(cycle_min_mom, "cycle-min-mom", "X", "0.8", CYCLE, "lowest momentum") \
    X(cycle_max_mom, "cycle-max-mom", "X", "0.9", CYCLE, "highest") \
    X(decay_mom_rate, "decay-mom-rate", "X", "0.0", CYCLE, "decay of the momentum") \
    X(warmup_min_lr, "warmup-min-lr", "LR", "0", WARMUP | DECAY, "first rate of the warm-up") \
    X(warmup_max_lr, "warmup-max-lr", "LR", "0.001", WARMUP | DECAY, "last") \
    X(warmup_num_steps, "warmup-num-steps", "N", "1000", WARMUP | DECAY | COSINE, "its updates") \
    X(warmup_type, "warmup-type", "TYPE", "log", WARMUP | DECAY | COSINE, "log or linear") \
    X(warmup_min_ratio, "warmup-min-ratio", "X", "0.01", COSINE, "of the rate, at first") \
    X(cos_min_ratio, "cos-min-ratio", "X", "0.01", COSINE, "of the rate, at the end") \
    X(total_num_steps, "total-num-steps", "N", NULL, DECAY | COSINE, "all updates")
/* clang-format on */

typedef struct Option {
    const char *name, *absent;
    int schedules;
} Option;

#define ROW(name, hyphens, arg, absent, for_, help) {#name, absent, for_},
static const Option rows[] = {OPTIONS(ROW)};
enum { ROWS = sizeof rows / sizeof *rows };
_Static_assert(ROWS <= DS_TUNING_OPTIONS, "room in ds_tuning_arguments");

#define KEY(name, hyphens, arg, absent, for_, help) KEY_##name,
enum { FIRST_KEY = 0x74700, BEFORE = FIRST_KEY - 1, OPTIONS(KEY) SCHEDULE_KEY };

#define BOTH(name, hyphens, arg, absent, for_, help) \
    {#name, KEY_##name, arg, 0, help, 0}, \
        {hyphens, KEY_##name, 0, OPTION_ALIAS | OPTION_HIDDEN, 0, 0},
static const struct argp_option options[] = {
    {"lr_schedule", SCHEDULE_KEY, "TYPE", 0,
     "learning-rate schedule: LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR, WarmupCosineLR", 0},
    {"lr-schedule", SCHEDULE_KEY, 0, OPTION_ALIAS | OPTION_HIDDEN, 0, 0},
    OPTIONS(BOTH){0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    ds_tuning_arguments *a = state->input;
    if (!a) return ARGP_ERR_UNKNOWN;
    if (key == ARGP_KEY_INIT)
        *a = (ds_tuning_arguments){0};
    else if (key == SCHEDULE_KEY)
        a->lr_schedule = arg;
    else if (key >= FIRST_KEY && key < FIRST_KEY + ROWS)
        a->given[key - FIRST_KEY] = arg ? arg : "true";
    else
        return ARGP_ERR_UNKNOWN;
    return 0;
}

const struct argp *ds_add_tuning_arguments(void)
{
    static const struct argp argp = {options, parse, NULL, NULL, NULL, NULL, NULL};
    return &argp;
}

/* ---- the schedule ------------------------------------------------------------------------------------ */

/* The text as JSON: a number, a truth value, or else a string, which its reader refuses or knows. */
static json_t *value_of(const char *text)
{
    char *end;
    if (!strcmp(text, "true") || !strcmp(text, "True")) return json_true();
    if (!strcmp(text, "false") || !strcmp(text, "False")) return json_false();
    errno = 0;
    long long whole = strtoll(text, &end, 10);
    if (end != text && !*end && !errno) return json_integer(whole);
    double x = strtod(text, &end);
    json_t *real = end != text && !*end ? json_real(x) : NULL; /* NULL of inf and NaN */
    return real ? real : json_string(text);
}

static char *params_of(const ds_tuning_arguments *a, int schedule)
{
    json_t *params = json_object();
    for (int i = 0; i < ROWS; i++) {
        const char *text = a->given[i] ? a->given[i] : rows[i].absent;
        bool as_first = i == KEY_cycle_second_step_size - FIRST_KEY && text && !strcmp(text, "-1");
        if (!(rows[i].schedules & schedule) || !text || as_first) continue;
        json_object_set_new(params, rows[i].name, value_of(text));
    }
    char *json = json_dumps(params, 0);
    json_decref(params);
    return json;
}

ds_schedule *ds_tuning_schedule(ds_optim *o, const ds_tuning_arguments *a)
{
    if (!o || !a) return dsi_null_operand("tuning_schedule");
    if (!a->lr_schedule) return dsi_refuse("tuning_schedule: no --lr_schedule was given");
    for (int i = 0; i < SCHEDULES; i++) {
        if (strcmp(a->lr_schedule, schedules[i]) != 0) continue;
        char *json = params_of(a, 1 << i);
        ds_schedule *s = ds_schedule_by_name(o, schedules[i], json);
        free(json);
        return s;
    }
    const char *near = dsi_nearest(a->lr_schedule, schedules, SCHEDULES);
    return dsi_refuse(
        "tuning_schedule: --lr_schedule %s: expected LRRangeTest, OneCycle, WarmupLR, "
        "WarmupDecayLR or WarmupCosineLR%s%s",
        a->lr_schedule, near ? "; did you mean " : "", near ? near : "");
}
