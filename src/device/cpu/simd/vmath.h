/* device/cpu/simd/vmath.h: exp, log, tanh and the normal distribution of floats
 * in plain arithmetic, for compilers to vectorise.
 *
 * No branches and no calls: both sides of a condition are computed and one is
 * taken. Errors are below 2 units in the last place over all floats, but where
 * said; NaN stays NaN, infinities and denormals are right. The polynomials are
 * minimax fits in the relative error, made by Remez' exchange algorithm in
 * 200-bit arithmetic. Doubles go to the C library.
 *   EXP(x), LOG(x), TANH(x), NORMAL(x), ... choose by the type of x.
 * sin_turned_f32 is for |x| <= SIN_MOST.
 * SPDX-License-Identifier: MIT */
#pragma once

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

/* exp(x) = 2^k exp(r), r = x - k log 2 in [-log(2)/2, log(2)/2]: exp(r) - 1, and
 * k. k is rounded by adding 1.5 2^23, which leaves it in the low bits. log 2 is
 * split, so that k times its first part is exact. */
ALWAYS_INLINE float exp_parts(float x, int32_t *k)
{
    const float round = 0x1.8p23f;
    float t = x * 1.44269504f + round;
    *k = (int32_t)(float_bits(t) - float_bits(round));
    float n = t - round, r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 0.001381459968f;
    p = p * r + 0.008368730039f;
    p = p * r + 0.04166838887f;
    p = p * r + 0.1666652052f;
    p = p * r + 0.4999999344f;
    return p * (r * r) + r;
}

/* 2^k is applied in two halves: the result may be denormal or infinite. */
ALWAYS_INLINE float exp_f32(float x)
{
    x = x > 89.0f ? 89.0f : x;     /* infinity from here on; a NaN passes */
    x = x < -104.0f ? -104.0f : x; /* 0 */
    int32_t k;
    float p = exp_parts(x, &k) + 1.0f;
    int32_t half = k >> 1;
    return p * power_of_two(half) * power_of_two(k - half);
}

/* The same for -87 <= x <= 88, where no result is denormal: one power of two. */
ALWAYS_INLINE float exp_inside_f32(float x)
{
    int32_t k;
    float p = exp_parts(x, &k) + 1.0f;
    return p * power_of_two(k);
}

/* The same for x <= 88, where results that would be denormal are 0. */
ALWAYS_INLINE float exp_normal_f32(float x)
{
    float y = exp_inside_f32(x);
    return x < -87.0f ? 0 : y;
}

/* x = 2^k (1 + r), 1 + r in [sqrt(1/2), sqrt(2)): log x = k log 2 + r - r^2/2 +
 * r^3 P(r), the smaller terms first. x is positive, finite and normal. */
ALWAYS_INLINE float log_scaled_f32(float x, float less)
{
    uint32_t u = float_bits(x) - 0x3f3504f3u; /* sqrt(1/2) */
    float n = (float)((int32_t)u >> 23) - less, r;
    uint32_t m = (u & 0x7fffffu) + 0x3f3504f3u;
    memcpy(&r, &m, sizeof r);
    r -= 1.0f;
    float s = r * r, p = 0.06746633954f, q = -0.1167564552f; /* even and odd powers */
    p = p * s + 0.1188816172f, q = q * s - 0.1240558993f;
    p = p * s + 0.1421955258f, q = q * s - 0.1666799581f;
    p = p * s + 0.2000211865f, q = q * s - 0.250000096f;
    p = p * s + 0.333333126f;
    float y = (q * r + p) * (r * s) - n * 2.12194440e-4f - 0.5f * s;
    return r + y + n * 0.693359375f;
}

ALWAYS_INLINE float log_inside_f32(float x) { return log_scaled_f32(x, 0); }

/* The same of any x: a denormal is made normal before. */
ALWAYS_INLINE float log_f32(float x)
{
    bool small = x < 0x1p-126f;
    float y = log_scaled_f32(small ? x * 0x1p23f : x, small ? 23.0f : 0);
    y = x > 0x1.fffffep127f ? x : y; /* infinity */
    y = x == 0 ? -INFINITY : y;
    return x >= 0 ? y : NAN;
}

/* exp(x) - 1 = 2^k (exp(r) - 1) + (2^k - 1), in halves, for 2^k may be infinite.
 * Below 2^-25 it is x. */
ALWAYS_INLINE float expm1_f32(float x)
{
    float c = x > 89.0f ? 89.0f : x; /* infinity from here on; a NaN passes */
    c = c < -30.0f ? -30.0f : c;     /* -1 */
    int32_t k;
    float p = exp_parts(c, &k), half = power_of_two(k - 1), y = (half * p + (half - 0.5f)) * 2.0f;
    return fabsf(x) < 0x1p-25f ? x : y;
}

/* x (1 + x^2 P(x^2)) below 0.625, 1 - 2 / (exp(2 |x|) + 1) above */
ALWAYS_INLINE float tanh_f32(float x)
{
    float a = fabsf(x), u = x * x, v = u * u;
    float p = 0.002142951014f * u - 0.008177386035f;
    p = p * v + (0.02170069825f * u - 0.05394676221f);
    p = p * v + (0.13333206f * u - 0.333333308f);
    float b = a > 10.0f ? 10.0f : a; /* 1 from here on; a NaN passes */
    float large = copysignf(1.0f - 2.0f / (exp_inside_f32(2.0f * b) + 1.0f), x);
    return a < 0.625f ? x * (1.0f + u * p) : large;
}

/* R(a) = exp(a^2/2) times the integral of the normal density from a on, a >= 0. It
 * continues from 5 as it is there: its factor is below 4e-6. */
ALWAYS_INLINE float normal_ratio_f32(float a)
{
    float t = (a > 5.0f ? 5.0f : a) - 2.5f;
    float p = 2.81660599e-8f;
    p = p * t - 3.268032437e-8f;
    p = p * t - 1.263611578e-7f;
    p = p * t - 8.881083672e-7f;
    p = p * t + 4.538872531e-6f;
    p = p * t - 1.324701088e-5f;
    p = p * t + 5.98721355e-5f;
    p = p * t - 0.0002603091262f;
    p = p * t + 0.001019302573f;
    p = p * t - 0.003828878681f;
    p = p * t + 0.01364801463f;
    p = p * t - 0.04561436116f;
    return p * t + 0.1413313178f;
}

/* The normal distribution, integral of exp(-x^2/2) / sqrt(2 pi): exp(-x^2/2) R(|x|)
 * on the left. Relative errors grow to 1e-5 at -4, absolute ones stay below
 * 1e-7. */
ALWAYS_INLINE float normal_f32(float x)
{
    float tail = normal_ratio_f32(fabsf(x)) * exp_normal_f32(-0.5f * (x * x));
    return x < 0 ? tail : 1.0f - tail;
}

/* normal(-a) for 0 <= a <= 13, where no power of two is denormal: exp(-a^2/2) as
 * 2^k 2^r, r in [-1/2, 1/2]. */
ALWAYS_INLINE float normal_tail_f32(float a)
{
    const float round = 0x1.8p23f, factor = -0.7213475204f; /* -1 / (2 log 2) */
    float u = a * a, t = u * factor + round, r = u * factor - (t - round);
    int32_t k = (int32_t)(float_bits(t) - float_bits(round));
    float p = 0.001327647178f;
    p = p * r + 0.009675541333f;
    p = p * r + 0.05550713274f;
    p = p * r + 0.2402211972f;
    p = p * r + 0.6931469671f;
    p = p * r + 1.000000072f;
    return normal_ratio_f32(a) * (p * power_of_two(k));
}

/* x normal(x) = max(x, 0) - |x| normal(-|x|), whose second term is 0 from 13 on. */
ALWAYS_INLINE float gelu_f32(float x)
{
    float a = fabsf(x);
    a = a > 13.0f ? 13.0f : a; /* a NaN passes */
    float tail = a * normal_tail_f32(a);
    tail = a == 13.0f ? 0 : tail;
    return (x < 0 ? x * 0 : x) - tail; /* -infinity gives NaN */
}

/* erf(x) = 1 - 2 normal(-sqrt(2) x), below 0.75 x times a polynomial of x^2. */
ALWAYS_INLINE float erf_f32(float x)
{
    float a = fabsf(x), u = x * x;
    float p = -0.00067891944f;
    p = p * u + 0.005120290769f;
    p = p * u - 0.02683782897f;
    p = p * u + 0.1128345081f;
    p = p * u - 0.3761262554f;
    float small = x + x * (0.128379167f + u * p);
    float scaled = 1.414213562f * a;
    float large = 1.0f - 2.0f * normal_tail_f32(scaled > 13.0f ? 13.0f : scaled);
    large = copysignf(large, x);
    return a < 0.75f ? small : large;
}

static inline double gelu_f64(double x)
{
    return x * (0.5 * (1 + erf(x * 0.70710678118654752440)));
}

/* sin(x + turns pi/2), x = n pi/2 + r with r in [-pi/4, pi/4]: sin or cos of r by
 * polynomials (Cephes' sinf). pi/2 is split so that n times its first two parts
 * is exact up to SIN_MOST. */
#define SIN_MOST 8192.0f /* farther out the C library is right */
ALWAYS_INLINE float sin_turned_f32(float x, uint32_t turns)
{
    const float round = 0x1.8p23f;
    float t = x * 0.6366197724f + round, n = t - round;
    uint32_t quarter = float_bits(t) + turns;
    float r = ((x - n * 1.5703125f) - n * 4.837512969970703125e-4f) - n * 7.549789954891882e-8f;
    float u = r * r;
    float odd = ((-1.9515295891e-4f * u + 8.3321608736e-3f) * u - 0.16666654611f) * u * r + r;
    float even = ((2.443315711809948e-5f * u - 1.388731625493765e-3f) * u + 4.166664568298827e-2f) *
                     u * u -
                 0.5f * u + 1.0f;
    odd = u == 0 ? r : odd; /* -0, subnormal numbers */
    float y = quarter & 1 ? even : odd;
    return quarter & 2 ? -y : y;
}

/* log(1 + x) = log(u) (x / (u - 1)), u = 1 + x as it was rounded: its error
 * cancels (Higham, Accuracy and Stability of Numerical Algorithms, 1.14.1). */
ALWAYS_INLINE float log1p_f32(float x)
{
    float u = 1.0f + x, y = log_f32(u) * (x / (u - 1.0f));
    y = u > 0x1.fffffep127f ? u : y;
    return u == 1.0f ? x : y;
}

static inline double normal_f64(double x) { return 0.5 * (1 + erf(x * 0.70710678118654752440)); }

#define EXP(x)        _Generic((x), float : exp_f32, double : exp)(x)
#define EXP_NORMAL(x) _Generic((x), float : exp_normal_f32, double : exp)(x)
#define TANH(x)       _Generic((x), float : tanh_f32, double : tanh)(x)
#define NORMAL(x)     _Generic((x), float : normal_f32, double : normal_f64)(x)
#define GELU(x)       _Generic((x), float : gelu_f32, double : gelu_f64)(x)
#define LOG(x)        _Generic((x), float : log_f32, double : log)(x)
#define SQRT(x)       _Generic((x), float : sqrtf, double : sqrt)(x)
#define POW(x, e)     _Generic((x), float : powf, double : pow)(x, e)
#define ABS(x)        _Generic((x), float : fabsf, double : fabs)(x)
#define EXPM1(x)      _Generic((x), float : expm1_f32, double : expm1)(x)
#define LOG1P(x)      _Generic((x), float : log1p_f32, double : log1p)(x)
#define ERF(x)        _Generic((x), float : erf_f32, double : erf)(x)
#define FLOOR(x)      _Generic((x), float : floorf, double : floor)(x)
#define CEIL(x)       _Generic((x), float : ceilf, double : ceil)(x)
#define ROUND(x)      _Generic((x), float : rintf, double : rint)(x) /* of two the even one */
