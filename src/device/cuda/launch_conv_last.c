/* device/cuda/launch_conv_last.c: see conv_last.h.
 *
 * Those of 16 bits are computed by conv_wgmma.cu on GPUs of compute
 * capability 9.0, but small ones; all else by conv_last.cu.
 *
 * Sums of y and dx are cut into parts where tiles are too few for a GPU; a second
 * kernel adds these in order.
 *
 * Invariants: tiles are those of the .cu files, with which it shares
 * kernels/conv_tiles.h. A grid counts tiles of pixels (times parts) along x, of
 * channels along y, groups times classes of pixels along z.
 * SPDX-License-Identifier: MIT */
#include "conv_last.h"
#include "kernels/conv_tiles.h"
#include "launch.h"
#include "operands.h"

#include "base/int.h"

#define MOST_TAPS 32
#define WARP      K_CONV_WARP
#define DEPTH     32 /* pixels of a stage */

/* Products of warpgroups are worth it from here on, by an H200: elements of a sum
 * of y or dx, multiplications of dw for each multiprocessor. */
#define LEAST_SUM     128
#define LEAST_DW_WORK ((int64_t)1 << 24)

/* Parts of the sums of y and dx by warpgroups: at most, stages of each at least; times
 * in microseconds of a stage, of a block beside its stages, of the kernel that adds
 * the parts, and of each MB of these: those of products with tiles of that size
 * (launch_gemm_lines.c), not measured for convolutions. */
#define MOST_PARTS  16
#define PART_STAGES 8
#define STAGE_TIME  0.38
#define BLOCK_TIME  3.6
#define PARTS_TIME  4.0
#define MB_TIME     0.45

#define MOST_SPLITS 132   /* parts of dw's sum */
#define FEW_SPLITS  16    /* that a thread adds alone */
#define PART_DEEP   256   /* pixels of a part, at least */
#define PART_COST   10000 /* elements of a part that take as long as a pixel of a block's sum */

static int size_of(const dsi_cuda_conv_args *p) { return (int)ds_dtype_size((ds_dtype)p->dtype); }

/* Elements of 16 bytes. */
static int piece_of(const dsi_cuda_conv_args *p) { return 16 / size_of(p); }

/* How the name of a kernel ends that copies elements of this size. */
static const char *bytes_of(const dsi_cuda_conv_args *p) { return size_of(p) == 4 ? "_4" : "_2"; }

/* Channels are neighbours, pixels 16-byte aligned, places below 2^31. */
static bool channels_last(const dsi_view *v)
{
    int64_t span = 1, piece = 16 / (int64_t)ds_dtype_size(v->dtype);
    if (v->s[1] != 1 || (uintptr_t)v->p % 16) return false;
    for (int i = 0; i < 4; i++) {
        if (i != 1 && v->d[i] > 1 && (v->s[i] % piece || v->s[i] < 0)) return false;
        span += (v->d[i] - 1) * v->s[i];
    }
    return span <= INT32_MAX;
}

bool dsi_cuda_conv_last_takes(const dsi_stream *s, const dsi_cuda_conv_args *p, const dsi_view *x,
                              const dsi_view *y)
{
    const dsi_cuda_gpu *g = s->device->own;
    int64_t taps = (int64_t)p->r * p->s, classes = (int64_t)p->stride[0] * p->stride[1];
    int piece = p->dtype == DS_F64 ? 0 : piece_of(p);
    return piece && g->capability >= 80 && p->c % piece == 0 && p->k % piece == 0 &&
           dsi_max(p->c, p->k) <= 8 * dsi_cuda_most_yz() && taps <= MOST_TAPS &&
           p->groups * classes <= dsi_cuda_most_yz() &&
           taps * p->c * p->k * p->groups <= INT32_MAX && channels_last(x) && channels_last(y);
}

static unsigned tiles(int64_t n, int64_t tile) { return (unsigned)((n + tile - 1) / tile); }

/* Weights in the order of the sum: a copy in `to`. */
static ds_status weights_launch(dsi_stream *s, dsi_cuda_conv_args p, bool dx, void *to)
{
    int inner = dx ? p.k : p.c, outer = dx ? p.c : p.k, lines = dx ? 32 : 8, deep = dx ? 8 : 32;
    dsi_cuda_grid grid = dsi_cuda_blocks(tiles(inner, 32), 256);
    grid.blocks[1] = tiles(outer, 8), grid.blocks[2] = (unsigned)p.groups;
    grid.shared = (unsigned)(lines * (deep * p.r * p.s + 2) * size_of(&p));
    p.out = to;
    return dsi_cuda_launch(s, DSI_CUDA_conv_last, dx ? "conv2d_dx_weights" : "conv2d_weights",
                           bytes_of(&p), grid, &p);
}

/* Dynamic memory of a tile's stages: bytes. Those of warpgroups are aligned. */
#define STAGES(n, rows, columns)       ((unsigned)((n)*K_CONV_PIECES * 16 * ((rows) + (columns))))
#define GROUP_STAGES(n, rows, columns) (STAGES(n, rows, columns) + K_CONV_ALIGN)

/* A kernel of y and dx: pixels x channels of its tile. at_once: blocks that a large
 * GPU runs, of those whose sums may have parts; else 0. */
typedef struct Tile {
    dsi_cuda_family family;
    const char *name, *dx_name;
    int64_t pixels, channels, at_once;
    unsigned threads, shared; /* shared: bytes of dynamic memory */
} Tile;

static const Tile tile_mma = {DSI_CUDA_conv_last,
                              "conv2d_last",
                              "conv2d_dx_last",
                              2 * WARP,
                              2 * WARP,
                              0,
                              128,
                              STAGES(K_CONV_STAGES, 2 * WARP, 2 * WARP)};
static const Tile tile_mma_narrow = {DSI_CUDA_conv_last,
                                     "conv2d_last_narrow",
                                     "conv2d_dx_last_narrow",
                                     4 * WARP,
                                     WARP,
                                     0,
                                     128,
                                     STAGES(K_CONV_STAGES, 4 * WARP, WARP)};
static const Tile tile_group = {DSI_CUDA_conv_wgmma,
                                "conv2d_group_128",
                                "conv2d_dx_group_128",
                                K_CONV_PIXELS,
                                128,
                                132,
                                256,
                                GROUP_STAGES(K_CONV_STAGES_128, K_CONV_PIXELS, 128)};
static const Tile tile_group_narrow = {DSI_CUDA_conv_wgmma,
                                       "conv2d_group_64",
                                       "conv2d_dx_group_64",
                                       K_CONV_PIXELS,
                                       64,
                                       264,
                                       128,
                                       GROUP_STAGES(K_CONV_STAGES, K_CONV_PIXELS, 64)};

static dsi_cuda_grid tiles_grid(const dsi_cuda_conv_args *p, bool dx, const Tile *tile)
{
    int64_t h = dx ? p->h : p->p, w = dx ? p->width : p->q, classes = 1;
    if (dx) { /* the first class has the most pixels */
        h = (h + p->stride[0] - 1) / p->stride[0], w = (w + p->stride[1] - 1) / p->stride[1];
        classes = (int64_t)p->stride[0] * p->stride[1];
    }
    dsi_cuda_grid grid = dsi_cuda_blocks(tiles(p->n * h * w, tile->pixels), tile->threads);
    grid.blocks[1] = tiles(dx ? p->c : p->k, tile->channels);
    grid.blocks[2] = (unsigned)(p->groups * classes);
    grid.shared = tile->shared;
    if (p->dtype == DS_F32) grid.threads[0] *= 2;
    return grid;
}

static const Tile *tile_of(const dsi_stream *s, const dsi_cuda_conv_args *p, bool dx)
{
    const dsi_cuda_gpu *g = s->device->own;
    bool narrow = (dx ? p->c : p->k) <= WARP, half = p->dtype != DS_F32;
    if (g->warpgroups && half && (int64_t)p->r * p->s * (dx ? p->k : p->c) >= LEAST_SUM)
        return narrow ? &tile_group_narrow : &tile_group;
    return narrow ? &tile_mma_narrow : &tile_mma;
}

static int64_t channels_of(const dsi_cuda_conv_args *p, bool dx)
{
    return (int64_t)p->groups * (dx ? p->c : p->k);
}

/* Parts of the sum: those of least time. They depend on the sizes and the tile
 * alone. Classes of dx's pixels have sums of different lengths: one part. */
static int parts_of(const dsi_cuda_conv_args *p, bool dx, const Tile *tile,
                    const dsi_cuda_grid *grid)
{
    int64_t blocks = (int64_t)grid->blocks[0] * grid->blocks[1] * grid->blocks[2], best = 1,
            stages = ((int64_t)p->r * p->s * (dx ? p->k : p->c) + 31) / 32;
    double mb = (double)p->pixels * (double)channels_of(p, dx) * 4e-6, least = 0;
    if (!tile->at_once || (dx && p->stride[0] * p->stride[1] > 1)) return 1;
    for (int64_t i = 1; i <= MOST_PARTS && (i == 1 || i * PART_STAGES <= stages); i++) {
        int64_t rounds = dsi_div_up(blocks * i, tile->at_once);
        double time = (double)rounds * ((double)dsi_div_up(stages, i) * STAGE_TIME + BLOCK_TIME);
        if (i > 1) time += PARTS_TIME + (double)i * mb * MB_TIME;
        if (i == 1 || time < least) least = time, best = i;
    }
    return (int)best;
}

/* y, or dx; p->w is in the order of the sum */
static ds_status product_launch(dsi_stream *s, const dsi_cuda_conv_args *all, bool dx)
{
    const Tile *tile = tile_of(s, all, dx);
    dsi_cuda_conv_args p = *all;
    dsi_cuda_grid grid = tiles_grid(&p, dx, tile);
    const char *suffix = dsi_cuda_dtype_suffix((ds_dtype)p.dtype);
    p.splits = parts_of(&p, dx, tile, &grid);
    grid.blocks[0] *= (unsigned)p.splits;
    int64_t elements = (int64_t)p.pixels * channels_of(&p, dx);
    size_t bytes = p.splits > 1 ? (size_t)(elements * p.splits) * sizeof *p.part : 0;
    if (bytes && !(p.part = dsi_cuda_scratch(s, bytes))) return DS_ENOMEM;
    ds_status status = dsi_cuda_launch(s, tile->family, dx ? tile->dx_name : tile->name, suffix,
                                       grid, &p);
    if (status == DS_OK && bytes)
        status = dsi_cuda_launch(s, tile->family, dx ? "conv2d_dx_group_sum" : "conv2d_group_sum",
                                 suffix, dsi_cuda_grid_of(elements / piece_of(&p)), &p);
    dsi_cuda_scratch_free(s, p.part, bytes);
    return status;
}

ds_status dsi_cuda_conv_last(dsi_stream *s, const dsi_cuda_conv_args *p, bool dx)
{
    size_t bytes = (size_t)p->groups * (size_t)p->k * (size_t)(p->c * p->r * p->s) *
                   (size_t)size_of(p);
    dsi_cuda_conv_args q = *p;
    void *weights = dsi_cuda_scratch(s, bytes);
    if (!weights) return DS_ENOMEM;
    q.w = weights;
    ds_status status = weights_launch(s, *p, dx, weights);
    if (status == DS_OK) status = product_launch(s, &q, dx);
    dsi_cuda_scratch_free(s, weights, bytes);
    return status;
}

/* ---- dw ---- */

/* Pixels of dy follow each other at one distance. */
bool dsi_cuda_conv_dw_last_takes(const dsi_stream *s, const dsi_cuda_conv_args *p,
                                 const dsi_view *x, const dsi_view *dy)
{
    const int64_t *n = dy->d, *step = dy->s;
    bool rows = n[2] == 1 || step[2] == n[3] * step[3];
    bool images = n[0] == 1 || step[0] == n[2] * n[3] * step[3];
    return p->pixels > 0 && rows && images && n[3] > 1 && dsi_cuda_conv_last_takes(s, p, x, dy);
}

/* Parts of the sum over pixels: those of least time, which is that of the waves
 * of blocks that run at once, and of writing and adding the parts. */
static void cut_pixels(dsi_cuda_conv_args *p, int64_t blocks, int64_t at_once)
{
    int64_t elements = (int64_t)p->groups * p->k * p->columns;
    int64_t most = dsi_min(dsi_min(MOST_SPLITS, p->pixels / PART_DEEP),
                           dsi_cuda_most_yz() / p->groups);
    double least = 0;
    int64_t splits = 1;
    for (int64_t i = 1; i <= most; i++) {
        int64_t waves = (blocks * i + at_once - 1) / at_once;
        double time = (double)waves * (double)p->pixels / (double)i +
                      (double)i * (double)elements / PART_COST;
        if (i == 1 || time < least) least = time, splits = i;
    }
    int64_t each = (p->pixels + splits - 1) / splits;
    p->split_pixels = (int)((each + DEPTH - 1) / DEPTH * DEPTH);
    p->splits = (int)dsi_max((p->pixels + p->split_pixels - 1) / p->split_pixels, 1);
}

/* dw, or a column each of p->columns: p's taps may be fewer. */
static ds_status parts_sum(dsi_stream *s, const dsi_cuda_conv_args *p)
{
    int64_t elements = (int64_t)p->groups * p->k * p->columns;
    if (p->splits > FEW_SPLITS || p->columns > p->taps)
        return dsi_cuda_launch(s, DSI_CUDA_conv_last, "conv2d_dw_last_sum", "",
                               dsi_cuda_blocks((elements + 31) / 32, 256), p);
    return dsi_cuda_launch(s, DSI_CUDA_conv, "conv2d_dw_sum", "", dsi_cuda_grid_of(elements), p);
}

/* A kernel of dw: k x taps of its tile. */
typedef struct DwTile {
    dsi_cuda_family family;
    const char *name;
    int64_t rows, columns, at_once; /* at_once: blocks that a large GPU runs */
    unsigned threads, shared;
} DwTile;

static const DwTile dw_mma = {DSI_CUDA_conv_last,
                              "conv2d_dw_last",
                              2 * WARP,
                              2 * WARP,
                              264,
                              128,
                              STAGES(K_CONV_STAGES, 2 * WARP, 2 * WARP)};
static const DwTile dw_mma_narrow = {DSI_CUDA_conv_last,
                                     "conv2d_dw_last_narrow",
                                     WARP,
                                     3 * WARP,
                                     264,
                                     96,
                                     STAGES(K_CONV_STAGES, WARP, 3 * WARP)};
static const DwTile dw_group = {DSI_CUDA_conv_wgmma,
                                "conv2d_dw_group_128",
                                128,
                                K_CONV_TAPS,
                                264,
                                256,
                                GROUP_STAGES(K_CONV_STAGES, 128, K_CONV_TAPS)};
static const DwTile dw_group_narrow = {DSI_CUDA_conv_wgmma,
                                       "conv2d_dw_group_64",
                                       64,
                                       K_CONV_TAPS,
                                       396,
                                       128,
                                       GROUP_STAGES(K_CONV_STAGES, 64, K_CONV_TAPS)};

static const DwTile *dw_tile_of(const dsi_stream *s, const dsi_cuda_conv_args *p)
{
    const dsi_cuda_gpu *g = s->device->own;
    bool narrow = p->k <= WARP;
    int64_t work = (int64_t)p->groups * p->k * p->columns * p->pixels;
    if (g->warpgroups && p->dtype != DS_F32 && work >= LEAST_DW_WORK * g->processors)
        return narrow ? &dw_group_narrow : &dw_group;
    return narrow ? &dw_mma_narrow : &dw_mma;
}

/* The parts of the product p, which are added as those of dw. */
static ds_status dw_launch(dsi_stream *s, dsi_cuda_conv_args p, dsi_cuda_conv_args dw)
{
    const DwTile *tile = dw_tile_of(s, &p);
    bool wide = p.dtype == DS_F32; /* twice the threads of half as many blocks */
    dsi_cuda_grid grid = dsi_cuda_blocks(tiles(p.columns, tile->columns), tile->threads << wide);
    grid.blocks[1] = tiles(p.k, tile->rows);
    grid.shared = tile->shared;
    int64_t at_once = tile->at_once >> wide;
    cut_pixels(&p, (int64_t)grid.blocks[0] * grid.blocks[1] * p.groups, at_once);
    grid.blocks[2] = (unsigned)(p.groups * p.splits);
    size_t bytes = (size_t)p.groups * (size_t)p.k * (size_t)p.columns * (size_t)p.splits *
                   sizeof *p.part;
    if (!(p.part = dsi_cuda_scratch(s, bytes))) return DS_ENOMEM;
    ds_status status = dsi_cuda_launch(s, tile->family, tile->name,
                                       dsi_cuda_dtype_suffix((ds_dtype)p.dtype), grid, &p);
    dw.part = p.part, dw.splits = p.splits, dw.columns = p.columns;
    if (status == DS_OK) status = parts_sum(s, &dw);
    dsi_cuda_scratch_free(s, p.part, bytes);
    return status;
}

ds_status dsi_cuda_conv_dw_last(dsi_stream *s, const dsi_cuda_conv_args *p)
{
    return dw_launch(s, *p, *p);
}

/* ---- few channels ---- */

static int patch_columns(const dsi_cuda_conv_args *p)
{
    int piece = piece_of(p);
    return (p->taps + piece - 1) / piece * piece;
}

bool dsi_cuda_conv_patches_takes(const dsi_stream *s, const dsi_cuda_conv_args *p,
                                 const dsi_view *y)
{
    dsi_cuda_conv_args q = *p;
    if (p->dtype == DS_F64) return false;
    q.c = patch_columns(p), q.r = q.s = 1;
    return p->groups == 1 && q.c <= p->k && (int64_t)p->pixels * q.c <= INT32_MAX &&
           dsi_cuda_conv_dw_last_takes(s, &q, y, y);
}

/* The product of patches [pixels][columns], a convolution of 1 x 1. */
static dsi_cuda_conv_args patches_product(const dsi_cuda_conv_args *p, const void *patches)
{
    dsi_cuda_conv_args q = *p;
    long long c = patch_columns(p);
    q.x = patches, q.c = q.taps = q.columns = (int)c, q.r = q.s = 1, q.h = p->p, q.width = p->q;
    q.xs[0] = c * p->p * p->q, q.xs[1] = 1, q.xs[2] = c * p->q, q.xs[3] = c;
    for (int i = 0; i < 2; i++) q.stride[i] = q.dilation[i] = 1, q.padding[i] = 0;
    return q;
}

static size_t patches_bytes(const dsi_cuda_conv_args *p)
{
    return (size_t)p->pixels * (size_t)patch_columns(p) * (size_t)size_of(p);
}

static ds_status patches_launch(dsi_stream *s, dsi_cuda_conv_args p, const char *kernel,
                                int64_t threads, void *to)
{
    p.out = to, p.columns = patch_columns(&p);
    return dsi_cuda_launch(s, DSI_CUDA_conv_last, kernel, bytes_of(&p), dsi_cuda_grid_of(threads),
                           &p);
}

static ds_status patches_of(dsi_stream *s, const dsi_cuda_conv_args *p, void *to)
{
    int64_t threads = ((int64_t)p->pixels + 31) / 32 * 32 * (patch_columns(p) / piece_of(p));
    return patches_launch(s, *p, "conv2d_patches", threads, to);
}

ds_status dsi_cuda_conv_patches(dsi_stream *s, const dsi_cuda_conv_args *p)
{
    size_t bytes = patches_bytes(p),
           more = (size_t)p->k * (size_t)patch_columns(p) * (size_t)size_of(p);
    char *patches = dsi_cuda_scratch(s, bytes), *weights = dsi_cuda_scratch(s, more);
    ds_status status = patches && weights ? patches_of(s, p, patches) : DS_ENOMEM;
    dsi_cuda_conv_args q = patches_product(p, patches);
    q.w = weights;
    if (status == DS_OK)
        status = patches_launch(s, *p, "conv2d_patch_weights", (int64_t)p->k * q.c, weights);
    if (status == DS_OK) status = product_launch(s, &q, false);
    dsi_cuda_scratch_free(s, patches, bytes);
    dsi_cuda_scratch_free(s, weights, more);
    return status;
}

ds_status dsi_cuda_conv_patches_dw(dsi_stream *s, const dsi_cuda_conv_args *p)
{
    size_t bytes = patches_bytes(p);
    void *patches = dsi_cuda_scratch(s, bytes);
    ds_status status = patches ? patches_of(s, p, patches) : DS_ENOMEM;
    if (status == DS_OK) status = dw_launch(s, patches_product(p, patches), *p);
    dsi_cuda_scratch_free(s, patches, bytes);
    return status;
}
