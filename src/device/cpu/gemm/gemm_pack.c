/* device/cpu/gemm/gemm_pack.c: packs vectors of any strides into panels
 * [k][width] of float32, which a tile reads in one stream.
 *
 * Neighbouring vectors are often a page or more apart. The processor's
 * prefetchers do not follow such steps, so the lines that are needed next are
 * prefetched here.
 * SPDX-License-Identifier: MIT */
#include "gemm_pack.h"

#include "base/int.h"
#include "device/cpu/simd/half.h"
#include "device/cpu/simd/transpose.h"
#include "tile_size.h"

#include <string.h>

#define LINE  16 /* floats of a cache line */
#define AHEAD 16 /* rows (values of k) between a prefetch and the read */
/* Panels of a column-major a that are packed together: they read whole cache
 * lines of each of its columns, at least two. */
#define GROUPS (TILE_ROWS == 6 ? 8 : 2 * LINE / TILE_ROWS)

/* ---- a panel ------------------------------------------------------------------------------------------ */

/* Vectors with unit stride: [n][k] -> [k][width], by squares of VF x VF that
 * are transposed in registers. One cache line of each vector is read at a time;
 * the line four further is prefetched. */
static void pack_along(const Packing *x, const float *from, float *to, int n)
{
    const int64_t across = x->across, squares = x->k / VF * VF;
    const int width = x->width, full = n / VF * VF;
    for (int64_t k = 0; k < squares; k += LINE) {
        int64_t end = dsi_min(k + LINE, squares);
        for (int i = 0; i < full; i += VF) {
            if (k + 4 * LINE < squares)
                for (int j = 0; j < VF; j++)
                    __builtin_prefetch(from + (i + j) * across + k + 4 * LINE);
            for (int64_t q = k; q < end; q += VF)
                transpose(from + i * across + q, across, VF, to + q * width + i, width);
        }
        for (int i = full; i < n; i++)
            for (int64_t q = k; q < end; q++) to[q * width + i] = from[i * across + q];
    }
    for (int64_t k = squares; k < x->k; k++)
        for (int i = 0; i < n; i++) to[k * width + i] = from[i * across + k];
}

/* n floats; n is a constant where it is common, so that memcpy becomes vector
 * moves. */
ALWAYS_INLINE void pack_copy(float *to, const float *from, int n)
{
#if defined(DSI_ISA_avx512)
    if (n == TILE_ROWS) { /* 24 bytes by one load and one store */
        const __mmask8 some = (1 << TILE_ROWS) - 1;
        _mm256_mask_storeu_ps(to, some, _mm256_maskz_loadu_ps(some, from));
        return;
    }
#endif
    memcpy(to, from, (size_t)n * sizeof *to);
}

/* Vectors that are neighbours: row k has their n elements side by side: [k][n]
 * -> [k][width]. The same for `panels` panels of n vectors each, row by row. */
ALWAYS_INLINE void pack_copy_rows(const Packing *x, const float *from, float *to, int n, int panels)
{
    for (int64_t k = 0; k < x->k; k++) {
        const float *row = from + k * x->along;
        if (k + AHEAD < x->k)
            for (int i = 0; i < n * panels; i += LINE)
                __builtin_prefetch(row + AHEAD * x->along + i);
        for (int p = 0; p < panels; p++) pack_copy(to + (p * x->k + k) * x->width, row + p * n, n);
    }
}

/* pack_copy_rows for one panel, with n a constant where it is common. */
static void pack_across(const Packing *x, const float *from, float *to, int n)
{
    if (n == TILE_COLS)
        pack_copy_rows(x, from, to, TILE_COLS, 1);
    else if (n == TILE_ROWS)
        pack_copy_rows(x, from, to, TILE_ROWS, 1);
    else
        pack_copy_rows(x, from, to, n, 1);
}

static void pack_floats(const Packing *x, const float *from, float *to, int n)
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

#define HALF_K     64 /* elements of a vector that are upcast at a time */
#define ROWS_AHEAD 8  /* rows that become float32 rows, between a prefetch and the read */

/* The same from 16 bits: upcasts [n][HALF_K] into a buffer in the first cache,
 * then packs from there. */
static void pack_half_panel(const Packing *x, const uint16_t *from, float *to, int n)
{
    float upcast[TILE_COLS * HALF_K]; /* [n][HALF_K] */
    if (x->width == 1) {
        for (int64_t k = 0; k < x->k; k += 2 * LINE)
            __builtin_prefetch(from + ROWS_AHEAD * x->across + k);
        half_to_floats(x->dtype, from, to, x->k);
        return;
    }
    if (x->across == 1) {
        for (int64_t k = 0; k < x->k; k++) {
            for (int i = 0; i < n; i += 2 * LINE)
                __builtin_prefetch(from + (k + AHEAD) * x->along + i);
            half_to_floats(x->dtype, from + k * x->along, to + k * x->width, n);
        }
        return;
    }
    for (int64_t k = 0; k < x->k; k += HALF_K) {
        Packing part = {NULL, DS_F32, HALF_K, 1, n, dsi_min(HALF_K, x->k - k), x->width, NULL};
        for (int i = 0; i < n; i++) {
            const uint16_t *vector = from + i * x->across + k * x->along;
            uint16_t dense[HALF_K];
            for (int64_t j = 0; j < part.k && x->along != 1; j++) dense[j] = vector[j * x->along];
            half_to_floats(x->dtype, x->along == 1 ? vector : dense, upcast + i * HALF_K, part.k);
        }
        pack_floats(&part, upcast, to + k * x->width, n);
    }
}

static void pack_panel(const Packing *x, int64_t panel)
{
    int n = (int)dsi_min(x->width, x->n - panel * x->width);
    int64_t at = panel * x->width * x->across;
    float *to = x->to + panel * x->width * x->k;
    if (is_half(x->dtype))
        pack_half_panel(x, (const uint16_t *)x->from + at, to, n);
    else
        pack_floats(x, (const float *)x->from + at, to, n);
}

/* ---- GROUPS full panels of a column-major a ------------------------------------------------------------- */

/* 16 bits: upcasts [HALF_K][GROUPS * TILE_ROWS], then packs from there. */
static void pack_half_group(const Packing *x, const uint16_t *from, float *to)
{
    enum { N = GROUPS * TILE_ROWS };
    float upcast[HALF_K * N];
    for (int64_t k = 0; k < x->k; k += HALF_K) {
        int64_t rows = dsi_min(HALF_K, x->k - k);
        for (int64_t i = 0; i < rows; i++) {
            const uint16_t *row = from + (k + i) * x->along;
            if (k + i + AHEAD < x->k)
                for (int j = 0; j < N; j += 2 * LINE)
                    __builtin_prefetch(row + AHEAD * x->along + j);
            half_to_floats(x->dtype, row, upcast + i * N, N);
        }
        for (int p = 0; p < GROUPS; p++)
            for (int64_t i = 0; i < rows; i++)
                pack_copy(to + (p * x->k + k + i) * TILE_ROWS, upcast + i * N + p * TILE_ROWS,
                          TILE_ROWS);
    }
}

static void pack_group(const Packing *x, int64_t panel)
{
    int64_t at = panel * TILE_ROWS;
    if (is_half(x->dtype))
        pack_half_group(x, (const uint16_t *)x->from + at, x->to + at * x->k);
    else
        pack_copy_rows(x, (const float *)x->from + at, x->to + at * x->k, TILE_ROWS, GROUPS);
}

/* Panels begin .. end-1. */
static void pack_panels(void *arg, int64_t begin, int64_t end)
{
    const Packing *x = arg;
    int64_t p = begin;
    if (x->across == 1 && x->width == TILE_ROWS)
        for (; p + GROUPS <= end && (p + GROUPS) * TILE_ROWS <= x->n; p += GROUPS) pack_group(x, p);
    for (; p < end; p++) pack_panel(x, p);
}

void pack_vectors(const Packing *x)
{
    int64_t panels = (x->n + x->width - 1) / x->width;
    dsi_parallel(panels, 1 + 16384 / (x->width * x->k + 1), pack_panels, (void *)x);
}
