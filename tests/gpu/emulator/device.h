/* tests/gpu/emulator/device.h: what kernels call: indices, barriers, shuffles,
 * votes, atomics, arithmetic.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "machine.h"

#define KERNEL(name, Args, threads_) \
    static void name(const Args &P); \
    static void name##_thread(const void *args) { name(*(const Args *)args); } \
    static cuda_on_cpu::Entry name##_entry(#name, sizeof(Args), name##_thread); \
    static void name(const Args &P)
#define threadIdx (cuda_on_cpu::self->thread)
#define blockIdx  (cuda_on_cpu::block.index)
#define blockDim  (cuda_on_cpu::launch->block)
#define gridDim   (cuda_on_cpu::launch->grid)
#define warpSize  32

#define SHARED(type, name, ...) \
    static char name##_tag; \
    type(&name) __VA_ARGS__ = *(type(*) __VA_ARGS__)cuda_on_cpu::shared( \
        &name##_tag, sizeof(type __VA_ARGS__), alignof(type))
#define DYNAMIC_SHARED(type, name) type *name = (type *)cuda_on_cpu::block.dynamic

/* ---- where threads meet ------------------------------------------------------------------------------------ */

#define HERE int line = __builtin_LINE()
static inline void __syncthreads(HERE) { cuda_on_cpu::barrier(line); }
static inline void __syncwarp(unsigned mask = 0xffffffffu, HERE)
{
    cuda_on_cpu::warp_op(cuda_on_cpu::SYNCWARP, mask, 0, 0, 32, "__syncwarp", line);
}
#define SHUFFLE(name, kind) \
    template <class T> static inline T name(unsigned mask, T v, int arg, int width = 32, HERE) \
    { \
        return cuda_on_cpu::warp_op(cuda_on_cpu::kind, mask, v, arg, width, #name, line); \
    }
SHUFFLE(__shfl_sync, SHFL_IDX)
SHUFFLE(__shfl_up_sync, SHFL_UP)
SHUFFLE(__shfl_down_sync, SHFL_DOWN)
SHUFFLE(__shfl_xor_sync, SHFL_XOR)
#undef SHUFFLE
#define GATHER(name, kind, T) \
    static inline unsigned name(unsigned mask, T v, HERE) \
    { \
        return (unsigned)cuda_on_cpu::warp_op(cuda_on_cpu::kind, mask, (uint64_t)v, 0, 32, #name, \
                                              line); \
    }
GATHER(__ballot_sync, BALLOT, bool)
GATHER(__match_any_sync, MATCH, unsigned)
GATHER(__reduce_add_sync, ADD, unsigned)
GATHER(__reduce_min_sync, MIN, unsigned)
GATHER(__reduce_max_sync, MAX, unsigned)
#undef GATHER
static inline int __any_sync(unsigned mask, bool p, HERE)
{
    return __ballot_sync(mask, p, line) != 0;
}
static inline int __all_sync(unsigned mask, bool p, HERE)
{
    return __ballot_sync(mask, !p, line) == 0;
}
static inline void __threadfence() {}
static inline void __threadfence_block() {}

/* ---- atomics: fibers do not interrupt each other; __atomic so that ThreadSanitizer knows them ------------------ */

template <class T, class F> static inline T atomic_change(T *p, F f)
{
    T old, fresh;
    __atomic_load(p, &old, __ATOMIC_SEQ_CST);
    do fresh = f(old);
    while (!__atomic_compare_exchange(p, &old, &fresh, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}
template <class T> static inline T atomicAdd(T *p, T v)
{
    return atomic_change(p, [=](T o) { return T(o + v); });
}
template <class T> static inline T atomicMax(T *p, T v)
{
    return atomic_change(p, [=](T o) { return o > v ? o : v; });
}
template <class T> static inline T atomicMin(T *p, T v)
{
    return atomic_change(p, [=](T o) { return o < v ? o : v; });
}
template <class T> static inline T atomicExch(T *p, T v)
{
    return atomic_change(p, [=](T) { return v; });
}
template <class T> static inline T atomicOr(T *p, T v)
{
    return atomic_change(p, [=](T o) { return o | v; });
}
template <class T> static inline T atomicCAS(T *p, T compare, T v)
{
    return atomic_change(p, [=](T o) { return o == compare ? v : o; });
}

/* ---- arithmetic ------------------------------------------------------------------------------------------- */

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }
static inline int __float_as_int(float x) { return bits_as<int>(x); }
static inline float __uint_as_float(unsigned x) { return bits_as<float>(x); }
static inline float __int_as_float(int x) { return bits_as<float>(x); }
static inline float __frcp_rn(float a) { return 1 / a; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fmul_rn(float a, float b)
{
    volatile float c = a * b;
    return c;
}
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline double __dmul_rn(double a, double b)
{
    volatile double c = a * b;
    return c;
}
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
