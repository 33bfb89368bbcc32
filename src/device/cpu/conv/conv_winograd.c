/* device/cpu/conv/conv_winograd.c: 3x3 convolutions of unit stride, with 2.25
 * times fewer multiplications, by Winograd's minimal filtering F(2x2, 3x3)
 * (Lavin and Gray, arXiv:1509.09308).
 *
 * A tile of 2x2 outputs reads a patch d of 4x4 inputs. With B, G, A of small
 * whole numbers and halves,
 *
 *     Y  = A^T [(G w G^T) . (B^T d B)] A             summed over input channels before A
 *     dw = G^T [(B^T d B) . (A dy A^T)] G            summed over tiles before G
 *
 * where "." is element by element: for each of the 16 positions a product of
 * matrices,
 *
 *     M [tiles, K] = V [tiles, C] U [C, K]           y; and dx, from dy by the kernel turned by 180 degrees
 *     dU [C, K]    = V^T [C, tiles] M [tiles, K]     dw
 * made of tile.h's register tiles, or by the matrix unit
 * (conv_winograd_amx.c). V = B^T d B, U = G w G^T, M = their product.
 * All buffers have channels innermost, so that the small transforms are
 * additions of vectors of channels. x and y are in pixel order; other layouts
 * are copied first. Tensors of bfloat16 become float32 where the transforms
 * read them, and results are rounded where these write them.
 *
 * Loop order: weights are transformed once. Then, for each block of tiles whose
 * V and M stay in the second cache: V from x, the 16 products, y from M. For
 * dw, U is summed over blocks of tiles, in their order, and transformed back at
 * the end. Where channels are many, a block of few tiles would cost more than
 * its products, because all of U is added in memory: then dw takes a row of
 * positions at a time, with blocks four times as large.
 *
 * Invariants: threads divide blocks, or the tiles, output channels and
 * (position, rows) of one; for dw, rows of positions and input channels. So no
 * two threads add to one sum, and blocks depend on shapes alone. A position is
 * 4 row + column of a transformed patch. In the code, "tile" is 2x2 outputs;
 * TILE_COLS and tile() are the register tiles of tile.h.
 * SPDX-License-Identifier: MIT */
#include "conv_winograd.h"
#include "conv_taps.h"
#include "conv_winograd_job.h"
#include "device/cpu/gemm/tile.h"
#include "device/cpu/simd/transpose.h"
#include "device/cpu/table.h"

#define FLOATS        131072 /* of V and M in a block of tiles: 512 KB */
#define ROWS          64     /* rows of a product that a thread computes at a time */
#define DW_CHANNELS   32     /* input channels of dw that a thread computes, at least */
#define HALF_CHANNELS 64     /* of both sides, at least, of bfloat16 */
#define MANY          256    /* channels of both sides from which dw takes rows of positions */
#define GRAIN_FLOPS   1e6    /* of an iteration of a parallel loop, at least */
/* Tiles of a block for the matrix unit; many where U does not fit in the second
 * cache, so that it is read seldom: where C K > FEW_WEIGHTS. */
#define AMX_TILES      32
#define AMX_MANY_TILES 256
#define FEW_WEIGHTS    16384

/* ---- weights ------------------------------------------------------------------------------------------------------ */

/* The place of U for input channel `in`, output channel `out`, position 0, for
 * y and dx: panels of `width` output channels. */
static float *u_at(const Job *o, int64_t in, int64_t out)
{
    return o->u + (out / o->width * o->C + in) * o->width + out % o->width;
}

/* Vectors that load_kernels writes: 9 VF, and VF - 9 more of the last
 * transposition. */
#define LANES (10 * VF)

/* Weights of VF kernels one after the other: a row. */
#define ROW (9 * VF)

/* The kernels from VF input channels on to as many output channels: lanes[9 i +
 * j][l] is element j of (in + i, out + l). A weight has the kernels of an
 * output channel (of an input channel, if flipped) one after the other. */
static void load_kernels(const Job *o, int64_t in, int64_t out, float lanes[LANES][VF])
{
    float rows[VF][ROW]; /* in float32 */
    int64_t at = in * o->win + out * o->wout, step = o->flipped ? o->win : o->wout;
    const float *w = o->half ? rows[0] : (const float *)o->w + at;
    if (o->half) {
        for (int i = 0; i < VF; i++)
            bf16_to_floats((const uint16_t *)o->w + at + i * step, rows[i], ROW);
        step = ROW;
    }
    if (!o->flipped) {
        for (int f = 0; f < 9; f++) transpose(w + f * VF, step, VF, lanes[f * VF], VF);
        return;
    }
    for (int i = 0; i < VF; i++, w += step) {
        /* the end of w's memory */
        bool last = i == VF - 1 && (o->half || (in + VF == o->C && out + VF == o->K));
        if (VF >= 9 && !last) {
            /* reads rows of VF where there are 9 weights; the next iteration
             * overwrites the vectors that are too many */
            transpose(w, 9, VF, lanes[9 * i], VF);
            continue;
        }
        for (int l = 0; l < VF; l++)
            UNROLL for (int j = 0; j < 9; j++) lanes[9 * i + j][l] = w[l * 9 + j];
    }
}

/* w -> U, for vectors begin .. end-1 of output channels and all input channels. */
static void transform_weights(void *arg, int64_t begin, int64_t end)
{
    Job *o = arg;
    float lanes[LANES][VF];
    vf before[4][4] = {{vf_zero()}};
    for (int64_t out = begin * VF; out < end * VF; out += VF)
        for (int64_t in = 0; in < o->C; in++) {
            vf g[3][3], u[4][4];
            if (in % VF == 0) load_kernels(o, in, out, lanes);
            UNROLL for (int j = 0; j < 9; j++)
                g[j / 3][j % 3] = vf_load(lanes[9 * (in % VF) + (o->flipped ? 8 - j : j)]);
            to_u(g, u);
            if (o->amx && in % 2) winograd_amx_put_u(o, in - 1, out, before, u);
            if (o->amx) {
                UNROLL for (int i = 0; i < POSITIONS; i++) before[i / 4][i % 4] = u[i / 4][i % 4];
                continue;
            }
            float *to = u_at(o, in, out);
            UNROLL for (int i = 0; i < POSITIONS; i++) vf_store(to + i * o->ustep, u[i / 4][i % 4]);
        }
}

/* dU [16][C][K] -> dw, for vectors begin .. end-1 of output channels. */
static void gather_weights(void *arg, int64_t begin, int64_t end)
{
    const Job *o = arg;
    float lanes[ROW][VF], rows[VF][ROW]; /* rows: of bfloat16, in float32 */
    for (int64_t out = begin * VF; out < end * VF; out += VF)
        for (int64_t in = 0; in < o->C; in++) {
            const float *from = o->u + in * o->K + out;
            vf g[3][3], u[4][4];
            UNROLL for (int i = 0; i < POSITIONS; i++)
                u[i / 4][i % 4] = vf_load(from + i * o->ustep);
            from_u(u, g);
            UNROLL for (int j = 0; j < 9; j++) vf_store(lanes[9 * (in % VF) + j], g[j / 3][j % 3]);
            if (in % VF != VF - 1) continue;
            int64_t at = (in - VF + 1) * o->win + out * o->wout, step = o->half ? ROW : o->wout;
            float *to = o->half ? rows[0] : (float *)o->w + at;
            for (int f = 0; f < 9; f++) transpose(lanes[f * VF], VF, VF, to + f * VF, step);
            for (int i = 0; i < VF && o->half; i++)
                floats_to_bf16(rows[i], (uint16_t *)o->w + at + i * o->wout, ROW);
        }
}

/* ---- tiles begin .. end-1 of the block: x to V, dy to M, M to y ------------------------------------------------- */

ALWAYS_INLINE void v_of_tile(const Job *o, bool half, bool whole, Place p, float *v)
{
    int64_t row = p.row - o->pad[0], col = p.col - o->pad[1];
    int64_t at = p.n * o->x.s[0] + row * o->x.s[2] + col * o->x.s[3];
    for (int64_t c = 0; c < o->C; c += VF) {
        vf d[4][4];
        load_patch(4, half, &o->x, at + c, row, col, whole, d);
        to_v(d);
        UNROLL for (int i = 0; i < POSITIONS; i++) vf_store(v + i * o->vstep + c, d[i / 4][i % 4]);
    }
}

ALWAYS_INLINE void v_of_tiles(const Block *b, bool half, int64_t begin, int64_t end)
{
    const Job *o = b->job;
    for (int64_t t = begin; t < end; t++) {
        Place p = winograd_place(o, b->first + t);
        int64_t row = p.row - o->pad[0], col = p.col - o->pad[1];
        if (row >= 0 && row + 4 <= o->H && col >= 0 && col + 4 <= o->W)
            v_of_tile(o, half, true, p, b->v + t * o->C);
        else
            v_of_tile(o, half, false, p, b->v + t * o->C);
    }
}

static void make_v(void *arg, int64_t begin, int64_t end)
{
    const Block *b = arg;
    if (b->job->half)
        v_of_tiles(b, true, begin, end);
    else
        v_of_tiles(b, false, begin, end);
}

/* The bias of VF output channels from k on. */
ALWAYS_INLINE vf bias_of(const Job *o, const bool half, int64_t k)
{
    float lanes[VF];
    if (!o->bias.p) return vf_zero();
    if (o->bias.s[0] == 1 && o->bias.dtype == o->y.dtype) return winograd_load(half, o->bias.p, k);
    for (int i = 0; i < VF; i++) lanes[i] = (float)view_value(&o->bias, (k + i) * o->bias.s[0]);
    return vf_load(lanes);
}

/* The place of M for tile t and output channel k: a row of a tile, or in
 * squares. */
static int64_t m_at(const Job *o, int64_t t, int64_t k)
{
    if (!o->amx) return t * o->K + k;
    int64_t square = t / M_SIDE * (o->K / M_SIDE) + k / M_SIDE;
    return (square * M_SIDE + t % M_SIDE) * M_SIDE + k % M_SIDE;
}

ALWAYS_INLINE void y_of_tiles(const Block *b, const bool half, int64_t begin, int64_t end)
{
    const Job *o = b->job;
    for (int64_t t = begin; t < end; t++) {
        Place p = winograd_place(o, b->first + t);
        int64_t to = p.n * o->y.s[0] + p.row * o->y.s[2] + p.col * o->y.s[3];
        bool below = p.row + 1 < o->P, right = p.col + 1 < o->Q;
        for (int64_t k = 0; k < o->K; k += VF) {
            const float *from = b->m + m_at(o, t, k);
            vf m[4][4], y[2][2], bias = bias_of(o, half, k);
            UNROLL for (int i = 0; i < POSITIONS; i++)
                m[i / 4][i % 4] = vf_load(from + i * o->mstep);
            from_m(m, y);
            UNROLL for (int i = 0; i < 4; i++)
            {
                if ((i / 2 && !below) || (i % 2 && !right)) continue;
                winograd_store(half, o->y.p, to + k + i / 2 * o->y.s[2] + i % 2 * o->y.s[3],
                               vf_add(y[i / 2][i % 2], bias));
            }
        }
    }
}

static void make_y(void *arg, int64_t begin, int64_t end)
{
    const Block *b = arg;
    if (b->job->half)
        y_of_tiles(b, true, begin, end);
    else
        y_of_tiles(b, false, begin, end);
}

/* ---- products: (position, ROWS rows) units begin .. end-1 -------------------------------------------------------- */

static int64_t row_parts(int64_t rows) { return (rows + ROWS - 1) / ROWS; }

/* M = V U for (position, ROWS tiles) units. */
static void make_products(void *arg, int64_t begin, int64_t end)
{
    const Block *block = arg;
    const Job *o = block->job;
    int64_t parts = row_parts(block->count);
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t i = unit / parts, row = unit % parts * ROWS;
        int64_t rows = dsi_min(ROWS, block->count - row);
        const float *a = block->v + i * o->vstep + row * o->C, *b = o->u + i * o->ustep;
        float *y = block->m + i * o->mstep + row * o->K;
        for (int64_t k = 0; k < o->K; k += o->width, b += o->C * o->width) {
            tile_operands t = {.a = a,
                               .am = o->C,
                               .ak = 1,
                               .b = b,
                               .bk = o->width,
                               .k = o->C,
                               .y = y + k,
                               .ym = o->K,
                               .a_tile = TILE_ROWS * o->C};
            tile(t, rows, (int)dsi_min(o->width, o->K - k));
        }
    }
}

/* ---- dw: the rows of positions and the input channels of a block ------------------------------------------------ */

/* Row i of V of tile t. */
ALWAYS_INLINE void v_row_of_tile(const Block *b, bool half, const int i, int64_t t, float *v)
{
    static const int of[4][2] = {{0, 2}, {1, 2}, {2, 1}, {1, 3}};
    const Job *o = b->job;
    Place p = winograd_place(o, b->first + t);
    int64_t row = p.row - o->pad[0], col = p.col - o->pad[1], step = o->x.s[3];
    bool whole = col >= 0 && col + 4 <= o->W;
    int64_t x = p.n * o->x.s[0] + row * o->x.s[2] + col * step;
    for (int64_t c = 0; c < b->channels; c += VF) {
        vf d[2][4], to[4];
        UNROLL for (int r = 0; r < 2; r++)
        {
            int64_t h = row + of[i][r];
            int64_t line = x + of[i][r] * o->x.s[2] + b->c + c;
            UNROLL for (int j = 0; j < 4; j++)
            {
                bool inside = h >= 0 && h < o->H && (whole || (col + j >= 0 && col + j < o->W));
                d[r][j] = inside ? winograd_load(half, o->x.p, line + j * step) : vf_zero();
            }
        }
        to_v_row(i, d, to);
        UNROLL for (int j = 0; j < 4; j++) vf_store(v + j * o->vstep + c, to[j]);
    }
}

/* Row i of M of tile t, in panels of columns. */
ALWAYS_INLINE void m_row_of_tile(const Block *b, bool half, const int i, int64_t t, float *m)
{
    const Job *o = b->job;
    Place p = winograd_place(o, b->first + t);
    int64_t dy = p.n * o->y.s[0] + p.row * o->y.s[2] + p.col * o->y.s[3];
    for (int64_t k = 0; k < o->K; k += VF) {
        vf g[2][2], to[4];
        load_patch(2, half, &o->y, dy + k, p.row, p.col, false, g);
        to_m_row(i, g, to);
        float *at = m + k / o->width * o->width * b->count + t * o->width + k % o->width;
        UNROLL for (int j = 0; j < 4; j++) vf_store(at + j * o->mstep, to[j]);
    }
}

/* V and M of the block, for row i of positions. */
ALWAYS_INLINE void make_row(const Block *b, bool half, const int i, float *v, float *m)
{
    for (int64_t t = 0; t < b->count; t++) {
        v_row_of_tile(b, half, i, t, v + t * b->channels);
        m_row_of_tile(b, half, i, t, m);
    }
}

/* U += V^T M for position i, the j-th of the block. */
static void add_product(const Block *block, int i, int j)
{
    const Job *o = block->job;
    for (int64_t row = 0; row < block->channels; row += ROWS) {
        int64_t rows = dsi_min(ROWS, block->channels - row);
        const float *a = block->v + j * o->vstep + row, *b = block->m + j * o->mstep;
        float *y = o->u + i * o->ustep + (block->c + row) * o->K;
        for (int64_t k = 0; k < o->K; k += o->width, b += o->width * block->count) {
            tile_operands t = {.a = a,
                               .am = 1,
                               .ak = block->channels,
                               .b = b,
                               .bk = o->width,
                               .k = block->count,
                               .y = y + k,
                               .ym = o->K,
                               .add = block->first > 0,
                               .a_tile = TILE_ROWS};
            tile(t, rows, (int)dsi_min(o->width, o->K - k));
        }
    }
}

/* V and M of all rows of positions of the block. */
ALWAYS_INLINE void make_rows(const Block *b, bool half)
{
    for (int r = 0; r < b->rows; r++) {
        float *v = b->v + 4 * r * b->job->vstep, *m = b->m + 4 * r * b->job->mstep;
        switch (b->row + r) {
        case 0:
            make_row(b, half, 0, v, m);
            break;
        case 1:
            make_row(b, half, 1, v, m);
            break;
        case 2:
            make_row(b, half, 2, v, m);
            break;
        default:
            make_row(b, half, 3, v, m);
        }
    }
}

static void add_block(const Block *b)
{
    const Job *o = b->job;
    if (o->half)
        make_rows(b, true);
    else
        make_rows(b, false);
    for (int j = 0; j < 4 * b->rows; j++)
        if (o->amx)
            winograd_amx_add(b, 4 * b->row + j, j);
        else
            add_product(b, 4 * b->row + j, j);
}

/* ---- jobs ---------------------------------------------------------------------------------------------------------- */

/* True if the shape is supported and this is faster: whole vectors of at least
 * 16 channels, and enough outputs to outweigh the transform of the weights;
 * bfloat16 where products of it are not much faster than those of float32. */
static bool winograd_fits(const dsi_conv2d *c, const dsi_view *x, const dsi_view *w,
                          const dsi_view *y)
{
    int64_t C = w->d[1], K = w->d[0], least = 16;
    if (y->dtype != DS_F32) {
        if (x->dtype != DS_BF16 || w->dtype != DS_BF16 || y->dtype != DS_BF16 || dsi_cpu_amx())
            return false;
        least = HALF_CHANNELS;
    }
    bool plain = c->groups == 1 && w->d[2] == 3 && w->d[3] == 3 && w->s[3] == 1 && w->s[2] == 3 &&
                 w->s[1] == 9;
    for (int i = 0; i < 2; i++)
        plain &= c->stride[i] == 1 && c->dilation[i] == 1 && c->padding[i] <= 2;
    return plain && C % VF == 0 && K % VF == 0 && C >= least && K >= least && y->d[2] >= 2 &&
           y->d[3] >= 2 && x->d[0] * y->d[2] * y->d[3] >= 64;
}

static int64_t grain(double flops) { return 1 + (int64_t)(GRAIN_FLOPS / (flops + 1)); }

/* Sizes that do not depend on the block. */
static void winograd_sizes(Job *o, const dsi_view *x, const dsi_view *y)
{
    o->N = x->d[0], o->C = x->d[1], o->H = x->d[2], o->W = x->d[3];
    o->K = y->d[1], o->P = y->d[2], o->Q = y->d[3];
    o->down = (o->P + 1) / 2, o->across = (o->Q + 1) / 2, o->tiles = o->N * o->down * o->across;
    o->panels = (o->K + TILE_COLS - 1) / TILE_COLS;
    o->width = dsi_round_up((o->K + o->panels - 1) / o->panels, VF);
    o->panels = (o->K + o->width - 1) / o->width;
    o->part = o->C, o->rows = 4;
    o->half = x->dtype == DS_BF16;
    atomic_init(&o->taken, 0), atomic_init(&o->largest_a, 0), atomic_init(&o->largest_b, 0);
}

/* Three bfloat16 parts of a number have the memory of 3 / 2 floats.
 *
 * Allocates U, V and M of `slots` blocks, and copies of x and y where they are
 * not in pixel order. The caller releases o->u, whatever the result. */
static ds_status winograd_prepare(dsi_stream *s, Job *o, dsi_view x, dsi_view y, int64_t slots)
{
    int64_t columns = o->panels * o->width;
    o->block = FLOATS / 4 / o->rows / (o->C + o->K) / 8 * 8;
    o->block = dsi_min(dsi_round_up(o->tiles, 8), dsi_max(32, o->block));
    /* a cache line more: otherwise positions might be a power of two apart, and
     * fall into the same sets of the cache */
    o->ustep = columns * o->C + 16;
    o->vstep = o->block * o->part + 16, o->mstep = o->block * columns + 16;
    if (o->amx && !o->dw) {
        int64_t most = o->C * o->K > FEW_WEIGHTS ? AMX_MANY_TILES : AMX_TILES;
        o->block = dsi_min(dsi_round_up(o->tiles, M_SIDE), most);
        o->ustep = columns * o->C * 3 / 2 + 16;
        o->vstep = o->block * o->C * 3 / 2 + 16, o->mstep = o->block * columns + 16;
    }
    o->each = 4 * o->rows * (o->vstep + o->mstep);
    if (o->amx && o->dw)
        o->each += dsi_round_up(o->block, M_SIDE) * (dsi_round_up(o->part, M_SIDE) + columns) * 3 /
                   2;
    int64_t floats = POSITIONS * o->ustep + slots * o->each;
    o->u = dsi_scratch(s, (size_t)(floats + copy_floats(&x) + copy_floats(&y)) * sizeof(float));
    if (!o->u) return DS_ENOMEM;
    o->blocks = o->u + POSITIONS * o->ustep;
    float *spare = o->u + floats;
    o->x = pixels(x, spare);
    o->y = pixels(y, spare + copy_floats(&x));
    return DS_OK;
}

/* The block with memory of a slot; the caller releases the slot. */
static Block block_of_slot(Job *o, int slot)
{
    float *v = o->blocks + slot * o->each;
    float *m = v + 4 * o->rows * o->vstep;
    return (Block){.job = o, .v = v, .m = m, .packed = (uint16_t *)(m + 4 * o->rows * o->mstep)};
}

/* y of blocks begin .. end-1. */
static void run_blocks(void *arg, int64_t begin, int64_t end)
{
    Job *o = arg;
    double C = (double)o->C, K = (double)o->K;
    int slot = slot_take(&o->taken);
    Block b = block_of_slot(o, slot);
    for (int64_t i = begin; i < end; i++) {
        b.first = i * o->block, b.count = dsi_min(o->block, o->tiles - b.first);
        int64_t parts = row_parts(b.count), panels = o->K / M_SIDE;
        dsi_parallel(b.count, grain(200 * C), o->amx ? winograd_amx_make_v : make_v, &b);
        if (o->amx)
            dsi_parallel(POSITIONS * panels, grain((double)(M_SIDE * b.count) * C),
                         winograd_amx_products, &b);
        else
            dsi_parallel(POSITIONS * parts, grain(2 * ROWS * C * K), make_products, &b);
        dsi_parallel(b.count, grain(200 * K), make_y, &b);
    }
    slot_release(&o->taken, slot);
}

/* y of x. Threads share each block if blocks are few. */
static ds_status winograd_correlate(dsi_stream *s, Job *o, dsi_view x, dsi_view y)
{
    ds_status status = winograd_prepare(s, o, x, y, ds_threads());
    if (!status && o->x.p != x.p) status = KERNEL(copy)(s, x, o->x);
    double C = (double)o->C, K = (double)o->K;
    if (!status) {
        int64_t blocks = dsi_div_up(o->tiles, o->block);
        bool few = !shares_evenly(blocks);
        dsi_parallel(o->K / VF, grain(200 * VF * C), transform_weights, o);
        dsi_parallel(blocks, few ? blocks : grain(2 * (double)(POSITIONS * o->block) * C * K),
                     run_blocks, o);
        if (o->y.p != y.p) status = KERNEL(copy)(s, o->y, y);
    }
    dsi_scratch_release(s, o->u);
    return status;
}

/* By the matrix unit where it is faster, and in vectors if that is not exact. */
static ds_status winograd_run(dsi_stream *s, Job *o, dsi_view x, dsi_view y)
{
    winograd_sizes(o, &x, &y);
    o->amx = winograd_amx_takes(o);
    ds_status status = winograd_correlate(s, o, x, y);
    if (status || !o->amx || winograd_amx_exact(o)) return status;
    o->amx = false;
    return winograd_correlate(s, o, x, y);
}

bool winograd_forward(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b,
                      dsi_view y, ds_status *status)
{
    if (taps_are_faster(&y) || !winograd_fits(c, &x, &w, &y)) return false;
    Job o = {
        .pad = {c->padding[0], c->padding[1]}, .bias = b, .w = w.p, .win = w.s[1], .wout = w.s[0]};
    *status = winograd_run(s, &o, x, y);
    return true;
}

/* dx is a correlation of dy with the kernel turned by 180 degrees, and with
 * padding 2 - padding. */
bool winograd_dx(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w, dsi_view dx,
                 ds_status *status)
{
    if (taps_are_faster(&dx) || !winograd_fits(c, &dx, &w, &dy)) return false;
    Job o = {.pad = {2 - c->padding[0], 2 - c->padding[1]},
             .w = w.p,
             .win = w.s[0],
             .wout = w.s[1],
             .flipped = true};
    *status = winograd_run(s, &o, dy, dx);
    return true;
}

/* dU of items begin .. end-1 of [rows of positions][parts of the channels]. */
static void run_dw(void *arg, int64_t begin, int64_t end)
{
    Job *o = arg;
    int64_t parts = dsi_div_up(o->C, o->part);
    int slot = slot_take(&o->taken);
    Block b = block_of_slot(o, slot);
    b.rows = (int)o->rows;
    for (int64_t i = begin; i < end; i++) {
        b.row = (int)(i / parts * o->rows), b.c = i % parts * o->part;
        b.channels = dsi_min(o->part, o->C - b.c);
        for (b.first = 0; b.first < o->tiles; b.first += o->block) {
            b.count = dsi_min(o->block, o->tiles - b.first);
            add_block(&b);
        }
    }
    slot_release(&o->taken, slot);
}

/* The items of dw: each reads all of dy, so there are no more than threads
 * need. */
static int64_t divide_dw(Job *o)
{
    int64_t threads = ds_threads(), parts;
    if (o->C + o->K > MANY) o->rows = 1, threads = (threads + 1) / 2;
    parts = dsi_max(1, dsi_min(threads, o->C / DW_CHANNELS));
    o->part = dsi_round_up(dsi_div_up(o->C, parts), VF);
    return 4 / o->rows * dsi_div_up(o->C, o->part);
}

/* dw of dy and x, where o is prepared for it. */
static ds_status winograd_gradient(dsi_stream *s, Job *o, dsi_view x, dsi_view dy)
{
    int64_t items = divide_dw(o);
    ds_status status = winograd_prepare(s, o, x, dy, dsi_min(items, ds_threads()));
    if (!status && o->x.p != x.p) status = KERNEL(copy)(s, x, o->x);
    if (!status && o->y.p != dy.p) status = KERNEL(copy)(s, dy, o->y);
    double C = (double)o->C, K = (double)o->K;
    if (!status) {
        double flops = 2 * POSITIONS * (double)o->tiles * C * K / (double)items;
        dsi_parallel(items, grain(flops), run_dw, o);
        dsi_parallel(o->K / VF, grain(200 * VF * C), gather_weights, o);
    }
    dsi_scratch_release(s, o->u);
    return status;
}

bool winograd_dw(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x, dsi_view dw,
                 ds_status *status)
{
    if (taps_are_faster(&dy) && taps_take_dw(x.d[0], dw.d[1], dw.d[0])) return false;
    if (!winograd_fits(c, &x, &dw, &dy)) return false;
    Job o = {.pad = {c->padding[0], c->padding[1]},
             .w = dw.p,
             .win = dw.s[1],
             .wout = dw.s[0],
             .dw = true};
    winograd_sizes(&o, &x, &dy);
    int64_t panels = o.panels, width = o.width;
    o.amx = winograd_amx_takes(&o);
    if (o.amx) o.panels = 1, o.width = o.K;
    *status = winograd_gradient(s, &o, x, dy);
    if (*status || !o.amx || winograd_amx_exact(&o)) return true;
    o.amx = false, o.panels = panels, o.width = width;
    *status = winograd_gradient(s, &o, x, dy);
    return true;
}
