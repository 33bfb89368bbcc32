/* models/gpt2.c: GPT2LMHeadModel; Radford et al., Language models are
 * unsupervised multitask learners, 2019. Names are those of transformers.
 *
 *     x = wte[ids] + wpe[positions]
 *     each block: x += attention(ln_1(x)); x += mlp(ln_2(x))
 *     logits = ln_f(x) wte^T
 * SPDX-License-Identifier: MIT */
#include "lm.h"

#include <math.h>

/* c_attn: [hidden, 3 hidden], stored as transformers' Conv1D does, input first. */
typedef struct Attention {
    dsi_lm *lm;
    int64_t layer;
    ds_module *c_attn, *c_proj; /* hidden -> q, k, v side by side; back */
} Attention;

/* x and the result: [B,L,hidden]. */
static ds_tensor *attention_forward(void *self, ds_tensor *x)
{
    Attention *a = self;
    ds_tensor *y = dsi_lm_attend_packed(a->lm, a->layer, ds_call(a->c_attn, x));
    return dsi_lm_dropout(a->lm, ds_call(a->c_proj, y), a->lm->config.residual_dropout);
}

typedef struct Mlp {
    dsi_lm *lm;
    ds_module *c_fc, *c_proj;
} Mlp;

/* [B,L,hidden] -> [B,L,inner] -> [B,L,hidden]. */
static ds_tensor *mlp_forward(void *self, ds_tensor *x)
{
    Mlp *m = self;
    ds_tensor *y = dsi_lm_activate(m->lm->config.activation, ds_call(m->c_fc, x));
    return dsi_lm_dropout(m->lm, ds_call(m->c_proj, y), m->lm->config.residual_dropout);
}

typedef struct Block {
    ds_module *ln_1, *attn, *ln_2, *mlp;
} Block;

/* Norms come before their layer, unlike in the first transformers (pre-LN). */
static ds_tensor *block_forward(void *self, ds_tensor *x)
{
    Block *b = self;
    x = ds_add(x, ds_call(b->attn, ds_call(b->ln_1, x)));
    return ds_add(x, ds_call(b->mlp, ds_call(b->ln_2, x)));
}

static const ds_module_type attention_type = {"GPT2Attention", sizeof(Attention),
                                              .forward = attention_forward},
                            mlp_type = {"GPT2MLP", sizeof(Mlp), .forward = mlp_forward},
                            block_type = {"GPT2Block", sizeof(Block), .forward = block_forward},
                            body_type = {.name = "GPT2Model"};

/* Projections into the residual sum start smaller: standard deviation
 * init_std / sqrt(2 layers), since 2 layers of them are added up. */
static ds_module *block_new(dsi_lm *lm, dsi_lm_builder *b, ds_module *list, const char *name,
                            int64_t layer)
{
    const dsi_lm_config *c = &lm->config;
    double residual_std = c->init_std / sqrt(2 * (double)c->layers);
    size_t in_block, in_part;
    ds_module *m = dsi_lm_enter(b, list, name, &block_type, &in_block);
    Block *block = ds_self(m);
    block->ln_1 = dsi_lm_norm_new(b, m, "ln_1", c->hidden, DSI_LAYER_NORM, c->eps);

    block->attn = dsi_lm_enter(b, m, "attn", &attention_type, &in_part);
    Attention *a = ds_self(block->attn);
    a->lm = lm, a->layer = layer;
    a->c_attn = dsi_lm_linear_new(b, block->attn, "c_attn", c->hidden, 3 * c->hidden, true, true,
                                  -1);
    a->c_proj = dsi_lm_linear_new(b, block->attn, "c_proj", c->hidden, c->hidden, true, true,
                                  residual_std);
    dsi_lm_leave(b, in_part);

    block->ln_2 = dsi_lm_norm_new(b, m, "ln_2", c->hidden, DSI_LAYER_NORM, c->eps);
    block->mlp = dsi_lm_enter(b, m, "mlp", &mlp_type, &in_part);
    Mlp *mlp = ds_self(block->mlp);
    mlp->lm = lm;
    mlp->c_fc = dsi_lm_linear_new(b, block->mlp, "c_fc", c->hidden, c->inner, true, true, -1);
    mlp->c_proj = dsi_lm_linear_new(b, block->mlp, "c_proj", c->inner, c->hidden, true, true,
                                    residual_std);
    dsi_lm_leave(b, in_part);
    dsi_lm_leave(b, in_block);
    return m;
}

/* Modules in the order of transformers' state dict: wte, wpe, h, ln_f. A tied
 * head has no parameter of its own: the logits use wte. */
static void gpt2_build(dsi_lm *lm, ds_module *root, dsi_lm_builder *b)
{
    const dsi_lm_config *c = &lm->config;
    size_t in_body;
    lm->body = dsi_lm_enter(b, root, "transformer", &body_type, &in_body);
    lm->embed = dsi_lm_embedding_new(b, lm->body, "wte", c->vocab, c->hidden, 0, -1);
    lm->position = dsi_lm_embedding_new(b, lm->body, "wpe", c->positions, c->hidden, 0, -1);
    dsi_lm_blocks_new(lm, b, "h", block_new);
    lm->norm = dsi_lm_norm_new(b, lm->body, "ln_f", c->hidden, DSI_LAYER_NORM, c->eps);
    dsi_lm_leave(b, in_body);
    if (!c->tied)
        lm->head = dsi_lm_linear_new(b, root, "lm_head", c->hidden, c->vocab, false, false, -1);
}

/* ids [B,L] int64 -> the last hidden states [B,L,hidden], which the head or the
 * loss in chunks reads. */
static ds_tensor *gpt2_hidden(dsi_lm *lm, ds_tensor *ids)
{
    ds_tensor *places = ds_call(lm->position, dsi_lm_position_ids(lm, ids));
    ds_tensor *x = ds_add(ds_call(lm->embed, ids), places);
    x = dsi_lm_dropout(lm, x, lm->config.embedding_dropout);
    x = dsi_lm_blocks(lm, x);
    return ds_call(lm->norm, x);
}

const dsi_lm_type dsi_lm_gpt2 = {gpt2_hidden, gpt2_build, "transformer.", "lm_head", "wte"};
