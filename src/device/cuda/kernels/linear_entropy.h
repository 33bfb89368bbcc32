/* device/cuda/kernels/linear_entropy.h: arguments of linear_entropy.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "gemm.h"
#include "softmax.h"

enum { K_LINEAR_ENTROPY_THREADS = 512 };

/* linear: a product of matmul_rows, one batch, whole, all float32, whose result
 * is x of `entropy`, with lanes and inner 1. of: none to two products of
 * matmul_columns in float32 whose operand a is dx of `entropy`, transposed or
 * not; m is 0 if one is absent. Their outputs share no memory with operands of
 * `linear`, of the other one, or with epilogue_in; others of this kernel they
 * may overwrite. */
typedef struct dsi_cuda_linear_entropy {
    dsi_cuda_matmul_args linear, of[2];
    int transposed[2];
    dsi_cuda_entropy_args entropy;
} dsi_cuda_linear_entropy;
