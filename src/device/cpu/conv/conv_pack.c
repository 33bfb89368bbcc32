/* device/cpu/conv/conv_pack.c: one sample rearranged for the convolution's
 * tiles, and back.
 * SPDX-License-Identifier: MIT */
#include "conv.h"
#include "device/cpu/simd/transpose.h"

#include <string.h>

int64_t planes_pitch(Rect r, int64_t phases) { return dsi_round_up(r.cols, phases); }

#if defined(DSI_ISA_avx512)
/* The vector at p, 0 outside of lanes first .. last - 1. */
static vf load_inside(const float *p, int64_t first, int64_t last)
{
    int64_t begin = dsi_max(0, dsi_min(first, VF)), end = dsi_max(begin, dsi_min(last, VF));
    return _mm512_maskz_loadu_ps((__mmask16)((1u << end) - (1u << begin)), p);
}

/* Two phases of `each` columns, of a row whose columns first .. last - 1 count. */
static void split_row(const float *x, int64_t first, int64_t last, int64_t each, float *to)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28,
                                           30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    for (int64_t i = 0; i < each; i += VF) {
        int64_t at = 2 * i, lanes = dsi_min(VF, each - i);
        vf a = load_inside(x + at, first - at, last - at);
        vf b = load_inside(x + at + VF, first - at - VF, last - at - VF);
        vf_store_n(to + i, _mm512_permutex2var_ps(a, even, b), (int)lanes);
        vf_store_n(to + each + i, _mm512_permutex2var_ps(a, odd, b), (int)lanes);
    }
}
#endif

/* Copies one row of a plane to a row of r in phases, with zeros outside the
 * plane. step: elements from column to column of x. */
static void pack_row(const float *x, int64_t step, int64_t W, Rect r, int64_t phases, float *to)
{
    int64_t first = dsi_max(0, -r.col0), last = dsi_max(first, dsi_min(r.cols, W - r.col0));
    if (phases == 1 && step == 1) {
        for (int64_t j = 0; j < first; j++) to[j] = 0;
        if (last > first)
            memcpy(to + first, x + r.col0 + first, (size_t)(last - first) * sizeof *to);
        for (int64_t j = last; j < r.cols; j++) to[j] = 0;
        return;
    }
    int64_t each = planes_pitch(r, phases) / phases;
#if defined(DSI_ISA_avx512)
    if (phases == 2 && step == 1) {
        split_row(x + r.col0, first, last, each, to);
        return;
    }
#endif
    for (int64_t f = 0; f < phases; f++)
        for (int64_t i = 0, j = f; i < each; i++, j += phases)
            to[f * each + i] = j >= first && j < last ? x[(r.col0 + j) * step] : 0;
}

/* The same for all channels of a row in pixel order, if C is a multiple of VF:
 * squares of VF pixels x VF channels are transposed in registers. */
static void pack_row_of_pixels(const dsi_view *x, const float *from, Rect r, int64_t phases,
                               float *to, int64_t plane)
{
    int64_t each = planes_pitch(r, phases) / phases, step = x->s[3];
    int64_t first = dsi_max(0, -r.col0), last = dsi_max(first, dsi_min(r.cols, x->d[3] - r.col0));
    for (int64_t c = 0; c < x->d[1]; c++)
        memset(to + c * plane, 0, (size_t)(each * phases) * sizeof *to);
    for (int64_t f = 0; f < phases; f++) {
        int64_t i = (dsi_max(0, first - f) + phases - 1) / phases;
        int64_t end = (dsi_max(0, last - f) + phases - 1) / phases;
        for (; i < end; i += VF)
            for (int64_t c = 0; c < x->d[1]; c += VF)
                transpose(from + (r.col0 + f + i * phases) * step + c, phases * step,
                          (int)dsi_min(VF, end - i), to + c * plane + f * each + i, plane);
    }
}

void pack_planes(const dsi_view *x, int64_t n, Rect r, int64_t phases, float *to, int64_t plane)
{
    int64_t pitch = planes_pitch(r, phases), C = x->d[1];
    bool pixels = x->s[1] == 1 && C % VF == 0;
    for (int64_t i = 0; i < r.rows; i++) {
        int64_t h = r.row0 + i;
        const float *from = (const float *)x->p + n * x->s[0] + h * x->s[2];
        float *row = to + i * pitch;
        bool inside = h >= 0 && h < x->d[2];
        if (inside && pixels) pack_row_of_pixels(x, from, r, phases, row, plane);
        for (int64_t c = 0; c < C && inside && !pixels; c++)
            pack_row(from + c * x->s[1], x->s[3], x->d[3], r, phases, row + c * plane);
        for (int64_t c = 0; c < C && !inside; c++)
            memset(row + c * plane, 0, (size_t)pitch * sizeof *to);
    }
}

/* ---- planes <-> pixels ------------------------------------------------------------------------------- */

static void set_mask(Mix *m, int64_t out, int64_t in, int lane)
{
#if defined(DSI_ISA_avx512)
    m->mask[out][in] |= (__mmask16)(1u << lane);
#else
    m->mask[out][in][lane] = -1;
#endif
}

static bool can_mix(int64_t C) { return VF >= 8 && C > 1 && C <= MIX_CHANNELS; }

/* VF pixels in pixel order are C vectors. Element e of these is channel e % C
 * of pixel e / C, so it comes from lane e / C of plane e % C. */
Mix mix_to_pixels(int64_t C)
{
    Mix m = {.C = can_mix(C) ? (int)C : 0};
    for (int e = 0, c = 0, pixel = 0; e < m.C * VF; e++) {
        m.index[e / VF][e % VF] = pixel;
        set_mask(&m, e / VF, c, e % VF);
        if (++c == m.C) c = 0, pixel++;
    }
    return m;
}

/* The reverse: lane `pixel` of plane c comes from element pixel C + c. */
Mix mix_to_planes(int64_t C)
{
    Mix m = {.C = can_mix(C) ? (int)C : 0};
    for (int e = 0, c = 0, pixel = 0; e < m.C * VF; e++) {
        m.index[c][pixel] = e % VF;
        set_mask(&m, c, e / VF, pixel);
        if (++c == m.C) c = 0, pixel++;
    }
    return m;
}

#if VF >= 8
ALWAYS_INLINE void pack_mix(int C, const Mix *m, const vf *in, vf *out)
{
    UNROLL for (int o = 0; o < C; o++)
    {
#if defined(DSI_ISA_avx512)
        __m512i index = _mm512_loadu_si512(m->index[o]);
        out[o] = _mm512_maskz_permutexvar_ps(m->mask[o][0], index, in[0]);
        UNROLL for (int i = 1; i < C; i++)
            out[o] = _mm512_mask_permutexvar_ps(out[o], m->mask[o][i], index, in[i]);
#else
        __m256i index = _mm256_loadu_si256((const void *)m->index[o]);
        out[o] = _mm256_setzero_ps();
        UNROLL for (int i = 0; i < C; i++)
        {
            vf mask = _mm256_loadu_ps((const float *)m->mask[o][i]);
            out[o] = _mm256_or_ps(out[o],
                                  _mm256_and_ps(mask, _mm256_permutevar8x32_ps(in[i], index)));
        }
#endif
    }
}

/* n pixels of a row: planes are `plane` apart */
ALWAYS_INLINE void row_to_pixels(int C, const Mix *m, const float *x, int64_t plane, int64_t n,
                                 float *to)
{
    vf in[MIX_CHANNELS], out[MIX_CHANNELS];
    for (int64_t j = 0; j < n; j += VF) {
        int lanes = n - j < VF ? (int)(n - j) : VF;
        UNROLL for (int c = 0; c < C; c++) in[c] = vf_load_n(x + c * plane + j, lanes);
        pack_mix(C, m, in, out);
        UNROLL for (int o = 0; o < C; o++)
        {
            int left = lanes * C - o * VF;
            if (left > 0) vf_store_n(to + j * C + o * VF, out[o], left < VF ? left : VF);
        }
    }
}

ALWAYS_INLINE void row_to_planes(int C, const Mix *m, const float *from, float *x, int64_t plane,
                                 int64_t n)
{
    vf in[MIX_CHANNELS], out[MIX_CHANNELS];
    for (int64_t j = 0; j < n; j += VF) {
        int lanes = n - j < VF ? (int)(n - j) : VF;
        UNROLL for (int i = 0; i < C; i++)
        {
            int left = lanes * C - i * VF;
            in[i] = left > 0 ? vf_load_n(from + j * C + i * VF, left < VF ? left : VF) : vf_zero();
        }
        pack_mix(C, m, in, out);
        UNROLL for (int c = 0; c < C; c++) vf_store_n(x + c * plane + j, out[c], lanes);
    }
}

/* One function for each number of channels. */
#define EACH_C(X) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#define MIX_ROWS(n) \
    static void to_pixels_##n(const Mix *m, const float *x, int64_t plane, int64_t cols, \
                              float *to) \
    { \
        row_to_pixels(n, m, x, plane, cols, to); \
    } \
    static void to_planes_##n(const Mix *m, const float *from, float *x, int64_t plane, \
                              int64_t cols) \
    { \
        row_to_planes(n, m, from, x, plane, cols); \
    }
EACH_C(MIX_ROWS)
typedef void ToPixels(const Mix *m, const float *x, int64_t plane, int64_t cols, float *to);
typedef void ToPlanes(const Mix *m, const float *from, float *x, int64_t plane, int64_t cols);
#define NAME(n) to_pixels_##n,
static ToPixels *const to_pixels[] = {NULL, NULL, EACH_C(NAME)};
#undef NAME
#define NAME(n) to_planes_##n,
static ToPlanes *const to_planes[] = {NULL, NULL, EACH_C(NAME)};
#undef NAME
#else
typedef void ToPixels(const Mix *m, const float *x, int64_t plane, int64_t cols, float *to);
typedef void ToPlanes(const Mix *m, const float *from, float *x, int64_t plane, int64_t cols);
static ToPixels *const to_pixels[1];
static ToPlanes *const to_planes[1];
#endif

/* The part of a rectangle that is inside the plane, counted from the
 * rectangle's
 * corner. */
typedef struct {
    int64_t row, rows, col, cols;
} Inside;

static Inside pack_inside(const dsi_view *x, Rect r)
{
    Inside i = {dsi_max(0, -r.row0), 0, dsi_max(0, -r.col0), 0};
    i.rows = dsi_max(0, dsi_min(r.rows, x->d[2] - r.row0) - i.row);
    i.cols = dsi_max(0, dsi_min(r.cols, x->d[3] - r.col0) - i.col);
    return i;
}

void pack_pixels(const Mix *m, const dsi_view *x, int64_t n, Rect r, float *to)
{
    Inside in = pack_inside(x, r);
    int64_t C = x->d[1];
    bool planes = m->C && x->s[3] == 1, pixels = x->s[1] == 1 && x->s[3] == C;
    if (in.rows < r.rows || in.cols < r.cols)
        memset(to, 0, (size_t)(r.rows * r.cols * C) * sizeof *to);
    for (int64_t i = in.row; i < in.row + in.rows; i++) {
        float *row = to + (i * r.cols + in.col) * C;
        const float *from = (const float *)x->p + n * x->s[0] + (r.row0 + i) * x->s[2] +
                            (r.col0 + in.col) * x->s[3];
        if (planes)
            to_pixels[m->C](m, from, x->s[1], in.cols, row);
        else if (pixels)
            memcpy(row, from, (size_t)(in.cols * C) * sizeof *row);
        else
            for (int64_t c = 0; c < C; c++)
                for (int64_t j = 0; j < in.cols; j++)
                    row[j * C + c] = from[c * x->s[1] + j * x->s[3]];
    }
}

void unpack_pixels(const Mix *m, const float *from, Rect r, const dsi_view *x, int64_t n)
{
    Inside in = pack_inside(x, r);
    int64_t C = x->d[1];
    bool planes = m->C && x->s[3] == 1, pixels = x->s[1] == 1 && x->s[3] == C;
    for (int64_t i = in.row; i < in.row + in.rows; i++) {
        const float *row = from + (i * r.cols + in.col) * C;
        float *to = (float *)x->p + n * x->s[0] + (r.row0 + i) * x->s[2] +
                    (r.col0 + in.col) * x->s[3];
        if (planes)
            to_planes[m->C](m, row, to, x->s[1], in.cols);
        else if (pixels)
            memcpy(to, row, (size_t)(in.cols * C) * sizeof *row);
        else
            for (int64_t c = 0; c < C; c++)
                for (int64_t j = 0; j < in.cols; j++)
                    to[c * x->s[1] + j * x->s[3]] = row[j * C + c];
    }
}

Lines lines_of(const dsi_conv2d *c, const dsi_view *x, const dsi_view *w, int64_t P, int64_t Q)
{
    int64_t R = w->d[2], S = w->d[3], C = w->d[1];
    bool merge = c->groups == 1 && c->dilation[1] == 1;
    Lines o = {.count = merge ? R : R * S,
               .length = merge ? S * C : C,
               .merged = merge ? S : 1,
               .R = R,
               .S = S,
               .C = C};
    o.padded = dsi_round_up(o.length, VF);
    o.rect.row0 = -c->padding[0], o.rect.col0 = -c->padding[1];
    o.rect.rows = dsi_max((P - 1) * c->stride[0] + (R - 1) * c->dilation[0] + 1,
                          x->d[2] + c->padding[0]);
    o.rect.cols = dsi_max((Q - 1) * c->stride[1] + (S - 1) * c->dilation[1] + 1,
                          x->d[3] + c->padding[1]);
    o.pixel = c->stride[1] * x->d[1];
    o.row = c->stride[0] * o.rect.cols * x->d[1];
    o.step[0] = c->dilation[0] * o.rect.cols * x->d[1];
    o.step[1] = c->dilation[1] * x->d[1];
    return o;
}

void line_weights(const Lines *o, const dsi_view *w, int32_t *at)
{
    int64_t each = o->S / o->merged;
    for (int64_t i = 0; i < o->count; i++)
        for (int64_t s = 0; s < o->merged; s++)
            for (int64_t c = 0; c < o->C; c++)
                *at++ = (int32_t)(c * w->s[1] + i / each * w->s[2] + (i % each + s) * w->s[3]);
}
