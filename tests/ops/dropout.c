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

TEST_MAIN(cmocka_unit_test(chance), cmocka_unit_test(itself), cmocka_unit_test(repeatable))
