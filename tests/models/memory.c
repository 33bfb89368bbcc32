/* tests/models/memory.c: the memory of a GPT in training: in bfloat16 beside
 * float32, and beside what ds_estimate_memory says.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "folder.h"

enum { VOCABULARY = 8192, CONTEXT = 256, BATCH = 2 };

static const ds_device cpu = {DS_CPU, 0};

static ds_module *gpt_new(void)
{
    FILE *f = fopen(folder_path("config.json"), "w");
    fprintf(f,
            "{\"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": %d, \"n_positions\": %d, "
            "\"n_embd\": 256, \"n_layer\": 4, \"n_head\": 4, \"resid_pdrop\": 0, "
            "\"embd_pdrop\": 0, \"attn_pdrop\": 0}",
            VOCABULARY, CONTEXT);
    fclose(f);
    return ds_pretrained_load(folder_path(""), .no_weights = true);
}

/* [N,T] tokens */
static ds_tensor *tokens(void)
{
    int64_t p[BATCH * CONTEXT];
    for (int64_t i = 0; i < BATCH * CONTEXT; i++) p[i] = i * 7919 % VOCABULARY;
    return ds_from_data(DS_I64, ds_shape(BATCH, CONTEXT), p);
}

/* logits [N,T,V], labels [N,T] */
static ds_tensor *loss_of(ds_tensor *logits, ds_tensor *labels)
{
    return ds_cross_entropy(ds_flatten_range(logits, 0, 1), ds_flatten(labels, 0));
}

/* Bytes of forward and backward, with the parameters, at most. */
static size_t peak_alone(ds_dtype dtype)
{
    ds_scope *scope = ds_scope_open();
    ds_module *m = gpt_new();
    ds_tensor *x = tokens();
    CHECK_INT(ds_module_to(m, dtype), DS_OK);
    ds_memory_reset_peak(cpu);
    CHECK_INT(ds_backward(loss_of(ds_call(m, x), x)), DS_OK);
    size_t peak = ds_memory_peak(cpu);
    ds_module_free(m);
    ds_scope_close(scope);
    return peak;
}

static void half_of_float32(void **state)
{
    (void)state;
    double single = (double)peak_alone(DS_F32), half = (double)peak_alone(DS_BF16);
    CHECK_CLOSE(half / single, 0.5, 0.02);
}

/* The estimate of a training step by the engine, beside its memory. */
static void check_estimate(const char *config)
{
    ds_memory_estimate said;
    ds_scope *scope = ds_scope_open();
    ds_module *m = gpt_new();
    ds_tensor *x = tokens();
    CHECK_INT(ds_estimate_memory(&said, .config = config, .model = m, .input = x, .loss = loss_of,
                                 .target = x),
              DS_OK);
    ds_engine *e = ds_initialize(.model = m, .config = config);
    for (int i = 0; i < 2; i++) {
        ds_memory_reset_peak(cpu);
        ds_scope *step = ds_scope_open();
        CHECK_INT(ds_engine_backward(e, loss_of(ds_engine_forward(e, x), x)), DS_OK);
        CHECK_INT(ds_engine_step(e), DS_OK);
        ds_scope_close(step);
    }
    double peak = (double)ds_memory_peak(cpu);
    CHECK_CLOSE((double)said.peak / peak, 1, 0.02);
    ds_engine_free(e);
    ds_scope_close(scope);
}

static void estimate_counts_the_loss(void **state)
{
    (void)state;
    if (!quick())
        check_estimate(
            "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\"}}");
    check_estimate("{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\"}, "
                   "\"bf16\": {\"enabled\": true}}");
}

static void target_without_loss(void **state)
{
    (void)state;
    ds_memory_estimate said;
    ds_scope *scope = ds_scope_open();
    ds_module *m = ds_nn_linear(NULL, "m", 2, 2);
    ds_tensor *x = ds_ones(DS_F32, ds_shape(1, 2));
    CHECK_INT(ds_estimate_memory(&said, .config = "{\"train_batch_size\": 1}", .model = m,
                                 .input = x, .target = x),
              DS_EINVAL);
    CHECK_ERROR("a target without .loss");
    ds_module_free(m);
    ds_scope_close(scope);
}

static int enter(void **state)
{
    (void)state;
    return folder_make() ? 0 : -1;
}

static int leave(void **state)
{
    (void)state;
    folder_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_of_float32),
        cmocka_unit_test(estimate_counts_the_loss),
        cmocka_unit_test(target_without_loss),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
