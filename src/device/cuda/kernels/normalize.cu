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
#include "vector.cuh"

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
        C w = line_at<C>(P.weight, c, 1) + (C)P.term;
        store<C>(P.y, P.dtype, x + c, v * w + line_at<C>(P.bias, c, 0));
    }
    if (lane) return;
    if (P.mean.p) store<C>(P.mean.p, P.mean.dtype, row * P.mean.s, mean);
    if (P.rstd.p) store<C>(P.rstd.p, P.rstd.dtype, row * P.rstd.s, rstd);
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

/* dw and db: the sums of the parts. Blocks of 32 columns x 8: each thread adds
 * every 8th part, then the 8 sums are added in order. */
KERNEL(layer_norm_dw_sum, dsi_cuda_norm_args, 256)
{
    SHARED(double, part, [256]);
    long long column = blockIdx.x * 32ll + threadIdx.x % 32;
    double dw = 0, db = 0;
    if (column < P.columns)
#pragma unroll 4
        for (long long i = threadIdx.x / 32; i < P.parts; i += 8) {
            const double *from = P.sums + i * 2 * P.columns + column;
            dw += from[0], db += from[P.columns];
        }
    dw = columns_total(dw, 32, part), db = columns_total(db, 32, part);
    if (threadIdx.x >= 32 || column >= P.columns) return;
    if (P.dw.p) store<double>(P.dw.p, P.dw.dtype, column * P.dw.s, dw);
    if (P.db.p) store<double>(P.db.p, P.db.dtype, column * P.db.s, db);
}

/* ---- rows of aligned vectors ----
 *
 * As above, for at most 32 columns a thread of a team: a row stays in registers,
 * and is read once. Weight and bias have the dtype of x. */

#define IN_ROW(T) \
    enum { N = vector_of<T>::N, K = 32 / N }; \
    int lane = threadIdx.x % P.team
#define COLUMN(k) ((lane + (k) * P.team) * N)

/* Elements c .. of a row from `at` on; 0 beyond it. */
template <class T>
DEVICE void row_load(const dsi_cuda_norm_args &P, float (&v)[32 / vector_of<T>::N][vector_of<T>::N],
                     const void *p, long long at)
{
    IN_ROW(T);
UNROLL
    for (int k = 0; k < K; k++) {
        if (COLUMN(k) < P.columns)
            vector_load<T>(v[k], p, at + COLUMN(k));
        else
UNROLL
            for (int e = 0; e < N; e++) v[k][e] = 0;
    }
}

/* Stores v, and rounds it to T as it is stored. */
template <class T>
DEVICE void vector_round(void *p, long long i, float (&v)[vector_of<T>::N])
{
    uint4 bits = vector_pack<T>(v);
    *(uint4 *)((T *)p + i) = bits;
    vector_unpack<T>(v, bits);
}

template <class T>
DEVICE void line_vector(float (&to)[vector_of<T>::N], const dsi_cuda_line &w, int c, float missing)
{
UNROLL
    for (int e = 0; e < vector_of<T>::N; e++) to[e] = missing;
    if (w.p) vector_load<T>(to, w.p, c);
}

/* x, a row, becomes its norm, as it is stored. */
template <class T>
DEVICE void row_normalise(const dsi_cuda_norm_args &P,
                          float (&x)[32 / vector_of<T>::N][vector_of<T>::N], long long row,
                          float *part)
{
    IN_ROW(T);
    float mean = 0, squares = 0;
    if (P.mean.p) {
UNROLL
        for (int k = 0; k < K; k++)
UNROLL
            for (int e = 0; e < N; e++) mean += x[k][e];
        mean = team_sum(mean, P.team, part) / (float)P.columns;
    }
UNROLL
    for (int k = 0; k < K; k++)
        if (COLUMN(k) < P.columns)
UNROLL
            for (int e = 0; e < N; e++) x[k][e] -= mean, squares += x[k][e] * x[k][e];
    float rstd = 1 / sqrt_of(team_sum(squares, P.team, part) / (float)P.columns + (float)P.eps);
UNROLL
    for (int k = 0; k < K; k++) {
        float w[N], b[N];
        if (COLUMN(k) >= P.columns) continue;
        line_vector<T>(w, P.weight, COLUMN(k), 1), line_vector<T>(b, P.bias, COLUMN(k), 0);
UNROLL
        for (int e = 0; e < N; e++) x[k][e] = x[k][e] * rstd * (w[e] + (float)P.term) + b[e];
        vector_round<T>(P.y, row * P.columns + COLUMN(k), x[k]);
    }
    if (lane) return;
    if (P.mean.p) store<float>(P.mean.p, P.mean.dtype, row * P.mean.s, mean);
    if (P.rstd.p) store<float>(P.rstd.p, P.rstd.dtype, row * P.rstd.s, rstd);
}

template <class T> DEVICE void layer_norm_rows(const dsi_cuda_norm_args &P)
{
    SHARED(float, part, [8]);
    float x[32 / vector_of<T>::N][vector_of<T>::N];
    long long row = team_item(P.team);
    if (row >= P.rows) return;
    row_load<T>(P, x, P.a, row * P.columns);
    row_normalise<T>(P, x, row, part);
}

/* A row, which stays in registers from the first norm to the last. */
template <class T> DEVICE void layer_norm_sum(const dsi_cuda_norm_sum &S)
{
    const dsi_cuda_norm_args &P = S.of[S.first];
    IN_ROW(T);
    SHARED(float, part, [8]);
    float x[K][N];
    long long row = team_item(P.team);
    if (row >= P.rows) return;
    row_load<T>(P, x, S.a, row * P.columns);
#pragma unroll 1
    for (int i = S.first; i < 2; i++) {
UNROLL
        for (int k = 0; k < K && i; k++) {
            float other[N];
            if (COLUMN(k) >= P.columns) continue;
            vector_load<T>(other, S.other, row * P.columns + COLUMN(k));
UNROLL
            for (int e = 0; e < N; e++) x[k][e] += other[e];
            vector_round<T>(S.sum, row * P.columns + COLUMN(k), x[k]);
        }
        if (S.of[i].y) row_normalise<T>(S.of[i], x, row, part);
    }
}

template <class T> DEVICE void layer_norm_rows_dx(const dsi_cuda_norm_args &P)
{
    IN_ROW(T);
    SHARED(float, part, [8]);
    long long row = team_item(P.team);
    if (row >= P.rows) return;
    float mean = line_at<float>(P.mean, row, 0), rstd = line_at<float>(P.rstd, row, 1), s1 = 0,
          s2 = 0, g[K][N], h[K][N];
    row_load<T>(P, g, P.a, row * P.columns), row_load<T>(P, h, P.b, row * P.columns);
UNROLL
    for (int k = 0; k < K; k++) {
        float w[N];
        if (COLUMN(k) >= P.columns) continue;
        line_vector<T>(w, P.weight, COLUMN(k), 1);
UNROLL
        for (int e = 0; e < N; e++) {
            g[k][e] *= w[e], h[k][e] = (h[k][e] - mean) * rstd;
            s1 += g[k][e], s2 += g[k][e] * h[k][e];
        }
    }
    s1 = P.mean.p ? team_sum(s1, P.team, part) / (float)P.columns : 0.f;
    s2 = team_sum(s2, P.team, part) / (float)P.columns;
UNROLL
    for (int k = 0; k < K; k++) {
        if (COLUMN(k) >= P.columns) continue;
UNROLL
        for (int e = 0; e < N; e++) g[k][e] = rstd * (g[k][e] - s1 - h[k][e] * s2);
        vector_store<T>(P.y, row * P.columns + COLUMN(k), g[k]);
    }
}

/* The sums over the 8 rows of threads of a block, for those of row 0, which
 * write them. */
template <int N>
DEVICE void vectors_total(const dsi_cuda_norm_args &P, const float (&v)[N],
                          float (*shared)[32 * N], double *to)
{
    int lane = threadIdx.x % 32;
UNROLL
    for (int e = 0; e < N; e++) shared[threadIdx.x / 32][e * 32 + lane] = v[e];
    __syncthreads();
    if (threadIdx.x < 32 && (blockIdx.x * 32ll + lane) * N < P.columns)
UNROLL
        for (int e = 0; e < N; e++) {
            double sum = 0;
            for (int r = 0; r < 8; r++) sum += (double)shared[r][e * 32 + lane];
            to[e] = sum;
        }
    __syncthreads();
}

/* Blocks of 32 x N columns x 8 rows: as layer_norm_dw. */
template <class T> DEVICE void layer_norm_rows_dw(const dsi_cuda_norm_args &P)
{
    enum { N = vector_of<T>::N };
    SHARED(float, shared, [8][32 * N]);
    long long column = (blockIdx.x * 32ll + threadIdx.x % 32) * N, row = blockIdx.y * P.part_rows,
              end = row + P.part_rows < P.rows ? row + P.part_rows : P.rows;
    float dw[N] = {}, db[N] = {};
    if (column < P.columns)
#pragma unroll 2
        for (row += threadIdx.x / 32; row < end; row += 8) {
            float g[N], x[N], mean = line_at<float>(P.mean, row, 0),
                              rstd = line_at<float>(P.rstd, row, 1);
            vector_load<T>(g, P.a, row * P.columns + column);
            vector_load<T>(x, P.b, row * P.columns + column);
UNROLL
            for (int e = 0; e < N; e++) dw[e] += g[e] * ((x[e] - mean) * rstd), db[e] += g[e];
        }
    double *to = P.sums + blockIdx.y * 2 * P.columns + column;
    vectors_total<N>(P, dw, shared, to);
    vectors_total<N>(P, db, shared, to + P.columns);
}

#define LAYER_NORM_ROWS(suffix, T) \
    KERNEL(layer_norm_rows_##suffix, dsi_cuda_norm_args, 256) { layer_norm_rows<T>(P); } \
    KERNEL(layer_norm_sum_##suffix, dsi_cuda_norm_sum, 256) { layer_norm_sum<T>(P); } \
    KERNEL(layer_norm_rows_dx_##suffix, dsi_cuda_norm_args, 256) { layer_norm_rows_dx<T>(P); } \
    KERNEL(layer_norm_rows_dw_##suffix, dsi_cuda_norm_args, 256) { layer_norm_rows_dw<T>(P); }
LAYER_NORM_ROWS(f32, float)
LAYER_NORM_ROWS(f16, __half)
LAYER_NORM_ROWS(bf16, __nv_bfloat16)
