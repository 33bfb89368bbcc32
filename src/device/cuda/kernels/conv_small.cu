/* device/cuda/kernels/conv_small.cu: convolutions with at most 16 channels out
 * of a group (dx: in), whose tiles of 64 x 64 would be mostly empty, and too
 * few.
 *
 *     conv2d_small        lanes are 32 pixels; warps share the taps
 *     conv2d_dx_small     the same of dx
 *     conv2d_dw_small     lanes are 32 taps; warps share the pixels of a part
 *     conv2d_back_pooled  dx and dw of a gradient in pooled form, in one launch: dx has
 *                         the planes of a sample in shared memory, dw visits the windows
 *     conv2d_back_scanned the same, where pixels of dx visit the windows too
 *
 * A thread keeps ROWS sums, one a channel, and the warps' sums are added in
 * order. Values that all lanes need are read from shared memory: weights or dy,
 * and the places of taps or pixels. AHEAD loads are in flight at once, without
 * branches between them.
 *
 * A small batch has few pixels: instances of 2 rows then have more blocks,
 * which share a group's channels. Forward may compute max-pooling of 2 x 2 too.
 *
 * Invariants: a multiple of ROWS warps a block; WARPS of dw. Shared memory of
 * forward and dx is a small_memory. Offsets within a sample have 32 bits.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "conv_back.cuh"
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
    if (stride == 1) return (unsigned)i < (unsigned)end ? i : -1;
    unsigned p = divide((unsigned)max(i, 0), by);
    return i >= 0 && p * (unsigned)stride == (unsigned)i && p < (unsigned)end ? (int)p : -1;
}

/* The sums of all warps, in their order; sum: this thread's element (row,
 * lane), row = threadIdx.x / 32 + i WARPS. Loads are AHEAD at a time. */
template <int ROWS> DEVICE void put_sums(float *part, const float (&acc)[ROWS])
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < ROWS; i++) part[(warp * ROWS + i) * 32 + lane] = acc[i];
    __syncthreads();
}
template <int ROWS> DEVICE float sum_of(const float *part, int row, int warps)
{
    float sum = 0;
    part += row * 32 + threadIdx.x % 32;
#pragma unroll 1
    for (int k = 0; k < warps; k += AHEAD) {
        float v[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) v[u] = k + u < warps ? part[(k + u) * ROWS * 32] : 0.0f;
#pragma unroll
        for (int u = 0; u < AHEAD; u++) sum += v[u];
    }
    return sum;
}

/* The weights of ROWS channels at a tap, read by one load of shared memory. */
template <int ROWS> struct alignas(ROWS % 4 ? 8 : 16) small_row {
    float v[ROWS];
};

/* The shared memory of a block, in this order. */
template <int ROWS> struct small_memory {
    small_place *taps;       /* [taps + AHEAD] */
    small_row<ROWS> *weights; /* [taps + AHEAD] */
    float *part;             /* [warps][ROWS][32] */
    DEVICE_MEMBER small_memory(const dsi_cuda_conv_args &P, small_place *memory)
        : taps(memory), weights((small_row<ROWS> *)(memory + P.taps + AHEAD)),
          part((float *)(weights + P.taps + AHEAD))
    {
    }
};

/* Places of taps in planes of `plane` elements, and the weights of the channels
 * from `first` on. A multiple of ROWS warps. */
template <int ROWS, class T>
DEVICE void small_weights(const dsi_cuda_conv_args &P, bool dx, long long group, int first, int plane,
                          const small_memory<ROWS> &m)
{
    enum { LOADS = ROWS == 2 ? 2 : 4 }; /* a block of few rows has most taps at once */
    conv_weights from = {P.w, P.dtype, P, group, dx};
    int room = P.taps + AHEAD, warp = threadIdx.x / 32, warps = blockDim.x / 32, row = warp % ROWS,
        step = warps / ROWS * 32;
#pragma unroll 1
    for (int j = warp / ROWS * 32 + threadIdx.x % 32; j < room; j += LOADS * step) {
        float v[LOADS];
#pragma unroll
        for (int u = 0; u < LOADS; u++) {
            long long place = from.place(first + row, j + u * step);
            v[u] = place < 0 ? 0.0f : up(((const T *)P.w)[place]);
        }
#pragma unroll
        for (int u = 0; u < LOADS; u++)
            if (j + u * step < room) m.weights[j + u * step].v[row] = v[u];
    }
#pragma unroll 1
    for (int j = threadIdx.x; j < room; j += warps * 32) {
        conv_tap t = tap_of(P, (unsigned)min(j, P.taps - 1));
        m.taps[j] = {t.r * P.dilation[0], t.s * P.dilation[1], t.c * plane, 0};
    }
}

/* A sample's image: x, or dy for dx. */
template <class T> struct small_image {
    const T *p;
    int sh, sw; /* strides of rows and columns */
};

/* This warp's part of the taps: part = the products of the channels' weights
 * with what is under (dx: over) them; h, w: of the first tap. */
template <int ROWS, class T>
DEVICE void small_taps(const dsi_cuda_conv_args &P, bool dx, const small_memory<ROWS> &m,
                       const small_image<T> &x, int h, int w)
{
    int warp = threadIdx.x / 32, warps = blockDim.x / 32, each = (P.taps + warps - 1) / warps,
        begin = min(warp * each, P.taps), end = min(begin + each, P.taps);
    float acc[ROWS] = {};
#pragma unroll 1
    for (int j = begin; j < end; j += AHEAD) {
        float v[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            small_place t = m.taps[j + u];
            int y = dx ? small_over(h - t.h, P.p, P.stride[0], P.by_stride[0]) : h + t.h;
            int z = dx ? small_over(w - t.w, P.q, P.stride[1], P.by_stride[1]) : w + t.w;
            bool there = j + u < end && y >= 0 && z >= 0 && (dx || (y < P.h && z < P.width));
            v[u] = there ? up(x.p[t.at + y * x.sh + z * x.sw]) : 0.0f;
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            small_row<ROWS> weight = m.weights[j + u];
#pragma unroll
            for (int i = 0; i < ROWS; i++) acc[i] += v[u] * weight.v[i];
        }
    }
    put_sums<ROWS>(m.part, acc);
}

/* Pixel i; the four of a window of 2 x 2 are neighbours where y is pooled too. */
DEVICE conv_pixel small_pixel(const dsi_cuda_conv_args &P, unsigned i)
{
    if (!P.pooled.value) return pixel_of(P, i);
    unsigned n = divide(i, P.plane), rest = i - n * P.plane.d, window = rest / 4,
             y = divide(window, P.row);
    return {(int)n, (int)(2 * y + rest % 4 / 2), (int)(2 * (window - y * P.row.d) + rest % 2)};
}

/* The maximum of a window, of which four lanes have a value v each: the first
 * of equals, and the last NaN, as max_pool. */
DEVICE void small_pool(const dsi_cuda_conv_args &P, conv_pixel at, long long k, bool inside, float v)
{
    const dsi_cuda_pooled &o = P.pooled;
    int lane = threadIdx.x % 32, which = 0;
    float most = -INFINITY;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float other = __shfl_sync(ALL_LANES, v, lane / 4 * 4 + j);
        if (other > most || other != other) most = other, which = j;
    }
    if (lane % 4 || !inside) return;
    if (o.relu && most < 0) most = 0;
    int p = at.y / 2, q = at.x / 2;
    ((float *)o.value)[at.n * o.vs[0] + k * o.vs[1] + p * o.vs[2] + q * o.vs[3]] = most;
    o.index[at.n * o.is[0] + k * o.is[1] + p * o.is[2] + q * o.is[3]] =
        (at.y + which / 2) * P.q + at.x + which % 2;
}

/* The bias of the channel that this warp writes, read long before it is needed;
 * the first ROWS warps write one each. */
template <int ROWS>
DEVICE float small_bias(const dsi_cuda_conv_args &P, long long group, int first)
{
    int i = first + (int)threadIdx.x / 32;
    bool there = P.bias && threadIdx.x / 32 < ROWS && i < P.k;
    return there ? load<float>(P.bias, P.bias_dtype, (group * P.k + i) * P.bias_s) : 0.0f;
}

/* The sums of channels from `first` on, at pixel `at`. dx has no bias. */
template <int ROWS, class T>
DEVICE void small_write(const dsi_cuda_conv_args &P, bool dx, const float *part, int warps,
                        long long group, int first, conv_pixel at, bool inside, float bias)
{
    int channels = dx ? P.c : P.k, i = threadIdx.x / 32;
    if (i >= min(ROWS, channels - first)) return;
    const long long *s = dx ? P.xs : P.ys;
    long long k = group * channels + first + i;
    float v = sum_of<ROWS>(part, i, warps);
    if (!dx && P.bias) v += bias;
    if (inside) down(v, (T *)P.out + at.n * s[0] + k * s[1] + at.y * s[2] + at.x * s[3]);
    if (!dx && P.pooled.value) small_pool(P, at, k, inside, v);
}

/* Blocks: 32 pixels, groups times parts of their channels. */
template <int ROWS, class T> DEVICE void conv_small(const dsi_cuda_conv_args &P, bool dx)
{
    DYNAMIC_SHARED(small_place, memory);
    small_memory<ROWS> m(P, memory);
    long long group = blockIdx.y / P.row_blocks, pixel = blockIdx.x * 32ll + threadIdx.x % 32;
    int first = (int)(blockIdx.y % P.row_blocks) * ROWS;
    float bias = dx ? 0.0f : small_bias<ROWS>(P, group, first);
    small_weights<ROWS, T>(P, dx, group, first, (int)(dx ? P.ys[1] : P.xs[1]), m);
    bool inside = pixel < P.pixels;
    conv_pixel at = small_pixel(P, inside ? (unsigned)pixel : 0);
    long long sample = dx ? at.n * P.ys[0] + group * P.k * P.ys[1]
                          : at.n * P.xs[0] + group * P.c * P.xs[1];
    small_image<T> x = {(const T *)(dx ? P.dy : P.x) + sample, (int)(dx ? P.ys[2] : P.xs[2]),
                        (int)(dx ? P.ys[3] : P.xs[3])};
    int h = dx ? at.y + P.padding[0] : at.y * P.stride[0] - P.padding[0],
        w = dx ? at.x + P.padding[1] : at.x * P.stride[1] - P.padding[1];
    __syncthreads();
    small_taps<ROWS, T>(P, dx, m, x, h, w);
    small_write<ROWS, T>(P, dx, m.part, (int)blockDim.x / 32, group, first, at, inside, bias);
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
        float v = sum_of<ROWS>(shared, i, WARPS);
        if (column >= P.columns) continue;
        if (P.splits > 1)
            P.part[(split * P.groups * P.k + group * P.k + i) * P.columns + column] = v;
        else
            small_dw_store<T>(P, group * P.k + i, (int)column, v);
    }
}

/* ---- backward, of a gradient in pooled form ---- */

/* dy of a group of sample n as planes: the windows of one are read while the
 * planes are made zero, and what the caller fills. */
DEVICE void small_planes(const dsi_cuda_conv_args &P, float *dy, int n, int group)
{
    const dsi_cuda_divisor &windows = P.pooled.windows;
    unsigned all = P.k * windows.d, plane = P.p * P.q, i = threadIdx.x, k = divide(i, windows);
    small_window w = {-1, 0};
    if (i < all) w = window_of(P, n, group * P.k + k, i - k * windows.d);
#pragma unroll 4
    for (unsigned j = threadIdx.x; j < P.k * plane; j += blockDim.x) dy[j] = 0;
    __syncthreads();
#pragma unroll 1
    while (i < all) {
        if (w.at >= 0) dy[k * plane + w.at] = w.v;
        k = divide(i += blockDim.x, windows);
        if (i < all) w = window_of(P, n, group * P.k + k, i - k * windows.d);
    }
    __syncthreads();
}

/* The pixel of dx of this thread, and the channels of its block: blocks count
 * parts of channels, groups, 32 pixels of a sample, samples. */
struct back_place {
    int first, group;
    bool inside;
    conv_pixel at;
};
template <int ROWS> DEVICE back_place back_place_of(const dsi_cuda_conv_back &P)
{
    unsigned block = blockIdx.x, rest = divide(block, P.parts), sample = divide(rest, P.groups),
             n = divide(sample, P.tiles),
             pixel = (sample - n * P.tiles.d) * 32 + threadIdx.x % 32;
    bool inside = pixel < P.dx.plane.d;
    conv_pixel at = pixel_of(P.dx, inside ? pixel : 0);
    return {(int)(block - rest * P.parts.d) * ROWS, (int)(rest - sample * P.groups.d), inside,
            {(int)n, at.y, at.x}};
}

/* dx of ROWS channels by the taps over each pixel. */
template <int ROWS> DEVICE void dx_pooled(const dsi_cuda_conv_back &back, small_place *memory)
{
    const dsi_cuda_conv_args &P = back.dx;
    small_memory<ROWS> m(P, memory);
    back_place o = back_place_of<ROWS>(back);
    float *dy = m.part + BACK_THREADS * ROWS;
    small_weights<ROWS, float>(P, true, o.group, o.first, P.p * P.q, m);
    small_planes(P, dy, o.at.n, o.group);
    small_image<float> x = {dy, P.q, 1};
    small_taps<ROWS, float>(P, true, m, x, o.at.y + P.padding[0], o.at.x + P.padding[1]);
    small_write<ROWS, float>(P, true, m.part, K_BACK_WARPS, o.group, o.first, o.at, o.inside, 0);
}

/* A window's gradient and its place in dy; far away: it does not count. */
struct alignas(16) scanned_window {
    int h, w;
    float v;
    int unused;
};

/* The weights of K_SCANNED channels from `first` on: a thread has one of them,
 * and some taps. */
typedef small_row<K_SCANNED> scanned_weights;
DEVICE void scanned_fill(const dsi_cuda_conv_args &P, scanned_weights *weights, int group,
                         int first)
{
    const int STEP = BACK_THREADS / K_SCANNED, LOADS = 4;
    int own = threadIdx.x % K_SCANNED, c = first + own;
    const float *w = (const float *)P.w + (long long)group * P.k * P.ws[0] + c * P.ws[1];
#pragma unroll 1
    for (int t = threadIdx.x / K_SCANNED; t < P.taps; t += LOADS * STEP) {
        float v[LOADS];
#pragma unroll
        for (int u = 0; u < LOADS; u++) {
            conv_tap tap = tap_of(P, (unsigned)(t + u * STEP));
            bool there = t + u * STEP < P.taps && c < P.c;
            v[u] = there ? w[tap.c * P.ws[0] + tap.r * P.ws[2] + tap.s * P.ws[3]] : 0.0f;
        }
#pragma unroll
        for (int u = 0; u < LOADS; u++)
            if (t + u * STEP < P.taps) weights[t + u * STEP].v[own] = v[u];
    }
}

/* dx of K_SCANNED channels, without strides: each pixel looks at all windows of
 * a channel out, and its warp has a part of these channels. Fewer steps than
 * taps where the pooled planes are small. */
DEVICE void dx_scanned(const dsi_cuda_conv_back &back, small_place *memory)
{
    const int LOADS = 4;
    const dsi_cuda_conv_args &P = back.dx;
    /* [k][taps], windows [k][windows], part */
    scanned_weights *weights = (scanned_weights *)memory;
    int area = P.r * P.s, windows = (int)P.pooled.windows.d;
    scanned_window *held = (scanned_window *)(weights + P.taps);
    float *part = (float *)(held + P.k * windows);
    back_place o = back_place_of<K_SCANNED>(back);
    scanned_fill(P, weights, o.group, o.first);
#pragma unroll 1
    for (unsigned j = threadIdx.x; j < (unsigned)(P.k * windows); j += BACK_THREADS) {
        unsigned k = divide(j, P.pooled.windows);
        small_window w = window_of(P, o.at.n, o.group * P.k + (int)k, j - k * windows);
        int h = w.at < 0 ? 0 : (int)divide((unsigned)w.at, back.width);
        held[j] = {w.at < 0 ? -(1 << 20) : h, w.at - h * P.q, w.v, 0};
    }
    int y = o.at.y + P.padding[0], x = o.at.x + P.padding[1];
    __syncthreads();
    float acc[K_SCANNED] = {};
#pragma unroll 1
    for (int k = (int)threadIdx.x / 32; k < P.k; k += K_BACK_WARPS)
#pragma unroll 1
        for (int i = 0; i < windows; i += LOADS) {
            scanned_window v[LOADS];
#pragma unroll
            for (int u = 0; u < LOADS; u++) v[u] = held[k * windows + min(i + u, windows - 1)];
#pragma unroll
            for (int u = 0; u < LOADS; u++) {
                int r = y - v[u].h, s = x - v[u].w;
                if ((unsigned)r >= (unsigned)P.r || (unsigned)s >= (unsigned)P.s) continue;
                if (i + u >= windows) continue;
                scanned_weights w = weights[k * area + r * P.s + s];
#pragma unroll
                for (int c = 0; c < K_SCANNED; c++) acc[c] += v[u].v * w.v[c];
            }
        }
    put_sums<K_SCANNED>(part, acc);
    small_write<K_SCANNED, float>(P, true, part, K_BACK_WARPS, o.group, o.first, o.at, o.inside, 0);
}

/* Hooks by which dw_pooled stores a sum of conv_back. */
struct dw_stored {
    DEVICE_MEMBER void before(unsigned, int) {}
    DEVICE_MEMBER void after(const dsi_cuda_conv_args &P, unsigned k, int column, float v)
    {
        small_dw_store<float>(P, k, column, v);
    }
};

/* Blocks before dw_first are dx's. Two kernels, so that a driver compiles for a
 * network only the way to dx that it takes. */
#define BACK(name, dx) \
    KERNEL(name, dsi_cuda_conv_back, BACK_THREADS) \
    { \
        DYNAMIC_SHARED(small_place, back_memory); \
        if (blockIdx.x < P.dw_first) \
            dx(P, back_memory); \
        else \
            dw_pooled(P, (held_window *)back_memory, blockIdx.x - P.dw_first, dw_stored()); \
    }
BACK(conv2d_back_scanned_f32, dx_scanned)
BACK(conv2d_back_pooled_f32, dx_pooled<2>)

#define CONV_SMALL(rows, suffix, T, threads) \
    KERNEL(conv2d_small_##rows##_##suffix, dsi_cuda_conv_args, threads) { conv_small<rows, T>(P, false); } \
    KERNEL(conv2d_dx_small_##rows##_##suffix, dsi_cuda_conv_args, threads) { conv_small<rows, T>(P, true); }
#define CONV_DW_SMALL(rows, suffix, T) \
    KERNEL(conv2d_dw_small_##rows##_##suffix, dsi_cuda_conv_args, 512) { conv_dw_small<rows, T>(P); }
CONV_SMALL(2, f32, float, 1024)
CONV_SMALL(8, f32, float, 512)
CONV_SMALL(16, f32, float, 512)
CONV_SMALL(16, f16, __half, 512)
CONV_SMALL(16, bf16, __nv_bfloat16, 512)
CONV_DW_SMALL(8, f32, float)
CONV_DW_SMALL(16, f32, float)
CONV_DW_SMALL(16, f16, __half)
CONV_DW_SMALL(16, bf16, __nv_bfloat16)
