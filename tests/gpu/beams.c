/* tests/gpu/beams.c: beam search on the emulated GPU: tokens and scores of the
 * CPU, one graph a step, with graphs and without; the GPU finds the most
 * probable tokens of long rows.
 * SPDX-License-Identifier: MIT */
#include "base/env.h"
#include "check.h"
#include "models/decode.h"
#include "operand.h"

#include <deepspeed.h>
#include <math.h>

enum { ROWS = 2, LENGTH = 6, NEW = 10, BEAMS = 4, BEST = 3 };

static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};

typedef struct Costs {
    long graphs, waits;
    int64_t n;
} Costs;

typedef struct Steps {
    int n;
    Costs at[NEW]; /* at the first continuation of each step that is looked at */
} Steps;

static bool note_step(void *arg, int64_t row, const int64_t *ids, int64_t n)
{
    Steps *s = arg;
    (void)row, (void)ids;
    if (s->n < NEW && (!s->n || s->at[s->n - 1].n != n))
        s->at[s->n++] = (Costs){emulator_count("fake_cuda_graph_launches"),
                                emulator_count("fake_cuda_syncs"), n};
    return false;
}

/* Row 0 has two tokens of padding. */
static void search(const char *name, ds_device device, ds_generate_opts o, int64_t *tokens,
                   float *scores, bool again)
{
    static const int64_t prompt[ROWS][LENGTH] = {{0, 0, 36, 6, 66, 4}, {155, 115, 33, 70, 5, 25}};
    static const int64_t present[ROWS][LENGTH] = {{0, 0, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1}};
    char folder[300];
    snprintf(folder, sizeof folder, DS_GOLDEN "/lm/models/%s", name);
    CHECK_INT(ds_set_device(device), DS_OK);
    ds_scope *scope = ds_scope_open();
    ds_module *m = ds_pretrained_load(folder);
    o.attention_mask = ds_to(ds_from_data(DS_I64, ds_shape(ROWS, LENGTH), present), cpu, DS_I64);
    o.max_new_tokens = NEW, o.num_beams = BEAMS, o.num_return_sequences = BEST;
    o.sequences_scores = scores;
    ds_tensor *y = ds_generate_with(m, ds_from_data(DS_I64, ds_shape(ROWS, LENGTH), prompt), o);
    for (int i = 0; i < ROWS * BEST * NEW; i++) tokens[i] = -1;
    CHECK(y && ds_numel(y) <= ROWS * BEST * NEW);
    if (again) { /* with the cache and the graph of the first call */
        ds_tensor *other = ds_generate_with(m, ds_from_data(DS_I64, ds_shape(ROWS, LENGTH), prompt),
                                            o);
        CHECK(other && ds_numel(other) == ds_numel(y));
        CHECK(!memcmp(ds_data(ds_to(other, cpu, DS_I64)), ds_data(ds_to(y, cpu, DS_I64)),
                      (size_t)ds_numel(y) * sizeof *tokens));
    }
    memcpy(tokens, ds_data(ds_to(y, cpu, DS_I64)), (size_t)ds_numel(y) * sizeof *tokens);
    ds_module_free(m);
    ds_scope_close(scope);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* The GPU finds the most probable tokens; with a minimum of new tokens the host
 * does, as for those that are drawn. */
static void sequences_are_those_of_the_cpu(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt2-tied", "gemma2", "mixtral"};
    for (int i = 0; i < (quick() ? 3 : 9); i++) {
        ds_generate_opts o = {.stop = {66, 5}, .n_stop = 2, .seed = 5, .pad_token_id = 1};
        if (i % 3 == 1) o.min_new_tokens = 3;
        o.do_sample = i % 3 == 2;
        int64_t want[ROWS * BEST * NEW], got[ROWS * BEST * NEW], plain[ROWS * BEST * NEW];
        float score[ROWS * BEST], on_gpu[ROWS * BEST];
        search(names[i / 3], cpu, o, want, score, false);
        search(names[i / 3], gpu, o, got, on_gpu, i == 0);
        CHECK_INT(setenv("DS_GRAPHS", "off", 1), 0);
        search(names[i / 3], gpu, o, plain, on_gpu, false);
        unsetenv("DS_GRAPHS");
        for (int k = 0; k < ROWS * BEST * NEW; k++) CHECK_INT(got[k], want[k]);
        for (int k = 0; k < ROWS * BEST * NEW; k++) CHECK_INT(plain[k], want[k]);
        for (int k = 0; k < ROWS * BEST; k++) CHECK_CLOSE(on_gpu[k], score[k], 1e-4);
    }
}

/* From the fifth step on one graph; the host waits for the tokens alone. */
static void a_step_is_one_graph(void **state)
{
    (void)state;
    Steps s = {0};
    int64_t tokens[ROWS * BEST * NEW];
    float scores[ROWS * BEST];
    search("llama-rope3", gpu,
           (ds_generate_opts){.stopping_criteria = note_step,
                              .arg = &s,
                              .early_stopping = DS_EARLY_STOPPING_NEVER},
           tokens, scores, false);
    CHECK_INT(s.n, NEW - 1); /* all end with the last one */
    for (int k = 5; k < s.n; k++) {
        CHECK_INT(s.at[k].graphs - s.at[k - 1].graphs, 1);
        printf("# step %d: %ld waits\n", k, s.at[k].waits - s.at[k - 1].waits);
        CHECK(s.at[k].waits - s.at[k - 1].waits <= 2);
    }
}

/* Rows that are longer than the kernel takes; equal numbers: the first ones. */
static void largest_of_long_rows(void **state)
{
    (void)state;
    static const int64_t sizes[] = {2048, 2049, 5000, 50257};
    enum { R = 3, K = 6 };
    CHECK_INT(ds_set_device(gpu), DS_OK);
    for (int i = 0; i < 4; i++) {
        ds_scope *scope = ds_scope_open();
        int64_t n = sizes[i], ids[R * K];
        float *x = malloc((size_t)(R * n) * sizeof *x);
        for (int64_t k = 0; k < R * n; k++) x[k] = (float)(k * 7919 % 3001);
        ds_tensor *t = ds_from_data(DS_F32, ds_shape(R, n), x);
        const float *got = dsi_decode_largest(t, K, ids);
        CHECK(got != NULL);
        for (int64_t row = 0; row < R; row++)
            for (int k = 0; k < K; k++) {
                int64_t best = -1;
                for (int64_t c = 0; c < n; c++)
                    if (best < 0 || x[row * n + c] > x[row * n + best]) best = c;
                CHECK_INT(ids[row * K + k], best);
                CHECK_CLOSE(got[row * K + k], x[row * n + best], 0);
                x[row * n + best] = -1;
            }
        free(x);
        ds_scope_close(scope);
    }
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

TEST_MAIN(cmocka_unit_test(sequences_are_those_of_the_cpu), cmocka_unit_test(a_step_is_one_graph),
          cmocka_unit_test(largest_of_long_rows))
