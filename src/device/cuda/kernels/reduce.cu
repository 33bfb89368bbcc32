/* device/cuda/kernels/reduce.cu: sums, maxima, norms. Partial sums are of fixed
 * parts of the operand and are added in their order, so a sum depends on shapes
 * and strides alone.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"

#include "reduce.h"
#include "vector.cuh"

/* ---- sums ---- */

/* The sum of v over the block, for thread 0: a tree, of any number of
 * threads. */
template <class C> DEVICE C block_sum(C v, C *part)
{
    int i = threadIdx.x, n = blockDim.x;
    part[i] = v;
    __syncthreads();
    while (n > 1) {
        int half = (n + 1) / 2;
        if (i + half < n) part[i] += part[i + half];
        __syncthreads();
        n = half;
    }
    return part[0];
}

template <class C> DEVICE void put_sum(const dsi_cuda_reduce &P, long long o, long long part,
                                       long long at, C sum)
{
    if (P.partial)
        ((C *)P.partial)[o * P.parts + part] = sum;
    else
        store<C>(P.out.p[1], P.out.dtype[1], at, (C)P.factor * sum);
}

/* A thread a part of an output: neighbours in y are neighbours in x. */
template <class C> DEVICE void sum_by_threads(const dsi_cuda_reduce &P)
{
    GRID_LOOP (i, P.out.count * P.parts) {
        long long o = i % P.out.count, part = i / P.out.count, at[2], in[1];
        long long end = min((part + 1) * P.each, P.in.count);
        places(P.out, o, at);
        C sum = 0;
        for (long long t = part * P.each; t < end; t++) {
            places(P.in, t, in);
            sum += load<C>(P.out.p[0], P.out.dtype[0], at[0] + in[0]);
        }
        put_sum<C>(P, o, part, at[1], sum);
    }
}

/* A block a part of an output. */
template <class C> DEVICE void sum_by_blocks(const dsi_cuda_reduce &P)
{
    SHARED(C, shared, [256]);
    for (long long b = blockIdx.x; b < P.out.count * P.parts; b += gridDim.x) {
        long long o = b / P.parts, part = b % P.parts, at[2], in[1];
        long long end = min((part + 1) * P.each, P.in.count);
        places(P.out, o, at);
        C sum = 0;
        for (long long t = part * P.each + threadIdx.x; t < end; t += blockDim.x) {
            places(P.in, t, in);
            sum += load<C>(P.out.p[0], P.out.dtype[0], at[0] + in[0]);
        }
        sum = block_sum<C>(sum, shared);
        if (threadIdx.x == 0) put_sum<C>(P, o, part, at[1], sum);
        __syncthreads();
    }
}

/* The parts of each output, in their order. */
template <class C> DEVICE void sum_parts(const dsi_cuda_reduce &P)
{
    GRID_LOOP (o, P.out.count) {
        long long at[2];
        C sum = 0;
        for (long long k = 0; k < P.parts; k++) sum += ((const C *)P.partial)[o * P.parts + k];
        places(P.out, o, at);
        store<C>(P.out.p[1], P.out.dtype[1], at[1], (C)P.factor * sum);
    }
}

KERNEL(sum_threads_f32, dsi_cuda_reduce, 256) { sum_by_threads<float>(P); }
KERNEL(sum_threads_f64, dsi_cuda_reduce, 256) { sum_by_threads<double>(P); }
KERNEL(sum_threads_i64, dsi_cuda_reduce, 256) { sum_by_threads<long long>(P); }
KERNEL(sum_blocks_f32, dsi_cuda_reduce, 256) { sum_by_blocks<float>(P); }
KERNEL(sum_blocks_f64, dsi_cuda_reduce, 256) { sum_by_blocks<double>(P); }
KERNEL(sum_blocks_i64, dsi_cuda_reduce, 256) { sum_by_blocks<long long>(P); }
KERNEL(sum_parts_f32, dsi_cuda_reduce, 256) { sum_parts<float>(P); }
KERNEL(sum_parts_f64, dsi_cuda_reduce, 256) { sum_parts<double>(P); }
KERNEL(sum_parts_i64, dsi_cuda_reduce, 256) { sum_parts<long long>(P); }

/* ---- sums of columns ----
 *
 * A block has 32 lanes, each of a vector's columns, by 8 rows; each of its
 * threads adds every 8th row of a part, then the rows are added. A second
 * kernel adds the parts in the same way. */

/* Adds the lanes' values over the 8 rows of threads; in row 0: the sums. */
template <int N> DEVICE void rows_sum(float (&v)[N], float (*shared)[32 * N])
{
    int lane = threadIdx.x % 32, row = threadIdx.x / 32;
UNROLL
    for (int i = 0; i < N; i++) shared[row][i * 32 + lane] = v[i];
    __syncthreads();
    if (row) return;
UNROLL
    for (int i = 0; i < N; i++)
        for (int r = 1; r < 8; r++) v[i] += shared[r][i * 32 + lane];
}

/* Blocks: columns, parts. */
template <class T> DEVICE void sum_columns(const dsi_cuda_columns &P)
{
    enum { N = vector_of<T>::N };
    SHARED(float, shared, [8][32 * N]);
    long long column = (blockIdx.x * 32ll + threadIdx.x % 32) * N;
    long long row = blockIdx.y * P.each + threadIdx.x / 32, end = min(P.rows, (blockIdx.y + 1) * P.each);
    float sum[N] = {};
    if (column < P.columns) {
        const T *from = (const T *)P.x + column;
#pragma unroll 4
        for (; row < end; row += 8) {
            float v[N];
            vector_load<T>(v, from, row * P.stride);
UNROLL
            for (int i = 0; i < N; i++) sum[i] += v[i];
        }
    }
    rows_sum<N>(sum, shared);
    if (threadIdx.x >= 32 || column >= P.columns) return;
UNROLL
    for (int i = 0; i < N; i++) P.partial[blockIdx.y * P.columns + column + i] = sum[i];
}
KERNEL(sum_columns_f32, dsi_cuda_columns, 256) { sum_columns<float>(P); }
KERNEL(sum_columns_f16, dsi_cuda_columns, 256) { sum_columns<__half>(P); }
KERNEL(sum_columns_bf16, dsi_cuda_columns, 256) { sum_columns<__nv_bfloat16>(P); }

/* Blocks: 32 columns. */
KERNEL(sum_column_parts, dsi_cuda_columns, 256)
{
    SHARED(float, shared, [8][32]);
    long long column = blockIdx.x * 32ll + threadIdx.x % 32;
    float sum[1] = {};
    if (column < P.columns)
#pragma unroll 4
        for (int part = threadIdx.x / 32; part < P.parts; part += 8)
            sum[0] += P.partial[part * P.columns + column];
    rows_sum<1>(sum, shared);
    if (threadIdx.x >= 32 || column >= P.columns) return;
    store<float>(P.y, P.y_dtype, column * P.y_s, P.factor * sum[0]);
}

/* ---- maxima ---- */

/* NaN is larger than all numbers; of equals, the first. */
template <class C> DEVICE bool is_larger(C a, long long i, C b, long long j)
{
    if (a != a) return b == b || i < j;
    return a > b || (a == b && i < j);
}

template <class C> DEVICE void put_max(const dsi_cuda_reduce_max &P, long long o, long long i,
                                       long long c)
{
    const dsi_cuda_view &x = P.x, &y = P.y;
    ((long long *)P.index.p)[o * P.index.s[0] + i * P.index.s[2]] = c;
    if (!y.p) return;
    C v = load<C>(x.p, x.dtype, o * x.s[0] + c * x.s[1] + i * x.s[2]);
    store<C>(y.p, y.dtype, o * y.s[0] + i * y.s[2], v);
}

template <class C> DEVICE void max_by_threads(const dsi_cuda_reduce_max &P)
{
    const dsi_cuda_view &x = P.x;
    GRID_LOOP (k, x.d[0] * x.d[2]) {
        long long o = k / x.d[2], i = k % x.d[2], base = o * x.s[0] + i * x.s[2], best = 0;
        C top = load<C>(x.p, x.dtype, base);
        for (long long c = 1; c < x.d[1]; c++) {
            C v = load<C>(x.p, x.dtype, base + c * x.s[1]);
            if (is_larger(v, c, top, best)) top = v, best = c;
        }
        put_max<C>(P, o, i, best);
    }
}

/* A block an output. */
template <class C> DEVICE void max_by_blocks(const dsi_cuda_reduce_max &P)
{
    SHARED(C, tops, [256]);
    SHARED(long long, bests, [256]);
    const dsi_cuda_view &x = P.x;
    int t = threadIdx.x;
    for (long long k = blockIdx.x; k < x.d[0] * x.d[2]; k += gridDim.x) {
        long long o = k / x.d[2], i = k % x.d[2], base = o * x.s[0] + i * x.s[2];
        long long best = t < x.d[1] ? t : 0;
        C top = load<C>(x.p, x.dtype, base + best * x.s[1]);
        for (long long c = best + blockDim.x; c < x.d[1]; c += blockDim.x) {
            C v = load<C>(x.p, x.dtype, base + c * x.s[1]);
            if (is_larger(v, c, top, best)) top = v, best = c;
        }
        tops[t] = top, bests[t] = best;
        __syncthreads();
        for (int n = blockDim.x; n > 1;) {
            int half = (n + 1) / 2, u = t + half;
            if (u < n && is_larger(tops[u], bests[u], tops[t], bests[t]))
                tops[t] = tops[u], bests[t] = bests[u];
            __syncthreads();
            n = half;
        }
        if (t == 0) put_max<C>(P, o, i, bests[0]);
        __syncthreads();
    }
}

KERNEL(max_threads_f32, dsi_cuda_reduce_max, 256) { max_by_threads<float>(P); }
KERNEL(max_threads_f64, dsi_cuda_reduce_max, 256) { max_by_threads<double>(P); }
KERNEL(max_threads_i64, dsi_cuda_reduce_max, 256) { max_by_threads<long long>(P); }
KERNEL(max_blocks_f32, dsi_cuda_reduce_max, 256) { max_by_blocks<float>(P); }
KERNEL(max_blocks_f64, dsi_cuda_reduce_max, 256) { max_by_blocks<double>(P); }
KERNEL(max_blocks_i64, dsi_cuda_reduce_max, 256) { max_by_blocks<long long>(P); }

/* ---- norms ---- */

DEVICE double norm_add(int kind, double a, double b)
{
    if (kind != K_NORM_INFINITY) return a + b;
    return a != a || a > b ? a : b;
}

/* As block_sum; for infinity the maximum, or NaN. */
DEVICE double block_norm(int kind, double v, double *part)
{
    int i = threadIdx.x, n = blockDim.x;
    part[i] = v;
    __syncthreads();
    while (n > 1) {
        int half = (n + 1) / 2;
        if (i + half < n) part[i] = norm_add(kind, part[i], part[i + half]);
        __syncthreads();
        n = half;
    }
    return part[0];
}

/* A thread's share of elements begin .. end - 1, whose vectors are aligned. */
template <class T>
DEVICE double norm_vectors(int kind, const void *p, int dtype, long long begin, long long end)
{
    enum { N = vector_of<T>::N };
    double sum = 0;
    long long whole = begin + (end - begin) / N * N, rest = whole + threadIdx.x;
#pragma unroll 4
    for (long long i = begin + threadIdx.x * N; i < whole; i += 256 * N) {
        float v[N];
        vector_load<T>(v, p, i);
UNROLL
        for (int e = 0; e < N; e++)
            sum = kind == K_NORM_2 ? sum + (double)v[e] * (double)v[e]
                                   : norm_add(kind, sum, fabs((double)v[e]));
    }
    if (rest >= end) return sum;
    double v = load<double>(p, dtype, rest);
    return norm_add(kind, sum, kind == K_NORM_2 ? v * v : fabs(v));
}

KERNEL(norm_pieces, dsi_cuda_norm, 256)
{
    SHARED(double, shared, [256]);
    int k = 0;
    while (k + 1 < P.n && (long long)blockIdx.x >= P.x[k + 1].first) k++;
    long long begin = (blockIdx.x - P.x[k].first) * K_NORM_PIECE;
    long long end = min(begin + K_NORM_PIECE, P.x[k].n);
    const void *p = P.x[k].p;
    int dtype = (unsigned long long)p % 16 ? K_F64 : P.x[k].dtype; /* F64: one by one */
    double sum = 0;
    if (dtype == K_F32)
        sum = norm_vectors<float>(P.kind, p, dtype, begin, end);
    else if (dtype == K_BF16)
        sum = norm_vectors<__nv_bfloat16>(P.kind, p, dtype, begin, end);
    else if (dtype == K_F16)
        sum = norm_vectors<__half>(P.kind, p, dtype, begin, end);
    else
        for (long long i = begin + threadIdx.x; i < end; i += blockDim.x) {
            double v = load<double>(p, P.x[k].dtype, i);
            sum = norm_add(P.kind, sum, P.kind == K_NORM_2 ? v * v : fabs(v));
        }
    sum = block_norm(P.kind, sum, shared);
    if (threadIdx.x == 0) P.partial[blockIdx.x] = sum;
}

/* One block. */
KERNEL(norm_end, dsi_cuda_norm, 256)
{
    SHARED(double, shared, [256]);
    double sum = 0;
#pragma unroll 8
    for (long long i = threadIdx.x; i < P.pieces; i += 256)
        sum = norm_add(P.kind, sum, P.partial[i]);
    sum = block_norm(P.kind, sum, shared);
    if (threadIdx.x == 0) *(double *)P.y = P.kind == K_NORM_2 ? sqrt(sum) : sum;
}
