/* bench/models_networks.h: the networks of bench/models.c, written on the
 * public API: ResNet-18 and ViT-tiny for images of CIFAR-10, and GPTs. Their
 * twins in PyTorch are in peer_models.py; parameters have the same names.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed.h>

/* ---- ResNet-18 ----------------------------------------------------------------------------------------- */

typedef struct BasicBlock {
    ds_module *conv1, *bn1, *conv2, *bn2, *down;
} BasicBlock;

static ds_tensor *basic_block_forward(void *self, ds_tensor *x)
{
    BasicBlock *b = self;
    ds_tensor *y = ds_relu(ds_call(b->bn1, ds_call(b->conv1, x)));
    y = ds_call(b->bn2, ds_call(b->conv2, y));
    return ds_relu(ds_add(y, b->down ? ds_call(b->down, x) : x));
}

static void basic_block_new(ds_module *layer, int in, int out, int stride)
{
    ds_module *m = ds_module_make(layer, NULL, "BasicBlock", sizeof(BasicBlock),
                                  .forward = basic_block_forward);
    BasicBlock *b = ds_self(m);
    b->conv1 = ds_nn_conv2d(m, "conv1", in, out, 3, .stride = stride, .padding = 1,
                            .no_bias = true);
    b->bn1 = ds_nn_batch_norm2d(m, "bn1", out);
    b->conv2 = ds_nn_conv2d(m, "conv2", out, out, 3, .padding = 1, .no_bias = true);
    b->bn2 = ds_nn_batch_norm2d(m, "bn2", out);
    if (stride == 1 && in == out) return;
    b->down = ds_nn_sequential(m, "downsample");
    ds_nn_conv2d(b->down, NULL, in, out, 1, .stride = stride, .no_bias = true);
    ds_nn_batch_norm2d(b->down, NULL, out);
}

typedef struct ResNet {
    ds_module *conv1, *bn1, *layer[4], *fc;
} ResNet;

static ds_tensor *resnet_forward(void *self, ds_tensor *x) /* [N,3,32,32] */
{
    ResNet *net = self;
    x = ds_relu(ds_call(net->bn1, ds_call(net->conv1, x)));
    for (int i = 0; i < 4; i++) x = ds_call(net->layer[i], x);
    return ds_call(net->fc, ds_flatten(ds_adaptive_avg_pool2d(x, 1, 1), 1));
}

static ds_module *resnet_new(void)
{
    static const char *const names[] = {"layer1", "layer2", "layer3", "layer4"};
    ds_module *m = ds_module_make(NULL, "resnet18", "ResNet", sizeof(ResNet),
                                  .forward = resnet_forward);
    ResNet *net = ds_self(m);
    net->conv1 = ds_nn_conv2d(m, "conv1", 3, 64, 3, .padding = 1, .no_bias = true);
    net->bn1 = ds_nn_batch_norm2d(m, "bn1", 64);
    for (int i = 0, in = 64; i < 4; i++, in = 64 << (i - 1)) {
        net->layer[i] = ds_nn_sequential(m, names[i]);
        basic_block_new(net->layer[i], in, 64 << i, i ? 2 : 1);
        basic_block_new(net->layer[i], 64 << i, 64 << i, 1);
    }
    net->fc = ds_nn_linear(m, "fc", 512, 10);
    return m;
}

/* ---- a block of a transformer -------------------------------------------------------------------------- */

typedef struct Attention {
    ds_module *qkv, *proj;
    int heads;
    bool causal;
} Attention;

static ds_tensor *attention_forward(void *self, ds_tensor *x) /* [B,T,D] */
{
    Attention *a = self;
    int64_t b = ds_size(x, 0), t = ds_size(x, 1), d = ds_size(x, 2);
    ds_tensor *z = ds_reshape(ds_call(a->qkv, x), ds_shape(b, t, 3, a->heads, d / a->heads));
    z = ds_permute(z, ds_shape(2, 0, 3, 1, 4)); /* [3,B,heads,T,D/heads] */
    ds_tensor *q = ds_select(z, 0, 0), *k = ds_select(z, 0, 1), *v = ds_select(z, 0, 2);
    ds_tensor *y = ds_attention_with(q, k, v, (ds_attention_opts){.causal = a->causal});
    return ds_call(a->proj, ds_reshape(ds_transpose(y, 1, 2), ds_shape(b, t, d)));
}

static ds_module *attention_new(ds_module *block, int dim, int heads, bool causal)
{
    ds_module *m = ds_module_make(block, "attn", "Attention", sizeof(Attention),
                                  .forward = attention_forward);
    Attention *a = ds_self(m);
    a->qkv = ds_nn_linear(m, "qkv", dim, 3 * dim);
    a->proj = ds_nn_linear(m, "proj", dim, dim);
    a->heads = heads, a->causal = causal;
    return m;
}

typedef struct Block {
    ds_module *ln1, *attn, *ln2, *fc, *proj;
    bool tanh; /* the approximation of gelu that GPT-2 uses */
} Block;

static ds_tensor *block_forward(void *self, ds_tensor *x)
{
    Block *b = self;
    x = ds_add(x, ds_call(b->attn, ds_call(b->ln1, x)));
    ds_tensor *y = ds_call(b->fc, ds_call(b->ln2, x));
    return ds_add(x, ds_call(b->proj, b->tanh ? ds_gelu_tanh(y) : ds_gelu(y)));
}

static void block_new(ds_module *blocks, int dim, int heads, bool gpt)
{
    ds_module *m = ds_module_make(blocks, NULL, "Block", sizeof(Block), .forward = block_forward);
    Block *b = ds_self(m);
    b->ln1 = ds_nn_layer_norm(m, "ln1", ds_shape(dim));
    b->attn = attention_new(m, dim, heads, gpt);
    b->ln2 = ds_nn_layer_norm(m, "ln2", ds_shape(dim));
    b->fc = ds_nn_linear(m, "fc", dim, 4 * dim);
    b->proj = ds_nn_linear(m, "proj", 4 * dim, dim);
    b->tanh = gpt;
}

/* ---- GPT ----------------------------------------------------------------------------------------------- */

typedef struct GPT {
    ds_module *tok, *pos, *blocks, *ln;
} GPT;

static ds_tensor *gpt_forward(void *self, ds_tensor *ids) /* [B,T] */
{
    GPT *g = self;
    ds_tensor *at = ds_arange(DS_I64, 0, (double)ds_size(ids, 1), 1);
    ds_tensor *x = ds_add(ds_call(g->tok, ids), ds_call(g->pos, at));
    x = ds_call(g->ln, ds_call(g->blocks, x));
    return ds_linear(x, ds_module_param_at(g->tok, 0, NULL), NULL); /* tied */
}

static ds_module *gpt_new(int layers, int heads, int dim, int context, int vocabulary)
{
    ds_module *m = ds_module_make(NULL, "gpt", "GPT", sizeof(GPT), .forward = gpt_forward);
    GPT *g = ds_self(m);
    g->tok = ds_nn_embedding(m, "tok", vocabulary, dim, -1);
    g->pos = ds_nn_embedding(m, "pos", context, dim, -1);
    g->blocks = ds_nn_sequential(m, "blocks");
    for (int i = 0; i < layers; i++) block_new(g->blocks, dim, heads, true);
    g->ln = ds_nn_layer_norm(m, "ln", ds_shape(dim));
    for (int i = 0; i < ds_module_params(m); i++) { /* as GPT-2: N(0, 0.02) */
        ds_tensor *p = ds_module_param_at(m, i, NULL);
        if (ds_ndim(p) == 2) ds_init_normal(p, 0, 0.02);
    }
    return m;
}

static ds_module *gpt_small_new(void) { return gpt_new(4, 4, 256, 256, 8192); }
static ds_module *gpt2_new(void) { return gpt_new(12, 12, 768, 256, 50257); }

/* ---- ViT-tiny ------------------------------------------------------------------------------------------- */

enum { DIM = 192, HEADS = 3, LAYERS = 6, PATCH = 4, TOKENS = 65 };

typedef struct ViT {
    ds_module *patch, *blocks, *ln, *head;
    ds_tensor *cls, *pos;
} ViT;

static ds_tensor *vit_forward(void *self, ds_tensor *x) /* [N,3,32,32] */
{
    ViT *v = self;
    x = ds_transpose(ds_flatten(ds_call(v->patch, x), 2), 1, 2); /* [N,64,D] */
    ds_tensor *cls = ds_expand(v->cls, ds_shape(ds_size(x, 0), 1, DIM));
    x = ds_add(ds_cat((ds_tensor *[]){cls, x}, 2, 1), v->pos);
    x = ds_call(v->blocks, x);
    return ds_call(v->head, ds_select(ds_call(v->ln, x), 1, 0));
}

static ds_module *vit_new(void)
{
    ds_module *m = ds_module_make(NULL, "vit", "ViT", sizeof(ViT), .forward = vit_forward);
    ViT *v = ds_self(m);
    v->cls = ds_module_param(m, "cls", ds_zeros(DS_F32, ds_shape(1, 1, DIM)));
    v->pos = ds_module_param(m, "pos", ds_scale(ds_randn(DS_F32, ds_shape(1, TOKENS, DIM)), 0.02));
    v->patch = ds_nn_conv2d(m, "patch", 3, DIM, PATCH, .stride = PATCH);
    v->blocks = ds_nn_sequential(m, "blocks");
    for (int i = 0; i < LAYERS; i++) block_new(v->blocks, DIM, HEADS, false);
    v->ln = ds_nn_layer_norm(m, "ln", ds_shape(DIM));
    v->head = ds_nn_linear(m, "head", DIM, 10);
    return m;
}
