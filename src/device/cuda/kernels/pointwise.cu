/* device/cuda/kernels/pointwise.cu: one element out for one element in of each
 * operand. Formulas: device/kernels.h; those of gradients get dy as a, and x or
 * y as b.
 * SPDX-License-Identifier: MIT */
#include "activation.cuh"
#include "pairs.h"
#include "vector.cuh"

#define INV_SQRT_2_PI 0.39894228040143267794
#define SELU_SCALE     1.0507009873554804934193349852946
#define SELU_BELOW     1.7580993408473768599402175208123 /* SELU_SCALE times its alpha */

/* ---- functions of float and double ---- */

DEVICE float exp_of(float x) { return expf(x); }
DEVICE double exp_of(double x) { return exp(x); }
DEVICE float log_of(float x) { return logf(x); }
DEVICE double log_of(double x) { return log(x); }
DEVICE float sqrt_of(float x) { return sqrtf(x); }
DEVICE double sqrt_of(double x) { return sqrt(x); }
DEVICE float sin_of(float x) { return sinf(x); }
DEVICE double sin_of(double x) { return sin(x); }
DEVICE float cos_of(float x) { return cosf(x); }
DEVICE double cos_of(double x) { return cos(x); }
DEVICE float erf_of(float x) { return erff(x); }
DEVICE double erf_of(double x) { return erf(x); }
DEVICE float expm1_of(float x) { return expm1f(x); }
DEVICE double expm1_of(double x) { return expm1(x); }
DEVICE float log1p_of(float x) { return log1pf(x); }
DEVICE double log1p_of(double x) { return log1p(x); }
DEVICE float floor_of(float x) { return floorf(x); }
DEVICE double floor_of(double x) { return floor(x); }
DEVICE float ceil_of(float x) { return ceilf(x); }
DEVICE double ceil_of(double x) { return ceil(x); }
DEVICE float rint_of(float x) { return rintf(x); }
DEVICE double rint_of(double x) { return rint(x); }
DEVICE float modulo_of(float a, float b) { return fmodf(a, b); }
DEVICE double modulo_of(double a, double b) { return fmod(a, b); }
DEVICE float pow_of(float x, double e) { return powf(x, (float)e); }
DEVICE double pow_of(double x, double e) { return pow(x, e); }
DEVICE float atan2_of(float y, float x) { return atan2f(y, x); }
DEVICE double atan2_of(double y, double x) { return atan2(y, x); }

template <class C> DEVICE C gelu_tanh_slope(C x)
{
    C t = tanh_of((C)SQRT_2_OVER_PI * (x + (C)GELU_CUBIC * x * x * x));
    C inner = (C)SQRT_2_OVER_PI * (1 + (C)(3 * GELU_CUBIC) * x * x);
    return (C)0.5 * (1 + t) + (C)0.5 * x * (1 - t * t) * inner;
}

template <class C> DEVICE C silu_slope(C x)
{
    C s = 1 / (1 + exp_of(-x));
    return s * (1 + x * (1 - s));
}

/* x tanh(log(1 + e^x)): tanh(log(1 + e^x)) = n / (n + 2), n = w (w + 2), w = e^x;
 * from 20 on it is 1. */
template <class C> DEVICE C mish_of(C x)
{
    C w = exp_of(x > 20 ? (C)20 : x), n = w * (w + 2);
    return x * (n / (n + 2));
}

template <class C> DEVICE C mish_slope(C x)
{
    C w = exp_of(x > 20 ? (C)20 : x), n = w * (w + 2);
    return n / (n + 2) + x * (x > 20 ? 0 : 4 * w * (1 + w) / ((n + 2) * (n + 2)));
}

template <class C> DEVICE C cube(C x) { return x * x * x; }
template <class C> DEVICE C hard(C x) { return x + 3 < 0 ? 0 : x + 3 > 6 ? 6 : x + 3; }

template <class C> DEVICE C huber_of(C x, C p)
{
    C d = x < 0 ? -x : x;
    return d >= p ? p * (d - p / 2) : d * d / 2;
}

/* Of b's sign, or 0. */
template <class C> DEVICE C remainder_of(C a, C b)
{
    C rest = modulo_of(a, b);
    return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}

template <class C> DEVICE C floor_divide_of(C a, C b)
{
    if (b == 0) return a / b;
    C rest = modulo_of(a, b), q = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) q -= 1;
    C y = floor_of(q);
    return q == 0 ? a / b * 0 : q - y > (C)0.5 ? y + 1 : y;
}

template <class C> DEVICE C unary_of(int op, double p, C x)
{
    switch (op) {
    case K_ABS: return x < 0 ? -x : x + 0; /* -0 + 0 is 0 */
    case K_EXP: return exp_of(x);
    case K_LOG: return log_of(x);
    case K_SQRT: return sqrt_of(x);
    case K_RELU: return x < 0 ? 0 : x;
    case K_GELU: return gelu_of(x);
    case K_GELU_TANH: return gelu_tanh_of(x);
    case K_SILU: return silu_of(x);
    case K_SIGMOID: return 1 / (1 + exp_of(-x));
    case K_TANH: return tanh_of(x);
    case K_SIN: return sin_of(x);
    case K_COS: return cos_of(x);
    case K_ERF: return erf_of(x);
    case K_EXPM1: return expm1_of(x);
    case K_LOG1P: return log1p_of(x);
    case K_LEAKY_RELU: return x > 0 ? x : (C)p * x;
    case K_ELU: return x > 0 ? x : (C)p * expm1_of(x);
    case K_SOFTPLUS: return x > (C)p ? x : (x < 0 ? 0 : x) + log1p_of(exp_of(x < 0 ? x : -x));
    case K_HARDSWISH: return x * hard(x) / 6;
    case K_MISH: return mish_of(x);
    case K_HARDSIGMOID: return hard(x) / 6;
    case K_LOGSIGMOID: return (x > 0 ? 0 : x) - log1p_of(exp_of(x < 0 ? x : -x));
    case K_SELU: return x > 0 ? (C)SELU_SCALE * x : (C)SELU_BELOW * expm1_of(x);
    case K_CELU: return x > 0 ? x : (C)p * expm1_of(x / (C)p);
    case K_HUBER: return huber_of(x, (C)p);
    case K_RSQRT: return 1 / sqrt_of(x);
    case K_FLOOR: return floor_of(x);
    case K_CEIL: return ceil_of(x);
    case K_ROUND: return rint_of(x);
    case K_SIGN: return (C)((x > 0) - (x < 0));
    case K_SQUARE: return x * x;
    case K_CUBE: return x * x * x;
    case K_INVERSE: return 1 / x;
    default: return pow_of(x, p);
    }
}

template <class C> DEVICE C unary_dx_of(int op, double p, C a, C b)
{
    switch (op) {
    case K_ABS: return a * (C)((b > 0) - (b < 0));
    case K_EXP: return a * b;
    case K_LOG: return a / b;
    case K_SQRT: return a / (b + b);
    case K_RELU: return b <= 0 ? 0 : a;
    case K_GELU: return a * (normal(b) + b * (C)INV_SQRT_2_PI * exp_of((C)-0.5 * b * b));
    case K_GELU_TANH: return a * gelu_tanh_slope(b);
    case K_SILU: return a * silu_slope(b);
    case K_SIGMOID: return a * b * (1 - b);
    case K_SIN: return a * cos_of(b);
    case K_COS: return -a * sin_of(b);
    case K_ERF: return a * ((C)1.12837916709551257390 * exp_of(-b * b));
    case K_EXPM1: return a * (b + 1);
    case K_LOG1P: return a / (1 + b);
    case K_LEAKY_RELU: return b > 0 ? a : (C)p * a;
    case K_ELU: return b <= 0 ? a * ((C)p * exp_of(b)) : a;
    case K_SOFTPLUS: return b > (C)p ? a : a / (1 + exp_of(-b));
    case K_HARDSWISH: return b <= -3 ? 0 : b < 3 ? a * (b / 3 + (C)0.5) : a;
    case K_MISH: return a * mish_slope(b);
    case K_HARDSIGMOID: return b > -3 && b < 3 ? a / 6 : 0;
    case K_LOGSIGMOID: return a / (1 + exp_of(b));
    case K_SELU: return b <= 0 ? a * ((C)SELU_BELOW * exp_of(b)) : (C)SELU_SCALE * a;
    case K_CELU: return b <= 0 ? a * exp_of(b / (C)p) : a;
    case K_HUBER: return a * (b < (C)-p ? (C)-p : b > (C)p ? (C)p : b);
    case K_RSQRT: return (C)-0.5 * a * cube(1 / sqrt_of(b));
    default: return a * (1 - b * b);
    }
}

template <class C> DEVICE C binary_of(int op, C alpha, C a, C b)
{
    switch (op) {
    case K_ADD: return a + alpha * b;
    case K_MUL: return a * b;
    case K_MAXIMUM: return a > b || a != a ? a : b;
    case K_MINIMUM: return a < b || a != a ? a : b;
    case K_FLOOR_DIVIDE: return floor_divide_of(a, b);
    case K_REMAINDER: return remainder_of(a, b);
    case K_POWER: return pow_of(a, b);
    case K_ATAN2: return atan2_of(a, b);
    default: return a / b;
    }
}

/* Modulo 2^64; truncated where b is below 0, and 0 of 0. */
DEVICE long long power_of_int(long long a, long long b)
{
    unsigned long long y = 1, square = (unsigned long long)a;
    if (b < 0) return a == 1 || a == -1 ? (b % 2 ? a : 1) : 0;
    for (; b; b >>= 1, square *= square)
        if (b & 1) y *= square;
    return (long long)y;
}

/* Modulo 2^64; by 0 quotient and remainder are 0. */
DEVICE long long binary_of_int(int op, long long alpha, long long a, long long b)
{
    typedef unsigned long long word;
    switch (op) {
    case K_ADD: return (long long)((word)a + (word)alpha * (word)b);
    case K_MUL: return (long long)((word)a * (word)b);
    case K_MAXIMUM: return a > b ? a : b;
    case K_MINIMUM: return a < b ? a : b;
    case K_BITS_AND: return a & b;
    case K_POWER: return power_of_int(a, b);
    }
    if (b == 0) return 0;
    if (b == -1) return op == K_REMAINDER ? 0 : (long long)(0 - (word)a);
    long long rest = a % b;
    bool lower = rest != 0 && (b < 0) != (rest < 0);
    if (op == K_REMAINDER) return lower ? rest + b : rest;
    return a / b - lower;
}

DEVICE bool compare_of(int op, bool equal, bool less)
{
    switch (op) {
    case K_EQ: return equal;
    case K_NE: return !equal;
    case K_LT: return less;
    default: return less || equal;
    }
}

/* ---- kernels: y is the last view of P.e ---- */

#define UNARY(name, C, formula) \
    KERNEL(name, dsi_cuda_pointwise, 256) \
    { \
        GRID_LOOP (i, P.e.count) { \
            long long at[2]; \
            places(P.e, i, at); \
            C x = load<C>(P.e.p[0], P.e.dtype[0], at[0]); \
            store<C>(P.e.p[1], P.e.dtype[1], at[1], formula); \
        } \
    }
#define BINARY(name, C, formula) \
    KERNEL(name, dsi_cuda_pointwise, 256) \
    { \
        GRID_LOOP (i, P.e.count) { \
            long long at[3]; \
            places(P.e, i, at); \
            C a = load<C>(P.e.p[0], P.e.dtype[0], at[0]), \
              b = load<C>(P.e.p[1], P.e.dtype[1], at[1]); \
            store<C>(P.e.p[2], P.e.dtype[2], at[2], formula); \
        } \
    }

UNARY(unary_f32, float, unary_of(P.op, P.a, x))
UNARY(unary_f64, double, unary_of(P.op, P.a, x))
UNARY(affine_f32, float, (float)P.a *x + (float)P.b)
UNARY(affine_f64, double, P.a *x + P.b)
BINARY(unary_dx_f32, float, unary_dx_of(P.op, P.a, a, b))
BINARY(unary_dx_f64, double, unary_dx_of(P.op, P.a, a, b))
BINARY(binary_f32, float, binary_of(P.op, (float)P.a, a, b))
BINARY(binary_f64, double, binary_of(P.op, P.a, a, b))
BINARY(binary_i64, long long, binary_of_int(P.op, (long long)P.a, a, b))

/* a, b of one dtype; y: bool */
#define COMPARE(name, C, read) \
    KERNEL(name, dsi_cuda_pointwise, 256) \
    { \
        GRID_LOOP (i, P.e.count) { \
            long long at[3]; \
            places(P.e, i, at); \
            C a = read(P.e.p[0], P.e.dtype[0], at[0]), b = read(P.e.p[1], P.e.dtype[1], at[1]); \
            ((unsigned char *)P.e.p[2])[at[2]] = compare_of(P.op, a == b, a < b); \
        } \
    }
COMPARE(compare_f32, float, load<float>)
COMPARE(compare_f64, double, load<double>)
COMPARE(compare_i64, long long, load_int)

/* c, a, b, y: elements are copied as bits */
KERNEL(where, dsi_cuda_elements, 256)
{
    int bytes = size_of(P.dtype[3]);
    GRID_LOOP (i, P.count) {
        long long at[4];
        places(P, i, at);
        bool yes = ((const unsigned char *)P.p[0])[at[0]] != 0;
        unsigned long long bits = yes ? load_bits(P.p[1], bytes, at[1])
                                      : load_bits(P.p[2], bytes, at[2]);
        store_bits(P.p[3], bytes, at[3], bits);
    }
}

/* The same of four neighbours of x, keep, y without gaps. */
DEVICE void mask_scale_quad(const dsi_cuda_pointwise &P, long long quad)
{
    float v[4];
    unsigned keep = ((const unsigned *)P.e.p[1])[quad];
    quad_load(v, P.e.p[0], P.e.dtype[0], quad * 4);
UNROLL
    for (int k = 0; k < 4; k++) v[k] = keep >> 8 * k & 0xff ? v[k] * (float)P.a : 0.f;
    quad_store(P.e.p[2], P.e.dtype[2], quad * 4, v);
}

/* x, keep, y; op: whole quads of floats without gaps, as launch_pointwise.c says */
#define MASK_SCALE(name, C) \
    KERNEL(name, dsi_cuda_pointwise, 256) \
    { \
        if (sizeof(C) == 4 && P.op) { \
            GRID_LOOP (quad, P.e.count / 4) mask_scale_quad(P, quad); \
            return; \
        } \
        GRID_LOOP (i, P.e.count) { \
            long long at[3]; \
            places(P.e, i, at); \
            C x = load<C>(P.e.p[0], P.e.dtype[0], at[0]); \
            bool kept = ((const unsigned char *)P.e.p[1])[at[1]] != 0; \
            store<C>(P.e.p[2], P.e.dtype[2], at[2], kept ? x * (C)P.a : (C)0); \
        } \
    }
MASK_SCALE(mask_scale_f32, float)
MASK_SCALE(mask_scale_f64, double)

/* a, b, c, d, y */
#define MUL_ADD(name, C) \
    KERNEL(name, dsi_cuda_pointwise, 256) \
    { \
        GRID_LOOP (i, P.e.count) { \
            long long at[5]; \
            places(P.e, i, at); \
            C x[4]; \
            UNROLL \
            for (int v = 0; v < 4; v++) x[v] = load<C>(P.e.p[v], P.e.dtype[v], at[v]); \
            store<C>(P.e.p[4], P.e.dtype[4], at[4], x[0] * x[1] + (C)P.a * x[2] * x[3]); \
        } \
    }
MUL_ADD(mul_add_f32, float)
MUL_ADD(mul_add_f64, double)

/* a, b, y, dx */
#define RELU_DX_OF_SUM(name, C) \
    KERNEL(name, dsi_cuda_pointwise, 256) \
    { \
        GRID_LOOP (i, P.e.count) { \
            long long at[4]; \
            places(P.e, i, at); \
            C a = load<C>(P.e.p[0], P.e.dtype[0], at[0]), \
              b = load<C>(P.e.p[1], P.e.dtype[1], at[1]), \
              y = load<C>(P.e.p[2], P.e.dtype[2], at[2]); \
            store<C>(P.e.p[3], P.e.dtype[3], at[3], unary_dx_of<C>(K_RELU, 0, a + b, y)); \
        } \
    }
RELU_DX_OF_SUM(relu_dx_of_sum_f32, float)
RELU_DX_OF_SUM(relu_dx_of_sum_f64, double)

/* ---- dense operands of one dtype: 16 bytes at a time ----
 *
 * Of common ops alone: each has a loop of its own, so that a vector has no
 * branches. */

/* Vector i begins at element N i; elements behind the last vector are one each. */
template <class T, int VIEWS, class F> DEVICE void dense_loop(const dsi_cuda_pointwise &P, F f)
{
    enum { N = vector_of<T>::N, Y = VIEWS - 1 };
    GRID_LOOP (i, P.e.count / N) {
        float x[Y][N], y[N];
UNROLL
        for (int k = 0; k < Y; k++) vector_load<T>(x[k], P.e.p[k], i * N);
UNROLL
        for (int e = 0; e < N; e++) y[e] = f(x[0][e], x[Y / 2][e], x[Y - 1][e]);
        vector_store<T>(P.e.p[Y], i * N, y);
    }
    long long rest = P.e.count / N * N + threadIdx.x;
    if (blockIdx.x || rest >= P.e.count) return;
    float a = load<float>(P.e.p[0], P.e.dtype[0], rest),
          b = load<float>(P.e.p[Y / 2], P.e.dtype[Y / 2], rest),
          c = load<float>(P.e.p[Y - 1], P.e.dtype[Y - 1], rest);
    store<float>(P.e.p[Y], P.e.dtype[Y], rest, f(a, b, c));
}

template <class T, int OP> DEVICE void unary_loop(const dsi_cuda_pointwise &P)
{
    dense_loop<T, 2>(P, [&](float x, float, float) {
        return unary_of<float>(OP, P.a, x);
    });
}
template <class T, int OP> DEVICE void unary_dx_loop(const dsi_cuda_pointwise &P)
{
    dense_loop<T, 3>(P, [&](float a, float b, float) {
        return unary_dx_of<float>(OP, P.a, a, b);
    });
}
template <class T, int OP> DEVICE void binary_loop(const dsi_cuda_pointwise &P)
{
    float alpha = (float)P.a;
    dense_loop<T, 3>(P, [&](float a, float b, float) {
        return binary_of<float>(OP, alpha, a, b);
    });
}

#define ACTIVATIONS(loop, T) \
    switch (P.op) { \
    case K_RELU: loop<T, K_RELU>(P); break; \
    case K_GELU: loop<T, K_GELU>(P); break; \
    case K_GELU_TANH: loop<T, K_GELU_TANH>(P); break; \
    default: loop<T, K_SILU>(P); \
    }
#define DENSE(suffix, T) \
    KERNEL(unary_dense_##suffix, dsi_cuda_pointwise, 256) { ACTIVATIONS(unary_loop, T) } \
    KERNEL(unary_dx_dense_##suffix, dsi_cuda_pointwise, 256) { ACTIVATIONS(unary_dx_loop, T) } \
    KERNEL(binary_dense_##suffix, dsi_cuda_pointwise, 256) \
    { \
        switch (P.op) { \
        case K_ADD: binary_loop<T, K_ADD>(P); break; \
        default: binary_loop<T, K_MUL>(P); \
        } \
    } \
    KERNEL(affine_dense_##suffix, dsi_cuda_pointwise, 256) \
    { \
        float factor = (float)P.a, term = (float)P.b; \
        dense_loop<T, 2>(P, [&](float x, float, float) { return factor * x + term; }); \
    } \
    KERNEL(relu_dx_of_sum_dense_##suffix, dsi_cuda_pointwise, 256) \
    { \
        dense_loop<T, 4>(P, [&](float a, float b, float y) { \
            return unary_dx_of<float>(K_RELU, 0, a + b, y); \
        }); \
    }
DENSE(f32, float)
DENSE(f16, __half)
DENSE(bf16, __nv_bfloat16)
