/* tests/reference/ops_next_layers.c: layers, norms, convolutions, resizing and
 * initial values, of family ops-next.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference_modules.h"
#include "reference_ops.h"

#include <deepspeed.h>

static ds_tensor *batch_norm(OpRun *run)
{
    return op_batch_norm(run, op_bool(run, "training", false), ds_batch_norm_with);
}

static ds_tensor *instance_norm(OpRun *run)
{
    return op_batch_norm(run, op_bool(run, "use_input_stats", true), ds_instance_norm_with);
}

static ds_tensor *group_norm(OpRun *run)
{
    return ds_group_norm(op_input(run, "input"), op_int(run, "num_groups", 0),
                         op_input(run, "weight"), op_input(run, "bias"), op_option(run, "eps"));
}

/* ---- convolutions and resizing ----------------------------------------------------------------------- */

static int negative_if(bool zero, int64_t value) { return zero && !value ? -1 : (int)value; }

/* padding as a word: "same" -> *same, "valid"; another one is refused by
 * torch, so it becomes a padding that is refused here. */
static ds_dims conv_padding(OpRun *run, bool *same)
{
    const char *word = reference_text(run->attrs, "padding", "");
    *same = !strcmp(word, "same");
    if (*word && !*same && strcmp(word, "valid") != 0) return ds_shape(-1);
    return reference_dims(run->attrs, "padding");
}

static ds_tensor *conv1d(OpRun *run)
{
    ds_conv1d_opts o = {.bias = op_input(run, "bias"),
                        .groups = negative_if(true, op_int(run, "groups", 1))};
    int unused = 0;
    op_pair(run, "stride", &o.stride, &unused);
    op_pair(run, "dilation", &o.dilation, &unused);
    o.padding = (int)conv_padding(run, &o.same).d[0];
    return ds_conv1d_with(op_input(run, "input"), op_input(run, "weight"), o);
}

static ds_tensor *conv3d(OpRun *run)
{
    ds_conv3d_opts o = {.bias = op_input(run, "bias"),
                        .stride = reference_dims(run->attrs, "stride"),
                        .dilation = reference_dims(run->attrs, "dilation"),
                        .groups = negative_if(true, op_int(run, "groups", 1))};
    o.padding = conv_padding(run, &o.same);
    return ds_conv3d_with(op_input(run, "input"), op_input(run, "weight"), o);
}

static ds_tensor *adaptive_max_pool2d(OpRun *run)
{
    ds_dims d = reference_dims(run->attrs, "output_size");
    ds_tensor *x = op_input(run, "input"), *indices;
    const json_t *sizes = json_object_get(run->attrs, "output_size");
    for (int i = 0; i < d.n; i++) /* null: that of the input */
        if (json_is_null(json_array_get(sizes, (size_t)i))) d.d[i] = ds_size(x, i - 2);
    if (json_is_array(sizes) && d.n != 2) d.d[0] = 0; /* is refused */
    ds_tensor *y = ds_adaptive_max_pool2d(x, d.d[0], d.d[d.n > 1], &indices);
    op_output(run, "indices", indices);
    return y;
}

static ds_tensor *conv_transpose2d(OpRun *run)
{
    ds_conv_transpose2d_opts o = {.bias = op_input(run, "bias"),
                                  .groups = negative_if(true, op_int(run, "groups", 1))};
    op_pair(run, "stride", &o.stride, &o.stride_w);
    op_pair(run, "padding", &o.padding, &o.padding_w);
    op_pair(run, "output_padding", &o.output_padding, &o.output_padding_w);
    op_pair(run, "dilation", &o.dilation, &o.dilation_w);
    return ds_conv_transpose2d_with(op_input(run, "input"), op_input(run, "weight"), o);
}

static ds_tensor *conv_transpose1d(OpRun *run)
{
    ds_conv_transpose1d_opts o = {.bias = op_input(run, "bias"),
                                  .groups = negative_if(true, op_int(run, "groups", 1))};
    int unused = 0;
    op_pair(run, "stride", &o.stride, &unused);
    op_pair(run, "padding", &o.padding, &unused);
    op_pair(run, "output_padding", &o.output_padding, &unused);
    op_pair(run, "dilation", &o.dilation, &unused);
    return ds_conv_transpose1d_with(op_input(run, "input"), op_input(run, "weight"), o);
}

static ds_tensor *conv_transpose3d(OpRun *run)
{
    ds_conv_transpose3d_opts o = {.bias = op_input(run, "bias"),
                                  .stride = reference_dims(run->attrs, "stride"),
                                  .padding = reference_dims(run->attrs, "padding"),
                                  .output_padding = reference_dims(run->attrs, "output_padding"),
                                  .groups = negative_if(true, op_int(run, "groups", 1)),
                                  .dilation = reference_dims(run->attrs, "dilation")};
    return ds_conv_transpose3d_with(op_input(run, "input"), op_input(run, "weight"), o);
}

static ds_tensor *max_pool1d(OpRun *run)
{
    ds_pool1d_opts o = op_pool1d(run);
    ds_tensor *indices;
    o.indices = &indices;
    ds_tensor *y = ds_max_pool1d_with(op_input(run, "input"), o);
    op_output(run, "indices", indices);
    return y;
}

static ds_tensor *avg_pool1d(OpRun *run)
{
    return ds_avg_pool1d_with(op_input(run, "input"), op_pool1d(run));
}

static ds_tensor *interpolate(OpRun *run)
{
    static const char *const modes[] = {"nearest",       "linear",  "bilinear", "area",
                                        "nearest-exact", "bicubic", "trilinear"};
    ds_tensor *x = op_input(run, "input");
    ds_interpolate_opts o = {
        .size = reference_dims(run->attrs, "size"),
        .align_corners = op_bool(run, "align_corners", false),
        .antialias = op_bool(run, "antialias", false),
        .recompute_scale_factor = op_bool(run, "recompute_scale_factor", false)};
    const json_t *list = json_object_get(run->attrs, "size");
    if (json_is_array(list) && o.size.n != ds_ndim(x) - 2) o.size.n = DS_MAX_DIMS; /* refused */
    const json_t *factor = json_object_get(run->attrs, "scale_factor");
    if (json_is_array(factor) && json_array_size(factor) != (size_t)(ds_ndim(x) - 2))
        o.size.n = DS_MAX_DIMS; /* refused */
    double factors[3] = {0};
    for (size_t i = 0; i < 3; i++)
        factors[i] = reference_number(json_is_array(factor) ? json_array_get(factor, i) : factor,
                                      0);
    size_t last = ds_ndim(x) > 3 ? (size_t)ds_ndim(x) - 3 : 0; /* the columns */
    o.scale_factor = factors[0];
    if (last > 0) o.scale_factor_w = factors[last];
    if (last > 1) o.scale_factor_h = factors[1];
    for (int i = 0; i < 7; i++)
        if (!strcmp(reference_text(run->attrs, "mode", "nearest"), modes[i]))
            o.mode = (ds_interpolate_mode)i;
    return ds_interpolate_with(x, o);
}

/* ---- modules ----------------------------------------------------------------------------------------- */

/* Puts the case's inputs that m has as parameters in m's place of them: the
 * same handles, so that gradients arrive there. A case that raises may lack
 * them. */
static void module_take_inputs(OpRun *run, ds_module *m)
{
    bool raises = json_object_get(run->r->json, "raises");
    ds_state *mine = ds_module_state(m);
    ds_tensor *first = ds_state_len(mine) ? op_input(run, ds_state_name(mine, 0)) : NULL;
    if (first) ds_module_to(m, ds_dtype_of(first));
    for (int i = 0; i < ds_state_len(mine); i++) {
        ds_tensor *x = op_input(run, ds_state_name(mine, i)), *p = ds_state_at(mine, i);
        if (!x && raises) continue;
        if (!x || ds_copy(p, x) != DS_OK)
            reference_fail(run->r, "parameter %s: %s", ds_state_name(mine, i),
                           x ? ds_error() : "not in the case");
        else
            ds_state_set(run->r->tensors, ds_state_name(mine, i), p);
    }
    ds_state_free(mine);
}

static ds_module *module_of_case(OpRun *run)
{
    json_t *a = json_deep_copy(run->attrs);
    if (!json_object_get(a, "dropout")) json_object_set_new(a, "dropout", json_real(0));
    ds_module *m = reference_module(reference_text(run->r->json, "op", ""), a);
    json_decref(a);
    if (!ds_error()) module_take_inputs(run, m);
    return m;
}

static ds_tensor *multihead_attention(OpRun *run)
{
    ds_module *m = module_of_case(run);
    ds_tensor *weights = NULL, *y = NULL;
    bool causal = op_bool(run, "is_causal", false), wants = op_bool(run, "need_weights", true);
    ds_attention_call call = {.key_padding_mask = op_input(run, "key_padding_mask"),
                              .attn_mask = op_input(run, "attn_mask"),
                              .weights = wants ? &weights : NULL,
                              .weights_per_head = !op_bool(run, "average_attn_weights", true)};
    /* in torch is_causal is a hint that attn_mask, which it wants, is causal */
    if (causal && !call.attn_mask)
        ds_fail(DS_EINVAL, "MultiheadAttention: is_causal without attn_mask");
    if (causal && !wants) call.attn_mask = NULL, call.causal = true;
    if (!ds_error())
        y = ds_call_attention_with(m, op_input(run, "query"), op_input(run, "key"),
                                   op_input(run, "value"), call);
    op_output(run, "attn_weights", weights);
    ds_module_free(m);
    return y;
}

static ds_tensor *encoder_layer(OpRun *run)
{
    ds_module *m = module_of_case(run);
    ds_tensor *y = ds_call_encoder_layer(m, op_input(run, "src"), .mask = op_input(run, "src_mask"),
                                         .key_padding_mask = op_input(run, "src_key_padding_mask"));
    ds_module_free(m);
    return y;
}

static ds_tensor *decoder_layer(OpRun *run)
{
    ds_module *m = module_of_case(run);
    ds_decoder_layer_call call = {
        .mask = op_input(run, "tgt_mask"),
        .key_padding_mask = op_input(run, "tgt_key_padding_mask"),
        .memory_mask = op_input(run, "memory_mask"),
        .memory_key_padding_mask = op_input(run, "memory_key_padding_mask")};
    ds_tensor *y = ds_call_decoder_layer_with(m, op_input(run, "tgt"), op_input(run, "memory"),
                                              call);
    ds_module_free(m);
    return y;
}

/* Transformer: src, tgt; Bilinear: input1, input2; EmbeddingBag: input, offsets,
 * per_sample_weights. */
static ds_tensor *called(OpRun *run)
{
    static const char *const names[] = {
        "src", "tgt", "input1", "input2", "input", "offsets", "per_sample_weights"};
    ds_module *m = module_of_case(run);
    ds_tensor *in[3];
    int n = 0;
    for (int i = 0; i < 7 && n < 3; i++)
        if ((in[n] = op_input(run, names[i]))) n++;
    ds_tensor *y = ds_call_n(m, in, n);
    ds_module_free(m);
    return y;
}

/* A cell's h and c are given as hx, cx. */
static ds_tensor *cell(OpRun *run)
{
    ds_module *m = module_of_case(run);
    ds_rnn_state state = {op_input(run, "hx"), op_input(run, "cx")};
    ds_tensor *y = ds_call_rnn(m, op_input(run, "input"), &state);
    if (y) op_output(run, "c_n", state.c);
    ds_module_free(m);
    return y;
}

static ds_tensor *recurrent(OpRun *run)
{
    ds_module *m = module_of_case(run);
    ds_rnn_state state = {op_input(run, "h_0"), op_input(run, "c_0")};
    ds_tensor *x = op_input(run, "input"), *lengths = op_input(run, "lengths");
    ds_tensor *y = lengths ? ds_call_rnn_padded(m, x, lengths, &state) : ds_call_rnn(m, x, &state);
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

/* sigmoid and convolutions have torch's gain 1, that of linear. */
static ds_gain init_gain(const char *name)
{
    static const char *const names[] = {"leaky_relu", "relu", "linear", "tanh", "selu"};
    for (int i = 0; i < 5; i++)
        if (!strcmp(name, names[i])) return (ds_gain)i;
    if (!strcmp(name, "sigmoid") || !strncmp(name, "conv", 4)) return DS_GAIN_LINEAR;
    return *name ? (ds_gain)99 : DS_GAIN_LEAKY_RELU; /* 99 is refused */
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
        const char *mode = reference_text(run->attrs, "mode", "fan_in");
        ds_fan fan = !strcmp(mode, "fan_in") ? DS_FAN_IN : DS_FAN_OUT;
        if (strncmp(mode, "fan_", 4) != 0) fan = (ds_fan)99; /* refused */
        y = ds_init_kaiming_normal(x, op_number(run, "a", 0), fan,
                                   init_gain(reference_text(run->attrs, "nonlinearity", "")));
    }
    return next_rand(run, y);
}

/* All of the state dict, bit for bit, and no other entry. */
static ds_tensor *default_init(OpRun *run)
{
    const char *name = reference_text(run->attrs, "module", "");
    ds_seed((uint64_t)op_int(run, "manual_seed", 0));
    ds_module *m = reference_module(name, json_object_get(run->attrs, "arguments"));
    if (!m) {
        reference_skip(run->r, "there is no nn.%s here", name);
        return NULL;
    }
    op_output(run, "next_rand", ds_rand(DS_F32, ds_shape(2)));
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
    {"conv_transpose1d", conv_transpose1d, "stride padding output_padding dilation groups"},
    {"conv_transpose2d", conv_transpose2d, "stride padding output_padding dilation groups"},
    {"conv_transpose3d", conv_transpose3d, "stride padding output_padding dilation groups"},
    {"max_pool1d", max_pool1d, "kernel stride padding dilation ceil_mode"},
    {"avg_pool1d", avg_pool1d, "kernel stride padding ceil_mode count_include_pad"},
    {"interpolate", interpolate,
     "size scale_factor mode align_corners recompute_scale_factor antialias"},
    {"MultiheadAttention", multihead_attention,
     "embed_dim num_heads bias add_bias_kv add_zero_attn kdim vdim batch_first need_weights "
     "average_attn_weights is_causal dropout"},
    {"TransformerEncoderLayer", encoder_layer,
     "d_model nhead dim_feedforward dropout activation norm_first batch_first layer_norm_eps bias "
     "is_causal"},
    {"TransformerDecoderLayer", decoder_layer,
     "d_model nhead dim_feedforward dropout activation norm_first batch_first layer_norm_eps bias"},
    {"Transformer", called,
     "d_model nhead num_encoder_layers num_decoder_layers dim_feedforward dropout activation "
     "norm_first batch_first layer_norm_eps bias"},
    {"Bilinear", called, "in1_features in2_features out_features bias"},
    {"EmbeddingBag", called, "num_embeddings embedding_dim mode padding_idx include_last_offset"},
    {"LSTMCell", cell, "input_size hidden_size bias"},
    {"GRUCell", cell, "input_size hidden_size bias"},
    {"RNNCell", cell, "input_size hidden_size bias nonlinearity"},
    {"LSTM", recurrent,
     "input_size hidden_size num_layers batch_first bidirectional bias proj_size dropout"},
    {"GRU", recurrent, "input_size hidden_size num_layers batch_first bidirectional bias dropout"},
    {"RNN", recurrent,
     "input_size hidden_size num_layers batch_first bidirectional bias nonlinearity dropout"},
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
