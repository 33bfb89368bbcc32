/* tests/models/peer.c: folders that we write, read by transformers, peft and
 * tokenizers: peer.py is the other half, and compares logits and tokens.
 *
 * Runs with $DS_PEER_PYTHON, or python3; skipped if that lacks the libraries.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "folder.h"

#include <deepspeed/checkpoint.h>

#include <jansson.h>
#include <sys/wait.h>

#define SKIPPED 77
#define TOKENS  200 /* generated */

static int peer_run(const char *folder)
{
    const char *python = getenv("DS_PEER_PYTHON");
    char command[1200];
    snprintf(command, sizeof command, "'%s' '%s/tests/models/peer.py' '%s' 1>&2",
             python && *python ? python : "python3", DS_SOURCE_DIR, folder);
    int status = system(command);
    if (!WIFEXITED(status)) return -1;
    return !python && WEXITSTATUS(status) == 127 ? SKIPPED : WEXITSTATUS(status);
}

/* NAME.safetensors: ids [2,11], their logits, and the greedy tokens that follow
 * row 0, if `tokens` is not 0. */
static void write_logits(ds_module *m, const char *name, int64_t tokens)
{
    char file[300];
    ds_tensor *ids = ds_zeros(DS_I64, ds_shape(2, 11));
    int64_t *p = ds_data_mut(ids), vocab = ds_lm_info_of(m).vocab_size;
    for (int64_t i = 0; i < 22; i++) p[i] = (i * i * 31 + 7 * i + 3) % vocab;
    bool recording = ds_set_grad(false);
    ds_module_train(m, false);
    ds_state *state = ds_state_new();
    CHECK_INT(ds_state_set(state, "ids", ids), DS_OK);
    CHECK_INT(ds_state_set(state, "logits", ds_contiguous(ds_call(m, ids))), DS_OK);
    if (tokens)
        CHECK_INT(ds_state_set(state, "tokens", ds_generate(m, ds_slice(ids, 0, 0, 1), tokens)),
                  DS_OK);
    snprintf(file, sizeof file, "%s.safetensors", name);
    CHECK_INT(ds_safetensors_save(state, folder_path(file), NULL), DS_OK);
    ds_state_free(state);
    ds_set_grad(recording);
}

static void save_model(ds_module *m, const char *name, int64_t shard)
{
    char path[300];
    snprintf(path, sizeof path, "%s.model", name);
    CHECK_INT(ds_pretrained_save(m, folder_path(path), .max_shard_size = shard), DS_OK);
}

/* The model in float32, in shards, and in bfloat16. */
static void write_model(const char *name)
{
    char from[1100], half[100];
    snprintf(from, sizeof from, DS_GOLDEN "/lm/models/%s", name);
    snprintf(half, sizeof half, "%s.bf16", name);
    for (int k = 0; k < 2; k++) {
        ds_module *m = ds_pretrained_load(from, .dtype = k ? DS_BF16 : DS_F32);
        CHECK(m != NULL);
        save_model(m, k ? half : name, k ? 0 : 20000);
        write_logits(m, k ? half : name, k || !strncmp(name, "gpt2", 4) ? 0 : TOKENS);
        ds_module_free(m);
    }
}

/* A new GPT-2 with positions enough for TOKENS, and weights so large that tokens
 * differ clearly. */
static void write_gpt2(void)
{
    FILE *f = fopen(folder_path("gpt2.json"), "w");
    assert_non_null(f);
    fputs(
        "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\", \"vocab_size\": 300, "
        "\"n_embd\": 48, \"n_layer\": 2, \"n_head\": 3, \"n_positions\": 256, "
        "\"initializer_range\": 0.2}",
        f);
    fclose(f);
    ds_module *m = ds_pretrained_load(folder_path("gpt2.json"), .no_weights = true);
    save_model(m, "gpt2-long", 0);
    write_logits(m, "gpt2-long", TOKENS);
    ds_module_free(m);
}

/* Adapters that have values, their model, and that in which they are merged. */
static void write_adapter(const char *name, const char *as, ds_lora_opts o)
{
    char from[1100], file[100];
    snprintf(from, sizeof from, DS_GOLDEN "/lm/models/%s", name);
    ds_module *m = ds_pretrained_load(from);
    save_model(m, as, 0);
    o.r = 3, o.alpha = 6;
    CHECK_INT(ds_lora_with(m, o), DS_OK);
    for (int i = 0; i < ds_module_params(m); i++) {
        ds_tensor *x = ds_module_param_at(m, i, NULL);
        if (ds_requires_grad(x))
            CHECK_INT(ds_copy(ds_detach(x), ds_scale(ds_randn(DS_F32, ds_shape_of(x)), 0.2)),
                      DS_OK);
    }
    snprintf(file, sizeof file, "%s.lora", as);
    CHECK_INT(ds_lora_save(m, folder_path(file), NULL), DS_OK);
    snprintf(file, sizeof file, "%s.adapter", as);
    write_logits(m, file, 0);
    CHECK_INT(ds_lora_merge(m), DS_OK);
    snprintf(file, sizeof file, "%s.merged", as);
    save_model(m, file, 0);
    write_logits(m, file, 0);
    ds_module_free(m);
}

/* A tokenizer trained here, and its tokens of some texts. */
static void write_tokenizer(void)
{
    static const char *const texts[] = {"A plain sentence, twice: a plain sentence.",
                                        "  spaces\tand\n\nlines ", "żółć 漢字 🙂 don't",
                                        "x = {1: 'two'}; 12345"};
    const char *files[] = {DS_SOURCE_DIR "/assets/devils_dictionary.txt"};
    char path[1100];
    snprintf(path, sizeof path, "%s", folder_path("tokenizer.json"));
    CHECK_INT(ds_tokenizer_train(path, 400, .files = files, .n_files = 1), DS_OK);
    ds_tokenizer *t = ds_tokenizer_load(path);
    CHECK(t != NULL);
    json_t *cases = json_array();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        ds_tokens tokens = {0};
        json_t *ids = json_array();
        CHECK_INT(ds_encode(t, texts[i], strlen(texts[i]), &tokens,
                            (ds_encode_opts){.no_special_tokens = true}),
                  DS_OK);
        for (int64_t k = 0; k < tokens.n; k++)
            json_array_append_new(ids, json_integer(tokens.ids[k]));
        json_array_append_new(cases, json_pack("{s:s, s:o}", "text", texts[i], "ids", ids));
        ds_tokens_free(&tokens);
    }
    CHECK_INT(json_dump_file(cases, folder_path("text.json"), 0), 0);
    json_decref(cases);
    ds_tokenizer_free(t);
}

static void folders_are_read_by_python(void **state)
{
    (void)state;
    static const char *const models[] = {"gpt2-tied",  "llama-rope3", "mistral-window",
                                         "qwen2-tied", "qwen3",       "phi3-longrope",
                                         "gemma",      "gemma2",      "gemma3"};
    const char *folder = folder_make();
    ds_scope *scope = ds_scope_open();
    ds_seed(5);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) write_model(models[i]);
    static const char *const head[] = {"lm_head"}, *const two[] = {"wte", "ln_f"},
                             *const embedding[] = {"embed_tokens"};
    write_gpt2();
    write_adapter("gpt2-tied", "gpt2-lora", (ds_lora_opts){0});
    write_adapter("llama-rope3", "llama-lora", (ds_lora_opts){0});
    write_adapter("phi3-longrope", "phi3-lora", (ds_lora_opts){0});
    write_adapter("gemma2", "gemma2-head",
                  (ds_lora_opts){.modules_to_save = head, .n_modules_to_save = 1});
    write_adapter("gemma3", "gemma3-dora", (ds_lora_opts){.use_dora = true});
    write_adapter(
        "gpt2-tied", "gpt2-dora",
        (ds_lora_opts){
            .use_dora = true, .bias = "all", .modules_to_save = two, .n_modules_to_save = 2});
    write_adapter("qwen2-tied", "qwen2-head",
                  (ds_lora_opts){.use_dora = true,
                                 .bias = "lora_only",
                                 .modules_to_save = head,
                                 .n_modules_to_save = 1});
    write_adapter("qwen3", "qwen3-tied",
                  (ds_lora_opts){.modules_to_save = embedding,
                                 .n_modules_to_save = 1,
                                 .ensure_weight_tying = true});
    write_tokenizer();
    ds_scope_close(scope);
    int status = peer_run(folder);
    folder_remove();
    if (status == SKIPPED) skip();
    CHECK_INT(status, 0);
}

TEST_MAIN(cmocka_unit_test(folders_are_read_by_python))
