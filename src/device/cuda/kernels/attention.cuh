/* device/cuda/kernels/attention.cuh: scaled dot product attention, without ever
 * holding the scores [L,S]; attention.cu and attention_mma.cu make kernels of
 * it.
 * Source: Dao et al., FlashAttention, arXiv:2205.14135.
 *
 * A block takes a tile of T queries (T = 64, float64: 32) and reads the keys a
 * tile at a time; scores are in registers. Forward keeps the maximum and the
 * sum of each row so far, and scales both and the output when the maximum
 * grows. lse = log sum exp of a row's scores, from which backward computes the
 * softmax of any tile again. Widths above T are cut into pieces of T, a block
 * each, which compute the scores again.
 *
 * Backward has a kernel for dq, by tiles of queries, and one for dk and dv, by
 * tiles of keys: so each sum has one order. A row whose scores are all -inf
 * gives 0 and no gradient. With a window, tiles outside of it are left out.
 *
 * X computes the products of tiles. Element [r][c] of a thread's R x R is (16 r
 * + t / 16, 16 c + t % 16) of a tile, t the thread.
 *     X::C, X::R, X::Shared   the type; elements; shared memory, with tile[T][T + 1]
 *     X::product(p, s, a, b, i, j, width)
 *         p = sum over k < width of a(i + row, k) b(j + column, k)
 *     X::times(y, s, p, b, at, first)
 *         y += sum over k < T of p[row][k] b(first + k, at + column)
 * SPDX-License-Identifier: MIT */
#pragma once

#include "attention.h"
#include "attention_cap.cuh"
#include "attention_dropout.cuh"
#include "common.cuh"
#include "team.cuh"

/* n rows of `width` elements from `first` on. */
struct row_operand {
    const void *p;
    int dtype;
    long long first, step, n, width;
    DEVICE_MEMBER long long place(long long i, long long k) const
    {
        return i < n && k < width ? first + i * step + k : -1;
    }
};
/* The same, transposed: i counts elements of a row, k rows. */
struct column_operand {
    row_operand rows;
    const void *p;
    int dtype;
    DEVICE_MEMBER long long place(long long i, long long k) const { return rows.place(k, i); }
};

/* Where a batch begins; `heads` of them have the stride s[1]. */
DEVICE long long batch_place(const long long *s, long long batch, long long heads)
{
    return batch / heads * s[0] + batch % heads * s[1];
}

template <class C, int R, class S> DEVICE void tile_keep(S &s, const C (&v)[R][R])
{
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < R; c++)
            s.tile[threadIdx.x / 16 + 16 * r][threadIdx.x % 16 + 16 * c] = v[r][c];
}

/* Writes v as rows [row, rows) and columns [column, columns) of a batch of an
 * output: a thread its own elements, by way of the tile. */
template <class C, int R, class S>
DEVICE void tile_write(const dsi_cuda_attention_args &P, S &s, const C (&v)[R][R], void *out,
                       long long at, long long step, long long row, long long rows,
                       long long column, long long columns)
{
    tile_keep<C, R>(s, v);
#pragma unroll 1
    for (int e = 0; e < R * R; e++) {
        int r = threadIdx.x / 16 + e / R * 16, c = threadIdx.x % 16 + e % R * 16;
        if (row + r < rows && column + c < columns)
            store<C>(out, P.dtype, at + (row + r) * step + column + c, s.tile[r][c]);
    }
}

/* Adds the mask to the scores of this thread, by way of its elements of the
 * tile: rolled loops, because the mask has many cases. i, j: of element (0, 0);
 * keys_first: the tile's rows are keys. */
template <class C, int R, class S>
DEVICE void scores_mask(const dsi_cuda_attention_args &P, S &s, long long batch, long long i,
                        long long j, bool keys_first, C (&p)[R][R])
{
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    long long first = batch_place(P.mask_s, batch, P.heads);
    tile_keep<C, R>(s, p);
#pragma unroll 1
    for (int e = 0; e < R * R; e++) {
        int r = ty + e / R * 16, c = tx + e % R * 16;
        long long row = keys_first ? j + c : i + r, key = keys_first ? i + r : j + c;
        if (row >= P.l || key >= P.s) continue;
        long long at = first + row * P.mask_s[2] + key * P.mask_s[3];
        if (P.mask_dtype != K_BOOL)
            s.tile[r][c] += load<C>(P.mask, P.mask_dtype, at);
        else if (!((const unsigned char *)P.mask)[at])
            s.tile[r][c] = -(C)INFINITY;
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < R; c++) p[r][c] = s.tile[ty + 16 * r][tx + 16 * c];
}

/* Scores become capped ones, by way of the thread's elements of the tile: a
 * rolled
 * loop. */
template <class C, int R, class S> DEVICE void scores_cap(C softcap, S &s, C (&p)[R][R])
{
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    tile_keep<C, R>(s, p);
#pragma unroll 1
    for (int e = 0; e < R * R; e++) {
        C &x = s.tile[ty + e / R * 16][tx + e % R * 16];
        x = score_capped(x, softcap);
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < R; c++) p[r][c] = s.tile[ty + 16 * r][tx + 16 * c];
}

/* Products become scores; -inf where they do not count. */
template <class C, int R, class S>
DEVICE void scores_of(const dsi_cuda_attention_args &P, S &s, long long batch, long long i,
                      long long j, bool keys_first, C (&p)[R][R])
{
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < R; c++) p[r][c] *= (C)P.scale;
    if (P.softcap > 0) scores_cap<C, R>((C)P.softcap, s, p);
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < R; c++) {
            long long a = i + threadIdx.x / 16 + 16 * r, b = j + threadIdx.x % 16 + 16 * c;
            long long row = keys_first ? b : a, key = keys_first ? a : b;
            bool counts = row < P.l && key < P.s && !(P.causal && key > row) &&
                          !(P.window && row - key >= P.window);
            p[r][c] = counts ? p[r][c] : -(C)INFINITY;
        }
    if (P.mask) scores_mask<C, R>(P, s, batch, i, j, keys_first, p);
}

/* Which of this thread's weights dropout keeps: bit R r + c for element [r][c].
 * i, j and keys_first are those of scores_of. */
template <int R>
DEVICE unsigned weights_kept(const dsi_cuda_attention_args &P, long long batch, long long i,
                             long long j, bool keys_first)
{
    if (!P.drops) return ~0u;
    unsigned long long seed = dropout_seed(P);
    unsigned kept = 0;
#pragma unroll 1
    for (int e = 0; e < R * R; e++) {
        unsigned a = (unsigned)i + threadIdx.x / 16 + e / R * 16,
                 b = (unsigned)j + threadIdx.x % 16 + e % R * 16, word[4];
        unsigned query = keys_first ? b : a, key = keys_first ? a : b;
        dropout_words(P, seed, batch, query & ~8u, key & ~8u, word);
        unsigned w = query & 8 ? (key & 8 ? word[3] : word[2]) : key & 8 ? word[1] : word[0];
        kept |= (unsigned)(w < P.kept) << e;
    }
    return kept;
}

template <class C, int R> DEVICE void weights_drop(C (&p)[R][R], unsigned kept)
{
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < R; c++) p[r][c] = kept >> (R * r + c) & 1 ? p[r][c] : (C)0;
}

/* The first key of the tiles of T keys that a query from `row` on attends to,
 * and the query behind the last one that attends to a key before `end`. */
template <int T> DEVICE long long keys_begin(const dsi_cuda_attention_args &P, long long row)
{
    long long first = P.window ? row - P.window + 1 : 0;
    return first > 0 ? first / T * T : 0;
}
DEVICE long long queries_end(const dsi_cuda_attention_args &P, long long end)
{
    return P.window ? min(P.l, end + P.window - 1) : P.l;
}

/* Of batch of q, and of the batch of k and v that it attends to. */
#define QUERIES(p, strides, batch, width) \
    row_operand { p, P.dtype, batch_place(strides, batch, P.heads), (strides)[2], P.l, width }
#define KEYS(p, strides, batch, width) \
    row_operand \
    { \
        p, P.dtype, batch_place(strides, batch, P.heads / P.group), (strides)[2], P.s, width \
    }

/* Blocks of 256: tiles of queries, pieces of E, batches. */
template <class X> DEVICE void attention_forward(const dsi_cuda_attention_args &P)
{
    typedef typename X::C C;
    typedef typename X::Shared Shared;
    enum { R = X::R, T = 16 * R };
    SHARED(Shared, s, [1]);
    long long row = blockIdx.x * (long long)T, piece = blockIdx.y * (long long)T,
              batch = blockIdx.z;
    row_operand q = QUERIES(P.q, P.qs, batch, P.d), k = KEYS(P.k, P.ks, batch / P.group, P.d),
                v = KEYS(P.v, P.vs, batch / P.group, P.e);
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    C out[R][R] = {}, most[R], sum[R];
    for (int r = 0; r < R; r++) most[r] = -(C)INFINITY, sum[r] = 0;
    long long end = P.causal ? min(P.s, row + T) : P.s;
#pragma unroll 1
    for (long long key = keys_begin<T>(P, row); key < end; key += T) {
        unsigned kept = weights_kept<R>(P, batch, row, key, false);
        C p[R][R] = {};
        X::product(p, s[0], q, k, row, key, P.d);
        scores_of<C, R>(P, s[0], batch, row, key, false, p);
#pragma unroll
        for (int r = 0; r < R; r++) {
            C top = -(C)INFINITY, total = 0;
#pragma unroll
            for (int c = 0; c < R; c++) top = p[r][c] > top ? p[r][c] : top;
            top = lanes_max(top, 16);
            top = top > most[r] ? top : most[r];
            C shift = top == -(C)INFINITY ? (C)0 : top, factor = exp_of(most[r] - shift);
#pragma unroll
            for (int c = 0; c < R; c++)
                p[r][c] = exp_of(p[r][c] - shift), total += p[r][c], out[r][c] *= factor;
            sum[r] = sum[r] * factor + lanes_sum(total, 16);
            most[r] = top;
        }
        weights_drop(p, kept);
        X::times(out, s[0], p, v, piece, key);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        long long i = row + ty + 16 * r;
#pragma unroll
        for (int c = 0; c < R; c++) out[r][c] = sum[r] == 0 ? (C)0 : out[r][c] * (C)P.factor / sum[r];
        if (piece == 0 && tx == 0 && i < P.l)
            ((C *)P.lse)[batch_place(P.lse_s, batch, P.heads) + i * P.lse_s[2]] = sum[r] == 0
                                                                    ? -(C)INFINITY
                                                                    : most[r] + log_of(sum[r]);
    }
    tile_write<C, R>(P, s[0], out, P.out, batch_place(P.ys, batch, P.heads), P.ys[2], row, P.l,
                     piece, P.e);
}

/* ---- backward: p = exp(score - lse), ds = p (dp - dot) scale, dp = dy v^T -------
 * With dropout dp is that of the weights that are kept, times factor. */

/* lse and dot of a row; 0 outside, and for lse where all scores are -inf: then
 * exp(score - lse) is 0. */
template <class C>
DEVICE void row_stats(const dsi_cuda_attention_args &P, long long batch, long long row, C *lse,
                      C *dot)
{
    *lse = *dot = 0;
    if (row >= P.l) return;
    *lse = ((const C *)P.lse)[batch_place(P.lse_s, batch, P.heads) + row * P.lse_s[2]];
    if (*lse == -(C)INFINITY) *lse = 0;
    *dot = ((const C *)P.dot)[batch * P.l + row];
}

/* Blocks of 256: tiles of queries, pieces of D, batches. */
template <class X> DEVICE void attention_dq(const dsi_cuda_attention_args &P)
{
    typedef typename X::C C;
    typedef typename X::Shared Shared;
    enum { R = X::R, T = 16 * R };
    SHARED(Shared, s, [1]);
    long long row = blockIdx.x * (long long)T, piece = blockIdx.y * (long long)T,
              batch = blockIdx.z;
    row_operand q = QUERIES(P.q, P.qs, batch, P.d), dy = QUERIES(P.dy, P.dys, batch, P.e),
                k = KEYS(P.k, P.ks, batch / P.group, P.d),
                v = KEYS(P.v, P.vs, batch / P.group, P.e);
    int ty = threadIdx.x / 16;
    C dq[R][R] = {};
    long long end = P.causal ? min(P.s, row + T) : P.s;
#pragma unroll 1
    for (long long key = keys_begin<T>(P, row); key < end; key += T) {
        unsigned kept = weights_kept<R>(P, batch, row, key, false);
        C p[R][R] = {}, dp[R][R] = {};
        X::product(p, s[0], q, k, row, key, P.d);
        X::product(dp, s[0], dy, v, row, key, P.e);
        scores_of<C, R>(P, s[0], batch, row, key, false, p);
        weights_drop(dp, kept);
#pragma unroll
        for (int r = 0; r < R; r++) {
            C lse, dot;
            row_stats<C>(P, batch, row + ty + 16 * r, &lse, &dot);
#pragma unroll
            for (int c = 0; c < R; c++) {
                p[r][c] = exp_of(p[r][c] - lse);
                dp[r][c] = (dp[r][c] * (C)P.factor - dot) * (C)P.scale;
                if (P.softcap > 0)
                    dp[r][c] *= capped_slope(p[r][c], lse, (C)P.softcap_inverse);
                p[r][c] *= dp[r][c];
            }
        }
        X::times(dq, s[0], p, k, piece, key);
    }
    tile_write<C, R>(P, s[0], dq, P.dq, batch_place(P.dqs, batch, P.heads), P.dqs[2], row, P.l,
                     piece, P.d);
}

/* Adds what the queries of one tile, from `row` on, give to dk and dv. */
template <class X, class C, int R>
DEVICE void attention_add_dkv(const dsi_cuda_attention_args &P, typename X::Shared &s,
                              long long batch, long long row, long long key, long long piece,
                              C (&dk)[R][R], C (&dv)[R][R])
{
    row_operand q = QUERIES(P.q, P.qs, batch, P.d), dy = QUERIES(P.dy, P.dys, batch, P.e),
                k = KEYS(P.k, P.ks, batch / P.group, P.d),
                v = KEYS(P.v, P.vs, batch / P.group, P.e);
    int tx = threadIdx.x % 16;
    C p[R][R] = {}, dp[R][R] = {}, weight[R][R];
    X::product(p, s, k, q, key, row, P.d);
    scores_of<C, R>(P, s, batch, key, row, true, p);
    C lse[R], dot[R];
#pragma unroll
    for (int c = 0; c < R; c++) {
        row_stats<C>(P, batch, row + tx + 16 * c, &lse[c], &dot[c]);
#pragma unroll
        for (int r = 0; r < R; r++) weight[r][c] = p[r][c] = exp_of(p[r][c] - lse[c]);
    }
    unsigned kept = weights_kept<R>(P, batch, key, row, true);
    weights_drop(weight, kept);
    if (piece < P.e) X::times(dv, s, weight, dy, piece, row);
    if (piece >= P.d) return;
    X::product(dp, s, v, dy, key, row, P.e);
    weights_drop(dp, kept);
#pragma unroll
    for (int c = 0; c < R; c++)
#pragma unroll
        for (int r = 0; r < R; r++)
            dp[r][c] = p[r][c] * (dp[r][c] * (C)P.factor - dot[c]) * (C)P.scale;
    if (P.softcap > 0)
#pragma unroll
        for (int c = 0; c < R; c++)
#pragma unroll
            for (int r = 0; r < R; r++)
                dp[r][c] *= capped_slope(p[r][c], lse[c], (C)P.softcap_inverse);
    X::times(dk, s, dp, q, piece, row);
}

/* Blocks of 256: tiles of keys, pieces of D and E, batches of k. */
template <class X> DEVICE void attention_dkv(const dsi_cuda_attention_args &P)
{
    typedef typename X::C C;
    typedef typename X::Shared Shared;
    enum { R = X::R, T = 16 * R };
    SHARED(Shared, s, [1]);
    long long key = blockIdx.x * (long long)T, piece = blockIdx.y * (long long)T,
              shared = blockIdx.z;
    C dk[R][R] = {}, dv[R][R] = {};
    long long end = queries_end(P, key + T);
#pragma unroll 1
    for (long long batch = shared * P.group; batch < (shared + 1) * P.group; batch++)
#pragma unroll 1
        for (long long row = P.causal ? key : 0; row < end; row += T)
            attention_add_dkv<X>(P, s[0], batch, row, key, piece, dk, dv);
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < R; c++) dv[r][c] *= (C)P.factor;
    long long heads = P.heads / P.group;
    tile_write<C, R>(P, s[0], dk, P.dk, batch_place(P.dks, shared, heads), P.dks[2], key, P.s,
                     piece, P.d);
    tile_write<C, R>(P, s[0], dv, P.dv, batch_place(P.dvs, shared, heads), P.dvs[2], key, P.s,
                     piece, P.e);
}
