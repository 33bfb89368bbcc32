/* device/cuda/kernels/attention_cap.cuh: scores that are capped, x becomes softcap
 * tanh(x / softcap).
 * SPDX-License-Identifier: MIT */
#pragma once

#include "common.cuh"
#include "team.cuh"

DEVICE float score_capped(float x, float softcap) { return softcap * tanhf(x / softcap); }
static __device__ __noinline__ double score_capped(double x, double softcap)
{
    return softcap * tanh(x / softcap);
}

/* The derivative of a capped score, from its weight exp(score - lse), of which 0
 * has none; inverse: 1 / softcap. */
template <class C> DEVICE C capped_slope(C weight, C lse, C inverse)
{
    C t = weight > 0 ? (log_of(weight) + lse) * inverse : (C)1;
    return 1 - t * t;
}
