/* tests/device/index.c: rows and maxima by index, and indices that are outside.
 * SPDX-License-Identifier: MIT */
#include "base/half.h"
#include "kernels.h"

static dsi_stream *stream(void) { return &dsi_device_current()->stream; }

enum { V = 7, D = 5, N = 6 };
static const int64_t index_of[N] = {3, 0, 3, 6, 1, 3};

static dsi_view indices(void)
{
    return (dsi_view){(void *)(uintptr_t)index_of, DS_I64, 1, {N}, {1}};
}

static void gathers_rows_of_any_dtype(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (ds_dtype dtype = 0; dtype < DS_DTYPES; dtype++)
        for (int turned = 0; turned < 2; turned++) {
            dsi_view w = view_new(dtype, 2, (int64_t[]){V, D}, turned ? (int[]){1, 0} : NULL);
            dsi_view y = view_new(dtype, 2, (int64_t[]){N, D}, NULL);
            size_t size = ds_dtype_size(dtype);
            for (int64_t i = 0; i < V * D; i++) memset(view_at(&w, i), (int)i + 1, size);
            CHECK_INT(k->gather_rows(NULL, w, indices(), y), DS_OK);
            for (int64_t i = 0; i < N * D; i++)
                CHECK(memcmp(view_at(&y, i), view_at(&w, index_of[i / D] * D + i % D), size) == 0);
            view_free(&w), view_free(&y);
        }
}

static void scatters_rows_and_skips_one(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (ds_dtype dtype = DS_F32; dtype <= DS_F64; dtype++)
        for (int64_t skip = -1; skip < 2; skip++)
            for (int turned = 0; turned < 2; turned++) {
                dsi_view dw = view_new(dtype, 2, (int64_t[]){V, D}, turned ? (int[]){1, 0} : NULL);
                dsi_view dy = view_new(dtype, 2, (int64_t[]){N, D}, NULL);
                view_random(&dy, 1), view_random(&dw, 2);
                CHECK_INT(k->scatter_rows(NULL, dy, indices(), skip, dw), DS_OK);
                for (int64_t i = 0; i < V * D; i++) {
                    double want = 0;
                    for (int r = 0; r < N; r++)
                        if (index_of[r] == i / D && i / D != skip)
                            want += view_get(&dy, r * D + i % D);
                    CHECK_CLOSE(view_get(&dw, i), want, 1e-6);
                }
                view_free(&dw), view_free(&dy);
            }
}

static void scatters_to_maxima(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (ds_dtype dtype = DS_F32; dtype <= DS_F64; dtype++) {
        dsi_view dx = view_new(dtype, 3, (int64_t[]){2, 4, 3}, (int[]){2, 0, 1});
        dsi_view dy = view_new(dtype, 3, (int64_t[]){2, 1, 3}, (int[]){2, 1, 0});
        int64_t at[] = {0, 3, 2, 1, 1, 3};
        dsi_view index = {at, DS_I64, 3, {2, 1, 3}, {3, 3, 1}};
        view_random(&dy, 1), view_random(&dx, 2);
        CHECK_INT(k->scatter_add(NULL, dy, index, dx), DS_OK);
        for (int64_t i = 0; i < 24; i++) {
            int64_t o = i / 12, c = i / 3 % 4, j = i % 3;
            CHECK_CLOSE(view_get(&dx, i), c == at[o * 3 + j] ? view_get(&dy, o * 3 + j) : 0, 0);
        }
        at[4] = 4;
        CHECK_INT(k->scatter_add(stream(), dy, index, dx), DS_OK);
        CHECK_FAULT("gather: index 4 at [1, 1] is outside 0..3");
        view_free(&dx), view_free(&dy);
    }
}

/* Lines of a few places are taken together; a bad index in one of them makes y
 * 0. */
static void gathers_short_lines(void **state)
{
    (void)state;
    enum { ROWS = 150, C = 4, K = 2 };
    int64_t at[ROWS * K];
    for (int64_t i = 0; i < ROWS * K; i++) at[i] = i * 7 % 5 % C;
    dsi_view index = {at, DS_I64, 3, {ROWS, K, 1}, {K, 1, 1}};
    FOR_EACH_ISA(k)
    {
        dsi_view x = view_new(DS_F32, 3, (int64_t[]){ROWS, C, 1}, NULL),
                 y = view_new(DS_F32, 3, (int64_t[]){ROWS, K, 1}, NULL);
        view_random(&x, 1);
        CHECK_INT(k->gather(stream(), x, index, y), DS_OK);
        for (int64_t i = 0; i < ROWS * K; i++)
            CHECK_CLOSE(view_get(&y, i), view_get(&x, i / K * C + at[i]), 0);
        for (int64_t bad = -1; bad <= C; bad += C + 1) {
            int64_t was = at[140 * K + 1];
            at[140 * K + 1] = bad;
            CHECK_INT(k->gather(stream(), x, index, y), DS_OK);
            at[140 * K + 1] = was;
            CHECK_FAULT(bad < 0 ? "gather: index -1 at [140, 1] is outside 0..3"
                                : "gather: index 4 at [140, 1] is outside 0..3");
            for (int64_t i = 0; i < ROWS * K; i++) CHECK_CLOSE(view_get(&y, i), 0, 0);
        }
        view_free(&x), view_free(&y);
    }
}

/* One index for all of a line, which is copied by vectors if it is 128, 256 or
 * a few times as many bytes, else by memcpy; y has gaps behind its lines. */
static void gathers_whole_lines(void **state)
{
    (void)state;
    enum { OUTER = 2, C = 5, K = 4 };
    int64_t at[K] = {4, 0, 3, 3};
    FOR_EACH_ISA(k)
    for (int64_t bytes = 8; bytes <= 1280; bytes += bytes < 64 ? 28 : 32) {
        int64_t n = bytes / 4;
        dsi_view x = view_new(DS_F32, 3, (int64_t[]){OUTER, C, n}, NULL),
                 y = view_new(DS_F32, 3, (int64_t[]){OUTER, K, n + 3}, NULL), to = y;
        dsi_view index = {at, DS_I64, 3, {OUTER, K, n}, {0, 1, 0}};
        view_random(&x, 1), view_random(&y, 2);
        to.d[2] = n;
        double gap = view_get(&y, n);
        CHECK_INT(k->gather(stream(), x, index, to), DS_OK);
        for (int64_t o = 0; o < OUTER; o++)
            for (int64_t i = 0; i < K * n; i++)
                CHECK_CLOSE(view_get(&y, (o * K + i / n) * (n + 3) + i % n),
                            view_get(&x, (o * C + at[i / n]) * n + i % n), 0);
        CHECK_CLOSE(view_get(&y, n), gap, 0);
        view_free(&x), view_free(&y);
    }
}

/* Without other dimensions, threads divide the inner one. */
static void scatters_along_one_line(void **state)
{
    (void)state;
    enum { C = 3, K = 5, I = 160 };
    int64_t at[K] = {2, 0, 2, 1, 2};
    dsi_view index = {at, DS_I64, 3, {1, K, I}, {0, 1, 0}};
    FOR_EACH_ISA(k)
    {
        dsi_view x = view_new(DS_F32, 3, (int64_t[]){1, C, I}, NULL),
                 src = view_new(DS_F32, 3, (int64_t[]){1, K, I}, NULL),
                 y = view_new(DS_F32, 3, x.d, NULL), sums = view_new(DS_F32, 3, x.d, NULL);
        view_random(&x, 1), view_random(&src, 2);
        CHECK_INT(k->scatter_add(stream(), src, index, sums), DS_OK);
        CHECK_INT(table_with(k)->fusions.scatter_sum(stream(), 1, x, index, src, y), DS_OK);
        for (int64_t e = 0; e < C * I; e++) {
            float want = 0;
            for (int64_t r = 0; r < K; r++)
                if (at[r] == e / I) want += (float)view_get(&src, r * I + e % I);
            CHECK_CLOSE(view_get(&sums, e), (double)want, 0);
            CHECK_CLOSE(view_get(&y, e), (double)((float)view_get(&x, e) + want), 0);
        }
        view_free(&x), view_free(&src), view_free(&y), view_free(&sums);
    }
}

static double half_at(const dsi_view *v, int64_t i)
{
    uint16_t h = ((const uint16_t *)v->p)[i];
    return (double)(v->dtype == DS_BF16 ? dsi_bf16_to_f32(h) : dsi_f16_to_f32(h));
}

static void half_put(const dsi_view *v, int64_t i, float x)
{
    ((uint16_t *)v->p)[i] = v->dtype == DS_BF16 ? dsi_f32_to_bf16(x) : dsi_f32_to_f16(x);
}

/* y = x - sum / 2: of whole slices, short lines, few places, and long lines. */
static void sums_of_16_bits_are_rounded_once(void **state)
{
    (void)state;
    enum { K = 5 };
    static const struct {
        int64_t d[3], step[3];
    } sizes[] = {{{1, 7, 40}, {0, 1, 0}},
                 {{3, 7, 1}, {K, 1, 1}},
                 {{2, 64, 3}, {3 * K, 3, 1}},
                 {{2, 4100, 1}, {K, 1, 1}}};
    int64_t at[6 * K];
    for (int64_t e = 0; e < 6 * K; e++) at[e] = e * 3 % 5;
    FOR_EACH_ISA(k)
    for (ds_dtype dtype = DS_F16; dtype <= DS_BF16; dtype++)
        for (int n = 0; n < 4; n++) {
            const int64_t *d = sizes[n].d, *step = sizes[n].step, from[] = {d[0], K, d[2]};
            dsi_view x = view_new(dtype, 3, d, NULL), y = view_new(dtype, 3, d, NULL),
                     src = view_new(dtype, 3, from, NULL), want = view_new(dtype, 3, d, NULL);
            dsi_view index = {at, DS_I64, 3, {d[0], K, d[2]}, {step[0], step[1], step[2]}};
            for (int64_t e = 0; e < view_count(&x); e++) half_put(&x, e, (float)(e * 37 % 101) / 7);
            for (int64_t e = 0; e < view_count(&src); e++)
                half_put(&src, e, (float)(e * 53 % 97) / 11 - 4);
            CHECK_INT(table_with(k)->fusions.scatter_sum(stream(), -0.5, x, index, src, y), DS_OK);
            for (int64_t e = 0; e < view_count(&x); e++) {
                int64_t o = e / (d[1] * d[2]), i = e % d[2];
                float sum = 0;
                for (int64_t r = 0; r < K; r++)
                    if (at[o * step[0] + r * step[1] + i * step[2]] == e / d[2] % d[1])
                        sum += (float)half_at(&src, (o * K + r) * d[2] + i);
                half_put(&want, e, (float)half_at(&x, e) - 0.5F * sum);
                CHECK_CLOSE(half_at(&y, e), half_at(&want, e), 0);
            }
            view_free(&x), view_free(&y), view_free(&src), view_free(&want);
        }
}

/* Of a place that is named twice the last counts, forward and back. */
static void scatter_takes_the_last(void **state)
{
    (void)state;
    int64_t along[] = {3, 1, 3, 0, 1, 1}, across[] = {0, 2, 0, 0, 1, 2};
    dsi_view index[] = {{along, DS_I64, 3, {2, 3, 1}, {3, 1, 1}},
                        {across, DS_I64, 3, {1, 3, 2}, {6, 2, 1}}};
    FOR_EACH_ISA(k)
    for (int i = 0; i < 2; i++) {
        const int64_t *d = index[i].d, *at = index[i].p, n = d[0] * 4 * d[2];
        const dsi_fusions *f = &table_with(k)->fusions;
        dsi_view x = view_new(DS_F32, 3, (int64_t[]){d[0], 4, d[2]}, NULL),
                 src = view_new(DS_F32, 3, d, NULL), y = view_new(DS_F32, 3, x.d, NULL);
        double want[16], back[16], lost[6] = {0}, sums[16] = {0};
        view_random(&x, 1), view_random(&src, 2);
        for (int64_t e = 0; e < n; e++) want[e] = back[e] = view_get(&x, e);
        for (int64_t e = 0; e < 6; e++) {
            int64_t to = (e / (3 * d[2]) * 4 + at[e]) * d[2] + e % d[2];
            want[to] = view_get(&src, e), sums[to] += view_get(&src, e);
        }
        for (int64_t e = 5; e >= 0; e--) {
            int64_t to = (e / (3 * d[2]) * 4 + at[e]) * d[2] + e % d[2];
            lost[e] = back[to], back[to] = 0;
        }
        CHECK_INT(f->scatter(stream(), x, index[i], src, y), DS_OK);
        for (int64_t e = 0; e < n; e++) CHECK_CLOSE(view_get(&y, e), want[e], 0);
        CHECK_INT(f->scatter_sum(stream(), -0.5, x, index[i], src, y), DS_OK);
        for (int64_t e = 0; e < n; e++)
            CHECK_CLOSE(view_get(&y, e), view_get(&x, e) - 0.5 * sums[e], 1e-6);
        CHECK_INT(f->scatter_dx(stream(), x, index[i], y, src), DS_OK);
        for (int64_t e = 0; e < n; e++) CHECK_CLOSE(view_get(&y, e), back[e], 0);
        for (int64_t e = 0; e < 6; e++) CHECK_CLOSE(view_get(&src, e), lost[e], 0);
        view_free(&x), view_free(&src), view_free(&y);
    }
}

static void indices_outside_are_refused(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    {
        dsi_view w = view_new(DS_F32, 2, (int64_t[]){V, D}, NULL),
                 y = view_new(DS_F32, 2, (int64_t[]){N, D}, NULL);
        int64_t bad[N] = {0, 1, 2, V, 0, 0};
        dsi_view index = {bad, DS_I64, 1, {N}, {1}};
        CHECK_INT(k->gather_rows(stream(), w, index, y), DS_OK);
        CHECK_FAULT("embedding: index 7 at position 3 is outside 0..6");
        bad[3] = -1;
        CHECK_INT(k->scatter_rows(stream(), y, index, -1, w), DS_OK);
        bad[1] = -5; /* the first one stays */
        CHECK_INT(k->gather_rows(stream(), w, index, y), DS_OK);
        CHECK_FAULT("embedding: index -1 at position 3 is outside 0..6");
        w.dtype = y.dtype = DS_I32;
        CHECK_INT(k->scatter_rows(NULL, y, index, -1, w), DS_EINVAL);
        CHECK_ERROR("scatter_rows: no cpu kernel for int32");
        view_free(&w), view_free(&y);
    }
}

/* Indices are checked group by group, and in parts of a long inner dimension;
 * the fault has the place in the whole index. */
static void elements_outside_are_refused(void **state)
{
    (void)state;
    static const struct {
        int64_t d[3], bad;
        const char *message;
    } cases[] = {{{600, 3, 1}, 1204, "gather: index 4 at [401, 1] is outside 0..3"},
                 {{1, 3, 160}, 471, "gather: index 4 at [0, 471] is outside 0..3"}};
    FOR_EACH_ISA(k)
    for (int i = 0; i < 2; i++) {
        const int64_t *d = cases[i].d;
        const dsi_fusions *f = &table_with(k)->fusions;
        dsi_view x = view_new(DS_F32, 3, (int64_t[]){d[0], 4, d[2]}, NULL),
                 src = view_new(DS_F32, 3, d, NULL), y = view_new(DS_F32, 3, x.d, NULL),
                 index = view_new(DS_I64, 3, d, NULL);
        view_random(&x, 1), view_random(&src, 2);
        memset(index.p, 0, (size_t)view_count(&index) * sizeof(int64_t));
        *(int64_t *)view_at(&index, cases[i].bad) = 4;
        for (int op = 0; op < 2; op++) {
            CHECK_INT(op ? f->scatter(stream(), x, index, src, y)
                         : f->scatter_sum(stream(), 1, x, index, src, y),
                      DS_OK);
            CHECK_FAULT(cases[i].message);
            for (int64_t e = 0; e < view_count(&y); e++) CHECK_CLOSE(view_get(&y, e), 0, 0);
        }
        view_free(&x), view_free(&src), view_free(&y), view_free(&index);
    }
}

/* Many rows share few places, so that the order of the sums shows. */
static void results_do_not_depend_on_threads(void **state)
{
    (void)state;
    int64_t n = 700, width = 900, rows = 11;
    FOR_EACH_ISA(k)
    {
        dsi_view dy = view_new(DS_F32, 2, (int64_t[]){n, width}, NULL),
                 index = view_new(DS_I64, 1, &n, NULL);
        dsi_view dw[2], y[2];
        view_random(&dy, 1);
        for (int64_t i = 0; i < n; i++) *(int64_t *)view_at(&index, i) = i * i % rows;
        for (int t = 0; t < 2; t++) {
            dw[t] = view_new(DS_F32, 2, (int64_t[]){rows, width}, NULL);
            y[t] = view_new(DS_F32, 2, (int64_t[]){n, width}, NULL);
            CHECK_INT(ds_set_threads(t ? 4 : 1), DS_OK);
            CHECK_INT(k->scatter_rows(NULL, dy, index, -1, dw[t]), DS_OK);
            CHECK_INT(k->gather_rows(NULL, dw[t], index, y[t]), DS_OK);
        }
        CHECK_INT(ds_set_threads(1), DS_OK);
        CHECK(memcmp(dw[0].p, dw[1].p, (size_t)(rows * width) * sizeof(float)) == 0);
        CHECK(memcmp(y[0].p, y[1].p, (size_t)(n * width) * sizeof(float)) == 0);
        for (int t = 0; t < 2; t++) view_free(&dw[t]), view_free(&y[t]);
        view_free(&dy), view_free(&index);
    }
}

TEST_MAIN(cmocka_unit_test(gathers_rows_of_any_dtype),
          cmocka_unit_test(scatters_rows_and_skips_one), cmocka_unit_test(scatters_to_maxima),
          cmocka_unit_test(gathers_short_lines), cmocka_unit_test(gathers_whole_lines),
          cmocka_unit_test(scatters_along_one_line),
          cmocka_unit_test(sums_of_16_bits_are_rounded_once),
          cmocka_unit_test(scatter_takes_the_last), cmocka_unit_test(indices_outside_are_refused),
          cmocka_unit_test(elements_outside_are_refused),
          cmocka_unit_test(results_do_not_depend_on_threads))
