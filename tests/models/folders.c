/* tests/models/folders.c: folders that are damaged, hostile or not implemented:
 * one line each; and models of a config.json alone.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/log.h"
#include "check.h"
#include "folder.h"

#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIZES \
    "\"vocab_size\": 11, \"hidden_size\": 8, \"num_hidden_layers\": 1, " \
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"intermediate_size\": 12"
#define LLAMA "\"architectures\": [\"LlamaForCausalLM\"], " SIZES
#define PHI3  "\"architectures\": [\"Phi3ForCausalLM\"], " SIZES
#define GEMMA "\"architectures\": [\"GemmaForCausalLM\"], " SIZES
#define MOE   "\"architectures\": [\"Qwen3MoeForCausalLM\"], " SIZES
#define OPT \
    "\"architectures\": [\"OPTForCausalLM\"], \"vocab_size\": 11, \"hidden_size\": 8, " \
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"ffn_dim\": 12, " \
    "\"max_position_embeddings\": 16"
#define NEOX "\"architectures\": [\"GPTNeoXForCausalLM\"], " SIZES ", \"rotary_pct\": 0.5"
#define GPT2 \
    "\"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": 11, \"n_embd\": 8, \"n_layer\": " \
    "1, \"n_head\": 2, \"n_positions\": 16"

static void write_file(const char *name, const char *text)
{
    FILE *f = fopen(folder_path(name), "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* A model of "{" text "}"; without weights. */
static ds_module *model_of(const char *text)
{
    char json[1200];
    snprintf(json, sizeof json, "{%s}", text);
    write_file("config.json", json);
    return ds_pretrained_load(folder_path(""), .no_weights = true);
}

static void refused(const char *text, const char *part)
{
    ds_module *m = model_of(text);
    if (m) fail_msg("not refused: %s", text);
    CHECK(ds_error() && !strchr(ds_error(), '\n'));
    CHECK_ERROR(part);
}

static void configs_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"\"architectures\": [\"BertModel\"]", "\"BertModel\" is not implemented"},
        {"\"architectures\": []", "architecture \"\""},
        {LLAMA ", \"vocab_size\": 4", "config.json: line 1"},
        {LLAMA ", \"hidden_act\": \"mish\"", "hidden_act \"mish\""},
        {LLAMA ", \"quantization_config\": {}", "quantization_config"},
        {LLAMA ", \"rope_scaling\": {\"type\": \"dynamic\"}", "factor is missing"},
        {LLAMA ", \"head_dim\": 2, \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}",
         "head_dim is 2: expected 4"},
        {LLAMA ", \"rope_scaling\": {\"type\": \"longrope\"}", "short_factor has 0 numbers"},
        {LLAMA ", \"rope_scaling\": {\"type\": \"su\"}",
         "\"su\" is not implemented: expected default, linear, dynamic, llama3, yarn or longrope"},
        {LLAMA ", \"rope_theta\": 1, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2}",
         "rope_theta is 1, beta_fast 32, beta_slow 1: expected a theta above 1"},
        {LLAMA ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"beta_slow\": 64}",
         "beta_slow 64: expected"},
        {LLAMA
         ", \"rope_scaling\": {\"type\": \"yarn\", \"original_max_position_embeddings\": 4096}",
         "factor is missing"},
        {LLAMA ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 0.5}",
         "factor is 0.5: expected 1"},
        {LLAMA ", \"rope_scaling\": {\"type\": \"linear\"}", "factor is missing"},
        {LLAMA ", \"rope_scaling\": 3", "no object"},
        {LLAMA ", \"rope_theta\": -1", "rope_theta is -1"},
        {LLAMA ", \"partial_rotary_factor\": 0.5", "partial_rotary_factor"},
        {LLAMA ", \"head_dim\": 3", "even head_dim"},
        {LLAMA ", \"head_dim\": -4", "head_dim is -4: expected 1"},
        {LLAMA ", \"rms_norm_eps\": \"small\"", "rms_norm_eps is no number"},
        {LLAMA ", \"tie_word_embeddings\": 1", "tie_word_embeddings is neither"},
        {GPT2 ", \"n_inner\": 99999999999999", "n_inner is 99999999999999"},
        {GPT2 ", \"add_cross_attention\": true", "add_cross_attention is true"},
        {GPT2 ", \"resid_pdrop\": 2", "resid_pdrop is 2"},
        {"\"architectures\": [\"GPT2LMHeadModel\"]", "vocab_size is missing"},
        {"\"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": -5", "vocab_size is -5"},
        {"\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 11, \"hidden_size\": 1048576, "
         "\"num_hidden_layers\": 4000000, \"num_attention_heads\": 2",
         "num_hidden_layers is 4000000"},
        {"\"architectures\": [\"Qwen2ForCausalLM\"], " SIZES
         ", \"use_sliding_window\": true, \"layer_types\": [\"chunked\"]",
         "\"chunked\" is not implemented"},
        {"\"architectures\": [\"Qwen2ForCausalLM\"], " SIZES ", \"layer_types\": []",
         "layer_types has 0"},
    };
    folder_make();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) refused(cases[i][0], cases[i][1]);
    CHECK(!ds_pretrained_load(""));
    CHECK_ERROR("pretrained_load: folder is \"\": expected the name of one");
    CHECK(!ds_pretrained_load("/no/such/folder"));
    CHECK_ERROR("pretrained_load: \"/no/such/folder\" is no folder");
    ds_module_free(model_of(LLAMA));
    CHECK(!ds_pretrained_load(folder_path("")));
    CHECK_ERROR("neither model.safetensors nor pytorch_model.bin, and no index.json of one; for a "
                "new model, name its config.json");
    CHECK_INT(remove(folder_path("config.json")), 0);
    CHECK_INT(mkfifo(folder_path("config.json"), 0600), 0); /* no writer: it must not wait */
    CHECK(!ds_pretrained_load(folder_path("")));
    CHECK_ERROR("config.json: not a regular file");
    folder_remove();
}

static void configs_of_families_are_refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {PHI3 ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}",
         "\"linear\" is not implemented: expected default or longrope"},
        {PHI3 ", \"rope_scaling\": {\"type\": \"su\", \"short_factor\": [1, 1]}",
         "rope: long_factor has 0 numbers: expected 2, one for each pair"},
        {PHI3 ", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, -1], "
              "\"long_factor\": [1, 1]}",
         "short_factor: number 1 is -1"},
        {PHI3 ", \"partial_rotary_factor\": 0.8", "3 elements of a head turn"},
        {MOE ", \"num_experts\": 2, \"num_experts_per_tok\": 3",
         "num_experts_per_tok is 3: expected at most the 2 experts"},
        {MOE ", \"num_experts\": -1", "num_experts is -1: expected 0"},
        {MOE ", \"moe_intermediate_size\": 0", "moe_intermediate_size is 0: expected 1"},
        {MOE ", \"router_aux_loss_coef\": -1", "router_aux_loss_coef is -1: expected 0"},
        {"\"architectures\": [\"MixtralForCausalLM\"], " SIZES ", \"router_jitter_noise\": 2",
         "router_jitter_noise is 2: expected 0"},
        {OPT ", \"layerdrop\": 0.1", "layerdrop is not 0: it is not implemented"},
        {"\"architectures\": [\"OPTForCausalLM\"], \"vocab_size\": 11, \"hidden_size\": 8, "
         "\"num_hidden_layers\": 1, \"num_attention_heads\": 3, \"ffn_dim\": 12",
         "hidden_size is 8: expected a multiple of num_attention_heads, 3"},
        {OPT ", \"word_embed_proj_dim\": 0", "word_embed_proj_dim is 0: expected 1"},
        {OPT ", \"activation_function\": \"mish\"", "activation_function \"mish\""},
        {NEOX ", \"rotary_emb_base\": 0", "rotary_emb_base is 0: expected 1"},
        {NEOX ", \"rope_scaling\": {\"type\": \"linear\"}", "factor is missing"},
        {"\"architectures\": [\"GPTNeoXForCausalLM\"], " SIZES ", \"rotary_pct\": 0.3",
         "1 elements of a head turn: expected an even number"},
        {GEMMA ", \"use_bidirectional_attention\": true", "use_bidirectional_attention is true"},
        {"\"architectures\": [\"Gemma2ForCausalLM\"], " SIZES ", \"sliding_window\": null",
         "sliding_window is null"},
        {"\"architectures\": [\"Gemma2ForCausalLM\"], " SIZES ", \"attn_logit_softcapping\": 0",
         "attn_logit_softcapping is 0"},
        {"\"architectures\": [\"Gemma3ForCausalLM\"], " SIZES
         ", \"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 2}",
         "\"dynamic\" is not implemented: expected default, linear, llama3, yarn or longrope"},
        {"\"architectures\": [\"Gemma3ForCausalLM\"], " SIZES ", \"layer_types\": [\"chunked\"]",
         "\"chunked\" is not implemented"},
    };
    folder_make();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) refused(cases[i][0], cases[i][1]);
    folder_remove();
}

/* Loads a model whose config.json ties the head. Transformers does so unless
 * the files have a head with other values. */
static void check_tied(const char *folder, bool tied)
{
    dsi_text lines = {0};
    dsi_log_collect(&lines, "");
    ds_module *m = ds_pretrained_load(folder);
    dsi_log_collect(NULL, NULL);
    CHECK(m && (lines.s != NULL) == !tied);
    CHECK(tied || strstr(lines.s, "lm_head.weight differs from the embeddings: they are not tied"));
    dsi_text_free(&lines);
    ds_tensor *head = ds_parameter(m, "lm_head.weight");
    CHECK((head != NULL) == !tied);
    ds_error_clear();
    CHECK_INT(ds_pretrained_save(m, folder_path("again")), DS_OK);
    json_t *saved = json_load_file(folder_path("again/config.json"), 0, NULL);
    CHECK_INT(json_is_true(json_object_get(saved, "tie_word_embeddings")), tied);
    json_decref(saved);
    ds_module_free(m);
}

/* The same values under both names are one parameter. */
static void heads_are_tied(void **state)
{
    (void)state;
    folder_make();
    char other[1100];
    snprintf(other, sizeof other, "%s", folder_path("saved"));
    ds_scope *scope = ds_scope_open();
    ds_module *m = model_of(LLAMA ", \"tie_word_embeddings\": true");
    CHECK_INT(ds_pretrained_save(m, other), DS_OK);
    check_tied(other, true);
    ds_state *weights = ds_module_state(m);
    CHECK_INT(ds_state_set(weights, "lm_head.weight",
                           ds_clone(ds_parameter(m, "model.embed_tokens.weight"))),
              DS_OK);
    CHECK_INT(ds_save(weights, folder_path("saved/model.safetensors")), DS_OK);
    check_tied(other, true);
    CHECK_INT(ds_state_set(weights, "lm_head.weight", ds_zeros(DS_F32, ds_shape(11, 8))), DS_OK);
    CHECK_INT(ds_save(weights, folder_path("saved/model.safetensors")), DS_OK);
    check_tied(other, false);
    ds_state_free(weights);
    ds_module_free(m);
    ds_scope_close(scope);
    folder_remove();
}

static void weights_that_do_not_fit(void **state)
{
    (void)state;
    folder_make();
    char other[1100];
    snprintf(other, sizeof other, "%s", folder_path("saved"));
    ds_module *m = model_of(LLAMA);
    CHECK_INT(ds_pretrained_save(m, other), DS_OK);
    ds_module_free(m);
    json_t *saved = json_load_file(folder_path("saved/config.json"), 0, NULL);
    assert_string_equal(json_string_value(json_object_get(saved, "model_type")), "llama");
    json_decref(saved);

    ds_module *again = ds_pretrained_load(other);
    CHECK(again);
    ds_module_free(again);
    write_file("saved/config.json", "{" LLAMA ", \"tie_word_embeddings\": true, \"x\": [1]}");
    check_tied(other, false);
    write_file("saved/config.json", "{" LLAMA ", \"attention_bias\": true}");
    CHECK(!ds_pretrained_load(other));
    CHECK_ERROR("have no model.layers.0.self_attn.q_proj.bias");
    write_file("saved/config.json", "{" LLAMA ", \"head_dim\": 6}");
    CHECK(!ds_pretrained_load(other));
    CHECK_ERROR("q_proj.weight is [8, 8]: config.json says [12, 8]");
    write_file("saved/config.json",
               "{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 11, "
               "\"hidden_size\": 8, \"num_hidden_layers\": 0}");
    CHECK(!ds_pretrained_load(other));
    CHECK_ERROR("num_hidden_layers is 0");

    write_file("saved/config.json", "{" LLAMA "}");
    write_file("saved/model.safetensors.index.json",
               "{\"weight_map\": {\"lm_head.weight\": \"../../config.json\"}}");
    remove(folder_path("saved/model.safetensors"));
    ds_error_clear();
    CHECK(!ds_pretrained_load(other));
    CHECK_ERROR("no name of a file beside it");
    folder_remove();
}

/* Weights of PyTorch's own format, whole or in shards, where there are no
 * others; what is saved beside them is safetensors, which then count. */
static void weights_of_pytorch(void **state)
{
    (void)state;
    char other[1100];
    folder_make();
    snprintf(other, sizeof other, "%s", folder_path("saved"));
    for (int shards = 0; shards < 2; shards++) {
        ds_scope *scope = ds_scope_open();
        ds_module *m = model_of(shards ? OPT : NEOX);
        ds_state *weights = ds_module_state(m);
        ds_tensor *ids = ds_randint(DS_I64, 0, 11, ds_shape(1, 7));
        ds_module_train(m, false);
        CHECK_INT(ds_pretrained_save(m, other), DS_OK);
        CHECK_INT(remove(folder_path("saved/model.safetensors")), 0);
        CHECK_INT(ds_save_sharded(weights, folder_path("saved/pytorch_model.bin"),
                                  shards ? 600 : 1 << 30),
                  DS_OK);
        CHECK(dsi_file_exists(folder_path("saved/pytorch_model.bin")) == !shards);
        ds_module *again = ds_pretrained_load(other);
        ds_module_train(again, false);
        CHECK_CLOSE(ds_item(ds_sum(ds_abs(ds_sub(ds_call(again, ids), ds_call(m, ids))))), 0, 0);
        CHECK_INT(ds_pretrained_save(again, other), DS_OK);
        CHECK_INT(truncate(folder_path("saved/pytorch_model.bin"), 9), shards ? -1 : 0);
        ds_module_free(again), again = ds_pretrained_load(other);
        CHECK(again);
        CHECK_INT(remove(folder_path("saved/model.safetensors")), 0);
        if (!shards) CHECK(!ds_pretrained_load(other));
        if (!shards) CHECK_ERROR("pytorch_model.bin");
        if (!shards) CHECK_INT(remove(folder_path("saved/pytorch_model.bin")), 0);
        ds_state_free(weights);
        ds_module_free(again), ds_module_free(m);
        ds_scope_close(scope);
    }
    folder_remove();
}

/* Parameters drawn at random: as transformers draws them; a loss near log V. */
static void new_models(void **state)
{
    (void)state;
    static const char gemma[] = GEMMA;
    static const char moe[] = MOE ", \"num_experts\": 4, \"num_experts_per_tok\": 2";
    static const char opt[] = OPT ", \"word_embed_proj_dim\": 4, \"pad_token_id\": 0";
    static const char *const configs[] = {GPT2, opt, LLAMA, PHI3, gemma, NEOX, moe};
    folder_make();
    for (int i = 0; i < 7; i++) {
        ds_scope *scope = ds_scope_open();
        ds_seed(1);
        ds_module *m = model_of(configs[i]);
        CHECK(m);
        CHECK_INT(ds_lm_info_of(m).vocab_size, 11);
        ds_module_train(m, false);
        ds_tensor *ids = ds_randint(DS_I64, 0, 11, ds_shape(2, 9));
        CHECK_CLOSE(ds_item(ds_call(m, ids, ids)), log(11), 0.1);
        CHECK(!ds_call(m, ds_zeros(DS_F32, ds_shape(2, 3))));
        CHECK_ERROR("ids are float32");
        ds_tensor *padding = ds_slice(ds_module_param_at(m, 0, NULL), 0, 0, 1);
        CHECK(!ds_item(ds_sum(ds_abs(padding))) ==
              (configs[i] == gemma || configs[i] == opt)); /* its pad_token_id */
        if (i < 2) CHECK(!ds_call(m, ds_zeros(DS_I64, ds_shape(1, 17))));
        if (i < 2) CHECK_ERROR("17 positions: the model has 16");
        CHECK(!ds_data(ds_call(m, ds_full(DS_I64, ds_shape(1, 2), 11))));
        CHECK_ERROR("11");
        ds_module_free(m);
        ds_scope_close(scope);
    }
    folder_remove();
}

static void generation_configs(void **state)
{
    (void)state;
    folder_make();
    dsi_text lines = {0};
    write_file("generation_config.json",
               "{\"eos_token_id\": [2, 5], \"do_sample\": true, \"temperature\": 0, \"top_k\": 0,"
               " \"min_p\": 0.1, \"num_beams\": 1, \"typical_p\": 1.0, \"no_repeat_ngram_size\": 3,"
               " \"suppress_tokens\": [], \"force_words_ids\": [[1]], \"stop_strings\": null,"
               " \"guidance_scale\": 1.5}");
    ds_module *m = model_of(LLAMA ", \"eos_token_id\": 1");
    dsi_log_collect(&lines, "");
    ds_generate_opts o = ds_generation_config(m);
    CHECK(o.n_stop == 2 && o.stop[0] == 2 && o.stop[1] == 5 && o.do_sample && o.top_k == -1);
    CHECK(o.temperature == DS_ZERO);
    CHECK(strstr(lines.s, "generation_config.json: not implemented, and without effect: "
                          "force_words_ids, guidance_scale\n"));
    dsi_text_free(&lines);
    write_file("generation_config.json", "{\"num_beams\": 4, \"early_stopping\": \"never\", "
                                         "\"length_penalty\": 0.0, \"num_return_sequences\": 2, "
                                         "\"num_beam_groups\": 1, \"typical_p\": 1.0}");
    o = ds_generation_config(m);
    CHECK(o.n_stop == 1 && o.stop[0] == 1 && !lines.n);
    CHECK(o.num_beams == 4 && o.early_stopping == DS_EARLY_STOPPING_NEVER);
    CHECK(o.length_penalty == DS_ZERO && o.num_return_sequences == 2);
    write_file("generation_config.json",
               "{\"eos_token_id\": [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 1000000]}");
    o = ds_generation_config(m);
    CHECK(o.n_stop == DS_MAX_STOP_TOKENS && o.stop[15] == 4);
    CHECK(strstr(lines.s, "eos_token_id has 17 ids, and the first 16 end a row\n"));
    write_file("generation_config.json", "{\"eos_token_id\": [2, 1000000]}");
    o = ds_generation_config(m); /* beyond the vocabulary: never chosen */
    CHECK(o.n_stop == 1 && o.stop[0] == 2);
    dsi_text_free(&lines);
    dsi_log_collect(NULL, NULL);
    ds_module_free(m);
    folder_remove();
}

static void adapters_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"c_attn"};
    folder_make();
    ds_module *m = model_of(LLAMA);
    CHECK_INT(ds_lora(m, .r = -1), DS_EINVAL);
    CHECK_ERROR("r -1");
    CHECK_INT(ds_lora_save(m, folder_path("x"), NULL), DS_EINVAL);
    CHECK_ERROR("with adapters");
    CHECK_INT(ds_lora(m, .targets = wrong, .n_targets = 1), DS_EINVAL);
    CHECK_ERROR("no linear layer \"c_attn\": it has q_proj, k_proj, v_proj, o_proj, gate_proj");
    CHECK_INT(ds_lora(m, .r = 4), DS_OK);
    CHECK_INT(ds_lora(m, .r = 4), DS_EINVAL);
    CHECK_ERROR("has adapters already");
    ds_module_free(m);
    static const char *const configs[][2] = {
        {"{\"peft_type\": \"IA3\"}", "peft_type \"IA3\""},
        {"{\"peft_type\": \"LORA\", \"lora_bias\": true}", "lora_bias is not implemented"},
        {"{\"peft_type\": \"LORA\", \"target_modules\": 3}", "expected a list"},
        {"{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"], \"r\": 2, "
         "\"init_lora_weights\": \"pissa\"}",
         "init_lora_weights \"pissa\" is not implemented"},
        {"{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"], \"r\": 2, "
         "\"rank_pattern\": {\".*q_proj\": 3}}",
         "rank_pattern: \".*q_proj\" is no name of layers"},
        {"{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"], \"r\": 2, "
         "\"alpha_pattern\": {\"q_proj\": 0}}",
         "alpha_pattern: q_proj is 0"},
        {"{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"], \"r\": -3}", "r is -3"},
        {"{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"], \"r\": 2}", "adapter_model"}};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        m = model_of(LLAMA);
        write_file("adapter_config.json", configs[i][0]);
        CHECK(ds_lora_load(m, folder_path("")) != DS_OK);
        CHECK_ERROR(configs[i][1]);
        ds_module_free(m);
    }
    folder_remove();
}

static ds_tensor *logits_of(ds_module *m, ds_tensor *ids)
{
    bool recording = ds_set_grad(false);
    ds_tensor *y = ds_call(m, ids);
    ds_set_grad(recording);
    return y;
}

/* Layers by the end of their path, the head among them; the same files with a
 * pattern for the layers, and with ranks and alphas by layer. */
static void adapters_by_path_and_pattern(void **state)
{
    (void)state;
    static const char *const targets[] = {"self_attn.q_proj", "lm_head"};
    folder_make();
    ds_scope *scope = ds_scope_open();
    ds_seed(5);
    ds_module *m = model_of(LLAMA);
    CHECK_INT(ds_pretrained_save(m, folder_path("base")), DS_OK);
    CHECK_INT(ds_lora(m, .r = 2, .alpha = 3, .targets = targets, .n_targets = 2), DS_OK);
    for (int i = 0; i < ds_module_params(m); i++) {
        ds_tensor *x = ds_module_param_at(m, i, NULL);
        if (ds_requires_grad(x))
            CHECK_INT(ds_copy(ds_detach(x), ds_randn(DS_F32, ds_shape_of(x))), DS_OK);
    }
    CHECK_INT(ds_lora_save(m, folder_path("a"), NULL), DS_OK);
    ds_module_train(m, false);
    ds_tensor *ids = ds_randint(DS_I64, 0, 11, ds_shape(1, 9)), *want = logits_of(m, ids);
    ds_tensor *each = ds_cross_entropy(ds_reshape(ds_slice(want, 1, 0, 8), ds_shape(8, 11)),
                                       ds_flatten(ds_slice(ids, 1, 1, 9), 0));
    CHECK_CLOSE(ds_item(ds_call(m, ids, ids)), ds_item(each), 1e-6);
    write_file("a/adapter_config.json",
               "{\"peft_type\": \"LORA\", \"target_modules\": \".*(q_proj|lm_head)\", \"r\": 7, "
               "\"lora_alpha\": 3, \"rank_pattern\": {\"self_attn.q_proj\": 2, \"lm_head\": 2}, "
               "\"alpha_pattern\": {\"model.layers.0.self_attn.q_proj\": 3}}");
    ds_module *again = ds_pretrained_load(folder_path("base"));
    CHECK_INT(ds_lora_load(again, folder_path("a")), DS_OK);
    ds_module_train(again, false);
    ds_tensor *got = logits_of(again, ids);
    CHECK(!memcmp(ds_data(got), ds_data(want), 9 * 11 * sizeof(float)));
    CHECK_INT(ds_lora_save(again, folder_path("b"), NULL), DS_OK); /* with the same keys */
    json_t *j = json_load_file(folder_path("b/adapter_config.json"), 0, NULL);
    CHECK_INT(json_integer_value(json_object_get(json_object_get(j, "rank_pattern"), "lm_head")),
              2);
    json_decref(j);
    ds_module_free(m), ds_module_free(again);
    ds_scope_close(scope);
    folder_remove();
}

/* With dropout of attention, and with checkpoints, the same gradient. */
static void checkpoint_compare(const char *model)
{
    double norm[2];
    for (int on = 0; on < 2; on++) {
        ds_scope *scope = ds_scope_open();
        ds_seed(5);
        ds_module *m = model_of(model);
        CHECK_INT(ds_lm_set_checkpointing(m, on), DS_OK);
        ds_tensor *ids = ds_randint(DS_I64, 0, 11, ds_shape(2, 9));
        CHECK_INT(ds_backward(ds_call(m, ids, ids)), DS_OK);
        norm[on] = ds_grad_norm(m);
        ds_module_free(m);
        ds_scope_close(scope);
    }
    CHECK(norm[0] > 0);
    CHECK_CLOSE(norm[1], norm[0], 0);
}

static void checkpoints_change_nothing(void **state)
{
    (void)state;
    folder_make();
    checkpoint_compare(GPT2 ", \"attn_pdrop\": 0.5");
    checkpoint_compare(LLAMA ", \"max_position_embeddings\": 5, \"rope_scaling\": {\"type\": "
                             "\"dynamic\", \"factor\": 2}");
    checkpoint_compare("\"architectures\": [\"Gemma2ForCausalLM\"], " SIZES
                       ", \"sliding_window\": 4, \"attention_dropout\": 0.5");
    checkpoint_compare(PHI3 ", \"resid_pdrop\": 0.5");
    checkpoint_compare("\"architectures\": [\"MistralForCausalLM\"], " SIZES
                       ", \"sliding_window\": 4, \"attention_dropout\": 0.5");
    folder_remove();
}

/* dynamic: a table for each length beyond the context, of which a GPU keeps 64,
 * as graphs may read them. Here some are dropped and made again. */
static void dynamic_lengths(void **state)
{
    (void)state;
    folder_make();
    ds_scope *scope = ds_scope_open();
    ds_module *m = model_of(LLAMA ", \"max_position_embeddings\": 5, \"rope_scaling\": {\"type\": "
                                  "\"dynamic\", \"factor\": 2}");
    ds_tensor *ids = ds_randint(DS_I64, 0, 11, ds_shape(1, 70));
    ds_tensor *first = logits_of(m, ds_slice(ids, 1, 0, 6));
    for (int64_t n = 7; n < 70; n++) CHECK(logits_of(m, ds_slice(ids, 1, 0, n)));
    bool host = ds_current_device().kind == DS_CPU;
    CHECK_INT(logits_of(m, ids) != NULL, host);
    if (!host) CHECK_ERROR("rows of more than 64 lengths");
    ds_error_clear();
    ds_tensor *again = logits_of(m, ds_slice(ids, 1, 0, 6));
    CHECK(!memcmp(ds_data(again), ds_data(first), 6 * 11 * sizeof(float)));
    ds_module_free(m);
    ds_scope_close(scope);
    folder_remove();
}

TEST_MAIN(cmocka_unit_test(configs_are_refused_by_name), cmocka_unit_test(dynamic_lengths),
          cmocka_unit_test(configs_of_families_are_refused),
          cmocka_unit_test(weights_that_do_not_fit), cmocka_unit_test(weights_of_pytorch),
          cmocka_unit_test(new_models), cmocka_unit_test(heads_are_tied),
          cmocka_unit_test(generation_configs), cmocka_unit_test(adapters_are_refused),
          cmocka_unit_test(adapters_by_path_and_pattern),
          cmocka_unit_test(checkpoints_change_nothing))
