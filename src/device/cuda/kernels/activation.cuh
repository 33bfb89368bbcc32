/* device/cuda/kernels/activation.cuh: GELU and SiLU, of pointwise.cu and of products
 * that end with them: the same bits.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "common.cuh"

#define INV_SQRT_2     0.70710678118654752440
#define SQRT_2_OVER_PI 0.79788456080286535588
#define GELU_CUBIC     0.044715

DEVICE float exponential(float x) { return expf(x); }
DEVICE double exponential(double x) { return exp(x); }
DEVICE float tanh_of(float x) { return tanhf(x); }
DEVICE double tanh_of(double x) { return tanh(x); }
DEVICE float erfc_of(float x) { return erfcf(x); }
DEVICE double erfc_of(double x) { return erfc(x); }

/* The distribution function of the normal density; erfc keeps its digits where
 * x is far below 0. */
template <class C> DEVICE C normal(C x) { return (C)0.5 * erfc_of(x * (C)-INV_SQRT_2); }

template <class C> DEVICE C gelu_of(C x) { return x * normal(x); }

template <class C> DEVICE C gelu_tanh_of(C x)
{
    return (C)0.5 * x * (1 + tanh_of((C)SQRT_2_OVER_PI * (x + (C)GELU_CUBIC * x * x * x)));
}

template <class C> DEVICE C silu_of(C x) { return x / (1 + exponential(-x)); }
