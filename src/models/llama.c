/* models/llama.c: LlamaForCausalLM (Touvron et al., arXiv:2302.13971), and the
 * models that differ from it in biases, norms and windows: Qwen2, Mistral,
 * Qwen3. Names are those of transformers.
 *
 *     x = embed_tokens[ids]
 *     each layer: x += o_proj(attention(rope(q), rope(k), v) of input_layernorm(x))
 *                 h = post_attention_layernorm(x); x += down_proj(silu(gate_proj(h)) up_proj(h))
 *     logits = lm_head(norm(x))
 *
 * Invariants:
 * - A module's struct borrows lm, the root's struct, which outlives it.
 * - Modules are made and values drawn in the order of transformers' state dict.
 * - The number of a layer is its index in lm->blocks, in the cache of keys and
 *   values, and in config.sliding.
 * SPDX-License-Identifier: MIT */
#include "lm.h"

typedef struct Attention {
    dsi_lm *lm;
    int64_t layer;
    ds_module *q_proj, *k_proj, *v_proj, *o_proj;
    ds_module *q_norm, *k_norm; /* Qwen3: over a head; else NULL */
} Attention;

/* x [B,L,hidden] -> [B,L,heads,head_dim]. norm (NULL: none) is over the last
 * dimension, so each head is normalised by itself, before the rotation. */
static ds_tensor *attention_heads(const Attention *a, ds_module *proj, ds_module *norm,
                                  ds_tensor *x, int64_t heads)
{
    ds_tensor *y = ds_reshape(
        ds_call(proj, x), ds_shape(ds_size(x, 0), ds_size(x, 1), heads, a->lm->config.head_dim));
    return norm ? ds_call(norm, y) : y;
}

/* x [B,L,hidden] -> the same shape. The width of the heads together,
 * heads head_dim, need not be `hidden` (Qwen3). */
static ds_tensor *attention_forward(void *self, ds_tensor *x)
{
    Attention *a = self;
    const dsi_lm_config *c = &a->lm->config;
    ds_tensor *q = attention_heads(a, a->q_proj, a->q_norm, x, c->heads);
    ds_tensor *k = attention_heads(a, a->k_proj, a->k_norm, x, c->kv_heads);
    ds_tensor *v = attention_heads(a, a->v_proj, NULL, x, c->kv_heads);
    return ds_call(a->o_proj, dsi_lm_attend(a->lm, a->layer, q, k, v));
}

typedef struct Mlp {
    dsi_lm *lm;
    ds_module *gate_proj, *up_proj, *down_proj;
} Mlp;

/* SwiGLU (Shazeer, arXiv:2002.05202). x [B,L,hidden] -> [B,L,inner] twice ->
 * [B,L,hidden]. */
static ds_tensor *mlp_forward(void *self, ds_tensor *x)
{
    Mlp *m = self;
    ds_tensor *gate = dsi_lm_activate(m->lm->config.activation, ds_call(m->gate_proj, x));
    return ds_call(m->down_proj, ds_mul(gate, ds_call(m->up_proj, x)));
}

typedef struct Layer {
    ds_module *self_attn, *mlp, *input_layernorm, *post_attention_layernorm;
} Layer;

/* The sum x itself is normalised only by the body's last norm. */
static ds_tensor *layer_forward(void *self, ds_tensor *x)
{
    Layer *l = self;
    x = ds_add(x, ds_call(l->self_attn, ds_call(l->input_layernorm, x)));
    return ds_add(x, ds_call(l->mlp, ds_call(l->post_attention_layernorm, x)));
}

static const ds_module_type attention_type = {"Attention", sizeof(Attention),
                                              .forward = attention_forward},
                            mlp_type = {"MLP", sizeof(Mlp), .forward = mlp_forward},
                            layer_type = {"DecoderLayer", sizeof(Layer), .forward = layer_forward},
                            body_type = {.name = "Model"};

static ds_module *projection_new(dsi_lm_builder *b, ds_module *parent, const char *name, int64_t in,
                                 int64_t out, bool bias)
{
    return dsi_lm_linear_new(b, parent, name, in, out, bias, false, -1);
}

/* After a failure, such as a tensor that the file lacks, parameters are NULL
 * and the rest is made without values; dsi_lm_new frees the whole tree then. */
static ds_module *attention_new(dsi_lm *lm, dsi_lm_builder *b, ds_module *parent, int64_t layer)
{
    const dsi_lm_config *c = &lm->config;
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    size_t was;
    ds_module *m = dsi_lm_enter(b, parent, "self_attn", &attention_type, &was);
    Attention *a = ds_self(m);
    a->lm = lm, a->layer = layer;
    a->q_proj = projection_new(b, m, "q_proj", c->hidden, q, c->qkv_bias);
    a->k_proj = projection_new(b, m, "k_proj", c->hidden, kv, c->qkv_bias);
    a->v_proj = projection_new(b, m, "v_proj", c->hidden, kv, c->qkv_bias);
    a->o_proj = projection_new(b, m, "o_proj", q, c->hidden, c->o_bias);
    if (c->qk_norm) {
        a->q_norm = dsi_lm_norm_new(b, m, "q_norm", c->head_dim, true, c->eps);
        a->k_norm = dsi_lm_norm_new(b, m, "k_norm", c->head_dim, true, c->eps);
    }
    dsi_lm_leave(b, was);
    return m;
}

static ds_module *layer_new(dsi_lm *lm, dsi_lm_builder *b, ds_module *list, const char *name,
                            int64_t layer)
{
    const dsi_lm_config *c = &lm->config;
    size_t in_layer, in_mlp;
    ds_module *m = dsi_lm_enter(b, list, name, &layer_type, &in_layer);
    Layer *l = ds_self(m);
    l->self_attn = attention_new(lm, b, m, layer);
    l->mlp = dsi_lm_enter(b, m, "mlp", &mlp_type, &in_mlp);
    Mlp *mlp = ds_self(l->mlp);
    mlp->lm = lm;
    mlp->gate_proj = projection_new(b, l->mlp, "gate_proj", c->hidden, c->inner, c->mlp_bias);
    mlp->up_proj = projection_new(b, l->mlp, "up_proj", c->hidden, c->inner, c->mlp_bias);
    mlp->down_proj = projection_new(b, l->mlp, "down_proj", c->inner, c->hidden, c->mlp_bias);
    dsi_lm_leave(b, in_mlp);
    l->input_layernorm = dsi_lm_norm_new(b, m, "input_layernorm", c->hidden, true, c->eps);
    l->post_attention_layernorm = dsi_lm_norm_new(b, m, "post_attention_layernorm", c->hidden, true,
                                                  c->eps);
    dsi_lm_leave(b, in_layer);
    return m;
}

static void llama_build(dsi_lm *lm, ds_module *root, dsi_lm_builder *b)
{
    const dsi_lm_config *c = &lm->config;
    size_t in_body;
    lm->body = dsi_lm_enter(b, root, "model", &body_type, &in_body);
    lm->embed = dsi_lm_embedding_new(b, lm->body, "embed_tokens", c->vocab, c->hidden);
    dsi_lm_blocks_new(lm, b, "layers", layer_new);
    lm->norm = dsi_lm_norm_new(b, lm->body, "norm", c->hidden, true, c->eps);
    dsi_lm_leave(b, in_body);
    if (!c->tied) lm->head = projection_new(b, root, "lm_head", c->hidden, c->vocab, false);
}

/* ids [B,L] int64 -> [B,L,hidden] after the last norm: the caller applies the
 * head, perhaps to the last position only, or in chunks. */
static ds_tensor *llama_hidden(dsi_lm *lm, ds_tensor *ids)
{
    ds_tensor *x = ds_call(lm->embed, ids);
    for (int64_t i = 0; x && i < lm->config.layers; i++) x = dsi_lm_block(lm, i, x);
    return ds_call(lm->norm, x);
}

const dsi_lm_type dsi_lm_llama = {llama_hidden, llama_build, "model."};
