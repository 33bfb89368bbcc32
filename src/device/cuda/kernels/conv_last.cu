/* device/cuda/kernels/conv_last.cu: convolutions of 16 bits and float32 by
 * tensor cores where channels are neighbours in memory, and whole pieces of 16
 * bytes: each piece that a tile takes is channels of one pixel (implicit gemm).
 *
 *     conv2d, conv2d_dx  out [pixels, channels] = in [pixels, taps] w [channels, taps]
 *     conv2d_dw          dw [k, taps] = dy [pixels, k] x [pixels, taps]
 *
 * A tap is (r, s, channel). conv2d_dx is a forward convolution of dy, one for
 * each class of pixels (y % stride, x % stride), to which the same taps
 * contribute. Weights are copied to that order first, by conv2d_weights. On
 * GPUs of compute capability 9.0 conv_wgmma.cu computes most of 16 bits.
 *
 * Taps of neighbouring pixels are the same pixels of the input, which arrives
 * by way of the first cache (cp_async16_again): the bandwidth of the second
 * cache is the limit (ResNet-18 in bfloat16, 512 images, on an H100: 13.2 ms a
 * step without, 11.7 with).
 *
 * Invariants: a barrier between reading a stage and filling it; what is outside
 * of an operand arrives as zeros.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "conv_gather.cuh"

/* ---- weights ---- */

/* Element (k, c, r, s) of w to out [k][r][s][c], or, for dx, of each group to
 * [c][r][s][k]. Blocks: 32 of the inner channels, 8 of the outer ones, groups.
 * Loads of R elements are under way at once. */
template <class T> DEVICE void conv_weights_copy(const dsi_cuda_conv_args &P, bool dx)
{
    constexpr int R = 3;
    DYNAMIC_SHARED(uint4, shared);
    T *tile = (T *)shared; /* [k][c][r s] */
    int taps = P.r * P.s, deep = dx ? 8 : 32, line = deep * taps + 2, n = 32 * 8 * taps,
        k0 = dx ? blockIdx.x * 32 : blockIdx.y * 8, c0 = dx ? blockIdx.y * 8 : blockIdx.x * 32,
        group = blockIdx.z;
#pragma unroll 1
    for (int first = threadIdx.x; first < n; first += 256 * R) {
        T v[R];
        int to[R];
#pragma unroll
        for (int j = 0; j < R; j++) {
            int e = first + j * 256, i = e / (deep * taps), rest = e % (deep * taps),
                c = c0 + rest / taps, tap = rest % taps;
            bool in = e < n && k0 + i < P.k && c < P.c;
            long long at = ((long long)group * P.k + k0 + i) * P.ws[0] + c * P.ws[1] +
                           tap / P.s * P.ws[2] + tap % P.s * P.ws[3];
            to[j] = in ? i * line + rest : -1;
            v[j] = in ? ((const T *)P.w)[at] : (T)0;
        }
#pragma unroll
        for (int j = 0; j < R; j++)
            if (to[j] >= 0) tile[to[j]] = v[j];
    }
    __syncthreads();
    int outer0 = blockIdx.y * 8, inner0 = blockIdx.x * 32, outers = dx ? P.c : P.k,
        inners = dx ? P.k : P.c;
#pragma unroll 3
    for (int e = threadIdx.x; e < n; e += 256) {
        int j = e % 32, tap = e / 32 % taps, i = e / 32 / taps;
        if (outer0 + i >= outers || inner0 + j >= inners) continue;
        long long at = (((long long)group * outers + outer0 + i) * taps + tap) * inners + inner0 +
                       j;
        int k = dx ? j : i, c = dx ? i : j;
        ((T *)P.out)[at] = tile[k * line + c * taps + tap];
    }
}
KERNEL(conv2d_weights_2, dsi_cuda_conv_args, 256) { conv_weights_copy<unsigned short>(P, false); }
KERNEL(conv2d_weights_4, dsi_cuda_conv_args, 256) { conv_weights_copy<unsigned>(P, false); }
KERNEL(conv2d_dx_weights_2, dsi_cuda_conv_args, 256) { conv_weights_copy<unsigned short>(P, true); }
KERNEL(conv2d_dx_weights_4, dsi_cuda_conv_args, 256) { conv_weights_copy<unsigned>(P, true); }

/* ---- few channels: what is under each pixel's taps, as channels ---- */

/* x to out [pixels][columns], zeros behind the taps: a thread a piece, a warp
 * 32 pixels. */
template <class T> DEVICE void conv_patches(const dsi_cuda_conv_args &P)
{
    constexpr int N = 16 / (int)sizeof(T);
    int pieces = P.columns / N;
    GRID_LOOP(e, (P.pixels + 31ll) / 32 * 32 * pieces)
    {
        int warp = (int)(e / 32), pixel = warp / pieces * 32 + (int)(e % 32),
            column = warp % pieces * N;
        if (pixel >= P.pixels) continue;
        conv_pixel at = pixel_of(P, (unsigned)pixel);
        T v[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            conv_tap t = tap_of(P, (unsigned)(column + i));
            long long x = column + i < P.taps ? under_tap(P, at, t.c, t.r, t.s) : OUTSIDE;
            v[i] = x >= 0 ? ((const T *)P.x)[x] : (T)0;
        }
        uint4 bits;
        memcpy(&bits, v, 16);
        *(uint4 *)((T *)P.out + (long long)pixel * P.columns + column) = bits;
    }
}
KERNEL(conv2d_patches_2, dsi_cuda_conv_args, 256) { conv_patches<unsigned short>(P); }
KERNEL(conv2d_patches_4, dsi_cuda_conv_args, 256) { conv_patches<unsigned>(P); }

/* w to out [k][columns], in that order of taps */
template <class T> DEVICE void conv_patch_weights(const dsi_cuda_conv_args &P)
{
    GRID_LOOP(e, (long long)P.k * P.columns)
    {
        unsigned column = (unsigned)(e % P.columns);
        ((T *)P.out)[e] = (int)column < P.taps
                              ? ((const T *)P.w)[dw_place(P, e / P.columns, column)]
                              : (T)0;
    }
}
KERNEL(conv2d_patch_weights_2, dsi_cuda_conv_args, 256) { conv_patch_weights<unsigned short>(P); }
KERNEL(conv2d_patch_weights_4, dsi_cuda_conv_args, 256) { conv_patch_weights<unsigned>(P); }

/* ---- y and dx ---- */

DEVICE unsigned pair_of(float a, float b, __half *x)
{
    unsigned bits;
    x[0] = __float2half_rn(a), x[1] = __float2half_rn(b);
    memcpy(&bits, x, 4);
    return bits;
}
DEVICE unsigned pair_of(float a, float b, __nv_bfloat16 *x)
{
    unsigned bits;
    x[0] = __float2bfloat16_rn(a), x[1] = __float2bfloat16_rn(b);
    memcpy(&bits, x, 4);
    return bits;
}

/* acc += bias of channels `channel` ... of the group. */
template <class E>
DEVICE void conv_last_bias(const dsi_cuda_conv_args &P, const conv_map<E> &m, warp_sums<E> &acc,
                           int channel)
{
    channel += threadIdx.x % 4 * 2;
#pragma unroll
    for (int e = 0; e < count_of<E>::COLUMNS / 4; e++) {
        int k = channel + e / 2 * 8 + e % 2;
        if (k >= m.channels) continue;
        float bias = load<float>(P.bias, P.bias_dtype,
                                 ((long long)m.group * m.channels + k) * P.bias_s);
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc.v[i][e / 2][e % 2] += bias, acc.v[i][e / 2][e % 2 + 2] += bias;
    }
}

/* Writes a warp's tile of pixels x channels from out + `channel` on, of which
 * there are `channels`, by way of its own shared memory; row: its pixels. */
template <class E>
DEVICE void conv_last_write(E *out, const warp_sums<E> &acc, uint4 *shared, const conv_row *row,
                            int channel, int channels)
{
    constexpr int LINE = WARP + 8;
    int lane = threadIdx.x % 32, piece = lane % 8 * 8;
    E *slab = (E *)shared, pair[2];
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            *(unsigned *)&slab[(i * 8 + lane / 4) * LINE + j * 8 + lane % 4 * 2] = pair_of(
                acc.v[i / 2][j][i % 2 * 2], acc.v[i / 2][j][i % 2 * 2 + 1], pair);
    __syncwarp();
#pragma unroll 4
    for (int r = lane / 8; r < WARP; r += 4)
        if (row[r].out >= 0 && channel + piece < channels)
            *(uint4 *)(out + row[r].out + channel +
                       piece) = *(const uint4 *)&slab[r * LINE + piece];
}

/* float32: four lanes write 32 neighbouring bytes */
DEVICE void conv_last_write(float *out, const warp_sums<float> &acc, uint4 *, const conv_row *row,
                            int channel, int channels)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int at = row[i * 8 + lane / 4].out;
#pragma unroll
        for (int j = 0; j < count_of<float>::COLUMNS / 8; j++) {
            int k = channel + j * 8 + lane % 4 * 2;
            if (at >= 0 && k < channels)
                *(float2 *)&out[at + k] = make_float2(acc.v[i / 2][j][i % 2 * 2],
                                                      acc.v[i / 2][j][i % 2 * 2 + 1]);
        }
    }
}

/* Blocks: tiles of pixels, tiles of channels, groups times classes. */
template <class E, int WM, int WN> DEVICE void conv_last(const dsi_cuda_conv_args &P, bool dx)
{
    constexpr int ROWS = WM * WARP, COLUMNS = WN * 64, ACROSS = COLUMNS / count_of<E>::COLUMNS,
                  THREADS = 32 * WM * ACROSS, LINES = THREADS / PIECES, A = ROWS / LINES,
                  B = COLUMNS / LINES, SIZE = (ROWS + COLUMNS) * PIECES, N = count_of<E>::PIECE;
    DYNAMIC_SHARED(uint4, stage);
    SHARED(conv_shared<ROWS>, s, [1]);
    conv_map<E> m = map_of<E>(P, dx);
    int pixel0 = blockIdx.x * ROWS, column0 = blockIdx.y * COLUMNS;
    if (pixel0 >= P.n * m.rows * m.columns) return; /* a class of fewer pixels */
    if (threadIdx.x < 32) conv_taps_of(P, m, dx, s[0].tap, &s[0].taps);
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS; i += THREADS)
        s[0].row[i] = conv_row_of(m, s[0].tap, s[0].taps, P.n, pixel0 + i);
    __syncthreads();
    conv_row row[A];
#pragma unroll
    for (int j = 0; j < A; j++) row[j] = s[0].row[threadIdx.x / PIECES + j * LINES];

    int steps = (s[0].taps * (m.inner / N) + PIECES - 1) / PIECES, warp = threadIdx.x / 32,
        wm = warp / ACROSS * WARP, wn = warp % ACROSS * count_of<E>::COLUMNS;
    conv_place at = {0, 0};
    next_place(at, threadIdx.x % PIECES * N, m.inner);
    warp_sums<E> acc = {};
#pragma unroll 1
    for (int i = 1 - STAGES; i < steps; i++) {
        int next = i + STAGES - 1;
        if (i >= 0) {
            cp_async_wait(STAGES - 2);
            __syncthreads();
        }
        if (next < steps) {
            uint4 *to = stage + next % STAGES * SIZE;
            conv_fill<A, B, LINES>(m, s[0], row, at, column0, P.r * P.s, to, to + ROWS * PIECES);
            next_stage(at, count_of<E>::DEPTH, m.inner, s[0].taps);
        }
        cp_async_commit(); /* maybe of nothing: one group a step */
        const uint4 *now = stage + (i + STAGES) % STAGES * SIZE;
        if (i >= 0) warp_along<E>(acc, now, wm, now + ROWS * PIECES, wn);
    }
    cp_async_wait(0);
    __syncthreads();
    if (P.bias) conv_last_bias(P, m, acc, column0 + wn);
    conv_last_write((E *)P.out + (long long)m.group * m.channels, acc,
                    stage + warp * WARP * (WARP + 8) / 8, s[0].row + wm, column0 + wn, m.channels);
}

/* float32 has twice the warps. */
#define CONV_LAST(suffix, E, threads) \
    KERNEL(conv2d_last_##suffix, dsi_cuda_conv_args, threads) { conv_last<E, 2, 2>(P, false); } \
    KERNEL(conv2d_last_narrow_##suffix, dsi_cuda_conv_args, threads) \
    { \
        conv_last<E, 4, 1>(P, false); \
    } \
    KERNEL(conv2d_dx_last_##suffix, dsi_cuda_conv_args, threads) { conv_last<E, 2, 2>(P, true); } \
    KERNEL(conv2d_dx_last_narrow_##suffix, dsi_cuda_conv_args, threads) \
    { \
        conv_last<E, 4, 1>(P, true); \
    }
CONV_LAST(f32, float, 256)
CONV_LAST(f16, __half, 128)
CONV_LAST(bf16, __nv_bfloat16, 128)

/* ---- dw ---- */

/* Lines of `rows` elements of dy, from `from` on: pixels pixel ... */
template <int ROWS, int THREADS, class E>
DEVICE void conv_dw_fill_dy(const dsi_cuda_conv_args &P, uint4 *to, const E *from, bool in,
                            int pixel, int end)
{
    constexpr int LINE = ROWS / count_of<E>::PIECE, DEPTH = count_of<E>::DEPTH;
    int piece = threadIdx.x % LINE;
#pragma unroll
    for (int i = 0; i < DEPTH; i += THREADS / LINE) {
        int line = i + threadIdx.x / LINE;
        bool ok = in && pixel + line < end;
        if (DEPTH % (THREADS / LINE) && line >= DEPTH) continue;
        cp_async16(&to[across_at<E>(line, piece, LINE)], from + (ok ? (pixel + line) * P.ys[3] : 0),
                   ok ? 16 : 0);
    }
}

/* Lines of x under the taps of this thread's column. */
template <int COLUMNS, int THREADS, class E>
DEVICE void conv_dw_fill_x(const dsi_cuda_conv_args &P, uint4 *to, const E *from, conv_column at,
                           int pixel, int end)
{
    constexpr int LINE = COLUMNS / count_of<E>::PIECE, DEPTH = count_of<E>::DEPTH;
    int piece = threadIdx.x % LINE;
#pragma unroll
    for (int i = 0; i < DEPTH; i += THREADS / LINE) {
        int line = i + threadIdx.x / LINE;
        conv_pixel p = pixel_of(P, (unsigned)(pixel + line));
        int y = p.y * P.stride[0] + at.y, x = p.x * P.stride[1] + at.x;
        bool ok = at.c >= 0 && pixel + line < end && y >= 0 && y < P.h && x >= 0 && x < P.width;
        int place = (int)P.xs[0] * p.n + (int)P.xs[2] * y + (int)P.xs[3] * x + at.c;
        if (DEPTH % (THREADS / LINE) && line >= DEPTH) continue;
        cp_async16_again(&to[across_at<E>(line, piece, LINE)], from + (ok ? place : 0),
                         ok ? 16 : 0);
    }
}

/* A part of the sum for a warp's tile of dw. */
template <class E>
DEVICE void conv_dw_part(const dsi_cuda_conv_args &P, const warp_sums<E> &acc, long long part,
                         int row, int column)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int k = row + i * 8 + lane / 4;
        float *to = P.part + (part * P.k + k) * P.columns;
#pragma unroll
        for (int j = 0; j < count_of<E>::COLUMNS / 8; j++) {
            int at = column + j * 8 + lane % 4 * 2, e = i % 2 * 2;
            if (k < P.k && at < P.columns)
                *(float2 *)&to[at] = make_float2(acc.v[i / 2][j][e], acc.v[i / 2][j][e + 1]);
        }
    }
}

/* Blocks: tiles of taps, tiles of k, groups splits + split. */
template <class E, int WM, int WN> DEVICE void conv_dw_last(const dsi_cuda_conv_args &P)
{
    constexpr int ROWS = WM * WARP, COLUMNS = WN * 64, ACROSS = COLUMNS / count_of<E>::COLUMNS,
                  THREADS = 32 * WM * ACROSS, SIZE = (ROWS + COLUMNS) * PIECES,
                  DEPTH = count_of<E>::DEPTH, N = count_of<E>::PIECE;
    DYNAMIC_SHARED(uint4, stage);
    int group = blockIdx.z / P.splits, split = blockIdx.z % P.splits, row0 = blockIdx.y * ROWS,
        column0 = blockIdx.x * COLUMNS, begin = split * P.split_pixels,
        end = min(begin + P.split_pixels, P.pixels), warp = threadIdx.x / 32,
        wm = warp / ACROSS * WARP, wn = warp % ACROSS * count_of<E>::COLUMNS,
        k = row0 + threadIdx.x % (ROWS / N) * N;
    const E *dy = (const E *)P.dy + group * P.k + (k < P.k ? k : 0),
            *x = (const E *)P.x + group * P.c;
    conv_column at = conv_column_of(P, column0 + threadIdx.x % (COLUMNS / N) * N);
    int steps = (end - begin + DEPTH - 1) / DEPTH;
    warp_sums<E> acc = {};
#pragma unroll 1
    for (int i = 1 - STAGES; i < steps; i++) {
        int next = i + STAGES - 1;
        if (i >= 0) {
            cp_async_wait(STAGES - 2);
            __syncthreads();
        }
        if (next < steps) {
            uint4 *to = stage + next % STAGES * SIZE;
            int pixel = begin + next * DEPTH;
            conv_dw_fill_dy<ROWS, THREADS>(P, to, dy, k < P.k, pixel, end);
            conv_dw_fill_x<COLUMNS, THREADS>(P, to + ROWS * PIECES, x, at, pixel, end);
        }
        cp_async_commit(); /* maybe of nothing: one group a step */
        const uint4 *now = stage + (i + STAGES) % STAGES * SIZE;
        if (i >= 0) warp_across<E>(acc, now, wm, ROWS / N, now + ROWS * PIECES, wn, COLUMNS / N);
    }
    conv_dw_part(P, acc, (long long)split * P.groups + group, row0 + wm, column0 + wn);
}

/* The sum of the parts, many of few elements: a block adds 32 elements, each by
 * 8 threads, in a fixed order. Columns behind the taps are no elements of
 * dw. */
KERNEL(conv2d_dw_last_sum, dsi_cuda_conv_args, 256)
{
    SHARED(float, part, [8][32]);
    long long each = (long long)P.groups * P.k * P.columns,
              i = blockIdx.x * 32ll + threadIdx.x % 32;
    int first = threadIdx.x / 32;
    float sum = 0;
#pragma unroll 8
    for (int j = first; j < P.splits; j += 8) sum += i < each ? P.part[j * each + i] : 0;
    part[first][threadIdx.x % 32] = sum;
    __syncthreads();
    if (first || i >= each) return;
    sum = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) sum += part[j][threadIdx.x];
    int column = (int)(i % P.columns);
    if (column < P.taps)
        store<float>(P.out, P.dtype, dw_place(P, i / P.columns, (unsigned)column), sum);
}

#define CONV_DW_LAST(suffix, E, threads, narrow) \
    KERNEL(conv2d_dw_last_##suffix, dsi_cuda_conv_args, threads) { conv_dw_last<E, 2, 2>(P); } \
    KERNEL(conv2d_dw_last_narrow_##suffix, dsi_cuda_conv_args, narrow) { conv_dw_last<E, 1, 3>(P); }
CONV_DW_LAST(f32, float, 256, 192)
CONV_DW_LAST(f16, __half, 128, 96)
CONV_DW_LAST(bf16, __nv_bfloat16, 128, 96)
