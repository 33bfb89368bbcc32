/* bench/ops_network.h: rows for bench/ops.c besides those of tests/ops/cases.h:
 * results without a gradient, the shapes of CIFAR networks and of a small transformer, chains of ops as in
 * those networks, and steps of optimizers.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "ops/cases.h"

/* ---- calls ------------------------------------------------------------------------------------------- */

CALL(conv_by_2, ds_conv2d(in[0], in[1], NULL, .stride = 2, .padding = 1))
CALL(conv_1x1_by_2, ds_conv2d(in[0], in[1], NULL, .stride = 2))
CALL(conv_7x7_by_2, ds_conv2d(in[0], in[1], NULL, .stride = 2, .padding = 3))
CALL(conv_3x3, ds_conv2d(in[0], in[1], NULL, .padding = 1))
CALL(conv_dilated, ds_conv2d(in[0], in[1], NULL, .padding = 2, .dilation = 2))
CALL(conv_depthwise, ds_conv2d(in[0], in[1], NULL, .padding = 1, .groups = (int)ds_size(in[1], 0)))
CALL(conv_4_groups, ds_conv2d(in[0], in[1], NULL, .padding = 1, .groups = 4))
CALL(max_pool_3_by_2, ds_max_pool2d(in[0], 3, .stride = 2, .padding = 1))
CALL(avg_pool_global, ds_adaptive_avg_pool2d(in[0], 1, 1))
CALL(mean_plane, ds_mean_with(in[0], (ds_reduce_opts){.dims = ds_shape(2, 3)}))
CALL(sum_first, ds_sum_with(in[0], (ds_reduce_opts){.dims = ds_shape(0)}))
CALL(sum_last, ds_sum_with(in[0], (ds_reduce_opts){.dims = ds_shape(-1)}))
CALL(max_last, ds_max(in[0], -1, false))
CALL(to_pixels, ds_contiguous(ds_permute(in[0], ds_shape(0, 2, 3, 1))))
CALL(to_heads, ds_contiguous(ds_transpose(in[0], 1, 2)))
CALL(cat_channels, ds_cat(in, 2, 1))
CALL(stack_first, ds_stack(in, 2, 0))
CALL(slice_copy, ds_contiguous(ds_slice(in[0], 1, 64, 192)))
CALL(linear_relu, ds_relu(ds_linear(in[0], in[1], in[2])))
CALL(linear_gelu, ds_gelu(ds_linear(in[0], in[1], in[2])))
CALL(ge, ds_ge(in[0], in[1]))
CALL(eq, ds_eq(in[0], in[1]))
CALL(logical_and, ds_logical_and(in[0], in[1]))
CALL(logical_not, ds_logical_not(in[0]))
CALL(add_int64, ds_add(in[0], in[1]))
CALL(mul_int64, ds_mul(in[0], in[1]))
CALL(floor_divide_int64, ds_floor_divide(in[0], ds_add(in[1], ds_scalar(DS_I64, 1))))
CALL(sum_int64, ds_sum(in[0]))
CALL(max_int64, ds_amax(in[0]))
CALL(argmax_last, ds_argmax(in[0], -1))
CALL(multinomial, ds_multinomial(in[0], 4, false))
CALL(attention_causal_plain,
     ds_attention_with(in[0], in[1], in[2], (ds_attention_opts){.causal = true}))

static ds_tensor *normed(ds_tensor *x, ds_tensor *w, ds_tensor *b)
{
    return ds_batch_norm_with(x, (ds_batch_norm_opts){.weight = w, .bias = b, .training = true});
}

/* x [N,C,H,W], w [C,C,3,3], its norm's weight and bias [C]: twice, as ResNet's
 * block has two of them */
static ds_tensor *call_block(ds_tensor **in)
{
    ds_tensor *y = ds_relu(normed(ds_conv2d(in[0], in[1], NULL, .padding = 1), in[2], in[3]));
    y = normed(ds_conv2d(y, in[1], NULL, .padding = 1), in[2], in[3]);
    return ds_relu(ds_add(y, in[0]));
}

/* ---- the list ---------------------------------------------------------------------------------------- */

/* clang-format off */
#define IMAGES(N, C, H)       X(4, N, C, H, H)
#define CONV(N, C, H, K, R)   {IMAGES(N, C, H), X(4, K, C, R, R)}, .flops = flops_conv2d
#define NORMED(N, C, H)       {IMAGES(N, C, H), RANGE(0.5, 2, 1, C), X(1, C)}
#define HEADS(T)              {X(4, 4, 8, T, 64), X(4, 4, 8, T, 64), X(4, 4, 8, T, 64)}, .flops = flops_attention
#define PYTHON_BLOCK(x) \
    "(lambda f: F.relu(f(F.relu(f(x[0]))) + x[0]))" \
    "(lambda y: F.batch_norm(F.conv2d(y, x[1], padding=1), None, None, x[2], x[3], True))"

static const Case network_cases[] = {
    {"conv2d", "3x3 3-64, 32 of 32x32", call_conv_3x3, .bench = CONV(32, 3, 32, 64, 3), .torch = "F.conv2d(*x, padding=1)"},
    {"conv2d", "3x3 16-16, 4 of 32x32", call_conv_3x3, .bench = CONV(4, 16, 32, 16, 3), .torch = "F.conv2d(*x, padding=1)", .channels_last = true},
    {"conv2d", "3x3 16-16, 32 of 32x32", call_conv_3x3, .bench = CONV(32, 16, 32, 16, 3), .torch = "F.conv2d(*x, padding=1)", .channels_last = true},
    {"conv2d", "3x3 16-16, 128 of 32x32", call_conv_3x3, .bench = CONV(128, 16, 32, 16, 3), .torch = "F.conv2d(*x, padding=1)", .channels_last = true},
    {"conv2d", "3x3 32-32, 32 of 16x16", call_conv_3x3, .bench = CONV(32, 32, 16, 32, 3), .torch = "F.conv2d(*x, padding=1)", .channels_last = true},
    {"conv2d", "3x3 64-64, 32 of 8x8", call_conv_3x3, .bench = CONV(32, 64, 8, 64, 3), .torch = "F.conv2d(*x, padding=1)", .channels_last = true},
    {"conv2d", "3x3 64-64, 4 of 32x32", call_conv_3x3, .bench = CONV(4, 64, 32, 64, 3), .torch = "F.conv2d(*x, padding=1)", .channels_last = true},
    {"conv2d", "3x3 64-64, 32 of 16x16", call_conv_3x3, .bench = CONV(32, 64, 16, 64, 3), .torch = "F.conv2d(*x, padding=1)", .channels_last = true},
    {"conv2d", "3x3 128-128, 4 of 16x16", call_conv_3x3, .bench = CONV(4, 128, 16, 128, 3), .torch = "F.conv2d(*x, padding=1)", .channels_last = true},
    {"conv2d", "3x3 128-128, 32 of 8x8", call_conv_3x3, .bench = CONV(32, 128, 8, 128, 3), .torch = "F.conv2d(*x, padding=1)", .channels_last = true},
    {"conv2d", "3x3 256-256, 4 of 8x8", call_conv_3x3, .bench = CONV(4, 256, 8, 256, 3), .torch = "F.conv2d(*x, padding=1)", .channels_last = true},
    {"conv2d", "3x3 256-256, 32 of 4x4", call_conv_3x3, .bench = CONV(32, 256, 4, 256, 3), .torch = "F.conv2d(*x, padding=1)", .channels_last = true},
    {"conv2d", "3x3 by 2 16-32, 32 of 32x32", call_conv_by_2, .bench = CONV(32, 16, 32, 32, 3), .torch = "F.conv2d(*x, stride=2, padding=1)", .channels_last = true},
    {"conv2d", "3x3 by 2 64-128, 4 of 32x32", call_conv_by_2, .bench = CONV(4, 64, 32, 128, 3), .torch = "F.conv2d(*x, stride=2, padding=1)", .channels_last = true},
    {"conv2d", "3x3 by 2 128-256, 4 of 16x16", call_conv_by_2, .bench = CONV(4, 128, 16, 256, 3), .torch = "F.conv2d(*x, stride=2, padding=1)", .channels_last = true},
    {"conv2d", "1x1 by 2 64-128, 4 of 32x32", call_conv_1x1_by_2, .bench = CONV(4, 64, 32, 128, 1), .torch = "F.conv2d(*x, stride=2)", .channels_last = true},
    {"conv2d", "1x1 256-64, 4 of 16x16", call_conv2d_plain, .bench = CONV(4, 256, 16, 64, 1), .torch = "F.conv2d(*x)", .channels_last = true},
    {"conv2d", "1x1 64-256, 4 of 16x16", call_conv2d_plain, .bench = CONV(4, 64, 16, 256, 1), .torch = "F.conv2d(*x)", .channels_last = true},
    {"conv2d", "7x7 by 2 3-64, 4 of 64x64", call_conv_7x7_by_2, .bench = CONV(4, 3, 64, 64, 7), .torch = "F.conv2d(*x, stride=2, padding=3)"},
    {"conv2d", "dilated 64-64, 4 of 16x16", call_conv_dilated, .bench = CONV(4, 64, 16, 64, 3), .torch = "F.conv2d(*x, padding=2, dilation=2)", .channels_last = true},
    {"conv2d", "depthwise 64, 4 of 32x32", call_conv_depthwise, .bench = {IMAGES(4, 64, 32), X(4, 64, 1, 3, 3)}, .flops = flops_conv2d, .torch = "F.conv2d(*x, padding=1, groups=64)", .channels_last = true},
    {"conv2d", "depthwise 128, 32 of 16x16", call_conv_depthwise, .bench = {IMAGES(32, 128, 16), X(4, 128, 1, 3, 3)}, .flops = flops_conv2d, .torch = "F.conv2d(*x, padding=1, groups=128)", .channels_last = true},
    {"conv2d", "4 groups 64-64, 32 of 16x16", call_conv_4_groups, .bench = {IMAGES(32, 64, 16), X(4, 64, 16, 3, 3)}, .flops = flops_conv2d, .torch = "F.conv2d(*x, padding=1, groups=4)", .channels_last = true},
    {"block", "16, 32 of 32x32", call_block, .bench = {IMAGES(32, 16, 32), X(4, 16, 16, 3, 3), RANGE(0.5, 2, 1, 16), X(1, 16)}, .torch = PYTHON_BLOCK(x), .channels_last = true},
    {"block", "64, 4 of 16x16", call_block, .bench = {IMAGES(4, 64, 16), X(4, 64, 64, 3, 3), RANGE(0.5, 2, 1, 64), X(1, 64)}, .torch = PYTHON_BLOCK(x), .channels_last = true},
    {"block", "128, 32 of 8x8", call_block, .bench = {IMAGES(32, 128, 8), X(4, 128, 128, 3, 3), RANGE(0.5, 2, 1, 128), X(1, 128)}, .torch = PYTHON_BLOCK(x), .channels_last = true},

    {"batch_norm", "16, 32 of 32x32", call_batch_norm, .bench = NORMED(32, 16, 32), .torch = "F.batch_norm(x[0], None, None, x[1], x[2], True)", .channels_last = true},
    {"batch_norm", "64, 4 of 32x32", call_batch_norm, .bench = NORMED(4, 64, 32), .torch = "F.batch_norm(x[0], None, None, x[1], x[2], True)", .channels_last = true},
    {"batch_norm", "64, 128 of 8x8", call_batch_norm, .bench = NORMED(128, 64, 8), .torch = "F.batch_norm(x[0], None, None, x[1], x[2], True)", .channels_last = true},
    {"batch_norm", "6, 32 of 28x28", call_batch_norm, .bench = NORMED(32, 6, 28), .torch = "F.batch_norm(x[0], None, None, x[1], x[2], True)"},
    {"batch_norm", "[128,120]", call_batch_norm, .bench = {X(2, 128, 120), RANGE(0.5, 2, 1, 120), X(1, 120)}, .torch = "F.batch_norm(x[0], None, None, x[1], x[2], True)"},
    {"batch_norm", "evaluation, 64, 32 of 16x16", call_batch_norm_eval, .bench = {IMAGES(32, 64, 16), RANGE(0.5, 2, 1, 64), X(1, 64), CONST(-1, 1, 1, 64), CONST(0.5, 2, 1, 64)}, .torch = "F.batch_norm(x[0], x[3], x[4], x[1], x[2])", .channels_last = true},
    {"layer_norm", "[512,256]", call_layer_norm, .bench = {X(2, 512, 256), X(1, 256), X(1, 256)}, .torch = "F.layer_norm(x[0], x[1].shape, x[1], x[2])"},
    {"layer_norm", "[16,84]", call_layer_norm, .bench = {X(2, 16, 84), X(1, 84), X(1, 84)}, .torch = "F.layer_norm(x[0], x[1].shape, x[1], x[2])"},
    {"max_pool2d", "2x2, 64, 32 of 16x16", call_max_pool2d, .bench = {IMAGES(32, 64, 16)}, .torch = "F.max_pool2d(x[0], 2)", .channels_last = true},
    {"max_pool2d", "3x3 by 2, 64, 4 of 32x32", call_max_pool_3_by_2, .bench = {IMAGES(4, 64, 32)}, .torch = "F.max_pool2d(x[0], 3, 2, 1)", .channels_last = true},
    {"avg_pool2d", "2x2, 64, 32 of 16x16", call_avg_pool2d, .bench = {IMAGES(32, 64, 16)}, .torch = "F.avg_pool2d(x[0], 2)", .channels_last = true},
    {"adaptive_avg_pool2d", "1x1, 64, 32 of 8x8", call_avg_pool_global, .bench = {IMAGES(32, 64, 8)}, .torch = "F.adaptive_avg_pool2d(x[0], 1)", .channels_last = true},
    {"adaptive_avg_pool2d", "1x1, 256, 32 of 4x4", call_avg_pool_global, .bench = {IMAGES(32, 256, 4)}, .torch = "F.adaptive_avg_pool2d(x[0], 1)"},

    {"add", "64, 32 of 16x16", call_add, .bench = {IMAGES(32, 64, 16), IMAGES(32, 64, 16)}, .torch = "x[0] + x[1]"},
    {"add", "[512,256] + [256]", call_add, .bench = {X(2, 512, 256), X(1, 256)}, .torch = "x[0] + x[1]"},
    {"mul", "[512,256] [512,1]", call_mul, .bench = {X(2, 512, 256), X(2, 512, 1)}, .torch = "x[0] * x[1]"},
    {"relu", "64, 32 of 16x16", call_relu, .bench = {IMAGES(32, 64, 16)}, .torch = "F.relu(x[0])", .channels_last = true},
    {"relu", "[4,120]", call_relu, .bench = {X(2, 4, 120)}, .torch = "F.relu(x[0])"},
    {"gelu", "[512,1024]", call_gelu, .bench = {X(2, 512, 1024)}, .torch = "F.gelu(x[0])"},
    {"where", "[512,256]", call_where, .bench = {MASK(2, 512, 256), X(2, 512, 256), X(2, 512, 256)}, .torch = "torch.where(x[0], x[1], x[2])"},
    {"dropout", "[32,4096]", call_dropout, .bench = {X(2, 32, 4096)}, .torch = "F.dropout(x[0], 0.3)"},
    {"linear", "and relu, 32, 256-256", call_linear_relu, .bench = {X(2, 32, 256), X(2, 256, 256), X(1, 256)}, .torch = "F.relu(F.linear(*x))"},
    {"linear", "and gelu, 512, 256-1024", call_linear_gelu, .bench = {X(2, 512, 256), X(2, 1024, 256), X(1, 1024)}, .torch = "F.gelu(F.linear(*x))"},
    {"softmax", "[4,10]", call_softmax, .bench = {X(2, 4, 10)}, .torch = "x[0].softmax(-1)"},
    {"softmax", "[32,64,64]", call_softmax, .bench = {X(3, 32, 64, 64)}, .torch = "x[0].softmax(-1)"},
    {"log_softmax", "[128,10]", call_log_softmax, .bench = {X(2, 128, 10)}, .torch = "x[0].log_softmax(-1)"},
    {"cross_entropy", "[4,10]", call_cross_entropy, .bench = {X(2, 4, 10), LABEL(10, 1, 4)}, .torch = "F.cross_entropy(*x)"},
    {"cross_entropy", "[128,100]", call_cross_entropy, .bench = {X(2, 128, 100), LABEL(100, 1, 128)}, .torch = "F.cross_entropy(*x)"},
    {"add", "mse_loss [128,10]", call_mse_loss, .bench = {X(2, 128, 10), CONST(-1, 1, 2, 128, 10)}, .torch = "F.mse_loss(*x)"},
    {"attention", "4 of 8 heads, 64", call_attention, .bench = HEADS(64), .torch = "F.scaled_dot_product_attention(*x)"},
    {"attention", "4 of 8 heads, 128", call_attention, .bench = HEADS(128), .torch = "F.scaled_dot_product_attention(*x)"},
    {"attention", "4 of 8 heads, 512", call_attention, .bench = HEADS(512), .torch = "F.scaled_dot_product_attention(*x)"},
    {"attention", "4 of 8 heads, 512, causal", call_attention_causal_plain, .bench = HEADS(512), .torch = "F.scaled_dot_product_attention(*x, is_causal=True)"},

    {"sum", "mean of planes, 64, 32 of 8x8", call_mean_plane, .bench = {IMAGES(32, 64, 8)}, .torch = "x[0].mean((2, 3))", .channels_last = true},
    {"sum", "first of [128,1024]", call_sum_first, .bench = {X(2, 128, 1024)}, .torch = "x[0].sum(0)"},
    {"sum", "last of [1024,256]", call_sum_last, .bench = {X(2, 1024, 256)}, .torch = "x[0].sum(-1)"},
    {"max", "last of [1024,256]", call_max_last, .bench = {X(2, 1024, 256)}, .torch = "x[0].max(-1)[0]"},
    {"clone", "[1024,1024] transposed", call_contiguous, .bench = {X(2, 1024, 1024)}, .torch = "x[0].t().contiguous()"},
    {"clone", "planes to pixels, 64, 32 of 16x16", call_to_pixels, .bench = {IMAGES(32, 64, 16)}, .torch = "x[0].permute(0, 2, 3, 1).contiguous()"},
    {"clone", "heads, [4,128,8,64]", call_to_heads, .bench = {X(4, 4, 128, 8, 64)}, .torch = "x[0].transpose(1, 2).contiguous()"},
    {"clone", "slice of [512,256]", call_slice_copy, .bench = {X(2, 512, 256)}, .torch = "x[0][:, 64:192].contiguous()"},
    {"cat", "channels, 64, 8 of 16x16", call_cat_channels, .bench = {IMAGES(8, 64, 16), IMAGES(8, 64, 16)}, .torch = "torch.cat(x, 1)"},
    {"cat", "stack of [512,256]", call_stack_first, .bench = {X(2, 512, 256), X(2, 512, 256)}, .torch = "torch.stack(x)"},
    {"embedding", "[1000,64] by [32,128]", call_embedding, .bench = {X(2, 1000, 64), LABEL(1000, 2, 32, 128)}, .torch = "F.embedding(x[1], x[0])"},
    {"gather", "[128,1000] by [128,1]", call_gather, .bench = {X(2, 128, 1000), LABEL(1000, 2, 128, 1)}, .torch = "x[0].gather(1, x[1])"},
    {"ge", "", call_ge, .bench = TWO_LINES, .torch = "x[0] >= x[1]"},
    {"eq", "", call_eq, .bench = TWO_LINES, .torch = "x[0] == x[1]"},
    {"logical_and", "", call_logical_and, .bench = {MASK(1, 1 << 20), MASK(1, 1 << 20)}, .torch = "torch.logical_and(*x)"},
    {"logical_not", "", call_logical_not, .bench = {MASK(1, 1 << 20)}, .torch = "x[0].logical_not()"},
    {"add", "int64", call_add_int64, .bench = {LABEL(1000, 1, 1 << 20), LABEL(1000, 1, 1 << 20)}, .torch = "x[0] + x[1]"},
    {"mul", "int64", call_mul_int64, .bench = {LABEL(1000, 1, 1 << 20), LABEL(1000, 1, 1 << 20)}, .torch = "x[0] * x[1]"},
    {"floor_divide", "int64", call_floor_divide_int64, .bench = {LABEL(1000, 1, 1 << 20), LABEL(1000, 1, 1 << 20)}, .torch = "x[0] // (x[1] + 1)"},
    {"sum", "int64", call_sum_int64, .bench = {LABEL(1000, 1, 1 << 20)}, .torch = "x[0].sum()"},
    {"amax", "int64", call_max_int64, .bench = {LABEL(1000, 1, 1 << 20)}, .torch = "x[0].max()"},
    {"argmax", "", call_argmax_last, .bench = {X(2, 1024, 1024)}, .torch = "x[0].argmax(-1)"},
    {"multinomial", "4 of 1000", call_multinomial, .bench = {RANGE(0.1, 1, 2, 64, 1000)}, .torch = "x[0].multinomial(4)"},
};
/* clang-format on */

#define NETWORK_CASES (int)(sizeof network_cases / sizeof *network_cases)

/* ---- optimizers: one step of a parameter of n elements -------------------------------------------------- */

#define OPTIM(name, make) \
    static ds_optim *optim_##name(ds_module *m) { return make; }
OPTIM(sgd, ds_optim_sgd(m, 1e-3))
OPTIM(momentum, ds_optim_sgd(m, 1e-3, .momentum = 0.9))
OPTIM(adam, ds_optim_adam(m, 1e-3))
OPTIM(adamw, ds_optim_adamw(m, 1e-3, .weight_decay = 0.01))
OPTIM(adagrad, ds_optim_adagrad(m, 1e-3))
OPTIM(rmsprop, ds_optim_rmsprop(m, 1e-3))
OPTIM(adadelta, ds_optim_adadelta(m, 1))
OPTIM(lion, ds_optim_lion(m, 1e-3, .weight_decay = 0.01))
OPTIM(lamb, ds_optim_lamb(m, 1e-3, .weight_decay = 0.01))

typedef struct OptimCase {
    const char *name;
    ds_optim *(*make)(ds_module *m);
    const char *torch; /* of the list p of parameters; Lion, Lamb: of bench/peer_ops.py */
} OptimCase;

/* torch's own fused step, where it has one */
static const OptimCase optim_cases[] = {
    {"sgd", optim_sgd, "O.SGD(p, lr=1e-3, fused=True)"},
    {"sgd with momentum", optim_momentum, "O.SGD(p, lr=1e-3, momentum=0.9, fused=True)"},
    {"adam", optim_adam, "O.Adam(p, lr=1e-3, fused=True)"},
    {"adamw", optim_adamw, "O.AdamW(p, lr=1e-3, fused=True)"},
    {"adagrad", optim_adagrad, "O.Adagrad(p, lr=1e-3, fused=True)"},
    {"rmsprop", optim_rmsprop, "O.RMSprop(p, lr=1e-3)"},
    {"adadelta", optim_adadelta, "O.Adadelta(p)"},
    {"lion", optim_lion, "Lion(p, lr=1e-3, weight_decay=0.01)"},
    {"lamb", optim_lamb, "Lamb(p, lr=1e-3, weight_decay=0.01)"},
};
static const int64_t optim_sizes[] = {10000, 1000000, 10000000};

#define OPTIM_SIZES (int)(sizeof optim_sizes / sizeof *optim_sizes)
#define OPTIM_CASES (int)(sizeof optim_cases / sizeof *optim_cases * OPTIM_SIZES)
