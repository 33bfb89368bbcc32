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

#define T           float
#define BITS        int32_t
#define NAMED(name) name##_f32
#include "lines.inc"
#define T           double
#define BITS        int64_t
#define NAMED(name) name##_f64
#include "lines.inc"
