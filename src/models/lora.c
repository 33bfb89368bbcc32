/* models/lora.c: low-rank adapters, trained beside parts of a model, in PEFT's
 * files; Hu et al., arXiv:2106.09685; Liu et al., arXiv:2402.09353 (DoRA).
 *
 * An adapter is modules lora_A, lora_B, and for DoRA lora_magnitude_vector,
 * below the layer that it changes; so its parameters have PEFT's names except
 * for the prefix "base_model.model.". The layer's own forward calls
 * dsi_lora_forward (layers.c). Biases and modules_to_save are the model's own
 * parameters, which are trained in place and saved with the adapters.
 *
 * Invariants:
 * - The functions that add, load and merge read and write the model's
 *   parameters inside ds_gathered, since they may be partitioned: all ranks
 *   call them.
 * - The embedding of a tied model has two uses. If one of them is to be saved,
 *   and not both as one, the head becomes a module of its own (head_untie), as
 *   in PEFT, where the saved module is a copy.
 * SPDX-License-Identifier: MIT */
#include "lora.h"

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/option.h"
#include "base/text.h"
#include "lm.h"
#include "nn/module.h"

#include <deepspeed/checkpoint.h>
#include <deepspeed/parallel.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PREFIX "base_model.model."

void dsi_lora_free(void *lora)
{
    if (lora) json_decref(((dsi_lora *)lora)->config);
    dsi_free(lora);
}

/* fn for each module below m with its path; stops at a failure. */
static ds_status for_each_module(ds_module *m, const char *path,
                                 ds_status (*fn)(void *arg, ds_module *m, const char *path),
                                 void *arg)
{
    ds_status status = *path ? fn(arg, m, path) : DS_OK;
    for (int i = 0; i < ds_module_children(m) && status == DS_OK; i++) {
        ds_module *child = ds_module_child(m, i);
        char below[400];
        snprintf(below, sizeof below, "%s%s%s", path, *path ? "." : "", ds_module_name(child));
        status = for_each_module(child, below, fn, arg);
    }
    return status;
}

/* ---- what is computed ---- */

/* scale B A in float32, of the shape of the layer's weight. */
static ds_tensor *weight_update(const dsi_lm_linear *l)
{
    ds_tensor *x = ds_matmul(ds_cast(l->lora_b, DS_F32), ds_cast(l->lora_a, DS_F32));
    return ds_scale(l->transposed ? ds_transpose(x, 0, 1) : x, l->lora_scale);
}

/* DoRA: what the outputs of the updated weight `sum` are multiplied by, their
 * magnitudes over their norms: float32 [out]. Section 4.3 of the paper: the
 * norm counts as a constant. */
static ds_tensor *magnitude_scale(const dsi_lm_linear *l, ds_tensor *sum)
{
    ds_dims over = {1, {l->transposed ? 0 : 1}};
    ds_tensor *norm = ds_norm_with(ds_detach(sum), (ds_norm_opts){.dims = over});
    return ds_div(ds_cast(l->lora_magnitude, DS_F32), norm);
}

/* The weight with its update, in float32; without a gradient. */
static ds_tensor *weight_updated(const dsi_lm_linear *l)
{
    bool recording = ds_set_grad(false);
    ds_tensor *y = ds_add(ds_cast(l->weight, DS_F32), weight_update(l));
    ds_set_grad(recording);
    return y;
}

/* Plain: y + scale B A x, with y = W x + b. DoRA, with the factors f:
 * f (W x + scale B A x) + b. In training PEFT's dropout is of all x but the one
 * in (W x + b) + (f - 1) W x. Sums are in the adapter's dtype, the result in
 * that of x. */
ds_tensor *dsi_lora_forward(dsi_lm_linear *l, ds_tensor *x, bool training)
{
    bool drops = training && l->lora_dropout > 0;
    ds_dtype outer = ds_dtype_of(x), inner = ds_dtype_of(l->lora_a);
    ds_tensor *in = drops ? ds_dropout(x, l->lora_dropout, true) : x;
    ds_tensor *low = ds_linear(ds_linear(ds_cast(in, inner), l->lora_a, NULL), l->lora_b, NULL), *y;
    if (!l->lora_magnitude) {
        y = ds_cast(dsi_lm_product(l, x, l->bias), inner);
        return ds_cast(ds_add_scaled(y, low, l->lora_scale), outer);
    }
    ds_tensor *f = l->lora_held;
    if (!f) f = magnitude_scale(l, weight_updated(l));
    if (l->lora_hold && !l->lora_held) l->lora_held = ds_keep(f);
    ds_tensor *plain = ds_cast(dsi_lm_product(l, in, NULL), inner);
    y = ds_mul(ds_add_scaled(plain, low, l->lora_scale), ds_cast(f, inner));
    if (drops)
        y = ds_add(ds_cast(dsi_lm_product(l, x, l->bias), inner), ds_sub(y, plain));
    else if (l->bias)
        y = ds_add(y, ds_cast(l->bias, inner));
    return ds_cast(y, outer);
}

/* arg: bool, whether the layer's factors, which do not change while tokens are
 * generated, are kept from one call to the next. */
static ds_status layer_hold(void *arg, ds_module *m, const char *path)
{
    (void)path;
    if (!dsi_lm_is_linear(m)) return DS_OK;
    dsi_lm_linear *l = ds_self(m);
    l->lora_hold = *(bool *)arg;
    if (!l->lora_hold) ds_drop(l->lora_held), l->lora_held = NULL;
    return DS_OK;
}

void dsi_lora_hold(dsi_lm *lm, bool on)
{
    const dsi_lora *o = lm->lora;
    if (o && o->dora) for_each_module(ds_module_of(lm), "", layer_hold, &on);
}

/* ---- names ---- */

/* Whether a name of modules_to_save means the module of `path`, or one above
 * it. PEFT compares only ends ("norm" means "q_norm" too); exact: names end at
 * dots. */
static bool is_saved(const dsi_lora *o, const char *path, size_t length, bool exact)
{
    for (int i = 0; i < o->saved.n; i++) {
        const char *name = o->saved.name[i];
        size_t k = strlen(name);
        for (size_t n = k; n <= length; n++) {
            if ((n < length && path[n] != '.') || strncmp(path + n - k, name, k) != 0) continue;
            if (!exact || n == k || path[n - k - 1] == '.') return true;
        }
    }
    return false;
}

/* The layer that has the parameter of this path, if it has an adapter; NULL. */
static dsi_lm_linear *adapted_layer(ds_module *model, const char *path)
{
    char parent[500];
    const char *dot = strrchr(path, '.');
    if (!dot || strstr(path, ".lora_")) return NULL;
    snprintf(parent, sizeof parent, "%.*s", (int)(dot - path), path);
    ds_module *m = ds_submodule(model, parent);
    if (!m || !dsi_lm_is_linear(m)) return NULL;
    dsi_lm_linear *l = ds_self(m);
    return l->lora_a ? l : NULL;
}

/* Whether adapter files have the parameter; also, whether it is trained. */
static bool param_is_kept(ds_module *model, const dsi_lora *o, const char *path)
{
    size_t module = strrchr(path, '.') ? (size_t)(strrchr(path, '.') - path) : 0;
    if (strstr(path, ".lora_") || is_saved(o, path, module, false)) return true;
    if (o->bias == DSI_BIAS_NONE || !dsi_ends_with(path, ".bias")) return false;
    return o->bias == DSI_BIAS_ALL || adapted_layer(model, path);
}

/* The name in PEFT's files: what belongs to a layer with an adapter is below
 * its "base_layer", and magnitudes have no ".weight". */
static void param_key(ds_module *model, const char *path, char *key, size_t room)
{
    const char *last = strrchr(path, '.');
    if (dsi_ends_with(path, ".lora_magnitude_vector.weight"))
        snprintf(key, room, PREFIX "%.*s", (int)(last - path), path);
    else if (adapted_layer(model, path))
        snprintf(key, room, PREFIX "%.*s.base_layer%s", (int)(last - path), path, last);
    else
        snprintf(key, room, PREFIX "%s", path);
}

static void head_key(const dsi_lm *lm, char *key, size_t room)
{
    snprintf(key, room, PREFIX "%s.weight", lm->type->head);
}

/* Tensors that files have although they are repeated or unused: biases of saved
 * modules under bias "all", and the head of a tied model. */
static bool key_is_ignored(const dsi_lm *lm, const char *key)
{
    char head[100];
    head_key(lm, head, sizeof head);
    return strstr(key, ".original_module.") || strstr(key, ".modules_to_save.") ||
           (!lm->head && !strcmp(key, head));
}

/* ---- add ---- */

/* x := value, where x may be partitioned. */
static ds_status param_write(ds_tensor *x, ds_tensor *value)
{
    ds_status status = value ? ds_gathered(&x, 1) : ds_error_status();
    if (status != DS_OK) return status;
    status = ds_copy(ds_detach(x), value);
    ds_status end = ds_gathered_end(&x, 1, 0);
    return status == DS_OK ? end : status;
}

/* A head of its own for a tied model, with a copy of the embedding's values. */
static ds_status head_untie(dsi_lm *lm)
{
    ds_tensor *from = dsi_lm_embedding_weight(lm->embed);
    dsi_lm_builder b = {.dtype = ds_dtype_of(from), .std = -1}; /* zeros: nothing is drawn */
    ds_module *m = dsi_lm_linear_new(&b, ds_module_of(lm), lm->type->head, lm->config.embedding,
                                     lm->config.vocab, false, false, -1);
    ds_status status = ds_gathered(&from, 1);
    if (status != DS_OK) return status;
    status = param_write(((dsi_lm_linear *)ds_self(m))->weight, from);
    if (status == DS_OK) lm->head = m;
    ds_status end = ds_gathered_end(&from, 1, -1);
    return status == DS_OK ? end : status;
}

/* Whether PEFT keeps the embeddings of this model tied: ensure_weight_tying,
 * and a module that has one of the names it knows for them. */
static bool stays_tied(const dsi_lora *o)
{
    for (int i = 0; i < o->saved.n && o->tying; i++)
        if (dsi_lora_name_fits("embed_tokens", o->saved.name[i]) ||
            dsi_lora_name_fits("lm_head", o->saved.name[i]))
            return true;
    return false;
}

/* Prepares a tied model for o->saved: unties it, or names the embedding. */
static ds_status tied_prepare(dsi_lm *lm, dsi_lora *o)
{
    char embed[100];
    const char *head = lm->type->head;
    snprintf(embed, sizeof embed, "%s%s", lm->type->prefix, lm->type->table);
    bool saved = is_saved(o, embed, strlen(embed), false);
    if (lm->head || (!saved && !is_saved(o, head, strlen(head), false))) return DS_OK;
    if (!stays_tied(o)) return head_untie(lm);
    return saved ? DS_OK : dsi_lora_name_add(&o->saved, "modules_to_save", embed);
}

typedef struct Add {
    dsi_lora *lora;
    const ds_state *weights; /* of a file; NULL: new adapters */
    bool target_found[DSI_LORA_MAX_NAMES], saved_found[DSI_LORA_MAX_NAMES];
    dsi_text layers; /* names of the model's linear layers */
} Add;

/* A module `name` below the layer, with this parameter. */
static ds_tensor *adapter_param(ds_module *layer, const char *name, ds_tensor *x, ds_dtype dtype)
{
    static const ds_module_type type = {.name = "LoraWeight"};
    x = ds_cast(x, dtype);
    return x ? ds_module_param(ds_module_new(layer, name, &type), "weight", x) : NULL;
}

/* First values as in PEFT: A as torch.nn.Linear, B zero, magnitudes the norms
 * of the weight, so that training starts at the model's own outputs. Those of
 * files are written later. */
static ds_status adapter_make(const Add *add, ds_module *m, const char *path)
{
    const dsi_lora *o = add->lora;
    dsi_lm_linear *l = ds_self(m);
    ds_dtype dtype = ds_dtype_of(l->weight);
    if (!o->keep_dtype && (dtype == DS_F16 || dtype == DS_BF16)) dtype = DS_F32;
    int in = l->transposed ? 0 : 1;
    int64_t r = dsi_lora_rank(o, path), out = ds_size(l->weight, 1 - in);
    ds_tensor *a = ds_zeros(DS_F32, ds_shape(r, ds_size(l->weight, in)));
    if (!add->weights) a = ds_init_kaiming_uniform(a, sqrt(5), DS_FAN_IN, DS_GAIN_LEAKY_RELU);
    l->lora_scale = dsi_lora_scale(o, path), l->lora_dropout = o->dropout;
    l->lora_a = adapter_param(m, "lora_A", a, dtype);
    l->lora_b = adapter_param(m, "lora_B", ds_zeros(DS_F32, ds_shape(out, r)), dtype);
    if (o->dora) {
        ds_tensor *norm = ds_ones(DS_F32, ds_shape(out));
        if (!add->weights && ds_gathered(&l->weight, 1) == DS_OK) {
            norm = ds_norm_with(ds_cast(ds_detach(l->weight), DS_F32),
                                (ds_norm_opts){.dims = {1, {in}}});
            if (ds_gathered_end(&l->weight, 1, -1) != DS_OK) norm = NULL;
        }
        l->lora_magnitude = adapter_param(m, "lora_magnitude_vector", norm, dtype);
    }
    if (l->lora_a && l->lora_b && (l->lora_magnitude || !o->dora)) return DS_OK;
    l->lora_a = NULL;
    return ds_error_status();
}

/* Notes the targets that name the layer. Whether it gets an adapter, unless
 * modules_to_save names what it is in. */
static bool is_target(Add *add, const char *path)
{
    const dsi_lora *o = add->lora;
    bool named = false;
    char key[500];
    for (int i = 0; i < o->targets.n; i++)
        if (dsi_lora_name_fits(o->targets.name[i], path)) named = add->target_found[i] = true;
    snprintf(key, sizeof key, PREFIX "%s.lora_A.weight", path);
    return o->by_weights ? ds_state_get(add->weights, key) != NULL : named;
}

/* Appends the layer's own name, once. */
static void layer_name_add(dsi_text *names, const char *path)
{
    const char *dot = strrchr(path, '.'), *name = dot ? dot + 1 : path;
    if (names->n && dsi_has_word(names->s, name, strlen(name))) return;
    dsi_text_add(names, "%s%s", names->n ? ", " : "", name);
}

/* Notes what the options name, and refuses what they may not. */
static ds_status names_visit(void *arg, ds_module *m, const char *path)
{
    Add *add = arg;
    const dsi_lora *o = add->lora;
    for (int i = 0; i < o->saved.n; i++) {
        if (!dsi_ends_with(path, o->saved.name[i])) continue;
        add->saved_found[i] = true;
        if (!strcmp(ds_module_type_of(m)->name, "ModuleList"))
            return dsi_fail(DS_EINVAL, "lora: modules_to_save: %s is a list of modules", path);
    }
    if (!dsi_lm_is_linear(m)) return DS_OK;
    layer_name_add(&add->layers, path);
    size_t n = strlen(path);
    if (is_target(add, path) && !is_saved(o, path, n, true) && is_saved(o, path, n, false))
        return dsi_fail(DS_EINVAL, "lora: %s is a target, and in modules_to_save", path);
    return DS_OK;
}

static ds_status layer_visit(void *arg, ds_module *m, const char *path)
{
    Add *add = arg;
    if (!dsi_lm_is_linear(m) || !is_target(add, path)) return DS_OK;
    if (is_saved(add->lora, path, strlen(path), true)) return DS_OK;
    ds_scope *scope = ds_scope_open();
    ds_status status = adapter_make(add, m, path);
    ds_scope_close(scope);
    return status;
}

/* Names that mean nothing are an error in new adapters; those of a file may be
 * for other models. */
static ds_status names_check(dsi_lm *lm, Add *add)
{
    const dsi_lora *o = add->lora;
    if (lm->lora) return dsi_fail(DS_EINVAL, "lora: the model has adapters already");
    for (int i = 0; i < o->saved.n; i++) /* a tied head is the embedding */
        add->saved_found[i] = !lm->head && dsi_lora_name_fits(o->saved.name[i], lm->type->head);
    ds_status status = for_each_module(ds_module_of(lm), "", names_visit, add);
    for (int i = 0; i < o->targets.n && status == DS_OK && !o->by_weights; i++)
        if (!add->target_found[i])
            status = dsi_fail(DS_EINVAL, "lora: the model has no linear layer \"%s\": it has %s",
                              o->targets.name[i], add->layers.s);
    for (int i = 0; i < o->saved.n && status == DS_OK && !add->weights; i++)
        if (!add->saved_found[i])
            status = dsi_fail(DS_EINVAL, "lora: the model has no module \"%s\"", o->saved.name[i]);
    dsi_text_free(&add->layers);
    return status;
}

/* Parameters with the names that files have for them; the caller frees it. */
static ds_state *params_by_key(ds_module *model)
{
    ds_state *by_key = ds_state_new();
    for (int i = 0; i < ds_module_params(model); i++) {
        const char *path;
        char key[500];
        ds_tensor *x = ds_module_param_at(model, i, &path);
        param_key(model, path, key, sizeof key);
        if (ds_state_set(by_key, key, x) != DS_OK) break;
    }
    return by_key;
}

/* Whether each tensor of the file is a parameter's, of its shape, and none is
 * missing. A bias may be: old versions of PEFT left it out. */
static ds_status weights_check(dsi_lm *lm, const ds_state *params, const ds_state *weights)
{
    for (int i = 0; i < ds_state_len(weights); i++) {
        const char *key = ds_state_name(weights, i);
        ds_tensor *x = ds_state_get(params, key);
        if (!x && key_is_ignored(lm, key)) continue;
        if (!x) return dsi_fail(DS_EFORMAT, "lora: the adapter has %s, the model has not", key);
        if (dsi_lm_dims_differ("lora", key, ds_state_at(weights, i), ds_shape_of(x), "expected"))
            return ds_error_status();
    }
    for (int i = 0; i < ds_state_len(params); i++) {
        const char *key = ds_state_name(params, i);
        if (!ds_requires_grad(ds_state_at(params, i)) || dsi_ends_with(key, ".bias")) continue;
        if (!ds_state_get(weights, key))
            return dsi_fail(DS_EFORMAT, "lora: the adapter has no %s", key);
    }
    return DS_OK;
}

/* Checks all of the file before the first value is written. */
static ds_status weights_load(dsi_lm *lm, const ds_state *weights)
{
    ds_state *params = params_by_key(ds_module_of(lm));
    ds_status status = weights_check(lm, params, weights);
    for (int i = 0; i < ds_state_len(weights) && status == DS_OK; i++) {
        ds_tensor *x = ds_state_get(params, ds_state_name(weights, i));
        if (x) status = param_write(x, ds_state_at(weights, i));
    }
    ds_state_free(params);
    return status;
}

static ds_status layer_clear(void *arg, ds_module *m, const char *path)
{
    (void)arg, (void)path;
    if (!dsi_lm_is_linear(m)) return DS_OK;
    dsi_lm_linear *l = ds_self(m);
    l->lora_a = l->lora_b = l->lora_magnitude = NULL;
    for (int i = ds_module_children(m); i-- > 0;)
        if (!strncmp(ds_module_name(ds_module_child(m, i)), "lora_", 5))
            dsi_module_remove(ds_module_child(m, i));
    return DS_OK;
}

/* The model as it was before adapters_add: tied, or with its head; trained:
 * whether each parameter has gradients. */
static void adapters_remove(dsi_lm *lm, bool tied, const bool *trained)
{
    ds_module *m = ds_module_of(lm), *head = tied ? ds_submodule(m, lm->type->head) : NULL;
    for_each_module(m, "", layer_clear, NULL);
    if (tied) lm->head = NULL;
    if (head) dsi_module_remove(head);
    for (int i = 0; i < ds_module_params(m); i++)
        ds_require_grad(ds_module_param_at(m, i, NULL), trained[i]);
    dsi_lora_free(lm->lora);
    lm->lora = NULL;
}

/* Takes lora. Freezes the model except the adapters, and what is trained
 * beside them; weights: their values, or NULL. A failure leaves no adapters. */
static ds_status adapters_add(dsi_lm *lm, dsi_lora *lora, const ds_state *weights)
{
    ds_module *m = ds_module_of(lm);
    Add add = {.lora = lora, .weights = weights};
    ds_status status = names_check(lm, &add);
    if (status != DS_OK) {
        dsi_lora_free(lora);
        return status;
    }
    bool tied = !lm->head, *trained = dsi_alloc((size_t)ds_module_params(m) * sizeof *trained);
    for (int i = 0; i < ds_module_params(m); i++)
        trained[i] = ds_requires_grad(ds_module_param_at(m, i, NULL));
    dsi_lm_session_drop(lm);
    lm->lora = lora;
    status = tied_prepare(lm, lora);
    if (status == DS_OK) status = for_each_module(m, "", layer_visit, &add);
    for (int i = 0; i < ds_module_params(m); i++) {
        const char *path;
        ds_tensor *x = ds_module_param_at(m, i, &path);
        ds_require_grad(x, param_is_kept(m, lora, path));
    }
    if (status == DS_OK && weights) status = weights_load(lm, weights);
    if (status != DS_OK) adapters_remove(lm, tied, trained);
    dsi_free(trained);
    return status;
}

ds_status ds_lora_with(ds_module *model, ds_lora_opts o)
{
    static const char *const gpt2[] = {"c_attn"}, *const neox[] = {"query_key_value"},
                             *const phi3[] = {"qkv_proj", "o_proj"},
                             *const llama[] = {"q_proj", "v_proj"};
    dsi_lm *lm = dsi_lm_of(model);
    if (!lm) return dsi_fail(DS_EINVAL, "lora: expected a language model");
    if (o.r < 0 || o.r > 1 << 20 || o.alpha < 0 || !(o.dropout >= 0 && o.dropout < 1))
        return dsi_fail(DS_EINVAL, "lora: r %lld, alpha %g, dropout %g: one is out of its range",
                        (long long)o.r, o.alpha, o.dropout);
    if (!o.targets) {
        bool is_gpt2 = lm->config.family == DSI_GPT2, is_neox = lm->config.family == DSI_GPT_NEOX;
        o.targets = is_gpt2 ? gpt2 : is_neox ? neox : lm->config.fused ? phi3 : llama;
        o.n_targets = is_gpt2 || is_neox ? 1 : 2;
    }
    dsi_lora *l = dsi_alloc(sizeof *l);
    l->r = o.r ? o.r : 8, l->alpha = dsi_option(o.alpha, 8);
    l->dropout = o.dropout, l->rslora = o.use_rslora, l->dora = o.use_dora;
    l->tying = o.ensure_weight_tying, l->keep_dtype = o.no_autocast_adapter_dtype;
    ds_status status = dsi_lora_bias_of(o.bias, &l->bias);
    for (int i = 0; i < o.n_targets && status == DS_OK; i++)
        status = dsi_lora_name_add(&l->targets, "target", o.targets[i]);
    for (int i = 0; i < o.n_modules_to_save && status == DS_OK; i++)
        status = dsi_lora_name_add(&l->saved, "modules_to_save", o.modules_to_save[i]);
    if (status == DS_OK) return adapters_add(lm, l, NULL);
    dsi_free(l);
    return status;
}

/* ---- load ---- */

ds_status ds_lora_load(ds_module *model, const char *folder)
{
    dsi_lm *lm = dsi_lm_of(model);
    if (!lm || !folder)
        return dsi_fail(DS_EINVAL, "lora_load: expected a language model and a folder");
    char *file = dsi_lora_path(folder, "adapter_model.safetensors");
    dsi_lora *l = dsi_alloc(sizeof *l);
    ds_scope *scope = ds_scope_open();
    ds_status status = dsi_lora_config_read(folder, l);
    ds_state *weights = status == DS_OK ? ds_load(file) : NULL;
    if (!weights) status = ds_error_status(), dsi_lora_free(l);
    if (weights) status = adapters_add(lm, l, weights);
    ds_state_free(weights);
    ds_scope_close(scope);
    dsi_free(file);
    return status;
}

/* ---- save, merge ---- */

/* Adds the parameters that adapter files have to `out`, with their names
 * there. */
static ds_status weights_collect(dsi_lm *lm, const ds_state *weights, ds_state *out)
{
    ds_module *model = ds_module_of(lm);
    const dsi_lora *o = lm->lora;
    ds_status status = DS_OK;
    for (int i = 0; i < ds_module_params(model) && status == DS_OK; i++) {
        const char *path;
        char key[500];
        ds_tensor *x = ds_module_param_at(model, i, &path);
        if (!param_is_kept(model, o, path)) continue;
        if (weights) x = ds_state_get(weights, path);
        param_key(model, path, key, sizeof key);
        status = x ? ds_state_set(out, key, x)
                   : dsi_fail(DS_EINVAL, "lora_save: weights have no %s", path);
        if (status == DS_OK && !lm->head &&
            ds_parameter(model, path) == dsi_lm_embedding_weight(lm->embed))
            head_key(lm, key, sizeof key),
                status = ds_state_set(out, key, x); /* PEFT asks for it */
    }
    return status;
}

ds_status ds_lora_save(ds_module *model, const char *folder, const ds_state *weights)
{
    static const char *const format[] = {"format", "pt", NULL};
    dsi_lm *lm = dsi_lm_of(model);
    const dsi_lora *o = lm ? lm->lora : NULL;
    if (!o || !folder || o->merged)
        return dsi_fail(DS_EINVAL,
                        "lora_save: expected a language model with adapters%s, and a "
                        "folder",
                        o && o->merged ? " that are not merged" : "");
    ds_status status = dsi_mkdirs(folder);
    ds_state *out = ds_state_new();
    if (status == DS_OK) status = weights_collect(lm, weights, out);
    char *path = dsi_lora_path(folder, "adapter_model.safetensors");
    if (status == DS_OK) status = ds_safetensors_save(out, path, format);
    if (status == DS_OK)
        status = dsi_lora_config_write(folder, o, lm->folder, lm->config.family == DSI_GPT2);
    dsi_free(path);
    ds_state_free(out);
    return status;
}

/* The weight with its update, in float32, rounded once. */
static ds_status layer_merge(void *arg, ds_module *m, const char *path)
{
    (void)arg, (void)path;
    if (!dsi_lm_is_linear(m)) return DS_OK;
    dsi_lm_linear *l = ds_self(m);
    if (!l->lora_a) return DS_OK;
    ds_scope *scope = ds_scope_open();
    bool recording = ds_set_grad(false);
    ds_tensor *sum = weight_updated(l);
    if (l->lora_magnitude) {
        ds_tensor *f = magnitude_scale(l, sum);
        sum = ds_mul(sum, l->transposed ? f : ds_unsqueeze(f, 1));
    }
    ds_status status = param_write(l->weight, sum);
    if (status == DS_OK) l->lora_a = l->lora_b = l->lora_magnitude = NULL;
    ds_set_grad(recording);
    ds_scope_close(scope);
    return status;
}

ds_status ds_lora_merge(ds_module *model)
{
    dsi_lm *lm = dsi_lm_of(model);
    dsi_lora *o = lm ? lm->lora : NULL;
    if (!o) return dsi_fail(DS_EINVAL, "lora_merge: expected a language model with adapters");
    dsi_lm_session_drop(lm);
    ds_status status = for_each_module(model, "", layer_merge, NULL);
    o->merged = status == DS_OK;
    return status;
}
