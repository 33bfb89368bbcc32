/* tests/nn/layers.c: layers as modules: every dtype, state dicts' names, what
 * they print (as PyTorch 2.15), options of calls, refusals, failed allocations.
 * tests/reference/ops_next_layers.c compares their values with PyTorch's.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "device/device.h"

#include <stdio.h>

static int open_scope(void **state)
{
    ds_seed(3);
    *state = ds_scope_open();
    return 0;
}

static int close_scope(void **state)
{
    ds_error_clear();
    ds_scope_close(*state);
    return 0;
}

/* ---- the layers -------------------------------------------------------------------------------------- */

typedef struct Layer {
    ds_module *(*make)(void);
    ds_dims x;
    const char *names; /* of its state dict, each with a blank behind it */
    const char *text;  /* what it prints, without a newline; NULL: it has children */
} Layer;

#define MAKE(f, ...) \
    static ds_module *f(void) { return __VA_ARGS__; }

MAKE(conv1d, ds_nn_conv1d(NULL, "m", 4, 8, 3, .stride = 2, .padding = 1, .dilation = 2, .groups = 2,
                          .no_bias = true))
MAKE(conv1d_same, ds_nn_conv1d(NULL, "m", 2, 2, 3, .same = true))
MAKE(transpose, ds_nn_conv_transpose2d(NULL, "m", 4, 6, 2, .kernel_w = 3, .stride = 2, .padding = 1,
                                       .padding_w = -1, .output_padding = 1, .groups = 2,
                                       .no_bias = true, .dilation = 2))
MAKE(transpose1d, ds_nn_conv_transpose1d(NULL, "m", 4, 6, 3, .stride = 2, .padding = 1,
                                         .output_padding = 1, .groups = 2))
MAKE(transpose3d,
     ds_nn_conv_transpose3d(NULL, "m", 4, 6, ds_shape(2, 1, 3), .stride = ds_shape(2),
                            .padding = ds_shape(0, 0, 1), .output_padding = ds_shape(1, 0, 0),
                            .groups = 2, .no_bias = true))
MAKE(batch, ds_nn_batch_norm1d(NULL, "m", 6))
MAKE(batch_no_bias, ds_nn_batch_norm1d_with(NULL, "m", 6, (ds_nn_norm_opts){.no_bias = true}))
MAKE(instance1d, ds_nn_instance_norm1d_with(NULL, "m", 3, (ds_nn_instance_norm_opts){0}))
MAKE(instance2d,
     ds_nn_instance_norm2d_with(NULL, "m", 3,
                                (ds_nn_instance_norm_opts){
                                    .eps = 1e-3, .affine = true, .track_running_stats = true}))
MAKE(batch3d, ds_nn_batch_norm3d(NULL, "m", 2))
MAKE(instance3d, ds_nn_instance_norm3d_with(NULL, "m", 3, (ds_nn_instance_norm_opts){0}))
MAKE(sync, ds_nn_sync_batch_norm(NULL, "m", 6, NULL, (ds_nn_norm_opts){0}))
MAKE(group, ds_nn_group_norm(NULL, "m", 2, 4))
MAKE(group_plain,
     ds_nn_group_norm_with(NULL, "m", 2, 4, (ds_nn_norm_opts){.eps = 1e-3, .no_affine = true}))
MAKE(rms, ds_nn_rms_norm(NULL, "m", ds_shape(8)))
MAKE(rms_plain, ds_nn_rms_norm_with(NULL, "m", ds_shape(2, 3),
                                    (ds_nn_norm_opts){.eps = 1e-6, .no_affine = true}))
MAKE(dropout2d, ds_nn_dropout2d(NULL, "m", 0.3))
MAKE(lstm, ds_nn_lstm(NULL, "m", 5, 4, .num_layers = 2, .no_bias = true, .batch_first = true,
                      .dropout = 0.1, .bidirectional = true, .proj_size = 3))
MAKE(lstm_cell, ds_nn_lstm_cell(NULL, "m", 5, 4))
MAKE(gru_cell, ds_nn_gru_cell(NULL, "m", 5, 4, .no_bias = true))
MAKE(rnn_cell, ds_nn_rnn_cell(NULL, "m", 5, 4, .relu = true))
MAKE(encoder_stack,
     ds_nn_transformer_encoder(
         NULL, "m", 8, 1, .norm = true,
         .layer = {.nhead = 2, .dim_feedforward = 16, .no_bias = true, .dropout = DS_ZERO}))
MAKE(gru, ds_nn_gru(NULL, "m", 3, 2, .bidirectional = true))
MAKE(rnn, ds_nn_rnn(NULL, "m", 3, 2, .relu = true))
MAKE(attention, ds_nn_multihead_attention(NULL, "m", 8, 2, .dropout = 0.1, .add_bias_kv = true,
                                          .add_zero_attn = true, .batch_first = true))
MAKE(encoder, ds_nn_transformer_encoder_layer(NULL, "m", 8, 2, .dim_feedforward = 16,
                                              .no_bias = true, .gelu = true))

MAKE(identity, ds_nn_identity(NULL, "m"))
MAKE(silu, ds_nn_silu(NULL, "m"))
MAKE(softmax, ds_nn_softmax(NULL, "m", -1))
MAKE(log_softmax, ds_nn_log_softmax(NULL, "m", 1))
MAKE(conv3d, ds_nn_conv3d(NULL, "m", 4, 6, ds_shape(2, 1, 3), .stride = ds_shape(2),
                          .padding = ds_shape(0, 0, 1), .groups = 2))
MAKE(prelu, ds_nn_prelu(NULL, "m", 3, 0))
MAKE(adaptive_max, ds_nn_adaptive_max_pool2d(NULL, "m", 2, 3))
MAKE(adaptive, ds_nn_adaptive_avg_pool2d(NULL, "m", 2, 3))

MAKE(leaky_relu, ds_nn_leaky_relu(NULL, "m", 0))
MAKE(leaky_relu_2, ds_nn_leaky_relu(NULL, "m", 0.2))
MAKE(elu, ds_nn_elu(NULL, "m", 0))
MAKE(celu, ds_nn_celu(NULL, "m", 0.5))
MAKE(softplus, ds_nn_softplus(NULL, "m", 0, 0))
MAKE(hardsigmoid, ds_nn_hardsigmoid(NULL, "m"))
MAKE(hardswish, ds_nn_hardswish(NULL, "m"))
MAKE(logsigmoid, ds_nn_logsigmoid(NULL, "m"))
MAKE(mish, ds_nn_mish(NULL, "m"))
MAKE(selu, ds_nn_selu(NULL, "m"))
MAKE(softsign, ds_nn_softsign(NULL, "m"))
MAKE(tanhshrink, ds_nn_tanhshrink(NULL, "m"))
MAKE(hardshrink, ds_nn_hardshrink(NULL, "m", 0))
MAKE(softshrink, ds_nn_softshrink(NULL, "m", 0.25))
MAKE(hardtanh, ds_nn_hardtanh(NULL, "m", 0, 0))
MAKE(relu6, ds_nn_relu6(NULL, "m"))
MAKE(threshold, ds_nn_threshold(NULL, "m", 0.1, 20))
MAKE(softmin, ds_nn_softmin(NULL, "m", 1))
MAKE(glu, ds_nn_glu(NULL, "m", -1))
MAKE(dropout1d, ds_nn_dropout1d(NULL, "m", 0.3))
MAKE(dropout3d, ds_nn_dropout3d(NULL, "m", 0.3))
MAKE(alpha_dropout, ds_nn_alpha_dropout(NULL, "m", 0.2))
MAKE(feature_dropout, ds_nn_feature_alpha_dropout(NULL, "m", 0.2))

MAKE(max_pool1d,
     ds_nn_max_pool1d(NULL, "m", (ds_pool1d_opts){.kernel = 3, .stride = 2, .padding = 1}))
MAKE(avg_pool1d, ds_nn_avg_pool1d(NULL, "m", (ds_pool1d_opts){.kernel = 3}))
MAKE(max_pool3d,
     ds_nn_max_pool3d(NULL, "m",
                      (ds_pool3d_opts){.kernel = ds_shape(1, 2, 2), .stride = ds_shape(2)}))
MAKE(avg_pool3d,
     ds_nn_avg_pool3d(NULL, "m", (ds_pool3d_opts){.kernel = ds_shape(2), .padding = ds_shape(1)}))
MAKE(adaptive_avg1d, ds_nn_adaptive_avg_pool1d(NULL, "m", 3))
MAKE(adaptive_max1d, ds_nn_adaptive_max_pool1d(NULL, "m", 3))
MAKE(adaptive_avg3d, ds_nn_adaptive_avg_pool3d(NULL, "m", 1, 2, 3))
MAKE(adaptive_max3d, ds_nn_adaptive_max_pool3d(NULL, "m", 1, 2, 3))
MAKE(pixel_shuffle, ds_nn_pixel_shuffle(NULL, "m", 2))
MAKE(pixel_unshuffle, ds_nn_pixel_unshuffle(NULL, "m", 2))
MAKE(channel_shuffle, ds_nn_channel_shuffle(NULL, "m", 2))
MAKE(unfold, ds_nn_unfold(NULL, "m", (ds_unfold_opts){.kernel = 2, .kernel_w = 3, .padding = 1}))
MAKE(fold, ds_nn_fold(NULL, "m", 4, 5, (ds_unfold_opts){.kernel = 2}))
MAKE(unflatten, ds_nn_unflatten(NULL, "m", 1, ds_shape(2, 3)))
MAKE(upsample, ds_nn_upsample(NULL, "m", (ds_interpolate_opts){.scale_factor = 2}))
MAKE(upsample_to,
     ds_nn_upsample(NULL, "m", (ds_interpolate_opts){.size = ds_shape(5, 7), .mode = DS_BILINEAR}))
MAKE(zero_pad, ds_nn_pad(NULL, "m", ds_shape(1, 1, 1, 1), (ds_pad_opts){0}))
MAKE(constant_pad, ds_nn_pad(NULL, "m", ds_shape(1, 2), (ds_pad_opts){.value = 0.5}))
MAKE(reflect, ds_nn_pad(NULL, "m", ds_shape(1, 1, 0, 2), (ds_pad_opts){.mode = DS_PAD_REFLECT}))
MAKE(circular,
     ds_nn_pad(NULL, "m", ds_shape(1, 1, 1, 1, 1, 1), (ds_pad_opts){.mode = DS_PAD_CIRCULAR}))
MAKE(response,
     ds_nn_local_response_norm(NULL, "m", (ds_local_response_norm_opts){3, 0.5, 0.25, 2.5}))

static const Layer layers[] = {
    {conv1d,
     {3, {2, 4, 9}},
     "weight ",
     "Conv1d(4, 8, kernel_size=(3,), stride=(2,), padding=(1,), dilation=(2,), groups=2, "
     "bias=False)"},
    {conv1d_same,
     {2, {2, 5}},
     "weight bias ",
     "Conv1d(2, 2, kernel_size=(3,), stride=(1,), padding=same)"},
    {transpose,
     {4, {2, 4, 3, 3}},
     "weight ",
     "ConvTranspose2d(4, 6, kernel_size=(2, 3), stride=(2, 2), padding=(1, 0), dilation=(2, 2), "
     "output_padding=(1, 1), groups=2, bias=False)"},
    {transpose1d,
     {3, {2, 4, 5}},
     "weight bias ",
     "ConvTranspose1d(4, 6, kernel_size=(3,), stride=(2,), padding=(1,), output_padding=(1,), "
     "groups=2)"},
    {transpose3d,
     {5, {1, 4, 2, 3, 3}},
     "weight ",
     "ConvTranspose3d(4, 6, kernel_size=(2, 1, 3), stride=(2, 2, 2), padding=(0, 0, 1), "
     "output_padding=(1, 0, 0), groups=2, bias=False)"},
    {batch,
     {3, {2, 6, 3}},
     "weight bias running_mean running_var num_batches_tracked ",
     "BatchNorm1d(6, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)"},
    {sync,
     {4, {2, 6, 3, 2}},
     "weight bias running_mean running_var num_batches_tracked ",
     "SyncBatchNorm(6, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)"},
    {batch_no_bias,
     {2, {3, 6}},
     "weight running_mean running_var num_batches_tracked ",
     "BatchNorm1d(6, eps=1e-05, momentum=0.1, affine=True, bias=False, track_running_stats=True)"},
    {instance1d,
     {2, {3, 5}},
     "",
     "InstanceNorm1d(3, eps=1e-05, momentum=0.1, affine=False, bias=False, "
     "track_running_stats=False)"},
    {instance2d,
     {4, {2, 3, 2, 3}},
     "weight bias running_mean running_var num_batches_tracked ",
     "InstanceNorm2d(3, eps=0.001, momentum=0.1, affine=True, bias=True, "
     "track_running_stats=True)"},
    {batch3d,
     {5, {3, 2, 2, 1, 2}},
     "weight bias running_mean running_var num_batches_tracked ",
     "BatchNorm3d(2, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)"},
    {instance3d,
     {4, {3, 2, 3, 2}},
     "",
     "InstanceNorm3d(3, eps=1e-05, momentum=0.1, affine=False, bias=False, "
     "track_running_stats=False)"},
    {group, {3, {2, 4, 3}}, "weight bias ", "GroupNorm(2, 4, eps=1e-05, affine=True, bias=True)"},
    {group_plain, {2, {3, 4}}, "", "GroupNorm(2, 4, eps=0.001, affine=False, bias=False)"},
    {rms, {2, {3, 8}}, "weight ", "RMSNorm((8,), eps=None, elementwise_affine=True)"},
    {rms_plain, {3, {4, 2, 3}}, "", "RMSNorm((2, 3), eps=1e-06, elementwise_affine=False)"},
    {dropout2d, {4, {2, 3, 4, 4}}, "", "Dropout2d(p=0.3, inplace=False)"},
    {identity, {1, {3}}, "", "Identity()"},
    {silu, {2, {3, 4}}, "", "SiLU()"},
    {leaky_relu, {2, {3, 4}}, "", "LeakyReLU(negative_slope=0.01)"},
    {leaky_relu_2, {2, {3, 4}}, "", "LeakyReLU(negative_slope=0.2)"},
    {elu, {2, {3, 4}}, "", "ELU(alpha=1.0)"},
    {celu, {2, {3, 4}}, "", "CELU(alpha=0.5)"},
    {softplus, {2, {3, 4}}, "", "Softplus(beta=1.0, threshold=20.0)"},
    {hardsigmoid, {2, {3, 4}}, "", "Hardsigmoid()"},
    {hardswish, {2, {3, 4}}, "", "Hardswish()"},
    {logsigmoid, {2, {3, 4}}, "", "LogSigmoid()"},
    {mish, {2, {3, 4}}, "", "Mish()"},
    {selu, {2, {3, 4}}, "", "SELU()"},
    {softsign, {2, {3, 4}}, "", "Softsign()"},
    {tanhshrink, {2, {3, 4}}, "", "Tanhshrink()"},
    {hardshrink, {2, {3, 4}}, "", "Hardshrink(0.5)"},
    {softshrink, {2, {3, 4}}, "", "Softshrink(0.25)"},
    {hardtanh, {2, {3, 4}}, "", "Hardtanh(min_val=-1.0, max_val=1.0)"},
    {relu6, {2, {3, 4}}, "", "ReLU6()"},
    {threshold, {2, {3, 4}}, "", "Threshold(threshold=0.1, value=20)"},
    {softmin, {2, {3, 4}}, "", "Softmin(dim=1)"},
    {glu, {2, {3, 4}}, "", "GLU(dim=-1)"},
    {dropout1d, {3, {2, 3, 4}}, "", "Dropout1d(p=0.3, inplace=False)"},
    {dropout3d, {5, {2, 3, 1, 2, 2}}, "", "Dropout3d(p=0.3, inplace=False)"},
    {alpha_dropout, {2, {3, 4}}, "", "AlphaDropout(p=0.2, inplace=False)"},
    {feature_dropout, {3, {2, 3, 4}}, "", "FeatureAlphaDropout(p=0.2, inplace=False)"},
    {max_pool1d,
     {3, {2, 3, 7}},
     "",
     "MaxPool1d(kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=False)"},
    {avg_pool1d, {2, {2, 7}}, "", "AvgPool1d(kernel_size=(3,), stride=(3,), padding=(0,))"},
    {max_pool3d,
     {5, {1, 2, 3, 4, 4}},
     "",
     "MaxPool3d(kernel_size=(1, 2, 2), stride=2, padding=0, dilation=1, ceil_mode=False)"},
    {avg_pool3d, {4, {2, 3, 4, 4}}, "", "AvgPool3d(kernel_size=2, stride=2, padding=1)"},
    {adaptive_avg1d, {3, {2, 3, 7}}, "", "AdaptiveAvgPool1d(output_size=3)"},
    {adaptive_max1d, {3, {2, 3, 7}}, "", "AdaptiveMaxPool1d(output_size=3)"},
    {adaptive_avg3d, {5, {1, 2, 3, 4, 4}}, "", "AdaptiveAvgPool3d(output_size=(1, 2, 3))"},
    {adaptive_max3d, {5, {1, 2, 3, 4, 4}}, "", "AdaptiveMaxPool3d(output_size=(1, 2, 3))"},
    {pixel_shuffle, {4, {1, 8, 2, 3}}, "", "PixelShuffle(upscale_factor=2)"},
    {pixel_unshuffle, {4, {1, 2, 2, 4}}, "", "PixelUnshuffle(downscale_factor=2)"},
    {channel_shuffle, {4, {1, 4, 2, 3}}, "", "ChannelShuffle(groups=2)"},
    {unfold, {4, {1, 2, 3, 4}}, "", "Unfold(kernel_size=(2, 3), dilation=1, padding=1, stride=1)"},
    {fold,
     {3, {1, 8, 12}},
     "",
     "Fold(output_size=(4, 5), kernel_size=2, dilation=1, padding=0, stride=1)"},
    {unflatten, {2, {3, 6}}, "", "Unflatten(dim=1, unflattened_size=(2, 3))"},
    {upsample, {4, {1, 2, 3, 3}}, "", "Upsample(scale_factor=2.0, mode='nearest')"},
    {upsample_to, {4, {1, 2, 3, 3}}, "", "Upsample(size=(5, 7), mode='bilinear')"},
    {zero_pad, {4, {1, 2, 3, 3}}, "", "ZeroPad2d((1, 1, 1, 1))"},
    {constant_pad, {3, {1, 2, 3}}, "", "ConstantPad1d(padding=(1, 2), value=0.5)"},
    {reflect, {4, {1, 2, 3, 3}}, "", "ReflectionPad2d((1, 1, 0, 2))"},
    {circular, {5, {1, 1, 2, 3, 3}}, "", "CircularPad3d((1, 1, 1, 1, 1, 1))"},
    {response, {3, {2, 4, 3}}, "", "LocalResponseNorm(3, alpha=0.5, beta=0.25, k=2.5)"},
    {softmax, {2, {3, 4}}, "", "Softmax(dim=-1)"},
    {log_softmax, {2, {3, 4}}, "", "LogSoftmax(dim=1)"},
    {conv3d,
     {5, {1, 4, 4, 3, 5}},
     "weight bias ",
     "Conv3d(4, 6, kernel_size=(2, 1, 3), stride=(2, 2, 2), padding=(0, 0, 1), groups=2)"},
    {prelu, {3, {2, 3, 4}}, "weight ", "PReLU(num_parameters=3)"},
    {adaptive_max, {4, {1, 2, 5, 4}}, "", "AdaptiveMaxPool2d(output_size=(2, 3))"},
    {adaptive, {4, {1, 2, 5, 4}}, "", "AdaptiveAvgPool2d(output_size=(2, 3))"},
    {lstm,
     {3, {2, 4, 5}},
     "weight_ih_l0 weight_hh_l0 weight_hr_l0 weight_ih_l0_reverse weight_hh_l0_reverse "
     "weight_hr_l0_reverse weight_ih_l1 weight_hh_l1 weight_hr_l1 weight_ih_l1_reverse "
     "weight_hh_l1_reverse weight_hr_l1_reverse ",
     "LSTM(5, 4, proj_size=3, num_layers=2, bias=False, batch_first=True, dropout=0.1, "
     "bidirectional=True)"},
    {gru,
     {2, {4, 3}},
     "weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 weight_ih_l0_reverse weight_hh_l0_reverse "
     "bias_ih_l0_reverse bias_hh_l0_reverse ",
     "GRU(3, 2, bidirectional=True)"},
    {rnn, {3, {4, 2, 3}}, "weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 ", "RNN(3, 2)"},
    {lstm_cell, {2, {4, 5}}, "weight_ih weight_hh bias_ih bias_hh ", "LSTMCell(5, 4)"},
    {gru_cell, {2, {4, 5}}, "weight_ih weight_hh ", "GRUCell(5, 4, bias=False)"},
    {rnn_cell,
     {1, {5}},
     "weight_ih weight_hh bias_ih bias_hh ",
     "RNNCell(5, 4, nonlinearity=relu)"},
    {encoder_stack,
     {3, {4, 2, 8}},
     "layers.0.self_attn.in_proj_weight layers.0.self_attn.out_proj.weight "
     "layers.0.linear1.weight layers.0.linear2.weight layers.0.norm1.weight "
     "layers.0.norm2.weight norm.weight ",
     NULL},
    {attention,
     {3, {2, 4, 8}},
     "in_proj_weight in_proj_bias bias_k bias_v out_proj.weight out_proj.bias ",
     NULL},
    {encoder,
     {3, {4, 2, 8}},
     "self_attn.in_proj_weight self_attn.out_proj.weight linear1.weight linear2.weight "
     "norm1.weight norm2.weight ",
     NULL},
};

#define LAYERS ((int)(sizeof layers / sizeof *layers))

static void names_and_texts(void **state)
{
    (void)state;
    for (int i = 0; i < LAYERS; i++) {
        ds_module *m = layers[i].make();
        ds_state *d = ds_module_state(m);
        char names[512] = "", text[512] = "";
        for (int k = 0; k < ds_state_len(d); k++)
            sprintf(names + strlen(names), "%s ", ds_state_name(d, k));
        assert_string_equal(names, layers[i].names);
        FILE *to = fmemopen(text, sizeof text, "w");
        ds_module_print(m, to);
        fclose(to);
        if (layers[i].text) {
            text[strcspn(text, "\n")] = 0;
            assert_string_equal(text, layers[i].text);
        }
        ds_state_free(d);
        ds_module_free(m);
    }
    CHECK(!ds_error());
}

/* The sum of squares of m's result for x, and all gradients; NULL fails. */
static ds_tensor *step(ds_module *m, ds_tensor *x)
{
    ds_tensor *y = ds_call(m, x), *loss = y ? ds_sum(ds_mul(y, y)) : NULL;
    return loss && (!ds_requires_grad(loss) || ds_backward(loss) == DS_OK) ? y : NULL;
}

/* Forward and backward in all float dtypes, near the values of float64. */
static void every_dtype(void **state)
{
    (void)state;
    static const double near[] = {[DS_F32] = 1e-5, [DS_F64] = 0, [DS_F16] = 0.02, [DS_BF16] = 0.15};
    for (int i = 0; i < LAYERS; i++) {
        ds_tensor *x = ds_randn(DS_F64, layers[i].x), *want = NULL;
        for (ds_dtype dtype = DS_F32; dtype <= DS_BF16; dtype++) {
            ds_dtype first_f64 = dtype == DS_F32 ? DS_F64 : dtype == DS_F64 ? DS_F32 : dtype;
            ds_seed(5);
            ds_module *m = layers[i].make();
            CHECK_INT(ds_module_to(m, first_f64), DS_OK);
            ds_tensor *y = step(m, ds_cast(x, first_f64));
            CHECK(y != NULL);
            CHECK_INT(ds_dtype_of(y), first_f64);
            for (int p = 0; p < ds_module_params(m); p++)
                CHECK_INT(ds_dtype_of(ds_grad(ds_module_param_at(m, p, NULL))), first_f64);
            ds_tensor *got = ds_cast(ds_detach(y), DS_F64);
            if (!want) want = got;
            const double *g = ds_data(got), *w = ds_data(want);
            for (int64_t k = 0; k < ds_numel(want); k++)
                CHECK_CLOSE(g[k], w[k], near[first_f64] * (1 + fabs(w[k])));
            ds_module_free(m);
        }
    }
}

/* ---- options of calls -------------------------------------------------------------------------------- */

static double distance(ds_tensor *a, ds_tensor *b)
{
    CHECK(a && b && ds_numel(a) == ds_numel(b));
    return ds_item(ds_sum(ds_abs(ds_sub(ds_contiguous(a), ds_reshape(b, ds_shape_of(a))))));
}

/* A sequence in two parts gives what it gives whole, and the same state. */
static void state_continues(void **state)
{
    (void)state;
    ds_module *const made[] = {ds_nn_lstm(NULL, "m", 5, 4, .num_layers = 2),
                               ds_nn_gru(NULL, "m", 5, 4), ds_nn_rnn(NULL, "m", 5, 4)};
    ds_tensor *x = ds_randn(DS_F32, ds_shape(6, 2, 5));
    for (int i = 0; i < 3; i++) {
        ds_rnn_state whole = {0}, part = {0};
        ds_tensor *y = ds_call_rnn(made[i], x, &whole);
        ds_tensor *y1 = ds_call_rnn(made[i], ds_slice(x, 0, 0, 2), &part);
        CHECK(part.h && !part.c == (i > 0));
        ds_tensor *y2 = ds_call_rnn(made[i], ds_slice(x, 0, 2, 6), &part);
        CHECK_CLOSE(distance(y, ds_cat((ds_tensor *[]){y1, y2}, 2, 0)), 0, 1e-5);
        CHECK_CLOSE(distance(whole.h, part.h), 0, 1e-5);
        CHECK_CLOSE(distance(ds_call(made[i], x), y), 0, 0);
        ds_rnn_state one = {0}; /* of one sample, without a batch */
        y1 = ds_call_rnn(made[i], ds_select(x, 1, 1), &one);
        CHECK_CLOSE(distance(y1, ds_select(y, 1, 1)), 0, 1e-5);
        CHECK_CLOSE(distance(one.h, ds_select(whole.h, 1, 1)), 0, 1e-5);
        CHECK(!ds_error() && !one.c == (i > 0));
        ds_rnn_state wrong = {.h = ds_zeros(DS_F32, ds_shape(9, 2, 4))};
        CHECK(!ds_call_rnn(made[i], x, &wrong));
        CHECK_ERROR("m: h_0 is [9, 2, 4]: expected [");
        CHECK(wrong.h && !wrong.c);
        ds_module_free(made[i]);
    }
}

/* .causal is the mask that it stands for, alone, beside weights and beside
 * another mask; weights of a query add up to 1. */
static void causal_is_a_mask(void **state)
{
    (void)state;
    ds_module *m = ds_nn_multihead_attention(NULL, "m", 8, 2, .batch_first = true);
    ds_tensor *x = ds_randn(DS_F32, ds_shape(2, 4, 8)), *weights = NULL;
    static const uint8_t later[16] = {0, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0};
    ds_tensor *mask = ds_from_data(DS_BOOL, ds_shape(4, 4), later);
    ds_tensor *none = ds_zeros(DS_BOOL, ds_shape(2, 4));
    ds_tensor *want = ds_call_attention(m, x, NULL, NULL, .attn_mask = mask);
    ds_tensor *alone = ds_call_attention(m, x, x, x, .causal = true);
    ds_tensor *more = ds_call_attention(m, x, NULL, NULL, .causal = true, .weights = &weights,
                                        .weights_per_head = true);
    CHECK_CLOSE(distance(alone, want), 0, 1e-5);
    CHECK_CLOSE(distance(more, want), 0, 1e-5);
    CHECK_CLOSE(
        distance(ds_call_attention(m, x, x, NULL, .causal = true, .key_padding_mask = none), want),
        0, 1e-5);
    CHECK(ds_ndim(weights) == 4 && ds_size(weights, 1) == 2);
    ds_tensor *sums = ds_sum_with(weights, (ds_reduce_opts){.dims = ds_shape(-1)});
    CHECK_CLOSE(distance(sums, ds_ones(DS_F32, ds_shape_of(sums))), 0, 1e-5);
    ds_module_free(m);

    m = ds_nn_transformer_encoder_layer(NULL, "m", 8, 2, .batch_first = true, .dropout = DS_ZERO);
    CHECK_CLOSE(distance(ds_call_encoder_layer(m, x, .causal = true),
                         ds_call_encoder_layer(m, x, .mask = mask)),
                0, 1e-4);
    CHECK(distance(ds_call(m, x), ds_call_encoder_layer(m, x, .mask = mask)) > 1e-3);
    ds_module_free(m);
}

/* Whole planes are 0, the others 1 / (1 - p) as large; none in evaluation. */
static void dropout_of_planes(void **state)
{
    (void)state;
    ds_tensor *x = ds_ones(DS_F32, ds_shape(20, 30, 2, 2));
    const float *y = ds_data(ds_dropout2d(x, 0.25, true));
    int dropped = 0;
    for (int i = 0; i < 600; i++) {
        for (int k = 0; k < 4; k++) CHECK_CLOSE(y[4 * i + k], y[4 * i] != 0 ? 4.0 / 3 : 0, 1e-6);
        dropped += y[4 * i] == 0;
    }
    CHECK(dropped > 100 && dropped < 200);
    CHECK(ds_dropout2d(x, 0.25, false) == x);
}

/* ---- refusals ---------------------------------------------------------------------------------------- */

#define REFUSED(make, message) \
    do { \
        ds_module *refused = make; \
        CHECK_ERROR(message); \
        ds_module_free(refused); \
    } while (0)

static void refusals(void **state)
{
    (void)state;
    REFUSED(ds_nn_conv1d(NULL, "m", 3, 4, 3, .groups = 2), "Conv1d m: in = 3, out = 4");
    REFUSED(ds_nn_conv_transpose2d(NULL, "m", 3, 4, 0), "ConvTranspose2d m: in = 3, out = 4");
    REFUSED(ds_nn_conv_transpose1d(NULL, "m", 3, 4, 0), "ConvTranspose1d m: in = 3, out = 4");
    REFUSED(ds_nn_conv_transpose3d(NULL, "m", 3, 4, ds_shape(2, 0, 2)),
            "ConvTranspose3d m: in = 3, out = 4");
    REFUSED(ds_nn_conv3d(NULL, "m", 3, 4, ds_shape(2, 0, 2)), "Conv3d m: in = 3, out = 4");
    REFUSED(ds_nn_bilinear(NULL, "m", 3, 0, 2, false), "Bilinear m: in1 = 3, in2 = 0");
    REFUSED(ds_nn_prelu(NULL, "m", 0, 0), "PReLU m: n = 0");
    REFUSED(ds_nn_embedding_bag(NULL, "m", 3, 2, DS_BAG_SUM, 3), "EmbeddingBag m: count = 3");
    REFUSED(ds_nn_group_norm(NULL, "m", 3, 4), "GroupNorm m: groups = 3, channels = 4");
    REFUSED(ds_nn_multihead_attention(NULL, "m", 8, 3), "MultiheadAttention m: embed_dim = 8");
    REFUSED(ds_nn_lstm(NULL, "m", 3, 4, .proj_size = 4), "LSTM m: input_size = 3");
    REFUSED(ds_nn_rnn(NULL, "m", 3, INT64_MAX / 4), "expected sizes of 1 to 2^31 - 1");
    REFUSED(ds_nn_gru(NULL, "m", 3, 4, .proj_size = 2), "GRU m: input_size = 3");
    REFUSED(ds_nn_lstm(NULL, "m", 3, 4, .relu = true), "relu for an RNN");
    REFUSED(ds_nn_dropout2d(NULL, "m", 2), "Dropout2d m: p = 2");
    REFUSED(ds_nn_gru_cell(NULL, "m", 3, 4, .bidirectional = true), "of a cell one layer");
    REFUSED(ds_nn_transformer_decoder(NULL, "m", 8, 0), "TransformerDecoder m: num_layers = 0");
    REFUSED(ds_nn_embedding_bag(NULL, "m", 3, 2, (ds_bag_mode)3, -1), "there is no mode 3");
}

static void refused_calls(void **state)
{
    (void)state;
    ds_tensor *x = ds_zeros(DS_F32, ds_shape(2, 3, 4));
    ds_module *m = ds_nn_gru(NULL, "m", 3, 4);
    CHECK(!ds_call(m, x));
    CHECK_ERROR("m: GRU: x is [2, 3, 4]: expected [time, batch, 3] or [time, 3]");
    CHECK(!ds_call_attention(m, x, x, x, .causal = true));
    CHECK_ERROR("call_attention: m is a GRU: expected a MultiheadAttention");
    CHECK(!ds_call_encoder_layer(m, x, .causal = true));
    CHECK_ERROR("call_encoder_layer: m is a GRU");
    CHECK(!ds_call_decoder_layer(m, x, x, .causal = true));
    CHECK_ERROR("call_decoder_layer: m is a GRU");
    ds_tensor *steps = ds_zeros(DS_F32, ds_shape(4, 2, 3));
    CHECK(!ds_call_rnn_padded(m, steps, ds_zeros(DS_I64, ds_shape(2)), NULL));
    CHECK_ERROR("GRU: lengths[0] is 0: expected 1 to 4");
    CHECK(!ds_call_rnn_padded(m, steps, ds_zeros(DS_I64, ds_shape(3)), NULL));
    CHECK_ERROR("GRU: lengths are int64 [3]: expected int64 [2]");
    CHECK(!ds_call_rnn_padded(m, x, ds_zeros(DS_F32, ds_shape(3)), NULL));
    CHECK_ERROR("GRU: lengths are float32 [3]");
    ds_module_free(m);
    for (int one = 0; one < 2; one++) { /* of refused options, and called nevertheless */
        m = one ? ds_nn_gru_cell(NULL, "m", 3, 4, .dropout = 2)
                : ds_nn_lstm(NULL, "m", 3, (int64_t)1 << 61);
        ds_error_clear();
        CHECK(!ds_call(m, ds_ones(DS_F32, one ? ds_shape(2, 3) : ds_shape(2, 2, 3))));
        CHECK_ERROR("its options were refused, and it has no cells");
        ds_module_free(m);
    }
    m = ds_nn_lstm_cell(NULL, "m", 3, 4);
    CHECK(!ds_call(m, x));
    CHECK_ERROR("m: LSTMCell: x is [2, 3, 4]: expected [batch, 3] or [3]");
    CHECK(!ds_call_rnn(m, ds_zeros(DS_F32, ds_shape(2, 3)), &(ds_rnn_state){.h = x}));
    CHECK_ERROR("h is [2, 3, 4]: expected [2, 4]");
    CHECK(!ds_call_rnn_padded(m, steps, steps, NULL));
    CHECK_ERROR("call_rnn_padded: m is a LSTMCell");
    ds_module_free(m);
    m = ds_nn_transformer_decoder_layer(NULL, "m", 8, 2);
    CHECK(!ds_call(m, x));
    CHECK_ERROR("m: TransformerDecoderLayer: 1 tensors: expected tgt and memory");
    ds_module_free(m);
    m = ds_nn_multihead_attention(NULL, "m", 8, 2);
    CHECK(!ds_call(m, x));
    CHECK_ERROR("m: multihead_attention: query is [2, 3, 4]: expected [time, batch, 8]");
    CHECK(!ds_call_rnn(m, x, NULL));
    CHECK_ERROR("call_rnn: m is a MultiheadAttention");
    ds_module_free(m);
    m = ds_nn_batch_norm1d(NULL, "m", 3);
    CHECK(!ds_call(m, ds_zeros(DS_F32, ds_shape(2, 3, 4, 5))));
    CHECK_ERROR("m: BatchNorm1d: x has 4 dimensions: expected 2 or 3");
    ds_module_free(m);
    CHECK(!ds_dropout2d(ds_zeros(DS_F32, ds_shape(2, 3)), 0.5, true));
    CHECK_ERROR("dropout2d: x is [2, 3]");
}

static void attention_masks(void **state)
{
    (void)state;
    ds_tensor *x = ds_zeros(DS_F32, ds_shape(2, 3, 4));
    ds_module *attn = ds_nn_multihead_attention(NULL, "m", 4, 2);
    ds_tensor *turned = ds_zeros(DS_F32, ds_shape(2, 2, 6)); /* as many elements as [6,2,2] */
    CHECK(!ds_call_attention(attn, x, NULL, NULL, .attn_mask = turned));
    CHECK_ERROR("attn_mask is [2, 2, 6]: expected [2, 2] or [6, 2, 2]");
    turned = ds_zeros(DS_BOOL, ds_shape(2, 3));
    CHECK(!ds_call_attention(attn, x, NULL, NULL, .key_padding_mask = turned));
    CHECK_ERROR("key_padding_mask is [2, 3]: expected [3, 2]");
    ds_tensor *none = ds_zeros(DS_F32, ds_shape(2, 0, 4)); /* a batch of none */
    CHECK(ds_numel(ds_call_attention(attn, none, NULL, NULL, .causal = true)) == 0);
    CHECK(!ds_error());
    ds_module_free(attn);
}

/* The n-th allocation fails, for every n: no tensor stays, and the module can
 * be called again. */
static void failing_allocations(void **state)
{
    (void)state;
    for (int i = 0; i < LAYERS; i++) {
        ds_module *m = layers[i].make();
        ds_tensor *x = ds_randn(DS_F32, layers[i].x);
        CHECK(step(m, x) != NULL);
        int64_t tensors = ds_live_tensors();
        bool reached = true;
        for (int64_t n = 1; reached; n += quick() ? 7 : 1) {
            ds_scope *scope = ds_scope_open();
            dsi_cache_fail(n, false);
            ds_tensor *y = step(m, x);
            reached = dsi_cache_fail(0, false) >= n;
            if (reached && (y || ds_error_status() != DS_ENOMEM))
                fail_msg("layer %d, allocation %lld: %s", i, (long long)n,
                         ds_error() ? ds_error() : "no message");
            ds_error_clear();
            ds_scope_close(scope);
            CHECK_INT(ds_live_tensors(), tensors);
        }
        ds_module_free(m);
    }
}

#define IN_SCOPE(test) cmocka_unit_test_setup_teardown(test, open_scope, close_scope)
TEST_MAIN(IN_SCOPE(names_and_texts), IN_SCOPE(every_dtype), IN_SCOPE(state_continues),
          IN_SCOPE(causal_is_a_mask), IN_SCOPE(dropout_of_planes), IN_SCOPE(refusals),
          IN_SCOPE(refused_calls), IN_SCOPE(attention_masks), IN_SCOPE(failing_allocations))
