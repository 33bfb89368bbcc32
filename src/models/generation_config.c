/* models/generation_config.c: a folder's generation_config.json as options of
 * ds_generate.
 * SPDX-License-Identifier: MIT */
#include "lm.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

/* Values that are no integers, and ids beyond the table's end, are left out. */
static void stop_add(ds_generate_opts *o, const json_t *id)
{
    if (json_is_integer(id) && o->n_stop < DS_MAX_STOP_TOKENS)
        o->stop[o->n_stop++] = json_integer_value(id);
}

/* An id or a list of ids of that file. A key that is there replaces earlier
 * ids, an absent one leaves them: so generation_config.json has precedence over
 * config.json. */
static void stop_read(ds_generate_opts *o, const json_t *value, const char *file)
{
    size_t i;
    json_t *id;
    if (!value || json_is_null(value)) return;
    o->n_stop = 0;
    stop_add(o, value);
    json_array_foreach(value, i, id) stop_add(o, id);
    if (json_array_size(value) > DS_MAX_STOP_TOKENS)
        dsi_log(DSI_WARNING, "%s: eos_token_id has %zu ids, and the first %d end a row", file,
                json_array_size(value), DS_MAX_STOP_TOKENS);
}

/* A number of the file, where 0 is meant: DS_ZERO. */
static double config_number(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);
    double x = json_number_value(value);
    return json_is_number(value) && x == 0 ? DS_ZERO : x;
}

/* true, false or "never". */
static ds_early_stopping early_stopping_read(const json_t *value)
{
    const char *text = json_string_value(value);
    return json_is_true(value)              ? DS_EARLY_STOPPING_TRUE
           : text && !strcmp(text, "never") ? DS_EARLY_STOPPING_NEVER
                                            : DS_EARLY_STOPPING_FALSE;
}

/* Keys that change the tokens in transformers and have no option here, and the
 * value at which they do not; null, false and empty values never do. */
static const struct {
    const char *key;
    double neutral;
} unsupported[] = {{"bad_words_ids", 0},
                   {"begin_suppress_tokens", 0},
                   {"constraints", 0},
                   {"diversity_penalty", 0},
                   {"dola_layers", 0},
                   {"encoder_no_repeat_ngram_size", 0},
                   {"encoder_repetition_penalty", 1},
                   {"exponential_decay_length_penalty", 0},
                   {"force_words_ids", 0},
                   {"forced_bos_token_id", -1},
                   {"forced_eos_token_id", -1},
                   {"guidance_scale", 1},
                   {"min_length", 0},
                   {"num_beam_groups", 1},
                   {"penalty_alpha", 0},
                   {"sequence_bias", 0},
                   {"stop_strings", 0},
                   {"suppress_tokens", 0},
                   {"top_h", 0},
                   {"watermarking_config", 0}};

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

/* A missing or damaged generation_config.json is no failure: the options then
 * come from config.json, or are the defaults of the model's class. The file's 0
 * of top_k is "no limit", ours -1. */
ds_generate_opts ds_generation_config(const ds_module *model)
{
    const dsi_lm *lm = dsi_lm_of(model);
    ds_generate_opts o = {0};
    if (!lm) return o;
    if (lm->config.eos >= 0) o.stop[o.n_stop++] = lm->config.eos;
    stop_read(&o, json_object_get(lm->json, "eos_token_id"), "config.json");
    o.pad_token_id = lm->config.pad < 0 ? 0 : lm->config.pad;
    char path[4200];
    snprintf(path, sizeof path, "%s/generation_config.json", lm->folder ? lm->folder : "");
    json_t *json = lm->folder ? json_load_file(path, 0, NULL) : NULL;
    if (!json) return o;
    stop_read(&o, json_object_get(json, "eos_token_id"), path);
    o.do_sample = json_is_true(json_object_get(json, "do_sample"));
    o.temperature = config_number(json, "temperature");
    o.top_p = config_number(json, "top_p");
    o.repetition_penalty = config_number(json, "repetition_penalty");
    const json_t *k = json_object_get(json, "top_k"), *pad = json_object_get(json, "pad_token_id");
    if (json_is_integer(k)) o.top_k = json_integer_value(k) ? json_integer_value(k) : -1;
    if (json_is_integer(pad)) o.pad_token_id = json_integer_value(pad);
    o.prompt_lookup_num_tokens = json_integer_value(
        json_object_get(json, "prompt_lookup_num_tokens"));
    o.max_new_tokens = json_integer_value(json_object_get(json, "max_new_tokens"));
    o.min_new_tokens = json_integer_value(json_object_get(json, "min_new_tokens"));
    o.no_repeat_ngram_size = json_integer_value(json_object_get(json, "no_repeat_ngram_size"));
    o.min_p = json_number_value(json_object_get(json, "min_p"));
    o.typical_p = json_number_value(json_object_get(json, "typical_p"));
    o.epsilon_cutoff = json_number_value(json_object_get(json, "epsilon_cutoff"));
    o.eta_cutoff = json_number_value(json_object_get(json, "eta_cutoff"));
    o.num_beams = json_integer_value(json_object_get(json, "num_beams"));
    o.num_return_sequences = json_integer_value(json_object_get(json, "num_return_sequences"));
    o.length_penalty = config_number(json, "length_penalty");
    o.early_stopping = early_stopping_read(json_object_get(json, "early_stopping"));
    warn_of_unsupported(json, path);
    json_decref(json);
    return o;
}
