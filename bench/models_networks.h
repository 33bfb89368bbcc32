/* bench/models_networks.h: the networks of bench/models.c, written on the
 * public API: ResNet-18 and ViT-tiny for images of CIFAR-10, and GPTs. Their
 * twins in PyTorch are in peer_models.py; parameters have the same names. A
 * module here has at most 1.6 times the lines of its twin.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed.h>

/* ---- ResNet-18 ----------------------------------------------------------------------------------------- */

static ds_tensor *basic_block_forward(void *self, ds_tensor *x)
{
    ds_tensor *y = ds_relu(ds_call_child(self, "bn1", ds_call_child(self, "conv1", x)));
    y = ds_call_child(self, "bn2", ds_call_child(self, "conv2", y));
    return ds_relu(ds_add(y, ds_call_child(self, "downsample", x)));
}

static void basic_block_new(ds_module *layer, int in, int out, int stride)
{
    ds_module *m = ds_module_make(layer, NULL, "BasicBlock", .forward = basic_block_forward);
    ds_nn_conv2d(m, "conv1", in, out, 3, .stride = stride, .padding = 1, .no_bias = true);
    ds_nn_batch_norm2d(m, "bn1", out);
    ds_nn_conv2d(m, "conv2", out, out, 3, .padding = 1, .no_bias = true);
    ds_nn_batch_norm2d(m, "bn2", out);
    ds_module *down = ds_nn_sequential(m, "downsample"); /* an empty one returns x */
    if (stride == 1 && in == out) return;
    ds_nn_conv2d(down, NULL, in, out, 1, .stride = stride, .no_bias = true);
    ds_nn_batch_norm2d(down, NULL, out);
}

static const char *const resnet_layers[] = {"layer1", "layer2", "layer3", "layer4"};

static ds_tensor *resnet_forward(void *self, ds_tensor *x) /* [N,3,32,32] */
{
    x = ds_relu(ds_call_child(self, "bn1", ds_call_child(self, "conv1", x)));
    for (int i = 0; i < 4; i++) x = ds_call_child(self, resnet_layers[i], x);
    return ds_call_child(self, "fc", ds_flatten(ds_adaptive_avg_pool2d(x, 1, 1), 1));
}

static ds_module *resnet_new(void)
{
    ds_module *m = ds_module_make(NULL, "resnet18", "ResNet", .forward = resnet_forward);
    ds_nn_conv2d(m, "conv1", 3, 64, 3, .padding = 1, .no_bias = true);
    ds_nn_batch_norm2d(m, "bn1", 64);
    for (int i = 0, in = 64; i < 4; i++, in = 64 << (i - 1)) {
        ds_module *layer = ds_nn_sequential(m, resnet_layers[i]);
        basic_block_new(layer, in, 64 << i, i ? 2 : 1);
        basic_block_new(layer, 64 << i, 64 << i, 1);
    }
    ds_nn_linear(m, "fc", 512, 10);
    return m;
}

/* ---- a block of a transformer -------------------------------------------------------------------------- */

typedef struct Block {
    int heads;
    bool gpt; /* causal; GPT-2's approximation of gelu */
} Block;

static ds_tensor *block_forward(void *self, ds_tensor *x) /* [B,T,D] */
{
    Block *b = self;
    ds_tensor *y = ds_call_child(self, "attn.qkv", ds_call_child(self, "ln1", x));
    y = ds_attention_qkvpacked(y, b->heads, (ds_attention_opts){.causal = b->gpt});
    x = ds_add(x, ds_call_child(self, "attn.proj", y));
    y = ds_call_child(self, "fc", ds_call_child(self, "ln2", x));
    return ds_add(x, ds_call_child(self, "proj", b->gpt ? ds_gelu_tanh(y) : ds_gelu(y)));
}

static void block_new(ds_module *blocks, int dim, int heads, bool gpt)
{
    ds_module *m = ds_module_make(blocks, NULL, "Block", sizeof(Block), .forward = block_forward);
    *(Block *)ds_self(m) = (Block){heads, gpt};
    ds_nn_layer_norm(m, "ln1", ds_shape(dim));
    ds_module *attn = ds_nn_sequential(m, "attn");
    ds_nn_linear(attn, "qkv", dim, 3 * dim);
    ds_nn_linear(attn, "proj", dim, dim);
    ds_nn_layer_norm(m, "ln2", ds_shape(dim));
    ds_nn_linear(m, "fc", dim, 4 * dim);
    ds_nn_linear(m, "proj", 4 * dim, dim);
}

/* ---- GPT ----------------------------------------------------------------------------------------------- */

static ds_tensor *gpt_forward(void *self, ds_tensor *ids) /* [B,T] */
{
    ds_tensor *at = ds_arange(DS_I64, 0, (double)ds_size(ids, 1), 1);
    ds_tensor *x = ds_add(ds_call_child(self, "tok", ids), ds_call_child(self, "pos", at));
    x = ds_call_child(self, "ln", ds_call_child(self, "blocks", x));
    return ds_linear(x, ds_parameter(ds_module_of(self), "tok.weight"), NULL); /* tied */
}

static ds_module *gpt_new(int layers, int heads, int dim, int context, int vocabulary)
{
    ds_module *m = ds_module_make(NULL, "gpt", "GPT", .forward = gpt_forward);
    ds_nn_embedding(m, "tok", vocabulary, dim, -1);
    ds_nn_embedding(m, "pos", context, dim, -1);
    ds_module *blocks = ds_nn_sequential(m, "blocks");
    for (int i = 0; i < layers; i++) block_new(blocks, dim, heads, true);
    ds_nn_layer_norm(m, "ln", ds_shape(dim));
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
    ds_tensor *cls, *pos;
} ViT;

static ds_tensor *vit_forward(void *self, ds_tensor *x) /* [N,3,32,32] */
{
    ViT *v = self;
    x = ds_transpose(ds_flatten(ds_call_child(self, "patch", x), 2), 1, 2); /* [N,64,D] */
    ds_tensor *cls = ds_expand(v->cls, ds_shape(ds_size(x, 0), 1, DIM));
    x = ds_add(ds_cat((ds_tensor *[]){cls, x}, 2, 1), v->pos);
    x = ds_call_child(self, "ln", ds_call_child(self, "blocks", x));
    return ds_call_child(self, "head", ds_select(x, 1, 0));
}

static ds_module *vit_new(void)
{
    ds_module *m = ds_module_make(NULL, "vit", "ViT", sizeof(ViT), .forward = vit_forward);
    ViT *v = ds_self(m);
    v->cls = ds_module_param(m, "cls", ds_zeros(DS_F32, ds_shape(1, 1, DIM)));
    v->pos = ds_module_param(m, "pos", ds_scale(ds_randn(DS_F32, ds_shape(1, TOKENS, DIM)), 0.02));
    ds_nn_conv2d(m, "patch", 3, DIM, PATCH, .stride = PATCH);
    ds_module *blocks = ds_nn_sequential(m, "blocks");
    for (int i = 0; i < LAYERS; i++) block_new(blocks, DIM, HEADS, false);
    ds_nn_layer_norm(m, "ln", ds_shape(DIM));
    ds_nn_linear(m, "head", DIM, 10);
    return m;
}
