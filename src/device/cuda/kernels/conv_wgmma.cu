/* device/cuda/kernels/conv_wgmma.cu: y, dx and dw of conv_last.cu in 16 bits on
 * GPUs of compute capability 9.0, by the products of warpgroups that only these
 * have:
 *
 *     out [channels, pixels] = w [channels, taps] in [pixels, taps]
 *
 * A block computes 256 pixels of 64 channels for each of its warpgroups, by
 * products of 64 channels, 256 pixels, 16 of the sum. A stage's lines are 64
 * bytes along the sum, whose pieces are XORed by the line's number.
 *
 * Where tiles are too few for a GPU, the sum of y or dx is cut: a block computes
 * P.splits parts' one, in float32, and conv2d_group_sum adds the parts in order.
 *
 * dw is a product of 64 of k for each warpgroup and 192 taps; lines are across
 * the sum, 64 elements each, [k / 64][DEPTH][64] and [3][DEPTH][64].
 *
 * Invariants: a step's products run while the next step's barrier is waited
 * for. At a barrier all threads have waited for the products of the step before
 * the last; so its stage is filled again, AHEAD steps ahead.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "conv_gather.cuh"
#include "pack.cuh"
#include "ptx_wgmma.cuh"

#define PIXELS   K_CONV_PIXELS
#define TAPS     K_CONV_TAPS
#define DW_DEPTH 32  /* pixels of a stage of dw */

/* A sum of `steps` steps: fill(stage, step) brings the operands of a step,
 * multiply(stage) begins its products. Ends with a barrier, when all products have
 * ended. */
template <int HELD, class Fill, class Multiply>
DEVICE void conv_steps(int steps, Fill fill, Multiply multiply)
{
    constexpr int AHEAD = HELD - 2;
    int now = 0, next = 0;
#pragma unroll 1
    for (int i = -AHEAD; i < steps; i++) {
        if (i >= 0) {
            cp_async_wait(AHEAD - 1);
            fence_proxy_async();
            __syncthreads();
            multiply(now);
            now = now + 1 == HELD ? 0 : now + 1;
        }
        if (i + AHEAD < steps) {
            fill(next, i + AHEAD);
            next = next + 1 == HELD ? 0 : next + 1;
        }
        cp_async_commit(); /* maybe of nothing: one group a step */
        if (i >= 0) wgmma_wait(1);
    }
    wgmma_wait(0);
    cp_async_wait(0);
    __syncthreads();
}

/* ---- y and dx ---- */

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

/* This thread's place in stage `begin` of the sum, as next_stage counts them. */
template <class E> DEVICE conv_place conv_place_of(const conv_map<E> &m, int taps, int begin)
{
    constexpr int DEPTH = count_of<E>::DEPTH;
    conv_place at = {0, 0};
    bool whole = m.inner % DEPTH == 0;
    next_place(at, threadIdx.x % PIECES * count_of<E>::PIECE + (whole ? 0 : begin * DEPTH), m.inner);
    if (whole && begin) at.tap = begin % taps, at.c += begin / taps * DEPTH;
    return at;
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

/* A part's sums to P.part [splits][pixels][groups channels]. */
template <class E>
DEVICE void conv_part_put(const dsi_cuda_conv_args &P, const conv_map<E> &m,
                          const float (&sums)[PIXELS / 8][4], int split, int pixel0, int channel0)
{
    int lane = threadIdx.x % 32, first = channel0 + threadIdx.x / 32 * 16 + lane / 4;
    long long line = (long long)P.groups * m.channels;
    int pixel = pixel0 + lane % 4 * 2, last = first < m.channels ? P.pixels : 0,
        last8 = first + 8 < m.channels ? P.pixels : 0;
    float *to = P.part + ((long long)split * P.pixels + pixel) * line + m.group * m.channels + first;
#pragma unroll
    for (int j = 0; j < PIXELS / 8; j++, to += 8 * line)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (pixel + j * 8 + e < last) to[e * line] = sums[j][e];
            if (pixel + j * 8 + e < last8) to[e * line + 8] = sums[j][e + 2];
        }
}

/* Blocks: tiles of pixels times parts of the sum, tiles of channels, groups times
 * classes; 2 threads a channel. There are parts only where there is one class. */
template <class E, int CHANNELS> DEVICE void conv_group(const dsi_cuda_conv_args &P, bool dx)
{
    constexpr int THREADS = CHANNELS * 2, LINES = THREADS / PIECES, N = count_of<E>::PIECE,
                  HELD = CHANNELS == 64 ? STAGES : K_CONV_STAGES_128;
    typedef conv_stage<CHANNELS> Stage;
    DYNAMIC_SHARED(float4, shared);
    SHARED(conv_shared<PIXELS>, s, [1]);
    Stage *stage = wgmma_stages<Stage>(shared);
    conv_map<E> m = map_of<E>(P, dx);
    int split = blockIdx.x % P.splits, pixel0 = blockIdx.x / P.splits * PIXELS,
        channel0 = blockIdx.y * CHANNELS, group = __shfl_sync(ALL_LANES, (int)threadIdx.x / 128, 0);
    if (pixel0 >= P.n * m.rows * m.columns) return; /* a class of fewer pixels */
    if (threadIdx.x < 32) conv_taps_of(P, m, dx, s[0].tap, &s[0].taps);
    __syncthreads();
    for (int i = threadIdx.x; i < PIXELS; i += THREADS)
        s[0].row[i] = conv_row_of(m, s[0].tap, s[0].taps, P.n, pixel0 + i);
    __syncthreads();
    conv_row row[PIXELS / LINES];
#pragma unroll
    for (int j = 0; j < PIXELS / LINES; j++) row[j] = s[0].row[threadIdx.x / PIECES + j * LINES];

    int steps = (s[0].taps * (m.inner / N) + PIECES - 1) / PIECES,
        each = (steps + P.splits - 1) / P.splits, begin = split * each;
    conv_place at = conv_place_of<E>(m, s[0].taps, begin);
    float sums[PIXELS / 8][4] = {};
    conv_steps<HELD>(
        min(each, steps - begin),
        [&](int to, int) {
            conv_fill<PIXELS / LINES, CHANNELS / LINES, LINES>(
                m, s[0], row, at, channel0, P.r * P.s, stage[to].in, stage[to].w);
            next_stage(at, count_of<E>::DEPTH, m.inner, s[0].taps);
        },
        [&](int from) { conv_multiply<E, CHANNELS>(sums, stage[from], group); });
    if (P.splits > 1) {
        conv_part_put<E>(P, m, sums, split, pixel0, channel0);
        return;
    }
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

/* y, or dx, of the parts of its sums, and bias: a thread 8 channels of a pixel. */
template <class E> DEVICE void conv_parts_sum(const dsi_cuda_conv_args &P, bool dx)
{
    constexpr int N = count_of<E>::PIECE;
    const long long *s = dx ? P.xs : P.ys;
    int line = P.groups * (dx ? P.c : P.k), pieces = line / N;
    GRID_LOOP(i, (long long)P.pixels * pieces)
    {
        int pixel = (int)(i / pieces), k = (int)(i % pieces) * N;
        const float *from = P.part + (long long)pixel * line + k;
        float sum[N] = {};
#pragma unroll 4
        for (int z = 0; z < P.splits; z++, from += (long long)P.pixels * line)
#pragma unroll
            for (int e = 0; e < N; e += 4) {
                float4 v = *(const float4 *)(from + e);
                sum[e] += v.x, sum[e + 1] += v.y, sum[e + 2] += v.z, sum[e + 3] += v.w;
            }
        E out[N];
#pragma unroll
        for (int e = 0; e < N; e++) {
            if (P.bias) sum[e] += load<float>(P.bias, P.bias_dtype, (k + e) * P.bias_s);
            down(sum[e], &out[e]);
        }
        uint4 bits;
        memcpy(&bits, out, sizeof bits);
        conv_pixel at = pixel_of(P, (unsigned)pixel);
        *(uint4 *)((E *)P.out + at.n * s[0] + at.y * s[2] + at.x * s[3] + k) = bits;
    }
}
#define CONV_GROUP_SUM(suffix, E) \
    KERNEL(conv2d_group_sum_##suffix, dsi_cuda_conv_args, 256) { conv_parts_sum<E>(P, false); } \
    KERNEL(conv2d_dx_group_sum_##suffix, dsi_cuda_conv_args, 256) { conv_parts_sum<E>(P, true); }
CONV_GROUP_SUM(f16, __half)
CONV_GROUP_SUM(bf16, __nv_bfloat16)

/* ---- dw ---- */

template <int ROWS> struct alignas(16) conv_dw_stage {
    uint4 dy[ROWS / 64 * DW_DEPTH * 8], x[TAPS / 64 * DW_DEPTH * 8];
};

/* Lines of dy of `rows` of k, from `from` on, and of x under the taps of this
 * thread's columns: pixels pixel ... */
template <int ROWS, class E>
DEVICE void conv_dw_group_fill(const dsi_cuda_conv_args &P, conv_dw_stage<ROWS> &to, const E *dy,
                               int rows, const E *x, const conv_column (&at)[TAPS / 64], int pixel,
                               int end)
{
    int line0 = threadIdx.x / 8, piece = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < DW_DEPTH; i += ROWS / 4) {
        int line = i + line0, place = line * 8 + (piece ^ line % 8);
        bool in = pixel + line < end;
        conv_pixel p = pixel_of(P, (unsigned)(pixel + line));
        int y0 = p.y * P.stride[0], x0 = p.x * P.stride[1], image = (int)P.xs[0] * p.n;
#pragma unroll
        for (int part = 0; part < ROWS / 64; part++) {
            bool ok = in && part * 64 < rows;
            cp_async16(&to.dy[part * DW_DEPTH * 8 + place],
                       dy + (ok ? (pixel + line) * P.ys[3] + part * 64 : 0), ok ? 16 : 0);
        }
#pragma unroll
        for (int part = 0; part < TAPS / 64; part++) {
            int h = y0 + at[part].y, w = x0 + at[part].x;
            bool ok = in && at[part].c >= 0 && (unsigned)h < (unsigned)P.h &&
                      (unsigned)w < (unsigned)P.width;
            cp_async16_again(
                &to.x[part * DW_DEPTH * 8 + place],
                x + (ok ? image + (int)P.xs[2] * h + (int)P.xs[3] * w + at[part].c : 0),
                ok ? 16 : 0);
        }
    }
}

/* sums += dy x, of a warpgroup's 64 of k */
template <class E, int ROWS>
DEVICE void conv_dw_multiply(float (&sums)[TAPS / 8][4], const conv_dw_stage<ROWS> &s, int group)
{
    constexpr bool BF16 = conv_is_bf16<E>::YES;
    unsigned long long dy = wgmma_operand(shared_address(s.dy) + group * DW_DEPTH * 128,
                                          K_LINES_128, DW_DEPTH * 128, 1024),
                       x = wgmma_operand(shared_address(s.x), K_LINES_128, DW_DEPTH * 128, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < DW_DEPTH / 16; k++)
        wgmma<BF16, true, true>(sums, dy + k * 128, x + k * 128);
    wgmma_commit();
}

/* Blocks: tiles of taps, tiles of k, groups splits + split; 2 threads a row. */
template <class E, int ROWS> DEVICE void conv_dw_group(const dsi_cuda_conv_args &P)
{
    typedef conv_dw_stage<ROWS> Stage;
    DYNAMIC_SHARED(float4, shared);
    Stage *stage = wgmma_stages<Stage>(shared);
    int set = blockIdx.z / P.splits, split = blockIdx.z % P.splits, row0 = blockIdx.y * ROWS,
        column0 = blockIdx.x * TAPS, begin = split * P.split_pixels,
        end = min(begin + P.split_pixels, P.pixels), k = row0 + threadIdx.x % 8 * 8,
        lane = threadIdx.x % 32, warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0);
    const E *dy = (const E *)P.dy + set * P.k + (k < P.k ? k : 0), *x = (const E *)P.x + set * P.c;
    conv_column at[TAPS / 64];
#pragma unroll
    for (int part = 0; part < TAPS / 64; part++)
        at[part] = conv_column_of(P, column0 + part * 64 + threadIdx.x % 8 * 8);
    float sums[TAPS / 8][4] = {};
    conv_steps<STAGES>((end - begin + DW_DEPTH - 1) / DW_DEPTH,
                  [&](int to, int step) {
                      conv_dw_group_fill<ROWS>(P, stage[to], dy, P.k - k, x, at,
                                               begin + step * DW_DEPTH, end);
                  },
                  [&](int from) { conv_dw_multiply<E, ROWS>(sums, stage[from], warp / 4); });
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
        int row = row0 + warp * 16 + lane / 4 + e * 4;
        float *to = P.part + (((long long)split * P.groups + set) * P.k + row) * P.columns;
#pragma unroll
        for (int j = 0; j < TAPS / 8; j++) {
            int column = column0 + j * 8 + lane % 4 * 2;
            if (row < P.k && column < P.columns)
                *(float2 *)&to[column] = make_float2(sums[j][e], sums[j][e + 1]);
        }
    }
}

#define CONV_DW_GROUP(rows, threads, suffix, E) \
    KERNEL(conv2d_dw_group_##rows##_##suffix, dsi_cuda_conv_args, threads) \
    { \
        conv_dw_group<E, rows>(P); \
    }
CONV_DW_GROUP(64, 128, f16, __half)
CONV_DW_GROUP(64, 128, bf16, __nv_bfloat16)
CONV_DW_GROUP(128, 256, f16, __half)
CONV_DW_GROUP(128, 256, bf16, __nv_bfloat16)
