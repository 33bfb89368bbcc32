/* device/cpu/reduce/lines.h: sums and maxima of dense lines, for float and
 * double.
 *
 * A sum runs in vectors of 32 bytes, whatever the instruction set, so that its
 * order, and with it the result, is the same on all of them. Floats are added
 * up in float for at most 4096 elements (128 a lane), those partial sums in
 * double: the error stays below that of a pairwise sum.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/cpu/simd/isa.h"

#include <math.h>
#include <string.h>

#define LINE_BLOCK 4096 /* elements whose sum is kept in T */

/* Of each lane the larger, b where a is NaN; bits: integers of a lane's size. */
#if defined(DSI_ISA_avx512) || defined(DSI_ISA_avx2)
#define WIDE_MAX_F32(a, b) (wide) _mm256_max_ps((__m256)(a), (__m256)(b))
#define WIDE_MAX_F64(a, b) (wide) _mm256_max_pd((__m256d)(a), (__m256d)(b))
#else
#define WIDE_MAX_F32(a, b) (wide)((((a) > (b)) & (bits)(a)) | (~((a) > (b)) & (bits)(b)))
#define WIDE_MAX_F64       WIDE_MAX_F32
#endif

#define T           float
#define BITS        int32_t
#define WIDE_MAX    WIDE_MAX_F32
#define NAMED(name) name##_f32
#include "lines.inc"
#define T           double
#define BITS        int64_t
#define WIDE_MAX    WIDE_MAX_F64
#define NAMED(name) name##_f64
#include "lines.inc"
