/* config/config.c: a configuration from its text to the struct: load, parse,
 * resolve, check.
 *
 * Invariants: reading continues after a mistake, so that one run names all of
 * them; only a text that cannot be parsed ends it at once. Rules between keys
 * are checked only if every value is right by itself. Warnings are kept, not
 * printed: ds_config_check returns them, and an engine prints them on rank 0.
 * SPDX-License-Identifier: MIT */
#include "reader.h"

#include "base/env.h"
#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_BYTES 700 /* of all errors together: ds_error() is one line of limited length */

/* ---- errors and warnings ------------------------------------------------------------------------- */

/* Text of the user, in a message of one line: control characters escaped. */
static void text_add_clean(dsi_text *t, const char *s, size_t most)
{
    size_t n = strlen(s), shown = n < most ? n : most;
    while (shown < n && (s[shown] & 0xC0) == 0x80) shown--; /* whole characters */
    for (size_t i = 0; i < shown; i++)
        if ((unsigned char)s[i] < 0x20)
            dsi_text_add(t, "\\x%02x", s[i]);
        else
            dsi_text_add_bytes(t, s + i, 1);
    if (shown < n) dsi_text_add(t, "...");
}

/* Messages are separated by "; "; beyond ERROR_BYTES they are only counted. */
void dsi_config_add_error(dsi_config_reader *r, const char *path, const char *format, ...)
{
    r->n_errors++;
    if (r->errors.n > ERROR_BYTES) {
        r->n_more++;
        return;
    }
    /* A derived value or a missing key has no line. */
    int line = path ? dsi_syntax_line(&r->c->trees->syntax, path) : 0;
    if (r->errors.n) dsi_text_add(&r->errors, "; ");
    if (line) dsi_text_add(&r->errors, "line %d: ", line);
    if (path) {
        dsi_text_add(&r->errors, "\"");
        text_add_clean(&r->errors, path, 200);
        dsi_text_add(&r->errors, "\": ");
    }
    va_list args;
    va_start(args, format);
    dsi_text_add_args(&r->errors, format, args);
    va_end(args);
}

/* Kept until an engine prints them or ds_config_check returns them. */
void dsi_config_add_warning(dsi_config_reader *r, const char *format, ...)
{
    va_list args;
    dsi_text t = dsi_text_of("config: %s: ", r->name);
    va_start(args, format);
    dsi_text_add_args(&t, format, args);
    va_end(args);
    dsi_list_add(&r->c->trees->warnings, t.s);
}

/* Containers are named only: their text may be long. */
void dsi_config_describe_value(dsi_text *t, const json_t *value)
{
    if (json_is_string(value)) {
        dsi_text_add(t, "the string \"");
        text_add_clean(t, json_string_value(value), 80);
        dsi_text_add(t, "\"");
    } else if (json_is_integer(value)) {
        dsi_text_add(t, "%lld", (long long)json_integer_value(value));
    } else if (json_is_real(value)) {
        dsi_text_add_double(t, json_real_value(value));
    } else {
        dsi_text_add(t, "%s",
                     json_is_object(value)  ? "an object"
                     : json_is_array(value) ? "a list"
                     : json_is_null(value)  ? "null"
                     : json_is_true(value)  ? "true"
                                            : "false");
    }
}

/* ---- trees --------------------------------------------------------------------------------------- */

/* A key with a dot in its name cannot be reached; check_names refuses those. */
json_t *dsi_config_tree_get(const json_t *tree, const char *path)
{
    const json_t *at = tree;
    while (at && *path) {
        size_t n = strcspn(path, ".");
        /* json_object_getn came with jansson 2.14 */
        char *name = dsi_text_of("%.*s", (int)n, path).s;
        at = json_object_get(at, name);
        dsi_free(name);
        path += n + (path[n] == '.');
    }
    return (json_t *)at;
}

/* The groups of the path must exist, which they do in a resolved tree. */
void dsi_config_tree_set(json_t *tree, const char *path, json_t *value)
{
    const char *dot = strrchr(path, '.');
    if (!dot) {
        json_object_set_new(tree, path, value);
        return;
    }
    char *group = dsi_text_of("%.*s", (int)(dot - path), path).s;
    json_object_set_new(dsi_config_tree_get(tree, group), dot + 1, value);
    dsi_free(group);
}

/* The word as a value; "auto" inside of a longer text is no such thing. */
bool dsi_config_is_auto(const json_t *value)
{
    return json_is_string(value) && !strcmp(json_string_value(value), "auto");
}

/* Like Hjson's reader: 5e8 and 2.0 are integers, up to 1e10. Larger ones stay
 * real numbers, which integer keys accept too; only the printed form
 * differs. */
static json_t *tree_with_integers(json_t *value)
{
    const double largest = 1e10;
    const char *key;
    json_t *inner;
    size_t i;
    void *next;
    if (json_is_real(value)) {
        double x = json_real_value(value);
        if (fabs(x) < largest && x == trunc(x)) return json_integer((json_int_t)x);
    } else if (json_is_object(value)) {
        json_object_foreach_safe(value, next, key, inner)
        {
            json_object_set_new(value, key, tree_with_integers(inner));
        }
    } else if (json_is_array(value)) {
        json_array_foreach(value, i, inner) json_array_set_new(value, i, tree_with_integers(inner));
    }
    return json_incref(value);
}

/* ---- read ---------------------------------------------------------------------------------------- */

json_t *dsi_config_parse(dsi_syntax *s, const char *text, size_t n, dsi_text *error)
{
    json_t *parsed = dsi_syntax_parse(s, text, n, error), *object = NULL;
    if (json_is_object(parsed)) {
        object = tree_with_integers(parsed);
    } else if (parsed) {
        dsi_text_add(error, "expected an object { ... } of keys, found ");
        dsi_config_describe_value(error, parsed);
    }
    json_decref(parsed);
    return object;
}

/* Sets trees->given; false with the message. */
static bool reader_parse(dsi_config_reader *r, const char *text, size_t n)
{
    dsi_text error = {0};
    r->c->trees->given = dsi_config_parse(&r->c->trees->syntax, text, n, &error);
    if (error.s) dsi_fail(DS_EFORMAT, "config: %s: %s", r->name, error.s);
    dsi_text_free(&error);
    return r->c->trees->given;
}

/* Resolves, derives, checks, and makes one message of all errors and one
 * warning each of unknown and ignored keys. */
static void reader_resolve(dsi_config_reader *r)
{
    static const char *const ways[] = {"error", "warn", NULL};
    r->unknown = DSI_UNKNOWN_NEAR;
    if (dsi_env_word("DS_CONFIG_UNKNOWN", ways, &r->unknown) != DS_OK)
        dsi_config_add_error(r, NULL, "%s", dsi_error_latest());
    dsi_config_resolve(r);
    /* Comparing keys needs values that are right by themselves. */
    if (!r->n_errors) dsi_config_resolve_batch(r);
    if (!r->n_errors) dsi_config_check_rules(r);
    if (r->left_out.n) dsi_config_add_warning(r, "unknown keys are left out: %s", r->left_out.s);
    if (r->ignored.n)
        dsi_config_add_warning(r, "known, but without effect here (docs/config.md says why): %s",
                               r->ignored.s);
    if (!r->n_errors) return;
    if (r->n_more) dsi_text_add(&r->errors, "; and %d more", r->n_more);
    dsi_refuse("config: %s: %s", r->name, r->errors.s);
}

/* As dsi_config_read_auto without values: an "auto" that the table has no
 * meaning for is then an error. */
dsi_config *dsi_config_read(const char *text, int world_size)
{
    return dsi_config_read_auto(text, NULL, world_size);
}

/* trees takes name and text before anything is parsed, so that dsi_config_free
 * frees whatever there is; the syntax points into the text. */
dsi_config *dsi_config_read_auto(const char *text, const ds_auto_values *values, int world_size)
{
    if (!text) return dsi_refuse("config: neither a file nor a text is given");
    if (world_size < 1) return dsi_refuse("config: for %d ranks; at least 1 is needed", world_size);
    size_t n = 0;
    char *name = NULL, *loaded = dsi_config_load_text(text, &n, &name);
    if (!loaded) return NULL;
    dsi_config *c = dsi_alloc(sizeof *c);
    c->trees = dsi_alloc(sizeof *c->trees);
    c->trees->name = name;
    c->trees->text = loaded;
    c->world_size = world_size;
    dsi_config_reader r = {.c = c, .name = name};
    bool ok = reader_parse(&r, loaded, n);
    if (ok && values) dsi_config_fill_auto(&r, values);
    if (ok) reader_resolve(&r);
    ok = ok && !r.n_errors;
    dsi_text_free(&r.errors);
    dsi_text_free(&r.ignored);
    dsi_text_free(&r.left_out);
    if (ok) return c;
    dsi_config_free(c);
    return NULL;
}

/* Messages of optimizers and schedules begin with the key. */
ds_status dsi_config_fail_at(const dsi_config *c, ds_status status)
{
    const char *message = dsi_error_latest();
    bool key = message &&
               (!strncmp(message, "optimizer.", 10) || !strncmp(message, "scheduler.", 10));
    if (!key) return status;
    size_t n = strcspn(message, ": ");
    dsi_text path = dsi_text_of("%.*s", (int)n, message);
    int line = dsi_syntax_line(&c->trees->syntax, path.s);
    if (line)
        dsi_fail(status, "config: %s: line %d: %s", c->trees->name, line, message);
    else
        dsi_fail(status, "config: %s: %s", c->trees->name, message);
    dsi_text_free(&path);
    return status;
}

/* Text fields are found by the table, so that a new key needs no line here. */
void dsi_config_free(dsi_config *c)
{
    if (!c) return;
    for (int i = 0; i < dsi_config_key_count(); i++) {
        const dsi_config_key *key = dsi_config_key_at(i);
        /* the types of fields that are allocated */
        bool owned = key->type == DSI_KEY_TEXT || key->type == DSI_KEY_OBJECT ||
                     key->type == DSI_KEY_LIST;
        if (owned && key->field != DSI_NO_FIELD) dsi_free(*(char **)((char *)c + key->field));
    }
    for (int i = 0; i < c->trees->warnings.n; i++) dsi_free(c->trees->warnings.at[i]);
    dsi_list_free(&c->trees->warnings);
    dsi_syntax_free(&c->trees->syntax);
    dsi_free(c->trees->text);
    dsi_text_free(&c->trees->filled);
    dsi_free(c->trees->name);
    json_decref(c->trees->given);
    json_decref(c->trees->resolved);
    dsi_free(c->trees);
    dsi_free(c);
}
