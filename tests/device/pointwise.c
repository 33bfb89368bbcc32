/* tests/device/pointwise.c: pointwise kernels against the C library in double.
 * SPDX-License-Identifier: MIT */
#include "kernels.h"

#include "base/half.h"

#define SQRT_2_OVER_PI 0.79788456080286535588

static double relu(double x) { return x < 0 ? 0 : x; }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double gelu(double x) { return x * 0.5 * (1 + erf(x * sqrt(0.5))); }
static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)));
}

/* One operand: the kernel, what it should be, and by how much it may be off:
 * units in the last place of the result, and in all (gelu loses digits by 1 +
 * erf, as in PyTorch). */
static double silu(double x) { return x / (1 + exp(-x)); }
static double mish(double x) { return x * tanh(log1p(exp(x))); }
static double hardswish(double x) { return x * fmin(fmax(x + 3, 0), 6) / 6; }
static double softplus(double x) { return x > 0 ? x : log1p(exp(x)); }
static double sign(double x) { return (x > 0) - (x < 0); }
static double hardsigmoid(double x) { return x < -3 ? 0 : x > 3 ? 1 : (x + 3) / 6; }
static double logsigmoid(double x) { return x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x)); }
static double selu(double x)
{
    return 1.0507009873554804934193349852946 *
           (x > 0 ? x : 1.6732632423543772848170429916717 * expm1(x));
}
static double rsqrt_of(double x) { return 1 / sqrt(x); }

static const struct {
    const char *name;
    dsi_unary_op op;
    double (*want)(double);
    double ulps, absolute;
} unary[] = {
    {"abs", DSI_ABS, fabs, 0, 0},
    {"exp", DSI_EXP, exp, 1, 0},
    {"log", DSI_LOG, log, 1, 0},
    {"sqrt", DSI_SQRT, sqrt, 0.51, 0},
    {"relu", DSI_RELU, relu, 0, 0},
    {"tanh", DSI_TANH, tanh, 2, 0},
    {"gelu", DSI_GELU, gelu, 3, 3e-7},
    {"gelu_tanh", DSI_GELU_TANH, gelu_tanh, 4, 3e-7},
    {"silu", DSI_SILU, silu, 3, 3e-36},
    {"sigmoid", DSI_SIGMOID, sigmoid, 2.5, 2e-38},
    {"sin", DSI_SIN, sin, 2, 0},
    {"cos", DSI_COS, cos, 2, 0},
    {"erf", DSI_ERF, erf, 2, 0},
    {"expm1", DSI_EXPM1, expm1, 2, 0},
    {"log1p", DSI_LOG1P, log1p, 5, 0},
    {"floor", DSI_FLOOR, floor, 0, 0},
    {"ceil", DSI_CEIL, ceil, 0, 0},
    {"round", DSI_ROUND, rint, 0, 0},
    {"sign", DSI_SIGN, sign, 0, 0},
    {"mish", DSI_MISH, mish, 6, 1e-36},
    {"hardswish", DSI_HARDSWISH, hardswish, 4, 0},
    {"softplus", DSI_SOFTPLUS, softplus, 5, 0},
    {"hardsigmoid", DSI_HARDSIGMOID, hardsigmoid, 2, 1e-7}, /* x + 3 loses digits, as in PyTorch */
    {"logsigmoid", DSI_LOGSIGMOID, logsigmoid, 5, 0},
    {"selu", DSI_SELU, selu, 5, 0},
    {"rsqrt", DSI_RSQRT, rsqrt_of, 1.5, 0},
};
#define N_UNARY (sizeof unary / sizeof *unary)

static const double edges[] = {0,         -0.0, 1e-30, -1e-30, 1e-40,  0.5,  -0.5, 3,    -3,
                               10,        -10,  20,    -20,    100,    -100, 1e4,  -1e4, INFINITY,
                               -INFINITY, NAN,  88.7,  -87.4,  -103.9, 1,    -1,   0.625};
#define N_EDGES (sizeof edges / sizeof *edges)

/* The distance of neighbours of x in the dtype. */
static double ulp(ds_dtype dtype, double x)
{
    int e;
    if (!isfinite(x)) return 0;
    frexp(x, &e);
    return dtype == DS_F32 ? ldexp(1, (e < -125 ? -125 : e) - 24)
                           : ldexp(1, (e < -1021 ? -1021 : e) - 53);
}

static void one_operand_matches_the_c_library(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (size_t f = 0; f < N_UNARY; f++)
        for (ds_dtype dtype = DS_F32; dtype <= DS_F64; dtype++) {
            int64_t n = 5003;
            dsi_view x = view_new(dtype, 1, &n, NULL), y = view_new(dtype, 1, &n, NULL);
            for (int64_t i = 0; i < n; i++) /* -104 .. 104, close around 0 */
                view_set(&x, i,
                         i < (int64_t)N_EDGES ? edges[i] : pow((double)(i - 2500) / 2500, 5) * 104);
            CHECK_INT(k->unary(NULL, unary[f].op, 0, x, y), DS_OK);
            for (int64_t i = 0; i < n; i++) {
                double want = unary[f].want(view_get(&x, i)), got = view_get(&y, i);
                if (dtype == DS_F32) want = (double)(float)want;
                if (got == want || (isnan(got) && isnan(want))) continue;
                if (!(fabs(got - want) <= unary[f].ulps * ulp(dtype, want) + unary[f].absolute))
                    fail_msg("%s(%.9g) is %.9g, want %.9g: off by %.3g ulp", unary[f].name,
                             view_get(&x, i), got, want, fabs(got - want) / ulp(dtype, want));
            }
            view_free(&x), view_free(&y);
        }
}

static double gelu_of_tail(double x) { return x * 0.5 * erfc(-x * sqrt(0.5)); }

/* One of 9973 floats, of all exponents. Results that are denormal may be off by
 * more. */
static void floats_of_all_sizes_match(void **state)
{
    static const struct {
        dsi_unary_op op;
        double (*want)(double);
        double ulps, absolute;
    } some[] = {{DSI_LOG, log, 2, 0},
                {DSI_TANH, tanh, 2, 0},
                {DSI_ERF, erf, 2.5, 0},
                {DSI_GELU, gelu_of_tail, 6, 2e-8},
                {DSI_SIGMOID, sigmoid, 2.5, 2e-38},
                {DSI_SILU, silu, 3, 3e-36}};
    (void)state;
    int64_t n = ((int64_t)1 << 32) / 9973;
    dsi_view x = view_new(DS_F32, 1, &n, NULL), y = view_new(DS_F32, 1, &n, NULL);
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)(i * 9973);
        memcpy((float *)x.p + i, &bits, sizeof bits);
    }
    for (size_t f = 0; f < sizeof some / sizeof *some; f++) FOR_EACH_ISA(k)
        {
            CHECK_INT(k->unary(NULL, some[f].op, 0, x, y), DS_OK);
            for (int64_t i = 0; i < n; i++) {
                double a = view_get(&x, i), got = view_get(&y, i), want = some[f].want(a);
                if (got == (double)(float)want || (isnan(got) && isnan(want))) continue;
                if (!(fabs(got - want) <= some[f].ulps * ulp(DS_F32, want) + some[f].absolute))
                    fail_msg("%s(%.9g) is %.9g, want %.9g: off by %.3g ulp",
                             dsi_unary_name(some[f].op), a, got, want,
                             fabs(got - want) / ulp(DS_F32, want));
            }
        }
    view_free(&x), view_free(&y);
}

/* Off by 0.51 units in the last place of bfloat16 at most, and below -5, where
 * the result is below 1.5e-6, by 2e-8. */
static void gelu_of_all_bfloat16(void **state)
{
    (void)state;
    int64_t n = 1 << 16;
    dsi_view x = view_new(DS_BF16, 1, &n, NULL), y = view_new(DS_BF16, 1, &n, NULL);
    uint16_t *in = x.p, *out = y.p;
    for (int64_t i = 0; i < n; i++) in[i] = (uint16_t)i;
    FOR_EACH_ISA(k)
    {
        CHECK_INT(k->unary(NULL, DSI_GELU, 0, x, y), DS_OK);
        for (int64_t i = 0; i < n; i++) {
            double a = (double)dsi_bf16_to_f32(in[i]), got = (double)dsi_bf16_to_f32(out[i]);
            double want = gelu_of_tail(a);
            if (got == want || (isnan(got) && isnan(want))) continue;
            double place = ldexp(ulp(DS_F32, want), 16), most = 0.51 * place + (a < -5 ? 2e-8 : 0);
            if (!(fabs(got - want) <= most))
                fail_msg("gelu(%.9g) is %.9g, want %.9g: off by %.3g places", a, got, want,
                         fabs(got - want) / place);
        }
    }
    view_free(&x), view_free(&y);
}

/* ---- two operands --------------------------------------------------------------------------------- */

static double mul(double a, double b) { return a * b; }
static double quotient(double a, double b) { return a / b; }
static double relu_dx(double dy, double y) { return y <= 0 ? 0 : dy; }
static double sigmoid_dx(double dy, double y) { return dy * y * (1 - y); }
static double tanh_dx(double dy, double y) { return dy * (1 - y * y); }
static double abs_dx(double dy, double x) { return dy * ((x > 0) - (x < 0)); }
static double exp_dx(double dy, double y) { return dy * y; }
static double log_dx(double dy, double x) { return dy / x; }
static double sqrt_dx(double dy, double y) { return dy / (2 * y); }
static double gelu_dx(double dy, double x)
{
    return dy * (0.5 * (1 + erf(x * sqrt(0.5))) + x * exp(-0.5 * x * x) * 0.39894228040143267794);
}
static double gelu_tanh_dx(double dy, double x)
{
    double t = tanh(SQRT_2_OVER_PI * (x + 0.044715 * x * x * x));
    return dy *
           (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * SQRT_2_OVER_PI * (1 + 3 * 0.044715 * x * x));
}

static double silu_dx(double dy, double x)
{
    double s = 1 / (1 + exp(-x));
    return dy * (s * (1 + x * (1 - s)));
}

static double hardsigmoid_dx(double dy, double x) { return x > -3 && x < 3 ? dy / 6 : 0; }
static double logsigmoid_dx(double dy, double x) { return dy / (1 + exp(x)); }
static double selu_dx(double dy, double x)
{
    return dy * 1.0507009873554804934193349852946 *
           (x <= 0 ? 1.6732632423543772848170429916717 * exp(x) : 1);
}
static double celu_dx(double dy, double x) { return x <= 0 ? dy * exp(x / 0.5) : dy; }
static double huber_dx(double dy, double x)
{
    return x < -0.5 ? -0.5 * dy : x > 0.5 ? 0.5 * dy : dy * x;
}
static double rsqrt_dx(double dy, double x) { return -0.5 * dy * pow(sqrt(x), -3); }

/* Entries of two operands: binary, and unary_dx of dy and what is saved, whose
 * parameter is 0.5. */
static const struct {
    const char *name;
    bool dx;
    int op;
    double (*want)(double, double);
} binary[] = {
    {"mul", false, DSI_MUL, mul},
    {"div", false, DSI_DIV, quotient},
    {"pow", false, DSI_POWER, pow},
    {"atan2", false, DSI_ATAN2, atan2},
    {"relu_dx", true, DSI_RELU, relu_dx},
    {"sigmoid_dx", true, DSI_SIGMOID, sigmoid_dx},
    {"tanh_dx", true, DSI_TANH, tanh_dx},
    {"abs_dx", true, DSI_ABS, abs_dx},
    {"exp_dx", true, DSI_EXP, exp_dx},
    {"log_dx", true, DSI_LOG, log_dx},
    {"sqrt_dx", true, DSI_SQRT, sqrt_dx},
    {"gelu_dx", true, DSI_GELU, gelu_dx},
    {"gelu_tanh_dx", true, DSI_GELU_TANH, gelu_tanh_dx},
    {"silu_dx", true, DSI_SILU, silu_dx},
    {"hardsigmoid_dx", true, DSI_HARDSIGMOID, hardsigmoid_dx},
    {"logsigmoid_dx", true, DSI_LOGSIGMOID, logsigmoid_dx},
    {"selu_dx", true, DSI_SELU, selu_dx},
    {"celu_dx", true, DSI_CELU, celu_dx},
    {"huber_dx", true, DSI_HUBER, huber_dx},
    {"rsqrt_dx", true, DSI_RSQRT, rsqrt_dx},
};
#define N_BINARY (sizeof binary / sizeof *binary)

static ds_status run_binary(const dsi_kernels *k, size_t f, dsi_view a, dsi_view b, dsi_view y)
{
    return binary[f].dx ? k->unary_dx(NULL, (dsi_unary_op)binary[f].op, 0.5, a, b, y)
                        : k->binary(NULL, (dsi_binary_op)binary[f].op, 1, a, b, y);
}

static void two_operands_match_plain_formulas(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (size_t f = 0; f < N_BINARY; f++)
        for (ds_dtype dtype = DS_F32; dtype <= DS_F64; dtype++) {
            int64_t n = 1003;
            double tol = dtype == DS_F32 ? 4e-7 : 1e-15;
            dsi_view a = view_new(dtype, 1, &n, NULL), b = view_new(dtype, 1, &n, NULL);
            dsi_view y = view_new(dtype, 1, &n, NULL);
            view_random(&a, 1), view_random(&b, 2);
            for (int64_t i = 0; i < n; i++)
                view_set(&b, i, i < (int64_t)N_EDGES ? edges[i] : 6 * view_get(&b, i));
            CHECK_INT(run_binary(k, f, a, b, y), DS_OK);
            for (int64_t i = 0; i < n; i++) {
                double want = binary[f].want(view_get(&a, i), view_get(&b, i)),
                       got = view_get(&y, i);
                if (dtype == DS_F32) want = (double)(float)want;
                if (got == want || (isnan(got) && isnan(want))) continue;
                double scale = fabs(want) + fabs(view_get(&a, i)) * (1 + fabs(view_get(&b, i)));
                if (!(fabs(got - want) <= 4 * tol * (isfinite(scale) ? scale : fabs(want))))
                    fail_msg("%s(%.9g, %.9g) is %.9g, want %.9g", binary[f].name, view_get(&a, i),
                             view_get(&b, i), got, want);
            }
            /* the output may be the first operand */
            CHECK_INT(run_binary(k, f, a, b, a), DS_OK);
            CHECK(memcmp(a.p, y.p, (size_t)n * ds_dtype_size(dtype)) == 0);
            view_free(&a), view_free(&b), view_free(&y);
        }
}

/* fmod is exact, so there is one right answer: of numbers of any size, zeros,
 * infinities and NaN. */
static void remainders_are_exact(void **state)
{
    (void)state;
    static const double special[] = {0, -0.0, 1, -1, 3, 1e-45, 1e38, INFINITY, -INFINITY, NAN};
    enum { S = sizeof special / sizeof *special };
    int64_t n = 20000;
    uint64_t random = 7;
    dsi_view a = view_new(DS_F32, 1, &n, NULL), b = view_new(DS_F32, 1, &n, NULL);
    dsi_view y = view_new(DS_F32, 1, &n, NULL);
    for (int64_t i = 0; i < n; i++) {
        /* most pieces have none but quotients below 2^29, as a multiple and
         * near it */
        double q = ldexp((double)(random = random * 6364136223846793005u + 1442695040888963407u),
                         -64 + (int)(i / 512 % 29));
        double d = ldexp(1 + (double)(random >> 40) * 0x1p-24, (int)(i % 40) - 20);
        view_set(&b, i, i % 3 ? d : -d);
        view_set(&a, i,
                 (double)(float)((i & 1 ? floor(q) : q) * (double)(float)d) * (i % 5 ? 1 : -1));
        if (i < S * S) view_set(&a, i, special[i / S]), view_set(&b, i, special[i % S]);
        if (i > 19000) view_set(&a, i, ldexp(view_get(&a, i), 60));
    }
    FOR_EACH_ISA(k)
    {
        CHECK_INT(k->binary(NULL, DSI_REMAINDER, 1, a, b, y), DS_OK);
        for (int64_t i = 0; i < n; i++) {
            float x = (float)view_get(&a, i), d = (float)view_get(&b, i), want = fmodf(x, d);
            if (want != 0 && (d < 0) != (want < 0)) want += d;
            float got = (float)view_get(&y, i);
            if (isnan(got) && isnan(want)) continue;
            if (got != want || signbit(got) != signbit(want))
                fail_msg("remainder(%.9g, %.9g) is %.9g, want %.9g", (double)x, (double)d,
                         (double)got, (double)want);
        }
    }
    view_free(&a), view_free(&b), view_free(&y);
}

/* A piece in which all numbers are simple, and one in which one is not, have
 * the same bits where they have the same numbers. */
static void neighbours_change_no_bits(void **state)
{
    (void)state;
    static const dsi_unary_op ops[] = {DSI_EXP, DSI_LOG};
    FOR_EACH_ISA(k)
    for (int f = 0; f < 2; f++) {
        int64_t n = 1000;
        dsi_view x = view_new(DS_F32, 1, &n, NULL), one = view_new(DS_F32, 1, &n, NULL);
        dsi_view two = view_new(DS_F32, 1, &n, NULL);
        for (int64_t i = 0; i < n; i++)
            view_set(&x, i,
                     f ? ldexp(1 + (double)i / 1000, (int)i % 250 - 125)
                       : (double)(i - 500) * 0.17);
        CHECK_INT(k->unary(NULL, ops[f], 0, x, one), DS_OK);
        view_set(&x, 7, NAN), view_set(&x, 600, f ? 1e-40 : 100);
        CHECK_INT(k->unary(NULL, ops[f], 0, x, two), DS_OK);
        for (int64_t i = 0; i < n; i++)
            CHECK(i == 7 || i == 600 || view_get(&one, i) == view_get(&two, i));
        view_free(&x), view_free(&one), view_free(&two);
    }
}

/* add over every kind of layout: same order, orders that differ, repeated rows,
 * columns and scalars */
static void any_layout_gives_the_same(void **state)
{
    (void)state;
    static const int64_t d[] = {3, 7, 5, 11};
    int orders[][4] = {{0, 1, 2, 3}, {0, 2, 3, 1}, {3, 2, 1, 0}};
    FOR_EACH_ISA(k)
    for (ds_dtype dtype = DS_F32; dtype <= DS_F64; dtype++)
        for (int oa = 0; oa < 3; oa++)
            for (int oy = 0; oy < 3; oy++)
                for (unsigned repeated = 0; repeated < 16; repeated++) {
                    dsi_view a = view_new(dtype, 4, d, orders[oa]), b = view_new(dtype, 4, d, NULL);
                    dsi_view y = view_new(dtype, 4, d, orders[oy]);
                    view_random(&a, 1), view_random(&b, 2);
                    for (int i = 0; i < 4; i++)
                        if (repeated >> i & 1) b.s[i] = 0;
                    CHECK_INT(k->binary(NULL, DSI_ADD, 1, a, b, y), DS_OK);
                    for (int64_t i = 0; i < view_count(&y); i++)
                        CHECK_CLOSE(view_get(&y, i), view_get(&a, i) + view_get(&b, i), 2e-7);
                    view_free(&a), view_free(&b), view_free(&y);
                }
}

/* A column beside a matrix, or before it, gives the bits that the same numbers
 * in a whole matrix give. */
static void columns_change_no_bits(void **state)
{
    (void)state;
    enum { ROWS = 5, COLS = 67 };
    static const int64_t d[] = {ROWS, COLS};
    uint16_t numbers[ROWS] = {0};
    FOR_EACH_ISA(k)
    {
        dsi_view x = view_new(DS_BF16, 2, d, NULL), whole = view_new(DS_BF16, 2, d, NULL),
                 y = view_new(DS_BF16, 2, d, NULL), want = view_new(DS_BF16, 2, d, NULL),
                 column = {numbers, DS_BF16, 2, {ROWS, COLS}, {1, 0}};
        for (int64_t i = 0; i < ROWS * COLS; i++) {
            numbers[i / COLS] = dsi_f32_to_bf16((float)(i / COLS) * 1.37F - 3);
            ((uint16_t *)whole.p)[i] = numbers[i / COLS];
            ((uint16_t *)x.p)[i] = dsi_f32_to_bf16((float)(i * 37 % 101) / 7 - 6);
        }
        for (int op = 0; op < DSI_BITS_AND; op++) /* the last one, which takes no floats */
            for (int alpha = -1; alpha <= 2; alpha++)
                for (int first = 0; first < 2; first++) {
                    CHECK_INT(k->binary(NULL, (dsi_binary_op)op, alpha, first ? whole : x,
                                        first ? x : whole, want),
                              DS_OK);
                    CHECK_INT(k->binary(NULL, (dsi_binary_op)op, alpha, first ? column : x,
                                        first ? x : column, y),
                              DS_OK);
                    CHECK(memcmp(y.p, want.p, ROWS * COLS * sizeof(uint16_t)) == 0);
                }
        CHECK_INT(table_with(k)->fusions.prelu(NULL, whole, x, want), DS_OK);
        CHECK_INT(table_with(k)->fusions.prelu(NULL, column, x, y), DS_OK);
        CHECK(memcmp(y.p, want.p, ROWS * COLS * sizeof(uint16_t)) == 0);
        view_free(&x), view_free(&whole), view_free(&y), view_free(&want);
    }
}

static void numbers_go_in(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (ds_dtype dtype = DS_F32; dtype <= DS_F64; dtype++) {
        static const double exponents[] = {2, 3, 0.5, -1, -0.5, 0, 1, 2.7};
        int64_t n = 37;
        double tol = dtype == DS_F32 ? 3e-7 : 1e-15;
        dsi_view x = view_new(dtype, 1, &n, NULL), y = view_new(dtype, 1, &n, NULL);
        view_random(&x, 1), view_random(&y, 2);
        double y5 = view_get(&y, 5);
        CHECK_INT(k->binary(NULL, DSI_ADD, -0.25, y, x, y), DS_OK);
        CHECK_CLOSE(view_get(&y, 5), y5 - 0.25 * view_get(&x, 5), tol);
        CHECK_INT(k->affine(NULL, 3, -0.5, x, y), DS_OK);
        for (int i = 0; i < n; i++)
            CHECK_CLOSE(view_get(&y, i), 3 * view_get(&x, i) - 0.5, 8 * tol);
        for (size_t e = 0; e < sizeof exponents / sizeof *exponents; e++) {
            CHECK_INT(k->unary(NULL, DSI_POW, exponents[e], x, y), DS_OK);
            for (int i = 0; i < n; i++) {
                double want = pow(view_get(&x, i), exponents[e]);
                CHECK_CLOSE(view_get(&y, i), want, tol * fabs(want));
            }
        }
        dsi_view keep = view_new(DS_BOOL, 1, &n, NULL);
        for (int i = 0; i < n; i += 3) *(uint8_t *)view_at(&keep, i) = 1;
        CHECK_INT(table_with(k)->fusions.mask_scale(NULL, 2, x, keep, y), DS_OK);
        for (int i = 0; i < n; i++)
            CHECK_CLOSE(view_get(&y, i), i % 3 ? 0 : 2 * view_get(&x, i), 0);
        view_free(&x), view_free(&y), view_free(&keep);
    }
}

static void comparisons_and_where_take_any_dtype(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (ds_dtype dtype = 0; dtype < DS_DTYPES; dtype++) {
        int64_t n = 50;
        dsi_view wa = view_new(DS_F64, 1, &n, NULL), wb = view_new(DS_F64, 1, &n, NULL);
        dsi_view a = view_new(dtype, 1, &n, NULL), b = view_new(dtype, 1, &n, NULL),
                 y = view_new(dtype, 1, &n, NULL);
        dsi_view eq = view_new(DS_BOOL, 1, &n, NULL), lt = view_new(DS_BOOL, 1, &n, NULL);
        for (int i = 0; i < n; i++) view_set(&wa, i, i % 2), view_set(&wb, i, i % 3 != 0);
        CHECK_INT(k->copy(NULL, wa, a), DS_OK);
        CHECK_INT(k->copy(NULL, wb, b), DS_OK);
        CHECK_INT(k->compare(NULL, DSI_EQ, a, b, eq), DS_OK);
        CHECK_INT(k->compare(NULL, DSI_LT, a, b, lt), DS_OK);
        CHECK_INT(k->where(NULL, lt, a, b, y), DS_OK);
        for (int i = 0; i < n; i++) {
            int less = i % 2 < (i % 3 != 0);
            CHECK_INT(*(uint8_t *)view_at(&eq, i), i % 2 == (i % 3 != 0));
            CHECK_INT(*(uint8_t *)view_at(&lt, i), less);
            CHECK(memcmp(view_at(&y, i), view_at(less ? &a : &b, i), ds_dtype_size(dtype)) == 0);
        }
        view_free(&wa), view_free(&wb), view_free(&a), view_free(&b), view_free(&y), view_free(&eq),
            view_free(&lt);
    }
}

static void nan_equals_nothing(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    {
        float a[] = {NAN, 0, 1}, b[] = {NAN, -0.0f, NAN};
        uint16_t h[] = {0x7e00, 0x8000, 0x3c00}, g[] = {0x7e00, 0x0000, 0x3c00};
        uint8_t y[3];
        dsi_view vy = {y, DS_BOOL, 1, {3}, {1}};
        CHECK_INT(k->compare(NULL, DSI_EQ, (dsi_view){a, DS_F32, 1, {3}, {1}},
                             (dsi_view){b, DS_F32, 1, {3}, {1}}, vy),
                  DS_OK);
        CHECK(!y[0] && y[1] && !y[2]);
        CHECK_INT(k->compare(NULL, DSI_EQ, (dsi_view){h, DS_F16, 1, {3}, {1}},
                             (dsi_view){g, DS_F16, 1, {3}, {1}}, vy),
                  DS_OK);
        CHECK(!y[0] && y[1] && y[2]);
    }
}

static void integers_do_not_compute(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    {
        int32_t x[2] = {1, 2};
        dsi_view v = {x, DS_I32, 1, {2}, {1}};
        CHECK_INT(k->binary(NULL, DSI_MUL, 1, v, v, v), DS_EINVAL);
        CHECK_ERROR("mul: no cpu kernel for int32");
        CHECK_INT(k->unary(NULL, DSI_GELU, 0, v, v), DS_EINVAL);
        CHECK_ERROR("gelu: no cpu kernel for int32");
    }
}

/* large enough to be shared out: one line, and many lines with a repeated
 * operand */
static void results_do_not_depend_on_threads(void **state)
{
    (void)state;
    int64_t d[] = {601, 777};
    FOR_EACH_ISA(k)
    for (int repeated = 0; repeated < 2; repeated++) {
        dsi_view x = view_new(DS_F32, 2, d, NULL), one = view_new(DS_F32, 2, d, NULL),
                 four = view_new(DS_F32, 2, d, NULL);
        view_random(&x, 1);
        if (repeated) x.s[1] = 0;
        CHECK_INT(k->unary(NULL, DSI_GELU, 0, x, one), DS_OK);
        CHECK_INT(ds_set_threads(4), DS_OK);
        CHECK_INT(k->unary(NULL, DSI_GELU, 0, x, four), DS_OK);
        CHECK_INT(ds_set_threads(1), DS_OK);
        CHECK(memcmp(one.p, four.p, (size_t)view_count(&one) * sizeof(float)) == 0);
        for (int64_t row = 0; row < d[0]; row++) { /* alone, for which no pieces are made */
            dsi_view from = {(float *)x.p + row * x.s[0], DS_F32, 1, {d[1]}, {x.s[1]}};
            dsi_view to = {(float *)four.p + row * d[1], DS_F32, 1, {d[1]}, {1}};
            CHECK_INT(k->unary(NULL, DSI_GELU, 0, from, to), DS_OK);
        }
        CHECK(memcmp(one.p, four.p, (size_t)view_count(&one) * sizeof(float)) == 0);
        view_free(&x), view_free(&one), view_free(&four);
    }
}

/* As in Python; also of numbers that a double does not hold. */
static void integers_divide_rounded_down(void **state)
{
    (void)state;
    static const int64_t some[] = {0,
                                   1,
                                   -1,
                                   2,
                                   -2,
                                   3,
                                   7,
                                   -7,
                                   (int64_t)1 << 49,
                                   -((int64_t)1 << 49) + 1,
                                   (int64_t)1 << 50,
                                   INT64_MAX,
                                   INT64_MIN};
    enum { SOME = sizeof some / sizeof *some };
    FOR_EACH_ISA(k)
    for (int most = 10; most <= SOME; most += 3) { /* 10: all are near */
        int64_t a[SOME * SOME], b[SOME * SOME], q[SOME * SOME], r[SOME * SOME];
        for (int i = 0; i < most * most; i++) a[i] = some[i / most], b[i] = some[i % most];
        dsi_view v[] = {{a, DS_I64, 1, {most * most}, {1}},
                        {b, DS_I64, 1, {most * most}, {1}},
                        {q, DS_I64, 1, {most * most}, {1}},
                        {r, DS_I64, 1, {most * most}, {1}}};
        CHECK_INT(k->binary(NULL, DSI_FLOOR_DIVIDE, 1, v[0], v[1], v[2]), DS_OK);
        CHECK_INT(k->binary(NULL, DSI_REMAINDER, 1, v[0], v[1], v[3]), DS_OK);
        for (int i = 0; i < most * most; i++) {
            __extension__ __int128 wide = a[i], by = b[i] ? b[i] : 1, want = wide / by;
            if (wide % by && (wide < 0) != (by < 0)) want--;
            CHECK_INT(q[i], b[i] ? (int64_t)want : 0);
            CHECK_INT(r[i], b[i] ? (int64_t)(wide - want * by) : 0);
        }
    }
}

static void clamp_between_tensors(void **state)
{
    (void)state;
    float x[] = {-1, 0, 2, NAN, 1, 1, -INFINITY, 5}, low[] = {0, -1, 0, 0, NAN, 0, -3, 4},
          high[] = {1, 1, 1, 1, 2, NAN, 3, 2}, y[8], want[] = {0, 0, 1, NAN, NAN, NAN, -3, 2};
    FOR_EACH_ISA(k)
    {
        dsi_view v[] = {{x, DS_F32, 1, {8}, {1}},
                        {low, DS_F32, 1, {8}, {1}},
                        {high, DS_F32, 1, {8}, {1}},
                        {y, DS_F32, 1, {8}, {1}}};
        CHECK_INT(table_with(k)->fusions.clamp_tensors(NULL, v[0], v[1], v[2], v[3]), DS_OK);
        for (int i = 0; i < 8; i++)
            if (!isnan(want[i]) || !isnan(y[i])) CHECK_CLOSE((double)y[i], (double)want[i], 0);
    }
}

TEST_MAIN(cmocka_unit_test(integers_divide_rounded_down), cmocka_unit_test(clamp_between_tensors),
          cmocka_unit_test(one_operand_matches_the_c_library),
          cmocka_unit_test(floats_of_all_sizes_match), cmocka_unit_test(gelu_of_all_bfloat16),
          cmocka_unit_test(two_operands_match_plain_formulas),
          cmocka_unit_test(remainders_are_exact), cmocka_unit_test(neighbours_change_no_bits),
          cmocka_unit_test(any_layout_gives_the_same), cmocka_unit_test(columns_change_no_bits),
          cmocka_unit_test(numbers_go_in), cmocka_unit_test(comparisons_and_where_take_any_dtype),
          cmocka_unit_test(nan_equals_nothing), cmocka_unit_test(integers_do_not_compute),
          cmocka_unit_test(results_do_not_depend_on_threads))
