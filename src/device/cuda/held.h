/* device/cuda/held.h: launch fusions: a small launch is held, and fused with
 * the one that follows it.
 *
 * Launching a kernel of a small network takes longer than the kernel, so some
 * are not launched at once:
 *
 *     a product of gemm_small.cu   a ReLU of its result, or the ReLU's gradient, SiLU or GELU is
 *                                  then its epilogue (kernels/gemm.h), and up to two more
 *                                  products the same launch, of two also the product of an
 *                                  activation of the first and the second (gate and up)
 *     a float32 convolution of      max-pooling of its result by windows of 2 x 2, with a ReLU,
 *     few channels                  is then computed by the same kernel
 *     the copy of one element       is done by the kernel that gathers a loader's batch (a
 *                                  loss is kept, and the next step begins)
 *     a cross entropy of few rows  the loss's gradient, which backward fills, and that of x;
 *                                  if x is a product that is held, the cross entropy is fused
 *                                  with it, and so are its gradients, with a ReLU's
 *     the backward of a small       a step of SGD: the same kernel applies the gradients
 *     convolution without dx        that it computes, and others
 *     a sum a + b                  its layer or RMS norm is the same kernel's second output; so
 *                                  is the norm of which a or b is the result, if that is held
 *
 * Every other call of the device launches it first (dsi_cuda_enter), so all
 * others see the order of the calls. With DS_FUSIONS=alone or off nothing
 * waits.
 *
 * Invariants: at most one launch is held. A launch that is fused with it
 * writes no memory that it reads, and reads none that it writes, unless it does
 * so last.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "driver.h"
#include "kernels/conv.h"
#include "kernels/gemm.h"
#include "kernels/index.h"
#include "kernels/normalize.h"
#include "kernels/optimizer.h"
#include "kernels/pool.h"
#include "kernels/softmax.h"

typedef enum dsi_cuda_small { DSI_CUDA_ROWS, DSI_CUDA_COLUMNS } dsi_cuda_small;

/* The product p, whose views are those of the args, by the kernel `kind` with
 * grid.blocks[0] blocks; with what is held, if it can be. */
ds_status dsi_cuda_hold(dsi_stream *s, dsi_cuda_small kind, dsi_cuda_grid grid,
                        const dsi_cuda_matmul_args *p);

/* y = the ReLU, SiLU or GELU of x, or dx the gradient of a ReLU whose result is
 * `saved`: true if x (dy) is the result of what is held, which then computes it
 * too. */
bool dsi_cuda_held_unary(dsi_stream *s, dsi_unary_op op, const dsi_view *x, const dsi_view *y);
bool dsi_cuda_held_relu_dx(dsi_stream *s, const dsi_view *dy, const dsi_view *saved,
                           const dsi_view *dx);

/* y = a b: true if one is the second of two held products, the other an
 * activation of the first, and they compute it too. */
bool dsi_cuda_held_times(dsi_stream *s, const dsi_view *a, const dsi_view *b, const dsi_view *y);

/* The convolution p by the instance of conv2d_small with this suffix. */
ds_status dsi_cuda_hold_conv(dsi_stream *s, const char *suffix, dsi_cuda_grid grid,
                             const dsi_cuda_conv_args *p);

/* The pooling p: true if it is of the held convolution's result, which then
 * computes it; it is launched then. */
bool dsi_cuda_held_pool(dsi_stream *s, const dsi_cuda_pool_args *p, ds_status *status);

ds_status dsi_cuda_hold_copy(dsi_stream *s, const dsi_cuda_element *p);

/* A held copy -> batch->copy, unless it shares memory with the batch, or the
 * batch is empty, and has no launch. */
void dsi_cuda_held_copy(dsi_stream *s, dsi_cuda_batch *batch);

/* The cross entropy p, by grid's one block. */
ds_status dsi_cuda_hold_entropy(dsi_stream *s, dsi_cuda_grid grid, const dsi_cuda_entropy_args *p);

/* y = value: true if a cross entropy is held and y is one number of its loss's
 * dtype, which it then fills. */
bool dsi_cuda_held_fill(dsi_stream *s, double value, const dsi_view *y);

/* The gradient p: true if it is that of the held cross entropy, and p's loss
 * what it fills; it is launched then, unless x is a product that is held
 * too. */
bool dsi_cuda_held_entropy_dx(dsi_stream *s, const dsi_cuda_entropy_args *p, ds_status *status);

/* The backward p, without dx, of a gradient in pooled form. */
ds_status dsi_cuda_hold_back(dsi_stream *s, dsi_cuda_grid grid, const dsi_cuda_conv_back *p);

/* The sum p of two operands of one dtype, without gaps, of aligned vectors: of
 * a held norm's result, or it waits for its norm. */
ds_status dsi_cuda_hold_sum(dsi_stream *s, const dsi_cuda_pointwise *p);

/* launch_pointwise.c: that sum alone. */
ds_status dsi_cuda_sum_launch(dsi_stream *s, const dsi_cuda_pointwise *p);

/* The norm p, by layer_norm_rows: with the held sum, of which it is, or it
 * waits for a sum of its result. */
ds_status dsi_cuda_hold_norm(dsi_stream *s, dsi_cuda_grid grid, const dsi_cuda_norm_args *p);

/* The step of SGD that a describes, on n spans x: true if a backward is held
 * that does it too; it is launched then. */
bool dsi_cuda_held_sgd(dsi_stream *s, const dsi_cuda_optimizer *a, int n, const dsi_span *x,
                       ds_status *status);

/* Whether a backward is held whose operands are not in y's memory, so that y
 * may be written before it. */
bool dsi_cuda_held_disjoint(dsi_stream *s, const dsi_view *y);

/* A backward that is held, which sets no fault: until the caller puts it back
 * to the GPU's held, nothing launches it. NULL: none. */
struct dsi_cuda_held *dsi_cuda_held_aside(dsi_stream *s);

/* Launches what is held, if anything is. */
ds_status dsi_cuda_held_launch(dsi_cuda_gpu *g);
