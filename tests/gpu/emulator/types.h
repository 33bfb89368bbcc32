/* tests/gpu/emulator/types.h: CUDA's qualifiers, vector types and 16-bit floats
 * for a host compiler. Conversions round to nearest even.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__    __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint3 {
    unsigned x, y, z;
};
#define VECTOR(T, name, a2, a4) \
    struct alignas(a2) name##2 { T x, y; }; \
    struct alignas(a4) name##4 { T x, y, z, w; }; \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTOR(float, float, 8, 16)
VECTOR(int, int, 8, 16)
VECTOR(unsigned, uint, 8, 16)
VECTOR(unsigned char, uchar, 2, 4)
VECTOR(unsigned short, ushort, 4, 8)
#undef VECTOR

template <class To, class From> static inline To bits_as(From x)
{
    static_assert(sizeof(To) == sizeof(From), "the same size");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
struct __nv_bfloat16 {
    uint16_t bits;
};
struct __half {
    uint16_t bits;
};
static inline float __bfloat162float(__nv_bfloat16 x)
{
    return bits_as<float>((uint32_t)x.bits << 16);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    uint32_t u = bits_as<uint32_t>(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return {0x7fff}; /* NVIDIA's NaN */
    return {(uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16)};
}
static inline __nv_bfloat16 __float2bfloat16(float f) { return __float2bfloat16_rn(f); }
static inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
static inline float __half2float(__half h)
{
    uint32_t sign = (uint32_t)(h.bits & 0x8000) << 16, e = h.bits >> 10 & 31, m = h.bits & 1023;
    if (e == 31) return bits_as<float>(sign | 0x7f800000u | m << 13);
    if (e) return bits_as<float>(sign | (e + 112) << 23 | m << 13);
    float f = (float)m * 0x1p-24f;
    return sign ? -f : f;
}
static inline __half __float2half_rn(float f)
{
    uint32_t u = bits_as<uint32_t>(f), sign = u >> 16 & 0x8000;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return {0x7fff};
    if (u >= 0x477ff000u) return {(uint16_t)(sign | 0x7c00)};
    if (u < 0x38800000u) { /* subnormal: what is added makes the machine round */
        uint32_t r = bits_as<uint32_t>(bits_as<float>(u) + 0.5f) - bits_as<uint32_t>(0.5f);
        return {(uint16_t)(sign | r)};
    }
    u += 0xfff + (u >> 13 & 1);
    return {(uint16_t)(sign | ((u - 0x38000000u) >> 13))};
}
static inline __half __float2half(float f) { return __float2half_rn(f); }
struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
struct __half2 {
    __half x, y;
};
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
static inline __half2 __floats2half2_rn(float x, float y)
{
    return {__float2half_rn(x), __float2half_rn(y)};
}
