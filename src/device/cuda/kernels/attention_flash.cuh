/* device/cuda/kernels/attention_flash.cuh: attention in 16 bits by tensor
 * cores, with scores, softmax and sums in registers, for heads of at most 128
 * elements in aligned vectors of 16 bytes, without a mask but the causal one
 * and its window. DROPS: with dropout of the weights;
 * attention_flash_dropout.cu has these kernels, which are larger and need more
 * registers, attention_flash.cu the others.
 * Source: Dao, FlashAttention-2, arXiv:2307.08691. attention_mma.cu has the rest.
 *
 * A block of 4 warps takes 64 rows: queries, or in the kernel for dk and dv
 * keys; a warp 16 of them. It reads the other side's rows N at a time, of which
 * the next N arrive by cp.async while these are multiplied. Heads are padded
 * with zeros to W = 64 or 128 elements.
 *
 * The factors of values, keys and queries are sums of two numbers of the
 * operands' dtype, as in attention_mma.cu. Element e of fragment j of a warp's
 * 16 x N is (lane / 4 + e / 2 * 8, j * 8 + lane % 4 * 2 + e % 2).
 *
 * Invariants: a barrier between the arrival of a stage and its first read, and
 * between its last read and its next filling.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "attention.h"
#include "attention_cap.cuh"
#include "attention_dropout.cuh"
#include "common.cuh"
#include "ptx.cuh"
#include "team.cuh"
#include "vector.cuh"

#define ROWS    64
#define THREADS 128

typedef unsigned short half_bits;

template <bool BF16> struct half_type {
    typedef __half T;
};
template <> struct half_type<true> {
    typedef __nv_bfloat16 T;
};

/* n rows of a batch, of `width` elements. */
struct head_rows {
    half_bits *p;
    long long step;
    int n, width;
};

/* Where a batch begins; `heads` of them have the stride s[1]. */
DEVICE long long batch_place(const long long *s, long long batch, long long heads)
{
    unsigned outer = (unsigned)batch / (unsigned)heads, inner = (unsigned)batch % (unsigned)heads;
    return outer * s[0] + inner * s[1];
}

DEVICE head_rows rows_of(const void *p, const long long *s, long long batch, long long heads,
                         long long n, long long width)
{
    return {(half_bits *)p + batch_place(s, batch, heads), s[2], (int)n, (int)width};
}
#define QUERIES(p, strides, batch, width) rows_of(p, strides, batch, P.heads, P.l, width)
#define KEYS(p, strides, batch, width) \
    rows_of(p, strides, batch, P.heads / P.group, P.s, width)

/* Where 8 elements of a line of W are: no bank conflicts for ldmatrix. */
template <int W> DEVICE int piece_place(int line, int piece)
{
    return line * W + (piece ^ line % 8) * 8;
}

/* Brings N rows from `first` on; zeros where there are none. */
template <int W, int N> DEVICE void rows_fill(half_bits *to, const head_rows &x, int first)
{
#pragma unroll
    for (int j = 0; j < N * W / 8 / THREADS; j++) {
        int i = threadIdx.x + j * THREADS, line = i / (W / 8), piece = i % (W / 8);
        bool inside = first + line < x.n && piece * 8 < x.width;
        cp_async16(&to[piece_place<W>(line, piece)],
                   inside ? x.p + (first + line) * x.step + piece * 8 : x.p, inside ? 16 : 0);
    }
}

template <bool BF16> DEVICE void mma_add(float (&acc)[4], const unsigned *a, const unsigned *b)
{
    if (BF16)
        mma_bf16_16816(acc, a, b, acc);
    else
        mma_f16_16816(acc, a, b, acc);
}

/* p = the 16 lines of a from `row` on times the N lines of b, transposed */
template <bool BF16, int W, int N>
DEVICE void lines_product(float (&p)[N / 8][4], const half_bits *a, int row, const half_bits *b)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) p[j][e] = 0;
#pragma unroll
    for (int k = 0; k < W / 8; k += 2) {
        unsigned x[4], y[4];
        ldmatrix_x4(x, &a[piece_place<W>(row + lane % 16, k + lane / 16)]);
#pragma unroll
        for (int j = 0; j < N / 16; j++) {
            ldmatrix_x4(
                y, &b[piece_place<W>(j * 16 + lane / 16 * 8 + lane % 8, k + lane / 8 % 2)]);
            mma_add<BF16>(p[2 * j], x, y);
            mma_add<BF16>(p[2 * j + 1], x, y + 2);
        }
    }
}

/* Two numbers of the dtype whose sum is x, nearly. */
template <bool BF16> DEVICE void pair_split(const float *x, unsigned *high, unsigned *low)
{
    typedef typename half_type<BF16>::T T;
    float rounded[2];
    *high = pair_pack<T>(x[0], x[1]);
    pair_unpack<T>(rounded, *high);
    *low = pair_pack<T>(x[0] - rounded[0], x[1] - rounded[1]);
}

/* y += p times the N lines of b */
template <bool BF16, int W, int N>
DEVICE void lines_sum(float (&y)[W / 8][4], const float (&p)[N / 8][4], const half_bits *b)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        unsigned high[4], low[4], x[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            pair_split<BF16>(&p[2 * k + e / 2][e % 2 * 2], &high[e], &low[e]);
#pragma unroll
        for (int j = 0; j < W / 16; j++) {
            ldmatrix_x4_trans(x, &b[piece_place<W>(k * 16 + lane % 16, j * 2 + lane / 16)]);
            mma_add<BF16>(y[2 * j], low, x);
            mma_add<BF16>(y[2 * j + 1], low, x + 2);
            mma_add<BF16>(y[2 * j], high, x);
            mma_add<BF16>(y[2 * j + 1], high, x + 2);
        }
    }
}

/* Products become scores; -inf where a key does not count for its query. i, j:
 * row and column of a warp's element (0, 0). Queries beyond the last one need
 * no care: they are zeros, and their results are not written. */
template <int N>
DEVICE void scores_of(const dsi_cuda_attention_args &P, float (&p)[N / 8][4], int i, int j,
                      bool keys_first)
{
    int lane = threadIdx.x % 32, a = i + lane / 4, b = j + lane % 4 * 2, keys = (int)P.s,
        window = (int)P.window;
    float scale = (float)P.scale, softcap = (float)P.softcap;
#pragma unroll
    for (int c = 0; c < N / 8; c++)
#pragma unroll
        for (int e = 0; e < 4; e++) p[c][e] *= scale;
    if (softcap > 0) {
        float twice = 2 * (float)P.softcap_inverse; /* tanh u = 1 - 2 / (1 + e^2u) */
#pragma unroll
        for (int c = 0; c < N / 8; c++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                p[c][e] = softcap - __fdividef(2 * softcap, 1 + exp_of(p[c][e] * twice));
    }
    bool whole = keys_first || j + N <= keys;
    bool near = window && (keys_first ? j + N - 1 - i : i + 15 - j) >= window;
    if (whole && !near && !(P.causal && (keys_first ? i + 15 > j : j + N - 1 > i))) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        /* columns that count: begin .. end-1 */
        int own = a + r * 8, begin = keys_first ? own : window ? own - window + 1 : 0,
            end = keys_first ? (window ? own + window : (int)P.l)
                             : P.causal ? min(keys, own + 1) : keys;
#pragma unroll
        for (int c = 0; c < N / 8; c++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int column = b + c * 8 + e;
                bool counts = column >= begin && column < end;
                p[c][r * 2 + e] = counts ? p[c][r * 2 + e] : -INFINITY;
            }
    }
}

/* Which weights of scores_of's elements dropout keeps: bit 4 c + e for element
 * [c][e]. A pair of fragments has two groups of 4 words. */
template <int N>
DEVICE unsigned weights_kept(const dsi_cuda_attention_args &P, unsigned long long seed,
                             long long batch, int i, int j, bool keys_first)
{
    int lane = threadIdx.x % 32, a = i + lane / 4;
    unsigned kept = 0, word[4];
#pragma unroll
    for (int c = 0; c < N / 8; c += 2)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int b = j + c * 8 + lane % 4 * 2 + e;
            dropout_words(P, seed, batch, keys_first ? b : a, keys_first ? a : b, word);
#pragma unroll
            for (int w = 0; w < 4; w++) {
                int row = keys_first ? w % 2 : w / 2, column = keys_first ? w / 2 : w % 2;
                kept |= (unsigned)(word[w] < P.kept) << ((c + column) * 4 + row * 2 + e);
            }
        }
    return kept;
}

template <int N> DEVICE void weights_drop(float (&p)[N / 8][4], unsigned kept)
{
#pragma unroll
    for (int c = 0; c < N / 8; c++)
#pragma unroll
        for (int e = 0; e < 4; e++) p[c][e] = kept >> (c * 4 + e) & 1 ? p[c][e] : 0.f;
}

/* Writes a warp's 16 rows from `row` on. */
template <bool BF16, int W>
DEVICE void rows_write(const head_rows &to, const float (&v)[W / 8][4], int row)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < W / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int y = row + lane / 4 + e * 8, x = j * 8 + lane % 4 * 2;
            if (y < to.n && x < to.width)
                *(unsigned *)&to.p[y * to.step + x] =
                    pair_pack<typename half_type<BF16>::T>(v[j][e * 2], v[j][e * 2 + 1]);
        }
}

/* One tile of keys of the softmax: p becomes exp(p - most), sum and out follow. */
template <int W, int N>
DEVICE void softmax_step(float (&p)[N / 8][4], float (&out)[W / 8][4], float (&most)[2],
                         float (&sum)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = -INFINITY, total = 0;
#pragma unroll
        for (int c = 0; c < N / 8; c++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                top = p[c][r * 2 + e] > top ? p[c][r * 2 + e] : top;
        top = lanes_max(top, 4);
        top = top > most[r] ? top : most[r];
        float shift = top == -INFINITY ? 0.f : top, factor = exp_of(most[r] - shift);
#pragma unroll
        for (int c = 0; c < N / 8; c++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                p[c][r * 2 + e] = exp_of(p[c][r * 2 + e] - shift);
                total += p[c][r * 2 + e];
            }
#pragma unroll
        for (int c = 0; c < W / 8; c++) out[c][r * 2] *= factor, out[c][r * 2 + 1] *= factor;
        sum[r] = sum[r] * factor + lanes_sum(total, 4);
        most[r] = top;
    }
}

/* The first key of the tiles of N keys that a query from `row` on attends to. */
template <int N> DEVICE int keys_begin(const dsi_cuda_attention_args &P, int row)
{
    int first = P.window ? row - (int)P.window + 1 : 0;
    return first > 0 ? first / N * N : 0;
}

/* The tile of rows of this block, those with most work first. */
DEVICE int tile_of(const dsi_cuda_attention_args &P, bool keys)
{
    return (int)(P.causal && !keys ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * ROWS;
}

/* Blocks: tiles of queries, 1, batches. Shared memory: [ROWS + 2 (N + N)][W]. */
template <bool BF16, int W, bool DROPS>
DEVICE void flash_forward(const dsi_cuda_attention_args &P)
{
    enum { N = 64 };
    DYNAMIC_SHARED(half_bits, shared);
    half_bits *tile = shared, *stage = shared + ROWS * W;
    int row = tile_of(P, false), own = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
    long long batch = blockIdx.z;
    head_rows q = QUERIES(P.q, P.qs, batch, P.d), k = KEYS(P.k, P.ks, (unsigned)batch / (unsigned)P.group, P.d),
              v = KEYS(P.v, P.vs, (unsigned)batch / (unsigned)P.group, P.e), y = QUERIES(P.out, P.ys, batch, P.e);
    int begin = keys_begin<N>(P, row), end = P.causal ? (int)min(P.s, row + (long long)ROWS) : (int)P.s;
    unsigned long long seed = DROPS ? dropout_seed(P) : 0;
    float out[W / 8][4] = {}, most[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    rows_fill<W, ROWS>(tile, q, row);
    rows_fill<W, N>(stage, k, begin), rows_fill<W, N>(stage + N * W, v, begin);
    cp_async_commit();
#pragma unroll 1
    for (int key = begin, now = 0; key < end; key += N, now ^= 1) {
        half_bits *here = stage + now * 2 * N * W, *next = stage + (now ^ 1) * 2 * N * W;
        if (key + N < end)
            rows_fill<W, N>(next, k, key + N), rows_fill<W, N>(next + N * W, v, key + N);
        cp_async_commit();
        cp_async_wait(1);
        __syncthreads();
        float p[N / 8][4];
        lines_product<BF16, W, N>(p, tile, own, here);
        scores_of<N>(P, p, row + own, key, false);
        softmax_step<W, N>(p, out, most, sum);
        if (DROPS) weights_drop<N>(p, weights_kept<N>(P, seed, batch, row + own, key, false));
        lines_sum<BF16, W, N>(out, p, here + N * W);
        __syncthreads();
    }
    cp_async_wait(0);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = row + own + lane / 4 + r * 8;
#pragma unroll
        for (int c = 0; c < W / 8; c++)
#pragma unroll
            for (int e = r * 2; e < r * 2 + 2; e++)
                out[c][e] =
                    sum[r] == 0 ? 0 : out[c][e] * (DROPS ? (float)P.factor : 1.f) / sum[r];
        if (lane % 4 == 0 && i < P.l)
            ((float *)P.lse)[batch_place(P.lse_s, batch, P.heads) + i * P.lse_s[2]] =
                sum[r] == 0 ? -INFINITY : most[r] + log_of(sum[r]);
    }
    rows_write<BF16, W>(y, out, row + own);
}

/* ---- backward: p = exp(score - lse), ds = p (dp - dot) scale, dp = dy v^T -------
 * With dropout dp is that of the weights that are kept, times factor. */

/* lse of a row; 0 outside, and where all scores are -inf: then exp(score - lse)
 * is 0. */
DEVICE float row_lse(const dsi_cuda_attention_args &P, long long batch, int row)
{
    if (row >= P.l) return 0;
    float lse = ((const float *)P.lse)[batch_place(P.lse_s, batch, P.heads) + row * P.lse_s[2]];
    return lse == -INFINITY ? 0.f : lse;
}

/* dot = sum(dy y) of the block's queries, two threads a row: to `dots` and for
 * the kernel of dk and dv to P.dot. */
template <bool BF16>
DEVICE void rows_dot(const dsi_cuda_attention_args &P, const head_rows &dy, const head_rows &y,
                     long long batch, int row, float *dots)
{
    typedef typename half_type<BF16>::T T;
    int i = threadIdx.x / 2;
    float sum = 0;
    if (row + i < dy.n)
#pragma unroll 4
        for (int x = threadIdx.x % 2 * 8; x < dy.width; x += 16) {
            float a[8], b[8];
            vector_load<T>(a, dy.p, (row + i) * dy.step + x);
            vector_load<T>(b, y.p, (row + i) * y.step + x);
#pragma unroll
            for (int e = 0; e < 8; e++) sum += a[e] * b[e];
        }
    sum = lanes_sum(sum, 2);
    if (threadIdx.x % 2) return;
    dots[i] = sum;
    if (row + i < dy.n) ((float *)P.dot)[batch * P.l + row + i] = sum;
}

/* Blocks: tiles of queries, 1, batches. Shared memory: [2 ROWS + 2 (N + N)][W],
 * and ROWS floats. */
template <bool BF16, int W, int N, bool DROPS>
DEVICE void flash_dq(const dsi_cuda_attention_args &P)
{
    DYNAMIC_SHARED(half_bits, shared);
    half_bits *tile = shared, *stage = shared + 2 * ROWS * W;
    float *dots = (float *)(stage + 4 * N * W);
    int row = tile_of(P, false), own = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
    long long batch = blockIdx.z;
    head_rows q = QUERIES(P.q, P.qs, batch, P.d), dy = QUERIES(P.dy, P.dys, batch, P.e),
              k = KEYS(P.k, P.ks, (unsigned)batch / (unsigned)P.group, P.d),
              v = KEYS(P.v, P.vs, (unsigned)batch / (unsigned)P.group, P.e), y = QUERIES(P.y, P.ys, batch, P.e);
    int begin = keys_begin<N>(P, row), end = P.causal ? (int)min(P.s, row + (long long)ROWS) : (int)P.s;
    unsigned long long seed = DROPS ? dropout_seed(P) : 0;
    float dq[W / 8][4] = {}, lse[2], dot[2], factor = DROPS ? (float)P.factor : 1.f;
    rows_fill<W, ROWS>(tile, q, row), rows_fill<W, ROWS>(tile + ROWS * W, dy, row);
    rows_fill<W, N>(stage, k, begin), rows_fill<W, N>(stage + N * W, v, begin);
    cp_async_commit();
    rows_dot<BF16>(P, dy, y, batch, row, dots);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++)
        lse[r] = row_lse(P, batch, row + own + lane / 4 + r * 8), dot[r] = dots[own + lane / 4 + r * 8];
#pragma unroll 1
    for (int key = begin, now = 0; key < end; key += N, now ^= 1) {
        half_bits *here = stage + now * 2 * N * W, *next = stage + (now ^ 1) * 2 * N * W;
        if (key + N < end)
            rows_fill<W, N>(next, k, key + N), rows_fill<W, N>(next + N * W, v, key + N);
        cp_async_commit();
        unsigned kept = DROPS ? weights_kept<N>(P, seed, batch, row + own, key, false) : ~0u;
        cp_async_wait(1);
        __syncthreads();
        float p[N / 8][4], dp[N / 8][4];
        lines_product<BF16, W, N>(p, tile, own, here);
        lines_product<BF16, W, N>(dp, tile + ROWS * W, own, here + N * W);
        if (DROPS) weights_drop<N>(dp, kept);
        scores_of<N>(P, p, row + own, key, false);
#pragma unroll
        for (int c = 0; c < N / 8; c++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                p[c][e] = exp_of(p[c][e] - lse[e / 2]);
                dp[c][e] = (dp[c][e] * factor - dot[e / 2]) * (float)P.scale;
                if (P.softcap > 0) dp[c][e] *= capped_slope(p[c][e], lse[e / 2], (float)P.softcap_inverse);
                p[c][e] *= dp[c][e];
            }
        lines_sum<BF16, W, N>(dq, p, here);
        __syncthreads();
    }
    cp_async_wait(0);
    rows_write<BF16, W>(QUERIES(P.dq, P.dqs, batch, P.d), dq, row + own);
}

/* Where a stage's queries are: q, dy, and their lse and dot. */
template <int W, int N> struct query_stage {
    half_bits q[N * W], dy[N * W];
    float lse[N], dot[N];
};

template <int W, int N>
DEVICE void queries_fill(const dsi_cuda_attention_args &P, query_stage<W, N> &s, long long batch,
                         int row)
{
    rows_fill<W, N>(s.q, QUERIES(P.q, P.qs, batch, P.d), row);
    rows_fill<W, N>(s.dy, QUERIES(P.dy, P.dys, batch, P.e), row);
    int i = threadIdx.x;
    if (i >= N) return;
    s.lse[i] = row_lse(P, batch, row + i);
    s.dot[i] = row + i < P.l ? ((const float *)P.dot)[batch * P.l + row + i] : 0.f;
}

/* Blocks: tiles of keys, 1, batches of k. Shared memory: [2 ROWS][W], and two
 * stages. The queries of all batches of a group are one sequence of tiles. */
template <bool BF16, int W, int N, bool DROPS>
DEVICE void flash_dkv(const dsi_cuda_attention_args &P)
{
    typedef query_stage<W, N> Stage;
    DYNAMIC_SHARED(half_bits, shared);
    half_bits *tile = shared;
    Stage *stage = (Stage *)(shared + 2 * ROWS * W);
    int key = tile_of(P, true), own = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
    long long pair = blockIdx.z;
    int first = P.causal ? key : 0, end = (int)(P.window ? min(P.l, key + ROWS - 1 + P.window) : P.l),
        tiles = first < end ? (end - first + N - 1) / N : 0;
    int all = tiles * (int)P.group;
    unsigned long long seed = DROPS ? dropout_seed(P) : 0;
    float dk[W / 8][4] = {}, dv[W / 8][4] = {}, factor = DROPS ? (float)P.factor : 1.f;
    rows_fill<W, ROWS>(tile, KEYS(P.k, P.ks, pair, P.d), key);
    rows_fill<W, ROWS>(tile + ROWS * W, KEYS(P.v, P.vs, pair, P.e), key);
    if (all) queries_fill<W, N>(P, stage[0], pair * P.group, first);
    cp_async_commit();
#pragma unroll 1
    for (int t = 0; t < all; t++) {
        const Stage &s = stage[t % 2];
        if (t + 1 < all)
            queries_fill<W, N>(P, stage[(t + 1) % 2], pair * P.group + (t + 1) / tiles,
                               first + (t + 1) % tiles * N);
        cp_async_commit();
        int row = first + t % tiles * N;
        unsigned kept = ~0u;
        if (DROPS)
            kept = weights_kept<N>(P, seed, pair * P.group + t / tiles, key + own, row, true);
        cp_async_wait(1);
        __syncthreads();
        float p[N / 8][4], dp[N / 8][4], weight[N / 8][4];
        lines_product<BF16, W, N>(p, tile, own, s.q);
        scores_of<N>(P, p, key + own, row, true);
#pragma unroll
        for (int c = 0; c < N / 8; c++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                weight[c][e] = p[c][e] = exp_of(p[c][e] - s.lse[c * 8 + lane % 4 * 2 + e % 2]);
        if (DROPS) weights_drop<N>(weight, kept);
        lines_sum<BF16, W, N>(dv, weight, s.dy);
        lines_product<BF16, W, N>(dp, tile + ROWS * W, own, s.dy);
        if (DROPS) weights_drop<N>(dp, kept);
#pragma unroll
        for (int c = 0; c < N / 8; c++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int query = c * 8 + lane % 4 * 2 + e % 2;
                dp[c][e] = (dp[c][e] * factor - s.dot[query]) * (float)P.scale;
                if (P.softcap > 0)
                    dp[c][e] *= capped_slope(p[c][e], s.lse[query], (float)P.softcap_inverse);
                p[c][e] *= dp[c][e];
            }
        lines_sum<BF16, W, N>(dk, p, s.q);
        __syncthreads();
    }
    cp_async_wait(0);
#pragma unroll
    for (int c = 0; c < W / 8; c++)
#pragma unroll
        for (int e = 0; e < 4; e++) dv[c][e] *= factor;
    rows_write<BF16, W>(KEYS(P.dk, P.dks, pair, P.d), dk, key + own);
    rows_write<BF16, W>(KEYS(P.dv, P.dvs, pair, P.e), dv, key + own);
}

/* N: 64, or 16 where registers would not suffice. */
#define ATTENTION_FLASH(name, suffix, bf16, w, n, drops) \
    KERNEL(name##_##w##_##suffix, dsi_cuda_attention_args, THREADS) \
    { \
        flash_forward<bf16, w, drops>(P); \
    } \
    KERNEL(name##_dq_##w##_##suffix, dsi_cuda_attention_args, THREADS) \
    { \
        flash_dq<bf16, w, n, drops>(P); \
    } \
    KERNEL(name##_dkv_##w##_##suffix, dsi_cuda_attention_args, THREADS) \
    { \
        flash_dkv<bf16, w, n, drops>(P); \
    }
#define ATTENTION_FLASH_ALL(name, drops) \
    ATTENTION_FLASH(name, f16, false, 64, 64, drops) \
    ATTENTION_FLASH(name, bf16, true, 64, 64, drops) \
    ATTENTION_FLASH(name, f16, false, 128, 16, drops) \
    ATTENTION_FLASH(name, bf16, true, 128, 16, drops)
