/* models/generation_config.c: a folder's generation_config.json as options of
 * ds_generate.
 *
 * Invariants: lists of the options are of the Generation that the model keeps,
 * and texts of its json; it is replaced when the file has changed.
 * SPDX-License-Identifier: MIT */
#include "choose.h"
#include "lm.h"

#include "base/error.h"
#include "base/list.h"
#include "base/log.h"
#include "base/text.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Generation {
    json_t *json; /* of the file */
    ds_generate_opts o;
    DSI_LIST(void *) /* owned: arrays of o */
} Generation;

void dsi_lm_generation_free(void *generation)
{
    Generation *g = generation;
    if (!g) return;
    json_decref(g->json);
    for (int i = 0; i < g->n; i++) dsi_free(g->at[i]);
    dsi_list_free(g);
    dsi_free(g);
}

typedef struct Reading {
    const char *path;
    Generation *to;
    bool failed; /* the message has been written */
} Reading;

/* The value of a key; NULL if it is absent, null or an empty list. */
static const json_t *value_of(const Reading *r, const char *key)
{
    const json_t *value = json_object_get(r->to->json, key);
    bool empty = json_is_array(value) && !json_array_size(value);
    return json_is_null(value) || empty ? NULL : value;
}

/* Writes the message; of the first wrong value alone. */
static void reading_fail(Reading *r, const char *key, const char *expected)
{
    char *text = json_dumps(json_object_get(r->to->json, key), JSON_ENCODE_ANY | JSON_COMPACT);
    if (!r->failed)
        dsi_fail(DS_EFORMAT, "%s: %s is %.60s: expected %s", r->path, key, text ? text : "?",
                 expected);
    r->failed = true;
    free(text);
}

/* ---- numbers ---- */

typedef enum Kind { INTEGER, NUMBER, NUMBER_OR_ZERO, FLAG } Kind;

/* NUMBER_OR_ZERO: a 0 of the file is meant, DS_ZERO. */
#define OPTION(kind, key, low, high) \
    { \
#key, kind, offsetof(ds_generate_opts, key), low, high \
    }
static const struct {
    const char *key;
    Kind kind;
    size_t at;
    double low, high;
} numbers[] = {OPTION(FLAG, do_sample, 0, 1),
               OPTION(FLAG, remove_invalid_values, 0, 1),
               OPTION(FLAG, renormalize_logits, 0, 1),
               OPTION(NUMBER_OR_ZERO, temperature, 0, INFINITY),
               OPTION(NUMBER_OR_ZERO, top_p, 0, 1),
               OPTION(NUMBER, top_h, 0, 1),
               OPTION(NUMBER, min_p, 0, 1),
               OPTION(NUMBER, typical_p, 0, 1),
               OPTION(NUMBER, epsilon_cutoff, 0, 1),
               OPTION(NUMBER, eta_cutoff, 0, 1),
               OPTION(NUMBER_OR_ZERO, repetition_penalty, 0, INFINITY),
               OPTION(NUMBER_OR_ZERO, encoder_repetition_penalty, 0, INFINITY),
               OPTION(NUMBER_OR_ZERO, length_penalty, -INFINITY, INFINITY),
               OPTION(INTEGER, top_k, -1, INT32_MAX),
               OPTION(INTEGER, pad_token_id, -INFINITY, INFINITY),
               OPTION(INTEGER, prompt_lookup_num_tokens, 0, INT32_MAX),
               OPTION(INTEGER, max_new_tokens, 1, INT32_MAX),
               OPTION(INTEGER, min_new_tokens, 0, INT32_MAX),
               OPTION(INTEGER, min_length, 0, INT32_MAX),
               OPTION(INTEGER, no_repeat_ngram_size, 0, INT32_MAX),
               OPTION(INTEGER, encoder_no_repeat_ngram_size, 0, INT32_MAX),
               OPTION(INTEGER, num_beams, 1, INT32_MAX),
               OPTION(INTEGER, num_return_sequences, 1, INT32_MAX)};

static void number_read(Reading *r, size_t i)
{
    static const char *const kinds[] = {"an integer", "a number", "a number", "true or false"};
    const json_t *value = value_of(r, numbers[i].key);
    Kind kind = numbers[i].kind;
    void *to = (char *)&r->to->o + numbers[i].at;
    double x = json_number_value(value);
    bool fits = kind == FLAG      ? json_is_boolean(value)
                : kind == INTEGER ? json_is_integer(value)
                                  : json_is_number(value);
    if (!value) return;
    if (kind != FLAG) fits = fits && x >= numbers[i].low && x <= numbers[i].high;
    dsi_text expected = dsi_text_of("%s", kinds[kind]);
    if (kind != FLAG && isfinite(numbers[i].low) && isfinite(numbers[i].high) &&
        numbers[i].high < INT32_MAX)
        dsi_text_add(&expected, " from %g to %g", numbers[i].low, numbers[i].high);
    else if (kind != FLAG && isfinite(numbers[i].low))
        dsi_text_add(&expected, " of %g or more", numbers[i].low);
    if (!fits)
        reading_fail(r, numbers[i].key, expected.s);
    else if (kind == FLAG)
        *(bool *)to = json_is_true(value);
    else if (kind == INTEGER)
        *(int64_t *)to = json_integer_value(value);
    else
        *(double *)to = kind == NUMBER_OR_ZERO && x == 0 ? DS_ZERO : x;
    dsi_text_free(&expected);
}

/* ---- lists ---- */

/* Memory of the result: n elements of that size. */
static void *list_new(Reading *r, size_t n, size_t bytes)
{
    void *p = dsi_alloc(n * bytes);
    dsi_list_add(r->to, p);
    return p;
}

/* A list of integers, or a single one; .n -1: another value. */
static ds_token_ids ids_of(Reading *r, const json_t *value)
{
    size_t n = json_is_integer(value) ? 1 : json_array_size(value);
    int64_t *ids = list_new(r, n, sizeof *ids);
    bool fits = json_is_integer(value) || json_is_array(value);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        fits &= json_is_integer(id);
        ids[i] = json_integer_value(id);
    }
    return (ds_token_ids){ids, fits ? (int64_t)n : -1};
}

/* `single`: an integer is a list of one. */
static void ids_read(Reading *r, const char *key, bool single, ds_token_ids *to)
{
    const json_t *value = value_of(r, key);
    if (!value) return;
    ds_token_ids list = ids_of(r, value);
    if (list.n > 0 && (single || json_is_array(value)))
        *to = list;
    else
        reading_fail(r, key, single ? "a token id, or a list of them" : "a list of token ids");
}

static void bad_words_read(Reading *r)
{
    const json_t *value = value_of(r, "bad_words_ids");
    size_t n = json_array_size(value);
    ds_token_ids *words = list_new(r, n, sizeof *words);
    bool fits = !value || json_is_array(value);
    for (size_t i = 0; i < n; i++) {
        const json_t *word = json_array_get(value, i);
        words[i] = ids_of(r, word);
        fits &= json_is_array(word) && words[i].n > 0;
    }
    if (!fits) reading_fail(r, "bad_words_ids", "a list of lists of token ids");
    r->to->o.bad_words_ids = words;
    r->to->o.n_bad_words_ids = fits ? (int64_t)n : 0;
}

static void biases_read(Reading *r)
{
    const json_t *value = value_of(r, "sequence_bias");
    size_t n = json_array_size(value);
    ds_sequence_bias *biases = list_new(r, n, sizeof *biases);
    bool fits = !value || json_is_array(value);
    for (size_t i = 0; i < n; i++) {
        const json_t *pair = json_array_get(value, i), *ids = json_array_get(pair, 0),
                     *bias = json_array_get(pair, 1);
        biases[i] = (ds_sequence_bias){ids_of(r, ids), json_number_value(bias)};
        fits &= json_is_array(ids) && biases[i].sequence.n > 0 && json_is_number(bias);
    }
    if (!fits) reading_fail(r, "sequence_bias", "a list of [[token ids], bias]");
    r->to->o.sequence_bias = biases;
    r->to->o.n_sequence_bias = fits ? (int64_t)n : 0;
}

static void decay_read(Reading *r)
{
    const char *key = "exponential_decay_length_penalty";
    const json_t *value = value_of(r, key), *start = json_array_get(value, 0),
                 *factor = json_array_get(value, 1);
    if (!value) return;
    double x = json_number_value(factor);
    if (!json_is_integer(start) || !json_is_number(factor) || x < 0)
        reading_fail(r, key, "a list of an integer, and a factor of 0 or more");
    r->to->o.exponential_decay_length_penalty = (ds_length_decay){json_integer_value(start),
                                                                  x == 0 ? DS_ZERO : x};
}

static void stop_strings_read(Reading *r)
{
    const json_t *value = value_of(r, "stop_strings");
    size_t n = json_is_string(value) ? 1 : json_array_size(value);
    const char **texts = list_new(r, n, sizeof *texts);
    bool fits = !value || json_is_string(value) || json_is_array(value);
    for (size_t i = 0; i < n; i++) {
        texts[i] = json_string_value(json_is_array(value) ? json_array_get(value, i) : value);
        fits &= texts[i] && *texts[i];
    }
    if (!fits) reading_fail(r, "stop_strings", "a text, or a list of texts");
    r->to->o.stop_strings = texts;
    r->to->o.n_stop_strings = fits ? (int)n : 0;
}

/* true, false or "never". */
static void early_stopping_read(Reading *r)
{
    const json_t *value = value_of(r, "early_stopping");
    const char *text = json_string_value(value);
    bool never = text && !strcmp(text, "never");
    if (value && !never && !json_is_boolean(value))
        reading_fail(r, "early_stopping", "true, false or \"never\"");
    r->to->o.early_stopping = json_is_true(value) ? DS_EARLY_STOPPING_TRUE
                              : never             ? DS_EARLY_STOPPING_NEVER
                                                  : DS_EARLY_STOPPING_FALSE;
}

/* ---- stop tokens ---- */

/* Values that are no integers, and ids beyond the table's end, are left out; so
 * are those outside of the vocabulary, which transformers' defaults put into
 * files of small models, and which never occur. */
static void stop_add(ds_generate_opts *o, const json_t *id, int64_t vocab)
{
    int64_t token = json_is_integer(id) ? json_integer_value(id) : -1;
    if (token >= 0 && token < vocab && o->n_stop < DS_MAX_STOP_TOKENS) o->stop[o->n_stop++] = token;
}

/* An id or a list of ids of that file. A key that is there replaces earlier
 * ids, an absent one leaves them: so generation_config.json has precedence over
 * config.json. */
static void stop_read(ds_generate_opts *o, const json_t *value, const char *file, int64_t vocab)
{
    size_t i;
    json_t *id;
    if (!value || json_is_null(value)) return;
    o->n_stop = 0;
    stop_add(o, value, vocab);
    json_array_foreach(value, i, id) stop_add(o, id, vocab);
    if (json_array_size(value) > DS_MAX_STOP_TOKENS)
        dsi_log(DSI_WARNING, "%s: eos_token_id has %zu ids, and the first %d end a row", file,
                json_array_size(value), DS_MAX_STOP_TOKENS);
}

/* Keys that change the tokens in transformers and have no option here, and the
 * value at which they do not; null, false and empty values never do. */
static const struct {
    const char *key;
    double neutral;
} unsupported[] = {{"constraints", 0},     {"diversity_penalty", 0},  {"dola_layers", 0},
                   {"force_words_ids", 0}, {"guidance_scale", 1},     {"num_beam_groups", 1},
                   {"penalty_alpha", 0},   {"watermarking_config", 0}};

static bool is_neutral(const json_t *value, double neutral)
{
    if (!value || json_is_null(value) || json_is_false(value)) return true;
    if (json_is_number(value)) return json_number_value(value) == neutral;
    return json_is_string(value) ? !json_string_length(value)
                                 : !json_array_size(value) && !json_object_size(value);
}

static void warn_of_unsupported(const json_t *json, const char *path)
{
    dsi_text keys = {0};
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++)
        if (!is_neutral(json_object_get(json, unsupported[i].key), unsupported[i].neutral))
            dsi_text_add(&keys, "%s%s", keys.n ? ", " : "", unsupported[i].key);
    if (keys.n) dsi_log(DSI_WARNING, "%s: not implemented, and without effect: %s", path, keys.s);
    dsi_text_free(&keys);
}

/* The file's 0 of top_k is "no limit", ours -1. min_new_tokens replaces
 * min_length, 0 too. */
static bool file_read(Reading *r, int64_t vocab)
{
    ds_generate_opts *o = &r->to->o;
    const json_t *eos = value_of(r, "eos_token_id");
    if (eos && ids_of(r, eos).n < 0)
        reading_fail(r, "eos_token_id", "a token id, or a list of them");
    stop_read(o, json_object_get(r->to->json, "eos_token_id"), r->path, vocab);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) number_read(r, i);
    if (value_of(r, "top_k") && !o->top_k) o->top_k = -1;
    if (value_of(r, "min_new_tokens")) o->min_length = 0;
    if (o->pad_token_id < 0) o->pad_token_id = 0; /* no token, in older files */
    early_stopping_read(r);
    ids_read(r, "suppress_tokens", false, &o->suppress_tokens);
    ids_read(r, "begin_suppress_tokens", false, &o->begin_suppress_tokens);
    ids_read(r, "forced_bos_token_id", true, &o->forced_bos_token_id);
    ids_read(r, "forced_eos_token_id", true, &o->forced_eos_token_id);
    bad_words_read(r);
    biases_read(r);
    decay_read(r);
    stop_strings_read(r);
    return !r->failed && dsi_lm_check_choice(r->path, o, vocab);
}

/* Options of config.json. */
static ds_generate_opts model_options(const dsi_lm *lm)
{
    ds_generate_opts o = {.pad_token_id = lm->config.pad < 0 ? 0 : lm->config.pad};
    int64_t vocab = lm->config.vocab, eos = lm->config.eos;
    if (eos >= 0 && eos < vocab) o.stop[o.n_stop++] = eos;
    stop_read(&o, json_object_get(lm->json, "eos_token_id"), "config.json", vocab);
    return o;
}

/* A missing or damaged generation_config.json is no failure: the options then
 * come from config.json, or are the defaults of the model's class. */
ds_generate_opts ds_generation_config(const ds_module *model)
{
    dsi_lm *lm = dsi_lm_of(model);
    if (!lm) return (ds_generate_opts){0};
    char path[4200];
    snprintf(path, sizeof path, "%s/generation_config.json", lm->folder ? lm->folder : "");
    json_t *json = lm->folder ? json_load_file(path, 0, NULL) : NULL;
    Generation *kept = lm->generation;
    if (kept && json_equal(kept->json, json)) {
        json_decref(json);
        return kept->o;
    }
    dsi_lm_generation_free(kept), lm->generation = NULL;
    if (!json) return model_options(lm);
    Generation *g = dsi_alloc(sizeof *g);
    g->json = json, g->o = model_options(lm);
    Reading r = {.path = path, .to = g};
    if (!file_read(&r, lm->config.vocab)) {
        dsi_lm_generation_free(g);
        return (ds_generate_opts){.n_stop = -1};
    }
    warn_of_unsupported(json, path);
    lm->generation = g;
    return g->o;
}
