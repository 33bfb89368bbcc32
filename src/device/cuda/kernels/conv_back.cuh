/* device/cuda/kernels/conv_back.cuh: the backward of a convolution's weights
 * and bias from a gradient in pooled form: of conv_small.cu, and of
 * conv_step.cu, which does an optimizer's step with it.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "conv.cuh"
#include "pack.cuh"

#define BACK_THREADS (32 * (int)K_BACK_WARPS)

/* Element (k, column) of dw, or of db behind the taps. */
template <class T>
DEVICE void small_dw_store(const dsi_cuda_conv_args &P, long long k, int column, float v)
{
    down(v, column == P.taps ? (T *)P.db + k * P.db_s
                             : (T *)P.out + dw_place(P, k, (unsigned)column));
}

/* A window's gradient and its place in the plane; -1: it does not count. */
struct small_window {
    int at;
    float v;
};

/* Window i of channel k of a sample: i = p q' + q. */
DEVICE small_window window_of(const dsi_cuda_conv_args &P, int n, int k, unsigned i)
{
    const dsi_cuda_pooled &o = P.pooled;
    int p = (int)divide(i, o.row), q = (int)i - p * o.q,
        at = o.index[n * o.is[0] + k * o.is[1] + p * o.is[2] + q * o.is[3]];
    float v = ((const float *)o.value)[n * o.vs[0] + k * o.vs[1] + p * o.vs[2] + q * o.vs[3]];
    bool counts = (unsigned)at < (unsigned)(P.p * P.q);
    if (o.relu && !(((const float *)o.max)[n * o.ms[0] + k * o.ms[1] + p * o.ms[2] + q * o.ms[3]] > 0))
        counts = false;
    return {counts ? at : -1, v};
}

#define COLUMNS ((int)K_BACK_COLUMNS) /* its lanes share the windows of a channel */
#define HELD    ((int)K_BACK_HELD)

/* A window of dw's sum: its gradient, where its first tap is, and where that is
 * in x, from the channel's first element of the first sample on. Of one that
 * does not count, v = 0. */
struct alignas(16) held_window {
    float v;
    short h, w;
    long long x;
};

/* Windows first .. first + n - 1 of channel k, of all samples. */
DEVICE void hold_windows(const dsi_cuda_conv_args &P, held_window *held, int k, int first, int n)
{
    const int LOADS = 2;
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += LOADS * BACK_THREADS) {
        small_window w[LOADS];
        unsigned sample[LOADS];
#pragma unroll
        for (int u = 0; u < LOADS; u++) {
            unsigned window = (unsigned)(first + min(i + u * BACK_THREADS, n - 1));
            sample[u] = divide(window, P.pooled.windows);
            w[u] = window_of(P, (int)sample[u], k, window - sample[u] * P.pooled.windows.d);
        }
#pragma unroll
        for (int u = 0; u < LOADS; u++) {
            int at = max(w[u].at, 0), y = (int)divide((unsigned)at, P.row),
                h = y * P.stride[0] - P.padding[0], z = (at - y * P.q) * P.stride[1] - P.padding[1];
            if (i + u * BACK_THREADS < n)
                held[i + u * BACK_THREADS] = {w[u].at < 0 ? 0 : w[u].v, (short)h, (short)z,
                                              sample[u] * P.xs[0] + h * P.xs[2] + z * P.xs[3]};
        }
    }
}

/* `block` counts COLUMNS columns of each team, channels out. memory:
 * held_window [HELD], then sums [warps][COLUMNS]. The thread that has a sum
 * calls put.before when it begins, and put.after with it. */
template <class Back, class Put>
DEVICE void dw_pooled(const Back &back, held_window *held, unsigned block, Put put)
{
    const int LOADS = 4;
    const dsi_cuda_conv_args &P = back.dw;
    float *part = (float *)(held + HELD);
    unsigned k = divide(block, back.blocks), group = divide(k, back.outputs);
    int threads = 1 << back.team_bits, team = (int)threadIdx.x >> back.team_bits,
        own = (int)threadIdx.x & (threads - 1), each = COLUMNS * BACK_THREADS >> back.team_bits,
        lane = threadIdx.x % 32, workers = threads / COLUMNS, all = P.n * (int)P.pooled.windows.d,
        column = (int)(block - k * back.blocks.d) * each + team * COLUMNS + lane % COLUMNS;
    conv_tap t = tap_of(P, (unsigned)min(column, P.taps - 1));
    int dh = t.r * P.dilation[0], dw = t.s * P.dilation[1];
    const float *x = (const float *)P.x + ((int)group * P.c + t.c) * P.xs[1] + dh * P.xs[2] +
                     dw * P.xs[3];
    bool bias = column == P.taps, puts = own < COLUMNS && column < P.columns;
    float acc = 0;
    if (puts) put.before(k, column);
#pragma unroll 1
    for (int first = 0; first < all; first += HELD) {
        int n = min(HELD, all - first);
        hold_windows(P, held, (int)k, first, n);
        __syncthreads();
#pragma unroll 1
        for (int i = own / COLUMNS; i < n; i += LOADS * workers) {
            float v[LOADS], dy[LOADS];
#pragma unroll
            for (int u = 0; u < LOADS; u++) {
                bool in = i + u * workers < n;
                held_window w = held[in ? i + u * workers : i];
                int h = w.h + dh, z = w.w + dw;
                bool there = in && (unsigned)h < (unsigned)P.h && (unsigned)z < (unsigned)P.width &&
                             !bias;
                dy[u] = in ? w.v : 0.0f, v[u] = bias ? 1.0f : 0.0f;
                if (there) v[u] = x[w.x];
            }
#pragma unroll
            for (int u = 0; u < LOADS; u++) acc += dy[u] * v[u];
        }
        __syncthreads();
    }
#pragma unroll
    for (int o = COLUMNS; o < 32; o *= 2) acc += __shfl_xor_sync(ALL_LANES, acc, o);
    if (lane < COLUMNS) part[threadIdx.x / 32 * COLUMNS + lane] = acc;
    __syncthreads();
    if (!puts) return;
    float sum = 0;
    part += threadIdx.x / 32 * COLUMNS + lane;
#pragma unroll 1
    for (int i = 0; i < threads / 32; i += LOADS) /* 4 or 16 warps */
#pragma unroll
        for (int u = 0; u < LOADS; u++) sum += part[(i + u) * COLUMNS];
    put.after(P, k, column, sum);
}
