/* tests/ops/values.c: values of every op: against formulas, and of float32
 * against float64, whose kernels are plain loops; in other orders of memory,
 * with more threads, in 16 bits.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "device/cpu/cpu.h"
#include "ops/cases.h"
#include "ops/op.h"

/* Every failure is a line; a test continues, and fails at its end. */
static int failures;

static void failed(const Case *c, const char *format, ...) DS_PRINTF(2, 3);
static void failed(const Case *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s (%s): ", c->op, c->name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    ds_error_clear();
    failures++;
}

/* ---- running a row ----------------------------------------------------------------------------------- */

typedef struct Result {
    int n; /* of inputs */
    ds_tensor *in[MAX_IN], *y, *grad[MAX_IN];
} Result;

typedef ds_tensor *Layout(ds_tensor *x);

/* Inputs that several threads divide: those of benchmarks, of whose lines a
 * part is enough: ten blocks of threads, and float32 copies of more than a MiB;
 * of groups of rows, which the emulated matrix unit multiplies slowly, an
 * eighth. */
static const Input *large_inputs(const Case *c)
{
    enum { LINE_ELEMENTS = (1 << 18) + 5 };
    static Input rows[MAX_IN];
    memcpy(rows, c->bench[0].used ? c->bench : c->in, sizeof rows);
    for (int i = 0; i < MAX_IN; i++)
        if (rows[i].shape.n == 1 && rows[i].shape.d[0] == 1 << 20)
            rows[i].shape.d[0] = LINE_ELEMENTS;
    if (!strcmp(c->op, "grouped_linear")) rows[0].shape.d[0] /= 8;
    return rows;
}

/* The row's inputs, laid out in memory by `layout` (or row-major), its result,
 * and its gradients for a fixed random dy, of few enough bits for every
 * dtype. */
static Result run(const Case *c, const Input *rows, ds_dtype dtype, Layout *layout)
{
    Result r = {.n = case_inputs(rows)};
    for (int i = 0; i < r.n; i++) {
        r.in[i] = case_input(rows, i, dtype);
        if (!layout) continue;
        bool grad = ds_requires_grad(r.in[i]);
        r.in[i] = ds_require_grad(ds_detach(layout(ds_detach(r.in[i]))), grad);
    }
    r.y = c->call(r.in);
    if (!r.y) failed(c, "%s", ds_error());
    if (!r.y || !ds_requires_grad(r.y)) return r;
    ds_tensor *dy = ds_to(ds_empty(DS_F64, ds_shape_of(r.y)), (ds_device){DS_CPU, 0}, DS_F64);
    double *p = ds_data_mut(dy);
    uint64_t random = 99;
    for (int64_t i = 0, n = ds_numel(dy); i < n; i++)
        p[i] = 0.5 + (int)(case_random(&random) * 128) / 128.0;
    if (ds_backward_from(r.y, ds_to(dy, ds_device_of(r.y), ds_dtype_of(r.y))) != DS_OK)
        failed(c, "%s", ds_error());
    for (int i = 0; i < r.n; i++) r.grad[i] = ds_grad(r.in[i]);
    return r;
}

static double largest(const double *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fabs(x[i]) > most ? fabs(x[i]) : most;
    return most;
}

/* Whether both have the same bits, in the same order of memory. */
static bool same_bits(ds_tensor *a, ds_tensor *b)
{
    if (ds_device_of(a).kind != DS_CPU || ds_device_of(b).kind != DS_CPU) return false;
    return ds_dtype_of(a) == ds_dtype_of(b) && dsi_is_contiguous(a) && dsi_is_contiguous(b) &&
           !memcmp(ds_data(a), ds_data(b), (size_t)ds_numel(a) * ds_dtype_size(ds_dtype_of(a)));
}

/* got beside want, within tol times want's largest element. */
static void compare(const Case *c, const char *what, ds_tensor *got, ds_tensor *want, double tol)
{
    if (!got != !want) failed(c, "%s: one is missing", what);
    if (!got || !want) return;
    if (!dsi_same_shape(got->shape, want->shape)) {
        failed(c, "%s is %s, want %s", what, dsi_shape_text(got->shape),
               dsi_shape_text(want->shape));
        return;
    }
    if (same_bits(got, want)) return;
    const double *g = ds_data(ds_cast(ds_detach(got), DS_F64));
    const double *w = ds_data(ds_cast(ds_detach(want), DS_F64));
    int64_t n = ds_numel(want);
    double room = tol * fmax(largest(w, n), tol > 0 ? 1e-3 : 0);
    for (int64_t i = 0; i < n; i++) {
        if (fabs(g[i] - w[i]) <= room || (isnan(g[i]) && isnan(w[i])) || g[i] == w[i]) continue;
        failed(c, "%s[%lld] is %.9g, want %.9g within %.3g", what, (long long)i, g[i], w[i], room);
        return;
    }
}

static void compare_all(const Case *c, const char *how, const Result *got, const Result *want,
                        double tol)
{
    char what[80];
    snprintf(what, sizeof what, "y %s", how);
    compare(c, what, got->y, want->y, tol);
    for (int i = 0; i < want->n; i++) {
        snprintf(what, sizeof what, "gradient %d %s", i, how);
        compare(c, what, got->grad[i], want->grad[i], tol);
    }
}

/* ---- orders of memory -------------------------------------------------------------------------------- */

static ds_tensor *reversed(ds_tensor *x) /* the first dimension innermost */
{
    ds_dims order = {.n = ds_ndim(x)};
    for (int i = 0; i < order.n; i++) order.d[i] = order.n - 1 - i;
    return ds_permute(ds_contiguous(ds_permute(x, order)), order);
}

static ds_tensor *channels_last(ds_tensor *x)
{
    if (ds_ndim(x) != 4) return x;
    return ds_permute(ds_contiguous(ds_permute(x, ds_shape(0, 2, 3, 1))), ds_shape(0, 3, 1, 2));
}

static ds_tensor *with_gaps(ds_tensor *x) /* every second element of a larger tensor */
{
    ds_tensor *pair[] = {x, x};
    return ds_select(ds_stack(pair, 2, -1), -1, 1);
}

static void orders_of_memory(void **state)
{
    (void)state;
    failures = 0;
    Layout *const layouts[] = {reversed, channels_last, with_gaps};
    const char *const names[] = {"reversed", "channels last", "with gaps"};
    for (int i = 0; i < OP_CASES; i++) {
        const Case *c = &op_cases[i];
        ds_scope *scope = ds_scope_open();
        Result want = run(c, c->in, DS_F32, NULL);
        for (int k = 0; k < 3; k++) {
            ds_scope *inner = ds_scope_open();
            Result got = run(c, c->in, DS_F32, layouts[k]);
            compare_all(c, names[k], &got, &want, 1e-5);
            ds_scope_close(inner);
        }
        ds_scope_close(scope);
    }
    CHECK_INT(failures, 0);
}

/* ---- precisions -------------------------------------------------------------------------------------- */

static void float32_beside_float64(void **state)
{
    (void)state;
    failures = 0;
    for (int i = 0; i < OP_CASES; i++) {
        const Case *c = &op_cases[i];
        ds_scope *scope = ds_scope_open();
        Result want = run(c, c->in, DS_F64, NULL), got = run(c, c->in, DS_F32, NULL);
        compare_all(c, "in float32", &got, &want, 4e-6);
        ds_scope_close(scope);
    }
    CHECK_INT(failures, 0);
}

/* Float inputs of a row are rounded to this first, so that runs in float32 and
 * in 16 bits have the same. */
static ds_dtype rounded;

static ds_tensor *round_to(ds_tensor *x)
{
    return ds_dtype_of(x) == DS_F32 ? ds_cast(ds_cast(x, rounded), DS_F32) : x;
}

/* Values: those of float32, rounded once by each of a row's ops. Gradients pass
 * through more of them; those of softmax are differences of larger numbers, and
 * a maximum of rounded values may be another one. */
static double room_of_gradients(const Case *c, double eps)
{
    if (!strcmp(c->op, "conv2d") && strstr(c->name, "pool")) return INFINITY;
    return (strstr(c->op, "softmax") ? 8 : 2) * eps;
}

static void compare_sixteen(const Case *c, const Result *got, const Result *want, ds_dtype dtype)
{
    double eps = dtype == DS_BF16 ? 0x1p-8 : 0x1p-11;
    if (got->y && ds_dtype_of(got->y) != dtype)
        failed(c, "y is %s", ds_dtype_name(ds_dtype_of(got->y)));
    compare(c, ds_dtype_name(dtype), got->y, want->y, eps);
    for (int g = 0; g < got->n; g++) {
        if (got->grad[g] && ds_dtype_of(got->grad[g]) != dtype)
            failed(c, "gradient %d is %s", g, ds_dtype_name(ds_dtype_of(got->grad[g])));
        compare(c, "gradient", got->grad[g], want->grad[g], room_of_gradients(c, eps));
    }
}

/* Inputs in 16 bits, in the first n orders of memory. */
static void run_sixteen(const Case *c, const Input *rows, ds_dtype dtype, int n)
{
    Layout *const layouts[] = {NULL, reversed, channels_last, with_gaps};
    ds_scope *scope = ds_scope_open();
    rounded = dtype;
    Result want = run(c, rows, DS_F32, round_to);
    for (int l = 0; l < n; l++) {
        ds_scope *inner = ds_scope_open();
        Result got = run(c, rows, dtype, layouts[l]);
        compare_sixteen(c, &got, &want, dtype);
        ds_scope_close(inner);
    }
    ds_scope_close(scope);
}

static void sixteen_bits(void **state)
{
    (void)state;
    failures = 0;
    const ds_dtype dtypes[] = {DS_BF16, DS_F16};
    for (int i = 0; i < OP_CASES; i++)
        for (int k = 0; k < 2; k++) {
            const Case *c = &op_cases[i];
            run_sixteen(c, c->in, dtypes[k], 4);
            if (c->bench[0].used && !quick()) run_sixteen(c, large_inputs(c), dtypes[k], 1);
        }
    CHECK_INT(failures, 0);
}

/* ---- formulas ---------------------------------------------------------------------------------------- */

/* Where element i of y's row-major order is in x, which is broadcast to y. */
static int64_t broadcast_place(ds_tensor *x, ds_dims y, int64_t i)
{
    int64_t at = 0, step = 1;
    for (int d = 1; d <= y.n; d++) {
        int64_t k = i % y.d[y.n - d];
        i /= y.d[y.n - d];
        if (d > x->shape.n) continue;
        int64_t size = x->shape.d[x->shape.n - d];
        at += size == 1 ? 0 : k * step;
        step *= size;
    }
    return at;
}

static void formulas(void **state)
{
    (void)state;
    failures = 0;
    const ds_dtype dtypes[] = {DS_F64, DS_F32};
    const double tolerance[] = {1e-13, 2e-6};
    for (int i = 0; i < OP_CASES; i++)
        for (int k = 0; k < 2 && op_cases[i].element; k++) {
            const Case *c = &op_cases[i];
            ds_scope *scope = ds_scope_open();
            Result r = run(c, c->in, dtypes[k], NULL);
            ds_tensor *want = ds_to(ds_empty(DS_F64, ds_shape_of(r.y)), (ds_device){DS_CPU, 0},
                                    DS_F64);
            double *w = ds_data_mut(want);
            ds_dims shape = ds_shape_of(r.y);
            if (!strcmp(c->name, "unsqueeze")) shape = r.in[0]->shape; /* the same elements */
            const double *in[MAX_IN];
            for (int n = 0; n < r.n; n++) in[n] = ds_data(ds_cast(ds_detach(r.in[n]), DS_F64));
            for (int64_t e = 0, elements = ds_numel(want); e < elements; e++) {
                double x[MAX_IN];
                for (int n = 0; n < r.n; n++) x[n] = in[n][broadcast_place(r.in[n], shape, e)];
                w[e] = c->element(x);
            }
            compare(c, ds_dtype_name(dtypes[k]), r.y, want, tolerance[k]);
            ds_scope_close(scope);
        }
    CHECK_INT(failures, 0);
}

/* ---- threads ----------------------------------------------------------------------------------------- */

/* Bit for bit the same, in sizes that are worth dividing too. If quick, an
 * instruction set has every second row, and the next one the others. */
static void threads(void **state)
{
    (void)state;
    if (ds_current_device().kind != DS_CPU) return; /* they are the CPU's */
    static const char *const odd[] = {"avx2", "avx512_bf16"};
    int first = !strcmp(dsi_cpu_isa(), odd[0]) || !strcmp(dsi_cpu_isa(), odd[1]);
    failures = 0;
    for (int i = quick() ? first : 0; i < OP_CASES; i += quick() ? 2 : 1) {
        const Case *c = &op_cases[i];
        const Input *rows = large_inputs(c);
        ds_scope *scope = ds_scope_open();
        Result want = run(c, rows, DS_F32, NULL);
        CHECK_INT(ds_set_threads(3), DS_OK);
        Result got = run(c, rows, DS_F32, NULL);
        CHECK_INT(ds_set_threads(1), DS_OK);
        compare_all(c, "with 3 threads", &got, &want, 0);
        ds_scope_close(scope);
    }
    CHECK_INT(failures, 0);
}

/* ---- pooled gradients -------------------------------------------------------------------------------- */

/* shift takes no gradient in pooled form, so what is below it gets a dense one. */
static ds_tensor *dense_conv_relu_pool(ds_tensor **in)
{
    return ds_max_pool2d(ds_shift(ds_relu(ds_conv2d(in[0], in[1], in[2])), 0), 2);
}

static ds_tensor *dense_conv_pool(ds_tensor **in)
{
    return ds_max_pool2d(ds_shift(ds_conv2d(in[0], in[1], in[2], .padding = 1), 0), 3, .stride = 3,
                         .padding = 1);
}

static void pooled_as_dense(void **state)
{
    (void)state;
    failures = 0;
    int seen = 0;
    for (int i = 0; i < OP_CASES; i++) {
        const Case *c = &op_cases[i];
        Case dense = *c;
        if (c->call == call_conv_relu_pool) dense.call = dense_conv_relu_pool;
        if (c->call == call_conv_pool) dense.call = dense_conv_pool;
        if (dense.call == c->call) continue;
        ds_scope *scope = ds_scope_open();
        Result want = run(&dense, c->in, DS_F32, NULL), got = run(c, c->in, DS_F32, NULL);
        compare_all(c, "pooled", &got, &want, 2e-6);
        ds_scope_close(scope);
        seen++;
    }
    CHECK(seen >= 3);
    CHECK_INT(failures, 0);
}

/* torch.clamp: a bound that is NaN makes every element NaN. */
static void a_bound_is_nan(void **state)
{
    (void)state;
    static const float numbers[] = {-1, 0.5F, 2};
    static const double bounds[][2] = {{NAN, INFINITY}, {NAN, 3}, {-INFINITY, NAN}, {0, NAN}};
    ds_scope *scope = ds_scope_open();
    for (int k = 0; k < 4; k++) {
        ds_tensor *x = ds_require_grad(ds_from_data(DS_F32, ds_shape(3), numbers), true);
        ds_tensor *y = ds_clamp(x, bounds[k][0], bounds[k][1]);
        CHECK_INT(ds_backward(ds_sum(y)), DS_OK);
        for (int i = 0; i < 3; i++) {
            CHECK(isnan(((const float *)ds_data(y))[i]));
            CHECK_CLOSE(((const float *)ds_data(ds_grad(x)))[i], 0, 0);
        }
    }
    ds_scope_close(scope);
}

/* The weight's gradient has only terms of elements that are not above 0. */
static void prelu_beside_infinity(void **state)
{
    (void)state;
    static const float numbers[] = {1, -1, 3}, grads[] = {INFINITY, 1, 1}, quarter = 0.25F;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_from_data(DS_F32, ds_shape(3), numbers);
    ds_tensor *w = ds_require_grad(ds_from_data(DS_F32, ds_shape(1), &quarter), true);
    ds_tensor *dy = ds_from_data(DS_F32, ds_shape(3), grads);
    CHECK_INT(ds_backward_from(ds_prelu(x, w), dy), DS_OK);
    CHECK_CLOSE(ds_item(ds_grad(w)), -1, 0);
    ds_scope_close(scope);
}

/* A length that is no float: 0, as in PyTorch. */
static void cosine_of_a_great_length(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_require_grad(ds_full(DS_F32, ds_shape(4), 2e19), true);
    ds_tensor *y = ds_cosine_similarity(x, ds_ones(DS_F32, ds_shape(4)), 0, 1e-8);
    CHECK_CLOSE(ds_item(y), 0, 0);
    CHECK_INT(ds_backward(y), DS_OK);
    CHECK_CLOSE(ds_item(ds_sum(ds_abs(ds_grad(x)))), 0, 0);
    ds_scope_close(scope);
}

/* A column beside a matrix, and the same column as a matrix. */
static void a_multiple_of_a_column(void **state)
{
    (void)state;
    const double alpha[] = {0.3, 1, -1};
    for (int k = 0; k < 3; k++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *a = ds_randn(DS_F32, ds_shape(4, 100)), *b = ds_randn(DS_F32, ds_shape(4, 1));
        ds_tensor *wide = ds_contiguous(ds_expand(b, a->shape));
        CHECK_CLOSE(ds_item(ds_norm(
                        ds_sub(ds_add_scaled(a, b, alpha[k]), ds_add_scaled(a, wide, alpha[k])))),
                    0, 0);
        ds_scope_close(scope);
    }
}

/* Those that have no negative number beside them. */
static void smallest_integers(void **state)
{
    (void)state;
    static const int64_t numbers[] = {7, INT64_MIN, INT64_MAX, 0};
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_from_data(DS_I64, ds_shape(4), numbers), *y = ds_amin(x);
    CHECK(y && *(const int64_t *)ds_data(ds_to(y, (ds_device){DS_CPU, 0}, DS_I64)) == INT64_MIN);
    CHECK_CLOSE(ds_item(ds_amin(ds_full(DS_U8, ds_shape(3), 200))), 200, 0);
    CHECK_CLOSE(ds_item(ds_amin(ds_full(DS_I8, ds_shape(3), -128))), -128, 0);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(formulas), cmocka_unit_test(float32_beside_float64),
          cmocka_unit_test(orders_of_memory), cmocka_unit_test(sixteen_bits),
          cmocka_unit_test(threads), cmocka_unit_test(pooled_as_dense),
          cmocka_unit_test(a_bound_is_nan), cmocka_unit_test(prelu_beside_infinity),
          cmocka_unit_test(cosine_of_a_great_length), cmocka_unit_test(a_multiple_of_a_column),
          cmocka_unit_test(smallest_integers))
