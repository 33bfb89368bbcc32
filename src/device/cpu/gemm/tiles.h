/* device/cpu/gemm/tiles.h: squares of sums of bfloat16 products, by the matrix
 * unit (AMX) or by vectors (AVX512_BF16), and the packing of their operands.
 *
 * The unit has eight tile registers of 16 lines of 64 bytes. One instruction
 * takes 16 rows of a with 32 elements of k, and 16 columns of b with the same
 * elements, stored in pairs along k, and adds their product to a tile of 16 x
 * 16 float32 sums. Here tiles 0 to 3 hold the sums of a square of SIDE x SIDE
 * elements, tiles 4 and 5 hold a, 6 and 7 hold b, so four loads serve four
 * products.
 *
 * Processors without the unit may have an instruction that adds to 16 sums the
 * products of 16 pairs, twice as many as a float32 instruction multiplies. It
 * takes the same operands, for a few rows of the square at a time.
 *
 * Both round to nearest and take subnormal numbers for 0, whatever the
 * processor's modes are. Their sums differ in their last places.
 *
 * Invariants: all of square_* is between tiles_begin and tiles_end of the same
 * thread. memory.c has asked the system's permission before.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/cpu/cpu.h"
#include "device/cpu/simd/amx.h"
#include "device/cpu/simd/isa.h"

#include <stdatomic.h>
#include <string.h>

/* This build knows both; dsi_cpu_bf16() says whether the processor has either,
 * dsi_cpu_amx() whether it has the unit. */
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

/* ---- packing (bf16_pack.c) ------------------------------------------------------------------------------- */

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

#define bf16_pack KERNEL(dsi_bf16_pack)
void bf16_pack(const Packing *x);

/* ---- a square ------------------------------------------------------------------------------------------- */

/* SIDE x SIDE sums in memory, whose rows are `line` floats apart. Between
 * square_begin and square_end the unit has them in its tiles. */
typedef struct Square {
    float *sums;
    int64_t line;
    bool tiles; /* by the matrix unit, else by vectors */
    bool fresh; /* the sums start from 0 */
} Square;

/* The operand of the instruction ldtilecfg. */
typedef struct Tiles {
    uint8_t palette, start, zero[14];
    uint16_t line_bytes[16];
    uint8_t lines[16];
} Tiles;

USES_TILES static inline void tiles_begin(void)
{
    if (!dsi_cpu_amx()) return;
    Tiles config = {.palette = 1};
    for (int i = 0; i < 8; i++) config.line_bytes[i] = 64, config.lines[i] = LINES;
    MEMORY_IS_WRITTEN();
    _tile_loadconfig(&config);
}

/* Else the system saves the tiles at each thread switch. */
USES_TILES static inline void tiles_end(void)
{
    if (dsi_cpu_amx()) _tile_release();
}

/* 0 1 are the upper tiles of a square, 2 3 the lower ones. */
USES_TILES static inline Square square_begin(float *sums, int64_t line, bool fresh)
{
    const Square q = {sums, line, dsi_cpu_amx(), fresh};
    if (!q.tiles) return q;
    MEMORY_IS_WRITTEN();
    if (fresh) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        return q;
    }
    const int64_t bytes = line * (int64_t)sizeof *sums;
    _tile_loadd(0, sums, bytes);
    _tile_loadd(1, sums + 16, bytes);
    _tile_loadd(2, sums + 16 * line, bytes);
    _tile_loadd(3, sums + 16 * line + 16, bytes);
    return q;
}

/* sum[0 .. V-1] + the pair of elements at `a`, in all lanes, times V vectors of
 * pairs. */
#define ADD_PAIR(sum, V, a, of_b) \
    do { \
        int pair; \
        memcpy(&pair, a, sizeof pair); \
        __m512i of_a = _mm512_set1_epi32(pair); \
        IN_REGISTER(of_a); \
        UNROLL for (int j = 0; j < (V); j++)(sum)[j] = _mm512_dpbf16_ps((sum)[j], (__m512bh)of_a, \
                                                                        (__m512bh)(of_b)[j]); \
    } while (0)

/* ROWS_AT_ONCE rows of a square by vectors: each pair of elements of a row of
 * a, in all lanes, times the pairs of COLUMNS / 16 vectors of b. */
#define ROWS_AT_ONCE 8
#define DOT_ROWS(name, COLUMNS) \
    USES_TILES static inline void name(const Square *q, const uint16_t *a, int64_t line, \
                                       int64_t step, const uint16_t *b, int64_t k, float *sums) \
    { \
        __m512 sum[ROWS_AT_ONCE][COLUMNS / LINES]; \
        UNROLL for (int i = 0; i < ROWS_AT_ONCE; i++) \
            UNROLL for (int j = 0; j < COLUMNS / LINES; j++) \
                sum[i][j] = q->fresh ? vf_zero() : vf_load(sums + i * q->line + j * LINES); \
        for (; k > 0; k -= DEEP, a += step, b += STEP) \
            for (int64_t e = 0; e < (k < DEEP ? k : DEEP); e += 2) { \
                __m512i of_b[COLUMNS / LINES]; \
                UNROLL for (int j = 0; j < COLUMNS / LINES; j++) \
                    of_b[j] = _mm512_loadu_si512(b + j * STEP / 2 + e * LINES); \
                UNROLL for (int i = 0; i < ROWS_AT_ONCE; i++) \
                    ADD_PAIR(sum[i], COLUMNS / LINES, a + i * line + e, of_b); \
            } \
        UNROLL for (int i = 0; i < ROWS_AT_ONCE; i++) \
            UNROLL for (int j = 0; j < COLUMNS / LINES; j++) \
                vf_store(sums + i * q->line + j * LINES, sum[i][j]); \
    }

DOT_ROWS(dot_rows, SIDE)
DOT_ROWS(dot_rows_left, LINES)
#undef DOT_ROWS

/* square_add by vectors. As much of b as the first cache holds is read for one
 * group of rows after another. */
#define FIRST_STEPS 8
USES_TILES static void square_dots(Square *q, const uint16_t *a, int64_t line, int64_t step,
                                   int64_t below, const uint16_t *b, int64_t k, int64_t n,
                                   bool right)
{
    while (k > 0) {
        int64_t deep = k < FIRST_STEPS * DEEP ? k : FIRST_STEPS * DEEP;
        for (int64_t i = 0; i < n; i += ROWS_AT_ONCE) {
            const uint16_t *rows = a + i / LINES * below + i % LINES * line;
            (right ? dot_rows : dot_rows_left)(q, rows, line, step, b, deep, q->sums + i * q->line);
        }
        a += FIRST_STEPS * step, b += FIRST_STEPS * STEP, k -= deep;
        q->fresh = false;
    }
}

/* Adds k elements to the first n rows; those below may become anything.
 * Elements of a: `line` from row to row, `step` to the next DEEP of k, `below`
 * to the lower LINES rows. b is a packed panel; its right half is left out if
 * !right. Both have zeros behind k up to a multiple of DEEP, and a has numbers
 * behind its n rows up to a multiple of LINES. */
#define SQUARE(name, load) \
    USES_TILES static inline void name(Square *q, const uint16_t *a, int64_t line, int64_t step, \
                                       int64_t below, const uint16_t *b, int64_t k, int64_t n, \
                                       bool right) \
    { \
        if (!q->tiles) { \
            square_dots(q, a, line, step, below, b, k, n, right); \
            return; \
        } \
        const int64_t bytes = line * (int64_t)sizeof *a; \
        for (; k > 0; k -= DEEP, a += step, b += STEP) { \
            load(4, a, bytes); \
            load(6, b, 64); \
            _tile_dpbf16ps(0, 4, 6); \
            if (right) { \
                load(7, b + STEP / 2, 64); \
                _tile_dpbf16ps(1, 4, 7); \
            } \
            if (n <= LINES) continue; \
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

USES_TILES static inline void square_end(const Square *q)
{
    if (!q->tiles) return;
    const int64_t bytes = q->line * (int64_t)sizeof *q->sums;
    _tile_stored(0, q->sums, bytes);
    _tile_stored(1, q->sums + 16, bytes);
    _tile_stored(2, q->sums + 16 * q->line, bytes);
    _tile_stored(3, q->sums + 16 * q->line + 16, bytes);
    MEMORY_IS_WRITTEN();
}

#endif
