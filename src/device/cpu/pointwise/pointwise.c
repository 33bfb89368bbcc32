/* device/cpu/pointwise/pointwise.c: one element out for one element in of each operand.
 *
 * UNARY(name, formula of x) and BINARY(name, formula of a and b) make a kernel: a dense line of float and
 * of double, which the compiler vectorises, and the walk over the views. 16-bit elements are made float
 * piece by piece on the way to that line, and its result is rounded (Note [16-bit kernels]).
 * SPDX-License-Identifier: MIT */
#include "device/cpu/simd/half.h"
#include "device/cpu/simd/strided.h"
#include "device/cpu/simd/vmath.h"
#include "device/cpu/table.h"

typedef struct {
    walk_line *line; /* of float */
    const void *arg;
    int n;
    ds_dtype dtype[WALK_VIEWS];
    int64_t size[WALK_VIEWS];
} half_lines;

/* A line of which some views have 16 bits. */
static void half_line(const void *arg, int64_t n, void *const *p)
{
    const half_lines *h = arg;
    float wide[WALK_VIEWS][HALF_PIECE];
    int out = h->n - 1;
    for (int64_t i = 0; i < n; i += HALF_PIECE) {
        int64_t m = n - i < HALF_PIECE ? n - i : HALF_PIECE;
        void *at[WALK_VIEWS];
        for (int v = 0; v <= out; v++) {
            bool half = is_half(h->dtype[v]);
            char *here = (char *)p[v] + i * h->size[v];
            if (half && v < out) half_to_floats(h->dtype[v], (const uint16_t *)here, wide[v], m);
            at[v] = half ? (void *)wide[v] : here;
        }
        h->line(h->arg, m, at);
        if (is_half(h->dtype[out]))
            floats_to_half(h->dtype[out], wide[out], (uint16_t *)p[out] + i, m);
    }
}

static void run_half(walk_line *line, const void *arg, int n, const dsi_view *const *views)
{
    half_lines h = {.line = line, .arg = arg, .n = n};
    walk w;
    for (int v = 0; v < n; v++) {
        h.dtype[v] = views[v]->dtype;
        h.size[v] = (int64_t)ds_dtype_size(views[v]->dtype);
    }
    walk_plan(&w, n, views);
    walk_run(&w, half_line, &h);
}

/* Walks by line32 or line64, as dtype says; views[n - 1] is the output. */
static ds_status run(const char *kernel, ds_dtype dtype, walk_line *line32, walk_line *line64,
                     const void *arg, int n, const dsi_view *const *views)
{
    walk w;
    if (is_half(dtype)) {
        run_half(line32, arg, n, views);
        return DS_OK;
    }
    if (dtype != DS_F32 && dtype != DS_F64) return no_dtype(kernel, dtype);
    walk_plan(&w, n, views);
    walk_run(&w, dtype == DS_F32 ? line32 : line64, arg);
    return DS_OK;
}

#define RUN(name, dtype, arg, n, ...) \
    run(#name, dtype, name##_line_f32, name##_line_f64, arg, n, \
        (const dsi_view *const[]){__VA_ARGS__})

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
#define UNARY(name, formula) \
    UNARY_LINE(name, float, f32, formula) \
    UNARY_LINE(name, double, f64, formula) \
    ds_status KERNEL(name)(dsi_stream * s, dsi_view x, dsi_view y) \
    { \
        (void)s; \
        return RUN(name, x.dtype, NULL, 2, &x, &y); \
    }

#define SQRT_2_OVER_PI  0.79788456080286535588
#define INV_SQRT_2_PI   0.39894228040143267794 /* 1 / sqrt(2 pi) */
#define GELU_CUBIC      0.044715
#define AS(x, constant) ((__typeof__(x))(constant)) /* a constant of x's type */

#define TANH_INNER(x) (AS(x, SQRT_2_OVER_PI) * ((x) + AS(x, GELU_CUBIC) * (x) * (x) * (x)))

UNARY(abs, ABS(x))
UNARY(exp, EXP(x))
UNARY(log, LOG(x))
UNARY(sqrt, SQRT(x))
UNARY(gelu, x *NORMAL(x))
UNARY(gelu_tanh, AS(x, 0.5) * x * (1 + TANH(TANH_INNER(x))))
UNARY(sigmoid, 1 / (1 + EXP(-x)))
UNARY(tanh, TANH(x))

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
#define BINARY_LINES(name, formula) \
    BINARY_LINE(name, float, f32, formula) \
    BINARY_LINE(name, double, f64, formula)
#define BINARY(name, formula) \
    BINARY_LINES(name, formula) \
    ds_status KERNEL(name)(dsi_stream * s, dsi_view a, dsi_view b, dsi_view y) \
    { \
        (void)s; \
        return RUN(name, a.dtype, NULL, 3, &a, &b, &y); \
    }

BINARY(mul, a *b)
BINARY(div, a / b)
BINARY_LINES(plain_add, a + b)
BINARY_LINES(add, a + (__typeof__(a))*(const double *)arg * b)

ds_status KERNEL(add)(dsi_stream *s, double alpha, dsi_view a, dsi_view b, dsi_view y)
{
    (void)s;
    return alpha == 1 ? RUN(plain_add, a.dtype, NULL, 3, &a, &b, &y)
                      : RUN(add, a.dtype, &alpha, 3, &a, &b, &y);
}

/* gradients: a is dy, b is y or x. A NaN in y lets dy pass, as in PyTorch. */
BINARY(sigmoid_dx, a *b *(1 - b))
BINARY(tanh_dx, a *(1 - b * b))
BINARY(abs_dx, a *(AS(b, b > 0) - AS(b, b < 0)))
/* (x Phi(x))' = Phi(x) + x phi(x), phi the normal density */
BINARY(gelu_dx, a *(NORMAL(b) + b * AS(b, INV_SQRT_2_PI) * EXP_NORMAL(AS(b, -0.5) * (b * b))))

#define GELU_TANH_DX(T, suffix) \
    ALWAYS_INLINE T gelu_tanh_slope_##suffix(T x) \
    { \
        T t = TANH(TANH_INNER(x)); \
        T inner = AS(x, SQRT_2_OVER_PI) * (1 + AS(x, 3 * GELU_CUBIC) * x * x); \
        return AS(x, 0.5) * (1 + t) + AS(x, 0.5) * x * (1 - t * t) * inner; \
    }
GELU_TANH_DX(float, f32)
GELU_TANH_DX(double, f64)
#define GELU_TANH_SLOPE(x) \
    _Generic((x), float : gelu_tanh_slope_f32, double : gelu_tanh_slope_f64)(x)
BINARY(gelu_tanh_dx, a *GELU_TANH_SLOPE(b))

/* ---- relu: of 16 bits by the bits ------------------------------------------------------------------- */

UNARY_LINE(relu, float, f32, x < 0 ? 0 : x)
UNARY_LINE(relu, double, f64, x < 0 ? 0 : x)
BINARY_LINES(relu_dx, b <= 0 ? 0 : a)

/* Below zero: with the sign, more than -0, and at most -infinity (NaNs lie beyond it). */
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
            dx[i] = !(y[i] & 0x7fff) | BELOW_ZERO(y[i], infinity) ? 0 : g; \
        } \
    }
RELU_HALF(f16, 0x7c00)
RELU_HALF(bf16, 0x7f80)

#define RELU_LINES(name) \
    { \
        [DS_F32] = name##_line_f32, [DS_F64] = name##_line_f64, [DS_F16] = name##_line_f16, \
        [DS_BF16] = name##_line_bf16, \
    }

ds_status KERNEL(relu)(dsi_stream *s, dsi_view x, dsi_view y)
{
    static walk_line *const lines[DS_DTYPES] = RELU_LINES(relu);
    (void)s;
    if (!lines[x.dtype]) return no_dtype("relu", x.dtype);
    WALK(lines[x.dtype], NULL, &x, &y);
    return DS_OK;
}

ds_status KERNEL(relu_dx)(dsi_stream *s, dsi_view dy, dsi_view y, dsi_view dx)
{
    static walk_line *const lines[DS_DTYPES] = RELU_LINES(relu_dx);
    (void)s;
    if (!lines[dy.dtype]) return no_dtype("relu_dx", dy.dtype);
    WALK(lines[dy.dtype], NULL, &dy, &y, &dx);
    return DS_OK;
}

/* ---- with numbers --------------------------------------------------------------------------------- */

typedef struct {
    double factor, term;
} line_of_x;

#define FACTOR ((__typeof__(x))((const line_of_x *)arg)->factor)
#define TERM   ((__typeof__(x))((const line_of_x *)arg)->term)
UNARY_LINE(affine, float, f32, FACTOR *x + TERM)
UNARY_LINE(affine, double, f64, FACTOR *x + TERM)

ds_status KERNEL(affine)(dsi_stream *s, double factor, double term, dsi_view x, dsi_view y)
{
    line_of_x l = {factor, term};
    (void)s;
    return RUN(affine, x.dtype, &l, 2, &x, &y);
}

UNARY_LINE(square, float, f32, x *x)
UNARY_LINE(square, double, f64, x *x)
UNARY_LINE(cube, float, f32, x *x *x)
UNARY_LINE(cube, double, f64, x *x *x)
UNARY_LINE(inverse, float, f32, 1 / x)
UNARY_LINE(inverse, double, f64, 1 / x)
UNARY_LINE(pow, float, f32, POW(x, (__typeof__(x))*(const double *)arg))
UNARY_LINE(pow, double, f64, POW(x, (__typeof__(x))*(const double *)arg))

/* The common exponents are those that PyTorch treats apart too. */
ds_status KERNEL(pow)(dsi_stream *s, double exponent, dsi_view x, dsi_view y)
{
    (void)s;
    if (exponent == 2) return RUN(square, x.dtype, NULL, 2, &x, &y);
    if (exponent == 3) return RUN(cube, x.dtype, NULL, 2, &x, &y);
    if (exponent == 0.5) return RUN(sqrt, x.dtype, NULL, 2, &x, &y);
    if (exponent == -1) return RUN(inverse, x.dtype, NULL, 2, &x, &y);
    return RUN(pow, x.dtype, &exponent, 2, &x, &y);
}

/* ---- comparisons: any dtype -> bool ---------------------------------------------------------------- */

#define COMPARE_LINE(name, T, suffix, load, op) \
    static void name##_line_##suffix(const void *arg, int64_t n, void *const *p) \
    { \
        const T *a = p[0], *b = p[1]; \
        uint8_t *y = p[2]; \
        (void)arg; \
        for (int64_t i = 0; i < n; i++) y[i] = load(a[i]) op load(b[i]); \
    }
#define COMPARE(name, op) \
    COMPARE_LINE(name, float, f32, , op) \
    COMPARE_LINE(name, double, f64, , op) \
    COMPARE_LINE(name, uint16_t, f16, dsi_f16_to_f32, op) \
    COMPARE_LINE(name, uint16_t, bf16, dsi_bf16_to_f32, op) \
    COMPARE_LINE(name, int64_t, i64, , op) \
    COMPARE_LINE(name, int32_t, i32, , op) \
    COMPARE_LINE(name, int16_t, i16, , op) \
    COMPARE_LINE(name, int8_t, i8, , op) \
    COMPARE_LINE(name, uint8_t, u8, , op) \
    ds_status KERNEL(name)(dsi_stream * s, dsi_view a, dsi_view b, dsi_view y) \
    { \
        static walk_line *const lines[DS_DTYPES] = { \
            [DS_F32] = name##_line_f32,   [DS_F64] = name##_line_f64, [DS_F16] = name##_line_f16, \
            [DS_BF16] = name##_line_bf16, [DS_I64] = name##_line_i64, [DS_I32] = name##_line_i32, \
            [DS_I16] = name##_line_i16,   [DS_I8] = name##_line_i8,   [DS_U8] = name##_line_u8, \
            [DS_BOOL] = name##_line_u8, \
        }; \
        (void)s; \
        WALK(lines[a.dtype], NULL, &a, &b, &y); \
        return DS_OK; \
    }

COMPARE(eq, ==)
COMPARE(lt, <)

/* ---- by a condition ------------------------------------------------------------------------------- */

/* Elements are moved, whatever they mean. */
#define WHERE_LINE(T) \
    static void where_line_##T(const void *arg, int64_t n, void *const *p) \
    { \
        const uint8_t *c = p[0]; \
        const T *a = p[1], *b = p[2]; \
        T *y = p[3]; \
        (void)arg; \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) { \
            T yes = a[i], no = b[i]; /* both are read: a branch would not be vectorised */ \
            y[i] = c[i] ? yes : no; \
        } \
    }
WHERE_LINE(uint8_t)
WHERE_LINE(uint16_t)
WHERE_LINE(uint32_t)
WHERE_LINE(uint64_t)

ds_status KERNEL(where)(dsi_stream *s, dsi_view c, dsi_view a, dsi_view b, dsi_view y)
{
    size_t size = ds_dtype_size(y.dtype);
    walk_line *line = size == 1   ? where_line_uint8_t
                      : size == 2 ? where_line_uint16_t
                      : size == 4 ? where_line_uint32_t
                                  : where_line_uint64_t;
    (void)s;
    WALK(line, NULL, &c, &a, &b, &y);
    return DS_OK;
}

#define MASK_SCALE_LINE(T, suffix) \
    static void mask_scale_line_##suffix(const void *arg, int64_t n, void *const *p) \
    { \
        const T *x = p[0], factor = (T) * (const double *)arg; \
        const uint8_t *keep = p[1]; \
        T *y = p[2]; \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) { \
            T scaled = x[i] * factor; \
            y[i] = keep[i] ? scaled : 0; \
        } \
    }
MASK_SCALE_LINE(float, f32)
MASK_SCALE_LINE(double, f64)

ds_status KERNEL(mask_scale)(dsi_stream *s, double factor, dsi_view x, dsi_view keep, dsi_view y)
{
    (void)s;
    return RUN(mask_scale, x.dtype, &factor, 3, &x, &keep, &y);
}
