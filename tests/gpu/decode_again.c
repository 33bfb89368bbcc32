/* tests/gpu/decode_again.c: calls of ds_generate that follow others on the
 * emulated GPU, with the cache and the graph that those left: the bits of a
 * call of a new model; nothing is recorded again; what ends them; calls that
 * fail; memory.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "device/device.h"
#include "emulated.h"
#include "folder.h"
#include "lm_step.h"
#include "models/session.h"
#include "tensor/tensor.h"

#include <deepspeed.h>
#include <pthread.h>

enum { MOST = 64, VOCAB = 120 };

static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};

/* ---- a call ---- */

typedef struct Call {
    int64_t rows, length, tokens;
    int seed, pads; /* pads: on the left of row 0 */
    bool drawn;
    int fails; /* allocation of the call that fails; 0: none */
} Call;

static ds_module *model_on(const char *name, ds_device device, ds_dtype dtype)
{
    char folder[300];
    snprintf(folder, sizeof folder, DS_GOLDEN "/lm/models/%s", name);
    CHECK_INT(ds_set_device(device), DS_OK);
    ds_module *m = ds_pretrained_load(folder, .dtype = dtype);
    CHECK(m != NULL);
    return m;
}

/* The tokens, [rows,tokens] on the host; NULL after a failure. */
static ds_tensor *call_run(ds_module *m, const Call *c, ds_generate_opts o)
{
    CHECK_INT(ds_set_device(cpu), DS_OK);
    ds_tensor *ids = ds_zeros(DS_I64, ds_shape(c->rows, c->length)),
              *mask = ds_ones(DS_I64, ds_shape(c->rows, c->length));
    int64_t *p = ds_data_mut(ids), *present = ds_data_mut(mask);
    for (int64_t i = 0; i < c->rows * c->length; i++)
        p[i] = (i * i * (31 + c->seed) + 7 * i + c->seed) % VOCAB;
    for (int i = 0; i < c->pads; i++) present[i] = 0;
    o.max_new_tokens = c->tokens, o.do_sample = c->drawn, o.seed = (uint64_t)c->seed;
    if (c->drawn) o.top_k = -1;
    if (c->pads) o.attention_mask = mask;
    if (c->fails) dsi_cache_fail(c->fails, false);
    return ds_generate_with(m, ids, o);
}

/* Keys and values of the last call, in float32: of a layer, all but the last
 * column. */
static ds_tensor *cache_of(ds_module *m, const Call *c, int64_t layer, bool values)
{
    const dsi_lm_session *s = dsi_lm_of(m)->session;
    ds_tensor *x = (values ? s->cache.v : s->cache.k)[layer];
    return ds_to(ds_contiguous(ds_slice(x, 2, 0, c->length + c->tokens - 1)), cpu, DS_F32);
}

static bool same_bits(ds_tensor *a, ds_tensor *b)
{
    return ds_numel(a) == ds_numel(b) &&
           !memcmp(ds_data(a), ds_data(b), (size_t)ds_numel(a) * ds_dtype_size(ds_dtype_of(a)));
}

/* The call of m, which had others before, beside that of a model like it, which
 * has none kept. */
static void check_call(ds_module *m, ds_module *fresh, const Call *c)
{
    ds_scope *scope = ds_scope_open();
    dsi_lm_session_drop(dsi_lm_of(fresh));
    ds_tensor *want = call_run(fresh, c, (ds_generate_opts){0}),
              *got = call_run(m, c, (ds_generate_opts){0});
    const dsi_lm_session *kept = dsi_lm_of(fresh)->session;
    int64_t layers = kept && kept->decoder ? dsi_lm_of(m)->config.layers : 0;
    CHECK(want && got && same_bits(want, got));
    for (int64_t i = 0; i < layers; i++)
        for (int values = 0; values < 2; values++)
            CHECK(same_bits(cache_of(fresh, c, i, values), cache_of(m, c, i, values)));
    ds_scope_close(scope);
}

/* ---- what a call costs ---- */

static int64_t recordings(void) { return dsi_device_get(gpu)->recordings; }

typedef struct Costs {
    int n;
    long launches[MOST], graphs[MOST], copies[MOST], waits[MOST]; /* when token i was there */
} Costs;

static bool costs_note(void *self, int64_t row, int64_t id)
{
    Costs *c = self;
    (void)id;
    if (row) return true;
    c->launches[c->n] = emulator_count("fake_cuda_launches");
    c->graphs[c->n] = emulator_count("fake_cuda_graph_launches");
    c->copies[c->n] = emulator_count("fake_cuda_copies");
    c->waits[c->n++] = emulator_count("fake_cuda_syncs");
    return true;
}

/* From its second token on, one launch each; ids and counters of the first are
 * copied. */
static void a_second_call_records_nothing(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt2-tied", "llama-rope3", "gemma2"};
    for (int i = 0; i < 3; i++) {
        const Call first = {2, 6, 12, 1, 2, i % 2, 0}, second = {2, 9, 14, 7, 0, i % 2, 0};
        ds_scope *scope = ds_scope_open();
        ds_module *m = model_on(names[i], gpu, DS_F32), *fresh = model_on(names[i], gpu, DS_F32);
        Costs c = {0};
        CHECK(call_run(m, &first, (ds_generate_opts){0}));
        int64_t before = recordings();
        CHECK(call_run(m, &second, (ds_generate_opts){.on_token = costs_note, .arg = &c}));
        CHECK_INT(recordings() - before, 0);
        CHECK_INT(c.n, second.tokens);
        for (int k = 1; k < c.n; k++) {
            CHECK_INT(c.launches[k] - c.launches[k - 1], 0);
            CHECK_INT(c.graphs[k] - c.graphs[k - 1], 1);
            CHECK_INT(c.copies[k] - c.copies[k - 1], k == 1 ? 4 : 2 + i % 2);
            CHECK_INT(c.waits[k] - c.waits[k - 1], 1);
        }
        check_call(m, fresh, &second);
        ds_module_free(m), ds_module_free(fresh);
        ds_scope_close(scope);
    }
}

/* Prompts, padding, batches, lengths and ways to choose in any order; two models
 * in turns. */
static void calls_in_any_order(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt2-tied", "gemma2", "phi3-longrope", "mistral-window"};
    ds_seed(3);
    for (int i = 0; i < (quick() ? 2 : 4); i++) {
        ds_dtype dtype = i == 1 ? DS_BF16 : DS_F32;
        ds_module *m[3];
        for (int k = 0; k < 3; k++) m[k] = model_on(names[i], gpu, dtype);
        for (int k = 0; k < (quick() || i > 1 ? 4 : 8); k++) {
            int x = (k * 7919 + i * 31) % 1009;
            Call c = {.rows = 1 + x % 7 / 4, .length = 3 + x % 23, .tokens = 1 + x % 19};
            c.drawn = x % 3 == 0, c.seed = x % 5, c.pads = x % 2 ? 2 : 0;
            if (c.length + c.tokens > 30) c.tokens = 30 - c.length;
            if (c.tokens < 3) c.tokens = 3; /* a decoder has a step */
            check_call(m[x % 2], m[2], &c);
        }
        for (int k = 0; k < 3; k++) ds_module_free(m[k]);
    }
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* ---- a context that grows ---- */

static ds_module *long_model(void)
{
    static const char config[] =
        "{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 130, \"hidden_size\": 16, "
        "\"intermediate_size\": 16, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "
        "\"num_key_value_heads\": 1}";
    folder_make();
    FILE *f = fopen(folder_path("config.json"), "w");
    CHECK(f && fputs(config, f) > 0 && fclose(f) == 0);
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_seed(11);
    ds_module *m = ds_pretrained_load(folder_path("config.json"), .no_weights = true);
    CHECK(m != NULL);
    folder_remove();
    return m;
}

/* Other numbers of warps and of blocks of a head come with other graphs: 1,100
 * and 1,200 columns have one. */
static void a_context_that_grows(void **state)
{
    (void)state;
    static const int64_t lengths[] = {40, 300, 500, 700, 1100, 1200, 1400, 90};
    static const bool records[] = {true, true, true, true, true, false, true, true};
    ds_module *m = long_model(), *fresh = long_model();
    for (int i = 0; i < 8; i++) {
        if (quick() && lengths[i] > 700) continue;
        const Call c = {1, lengths[i], 6, 5, 0, false, 0};
        ds_scope *scope = ds_scope_open();
        dsi_lm_session_drop(dsi_lm_of(fresh));
        ds_tensor *want = call_run(fresh, &c, (ds_generate_opts){0});
        int64_t before = recordings();
        ds_tensor *got = call_run(m, &c, (ds_generate_opts){0});
        CHECK(want && got && same_bits(want, got));
        CHECK_INT(recordings() - before, records[i] ? 3 : 0);
        CHECK(same_bits(cache_of(fresh, &c, 0, true), cache_of(m, &c, 0, true)));
        ds_scope_close(scope);
    }
    ds_module_free(m), ds_module_free(fresh);
}

/* ---- what ends a graph ---- */

static bool noted_session(ds_module *m) { return dsi_lm_of(m)->session; }

/* Tokens of m after a change beside those of another model with the same one. */
static void check_changed(ds_status (*change)(ds_module *m), bool ends)
{
    const Call c = {2, 6, 8, 1, 0, false, 0};
    ds_scope *scope = ds_scope_open();
    ds_module *m = model_on("llama-rope3", gpu, DS_F32),
              *fresh = model_on("llama-rope3", gpu, DS_F32);
    CHECK(call_run(m, &c, (ds_generate_opts){0}));
    CHECK_INT(change(m), DS_OK);
    CHECK_INT(change(fresh), DS_OK);
    int64_t before = recordings();
    ds_tensor *want = call_run(fresh, &c, (ds_generate_opts){0});
    int64_t new = recordings() - before;
    before = recordings();
    ds_tensor *got = call_run(m, &c, (ds_generate_opts){0});
    CHECK(want && got && same_bits(want, got));
    CHECK_INT(recordings() - before, ends ? new : 0);
    ds_module_free(m), ds_module_free(fresh);
    CHECK_INT(ds_set_device(cpu), DS_OK);
    ds_scope_close(scope);
}

static ds_status change_dtype(ds_module *m) { return ds_module_to(m, DS_BF16); }

static ds_status change_values(ds_module *m)
{
    for (int i = 0; i < ds_module_params(m); i++) {
        ds_tensor *x = ds_module_param_at(m, i, NULL);
        bool grad = ds_set_grad(false);
        ds_status status = ds_copy(x, ds_scale(x, i % 2 ? 1.25 : -0.5));
        ds_set_grad(grad);
        if (status != DS_OK) return status;
    }
    return DS_OK;
}

static ds_status adapters_of(ds_module *m, bool dora)
{
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_seed(8);
    ds_status status = ds_lora(m, .r = 2, .alpha = 90, .use_dora = dora);
    return status == DS_OK ? change_values(m) : status;
}

static ds_status change_adapters(ds_module *m) { return adapters_of(m, false); }
static ds_status change_dora(ds_module *m) { return adapters_of(m, true); }

static ds_status change_merge(ds_module *m)
{
    ds_status status = adapters_of(m, false);
    const Call c = {2, 6, 8, 1, 0, false, 0};
    CHECK(status != DS_OK || call_run(m, &c, (ds_generate_opts){0}));
    return status == DS_OK ? ds_lora_merge(m) : status;
}

/* A step of training gives the memory back. */
static ds_status change_training(ds_module *m)
{
    static const int64_t text[8] = {5, 9, 33, 70, 5, 25, 36, 6};
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_scope *scope = ds_scope_open();
    ds_optim *sgd = ds_optim_sgd(m, 0.05);
    ds_tensor *x = ds_from_data(DS_I64, ds_shape(1, 8), text);
    ds_tensor *loss = ds_call(m, x, x);
    CHECK(!noted_session(m));
    ds_status status = ds_backward(loss);
    if (status == DS_OK) status = ds_optim_step(sgd);
    ds_optim_free(sgd);
    ds_module_zero_grad(m);
    ds_scope_close(scope);
    return status;
}

static void what_ends_a_graph(void **state)
{
    (void)state;
    check_changed(change_dtype, true);
    check_changed(change_values, false);
    check_changed(change_adapters, true);
    check_changed(change_dora, true);
    check_changed(change_merge, true);
    check_changed(change_training, true);
}

/* Keys and values of a prompt are those of the parameters after a step that no
 * forward of the model ran. */
static void a_replayed_step_ends_a_prompt(void **state)
{
    (void)state;
    static const int64_t text[8] = {5, 9, 33, 70, 5, 25, 36, 6};
    const Call c = {1, 12, 8, 1, 0, false, 0};
    const ds_generate_opts keep = {.cache_prompt = true};
    ds_scope *scope = ds_scope_open();
    Training t = {.net = model_on("llama-rope3", gpu, DS_F32)};
    t.optim = ds_optim_sgd(t.net, 0.3);
    ds_step_graph *g = ds_step_graph_new(training_step, &t);
    ds_tensor *x = ds_from_data(DS_I64, ds_shape(1, 8), text);
    for (int i = 0; i < 6 && !ds_step_graph_replays(g); i++) CHECK(ds_step_graph_run(g, &x, 1));
    CHECK(ds_step_graph_replays(g));
    CHECK(call_run(t.net, &c, keep));
    CHECK(noted_session(t.net));
    CHECK_INT(ds_set_device(gpu), DS_OK);
    CHECK(ds_step_graph_run(g, &x, 1));
    CHECK(noted_session(t.net));
    ds_tensor *got = call_run(t.net, &c, keep);
    dsi_lm_session_drop(dsi_lm_of(t.net));
    ds_tensor *want = call_run(t.net, &c, (ds_generate_opts){0});
    CHECK(want && got && same_bits(want, got));
    ds_step_graph_free(g);
    ds_optim_free(t.optim);
    ds_module_free(t.net);
    ds_scope_close(scope);
}

/* DoRA's factors are of one call. */
static void factors_of_dora(void **state)
{
    (void)state;
    const Call c = {2, 6, 8, 1, 0, false, 0};
    ds_scope *scope = ds_scope_open();
    ds_module *m = model_on("llama-rope3", gpu, DS_F32),
              *fresh = model_on("llama-rope3", gpu, DS_F32);
    CHECK_INT(change_dora(m), DS_OK);
    CHECK_INT(change_dora(fresh), DS_OK);
    CHECK(call_run(m, &c, (ds_generate_opts){0}));
    CHECK_INT(change_values(m), DS_OK);
    CHECK_INT(change_values(fresh), DS_OK);
    CHECK(same_bits(call_run(m, &c, (ds_generate_opts){0}),
                    call_run(fresh, &c, (ds_generate_opts){0})));
    ds_module_free(m), ds_module_free(fresh);
    ds_scope_close(scope);
}

/* ---- calls within calls ---- */

typedef struct Inner {
    ds_module *m;
    ds_tensor *want;
    bool same;
} Inner;

static bool inner_call(void *self, int64_t row, int64_t id)
{
    Inner *in = self;
    const Call c = {1, 5, 6, 2, 0, false, 0};
    (void)row, (void)id;
    ds_scope *scope = ds_scope_open();
    ds_tensor *got = call_run(in->m, &c, (ds_generate_opts){0});
    in->same &= got && same_bits(got, in->want);
    ds_scope_close(scope);
    return true;
}

static void calls_within_calls(void **state)
{
    (void)state;
    const Call outer = {1, 7, 9, 1, 0, false, 0}, inner = {1, 5, 6, 2, 0, false, 0};
    ds_scope *scope = ds_scope_open();
    ds_module *m = model_on("gpt2-tied", gpu, DS_F32), *fresh = model_on("gpt2-tied", gpu, DS_F32);
    ds_tensor *want = call_run(fresh, &outer, (ds_generate_opts){0});
    Inner in = {m, call_run(fresh, &inner, (ds_generate_opts){0}), true};
    for (int i = 0; i < 2; i++) {
        ds_tensor *got = call_run(m, &outer,
                                  (ds_generate_opts){.on_token = inner_call, .arg = &in});
        CHECK(in.same && got && same_bits(got, want));
    }
    ds_module_free(m), ds_module_free(fresh);
    ds_scope_close(scope);
}

/* ---- failures, memory ---- */

/* A failure leaves the next call as it was. */
static void calls_that_fail(void **state)
{
    (void)state;
    static const char *const calls[] = {"cuGraphLaunch=2", "cuStreamBeginCapture_v2=801",
                                        "cuGraphInstantiateWithFlags=2", "cuLaunchKernel=2"};
    const Call c = {2, 6, 6, 1, 2, false, 0}, other = {1, 6, 4, 1, 0, false, 0};
    for (int i = 0; i < 8; i++) {
        ds_scope *scope = ds_scope_open();
        ds_module *m = model_on("llama-rope3", gpu, DS_F32);
        ds_tensor *want = call_run(m, &c, (ds_generate_opts){0});
        if (i / 4) CHECK(call_run(m, &other, (ds_generate_opts){0}));
        CHECK_INT(setenv("FAKE_CUDA_FAIL", calls[i % 4], 1), 0);
        ds_tensor *y = call_run(m, &c, (ds_generate_opts){0});
        unsetenv("FAKE_CUDA_FAIL");
        if (y) CHECK(!ds_error() && same_bits(y, want));
        if (!y) CHECK(ds_error() && !noted_session(m));
        ds_error_clear();
        for (int k = 0; k < 2; k++) {
            y = call_run(m, &c, (ds_generate_opts){0});
            CHECK(y && same_bits(y, want));
        }
        ds_module_free(m);
        ds_scope_close(scope);
    }
}

static void allocations_that_fail(void **state)
{
    (void)state;
    const Call first = {1, 5, 4, 3, 0, false, 0}, c = {2, 6, 6, 1, 2, false, 0};
    ds_scope *scope = ds_scope_open();
    ds_module *m = model_on("llama-rope3", gpu, DS_F32);
    ds_tensor *want = call_run(m, &c, (ds_generate_opts){0});
    dsi_lm_session_drop(dsi_lm_of(m));
    size_t memory = ds_memory_allocated(gpu);
    int64_t tensors = ds_live_tensors();
    int failed = 0;
    for (int fail = 1; fail < (quick() ? 60 : 260); fail += quick() ? 17 : 31) {
        ds_scope *inner = ds_scope_open();
        CHECK(call_run(m, fail % 2 ? &first : &c, (ds_generate_opts){0}));
        Call failing = c;
        failing.fails = fail;
        ds_tensor *y = call_run(m, &failing, (ds_generate_opts){0});
        dsi_cache_fail(0, false);
        if (y) CHECK(!ds_error() && same_bits(y, want));
        if (!y) CHECK_INT(ds_error_status(), DS_ENOMEM);
        failed += !y;
        ds_error_clear();
        y = call_run(m, &c, (ds_generate_opts){0});
        CHECK(y && same_bits(y, want));
        dsi_lm_session_drop(dsi_lm_of(m));
        ds_scope_close(inner);
        CHECK_INT((long)ds_memory_allocated(gpu), (long)memory);
        CHECK_INT(ds_live_tensors(), tensors);
    }
    CHECK(failed > 1);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* Cache and graph are given up before an allocation fails, and with the model. */
static void memory_is_given_back(void **state)
{
    (void)state;
    const Call c = {2, 6, 10, 1, 0, false, 0};
    ds_scope *scope = ds_scope_open();
    CHECK_INT(ds_set_device(gpu), DS_OK);
    size_t before = ds_memory_allocated(gpu);
    ds_module *m = model_on("llama-rope3", gpu, DS_F32);
    ds_tensor *want = call_run(m, &c, (ds_generate_opts){0});
    CHECK(noted_session(m));
    size_t kept = ds_memory_allocated(gpu);
    CHECK_INT(ds_set_device(gpu), DS_OK);
    CHECK(!ds_empty(DS_F32, ds_shape((int64_t)1 << 40)));
    CHECK_INT(ds_error_status(), DS_ENOMEM);
    ds_error_clear();
    CHECK(!noted_session(m) && ds_memory_allocated(gpu) < kept);
    CHECK(same_bits(call_run(m, &c, (ds_generate_opts){0}), want));
    CHECK_INT((long)ds_memory_allocated(gpu), (long)kept);
    ds_module_free(m);
    CHECK_INT((long)ds_memory_allocated(gpu), (long)before);
    CHECK_INT(ds_set_device(cpu), DS_OK);
    ds_scope_close(scope);
}

/* ---- threads ---- */

static void *thread_run(void *arg)
{
    static const char *const names[] = {"gpt2-tied", "llama-rope3", "gemma2"};
    const char *name = names[*(int *)arg % 3];
    ds_module *m = model_on(name, gpu, DS_F32), *fresh = model_on(name, gpu, DS_F32);
    for (int k = 0; k < 4; k++) {
        const Call c = {1 + k / 3, 4 + k, 9, *(int *)arg, 0, k == 1, 0};
        check_call(m, fresh, &c);
    }
    ds_module_free(m), ds_module_free(fresh);
    return NULL;
}

static void threads_with_a_model_each(void **state)
{
    (void)state;
    pthread_t thread[3];
    int number[3] = {0, 1, 2};
    for (int i = 0; i < 3; i++)
        CHECK_INT(pthread_create(&thread[i], NULL, thread_run, &number[i]), 0);
    for (int i = 0; i < 3; i++) CHECK_INT(pthread_join(thread[i], NULL), 0);
}

int main(void)
{
    int skip = skip_without_emulator();
    if (skip) return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_call_records_nothing),
        cmocka_unit_test(calls_in_any_order),
        cmocka_unit_test(a_context_that_grows),
        cmocka_unit_test(what_ends_a_graph),
        cmocka_unit_test(a_replayed_step_ends_a_prompt),
        cmocka_unit_test(factors_of_dora),
        cmocka_unit_test(calls_within_calls),
        cmocka_unit_test(calls_that_fail),
        cmocka_unit_test(allocations_that_fail),
        cmocka_unit_test(memory_is_given_back),
        cmocka_unit_test(threads_with_a_model_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
