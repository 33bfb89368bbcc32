/* device/cuda/launch_conv.c: convolutions of kernels.h: by tiles, in 16 bits by
 * tensor cores where they are; by conv_small.cu where channels out are few;
 * directly in float64 and for groups of few channels.
 *
 * Both ways are one product with gathered operands (implicit gemm), as conv.cu
 * writes it: rows are output channels (dx: input channels), columns pixels (dw:
 * taps), and the sum is over taps (dw: pixels). Sums of tiles are float32, also
 * for 16-bit operands, which are rounded once.
 *
 * Invariants: TILE is that of conv.cuh; DEPTH is a multiple of those of
 * tile.cuh and tile_mma.cuh. A block's x counts tiles of columns, y tiles of
 * channels, z groups; in the backward of w, z counts groups times parts. Parts
 * write to scratch [splits][elements of dw], and a second kernel adds them in
 * order: no atomics, so equal shapes give equal
 * bits.
 * SPDX-License-Identifier: MIT */
#include "conv_last.h"
#include "held.h"
#include "launch.h"
#include "operands.h"

#include "base/error.h"
#include "base/int.h"

#define TILE  64
#define DEPTH 32 /* of a step of a tile, at most; parts of sums are multiples of it */
#define FEW   64 /* channels in times out of a group: below, tiles would be empty */

/* of conv_small.cu */
#define SMALL       16 /* channels out of a group, at most */
#define SMALL_WARPS 16
#define SMALL_FEW   132 /* blocks, of which each may have a multiprocessor */
#define SMALL_AHEAD 8
#define SMALL_PLACE 16  /* bytes of where a tap is */
#define SMALL_PARTS 2   /* rows of a block where pixels are too few for SMALL_FEW blocks */
#define FEW_WINDOWS 256 /* that a team of 4 warps adds up */

#define SPLITS    64  /* parts of dw's sum, at most */
#define PER_GPU   264 /* blocks that fill a GPU */
#define PART_DEEP 256 /* pixels of a part, at least */

/* x may be dx, w may be dw, y may be dy. Pixels are those of y, or of dx. */
static dsi_cuda_conv_args conv_args(const dsi_conv2d *c, const dsi_view *x, const dsi_view *w,
                                    const dsi_view *y, bool dx)
{
    dsi_cuda_conv_args p = {.n = (int)x->d[0],
                            .c = (int)w->d[1],
                            .h = (int)x->d[2],
                            .width = (int)x->d[3],
                            .k = (int)(w->d[0] / c->groups),
                            .r = (int)w->d[2],
                            .s = (int)w->d[3],
                            .p = (int)y->d[2],
                            .q = (int)y->d[3],
                            .groups = (int)c->groups,
                            .dtype = (int)x->dtype,
                            .splits = 1};
    const dsi_view *image = dx ? x : y, *from = dx ? y : x;
    int64_t channels = dx ? p.k : p.c;
    p.pixels = (int)(image->d[0] * image->d[2] * image->d[3]);
    p.taps = (int)(channels * p.r * p.s);
    p.channels_last = from->s[1] == 1 && channels > 1;
    p.plane = dsi_cuda_divisor_of(image->d[2] * image->d[3]),
    p.row = dsi_cuda_divisor_of(image->d[3]);
    p.outer = dsi_cuda_divisor_of(p.channels_last ? p.s * channels : (int64_t)p.r * p.s);
    p.inner = dsi_cuda_divisor_of(p.channels_last ? channels : p.s);
    for (int i = 0; i < 4; i++) p.xs[i] = x->s[i], p.ws[i] = w->s[i], p.ys[i] = y->s[i];
    for (int i = 0; i < 2; i++) {
        p.stride[i] = (int)c->stride[i], p.padding[i] = (int)c->padding[i];
        p.dilation[i] = (int)c->dilation[i], p.by_stride[i] = dsi_cuda_divisor_of(c->stride[i]);
    }
    return p;
}

/* Kernels count pixels and taps in 32 bits. */
static ds_status conv_check(const char *op, const dsi_view *x, const dsi_view *w, const dsi_view *y)
{
    const int64_t most = INT32_MAX;
    int64_t in = x->d[0] * x->d[2] * x->d[3], out = y->d[0] * y->d[2] * y->d[3];
    int64_t taps = dsi_max(w->d[0], w->d[1]) * w->d[2] * w->d[3];
    ds_status status = dsi_cuda_floating(op, x->dtype);
    if (status != DS_OK) return status;
    if (in <= most && out <= most && taps <= most) return DS_OK;
    return dsi_fail(DS_EINVAL,
                    "%s: %lld pixels of x, %lld of y, %lld taps: expected less than 2^31", op,
                    (long long)in, (long long)out, (long long)taps);
}

static unsigned tiles(int64_t n) { return (unsigned)((n + TILE - 1) / TILE); }

/* Where tiles would not pay, or cannot be: a thread (dw: a block) an element.
 * Tiles have float32 alone; y and z have a limit; in groups of few channels
 * most of a tile of 64 x 64 would be empty. */
static bool directly(const dsi_cuda_conv_args *p)
{
    return p->dtype == DS_F64 ||
           dsi_max(p->groups, tiles(dsi_max(p->c, p->k))) > dsi_cuda_most_yz() ||
           (p->groups > 1 && (int64_t)p->c * p->k < FEW);
}

/* Launches the kernel `tile`, for 16 bits on tensor cores if they are there. */
static ds_status tile_launch(dsi_stream *s, const char *tile, dsi_cuda_grid grid,
                             const dsi_cuda_conv_args *p)
{
    const dsi_cuda_gpu *g = s->device->own;
    bool half = p->dtype == DS_F16 || p->dtype == DS_BF16;
    bool mma = half && g->capability >= 80;
    const char *suffix = mma ? dsi_cuda_dtype_suffix((ds_dtype)p->dtype) : "";
    return dsi_cuda_launch(s, mma ? DSI_CUDA_conv_mma : DSI_CUDA_conv, tile, suffix, grid, p);
}

/* Instances have SMALL rows, in float32 also half of them, and SMALL_PARTS. */
static unsigned small_rows(const dsi_cuda_conv_args *p, int channels, bool parts)
{
    if (p->dtype != DS_F32) return SMALL;
    return parts ? SMALL_PARTS : channels > SMALL / 2 ? SMALL : SMALL / 2;
}

static unsigned row_blocks(int channels, unsigned rows)
{
    return ((unsigned)channels + rows - 1) / rows;
}

/* Shared memory of forward and dx: where taps are, weights, sums of warps. */
static int64_t small_shared(const dsi_cuda_conv_args *p, unsigned rows, unsigned warps)
{
    int64_t taps = (int64_t)p->taps + SMALL_AHEAD;
    return taps * SMALL_PLACE + (int64_t)sizeof(float) * rows * (taps + warps * 32);
}

/* Bytes of shared memory that a block of the GPU may have. */
static int64_t shared_of(const dsi_stream *s)
{
    const dsi_cuda_gpu *g = s->device->own;
    return (g->capability < 80 ? 64 : 96) * INT64_C(1024);
}

/* Channels out of a group that tiles would leave mostly empty. A sample's
 * offsets have 32 bits. */
static bool is_small(const dsi_stream *s, const dsi_cuda_conv_args *p, int channels)
{
    int64_t x = dsi_max(p->xs[1] * p->c, dsi_max(p->xs[2] * p->h, p->xs[3] * p->width)),
            y = dsi_max(p->ys[1] * p->k, dsi_max(p->ys[2] * p->p, p->ys[3] * p->q));
    return channels <= SMALL && dsi_max(x, y) <= INT32_MAX / 4 &&
           small_shared(p, small_rows(p, channels, false), SMALL_WARPS) <= shared_of(s);
}

static const char *small_suffix(const dsi_cuda_conv_args *p, unsigned rows)
{
    return p->dtype == DS_F16    ? "_16_f16"
           : p->dtype == DS_BF16 ? "_16_bf16"
           : rows == SMALL       ? "_16_f32"
           : rows == SMALL / 2   ? "_8_f32"
                                 : "_2_f32";
}

/* y or dx. Where blocks of 32 pixels are few, each has some of the channels,
 * and warps enough for one round of loads each. */
static ds_status small_launch(dsi_stream *s, bool dx, int channels, const dsi_cuda_conv_args *args)
{
    dsi_cuda_conv_args p = *args;
    dsi_cuda_grid grid = dsi_cuda_blocks(((int64_t)p.pixels + 31) / 32, 1);
    bool parts = p.dtype == DS_F32 && grid.blocks[0] <= SMALL_FEW &&
                 (int64_t)p.groups * row_blocks(channels, SMALL_PARTS) <= dsi_cuda_most_yz();
    unsigned rows = small_rows(&p, channels, parts), warps = SMALL_WARPS;
    if (parts) {
        warps = ((unsigned)p.taps + 2 * SMALL_AHEAD - 1) / (2 * SMALL_AHEAD) * 2;
        warps = warps < 4 ? 4 : warps > 2 * SMALL_WARPS ? 2 * SMALL_WARPS : warps;
    }
    p.row_blocks = (int)row_blocks(channels, rows);
    grid.blocks[1] = (unsigned)(p.groups * p.row_blocks);
    grid.shared = (unsigned)small_shared(&p, rows, warps);
    grid.threads[0] = warps * 32;
    if (!dx && p.dtype == DS_F32) return dsi_cuda_hold_conv(s, small_suffix(&p, rows), grid, &p);
    return dsi_cuda_launch(s, DSI_CUDA_conv_small, dx ? "conv2d_dx_small" : "conv2d_small",
                           small_suffix(&p, rows), grid, &p);
}

/* y or dx: `channels` of each group */
static ds_status conv_launch(dsi_stream *s, bool dx, int channels, const dsi_cuda_conv_args *p)
{
    const char *tile = dx ? "conv2d_dx_tile" : "conv2d_tile",
               *direct = dx ? "conv2d_dx_direct" : "conv2d_direct";
    if (!p->pixels || !channels) return DS_OK;
    if (directly(p))
        return dsi_cuda_launch(s, DSI_CUDA_conv, direct, dsi_cuda_suffix((ds_dtype)p->dtype),
                               dsi_cuda_grid_of((int64_t)p->groups * channels * p->pixels), p);
    if (is_small(s, p, channels)) return small_launch(s, dx, channels, p);
    dsi_cuda_grid grid = dsi_cuda_blocks(tiles(p->pixels), 256);
    grid.blocks[1] = tiles(channels), grid.blocks[2] = (unsigned)p->groups;
    return tile_launch(s, tile, grid, p);
}

ds_status dsi_cuda_conv2d(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b,
                          dsi_view y)
{
    ds_status status = conv_check("conv2d", &x, &w, &y);
    if (status != DS_OK || !dsi_cuda_elements_in(&y)) return status;
    dsi_cuda_conv_args p = conv_args(c, &x, &w, &y, false);
    p.x = x.p, p.w = w.p, p.out = y.p;
    if (b.p) p.bias = b.p, p.bias_dtype = (int)b.dtype, p.bias_s = b.s[0];
    if (dsi_cuda_conv_last_takes(s, &p, &x, &y)) return dsi_cuda_conv_last(s, &p, false);
    if (dsi_cuda_conv_patches_takes(s, &p, &y)) return dsi_cuda_conv_patches(s, &p);
    return conv_launch(s, false, p.k, &p);
}

ds_status dsi_cuda_conv2d_dx(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w,
                             dsi_view dx)
{
    ds_status status = conv_check("conv2d_dx", &dx, &w, &dy);
    if (status != DS_OK || !dsi_cuda_elements_in(&dx)) return status;
    dsi_cuda_conv_args p = conv_args(c, &dx, &w, &dy, true);
    p.dy = dy.p, p.w = w.p, p.out = dx.p;
    if (dsi_cuda_conv_last_takes(s, &p, &dx, &dy)) return dsi_cuda_conv_last(s, &p, true);
    return conv_launch(s, true, p.c, &p);
}

/* Parts of the sum over pixels: enough blocks to fill a GPU. They depend on the
 * sizes alone. */
static void split_pixels(dsi_cuda_conv_args *p, bool small)
{
    int64_t blocks = small ? ((int64_t)p->columns + 31) / 32 * p->groups
                           : (int64_t)tiles(p->columns) * tiles(p->k) * p->groups;
    int64_t splits = dsi_min(dsi_min(PER_GPU / blocks, p->pixels / PART_DEEP),
                             dsi_min(SPLITS, dsi_cuda_most_yz() / p->groups));
    int64_t each = splits > 1 ? (p->pixels + splits - 1) / splits : dsi_max(p->pixels, 1);
    p->split_pixels = (int)((each + DEPTH - 1) / DEPTH * DEPTH);
    p->splits = (int)dsi_max((p->pixels + p->split_pixels - 1) / p->split_pixels, 1);
}

/* The backward of w. Its sum is over all pixels of the batch, and its output is
 * small: without parts a layer of few channels would keep only some of the
 * GPU's processors busy. Pixels of no output give dw = 0. */
static ds_status conv_dw_tiles(dsi_stream *s, dsi_cuda_conv_args *p)
{
    bool small = is_small(s, p, p->k);
    split_pixels(p, small);
    int64_t elements = (int64_t)p->groups * p->k * p->columns;
    size_t bytes = p->splits > 1 ? (size_t)(elements * p->splits) * sizeof *p->part : 0;
    if (bytes && !(p->part = dsi_cuda_scratch(s, bytes))) return DS_ENOMEM;
    dsi_cuda_grid grid = small ? dsi_cuda_blocks(((int64_t)p->columns + 31) / 32, SMALL_WARPS * 32)
                               : dsi_cuda_blocks(tiles(p->columns), 256);
    if (small)
        grid.blocks[1] = (unsigned)(p->groups * p->splits);
    else
        grid.blocks[1] = tiles(p->k), grid.blocks[2] = (unsigned)(p->groups * p->splits);
    ds_status status = small ? dsi_cuda_launch(s, DSI_CUDA_conv_small, "conv2d_dw_small",
                                               small_suffix(p, small_rows(p, p->k, false)), grid, p)
                             : tile_launch(s, "conv2d_dw_tile", grid, p);
    if (status == DS_OK && bytes)
        status = dsi_cuda_launch(s, DSI_CUDA_conv, "conv2d_dw_sum", "", dsi_cuda_grid_of(elements),
                                 p);
    dsi_cuda_scratch_free(s, p->part, bytes);
    return status;
}

/* db, or absent: a column of ones behind the taps, in a tile that has one to
 * spare; *summed says whether it is done. */
static ds_status conv_dw_launch(dsi_stream *s, const dsi_conv2d *c, const dsi_view *dy,
                                const dsi_view *x, const dsi_view *dw, const dsi_view *db,
                                bool *summed)
{
    ds_status status = conv_check("conv2d_dw", x, dw, dy);
    int64_t elements = dsi_cuda_elements_in(dw);
    *summed = false;
    if (status != DS_OK || !elements) return status;
    dsi_cuda_conv_args p = conv_args(c, x, dw, dy, false);
    p.dy = dy->p, p.x = x->p, p.out = dw->p, p.columns = p.taps;
    if (directly(&p))
        return dsi_cuda_launch(s, DSI_CUDA_conv, "conv2d_dw_direct", dsi_cuda_suffix(x->dtype),
                               dsi_cuda_blocks(elements, 128), &p);
    if (dsi_cuda_conv_dw_last_takes(s, &p, x, dy)) return dsi_cuda_conv_dw_last(s, &p);
    if (dsi_cuda_conv_patches_takes(s, &p, dy)) return dsi_cuda_conv_patches_dw(s, &p);
    *summed = db->p && (p.taps % TILE || is_small(s, &p, p.k)) && db->dtype == dw->dtype;
    if (*summed) p.db = db->p, p.db_s = db->s[0], p.columns++;
    return conv_dw_tiles(s, &p);
}

ds_status dsi_cuda_conv2d_dw(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x,
                             dsi_view dw)
{
    bool summed;
    return conv_dw_launch(s, c, &dy, &x, &dw, &(dsi_view){.p = NULL}, &summed);
}

ds_status dsi_cuda_conv2d_dw_db(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x,
                                dsi_view dw, dsi_view db)
{
    bool summed;
    ds_status status = conv_dw_launch(s, c, &dy, &x, &dw, &db, &summed);
    return status == DS_OK && !summed ? dsi_cuda_sum_channels(s, dy, db) : status;
}

/* ---- backward of a gradient in pooled form --------------------------------- */

/* dx or dw alone; the other view, and db, may be absent. */
static dsi_cuda_conv_args pooled_args(const dsi_conv2d *c, const dsi_pooled *dy, const dsi_view *x,
                                      const dsi_view *w, bool dx)
{
    const dsi_view *v = &dy->value;
    dsi_view image = {.dtype = v->dtype, .n = 4, .d = {v->d[0], v->d[1], dy->h, dy->w}};
    dsi_cuda_conv_args p = conv_args(c, x, w, &image, dx);
    p.x = x->p, p.w = w->p;
    p.pooled = (dsi_cuda_pooled){.value = v->p,
                                 .max = dy->max.p,
                                 .index = dy->index.p,
                                 .p = (int)v->d[2],
                                 .q = (int)v->d[3],
                                 .relu = dy->relu,
                                 .windows = dsi_cuda_divisor_of(v->d[2] * v->d[3]),
                                 .row = dsi_cuda_divisor_of(v->d[3])};
    for (int i = 0; i < 4; i++)
        p.pooled.vs[i] = v->s[i], p.pooled.is[i] = dy->index.s[i],
        p.pooled.ms[i] = dy->relu ? dy->max.s[i] : 0;
    return p;
}

/* Blocks of 32 pixels of dx, of one sample each. */
static int64_t back_blocks(const dsi_cuda_conv_args *dx)
{
    return ((int64_t)dx->h * dx->width + 31) / 32 * dx->n;
}

/* Shared memory of dx: that of a small convolution, and a sample's planes of
 * dy. */
static int64_t back_shared(const dsi_cuda_conv_args *dx)
{
    return small_shared(dx, SMALL_PARTS, K_BACK_WARPS) +
           (int64_t)sizeof(float) * dx->k * dx->p * dx->q;
}

/* Few channels and few pixels, so that blocks of dx would be a small
 * convolution's, and its planes of dy fit. */
static bool pooled_pays(const dsi_stream *s, const dsi_cuda_conv_args *dx)
{
    int64_t place = dsi_max(dx->padding[0], dx->padding[1]) + dsi_max(dx->h, dx->width);
    if (place > INT16_MAX) return false; /* a held_window's */
    return dx->dtype == DS_F32 && !directly(dx) && dx->n && is_small(s, dx, dx->c) &&
           dx->k <= SMALL && back_blocks(dx) <= SMALL_FEW && back_shared(dx) <= shared_of(s);
}

/* Shared memory of dx_scanned. */
static int64_t scan_shared(const dsi_cuda_conv_args *dx)
{
    int64_t each = (int64_t)dx->r * dx->s * K_SCANNED * (int64_t)sizeof(float) +
                   (int64_t)dx->pooled.windows.d * 16;
    return dx->k * each + (int64_t)K_BACK_WARPS * K_SCANNED * 32 * (int64_t)sizeof(float);
}

/* A pixel then looks at all windows of a channel, in place of all taps. */
static bool scan_pays(const dsi_cuda_conv_args *dx)
{
    bool plain = true;
    for (int i = 0; i < 2; i++) plain = plain && dx->stride[i] == 1 && dx->dilation[i] == 1;
    return plain && dx->pooled.windows.d <= 2 * (unsigned)(dx->r * dx->s) &&
           scan_shared(dx) <= 48 << 10;
}

/* Sets how blocks are counted, with `rows` channels of dx in a block; returns
 * the number of dw's. */
static int64_t back_divide(dsi_cuda_conv_back *p, bool has_dx, unsigned rows)
{
    int64_t tiles = back_blocks(&p->dx) / p->dx.n;
    bool few = p->dw.n * (int64_t)p->dw.pooled.windows.d <= FEW_WINDOWS;
    p->team_bits = few ? 7 : 9; /* of 4 warps, or one of K_BACK_WARPS */
    p->dx.row_blocks = (int)row_blocks(p->dx.c, rows);
    p->parts = dsi_cuda_divisor_of(p->dx.row_blocks);
    p->groups = dsi_cuda_divisor_of(p->dx.groups);
    p->tiles = dsi_cuda_divisor_of(tiles);
    p->width = dsi_cuda_divisor_of(p->dx.q);
    if (has_dx) p->dw_first = (unsigned)(tiles * p->dx.n * p->dx.row_blocks * p->dx.groups);
    int64_t columns = (int64_t)K_BACK_COLUMNS * (few ? K_BACK_WARPS / 4 : 1),
            each = (p->dw.columns + columns - 1) / columns;
    p->blocks = dsi_cuda_divisor_of(each);
    p->outputs = dsi_cuda_divisor_of(p->dw.k);
    return each * p->dw.k * p->dw.groups;
}

ds_status dsi_cuda_conv2d_back_pooled(dsi_stream *s, const dsi_conv2d *c, const dsi_pooled *dy,
                                      dsi_view x, dsi_view w, dsi_view dx, dsi_view dw, dsi_view db,
                                      bool *done)
{
    *done = false;
    if (!dsi_cuda_elements_in(&x) || !dsi_cuda_elements_in(&w)) return DS_OK;
    const dsi_view *weight = dw.p ? &dw : &w;
    dsi_cuda_conv_back p = {.dx = pooled_args(c, dy, dx.p ? &dx : &x, &w, true),
                            .dw = pooled_args(c, dy, &x, weight, false)};
    bool same = x.dtype == w.dtype && dy->value.dtype == x.dtype &&
                (!dw.p || dw.dtype == x.dtype) && (!db.p || (dw.p && db.dtype == x.dtype)) &&
                (!dx.p || dx.dtype == x.dtype);
    *done = same && pooled_pays(s, &p.dx);
    if (!*done) return DS_OK;
    p.dx.out = dx.p, p.dw.out = dw.p, p.dw.columns = p.dw.taps;
    if (db.p) p.dw.db = db.p, p.dw.db_s = db.s[0], p.dw.columns++;
    bool scans = !dx.p || scan_pays(&p.dx);
    int64_t blocks = back_divide(&p, dx.p, scans ? K_SCANNED : SMALL_PARTS),
            of_dx = !dx.p   ? 0
                    : scans ? scan_shared(&p.dx)
                            : back_shared(&p.dx),
            of_dw = K_BACK_HELD * 16 + K_BACK_WARPS * K_BACK_COLUMNS * (int64_t)sizeof(float);
    dsi_cuda_grid grid = dsi_cuda_blocks(p.dw_first + (dw.p ? blocks : 0), K_BACK_WARPS * 32);
    grid.shared = (unsigned)dsi_max(of_dx, of_dw);
    if (!dx.p) return dsi_cuda_hold_back(s, grid, &p);
    return dsi_cuda_launch(s, DSI_CUDA_conv_small,
                           scans ? "conv2d_back_scanned" : "conv2d_back_pooled", "_f32", grid, &p);
}
