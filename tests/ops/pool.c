/* tests/ops/pool.c: max-pooling of a ReLU that waits for it (Note [Deferred
 * ops]).
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "tensor/tensor.h"

static const ds_dims planes = {4, {2, 3, 6, 6}};

/* x as an op's result, whose address was not given out */
static ds_tensor *fresh(ds_tensor *x) { return ds_scale(x, 1); }

static bool equal(ds_tensor *a, ds_tensor *b)
{
    return a && b && dsi_same_shape(a->shape, b->shape) &&
           !memcmp(ds_data(a), ds_data(b), (size_t)ds_numel(a) * sizeof(float));
}

/* The ReLU that nothing waits for. */
static ds_tensor *at_once(ds_tensor *x)
{
    ds_tensor *y = ds_relu(ds_clone(x));
    CHECK(dsi_acquire(y) && !dsi_deferred_relu(y));
    return y;
}

static void pooling_does_it(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = ds_randn(DS_F32, planes), *want = at_once(x);
    ds_tensor *y = ds_relu(fresh(x));
    CHECK(dsi_deferred_relu(y));
    CHECK(equal(ds_max_pool2d(y, 2), ds_max_pool2d(want, 2)));
    CHECK(equal(ds_max_pool2d(y, 3, .stride = 1, .padding = 1),
                ds_max_pool2d(want, 3, .stride = 1, .padding = 1)));
    CHECK(dsi_deferred_relu(y)); /* it is still unread */
    ds_tensor *places, *want_places;
    ds_max_pool2d(y, 2, .indices = &places);
    ds_max_pool2d(want, 2, .indices = &want_places);
    CHECK(!dsi_deferred_relu(y) && equal(y, want));
    CHECK(!memcmp(ds_data(places), ds_data(want_places), 54 * sizeof(int64_t)));
    ds_scope_close(s);
}

static void a_nan_stays(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = ds_full(DS_F32, planes, -1);
    set_element(x, 7, NAN);
    const float *y = ds_data(ds_max_pool2d(ds_relu(fresh(x)), 2));
    CHECK(isnan(y[0]) && y[1] == 0);
    ds_scope_close(s);
}

static void other_readers_find_it(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = ds_randn(DS_F32, planes), *want = at_once(x);
    CHECK(equal(ds_relu(fresh(x)), want));
    CHECK(equal(ds_flatten(ds_relu(fresh(x)), 1), ds_flatten(want, 1)));
    CHECK(equal(ds_contiguous(ds_permute(ds_relu(fresh(x)), ds_shape(0, 2, 3, 1))),
                ds_contiguous(ds_permute(want, ds_shape(0, 2, 3, 1)))));
    CHECK(equal(ds_max_pool2d(ds_slice(ds_relu(fresh(x)), 2, 2, 6), 2),
                ds_max_pool2d(ds_slice(want, 2, 2, 6), 2)));
    CHECK(equal(ds_relu(ds_relu(fresh(x))), want));
    ds_tensor *view = ds_detach(ds_relu(fresh(x))); /* does not hold x's graph */
    CHECK(!dsi_deferred_relu(view) && equal(view, want));
    ds_scope_close(s);
}

static void the_source_may_change_later(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = ds_randn(DS_F32, planes), *want = at_once(x);
    ds_tensor *a = fresh(x), *b = fresh(x), *ya = ds_relu(a), *yb = ds_relu(b), *yc = ds_relu(b);
    CHECK(dsi_deferred_relu(ya) && dsi_deferred_relu(yb) &&
          !dsi_deferred_relu(yc)); /* one reader */
    CHECK_INT(ds_copy(a, ds_zeros(DS_F32, planes)), DS_OK);
    bool host = ds_device_of(b).kind == DS_CPU; /* its address can be had */
    if (host) memset(ds_data_mut(b), 0, (size_t)ds_numel(b) * sizeof(float));
    CHECK(equal(ya, want) && equal(yb, want) && equal(yc, want));
    CHECK(!host || !dsi_deferred_relu(ds_relu(b)));
    ds_tensor *leaf = ds_require_grad(fresh(x), true);
    CHECK(!dsi_deferred_relu(ds_relu(leaf)));
    ds_scope_close(s);
}

static void it_outlives_its_source(void **state)
{
    (void)state;
    int64_t before = ds_live_tensors();
    ds_scope *s = ds_scope_open();
    ds_tensor *x = ds_randn(DS_F32, planes), *want = at_once(x);
    ds_scope *inner = ds_scope_open();
    ds_tensor *y = ds_keep(ds_relu(fresh(x)));
    ds_keep(ds_relu(fresh(x))); /* never read */
    ds_scope_close(inner);
    CHECK(equal(y, want));
    ds_drop(y);
    ds_scope_close(s);
    CHECK_INT(ds_live_tensors() - before, 2); /* the kept one, and its source */
}

static ds_tensor *gradient(bool defer, int kernel, int stride)
{
    ds_tensor *leaf = ds_require_grad(ds_arange(DS_F32, -108, 108, 1), true);
    ds_tensor *x = ds_reshape(ds_scale(leaf, 0.01), planes);
    x = ds_mul(x, ds_sub(x, ds_like(x, 0.5))); /* both signs in a window */
    ds_tensor *y = ds_relu(x);
    if (!defer) ds_data(y);
    CHECK(!dsi_deferred_relu(y) == !defer);
    CHECK_INT(ds_backward(ds_sum(ds_max_pool2d(y, kernel, .stride = stride))), DS_OK);
    return ds_grad(leaf);
}

static void gradients_are_the_same(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    CHECK(equal(gradient(true, 2, 2), gradient(false, 2, 2)));
    CHECK(equal(gradient(true, 3, 1), gradient(false, 3, 1)));
    ds_scope_close(s);
}

TEST_MAIN(cmocka_unit_test(pooling_does_it), cmocka_unit_test(a_nan_stays),
          cmocka_unit_test(other_readers_find_it), cmocka_unit_test(the_source_may_change_later),
          cmocka_unit_test(it_outlives_its_source), cmocka_unit_test(gradients_are_the_same))
