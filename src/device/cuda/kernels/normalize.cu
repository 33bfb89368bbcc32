/* device/cuda/kernels/normalize.cu: layer norm per row of [M,D].
 *
 *     layer norm   y = (x - mean[row]) rstd[row] weight[d] + bias[d]
 *     RMS norm     the same with mean 0: layer norm without a mean
 *
 * Sums are kept in float for at most RUN additions, then in double.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "normalize.cuh"
#include "normalize.h"
#include "team.cuh"

/* ---- layer norm: a team a row -------------------------------------------------- */

template <class C> DEVICE void layer_norm(const dsi_cuda_norm_args &P)
{
    SHARED(C, part, [8]);
    long long row = team_item(P.team), x = row * P.columns;
    if (row >= P.rows) return;
    int lane = threadIdx.x % P.team;
    C mean = 0, squares = 0;
    if (P.mean.p) {
#pragma unroll 1
        for (long long c = lane; c < P.columns; c += P.team) mean += load<C>(P.a, P.dtype, x + c);
        mean = team_sum(mean, P.team, part) / (C)P.columns;
    }
#pragma unroll 1
    for (long long c = lane; c < P.columns; c += P.team) {
        C d = load<C>(P.a, P.dtype, x + c) - mean;
        squares += d * d;
    }
    C rstd = 1 / sqrt_of(team_sum(squares, P.team, part) / (C)P.columns + (C)P.eps);
#pragma unroll 1
    for (long long c = lane; c < P.columns; c += P.team) {
        C v = (load<C>(P.a, P.dtype, x + c) - mean) * rstd;
        store<C>(P.y, P.dtype, x + c, v * line_at<C>(P.weight, c, 1) + line_at<C>(P.bias, c, 0));
    }
    if (lane) return;
    if (P.mean.p) store<C>(P.mean.p, P.mean.dtype, row * P.mean.s, mean);
    store<C>(P.rstd.p, P.rstd.dtype, row * P.rstd.s, rstd);
}
FLOAT_AND_DOUBLE(layer_norm, dsi_cuda_norm_args, 256)

/* a: dy, b: x; with g = dy weight, h = (x - mean) rstd:
 * dx = rstd (g - mean(g) - h mean(g h)) */
template <class C> DEVICE void layer_norm_dx(const dsi_cuda_norm_args &P)
{
    SHARED(C, part, [8]);
    long long row = team_item(P.team), x = row * P.columns;
    if (row >= P.rows) return;
    int lane = threadIdx.x % P.team;
    C mean = line_at<C>(P.mean, row, 0), rstd = line_at<C>(P.rstd, row, 1), s1 = 0, s2 = 0;
#pragma unroll 1
    for (long long c = lane; c < P.columns; c += P.team) {
        C g = load<C>(P.a, P.dtype, x + c) * line_at<C>(P.weight, c, 1);
        s1 += g, s2 += g * (load<C>(P.b, P.dtype, x + c) - mean) * rstd;
    }
    s1 = P.mean.p ? team_sum(s1, P.team, part) / (C)P.columns : (C)0;
    s2 = team_sum(s2, P.team, part) / (C)P.columns;
#pragma unroll 1
    for (long long c = lane; c < P.columns; c += P.team) {
        C g = load<C>(P.a, P.dtype, x + c) * line_at<C>(P.weight, c, 1);
        C h = (load<C>(P.b, P.dtype, x + c) - mean) * rstd;
        store<C>(P.y, P.dtype, x + c, rstd * (g - s1 - h * s2));
    }
}
FLOAT_AND_DOUBLE(layer_norm_dx, dsi_cuda_norm_args, 256)

/* Blocks of 32 columns x 8 rows: 32 columns, part_rows rows; sums [part][2]
 * [columns] = sum of dy h and of dy over the rows of the part. */
template <class C> DEVICE void layer_norm_dw(const dsi_cuda_norm_args &P)
{
    SHARED(double, part, [256]);
    long long column = blockIdx.x * 32ll + threadIdx.x % 32, row = blockIdx.y * P.part_rows,
              end = row + P.part_rows < P.rows ? row + P.part_rows : P.rows;
    double dw = 0, db = 0;
    row += threadIdx.x / 32;
    while (row < end && column < P.columns) {
        C run1 = 0, run2 = 0;
#pragma unroll 1
        for (int i = 0; i < RUN && row < end; i++, row += 8) {
            C g = load<C>(P.a, P.dtype, row * P.columns + column);
            C x = load<C>(P.b, P.dtype, row * P.columns + column);
            run1 += g * ((x - line_at<C>(P.mean, row, 0)) * line_at<C>(P.rstd, row, 1));
            run2 += g;
        }
        dw += (double)run1, db += (double)run2;
    }
    dw = columns_total(dw, 32, part), db = columns_total(db, 32, part);
    if (threadIdx.x >= 32 || column >= P.columns) return;
    double *to = P.sums + blockIdx.y * 2 * P.columns + column;
    to[0] = dw, to[P.columns] = db;
}
FLOAT_AND_DOUBLE(layer_norm_dw, dsi_cuda_norm_args, 256)

/* dw and db: the sums of the parts, in their order */
KERNEL(layer_norm_dw_sum, dsi_cuda_norm_args, 256)
{
    GRID_LOOP (column, P.columns) {
        double dw = 0, db = 0;
#pragma unroll 1
        for (long long i = 0; i < P.parts; i++) {
            const double *from = P.sums + i * 2 * P.columns + column;
            dw += from[0], db += from[P.columns];
        }
        if (P.dw.p) store<double>(P.dw.p, P.dw.dtype, column * P.dw.s, dw);
        if (P.db.p) store<double>(P.db.p, P.db.dtype, column * P.db.s, db);
    }
}
