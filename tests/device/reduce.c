/* tests/device/reduce.c: sums over any dimensions, maxima and norms against
 * plain loops in double.
 * SPDX-License-Identifier: MIT */
#include "base/half.h"
#include "kernels.h"

/* sums[i] = sum of what falls on element i of y; absolute[i] of its magnitude */
static const dsi_view none;

static void plain_sum(const dsi_view *x, const dsi_view *y, double *sums, double *absolute)
{
    for (int64_t i = 0; i < view_count(y); i++) sums[i] = absolute[i] = 0;
    for (int64_t i = 0; i < view_count(x); i++) {
        int64_t to = 0, rest = i, step = 1;
        for (int k = x->n - 1; k >= 0; k--) {
            if (y->d[k] != 1) {
                to += rest % x->d[k] * step;
                step *= y->d[k];
            }
            rest /= x->d[k];
        }
        sums[to] += view_get(x, i);
        absolute[to] += fabs(view_get(x, i));
    }
}

static void check_sum(const dsi_kernels *k, const dsi_view *x, unsigned summed)
{
    int64_t d[DS_MAX_DIMS];
    for (int i = 0; i < x->n; i++) d[i] = summed >> i & 1 ? 1 : x->d[i];
    dsi_view y = view_new(x->dtype, x->n, d, NULL);
    int64_t n = view_count(&y);
    double *want = malloc(((size_t)n + 1) * 2 * sizeof *want),
           eps = x->dtype == DS_F32 ? 0x1p-24 : 0x1p-53;
    plain_sum(x, &y, want, want + n);
    CHECK_INT(k->reduce(NULL, DSI_SUM, 0.5, *x, y, none), DS_OK);
    for (int64_t i = 0; i < n; i++)
        CHECK_CLOSE(view_get(&y, i), 0.5 * want[i], 4 * eps * want[n + i]);
    free(want);
    view_free(&y);
}

static void sums_over_any_dimensions(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {
        {3, 5, 7, 2}, {1, 300, 1, 9}, {2, 1, 3, 700}, {4, 3, 0, 5}, {33, 2, 2, 5}};
    int orders[][4] = {{0, 1, 2, 3}, {0, 2, 3, 1}, {3, 1, 2, 0}};
    FOR_EACH_ISA(k)
    for (ds_dtype dtype = DS_F32; dtype <= DS_F64; dtype++)
        for (int s = 0; s < 5; s++)
            for (int o = 0; o < 3; o++) {
                dsi_view x = view_new(dtype, 4, shapes[s], orders[o]);
                view_random(&x, 1);
                for (unsigned summed = 0; summed < 16; summed++) check_sum(k, &x, summed);
                view_free(&x);
            }
}

static void sums_of_sliced_and_repeated_views(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    {
        dsi_view x = view_new(DS_F32, 2, (int64_t[]){1030, 6}, NULL);
        view_random(&x, 1);
        dsi_view half = {x.p, DS_F32, 2, {1030, 3}, {6, 2}},
                 repeated = {x.p, DS_F32, 3, {4, 50, 6}, {0, 6, 1}};
        for (unsigned summed = 0; summed < 4; summed++) check_sum(k, &half, summed);
        for (unsigned summed = 0; summed < 8; summed++) check_sum(k, &repeated, summed);
        view_free(&x);
    }
}

/* y's element i is the largest of those of x that fall on it, NaN if one is. */
static void check_amax(const dsi_kernels *k, const dsi_view *x, unsigned reduced)
{
    int64_t d[DS_MAX_DIMS];
    for (int i = 0; i < x->n; i++) d[i] = reduced >> i & 1 ? 1 : x->d[i];
    dsi_view y = view_new(x->dtype, x->n, d, NULL);
    double want[4000];
    for (int64_t i = 0; i < view_count(&y); i++) want[i] = -INFINITY;
    for (int64_t i = 0; i < view_count(x); i++) {
        int64_t to = 0, rest = i, step = 1;
        for (int j = x->n - 1; j >= 0; j--) {
            if (d[j] != 1) to += rest % x->d[j] * step, step *= x->d[j];
            rest /= x->d[j];
        }
        double v = view_get(x, i);
        want[to] = v > want[to] || isnan(v) ? v : want[to];
    }
    CHECK_INT(table_with(k)->fusions.amax(NULL, *x, y), DS_OK);
    for (int64_t i = 0; i < view_count(&y); i++) {
        double got = view_get(&y, i);
        CHECK(got == want[i] || (isnan(got) && isnan(want[i])));
    }
    view_free(&y);
}

static void largest_over_any_dimensions(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{3, 7, 70}, {5, 300, 2}, {2, 2, 900}};
    int orders[][3] = {{0, 1, 2}, {2, 0, 1}};
    FOR_EACH_ISA(k)
    for (ds_dtype dtype = DS_F32; dtype <= DS_F64; dtype++)
        for (int i = 0; i < 6; i++) {
            dsi_view x = view_new(dtype, 3, shapes[i / 2], orders[i % 2]);
            view_random(&x, 1);
            view_set(&x, 40, -INFINITY), view_set(&x, 100, NAN), view_set(&x, 200, INFINITY);
            for (unsigned reduced = 1; reduced < 8; reduced++) check_amax(k, &x, reduced);
            view_free(&x);
        }
}

/* Rows of less than a vector, of more than LINE_BLOCK, and one that threads
 * share. */
static void dot_products_of_rows(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{3, 5}, {4, 64}, {2, 9001}, {2, 250007}, {3, 0}, {0, 3}};
    FOR_EACH_ISA(k)
    for (int i = 0; i < 12; i++) {
        ds_dtype dtype = i % 2 ? DS_F64 : DS_F32;
        const int64_t *d = shapes[i / 2];
        dsi_view a = view_new(dtype, 2, d, NULL), b = view_new(dtype, 2, d, NULL);
        dsi_view y = view_new(dtype, 1, d, NULL);
        view_random(&a, 1), view_random(&b, 2);
        for (int same = 0; same < 2; same++) {
            const dsi_view *other = same ? &a : &b;
            CHECK_INT(table_with(k)->fusions.vecdot(NULL, a, *other, y), DS_OK);
            for (int64_t row = 0; row < d[0]; row++) {
                long double want = 0;
                double absolute = 0;
                for (int64_t c = row * d[1]; c < (row + 1) * d[1]; c++) {
                    double product = view_get(&a, c) * view_get(other, c);
                    want += product, absolute += fabs(product);
                }
                CHECK_CLOSE(view_get(&y, row), (double)want,
                            (dtype == DS_F64 ? 0x1p-49 : 0x1p-22) * absolute);
            }
        }
        view_free(&a), view_free(&b), view_free(&y);
    }
}

/* Sum of squares and mean of a row, of values `scale` large about `mean`, beside
 * long double; the same bits on any number of threads. */
static void check_deviations(const dsi_kernels *k, ds_dtype dtype, const int64_t *d, double scale,
                             double mean)
{
    static const int threads[] = {1, 2, 3, 7};
    dsi_view x = view_new(dtype, 2, d, NULL), y[4], high = view_new(dtype, 1, d, NULL),
             low = view_new(dtype, 1, d, NULL);
    view_random(&x, 1);
    for (int64_t i = 0; i < view_count(&x); i++) view_set(&x, i, view_get(&x, i) * scale + mean);
    for (int t = 0; t < 4; t++) {
        y[t] = view_new(DS_F64, 1, d, NULL);
        ds_set_threads(threads[t]);
        CHECK_INT(table_with(k)->fusions.deviations(NULL, x, y[t], high, low), DS_OK);
        CHECK(!memcmp(y[t].p, y[0].p, (size_t)d[0] * sizeof(double)));
    }
    ds_set_threads(1);
    for (int64_t row = 0; row < d[0] && d[1]; row++) {
        long double sum = 0, squares = 0;
        for (int64_t c = 0; c < d[1]; c++) sum += view_get(&x, row * d[1] + c);
        sum /= d[1];
        for (int64_t c = 0; c < d[1]; c++) {
            long double off = view_get(&x, row * d[1] + c) - sum;
            squares += off * off;
        }
        double tol = dtype == DS_F64 ? 1e-13 : 1e-6, off = sqrt((double)squares / (double)d[1]);
        CHECK_CLOSE(view_get(&y[0], row) / (double)squares, 1, tol);
        CHECK_CLOSE((view_get(&high, row) + view_get(&low, row) - (double)sum) / off, 0,
                    dtype == DS_F64 ? fmax(1e-13, 1e-15 * fabs(mean) / scale) : tol);
    }
    for (int t = 0; t < 4; t++) view_free(&y[t]);
    view_free(&x), view_free(&high), view_free(&low);
}

static void deviations_of_rows(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{3, 5}, {4, 64}, {2, 9001}, {2, 250007}, {3, 0}, {0, 3}};
    static const double scales[] = {1, 1, 1, 1e30, 1e-30}, means[] = {0, 1e4, -1e6, 0, 0};
    FOR_EACH_ISA(k)
    for (int i = 0; i < 60; i++)
        check_deviations(k, i % 2 ? DS_F64 : DS_F32, shapes[i / 2 % 6], scales[i / 12],
                         means[i / 12]);
}

/* Ones added one by one to 2^24 in float stay there. */
static void long_sums_stay_exact(void **state)
{
    (void)state;
    int64_t n = (1 << 24) + 5;
    dsi_view x = view_new(DS_F32, 1, &n, NULL), y = view_new(DS_F32, 1, (int64_t[]){1}, NULL);
    FOR_EACH_ISA(k)
    {
        CHECK_INT(k->fill(NULL, 1, x), DS_OK);
        CHECK_INT(k->reduce(NULL, DSI_SUM, 1, x, y, none), DS_OK);
        CHECK_CLOSE(view_get(&y, 0), (double)(float)n, 0);
        dsi_view half = {x.p, DS_F32, 1, {(1 << 23) + 1}, {2}}; /* every second element */
        CHECK_INT(k->reduce(NULL, DSI_SUM, 1, half, y, none), DS_OK);
        CHECK_CLOSE(view_get(&y, 0), (1 << 23) + 1, 0);
    }
    view_free(&x), view_free(&y);
}

static void nan_and_infinity_pass_through_sums(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    {
        dsi_view x = view_new(DS_F32, 2, (int64_t[]){3, 40}, NULL),
                 y = view_new(DS_F32, 2, (int64_t[]){3, 1}, NULL);
        view_set(&x, 20, INFINITY), view_set(&x, 60, NAN);
        CHECK_INT(k->reduce(NULL, DSI_SUM, 1, x, y, none), DS_OK);
        CHECK_CLOSE(view_get(&y, 0), INFINITY, 0);
        CHECK_CLOSE(view_get(&y, 1), NAN, 0);
        CHECK_CLOSE(view_get(&y, 2), 0, 0);
        view_free(&x), view_free(&y);
    }
}

static void maxima_are_the_first_and_nan_wins(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (ds_dtype dtype = DS_F32; dtype <= DS_F64; dtype++) {
        /* [2, 4, 3]: columns of C */
        static const double in[] = {1, 5, -INFINITY, 7,  5,        -INFINITY, 7, NAN, -INFINITY,
                                    2, 9, -INFINITY, 0,  -0.0,     NAN,       3, 0,   4,
                                    3, 1, NAN,       -1, INFINITY, INFINITY};
        static const double want[] = {7, NAN, -INFINITY, 3, INFINITY, NAN};
        static const int64_t at[] = {1, 2, 0, 1, 3, 0};
        dsi_view x = view_new(dtype, 3, (int64_t[]){2, 4, 3}, (int[]){2, 0, 1});
        dsi_view y = view_new(dtype, 3, (int64_t[]){2, 1, 3}, NULL);
        dsi_view index = view_new(DS_I64, 3, (int64_t[]){2, 1, 3}, (int[]){2, 1, 0});
        for (int i = 0; i < 24; i++) view_set(&x, i, in[i]);
        CHECK_INT(k->reduce(NULL, DSI_MAX, 1, x, y, index), DS_OK);
        for (int i = 0; i < 6; i++) {
            CHECK_CLOSE(view_get(&y, i), want[i], 0);
            CHECK_INT(*(int64_t *)view_at(&index, i), at[i]);
        }
        CHECK_INT(k->fill(NULL, -1, index), DS_OK);
        CHECK_INT(k->reduce(NULL, DSI_MAX, 1, x, none, index), DS_OK);
        for (int i = 0; i < 6; i++) CHECK_INT(*(int64_t *)view_at(&index, i), at[i]);
        x.d[1] = 0;
        CHECK_INT(k->reduce(NULL, DSI_MAX, 1, x, y, index), DS_EINVAL);
        CHECK_ERROR("max: the dimension has no elements");
        view_free(&x), view_free(&y), view_free(&index);
    }
}

/* Of rows of 1 to 130 elements with many ties, and a NaN or two in some: along
 * memory, and across it. */
static void maxima_of_long_rows(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (int order = 0; order < 2; order++)
        for (int64_t n = 1; n <= 130; n += n < 40 ? 1 : 30) {
            dsi_view x = view_new(DS_F32, 3, (int64_t[]){7, n, 5},
                                  order ? (int[]){0, 2, 1} : (int[]){0, 1, 2});
            dsi_view y = view_new(DS_F32, 3, (int64_t[]){7, 1, 5}, NULL);
            dsi_view index = view_new(DS_I64, 3, (int64_t[]){7, 1, 5}, NULL);
            view_random(&x, (uint64_t)n);
            for (int64_t i = 0; i < 35 * n; i++) {
                double v = round(2 * view_get(&x, i));
                view_set(&x, i, i % 97 == 13 || i % 71 == 5 ? NAN : v);
            }
            CHECK_INT(k->reduce(NULL, DSI_MAX, 1, x, y, index), DS_OK);
            for (int64_t row = 0; row < 35; row++) {
                int64_t first = row / 5 * n * 5 + row % 5, at = 0;
                double most = view_get(&x, first);
                for (int64_t c = 1; c < n && !isnan(most); c++) {
                    double v = view_get(&x, first + c * 5);
                    if (!(v <= most)) most = v, at = c;
                }
                CHECK_CLOSE(view_get(&y, row), most, 0);
                CHECK_INT(*(int64_t *)view_at(&index, row), at);
            }
            view_free(&x), view_free(&y), view_free(&index);
        }
}

static void norms_of_several_views(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    {
        int64_t many = 300001;
        dsi_view x[3] = {view_new(DS_F32, 2, (int64_t[]){17, 9}, (int[]){1, 0}),
                         view_new(DS_F64, 1, &many, NULL),
                         view_new(DS_F32, 2, (int64_t[]){6, 8}, NULL)};
        double one = 0, two = 0, most = 0, got;
        for (int v = 0; v < 3; v++) view_random(&x[v], (uint64_t)v);
        x[2].d[1] = 4, x[2].s[1] = 2; /* every second column */
        for (int v = 0; v < 3; v++)
            for (int64_t i = 0; i < view_count(&x[v]); i++) {
                double a = fabs(view_get(&x[v], i));
                one += a, two += a * a, most = fmax(most, a);
            }
        CHECK_INT(k->norm(NULL, 1, 3, x, (dsi_view){&got, DS_F64, 0, {0}, {0}}), DS_OK);
        CHECK_CLOSE(got, one, 1e-12 * one);
        CHECK_INT(k->norm(NULL, 2, 3, x, (dsi_view){&got, DS_F64, 0, {0}, {0}}), DS_OK);
        CHECK_CLOSE(got, sqrt(two), 1e-12 * sqrt(two));
        CHECK_INT(k->norm(NULL, INFINITY, 3, x, (dsi_view){&got, DS_F64, 0, {0}, {0}}), DS_OK);
        CHECK_CLOSE(got, most, 0);
        view_set(&x[0], 3, 1e30); /* its square is no float */
        CHECK_INT(k->norm(NULL, 2, 3, x, (dsi_view){&got, DS_F64, 0, {0}, {0}}), DS_OK);
        CHECK_CLOSE(got, 1e30, 1e23);
        view_set(&x[0], 5, NAN);
        for (int p = 0; p < 3; p++) {
            CHECK_INT(k->norm(NULL, (const double[]){1, 2, INFINITY}[p], 3, x,
                              (dsi_view){&got, DS_F64, 0, {0}, {0}}),
                      DS_OK);
            CHECK(isnan(got));
        }
        CHECK_INT(k->norm(NULL, 3, 3, x, (dsi_view){&got, DS_F64, 0, {0}, {0}}), DS_EINVAL);
        CHECK_ERROR("norm: p is 3, expected 1, 2 or infinity");
        CHECK_INT(k->norm(NULL, 2, 0, NULL, (dsi_view){&got, DS_F64, 0, {0}, {0}}), DS_OK);
        CHECK_CLOSE(got, 0, 0);
        for (int v = 0; v < 3; v++) view_free(&x[v]);
    }
}

static void norms_of_bfloat16(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (int64_t n = 1; n < 300000; n = n * 5 + 2) {
        uint16_t *p = calloc((size_t)n, sizeof *p), last;
        uint64_t seed = 7;
        double two = 0, got;
        for (int64_t i = 0; i < n; i++) {
            p[i] = dsi_f32_to_bf16((float)next_random(&seed));
            double a = (double)dsi_bf16_to_f32(p[i]);
            two += a * a;
        }
        dsi_view x = {p, DS_BF16, 1, {n}, {1}}, y = {&got, DS_F64, 0, {0}, {0}};
        CHECK_INT(k->norm(NULL, 2, 1, &x, y), DS_OK);
        CHECK_CLOSE(got, sqrt(two), 1e-12 * sqrt(two));
        last = p[n - 1], p[n - 1] = dsi_f32_to_bf16(1e30F); /* its square is no float */
        CHECK_INT(k->norm(NULL, 2, 1, &x, y), DS_OK);
        CHECK_CLOSE(got, 1e30, 1e28);
        p[n - 1] = last, p[n / 2] = 0x7fc0;
        CHECK_INT(k->norm(NULL, 2, 1, &x, y), DS_OK);
        CHECK(isnan(got));
        free(p);
    }
}

static void sums_do_not_depend_on_threads_or_instruction_set(void **state)
{
    (void)state;
    int64_t d[] = {1501, 401};
    dsi_view x = view_new(DS_F32, 2, d, NULL);
    float first[3][1501];
    bool have = false;
    view_random(&x, 9);
    FOR_EACH_ISA(k)
    for (int threads = 1; threads <= 4; threads += 3) {
        float got[3][1501] = {{0}};
        CHECK_INT(ds_set_threads(threads), DS_OK);
        CHECK_INT(
            k->reduce(NULL, DSI_SUM, 1, x, (dsi_view){got[0], DS_F32, 2, {1, 1}, {1, 1}}, none),
            DS_OK);
        CHECK_INT(
            k->reduce(NULL, DSI_SUM, 1, x, (dsi_view){got[1], DS_F32, 2, {1501, 1}, {1, 1}}, none),
            DS_OK);
        CHECK_INT(
            k->reduce(NULL, DSI_SUM, 1, x, (dsi_view){got[2], DS_F32, 2, {1, 401}, {401, 1}}, none),
            DS_OK);
        if (have) CHECK(memcmp(first, got, sizeof got) == 0);
        memcpy(first, got, sizeof got);
        have = true;
    }
    CHECK_INT(ds_set_threads(1), DS_OK);
    view_free(&x);
}

TEST_MAIN(cmocka_unit_test(sums_over_any_dimensions),
          cmocka_unit_test(sums_of_sliced_and_repeated_views),
          cmocka_unit_test(largest_over_any_dimensions), cmocka_unit_test(dot_products_of_rows),
          cmocka_unit_test(deviations_of_rows), cmocka_unit_test(long_sums_stay_exact),
          cmocka_unit_test(nan_and_infinity_pass_through_sums),
          cmocka_unit_test(maxima_are_the_first_and_nan_wins),
          cmocka_unit_test(maxima_of_long_rows), cmocka_unit_test(norms_of_several_views),
          cmocka_unit_test(norms_of_bfloat16),
          cmocka_unit_test(sums_do_not_depend_on_threads_or_instruction_set))
