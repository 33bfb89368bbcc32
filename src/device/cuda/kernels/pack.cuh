/* device/cuda/kernels/pack.cuh: 16 bytes of neighbours in memory, loaded and
 * stored at once; their addresses are multiples of 16.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "team.cuh"

/* N elements of T, which is float, __half or __nv_bfloat16, as float. */
template <class T> struct pack {
    static constexpr int N = 16 / (int)sizeof(T);
    uint4 bits;
};

DEVICE void down(float v, float *to) { *to = v; }
DEVICE void down(float v, __half *to) { *to = __float2half_rn(v); }
DEVICE void down(float v, __nv_bfloat16 *to) { *to = __float2bfloat16_rn(v); }

template <class T> DEVICE pack<T> pack_load(const T *p) { return {*(const uint4 *)p}; }

template <class T> DEVICE void unpack(float (&x)[pack<T>::N], const pack<T> &v)
{
    T t[pack<T>::N];
    memcpy(t, &v.bits, 16);
#pragma unroll
    for (int i = 0; i < pack<T>::N; i++) x[i] = up(t[i]);
}

template <class T> DEVICE void pack_store(T *p, const float (&x)[pack<T>::N])
{
    T t[pack<T>::N];
    uint4 bits;
#pragma unroll
    for (int i = 0; i < pack<T>::N; i++) down(x[i], &t[i]);
    memcpy(&bits, t, 16);
    *(uint4 *)p = bits;
}
