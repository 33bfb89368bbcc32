/* device/cuda/kernels/batch_norm.cu: batch norm per channel of [N,C,I], with any
 * strides; batch_norm_last.cu is for channels that are neighbours in memory.
 *
 *     y  = (x - mean[c]) rstd[c] weight[c] + bias[c]
 *     dx = rstd weight (dy - (s1 + (x - mean) rstd^2 s2) / count)
 *     s1 = sum dy, s2 = sum dy (x - mean)
 *
 * Sums over a channel are cut into parts, a block each, so that few channels
 * keep the GPU busy, too; a second kernel adds the parts in their order. The
 * statistics of a part are its sum and the squared differences from its own
 * mean, merged as Chan, Golub, LeVeque, Updating formulae and a pairwise
 * algorithm for computing sample variances (1979): no digits are lost where the
 * mean is large.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "batch_norm.cuh"
#include "team.cuh"

/* ---- sums of a part: blocks of 256 threads, `width` channels each ------------ */

/* A thread's rows (n, k) = (row / inner, row % inner) of a part. */
struct part_rows {
    unsigned row, end, step, n, k, dn, dk;
};
DEVICE part_rows rows_of_part(const dsi_cuda_batch_norm_args &P)
{
    part_rows r;
    unsigned begin = blockIdx.y * P.part_rows;
    r.step = 256 / P.width, r.row = begin + threadIdx.x / P.width;
    r.end = min(begin + P.part_rows, P.rows);
    r.n = r.row / P.inner, r.k = r.row % P.inner;
    r.dn = r.step / P.inner, r.dk = r.step % P.inner;
    return r;
}
DEVICE void next_row(part_rows &r, unsigned inner)
{
    r.row += r.step, r.n += r.dn, r.k += r.dk;
    if (r.k >= inner) r.k -= inner, r.n++;
}

/* s1 = sum (a - p), s2 = sum (a - p) (b - m) over a part of a channel; b is read
 * if s2 is wanted. Loads of R rows are under way at once. With relu, a counts
 * where the ReLU of b's batch norm lets it through. */
template <class C, bool BOTH>
DEVICE void channel_sums(const dsi_cuda_batch_norm_args &P, long long channel, C p, C m,
                         double *shared, double *s1, double *s2)
{
    constexpr int R = 4;
    part_rows r = rows_of_part(P);
    double sum1 = 0, sum2 = 0;
    C factor = 0, term = 0;
    if (channel >= P.channels) r.row = r.end;
    if (P.relu && channel < P.channels)
        factor = line_at<C>(P.factor, channel, 0), term = line_at<C>(P.term, channel, 0);
#pragma unroll 1
    while (r.row < r.end) {
        C run1 = 0, run2 = 0;
#pragma unroll 1
        for (int i = 0; i < RUN && r.row < r.end; i += R) {
            C d[R], e[R];
#pragma unroll
            for (int j = 0; j < R; j++, next_row(r, P.inner)) {
                bool in = r.row < r.end;
                long long at = r.n * P.as[0] + channel * P.as[1] + r.k * P.as[2];
                d[j] = in ? load<C>(P.a, P.dtype, at) - p : (C)0;
                at = r.n * P.bs[0] + channel * P.bs[1] + r.k * P.bs[2];
                e[j] = BOTH && in ? load<C>(P.b, P.dtype, at) - m : (C)0;
                if (BOTH && P.relu)
                    d[j] = relu_dx_of(rounded(P.dtype, normal(e[j], factor, term)), d[j]);
            }
#pragma unroll
            for (int j = 0; j < R; j++) run1 += d[j], run2 += d[j] * e[j];
        }
        sum1 += (double)run1, sum2 += (double)run2;
    }
    *s1 = columns_total(sum1, P.width, shared);
    if (BOTH) *s2 = columns_total(sum2, P.width, shared);
}

DEVICE void part_store(const dsi_cuda_batch_norm_args &P, long long channel, double s1, double s2)
{
    double *to = P.part + (channel * P.parts + blockIdx.y) * 2;
    to[0] = s1, to[1] = s2;
}

/* Rows of part i. */
DEVICE double rows_in_part(const dsi_cuda_batch_norm_args &P, unsigned i)
{
    return (double)min(P.part_rows, P.rows - i * P.part_rows);
}

/* a and b are x: the sum, and the squared differences from the part's mean */
template <class C> DEVICE void batch_stats(const dsi_cuda_batch_norm_args &P)
{
    SHARED(double, shared, [256]);
    long long channel = blockIdx.x * (long long)P.width + threadIdx.x % P.width;
    double count = rows_in_part(P, blockIdx.y), sum, s1, s2;
    channel_sums<C, false>(P, channel, (C)0, (C)0, shared, &sum, &s2);
    C mean = (C)(sum / count);
    channel_sums<C, true>(P, channel, mean, mean, shared, &s1, &s2);
    if ((int)threadIdx.x >= P.width || channel >= P.channels) return;
    double off = sum / count - (double)mean; /* by which the mean was rounded */
    part_store(P, channel, sum, s2 - count * off * off);
}
FLOAT_AND_DOUBLE(batch_stats, dsi_cuda_batch_norm_args, 256)

/* a: dy, b: x; s1 and s2 of the part */
template <class C> DEVICE void batch_norm_sums(const dsi_cuda_batch_norm_args &P)
{
    SHARED(double, shared, [256]);
    long long channel = blockIdx.x * (long long)P.width + threadIdx.x % P.width;
    C mean = channel < P.channels ? line_at<C>(P.mean, channel, (C)0) : (C)0;
    double s1, s2;
    channel_sums<C, true>(P, channel, (C)0, mean, shared, &s1, &s2);
    if ((int)threadIdx.x < P.width && channel < P.channels) part_store(P, channel, s1, s2);
}
FLOAT_AND_DOUBLE(batch_norm_sums, dsi_cuda_batch_norm_args, 256)

/* ---- the parts' sums: a warp a channel ----------------------------------------- */

DEVICE void line_store(const dsi_cuda_line &v, long long i, double x)
{
    if (v.p) store<double>(v.p, v.dtype, i * v.s, x);
}

/* The mean, the biased variance, 1 / sqrt(variance + eps), and the running ones
 * of what is wanted. */
KERNEL(batch_stats_end, dsi_cuda_batch_norm_args, 256)
{
    long long channel = team_item(32);
    int lane = threadIdx.x % 32;
    const double *part = P.part + channel * P.parts * 2;
    if (channel >= P.channels) return;
    double sum = 0, squares = 0, count = (double)P.rows;
    for (unsigned i = lane; i < P.parts; i += 32) sum += part[i * 2];
    double mean = lanes_sum(sum) / count;
    for (unsigned i = lane; i < P.parts; i += 32) {
        double n = rows_in_part(P, i), d = part[i * 2] / n - mean;
        squares += part[i * 2 + 1] + n * d * d;
    }
    squares = lanes_sum(squares);
    if (lane) return;
    double var = squares / count, keep = 1 - P.momentum;
    line_store(P.mean, channel, mean), line_store(P.var, channel, var);
    double rstd = rounded(P.rstd.dtype, 1 / sqrt(var + P.eps));
    line_store(P.rstd, channel, rstd);
    line_store(P.factor, channel, rstd * line_at<double>(P.weight, channel, 1));
    line_store(P.term, channel, line_at<double>(P.bias, channel, 0));
    line_store(P.running_mean, channel,
               keep * line_at<double>(P.running_mean, channel, 0) + P.momentum * mean);
    line_store(P.running_var, channel,
               keep * line_at<double>(P.running_var, channel, 0) +
                   P.momentum * squares / (count - 1));
}

KERNEL(batch_norm_sums_end, dsi_cuda_batch_norm_args, 256)
{
    long long channel = team_item(32);
    int lane = threadIdx.x % 32;
    const double *part = P.part + channel * P.parts * 2;
    if (channel >= P.channels) return;
    double s1 = 0, s2 = 0;
    for (unsigned i = lane; i < P.parts; i += 32) s1 += part[i * 2], s2 += part[i * 2 + 1];
    s1 = lanes_sum(s1), s2 = lanes_sum(s2);
    if (lane) return;
    P.sums[channel * 2] = s1, P.sums[channel * 2 + 1] = s2;
    double rstd = line_at<double>(P.rstd, channel, 1);
    line_store(P.dw, channel, s2 * rstd), line_store(P.db, channel, s1);
}

/* ---- a thread an element -------------------------------------------------------- */

template <class C> DEVICE void batch_norm(const dsi_cuda_batch_norm_args &P)
{
    GRID_LOOP(i, P.e.count)
    {
        long long at[4];
        places(P.e, i, at);
        C d = load<C>(P.e.p[0], P.e.dtype[0], at[0]) - line_at<C>(P.mean, at[1], 0);
        C factor = line_at<C>(P.rstd, at[1], 1) * line_at<C>(P.weight, at[1], 1);
        C y = normal(d, factor, line_at<C>(P.bias, at[1], 0));
        if (P.relu) {
            y = rounded(P.dtype, y);
            if (P.b) y = rounded(P.dtype, y + load<C>(P.e.p[2], P.e.dtype[2], at[2]));
            y = relu_of(y);
        }
        int out = P.relu ? 3 : 2;
        store<C>(P.e.p[out], P.e.dtype[out], P.relu ? at[3] : at[2], y);
    }
}
FLOAT_AND_DOUBLE(batch_norm, dsi_cuda_batch_norm_args, 256)

/* dx; without the sums if mean and rstd are not x's own */
template <class C> DEVICE void batch_norm_dx(const dsi_cuda_batch_norm_args &P)
{
    double count = (double)P.rows;
    GRID_LOOP(i, P.e.count)
    {
        long long at[4];
        places(P.e, i, at);
        C g = load<C>(P.e.p[0], P.e.dtype[0], at[0]), rstd = line_at<C>(P.rstd, at[2], 1);
        C factor = P.relu ? line_at<C>(P.factor, at[2], 0) : rstd * line_at<C>(P.weight, at[2], 1);
        if (P.batch) {
            C x = load<C>(P.e.p[1], P.e.dtype[1], at[1]) - line_at<C>(P.mean, at[2], 0);
            C y = P.relu ? normal(x, factor, line_at<C>(P.term, at[2], 0)) : (C)1;
            g = relu_dx_of(rounded(P.dtype, y), g);
            C s1 = (C)(P.sums[at[2] * 2] / count), s2 = (C)(P.sums[at[2] * 2 + 1] / count);
            g -= s1 + x * rstd * rstd * s2;
        }
        store<C>(P.e.p[3], P.e.dtype[3], at[3], g * factor);
    }
}
FLOAT_AND_DOUBLE(batch_norm_dx, dsi_cuda_batch_norm_args, 256)
