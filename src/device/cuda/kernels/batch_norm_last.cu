/* device/cuda/kernels/batch_norm_last.cu: batch norm of float32 and 16 bits where
 * channels are neighbours in memory; formulas and sums as in batch_norm.cu.
 *
 * A thread has a column of 16 bytes, N channels, and every step-th row of its
 * block's part: what depends on the channel alone is computed once. All loads
 * are 16 bytes, R rows at a time. Blocks: tiles of `width` columns, parts of the
 * rows.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "batch_norm.cuh"
#include "pack.cuh"

#define COLUMNS 8             /* of 16 bytes in a block, at most */
#define MOST    (COLUMNS * 8) /* channels of a block */

/* This thread's share of a block's part. */
struct last_share {
    int lane;          /* its column in the block */
    long long channel; /* the first of its column */
    unsigned row, end, step;
};
template <class T> DEVICE last_share share_of(const dsi_cuda_batch_norm_args &P)
{
    last_share s;
    unsigned begin = blockIdx.y * P.part_rows;
    s.lane = threadIdx.x % P.width, s.step = 256 / P.width;
    s.channel = (blockIdx.x * (long long)P.width + s.lane) * pack<T>::N;
    s.row = begin + threadIdx.x / P.width, s.end = min(begin + P.part_rows, P.rows);
    if (s.channel >= P.channels) s.row = s.end;
    return s;
}

/* The channel of thread t < width N; -1: none. */
template <class T> DEVICE long long channel_of(const dsi_cuda_batch_norm_args &P)
{
    int t = threadIdx.x, n = P.width * pack<T>::N;
    long long channel = blockIdx.x * (long long)n + t;
    return t < n && channel < P.channels ? channel : -1;
}

/* R of the share's rows from s.row on, of an operand whose rows are `stride`
 * elements apart; zeros behind the last. */
template <int R, class T>
DEVICE void rows_load(pack<T> (&v)[R], const void *p, long long stride, const last_share &s)
{
#pragma unroll
    for (int i = 0; i < R; i++) {
        unsigned row = s.row + i * s.step;
        v[i] = row < s.end ? pack_load((const T *)p + row * stride + s.channel) : pack<T>{};
    }
}

template <class T> DEVICE float rounded_to(float v)
{
    T t;
    down(v, &t);
    return up(t);
}

/* The sum over the block of v of each channel, in thread t < width N that of
 * channel t. */
template <int N> DEVICE double block_total(double (&v)[N], int width, double (*shared)[MOST])
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
#pragma unroll 1
        for (int o = 16; o >= width; o /= 2) v[i] += __shfl_xor_sync(ALL_LANES, v[i], o);
        if (lane < width) shared[warp][lane * N + i] = v[i];
    }
    __syncthreads();
    if ((int)threadIdx.x < width * N)
        for (int i = 0; i < 8; i++) sum += shared[i][threadIdx.x];
    __syncthreads();
    return sum;
}

DEVICE void part_store(const dsi_cuda_batch_norm_args &P, long long channel, double s1, double s2)
{
    double *to = P.part + (channel * P.parts + blockIdx.y) * 2;
    if (channel >= 0) to[0] = s1, to[1] = s2;
}

/* ---- statistics ---- */

/* Of `count` rows of N channels, less `shift`, a value of theirs: without it
 * floats would lose the digits of a deviation that is small beside the mean.
 * squares: of differences from the mean. */
template <int N> struct moments {
    float count, shift[N], mean[N], squares[N];
};

template <int R, class T> DEVICE void moments_add(moments<pack<T>::N> &m, const pack<T> (&v)[R])
{
    constexpr int N = pack<T>::N;
    float x[R][N], w = R / (m.count + R), both = m.count * w;
#pragma unroll
    for (int r = 0; r < R; r++) unpack(x[r], v[r]);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float sum = 0, squares = 0;
#pragma unroll
        for (int r = 0; r < R; r++) x[r][i] -= m.shift[i], sum += x[r][i];
        float mean = sum * (1.0f / R), d = mean - m.mean[i];
#pragma unroll
        for (int r = 0; r < R; r++) squares += (x[r][i] - mean) * (x[r][i] - mean);
        m.mean[i] += d * w, m.squares[i] += squares + d * d * both;
    }
    m.count += R;
}

template <class T> DEVICE void batch_stats_last(const dsi_cuda_batch_norm_args &P)
{
    constexpr int N = pack<T>::N, R = 4;
    SHARED(double, shared, [8][MOST]);
    SHARED(double, mean, [MOST]);
    last_share s = share_of<T>(P);
    moments<N> m = {};
    pack<T> first[1];
    rows_load(first, P.a, P.row[0], s);
    unpack(m.shift, first[0]);
    unsigned rows = min(P.part_rows, P.rows - blockIdx.y * P.part_rows);
#pragma unroll 1
    for (; s.row + (R - 1) * s.step < s.end; s.row += R * s.step) {
        pack<T> v[R];
        rows_load(v, P.a, P.row[0], s);
        moments_add(m, v);
    }
#pragma unroll 1
    for (; s.row < s.end; s.row += s.step) {
        pack<T> v[1];
        rows_load(v, P.a, P.row[0], s);
        moments_add(m, v);
    }
    double v[N];
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = (double)m.count * ((double)m.shift[i] + (double)m.mean[i]);
    double sum = block_total(v, P.width, shared);
    if (threadIdx.x < MOST) mean[threadIdx.x] = sum / rows;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) {
        double d = (double)m.shift[i] + (double)m.mean[i] - mean[s.lane * N + i];
        v[i] = (double)m.squares[i] + (double)m.count * d * d;
    }
    double squares = block_total(v, P.width, shared);
    part_store(P, channel_of<T>(P), sum, squares);
}

/* ---- sums of dx; a: dy, b: x ---- */

/* relu: dy counts where the ReLU of x's batch norm lets it through. */
template <class T, bool RELU> DEVICE void batch_norm_sums_last(const dsi_cuda_batch_norm_args &P)
{
    constexpr int N = pack<T>::N, R = 4;
    SHARED(double, shared, [8][MOST]);
    last_share s = share_of<T>(P);
    float mean[N], factor[N], term[N];
    double s1[N] = {}, s2[N] = {};
#pragma unroll
    for (int i = 0; i < N; i++) {
        bool in = s.row < s.end;
        mean[i] = in ? line_at<float>(P.mean, s.channel + i, 0) : 0;
        factor[i] = RELU && in ? line_at<float>(P.factor, s.channel + i, 0) : 0;
        term[i] = RELU && in ? line_at<float>(P.term, s.channel + i, 0) : 0;
    }
#pragma unroll 1
    while (s.row < s.end) {
        float run1[N] = {}, run2[N] = {};
#pragma unroll 1
        for (int k = 0; k < RUN && s.row < s.end; k += R, s.row += R * s.step) {
            pack<T> dy[R], x[R];
            rows_load(dy, P.a, P.row[0], s), rows_load(x, P.b, P.row[1], s);
#pragma unroll
            for (int r = 0; r < R; r++) {
                float g[N], v[N];
                unpack(g, dy[r]), unpack(v, x[r]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    float d = v[i] - mean[i];
                    if (RELU)
                        g[i] = relu_dx_of(rounded_to<T>(normal(d, factor[i], term[i])), g[i]);
                    run1[i] += g[i], run2[i] += g[i] * d;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < N; i++) s1[i] += (double)run1[i], s2[i] += (double)run2[i];
    }
    double sum1 = block_total(s1, P.width, shared), sum2 = block_total(s2, P.width, shared);
    part_store(P, channel_of<T>(P), sum1, sum2);
}

/* ---- y and dx ---- */

/* y = (x - mean) factor + term; dx = (dy - (x - mean) slope - share) factor,
 * of RELU where y is positive alone, y + b */
struct last_factors {
    float mean[MOST], factor[MOST], term[MOST], slope[MOST], share[MOST];
};

/* In shared memory, by a thread a channel; ends with a barrier. */
template <class T, bool DX, bool RELU>
DEVICE void factors_of(const dsi_cuda_batch_norm_args &P, last_factors &f)
{
    int t = threadIdx.x;
    long long c = channel_of<T>(P);
    double count = (double)P.rows;
    if (c >= 0) {
        float rstd = line_at<float>(P.rstd, c, 1);
        f.mean[t] = line_at<float>(P.mean, c, 0);
        f.factor[t] = rstd * line_at<float>(P.weight, c, 1);
        if (!DX) f.term[t] = line_at<float>(P.bias, c, 0);
        if (DX && RELU)
            f.factor[t] = line_at<float>(P.factor, c, 0), f.term[t] = line_at<float>(P.term, c, 0);
        if (DX && P.batch) {
            f.share[t] = (float)(P.sums[c * 2] / count);
            f.slope[t] = rstd * rstd * (float)(P.sums[c * 2 + 1] / count);
        }
    }
    __syncthreads();
}

/* a: x, b: added to y (optional) of RELU; or for dx a: dy, b: x, which is read
 * if the sums are wanted */
template <class T, bool DX, bool RELU>
DEVICE void batch_norm_apply(const dsi_cuda_batch_norm_args &P)
{
    constexpr int N = pack<T>::N, R = 4;
    SHARED(last_factors, f, [1]);
    factors_of<T, DX, RELU>(P, f[0]);
    last_share s = share_of<T>(P);
    float mean[N], factor[N], term[N], slope[N], share[N];
    bool sums = DX && P.batch, second = sums || (RELU && P.b);
#pragma unroll
    for (int i = 0; i < N; i++) {
        int k = s.lane * N + i;
        mean[i] = f[0].mean[k], factor[i] = f[0].factor[k];
        term[i] = !DX || RELU ? f[0].term[k] : 0;
        share[i] = sums ? f[0].share[k] : 0, slope[i] = sums ? f[0].slope[k] : 0;
    }
#pragma unroll 1
    for (; s.row < s.end; s.row += R * s.step) {
        pack<T> a[R], b[R] = {};
        rows_load(a, P.a, P.row[0], s);
        if (second) rows_load(b, P.b, P.row[1], s);
#pragma unroll
        for (int r = 0; r < R; r++) {
            unsigned row = s.row + r * s.step;
            float v[N], x[N];
            unpack(v, a[r]), unpack(x, b[r]);
            if (row >= s.end) continue;
#pragma unroll
            for (int i = 0; i < N; i++) {
                float y = normal((DX ? x[i] : v[i]) - mean[i], factor[i], term[i]);
                if (RELU) y = rounded_to<T>(y);
                if (DX && RELU) v[i] = relu_dx_of(y, v[i]);
                if (sums) v[i] -= share[i] + (x[i] - mean[i]) * slope[i];
                if (DX) v[i] *= factor[i];
                if (!DX) v[i] = y;
                if (!DX && RELU) v[i] = relu_of(second ? rounded_to<T>(y + x[i]) : y);
            }
            pack_store((T *)P.y + row * P.row[2] + s.channel, v);
        }
    }
}

#define BATCH_NORM_LAST(suffix, T) \
    KERNEL(batch_stats_last_##suffix, dsi_cuda_batch_norm_args, 256) { batch_stats_last<T>(P); } \
    DIRECTIONS(, suffix, T, false) \
    DIRECTIONS(relu_, suffix, T, true)
#define DIRECTIONS(relu, suffix, T, RELU) \
    KERNEL(batch_norm_##relu##sums_last_##suffix, dsi_cuda_batch_norm_args, 256) \
    { \
        batch_norm_sums_last<T, RELU>(P); \
    } \
    KERNEL(batch_norm_##relu##last_##suffix, dsi_cuda_batch_norm_args, 256) \
    { \
        batch_norm_apply<T, false, RELU>(P); \
    } \
    KERNEL(batch_norm_##relu##dx_last_##suffix, dsi_cuda_batch_norm_args, 256) \
    { \
        batch_norm_apply<T, true, RELU>(P); \
    }
BATCH_NORM_LAST(f32, float)
BATCH_NORM_LAST(f16, __half)
BATCH_NORM_LAST(bf16, __nv_bfloat16)
