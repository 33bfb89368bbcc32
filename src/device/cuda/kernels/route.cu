/* device/cuda/kernels/route.cu: tokens to experts: the largest of each
 * row, a gate's choices, who stays in a full expert, and in which row; rows
 * sorted by expert. Sums are of integers, and places come from prefix sums in
 * the order of the tokens.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "philox.cuh"
#include "route.h"
#include "team.cuh"

/* ---- choices: a warp a token -------------------------------------------------- */

/* The best expert so far; at is E: none. NaN is never better. */
struct Best {
    float v;
    int at, first; /* first: the lowest expert that may be chosen, E: none */
};

DEVICE void best_join(Best &a, float v, int at, int experts)
{
    if (at < experts && (a.at >= experts || v > a.v || (v == a.v && at < a.at))) a.v = v, a.at = at;
}

/* The first largest of row[0..E-1] without those of `out`, whose bit i is
 * expert lane + 32 i; if the first of them is NaN, that one: as a loop finds
 * it that takes what is larger. */
DEVICE int best_of(const float *row, int experts, unsigned long long out)
{
    int lane = threadIdx.x % 32;
    Best best = {0, experts, experts};
    for (int e = lane, i = 0; e < experts; e += 32, i++) {
        if (out >> i & 1) continue;
        if (e < best.first) best.first = e;
        if (row[e] == row[e]) best_join(best, row[e], e, experts);
    }
    for (int o = 16; o; o /= 2) {
        float v = __shfl_xor_sync(ALL_LANES, best.v, o);
        int at = __shfl_xor_sync(ALL_LANES, best.at, o);
        int first = __shfl_xor_sync(ALL_LANES, best.first, o);
        best_join(best, v, at, experts);
        best.first = first < best.first ? first : best.first;
    }
    return row[best.first] == row[best.first] ? best.at : best.first;
}

/* The order of numbers, NaN above all. */
DEVICE unsigned topk_key(float v)
{
    unsigned bits = __float_as_uint(v + 0.f); /* -0 is 0 */
    return v != v ? ~0u : bits ^ (bits >> 31 ? ~0u : 0x80000000u);
}

/* A warp a row. Bit i of `out`: element lane + 32 i has its place. */
KERNEL(topk, dsi_cuda_topk_args, 256)
{
    long long warps = (long long)gridDim.x * (blockDim.x / 32);
    int lane = threadIdx.x % 32;
    for (long long s = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32; s < P.rows;
         s += warps) {
        unsigned long long out = 0;
        for (int j = 0; j < P.k; j++) {
            unsigned best = 0;
            int at = P.n;
            for (int e = lane, i = 0; e < P.n; e += 32, i++) {
                unsigned key = topk_key(load<float>(P.x, P.dtype, s * P.n + e));
                if (!(out >> i & 1) && (at == P.n || key > best)) best = key, at = e;
            }
            for (int o = 16; o; o /= 2) {
                unsigned key = __shfl_xor_sync(ALL_LANES, best, o);
                int e = __shfl_xor_sync(ALL_LANES, at, o);
                if (e < P.n && (at == P.n || key > best || (key == best && e < at)))
                    best = key, at = e;
            }
            if (at % 32 == lane) out |= 1ull << at / 32;
            if (!lane) P.index[s * P.k + j] = at;
        }
    }
}

/* Where choice j of token s is in the order in which places are given. */
DEVICE long long order_of(const dsi_cuda_route_args &P, long long s, int j)
{
    return P.by_choice ? j * P.tokens + s : s * P.k + j;
}

KERNEL(route_choose, dsi_cuda_route_args, 256)
{
    long long warps = (long long)gridDim.x * (blockDim.x / 32);
    int lane = threadIdx.x % 32;
    for (long long s = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32; s < P.tokens;
         s += warps) {
        bool goes = !P.used || P.used[s];
        unsigned long long out = 0;
        for (int j = 0; j < P.k; j++) {
            const float *row = (j ? P.second : P.score) + s * P.experts;
            int e = best_of(row, P.experts, out);
            if (e % 32 == lane) out |= 1ull << e / 32;
            if (lane) continue;
            P.expert[s * P.k + j] = e;
            P.to[order_of(P, s, j)] = goes ? e : -1;
            if (goes) continue;
            P.place[s * P.k + j] = -1;
            if (P.slot) P.slot[s * P.k + j] = -1;
        }
    }
}

/* ---- places: a block an expert ------------------------------------------------ */

enum { BINS = 256, AT_ONCE = 4 };

/* Shared memory of a block. */
struct RouteShared {
    int part[K_ROUTE_THREADS / 32], bins[BINS];
    int digit, left, count;
};

/* The sum of v over the threads before this one; *all: over all of the block. */
DEVICE int block_before(int v, int *part, int *all)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, upto = v;
    for (int d = 1; d < 32; d *= 2) {
        int other = __shfl_up_sync(ALL_LANES, upto, d);
        if (lane >= d) upto += other;
    }
    __syncthreads(); /* the last call's part has been read */
    if (lane == 31) part[warp] = upto;
    __syncthreads();
    int before = upto - v, sum = 0;
    for (int w = 0; w < (int)blockDim.x / 32; w++) {
        if (w < warp) before += part[w];
        sum += part[w];
    }
    *all = sum;
    return before;
}

/* Of a full expert's routes the lowest keys stay. By falling score, of which
 * NaN counts as -1, or by random words; of equal ones the earlier. */
DEVICE unsigned long long key_of(const dsi_cuda_route_args &P, int e, unsigned o)
{
    long long s = o / P.k;
    unsigned high;
    if (P.drop == K_DROP_RANDOM) {
        unsigned word[4];
        unsigned long long seed = P.fresh_seed ? *P.fresh_seed : P.seed;
        philox4x32(seed, P.offset + (unsigned long long)s / 4, 0, word);
        int w = (int)(s % 4);
        high = w == 0 ? word[0] : w == 1 ? word[1] : w == 2 ? word[2] : word[3];
    } else {
        float v = P.score[s * P.experts + e];
        unsigned bits = __float_as_uint(v == v ? v + 0.f : -1.f); /* -0 is 0 */
        high = bits >> 31 ? bits : ~(bits | 0x80000000u);
    }
    return (unsigned long long)high << 32 | o;
}

/* The key of rank `room` (from 1) of those of expert e, or one above it that
 * has none between: 8 bits at a time. */
DEVICE unsigned long long last_key(const dsi_cuda_route_args &P, int e, int room, RouteShared &m)
{
    int t = threadIdx.x, routes = (int)(P.tokens * P.k), all;
    unsigned long long found = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        if (t < BINS) m.bins[t] = 0;
        __syncthreads();
        for (int o = t; o < routes; o += blockDim.x) {
            if (P.to[o] != e) continue;
            unsigned long long key = key_of(P, e, (unsigned)o);
            if (shift == 56 || key >> (shift + 8) == found >> (shift + 8))
                atomicAdd(&m.bins[key >> shift & (BINS - 1)], 1);
        }
        __syncthreads();
        int n = t < BINS ? m.bins[t] : 0, before = block_before(n, m.part, &all);
        if (before < room && room <= before + n) m.digit = t, m.left = room - before, m.count = n;
        __syncthreads();
        found |= (unsigned long long)m.digit << shift;
        room = m.left;
        if (m.left == m.count) return found | ((1ull << shift) - 1);
        __syncthreads(); /* digit, left and count have been read */
    }
    return found;
}

/* Places of expert e's routes, whose keys are at most `last`. */
DEVICE void place_all(const dsi_cuda_route_args &P, int e, bool choose, unsigned long long last,
                      int *part)
{
    int routes = (int)(P.tokens * P.k), base = 0;
    for (int from = 0; from < routes; from += (int)blockDim.x * AT_ONCE) {
        int o = from + (int)threadIdx.x * AT_ONCE, n = 0, all;
        unsigned mine = 0, kept = 0;
        for (int i = 0; i < AT_ONCE && o + i < routes; i++) {
            if (P.to[o + i] != e) continue;
            mine |= 1u << i;
            if (choose && key_of(P, e, (unsigned)(o + i)) > last) continue;
            kept |= 1u << i;
            n++;
        }
        long long at = base + block_before(n, part, &all);
        for (int i = 0; i < AT_ONCE; i++) {
            if (!(mine >> i & 1)) continue;
            bool stays = (kept >> i & 1) && at < P.capacity;
            long long q = o + i, to = P.by_choice ? q % P.tokens * P.k + q / P.tokens : q;
            P.place[to] = stays ? at : -1;
            if (P.slot) P.slot[to] = stays ? e * P.rows + at : -1;
            at += kept >> i & 1;
        }
        base += all;
    }
}

KERNEL(route_place, dsi_cuda_route_args, K_ROUTE_THREADS)
{
    SHARED(RouteShared, shared, [1]);
    RouteShared &m = shared[0];
    int routes = (int)(P.tokens * P.k);
    for (int e = blockIdx.x; e < P.experts; e += gridDim.x) {
        int mine = 0, of_first = 0, chosen, first;
        for (int o = threadIdx.x; o < routes; o += blockDim.x) {
            if (P.to[o] != e) continue;
            mine++;
            of_first += !P.by_choice || o < P.tokens;
        }
        block_before(mine, m.part, &chosen);
        block_before(of_first, m.part, &first);
        bool choose = P.drop != K_DROP_LAST && P.capacity && chosen > P.capacity;
        place_all(P, e, choose, choose ? last_key(P, e, (int)P.capacity, m) : 0, m.part);
        if (threadIdx.x) continue;
        P.counts[e] = chosen;
        P.counts[P.experts + e] = first;
        P.counts[2 * P.experts + e] = chosen < P.capacity ? chosen : P.capacity;
    }
}

/* ---- rows sorted by group: a block a group -------------------------------------- */

/* How many of this thread's ids from o on are g; bit i of *mine: id o + i is. */
DEVICE int group_count(const dsi_cuda_sort_args &P, int o, long long g, unsigned *mine)
{
    int n = 0;
    *mine = 0;
    for (int i = 0; i < AT_ONCE && o + i < (int)P.count; i++)
        if (P.id[o + i] == g) *mine |= 1u << i, n++;
    return n;
}

KERNEL(route_sort, dsi_cuda_sort_args, K_ROUTE_THREADS)
{
    SHARED(int, part, [K_ROUTE_THREADS / 32]);
    for (long long g = blockIdx.x; g < P.groups; g += gridDim.x) {
        int below = 0, base, all, step = (int)blockDim.x * AT_ONCE;
        for (int o = threadIdx.x; o < (int)P.count; o += blockDim.x) {
            long long id = P.id[o];
            below += id >= 0 && id < g;
            if (g || (id >= 0 && id < P.groups)) continue;
            set_fault(P.fault, K_FAULT_GROUP, id, o, -1, P.groups);
            P.row[o] = -1;
        }
        block_before(below, part, &base);
        if (!threadIdx.x) P.begin[g] = base;
        for (int from = 0; from < (int)P.count; from += step, base += all) {
            unsigned mine;
            int o = from + (int)threadIdx.x * AT_ONCE, n = group_count(P, o, g, &mine);
            long long at = base + block_before(n, part, &all);
            for (int i = 0; i < AT_ONCE; i++)
                if (mine >> i & 1) P.row[o + i] = at++;
        }
        if (!threadIdx.x && g == P.groups - 1) P.begin[P.groups] = base;
    }
}

/* ---- noise --------------------------------------------------------------------- */

/* A thread draws the 4 words of one counter. */
KERNEL(noise, dsi_cuda_noise_args, 256)
{
    unsigned long long seed = P.fresh_seed ? *P.fresh_seed : P.seed;
    GRID_LOOP(quad, (P.count + 3) / 4)
    {
        unsigned word[4];
        philox4x32(seed, P.offset + (unsigned long long)quad, 0, word);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (quad * 4 + j >= P.count) continue;
            float part = (float)(word[j] >> 8) * 0x1p-24f,
                  u = __fadd_rn(P.low, __fmul_rn(P.high - P.low, part)); /* the host's bits */
            P.y[quad * 4 + j] = P.gumbel ? -logf(-logf(u)) : u;
        }
    }
}
