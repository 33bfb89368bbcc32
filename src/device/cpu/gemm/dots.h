/* device/cpu/gemm/dots.h: a matrix product made of dot products.
 *
 * For operands that both have unit stride along k (products NT), and few rows:
 * packing b would then cost as much as the product. A block of DOT_ROWS x
 * DOT_COLS dot products shares its loads: each vector of a is used DOT_COLS
 * times, each of b DOT_ROWS times. The number of accumulators is that of a tile
 * (tile_size.h).
 *
 * Order of a sum: each of VF lanes sums every VF-th product, in order; vf_sum
 * adds the lanes at the end. It depends on the instruction set, not on the
 * block.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "tile_size.h"

#define DOT_ROWS 4
#define DOT_COLS (TILE_ROWS * TILE_VECTORS / DOT_ROWS)

/* y[i ym + j] = bias[j] + sum over k of a[i am + k] b[j bn + k] */
typedef struct dot_operands {
    const float *a, *b;
    int64_t am, bn, k;
    const float *bias; /* NULL: none */
    float *y;
    int64_t ym;
} dot_operands;

/* Multiplies VF elements of k, or the last n if `part`, of R rows of a with
 * those of C rows of b. R and C are constants at each call, as in tile.h. */
ALWAYS_INLINE void dot_step(const int R, const int C, const bool part, const dot_operands *t,
                            int64_t k, int n, vf acc[DOT_ROWS][DOT_COLS])
{
    vf b[DOT_COLS];
    UNROLL for (int j = 0; j < C; j++)
    {
        const float *p = t->b + j * t->bn + k;
        b[j] = part ? vf_load_n(p, n) : vf_load(p);
        IN_REGISTER(b[j]);
        if (C == DOT_COLS) __builtin_prefetch(p + C * t->bn); /* of the next block */
    }
    UNROLL for (int i = 0; i < R; i++)
    {
        const float *p = t->a + i * t->am + k;
        vf a = part ? vf_load_n(p, n) : vf_load(p);
        UNROLL for (int j = 0; j < C; j++) acc[i][j] = vf_fma(a, b[j], acc[i][j]);
    }
}

/* R x C outputs; then moves t to the next C columns. */
ALWAYS_INLINE void dot_n(const int R, const int C, dot_operands *t)
{
    vf acc[DOT_ROWS][DOT_COLS];
    int64_t k = 0;
    UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < C; j++) acc[i][j] = vf_zero();
    for (; k + VF <= t->k; k += VF) dot_step(R, C, false, t, k, VF, acc);
    if (k < t->k) dot_step(R, C, true, t, k, (int)(t->k - k), acc);
    UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < C; j++)
        t->y[i * t->ym + j] = vf_sum(acc[i][j]) + (t->bias ? t->bias[j] : 0);
    t->b += C * t->bn;
    t->y += C;
    if (t->bias) t->bias += C;
}

/* R rows of y, all columns: blocks of DOT_COLS, then of 2 and of 1. */
ALWAYS_INLINE void dot_rows(const int R, dot_operands t, int64_t cols)
{
    for (; cols >= DOT_COLS; cols -= DOT_COLS) dot_n(R, DOT_COLS, &t);
    for (; cols >= 2; cols -= 2) dot_n(R, 2, &t);
    if (cols) dot_n(R, 1, &t);
}

/* y [rows][cols], both of any size. */
static void dots(dot_operands t, int64_t rows, int64_t cols)
{
    for (; rows >= DOT_ROWS; rows -= DOT_ROWS) {
        dot_rows(DOT_ROWS, t, cols);
        t.a += DOT_ROWS * t.am;
        t.y += DOT_ROWS * t.ym;
    }
    if (rows == 3) dot_rows(3, t, cols);
    if (rows == 2) dot_rows(2, t, cols);
    if (rows == 1) dot_rows(1, t, cols);
}
