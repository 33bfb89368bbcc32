/* tests/ops/norm.c: running statistics of batch norm.
 * SPDX-License-Identifier: MIT */
#include "check.h"

static const float batch[] = {1, 10, 2, 20,
                              3, 30, 6, 60}; /* [4,2]: means 3, 30; variances 14/3, 1400/3 */

static void check_running(ds_dtype dtype, double tol)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_cast(ds_from_data(DS_F32, ds_shape(4, 2), batch), dtype);
    ds_tensor *mean = ds_ones(dtype, ds_shape(2)), *var = ds_ones(dtype, ds_shape(2));
    ds_batch_norm_opts o = {
        .running_mean = mean, .running_var = var, .training = true, .momentum = 0.5};
    ds_tensor *y = ds_batch_norm_with(x, o);
    CHECK(y && ds_dtype_of(y) == dtype);
    for (int c = 0; c < 2; c++) {
        double scale = c ? 10 : 1;
        double m = ds_item(ds_select(mean, 0, c)), v = ds_item(ds_select(var, 0, c));
        CHECK_CLOSE(m, 0.5 + 0.5 * 3 * scale, tol * m);
        CHECK_CLOSE(v, 0.5 + 0.5 * 14. / 3 * scale * scale, tol * v);
    }
    o.training = false; /* nothing changes, and the statistics are those that were */
    double before = ds_item(ds_select(mean, 0, 0));
    double first = ds_item(ds_select(ds_select(ds_batch_norm_with(x, o), 0, 0), 0, 0));
    CHECK_CLOSE(ds_item(ds_select(mean, 0, 0)), before, 0);
    CHECK_CLOSE(first, (1 - 2) / sqrt(0.5 + 7. / 3 + 1e-5), 10 * tol);
    ds_scope_close(scope);
}

static void running_statistics(void **state)
{
    (void)state;
    check_running(DS_F32, 1e-6);
    check_running(DS_F64, 1e-12);
    check_running(DS_BF16, 0.01);
}

/* 16-bit activations beside float32 statistics, as mixed precision has them. */
static void mixed(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_cast(ds_from_data(DS_F32, ds_shape(4, 2), batch), DS_BF16);
    ds_tensor *mean = ds_zeros(DS_F32, ds_shape(2)), *var = ds_ones(DS_F32, ds_shape(2));
    ds_batch_norm_opts o = {
        .running_mean = mean, .running_var = var, .training = true, .momentum = 1};
    CHECK(ds_batch_norm_with(x, o));
    CHECK_CLOSE(ds_item(ds_select(mean, 0, 1)), 30, 1e-5);
    CHECK_CLOSE(ds_item(ds_select(var, 0, 1)), 1400. / 3, 1e-3);
    ds_scope_close(scope);
}

/* The gradient is another view of x's own elements. */
static void gradient_is_a_view_of_x(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_seed(1);
    ds_tensor *x = ds_randn(DS_F32, ds_shape(4, 2, 4)), *dx[2];
    for (int i = 0; i < 2; i++) {
        ds_tensor *leaf = ds_require_grad(ds_detach(x), true), *dy = ds_transpose(x, 0, 2);
        ds_tensor *y = ds_batch_norm_with(leaf, (ds_batch_norm_opts){.training = true});
        CHECK_INT(ds_backward_from(y, i ? ds_contiguous(dy) : dy), DS_OK);
        dx[i] = ds_grad(leaf);
    }
    for (int i = 0; i < 32; i++)
        CHECK_CLOSE(((const float *)ds_data(dx[0]))[i], ((const float *)ds_data(dx[1]))[i], 1e-6);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(running_statistics), cmocka_unit_test(mixed),
          cmocka_unit_test(gradient_is_a_view_of_x))
