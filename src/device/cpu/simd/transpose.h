/* device/cpu/simd/transpose.h: a square of floats transposed in registers.
 * First 4 x 4 elements are transposed in each quarter (16 bytes) of the
 * vectors, then the quarters are exchanged. Each vector is read once, by one
 * load. That matters if `step` is a power of two: then all VF lines fall into
 * the same set of the first cache, which may hold fewer, so a second read of a
 * line would miss.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "isa.h"

/* In each quarter of a and b, whose elements are 0 to 3 and 4 to 7: */
#if defined(DSI_ISA_avx512)
#define LOW           _mm512_unpacklo_ps            /* 0 4 1 5 */
#define HIGH          _mm512_unpackhi_ps            /* 2 6 3 7 */
#define PAIRS_0(a, b) _mm512_shuffle_ps(a, b, 0x44) /* 0 1 4 5 */
#define PAIRS_1(a, b) _mm512_shuffle_ps(a, b, 0xee) /* 2 3 6 7 */
#elif defined(DSI_ISA_avx2)
#define LOW           _mm256_unpacklo_ps
#define HIGH          _mm256_unpackhi_ps
#define PAIRS_0(a, b) _mm256_shuffle_ps(a, b, 0x44)
#define PAIRS_1(a, b) _mm256_shuffle_ps(a, b, 0xee)
#else /* clang's word for it, which gcc has from version 12 on */
#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#endif
#endif
#ifndef SHUFFLE
typedef int Lanes __attribute__((__vector_size__(16)));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (Lanes){__VA_ARGS__})
#endif
#define LOW(a, b)     SHUFFLE(a, b, 0, 4, 1, 5)
#define HIGH(a, b)    SHUFFLE(a, b, 2, 6, 3, 7)
#define PAIRS_0(a, b) SHUFFLE(a, b, 0, 1, 4, 5)
#define PAIRS_1(a, b) SHUFFLE(a, b, 2, 3, 6, 7)
#endif

/* 4 x 4 in each quarter: quarter q of r[i] is elements 4 q .. 4 q + 3 of vector
 * i -> of r[j], element 4 q + j of vectors 0 .. 3. */
ALWAYS_INLINE void transpose_quarters(vf r[4])
{
    vf low01 = LOW(r[0], r[1]), high01 = HIGH(r[0], r[1]);
    vf low23 = LOW(r[2], r[3]), high23 = HIGH(r[2], r[3]);
    r[0] = PAIRS_0(low01, low23), r[1] = PAIRS_1(low01, low23);
    r[2] = PAIRS_0(high01, high23), r[3] = PAIRS_1(high01, high23);
}

#undef LOW
#undef HIGH
#undef PAIRS_0
#undef PAIRS_1

/* Element j of r[i] -> element i of r[j]. */
ALWAYS_INLINE void transpose_square(vf r[VF])
{
    UNROLL for (int i = 0; i < VF; i += 4) transpose_quarters(r + i);
#if defined(DSI_ISA_avx512)
    UNROLL for (int j = 0; j < 4; j++)
    {
        vf a = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x44); /* quarters 0 1 of each */
        vf b = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x44);
        vf c = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xee); /* 2 3 */
        vf d = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xee);
        r[j] = _mm512_shuffle_f32x4(a, b, 0x88), r[4 + j] = _mm512_shuffle_f32x4(a, b, 0xdd);
        r[8 + j] = _mm512_shuffle_f32x4(c, d, 0x88), r[12 + j] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
#elif defined(DSI_ISA_avx2)
    UNROLL for (int j = 0; j < 4; j++)
    {
        vf low = r[j], high = r[4 + j];
        r[j] = _mm256_permute2f128_ps(low, high, 0x20);
        r[4 + j] = _mm256_permute2f128_ps(low, high, 0x31);
    }
#endif
}

ALWAYS_INLINE void store_lanes(float *to, vf v, int n)
{
    if (n == VF)
        vf_store(to, v);
    else
        vf_store_n(to, v, n);
}

/* to[j to_step + i] = from[i step + j] for i < n, j < VF: n <= VF rows become
 * columns. */
ALWAYS_INLINE void transpose(const float *from, int64_t step, int n, float *to, int64_t to_step)
{
    vf r[VF];
    UNROLL for (int i = 0; i < VF; i++) r[i] = i < n ? vf_load(from + i * step) : vf_zero();
    transpose_square(r);
    UNROLL for (int j = 0; j < VF; j++) store_lanes(to + j * to_step, r[j], n);
}
