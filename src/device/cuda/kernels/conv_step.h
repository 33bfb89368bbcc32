/* device/cuda/kernels/conv_step.h: arguments of conv_step.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "conv.h"
#include "optimizer.h"

/* Spans whose gradient the kernel reads, at most, so that its argument is
 * small; elements of a piece. */
enum { K_STEP_SPANS = 12, K_STEP_PIECE = 2048 };

/* A float32 dsi_cuda_span without copies; p NULL: none. first: of its pieces. */
typedef struct dsi_cuda_step_span {
    float *p, *m;
    const float *g;
    double g_scale;
    long long step;
    int n, first;
} dsi_cuda_step_span;

/* dw and db of a gradient in pooled form, by blocks of a dsi_cuda_conv_back,
 * then SGD: a block a piece of x, `n` spans of other gradients. own: the spans
 * whose gradients are dw and db. nesterov to fault: see dsi_cuda_optimizer. */
typedef struct dsi_cuda_conv_step {
    dsi_cuda_conv_args dw;
    unsigned dw_blocks;
    int team_bits;
    dsi_cuda_divisor blocks, outputs;
    int n, nesterov, maximize, momentum;
    double lr, b1, decay, take;
    const dsi_cuda_step *scalars;
    const double *g_factor, *skip;
    const dsi_cuda_fault_flag *fault;
    dsi_cuda_step_span own[2], x[K_STEP_SPANS];
} dsi_cuda_conv_step;
