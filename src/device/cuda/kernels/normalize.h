/* device/cuda/kernels/normalize.h: arguments of normalize.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"
#include "line.h"

/* rows x columns, contiguous; a: x or dy, b: x, y: the result. sums: dw and db of
 * each part of the rows, scratch. */
typedef struct dsi_cuda_norm_args {
    const void *a, *b;
    void *y;
    dsi_cuda_line mean, rstd, weight, bias, dw, db;
    double *sums;
    double eps;
    int dtype, team;
    long long rows, columns, part_rows, parts;
} dsi_cuda_norm_args;
