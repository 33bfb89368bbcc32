/* device/cpu/gemm/few_rows.h: a product NN of at most FEW_ROWS rows, such as a
 * token's in a language model: b is read once, so the time is that of reading it.
 *
 * A tile (tile.h) reads a few vectors of each row of b, which is a new page each
 * time. Here FEW_DEPTH rows of b are read from end to end, as memory gives them
 * fastest, and the sums of all columns are in the first cache.
 *
 * Order of a sum: that of k, from 0 in each call, as in a tile: an element has
 * the same bits.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "tile.h"

#define FEW_ROWS  8
#define FEW_SUMS  8192 /* of a chunk of columns: 32 KB */
#define FEW_DEPTH 4    /* rows of b at a time */

/* Adds D rows of b, from row k on, to the sums of R rows and n columns: whole
 * vectors, or the last n < VF columns if `part`. */
ALWAYS_INLINE void few_add(const int R, const int D, const bool part, const tile_operands *t,
                           int64_t k, int64_t from, int64_t n, float *sum)
{
    vf a[FEW_ROWS][FEW_DEPTH];
    UNROLL for (int i = 0; i < R; i++) UNROLL for (int d = 0; d < D; d++)
        a[i][d] = vf_set(t->a[i * t->am + (k + d) * t->ak]);
    for (int64_t j = from; j < from + n; j += VF) {
        vf s[FEW_ROWS];
        UNROLL for (int i = 0; i < R; i++) s[i] = vf_load(sum + i * (FEW_SUMS / R) + j);
        UNROLL for (int d = 0; d < D; d++)
        {
            const float *p = t->b + (k + d) * t->bk + j;
            vf b = part ? vf_load_n(p, (int)n) : vf_load(p);
            UNROLL for (int i = 0; i < R; i++) s[i] = vf_fma(a[i][d], b, s[i]);
        }
        UNROLL for (int i = 0; i < R; i++) vf_store(sum + i * (FEW_SUMS / R) + j, s[i]);
    }
}

/* R rows, cols <= FEW_SUMS / R. */
ALWAYS_INLINE void few_n(const int R, const tile_operands *t, int64_t cols)
{
    float sum[FEW_SUMS]; /* row i begins at i (FEW_SUMS / R) */
    int64_t whole = cols / VF * VF, k = 0;
    for (int i = 0; i < R; i++)
        for (int64_t j = 0; j < cols; j += VF) vf_store(sum + i * (FEW_SUMS / R) + j, vf_zero());
    for (; k + FEW_DEPTH <= t->k; k += FEW_DEPTH) {
        few_add(R, FEW_DEPTH, false, t, k, 0, whole, sum);
        if (whole < cols) few_add(R, FEW_DEPTH, true, t, k, whole, cols - whole, sum);
    }
    for (; k < t->k; k++) {
        few_add(R, 1, false, t, k, 0, whole, sum);
        if (whole < cols) few_add(R, 1, true, t, k, whole, cols - whole, sum);
    }
    for (int i = 0; i < R; i++) {
        float *y = t->y + i * t->ym;
        const float *more = t->add ? y : t->bias;
        const float *from = sum + i * (FEW_SUMS / R);
        for (int64_t j = 0; j < cols; j++) y[j] = more ? from[j] + more[j] : from[j];
    }
}

/* y [rows][cols], rows <= FEW_ROWS, any number of columns. */
static void few_rows(tile_operands t, int64_t rows, int64_t cols)
{
    int64_t most = FEW_SUMS / rows / VF * VF;
    for (int64_t j = 0; j < cols; j += most) {
        int64_t n = cols - j < most ? cols - j : most;
        if (rows == 8) few_n(8, &t, n);
        if (rows == 7) few_n(7, &t, n);
        if (rows == 6) few_n(6, &t, n);
        if (rows == 5) few_n(5, &t, n);
        if (rows == 4) few_n(4, &t, n);
        if (rows == 3) few_n(3, &t, n);
        if (rows == 2) few_n(2, &t, n);
        if (rows == 1) few_n(1, &t, n);
        t.b += n, t.y += n;
        if (t.bias) t.bias += n;
    }
}
