/* deepspeed/nn.h: modules: a tree that owns layers and parameters; the built-in
 * layers; initial values.
 *
 * A constructor takes parent and name (which is copied): the parent frees the
 * child, the names joined by dots are the key in the state dict ("fc1.weight":
 * the root's own name is left out, as in PyTorch), and the path in every
 * message ("net.fc1"). ds_module_new never returns NULL: after a refusal (a
 * name twice, say) the module is there but ds_error() is set, so that
 * constructors need no check of their own. Convolutions are in nn_conv.h.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_NN_H
#define DEEPSPEED_NN_H

#include <deepspeed/nn_conv.h>
#include <deepspeed/ops.h>

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_module ds_module;

typedef struct ds_module_type {
    const char *name; /* "Conv2d" */
    size_t self_size; /* bytes of your struct, zeroed for you */
    /* of one tensor, or of several; set one of the two */
    ds_tensor *(*forward)(void *self, ds_tensor *x);
    ds_tensor *(*forward_n)(void *self, ds_tensor **in, int n);
    void (*free)(void *self); /* optional */
    /* optional: its options for ds_module_print, without a newline
     * ("in_features=3, bias=True") */
    void (*describe)(void *self, FILE *to);
} ds_module_type;

/* ---- the tree ------------------------------------------------------------------------------------- */

/* parent NULL: a root, to be freed by ds_module_free or handed to an engine.
 * name NULL: its number among parent's children, as in a Sequential or a
 * ModuleList. *type is copied. */
DS_API ds_module *ds_module_new(ds_module *parent, const char *name, const ds_module_type *type);
/* ds_module_make(parent, name, "Net", .forward = net_forward), or with
 * sizeof(Net) in the second place: a type of these members. */
#define ds_module_make(parent, name, ...) \
    ds_module_new(parent, name, &(const ds_module_type){__VA_ARGS__})
DS_API void ds_module_free(ds_module *m); /* a root; its children go with it */
DS_API void *ds_self(ds_module *m);
DS_API ds_module *ds_module_of(void *self); /* the module whose struct self is */
DS_API const char *ds_module_name(const ds_module *m);
DS_API const ds_module_type *ds_module_type_of(const ds_module *m);
DS_API int ds_module_children(const ds_module *m);
DS_API ds_module *ds_module_child(const ds_module *m, int i); /* in the order they were made */

/* The module below m, or the parameter or buffer, at this path of names,
 * "layer1.0.conv1" (get_submodule, get_parameter, get_buffer); borrowed. NULL,
 * with the message, if there is none. */
DS_API ds_module *ds_submodule(const ds_module *m, const char *path);
DS_API ds_tensor *ds_parameter(const ds_module *m, const char *path);

/* Gives m a parameter with these first values (init itself, if nothing but its
 * scope holds it), and returns it: a leaf that requires a gradient, borrowed,
 * alive as long as m. A buffer is saved with the module but not trained. */
DS_API ds_tensor *ds_module_param(ds_module *m, const char *name, ds_tensor *init);
DS_API ds_tensor *ds_module_buffer(ds_module *m, const char *name, ds_tensor *init);

/* Gives m another module's parameter under this name (head.weight =
 * tok.weight): state dicts have it under both names, parameters count it once,
 * and so it is trained once. Returns param. */
DS_API ds_tensor *ds_module_tie(ds_module *m, const char *name, ds_tensor *param);

/* Runs m's forward. A scope of its own: temporaries end with it, the result
 * moves to the caller's. */
#define ds_call(m, ...) \
    ds_call_n(m, (ds_tensor *[]){__VA_ARGS__}, \
              (int)(sizeof((ds_tensor *[]){__VA_ARGS__}) / sizeof(ds_tensor *)))
DS_API ds_tensor *ds_call_n(ds_module *m, ds_tensor **in, int n);

/* In a forward, calls the child of that path without a struct that holds it:
 *     static ds_tensor *forward(void *self, ds_tensor *x)
 *     {
 *         return ds_call_child(self, "fc2", ds_relu(ds_call_child(self, "fc1", x)));
 *     } */
#define ds_call_child(self, path, ...) ds_call(ds_submodule(ds_module_of(self), path), __VA_ARGS__)

/* The same by ds_checkpoint: m's activations are made again in backward instead
 * of kept. */
#define ds_checkpoint_call(m, ...) \
    ds_checkpoint_call_n(m, (ds_tensor *[]){__VA_ARGS__}, \
                         (int)(sizeof((ds_tensor *[]){__VA_ARGS__}) / sizeof(ds_tensor *)))
DS_API ds_tensor *ds_checkpoint_call_n(ds_module *m, ds_tensor **in, int n);

/* Before m's forward: it may replace x[0] to x[n-1], which it borrows. Another
 * status than DS_OK fails the call. */
typedef ds_status ds_forward_pre_hook(void *arg, ds_module *m, ds_tensor **x, int n);
/* After m's forward: returns y, or what takes its place; NULL fails the call. */
typedef ds_tensor *ds_forward_hook(void *arg, ds_module *m, ds_tensor **x, int n, ds_tensor *y);

/* Module.register_forward_pre_hook, register_forward_hook: in each call of m,
 * in the order of registration, in the call's scope: ds_keep what is to stay.
 * They return a handle for ds_remove_forward_hook; -1, with the message, for a
 * NULL. arg is borrowed. */
DS_API int ds_register_forward_pre_hook(ds_module *m, ds_forward_pre_hook *hook, void *arg);
DS_API int ds_register_forward_hook(ds_module *m, ds_forward_hook *hook, void *arg);
DS_API void ds_remove_forward_hook(ds_module *m, int handle);

DS_API void ds_module_train(ds_module *m, bool training); /* m and all below; at first training */
DS_API bool ds_module_training(const ds_module *m);

/* All parameters of m and below, in state-dict order: their number, and the
 * i-th one, borrowed. */
DS_API int ds_module_params(const ds_module *m);
DS_API ds_tensor *ds_module_param_at(const ds_module *m, int i, const char **path);
DS_API int64_t ds_module_numel(const ds_module *m); /* elements of all parameters */
DS_API void ds_module_zero_grad(ds_module *m);

/* m and below in another floating-point dtype, as torch's m.half(): parameters,
 * their gradients, and buffers that are not integers. Tensors asked for before
 * stay the module's. After DS_ENOMEM the first ones are converted; the call can
 * be repeated. */
DS_API ds_status ds_module_to(ds_module *m, ds_dtype dtype);

/* Parameters and buffers by PyTorch's names: a new state dict that shares their
 * memory. */
DS_API ds_state *ds_module_state(const ds_module *m);

/* Copies values in; refuses missing or unknown names and other shapes, naming
 * them, changing nothing. Experts that other ranks have are not unknown: a
 * whole state dict fits on every rank. A tied parameter needs one of its
 * names. */
DS_API DS_MUST_CHECK ds_status ds_module_load(ds_module *m, const ds_state *state);

/* load_state_dict(strict=False): copies the values whose names both have.
 * *missing becomes what only m has, its tensors, which keep their values;
 * *unexpected what only the state dict has. Both, where not NULL, are the
 * caller's to free, also after a failure. Refuses other shapes, changing
 * nothing. */
DS_API DS_MUST_CHECK ds_status ds_module_load_partial(ds_module *m, const ds_state *state,
                                                      ds_state **missing, ds_state **unexpected);

/* The tree, as PyTorch prints a model:
 *     Net(
 *       (conv1): Conv2d(3, 6, kernel_size=(5, 5), stride=(1, 1))
 *       (fc1): Linear(in_features=400, out_features=120, bias=True)
 *     )
 */
DS_API void ds_module_print(ds_module *m, FILE *to);

/* ---- built-in layers: torch.nn, with its default initial values ----------------------------------- */

typedef struct ds_linear_opts {
    int64_t out;
    bool no_bias;
    ds_tensor *tied; /* another module's parameter [out, in] as the weight; NULL: a new one */
} ds_linear_opts;

/* y = x weight^T + bias; weight [out, in], bias [out]. */
#define ds_nn_linear(parent, name, in, ...) \
    ds_nn_linear_with(parent, name, in, (ds_linear_opts){.out = __VA_ARGS__})
DS_API ds_module *ds_nn_linear_with(ds_module *parent, const char *name, int64_t in,
                                    ds_linear_opts opts);

/* ds_bilinear(x1, x2): ds_call_n(m, in, 2). weight [out, in1, in2], bias [out]. */
DS_API ds_module *ds_nn_bilinear(ds_module *parent, const char *name, int64_t in1, int64_t in2,
                                 int64_t out, bool no_bias);

typedef struct ds_nn_norm_opts {
    double eps;      /* 0: 1e-5; RMS norm: that of ds_rms_norm */
    double momentum; /* batch norm; 0: 0.1 */
    bool no_affine;
    bool no_bias; /* weight alone; RMS norm never has a bias */
    bool no_running_stats;
} ds_nn_norm_opts;

/* weight, bias, running_mean, running_var [channels], num_batches_tracked int64
 * []. x is [N,C] or [N,C,L] for batch_norm1d, [N,C,H,W] for batch_norm2d,
 * [N,C,D,H,W] for batch_norm3d. */
DS_API ds_module *ds_nn_batch_norm1d(ds_module *parent, const char *name, int64_t channels);
DS_API ds_module *ds_nn_batch_norm1d_with(ds_module *parent, const char *name, int64_t channels,
                                          ds_nn_norm_opts opts);
DS_API ds_module *ds_nn_batch_norm2d(ds_module *parent, const char *name, int64_t channels);
DS_API ds_module *ds_nn_batch_norm2d_with(ds_module *parent, const char *name, int64_t channels,
                                          ds_nn_norm_opts opts);
DS_API ds_module *ds_nn_batch_norm3d(ds_module *parent, const char *name, int64_t channels);
DS_API ds_module *ds_nn_batch_norm3d_with(ds_module *parent, const char *name, int64_t channels,
                                          ds_nn_norm_opts opts);

/* torch.nn.SyncBatchNorm: x [N,C,...], in training with the statistics of all
 * ranks of `ranks` (NULL: the world; borrowed). */
DS_API ds_module *ds_nn_sync_batch_norm(ds_module *parent, const char *name, int64_t channels,
                                        ds_comm *ranks, ds_nn_norm_opts opts);
/* SyncBatchNorm.convert_sync_batchnorm: all BatchNorm1d to 3d of m and below
 * become such, before the model is trained. Returns how many. */
DS_API int ds_convert_sync_batchnorm(ds_module *m, ds_comm *ranks);

typedef struct ds_nn_instance_norm_opts {
    double eps;      /* 0: 1e-5 */
    double momentum; /* 0: 0.1 */
    bool affine, track_running_stats;
} ds_nn_instance_norm_opts;

/* Nothing in the state dict; weight, bias [channels] with .affine, and the
 * buffers of batch norm with .track_running_stats. x is [N,C,L] or [C,L];
 * [N,C,H,W] or [C,H,W]; [N,C,D,H,W] or [C,D,H,W]. */
DS_API ds_module *ds_nn_instance_norm1d_with(ds_module *parent, const char *name, int64_t channels,
                                             ds_nn_instance_norm_opts opts);
DS_API ds_module *ds_nn_instance_norm2d_with(ds_module *parent, const char *name, int64_t channels,
                                             ds_nn_instance_norm_opts opts);
DS_API ds_module *ds_nn_instance_norm3d_with(ds_module *parent, const char *name, int64_t channels,
                                             ds_nn_instance_norm_opts opts);

/* weight, bias [channels]; `groups` divides channels. */
DS_API ds_module *ds_nn_group_norm(ds_module *parent, const char *name, int64_t groups,
                                   int64_t channels);
DS_API ds_module *ds_nn_group_norm_with(ds_module *parent, const char *name, int64_t groups,
                                        int64_t channels, ds_nn_norm_opts opts);

/* weight of that shape, the last dimensions of x; layer norm: bias too. */
DS_API ds_module *ds_nn_rms_norm(ds_module *parent, const char *name, ds_dims shape);
DS_API ds_module *ds_nn_rms_norm_with(ds_module *parent, const char *name, ds_dims shape,
                                      ds_nn_norm_opts opts);
DS_API ds_module *ds_nn_layer_norm(ds_module *parent, const char *name, ds_dims shape);
DS_API ds_module *ds_nn_layer_norm_with(ds_module *parent, const char *name, ds_dims shape,
                                        ds_nn_norm_opts opts);

/* weight [count, dim]; row padding_idx (-1: none) starts at 0 and stays. */
DS_API ds_module *ds_nn_embedding(ds_module *parent, const char *name, int64_t count, int64_t dim,
                                  int64_t padding_idx);
DS_API ds_module *ds_nn_embedding_with(ds_module *parent, const char *name, int64_t count,
                                       int64_t dim, int64_t padding_idx, ds_embedding_opts opts);

typedef struct ds_nn_embedding_bag_opts {
    ds_bag_mode mode;
    int64_t padding_idx;                          /* -1: none */
    bool include_last_offset, scale_grad_by_freq; /* as in ds_embedding_bag_opts */
} ds_nn_embedding_bag_opts;

/* weight [count, dim]: ds_embedding_bag of indices [B,L], or of (indices [M],
 * offsets); after either per_sample_weights. Row padding_idx (-1: none) starts
 * at 0 and stays. */
DS_API ds_module *ds_nn_embedding_bag_with(ds_module *parent, const char *name, int64_t count,
                                           int64_t dim, ds_nn_embedding_bag_opts opts);
DS_API ds_module *ds_nn_embedding_bag(ds_module *parent, const char *name, int64_t count,
                                      int64_t dim, ds_bag_mode mode, int64_t padding_idx);

DS_API ds_module *ds_nn_dropout(ds_module *parent, const char *name, double p);
DS_API ds_module *ds_nn_dropout1d(ds_module *parent, const char *name, double p);
DS_API ds_module *ds_nn_dropout2d(ds_module *parent, const char *name, double p);
DS_API ds_module *ds_nn_dropout3d(ds_module *parent, const char *name, double p);
DS_API ds_module *ds_nn_alpha_dropout(ds_module *parent, const char *name, double p);
DS_API ds_module *ds_nn_feature_alpha_dropout(ds_module *parent, const char *name, double p);
DS_API ds_module *ds_nn_identity(ds_module *parent, const char *name);
DS_API ds_module *ds_nn_relu(ds_module *parent, const char *name);
DS_API ds_module *ds_nn_gelu(ds_module *parent, const char *name);
DS_API ds_module *ds_nn_sigmoid(ds_module *parent, const char *name);
DS_API ds_module *ds_nn_silu(ds_module *parent, const char *name);
DS_API ds_module *ds_nn_tanh(ds_module *parent, const char *name);
DS_API ds_module *ds_nn_hardsigmoid(ds_module *parent, const char *name);
DS_API ds_module *ds_nn_hardswish(ds_module *parent, const char *name);
DS_API ds_module *ds_nn_logsigmoid(ds_module *parent, const char *name);
DS_API ds_module *ds_nn_mish(ds_module *parent, const char *name);
DS_API ds_module *ds_nn_selu(ds_module *parent, const char *name);
DS_API ds_module *ds_nn_relu6(ds_module *parent, const char *name);
DS_API ds_module *ds_nn_softsign(ds_module *parent, const char *name);
DS_API ds_module *ds_nn_tanhshrink(ds_module *parent, const char *name);
/* Numbers: 0 selects the op's default, DS_ZERO requests 0. */
DS_API ds_module *ds_nn_leaky_relu(ds_module *parent, const char *name, double negative_slope);
DS_API ds_module *ds_nn_elu(ds_module *parent, const char *name, double alpha);
DS_API ds_module *ds_nn_celu(ds_module *parent, const char *name, double alpha);
DS_API ds_module *ds_nn_hardshrink(ds_module *parent, const char *name, double lambda);
DS_API ds_module *ds_nn_softshrink(ds_module *parent, const char *name, double lambda);
/* Both 0: -1 and 1. */
DS_API ds_module *ds_nn_hardtanh(ds_module *parent, const char *name, double low, double high);
DS_API ds_module *ds_nn_softplus(ds_module *parent, const char *name, double beta,
                                 double threshold);
DS_API ds_module *ds_nn_softmax(ds_module *parent, const char *name, int dim);
DS_API ds_module *ds_nn_log_softmax(ds_module *parent, const char *name, int dim);
DS_API ds_module *ds_nn_softmin(ds_module *parent, const char *name, int dim);
DS_API ds_module *ds_nn_glu(ds_module *parent, const char *name, int dim);
/* Here 0 is 0. */
DS_API ds_module *ds_nn_threshold(ds_module *parent, const char *name, double threshold,
                                  double value);
/* weight [n], 1 or the number of channels, which starts at `init`; 0: 0.25 */
DS_API ds_module *ds_nn_prelu(ds_module *parent, const char *name, int64_t n, double init);
DS_API ds_module *ds_nn_flatten(ds_module *parent, const char *name); /* from dim 1 */

/* Calls its children in order. Children are made with the Sequential as parent
 * and named "0", "1", ... */
DS_API ds_module *ds_nn_sequential(ds_module *parent, const char *name);
/* Holds its children, likewise named; it cannot be called. */
DS_API ds_module *ds_nn_module_list(ds_module *parent, const char *name);

/* ---- attention ------------------------------------------------------------------------------------ */

typedef struct ds_nn_multihead_attention_opts {
    int64_t num_heads; /* divides embed_dim */
    double dropout;    /* of the attention weights, in training */
    bool no_bias;
    bool add_bias_kv;   /* a trained key and value after those given */
    bool add_zero_attn; /* a key and a value of zeros after those given */
    int64_t kdim, vdim; /* widths of key and value; 0: embed_dim */
    bool batch_first;   /* x is [batch, time, width]; else [time, batch, width] */
} ds_nn_multihead_attention_opts;

/* torch.nn.MultiheadAttention: in_proj_weight [3E,E] (q_proj_weight [E,E],
 * k_proj_weight [E,kdim], v_proj_weight [E,vdim] if these differ), in_proj_bias
 * [3E], bias_k, bias_v [1,1,E], out_proj.weight [E,E], out_proj.bias [E].
 * ds_call takes one tensor for query, key and value, two for query and the
 * others, or all three; [time, width] is one sample. */
#define ds_nn_multihead_attention(parent, name, embed_dim, ...) \
    ds_nn_multihead_attention_with(parent, name, embed_dim, \
                                   (ds_nn_multihead_attention_opts){.num_heads = __VA_ARGS__})
DS_API ds_module *ds_nn_multihead_attention_with(ds_module *parent, const char *name,
                                                 int64_t embed_dim,
                                                 ds_nn_multihead_attention_opts opts);

/* Masks: bool, true means IGNORED, as in torch.nn (not as in ds_attention); or
 * of x's dtype, which is added to the scores. L queries, S keys, N samples. */
typedef struct ds_attention_call {
    ds_tensor *key_padding_mask; /* [N,S]; for one sample [S] */
    ds_tensor *attn_mask;        /* [L,S] or [N num_heads,L,S] */
    bool causal;                 /* query i sees keys 0 to i */
    /* NULL, or *weights becomes the softmax [N,L,S], mean over heads; or with
     * .weights_per_head [N,num_heads,L,S]. In the current scope. */
    ds_tensor **weights;
    bool weights_per_head;
} ds_attention_call;

/* ds_call with these options. key NULL: query; value NULL: key. */
#define ds_call_attention(m, query, key, value, ...) \
    ds_call_attention_with(m, query, key, value, (ds_attention_call){__VA_ARGS__})
DS_API ds_tensor *ds_call_attention_with(ds_module *m, ds_tensor *query, ds_tensor *key,
                                         ds_tensor *value, ds_attention_call call);

typedef struct ds_nn_transformer_encoder_layer_opts {
    int64_t nhead;
    int64_t dim_feedforward; /* 0: 2048 */
    double dropout;          /* 0: 0.1; DS_ZERO: none */
    bool gelu;               /* activation="gelu"; else ReLU */
    double layer_norm_eps;   /* 0: 1e-5 */
    bool batch_first, norm_first;
    bool no_bias; /* neither in the norms */
} ds_nn_transformer_encoder_layer_opts;

/* torch.nn.TransformerEncoderLayer: self_attn, linear1, linear2, norm1, norm2.
 * Also a decoder's block without memory, if it is called with .causal.
 * TransformerDecoderLayer: also multihead_attn and norm3; called with tgt and
 * memory, the encoder's result. */
#define ds_nn_transformer_encoder_layer(parent, name, d_model, ...) \
    ds_nn_transformer_encoder_layer_with( \
        parent, name, d_model, (ds_nn_transformer_encoder_layer_opts){.nhead = __VA_ARGS__})
#define ds_nn_transformer_decoder_layer(parent, name, d_model, ...) \
    ds_nn_transformer_decoder_layer_with( \
        parent, name, d_model, (ds_nn_transformer_encoder_layer_opts){.nhead = __VA_ARGS__})
DS_API ds_module *ds_nn_transformer_encoder_layer_with(ds_module *parent, const char *name,
                                                       int64_t d_model,
                                                       ds_nn_transformer_encoder_layer_opts opts);
DS_API ds_module *ds_nn_transformer_decoder_layer_with(ds_module *parent, const char *name,
                                                       int64_t d_model,
                                                       ds_nn_transformer_encoder_layer_opts opts);

typedef struct ds_nn_transformer_stack_opts {
    int64_t num_layers;
    bool norm; /* a layer norm after the last layer */
    ds_nn_transformer_encoder_layer_opts layer;
} ds_nn_transformer_stack_opts;

/* torch.nn.TransformerEncoder, TransformerDecoder: layers.0, layers.1, ...,
 * which begin with equal values, as torch's copies do, and norm.
 *     ds_nn_transformer_encoder(m, "encoder", 512, 6, .norm = true, .layer = {.nhead = 8}) */
#define ds_nn_transformer_encoder(parent, name, d_model, ...) \
    ds_nn_transformer_encoder_with(parent, name, d_model, \
                                   (ds_nn_transformer_stack_opts){.num_layers = __VA_ARGS__})
#define ds_nn_transformer_decoder(parent, name, d_model, ...) \
    ds_nn_transformer_decoder_with(parent, name, d_model, \
                                   (ds_nn_transformer_stack_opts){.num_layers = __VA_ARGS__})
DS_API ds_module *ds_nn_transformer_encoder_with(ds_module *parent, const char *name,
                                                 int64_t d_model,
                                                 ds_nn_transformer_stack_opts opts);
DS_API ds_module *ds_nn_transformer_decoder_with(ds_module *parent, const char *name,
                                                 int64_t d_model,
                                                 ds_nn_transformer_stack_opts opts);

typedef struct ds_nn_transformer_opts {
    ds_nn_transformer_encoder_layer_opts layer;     /* .nhead 0: 8 */
    int64_t num_encoder_layers, num_decoder_layers; /* 0: 6 */
} ds_nn_transformer_opts;

/* torch.nn.Transformer: encoder and decoder, with their norms; called with src
 * and tgt. With masks: ds_call_encoder_layer and ds_call_decoder_layer of
 * ds_submodule(m, "encoder") and "decoder". */
DS_API ds_module *ds_nn_transformer_with(ds_module *parent, const char *name, int64_t d_model,
                                         ds_nn_transformer_opts opts);

typedef struct ds_encoder_layer_call {
    ds_tensor *mask,
        *key_padding_mask; /* src_mask, src_key_padding_mask, as in ds_attention_call */
    bool causal;
} ds_encoder_layer_call;

/* ds_call with masks, of a layer or a stack: ds_call_encoder_layer(layer, x,
 * .causal = true). */
#define ds_call_encoder_layer(m, src, ...) \
    ds_call_encoder_layer_with(m, src, (ds_encoder_layer_call){__VA_ARGS__})
DS_API ds_tensor *ds_call_encoder_layer_with(ds_module *m, ds_tensor *src,
                                             ds_encoder_layer_call call);

typedef struct ds_decoder_layer_call {
    ds_tensor *mask, *key_padding_mask; /* tgt_mask, tgt_key_padding_mask */
    bool causal;                        /* tgt_is_causal: the mask need not be given */
    ds_tensor *memory_mask, *memory_key_padding_mask;
} ds_decoder_layer_call;

/* The same of a decoder's layer or stack. */
#define ds_call_decoder_layer(m, tgt, memory, ...) \
    ds_call_decoder_layer_with(m, tgt, memory, (ds_decoder_layer_call){__VA_ARGS__})
DS_API ds_tensor *ds_call_decoder_layer_with(ds_module *m, ds_tensor *tgt, ds_tensor *memory,
                                             ds_decoder_layer_call call);

/* ---- recurrent layers ------------------------------------------------------------------------------ */

typedef struct ds_nn_rnn_opts {
    int64_t hidden_size;
    int num_layers; /* 0: 1 */
    bool no_bias;
    bool batch_first; /* x and y are [batch, time, width]; else [time, batch, width] */
    double dropout;   /* between layers, in training */
    bool bidirectional;
    int64_t proj_size; /* LSTM: width of h, below hidden_size; 0: hidden_size */
    bool relu;         /* RNN: nonlinearity="relu"; else tanh */
} ds_nn_rnn_opts;

/* torch.nn.LSTM, GRU, RNN: weight_ih_l0 [G H,input_size], weight_hh_l0 [G H,H],
 * bias_ih_l0, bias_hh_l0 [G H], weight_hr_l0 [proj_size,H], then those of layer
 * 1, ...; of the other direction with _reverse. H hidden_size; G = 4 gates
 * (i f g o), 3 (r z n), 1. The last layer's h of all steps is the result;
 * [time, width] is one sample. A sequence without steps is refused. */
#define ds_nn_lstm(parent, name, input_size, ...) \
    ds_nn_lstm_with(parent, name, input_size, (ds_nn_rnn_opts){.hidden_size = __VA_ARGS__})
#define ds_nn_gru(parent, name, input_size, ...) \
    ds_nn_gru_with(parent, name, input_size, (ds_nn_rnn_opts){.hidden_size = __VA_ARGS__})
#define ds_nn_rnn(parent, name, input_size, ...) \
    ds_nn_rnn_with(parent, name, input_size, (ds_nn_rnn_opts){.hidden_size = __VA_ARGS__})
DS_API ds_module *ds_nn_lstm_with(ds_module *parent, const char *name, int64_t input_size,
                                  ds_nn_rnn_opts opts);
DS_API ds_module *ds_nn_gru_with(ds_module *parent, const char *name, int64_t input_size,
                                 ds_nn_rnn_opts opts);
DS_API ds_module *ds_nn_rnn_with(ds_module *parent, const char *name, int64_t input_size,
                                 ds_nn_rnn_opts opts);

/* torch.nn.LSTMCell, GRUCell, RNNCell: weight_ih, weight_hh, bias_ih, bias_hh;
 * one step, x [batch, input_size] or [input_size] -> h. Of the options those of
 * one layer: hidden_size, no_bias, relu. */
#define ds_nn_lstm_cell(parent, name, input_size, ...) \
    ds_nn_lstm_cell_with(parent, name, input_size, (ds_nn_rnn_opts){.hidden_size = __VA_ARGS__})
#define ds_nn_gru_cell(parent, name, input_size, ...) \
    ds_nn_gru_cell_with(parent, name, input_size, (ds_nn_rnn_opts){.hidden_size = __VA_ARGS__})
#define ds_nn_rnn_cell(parent, name, input_size, ...) \
    ds_nn_rnn_cell_with(parent, name, input_size, (ds_nn_rnn_opts){.hidden_size = __VA_ARGS__})
DS_API ds_module *ds_nn_lstm_cell_with(ds_module *parent, const char *name, int64_t input_size,
                                       ds_nn_rnn_opts opts);
DS_API ds_module *ds_nn_gru_cell_with(ds_module *parent, const char *name, int64_t input_size,
                                      ds_nn_rnn_opts opts);
DS_API ds_module *ds_nn_rnn_cell_with(ds_module *parent, const char *name, int64_t input_size,
                                      ds_nn_rnn_opts opts);

/* h, and an LSTM's c: [num_layers directions, batch, size], for one sample
 * without batch; a cell's [batch, size]. */
typedef struct ds_rnn_state {
    ds_tensor *h, *c;
} ds_rnn_state;

/* ds_call from the state *state (NULL members: zeros), which becomes the state
 * after the last step, in the current scope: the next call continues there.
 * After a failure *state is as it was. */
DS_API ds_tensor *ds_call_rnn(ds_module *m, ds_tensor *x, ds_rnn_state *state);

/* The same of samples of several lengths, int64 [batch] from 1 to x's steps:
 * torch's pack_padded_sequence, the call, and pad_packed_sequence with x's
 * steps as the total length. Steps from a sample's length on are 0 in the
 * result; its state after the last step is that after its own last one, where
 * the other direction begins. state may be NULL. The host reads lengths. */
DS_API ds_tensor *ds_call_rnn_padded(ds_module *m, ds_tensor *x, ds_tensor *lengths,
                                     ds_rnn_state *state);

/* ---- mixture of experts: deepspeed.moe.layer.MoE ---------------------------------------------------- */

/* Makes an expert: a module with that parent and name, rows [n,hidden] ->
 * [n,hidden]. */
typedef ds_module *ds_expert_fn(ds_module *parent, const char *name, void *arg);

typedef struct ds_moe_opts {
    ds_expert_fn *expert;
    void *arg;       /* of expert */
    int num_experts; /* 0: 1 */
    int ep_size; /* ranks that share the experts, a divisor of num_experts and of the ranks; 0: 1 */
    int k;       /* experts of a token; 0: 1 */
    double capacity_factor, eval_capacity_factor; /* 0: 1 */
    int64_t min_capacity;                         /* 0: 4; -1: none */
    bool use_residual; /* beside the experts a dense branch of its own, made by expert too */
    const char *noisy_gate_policy; /* NULL or "None", "Jitter", "RSample": in training */
    bool no_drop_tokens;           /* an expert takes all that come */
    bool no_rts; /* k = 1: the first tokens stay, not random ones; so it is in evaluation anyway */
    bool no_top2_2nd_expert_sampling; /* k = 2: the second expert is the second best, not drawn */
    ds_comm *comm;                    /* that ep_size divides; NULL: ds_world() */
} ds_moe_opts;

/* Passes each token x[..., :] to the k experts that a float32 gate scores
 * highest, up to the capacity of each expert:
 *     capacity = max(ceil(tokens / num_experts * capacity_factor * k), min_capacity) tokens an expert
 *     y = sum over its experts of weight expert(x); weights: the gate's softmax, for k > 1 divided by their sum
 * An expert beyond its capacity adds 0 to y. Called with one tensor, or with
 * used_token [tokens] too: 0 for tokens that no expert gets (k = 1). For k = 1
 * there must be min_capacity tokens at least. With ep_size > 1 all ranks call
 * it together, and their backward too: tokens travel to the ranks that have
 * their experts.
 *     ds_nn_moe(parent, "moe", 84, expert, .num_experts = 4, .ep_size = 2, .k = 1)
 * Experts begin with equal values. State dict: DeepSpeed's names, an expert's
 * number being that in the layer. */
#define ds_nn_moe(parent, name, hidden, ...) \
    ds_nn_moe_with(parent, name, hidden, (ds_moe_opts){.expert = __VA_ARGS__})
DS_API ds_module *ds_nn_moe_with(ds_module *parent, const char *name, int64_t hidden,
                                 ds_moe_opts opts);

/* The sum over the layers of m and below of their losses for balance in their
 * last calls: float32 [], 1 for each layer that is balanced; 0 without a layer.
 * Add it to what is trained, times 0.01, or nothing keeps experts from running
 * empty. */
DS_API ds_tensor *ds_moe_aux_loss(ds_module *m);

/* Layers of m and below: their number, and the i-th one. */
DS_API int ds_moe_layers(const ds_module *m);
DS_API ds_module *ds_moe_layer(ds_module *m, int i);
/* Of a layer's last call on this rank: exp_counts has the tokens that chose
 * each expert, before dropping, and taken_counts those that the expert took;
 * int64 [num_experts], borrowed until the next call. capacity is the number of
 * tokens that each expert could take; where only a device has that number, it
 * is copied from there. */
DS_API ds_tensor *ds_moe_exp_counts(ds_module *layer);
DS_API ds_tensor *ds_moe_taken_counts(ds_module *layer);
DS_API int64_t ds_moe_capacity(const ds_module *layer);

/* ---- initial values: torch.nn.init, in place; each returns x -------------------------------------- */

DS_API ds_tensor *ds_init_constant(ds_tensor *x, double value);
DS_API ds_tensor *ds_init_uniform(ds_tensor *x, double low, double high);
DS_API ds_tensor *ds_init_normal(ds_tensor *x, double mean, double std);
/* N(mean, std^2) between low and high. */
DS_API ds_tensor *ds_init_trunc_normal(ds_tensor *x, double mean, double std, double low,
                                       double high);

typedef enum ds_fan { DS_FAN_IN = 0, DS_FAN_OUT } ds_fan;
typedef enum ds_gain {
    DS_GAIN_LEAKY_RELU = 0,
    DS_GAIN_RELU,
    DS_GAIN_LINEAR,
    DS_GAIN_TANH,
    DS_GAIN_SELU
} ds_gain;

/* bound = gain sqrt(3 / fan), std = gain / sqrt(fan); a is the slope of the
 * leaky ReLU. */
DS_API ds_tensor *ds_init_kaiming_uniform(ds_tensor *x, double a, ds_fan fan, ds_gain gain);
DS_API ds_tensor *ds_init_kaiming_normal(ds_tensor *x, double a, ds_fan fan, ds_gain gain);
/* bound = gain sqrt(6 / (fan_in + fan_out)), std = gain sqrt(2 / (fan_in +
 * fan_out)). */
DS_API ds_tensor *ds_init_xavier_uniform(ds_tensor *x, double gain);
DS_API ds_tensor *ds_init_xavier_normal(ds_tensor *x, double gain);
/* gain times an orthogonal matrix [size of dimension 0, the rest]: its rows, or
 * its columns if there are fewer, are orthonormal. */
DS_API ds_tensor *ds_init_orthogonal(ds_tensor *x, double gain);

#ifdef __cplusplus
}
#endif
#endif
