/* tests/optim/master.c: parameters that are updated in place of the model's:
 * float32 masters of 16-bit ones, parts of them, scaled gradients.
 * SPDX-License-Identifier: MIT */
#include "optim/given.h"

#include "optim/optim.h"

/* bfloat16 parameters follow float32 masters, which feel what bfloat16 would
 * not. */
static void masters(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_BF16);
    ds_optim *o = ds_optim_sgd(m, 1.0 / 1024);
    ds_tensor *w = given_w(m), *p = ds_clone(ds_cast(w, DS_F32));
    CHECK_INT(dsi_optim_params(o), 2);
    CHECK(dsi_optim_set_param(o, 0, p, w) == DS_OK);
    CHECK(dsi_optim_set_param(o, 1, NULL, NULL) == DS_OK);
    given_grad(given_b(m), 1);
    for (int i = 0; i < 4; i++) {
        CHECK(ds_set_grad_of(p, ds_full(DS_BF16, ds_shape(2, 3), -8)) == DS_OK);
        CHECK(dsi_optim_step_scaled(o, 0.125) == DS_OK);
        ds_optim_zero_grad(o);
        CHECK(!ds_grad(p));
    }
    /* half way to the next: to even, and the master leaves it (base/half.h) */
    CHECK_CLOSE(given_at(p, 0), 1 + 4.0 / 1024 - 0x1p-23, 0);
    CHECK_CLOSE(given_at(w, 0), 1, 0);
    CHECK_CLOSE(given_at(given_b(m), 0), 0.5, 0);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* A rank's part: moments have its shape, in the state dict too. */
static void parts(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    ds_optim *o = ds_optim_adam(m, 0.1);
    given_grad(given_w(m), 1);
    CHECK(ds_optim_step(o) == DS_OK); /* forgotten with what it changed */
    ds_tensor *p = ds_ones(DS_F32, ds_shape(4)), *low = ds_zeros(DS_F16, ds_shape(2, 2));
    CHECK(dsi_optim_set_param(o, 0, p, low) == DS_OK);
    CHECK(ds_set_grad_of(p, ds_ones(DS_F16, ds_shape(4))) == DS_OK);
    CHECK(ds_optim_step(o) == DS_OK);
    CHECK_CLOSE(given_at(p, 3), 0.9, 1e-6);
    CHECK_CLOSE(given_at(low, 3), 0.9, 1e-3);
    ds_state *s = ds_optim_state(o);
    CHECK_CLOSE(ds_item(ds_state_get(s, "step.w")), 1, 0);
    CHECK_INT(ds_numel(ds_state_get(s, "exp_avg.w")), 4);
    CHECK(ds_optim_load(o, s) == DS_OK);
    CHECK(dsi_optim_set_param(o, 0, NULL, NULL) == DS_OK);
    CHECK(ds_optim_load(o, s) == DS_EINVAL);
    CHECK_ERROR("no part of w is updated here");
    ds_state_free(s);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

static void refusals(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    ds_optim *o = ds_optim_lamb(m, 0.1);
    ds_tensor *p = ds_ones(DS_F32, ds_shape(6));
    CHECK(dsi_optim_needs_whole(o));
    CHECK(dsi_optim_set_param(NULL, 0, p, NULL) == DS_EINVAL);
    CHECK_ERROR("optim_set_param");
    CHECK(dsi_optim_set_param(o, 2, p, NULL) == DS_EINVAL);
    CHECK_ERROR("lamb: there is no parameter 2 of 2");
    CHECK(dsi_optim_set_param(o, 0, ds_ones(DS_I32, ds_shape(6)), NULL) == DS_EINVAL);
    CHECK_ERROR("lamb: w is int32: expected a floating dtype");
    ds_tensor *copies[] = {ds_ones(DS_F32, ds_shape(6)), ds_ones(DS_F16, ds_shape(5)),
                           ds_transpose(ds_ones(DS_F16, ds_shape(2, 3)), 0, 1)};
    for (int i = 0; i < 3; i++) {
        CHECK(dsi_optim_set_param(o, 0, p, copies[i]) == DS_EINVAL);
        CHECK_ERROR("lamb: the copy of w");
    }
    ds_optim_free(o);
    o = ds_optim_adam(m, 0.1);
    CHECK(!dsi_optim_needs_whole(o));
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(masters), cmocka_unit_test(parts), cmocka_unit_test(refusals))
