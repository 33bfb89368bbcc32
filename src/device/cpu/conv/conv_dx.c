/* device/cpu/conv/conv_dx.c: dx of a convolution from a gradient in pooled
 * form.
 *
 *     dx[p,q][line] += dy[k,p,q] w[k][line]      only where dy is not 0
 *
 * A sample's dx is summed in pixel order (conv.h), in a buffer that stays in
 * the first or second cache. Adding each (k,p,q) to memory one by one would
 * stall: neighbours overlap, and a load must wait for the stores before it. So
 * the channels of one pooled window are taken together: those whose maximum is
 * at the same place are summed in registers and added to dx once.
 *
 * Loop order: samples (divided among threads), windows, groups of LANES
 * channels, places, lines of the kernel. So the sums of an element of dx are in
 * the order of
 * windows.
 * SPDX-License-Identifier: MIT */
#include "conv.h"

#include <string.h>

#define LANES 64 /* channels that are compared together: bits of a mask */

typedef struct {
    const dsi_conv2d *c;
    const dsi_pooled *dy;
    dsi_view w, dx;
    Lines lines;
    Mix mix;
    int64_t K;
    float *weights;  /* [K][lines][padded] */
    int32_t *offset; /* [P Q] of output h W + w, in a packed sample of dx */
    int64_t *line;   /* [lines] line_at of each */
    float *samples;  /* packed samples of dx, one for each slot */
    int64_t sample_floats;
    Cut cut;
} Job;

/* The mask of channels whose gradient is not 0: bit i = g[i] != 0; n <= LANES. */
static inline uint64_t nonzero(const float *g, int n)
{
    uint64_t bits = 0;
#if VF >= 8
    for (int i = 0; i < n; i += VF) {
        vf x = vf_load_n(g + i, n - i < VF ? n - i : VF);
#if defined(DSI_ISA_avx512)
        bits |= (uint64_t)mask_bits(_mm512_cmp_ps_mask(x, vf_zero(), _CMP_NEQ_UQ)) << i;
#else
        bits |= (uint64_t)(unsigned)_mm256_movemask_ps(_mm256_cmp_ps(x, vf_zero(), _CMP_NEQ_UQ))
                << i;
#endif
    }
#else
    for (int i = 0; i < n; i++) bits |= (uint64_t)(g[i] != 0) << i;
#endif
    return bits;
}

/* The mask of channels whose maximum is at y: bit i = x[i] == y; n <= LANES.
 * Bits from n on are undefined. */
static inline uint64_t equal(const int32_t *x, int32_t y, int n)
{
    uint64_t bits = 0;
#if defined(DSI_ISA_avx512)
    for (int i = 0; i < n; i += 16) {
        __mmask16 valid = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : 0xFFFF;
        __m512i v = _mm512_maskz_loadu_epi32(valid, x + i);
        bits |= (uint64_t)mask_bits(_mm512_cmpeq_epi32_mask(v, _mm512_set1_epi32(y))) << i;
    }
#elif defined(DSI_ISA_avx2)
    for (int i = 0; i < n; i += 8) {
        __m256i v = _mm256_maskload_epi32(x + i, vf_mask_n(n - i));
        __m256 same = _mm256_castsi256_ps(_mm256_cmpeq_epi32(v, _mm256_set1_epi32(y)));
        bits |= (uint64_t)(unsigned)_mm256_movemask_ps(same) << i;
    }
#else
    for (int i = 0; i < n; i++) bits |= (uint64_t)(x[i] == y) << i;
#endif
    return bits;
}

/* ---- tile: lines x vectors of dx += sum over the channels in `bits` of g[k] w[k] --------------------------- */

ALWAYS_INLINE void place_tile(int lines, int vectors, uint64_t bits, const float *g, const float *w,
                              int64_t wk, int64_t padded, float *dx, const int64_t *line)
{
    vf a[MAX_LINES][2];
    UNROLL for (int i = 0; i < lines; i++) UNROLL for (int v = 0; v < vectors; v++)
        a[i][v] = vf_zero();
    for (; bits; bits &= bits - 1) {
        int k = __builtin_ctzll(bits);
        const float *wi = w + k * wk;
        vf gk = vf_set(g[k]);
        UNROLL for (int i = 0; i < lines; i++) UNROLL for (int v = 0; v < vectors; v++)
            a[i][v] = vf_fma(gk, vf_load(wi + i * padded + v * VF), a[i][v]);
    }
    UNROLL for (int i = 0; i < lines; i++) UNROLL for (int v = 0; v < vectors; v++)
    {
        float *to = dx + line[i] + v * VF;
        vf_store(to, vf_add(vf_load(to), a[i][v]));
    }
}

typedef void PlaceTile(uint64_t bits, const float *g, const float *w, int64_t wk, int64_t padded,
                       float *dx, const int64_t *line);
#define PLACE_TILE(n, vectors) \
    static void place_tile_##vectors##_##n(uint64_t bits, const float *g, const float *w, \
                                           int64_t wk, int64_t padded, float *dx, \
                                           const int64_t *line) \
    { \
        place_tile(n, vectors, bits, g, w, wk, padded, dx, line); \
    }
#define PLACE_TILES(n) PLACE_TILE(n, 1) PLACE_TILE(n, 2)
EACH_LINES(PLACE_TILES)
#define ROW(n) {place_tile_1_##n, place_tile_2_##n},
static PlaceTile *const place_tiles[MAX_LINES][2] = {EACH_LINES(ROW)};
#undef ROW

/* Adds the channels in `bits`, which have one place, to dx: all lines of the
 * kernel there, MAX_LINES x 2 vectors at a time. dx points to the place. */
static void add_place(const Job *o, uint64_t bits, const float *g, const float *w, float *dx)
{
    const Lines *l = &o->lines;
    for (int64_t i = 0, m; i < l->count; i += m) {
        m = dsi_min(MAX_LINES, l->count - i);
        for (int64_t v = 0; v < l->padded; v += 2 * VF)
            place_tiles[m - 1][l->padded - v > VF](bits, g, w + i * l->padded + v,
                                                   l->count * l->padded, l->padded, dx + v,
                                                   o->line + i);
    }
}

/* Adds n <= LANES channels from k on, of one group and one window: one place
 * after another, until no channel is left. */
static void add_window(const Job *o, const float *g, const int32_t *index, int64_t k, int n,
                       float *dx)
{
    const float *w = o->weights + k * o->lines.count * o->lines.padded;
    for (uint64_t left = nonzero(g, n), same; left; left &= ~same) {
        int32_t at = index[__builtin_ctzll(left)];
        same = left & equal(index, at, n);
        add_place(o, same, g, w, dx + o->offset[at]);
    }
}

/* dx += all windows of sample n. Values and indices of a window's channels are
 * gathered into g and index, unless they are neighbours. */
static void add_sample(const Job *o, int64_t n, float *dx)
{
    const dsi_view *v = &o->dy->value, *i = &o->dy->index;
    int64_t per = o->K / o->c->groups;
    bool line = v->s[1] == 1 && i->s[1] == 1;
    float g[LANES];
    int32_t index[LANES];
    for (int64_t p = 0; p < v->d[2]; p++)
        for (int64_t q = 0; q < v->d[3]; q++) {
            const float *value = (const float *)v->p + n * v->s[0] + p * v->s[2] + q * v->s[3];
            const int32_t *at = (const int32_t *)i->p + n * i->s[0] + p * i->s[2] + q * i->s[3];
            for (int64_t k = 0, m, last = per, first = 0; k < o->K; k += m) {
                if (k == last) last += per, first += o->lines.C; /* the next group */
                m = dsi_min(LANES, last - k);                    /* to the end of the group */
                for (int64_t j = 0; j < m && !line; j++) {
                    g[j] = value[(k + j) * v->s[1]];
                    index[j] = at[(k + j) * i->s[1]];
                }
                add_window(o, line ? value + k : g, line ? at + k : index, k, (int)m, dx + first);
            }
        }
}

static void dx_run_share(void *arg, int64_t begin, int64_t end)
{
    Job *o = arg;
    int64_t N = o->dx.d[0];
    int slot = slot_take(&o->cut.taken);
    float *sample = o->samples + slot * o->sample_floats;
    for (int64_t n = begin * N / o->cut.quanta; n < end * N / o->cut.quanta; n++) {
        memset(sample, 0, (size_t)o->sample_floats * sizeof *sample);
        add_sample(o, n, sample);
        unpack_pixels(&o->mix, sample, o->lines.rect, &o->dx, n);
    }
    slot_release(&o->cut.taken, slot);
}

/* w [K,C,R,S] -> [K][lines][padded], zeros behind each line */
static void dx_pack_weights(const Job *o, const int32_t *place)
{
    const Lines *l = &o->lines;
    float *to = o->weights;
    for (int64_t k = 0; k < o->K; k++) {
        const float *w = (const float *)o->w.p + k * o->w.s[0];
        for (int64_t i = 0; i < l->count; i++, to += l->padded) {
            for (int64_t j = 0; j < l->length; j++) to[j] = w[place[i * l->length + j]];
            for (int64_t j = l->length; j < l->padded; j++) to[j] = 0;
        }
    }
}

ds_status conv_dx_pooled(dsi_stream *s, const dsi_conv2d *c, const dsi_pooled *dy, dsi_view w,
                         dsi_view dx)
{
    Job o = {.c = c,
             .dy = dy,
             .w = w,
             .dx = dx,
             .K = w.d[0],
             .lines = lines_of(c, &dx, &w, dy->h, dy->w)};
    const Lines *l = &o.lines;
    int64_t weights = o.K * l->count * l->padded, table = dsi_round_up(dy->h * dy->w, 16);
    double ns = (double)weights * (double)(dx.d[0] * dy->value.d[2] * dy->value.d[3]) / VF / 2;
    cut_work(&o.cut, ns);
    o.sample_floats = dsi_round_up(l->rect.rows * l->rect.cols * dx.d[1] + l->padded, 16);
    int64_t lines = dsi_round_up(2 * l->count, 16); /* in floats */
    int64_t line = dsi_round_up(l->count * l->length, 16);
    int64_t floats = weights + lines + table + line + o.cut.slots * o.sample_floats;
    o.weights = dsi_scratch(s, (size_t)floats * sizeof(float));
    if (!o.weights) return DS_ENOMEM;
    o.line = (int64_t *)(o.weights + weights);
    for (int64_t i = 0; i < l->count; i++) o.line[i] = line_at(l, i);
    o.offset = (int32_t *)(o.weights + weights + lines);
    int32_t *place = o.offset + table;
    o.samples = (float *)(place + line);
    for (int64_t p = 0; p < dy->h; p++)
        for (int64_t q = 0; q < dy->w; q++)
            o.offset[p * dy->w + q] = (int32_t)(p * l->row + q * l->pixel);
    line_weights(l, &w, place);
    dx_pack_weights(&o, place);
    o.mix = mix_to_planes(dx.d[1]);
    dsi_parallel(o.cut.quanta, 1, dx_run_share, &o);
    dsi_scratch_release(s, o.weights);
    return DS_OK;
}
