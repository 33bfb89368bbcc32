/* tests/ops/calls.h: what the rows of cases.h consist of: types, calls, and
 * formulas for one element.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "ops/groups.h"

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
CALL1(sin)
CALL1(cos)
CALL1(erf)
CALL1(expm1)
CALL1(log1p)
CALL1(rsqrt)
CALL1(floor)
CALL1(ceil)
CALL1(round)
CALL1(sign)
CALL1(hardswish)
CALL1(hardsigmoid)
CALL1(mish)
CALL1(selu)
CALL1(logsigmoid)
CALL2(maximum)
CALL2(remainder)
CALL2(minimum)
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
CALL(masked_fill, ds_masked_fill(in[0], in[1], -2))
CALL(leaky_relu, ds_leaky_relu(in[0], 0.2))
CALL(elu, ds_elu(in[0], 1.5))
CALL(celu, ds_celu(in[0], 2))
CALL(softplus, ds_softplus(in[0], 0, 0))
CALL(softplus_beta, ds_softplus(in[0], 2, 3))
CALL(clamp, ds_clamp(in[0], -0.5, 0.75))
CALL(clamp_low, ds_clamp(in[0], 0.125, INFINITY))
CALL(clamp_tensors, ds_clamp_tensors(in[0], in[1], in[2]))
CALL(clamp_high, ds_clamp_tensors(in[0], NULL, in[1]))
CALL(cast, ds_cast(ds_cast(in[0], DS_F32), ds_dtype_of(in[0])))
CALL(contiguous, ds_contiguous(ds_transpose(in[0], 0, 1)))
CALL(linear, ds_linear(in[0], in[1], in[2]))
CALL(addmm, ds_addmm(in[0], in[1], in[2]))
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
CALL(conv_transpose2d_point, ds_conv_transpose2d(in[0], in[1], in[2], .dilation = 3,
                                                 .output_padding = 2, .output_padding_w = 1))
CALL(conv_transpose1d,
     ds_conv_transpose1d(in[0], in[1], in[2], .stride = 2, .padding = 1, .output_padding = 1))
CALL(conv_transpose3d,
     ds_conv_transpose3d(in[0], in[1], in[2], .stride = ds_shape(2, 1, 2),
                         .padding = ds_shape(1, 0, 1), .output_padding = ds_shape(1, 0, 0),
                         .groups = 2, .dilation = ds_shape(1, 2, 1)))
CALL(interpolate_nearest, ds_interpolate(in[0], .scale_factor = 1.7))
CALL(interpolate_linear, ds_interpolate(in[0], .size = ds_shape(9), .mode = DS_LINEAR))
CALL(interpolate_bilinear, ds_interpolate(in[0], .scale_factor = 2, .mode = DS_BILINEAR))
CALL(interpolate_corners,
     ds_interpolate(in[0], .size = ds_shape(3, 7), .mode = DS_BILINEAR, .align_corners = true))
CALL(interpolate_area3, ds_interpolate(in[0], .size = ds_shape(3, 2, 4), .mode = DS_AREA))
CALL(interpolate_exact, ds_interpolate(in[0], .scale_factor = 1.7, .mode = DS_NEAREST_EXACT))
CALL(interpolate_bicubic, ds_interpolate(in[0], .scale_factor = 1.5, .mode = DS_BICUBIC))
CALL(interpolate_antialias,
     ds_interpolate(in[0], .scale_factor = 0.4, .mode = DS_BILINEAR, .antialias = true))
CALL(interpolate_antialias_cubic,
     ds_interpolate(in[0], .size = ds_shape(3, 6), .mode = DS_BICUBIC, .antialias = true))
CALL(interpolate_trilinear, ds_interpolate(in[0], .scale_factor = 2, .mode = DS_TRILINEAR))
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
static ds_tensor *linear_cross_entropy_of(ds_tensor **in, double softcap)
{
    ds_tensor *labels = in[2] ? ds_to(ds_clone(in[2]), (ds_device){DS_CPU, 0}, DS_I64) : NULL;
    int64_t *p = labels ? ds_data_mut(labels) : NULL;
    if (p && ds_numel(labels) > 2) p[2] = -100;
    if (labels) labels = ds_to(labels, ds_device_of(in[2]), DS_I64);
    ds_linear_cross_entropy_opts o = {.softcap = softcap};
    ds_tensor *loss = ds_linear_cross_entropy_with(in[0], in[1], labels, o);
    return loss ? ds_cast(loss, ds_dtype_of(in[0])) : NULL;
}
CALL(linear_cross_entropy, linear_cross_entropy_of(in, 0))
CALL(linear_cross_entropy_softcap, linear_cross_entropy_of(in, 0.7))

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
/* Rows 0 .. R/2 - 1 of the first of three groups, none of the second. */
static ds_tensor *call_grouped_linear(ds_tensor **in)
{
    int64_t rows = ds_size(in[0], 0), begin[] = {0, rows / 2, rows / 2, rows};
    ds_tensor *b = ds_to(ds_from_data(DS_I64, ds_shape(4), begin), ds_device_of(in[0]), DS_I64);
    return dsi_grouped_linear(in[0], b, in + 1, 3);
}
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

CALL(attention_softcap,
     ds_attention_with(in[0], in[1], in[2],
                       (ds_attention_opts){.softcap = 0.5, .causal = true, .enable_gqa = true}))
CALL(attention_softcap_window,
     ds_attention_with(in[0], in[1], in[2],
                       (ds_attention_opts){.softcap = 0.5, .causal = true, .window = 2}))

CALL(attention_qkvpacked, ds_attention_qkvpacked(in[0], 2, (ds_attention_opts){.causal = true}))
/* Views of one projection [N,L,3,H,D], as models have them; the heads are
 * joined
 * again. */
static ds_tensor *call_attention_projected(ds_tensor **in)
{
    ds_tensor *x[3];
    for (int i = 0; i < 3; i++) x[i] = ds_transpose(ds_select(in[0], 2, i), 1, 2);
    ds_tensor *y = ds_attention_with(x[0], x[1], x[2], (ds_attention_opts){.causal = true});
    return ds_flatten(ds_transpose(y, 1, 2), 2);
}

/* cos and sin of positions; beside 16 bits they are float32. */
static ds_tensor *rotary_table(ds_tensor *angle, double shift)
{
    ds_tensor *t = ds_to(ds_zeros(DS_F64, ds_shape_of(angle)), (ds_device){DS_CPU, 0}, DS_F64);
    ds_tensor *from = ds_cast(angle, DS_F64);
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

CALL(amax_all, ds_amax(in[0]))
CALL(amax_02, ds_amax_with(in[0], (ds_reduce_opts){.dims = ds_shape(0, 2)}))
CALL(amin_1, ds_amin_with(in[0], (ds_reduce_opts){.dims = ds_shape(1), .keepdim = true}))
CALL(var_0, ds_var_with(in[0], (ds_var_opts){.dims = ds_shape(0)}))
CALL(var_1, ds_var_with(in[0], (ds_var_opts){.dims = ds_shape(1)}))
CALL(std_all, ds_std_with(in[0], (ds_var_opts){.correction = DS_ZERO}))
CALL(norm_rows, ds_norm_with(in[0], (ds_norm_opts){.dims = ds_shape(-1)}))
CALL(norm_2, ds_norm_with(in[0], (ds_norm_opts){.dims = ds_shape(1)}))
CALL(norm_3, ds_norm_with(in[0], (ds_norm_opts){.p = 3, .dims = ds_shape(0)}))
CALL(norm_inf, ds_norm_with(in[0], (ds_norm_opts){.p = INFINITY, .dims = ds_shape(-1)}))
CALL(logsumexp, ds_logsumexp(in[0], (ds_reduce_opts){.dims = ds_shape(1)}))
CALL(cumsum, ds_cumsum(in[0], 1))
CALL(cumprod, ds_cumprod(in[0], 1))
CALL(prod_all, ds_prod(in[0]))
CALL(prod_1, ds_prod_with(in[0], (ds_reduce_opts){.dims = ds_shape(1), .keepdim = true}))
CALL(prelu, ds_prelu(in[0], in[1]))
CALL(bilinear, ds_bilinear(in[0], in[1], in[2], in[3]))
CALL(conv3d, ds_conv3d(in[0], in[1], in[2], .stride = ds_shape(2, 1, 2),
                       .padding = ds_shape(1, 0, 1), .dilation = ds_shape(1), .groups = 2))
CALL(adaptive_max, ds_adaptive_max_pool2d(in[0], 3, 2, NULL))
CALL(embedding_bag, ds_embedding_bag(in[0], in[1], 2, NULL))
CALL(embedding_bag_max, ds_embedding_bag(in[0], in[1], 2, NULL, .mode = DS_BAG_MAX))
CALL(embedding_bag_sum,
     ds_embedding_bag(in[0], in[1], -1, NULL, .per_sample_weights = in[2], .mode = DS_BAG_SUM))
CALL(repeat_interleave_tensor,
     ds_repeat_interleave_tensor(in[0], ds_from_data(DS_I64, ds_shape(3), (int64_t[]){2, 0, 3}), 0))
CALL(sort, ds_sort(in[0], 1, true, NULL))
CALL(topk, ds_topk(in[0], 3, -1, false, NULL))
CALL(index_select, ds_index_select(in[0], 1, in[1]))
CALL(index_add, ds_index_add(in[0], 1, in[2], in[1], 0.5))
CALL(scatter, ds_scatter(in[0], 1, in[2], in[1]))
CALL(scatter_add, ds_scatter_add(in[0], 1, in[2], in[1]))
CALL(scatter_multiply, ds_scatter_multiply(in[0], 1, in[2], in[1]))
CALL(flip, ds_flip(in[0], ds_shape(0, -1)))
CALL(roll, ds_roll(in[0], ds_shape(1, -2), ds_shape(0, 1)))
CALL(repeat, ds_repeat(in[0], ds_shape(2, 1, 3)))
CALL(repeat_interleave, ds_repeat_interleave(in[0], 2, 1))
CALL(pad, ds_pad_with(in[0], ds_shape(1, 2, 0, 1), (ds_pad_opts){.value = 0.5}))
CALL(pad_cut, ds_pad(in[0], ds_shape(-1, 2)))
CALL(pad_reflect_cut, ds_pad_with(in[0], ds_shape(2, -2), (ds_pad_opts){.mode = DS_PAD_REFLECT}))
CALL(pad_reflect, ds_pad_with(in[0], ds_shape(2, 1), (ds_pad_opts){.mode = DS_PAD_REFLECT}))
CALL(tril, ds_tril(in[0], 1))
CALL(triu, ds_triu(in[0], 0))
CALL(slice_negative, ds_slice(in[0], 1, -3, DS_END))
CALL(einsum, ds_einsum("bij,bkj->bik", in, 2))
CALL(einsum_dots, ds_einsum("...ij,jk", in, 2))
CALL(einsum_diagonal, ds_einsum("iji->j", in, 1))
CALL(einsum_chain, ds_einsum("ij,jk,kl->li", in, 3))
CALL(l1_loss, ds_l1_loss(in[0], in[1]))
CALL(smooth_l1_loss, ds_smooth_l1_loss(in[0], in[1], 0.5, DS_SUM))
CALL(huber_loss, ds_huber_loss(in[0], in[1], 0.5, DS_NONE))
CALL(kl_div, ds_kl_div(in[0], in[1], (ds_kl_div_opts){.batchmean = true}))
CALL(binary_cross_entropy, ds_binary_cross_entropy(in[0], in[1]))
CALL(binary_logits, ds_binary_cross_entropy_with_logits(in[0], in[1],
                                                        (ds_binary_cross_entropy_opts){
                                                            .weight = in[2], .pos_weight = in[3]}))
CALL(nll_loss, ds_nll_loss_with(in[0], in[1], (ds_cross_entropy_opts){.weight = in[2]}))
CALL(cross_entropy_soft,
     ds_cross_entropy_with(in[0], in[1],
                           (ds_cross_entropy_opts){.weight = in[2], .label_smoothing = 0.1}))
CALL(cosine_similarity, ds_cosine_similarity(in[0], in[1], 1, 0))

/* A leaf and a node get the same gradient of a sum, and the leaf's is added to
 * before the node has read it. */
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
ELEMENT(sin, sin(x[0]))
ELEMENT(cos, cos(x[0]))
ELEMENT(erf, erf(x[0]))
ELEMENT(expm1, expm1(x[0]))
ELEMENT(log1p, log1p(x[0]))
ELEMENT(rsqrt, 1 / sqrt(x[0]))
ELEMENT(floor, floor(x[0]))
ELEMENT(ceil, ceil(x[0]))
ELEMENT(round, rint(x[0]))
ELEMENT(sign, (x[0] > 0) - (x[0] < 0))
ELEMENT(hardsigmoid, fmin(fmax(x[0] + 3, 0), 6) / 6)
ELEMENT(hardswish, x[0] * fmin(fmax(x[0] + 3, 0), 6) / 6)
ELEMENT(mish, x[0] * tanh(log1p(exp(x[0]))))
ELEMENT(selu, 1.0507009873554805 * (x[0] > 0 ? x[0] : 1.6732632423543772 * expm1(x[0])))
ELEMENT(logsigmoid, -log1p(exp(-x[0])))
ELEMENT(leaky_relu, x[0] > 0 ? x[0] : 0.2 * x[0])
ELEMENT(elu, x[0] > 0 ? x[0] : 1.5 * expm1(x[0]))
ELEMENT(celu, x[0] > 0 ? x[0] : 2 * expm1(x[0] / 2))
ELEMENT(softplus, log1p(exp(x[0])))
ELEMENT(softplus_beta, 2 * x[0] > 3 ? x[0] : log1p(exp(2 * x[0])) / 2)
ELEMENT(maximum, fmax(x[0], x[1]))
ELEMENT(remainder, x[0] - x[1] * floor(x[0] / x[1]))
ELEMENT(minimum, fmin(x[0], x[1]))
ELEMENT(clamp, fmin(fmax(x[0], -0.5), 0.75))
ELEMENT(clamp_low, fmax(x[0], 0.125))
ELEMENT(clamp_tensors, fmin(fmax(x[0], x[1]), x[2]))
ELEMENT(masked_fill, x[1] != 0 ? -2 : x[0])
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
