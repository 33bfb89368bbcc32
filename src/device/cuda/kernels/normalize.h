/* device/cuda/kernels/normalize.h: arguments of normalize.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

/* One value a channel or a row; p NULL: absent. */
typedef struct dsi_cuda_line {
    void *p;
    long long s;
    int dtype;
} dsi_cuda_line;

/* batch norm: elements are views (x, channel, y) or (dy, x, channel, dx), where
 * the place of `channel` is its number. Sums over a channel read a (x or dy) and
 * b (x), [n,c,inner], `width` channels a block. sums: s1 and s2 of each channel,
 * scratch. layer norm: rows x columns, contiguous. */
typedef struct dsi_cuda_norm_args {
    dsi_cuda_elements e;
    const void *a, *b;
    void *y;
    long long as[3], bs[3];
    long long n, channels, inner;
    dsi_cuda_line mean, rstd, weight, bias, dw, db; /* var is rstd's in batch_stats */
    double *sums;
    double eps;
    int dtype, width, batch, team;
    long long rows, columns, part_rows, parts; /* layer norm */
} dsi_cuda_norm_args;
