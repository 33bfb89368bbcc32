/* device/cpu/gemm/tile.h: register tiles: R x C outputs of a product, kept in
 * registers over all of k.
 *
 *     y[i][j] = bias[j] or y[i][j] or 0, + sum over k of a[i am + k ak] b[k bk + j]
 *
 * b and y are read and written along j, VF lanes at a time. a is read one
 * number at a time and broadcast, so its strides do not matter. For each k, a
 * tile loads V vectors of b and R numbers of a, and computes R V multiply-adds:
 * the larger the tile, the fewer loads for each of them.
 *
 * R and V are constants where tile_n is inlined. Unless every loop over
 * accumulators is unrolled, gcc keeps them in memory, and two thirds of the
 * speed are lost. An element is summed in the order of k, whatever tile it is
 * in.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "tile_size.h"

typedef struct tile_operands {
    const float *a;
    int64_t am, ak;
    const float *b;
    int64_t bk, k;
    const float *bias; /* NULL: none */
    float *y;
    int64_t ym;
    bool add;       /* y +=, else y = */
    int64_t a_tile; /* elements from one tile's rows of a to those of the next tile */
    /* Operands that are prefetched meanwhile: with far_y, y of the tile below;
     * `a_lines` cache lines of each row (along k) of that tile's a. */
    bool far_y;
    int64_t a_lines;
} tile_operands;

/* Elements of k between prefetches. A processor has few buffers for lines that
 * it waits for (16), and loads wait while they are in use, so the prefetches of
 * a tile are spread over its k. */
#define PREFETCH_EACH 8

/* The prefetches of a tile whose a and y begin at a and y, after PREFETCH_EACH
 * `at` of k: a row of the next y, and a line of each of the next rows of a. */
ALWAYS_INLINE void tile_prefetch(const int R, const int V, const tile_operands *t, int64_t at,
                                 const float *a, const float *y)
{
    if (t->far_y && at < R)
        UNROLL for (int v = 0; v < V; v++) __builtin_prefetch(y + (R + at) * t->ym + v * VF, 1);
    if (at < t->a_lines)
        UNROLL for (int i = 0; i < R; i++) __builtin_prefetch(a + (R + i) * t->am + at * 16);
}

/* `count` tiles of R rows and V vectors, one below the other. If `edge`, the
 * last vector has `last` < VF columns, which are loaded and stored with a
 * mask. */
ALWAYS_INLINE void tile_n(const int R, const int V, const bool edge, const tile_operands *t,
                          int last, int64_t count)
{
    const int64_t am = t->am, ak = t->ak, bk = t->bk, ym = t->ym;
    for (int64_t n = 0; n < count; n++) {
        vf acc[TILE_ROWS][TILE_VECTORS];
        UNROLL for (int i = 0; i < R; i++) UNROLL for (int v = 0; v < V; v++) acc[i][v] = vf_zero();

        /* The offset ka = k ak is the same for all rows of a. Where registers
         * are few, one pointer serves three rows: x86 can address base, base +
         * stride and base
         * + 2 stride. */
        const float *a0 = t->a + n * t->a_tile, *b = t->b;
        const float *a[TILE_ROWS];
        UNROLL for (int i = 0; i < R; i += PER_POINTER) a[i / PER_POINTER] = a0 + i * am;
        for (int64_t k = t->k, ka = 0, at = 0; k > 0; at++) {
            int64_t left = k > PREFETCH_EACH ? k - PREFETCH_EACH : 0;
            tile_prefetch(R, V, t, at, a0, t->y + n * R * ym);
            for (; k > left; k--, ka += ak) {
                vf bv[TILE_VECTORS];
                UNROLL for (int v = 0; v < V; v++)
                {
                    bv[v] = edge && v == V - 1 ? vf_load_n(b + v * VF, last) : vf_load(b + v * VF);
                    IN_REGISTER(bv[v]);
                }
                UNROLL for (int i = 0; i < R; i++)
                {
                    vf av = vf_set(a[i / PER_POINTER][i % PER_POINTER * am + ka]);
                    UNROLL for (int v = 0; v < V; v++) acc[i][v] = vf_fma(av, bv[v], acc[i][v]);
                }
                b += bk;
            }
        }

        float *y = t->y + n * R * ym;
        const float *more = t->add ? y : t->bias;
        const int64_t step = t->add ? ym : 0;
        if (t->add || t->bias) UNROLL for (int i = 0; i < R; i++) UNROLL for (int v = 0; v < V; v++)
            {
                const float *p = more + i * step + v * VF;
                acc[i][v] = vf_add(acc[i][v], edge && v == V - 1 ? vf_load_n(p, last) : vf_load(p));
            }
        UNROLL for (int i = 0; i < R; i++) UNROLL for (int v = 0; v < V; v++)
        {
            if (edge && v == V - 1)
                vf_store_n(y + i * ym + v * VF, acc[i][v], last);
            else
                vf_store(y + i * ym + v * VF, acc[i][v]);
        }
    }
}

/* `count` tiles of R rows and any number of columns up to TILE_COLS. */
ALWAYS_INLINE void tile_rows(const int R, const tile_operands *t, int cols, int64_t count)
{
    if (cols == TILE_COLS) tile_n(R, TILE_VECTORS, false, t, VF, count);
#if TILE_VECTORS == 4
    else if (cols > 3 * VF)
        tile_n(R, 4, true, t, cols - 3 * VF, count);
#endif
#if TILE_VECTORS >= 3
    else if (cols > 2 * VF)
        tile_n(R, 3, true, t, cols - 2 * VF, count);
#endif
    else if (cols > VF)
        tile_n(R, 2, true, t, cols - VF, count);
    else
        tile_n(R, 1, true, t, cols, count);
}

/* y [rows][cols], cols <= TILE_COLS. t.a_tile is the distance of TILE_ROWS rows
 * of a. The rows that remain are done by tiles of 4, 3, 2 or 1 rows, compiled
 * separately. */
static void tile(tile_operands t, int64_t rows, int cols)
{
    int64_t full = rows / TILE_ROWS, left = rows % TILE_ROWS;
    if (full) tile_rows(TILE_ROWS, &t, cols, full);
    t.a += full * t.a_tile;
    t.y += full * TILE_ROWS * t.ym;
#if TILE_ROWS > 4
    if (left >= 4) {
        tile_rows(4, &t, cols, 1);
        t.a += 4 * t.am;
        t.y += 4 * t.ym;
        left -= 4;
    }
#endif
    if (left == 3) tile_rows(3, &t, cols, 1);
    if (left == 2) tile_rows(2, &t, cols, 1);
    if (left == 1) tile_rows(1, &t, cols, 1);
}
