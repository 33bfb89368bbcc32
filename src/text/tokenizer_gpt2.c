/* text/tokenizer_gpt2.c: the tokenizer of a folder that has no tokenizer.json: the
 * vocab.json and merges.txt of transformers' GPT2Tokenizer, with
 * tokenizer_config.json, special_tokens_map.json and added_tokens.json where
 * they are. OPT's folders are so.
 *
 * A tokenizer.json is made of them, as transformers does, and read as any other:
 * that is where values are checked.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "tokenizer_load.h"

#include <stdlib.h>
#include <string.h>

/* The files' values. NULL: there is no such file. */
typedef struct Files {
    json_t *vocab, *config, *special, *added;
} Files;

/* Another class may cut words otherwise, by rules that are not in the files. */
static ds_status class_check(const char *folder, const json_t *config)
{
    static const char *const known[] = {"GPT2Tokenizer", "GPT2TokenizerFast"};
    const char *class = dsi_json_text(config, "tokenizer_class", known[0]);
    if (!strcmp(class, known[0]) || !strcmp(class, known[1])) return DS_OK;
    return dsi_fail(DS_EINVAL,
                    "tokenizer: %s has no tokenizer.json, and vocab.json of a %.60s: expected "
                    "those of a GPT2Tokenizer; in Python, "
                    "AutoTokenizer.from_pretrained(..).save_pretrained(..) writes one",
                    folder, class);
}

/* ---- merges ---- */

/* "left right" a line; the first line may be "#version: ..". */
static ds_status merges_read(const char *folder, json_t *merges)
{
    dsi_text path = dsi_text_of("%s/merges.txt", folder);
    size_t bytes = 0;
    char *text = dsi_file_read_regular(path.s, &bytes);
    ds_status status = text ? DS_OK : dsi_fail_in("tokenizer", ds_error_status());
    for (char *line = text, *end = text + bytes; line && line < end;) {
        size_t n = strcspn(line, "\r\n");
        if (n && strncmp(line, "#version", 8) != 0 &&
            json_array_append_new(merges, json_stringn(line, n)) != 0) {
            status = dsi_fail(DS_EFORMAT, "tokenizer: %s: a line is not UTF-8", path.s);
            break;
        }
        line += n + 1;
    }
    dsi_free(text);
    dsi_text_free(&path);
    return status;
}

/* ---- added tokens ---- */

/* The id of a token, which gets the next one if it has none. */
static int64_t token_id(const Files *f, const json_t *tokens, const char *content)
{
    const json_t *token, *known = json_object_get(f->vocab, content);
    size_t i, more = 0;
    if (!known) known = json_object_get(f->added, content);
    json_array_foreach(tokens, i, token)
    {
        if (!strcmp(dsi_json_text(token, "content", ""), content))
            return dsi_json_int(token, "id", 0);
        more += !json_object_get(f->vocab, dsi_json_text(token, "content", ""));
    }
    if (known && !json_is_integer(known)) return -1;
    return known ? json_integer_value(known) : (int64_t)(json_object_size(f->vocab) + more);
}

/* Of a token that is its text, or an object with its flags; "": none. */
static const char *token_text(const json_t *token)
{
    return json_is_string(token) ? json_string_value(token) : dsi_json_text(token, "content", "");
}

/* token: as token_text takes it. Later ones of the same text do not count. */
static void token_add(const Files *f, json_t *tokens, const json_t *token, bool special)
{
    const char *content = token_text(token);
    const json_t *other;
    size_t i;
    json_array_foreach(tokens, i, other)
    {
        if (!strcmp(dsi_json_text(other, "content", ""), content)) return;
    }
    if (!*content) return;
    json_array_append_new(tokens,
                          json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id",
                                    (json_int_t)token_id(f, tokens, content), "content", content,
                                    "single_word", (int)dsi_json_bool(token, "single_word", false),
                                    "lstrip", (int)dsi_json_bool(token, "lstrip", false), "rstrip",
                                    (int)dsi_json_bool(token, "rstrip", false), "normalized",
                                    (int)dsi_json_bool(token, "normalized", !special), "special",
                                    (int)special));
}

/* A special token: of tokenizer_config.json, special_tokens_map.json, or the
 * class's; NULL: none. */
static const json_t *special_of(const Files *f, const char *key, const json_t *otherwise)
{
    const json_t *token = json_object_get(f->config, key);
    if (!token) token = json_object_get(f->special, key);
    return token ? token : otherwise;
}

/* In transformers' order: those without an id get the next ones so. */
static void tokens_add(const Files *f, json_t *tokens, const json_t *otherwise)
{
    static const char *const keys[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};
    const char *content;
    json_t *id;
    json_object_foreach(f->added, content, id)
    {
        json_t *text = json_string(content);
        token_add(f, tokens, text, false);
        json_decref(text);
    }
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        token_add(f, tokens, special_of(f, keys[i], i < 3 ? otherwise : NULL), true);
}

/* ---- the object ---- */

static json_t *template_part(const char *kind, const char *id)
{
    return json_pack("{s:{s:s, s:i}}", kind, "id", id, "type_id", 0);
}

static json_t *byte_level(bool add_prefix_space)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space",
                     (int)add_prefix_space, "trim_offsets", 1, "use_regex", 1);
}

/* Puts bos_token before the text and eos_token behind it, where the file asks
 * for them. */
static json_t *post_processor(const Files *f, const json_t *tokens, const json_t *otherwise)
{
    static const char *const asks[] = {"add_bos_token", "add_eos_token"}, *const keys[] = {
                                                                              "bos_token",
                                                                              "eos_token"};
    json_t *parts = json_array(), *special = json_object();
    for (int i = 0; i < 2; i++) {
        const json_t *token = special_of(f, keys[i], otherwise);
        const char *content = token_text(token);
        if (i) json_array_append_new(parts, template_part("Sequence", "A"));
        if (!dsi_json_bool(f->config, asks[i], false) || !*content) continue;
        json_array_append_new(parts, template_part("SpecialToken", content));
        json_object_set_new(special, content,
                            json_pack("{s:s, s:[I], s:[s]}", "id", content, "ids",
                                      (json_int_t)token_id(f, tokens, content), "tokens", content));
    }
    return json_pack("{s:s, s:o, s:[o, o], s:o}", "type", "TemplateProcessing", "single", parts,
                     "pair", template_part("Sequence", "A"), template_part("Sequence", "B"),
                     "special_tokens", special);
}

static json_t *root_of(const Files *f, json_t *merges)
{
    json_t *end = json_string("<|endoftext|>"), *tokens = json_array();
    tokens_add(f, tokens, end);
    json_t *root = json_pack(
        "{s:s, s:n, s:n, s:n, s:o, s:o, s:o, s:o, s:{s:s, s:O, s:o}}", "version", "1.0",
        "truncation", "padding", "normalizer", "pre_tokenizer",
        byte_level(dsi_json_bool(f->config, "add_prefix_space", false)), "post_processor",
        post_processor(f, tokens, end), "added_tokens", tokens, "decoder", byte_level(true),
        "model", "type", "BPE", "vocab", f->vocab, "merges", merges);
    json_decref(end);
    return root;
}

char *dsi_tokenizer_of_gpt2(const char *folder)
{
    Files f = {0};
    json_t *merges = json_array(), *root = NULL;
    char *text = NULL;
    ds_status status = dsi_json_object_read(folder, "vocab.json", true, &f.vocab);
    if (status == DS_OK)
        status = dsi_json_object_read(folder, "tokenizer_config.json", false, &f.config);
    if (status == DS_OK)
        status = dsi_json_object_read(folder, "special_tokens_map.json", false, &f.special);
    if (status == DS_OK)
        status = dsi_json_object_read(folder, "added_tokens.json", false, &f.added);
    if (status != DS_OK) dsi_fail_in("tokenizer", status);
    if (status == DS_OK) status = class_check(folder, f.config);
    if (status == DS_OK) status = merges_read(folder, merges);
    if (status == DS_OK)
        root = root_of(&f, merges);
    else
        json_decref(merges);
    char *json = root ? json_dumps(root, JSON_COMPACT) : NULL;
    if (json) text = dsi_strdup(json);
    free(json);
    json_decref(root);
    json_decref(f.vocab), json_decref(f.config), json_decref(f.special), json_decref(f.added);
    return text;
}
