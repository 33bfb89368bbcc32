/* models/lora_config.c: adapter_config.json: read, checked, written.
 *
 * A key is used, or has no effect on a trained adapter, or must have a value
 * under which it has no effect.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "lora.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const bias_names[] = {
    [DSI_BIAS_NONE] = "none", [DSI_BIAS_ALL] = "all", [DSI_BIAS_LORA_ONLY] = "lora_only"};

char *dsi_lora_path(const char *folder, const char *file)
{
    dsi_text t = {0};
    dsi_text_add(&t, "%s/%s", folder, file);
    return t.s;
}

bool dsi_lora_name_fits(const char *name, const char *path)
{
    size_t n = strlen(name), all = strlen(path);
    if (n > all || strcmp(path + all - n, name) != 0) return false;
    return n == all || path[all - n - 1] == '.';
}

/* The number that rank_pattern or alpha_pattern has for the layer, else
 * `otherwise`. */
static double pattern_number(const dsi_lora *l, const char *pattern, const char *path,
                             double otherwise)
{
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(l->config, pattern), key, value)
    {
        if (dsi_lora_name_fits(key, path)) return json_number_value(value);
    }
    return otherwise;
}

int64_t dsi_lora_rank(const dsi_lora *l, const char *path)
{
    return (int64_t)pattern_number(l, "rank_pattern", path, (double)l->r);
}

double dsi_lora_scale(const dsi_lora *l, const char *path)
{
    double r = (double)dsi_lora_rank(l, path);
    return pattern_number(l, "alpha_pattern", path, l->alpha) / (l->rslora ? sqrt(r) : r);
}

ds_status dsi_lora_bias_of(const char *name, dsi_lora_bias *bias)
{
    for (int i = DSI_BIAS_NONE; i <= DSI_BIAS_LORA_ONLY; i++)
        if (!name || !strcmp(name, bias_names[i])) {
            *bias = (dsi_lora_bias)i;
            return DS_OK;
        }
    return dsi_fail(DS_EINVAL, "lora: bias is \"%.40s\": expected none, all or lora_only", name);
}

ds_status dsi_lora_name_add(dsi_lora_names *names, const char *what, const char *name)
{
    if (!name || !*name || strlen(name) >= sizeof names->name[0] || names->n == DSI_LORA_MAX_NAMES)
        return dsi_fail(DS_EINVAL, "lora: %s %d: expected at most %d names of layers", what,
                        names->n, DSI_LORA_MAX_NAMES);
    strcpy(names->name[names->n++], name);
    return DS_OK;
}

/* ---- read ---- */

/* A value under which a key has no effect: absent, null, false, empty, "none". */
static bool is_off(const json_t *v)
{
    const char *text = json_string_value(v);
    if (json_is_object(v)) return json_object_size(v) == 0;
    if (json_is_array(v)) return json_array_size(v) == 0;
    return !v || json_is_null(v) || json_is_false(v) || (text && !strcmp(text, "none"));
}

/* Keys of rank_pattern and alpha_pattern are names of layers, not patterns, and
 * their values positive numbers. */
static ds_status patterns_check(const json_t *j, const char *path)
{
    static const char *const keys[] = {"rank_pattern", "alpha_pattern"};
    for (int i = 0; i < 2; i++) {
        const char *key;
        json_t *value;
        json_object_foreach(json_object_get(j, keys[i]), key, value)
        {
            if (strpbrk(key, "\\^$*+?()[]{}|"))
                return dsi_fail(DS_EINVAL,
                                "lora: %s: %s: \"%.60s\" is no name of layers: patterns "
                                "are not implemented",
                                path, keys[i], key);
            double x = json_number_value(value);
            if (!(x > 0) || x > 1 << 20 || (!i && x != floor(x)))
                return dsi_fail(DS_EFORMAT, "lora: %s: %s: %.60s is %g: expected a positive number",
                                path, keys[i], key, x);
        }
    }
    return DS_OK;
}

/* Keys that would change the result are refused by name. */
static ds_status config_check(const json_t *j, const char *path)
{
    static const char *const off[] = {"lora_bias",
                                      "layer_replication",
                                      "use_qalora",
                                      "target_parameters",
                                      "trainable_token_indices",
                                      "use_bdlora",
                                      "alora_invocation_tokens"};
    static const char *const plain[] = {"gaussian", "eva", "orthogonal"};
    const char *type = json_string_value(json_object_get(j, "peft_type"));
    if (!type || strcmp(type, "LORA") != 0)
        return dsi_fail(DS_EINVAL, "lora: %s: peft_type \"%.40s\": expected LORA", path,
                        type ? type : "");
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (!is_off(json_object_get(j, off[i])))
            return dsi_fail(DS_EINVAL, "lora: %s: %s is not implemented", path, off[i]);
    const char *init = json_string_value(json_object_get(j, "init_lora_weights"));
    for (size_t i = 0; init && i < sizeof plain / sizeof *plain; i++)
        if (!strcmp(init, plain[i])) init = NULL;
    if (init) /* PEFT changes the model's weights when it loads such an adapter */
        return dsi_fail(DS_EINVAL, "lora: %s: init_lora_weights \"%.40s\" is not implemented", path,
                        init);
    const json_t *targets = json_object_get(j, "target_modules");
    if (!json_is_array(targets) && !json_is_string(targets))
        return dsi_fail(DS_EINVAL,
                        "lora: %s: target_modules: expected a list of names, or a pattern", path);
    const json_t *saved = json_object_get(j, "modules_to_save");
    if (!json_is_array(saved) && !is_off(saved))
        return dsi_fail(DS_EINVAL, "lora: %s: modules_to_save: expected a list of names", path);
    return patterns_check(j, path);
}

/* The names of a list; one that is too long for them is left to the weights. */
static ds_status names_read(const json_t *list, const char *what, dsi_lora_names *names)
{
    size_t i;
    json_t *name;
    ds_status status = DS_OK;
    json_array_foreach(list, i, name) if (status == DS_OK)
        status = dsi_lora_name_add(names, what, json_string_value(name));
    return status;
}

ds_status dsi_lora_config_read(const char *folder, dsi_lora *l)
{
    size_t n;
    json_error_t error;
    char *path = dsi_lora_path(folder, "adapter_config.json"),
         *text = dsi_file_read_regular(path, &n);
    json_t *j = text ? json_loadb(text, n, JSON_REJECT_DUPLICATES, &error) : NULL;
    ds_status status = j      ? config_check(j, path)
                       : text ? dsi_fail(DS_EFORMAT, "lora: %s: line %d: %s", path, error.line,
                                         error.text)
                              : ds_error_status();
    l->config = j;
    l->r = json_integer_value(json_object_get(j, "r"));
    l->alpha = json_number_value(json_object_get(j, "lora_alpha"));
    l->dropout = json_number_value(json_object_get(j, "lora_dropout"));
    l->rslora = json_is_true(json_object_get(j, "use_rslora"));
    l->dora = json_is_true(json_object_get(j, "use_dora"));
    l->tying = json_is_true(json_object_get(j, "ensure_weight_tying"));
    if (status == DS_OK && (l->r < 1 || l->r > 1 << 20 || !(l->dropout >= 0 && l->dropout < 1)))
        status = dsi_fail(DS_EFORMAT, "lora: %s: r is %lld, lora_dropout %g", path, (long long)l->r,
                          l->dropout);
    const json_t *targets = json_object_get(j, "target_modules");
    if (json_array_size(targets) > DSI_LORA_MAX_NAMES) targets = NULL; /* by the weights */
    if (status == DS_OK)
        status = dsi_lora_bias_of(json_string_value(json_object_get(j, "bias")), &l->bias);
    if (status == DS_OK) status = names_read(targets, "target", &l->targets);
    if (status == DS_OK)
        status = names_read(json_object_get(j, "modules_to_save"), "modules_to_save", &l->saved);
    l->by_weights = !l->targets.n || !is_off(json_object_get(j, "exclude_modules")) ||
                    !is_off(json_object_get(j, "layers_to_transform"));
    dsi_free(path), dsi_free(text);
    return status;
}

/* ---- write ---- */

static json_t *names_json(const dsi_lora_names *names)
{
    json_t *list = json_array();
    for (int i = 0; i < names->n; i++) json_array_append_new(list, json_string(names->name[i]));
    return list;
}

static json_t *config_json(const dsi_lora *l, const char *base, bool conv1d)
{
    if (l->config) return json_incref(l->config);
    return json_pack("{s:s, s:s, s:s, s:I, s:f, s:f, s:b, s:b, s:b, s:s, s:b, s:b, s:b, s:o, s:o}",
                     "peft_type", "LORA", "task_type", "CAUSAL_LM", "base_model_name_or_path",
                     base ? base : "", "r", (json_int_t)l->r, "lora_alpha", l->alpha,
                     "lora_dropout", l->dropout, "use_rslora", (int)l->rslora, "use_dora",
                     (int)l->dora, "fan_in_fan_out", (int)conv1d, "bias", bias_names[l->bias],
                     "inference_mode", 1, "init_lora_weights", 1, "ensure_weight_tying",
                     (int)l->tying, "target_modules", names_json(&l->targets), "modules_to_save",
                     l->saved.n ? names_json(&l->saved) : json_null());
}

ds_status dsi_lora_config_write(const char *folder, const dsi_lora *l, const char *base,
                                bool conv1d)
{
    json_t *j = config_json(l, base, conv1d);
    char *text = j ? json_dumps(j, JSON_INDENT(2)) : NULL;
    char *path = dsi_lora_path(folder, "adapter_config.json");
    dsi_file *f = text ? dsi_file_replace(path) : NULL;
    ds_status status = f ? DS_OK : ds_error() ? ds_error_status() : DS_ENOMEM;
    if (f) dsi_file_write(f, text, strlen(text)), status = dsi_file_commit(f);
    dsi_free(path), free(text);
    json_decref(j);
    return status;
}
