/* tests/engine/estimate.c: what ds_estimate_memory says beside what an engine
 * then takes.
 * SPDX-License-Identifier: MIT */
#include "mlp.h"
#include "ranks.h"

#include "engine/engine.h"

enum { WIDTH = 160 };

/* The emulated GPU takes its time: fewer layers, samples, plans and ranks. */
static int layers(void) { return on_gpu() ? 4 : 8; }
static int batch(void) { return on_gpu() ? 2 : 8; }

/* The device of this thread: with DS_TEST_DEVICE=cuda each rank has a GPU. */
static ds_device here(void)
{
    ds_device device = {DS_CPU, 0};
    if (on_gpu()) device = (ds_device){DS_CUDA, ds_comm_rank(NULL)};
    return device;
}

typedef struct Case {
    int stage, steps;  /* steps: of accumulation */
    const char *dtype; /* "fp32", "fp16", "bf16" */
    const char *more;  /* keys of zero_optimization */
} Case;

static void write_config(const Case *c, char *text, size_t room)
{
    const char *form =
        "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d,"
        " \"fp16\": {\"enabled\": %s, \"initial_scale_power\": 4}, \"bf16\": {\"enabled\": %s},"
        " \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.001}},"
        " \"zero_optimization\": {\"stage\": %d, \"reduce_bucket_size\": 70000,"
        " \"stage3_param_persistence_threshold\": 1000, \"stage3_prefetch_bucket_size\": 70000,"
        " \"stage3_max_reuse_distance\": 0%s}}";
    snprintf(text, room, form, batch(), c->steps, strcmp(c->dtype, "fp16") ? "false" : "true",
             strcmp(c->dtype, "bf16") ? "false" : "true", c->stage, c->more);
}

/* The peak of the last of some steps. */
static int64_t train(ds_engine *e)
{
    for (int i = 0; i < 3 * ds_engine_gradient_accumulation_steps(e) && !ds_error(); i++) {
        if (ds_engine_micro_steps(e) % ds_engine_gradient_accumulation_steps(e) == 0) {
            ds_memory_reset_peak(here());
            dsi_cache_restart_peaks(dsi_device_get(here()));
        }
        ds_scope *turn = ds_scope_open();
        ds_tensor *x = ds_randn(ds_engine_dtype(e), ds_shape(batch(), WIDTH));
        ds_engine_backward(e, ds_mean(ds_engine_forward(e, x)));
        ds_engine_step(e);
        ds_scope_close(turn);
    }
    return (int64_t)ds_memory_peak(here());
}

static bool near(int64_t said, int64_t is, double by)
{
    if ((double)llabs(said - is) <= by * (double)is) return true;
    ds_fail(DS_ESTATE, "said %lld, and it is %lld", (long long)said, (long long)is);
    return false;
}

/* peak: of the device. An optimizer in host memory is not on a GPU. */
static ds_status compare(const Case *c, const ds_memory_estimate *said, dsi_zero_bytes is,
                         int64_t peak)
{
    RANK_CHECK(near(said->parameters, is.parameters, 0.05));
    RANK_CHECK(near(said->gradients, is.gradients, 0.05));
    RANK_CHECK(near(said->optimizer, is.optimizer, 0.05));
    bool away = here().kind == DS_CUDA && strstr(c->more, "offload_optimizer");
    RANK_CHECK(near(said->peak - (away ? said->optimizer : 0), peak, 0.1));
    if (here().kind == DS_CPU) return DS_OK;
    /* what the GPU has given: sizes are rounded up, by a quarter at most */
    int64_t held = (int64_t)dsi_cache_use(dsi_device_get(here())).peak_held;
    RANK_CHECK(held >= peak && held <= peak + peak / 4);
    return DS_OK;
}

static ds_status as_measured(void *arg)
{
    const Case *c = arg;
    int ranks = ds_comm_size(ds_world());
    char config[1000];
    ds_memory_estimate said = {0};
    write_config(c, config, sizeof config);
    RANK_CHECK(ds_set_device(here()) == DS_OK);
    ds_scope *scope = ds_scope_open();
    ds_module *m = mlp_new(layers(), WIDTH, ds_nn_relu);
    ds_estimate_memory(&said, .config = config, .world_size = ranks, .model = m,
                       .input = ds_randn(DS_F32, ds_shape(batch(), WIDTH)));
    ds_engine *e = ds_initialize(.model = m, .config = config);
    int64_t peak = train(e);
    dsi_zero_bytes is = dsi_zero_memory(e ? e->zero : NULL);
    ds_engine_free(e);
    ds_scope_close(scope);
    RANK_CHECK(!ds_error());
    return compare(c, &said, is, peak);
}

static void on_ranks(Case *c)
{
    if (!on_gpu())
        TEST_RANKS(as_measured, c);
    else if (run_ranks(2, as_measured, c) != DS_OK)
        fail_msg("stage %d, %s: %s", c->stage, c->dtype, ds_error());
}

static void every_stage_and_dtype(void **state)
{
    static const char *const dtypes[] = {"fp32", "fp16", "bf16"};
    (void)state;
    for (int stage = 0; stage < 4; stage++)
        for (int d = 0; d < 3; d++) {
            if (on_gpu() && (stage + d) % 3) continue;
            Case c = {stage, 1, dtypes[d], ""};
            on_ranks(&c);
        }
}

static void accumulation(void **state)
{
    (void)state;
    for (int stage = 0; stage < 4; stage += on_gpu() ? 2 : 1) {
        Case c = {stage, on_gpu() ? 2 : 3, stage % 2 ? "bf16" : "fp32", ""};
        on_ranks(&c);
    }
}

static void offloaded_optimizer(void **state)
{
    (void)state;
    for (int stage = 1; stage < 4; stage += on_gpu() ? 2 : 1) {
        Case c = {stage, 1, "fp32", ", \"offload_optimizer\": {\"device\": \"cpu\"}"};
        on_ranks(&c);
    }
}

/* ---- numbers alone ---------------------------------------------------------------------------------------- */

static ds_memory_estimate of_a_million(int stage, const char *dtype, int ranks)
{
    Case c = {stage, 1, dtype, ""};
    char config[1000];
    ds_memory_estimate said = {0};
    write_config(&c, config, sizeof config);
    ds_estimate_memory(&said, .config = config, .world_size = ranks, .params = 1000000,
                       .largest = 1000, .activations = 77);
    return said;
}

static void formulas(void **state)
{
    static const int64_t fp16[4] = {16000000, 4000000 + 12000000 / 8, 2000000 + 14000000 / 8,
                                    16000000 / 8};
    static const int64_t fp32[4] = {16000000, 8000000 + 8000000 / 8, 4000000 + 12000000 / 8,
                                    16000000 / 8};
    (void)state;
    for (int stage = 0; stage < 4; stage++) {
        ds_memory_estimate a = of_a_million(stage, "fp16", 8), b = of_a_million(stage, "fp32", 8);
        CHECK_INT(a.parameters + a.gradients + a.optimizer, fp16[stage]);
        CHECK_INT(b.parameters + b.gradients + b.optimizer, fp32[stage]);
        CHECK_INT(b.peak, fp32[stage] + b.passing + b.gathered);
        CHECK(b.passing >= 77);
        CHECK((b.gathered > 0) == (stage == 3));
        a = of_a_million(stage, "bf16", 1); /* nothing to divide */
        CHECK_INT(a.peak, 14000077);        /* half of a master is the parameter */
    }
}

/* ---- the model afterwards ---------------------------------------------------------------------------------- */

static void leaves_the_model_as_it_was(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = ds_nn_sequential(NULL, "net");
    ds_nn_conv2d(m, "conv", 3, 4, 3);
    ds_nn_batch_norm2d(m, "norm", 4);
    ds_tensor *x = ds_randn(DS_F32, ds_shape(2, 3, 8, 8));
    ds_state *before = ds_state_new(), *now = ds_module_state(m);
    for (int i = 0; i < ds_state_len(now); i++)
        CHECK_INT(
            ds_state_set(before, ds_state_name(now, i), ds_clone(ds_detach(ds_state_at(now, i)))),
            DS_OK);
    ds_memory_estimate said;
    CHECK_INT(ds_estimate_memory(&said,
                                 .config = "{\"train_batch_size\": 2,"
                                           " \"bf16\": {\"enabled\": true}}",
                                 .model = m, .input = x),
              DS_OK);
    CHECK(said.peak > 0);
    for (int i = 0; i < ds_state_len(now); i++) {
        ds_tensor *a = ds_state_at(now, i), *b = ds_state_at(before, i);
        CHECK_INT(ds_dtype_of(a), ds_dtype_of(b));
        CHECK_INT(
            memcmp(ds_data(a), ds_data(b), (size_t)ds_numel(a) * ds_dtype_size(ds_dtype_of(a))), 0);
        CHECK(!ds_grad(a));
    }
    ds_state_free(now);
    ds_state_free(before);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* The thread's generator and peak of memory, and the model's gradients, are
 * what they were. */
static void leaves_the_thread_as_it_was(void **state)
{
    (void)state;
    const char *config = "{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"Adam\"},"
                         " \"bf16\": {\"enabled\": true}}";
    ds_memory_estimate said;
    ds_scope *scope = ds_scope_open();
    ds_module *m = mlp_new(2, WIDTH, ds_nn_relu);
    ds_tensor *x = ds_randn(DS_F32, ds_shape(4, WIDTH)), *p = ds_module_param_at(m, 0, NULL);
    ds_backward(ds_mean(ds_call(m, x)));
    ds_tensor *grad = ds_grad(p), *grad_before = ds_clone(grad);
    ds_randn(DS_F32, ds_shape(3)); /* the fourth value waits in the generator */
    ds_tensor *before = ds_rng_state();
    ds_memory_reset_peak(here());
    size_t peak = ds_memory_peak(here());
    CHECK_INT(ds_estimate_memory(&said, .config = config, .params = 1000), DS_OK);
    CHECK_INT(ds_estimate_memory(&said, .config = config, .model = m, .input = x), DS_OK);
    CHECK_INT(ds_memory_peak(here()), peak);
    CHECK_INT(memcmp(ds_data(before), ds_data(ds_rng_state()), (size_t)ds_numel(before)), 0);
    CHECK(ds_grad(p) == grad);
    CHECK_INT(memcmp(ds_data(grad), ds_data(grad_before), (size_t)ds_numel(grad) * sizeof(float)),
              0);
    ds_module_free(m);
    ds_scope_close(scope);
}

static void refuses(void **state)
{
    (void)state;
    const char *config = "{\"train_batch_size\": 4}";
    ds_memory_estimate said;
    CHECK(ds_estimate_memory(&said, .config = config) != DS_OK);
    CHECK_ERROR("expected .params of 1 or more");
    CHECK(ds_estimate_memory(&said, .config = config, .params = 8, .largest = 9) != DS_OK);
    CHECK_ERROR("no parameter larger than all 8");
    CHECK(ds_estimate_memory(&said, .config = "{", .params = 8) != DS_OK);
    CHECK_ERROR("");
    CHECK(ds_estimate_memory(&said,
                             .config = "{\"train_batch_size\": 4, \"optimizer\":"
                                       " {\"type\": \"Nobody\"}}",
                             .params = 8) != DS_OK);
    CHECK_ERROR("Nobody");
    ds_scope *scope = ds_scope_open();
    ds_module *m = ds_nn_linear(NULL, "m", 3, 3);
    CHECK(ds_estimate_memory(&said, .config = config, .model = m) != DS_OK);
    CHECK_ERROR("a model without .input");
    CHECK(ds_estimate_memory(&said, .config = config, .model = m,
                             .input = ds_zeros(DS_F32, ds_shape(2, 5))) != DS_OK);
    CHECK_ERROR("linear");
    ds_module_free(m);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(every_stage_and_dtype), cmocka_unit_test(accumulation),
          cmocka_unit_test(offloaded_optimizer), cmocka_unit_test(formulas),
          cmocka_unit_test(leaves_the_model_as_it_was),
          cmocka_unit_test(leaves_the_thread_as_it_was), cmocka_unit_test(refuses))
