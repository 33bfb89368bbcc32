/* device/cpu/conv/conv_winograd_job.h: what conv_winograd.c and
 * conv_winograd_amx.c share: a convolution, and a block of its tiles.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "conv.h"
#include "device/cpu/simd/half.h"

#define POSITIONS 16
/* Rows, and columns, of squares of M (SIDE of tiles.h). */
#define M_SIDE 32

typedef struct Job {
    int64_t N, C, K;             /* channels of the source and of the result */
    int64_t H, W, P, Q, pad[2];  /* planes of source and result; padding */
    int64_t down, across, tiles; /* rows and columns of tiles of a sample; all tiles */
    dsi_view x, y;               /* in pixel order; of one dtype, as w and bias */
    dsi_view bias;               /* [K]; p may be NULL */
    bool half;                   /* that dtype is bfloat16, else float32 */
    int64_t block;               /* tiles of a block */
    int64_t panels, width;       /* panels of U's columns; columns of each */
    int64_t ustep, vstep, mstep; /* floats from position to position */
    float *u;                    /* [16][panels][C][width], dw: [16][C][K] */
    float *blocks;               /* V and M of each slot, `each` floats */
    int64_t each;
    Slots taken;
    void *w; /* weight of (in, out, j): w[in win + out wout + (flipped ? 8 - j : j)] */
    int64_t win, wout;
    bool flipped;
    int64_t part, rows; /* dw: input channels, and rows of positions, of an item */
    bool dw;
    /* By the matrix unit, in parts of float32: U and V of y and dx are packed,
     * and M of these is in squares. */
    bool amx;
    _Atomic uint32_t largest_a, largest_b; /* magnitudes of the operands of its products */
} Job;

/* A block of tiles, with memory of the thread that computes it. */
typedef struct Block {
    Job *job;
    int64_t first, count;
    float *v, *m; /* [16][block][C], [16][block][K]; dw: of fewer positions, and of `channels` */
    int64_t c, channels;
    int row, rows;    /* dw: of positions */
    uint16_t *packed; /* V and M of a position, for dw by the matrix unit */
} Block;

typedef struct Place {
    int64_t n, row, col; /* of the first output */
} Place;

static inline Place winograd_place(const Job *o, int64_t tile)
{
    int64_t each = o->down * o->across, at = tile % each;
    return (Place){tile / each, 2 * (at / o->across), 2 * (at % o->across)};
}

/* VF neighbours in memory, from element `at` of p on, and back, rounded. */
ALWAYS_INLINE vf winograd_load(bool half, const void *p, int64_t at)
{
    if (!half) return vf_load((const float *)p + at);
#if defined(DSI_ISA_avx512)
    return bf16_load((const uint16_t *)p + at);
#else
    float lanes[VF];
    bf16_to_floats((const uint16_t *)p + at, lanes, VF);
    return vf_load(lanes);
#endif
}

ALWAYS_INLINE void winograd_store(bool half, void *p, int64_t at, vf x)
{
    if (!half) {
        vf_store((float *)p + at, x);
        return;
    }
#if defined(DSI_ISA_avx512)
    bf16_store_n((uint16_t *)p + at, x, VF);
#else
    float lanes[VF];
    vf_store(lanes, x);
    floats_to_bf16(lanes, (uint16_t *)p + at, VF);
#endif
}

/* d = VF channels of size x size pixels from (row, col) on, zeros outside the
 * plane. at: element of (row, col) in x. whole: no pixel is outside. */
ALWAYS_INLINE void load_patch(int size, bool half, const dsi_view *x, int64_t at, int64_t row,
                              int64_t col, bool whole, vf d[size][size])
{
    UNROLL for (int r = 0; r < size; r++) UNROLL for (int c = 0; c < size; c++)
    {
        bool inside = whole ||
                      (row + r >= 0 && row + r < x->d[2] && col + c >= 0 && col + c < x->d[3]);
        d[r][c] = inside ? winograd_load(half, x->p, at + r * x->s[2] + c * x->s[3]) : vf_zero();
    }
}

/* ---- conv_winograd_amx.c ----------------------------------------------------------------------------------------- */

/* True if the matrix unit is faster for these sizes. */
#define winograd_amx_takes KERNEL(conv_winograd_amx_takes)
bool winograd_amx_takes(const Job *o);

/* U of input channels in and in + 1 and VF output channels from out on, at all
 * positions, becomes packed parts. */
#define winograd_amx_put_u KERNEL(conv_winograd_amx_put_u)
void winograd_amx_put_u(Job *o, int64_t in, int64_t out, vf even[4][4], vf odd[4][4]);

/* Tiles begin .. end-1 of x -> V in packed parts. */
#define winograd_amx_make_v KERNEL(conv_winograd_amx_make_v)
void winograd_amx_make_v(void *block, int64_t begin, int64_t end);

/* M = V U for units begin .. end-1 of [positions][K / M_SIDE]. */
#define winograd_amx_products KERNEL(conv_winograd_amx_products)
void winograd_amx_products(void *block, int64_t begin, int64_t end);

/* dw: U += V^T M for position i, the j-th of the block. */
#define winograd_amx_add KERNEL(conv_winograd_amx_add)
void winograd_amx_add(const Block *b, int i, int j);

/* True if what was computed by the unit is as exact as by vectors. */
#define winograd_amx_exact KERNEL(conv_winograd_amx_exact)
bool winograd_amx_exact(const Job *o);
