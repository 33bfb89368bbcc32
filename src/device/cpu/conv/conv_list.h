/* device/cpu/conv/conv_list.h: a gradient in pooled form (tensor/pooled.c) as a
 * list of (value, place), for one channel of one sample.
 *
 * Zeros are left out; after a relu there are many. No branch depends on a
 * value: their pattern cannot be predicted, and each wrong prediction would
 * cost as much as several elements.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/cpu/simd/isa.h"

#define LIST_SLACK 16 /* elements that compress may write behind the last one */

typedef struct {
    int64_t n;
    const float *g;
    const int32_t *at;
} List;

/* Maps the index of an output, h W + w, to its place in a packed sample,
 * h row + w pixel. */
typedef struct {
    int32_t width, row, pixel; /* W; elements from row to row, pixel to pixel */
    /* [outputs] places. NULL: computed with a float32 division, which is exact
     * below
     * 2^20 outputs. */
    const int32_t *table;
} Places;

/* at[i] = the place of output index[i], for n outputs. */
static inline void find_places(const Places *o, const int32_t *restrict index, int64_t n,
                               int32_t *restrict at)
{
    if (o->table) {
        for (int64_t i = 0; i < n; i++) at[i] = o->table[index[i]];
        return;
    }
    float inverse = 1.0f / (float)o->width;
    int32_t pixel = o->pixel, beyond = o->row - o->width * o->pixel;
    for (int64_t i = 0; i < n; i++)
        at[i] = index[i] * pixel + (int32_t)(((float)index[i] + 0.5f) * inverse) * beyond;
}

/* Copies the pairs (value[i], at[i]) whose value is not 0, in order, and
 * returns their number. May write LIST_SLACK elements more. */
static inline int64_t compress(const float *value, const int32_t *at, int64_t n, float *g_out,
                               int32_t *at_out)
{
    int64_t count = 0, i = 0;
#if defined(DSI_ISA_avx512)
    for (; i < n; i += 16) {
        __mmask16 valid = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : 0xFFFF;
        __m512 v = _mm512_maskz_loadu_ps(valid, value + i);
        __m512i a = _mm512_maskz_loadu_epi32(valid, at + i);
        __mmask16 keep = _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_NEQ_UQ);
        _mm512_storeu_ps(g_out + count, _mm512_maskz_compress_ps(keep, v));
        _mm512_storeu_si512(at_out + count, _mm512_maskz_compress_epi32(keep, a));
        count += __builtin_popcount(mask_bits(keep));
    }
#else
#if defined(DSI_ISA_avx2)
    /* for each subset of four lanes: its lanes, in order; the rest does not
     * matter */
    static const _Alignas(16) int32_t lanes[16][4] = {
        {0}, {0},    {1},    {0, 1},    {2},    {0, 2},    {1, 2},    {0, 1, 2},
        {3}, {0, 3}, {1, 3}, {0, 1, 3}, {2, 3}, {0, 2, 3}, {1, 2, 3}, {0, 1, 2, 3}};
    for (; i + 4 <= n; i += 4) {
        __m128 v = _mm_loadu_ps(value + i),
               a = _mm_castsi128_ps(_mm_loadu_si128((const void *)(at + i)));
        int keep = _mm_movemask_ps(_mm_cmpneq_ps(v, _mm_setzero_ps()));
        __m128i order = _mm_load_si128((const void *)lanes[keep]);
        _mm_storeu_ps(g_out + count, _mm_permutevar_ps(v, order));
        _mm_storeu_si128((void *)(at_out + count), _mm_castps_si128(_mm_permutevar_ps(a, order)));
        count += __builtin_popcount((unsigned)keep);
    }
#endif
    for (; i < n; i++) {
        g_out[count] = value[i];
        at_out[count] = at[i];
        count += value[i] != 0;
    }
#endif
    return count;
}

/* The list of channel k of sample n. work: memory for 5 arrays of `room`
 * elements, `room` >= number of windows + LIST_SLACK; the list points into
 * it. */
static inline List list_collect(const dsi_pooled *dy, const Places *places, int64_t n, int64_t k,
                                void *work, int64_t room)
{
    const dsi_view *v = &dy->value, *i = &dy->index;
    const float *value = (const float *)v->p + n * v->s[0] + k * v->s[1];
    const int32_t *index = (const int32_t *)i->p + n * i->s[0] + k * i->s[1];
    float *g = work, *value_line = g + room;
    int32_t *at = (int32_t *)(g + 2 * room), *index_line = at + room, *place = index_line + room;
    int64_t P = v->d[2], Q = v->d[3], vs = v->s[3], is = i->s[3];
    if (v->s[2] == Q * vs && i->s[2] == Q * is) Q = P * Q, P = 1; /* rows follow each other */
    bool line = P == 1 && vs == 1 && is == 1;
    for (int64_t p = 0, j = 0; p < P && !line; p++)
        for (int64_t q = 0; q < Q; q++, j++) {
            value_line[j] = value[p * v->s[2] + q * vs];
            index_line[j] = index[p * i->s[2] + q * is];
        }
    if (!line) value = value_line, index = index_line;
    find_places(places, index, P * Q, place);
    return (List){compress(value, place, P * Q, g, at), g, at};
}
