/* models/config_gpt.c: reads config.json of the families whose layer norms have
 * biases: GPT-2, OPT, GPT-NeoX. See config.c.
 * SPDX-License-Identifier: MIT */
#include "config_reader.h"

#include <math.h>
#include <string.h>

/* Names are those of transformers' ACT2FN. gelu_new, gelu_fast and
 * gelu_pytorch_tanh are one formula there, written in three ways. */
void dsi_lm_read_activation(dsi_lm_reader *r, dsi_lm_config *c, const char *key,
                            const char *otherwise)
{
    static const struct {
        const char *name;
        dsi_lm_activation activation;
    } names[] = {{"silu", DSI_LM_SILU},
                 {"swish", DSI_LM_SILU},
                 {"gelu", DSI_LM_GELU},
                 {"gelu_new", DSI_LM_GELU_TANH},
                 {"gelu_fast", DSI_LM_GELU_TANH},
                 {"gelu_pytorch_tanh", DSI_LM_GELU_TANH},
                 {"relu", DSI_LM_RELU}};
    const char *name = dsi_lm_read_text(r, key, otherwise);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i].name, name)) {
            c->activation = names[i].activation;
            return;
        }
    dsi_lm_read_fail(r, DS_EINVAL, "%s \"%.40s\" is not implemented", key, name);
}

/* As many heads of keys as of queries, which share `hidden`. */
static void divide_heads(dsi_lm_reader *r, dsi_lm_config *c, const char *width, const char *heads)
{
    c->kv_heads = c->heads;
    if (r->status == DS_OK && c->hidden % c->heads)
        dsi_lm_read_fail(r, DS_EFORMAT, "%s is %lld: expected a multiple of %s, %lld", width,
                         (long long)c->hidden, heads, (long long)c->heads);
    c->head_dim = c->hidden / c->heads;
    c->score_scale = c->head_dim ? 1 / sqrt((double)c->head_dim) : 1;
}

/* Defaults are those of GPT2Config; -1 marks a size without a default here,
 * whose absence is a failure. GPT-2 has as many heads of keys as of queries. */
static void read_gpt2(dsi_lm_reader *r, dsi_lm_config *c)
{
    c->hidden = dsi_lm_read_int(r, "n_embd", 1, 1 << 20, -1);
    c->layers = dsi_lm_read_int(r, "n_layer", 1, DSI_LM_MAX_LAYERS, -1);
    c->heads = dsi_lm_read_int(r, "n_head", 1, 1 << 16, -1);
    c->positions = dsi_lm_read_int(r, "n_positions", 1, 1 << 30, 1024);
    c->inner = dsi_lm_read_int(r, "n_inner", 1, 1 << 24, 4 * c->hidden);
    c->eps = dsi_lm_read_number(r, "layer_norm_epsilon", 0, 1, 1e-5);
    c->embedding_dropout = dsi_lm_read_number(r, "embd_pdrop", 0, 1, 0.1);
    c->attention_dropout = dsi_lm_read_number(r, "attn_pdrop", 0, 1, 0.1);
    c->residual_dropout = dsi_lm_read_number(r, "resid_pdrop", 0, 1, 0.1);
    bool scaled = dsi_lm_read_bool(r, "scale_attn_weights", true);
    c->scale_by_layer = dsi_lm_read_bool(r, "scale_attn_by_inverse_layer_idx", false);
    c->tied = dsi_lm_read_bool(r, "tie_word_embeddings", true);
    dsi_lm_read_activation(r, c, "activation_function", "gelu_new");
    divide_heads(r, c, "n_embd", "n_head");
    if (!scaled) c->score_scale = 1;
}

/* inner: the key of the width within an MLP. */
static void read_sizes(dsi_lm_reader *r, dsi_lm_config *c, const char *inner)
{
    c->hidden = dsi_lm_read_int(r, "hidden_size", 1, 1 << 20, -1);
    c->layers = dsi_lm_read_int(r, "num_hidden_layers", 1, DSI_LM_MAX_LAYERS, -1);
    c->heads = dsi_lm_read_int(r, "num_attention_heads", 1, 1 << 16, -1);
    c->inner = dsi_lm_read_int(r, inner, 1, 1 << 24, -1);
    c->positions = dsi_lm_read_int(r, "max_position_embeddings", 1, 1 << 30, 2048);
    divide_heads(r, c, "hidden_size", "num_attention_heads");
}

/* OPTConfig. opt-350m has norms behind the sums, none behind the last block,
 * and narrower embeddings. */
static void read_opt(dsi_lm_reader *r, dsi_lm_config *c)
{
    read_sizes(r, c, "ffn_dim");
    c->positions_skipped = 2;
    c->embedding = dsi_lm_read_int(r, "word_embed_proj_dim", 1, 1 << 20, c->hidden);
    c->init_std = dsi_lm_read_number(r, "init_std", 0, 100, 0.02);
    c->eps = 1e-5;
    c->attention_dropout = dsi_lm_read_number(r, "attention_dropout", 0, 1, 0);
    c->residual_dropout = dsi_lm_read_number(r, "dropout", 0, 1, 0.1);
    c->norm_first = dsi_lm_read_bool(r, "do_layer_norm_before", true);
    c->last_norm = c->norm_first && !dsi_lm_read_bool(r, "_remove_final_layer_norm", false);
    c->norm_weights = dsi_lm_read_bool(r, "layer_norm_elementwise_affine", true);
    c->qkv_bias = c->o_bias = c->mlp_bias = dsi_lm_read_bool(r, "enable_bias", true);
    c->tied = dsi_lm_read_bool(r, "tie_word_embeddings", true);
    dsi_lm_read_activation(r, c, "activation_function", "relu");
    if (dsi_lm_read_number(r, "layerdrop", 0, 1, 0) > 0)
        dsi_lm_read_fail(r, DS_EINVAL, "layerdrop is not 0: it is not implemented");
}

/* GPTNeoXConfig: rotary positions of a part of each head. */
static void read_gpt_neox(dsi_lm_reader *r, dsi_lm_config *c)
{
    read_sizes(r, c, "intermediate_size");
    c->eps = dsi_lm_read_number(r, "layer_norm_eps", 0, 1, 1e-5);
    c->attention_dropout = dsi_lm_read_number(r, "attention_dropout", 0, 1, 0);
    c->embedding_dropout = dsi_lm_read_number(r, "hidden_dropout", 0, 1, 0);
    c->residual_dropout = c->embedding_dropout;
    c->parallel = dsi_lm_read_bool(r, "use_parallel_residual", true);
    c->qkv_bias = c->o_bias = dsi_lm_read_bool(r, "attention_bias", true);
    c->tied = dsi_lm_read_bool(r, "tie_word_embeddings", false);
    dsi_lm_read_activation(r, c, "hidden_act", "gelu");
    c->ropes = 1;
    if (r->status == DS_OK) dsi_lm_read_rope(r, c, 1e4);
}

void dsi_lm_read_gpt(dsi_lm_reader *r, dsi_lm_config *c)
{
    if (c->family == DSI_GPT2) read_gpt2(r, c);
    if (c->family == DSI_OPT) read_opt(r, c);
    if (c->family == DSI_GPT_NEOX) read_gpt_neox(r, c);
}
