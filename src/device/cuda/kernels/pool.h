/* device/cuda/kernels/pool.h: arguments of pool.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

/* x [n,c,h,w] and y [n,c,p,q]; to and from are x and y, or dy and dx; max, if there, is of y's shape: dy counts where it is
 * positive. planes =
 * n c; planes h w and planes p q are less than 2^31. */
typedef struct dsi_cuda_pool_args {
    const void *from, *max;
    void *to;
    int *index;
    long long xs[4], ys[4], is[4], ms[4];
    unsigned planes, c;
    int h, w, p, q, dtype;
    int kernel[2], stride[2], padding[2], dilation[2];
    long long divisor;
    int exclude_pad, adaptive, relu;
} dsi_cuda_pool_args;
