/* nn/transformer.c: TransformerEncoderLayer, TransformerDecoderLayer, stacks of
 * them, Transformer (Vaswani et al., arXiv:1706.03762), with torch.nn's state
 * dicts, initial values and masks.
 *
 * A layer is a row of parts: attention to itself, in a decoder attention to
 * the memory (the encoder's result), and a feed-forward net; each with a norm
 * and a dropout, normI and dropoutI of number I. Layers of a stack begin with
 * equal values, as torch's copies of one layer do.
 *
 * Invariant: `call`, the options of ds_call_encoder_layer and
 * ds_call_decoder_layer, is set only while their call of the module runs.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/option.h"
#include "tensor/tensor.h"

#include <deepspeed/nn.h>

#define MOST_PARTS 3

typedef struct Layer {
    ds_module *self_attn, *multihead_attn; /* the second one: of a decoder, or NULL */
    ds_module *linear1, *dropout, *linear2, *norm[MOST_PARTS], *dropouts[MOST_PARTS];
    bool gelu, norm_first;
    ds_decoder_layer_call call;
} Layer;

typedef struct Stack {
    ds_module *layers, *norm; /* a ModuleList; a LayerNorm, or NULL */
    int64_t n;
    ds_decoder_layer_call call;
} Stack;

/* ---- one layer ---------------------------------------------------------------------------------------- */

static ds_tensor *attend_to_itself(Layer *l, ds_tensor *x)
{
    const ds_decoder_layer_call *c = &l->call;
    ds_attention_call call = {
        .attn_mask = c->mask, .key_padding_mask = c->key_padding_mask, .causal = c->causal};
    return ds_call_attention_with(l->self_attn, x, x, x, call);
}

static ds_tensor *attend_to_memory(Layer *l, ds_tensor *x, ds_tensor *memory)
{
    ds_attention_call call = {.attn_mask = l->call.memory_mask,
                              .key_padding_mask = l->call.memory_key_padding_mask};
    return ds_call_attention_with(l->multihead_attn, x, memory, memory, call);
}

static ds_tensor *feed_forward(Layer *l, ds_tensor *x)
{
    ds_tensor *y = ds_call(l->linear1, x);
    y = ds_call(l->dropout, l->gelu ? ds_gelu(y) : ds_relu(y));
    return ds_call(l->linear2, y);
}

/* Vaswani et al. normalise after each sum; norm_first normalises the input of
 * each part instead and leaves the sum alone (Xiong et al.,
 * arXiv:2002.04745). */
static ds_tensor *layer_run(Layer *l, ds_tensor *x, ds_tensor *memory)
{
    int parts = l->multihead_attn ? 3 : 2;
    for (int i = 0; i < parts; i++) {
        ds_tensor *in = l->norm_first ? ds_call(l->norm[i], x) : x;
        ds_tensor *y = i == 0           ? attend_to_itself(l, in)
                       : i == parts - 1 ? feed_forward(l, in)
                                        : attend_to_memory(l, in, memory);
        x = ds_add(x, ds_call(l->dropouts[i], y));
        if (!l->norm_first) x = ds_call(l->norm[i], x);
    }
    return x;
}

static ds_tensor *encoder_layer_forward(void *self, ds_tensor *x)
{
    return layer_run(self, x, NULL);
}

static bool two_tensors(const char *what, int n)
{
    return n == 2 || dsi_invalid("%s: %d tensors: expected tgt and memory", what, n);
}

static ds_tensor *decoder_layer_forward(void *self, ds_tensor **in, int n)
{
    return two_tensors("TransformerDecoderLayer", n) ? layer_run(self, in[0], in[1]) : NULL;
}

/* ---- stacks ------------------------------------------------------------------------------------------- */

static ds_tensor *encoder_forward(void *self, ds_tensor *x)
{
    Stack *s = self;
    ds_encoder_layer_call c = {s->call.mask, s->call.key_padding_mask, s->call.causal};
    for (int64_t i = 0; i < s->n; i++)
        x = ds_call_encoder_layer_with(ds_module_child(s->layers, (int)i), x, c);
    return s->norm ? ds_call(s->norm, x) : x;
}

static ds_tensor *decoder_forward(void *self, ds_tensor **in, int n)
{
    Stack *s = self;
    if (!two_tensors("TransformerDecoder", n)) return NULL;
    ds_tensor *x = in[0];
    for (int64_t i = 0; i < s->n; i++)
        x = ds_call_decoder_layer_with(ds_module_child(s->layers, (int)i), x, in[1], s->call);
    return s->norm ? ds_call(s->norm, x) : x;
}

/* The options of m's next call, of a layer or a stack; NULL, with the message,
 * if m is neither an encoder (or, else, a decoder). */
static ds_decoder_layer_call *options_of(ds_module *m, bool encoder)
{
    const ds_module_type *type = ds_module_type_of(m);
    if (encoder ? type->forward == encoder_layer_forward : type->forward_n == decoder_layer_forward)
        return &((Layer *)ds_self(m))->call;
    if (encoder ? type->forward == encoder_forward : type->forward_n == decoder_forward)
        return &((Stack *)ds_self(m))->call;
    const char *kind = encoder ? "Encoder" : "Decoder";
    return dsi_refuse("call_%s_layer: %s is a %s: expected a Transformer%sLayer or Transformer%s",
                      encoder ? "encoder" : "decoder", ds_module_name(m), type->name, kind, kind);
}

ds_tensor *ds_call_encoder_layer_with(ds_module *m, ds_tensor *src, ds_encoder_layer_call call)
{
    if (!dsi_live_all("call_encoder_layer", m, src)) return dsi_null_operand("call_encoder_layer");
    ds_decoder_layer_call *options = options_of(m, true);
    if (!options) return NULL;
    *options = (ds_decoder_layer_call){
        .mask = call.mask, .key_padding_mask = call.key_padding_mask, .causal = call.causal};
    ds_tensor *y = ds_call(m, src);
    *options = (ds_decoder_layer_call){0};
    return y;
}

ds_tensor *ds_call_decoder_layer_with(ds_module *m, ds_tensor *tgt, ds_tensor *memory,
                                      ds_decoder_layer_call call)
{
    if (!dsi_live_all("call_decoder_layer", m, tgt, memory))
        return dsi_null_operand("call_decoder_layer");
    ds_decoder_layer_call *options = options_of(m, false);
    if (!options) return NULL;
    *options = call;
    ds_tensor *y = ds_call(m, tgt, memory);
    *options = (ds_decoder_layer_call){0};
    return y;
}

/* ---- the modules -------------------------------------------------------------------------------------- */

static ds_module *layer_new(ds_module *parent, const char *name, const ds_module_type *type,
                            int64_t d_model, ds_nn_transformer_encoder_layer_opts o)
{
    static const char *const norms[] = {"norm1", "norm2", "norm3"}, *const dropouts[] = {
                                                                        "dropout1", "dropout2",
                                                                        "dropout3"};
    ds_module *m = ds_module_new(parent, name, type);
    Layer *l = ds_self(m);
    int64_t width = o.dim_feedforward ? o.dim_feedforward : 2048;
    double dropout = dsi_option(o.dropout, 0.1);
    ds_nn_norm_opts norm = {.eps = o.layer_norm_eps, .no_bias = o.no_bias};
    ds_nn_multihead_attention_opts attention = {.num_heads = o.nhead,
                                                .dropout = dropout,
                                                .batch_first = o.batch_first,
                                                .no_bias = o.no_bias};
    bool decoder = type->forward_n;
    l->gelu = o.gelu, l->norm_first = o.norm_first;
    l->self_attn = ds_nn_multihead_attention_with(m, "self_attn", d_model, attention);
    if (decoder)
        l->multihead_attn = ds_nn_multihead_attention_with(m, "multihead_attn", d_model, attention);
    l->linear1 = ds_nn_linear(m, "linear1", d_model, width, .no_bias = o.no_bias);
    l->dropout = ds_nn_dropout(m, "dropout", dropout);
    l->linear2 = ds_nn_linear(m, "linear2", width, d_model, .no_bias = o.no_bias);
    for (int i = 0; i < 2 + decoder; i++)
        l->norm[i] = ds_nn_layer_norm_with(m, norms[i], ds_shape(d_model), norm);
    for (int i = 0; i < 2 + decoder; i++) l->dropouts[i] = ds_nn_dropout(m, dropouts[i], dropout);
    return m;
}

ds_module *ds_nn_transformer_encoder_layer_with(ds_module *parent, const char *name,
                                                int64_t d_model,
                                                ds_nn_transformer_encoder_layer_opts o)
{
    static const ds_module_type type = {"TransformerEncoderLayer", sizeof(Layer),
                                        .forward = encoder_layer_forward};
    return layer_new(parent, name, &type, d_model, o);
}

ds_module *ds_nn_transformer_decoder_layer_with(ds_module *parent, const char *name,
                                                int64_t d_model,
                                                ds_nn_transformer_encoder_layer_opts o)
{
    static const ds_module_type type = {"TransformerDecoderLayer", sizeof(Layer),
                                        .forward_n = decoder_layer_forward};
    return layer_new(parent, name, &type, d_model, o);
}

static ds_module *stack_new(ds_module *parent, const char *name, const ds_module_type *type,
                            int64_t d_model, ds_nn_transformer_stack_opts o)
{
    ds_module *m = ds_module_new(parent, name, type);
    Stack *s = ds_self(m);
    if (o.num_layers < 1) {
        ds_fail(DS_EINVAL, "%s %s: num_layers = %lld: expected at least 1", type->name,
                ds_module_name(m), (long long)o.num_layers);
        return m;
    }
    s->layers = ds_nn_module_list(m, "layers");
    s->n = o.num_layers;
    ds_tensor *before = ds_rng_state();
    for (int64_t i = 0; i < s->n; i++) {
        if (i) ds_set_rng_state(before);
        if (type->forward)
            ds_nn_transformer_encoder_layer_with(s->layers, NULL, d_model, o.layer);
        else
            ds_nn_transformer_decoder_layer_with(s->layers, NULL, d_model, o.layer);
    }
    ds_nn_norm_opts norm = {.eps = o.layer.layer_norm_eps, .no_bias = o.layer.no_bias};
    if (o.norm) s->norm = ds_nn_layer_norm_with(m, "norm", ds_shape(d_model), norm);
    return m;
}

ds_module *ds_nn_transformer_encoder_with(ds_module *parent, const char *name, int64_t d_model,
                                          ds_nn_transformer_stack_opts o)
{
    static const ds_module_type type = {"TransformerEncoder", sizeof(Stack),
                                        .forward = encoder_forward};
    return stack_new(parent, name, &type, d_model, o);
}

ds_module *ds_nn_transformer_decoder_with(ds_module *parent, const char *name, int64_t d_model,
                                          ds_nn_transformer_stack_opts o)
{
    static const ds_module_type type = {"TransformerDecoder", sizeof(Stack),
                                        .forward_n = decoder_forward};
    return stack_new(parent, name, &type, d_model, o);
}

/* ---- Transformer -------------------------------------------------------------------------------------- */

typedef struct Transformer {
    ds_module *encoder, *decoder;
} Transformer;

/* in: src, tgt */
static ds_tensor *transformer_forward(void *self, ds_tensor **in, int n)
{
    Transformer *t = self;
    if (n != 2) return dsi_refuse("Transformer: %d tensors: expected src and tgt", n);
    return ds_call(t->decoder, in[1], ds_call(t->encoder, in[0]));
}

ds_module *ds_nn_transformer_with(ds_module *parent, const char *name, int64_t d_model,
                                  ds_nn_transformer_opts o)
{
    static const ds_module_type type = {"Transformer", sizeof(Transformer),
                                        .forward_n = transformer_forward};
    ds_module *m = ds_module_new(parent, name, &type);
    Transformer *t = ds_self(m);
    if (!o.layer.nhead) o.layer.nhead = 8;
    ds_nn_transformer_stack_opts stack = {.norm = true, .layer = o.layer};
    stack.num_layers = o.num_encoder_layers ? o.num_encoder_layers : 6;
    t->encoder = ds_nn_transformer_encoder_with(m, "encoder", d_model, stack);
    stack.num_layers = o.num_decoder_layers ? o.num_decoder_layers : 6;
    t->decoder = ds_nn_transformer_decoder_with(m, "decoder", d_model, stack);
    for (int i = 0; i < ds_module_params(m) && !ds_error(); i++) {
        ds_tensor *p = ds_module_param_at(m, i, NULL);
        if (ds_ndim(p) > 1) ds_init_xavier_uniform(p, 1);
    }
    return m;
}
