/* device/cuda/kernels/optimizer.h: arguments of optimizer.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

enum { K_SGD, K_ADAM, K_ADAGRAD, K_RMSPROP, K_ADADELTA, K_LION, K_LAMB }; /* dsi_rule */
enum { K_SPANS = 32 };

/* dsi_step_scalars */
typedef struct dsi_cuda_step {
    double lr, momentum;
    long long steps;
} dsi_cuda_step;

/* dsi_step_result, and what decides it; loss and norm are optional */
typedef struct dsi_cuda_result {
    double loss, norm, g_factor, skip, fault;
} dsi_cuda_result;

typedef struct dsi_cuda_step_result {
    const double *unscale, *norm;
    const void *loss;
    int loss_dtype, finite_loss, finite_norm;
    double max_norm;
    const dsi_cuda_fault_flag *fault;
    dsi_cuda_result *result;
} dsi_cuda_step_result;

/* dsi_loss_scale, and what updates it */
typedef struct dsi_cuda_scale {
    double scale, inverse, good, skips, one;
} dsi_cuda_scale;

typedef struct dsi_cuda_loss_scale {
    double growth, backoff, interval;
    const dsi_cuda_fault_flag *fault;
    dsi_cuda_scale *x;
} dsi_cuda_loss_scale;

/* Float32 in two halves; p and rest are optional to split it */
typedef struct dsi_cuda_halves {
    unsigned *x;
    unsigned short *p;
    short *rest;
    long long n;
} dsi_cuda_halves;

/* dsi_span, as far as a kernel needs it */
typedef struct dsi_cuda_span {
    void *p, *m, *v, *vmax, *low;
    short *rest;
    const void *g;
    double g_scale;
    long long n, step, first; /* first: number of its first piece */
    int dtype, g_dtype, low_dtype;
} dsi_cuda_span;

/* One step of a rule on up to K_SPANS spans: a block a piece. Options that a
 * rule does not have are 0. */
typedef struct dsi_cuda_optimizer {
    int n, piece; /* piece: elements that a block takes, a multiple of 4 */
    int nesterov, maximize, decoupled, amsgrad, bias_correction, centered, eps_inside;
    int momentum;                       /* b1 is what scalars have as momentum */
    double lr, b1, b2, eps, decay;      /* b1: momentum, beta1, alpha, rho */
    double take, lr_decay, most, least; /* SGD's 1 - dampening; LAMB's bounds */
    const dsi_cuda_step *scalars;       /* these three are optional */
    const double *g_factor, *skip;
    const dsi_cuda_fault_flag *fault;
    double *sums;  /* LAMB: [pieces][2], of p^2 and u^2 */
    double *rates; /* LAMB: [spans] */
    dsi_cuda_span x[K_SPANS];
} dsi_cuda_optimizer;
