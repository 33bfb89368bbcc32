/* tests/optim/clip.c: gradient norms and clipping; the values of PyTorch are in
 * tests/reference/optim.c.
 * SPDX-License-Identifier: MIT */
#include "optim/given.h"

static void norms(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    CHECK_CLOSE(ds_grad_norm(m), 0, 0); /* no gradients */
    CHECK_CLOSE(ds_item(ds_clip_grad_norm(m, 1, 2)), 0, 0);
    given_grad(given_w(m), -3); /* 6 elements */
    CHECK_CLOSE(ds_grad_norm(m), 3 * sqrt(6), 1e-6);
    given_grad(given_b(m), 5); /* 2 elements */
    CHECK_CLOSE(ds_grad_norm(m), sqrt(54 + 50), 1e-6);
    CHECK_CLOSE(ds_item(ds_clip_grad_norm(m, 1e6, 1)), 28, 1e-5);
    CHECK_CLOSE(ds_item(ds_clip_grad_norm(m, 1e6, INFINITY)), 5, 0);
    CHECK_CLOSE(given_at(ds_grad(given_b(m)), 0), 5, 0); /* below max_norm: as they were */
    CHECK_CLOSE(ds_item(ds_clip_grad_norm(m, 2.5, INFINITY)), 5, 0);
    CHECK_CLOSE(given_at(ds_grad(given_b(m)), 1), 2.5, 1e-6);
    CHECK_CLOSE(given_at(ds_grad(given_w(m)), 5), -1.5, 1e-6);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* Asking for an infinite norm does not touch the gradients; clipping by it
 * makes them 0, or NaN. */
static void not_finite(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    given_grad(given_w(m), INFINITY), given_grad(given_b(m), 1);
    CHECK(isinf(ds_grad_norm(m)));
    CHECK_CLOSE(given_at(ds_grad(given_b(m)), 0), 1, 0);
    CHECK(isinf(ds_item(ds_clip_grad_norm(m, 1, 2))));
    CHECK_CLOSE(given_at(ds_grad(given_b(m)), 0), 0, 0);
    CHECK(isnan(given_at(ds_grad(given_w(m)), 0)));
    ds_module_free(m);
    ds_scope_close(scope);
}

/* In each dtype; parameters without a gradient get none. */
static void by_value(void **state)
{
    (void)state;
    for (ds_dtype dtype = DS_F32; dtype <= DS_BF16; dtype++) {
        ds_scope *scope = ds_scope_open();
        ds_module *m = given_new(dtype);
        given_grad(given_w(m), -3);
        CHECK_INT(ds_clip_grad_value(m, 0.5), DS_OK);
        CHECK_CLOSE(given_at(ds_grad(given_w(m)), 0), -0.5, 0);
        CHECK(!ds_grad(given_b(m)));
        given_grad(given_b(m), INFINITY);
        CHECK_INT(ds_clip_grad_value(m, 0.25), DS_OK);
        CHECK_CLOSE(given_at(ds_grad(given_b(m)), 0), 0.25, 0);
        CHECK_CLOSE(given_at(ds_grad(given_w(m)), 1), -0.25, 0);
        given_grad(given_b(m), NAN);
        CHECK_INT(ds_clip_grad_value(m, 0), DS_OK);
        CHECK(isnan(given_at(ds_grad(given_b(m)), 0)));
        CHECK_CLOSE(given_at(ds_grad(given_w(m)), 1), 0, 0);
        ds_module_free(m);
        ds_scope_close(scope);
    }
}

static void refusals(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    CHECK(!ds_clip_grad_norm(m, 1, 3));
    CHECK_ERROR("clip_grad_norm: norm_type is 3: expected 1, 2 or INFINITY");
    CHECK(!ds_clip_grad_norm(m, -1, 2));
    CHECK_ERROR("clip_grad_norm: max_norm is -1");
    CHECK(!ds_clip_grad_norm(NULL, 1, 2));
    CHECK_ERROR("clip_grad_norm");
    CHECK(ds_clip_grad_value(m, -1) == DS_EINVAL);
    CHECK_ERROR("clip_grad_value: clip_value is -1: expected 0 or more");
    CHECK(ds_clip_grad_value(NULL, 1) == DS_EINVAL);
    CHECK_ERROR("clip_grad_value");
    CHECK(isnan(ds_grad_norm(NULL)));
    CHECK_ERROR("grad_norm");
    ds_module_free(m);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(norms), cmocka_unit_test(not_finite), cmocka_unit_test(by_value),
          cmocka_unit_test(refusals))
