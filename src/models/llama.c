/* models/llama.c: LlamaForCausalLM (Touvron et al., arXiv:2302.13971), and the
 * models that differ from it in biases, norms, windows, caps and experts:
 * Qwen2, Mistral, Qwen3, Phi-3, Mixtral, Qwen2-MoE, Qwen3-MoE, SmolLM3, OLMo 2
 * and 3, Granite, Gemma, Gemma 2, Gemma 3. Names are those of transformers.
 *
 *     x = embed_tokens[ids]
 *     each layer: x += o_proj(attention(rope(q), rope(k), v) of input_layernorm(x))
 *                 h = post_attention_layernorm(x); x += down_proj(silu(gate_proj(h)) up_proj(h))
 *     logits = lm_head(norm(x))
 *
 * Phi-3 has q, k and v in one matrix, qkv_proj, and gate and up in
 * gate_up_proj. Gemma 2 and 3 have a norm on both sides of attention and MLP;
 * there post_attention_layernorm is behind attention. In OLMo norms are only
 * there, and those of q and k are over all heads together. Granite multiplies
 * what a layer adds, and divides logits, which is done to hidden states.
 *
 * Invariants:
 * - A module's struct borrows lm, the root's struct, which outlives it.
 * - Modules are made and values drawn in the order of transformers' state dict.
 * - The number of a layer is its index in lm->blocks, in the cache of keys and
 *   values, and in config.sliding.
 * SPDX-License-Identifier: MIT */
#include "base/mem.h"
#include "nn/module.h"
#include "ops/groups.h"
#include "tensor/tensor.h"

#include "lm.h"

typedef struct Attention {
    dsi_lm *lm;
    int64_t layer;
    ds_module *q_proj, *k_proj, *v_proj; /* NULL beside qkv_proj */
    ds_module *qkv_proj;                 /* Phi-3: rows of q, k, v below each other */
    ds_module *o_proj;
    ds_module *q_norm, *k_norm; /* over a head, or all together; NULL: none */
} Attention;

/* norm (NULL: none) is over the last dimension, before the rotation: each head
 * is normalised by itself, or, if wide, all heads together. */
static ds_tensor *attention_heads(ds_module *norm, bool wide, ds_tensor *x, int64_t heads)
{
    if (norm && wide) x = ds_call(norm, x);
    ds_tensor *y = dsi_lm_heads(x, heads);
    return norm && !wide ? ds_call(norm, y) : y;
}

/* x [B,L,hidden] -> the same shape. The width of the heads together,
 * heads head_dim, need not be `hidden` (Qwen3, Gemma). */
static ds_tensor *attention_forward(void *self, ds_tensor *x)
{
    Attention *a = self;
    const dsi_lm_config *c = &a->lm->config;
    int64_t width = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    ds_tensor *part[3];
    if (a->qkv_proj) {
        ds_tensor *y = ds_call(a->qkv_proj, x);
        part[0] = ds_slice(y, -1, 0, width);
        part[1] = ds_slice(y, -1, width, width + kv);
        part[2] = ds_slice(y, -1, width + kv, width + 2 * kv);
    } else {
        part[0] = ds_call(a->q_proj, x);
        part[1] = ds_call(a->k_proj, x);
        part[2] = ds_call(a->v_proj, x);
    }
    ds_tensor *q = attention_heads(a->q_norm, c->qk_norm_wide, part[0], c->heads);
    ds_tensor *k = attention_heads(a->k_norm, c->qk_norm_wide, part[1], c->kv_heads);
    ds_tensor *v = dsi_lm_heads(part[2], c->kv_heads);
    return ds_call(a->o_proj, dsi_lm_attend(a->lm, a->layer, q, k, v));
}

typedef struct Mlp {
    dsi_lm *lm;
    int64_t inner;
    ds_module *gate_proj, *up_proj; /* NULL beside gate_up_proj */
    ds_module *gate_up_proj;        /* Phi-3: rows of gate, then of up */
    ds_module *down_proj;
} Mlp;

/* SwiGLU or GeGLU (Shazeer, arXiv:2002.05202). x [B,L,hidden] -> [B,L,inner]
 * twice -> [B,L,hidden]. */
static ds_tensor *mlp_forward(void *self, ds_tensor *x)
{
    Mlp *m = self;
    const dsi_lm_config *c = &m->lm->config;
    ds_tensor *gate, *up;
    if (m->gate_up_proj) {
        ds_tensor *y = ds_call(m->gate_up_proj, x);
        gate = ds_slice(y, -1, 0, m->inner), up = ds_slice(y, -1, m->inner, 2 * m->inner);
    } else {
        gate = ds_call(m->gate_proj, x), up = ds_call(m->up_proj, x);
    }
    return ds_call(m->down_proj, ds_mul(dsi_lm_activate(c->activation, gate), up));
}

/* The matrix of a projection that is this matrix alone, in memory; else NULL. */
static ds_tensor *mlp_matrix(ds_module *m)
{
    if (!m || dsi_module_has_hooks(m)) return NULL;
    const dsi_lm_linear *l = ds_self(m);
    bool more = l->int8 || l->lora_a || l->bias || l->transposed || !l->weight ||
                dsi_has_materialize_hook(l->weight);
    return more ? NULL : l->weight;
}

/* gate, up and down of each, [3][n]; NULL: one is more than its matrices. To be freed. */
static ds_tensor **mlp_matrices(ds_module *const *mlps, int64_t n)
{
    ds_tensor **w = dsi_alloc((size_t)n * 3 * sizeof *w);
    bool all = true;
    for (int64_t i = 0; i < n && all; i++) {
        const Mlp *m = ds_self(mlps[i]);
        w[i] = mlp_matrix(m->gate_proj);
        w[n + i] = mlp_matrix(m->up_proj);
        w[2 * n + i] = mlp_matrix(m->down_proj);
        all = w[i] && w[n + i] && w[2 * n + i] && !dsi_module_has_hooks(mlps[i]);
    }
    if (!all) dsi_free(w);
    return all ? w : NULL;
}

bool dsi_lm_mlps_grouped(ds_module *const *mlps, int64_t n, ds_tensor *x, ds_tensor *begin,
                         ds_tensor **y)
{
    ds_tensor **w = mlp_matrices(mlps, n);
    if (!w) return false;
    const Mlp *m = ds_self(mlps[0]);
    ds_scope *scope = ds_scope_open();
    ds_tensor *gate = dsi_grouped_linear(x, begin, w, n),
              *up = dsi_grouped_linear(x, begin, w + n, n);
    gate = dsi_lm_activate(m->lm->config.activation, gate);
    *y = dsi_grouped_linear(ds_mul(gate, up), begin, w + 2 * n, n);
    *y = dsi_scope_return(scope, dsi_ref(*y));
    dsi_free(w);
    return true;
}

typedef struct Layer {
    dsi_lm *lm;
    ds_module *self_attn, *mlp;
    ds_module *before_attn, *before_mlp; /* norms; NULL: none */
    ds_module *after_attn, *after_mlp;
} Layer;

/* x + part(before(x)), with a norm behind the part if there is one. */
static ds_tensor *layer_add(const Layer *l, ds_tensor *x, ds_module *before, ds_module *part,
                            ds_module *after)
{
    double scale = l->lm->config.residual_scale;
    ds_tensor *y = ds_call(part, before ? ds_call(before, x) : x);
    if (after) y = ds_call(after, y);
    if (scale != 1) y = ds_scale(y, scale);
    return ds_add(x, dsi_lm_dropout(l->lm, y, l->lm->config.residual_dropout));
}

/* The sum x itself is normalised only by the body's last norm. */
static ds_tensor *layer_forward(void *self, ds_tensor *x)
{
    Layer *l = self;
    x = layer_add(l, x, l->before_attn, l->self_attn, l->after_attn);
    return layer_add(l, x, l->before_mlp, l->mlp, l->after_mlp);
}

static const ds_module_type attention_type = {"Attention", sizeof(Attention),
                                              .forward = attention_forward},
                            mlp_type = {"MLP", sizeof(Mlp), .forward = mlp_forward},
                            layer_type = {"DecoderLayer", sizeof(Layer), .forward = layer_forward},
                            body_type = {.name = "Model"};

static ds_module *norm_new(const dsi_lm *lm, dsi_lm_builder *b, ds_module *parent, const char *name,
                           int64_t dim)
{
    dsi_lm_norm kind = lm->config.norm_plus_1 ? DSI_RMS_NORM_PLUS_1 : DSI_RMS_NORM;
    return dsi_lm_norm_new(b, parent, name, dim, kind, lm->config.eps);
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
    if (c->fused) {
        a->o_proj = dsi_lm_projection_new(b, m, "o_proj", q, c->hidden, c->o_bias);
        a->qkv_proj = dsi_lm_projection_new(b, m, "qkv_proj", c->hidden, q + 2 * kv, c->qkv_bias);
    } else {
        a->q_proj = dsi_lm_projection_new(b, m, "q_proj", c->hidden, q, c->qkv_bias);
        a->k_proj = dsi_lm_projection_new(b, m, "k_proj", c->hidden, kv, c->qkv_bias);
        a->v_proj = dsi_lm_projection_new(b, m, "v_proj", c->hidden, kv, c->qkv_bias);
        a->o_proj = dsi_lm_projection_new(b, m, "o_proj", q, c->hidden, c->o_bias);
    }
    if (c->qk_norm) {
        a->q_norm = norm_new(lm, b, m, "q_norm", c->qk_norm_wide ? q : c->head_dim);
        a->k_norm = norm_new(lm, b, m, "k_norm", c->qk_norm_wide ? kv : c->head_dim);
    }
    dsi_lm_leave(b, was);
    return m;
}

ds_module *dsi_lm_mlp_new(dsi_lm *lm, dsi_lm_builder *b, ds_module *parent, const char *name,
                          int64_t inner, const char *const *names)
{
    const dsi_lm_config *c = &lm->config;
    size_t was;
    ds_module *m = dsi_lm_enter(b, parent, name, &mlp_type, &was);
    Mlp *mlp = ds_self(m);
    mlp->lm = lm, mlp->inner = inner;
    if (c->fused) {
        mlp->gate_up_proj = dsi_lm_projection_new(b, m, "gate_up_proj", c->hidden, 2 * inner,
                                                  c->mlp_bias);
    } else {
        mlp->gate_proj = dsi_lm_projection_new(b, m, names[0], c->hidden, inner, c->mlp_bias);
        mlp->up_proj = dsi_lm_projection_new(b, m, names[1], c->hidden, inner, c->mlp_bias);
    }
    mlp->down_proj = dsi_lm_projection_new(b, m, names[2], inner, c->hidden, c->mlp_bias);
    dsi_lm_leave(b, was);
    return m;
}

static ds_module *mlp_new(dsi_lm *lm, dsi_lm_builder *b, ds_module *parent, int64_t layer)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    const dsi_lm_config *c = &lm->config;
    if (c->experts && !c->dense[layer]) return dsi_lm_experts_new(lm, b, parent);
    return dsi_lm_mlp_new(lm, b, parent, "mlp", c->inner, names);
}

static ds_module *layer_new(dsi_lm *lm, dsi_lm_builder *b, ds_module *list, const char *name,
                            int64_t layer)
{
    const dsi_lm_config *c = &lm->config;
    size_t was;
    ds_module *m = dsi_lm_enter(b, list, name, &layer_type, &was), *second;
    Layer *l = ds_self(m);
    l->lm = lm;
    l->self_attn = attention_new(lm, b, m, layer);
    l->mlp = mlp_new(lm, b, m, layer);
    bool before = !c->post_norms_alone, after = c->post_norms || c->post_norms_alone;
    if (before) l->before_attn = norm_new(lm, b, m, "input_layernorm", c->hidden);
    second = norm_new(lm, b, m, "post_attention_layernorm", c->hidden);
    *(after ? &l->after_attn : &l->before_mlp) = second;
    if (c->post_norms) l->before_mlp = norm_new(lm, b, m, "pre_feedforward_layernorm", c->hidden);
    if (after) l->after_mlp = norm_new(lm, b, m, "post_feedforward_layernorm", c->hidden);
    dsi_lm_leave(b, was);
    return m;
}

static void llama_build(dsi_lm *lm, ds_module *root, dsi_lm_builder *b)
{
    const dsi_lm_config *c = &lm->config;
    size_t in_body;
    lm->body = dsi_lm_enter(b, root, "model", &body_type, &in_body);
    lm->embed = dsi_lm_embedding_new(b, lm->body, "embed_tokens", c->vocab, c->hidden,
                                     c->embedding_scale, c->pad);
    dsi_lm_blocks_new(lm, b, "layers", layer_new);
    lm->norm = norm_new(lm, b, lm->body, "norm", c->hidden);
    dsi_lm_leave(b, in_body);
    if (!c->tied) lm->head = dsi_lm_projection_new(b, root, "lm_head", c->hidden, c->vocab, false);
}

/* ids [B,L] int64 -> [B,L,hidden] after the last norm: the caller applies the
 * head, perhaps to the last position only, or in chunks. */
static ds_tensor *llama_hidden(dsi_lm *lm, ds_tensor *ids)
{
    ds_tensor *x = ds_call(lm->embed, ids);
    x = ds_call(lm->norm, dsi_lm_blocks(lm, x));
    return lm->config.hidden_scale == 1 ? x : ds_scale(x, lm->config.hidden_scale);
}

const dsi_lm_type dsi_lm_llama = {llama_hidden, llama_build, "model.", "lm_head", "embed_tokens"};
