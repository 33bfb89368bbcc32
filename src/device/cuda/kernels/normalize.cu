/* device/cuda/kernels/normalize.cu: batch norm per channel of [N,C,I], layer
 * norm per row of [M,D].
 *
 *     batch norm   y = (x - mean[c]) rstd[c] weight[c] + bias[c]
 *     layer norm   y = (x - mean[row]) rstd[row] weight[d] + bias[d]
 *     RMS norm     the same with mean 0: layer norm without a mean
 *
 * Sums are kept in float for at most 64 additions, then in double.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "normalize.h"
#include "team.cuh"

#define RUN 64 /* additions in C before they go to a double */

template <class C> DEVICE C line_at(const dsi_cuda_line &v, long long i, C absent)
{
    return v.p ? load<C>(v.p, v.dtype, i * v.s) : absent;
}

/* ---- sums over channels: blocks of 256, `width` channels each --------------- */

/* The sum over the threads of a channel, in thread t % width. */
DEVICE double channel_total(double v, int width, double *part)
{
    int t = threadIdx.x;
    part[t] = v;
    __syncthreads();
#pragma unroll 1
    for (int o = 128; o >= width; o /= 2) {
        if (t < o) part[t] += part[t + o];
        __syncthreads();
    }
    v = part[t % width];
    __syncthreads();
    return v;
}

/* s1 = sum (a - p), s2 = sum (a - p) (b - m) over the elements of a channel; b
 * is read if s2 is wanted. */
template <class C, bool BOTH>
DEVICE void channel_sums(const dsi_cuda_norm_args &P, long long channel, C p, C m, double *part,
                         double *s1, double *s2)
{
    unsigned rows = channel < P.channels ? (unsigned)(P.n * P.inner) : 0, inner = (unsigned)P.inner,
             step = 256 / P.width, row = threadIdx.x / P.width;
    double sum1 = 0, sum2 = 0;
    while (row < rows) {
        C run1 = 0, run2 = 0;
#pragma unroll 1
        for (int i = 0; i < RUN && row < rows; i++, row += step) {
            long long n = row / inner, k = row % inner;
            C d = load<C>(P.a, P.dtype, n * P.as[0] + channel * P.as[1] + k * P.as[2]) - p;
            run1 += d;
            if (BOTH)
                run2 += d * (load<C>(P.b, P.dtype, n * P.bs[0] + channel * P.bs[1] + k * P.bs[2]) - m);
        }
        sum1 += (double)run1, sum2 += (double)run2;
    }
    *s1 = channel_total(sum1, P.width, part);
    if (BOTH) *s2 = channel_total(sum2, P.width, part);
}

/* mean, and the biased variance in rstd's place; a and b are x */
template <class C> DEVICE void batch_stats(const dsi_cuda_norm_args &P)
{
    SHARED(double, part, [256]);
    long long channel = blockIdx.x * (long long)P.width + threadIdx.x % P.width;
    double count = (double)P.n * (double)P.inner, s1, s2;
    channel_sums<C, false>(P, channel, (C)0, (C)0, part, &s1, &s2);
    C mean = (C)(s1 / count);
    channel_sums<C, true>(P, channel, mean, mean, part, &s1, &s2);
    if ((int)threadIdx.x >= P.width || channel >= P.channels) return;
    double off = s1 / count; /* by which the mean was rounded */
    store<double>(P.mean.p, P.mean.dtype, channel * P.mean.s, (double)mean + off);
    store<double>(P.rstd.p, P.rstd.dtype, channel * P.rstd.s, s2 / count - off * off);
}
FLOAT_AND_DOUBLE(batch_stats, dsi_cuda_norm_args, 256)

/* a: dy, b: x; sums: s1 = sum dy, s2 = sum dy (x - mean) */
template <class C> DEVICE void batch_norm_sums(const dsi_cuda_norm_args &P)
{
    SHARED(double, part, [256]);
    long long channel = blockIdx.x * (long long)P.width + threadIdx.x % P.width;
    C mean = channel < P.channels ? line_at<C>(P.mean, channel, (C)0) : (C)0;
    double s1, s2;
    channel_sums<C, true>(P, channel, (C)0, mean, part, &s1, &s2);
    if ((int)threadIdx.x >= P.width || channel >= P.channels) return;
    P.sums[channel] = s1, P.sums[P.channels + channel] = s2;
    double rstd = line_at<double>(P.rstd, channel, 1);
    if (P.dw.p) store<double>(P.dw.p, P.dw.dtype, channel * P.dw.s, s2 * rstd);
    if (P.db.p) store<double>(P.db.p, P.db.dtype, channel * P.db.s, s1);
}
FLOAT_AND_DOUBLE(batch_norm_sums, dsi_cuda_norm_args, 256)

template <class C> DEVICE void batch_norm(const dsi_cuda_norm_args &P)
{
    GRID_LOOP (i, P.e.count) {
        long long at[3];
        places(P.e, i, at);
        C x = load<C>(P.e.p[0], P.e.dtype[0], at[0]);
        C factor = line_at<C>(P.rstd, at[1], 1) * line_at<C>(P.weight, at[1], 1);
        C y = (x - line_at<C>(P.mean, at[1], 0)) * factor + line_at<C>(P.bias, at[1], 0);
        store<C>(P.e.p[2], P.e.dtype[2], at[2], y);
    }
}
FLOAT_AND_DOUBLE(batch_norm, dsi_cuda_norm_args, 256)

/* dx = rstd weight (dy - (s1 + (x - mean) rstd^2 s2) / count), without the sums
 * if mean and rstd are not x's own */
template <class C> DEVICE void batch_norm_dx(const dsi_cuda_norm_args &P)
{
    double count = (double)P.n * (double)P.inner;
    GRID_LOOP (i, P.e.count) {
        long long at[4];
        places(P.e, i, at);
        C g = load<C>(P.e.p[0], P.e.dtype[0], at[0]), rstd = line_at<C>(P.rstd, at[2], 1);
        if (P.batch) {
            C x = load<C>(P.e.p[1], P.e.dtype[1], at[1]) - line_at<C>(P.mean, at[2], 0);
            C s1 = (C)(P.sums[at[2]] / count), s2 = (C)(P.sums[P.channels + at[2]] / count);
            g -= s1 + x * rstd * rstd * s2;
        }
        store<C>(P.e.p[3], P.e.dtype[3], at[3], g * rstd * line_at<C>(P.weight, at[2], 1));
    }
}
FLOAT_AND_DOUBLE(batch_norm_dx, dsi_cuda_norm_args, 256)

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
    dw = channel_total(dw, 32, part), db = channel_total(db, 32, part);
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
