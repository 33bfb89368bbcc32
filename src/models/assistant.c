/* models/assistant.c: the model with matrices of 8 bits, which drafts tokens.
 *
 * Reading the matrices limits the time of a token. Their 8-bit copies are read
 * in a quarter of it, and nearly always have the same most probable token, so
 * that several drafts and one pass of the model that checks all of them take
 * less time than as many passes. Speculative decoding: Leviathan et al.,
 * arXiv:2211.17192.
 *
 * Invariants: an assistant borrows lm and owns its copies. Between
 * dsi_assistant_use(a, true) and (a, false) each layer points to its copy;
 * biases, norms, embeddings and adapters are the model's own.
 * SPDX-License-Identifier: MIT */
#include "assistant.h"

#include "base/error.h"
#include "base/mem.h"
#include "device/cpu/cpu.h"
#include "device/cpu/gemm/int8.h"
#include "tensor/tensor.h"

#include <string.h>

#define PAYS_BYTES (64 << 20) /* of float32 matrices: no cache of a core holds them */

typedef struct Copy {
    dsi_lm_linear *layer; /* NULL: the tied head */
    dsi_int8_matrix w;
    ds_tensor *q, *scale; /* kept; the memory of w */
} Copy;

struct dsi_assistant {
    dsi_lm *lm;
    int64_t n;
    Copy *copy;
};

/* ---- the matrices of a model ---- */

/* All layers below m; counts them if layer is NULL. */
static int64_t collect_layers(ds_module *m, dsi_lm_linear **layer, int64_t n)
{
    if (dsi_lm_is_linear(m)) {
        if (layer) layer[n] = ds_self(m);
        n++;
    }
    for (int i = 0; i < ds_module_children(m); i++)
        n = collect_layers(ds_module_child(m, i), layer, n);
    return n;
}

static ds_tensor *matrix_of(dsi_lm *lm, const dsi_lm_linear *layer)
{
    return layer ? layer->weight : dsi_lm_embedding_weight(lm->embed);
}

/* A lazy tensor, such as one of ZeRO's third stage, has no storage. */
static bool is_plain(const ds_tensor *w)
{
    return w && w->storage && w->dtype == DS_F32 && w->device->type->kind == DS_CPU;
}

/* Copies without memory: their layers. */
static dsi_assistant *assistant_plan(dsi_lm *lm)
{
    dsi_assistant *a = dsi_alloc(sizeof *a);
    ds_module *root = ds_module_of(lm);
    int64_t layers = collect_layers(root, NULL, 0);
    dsi_lm_linear **layer = dsi_alloc((size_t)(layers + 1) * sizeof *layer);
    collect_layers(root, layer, 0);
    a->lm = lm, a->n = layers + !lm->head;
    a->copy = dsi_alloc((size_t)a->n * sizeof *a->copy);
    for (int64_t i = 0; i < a->n; i++) a->copy[i].layer = i < layers ? layer[i] : NULL;
    dsi_free(layer);
    return a;
}

bool dsi_assistant_pays(dsi_lm *lm)
{
    dsi_assistant *a = assistant_plan(lm);
    bool plain = true;
    int64_t elements = 0;
    for (int64_t i = 0; i < a->n && plain; i++) {
        ds_tensor *w = matrix_of(lm, a->copy[i].layer);
        plain = is_plain(w);
        elements += plain ? ds_numel(w) : 0;
    }
    dsi_assistant_free(a);
    return plain && elements * (int64_t)sizeof(float) > PAYS_BYTES;
}

/* ---- life ---- */

static bool copy_make(Copy *c, ds_tensor *w)
{
    if (!is_plain(w))
        return dsi_invalid("generate: num_assistant_tokens needs weights that are float32 in the "
                           "host's memory");
    bool transposed = c->layer && c->layer->transposed;
    int64_t n = ds_size(w, transposed), k = ds_size(w, !transposed);
    c->w = (dsi_int8_matrix){.n = n, .k = k, .groups = (k + DSI_INT8_GROUP - 1) / DSI_INT8_GROUP};
    c->q = ds_keep(dsi_new_host(DS_I8, ds_shape(n, c->w.groups * DSI_INT8_GROUP)));
    c->scale = ds_keep(dsi_new_host(DS_F32, ds_shape(n, c->w.groups)));
    c->w.q = ds_data_mut(c->q), c->w.scale = ds_data_mut(c->scale);
    const float *from = ds_data(ds_contiguous(w));
    if (!c->w.q || !c->w.scale || !from) return false;
    dsi_cpu_int8_of(dsi_cpu_isa())->quantize(from, transposed, transposed ? n : k, &c->w);
    return true;
}

dsi_assistant *dsi_assistant_new(dsi_lm *lm)
{
    dsi_assistant *a = assistant_plan(lm);
    ds_scope *scope = ds_scope_open();
    bool ok = true;
    for (int64_t i = 0; i < a->n && ok; i++)
        ok = copy_make(&a->copy[i], matrix_of(lm, a->copy[i].layer));
    ds_scope_close(scope);
    if (ok) return a;
    dsi_assistant_free(a);
    return NULL;
}

static bool copy_is_current(const Copy *c, ds_tensor *w)
{
    if (!is_plain(w) || !dsi_is_contiguous(w)) return false;
    bool transposed = c->layer && c->layer->transposed;
    size_t n = (size_t)c->w.groups;
    dsi_int8_matrix now = {.n = 1, .k = c->w.k, .groups = c->w.groups};
    now.q = dsi_alloc(n * DSI_INT8_GROUP), now.scale = dsi_alloc(n * sizeof *now.scale);
    dsi_cpu_int8_of(dsi_cpu_isa())
        ->quantize(ds_data(w), transposed, transposed ? c->w.n : c->w.k, &now);
    bool same = !memcmp(now.q, c->w.q, n * DSI_INT8_GROUP) &&
                !memcmp(now.scale, c->w.scale, n * sizeof *now.scale);
    dsi_free(now.q), dsi_free(now.scale);
    return same;
}

bool dsi_assistant_is_current(const dsi_assistant *a)
{
    bool same = true;
    for (int64_t i = 0; i < a->n && same; i++)
        same = copy_is_current(&a->copy[i], matrix_of(a->lm, a->copy[i].layer));
    return same;
}

void dsi_assistant_free(dsi_assistant *a)
{
    if (!a) return;
    for (int64_t i = 0; i < a->n; i++) ds_drop(a->copy[i].q), ds_drop(a->copy[i].scale);
    dsi_free(a->copy);
    dsi_free(a);
}

/* ---- use ---- */

void dsi_assistant_use(dsi_assistant *a, bool on)
{
    for (int64_t i = 0; a && i < a->n; i++) {
        Copy *c = &a->copy[i];
        *(c->layer ? &c->layer->int8 : &a->lm->head_int8) = on ? &c->w : NULL;
    }
}

ds_tensor *dsi_assistant_product(const dsi_int8_matrix *w, ds_tensor *x, ds_tensor *bias)
{
    x = ds_contiguous(x);
    if (!x) return NULL;
    ds_dims out = ds_shape_of(x);
    int64_t m = ds_numel(x) / w->k;
    out.d[out.n - 1] = w->n;
    ds_tensor *y = dsi_new(x, out);
    const float *from = ds_data(x), *more = bias ? ds_data(bias) : NULL;
    float *to = ds_data_mut(y);
    if (!from || !to || (bias && !more)) return NULL;
    dsi_cpu_int8_of(dsi_cpu_isa())->linear(m, from, w, more, to);
    return y;
}
