/* device/cuda/table.c: the entries of kernels.h that CUDA has. An op whose
 * entry is missing refuses by name.
 *
 * A fusion that is missing is no refusal: its op runs the composition of core
 * kernels. Ops reach these tables through dsi_device, which may have others in
 * their place that note what runs (device/observe.h).
 * SPDX-License-Identifier: MIT */
#include "driver.h"
#include "launch.h"

/* clang-format off */
const dsi_kernels dsi_cuda_kernels = {
    .copy = dsi_cuda_copy,
    .fill = dsi_cuda_fill,

    .unary = dsi_cuda_unary,
    .unary_dx = dsi_cuda_unary_dx,
    .binary = dsi_cuda_binary,
    .compare = dsi_cuda_compare,
    .affine = dsi_cuda_affine,
    .where = dsi_cuda_where,

    .matmul = dsi_cuda_matmul,

    .conv2d = dsi_cuda_conv2d,
    .conv2d_dx = dsi_cuda_conv2d_dx,
    .conv2d_dw = dsi_cuda_conv2d_dw,

    .max_pool2d = dsi_cuda_max_pool2d,
    .max_pool2d_dx = dsi_cuda_max_pool2d_dx,
    .avg_pool2d = dsi_cuda_avg_pool2d,
    .avg_pool2d_dx = dsi_cuda_avg_pool2d_dx,

    .softmax = dsi_cuda_softmax,
    .softmax_dx = dsi_cuda_softmax_dx,
    .cross_entropy = dsi_cuda_cross_entropy,
    .cross_entropy_dx = dsi_cuda_cross_entropy_dx,
    .cross_entropy_part_dx = dsi_cuda_cross_entropy_part_dx,

    .batch_stats = dsi_cuda_batch_stats,
    .batch_norm = dsi_cuda_batch_norm,
    .batch_norm_dx = dsi_cuda_batch_norm_dx,
    .layer_norm = dsi_cuda_layer_norm,
    .layer_norm_dx = dsi_cuda_layer_norm_dx,

    .attention = dsi_cuda_attention,
    .attention_dx = dsi_cuda_attention_dx,

    .reduce = dsi_cuda_reduce_op,
    .norm = dsi_cuda_norm_of,

    .gather_rows = dsi_cuda_gather_rows,
    .scatter_rows = dsi_cuda_scatter_rows,
    .gather = dsi_cuda_gather,
    .scatter_add = dsi_cuda_scatter_add,
    .dispatch = dsi_cuda_dispatch,
    .combine = dsi_cuda_combine,
    .combine_dw = dsi_cuda_combine_dw,
    .group_rows = dsi_cuda_group_rows,
    .group_matmul = dsi_cuda_group_matmul,
    .group_matmul_dw = dsi_cuda_group_matmul_dw,

    .optimizer = dsi_cuda_optimizer_step,
    .step_result = dsi_cuda_step_result_of,
    .loss_scale = dsi_cuda_loss_scale_of,
    .halves_join = dsi_cuda_halves_join,
    .halves_split = dsi_cuda_halves_split,
};

const dsi_fusions dsi_cuda_fusions = {
    .relu_max_pool2d = dsi_cuda_relu_max_pool2d,
    .relu_max_pool2d_dx = dsi_cuda_relu_max_pool2d_dx,
    .conv2d_dw_db = dsi_cuda_conv2d_dw_db,
    .conv2d_back_pooled = dsi_cuda_conv2d_back_pooled,
    .matmul_sums = dsi_cuda_matmul_sums,
    .sum_channels = dsi_cuda_sum_channels,
    .batch_norm_stats = dsi_cuda_batch_norm_stats,
    .batch_norm_relu = dsi_cuda_batch_norm_relu,
    .batch_norm_relu_dx = dsi_cuda_batch_norm_relu_dx,
    .relu_dx_of_sum = dsi_cuda_relu_dx_of_sum,
    .mul_add = dsi_cuda_mul_add,
    .mask_scale = dsi_cuda_mask_scale,
    .dropout = dsi_cuda_dropout,
    .attention_dropout = dsi_cuda_attention_dropout,
    .attention_dropout_dx = dsi_cuda_attention_dropout_dx,
    .arange = dsi_cuda_arange,
    .attention_step = dsi_cuda_attention_step_of,
    .choose_token = dsi_cuda_choose_token,
    .rms_norm_shifted = dsi_cuda_rms_norm_shifted,
    .gather_batch = dsi_cuda_gather_batch,
    .route = dsi_cuda_route,
    .topk = dsi_cuda_topk,
    .noise = dsi_cuda_noise,
};
/* clang-format on */
