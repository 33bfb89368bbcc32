/* device/cpu/gemm/gemm_pack.h: blocks of a matrix, packed for a product of
 * matrices (gemm.c).
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/cpu/simd/isa.h"

#define pack_vectors KERNEL(dsi_pack_vectors)

/* n vectors of k elements: the rows of a, or the columns of b. They become
 * panels of `width` vectors, in each of which a tile reads k after k. */
typedef struct Packing {
    const void *from;
    ds_dtype dtype;        /* float32, float16 or bfloat16 */
    int64_t across, along; /* elements from vector to vector, along a vector */
    int64_t n, k;
    int width; /* TILE_ROWS for a, TILE_COLS for b; 1: 16-bit rows, along = 1, become float32 rows */
    float *to; /* [panels][k][width] */
} Packing;

/* Packs on several threads. Columns of the last panel that have no vector are
 * not written; a tile does not read them. */
void pack_vectors(const Packing *x);
