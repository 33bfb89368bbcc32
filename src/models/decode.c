/* models/decode.c: steps of one token a row, as one graph (ds_step_graph).
 *
 * Nothing that changes from token to token is an argument of a kernel: ids,
 * positions and rows of the cache are tensors on the device, and each step
 * leaves them as the next one needs them. So a step can be recorded, and the
 * host reads 8 bytes of each row and token. A host that chooses the tokens
 * itself reads the logits, and copies the ids to the device.
 *
 * Invariants: before a step, counters are [column of each row; its position
 * without padding], and ids the tokens of that column, if `next` is the column
 * that the host asks for; otherwise the host copies them. Rows that have ended
 * go on, because rows of a batch do not depend on each other. A graph belongs to
 * one cache. Calls that differ in prompts, padding and numbers of tokens launch
 * the same graph.
 * SPDX-License-Identifier: MIT */
#include "decode.h"

#include "base/error.h"
#include "base/int.h"
#include "base/log.h"
#include "base/mem.h"
#include "ops/op.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

struct dsi_lm_decoder {
    dsi_lm *lm;
    dsi_lm_cache *cache;
    int64_t rows;
    const int64_t *pads;
    bool greedy;
    int64_t next;              /* column that ids and counters are of; -1: none */
    ds_tensor *ids, *counters; /* kept: int64 [rows,1]; [2,rows] */
    ds_tensor *positions;      /* kept: counters' second row as [rows,1] */
    dsi_lm_places places;      /* kept */
    ds_step_graph *graph;      /* NULL: none, or it cannot be recorded */
};

/* ---- attention ---- */

/* x [B,1,H,D] or [B,1,H D], seen as [B,H,D]. */
static dsi_view heads_view(const ds_tensor *x, int64_t heads)
{
    dsi_view all = dsi_v(x), v = {.p = all.p, .dtype = all.dtype, .n = 3};
    int64_t width = x->shape.d[2] * (all.n == 4 ? x->shape.d[3] : 1);
    v.d[0] = all.d[0], v.d[1] = heads, v.d[2] = width / heads;
    v.s[0] = all.s[0], v.s[1] = all.n == 4 ? all.s[2] : v.d[2], v.s[2] = all.s[all.n - 1];
    return v;
}

/* Heads' elements are contiguous, as kernels want them. */
static ds_tensor *heads_dense(ds_tensor *x)
{
    return x->stride[3] == 1 || ds_size(x, 3) < 2 ? x : ds_contiguous(x);
}

ds_tensor *dsi_decode_attend(dsi_lm *lm, int64_t layer, ds_tensor *q, ds_tensor *k, ds_tensor *v)
{
    const dsi_lm_config *c = &lm->config;
    const dsi_lm_places *places = lm->places;
    ds_tensor *keys = lm->cache->k[layer], *values = lm->cache->v[layer];
    const dsi_lm_table *t = NULL;
    int64_t length = dsi_min(lm->cache->room, dsi_lm_rope_together(lm, 0));
    bool turns = !lm->position && !c->no_rope[layer];
    if (turns && !(t = dsi_lm_rope_table(lm, layer, length, q))) return NULL;
    if (!keys || !values || keys->dtype != q->dtype || k->dtype != q->dtype || v->dtype != q->dtype)
        return dsi_refuse("%s: keys of a step are %s, those of its cache %s", c->architecture,
                          ds_dtype_name(k->dtype), keys ? ds_dtype_name(keys->dtype) : "missing");
    if (!(q = heads_dense(q)) || !(k = heads_dense(k)) || !(v = heads_dense(v))) return NULL;
    double scale = c->score_scale / (double)(c->scale_by_layer ? layer + 1 : 1);
    dsi_attention_step o = {.scale = scale == 0 ? 1 / sqrt((double)c->head_dim) : scale,
                            .cap = c->attention_cap,
                            .window = c->sliding[layer] ? c->window : 0};
    if (!dsi_acquire(q, k, v)) return NULL;
    ds_tensor *y = dsi_new(q, ds_shape(ds_size(q, 0), 1, c->heads * c->head_dim));
    bool done = y && dsi_run_fusion(y, attention_step, &o, heads_view(q, c->heads),
                                    heads_view(k, c->kv_heads), heads_view(v, c->kv_heads),
                                    dsi_v(keys), dsi_v(values), dsi_v(places->at),
                                    dsi_v(places->pads), dsi_v(t ? t->cos : NULL),
                                    dsi_v(t ? t->sin : NULL), heads_view(y, c->heads));
    return done ? y : NULL;
}

/* ---- a step ---- */

/* Returns ids or the logits. */
static ds_tensor *decode_step(void *self, ds_tensor *const *in, int n)
{
    dsi_lm_decoder *d = self;
    dsi_lm *lm = d->lm;
    (void)in, (void)n;
    d->cache->wanted = 1;
    lm->cache = d->cache, lm->places = &d->places, lm->positions = d->positions;
    ds_tensor *y = ds_call(ds_module_of(lm), d->ids);
    lm->cache = NULL, lm->places = NULL, lm->positions = NULL;
    y = y ? ds_reshape(y, ds_shape(d->rows, lm->config.vocab)) : NULL;
    if (!y || !dsi_acquire(y)) return NULL;
    dsi_view token = dsi_v(d->ids), counters = dsi_v(d->counters);
    token.n = 1;
    counters.n = 1, counters.d[0] *= counters.d[1], counters.s[0] = 1;
    if (!dsi_run_fusion(y, choose_token, dsi_v(y), token, counters)) return NULL;
    return d->greedy ? d->ids : ds_cast(y, DS_F32);
}

/* ids and counters of column `at`, where the device does not have them. */
static ds_status decode_copy(dsi_lm_decoder *d, const int64_t *ids, int64_t at)
{
    ds_status status = DS_OK;
    if (d->next != at) {
        ds_tensor *host = dsi_new_host(DS_I64, ds_shape(2, d->rows));
        int64_t *p = host ? ds_data_mut(host) : NULL;
        for (int64_t i = 0; p && i < d->rows; i++) p[i] = at, p[d->rows + i] = at - d->pads[i];
        status = p ? ds_copy(d->counters, host) : ds_error_status();
    }
    if (status != DS_OK || (d->greedy && d->next == at)) return status;
    ds_tensor *host = dsi_new_host(DS_I64, ds_shape(d->rows, 1));
    int64_t *p = host ? ds_data_mut(host) : NULL;
    for (int64_t i = 0; p && i < d->rows; i++) p[i] = ids[i * d->cache->room + at];
    return p ? ds_copy(d->ids, host) : ds_error_status();
}

static ds_tensor *decode_run(dsi_lm_decoder *d, const int64_t *ids, int64_t at)
{
    if (decode_copy(d, ids, at) != DS_OK) return NULL;
    d->next = -1;
    ds_device device = ds_current_device(), own = ds_device_of(d->ids);
    if (ds_set_device(own) != DS_OK) return NULL;
    int64_t replays = d->ids->device->replays;
    ds_tensor *y = d->graph ? ds_step_graph_run(d->graph, NULL, 0) : decode_step(d, NULL, 0);
    d->ids->device->replays = replays;
    ds_set_device(device);
    if (y) d->next = at + 1;
    return y;
}

/* A step that cannot be recorded, for want of memory say, has done nothing: it
 * is launched kernel by kernel, and so are those after it. */
ds_tensor *dsi_lm_decoder_run(dsi_lm_decoder *d, const int64_t *ids, int64_t at)
{
    bool recorded = !d->graph || ds_step_graph_replays(d->graph);
    ds_tensor *y = decode_run(d, ids, at);
    if (y || recorded) return y;
    dsi_log(DSI_WARNING, "generate: each token is launched kernel by kernel: %s", ds_error());
    ds_error_clear();
    ds_step_graph_free(d->graph);
    d->graph = NULL;
    return decode_run(d, ids, at);
}

/* ---- the most probable tokens ---- */

/* Rows are divided into parts that the kernel takes; the largest of a row are
 * among the k largest of its parts. */
bool dsi_decode_finds_largest(const dsi_lm *lm, int64_t k)
{
    const ds_tensor *w = dsi_lm_embedding_weight(lm->embed);
    int64_t parts = dsi_div_up(lm->config.vocab, DSI_TOPK_ROW);
    return k > 0 && k <= 64 && parts * k <= DSI_TOPK_ROW &&
           dsi_device_id(w->device).kind != DS_CPU && dsi_fusion(w->device, topk);
}

const float *dsi_decode_largest(ds_tensor *x, int64_t k, int64_t *ids)
{
    if (!x) return NULL;
    int64_t rows = ds_size(x, 0), vocab = ds_size(x, 1), parts = dsi_div_up(vocab, DSI_TOPK_ROW);
    ds_tensor *place = NULL, *part = NULL;
    if (parts > 1)
        x = ds_pad_with(x, ds_shape(0, parts * DSI_TOPK_ROW - vocab),
                        (ds_pad_opts){.value = -INFINITY});
    x = ds_topk(ds_reshape(x, ds_shape(rows * parts, -1)), k, 1, false, &place);
    if (parts > 1) {
        x = ds_topk(ds_reshape(x, ds_shape(rows, parts * k)), k, 1, false, &part);
        place = ds_gather(ds_reshape(place, ds_shape(rows, parts * k)), 1, part);
    }
    const float *values = x ? ds_data(x) : NULL;
    const int64_t *at = values ? ds_data(place) : NULL, *of = at && part ? ds_data(part) : NULL;
    if (!at || (part && !of)) return NULL;
    for (int64_t i = 0; i < rows * k; i++) ids[i] = at[i] + (of ? of[i] / k * DSI_TOPK_ROW : 0);
    return values;
}

/* ---- life ---- */

/* Whether the device has the kernels, for heads like lm's, and one table of
 * rotations serves all columns. */
bool dsi_lm_decoder_fits(dsi_lm *lm, const dsi_lm_cache *cache, int64_t need)
{
    const ds_tensor *w = dsi_lm_embedding_weight(lm->embed);
    return dsi_fusion(w->device, attention_step) && dsi_fusion(w->device, choose_token) &&
           (w->dtype == DS_F32 || dsi_is_16bit(w)) && lm->config.head_dim <= DSI_STEP_DEPTH &&
           lm->config.vocab < INT32_MAX &&
           (lm->position || dsi_lm_rope_together(lm, 0) >= need - cache->padding);
}

dsi_lm_decoder *dsi_lm_decoder_new(dsi_lm *lm, dsi_lm_cache *cache, int64_t rows)
{
    ds_tensor *w = dsi_lm_embedding_weight(lm->embed);
    dsi_lm_decoder *d = dsi_alloc(sizeof *d);
    *d = (dsi_lm_decoder){.lm = lm, .cache = cache, .rows = rows};
    ds_scope *scope = ds_scope_open();
    d->ids = ds_keep(dsi_new_dtype(w, DS_I64, ds_shape(rows, 1)));
    d->counters = ds_keep(dsi_new_dtype(w, DS_I64, ds_shape(2, rows)));
    d->places.at = ds_keep(ds_flatten(ds_slice(d->counters, 0, 0, 1), 0));
    d->places.pads = ds_keep(dsi_new_dtype(w, DS_I64, ds_shape(rows)));
    d->positions = ds_keep(ds_reshape(ds_slice(d->counters, 0, 1, 2), ds_shape(rows, 1)));
    ds_scope_close(scope);
    if (d->ids && d->positions && d->places.at && d->places.pads) return d;
    dsi_lm_decoder_free(d);
    return NULL;
}

ds_status dsi_lm_decoder_begin(dsi_lm_decoder *d, const int64_t *pads, bool greedy)
{
    if (greedy != d->greedy) ds_step_graph_free(d->graph), d->graph = NULL;
    if (!d->graph) d->graph = ds_step_graph_new(decode_step, d);
    d->pads = pads, d->greedy = greedy, d->next = -1;
    ds_scope *scope = ds_scope_open();
    ds_tensor *host = dsi_new_host(DS_I64, ds_shape(d->rows));
    int64_t *p = host ? ds_data_mut(host) : NULL;
    if (p) memcpy(p, pads, (size_t)d->rows * sizeof *p);
    ds_status status = p ? ds_copy(d->places.pads, host) : ds_error_status();
    ds_scope_close(scope);
    return status;
}

void dsi_lm_decoder_free(dsi_lm_decoder *d)
{
    if (!d) return;
    ds_step_graph_free(d->graph);
    ds_drop(d->ids), ds_drop(d->counters), ds_drop(d->positions);
    ds_drop(d->places.at), ds_drop(d->places.pads);
    dsi_free(d);
}
