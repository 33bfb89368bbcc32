/* device/cuda/kernels/index.cu: rows and elements named by an index; tokens to
 * slots of experts and back. Scattering adds in the order of the index, and one
 * thread adds all values of an element.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"

#include "index.h"

DEVICE long long index_at(const dsi_cuda_view &v, long long at)
{
    return ((const long long *)v.p)[at];
}

/* ---- rows: x [V,D], index [N], y [N,D] ---- */

KERNEL(gather_rows, dsi_cuda_index, 256)
{
    const dsi_cuda_view &x = P.x, &y = P.y;
    int bytes = size_of(y.dtype);
    GRID_LOOP(k, y.d[0] * y.d[1])
    {
        long long i = k / y.d[1], c = k % y.d[1], row = index_at(P.index, i * P.index.s[0]);
        bool good = row >= 0 && row < x.d[0];
        if (!good && c == 0) set_fault(P.fault, K_FAULT_ROW, row, i, -1, x.d[0]);
        store_bits(y.p, bytes, i * y.s[0] + c * y.s[1],
                   good ? load_bits(x.p, bytes, row * x.s[0] + c * x.s[1]) : 0);
    }
}

/* *next of the launch that follows, by the block that is the last to have read
 * it; `now` is what they read. */
DEVICE void batch_advance(dsi_cuda_batch *next, const dsi_cuda_batch &now)
{
    __threadfence();
    if (atomicAdd(&next->taken, 1ull) + 1 < gridDim.x * gridDim.y) return;
    __threadfence();
    next->taken = 0;
    next->index = (const long long *)now.index + now.n;
    if (now.copy.bytes) next->copy.to = (char *)now.copy.to + now.copy.bytes;
}

/* Field 0 is images as bytes; the table has the float of each channel's bytes.
 * Other fields are moved as bits. Blocks along y share a row. */
KERNEL(gather_batch, dsi_cuda_batch_args, 256)
{
    SHARED(dsi_cuda_batch, shared, [1]);
    dsi_cuda_batch &batch = shared[0];
    int t = threadIdx.x, words = sizeof batch / sizeof(int);
    if (!P.next && t == 0) batch = P.batch;
    for (int i = t; P.next && i < words; i += blockDim.x)
        ((int *)shared)[i] = ((const int *)P.next)[i];
    __syncthreads();
    if (P.next && t == 0) batch_advance(P.next, batch);
    const unsigned char *bytes = (const unsigned char *)batch.field[0].x;
    const float *table = (const float *)batch.table;
    int begin = blockIdx.y * blockDim.x + t, step = gridDim.y * blockDim.x;
    if (batch.copy.bytes && blockIdx.x == 0 && begin == 0)
        store_bits(batch.copy.to, (int)batch.copy.bytes, 0,
                   load_bits(batch.copy.from, (int)batch.copy.bytes, 0));
    for (long long b = blockIdx.x; b < batch.n; b += gridDim.x) {
        long long row = ((const long long *)batch.index)[b];
        bool good = row >= 0 && row < batch.rows;
        if (!good && begin == 0) set_fault(batch.fault, K_FAULT_ROW, row, b, -1, batch.rows);
        long long from = good ? row * batch.field[0].elements : 0, to = b * batch.field[0].elements;
        for (int i = begin; batch.field[0].y && i < batch.field[0].elements; i += step)
            store<float>(batch.field[0].y, batch.field[0].dtype, to + i,
                         good ? table[i / batch.plane * 256 + bytes[from + i]] : 0);
        for (int f = 1; f < batch.fields; f++) {
            int n = batch.field[f].elements, size = size_of(batch.field[f].dtype);
            for (int i = begin; batch.field[f].y && i < n; i += step)
                store_bits(batch.field[f].y, size, b * n + i,
                           good ? load_bits(batch.field[f].x, size, row * n + i) : 0);
        }
    }
}

/* y [V,D] = 0 before; x [N,D]. A block a position i: if i is the first with its
 * row, the block adds all that follow, in their order. */
template <class C> DEVICE void scatter_rows(const dsi_cuda_index &P)
{
    SHARED(int, hits, [256]);
    const dsi_cuda_view &x = P.x, &y = P.y;
    long long n = x.d[0], step = P.index.s[0];
    int t = threadIdx.x, threads = blockDim.x;
    for (long long i = blockIdx.x; i < n; i += gridDim.x) {
        long long row = index_at(P.index, i * step);
        if (row == P.skip) continue;
        if (row < 0 || row >= y.d[0]) {
            if (t == 0) set_fault(P.fault, K_FAULT_ROW, row, i, -1, y.d[0]);
            continue;
        }
        int earlier = 0;
        for (long long j = t; j < i; j += threads) earlier |= index_at(P.index, j * step) == row;
        hits[t] = earlier;
        __syncthreads();
        for (int k = 0; k < threads; k++) earlier |= hits[k];
        __syncthreads();
        if (earlier) continue;
        for (long long column = 0; column < x.d[1]; column += threads) {
            long long c = column + t;
            C sum = 0;
            for (long long from = i; from < n; from += threads) {
                hits[t] = from + t < n && index_at(P.index, (from + t) * step) == row;
                __syncthreads();
                for (int k = 0; k < threads && c < x.d[1]; k++)
                    if (hits[k]) sum += load<C>(x.p, x.dtype, (from + k) * x.s[0] + c * x.s[1]);
                __syncthreads();
            }
            if (c < x.d[1]) store<C>(y.p, y.dtype, row * y.s[0] + c * y.s[1], sum);
        }
    }
}
KERNEL(scatter_rows_f32, dsi_cuda_index, 256) { scatter_rows<float>(P); }
KERNEL(scatter_rows_f64, dsi_cuda_index, 256) { scatter_rows<double>(P); }

/* ---- many rows: positions sorted by row, then a block a row ----------------
 * A radix sort keeps the order of equal keys: of each row the positions stay in
 * their order. A block counts the digits of K_SORT_CHUNK keys; one block adds
 * up; each block places its keys, thread d those whose digit is d. */

/* The keys. Positions that are left out get the last row, V. */
KERNEL(sort_rows_keys, dsi_cuda_index, 256)
{
    long long rows = P.y.d[0];
    GRID_LOOP(i, P.n)
    {
        long long row = index_at(P.index, i * P.index.s[0]);
        bool good = row >= 0 && row < rows;
        if (!good && row != P.skip) set_fault(P.fault, K_FAULT_ROW, row, i, -1, rows);
        unsigned long long key = good && row != P.skip ? row : rows;
        P.to[i] = key << 32 | (unsigned long long)i;
    }
}

DEVICE unsigned digit_of(const dsi_cuda_index &P, long long i)
{
    return (unsigned)(P.from[i] >> (32 + P.shift)) & (K_SORT_DIGITS - 1);
}

/* counts[d][chunk] */
KERNEL(sort_rows_count, dsi_cuda_index, 256)
{
    SHARED(unsigned char, digit, [K_SORT_CHUNK]);
    for (long long chunk = blockIdx.x; chunk < P.chunks; chunk += gridDim.x) {
        long long begin = chunk * K_SORT_CHUNK;
        int n = (int)min(P.n - begin, (long long)K_SORT_CHUNK), mine = 0;
        for (int i = threadIdx.x; i < n; i += 256) digit[i] = (unsigned char)digit_of(P, begin + i);
        __syncthreads();
        for (int i = 0; i < n; i++) mine += digit[i] == threadIdx.x;
        P.counts[threadIdx.x * P.chunks + chunk] = mine;
        __syncthreads();
    }
}

/* counts: from numbers to where they begin. One block: thread d has digit d. */
KERNEL(sort_rows_sum, dsi_cuda_index, 256)
{
    SHARED(unsigned, total, [K_SORT_DIGITS]);
    unsigned *mine = P.counts + threadIdx.x * P.chunks, sum = 0, before = 0;
    for (long long c = 0; c < P.chunks; c++) sum += mine[c];
    total[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned d = 0; d < threadIdx.x; d++) before += total[d];
    for (long long c = 0; c < P.chunks; c++) {
        unsigned n = mine[c];
        mine[c] = before;
        before += n;
    }
}

KERNEL(sort_rows_place, dsi_cuda_index, 256)
{
    SHARED(unsigned char, digit, [K_SORT_CHUNK]);
    for (long long chunk = blockIdx.x; chunk < P.chunks; chunk += gridDim.x) {
        long long begin = chunk * K_SORT_CHUNK;
        int n = (int)min(P.n - begin, (long long)K_SORT_CHUNK);
        unsigned at = P.counts[threadIdx.x * P.chunks + chunk];
        for (int i = threadIdx.x; i < n; i += 256) digit[i] = (unsigned char)digit_of(P, begin + i);
        __syncthreads();
        for (int i = 0; i < n; i++)
            if (digit[i] == threadIdx.x) P.to[at++] = P.from[begin + i];
        __syncthreads();
    }
}

/* y [V,D] = 0 before. A block for each first position of a row. */
template <class C> DEVICE void scatter_sorted(const dsi_cuda_index &P)
{
    const dsi_cuda_view &x = P.x, &y = P.y;
    for (long long i = blockIdx.x; i < P.n; i += gridDim.x) {
        long long row = (long long)(P.from[i] >> 32), end = i;
        if (row >= y.d[0] || (i && (long long)(P.from[i - 1] >> 32) == row)) continue;
        while (end < P.n && (long long)(P.from[end] >> 32) == row) end++;
        for (long long c = threadIdx.x; c < x.d[1]; c += blockDim.x) {
            C sum = 0;
            for (long long j = i; j < end; j++)
                sum += load<C>(x.p, x.dtype, (long long)(unsigned)P.from[j] * x.s[0] + c * x.s[1]);
            store<C>(y.p, y.dtype, row * y.s[0] + c * y.s[1], sum);
        }
    }
}
KERNEL(scatter_sorted_f32, dsi_cuda_index, 256) { scatter_sorted<float>(P); }
KERNEL(scatter_sorted_f64, dsi_cuda_index, 256) { scatter_sorted<double>(P); }

/* ---- elements: x [outer,C,inner], index and y [outer,K,inner] ---- */

KERNEL(gather, dsi_cuda_index, 256)
{
    const dsi_cuda_view &x = P.x, &y = P.y, &at = P.index;
    int bytes = size_of(y.dtype);
    GRID_LOOP(e, y.d[0] * y.d[1] * y.d[2])
    {
        long long i = e % y.d[2], k = e / y.d[2] % y.d[1], o = e / (y.d[1] * y.d[2]);
        long long c = index_at(at, o * at.s[0] + k * at.s[1] + i * at.s[2]);
        bool good = c >= 0 && c < x.d[1];
        if (!good) set_fault(P.fault, K_FAULT_ELEMENT, c, o, k * y.d[2] + i, x.d[1]);
        store_bits(y.p, bytes, o * y.s[0] + k * y.s[1] + i * y.s[2],
                   good ? load_bits(x.p, bytes, o * x.s[0] + c * x.s[1] + i * x.s[2]) : 0);
    }
}

/* y [outer,C,inner] = 0 before; x [outer,K,inner]. A thread a line of y. */
template <class C> DEVICE void scatter_add(const dsi_cuda_index &P)
{
    const dsi_cuda_view &x = P.x, &y = P.y, &at = P.index;
    bool half = y.dtype == K_F16 || y.dtype == K_BF16;
    GRID_LOOP(e, x.d[0] * x.d[2])
    {
        long long o = e / x.d[2], i = e % x.d[2];
        long long from = o * x.s[0] + i * x.s[2], to = o * y.s[0] + i * y.s[2];
        long long names = o * at.s[0] + i * at.s[2];
        for (long long k = 0; k < x.d[1]; k++) {
            long long c = index_at(at, names + k * at.s[1]);
            if (c < 0 || c >= y.d[1]) {
                set_fault(P.fault, K_FAULT_ELEMENT, c, o, k * x.d[2] + i, y.d[1]);
                continue;
            }
            C sum = load<C>(x.p, x.dtype, from + k * x.s[1]);
            if (!half) sum += load<C>(y.p, y.dtype, to + c * y.s[1]);
            bool first = true; /* 16 bits are rounded once: the first of a name adds them all */
            for (long long j = 0; half && first && j < k; j++)
                first = index_at(at, names + j * at.s[1]) != c;
            for (long long j = k + 1; half && first && j < x.d[1]; j++)
                if (index_at(at, names + j * at.s[1]) == c)
                    sum += load<C>(x.p, x.dtype, from + j * x.s[1]);
            if (first) store<C>(y.p, y.dtype, to + c * y.s[1], sum);
        }
    }
}
KERNEL(scatter_add_f32, dsi_cuda_index, 256) { scatter_add<float>(P); }
KERNEL(scatter_add_f64, dsi_cuda_index, 256) { scatter_add<double>(P); }

/* ---- experts: slot [S,k]; w [S,k] or absent; unit stride along D ---- */

DEVICE long long slot_at(const dsi_cuda_index &P, long long s, long long k)
{
    return index_at(P.index, s * P.index.s[0] + k * P.index.s[1]);
}

template <class C> DEVICE C weight_at(const dsi_cuda_index &P, long long s, long long k)
{
    return P.w.p ? load<C>(P.w.p, P.w.dtype, s * P.w.s[0] + k * P.w.s[1]) : (C)1;
}

/* y = 0 before */
template <class C> DEVICE void dispatch(const dsi_cuda_index &P)
{
    const dsi_cuda_view &x = P.x, &y = P.y;
    long long width = x.d[1], slots = P.index.d[1];
    GRID_LOOP(e, x.d[0] * slots * width)
    {
        long long c = e % width, k = e / width % slots, s = e / (width * slots);
        long long slot = slot_at(P, s, k);
        if (slot < 0) continue;
        C v = load<C>(x.p, x.dtype, s * x.s[0] + c) * weight_at<C>(P, s, k);
        store<C>(y.p, y.dtype, slot * y.s[0] + c, v);
    }
}
KERNEL(dispatch_f32, dsi_cuda_index, 256) { dispatch<float>(P); }
KERNEL(dispatch_f64, dsi_cuda_index, 256) { dispatch<double>(P); }

template <class C> DEVICE void combine(const dsi_cuda_index &P)
{
    const dsi_cuda_view &x = P.x, &y = P.y;
    long long width = y.d[1];
    GRID_LOOP(e, y.d[0] * width)
    {
        long long c = e % width, s = e / width;
        C sum = 0;
        for (long long k = 0; k < P.index.d[1]; k++) {
            long long slot = slot_at(P, s, k);
            if (slot >= 0) sum += weight_at<C>(P, s, k) * load<C>(x.p, x.dtype, slot * x.s[0] + c);
        }
        store<C>(y.p, y.dtype, s * y.s[0] + c, sum);
    }
}
KERNEL(combine_f32, dsi_cuda_index, 256) { combine<float>(P); }
KERNEL(combine_f64, dsi_cuda_index, 256) { combine<double>(P); }

/* y: dy [S,D]; w: the output. A warp a weight. */
template <class C> DEVICE void combine_dw(const dsi_cuda_index &P)
{
    const dsi_cuda_view &x = P.x, &y = P.y, &w = P.w;
    long long all = w.d[0] * w.d[1], warps = (long long)gridDim.x * (blockDim.x / 32);
    for (long long e = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32; e < all;
         e += warps) {
        long long s = e / w.d[1], k = e % w.d[1], slot = slot_at(P, s, k);
        C sum = 0;
        for (long long c = threadIdx.x % 32; slot >= 0 && c < y.d[1]; c += 32)
            sum += load<C>(y.p, y.dtype, s * y.s[0] + c) * load<C>(x.p, x.dtype, slot * x.s[0] + c);
        for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
        if (threadIdx.x % 32 == 0) store<C>(w.p, w.dtype, s * w.s[0] + k * w.s[1], sum);
    }
}
KERNEL(combine_dw_f32, dsi_cuda_index, 256) { combine_dw<float>(P); }
KERNEL(combine_dw_f64, dsi_cuda_index, 256) { combine_dw<double>(P); }
