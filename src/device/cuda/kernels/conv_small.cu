/* device/cuda/kernels/conv_small.cu: convolutions with at most 16 channels out
 * of a group (dx: in), whose tiles of 64 x 64 would be mostly empty, and too
 * few.
 *
 *     conv2d_small      lanes are 32 pixels; warps share the taps
 *     conv2d_dx_small   the same of dx
 *     conv2d_dw_small   lanes are 32 taps; warps share the pixels of a part
 *
 * A thread keeps ROWS sums, one a channel, and the warps' sums are added in
 * order. What all lanes need is read from shared memory: the weights, or dy.
 *
 * Invariants: WARPS warps a block. Shared memory: of forward [taps + AHEAD]
 * [ROWS] weights, then [WARPS][ROWS][32] sums.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "conv.cuh"
#include "team.cuh"

#define WARPS 16
#define AHEAD 4 /* loads of x in flight */

/* A tap, counted on: the order of tap_of. */
struct conv_walk {
    conv_tap t;
    int c, r, s;
    bool last; /* channels are innermost */
};
DEVICE conv_walk walk_from(const dsi_cuda_conv_args &P, unsigned tap, int channels)
{
    return {tap_of(P, tap), channels, P.r, P.s, P.channels_last != 0};
}
DEVICE void walk_on(conv_walk &w)
{
    conv_tap &t = w.t;
    if (w.last) {
        if (++t.c < w.c) return;
        t.c = 0;
        if (++t.s < w.s) return;
        t.s = 0, t.r++;
    } else {
        if (++t.s < w.s) return;
        t.s = 0;
        if (++t.r < w.r) return;
        t.r = 0, t.c++;
    }
}

/* The sums of all warps, in their order; sum: this thread's element (row, lane),
 * row = threadIdx.x / 32 + i WARPS. */
template <int ROWS> DEVICE void put_sums(float *part, const float (&acc)[ROWS])
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < ROWS; i++) part[(warp * ROWS + i) * 32 + lane] = acc[i];
    __syncthreads();
}
template <int ROWS> DEVICE float sum_of(const float *part, int row)
{
    float sum = 0;
#pragma unroll
    for (int k = 0; k < WARPS; k++) sum += part[(k * ROWS + row) * 32 + threadIdx.x % 32];
    return sum;
}

/* acc[i] += the product of channel i's weights at taps begin .. end - 1 with
 * what is under (dx: over) them. */
template <int ROWS>
DEVICE void small_taps(const dsi_cuda_conv_args &P, bool dx, const float *weights, conv_pixel at,
                       bool inside, long long group, int begin, int end, float (&acc)[ROWS])
{
    int channels = dx ? P.k : P.c;
    conv_walk w = walk_from(P, (unsigned)begin, channels);
#pragma unroll 1
    for (int j = begin; j < end; j += AHEAD) {
        float x[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const conv_tap &t = w.t;
            long long place = -1;
            if (inside && j + u < end)
                place = dx ? over_tap(P, at, group * channels + t.c, t.r, t.s)
                           : under_tap(P, at, group * channels + t.c, t.r, t.s);
            x[u] = place < 0 ? 0.0f : load<float>(dx ? P.dy : P.x, P.dtype, place);
            walk_on(w);
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
#pragma unroll
            for (int i = 0; i < ROWS; i++) acc[i] += x[u] * weights[(j + u) * ROWS + i];
    }
}

/* Blocks: 32 pixels, groups. */
template <int ROWS> DEVICE void conv_small(const dsi_cuda_conv_args &P, bool dx)
{
    DYNAMIC_SHARED(float, shared);
    float *weights = shared, *part = shared + (P.taps + AHEAD) * ROWS;
    int warp = threadIdx.x / 32, channels = dx ? P.c : P.k;
    long long group = blockIdx.y, pixel = blockIdx.x * 32ll + threadIdx.x % 32;
    conv_weights from = {P.w, P.dtype, P, group, dx};
    bool inside = pixel < P.pixels;
    conv_pixel at = pixel_of(P, inside ? (unsigned)pixel : 0);
#pragma unroll 1
    for (int e = threadIdx.x; e < (P.taps + AHEAD) * ROWS; e += WARPS * 32) {
        int i = e / (P.taps + AHEAD), j = e % (P.taps + AHEAD);
        long long place = from.place(i, j);
        weights[j * ROWS + i] = place < 0 ? 0.0f : load<float>(P.w, P.dtype, place);
    }
    __syncthreads();
    int each = (P.taps + WARPS - 1) / WARPS, begin = min(warp * each, P.taps);
    float acc[ROWS] = {};
    small_taps<ROWS>(P, dx, weights, at, inside, group, begin, min(begin + each, P.taps), acc);
    put_sums<ROWS>(part, acc);
    const long long *s = dx ? P.xs : P.ys;
#pragma unroll 1
    for (int i = warp; i < channels; i += WARPS) {
        long long k = group * channels + i;
        float v = sum_of<ROWS>(part, i);
        if (!inside) continue;
        if (P.bias) v += load<float>(P.bias, P.bias_dtype, k * P.bias_s);
        store<float>(P.out, P.dtype, at.n * s[0] + k * s[1] + at.y * s[2] + at.x * s[3], v);
    }
}
KERNEL(conv2d_small_8, dsi_cuda_conv_args, 512) { conv_small<8>(P, false); }
KERNEL(conv2d_small_16, dsi_cuda_conv_args, 512) { conv_small<16>(P, false); }
KERNEL(conv2d_dx_small_8, dsi_cuda_conv_args, 512) { conv_small<8>(P, true); }
KERNEL(conv2d_dx_small_16, dsi_cuda_conv_args, 512) { conv_small<16>(P, true); }

/* ---- backward of w ---- */

#define CHUNK 16 /* pixels of which a warp keeps dy: two loads a thread and row of 32 lanes */

/* dy of `n` pixels from `first` on, to dy[pixel][ROWS], by one warp. */
template <int ROWS>
DEVICE void small_fill(const dsi_cuda_conv_args &P, float *dy, long long group, int first, int n)
{
    int lane = threadIdx.x % 32, j = lane % CHUNK;
    conv_pixel at = pixel_of(P, (unsigned)min(first + j, P.pixels - 1));
    long long place = at.n * P.ys[0] + at.y * P.ys[2] + at.x * P.ys[3];
#pragma unroll
    for (int i = lane / CHUNK; i < ROWS; i += 32 / CHUNK)
        dy[j * ROWS + i] = j < n && i < P.k
                               ? load<float>(P.dy, P.dtype, place + (group * P.k + i) * P.ys[1])
                               : 0.0f;
}

/* Blocks: 32 columns, groups times parts. */
template <int ROWS> DEVICE void conv_dw_small(const dsi_cuda_conv_args &P)
{
    SHARED(float, shared, [WARPS * ROWS * 32]); /* dy [WARPS][CHUNK][ROWS], then sums */
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    long long column = blockIdx.x * 32ll + lane, group = blockIdx.y / P.splits,
              split = blockIdx.y % P.splits;
    int begin = (int)split * P.split_pixels, end = min(begin + P.split_pixels, P.pixels);
    int each = ((end - begin + WARPS - 1) / WARPS + CHUNK - 1) / CHUNK * CHUNK;
    float acc[ROWS] = {}, *dy = shared + warp * CHUNK * ROWS;
    bool tap = column < P.taps;
    conv_tap t = tap_of(P, tap ? (unsigned)column : 0);
    int first = min(begin + warp * each, end), past = min(first + each, end);
#pragma unroll 1
    for (; first < past; first += CHUNK) {
        int n = min(CHUNK, past - first);
        small_fill<ROWS>(P, dy, group, first, n);
        __syncwarp();
#pragma unroll 4
        for (int j = 0; j < CHUNK; j++) {
            conv_pixel at = pixel_of(P, (unsigned)min(first + j, P.pixels - 1));
            long long place = tap ? under_tap(P, at, group * P.c + t.c, t.r, t.s) : -1;
            float x = place >= 0 ? load<float>(P.x, P.dtype, place) : column == P.taps ? 1.0f : 0.0f;
#pragma unroll
            for (int i = 0; i < ROWS; i++) acc[i] += x * dy[j * ROWS + i];
        }
        __syncwarp();
    }
    __syncthreads(); /* dy becomes sums */
    put_sums<ROWS>(shared, acc);
#pragma unroll 1
    for (int i = warp; i < P.k; i += WARPS) {
        float v = sum_of<ROWS>(shared, i);
        if (column >= P.columns) continue;
        if (P.splits > 1)
            P.part[(split * P.groups * P.k + group * P.k + i) * P.columns + column] = v;
        else
            dw_store(P, group * P.k + i, column, v);
    }
}
KERNEL(conv2d_dw_small_8, dsi_cuda_conv_args, 512) { conv_dw_small<8>(P); }
KERNEL(conv2d_dw_small_16, dsi_cuda_conv_args, 512) { conv_dw_small<16>(P); }
