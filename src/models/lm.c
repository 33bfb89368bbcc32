/* models/lm.c: the root of a language model: its life, forward, loss, and the
 * attention that all families share.
 *
 * Invariants:
 * - The tables of positions (cos, sin) depend on positions alone
 *   and only grow, so that a layer that is run again for backward reads the same
 *   values.
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
#include "device/graph.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- positions ---- */

/* Llama 3.1's stretching of a frequency f, transformers'
 * _compute_llama3_parameters. `waves` is how many turns a pair makes in the
 * context that the model was first trained on. Slow pairs (few turns) are
 * slowed by factor, fast ones stay, and those between are mixed linearly in
 * the number of turns, so that the function has no step. */
static double rope_scale_llama3(const dsi_lm_config *c, double f)
{
    double waves = (double)c->original_positions * f / (2 * 3.14159265358979323846);
    if (waves < c->low_freq) return f / c->factor;
    if (waves > c->high_freq) return f;
    double smooth = (waves - c->low_freq) / (c->high_freq - c->low_freq);
    return (1 - smooth) * f / c->factor + smooth * f;
}

/* YaRN's: fast pairs, with indices up to low_pair, keep their frequency f, those
 * from high_pair on are slowed by factor, and others are mixed linearly. In
 * float32, as transformers' _compute_yarn_parameters. power is 1 / f. */
static float rope_scale_yarn(const dsi_lm_config *c, float power, int64_t i)
{
    double width = c->high_pair - c->low_pair;
    float ramp = ((float)i - (float)c->low_pair) / (float)(width == 0 ? 0.001 : width);
    float fast = 1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);
    return 1 / ((float)c->factor * power) * (1 - fast) + 1 / power * fast;
}

/* Radians that pair i turns from one position to the next, in float32 as in
 * transformers. theta^(-2 i / D), Su et al., arXiv:2104.09864. Each step is
 * rounded to float as there: another rounding would shift late positions by
 * visible angles. */
static float rope_frequency(const dsi_lm_config *c, int64_t i)
{
    double power = pow(c->theta, (double)(float)((double)(2 * i) / (double)c->head_dim));
    double f = (double)(float)(1 / (double)(float)power);
    if (c->rope == DSI_ROPE_YARN) return rope_scale_yarn(c, (float)power, i);
    if (c->rope == DSI_ROPE_LINEAR) f /= c->factor;
    if (c->rope == DSI_ROPE_LLAMA3) f = rope_scale_llama3(c, f);
    return (float)f;
}

/* Both on the device of `beside`, for the model's life: a step graph may have
 * recorded calls that read them, so later tables do not replace them. Nothing
 * changes after a failure. */
static ds_status lm_keep(dsi_lm *lm, ds_tensor *cosines, ds_tensor *sines, const ds_tensor *beside)
{
    ds_device device = dsi_device_id(beside->device);
    bool noted = dsi_graph_note(beside->device, false);
    cosines = ds_to(cosines, device, DS_F32), sines = ds_to(sines, device, DS_F32);
    dsi_graph_note(beside->device, noted);
    if (!cosines || !sines) return ds_error_status();
    DSI_ASSERT(lm->n_tables + 2 <= DSI_LM_TABLES);
    lm->tables[lm->n_tables++] = lm->cos = ds_keep(cosines);
    lm->tables[lm->n_tables++] = lm->sin = ds_keep(sines);
    return DS_OK;
}

/* cos and sin of all positions below n; a power of two of them. The table is
 * [T,D/2]; it doubles, so that tokens one by one rebuild it only rarely. The
 * angle is a product of floats before cos and sin are taken in double, as in
 * transformers. */
static ds_status lm_rope_reserve(dsi_lm *lm, int64_t n, const ds_tensor *ids)
{
    const dsi_lm_config *c = &lm->config;
    int64_t pairs = c->head_dim / 2, room = 64;
    if (lm->cos && ds_size(lm->cos, 0) >= n) return DS_OK;
    while (room < n) room *= 2;
    ds_tensor *cosines = dsi_new_host(DS_F32, ds_shape(room, pairs));
    ds_tensor *sines = dsi_new_host(DS_F32, ds_shape(room, pairs));
    float *x = ds_data_mut(cosines), *y = ds_data_mut(sines);
    if (!x || !y) return ds_error_status();
    for (int64_t i = 0; i < pairs; i++) {
        float f = rope_frequency(c, i);
        for (int64_t t = 0; t < room; t++) {
            double angle = (double)(f * (float)t);
            x[t * pairs + i] = (float)cos(angle) * (float)c->rope_magnitude;
            y[t * pairs + i] = (float)sin(angle) * (float)c->rope_magnitude;
        }
    }
    return lm_keep(lm, cosines, sines, ids);
}

ds_tensor *dsi_lm_position_ids(dsi_lm *lm, ds_tensor *ids)
{
    if (lm->positions) return lm->positions;
    int64_t begin = lm->cache ? lm->cache->length : 0;
    return dsi_arange(ids, begin, ds_size(ids, 1), 1);
}

/* x [B,H,L,D] with the positions of this call. Rows with padding have
 * positions of their own and look them up; else all rows share a slice of the
 * table, which is a view and copies nothing. The table is float32, also for
 * 16-bit x. */
static ds_tensor *lm_rotate(dsi_lm *lm, ds_tensor *x)
{
    if (!lm->cos) return x;
    ds_tensor *cosines, *sines;
    if (lm->positions) { /* [B,1,L,D/2] */
        cosines = ds_unsqueeze(ds_embedding(lm->cos, lm->positions, -1), 1);
        sines = ds_unsqueeze(ds_embedding(lm->sin, lm->positions, -1), 1);
    } else {
        int64_t begin = lm->cache ? lm->cache->length : 0, end = begin + ds_size(x, 2);
        cosines = ds_slice(lm->cos, 0, begin, end), sines = ds_slice(lm->sin, 0, begin, end);
    }
    if (ds_dtype_of(x) == DS_F64)
        cosines = ds_cast(cosines, DS_F64), sines = ds_cast(sines, DS_F64);
    return ds_rotary_embedding(x, cosines, sines, false);
}

/* ---- attention ---- */

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
static ds_tensor *attend_each(ds_tensor *q, ds_tensor *k, ds_tensor *v, ds_tensor *mask,
                              double scale)
{
    ds_tensor *y[DSI_LM_STEP_ROWS];
    int n = (int)ds_size(q, 2);
    int64_t past = ds_size(k, 2) - n;
    for (int i = 0; i < n; i++) {
        int64_t keys = past + i + 1;
        y[i] = ds_attention_with(
            ds_slice(q, 2, i, i + 1), ds_slice(k, 2, 0, keys), ds_slice(v, 2, 0, keys),
            (ds_attention_opts){
                .mask = mask_of_query(mask, i, keys), .scale = scale, .enable_gqa = true});
    }
    return ds_cat(y, n, 2);
}

/* Of n queries of a layer. A single query (n 1) sees all keys of the cache and
 * needs no causal mask; a window behind earlier positions comes as window_mask. */
static ds_attention_opts attend_opts(dsi_lm *lm, int64_t layer, int64_t n)
{
    const dsi_lm_config *c = &lm->config;
    int64_t window = c->sliding[layer] ? c->window : 0;
    ds_tensor *mask = window && lm->window_mask ? lm->window_mask : lm->mask;
    double scale = c->no_scale ? 1 : 1 / sqrt((double)c->head_dim);
    bool training = ds_module_training(ds_module_of(lm)) && !lm->cache;
    return (ds_attention_opts){.mask = mask,
                               .causal = !mask && n > 1,
                               .window = !mask && n > 1 ? window : 0,
                               .scale = c->scale_by_layer ? scale / (double)(layer + 1) : scale,
                               .enable_gqa = true,
                               .dropout_p = training ? c->attention_dropout : 0};
}

/* softmax(scale q k^T + mask) v. Keys enter the cache after their rotation: a
 * key's angle depends on its own position, so it never needs another. */
ds_tensor *dsi_lm_attend(dsi_lm *lm, int64_t layer, ds_tensor *q, ds_tensor *k, ds_tensor *v)
{
    const dsi_lm_config *c = &lm->config;
    if (!q || !k || !v) return NULL;
    ds_dims out = ds_shape(ds_size(q, 0), ds_size(q, 1), c->heads * c->head_dim);
    ds_attention_opts o = attend_opts(lm, layer, ds_size(q, 1));
    q = lm_rotate(lm, ds_transpose(q, 1, 2)), k = lm_rotate(lm, ds_transpose(k, 1, 2));
    v = ds_transpose(v, 1, 2);
    if (lm->cache) {
        k = cache_append(lm->cache, &lm->cache->k[layer], k);
        v = cache_append(lm->cache, &lm->cache->v[layer], v);
    }
    bool each = ds_size(q, 2) > 1 && lm->cache && lm->cache->length;
    ds_tensor *y = each ? attend_each(q, k, v, o.mask, o.scale) : ds_attention_with(q, k, v, o);
    return ds_reshape(ds_transpose(y, 1, 2), out);
}

ds_tensor *dsi_lm_attend_packed(dsi_lm *lm, int64_t layer, ds_tensor *qkv)
{
    const dsi_lm_config *c = &lm->config;
    if (!qkv) return NULL;
    if (!lm->cache && !lm->cos)
        return ds_attention_qkvpacked(qkv, c->heads, attend_opts(lm, layer, ds_size(qkv, 1)));
    ds_dims heads = ds_shape(ds_size(qkv, 0), ds_size(qkv, 1), c->heads, c->head_dim);
    int64_t width = c->heads * c->head_dim;
    ds_tensor *part[3];
    for (int i = 0; i < 3; i++)
        part[i] = ds_reshape(ds_slice(qkv, -1, i * width, (i + 1) * width), heads);
    return dsi_lm_attend(lm, layer, part[0], part[1], part[2]);
}

/* Without gradients a checkpoint would save nothing, so the block is called. */
ds_tensor *dsi_lm_block(dsi_lm *lm, int64_t i, ds_tensor *x)
{
    if (lm->recompute && ds_grad_enabled()) return ds_checkpoint_call(lm->blocks[i], x);
    return ds_call(lm->blocks[i], x);
}

/* ---- forward ---- */

static ds_tensor *head_weight(dsi_lm *lm)
{
    if (!lm->head) return dsi_lm_embedding_weight(lm->embed);
    return ((dsi_lm_linear *)ds_self(lm->head))->weight;
}

ds_tensor *dsi_lm_logits(dsi_lm *lm, ds_tensor *hidden)
{
    if (lm->head_int8) return dsi_assistant_product(lm->head_int8, hidden, NULL);
    return lm->head ? ds_call(lm->head, hidden) : ds_linear(hidden, head_weight(lm), NULL);
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
        return dsi_invalid("%s: %lld positions: n_positions is %lld", lm->config.architecture,
                           (long long)(past + n), (long long)lm->config.positions);
    return true;
}

/* in: ids [B,L], and perhaps labels [B,L]. Without labels -> logits [B,L,V],
 * or with a cache those of the last position, [B,1,V]: earlier ones choose no
 * token. With labels -> the mean loss []; it is computed from the hidden
 * states by an op that makes logits in chunks, since [B,L,V] would often be
 * the largest tensor of a training. The head's weight is read without calling
 * its module. */
static ds_tensor *lm_forward(void *self, ds_tensor **in, int n)
{
    dsi_lm *lm = self;
    if (n < 1 || n > 2)
        return dsi_refuse("%s takes ids, or ids and labels: it was given %d tensors",
                          lm->config.architecture, n);
    if (!ids_fit(lm, "ids", in[0]) || (n == 2 && !ids_fit(lm, "labels", in[1]))) return NULL;
    int64_t end = (lm->cache ? lm->cache->length : 0) + ds_size(in[0], 1);
    if (!lm->position && lm_rope_reserve(lm, end, in[0]) != DS_OK) return NULL;
    ds_tensor *x = lm->type->hidden(lm, in[0]);
    if (n == 1 && lm->cache) x = ds_slice(x, 1, ds_size(x, 1) - lm->cache->wanted, ds_size(x, 1));
    if (n == 1) return dsi_lm_logits(lm, x);
    if (lm->head && ((dsi_lm_linear *)ds_self(lm->head))->lora_a) /* not its weight alone */
        return ds_cross_entropy(
            ds_cast(ds_reshape(dsi_lm_logits(lm, x), ds_shape(-1, lm->config.vocab)), DS_F32),
            labels_shift(in[1]));
    return ds_linear_cross_entropy(ds_reshape(x, ds_shape(-1, lm->config.hidden)), head_weight(lm),
                                   labels_shift(in[1]));
}

/* ---- life ---- */

static void lm_free(void *self)
{
    dsi_lm *lm = self;
    for (int i = 0; i < lm->n_tables; i++) ds_drop(lm->tables[i]);
    json_decref(lm->json);
    dsi_free(lm->folder);
    dsi_free(lm->blocks);
    dsi_lora_free(lm->lora);
}

/* A language model is known by its type's free function, which all five
 * have. */
dsi_lm *dsi_lm_of(const ds_module *m)
{
    const ds_module_type *type = ds_module_type_of(m);
    return type && type->free == lm_free ? ds_self((ds_module *)m) : NULL;
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
                                           [DSI_LLAMA] = LM_TYPE("LlamaForCausalLM"),
                                           [DSI_QWEN2] = LM_TYPE("Qwen2ForCausalLM"),
                                           [DSI_MISTRAL] = LM_TYPE("MistralForCausalLM"),
                                           [DSI_QWEN3] = LM_TYPE("Qwen3ForCausalLM")};
    int failures = dsi_error_count();
    size_t was;
    ds_module *root = dsi_lm_enter(b, NULL, "model", &types[c->family], &was);
    dsi_lm *lm = ds_self(root);
    lm->config = *c;
    lm->type = c->family == DSI_GPT2 ? &dsi_lm_gpt2 : &dsi_lm_llama;
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
