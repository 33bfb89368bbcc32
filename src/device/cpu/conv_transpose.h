/* device/cpu/conv_transpose.h: a square of floats transposed in registers.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_DEVICE_CPU_CONV_TRANSPOSE_H
#define DSI_DEVICE_CPU_CONV_TRANSPOSE_H

#include "isa.h"

/* to[j to_step + i] = from[i step + j] for i < n, j < VF: n <= VF rows become columns. */
static inline void transpose(const float *from, int64_t step, int n, float *to, int64_t to_step)
{
#if defined(DSI_ISA_avx512)
    __mmask16 lanes = (__mmask16)((1u << n) - 1);
    __m512 r[16], t[16];
    UNROLL for (int i = 0; i < 16; i++) r[i] = i < n ? _mm512_loadu_ps(from + i * step)
                                                     : _mm512_setzero_ps();
    UNROLL for (int i = 0; i < 16; i += 2)
    {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
#define PAIR(f, a, b) _mm512_castpd_ps(f(_mm512_castps_pd(a), _mm512_castps_pd(b)))
    UNROLL for (int i = 0; i < 16; i += 4)
    {
        r[i] = PAIR(_mm512_unpacklo_pd, t[i], t[i + 2]);
        r[i + 1] = PAIR(_mm512_unpackhi_pd, t[i], t[i + 2]);
        r[i + 2] = PAIR(_mm512_unpacklo_pd, t[i + 1], t[i + 3]);
        r[i + 3] = PAIR(_mm512_unpackhi_pd, t[i + 1], t[i + 3]);
    }
#undef PAIR
    /* r[4 i + j], quarter q: column 4 q + j of rows 4 i .. 4 i + 3 */
    UNROLL for (int j = 0; j < 4; j++)
    {
        __m512 even0 = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88);
        __m512 even1 = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
        __m512 odd0 = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd);
        __m512 odd1 = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
        float *at = to + j * to_step;
        _mm512_mask_storeu_ps(at, lanes, _mm512_shuffle_f32x4(even0, even1, 0x88));
        _mm512_mask_storeu_ps(at + 4 * to_step, lanes, _mm512_shuffle_f32x4(odd0, odd1, 0x88));
        _mm512_mask_storeu_ps(at + 8 * to_step, lanes, _mm512_shuffle_f32x4(even0, even1, 0xdd));
        _mm512_mask_storeu_ps(at + 12 * to_step, lanes, _mm512_shuffle_f32x4(odd0, odd1, 0xdd));
    }
#else
    for (int j = 0; j < VF; j++)
        for (int i = 0; i < n; i++) to[j * to_step + i] = from[i * step + j];
#endif
}

#endif
