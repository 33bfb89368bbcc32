/* optim/params.c: the parameters of an optimizer or a schedule: their defaults,
 * reading them from JSON, checking a constructor's options.
 * SPDX-License-Identifier: MIT */
#include "params.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/option.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_PARAMS 64 /* of one table */

static const struct {
    const char *name;
    double low, high;
    bool open_low, open_high; /* the end itself is out of range */
} ranges[] = {
    [DSI_ANY] = {"a finite number", -INFINITY, INFINITY, false, false},
    [DSI_NOT_NEGATIVE] = {"0 or more", 0, INFINITY, false, false},
    [DSI_POSITIVE] = {"more than 0", 0, INFINITY, .open_low = true, .open_high = false},
    [DSI_FRACTION] = {"0 to 1", 0, 1, false, false},
    [DSI_BETA] = {"0 or more, and less than 1", 0, 1, .open_low = false, .open_high = true},
    [DSI_FACTOR] = {"more than 0, and at most 1", 0, 1, .open_low = true, .open_high = false},
    [DSI_FROM_MINUS_1] = {"-1 or more", -1, INFINITY, false, false},
};

static bool param_in_range(double x, dsi_param_range r)
{
    return (ranges[r].open_low ? x > ranges[r].low : x >= ranges[r].low) &&
           (ranges[r].open_high ? x < ranges[r].high : x <= ranges[r].high);
}

static int params_count(const dsi_param *table)
{
    int n = 0;
    while (table[n].name) n++;
    DSI_ASSERT(n <= MAX_PARAMS);
    return n;
}

const dsi_param *dsi_params_find(const dsi_param *table, const char *name)
{
    while (table->name && strcmp(table->name, name) != 0) table++;
    return table->name ? table : NULL;
}

static void *param_variable(const dsi_param *p, void *self) { return (char *)self + p->offset; }

/* ---- defaults ---------------------------------------------------------------------------------------- */

/* New: the default of each group. */
static double *param_default_groups(const dsi_params_from *from, const dsi_param *p)
{
    double *x = dsi_alloc((size_t)from->groups * sizeof *x);
    for (int g = 0; g < from->groups; g++) x[g] = p->otherwise ? from->lr[g] : p->value[0];
    return x;
}

/* Every variable of the struct is set before JSON is read, so a table without a
 * key in the file gives the documented default. */
static void param_set_default(const dsi_params_from *from, const dsi_param *p, void *to)
{
    switch (p->kind) {
    case DSI_PARAM_NUMBER:
        *(double *)to = p->value[0];
        return;
    case DSI_PARAM_PAIR:
        memcpy(to, p->value, sizeof p->value);
        return;
    case DSI_PARAM_GROUPS:
        *(double **)to = param_default_groups(from, p);
        return;
    case DSI_PARAM_INTEGER:
    case DSI_PARAM_STRICT_INTEGER:
        *(int64_t *)to = (int64_t)p->value[0];
        return;
    case DSI_PARAM_BOOL:
        *(bool *)to = p->value[0] != 0;
        return;
    case DSI_PARAM_NOT:
        *(bool *)to = p->value[0] == 0;
        return;
    default: /* zeroed: an empty list, the first choice */
        return;
    }
}

/* ---- a constructor's options -------------------------------------------------------------------------- */

/* Number i of n; betas are the options beta1 and beta2. The message's name is
 * the table's without its s and with a number: "beta1" of "betas". *x is
 * replaced by the default, or by 0 for DS_ZERO. */
static bool option_check(const char *name, const dsi_param *p, int i, int n, double *x)
{
    *x = dsi_option(*x, p->exact ? 0 : p->value[i]);
    if (param_in_range(*x, p->range)) return true;
    char option[64];
    snprintf(option, sizeof option, n > 1 ? "%.*s%d" : "%.*s", (int)strlen(p->name) - (n > 1),
             p->name, i + 1);
    return dsi_refuse("%s: %s is %g: expected %s", name, option, *x, ranges[p->range].name);
}

/* How many doubles the variable has that 0 and DS_ZERO are for. */
static int param_numbers(const dsi_param *p)
{
    return p->kind == DSI_PARAM_NUMBER ? 1 : p->kind == DSI_PARAM_PAIR ? 2 : 0;
}

/* betas are checked as the two options beta1 and beta2, the names that a C
 * program uses. */
bool dsi_params_check(const char *name, const dsi_param *table, void *options, size_t size)
{
    for (; table->name; table++) {
        double *x = param_variable(table, options);
        int n = table->offset < size ? param_numbers(table) : 0; /* the rest: a configuration's */
        for (int i = 0; i < n; i++)
            if (!option_check(name, table, i, n, &x[i])) return false;
    }
    return true;
}

/* A configuration that says 0 means 0, but a constructor takes 0 for the
 * default. */
void dsi_params_to_options(const dsi_param *table, void *self)
{
    for (; table->name; table++) {
        double *x = param_variable(table, self);
        for (int i = 0; i < param_numbers(table); i++)
            if (x[i] == 0) x[i] = DS_ZERO;
    }
}

/* ---- messages ---------------------------------------------------------------------------------------- */

/* "scheduler.params.warmup_num_steps is 0.5: expected ...". value is printed
 * as JSON, of at most 80 characters; `want` follows "expected". "auto" is
 * explained, since transformers fills it in and DeepSpeed does not. */
static ds_status param_refuse(const dsi_params_from *f, const dsi_param *p, const json_t *value,
                              const char *want)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    bool is_auto = json_is_string(value) && !strcmp(json_string_value(value), "auto");
    dsi_fail(DS_EINVAL, "%s.%s is %.80s: expected %s%s", f->path, p->name, text ? text : "?", want,
             is_auto ? "; \"auto\" is filled in by the program that wrote it" : "");
    free(text);
    return DS_EINVAL;
}

/* what: the kind of number; the range follows from the row. */
static ds_status param_refuse_number(const dsi_params_from *f, const dsi_param *p,
                                     const json_t *value, const char *what)
{
    dsi_text want = dsi_text_of("%s, %s", what, ranges[p->range].name);
    ds_status status = param_refuse(f, p, value, want.s);
    dsi_text_free(&want);
    return status;
}

/* All names of the table, with the nearest one first if there is one. */
static ds_status param_refuse_unknown(const dsi_params_from *f, const char *name,
                                      const dsi_param *table)
{
    int n = params_count(table);
    const char *names[MAX_PARAMS];
    dsi_text all = {0};
    for (int i = 0; i < n; i++) {
        names[i] = table[i].name;
        dsi_text_add(&all, "%s%s", i ? ", " : "", table[i].name);
    }
    const char *near = dsi_nearest(name, names, n);
    if (near)
        dsi_fail(DS_EINVAL, "%s.%s: did you mean \"%s\"? %s takes %s", f->path, name, near, f->type,
                 all.s);
    else
        dsi_fail(DS_EINVAL, "%s.%s: %s takes %s", f->path, name, f->type, all.s);
    dsi_text_free(&all);
    return DS_EINVAL;
}

/* ---- values ------------------------------------------------------------------------------------------ */

/* Integers are numbers too. *to is unchanged after a failure. */
static ds_status param_read_number(const dsi_params_from *f, const dsi_param *p,
                                   const json_t *value, double *to)
{
    if (!json_is_number(value) || !param_in_range(json_number_value(value), p->range))
        return param_refuse_number(f, p, value, "a number");
    *to = json_number_value(value);
    return DS_OK;
}

/* One number for all groups, or a list with one for each; to: [groups],
 * allocated by the default. */
static ds_status param_read_groups(const dsi_params_from *f, const dsi_param *p,
                                   const json_t *value, double *to)
{
    bool list = json_is_array(value);
    if (list && json_array_size(value) != (size_t)f->groups)
        return dsi_fail(DS_EINVAL,
                        "%s.%s has %zu values: expected one for each parameter group of the "
                        "optimizer, which has %d",
                        f->path, p->name, json_array_size(value), f->groups);
    for (int g = 0; g < f->groups; g++) {
        const json_t *one = list ? json_array_get(value, (size_t)g) : value;
        ds_status status = param_read_number(f, p, one, &to[g]);
        if (status != DS_OK) return status;
    }
    return DS_OK;
}

/* As betas: both numbers in range, or neither is stored. */
static ds_status param_read_pair(const dsi_params_from *f, const dsi_param *p, const json_t *value,
                                 double *to)
{
    bool fits = json_array_size(value) == 2;
    for (size_t i = 0; fits && i < 2; i++) {
        const json_t *one = json_array_get(value, i);
        fits = json_is_number(one) && param_in_range(json_number_value(one), p->range);
        if (fits) to[i] = json_number_value(one);
    }
    return fits ? DS_OK : param_refuse_number(f, p, value, "two numbers");
}

/* Without a fraction, and exact as a double. */
static bool json_is_whole(const json_t *value)
{
    double x = json_number_value(value);
    return json_is_number(value) && fabs(x) <= 0x1p53 && x == trunc(x);
}

/* 1e3 is an integer for DeepSpeed's schedules that compute with it, but not
 * where a STRICT one counts steps. */
static ds_status param_read_integer(const dsi_params_from *f, const dsi_param *p,
                                    const json_t *value, int64_t *to)
{
    bool strict = p->kind == DSI_PARAM_STRICT_INTEGER;
    if (!json_is_whole(value) || (strict && !json_is_integer(value)) ||
        !param_in_range(json_number_value(value), p->range))
        return param_refuse_number(
            f, p, value, strict ? "an integer, without point or exponent" : "a whole number");
    *to = (int64_t)json_number_value(value);
    return DS_OK;
}

/* Milestones: sorted, so that a schedule can go through them once. *to is
 * freed by the type's free, also after a failure. Equal neighbours are
 * allowed: such a milestone counts twice, as in torch. */
static ds_status param_read_integers(const dsi_params_from *f, const dsi_param *p,
                                     const json_t *value, dsi_int_list *to)
{
    double last = -INFINITY;
    if (!json_is_array(value)) return param_refuse(f, p, value, "a list of whole numbers");
    *to = (dsi_int_list){dsi_alloc(json_array_size(value) * sizeof *to->at + 1), 0};
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *one = json_array_get(value, i);
        double x = json_number_value(one);
        if (!json_is_whole(one) || !param_in_range(x, p->range) || x < last)
            return param_refuse(f, p, value,
                                "a list of whole numbers, each as large as the one before");
        to->at[to->n++] = (int64_t)(last = x);
    }
    return DS_OK;
}

/* 0 and 1 are refused. A row NOT stores the opposite. */
static ds_status param_read_bool(const dsi_params_from *f, const dsi_param *p, const json_t *value,
                                 bool *to)
{
    if (!json_is_boolean(value)) return param_refuse(f, p, value, "true or false");
    *to = json_is_true(value) != (p->kind == DSI_PARAM_NOT);
    return DS_OK;
}

/* *to: the index of the word in p->choices. */
static ds_status param_read_choice(const dsi_params_from *f, const dsi_param *p,
                                   const json_t *value, int *to)
{
    const char *word = json_string_value(value);
    dsi_text want = {0};
    int i = 0;
    for (; p->choices[i] && !(word && !strcmp(word, p->choices[i])); i++)
        dsi_text_add(&want, "%s\"%s\"", i ? " or " : "", p->choices[i]);
    ds_status status = p->choices[i] ? DS_OK : param_refuse(f, p, value, want.s);
    if (status == DS_OK) *to = i;
    dsi_text_free(&want);
    return status;
}

/* Reads one value by its row; null means the default where the row permits
 * it. */
static ds_status param_read(const dsi_params_from *f, const dsi_param *p, const json_t *value,
                            void *self)
{
    void *to = param_variable(p, self);
    if (json_is_null(value) && p->nullable) return DS_OK;
    switch (p->kind) {
    case DSI_PARAM_NUMBER:
        return param_read_number(f, p, value, to);
    case DSI_PARAM_PAIR:
        return param_read_pair(f, p, value, to);
    case DSI_PARAM_GROUPS:
        return param_read_groups(f, p, value, *(double **)to);
    case DSI_PARAM_INTEGER:
    case DSI_PARAM_STRICT_INTEGER:
        return param_read_integer(f, p, value, to);
    case DSI_PARAM_INTEGERS:
        return param_read_integers(f, p, value, to);
    case DSI_PARAM_BOOL:
    case DSI_PARAM_NOT:
        return param_read_bool(f, p, value, to);
    case DSI_PARAM_CHOICE:
        return param_read_choice(f, p, value, to);
    case DSI_PARAM_IGNORED:
        return DS_OK;
    }
    return DS_OK;
}

/* Required parameters are checked last: an unknown name is often a misspelt
 * required one, and its message helps more. The first failure ends it. */
static ds_status params_read_object(const dsi_params_from *f, json_t *object,
                                    const dsi_param *table, void *self)
{
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        const dsi_param *p = dsi_params_find(table, name);
        ds_status status = p ? param_read(f, p, value, self) : param_refuse_unknown(f, name, table);
        if (status != DS_OK) return status;
    }
    for (const dsi_param *p = table; p->name; p++)
        if (p->required && !json_object_get(object, p->name))
            return dsi_fail(DS_EINVAL, "%s has no \"%s\", which %s needs", f->path, p->name,
                            f->type);
    return DS_OK;
}

/* Syntax errors name line and column of the params object's own text. */
ds_status dsi_params_read(const dsi_params_from *from, const char *json, const dsi_param *table,
                          void *self)
{
    json_error_t error = {0};
    json_t *object = json ? json_loads(json, JSON_REJECT_DUPLICATES, &error) : json_object();
    ds_status status;
    for (const dsi_param *p = table; p->name; p++)
        param_set_default(from, p, param_variable(p, self));
    if (!object)
        status = dsi_fail(DS_EFORMAT, "%s: line %d, column %d: %s", from->path, error.line,
                          error.column, error.text);
    else if (!json_is_object(object))
        status = dsi_fail(DS_EINVAL, "%s is not an object: expected {...}", from->path);
    else
        status = params_read_object(from, object, table, self);
    json_decref(object);
    return status;
}
