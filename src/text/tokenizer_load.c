/* text/tokenizer_load.c: reads a tokenizer.json.
 *
 * The file is not trusted: every id, name and pattern in it is checked before
 * it is used, and memory grows with the file, not with numbers in it.
 * SPDX-License-Identifier: MIT */
#include "tokenizer_load.h"

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- messages, members ---- */

ds_status dsi_tokenizer_damaged(const dsi_tokenizer_reader *r, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return dsi_fail(DS_EFORMAT, "tokenizer: %s: %s", r->name, text);
}

ds_status dsi_tokenizer_unsupported(const dsi_tokenizer_reader *r, const char *part,
                                    const json_t *component)
{
    return dsi_fail(DS_EINVAL,
                    "tokenizer: %s: %s of type \"%.60s\" is not implemented: expected a tokenizer "
                    "of GPT-2, OPT, Pythia, Llama, Mistral, Qwen2, Qwen3, SmolLM2, Phi-3 or Gemma",
                    r->name, part, dsi_json_type(component));
}

ds_status dsi_json_object_read(const char *folder, const char *file, bool needed, json_t **to)
{
    dsi_text path = dsi_text_of("%s/%s", folder, file);
    json_error_t error;
    size_t bytes = 0;
    bool wanted = needed || dsi_file_exists(path.s);
    char *text = wanted ? dsi_file_read_regular(path.s, &bytes) : NULL;
    ds_status status = wanted && !text ? ds_error_status() : DS_OK;
    json_t *j = text ? json_loadb(text, bytes, JSON_ALLOW_NUL, &error) : NULL;
    if (text && !j)
        status = dsi_fail(DS_EFORMAT, "%s: line %d: %s: expected a JSON object", path.s, error.line,
                          error.text);
    else if (j && !json_is_object(j))
        status = dsi_fail(DS_EFORMAT, "%s: expected a JSON object", path.s);
    if (status == DS_OK)
        *to = j;
    else
        json_decref(j);
    dsi_free(text);
    dsi_text_free(&path);
    return status;
}

const char *dsi_json_text(const json_t *object, const char *key, const char *otherwise)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : otherwise;
}

bool dsi_json_bool(const json_t *object, const char *key, bool otherwise)
{
    const json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

int64_t dsi_json_int(const json_t *object, const char *key, int64_t otherwise)
{
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) ? json_integer_value(value) : otherwise;
}

const char *dsi_json_type(const json_t *component) { return dsi_json_text(component, "type", ""); }

dsi_regex *dsi_json_pattern(const dsi_tokenizer_reader *r, const char *part,
                            const json_t *component)
{
    const json_t *pattern = json_object_get(component, "pattern");
    const char *text = dsi_json_text(pattern, "String", NULL);
    const char *regex = dsi_json_text(pattern, "Regex", NULL);
    char what[200];
    snprintf(what, sizeof what, "tokenizer: %.120s: %s", r->name, part);
    if (text || regex) return dsi_regex_new(what, text ? text : regex, text != NULL);
    dsi_tokenizer_damaged(r, "%s: %.40s has no pattern", part, dsi_json_type(component));
    return NULL;
}

/* ---- vocabulary ---- */

/* Puts one more than the highest id, of the model and of added tokens, into *n.
 * Refuses an id far beyond the number of tokens, as memory is allocated per
 * id. */
static ds_status ids_count(const dsi_tokenizer_reader *r, json_t *vocab, const json_t *added,
                           uint32_t *n)
{
    const char *token;
    json_t *value;
    size_t i;
    json_int_t highest = -1;
    bool good = true;
    json_object_foreach(vocab, token, value)
    {
        json_int_t id = json_integer_value(value);
        good &= json_is_integer(value) && id >= 0;
        if (id > highest) highest = id;
    }
    json_array_foreach(added, i, value)
    {
        json_int_t id = dsi_json_int(value, "id", -1);
        good &= id >= 0 && dsi_json_text(value, "content", "")[0];
        if (id > highest) highest = id;
    }
    size_t count = json_object_size(vocab) + json_array_size(added);
    if (!good) return dsi_tokenizer_damaged(r, "a token without an id");
    if (!count) return dsi_tokenizer_damaged(r, "there are no tokens");
    if (highest > (json_int_t)(10 * count + 1000000))
        return dsi_tokenizer_damaged(r, "id %lld of %zu tokens", (long long)highest, count);
    *n = (uint32_t)highest + 1;
    return DS_OK;
}

/* The model's tokens; ids without a token stay empty. */
static ds_status vocab_read(dsi_tokenizer_reader *r, json_t *vocab, const json_t *added)
{
    uint32_t n = 0;
    const char *token;
    json_t *value;
    if (!json_is_object(vocab)) return dsi_tokenizer_damaged(r, "model: no \"vocab\"");
    ds_status status = ids_count(r, vocab, added, &n);
    if (status != DS_OK) return status;
    dsi_vocab_init(&r->t->bpe.vocab, n);
    json_object_foreach(vocab, token, value) dsi_vocab_add(
        &r->t->bpe.vocab, (uint32_t)json_integer_value(value), token, r->byte_level, false);
    return DS_OK;
}

/* Looks up the ids of the 256 bytes: in the byte-level alphabet, or as <0xNN>.
 * A byte without a token has DSI_NO_TOKEN. */
static void byte_tokens_read(dsi_tokenizer_reader *r)
{
    dsi_bpe *b = &r->t->bpe;
    for (int i = 0; i < 256; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
        b->byte_token[i] = b->byte_level ? dsi_vocab_find(&b->vocab, &(char){(char)i}, 1)
                                         : dsi_vocab_find_text(&b->vocab, name);
    }
}

/* ---- merges ---- */

/* The parts of a merge, "left right" or ["left", "right"]: owned copies. */
typedef struct Merge {
    char *left, *right;
} Merge;

/* False if json is neither form; then *m is unchanged. */
static bool merge_parts(const json_t *json, Merge *m)
{
    const char *line = json_string_value(json);
    const char *left = json_string_value(json_array_get(json, 0));
    const char *right = json_string_value(json_array_get(json, 1));
    if (!line) {
        if (!left || !right || json_array_size(json) != 2) return false;
        *m = (Merge){dsi_strdup(left), dsi_strdup(right)};
        return true;
    }
    const char *space = strchr(line, ' ');
    if (!space || strchr(space + 1, ' ')) return false;
    *m = (Merge){dsi_strdup(line), dsi_strdup(space + 1)};
    m->left[space - line] = 0;
    return true;
}

/* A merge refers to three tokens by their text, all of which must exist. */
static ds_status merge_read(dsi_tokenizer_reader *r, const json_t *json, uint32_t rank)
{
    dsi_bpe *b = &r->t->bpe;
    Merge m;
    if (!merge_parts(json, &m))
        return dsi_tokenizer_damaged(r, "model: merge %u is not two tokens", rank);
    dsi_text both = dsi_text_of("%s%s", m.left, m.right);
    uint32_t left = dsi_vocab_find_text(&b->vocab, m.left);
    uint32_t right = dsi_vocab_find_text(&b->vocab, m.right);
    uint32_t id = dsi_vocab_find_text(&b->vocab, both.s);
    ds_status status = DS_OK;
    if (left == DSI_NO_TOKEN || right == DSI_NO_TOKEN || id == DSI_NO_TOKEN)
        status = dsi_tokenizer_damaged(r, "model: merge %u, %.60s and %.60s: no such token", rank,
                                       m.left, m.right);
    else
        dsi_bpe_add_merge(b, left, right, rank, id);
    dsi_text_free(&both);
    dsi_free(m.left);
    dsi_free(m.right);
    return status;
}

/* Adds all merges; the place in the list is the rank. */
static ds_status merges_read(dsi_tokenizer_reader *r, const json_t *merges)
{
    const json_t *merge;
    size_t i;
    ds_status status = DS_OK;
    if (!json_is_array(merges)) return dsi_tokenizer_damaged(r, "model: no \"merges\"");
    dsi_bpe_init_merges(&r->t->bpe, json_array_size(merges));
    json_array_foreach(merges, i, merge)
    {
        if (status == DS_OK) status = merge_read(r, merge, (uint32_t)i);
    }
    return status;
}

/* ---- model ---- */

/* Refuses what would change ids and is not implemented, before memory is spent. */
static ds_status bpe_model_check(const dsi_tokenizer_reader *r, const json_t *model)
{
    const char *type = dsi_json_type(model);
    const json_t *dropout = json_object_get(model, "dropout");
    if (!json_is_object(model)) return dsi_tokenizer_damaged(r, "there is no \"model\"");
    if (*type ? strcmp(type, "BPE") != 0 : !json_object_get(model, "merges"))
        return dsi_tokenizer_unsupported(r, "model", model);
    if (json_number_value(dropout) > 0)
        return dsi_fail(DS_EINVAL, "tokenizer: %s: model: dropout is not implemented", r->name);
    if (*dsi_json_text(model, "continuing_subword_prefix", "") ||
        *dsi_json_text(model, "end_of_word_suffix", ""))
        return dsi_fail(
            DS_EINVAL,
            "tokenizer: %s: model: continuing_subword_prefix and end_of_word_suffix are "
            "not implemented",
            r->name);
    return DS_OK;
}

/* Tokens, merges and options; needs r->byte_level. */
static ds_status model_read(dsi_tokenizer_reader *r, const json_t *model, const json_t *added)
{
    dsi_bpe *b = &r->t->bpe;
    ds_status status = vocab_read(r, json_object_get(model, "vocab"), added);
    if (status == DS_OK) status = merges_read(r, json_object_get(model, "merges"));
    if (status != DS_OK) return status;
    b->byte_level = r->byte_level;
    b->byte_fallback = dsi_json_bool(model, "byte_fallback", false);
    b->fuse_unk = dsi_json_bool(model, "fuse_unk", false);
    b->ignore_merges = dsi_json_bool(model, "ignore_merges", false);
    const char *unk = dsi_json_text(model, "unk_token", NULL);
    b->unk = unk ? dsi_vocab_find_text(&b->vocab, unk) : DSI_NO_TOKEN;
    if (unk && *unk && b->unk == DSI_NO_TOKEN)
        return dsi_tokenizer_damaged(r, "model: unk_token %.80s is not in the vocabulary", unk);
    byte_tokens_read(r);
    return DS_OK;
}

/* ---- added tokens ---- */

/* An added token has its id in the file; the model may know that id already,
 * then only its flags are new. A normalized one is looked for in normalized
 * text, so its content is normalized too, and so it is decoded. */
static ds_status added_token_read(dsi_tokenizer_reader *r, const json_t *token)
{
    dsi_vocab *v = &r->t->bpe.vocab;
    const char *content = dsi_json_text(token, "content", "");
    uint32_t id = (uint32_t)dsi_json_int(token, "id", 0);
    if (!v->at[id].text) dsi_vocab_add(v, id, content, r->byte_level, true);
    v->at[id].special = dsi_json_bool(token, "special", false);
    bool normalized = dsi_json_bool(token, "normalized", !v->at[id].special);
    dsi_text text = dsi_text_of("%s", content);
    ds_status status = normalized ? dsi_normalize(&r->t->normalizer, &text) : DS_OK;
    if (status == DS_OK && text.n) {
        if (normalized) dsi_vocab_set_decoded(v, id, text.s, r->byte_level);
        dsi_added_token t = {.content = text.s,
                             .n = text.n,
                             .id = id,
                             .single_word = dsi_json_bool(token, "single_word", false),
                             .lstrip = dsi_json_bool(token, "lstrip", false),
                             .rstrip = dsi_json_bool(token, "rstrip", false)};
        dsi_list_add(normalized ? &r->t->normalized : &r->t->raw, t);
    } else {
        dsi_text_free(&text);
    }
    return status;
}

/* Adds all added tokens; the normalizer must have been read before. */
static ds_status added_tokens_read(dsi_tokenizer_reader *r, const json_t *added)
{
    const json_t *token;
    size_t i;
    ds_status status = DS_OK;
    json_array_foreach(added, i, token)
    {
        if (status == DS_OK) status = added_token_read(r, token);
    }
    dsi_added_tokens_sort(&r->t->raw);
    dsi_added_tokens_sort(&r->t->normalized);
    return status;
}

/* ---- all of it ---- */

/* Reads the components in the order in which they depend on each other: the
 * pre-tokenizer decides whether the vocabulary is byte-level, and added tokens
 * pass through the normalizer. */
static ds_status file_read(dsi_tokenizer_reader *r, const json_t *root)
{
    const json_t *model = json_object_get(root, "model");
    const json_t *added = json_object_get(root, "added_tokens");
    ds_status status = bpe_model_check(r, model);
    if (status == DS_OK) status = dsi_read_normalizer(r, json_object_get(root, "normalizer"));
    if (status == DS_OK) status = dsi_read_pre_tokenizer(r, json_object_get(root, "pre_tokenizer"));
    if (status == DS_OK) status = model_read(r, model, added);
    if (status == DS_OK) status = added_tokens_read(r, added);
    if (status == DS_OK)
        status = dsi_read_post_processor(r, json_object_get(root, "post_processor"));
    if (status == DS_OK) status = dsi_read_decoder(r, json_object_get(root, "decoder"));
    return status;
}

ds_tokenizer *ds_tokenizer_from_json(const char *json, size_t bytes, const char *name)
{
    if (!json || !name) return dsi_null_operand("tokenizer_from_json");
    json_error_t error;
    dsi_tokenizer_reader r = {.name = name};
    json_t *root = json_loadb(json, bytes, JSON_ALLOW_NUL, &error);
    if (!json_is_object(root)) {
        json_decref(root);
        dsi_tokenizer_damaged(&r, "line %d: %s: expected a tokenizer.json", error.line, error.text);
        return NULL;
    }
    r.t = dsi_alloc(sizeof *r.t);
    r.t->words = dsi_alloc(DSI_CACHED_WORDS * sizeof *r.t->words);
    ds_status status = file_read(&r, root);
    json_decref(root);
    if (status == DS_OK) return r.t;
    ds_tokenizer_free(r.t);
    return NULL;
}

char *dsi_tokenizer_text(const char *path, dsi_text *name, size_t *bytes)
{
    bool folder = dsi_is_folder(path);
    *name = dsi_text_of("%s%s", path, folder ? "/tokenizer.json" : "");
    dsi_text vocab = dsi_text_of("%s/vocab.json", path);
    bool parts = folder && !dsi_file_exists(name->s) && dsi_file_exists(vocab.s);
    dsi_text_free(parts ? name : &vocab);
    if (parts) *name = vocab;
    char *text = parts ? dsi_tokenizer_of_gpt2(path) : dsi_file_read_regular(name->s, bytes);
    if (parts && text) *bytes = strlen(text);
    if (!parts && !text) dsi_fail_in("tokenizer", ds_error_status());
    return text;
}

ds_tokenizer *ds_tokenizer_load(const char *path)
{
    if (!path) return dsi_null_operand("tokenizer_load");
    dsi_text name = {0};
    size_t bytes = 0;
    char *text = dsi_tokenizer_text(path, &name, &bytes);
    ds_tokenizer *t = text ? ds_tokenizer_from_json(text, bytes, name.s) : NULL;
    dsi_free(text);
    dsi_text_free(&name);
    return t;
}
