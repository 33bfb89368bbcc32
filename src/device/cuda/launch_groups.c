/* device/cuda/launch_groups.c: products of rows with the matrix of their group,
 * and the sorting of rows by group, of kernels.h.
 *
 * Which rows a group has is read by the kernels: a grid has as many row tiles as
 * there may be. Matrices are a table in the arguments, K_GROUPS of them a
 * launch, so that a recorded launch keeps them, as it does other operands.
 *
 * Invariants: the tile's edge here equals that of groups.cu. No block reads what
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

static bool groups_fit(const dsi_cuda_groups_args *p, int64_t rows)
{
    return rows < INT32_MAX && p->n <= 32 * dsi_cuda_most_yz();
}

/* All groups, K_GROUPS at a time. rows: those of a. */
static ds_status groups_launch(dsi_stream *s, dsi_cuda_groups_args *p, const dsi_view *w,
                               int64_t groups, int64_t rows)
{
    int64_t edge = p->dtype == DS_F64 ? 32 : 64;
    ds_status status = dsi_cuda_floating("group_matmul", (ds_dtype)p->dtype);
    if (status == DS_OK && !groups_fit(p, rows))
        status = dsi_fail(DS_EINVAL,
                          "group_matmul: %lld rows, %lld columns: expected fewer than 2^31, "
                          "and at most %lld",
                          (long long)rows, (long long)p->n, (long long)(32 * dsi_cuda_most_yz()));
    for (int64_t g = 0; g < groups && status == DS_OK; g += K_GROUPS) {
        int64_t n = dsi_min(groups - g, K_GROUPS);
        p->groups = (int)n;
        for (int64_t i = 0; i < n; i++) p->w[i] = w[g + i].p;
        int64_t tiles = p->over ? dsi_div_up(p->m, edge)
                                : dsi_min(rows, (rows + n * (edge - 1)) / edge);
        dsi_cuda_grid grid = dsi_cuda_blocks(p->n ? tiles : 0, 256);
        grid.blocks[1] = (unsigned)dsi_div_up(p->n, edge);
        grid.blocks[2] = p->over ? (unsigned)n : 1;
        status = dsi_cuda_launch(s, DSI_CUDA_groups, "groups", dsi_cuda_suffix((ds_dtype)p->dtype),
                                 grid, p);
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
