/* device/cpu/tile.h: register tiles: R x C outputs of a product, kept in registers over all of k.
 *
 *     y[i][j] = bias[j] or y[i][j] or 0, + sum over k of a[i am + k ak] b[k bk + j]
 *
 * b and y are read and written along j, VF lanes at a time; a is read one number at a time, so its
 * strides do not matter. R and the number of vectors are constants where tile_n is inlined: unless
 * every loop over accumulators is unrolled, gcc keeps them in memory and two thirds of the speed are
 * lost.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_DEVICE_CPU_TILE_H
#define DSI_DEVICE_CPU_TILE_H

#include "isa.h"

#ifdef DSI_ISA_avx512
#define TILE_ROWS 12 /* 24 accumulators of 32 registers */
#else
#define TILE_ROWS 6 /* 12 of 16 */
#endif
#define TILE_VECTORS 2
#define TILE_COLS    (TILE_VECTORS * VF)

typedef struct tile_operands {
    const float *a;
    int64_t am, ak;
    const float *b;
    int64_t bk, k;
    const float *bias; /* NULL: none */
    float *y;
    int64_t ym;
    bool add; /* to what y holds */
} tile_operands;

/* last: lanes of the last vector; VF unless `edge`. */
ALWAYS_INLINE void tile_n(const int R, const int V, const bool edge, const tile_operands *t,
                          int last)
{
    vf acc[TILE_ROWS][TILE_VECTORS];
    UNROLL for (int i = 0; i < R; i++) UNROLL for (int v = 0; v < V; v++) acc[i][v] = vf_zero();

    /* A pointer for each three rows: the others are reached by x86's base + stride and base + 2 stride. */
    const int64_t am = t->am, ak = t->ak, bk = t->bk;
    const float *a[4] = {t->a, t->a + 3 * am, t->a + 6 * am, t->a + 9 * am}, *b = t->b;
    for (int64_t k = t->k; k > 0; k--) {
        vf bv[TILE_VECTORS];
        UNROLL for (int v = 0; v < V; v++)
        {
            bv[v] = edge && v == V - 1 ? vf_load_n(b + v * VF, last) : vf_load(b + v * VF);
            IN_REGISTER(bv[v]);
        }
        UNROLL for (int i = 0; i < R; i++)
        {
            vf av = vf_set(a[i / 3][i % 3 * am]);
            UNROLL for (int v = 0; v < V; v++) acc[i][v] = vf_fma(av, bv[v], acc[i][v]);
        }
        UNROLL for (int i = 0; i < (R + 2) / 3; i++) a[i] += ak;
        b += bk;
    }

    UNROLL for (int i = 0; i < R; i++) UNROLL for (int v = 0; v < V; v++)
    {
        const bool part = edge && v == V - 1;
        float *y = t->y + i * t->ym + v * VF;
        const float *more = t->add ? y : t->bias ? t->bias + v * VF : NULL;
        if (more) acc[i][v] = vf_add(acc[i][v], part ? vf_load_n(more, last) : vf_load(more));
        if (part)
            vf_store_n(y, acc[i][v], last);
        else
            vf_store(y, acc[i][v]);
    }
}

#define TILE_CASE(R) \
    case R: \
        if (cols == TILE_COLS) \
            tile_n(R, 2, false, t, VF); \
        else if (cols > VF) \
            tile_n(R, 2, true, t, cols - VF); \
        else \
            tile_n(R, 1, true, t, cols); \
        break;

/* One tile of rows <= TILE_ROWS, one of those listed, by cols <= TILE_COLS. */
static void tile(const tile_operands *t, int rows, int cols)
{
    switch (rows) {
        TILE_CASE(1)
        TILE_CASE(2)
        TILE_CASE(3)
        TILE_CASE(4)
        TILE_CASE(6)
#if TILE_ROWS == 12
        TILE_CASE(8)
        TILE_CASE(12)
#endif
    }
}

/* The rows of the next tile when `left` are left. */
ALWAYS_INLINE int tile_rows(int64_t left)
{
    if (left >= TILE_ROWS) return TILE_ROWS;
    return left >= 8 ? 8 : left >= 6 ? 6 : left >= 4 ? 4 : (int)left;
}

#endif
