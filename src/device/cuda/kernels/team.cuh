/* device/cuda/kernels/team.cuh: sums and maxima over a warp or a block. The
 * order of additions is always the same.
 * SPDX-License-Identifier: MIT */
#pragma once

#define DEVICE_MEMBER __device__ __forceinline__

DEVICE float up(float x) { return x; }
DEVICE double up(double x) { return x; }
DEVICE float up(__half x) { return __half2float(x); }
DEVICE float up(__nv_bfloat16 x) { return __bfloat162float(x); }
DEVICE float exp_of(float x) { return expf(x); }
static __device__ __noinline__ double exp_of(double x) { return exp(x); }
DEVICE float log_of(float x) { return logf(x); }
static __device__ __noinline__ double log_of(double x) { return log(x); }
DEVICE float sqrt_of(float x) { return sqrtf(x); }
DEVICE double sqrt_of(double x) { return sqrt(x); }

#define ALL_LANES 0xffffffffu

/* Over groups of `width` lanes; the same in all of a group. */
template <class C> DEVICE C lanes_sum(C v, int width = 32)
{
#pragma unroll 1
    for (int o = width / 2; o; o /= 2) v += __shfl_xor_sync(ALL_LANES, v, o);
    return v;
}

/* NaNs are ignored. */
template <class C> DEVICE C lanes_max(C v, int width = 32)
{
#pragma unroll 1
    for (int o = width / 2; o; o /= 2) {
        C other = __shfl_xor_sync(ALL_LANES, v, o);
        v = other > v ? other : v;
    }
    return v;
}

/* A team is a warp, or a block of `team` threads, at most 256. `part` is shared
 * memory for 8 values, which a warp does not use. The same in all of the
 * team. */
template <class C> DEVICE C team_sum(C v, int team, C *part)
{
    v = lanes_sum(v);
    if (team == 32) return v;
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
#pragma unroll 1
    for (int i = 0; i < team / 32; i++) v += part[i];
    __syncthreads();
    return v;
}

template <class C> DEVICE C team_max(C v, int team, C *part)
{
    v = lanes_max(v);
    if (team == 32) return v;
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
#pragma unroll 1
    for (int i = 1; i < team / 32; i++) v = part[i] > v ? part[i] : v;
    __syncthreads();
    return v;
}

/* The item of this thread's team: blocks hold blockDim.x / team of them. */
DEVICE long long team_item(int team)
{
    return team == 32 ? blockIdx.x * (long long)(blockDim.x / 32) + threadIdx.x / 32 : blockIdx.x;
}

/* Kernels name_f32 and name_f64 of a template name<C>(P). */
#define FLOAT_AND_DOUBLE(name, Args, threads) \
    KERNEL(name##_f32, Args, threads) { name<float>(P); } \
    KERNEL(name##_f64, Args, threads) { name<double>(P); }
