/* tests/ops/cases.h: THE list of op cases. One row runs as a value test
 * (values.c), a gradient check (gradients.c), a test of failures (refusals.c)
 * and, where it has sizes for it, as a benchmark
 * (bench/ops.c).
 *
 * A row names the op of src/ops/table.h that it records, what is special about
 * it, the call and its inputs. A pointwise row also has the formula for one
 * element.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "calls.h"

/* ---- the list ---------------------------------------------------------------------------------------- */

/* clang-format off */
#define LINE        {X(1, 1 << 20)}
#define TWO_LINES   {X(1, 1 << 20), X(1, 1 << 20)}
#define POSITIVE(n) {RANGE(0.5, 2, 1, n)}

static const Case op_cases[] = {
    {"add", "same shapes", call_add, .in = {X(2, 3, 4), X(2, 3, 4)}, .element = element_add,
     .bench = TWO_LINES,
     .torch = "x[0] + x[1]"},
    {"add", "broadcast both ways", call_add, .in = {X(3, 4, 1, 5), X(2, 3, 1)},
     .element = element_add},
    {"add", "sub", call_sub, .in = {X(2, 3, 4), X(1, 1)}, .element = element_sub},
    {"add", "add_scaled", call_add_scaled, .in = {X(1, 7), X(3, 2, 3, 7)},
     .element = element_add_scaled},
    {"add", "gradient of a leaf and a node", call_shared, .in = {X(2, 3, 4), X(2, 3, 4)}},
    {"mul", "broadcast", call_mul, .in = {X(2, 5, 1), X(2, 1, 6)}, .element = element_mul},
    {"mul", "same shapes", call_mul, .in = {X(2, 5, 6), X(2, 5, 6)}, .element = element_mul,
     .bench = TWO_LINES,
     .torch = "x[0] * x[1]"},
    {"mul", "one operand twice", call_square_of_one, .in = {X(2, 3, 4)}, .element = element_square},
    {"div", "broadcast", call_div, .in = {X(2, 3, 5), RANGE(0.5, 2, 1, 5)}, .element = element_div,
     .bench = {X(1, 1 << 20), RANGE(0.5, 2, 1, 1 << 20)},
     .torch = "x[0] / x[1]"},
    {"affine", "scale", call_scale, .in = {X(2, 3, 5)}, .element = element_scale, .bench = LINE,
     .torch = "x[0] * -2.5"},
    {"affine", "shift", call_shift, .in = {X(2, 3, 5)}, .element = element_shift},
    {"affine", "neg", call_neg, .in = {X(0, 0)}, .element = element_neg},
    {"pow", "x^3", call_cube, .in = {X(2, 4, 5)}, .element = element_cube},
    {"pow", "x^0.5", call_root, .in = {RANGE(0.5, 2, 2, 4, 5)}, .element = element_root},
    {"pow", "x^0", call_pow_zero, .in = {X(1, 5)}, .element = element_one},
    {"where", "broadcast", call_where, .in = {MASK(2, 3, 4), X(1, 4), X(3, 2, 1, 1)},
     .element = element_where},
    {"abs", "", call_abs, .in = {X(2, 4, 9)}, .element = element_abs, .bench = LINE,
     .torch = "x[0].abs()"},
    {"exp", "", call_exp, .in = {X(2, 4, 9)}, .element = element_exp, .bench = LINE,
     .torch = "x[0].exp()"},
    {"log", "", call_log, .in = {RANGE(0.2, 3, 2, 4, 9)}, .element = element_log,
     .bench = POSITIVE(1 << 20),
     .torch = "x[0].log()"},
    {"sqrt", "", call_sqrt, .in = {RANGE(0.2, 3, 2, 4, 9)}, .element = element_sqrt,
     .bench = POSITIVE(1 << 20),
     .torch = "x[0].sqrt()"},
    {"relu", "", call_relu, .in = {X(3, 3, 7, 5)}, .element = element_relu, .bench = LINE,
     .torch = "F.relu(x[0])"},
    {"gelu", "", call_gelu, .in = {RANGE(-4, 4, 2, 7, 5)}, .element = element_gelu, .bench = LINE,
     .torch = "F.gelu(x[0])"},
    {"gelu_tanh", "", call_gelu_tanh, .in = {RANGE(-4, 4, 2, 7, 5)}, .element = element_gelu_tanh,
     .bench = LINE,
     .torch = "F.gelu(x[0], approximate='tanh')"},
    {"silu", "", call_silu, .in = {RANGE(-6, 6, 2, 7, 5)}, .element = element_silu, .bench = LINE,
     .torch = "F.silu(x[0])"},
    {"sigmoid", "", call_sigmoid, .in = {RANGE(-6, 6, 2, 7, 5)}, .element = element_sigmoid,
     .bench = LINE,
     .torch = "x[0].sigmoid()"},
    {"tanh", "", call_tanh, .in = {RANGE(-3, 3, 2, 7, 5)}, .element = element_tanh, .bench = LINE,
     .torch = "x[0].tanh()"},
    {"sin", "", call_sin, .in = {RANGE(-6, 6, 2, 7, 5)}, .element = element_sin, .bench = LINE,
     .torch = "x[0].sin()"},
    {"cos", "", call_cos, .in = {RANGE(-6, 6, 2, 7, 5)}, .element = element_cos},
    {"erf", "", call_erf, .in = {RANGE(-3, 3, 2, 7, 5)}, .element = element_erf, .bench = LINE,
     .torch = "x[0].erf()"},
    {"expm1", "", call_expm1, .in = {RANGE(-2, 2, 2, 7, 5)}, .element = element_expm1, .bench = LINE,
     .torch = "x[0].expm1()"},
    {"log1p", "", call_log1p, .in = {RANGE(-0.8, 3, 2, 7, 5)}, .element = element_log1p},
    {"pow", "rsqrt", call_rsqrt, .in = {RANGE(0.2, 3, 2, 4, 9)}, .element = element_rsqrt},
    {"floor", "", call_floor, .in = {RANGE(-4, 4, 2, 7, 5)}, .element = element_floor, .bench = LINE,
     .torch = "x[0].floor()"},
    {"ceil", "", call_ceil, .in = {RANGE(-4, 4, 2, 7, 5)}, .element = element_ceil},
    {"round", "", call_round, .in = {RANGE(-4, 4, 2, 7, 5)}, .element = element_round},
    {"sign", "", call_sign, .in = {RANGE(-4, 4, 2, 7, 5)}, .element = element_sign, .bench = LINE,
     .torch = "x[0].sign()"},
    {"leaky_relu", "", call_leaky_relu, .in = {RANGE(-6, 6, 2, 7, 5)}, .element = element_leaky_relu, .bench = LINE,
     .torch = "F.leaky_relu(x[0], 0.2)"},
    {"elu", "", call_elu, .in = {RANGE(-6, 6, 2, 7, 5)}, .element = element_elu, .bench = LINE,
     .torch = "F.elu(x[0], 1.5)"},
    {"elu", "selu", call_selu, .in = {RANGE(-6, 6, 2, 7, 5)}, .element = element_selu},
    {"elu", "celu", call_celu, .in = {RANGE(-6, 6, 2, 7, 5)}, .element = element_celu},
    {"softplus", "", call_softplus, .in = {RANGE(-6, 6, 2, 7, 5)}, .element = element_softplus, .bench = LINE,
     .torch = "F.softplus(x[0])"},
    {"softplus", "beta, threshold", call_softplus_beta, .in = {RANGE(-2, 2, 2, 7, 5)}, .element = element_softplus_beta},
    {"softplus", "logsigmoid", call_logsigmoid, .in = {RANGE(-6, 6, 2, 7, 5)}, .element = element_logsigmoid},
    {"hardswish", "", call_hardswish, .in = {RANGE(-5, 5, 2, 7, 5)}, .element = element_hardswish, .bench = LINE,
     .torch = "F.hardswish(x[0])"},
    {"clamp", "hardsigmoid", call_hardsigmoid, .in = {RANGE(-5, 5, 2, 7, 5)}, .element = element_hardsigmoid},
    {"mish", "", call_mish, .in = {RANGE(-6, 6, 2, 7, 5)}, .element = element_mish, .bench = LINE,
     .torch = "F.mish(x[0])"},
    {"maximum", "", call_maximum, .in = {X(2, 3, 5), X(1, 5)}, .element = element_maximum, .bench = TWO_LINES,
     .torch = "torch.maximum(*x)"},
    {"minimum", "", call_minimum, .in = {X(2, 3, 5), X(2, 3, 1)}, .element = element_minimum},
    {"clamp", "", call_clamp, .in = {X(2, 7, 5)}, .element = element_clamp, .bench = LINE,
     .torch = "x[0].clamp(-0.5, 0.75)"},
    {"clamp", "one bound", call_clamp_low, .in = {X(2, 7, 5)}, .element = element_clamp_low},
    {"clamp_tensors", "", call_clamp_tensors, .in = {X(2, 4, 5), RANGE(-1, 0, 1, 5), RANGE(0, 1, 2, 4, 1)}, .element = element_clamp_tensors},
    {"clamp_tensors", "one bound", call_clamp_high, .in = {X(2, 4, 5), X(1, 5)}, .element = element_minimum},
    {"where", "masked_fill", call_masked_fill, .in = {X(2, 4, 5), MASK(1, 5)}, .element = element_masked_fill},

    {"matmul", "matrices", call_matmul, .in = {X(2, 5, 7), X(2, 7, 3)},
     .bench = {X(2, 256, 256), X(2, 256, 256)}, .flops = flops_matmul,
     .torch = "x[0] @ x[1]"},
    {"matmul", "inner product", call_matmul, .in = {X(1, 6), X(1, 6)}},
    {"matmul", "matrix and vector", call_matmul, .in = {X(2, 5, 6), X(1, 6)}},
    {"matmul", "vector and matrices", call_matmul, .in = {X(1, 6), X(3, 2, 6, 4)}},
    {"matmul", "batch", call_matmul, .in = {X(3, 3, 4, 5), X(3, 3, 5, 2)},
     .bench = {X(3, 32, 64, 64), X(3, 32, 64, 64)}, .flops = flops_matmul,
     .torch = "x[0] @ x[1]"},
    {"matmul", "batch and one matrix", call_matmul, .in = {X(4, 2, 3, 4, 5), X(2, 5, 2)}},
    {"matmul", "one matrix and batch", call_matmul, .in = {X(2, 4, 5), X(3, 3, 5, 2)}},
    {"matmul", "broadcast batches", call_matmul, .in = {X(4, 2, 1, 4, 5), X(3, 3, 5, 2)}},
    {"linear", "tutorial's fc1", call_linear, .in = {X(2, 3, 20), X(2, 12, 20), X(1, 12)},
     .bench = {X(2, 4, 400), X(2, 120, 400), X(1, 120)}, .flops = flops_matmul,
     .torch = "F.linear(*x)"},
    {"linear", "batch 128", call_linear, .in = {X(2, 9, 10), X(2, 4, 10), X(1, 4)},
     .bench = {X(2, 128, 400), X(2, 120, 400), X(1, 120)}, .flops = flops_matmul,
     .torch = "F.linear(*x)"},
    {"linear", "vector", call_linear, .in = {X(1, 7), X(2, 4, 7), X(1, 4)}},
    {"linear", "no bias, more dimensions", call_linear_plain, .in = {X(3, 2, 3, 7), X(2, 4, 7)}},

    {"conv2d", "3 to 6, 5x5", call_conv2d, .in = {X(4, 2, 3, 8, 9), X(4, 6, 3, 5, 5), X(1, 6)},
     .bench = {X(4, 16, 3, 32, 32), X(4, 6, 3, 5, 5), X(1, 6)}, .flops = flops_conv2d,
     .torch = "F.conv2d(*x)"},
    {"conv2d", "6 to 16, 5x5", call_conv2d, .in = {X(4, 1, 6, 7, 6), X(4, 16, 6, 5, 5), X(1, 16)},
     .bench = {X(4, 16, 6, 14, 14), X(4, 16, 6, 5, 5), X(1, 16)}, .flops = flops_conv2d,
     .torch = "F.conv2d(*x)"},
    {"conv2d", "3x3", call_conv2d_same, .in = {X(4, 2, 4, 6, 6), X(4, 8, 4, 3, 3), X(1, 8)},
     .bench = {X(4, 4, 64, 32, 32), X(4, 64, 64, 3, 3), X(1, 64)}, .flops = flops_conv2d,
     .torch = "F.conv2d(*x, padding=1)"},
    {"conv2d", "1x1, no bias", call_conv2d_plain, .in = {X(4, 2, 5, 3, 4), X(4, 7, 5, 1, 1)}},
    {"conv2d", "stride, padding, dilation", call_conv2d_wide,
     .in = {X(4, 2, 3, 9, 8), X(4, 5, 3, 3, 2), X(1, 5)}},
    {"conv2d", "groups", call_conv2d_groups, .in = {X(4, 2, 6, 5, 5), X(4, 9, 2, 3, 3), X(1, 9)}},
    {"conv2d", "depthwise", call_conv2d_depthwise,
     .in = {X(4, 2, 4, 5, 5), X(4, 4, 1, 3, 3), X(1, 4)}},
    {"conv2d", "under relu and pool", call_conv_relu_pool,
     .in = {X(4, 2, 3, 8, 8), X(4, 6, 3, 3, 3), X(1, 6)}},
    {"conv2d", "under relu and pool, channels last", call_conv_relu_pool,
     .in = {X(4, 2, 6, 6, 6), X(4, 8, 6, 3, 3), X(1, 8)}},
    {"conv2d", "under pool", call_conv_pool, .in = {X(4, 2, 3, 7, 8), X(4, 5, 3, 3, 3), X(1, 5)}},
    {"conv2d", "under relu, pool and flatten", call_conv_relu_pool_flat,
     .in = {X(4, 2, 2, 6, 6), X(4, 16, 2, 3, 3), X(1, 16)}},
    {"conv2d", "conv1d", call_conv1d, .in = {X(3, 2, 3, 9), X(3, 5, 3, 3), X(1, 5)}},
    {"conv2d", "conv1d, same", call_conv1d_same, .in = {X(3, 2, 6, 7), X(3, 9, 2, 4), X(1, 9)}},
    {"conv_transpose2d", "", call_conv_transpose2d,
     .in = {X(4, 2, 3, 4, 5), X(4, 3, 4, 3, 3), X(1, 4)},
     .bench = {X(4, 4, 64, 16, 16), X(4, 64, 32, 3, 3), X(1, 32)}, .flops = flops_conv_transpose2d,
     .torch = "F.conv_transpose2d(*x)"},
    {"conv_transpose2d", "stride, padding, groups", call_conv_transpose2d_wide,
     .in = {X(4, 2, 4, 3, 4), X(4, 4, 3, 3, 2), X(1, 6)}},
    {"conv_transpose2d", "output padding above the stride", call_conv_transpose2d_dilated,
     .in = {X(4, 1, 2, 4, 3), X(4, 2, 3, 2, 3)}},
    {"gather", "interpolate, nearest", call_interpolate_nearest, .in = {X(4, 1, 2, 4, 5)},
     .bench = {X(4, 4, 32, 64, 64)},
     .torch = "F.interpolate(x[0], scale_factor=1.7)"},
    {"gather", "interpolate, linear", call_interpolate_linear, .in = {X(3, 2, 3, 5)}},
    {"gather", "interpolate, bilinear", call_interpolate_bilinear, .in = {X(4, 1, 2, 3, 4)},
     .bench = {X(4, 4, 32, 64, 64)},
     .torch = "F.interpolate(x[0], scale_factor=2, mode='bilinear')"},
    {"gather", "interpolate, corners", call_interpolate_corners, .in = {X(4, 1, 2, 5, 4)}},
    {"adaptive_avg_pool2d", "interpolate, area", call_interpolate_area, .in = {X(3, 1, 2, 7)}},
    {"max_pool2d", "2x2", call_max_pool2d, .in = {X(4, 2, 3, 6, 8)},
     .bench = {X(4, 16, 6, 28, 28)},
     .torch = "F.max_pool2d(x[0], 2)"},
    {"max_pool2d", "[C,H,W], odd sizes", call_max_pool2d, .in = {X(3, 3, 5, 7)}},
    {"max_pool2d", "overlapping", call_max_pool2d_overlap, .in = {X(4, 2, 2, 7, 6)}},
    {"max_pool2d", "dilated", call_max_pool2d_dilated, .in = {X(4, 2, 2, 7, 8)}},
    {"avg_pool2d", "2x2", call_avg_pool2d, .in = {X(4, 2, 3, 6, 8)},
     .bench = {X(4, 16, 6, 28, 28)},
     .torch = "F.avg_pool2d(x[0], 2)"},
    {"avg_pool2d", "padded, not counted", call_avg_pool2d_padded, .in = {X(4, 1, 4, 9, 7)}},
    {"max_pool2d", "max_pool1d", call_max_pool1d, .in = {X(3, 2, 3, 9)}},
    {"avg_pool2d", "avg_pool1d", call_avg_pool1d, .in = {X(2, 3, 8)}},
    {"adaptive_avg_pool2d", "", call_adaptive, .in = {X(4, 1, 3, 10, 7)}},

    {"softmax", "last", call_softmax, .in = {RANGE(-4, 4, 2, 4, 10)}, .bench = {X(2, 1024, 1024)},
     .torch = "x[0].softmax(-1)"},
    {"softmax", "in the middle", call_softmax_1, .in = {RANGE(-4, 4, 3, 3, 5, 7)}},
    {"log_softmax", "last", call_log_softmax, .in = {RANGE(-4, 4, 3, 2, 3, 9)},
     .bench = {X(2, 1024, 1024)},
     .torch = "x[0].log_softmax(-1)"},
    {"log_softmax", "first", call_log_softmax_0, .in = {RANGE(-4, 4, 2, 5, 4)}},
    {"cross_entropy", "mean", call_cross_entropy, .in = {RANGE(-4, 4, 2, 4, 10), LABEL(10, 1, 4)},
     .bench = {X(2, 128, 1000), LABEL(1000, 1, 128)},
     .torch = "F.cross_entropy(*x)"},
    {"cross_entropy", "weight, smoothing, ignored", call_cross_entropy_all,
     .in = {RANGE(-2, 2, 3, 3, 5, 4), LABEL(5, 2, 3, 4), CONST(0.5, 2, 1, 5)}},
    {"cross_entropy", "none", call_cross_entropy_none, .in = {X(2, 6, 5), LABEL(5, 1, 6)}},
    {"cross_entropy", "sum", call_cross_entropy_sum, .in = {X(2, 6, 5), LABEL(5, 1, 6)}},
    {"linear_cross_entropy", "", call_linear_cross_entropy,
     .in = {X(2, 6, 5), X(2, 9, 5), LABEL(9, 1, 6)},
     .bench = {X(2, 128, 128), X(2, 8192, 128), LABEL(8192, 1, 128)},
     .torch = "F.cross_entropy(F.linear(x[0], x[1]), x[2])"},
    {"add", "mse_loss", call_mse_loss, .in = {X(2, 3, 5), X(2, 3, 5)}},
    {"add", "mse_loss, none", call_mse_none, .in = {X(2, 3, 5), X(2, 3, 5)},
     .element = element_square_of_difference},

    {"batch_norm", "training", call_batch_norm,
     .in = {X(4, 4, 3, 5, 2), RANGE(0.5, 2, 1, 3), X(1, 3)},
     .bench = {X(4, 16, 64, 16, 16), RANGE(0.5, 2, 1, 64), X(1, 64)},
     .torch = "F.batch_norm(x[0], None, None, x[1], x[2], True)"},
    {"batch_norm", "plain, [N,C]", call_batch_norm_plain, .in = {X(2, 5, 3)}},
    {"batch_norm", "evaluation", call_batch_norm_eval,
     .in = {X(3, 2, 3, 4), RANGE(0.5, 2, 1, 3), X(1, 3), CONST(-1, 1, 1, 3), CONST(0.5, 2, 1, 3)}},
    {"layer_norm", "group_norm", call_group_norm,
     .in = {X(4, 2, 4, 3, 2), RANGE(0.5, 2, 1, 4), X(1, 4)},
     .bench = {X(4, 16, 64, 16, 16), RANGE(0.5, 2, 1, 64), X(1, 64)},
     .torch = "F.group_norm(x[0], 2, x[1], x[2])"},
    {"layer_norm", "group_norm, plain, [N,C]", call_group_norm_plain, .in = {X(2, 3, 9)}},
    {"batch_norm", "instance_norm", call_instance_norm,
     .in = {X(4, 2, 3, 3, 2), RANGE(0.5, 2, 1, 3), X(1, 3)},
     .bench = {X(4, 16, 64, 16, 16), RANGE(0.5, 2, 1, 64), X(1, 64)},
     .torch = "F.instance_norm(x[0], weight=x[1], bias=x[2])"},
    {"layer_norm", "one dimension", call_layer_norm, .in = {X(2, 4, 13), X(1, 13), X(1, 13)},
     .bench = {X(2, 1024, 1024), X(1, 1024), X(1, 1024)},
     .torch = "F.layer_norm(x[0], x[1].shape, x[1], x[2])"},
    {"layer_norm", "two dimensions", call_layer_norm,
     .in = {X(3, 3, 5, 4), X(2, 5, 4), X(2, 5, 4)}},
    {"layer_norm", "plain", call_layer_norm_plain, .in = {X(2, 3, 6)}},
    {"rms_norm", "one dimension", call_rms_norm, .in = {X(2, 4, 13), X(1, 13)},
     .bench = {X(2, 1024, 1024), X(1, 1024)},
     .torch = "F.rms_norm(x[0], x[1].shape, x[1])"},
    {"rms_norm", "two dimensions", call_rms_norm, .in = {X(3, 3, 5, 4), X(2, 5, 4)}},
    {"rms_norm", "plain", call_rms_norm_plain, .in = {X(2, 3, 6)}},

    {"sum", "all", call_sum, .in = {X(3, 3, 4, 5)}, .bench = LINE,
     .torch = "x[0].sum()"},
    {"sum", "first and last", call_sum_02, .in = {X(3, 3, 4, 5)}, .bench = {X(3, 64, 128, 64)},
     .torch = "x[0].sum((0, -1))"},
    {"sum", "mean", call_mean, .in = {X(3, 3, 4, 5)}},
    {"sum", "mean, kept", call_mean_1, .in = {X(3, 3, 4, 5)}},
    {"max", "in the middle", call_max, .in = {X(3, 3, 6, 5)}, .bench = {X(3, 64, 128, 64)},
     .torch = "x[0].max(1)[0]"},
    {"max", "last, kept", call_max_keep, .in = {X(2, 4, 9)}},

    {"reshape", "", call_reshape, .in = {X(2, 4, 9)}},
    {"reshape", "of a slice", call_reshape_view, .in = {X(3, 4, 3, 4)}},
    {"reshape", "of a transposed", call_reshape_copy, .in = {X(3, 2, 3, 4)}},
    {"reshape", "flatten_range", call_flatten, .in = {X(3, 2, 3, 4)}},
    {"reshape", "unsqueeze", call_unsqueeze, .in = {X(2, 3, 4)}, .element = element_same},
    {"reshape", "squeeze", call_squeeze, .in = {X(3, 3, 1, 4)}},
    {"permute", "", call_permute, .in = {X(3, 2, 3, 4)}},
    {"slice", "", call_slice, .in = {X(3, 2, 4, 3)}},
    {"slice", "select", call_select, .in = {X(3, 2, 4, 3)}},
    {"expand", "", call_expand, .in = {X(2, 3, 1)}, .element = element_same},
    {"cat", "three", call_cat, .in = {X(3, 2, 3, 4), X(3, 2, 1, 4), X(3, 2, 2, 4)},
     .bench = {X(2, 256, 512), X(2, 256, 512), X(2, 256, 512)},
     .torch = "torch.cat(x, 1)"},
    {"cat", "one operand twice", call_cat_same, .in = {X(2, 2, 3), X(2, 1, 3)}},
    {"cat", "stack", call_stack, .in = {X(2, 2, 3), X(2, 2, 3)}},
    {"embedding", "", call_embedding, .in = {X(2, 7, 5), LABEL(7, 2, 3, 4)},
     .bench = {X(2, 10000, 256), LABEL(10000, 1, 2048)},
     .torch = "F.embedding(x[1], x[0])"},
    {"gather", "", call_gather, .in = {X(3, 2, 5, 3), LABEL(5, 3, 2, 4, 3)},
     .bench = {X(2, 65536, 8), LABEL(8, 2, 65536, 2)},
     .torch = "x[0].gather(1, x[1])"},
    {"dispatch", "", call_dispatch, .in = {X(2, 4, 5)}, .bench = {X(2, 2048, 512)}},
    {"combine", "", call_combine, .in = {X(2, 8, 5)}},
    {"combine", "weights", call_combine_weighted, .in = {X(2, 8, 37), X(2, 4, 2)},
     .bench = {X(2, 4096, 512), X(2, 2048, 2)}},
    {"exchange_rows", "one rank", call_exchange_rows, .in = {X(2, 4, 5)}, .element = element_same},
    {"dropout", "", call_dropout, .in = {X(2, 5, 8)}, .bench = LINE,
     .torch = "F.dropout(x[0], 0.3)"},
    {"attention", "", call_attention, .in = {X(4, 2, 2, 5, 4), X(4, 2, 2, 6, 4), X(4, 2, 2, 6, 3)},
     .bench = {X(3, 8, 256, 64), X(3, 8, 256, 64), X(3, 8, 256, 64)}, .flops = flops_attention,
     .torch = "F.scaled_dot_product_attention(*x)"},
    {"attention", "qkv packed", call_attention_qkvpacked, .in = {X(3, 2, 4, 18)},
     .bench = {X(3, 8, 256, 768)}},
    {"attention", "causal, scale", call_attention_causal,
     .in = {X(3, 2, 4, 4), X(3, 2, 6, 4), X(3, 2, 6, 4)}},
    {"attention", "bool mask", call_attention_mask,
     .in = {X(3, 2, 4, 4), X(3, 2, 6, 4), X(3, 2, 6, 4), MASK(2, 4, 6)}},
    {"attention", "added mask", call_attention_mask,
     .in = {X(3, 2, 4, 4), X(3, 2, 6, 4), X(3, 2, 6, 4), CONST(-1, 1, 3, 2, 1, 6)}},
    {"softmax", "attention, mask with a gradient", call_attention_mask,
     .in = {X(3, 2, 4, 4), X(3, 2, 6, 4), X(3, 2, 6, 4), X(2, 4, 6)}},
    {"attention", "grouped heads, causal", call_attention_gqa,
     .in = {X(4, 2, 6, 4, 4), X(4, 2, 2, 5, 4), X(4, 2, 2, 5, 3)}},
    {"attention", "grouped heads, mask", call_attention_gqa_mask,
     .in = {X(4, 2, 4, 4, 4), X(4, 2, 2, 5, 4), X(4, 2, 2, 5, 4), MASK(4, 2, 1, 4, 5)}},
    {"softmax", "grouped heads, mask with a gradient", call_attention_gqa_mask,
     .in = {X(3, 4, 4, 4), X(3, 2, 5, 4), X(3, 2, 5, 4), X(2, 4, 5)}},
    {"rotary_embedding", "halves, a rest", call_rotary, .in = {X(4, 2, 3, 5, 7), CONST(-1, 1, 2, 5, 3)},
     .bench = {X(4, 1, 8, 1024, 64), CONST(-1, 1, 2, 1024, 32)}},
    {"rotary_embedding", "interleaved", call_rotary_interleaved,
     .in = {X(3, 2, 5, 8), CONST(-1, 1, 3, 2, 1, 4)}},
    {"cast", "", call_cast, .in = {X(2, 3, 5)}, .eps = 1e-2},
    {"clone", "", call_clone, .in = {X(2, 3, 5)}, .element = element_same},
    {"clone", "contiguous", call_contiguous, .in = {X(2, 3, 5)}},
};
/* clang-format on */

#define OP_CASES (int)(sizeof op_cases / sizeof *op_cases)

/* ---- inputs ------------------------------------------------------------------------------------------ */

static int case_inputs(const Input *in)
{
    int n = 0;
    while (n < MAX_IN && in[n].used) n++;
    return n;
}

/* A fixed sequence in [0, 1): splitmix64's. */
static double case_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* Input i of a row, its floats as dtype; the values depend on i alone. */
static ds_tensor *case_input(const Input *row, int i, ds_dtype dtype)
{
    const Input *in = &row[i];
    ds_dtype want = in->kind == INDEX ? DS_I64 : in->kind == BOOL ? DS_BOOL : dtype;
    ds_device made_on = ds_current_device();
    ds_set_device((ds_device){DS_CPU, 0});
    ds_tensor *x = ds_empty(in->kind < INDEX ? DS_F64 : want, in->shape);
    ds_set_device(made_on);
    void *p = ds_data_mut(x);
    uint64_t state = 1000 + (uint64_t)i;
    double low = in->low == in->high ? -1 : in->low, high = in->low == in->high ? 1 : in->high;
    for (int64_t k = 0, n = p ? ds_numel(x) : 0; k < n; k++) {
        double r = case_random(&state);
        if (in->kind == INDEX)
            ((int64_t *)p)[k] = (int64_t)(r * in->high);
        else if (in->kind == BOOL)
            ((uint8_t *)p)[k] = r < 0.6;
        else
            ((double *)p)[k] = (double)(float)(low + r * (high - low)); /* exact in float32 too */
    }
    x = ds_to(x, made_on, want);
    return in->kind == FLOAT ? ds_require_grad(x, true) : x;
}
