/* tests/models/beams.c: beam search beside a search that computes all rows
 * again in each step, batches beside single prompts, sequences that are drawn,
 * criteria, what is refused. Values of transformers:
 * tests/reference/lm_beams.c.
 * SPDX-License-Identifier: MIT */
#include "base/mem.h"
#include "check.h"
#include "device/device.h"
#include "models/beam.h"
#include "models/lm.h"

enum { LENGTH = 5, NEW = 14 };

static const char *const folders[] = {"gpt2-tied", "mistral-window", "gemma3", "phi3-longrope",
                                      "mixtral"};

static ds_module *model_of(const char *name)
{
    char folder[500];
    snprintf(folder, sizeof folder, DS_GOLDEN "/lm/models/%s", name);
    ds_module *m = ds_pretrained_load(folder);
    CHECK(m != NULL);
    ds_module_train(m, false);
    return m;
}

static ds_tensor *some_ids(ds_module *m, int64_t rows, int64_t n, int64_t seed)
{
    int64_t vocab = ds_lm_info_of(m).vocab_size, most = vocab - 4;
    ds_tensor *ids = ds_zeros(DS_I64, ds_shape(rows, n));
    for (int64_t i = 0; i < rows * n; i++)
        set_element(ids, i, (double)(4 + (i * i * (31 + seed) + 7 * i + seed) % most));
    return ds_to(ids, ds_current_device(), DS_I64);
}

static void same_ids(ds_tensor *got, ds_tensor *want)
{
    CHECK(got && want);
    CHECK_INT(ds_size(got, 0), ds_size(want, 0));
    CHECK_INT(ds_size(got, 1), ds_size(want, 1));
    const int64_t *x = ds_data(ds_to(got, (ds_device){DS_CPU, 0}, DS_I64)),
                  *y = ds_data(ds_to(want, (ds_device){DS_CPU, 0}, DS_I64));
    for (int64_t i = 0; i < ds_numel(got); i++) CHECK_INT(x[i], y[i]);
}

/* The search without a cache: the whole rows in each step. */
static ds_tensor *search_again(ds_module *m, ds_tensor *ids, const ds_generate_opts *o)
{
    int64_t prompts = ds_size(ids, 0), rows = prompts * o->num_beams, room = LENGTH + NEW, n;
    int64_t all[64 * (LENGTH + NEW)], pads[64] = {0};
    const int64_t *from = ds_data(ds_to(ids, (ds_device){DS_CPU, 0}, DS_I64));
    for (int64_t i = 0; i < rows; i++)
        memcpy(all + i * room, from + i / o->num_beams * LENGTH, LENGTH * sizeof *all);
    dsi_beams *b = dsi_beams_new(o, prompts, ds_lm_info_of(m).vocab_size);
    dsi_row_copy copies[64];
    bool more = true;
    for (int64_t at = LENGTH; more; at++) {
        ds_tensor *in = ds_zeros(DS_I64, ds_shape(rows, at));
        for (int64_t i = 0; i < rows * at; i++)
            set_element(in, i, (double)all[i / at * room + i % at]);
        ds_tensor *y = ds_call(m, ds_to(in, ds_current_device(), DS_I64));
        y = ds_contiguous(ds_log_softmax(ds_select(y, 1, -1), -1));
        dsi_beam_scores scores = {ds_data(y), NULL, ds_size(y, 1)};
        more = dsi_beams_step(b, scores, (dsi_beam_rows){all, room, LENGTH, at, pads}, copies, &n);
    }
    ds_tensor *out = ds_zeros(DS_I64, ds_shape(prompts, o->max_new_tokens));
    for (int64_t i = 0; i < prompts; i++) {
        const dsi_beam_sequence *x = dsi_beams_best(b, i, 0);
        for (int64_t k = 0; k < x->n; k++)
            set_element(out, i * o->max_new_tokens + k, (double)x->ids[k]);
    }
    dsi_beams_free(b);
    return out;
}

/* Rows of the cache are those of their beams: of one prompt and of two, greedy
 * and drawn; few rows that move, and many. */
static void caches_follow_beams(void **state)
{
    (void)state;
    bool recording = ds_set_grad(false), few = ds_current_device().kind != DS_CPU || quick();
    for (size_t i = 0; i < (few ? 1 : sizeof folders / sizeof *folders); i++)
        for (int64_t beams = 2; beams <= (few ? 4 : 6); beams += 2) {
            ds_scope *scope = ds_scope_open();
            ds_module *m = model_of(folders[i]);
            ds_tensor *ids = some_ids(m, 2, LENGTH, (int64_t)i);
            ds_generate_opts o = {.max_new_tokens = few ? 6 : NEW, .num_beams = beams, .seed = 3};
            for (int drawn = 0; drawn < 2 - few; drawn++) {
                o.do_sample = drawn, o.temperature = 1.5;
                same_ids(ds_generate_with(m, ids, o), search_again(m, ids, &o));
            }
            ds_module_free(m);
            ds_scope_close(scope);
        }
    ds_set_grad(recording);
}

/* A prompt's sequences do not depend on the other prompts, nor on padding. */
static void batches_are_single_prompts(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = model_of("llama-rope3");
    float scores[6], score[3];
    int64_t lengths[6];
    ds_tensor *ids = some_ids(m, 2, LENGTH, 9), *mask = ds_ones(DS_I64, ds_shape(2, LENGTH));
    set_element(mask, 0, 0), set_element(mask, 1, 0);
    ds_generate_opts o = {.max_new_tokens = NEW,
                          .num_beams = 4,
                          .num_return_sequences = 3,
                          .stop = {7, 9, 30},
                          .n_stop = 3,
                          .pad_token_id = 250};
    o.attention_mask = mask, o.sequences_scores = scores, o.sequence_lengths = lengths;
    ds_tensor *both = ds_generate_with(m, ids, o);
    CHECK(both && ds_size(both, 0) == 6);
    o.attention_mask = NULL, o.sequences_scores = score, o.sequence_lengths = NULL;
    for (int64_t k = 0; k < 2; k++) {
        ds_tensor *one = ds_slice(ds_slice(ids, 0, k, k + 1), 1, k ? 0 : 2, LENGTH);
        ds_tensor *y = ds_generate_with(m, ds_contiguous(one), o);
        int64_t n = ds_size(y, 1);
        CHECK(ds_size(y, 0) == 3 && n <= ds_size(both, 1));
        same_ids(y, ds_contiguous(ds_slice(ds_slice(both, 0, 3 * k, 3 * k + 3), 1, 0, n)));
        for (int i = 0; i < 3; i++) CHECK_CLOSE(scores[3 * k + i], score[i], 1e-5);
        for (int i = 0; i < 3; i++) CHECK(lengths[3 * k + i] <= n);
        CHECK(score[0] >= score[1] && score[1] >= score[2]);
    }
    ds_module_free(m);
    ds_scope_close(scope);
}

/* Rows of a prompt draw from streams of their own: the rows of a batch that has
 * the prompt several times. */
static void sequences_that_are_drawn(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = model_of("gpt2-tied");
    int64_t lengths[6];
    ds_tensor *ids = some_ids(m, 2, LENGTH, 1);
    ds_generate_opts o = {
        .max_new_tokens = NEW, .do_sample = true, .seed = 8, .top_k = -1, .stop = {5}, .n_stop = 1};
    ds_tensor *want = ds_generate_with(m, ds_repeat_interleave(ids, 3, 0), o);
    o.num_return_sequences = 3, o.sequence_lengths = lengths;
    ds_tensor *got = ds_generate_with(m, ids, o);
    same_ids(got, want);
    for (int i = 0; i < 6; i++) CHECK(lengths[i] > 0 && lengths[i] <= ds_size(got, 1));
    CHECK(memcmp(ds_data(ds_contiguous(ds_slice(got, 0, 0, 1))),
                 ds_data(ds_contiguous(ds_slice(got, 0, 1, 2))), 8 * (size_t)ds_size(got, 1)) != 0);
    ds_module_free(m);
    ds_scope_close(scope);
}

static bool ends_at_six(void *arg, int64_t row, const int64_t *ids, int64_t n)
{
    int64_t *calls = arg;
    (void)ids;
    CHECK(row == 0);
    ++*calls;
    return n == 6;
}

static void criteria(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = model_of("qwen3");
    int64_t calls = 0;
    for (int64_t beams = 1; beams <= 3; beams += 2) {
        ds_tensor *y = ds_generate(m, some_ids(m, 1, LENGTH, 2), NEW, .num_beams = beams,
                                   .stopping_criteria = ends_at_six, .arg = &calls);
        CHECK(y && ds_size(y, 1) == 6);
    }
    CHECK_INT(calls, 6 + 6 * 6); /* of greedy tokens; of 6 continuations in 6 steps */
    ds_module_free(m);
    ds_scope_close(scope);
}

static bool take_token(void *arg, int64_t row, int64_t id)
{
    (void)arg, (void)row, (void)id;
    return true;
}

static void refused(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = model_of("gpt2-tied");
    float score[4];
    const struct {
        ds_generate_opts o;
        const char *message;
    } wrong[] = {
        {{.num_beams = -1}, "num_beams -1, num_return_sequences 1: expected 1 or more"},
        {{.num_return_sequences = 2},
         "num_return_sequences is 2, and greedy tokens are one "
         "sequence: set do_sample, or num_beams to 2 or more"},
        {{.num_beams = 2, .num_return_sequences = 3}, "is 3: expected at most num_beams, 2"},
        {{.num_beams = 2, .on_token = take_token}, "on_token with num_beams 2: "},
        {{.num_beams = 2, .cache_prompt = true}, "cache_prompt with num_beams 2: "},
        {{.num_return_sequences = 2, .do_sample = true, .cache_prompt = true},
         "cache_prompt keeps the tokens of one row a prompt: leave it out"},
        {{.num_beams = 2, .early_stopping = (ds_early_stopping)7}, "early_stopping is 7"},
        {{.num_beams = 2, .length_penalty = NAN}, "length_penalty is nan"},
        {{.sequences_scores = score}, "sequences_scores are those of beams: num_beams is 1"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK(!ds_generate_with(m, some_ids(m, 1, LENGTH, 0), wrong[i].o));
        CHECK_ERROR(wrong[i].message);
        ds_error_clear();
    }
    ds_module_free(m);
    ds_scope_close(scope);
}

/* A failure leaves nothing behind, and the next call works. */
static void without_memory(void **state)
{
    (void)state;
    if (ds_current_device().kind != DS_CPU) skip();
    ds_scope *scope = ds_scope_open();
    ds_module *m = model_of("llama-rope3");
    ds_tensor *ids = some_ids(m, 1, LENGTH, 4), *y = NULL;
    for (int k = 1; !y; k += quick() ? 97 : 13) {
        ds_scope *inner = ds_scope_open();
        dsi_cache_fail(k, false);
        y = ds_generate(m, ids, 6, .num_beams = 3);
        dsi_cache_fail(0, false);
        if (!y) CHECK_INT(ds_error_status(), DS_ENOMEM);
        ds_error_clear();
        ds_scope_close(inner);
    }
    ds_module_free(m);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(caches_follow_beams), cmocka_unit_test(batches_are_single_prompts),
          cmocka_unit_test(sequences_that_are_drawn), cmocka_unit_test(criteria),
          cmocka_unit_test(refused), cmocka_unit_test(without_memory))
