/* device/cpu/conv/conv_winograd.c: 3x3 convolutions of unit stride, with 2.25
 * times fewer multiplications, by Winograd's minimal filtering F(2x2, 3x3)
 * (Lavin and Gray,
 * arXiv:1509.09308).
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
 * made of tile.h's register tiles. V = B^T d B, U = G w G^T, M = their product.
 * All buffers have channels innermost, so that the small transforms are
 * additions of vectors of channels. x and y are in pixel order; other layouts
 * are copied first.
 *
 * Loop order: weights are transformed once. Then, for each block of tiles whose
 * V and M stay in the second cache: V from x, the 16 products, y from M. For
 * dw, U is summed over blocks of tiles, in their order, and transformed back at
 * the end.
 *
 * Invariants: threads divide tiles, output channels, or (position, rows) of a
 * product, so that no two threads add to one sum. A position is 4 row + column
 * of a transformed patch. In the code, "tile" is 2x2 outputs; TILE_COLS and
 * tile() are the register tiles of tile.h.
 * SPDX-License-Identifier: MIT */
#include "conv.h"
#include "device/cpu/gemm/tile.h"
#include "device/cpu/simd/transpose.h"
#include "device/cpu/table.h"

#define POSITIONS   16
#define FLOATS      131072 /* of V and M in a block of tiles: 512 KB */
#define ROWS        64     /* rows of a product that a thread computes at a time */
#define GRAIN_FLOPS 1e6    /* of an iteration of a parallel loop, at least */

typedef struct {
    int64_t N, C, K;             /* channels of the source and of the result */
    int64_t H, W, P, Q, pad[2];  /* planes of source and result; padding */
    int64_t down, across, tiles; /* rows and columns of tiles of a sample; all tiles */
    dsi_view x, y;               /* in pixel order */
    const float *bias;           /* or NULL */
    int64_t bk;                  /* from one bias to the next */
    int64_t block;               /* tiles of a block */
    int64_t panels, width;       /* panels of U's columns; columns of each */
    int64_t ustep, vstep, mstep; /* floats from position to position */
    float *u, *v, *m;            /* [16][panels][C][width], [16][block][C], [16][block][K] */
    int64_t first, count;        /* first tile, and tiles, of the current block */
    const float *w; /* weight of (in, out, j): w[in win + out wout + (flipped ? 8 - j : j)] */
    int64_t win, wout;
    bool flipped;
} Job;

/* ---- the transforms, each along rows and along columns ------------------------------------------------------
 *
 *     B^T = | 1  0 -1  0 |    G = |  1    0    0  |    A^T = | 1  1  1  0 |
 *           | 0  1  1  0 |        | 1/2  1/2  1/2 |          | 0  1 -1 -1 |
 *           | 0 -1  1  0 |        | 1/2 -1/2  1/2 |
 *           | 0  1  0 -1 |        |  0    0    1  |
 *
 * Each vector holds one element of VF channels. */

/* d [4][4] -> B^T d B */
ALWAYS_INLINE void to_v(vf d[4][4])
{
    UNROLL for (int way = 0; way < 2; way++) UNROLL for (int i = 0; i < 4; i++)
    {
        vf *a[4];
        UNROLL for (int j = 0; j < 4; j++) a[j] = way ? &d[i][j] : &d[j][i];
        vf d1 = *a[1], d2 = *a[2];
        *a[0] = vf_sub(*a[0], d2);
        *a[3] = vf_sub(d1, *a[3]);
        *a[1] = vf_add(d1, d2);
        *a[2] = vf_sub(d2, d1);
    }
}

/* w [3][3] -> u [4][4] = G w G^T */
ALWAYS_INLINE void to_u(vf w[3][3], vf u[4][4])
{
    const vf half = vf_set(0.5f);
    vf t[4][3];
    UNROLL for (int j = 0; j < 3; j++)
    {
        vf ends = vf_add(w[0][j], w[2][j]);
        t[0][j] = w[0][j], t[3][j] = w[2][j];
        t[1][j] = vf_mul(half, vf_add(ends, w[1][j]));
        t[2][j] = vf_mul(half, vf_sub(ends, w[1][j]));
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        vf ends = vf_add(t[i][0], t[i][2]);
        u[i][0] = t[i][0], u[i][3] = t[i][2];
        u[i][1] = vf_mul(half, vf_add(ends, t[i][1]));
        u[i][2] = vf_mul(half, vf_sub(ends, t[i][1]));
    }
}

/* u [4][4] -> w [3][3] = G^T u G */
ALWAYS_INLINE void from_u(vf u[4][4], vf w[3][3])
{
    const vf half = vf_set(0.5f);
    vf t[3][4];
    UNROLL for (int j = 0; j < 4; j++)
    {
        vf sum = vf_mul(half, vf_add(u[1][j], u[2][j]));
        t[0][j] = vf_add(u[0][j], sum);
        t[1][j] = vf_mul(half, vf_sub(u[1][j], u[2][j]));
        t[2][j] = vf_add(sum, u[3][j]);
    }
    UNROLL for (int i = 0; i < 3; i++)
    {
        vf sum = vf_mul(half, vf_add(t[i][1], t[i][2]));
        w[i][0] = vf_add(t[i][0], sum);
        w[i][1] = vf_mul(half, vf_sub(t[i][1], t[i][2]));
        w[i][2] = vf_add(sum, t[i][3]);
    }
}

/* m [4][4] -> y [2][2] = A^T m A */
ALWAYS_INLINE void from_m(vf m[4][4], vf y[2][2])
{
    vf t[2][4];
    UNROLL for (int j = 0; j < 4; j++)
    {
        t[0][j] = vf_add(vf_add(m[0][j], m[1][j]), m[2][j]);
        t[1][j] = vf_sub(vf_sub(m[1][j], m[2][j]), m[3][j]);
    }
    UNROLL for (int i = 0; i < 2; i++)
    {
        y[i][0] = vf_add(vf_add(t[i][0], t[i][1]), t[i][2]);
        y[i][1] = vf_sub(vf_sub(t[i][1], t[i][2]), t[i][3]);
    }
}

/* y [2][2] -> m [4][4] = A y A^T */
ALWAYS_INLINE void to_m(vf y[2][2], vf m[4][4])
{
    vf t[4][2];
    UNROLL for (int j = 0; j < 2; j++)
    {
        t[0][j] = y[0][j], t[3][j] = vf_sub(vf_zero(), y[1][j]);
        t[1][j] = vf_add(y[0][j], y[1][j]);
        t[2][j] = vf_sub(y[0][j], y[1][j]);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        m[i][0] = t[i][0], m[i][3] = vf_sub(vf_zero(), t[i][1]);
        m[i][1] = vf_add(t[i][0], t[i][1]);
        m[i][2] = vf_sub(t[i][0], t[i][1]);
    }
}

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

/* The kernels from VF input channels on to as many output channels: lanes[9 i +
 * j][l] is element j of (in + i, out + l). A weight has the kernels of an
 * output channel (of an input channel, if flipped) one after the other. */
static void load_kernels(const Job *o, int64_t in, int64_t out, float lanes[LANES][VF])
{
    const float *w = o->w + in * o->win + out * o->wout;
    if (!o->flipped) {
        for (int f = 0; f < 9; f++) transpose(w + f * VF, o->wout, VF, lanes[f * VF], VF);
        return;
    }
    for (int i = 0; i < VF; i++, w += o->win) {
        bool last = in + i == o->C - 1 && out + VF == o->K; /* the end of w's memory */
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
    const Job *o = arg;
    float lanes[LANES][VF];
    for (int64_t out = begin * VF; out < end * VF; out += VF)
        for (int64_t in = 0; in < o->C; in++) {
            vf g[3][3], u[4][4];
            if (in % VF == 0) load_kernels(o, in, out, lanes);
            UNROLL for (int j = 0; j < 9; j++)
                g[j / 3][j % 3] = vf_load(lanes[9 * (in % VF) + (o->flipped ? 8 - j : j)]);
            to_u(g, u);
            float *to = u_at(o, in, out);
            UNROLL for (int i = 0; i < POSITIONS; i++) vf_store(to + i * o->ustep, u[i / 4][i % 4]);
        }
}

/* dU [16][C][K] -> dw, for vectors begin .. end-1 of output channels. */
static void gather_weights(void *arg, int64_t begin, int64_t end)
{
    const Job *o = arg;
    float *dw = (float *)(uintptr_t)o->w, lanes[9 * VF][VF];
    for (int64_t out = begin * VF; out < end * VF; out += VF)
        for (int64_t in = 0; in < o->C; in++) {
            const float *from = o->u + in * o->K + out;
            vf g[3][3], u[4][4];
            UNROLL for (int i = 0; i < POSITIONS; i++)
                u[i / 4][i % 4] = vf_load(from + i * o->ustep);
            from_u(u, g);
            UNROLL for (int j = 0; j < 9; j++) vf_store(lanes[9 * (in % VF) + j], g[j / 3][j % 3]);
            if (in % VF != VF - 1) continue;
            float *to = dw + (in - VF + 1) * o->win + out * o->wout;
            for (int f = 0; f < 9; f++) transpose(lanes[f * VF], VF, VF, to + f * VF, o->wout);
        }
}

/* ---- tiles begin .. end-1 of the block: x to V, dy to M, M to y ------------------------------------------------- */

typedef struct {
    int64_t n, row, col; /* of the first output */
} Place;

static Place winograd_place(const Job *o, int64_t tile)
{
    int64_t each = o->down * o->across, at = tile % each;
    return (Place){tile / each, 2 * (at / o->across), 2 * (at % o->across)};
}

/* d = VF channels of size x size pixels from (row, col) on, zeros outside the
 * plane. at: address of (row, col). whole: no pixel is outside. */
ALWAYS_INLINE void load_patch(int size, const dsi_view *x, const float *at, int64_t row,
                              int64_t col, bool whole, vf d[size][size])
{
    UNROLL for (int r = 0; r < size; r++) UNROLL for (int c = 0; c < size; c++)
    {
        bool inside = whole ||
                      (row + r >= 0 && row + r < x->d[2] && col + c >= 0 && col + c < x->d[3]);
        d[r][c] = inside ? vf_load(at + r * x->s[2] + c * x->s[3]) : vf_zero();
    }
}

ALWAYS_INLINE void v_of_tile(const Job *o, bool whole, Place p, float *v)
{
    int64_t row = p.row - o->pad[0], col = p.col - o->pad[1];
    const float *x = (const float *)o->x.p + p.n * o->x.s[0] + row * o->x.s[2] + col * o->x.s[3];
    for (int64_t c = 0; c < o->C; c += VF) {
        vf d[4][4];
        load_patch(4, &o->x, x + c, row, col, whole, d);
        to_v(d);
        UNROLL for (int i = 0; i < POSITIONS; i++) vf_store(v + i * o->vstep + c, d[i / 4][i % 4]);
    }
}

static void make_v(void *arg, int64_t begin, int64_t end)
{
    const Job *o = arg;
    for (int64_t t = begin; t < end; t++) {
        Place p = winograd_place(o, o->first + t);
        int64_t row = p.row - o->pad[0], col = p.col - o->pad[1];
        if (row >= 0 && row + 4 <= o->H && col >= 0 && col + 4 <= o->W)
            v_of_tile(o, true, p, o->v + t * o->C);
        else
            v_of_tile(o, false, p, o->v + t * o->C);
    }
}

static void make_m(void *arg, int64_t begin, int64_t end)
{
    const Job *o = arg;
    for (int64_t t = begin; t < end; t++) {
        Place p = winograd_place(o, o->first + t);
        const float *dy = (const float *)o->y.p + p.n * o->y.s[0] + p.row * o->y.s[2] +
                          p.col * o->y.s[3];
        for (int64_t k = 0; k < o->K; k += VF) {
            vf g[2][2], m[4][4];
            load_patch(2, &o->y, dy + k, p.row, p.col, false, g);
            to_m(g, m);
            float *to = o->m + t * o->K + k;
            UNROLL for (int i = 0; i < POSITIONS; i++) vf_store(to + i * o->mstep, m[i / 4][i % 4]);
        }
    }
}

/* The bias of VF output channels from k on. */
static vf bias_of(const Job *o, int64_t k)
{
    float lanes[VF];
    if (!o->bias) return vf_zero();
    for (int i = 0; i < VF; i++) lanes[i] = o->bias[(k + i) * o->bk];
    return vf_load(lanes);
}

static void make_y(void *arg, int64_t begin, int64_t end)
{
    const Job *o = arg;
    for (int64_t t = begin; t < end; t++) {
        Place p = winograd_place(o, o->first + t);
        float *to = (float *)o->y.p + p.n * o->y.s[0] + p.row * o->y.s[2] + p.col * o->y.s[3];
        bool below = p.row + 1 < o->P, right = p.col + 1 < o->Q;
        for (int64_t k = 0; k < o->K; k += VF) {
            const float *from = o->m + t * o->K + k;
            vf m[4][4], y[2][2], bias = bias_of(o, k);
            UNROLL for (int i = 0; i < POSITIONS; i++)
                m[i / 4][i % 4] = vf_load(from + i * o->mstep);
            from_m(m, y);
            vf_store(to + k, vf_add(y[0][0], bias));
            if (right) vf_store(to + k + o->y.s[3], vf_add(y[0][1], bias));
            if (below) vf_store(to + k + o->y.s[2], vf_add(y[1][0], bias));
            if (below && right) vf_store(to + k + o->y.s[2] + o->y.s[3], vf_add(y[1][1], bias));
        }
    }
}

/* ---- products: (position, ROWS rows) units begin .. end-1 -------------------------------------------------------- */

static int64_t row_parts(int64_t rows) { return (rows + ROWS - 1) / ROWS; }

/* M = V U for (position, ROWS tiles) units. */
static void make_products(void *arg, int64_t begin, int64_t end)
{
    const Job *o = arg;
    int64_t parts = row_parts(o->count);
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t i = unit / parts, row = unit % parts * ROWS, rows = dsi_min(ROWS, o->count - row);
        const float *a = o->v + i * o->vstep + row * o->C, *b = o->u + i * o->ustep;
        float *y = o->m + i * o->mstep + row * o->K;
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

/* U += V^T M for (position, ROWS input channels) units: dw. */
static void add_products(void *arg, int64_t begin, int64_t end)
{
    const Job *o = arg;
    int64_t parts = row_parts(o->C);
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t i = unit / parts, row = unit % parts * ROWS, rows = dsi_min(ROWS, o->C - row);
        const float *a = o->v + i * o->vstep + row, *b = o->m + i * o->mstep;
        float *y = o->u + i * o->ustep + row * o->K;
        for (int64_t k = 0; k < o->K; k += o->width) {
            tile_operands t = {.a = a,
                               .am = 1,
                               .ak = o->C,
                               .b = b + k,
                               .bk = o->K,
                               .k = o->count,
                               .y = y + k,
                               .ym = o->K,
                               .add = o->first > 0,
                               .a_tile = TILE_ROWS};
            tile(t, rows, (int)dsi_min(o->width, o->K - k));
        }
    }
}

/* ---- jobs ---------------------------------------------------------------------------------------------------------- */

/* True if the shape is supported and this is faster: whole vectors of at least
 * 16 channels, and enough outputs to outweigh the transform of the weights. */
static bool winograd_fits(const dsi_conv2d *c, const dsi_view *x, const dsi_view *w,
                          const dsi_view *y)
{
    int64_t C = w->d[1], K = w->d[0];
    bool plain = c->groups == 1 && w->d[2] == 3 && w->d[3] == 3 && w->s[3] == 1 && w->s[2] == 3 &&
                 w->s[1] == 9;
    for (int i = 0; i < 2; i++)
        plain &= c->stride[i] == 1 && c->dilation[i] == 1 && c->padding[i] <= 2;
    return plain && C % VF == 0 && K % VF == 0 && C >= 16 && K >= 16 && y->d[2] >= 2 &&
           y->d[3] >= 2 && x->d[0] * y->d[2] * y->d[3] >= 64;
}

/* Computes sizes, and allocates one block for U, V, M and copies of x and y
 * where they are not in pixel order. The caller releases o->u, whatever the
 * result. */
static ds_status winograd_prepare(dsi_stream *s, Job *o, dsi_view x, dsi_view y)
{
    o->N = x.d[0], o->C = x.d[1], o->H = x.d[2], o->W = x.d[3];
    o->K = y.d[1], o->P = y.d[2], o->Q = y.d[3];
    o->down = (o->P + 1) / 2, o->across = (o->Q + 1) / 2, o->tiles = o->N * o->down * o->across;
    o->block = dsi_min(dsi_round_up(o->tiles, 8),
                       dsi_max(32, FLOATS / POSITIONS / (o->C + o->K) / 8 * 8));
    o->panels = (o->K + TILE_COLS - 1) / TILE_COLS;
    o->width = dsi_round_up((o->K + o->panels - 1) / o->panels, VF);
    o->panels = (o->K + o->width - 1) / o->width;
    /* a cache line more: otherwise positions might be a power of two apart, and
     * fall into the same sets of the cache */
    o->ustep = o->panels * o->width * o->C + 16;
    o->vstep = o->block * o->C + 16, o->mstep = o->block * o->K + 16;
    int64_t floats = POSITIONS * (o->ustep + o->vstep + o->mstep);
    o->u = dsi_scratch(s, (size_t)(floats + copy_floats(&x) + copy_floats(&y)) * sizeof(float));
    if (!o->u) return DS_ENOMEM;
    o->v = o->u + POSITIONS * o->ustep;
    o->m = o->v + POSITIONS * o->vstep;
    float *spare = o->m + POSITIONS * o->mstep;
    o->x = pixels(x, spare);
    o->y = pixels(y, spare + copy_floats(&x));
    return DS_OK;
}

static int64_t grain(double flops) { return 1 + (int64_t)(GRAIN_FLOPS / (flops + 1)); }

/* y of x, block by block. */
static ds_status winograd_run(dsi_stream *s, Job *o, dsi_view x, dsi_view y)
{
    ds_status status = winograd_prepare(s, o, x, y);
    if (!status && o->x.p != x.p) status = KERNEL(copy)(s, x, o->x);
    double C = (double)o->C, K = (double)o->K;
    if (!status) dsi_parallel(o->K / VF, grain(200 * VF * C), transform_weights, o);
    for (o->first = 0; !status && o->first < o->tiles; o->first += o->block) {
        o->count = dsi_min(o->block, o->tiles - o->first);
        dsi_parallel(o->count, grain(200 * C), make_v, o);
        dsi_parallel(POSITIONS * row_parts(o->count), grain(2 * ROWS * C * K), make_products, o);
        dsi_parallel(o->count, grain(200 * K), make_y, o);
    }
    if (!status && o->y.p != y.p) status = KERNEL(copy)(s, o->y, y);
    dsi_scratch_release(s, o->u);
    return status;
}

bool winograd_forward(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b,
                      dsi_view y, ds_status *status)
{
    if (!winograd_fits(c, &x, &w, &y)) return false;
    Job o = {.pad = {c->padding[0], c->padding[1]},
             .bias = b.p,
             .bk = b.p ? b.s[0] : 0,
             .w = w.p,
             .win = w.s[1],
             .wout = w.s[0]};
    *status = winograd_run(s, &o, x, y);
    return true;
}

/* dx is a correlation of dy with the kernel turned by 180 degrees, and with
 * padding
 * 2 - padding. */
bool winograd_dx(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w, dsi_view dx,
                 ds_status *status)
{
    if (!winograd_fits(c, &dx, &w, &dy)) return false;
    Job o = {.pad = {2 - c->padding[0], 2 - c->padding[1]},
             .w = w.p,
             .win = w.s[0],
             .wout = w.s[1],
             .flipped = true};
    *status = winograd_run(s, &o, dy, dx);
    return true;
}

bool winograd_dw(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x, dsi_view dw,
                 ds_status *status)
{
    if (!winograd_fits(c, &x, &dw, &dy)) return false;
    Job o = {.pad = {c->padding[0], c->padding[1]}, .w = dw.p, .win = dw.s[1], .wout = dw.s[0]};
    *status = winograd_prepare(s, &o, x, dy);
    if (!*status && o.x.p != x.p) *status = KERNEL(copy)(s, x, o.x);
    if (!*status && o.y.p != dy.p) *status = KERNEL(copy)(s, dy, o.y);
    double C = (double)o.C, K = (double)o.K;
    for (o.first = 0; !*status && o.first < o.tiles; o.first += o.block) {
        o.count = dsi_min(o.block, o.tiles - o.first);
        dsi_parallel(o.count, grain(200 * C), make_v, &o);
        dsi_parallel(o.count, grain(100 * K), make_m, &o);
        dsi_parallel(POSITIONS * row_parts(o.C), grain(2 * (double)o.count * ROWS * K),
                     add_products, &o);
    }
    if (!*status) dsi_parallel(o.K / VF, grain(200 * VF * C), gather_weights, &o);
    dsi_scratch_release(s, o.u);
    return true;
}
