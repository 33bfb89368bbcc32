/* device/cpu/simd/isa.h: what a kernel file needs: its instruction set's
 * suffix, vectors, dtypes.
 *
 * Each kernel file is compiled once for each instruction set, with DSI_ISA =
 * generic, avx2 or avx512. Functions seen across files are named by
 * KERNEL(name); all others are static.
 *
 * vf is VF floats: 4 (generic: the compiler's own vectors, which are SSE2 on
 * x86-64 and NEON on aarch64, where a product and a sum become one fmla), 8 or
 * 16.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/error.h"
#include "base/work.h"
#include "device/device.h"

#define DSI_JOIN_(a, b) a##_##b
#define DSI_JOIN(a, b)  DSI_JOIN_(a, b)
#define KERNEL(name)    DSI_JOIN(name, DSI_ISA) /* conv2d -> conv2d_avx2 */

#define ALWAYS_INLINE static inline __attribute__((__always_inline__))
#if defined(__clang__) /* takes gcc's word as well, but leaves the outer of two loops as it is */
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

#if defined(DSI_ISA_avx512) || defined(DSI_ISA_avx2)
#include <immintrin.h>
#endif

#if defined(DSI_ISA_avx512)
#define VF 16
typedef __m512 vf;
ALWAYS_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
ALWAYS_INLINE void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
ALWAYS_INLINE vf vf_set(float x) { return _mm512_set1_ps(x); }
ALWAYS_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); } /* a b + c */
ALWAYS_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
ALWAYS_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
ALWAYS_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
ALWAYS_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); } /* b if either is NaN */
ALWAYS_INLINE float vf_sum(vf v) { return _mm512_reduce_add_ps(v); }
ALWAYS_INLINE float vf_largest(vf v) { return _mm512_reduce_max_ps(v); } /* no lane is NaN */
/* gcc 12 may spill a mask as 16 bits and read 32 there, to count them or into a
 * register: this leaves the upper ones out behind its back */
ALWAYS_INLINE unsigned mask_bits(__mmask16 m)
{
    unsigned bits = m;
    __asm__("" : "+r"(bits));
    return bits & 0xffff;
}
/* the first n < VF lanes; the others load as 0 and are not stored */
ALWAYS_INLINE vf vf_load_n(const float *p, int n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
ALWAYS_INLINE void vf_store_n(float *p, vf v, int n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), v);
}
#elif defined(DSI_ISA_avx2)
#define VF 8
typedef __m256 vf;
ALWAYS_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
ALWAYS_INLINE void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
ALWAYS_INLINE vf vf_set(float x) { return _mm256_set1_ps(x); }
ALWAYS_INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
ALWAYS_INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
ALWAYS_INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
ALWAYS_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
ALWAYS_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
ALWAYS_INLINE float vf_sum(vf v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
ALWAYS_INLINE __m256i vf_mask_n(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
ALWAYS_INLINE vf vf_load_n(const float *p, int n) { return _mm256_maskload_ps(p, vf_mask_n(n)); }
ALWAYS_INLINE void vf_store_n(float *p, vf v, int n) { _mm256_maskstore_ps(p, vf_mask_n(n), v); }
#else
#define VF 4
#include <string.h>
typedef float vf __attribute__((__vector_size__(16)));
ALWAYS_INLINE vf vf_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
ALWAYS_INLINE void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
ALWAYS_INLINE vf vf_set(float x) { return (vf){x, x, x, x}; }
ALWAYS_INLINE vf vf_zero(void) { return vf_set(0); }
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
ALWAYS_INLINE vf vf_add(vf a, vf b) { return a + b; }
ALWAYS_INLINE vf vf_sub(vf a, vf b) { return a - b; }
ALWAYS_INLINE vf vf_mul(vf a, vf b) { return a * b; }
ALWAYS_INLINE vf vf_max(vf a, vf b) /* b if either is NaN, as above */
{
    typedef int32_t bits __attribute__((__vector_size__(16)));
    bits more = a > b;
    return (vf)(((bits)a & more) | ((bits)b & ~more));
}
ALWAYS_INLINE float vf_sum(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }
/* lane by lane: a call of memcpy would save all vectors in memory */
ALWAYS_INLINE vf vf_load_n(const float *p, int n)
{
    vf v = vf_zero();
    UNROLL for (int i = 0; i < VF; i++) if (i < n) v[i] = p[i];
    return v;
}
ALWAYS_INLINE void vf_store_n(float *p, vf v, int n)
{
    UNROLL for (int i = 0; i < VF; i++) if (i < n) p[i] = v[i];
}
#endif

#if !defined(DSI_ISA_avx512)
ALWAYS_INLINE float vf_largest(vf v)
{
    float lane[VF], max;
    vf_store(lane, v);
    max = lane[0];
    for (int i = 1; i < VF; i++) max = lane[i] > max ? lane[i] : max;
    return max;
}
#endif

/* Keeps gcc from folding this load into each FMA that uses it (it repeats the
 * load otherwise). */
#if defined(__x86_64__)
#define IN_REGISTER(v) __asm__("" : "+x"(v))
#elif defined(__aarch64__)
#define IN_REGISTER(v) __asm__("" : "+w"(v))
#else
#define IN_REGISTER(v) ((void)(v))
#endif

/* Numbers below 2^-126 count as 0 until denormals_on(what denormals_off
 * returned): arithmetic with them costs a hundred times as much. */
#ifdef __SSE__
#include <xmmintrin.h>
ALWAYS_INLINE unsigned denormals_off(void)
{
    unsigned was = _mm_getcsr();
    _mm_setcsr(was | 0x8040); /* flush to zero, denormals are zero */
    return was;
}
ALWAYS_INLINE void denormals_on(unsigned was) { _mm_setcsr(was); }
#elif defined(__aarch64__)
ALWAYS_INLINE unsigned denormals_off(void)
{
    uint64_t was;
    __asm__ volatile("mrs %0, fpcr" : "=r"(was));
    __asm__ volatile("msr fpcr, %0" : : "r"(was | 1 << 24)); /* FZ */
    return (unsigned)was;
}
ALWAYS_INLINE void denormals_on(unsigned was)
{
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)was));
}
#else
ALWAYS_INLINE unsigned denormals_off(void) { return 0; }
ALWAYS_INLINE void denormals_on(unsigned was) { (void)was; }
#endif

/* elements of a view */
ALWAYS_INLINE int64_t view_numel(const dsi_view *v)
{
    int64_t n = 1;
    for (int i = 0; i < v->n; i++) n *= v->d[i];
    return n;
}

/* Sets the device's fault flag, if it is not set: only the calling thread of a
 * kernel does it, never dsi_parallel's helpers. */
ALWAYS_INLINE void fault_set(dsi_stream *s, dsi_fault_op op, int64_t value, int64_t row,
                             int64_t column, int64_t classes)
{
    dsi_fault *f = &s->device->fault;
    if (!f->op) *f = (dsi_fault){op, value, {row, column}, classes};
}

/* "matmul: no cpu kernel for float16" */
ALWAYS_INLINE ds_status no_dtype(const char *kernel, ds_dtype dtype)
{
    return dsi_fail(DS_EINVAL, "%s: no cpu kernel for %s", kernel, ds_dtype_name(dtype));
}
