/* device/cuda/kernels/softmax.h: arguments of softmax.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

/* Rows (o, i) of [outer,columns,inner]; strides in elements. a and b are the
 * inputs (x; dy and y), y the output. */
typedef struct dsi_cuda_softmax_args {
    const void *a, *b;
    void *y;
    long long as[3], bs[3], ys[3];
    long long rows, columns;
    unsigned inner;
    int dtype, log, team;
} dsi_cuda_softmax_args;

/* entropy_few, entropy_lanes: rows at most; threads of the block. entropy_part_dx:
 * columns of a thread. */
enum { K_FEW_ROWS = 64, K_FEW_THREADS = 256, K_PART = 4 };

/* x, dx [n,columns,inner], label, loss, lse [n,inner], weight [columns]. loss is
 * dloss in the backward, with strides 0 where it is one number. part: rows
 * losses, then rows weights, for reductions to one number. entropy_few and
 * entropy_lanes also store seed_value to seed, the loss's gradient in its dtype, and
 * write dx, if they are not NULL; dx needs seed. lanes: entropy_lanes takes it: at
 * most 32 classes and K_FEW_ROWS rows, reduced to one number, without weights and
 * smoothing, x and dx not float64, loss and statistics float32. */
typedef struct dsi_cuda_entropy_args {
    const void *x, *weight;
    const long long *label;
    void *dx, *loss, *lse, *divisor, *fault, *seed;
    double *part;
    long long xs[3], dxs[3], label_s[2], loss_s[2], lse_s[2], weight_s;
    long long rows, columns, ignore_index;
    unsigned inner;
    int dtype, weight_dtype, loss_dtype, stats_dtype, team, reduction, lanes;
    double smoothing, seed_value;
} dsi_cuda_entropy_args;

/* x, dx [rows,columns] of classes from `first` on, dx of x's dtype or 16 bits;
 * label, lse, scale [rows]. vectors: rows of both are aligned for K_PART
 * elements. */
typedef struct dsi_cuda_entropy_part_args {
    const void *x, *lse, *scale;
    const long long *label;
    void *dx;
    long long x_s, dx_s, label_s, lse_s, scale_s;
    long long rows, columns, first;
    int dtype, dx_dtype, vectors;
} dsi_cuda_entropy_part_args;
