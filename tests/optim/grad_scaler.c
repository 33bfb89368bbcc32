/* tests/optim/grad_scaler.c: loss scaling beside torch.amp.GradScaler: scales,
 * skipped steps, two optimizers, state dicts, refusals.
 * SPDX-License-Identifier: MIT */
#include "optim/given.h"

#include <string.h>

/* A module with b alone, or w alone. */
static ds_module *one_of(ds_module *m, int i)
{
    static const ds_module_type type = {.name = "One"};
    ds_module *one = ds_module_new(NULL, "one", &type);
    ds_module_param(one, i ? "b" : "w", ds_module_param_at(m, i, NULL));
    return one;
}

/* Two optimizers, of w [2,3] and of b [2]; gradients, and what PyTorch 2.15's
 * GradScaler("cpu", 8, 3, 0.25, 3) has after update: scale, w[0,0], b[0]. */
static const struct {
    double w, b, scale, new_w, new_b;
} steps[] = {
    {1, 2, 8, 0.899999976, 0.300000012},        {INFINITY, 1, 2, 0.899999976, 0.200000018},
    {1, 1, 2, 0.709999979, 0.100000016},        {0.5, NAN, 0.5, 0.488999963, 0.100000016},
    {1, -1, 0.5, 0.19009997, 0.200000018},      {2, 1, 0.5, -0.278910011, 0.100000016},
    {1, 1, 1.5, -0.801019013, 1.49011612e-08},  {1, 3, 1.5, -1.37091708, -0.299999982},
    {1, 0, 1.5, -1.98382533, -0.299999982},     {-INFINITY, NAN, 0.375, -1.98382533, -0.299999982},
    {0.25, 1, 0.375, -2.56044269, -0.399999976}};

static void scales(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32), *w = one_of(m, 0), *b = one_of(m, 1);
    ds_optim *of_w = ds_optim_sgd(w, 0.1, .momentum = 0.9), *of_b = ds_optim_sgd(b, 0.1);
    ds_grad_scaler *s = ds_grad_scaler_new(8, .growth_factor = 3, .backoff_factor = 0.25,
                                           .growth_interval = 3);
    ds_tensor *pw = ds_module_param_at(w, 0, NULL), *pb = ds_module_param_at(b, 0, NULL);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        given_grad(pw, steps[i].w * ds_grad_scaler_get_scale(s));
        given_grad(pb, steps[i].b * ds_grad_scaler_get_scale(s));
        if (i % 2) {
            CHECK_INT(ds_grad_scaler_unscale(s, of_w), DS_OK);
            CHECK_CLOSE(given_at(ds_grad(pw), 5), steps[i].w, 0);
        }
        CHECK_INT(ds_grad_scaler_step(s, of_w), DS_OK);
        CHECK_INT(ds_grad_scaler_step(s, of_b), DS_OK);
        CHECK_INT(ds_grad_scaler_update(s), DS_OK);
        CHECK_CLOSE(ds_grad_scaler_get_scale(s), steps[i].scale, 0);
        CHECK_CLOSE(given_at(pw, 0), steps[i].new_w, 1e-6);
        CHECK_CLOSE(given_at(pb, 0), steps[i].new_b, 1e-6);
    }
    ds_value *v = ds_grad_scaler_state_dict(s);
    int64_t good = 0;
    CHECK_INT(ds_value_read_int(v, "_growth_tracker", &good), DS_OK);
    CHECK_INT(good, 1);
    ds_value_free(v);
    ds_grad_scaler_free(s);
    ds_optim_free(of_w), ds_optim_free(of_b);
    ds_module_free(w), ds_module_free(b), ds_module_free(m);
    ds_scope_close(scope);
}

/* The gradient of w is 2^-26, which is 0 in float16: it is there with the scale
 * alone. */
static ds_tensor *small_loss(ds_module *m)
{
    ds_dtype was = ds_set_autocast(DS_F16);
    ds_tensor *x = ds_like(given_w(m), 0x1p-13);
    ds_tensor *y = ds_sum(ds_matmul(x, ds_transpose(given_w(m), 0, 1)));
    ds_set_autocast(was);
    return ds_scale(y, 0x1p-14);
}

static void trains(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    ds_optim *o = ds_optim_sgd(m, 0x1p20);
    CHECK_INT(ds_backward(small_loss(m)), DS_OK);
    CHECK_CLOSE(given_at(ds_grad(given_w(m)), 0), 0, 0);
    ds_optim_zero_grad(o);
    ds_grad_scaler *s = ds_grad_scaler_new(0, .growth_interval = 1);
    CHECK_CLOSE(ds_grad_scaler_get_scale(s), 65536, 0);
    CHECK_INT(ds_backward(ds_grad_scaler_scale(s, small_loss(m))), DS_OK);
    CHECK_INT(ds_grad_scaler_step(s, o), DS_OK);
    CHECK_CLOSE(given_at(ds_grad(given_w(m)), 0), 0x1p-26, 0);
    CHECK_CLOSE(given_at(given_w(m), 0), 1 - 0x1p-6, 0);
    CHECK_INT(ds_grad_scaler_update(s), DS_OK);
    CHECK_CLOSE(ds_grad_scaler_get_scale(s), 131072, 0);
    ds_tensor *y = ds_grad_scaler_scale(s, ds_cast(ds_scalar(DS_F32, 2), DS_F16));
    CHECK_INT(ds_dtype_of(y), DS_F32); /* 2^18 is no float16 */
    CHECK_CLOSE(ds_item(y), 262144, 0);
    ds_grad_scaler_free(s);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* The scale stays a float32 above 0. */
static void limits(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    ds_optim *o = ds_optim_sgd(m, 0.1);
    ds_grad_scaler *s = ds_grad_scaler_new(0x1p127, .growth_interval = 1);
    for (int i = 0; i < 2; i++) {
        given_grad(given_w(m), i ? NAN : 1);
        CHECK_INT(ds_grad_scaler_step(s, o), DS_OK);
        CHECK_INT(ds_grad_scaler_update(s), DS_OK);
        CHECK_CLOSE(ds_grad_scaler_get_scale(s), i ? 0x1p-149 : 0x1p127, 0);
        CHECK_INT(ds_grad_scaler_set_scale(s, 0x1p-149), DS_OK);
    }
    ds_grad_scaler_free(s);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

static void state_dicts(void **state)
{
    (void)state;
    ds_grad_scaler *s = ds_grad_scaler_new(64, .growth_factor = 4, .growth_interval = 7);
    ds_grad_scaler *t = ds_grad_scaler_new(0), *off = ds_grad_scaler_new(0, .disabled = true);
    ds_value *v = ds_grad_scaler_state_dict(s), *empty = ds_grad_scaler_state_dict(off);
    CHECK_INT(ds_value_len(empty), 0);
    CHECK_INT(ds_grad_scaler_load_state_dict(t, v), DS_OK);
    CHECK_CLOSE(ds_grad_scaler_get_scale(t), 64, 0);
    CHECK_INT(ds_grad_scaler_load_state_dict(off, v), DS_OK);
    CHECK_CLOSE(ds_grad_scaler_get_scale(off), 1, 0);
    CHECK_INT(ds_grad_scaler_load_state_dict(t, empty), DS_EINVAL);
    CHECK_ERROR("grad_scaler_load_state_dict: the state dict is empty");
    ds_value_set(v, "growth_factor", ds_value_float(1));
    CHECK_INT(ds_grad_scaler_load_state_dict(t, v), DS_EINVAL);
    CHECK_ERROR("grad_scaler_load_state_dict: growth_factor is 1: expected more than 1");
    ds_value_set(v, "growth_factor", ds_value_float(2));
    ds_value_set(v, "scale", ds_value_float(INFINITY));
    CHECK_INT(ds_grad_scaler_load_state_dict(t, v), DS_EINVAL);
    CHECK_ERROR("grad_scaler_load_state_dict: the scale is inf: expected a float32 above 0");
    ds_value_set(v, "scale", ds_value_float(1));
    ds_value_set(v, "_growth_tracker", ds_value_int(-1));
    CHECK_INT(ds_grad_scaler_load_state_dict(t, v), DS_EINVAL);
    CHECK_ERROR("_growth_tracker is -1: expected 0 or more");
    CHECK_CLOSE(ds_grad_scaler_get_scale(t), 64, 0);
    ds_value_free(v), ds_value_free(empty);
    ds_grad_scaler_free(s), ds_grad_scaler_free(t), ds_grad_scaler_free(off);
}

static void disabled(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    ds_optim *o = ds_optim_sgd(m, 0.5);
    ds_grad_scaler *s = ds_grad_scaler_new(0, .disabled = true);
    ds_tensor *x = ds_scalar(DS_F32, 3);
    CHECK(ds_grad_scaler_scale(s, x) == x);
    given_grad(given_w(m), 1);
    CHECK_INT(ds_grad_scaler_unscale(s, o), DS_OK);
    CHECK_INT(ds_grad_scaler_step(s, o), DS_OK);
    CHECK_INT(ds_grad_scaler_update(s), DS_OK);
    CHECK_INT(ds_grad_scaler_set_scale(s, 2), DS_OK);
    CHECK_CLOSE(given_at(given_w(m), 0), 0.5, 0);
    ds_grad_scaler_free(s);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

static void refused_options(void **state)
{
    (void)state;
    CHECK_REFUSED(ds_grad_scaler_new(DS_ZERO), "grad_scaler_new: init_scale is 0: expected more");
    CHECK_REFUSED(ds_grad_scaler_new(1e40), "the scale is 1e+40: expected a float32 above 0");
    CHECK_REFUSED(ds_grad_scaler_new(0, .growth_factor = 1), "growth_factor is 1: expected more");
    CHECK_REFUSED(ds_grad_scaler_new(0, .backoff_factor = 1), "backoff_factor is 1: expected more");
    CHECK_REFUSED(ds_grad_scaler_new(0, .growth_interval = -1), "growth_interval is -1: expected");
    CHECK_INT(ds_grad_scaler_update(NULL), DS_EINVAL);
    CHECK_ERROR("grad_scaler_update");
    CHECK(!ds_grad_scaler_scale(NULL, ds_scalar(DS_F32, 1)));
    CHECK_ERROR("grad_scaler_scale");
}

static void refused_calls(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    ds_optim *o = ds_optim_sgd(m, 0.5);
    ds_grad_scaler *s = ds_grad_scaler_new(0);
    CHECK_INT(ds_grad_scaler_update(s), DS_ESTATE);
    CHECK_ERROR("grad_scaler_update: there was no ds_grad_scaler_step since the last one");
    CHECK_INT(ds_grad_scaler_step(s, o), DS_ESTATE);
    CHECK_ERROR("grad_scaler_unscale: no parameter of sgd has a gradient: call ds_backward");
    given_grad(given_w(m), 1);
    CHECK_INT(ds_grad_scaler_unscale(s, o), DS_OK);
    CHECK_INT(ds_grad_scaler_unscale(s, o), DS_ESTATE);
    CHECK_ERROR("sgd was unscaled already since the last ds_grad_scaler_update");
    CHECK_INT(ds_grad_scaler_step(s, o), DS_OK);
    CHECK_INT(ds_grad_scaler_step(s, o), DS_ESTATE);
    CHECK_ERROR("grad_scaler_step: sgd has stepped since the last ds_grad_scaler_update");
    CHECK_INT(ds_grad_scaler_unscale(s, o), DS_ESTATE);
    CHECK_ERROR("grad_scaler_unscale: sgd has stepped since the last ds_grad_scaler_update");
    CHECK_INT(ds_grad_scaler_set_scale(s, NAN), DS_EINVAL);
    CHECK_ERROR("grad_scaler_set_scale: the scale is nan: expected a float32 above 0");
    ds_grad_scaler_free(s);
    ds_optim_free(o);
    ds_module_free(m);
    m = given_new(DS_F16);
    o = ds_optim_sgd(m, 0.5);
    s = ds_grad_scaler_new(0);
    given_grad(given_w(m), 1);
    CHECK_INT(ds_grad_scaler_step(s, o), DS_EINVAL);
    CHECK_ERROR("the gradient of w is float16: expected weights in float32 (ds_set_autocast)");
    CHECK_CLOSE(given_at(given_w(m), 0), 1, 0);
    ds_grad_scaler_free(s);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(scales), cmocka_unit_test(trains), cmocka_unit_test(limits),
          cmocka_unit_test(state_dicts), cmocka_unit_test(disabled),
          cmocka_unit_test(refused_options), cmocka_unit_test(refused_calls))
