/* config/resolve.c: the user's values checked against the table of keys.
 *
 * The resulting tree has every key: the user's value if it has the key's type
 * and is in its range, else the default. Groups are resolved in the order of
 * the table. A mistake is noted and the others are still found.
 *
 * Invariants: resolve_group reads `given` (NULL: the group is absent) and
 * returns a new tree; fields of dsi_config are set even where a group is null,
 * to their defaults. `path` is as the user wrote it, for messages; `group` is
 * the same place under the keys' own names, which the table knows.
 * SPDX-License-Identifier: MIT */
#include "reader.h"

#include <math.h>
#include <string.h>
#include <strings.h>

static json_t *resolve_group(dsi_config_reader *r, const dsi_config_key *of, const char *path,
                             const json_t *given);

/* "group.name", or the name alone at the top level; to be freed with
 * dsi_free. */
static char *path_join(const char *group, const char *name)
{
    dsi_text t = dsi_text_of("%s%s%s", group, *group ? "." : "", name);
    return t.s;
}

static json_t *key_default(const dsi_config_key *key)
{
    return json_loads(key->def, JSON_DECODE_ANY, NULL);
}

/* ---- one value ----------------------------------------------------------------------------------- */

/* "expected an integer of at least 1, found the string \"x\"". */
static void add_expected(dsi_config_reader *r, const char *path, const char *expects,
                         const json_t *value)
{
    dsi_text found = {0};
    dsi_config_describe_value(&found, value);
    dsi_config_add_error(r, path, "expected %s, found %s", expects, found.s);
    dsi_text_free(&found);
}

static void add_mismatch(dsi_config_reader *r, const dsi_config_key *key, const char *path,
                         const json_t *value)
{
    char *expects = dsi_config_key_expects(key);
    add_expected(r, path, expects, value);
    dsi_free(expects);
}

/* Whether x is in the range of the key, whose lower end may be open. */
static bool value_in_range(const dsi_config_key *key, double x)
{
    return (key->open_min ? x > key->min : x >= key->min) && x <= key->max;
}

/* An integer, or a real number that is one (1e12), of 64 bits. Integers above
 * 2^53 lose their last digits in the comparison with the range, whose ends are
 * far from there. */
static json_t *value_as_integer(const dsi_config_key *key, json_t *value)
{
    const double limit = 9223372036854775808.0; /* 2^63 */
    if (json_is_real(value)) {
        double x = json_real_value(value);
        if (x != trunc(x) || x < -limit || x >= limit || !value_in_range(key, x)) return NULL;
        return json_integer((json_int_t)x);
    }
    if (!json_is_integer(value) || !value_in_range(key, (double)json_integer_value(value)))
        return NULL;
    return json_incref(value);
}

/* A real number, also from an integer; the range was checked. */
static json_t *value_as_number(const dsi_config_key *key, json_t *value)
{
    if (!json_is_number(value) || !value_in_range(key, json_number_value(value))) return NULL;
    return json_real(json_number_value(value));
}

/* null counts as false at the top level, as in DeepSpeed, with a warning. */
static bool is_null_bool(const dsi_config_key *key, const json_t *value)
{
    return key->type == DSI_KEY_BOOL && json_is_null(value) && !strchr(key->path, '.') &&
           strcmp(key->def, "null") != 0;
}

/* 0 and 1 are what many generators of JSON write. "true" in quotes is refused:
 * DeepSpeed takes it in some groups, and takes "false" for true in others. */
static json_t *value_as_bool(json_t *value)
{
    if (json_is_boolean(value)) return json_incref(value);
    if (!json_is_integer(value)) return NULL;
    json_int_t x = json_integer_value(value);
    return x == 0 || x == 1 ? json_boolean(x) : NULL;
}

/* The word of the key's list that the value is; NULL if it is none of them. */
static const dsi_config_word *key_word(const dsi_config_key *key, const json_t *value)
{
    const char *s = json_string_value(value);
    for (const dsi_config_word *w = key->words; s && w->word; w++)
        if (key->any_case ? !strcasecmp(s, w->word) : !strcmp(s, w->word)) return w;
    return NULL;
}

/* A list of strings only, a new reference; NULL: it is none. An empty list is
 * one. */
static json_t *value_as_list(json_t *value)
{
    size_t i;
    json_t *item;
    if (!json_is_array(value)) return NULL;
    json_array_foreach(value, i, item) if (!json_is_string(item)) return NULL;
    return json_incref(value);
}

/* The value as the row wants it, a new reference; NULL if it cannot be. null is
 * a value of the keys whose default it is, and of no others. */
static json_t *value_as_type(const dsi_config_key *key, json_t *value)
{
    const dsi_config_word *w;
    if (json_is_null(value) && !strcmp(key->def, "null")) return json_null();
    switch (key->type) {
    case DSI_KEY_BOOL:
        return value_as_bool(value);
    case DSI_KEY_INT:
        return value_as_integer(key, value);
    case DSI_KEY_NUMBER:
        return value_as_number(key, value);
    case DSI_KEY_TEXT:
        return json_is_string(value) ? json_incref(value) : NULL;
    case DSI_KEY_WORD:
        return (w = key_word(key, value)) ? json_string(w->word) : NULL;
    case DSI_KEY_LIST:
        return value_as_list(value);
    case DSI_KEY_OBJECT:
        return json_is_object(value) ? json_incref(value) : NULL;
    default:
        return json_incref(value);
    }
}

/* ["a", "b"] -> "a,b"; NULL: an empty list. */
static char *list_join(const json_t *list)
{
    dsi_text t = {0};
    for (size_t i = 0; i < json_array_size(list); i++)
        dsi_text_add(&t, "%s%s", i ? "," : "", json_string_value(json_array_get(list, i)));
    return t.s;
}

/* null becomes 0, NULL, or no dtype; DeepSpeed's None means the same. */
static void store_value(dsi_config *c, const dsi_config_key *key, const json_t *value)
{
    void *field = (char *)c + key->field;
    const dsi_config_word *w;
    switch (key->type) {
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
        w = key_word(key, value);
        *(int *)field = w ? w->value : DSI_CONFIG_NO_DTYPE;
        break;
    case DSI_KEY_TEXT:
        *(char **)field = json_is_string(value) ? dsi_strdup(json_string_value(value)) : NULL;
        break;
    case DSI_KEY_LIST:
        *(char **)field = list_join(value);
        break;
    case DSI_KEY_OBJECT:
        *(char **)field = json_is_object(value) ? json_dumps(value, JSON_COMPACT) : NULL;
        break;
    default:
        break;
    }
}

void dsi_config_add_auto_error(dsi_config_reader *r, const char *path, const char *def)
{
    const char *name = dsi_config_auto_name(path);
    if (r->auto_filled && name)
        dsi_config_add_error(r, path, "\"auto\" needs the %s of the program: set one of them",
                             name);
    else
        dsi_config_add_error(r, path,
                             "\"auto\" is for trainers around DeepSpeed to fill in, and no "
                             "trainer did: set a value, or leave the key out for %s",
                             def);
}

/* The value of a key that acts, and its field. A wrong value is an error,
 * and the default takes its place. */
static json_t *resolve_value(dsi_config_reader *r, const dsi_config_key *key, const char *path,
                             json_t *given)
{
    json_t *value = NULL;
    bool text_auto = key->type == DSI_KEY_TEXT && dsi_config_key_auto(key) == DSI_AUTO_ERROR;
    if (dsi_config_is_auto(given) && !text_auto) {
        if (dsi_config_key_auto(key) == DSI_AUTO_ERROR)
            dsi_config_add_auto_error(r, path, key->def);
    } else if (is_null_bool(key, given)) {
        dsi_config_add_warning(r, "\"%s\": null counts as false", path);
        value = json_false();
    } else if (given && !(value = value_as_type(key, given))) {
        add_mismatch(r, key, path, given);
    }
    if (!value) value = key_default(key);
    store_value(r->c, key, value);
    return value;
}

/* ---- keys that never act ---- */

/* Numbers compare by value, and 0 and 1 are false and true. */
static bool value_equals(const json_t *a, const json_t *b)
{
    if (json_is_boolean(b) && json_is_integer(a)) return json_integer_value(a) == json_is_true(b);
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

/* The list of paths of the warning that names keys without effect. */
static void add_ignored(dsi_config_reader *r, const char *path)
{
    dsi_text_add(&r->ignored, "%s%s", r->ignored.n ? ", " : "", path);
}

/* UNSUPPORTED_ABOVE of table.h. */
static bool is_no_more(const dsi_config_key *key, const json_t *given)
{
    return key->max > 0 && json_is_number(given) && json_number_value(given) >= 0 &&
           json_number_value(given) <= key->max;
}

/* A key at its default, or null, requests nothing and is not mentioned. */
static json_t *resolve_inactive(dsi_config_reader *r, const dsi_config_key *key, const char *path,
                                json_t *given)
{
    json_t *def = key_default(key);
    bool unsupported = key->mark == DSI_KEY_UNSUPPORTED;
    bool asks_nothing = !given || json_is_null(given) || value_equals(given, def) ||
                        is_no_more(key, given) ||
                        (dsi_config_is_auto(given) &&
                         (!unsupported || dsi_config_key_auto(key) == DSI_AUTO_DEFAULT));
    if (asks_nothing) return def;
    if (unsupported) {
        dsi_config_add_error(r, path, "is not supported (%s); leave it out", key->help);
        return def;
    }
    json_decref(def);
    if (*key->help) add_ignored(r, path); /* else its group is named */
    return json_incref(given);
}

/* The rest of an ignored group is kept as the user wrote it. The group is named
 * in the warning if it requests something and no outer group is ignored. */
static void copy_ignored(dsi_config_reader *r, const dsi_config_key *group, const char *path,
                         const json_t *given, json_t *into)
{
    const char *name;
    json_t *value;
    const json_t *enabled = json_object_get(into, "enabled");
    json_object_foreach((json_t *)given, name, value)
    {
        char *inner = path_join(group->path, name);
        if (!dsi_config_key_find(inner)) json_object_set(into, name, value);
        dsi_free(inner);
    }
    for (int i = 0; i < dsi_config_key_count(); i++) {
        const dsi_config_key *outer = dsi_config_key_at(i);
        if (outer->mark == DSI_KEY_IGNORED && dsi_config_key_in_group(group, outer->path)) return;
    }
    if (enabled ? json_is_true(enabled) : json_object_size(given) > 0) add_ignored(r, path);
}

/* ---- names of keys ---- */

/* Upper case and hyphens are the most common mistakes in a name. */
static char *name_lower(const char *name)
{
    char *lower = dsi_strdup(name);
    for (char *at = lower; *at; at++)
        if (*at >= 'A' && *at <= 'Z')
            *at = (char)(*at - 'A' + 'a');
        else if (*at == '-')
            *at = '_';
    return lower;
}

/* The path of a key with exactly that name: in a group below `group`, or else
 * in the only group that has such a key ("offload_optimizer" at the top is one
 * of zero_optimization). NULL if there is none. */
static const char *name_in_other_group(const char *group, const char *name)
{
    const char *found = NULL;
    int n = 0;
    for (int i = 0; i < dsi_config_key_count(); i++) {
        const dsi_config_key *key = dsi_config_key_at(i);
        if (key->mark == DSI_KEY_REMOVED || strcmp(dsi_config_key_name(key), name) != 0) continue;
        size_t length = strlen(group);
        if (length && !strncmp(key->path, group, length) && key->path[length] == '.')
            return key->path;
        found = key->path;
        n++;
    }
    return n == 1 ? found : NULL;
}

/* The name that the user may have meant; never a removed or deprecated one. */
static const char *name_suggest(const char *group, const char *name)
{
    enum { MOST = 512 };
    const char *words[MOST], *near;
    int n = 0;
    char *lower = name_lower(name);
    for (int i = 0; i < dsi_config_key_count(); i++) {
        const dsi_config_key *key = dsi_config_key_at(i);
        if (key->mark == DSI_KEY_REMOVED || key->mark == DSI_KEY_DEPRECATED) continue;
        if (dsi_config_key_in_group(key, group) && n < MOST) words[n++] = dsi_config_key_name(key);
    }
    near = name_in_other_group(group, lower);
    if (!near && *lower) near = dsi_nearest(lower, words, n);
    dsi_free(lower);
    return near;
}

/* Groups whose unknown keys DeepSpeed refuses: its pydantic models. In others
 * it ignores them. */
static bool group_is_strict(const char *group)
{
    static const char *const strict[] = {
        "zero_optimization", "tensorboard", "wandb",         "csv_monitor",    "comet",
        "comms_logger",      "timers",      "hybrid_engine", "tensor_parallel"};
    size_t n = strcspn(group, ".");
    for (size_t i = 0; i < sizeof strict / sizeof *strict; i++)
        if (strlen(strict[i]) == n && !strncmp(strict[i], group, n)) return true;
    return false;
}

/* "_comment", "//": notes, which people write because JSON has no comments. */
static bool is_note(const char *group, const char *name)
{
    return !group_is_strict(group) && (*name == '_' || !strncmp(name, "//", 2));
}

/* Whether all letters but three are the same at the begin and the end. */
static bool name_is_typo(const char *name, const char *of)
{
    char *lower = name_lower(name);
    size_t a = strlen(lower), b = strlen(of), longer = a > b ? a : b, n = 0, m = 0;
    while (n < a && lower[n] == of[n]) n++;
    while (n + m < a && n + m < b && lower[a - m - 1] == of[b - m - 1]) m++;
    dsi_free(lower);
    return n + m + 3 >= longer;
}

/* The user's key has no row. A likely misspelling is an error that suggests the
 * nearest name, as it would change training; what belongs to other tools is
 * left out with one warning, where DeepSpeed ignores it too. Those are often
 * objects ("comms_config", "log"): as a misspelling counts only what is very
 * near. */
static void add_unknown(dsi_config_reader *r, const char *group, const char *path, const char *name,
                        const json_t *value)
{
    const char *near = name_suggest(group, name);
    if (near && json_is_object(value) && !strchr(near, '.') && !name_is_typo(name, near))
        near = NULL;
    bool params = !strcmp(group, "optimizer") || !strcmp(group, "scheduler");
    if (strchr(name, '.') && dsi_config_key_find(path))
        dsi_config_add_error(r, path, "keys do not nest by dots; a group is an object");
    else if (r->unknown == DSI_UNKNOWN_WARN ||
             (r->unknown == DSI_UNKNOWN_NEAR && !near && !params && !group_is_strict(group)))
        dsi_text_add(&r->left_out, "%s\"%s\"", r->left_out.n ? ", " : "", path);
    else if (!near && params)
        dsi_config_add_error(r, path, "there is no such key; options go into \"%s.params\"", group);
    else if (near)
        dsi_config_add_error(r, path, "did you mean \"%s\"? There is no such key", near);
    else
        dsi_config_add_error(
            r, path,
            "there is no such key (docs/config.md has them all; DS_CONFIG_UNKNOWN=warn "
            "lets a file have others)");
}

/* Every key of the user must be in the table, and not be a removed one. */
static void check_names(dsi_config_reader *r, const char *group, const char *path,
                        const json_t *given)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)given, name, value)
    {
        char *written = path_join(path, name), *known = path_join(group, name);
        const dsi_config_key *key = strchr(name, '.') ? NULL : dsi_config_key_find(known);
        if ((!key || !*name) && !is_note(group, name))
            add_unknown(r, group, written, name, value);
        else if (key && key->mark == DSI_KEY_REMOVED)
            dsi_config_add_error(
                r, written,
                "was removed from DeepSpeed and is not supported here (%s); leave it out",
                key->help);
        dsi_free(known);
        dsi_free(written);
    }
}

/* The user's value of a key, under any of its names, and in *used its path by
 * that name, to be freed. */
static json_t *value_lookup(dsi_config_reader *r, const dsi_config_key *key, const char *path,
                            const json_t *given, char **used)
{
    json_t *value = json_object_get(given, dsi_config_key_name(key));
    *used = path_join(path, dsi_config_key_name(key));
    for (int i = 0; given && i < dsi_config_key_count(); i++) {
        const dsi_config_key *alias = dsi_config_key_at(i);
        if (!alias->target || strcmp(alias->target, key->path) != 0) continue;
        json_t *other = json_object_get(given, dsi_config_key_name(alias));
        if (!other) continue;
        char *written = path_join(path, dsi_config_key_name(alias));
        if (value) {
            dsi_config_add_error(r, written,
                                 "the same as \"%s\", which is there too; give one of them",
                                 dsi_config_key_name(key));
            dsi_free(written);
            continue;
        }
        if (alias->mark == DSI_KEY_DEPRECATED)
            dsi_config_add_warning(r, "\"%s\" is a deprecated name; use \"%s\"", written,
                                   key->path);
        value = other;
        dsi_free(*used);
        *used = written;
    }
    return value;
}

/* ---- groups ---- */

/* Two deprecated names of groups take a boolean. */
static bool is_cpu_offload(const char *path)
{
    return !strcmp(path, "zero_optimization.cpu_offload") ||
           !strcmp(path, "zero_optimization.cpu_offload_param");
}

/* A group in its deprecated form, true or false, as an object or null: a new
 * reference. NULL if it is not in such a form. */
static json_t *group_from_bool(dsi_config_reader *r, const char *path, json_t *value)
{
    if (is_cpu_offload(path)) {
        json_t *b = value_as_bool(value);
        json_t *group = json_is_true(b) ? json_pack("{s:s}", "device", "cpu") : json_null();
        json_decref(b);
        return b ? group : NULL;
    }
    if (!json_is_boolean(value) || strcmp(path, "zero_optimization") != 0) return NULL;
    dsi_config_add_warning(
        r, "\"zero_optimization\": true or false is deprecated; use {\"stage\": %d}",
        json_is_true(value));
    if (!json_is_true(value)) return json_object();
    json_t *group = json_pack("{s:i}", "stage", 1);
    json_t *size = json_object_get(r->c->trees->given, "allgather_size");
    if (size) json_object_set(group, "allgather_bucket_size", size);
    return group;
}

/* A group, also in a deprecated form, null or "auto". Its fields are set
 * even if it is null. */
static json_t *resolve_subgroup(dsi_config_reader *r, const dsi_config_key *key, const char *path,
                                json_t *given)
{
    json_t *converted = group_from_bool(r, path, given), *def = key_default(key), *resolved = NULL;
    if (converted) given = converted;
    bool empty = !given || (json_is_null(given) && key->nullable) ||
                 (dsi_config_is_auto(given) && json_is_null(def));
    if (given && !converted && is_cpu_offload(path) && !empty) {
        add_expected(r, path, "true or false", given);
        given = NULL;
    } else if (!empty && !json_is_object(given)) {
        add_mismatch(r, key, path, given);
    }
    resolved = resolve_group(r, key, path, json_is_object(given) ? given : NULL);
    if (empty && json_is_null(def)) {
        json_decref(resolved);
        resolved = json_null();
    }
    json_decref(converted);
    json_decref(def);
    return resolved;
}

/* Groups, keys that act, keys that never act: one function each. */
static json_t *resolve_key(dsi_config_reader *r, const dsi_config_key *key, const char *path,
                           json_t *given)
{
    if (key->type == DSI_KEY_GROUP) return resolve_subgroup(r, key, path, given);
    if (key->mark != DSI_KEY_SUPPORTED) return resolve_inactive(r, key, path, given);
    return resolve_value(r, key, path, given);
}

/* of: the group's key; NULL: the top level. */
static json_t *resolve_group(dsi_config_reader *r, const dsi_config_key *of, const char *path,
                             const json_t *given)
{
    const char *group = of ? of->path : "";
    bool ignored = of && of->mark == DSI_KEY_IGNORED;
    json_t *into = json_object();
    if (!ignored) check_names(r, group, path, given);
    for (int i = 0; i < dsi_config_key_count(); i++) {
        const dsi_config_key *key = dsi_config_key_at(i);
        if (!dsi_config_key_in_group(key, group) || key->target || key->mark == DSI_KEY_REMOVED)
            continue;
        char *written;
        json_t *value = value_lookup(r, key, path, given, &written);
        json_object_set_new(into, dsi_config_key_name(key), resolve_key(r, key, written, value));
        dsi_free(written);
    }
    if (ignored) copy_ignored(r, of, path, given, into);
    return into;
}

void dsi_config_resolve(dsi_config_reader *r)
{
    r->c->trees->resolved = resolve_group(r, NULL, "", r->c->trees->given);
}
