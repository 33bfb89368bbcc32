/* tests/models/lora.c: adapters and what is trained beside them: in ZeRO's
 * stages on two ranks, with dropout, in generation; what is refused. Values of
 * PEFT are in tests/reference/lm_lora.c.
 * SPDX-License-Identifier: MIT */
#include "device/device.h"
#include "folder.h"
#include "ranks.h"

#include <deepspeed/checkpoint.h>

enum { STEPS = 3, ROWS = 4, WIDTH = 10, VOCAB = 29 };

static const char *const gpt2 =
    "{\"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": 29, \"n_embd\": 16, \"n_layer\": "
    "2, \"n_head\": 2, \"n_positions\": 16, \"resid_pdrop\": 0, \"embd_pdrop\": 0, "
    "\"attn_pdrop\": 0}";
static const char *const qwen2 =
    "{\"architectures\": [\"Qwen2ForCausalLM\"], \"vocab_size\": 29, \"hidden_size\": 16, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
    "\"intermediate_size\": 24, \"tie_word_embeddings\": true}";

/* A folder "base" with weights that are not zero where new ones are. */
static const char *make_base(const char *config)
{
    FILE *f = fopen(folder_path("config.json"), "w");
    assert_non_null(f);
    fputs(config, f);
    fclose(f);
    ds_seed(7);
    ds_scope *scope = ds_scope_open();
    ds_module *m = ds_pretrained_load(folder_path("config.json"), .no_weights = true);
    for (int i = 0; i < ds_module_params(m); i++) {
        ds_tensor *x = ds_detach(ds_module_param_at(m, i, NULL));
        CHECK_INT(ds_copy(x, ds_add_scaled(x, ds_randn(DS_F32, ds_shape_of(x)), 0.1)), DS_OK);
    }
    CHECK_INT(ds_pretrained_save(m, folder_path("base")), DS_OK);
    ds_module_free(m);
    ds_scope_close(scope);
    return folder_path("base");
}

static ds_tensor *batch(int64_t rows, int64_t from)
{
    int64_t *p = malloc((size_t)(rows * WIDTH) * sizeof *p);
    for (int64_t i = 0; i < rows * WIDTH; i++) {
        int64_t at = from * WIDTH + i;
        p[i] = (at * at * 7 + at * 3 + 11) % VOCAB;
    }
    ds_tensor *x = ds_from_data(DS_I64, ds_shape(rows, WIDTH), p);
    free(p);
    return x;
}

static ds_tensor *logits_of(ds_module *m)
{
    bool recording = ds_set_grad(false);
    ds_tensor *y = ds_call(m, batch(2, 0));
    ds_set_grad(recording);
    return y;
}

static double difference(ds_tensor *a, ds_tensor *b)
{
    return ds_item(ds_norm_with(ds_sub(a, b), (ds_norm_opts){.p = INFINITY}));
}

/* ---- stages ---- */

typedef struct Run {
    char base[1100], adapter[1100], out[1100]; /* adapter: "", or the folder that is loaded */
    bool gpt2;
    int stage, ranks;
    double loss[STEPS];
} Run;

static ds_status make_adapters(ds_module *m, const Run *run)
{
    static const char *const qwen_saved[] = {"embed_tokens", "norm"};
    static const char *const gpt2_saved[] = {"lm_head", "wpe"};
    if (*run->adapter) return ds_lora_load(m, run->adapter);
    return ds_lora(m, .r = 2, .use_dora = true, .bias = run->gpt2 ? "all" : "lora_only",
                   .modules_to_save = run->gpt2 ? gpt2_saved : qwen_saved, .n_modules_to_save = 2,
                   .ensure_weight_tying = !run->gpt2);
}

/* Stage 3: the parameters are partitioned before adapters are added. */
static ds_status train(void *arg)
{
    Run *run = arg;
    int ranks = ds_comm_size(ds_world()), rank = ds_comm_rank(ds_world());
    char json[600];
    snprintf(
        json, sizeof json,
        "{\"train_micro_batch_size_per_gpu\": %d, \"optimizer\": {\"type\": \"AdamW\", "
        "\"params\": {\"lr\": 1e-2, \"weight_decay\": 0.1}}, \"zero_optimization\": {\"stage\": "
        "%d, \"stage3_param_persistence_threshold\": 20, \"reduce_bucket_size\": 500}}",
        ROWS / ranks, run->stage);
    ds_seed(3);
    ds_module *m = ds_pretrained_load(run->base, .config = run->stage == 3 ? json : NULL);
    if (!m || make_adapters(m, run) != DS_OK) return ds_error_status();
    ds_engine *e = ds_initialize(.model = m, .config = json);
    for (int i = 0; i < STEPS && e; i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *x = batch(ROWS / ranks, rank * ROWS / ranks), *loss = ds_engine_forward(e, x, x);
        ds_tensor *all = ds_scalar(DS_F64, ds_item(loss) / ranks);
        ds_engine_backward(e, loss);
        ds_engine_step(e);
        RANK_CHECK(ds_all_reduce(NULL, all, DS_REDUCE_SUM) == DS_OK);
        if (!rank) run->loss[i] = ds_item(all);
        ds_scope_close(scope);
    }
    ds_state *state = e ? ds_engine_state(e, true) : NULL;
    if (state && !rank) RANK_CHECK(ds_lora_save(m, run->out, state) == DS_OK);
    ds_state_free(state);
    ds_engine_free(e);
    return ds_error() ? ds_error_status() : DS_OK;
}

/* New adapters, and those that the first run has saved. */
static void stages_agree(void **state)
{
    (void)state;
    for (int c = quick(); c < 2; c++) {
        folder_make();
        Run one = {.gpt2 = c};
        snprintf(one.base, sizeof one.base, "%s", make_base(c ? gpt2 : qwen2));
        snprintf(one.out, sizeof one.out, "%s", folder_path("first"));
        for (int loaded = 0; loaded < 2; loaded++) {
            CHECK_INT(run_ranks(1, train, &one), DS_OK);
            CHECK(one.loss[STEPS - 1] < one.loss[0]);
            for (int stage = 0; stage <= 3; stage++) {
                Run two = one;
                two.stage = stage;
                snprintf(two.out, sizeof two.out, "%s", folder_path("other"));
                CHECK_INT(run_ranks(2, train, &two), DS_OK);
                for (int i = 0; i < STEPS; i++) CHECK_CLOSE(two.loss[i], one.loss[i], 2e-4);
            }
            snprintf(one.adapter, sizeof one.adapter, "%s", folder_path("first"));
            snprintf(one.out, sizeof one.out, "%s", folder_path("second"));
        }
        folder_remove();
    }
}

/* ---- DoRA ---- */

/* New adapters change nothing, also with dropout; magnitudes of twice their
 * size double the layer's product, of which dropout sees all but one. */
static void dora_with_dropout(void **state)
{
    (void)state;
    static const char *const targets[] = {"h.0.attn.c_attn"};
    folder_make();
    ds_scope *scope = ds_scope_open();
    ds_module *m = ds_pretrained_load(make_base(gpt2));
    ds_tensor *want = logits_of(m);
    CHECK_INT(
        ds_lora(m, .r = 2, .dropout = 0.5, .use_dora = true, .targets = targets, .n_targets = 1),
        DS_OK);
    CHECK_CLOSE(difference(logits_of(m), want), 0, 1e-5);
    ds_module_train(m, false);
    CHECK_CLOSE(difference(logits_of(m), want), 0, 1e-5);
    ds_module_train(m, true);

    ds_module *layer = ds_submodule(m, "transformer.h.0.attn.c_attn");
    ds_tensor *w = ds_parameter(layer, "weight"), *b = ds_parameter(layer, "bias");
    ds_tensor *mag = ds_parameter(layer, "lora_magnitude_vector.weight");
    CHECK_INT(ds_copy(ds_detach(mag), ds_scale(mag, 2)), DS_OK);
    ds_tensor *x = ds_randn(DS_F32, ds_shape(1, 5, 16));
    ds_seed(11);
    ds_tensor *y = ds_call(layer, x);
    ds_seed(11);
    ds_tensor *dropped = ds_dropout(x, 0.5, true);
    ds_tensor *sum = ds_add(ds_add(ds_matmul(x, w), b), ds_matmul(dropped, w));
    CHECK_CLOSE(difference(y, sum), 0, 1e-5);
    ds_module_free(m);
    ds_scope_close(scope);
    folder_remove();
}

/* The factors are computed once for all tokens, and again after the call. */
static void dora_in_generation(void **state)
{
    (void)state;
    folder_make();
    ds_scope *scope = ds_scope_open();
    ds_module *m = ds_pretrained_load(make_base(qwen2));
    CHECK_INT(ds_lora(m, .r = 2, .use_dora = true), DS_OK);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < ds_module_params(m); i++) {
            ds_tensor *x = ds_module_param_at(m, i, NULL);
            if (ds_requires_grad(x))
                CHECK_INT(ds_copy(ds_detach(x), ds_randn(DS_F32, ds_shape_of(x))), DS_OK);
        }
        ds_tensor *ids = batch(1, 0), *next = ds_generate(m, ids, 4);
        for (int64_t i = 0; i < 4; i++) { /* greedy: the whole row each time */
            ds_module_train(m, false);
            ds_tensor *y = ds_select(ds_select(ds_call(m, ids), 1, -1), 0, 0);
            int64_t best = (int64_t)ds_item(ds_argmax(y, 0));
            CHECK_INT(((const int64_t *)ds_data(next))[i], best);
            ids = ds_cat((ds_tensor *[]){ids, ds_slice(next, 1, i, i + 1)}, 2, 1);
        }
    }
    ds_module_free(m);
    ds_scope_close(scope);
    folder_remove();
}

/* As PEFT's autocast_adapter_dtype: adapters of a 16-bit model are float32,
 * made, saved and loaded, unless they are asked to keep its dtype. */
static void adapters_are_float32(void **state)
{
    (void)state;
    folder_make();
    ds_scope *scope = ds_scope_open();
    const char *base = make_base(gpt2);
    for (int kind = 0; kind < 4; kind++) {
        ds_module *m = ds_pretrained_load(base, .dtype = DS_BF16);
        bool keep = kind == 2;
        CHECK_INT(ds_lora(m, .use_dora = kind == 1, .dropout = kind == 3 ? 0.5 : 0,
                          .no_autocast_adapter_dtype = keep),
                  DS_OK);
        ds_tensor *b = ds_parameter(m, "transformer.h.0.attn.c_attn.lora_B.weight");
        CHECK_INT(ds_dtype_of(b), keep ? DS_BF16 : DS_F32);
        ds_tensor *loss = ds_call(m, batch(2, 0), batch(2, 0));
        CHECK_INT(ds_backward(loss), DS_OK);
        CHECK_INT(ds_dtype_of(ds_grad(b)), keep ? DS_BF16 : DS_F32);
        CHECK_INT(ds_copy(ds_detach(b), ds_full(DS_F32, ds_shape_of(b), 1.0 + 1.0 / 4096)), DS_OK);
        CHECK_INT(ds_dtype_of(logits_of(m)), DS_BF16);
        CHECK_INT(ds_lora_save(m, folder_path("adapter"), NULL), DS_OK);
        ds_module *again = ds_pretrained_load(base, .dtype = DS_BF16);
        CHECK_INT(ds_lora_load(again, folder_path("adapter")), DS_OK);
        ds_tensor *c = ds_parameter(again, "transformer.h.0.attn.c_attn.lora_B.weight");
        CHECK_INT(ds_dtype_of(c), DS_F32);
        CHECK_CLOSE(ds_item(ds_mean(c)), keep ? 1 : 1 + 1.0 / 4096, 1e-6);
        ds_module_free(m), ds_module_free(again);
    }
    ds_scope_close(scope);
    folder_remove();
}

/* ---- bad input ---- */

static void names_are_refused(void **state)
{
    (void)state;
    static const char *const list[] = {"h"}, *const none[] = {"score"}, *const both[] = {"_attn"};
    folder_make();
    const char *base = make_base(gpt2);
    ds_module *m = ds_pretrained_load(base);
    CHECK_INT(ds_lora(m, .bias = "some"), DS_EINVAL);
    CHECK_ERROR("bias is \"some\": expected none, all or lora_only");
    CHECK_INT(ds_lora(m, .modules_to_save = list, .n_modules_to_save = 1), DS_EINVAL);
    CHECK_ERROR("modules_to_save: transformer.h is a list of modules");
    CHECK_INT(ds_lora(m, .modules_to_save = none, .n_modules_to_save = 1), DS_EINVAL);
    CHECK_ERROR("the model has no module \"score\"");
    CHECK_INT(ds_lora(m, .modules_to_save = both, .n_modules_to_save = 1), DS_EINVAL);
    CHECK_ERROR("transformer.h.0.attn.c_attn is a target, and in modules_to_save");
    int params = ds_module_params(m);
    CHECK_INT(ds_lora(m, .r = 2), DS_OK); /* what was refused changed nothing */
    CHECK_INT(ds_module_params(m), params + 2 * 2);
    ds_module_free(m);
    folder_remove();
}

static void rewrite(ds_state *from, const char *without, const char *with, ds_dims shape)
{
    ds_state *out = ds_state_new();
    for (int i = 0; i < ds_state_len(from); i++)
        if (!strstr(ds_state_name(from, i), without))
            CHECK_INT(ds_state_set(out, ds_state_name(from, i), ds_state_at(from, i)), DS_OK);
    if (with) CHECK_INT(ds_state_set(out, with, ds_zeros(DS_F32, shape)), DS_OK);
    CHECK_INT(ds_safetensors_save(out, folder_path("a/adapter_model.safetensors"), NULL), DS_OK);
    ds_state_free(out);
}

static int trained(const ds_module *m)
{
    int n = 0;
    for (int i = 0; i < ds_module_params(m); i++)
        n += ds_requires_grad(ds_module_param_at(m, i, NULL));
    return n;
}

/* Files that do not fit change nothing: the next one can be loaded. So does a
 * load without memory, which also unties the head before it fails. */
static void files_are_refused(void **state)
{
    (void)state;
    static const char *const saved[] = {"ln_f", "wte"};
    static const struct {
        const char *without, *with, *message;
        int64_t size;
    } cases[] = {
        {"h.1.attn.c_attn.lora_magnitude", NULL, "has no base_model.model.transformer.h.1.attn", 0},
        {"ln_f.weight", NULL, "the adapter has no base_model.model.transformer.ln_f.weight", 0},
        {"ln_f.weight", "base_model.model.transformer.ln_f.weight",
         "transformer.ln_f.weight is [15]: expected [16]", 15},
        {"none", "base_model.model.score.weight",
         "the adapter has base_model.model.score.weight, the model has not", 3},
        {".bias", "base_model.model.transformer.ln_f.original_module.bias", NULL, 16}};
    folder_make();
    ds_scope *scope = ds_scope_open();
    char base[1100];
    snprintf(base, sizeof base, "%s", make_base(gpt2));
    ds_module *m = ds_pretrained_load(base);
    CHECK_INT(ds_lora(m, .use_dora = true, .bias = "all", .modules_to_save = saved,
                      .n_modules_to_save = 2),
              DS_OK);
    for (int i = 0; i < ds_module_params(m); i++) {
        ds_tensor *x = ds_detach(ds_module_param_at(m, i, NULL));
        if (ds_ndim(x) == 1) CHECK_INT(ds_copy(x, ds_shift(x, 1)), DS_OK);
    }
    CHECK_INT(ds_lora_save(m, folder_path("a"), NULL), DS_OK);
    ds_module_free(m);
    ds_state *file = ds_load(folder_path("a/adapter_model.safetensors"));
    m = ds_pretrained_load(base);
    int params = ds_module_params(m);
    double was = ds_item(ds_sum(ds_parameter(m, "transformer.ln_f.bias")));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rewrite(file, cases[i].without, cases[i].with, ds_shape(cases[i].size));
        for (int k = 1, done = 0; !cases[i].message && !done; k += 3) {
            dsi_cache_fail(k, false);
            done = ds_lora_load(m, folder_path("a")) == DS_OK;
            dsi_cache_fail(0, false);
            if (done) break;
            CHECK_INT(ds_error_status(), DS_ENOMEM);
            CHECK(ds_module_params(m) == params && trained(m) == params);
            ds_error_clear();
        }
        if (!cases[i].message) continue;
        CHECK_INT(ds_lora_load(m, folder_path("a")), DS_EFORMAT);
        CHECK_ERROR(cases[i].message);
        CHECK(ds_module_params(m) == params && trained(m) == params);
        CHECK_CLOSE(ds_item(ds_sum(ds_parameter(m, "transformer.ln_f.bias"))), was, 0);
    }
    CHECK(ds_module_params(m) > params && trained(m) < ds_module_params(m));
    ds_module_free(m);
    ds_state_free(file);
    ds_scope_close(scope);
    folder_remove();
}

TEST_MAIN(cmocka_unit_test(stages_agree), cmocka_unit_test(dora_with_dropout),
          cmocka_unit_test(dora_in_generation), cmocka_unit_test(adapters_are_float32),
          cmocka_unit_test(names_are_refused), cmocka_unit_test(files_are_refused))
