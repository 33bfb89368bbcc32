/* device/cpu/conv/conv_tile.h: the register tiles of a correlation.
 *
 *     y[k][i] = bias[k] + sum over t of x[tap[t] + i] w[t][k]      i: pixels side by side
 *
 * Two kinds of tile compute it. Each keeps its outputs in registers while it
 * loops over all taps:
 *
 *     channel tile   vectors of output channels; each input is broadcast;
 *                    rows x pixels x vectors outputs. For at least VF output
 *                    channels.
 *     pixel tile     vectors of pixels; each weight is broadcast;
 *                    channels x vectors outputs. For few output channels, and for
 *                    results in planes.
 *
 * Sizes are constants at each call, so that the compiler unrolls all loops over
 * outputs and keeps these in registers. There is one function for each size, in
 * a table. The order of an element's sum is that of the taps, in every tile.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "conv.h"

/* Sizes that fit into 32 registers (avx512) or 16: outputs, the weights (or
 * pixels) of one tap, and one broadcast. For avx512: 12 x 2 + 2 + 1 in a
 * channel tile, 6 x 4
 * + 4 + 1 in a pixel tile. */
#if defined(DSI_ISA_avx512)
#define MAX_RUN     5 /* neighbouring taps of a channel tile */
#define MAX_VECTORS 4 /* vectors of a pixel tile */
#else
#define MAX_RUN     1
#define MAX_VECTORS 2
#endif
#define MAX_PIXELS   MAX_TILE /* pixels of a channel tile, in two rows or of two vectors */
#define MAX_CHANNELS 6        /* channels of a pixel tile */

/* Keeps a pointer in a register. Otherwise the compiler addresses each pixel by
 * base and index, and a multiply-add with an indexed operand takes two places
 * in the core's queues instead of one. */
#define IN_ADDRESS(p) __asm__("" : "+r"(p))

/* The taps that a tile sums over. */
typedef struct {
    int64_t T;
    const int64_t *tap; /* [T] offsets in the source, from the output's own pixel */
    const float *w;     /* [T][channels of the tile] */
    const float *bias;  /* [channels of the tile] */
} Taps;

/* ---- channel tile: y[row][pixel][vector] -------------------------------------------------------------
 *
 * run > 1: taps come in runs of `run` neighbours, as those of a kernel row do. Then
 * input j is tap s of pixel j - s, for each s of the run. It is broadcast once and
 * used up to `run` times. With one load for each multiply-add, the tile would wait
 * for loads. */

ALWAYS_INLINE void channel_tile(int rows, int pixels, int vectors, int run, const Taps *o,
                                const float *x, int64_t xrow, float *y, int64_t yrow,
                                int64_t ypixel)
{
    vf a[2][MAX_PIXELS][2], w[MAX_RUN][2];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int i = 0; i < pixels; i++)
        UNROLL for (int v = 0; v < vectors; v++) a[r][i][v] = vf_load(o->bias + v * VF);
    const float *wt = o->w;
    for (int64_t t = 0; t < o->T; t += run, wt += run * vectors * VF) {
        const float *row[2] = {x + o->tap[t]};
        IN_ADDRESS(row[0]);
        if (rows > 1) {
            row[1] = row[0] + xrow;
            IN_ADDRESS(row[1]);
        }
        UNROLL for (int s = 0; s < run; s++) UNROLL for (int v = 0; v < vectors; v++)
            w[s][v] = vf_load(wt + (s * vectors + v) * VF);
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < pixels + run - 1; j++)
        {
            vf xj = vf_set(row[r][j]);
            if (vectors * run > 1) IN_REGISTER(xj);
            UNROLL for (int s = 0; s < run; s++)
            {
                int i = j - s; /* pixel i's tap s is at i + s */
                if (i >= 0 && i < pixels)
                    UNROLL for (int v = 0; v < vectors; v++)
                        a[r][i][v] = vf_fma(xj, w[s][v], a[r][i][v]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int i = 0; i < pixels; i++)
        UNROLL for (int v = 0; v < vectors; v++)
            vf_store(y + r * yrow + i * ypixel + v * VF, a[r][i][v]);
}

typedef void ChannelTile(const Taps *o, const float *x, int64_t xrow, float *y, int64_t yrow,
                         int64_t ypixel);

#define CHANNEL_TILE(name, rows, pixels, vectors, run) \
    static void name(const Taps *o, const float *x, int64_t xrow, float *y, int64_t yrow, \
                     int64_t ypixel) \
    { \
        channel_tile(rows, pixels, vectors, run, o, x, xrow, y, yrow, ypixel); \
    }
/* rows x vectors is 2 x 1 or 1 x 2 */
#define CHANNEL_TILES(n) \
    CHANNEL_TILE(channel_tile_2_##n, 2, n, 1, 1) \
    CHANNEL_TILE(channel_tile_1_##n, 1, n, 2, 1)
#if defined(DSI_ISA_avx512)
#define CHANNEL_TILE_RUN(n) \
    CHANNEL_TILE(channel_tile_run3_##n, 2, n, 1, 3) \
    CHANNEL_TILE(channel_tile_run5_##n, 2, n, 1, 5)
EACH_TILE(CHANNEL_TILE_RUN)
#define RUN_TILES(n) , channel_tile_run3_##n, channel_tile_run5_##n
#else
#define RUN_TILES(n)
#endif
EACH_TILE(CHANNEL_TILES)
#define ROW(n) {channel_tile_2_##n, channel_tile_1_##n RUN_TILES(n)},
static ChannelTile *const channel_tiles[MAX_PIXELS][4] = {EACH_TILE(ROW)}; /* [pixels - 1][kind] */
#undef ROW

/* run: taps of neighbouring columns, which are neighbours in the source too */
static inline ChannelTile *choose_channel_tile(int64_t pixels, int vectors, int64_t run)
{
    int kind = vectors > 1 ? 1 : MAX_RUN > 1 && run == 3 ? 2 : MAX_RUN > 1 && run == 5 ? 3 : 0;
    return channel_tiles[pixels - 1][kind];
}

/* ---- pixel tile: a[m][v] is a vector of pixels of output channel m, from source x[v] -------------------
 *
 * parts = 2: the two halves of a vector come from x[2 v] and x[2 v + 1] and go to
 * y[2 v] and y[2 v + 1]. So two rows whose last half vector remains share one. */

#if defined(DSI_ISA_avx512)
ALWAYS_INLINE vf load_halves(const float *a, const float *b)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(a)), _mm256_loadu_ps(b), 1);
}
ALWAYS_INLINE void store_halves(float *a, float *b, vf v)
{
    _mm256_storeu_ps(a, _mm512_castps512_ps256(v));
    _mm256_storeu_ps(b, _mm512_extractf32x8_ps(v, 1));
}
#elif defined(DSI_ISA_avx2)
ALWAYS_INLINE vf load_halves(const float *a, const float *b)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a)), _mm_loadu_ps(b), 1);
}
ALWAYS_INLINE void store_halves(float *a, float *b, vf v)
{
    _mm_storeu_ps(a, _mm256_castps256_ps128(v));
    _mm_storeu_ps(b, _mm256_extractf128_ps(v, 1));
}
#else
ALWAYS_INLINE vf load_halves(const float *a, const float *b)
{
    return (vf){a[0], a[1], b[0], b[1]};
}
ALWAYS_INLINE void store_halves(float *a, float *b, vf v)
{
    a[0] = v[0], a[1] = v[1], b[0] = v[2], b[1] = v[3];
}
#endif

ALWAYS_INLINE void pixel_tile(int channels, int vectors, int parts, const Taps *o,
                              const float *const *x, float *const *y, int64_t ychannel)
{
    vf a[MAX_CHANNELS][MAX_VECTORS], xv[MAX_VECTORS];
    const float *px[2 * MAX_VECTORS];
    UNROLL for (int v = 0; v < vectors * parts; v++) px[v] = x[v];
    UNROLL for (int m = 0; m < channels; m++) UNROLL for (int v = 0; v < vectors; v++)
        a[m][v] = vf_set(o->bias[m]);
    const float *wt = o->w;
    for (int64_t t = 0; t < o->T; t++, wt += channels) {
        int64_t at = o->tap[t];
        UNROLL for (int v = 0; v < vectors; v++)
        {
            xv[v] = parts == 1 ? vf_load(px[v] + at)
                               : load_halves(px[2 * v] + at, px[2 * v + 1] + at);
            IN_REGISTER(xv[v]);
        }
        UNROLL for (int m = 0; m < channels; m++)
        {
            vf w = vf_set(wt[m]);
            IN_REGISTER(w);
            UNROLL for (int v = 0; v < vectors; v++) a[m][v] = vf_fma(xv[v], w, a[m][v]);
        }
    }
    UNROLL for (int m = 0; m < channels; m++) UNROLL for (int v = 0; v < vectors; v++)
    {
        if (parts == 1)
            vf_store(y[v] + m * ychannel, a[m][v]);
        else
            store_halves(y[2 * v] + m * ychannel, y[2 * v + 1] + m * ychannel, a[m][v]);
    }
}

typedef void PixelTile(const Taps *o, const float *const *x, float *const *y, int64_t ychannel);

#define PIXEL_TILE(name, channels, vectors, parts) \
    static void name(const Taps *o, const float *const *x, float *const *y, int64_t ychannel) \
    { \
        pixel_tile(channels, vectors, parts, o, x, y, ychannel); \
    }
#define PIXEL_TILES(n) \
    PIXEL_TILE(pixel_tile_1_##n, n, 1, 1) \
    PIXEL_TILE(pixel_tile_n_##n, n, MAX_VECTORS, 1) \
    PIXEL_TILE(halves_tile_1_##n, n, 1, 2) \
    PIXEL_TILE(halves_tile_n_##n, n, MAX_VECTORS, 2)
#define EACH_CHANNELS(X) X(1) X(2) X(3) X(4) X(5) X(6)
EACH_CHANNELS(PIXEL_TILES)
/* [channels - 1][parts - 1][many vectors] */
#define ROW(n) {{pixel_tile_1_##n, pixel_tile_n_##n}, {halves_tile_1_##n, halves_tile_n_##n}},
static PixelTile *const pixel_tiles[MAX_CHANNELS][2][2] = {EACH_CHANNELS(ROW)};
#undef ROW
