/* models/config.h: a config.json of Hugging Face's, checked: what a model of
 * these architectures is made of.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/types.h>

#include <jansson.h>

#define DSI_LM_MAX_LAYERS 4096

typedef enum dsi_lm_family { DSI_GPT2, DSI_LLAMA, DSI_QWEN2, DSI_MISTRAL, DSI_QWEN3 } dsi_lm_family;
typedef enum dsi_lm_activation {
    DSI_LM_GELU,
    DSI_LM_GELU_TANH,
    DSI_LM_RELU,
    DSI_LM_SILU
} dsi_lm_activation;
typedef enum dsi_rope {
    DSI_ROPE_DEFAULT,
    DSI_ROPE_LINEAR,
    DSI_ROPE_LLAMA3,
    DSI_ROPE_YARN
} dsi_rope;

typedef struct dsi_lm_config {
    dsi_lm_family family;
    const char *architecture; /* static: "LlamaForCausalLM" */
    int64_t vocab, hidden, inner, layers, heads, kv_heads, head_dim, positions;
    double eps; /* of the norms */
    dsi_lm_activation activation;
    bool tied;                       /* the head is the table of embeddings */
    bool qkv_bias, o_bias, mlp_bias; /* of the Llama family */
    bool qk_norm;
    double init_std; /* initializer_range */
    double embedding_dropout, attention_dropout, residual_dropout;
    bool scale_by_layer, no_scale; /* GPT-2: scores also over layer + 1; not over sqrt(head_dim) */
    dsi_rope rope;
    double theta, factor;
    double low_freq, high_freq; /* Llama 3: turns in the original context that bound the mix */
    double low_pair, high_pair; /* YaRN: indices of pairs that bound the mix */
    double rope_magnitude;      /* of cos and sin; 1 except with YaRN */
    int64_t original_positions;
    int64_t window;                  /* keys that a position of a sliding layer sees; 0: all */
    bool sliding[DSI_LM_MAX_LAYERS]; /* by layer */
    int64_t bos, eos, pad;           /* -1: none; eos: the first of several */
} dsi_lm_config;

/* Reads config.json's text. name begins messages. Fails with DS_EFORMAT for a
 * file that is damaged, with DS_EINVAL for an architecture or a key that would
 * change the result and is not implemented. *json receives the object, which
 * the caller releases. */
ds_status dsi_lm_config_read(const char *text, size_t bytes, const char *name, dsi_lm_config *c,
                             json_t **json);
