/* tests/device/gemm_amx.c: products of bfloat16 by the matrix unit, beside
 * plain sums of the same values in float64: edges of tiles and of blocks,
 * strides, batches, what is not finite. Skipped where the unit is not, or
 * DS_CPU forbids it.
 * SPDX-License-Identifier: MIT */
#include "kernels.h"

#include "base/half.h"
#include "device/device.h"

/* How a matrix lies: row-major, column-major, or every third element of rows
 * that are too long. */
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
    return (double)dsi_bf16_to_f32(((const uint16_t *)v->p)[e]);
}

static void fill(const dsi_view *v, uint64_t seed)
{
    for (int64_t i = 0; i < v->d[0] * v->s[0]; i++)
        ((uint16_t *)v->p)[i] = dsi_f32_to_bf16((float)next_random(&seed));
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
    for (int64_t e = 0; e < c->batch * c->m * c->n; e += step) {
        int64_t j = e % c->n, i = e / c->n % c->m, q = e / c->n / c->m;
        double want = bias->p ? at(bias, 0, 0, j) : 0, scale = fabs(want);
        for (int64_t k = 0; k < c->k; k++) {
            double x = at(a, q, i, k) * at(b, q, k, j);
            want += x;
            scale += fabs(x);
        }
        double place = c->dtype == DS_F32 ? 0 : fabs(want) * 0x1p-8;
        CHECK_CLOSE(at(y, q, i, j), want, 3e-7 * scale + place + 1e-30);
    }
}

static void run_case(Case c)
{
    dsi_view a = make(DS_BF16, c.batch, c.m, c.k, c.a);
    dsi_view b = make(DS_BF16, c.shared_b ? 1 : c.batch, c.k, c.n, c.b);
    dsi_view y = make(c.dtype, c.batch, c.m, c.n, c.y),
             again = make(c.dtype, c.batch, c.m, c.n, c.y);
    dsi_view line = make(DS_BF16, 1, 1, c.n, c.y == SPARSE ? SPARSE : ROWS), none = {0};
    fill(&a, 1), fill(&b, 2), fill(&line, 3);
    if (c.shared_b) b.d[0] = c.batch, b.s[0] = 0;
    dsi_view bias = {line.p, DS_BF16, 1, {c.n}, {line.s[2]}};

    if (!c.bias) bias = none;
    CHECK(matmul(a, b, bias, y) == DS_OK);
    check_sums(&c, &a, &b, c.bias ? &line : &none, &y);

    /* the same bits from more threads; and nothing written between the elements */
    for (int threads = 2; threads <= 4; threads += 2) {
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

static bool no_unit(void)
{
    if (dsi_cpu_amx()) return false;
    print_message("no AMX here, or DS_CPU names another set: skipped\n");
    return true;
}

static void edges(void **state)
{
    (void)state;
    if (no_unit()) skip();
    static const int64_t sizes[] = {1, 2, 15, 16, 17, 31, 32, 33, 65},
                         depths[] = {1, 2, 31, 33, 97};
    for (int i = 0; i < 9; i++)
        for (int j = 0; j < 9; j++)
            for (int k = 0; k < 5; k++) {
                int64_t m = sizes[i], n = sizes[j], depth = depths[k];
                while (m * n * depth < 20000) depth += 32; /* else it goes another way */
                run_case((Case){1, m, n, depth, ROWS, (i + j) % 2, ROWS, k & 1, false, DS_BF16});
            }
}

static void layouts(void **state)
{
    (void)state;
    if (no_unit()) skip();
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
    if (no_unit()) skip();
    run_case((Case){1, 40, 50, 2049, ROWS, COLS, ROWS, true, false, DS_BF16}); /* two blocks of k */
    run_case((Case){2, 33, 100, 6001, COLS, ROWS, COLS, true, false, DS_BF16});
    run_case((Case){1, 33, 600, 2100, ROWS, ROWS, ROWS, true, false, DS_F32}); /* several of n */
    run_case(
        (Case){1, 2090, 34, 40, ROWS, COLS, ROWS, true, false, DS_BF16}); /* more than one side */
    run_case((Case){1, 34, 2090, 40, COLS, COLS, COLS, true, false, DS_BF16});
    run_case((Case){1, 2060, 40, 2060, ROWS, ROWS, ROWS, true, false, DS_BF16});
}

/* A row of a product does not depend on how many others there are. */
static void rows_alone(void **state)
{
    (void)state;
    if (no_unit()) skip();
    dsi_view a = make(DS_BF16, 1, 100, 2500, ROWS), b = make(DS_BF16, 1, 2500, 70, COLS);
    dsi_view y = make(DS_F32, 1, 100, 70, ROWS), part = make(DS_F32, 1, 100, 70, ROWS), none = {0};
    fill(&a, 1), fill(&b, 2);
    CHECK(matmul(a, b, none, y) == DS_OK);
    part.d[1] = 5;
    CHECK(matmul(a, b, none, part) == DS_OK);
    CHECK(!memcmp(y.p, part.p, 5 * 70 * sizeof(float)));
    free(a.p), free(b.p), free(y.p), free(part.p);
}

/* Zeros of the packing meet no element that counts; infinities and NaNs come
 * out where they belong. Subnormal numbers count as 0. */
static void special_values(void **state)
{
    (void)state;
    if (no_unit()) skip();
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
    if (no_unit()) skip();
    dsi_view a = make(DS_BF16, 1, 300, 3000, ROWS), b = make(DS_BF16, 1, 3000, 900, ROWS);
    dsi_view y = make(DS_BF16, 1, 300, 900, ROWS), none = {0};
    dsi_cache_fail(1, true);
    ds_status status = matmul(a, b, none, y);
    dsi_cache_fail(0, false);
    CHECK(status == DS_OK || status == DS_ENOMEM); /* scratch memory may be there already */
    free(a.p), free(b.p), free(y.p);
}

TEST_MAIN(cmocka_unit_test(without_memory), cmocka_unit_test(edges), cmocka_unit_test(layouts),
          cmocka_unit_test(blocks), cmocka_unit_test(rows_alone), cmocka_unit_test(special_values))
