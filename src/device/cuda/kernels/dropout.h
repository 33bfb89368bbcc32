/* device/cuda/kernels/dropout.h: arguments of dropout.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

/* elements: x, y, in row-major order of keep, which is contiguous */
typedef struct dsi_cuda_dropout_args {
    dsi_cuda_view x, y;
    unsigned char *keep;
    long long count;
    unsigned long long seed, offset, kept; /* kept: words below are kept */
    const unsigned long long *fresh_seed;  /* in place of seed; may be NULL */
    double factor;
    int quads; /* x, y are contiguous, and all three aligned for four elements */
} dsi_cuda_dropout_args;
