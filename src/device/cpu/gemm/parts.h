/* device/cpu/gemm/parts.h: float32 and float16 numbers as the sum of `parts`
 * bfloat16 numbers, each the nearest to the rest, for the matrix unit
 * (tiles.h).
 * SPDX-License-Identifier: MIT */
#pragma once

#include "tiles.h"

#include <string.h>

#ifdef HAS_TILES

/* The bfloat16 nearest to each number, as the high half of 32 bits. */
ALWAYS_INLINE __m512i nearest(vf x)
{
    __m512i half = _mm512_set1_epi32(0x8000), high = _mm512_set1_epi32((int)0xffff0000);
    return _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), high);
}

ALWAYS_INLINE vf rest(vf x, __m512i high) { return vf_sub(x, _mm512_castsi512_ps(high)); }

ALWAYS_INLINE __m512i larger(__m512i largest, vf x)
{
    __m512i bits = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
    return _mm512_max_epu32(largest, bits);
}

/* Two lines of 16 numbers, and those of one vector behind them -> lines of the
 * parts. */
ALWAYS_INLINE void split_row(const int parts, vf low, vf high, uint16_t *to)
{
    const __m512i odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35,
                                         33, 31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3,
                                         1);
    UNROLL for (int part = 0; part < parts; part++)
    {
        __m512i first = nearest(low), second = nearest(high);
        _mm512_storeu_si512(to + part * STEP, _mm512_permutex2var_epi16(first, odd, second));
        low = rest(low, first), high = rest(high, second);
    }
}

/* Numbers of 16 vectors at k and at k + 1 -> a line of pairs of each part. */
ALWAYS_INLINE void split_pair(const int parts, vf even, vf odd, uint16_t *to)
{
    UNROLL for (int part = 0; part < parts; part++)
    {
        __m512i first = nearest(even), second = nearest(odd);
        _mm512_storeu_si512(to + part * STEP,
                            _mm512_or_si512(_mm512_srli_epi32(first, 16), second));
        even = rest(even, first), odd = rest(odd, second);
    }
}

/* *all becomes the largest of these magnitudes, unless it is larger. */
static inline void note_largest(_Atomic uint32_t *all, __m512i largest)
{
    uint32_t mine = _mm512_reduce_max_epu32(largest), old = atomic_load(all);
    while (mine > old && !atomic_compare_exchange_weak(all, &old, mine)) {}
}

/* True if the products of parts are as exact as those of float32, by the
 * largest magnitudes of both operands, as bits. No number may be infinite, not
 * a number, or either as a bfloat16; nor may a sum of up to 2^26 products of
 * parts be, whose signs may differ from the number's. Losses below 2^-126,
 * where the unit has zeros, must be at most 2^-36 of the largest. */
static inline bool parts_in_range(uint32_t largest_a, uint32_t largest_b)
{
    float a, b;
    memcpy(&a, &largest_a, sizeof a);
    memcpy(&b, &largest_b, sizeof b);
    if (!(a < 0x1p126f && b < 0x1p126f)) return false;
    if (a == 0 || b == 0) return true;
    double product = (double)a * (double)b;
    return a >= 0x1p-90f && b >= 0x1p-90f && product >= 0x1p-90 && product < 0x1p100;
}

#endif
