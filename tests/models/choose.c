/* tests/models/choose.c: which tokens may be drawn, and the greedy one, beside
 * the logits processors of transformers 5.24 on the same logits: n-grams that
 * come once, stop tokens that are barred, top-h, min-p, typical-p, epsilon and
 * eta.
 * SPDX-License-Identifier: MIT */
#include "models/choose.h"
#include "check.h"
#include "folder.h"

enum { VOCAB = 16 };

typedef struct Choice {
    int64_t past[5];
    int n, prompt; /* tokens of past; those of them that are the prompt */
    ds_generate_opts o;
    int kept;
    int64_t ids[VOCAB], greedy;
} Choice;

static const Choice rows[] = {
    {{3, 5, 3, 5, 3},
     5,
     5,
     {.no_repeat_ngram_size = 2, .top_k = -1},
     15,
     {13, 9, 3, 2, 4, 15, 1, 7, 6, 11, 14, 8, 12, 10, 0},
     13},
    {{1, 2, 3, 1, 2},
     5,
     3,
     {.no_repeat_ngram_size = 3, .min_p = 0.05, .top_k = -1},
     7,
     {13, 9, 2, 4, 15, 1, 7},
     13},
    {{4, 4, 4},
     3,
     3,
     {.no_repeat_ngram_size = 1, .top_k = -1},
     15,
     {3, 2, 15, 1, 7, 6, 11, 14, 8, 12, 10, 5, 0, 13, 9},
     3},
    {{7, 8, 9},
     3,
     2,
     {.min_new_tokens = 2,
      .stop = {6, 13},
      .n_stop = 2,
      .min_p = 0.1,
      .top_k = -1,
      .temperature = 0.7},
     4,
     {3, 2, 4, 15},
     3},
    {{7, 8, 9},
     3,
     1,
     {.min_new_tokens = 2,
      .stop = {6, 13},
      .n_stop = 2,
      .min_p = 0.1,
      .top_k = -1,
      .temperature = 0.7},
     4,
     {3, 2, 4, 15},
     3},
    {{2, 2, 2, 2},
     4,
     2,
     {.no_repeat_ngram_size = 2,
      .min_new_tokens = 5,
      .stop = {2, 9},
      .n_stop = 2,
      .min_p = 0.02,
      .top_k = 5,
      .temperature = 1.3},
     5,
     {4, 15, 1, 7, 6},
     4},
    {{0, 1, 0},
     3,
     1,
     {.no_repeat_ngram_size = 2, .min_p = 0.2, .top_k = -1, .top_p = 0.9},
     7,
     {4, 15, 7, 6, 11, 14, 8},
     4},
    {{5},
     1,
     1,
     {.no_repeat_ngram_size = 3,
      .min_new_tokens = 1,
      .stop = {10},
      .n_stop = 1,
      .min_p = 0.3,
      .top_k = -1,
      .temperature = 2},
     9,
     {4, 15, 1, 7, 6, 11, 14, 8, 12},
     4},
    {{5, 1}, 2, 1, {.top_k = -1, .typical_p = 0.5}, 5, {15, 1, 7, 6, 11}, 4},
    {{5, 1}, 2, 1, {.top_k = -1, .typical_p = 0.2, .temperature = 3}, 3, {8, 12, 10}, 15},
    {{5, 1}, 2, 1, {.top_k = 9, .typical_p = 0.9, .top_p = 0.95}, 6, {6, 11, 14, 8, 12, 10}, 6},
    {{5, 1}, 2, 1, {.top_k = -1, .epsilon_cutoff = 0.05}, 6, {6, 11, 14, 8, 12, 10}, 6},
    {{5, 1}, 2, 1, {.top_k = -1, .epsilon_cutoff = 0.6}, 1, {14}, 14},
    {{5, 1}, 2, 1, {.top_k = -1, .eta_cutoff = 0.2}, 4, {8, 12, 10, 5}, 8},
    {{5, 1},
     2,
     1,
     {.top_k = -1, .eta_cutoff = 0.01, .temperature = 2},
     16,
     {5, 0, 13, 9, 3, 2, 4, 15, 1, 7, 6, 11, 14, 8, 12, 10},
     5},
    {{5, 1},
     2,
     1,
     {.top_k = 12, .min_p = 0.05, .typical_p = 0.8, .epsilon_cutoff = 0.03, .eta_cutoff = 0.1},
     4,
     {5, 0, 13, 9},
     5},
    {{5, 1}, 2, 1, {.top_k = -1, .top_h = 0.3}, 1, {5}, 5},
    {{5, 1}, 2, 1, {.top_k = -1, .top_h = 0.6, .temperature = 2}, 5, {5, 0, 13, 9, 3}, 5},
    {{5, 1}, 2, 1, {.top_k = 3, .top_h = 0.9}, 3, {0, 13, 9}, 0},
};

static void choices_of_transformers(void **state)
{
    (void)state;
    for (int s = 0; s < (int)(sizeof rows / sizeof *rows); s++) {
        const Choice *r = &rows[s];
        float logits[VOCAB];
        dsi_lm_choice c[VOCAB];
        for (int i = 0; i < VOCAB; i++)
            logits[i] = (float)((i * i * 37 + 11 * i + s * 5) % 97) / 16 - 3;
        int64_t fresh = r->n - r->prompt,
                kept = dsi_lm_choices(logits, VOCAB, r->past, r->n, fresh, &r->o, c);
        CHECK_INT(kept, r->kept);
        for (int i = 0; i < r->kept; i++) CHECK_INT(c[i].id, r->ids[i]);
        CHECK_INT(dsi_lm_choose(logits, VOCAB, r->past, r->n, fresh, &r->o, 0, c), r->greedy);
    }
}

/* Of a whole call: no two tokens come twice in a row; no stop token before the
 * tenth; a value that is refused. */
static void calls_with_them(void **state)
{
    (void)state;
    static const int64_t prompt[] = {5, 9, 33, 70, 5};
    ds_scope *scope = ds_scope_open();
    ds_module *m = ds_pretrained_load(DS_GOLDEN "/lm/models/gpt2-tied");
    ds_tensor *ids = ds_from_data(DS_I64, ds_shape(1, 5), prompt);
    ds_tensor *y = ds_generate(m, ids, 40, .no_repeat_ngram_size = 2);
    const int64_t *t = ds_data(y);
    CHECK_INT(ds_size(y, 1), 40);
    for (int i = 1; i < 40; i++)
        for (int k = 1; k < i; k++) CHECK(t[i] != t[k] || t[i - 1] != t[k - 1]);
    int64_t first = ((const int64_t *)ds_data(ds_generate(m, ids, 1)))[0];
    CHECK_INT(ds_size(ds_generate(m, ids, 20, .stop = {first}, .n_stop = 1), 1), 1);
    y = ds_generate(m, ids, 20, .stop = {first}, .n_stop = 1, .min_new_tokens = 10);
    CHECK(ds_size(y, 1) > 10);
    for (int i = 0; i < 10; i++) CHECK(((const int64_t *)ds_data(y))[i] != first);
    CHECK(!ds_generate(m, ids, 4, .min_p = 1.5));
    CHECK_ERROR("generate: min_p 1.5, typical_p 0, top_h 0: expected 0 to 1");
    CHECK(!ds_generate(m, ids, 4, .epsilon_cutoff = 1));
    CHECK_ERROR("generate: epsilon_cutoff 1, eta_cutoff 0: expected at least 0 and below 1");
    ds_module_free(m);
    ds_scope_close(scope);
}

/* generation_config.json has them too. */
static void options_of_a_folder(void **state)
{
    (void)state;
    folder_make();
    FILE *f = fopen(folder_path("config.json"), "w");
    CHECK(f &&
          fputs("{\"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": 20, \"n_embd\": 8, "
                "\"n_layer\": 1, \"n_head\": 1, \"n_positions\": 16}",
                f) > 0 &&
          !fclose(f));
    ds_module *m = ds_pretrained_load(folder_path(""), .no_weights = true);
    f = fopen(folder_path("generation_config.json"), "w");
    CHECK(f &&
          fputs("{\"min_p\": 0.25, \"no_repeat_ngram_size\": 3, \"min_new_tokens\": 4, "
                "\"typical_p\": 0.9, \"epsilon_cutoff\": 0.125, \"eta_cutoff\": 0.5}",
                f) > 0 &&
          !fclose(f));
    ds_generate_opts o = ds_generation_config(m);
    CHECK_CLOSE(o.min_p, 0.25, 0);
    CHECK_INT(o.no_repeat_ngram_size, 3);
    CHECK_INT(o.min_new_tokens, 4);
    CHECK(o.typical_p == 0.9 && o.epsilon_cutoff == 0.125 && o.eta_cutoff == 0.5);
    ds_module_free(m);
    folder_remove();
}

TEST_MAIN(cmocka_unit_test(choices_of_transformers), cmocka_unit_test(calls_with_them),
          cmocka_unit_test(options_of_a_folder))
