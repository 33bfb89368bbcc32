/* tests/device/gemm.c: matmul of every instruction set, at odd sizes and
 * strides, beside a plain sum.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/half.h"
#include "kernels.h"

#include "device/device.h"

/* Memory orders of a matrix: row-major, column-major, or every third element of
 * rows that are too long. */
enum { ROWS, COLS, SPARSE, LAYOUTS };

typedef struct Case {
    int64_t batch, m, n, k;
    int a, b, y;         /* layouts */
    bool bias, shared_b; /* b has no batch of its own */
    ds_dtype dtype;
} Case;

static double draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(*state >> 33) / 1073741824.0 - 1;
}

static dsi_view make(ds_dtype dtype, int64_t batch, int64_t rows, int64_t cols, int layout)
{
    dsi_view v = {.dtype = dtype, .n = 3, .d = {batch, rows, cols}};
    int64_t row = layout == COLS ? 1 : layout == ROWS ? cols : 3 * cols + 5;
    int64_t col = layout == COLS ? rows : layout == ROWS ? 1 : 3;
    v.s[1] = row, v.s[2] = col, v.s[0] = layout == SPARSE ? rows * row + 7 : rows * cols;
    v.p = calloc((size_t)(batch * v.s[0] + 64), ds_dtype_size(dtype));
    return v;
}

static double at(const dsi_view *v, int64_t i)
{
    return v->dtype == DS_F64 ? ((double *)v->p)[i] : (double)((float *)v->p)[i];
}

static void put(const dsi_view *v, int64_t i, double x)
{
    if (v->dtype == DS_F64)
        ((double *)v->p)[i] = x;
    else
        ((float *)v->p)[i] = (float)x;
}

static void fill(const dsi_view *v, uint64_t *state)
{
    for (int64_t b = 0; b < v->d[0]; b++)
        for (int64_t i = 0; i < v->d[1]; i++)
            for (int64_t j = 0; j < v->d[2]; j++)
                put(v, b * v->s[0] + i * v->s[1] + j * v->s[2], draw(state));
}

static double expected(const Case *c, const dsi_view *a, const dsi_view *b, const dsi_view *bias,
                       int64_t batch, int64_t i, int64_t j, double *scale)
{
    double sum = bias->p ? at(bias, j * bias->s[0]) : 0;
    *scale = fabs(sum);
    for (int64_t k = 0; k < c->k; k++) {
        double x = at(a, batch * a->s[0] + i * a->s[1] + k * a->s[2]) *
                   at(b, batch * b->s[0] + k * b->s[1] + j * b->s[2]);
        sum += x;
        *scale += fabs(x);
    }
    return sum;
}

/* Of every element; if quick, of one in 37 where there are many. */
static void check_sums(const Case *c, const dsi_view *a, const dsi_view *b, const dsi_view *bias,
                       const dsi_view *y)
{
    double eps = c->dtype == DS_F64 ? 1e-15 : 3e-7, scale;
    int64_t step = quick() && c->m * c->n * c->k > 1000000 ? 37 : 1;
    for (int64_t e = 0; e < c->batch * c->m * c->n; e += step) {
        int64_t j = e % c->n, i = e / c->n % c->m, q = e / c->n / c->m;
        double want = expected(c, a, b, bias, q, i, j, &scale);
        CHECK_CLOSE(at(y, q * y->s[0] + i * y->s[1] + j * y->s[2]), want, eps * scale + 1e-30);
    }
}

static void run_case(const Case *c, const dsi_kernels *kernels)
{
    uint64_t state = 7;
    dsi_stream *s = &dsi_device_current()->stream;
    dsi_view a = make(c->dtype, c->batch, c->m, c->k, c->a);
    dsi_view b = make(c->dtype, c->shared_b ? 1 : c->batch, c->k, c->n, c->b);
    dsi_view y = make(c->dtype, c->batch, c->m, c->n, c->y),
             again = make(c->dtype, c->batch, c->m, c->n, c->y);
    dsi_view line = make(c->dtype, 1, 1, c->n, c->y == SPARSE ? SPARSE : ROWS), bias = {0};
    fill(&a, &state), fill(&b, &state), fill(&line, &state);
    if (c->shared_b) b.d[0] = c->batch, b.s[0] = 0;
    if (c->bias)
        bias = (dsi_view){.p = line.p, .dtype = c->dtype, .n = 1, .d = {c->n}, .s = {line.s[2]}};

    CHECK(kernels->matmul(s, a, b, bias, y) == DS_OK);
    if (compares_values()) check_sums(c, &a, &b, &bias, &y);

    /* the same bits from more threads; and nothing written between the elements */
    for (int threads = 2; threads <= 4; threads += 2) {
        ds_set_threads(threads);
        CHECK(kernels->matmul(s, a, b, bias, again) == DS_OK);
        CHECK(!memcmp(y.p, again.p, (size_t)(c->batch * y.s[0] + 64) * ds_dtype_size(c->dtype)));
    }
    ds_set_threads(1);
    free(a.p), free(b.p), free(y.p), free(again.p), free(line.p);
}

static void each_isa(const Case *cases, size_t n)
{
    FOR_EACH_ISA(kernels)
    {
        for (size_t i = 0; i < n; i++) run_case(&cases[i], kernels);
    }
}

static void all_sizes_small(void **state)
{
    (void)state;
    for (int64_t m = 1; m <= 27; m += m < 14 ? 1 : 6)
        for (int64_t n = 1; n <= 67; n += n < 10 ? 1 : 7)
            each_isa((Case[]){{1, m, n, m + n, ROWS, ROWS, ROWS, n & 1, false, DS_F32},
                              {1, m, n, 9, ROWS, COLS, ROWS, m & 1, false, DS_F32}},
                     2);
}

static void all_layouts(void **state)
{
    (void)state;
    for (int a = 0; a < LAYOUTS; a++)
        for (int b = 0; b < LAYOUTS; b++)
            for (int y = 0; y < LAYOUTS; y++)
                each_isa((Case[]){{2, 19, 45, 33, a, b, y, true, false, DS_F32},
                                  {3, 7, 18, 21, a, b, y, false, true, DS_F32},
                                  {2, 5, 6, 7, a, b, y, true, true, DS_F64}},
                         3);
}

static void large(void **state)
{
    (void)state;
    each_isa(
        (Case[]){{1, 260, 530, 620, ROWS, ROWS, ROWS, true, false, DS_F32}, /* all packed */
                 {1, 260, 530, 620, COLS, COLS, ROWS, false, false, DS_F32},
                 {1, 3, 530, 620, ROWS, ROWS, ROWS, true, false, DS_F32},
                 {1, 130, 120, 400, ROWS, COLS, ROWS, true, false, DS_F32},
                 {1, 2100, 20, 3, ROWS, COLS, ROWS, true, false, DS_F32},  /* more than one side */
                 {1, 2100, 70, 40, COLS, ROWS, ROWS, true, false, DS_F32}, /* and a is packed */
                 {1, 20, 2100, 3, ROWS, COLS, ROWS, true, false, DS_F32},
                 {40, 16, 24, 32, ROWS, COLS, ROWS, false, false, DS_F32},
                 {1, 250, 60, 300, COLS, ROWS, ROWS, true, false, DS_F32}, /* only a is far */
                 {2, 41, 300, 515, COLS, COLS, COLS, true, false, DS_F32}},
        10);
}

static void vectors(void **state)
{
    (void)state;
    each_isa((Case[]){{1, 71, 1, 309, ROWS, ROWS, ROWS, true, false, DS_F32},
                      {2, 71, 1, 30, COLS, ROWS, ROWS, false, false, DS_F32},
                      {1, 1, 71, 309, ROWS, COLS, ROWS, true, false, DS_F32},
                      {1, 71, 1, 309, ROWS, SPARSE, SPARSE, true, false, DS_F32}},
             4);
}

/* Products NN of few rows: chunks of columns, blocks of k, and the bits of the
 * same rows in a product of more. */
static void few_rows(void **state)
{
    (void)state;
    each_isa((Case[]){{1, 1, 5003, 390, ROWS, ROWS, ROWS, true, false, DS_F32},
                      {1, 4, 1101, 9, COLS, ROWS, ROWS, false, false, DS_F32},
                      {2, 3, 1400, 6, ROWS, ROWS, SPARSE, true, true, DS_F32}},
             3);
    enum { M = 9, N = 133, K = 391 };
    uint64_t draws = 3;
    dsi_stream *s = &dsi_device_current()->stream;
    dsi_view a = make(DS_F32, 1, M, K, ROWS), b = make(DS_F32, 1, K, N, ROWS), none = {0};
    dsi_view y = make(DS_F32, 1, M, N, ROWS), few = make(DS_F32, 1, M, N, ROWS);
    fill(&a, &draws), fill(&b, &draws);
    FOR_EACH_ISA(kernels)
    {
        CHECK(kernels->matmul(s, a, b, none, y) == DS_OK);
        for (int m = 1; m <= 4; m++) {
            dsi_view a_m = a, y_m = few;
            a_m.d[1] = y_m.d[1] = m;
            CHECK(kernels->matmul(s, a_m, b, none, y_m) == DS_OK);
            CHECK(!memcmp(y.p, few.p, (size_t)m * N * sizeof(float)));
        }
    }
    free(a.p), free(b.p), free(y.p), free(few.p);
}

/* The same in bfloat16, of rows of b (NN) and of its columns (NT), of which one
 * is behind the last whole block. */
static void few_rows_bf16(void **state)
{
    (void)state;
    enum { M = 4, N = 1030, K = 131 };
    uint64_t draws = 5;
    dsi_stream *s = &dsi_device_current()->stream;
    for (int layout = ROWS; layout <= COLS; layout++) {
        dsi_view a = make(DS_F32, 1, M, K, ROWS), b = make(DS_F32, 1, K, N, layout);
        dsi_view line = make(DS_F32, 1, 1, N, ROWS), *all[] = {&a, &b, &line};
        dsi_view y = make(DS_BF16, 1, M, N, ROWS);
        for (int i = 0; i < 3; i++) { /* numbers of bfloat16 */
            fill(all[i], &draws);
            for (int64_t k = 0; k < all[i]->d[1] * all[i]->d[2]; k++)
                put(all[i], k, round(at(all[i], k) * 128) / 128);
        }
        dsi_view a16 = make(DS_BF16, 1, M, K, ROWS), b16 = make(DS_BF16, 1, K, N, layout);
        dsi_view line16 = make(DS_BF16, 1, 1, N, ROWS);
        dsi_view terms = {.p = line.p, .dtype = DS_F32, .n = 1, .d = {N}, .s = {1}};
        dsi_view bias = {.p = line16.p, .dtype = DS_BF16, .n = 1, .d = {N}, .s = {1}};
        const dsi_kernels *host = dsi_device_current()->kernels;
        CHECK(host->copy(s, a, a16) == DS_OK && host->copy(s, b, b16) == DS_OK);
        CHECK(host->copy(s, line, line16) == DS_OK);
        FOR_EACH_ISA(kernels)
        {
            for (int m = 1; m <= M; m++)
                for (int threads = 1; threads <= 3; threads += 2) {
                    dsi_view a_m = a16, y_m = y;
                    a_m.d[1] = y_m.d[1] = m;
                    ds_set_threads(threads);
                    CHECK(kernels->matmul(s, a_m, b16, bias, y_m) == DS_OK);
                    Case c = {1, m, N, K, ROWS, layout, ROWS, true, false, DS_BF16};
                    for (int64_t i = 0; i < m * N; i++) {
                        double scale, want = expected(&c, &a, &b, &terms, 0, i / N, i % N, &scale);
                        double got = (double)dsi_bf16_to_f32(((uint16_t *)y.p)[i]);
                        CHECK_CLOSE(got, want, fabs(want) / 256 + 1e-6 * scale);
                    }
                }
            ds_set_threads(1);
        }
        free(a.p), free(b.p), free(line.p), free(y.p), free(a16.p), free(b16.p), free(line16.p);
    }
}

static void nothing_to_sum(void **state)
{
    (void)state;
    each_isa((Case[]){{1, 3, 5, 0, ROWS, ROWS, ROWS, true, false, DS_F32},
                      {2, 3, 5, 0, ROWS, COLS, ROWS, false, false, DS_F32},
                      {0, 3, 5, 2, ROWS, ROWS, ROWS, false, false, DS_F32},
                      {1, 0, 5, 2, ROWS, ROWS, ROWS, false, false, DS_F32},
                      {1, 3, 0, 2, ROWS, ROWS, ROWS, false, false, DS_F32},
                      {1, 3, 5, 0, ROWS, ROWS, ROWS, true, false, DS_F64}},
             6);
}

/* 0 times infinity or NaN is NaN: no zero is skipped, and no lane beyond the
 * edge comes in. */
static void not_finite(void **state)
{
    (void)state;
    FOR_EACH_ISA(kernels)
    {
        float a[2] = {0, 1}, b[8] = {INFINITY, 1, 2, NAN, 3, 4, 5, 6}, y[4];
        dsi_view av = {a, DS_F32, 3, {1, 1, 2}, {2, 2, 1}},
                 bv = {b, DS_F32, 3, {1, 2, 3}, {8, 4, 1}};
        dsi_view yv = {y, DS_F32, 3, {1, 1, 3}, {3, 3, 1}}, none = {0};
        CHECK(kernels->matmul(&dsi_device_current()->stream, av, bv, none, yv) == DS_OK);
        CHECK(isnan(y[0]));
        CHECK_CLOSE(y[1], 4, 0);
        CHECK_CLOSE(y[2], 5, 0);
    }
}

static void refusals(void **state)
{
    (void)state;
    dsi_device *d = dsi_device_current();
    int16_t x[4] = {0};
    dsi_view v = {x, DS_I16, 3, {1, 2, 2}, {4, 2, 1}}, none = {0};
    CHECK(d->kernels->matmul(&d->stream, v, v, none, v) == DS_EINVAL);
    CHECK_ERROR("matmul: no cpu kernel for int16");
}

TEST_MAIN(cmocka_unit_test(all_sizes_small), cmocka_unit_test(all_layouts), cmocka_unit_test(large),
          cmocka_unit_test(vectors), cmocka_unit_test(few_rows), cmocka_unit_test(few_rows_bf16),
          cmocka_unit_test(nothing_to_sum), cmocka_unit_test(not_finite),
          cmocka_unit_test(refusals))
