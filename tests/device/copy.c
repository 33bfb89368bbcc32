/* tests/device/copy.c: copies between all dtypes and strides, and fill, against
 * plain loops.
 * SPDX-License-Identifier: MIT */
#include "kernels.h"

#include "base/half.h"

/* One element, whatever its dtype. */
static double as_double(ds_dtype dtype, const void *p)
{
    switch (dtype) {
    case DS_F32:
        return (double)*(const float *)p;
    case DS_F64:
        return *(const double *)p;
    case DS_F16:
        return (double)dsi_f16_to_f32(*(const uint16_t *)p);
    case DS_BF16:
        return (double)dsi_bf16_to_f32(*(const uint16_t *)p);
    case DS_I64:
        return (double)*(const int64_t *)p;
    case DS_I32:
        return *(const int32_t *)p;
    case DS_I16:
        return *(const int16_t *)p;
    case DS_I8:
        return *(const int8_t *)p;
    default:
        return *(const uint8_t *)p;
    }
}

/* v as it is read back after it was stored as dtype; v is in its range, but may
 * have a fraction. */
static double stored_as(ds_dtype dtype, double v)
{
    switch (dtype) {
    case DS_F32:
        return (double)(float)v;
    case DS_F64:
        return v;
    case DS_F16:
        return (double)dsi_f16_to_f32(dsi_f32_to_f16((float)v));
    case DS_BF16:
        return (double)dsi_bf16_to_f32(dsi_f32_to_bf16((float)v));
    case DS_BOOL:
        return v != 0;
    default:
        return trunc(v);
    }
}

/* 0, 0.75, 1.5, ... 94.5, 0, ...: fits in all dtypes */
static double sample(int64_t i) { return (double)(i % 127) * 0.75; }

/* Every pair of dtypes, for a shape whose dimensions lie in `order` in x and
 * row-major in y. */
static void check_pairs(const dsi_kernels *k, int n, const int64_t *d, const int *order)
{
    for (ds_dtype from = 0; from < DS_DTYPES; from++)
        for (ds_dtype to = 0; to < DS_DTYPES; to++) {
            dsi_view wide = view_new(DS_F64, n, d, NULL);
            dsi_view x = view_new(from, n, d, order), y = view_new(to, n, d, NULL);
            for (int64_t i = 0; i < view_count(&wide); i++)
                *(double *)view_at(&wide, i) = sample(i);
            CHECK_INT(k->copy(NULL, wide, x), DS_OK);
            CHECK_INT(k->copy(NULL, x, y), DS_OK);
            for (int64_t i = 0; i < view_count(&y); i++) {
                double want = stored_as(to, stored_as(from, sample(i)));
                double got = as_double(to, view_at(&y, i));
                if (got != want)
                    fail_msg("%s to %s, element %lld: %g, want %g", ds_dtype_name(from),
                             ds_dtype_name(to), (long long)i, got, want);
            }
            view_free(&wide), view_free(&x), view_free(&y);
        }
}

static void converts_every_pair_of_dtypes(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    {
        check_pairs(k, 1, (int64_t[]){1300}, NULL);
        check_pairs(k, 0, NULL, NULL);
        check_pairs(k, 2, (int64_t[]){0, 7}, NULL);
    }
}

static void copies_any_order_of_dimensions(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    {
        check_pairs(k, 2, (int64_t[]){67, 35}, (int[]){1, 0});
        check_pairs(k, 4, (int64_t[]){2, 3, 9, 5}, (int[]){0, 2, 3, 1});
        check_pairs(k, 4, (int64_t[]){2, 17, 6, 7}, (int[]){0, 2, 3, 1});
        check_pairs(k, 4, (int64_t[]){3, 4, 5, 2}, (int[]){3, 1, 0, 2});
        check_pairs(k, 3, (int64_t[]){3, 1, 5}, (int[]){2, 1, 0});
        check_pairs(k, 3, (int64_t[]){5, 6, 37}, (int[]){1, 0, 2}); /* short lines */
    }
}

static void copies_views_with_gaps_and_repeats(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    {
        float x[6] = {0, 1, 2, 3, 4, 5}, y[40];
        for (int i = 0; i < 40; i++) y[i] = -1;
        /* x[::2] repeated along rows, into every second column of y [3][2 of 4] */
        dsi_view from = {x, DS_F32, 3, {2, 3, 2}, {0, 2, 0}};
        dsi_view to = {y, DS_F32, 3, {2, 3, 2}, {12, 4, 2}};
        CHECK_INT(k->copy(NULL, from, to), DS_OK);
        for (int i = 0; i < 24; i++) CHECK_CLOSE(y[i], i % 2 ? -1.0 : (double)(2 * (i / 4 % 3)), 0);
        for (int i = 24; i < 40; i++) CHECK_CLOSE(y[i], -1, 0);
    }
}

static void floats_become_integers_as_on_x86(void **state)
{
    (void)state;
    static const double in[] = {NAN, INFINITY, -INFINITY, -1.9, 300.7, 3e9, -3e9, 1e30, 0.5, -0.0};
    static const int64_t i64[] = {INT64_MIN,  INT64_MIN,   INT64_MIN, -1, 300,
                                  3000000000, -3000000000, INT64_MIN, 0,  0};
    static const int32_t i32[] = {INT32_MIN, INT32_MIN, INT32_MIN, -1, 300,
                                  INT32_MIN, INT32_MIN, INT32_MIN, 0,  0};
    static const uint8_t truth[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 0};
    int64_t n = sizeof in / sizeof *in;
    FOR_EACH_ISA(k)
    {
        for (ds_dtype from = DS_F32; from <= DS_F64; from++) {
            dsi_view wide = {(void *)(uintptr_t)in, DS_F64, 1, {n}, {1}};
            dsi_view x = view_new(from, 1, &n, NULL);
            CHECK_INT(k->copy(NULL, wide, x), DS_OK);
            int64_t a[10];
            int32_t b[10];
            int16_t c[10];
            int8_t d[10];
            uint8_t e[10], f[10];
            CHECK_INT(k->copy(NULL, x, (dsi_view){a, DS_I64, 1, {n}, {1}}), DS_OK);
            CHECK_INT(k->copy(NULL, x, (dsi_view){b, DS_I32, 1, {n}, {1}}), DS_OK);
            CHECK_INT(k->copy(NULL, x, (dsi_view){c, DS_I16, 1, {n}, {1}}), DS_OK);
            CHECK_INT(k->copy(NULL, x, (dsi_view){d, DS_I8, 1, {n}, {1}}), DS_OK);
            CHECK_INT(k->copy(NULL, x, (dsi_view){e, DS_U8, 1, {n}, {1}}), DS_OK);
            CHECK_INT(k->copy(NULL, x, (dsi_view){f, DS_BOOL, 1, {n}, {1}}), DS_OK);
            for (int i = 0; i < n; i++) {
                CHECK_INT(a[i], i64[i]);
                CHECK_INT(b[i], i32[i]);
                CHECK_INT(c[i], (int16_t)i32[i]);
                CHECK_INT(d[i], (int8_t)i32[i]);
                CHECK_INT(e[i], (uint8_t)i64[i]);
                CHECK_INT(f[i], truth[i]);
            }
            view_free(&x);
        }
    }
}

/* every float16 and every bfloat16 pattern is unchanged by conversion to float
 * and back, and halves round to even */
static void sixteen_bit_floats_round_to_nearest_even(void **state)
{
    (void)state;
    enum { N = 65536 };
    uint16_t *h = malloc(N * sizeof *h), *back = malloc(N * sizeof *back);
    float *f = malloc(N * sizeof *f);
    FOR_EACH_ISA(k)
    {
        for (ds_dtype dtype = DS_F16; dtype <= DS_BF16; dtype++) {
            dsi_view vh = {h, dtype, 1, {N}, {1}}, vb = {back, dtype, 1, {N}, {1}};
            dsi_view vf = {f, DS_F32, 1, {N}, {1}};
            for (int i = 0; i < N; i++) h[i] = (uint16_t)i;
            CHECK_INT(k->copy(NULL, vh, vf), DS_OK);
            CHECK_INT(k->copy(NULL, vf, vb), DS_OK);
            for (int i = 0; i < N; i++)
                if (!isnan(f[i])) CHECK_INT(back[i], h[i]);
            /* floats of every exponent, with fractions at, below and above the
             * half */
            for (uint32_t i = 0; i < N; i++) {
                uint32_t bits = i << 16 |
                                ((const uint32_t[]){0x8000, 0x7fff, 0x8001, 0x1000})[i % 4];
                memcpy(&f[i], &bits, sizeof bits);
            }
            CHECK_INT(k->copy(NULL, vf, vb), DS_OK);
            for (int i = 0; i < N; i++)
                if (!isnan(f[i]))
                    CHECK_INT(back[i],
                              dtype == DS_F16 ? dsi_f32_to_f16(f[i]) : dsi_f32_to_bf16(f[i]));
        }
    }
    free(h), free(back), free(f);
}

static void fills_any_dtype_and_strides(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    {
        for (ds_dtype dtype = 0; dtype < DS_DTYPES; dtype++) {
            int64_t d[] = {5, 3, 4};
            dsi_view y = view_new(dtype, 3, d, (int[]){2, 0, 1});
            CHECK_INT(k->fill(NULL, 0, y), DS_OK);
            for (int i = 0; i < 60; i++) CHECK_CLOSE(as_double(dtype, view_at(&y, i)), 0, 0);
            dsi_view part = y; /* every second index of the last dimension */
            part.d[2] = 2, part.s[2] *= 2;
            CHECK_INT(k->fill(NULL, 2.5, part), DS_OK);
            for (int i = 0; i < 60; i++)
                CHECK_CLOSE(as_double(dtype, view_at(&y, i)), i % 2 ? 0 : stored_as(dtype, 2.5), 0);
            view_free(&y);
        }
    }
}

/* large enough to be shared out: one line, and the tiles of a transposed matrix */
static void results_do_not_depend_on_threads(void **state)
{
    (void)state;
    int64_t d[] = {601, 777};
    FOR_EACH_ISA(k)
    for (int turned = 0; turned < 2; turned++) {
        dsi_view x = view_new(DS_F32, 2, d, turned ? (int[]){1, 0} : NULL);
        dsi_view y = view_new(DS_BF16, 2, d, NULL);
        view_random(&x, 1);
        CHECK_INT(ds_set_threads(4), DS_OK);
        CHECK_INT(k->copy(NULL, x, y), DS_OK);
        CHECK_INT(ds_set_threads(1), DS_OK);
        for (int64_t i = 0; i < view_count(&y); i++)
            CHECK_INT(*(uint16_t *)view_at(&y, i), dsi_f32_to_bf16(*(float *)view_at(&x, i)));
        view_free(&x), view_free(&y);
    }
}

TEST_MAIN(cmocka_unit_test(converts_every_pair_of_dtypes),
          cmocka_unit_test(copies_any_order_of_dimensions),
          cmocka_unit_test(copies_views_with_gaps_and_repeats),
          cmocka_unit_test(floats_become_integers_as_on_x86),
          cmocka_unit_test(sixteen_bit_floats_round_to_nearest_even),
          cmocka_unit_test(fills_any_dtype_and_strides),
          cmocka_unit_test(results_do_not_depend_on_threads))
