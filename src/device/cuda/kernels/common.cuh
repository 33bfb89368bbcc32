/* device/cuda/kernels/common.cuh: what all kernels use: dtypes, strides, loops,
 * faults.
 *
 * Two compilers read these sources: nvcc, and g++ or clang++ with CUDA_ON_CPU
 * against tests/gpu/emulator, which runs them on the CPU. Hence the macros:
 * KERNEL(name, Args, threads) for an entry, whose argument is P, and SHARED,
 * DYNAMIC_SHARED for shared memory. Inline PTX is in wrappers of ptx.cuh alone.
 *
 * Rules: no atomics on floats, and no order of addition that depends on which
 * block runs first: the same bits at each run. No fast-math functions.
 * SPDX-License-Identifier: MIT */
#pragma once

#ifdef CUDA_ON_CPU
#include "cuda_on_cpu.h"
#define UNROLL
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#define KERNEL(name, Args, threads) \
    extern "C" __global__ void __launch_bounds__(threads) name(const Args P)
#define UNROLL                     _Pragma("unroll")
#define SHARED(type, name, ...)    __shared__ type name __VA_ARGS__
#define DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) type name[]
#endif

#include "args.h"

#define DEVICE static __device__ __forceinline__

/* Element i of n, for this thread: the grid may have fewer threads than n. */
#define GRID_LOOP(i, n) \
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < (n); \
         i += (long long)gridDim.x * blockDim.x)

/* ---- dtypes ----------------------------------------------------------------
 * Kernels compute in C, float or double, and know the dtypes of their operands
 * at run time: the branch is the same for all threads, and a kernel has two
 * instances in place of four and their mixtures. */

/* Element i of floats of any dtype. */
template <class C> DEVICE C load(const void *p, int dtype, long long i)
{
    switch (dtype) {
    case K_F32: return (C)((const float *)p)[i];
    case K_F16: return (C)__half2float(((const __half *)p)[i]);
    case K_BF16: return (C)__bfloat162float(((const __nv_bfloat16 *)p)[i]);
    default: return (C)((const double *)p)[i];
    }
}

template <class C> DEVICE void store(void *p, int dtype, long long i, C v)
{
    switch (dtype) {
    case K_F32: ((float *)p)[i] = (float)v; break;
    case K_F16: ((__half *)p)[i] = __float2half_rn((float)v); break;
    case K_BF16: ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn((float)v); break;
    default: ((double *)p)[i] = (double)v;
    }
}

/* Element i of integers or bools. */
DEVICE long long load_int(const void *p, int dtype, long long i)
{
    switch (dtype) {
    case K_I64: return ((const long long *)p)[i];
    case K_I32: return ((const int *)p)[i];
    case K_I16: return ((const short *)p)[i];
    case K_I8: return ((const signed char *)p)[i];
    default: return ((const unsigned char *)p)[i];
    }
}

/* Of int64: from integers, and to any dtype but bool. */
template <>
__device__ __forceinline__ long long load<long long>(const void *p, int dtype, long long i)
{
    return load_int(p, dtype, i);
}

template <>
__device__ __forceinline__ void store<long long>(void *p, int dtype, long long i, long long v)
{
    switch (dtype) {
    case K_I64: ((long long *)p)[i] = v; break;
    case K_I32: ((int *)p)[i] = (int)v; break;
    case K_I16: ((short *)p)[i] = (short)v; break;
    case K_I8:
    case K_U8: ((signed char *)p)[i] = (signed char)v; break;
    case K_F64: ((double *)p)[i] = (double)v; break;
    default: store(p, dtype, i, (float)v);
    }
}

/* Element i as bits, of 1, 2, 4 or 8 bytes. */
DEVICE unsigned long long load_bits(const void *p, int bytes, long long i)
{
    switch (bytes) {
    case 1: return ((const unsigned char *)p)[i];
    case 2: return ((const unsigned short *)p)[i];
    case 4: return ((const unsigned *)p)[i];
    default: return ((const unsigned long long *)p)[i];
    }
}

DEVICE void store_bits(void *p, int bytes, long long i, unsigned long long v)
{
    switch (bytes) {
    case 1: ((unsigned char *)p)[i] = (unsigned char)v; break;
    case 2: ((unsigned short *)p)[i] = (unsigned short)v; break;
    case 4: ((unsigned *)p)[i] = (unsigned)v; break;
    default: ((unsigned long long *)p)[i] = v;
    }
}

DEVICE int size_of(int dtype)
{
    switch (dtype) {
    case K_F64:
    case K_I64: return 8;
    case K_F32:
    case K_I32: return 4;
    case K_F16:
    case K_BF16:
    case K_I16: return 2;
    default: return 1;
    }
}

/* ---- strides ---------------------------------------------------------------- */

/* at[v]: where element i of the first N views is, in elements. Divisions of 32
 * bits where they suffice, which take a third of the time of 64. */
template <int N>
DEVICE void places(const dsi_cuda_elements &e, long long i, long long (&at)[N])
{
UNROLL
    for (int v = 0; v < N; v++) at[v] = e.n == 1 ? i * e.s[v][0] : 0;
    if (e.n <= 1) return;
    if (e.count >> 31) {
        for (int k = e.n - 1; k >= 0; k--) {
            long long q = i / e.d[k], r = i - q * e.d[k];
UNROLL
            for (int v = 0; v < N; v++) at[v] += r * e.s[v][k];
            i = q;
        }
        return;
    }
    unsigned left = (unsigned)i;
    for (int k = e.n - 1; k >= 0; k--) {
        unsigned d = (unsigned)e.d[k], q = left / d, r = left - q * d;
UNROLL
        for (int v = 0; v < N; v++) at[v] += (long long)r * e.s[v][k];
        left = q;
    }
}

/* Where element i is, in row-major order of the view. */
DEVICE long long place_in(const dsi_cuda_view &x, long long i)
{
    long long at = 0;
    for (int k = x.n - 1; k >= 0; k--) {
        long long q = i / x.d[k];
        at += (i - q * x.d[k]) * x.s[k];
        i = q;
    }
    return at;
}

/* ---- faults ------------------------------------------------------------------ */

/* Sets the flag, unless it is set: of several bad indices of one launch, one is
 * reported. */
DEVICE void set_fault(void *flag, int op, long long value, long long place0, long long place1,
                      long long classes)
{
    dsi_cuda_fault_flag *f = (dsi_cuda_fault_flag *)flag;
    if (atomicCAS((unsigned long long *)&f->op, 0ull, (unsigned long long)op) != 0) return;
    f->value = value, f->place[0] = place0, f->place[1] = place1, f->classes = classes;
}
