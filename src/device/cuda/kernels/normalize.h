/* device/cuda/kernels/normalize.h: arguments of normalize.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"
#include "line.h"

/* rows x columns, contiguous; a: x or dy, b: x, y: the result. sums: dw and db of
 * each part of the rows, scratch. term: added to weights. */
typedef struct dsi_cuda_norm_args {
    const void *a, *b;
    void *y;
    dsi_cuda_line mean, rstd, weight, bias, dw, db;
    double *sums;
    double eps, term;
    int dtype, team;
    long long rows, columns, part_rows, parts;
} dsi_cuda_norm_args;

/* of[0] of a, where first is 0; its result, or a, plus other: sum; of[1] of the sum, unless
 * of[1].y is NULL. Rows of aligned vectors, the same in both; what is read is not written
 * before by another row's threads. */
typedef struct dsi_cuda_norm_sum {
    dsi_cuda_norm_args of[2];
    const void *a, *other;
    void *sum;
    int first;
} dsi_cuda_norm_sum;
