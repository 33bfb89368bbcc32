/* device/cuda/kernels/index.h: arguments of index.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

/* x, y: operand and output; index: int64; w: weights of experts, or absent */
typedef struct dsi_cuda_index {
    dsi_cuda_view x, index, w, y;
    long long skip; /* scatter_rows */
    void *fault;
} dsi_cuda_index;
