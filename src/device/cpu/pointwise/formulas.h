/* device/cpu/pointwise/formulas.h: the loops of each operation over a dense
 * line of float, of double and of bfloat16, which the compiler vectorises:
 * UNARY(name, formula of x) and BINARY(name, formula of a and b). A formula of
 * bfloat16 elements is computed in float, and rounded. Of pointwise.c alone.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/cpu/simd/half.h"
#include "device/cpu/simd/strided.h"
#include "device/cpu/simd/vmath.h"
#if defined(DSI_ISA_avx512)
#include "lanes.h"
#endif

/* ---- one operand ---------------------------------------------------------------------------------- */

#define UNARY_LINE(name, T, suffix, formula) \
    static void name##_line_##suffix(const void *arg, int64_t n, void *const *p) \
    { \
        const T *in = p[0]; \
        T *y = p[1]; \
        (void)arg; \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) { \
            T x = in[i]; \
            y[i] = formula; \
        } \
    }
#define UNARY_LINE_BF16(name, formula) \
    static void name##_line_bf16(const void *arg, int64_t n, void *const *p) \
    { \
        const uint16_t *in = p[0]; \
        uint16_t *y = p[1]; \
        (void)arg; \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) { \
            float x = dsi_bf16_to_f32(in[i]), result = formula; \
            y[i] = bf16_of(result); \
        } \
    }
#define UNARY(name, formula) \
    UNARY_LINE(name, float, f32, formula) \
    UNARY_LINE(name, double, f64, formula) \
    UNARY_LINE_BF16(name, formula)

#define SQRT_2_OVER_PI  0.79788456080286535588
#define INV_SQRT_2_PI   0.39894228040143267794 /* 1 / sqrt(2 pi) */
#define GELU_CUBIC      0.044715
#define SELU_SCALE      1.0507009873554804934193349852946
#define SELU_BELOW      1.7580993408473768599402175208123 /* SELU_SCALE times its alpha */
#define AS(x, constant) ((__typeof__(x))(constant))       /* a constant of x's type */

#define TANH_INNER(x) (AS(x, SQRT_2_OVER_PI) * ((x) + AS(x, GELU_CUBIC) * (x) * (x) * (x)))

UNARY_LINE(abs, float, f32, ABS(x))
UNARY_LINE(abs, double, f64, ABS(x))
/* Of float, `simple` where all of a piece is `inside` its range, as nearly all
 * pieces are; elsewhere, and where y is x, `formula`, which has the same bits
 * inside. */
#define UNARY_INSIDE(name, inside, simple, formula) \
    static void name##_line_f32(const void *arg, int64_t n, void *const *p) \
    { \
        (void)arg; \
        for (int64_t at = 0; at < n; at += HALF_PIECE) { \
            const float *in = (const float *)p[0] + at; \
            float *y = (float *)p[1] + at; \
            int64_t m = n - at < HALF_PIECE ? n - at : HALF_PIECE; \
            int outside = in == y; \
            INDEPENDENT \
            for (int64_t i = 0; i < m && in != y; i++) { \
                float x = in[i]; \
                y[i] = simple; \
                outside |= !(inside); \
            } \
            INDEPENDENT \
            for (int64_t i = 0; i < m && outside; i++) { \
                float x = in[i]; \
                y[i] = formula; \
            } \
        } \
    } \
    UNARY_LINE(name, double, f64, formula)

UNARY_INSIDE(exp, fabsf(x) <= 87.0f, exp_inside_f32(x), EXP(x))
UNARY(sqrt, SQRT(x))
#if defined(DSI_ISA_avx512)
/* Lines of name_lanes, a function of a vector, and of short_lanes for bfloat16. */
#define UNARY_SHORT_LANES(name, short_lanes, formula) \
    static void name##_line_f32(const void *arg, int64_t n, void *const *p) \
    { \
        const float *x = p[0]; \
        float *y = p[1]; \
        int64_t i = 0; \
        (void)arg; \
        for (; i + VF <= n; i += VF) vf_store(y + i, name##_lanes(vf_load(x + i))); \
        int left = (int)(n - i); \
        if (left) vf_store_n(y + i, name##_lanes(vf_load_n(x + i, left)), left); \
    } \
    static void name##_line_bf16(const void *arg, int64_t n, void *const *p) \
    { \
        const uint16_t *x = p[0]; \
        uint16_t *y = p[1]; \
        (void)arg; \
        for (int64_t i = 0; i < n; i += 2 * VF) { \
            __mmask32 some = n - i < 2 * VF ? (1u << (n - i)) - 1 : ~0u; \
            __m512i both = _mm512_maskz_loadu_epi16(some, x + i); \
            vf even = short_lanes(bf16_even(both)), odd = short_lanes(bf16_odd(both)); \
            _mm512_mask_storeu_epi16(y + i, some, bf16_joined(even, odd)); \
        } \
    } \
    UNARY_LINE(name, double, f64, formula)
#else
#define UNARY_SHORT_LANES(name, short_lanes, formula) UNARY(name, formula)
#endif
#define UNARY_LANES(name, formula) UNARY_SHORT_LANES(name, name##_lanes, formula)
#if defined(DSI_ISA_avx512)
UNARY_LANES(log, LOG(x))
#else
UNARY_INSIDE(log, x >= 0x1p-126f && x < INFINITY, log_inside_f32(x), LOG(x))
UNARY_LINE_BF16(log, LOG(x))
#endif
UNARY_SHORT_LANES(gelu, gelu_short_lanes, GELU(x))
/* (1 + tanh u) / 2 is 1 / (1 + e^-2u), which takes one exp, and keeps its
 * digits where it is small */
UNARY(gelu_tanh, x / (1 + EXP(-2 * TANH_INNER(x))))
UNARY_LANES(sigmoid, 1 / (1 + EXP(-x)))
UNARY_LANES(silu, x / (1 + EXP(-x)))
UNARY_LANES(tanh, TANH(x))
UNARY_LANES(erf, ERF(x))
UNARY(expm1, EXPM1(x))
UNARY(log1p, LOG1P(x))
UNARY(floor, FLOOR(x))
UNARY(ceil, CEIL(x))
UNARY(round, ROUND(x))
UNARY(sign, AS(x, x > 0) - AS(x, x < 0))
#if defined(DSI_ISA_avx512)
/* The processor's estimate, of 14 bits, and a step of Newton's, which 0 and
 * infinity would make NaN: a root and a division take ten times as long. */
static void rsqrt_line_f32(const void *arg, int64_t n, void *const *p)
{
    const float *x = p[0];
    float *y = p[1];
    (void)arg;
    for (int64_t i = 0; i < n; i += VF) {
        int lanes = n - i < VF ? (int)(n - i) : VF;
        vf v = vf_load_n(x + i, lanes), r = _mm512_rsqrt14_ps(v);
        vf lacks = _mm512_fnmadd_ps(vf_mul(v, r), r, vf_set(1));
        __mmask16 limit = _mm512_fpclass_ps_mask(v, 0x0e); /* 0, -0, infinity */
        vf better = vf_fma(vf_mul(vf_set(0.5f), r), lacks, r);
        vf_store_n(y + i, _mm512_mask_mov_ps(better, limit, r), lanes);
    }
}
#else
UNARY_LINE(rsqrt, float, f32, 1 / SQRT(x))
#endif
UNARY_LINE(rsqrt, double, f64, 1 / SQRT(x))
/* log(1 / (1 + e^-x)) = min(x, 0) - log(1 + e^-|x|) */
UNARY(logsigmoid, (x > 0 ? 0 : x) - LOG1P(EXP(-ABS(x))))

/* With a parameter, which is read before the loop. Both sides of a condition
 * are values: a branch would not be vectorised. */
#define UNARY_P_LINE(name, T, suffix, left, right, condition) \
    static void name##_line_##suffix(const void *arg, int64_t n, void *const *p) \
    { \
        const T *in = p[0], param = (T) * (const double *)arg; \
        T *y = p[1]; \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) { \
            T x = in[i], yes = left, no = right; \
            y[i] = condition ? yes : no; \
        } \
    }
#define UNARY_P_LINE_BF16(name, left, right, condition) \
    static void name##_line_bf16(const void *arg, int64_t n, void *const *p) \
    { \
        const uint16_t *in = p[0]; \
        const float param = (float)*(const double *)arg; \
        uint16_t *y = p[1]; \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) { \
            float x = dsi_bf16_to_f32(in[i]), yes = left, no = right; \
            y[i] = bf16_of(condition ? yes : no); \
        } \
    }
#define UNARY_P(name, condition, left, right) \
    UNARY_P_LINE(name, float, f32, left, right, condition) \
    UNARY_P_LINE(name, double, f64, left, right, condition) \
    UNARY_P_LINE_BF16(name, left, right, condition)

UNARY_P(leaky_relu, x > 0, x, param *x)
UNARY_P(elu, x > 0, x, param *EXPM1(x))
UNARY_P(celu, x > 0, x, param *EXPM1(x *(1 / param)))
UNARY(selu, x > 0 ? AS(x, SELU_SCALE) * x : AS(x, SELU_BELOW) * EXPM1(x))
/* x^2 / 2 up to the edge param, then param (|x| - param / 2); a NaN passes */
#define TO_EDGE(x) (param < ABS(x) ? param : ABS(x))
UNARY_P(huber, true, TO_EDGE(x) * (ABS(x) - TO_EDGE(x) / 2), x)
/* max(x, 0) + log(1 + e^-|x|): nothing overflows below the threshold either */
UNARY_P(softplus, x > param, x, (x < 0 ? 0 : x) + LOG1P(EXP(-ABS(x))))

/* min(max(x + 3, 0), 6) */
#define HARD(x) ((x) + 3 < 0 ? 0 : (x) + 3 > 6 ? 6 : (x) + 3)
UNARY(hardswish, x *HARD(x) / 6)
UNARY(hardsigmoid, HARD(x) / 6)

/* tanh(log(1 + e^x)) = n / (n + 2), n = w (w + 2), w = e^x; from 20 on it is 1 */
#define MISH_W(x) EXP(AS(x, (x) > 20 ? 20 : (x)))
#define MISH_N(w) ((w) * ((w) + 2))
#define MISH(T, suffix) \
    ALWAYS_INLINE T mish_##suffix(T x) \
    { \
        T n = MISH_N(MISH_W(x)); \
        return x * (n / (n + 2)); \
    } \
    ALWAYS_INLINE T mish_slope_##suffix(T x) \
    { \
        T w = MISH_W(x), n = MISH_N(w); \
        return n / (n + 2) + x * (x > 20 ? 0 : 4 * w * (1 + w) / ((n + 2) * (n + 2))); \
    }
MISH(float, f32)
MISH(double, f64)
UNARY(mish, _Generic((x), float : mish_f32, double : mish_f64)(x))

/* ---- two operands --------------------------------------------------------------------------------- */

#define BINARY_LINE(name, T, suffix, formula) \
    static void name##_line_##suffix(const void *arg, int64_t n, void *const *p) \
    { \
        const T *left = p[0], *right = p[1]; \
        T *y = p[2]; \
        (void)arg; \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) { \
            T a = left[i], b = right[i]; \
            y[i] = formula; \
        } \
    }
#define BINARY_LINE_BF16(name, formula) \
    static void name##_line_bf16(const void *arg, int64_t n, void *const *p) \
    { \
        const uint16_t *left = p[0], *right = p[1]; \
        uint16_t *y = p[2]; \
        (void)arg; \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) { \
            float a = dsi_bf16_to_f32(left[i]), b = dsi_bf16_to_f32(right[i]), result = formula; \
            y[i] = bf16_of(result); \
        } \
    }
#define BINARY(name, formula) \
    BINARY_LINE(name, float, f32, formula) \
    BINARY_LINE(name, double, f64, formula) \
    BINARY_LINE_BF16(name, formula)

/* The same of float and of bfloat16, where b is one number for the line. */
#define BINARY_NUMBER(name, formula) \
    static void name##_number_f32(const void *arg, int64_t n, void *const *p) \
    { \
        const float *left = p[0], b = *(const float *)p[1]; \
        float *y = p[2]; \
        (void)arg; \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) { \
            float a = left[i]; \
            y[i] = formula; \
        } \
    } \
    static void name##_number_bf16(const void *arg, int64_t n, void *const *p) \
    { \
        const uint16_t *left = p[0]; \
        const float b = dsi_bf16_to_f32(*(const uint16_t *)p[1]); \
        uint16_t *y = p[2]; \
        (void)arg; \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) { \
            float a = dsi_bf16_to_f32(left[i]), result = formula; \
            y[i] = bf16_of(result); \
        } \
    } \
    BINARY(name, formula)

BINARY_NUMBER(mul, a *b)
BINARY_NUMBER(div, a / b)
BINARY_NUMBER(plain_add, a + b)
BINARY_NUMBER(add, a + (__typeof__(a))*(const double *)arg * b)
BINARY(maximum, a > b || a != a ? a : b)
BINARY(minimum, a < b || a != a ? a : b)

/* rest[i] = fmod(a[i], b[i]) for n <= HALF_PIECE. Floats: a - q b, q = a / b
 * truncated, is exact in double for q below 2^29; if the quotient was rounded
 * up to q, the rest has the wrong sign. */
static void modulos_f32(const float *a, const float *b, float *rest, int64_t n)
{
    int far = 0;
    for (int64_t i = 0; i < n; i++) { /* no conversion to integers: gcc makes a branch of it */
        double x = (double)a[i], y = (double)b[i], q = x / y;
        double r = x - trunc(q) * y, other = r + copysign(y, x);
        r = r * x < 0 ? other : r;
        rest[i] = copysignf((float)r, a[i]);
        far |= !(fabs(q) < 0x1p29) | !(fabsf(b[i]) < INFINITY);
    }
    for (int64_t i = 0; far && i < n; i++) rest[i] = fmodf(a[i], b[i]);
}

static void modulos_f64(const double *a, const double *b, double *rest, int64_t n)
{
    for (int64_t i = 0; i < n; i++) rest[i] = fmod(a[i], b[i]);
}

/* The quotient rounded down, and its remainder, of b's sign or 0
 * (torch.remainder), from what fmod left. */
#define BY_MODULO_LINE(name, T, suffix) \
    static void name##_line_##suffix(const void *arg, int64_t n, void *const *p) \
    { \
        T rest[HALF_PIECE]; \
        (void)arg; \
        for (int64_t at = 0; at < n; at += HALF_PIECE) { \
            const T *a = (const T *)p[0] + at, *b = (const T *)p[1] + at; \
            T *y = (T *)p[2] + at; \
            int64_t m = n - at < HALF_PIECE ? n - at : HALF_PIECE; \
            modulos_##suffix(a, b, rest, m); \
            INDEPENDENT \
            for (int64_t i = 0; i < m; i++) y[i] = name##_##suffix(a[i], b[i], rest[i]); \
        } \
    }
#define FLOOR_DIVIDE(T, suffix) \
    ALWAYS_INLINE T remainder_##suffix(T a, T b, T rest) \
    { \
        T other = rest + b; \
        (void)a; \
        return (rest != 0) & ((b < 0) != (rest < 0)) ? other : rest; \
    } \
    ALWAYS_INLINE T floor_divide_##suffix(T a, T b, T rest) \
    { \
        T all = a / b, q = (a - rest) / b; \
        q = (rest != 0) & ((b < 0) != (rest < 0)) ? q - 1 : q; \
        T y = FLOOR(q), more = y + 1; \
        y = q - y > (T)0.5 ? more : y; \
        y = q == 0 ? all * 0 : y; \
        return b == 0 ? all : y; \
    } \
    BY_MODULO_LINE(remainder, T, suffix) \
    BY_MODULO_LINE(floor_divide, T, suffix)
FLOOR_DIVIDE(float, f32)
FLOOR_DIVIDE(double, f64)

/* int64: modulo 2^64; by 0 it is 0 */
static inline int64_t floor_divide_i64(int64_t a, int64_t b)
{
    if (b == 0) return 0;
    if (b == -1) return (int64_t)(0 - (uint64_t)a);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static inline int64_t remainder_i64(int64_t a, int64_t b)
{
    if (b == 0 || b == -1) return 0;
    int64_t rest = a % b;
    return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}

#define ALPHA_I64 ((uint64_t)(int64_t) * (const double *)arg)
BINARY_LINE(add, int64_t, i64, (int64_t)((uint64_t)a + ALPHA_I64 * (uint64_t)b))
BINARY_LINE(mul, int64_t, i64, (int64_t)((uint64_t)a *(uint64_t)b))
BINARY_LINE(maximum, int64_t, i64, a > b ? a : b)
BINARY_LINE(minimum, int64_t, i64, a < b ? a : b)

/* Numbers from -2^50 on and below 2^50 are divided as doubles, by vectors:
 * their quotient is not rounded up to a whole number. WHOLE added leaves a
 * whole number in the low bits. */
#define NEAR  ((uint64_t)1 << 50)
#define WHOLE 0x1.8p52
ALWAYS_INLINE double whole_f64(int64_t x)
{
    uint64_t u = (uint64_t)x + 0x4338000000000000u; /* WHOLE's bits */
    double y;
    memcpy(&y, &u, sizeof y);
    return y - WHOLE;
}

ALWAYS_INLINE int64_t whole_i64(double x)
{
    int64_t y;
    x += WHOLE;
    memcpy(&y, &x, sizeof y);
    return y - 0x4338000000000000;
}

ALWAYS_INLINE double floor_divide_near(double a, double b)
{
    double q = a / b, whole = (q + WHOLE) - WHOLE;
    whole = whole > q ? whole - 1 : whole;
    return b == 0 ? 0 : whole;
}

ALWAYS_INLINE double remainder_near(double a, double b)
{
    double rest = a - floor_divide_near(a, b) * b;
    return b == 0 ? 0 : rest;
}

#define BY_NEAR_LINE(name) \
    static void name##_line_i64(const void *arg, int64_t n, void *const *p) \
    { \
        (void)arg; \
        for (int64_t at = 0; at < n; at += HALF_PIECE) { \
            const int64_t *a = (const int64_t *)p[0] + at, *b = (const int64_t *)p[1] + at; \
            int64_t *y = (int64_t *)p[2] + at, m = n - at < HALF_PIECE ? n - at : HALF_PIECE; \
            uint64_t far = 0; \
            for (int64_t i = 0; i < m; i++) \
                far |= ((uint64_t)a[i] + NEAR) | ((uint64_t)b[i] + NEAR); \
            far /= 2 * NEAR; \
            INDEPENDENT \
            for (int64_t i = 0; i < m && !far; i++) \
                y[i] = whole_i64(name##_near(whole_f64(a[i]), whole_f64(b[i]))); \
            for (int64_t i = 0; i < m && far; i++) y[i] = name##_i64(a[i], b[i]); \
        } \
    }
BY_NEAR_LINE(remainder)
BY_NEAR_LINE(floor_divide)

/* int64: modulo 2^64; truncated where b is below 0, and 0 of 0 */
static inline int64_t power_i64(int64_t a, int64_t b)
{
    uint64_t y = 1, square = (uint64_t)a;
    if (b < 0) return a == 1 || a == -1 ? (b % 2 ? a : 1) : 0;
    for (; b; b >>= 1, square *= square)
        if (b & 1) y *= square;
    return (int64_t)y;
}

BINARY_LINE(power, float, f32, powf(a, b))
BINARY_LINE(power, double, f64, pow(a, b))
BINARY_LINE(power, int64_t, i64, power_i64(a, b))
BINARY_LINE(atan2, float, f32, atan2f(a, b))
BINARY_LINE(atan2, double, f64, atan2(a, b))
BINARY_LINE(bitwise_and, int64_t, i64, a &b)
/* gradients: a is dy, b is y or x. A NaN in y lets dy pass, as in PyTorch. */
BINARY(sqrt_dx, a / (b + b))
BINARY(sigmoid_dx, a *b *(1 - b))
BINARY(tanh_dx, a *(1 - b * b))
BINARY(abs_dx, a *(AS(b, b > 0) - AS(b, b < 0)))
BINARY(erf_dx, a *(AS(b, 1.12837916709551257390) * EXP(-b * b)))
BINARY(expm1_dx, a *(b + 1))
BINARY(log1p_dx, a / (1 + b))
#define CUBE(x) ((x) * (x) * (x))
BINARY(rsqrt_dx, AS(a, -0.5) * a * CUBE(1 / SQRT(b)))
BINARY(logsigmoid_dx, a / (1 + EXP(b)))
BINARY(hardsigmoid_dx, ABS(b) < 3 ? a / 6 : 0)
#define BINARY_P_LINE(name, T, suffix, left, right, condition) \
    static void name##_line_##suffix(const void *arg, int64_t n, void *const *p) \
    { \
        const T *dy = p[0], *saved = p[1], param = (T) * (const double *)arg; \
        T *y = p[2]; \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) { \
            T a = dy[i], b = saved[i], yes = left, no = right; \
            y[i] = condition ? yes : no; \
        } \
    }
#define BINARY_P_LINE_BF16(name, left, right, condition) \
    static void name##_line_bf16(const void *arg, int64_t n, void *const *p) \
    { \
        const uint16_t *dy = p[0], *saved = p[1]; \
        const float param = (float)*(const double *)arg; \
        uint16_t *y = p[2]; \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) { \
            float a = dsi_bf16_to_f32(dy[i]), b = dsi_bf16_to_f32(saved[i]); \
            float yes = left, no = right; \
            y[i] = bf16_of(condition ? yes : no); \
        } \
    }
#define BINARY_P(name, condition, left, right) \
    BINARY_P_LINE(name, float, f32, left, right, condition) \
    BINARY_P_LINE(name, double, f64, left, right, condition) \
    BINARY_P_LINE_BF16(name, left, right, condition)

BINARY_P(leaky_relu_dx, b > 0, a, param *a)
BINARY_P(elu_dx, b <= 0, a *(param *EXP(b)), a) /* a NaN lets dy pass, as in PyTorch */
BINARY_P(celu_dx, b <= 0, a *EXP(b *(1 / param)), a)
BINARY(selu_dx, a *(b <= 0 ? AS(b, SELU_BELOW) * EXP(b) : AS(b, SELU_SCALE)))
BINARY_P(huber_dx, b < -param, -param *a, a *(b > param ? param : b))
BINARY_P(softplus_dx, b > param, a, a / (1 + EXP(-b)))
BINARY(hardswish_dx, b <= -3 ? 0 : b < 3 ? a * (b / 3 + AS(b, 0.5)) : a)
BINARY(mish_dx, a *_Generic((b), float : mish_slope_f32, double : mish_slope_f64)(b))
/* (x Phi(x))' = Phi(x) + x phi(x), phi the normal density */
BINARY(gelu_dx, a *(NORMAL(b) + b * AS(b, INV_SQRT_2_PI) * EXP_NORMAL(AS(b, -0.5) * (b * b))))

/* (x s)' = s (1 + x (1 - s)), s the sigmoid */
#define SILU_DX(T, suffix) \
    ALWAYS_INLINE T silu_slope_##suffix(T x) \
    { \
        T s = 1 / (1 + EXP(-x)); \
        return s * (1 + x * (1 - s)); \
    }
SILU_DX(float, f32)
SILU_DX(double, f64)
#define SILU_SLOPE(x) _Generic((x), float : silu_slope_f32, double : silu_slope_f64)(x)
BINARY(silu_dx, a *SILU_SLOPE(b))

#define GELU_TANH_DX(T, suffix) \
    ALWAYS_INLINE T gelu_tanh_slope_##suffix(T x) \
    { \
        T s = 1 / (1 + EXP(-2 * TANH_INNER(x))); \
        T inner = AS(x, 2 * SQRT_2_OVER_PI) * (1 + AS(x, 3 * GELU_CUBIC) * x * x); \
        return s + x * (s * (1 - s)) * inner; \
    }
GELU_TANH_DX(float, f32)
GELU_TANH_DX(double, f64)
#define GELU_TANH_SLOPE(x) \
    _Generic((x), float : gelu_tanh_slope_f32, double : gelu_tanh_slope_f64)(x)
BINARY(gelu_tanh_dx, a *GELU_TANH_SLOPE(b))

/* ---- sin and cos ------------------------------------------------------------------------------------ */

/* y = exact(x), for n <= HALF_PIECE floats; each is computed by vmath.h where
 * it can be. */
ALWAYS_INLINE void turned(const float *x, float *y, int64_t n, uint32_t turns, float exact(float))
{
    int far = 0;
    for (int64_t i = 0; i < n; i++) {
        y[i] = sin_turned_f32(x[i], turns);
        far |= !(fabsf(x[i]) <= SIN_MOST);
    }
    for (int64_t i = 0; far && i < n; i++)
        if (!(fabsf(x[i]) <= SIN_MOST)) y[i] = exact(x[i]);
}

#define TURNED(name, turns, exact, exact_dx) \
    static void name##_line_f32(const void *arg, int64_t n, void *const *p) \
    { \
        float turn[HALF_PIECE], *y = p[1]; \
        (void)arg; \
        for (int64_t at = 0; at < n; at += HALF_PIECE) { \
            int64_t m = n - at < HALF_PIECE ? n - at : HALF_PIECE; \
            turned((const float *)p[0] + at, turn, m, turns, exact##f); \
            memcpy(y + at, turn, (size_t)m * sizeof *y); \
        } \
    } \
    static void name##_dx_line_f32(const void *arg, int64_t n, void *const *p) \
    { \
        const float *dy = p[0]; \
        float turn[HALF_PIECE], *y = p[2]; \
        (void)arg; \
        for (int64_t at = 0; at < n; at += HALF_PIECE) { \
            int64_t m = n - at < HALF_PIECE ? n - at : HALF_PIECE; \
            turned((const float *)p[1] + at, turn, m, turns + 1, exact_dx##f); \
            for (int64_t i = 0; i < m; i++) y[at + i] = dy[at + i] * turn[i]; \
        } \
    } \
    UNARY_LINE(name, double, f64, exact(x)) \
    BINARY_LINE(name##_dx, double, f64, a *exact_dx(b))

static float minus_sinf(float x) { return -sinf(x); }
static double minus_sin(double x) { return -sin(x); }
TURNED(sin, 0, sin, cos)
TURNED(cos, 1, cos, minus_sin)

/* ---- relu: of 16 bits by the bits ------------------------------------------------------------------- */

UNARY_LINE(relu, float, f32, x < 0 ? 0 : x)
UNARY_LINE(relu, double, f64, x < 0 ? 0 : x)
BINARY_LINE(relu_dx, float, f32, b <= 0 ? 0 : a)
BINARY_LINE(relu_dx, double, f64, b <= 0 ? 0 : a)

/* True if the bits x are a number below zero: with the sign bit they are above
 * -0 (0x8000) and at most -infinity; NaNs are above that. One unsigned
 * comparison. */
#define BELOW_ZERO(x, infinity) ((uint16_t)((x)-0x8001) < (infinity))
#define RELU_HALF(suffix, infinity) \
    static void relu_line_##suffix(const void *arg, int64_t n, void *const *p) \
    { \
        const uint16_t *x = p[0]; \
        uint16_t *y = p[1]; \
        (void)arg; \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) y[i] = BELOW_ZERO(x[i], infinity) ? 0 : x[i]; \
    } \
    static void relu_dx_line_##suffix(const void *arg, int64_t n, void *const *p) \
    { \
        const uint16_t *dy = p[0], *y = p[1]; \
        uint16_t *dx = p[2]; \
        (void)arg; \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) { \
            uint16_t g = dy[i]; /* read on both ways: a branch would not be vectorised */ \
            dx[i] = (!(y[i] & 0x7fff) | BELOW_ZERO(y[i], infinity)) ? 0 : g; \
        } \
    }
RELU_HALF(f16, 0x7c00)
RELU_HALF(bf16, 0x7f80)

/* Of either kind the sign is the highest bit. */
static void abs_line_half(const void *arg, int64_t n, void *const *p)
{
    const uint16_t *x = p[0];
    uint16_t *y = p[1];
    (void)arg;
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) y[i] = x[i] & 0x7fff;
}
