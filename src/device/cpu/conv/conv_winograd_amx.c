/* device/cpu/conv/conv_winograd_amx.c: the products of conv_winograd.c by the
 * matrix unit, in three bfloat16 parts of each float32 (gemm_bf16.c says why
 * that is as exact).
 *
 * For y and dx, V is written as packed groups of SIDE tiles, U as packed panels
 * of SIDE output channels, and M is squares of sums of both. For dw, V and M
 * are packed position by position.
 *
 * Invariants: each sum is one of float32 in the order of channels, for dw of
 * tiles, in blocks that depend on shapes alone. If winograd_amx_exact is false
 * at the end, the result is not to be used.
 * SPDX-License-Identifier: MIT */
#include "conv_winograd.h"
#include "conv_winograd_job.h"
#include "device/cpu/gemm/parts.h"
#include "device/cpu/table.h"

#ifdef HAS_TILES

#define PARTS 3

/* dw packs both operands for each block, and needs more channels to pay. */
bool winograd_amx_takes(const Job *o)
{
    int64_t least = o->dw ? 128 : 64, sum = o->dw ? 384 : 128;
    return o->C % SIDE == 0 && o->K % SIDE == 0 && o->C >= least && o->K >= least &&
           o->C + o->K >= sum && dsi_cpu_amx();
}

bool winograd_amx_exact(const Job *o) { return parts_in_range(o->largest_a, o->largest_b); }

/* Elements from group to group of SIDE vectors of n elements, packed. */
static int64_t packed_step(int64_t n) { return dsi_div_up(n, DEEP) * PARTS * STEP; }

void winograd_amx_put_u(Job *o, int64_t in, int64_t out, vf even[4][4], vf odd[4][4])
{
    uint16_t *to = (uint16_t *)o->u + out / SIDE * packed_step(o->C) + in / DEEP * PARTS * STEP +
                   out % SIDE / LINES * (STEP / 2) + in % DEEP / 2 * DEEP;
    __m512i largest = _mm512_setzero_si512();
    UNROLL for (int i = 0; i < POSITIONS; i++)
    {
        largest = larger(larger(largest, even[i / 4][i % 4]), odd[i / 4][i % 4]);
        split_pair(PARTS, even[i / 4][i % 4], odd[i / 4][i % 4], to + 2 * i * o->ustep);
    }
    note_largest(&o->largest_b, largest);
}

/* V of a tile: lines of SIDE channels of each part. */
ALWAYS_INLINE __m512i put_v(const Job *o, bool whole, Place p, uint16_t *to, __m512i largest)
{
    int64_t row = p.row - o->pad[0], col = p.col - o->pad[1];
    int64_t at = p.n * o->x.s[0] + row * o->x.s[2] + col * o->x.s[3];
    for (int64_t c = 0; c < o->C; c += DEEP, to += PARTS * STEP) {
        vf low[4][4], high[4][4];
        load_patch(4, false, &o->x, at + c, row, col, whole, low);
        to_v(low);
        load_patch(4, false, &o->x, at + c + VF, row, col, whole, high);
        to_v(high);
        UNROLL for (int i = 0; i < POSITIONS; i++)
        {
            vf first = low[i / 4][i % 4], second = high[i / 4][i % 4];
            largest = larger(larger(largest, first), second);
            split_row(PARTS, first, second, to + 2 * i * o->vstep);
        }
    }
    return largest;
}

void winograd_amx_make_v(void *block, int64_t begin, int64_t end)
{
    const Block *b = block;
    Job *o = b->job;
    __m512i largest = _mm512_setzero_si512();
    for (int64_t t = begin; t < end; t++) {
        Place p = winograd_place(o, b->first + t);
        int64_t row = p.row - o->pad[0], col = p.col - o->pad[1];
        uint16_t *to = (uint16_t *)b->v + t / SIDE * packed_step(o->C) + t % SIDE * DEEP;
        if (row >= 0 && row + 4 <= o->H && col >= 0 && col + 4 <= o->W)
            largest = put_v(o, true, p, to, largest);
        else
            largest = put_v(o, false, p, to, largest);
    }
    note_largest(&o->largest_a, largest);
}

USES_TILES void winograd_amx_products(void *block, int64_t begin, int64_t end)
{
    const Block *x = block;
    const Job *o = x->job;
    int64_t panels = o->K / SIDE, step = packed_step(o->C);
    /* the groups of a large block bring the next panel to the second cache */
    int64_t groups = dsi_div_up(x->count, SIDE), lines = groups < 4 ? 0 : 16 / groups;
    tiles_begin();
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t i = unit / panels, panel = unit % panels;
        const uint16_t *a = (const uint16_t *)(x->v + i * o->vstep),
                       *b = (const uint16_t *)(o->u + i * o->ustep) + panel * step;
        const char *next = (const char *)(b + step);
        float *m = x->m + i * o->mstep + panel * SIDE * SIDE;
        for (int64_t t = 0; t < x->count; t += SIDE, a += step, m += panels * SIDE * SIDE) {
            Square q = square_begin(m, SIDE, true);
            square_parts(PARTS, a, b, o->C / DEEP, x->count - t > LINES, true, next, lines);
            square_end(&q);
            next += o->C / DEEP * products_of(PARTS) * lines * 64;
        }
    }
    tiles_end();
}

/* rows of a square of sums are added to y, or become it. */
static void put_sums(const float *sums, float *y, int64_t line, int64_t rows, bool add)
{
    for (int64_t i = 0; i < rows; i++, sums += SIDE, y += line)
        UNROLL for (int j = 0; j < SIDE; j += VF)
            vf_store(y + j, add ? vf_add(vf_load(y + j), vf_load(sums + j)) : vf_load(sums + j));
}

USES_TILES static void add_squares(const Block *x, const uint16_t *a, const uint16_t *b, float *u)
{
    const int64_t K = x->job->K, step = packed_step(x->count);
    float sums[SIDE * SIDE];
    tiles_begin();
    for (int64_t c = 0; c < x->channels; c += SIDE, a += step)
        for (int64_t k = 0; k < K; k += SIDE) {
            int64_t rows = dsi_min(SIDE, x->channels - c);
            Square q = square_begin(sums, SIDE, true);
            square_parts(PARTS, a, b + k / SIDE * step, dsi_div_up(x->count, DEEP), rows > LINES,
                         true, NULL, 0);
            square_end(&q);
            put_sums(sums, u + c * K + k, K, rows, x->first > 0);
        }
    tiles_end();
}

void winograd_amx_add(const Block *x, int i, int j)
{
    Job *o = x->job;
    uint16_t *a = x->packed, *b = a + dsi_div_up(x->channels, SIDE) * packed_step(x->count);
    bf16_pack(&(Packing){x->v + j * o->vstep, DS_F32, 1, x->channels, x->channels, x->count, false,
                         a, &o->largest_a});
    bf16_pack(
        &(Packing){x->m + j * o->mstep, DS_F32, 1, o->K, o->K, x->count, true, b, &o->largest_b});
    add_squares(x, a, b, o->u + i * o->ustep + x->c * o->K);
}

#else

bool winograd_amx_takes(const Job *o)
{
    (void)o;
    return false;
}

bool winograd_amx_exact(const Job *o)
{
    (void)o;
    return false;
}

void winograd_amx_put_u(Job *o, int64_t in, int64_t out, vf even[4][4], vf odd[4][4])
{
    (void)o, (void)in, (void)out, (void)even, (void)odd;
}

void winograd_amx_make_v(void *block, int64_t begin, int64_t end)
{
    (void)block, (void)begin, (void)end;
}

void winograd_amx_products(void *block, int64_t begin, int64_t end)
{
    (void)block, (void)begin, (void)end;
}

void winograd_amx_add(const Block *x, int i, int j) { (void)x, (void)i, (void)j; }

#endif
