/* device/cuda/launch_gemm.c: the product of kernels.h, by cublasLt (cublas.h)
 * or one of these kernels:
 *
 *     cublasLt      large products, where it is installed
 *     gemm_small.cu few multiplications; few rows, as a step of generation has,
 *                   whose time is that of reading b
 *     tensor cores  16 bits, compute capability 8.0 (launch_gemm_lines.c)
 *     matmul_few    few elements with long sums: a warp an element
 *     matmul        all else: tiles of 64 x 64 (float64: 32 x 32)
 *
 * Strides are arbitrary, so a transposed operand is a view. Which kernel runs
 * depends on the GPU's capability, dtype, shapes, strides and alignment. Sums
 * are in float32 (float64: in float64).
 *
 * Invariants: a grid counts tiles of columns along x, of rows along y, batches
 * along z; y and z hold at most dsi_cuda_most_yz, so rows are cut into
 * launches, and batches beyond are a loop in the kernel. The tile's edge here
 * equals that of the .cu file.
 * SPDX-License-Identifier: MIT */
#include "launch_gemm.h"
#include "cublas.h"
#include "held.h"
#include "launch.h"
#include "operands.h"

#include "base/int.h"

#define FEW      4096 /* elements of y: below, their number does not fill a GPU with tiles */
#define LONG_SUM 32
#define SMALL    (1 << 23) /* multiplications: below, a GPU is not full of tiles */
#define ROWS     4         /* of a warp of gemm_small.cu */
#define FEW_ROWS 8         /* of y: tiles would be an eighth full */
#define MMA_FULL 64        /* rows and columns, from which tensor cores take few multiplications */

static unsigned tiles(int64_t n, int64_t tile) { return (unsigned)((n + tile - 1) / tile); }

/* The address of a row; stride in elements of dtype. */
static const void *rows_from(const void *p, int64_t row, int64_t stride, int dtype)
{
    return (const char *)p + row * stride * (int64_t)ds_dtype_size((ds_dtype)dtype);
}

/* The kernel for tiles of `tile` rows and columns, over as many rows at a time
 * as a grid may have. */
static ds_status launch_tiles(dsi_stream *s, dsi_cuda_family family, const char *name,
                              const char *suffix, int64_t tile, const dsi_cuda_matmul_args *all)
{
    ds_status status = DS_OK;
    int64_t most = dsi_cuda_most_yz() * tile;
    for (int64_t row = 0; status == DS_OK && row < all->m; row += most) {
        dsi_cuda_matmul_args p = *all;
        p.m = dsi_min(all->m - row, most);
        p.a = rows_from(all->a, row, all->as[1], all->dtype);
        p.y = (void *)(uintptr_t)rows_from(all->y, row, all->ys[1], all->y_dtype);
        if (p.sums)
            p.sums = (void *)(uintptr_t)rows_from(all->sums, row, all->sums_s, all->y_dtype);
        status = dsi_cuda_launch(
            s, family, name, suffix,
            (dsi_cuda_grid){.blocks = {tiles(p.n, tile), tiles(p.m, tile), dsi_cuda_loops(p.batch)},
                            .threads = {256, 1, 1}},
            &p);
    }
    return status;
}

/* Lines along k that hold whole vectors of 4 elements. */
static bool whole_lines(const void *p, int dtype, int64_t stride, int64_t batch_stride)
{
    return (uintptr_t)p % (4 * ds_dtype_size((ds_dtype)dtype)) == 0 && stride % 4 == 0 &&
           batch_stride % 4 == 0;
}

/* Steps along k, and k itself, have 32 bits in gemm_small.cu. */
static bool has_short_steps(const dsi_cuda_matmul_args *p)
{
    int64_t step = dsi_max(dsi_max(p->as[1], p->as[2]), p->bs[1]);
    return step <= INT32_MAX / 8 && p->k <= INT32_MAX / 8;
}

/* Few multiplications, which gemm_small.cu takes, unless there are tensor cores
 * and tiles of them are half full. */
static bool is_small(const dsi_cuda_matmul_args *p, bool mma)
{
    return p->batch * p->m * p->n * p->k <= SMALL && has_short_steps(p) &&
           (p->m + ROWS - 1) / ROWS <= dsi_cuda_most_yz() &&
           !(mma && p->m >= MMA_FULL && p->n >= MMA_FULL);
}

/* Few rows of more than a few elements. */
static bool is_low(const dsi_cuda_matmul_args *p)
{
    return p->m <= FEW_ROWS && p->k >= LONG_SUM && p->batch * p->m * p->n > FEW &&
           p->n < INT32_MAX && has_short_steps(p);
}

/* Places are of 32 bits: is_small bounds steps, and sizes by the product. */
static bool is_thin(const dsi_cuda_matmul_args *p)
{
    return p->sums && p->k <= K_THIN && p->batch == 1 && p->dtype == DS_F32 &&
           p->y_dtype == DS_F32 && !p->bias && p->n % 4 == 0 && p->ys[2] == 1 &&
           whole_lines(p->y, DS_F32, p->ys[1], 0) && whole_lines(p->b, DS_F32, p->bs[1], 0) &&
           p->m * dsi_max(p->as[1], p->ys[1]) < INT32_MAX;
}

static ds_status launch_columns(dsi_stream *s, const dsi_cuda_matmul_args *all)
{
    dsi_cuda_matmul_args p = *all;
    if (is_thin(&p))
        return dsi_cuda_hold(
            s, DSI_CUDA_COLUMNS,
            dsi_cuda_blocks((int64_t)tiles(p.n, 128) * tiles(p.m, K_THIN_ROWS), 256), &p);
    p.parts = p.k > 16 ? 8 : p.k > 8 ? 4 : p.k > 4 ? 2 : 1;
    dsi_cuda_grid grid = dsi_cuda_blocks(
        (int64_t)tiles(p.n, 32) * tiles(p.m, (int64_t)ROWS * 8 / p.parts), 256);
    grid.blocks[2] = dsi_cuda_loops(p.batch);
    return dsi_cuda_hold(s, DSI_CUDA_COLUMNS, grid, &p);
}

static ds_status launch_rows(dsi_stream *s, const dsi_cuda_matmul_args *all)
{
    dsi_cuda_matmul_args p = *all;
    p.whole = whole_lines(p.a, p.dtype, p.as[1], p.as[0]) &&
              whole_lines(p.b, p.dtype, p.bs[2], p.bs[0]);
    dsi_cuda_grid grid = dsi_cuda_blocks((p.n + 3) / 4, 128);
    grid.blocks[1] = tiles(p.m, ROWS), grid.blocks[2] = dsi_cuda_loops(p.batch);
    return dsi_cuda_hold(s, DSI_CUDA_ROWS, grid, &p);
}

/* Chooses the kernel. bias is read by all of them, in its own dtype. */
static ds_status launch_matmul(dsi_stream *s, const dsi_view *a, const dsi_view *b,
                               const dsi_cuda_matmul_args *p)
{
    bool mma = dsi_cuda_matmul_lines_takes(s, a, b);
    const char *suffix = dsi_cuda_suffix(a->dtype);
    bool small = is_small(p, mma) || is_low(p);
    if (small && p->k >= LONG_SUM && p->as[2] == 1 && p->bs[1] == 1) return launch_rows(s, p);
    if (small && p->bs[2] == 1) return launch_columns(s, p);
    int64_t count = p->batch * p->m * p->n;
    if (mma) return dsi_cuda_matmul_lines(s, *a, *b, p);
    if (count <= FEW && p->k >= LONG_SUM)
        return dsi_cuda_launch(s, DSI_CUDA_gemm, "matmul_few", suffix,
                               dsi_cuda_blocks((count + 3) / 4, 128), p);
    return launch_tiles(s, DSI_CUDA_gemm, "matmul", suffix, a->dtype == DS_F64 ? 32 : 64, p);
}

static dsi_cuda_matmul_args matmul_args(const dsi_view *a, const dsi_view *b, const dsi_view *y)
{
    dsi_cuda_matmul_args p = {.m = y->d[1],
                              .n = y->d[2],
                              .k = a->d[2],
                              .batch = y->d[0],
                              .a = a->p,
                              .b = b->p,
                              .y = y->p,
                              .dtype = (int)a->dtype,
                              .y_dtype = (int)y->dtype};
    for (int i = 0; i < 3; i++) p.as[i] = a->s[i], p.bs[i] = b->s[i], p.ys[i] = y->s[i];
    return p;
}

ds_status dsi_cuda_matmul(dsi_stream *s, dsi_view a, dsi_view b, dsi_view bias, dsi_view y)
{
    dsi_cuda_matmul_args p = matmul_args(&a, &b, &y);
    p.bias = bias.p, p.bias_dtype = (int)bias.dtype, p.bias_s = bias.p ? bias.s[0] : 0;
    bool done = false;
    ds_status status = dsi_cuda_floating("matmul", a.dtype);
    if (status == DS_OK) status = dsi_cuda_cublas_matmul(s, &p, &done);
    return status == DS_OK && !done ? launch_matmul(s, &a, &b, &p) : status;
}

/* matmul_columns adds up what it reads of a. Else a column of ones beside b, in
 * a tile that has a column to spare, gives the sums without a second kernel.
 * Long sums of few elements, and products that tensor cores or cublasLt take,
 * have other kernels. */
ds_status dsi_cuda_matmul_sums(dsi_stream *s, dsi_view a, dsi_view b, dsi_view y, dsi_view sums)
{
    dsi_cuda_matmul_args p = matmul_args(&a, &b, &y);
    int64_t tile = a.dtype == DS_F64 ? 32 : 64;
    bool few = p.m * p.n <= FEW && p.k >= LONG_SUM, spare = p.n % tile && p.m;
    bool fits = p.batch == 1 && y.dtype == sums.dtype && a.dtype <= DS_BF16;
    p.sums = sums.p, p.sums_s = sums.s[0];
    bool mma = dsi_cuda_matmul_lines_takes(s, &a, &b);
    if (fits && p.m && p.n && p.bs[2] == 1 && is_small(&p, mma)) return launch_columns(s, &p);
    if (few || !spare || !fits || mma ||
        (double)p.m * (double)p.n * (double)p.k >= DSI_CUBLAS_LEAST) {
        dsi_view line = {sums.p, sums.dtype, 3, {1, p.m, 1}, {0, sums.s[0], 0}};
        ds_status status = dsi_cuda_matmul(s, a, b, (dsi_view){.p = NULL}, y);
        return status == DS_OK ? dsi_cuda_reduce_op(s, DSI_SUM, 1, a, line, (dsi_view){.p = NULL})
                               : status;
    }
    return launch_tiles(s, DSI_CUDA_gemm, "matmul", dsi_cuda_suffix(a.dtype), tile, &p);
}
