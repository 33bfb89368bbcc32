/* device/cpu/pool/pool_quad.h: the maximum of 2x2 windows two apart, float32,
 * by vectors. A lane is one window: neighbouring windows of a row if columns
 * are contiguous, windows of neighbouring channels if channels are. Each lane
 * compares the window's four values in row-major order; a greater one, or a
 * NaN, replaces the maximum. So of equal maxima the first is chosen, and of
 * NaNs the last, as in PyTorch.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/cpu/simd/isa.h"

#include <string.h>

#if defined(DSI_ISA_avx512)
typedef __m512i vi;
ALWAYS_INLINE vi vi_set(int32_t x) { return _mm512_set1_epi32(x); }
ALWAYS_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
ALWAYS_INLINE void vi_store_n(int32_t *p, vi v, int n)
{
    _mm512_mask_storeu_epi32(p, (__mmask16)((1u << n) - 1), v);
}
ALWAYS_INLINE vi vi_even(void)
{
    return _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
ALWAYS_INLINE void quad_take(vf v, vi at, vf *max, vi *index)
{
    __mmask16 m = _mm512_cmp_ps_mask(v, *max, _CMP_GT_OQ) | _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    *max = _mm512_mask_mov_ps(*max, m, v);
    *index = _mm512_mask_mov_epi32(*index, m, at);
}
/* n pairs at p: the first of each and the second */
ALWAYS_INLINE void quad_load_pairs(const float *p, int n, vf *first, vf *second)
{
    vf low = vf_load_n(p, n < 8 ? 2 * n : 16), high = vf_load_n(p + 16, n < 8 ? 0 : 2 * n - 16);
    vi even = vi_even();
    *first = _mm512_permutex2var_ps(low, even, high);
    *second = _mm512_permutex2var_ps(low, vi_add(even, vi_set(1)), high);
}
#elif defined(DSI_ISA_avx2)
typedef __m256i vi;
ALWAYS_INLINE vi vi_set(int32_t x) { return _mm256_set1_epi32(x); }
ALWAYS_INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
ALWAYS_INLINE void vi_store_n(int32_t *p, vi v, int n)
{
    _mm256_maskstore_epi32(p, vf_mask_n(n), v);
}
ALWAYS_INLINE vi vi_even(void) { return _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14); }
ALWAYS_INLINE void quad_take(vf v, vi at, vf *max, vi *index)
{
    __m256 m = _mm256_or_ps(_mm256_cmp_ps(v, *max, _CMP_GT_OQ), _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    *max = _mm256_blendv_ps(*max, v, m);
    *index = _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(*index), _mm256_castsi256_ps(at), m));
}
ALWAYS_INLINE vf in_order(__m256 v) /* undoes what shuffle_ps does to the halves */
{
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xD8));
}
ALWAYS_INLINE void quad_load_pairs(const float *p, int n, vf *first, vf *second)
{
    vf low = n == 8 ? vf_load(p) : vf_load_n(p, 2 * n),
       high = n == 8 ? vf_load(p + 8) : vf_load_n(p + 8, 2 * n - 8);
    *first = in_order(_mm256_shuffle_ps(low, high, 0x88));
    *second = in_order(_mm256_shuffle_ps(low, high, 0xDD));
}
#else
typedef int32_t vi __attribute__((__vector_size__(16)));
ALWAYS_INLINE vi vi_set(int32_t x) { return (vi){x, x, x, x}; }
ALWAYS_INLINE vi vi_add(vi a, vi b) { return a + b; }
ALWAYS_INLINE void vi_store_n(int32_t *p, vi v, int n) { memcpy(p, &v, (size_t)n * sizeof *p); }
ALWAYS_INLINE vi vi_even(void) { return (vi){0, 2, 4, 6}; }
ALWAYS_INLINE void quad_take(vf v, vi at, vf *max, vi *index)
{
    vi m = (v > *max) | (v != v);
    *max = (vf)(((vi)v & m) | ((vi)*max & ~m));
    *index = (at & m) | (*index & ~m);
}
ALWAYS_INLINE void quad_load_pairs(const float *p, int n, vf *first, vf *second)
{
    *first = *second = vf_zero();
    for (int i = 0; i < n; i++) (*first)[i] = p[2 * i], (*second)[i] = p[2 * i + 1];
}
#endif

/* One row of windows; x points to the upper of its two rows. Strides in
 * elements. */
typedef struct {
    const float *x;
    int64_t below; /* elements to the lower row */
    int64_t xw, yw, iw;
    float *y;
    int32_t *index;
    int32_t at, width; /* h W + w of the first window's corner; W */
    float floor;       /* 0 for a ReLU, else -infinity */
} QuadRow;

/* The columns are neighbours: lanes are windows. */
ALWAYS_INLINE void quad_columns(const QuadRow *o, int64_t Q)
{
    vf floor = vf_set(o->floor); /* the first operand, so that a NaN stays */
    for (int64_t q = 0; q < Q; q += VF) {
        int n = Q - q < VF ? (int)(Q - q) : VF;
        vf v[4];
        quad_load_pairs(o->x + 2 * q, n, &v[0], &v[1]);
        quad_load_pairs(o->x + o->below + 2 * q, n, &v[2], &v[3]);
        vi at = vi_add(vi_set(o->at + 2 * (int32_t)q), vi_even()), index = at;
        quad_take(v[1], vi_add(at, vi_set(1)), &v[0], &index);
        quad_take(v[2], vi_add(at, vi_set(o->width)), &v[0], &index);
        quad_take(v[3], vi_add(at, vi_set(o->width + 1)), &v[0], &index);
        vf_store_n(o->y + q, vf_max(floor, v[0]), n);
        vi_store_n(o->index + q, index, n);
    }
}

/* The channels are neighbours: lanes are channels. */
ALWAYS_INLINE void quad_channels(const QuadRow *o, int64_t Q, int64_t C)
{
    vf floor = vf_set(o->floor);
    for (int64_t q = 0; q < Q; q++) {
        const float *x = o->x + 2 * q * o->xw;
        vi at = vi_set(o->at + 2 * (int32_t)q);
        for (int64_t c = 0; c < C; c += VF) {
            int n = C - c < VF ? (int)(C - c) : VF;
            vf max = vf_load_n(x + c, n);
            vi index = at;
            quad_take(vf_load_n(x + o->xw + c, n), vi_add(at, vi_set(1)), &max, &index);
            quad_take(vf_load_n(x + o->below + c, n), vi_add(at, vi_set(o->width)), &max, &index);
            quad_take(vf_load_n(x + o->below + o->xw + c, n), vi_add(at, vi_set(o->width + 1)),
                      &max, &index);
            vf_store_n(o->y + q * o->yw + c, vf_max(floor, max), n);
            vi_store_n(o->index + q * o->iw + c, index, n);
        }
    }
}
