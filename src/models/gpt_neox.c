/* models/gpt_neox.c: GPTNeoXForCausalLM (Black et al., arXiv:2204.06745), of
 * which Pythia is made. Names are those of transformers.
 *
 *     x = embed_in[ids]
 *     each layer: x += dense(attention(rope(q), rope(k), v) of input_layernorm(x))
 *                    + mlp(post_attention_layernorm(x))
 *     logits = embed_out(final_layer_norm(x))
 *
 * Both parts of a layer read the same x, unless use_parallel_residual is false:
 * then the second one reads the sum of the first. A part of each head turns.
 * SPDX-License-Identifier: MIT */
#include "lm.h"

/* query_key_value: hidden -> q, k and v of the first head, of the second, ... */
typedef struct Attention {
    dsi_lm *lm;
    int64_t layer;
    ds_module *query_key_value, *dense;
} Attention;

/* x and the result: [B,L,hidden]. */
static ds_tensor *attention_forward(void *self, ds_tensor *x)
{
    Attention *a = self;
    const dsi_lm_config *c = &a->lm->config;
    int64_t d = c->head_dim;
    ds_tensor *y = dsi_lm_heads(ds_call(a->query_key_value, x), c->heads), *part[3];
    for (int i = 0; i < 3; i++) part[i] = ds_slice(y, -1, i * d, (i + 1) * d);
    return ds_call(a->dense, dsi_lm_attend(a->lm, a->layer, part[0], part[1], part[2]));
}

typedef struct Mlp {
    dsi_lm *lm;
    ds_module *dense_h_to_4h, *dense_4h_to_h;
} Mlp;

/* [B,L,hidden] -> [B,L,inner] -> [B,L,hidden]. */
static ds_tensor *mlp_forward(void *self, ds_tensor *x)
{
    Mlp *m = self;
    ds_tensor *y = dsi_lm_activate(m->lm->config.activation, ds_call(m->dense_h_to_4h, x));
    return ds_call(m->dense_4h_to_h, y);
}

typedef struct Layer {
    dsi_lm *lm;
    ds_module *input_layernorm, *post_attention_layernorm, *attention, *mlp;
} Layer;

static ds_tensor *layer_forward(void *self, ds_tensor *x)
{
    Layer *l = self;
    const dsi_lm_config *c = &l->lm->config;
    ds_tensor *y = ds_call(l->attention, ds_call(l->input_layernorm, x));
    ds_tensor *sum = ds_add(x, dsi_lm_dropout(l->lm, y, c->residual_dropout));
    y = ds_call(l->mlp, ds_call(l->post_attention_layernorm, c->parallel ? x : sum));
    return ds_add(sum, dsi_lm_dropout(l->lm, y, c->residual_dropout));
}

static const ds_module_type attention_type = {"GPTNeoXAttention", sizeof(Attention),
                                              .forward = attention_forward},
                            mlp_type = {"GPTNeoXMLP", sizeof(Mlp), .forward = mlp_forward},
                            layer_type = {"GPTNeoXLayer", sizeof(Layer), .forward = layer_forward},
                            body_type = {.name = "GPTNeoXModel"};

static ds_module *norm_new(const dsi_lm *lm, dsi_lm_builder *b, ds_module *parent, const char *name)
{
    return dsi_lm_norm_new(b, parent, name, lm->config.hidden, DSI_LAYER_NORM, lm->config.eps);
}

static ds_module *layer_new(dsi_lm *lm, dsi_lm_builder *b, ds_module *list, const char *name,
                            int64_t layer)
{
    const dsi_lm_config *c = &lm->config;
    size_t in_layer, in_part;
    ds_module *m = dsi_lm_enter(b, list, name, &layer_type, &in_layer), *part;
    Layer *l = ds_self(m);
    l->lm = lm;
    l->input_layernorm = norm_new(lm, b, m, "input_layernorm");
    l->post_attention_layernorm = norm_new(lm, b, m, "post_attention_layernorm");

    l->attention = part = dsi_lm_enter(b, m, "attention", &attention_type, &in_part);
    Attention *a = ds_self(part);
    a->lm = lm, a->layer = layer;
    a->query_key_value = dsi_lm_projection_new(b, part, "query_key_value", c->hidden, 3 * c->hidden,
                                               c->qkv_bias);
    a->dense = dsi_lm_projection_new(b, part, "dense", c->hidden, c->hidden, c->o_bias);
    dsi_lm_leave(b, in_part);

    l->mlp = part = dsi_lm_enter(b, m, "mlp", &mlp_type, &in_part);
    Mlp *mlp = ds_self(part);
    mlp->lm = lm;
    mlp->dense_h_to_4h = dsi_lm_projection_new(b, part, "dense_h_to_4h", c->hidden, c->inner, true);
    mlp->dense_4h_to_h = dsi_lm_projection_new(b, part, "dense_4h_to_h", c->inner, c->hidden, true);
    dsi_lm_leave(b, in_part);
    dsi_lm_leave(b, in_layer);
    return m;
}

/* Modules in the order of transformers' state dict. */
static void gpt_neox_build(dsi_lm *lm, ds_module *root, dsi_lm_builder *b)
{
    const dsi_lm_config *c = &lm->config;
    size_t in_body;
    lm->body = dsi_lm_enter(b, root, "gpt_neox", &body_type, &in_body);
    lm->embed = dsi_lm_embedding_new(b, lm->body, "embed_in", c->vocab, c->hidden, 0, -1);
    dsi_lm_blocks_new(lm, b, "layers", layer_new);
    lm->norm = norm_new(lm, b, lm->body, "final_layer_norm");
    dsi_lm_leave(b, in_body);
    if (!c->tied)
        lm->head = dsi_lm_projection_new(b, root, "embed_out", c->hidden, c->vocab, false);
}

/* ids [B,L] int64 -> what the head reads, [B,L,hidden]. */
static ds_tensor *gpt_neox_hidden(dsi_lm *lm, ds_tensor *ids)
{
    ds_tensor *x = dsi_lm_dropout(lm, ds_call(lm->embed, ids), lm->config.embedding_dropout);
    x = dsi_lm_blocks(lm, x);
    return ds_call(lm->norm, x);
}

const dsi_lm_type dsi_lm_gpt_neox = {gpt_neox_hidden, gpt_neox_build, "gpt_neox.", "embed_out",
                                     "embed_in"};
