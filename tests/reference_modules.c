/* tests/reference_modules.c: see reference_modules.h.
 * SPDX-License-Identifier: MIT */
#include "reference_modules.h"

#include "reference.h"

#include <string.h>

typedef ds_module *make_module(const char *name, const json_t *a);

static int64_t integer(const json_t *a, const char *key) { return reference_int(a, key, 0); }
static bool flag(const json_t *a, const char *key) { return reference_bool(a, key, false); }
static bool without(const json_t *a, const char *key) { return !reference_bool(a, key, true); }

/* A number whose 0 is a value. */
static double number(const json_t *a, const char *key)
{
    double x = reference_double(a, key, 0);
    return json_object_get(a, key) && x == 0 ? DS_ZERO : x;
}

/* Member i of 3 or [3, 5]. */
static int member(const json_t *a, const char *key, int i)
{
    ds_dims d = reference_dims(a, key);
    return (int)d.d[d.n > i ? i : 0];
}

/* ---- convolutions and products ----------------------------------------------------------------------- */

static ds_module *make_conv1d(const char *name, const json_t *a)
{
    return ds_nn_conv1d(NULL, name, integer(a, "in_channels"), integer(a, "out_channels"),
                        member(a, "kernel_size", 0), .groups = (int)integer(a, "groups"),
                        .no_bias = without(a, "bias"));
}

static ds_module *make_conv2d(const char *name, const json_t *a)
{
    return ds_nn_conv2d(NULL, name, integer(a, "in_channels"), integer(a, "out_channels"),
                        member(a, "kernel_size", 0), member(a, "kernel_size", 1),
                        .groups = (int)integer(a, "groups"), .no_bias = without(a, "bias"));
}

static ds_module *make_conv3d(const char *name, const json_t *a)
{
    return ds_nn_conv3d(NULL, name, integer(a, "in_channels"), integer(a, "out_channels"),
                        reference_dims(a, "kernel_size"), .groups = (int)integer(a, "groups"),
                        .no_bias = without(a, "bias"));
}

static ds_module *make_conv_transpose1d(const char *name, const json_t *a)
{
    return ds_nn_conv_transpose1d(NULL, name, integer(a, "in_channels"), integer(a, "out_channels"),
                                  member(a, "kernel_size", 0), .groups = (int)integer(a, "groups"),
                                  .no_bias = without(a, "bias"));
}

static ds_module *make_conv_transpose3d(const char *name, const json_t *a)
{
    return ds_nn_conv_transpose3d(NULL, name, integer(a, "in_channels"), integer(a, "out_channels"),
                                  reference_dims(a, "kernel_size"),
                                  .groups = (int)integer(a, "groups"),
                                  .no_bias = without(a, "bias"));
}

static ds_module *make_conv_transpose2d(const char *name, const json_t *a)
{
    return ds_nn_conv_transpose2d(NULL, name, integer(a, "in_channels"), integer(a, "out_channels"),
                                  member(a, "kernel_size", 0), member(a, "kernel_size", 1),
                                  .groups = (int)integer(a, "groups"),
                                  .no_bias = without(a, "bias"));
}

static ds_module *make_linear(const char *name, const json_t *a)
{
    return ds_nn_linear(NULL, name, integer(a, "in_features"), integer(a, "out_features"),
                        .no_bias = without(a, "bias"));
}

static ds_module *make_bilinear(const char *name, const json_t *a)
{
    return ds_nn_bilinear(NULL, name, integer(a, "in1_features"), integer(a, "in2_features"),
                          integer(a, "out_features"), without(a, "bias"));
}

/* ---- tables ------------------------------------------------------------------------------------------ */

static int64_t padding_idx(const json_t *a)
{
    int64_t i = reference_int(a, "padding_idx", -1);
    return i < 0 && json_is_integer(json_object_get(a, "padding_idx"))
               ? i + integer(a, "num_embeddings")
               : i;
}

static ds_module *make_embedding(const char *name, const json_t *a)
{
    return ds_nn_embedding(NULL, name, integer(a, "num_embeddings"), integer(a, "embedding_dim"),
                           padding_idx(a));
}

static ds_module *make_embedding_bag(const char *name, const json_t *a)
{
    const char *mode = reference_text(a, "mode", "mean");
    ds_nn_embedding_bag_opts o = {.mode = !strcmp(mode, "sum")   ? DS_BAG_SUM
                                          : !strcmp(mode, "max") ? DS_BAG_MAX
                                                                 : DS_BAG_MEAN,
                                  .padding_idx = padding_idx(a),
                                  .include_last_offset = flag(a, "include_last_offset")};
    return ds_nn_embedding_bag_with(NULL, name, integer(a, "num_embeddings"),
                                    integer(a, "embedding_dim"), o);
}

static ds_module *make_prelu(const char *name, const json_t *a)
{
    return ds_nn_prelu(NULL, name, reference_int(a, "num_parameters", 1), number(a, "init"));
}

/* ---- norms ------------------------------------------------------------------------------------------- */

static ds_nn_norm_opts norm_opts(const json_t *a)
{
    return (ds_nn_norm_opts){.eps = number(a, "eps"),
                             .momentum = number(a, "momentum"),
                             .no_affine = without(a, "affine") || without(a, "elementwise_affine"),
                             .no_bias = without(a, "bias"),
                             .no_running_stats = without(a, "track_running_stats")};
}

static ds_module *make_layer_norm(const char *name, const json_t *a)
{
    return ds_nn_layer_norm_with(NULL, name, reference_dims(a, "normalized_shape"), norm_opts(a));
}

static ds_module *make_rms_norm(const char *name, const json_t *a)
{
    return ds_nn_rms_norm_with(NULL, name, reference_dims(a, "normalized_shape"), norm_opts(a));
}

static ds_module *make_group_norm(const char *name, const json_t *a)
{
    return ds_nn_group_norm_with(NULL, name, integer(a, "num_groups"), integer(a, "num_channels"),
                                 norm_opts(a));
}

static ds_nn_instance_norm_opts instance_norm_opts(const json_t *a)
{
    return (ds_nn_instance_norm_opts){.affine = flag(a, "affine"),
                                      .track_running_stats = flag(a, "track_running_stats")};
}

#define MAKE_NORM(layer, opts) \
    static ds_module *make_##layer(const char *name, const json_t *a) \
    { \
        return ds_nn_##layer##_with(NULL, name, integer(a, "num_features"), opts(a)); \
    }
MAKE_NORM(batch_norm1d, norm_opts)
MAKE_NORM(batch_norm2d, norm_opts)
MAKE_NORM(batch_norm3d, norm_opts)
MAKE_NORM(instance_norm1d, instance_norm_opts)
MAKE_NORM(instance_norm2d, instance_norm_opts)
MAKE_NORM(instance_norm3d, instance_norm_opts)

/* ---- attention, recurrence --------------------------------------------------------------------------- */

static ds_module *make_attention(const char *name, const json_t *a)
{
    return ds_nn_multihead_attention(
        NULL, name, integer(a, "embed_dim"), integer(a, "num_heads"), .kdim = integer(a, "kdim"),
        .vdim = integer(a, "vdim"), .no_bias = without(a, "bias"),
        .add_bias_kv = flag(a, "add_bias_kv"), .add_zero_attn = flag(a, "add_zero_attn"),
        .batch_first = flag(a, "batch_first"));
}

static ds_nn_transformer_encoder_layer_opts layer_opts(const json_t *a)
{
    return (ds_nn_transformer_encoder_layer_opts){
        .nhead = integer(a, "nhead"),
        .dim_feedforward = integer(a, "dim_feedforward"),
        .dropout = number(a, "dropout"),
        .gelu = !strcmp(reference_text(a, "activation", "relu"), "gelu"),
        .layer_norm_eps = number(a, "layer_norm_eps"),
        .batch_first = flag(a, "batch_first"),
        .norm_first = flag(a, "norm_first"),
        .no_bias = without(a, "bias")};
}

static ds_module *make_encoder_layer(const char *name, const json_t *a)
{
    return ds_nn_transformer_encoder_layer_with(NULL, name, integer(a, "d_model"), layer_opts(a));
}

static ds_module *make_decoder_layer(const char *name, const json_t *a)
{
    return ds_nn_transformer_decoder_layer_with(NULL, name, integer(a, "d_model"), layer_opts(a));
}

static ds_module *make_transformer(const char *name, const json_t *a)
{
    ds_nn_transformer_opts o = {.layer = layer_opts(a),
                                .num_encoder_layers = integer(a, "num_encoder_layers"),
                                .num_decoder_layers = integer(a, "num_decoder_layers")};
    return ds_nn_transformer_with(NULL, name, integer(a, "d_model"), o);
}

static ds_nn_rnn_opts rnn_opts(const json_t *a)
{
    return (ds_nn_rnn_opts){.hidden_size = integer(a, "hidden_size"),
                            .num_layers = (int)integer(a, "num_layers"),
                            .no_bias = without(a, "bias"),
                            .batch_first = flag(a, "batch_first"),
                            .bidirectional = flag(a, "bidirectional"),
                            .proj_size = integer(a, "proj_size"),
                            .relu = !strcmp(reference_text(a, "nonlinearity", ""), "relu")};
}

#define MAKE_RNN(layer) \
    static ds_module *make_##layer(const char *name, const json_t *a) \
    { \
        return ds_nn_##layer##_with(NULL, name, integer(a, "input_size"), rnn_opts(a)); \
    }
MAKE_RNN(lstm)
MAKE_RNN(gru)
MAKE_RNN(rnn)
MAKE_RNN(lstm_cell)
MAKE_RNN(gru_cell)
MAKE_RNN(rnn_cell)

ds_module *reference_module(const char *name, const json_t *arguments)
{
    static const struct {
        const char *name;
        make_module *make;
    } all[] = {{"Conv1d", make_conv1d},
               {"Conv2d", make_conv2d},
               {"Conv3d", make_conv3d},
               {"ConvTranspose1d", make_conv_transpose1d},
               {"ConvTranspose2d", make_conv_transpose2d},
               {"ConvTranspose3d", make_conv_transpose3d},
               {"Linear", make_linear},
               {"Bilinear", make_bilinear},
               {"Embedding", make_embedding},
               {"EmbeddingBag", make_embedding_bag},
               {"PReLU", make_prelu},
               {"LayerNorm", make_layer_norm},
               {"RMSNorm", make_rms_norm},
               {"GroupNorm", make_group_norm},
               {"BatchNorm1d", make_batch_norm1d},
               {"BatchNorm2d", make_batch_norm2d},
               {"BatchNorm3d", make_batch_norm3d},
               {"InstanceNorm1d", make_instance_norm1d},
               {"InstanceNorm2d", make_instance_norm2d},
               {"InstanceNorm3d", make_instance_norm3d},
               {"MultiheadAttention", make_attention},
               {"TransformerEncoderLayer", make_encoder_layer},
               {"TransformerDecoderLayer", make_decoder_layer},
               {"Transformer", make_transformer},
               {"LSTMCell", make_lstm_cell},
               {"GRUCell", make_gru_cell},
               {"RNNCell", make_rnn_cell},
               {"LSTM", make_lstm},
               {"GRU", make_gru},
               {"RNN", make_rnn}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(name, all[i].name)) return all[i].make(name, arguments);
    return NULL;
}
