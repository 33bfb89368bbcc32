/* tests/optim/optim.c: what all optimizers share: which parameters a step
 * changes, step counts, learning rate, state dicts, steps that cannot be done.
 * SPDX-License-Identifier: MIT */
#include "optim/given.h"

#include "device/device.h"

static void only_parameters_with_a_gradient(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    ds_optim *o = ds_optim_sgd(m, 0.5);
    CHECK(ds_optim_step(o) == DS_OK); /* none has one */
    given_grad(given_w(m), 2);
    CHECK(ds_optim_step(o) == DS_OK);
    CHECK_CLOSE(given_at(given_w(m), 0), 0, 0);
    CHECK_CLOSE(given_at(given_b(m), 0), 0.5, 0);
    ds_optim_zero_grad(o);
    CHECK(!ds_grad(given_w(m)));
    CHECK(ds_optim_step(o) == DS_OK);
    CHECK_CLOSE(given_at(given_w(m), 0), 0, 0);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* Each parameter counts its own updates: Adam's first one is lr whatever the
 * gradient. */
static void steps_are_counted_by_parameter(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F64);
    ds_optim *o = ds_optim_adam(m, 0.1);
    given_grad(given_w(m), 7);
    for (int i = 0; i < 3; i++) CHECK(ds_optim_step(o) == DS_OK);
    given_grad(given_b(m), -1e-3);
    CHECK(ds_optim_step(o) == DS_OK);
    CHECK_CLOSE(given_at(given_b(m), 0), 0.6, 1e-5);
    ds_state *s = ds_optim_state(o);
    CHECK_CLOSE(ds_item(ds_state_get(s, "step.w")), 4, 0);
    CHECK_CLOSE(ds_item(ds_state_get(s, "step.b")), 1, 0);
    ds_state_free(s);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

static void learning_rate(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    ds_optim *o = ds_optim_sgd(m, 0.5);
    CHECK_CLOSE(ds_optim_lr(o), 0.5, 0);
    ds_optim_set_lr(o, 2);
    CHECK_CLOSE(ds_optim_lr(o), 2, 0);
    given_grad(given_w(m), 1);
    CHECK(ds_optim_step(o) == DS_OK);
    CHECK_CLOSE(given_at(given_w(m), 0), -1, 0);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* A gradient that is transposed in memory is read in the parameter's order. */
static void gradients_of_any_strides(void **state)
{
    (void)state;
    const float g[] = {1, 4, 2, 5, 3, 6}; /* [3,2] */
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    ds_optim *o = ds_optim_sgd(m, 1);
    ds_set_grad_of(given_w(m), ds_transpose(ds_from_data(DS_F32, ds_shape(3, 2), g), 0, 1));
    CHECK(ds_optim_step(o) == DS_OK);
    const double want[] = {0, -4, 0, -8, 0, -12};
    for (int i = 0; i < 6; i++) CHECK_CLOSE(given_at(given_w(m), i), want[i], 0);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

static ds_optim *new_rmsprop(ds_module *m)
{
    return ds_optim_rmsprop(m, 0.01, .momentum = 0.9, .centered = true);
}

/* Saved after 2 steps and loaded into another optimizer, the third step is the
 * same bit for bit. */
static void state_goes_over(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *a = given_new(DS_F32), *b = given_new(DS_F32);
    ds_optim *oa = new_rmsprop(a), *ob = new_rmsprop(b);
    for (int i = 0; i < 2; i++) {
        given_grad(given_w(a), i + 1);
        CHECK(ds_optim_step(oa) == DS_OK);
    }
    ds_state *values = ds_module_state(a), *s = ds_optim_state(oa);
    CHECK_INT(ds_state_len(s), 4); /* b was never updated */
    CHECK(ds_state_get(s, "square_avg.w") && ds_state_get(s, "grad_avg.w"));
    CHECK(ds_state_get(s, "momentum_buffer.w") && ds_state_get(s, "step.w"));
    CHECK(ds_module_load(b, values) == DS_OK);
    CHECK(ds_optim_load(ob, s) == DS_OK);
    given_grad(given_w(a), -3), given_grad(given_w(b), -3);
    given_grad(given_b(a), 1), given_grad(given_b(b), 1);
    CHECK(ds_optim_step(oa) == DS_OK && ds_optim_step(ob) == DS_OK);
    for (int i = 0; i < 6; i++) CHECK_CLOSE(given_at(given_w(b), i), given_at(given_w(a), i), 0);
    for (int i = 0; i < 2; i++) CHECK_CLOSE(given_at(given_b(b), i), given_at(given_b(a), i), 0);
    ds_state_free(values), ds_state_free(s);
    ds_optim_free(oa), ds_optim_free(ob);
    ds_module_free(a), ds_module_free(b);
    ds_scope_close(scope);
}

static void refuse_state(ds_optim *o, const char *name, ds_tensor *x, const char *part)
{
    ds_state *s = ds_optim_state(o);
    ds_state_set(s, name, x);
    CHECK(ds_optim_load(o, s) == DS_EINVAL);
    CHECK_ERROR(part);
    ds_state_free(s);
}

static void states_that_do_not_fit(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    ds_optim *o = ds_optim_adam(m, 0.1);
    given_grad(given_w(m), 1);
    CHECK(ds_optim_step(o) == DS_OK);
    double before = given_at(given_w(m), 0);
    refuse_state(o, "exp_avg.v", ds_ones(DS_F32, ds_shape(2)), "adam has no exp_avg.v");
    refuse_state(o, "momentum.w", ds_ones(DS_F32, ds_shape(2)), "adam has no momentum.w");
    refuse_state(o, "nodots", ds_ones(DS_F32, ds_shape(2)), "adam has no nodots");
    refuse_state(o, "exp_avg.w", ds_ones(DS_F32, ds_shape(3, 2)),
                 "exp_avg.w is [3, 2]: expected [2, 3]");
    refuse_state(o, "step.w", ds_full(DS_F32, (ds_dims){0}, -1), "step.w is -1");
    refuse_state(o, "exp_avg.b", ds_ones(DS_F32, ds_shape(2)), "no exp_avg_sq.b, step.b");
    ds_state *s = ds_optim_state(o); /* still what one step left */
    CHECK_CLOSE(ds_item(ds_state_get(s, "step.w")), 1, 0);
    CHECK_CLOSE(given_at(ds_state_get(s, "exp_avg.w"), 5), 0.1, 1e-7);
    CHECK_CLOSE(given_at(given_w(m), 0), before, 0);
    ds_state_free(s);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

static void steps_that_cannot_be(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    ds_optim *o = ds_optim_adam(m, 0.1);
    ds_set_grad_of(given_w(m), ds_ones(DS_F64, ds_shape(2, 3)));
    CHECK(ds_optim_step(o) == DS_EINVAL);
    CHECK_ERROR("adam: the gradient of w is float64, but the parameter float32");

    /* no memory for one of four moments: no value has changed, and the step can
     * be done again. The i-th try comes i - 1 moments further. */
    given_grad(given_w(m), 1), given_grad(given_b(m), 1);
    for (int i = 1; i <= 3; i++) {
        dsi_cache_fail(i, true);
        CHECK(ds_optim_step(o) == DS_ENOMEM);
        dsi_cache_fail(0, false);
        CHECK_ERROR("no memory");
        CHECK_CLOSE(given_at(given_w(m), 0), 1, 0);
    }
    CHECK(ds_optim_step(o) == DS_OK);
    CHECK_CLOSE(given_at(given_w(m), 0), 0.9, 1e-6);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

static void models_that_cannot_be(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *empty = ds_nn_relu(NULL, "act");
    CHECK_REFUSED(ds_optim_sgd(empty, 0.1), "sgd: the module act has no parameters");
    CHECK_REFUSED(ds_optim_sgd(NULL, 0.1), "sgd");
    ds_module_free(empty);
    CHECK(ds_optim_step(NULL) == DS_EINVAL);
    CHECK_ERROR("optim_step");
    CHECK(!ds_optim_state(NULL));
    CHECK_ERROR("optim_state");
    CHECK(ds_optim_load(NULL, NULL) == DS_EINVAL);
    CHECK_ERROR("optim_load");
    ds_optim_zero_grad(NULL);
    ds_optim_set_lr(NULL, 1);
    CHECK_CLOSE(ds_optim_lr(NULL), 0, 0);
    ds_optim_free(NULL);
    ds_scope_close(scope);
}

/* The optimizer holds its parameters: the model may go first. */
static void model_goes_first(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    int64_t live = ds_live_tensors();
    ds_scope *inner = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    ds_optim *o = ds_optim_sgd(m, 0.5, .momentum = 0.9);
    given_grad(given_w(m), 2);
    ds_module_free(m);
    CHECK(ds_optim_step(o) == DS_OK);
    ds_optim_free(o);
    ds_scope_close(inner);
    CHECK_INT(ds_live_tensors(), live);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(only_parameters_with_a_gradient),
          cmocka_unit_test(steps_are_counted_by_parameter), cmocka_unit_test(learning_rate),
          cmocka_unit_test(gradients_of_any_strides), cmocka_unit_test(state_goes_over),
          cmocka_unit_test(states_that_do_not_fit), cmocka_unit_test(steps_that_cannot_be),
          cmocka_unit_test(models_that_cannot_be), cmocka_unit_test(model_goes_first))
