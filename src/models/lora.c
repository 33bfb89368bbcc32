/* models/lora.c: low-rank adapters; Hu et al., arXiv:2106.09685, in PEFT's
 * files.
 *
 * An adapter is two modules, lora_A and lora_B, below the layer that it changes;
 * so its parameters have PEFT's names but for the prefix "base_model.model.".
 * The layer's own forward adds scale B A x (layers.c).
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/option.h"
#include "base/text.h"
#include "lm.h"

#include <deepspeed/checkpoint.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX      "base_model.model."
#define MAX_TARGETS 32

/* What the model's adapters are, in lm->lora. */
typedef struct Lora {
    json_t *config; /* adapter_config.json, if they come from files; else NULL */
    /* Of files: which layers have adapters is known from the weights alone, as
     * target_modules is a pattern, or other keys leave layers out. */
    bool by_weights;
    int64_t r;             /* rank: A is [r,in], B is [out,r] */
    double alpha, dropout; /* scale: see lora_scale; dropout of x before A */
    bool rslora;           /* rank-stabilised: Kalajdzievski, arXiv:2312.03732 */
    int n_targets;
    char target[MAX_TARGETS][64];
} Lora;

void dsi_lora_free(void *lora)
{
    if (lora) json_decref(((Lora *)lora)->config);
    dsi_free(lora);
}

/* Whether a name of target_modules or of a pattern's keys means the layer: its
 * whole path, or the end of it after a dot, as in PEFT. */
static bool name_fits(const char *name, const char *path)
{
    size_t n = strlen(name), all = strlen(path);
    if (n > all || strcmp(path + all - n, name) != 0) return false;
    return n == all || path[all - n - 1] == '.';
}

/* The number that rank_pattern or alpha_pattern has for the layer, else
 * `otherwise`. */
static double pattern_number(const Lora *l, const char *pattern, const char *path, double otherwise)
{
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(l->config, pattern), key, value)
    {
        if (name_fits(key, path)) return json_number_value(value);
    }
    return otherwise;
}

/* alpha / r, or alpha / sqrt(r). */
static double lora_scale(const Lora *l, const char *path)
{
    double r = pattern_number(l, "rank_pattern", path, (double)l->r);
    return pattern_number(l, "alpha_pattern", path, l->alpha) / (l->rslora ? sqrt(r) : r);
}

/* ---- the layers ---- */

/* fn for each linear layer below m with its path; stops at a failure. */
static ds_status for_each_linear(ds_module *m, const char *path,
                                 ds_status (*fn)(void *arg, ds_module *m, const char *path),
                                 void *arg)
{
    ds_status status = dsi_lm_is_linear(m) ? fn(arg, m, path) : DS_OK;
    for (int i = 0; i < ds_module_children(m) && status == DS_OK; i++) {
        ds_module *child = ds_module_child(m, i);
        char below[400];
        snprintf(below, sizeof below, "%s%s%s", path, *path ? "." : "", ds_module_name(child));
        status = for_each_linear(child, below, fn, arg);
    }
    return status;
}

typedef struct Add {
    const Lora *lora;
    const ds_state *weights; /* of a file; NULL: new adapters */
    int found[MAX_TARGETS], used;
} Add;

/* The first values of an adapter's matrix, and the module that has it: from the
 * file, or as in PEFT: A as torch.nn.Linear, B zero, so that training starts at
 * the model's own outputs. NULL after a failure. */
static ds_tensor *adapter_matrix(const Add *add, ds_module *layer, const char *path,
                                 const char *name, ds_dims shape, ds_dtype dtype)
{
    static const ds_module_type type = {.name = "LoraWeight"};
    char key[500];
    snprintf(key, sizeof key, PREFIX "%s.%s.weight", path, name);
    ds_tensor *x;
    if (add->weights) {
        x = ds_state_get(add->weights, key);
        if (!x) return dsi_refuse("lora: the adapter has no %s", key);
        ds_dims got = ds_shape_of(x);
        if (got.n != 2 || got.d[0] != shape.d[0] || got.d[1] != shape.d[1])
            return dsi_refuse("lora: %s is [%lld, %lld]: expected [%lld, %lld]", key,
                              (long long)got.d[0], (long long)got.d[1], (long long)shape.d[0],
                              (long long)shape.d[1]);
        x = ds_to(x, ds_current_device(), dtype);
    } else if (name[5] == 'A') {
        x = ds_empty(DS_F32, shape);
        x = ds_cast(ds_init_kaiming_uniform(x, sqrt(5), DS_FAN_IN, DS_GAIN_LEAKY_RELU), dtype);
    } else {
        x = ds_zeros(dtype, shape);
    }
    return x ? ds_module_param(ds_module_new(layer, name, &type), "weight", x) : NULL;
}

/* Adds A and B to a layer that a target names, by its own name or its whole
 * path. */
static ds_status adapter_add(void *arg, ds_module *m, const char *path)
{
    Add *add = arg;
    const Lora *o = add->lora;
    int which = -1;
    for (int i = 0; i < o->n_targets; i++)
        if (name_fits(o->target[i], path)) which = i, add->found[i]++;
    char key[500];
    snprintf(key, sizeof key, PREFIX "%s.lora_A.weight", path);
    if (o->by_weights ? !ds_state_get(add->weights, key) : which < 0) return DS_OK;
    int64_t r = (int64_t)pattern_number(o, "rank_pattern", path, (double)o->r);
    dsi_lm_linear *l = ds_self(m);
    int in = l->transposed ? 0 : 1;
    ds_dtype dtype = ds_dtype_of(l->weight);
    ds_scope *scope = ds_scope_open();
    l->lora_a = adapter_matrix(add, m, path, "lora_A", ds_shape(r, ds_size(l->weight, in)), dtype);
    if (l->lora_a)
        l->lora_b = adapter_matrix(add, m, path, "lora_B", ds_shape(ds_size(l->weight, 1 - in), r),
                                   dtype);
    ds_scope_close(scope);
    snprintf(key, sizeof key, PREFIX "%s.base_layer.weight", path);
    ds_tensor *base = ds_state_get(add->weights, key); /* PEFT adds that of lm_head */
    if (base && ds_copy(ds_detach(l->weight), base) != DS_OK) return ds_error_status();
    add->used += base != NULL;
    l->lora_scale = lora_scale(o, path), l->lora_dropout = o->dropout;
    add->used += 2;
    if (l->lora_a && l->lora_b) return DS_OK;
    l->lora_a = NULL;
    return ds_error_status();
}

/* Takes lora. Freezes all parameters of the model; then the adapters alone are
 * trained. A target without a layer, or a tensor of the file that no layer took,
 * is an error. */
static ds_status adapters_add(dsi_lm *lm, Lora *lora, const ds_state *weights)
{
    ds_module *m = ds_module_of(lm);
    Add add = {.lora = lora, .weights = weights};
    if (lm->lora) {
        dsi_lora_free(lora);
        return dsi_fail(DS_EINVAL, "lora: the model has adapters already");
    }
    lm->lora = lora;
    for (int i = 0; i < ds_module_params(m); i++)
        ds_require_grad(ds_module_param_at(m, i, NULL), false);
    ds_status status = for_each_linear(m, "", adapter_add, &add);
    for (int i = 0; i < lora->n_targets && status == DS_OK && !lora->by_weights; i++)
        if (!add.found[i])
            status = dsi_fail(DS_EINVAL, "lora: the model has no linear layer \"%s\"",
                              lora->target[i]);
    if (status == DS_OK && weights && add.used < ds_state_len(weights))
        status = dsi_fail(DS_EFORMAT,
                          "lora: the adapter has %d tensors, of which the model takes %d",
                          ds_state_len(weights), add.used);
    return status;
}

static ds_status target_set(Lora *l, const char *name)
{
    if (!name || !*name || strlen(name) >= sizeof l->target[0] || l->n_targets == MAX_TARGETS)
        return dsi_fail(DS_EINVAL, "lora: target %d: expected at most %d names of layers",
                        l->n_targets, MAX_TARGETS);
    snprintf(l->target[l->n_targets++], sizeof l->target[0], "%s", name);
    return DS_OK;
}

ds_status ds_lora_with(ds_module *model, ds_lora_opts o)
{
    static const char *const gpt2[] = {"c_attn"}, *const llama[] = {"q_proj", "v_proj"};
    dsi_lm *lm = dsi_lm_of(model);
    if (!lm) return dsi_fail(DS_EINVAL, "lora: expected a language model");
    if (o.r < 0 || o.r > 1 << 20 || o.alpha < 0 || !(o.dropout >= 0 && o.dropout < 1))
        return dsi_fail(DS_EINVAL, "lora: r %lld, alpha %g, dropout %g: one is out of its range",
                        (long long)o.r, o.alpha, o.dropout);
    bool is_gpt2 = lm->config.family == DSI_GPT2;
    if (!o.targets) o.targets = is_gpt2 ? gpt2 : llama, o.n_targets = is_gpt2 ? 1 : 2;
    Lora *l = dsi_alloc(sizeof *l);
    l->r = o.r ? o.r : 8, l->alpha = dsi_option(o.alpha, 8);
    l->dropout = o.dropout, l->rslora = o.use_rslora;
    ds_status status = DS_OK;
    for (int i = 0; i < o.n_targets && status == DS_OK; i++) status = target_set(l, o.targets[i]);
    if (status == DS_OK) return adapters_add(lm, l, NULL);
    dsi_free(l);
    return status;
}

/* ---- adapter_config.json ---- */

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
    static const char *const off[] = {"use_dora",          "bias",
                                      "modules_to_save",   "lora_bias",
                                      "layer_replication", "use_qalora",
                                      "target_parameters", "trainable_token_indices",
                                      "use_bdlora",        "alora_invocation_tokens"};
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
    return patterns_check(j, path);
}

static ds_status config_read(const char *path, Lora *l)
{
    size_t n, i;
    json_error_t error;
    char *text = dsi_file_read(path, &n);
    if (!text) return ds_error_status();
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error), *name;
    dsi_free(text);
    if (!j) return dsi_fail(DS_EFORMAT, "lora: %s: line %d: %s", path, error.line, error.text);
    ds_status status = config_check(j, path);
    l->r = json_integer_value(json_object_get(j, "r"));
    l->alpha = json_number_value(json_object_get(j, "lora_alpha"));
    l->dropout = json_number_value(json_object_get(j, "lora_dropout"));
    l->rslora = json_is_true(json_object_get(j, "use_rslora"));
    if (status == DS_OK && (l->r < 1 || l->r > 1 << 20 || !(l->dropout >= 0 && l->dropout < 1)))
        status = dsi_fail(DS_EFORMAT, "lora: %s: r is %lld, lora_dropout %g", path, (long long)l->r,
                          l->dropout);
    json_t *targets = json_object_get(j, "target_modules");
    if (json_array_size(targets) > MAX_TARGETS) targets = NULL; /* layer by layer */
    json_array_foreach(targets, i, name) if (status == DS_OK)
        status = target_set(l, json_string_value(name));
    l->by_weights = !l->n_targets || !is_off(json_object_get(j, "exclude_modules")) ||
                    !is_off(json_object_get(j, "layers_to_transform"));
    l->config = j;
    return status;
}

static char *lora_path(const char *folder, const char *file)
{
    dsi_text t = {0};
    dsi_text_add(&t, "%s/%s", folder, file);
    return t.s;
}

ds_status ds_lora_load(ds_module *model, const char *folder)
{
    dsi_lm *lm = dsi_lm_of(model);
    if (!lm || !folder)
        return dsi_fail(DS_EINVAL, "lora_load: expected a language model and a folder");
    char *config = lora_path(folder, "adapter_config.json");
    char *file = lora_path(folder, "adapter_model.safetensors");
    Lora *l = dsi_alloc(sizeof *l);
    ds_status status = config_read(config, l);
    ds_scope *scope = ds_scope_open();
    ds_state *weights = status == DS_OK ? ds_load(file) : NULL;
    if (weights)
        status = adapters_add(lm, l, weights);
    else
        status = ds_error_status(), dsi_lora_free(l);
    ds_state_free(weights);
    ds_scope_close(scope);
    dsi_free(config), dsi_free(file);
    return status;
}

/* ---- save, merge ---- */

static json_t *config_new(const dsi_lm *lm)
{
    const Lora *l = lm->lora;
    if (l->config) return json_incref(l->config); /* of the files that were loaded */
    json_t *targets = json_array();
    for (int i = 0; i < l->n_targets; i++)
        json_array_append_new(targets, json_string(l->target[i]));
    return json_pack("{s:s, s:s, s:s, s:I, s:f, s:f, s:b, s:b, s:s, s:b, s:b, s:o}", "peft_type",
                     "LORA", "task_type", "CAUSAL_LM", "base_model_name_or_path",
                     lm->folder ? lm->folder : "", "r", (json_int_t)l->r, "lora_alpha", l->alpha,
                     "lora_dropout", l->dropout, "use_rslora", (int)l->rslora, "fan_in_fan_out",
                     (int)(lm->config.family == DSI_GPT2), "bias", "none", "inference_mode", 1,
                     "init_lora_weights", 1, "target_modules", targets);
}

static ds_status config_save(const dsi_lm *lm, const char *folder)
{
    json_t *j = config_new(lm);
    char *text = j ? json_dumps(j, JSON_INDENT(2)) : NULL;
    char *path = lora_path(folder, "adapter_config.json");
    dsi_file *f = text ? dsi_file_replace(path) : NULL;
    ds_status status = f ? DS_OK : ds_error() ? ds_error_status() : DS_ENOMEM;
    if (f) dsi_file_write(f, text, strlen(text)), status = dsi_file_commit(f);
    dsi_free(path), free(text);
    json_decref(j);
    return status;
}

ds_status ds_lora_save(ds_module *model, const char *folder, const ds_state *weights)
{
    static const char *const format[] = {"format", "pt", NULL};
    dsi_lm *lm = dsi_lm_of(model);
    if (!lm || !folder || !lm->lora)
        return dsi_fail(DS_EINVAL,
                        "lora_save: expected a language model with adapters, and a folder");
    ds_status status = dsi_mkdirs(folder);
    ds_state *mine = ds_module_state(model), *out = ds_state_new();
    for (int i = 0; i < ds_state_len(mine) && status == DS_OK; i++) {
        const char *name = ds_state_name(mine, i);
        if (!strstr(name, ".lora_A.") && !strstr(name, ".lora_B.")) continue;
        char key[500];
        snprintf(key, sizeof key, PREFIX "%s", name);
        ds_tensor *x = weights ? ds_state_get(weights, name) : ds_state_at(mine, i);
        status = x ? ds_state_set(out, key, x)
                   : dsi_fail(DS_EINVAL, "lora_save: weights have no %s", name);
    }
    char *path = lora_path(folder, "adapter_model.safetensors");
    if (status == DS_OK) status = ds_safetensors_save(out, path, format);
    if (status == DS_OK) status = config_save(lm, folder);
    dsi_free(path);
    ds_state_free(mine), ds_state_free(out);
    return status;
}

/* weight += scale B A, in float32, rounded once. */
static ds_status adapter_merge(void *arg, ds_module *m, const char *path)
{
    (void)arg, (void)path;
    dsi_lm_linear *l = ds_self(m);
    if (!l->lora_a) return DS_OK;
    ds_scope *scope = ds_scope_open();
    bool recording = ds_set_grad(false);
    ds_tensor *update = ds_matmul(ds_cast(l->lora_b, DS_F32), ds_cast(l->lora_a, DS_F32));
    if (l->transposed) update = ds_transpose(update, 0, 1);
    ds_tensor *sum = ds_add_scaled(ds_cast(l->weight, DS_F32), update, l->lora_scale);
    ds_status status = sum ? ds_copy(l->weight, sum) : ds_error_status();
    if (status == DS_OK) l->lora_a = l->lora_b = NULL;
    ds_set_grad(recording);
    ds_scope_close(scope);
    return status;
}

ds_status ds_lora_merge(ds_module *model)
{
    dsi_lm *lm = dsi_lm_of(model);
    if (!lm || !lm->lora)
        return dsi_fail(DS_EINVAL, "lora_merge: expected a language model with adapters");
    return for_each_linear(model, "", adapter_merge, NULL);
}
