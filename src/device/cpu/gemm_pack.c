/* device/cpu/gemm_pack.c: packing: vectors that lie anyhow -> panels [k][width] of float32, which a tile reads in
 * one stream.
 *
 * A vector's neighbours across lie a row, often a page, apart, so that no prefetcher of the processor follows
 * them: the lines needed next are asked for here.
 * SPDX-License-Identifier: MIT */
#include "gemm_pack.h"
#include "half.h"
#include "tile_size.h"

#include <string.h>

#define LINE  16 /* floats of a cache line */
#define AHEAD 16 /* rows of a panel that are asked for ahead of their turn */
#define GROUP 4  /* panels that are packed at a time, if they are narrow and lie along a line */

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

typedef float Quad __attribute__((__vector_size__(16)));

/* Elements of a (0 to 3) and b (4 to 7): clang's word for it, which gcc has from version 12 on. */
#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#endif
#endif
#ifndef SHUFFLE
typedef int Lanes __attribute__((__vector_size__(16)));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (Lanes){__VA_ARGS__})
#endif

/* 4 vectors of 4 elements -> 4 rows of the panel. */
ALWAYS_INLINE void pack_4x4(const float *from, int64_t across, float *to, int width)
{
    Quad r[4];
    for (int i = 0; i < 4; i++) memcpy(&r[i], from + i * across, sizeof r[i]);
    Quad lo01 = SHUFFLE(r[0], r[1], 0, 4, 1, 5);
    Quad hi01 = SHUFFLE(r[0], r[1], 2, 6, 3, 7);
    Quad lo23 = SHUFFLE(r[2], r[3], 0, 4, 1, 5);
    Quad hi23 = SHUFFLE(r[2], r[3], 2, 6, 3, 7);
    r[0] = SHUFFLE(lo01, lo23, 0, 1, 4, 5);
    r[1] = SHUFFLE(lo01, lo23, 2, 3, 6, 7);
    r[2] = SHUFFLE(hi01, hi23, 0, 1, 4, 5);
    r[3] = SHUFFLE(hi01, hi23, 2, 3, 6, 7);
    for (int i = 0; i < 4; i++) memcpy(to + i * width, &r[i], sizeof r[i]);
}

/* Vectors along lines: [n][k] -> [k][width], a line of each vector at a time. */
static void pack_along(const Packing *x, const float *from, float *to, int n)
{
    const int64_t across = x->across;
    int64_t k = 0;
    for (; k + 4 <= x->k; k += LINE) {
        int64_t end = min(k + LINE, x->k / 4 * 4);
        int i = 0;
        for (; i + 4 <= n; i += 4) {
            for (int j = 0; j < 4; j++) __builtin_prefetch(from + (i + j) * across + k + 2 * LINE);
            for (int64_t q = k; q < end; q += 4)
                pack_4x4(from + i * across + q, across, to + q * x->width + i, x->width);
        }
        for (; i < n; i++)
            for (int64_t q = k; q < end; q++) to[q * x->width + i] = from[i * across + q];
    }
    for (k = x->k / 4 * 4; k < x->k; k++)
        for (int i = 0; i < n; i++) to[k * x->width + i] = from[i * across + k];
}

/* Vectors across lines: [k][n] -> [k][width]. */
ALWAYS_INLINE void copy_rows(const Packing *x, const float *from, float *to, int n)
{
    for (int64_t k = 0; k < x->k; k++) {
        const float *row = from + k * x->along;
        for (int i = 0; i < n; i += LINE) __builtin_prefetch(row + AHEAD * x->along + i);
        memcpy(to + k * x->width, row, (size_t)n * sizeof *to);
    }
}

static void pack_across(const Packing *x, const float *from, float *to, int n)
{
    if (n == TILE_COLS)
        copy_rows(x, from, to, TILE_COLS);
    else if (n == TILE_ROWS)
        copy_rows(x, from, to, TILE_ROWS);
    else
        copy_rows(x, from, to, n);
}

static void pack_panel(const Packing *x, const float *from, float *to, int n)
{
    if (x->across == 1) {
        pack_across(x, from, to, n);
    } else if (x->along == 1) {
        pack_along(x, from, to, n);
    } else {
        for (int64_t k = 0; k < x->k; k++)
            for (int i = 0; i < n; i++) to[k * x->width + i] = from[i * x->across + k * x->along];
    }
}

#define HALF_K 64 /* elements of a vector that are made float at a time */

static void pack_half_panel(const Packing *x, const uint16_t *from, float *to, int n)
{
    float wide[TILE_COLS * HALF_K]; /* [n][HALF_K] */
    if (x->across == 1) {
        for (int64_t k = 0; k < x->k; k++)
            half_to_floats(x->dtype, from + k * x->along, to + k * x->width, n);
        return;
    }
    for (int64_t k = 0; k < x->k; k += HALF_K) {
        Packing part = {NULL, DS_F32, HALF_K, 1, n, min(HALF_K, x->k - k), x->width, NULL};
        for (int i = 0; i < n; i++) {
            const uint16_t *vector = from + i * x->across + k * x->along;
            uint16_t dense[HALF_K];
            for (int64_t j = 0; j < part.k && x->along != 1; j++) dense[j] = vector[j * x->along];
            half_to_floats(x->dtype, x->along == 1 ? vector : dense, wide + i * HALF_K, part.k);
        }
        pack_panel(&part, wide, to + k * x->width, n);
    }
}

static void pack_panels(void *arg, int64_t begin, int64_t end)
{
    const Packing *x = arg;
    for (int64_t p = begin; p < end; p++) {
        int n = (int)min(x->width, x->n - p * x->width);
        int64_t at = p * x->width * x->across;
        float *to = x->to + p * x->width * x->k;
        if (is_half(x->dtype))
            pack_half_panel(x, (const uint16_t *)x->from + at, to, n);
        else
            pack_panel(x, (const float *)x->from + at, to, n);
    }
}

void pack_vectors(Packing x)
{
    int64_t panels = (x.n + x.width - 1) / x.width;
    dsi_parallel(panels, 1 + 16384 / (x.width * x.k + 1), pack_panels, &x);
}
