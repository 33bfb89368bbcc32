/* device/cuda/kernels/reduce.h: arguments of reduce.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

/* Each output sums `terms` elements of x, in `parts` parts, one after the other
 * where there are several. out: x and y over the dimensions that are kept; in:
 * x over those that are summed. */
typedef struct dsi_cuda_reduce {
    dsi_cuda_elements out, in;
    long long parts, each; /* terms of a part */
    double factor;
    void *partial; /* [outputs, parts] of the type that sums; NULL: one part, to y */
} dsi_cuda_reduce;

/* y [columns] = factor times the sums of the columns of x [rows,columns], whose
 * vectors of 16 bytes are aligned. Parts of `each` rows are summed to partial
 * [parts,columns]. */
typedef struct dsi_cuda_columns {
    const void *x;
    void *y;
    float *partial, factor;
    long long rows, columns, stride, y_s, each;
    int parts, y_dtype;
} dsi_cuda_columns;

/* x [outer,C,inner]; y (optional), index [outer,1,inner] */
typedef struct dsi_cuda_reduce_max {
    dsi_cuda_view x, y, index;
} dsi_cuda_reduce_max;

enum { K_NORM_VIEWS = 64, K_NORM_PIECE = 16384 };
enum { K_NORM_1, K_NORM_2, K_NORM_INFINITY };

/* Contiguous memory of several tensors, of which a block takes one piece. */
typedef struct dsi_cuda_norm {
    int kind, n;
    struct {
        const void *p;
        long long n, first; /* elements; number of its first piece */
        int dtype;
    } x[K_NORM_VIEWS];
    double *partial; /* a number a piece */
    long long pieces;
    void *y;  /* of the last kernel: float64 */
    double p; /* the exponent */
} dsi_cuda_norm;
