/* Configurations as DeepSpeed resolves them, for 1, 2 and 4 ranks.
 *
 * The same resolution, or a refusal where DeepSpeed refuses. Two things differ
 * on purpose, and docs/config.md lists them: we refuse more (unknown keys at
 * the top, values of another JSON type, "auto" that is not filled in), and we
 * fill in "auto" of a batch key from the other batch keys.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference.h"

#include "base/mem.h"
#include "base/text.h"
#include "config/reader.h"

#include <strings.h>
#include <unistd.h>

/* ---- DeepSpeed's names for what we have ------------------------------------------------------------- */

static json_t *dtype_name(const json_t *value)
{
    static const char *const names[][2] = {
        {"fp16", "torch.float16"}, {"bf16", "torch.bfloat16"}, {"fp32", "torch.float32"}};
    const char *s = json_string_value(value);
    for (int i = 0; s && i < 3; i++)
        if (!strcmp(s, names[i][0])) return json_string(names[i][1]);
    return json_string("None");
}

static json_t *optimizer_name(const json_t *value)
{
    static const char *const own[] = {"adagrad", "adam",  "adamw", "lamb", "muadam",
                                      "muadamw", "musgd", "lion",  "muon"};
    const char *s = json_string_value(value);
    for (size_t i = 0; s && i < sizeof own / sizeof *own; i++)
        if (!strcasecmp(s, own[i])) return json_string(own[i]);
    return s ? json_string(s) : json_null();
}

/* Our value for a key of "resolved"; NULL if we do not have it. A new
 * reference. */
static json_t *ours(const json_t *tree, const char *key)
{
    static const char *const paths[][2] = {{"optimizer_params", "optimizer.params"},
                                           {"scheduler_name", "scheduler.type"},
                                           {"scheduler_params", "scheduler.params"},
                                           {"zero_stage", "zero_optimization.stage"},
                                           {"grad_accum_dtype", "data_types.grad_accum_dtype"}};
    json_t *stage = dsi_config_tree_get(tree, "zero_optimization.stage");
    if (!strcmp(key, "communication_data_type")) return dtype_name(dsi_config_tree_get(tree, key));
    if (!strcmp(key, "optimizer_name"))
        return optimizer_name(dsi_config_tree_get(tree, "optimizer.type"));
    if (!strcmp(key, "zero_enabled")) return json_boolean(json_integer_value(stage) > 0);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (!strcmp(key, paths[i][0])) key = paths[i][1];
    return json_incref(dsi_config_tree_get(tree, key));
}

/* ---- comparing ------------------------------------------------------------------------------------- */

static bool same(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    if (json_is_object(a) && json_is_object(b)) {
        json_object_foreach((json_t *)a, key,
                            value) if (!same(value, json_object_get(b, key))) return false;
        return json_object_size(a) == json_object_size(b);
    }
    if (json_is_array(a) && json_is_array(b)) {
        size_t i;
        json_array_foreach(a, i, value) if (!same(value, json_array_get(b, i))) return false;
        return json_array_size(a) == json_array_size(b);
    }
    return json_equal(a, b);
}

static void differ(Reference *r, const char *key, const json_t *got, const json_t *want)
{
    char *g = got ? json_dumps(got, JSON_ENCODE_ANY) : NULL, *w = json_dumps(want, JSON_ENCODE_ANY);
    reference_fail(r, "%s is %s, want %s", key, g ? g : "missing", w);
    free(g);
    free(w);
}

/* Old names, which DeepSpeed keeps as fields and we map. */
static bool is_old(const char *key)
{
    return !strcmp(key, "cpu_offload") || !strcmp(key, "cpu_offload_param") ||
           !strcmp(key, "stage3_gather_fp16_weights_on_model_save");
}

static void compare_group(Reference *r, const char *group, const json_t *got, const json_t *want)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)want, key, value)
    {
        char path[256];
        snprintf(path, sizeof path, "%s.%s", group, key);
        if (!is_old(key) && !same(json_object_get(got, key), value))
            differ(r, path, json_object_get(got, key), value);
    }
}

static bool is_typed_group(const char *key)
{
    static const char *const groups[] = {"zero_optimization", "fp16", "bf16", "tensorboard",
                                         "csv_monitor"};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (!strcmp(key, groups[i])) return true;
    return false;
}

/* want: DeepSpeed's defaults under what the case has otherwise. */
static void compare_resolved(Reference *r, const dsi_config *c, const json_t *defaults,
                             const json_t *changes)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)defaults, key, value)
    {
        json_t *change = json_object_get(changes, key);
        json_t *want = is_typed_group(key) ? json_copy(value)
                                           : json_incref(change ? change : value);
        json_t *got = ours(c->trees->resolved, key);
        if (is_typed_group(key)) {
            if (change) json_object_update(want, change);
            compare_group(r, key, got, want);
        } else if (!got || !same(got, want)) {
            differ(r, key, got, want);
        }
        json_decref(got);
        json_decref(want);
    }
}

static void compare_batch(Reference *r, const dsi_config *c, const char *world, const json_t *want)
{
    const struct {
        const char *key;
        int64_t got;
    } keys[] = {{"train_batch_size", c->train_batch_size},
                {"train_micro_batch_size_per_gpu", c->train_micro_batch_size_per_gpu},
                {"gradient_accumulation_steps", c->gradient_accumulation_steps}};
    for (int i = 0; i < 3; i++) {
        int64_t value = reference_int(want, keys[i].key, -1);
        if (keys[i].got != value)
            reference_fail(r, "%s ranks: %s is %lld, want %lld", world, keys[i].key,
                           (long long)keys[i].got, (long long)value);
    }
}

/* ---- where we differ on purpose: docs/config.md ------------------------------------------------------ */

static bool may_refuse(const char *message)
{
    static const char *const reasons[] = {
        "here is no such key",       /* also at the top, where DeepSpeed is silent */
        "found the string",          /* for a number or a truth value */
        "found true",                /* for a number */
        "found false",               /* for a number */
        "found null",                /* for what has no null; DeepSpeed fails later */
        "\"auto\"",                  /* that is not filled in; DeepSpeed fails later */
        "is not supported",          /* training would not be what was asked for */
        "use \"gradient_clipping\"", /* DeepSpeed fails in initialize */
        "\"gradient_clipping\": expected a number of at least 0", /* -1 is 0 there */
    };
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (strstr(message, reasons[i])) return true;
    return false;
}

static bool has_auto_batch(const char *text)
{
    json_t *given = json_loads(text, 0, NULL);
    bool found = false;
    static const char *const keys[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                       "gradient_accumulation_steps"};
    for (int i = 0; i < 3; i++) {
        const char *s = json_string_value(json_object_get(given, keys[i]));
        found = found || (s && !strcmp(s, "auto"));
    }
    json_decref(given);
    return found;
}

/* ---- cases ------------------------------------------------------------------------------------------ */

static json_t *defaults;

static dsi_config *read_as_file(const char *text, int world)
{
    char path[] = "/tmp/ds_config_XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) return NULL;
    close(fd);
    ds_error_clear();
    dsi_config *c = dsi_config_read(path, world);
    unlink(path);
    return c;
}

static void run(Reference *r)
{
    const char *text = reference_text(r->json, "config_text", NULL), *world;
    json_t *want, *changes = json_object_get(r->json, "differs_from_defaults");
    if (!text) {
        reference_fail(r, "no config_text");
        return;
    }
    if (json_object_get(r->json, "resolved")) {
        dsi_config *c = read_as_file(text, 1);
        if (c)
            compare_resolved(r, c, json_object_get(r->json, "resolved"), NULL);
        else
            reference_fail(r, "%s", ds_error());
        dsi_config_free(c);
        return;
    }
    bool compared = false;
    json_object_foreach(json_object_get(r->json, "worlds"), world, want)
    {
        bool refused = json_object_get(want, "error");
        dsi_config *c = read_as_file(text, atoi(world));
        if (c && refused && !has_auto_batch(text))
            reference_fail(r, "%s ranks: resolved; DeepSpeed: %s", world,
                           reference_text(want, "message", ""));
        if (!c && !refused && !may_refuse(ds_error()))
            reference_fail(r, "%s ranks: %s", world, ds_error());
        if (c && !refused) {
            compare_batch(r, c, world, want);
            if (!compared && changes) compare_resolved(r, c, defaults, changes);
            compared = true;
        }
        dsi_config_free(c);
    }
}

static void keep_defaults(Reference *r)
{
    json_t *resolved = json_object_get(r->json, "resolved");
    if (resolved) defaults = json_incref(resolved);
}

static void config(void **state)
{
    (void)state;
    CHECK_INT(reference_each("config", keep_defaults), 0);
    CHECK(defaults != NULL);
    CHECK_INT(reference_each("config", run), 0);
    json_decref(defaults);
}

TEST_MAIN(cmocka_unit_test(config))
