/* text/tokenizer_steps.c: normalizer, pre-tokenizer, post-processor and decoder
 * of a tokenizer.json. A component that is not known is refused by its type.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "libraries.h"
#include "regex.h"
#include "tokenizer_load.h"

#include <string.h>

#define MAX_DEPTH 8 /* of a Sequence in a Sequence */

/* The pattern by which GPT-2 splits text into words (its encoder.py). */
#define GPT2_PATTERN \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

typedef ds_status Read(dsi_tokenizer_reader *r, const json_t *component);

/* Reads a component by `read`; of a Sequence each member of the array named
 * `list`, in order. A missing component or null is none. */
static ds_status sequence_read(dsi_tokenizer_reader *r, const json_t *component, const char *part,
                               const char *list, Read *read, int depth)
{
    if (!component || json_is_null(component)) return DS_OK;
    if (!json_is_object(component) || depth > MAX_DEPTH)
        return dsi_tokenizer_damaged(r, "%s is not an object with a type", part);
    if (strcmp(dsi_json_type(component), "Sequence") != 0) return read(r, component);
    const json_t *items = json_object_get(component, list), *item;
    size_t i;
    if (!json_is_array(items))
        return dsi_tokenizer_damaged(r, "%s: a Sequence without \"%s\"", part, list);
    json_array_foreach(items, i, item)
    {
        ds_status status = sequence_read(r, item, part, list, read, depth + 1);
        if (status != DS_OK) return status;
    }
    return DS_OK;
}

/* ---- normalizer ---- */

/* One normalizer. BertNormalizer, Nmt and Precompiled are refused: no model that
 * this library trains uses them. */
static ds_status normalizer_read(dsi_tokenizer_reader *r, const json_t *c)
{
    static const struct {
        const char *name;
        int form;
    } forms[] = {
        {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
        {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
        {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
        {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
    };
    const char *type = dsi_json_type(c);
    dsi_normalizer_step step = {0};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (!strcmp(type, forms[i].name)) {
            step.form = forms[i].form;
            if (!dsi_utf8proc_open()) return ds_error_status();
            dsi_list_add(&r->t->normalizer, step);
            return DS_OK;
        }
    if (!strcmp(type, "Lowercase") || !strcmp(type, "StripAccents")) {
        step.kind = *type == 'L' ? DSI_NORMALIZE_LOWERCASE : DSI_NORMALIZE_STRIP_ACCENTS;
        if (!dsi_utf8proc_open()) return ds_error_status();
    } else if (!strcmp(type, "Prepend")) {
        step.kind = DSI_NORMALIZE_PREPEND;
        step.content = dsi_strdup(dsi_json_text(c, "prepend", ""));
    } else if (!strcmp(type, "Replace")) {
        step.kind = DSI_NORMALIZE_REPLACE;
        step.pattern = dsi_json_pattern(r, "normalizer", c);
        if (!step.pattern) return ds_error_status();
        step.content = dsi_strdup(dsi_json_text(c, "content", ""));
    } else if (!strcmp(type, "Strip")) {
        step.kind = DSI_NORMALIZE_STRIP;
        step.left = dsi_json_bool(c, "strip_left", true);
        step.right = dsi_json_bool(c, "strip_right", true);
    } else {
        return dsi_tokenizer_unsupported(r, "normalizer", c);
    }
    dsi_list_add(&r->t->normalizer, step);
    return DS_OK;
}

ds_status dsi_read_normalizer(dsi_tokenizer_reader *r, const json_t *component)
{
    return sequence_read(r, component, "normalizer", "normalizers", normalizer_read, 0);
}

/* ---- pre-tokenizer ---- */

/* Names as in the file; the order is that of dsi_split_behavior. */
static bool behavior_read(const char *name, dsi_split_behavior *behavior)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    for (int i = 0; i < 5; i++)
        if (!strcmp(name, names[i])) {
            *behavior = (dsi_split_behavior)i;
            return true;
        }
    return false;
}

/* Metaspace. Old files write add_prefix_space in place of prepend_scheme. */
static ds_status metaspace_read(dsi_tokenizer_reader *r, const json_t *c,
                                dsi_pre_tokenizer_step *step)
{
    const char *scheme = dsi_json_text(
        c, "prepend_scheme", dsi_json_bool(c, "add_prefix_space", true) ? "always" : "never");
    const char *replacement = dsi_json_text(c, "replacement", "\xE2\x96\x81");
    if (strcmp(scheme, "always") != 0 && strcmp(scheme, "first") != 0 &&
        strcmp(scheme, "never") != 0)
        return dsi_tokenizer_damaged(r, "pre_tokenizer: prepend_scheme \"%.40s\"", scheme);
    step->scheme = *scheme == 'a'   ? DSI_PREPEND_ALWAYS
                   : *scheme == 'f' ? DSI_PREPEND_FIRST
                                    : DSI_PREPEND_NEVER;
    if (dsi_json_bool(c, "split", true)) {
        step->behavior = DSI_SPLIT_MERGED_WITH_NEXT;
        step->pattern = dsi_regex_new("tokenizer: pre_tokenizer", replacement, true);
        if (!step->pattern) return ds_error_status();
    }
    step->replacement = dsi_strdup(replacement);
    return DS_OK;
}

/* Fills the step of a Split. */
static ds_status split_read(dsi_tokenizer_reader *r, const json_t *c, dsi_pre_tokenizer_step *step)
{
    const char *behavior = dsi_json_text(c, "behavior", "");
    if (!behavior_read(behavior, &step->behavior))
        return dsi_tokenizer_damaged(r, "pre_tokenizer: behavior \"%.40s\"", behavior);
    step->invert = dsi_json_bool(c, "invert", false);
    step->pattern = dsi_json_pattern(r, "pre_tokenizer", c);
    return step->pattern ? DS_OK : ds_error_status();
}

/* \w of the crate regex, which Whitespace uses. */
#define RUST_WORD DSI_WORD_SET "\\x{200c}\\x{200d}"

/* Returns the pattern of a pre-tokenizer that is only a name, and sets the
 * step's behavior; NULL if the type is not one of these. */
static const char *named_pattern(const json_t *c, dsi_pre_tokenizer_step *step)
{
    const char *type = dsi_json_type(c);
    step->behavior = DSI_SPLIT_ISOLATED;
    if (!strcmp(type, "Digits")) {
        if (!dsi_json_bool(c, "individual_digits", false)) step->behavior = DSI_SPLIT_CONTIGUOUS;
        return "\\p{N}";
    }
    if (!strcmp(type, "Punctuation")) {
        behavior_read(dsi_json_text(c, "behavior", "Isolated"), &step->behavior);
        return "[\\p{P}!-/:-@\\[-`{-~]";
    }
    step->behavior = DSI_SPLIT_REMOVED;
    if (!strcmp(type, "WhitespaceSplit")) return "\\s";
    step->invert = true;
    return !strcmp(type, "Whitespace") ? "[" RUST_WORD "]+|[^" RUST_WORD "\\s]+" : NULL;
}

/* One pre-tokenizer. Those behind ByteLevel split what is in its alphabet, as in
 * Falcon's file. */
static ds_status pre_tokenizer_read(dsi_tokenizer_reader *r, const json_t *c)
{
    const char *type = dsi_json_type(c);
    dsi_pre_tokenizer_step step = {0};
    ds_status status = DS_OK;
    if (r->byte_level && !r->t->pre_tokenizer.alphabet_from)
        r->t->pre_tokenizer.alphabet_from = r->t->pre_tokenizer.n;
    if (!strcmp(type, "ByteLevel")) {
        if (r->byte_level)
            return dsi_tokenizer_damaged(r, "pre_tokenizer: ByteLevel after ByteLevel");
        r->byte_level = true;
        step.prefix_space = dsi_json_bool(c, "add_prefix_space", true);
        step.behavior = DSI_SPLIT_ISOLATED;
        if (dsi_json_bool(c, "use_regex", true))
            step.pattern = dsi_regex_new("tokenizer: pre_tokenizer", GPT2_PATTERN, false);
        if (dsi_json_bool(c, "use_regex", true) && !step.pattern) return ds_error_status();
    } else if (!strcmp(type, "Metaspace")) {
        status = metaspace_read(r, c, &step);
    } else if (!strcmp(type, "Split")) {
        status = split_read(r, c, &step);
    } else if (!strcmp(type, "CharDelimiterSplit")) {
        const char *delimiter = dsi_json_text(c, "delimiter", " ");
        step.pattern = dsi_regex_new("tokenizer: pre_tokenizer", delimiter, true);
        if (!step.pattern) return ds_error_status();
    } else {
        const char *pattern = named_pattern(c, &step);
        if (!pattern) return dsi_tokenizer_unsupported(r, "pre_tokenizer", c);
        step.pattern = dsi_regex_new("tokenizer: pre_tokenizer", pattern, false);
        if (!step.pattern) return ds_error_status();
    }
    if (status == DS_OK) dsi_list_add(&r->t->pre_tokenizer, step);
    return status;
}

ds_status dsi_read_pre_tokenizer(dsi_tokenizer_reader *r, const json_t *component)
{
    return sequence_read(r, component, "pre_tokenizer", "pretokenizers", pre_tokenizer_read, 0);
}

/* ---- post-processor ---- */

/* Appends the ids of the template's special token `name` to *to. */
static ds_status template_token(dsi_tokenizer_reader *r, const json_t *c, const char *name,
                                ds_tokens *to)
{
    const json_t *token = json_object_get(json_object_get(c, "special_tokens"), name);
    const json_t *ids = json_object_get(token, "ids"), *id;
    size_t i;
    if (!json_is_array(ids))
        return dsi_tokenizer_damaged(r, "post_processor: no ids of special token %.80s", name);
    json_array_foreach(ids, i, id)
    {
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value >= r->t->bpe.vocab.n)
            return dsi_tokenizer_damaged(r, "post_processor: %.80s has an id that no token has",
                                         name);
        dsi_tokens_add(to, (uint32_t)value);
    }
    return DS_OK;
}

/* TemplateProcessing: of "single", special tokens before and after the text.
 * "pair" is for two texts, which language models do not have. */
static ds_status template_read(dsi_tokenizer_reader *r, const json_t *c)
{
    const json_t *items = json_object_get(c, "single"), *item;
    size_t i;
    bool text_seen = false;
    json_array_foreach(items, i, item)
    {
        const char *name = dsi_json_text(json_object_get(item, "SpecialToken"), "id", NULL);
        if (!name) {
            text_seen = true;
            continue;
        }
        ds_status status = template_token(r, c, name, text_seen ? &r->t->after : &r->t->before);
        if (status != DS_OK) return status;
    }
    return text_seen ? DS_OK
                     : dsi_tokenizer_damaged(r, "post_processor: \"single\" has no Sequence");
}

/* Appends the id of "sep" or "cls" of RobertaProcessing and BertProcessing,
 * which is [text, id]. */
static ds_status pair_read(dsi_tokenizer_reader *r, const json_t *c, const char *key, ds_tokens *to)
{
    const json_t *id = json_array_get(json_object_get(c, key), 1);
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= r->t->bpe.vocab.n)
        return dsi_tokenizer_damaged(r, "post_processor: \"%s\" is not [token, id]", key);
    dsi_tokens_add(to, (uint32_t)json_integer_value(id));
    return DS_OK;
}

/* Reads one post-processor: only special tokens around the text matter for
 * ids. */
static ds_status post_processor_read(dsi_tokenizer_reader *r, const json_t *c)
{
    const char *type = dsi_json_type(c);
    if (!strcmp(type, "ByteLevel")) { /* it changes offsets, not ids */
        r->t->trim_offsets = dsi_json_bool(c, "trim_offsets", true);
        return DS_OK;
    }
    if (!strcmp(type, "TemplateProcessing")) return template_read(r, c);
    if (!strcmp(type, "RobertaProcessing") || !strcmp(type, "BertProcessing")) {
        ds_status status = pair_read(r, c, "cls", &r->t->before);
        return status == DS_OK ? pair_read(r, c, "sep", &r->t->after) : status;
    }
    return dsi_tokenizer_unsupported(r, "post_processor", c);
}

ds_status dsi_read_post_processor(dsi_tokenizer_reader *r, const json_t *component)
{
    return sequence_read(r, component, "post_processor", "processors", post_processor_read, 0);
}

/* ---- decoder ---- */

/* One decoder. */
static ds_status decoder_read(dsi_tokenizer_reader *r, const json_t *c)
{
    const char *type = dsi_json_type(c);
    dsi_decoder_step step = {0};
    if (!strcmp(type, "ByteLevel")) {
        step.kind = DSI_DECODE_BYTE_LEVEL;
        if (r->t->decoder.n) return dsi_tokenizer_unsupported(r, "decoder (not the first)", c);
    } else if (!strcmp(type, "ByteFallback")) {
        step.kind = DSI_DECODE_BYTE_FALLBACK;
    } else if (!strcmp(type, "Fuse")) {
        step.kind = DSI_DECODE_FUSE;
    } else if (!strcmp(type, "Replace")) {
        step.kind = DSI_DECODE_REPLACE;
        step.pattern = dsi_json_pattern(r, "decoder", c);
        if (!step.pattern) return ds_error_status();
        step.content = dsi_strdup(dsi_json_text(c, "content", ""));
    } else if (!strcmp(type, "Strip")) {
        step.kind = DSI_DECODE_STRIP;
        step.content = dsi_strdup(dsi_json_text(c, "content", " "));
        step.start = (int)dsi_json_int(c, "start", 0);
        step.stop = (int)dsi_json_int(c, "stop", 0);
    } else if (!strcmp(type, "Metaspace")) {
        const char *replacement = dsi_json_text(c, "replacement", "\xE2\x96\x81");
        step.kind = DSI_DECODE_METASPACE;
        step.pattern = dsi_regex_new("tokenizer: decoder", replacement, true);
        if (!step.pattern) return ds_error_status();
        step.content = dsi_strdup(" ");
        step.start = strcmp(dsi_json_text(c, "prepend_scheme", "always"), "never") != 0 &&
                     dsi_json_bool(c, "add_prefix_space", true);
    } else {
        return dsi_tokenizer_unsupported(r, "decoder", c);
    }
    dsi_list_add(&r->t->decoder, step);
    return DS_OK;
}

ds_status dsi_read_decoder(dsi_tokenizer_reader *r, const json_t *component)
{
    r->t->decoder.join_by_space = !component || json_is_null(component);
    return sequence_read(r, component, "decoder", "decoders", decoder_read, 0);
}
