/* config/resolve.c: the user's values against the rows of the table.
 *
 * The tree that results has every key: the user's value if it has the row's type and lies in its range,
 * else the default. Groups are gone through row by row, so keys stand in the order of the table. What is
 * wrong is noted and the walk goes on: one run names all mistakes.
 * SPDX-License-Identifier: MIT */
#include "parts.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>
#include <strings.h>

/* pattern: the group's path in the table, where "*" is a name of the user's; path: the same as the user wrote
 * it, for messages. given: NULL if it is not there. */
static json_t *resolve_group(dsi_config_reader *r, const char *pattern, const char *path,
                             const json_t *given);

static char *join(const char *group, const char *name)
{
    dsi_text t = {0};
    dsi_text_add(&t, "%s%s%s", group, *group ? "." : "", name);
    return t.s;
}

static json_t *default_of(const dsi_config_row *row)
{
    return json_loads(row->def, JSON_DECODE_ANY, NULL);
}

/* ---- one value ----------------------------------------------------------------------------------- */

static json_t *mismatch(dsi_config_reader *r, const dsi_config_row *row, const char *path,
                        const json_t *value)
{
    dsi_text found = {0};
    char *expects = dsi_config_expects(row);
    dsi_config_describe(&found, value);
    dsi_config_wrong(r, path, "expected %s, found %s", expects, found.s);
    dsi_text_free(&found);
    dsi_free(expects);
    return NULL;
}

static bool in_range(const dsi_config_row *row, double x)
{
    return (row->open_min ? x > row->min : x >= row->min) && x <= row->max;
}

/* An integer, or a real number that is one (1e12), of 64 bits. Integers above 2^53 lose their last digits in
 * the comparison with the range, whose ends are far from there. */
static json_t *as_integer(const dsi_config_row *row, json_t *value)
{
    const double limit = 9223372036854775808.0; /* 2^63 */
    if (json_is_real(value)) {
        double x = json_real_value(value);
        if (x != trunc(x) || x < -limit || x >= limit || !in_range(row, x)) return NULL;
        return json_integer((json_int_t)x);
    }
    if (!json_is_integer(value) || !in_range(row, (double)json_integer_value(value))) return NULL;
    return json_incref(value);
}

static json_t *as_number(const dsi_config_row *row, json_t *value)
{
    if (!json_is_number(value) || !in_range(row, json_number_value(value))) return NULL;
    return json_real(json_number_value(value));
}

/* 0 and 1 are what many generators of JSON write. "true" in quotes is refused: DeepSpeed takes it in some
 * groups, and takes "false" for true in others. */
static json_t *as_bool(json_t *value)
{
    if (json_is_boolean(value)) return json_incref(value);
    if (!json_is_integer(value)) return NULL;
    json_int_t x = json_integer_value(value);
    return x == 0 || x == 1 ? json_boolean(x) : NULL;
}

static const dsi_config_word *word_of(const dsi_config_row *row, const json_t *value)
{
    const char *s = json_string_value(value);
    for (const dsi_config_word *w = row->words; s && w->word; w++)
        if (row->any_case ? !strcasecmp(s, w->word) : !strcmp(s, w->word)) return w;
    return NULL;
}

static json_t *as_list(json_t *value)
{
    size_t i;
    json_t *item;
    if (!json_is_array(value)) return NULL;
    json_array_foreach(value, i, item) if (!json_is_string(item)) return NULL;
    return json_incref(value);
}

/* The value as the row wants it, a new reference; NULL if it cannot be. null is a value of the keys whose
 * default it is, and of no others. */
static json_t *as_type(const dsi_config_row *row, json_t *value)
{
    const dsi_config_word *w;
    if (json_is_null(value) && !strcmp(row->def, "null")) return json_null();
    switch (row->type) {
    case DSI_KEY_BOOL:
        return as_bool(value);
    case DSI_KEY_INT:
        return as_integer(row, value);
    case DSI_KEY_NUMBER:
        return as_number(row, value);
    case DSI_KEY_TEXT:
        return json_is_string(value) ? json_incref(value) : NULL;
    case DSI_KEY_WORD:
        return (w = word_of(row, value)) ? json_string(w->word) : NULL;
    case DSI_KEY_LIST:
        return as_list(value);
    case DSI_KEY_OBJECT:
        return json_is_object(value) ? json_incref(value) : NULL;
    default:
        return json_incref(value);
    }
}

/* Into the struct. What is null there is 0, NULL, or no dtype; DeepSpeed's None means the same. */
/* ["a", "b"] -> "a,b"; NULL: an empty list. */
static char *joined(const json_t *list)
{
    dsi_text t = {0};
    for (size_t i = 0; i < json_array_size(list); i++)
        dsi_text_add(&t, "%s%s", i ? "," : "", json_string_value(json_array_get(list, i)));
    return t.s;
}

static void store(dsi_config *c, const dsi_config_row *row, const json_t *value)
{
    void *field = (char *)c + row->field;
    const dsi_config_word *w;
    switch (row->type) {
    case DSI_KEY_BOOL:
        *(bool *)field = json_is_true(value);
        break;
    case DSI_KEY_INT:
        *(int64_t *)field = json_integer_value(value);
        break;
    case DSI_KEY_NUMBER:
        *(double *)field = json_number_value(value);
        break;
    case DSI_KEY_WORD:
        w = word_of(row, value);
        *(int *)field = w ? w->value : DSI_CONFIG_NO_DTYPE;
        break;
    case DSI_KEY_TEXT:
        *(char **)field = json_is_string(value) ? dsi_strdup(json_string_value(value)) : NULL;
        break;
    case DSI_KEY_LIST:
        *(char **)field = joined(value);
        break;
    case DSI_KEY_OBJECT:
        *(char **)field = json_is_object(value) ? json_dumps(value, JSON_COMPACT) : NULL;
        break;
    default:
        break;
    }
}

/* "auto" of the user: the default, or an error by name. */
static json_t *automatic(dsi_config_reader *r, const dsi_config_row *row, const char *path)
{
    if (dsi_config_auto_of(row) == DSI_AUTO_NAMED)
        dsi_config_wrong(r, path,
                         "\"auto\" is filled in by trainers around DeepSpeed; nobody does so here: "
                         "set a value, or leave the key out for %s",
                         row->def);
    return NULL;
}

/* A key at its default asks for nothing, whatever becomes of it here: files that spell out all keys are
 * common, and must not drown what matters. */
static void mark(dsi_config_reader *r, const dsi_config_row *row, const char *path,
                 const json_t *value, const json_t *def)
{
    if (json_is_number(value) && json_number_value(value) == json_number_value(def)) return;
    if (json_equal(value, def)) return;
    if (row->mark == DSI_KEY_IGNORED)
        dsi_text_add(&r->ignored, "%s%s", r->ignored.n ? ", " : "", path);
    if (row->mark == DSI_KEY_REFUSED)
        dsi_config_wrong(r, path, "is not supported (%s); leave it out", row->help);
}

static json_t *resolve_value(dsi_config_reader *r, const dsi_config_row *row, const char *path,
                             json_t *given)
{
    json_t *def = default_of(row), *value = NULL;
    const char *s = json_string_value(given);
    bool takes_any = row->type == DSI_KEY_ANY || row->type == DSI_KEY_TEXT;
    if (given && json_equal(given, def)) /* "auto", where it is the default */
        value = json_incref(def);
    else if (given && s && !strcmp(s, "auto") &&
             !(takes_any && dsi_config_auto_of(row) == DSI_AUTO_NAMED))
        value = automatic(r, row, path);
    else if (given && !(value = as_type(row, given)))
        mismatch(r, row, path, given);
    if (value)
        mark(r, row, path, value, def);
    else
        value = json_incref(def);
    if (row->field != DSI_NO_FIELD) store(r->c, row, value);
    json_decref(def);
    return value;
}

/* ---- keys ---------------------------------------------------------------------------------------- */

/* Case and hyphens are the commonest slips. */
static char *in_lower_case(const char *name)
{
    char *lower = dsi_strdup(name);
    for (char *at = lower; *at; at++)
        if (*at >= 'A' && *at <= 'Z')
            *at = (char)(*at - 'A' + 'a');
        else if (*at == '-')
            *at = '_';
    return lower;
}

/* The path of a key with exactly that name in a group below pattern, or else in the one group that has such
 * a key: "offload_optimizer" at the top is meant for zero_optimization. NULL if there is none. */
static const char *elsewhere(const char *pattern, const char *name)
{
    const char *found = NULL;
    int n = 0;
    for (int i = 0; i < dsi_config_rows(); i++) {
        const dsi_config_row *row = dsi_config_row_at(i);
        if (row->mark == DSI_KEY_GONE || strcmp(dsi_config_last(row), name) != 0) continue;
        size_t length = strlen(pattern);
        if (length && !strncmp(row->path, pattern, length) && row->path[length] == '.')
            return row->path;
        found = row->path;
        n++;
    }
    return n == 1 ? found : NULL;
}

/* What the user may have meant; nobody is led to a name that is gone or old. */
static const char *nearest(const char *pattern, const char *name)
{
    enum { MOST = 512 };
    const char *words[MOST], *near;
    int n = 0;
    char *lower = in_lower_case(name);
    for (int i = 0; i < dsi_config_rows(); i++) {
        const dsi_config_row *row = dsi_config_row_at(i);
        if (row->mark == DSI_KEY_GONE || row->mark == DSI_KEY_OLD) continue;
        if (dsi_config_in_group(row, pattern) && n < MOST) words[n++] = dsi_config_last(row);
    }
    near = elsewhere(pattern, lower);
    if (!near && *lower) near = dsi_nearest(lower, words, n);
    dsi_free(lower);
    return near;
}

static void unknown(dsi_config_reader *r, const char *pattern, const char *path, const char *name)
{
    const char *near = nearest(pattern, name);
    if (strchr(name, '.') && dsi_config_find(path))
        dsi_config_wrong(r, path, "keys do not nest by dots; a group is an object");
    else if (r->soft)
        dsi_text_add(&r->unknown, "%s\"%s\"", r->unknown.n ? ", " : "", path);
    else if (!near && (!strcmp(pattern, "optimizer") || !strcmp(pattern, "scheduler")))
        dsi_config_wrong(r, path, "there is no such key; options go into \"%s.params\"", pattern);
    else if (near)
        dsi_config_wrong(r, path, "did you mean \"%s\"? There is no such key", near);
    else
        dsi_config_wrong(
            r, path,
            "there is no such key (docs/config.md has them all; DS_CONFIG_UNKNOWN=warn "
            "lets a file have others)");
}

/* "_comment", "//": notes, as people write them where JSON has no comments. DeepSpeed passes over them at the top
 * only. */
static bool is_note(const char *group, const char *name)
{
    return !*group && (*name == '_' || !strncmp(name, "//", 2));
}

/* Every key that the user has must have a row, which is not one of those that are gone. */
static void check_keys(dsi_config_reader *r, const char *pattern, const char *group,
                       const json_t *given)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)given, name, value)
    {
        char *path = join(group, name);
        char *known = join(pattern, name); /* the group may have been given by another name */
        const dsi_config_row *row = strchr(name, '.') ? NULL : dsi_config_find(known);
        if ((!row || !*name) && !is_note(pattern, name))
            unknown(r, pattern, path, name);
        else if (row && row->mark == DSI_KEY_GONE)
            dsi_config_wrong(r, path, "gone from DeepSpeed, and not here either: %s; leave it out",
                             row->help);
        dsi_free(known);
        dsi_free(path);
    }
}

/* The user's value of the row's key under whichever of its names, and the path by that name. */
static json_t *lookup(dsi_config_reader *r, const dsi_config_row *row, const char *group,
                      const json_t *given, char **used)
{
    json_t *value = json_object_get(given, dsi_config_last(row));
    *used = join(group, dsi_config_last(row));
    for (int i = 0; given && i < dsi_config_rows(); i++) {
        const dsi_config_row *other = dsi_config_row_at(i);
        if (!other->target || strcmp(other->target, row->path)) continue;
        json_t *its = json_object_get(given, dsi_config_last(other));
        if (!its) continue;
        char *path = join(group, dsi_config_last(other));
        if (value)
            dsi_config_wrong(r, path, "the same as \"%s\", which is there too; give one of them",
                             dsi_config_last(row));
        else if (other->mark == DSI_KEY_OLD)
            dsi_config_warn(r, "\"%s\" is an old name; use \"%s\"", path, row->path);
        if (!value) {
            value = its;
            dsi_free(*used);
            *used = dsi_strdup(path);
        }
        dsi_free(path);
    }
    return value;
}

/* These names stand for a group, and have a truth value. */
static bool is_cpu_offload(const char *path)
{
    return !strcmp(path, "zero_optimization.cpu_offload") ||
           !strcmp(path, "zero_optimization.cpu_offload_param");
}

/* The old forms of a group, true or false. A new reference, or NULL if it is none. path tells by which name
 * the group was given. */
static json_t *old_form(dsi_config_reader *r, const char *path, const json_t *value)
{
    if (!json_is_boolean(value)) return NULL;
    if (is_cpu_offload(path))
        return json_is_true(value) ? json_pack("{s:s}", "device", "cpu") : json_null();
    if (strcmp(path, "zero_optimization")) return NULL;
    dsi_config_warn(r, "\"zero_optimization\": true or false is an old form; use {\"stage\": 1}");
    if (!json_is_true(value)) return json_object();
    json_t *group = json_pack("{s:i}", "stage", 1);
    json_t *size = json_object_get(r->c->trees->given, "allgather_size");
    if (size) json_object_set(group, "allgather_bucket_size", size);
    return group;
}

static json_t *resolve_subgroup(dsi_config_reader *r, const dsi_config_row *row, const char *path,
                                json_t *given)
{
    json_t *old = old_form(r, path, given), *def = default_of(row), *resolved = NULL;
    if (old) given = old;
    const char *s = json_string_value(given);
    bool empty = !given || (json_is_null(given) && row->nullable) ||
                 (s && !strcmp(s, "auto") && !strcmp(row->def, "null"));
    if (given && !old && is_cpu_offload(path) && !empty) {
        dsi_config_wrong(r, path, "expected true or false");
        given = NULL;
    } else if (!empty && !json_is_object(given)) {
        mismatch(r, row, path, given);
    }
    /* Fields get their defaults even if the group itself is null. */
    resolved = resolve_group(r, row->path, path, json_is_object(given) ? given : NULL);
    if (empty && json_is_null(def)) {
        json_decref(resolved);
        resolved = json_null();
    }
    json_decref(old);
    json_decref(def);
    return resolved;
}

/* A group whose keys are the user's names: each of them is a group of the same form. */
static void resolve_named(dsi_config_reader *r, const dsi_config_row *row, const char *group,
                          const json_t *given, json_t *into)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)given, name, value)
    {
        char *path = join(group, name);
        json_object_set_new(into, name, resolve_subgroup(r, row, path, value));
        dsi_free(path);
    }
}

static json_t *resolve_group(dsi_config_reader *r, const char *pattern, const char *path,
                             const json_t *given)
{
    json_t *into = json_object();
    check_keys(r, pattern, path, given);
    for (int i = 0; i < dsi_config_rows(); i++) {
        const dsi_config_row *row = dsi_config_row_at(i);
        if (!dsi_config_in_group(row, pattern) || row->target || row->mark == DSI_KEY_GONE)
            continue;
        const char *name = dsi_config_last(row);
        if (!strcmp(name, "*")) {
            resolve_named(r, row, path, given, into);
            continue;
        }
        char *full;
        json_t *value = lookup(r, row, path, given, &full);
        bool is_group = row->type == DSI_KEY_GROUP;
        json_object_set_new(into, name,
                            (is_group ? resolve_subgroup : resolve_value)(r, row, full, value));
        dsi_free(full);
    }
    return into;
}

void dsi_config_resolve(dsi_config_reader *r)
{
    r->c->trees->resolved = resolve_group(r, "", "", r->c->trees->given);
}
