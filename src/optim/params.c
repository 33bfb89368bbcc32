/* optim/params.c: the "params" of an optimizer or a schedule in a configuration, read by a table.
 * SPDX-License-Identifier: MIT */
#include "params.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#define MOST_NAMES 64 /* of one table */

static const char *const expected[] = {
    [DSI_ANY] = "a finite number",
    [DSI_NOT_NEGATIVE] = "0 or more",
    [DSI_POSITIVE] = "more than 0",
    [DSI_UNIT] = "0 to 1",
    [DSI_BETA] = "0 or more, and less than 1",
    [DSI_FACTOR] = "more than 0, and at most 1",
    [DSI_FROM_MINUS_1] = "-1 or more",
};

static bool in_range(double x, dsi_range range)
{
    switch (range) {
    case DSI_ANY:
        return isfinite(x);
    case DSI_NOT_NEGATIVE:
        return x >= 0 && isfinite(x);
    case DSI_POSITIVE:
        return x > 0 && isfinite(x);
    case DSI_UNIT:
        return x >= 0 && x <= 1;
    case DSI_BETA:
        return x >= 0 && x < 1;
    case DSI_FACTOR:
        return x > 0 && x <= 1;
    case DSI_FROM_MINUS_1:
        return x >= -1 && isfinite(x);
    }
    return false;
}

/* ---- messages ---------------------------------------------------------------------------------------- */

/* "scheduler.params.warmup_num_steps is 0.5: expected ..." */
static ds_status wrong(const dsi_params_from *f, const dsi_param *p, const json_t *value,
                       const char *want)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    bool is_auto = json_is_string(value) && !strcmp(json_string_value(value), "auto");
    dsi_fail(DS_EINVAL, "%s.%s is %.80s: expected %s%s", f->path, p->name, text ? text : "?", want,
             is_auto ? "; \"auto\" is for the program that wrote it to fill in" : "");
    free(text);
    return DS_EINVAL;
}

static ds_status wrong_number(const dsi_params_from *f, const dsi_param *p, const json_t *value,
                              const char *what)
{
    dsi_text want = {0};
    dsi_text_add(&want, "%s, %s", what, expected[p->range]);
    ds_status status = wrong(f, p, value, want.s);
    dsi_text_free(&want);
    return status;
}

static ds_status unknown(const dsi_params_from *f, const char *name, const dsi_param *table, int n)
{
    const char *names[MOST_NAMES];
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

static ds_status read_number(const dsi_params_from *f, const dsi_param *p, const json_t *value,
                             double *to)
{
    if (!json_is_number(value) || !in_range(json_number_value(value), p->range))
        return wrong_number(f, p, value, "a number");
    *to = json_number_value(value);
    return DS_OK;
}

static ds_status read_rates(const dsi_params_from *f, const dsi_param *p, const json_t *value)
{
    double *to = p->to;
    bool list = json_is_array(value);
    if (list && json_array_size(value) != (size_t)f->groups)
        return dsi_fail(DS_EINVAL,
                        "%s.%s has %zu values: expected one for each parameter group of the "
                        "optimizer, which has %d",
                        f->path, p->name, json_array_size(value), f->groups);
    for (int g = 0; g < f->groups; g++) {
        const json_t *one = list ? json_array_get(value, (size_t)g) : value;
        ds_status status = read_number(f, p, one, &to[g]);
        if (status != DS_OK) return status;
    }
    return DS_OK;
}

static ds_status read_pair(const dsi_params_from *f, const dsi_param *p, const json_t *value)
{
    double *to = p->to;
    if (json_array_size(value) != 2) return wrong_number(f, p, value, "two numbers");
    for (size_t i = 0; i < 2; i++) {
        const json_t *one = json_array_get(value, i);
        if (!json_is_number(one) || !in_range(json_number_value(one), p->range))
            return wrong_number(f, p, value, "two numbers");
        to[i] = json_number_value(one);
    }
    return DS_OK;
}

/* A whole number that a double holds exactly. */
static bool is_whole(const json_t *value)
{
    double x = json_number_value(value);
    return json_is_number(value) && fabs(x) <= 0x1p53 && x == trunc(x);
}

static ds_status read_whole(const dsi_params_from *f, const dsi_param *p, const json_t *value)
{
    bool strict = p->kind == DSI_PARAM_INTEGER;
    if (!is_whole(value) || (strict && !json_is_integer(value)) ||
        !in_range(json_number_value(value), p->range))
        return wrong_number(f, p, value,
                            strict ? "an integer, without point or exponent" : "a whole number");
    *(int64_t *)p->to = (int64_t)json_number_value(value);
    return DS_OK;
}

static ds_status read_wholes(const dsi_params_from *f, const dsi_param *p, const json_t *value)
{
    dsi_wholes *to = p->to;
    double last = -INFINITY;
    if (!json_is_array(value)) return wrong(f, p, value, "a list of whole numbers");
    dsi_free(to->at);
    *to = (dsi_wholes){dsi_alloc(json_array_size(value) * sizeof *to->at + 1), 0};
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *one = json_array_get(value, i);
        double x = json_number_value(one);
        if (!is_whole(one) || !in_range(x, p->range) || x < last)
            return wrong(f, p, value, "a list of whole numbers, each as large as the one before");
        to->at[to->n++] = (int64_t)(last = x);
    }
    return DS_OK;
}

static ds_status read_bool(const dsi_params_from *f, const dsi_param *p, const json_t *value)
{
    if (!json_is_boolean(value)) return wrong(f, p, value, "true or false");
    *(bool *)p->to = json_is_true(value);
    return DS_OK;
}

static ds_status read_word(const dsi_params_from *f, const dsi_param *p, const json_t *value)
{
    const char *word = json_string_value(value);
    dsi_text want = {0};
    for (int i = 0; p->words[i]; i++) {
        if (word && !strcmp(word, p->words[i])) {
            *(int *)p->to = i;
            dsi_text_free(&want);
            return DS_OK;
        }
        dsi_text_add(&want, "%s\"%s\"", i ? " or " : "", p->words[i]);
    }
    ds_status status = wrong(f, p, value, want.s);
    dsi_text_free(&want);
    return status;
}

static ds_status read_value(const dsi_params_from *f, const dsi_param *p, const json_t *value)
{
    if (json_is_null(value) && p->nullable) return DS_OK;
    switch (p->kind) {
    case DSI_PARAM_NUMBER:
        return read_number(f, p, value, p->to);
    case DSI_PARAM_RATES:
        return read_rates(f, p, value);
    case DSI_PARAM_INTEGER:
    case DSI_PARAM_WHOLE:
        return read_whole(f, p, value);
    case DSI_PARAM_WHOLES:
        return read_wholes(f, p, value);
    case DSI_PARAM_BOOL:
        return read_bool(f, p, value);
    case DSI_PARAM_WORD:
        return read_word(f, p, value);
    case DSI_PARAM_PAIR:
        return read_pair(f, p, value);
    case DSI_PARAM_IGNORED:
        return DS_OK;
    }
    return DS_OK;
}

/* ---- the object -------------------------------------------------------------------------------------- */

static ds_status read_object(const dsi_params_from *f, json_t *object, const dsi_param *table,
                             int n)
{
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        int i = 0;
        while (i < n && strcmp(table[i].name, name) != 0) i++;
        ds_status status = i < n ? read_value(f, &table[i], value) : unknown(f, name, table, n);
        if (status != DS_OK) return status;
    }
    for (int i = 0; i < n; i++)
        if (table[i].required && !json_object_get(object, table[i].name))
            return dsi_fail(DS_EINVAL, "%s has no \"%s\", which %s needs", f->path, table[i].name,
                            f->type);
    return DS_OK;
}

ds_status dsi_params_read(const dsi_params_from *from, const char *json, const dsi_param *table,
                          int n)
{
    json_error_t error = {0};
    json_t *object = json ? json_loads(json, JSON_REJECT_DUPLICATES, &error) : json_object();
    ds_status status;
    DSI_ASSERT(n <= MOST_NAMES);
    if (!object)
        status = dsi_fail(DS_EFORMAT, "%s: line %d, column %d: %s", from->path, error.line,
                          error.column, error.text);
    else if (!json_is_object(object))
        status = dsi_fail(DS_EINVAL, "%s is not an object: expected {...}", from->path);
    else
        status = read_object(from, object, table, n);
    json_decref(object);
    return status;
}
