/* device/cuda/kernels/index.h: arguments of index.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

/* x, y: operand and output; index: int64; w: weights of experts, or absent */
typedef struct dsi_cuda_index {
    dsi_cuda_view x, index, w, y;
    long long skip; /* scatter_rows */
    void *fault;
    /* scatter_rows of many: the positions 0 .. n - 1, sorted by their row in
     * passes of 8 bits; `from` and `to` are [n]: row << 32 | position */
    unsigned long long *from, *to;
    unsigned *counts; /* [256][chunks] */
    long long n, chunks;
    int shift;
} dsi_cuda_index;

enum { K_SORT_CHUNK = 1024, K_SORT_DIGITS = 256 };
