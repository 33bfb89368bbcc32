/* optim/tuning.c: schedules by the options of a program
 * (deepspeed.add_tuning_arguments).
 *
 * The schedules are DeepSpeed's of list.h; a schedule takes the options that
 * are called as its parameters. The defaults are DeepSpeed's for options, which
 * are not those of its classes. Three things work here that do not there: a
 * second half of -1 steps is as long as the first; --cycle_momentum decides;
 * and --total_num_steps, which DeepSpeed does not have, gives two schedules
 * what they need.
 * SPDX-License-Identifier: MIT */
#include "list.h"

#include "base/error.h"

#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* name, with hyphens, argument or 0, default or NULL, help */
/* clang-format off */
#define OPTIONS(X) \
    X(lr_range_test_min_lr, "lr-range-test-min-lr", "LR", "0.001", "first rate of the range test") \
    X(lr_range_test_step_rate, "lr-range-test-step-rate", "X", "1.0", "growth a step of the test") \
    X(lr_range_test_step_size, "lr-range-test-step-size", "N", "1000", "updates a step") \
    X(lr_range_test_staircase, "lr-range-test-staircase", "BOOL", "false", "rise in stairs") \
    X(cycle_first_step_size, "cycle-first-step-size", "N", "1000", "updates up") \
    X(cycle_second_step_size, "cycle-second-step-size", "N", "-1", "updates down; -1: as up") \
    X(cycle_first_stair_count, "cycle-first-stair-count", "N", "-1", "stairs up; -1: a slope") \
    X(cycle_second_stair_count, "cycle-second-stair-count", "N", "-1", "stairs down") \
    X(decay_step_size, "decay-step-size", "N", "1000", "updates a decay after the cycle") \
    X(cycle_min_lr, "cycle-min-lr", "LR", "0.01", "lowest rate of the cycle") \
    X(cycle_max_lr, "cycle-max-lr", "LR", "0.1", "highest") \
    X(decay_lr_rate, "decay-lr-rate", "X", "0.0", "decay of the rate") \
    X(cycle_momentum, "cycle-momentum", 0, "false", "cycle the momentum too") \
    X(cycle_min_mom, "cycle-min-mom", "X", "0.8", "lowest momentum") \
    X(cycle_max_mom, "cycle-max-mom", "X", "0.9", "highest") \
    X(decay_mom_rate, "decay-mom-rate", "X", "0.0", "decay of the momentum") \
    X(warmup_min_lr, "warmup-min-lr", "LR", "0", "first rate of the warm-up") \
    X(warmup_max_lr, "warmup-max-lr", "LR", "0.001", "last") \
    X(warmup_num_steps, "warmup-num-steps", "N", "1000", "its updates") \
    X(warmup_type, "warmup-type", "TYPE", "log", "log or linear") \
    X(warmup_min_ratio, "warmup-min-ratio", "X", "0.01", "of the rate, at first") \
    X(cos_min_ratio, "cos-min-ratio", "X", "0.01", "of the rate, at the end") \
    X(total_num_steps, "total-num-steps", "N", NULL, "all updates")
/* clang-format on */

typedef struct Option {
    const char *name, *absent; /* absent: its value if it is not given, or NULL */
} Option;

#define ROW(name, hyphens, arg, absent, help) {#name, absent},
static const Option rows[] = {OPTIONS(ROW)};
enum { ROWS = sizeof rows / sizeof *rows };
_Static_assert(ROWS <= DS_TUNING_OPTIONS, "DS_TUNING_OPTIONS is too small");

#define KEY(name, hyphens, arg, absent, help) KEY_##name,
enum { FIRST_KEY = 0x74700, BEFORE = FIRST_KEY - 1, OPTIONS(KEY) SCHEDULE_KEY };

#define BOTH(name, hyphens, arg, absent, help) \
    {#name, KEY_##name, arg, 0, help, 0}, \
        {hyphens, KEY_##name, 0, OPTION_ALIAS | OPTION_HIDDEN, 0, 0},
static const struct argp_option options[] = {
    {"lr_schedule", SCHEDULE_KEY, "TYPE", 0, "learning-rate schedule: ", 0},
    {"lr-schedule", SCHEDULE_KEY, 0, OPTION_ALIAS | OPTION_HIDDEN, 0, 0},
    OPTIONS(BOTH){0}};

/* The schedules that options can choose, "A, B, C"; to be freed by
 * dsi_text_free. */
static dsi_text tuning_names(void)
{
    dsi_text names = {0};
    const dsi_schedule_entry *e;
    for (int i = 0; (e = dsi_schedule_entry_at(i)); i++)
        if (!e->torch) dsi_text_add(&names, "%s%s", names.n ? ", " : "", e->type.name);
    return names;
}

/* --help names the schedules of the list. */
static char *tuning_help(int key, const char *text, void *input)
{
    (void)input;
    if (key != SCHEDULE_KEY || !text) return (char *)(uintptr_t)text;
    dsi_text names = tuning_names();
    char *help = NULL;
    if (asprintf(&help, "%s%s", text, names.s) < 0) help = NULL;
    dsi_text_free(&names);
    return help;
}

/* Arguments are kept as text; the schedule's table checks them, so ranges are
 * written once. */
static error_t tuning_parse(int key, char *arg, struct argp_state *state)
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
    static const struct argp argp = {options, tuning_parse, NULL, NULL, NULL, tuning_help, NULL};
    return &argp;
}

/* ---- the schedule ------------------------------------------------------------------------------------ */

/* The text as JSON: a number, true or false, or else a string, which its reader
 * checks. */
static json_t *tuning_value(const char *text)
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

/* The options that e takes, as JSON to be freed. */
static char *tuning_params(const ds_tuning_arguments *a, const dsi_schedule_entry *e)
{
    json_t *params = json_object();
    for (int i = 0; i < ROWS; i++) {
        const char *text = a->given[i] ? a->given[i] : rows[i].absent;
        bool as_first = i == KEY_cycle_second_step_size - FIRST_KEY && text && !strcmp(text, "-1");
        if (!dsi_params_find(e->params, rows[i].name) || !text || as_first) continue;
        json_object_set_new(params, rows[i].name, tuning_value(text));
    }
    char *json = json_dumps(params, 0);
    json_decref(params);
    return json;
}

/* Only DeepSpeed's schedules have options of a command line. */
static ds_schedule *tuning_refuse_name(const char *type)
{
    const char *names[64];
    int n = 0;
    const dsi_schedule_entry *e;
    for (int i = 0; (e = dsi_schedule_entry_at(i)) && n < 64; i++)
        if (!e->torch) names[n++] = e->type.name;
    const char *near = dsi_nearest(type, names, n);
    dsi_text all = tuning_names();
    dsi_refuse("tuning_schedule: --lr_schedule %s: expected one of %s%s%s", type, all.s,
               near ? "; did you mean " : "", near ? near : "");
    dsi_text_free(&all);
    return NULL;
}

/* Options that another schedule has are ignored, as DeepSpeed's argument parser
 * does; those not given have its defaults. */
ds_schedule *ds_tuning_schedule(ds_optim *o, const ds_tuning_arguments *a)
{
    if (!o || !a) return dsi_null_operand("tuning_schedule");
    if (!a->lr_schedule) return dsi_refuse("tuning_schedule: no --lr_schedule was given");
    const dsi_schedule_entry *e = NULL;
    for (int i = 0; (e = dsi_schedule_entry_at(i)); i++)
        if (!e->torch && !strcmp(a->lr_schedule, e->type.name)) break;
    if (!e) return tuning_refuse_name(a->lr_schedule);
    char *json = tuning_params(a, e);
    ds_schedule *s = ds_schedule_by_name(o, e->type.name, json);
    free(json);
    return s;
}
