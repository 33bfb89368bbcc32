/* device/cuda/cublas.h: large products by cublasLt, which is opened at run time.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "driver.h"
#include "kernels/gemm.h"
#include "launch.h"

#define DSI_CUBLAS_LEAST ((double)(1 << 24)) /* multiplications: fewer are not worth its planning */

/* Computes p's product, if it is large and cublasLt is there and takes it: *done;
 * else our kernels do. DS_CUBLAS says which library, or none. DS_EDEVICE with the
 * message for one that cublasLt began and could not do. */
ds_status dsi_cuda_cublas_matmul(dsi_stream *s, const dsi_cuda_matmul_args *p, bool *done);

void dsi_cuda_cublas_close(dsi_cuda_gpu *g); /* what it did has ended */
