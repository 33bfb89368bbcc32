/* tests/ops/spread.c: std and var of numbers whose squares float32 does not
 * hold, beside float64: as PyTorch, std has them, and var is infinite or 0.
 * Those of equal numbers are 0. Dimensions that are the last, or not; on a GPU
 * too (gpu/on/ops/spread).
 * SPDX-License-Identifier: MIT */
#include "check.h"

enum { COUNT = 5003 }; /* more than a block of one sum */

static ds_tensor *numbers(double scale)
{
    double x[COUNT];
    for (int i = 0; i < COUNT; i++) x[i] = (double)((float)(i * 37 % 101 - 50) / 32) * scale;
    return ds_from_data(DS_F64, ds_shape(1, COUNT), x);
}

/* Element i of x as a double. */
static double at(ds_tensor *x, int i) { return ds_item(ds_select(ds_detach(x), 1, i)); }

/* The same numbers in other shapes, and the dimensions that are reduced. */
static const struct {
    ds_dims shape, dims;
} layouts[] = {{{2, {1, COUNT}}, {1, {1}}},
               {{2, {COUNT, 1}}, {1, {0}}},
               {{3, {1, COUNT, 1}}, {2, {1, 0}}},
               {{2, {1, COUNT}}, {0}}};

/* x and y are those of `dtype` and of float64. */
static void std_compare(int layout, double scale, double mean, ds_dtype dtype, double tol)
{
    ds_scope *s = ds_scope_open();
    ds_tensor *x[2], *y[2];
    for (int i = 0; i < 2; i++) {
        ds_tensor *rounded = ds_cast(ds_shift(numbers(scale), mean), dtype);
        rounded = ds_reshape(rounded, layouts[layout].shape);
        x[i] = ds_require_grad(i ? ds_cast(rounded, DS_F64) : rounded, true);
        y[i] = ds_std_with(x[i], (ds_var_opts){.dims = layouts[layout].dims});
        CHECK_INT(ds_backward(ds_sum(y[i])), DS_OK);
    }
    CHECK_CLOSE(ds_item(y[0]) / ds_item(y[1]), 1, tol);
    for (int i = 0; i < 2; i++) x[i] = ds_reshape(ds_grad(x[i]), ds_shape(1, COUNT));
    for (int i = 0; i < COUNT; i += 331)
        CHECK_CLOSE(at(x[0], i) * sqrt(COUNT), at(x[1], i) * sqrt(COUNT), tol * 10);
    ds_scope_close(s);
}

static void std_is_finite(void **state)
{
    (void)state;
    const double scales[] = {1, 0x1p60, 0x1p100, 0x1p-70, 0x1p-100};
    for (int l = 0; l < (int)(sizeof layouts / sizeof *layouts); l++)
        for (int k = 0; k < 5; k++)
            for (ds_dtype dtype = DS_F32; dtype <= DS_BF16; dtype += DS_BF16 - DS_F32)
                std_compare(l, scales[k], 0, dtype, dtype == DS_F32 ? 1e-6 : 8e-3);
}

static void var_is_rounded(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    CHECK_CLOSE(ds_item(ds_var(ds_cast(numbers(0x1p100), DS_F32))), INFINITY, 0);
    CHECK_CLOSE(ds_item(ds_var(ds_cast(numbers(0x1p-100), DS_F32))), 0, 0);
    double large = ds_item(ds_var(ds_cast(numbers(0x1p60), DS_F32))),
           want = ds_item(ds_var(numbers(0x1p60)));
    CHECK_CLOSE(large / want, 1, 1e-6); /* the sum alone is above float32 */
    ds_scope_close(s);
}

static void zeros_have_no_gradient(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = ds_require_grad(ds_full(DS_F32, ds_shape(2, 8), 3), true);
    ds_tensor *y = ds_std_with(x, (ds_var_opts){.dims = ds_shape(1)});
    CHECK_INT(ds_backward(ds_sum(y)), DS_OK);
    CHECK_CLOSE(ds_item(ds_sum(ds_abs(ds_grad(x)))), 0, 0);
    ds_scope_close(s);
}

/* Of any dtype, size and layout, by the kernel and by other ops. */
static void equal_numbers_have_none(void **state)
{
    (void)state;
    static const double numbers[] = {-1e6, 0.1, 1e30, 1e-39, 0, 12345.678, -0x1.fffffep60};
    static const ds_dtype dtypes[] = {DS_F64, DS_F32, DS_F16, DS_BF16};
    static const int64_t sizes[] = {1, 3, 64, 1000, 4097, 250007};
    for (int i = 0; i < 7 * 4 * 6 * 2; i++) {
        ds_scope *s = ds_scope_open();
        double number = numbers[i % 7];
        ds_dtype dtype = dtypes[i / 7 % 4];
        int64_t n = sizes[i / 28 % 6];
        bool columns = i / 168;
        if (dtype == DS_F16) number = fmod(number, 60000);
        ds_dims shape = columns ? ds_shape(n, 3) : ds_shape(2, n);
        ds_tensor *x = ds_full(dtype, shape, number);
        ds_var_opts o = {.dims = ds_shape(columns ? 0 : 1), .correction = DS_ZERO};
        ds_tensor *worst = ds_amax(ds_abs(ds_std_with(x, o)));
        if (!(ds_item(worst) == 0))
            fail_msg("std of %lld times %g, dtype %d, columns %d: %g", (long long)n, number, dtype,
                     columns, ds_item(worst));
        ds_scope_close(s);
    }
}

/* The mean, rounded to float32, is up to 1/32 away. */
static void a_large_mean(void **state)
{
    (void)state;
    for (int l = 0; l < (int)(sizeof layouts / sizeof *layouts); l++)
        std_compare(l, 1, 1e6, DS_F32, 1e-6);
}

/* Columns and blocks of many, each beside its own in float64. */
static void many_at_once(void **state)
{
    (void)state;
    const ds_dims shapes[] = {ds_shape(70, 37), ds_shape(5, 70, 37), ds_shape(70, 6, 7)};
    const ds_dims dims[] = {ds_shape(0), ds_shape(1), ds_shape(0, 2)};
    const double scales[] = {1, 1e30, 1e-30}, means[] = {1e6, 0, 0};
    for (int k = 0; k < 9; k++) {
        ds_scope *s = ds_scope_open();
        ds_tensor *x = ds_shift(ds_scale(ds_randn(DS_F64, shapes[k / 3]), scales[k % 3]),
                                means[k % 3]);
        x = ds_cast(x, DS_F32);
        ds_var_opts o = {.dims = dims[k / 3]};
        ds_tensor *got = ds_cast(ds_std_with(x, o), DS_F64),
                  *want = ds_std_with(ds_cast(x, DS_F64), o);
        CHECK_CLOSE(ds_item(ds_amax(ds_abs(ds_shift(ds_div(got, want), -1)))), 0, 1e-6);
        ds_scope_close(s);
    }
}

TEST_MAIN(cmocka_unit_test(std_is_finite), cmocka_unit_test(var_is_rounded),
          cmocka_unit_test(zeros_have_no_gradient), cmocka_unit_test(a_large_mean),
          cmocka_unit_test(many_at_once), cmocka_unit_test(equal_numbers_have_none))
