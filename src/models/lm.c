/* models/lm.c: the root of a language model: its life, forward, loss, and the
 * attention that all families share.
 *
 * Invariants:
 * - cache, positions, mask and window_mask are set by dsi_lm_step for the time
 *   of one forward without gradients.
 *
 * - A forward without a cache is causal over the whole row; with one, position
 *   i of the input is position cache->length + i of the row. The caller moves
 *   length after the call, so all layers of a call see the same.
 * - json, folder, blocks and lora belong to the root and are freed with it.
 * SPDX-License-Identifier: MIT */
#include "assistant.h"
#include "base/error.h"
#include "base/mem.h"
#include "decode.h"
#include "ops/op.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <string.h>

/* ---- attention ---- */

ds_tensor *dsi_lm_position_ids(dsi_lm *lm, ds_tensor *ids)
{
    int64_t skipped = lm->config.positions_skipped;
    int64_t begin = skipped + (lm->cache ? lm->cache->length : 0);
    if (lm->positions && skipped)
        return ds_add(lm->positions, dsi_number_beside(lm->positions, (double)skipped));
    if (lm->positions) return lm->positions;
    return dsi_arange(ids, begin, ds_size(ids, 1), 1);
}

/* Puts x [B,G,L,D] behind the positions of the cache; returns all of them. The
 * result is a view of the cache; the tensor has its whole capacity from the
 * first call on, so that no step copies earlier keys. NULL after a failure.
 * length is not moved: other layers have yet to append. */
static ds_tensor *cache_append(dsi_lm_cache *cache, ds_tensor **slot, ds_tensor *x)
{
    int64_t end = cache->length + ds_size(x, 2);
    if (!*slot && x)
        *slot = ds_keep(
            dsi_new(x, ds_shape(ds_size(x, 0), ds_size(x, 1), cache->room, ds_size(x, 3))));
    if (ds_copy(ds_slice(*slot, 2, cache->length, end), x) != DS_OK) return NULL;
    return ds_slice(*slot, 2, 0, end);
}

/* The mask, if there is one, of query i of n that follow `past` keys. */
static ds_tensor *mask_of_query(ds_tensor *mask, int64_t i, int64_t keys)
{
    return mask ? ds_slice(ds_slice(mask, 2, i, i + 1), 3, 0, keys) : NULL;
}

/* Attention of n queries [B,H,n,D] that follow earlier keys. Each sees one key
 * more than the one before it, and is computed by itself: so its sums are those
 * of a token that comes alone. */
static ds_tensor *attend_each(ds_tensor *q, ds_tensor *k, ds_tensor *v, ds_attention_opts o)
{
    ds_tensor *mask = o.mask, *y[DSI_LM_STEP_ROWS];
    int n = (int)ds_size(q, 2);
    int64_t past = ds_size(k, 2) - n;
    for (int i = 0; i < n; i++) {
        int64_t keys = past + i + 1;
        o.mask = mask_of_query(mask, i, keys), o.causal = false, o.window = 0;
        y[i] = ds_attention_with(ds_slice(q, 2, i, i + 1), ds_slice(k, 2, 0, keys),
                                 ds_slice(v, 2, 0, keys), o);
    }
    return ds_cat(y, n, 2);
}

/* Of n queries of a layer. A single query (n 1) sees all keys of the cache and
 * needs no causal mask; a window behind earlier positions comes as
 * window_mask. */
static ds_attention_opts attend_opts(dsi_lm *lm, int64_t layer, int64_t n)
{
    const dsi_lm_config *c = &lm->config;
    int64_t window = c->sliding[layer] ? c->window : 0;
    ds_tensor *mask = window && lm->window_mask ? lm->window_mask : lm->mask;
    bool training = ds_module_training(ds_module_of(lm)) && !lm->cache;
    return (ds_attention_opts){.mask = mask,
                               .causal = !mask && n > 1,
                               .window = !mask && n > 1 ? window : 0,
                               .scale = c->score_scale /
                                        (double)(c->scale_by_layer ? layer + 1 : 1),
                               .softcap = c->attention_cap,
                               .enable_gqa = true,
                               .dropout_p = training ? c->attention_dropout : 0};
}

ds_tensor *dsi_lm_heads(ds_tensor *x, int64_t heads)
{
    if (!x) return NULL;
    return ds_reshape(x, ds_shape(ds_size(x, 0), ds_size(x, 1), heads, ds_size(x, 2) / heads));
}

/* softmax(scale q k^T + mask) v. Keys enter the cache after their rotation: a
 * key's angle depends on its own position, so it never needs another. */
ds_tensor *dsi_lm_attend(dsi_lm *lm, int64_t layer, ds_tensor *q, ds_tensor *k, ds_tensor *v)
{
    const dsi_lm_config *c = &lm->config;
    if (!q || !k || !v) return NULL;
    if (lm->places) return dsi_decode_attend(lm, layer, q, k, v);
    ds_dims out = ds_shape(ds_size(q, 0), ds_size(q, 1), c->heads * c->head_dim);
    ds_attention_opts o = attend_opts(lm, layer, ds_size(q, 1));
    q = dsi_lm_rotate(lm, layer, ds_transpose(q, 1, 2)),
    k = dsi_lm_rotate(lm, layer, ds_transpose(k, 1, 2));
    v = ds_transpose(v, 1, 2);
    if (lm->cache) {
        k = cache_append(lm->cache, &lm->cache->k[layer], k);
        v = cache_append(lm->cache, &lm->cache->v[layer], v);
    }
    int64_t n = ds_size(q, 2);
    bool each = n > 1 && n <= DSI_LM_STEP_ROWS && lm->cache && lm->cache->length;
    ds_tensor *y = each ? attend_each(q, k, v, o) : ds_attention_with(q, k, v, o);
    return ds_reshape(ds_transpose(y, 1, 2), out);
}

ds_tensor *dsi_lm_attend_packed(dsi_lm *lm, int64_t layer, ds_tensor *qkv)
{
    const dsi_lm_config *c = &lm->config;
    if (!qkv) return NULL;
    if (!lm->cache && lm->position)
        return ds_attention_qkvpacked(qkv, c->heads, attend_opts(lm, layer, ds_size(qkv, 1)));
    int64_t width = c->heads * c->head_dim;
    ds_tensor *part[3];
    for (int i = 0; i < 3; i++)
        part[i] = dsi_lm_heads(ds_slice(qkv, -1, i * width, (i + 1) * width), c->heads);
    return dsi_lm_attend(lm, layer, part[0], part[1], part[2]);
}

/* Without gradients a checkpoint would save nothing, so the blocks are called. */
ds_tensor *dsi_lm_blocks(dsi_lm *lm, ds_tensor *x)
{
    bool recompute = lm->recompute && ds_grad_enabled();
    for (int64_t i = 0; x && i < lm->config.layers; i++)
        x = recompute ? ds_checkpoint_call(lm->blocks[i], x) : ds_call(lm->blocks[i], x);
    return x;
}

/* ---- forward ---- */

static ds_tensor *head_weight(dsi_lm *lm)
{
    if (!lm->head) return dsi_lm_embedding_weight(lm->embed);
    return ((dsi_lm_linear *)ds_self(lm->head))->weight;
}

/* cap tanh(x / cap), in float32 for 16-bit x. */
static ds_tensor *logits_capped(ds_tensor *x, double cap)
{
    ds_dtype dtype = ds_dtype_of(x);
    return x ? ds_cast(ds_scale(ds_tanh(ds_scale(dsi_upcast(x), 1 / cap)), cap), dtype) : NULL;
}

ds_tensor *dsi_lm_logits(dsi_lm *lm, ds_tensor *hidden)
{
    double cap = lm->config.logit_cap;
    ds_tensor *y = lm->head_int8 ? dsi_assistant_product(lm->head_int8, hidden, NULL)
                   : lm->head    ? ds_call(lm->head, hidden)
                                 : ds_linear(hidden, head_weight(lm), NULL);
    return cap > 0 ? logits_capped(y, cap) : y;
}

/* labels [B,L] moved by one: what position t is to predict, [B L]. The last
 * position of a row predicts nothing: its label is -100, which the loss
 * ignores, as in transformers. */
static ds_tensor *labels_shift(ds_tensor *labels)
{
    int64_t n = ds_size(labels, 1);
    ds_tensor *next = dsi_fill(dsi_new(labels, labels->shape), -100);
    if (n > 1 && ds_copy(ds_slice(next, 1, 0, n - 1), ds_slice(labels, 1, 1, n)) != DS_OK)
        return NULL;
    return ds_flatten(next, 0);
}

/* what: "ids" or "labels", for the message. Only learned positions have an
 * end; that an id is below the vocabulary is checked by the embedding. */
static bool ids_fit(const dsi_lm *lm, const char *what, ds_tensor *ids)
{
    int64_t n = ds_size(ids, 1);
    if (ds_dtype_of(ids) != DS_I64 || ds_ndim(ids) != 2)
        return dsi_invalid("%s: %s are %s of %d dimensions: expected int64 [B,L]",
                           lm->config.architecture, what, ds_dtype_name(ds_dtype_of(ids)),
                           ds_ndim(ids));
    int64_t past = lm->cache ? lm->cache->length : 0;
    if (lm->position && past + n > lm->config.positions)
        return dsi_invalid("%s: %lld positions: the model has %lld", lm->config.architecture,
                           (long long)(past + n), (long long)lm->config.positions);
    return true;
}

/* The divisor of the sum of the losses, [] float32: in[2] is int64 [2],
 * labels and parts. NULL: the number of labels, or after a failure. */
static ds_tensor *items_of(const dsi_lm *lm, ds_tensor **in, int n)
{
    if (n < 3) return NULL;
    if (ds_dtype_of(in[2]) != DS_I64 || ds_ndim(in[2]) != 1 || ds_size(in[2], 0) != 2)
        return dsi_refuse("%s: the number of items is %s %s: expected int64 [2]",
                          lm->config.architecture, ds_dtype_name(ds_dtype_of(in[2])),
                          dsi_shape_text(ds_shape_of(in[2])));
    ds_tensor *pair = ds_cast(in[2], DS_F32);
    return ds_div(ds_select(pair, 0, 0), ds_select(pair, 0, 1));
}

/* x: hidden states [B,L,embedding]. The head's weight is read without calling
 * its module, unless it has an adapter. */
static ds_tensor *lm_loss(dsi_lm *lm, ds_tensor *x, ds_tensor *labels, ds_tensor *items)
{
    labels = labels_shift(labels);
    if (lm->head && ((dsi_lm_linear *)ds_self(lm->head))->lora_a) {
        ds_tensor *logits = ds_reshape(dsi_lm_logits(lm, x), ds_shape(-1, lm->config.vocab));
        ds_tensor *loss = ds_cross_entropy_with(
            ds_cast(logits, DS_F32), labels,
            (ds_cross_entropy_opts){.reduction = items ? DS_SUM : DS_MEAN});
        return items ? ds_div(loss, items) : loss;
    }
    return ds_linear_cross_entropy_with(
        ds_reshape(x, ds_shape(-1, lm->config.embedding)), head_weight(lm), labels,
        (ds_linear_cross_entropy_opts){.softcap = lm->config.logit_cap, .items = items});
}

/* in: ids [B,L], perhaps labels [B,L], and perhaps the number of items. Without
 * labels -> logits [B,L,V], or with a cache those of the last position,
 * [B,1,V]: earlier ones choose no token. With labels -> the loss []; it is
 * computed from the hidden states by an op that makes logits in chunks, since
 * [B,L,V] would often be the largest tensor of a training. */
static ds_tensor *lm_forward(void *self, ds_tensor **in, int n)
{
    dsi_lm *lm = self;
    if (n < 1 || n > 3)
        return dsi_refuse("%s takes ids, labels and a number of items, or less: it was given %d "
                          "tensors",
                          lm->config.architecture, n);
    if (ds_grad_enabled() && ds_module_training(ds_module_of(lm))) dsi_lm_session_train(lm);
    if (!ids_fit(lm, "ids", in[0]) || (n > 1 && !ids_fit(lm, "labels", in[1]))) return NULL;
    ds_tensor *items = items_of(lm, in, n);
    if (n > 2 && !items) return NULL;
    if (!lm->position && dsi_lm_rope_begin(lm, ds_size(in[0], 1), in[0]) != DS_OK) return NULL;
    if (n > 1) dsi_lm_balance_begin(lm);
    ds_tensor *x = lm->type->hidden(lm, in[0]);
    ds_tensor *balance = n > 1 ? dsi_lm_balance_end(lm) : NULL;
    dsi_lm_rope_end(lm);
    if (n == 1 && lm->cache) x = ds_slice(x, 1, ds_size(x, 1) - lm->cache->wanted, ds_size(x, 1));
    if (n == 1) return dsi_lm_logits(lm, x);
    ds_tensor *loss = lm_loss(lm, x, in[1], items);
    return balance ? ds_add(loss, balance) : loss;
}

/* ---- life ---- */

static void lm_free(void *self)
{
    dsi_lm *lm = self;
    dsi_lm_session_drop(lm);
    for (int i = 0; i < lm->n_tables; i++) ds_drop(lm->table[i].cos), ds_drop(lm->table[i].sin);
    json_decref(lm->json);
    dsi_free(lm->folder);
    dsi_free(lm->blocks);
    dsi_lora_free(lm->lora);
    dsi_lm_generation_free(lm->generation);
}

/* A language model is known by its type's free function, which all families
 * have. */
dsi_lm *dsi_lm_of(const ds_module *m)
{
    const ds_module_type *type = ds_module_type_of(m);
    return type && type->free == lm_free ? ds_self((ds_module *)m) : NULL;
}

const dsi_lm_type *dsi_lm_type_of(const dsi_lm_config *c)
{
    return c->family == DSI_GPT2       ? &dsi_lm_gpt2
           : c->family == DSI_OPT      ? &dsi_lm_opt
           : c->family == DSI_GPT_NEOX ? &dsi_lm_gpt_neox
                                       : &dsi_lm_llama;
}

#define LM_TYPE(architecture) \
    { \
        architecture, sizeof(dsi_lm), .forward_n = lm_forward, .free = lm_free \
    }

/* json is taken from here on: a failure frees the root, and with it json. Any
 * message that was written while modules were made counts as a failure. */
ds_module *dsi_lm_new(const dsi_lm_config *c, json_t *json, const char *folder, dsi_lm_builder *b)
{
    static const ds_module_type types[] = {[DSI_GPT2] = LM_TYPE("GPT2LMHeadModel"),
                                           [DSI_OPT] = LM_TYPE("OPTForCausalLM"),
                                           [DSI_GPT_NEOX] = LM_TYPE("GPTNeoXForCausalLM"),
                                           [DSI_LLAMA] = LM_TYPE("LlamaForCausalLM"),
                                           [DSI_QWEN2] = LM_TYPE("Qwen2ForCausalLM"),
                                           [DSI_MISTRAL] = LM_TYPE("MistralForCausalLM"),
                                           [DSI_QWEN3] = LM_TYPE("Qwen3ForCausalLM"),
                                           [DSI_PHI3] = LM_TYPE("Phi3ForCausalLM"),
                                           [DSI_MIXTRAL] = LM_TYPE("MixtralForCausalLM"),
                                           [DSI_QWEN2_MOE] = LM_TYPE("Qwen2MoeForCausalLM"),
                                           [DSI_QWEN3_MOE] = LM_TYPE("Qwen3MoeForCausalLM"),
                                           [DSI_SMOLLM3] = LM_TYPE("SmolLM3ForCausalLM"),
                                           [DSI_OLMO2] = LM_TYPE("Olmo2ForCausalLM"),
                                           [DSI_OLMO3] = LM_TYPE("Olmo3ForCausalLM"),
                                           [DSI_GRANITE] = LM_TYPE("GraniteForCausalLM"),
                                           [DSI_GEMMA] = LM_TYPE("GemmaForCausalLM"),
                                           [DSI_GEMMA2] = LM_TYPE("Gemma2ForCausalLM"),
                                           [DSI_GEMMA3] = LM_TYPE("Gemma3ForCausalLM")};
    int failures = dsi_error_count();
    size_t was;
    ds_module *root = dsi_lm_enter(b, NULL, "model", &types[c->family], &was);
    dsi_lm *lm = ds_self(root);
    lm->config = *c;
    lm->type = dsi_lm_type_of(c);
    lm->json = json;
    lm->folder = folder ? dsi_strdup(folder) : NULL;
    lm->blocks = dsi_alloc((size_t)c->layers * sizeof *lm->blocks);
    b->prefix = lm->type->prefix, b->std = c->init_std;
    lm->type->build(lm, root, b);
    if (dsi_error_count() == failures) return root;
    ds_module_free(root);
    return NULL;
}

/* ---- what a user asks ---- */

ds_lm_info ds_lm_info_of(const ds_module *model)
{
    const dsi_lm *lm = dsi_lm_of(model);
    if (!lm) return (ds_lm_info){0};
    const dsi_lm_config *c = &lm->config;
    return (ds_lm_info){.architecture = c->architecture,
                        .vocab_size = c->vocab,
                        .hidden_size = c->hidden,
                        .layers = c->layers,
                        .positions = c->positions,
                        .bos_token_id = c->bos,
                        .eos_token_id = c->eos,
                        .pad_token_id = c->pad};
}

ds_status ds_lm_set_checkpointing(ds_module *model, bool on)
{
    dsi_lm *lm = dsi_lm_of(model);
    if (!lm) return dsi_fail(DS_EINVAL, "lm_set_checkpointing: expected a language model");
    lm->recompute = on;
    return DS_OK;
}
