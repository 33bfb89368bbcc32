/* tests/ops/cases_more.h: cases of the list of cases.h: activations, margins,
 * pools of volumes and places of images, which are made of other ops.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "calls.h"

#include <deepspeed/ops_math.h>

/* int64 [3,4] of -1 and 1, on x's device */
static ds_tensor *alternating(ds_tensor *x)
{
    static const int64_t signs[] = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
    return ds_to(ds_from_data(DS_I64, ds_shape(3, 4), signs), ds_device_of(x), DS_I64);
}

CALL(softsign, ds_softsign(in[0]))
CALL(tanhshrink, ds_tanhshrink(in[0]))
CALL(hardshrink, ds_hardshrink(in[0], 0))
CALL(softshrink, ds_softshrink(in[0], 0))
CALL(threshold, ds_threshold(in[0], 0.125, 0.25))
CALL(glu, ds_glu(in[0], 1))
CALL(softmin, ds_softmin(in[0], 1))
CALL(normalize, ds_normalize(in[0], 2, 1, 0))
CALL(local_response_norm, ds_local_response_norm(in[0], 3, .alpha = 0.5))
CALL(hinge, ds_hinge_embedding_loss(in[0], alternating(in[0]), 0, DS_MEAN))
CALL(ranking, ds_margin_ranking_loss(in[0], in[1], alternating(in[0]), 0, DS_MEAN))
CALL(cosine_embedding,
     ds_cosine_embedding_loss(in[0], in[1], ds_select(alternating(in[0]), 1, 0), 0, DS_MEAN))
CALL(soft_margin, ds_soft_margin_loss(in[0], alternating(in[0]), DS_MEAN))
CALL(triplet,
     ds_triplet_margin_loss(in[0], in[1], in[2], (ds_triplet_margin_loss_opts){.swap = true}))
CALL(multi_margin, ds_multi_margin_loss(in[0], in[1], (ds_multi_margin_loss_opts){.p = 2}))
CALL(multilabel_margin, ds_multilabel_margin_loss(in[0], in[1], DS_MEAN))
CALL(multilabel_soft, ds_multilabel_soft_margin_loss(in[0], alternating(in[0]), NULL, DS_MEAN))
CALL(gaussian, ds_gaussian_nll_loss(in[0], in[1], in[2], (ds_gaussian_nll_loss_opts){.full = true}))
CALL(poisson, ds_poisson_nll_loss(in[0], in[1], (ds_poisson_nll_loss_opts){.full = true}))
CALL(distance, ds_pairwise_distance(in[0], in[1], 0, 0, true))
CALL(ctc, ds_ctc_loss(in[0], ds_full(DS_I64, ds_shape(2, 2), 1), ds_full(DS_I64, ds_shape(2), 5),
                      ds_full(DS_I64, ds_shape(2), 2), (ds_ctc_loss_opts){0}))
CALL(max_pool3d, ds_max_pool3d(in[0], ds_shape(2), .stride = ds_shape(1)))
CALL(avg_pool3d, ds_avg_pool3d(in[0], ds_shape(2), .divisor = 3))
CALL(adaptive_avg3d, ds_adaptive_avg_pool3d(in[0], 2, 2, 2))
CALL(adaptive_max3d, ds_adaptive_max_pool3d(in[0], 2, 2, 2, NULL))
CALL(adaptive_avg1d, ds_adaptive_avg_pool1d(in[0], 2))
CALL(adaptive_max1d, ds_adaptive_max_pool1d(in[0], 2, NULL))
CALL(max_unpool, ds_max_unpool(in[0], in[1], ds_shape(9)))
CALL(pixel_shuffle, ds_pixel_shuffle(in[0], 2))
CALL(pixel_unshuffle, ds_pixel_unshuffle(in[0], 2))
CALL(channel_shuffle, ds_channel_shuffle(in[0], 2))
CALL(unfold, ds_unfold(in[0], 2, .padding = 1))
CALL(fold, ds_fold(in[0], 3, 4, 2))
CALL(unflatten, ds_unflatten(in[0], 1, ds_shape(2, 2)))
CALL(grid_sample, ds_grid_sample(in[0], in[1]))
CALL(grid_reflect,
     ds_grid_sample_with(in[0], in[1], (ds_grid_sample_opts){.padding_mode = DS_GRID_REFLECTION}))
CALL(all_reduce_sum, ds_all_reduce_sum(in[0], NULL))
CALL(affine_grid, ds_affine_grid(in[0], 2, 3, true))
CALL(square, ds_square(in[0]))
CALL(reciprocal, ds_reciprocal(in[0]))
CALL(tan, ds_tan(in[0]))
CALL(sinh, ds_sinh(in[0]))
CALL(cosh, ds_cosh(in[0]))
CALL(log2, ds_log2(in[0]))
CALL(log10, ds_log10(in[0]))
CALL(lerp, ds_lerp(in[0], in[1], 0.75))
CALL(addcmul, ds_addcmul(in[0], in[1], in[2], -0.5))
CALL(addcdiv, ds_addcdiv(in[0], in[1], in[2], -0.5))
CALL(logaddexp, ds_logaddexp(in[0], in[1]))
CALL(nan_to_num, ds_nan_to_num(in[0], 0))
CALL(min, ds_min(in[0], 1, true))
CALL(kthvalue, ds_kthvalue(in[0], 2, 1, false, NULL))
CALL(median, ds_median(in[0], 2, false, NULL))
CALL(quantile, ds_quantile(in[0], 0.3, 2, true))
CALL(masked_select, ds_masked_select(in[1], in[0]))
CALL(diag, ds_diag(in[0], -1))
CALL(diagonal, ds_diagonal(in[0], 1, 2, 0))
CALL(trace, ds_trace(in[0]))
CALL(outer, ds_outer(in[0], in[1]))
CALL(dot, ds_dot(in[0], in[1]))
CALL(movedim, ds_movedim(in[0], 0, -1))

/* clang-format off */
#define CASES_MORE \
    {"div", "softsign", call_softsign, .in = {X(2, 3, 4)}}, \
    {"tanh", "tanhshrink", call_tanhshrink, .in = {X(2, 3, 4)}}, \
    {"where", "hardshrink", call_hardshrink, .in = {X(2, 3, 4)}}, \
    {"clamp", "softshrink", call_softshrink, .in = {X(2, 3, 4)}}, \
    {"where", "threshold", call_threshold, .in = {X(2, 3, 4)}}, \
    {"sigmoid", "glu", call_glu, .in = {X(2, 3, 4)}}, \
    {"softmax", "softmin", call_softmin, .in = {X(2, 3, 4)}}, \
    {"div", "normalize", call_normalize, .in = {X(2, 3, 4)}}, \
    {"pow", "local_response_norm", call_local_response_norm, .in = {X(3, 2, 4, 3)}}, \
    {"where", "hinge_embedding_loss", call_hinge, .in = {X(2, 3, 4)}}, \
    {"relu", "margin_ranking_loss", call_ranking, .in = {X(2, 3, 4), X(2, 3, 4)}}, \
    {"where", "cosine_embedding_loss", call_cosine_embedding, .in = {X(2, 3, 4), X(2, 3, 4)}}, \
    {"logsigmoid", "soft_margin_loss", call_soft_margin, .in = {X(2, 3, 4)}}, \
    {"minimum", "triplet_margin_loss", call_triplet, .in = {X(2, 3, 4), X(2, 3, 4), X(2, 3, 4)}}, \
    {"gather", "multi_margin_loss", call_multi_margin, .in = {X(2, 3, 4), LABEL(4, 1, 3)}}, \
    {"scatter_add", "multilabel_margin_loss", call_multilabel_margin, .in = {X(2, 3, 4), LABEL(4, 2, 3, 4)}}, \
    {"logsigmoid", "multilabel_soft_margin_loss", call_multilabel_soft, .in = {X(2, 3, 4)}}, \
    {"log", "gaussian_nll_loss", call_gaussian, .in = {X(2, 3, 4), X(2, 3, 4), RANGE(0.5, 2, 2, 3, 4)}}, \
    {"exp", "poisson_nll_loss", call_poisson, .in = {X(2, 3, 4), RANGE(2, 4, 2, 3, 4)}}, \
    {"vecdot", "pairwise_distance", call_distance, .in = {X(2, 3, 4), X(2, 3, 4)}}, \
    {"logsumexp", "ctc_loss", call_ctc, .in = {RANGE(-3, 0, 3, 5, 2, 3)}}, \
    {"max_pool2d", "max_pool3d", call_max_pool3d, .in = {X(5, 1, 2, 3, 3, 4)}}, \
    {"avg_pool2d", "avg_pool3d", call_avg_pool3d, .in = {X(4, 2, 3, 3, 4)}}, \
    {"adaptive_avg_pool2d", "adaptive_avg_pool3d", call_adaptive_avg3d, .in = {X(4, 2, 3, 3, 4)}}, \
    {"max", "adaptive_max_pool3d", call_adaptive_max3d, .in = {X(4, 2, 3, 3, 4)}}, \
    {"adaptive_avg_pool2d", "adaptive_avg_pool1d", call_adaptive_avg1d, .in = {X(2, 3, 4)}}, \
    {"max", "adaptive_max_pool1d", call_adaptive_max1d, .in = {X(2, 3, 4)}}, \
    {"scatter", "max_unpool", call_max_unpool, .in = {X(3, 1, 2, 3), LABEL(9, 3, 1, 2, 3)}}, \
    {"permute", "pixel_shuffle", call_pixel_shuffle, .in = {X(3, 4, 2, 3)}}, \
    {"permute", "pixel_unshuffle", call_pixel_unshuffle, .in = {X(3, 1, 2, 4)}}, \
    {"permute", "channel_shuffle", call_channel_shuffle, .in = {X(3, 1, 2, 4)}}, \
    {"embedding", "unfold", call_unfold, .in = {X(3, 1, 3, 4)}}, \
    {"index_add", "fold", call_fold, .in = {X(3, 2, 8, 6)}}, \
    {"reshape", "unflatten", call_unflatten, .in = {X(2, 3, 4)}}, \
    {"gather", "grid_sample", call_grid_sample, .in = {X(4, 1, 2, 3, 4), RANGE(-1.2, 1.2, 4, 1, 2, 3, 2)}}, \
    {"floor", "grid_sample, reflection", call_grid_reflect, .in = {X(4, 1, 2, 3, 4), RANGE(-1.2, 1.2, 4, 1, 2, 3, 2)}}, \
    {"all_reduce_sum", "", call_all_reduce_sum, .in = {X(2, 3, 4)}}, \
    {"matmul", "affine_grid", call_affine_grid, .in = {X(3, 2, 2, 3)}}, \
    {"mul", "square", call_square, .in = {X(2, 3, 4)}}, \
    {"div", "reciprocal", call_reciprocal, .in = {RANGE(0.5, 2, 2, 3, 4)}}, \
    {"div", "tan", call_tan, .in = {X(2, 3, 4)}}, \
    {"expm1", "sinh", call_sinh, .in = {X(2, 3, 4)}}, \
    {"exp", "cosh", call_cosh, .in = {X(2, 3, 4)}}, \
    {"log", "log2", call_log2, .in = {RANGE(0.5, 2, 2, 3, 4)}}, \
    {"log", "log10", call_log10, .in = {RANGE(0.5, 2, 2, 3, 4)}}, \
    {"add", "lerp", call_lerp, .in = {X(2, 3, 4), X(1, 4)}}, \
    {"add", "addcmul", call_addcmul, .in = {X(2, 3, 4), X(1, 4), X(2, 3, 1)}}, \
    {"add", "addcdiv", call_addcdiv, .in = {X(2, 3, 4), X(1, 4), RANGE(0.5, 2, 2, 3, 1)}}, \
    {"log1p", "logaddexp", call_logaddexp, .in = {X(2, 3, 4), X(1, 4)}}, \
    {"where", "nan_to_num", call_nan_to_num, .in = {X(2, 3, 4)}}, \
    {"max", "min", call_min, .in = {X(3, 2, 3, 4)}}, \
    {"gather", "kthvalue", call_kthvalue, .in = {X(3, 2, 3, 4)}}, \
    {"where", "median", call_median, .in = {X(3, 2, 3, 4)}}, \
    {"where", "quantile", call_quantile, .in = {X(3, 2, 3, 4)}}, \
    {"index_select", "masked_select", call_masked_select, .in = {MASK(2, 3, 4), X(2, 3, 4)}}, \
    {"where", "diag", call_diag, .in = {X(1, 4)}}, \
    {"index_select", "diagonal", call_diagonal, .in = {X(3, 2, 3, 4)}}, \
    {"index_select", "trace", call_trace, .in = {X(2, 3, 4)}}, \
    {"mul", "outer", call_outer, .in = {X(1, 3), X(1, 4)}}, \
    {"vecdot", "dot", call_dot, .in = {X(1, 4), X(1, 4)}}, \
    {"permute", "movedim", call_movedim, .in = {X(3, 2, 3, 4)}},
/* clang-format on */
