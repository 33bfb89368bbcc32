/* device/cuda/kernels/copy.h: arguments of copy.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

/* x [lines,columns] into y, which has all_columns and as many lines as there are
 * blocks; elements of 2 or 4 bytes; xs, ys: strides of lines, in elements. */
typedef struct dsi_cuda_padding {
    const void *x;
    void *y;
    long long lines, columns, all_columns, xs, ys;
    int bytes;
} dsi_cuda_padding;
