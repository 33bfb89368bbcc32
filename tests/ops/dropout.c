/* tests/ops/dropout.c: what dropout promises of chance.
 * SPDX-License-Identifier: MIT */
#include "check.h"

#define N 100000

static int64_t zeros(ds_tensor *x)
{
    const float *p = ds_data(x);
    int64_t n = 0;
    for (int64_t i = 0; i < ds_numel(x); i++) n += p[i] == 0;
    return n;
}

static void chance(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_seed(3);
    ds_tensor *x = ds_ones(DS_F32, ds_shape(N)), *y = ds_dropout(x, 0.3, true);
    CHECK_CLOSE((double)zeros(y), 0.3 * N, 5 * sqrt(0.21 * N));
    const float *p = ds_data(y);
    for (int i = 0; i < N; i++) CHECK_CLOSE(p[i] == 0 ? 1 / 0.7 : p[i], 1 / 0.7, 1e-6);
    CHECK_INT(zeros(ds_dropout(x, 1, true)), N);
    ds_scope_close(scope);
}

static void itself(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_ones(DS_F32, ds_shape(9));
    CHECK(ds_dropout(x, 0.5, false) == x);
    CHECK(ds_dropout(x, 0, true) == x);
    ds_scope_close(scope);
}

/* Mean 0 and variance 1 stay, and what is dropped has one value. */
static void alpha(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_seed(4);
    ds_tensor *x = ds_randn(DS_F32, ds_shape(N)), *y = ds_alpha_dropout(x, 0.3, true);
    CHECK_CLOSE(ds_item(ds_mean(y)), 0, 0.02);
    CHECK_CLOSE(ds_item(ds_var(y)), 1, 0.03);
    double a = 1 / sqrt(0.7 * (1 + 0.3 * 1.7580993408473766 * 1.7580993408473766));
    float dropped = (float)(-1.7580993408473766 * a * 0.7); /* a low - a low p */
    const float *p = ds_data(y), *from = ds_data(x);
    int64_t n = 0;
    for (int i = 0; i < N; i++) {
        bool kept = fabs(p[i] - (a * from[i] + 0.3 * 1.7580993408473766 * a)) < 1e-5;
        if (!kept) CHECK_CLOSE(p[i], dropped, 1e-5);
        n += !kept;
    }
    CHECK_CLOSE((double)n, 0.3 * N, 5 * sqrt(0.21 * N));
    CHECK(ds_alpha_dropout(x, 0.3, false) == x);
    ds_tensor *planes = ds_feature_alpha_dropout(ds_ones(DS_F32, ds_shape(20, 10, 3)), 0.5, true);
    CHECK(ds_item(ds_sum(ds_var_with(planes, (ds_var_opts){.dims = ds_shape(2)}))) == 0);
    CHECK(ds_item(ds_var(planes)) > 0.1);
    ds_scope_close(scope);
}

/* The seed repeats the mask, whatever the order of memory; backward uses the
 * same one. */
static void repeatable(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_require_grad(ds_ones(DS_F32, ds_shape(30, 40)), true);
    ds_seed(5);
    ds_tensor *y = ds_dropout(x, 0.4, true);
    ds_seed(5);
    ds_tensor *t = ds_transpose(ds_contiguous(ds_transpose(ds_detach(x), 0, 1)), 0, 1);
    ds_tensor *z = ds_dropout(t, 0.4, true);
    CHECK(!memcmp(ds_data(y), ds_data(z), 1200 * sizeof(float)));
    CHECK_INT(ds_backward(ds_sum(y)), DS_OK);
    CHECK(!memcmp(ds_data(y), ds_data(ds_grad(x)), 1200 * sizeof(float)));
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(chance), cmocka_unit_test(itself), cmocka_unit_test(alpha),
          cmocka_unit_test(repeatable))
