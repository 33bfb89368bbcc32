/* checkpoint/pickle_objects.c: makes plain values of objects of Python's
 * library that training programs save, and DS_VALUE_OBJECTs of unknown classes.
 *
 *     complex(1.0, 2.0), range(1, 9, 2), slice(...)       a tuple of that class
 *     PosixPath("/", "data", "x")                         a string: /data/x
 *     datetime(b"...", timezone(timedelta(...)))          a string as isoformat() gives it; of date and time too
 *     timedelta(days, seconds, microseconds)              a float: seconds
 *     Decimal("1.50")                                     that string
 *
 * If the caller wants them, objects of unknown classes become DS_VALUE_OBJECTs:
 * the name of the class, the arguments or items under the keys 0, 1, ..., and
 * the attributes under their names, all as the pickle has them. Nothing is run.
 * Source: Lib/_pydatetime.py and Lib/pathlib.py of CPython for what they pickle.
 * SPDX-License-Identifier: MIT */
#include "pickle.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

typedef dsi_pickle_global Global;

/* Fails because the arguments are not those of the class; returns NULL. */
static ds_value *refuse_object_args(dsi_unpickler *u, const Global *g)
{
    return dsi_unpickle_refuse(u, "%s has other arguments than Python writes", g->name);
}

/* ---- numbers --------------------------------------------------------------------------------------------------- */

/* range(start, stop, step), slice(...): a tuple of the arguments. */
ds_value *dsi_object_tuple(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    (void)g;
    if (!dsi_unpickle_reserve(u, (size_t)args->items.n * sizeof(ds_value *))) return NULL;
    ds_value *v = ds_value_tuple();
    for (int i = 0; i < args->items.n; i++)
        dsi_list_add(&v->items, dsi_value_ref(args->items.at[i]));
    return v;
}

/* complex(real, imaginary): a tuple of two floats. */
ds_value *dsi_object_complex(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    const ds_value *re = dsi_pickle_arg(args, 0), *im = dsi_pickle_arg(args, 1);
    bool good = args->items.n == 2 && re->kind == DS_VALUE_FLOAT && im->kind == DS_VALUE_FLOAT;
    return good ? dsi_object_tuple(u, g, args) : refuse_object_args(u, g);
}

/* Decimal("1.50"): the digits as a string of class Decimal, not a rounded
 * float. */
ds_value *dsi_object_decimal(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    const ds_value *digits = dsi_pickle_arg(args, 0);
    if (args->items.n != 1 || digits->kind != DS_VALUE_STRING) return refuse_object_args(u, g);
    return dsi_unpickle_reserve(u, digits->text.n) ? ds_value_string(digits->text.s) : NULL;
}

/* ---- paths ----------------------------------------------------------------------------------------------------- */

/* The arguments are the parts of a path; the first one is "/" or "C:\\" if the
 * path is absolute. */
ds_value *dsi_object_path(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    char separator = strstr(g->class_name, "Windows") ? '\\' : '/';
    dsi_text t = {0};
    for (int i = 0; i < args->items.n; i++) {
        const ds_value *part = args->items.at[i];
        bool good = part->kind == DS_VALUE_STRING && dsi_unpickle_reserve(u, part->text.n + 1);
        if (!good) {
            dsi_text_free(&t);
            return refuse_object_args(u, g);
        }
        if (t.n && t.s[t.n - 1] != separator) dsi_text_add(&t, "%c", separator);
        dsi_text_add(&t, "%s", part->text.s);
    }
    ds_value *v = ds_value_string(t.n ? t.s : ".");
    dsi_text_free(&t);
    return v;
}

/* ---- dates and times ------------------------------------------------------------------------------------------- */

/* Converts an int or a float; false if v is neither. */
static bool number_of_value(const ds_value *v, double *x)
{
    if (!v || (v->kind != DS_VALUE_INT && v->kind != DS_VALUE_FLOAT)) return false;
    *x = v->kind == DS_VALUE_INT ? (double)v->i : v->f;
    return true;
}

/* timedelta(days, seconds, microseconds): a float of seconds. */
ds_value *dsi_object_timedelta(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    double days, seconds, micro;
    if (args->items.n != 3 || !number_of_value(dsi_pickle_arg(args, 0), &days) ||
        !number_of_value(dsi_pickle_arg(args, 1), &seconds) ||
        !number_of_value(dsi_pickle_arg(args, 2), &micro))
        return refuse_object_args(u, g);
    return ds_value_float(days * 86400 + seconds + micro / 1e6);
}

/* timezone(timedelta), and a name that is not kept. */
ds_value *dsi_object_timezone(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    double seconds;
    const ds_value *offset = dsi_pickle_arg(args, 0);
    if (!number_of_value(offset, &seconds) || fabs(seconds) >= 86400)
        return refuse_object_args(u, g);
    return ds_value_float(seconds);
}

/* Appends an offset from UTC in seconds as isoformat() prints it: +02:00. */
static void text_add_zone(dsi_text *t, double offset)
{
    int64_t seconds = (int64_t)fabs(offset);
    dsi_text_add(t, "%c%02" PRId64 ":%02" PRId64, offset < 0 ? '-' : '+', seconds / 3600,
                 seconds / 60 % 60);
    if (seconds % 60) dsi_text_add(t, ":%02" PRId64, seconds % 60);
}

/* p has 6 bytes: hour, minute, second, and three of microseconds. The highest
 * bit of the hour is Python's `fold`, which isoformat() does not print. */
static void text_add_time(dsi_text *t, const unsigned char *p)
{
    int micro = p[3] << 16 | p[4] << 8 | p[5];
    dsi_text_add(t, "%02d:%02d:%02d", p[0] & 0x7f, p[1], p[2]);
    if (micro) dsi_text_add(t, ".%06d", micro);
}

/* The first argument is bytes: of a date 4, year (2), month, day; of a time 6;
 * of a datetime both, with `fold` at the month. The second may be a
 * timezone. */
ds_value *dsi_object_datetime(dsi_unpickler *u, const Global *g, const ds_value *args)
{
    const ds_value *bytes = dsi_pickle_arg(args, 0), *zone = dsi_pickle_arg(args, 1);
    size_t want = strstr(g->name, ".date") ? strstr(g->name, ".datetime") ? 10 : 4 : 6;
    bool zoned = zone && zone->kind == DS_VALUE_FLOAT && zone->class_name &&
                 !strcmp(zone->class_name, "timezone");
    if (!bytes || bytes->kind != DS_VALUE_BYTES || bytes->text.n != want || (zone && !zoned))
        return refuse_object_args(u, g);
    const unsigned char *p = (const unsigned char *)bytes->text.s;
    dsi_text t = {0};
    if (want != 6) dsi_text_add(&t, "%04d-%02d-%02d", p[0] << 8 | p[1], p[2] & 0x7f, p[3]);
    if (want == 10) dsi_text_add(&t, "T");
    if (want != 4) text_add_time(&t, p + want - 6);
    if (zoned) text_add_zone(&t, zone->f);
    ds_value *v = ds_value_string(t.s);
    dsi_text_free(&t);
    return v;
}

/* ---- what is not known ------------------------------------------------------------------------------------------- */

/* The next free number is the key. */
bool dsi_object_append(dsi_unpickler *u, ds_value *object, ds_value *item)
{
    return dsi_unpickle_reserve(u, DSI_PAIR_BYTES) &&
           dsi_value_put(object, ds_value_int(object->dict->items++), dsi_value_ref(item)) == DS_OK;
}

/* The arguments get the keys 0, 1, ... */
ds_value *dsi_object_unknown(dsi_unpickler *u, ds_value *name, const ds_value *args)
{
    if (!dsi_unpickle_reserve(u, (size_t)args->items.n * DSI_PAIR_BYTES)) return NULL;
    ds_value *v = dsi_value_object(dsi_value_ref(name));
    for (int i = 0; i < args->items.n; i++)
        (void)dsi_value_put(v, ds_value_int(v->dict->items++), dsi_value_ref(args->items.at[i]));
    return v;
}

/* The state is a dict of attributes, or a pair of such dicts (__dict__ and
 * __slots__); anything else becomes the attribute "state". */
bool dsi_object_build(dsi_unpickler *u, ds_value *object, const ds_value *state)
{
    if (state->kind == DS_VALUE_NONE) return true;
    if (state->kind == DS_VALUE_DICT) {
        if (!dsi_unpickle_reserve(u, (size_t)state->dict->n * DSI_PAIR_BYTES)) return false;
        for (int i = 0; i < state->dict->n; i++)
            (void)dsi_value_put(object, dsi_value_ref(state->dict->at[i].key),
                                dsi_value_ref(state->dict->at[i].value));
        return true;
    }
    bool pair = state->kind == DS_VALUE_TUPLE && state->items.n == 2;
    for (int i = 0; pair && i < 2; i++)
        pair = state->items.at[i]->kind == DS_VALUE_NONE ||
               state->items.at[i]->kind == DS_VALUE_DICT;
    if (pair)
        return dsi_object_build(u, object, state->items.at[0]) &&
               dsi_object_build(u, object, state->items.at[1]);
    return dsi_value_put(object, ds_value_string("state"),
                         dsi_value_ref((ds_value *)(uintptr_t)state)) == DS_OK;
}
