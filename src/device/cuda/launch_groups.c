/* device/cuda/launch_groups.c: products of rows with the matrix of their group,
 * and the sorting of rows by group, of kernels.h.
 *
 * Which rows a group has is read by the kernels: a grid has as many row tiles as
 * there may be. One of these:
 *
 *     groups_rows      few rows: their time is that of reading the matrices
 *     groups_mma.cu    16 bits, compute capability 8.0, aligned lines
 *     groups           all else
 * Matrices are a table in the arguments, K_GROUPS of them a launch, so that a
 * recorded launch keeps them, as it does other operands.
 *
 * Invariants: tiles here equal those of the .cu files. No block reads what
 * another one of the same launch writes.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/int.h"
#include "kernels/groups.h"
#include "kernels/route.h"
#include "launch.h"
#include "operands.h"

ds_status dsi_cuda_group_rows(dsi_stream *s, dsi_view id, dsi_view begin, dsi_view row)
{
    dsi_cuda_sort_args a = {.id = id.p,
                            .begin = begin.p,
                            .row = row.p,
                            .count = id.d[0] * id.d[1],
                            .groups = begin.d[0] - 1,
                            .fault = dsi_cuda_fault(s)};
    if (a.count >= INT32_MAX - K_ROUTE_THREADS * 4 || a.groups >= INT32_MAX)
        return dsi_fail(DS_EINVAL, "group_rows: %lld rows of %lld groups: expected fewer than 2^31",
                        (long long)a.count, (long long)a.groups);
    return dsi_cuda_launch(s, DSI_CUDA_route, "route_sort", "",
                           dsi_cuda_blocks(a.groups, K_ROUTE_THREADS), &a);
}

/* ---- which kernel ----------------------------------------------------------- */

#define FEW_ROWS 4  /* a group on average: tiles would be a sixteenth full */
#define LEAST    16 /* columns, and sums, that are worth tensor cores */

typedef struct Kernel {
    dsi_cuda_family family;
    const char *name, *suffix;
    int64_t rows, columns; /* of a block */
    unsigned threads, shared;
} Kernel;

/* Whether all matrices that are there begin at multiples of `bytes`. */
static bool matrices_aligned(const dsi_view *w, int64_t groups, size_t bytes)
{
    for (int64_t g = 0; g < groups; g++)
        if ((uintptr_t)w[g].p % bytes) return false;
    return true;
}

/* Lines of unit stride, 16-byte aligned: operands of groups_mma.cu. */
static bool takes_mma(const dsi_stream *s, const dsi_cuda_groups_args *p, const dsi_view *w,
                      int64_t groups)
{
    const dsi_cuda_gpu *g = s->device->own;
    bool half = p->dtype == DS_F16 || p->dtype == DS_BF16;
    if (!half || g->capability < 80 || p->n < LEAST || p->n >= INT32_MAX) return false;
    if ((uintptr_t)p->a % 16 || p->as[1] != 1 || p->as[0] % 8) return false;
    if (p->over)
        return p->m >= LEAST && p->m < INT32_MAX && (uintptr_t)p->b % 16 == 0 && p->bs[1] == 1 &&
               p->bs[0] % 8 == 0;
    bool lines = (p->ws[0] == 1 && p->ws[1] % 8 == 0) || (p->ws[1] == 1 && p->ws[0] % 8 == 0);
    return p->k >= LEAST && p->k < INT32_MAX && lines && matrices_aligned(w, groups, 16);
}

/* And sets p->whole. rows: those of a. */
static Kernel kernel_of(const dsi_stream *s, dsi_cuda_groups_args *p, const dsi_view *w,
                        int64_t groups, int64_t rows)
{
    const char *dtype = dsi_cuda_dtype_suffix((ds_dtype)p->dtype);
    size_t size = ds_dtype_size((ds_dtype)p->dtype);
    if (!p->over && p->dtype != DS_F64 && p->as[1] == 1 && p->ws[0] == 1 &&
        rows <= FEW_ROWS * groups && p->k <= INT32_MAX / 8 && p->n <= 4 * dsi_cuda_most_yz()) {
        p->whole = (uintptr_t)p->a % (4 * size) == 0 && p->as[0] % 4 == 0 && p->ws[1] % 4 == 0 &&
                   matrices_aligned(w, groups, 4 * size);
        return (Kernel){DSI_CUDA_groups, "groups_rows", dtype, 4, 4, 128, 0};
    }
    if (takes_mma(s, p, w, groups)) {
        const long long *ys = p->over ? p->ws : p->ys;
        p->whole = ys[1] == 1 && ys[0] % 8 == 0 &&
                   (p->over ? matrices_aligned(w, groups, 16) : (uintptr_t)p->y % 16 == 0);
        const char *name = p->over ? "groups_tn" : p->ws[0] == 1 ? "groups_nt" : "groups_nn";
        return (Kernel){DSI_CUDA_groups_mma, name, dtype, 128, 128, 128, 65536};
    }
    int64_t edge = p->dtype == DS_F64 ? 32 : 64;
    return (Kernel){
        DSI_CUDA_groups, "groups", dsi_cuda_suffix((ds_dtype)p->dtype), edge, edge, 256, 0};
}

/* All groups, K_GROUPS at a time. rows: those of a. */
static ds_status groups_launch(dsi_stream *s, dsi_cuda_groups_args *p, const dsi_view *w,
                               int64_t groups, int64_t rows)
{
    ds_status status = dsi_cuda_floating("group_matmul", (ds_dtype)p->dtype);
    if (status != DS_OK) return status;
    Kernel c = kernel_of(s, p, w, groups, rows);
    int64_t most = c.columns * dsi_cuda_most_yz();
    if (rows >= INT32_MAX || p->n > most)
        return dsi_fail(DS_EINVAL,
                        "group_matmul: %lld rows, %lld columns: expected fewer than "
                        "2^31 rows, and at most %lld columns",
                        (long long)rows, (long long)p->n, (long long)most);
    for (int64_t g = 0; g < groups && status == DS_OK; g += K_GROUPS) {
        int64_t n = dsi_min(groups - g, K_GROUPS);
        p->groups = (int)n;
        for (int64_t i = 0; i < n; i++) p->w[i] = w[g + i].p;
        int64_t tiles = p->over ? dsi_div_up(p->m, c.rows)
                                : dsi_min(rows, (rows + n * (c.rows - 1)) / c.rows);
        dsi_cuda_grid grid = dsi_cuda_blocks(p->n ? tiles : 0, c.threads);
        grid.blocks[1] = (unsigned)dsi_div_up(p->n, c.columns);
        grid.blocks[2] = p->over ? (unsigned)n : 1;
        grid.shared = c.shared;
        status = dsi_cuda_launch(s, c.family, c.name, c.suffix, grid, p);
        p->begin += n;
    }
    return status;
}

ds_status dsi_cuda_group_matmul(dsi_stream *s, dsi_view x, dsi_view begin, const dsi_view *w,
                                dsi_view y)
{
    int64_t groups = begin.d[0] - 1;
    dsi_cuda_groups_args p = {.a = x.p, .y = y.p, .begin = begin.p, .dtype = (int)x.dtype};
    p.n = y.d[1], p.k = x.d[1];
    for (int i = 0; i < 2 && groups; i++) p.as[i] = x.s[i], p.ys[i] = y.s[i], p.ws[i] = w[0].s[i];
    return groups_launch(s, &p, w, groups, x.d[0]);
}

ds_status dsi_cuda_group_matmul_dw(dsi_stream *s, dsi_view a, dsi_view b, dsi_view begin,
                                   const dsi_view *w)
{
    int64_t groups = begin.d[0] - 1;
    dsi_cuda_groups_args p = {
        .a = a.p, .b = b.p, .begin = begin.p, .dtype = (int)a.dtype, .over = 1};
    p.m = a.d[1], p.n = b.d[1];
    const dsi_view *any = w; /* one that is there */
    while (any < w + groups && !any->p) any++;
    if (any == w + groups) return DS_OK;
    for (int i = 0; i < 2; i++) p.as[i] = a.s[i], p.bs[i] = b.s[i], p.ws[i] = any->s[i];
    return groups_launch(s, &p, w, groups, a.d[0]);
}
