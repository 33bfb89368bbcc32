/* models/layers.c: the layers of language models, whose parameters come from a
 * file or are drawn as transformers draws them.
 *
 * Invariants: a builder's path is the name of the module that is being built,
 * with a dot at its end, as it is in the file: dsi_lm_enter and dsi_lm_leave
 * come in pairs. `used` counts the stored tensors that became parameters, so
 * that the loader notices tensors that no layer asked for.
 * SPDX-License-Identifier: MIT */
#include "assistant.h"
#include "base/error.h"
#include "ops/op.h"

#include <stdio.h>
#include <string.h>

/* ---- building ---- */

ds_module *dsi_lm_enter(dsi_lm_builder *b, ds_module *parent, const char *name,
                        const ds_module_type *type, size_t *was)
{
    *was = strlen(b->path);
    if (parent) snprintf(b->path + *was, sizeof b->path - *was, "%s.", name);
    return ds_module_new(parent, name, type);
}

void dsi_lm_leave(dsi_lm_builder *b, size_t was) { b->path[was] = '\0'; }

/* Some files lack the prefix of the body (GPT-2's own: "h.0..." in place of
 * "transformer.h.0..."), so both names are looked up. */
ds_tensor *dsi_lm_stored(const dsi_lm_builder *b, const char *name)
{
    char path[400];
    snprintf(path, sizeof path, "%s%s", b->path, name);
    ds_tensor *x = ds_state_get(b->weights, path);
    size_t n = strlen(b->prefix);
    return x || strncmp(path, b->prefix, n) != 0 ? x : ds_state_get(b->weights, path + n);
}

/* "768, 2304", for messages. */
static void shape_text(ds_dims d, char *text, size_t room)
{
    size_t n = 0;
    text[0] = '\0';
    for (int i = 0; i < d.n && n < room; i++)
        n += (size_t)snprintf(text + n, room - n, i ? ", %lld" : "%lld", (long long)d.d[i]);
}

bool dsi_lm_dims_differ(const char *context, const char *name, const ds_tensor *x, ds_dims want,
                        const char *said)
{
    char got_text[80], want_text[80];
    ds_dims got = ds_shape_of(x);
    bool same = got.n == want.n;
    for (int i = 0; same && i < got.n; i++) same = got.d[i] == want.d[i];
    if (same) return false;
    shape_text(got, got_text, sizeof got_text), shape_text(want, want_text, sizeof want_text);
    dsi_fail(DS_EFORMAT, "%s: %s is [%s]: %s [%s]", context, name, got_text, said, want_text);
    return true;
}

/* The stored tensor on the current device, in the dtype that is wanted: the
 * file's own memory where it has that dtype. */
static ds_tensor *param_stored(dsi_lm_builder *b, const char *name, ds_dims shape)
{
    ds_tensor *x = dsi_lm_stored(b, name);
    if (!x) return dsi_refuse("pretrained: the weights have no %s%s", b->path, name);
    char path[400];
    snprintf(path, sizeof path, "%s%s", b->path, name);
    if (dsi_lm_dims_differ("pretrained", path, x, shape, "config.json says")) return NULL;
    if (ds_dtype_of(x) > DS_BF16)
        return dsi_refuse("pretrained: %s%s is %s: expected a floating-point dtype", b->path, name,
                          ds_dtype_name(ds_dtype_of(x)));
    b->used++;
    return ds_to(x, ds_current_device(), b->stored_dtype ? ds_dtype_of(x) : b->dtype);
}

/* std: of a normal distribution around 0; below 0: all values are -std - 1, so
 * -1 gives zeros (biases) and -2 ones (norms). */
ds_tensor *dsi_lm_param(dsi_lm_builder *b, ds_module *m, const char *name, ds_dims shape,
                        double std)
{
    if (ds_error()) return NULL;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = NULL;
    if (b->weights)
        x = param_stored(b, name, shape);
    else if (std >= 0)
        x = ds_cast(ds_init_normal(ds_empty(DS_F32, shape), 0, std), b->dtype);
    else
        x = ds_full(b->dtype, shape, -std - 1);
    if (x && !b->weights && b->zero_row > 0)
        x = dsi_fill(ds_slice(x, 0, b->zero_row - 1, b->zero_row), 0) ? x : NULL;
    x = x ? ds_module_param(m, name, x) : NULL;
    ds_scope_close(scope);
    return x;
}

/* ---- Linear, Conv1D ---- */

/* y = x W^T + b (Linear) or x W + b (Conv1D). */
ds_tensor *dsi_lm_product(const dsi_lm_linear *l, ds_tensor *x, ds_tensor *bias)
{
    if (l->int8) return dsi_assistant_product(l->int8, x, bias);
    if (!l->transposed) return ds_linear(x, l->weight, bias);
    return bias ? ds_addmm(bias, x, l->weight) : ds_matmul(x, l->weight);
}

static ds_tensor *linear_forward(void *self, ds_tensor *x)
{
    dsi_lm_linear *l = self;
    if (!l->lora_a) return dsi_lm_product(l, x, l->bias);
    return dsi_lora_forward(l, x, ds_module_training(ds_module_of(self)));
}

static const ds_module_type linear_type = {"Linear", sizeof(dsi_lm_linear),
                                           .forward = linear_forward};
static const ds_module_type conv1d_type = {"Conv1D", sizeof(dsi_lm_linear),
                                           .forward = linear_forward};

bool dsi_lm_is_linear(const ds_module *m)
{
    const ds_module_type *type = ds_module_type_of(m);
    return type && type->forward == linear_forward;
}

ds_module *dsi_lm_linear_new(dsi_lm_builder *b, ds_module *parent, const char *name, int64_t in,
                             int64_t out, bool bias, bool conv1d, double std)
{
    size_t was;
    ds_module *m = dsi_lm_enter(b, parent, name, conv1d ? &conv1d_type : &linear_type, &was);
    dsi_lm_linear *l = ds_self(m);
    ds_dims shape = conv1d ? ds_shape(in, out) : ds_shape(out, in);
    l->transposed = conv1d;
    l->weight = dsi_lm_param(b, m, "weight", shape, std < 0 ? b->std : std);
    if (bias) l->bias = dsi_lm_param(b, m, "bias", ds_shape(out), -1);
    dsi_lm_leave(b, was);
    return m;
}

ds_module *dsi_lm_projection_new(dsi_lm_builder *b, ds_module *parent, const char *name, int64_t in,
                                 int64_t out, bool bias)
{
    return dsi_lm_linear_new(b, parent, name, in, out, bias, false, -1);
}

/* ---- blocks ---- */

/* ds_nn_module_list knows no builder, so its part of the path is added by hand.
 * The first failure ends the loop: each further block would repeat it. */
void dsi_lm_blocks_new(dsi_lm *lm, dsi_lm_builder *b, const char *name, dsi_lm_block_new *block_new)
{
    ds_module *list = ds_nn_module_list(lm->body, name);
    size_t was = strlen(b->path);
    snprintf(b->path + was, sizeof b->path - was, "%s.", name);
    for (int64_t i = 0; i < lm->config.layers && !ds_error(); i++) {
        char number[24];
        snprintf(number, sizeof number, "%lld", (long long)i);
        lm->blocks[i] = block_new(lm, b, list, number, i);
    }
    dsi_lm_leave(b, was);
}

/* ---- Embedding ---- */

typedef struct Embedding {
    ds_tensor *weight; /* [count, dim] */
    double scale;      /* 0: none */
    int64_t padding;   /* -1: none */
} Embedding;

static ds_tensor *embedding_forward(void *self, ds_tensor *ids)
{
    const Embedding *e = self;
    ds_tensor *y = ds_embedding(e->weight, ids, e->padding);
    return y && e->scale > 0 ? ds_mul(y, dsi_number_beside(y, e->scale)) : y;
}

ds_tensor *dsi_lm_embedding_weight(ds_module *m) { return ((Embedding *)ds_self(m))->weight; }

ds_module *dsi_lm_embedding_new(dsi_lm_builder *b, ds_module *parent, const char *name,
                                int64_t count, int64_t dim, double scale, int64_t padding)
{
    static const ds_module_type type = {"Embedding", sizeof(Embedding),
                                        .forward = embedding_forward};
    size_t was;
    ds_module *m = dsi_lm_enter(b, parent, name, &type, &was);
    Embedding *e = ds_self(m);
    e->scale = scale, e->padding = padding >= 0 && padding < count ? padding : -1;
    b->zero_row = e->padding + 1;
    e->weight = dsi_lm_param(b, m, "weight", ds_shape(count, dim), b->std);
    b->zero_row = 0;
    dsi_lm_leave(b, was);
    return m;
}

/* ---- norms ---- */

typedef struct Norm {
    ds_tensor *weight, *bias; /* [dim], or NULL */
    double eps;
} Norm;

static ds_tensor *layer_norm_forward(void *self, ds_tensor *x)
{
    const Norm *n = self;
    return ds_layer_norm(x, 1, n->weight, n->bias, n->eps);
}

static ds_tensor *rms_norm_forward(void *self, ds_tensor *x)
{
    const Norm *n = self;
    return ds_rms_norm(x, 1, n->weight, n->eps);
}

/* x weight / rms(x), with 1 + weight in place of weight. */
static ds_tensor *rms_norm_plus_1_forward(void *self, ds_tensor *x)
{
    const Norm *n = self;
    return dsi_rms_norm_shifted(x, n->weight, 1, n->eps);
}

ds_module *dsi_lm_norm_new(dsi_lm_builder *b, ds_module *parent, const char *name, int64_t dim,
                           dsi_lm_norm kind, double eps)
{
    static const ds_module_type types[] = {
        [DSI_LAYER_NORM] = {"LayerNorm", sizeof(Norm), .forward = layer_norm_forward},
        [DSI_LAYER_NORM_BARE] = {"LayerNorm", sizeof(Norm), .forward = layer_norm_forward},
        [DSI_RMS_NORM] = {"RMSNorm", sizeof(Norm), .forward = rms_norm_forward},
        [DSI_RMS_NORM_PLUS_1] = {"RMSNorm", sizeof(Norm), .forward = rms_norm_plus_1_forward}};
    size_t was;
    ds_module *m = dsi_lm_enter(b, parent, name, &types[kind], &was);
    Norm *n = ds_self(m);
    n->eps = eps == 0 ? DS_ZERO : eps;
    double first = kind == DSI_RMS_NORM_PLUS_1 ? -1 : -2;
    if (kind != DSI_LAYER_NORM_BARE) n->weight = dsi_lm_param(b, m, "weight", ds_shape(dim), first);
    if (kind == DSI_LAYER_NORM) n->bias = dsi_lm_param(b, m, "bias", ds_shape(dim), -1);
    dsi_lm_leave(b, was);
    return m;
}

/* ---- pointwise ---- */

ds_tensor *dsi_lm_activate(dsi_lm_activation a, ds_tensor *x)
{
    switch (a) {
    case DSI_LM_GELU:
        return ds_gelu(x);
    case DSI_LM_GELU_TANH:
        return ds_gelu_tanh(x);
    case DSI_LM_RELU:
        return ds_relu(x);
    default:
        return ds_silu(x);
    }
}

ds_tensor *dsi_lm_dropout(dsi_lm *lm, ds_tensor *x, double p)
{
    return p > 0 ? ds_dropout(x, p, ds_module_training(ds_module_of(lm))) : x;
}
