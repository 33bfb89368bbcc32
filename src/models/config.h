/* models/config.h: a config.json of Hugging Face's, checked: what a model of
 * these architectures is made of.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/shared.h"

#include <deepspeed/types.h>

#include <jansson.h>

#define DSI_LM_MAX_LAYERS 4096

typedef enum dsi_lm_family {
    DSI_GPT2,
    DSI_OPT,
    DSI_GPT_NEOX,
    DSI_LLAMA,
    DSI_QWEN2,
    DSI_MISTRAL,
    DSI_QWEN3,
    DSI_PHI3,
    DSI_MIXTRAL,
    DSI_QWEN2_MOE,
    DSI_QWEN3_MOE,
    DSI_SMOLLM3,
    DSI_OLMO2,
    DSI_OLMO3,
    DSI_GRANITE,
    DSI_GEMMA, /* the three of Gemma are the last ones */
    DSI_GEMMA2,
    DSI_GEMMA3
} dsi_lm_family;
typedef enum dsi_lm_activation {
    DSI_LM_GELU,
    DSI_LM_GELU_TANH,
    DSI_LM_RELU,
    DSI_LM_SILU
} dsi_lm_activation;
typedef enum dsi_rope_type {
    DSI_ROPE_DEFAULT,
    DSI_ROPE_LINEAR,
    DSI_ROPE_DYNAMIC,
    DSI_ROPE_LLAMA3,
    DSI_ROPE_YARN,
    DSI_ROPE_LONGROPE
} dsi_rope_type;

#define DSI_ROPE_FACTORS 256 /* of longrope, at most: pairs of a head */

/* Rotary positions: pair i of a head turns by an angle in each position. */
typedef struct dsi_rope {
    dsi_rope_type type;
    int64_t dim; /* elements of a head that turn, the first ones */
    double theta, factor;
    double low_freq, high_freq; /* Llama 3: turns in the original context that bound the mix */
    double low_pair, high_pair; /* YaRN: indices of pairs that bound the mix */
    double magnitude;           /* of cos and sin; 1 except with YaRN and longrope */
    int64_t original_positions; /* longrope, dynamic: longer rows turn otherwise */
    float pair_factor[2][DSI_ROPE_FACTORS]; /* longrope: of short rows, of long ones */
} dsi_rope;

typedef struct dsi_lm_config {
    dsi_lm_family family;
    const char *architecture; /* static: "LlamaForCausalLM" */
    const char *model_type;   /* static: "llama" */
    int64_t vocab, hidden, inner, layers, heads, kv_heads, head_dim, positions;
    int64_t embedding; /* width of the table of embeddings and of the head: hidden, except in OPT */
    int64_t experts, experts_per_token, expert_inner; /* experts 0: none */
    int64_t shared_inner;                             /* Qwen2-MoE: of the expert of all tokens */
    double balance; /* router_aux_loss_coef; 0: no load-balancing loss */
    double jitter;  /* Mixtral: inputs of experts times 1 - jitter to 1 + jitter; 0: not */
    bool norm_topk; /* the probabilities of a token's experts are divided by their sum */
    int64_t positions_skipped; /* first rows of the table of positions that are not used */
    double eps;                /* of the norms */
    dsi_lm_activation activation;
    bool tied;                       /* the head is the table of embeddings */
    bool qkv_bias, o_bias, mlp_bias; /* of the Llama family */
    bool qk_norm;
    bool qk_norm_wide;      /* over all heads together, before they part */
    bool norm_first;        /* norms are before attention and MLP, not behind the sums */
    bool last_norm;         /* and one is behind the last block */
    bool norm_weights;      /* layer norms have a weight and a bias */
    bool parallel;          /* GPT-NeoX: attention and MLP read the same sum */
    bool fused;             /* Phi-3: q, k and v are one matrix, and so are gate and up */
    bool post_norms;        /* Gemma 2 and 3: norms behind attention and MLP, too */
    bool post_norms_alone;  /* OLMo: there only */
    bool norm_plus_1;       /* Gemma: norms multiply by 1 + weight */
    double embedding_scale; /* Gemma: sqrt(hidden); 0: none */
    double residual_scale,
        hidden_scale;                /* Granite: of what a layer adds; before the head; 1: none */
    double attention_cap, logit_cap; /* x becomes cap tanh(x / cap); 0: none */
    double init_std;                 /* initializer_range */
    double embedding_dropout, attention_dropout, residual_dropout;
    double score_scale;  /* of scores; 1 / sqrt(head_dim), unless the file says otherwise */
    bool scale_by_layer; /* GPT-2: scores also over layer + 1 */
    int ropes;           /* 2 with Gemma 3: sliding layers have their own */
    dsi_rope rope[2];    /* of all layers, or of full attention; of sliding layers */
    int64_t window;      /* keys that a position of a sliding layer sees; 0: all */
    bool sliding[DSI_LM_MAX_LAYERS]; /* by layer */
    bool dense[DSI_LM_MAX_LAYERS];   /* no experts, by layer */
    bool no_rope[DSI_LM_MAX_LAYERS]; /* SmolLM3: keys do not turn, by layer */
    int64_t bos, eos, pad;           /* -1: none; eos: the first of several */
} dsi_lm_config;

/* Reads config.json's text. name begins messages. Fails with DS_EFORMAT for a
 * file that is damaged, with DS_EINVAL for an architecture or a key that would
 * change the result and is not implemented. *json receives the object, which
 * the caller releases. */
DSI_SHARED ds_status dsi_lm_config_read(const char *text, size_t bytes, const char *name,
                                        dsi_lm_config *c, json_t **json);
