/* device/cuda/launch.h: the entries of kernels.h that launch_FAMILY.c has.
 *
 * Their contracts are in device/kernels.h: formula, shapes, dtypes, order of
 * sums. Ops have checked shapes; an entry here refuses only what its kernel
 * cannot do (a dtype, a stride, more elements than it counts), with DS_EINVAL
 * and a message that begins with its name.
 *
 * Invariants: an entry returns when the kernel is queued, not when it has run.
 * DS_OK then says that the driver took it; a bad index is found by the kernel,
 * in the fault flag. An operand that is absent has p NULL. Results have the
 * same bits on every run: how sums are cut depends on shapes, strides and
 * alignment, never on which block runs first.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/kernels.h"

/* launch_copy.c */
ds_status dsi_cuda_copy(dsi_stream *s, dsi_view x, dsi_view y);
/* y = x, of 2 dimensions and of one dtype, lines contiguous, and 0 where y is
 * larger. */
ds_status dsi_cuda_pad(dsi_stream *s, dsi_view x, dsi_view y);
ds_status dsi_cuda_fill(dsi_stream *s, double value, dsi_view y);
ds_status dsi_cuda_arange(dsi_stream *s, double begin, double step, dsi_view y);

/* launch_pointwise.c */
ds_status dsi_cuda_unary(dsi_stream *s, dsi_unary_op op, double p, dsi_view x, dsi_view y);
ds_status dsi_cuda_unary_dx(dsi_stream *s, dsi_unary_op op, double p, dsi_view dy, dsi_view saved,
                            dsi_view dx);
ds_status dsi_cuda_binary(dsi_stream *s, dsi_binary_op op, double alpha, dsi_view a, dsi_view b,
                          dsi_view y);
ds_status dsi_cuda_compare(dsi_stream *s, dsi_compare_op op, dsi_view a, dsi_view b, dsi_view y);
ds_status dsi_cuda_affine(dsi_stream *s, double factor, double term, dsi_view x, dsi_view y);
ds_status dsi_cuda_where(dsi_stream *s, dsi_view c, dsi_view a, dsi_view b, dsi_view y);
ds_status dsi_cuda_mask_scale(dsi_stream *s, double factor, dsi_view x, dsi_view keep, dsi_view y);
ds_status dsi_cuda_relu_dx_of_sum(dsi_stream *s, dsi_view a, dsi_view b, dsi_view y, dsi_view dx);
ds_status dsi_cuda_mul_add(dsi_stream *s, double alpha, dsi_view a, dsi_view b, dsi_view c,
                           dsi_view d, dsi_view y);

/* launch_reduce.c */
ds_status dsi_cuda_reduce_op(dsi_stream *s, dsi_reduce_op op, double factor, dsi_view x, dsi_view y,
                             dsi_view index);
ds_status dsi_cuda_sum_channels(dsi_stream *s, dsi_view x, dsi_view y);
ds_status dsi_cuda_norm_of(dsi_stream *s, double p, int n, const dsi_view *x, dsi_view norm);

/* launch_index.c */
ds_status dsi_cuda_gather_rows(dsi_stream *s, dsi_view w, dsi_view index, dsi_view y);
ds_status dsi_cuda_gather_batch(dsi_stream *s, dsi_view index, dsi_view table, int n,
                                const dsi_view *x, const dsi_view *y);
ds_status dsi_cuda_scatter_rows(dsi_stream *s, dsi_view dy, dsi_view index, int64_t skip,
                                dsi_view dw);
ds_status dsi_cuda_gather(dsi_stream *s, dsi_view x, dsi_view index, dsi_view y);
ds_status dsi_cuda_scatter_add(dsi_stream *s, dsi_view dy, dsi_view index, dsi_view dx);
ds_status dsi_cuda_dispatch(dsi_stream *s, dsi_view x, dsi_view slot, dsi_view w, dsi_view y);
ds_status dsi_cuda_combine(dsi_stream *s, dsi_view x, dsi_view slot, dsi_view w, dsi_view y);
ds_status dsi_cuda_combine_dw(dsi_stream *s, dsi_view dy, dsi_view x, dsi_view slot, dsi_view dw);

/* launch_groups.c */
ds_status dsi_cuda_group_rows(dsi_stream *s, dsi_view id, dsi_view begin, dsi_view row);
ds_status dsi_cuda_group_matmul(dsi_stream *s, dsi_view x, dsi_view begin, const dsi_view *w,
                                dsi_view y);
ds_status dsi_cuda_group_matmul_dw(dsi_stream *s, dsi_view a, dsi_view b, dsi_view begin,
                                   const dsi_view *w);

/* launch_optimizer.c */
ds_status dsi_cuda_optimizer_step(dsi_stream *s, const dsi_optimizer *c, int n, const dsi_span *x);
ds_status dsi_cuda_step_result_of(dsi_stream *s, const dsi_step_limits *c, dsi_view unscale,
                                  dsi_view loss, dsi_view norm, dsi_view result);
ds_status dsi_cuda_loss_scale_of(dsi_stream *s, const dsi_scale_rule *c, dsi_view x);
ds_status dsi_cuda_halves_join(dsi_stream *s, dsi_view p, dsi_view rest, dsi_view x);
ds_status dsi_cuda_halves_split(dsi_stream *s, dsi_view x, dsi_view p, dsi_view rest);

/* launch_gemm.c */
ds_status dsi_cuda_matmul(dsi_stream *s, dsi_view a, dsi_view b, dsi_view bias, dsi_view y);
ds_status dsi_cuda_matmul_sums(dsi_stream *s, dsi_view a, dsi_view b, dsi_view y, dsi_view sums);

/* launch_pool.c */
ds_status dsi_cuda_max_pool2d(dsi_stream *s, const dsi_pool2d *c, dsi_view x, dsi_view y,
                              dsi_view index);
ds_status dsi_cuda_relu_max_pool2d(dsi_stream *s, const dsi_pool2d *c, dsi_view x, dsi_view y,
                                   dsi_view index);
ds_status dsi_cuda_relu_max_pool2d_dx(dsi_stream *s, dsi_view dy, dsi_view max, dsi_view index,
                                      dsi_view dx);
ds_status dsi_cuda_max_pool2d_dx(dsi_stream *s, dsi_view dy, dsi_view index, dsi_view dx);
ds_status dsi_cuda_avg_pool2d(dsi_stream *s, const dsi_pool2d *c, dsi_view x, dsi_view y);
ds_status dsi_cuda_avg_pool2d_dx(dsi_stream *s, const dsi_pool2d *c, dsi_view dy, dsi_view dx);

/* launch_softmax.c */
ds_status dsi_cuda_softmax(dsi_stream *s, bool log, dsi_view x, dsi_view y);
ds_status dsi_cuda_softmax_dx(dsi_stream *s, bool log, dsi_view dy, dsi_view y, dsi_view dx);
ds_status dsi_cuda_cross_entropy(dsi_stream *s, const dsi_cross_entropy *c, dsi_view x,
                                 dsi_view label, dsi_view weight, dsi_view loss, dsi_view lse,
                                 dsi_view divisor);
ds_status dsi_cuda_cross_entropy_dx(dsi_stream *s, const dsi_cross_entropy *c, dsi_view dloss,
                                    dsi_view x, dsi_view label, dsi_view weight, dsi_view lse,
                                    dsi_view divisor, dsi_view dx);
ds_status dsi_cuda_cross_entropy_part_dx(dsi_stream *s, int64_t first, dsi_view x, dsi_view label,
                                         dsi_view lse, dsi_view scale, dsi_view dx);

/* launch_batch_norm.c */
ds_status dsi_cuda_batch_stats(dsi_stream *s, dsi_view x, dsi_view mean, dsi_view var);
ds_status dsi_cuda_batch_norm_stats(dsi_stream *s, double eps, double momentum, dsi_view x,
                                    dsi_view mean, dsi_view rstd, dsi_view running_mean,
                                    dsi_view running_var, dsi_view weight, dsi_view bias,
                                    dsi_view factor, dsi_view term);
ds_status dsi_cuda_batch_norm(dsi_stream *s, dsi_view x, dsi_view mean, dsi_view rstd,
                              dsi_view weight, dsi_view bias, dsi_view y);
ds_status dsi_cuda_batch_norm_dx(dsi_stream *s, bool batch, dsi_view dy, dsi_view x, dsi_view mean,
                                 dsi_view rstd, dsi_view weight, dsi_view dx, dsi_view dw,
                                 dsi_view db);
ds_status dsi_cuda_batch_norm_relu(dsi_stream *s, dsi_view x, dsi_view mean, dsi_view factor,
                                   dsi_view term, dsi_view add, dsi_view y);
ds_status dsi_cuda_batch_norm_relu_dx(dsi_stream *s, dsi_view dy, dsi_view x, dsi_view mean,
                                      dsi_view rstd, dsi_view factor, dsi_view term, dsi_view dx,
                                      dsi_view dw, dsi_view db);

/* launch_normalize.c */
ds_status dsi_cuda_layer_norm(dsi_stream *s, double eps, dsi_view x, dsi_view weight, dsi_view bias,
                              dsi_view y, dsi_view mean, dsi_view rstd);
ds_status dsi_cuda_rms_norm_shifted(dsi_stream *s, double eps, double term, dsi_view x,
                                    dsi_view weight, dsi_view y);
ds_status dsi_cuda_layer_norm_dx(dsi_stream *s, dsi_view dy, dsi_view x, dsi_view weight,
                                 dsi_view mean, dsi_view rstd, dsi_view dx, dsi_view dw,
                                 dsi_view db);

/* launch_conv.c */
ds_status dsi_cuda_conv2d(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b,
                          dsi_view y);
ds_status dsi_cuda_conv2d_dx(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w,
                             dsi_view dx);
ds_status dsi_cuda_conv2d_dw(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x,
                             dsi_view dw);
ds_status dsi_cuda_conv2d_dw_db(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x,
                                dsi_view dw, dsi_view db);
ds_status dsi_cuda_conv2d_back_pooled(dsi_stream *s, const dsi_conv2d *c, const dsi_pooled *dy,
                                      dsi_view x, dsi_view w, dsi_view dx, dsi_view dw, dsi_view db,
                                      bool *done);

/* launch_attention.c */
ds_status dsi_cuda_attention(dsi_stream *s, const dsi_attention *c, dsi_view q, dsi_view k,
                             dsi_view v, dsi_view mask, dsi_view y, dsi_view lse);
ds_status dsi_cuda_attention_dx(dsi_stream *s, const dsi_attention *c, dsi_view dy, dsi_view q,
                                dsi_view k, dsi_view v, dsi_view mask, dsi_view y, dsi_view lse,
                                dsi_view dq, dsi_view dk, dsi_view dv);
ds_status dsi_cuda_attention_dropout(dsi_stream *s, const dsi_philox *random, double p,
                                     const dsi_attention *c, dsi_view q, dsi_view k, dsi_view v,
                                     dsi_view mask, dsi_view y, dsi_view lse);
ds_status dsi_cuda_attention_dropout_dx(dsi_stream *s, const dsi_philox *random, double p,
                                        const dsi_attention *c, dsi_view dy, dsi_view q, dsi_view k,
                                        dsi_view v, dsi_view mask, dsi_view y, dsi_view lse,
                                        dsi_view dq, dsi_view dk, dsi_view dv);

/* launch_route.c */
ds_status dsi_cuda_route(dsi_stream *s, const dsi_route *c, dsi_view score, dsi_view second,
                         dsi_view used, dsi_view expert, dsi_view place, dsi_view slot,
                         dsi_view counts);
ds_status dsi_cuda_topk(dsi_stream *s, dsi_view x, dsi_view index);
ds_status dsi_cuda_noise(dsi_stream *s, const dsi_philox *random, bool gumbel, double low,
                         double high, dsi_view y);

/* launch_dropout.c */
ds_status dsi_cuda_dropout(dsi_stream *s, const dsi_philox *random, double p, double factor,
                           dsi_view x, dsi_view y, dsi_view keep);

/* launch_decode.c */
ds_status dsi_cuda_attention_step_of(dsi_stream *s, const dsi_attention_step *o, dsi_view q,
                                     dsi_view k, dsi_view v, dsi_view cache_k, dsi_view cache_v,
                                     dsi_view at, dsi_view pads, dsi_view cos, dsi_view sin,
                                     dsi_view y);
ds_status dsi_cuda_choose_token(dsi_stream *s, dsi_view x, dsi_view token, dsi_view counters);
