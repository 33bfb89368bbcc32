/* device/cpu/conv/conv_dw.c: dw of a convolution, from a dense gradient and
 * from one in pooled form.
 *
 *     dw[k][line] += sum over outputs (p,q) of dy[k,p,q] x[p,q][line]
 *
 * x is packed in pixel order, sample by sample, so that the inputs of a kernel
 * row are one line of neighbours (conv.h). Vectors run along lines.
 *
 * dense     A tile has up to 12 output channels x two vectors of a line, and sums
 *           over outputs: vectors of x are loaded, dy is broadcast.
 * pooled    Only one output in a window has a gradient, and after a relu many of
 *           those are 0. First they are collected in a list of (dy, place in x) for
 *           each k. Then a tile holds all lines of one k and sums over the list.
 *
 * Order of sums: samples are divided into chunks, by the sizes of the operands
 * only. Each chunk has its own dw; these are added in order at the end. Threads
 * divide chunks and channels, which changes no sum.
 * SPDX-License-Identifier: MIT */
#include "conv.h"
#include "conv_list.h"

#include <string.h>

/* Chunks of samples; each needs memory for a dw. */
#define MAX_CHUNKS 8

typedef struct {
    const dsi_conv2d *c;
    dsi_view x, dw;
    const dsi_view *dy;       /* dense */
    const dsi_pooled *pooled; /* or pooled */
    int64_t N, K, P, Q;
    Lines lines;
    Mix x_mix, dy_mix;
    int64_t chunks, k_parts; /* units */
    Cut cut;
    int64_t size;   /* of one chunk's dw: [K][lines][padded] */
    float *partial; /* [chunks][size] */
    Places places;  /* pooled */
    char *work;     /* of all slots */
    int64_t work_bytes, x_floats, dy_floats, list;
} Job;

/* ---- pooled: tile of lines x vectors ---------------------------------------------------------------------- */

/* dw[i] += sum over the list of value times x at its place, for `lines` lines
 * i, `padded` elements apart. line[i]: offset of line i in a packed sample. */
ALWAYS_INLINE void pooled_tile(int lines, int vectors, List l, const float *x, const int64_t *line,
                               float *dw, int64_t padded)
{
    vf a[MAX_LINES][2];
    const float *from[MAX_LINES];
    UNROLL for (int i = 0; i < lines; i++)
    {
        from[i] = x + line[i];
        UNROLL for (int v = 0; v < vectors; v++) a[i][v] = vf_load(dw + i * padded + v * VF);
    }
    for (int64_t e = 0; e < l.n; e++) {
        vf g = vf_set(l.g[e]);
        int64_t at = l.at[e];
        UNROLL for (int i = 0; i < lines; i++) UNROLL for (int v = 0; v < vectors; v++)
            a[i][v] = vf_fma(g, vf_load(from[i] + at + v * VF), a[i][v]);
    }
    UNROLL for (int i = 0; i < lines; i++) UNROLL for (int v = 0; v < vectors; v++)
        vf_store(dw + i * padded + v * VF, a[i][v]);
}

typedef void PooledTile(List l, const float *x, const int64_t *line, float *dw, int64_t padded);
#define POOLED_TILE(n, vectors) \
    static void pooled_tile_##vectors##_##n(List l, const float *x, const int64_t *line, \
                                            float *dw, int64_t padded) \
    { \
        pooled_tile(n, vectors, l, x, line, dw, padded); \
    }
#define POOLED_TILES(n) POOLED_TILE(n, 1) POOLED_TILE(n, 2)
EACH_LINES(POOLED_TILES)
#define ROW(n) {pooled_tile_1_##n, pooled_tile_2_##n},
static PooledTile *const pooled_tiles[MAX_LINES][2] = {EACH_LINES(ROW)};
#undef ROW

/* Adds sample n to dw of output channels k0 .. k1-1. */
static void sample_pooled(const Job *o, int64_t n, int64_t k0, int64_t k1, const float *x,
                          float *list, float *dw)
{
    const Lines *l = &o->lines;
    for (int64_t k = k0; k < k1; k++) {
        List entries = list_collect(o->pooled, &o->places, n, k, list, o->list);
        const float *xg = x + k / (o->K / o->c->groups) * l->C;
        for (int64_t i = 0, m; i < l->count; i += m) {
            m = dsi_min(MAX_LINES, l->count - i);
            int64_t at[MAX_LINES];
            for (int64_t j = 0; j < m; j++) at[j] = line_at(l, i + j);
            for (int64_t v = 0; v < l->padded; v += 2 * VF)
                pooled_tiles[m - 1][l->padded - v > VF](
                    entries, xg + v, at, dw + (k * l->count + i) * l->padded + v, l->padded);
        }
    }
}

/* ---- dense: tile of channels x vectors ------------------------------------------------------------------------ */

/* P x Q outputs, and the elements from row to row and from pixel to pixel of
 * their inputs and gradients. */
typedef struct {
    int64_t P, Q, xrow, xpixel, yrow, ypixel;
} Pixels;

/* dw[k] += sum over outputs of dy[k] x, for some channels k, `dwk` elements
 * apart, and one or two vectors of a line. */
ALWAYS_INLINE void dense_tile(int channels, int vectors, const Pixels *o, const float *x,
                              const float *dy, float *dw, int64_t dwk)
{
    vf a[MAX_TILE][2], xv[2];
    UNROLL for (int k = 0; k < channels; k++) UNROLL for (int v = 0; v < vectors; v++)
        a[k][v] = vf_load(dw + k * dwk + v * VF);
    int64_t xpixel = o->xpixel, ypixel = o->ypixel;
    for (int64_t p = 0; p < o->P; p++) {
        const float *xq = x + p * o->xrow, *yq = dy + p * o->yrow;
        for (int64_t q = 0; q < o->Q; q++, xq += xpixel, yq += ypixel) {
            UNROLL for (int v = 0; v < vectors; v++)
            {
                xv[v] = vf_load(xq + v * VF);
                IN_REGISTER(xv[v]);
            }
            UNROLL for (int k = 0; k < channels; k++)
            {
                vf g = vf_set(yq[k]);
                if (vectors > 1) IN_REGISTER(g);
                UNROLL for (int v = 0; v < vectors; v++) a[k][v] = vf_fma(g, xv[v], a[k][v]);
            }
        }
    }
    UNROLL for (int k = 0; k < channels; k++) UNROLL for (int v = 0; v < vectors; v++)
        vf_store(dw + k * dwk + v * VF, a[k][v]);
}

typedef void DenseTile(const Pixels *o, const float *x, const float *dy, float *dw, int64_t dwk);
#define DENSE_TILE(n, vectors) \
    static void dense_tile_##vectors##_##n(const Pixels *o, const float *x, const float *dy, \
                                           float *dw, int64_t dwk) \
    { \
        dense_tile(n, vectors, o, x, dy, dw, dwk); \
    }
#define DENSE_TILES(n) DENSE_TILE(n, 1) DENSE_TILE(n, 2)
EACH_TILE(DENSE_TILES)
#define ROW(n) {dense_tile_1_##n, dense_tile_2_##n},
static DenseTile *const dense_tiles[MAX_TILE][2] = {EACH_TILE(ROW)};
#undef ROW

/* Adds the outputs of px to dw of channels k0 .. k1-1, which are of one group.
 * A vector of x in the first cache serves all channels before the next is
 * read. */
static void dense_rows(const Job *o, int64_t k0, int64_t k1, const Pixels *px, const float *x,
                       const float *dy, float *dw)
{
    const Lines *l = &o->lines;
    int64_t blocks = (k1 - k0 + MAX_TILE - 1) / MAX_TILE;
    for (int64_t i = 0; i < l->count; i++)
        for (int64_t v = 0; v < l->padded; v += 2 * VF)
            for (int64_t b = 0, k = k0, m; b < blocks; b++, k += m) {
                m = (k1 - k0) / blocks + (b < (k1 - k0) % blocks);
                dense_tiles[m - 1][l->padded - v > VF](px, x + line_at(l, i) + v, dy + k,
                                                       dw + (k * l->count + i) * l->padded + v,
                                                       l->count * l->padded);
            }
}

static void sample_dense(const Job *o, int64_t k0, int64_t k1, const float *x, const float *dy,
                         int64_t yrow, int64_t ypixel, float *dw)
{
    const Lines *l = &o->lines;
    int64_t per = o->K / o->c->groups;
    /* rows of outputs that are taken at a time: their rows of x (16 KB) stay in
     * the first cache during the loop over all channels and lines */
    int64_t rows = dsi_max(dsi_max(1, 4096 / l->row), 1 + 64 / o->Q);
    for (int64_t p = 0; p < o->P; p += rows) {
        Pixels px = {dsi_min(rows, o->P - p), o->Q, l->row, l->pixel, yrow, ypixel};
        for (int64_t k = k0, last; k < k1; k = last) {
            last = dsi_min(k1, (k / per + 1) * per);
            dense_rows(o, k, last, &px, x + p * l->row + k / per * l->C, dy + p * yrow, dw);
        }
    }
}

/* ---- units: a chunk of samples x a part of the channels --------------------------------------------------------- */

static void run_unit(const Job *o, int64_t chunk, int64_t k0, int64_t k1, float *work)
{
    float *x = work, *rest = work + o->x_floats, *dw = o->partial + chunk * o->size;
    int64_t per_k = o->lines.count * o->lines.padded;
    memset(dw + k0 * per_k, 0, (size_t)((k1 - k0) * per_k) * sizeof *dw);
    for (int64_t n = chunk * o->N / o->chunks; n < (chunk + 1) * o->N / o->chunks; n++) {
        pack_pixels(&o->x_mix, &o->x, n, o->lines.rect, x);
        if (o->pooled) {
            sample_pooled(o, n, k0, k1, x, rest, dw);
        } else if (o->dy_floats) {
            pack_pixels(&o->dy_mix, o->dy, n, (Rect){0, o->P, 0, o->Q}, rest);
            sample_dense(o, k0, k1, x, rest, o->Q * o->K, o->K, dw);
        } else {
            const dsi_view *dy = o->dy;
            sample_dense(o, k0, k1, x, (const float *)dy->p + n * dy->s[0], dy->s[2], dy->s[3], dw);
        }
    }
}

static void dw_run_share(void *arg, int64_t begin, int64_t end)
{
    Job *o = arg;
    int64_t units = o->chunks * o->k_parts;
    int slot = slot_take(&o->cut.taken);
    float *work = (float *)(o->work + slot * o->work_bytes);
    for (int64_t u = begin * units / o->cut.quanta; u < end * units / o->cut.quanta; u++) {
        int64_t part = u % o->k_parts;
        run_unit(o, u / o->k_parts, part * o->K / o->k_parts, (part + 1) * o->K / o->k_parts, work);
    }
    slot_release(&o->cut.taken, slot);
}

/* dw = the sum of the chunks, in their order; from [K][lines][padded] to dw's
 * strides, by `place`, the offset of each element of the lines. */
static void dw_finish(const Job *o, const int32_t *place)
{
    const Lines *l = &o->lines;
    for (int64_t c = 1; c < o->chunks; c++) {
        const float *from = o->partial + c * o->size;
        for (int64_t i = 0; i < o->size; i += VF)
            vf_store(o->partial + i, vf_add(vf_load(o->partial + i), vf_load(from + i)));
    }
    const float *from = o->partial;
    for (int64_t k = 0; k < o->K; k++) {
        float *dw = (float *)o->dw.p + k * o->dw.s[0];
        for (int64_t i = 0; i < l->count; i++, from += l->padded)
            for (int64_t j = 0; j < l->length; j++) dw[place[i * l->length + j]] = from[j];
    }
}

static ds_status dw_run(dsi_stream *s, Job *o)
{
    const Lines *l = &o->lines;
    o->x_mix = mix_to_pixels(o->x.d[1]);
    o->dy_mix = mix_to_pixels(o->dy ? o->K : 0);
    o->size = o->K * l->count * l->padded;
    o->chunks = dsi_max(1,
                        dsi_min(dsi_min(MAX_CHUNKS, o->N / 2), ((int64_t)4 << 20) / (o->size + 1)));
    int64_t outputs = o->pooled ? o->pooled->value.d[2] * o->pooled->value.d[3] : o->P * o->Q;
    double ns = (double)o->size * (double)outputs * (double)o->N / VF / 2;
    cut_work(&o->cut, ns);
    o->k_parts = o->cut.slots > 1 ? dsi_min(o->K, (2 * o->cut.slots + o->chunks - 1) / o->chunks)
                                  : 1;
    o->x_floats = dsi_round_up(l->rect.rows * l->rect.cols * o->x.d[1] + l->padded, 16);
    o->list = dsi_round_up(outputs + LIST_SLACK, 16);
    bool as_is = o->dy && o->dy->s[1] == 1;
    o->dy_floats = o->pooled || as_is ? 0 : o->P * o->Q * o->K;
    o->work_bytes = dsi_round_up(
        (o->x_floats + (o->pooled ? 5 * o->list : o->dy_floats)) * (int64_t)sizeof(float), 64);

    bool small = o->P * o->Q < 1 << 20;
    int64_t table = o->pooled && !small ? dsi_round_up(o->P * o->Q, 16) : 0;
    int64_t line = dsi_round_up(l->count * l->length, 16);
    int64_t bytes = (o->chunks * o->size + table + line) * (int64_t)sizeof(float) +
                    o->cut.slots * o->work_bytes;
    o->partial = dsi_scratch(s, (size_t)bytes);
    if (!o->partial) return DS_ENOMEM;
    int32_t *places = (int32_t *)(o->partial + o->chunks * o->size);
    int32_t *place = places + table; /* of line elements in dw */
    o->work = (char *)(place + line);
    line_weights(l, &o->dw, place);
    for (int64_t i = 0; i < table; i++)
        places[i] = (int32_t)(i / o->Q * l->row + i % o->Q * l->pixel);
    o->places = (Places){(int32_t)o->Q, (int32_t)l->row, (int32_t)l->pixel, table ? places : NULL};
    dsi_parallel(o->cut.quanta, 1, dw_run_share, o);
    dw_finish(o, place);
    dsi_scratch_release(s, o->partial);
    return DS_OK;
}

ds_status conv_dw(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x, dsi_view dw)
{
    Job o = {.c = c,
             .x = x,
             .dw = dw,
             .dy = &dy,
             .N = dy.d[0],
             .K = dy.d[1],
             .P = dy.d[2],
             .Q = dy.d[3]};
    o.lines = lines_of(c, &x, &dw, o.P, o.Q);
    return dw_run(s, &o);
}

ds_status conv_dw_pooled(dsi_stream *s, const dsi_conv2d *c, const dsi_pooled *dy, dsi_view x,
                         dsi_view dw)
{
    Job o = {
        .c = c, .x = x, .dw = dw, .pooled = dy, .N = x.d[0], .K = dw.d[0], .P = dy->h, .Q = dy->w};
    o.lines = lines_of(c, &x, &dw, o.P, o.Q);
    return dw_run(s, &o);
}
