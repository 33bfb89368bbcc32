/* models/pretrained.c: folders of Hugging Face's: read and written.
 *
 * A model is made around its weights: each parameter is the tensor of the
 * mapped file itself where the dtype allows it. The folder is not trusted:
 * config.json is checked before modules are made, shapes before parameters are,
 * and names of shards cannot leave the folder (checkpoint/shards.c).
 *
 * Invariants:
 * - Loading blocks on files. With o.config all ranks load: parameters are
 *   partitioned among them as they are made.
 * - The state dict of the files is freed at the end of loading: parameters
 *   that share its memory hold their own count of the mapping.
 * - config.json and the tokenizer's files are replaced by finished ones
 *   (dsi_file_replace), so a reader sees the old file or the new one.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "lm.h"

#include <deepspeed/checkpoint.h>
#include <deepspeed/parallel.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of one file of weights, in bytes: transformers' default was "5GB",
 * decimal. */
#define SHARD_BYTES 5000000000

/* "folder/file", which the caller frees. */
static char *path_in(const char *folder, const char *file)
{
    dsi_text t = {0};
    dsi_text_add(&t, "%s/%s", folder, file);
    return t.s;
}

/* ---- load ---- */

/* "head.weight", the name of a head that is not tied. */
static bool is_head(const char *name, const dsi_lm_config *c)
{
    const char *head = dsi_lm_type_of(c)->head;
    size_t n = strlen(head);
    return !strncmp(name, head, n) && !strcmp(name + n, ".weight");
}

/* Tensors that files have although the model computes them. Old files of GPT-2
 * and GPT-NeoX have causal masks (bias, masked_bias), old ones of Llama rotary
 * frequencies; a tied head repeats the embeddings. */
static bool weights_ignored(const char *name, const dsi_lm_config *c)
{
    static const char *const ends[] = {".attn.bias", ".attn.masked_bias", ".attention.bias",
                                       ".attention.masked_bias", "rotary_emb.inv_freq"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (dsi_ends_with(name, ends[i])) return true;
    return c->tied && is_head(name, c);
}

/* Refuses tensors that no parameter took: the model would compute other values
 * without them. The counts decide in the usual case; names are compared only
 * if they differ, to find one for the message. A name may lack the body's
 * prefix. */
static ds_status weights_all_used(const ds_module *m, const ds_state *weights,
                                  const dsi_lm_builder *b, const dsi_lm_config *c)
{
    int known = b->used;
    for (int i = 0; i < ds_state_len(weights); i++)
        known += weights_ignored(ds_state_name(weights, i), c);
    if (known >= ds_state_len(weights)) return DS_OK;
    ds_state *mine = ds_module_state(m);
    ds_status status = DS_OK;
    char with[400];
    for (int i = 0; i < ds_state_len(weights) && status == DS_OK; i++) {
        const char *name = ds_state_name(weights, i);
        snprintf(with, sizeof with, "%s%s", b->prefix, name);
        if (!weights_ignored(name, c) && !ds_state_get(mine, name) && !ds_state_get(mine, with))
            status = dsi_fail(DS_EFORMAT, "pretrained: the weights have %s, which %s has not", name,
                              c->architecture);
    }
    ds_state_free(mine);
    return status;
}

/* All tensors of the first of these files that is there, in the order of
 * transformers; an index names shards. The caller frees it; NULL with the
 * message. */
static ds_state *folder_weights(const char *folder)
{
    static const char *const files[] = {"model.safetensors", "model.safetensors.index.json",
                                        "pytorch_model.bin", "pytorch_model.bin.index.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = path_in(folder, files[i]);
        bool there = dsi_file_exists(path);
        ds_state *weights = there ? ds_load(path) : NULL;
        free(path);
        if (there) return weights;
    }
    dsi_fail(DS_EIO,
             "pretrained: %s has neither model.safetensors nor pytorch_model.bin, and no "
             "index.json of one; for a new model, name its config.json in place of the folder",
             folder);
    return NULL;
}

static bool weights_equal(ds_tensor *a, ds_tensor *b)
{
    ds_dims s = ds_shape_of(a), t = ds_shape_of(b);
    ds_dtype dtype = ds_dtype_of(a);
    if (dtype != ds_dtype_of(b) || s.n != t.n || memcmp(s.d, t.d, (size_t)s.n * sizeof *s.d) != 0)
        return false;
    const void *x = ds_data(a), *y = ds_data(b);
    return x && y && !memcmp(x, y, (size_t)ds_numel(a) * ds_dtype_size(dtype));
}

/* A head in the files of a tied model repeats the embeddings. If its values are
 * others, the model is not tied, whatever config.json says, as in transformers;
 * a line of the log says so. */
static void untie_other_head(const ds_state *weights, dsi_lm_config *c, json_t *json)
{
    ds_tensor *head = NULL, *table = NULL;
    char table_end[40];
    snprintf(table_end, sizeof table_end, "%s.weight", dsi_lm_type_of(c)->table);
    for (int i = 0; c->tied && i < ds_state_len(weights); i++) {
        const char *name = ds_state_name(weights, i);
        if (is_head(name, c)) head = ds_state_at(weights, i);
        if (dsi_ends_with(name, table_end)) table = ds_state_at(weights, i);
    }
    if (!head || !table || weights_equal(head, table)) return;
    dsi_log(DSI_WARNING,
            "pretrained: config.json says tie_word_embeddings, and %s.weight differs from the "
            "embeddings: they are not tied",
            dsi_lm_type_of(c)->head);
    c->tied = false;
    json_object_set_new(json, "tie_word_embeddings", json_false());
}

/* o.folder may also be a config.json itself, if no weights are asked for.
 * dsi_lm_new takes json; it is released here only where that is not reached.
 * The scope ends the handles of stored tensors that no parameter took. */
static ds_module *pretrained_read(ds_pretrained_opts o)
{
    if (o.dtype > DS_BF16)
        return dsi_refuse("pretrained_load: dtype is %s: expected a floating-point dtype",
                          ds_dtype_name(o.dtype));
    if (!*o.folder) return dsi_refuse("pretrained_load: folder is \"\": expected the name of one");
    bool folder = dsi_is_folder(o.folder);
    if (!folder && !o.no_weights)
        return (dsi_fail(DS_EIO, "pretrained_load: \"%s\" is no folder", o.folder), NULL);
    char *path = folder ? path_in(o.folder, "config.json") : strdup(o.folder);
    dsi_lm_config *c = dsi_alloc(sizeof *c);
    json_t *json = NULL;
    size_t bytes;
    char *text = dsi_file_read_regular(path, &bytes);
    ds_module *m = NULL;
    ds_state *weights = NULL;
    if (text && dsi_lm_config_read(text, bytes, path, c, &json) == DS_OK) {
        dsi_lm_builder b = {.dtype = o.dtype, .stored_dtype = o.stored_dtype};
        ds_scope *scope = ds_scope_open();
        if (!o.no_weights) b.weights = weights = folder_weights(o.folder);
        if (weights) untie_other_head(weights, c, json);
        if (weights || o.no_weights)
            m = dsi_lm_new(c, json, folder ? o.folder : NULL, &b);
        else
            json_decref(json);
        if (m && weights && weights_all_used(m, weights, &b, c) != DS_OK) {
            ds_module_free(m);
            m = NULL;
        }
        ds_state_free(weights);
        ds_scope_close(scope);
    }
    dsi_free(text), free(path), dsi_free(c);
    return m;
}

/* With o.config the parameters are partitioned among ranks as they are made;
 * ds_zero_init_end is called also after a failure, so that later modules are
 * whole. */
ds_module *ds_pretrained_load_with(ds_pretrained_opts o)
{
    if (!o.folder) return dsi_null_operand("pretrained_load");
    if (!o.config) return pretrained_read(o);
    if (ds_zero_init_with((ds_zero_init_opts){.config = o.config}) != DS_OK) return NULL;
    ds_module *m = pretrained_read(o);
    if (ds_zero_init_end() == DS_OK) return m;
    ds_module_free(m);
    return NULL;
}

/* ---- save ---- */

static ds_status save_tokenizer(const char *from, const char *to)
{
    static const char *const files[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "chat_template.jinja",
                                        "generation_config.json",
                                        "tokenizer.model"};
    ds_status status = DS_OK;
    char *a = from ? realpath(from, NULL) : NULL, *b = realpath(to, NULL);
    bool other = a && b && strcmp(a, b) != 0;
    for (size_t i = 0; other && i < sizeof files / sizeof *files && status == DS_OK; i++)
        status = dsi_file_copy_if_there(from, to, files[i]);
    if (other && status == DS_OK)
        status = dsi_file_copy_all(from, to, "additional_chat_templates", ".jinja");
    free(a), free(b);
    return status;
}

/* config.json with the dtype of the weights; adapters may have untied a head. A
 * config.json that was written by hand may lack the model_type that
 * transformers asks for. */
static ds_status save_config(const dsi_lm *lm, const char *folder, ds_dtype dtype)
{
    json_t *json = json_copy(lm->json);
    bool old = json_object_get(json, "torch_dtype") && !json_object_get(json, "dtype");
    json_object_set_new(json, old ? "torch_dtype" : "dtype", json_string(ds_dtype_name(dtype)));
    if (!json_object_get(json, "model_type"))
        json_object_set_new(json, "model_type", json_string(lm->config.model_type));
    if (lm->config.tied && lm->head) json_object_set_new(json, "tie_word_embeddings", json_false());
    char *text = json_dumps(json, JSON_INDENT(2)), *path = path_in(folder, "config.json");
    dsi_file *f = text ? dsi_file_replace(path) : NULL;
    ds_status status = f ? DS_OK : ds_error() ? ds_error_status() : DS_ENOMEM;
    if (f) {
        dsi_file_write(f, text, strlen(text)), dsi_file_write(f, "\n", 1);
        status = dsi_file_commit(f);
    }
    free(text), free(path);
    json_decref(json);
    return status;
}

/* The parameters of the model itself: adapters are saved apart, and a state
 * dict of an engine may be in float32 masters. */
static ds_state *save_weights(const ds_module *m, const ds_state *from)
{
    ds_state *mine = ds_module_state(m), *out = ds_state_new();
    for (int i = 0; i < ds_state_len(mine); i++) {
        const char *name = ds_state_name(mine, i);
        ds_tensor *x = from ? ds_state_get(from, name) : ds_state_at(mine, i);
        if (strstr(name, ".lora_")) continue;
        x = x ? ds_cast(ds_detach(x), ds_dtype_of(ds_state_at(mine, i))) : NULL;
        if (!x && !ds_error()) dsi_fail(DS_EINVAL, "pretrained_save: weights have no %s", name);
        if (!x || ds_state_set(out, name, x) != DS_OK) break;
    }
    ds_state_free(mine);
    return out;
}

ds_status ds_pretrained_save_with(ds_module *m, ds_pretrained_save_opts o)
{
    dsi_lm *lm = dsi_lm_of(m);
    if (!lm || !o.folder)
        return dsi_fail(DS_EINVAL, "pretrained_save: expected a language model and a folder");
    int failures = dsi_error_count();
    ds_status status = dsi_mkdirs(o.folder);
    if (status != DS_OK) return status;
    ds_scope *scope = ds_scope_open();
    ds_state *weights = save_weights(m, o.weights);
    if (dsi_error_count() != failures) status = ds_error_status();
    int64_t most = o.max_shard_size > 0 ? o.max_shard_size : SHARD_BYTES, bytes = 0;
    for (int i = 0; i < ds_state_len(weights); i++)
        bytes += ds_numel(ds_state_at(weights, i)) *
                 (int64_t)ds_dtype_size(ds_dtype_of(ds_state_at(weights, i)));
    static const char *const format[] = {"format", "pt", NULL};
    char *path = path_in(o.folder, "model.safetensors");
    if (status == DS_OK)
        status = bytes > most ? ds_save_sharded(weights, path, most)
                              : ds_safetensors_save(weights, path, format);
    if (status == DS_OK) status = save_config(lm, o.folder, ds_dtype_of(ds_state_at(weights, 0)));
    if (status == DS_OK) status = save_tokenizer(lm->folder, o.folder);
    free(path);
    ds_state_free(weights);
    ds_scope_close(scope);
    return status;
}
