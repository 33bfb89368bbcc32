/* device/cpu/vmath.h: exp, tanh and erf of floats in plain arithmetic, for compilers to vectorise.
 *
 * No branches and no calls: both sides of a condition are computed and one is taken. Errors are below
 * 2 units in the last place over all floats; NaN stays NaN, infinities and denormals are right. The
 * polynomials are minimax fits in the relative (erf from 1 on: absolute) error, made by Remez' exchange
 * algorithm in 200-bit arithmetic. Doubles go to the C library.
 *   EXP(x), TANH(x), ERF(x) choose by the type of x.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_DEVICE_CPU_VMATH_H
#define DSI_DEVICE_CPU_VMATH_H

#include "isa.h"

#include <math.h>
#include <string.h>

ALWAYS_INLINE uint32_t float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* 2^k for -126 <= k <= 127 */
ALWAYS_INLINE float power_of_two(int32_t k)
{
    uint32_t u = (uint32_t)(k + 127) << 23;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* exp(x) = 2^k exp(r), r = x - k log 2 in [-log(2)/2, log(2)/2].
 * k is rounded by adding 1.5 2^23, which leaves it in the low bits. log 2 is split, so that k times its
 * first part is exact. 2^k is applied in two halves: the result may be denormal or infinite. */
ALWAYS_INLINE float exp_f32(float x)
{
    const float round = 0x1.8p23f;
    x = x > 89.0f ? 89.0f : x;     /* infinity from here on; a NaN passes */
    x = x < -104.0f ? -104.0f : x; /* 0 */
    float t = x * 1.44269504f + round;
    int32_t k = (int32_t)(float_bits(t) - float_bits(round));
    float n = t - round, r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 0.001381459968f;
    p = p * r + 0.008368730039f;
    p = p * r + 0.04166838887f;
    p = p * r + 0.1666652052f;
    p = p * r + 0.4999999344f;
    p = p * (r * r) + r + 1.0f;
    int32_t half = k >> 1;
    return p * power_of_two(half) * power_of_two(k - half);
}

/* x (1 + x^2 P(x^2)) below 0.625, 1 - 2 / (exp(2 |x|) + 1) above */
ALWAYS_INLINE float tanh_f32(float x)
{
    float a = fabsf(x), u = x * x;
    float p = 0.002142951014f;
    p = p * u - 0.008177386035f;
    p = p * u + 0.02170069825f;
    p = p * u - 0.05394676221f;
    p = p * u + 0.13333206f;
    p = p * u - 0.333333308f;
    float large = 1.0f - 2.0f / (exp_f32(2.0f * a) + 1.0f);
    large = x < 0 ? -large : large;
    return a < 0.625f ? x * (1.0f + u * p) : large;
}

/* x + x P(x^2) below 1, 1 - exp(Q(|x|)) above, where Q = log erfc on [1, 4] */
ALWAYS_INLINE float erf_f32(float x)
{
    float a = fabsf(x), u = x * x;
    float p = 7.853844012e-5f;
    p = p * u - 0.0008010189236f;
    p = p * u + 0.005188327318f;
    p = p * u - 0.02685381185f;
    p = p * u + 0.1128358515f;
    p = p * u - 0.3761262583f;
    p = p * u + 0.1283791657f;

    a = a > 4.0f ? 4.0f : a; /* 1 from here on */
    float q = -2.168646698e-5f;
    q = q * a + 0.0004413317854f;
    q = q * a - 0.004204538775f;
    q = q * a + 0.02520819351f;
    q = q * a - 0.1084184756f;
    q = q * a - 0.6332199895f;
    q = q * a - 1.129578374f;
    q = q * a + 0.0001880294075f;
    float large = 1.0f - exp_f32(q);
    large = x < 0 ? -large : large;
    return a < 1.0f ? x + x * p : large;
}

#define EXP(x)    _Generic((x), float : exp_f32, double : exp)(x)
#define TANH(x)   _Generic((x), float : tanh_f32, double : tanh)(x)
#define ERF(x)    _Generic((x), float : erf_f32, double : erf)(x)
#define LOG(x)    _Generic((x), float : logf, double : log)(x)
#define SQRT(x)   _Generic((x), float : sqrtf, double : sqrt)(x)
#define POW(x, e) _Generic((x), float : powf, double : pow)(x, e)
#define ABS(x)    _Generic((x), float : fabsf, double : fabs)(x)

#endif
