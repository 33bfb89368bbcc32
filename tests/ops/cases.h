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

#include <deepspeed.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_IN 5

typedef enum Kind { FLOAT = 0, FIXED, INDEX, BOOL } Kind; /* FIXED: a float without a gradient */

typedef struct Input {
    bool used;
    ds_dims shape;
    Kind kind;
    double low, high; /* both 0: -1 to 1; INDEX: 0 to high-1 */
} Input;

typedef struct Case {
    const char *op, *name;
    ds_tensor *(*call)(ds_tensor **in);
    Input in[MAX_IN];
    double (*element)(const double *in);           /* pointwise: the value of one element */
    double eps;                                    /* of the gradient check; 0: the default */
    Input bench[MAX_IN];                           /* sizes to time; none: not timed */
    double (*flops)(ds_tensor **in, ds_tensor *y); /* NULL: counted in bytes */
    const char *torch;  /* the same in Python, of the list x of inputs: for bench/peer_ops.py */
    bool channels_last; /* to time: images lie as a convolution's output does, [N,H,W,C] */
} Case;

/* Inputs of n dimensions. */
/* clang-format off */
#define X(n, ...)              {.used = true, .shape = {n, {__VA_ARGS__}}}
#define RANGE(lo, hi, n, ...)  {.used = true, .shape = {n, {__VA_ARGS__}}, .low = (lo), .high = (hi)}
#define CONST(lo, hi, n, ...)  {.used = true, .shape = {n, {__VA_ARGS__}}, .low = (lo), .high = (hi), .kind = FIXED}
#define LABEL(classes, n, ...) {.used = true, .shape = {n, {__VA_ARGS__}}, .high = (classes), .kind = INDEX}
#define MASK(n, ...)           {.used = true, .shape = {n, {__VA_ARGS__}}, .kind = BOOL}
/* clang-format on */

/* ---- calls ------------------------------------------------------------------------------------------- */

#define CALL1(f) \
    static ds_tensor *call_##f(ds_tensor **in) { return ds_##f(in[0]); }
#define CALL2(f) \
    static ds_tensor *call_##f(ds_tensor **in) { return ds_##f(in[0], in[1]); }
#define CALL(name, ...) \
    static ds_tensor *call_##name(ds_tensor **in) { return __VA_ARGS__; }

CALL2(add)
CALL2(sub)
CALL2(mul)
CALL2(div)
CALL2(matmul)
CALL1(neg)
CALL1(abs)
CALL1(exp)
CALL1(log)
CALL1(sqrt)
CALL1(relu)
CALL1(gelu)
CALL1(gelu_tanh)
CALL1(silu)
CALL1(sigmoid)
CALL1(tanh)
CALL1(clone)
CALL1(sum)
CALL1(mean)
CALL2(mse_loss)
CALL(square_of_one, ds_mul(in[0], in[0]))
CALL(add_scaled, ds_add_scaled(in[0], in[1], -0.5))
CALL(scale, ds_scale(in[0], -2.5))
CALL(shift, ds_shift(in[0], 0.75))
CALL(cube, ds_pow(in[0], 3))
CALL(root, ds_pow(in[0], 0.5))
CALL(pow_zero, ds_pow(in[0], 0))
CALL(where, ds_where(in[0], in[1], in[2]))
CALL(cast, ds_cast(ds_cast(in[0], DS_F32), ds_dtype_of(in[0])))
CALL(contiguous, ds_contiguous(ds_transpose(in[0], 0, 1)))
CALL(linear, ds_linear(in[0], in[1], in[2]))
CALL(linear_plain, ds_linear(in[0], in[1], NULL))
CALL(conv2d, ds_conv2d(in[0], in[1], in[2]))
CALL(conv2d_plain, ds_conv2d(in[0], in[1], NULL))
CALL(conv2d_same, ds_conv2d(in[0], in[1], in[2], .padding = 1))
CALL(conv2d_wide, ds_conv2d(in[0], in[1], in[2], .stride = 2, .stride_w = 1, .padding = 1,
                            .padding_w = 2, .dilation = 1, .dilation_w = 2))
CALL(conv2d_groups, ds_conv2d(in[0], in[1], in[2], .padding = 1, .groups = 3))
CALL(conv2d_depthwise, ds_conv2d(in[0], in[1], in[2], .padding = 1, .groups = 4))
CALL(conv1d, ds_conv1d(in[0], in[1], in[2], .stride = 2, .padding = 1, .dilation = 2))
CALL(conv1d_same, ds_conv1d(in[0], in[1], in[2], .same = true, .groups = 3))
CALL(conv_transpose2d, ds_conv_transpose2d(in[0], in[1], in[2]))
CALL(conv_transpose2d_wide,
     ds_conv_transpose2d(in[0], in[1], in[2], .stride = 3, .stride_w = 2, .padding = 1,
                         .output_padding = 1, .output_padding_w = -1, .groups = 2))
CALL(conv_transpose2d_dilated,
     ds_conv_transpose2d(in[0], in[1], NULL, .dilation = 3, .output_padding = 2))
CALL(interpolate_nearest, ds_interpolate(in[0], .scale_factor = 1.7))
CALL(interpolate_linear, ds_interpolate(in[0], .size = ds_shape(9), .mode = DS_LINEAR))
CALL(interpolate_bilinear, ds_interpolate(in[0], .scale_factor = 2, .mode = DS_BILINEAR))
CALL(interpolate_corners,
     ds_interpolate(in[0], .size = ds_shape(3, 7), .mode = DS_BILINEAR, .align_corners = true))
CALL(interpolate_area, ds_interpolate(in[0], .size = ds_shape(3), .mode = DS_AREA))
CALL(conv_relu_pool, ds_max_pool2d(ds_relu(ds_conv2d(in[0], in[1], in[2])), 2))
CALL(conv_pool,
     ds_max_pool2d(ds_conv2d(in[0], in[1], in[2], .padding = 1), 3, .stride = 3, .padding = 1))
CALL(conv_relu_pool_flat, ds_flatten(call_conv_relu_pool(in), 1))
CALL(max_pool2d, ds_max_pool2d(in[0], 2))
CALL(max_pool2d_overlap, ds_max_pool2d(in[0], 3, .stride = 2, .padding = 1, .ceil_mode = true))
CALL(max_pool2d_dilated, ds_max_pool2d(in[0], 2, .kernel_w = 3, .stride = 1, .dilation = 2))
CALL(avg_pool2d, ds_avg_pool2d(in[0], 2))
CALL(avg_pool2d_padded, ds_avg_pool2d(in[0], 3, .stride = 2, .padding = 1, .exclude_pad = true))
CALL(max_pool1d, ds_max_pool1d(in[0], 3, .stride = 2, .padding = 1))
CALL(avg_pool1d, ds_avg_pool1d(in[0], 3, .stride = 2, .padding = 1, .exclude_pad = true))
CALL(adaptive, ds_adaptive_avg_pool2d(in[0], 3, 2))
CALL(softmax, ds_softmax(in[0], -1))
CALL(softmax_1, ds_softmax(in[0], 1))
CALL(log_softmax, ds_log_softmax(in[0], -1))
CALL(log_softmax_0, ds_log_softmax(in[0], 0))
CALL(cross_entropy, ds_cross_entropy(in[0], in[1]))
CALL(cross_entropy_all, ds_cross_entropy_with(in[0], in[1],
                                              (ds_cross_entropy_opts){.weight = in[2],
                                                                      .label_smoothing = 0.1,
                                                                      .ignore = true,
                                                                      .ignore_index = 1}))
CALL(cross_entropy_none,
     ds_cross_entropy_with(in[0], in[1],
                           (ds_cross_entropy_opts){.reduction = DS_NONE, .label_smoothing = 0.2}))
CALL(cross_entropy_sum,
     ds_cross_entropy_with(in[0], in[1], (ds_cross_entropy_opts){.reduction = DS_SUM}))
/* [N] labels, of which the third is ignored; the loss in x's dtype */
static ds_tensor *call_linear_cross_entropy(ds_tensor **in)
{
    ds_tensor *labels = in[2] ? ds_to(ds_clone(in[2]), (ds_device){DS_CPU, 0}, DS_I64) : NULL;
    int64_t *p = labels ? ds_data_mut(labels) : NULL;
    if (p && ds_numel(labels) > 2) p[2] = -100;
    if (labels) labels = ds_to(labels, ds_device_of(in[2]), DS_I64);
    ds_tensor *loss = ds_linear_cross_entropy(in[0], in[1], labels);
    return loss ? ds_cast(loss, ds_dtype_of(in[0])) : NULL;
}

CALL(mse_none, ds_mse_loss_with(in[0], in[1], DS_NONE))
CALL(batch_norm, ds_batch_norm_with(in[0], (ds_batch_norm_opts){
                                               .weight = in[1], .bias = in[2], .training = true}))
CALL(batch_norm_plain, ds_batch_norm_with(in[0], (ds_batch_norm_opts){.training = true}))
CALL(batch_norm_eval, ds_batch_norm_with(in[0], (ds_batch_norm_opts){.weight = in[1],
                                                                     .bias = in[2],
                                                                     .running_mean = in[3],
                                                                     .running_var = in[4]}))
CALL(group_norm, ds_group_norm(in[0], 2, in[1], in[2], 0))
CALL(group_norm_plain, ds_group_norm(in[0], 3, NULL, NULL, 1e-3))
CALL(instance_norm,
     ds_instance_norm_with(in[0], (ds_batch_norm_opts){.weight = in[1], .bias = in[2]}))
CALL(layer_norm, ds_layer_norm(in[0], ds_ndim(in[1]), in[1], in[2], 0))
CALL(layer_norm_plain, ds_layer_norm(in[0], 1, NULL, NULL, 1e-3))
CALL(rms_norm, ds_rms_norm(in[0], ds_ndim(in[1]), in[1], 0))
CALL(rms_norm_plain, ds_rms_norm(in[0], 1, NULL, 1e-3))
CALL(sum_02, ds_sum_with(in[0], (ds_reduce_opts){.dims = ds_shape(0, -1)}))
CALL(mean_1, ds_mean_with(in[0], (ds_reduce_opts){.dims = ds_shape(1), .keepdim = true}))
CALL(max, ds_max(in[0], 1, false))
CALL(max_keep, ds_max(in[0], -1, true))
CALL(reshape, ds_reshape(in[0], ds_shape(-1, 6)))
CALL(reshape_view, ds_reshape(ds_slice(in[0], 0, 1, 3), ds_shape(2, 3, 2, 2)))
CALL(reshape_copy, ds_reshape(ds_transpose(in[0], 0, 2), ds_shape(6, 4)))
CALL(flatten, ds_flatten_range(in[0], 0, 1))
CALL(permute, ds_permute(in[0], ds_shape(2, 0, 1)))
CALL(slice, ds_slice(in[0], 1, 1, 3))
CALL(select, ds_select(in[0], 1, -1))
CALL(expand, ds_expand(in[0], ds_shape(2, 3, 4)))
CALL(unsqueeze, ds_unsqueeze(in[0], 1))
CALL(squeeze, ds_squeeze(in[0], 1))
CALL(cat, ds_cat(in, 3, 1))
CALL(cat_same, ds_cat((ds_tensor *[]){in[0], in[1], in[0]}, 3, 0))
CALL(stack, ds_stack(in, 2, -1))
CALL(embedding, ds_embedding(in[0], in[1], -1))
CALL(gather, ds_gather(in[0], 1, in[1]))

/* [S,k] slots, all different, of which every seventh is none; on x's device */
static ds_tensor *case_slots(ds_tensor *x, int64_t s, int64_t k)
{
    int64_t p[4096];
    if (s * k > 4096) return NULL;
    for (int64_t i = 0; i < s * k; i++) p[i] = i % 7 == 3 ? -1 : (i * 5 + 1) % (s * k);
    return ds_to(ds_from_data(DS_I64, ds_shape(s, k), p), ds_device_of(x), DS_I64);
}

/* Beside 16 bits weights are float32. */
static ds_tensor *call_combine_weighted(ds_tensor **in)
{
    ds_tensor *w = ds_dtype_of(in[1]) == DS_F64 ? in[1] : ds_cast(in[1], DS_F32);
    return w ? ds_combine(in[0], case_slots(in[0], ds_size(in[0], 0) / 2, 2), w) : NULL;
}

CALL(dispatch,
     ds_dispatch(in[0], case_slots(in[0], ds_size(in[0], 0), 2), 2 * ds_size(in[0], 0) + 1))
CALL(combine, ds_combine(in[0], case_slots(in[0], ds_size(in[0], 0) / 2, 2), NULL))
CALL(exchange_rows,
     ds_exchange_rows(in[0], NULL, ds_shape_of(in[0]).d, ds_shape_of(in[0]).d)) /* all to itself */
CALL(dropout, (ds_seed(7), ds_dropout(in[0], 0.3, true)))
CALL(attention, ds_attention(in[0], in[1], in[2]))
CALL(attention_causal,
     ds_attention_with(in[0], in[1], in[2], (ds_attention_opts){.causal = true, .scale = 0.4}))
CALL(attention_mask, ds_attention_with(in[0], in[1], in[2], (ds_attention_opts){.mask = in[3]}))

CALL(attention_gqa, ds_attention_with(in[0], in[1], in[2],
                                      (ds_attention_opts){.causal = true, .enable_gqa = true}))
CALL(attention_gqa_mask,
     ds_attention_with(in[0], in[1], in[2], (ds_attention_opts){.mask = in[3], .enable_gqa = true}))

CALL(attention_qkvpacked, ds_attention_qkvpacked(in[0], 2, (ds_attention_opts){.causal = true}))

/* cos and sin of positions; beside 16 bits they are float32. */
static ds_tensor *rotary_table(ds_tensor *angle, double shift)
{
    ds_tensor *t = ds_zeros(DS_F64, ds_shape_of(angle)), *from = ds_cast(angle, DS_F64);
    const double *a = from ? ds_data(from) : NULL;
    double *p = t ? ds_data_mut(t) : NULL;
    for (int64_t i = 0; a && p && i < ds_numel(t); i++) p[i] = cos(3 * a[i] + shift);
    ds_dtype dtype = ds_dtype_of(angle) == DS_F64 ? DS_F64 : DS_F32;
    return a && p ? ds_to(t, ds_device_of(angle), dtype) : NULL;
}

#define QUARTER_TURN 1.57079632679489661923
CALL(rotary,
     ds_rotary_embedding(in[0], rotary_table(in[1], 0), rotary_table(in[1], -QUARTER_TURN), false))
CALL(rotary_interleaved,
     ds_rotary_embedding(in[0], rotary_table(in[1], 0), rotary_table(in[1], -QUARTER_TURN), true))

/* The gradient of a sum goes to a leaf and to a node, and the leaf's is added
 * to before the node has read. */
static ds_tensor *call_shared(ds_tensor **in)
{
    ds_tensor *older = ds_sigmoid(in[1]), *newer = ds_scale(in[0], 2);
    return ds_add(ds_add(in[0], older), newer);
}

/* ---- one element of a pointwise op ------------------------------------------------------------------- */

#define ELEMENT(f, ...) \
    static double element_##f(const double *x) { return __VA_ARGS__; }

ELEMENT(add, x[0] + x[1])
ELEMENT(sub, x[0] - x[1])
ELEMENT(mul, x[0] * x[1])
ELEMENT(div, x[0] / x[1])
ELEMENT(add_scaled, x[0] - 0.5 * x[1])
ELEMENT(scale, -2.5 * x[0])
ELEMENT(shift, x[0] + 0.75)
ELEMENT(neg, -x[0])
ELEMENT(cube, x[0] * x[0] * x[0])
ELEMENT(root, sqrt(x[0]))
ELEMENT(one, x[0] * 0 + 1)
ELEMENT(same, x[0])
ELEMENT(where, x[0] != 0 ? x[1] : x[2])
ELEMENT(abs, fabs(x[0]))
ELEMENT(exp, exp(x[0]))
ELEMENT(log, log(x[0]))
ELEMENT(sqrt, sqrt(x[0]))
ELEMENT(relu, x[0] > 0 ? x[0] : 0)
ELEMENT(gelu, 0.5 * x[0] * (1 + erf(x[0] / sqrt(2))))
ELEMENT(gelu_tanh,
        0.5 * x[0] *
            (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x[0] + 0.044715 * x[0] * x[0] * x[0]))))
ELEMENT(silu, x[0] / (1 + exp(-x[0])))
ELEMENT(sigmoid, 1 / (1 + exp(-x[0])))
ELEMENT(tanh, tanh(x[0]))
ELEMENT(square, x[0] * x[0])
ELEMENT(square_of_difference, (x[0] - x[1]) * (x[0] - x[1]))

/* ---- operations of a product, a convolution, attention ----------------------------------------------- */

static double flops_matmul(ds_tensor **in, ds_tensor *y)
{
    return 2.0 * (double)ds_numel(y) * (double)ds_size(in[0], -1);
}

static double flops_conv2d(ds_tensor **in, ds_tensor *y)
{
    return 2.0 * (double)ds_numel(y) * (double)ds_numel(in[1]) / (double)ds_size(in[1], 0);
}

static double flops_conv_transpose2d(ds_tensor **in, ds_tensor *y)
{
    (void)y;
    return 2.0 * (double)ds_numel(in[0]) * (double)ds_numel(in[1]) / (double)ds_size(in[1], 0);
}

static double flops_attention(ds_tensor **in, ds_tensor *y)
{
    return 4.0 * (double)ds_numel(y) * (double)ds_size(in[1], -2);
}

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
