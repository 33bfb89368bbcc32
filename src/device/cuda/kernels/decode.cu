/* device/cuda/kernels/decode.cu: one new position of each row of a language
 * model: attention to the keys of a cache, and the choice of a token. Values that
 * change from position to position are read from the GPU's memory, so that one
 * graph serves all of them.
 *
 * Attention: `splits` blocks for each head of queries. A warp takes every n-th
 * group of KEYS keys, with a maximum and a sum of its own (FlashAttention's
 * running softmax, arXiv:2205.14135); then the warps' sums are added in order,
 * and those of several blocks by attention_join (flash decoding). The new key
 * and value are read from k and v, not from the cache, to which the first head
 * of a group writes them: no block waits for another.
 * SPDX-License-Identifier: MIT */
#include "decode.h"
#include "attention_cap.cuh"
#include "common.cuh"
#include "pack.cuh"
#include "team.cuh"

/* Element i of a head at `position`, turned, in the precision of T. */
template <class T>
DEVICE float turned(const dsi_cuda_attention_step &P, const T *x, long long position, int i)
{
    if (!P.cos || i >= 2 * P.pairs) return up(x[i]);
    int pair = i % P.pairs;
    const float *cos = P.cos + position * P.turn_s, *sin = P.sin + position * P.turn_s;
    float a = up(x[pair]) * cos[pair], b = up(x[pair + P.pairs]) * sin[pair];
    if (i >= P.pairs)
        a = up(x[pair + P.pairs]) * cos[pair], b = -(up(x[pair]) * sin[pair]);
    T t;
    down(a - b, &t);
    return up(t);
}

/* The running softmax of a warp: lane's elements lane + 32 e of the output. */
template <int E> struct running {
    float most, sum, y[E];
};

/* Adds KEYS keys with these scores (-inf: none). */
template <int E, int KEYS>
DEVICE void running_add(running<E> &r, const float (&score)[KEYS], const float (&v)[KEYS][E])
{
    float top = r.most;
#pragma unroll
    for (int u = 0; u < KEYS; u++) top = score[u] > top ? score[u] : top;
    float shift = top == -INFINITY ? 0.f : top, factor = exp_of(r.most - shift);
    r.most = top, r.sum *= factor;
#pragma unroll
    for (int e = 0; e < E; e++) r.y[e] *= factor;
#pragma unroll
    for (int u = 0; u < KEYS; u++) {
        float p = exp_of(score[u] - shift);
        r.sum += p;
#pragma unroll
        for (int e = 0; e < E; e++) r.y[e] += p * v[u][e];
    }
}

static __device__ __noinline__ float capped(float x, float cap) { return score_capped(x, cap); }

template <int E>
DEVICE float score_of(const dsi_cuda_attention_step &P, const float (&q)[E], const float (&k)[E])
{
    float s = 0;
#pragma unroll
    for (int e = 0; e < E; e++) s += q[e] * k[e];
    s = lanes_sum(s) * P.scale;
    return P.cap > 0 ? capped(s, P.cap) : s;
}

/* Elements lane + 32 e of a head of `depth`; zeros if not `there`. */
template <class T, int E> DEVICE void lane_load(float (&to)[E], const T *p, int depth, bool there)
{
#pragma unroll
    for (int e = 0; e < E; e++) {
        int i = (int)threadIdx.x % 32 + 32 * e;
        to[e] = there && i < depth ? up(p[i]) : 0.f;
    }
}

/* Whether row `at` is in the cache, behind its padding. */
DEVICE bool step_fits(const dsi_cuda_attention_step &P, long long at, long long pad)
{
    return at >= 0 && at < P.rows && pad >= 0 && pad <= at;
}

/* Blocks: batches times heads times splits. depth <= 32 E */
template <class T, int E> DEVICE void attention_step(const dsi_cuda_attention_step &P)
{
    enum { KEYS = 8 / E };
    SHARED(float, query, [32 * E]);
    SHARED(float, key, [32 * E]);
    SHARED(float, part, [K_STEP_WARPS][32 * E]);
    SHARED(float, most, [K_STEP_WARPS]);
    SHARED(float, sum, [K_STEP_WARPS]);
    unsigned split = blockIdx.x % (unsigned)P.splits, block = blockIdx.x / (unsigned)P.splits;
    long long batch = block / (unsigned)P.heads;
    int head = (int)(block % (unsigned)P.heads), shared = head / P.group;
    int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
    long long at = P.at[batch], pad = P.pads ? P.pads[batch] : 0, first = pad;
    if (!step_fits(P, at, pad)) {
        if (threadIdx.x == 0) set_fault(P.fault, K_FAULT_PLACE, at, batch, -1, P.rows);
        return;
    }
    if (P.window && at + 1 - P.window > first) first = at + 1 - P.window;
    const T *q = (const T *)P.q + batch * P.qs[0] + head * P.qs[1],
            *k = (const T *)P.k + batch * P.ks[0] + shared * P.ks[1],
            *v = (const T *)P.v + batch * P.vs[0] + shared * P.vs[1];
    T *keys = (T *)P.cache_k + batch * P.cache_ks[0] + shared * P.cache_ks[1],
      *values = (T *)P.cache_v + batch * P.cache_vs[0] + shared * P.cache_vs[1];
#pragma unroll 1
    for (int i = threadIdx.x; i < P.depth; i += blockDim.x) {
        query[i] = turned<T>(P, q, at - pad, i);
        key[i] = turned<T>(P, k, at - pad, i);
        if (head % P.group || split) continue;
        down(key[i], &keys[at * P.cache_ks[2] + i]);
        values[at * P.cache_vs[2] + i] = v[i];
    }
    __syncthreads();
    float x[E];
    lane_load<float, E>(x, query, P.depth, true);
    running<E> r = {-INFINITY, 0.f, {}};
#pragma unroll 1
    for (long long j = first + (split * warps + warp) * KEYS; j < at;
         j += (long long)P.splits * warps * KEYS) {
        float a[KEYS][E], b[KEYS][E], score[KEYS];
#pragma unroll
        for (int u = 0; u < KEYS; u++) {
            lane_load<T, E>(a[u], keys + (j + u) * P.cache_ks[2], P.depth, j + u < at);
            lane_load<T, E>(b[u], values + (j + u) * P.cache_vs[2], P.depth, j + u < at);
        }
#pragma unroll
        for (int u = 0; u < KEYS; u++)
            score[u] = j + u < at ? score_of<E>(P, x, a[u]) : -INFINITY;
        running_add<E, KEYS>(r, score, b);
    }
    if (warp == 0 && split == 0) {
        float a[E], b[1][E];
        lane_load<float, E>(a, key, P.depth, true);
        lane_load<T, E>(b[0], v, P.depth, true);
        float score[1] = {score_of<E>(P, x, a)};
        running_add<E, 1>(r, score, b);
    }
#pragma unroll
    for (int e = 0; e < E; e++) part[warp][lane + 32 * e] = r.y[e];
    if (lane == 0) most[warp] = r.most, sum[warp] = r.sum;
    __syncthreads();
    float top = -INFINITY;
#pragma unroll 1
    for (int w = 0; w < warps; w++) top = most[w] > top ? most[w] : top;
    float *to = P.splits > 1 ? P.part + (long long)blockIdx.x * (P.depth + 2) : NULL;
    if (to && threadIdx.x == 0) to[0] = top;
    if (top == -INFINITY) top = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < P.depth; i += blockDim.x) {
        float total = 0, y = 0;
#pragma unroll 1
        for (int w = 0; w < warps; w++) {
            float factor = exp_of(most[w] - top);
            total += factor * sum[w], y += factor * part[w][i];
        }
        if (to) {
            if (i == 0) to[1] = total;
            to[2 + i] = y;
            continue;
        }
        down(y / total, (T *)P.y + batch * P.ys[0] + head * P.ys[1] + i);
    }
}

#define ATTENTION_STEP(width, E) \
    KERNEL(attention_step_##width##_f32, dsi_cuda_attention_step, 32 * K_STEP_WARPS) \
    { \
        attention_step<float, E>(P); \
    } \
    KERNEL(attention_step_##width##_f16, dsi_cuda_attention_step, 32 * K_STEP_WARPS) \
    { \
        attention_step<__half, E>(P); \
    } \
    KERNEL(attention_step_##width##_bf16, dsi_cuda_attention_step, 32 * K_STEP_WARPS) \
    { \
        attention_step<__nv_bfloat16, E>(P); \
    }
ATTENTION_STEP(64, 2)
ATTENTION_STEP(128, 4)
ATTENTION_STEP(256, 8)

/* Blocks: batches times heads. Adds what the splits of a head have, in order. */
KERNEL(attention_join, dsi_cuda_attention_step, 256)
{
    long long batch = blockIdx.x / (unsigned)P.heads;
    int head = (int)(blockIdx.x % (unsigned)P.heads), stride = P.depth + 2;
    if (!step_fits(P, P.at[batch], P.pads ? P.pads[batch] : 0)) return;
    const float *part = P.part + (long long)blockIdx.x * P.splits * stride;
    float top = -INFINITY;
#pragma unroll 1
    for (int s = 0; s < P.splits; s++) top = part[s * stride] > top ? part[s * stride] : top;
    if (top == -INFINITY) top = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < P.depth; i += blockDim.x) {
        float total = 0, y = 0;
#pragma unroll 1
        for (int s = 0; s < P.splits; s++) {
            const float *x = part + s * stride;
            float factor = exp_of(x[0] - top);
            total += factor * x[1], y += factor * x[2 + i];
        }
        store<float>(P.y, P.dtype, batch * P.ys[0] + head * P.ys[1] + i, y / total);
    }
}

/* The larger one; of equals the first. NaNs are smaller than all. */
DEVICE void take_larger(float *v, int *i, float other, int at)
{
    if (!(other > *v) && !(other == *v && at < *i)) return;
    *v = other, *i = at;
}

#define NO_CHOICE 0x7fffffff

/* Of this thread's elements. */
template <class T> DEVICE void thread_largest(const T *x, int n, float *v, int *at)
{
#pragma unroll 8
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float element = up(x[i]);
        if (element > *v) *v = element, *at = i;
    }
}

/* Blocks of at most 32 warps, a row each: the largest element, the first of equals; a NaN
 * counts only as the first element, which it makes the choice, as on the host. */
KERNEL(choose_token, dsi_cuda_choose, 1024)
{
    SHARED(float, value, [32]);
    SHARED(int, index, [32]);
    float v = -INFINITY;
    int at = NO_CHOICE, n = (int)P.n;
    long long row = blockIdx.x;
    const void *x = P.x;
    switch (P.dtype) {
    case K_F32: thread_largest((const float *)x + row * P.xs, n, &v, &at); break;
    case K_F16: thread_largest((const __half *)x + row * P.xs, n, &v, &at); break;
    default: thread_largest((const __nv_bfloat16 *)x + row * P.xs, n, &v, &at);
    }
#pragma unroll 1
    for (int round = 0; round < 2; round++) {
#pragma unroll 1
        for (int o = 16; o; o /= 2)
            take_larger(&v, &at, __shfl_xor_sync(ALL_LANES, v, o), __shfl_xor_sync(ALL_LANES, at, o));
        if (round) break;
        if (threadIdx.x % 32 == 0) value[threadIdx.x / 32] = v, index[threadIdx.x / 32] = at;
        __syncthreads();
        bool there = threadIdx.x % 32 < blockDim.x / 32;
        v = there ? value[threadIdx.x % 32] : -INFINITY;
        at = there ? index[threadIdx.x % 32] : NO_CHOICE;
    }
    if (threadIdx.x == 0) {
        float start = load<float>(x, P.dtype, row * P.xs);
        P.token[row * P.token_s] = at == NO_CHOICE || start != start ? 0 : at;
    }
#pragma unroll 1
    for (int i = threadIdx.x; row == 0 && i < P.count; i += blockDim.x) P.counters[i]++;
}
