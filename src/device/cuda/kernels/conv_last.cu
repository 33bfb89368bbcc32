/* device/cuda/kernels/conv_last.cu: convolutions of 16-bit operands by tensor
 * cores where channels are neighbours in memory and multiples of 8: each piece
 * of 16 bytes that a tile takes is 8 channels of one pixel (implicit gemm).
 *
 *     conv2d, conv2d_dx  out [pixels, channels] = in [pixels, taps] w [channels, taps]
 *     conv2d_dw          dw [k, taps] = dy [pixels, k] x [pixels, taps]
 *
 * A tap is (r, s, channel). conv2d_dx is a forward convolution of dy, one for
 * each class of pixels (y % stride, x % stride), to which the same taps
 * contribute. Weights are copied to that order first, by conv2d_weights.
 *
 * Invariants: a barrier between reading a stage and filling it; what is outside
 * of an operand arrives as zeros.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "conv.cuh"
#include "conv_last.cuh"

#define MOST_TAPS 32 /* r s: a bit each */

/* ---- weights ---- */

/* Element (k, c, r, s) of w to out [k][r][s][c], or, for dx, of each group to
 * [c][r][s][k]. Blocks: 32 c, 32 k, groups. */
DEVICE void conv_weights_copy(const dsi_cuda_conv_args &P, bool dx)
{
    DYNAMIC_SHARED(half_bits, tile); /* [32 k][32 c][r s] */
    int taps = P.r * P.s, line = 32 * taps + 2, c0 = blockIdx.x * 32, k0 = blockIdx.y * 32,
        group = blockIdx.z;
#pragma unroll 1
    for (int e = threadIdx.x; e < 32 * 32 * taps; e += 256) {
        int i = e / (32 * taps), rest = e % (32 * taps), c = c0 + rest / taps, tap = rest % taps;
        if (k0 + i >= P.k || c >= P.c) continue;
        long long at = ((long long)group * P.k + k0 + i) * P.ws[0] + c * P.ws[1] +
                       tap / P.s * P.ws[2] + tap % P.s * P.ws[3];
        tile[i * line + rest] = ((const half_bits *)P.w)[at];
    }
    __syncthreads();
    int outer0 = dx ? c0 : k0, inner0 = dx ? k0 : c0, outers = dx ? P.c : P.k,
        inners = dx ? P.k : P.c;
#pragma unroll 1
    for (int e = threadIdx.x; e < 32 * 32 * taps; e += 256) {
        int j = e % 32, tap = e / 32 % taps, i = e / 32 / taps;
        if (outer0 + i >= outers || inner0 + j >= inners) continue;
        long long at = (((long long)group * outers + outer0 + i) * taps + tap) * inners + inner0 +
                       j;
        int k = dx ? j : i, c = dx ? i : j;
        ((half_bits *)P.out)[at] = tile[k * line + c * taps + tap];
    }
}
KERNEL(conv2d_weights, dsi_cuda_conv_args, 256) { conv_weights_copy(P, false); }
KERNEL(conv2d_dx_weights, dsi_cuda_conv_args, 256) { conv_weights_copy(P, true); }

/* ---- few channels: what is under each pixel's taps, as channels ---- */

/* x to out [pixels][columns], zeros behind the taps: a thread 8 columns, a warp
 * 32 pixels. */
KERNEL(conv2d_patches, dsi_cuda_conv_args, 256)
{
    int pieces = P.columns / 8;
    GRID_LOOP(e, (P.pixels + 31ll) / 32 * 32 * pieces)
    {
        int warp = (int)(e / 32), pixel = warp / pieces * 32 + (int)(e % 32),
            column = warp % pieces * 8;
        if (pixel >= P.pixels) continue;
        conv_pixel at = pixel_of(P, (unsigned)pixel);
        half_bits v[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            conv_tap t = tap_of(P, (unsigned)(column + i));
            long long x = column + i < P.taps ? under_tap(P, at, t.c, t.r, t.s) : OUTSIDE;
            v[i] = x >= 0 ? ((const half_bits *)P.x)[x] : (half_bits)0;
        }
        uint4 bits;
        memcpy(&bits, v, 16);
        *(uint4 *)((half_bits *)P.out + (long long)pixel * P.columns + column) = bits;
    }
}

/* w to out [k][columns], in that order of taps */
KERNEL(conv2d_patch_weights, dsi_cuda_conv_args, 256)
{
    GRID_LOOP(e, (long long)P.k * P.columns)
    {
        unsigned column = (unsigned)(e % P.columns);
        ((half_bits *)P.out)[e] = (int)column < P.taps
                                      ? ((const half_bits *)P.w)[dw_place(P, e / P.columns, column)]
                                      : (half_bits)0;
    }
}

/* ---- y and dx ---- */

/* The convolution that a block is a part of: `inner` channels of a group of `in`,
 * h x width, give `channels` of the output, of which this class has rows x
 * columns: y0 + out_stride[0] i, x0 + out_stride[1] j. is, os: strides. */
struct conv_map {
    const half_bits *in, *w;
    const long long *is, *os;
    int h, width, y0, x0, rows, columns, stride[2], out_stride[2], inner, channels, out_group;
};
DEVICE conv_map map_of(const dsi_cuda_conv_args &P, bool dx)
{
    conv_map m;
    int classes = dx ? P.stride[0] * P.stride[1] : 1, group = blockIdx.z / classes,
        kind = blockIdx.z % classes;
    m.out_group = group;
    m.is = dx ? P.ys : P.xs, m.os = dx ? P.xs : P.ys;
    m.h = dx ? P.p : P.h, m.width = dx ? P.q : P.width;
    m.inner = dx ? P.k : P.c, m.channels = dx ? P.c : P.k;
    m.y0 = dx ? kind / P.stride[1] : 0, m.x0 = dx ? kind % P.stride[1] : 0;
    for (int i = 0; i < 2; i++)
        m.stride[i] = dx ? 1 : P.stride[i], m.out_stride[i] = dx ? P.stride[i] : 1;
    m.rows = ((dx ? P.h : P.p) - m.y0 + m.out_stride[0] - 1) / m.out_stride[0];
    m.columns = ((dx ? P.width : P.q) - m.x0 + m.out_stride[1] - 1) / m.out_stride[1];
    m.in = (const half_bits *)(dx ? P.dy : P.x) + group * m.inner;
    m.w = (const half_bits *)P.w + (long long)group * m.channels * P.r * P.s * m.inner;
    return m;
}

/* A tap (r, s) that contributes to the block's pixels. */
struct conv_tap_at {
    int y, x, from, weights; /* from, weights: distances in elements */
};

struct conv_shared {
    conv_tap_at tap[MOST_TAPS];
    int taps;
};

/* Ends with a barrier. */
DEVICE void conv_taps_of(const dsi_cuda_conv_args &P, const conv_map &m, bool dx, conv_shared &s)
{
    if (threadIdx.x == 0) {
        int n = 0;
        for (int i = 0; i < P.r * P.s; i++) {
            int y = i / P.s * P.dilation[0] - P.padding[0],
                x = i % P.s * P.dilation[1] - P.padding[1];
            if (dx) y = m.y0 - y, x = m.x0 - x;
            if (dx && (y % P.stride[0] || x % P.stride[1])) continue;
            if (dx) y /= P.stride[0], x /= P.stride[1];
            s.tap[n++] = {y, x, (int)(y * m.is[2] + x * m.is[3]), i * m.inner};
        }
        s.taps = n;
    }
    __syncthreads();
}

/* A pixel of the tile: where its tap (0, 0) is, and which taps are inside of the
 * image. */
struct conv_row {
    int at;
    unsigned inside;
};
DEVICE conv_row conv_row_of(const conv_map &m, const conv_shared &s, int n, int pixel)
{
    conv_row row = {0, 0};
    int plane = m.rows * m.columns, i = pixel / plane, y = pixel % plane / m.columns * m.stride[0],
        x = pixel % m.columns * m.stride[1];
    if (i >= n) return row;
    row.at = (int)(i * m.is[0] + y * m.is[2] + x * m.is[3]);
    for (int t = 0; t < s.taps; t++) {
        int h = y + s.tap[t].y, w = x + s.tap[t].x;
        if (h >= 0 && h < m.h && w >= 0 && w < m.width) row.inside |= 1u << t;
    }
    return row;
}

/* Offset of pixel of the class in the output; -1: there is none. */
DEVICE int conv_out_at(const conv_map &m, int n, int pixel)
{
    int plane = m.rows * m.columns, i = pixel / plane,
        y = m.y0 + pixel % plane / m.columns * m.out_stride[0],
        x = m.x0 + pixel % m.columns * m.out_stride[1];
    return i < n ? (int)(i * m.os[0] + y * m.os[2] + x * m.os[3]) : -1;
}

/* A thread's place in the taps, of which its next piece of 8 channels is. */
struct conv_place {
    int tap, c;
};
DEVICE void next_place(conv_place &at, int by, int inner)
{
    at.c += by;
    while (at.c >= inner) at.c -= inner, at.tap++;
}

/* Fills a stage: LINES lines at a time, a thread the same piece of each. */
template <int A, int B, int LINES>
DEVICE void conv_fill(const conv_map &m, const conv_shared &s, const conv_row (&row)[A],
                      conv_place at, int column0, int all_taps, half_bits *a, half_bits *b)
{
    int line0 = threadIdx.x / 4, piece = threadIdx.x % 4;
    bool in = at.tap < s.taps;
    conv_tap_at tap = s.tap[in ? at.tap : 0];
#pragma unroll
    for (int j = 0; j < A; j++) {
        bool ok = in && row[j].inside >> at.tap & 1;
        cp_async16(&a[along_at(line0 + j * LINES, piece)],
                   m.in + (ok ? row[j].at + tap.from + at.c : 0), ok ? 16 : 0);
    }
#pragma unroll
    for (int j = 0; j < B; j++) {
        int k = column0 + line0 + j * LINES;
        bool ok = in && k < m.channels;
        cp_async16(&b[along_at(line0 + j * LINES, piece)],
                   m.w + (ok ? k * all_taps * m.inner + tap.weights + at.c : 0), ok ? 16 : 0);
    }
}

template <bool BF16> DEVICE unsigned half_pair(float a, float b)
{
    __nv_bfloat16 x[2] = {__float2bfloat16_rn(a), __float2bfloat16_rn(b)};
    __half y[2] = {__float2half_rn(a), __float2half_rn(b)};
    unsigned bits;
    if (BF16)
        memcpy(&bits, x, 4);
    else
        memcpy(&bits, y, 4);
    return bits;
}

/* Writes a warp's tile of pixels x channels from `channel` of the group on, by
 * way of its own shared memory; out_at: the pixels' places. */
template <bool BF16>
DEVICE void conv_last_write(const dsi_cuda_conv_args &P, const conv_map &m, const warp_sums &acc,
                            half_bits *slab, const int *out_at, int channel)
{
    constexpr int LINE = WARP + 8;
    int lane = threadIdx.x % 32, piece = lane % 8 * 8;
    long long first = (long long)(m.out_group) * m.channels;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int column = j * 8 + lane % 4 * 2;
        float bias[2] = {};
        if (P.bias)
            for (int e = 0; e < 2; e++)
                if (channel + column + e < m.channels)
                    bias[e] = load<float>(P.bias, P.bias_dtype,
                                          (first + channel + column + e) * P.bias_s);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 4; e += 2)
                *(unsigned *)&slab[(i * 16 + e * 4 + lane / 4) * LINE + column] = half_pair<BF16>(
                    acc.v[i][j][e] + bias[0], acc.v[i][j][e + 1] + bias[1]);
    }
    __syncwarp();
#pragma unroll 4
    for (int r = lane / 8; r < WARP; r += 4)
        if (out_at[r] >= 0 && channel + piece < m.channels)
            *(uint4 *)((half_bits *)P.out + out_at[r] + first + channel +
                       piece) = *(const uint4 *)&slab[r * LINE + piece];
}

/* Blocks: tiles of pixels, tiles of channels, groups times classes. */
template <bool BF16, int WM, int WN> DEVICE void conv_last(const dsi_cuda_conv_args &P, bool dx)
{
    constexpr int ROWS = WM * WARP, COLUMNS = WN * WARP, THREADS = 32 * WM * WN,
                  LINES = THREADS / 4, A = ROWS / LINES, B = COLUMNS / LINES,
                  SIZE = (ROWS + COLUMNS) * DEPTH;
    DYNAMIC_SHARED(half_bits, stage);
    SHARED(conv_shared, s, [1]);
    SHARED(int, out_at, [ROWS]);
    conv_map m = map_of(P, dx);
    int pixel0 = blockIdx.x * ROWS, column0 = blockIdx.y * COLUMNS;
    if (pixel0 >= P.n * m.rows * m.columns) return; /* a class of fewer pixels */
    conv_taps_of(P, m, dx, s[0]);
    for (int i = threadIdx.x; i < ROWS; i += THREADS) out_at[i] = conv_out_at(m, P.n, pixel0 + i);
    conv_row row[A];
#pragma unroll
    for (int j = 0; j < A; j++)
        row[j] = conv_row_of(m, s[0], P.n, pixel0 + threadIdx.x / 4 + j * LINES);

    int steps = (s[0].taps * (m.inner / 8) + 3) / 4, warp = threadIdx.x / 32, wm = warp / WN * WARP,
        wn = warp % WN * WARP;
    conv_place at = {0, 0};
    next_place(at, threadIdx.x % 4 * 8, m.inner);
    warp_sums acc = {};
#pragma unroll 1
    for (int i = 1 - STAGES; i < steps; i++) {
        int next = i + STAGES - 1;
        if (i >= 0) {
            cp_async_wait(STAGES - 2);
            __syncthreads();
        }
        if (next < steps) {
            half_bits *to = stage + next % STAGES * SIZE;
            conv_fill<A, B, LINES>(m, s[0], row, at, column0, P.r * P.s, to, to + ROWS * DEPTH);
            next_place(at, DEPTH, m.inner);
        }
        cp_async_commit(); /* maybe of nothing: one group a step */
        const half_bits *now = stage + (i + STAGES) % STAGES * SIZE;
        if (i >= 0) warp_along<BF16>(acc, now, wm, now + ROWS * DEPTH, wn);
    }
    cp_async_wait(0);
    __syncthreads();
    conv_last_write<BF16>(P, m, acc, stage + warp * WARP * (WARP + 8), out_at + wm, column0 + wn);
}

#define CONV_LAST(suffix, bf16) \
    KERNEL(conv2d_last_##suffix, dsi_cuda_conv_args, 128) { conv_last<bf16, 2, 2>(P, false); } \
    KERNEL(conv2d_last_narrow_##suffix, dsi_cuda_conv_args, 128) \
    { \
        conv_last<bf16, 4, 1>(P, false); \
    } \
    KERNEL(conv2d_dx_last_##suffix, dsi_cuda_conv_args, 128) { conv_last<bf16, 2, 2>(P, true); } \
    KERNEL(conv2d_dx_last_narrow_##suffix, dsi_cuda_conv_args, 128) \
    { \
        conv_last<bf16, 4, 1>(P, true); \
    }
CONV_LAST(f16, false)
CONV_LAST(bf16, true)

/* ---- dw ---- */

/* x under a thread's tap and 8 channels, of whichever pixel; c < 0: none. */
struct conv_column {
    int y, x, c;
};
DEVICE conv_column conv_column_of(const dsi_cuda_conv_args &P, int column)
{
    int tap = column / P.c, r = tap / P.s, s = tap % P.s;
    return {r * P.dilation[0] - P.padding[0], s * P.dilation[1] - P.padding[1],
            column < P.taps ? column % P.c : -1};
}

/* Lines of `rows` elements of dy, from `from` on: pixels pixel ... */
template <int ROWS, int THREADS>
DEVICE void conv_dw_fill_dy(const dsi_cuda_conv_args &P, half_bits *to, const half_bits *from,
                            bool in, int pixel, int end)
{
    constexpr int PIECES = ROWS / 8;
    int piece = threadIdx.x % PIECES;
#pragma unroll
    for (int i = 0; i < DEPTH; i += THREADS / PIECES) {
        int line = i + threadIdx.x / PIECES;
        bool ok = in && pixel + line < end;
        if (DEPTH % (THREADS / PIECES) && line >= DEPTH) continue;
        cp_async16(&to[across_at(line, piece, PIECES)], from + (ok ? (pixel + line) * P.ys[3] : 0),
                   ok ? 16 : 0);
    }
}

/* Lines of x under the taps of this thread's column. */
template <int COLUMNS, int THREADS>
DEVICE void conv_dw_fill_x(const dsi_cuda_conv_args &P, half_bits *to, const half_bits *from,
                           conv_column at, int pixel, int end)
{
    constexpr int PIECES = COLUMNS / 8;
    int piece = threadIdx.x % PIECES;
#pragma unroll
    for (int i = 0; i < DEPTH; i += THREADS / PIECES) {
        int line = i + threadIdx.x / PIECES;
        conv_pixel p = pixel_of(P, (unsigned)(pixel + line));
        int y = p.y * P.stride[0] + at.y, x = p.x * P.stride[1] + at.x;
        bool ok = at.c >= 0 && pixel + line < end && y >= 0 && y < P.h && x >= 0 && x < P.width;
        int place = (int)P.xs[0] * p.n + (int)P.xs[2] * y + (int)P.xs[3] * x + at.c;
        if (DEPTH % (THREADS / PIECES) && line >= DEPTH) continue;
        cp_async16(&to[across_at(line, piece, PIECES)], from + (ok ? place : 0), ok ? 16 : 0);
    }
}

/* A part of the sum for a warp's tile of dw. */
DEVICE void conv_dw_part(const dsi_cuda_conv_args &P, const warp_sums &acc, long long part, int row,
                         int column)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int k = row + i * 8 + lane / 4;
        float *to = P.part + (part * P.k + k) * P.columns;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int at = column + j * 8 + lane % 4 * 2, e = i % 2 * 2;
            if (k < P.k && at < P.columns)
                *(float2 *)&to[at] = make_float2(acc.v[i / 2][j][e], acc.v[i / 2][j][e + 1]);
        }
    }
}

/* Blocks: tiles of taps, tiles of k, groups splits + split. */
template <bool BF16, int WM, int WN> DEVICE void conv_dw_last(const dsi_cuda_conv_args &P)
{
    constexpr int ROWS = WM * WARP, COLUMNS = WN * WARP, THREADS = 32 * WM * WN,
                  SIZE = (ROWS + COLUMNS) * DEPTH;
    DYNAMIC_SHARED(half_bits, stage);
    int group = blockIdx.z / P.splits, split = blockIdx.z % P.splits, row0 = blockIdx.y * ROWS,
        column0 = blockIdx.x * COLUMNS, begin = split * P.split_pixels,
        end = min(begin + P.split_pixels, P.pixels), warp = threadIdx.x / 32, wm = warp / WN * WARP,
        wn = warp % WN * WARP, k = row0 + threadIdx.x % (ROWS / 8) * 8;
    const half_bits *dy = (const half_bits *)P.dy + group * P.k + (k < P.k ? k : 0),
                    *x = (const half_bits *)P.x + group * P.c;
    conv_column at = conv_column_of(P, column0 + threadIdx.x % (COLUMNS / 8) * 8);
    int steps = (end - begin + DEPTH - 1) / DEPTH;
    warp_sums acc = {};
#pragma unroll 1
    for (int i = 1 - STAGES; i < steps; i++) {
        int next = i + STAGES - 1;
        if (i >= 0) {
            cp_async_wait(STAGES - 2);
            __syncthreads();
        }
        if (next < steps) {
            half_bits *to = stage + next % STAGES * SIZE;
            int pixel = begin + next * DEPTH;
            conv_dw_fill_dy<ROWS, THREADS>(P, to, dy, k < P.k, pixel, end);
            conv_dw_fill_x<COLUMNS, THREADS>(P, to + ROWS * DEPTH, x, at, pixel, end);
        }
        cp_async_commit(); /* maybe of nothing: one group a step */
        const half_bits *now = stage + (i + STAGES) % STAGES * SIZE;
        if (i >= 0) warp_across<BF16>(acc, now, wm, ROWS, now + ROWS * DEPTH, wn, COLUMNS);
    }
    conv_dw_part(P, acc, (long long)split * P.groups + group, row0 + wm, column0 + wn);
}

/* The sum of the parts, many of few elements: a block adds 32 elements, each by
 * 8 threads, in a fixed order. Columns behind the taps are no elements of dw. */
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

#define CONV_DW_LAST(suffix, bf16) \
    KERNEL(conv2d_dw_last_##suffix, dsi_cuda_conv_args, 128) { conv_dw_last<bf16, 2, 2>(P); } \
    KERNEL(conv2d_dw_last_narrow_##suffix, dsi_cuda_conv_args, 96) { conv_dw_last<bf16, 1, 3>(P); }
CONV_DW_LAST(f16, false)
CONV_DW_LAST(bf16, true)
