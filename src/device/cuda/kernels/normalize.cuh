/* device/cuda/kernels/normalize.cuh: what batch norm and layer norm have in
 * common: values of a channel or a row, sums over a block.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "line.h"

#define RUN 64 /* additions in C before they go to a double */

template <class C> DEVICE C line_at(const dsi_cuda_line &v, long long i, C absent)
{
    return v.p ? load<C>(v.p, v.dtype, i * v.s) : absent;
}

/* The sum over the threads t of a block of 256 with the same t % width: of
 * column t % width, in every thread of it. */
DEVICE double columns_total(double v, int width, double *part)
{
    int t = threadIdx.x;
    part[t] = v;
    __syncthreads();
#pragma unroll 1
    for (int o = 128; o >= width; o /= 2) {
        if (t < o) part[t] += part[t + o];
        __syncthreads();
    }
    v = part[t % width];
    __syncthreads();
    return v;
}
