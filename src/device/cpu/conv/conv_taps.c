/* device/cpu/conv/conv_taps.c: y and dx of bfloat16 where vectors multiply it
 * (AVX512_BF16), without unfolding:
 *
 *     y [pixels, K] = sum over taps (r, s) of x [pixels moved by (r, s), C] w (r, s) [C, K] + bias
 *
 * A product reads ROWS pixels of x through as many pointers. Taps outside the
 * image are left out, so the pixels of a product must have the same: rows of
 * the image with equal taps are a band, columns too, and a band of rows times
 * one of columns is a class. A plane of 4x4 with a border of one pixel needs
 * 0.69 of the multiplications that it has with zeros, one of 8x8 0.84.
 *
 * Loop order: an item is some pixels of a class. For each panel of SIDE output
 * channels, and SIDE pixels: as many elements of taps as fit into the first
 * cache are added to the sums of one ROWS after another.
 *
 * Invariants: a sum is float32, in the order of taps and channels. Threads
 * divide pixels and panels.
 * SPDX-License-Identifier: MIT */
#include "conv_taps.h"
#include "device/cpu/gemm/tiles.h"
#include "device/cpu/table.h"

#ifdef HAS_TILES

#define ROWS        8   /* pixels of a product */
#define ITEM_PIXELS 128 /* of an item, at most; a multiple of SIDE */
#define ITEMS       32  /* if pixels are few, items divide panels up to this number */
#define MOST_TAPS   8   /* of an axis */
#define MOST_BANDS  (2 * MOST_TAPS + 1)
#define FIRST_K     256 /* elements of a panel that the first cache holds */
#define GRAIN_FLOPS 4e6

/* Rows, or columns, begin .. end-1 of y, which have taps first .. last-1. */
typedef struct Band {
    int64_t begin, end, first, last;
} Band;

typedef struct Taps {
    const Unfolding *u;
    int64_t deep, panels; /* C in whole steps; panels of output channels */
    uint16_t *b;          /* [R][S][panels][deep / DEEP][STEP] */
    float *bias;          /* [panels SIDE], zeros behind the end */
    Band rows[MOST_BANDS], cols[MOST_BANDS];
    int n_rows, n_cols;
    int64_t out, across; /* output channels; panels of an item */
    uint16_t *y;         /* the first pixel's */
    int64_t pixel;       /* elements from pixel to pixel of y */
} Taps;

/* Neighbouring channels of a tap: n from element x behind a pixel's first tap
 * on, and b behind a panel's. */
typedef struct Piece {
    int64_t x, b, n;
} Piece;

/* Pixels of one class that are multiplied together. */
typedef struct Pixels {
    const Band *rows, *cols;
    int64_t count;
    int64_t x[ITEM_PIXELS], y[ITEM_PIXELS]; /* elements: of (r, s) = (0, 0), of y */
} Pixels;

/* ---- products ------------------------------------------------------------------------------------------- */

/* sums [ROWS][SIDE], for V LINES columns, + pieces of ROWS pixels times those
 * of a panel. fresh: the sums start from 0. */
#define ADD_PIECES(name, V) \
    USES_TILES static void name(const uint16_t *const x[ROWS], const uint16_t *b, const Piece *p, \
                                int64_t n, bool fresh, float *sums) \
    { \
        __m512 sum[ROWS][V]; \
        UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int j = 0; j < V; j++) \
            sum[i][j] = fresh ? vf_zero() : vf_load(sums + i * SIDE + j * LINES); \
        for (; n > 0; n--, p++) { \
            const uint16_t *panel = b + p->b; \
            for (int64_t at = p->x, end = at + p->n; at < end; panel += STEP / 2) \
                for (int64_t last = at + DEEP < end ? at + DEEP : end; at < last; \
                     at += 2, panel += DEEP) { \
                    __m512i of_b[V]; \
                    UNROLL for (int j = 0; j < V; j++) \
                        of_b[j] = _mm512_loadu_si512(panel + j * STEP / 2); \
                    UNROLL for (int i = 0; i < ROWS; i++) ADD_PAIR(sum[i], V, x[i] + at, of_b); \
                } \
        } \
        UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int j = 0; j < V; j++) \
            vf_store(sums + i * SIDE + j * LINES, sum[i][j]); \
    }

ADD_PIECES(add_pieces, 2)
ADD_PIECES(add_pieces_left, 1)
#undef ADD_PIECES

/* Pieces of the class from tap *r, *s and channel *c on, for FIRST_K elements;
 * advances these. */
static int64_t next_pieces(const Taps *o, const Pixels *a, int64_t *r, int64_t *s, int64_t *c,
                           Piece pieces[FIRST_K])
{
    const Unfolding *u = o->u;
    int64_t n = 0;
    for (int64_t left = FIRST_K; left > 0 && *r < a->rows->last;) {
        int64_t k = dsi_min(u->C - *c, FIRST_K);
        if (n && k > left) break;
        pieces[n].x = (*r * u->dilation[0] * u->W + *s * u->dilation[1]) * u->C + *c;
        pieces[n].b = (*r * u->S + *s) * o->panels * o->deep * SIDE + *c * SIDE;
        pieces[n++].n = k;
        left -= k, *c += k;
        if (*c < u->C) continue;
        *c = 0;
        if (++*s == a->cols->last) *s = a->cols->first, ++*r;
    }
    return n;
}

/* Rounds the sums of n pixels, plus bias, to y. */
USES_TILES static void put_pixels(const Taps *o, const int64_t *y, int64_t n, int64_t k,
                                  const float *sums)
{
    int64_t left = o->out - k;
    __mmask32 wide = left < SIDE ? (1u << left) - 1 : ~0u;
    __m512 low = _mm512_loadu_ps(o->bias + k), high = _mm512_loadu_ps(o->bias + k + LINES);
    for (int64_t i = 0; i < n; i++, sums += SIDE) {
        __m512 l = _mm512_add_ps(_mm512_loadu_ps(sums), low),
               h = _mm512_add_ps(_mm512_loadu_ps(sums + LINES), high);
        _mm512_mask_storeu_epi16(o->y + y[i] + k, wide, (__m512i)_mm512_cvtne2ps_pbh(h, l));
    }
}

/* Up to SIDE pixels from `first` on times a panel. */
static void run_panel(const Taps *o, const Pixels *a, int64_t first, int64_t panel)
{
    _Alignas(64) float sums[SIDE * SIDE];
    Piece pieces[FIRST_K];
    const uint16_t *b = o->b + panel * o->deep * SIDE;
    int64_t count = dsi_min(SIDE, a->count - first), r = a->rows->first, s = a->cols->first, c = 0;
    bool right = o->out - panel * SIDE > LINES, fresh = true;
    if (!right || r >= a->rows->last || s >= a->cols->last) memset(sums, 0, sizeof sums);
    if (s >= a->cols->last) r = a->rows->last; /* no tap is inside */
    for (int64_t n; (n = next_pieces(o, a, &r, &s, &c, pieces)) > 0; fresh = false)
        for (int64_t i = 0; i < count; i += ROWS) {
            const uint16_t *x[ROWS];
            for (int64_t j = 0; j < ROWS; j++)
                x[j] = o->u->x + a->x[first + dsi_min(i + j, count - 1)];
            (right ? add_pieces : add_pieces_left)(x, b, pieces, n, fresh, sums + i * SIDE);
        }
    put_pixels(o, a->y + first, count, panel * SIDE, sums);
}

/* ---- pixels --------------------------------------------------------------------------------------------- */

/* The bands of an axis of `count` outputs, `size` inputs and `taps` taps. */
static int bands_of(int64_t count, int64_t size, int64_t taps, int64_t stride, int64_t dilation,
                    int64_t padding, Band bands[MOST_BANDS])
{
    int n = 0;
    for (int64_t p = 0; p < count; p++) {
        int64_t at = p * stride - padding, first = 0, last = taps;
        while (first < taps && at + first * dilation < 0) first++;
        while (last > first && at + (last - 1) * dilation >= size) last--;
        if (n && bands[n - 1].first == first && bands[n - 1].last == last)
            bands[n - 1].end = p + 1;
        else
            bands[n++] = (Band){p, p + 1, first, last};
    }
    return n;
}

static int64_t pixels_of(const Taps *o, const Band *rows, const Band *cols)
{
    return o->u->N * (rows->end - rows->begin) * (cols->end - cols->begin);
}

/* Blocks of ITEM_PIXELS of all classes; of those before class `end`. */
static int64_t blocks_before(const Taps *o, int end)
{
    int64_t n = 0;
    for (int i = 0; i < end; i++)
        n += dsi_div_up(pixels_of(o, o->rows + i / o->n_cols, o->cols + i % o->n_cols),
                        ITEM_PIXELS);
    return n;
}

/* The pixels of a block. */
static void find_pixels(const Taps *o, int64_t block, Pixels *a)
{
    const Unfolding *u = o->u;
    int class = 0;
    while (blocks_before(o, class + 1) <= block) class ++;
    a->rows = o->rows + class / o->n_cols, a->cols = o->cols + class % o->n_cols;
    int64_t first = (block - blocks_before(o, class)) * ITEM_PIXELS,
            down = a->rows->end - a->rows->begin, across = a->cols->end - a->cols->begin;
    a->count = dsi_min(ITEM_PIXELS, pixels_of(o, a->rows, a->cols) - first);
    for (int64_t i = 0; i < a->count; i++) {
        int64_t q = (first + i) % across + a->cols->begin, row = (first + i) / across;
        int64_t p = row % down + a->rows->begin, n = row / down;
        int64_t h = p * u->stride[0] - u->padding[0], w = q * u->stride[1] - u->padding[1];
        a->x[i] = ((n * u->H + h) * u->W + w) * u->C;
        a->y[i] = ((n * u->P + p) * u->Q + q) * o->pixel;
    }
}

/* Items begin .. end-1 of [blocks][panels / across]. */
static void run_items(void *arg, int64_t begin, int64_t end)
{
    const Taps *o = arg;
    Pixels a;
    int64_t each = dsi_div_up(o->panels, o->across);
    for (int64_t item = begin; item < end; item++) {
        int64_t panel = item % each * o->across, last = dsi_min(panel + o->across, o->panels);
        if (item == begin || item % each == 0) find_pixels(o, item / each, &a);
        for (; panel < last; panel++)
            for (int64_t i = 0; i < a.count; i += SIDE) run_panel(o, &a, i, panel);
    }
}

/* ---- the convolution -------------------------------------------------------------------------------------- */

bool taps_take(const Unfolding *u)
{
    return u->C % 2 == 0 && u->R <= MOST_TAPS && u->S <= MOST_TAPS && !dsi_cpu_amx();
}

ds_status taps_correlate(dsi_stream *s, const Unfolding *u, const uint16_t *w, int64_t out,
                         dsi_view bias, const dsi_view *to, int64_t c)
{
    Taps o = {.u = u, .out = out, .y = (uint16_t *)to->p + c, .pixel = to->d[1]};
    o.deep = dsi_round_up(u->C, DEEP), o.panels = dsi_div_up(out, SIDE);
    const int64_t tap = o.panels * o.deep * SIDE, columns = o.panels * SIDE;
    o.b = dsi_scratch(s, (size_t)(u->R * u->S * tap) * sizeof *o.b + (size_t)columns * 4);
    if (!o.b) return DS_ENOMEM;
    o.bias = (float *)(o.b + u->R * u->S * tap);
    memset(o.bias, 0, (size_t)columns * sizeof *o.bias);
    if (bias.p) KERNEL(copy)(s, bias, (dsi_view){o.bias, DS_F32, 1, {out}, {1}});
    for (int64_t i = 0; i < u->R * u->S; i++)
        bf16_pack(
            &(Packing){w + i * u->C, DS_BF16, u->depth, 1, out, u->C, true, o.b + i * tap, NULL});
    o.n_rows = bands_of(u->P, u->H, u->R, u->stride[0], u->dilation[0], u->padding[0], o.rows);
    o.n_cols = bands_of(u->Q, u->W, u->S, u->stride[1], u->dilation[1], u->padding[1], o.cols);
    int64_t blocks = blocks_before(&o, o.n_rows * o.n_cols);
    o.across = dsi_max(1, dsi_min(o.panels, dsi_div_up(o.panels * blocks, ITEMS)));
    double flops = 2.0 * (double)(ITEM_PIXELS * o.across * SIDE) * (double)u->length;
    dsi_parallel(blocks * dsi_div_up(o.panels, o.across), 1 + (int64_t)(GRAIN_FLOPS / flops),
                 run_items, &o);
    dsi_scratch_release(s, o.b);
    return DS_OK;
}

#else

bool taps_take(const Unfolding *u)
{
    (void)u;
    return false;
}

ds_status taps_correlate(dsi_stream *s, const Unfolding *u, const uint16_t *w, int64_t out,
                         dsi_view bias, const dsi_view *to, int64_t c)
{
    (void)s, (void)u, (void)w, (void)out, (void)bias, (void)c;
    return no_dtype("conv2d", to->dtype);
}

#endif
