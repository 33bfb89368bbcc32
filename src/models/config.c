/* models/config.c: reads config.json: the family, and the keys of Llama and of
 * the families that are Llama with differences: Qwen2, Mistral, Qwen3, Phi-3,
 * Mixtral, Qwen2-MoE, Qwen3-MoE, SmolLM3, OLMo 2 and 3, Granite, Gemma, Gemma
 * 2, Gemma 3. config_gpt.c has those of GPT-2, OPT and GPT-NeoX.
 *
 * Keys are those of transformers 4 and 5. A key that the Python class of the
 * architecture does not read has no effect there, so it is ignored here; one
 * that it reads is either used, or must have the value under which it has no
 * effect. Numbers are checked for their range before anything is made of them.
 *
 * Invariants: a reader borrows the JSON object; only dsi_lm_config_read
 * releases it, and only after a failure. Values that are read after a failure
 * are within their range or unused, so that no reader divides by zero or
 * indexes outside.
 * SPDX-License-Identifier: MIT */
#include "config_reader.h"

#include "base/error.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- families ---- */

/* Keys and properties of the Python class. */
enum {
    ATTENTION_BIAS = 1, /* reads attention_bias */
    MLP_BIAS = 2,       /* mlp_bias */
    WINDOW = 4,         /* sliding_window */
    ASKED = 8,          /* sliding_window, but only with use_sliding_window */
    LAYER_TYPES = 16,   /* layer_types: which layers slide */
    TIED = 32,          /* the head is tied by default */
    QK_NORM = 64,       /* q and k have norms */
    TWO_ROPES = 128     /* layers that slide have rotary positions of their own */
};

/* Names, and the defaults of the Python class. */
typedef struct Family {
    const char *architecture, *model_type;
    int64_t kv_heads, head_dim; /* 0: as many as heads; hidden / heads */
    int64_t positions;
    int64_t window;        /* 0: without the key, there is none */
    int64_t bos, eos, pad; /* -1: none */
    double eps, theta;
    int has;
} Family;

static const Family families[] = {
    [DSI_GPT2] = {"GPT2LMHeadModel", "gpt2", .positions = 1024, .bos = -1, .eos = -1, .pad = -1},
    [DSI_OPT] = {"OPTForCausalLM", "opt", .positions = 2048, .bos = 2, .eos = 2, .pad = 1},
    [DSI_GPT_NEOX] = {"GPTNeoXForCausalLM", "gpt_neox", .positions = 2048, .eos = 2, .pad = -1},
    [DSI_LLAMA] = {"LlamaForCausalLM", "llama", 0, 0, 2048, 0, -1, -1, -1, 1e-6, 1e4,
                   ATTENTION_BIAS | MLP_BIAS},
    [DSI_QWEN2] = {"Qwen2ForCausalLM", "qwen2", 32, 0, 32768, 4096, -1, -1, -1, 1e-6, 1e4,
                   ASKED | LAYER_TYPES},
    [DSI_MISTRAL] = {"MistralForCausalLM", "mistral", 8, 0, 131072, 4096, -1, -1, -1, 1e-6, 1e4,
                     WINDOW | LAYER_TYPES},
    [DSI_QWEN3] = {"Qwen3ForCausalLM", "qwen3", 32, 128, 32768, 4096, -1, -1, -1, 1e-6, 1e4,
                   ASKED | LAYER_TYPES | QK_NORM | ATTENTION_BIAS},
    [DSI_PHI3] = {"Phi3ForCausalLM", "phi3", 0, 0, 4096, 0, 1, 32000, 32000, 1e-5, 1e4, WINDOW},
    [DSI_MIXTRAL] = {"MixtralForCausalLM", "mixtral", 8, 0, 131072, 0, 1, 2, -1, 1e-5, 1e6, WINDOW},
    [DSI_QWEN2_MOE] = {"Qwen2MoeForCausalLM", "qwen2_moe", 16, 0, 32768, 4096, -1, -1, -1, 1e-6,
                       1e4, ASKED | LAYER_TYPES},
    [DSI_QWEN3_MOE] = {"Qwen3MoeForCausalLM", "qwen3_moe", 4, 0, 32768, 4096, -1, -1, -1, 1e-6, 1e4,
                       ASKED | QK_NORM | ATTENTION_BIAS},
    [DSI_SMOLLM3] = {"SmolLM3ForCausalLM", "smollm3", 4, 0, 32768, 0, 128000, 128001, 128004, 1e-6,
                     2e6, ASKED | LAYER_TYPES | ATTENTION_BIAS | MLP_BIAS | TIED},
    [DSI_OLMO2] = {"Olmo2ForCausalLM", "olmo2", 0, 0, 2048, 0, -1, 50279, 1, 1e-5, 1e4,
                   ATTENTION_BIAS | QK_NORM},
    [DSI_OLMO3] = {"Olmo3ForCausalLM", "olmo3", 0, 0, 2048, 4096, -1, 50279, 1, 1e-5, 5e5,
                   ATTENTION_BIAS | QK_NORM | WINDOW | LAYER_TYPES | TWO_ROPES},
    [DSI_GRANITE] = {"GraniteForCausalLM", "granite", 0, 0, 2048, 0, 1, 2, -1, 1e-6, 1e4,
                     ATTENTION_BIAS | MLP_BIAS},
    [DSI_GEMMA] = {"GemmaForCausalLM", "gemma", 16, 256, 8192, 0, 2, 1, 0, 1e-6, 1e4,
                   ATTENTION_BIAS | TIED},
    [DSI_GEMMA2] = {"Gemma2ForCausalLM", "gemma2", 4, 256, 8192, 4096, 2, 1, 0, 1e-6, 1e4,
                    ATTENTION_BIAS | TIED | WINDOW | LAYER_TYPES},
    [DSI_GEMMA3] = {"Gemma3ForCausalLM", "gemma3_text", 4, 256, 131072, 4096, 2, 1, 0, 1e-6, 1e6,
                    ATTENTION_BIAS | TIED | QK_NORM | WINDOW | LAYER_TYPES | TWO_ROPES},
};
enum { FAMILIES = sizeof families / sizeof *families };

/* With the architectures that there are: "A, B or C". */
static void refuse_architecture(dsi_lm_reader *r, const char *name)
{
    char known[400];
    size_t n = 0;
    for (int i = 0; i < FAMILIES && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s",
                              !i                 ? ""
                              : i < FAMILIES - 1 ? ", "
                                                 : " or ",
                              families[i].architecture);
    dsi_lm_read_fail(r, DS_EINVAL, "architecture \"%.60s\" is not implemented: expected %s", name,
                     known);
}

/* "architectures", or "model_type" in a file that has none. */
static void read_family(dsi_lm_reader *r, dsi_lm_config *c)
{
    const char *name = json_string_value(json_array_get(dsi_lm_read_get(r, "architectures"), 0));
    const char *type = dsi_lm_read_text(r, "model_type", "");
    for (int i = 0; i < FAMILIES; i++)
        if (!strcmp(name ? families[i].architecture : families[i].model_type, name ? name : type)) {
            c->family = (dsi_lm_family)i;
            c->architecture = families[i].architecture;
            c->model_type = families[i].model_type;
            return;
        }
    refuse_architecture(r, name ? name : type);
}

/* Keys that change the result in a way that is not implemented. */
static void refuse_keys(dsi_lm_reader *r, const dsi_lm_config *c)
{
    static const char *const off[] = {"add_cross_attention", "is_encoder_decoder",
                                      "use_bidirectional_attention"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (dsi_lm_read_bool(r, off[i], false))
            dsi_lm_read_fail(r, DS_EINVAL, "%s is true: it is not implemented", off[i]);
    if (dsi_lm_read_get(r, "quantization_config"))
        dsi_lm_read_fail(r, DS_EINVAL,
                         "quantization_config: quantised weights are not implemented");
    if (json_object_size(dsi_lm_read_get(r, "pruned_heads")))
        dsi_lm_read_fail(r, DS_EINVAL, "pruned_heads: pruned heads are not implemented");
    if (c->family != DSI_PHI3 && c->family != DSI_GPT_NEOX &&
        dsi_lm_read_number(r, "partial_rotary_factor", 0, 1, 1) != 1)
        dsi_lm_read_fail(r, DS_EINVAL, "partial_rotary_factor is not 1: it is not implemented");
}

/* Whether a key is there and null, which is another value than its default. */
static bool is_null(const dsi_lm_reader *r, const char *key)
{
    return json_is_null(json_object_get(r->json, key));
}

static bool has(const dsi_lm_config *c, int what) { return families[c->family].has & what; }

/* Layer i slides in a file without layer_types: in Qwen those from
 * max_window_layers on (Qwen2-MoE: every other one before it; Qwen3-MoE: all),
 * in Gemma 2 every other one, in Gemma 3 all but every sixth, or every
 * sliding_window_pattern-th, in OLMo 3 all but every fourth, in SmolLM3 those
 * whose keys do not turn; else all. */
static void read_pattern(dsi_lm_reader *r, dsi_lm_config *c)
{
    bool qwen = has(c, ASKED) && c->family != DSI_SMOLLM3;
    int64_t full = qwen ? dsi_lm_read_int(r, "max_window_layers", 0, 1 << 30, 28) : 0;
    int64_t every = c->family == DSI_GEMMA2 ? 2 : c->family == DSI_OLMO3 ? 4 : 0;
    if (c->family == DSI_GEMMA3)
        every = dsi_lm_read_int(r, "sliding_window_pattern", 1, 1 << 30, 6);
    if (c->family == DSI_QWEN2_MOE)
        for (int64_t i = 0; i < c->layers; i++) c->sliding[i] = i % 2 == 0 && i < full;
    else if (c->family == DSI_SMOLLM3)
        memcpy(c->sliding, c->no_rope, sizeof c->sliding);
    else
        for (int64_t i = 0; i < c->layers; i++)
            c->sliding[i] = every ? (i + 1) % every != 0 : c->family == DSI_QWEN3_MOE || i >= full;
}

/* Which layers see a window of keys only; none if sliding_window is null. Qwen
 * and SmolLM3: only with use_sliding_window. These, Gemma, OLMo 3 and Mistral:
 * those of layer_types, if the file has it; transformers calls such a Mistral
 * Ministral. */
static void read_window(dsi_lm_reader *r, dsi_lm_config *c)
{
    const json_t *types = has(c, LAYER_TYPES) ? dsi_lm_read_get(r, "layer_types") : NULL;
    bool used = has(c, ASKED) ? dsi_lm_read_bool(r, "use_sliding_window", false) : has(c, WINDOW);
    if (c->family == DSI_SMOLLM3) used |= types != NULL; /* its masks follow layer_types alone */
    bool there = dsi_lm_read_get(r, "sliding_window");
    if (used && there) c->window = dsi_lm_read_int(r, "sliding_window", 1, 1 << 30, 1);
    if (used && !is_null(r, "sliding_window") && !there) c->window = families[c->family].window;
    if (c->post_norms && !c->window)
        dsi_lm_read_fail(r, DS_EFORMAT, "sliding_window is null: expected 1 or more");
    if (types && (int64_t)json_array_size(types) != c->layers) {
        dsi_lm_read_fail(r, DS_EFORMAT,
                         "layer_types has %lld entries: expected num_hidden_layers, %lld",
                         (long long)json_array_size(types), (long long)c->layers);
        return;
    }
    if (!types && c->window) read_pattern(r, c);
    for (int64_t i = 0; types && i < c->layers && c->window; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        c->sliding[i] = type && !strcmp(type, "sliding_attention");
        if (!c->sliding[i] && (!type || strcmp(type, "full_attention") != 0))
            dsi_lm_read_fail(r, DS_EINVAL, "layer_types: \"%.40s\" is not implemented",
                             type ? type : "");
    }
}

/* A cap of scores or logits; null: none. */
static double read_cap(dsi_lm_reader *r, const char *key, double otherwise)
{
    return is_null(r, key) ? 0 : dsi_lm_read_number(r, key, 1e-3, 1e6, otherwise);
}

/* Keys of the classes of Gemma that Llama's has not. Gemma 3 reads
 * attn_logit_softcapping, but its attention does not use it. Gemma took "gelu"
 * for the formula with tanh, as its first files say so. */
static void read_gemma(dsi_lm_reader *r, dsi_lm_config *c)
{
    c->norm_plus_1 = true;
    c->embedding_scale = sqrt((double)c->hidden);
    c->post_norms = c->family != DSI_GEMMA;
    dsi_lm_read_activation(r, c, c->post_norms ? "hidden_activation" : "hidden_act",
                           "gelu_pytorch_tanh");
    if (!c->post_norms) {
        if (c->activation == DSI_LM_GELU) c->activation = DSI_LM_GELU_TANH;
        return;
    }
    bool second = c->family == DSI_GEMMA2;
    c->score_scale = 1 / sqrt(dsi_lm_read_number(r, "query_pre_attn_scalar", 1e-6, 1e9, 256));
    if (second) c->attention_cap = read_cap(r, "attn_logit_softcapping", 50);
    c->logit_cap = read_cap(r, "final_logit_softcapping", second ? 30 : 0);
}

/* no_rope_layers: 0 for a layer whose keys do not turn; without it every
 * no_rope_layer_interval-th is one. */
static void read_no_rope(dsi_lm_reader *r, dsi_lm_config *c)
{
    const json_t *turns = dsi_lm_read_get(r, "no_rope_layers");
    int64_t every = dsi_lm_read_int(r, "no_rope_layer_interval", 1, 1 << 30, 4);
    if (turns && (int64_t)json_array_size(turns) < c->layers) {
        dsi_lm_read_fail(r, DS_EFORMAT,
                         "no_rope_layers has %lld entries: expected num_hidden_layers, %lld",
                         (long long)json_array_size(turns), (long long)c->layers);
        return;
    }
    for (int64_t i = 0; i < c->layers; i++)
        c->no_rope[i] = turns ? !json_integer_value(json_array_get(turns, (size_t)i))
                              : (i + 1) % every == 0;
}

static void read_granite(dsi_lm_reader *r, dsi_lm_config *c)
{
    double scale = dsi_lm_read_number(r, "embedding_multiplier", 1e-6, 1e6, 1);
    c->embedding_scale = scale == 1 ? 0 : scale;
    c->score_scale = dsi_lm_read_number(r, "attention_multiplier", 1e-6, 1e6, 1);
    c->residual_scale = dsi_lm_read_number(r, "residual_multiplier", 1e-6, 1e6, 1);
    c->hidden_scale = 1 / dsi_lm_read_number(r, "logits_scaling", 1e-6, 1e6, 1);
}

static void read_heads(dsi_lm_reader *r, dsi_lm_config *c, const Family *f)
{
    c->heads = dsi_lm_read_int(r, "num_attention_heads", 1, 1 << 16, -1);
    bool same = !f->kv_heads || is_null(r, "num_key_value_heads");
    c->kv_heads = dsi_lm_read_int(r, "num_key_value_heads", 1, 1 << 16,
                                  same ? c->heads : f->kv_heads);
    bool own_size = dsi_lm_read_get(r, "head_dim") || f->head_dim;
    c->head_dim = dsi_lm_read_int(r, "head_dim", 1, 1 << 16, f->head_dim ? f->head_dim : 1);
    if (!own_size && r->status == DS_OK && c->hidden % c->heads)
        dsi_lm_read_fail(r, DS_EFORMAT,
                         "hidden_size is %lld: expected a multiple of num_attention_heads, %lld",
                         (long long)c->hidden, (long long)c->heads);
    if (!own_size && c->heads) c->head_dim = c->hidden / c->heads;
    c->score_scale = c->head_dim ? 1 / sqrt((double)c->head_dim) : 1;
    if (r->status == DS_OK && (c->head_dim % 2 || c->heads % c->kv_heads))
        dsi_lm_read_fail(
            r, DS_EFORMAT,
            "head_dim is %lld, num_attention_heads %lld, num_key_value_heads %lld: expected "
            "an even head_dim, and heads that are a multiple of the last",
            (long long)c->head_dim, (long long)c->heads, (long long)c->kv_heads);
}

/* Experts, and which layers have them. */
static void read_experts(dsi_lm_reader *r, dsi_lm_config *c)
{
    bool mixtral = c->family == DSI_MIXTRAL, second = c->family == DSI_QWEN2_MOE;
    const json_t *dense = mixtral ? NULL : dsi_lm_read_get(r, "mlp_only_layers"), *layer;
    int64_t otherwise = dsi_lm_read_int(r, "num_local_experts", 0, 1 << 16,
                                        mixtral  ? 8
                                        : second ? 60
                                                 : 128);
    c->experts = dsi_lm_read_int(r, "num_experts", mixtral, 1 << 16, otherwise);
    c->experts_per_token = dsi_lm_read_int(r, "num_experts_per_tok", 1, 1 << 16,
                                           mixtral  ? 2
                                           : second ? 4
                                                    : 8);
    c->expert_inner = mixtral ? c->inner
                              : dsi_lm_read_int(r, "moe_intermediate_size", 1, 1 << 24,
                                                second ? 1408 : 768);
    if (second)
        c->shared_inner = dsi_lm_read_int(r, "shared_expert_intermediate_size", 1, 1 << 24, 5632);
    c->norm_topk = mixtral || dsi_lm_read_bool(r, "norm_topk_prob", false);
    int64_t step = mixtral ? 1 : dsi_lm_read_int(r, "decoder_sparse_step", 1, 1 << 30, 1);
    size_t k;
    for (int64_t i = 0; i < c->layers; i++) c->dense[i] = !c->experts || (i + 1) % step != 0;
    json_array_foreach(dense, k, layer)
    {
        json_int_t i = json_integer_value(layer);
        if (json_is_integer(layer) && i >= 0 && i < c->layers) c->dense[i] = true;
    }
    if (c->experts && c->experts_per_token > c->experts)
        dsi_lm_read_fail(r, DS_EFORMAT,
                         "num_experts_per_tok is %lld: expected at most the %lld experts",
                         (long long)c->experts_per_token, (long long)c->experts);
    double balance = dsi_lm_read_number(r, "router_aux_loss_coef", 0, 1e6, 0.001);
    if (dsi_lm_read_bool(r, "output_router_logits", false)) c->balance = balance;
    if (mixtral) c->jitter = dsi_lm_read_number(r, "router_jitter_noise", 0, 1, 0);
}

/* Keys and defaults of the classes of Llama's kind. Which biases exist is a
 * property of the class: Qwen2 always has those of q, k, v, Mistral and Phi-3
 * have none. Phi-3 reads embd_pdrop, but its model does not use it. */
static void read_llama(dsi_lm_reader *r, dsi_lm_config *c)
{
    const Family *f = &families[c->family];
    c->hidden = dsi_lm_read_int(r, "hidden_size", 1, 1 << 20, -1);
    c->layers = dsi_lm_read_int(r, "num_hidden_layers", 1, DSI_LM_MAX_LAYERS, -1);
    read_heads(r, c, f);
    c->inner = dsi_lm_read_int(r, "intermediate_size", 1, 1 << 24, -1);
    c->positions = dsi_lm_read_int(r, "max_position_embeddings", 1, 1 << 30, f->positions);
    c->eps = dsi_lm_read_number(r, "rms_norm_eps", 0, 1, f->eps);
    c->attention_dropout = dsi_lm_read_number(r, "attention_dropout", 0, 1, 0);
    if (c->family == DSI_PHI3) c->residual_dropout = dsi_lm_read_number(r, "resid_pdrop", 0, 1, 0);
    c->tied = dsi_lm_read_bool(r, "tie_word_embeddings", has(c, TIED));
    c->qkv_bias = c->o_bias = has(c, ATTENTION_BIAS) &&
                              dsi_lm_read_bool(r, "attention_bias", false);
    if (c->family == DSI_QWEN2) c->qkv_bias = true;
    if (c->family == DSI_QWEN2_MOE) c->qkv_bias = dsi_lm_read_bool(r, "qkv_bias", true);
    c->mlp_bias = has(c, MLP_BIAS) && dsi_lm_read_bool(r, "mlp_bias", false);
    c->qk_norm = has(c, QK_NORM);
    c->qk_norm_wide = c->post_norms_alone = c->family == DSI_OLMO2 || c->family == DSI_OLMO3;
    c->fused = c->family == DSI_PHI3;
    if (c->family == DSI_SMOLLM3) read_no_rope(r, c);
    if (c->family == DSI_GRANITE) read_granite(r, c);
    if (c->family >= DSI_GEMMA)
        read_gemma(r, c);
    else
        dsi_lm_read_activation(r, c, "hidden_act", "silu");
    read_window(r, c);
    if (c->family >= DSI_MIXTRAL && c->family <= DSI_QWEN3_MOE) read_experts(r, c);
    c->ropes = has(c, TWO_ROPES) ? 2 : 1;
    if (r->status == DS_OK) dsi_lm_read_rope(r, c, f->theta);
}

/* An id, or the first of a list of ids; -1: none. */
static int64_t read_token(dsi_lm_reader *r, const char *key, int64_t otherwise)
{
    const json_t *value = json_object_get(r->json, key);
    if (!value) return otherwise;
    if (json_is_array(value)) value = json_array_get(value, 0);
    return json_is_integer(value) ? json_integer_value(value) : -1;
}

ds_status dsi_lm_config_read(const char *text, size_t bytes, const char *name, dsi_lm_config *c,
                             json_t **json)
{
    json_error_t error;
    *c = (dsi_lm_config){0};
    *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!*json) return dsi_fail(DS_EFORMAT, "%s: line %d: %s", name, error.line, error.text);
    dsi_lm_reader r = {.name = name, .json = *json};
    if (!json_is_object(*json)) dsi_lm_read_fail(&r, DS_EFORMAT, "it holds no object");
    if (r.status == DS_OK) read_family(&r, c);
    if (r.status == DS_OK) {
        c->vocab = dsi_lm_read_int(&r, "vocab_size", 1, INT32_MAX, -1);
        c->init_std = dsi_lm_read_number(&r, "initializer_range", 0, 100, 0.02);
        const Family *f = &families[c->family];
        c->bos = read_token(&r, "bos_token_id", f->bos);
        c->eos = read_token(&r, "eos_token_id", f->eos);
        c->pad = read_token(&r, "pad_token_id", f->pad);
        refuse_keys(&r, c);
    }
    c->residual_scale = c->hidden_scale = 1;
    c->norm_first = c->last_norm = c->norm_weights = true;
    if (r.status == DS_OK) (c->family < DSI_LLAMA ? dsi_lm_read_gpt : read_llama)(&r, c);
    if (!c->embedding) c->embedding = c->hidden;
    if (r.status == DS_OK) return DS_OK;
    json_decref(*json);
    *json = NULL;
    return r.status;
}
