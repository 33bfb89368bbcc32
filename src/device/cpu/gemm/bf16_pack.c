/* device/cpu/gemm/bf16_pack.c: packing of matrices for products of
 * bfloat16 (tiles.h).
 *
 *     a -> groups of SIDE rows     [steps][parts][2][16 rows][32 k]
 *     b -> panels of SIDE columns  [steps][parts][2][16 pairs of k][16 columns][2]
 *
 * Both end in zeros where vectors or k are not a multiple. Element by element,
 * the sum of the parts is the number.
 * SPDX-License-Identifier: MIT */
#include "parts.h"

#include "base/int.h"
#include "device/cpu/simd/transpose.h"

#include <string.h>

#ifdef HAS_TILES

/* ---- bfloat16 ------------------------------------------------------------------------------------------- */

/* line[i] = k elements of vector i, for n <= LINES vectors; zeros elsewhere. */
static void load_vectors(const uint16_t *from, int64_t across, int n, int k, vf line[LINES])
{
    __mmask32 deep = k < DEEP ? (1u << k) - 1 : ~0u;
    for (int i = 0; i < LINES; i++)
        line[i] = i < n ? _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(deep, from + i * across))
                        : vf_zero();
}

/* line[p] = elements 2 p and 2 p + 1 of each vector, side by side. For vectors
 * that are neighbours in memory. */
static void bf16_load_pairs(const uint16_t *from, int64_t along, int n, int k, vf line[LINES])
{
    __mmask16 wide = (__mmask16)((1u << n) - 1);
    for (int p = 0; p < LINES; p++) {
        const uint16_t *at = from + 2 * p * along;
        __builtin_prefetch(at + DEEP * along), __builtin_prefetch(at + (DEEP + 1) * along);
        __m256i even = _mm256_maskz_loadu_epi16(2 * p < k ? wide : 0, at);
        __m256i odd = _mm256_maskz_loadu_epi16(2 * p + 1 < k ? wide : 0, at + along);
        __m512i pair = _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                                       _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
        line[p] = _mm512_castsi512_ps(pair);
    }
}

/* Packs one tile: up to LINES vectors and DEEP elements. A tile of vectors
 * becomes a tile of pairs by transposing it as 16 x 16 numbers of 32 bits. */
static void pack_tile(const Packing *x, const uint16_t *from, int n, int k, uint16_t *to)
{
    vf line[LINES];
    bool pairs = x->along != 1 && x->across == 1;
    if (pairs) {
        bf16_load_pairs(from, x->along, n, k, line);
    } else if (x->along == 1) {
        load_vectors(from, x->across, n, k, line);
    } else {
        uint16_t dense[LINES * DEEP];
        for (int i = 0; i < n; i++)
            for (int j = 0; j < k; j++) dense[i * DEEP + j] = from[i * x->across + j * x->along];
        load_vectors(dense, DEEP, n, k, line);
    }
    if (pairs != x->pairs) transpose_square(line);
    for (int i = 0; i < LINES; i++) _mm512_storeu_ps(to + i * DEEP, line[i]);
}

/* LINES whole vectors of DEEP elements in memory -> a tile. */
static void pack_lines(const Packing *x, const uint16_t *from, uint16_t *to)
{
    vf line[LINES];
    UNROLL for (int i = 0; i < LINES; i++)
    {
        const uint16_t *at = from + i * x->across;
        _mm_prefetch((const char *)(at + SIDE * x->across), _MM_HINT_T1);
        line[i] = vf_load((const float *)at);
    }
    if (x->pairs) transpose_square(line);
    UNROLL for (int i = 0; i < LINES; i++) vf_store((float *)(to + i * DEEP), line[i]);
}

/* LINES of SIDE vectors that are neighbours in memory, from number `first` on,
 * with DEEP elements -> a tile. */
static void pack_columns(const Packing *x, const uint16_t *from, int first, uint16_t *to)
{
    /* elements first + i of two registers, side by side */
    const __m512i order = _mm512_add_epi16(_mm512_set1_epi16((short)first),
                                           _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11,
                                                            42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                                            5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0));
    vf line[LINES];
    UNROLL for (int p = 0; p < LINES; p++)
    {
        const uint16_t *at = from + 2 * p * x->along;
        _mm_prefetch((const char *)(at + DEEP * x->along), _MM_HINT_T1);
        _mm_prefetch((const char *)(at + (DEEP + 1) * x->along), _MM_HINT_T1);
        line[p] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(_mm512_loadu_si512(at), order,
                                                                _mm512_loadu_si512(at + x->along)));
    }
    if (!x->pairs) transpose_square(line);
    UNROLL for (int p = 0; p < LINES; p++) vf_store((float *)(to + p * DEEP), line[p]);
}

/* One step of bfloat16: up to SIDE vectors and DEEP elements. */
static void pack_step(const Packing *x, const uint16_t *from, int n, int deep, uint16_t *to)
{
    if (n == SIDE && deep == DEEP && x->along == 1) {
        pack_lines(x, from, to);
        pack_lines(x, from + LINES * x->across, to + STEP / 2);
        return;
    }
    if (n == SIDE && deep == DEEP && x->across == 1) {
        pack_columns(x, from, 0, to);
        pack_columns(x, from, LINES, to + STEP / 2);
        return;
    }
    pack_tile(x, from, n < LINES ? n : LINES, deep, to);
    if (n > LINES)
        pack_tile(x, from + LINES * x->across, n - LINES, deep, to + STEP / 2);
    else
        memset(to + STEP / 2, 0, STEP / 2 * sizeof *to);
}

/* ---- float32 and float16: `parts` bfloat16 numbers, each the nearest to the rest ----------------------------- */

/* 16 numbers of dtype, 0 where mask has no bit. */
ALWAYS_INLINE vf load_numbers(const ds_dtype dtype, const char *from, __mmask16 mask)
{
    if (dtype == DS_F32) return _mm512_maskz_loadu_ps(mask, from);
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from));
}

/* The bytes of a step's elements of up to LINES vectors. */
typedef struct Source {
    const char *at;
    int64_t line, next; /* bytes from line to line, to the lines of the next step */
    int lines, wide;    /* elements behind these are 0 */
} Source;

/* LINES lines of 16 numbers each. whole: there are as many. */
ALWAYS_INLINE __m512i load_square(const ds_dtype dtype, const Source *x, const bool whole,
                                  vf line[LINES], __m512i largest)
{
    __mmask16 mask = x->wide >= LINES ? 0xffff : (__mmask16)((1u << dsi_max(0, x->wide)) - 1);
    UNROLL for (int i = 0; i < LINES; i++)
    {
        const char *at = x->at + i * x->line;
        if (whole) _mm_prefetch(at + x->next, _MM_HINT_T0);
        line[i] = whole          ? load_numbers(dtype, at, 0xffff)
                  : i < x->lines ? load_numbers(dtype, at, mask)
                                 : vf_zero();
        largest = larger(largest, line[i]);
    }
    return largest;
}

/* A tile of up to LINES vectors with `deep` elements. by_k: its lines are
 * elements of k, else vectors. Returns the larger of `largest` and the largest
 * magnitude. */
ALWAYS_INLINE __m512i split_tile(const Packing *x, const ds_dtype dtype, Source from, bool by_k,
                                 const bool whole, uint16_t *to, __m512i largest)
{
    const int parts = parts_of(dtype);
    const int64_t size = dtype == DS_F32 ? 4 : 2;
    vf line[LINES], first[LINES];
    for (int k = 0; k < DEEP; k += LINES) {
        largest = load_square(dtype, &from, whole, line, largest);
        if (by_k != x->pairs) transpose_square(line);
        if (x->pairs) {
            UNROLL for (int i = 0; i < LINES; i += 2)
                split_pair(parts, line[i], line[i + 1], to + (k + i) / 2 * DEEP);
        } else if (k == 0) {
            UNROLL for (int i = 0; i < LINES; i++) first[i] = line[i];
        } else {
            UNROLL for (int i = 0; i < LINES; i++)
                split_row(parts, first[i], line[i], to + i * DEEP);
        }
        from.at += LINES * (by_k ? from.line : size);
        *(by_k ? &from.lines : &from.wide) -= LINES;
    }
    return largest;
}

/* The same for any strides and sizes. */
ALWAYS_INLINE __m512i split_any(const Packing *x, const ds_dtype dtype, const char *at, int n,
                                int deep, uint16_t *to, __m512i largest)
{
    const int64_t size = dtype == DS_F32 ? 4 : 2;
    char dense[LINES * DEEP * 4];
    if (x->along == 1 || x->across == 1) {
        bool by_k = x->along != 1, whole = n == LINES && deep == DEEP;
        int64_t line = (by_k ? x->along : x->across) * size;
        Source from = {at, line, by_k ? DEEP * line : SIDE * line, by_k ? deep : n,
                       by_k ? n : deep};
        if (whole) return split_tile(x, dtype, from, by_k, true, to, largest);
        return split_tile(x, dtype, from, by_k, false, to, largest);
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < deep; j++)
            memcpy(dense + (i * DEEP + j) * size, at + (i * x->across + j * x->along) * size,
                   (size_t)size);
    return split_tile(x, dtype, (Source){dense, DEEP * size, 0, n, deep}, false, false, to,
                      largest);
}

/* The same for LINES rows of DEEP elements in memory. */
ALWAYS_INLINE __m512i split_rows(const Packing *x, const ds_dtype dtype, const char *from,
                                 uint16_t *to, __m512i largest)
{
    const int64_t size = dtype == DS_F32 ? 4 : 2;
    for (int i = 0; i < LINES; i++, from += x->across * size) {
        _mm_prefetch(from + SIDE * x->across * size, _MM_HINT_T1);
        _mm_prefetch(from + SIDE * x->across * size + 64, _MM_HINT_T1);
        vf low = load_numbers(dtype, from, 0xffff),
           high = load_numbers(dtype, from + LINES * size, 0xffff);
        largest = larger(larger(largest, low), high);
        split_row(parts_of(dtype), low, high, to + i * DEEP);
    }
    return largest;
}

/* One step: up to SIDE vectors and DEEP elements. */
ALWAYS_INLINE __m512i split_step(const Packing *x, const ds_dtype dtype, const char *from, int n,
                                 int deep, uint16_t *to, __m512i largest)
{
    for (int i = 0; i < SIDE; i += LINES, to += STEP / 2) {
        int lines = (int)dsi_max(0, dsi_min(LINES, n - i));
        const char *at = from + i * x->across * (dtype == DS_F32 ? 4 : 2);
        if (lines == LINES && deep == DEEP && x->along == 1 && !x->pairs)
            largest = split_rows(x, dtype, at, to, largest);
        else
            largest = split_any(x, dtype, at, lines, deep, to, largest);
    }
    return largest;
}

static __m512i split_f32(const Packing *x, const char *from, int n, int deep, uint16_t *to,
                         __m512i largest)
{
    return split_step(x, DS_F32, from, n, deep, to, largest);
}

static __m512i split_f16(const Packing *x, const char *from, int n, int deep, uint16_t *to,
                         __m512i largest)
{
    return split_step(x, DS_F16, from, n, deep, to, largest);
}

/* ---- both ----------------------------------------------------------------------------------------------- */

/* Vectors of group or panel `part`, elements from k on. */
static __m512i pack_at(const Packing *x, int64_t part, int64_t k, __m512i largest)
{
    int64_t at = part * SIDE * x->across + k * x->along,
            step = part * dsi_div_up(x->k, DEEP) + k / DEEP;
    int n = (int)dsi_min(SIDE, x->n - part * SIDE), deep = (int)dsi_min(DEEP, x->k - k);
    const char *from = (const char *)x->from + at * (int64_t)ds_dtype_size(x->dtype);
    uint16_t *to = x->to + step * STEP * parts_of(x->dtype);
    if (x->dtype == DS_F32) return split_f32(x, from, n, deep, to, largest);
    if (x->dtype == DS_F16) return split_f16(x, from, n, deep, to, largest);
    pack_step(x, (const uint16_t *)from, n, deep, to);
    return largest;
}

/* Elements of k of a piece. Vectors that are neighbours in memory are packed
 * one step after another for all of them: so a few rows of memory are read from
 * end to end, which the processor fetches ahead. More steps at a time would
 * touch one line in each of many pages, at half the speed. */
static int64_t depth_of(const Packing *x) { return x->across == 1 ? DEEP : 8 * DEEP; }

/* Pieces begin .. end-1 of groups or panels, in the order in which they are in
 * memory. */
static void pack_pieces(void *arg, int64_t begin, int64_t end)
{
    const Packing *x = arg;
    bool by_k = x->across == 1;
    int64_t depth = depth_of(x), parts = dsi_div_up(x->n, SIDE), depths = dsi_div_up(x->k, depth);
    int64_t part = by_k ? begin % parts : begin / depths,
            k = (by_k ? begin / parts : begin % depths) * depth;
    __m512i largest = _mm512_setzero_si512();
    for (int64_t i = begin; i < end; i++) {
        int64_t last = dsi_min(k + depth, x->k);
        for (int64_t j = k; j < last; j += DEEP) largest = pack_at(x, part, j, largest);
        if (by_k && ++part == parts)
            part = 0, k = last;
        else if (!by_k && (k = last) == x->k)
            part++, k = 0;
    }
    if (parts_of(x->dtype) == 1) return;
    note_largest(x->largest, largest);
}

void bf16_pack(const Packing *x)
{
    int64_t depth = depth_of(x), pieces = dsi_div_up(x->n, SIDE) * dsi_div_up(x->k, depth),
            elements = SIDE * dsi_min(x->k, depth), least = parts_of(x->dtype) == 1 ? 16384 : 8192;
    dsi_parallel(pieces, dsi_div_up(least, elements), pack_pieces, (void *)x);
}

#else
typedef int Empty; /* a file has at least one declaration */
#endif
