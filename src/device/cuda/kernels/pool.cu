/* device/cuda/kernels/pool.cu: max, average and adaptive average pooling.
 *
 * A thread an output; backward of averages gathers: a thread an element of dx
 * looks for the windows that contain it. Backward of maxima knows indices alone:
 * a block a piece of a plane of dx adds, turn by turn, the next window of each
 * element, so that each sum has the order of the windows, without atomics on
 * floats.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "pool.h"
#include "team.cuh"

/* Offset of plane i = n C + c. */
DEVICE long long pool_plane(const dsi_cuda_pool_args &P, const long long *s,
                                                       unsigned i)
{
    return (long long)(i / P.c) * s[0] + (long long)(i % P.c) * s[1];
}

/* The first of equals, and the last NaN, as in PyTorch. */
template <class C> DEVICE void max_pool(const dsi_cuda_pool_args &P)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= P.planes * P.p * P.q) return;
    unsigned row = i / P.q, plane = row / P.p;
    int q = (int)(i % P.q), p = (int)(row % P.p);
    int h0 = p * P.stride[0] - P.padding[0], w0 = q * P.stride[1] - P.padding[1];
    int h1 = min(h0 + (P.kernel[0] - 1) * P.dilation[0] + 1, P.h);
    int w1 = min(w0 + (P.kernel[1] - 1) * P.dilation[1] + 1, P.w);
    while (h0 < 0) h0 += P.dilation[0];
    while (w0 < 0) w0 += P.dilation[1];
    long long x = pool_plane(P, P.xs, plane);
    C most = -(C)INFINITY;
    int at = h0 * P.w + w0;
#pragma unroll 1
    for (int h = h0; h < h1; h += P.dilation[0])
#pragma unroll 1
        for (int w = w0; w < w1; w += P.dilation[1]) {
            C v = load<C>(P.from, P.dtype, x + h * P.xs[2] + w * P.xs[3]);
            if (v > most || v != v) most = v, at = h * P.w + w;
        }
    if (P.relu && most < 0) most = 0;
    store<C>(P.to, P.dtype, pool_plane(P, P.ys, plane) + p * P.ys[2] + q * P.ys[3], most);
    P.index[pool_plane(P, P.is, plane) + p * P.is[2] + q * P.is[3]] = at;
}
FLOAT_AND_DOUBLE(max_pool, dsi_cuda_pool_args, 256)

/* Whether window i of a plane has a gradient: always, or by the maximum. */
template <class C>
DEVICE bool pool_counts(const dsi_cuda_pool_args &P, long long max, int i)
{
    return !P.max ||
           load<C>(P.max, P.dtype, max + i / P.q * P.ms[2] + i % P.q * P.ms[3]) > 0;
}

#define PIECE 2048 /* elements of a plane of dx that a block holds */

/* Writes n elements of a plane of dx, from `first` on, by a block of 256. */
template <class C>
DEVICE void pool_put(const dsi_cuda_pool_args &P, unsigned plane, int first, int n, const C *value)
{
    long long dx = pool_plane(P, P.xs, plane);
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += 256)
        store<C>(P.to, P.dtype, dx + (first + i) / P.w * P.xs[2] + (first + i) % P.w * P.xs[3],
                 value[i]);
}

/* Blocks of 256: for each plane its pieces. last and next are numbers of
 * windows: of the last one that was added to an element, and of the first one
 * after it. */
template <class C> DEVICE void max_pool_dx(const dsi_cuda_pool_args &P)
{
    SHARED(C, sum, [PIECE]);
    SHARED(int, last, [PIECE]);
    SHARED(int, next, [PIECE]);
    SHARED(int, found, [1]);
    unsigned pieces = (unsigned)(P.h * P.w + PIECE - 1) / PIECE, plane = blockIdx.x / pieces;
    int first = (int)(blockIdx.x % pieces) * PIECE, n = min(PIECE, P.h * P.w - first), windows = P.p * P.q;
    long long dy = pool_plane(P, P.ys, plane), max = pool_plane(P, P.ms, plane);
    const int *index = P.index + pool_plane(P, P.is, plane);
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += 256) sum[i] = 0, last[i] = -1, next[i] = windows;
    if (threadIdx.x == 0) found[0] = 0;
    __syncthreads();
    for (;;) {
#pragma unroll 1
        for (int i = threadIdx.x; i < windows; i += 256) {
            int at = index[i / P.q * P.is[2] + i % P.q * P.is[3]] - first;
            if (at >= 0 && at < n && last[at] < i && pool_counts<C>(P, max, i)) {
                atomicMin(&next[at], i);
                atomicMax(&found[0], 1);
            }
        }
        __syncthreads();
        bool any = found[0] != 0;
        __syncthreads(); /* all have read it */
        if (!any) break;
#pragma unroll 1
        for (int i = threadIdx.x; i < n; i += 256) {
            if (next[i] == windows) continue;
            sum[i] += load<C>(P.from, P.dtype,
                              dy + next[i] / P.q * P.ys[2] + next[i] % P.q * P.ys[3]);
            last[i] = next[i], next[i] = windows;
        }
        if (threadIdx.x == 0) found[0] = 0;
        __syncthreads();
    }
    pool_put<C>(P, plane, first, n, sum);
}
FLOAT_AND_DOUBLE(max_pool_dx, dsi_cuda_pool_args, 256)

/* The same where no index occurs twice, as of windows without overlaps: nothing
 * is added, so a window writes at once. */
template <class C> DEVICE void max_pool_dx_once(const dsi_cuda_pool_args &P)
{
    SHARED(C, value, [PIECE]);
    unsigned pieces = (unsigned)(P.h * P.w + PIECE - 1) / PIECE, plane = blockIdx.x / pieces;
    int first = (int)(blockIdx.x % pieces) * PIECE, n = min(PIECE, P.h * P.w - first), windows = P.p * P.q;
    long long dy = pool_plane(P, P.ys, plane), max = pool_plane(P, P.ms, plane);
    const int *index = P.index + pool_plane(P, P.is, plane);
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += 256) value[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < windows; i += 256) {
        int p = i / P.q, q = i % P.q, at = index[p * P.is[2] + q * P.is[3]] - first;
        if (at < 0 || at >= n || !pool_counts<C>(P, max, i)) continue;
        value[at] = load<C>(P.from, P.dtype, dy + p * P.ys[2] + q * P.ys[3]);
    }
    __syncthreads();
    pool_put<C>(P, plane, first, n, value);
}
FLOAT_AND_DOUBLE(max_pool_dx_once, dsi_cuda_pool_args, 256)

/* Window i along an axis: first and past the last row inside, and the length
 * with padding. */
DEVICE void pool_window(const dsi_cuda_pool_args &P, int axis, unsigned i,
                                                   int *begin, int *end, int *padded)
{
    unsigned in = axis ? P.w : P.h, out = axis ? P.q : P.p;
    if (P.adaptive) {
        *begin = (int)(i * in / out);
        *end = (int)(((i + 1) * in + out - 1) / out);
        *padded = *end - *begin;
        return;
    }
    *begin = (int)i * P.stride[axis] - P.padding[axis];
    *end = min(*begin + P.kernel[axis], (int)in + P.padding[axis]);
    *padded = *end - *begin;
    *begin = max(*begin, 0), *end = min(*end, (int)in);
}

DEVICE long long pool_divisor(const dsi_cuda_pool_args &P, int elements,
                                                         int padded)
{
    if (P.adaptive) return padded;
    if (P.divisor) return P.divisor;
    return P.exclude_pad ? max(elements, 1) : padded;
}

template <class C> DEVICE void avg_pool(const dsi_cuda_pool_args &P)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= P.planes * P.p * P.q) return;
    unsigned row = i / P.q, plane = row / P.p;
    int q = (int)(i % P.q), p = (int)(row % P.p), h0, h1, hp, w0, w1, wp;
    pool_window(P, 0, p, &h0, &h1, &hp);
    pool_window(P, 1, q, &w0, &w1, &wp);
    long long x = pool_plane(P, P.xs, plane);
    C sum = 0;
#pragma unroll 1
    for (int h = h0; h < h1; h++)
#pragma unroll 1
        for (int w = w0; w < w1; w++) sum += load<C>(P.from, P.dtype, x + h * P.xs[2] + w * P.xs[3]);
    store<C>(P.to, P.dtype, pool_plane(P, P.ys, plane) + p * P.ys[2] + q * P.ys[3],
             sum / (C)pool_divisor(P, (h1 - h0) * (w1 - w0), hp * wp));
}
FLOAT_AND_DOUBLE(avg_pool, dsi_cuda_pool_args, 256)

/* The windows that contain row (column) i: first and past the last. */
DEVICE void pool_windows_of(const dsi_cuda_pool_args &P, int axis, unsigned i,
                                                       int *first, int *end)
{
    unsigned in = axis ? P.w : P.h, out = axis ? P.q : P.p;
    if (P.adaptive) {
        *first = (int)(i * out / in);
        *end = (int)(((i + 1) * out + in - 1) / in);
        return;
    }
    int at = (int)i + P.padding[axis], before = at - P.kernel[axis];
    *first = before < 0 ? 0 : before / P.stride[axis] + 1;
    *end = min(at / P.stride[axis] + 1, (int)out);
}

template <class C> DEVICE void avg_pool_dx(const dsi_cuda_pool_args &P)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= P.planes * P.h * P.w) return;
    unsigned row = i / P.w, plane = row / P.h;
    int w = (int)(i % P.w), h = (int)(row % P.h), p0, p1, q0, q1;
    pool_windows_of(P, 0, h, &p0, &p1);
    pool_windows_of(P, 1, w, &q0, &q1);
    long long dy = pool_plane(P, P.ys, plane);
    C sum = 0;
#pragma unroll 1
    for (int p = p0; p < p1; p++)
#pragma unroll 1
        for (int q = q0; q < q1; q++) {
            int h0, h1, hp, w0, w1, wp;
            pool_window(P, 0, p, &h0, &h1, &hp);
            pool_window(P, 1, q, &w0, &w1, &wp);
            sum += load<C>(P.from, P.dtype, dy + p * P.ys[2] + q * P.ys[3]) /
                   (C)pool_divisor(P, (h1 - h0) * (w1 - w0), hp * wp);
        }
    store<C>(P.to, P.dtype, pool_plane(P, P.xs, plane) + h * P.xs[2] + w * P.xs[3], sum);
}
FLOAT_AND_DOUBLE(avg_pool_dx, dsi_cuda_pool_args, 256)
