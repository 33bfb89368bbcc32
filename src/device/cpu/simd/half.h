/* device/cpu/simd/half.h: lines of float16 or bfloat16 to float and back,
 * rounded to nearest even: by the processor's own conversion where the
 * instruction set has it.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "isa.h"

#include "base/half.h"

ALWAYS_INLINE bool is_half(ds_dtype dtype) { return dtype == DS_F16 || dtype == DS_BF16; }

/* Elements of a line that are converted at a time. Their floats have 2 KB, so
 * those of several operands stay in the first cache. */
#define HALF_PIECE 512

/* aarch64 has a type for float16, whose conversions compilers vectorise. */
#if defined(__aarch64__)
ALWAYS_INLINE float f16_to_float(uint16_t bits)
{
    __fp16 h;
    memcpy(&h, &bits, sizeof h);
    return (float)h;
}

ALWAYS_INLINE uint16_t float_to_f16(float x)
{
    __fp16 h = (__fp16)x;
    uint16_t bits;
    memcpy(&bits, &h, sizeof bits);
    return bits;
}
#else
#define f16_to_float dsi_f16_to_f32
#define float_to_f16 dsi_f32_to_f16
#endif

/* from and to do not overlap */
ALWAYS_INLINE void f16_to_floats(const uint16_t *restrict from, float *restrict to, int64_t n)
{
    int64_t i = 0;
#if defined(DSI_ISA_avx512)
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(from + i))));
    __mmask16 left = (__mmask16)((1u << (n - i)) - 1);
    _mm512_mask_storeu_ps(to + i, left, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(left, from + i)));
#else
#if defined(DSI_ISA_avx2)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(from + i))));
#endif
    for (; i < n; i++) to[i] = f16_to_float(from[i]);
#endif
}

ALWAYS_INLINE void floats_to_f16(const float *restrict from, uint16_t *restrict to, int64_t n)
{
    int64_t i = 0;
#if defined(DSI_ISA_avx512)
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((void *)(to + i),
                            _mm512_cvtps_ph(_mm512_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    __mmask16 left = (__mmask16)((1u << (n - i)) - 1);
    __m512 last = _mm512_maskz_loadu_ps(left, from + i);
    _mm256_mask_storeu_epi16(to + i, left, _mm512_cvtps_ph(last, _MM_FROUND_TO_NEAREST_INT));
#else
#if defined(DSI_ISA_avx2)
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((void *)(to + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; i++) to[i] = float_to_f16(from[i]);
#endif
}

/* bfloat16 is the upper half of a float. */
ALWAYS_INLINE void bf16_to_floats(const uint16_t *restrict from, float *restrict to, int64_t n)
{
    int64_t i = 0;
#if defined(DSI_ISA_avx512)
    for (; i + 16 <= n; i += 16) {
        __m512i upper = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(from + i)));
        _mm512_storeu_si512(to + i, _mm512_slli_epi32(upper, 16));
    }
    __mmask16 left = (__mmask16)((1u << (n - i)) - 1);
    __m512i last = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(left, from + i));
    _mm512_mask_storeu_epi32(to + i, left, _mm512_slli_epi32(last, 16));
#else
#if defined(DSI_ISA_avx2)
    for (; i + 8 <= n; i += 8) {
        __m256i upper = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(from + i)));
        _mm256_storeu_si256((void *)(to + i), _mm256_slli_epi32(upper, 16));
    }
#endif
    for (; i < n; i++) to[i] = dsi_bf16_to_f32(from[i]);
#endif
}

/* As dsi_f32_to_bf16. */
#if defined(DSI_ISA_avx512)
ALWAYS_INLINE __m256i bf16_rounded(__m512 x)
{
    __m512i u = _mm512_castps_si512(x), odd = _mm512_srli_epi32(_mm512_slli_epi32(u, 15), 31);
    __m512i up = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    up = _mm512_mask_mov_epi32(up, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                               _mm512_set1_epi32(0x7fc00000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}
#elif defined(DSI_ISA_avx2)
ALWAYS_INLINE __m128i bf16_rounded(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), odd = _mm256_srli_epi32(_mm256_slli_epi32(u, 15), 31);
    __m256i up = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    up = _mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc00000),
                            _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
    up = _mm256_srli_epi32(up, 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1));
}
#endif

#if defined(DSI_ISA_avx512)
ALWAYS_INLINE vf bf16_lanes(__m256i half)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

ALWAYS_INLINE vf bf16_load(const uint16_t *p)
{
    return bf16_lanes(_mm256_loadu_si256((const void *)p));
}

/* The first n lanes, as vf_load_n and vf_store_n. */
ALWAYS_INLINE vf bf16_load_n(const uint16_t *p, int n)
{
    return bf16_lanes(_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p));
}

ALWAYS_INLINE void bf16_store_n(uint16_t *p, vf v, int n)
{
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), bf16_rounded(v));
}

/* 32 elements as two vectors of floats, of those with even and with odd index,
 * and back, rounded: no lane crosses. A NaN must have bits of its mantissa in
 * its upper half, as results of such elements have. */
ALWAYS_INLINE vf bf16_even(__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
ALWAYS_INLINE vf bf16_odd(__m512i x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000)));
}

ALWAYS_INLINE __m512i bf16_joined(vf even, vf odd)
{
    const __m512i one = _mm512_set1_epi32(1), less = _mm512_set1_epi32(0x7fff);
    __m512i a = _mm512_castps_si512(even), b = _mm512_castps_si512(odd);
    a = _mm512_add_epi32(a,
                         _mm512_add_epi32(less, _mm512_and_si512(_mm512_srli_epi32(a, 16), one)));
    b = _mm512_add_epi32(b,
                         _mm512_add_epi32(less, _mm512_and_si512(_mm512_srli_epi32(b, 16), one)));
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(a, 16), b,
                                     _mm512_set1_epi32((int)0xffff0000), 0xf8); /* a | b & mask */
}
#endif

/* The same of one element, without a branch: compilers vectorise it. */
ALWAYS_INLINE uint16_t bf16_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    uint32_t up = u + 0x7fff + ((u >> 16) & 1);
    return (uint16_t)((x != x ? 0x7fc00000 : up) >> 16);
}

ALWAYS_INLINE void floats_to_bf16(const float *restrict from, uint16_t *restrict to, int64_t n)
{
    int64_t i = 0;
#if defined(DSI_ISA_avx512)
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((void *)(to + i), bf16_rounded(_mm512_loadu_ps(from + i)));
    __mmask16 left = (__mmask16)((1u << (n - i)) - 1);
    _mm256_mask_storeu_epi16(to + i, left, bf16_rounded(_mm512_maskz_loadu_ps(left, from + i)));
#else
#if defined(DSI_ISA_avx2)
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((void *)(to + i), bf16_rounded(_mm256_loadu_ps(from + i)));
#endif
    for (; i < n; i++) to[i] = bf16_of(from[i]);
#endif
}

static inline void half_to_floats(ds_dtype dtype, const uint16_t *from, float *to, int64_t n)
{
    if (dtype == DS_BF16)
        bf16_to_floats(from, to, n);
    else
        f16_to_floats(from, to, n);
}

static inline void floats_to_half(ds_dtype dtype, const float *from, uint16_t *to, int64_t n)
{
    if (dtype == DS_BF16)
        floats_to_bf16(from, to, n);
    else
        floats_to_f16(from, to, n);
}

/* One element. */
ALWAYS_INLINE float half_value(ds_dtype dtype, uint16_t bits)
{
    return dtype == DS_BF16 ? dsi_bf16_to_f32(bits) : f16_to_float(bits);
}

ALWAYS_INLINE uint16_t half_of(ds_dtype dtype, float x)
{
    return dtype == DS_BF16 ? dsi_f32_to_bf16(x) : float_to_f16(x);
}

/* n elements, `stride` apart, as floats, and back. */
static inline void half_gather(ds_dtype dtype, const uint16_t *from, int64_t stride, float *to,
                               int64_t n)
{
    uint16_t dense[HALF_PIECE];
    if (stride == 1) {
        half_to_floats(dtype, from, to, n);
        return;
    }
    for (int64_t at = 0; at < n; at += HALF_PIECE) {
        int64_t m = n - at < HALF_PIECE ? n - at : HALF_PIECE;
        for (int64_t i = 0; i < m; i++) dense[i] = from[(at + i) * stride];
        half_to_floats(dtype, dense, to + at, m);
    }
}

static inline void half_scatter(ds_dtype dtype, const float *from, uint16_t *to, int64_t stride,
                                int64_t n)
{
    uint16_t dense[HALF_PIECE];
    if (stride == 1) {
        floats_to_half(dtype, from, to, n);
        return;
    }
    for (int64_t at = 0; at < n; at += HALF_PIECE) {
        int64_t m = n - at < HALF_PIECE ? n - at : HALF_PIECE;
        floats_to_half(dtype, from + at, dense, m);
        for (int64_t i = 0; i < m; i++) to[(at + i) * stride] = dense[i];
    }
}

/* One element of v, a floating one, `offset` elements from its first. */
static inline double view_value(const dsi_view *v, int64_t offset)
{
    switch (v->dtype) {
    case DS_F64:
        return ((const double *)v->p)[offset];
    case DS_F16:
        return (double)dsi_f16_to_f32(((const uint16_t *)v->p)[offset]);
    case DS_BF16:
        return (double)dsi_bf16_to_f32(((const uint16_t *)v->p)[offset]);
    default:
        return (double)((const float *)v->p)[offset];
    }
}

static inline void view_set_value(const dsi_view *v, int64_t offset, double x)
{
    switch (v->dtype) {
    case DS_F64:
        ((double *)v->p)[offset] = x;
        break;
    case DS_F16:
        ((uint16_t *)v->p)[offset] = dsi_f32_to_f16((float)x);
        break;
    case DS_BF16:
        ((uint16_t *)v->p)[offset] = dsi_f32_to_bf16((float)x);
        break;
    default:
        ((float *)v->p)[offset] = (float)x;
    }
}

/* ---- float32 in two halves: base/half.h ---- */

ALWAYS_INLINE void halves_join(const uint16_t *restrict p, const int16_t *restrict rest,
                               float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = dsi_join(p[i], rest[i]);
        memcpy(&x[i], &bits, sizeof bits);
    }
}

ALWAYS_INLINE void floats_untie(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits = dsi_untie(bits);
        memcpy(&x[i], &bits, sizeof bits);
    }
}

ALWAYS_INLINE void halves_split(const float *restrict x, uint16_t *restrict p,
                                int16_t *restrict rest, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits = dsi_untie(bits);
        p[i] = dsi_split(bits);
        rest[i] = (int16_t)bits;
    }
}
