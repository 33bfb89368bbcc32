/* device/cpu/pointwise/pointwise.c: one element out for one element in of each
 * operand.
 *
 * formulas.h has each operation's loops over a dense line. An entry of the
 * contract picks the loops of its operation from a table once, and the strided
 * iterator (simd/strided.h) runs them over the views. 16-bit elements become
 * float in pieces on the way to that loop, and its result is rounded (Note
 * [16-bit kernels]).
 * SPDX-License-Identifier: MIT */
#include "device/cpu/simd/half.h"
#include "device/cpu/simd/strided.h"
#include "device/cpu/simd/vmath.h"
#include "device/cpu/table.h"
#include "formulas.h"

typedef struct {
    strided_line *line; /* of float */
    const void *arg;
    int n;
    ds_dtype dtype[STRIDED_VIEWS];
    int64_t size[STRIDED_VIEWS];
} half_lines;

/* A line if some views have 16 bits: upcasts HALF_PIECE elements of each such
 * operand into a buffer, calls the float loop, and rounds its result. */
static void half_line(const void *arg, int64_t n, void *const *p)
{
    const half_lines *h = arg;
    float wide[STRIDED_VIEWS][HALF_PIECE];
    int out = h->n - 1;
    for (int64_t i = 0; i < n; i += HALF_PIECE) {
        int64_t m = n - i < HALF_PIECE ? n - i : HALF_PIECE;
        void *at[STRIDED_VIEWS];
        for (int v = 0; v <= out; v++) {
            bool half = is_half(h->dtype[v]);
            char *element = (char *)p[v] + i * h->size[v];
            if (half && v < out) half_to_floats(h->dtype[v], (const uint16_t *)element, wide[v], m);
            at[v] = half ? (void *)wide[v] : element;
        }
        h->line(h->arg, m, at);
        if (is_half(h->dtype[out]))
            floats_to_half(h->dtype[out], wide[out], (uint16_t *)p[out] + i, m);
    }
}

/* Runs half_line with the float loop `line` over views of which some have 16
 * bits. */
static void run_half(strided_line *line, const void *arg, int n, const dsi_view *const *views)
{
    half_lines h = {.line = line, .arg = arg, .n = n};
    strided w;
    for (int v = 0; v < n; v++) {
        h.dtype[v] = views[v]->dtype;
        h.size[v] = (int64_t)ds_dtype_size(views[v]->dtype);
    }
    strided_plan(&w, n, views);
    strided_run(&w, half_line, &h);
}

/* Runs line32 or line64, chosen by dtype, over all lines; views[n - 1] is the
 * output. */
static ds_status pointwise_run(const char *kernel, ds_dtype dtype, strided_line *line32,
                               strided_line *line64, const void *arg, int n,
                               const dsi_view *const *views)
{
    strided w;
    if (is_half(dtype)) {
        run_half(line32, arg, n, views);
        return DS_OK;
    }
    if (dtype != DS_F32 && dtype != DS_F64) return no_dtype(kernel, dtype);
    strided_plan(&w, n, views);
    strided_run(&w, dtype == DS_F32 ? line32 : line64, arg);
    return DS_OK;
}

#define RUN(name, dtype, arg, n, ...) \
    pointwise_run(#name, dtype, name##_line_f32, name##_line_f64, arg, n, \
                  (const dsi_view *const[]){__VA_ARGS__})

/* The loops of one operation; f16 and bf16 are NULL if 16 bits are upcast
 * first, i64 if it takes no integers. */
typedef struct {
    strided_line *f32, *f64, *f16, *bf16, *i64;
} op_lines;

#define LINES(name) \
    { \
        name##_line_f32, name##_line_f64, NULL, name##_line_bf16, NULL \
    }
#define LINES_UPCAST(name) \
    { \
        name##_line_f32, name##_line_f64, NULL, NULL, NULL \
    }
#define LINES_HALF(name) \
    { \
        name##_line_f32, name##_line_f64, name##_line_f16, name##_line_bf16, NULL \
    }
#define LINES_I64(name) \
    { \
        name##_line_f32, name##_line_f64, NULL, name##_line_bf16, name##_line_i64 \
    }

#define LINES_I64_UPCAST(name) \
    { \
        name##_line_f32, name##_line_f64, NULL, NULL, name##_line_i64 \
    }

/* Runs the loops of `op` for the dtype of views[0]; views[n - 1] is the output. */
static ds_status pointwise_run_op(const char *kernel, const op_lines *op, const void *arg, int n,
                                  const dsi_view *const *views)
{
    ds_dtype dtype = views[0]->dtype;
    strided_line *line = dtype == DS_F16    ? op->f16
                         : dtype == DS_BF16 ? op->bf16
                         : dtype == DS_I64  ? op->i64
                                            : NULL;
    strided w;
    for (int v = 1; v < n; v++)
        if (views[v]->dtype != dtype) line = NULL;
    if (!line && !op->f32) return no_dtype(kernel, dtype);
    if (!line) return pointwise_run(kernel, dtype, op->f32, op->f64, arg, n, views);
    strided_plan(&w, n, views);
    strided_run(&w, line, arg);
    return DS_OK;
}

#define RUN_OP(name, arg, n, ...) \
    pointwise_run_op(#name, &(const op_lines)LINES(name), arg, n, \
                     (const dsi_view *const[]){__VA_ARGS__})

/* ---- with numbers --------------------------------------------------------------------------------- */

typedef struct {
    double factor, term;
} line_of_x;

#define FACTOR ((__typeof__(x))((const line_of_x *)arg)->factor)
#define TERM   ((__typeof__(x))((const line_of_x *)arg)->term)
UNARY(affine, FACTOR *x + TERM)

ds_status KERNEL(affine)(dsi_stream *s, double factor, double term, dsi_view x, dsi_view y)
{
    line_of_x l = {factor, term};
    (void)s;
    return RUN_OP(affine, &l, 2, &x, &y);
}

typedef struct {
    double low, high;
} bounds;

#define LOW   ((__typeof__(x))((const bounds *)arg)->low)
#define HIGH  ((__typeof__(x))((const bounds *)arg)->high)
#define UP(x) (LOW > (x) ? LOW : (x)) /* a NaN passes */
UNARY(clamp, HIGH < UP(x) ? HIGH : UP(x))

ds_status KERNEL(clamp)(dsi_stream *s, double low, double high, dsi_view x, dsi_view y)
{
    bounds l = {low, high};
    if (isnan(low) || isnan(high)) return KERNEL(affine)(s, 0, NAN, x, y);
    return RUN_OP(clamp, &l, 2, &x, &y);
}

#define CLAMP_TENSORS_LINE(T, suffix) \
    static void clamp_tensors_line_##suffix(const void *arg, int64_t n, void *const *p) \
    { \
        const T *x = p[0], *low = p[1], *high = p[2]; \
        T *y = p[3]; \
        (void)arg; \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) { \
            T a = x[i], b = low[i], c = high[i], up = a < b ? b : a; \
            up = b != b ? b : up; \
            up = up > c ? c : up; \
            y[i] = c != c ? c : up; \
        } \
    }
CLAMP_TENSORS_LINE(float, f32)
CLAMP_TENSORS_LINE(double, f64)

ds_status KERNEL(clamp_tensors)(dsi_stream *s, dsi_view x, dsi_view low, dsi_view high, dsi_view y)
{
    (void)s;
    return RUN(clamp_tensors, x.dtype, NULL, 4, &x, &low, &high, &y);
}

UNARY(square, x *x)
UNARY(cube, x *x *x)
UNARY(inverse, 1 / x)
UNARY_LINE(pow, float, f32, POW(x, (__typeof__(x))*(const double *)arg))
UNARY_LINE(pow, double, f64, POW(x, (__typeof__(x))*(const double *)arg))

/* The common exponents are those that PyTorch treats apart too. */
static const op_lines *pow_lines(double exponent)
{
    static const op_lines any = LINES_UPCAST(pow), two = LINES(square), three = LINES(cube),
                          half = LINES(sqrt), minus_one = LINES(inverse);
    if (exponent == 2) return &two;
    if (exponent == 3) return &three;
    if (exponent == 0.5) return &half;
    return exponent == -1 ? &minus_one : &any;
}

/* ---- entries: an operation's loops, picked once --------------------------------------------------- */

ds_status KERNEL(unary)(dsi_stream *s, dsi_unary_op op, double p, dsi_view x, dsi_view y)
{
    static const op_lines ops[DSI_N_UNARY] = {
        [DSI_ABS] = {abs_line_f32, abs_line_f64, abs_line_half, abs_line_half, NULL},
        [DSI_EXP] = LINES_UPCAST(exp),
        [DSI_LOG] = LINES(log),
        [DSI_SQRT] = LINES(sqrt),
        [DSI_RELU] = LINES_HALF(relu),
        [DSI_GELU] = LINES(gelu),
        [DSI_GELU_TANH] = LINES(gelu_tanh),
        [DSI_SILU] = LINES(silu),
        [DSI_SIGMOID] = LINES(sigmoid),
        [DSI_TANH] = LINES(tanh),
        [DSI_SIN] = LINES_UPCAST(sin),
        [DSI_COS] = LINES_UPCAST(cos),
        [DSI_ERF] = LINES(erf),
        [DSI_EXPM1] = LINES(expm1),
        [DSI_LOG1P] = LINES(log1p),
        [DSI_LEAKY_RELU] = LINES(leaky_relu),
        [DSI_ELU] = LINES(elu),
        [DSI_SOFTPLUS] = LINES(softplus),
        [DSI_HARDSWISH] = LINES(hardswish),
        [DSI_MISH] = LINES(mish),
        [DSI_HARDSIGMOID] = LINES(hardsigmoid),
        [DSI_LOGSIGMOID] = LINES(logsigmoid),
        [DSI_SELU] = LINES(selu),
        [DSI_CELU] = LINES(celu),
        [DSI_HUBER] = LINES(huber),
        [DSI_RSQRT] = LINES_UPCAST(rsqrt),
        [DSI_FLOOR] = LINES(floor),
        [DSI_CEIL] = LINES(ceil),
        [DSI_ROUND] = LINES(round),
        [DSI_SIGN] = LINES(sign),
    };
    (void)s;
    return pointwise_run_op(dsi_unary_name(op), op == DSI_POW ? pow_lines(p) : &ops[op], &p, 2,
                            (const dsi_view *const[]){&x, &y});
}

ds_status KERNEL(unary_dx)(dsi_stream *s, dsi_unary_op op, double p, dsi_view dy, dsi_view saved,
                           dsi_view dx)
{
    static const op_lines ops[DSI_N_UNARY] = {
        [DSI_ABS] = LINES(abs_dx),
        [DSI_EXP] = LINES(mul),
        [DSI_LOG] = LINES(div),
        [DSI_SQRT] = LINES(sqrt_dx),
        [DSI_RELU] = LINES_HALF(relu_dx),
        [DSI_GELU] = LINES(gelu_dx),
        [DSI_GELU_TANH] = LINES(gelu_tanh_dx),
        [DSI_SILU] = LINES(silu_dx),
        [DSI_SIGMOID] = LINES(sigmoid_dx),
        [DSI_TANH] = LINES(tanh_dx),
        [DSI_SIN] = LINES_UPCAST(sin_dx),
        [DSI_COS] = LINES_UPCAST(cos_dx),
        [DSI_ERF] = LINES(erf_dx),
        [DSI_EXPM1] = LINES(expm1_dx),
        [DSI_LOG1P] = LINES(log1p_dx),
        [DSI_LEAKY_RELU] = LINES(leaky_relu_dx),
        [DSI_ELU] = LINES(elu_dx),
        [DSI_SOFTPLUS] = LINES(softplus_dx),
        [DSI_HARDSWISH] = LINES(hardswish_dx),
        [DSI_MISH] = LINES(mish_dx),
        [DSI_HARDSIGMOID] = LINES(hardsigmoid_dx),
        [DSI_LOGSIGMOID] = LINES(logsigmoid_dx),
        [DSI_SELU] = LINES(selu_dx),
        [DSI_CELU] = LINES(celu_dx),
        [DSI_HUBER] = LINES(huber_dx),
        [DSI_RSQRT] = LINES(rsqrt_dx),
    };
    (void)s;
    if (!ops[op].f32) return dsi_fail(DS_EINVAL, "%s: no cpu kernel", dsi_unary_dx_name(op));
    return pointwise_run_op(dsi_unary_dx_name(op), &ops[op], &p, 3,
                            (const dsi_view *const[]){&dy, &saved, &dx});
}

/* Loops of an operation for which the second view is one number. */
typedef struct {
    strided_line *f32, *bf16;
} number_lines;

#define NUMBER(name) \
    { \
        name##_number_f32, name##_number_bf16 \
    }

/* Runs them if a's and y's lines are dense and b repeats along them, as a
 * column does beside a matrix. */
static bool binary_number(const number_lines *lines, const double *alpha, const dsi_view *a,
                          const dsi_view *b, const dsi_view *y)
{
    strided w;
    strided_line *line = a->dtype == DS_F32 ? lines->f32 : a->dtype == DS_BF16 ? lines->bf16 : NULL;
    if (!line || b->dtype != a->dtype || y->dtype != a->dtype) return false;
    strided_plan(&w, 3, (const dsi_view *const[]){a, b, y});
    int inner = w.n - 1;
    bool fits = inner > 0 && w.s[0][inner] == w.size[0] && w.s[1][inner] == 0 &&
                w.s[2][inner] == w.size[2];
    if (!fits) return false;
    w.s[1][inner] = w.size[1]; /* needs no copies: the line reads only the first */
    strided_run(&w, line, alpha);
    return true;
}

BINARY_NUMBER(prelu, a > 0 ? a : b * a)

ds_status KERNEL(prelu)(dsi_stream *s, dsi_view w, dsi_view x, dsi_view y)
{
    static const number_lines number = NUMBER(prelu);
    (void)s;
    if (binary_number(&number, NULL, &x, &w, &y)) return DS_OK;
    return RUN_OP(prelu, NULL, 3, &x, &w, &y);
}

ds_status KERNEL(binary)(dsi_stream *s, dsi_binary_op op, double alpha, dsi_view a, dsi_view b,
                         dsi_view y)
{
    static const op_lines ops[DSI_N_BINARY] = {
        [DSI_ADD] = LINES_I64(add),
        [DSI_MUL] = LINES_I64(mul),
        [DSI_DIV] = LINES(div),
        [DSI_MAXIMUM] = LINES_I64(maximum),
        [DSI_MINIMUM] = LINES_I64(minimum),
        [DSI_FLOOR_DIVIDE] = LINES_I64_UPCAST(floor_divide),
        [DSI_REMAINDER] = LINES_I64_UPCAST(remainder),
        [DSI_POWER] = LINES_I64_UPCAST(power),
        [DSI_ATAN2] = LINES_UPCAST(atan2),
        [DSI_BITS_AND] = {.i64 = bitwise_and_line_i64},
    };
    static const op_lines plain_add = LINES(plain_add);
    static const number_lines number[DSI_N_BINARY] =
        {[DSI_MUL] = NUMBER(mul), [DSI_DIV] = NUMBER(div)},
                              plain_number = NUMBER(plain_add), add_number = NUMBER(add);
    bool plain = op == DSI_ADD && alpha == 1 && a.dtype != DS_I64;
    const number_lines *lines = plain ? &plain_number : &number[op];
    /* Other multiples of the number would be rounded before the sum, which they
     * are not else. */
    if (op == DSI_ADD && alpha == -1) lines = &add_number;
    (void)s;
    if (binary_number(lines, &alpha, &a, &b, &y)) return DS_OK;
    if ((plain || op == DSI_MUL) && binary_number(lines, &alpha, &b, &a, &y)) return DS_OK;
    return pointwise_run_op(dsi_binary_name(op), plain ? &plain_add : &ops[op], &alpha, 3,
                            (const dsi_view *const[]){&a, &b, &y});
}

/* ---- of several operands ---------------------------------------------------------------------------- */

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

#define MUL_ADD_LINE(T, suffix) \
    static void mul_add_line_##suffix(const void *arg, int64_t n, void *const *p) \
    { \
        const T *a = p[0], *b = p[1], *c = p[2], *d = p[3], alpha = (T) * (const double *)arg; \
        T *y = p[4]; \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) y[i] = a[i] * b[i] + alpha * c[i] * d[i]; \
    }
MUL_ADD_LINE(float, f32)
MUL_ADD_LINE(double, f64)

ds_status KERNEL(mul_add)(dsi_stream *s, double alpha, dsi_view a, dsi_view b, dsi_view c,
                          dsi_view d, dsi_view y)
{
    (void)s;
    return RUN(mul_add, a.dtype, &alpha, 5, &a, &b, &c, &d, &y);
}
