/* tests/reference/ops_next_layers.c: layers, norms, convolutions, resizing and
 * initial values, of family ops-next.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference_ops.h"

#include <deepspeed.h>

static ds_tensor *batch_norm(OpRun *run)
{
    ds_batch_norm_opts o = {.weight = op_input(run, "weight"),
                            .bias = op_input(run, "bias"),
                            .running_mean = op_input(run, "running_mean"),
                            .running_var = op_input(run, "running_var"),
                            .training = op_bool(run, "training", false),
                            .momentum = op_number(run, "momentum", 0.1),
                            .eps = op_number(run, "eps", 1e-5)};
    if (o.momentum == 0) o.momentum = DS_ZERO;
    ds_tensor *y = ds_batch_norm_with(op_input(run, "input"), o);
    op_output(run, "running_mean_after", o.running_mean);
    op_output(run, "running_var_after", o.running_var);
    return y;
}

static ds_tensor *instance_norm(OpRun *run)
{
    bool own = op_bool(run, "use_input_stats", true);
    ds_batch_norm_opts o = {.weight = op_input(run, "weight"),
                            .bias = op_input(run, "bias"),
                            .running_mean = op_input(run, "running_mean"),
                            .running_var = op_input(run, "running_var"),
                            .training = own,
                            .momentum = op_number(run, "momentum", 0.1),
                            .eps = op_number(run, "eps", 1e-5)};
    ds_tensor *y = ds_instance_norm_with(op_input(run, "input"), o);
    op_output(run, "running_mean_after", o.running_mean);
    op_output(run, "running_var_after", o.running_var);
    return y;
}

static ds_tensor *group_norm(OpRun *run)
{
    return ds_group_norm(op_input(run, "input"), op_int(run, "num_groups", 0),
                         op_input(run, "weight"), op_input(run, "bias"), op_number(run, "eps", 0));
}

/* ---- convolutions and resizing ----------------------------------------------------------------------- */

static ds_tensor *conv1d(OpRun *run)
{
    bool same = !strcmp(reference_text(run->attrs, "padding", ""), "same");
    ds_conv1d_opts o = {.bias = op_input(run, "bias"),
                        .stride = (int)op_int(run, "stride", 1),
                        .padding = same ? 0 : (int)op_int(run, "padding", 0),
                        .dilation = (int)op_int(run, "dilation", 1),
                        .groups = (int)op_int(run, "groups", 1),
                        .same = same};
    if (!o.stride) o.stride = -1; /* 0 is the default here */
    return ds_conv1d_with(op_input(run, "input"), op_input(run, "weight"), o);
}

static ds_tensor *conv3d(OpRun *run)
{
    return ds_conv3d(op_input(run, "input"), op_input(run, "weight"), op_input(run, "bias"),
                     .stride = reference_dims(run->attrs, "stride"),
                     .padding = reference_dims(run->attrs, "padding"),
                     .dilation = reference_dims(run->attrs, "dilation"),
                     .groups = (int)op_int(run, "groups", 1));
}

static ds_tensor *adaptive_max_pool2d(OpRun *run)
{
    ds_dims d = reference_dims(run->attrs, "output_size");
    ds_tensor *indices;
    ds_tensor *y = ds_adaptive_max_pool2d(op_input(run, "input"), d.d[0], d.d[d.n > 1], &indices);
    op_output(run, "indices", indices);
    return y;
}

static ds_tensor *conv_transpose2d(OpRun *run)
{
    ds_conv_transpose2d_opts o = {.bias = op_input(run, "bias"),
                                  .groups = (int)op_int(run, "groups", 1)};
    op_pair(run, "stride", &o.stride, &o.stride_w);
    op_pair(run, "padding", &o.padding, &o.padding_w);
    op_pair(run, "output_padding", &o.output_padding, &o.output_padding_w);
    op_pair(run, "dilation", &o.dilation, &o.dilation_w);
    return ds_conv_transpose2d_with(op_input(run, "input"), op_input(run, "weight"), o);
}

static ds_pool1d_opts pool1d(OpRun *run)
{
    return (ds_pool1d_opts){.kernel = (int)op_int(run, "kernel", 0),
                            .stride = (int)op_int(run, "stride", 0),
                            .padding = (int)op_int(run, "padding", 0),
                            .dilation = (int)op_int(run, "dilation", 0),
                            .ceil_mode = op_bool(run, "ceil_mode", false),
                            .exclude_pad = !op_bool(run, "count_include_pad", true)};
}

static ds_tensor *max_pool1d(OpRun *run)
{
    ds_pool1d_opts o = pool1d(run);
    ds_tensor *indices;
    o.indices = &indices;
    ds_tensor *y = ds_max_pool1d_with(op_input(run, "input"), o);
    op_output(run, "indices", indices);
    return y;
}

static ds_tensor *avg_pool1d(OpRun *run)
{
    return ds_avg_pool1d_with(op_input(run, "input"), pool1d(run));
}

static ds_tensor *interpolate(OpRun *run)
{
    static const char *const modes[] = {"nearest", "linear", "bilinear", "area"};
    ds_interpolate_opts o = {
        .size = reference_dims(run->attrs, "size"),
        .align_corners = op_bool(run, "align_corners", false),
        .recompute_scale_factor = op_bool(run, "recompute_scale_factor", false)};
    const json_t *factor = json_object_get(run->attrs, "scale_factor");
    o.scale_factor = reference_number(json_is_array(factor) ? json_array_get(factor, 0) : factor,
                                      0);
    if (json_is_array(factor)) o.scale_factor_w = reference_number(json_array_get(factor, 1), 0);
    for (int i = 0; i < 4; i++)
        if (!strcmp(reference_text(run->attrs, "mode", "nearest"), modes[i]))
            o.mode = (ds_interpolate_mode)i;
    return ds_interpolate_with(op_input(run, "input"), o);
}

/* ---- modules ----------------------------------------------------------------------------------------- */

/* Puts the case's inputs that m has as parameters in m's place of them: the
 * same handles, so that gradients arrive there. */
static void module_take_inputs(OpRun *run, ds_module *m)
{
    ds_state *mine = ds_module_state(m);
    for (int i = 0; i < ds_state_len(mine); i++) {
        ds_tensor *x = op_input(run, ds_state_name(mine, i)), *p = ds_state_at(mine, i);
        if (!x || ds_copy(p, x) != DS_OK)
            reference_fail(run->r, "parameter %s: %s", ds_state_name(mine, i),
                           x ? ds_error() : "not in the case");
        else
            ds_state_set(run->r->tensors, ds_state_name(mine, i), p);
    }
    ds_state_free(mine);
}

static bool no_bias(OpRun *run) { return !op_bool(run, "bias", true); }

static ds_tensor *multihead_attention(OpRun *run)
{
    ds_nn_multihead_attention_opts o = {.num_heads = op_int(run, "num_heads", 0),
                                        .no_bias = no_bias(run),
                                        .add_bias_kv = op_bool(run, "add_bias_kv", false),
                                        .add_zero_attn = op_bool(run, "add_zero_attn", false),
                                        .kdim = op_int(run, "kdim", 0),
                                        .vdim = op_int(run, "vdim", 0),
                                        .batch_first = op_bool(run, "batch_first", false)};
    ds_module *m = ds_nn_multihead_attention_with(NULL, "MultiheadAttention",
                                                  op_int(run, "embed_dim", 0), o);
    ds_tensor *weights = NULL, *y = NULL;
    if (!ds_error()) {
        module_take_inputs(run, m);
        ds_attention_call call = {.key_padding_mask = op_input(run, "key_padding_mask"),
                                  .attn_mask = op_input(run, "attn_mask"),
                                  .weights = op_bool(run, "need_weights", true) ? &weights : NULL,
                                  .weights_per_head = !op_bool(run, "average_attn_weights", true)};
        y = ds_call_attention_with(m, op_input(run, "query"), op_input(run, "key"),
                                   op_input(run, "value"), call);
        op_output(run, "attn_weights", weights);
    }
    ds_module_free(m);
    return y;
}

static ds_tensor *encoder_layer(OpRun *run)
{
    ds_nn_transformer_encoder_layer_opts o = {
        .nhead = op_int(run, "nhead", 0),
        .dim_feedforward = op_int(run, "dim_feedforward", 0),
        .dropout = DS_ZERO, /* of all cases */
        .gelu = !strcmp(reference_text(run->attrs, "activation", "relu"), "gelu"),
        .layer_norm_eps = op_number(run, "layer_norm_eps", 0),
        .batch_first = op_bool(run, "batch_first", false),
        .norm_first = op_bool(run, "norm_first", false),
        .no_bias = no_bias(run)};
    ds_module *m = ds_nn_transformer_encoder_layer_with(NULL, "TransformerEncoderLayer",
                                                        op_int(run, "d_model", 0), o);
    module_take_inputs(run, m);
    ds_tensor *y = ds_call_encoder_layer(m, op_input(run, "src"), .mask = op_input(run, "src_mask"),
                                         .key_padding_mask = op_input(run, "src_key_padding_mask"));
    ds_module_free(m);
    return y;
}

static ds_tensor *recurrent(OpRun *run)
{
    const char *op = reference_text(run->r->json, "op", "");
    ds_nn_rnn_opts o = {.hidden_size = op_int(run, "hidden_size", 0),
                        .num_layers = (int)op_int(run, "num_layers", 0),
                        .no_bias = no_bias(run),
                        .batch_first = op_bool(run, "batch_first", false),
                        .bidirectional = op_bool(run, "bidirectional", false),
                        .proj_size = op_int(run, "proj_size", 0),
                        .relu = !strcmp(reference_text(run->attrs, "nonlinearity", ""), "relu")};
    int64_t in = op_int(run, "input_size", 0);
    ds_module *m = !strcmp(op, "LSTM")  ? ds_nn_lstm_with(NULL, op, in, o)
                   : !strcmp(op, "GRU") ? ds_nn_gru_with(NULL, op, in, o)
                                        : ds_nn_rnn_with(NULL, op, in, o);
    module_take_inputs(run, m);
    ds_rnn_state state = {op_input(run, "h_0"), op_input(run, "c_0")};
    ds_tensor *y = ds_call_rnn(m, op_input(run, "input"), &state);
    if (y) op_output(run, "h_n", state.h), op_output(run, "c_n", state.c);
    ds_module_free(m);
    return y;
}

/* ---- initial values ---------------------------------------------------------------------------------- */

static ds_tensor *next_rand(OpRun *run, ds_tensor *y)
{
    if (y) op_output(run, "next_rand", ds_rand(DS_F32, ds_shape(2)));
    return y;
}

static ds_tensor *init(OpRun *run)
{
    const char *op = reference_text(run->r->json, "op", "");
    ds_tensor *x = ds_empty(DS_F32, reference_dims(run->attrs, "shape")), *y = NULL;
    double gain = op_number(run, "gain", 1);
    ds_seed((uint64_t)op_int(run, "manual_seed", 0));
    if (!strcmp(op, "orthogonal_")) y = ds_init_orthogonal(x, gain);
    if (!strcmp(op, "xavier_normal_")) y = ds_init_xavier_normal(x, gain);
    if (!strcmp(op, "xavier_uniform_")) y = ds_init_xavier_uniform(x, gain);
    if (!strcmp(op, "trunc_normal_"))
        y = ds_init_trunc_normal(x, op_number(run, "mean", 0), op_number(run, "std", 1),
                                 op_number(run, "a", -2), op_number(run, "b", 2));
    if (!strcmp(op, "kaiming_normal_")) {
        bool out = !strcmp(reference_text(run->attrs, "mode", ""), "fan_out");
        bool relu = !strcmp(reference_text(run->attrs, "nonlinearity", ""), "relu");
        y = ds_init_kaiming_normal(x, op_number(run, "a", 0), out ? DS_FAN_OUT : DS_FAN_IN,
                                   relu ? DS_GAIN_RELU : DS_GAIN_LEAKY_RELU);
    }
    return next_rand(run, y);
}

/* The constructor's arguments, and what it is called here; NULL: it is not
 * here. */
static ds_module *init_module(const char *name, const json_t *a)
{
    int64_t in = reference_int(a, "in_channels", 0), out = reference_int(a, "out_channels", 0);
    int kernel = (int)reference_int(a, "kernel_size", 0);
    int64_t n = reference_int(a, "num_features", 0), input = reference_int(a, "input_size", 0);
    ds_nn_rnn_opts rnn = {.hidden_size = reference_int(a, "hidden_size", 0),
                          .num_layers = (int)reference_int(a, "num_layers", 0),
                          .bidirectional = reference_bool(a, "bidirectional", false)};
    if (!strcmp(name, "Conv1d")) return ds_nn_conv1d(NULL, name, in, out, kernel);
    if (!strcmp(name, "Conv3d")) return ds_nn_conv3d(NULL, name, in, out, ds_shape(kernel));
    if (!strcmp(name, "EmbeddingBag"))
        return ds_nn_embedding_bag(NULL, name, reference_int(a, "num_embeddings", 0),
                                   reference_int(a, "embedding_dim", 0), DS_BAG_MEAN, -1);
    if (!strcmp(name, "Bilinear"))
        return ds_nn_bilinear(NULL, name, reference_int(a, "in1_features", 0),
                              reference_int(a, "in2_features", 0),
                              reference_int(a, "out_features", 0), false);
    if (!strcmp(name, "PReLU"))
        return ds_nn_prelu(NULL, name, reference_int(a, "num_parameters", 0), 0);
    if (!strcmp(name, "ConvTranspose2d"))
        return ds_nn_conv_transpose2d(NULL, name, in, out, kernel,
                                      .groups = (int)reference_int(a, "groups", 1));
    if (!strcmp(name, "GroupNorm"))
        return ds_nn_group_norm(NULL, name, reference_int(a, "num_groups", 0),
                                reference_int(a, "num_channels", 0));
    if (!strcmp(name, "RMSNorm"))
        return ds_nn_rms_norm(NULL, name, reference_dims(a, "normalized_shape"));
    if (!strcmp(name, "InstanceNorm1d")) {
        ds_nn_instance_norm_opts o = {
            .affine = reference_bool(a, "affine", false),
            .track_running_stats = reference_bool(a, "track_running_stats", false)};
        return ds_nn_instance_norm1d_with(NULL, name, n, o);
    }
    if (!strcmp(name, "BatchNorm1d")) return ds_nn_batch_norm1d(NULL, name, n);
    if (!strcmp(name, "MultiheadAttention"))
        return ds_nn_multihead_attention(
            NULL, name, reference_int(a, "embed_dim", 0), reference_int(a, "num_heads", 0),
            .kdim = reference_int(a, "kdim", 0), .vdim = reference_int(a, "vdim", 0),
            .add_bias_kv = reference_bool(a, "add_bias_kv", false));
    if (!strcmp(name, "TransformerEncoderLayer"))
        return ds_nn_transformer_encoder_layer(
            NULL, name, reference_int(a, "d_model", 0), reference_int(a, "nhead", 0),
            .dim_feedforward = reference_int(a, "dim_feedforward", 0));
    if (!strcmp(name, "LSTM")) return ds_nn_lstm_with(NULL, name, input, rnn);
    if (!strcmp(name, "GRU")) return ds_nn_gru_with(NULL, name, input, rnn);
    if (!strcmp(name, "RNN")) return ds_nn_rnn_with(NULL, name, input, rnn);
    return NULL;
}

/* All of the state dict, bit for bit, and no other entry. */
static ds_tensor *default_init(OpRun *run)
{
    const char *name = reference_text(run->attrs, "module", "");
    ds_seed((uint64_t)op_int(run, "manual_seed", 0));
    ds_module *m = init_module(name, json_object_get(run->attrs, "arguments"));
    if (!m) {
        reference_skip(run->r, "there is no nn.%s here", name);
        return NULL;
    }
    next_rand(run, ds_module_param_at(m, 0, NULL));
    ds_state *state = ds_module_state(m);
    for (int i = 0; i < ds_state_len(state); i++) {
        op_output(run, ds_state_name(state, i), ds_state_at(state, i));
        if (!op_input(run, ds_state_name(state, i)))
            reference_fail(run->r, "nn.%s has no %s", name, ds_state_name(state, i));
    }
    ds_state_free(state);
    ds_module_free(m);
    return NULL;
}

/* The gradients of a module's parameters; "output0" is that of "grad0". */
static ds_tensor *clip_grad_value(OpRun *run)
{
    ds_module *m = ds_nn_module_list(NULL, "m");
    char name[32] = "grad0", output[32];
    for (int i = 0; op_input(run, name); snprintf(name, sizeof name, "grad%d", ++i)) {
        ds_tensor *g = op_input(run, name);
        ds_set_grad_of(ds_module_param(m, name, ds_like(g, 0)), g);
    }
    if (ds_clip_grad_value(m, op_number(run, "clip_value", 0)) != DS_OK)
        reference_fail(run->r, "%s", ds_error());
    for (int i = 0; i < ds_module_params(m); i++) {
        snprintf(output, sizeof output, "output%d", i);
        op_output(run, output, ds_grad(ds_module_param_at(m, i, NULL)));
    }
    ds_module_free(m);
    return NULL;
}

static const OpRow rows[] = {
    {"batch_norm", batch_norm, "training momentum eps"},
    {"instance_norm", instance_norm, "use_input_stats momentum eps"},
    {"group_norm", group_norm, "num_groups eps"},
    {"conv1d", conv1d, "stride padding dilation groups"},
    {"conv3d", conv3d, "stride padding dilation groups"},
    {"adaptive_max_pool2d", adaptive_max_pool2d, "output_size"},
    {"conv_transpose2d", conv_transpose2d, "stride padding output_padding dilation groups"},
    {"max_pool1d", max_pool1d, "kernel stride padding dilation ceil_mode"},
    {"avg_pool1d", avg_pool1d, "kernel stride padding ceil_mode count_include_pad"},
    {"interpolate", interpolate, "size scale_factor mode align_corners recompute_scale_factor"},
    {"MultiheadAttention", multihead_attention,
     "embed_dim num_heads bias add_bias_kv add_zero_attn kdim vdim batch_first need_weights "
     "average_attn_weights"},
    {"TransformerEncoderLayer", encoder_layer,
     "d_model nhead dim_feedforward dropout activation norm_first batch_first layer_norm_eps bias"},
    {"LSTM", recurrent,
     "input_size hidden_size num_layers batch_first bidirectional bias proj_size"},
    {"GRU", recurrent, "input_size hidden_size num_layers batch_first bidirectional bias"},
    {"RNN", recurrent,
     "input_size hidden_size num_layers batch_first bidirectional bias nonlinearity"},
    {"orthogonal_", init, "manual_seed shape gain"},
    {"xavier_normal_", init, "manual_seed shape gain"},
    {"xavier_uniform_", init, "manual_seed shape gain"},
    {"trunc_normal_", init, "manual_seed shape mean std a b"},
    {"kaiming_normal_", init, "manual_seed shape a mode nonlinearity"},
    {"default_init", default_init, "manual_seed module arguments"},
    {"clip_grad_value_", clip_grad_value, "clip_value"},
};

static void ops_next(void **state)
{
    (void)state;
    CHECK_INT(reference_ops_next("layers", rows, sizeof rows / sizeof *rows), 0);
}

TEST_MAIN(cmocka_unit_test(ops_next))
