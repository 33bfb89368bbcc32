/* device/cuda/kernels/batch_norm.cuh: a value of batch norm, and the ReLU behind
 * it. Backward computes the value again, in the same bits, since its sign says
 * where the ReLU lets a gradient through.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "batch_norm.h"
#include "normalize.cuh"

/* factor d + term, rounded once, d = x - mean */
DEVICE float normal(float d, float factor, float term) { return fmaf(d, factor, term); }
DEVICE double normal(double d, double factor, double term) { return fma(d, factor, term); }

/* As in memory, in an operand of that dtype. */
template <class C> DEVICE C rounded(int dtype, C v)
{
    switch (dtype) {
    case K_F32: return (C)(float)v;
    case K_F16: return (C)__half2float(__float2half_rn((float)v));
    case K_BF16: return (C)__bfloat162float(__float2bfloat16_rn((float)v));
    default: return v;
    }
}

/* NaN stays, and lets gradients through. */
template <class C> DEVICE C relu_of(C y) { return y < 0 ? 0 : y; }
template <class C> DEVICE C relu_dx_of(C y, C dy) { return y <= 0 ? 0 : dy; }
