/* device/cpu/gemm/tiles.h: the matrix unit (AMX): squares of sums of bfloat16
 * products, and the packing of their operands.
 *
 * The unit has eight tile registers of 16 lines of 64 bytes. One instruction
 * takes 16 rows of a with 32 elements of k, and 16 columns of b with the same
 * elements, stored in pairs along k, and adds their product to a tile of 16 x
 * 16 float32 sums. Here tiles 0 to 3 hold the sums of a square of SIDE x SIDE
 * elements, tiles 4 and 5 hold a, 6 and 7 hold b, so four loads serve four
 * products.
 *
 * Invariants: all of square_* is between tiles_begin and tiles_end of the same
 * thread. memory.c has asked the system's permission before.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/cpu/simd/amx.h"
#include "device/cpu/simd/isa.h"

#include <stdatomic.h>

/* This build knows the unit; dsi_cpu_amx() says whether the processor has it. */
#if defined(DSI_ISA_avx512) && defined(DSI_KNOWS_AMX)
#define HAS_TILES

#define LINES 16            /* lines of a tile register */
#define DEEP  32            /* elements of k in a line of a or b */
#define SIDE  32            /* rows, and columns, of the square in four tiles */
#define STEP  (SIDE * DEEP) /* packed elements of two tiles of a, or of b */

#define USES_TILES __attribute__((target("amx-tile,amx-bf16,avx512bf16")))
/* The compiler does not know which memory tile instructions read and write: no
 * load or store may move across this. */
#define MEMORY_IS_WRITTEN() __asm__ volatile("" ::: "memory")

/* bfloat16 numbers whose sum is one of dtype: float32 has 24 bits of mantissa,
 * float16 11, bfloat16 8. */
ALWAYS_INLINE int parts_of(ds_dtype dtype) { return dtype == DS_F32 ? 3 : dtype == DS_F16 ? 2 : 1; }

/* Their products that count. */
ALWAYS_INLINE int products_of(int parts) { return parts == 3 ? 6 : parts == 2 ? 4 : 1; }

/* ---- packing (amx_pack.c) ------------------------------------------------------------------------------- */

/* n vectors of k elements: rows of a, or columns of b; `across` elements from
 * vector to vector, `along` from one of their elements to the next ->
 * [SIDE vectors each][DEEP of k each][parts][STEP], zeros behind both ends. */
typedef struct Packing {
    const void *from;
    ds_dtype dtype; /* bfloat16, float16 or float32 */
    int64_t across, along, n, k;
    bool pairs; /* packed as b: pairs of elements along k */
    uint16_t *to;
    /* If dtype has several parts: becomes the largest magnitude, as the bits of
     * a float, unless it is larger. */
    _Atomic uint32_t *largest;
} Packing;

#define amx_pack KERNEL(dsi_amx_pack)
void amx_pack(const Packing *x);

/* ---- a square ------------------------------------------------------------------------------------------- */

/* The operand of the instruction ldtilecfg. */
typedef struct Tiles {
    uint8_t palette, start, zero[14];
    uint16_t line_bytes[16];
    uint8_t lines[16];
} Tiles;

USES_TILES static inline void tiles_begin(void)
{
    Tiles tiles = {.palette = 1};
    for (int i = 0; i < 8; i++) tiles.line_bytes[i] = 64, tiles.lines[i] = LINES;
    MEMORY_IS_WRITTEN();
    _tile_loadconfig(&tiles);
}

/* Else the system saves the tiles at each thread switch. */
USES_TILES static inline void tiles_end(void) { _tile_release(); }

/* The square starts from 0, or from sums, whose rows are `line` floats apart: 0
 * 1 are its upper tiles, 2 3 the lower ones. */
USES_TILES static inline void square_begin(const float *sums, int64_t line)
{
    MEMORY_IS_WRITTEN();
    if (!sums) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        return;
    }
    const int64_t bytes = line * (int64_t)sizeof *sums;
    _tile_loadd(0, sums, bytes);
    _tile_loadd(1, sums + 16, bytes);
    _tile_loadd(2, sums + 16 * line, bytes);
    _tile_loadd(3, sums + 16 * line + 16, bytes);
}

/* Adds steps of DEEP elements of k. Elements of a: `line` from row to row,
 * `step` to the next step, `below` to the lower LINES rows, which are left out
 * if !lower. b is a packed panel; its right half is left out if !right. */
#define SQUARE(name, load) \
    USES_TILES static inline void name(const uint16_t *a, int64_t line, int64_t step, \
                                       int64_t below, const uint16_t *b, int64_t steps, \
                                       bool lower, bool right) \
    { \
        const int64_t bytes = line * (int64_t)sizeof *a; \
        for (int64_t i = 0; i < steps; i++, a += step, b += STEP) { \
            load(4, a, bytes); \
            load(6, b, 64); \
            _tile_dpbf16ps(0, 4, 6); \
            if (right) { \
                load(7, b + STEP / 2, 64); \
                _tile_dpbf16ps(1, 4, 7); \
            } \
            if (!lower) continue; \
            load(5, a + below, bytes); \
            _tile_dpbf16ps(2, 5, 6); \
            if (right) _tile_dpbf16ps(3, 5, 7); \
        } \
    }

SQUARE(square_add, _tile_loadd)
/* The same if a and b are in the second cache: what is read once or does not
 * fit does not go through the first. */
SQUARE(square_stream, _tile_stream_loadd)
#undef SQUARE

/* Tiles 4 and 5 = part p of a step of a, 6 and 7 = that of b. */
#define LOAD_A(p) \
    do { \
        _tile_loadd(4, a + (p)*STEP, 64); \
        if (lower) _tile_loadd(5, a + (p)*STEP + STEP / 2, 64); \
    } while (0)
#define LOAD_B(p) \
    do { \
        _tile_loadd(6, b + (p)*STEP, 64); \
        if (right) _tile_loadd(7, b + (p)*STEP + STEP / 2, 64); \
    } while (0)
#define ADD_PRODUCT() \
    do { \
        _tile_dpbf16ps(0, 4, 6); \
        if (right) _tile_dpbf16ps(1, 4, 7); \
        if (lower) _tile_dpbf16ps(2, 5, 6); \
        if (lower && right) _tile_dpbf16ps(3, 5, 7); \
        for (int l = 0; l < lines; l++, next += 64) _mm_prefetch(next, _MM_HINT_T1); \
    } while (0)

/* Adds steps of DEEP elements of k of numbers in `parts` parts; a and b are
 * packed. After each of products_of(parts) products of parts in a step, `lines`
 * cache lines from `next` on are brought to the second cache. */
USES_TILES static inline void square_parts(const int parts, const uint16_t *a, const uint16_t *b,
                                           int64_t steps, const bool lower, const bool right,
                                           const char *next, int64_t lines)
{
    for (int64_t i = 0; i < steps; i++, a += parts * STEP, b += parts * STEP) {
        LOAD_B(0);
        if (parts == 3) {
            LOAD_A(2);
            ADD_PRODUCT();
        }
        LOAD_A(1);
        ADD_PRODUCT();
        LOAD_B(1);
        ADD_PRODUCT();
        LOAD_A(0);
        ADD_PRODUCT();
        if (parts == 3) {
            LOAD_B(2);
            ADD_PRODUCT();
        }
        LOAD_B(0);
        ADD_PRODUCT();
    }
}
#undef LOAD_A
#undef LOAD_B
#undef ADD_PRODUCT

USES_TILES static inline void square_end(float *sums, int64_t line)
{
    const int64_t bytes = line * (int64_t)sizeof *sums;
    _tile_stored(0, sums, bytes);
    _tile_stored(1, sums + 16, bytes);
    _tile_stored(2, sums + 16 * line, bytes);
    _tile_stored(3, sums + 16 * line + 16, bytes);
    MEMORY_IS_WRITTEN();
}

#endif
