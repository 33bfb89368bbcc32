/* models/config_reader.c: values of a JSON object, checked.
 * SPDX-License-Identifier: MIT */
#include "config_reader.h"

#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

void dsi_lm_read_fail(dsi_lm_reader *r, ds_status status, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (r->status == DS_OK) r->status = dsi_fail(status, "%s: %s", r->name, text);
}

const json_t *dsi_lm_read_get(const dsi_lm_reader *r, const char *key)
{
    const json_t *value = json_object_get(r->json, key);
    return json_is_null(value) ? NULL : value;
}

int64_t dsi_lm_read_int(dsi_lm_reader *r, const char *key, int64_t low, int64_t high,
                        int64_t otherwise)
{
    const json_t *value = dsi_lm_read_get(r, key);
    if (!value && otherwise >= low && otherwise <= high) return otherwise;
    if (!value)
        dsi_lm_read_fail(r, DS_EFORMAT, "%s is missing", key);
    else if (!json_is_integer(value))
        dsi_lm_read_fail(r, DS_EFORMAT, "%s is no integer", key);
    else if (json_integer_value(value) < low || json_integer_value(value) > high)
        dsi_lm_read_fail(r, DS_EFORMAT, "%s is %lld: expected %lld to %lld", key,
                         (long long)json_integer_value(value), (long long)low, (long long)high);
    else
        return json_integer_value(value);
    return low;
}

double dsi_lm_read_number(dsi_lm_reader *r, const char *key, double low, double high,
                          double otherwise)
{
    const json_t *value = dsi_lm_read_get(r, key);
    double x = json_number_value(value);
    if (!value) return otherwise;
    if (json_is_number(value) && x >= low && x <= high) return x;
    if (json_is_number(value))
        dsi_lm_read_fail(r, DS_EFORMAT, "%s is %g: expected %g to %g", key, x, low, high);
    else
        dsi_lm_read_fail(r, DS_EFORMAT, "%s is no number", key);
    return low;
}

bool dsi_lm_read_bool(dsi_lm_reader *r, const char *key, bool otherwise)
{
    const json_t *value = dsi_lm_read_get(r, key);
    if (value && !json_is_boolean(value))
        dsi_lm_read_fail(r, DS_EFORMAT, "%s is neither true nor false", key);
    return value ? json_is_true(value) : otherwise;
}

const char *dsi_lm_read_text(dsi_lm_reader *r, const char *key, const char *otherwise)
{
    const json_t *value = dsi_lm_read_get(r, key);
    if (value && !json_is_string(value)) dsi_lm_read_fail(r, DS_EFORMAT, "%s is no text", key);
    return json_is_string(value) ? json_string_value(value) : otherwise;
}
