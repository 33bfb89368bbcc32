/* tests/gpu/lm.c: language models on the emulated GPU beside the CPU: greedy
 * tokens with padding, and losses of training, of each family; GPT-2's step as
 * a graph; logits of many classes; interpolation, whose positions the host
 * computes. The families differ in Mistral's window masks, Llama's table of
 * rotations, and GPT-2's learned positions.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "emulated.h"
#include "lm_step.h"

#include <deepspeed.h>

enum { ROWS = 2, LENGTH = 6, NEW = 6, STEPS = 2 };

static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};

/* Row 0 has two tokens of padding. */
static void generate_tokens(ds_module *m, int64_t *tokens)
{
    static const int64_t prompt[ROWS][LENGTH] = {{0, 0, 36, 6, 66, 4}, {155, 115, 33, 70, 5, 25}};
    static const int64_t present[ROWS][LENGTH] = {{0, 0, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1}};
    ds_tensor *ids = ds_from_data(DS_I64, ds_shape(ROWS, LENGTH), prompt);
    ds_tensor *mask = ds_from_data(DS_I64, ds_shape(ROWS, LENGTH), present);
    ds_tensor *y = ds_generate(m, ids, NEW, .attention_mask = mask, .repetition_penalty = 1.3);
    CHECK(y != NULL);
    CHECK_INT(ds_device_of(y).kind, ds_device_of(ids).kind);
    CHECK_INT(ds_numel(y), ROWS * NEW);
    memcpy(tokens, ds_data(y), ROWS * NEW * sizeof *tokens);
}

static void train_losses(ds_module *m, double *losses)
{
    static const int64_t text[ROWS * LENGTH] = {5, 9, 33, 70, 5, 25, 36, 6, 66, 4, 9, 12};
    ds_optim *adam = ds_optim_adamw(m, 0.01);
    for (int step = 0; step < STEPS; step++) {
        ds_tensor *x = ds_from_data(DS_I64, ds_shape(ROWS, LENGTH), text);
        ds_tensor *loss = ds_call(m, x, x);
        losses[step] = ds_item(loss);
        CHECK_INT(ds_backward(loss), DS_OK);
        CHECK_INT(ds_optim_step(adam), DS_OK);
        ds_optim_zero_grad(adam);
    }
    ds_optim_free(adam);
}

static void model_run(const char *folder, ds_device device, int64_t *tokens, double *losses)
{
    CHECK_INT(ds_set_device(device), DS_OK);
    ds_scope *scope = ds_scope_open();
    ds_module *m = ds_pretrained_load(folder);
    CHECK(m != NULL);
    CHECK_INT(ds_device_of(ds_module_param_at(m, 0, NULL)).kind, device.kind);
    generate_tokens(m, tokens);
    train_losses(m, losses);
    ds_module_free(m);
    ds_scope_close(scope);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static void models_equal_the_cpu(void **state)
{
    (void)state;
    static const char *const folders[] = {
        DS_GOLDEN "/lm/models/gpt2-tied",   DS_GOLDEN "/lm/models/mistral-window",
        DS_GOLDEN "/lm/models/llama-rope3", DS_GOLDEN "/lm/models/qwen2-tied",
        DS_GOLDEN "/lm/models/qwen3",       DS_GOLDEN "/lm/models/gemma2",
        DS_GOLDEN "/lm/models/gemma3",      DS_GOLDEN "/lm/models/phi3-longrope",
        DS_GOLDEN "/lm/models/gemma",       DS_GOLDEN "/lm/models/opt-350m",
        DS_GOLDEN "/lm/models/neox",        DS_GOLDEN "/lm/models/mixtral"};
    for (int i = 0; i < (quick() ? 2 : 12); i++) {
        int64_t want[ROWS * NEW], got[ROWS * NEW];
        double want_loss[STEPS], got_loss[STEPS];
        model_run(folders[i], cpu, want, want_loss);
        model_run(folders[i], gpu, got, got_loss);
        for (int k = 0; k < ROWS * NEW; k++) CHECK_INT(got[k], want[k]);
        for (int k = 0; k < STEPS; k++) CHECK_CLOSE(got_loss[k], want_loss[k], 1e-5);
    }
}

/* ---- a step as a graph ---- */

/* The third of equal lengths in a row is recorded; losses as without a graph. */
static void check_recorded(const char *folder, const int *length, int runs)
{
    CHECK_INT(ds_set_device(gpu), DS_OK);
    double loss[2][8];
    for (int with = 0; with < 2; with++) {
        ds_scope *scope = ds_scope_open();
        Training t = {.net = ds_pretrained_load(folder)};
        t.optim = ds_optim_adamw(t.net, 0.01);
        ds_step_graph *g = with ? ds_step_graph_new(training_step, &t) : NULL;
        for (int k = 0; k < runs; k++) {
            int64_t text[80];
            for (int i = 0; i < length[k]; i++) text[i] = (i * 7 + k) % 60;
            ds_tensor *x = ds_from_data(DS_I64, ds_shape(1, length[k]), text);
            loss[with][k] = ds_item(g ? ds_step_graph_run(g, &x, 1) : training_step(&t, &x, 1));
        }
        if (g) CHECK(ds_step_graph_replays(g));
        ds_step_graph_free(g);
        ds_optim_free(t.optim);
        ds_module_free(t.net);
        ds_scope_close(scope);
    }
    for (int k = 0; k < runs; k++) CHECK_CLOSE(loss[1][k], loss[0][k], 0);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* Positions are made on the GPU; a rotary table is made again for 65 or more. */
static void steps_are_recorded(void **state)
{
    (void)state;
    check_recorded(DS_GOLDEN "/lm/models/gpt2-tied", (int[]){12, 12, 12, 12, 12}, 5);
    check_recorded(DS_GOLDEN "/lm/models/llama-rope3", (int[]){60, 62, 70, 70, 70, 70}, 6);
    check_recorded(DS_GOLDEN "/lm/models/qwen2-moe-balance", (int[]){12, 12, 12, 12, 12}, 5);
}

/* ---- logits of many classes, whose rows have gaps between them on a GPU ---- */

enum { CLASSES = 1029, WIDTH = 16, TOKENS = 5, VALUES = TOKENS * (CLASSES + WIDTH) };

/* The logits and the gradient of x. */
static void logits_run(ds_device device, ds_dtype dtype, float *values)
{
    ds_scope *scope = ds_scope_open();
    static const int64_t label[TOKENS] = {0, 1028, 7, 512, 3};
    CHECK_INT(ds_set_device(device), DS_OK);
    ds_seed(3);
    ds_tensor *x = ds_require_grad(ds_cast(ds_randn(DS_F32, ds_shape(1, TOKENS, WIDTH)), dtype),
                                   true);
    ds_tensor *w = ds_cast(ds_randn(DS_F32, ds_shape(CLASSES, WIDTH)), dtype);
    ds_tensor *y = ds_linear(x, w, NULL), *rows = ds_reshape(y, ds_shape(-1, CLASSES));
    ds_tensor *loss = ds_cross_entropy(rows, ds_from_data(DS_I64, ds_shape(TOKENS), label));
    CHECK_INT(ds_backward(loss), DS_OK);
    ds_tensor *parts[] = {ds_flatten(y, 0), ds_flatten(ds_grad(x), 0)};
    ds_tensor *all = ds_to(ds_cast(ds_cat(parts, 2, 0), DS_F32), cpu, DS_F32);
    CHECK_INT(ds_numel(all), VALUES);
    memcpy(values, ds_data(all), VALUES * sizeof *values);
    ds_scope_close(scope);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static void logits_equal_the_cpu(void **state)
{
    (void)state;
    static const ds_dtype dtypes[] = {DS_F32, DS_F16, DS_BF16};
    static const double near[] = {1e-5, 1e-2, 8e-2};
    for (int i = 0; i < 3; i++) {
        static float want[VALUES], got[VALUES];
        logits_run(cpu, dtypes[i], want);
        logits_run(gpu, dtypes[i], got);
        for (int k = 0; k < VALUES; k++) CHECK_CLOSE(got[k], want[k], near[i]);
    }
}

static void interpolates(void **state)
{
    (void)state;
    for (int mode = DS_NEAREST; mode <= DS_BILINEAR; mode++) {
        if (mode == DS_LINEAR) continue;
        ds_scope *scope = ds_scope_open();
        ds_seed(1);
        ds_tensor *x = ds_randn(DS_F32, ds_shape(1, 2, 3, 4)), *y[2];
        for (int on = 0; on < 2; on++) {
            CHECK_INT(ds_set_device(on ? gpu : cpu), DS_OK);
            y[on] = ds_interpolate(ds_to(x, on ? gpu : cpu, DS_F32), .size = ds_shape(5, 7),
                                   .mode = (ds_interpolate_mode)mode);
            CHECK(y[on] != NULL);
        }
        CHECK_INT(ds_set_device(cpu), DS_OK);
        const float *want = ds_data(y[0]), *got = ds_data(y[1]);
        for (int i = 0; i < 70; i++) CHECK_CLOSE(got[i], want[i], 1e-6);
        ds_scope_close(scope);
    }
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_equal_the_cpu), cmocka_unit_test(steps_are_recorded),
        cmocka_unit_test(logits_equal_the_cpu), cmocka_unit_test(interpolates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
