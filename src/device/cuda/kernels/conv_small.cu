/* device/cuda/kernels/conv_small.cu: convolutions with at most 16 channels out
 * of a group (dx: in), whose tiles of 64 x 64 would be mostly empty, and too
 * few.
 *
 *     conv2d_small      lanes are 32 pixels; warps share the taps
 *     conv2d_dx_small   the same of dx
 *     conv2d_dw_small   lanes are 32 taps; warps share the pixels of a part
 *
 * A thread keeps ROWS sums, one a channel, and the warps' sums are added in
 * order. What all lanes need is read from shared memory: weights or dy, and
 * where taps or pixels are. AHEAD loads are in flight at once, without branches
 * between them.
 *
 * Invariants: a multiple of 16 warps a block; WARPS of dw. Shared memory: of
 * forward the taps [taps + AHEAD], their weights [taps + AHEAD][ROWS], then sums
 * [warps][ROWS][32]. Offsets within a sample have 32 bits.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "conv.cuh"
#include "team.cuh"

#define WARPS 16 /* of dw */
#define AHEAD 8

/* Of a tap: its distance from the first one along both axes, and the offset of
 * its channel. Of a pixel: where the first tap is, and its sample. */
struct alignas(16) small_place {
    int h, w, at, unused;
};

/* Coordinate i of what a tap of dx is over, as a coordinate of dy; -1: none */
DEVICE int small_over(int i, int end, int stride, const dsi_cuda_divisor &by)
{
    unsigned p = divide((unsigned)max(i, 0), by);
    return i >= 0 && p * (unsigned)stride == (unsigned)i && p < (unsigned)end ? (int)p : -1;
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
#pragma unroll 8
    for (int k = 0; k < (int)blockDim.x / 32; k++) sum += part[(k * ROWS + row) * 32 + threadIdx.x % 32];
    return sum;
}

/* acc[i] += the product of channel i's weights at taps begin .. end - 1 with
 * what is under (dx: over) them. h, w: of the first tap; x: the sample. */
template <int ROWS, class T>
DEVICE void small_taps(const dsi_cuda_conv_args &P, bool dx, const small_place *taps,
                       const float *weights, const T *x, int h, int w, int begin, int end,
                       float (&acc)[ROWS])
{
    int sh = (int)(dx ? P.ys[2] : P.xs[2]), sw = (int)(dx ? P.ys[3] : P.xs[3]);
#pragma unroll 1
    for (int j = begin; j < end; j += AHEAD) {
        float v[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            small_place t = taps[j + u];
            int y = dx ? small_over(h - t.h, P.p, P.stride[0], P.by_stride[0]) : h + t.h;
            int z = dx ? small_over(w - t.w, P.q, P.stride[1], P.by_stride[1]) : w + t.w;
            bool there = j + u < end && y >= 0 && z >= 0 && (dx || (y < P.h && z < P.width));
            v[u] = there ? up(x[t.at + y * sh + z * sw]) : 0.0f;
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
#pragma unroll
            for (int i = 0; i < ROWS; i++) acc[i] += v[u] * weights[(j + u) * ROWS + i];
    }
}

/* Blocks: 32 pixels, groups. */
template <int ROWS, class T> DEVICE void conv_small(const dsi_cuda_conv_args &P, bool dx)
{
    DYNAMIC_SHARED(small_place, taps);
    int room = P.taps + AHEAD, warp = threadIdx.x / 32, warps = blockDim.x / 32,
        channels = dx ? P.c : P.k;
    float *weights = (float *)(taps + room), *part = weights + room * ROWS;
    long long group = blockIdx.y, pixel = blockIdx.x * 32ll + threadIdx.x % 32;
    conv_weights from = {P.w, P.dtype, P, group, dx};
    int lane = threadIdx.x % 32, row = warp % ROWS, lines = warps / ROWS;
#pragma unroll 4
    for (int j = warp / ROWS * 32 + lane; j < room; j += lines * 32) {
        long long place = from.place(row, j);
        weights[j * ROWS + row] = place < 0 ? 0.0f : up(((const T *)P.w)[place]);
    }
    for (int j = threadIdx.x; j < room; j += warps * 32) {
        conv_tap t = tap_of(P, (unsigned)min(j, P.taps - 1));
        taps[j] = {t.r * P.dilation[0], t.s * P.dilation[1],
                   t.c * (int)(dx ? P.ys[1] : P.xs[1]), 0};
    }
    bool inside = pixel < P.pixels;
    conv_pixel at = pixel_of(P, inside ? (unsigned)pixel : 0);
    long long sample = dx ? at.n * P.ys[0] + group * P.k * P.ys[1]
                          : at.n * P.xs[0] + group * P.c * P.xs[1];
    const T *x = (const T *)(dx ? P.dy : P.x) + sample;
    int h = dx ? at.y + P.padding[0] : at.y * P.stride[0] - P.padding[0],
        w = dx ? at.x + P.padding[1] : at.x * P.stride[1] - P.padding[1];
    __syncthreads();
    int each = (P.taps + warps - 1) / warps, begin = min(warp * each, P.taps);
    float acc[ROWS] = {};
    small_taps<ROWS, T>(P, dx, taps, weights, x, h, w, begin, min(begin + each, P.taps), acc);
    put_sums<ROWS>(part, acc);
    const long long *s = dx ? P.xs : P.ys;
#pragma unroll 1
    for (int i = warp; i < channels; i += warps) {
        long long k = group * channels + i;
        float v = sum_of<ROWS>(part, i);
        if (!inside) continue;
        if (P.bias) v += load<float>(P.bias, P.bias_dtype, k * P.bias_s);
        store<float>(P.out, P.dtype, at.n * s[0] + k * s[1] + at.y * s[2] + at.x * s[3], v);
    }
}

/* ---- backward of w ---- */

#define CHUNK 16 /* pixels of which a warp keeps dy: two loads a thread and row of 32 lanes */

/* dy of `n` pixels from `first` on, to dy[pixel][ROWS], and where they are, by
 * one warp. */
template <int ROWS, class T>
DEVICE void small_fill(const dsi_cuda_conv_args &P, float *dy, small_place *pixels, long long group,
                       int first, int n)
{
    int lane = threadIdx.x % 32, j = lane % CHUNK;
    conv_pixel at = pixel_of(P, (unsigned)min(first + j, P.pixels - 1));
    const T *from = (const T *)P.dy + at.n * P.ys[0] + at.y * P.ys[2] + at.x * P.ys[3] +
                    group * P.k * P.ys[1];
    if (lane < CHUNK)
        pixels[j] = {at.y * P.stride[0] - P.padding[0], at.x * P.stride[1] - P.padding[1], at.n, 0};
#pragma unroll
    for (int k = 0; k < ROWS; k += 32 / CHUNK) {
        int i = k + lane / CHUNK;
        dy[j * ROWS + i] = j < n && i < P.k ? up(from[i * P.ys[1]]) : 0.0f;
    }
}

/* Blocks: 32 columns, groups times parts. */
template <int ROWS, class T> DEVICE void conv_dw_small(const dsi_cuda_conv_args &P)
{
    SHARED(float, shared, [WARPS * ROWS * 32]); /* dy [WARPS][CHUNK][ROWS], then sums */
    SHARED(small_place, places, [WARPS * CHUNK]);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    long long column = blockIdx.x * 32ll + lane, group = blockIdx.y / P.splits,
              split = blockIdx.y % P.splits;
    int begin = (int)split * P.split_pixels, end = min(begin + P.split_pixels, P.pixels);
    int each = ((end - begin + WARPS - 1) / WARPS + CHUNK - 1) / CHUNK * CHUNK;
    float acc[ROWS] = {}, *dy = shared + warp * CHUNK * ROWS;
    small_place *pixels = places + warp * CHUNK;
    bool tap = column < P.taps;
    conv_tap t = tap_of(P, tap ? (unsigned)column : 0);
    int dh = t.r * P.dilation[0], dw = t.s * P.dilation[1], sh = (int)P.xs[2], sw = (int)P.xs[3];
    const T *x = (const T *)P.x + (group * P.c + t.c) * P.xs[1];
    float outside = column == P.taps ? 1.0f : 0.0f;
    int first = min(begin + warp * each, end), past = min(first + each, end);
#pragma unroll 1
    for (; first < past; first += CHUNK) {
        small_fill<ROWS, T>(P, dy, pixels, group, first, min(CHUNK, past - first));
        __syncwarp();
#pragma unroll 1
        for (int j = 0; j < CHUNK; j += AHEAD) {
            float v[AHEAD];
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                small_place at = pixels[j + u];
                int h = at.h + dh, w = at.w + dw;
                bool there = tap && h >= 0 && h < P.h && w >= 0 && w < P.width;
                v[u] = there ? up(x[at.at * P.xs[0] + h * sh + w * sw]) : outside;
            }
#pragma unroll
            for (int u = 0; u < AHEAD; u++)
#pragma unroll
                for (int i = 0; i < ROWS; i++) acc[i] += v[u] * dy[(j + u) * ROWS + i];
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

#define CONV_SMALL(rows, suffix, T) \
    KERNEL(conv2d_small_##rows##_##suffix, dsi_cuda_conv_args, 1024) { conv_small<rows, T>(P, false); } \
    KERNEL(conv2d_dx_small_##rows##_##suffix, dsi_cuda_conv_args, 1024) { conv_small<rows, T>(P, true); } \
    KERNEL(conv2d_dw_small_##rows##_##suffix, dsi_cuda_conv_args, 512) { conv_dw_small<rows, T>(P); }
CONV_SMALL(8, f32, float)
CONV_SMALL(16, f32, float)
CONV_SMALL(16, f16, __half)
CONV_SMALL(16, bf16, __nv_bfloat16)
