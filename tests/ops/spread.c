/* tests/ops/spread.c: std and var of numbers whose squares float32 does not
 * hold, beside float64: as PyTorch, std has them, and var is infinite or 0.
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

static void std_is_finite(void **state)
{
    (void)state;
    const double scales[] = {1, 0x1p60, 0x1p100, 0x1p-70, 0x1p-100};
    for (int k = 0; k < 5; k++)
        for (ds_dtype dtype = DS_F32; dtype <= DS_BF16; dtype += DS_BF16 - DS_F32) {
            ds_scope *s = ds_scope_open();
            ds_tensor *x[2], *y[2];
            for (int i = 0; i < 2; i++) {
                ds_tensor *rounded = ds_cast(numbers(scales[k]), dtype);
                x[i] = ds_require_grad(i ? ds_cast(rounded, DS_F64) : rounded, true);
                y[i] = ds_std_with(x[i], (ds_var_opts){.dims = ds_shape(1)});
                CHECK_INT(ds_backward(ds_sum(y[i])), DS_OK);
            }
            double tol = dtype == DS_F32 ? 1e-6 : 8e-3;
            CHECK_CLOSE(ds_item(y[0]) / ds_item(y[1]), 1, tol);
            for (int i = 0; i < COUNT; i += 331)
                CHECK_CLOSE(at(ds_grad(x[0]), i) / at(ds_grad(x[1]), i), 1, tol);
            ds_scope_close(s);
        }
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

/* The mean, rounded to float32, is up to 1/32 away. */
static void a_large_mean(void **state)
{
    (void)state;
    for (int dim = 0; dim < 2; dim++) {
        ds_scope *s = ds_scope_open();
        ds_tensor *rounded = ds_cast(ds_shift(numbers(1), 1e6), DS_F32), *x[2], *y[2];
        if (dim == 0) rounded = ds_reshape(rounded, ds_shape(COUNT, 1));
        for (int i = 0; i < 2; i++) {
            x[i] = ds_require_grad(
                i ? ds_cast(ds_detach(rounded), DS_F64) : ds_clone(ds_detach(rounded)), true);
            y[i] = ds_std_with(x[i], (ds_var_opts){.dims = ds_shape(dim)});
            CHECK_INT(ds_backward(ds_sum(y[i])), DS_OK);
        }
        CHECK_CLOSE(ds_item(y[0]) / ds_item(y[1]), 1, 1e-6);
        double apart = ds_item(
            ds_amax(ds_abs(ds_sub(ds_cast(ds_grad(x[0]), DS_F64), ds_grad(x[1])))));
        CHECK_CLOSE(apart * sqrt(COUNT), 0, 1e-5);
        ds_scope_close(s);
    }
}

TEST_MAIN(cmocka_unit_test(std_is_finite), cmocka_unit_test(var_is_rounded),
          cmocka_unit_test(zeros_have_no_gradient), cmocka_unit_test(a_large_mean))
