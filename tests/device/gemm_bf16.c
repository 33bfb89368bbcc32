/* tests/device/gemm_bf16.c: products of bfloat16 by AMX or AVX512_BF16, beside
 * plain sums of the same values in float64: edges of tiles and of blocks,
 * strides, batches, infinities and NaNs, numbers too large or too small for
 * parts. Skipped where these instructions are not, or DS_CPU forbids them.
 * SPDX-License-Identifier: MIT */
#include "kernels.h"

#include "base/half.h"
#include "device/cpu/cpu.h"
#include "device/device.h"

/* Memory orders of a matrix: row-major, column-major, or every third element of
 * rows that are too long. */
enum { ROWS, COLS, SPARSE, LAYOUTS };

typedef struct Case {
    int64_t batch, m, n, k;
    int a, b, y; /* layouts */
    bool bias, shared_b;
    ds_dtype dtype; /* of y */
} Case;

/* Zeroed, with 64 elements after it. */
static dsi_view make(ds_dtype dtype, int64_t batch, int64_t rows, int64_t cols, int layout)
{
    dsi_view v = {.dtype = dtype, .n = 3, .d = {batch, rows, cols}};
    v.s[1] = layout == COLS ? 1 : layout == ROWS ? cols : 3 * cols + 5;
    v.s[2] = layout == COLS ? rows : layout == ROWS ? 1 : 3;
    v.s[0] = layout == SPARSE ? rows * v.s[1] + 7 : rows * cols;
    v.p = calloc((size_t)(batch * v.s[0] + 64), ds_dtype_size(dtype));
    return v;
}

static size_t bytes_of(const dsi_view *v)
{
    return (size_t)(v->d[0] * v->s[0] + 64) * ds_dtype_size(v->dtype);
}

static double at(const dsi_view *v, int64_t b, int64_t i, int64_t j)
{
    int64_t e = b * v->s[0] + i * v->s[1] + j * v->s[2];
    if (v->dtype == DS_F32) return (double)((const float *)v->p)[e];
    uint16_t half = ((const uint16_t *)v->p)[e];
    return (double)(v->dtype == DS_F16 ? dsi_f16_to_f32(half) : dsi_bf16_to_f32(half));
}

static void put(const dsi_view *v, int64_t e, float x)
{
    if (v->dtype == DS_F32)
        ((float *)v->p)[e] = x;
    else
        ((uint16_t *)v->p)[e] = v->dtype == DS_F16 ? dsi_f32_to_f16(x) : dsi_f32_to_bf16(x);
}

static void fill(const dsi_view *v, uint64_t seed)
{
    for (int64_t i = 0; i < v->d[0] * v->s[0]; i++) put(v, i, (float)next_random(&seed));
}

static ds_status matmul(dsi_view a, dsi_view b, dsi_view bias, dsi_view y)
{
    dsi_device *d = dsi_device_current();
    return d->kernels->matmul(&d->stream, a, b, bias, y);
}

/* Of every element, or of one in 37 where there are many. */
static void check_sums(const Case *c, const dsi_view *a, const dsi_view *b, const dsi_view *bias,
                       const dsi_view *y)
{
    int64_t step = c->m * c->n * c->k > 1000000 ? 37 : 1;
    if (!compares_values()) return;
    for (int64_t e = 0; e < c->batch * c->m * c->n; e += step) {
        int64_t j = e % c->n, i = e / c->n % c->m, q = e / c->n / c->m;
        double want = bias->p ? at(bias, 0, 0, j) : 0, scale = fabs(want);
        for (int64_t k = 0; k < c->k; k++) {
            double x = at(a, q, i, k) * at(b, q, k, j);
            want += x;
            scale += fabs(x);
        }
        double place = c->dtype == DS_F32   ? 0
                       : c->dtype == DS_F16 ? fabs(want) * 0x1p-11
                                            : fabs(want) * 0x1p-8;
        CHECK_CLOSE(at(y, q, i, j), want, 3e-7 * scale + place + 1e-30);
    }
}

/* dtype: of a, b and the bias. */
static void run_with(Case c, ds_dtype dtype)
{
    dsi_view a = make(dtype, c.batch, c.m, c.k, c.a);
    dsi_view b = make(dtype, c.shared_b ? 1 : c.batch, c.k, c.n, c.b);
    dsi_view y = make(c.dtype, c.batch, c.m, c.n, c.y),
             again = make(c.dtype, c.batch, c.m, c.n, c.y);
    dsi_view line = make(dtype, 1, 1, c.n, c.y == SPARSE ? SPARSE : ROWS), none = {0};
    fill(&a, 1), fill(&b, 2), fill(&line, 3);
    if (c.shared_b) b.d[0] = c.batch, b.s[0] = 0;
    dsi_view bias = {line.p, dtype, 1, {c.n}, {line.s[2]}};

    if (!c.bias) bias = none;
    CHECK(matmul(a, b, bias, y) == DS_OK);
    check_sums(&c, &a, &b, c.bias ? &line : &none, &y);

    /* the same bits from more threads; and nothing written between the elements */
    for (int threads = quick() ? 3 : 2; threads <= (quick() ? 3 : 4); threads++) {
        ds_set_threads(threads);
        CHECK(matmul(a, b, bias, again) == DS_OK);
        CHECK(!memcmp(y.p, again.p, bytes_of(&y)));
    }
    ds_set_threads(1);
    for (int64_t e = 0; c.y == SPARSE && e < c.batch * y.s[0]; e++)
        if (e % y.s[0] % y.s[1] % 3 || e % y.s[0] % y.s[1] >= 3 * c.n || e % y.s[0] >= c.m * y.s[1])
            CHECK(((uint16_t *)y.p)[c.dtype == DS_F32 ? 2 * e : e] == 0);
    free(a.p), free(b.p), free(y.p), free(again.p), free(line.p);
}

static void run_case(Case c) { run_with(c, DS_BF16); }

static bool lacks(bool there, const char *what)
{
    if (!there) print_message("no %s here, or DS_CPU names another set: skipped\n", what);
    return !there;
}

static bool no_bf16(void) { return lacks(dsi_cpu_bf16(), "AMX or AVX512_BF16"); }

/* Numbers in parts are the matrix unit's alone. */
static bool no_unit(void) { return lacks(dsi_cpu_amx(), "AMX"); }

static void edges(void **state)
{
    (void)state;
    if (no_bf16()) skip();
    static const int64_t sizes[] = {1, 2, 15, 16, 17, 31, 32, 33, 65},
                         depths[] = {1, 2, 31, 33, 97};
    for (int i = 0; i < 9; i++)
        for (int j = 0; j < 9; j++)
            for (int k = 0; k < 5; k++) {
                int64_t m = sizes[i], n = sizes[j], depth = depths[k];
                while (m * n * depth < 20000) depth += 32; /* else another kernel runs */
                run_case((Case){1, m, n, depth, ROWS, (i + j) % 2, ROWS, k & 1, false, DS_BF16});
            }
}

static void layouts(void **state)
{
    (void)state;
    if (no_bf16()) skip();
    for (int a = 0; a < LAYOUTS; a++)
        for (int b = 0; b < LAYOUTS; b++)
            for (int y = 0; y < LAYOUTS; y++) {
                run_case((Case){2, 39, 45, 43, a, b, y, true, false, DS_BF16});
                run_case((Case){3, 27, 34, 41, a, b, y, false, true, DS_BF16});
                run_case((Case){2, 18, 70, 64, a, b, y, true, true, DS_BF16});
                run_case((Case){1, 33, 35, 36, a, b, y, true, false, DS_F32});
            }
}

static void blocks(void **state)
{
    (void)state;
    if (no_bf16()) skip();
    run_case((Case){1, 40, 50, 2049, ROWS, COLS, ROWS, true, false, DS_BF16}); /* two blocks of k */
    run_case((Case){2, 33, 100, 6001, COLS, ROWS, COLS, true, false, DS_BF16});
    run_case((Case){1, 33, 600, 2100, ROWS, ROWS, ROWS, true, false, DS_F32}); /* several of n */
    run_case(
        (Case){1, 2090, 34, 40, ROWS, COLS, ROWS, true, false, DS_BF16}); /* more than one side */
    run_case((Case){1, 34, 2090, 40, COLS, COLS, COLS, true, false, DS_BF16});
    run_case((Case){1, 2060, 40, 2060, ROWS, ROWS, ROWS, true, false, DS_BF16});
    /* widths of threads, with a in place and packed */
    run_case((Case){1, 64, 1000, 4160, ROWS, COLS, ROWS, true, false, DS_BF16});
    run_case((Case){2, 70, 1100, 2200, COLS, ROWS, ROWS, true, false, DS_F32});
}

/* A row of a product does not depend on how many others there are: among few
 * (few_half.c), and among more. */
static void rows_alone(void **state)
{
    (void)state;
    static const int all[] = {8, 100}, some[] = {1, 9};
    for (int i = no_bf16() ? 1 : 2; i--;)
        for (int layout = ROWS; layout <= COLS; layout++) {
            dsi_view a = make(DS_BF16, 1, all[i], 2503, ROWS), none = {0};
            dsi_view b = make(DS_BF16, 1, 2503, 70, layout);
            dsi_view y = make(DS_F32, 1, all[i], 70, ROWS),
                     part = make(DS_F32, 1, all[i], 70, ROWS);
            fill(&a, 1), fill(&b, 2);
            CHECK(matmul(a, b, none, y) == DS_OK);
            for (part.d[1] = some[i]; part.d[1] < all[i]; part.d[1] += some[i]) {
                CHECK(matmul(a, b, none, part) == DS_OK);
                CHECK(!memcmp(y.p, part.p, (size_t)part.d[1] * 70 * sizeof(float)));
            }
            free(a.p), free(b.p), free(y.p), free(part.p);
        }
}

/* Up to 8 rows times a large matrix, on every instruction set. */
static void few_rows(void **state)
{
    (void)state;
    static const int sizes[][2] = {{520, 260}, {1037, 131}, {97, 1366}, {4101, 33}, {34, 4097}};
    for (int m = 1; m <= 8; m++)
        for (int i = 0; i < 5; i++)
            for (int layout = ROWS; layout <= COLS; layout++) {
                int n = sizes[i][0], k = sizes[i][1];
                run_case((Case){1, m, n, k, ROWS, layout, ROWS, m & 1, false, DS_BF16});
                run_case((Case){1, m, n, k, SPARSE, layout, COLS, true, false, DS_F32});
            }
}

/* No element of b but a NaN or infinity of its own makes one of y so. */
static void few_special_values(void **state)
{
    (void)state;
    for (int layout = ROWS; layout <= COLS; layout++)
        for (int m = 1; m <= 8; m++) {
            dsi_view a = make(DS_BF16, 1, m, 255, ROWS), b = make(DS_BF16, 1, 255, 521, layout);
            dsi_view y = make(DS_F32, 1, m, 521, ROWS), none = {0};
            fill(&a, 1), fill(&b, 2);
            put(&b, 254 * b.s[1] + 520 * b.s[2], INFINITY), put(&b, 3 * b.s[1], NAN);
            CHECK(matmul(a, b, none, y) == DS_OK);
            for (int i = 0; i < m; i++)
                for (int j = 0; j < 521; j++) {
                    double got = at(&y, 0, i, j);
                    CHECK(j == 520 ? isinf(got) : j == 0 ? isnan(got) : isfinite(got));
                }
            free(a.p), free(b.p), free(y.p);
        }
}

/* Zeros of the packing meet no element that counts; infinities and NaNs come
 * out where they belong. Subnormal numbers count as 0. */
static void special_values(void **state)
{
    (void)state;
    if (no_bf16()) skip();
    dsi_view a = make(DS_BF16, 1, 33, 35, ROWS), b = make(DS_BF16, 1, 35, 37, ROWS);
    dsi_view y = make(DS_BF16, 1, 33, 37, ROWS), none = {0};
    uint16_t *at_a = a.p, *at_b = b.p, one = dsi_f32_to_bf16(1);
    for (int i = 0; i < 33 * 35; i++) at_a[i] = one;
    for (int i = 0; i < 35 * 37; i++) at_b[i] = one;
    at_a[2 * 35 + 34] = 0x7fc0;                             /* row 2: NaN */
    at_a[3 * 35 + 1] = 0x7f80;                              /* row 3: infinity */
    for (int k = 0; k < 35; k++) at_a[4 * 35 + k] = 0x0001; /* row 4: 2^-133 */
    at_b[34 * 37 + 36] = 0xff80;                            /* column 36: -infinity */
    CHECK(matmul(a, b, none, y) == DS_OK);
    for (int i = 0; i < 33; i++)
        for (int j = 0; j < 37; j++) {
            double got = at(&y, 0, i, j), want = i == 3 ? (double)INFINITY : i == 4 ? 0 : 35;
            if (j == 36) want = -(double)INFINITY;
            if (i == 2 || (j == 36 && (i == 3 || i == 4)))
                CHECK(isnan(got));
            else
                CHECK(got == want);
        }
    free(a.p), free(b.p), free(y.p);
}

static void without_memory(void **state)
{
    (void)state;
    if (no_bf16()) skip();
    dsi_view a = make(DS_BF16, 1, 300, 3000, ROWS), b = make(DS_BF16, 1, 3000, 900, ROWS);
    dsi_view y = make(DS_BF16, 1, 300, 900, ROWS), none = {0};
    dsi_cache_fail(1, true);
    ds_status status = matmul(a, b, none, y);
    dsi_cache_fail(0, false);
    CHECK(status == DS_OK || status == DS_ENOMEM); /* scratch memory may be there already */
    free(a.p), free(b.p), free(y.p);
}

/* ---- numbers in parts: float32 and float16 ------------------------------------------------------------ */

/* In float32, and in float16. */
static void run_parts(Case c)
{
    run_with(c, DS_F32);
    c.dtype = DS_F16;
    run_with(c, DS_F16);
}

static void parts_edges(void **state)
{
    (void)state;
    if (no_unit()) skip();
    static const int64_t sizes[] = {64, 65, 79, 80, 81, 97, 128};
    for (int i = 0; i < 7; i++)
        for (int j = 0; j < 7; j++) {
            if (!compares_values() && (i + j) % 7) continue; /* edges do not matter to threads */
            int64_t m = sizes[i], n = sizes[j], depth = 2097152 / (m * n) + 1 + (7 * i + j) % 33;
            run_parts(
                (Case){1, m, n, depth, (i + j) % 3, (i + j) / 2 % 3, ROWS, j & 1, false, DS_F32});
        }
}

static void parts_layouts(void **state)
{
    (void)state;
    if (no_unit()) skip();
    for (int a = 0; a < LAYOUTS; a++)
        for (int b = 0; b < LAYOUTS; b++)
            for (int y = 0; y < LAYOUTS; y++) {
                if (quick() && (a + b + y) % LAYOUTS) continue;
                if (!compares_values() && (a != b || b != y)) continue;
                run_parts((Case){2, 71, 77, 401, a, b, y, true, false, DS_F32});
                run_parts((Case){3, 69, 98, 321, a, b, y, false, true, DS_F32});
            }
}

static void parts_blocks(void **state)
{
    (void)state;
    if (no_unit()) skip();
    run_parts((Case){1, 72, 80, 769, ROWS, COLS, ROWS, true, false, DS_F32}); /* two blocks of k */
    if (quick()) return;
    run_parts((Case){2, 65, 100, 2400, COLS, ROWS, COLS, true, false, DS_F32});
    run_parts((Case){1, 65, 900, 1100, ROWS, ROWS, ROWS, true, false, DS_F32}); /* several of n */
    run_parts(
        (Case){1, 2090, 66, 70, ROWS, COLS, ROWS, true, false, DS_F32}); /* more than one side */
    run_parts((Case){1, 66, 2090, 70, COLS, COLS, COLS, true, false, DS_F32});
    run_parts((Case){2, 90, 2500, 300, ROWS, COLS, ROWS, true, false, DS_F32}); /* of threads */
}

/* Root mean square of the difference to float64. */
static double error_of(const Case *c, const dsi_view *a, const dsi_view *b, const dsi_view *y)
{
    double sum = 0;
    for (int64_t e = 0; e < c->m * c->n; e += 7) {
        double want = 0;
        for (int64_t k = 0; k < c->k; k++) want += at(a, 0, e / c->n, k) * at(b, 0, k, e % c->n);
        double error = at(y, 0, e / c->n, e % c->n) - want;
        sum += error * error;
    }
    return sqrt(sum);
}

/* Errors of float32 are those of float32, or less: vectors sum in the order of
 * k. */
static void parts_are_exact(void **state)
{
    (void)state;
    if (no_unit() || !compares_values()) skip(); /* on one thread */
    for (int positive = 0; positive < 2; positive++)
        for (int64_t k = 64; k <= 4096; k *= 4) {
            Case c = {.m = 96, .n = 352, .k = k};
            dsi_view a = make(DS_F32, 1, c.m, k, ROWS), b = make(DS_F32, 1, k, c.n, COLS);
            dsi_view y = make(DS_F32, 1, c.m, c.n, ROWS), none = {0};
            fill(&a, 1), fill(&b, 2);
            for (int64_t e = 0; positive && e < c.m * k; e++) put(&a, e, fabsf(((float *)a.p)[e]));
            for (int64_t e = 0; positive && e < c.n * k; e++) put(&b, e, fabsf(((float *)b.p)[e]));
            CHECK(matmul(a, b, none, y) == DS_OK);
            double error = error_of(&c, &a, &b, &y);
            const dsi_kernels *vectors = &dsi_cpu_table_of("avx2")->kernels;
            CHECK(vectors->matmul(&dsi_device_current()->stream, a, b, none, y) == DS_OK);
            CHECK(error <= 1.2 * error_of(&c, &a, &b, &y));
            free(a.p), free(b.p), free(y.p);
        }
}

/* a and b of ones, in which element 7 of row 2 of a, and of column 3 of b, are
 * x and z; all of it times `by`. */
static void run_special(ds_dtype dtype, float x, float z, float by)
{
    enum { M = 70, N = 66, K = 500 };
    dsi_view a = make(dtype, 1, M, K, ROWS), b = make(dtype, 1, K, N, ROWS), none = {0};
    dsi_view y = make(DS_F32, 1, M, N, ROWS), want = make(DS_F32, 1, M, N, ROWS);
    for (int64_t e = 0; e < M * K; e++) put(&a, e, by);
    for (int64_t e = 0; e < K * N; e++) put(&b, e, by);
    put(&a, 2 * K + 7, x * by), put(&b, 7 * N + 3, z * by);
    if (dtype == DS_F16) y.dtype = DS_F16, want.dtype = DS_F16;
    CHECK(matmul(a, b, none, y) == DS_OK);
    const dsi_kernels *vectors = &dsi_cpu_table_of("generic")->kernels;
    CHECK(vectors->matmul(&dsi_device_current()->stream, a, b, none, want) == DS_OK);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++) {
            double got = at(&y, 0, i, j), expected = at(&want, 0, i, j);
            if (!isfinite(expected))
                CHECK(isnan(expected) ? isnan(got) : got == expected);
            else
                CHECK_CLOSE(got, expected, fabs(expected) * (dtype == DS_F16 ? 1e-3 : 3e-7));
        }
    free(a.p), free(b.p), free(y.p), free(want.p);
}

/* Infinities and NaNs come out where they belong; large and small numbers keep
 * the precision of float32. */
static void parts_special_values(void **state)
{
    (void)state;
    if (no_unit()) skip();
    static const float x[] = {0, 1, INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++) {
            run_special(DS_F32, x[i], x[j], 1);
            run_special(DS_F16, x[i], x[j], 1);
        }
    run_special(DS_F32, 3.4e38f, 1, 1); /* as a bfloat16: infinite */
    run_special(DS_F32, 3.4e38f, 0.3f, 1);
    run_special(DS_F32, 1e30f, 1e-30f, 1);
    run_special(DS_F32, 1.7f, 0.3f, 1e-35f); /* parts would be 0 */
    run_special(DS_F32, 1.7f, 1e38f, 1e-25f);
    run_special(DS_F32, 1.7f, 0.3f, 1e-19f); /* the product is small */
    run_special(DS_F32, 1.7f, 0.3f, 1e18f);
    run_special(DS_F16, 1.7f, 60000, 1);
    run_special(DS_F16, 1.7f, 0.3f, 6e-8f);
}

TEST_MAIN(cmocka_unit_test(without_memory), cmocka_unit_test(edges), cmocka_unit_test(layouts),
          cmocka_unit_test(blocks), cmocka_unit_test(rows_alone), cmocka_unit_test(few_rows),
          cmocka_unit_test(few_special_values), cmocka_unit_test(special_values),
          cmocka_unit_test(parts_edges), cmocka_unit_test(parts_layouts),
          cmocka_unit_test(parts_blocks), cmocka_unit_test(parts_are_exact),
          cmocka_unit_test(parts_special_values))
