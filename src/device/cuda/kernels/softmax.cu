/* device/cuda/kernels/softmax.cu: softmax, its logarithm, cross entropy, over
 * dimension 1 of [outer, C, inner]. A team, a warp or a block, takes a row.
 *
 *     softmax        y = exp(x - max) / sum,     dx = y (dy - sum of dy y)
 *     log_softmax    y = x - max - log sum,      dx = dy - exp(y) sum of dy
 *     cross entropy  lse = max + log sum exp(x - max), loss = lse - x[label]
 *
 * A NaN makes its row NaN; so does a row of nothing but -inf, as in PyTorch.
 * SPDX-License-Identifier: MIT */
#include "entropy.cuh"
#include "vector.cuh"

/* The row's maximum, and the sum of exp(x - max). */
template <class C>
DEVICE void row_norm(const void *p, int dtype, long long x, long long step, long long n, int team,
                     C *part, C *most, C *sum)
{
    C m = -(C)INFINITY, s = 0;
    int lane = threadIdx.x % team;
#pragma unroll 1
    for (long long c = lane; c < n; c += team) {
        C v = load<C>(p, dtype, x + c * step);
        m = v > m ? v : m;
    }
    m = team_max(m, team, part);
#pragma unroll 1
    for (long long c = lane; c < n; c += team) s += exp_of(load<C>(p, dtype, x + c * step) - m);
    *most = m, *sum = team_sum(s, team, part);
}

template <class C> DEVICE void softmax(const dsi_cuda_softmax_args &P)
{
    SHARED(C, part, [8]);
    long long row = team_item(P.team);
    if (row >= P.rows) return;
    long long x = row_place(P.as, (unsigned)row, P.inner), y = row_place(P.ys, (unsigned)row, P.inner);
    C most, sum;
    row_norm<C>(P.a, P.dtype, x, P.as[1], P.columns, P.team, part, &most, &sum);
    C log_sum = P.log ? log_of(sum) : (C)0;
#pragma unroll 1
    for (long long c = threadIdx.x % P.team; c < P.columns; c += P.team) {
        C v = load<C>(P.a, P.dtype, x + c * P.as[1]) - most;
        store<C>(P.y, P.dtype, y + c * P.ys[1], P.log ? v - log_sum : exp_of(v) / sum);
    }
}
FLOAT_AND_DOUBLE(softmax, dsi_cuda_softmax_args, 128)

/* a: dy, b: y, y: dx */
template <class C> DEVICE void softmax_dx(const dsi_cuda_softmax_args &P)
{
    SHARED(C, part, [8]);
    long long row = team_item(P.team);
    if (row >= P.rows) return;
    long long dy = row_place(P.as, (unsigned)row, P.inner), y = row_place(P.bs, (unsigned)row, P.inner),
              dx = row_place(P.ys, (unsigned)row, P.inner);
    C sum = 0;
#pragma unroll 1
    for (long long c = threadIdx.x % P.team; c < P.columns; c += P.team) {
        C g = load<C>(P.a, P.dtype, dy + c * P.as[1]);
        sum += P.log ? g : g * load<C>(P.b, P.dtype, y + c * P.bs[1]);
    }
    sum = team_sum(sum, P.team, part);
#pragma unroll 1
    for (long long c = threadIdx.x % P.team; c < P.columns; c += P.team) {
        C g = load<C>(P.a, P.dtype, dy + c * P.as[1]), v = load<C>(P.b, P.dtype, y + c * P.bs[1]);
        store<C>(P.y, P.dtype, dx + c * P.ys[1], P.log ? g - exp_of(v) * sum : v * (g - sum));
    }
}
FLOAT_AND_DOUBLE(softmax_dx, dsi_cuda_softmax_args, 128)

template <class C> DEVICE C class_weight(const dsi_cuda_entropy_args &P, long long c)
{
    return P.weight ? load<C>(P.weight, P.weight_dtype, c * P.weight_s) : (C)1;
}

/* The loss of a row: into loss for NONE, else into part with its weight. */
template <class C>
DEVICE void entropy_row(const dsi_cuda_entropy_args &P, long long row, C *part)
{
    long long x = row_place(P.xs, (unsigned)row, P.inner), label = row_label(P, row);
    C most, sum, smooth = 0;
    row_norm<C>(P.x, P.dtype, x, P.xs[1], P.columns, P.team, part, &most, &sum);
    C log_sum = log_of(sum);
    if (P.smoothing > 0) {
#pragma unroll 1
        for (long long c = threadIdx.x % P.team; c < P.columns; c += P.team)
            smooth += class_weight<C>(P, c) *
                      (log_sum + (most - load<C>(P.x, P.dtype, x + c * P.xs[1])));
        smooth = team_sum(smooth, P.team, part);
    }
    if (threadIdx.x % P.team) return;
    C weight = label < 0 ? (C)0 : class_weight<C>(P, label), loss = 0;
    if (label >= 0) {
        loss = weight * (log_sum + (most - load<C>(P.x, P.dtype, x + label * P.xs[1])));
        if (P.smoothing > 0)
            loss = (C)(1 - P.smoothing) * loss + (C)(P.smoothing / (double)P.columns) * smooth;
    }
    store<C>(P.lse, P.stats_dtype, pair_place(P.lse_s, (unsigned)row, P.inner), most + log_sum);
    if (P.reduction == NONE)
        store<C>(P.loss, P.loss_dtype, pair_place(P.loss_s, (unsigned)row, P.inner), loss);
    else
        P.part[row] = (double)loss, P.part[P.rows + row] = (double)weight;
}

template <class C> DEVICE void entropy_rows(const dsi_cuda_entropy_args &P)
{
    SHARED(C, part, [8]);
    long long row = team_item(P.team);
    if (row < P.rows) entropy_row<C>(P, row, part);
}
FLOAT_AND_DOUBLE(entropy_rows, dsi_cuda_entropy_args, 128)

/* Of one block of `threads`: loss and divisor from part. */
DEVICE void entropy_total(const dsi_cuda_entropy_args &P, int threads, double *part)
{
    double loss = 0, weight = 0;
    if (P.reduction != NONE) {
#pragma unroll 1
        for (long long i = threadIdx.x; i < P.rows; i += threads)
            loss += P.part[i], weight += P.part[P.rows + i];
    }
    loss = team_sum(loss, threads, part);
    weight = team_sum(weight, threads, part);
    if (threadIdx.x) return;
    double divisor = P.reduction == MEAN ? weight : 1;
    store<double>(P.divisor, P.stats_dtype, 0, divisor);
    if (P.reduction != NONE) store<double>(P.loss, P.loss_dtype, 0, loss / divisor);
}

KERNEL(entropy_sum, dsi_cuda_entropy_args, 256)
{
    SHARED(double, total, [8]);
    entropy_total(P, 256, total);
}

/* dx = g ((1 - smoothing) w[label] (p - onehot) + smoothing / C (sum(w) p -
 * w)), p = softmax(x): computed again, because p from lse would lose the digits
 * that x has before the point. */
template <class C>
DEVICE void entropy_dx_row(const dsi_cuda_entropy_args &P, long long row, C dloss, C *part)
{
    long long x = row_place(P.xs, (unsigned)row, P.inner), dx = row_place(P.dxs, (unsigned)row, P.inner);
    long long label = row_label(P, row);
    C most, sum, weights = (C)P.columns, eps = (C)(P.smoothing / (double)P.columns);
    row_norm<C>(P.x, P.dtype, x, P.xs[1], P.columns, P.team, part, &most, &sum);
    if (P.smoothing > 0 && P.weight) {
        weights = 0;
#pragma unroll 1
        for (long long c = threadIdx.x % P.team; c < P.columns; c += P.team)
            weights += class_weight<C>(P, c);
        weights = team_sum(weights, P.team, part);
    }
    C g = dloss / load<C>(P.divisor, P.stats_dtype, 0);
    C own = label < 0 ? (C)0 : (C)(1 - P.smoothing) * class_weight<C>(P, label);
    C of_p = g * (own + eps * weights) / sum, of_w = g * eps;
#pragma unroll 1
    for (long long c = threadIdx.x % P.team; c < P.columns; c += P.team) {
        C v = rounded_product(exp_of(load<C>(P.x, P.dtype, x + c * P.xs[1]) - most), of_p);
        if (P.smoothing > 0) v -= of_w * class_weight<C>(P, c);
        if (c == label) v -= g * own;
        store<C>(P.dx, P.dtype, dx + c * P.dxs[1], label < 0 ? (C)0 : v);
    }
}

template <class C> DEVICE void entropy_dx(const dsi_cuda_entropy_args &P)
{
    SHARED(C, part, [8]);
    long long row = team_item(P.team);
    if (row >= P.rows) return;
    long long at = pair_place(P.loss_s, (unsigned)row, P.inner);
    entropy_dx_row<C>(P, row, load<C>(P.loss, P.loss_dtype, at), part);
}
FLOAT_AND_DOUBLE(entropy_dx, dsi_cuda_entropy_args, 128)

/* A cross entropy with P.lanes by one block. Nothing that is written is read
 * again, so that the block waits for memory once. */
KERNEL(entropy_lanes_f32, dsi_cuda_entropy_args, K_FEW_THREADS)
{
    SHARED(float, losses, [K_FEW_ROWS]);
    int lane = threadIdx.x % 32;
    lanes_labels labels = labels_of(P);
    float divisor = lanes_divisor(P, labels), g = (float)P.seed_value / divisor;
#pragma unroll 1
    for (int row = (int)threadIdx.x / 32; row < (int)P.rows; row += (int)blockDim.x / 32) {
        bool inside = lane < (int)P.columns;
        float v = -INFINITY;
        if (inside) v = load<float>(P.x, P.dtype, row_place(P.xs, row, P.inner) + lane * P.xs[1]);
        float dx = lanes_row(P, row, v, g, losses);
        if (P.dx && inside)
            store<float>(P.dx, P.dtype, row_place(P.dxs, row, P.inner) + lane * P.dxs[1], dx);
    }
    __syncthreads();
    if (threadIdx.x < 32) lanes_total(P, divisor, losses);
}

/* All in one block: few rows, a warp a row. part may be memory of seed or of
 * dx: it is read no more when they are written. */
template <class C> DEVICE void entropy_few(const dsi_cuda_entropy_args &P)
{
    SHARED(double, total, [8]);
    const int warps = K_FEW_THREADS / 32;
#pragma unroll 1
    for (long long row = threadIdx.x / 32; row < P.rows; row += warps)
        entropy_row<C>(P, row, (C *)total);
    __syncthreads();
    entropy_total(P, K_FEW_THREADS, total);
    if (threadIdx.x == 0 && P.seed) store<double>(P.seed, P.loss_dtype, 0, P.seed_value);
    if (!P.dx) return;
    __syncthreads();
    C dloss = load<C>(P.seed, P.loss_dtype, 0);
#pragma unroll 1
    for (long long row = threadIdx.x / 32; row < P.rows; row += warps)
        entropy_dx_row<C>(P, row, dloss, (C *)total);
}
FLOAT_AND_DOUBLE(entropy_few, dsi_cuda_entropy_args, K_FEW_THREADS)

/* ---- cross entropy of long rows ----
 *
 * Rows of aligned vectors, without weights and smoothing, a block a row: as
 * entropy_rows and entropy_dx, but x is read once. In 16 bits dx takes lse: what
 * that loses is far below an ulp of dx. */

#define LINE 256 /* threads */

/* The vector from column c on; -inf beyond the row. */
template <class T>
DEVICE void line_load(float (&v)[vector_of<T>::N], const void *p, long long x, long long c,
                      long long columns)
{
    enum { N = vector_of<T>::N };
    if (c + N <= columns) {
        vector_load<T>(v, p, x + c);
        return;
    }
UNROLL
    for (int e = 0; e < N; e++)
        v[e] = c + e < columns ? up(((const T *)p)[x + c + e]) : -INFINITY;
}

/* Maximum and sum of exp(x - max), as row_norm: the sum is scaled when the
 * maximum grows. */
template <class T>
DEVICE void line_norm(const dsi_cuda_entropy_args &P, long long x, float *part, float *most,
                      float *sum)
{
    enum { N = vector_of<T>::N };
    float m = -INFINITY, s = 0;
#pragma unroll 2
    for (long long c = threadIdx.x * N; c < P.columns; c += LINE * N) {
        float v[N], top = m;
        line_load<T>(v, P.x, x, c, P.columns);
UNROLL
        for (int e = 0; e < N; e++) top = v[e] > top ? v[e] : top;
        float shift = top == -INFINITY ? 0.f : top;
        s = top > m ? s * exp_of(m - shift) : s;
UNROLL
        for (int e = 0; e < N; e++) s += exp_of(v[e] - shift);
        m = top;
    }
    *most = team_max(m, LINE, part);
    float shift = *most == -INFINITY ? 0.f : *most;
    *sum = team_sum(s * exp_of(m - shift), LINE, part);
}

template <class T> DEVICE void entropy_lines(const dsi_cuda_entropy_args &P)
{
    SHARED(float, part, [8]);
    long long row = blockIdx.x, x = row * P.xs[0], label = row_label(P, row);
    float most, sum;
    line_norm<T>(P, x, part, &most, &sum);
    if (threadIdx.x) return;
    float log_sum = log_of(sum), loss = 0;
    if (label >= 0) loss = log_sum + (most - up(((const T *)P.x)[x + label]));
    store<float>(P.lse, P.stats_dtype, row * P.lse_s[0], most + log_sum);
    if (P.reduction == NONE)
        store<float>(P.loss, P.loss_dtype, row * P.loss_s[0], loss);
    else
        P.part[row] = (double)loss, P.part[P.rows + row] = label < 0 ? 0. : 1.;
}
KERNEL(entropy_lines_f32, dsi_cuda_entropy_args, LINE) { entropy_lines<float>(P); }
KERNEL(entropy_lines_f16, dsi_cuda_entropy_args, LINE) { entropy_lines<__half>(P); }
KERNEL(entropy_lines_bf16, dsi_cuda_entropy_args, LINE) { entropy_lines<__nv_bfloat16>(P); }

template <class T> DEVICE void entropy_lines_dx(const dsi_cuda_entropy_args &P)
{
    enum { N = vector_of<T>::N };
    SHARED(float, part, [8]);
    long long row = blockIdx.x, x = row * P.xs[0], dx = row * P.dxs[0], label = row_label(P, row);
    float shift, sum = 1;
    if (N == 4)
        line_norm<T>(P, x, part, &shift, &sum);
    else
        shift = load<float>(P.lse, P.stats_dtype, row * P.lse_s[0]);
    float g = load<float>(P.loss, P.loss_dtype, row * P.loss_s[0]) /
              load<float>(P.divisor, P.stats_dtype, 0);
    float of_p = g / sum;
#pragma unroll 2
    for (long long c = threadIdx.x * N; c < P.columns; c += LINE * N) {
        float v[N];
        line_load<T>(v, P.x, x, c, P.columns);
UNROLL
        for (int e = 0; e < N; e++) {
            v[e] = exp_of(v[e] - shift) * of_p - (c + e == label ? g : 0.f);
            if (label < 0) v[e] = 0;
        }
        if (c + N <= P.columns)
            vector_store<T>(P.dx, dx + c, v);
        else
UNROLL
            for (int e = 0; e < N; e++)
                if (c + e < P.columns) store<float>(P.dx, P.dtype, dx + c + e, v[e]);
    }
}
KERNEL(entropy_lines_dx_f32, dsi_cuda_entropy_args, LINE) { entropy_lines_dx<float>(P); }
KERNEL(entropy_lines_dx_f16, dsi_cuda_entropy_args, LINE) { entropy_lines_dx<__half>(P); }
KERNEL(entropy_lines_dx_bf16, dsi_cuda_entropy_args, LINE) { entropy_lines_dx<__nv_bfloat16>(P); }

/* ---- a part of the classes ---- */

/* Of float64 one by one. */
DEVICE void quad_load(double (&v)[K_PART], const void *p, int, long long i)
{
UNROLL
    for (int e = 0; e < K_PART; e++) v[e] = ((const double *)p)[i + e];
}
DEVICE void quad_store(void *p, int, long long i, const double (&v)[K_PART])
{
UNROLL
    for (int e = 0; e < K_PART; e++) ((double *)p)[i + e] = v[e];
}

/* dx = (exp(x - lse) - onehot(label)) scale; blocks go over rows along y. */
template <class C> DEVICE void entropy_part_dx(const dsi_cuda_entropy_part_args &P)
{
    long long c = (blockIdx.x * (long long)blockDim.x + threadIdx.x) * K_PART;
    if (c >= P.columns) return;
    bool whole = P.vectors && c + K_PART <= P.columns;
#pragma unroll 1
    for (long long row = blockIdx.y; row < P.rows; row += gridDim.y) {
        C v[K_PART], lse = load<C>(P.lse, P.dtype, row * P.lse_s),
                   scale = load<C>(P.scale, P.dtype, row * P.scale_s);
        long long x = row * P.x_s + c, dx = row * P.dx_s + c,
                  own = P.label[row * P.label_s] - P.first - c;
        if (whole)
            quad_load(v, P.x, P.dtype, x);
        else
UNROLL
            for (int e = 0; e < K_PART; e++)
                v[e] = c + e < P.columns ? load<C>(P.x, P.dtype, x + e) : (C)0;
UNROLL
        for (int e = 0; e < K_PART; e++)
            v[e] = (exp_of(v[e] - lse) - (e == own ? (C)1 : (C)0)) * scale;
        if (whole)
            quad_store(P.dx, P.dx_dtype, dx, v);
        else
UNROLL
            for (int e = 0; e < K_PART; e++)
                if (c + e < P.columns) store<C>(P.dx, P.dx_dtype, dx + e, v[e]);
    }
}
KERNEL(entropy_part_dx_f32, dsi_cuda_entropy_part_args, LINE) { entropy_part_dx<float>(P); }
KERNEL(entropy_part_dx_f64, dsi_cuda_entropy_part_args, LINE) { entropy_part_dx<double>(P); }
