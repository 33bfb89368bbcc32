/* tests/models/processors.c: what changes the scores of tokens, and stop
 * strings, beside transformers 5.24.
 *
 * Values: model._get_logits_processor(GenerationConfig(eos_token_id=[6, 13],
 * ...), ...) called with the same tokens and logits; of whole calls
 * model.generate with tests/golden/lm/models/gpt2-tied.
 * SPDX-License-Identifier: MIT */
#include "models/processors.h"
#include "check.h"
#include "folder.h"
#include "models/stop_strings.h"

#include <float.h>
#include <math.h>

enum { VOCAB = 16 };

#define LIST(...) \
    { \
        (const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t) \
    }
#define STOPS .stop = {6, 13}, .n_stop = 2

static const ds_token_ids words[] = {LIST(1),       LIST(6),       LIST(5, 2),
                                     LIST(3, 5, 8), LIST(4, 5, 9), LIST(7, 3, 5, 9)};
static const ds_sequence_bias biases[] = {{LIST(1), 2},    {LIST(1), -1.5},     {LIST(5, 2), 0.25},
                                          {LIST(5, 2), 4}, {LIST(3, 5, 2), -8}, {LIST(3, 2), 9}};

typedef struct Scores {
    int64_t past[5];
    int n, fresh;
    ds_generate_opts o;
    int changed; /* scores that are not the logits; -1: all but these are -inf */
    dsi_lm_choice want[4];
} Scores;

static const Scores rows[] = {
    {{3, 5, 3},
     3,
     1,
     {.suppress_tokens = LIST(2, 9, 99, -1), .begin_suppress_tokens = LIST(4)},
     2,
     {{-INFINITY, 2}, {-INFINITY, 9}}},
    {{3}, 1, 0, {.begin_suppress_tokens = LIST(4, 13)}, 2, {{-INFINITY, 4}, {-INFINITY, 13}}},
    {{3},
     1,
     0,
     {.begin_suppress_tokens = LIST(4, 13), .forced_bos_token_id = LIST(7)},
     -1,
     {{0, 7}, {0, 7}}},
    {{3, 7},
     2,
     1,
     {.begin_suppress_tokens = LIST(4, 13), .forced_bos_token_id = LIST(7)},
     2,
     {{-INFINITY, 4}, {-INFINITY, 13}}},
    {{3, 5},
     2,
     0,
     {STOPS, .bad_words_ids = words, .n_bad_words_ids = 6},
     3,
     {{-INFINITY, 1}, {-INFINITY, 2}, {-INFINITY, 8}}},
    {{3, 5},
     2,
     0,
     {.sequence_bias = biases, .n_sequence_bias = 6},
     2,
     {{0.0625F, 1}, {-6.9375F, 2}}},
    {{3, 5, 3},
     3,
     1,
     {.encoder_repetition_penalty = 2, .repetition_penalty = 1.25},
     2,
     {{-1.5625F, 3}, {-0.3125F, 5}}},
    {{1, 2, 3, 1}, 4, 1, {.encoder_no_repeat_ngram_size = 2}, 1, {{-INFINITY, 2}}},
    {{1, 2, 3, 1, 2},
     5,
     2,
     {.encoder_no_repeat_ngram_size = 3, .no_repeat_ngram_size = 2},
     1,
     {{-INFINITY, 3}}},
    {{3, 5}, 2, 1, {STOPS, .min_length = 3}, 2, {{-INFINITY, 6}, {-INFINITY, 13}}},
    {{3, 5, 4}, 3, 2, {STOPS, .min_length = 9, .min_new_tokens = 2}, 0, {{0, 0}}},
    {{3, 5, 4},
     3,
     2,
     {.max_new_tokens = 3, .forced_eos_token_id = LIST(6, 10)},
     -1,
     {{0, 6}, {0, 10}}},
    {{3, 5, 4, 1},
     4,
     3,
     {STOPS, .exponential_decay_length_penalty = {1, 1.5}},
     2,
     {{0.703125F, 6}, {0.84375F, 13}}},
    {{3, 5, 4, 1},
     4,
     2,
     {STOPS, .exponential_decay_length_penalty = {1, 0.5}, .suppress_tokens = LIST(13),
      .min_new_tokens = 3},
     2,
     {{-INFINITY, 6}, {-INFINITY, 13}}},
    {{3, 5},
     2,
     1,
     {STOPS, .exponential_decay_length_penalty = {INT64_MIN, 0.5}},
     2,
     {{-4.375F, 6}, {0, 13}}},
};

static void scores_of_transformers(void **state)
{
    (void)state;
    for (int s = 0; s < (int)(sizeof rows / sizeof *rows); s++) {
        const Scores *r = &rows[s];
        float logits[VOCAB], want[VOCAB];
        dsi_lm_choice c[VOCAB];
        for (int i = 0; i < VOCAB; i++) {
            logits[i] = (float)((i * i * 37 + 11 * i + s * 5) % 97) / 16 - 3;
            want[i] = r->changed < 0 ? -INFINITY : logits[i];
        }
        for (int i = 0; i < (r->changed < 0 ? 2 : r->changed); i++)
            want[r->want[i].id] = r->want[i].logit;
        dsi_lm_scores(logits, VOCAB, r->past, r->n, r->fresh, &r->o, c);
        for (int i = 0; i < VOCAB; i++) CHECK(c[i].logit == want[i] && c[i].id == i);
        CHECK(dsi_lm_processes(&r->o));
    }
    const float odd[] = {0.5F, INFINITY, -INFINITY, NAN};
    const ds_generate_opts o = {.remove_invalid_values = true};
    dsi_lm_choice c[4];
    dsi_lm_scores(odd, 4, rows[0].past, 1, 0, &o, c);
    CHECK(c[0].logit == 0.5F && c[1].logit == FLT_MAX && c[2].logit == -FLT_MAX && c[3].logit == 0);
}

/* Greedy tokens with drafts, and beams, whose log-probabilities are
 * renormalised; and the same in a batch with padding. */
static void calls_of_transformers(void **state)
{
    (void)state;
    static const int64_t prompt[] = {5, 9, 33, 70, 5, 0, 0, 5, 9, 5},
                         padding[] = {1, 1, 1, 1, 1, 0, 0, 1, 1, 1},
                         greedy[] = {216, 216, 80, 160, 160, 199, 214, 11},
                         beams[] = {216, 216, 80, 160, 160, 160, 160, 11,
                                    216, 216, 80, 160, 160, 160, 0,   11};
    const ds_token_ids bad[] = {LIST(222), LIST(9, 33)};
    float scores[4];
    ds_generate_opts o = {.max_new_tokens = 8,
                          .stop = {222},
                          .n_stop = 1,
                          .suppress_tokens = LIST(222),
                          .encoder_repetition_penalty = 1.5,
                          .repetition_penalty = 1.2,
                          .forced_eos_token_id = LIST(11),
                          .bad_words_ids = bad,
                          .n_bad_words_ids = 2,
                          .exponential_decay_length_penalty = {3, 1.4},
                          .min_new_tokens = 2,
                          .renormalize_logits = true};
    ds_scope *scope = ds_scope_open();
    ds_module *m = ds_pretrained_load(DS_GOLDEN "/lm/models/gpt2-tied");
    ds_tensor *ids = ds_from_data(DS_I64, ds_shape(1, 5), prompt);
    ds_tensor *both = ds_from_data(DS_I64, ds_shape(2, 5), prompt);
    ds_tensor *y = ds_generate_with(m, ids, o);
    CHECK(y && ds_size(y, 1) == 8 && !memcmp(ds_data(y), greedy, sizeof greedy));
    o.attention_mask = ds_from_data(DS_I64, ds_shape(2, 5), padding);
    y = ds_generate_with(m, both, o);
    CHECK(y && ds_size(y, 1) == 8 && !memcmp(ds_data(y), greedy, sizeof greedy));
    o.num_beams = 3, o.num_return_sequences = 2, o.sequences_scores = scores;
    y = ds_generate_with(m, both, o);
    CHECK(y && ds_size(y, 0) == 4 && !memcmp(ds_data(y), beams, sizeof beams));
    CHECK_CLOSE(scores[0], -1.56183255, 1e-5);
    CHECK_CLOSE(scores[1], -1.60922825, 1e-5);
    ds_module_free(m);
    ds_scope_close(scope);
}

static void refusals(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    const ds_token_ids far[] = {LIST(3, 300)}, none[] = {{NULL, 0}};
    const struct {
        ds_generate_opts o;
        const char *message;
    } wrong[] = {
        {{.bad_words_ids = far, .n_bad_words_ids = 1},
         "generate: bad_words_ids has 300: expected tokens of the model, 0 to 256"},
        {{.bad_words_ids = none, .n_bad_words_ids = 1},
         "generate: bad_words_ids has a list of 0: expected 1 or more"},
        {{.sequence_bias = (ds_sequence_bias[]){{LIST(2), NAN}}, .n_sequence_bias = 1},
         "generate: sequence_bias has a bias that is no number"},
        {{.n_bad_words_ids = 2}, "generate: bad_words_ids is NULL: expected a list of 2"},
        {{.n_sequence_bias = 1}, "generate: sequence_bias is NULL: expected a list of 1"},
        {{.suppress_tokens = {NULL, 1}}, "generate: suppress_tokens is NULL: expected a list of 1"},
        {{.begin_suppress_tokens = {NULL, -1}},
         "generate: begin_suppress_tokens has a list of -1: expected 0 or more"},
        {{.top_k = -2}, "generate: top_k is -2: expected -1 or more"},
        {{.pad_token_id = -7}, "generate: pad_token_id is -7: expected a token"},
        {{.attention_mask = ds_ones(DS_I64, ds_shape(2))},
         "generate: attention_mask is int64 [2]: expected int64 [1, 2], as ids"},
        {{.attention_mask = ds_from_data(DS_I64, ds_shape(1, 2), (int64_t[]){1, 0})},
         "generate: attention_mask: row 0 has padding behind token 0: expected it on the left"},
        {{.forced_eos_token_id = LIST(-4)}, "generate: forced_eos_token_id has -4: expected"},
        {{.forced_bos_token_id = LIST(4, 5), .suppress_tokens = LIST(5, 6, 4)},
         "generate: forced_bos_token_id: all of its 2 tokens are suppress_tokens"},
        {{.encoder_repetition_penalty = -1},
         "generate: repetition_penalty 1, encoder_repetition_penalty -1: expected more than 0"},
        {{.min_length = -1}, "min_new_tokens 0, min_length -1: expected 0 or more"},
        {{.exponential_decay_length_penalty = {1, -2}},
         "generate: exponential_decay_length_penalty has the factor -2: expected 0 or more"},
        {{.top_h = 2}, "generate: min_p 0, typical_p 0, top_h 2: expected 0 to 1"},
        {{.stop_strings = (const char *const[]){"x"}, .n_stop_strings = 1},
         "generate: stop_strings \"x\" ...: expected a tokenizer beside them"},
    };
    ds_module *m = ds_pretrained_load(DS_GOLDEN "/lm/models/gpt2-tied");
    for (int i = 0; i < (int)(sizeof wrong / sizeof *wrong); i++) {
        CHECK(!ds_generate_with(m, ds_full(DS_I64, ds_shape(1, 2), 1), wrong[i].o));
        CHECK_ERROR(wrong[i].message);
    }
    ds_module_free(m);
    ds_scope_close(scope);
}

/* ---- stop strings ---- */

/* The last token completes the text; examples are those of transformers'
 * StopStringCriteria. A byte of a character may be a token. */
static void stop_strings_end(void **state)
{
    (void)state;
    static const char byte_level[] =
        "{\"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {\"s\": 0, \"st\": 1, \"op\": "
        "2, "
        "\"stop\": 3, \"opera\": 4, \"sto\": 5, \"pper\": 6, \"las\": 7, \"topper\": 8, \"to\": 9, "
        "\"pped\": 10, \"at\": 11, \"tion\": 12, \"\xC4\xA0s\": 13, \"\xC3\x83\": 14, "
        "\"\xC2\xA9\": 15}}, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "
        "false}, \"decoder\": {\"type\": \"ByteLevel\"}, \"added_tokens\": [{\"id\": 16, "
        "\"content\": \"<end>\", \"special\": true}]}";
    static const char fallback[] =
        "{\"model\": {\"type\": \"BPE\", \"merges\": [], \"byte_fallback\": true, \"vocab\": "
        "{\"s\": 0, \"t\": 1, \"op\": 2, \"\xE2\x96\x81s\": 3, \"<0xC3>\": 4, \"<0xA9>\": 5}}, "
        "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": "
        "{\"String\": \"\xE2\x96\x81\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, "
        "{\"type\": \"Fuse\"}, {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": "
        "0}]}}";
    static const struct {
        int64_t ids[4];
        int n;
        bool fallback, ends;
        const char *stop;
    } cases[] = {{{1, 2}, 2, false, true, "stop"},       {{3}, 1, false, true, "stop"},
                 {{1, 4}, 2, false, true, "stop"},       {{5, 6}, 2, false, true, "stop"},
                 {{7, 8}, 2, false, true, "stop"},       {{0, 9, 10}, 3, false, true, "stop"},
                 {{3, 11}, 2, false, false, "stop"},     {{1, 2, 11}, 3, false, false, "stop"},
                 {{1, 4, 12}, 3, false, false, "stop"},  {{11, 13}, 2, false, true, "t s"},
                 {{14, 15}, 2, false, true, "\xC3\xA9"}, {{11, 14}, 2, false, false, "\xC3\xA9"},
                 {{11, 16}, 2, false, true, "t<end>"},   {{11, 99}, 2, false, false, "at"},
                 {{3, 1}, 2, true, true, " st"},         {{3, 1, 2}, 3, true, true, "sto"},
                 {{4, 5}, 2, true, true, "\xC3\xA9"},    {{0, 1}, 2, true, false, " st"}};
    ds_tokenizer *t[] = {ds_tokenizer_from_json(byte_level, sizeof byte_level - 1, "bytes"),
                         ds_tokenizer_from_json(fallback, sizeof fallback - 1, "fallback")};
    CHECK(t[0] && t[1]);
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        const char *const stops[] = {"no such", cases[i].stop};
        ds_generate_opts o = {
            .stop_strings = stops, .n_stop_strings = 2, .tokenizer = t[cases[i].fallback]};
        CHECK(dsi_lm_check_stop_strings(&o));
        CHECK_INT(dsi_lm_stop_string_ends(&o, cases[i].ids, cases[i].n), cases[i].ends);
    }
    ds_tokenizer_free(t[0]);
    ds_tokenizer_free(t[1]);
}

/* ---- generation_config.json ---- */

static void file_write(const char *name, const char *text)
{
    FILE *f = fopen(folder_path(name), "w");
    CHECK(f && fputs(text, f) >= 0 && !fclose(f));
}

static ds_module *folder_model(void)
{
    folder_make();
    file_write("config.json", "{\"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": 20, "
                              "\"n_embd\": 8, \"n_layer\": 1, \"n_head\": 1, \"n_positions\": 16}");
    return ds_pretrained_load(folder_path(""), .no_weights = true);
}

/* A second call of the same file has the same lists. */
static void options_of_a_folder(void **state)
{
    (void)state;
    ds_module *m = folder_model();
    file_write("generation_config.json",
               "{\"suppress_tokens\": [4, -1], \"begin_suppress_tokens\": [7], \"bad_words_ids\": "
               "[[3], [1, 2]], \"sequence_bias\": [[[5, 6], -2]], \"forced_bos_token_id\": 8, "
               "\"forced_eos_token_id\": [0, 9], \"exponential_decay_length_penalty\": [2, 1.5], "
               "\"min_length\": 3, \"encoder_repetition_penalty\": 1.5, \"top_h\": 0.5, "
               "\"encoder_no_repeat_ngram_size\": 2, \"remove_invalid_values\": true, "
               "\"renormalize_logits\": true, \"stop_strings\": [\"a\", \"bc\"]}");
    ds_generate_opts o = ds_generation_config(m), same = ds_generation_config(m);
    CHECK(!memcmp(&o, &same, sizeof o));
    CHECK(o.suppress_tokens.n == 2 && o.suppress_tokens.ids[1] == -1);
    CHECK(o.begin_suppress_tokens.n == 1 && o.begin_suppress_tokens.ids[0] == 7);
    CHECK(o.n_bad_words_ids == 2 && o.bad_words_ids[1].n == 2 && o.bad_words_ids[1].ids[1] == 2);
    CHECK(o.n_sequence_bias == 1 && o.sequence_bias[0].sequence.ids[1] == 6);
    CHECK(o.sequence_bias[0].bias == -2 && o.forced_bos_token_id.ids[0] == 8);
    CHECK(o.forced_eos_token_id.n == 2 && o.forced_eos_token_id.ids[1] == 9);
    CHECK(o.exponential_decay_length_penalty.start == 2 && o.min_length == 3);
    CHECK(o.exponential_decay_length_penalty.factor == 1.5 && o.top_h == 0.5);
    CHECK(o.encoder_repetition_penalty == 1.5 && o.encoder_no_repeat_ngram_size == 2);
    CHECK(o.remove_invalid_values && o.renormalize_logits);
    CHECK(o.n_stop_strings == 2 && !strcmp(o.stop_strings[1], "bc"));
    file_write("generation_config.json",
               "{\"min_length\": 3, \"min_new_tokens\": 0, \"stop_strings\": \"x\", "
               "\"forced_bos_token_id\": null}");
    o = ds_generation_config(m);
    CHECK(!o.min_length && o.n_stop_strings == 1 && !o.forced_bos_token_id.n);
    CHECK(!o.suppress_tokens.n && !o.n_bad_words_ids);
    ds_module_free(m);
    folder_remove();
}

/* Each wrong value is named, with its file and key; ds_generate refuses the
 * options. */
static void wrong_values_of_a_folder(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"\"suppress_tokens\": 5", "suppress_tokens is 5: expected a list of token ids"},
        {"\"suppress_tokens\": [1, \"a\"]", "suppress_tokens is [1,\"a\"]: expected a list of"},
        {"\"eos_token_id\": [2, \"x\"]", "eos_token_id is [2,\"x\"]: expected a token id, or a"},
        {"\"forced_eos_token_id\": 1.5", "forced_eos_token_id is 1.5: expected a token id, or a"},
        {"\"forced_bos_token_id\": 20", "forced_bos_token_id has 20: expected tokens of the"},
        {"\"bad_words_ids\": [1]", "bad_words_ids is [1]: expected a list of lists of token ids"},
        {"\"bad_words_ids\": [[3, 21]]", "bad_words_ids has 21: expected tokens of the model, 0"},
        {"\"sequence_bias\": [[[1]]]", "sequence_bias is [[[1]]]: expected a list of [[token"},
        {"\"exponential_decay_length_penalty\": [1]",
         "exponential_decay_length_penalty is [1]: expected a list of an integer, and a factor of"},
        {"\"stop_strings\": [\"\"]", "stop_strings is [\"\"]: expected a text, or a list of texts"},
        {"\"min_length\": -2", "min_length is -2: expected an integer of 0 or more"},
        {"\"top_h\": 1.5", "top_h is 1.5: expected a number from 0 to 1"},
        {"\"renormalize_logits\": 1", "renormalize_logits is 1: expected true or false"},
        {"\"temperature\": \"hot\"", "temperature is \"hot\": expected a number of 0 or more"},
        {"\"early_stopping\": \"no\"",
         "early_stopping is \"no\": expected true, false or \"never\""},
    };
    ds_module *m = folder_model();
    for (int i = 0; i < (int)(sizeof wrong / sizeof *wrong); i++) {
        char text[200];
        snprintf(text, sizeof text, "{%s}", wrong[i][0]);
        file_write("generation_config.json", text);
        ds_generate_opts o = ds_generation_config(m);
        ds_scope *scope = ds_scope_open();
        CHECK(!ds_generate_with(m, ds_full(DS_I64, ds_shape(1, 2), 1), o));
        snprintf(text, sizeof text, "/generation_config.json: %s", wrong[i][1]);
        CHECK_ERROR(text);
        ds_scope_close(scope);
    }
    ds_module_free(m);
    folder_remove();
}

TEST_MAIN(cmocka_unit_test(scores_of_transformers), cmocka_unit_test(calls_of_transformers),
          cmocka_unit_test(refusals), cmocka_unit_test(stop_strings_end),
          cmocka_unit_test(options_of_a_folder), cmocka_unit_test(wrong_values_of_a_folder))
