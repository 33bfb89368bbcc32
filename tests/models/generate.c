/* tests/models/generate.c: a repetition penalty beside padding on the left, as
 * transformers 5.23 has it: padding does not count. Drafts of prompt lookup,
 * and of the model with 8-bit matrices, change no token.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "device/device.h"
#include "folder.h"
#include "models/session.h"
#include "ranks.h"

#define ROWS   3
#define LENGTH 14
#define NEW    16

/* Greedy tokens of transformers; the next logit is at least 0.024 lower. 193 is
 * padding, and the third token of row 0. */
static void penalty_with_padding(void **state)
{
    (void)state;
    static const int64_t prompt[ROWS][LENGTH] = {
        {193, 193, 193, 193, 193, 193, 193, 193, 193, 36, 6, 66, 4, 144},
        {193, 193, 193, 193, 193, 158, 63, 200, 133, 179, 4, 229, 81, 21},
        {165, 115, 233, 70, 5, 125, 127, 215, 33, 201, 158, 54, 78, 76}};
    static const int64_t want[ROWS][NEW] = {
        {144, 13, 193, 3, 126, 198, 160, 214, 138, 60, 111, 222, 23, 247, 80, 10},
        {126, 160, 45, 20, 111, 14, 198, 144, 3, 73, 230, 247, 23, 222, 74, 153},
        {160, 20, 55, 10, 214, 105, 80, 111, 222, 237, 138, 126, 28, 35, 59, 23}};
    ds_scope *scope = ds_scope_open();
    ds_module *m = ds_pretrained_load(DS_GOLDEN "/lm/models/gpt2-tied");
    ds_tensor *ids = ds_from_data(DS_I64, ds_shape(ROWS, LENGTH), prompt);
    int64_t real[ROWS * LENGTH];
    for (int64_t i = 0; i < ROWS * LENGTH; i++) real[i] = prompt[i / LENGTH][i % LENGTH] != 193;
    ds_tensor *mask = ds_from_data(DS_I64, ds_shape(ROWS, LENGTH), real);
    ds_tensor *y = ds_generate(m, ids, NEW, .attention_mask = mask, .pad_token_id = 193,
                               .repetition_penalty = 1.7);
    CHECK(y != NULL);
    CHECK_INT(ds_size(y, 1), NEW);
    const int64_t *got = ds_data(y);
    for (int64_t i = 0; i < ROWS * NEW; i++) CHECK_INT(got[i], want[i / NEW][i % NEW]);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* ---- prompt lookup ---- */

static const char *const folders[] = {
    "gpt2-tied", "llama-rope3", "mistral-window", "qwen2-tied",    "qwen3",
    "gemma2",    "gemma3",      "gemma",          "phi3-longrope", "smollm3"};

static ds_module *golden_model(size_t i, ds_dtype dtype)
{
    char folder[500];
    snprintf(folder, sizeof folder, DS_GOLDEN "/lm/models/%s", folders[i]);
    ds_module *m = ds_pretrained_load(folder, .dtype = dtype);
    CHECK(m != NULL);
    ds_module_train(m, false);
    return m;
}

/* Of `seed`; the same ids again and again every `period`. */
static ds_tensor *some_ids(ds_module *m, int64_t rows, int64_t n, int64_t seed, int64_t period)
{
    int64_t vocab = ds_lm_info_of(m).vocab_size;
    ds_tensor *ids = ds_zeros(DS_I64, ds_shape(rows, n));
    for (int64_t i = 0; i < rows * n; i++) {
        int64_t x = i / n + i % n % period + 1;
        set_element(ids, i, (double)((x * x * (31 + seed) + 7 * x + seed) % vocab));
    }
    return ids;
}

static size_t bytes_of(ds_tensor *x) { return (size_t)ds_numel(x) * ds_dtype_size(ds_dtype_of(x)); }

/* Logits [steps,V] of the last positions of ids, which follow the others in
 * calls of `each` positions. */
static ds_tensor *stepwise_logits(ds_module *m, ds_tensor *ids, int64_t steps, int64_t each)
{
    dsi_lm *lm = dsi_lm_of(m);
    int64_t n = ds_size(ids, 1), layers = lm->config.layers, calls = 0;
    ds_tensor *k[8] = {NULL}, *v[8] = {NULL}, *y[32];
    dsi_lm_cache cache = {.room = n, .k = k, .v = v};
    lm->cache = &cache;
    for (int64_t at = 0; at < n; at = cache.length) {
        int64_t end = at ? at + each : n - steps;
        cache.wanted = at ? each : 1;
        y[calls] = ds_call(m, ds_slice(ids, 1, at, end));
        CHECK(y[calls] != NULL);
        calls += at > 0;
        cache.length = end;
    }
    lm->cache = NULL;
    for (int64_t i = 0; i < layers; i++) ds_drop(k[i]), ds_drop(v[i]);
    return ds_contiguous(ds_reshape(ds_cat(y, (int)calls, 1), ds_shape(steps, -1)));
}

/* A new model whose sizes are no multiples of a vector. */
static ds_module *odd_model(void)
{
    static const char config[] =
        "{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 257, \"hidden_size\": 36, "
        "\"intermediate_size\": 50, \"num_hidden_layers\": 2, \"num_attention_heads\": 2, "
        "\"num_key_value_heads\": 1}";
    folder_make();
    FILE *f = fopen(folder_path("config.json"), "w");
    CHECK(f && fputs(config, f) > 0 && fclose(f) == 0);
    ds_module *m = ds_pretrained_load(folder_path("config.json"), .no_weights = true);
    CHECK(m != NULL);
    ds_module_train(m, false);
    folder_remove();
    return m;
}

/* Several positions behind others have the bits of one at a time: what drafts
 * rely on. 16-bit products of more than 4 rows are other sums. */
static void positions_together(void **state)
{
    (void)state;
    if (ds_current_device().kind != DS_CPU) skip();
    bool recording = ds_set_grad(false);
    size_t n = sizeof folders / sizeof *folders;
    for (size_t i = 0; i <= n; i++) {
        ds_scope *scope = ds_scope_open();
        ds_module *m = i < n ? golden_model(i, DS_F32) : odd_model();
        if (dsi_lm_rope_together(dsi_lm_of(m), 9) < 16) { /* drafts are shorter there */
            ds_module_free(m), ds_scope_close(scope);
            continue;
        }
        ds_tensor *ids = some_ids(m, 1, 25, (int64_t)i, 99);
        ds_tensor *want = stepwise_logits(m, ids, 16, 1);
        for (int64_t each = 2; each <= 8; each *= 2) {
            ds_tensor *got = stepwise_logits(m, ids, 16, each);
            CHECK(!memcmp(ds_data(got), ds_data(want), bytes_of(got)));
        }
        ds_module_free(m);
        ds_scope_close(scope);
    }
    ds_set_grad(recording);
}

static int forwards; /* of the model itself, not of its 8-bit copy */
static const dsi_lm_type *counted_type;

static ds_tensor *counted_hidden(dsi_lm *lm, ds_tensor *ids)
{
    dsi_lm_linear *head = lm->head ? ds_self(lm->head) : NULL;
    forwards += !(head ? head->int8 : lm->head_int8);
    return counted_type->hidden(lm, ids);
}

static bool row_ends(void *arg, int64_t row, int64_t id)
{
    int64_t *left = arg;
    (void)id;
    return row != 1 || --*left > 0;
}

/* The tokens without drafts, and with those that `drafts` has, which are the
 * same. Returns how many calls of the model the drafts saved. */
static int drafts_save(ds_module *m, ds_tensor *ids, ds_generate_opts o, ds_generate_opts drafts)
{
    dsi_lm *lm = dsi_lm_of(m);
    dsi_lm_type type = *lm->type;
    counted_type = lm->type, type.hidden = counted_hidden, lm->type = &type;
    int64_t left[2] = {3, 3};
    if (o.on_token) o.arg = &left[0];
    o.prompt_lookup_num_tokens = o.num_assistant_tokens = -1, forwards = 0;
    ds_tensor *want = ds_generate_with(m, ids, o);
    CHECK_INT(forwards, ds_size(want, 1));
    if (o.on_token) o.arg = &left[1];
    o.prompt_lookup_num_tokens = drafts.prompt_lookup_num_tokens;
    o.num_assistant_tokens = drafts.num_assistant_tokens, forwards = 0;
    ds_tensor *got = ds_generate_with(m, ids, o);
    CHECK_INT(ds_size(got, 1), ds_size(want, 1));
    CHECK(!memcmp(ds_data(got), ds_data(want), bytes_of(want)));
    CHECK(forwards <= ds_size(want, 1));
    lm->type = counted_type;
    return (int)ds_size(want, 1) - forwards;
}

#define LOOKUP(n) ((ds_generate_opts){.prompt_lookup_num_tokens = n, .num_assistant_tokens = -1})
#define ASSIST(n) ((ds_generate_opts){.prompt_lookup_num_tokens = -1, .num_assistant_tokens = n})
#define BOTH(n)   ((ds_generate_opts){.num_assistant_tokens = n})

/* Prompts that go in circles and prompts that do not; greedy and drawn; rows
 * that end early. */
static void lookup_changes_nothing(void **state)
{
    (void)state;
    int all = 0;
    if (ds_current_device().kind != DS_CPU) skip();
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        for (int half = 0; half < 2; half++) {
            ds_scope *scope = ds_scope_open();
            ds_module *m = golden_model(i, half ? DS_BF16 : DS_F32);
            int saved = 0;
            for (int64_t seed = 0; seed < (quick() ? 2 : 8); seed++) {
                int64_t rows = 1 + seed % 3;
                ds_tensor *ids = some_ids(m, rows, 12, seed, seed % 2 ? 99 : 4);
                ds_generate_opts greedy = {.max_new_tokens = 60, .stop = {2}, .n_stop = 1};
                ds_generate_opts drawn = greedy, penalty = greedy, ends = greedy;
                drawn.do_sample = true, drawn.temperature = 0.05, drawn.seed = (uint64_t)seed;
                penalty.repetition_penalty = 1.1;
                ends.on_token = row_ends;
                saved += drafts_save(m, ids, greedy, LOOKUP(0));
                saved += drafts_save(m, ids, drawn, LOOKUP(15));
                saved += drafts_save(m, ids, penalty, LOOKUP(3));
                saved += drafts_save(m, ids, ends, LOOKUP(1 + seed));
            }
            CHECK(saved > 0 || quick()); /* windows and contexts are short */
            all += saved;
            ds_module_free(m);
            ds_scope_close(scope);
        }
    CHECK(all > 0);
}

/* The same of 8-bit matrices, each family: greedy and drawn, batches, padding,
 * rows that end early. */
static void assistant_changes_nothing(void **state)
{
    (void)state;
    if (ds_current_device().kind != DS_CPU) skip();
    size_t n = sizeof folders / sizeof *folders;
    for (size_t i = 0; i <= n; i++) {
        ds_scope *scope = ds_scope_open();
        ds_module *m = i < n ? golden_model(i, DS_F32) : odd_model();
        int saved = 0;
        for (int64_t seed = 0; seed < (quick() ? 3 : 8); seed++) {
            int64_t rows = 1 + seed % 3;
            ds_tensor *ids = some_ids(m, rows, 12, seed, seed % 2 ? 99 : 4);
            ds_generate_opts greedy = {.max_new_tokens = 60, .stop = {2}, .n_stop = 1};
            ds_generate_opts drawn = greedy, padded = greedy, ends = greedy;
            drawn.do_sample = true, drawn.temperature = 0.3, drawn.seed = (uint64_t)seed;
            padded.attention_mask = ds_ones(DS_I64, ds_shape(rows, 12));
            padded.repetition_penalty = 1.1;
            for (int64_t k = 0; k < 5; k++)
                set_element(padded.attention_mask, (rows - 1) * 12 + k, 0);
            ends.on_token = row_ends;
            saved += drafts_save(m, ids, greedy, ASSIST(1 + seed));
            saved += drafts_save(m, ids, drawn, ASSIST(7));
            saved += drafts_save(m, ids, padded, ASSIST(5));
            saved += drafts_save(m, ids, ends, BOTH(3));
        }
        CHECK(saved > 0);
        ds_module_free(m);
        ds_scope_close(scope);
    }
}

/* Adapters are added to the 8-bit products too. */
static void assistant_with_adapters(void **state)
{
    (void)state;
    if (ds_current_device().kind != DS_CPU) skip();
    ds_scope *scope = ds_scope_open();
    ds_module *m = golden_model(1, DS_F32);
    CHECK_INT(ds_lora(m, .r = 4), DS_OK);
    ds_generate_opts o = {.max_new_tokens = 40};
    CHECK(drafts_save(m, some_ids(m, 1, 12, 5, 99), o, ASSIST(7)) > 0);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* The copies are the call's own, and a failed one leaves none behind. */
static void assistant_without_memory(void **state)
{
    (void)state;
    if (ds_current_device().kind != DS_CPU) skip();
    ds_scope *scope = ds_scope_open();
    ds_module *m = golden_model(0, DS_F32);
    ds_tensor *ids = some_ids(m, 1, 12, 0, 99), *y = NULL;
    for (int k = 1; !y; k += quick() ? 97 : 13) {
        ds_scope *inner = ds_scope_open();
        dsi_cache_fail(k, false);
        y = ds_generate(m, ids, 8, .num_assistant_tokens = 3);
        dsi_cache_fail(0, false);
        if (!y) CHECK_INT(ds_error_status(), DS_ENOMEM);
        CHECK(!dsi_lm_of(m)->head_int8);
        ds_error_clear();
        ds_scope_close(inner);
    }
    ds_module_free(m);
    ds_scope_close(scope);
}

/* ---- a prompt that begins as the last one ---- */

static int64_t first_width; /* positions of a call's first forward; 0: none yet */

static ds_tensor *measured_hidden(dsi_lm *lm, ds_tensor *ids)
{
    if (!first_width) first_width = ds_size(ids, 1);
    return counted_type->hidden(lm, ids);
}

/* ids and the tokens that follow them, and `more` other tokens. */
static ds_tensor *conversation(ds_tensor *ids, ds_tensor *tokens, int64_t more)
{
    ds_tensor *part[] = {ids, tokens, ds_full(DS_I64, ds_shape(ds_size(ids, 0), more), 17)};
    return ds_cat(part, 3, 1);
}

/* Three calls, each with tokens of the call before in its prompt: the tokens of
 * calls that compute all of it. Where rows turn otherwise behind a length, all
 * is computed. */
static void check_conversation(ds_module *m, int64_t rows, int64_t pads, int64_t more)
{
    dsi_lm *lm = dsi_lm_of(m);
    ds_tensor *ids = some_ids(m, rows, 8, more, 99), *mask = ds_ones(DS_I64, ds_shape(rows, 8));
    ds_generate_opts o = {.max_new_tokens = 6, .attention_mask = pads ? mask : NULL};
    int64_t filled = 0;
    for (int64_t i = 0; i < pads; i++) set_element(mask, i, 0);
    for (int call = 0; call < 3; call++) {
        ds_generate_opts again = o;
        again.cache_prompt = true, first_width = 0;
        ds_tensor *got = ds_generate_with(m, ids, again);
        bool turns = dsi_lm_rope_together(lm, 0) < ds_size(ids, 1) + 6;
        CHECK_INT(first_width, ds_size(ids, 1) - (turns ? 0 : filled));
        filled = ds_size(ids, 1) + 5;
        dsi_lm_session *kept = lm->session;
        lm->session = NULL; /* a call that has none does not use it */
        ds_tensor *want = ds_generate_with(m, ids, o);
        dsi_lm_session_drop(lm);
        lm->session = kept;
        CHECK(want && got && !memcmp(ds_data(got), ds_data(want), bytes_of(want)));
        if (pads)
            o.attention_mask = mask = conversation(mask, ds_ones(DS_I64, ds_shape(rows, 6)), more);
        ids = conversation(ids, got, more);
    }
    dsi_lm_session_drop(lm);
}

static void conversations(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        ds_scope *scope = ds_scope_open();
        ds_module *m = golden_model(i, DS_F32);
        dsi_lm *lm = dsi_lm_of(m);
        dsi_lm_type type = *lm->type;
        counted_type = lm->type, type.hidden = measured_hidden, lm->type = &type;
        if (!on_gpu()) check_conversation(m, 1, 0, 3);
        check_conversation(m, 1, 0, 12);
        if (!quick()) check_conversation(m, 2, 3, 9);
        lm->type = counted_type;
        ds_module_free(m);
        ds_scope_close(scope);
    }
}

/* Columns that differ, rows that ended, and a step of training end what is
 * kept. */
static void what_is_not_used_again(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = golden_model(1, DS_F32);
    dsi_lm *lm = dsi_lm_of(m);
    dsi_lm_type type = *lm->type;
    counted_type = lm->type, type.hidden = measured_hidden, lm->type = &type;
    ds_tensor *ids = some_ids(m, 1, 10, 3, 99);
    ds_generate_opts o = {.max_new_tokens = 6, .cache_prompt = true};
    ds_tensor *y = ds_generate_with(m, ids, o);
    set_element(ids, 7, 99);
    first_width = 0, y = ds_generate_with(m, ids, o);
    CHECK_INT(first_width, 3); /* the last seven of ten are as before */
    first_width = 0, y = ds_generate_with(m, ids, o);
    CHECK_INT(first_width, 1); /* the last one is always computed */
    first_width = 0, y = ds_generate(m, ids, 6);
    CHECK_INT(first_width, 10); /* only if it is asked for */
    y = ds_generate_with(m, ids, o);
    o.stop[0] = ((const int64_t *)ds_data(y))[2], o.n_stop = 1;
    y = ds_generate_with(m, ids, o);
    first_width = 0;
    CHECK(ds_generate_with(m, conversation(ids, y, 5), o) != NULL);
    CHECK_INT(first_width, 6);
    ds_module_train(m, true);
    CHECK(ds_call(m, ids, ids) != NULL);
    CHECK(!lm->session);
    lm->type = counted_type;
    ds_module_free(m);
    ds_scope_close(scope);
}

/* Copies of other values than the model has now are made again. */
static void assistant_of_other_values(void **state)
{
    (void)state;
    if (ds_current_device().kind != DS_CPU) skip();
    ds_scope *scope = ds_scope_open();
    ds_module *m[] = {golden_model(1, DS_F32), golden_model(1, DS_F32)};
    ds_generate_opts o = {.max_new_tokens = 40};
    ds_tensor *ids = some_ids(m[0], 1, 12, 5, 99);
    CHECK(drafts_save(m[0], ids, o, ASSIST(7)) > 0);
    bool grad = ds_set_grad(false);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < ds_module_params(m[k]); i++) {
            ds_tensor *x = ds_module_param_at(m[k], i, NULL);
            CHECK_INT(ds_copy(x, ds_scale(x, i % 2 ? 0.5 : -1.5)), DS_OK);
        }
    ds_set_grad(grad);
    CHECK_INT(drafts_save(m[0], ids, o, ASSIST(7)), drafts_save(m[1], ids, o, ASSIST(7)));
    ds_module_free(m[0]), ds_module_free(m[1]);
    ds_scope_close(scope);
}

static void drafts_refused(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = golden_model(0, DS_F32);
    CHECK(!ds_generate(m, some_ids(m, 1, 4, 0, 99), 4, .prompt_lookup_num_tokens = -2));
    CHECK_ERROR("generate: prompt_lookup_num_tokens is -2, num_assistant_tokens 0: expected -1");
    CHECK(!ds_generate(m, some_ids(m, 1, 4, 0, 99), 4, .num_assistant_tokens = -2));
    CHECK_ERROR("num_assistant_tokens -2: expected -1 to 2^31");
    CHECK(!ds_generate(m, some_ids(m, 1, 4, 0, 99), 4, .num_assistant_tokens = (int64_t)1 << 40));
    CHECK_ERROR("num_assistant_tokens 1099511627776: expected -1 to 2^31");
    CHECK(!ds_generate(m, some_ids(m, 1, 4, 0, 99), 4, .stop = {1 << 30}, .n_stop = 1));
    CHECK_ERROR("generate: stop token 0 is 1073741824: expected 0 to");
    ds_module_free(m);
    m = golden_model(0, DS_BF16);
    CHECK(!ds_generate(m, some_ids(m, 1, 4, 0, 99), 4, .num_assistant_tokens = 2));
    CHECK_ERROR("generate: num_assistant_tokens needs weights that are float32 in the host's "
                "memory");
    ds_module_free(m);
    ds_scope_close(scope);
}

/* The limit of falling temperatures: the largest logit has all probability. */
static void no_temperature_is_greedy(void **state)
{
    (void)state;
    static const double temperatures[] = {DS_ZERO, 1e-40, 1e-30, 1e-6};
    ds_scope *scope = ds_scope_open();
    ds_module *m = golden_model(0, DS_F32);
    ds_tensor *ids = some_ids(m, 2, 5, 0, 99), *greedy = ds_generate(m, ids, 8);
    CHECK_INT(ds_size(greedy, 1), 8);
    for (int i = 0; i < 4; i++) {
        ds_tensor *y = ds_generate(m, ids, 8, .do_sample = true, .temperature = temperatures[i]);
        CHECK(!memcmp(ds_data(y), ds_data(greedy), bytes_of(greedy)));
    }
    CHECK(!ds_generate(m, ids, 8, .repetition_penalty = DS_ZERO));
    CHECK_ERROR("repetition_penalty 0, encoder_repetition_penalty 1: expected more than 0");
    ds_module_free(m);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(no_temperature_is_greedy), cmocka_unit_test(penalty_with_padding),
          cmocka_unit_test(positions_together), cmocka_unit_test(lookup_changes_nothing),
          cmocka_unit_test(assistant_changes_nothing), cmocka_unit_test(assistant_with_adapters),
          cmocka_unit_test(assistant_without_memory), cmocka_unit_test(drafts_refused),
          cmocka_unit_test(assistant_of_other_values), cmocka_unit_test(conversations),
          cmocka_unit_test(what_is_not_used_again))
