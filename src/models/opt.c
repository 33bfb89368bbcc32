/* models/opt.c: OPTForCausalLM (Zhang et al., arXiv:2205.01068). Names are those
 * of transformers.
 *
 *     x = embed_tokens[ids] + embed_positions[positions + 2]
 *     each layer: x += out_proj(attention(self_attn_layer_norm(x)))
 *                 x += fc2(relu(fc1(final_layer_norm(x))))
 *     logits = final_layer_norm(x) embed_tokens^T
 *
 * opt-350m differs: the norms are behind the sums, no norm is behind the last
 * layer, and embeddings are narrower than x, with matrices project_in and
 * project_out between them.
 * SPDX-License-Identifier: MIT */
#include "lm.h"

typedef struct Attention {
    dsi_lm *lm;
    int64_t layer;
    ds_module *q_proj, *k_proj, *v_proj, *out_proj;
} Attention;

/* x and the result: [B,L,hidden]. */
static ds_tensor *attention_forward(void *self, ds_tensor *x)
{
    Attention *a = self;
    const dsi_lm_config *c = &a->lm->config;
    ds_tensor *q = dsi_lm_heads(ds_call(a->q_proj, x), c->heads);
    ds_tensor *k = dsi_lm_heads(ds_call(a->k_proj, x), c->heads);
    ds_tensor *v = dsi_lm_heads(ds_call(a->v_proj, x), c->heads);
    return ds_call(a->out_proj, dsi_lm_attend(a->lm, a->layer, q, k, v));
}

typedef struct Layer {
    dsi_lm *lm;
    ds_module *self_attn, *self_attn_layer_norm, *fc1, *fc2, *final_layer_norm;
} Layer;

static ds_tensor *norm_if(bool used, ds_module *norm, ds_tensor *x)
{
    return used ? ds_call(norm, x) : x;
}

static ds_tensor *layer_forward(void *self, ds_tensor *x)
{
    Layer *l = self;
    const dsi_lm_config *c = &l->lm->config;
    bool first = c->norm_first;
    ds_tensor *y = ds_call(l->self_attn, norm_if(first, l->self_attn_layer_norm, x));
    x = ds_add(x, dsi_lm_dropout(l->lm, y, c->residual_dropout));
    x = norm_if(!first, l->self_attn_layer_norm, x);
    y = ds_call(l->fc1, norm_if(first, l->final_layer_norm, x));
    y = ds_call(l->fc2, dsi_lm_activate(c->activation, y));
    x = ds_add(x, dsi_lm_dropout(l->lm, y, c->residual_dropout));
    return norm_if(!first, l->final_layer_norm, x);
}

static const ds_module_type attention_type = {"OPTAttention", sizeof(Attention),
                                              .forward = attention_forward},
                            layer_type = {"OPTDecoderLayer", sizeof(Layer),
                                          .forward = layer_forward},
                            model_type = {.name = "OPTModel"},
                            decoder_type = {.name = "OPTDecoder"};

static ds_module *norm_new(const dsi_lm *lm, dsi_lm_builder *b, ds_module *parent, const char *name)
{
    const dsi_lm_config *c = &lm->config;
    dsi_lm_norm kind = c->norm_weights ? DSI_LAYER_NORM : DSI_LAYER_NORM_BARE;
    return dsi_lm_norm_new(b, parent, name, c->hidden, kind, c->eps);
}

static ds_module *layer_new(dsi_lm *lm, dsi_lm_builder *b, ds_module *list, const char *name,
                            int64_t layer)
{
    const dsi_lm_config *c = &lm->config;
    size_t in_layer, in_part;
    ds_module *m = dsi_lm_enter(b, list, name, &layer_type, &in_layer);
    Layer *l = ds_self(m);
    l->lm = lm;
    l->self_attn = dsi_lm_enter(b, m, "self_attn", &attention_type, &in_part);
    Attention *a = ds_self(l->self_attn);
    a->lm = lm, a->layer = layer;
    a->k_proj = dsi_lm_projection_new(b, l->self_attn, "k_proj", c->hidden, c->hidden, c->qkv_bias);
    a->v_proj = dsi_lm_projection_new(b, l->self_attn, "v_proj", c->hidden, c->hidden, c->qkv_bias);
    a->q_proj = dsi_lm_projection_new(b, l->self_attn, "q_proj", c->hidden, c->hidden, c->qkv_bias);
    a->out_proj = dsi_lm_projection_new(b, l->self_attn, "out_proj", c->hidden, c->hidden,
                                        c->o_bias);
    dsi_lm_leave(b, in_part);
    l->self_attn_layer_norm = norm_new(lm, b, m, "self_attn_layer_norm");
    l->fc1 = dsi_lm_projection_new(b, m, "fc1", c->hidden, c->inner, c->mlp_bias);
    l->fc2 = dsi_lm_projection_new(b, m, "fc2", c->inner, c->hidden, c->mlp_bias);
    l->final_layer_norm = norm_new(lm, b, m, "final_layer_norm");
    dsi_lm_leave(b, in_layer);
    return m;
}

/* Modules in the order of transformers' state dict. */
static void opt_build(dsi_lm *lm, ds_module *root, dsi_lm_builder *b)
{
    const dsi_lm_config *c = &lm->config;
    size_t in_model, in_decoder;
    ds_module *model = dsi_lm_enter(b, root, "model", &model_type, &in_model);
    lm->body = dsi_lm_enter(b, model, "decoder", &decoder_type, &in_decoder);
    lm->embed = dsi_lm_embedding_new(b, lm->body, "embed_tokens", c->vocab, c->embedding, 0,
                                     c->pad);
    lm->position = dsi_lm_embedding_new(b, lm->body, "embed_positions",
                                        c->positions + c->positions_skipped, c->hidden, 0, -1);
    if (c->embedding != c->hidden) {
        lm->project_out = dsi_lm_projection_new(b, lm->body, "project_out", c->hidden, c->embedding,
                                                false);
        lm->project_in = dsi_lm_projection_new(b, lm->body, "project_in", c->embedding, c->hidden,
                                               false);
    }
    if (c->last_norm) lm->norm = norm_new(lm, b, lm->body, "final_layer_norm");
    dsi_lm_blocks_new(lm, b, "layers", layer_new);
    dsi_lm_leave(b, in_decoder);
    dsi_lm_leave(b, in_model);
    if (!c->tied)
        lm->head = dsi_lm_projection_new(b, root, "lm_head", c->embedding, c->vocab, false);
}

/* ids [B,L] int64 -> what the head reads, [B,L,embedding]. */
static ds_tensor *opt_hidden(dsi_lm *lm, ds_tensor *ids)
{
    ds_tensor *x = ds_call(lm->embed, ids);
    if (lm->project_in) x = ds_call(lm->project_in, x);
    x = ds_add(x, ds_call(lm->position, dsi_lm_position_ids(lm, ids)));
    x = dsi_lm_blocks(lm, x);
    x = norm_if(lm->norm, lm->norm, x);
    return lm->project_out ? ds_call(lm->project_out, x) : x;
}

const dsi_lm_type dsi_lm_opt = {opt_hidden, opt_build, "model.", "lm_head", "decoder.embed_tokens"};
