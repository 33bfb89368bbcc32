/* device/cuda/kernels/conv_wgmma.cu: y and dx of conv_last.cu in 16 bits on
 * GPUs of compute capability 9.0, by the products of warpgroups that only these
 * have:
 *
 *     out [channels, pixels] = w [channels, taps] in [pixels, taps]
 *
 * A block computes 256 pixels of 64 channels for each of its warpgroups, by
 * products of 64 channels, 256 pixels, 16 of the sum. A stage's lines are 64
 * bytes along the sum, whose pieces are XORed by the line's number.
 *
 * Invariants: a step's products run while the next step's barrier is waited
 * for. At a barrier all threads have waited for the products of the step before
 * the last; so its stage is filled again, AHEAD steps ahead.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "conv_gather.cuh"
#include "pack.cuh"
#include "ptx_wgmma.cuh"

#define ALIGNED 1024 /* bytes after which the XOR of lines repeats */
#define PIXELS  256

template <int CHANNELS> struct alignas(16) conv_stage {
    uint4 w[CHANNELS * PIECES], in[PIXELS * PIECES];
};

template <class E> struct conv_is_bf16 {
    static constexpr bool YES = false;
};
template <> struct conv_is_bf16<__nv_bfloat16> {
    static constexpr bool YES = true;
};

/* sums += w in, of a warpgroup's 64 channels */
template <class E, int CHANNELS>
DEVICE void conv_multiply(float (&sums)[PIXELS / 8][4], const conv_stage<CHANNELS> &s, int group)
{
    constexpr bool BF16 = conv_is_bf16<E>::YES;
    unsigned long long w = wgmma_operand(shared_address(s.w) + group * 64 * 64, K_LINES_64, 16,
                                         512),
                       in = wgmma_operand(shared_address(s.in), K_LINES_64, 16, 512);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 2; k++) wgmma<BF16, false, false>(sums, w + k * 2, in + k * 2);
    wgmma_commit();
}

/* A thread's sums, with bias, to slab [PIXELS][CHANNELS + 8]. */
template <class E, int CHANNELS>
DEVICE void conv_sums_put(const dsi_cuda_conv_args &P, const conv_map<E> &m,
                          const float (&sums)[PIXELS / 8][4], E *slab, int channel0)
{
    int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int channel = first + half * 8, k = channel0 + channel;
        float bias = P.bias && k < m.channels
                         ? load<float>(P.bias, P.bias_dtype,
                                       ((long long)m.group * m.channels + k) * P.bias_s)
                         : 0;
#pragma unroll
        for (int j = 0; j < PIXELS / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                down(sums[j][half * 2 + e] + bias,
                     &slab[(j * 8 + lane % 4 * 2 + e) * (CHANNELS + 8) + channel]);
    }
}

/* Blocks: tiles of pixels, tiles of channels, groups times classes; 2 threads a
 * channel. */
template <class E, int CHANNELS> DEVICE void conv_group(const dsi_cuda_conv_args &P, bool dx)
{
    constexpr int THREADS = CHANNELS * 2, LINES = THREADS / PIECES, N = count_of<E>::PIECE,
                  HELD = CHANNELS == 64 ? 4 : 5, AHEAD = HELD - 2;
    typedef conv_stage<CHANNELS> Stage;
    DYNAMIC_SHARED(float4, shared);
    SHARED(conv_shared<PIXELS>, s, [1]);
    Stage *stage = (Stage *)((char *)shared + (-shared_address(shared) & (ALIGNED - 1)));
    conv_map<E> m = map_of<E>(P, dx);
    int pixel0 = blockIdx.x * PIXELS, channel0 = blockIdx.y * CHANNELS,
        group = __shfl_sync(ALL_LANES, (int)threadIdx.x / 128, 0);
    if (pixel0 >= P.n * m.rows * m.columns) return; /* a class of fewer pixels */
    if (threadIdx.x < 32) conv_taps_of(P, m, dx, s[0].tap, &s[0].taps);
    __syncthreads();
    for (int i = threadIdx.x; i < PIXELS; i += THREADS)
        s[0].row[i] = conv_row_of(m, s[0].tap, s[0].taps, P.n, pixel0 + i);
    __syncthreads();
    conv_row row[PIXELS / LINES];
#pragma unroll
    for (int j = 0; j < PIXELS / LINES; j++) row[j] = s[0].row[threadIdx.x / PIECES + j * LINES];

    int steps = (s[0].taps * (m.inner / N) + PIECES - 1) / PIECES, now = 0, next = 0;
    conv_place at = {0, 0};
    next_place(at, threadIdx.x % PIECES * N, m.inner);
    float sums[PIXELS / 8][4] = {};
#pragma unroll 1
    for (int i = -AHEAD; i < steps; i++) {
        if (i >= 0) {
            cp_async_wait(AHEAD - 1);
            fence_proxy_async();
            __syncthreads();
            conv_multiply<E, CHANNELS>(sums, stage[now], group);
            now = now + 1 == HELD ? 0 : now + 1;
        }
        if (i + AHEAD < steps) {
            conv_fill<PIXELS / LINES, CHANNELS / LINES, LINES>(
                m, s[0], row, at, channel0, P.r * P.s, stage[next].in, stage[next].w);
            next_stage(at, count_of<E>::DEPTH, m.inner, s[0].taps);
            next = next + 1 == HELD ? 0 : next + 1;
        }
        cp_async_commit(); /* maybe of nothing: one group a step */
        if (i >= 0) wgmma_wait(1);
    }
    wgmma_wait(0);
    cp_async_wait(0);
    __syncthreads();
    E *slab = (E *)stage, *out = (E *)P.out + (long long)m.group * m.channels + channel0;
    conv_sums_put<E, CHANNELS>(P, m, sums, slab, channel0);
    __syncthreads();
    int c = threadIdx.x % (CHANNELS / N) * N;
#pragma unroll 4
    for (int r = threadIdx.x / (CHANNELS / N); r < PIXELS; r += THREADS / (CHANNELS / N))
        if (s[0].row[r].out >= 0 && channel0 + c < m.channels)
            *(uint4 *)(out + s[0].row[r].out + c) = *(const uint4 *)&slab[r * (CHANNELS + 8) + c];
}

#define CONV_GROUP(channels, threads, suffix, E) \
    KERNEL(conv2d_group_##channels##_##suffix, dsi_cuda_conv_args, threads) \
    { \
        conv_group<E, channels>(P, false); \
    } \
    KERNEL(conv2d_dx_group_##channels##_##suffix, dsi_cuda_conv_args, threads) \
    { \
        conv_group<E, channels>(P, true); \
    }
CONV_GROUP(64, 128, f16, __half)
CONV_GROUP(64, 128, bf16, __nv_bfloat16)
CONV_GROUP(128, 256, f16, __half)
CONV_GROUP(128, 256, bf16, __nv_bfloat16)
