/* device/cuda/launch_gemm.h: what the files of products share.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/device.h"
#include "kernels/gemm.h"

/* launch_gemm_lines.c. Whether the kernels of aligned lines take the product of
 * a [B,M,K] and b [B,K,N]: dtype, sizes, strides, the GPU. */
bool dsi_cuda_matmul_lines_takes(const dsi_stream *s, const dsi_view *a, const dsi_view *b);

/* p's product by these kernels, which must take a and b. */
ds_status dsi_cuda_matmul_lines(dsi_stream *s, dsi_view a, dsi_view b,
                                const dsi_cuda_matmul_args *p);
