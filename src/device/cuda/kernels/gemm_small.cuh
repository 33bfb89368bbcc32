/* device/cuda/kernels/gemm_small.cuh: sums of gemm_small.cu along k by a warp,
 * and their end.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "common.cuh"
#include "gemm.h"
#include "team.cuh"

#define ROWS 4 /* of y, that a warp computes */

template <class T> struct alignas(4 * sizeof(T)) four {
    T v[4];
};

/* acc[r] += a line r times b, from this lane's elements on; WHOLE: by vectors.
 * Lines past the last one are the last one. LOADS steps of 128 at a time, those
 * past the end with zeros, so that there is no second loop for the rest. */
template <class T, class C, bool WHOLE>
DEVICE void rows_product(C (&acc)[ROWS], const T *const (&a)[ROWS], const T *b, int depth)
{
    enum { LOADS = WHOLE ? 2 : 1 };
    int lane = (int)threadIdx.x % 32, end = depth / 4 * 4;
#pragma unroll 1
    for (int first = lane * 4; first < end; first += LOADS * 128) {
        four<T> w[LOADS] = {}, x[LOADS][ROWS] = {};
#pragma unroll
        for (int u = 0; u < LOADS; u++) {
            int k = first + u * 128;
            if (k >= end) continue;
            if (WHOLE) {
                w[u] = *(const four<T> *)(b + k);
#pragma unroll
                for (int r = 0; r < ROWS; r++) x[u][r] = *(const four<T> *)(a[r] + k);
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    w[u].v[i] = b[k + i];
#pragma unroll
                    for (int r = 0; r < ROWS; r++) x[u][r].v[i] = a[r][k + i];
                }
            }
        }
#pragma unroll
        for (int u = 0; u < LOADS; u++)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int i = 0; i < 4; i++) acc[r] += up(x[u][r].v[i]) * up(w[u].v[i]);
    }
    if (end / 4 % 32 != lane) return;
#pragma unroll 1
    for (int k = end; k < depth; k++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) acc[r] += up(a[r][k]) * up(b[k]);
}

/* The sum over all lanes of acc[r], r = lane / 8: lanes exchange halves of what
 * they have, so that 6 shuffles do what 20 do for the rows one by one. */
template <class C> DEVICE C rows_sum(const C (&acc)[ROWS])
{
    int lane = threadIdx.x % 32;
    bool high = lane & 16, odd = lane & 8;
    C give = high ? acc[0] : acc[2], more = high ? acc[1] : acc[3], a = high ? acc[2] : acc[0],
      b = high ? acc[3] : acc[1];
    a += __shfl_xor_sync(ALL_LANES, give, 16);
    b += __shfl_xor_sync(ALL_LANES, more, 16);
    C v = odd ? b : a;
    v += __shfl_xor_sync(ALL_LANES, odd ? a : b, 8);
#pragma unroll
    for (int o = 4; o; o /= 2) v += __shfl_xor_sync(ALL_LANES, v, o);
    return v;
}
