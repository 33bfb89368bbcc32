/* tests/optim/adam.c: Adam's and AdamW's first steps by hand, 16-bit
 * parameters, options that torch.optim refuses too.
 * SPDX-License-Identifier: MIT */
#include "optim/given.h"

static double after(bool decoupled, ds_dtype dtype, ds_adam_opts opts, int steps)
{
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(dtype);
    ds_optim *o = decoupled ? ds_optim_adamw_with(m, opts) : ds_optim_adam_with(m, opts);
    for (int i = 0; i < steps; i++) {
        given_grad(given_w(m), 4);
        CHECK(ds_optim_step(o) == DS_OK);
    }
    double w = given_at(given_w(m), 2); /* was 3 */
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
    return w;
}

static void rules(void **state)
{
    (void)state;
    /* a constant gradient: m^ / sqrt(v^) is 1, whatever the betas */
    CHECK_CLOSE(after(false, DS_F64, (ds_adam_opts){.lr = 0.1}, 3), 2.7, 1e-8);
    CHECK_CLOSE(after(false, DS_F64, (ds_adam_opts){.lr = 0.1, .maximize = true}, 3), 3.3, 1e-8);
    CHECK_CLOSE(after(false, DS_F64, (ds_adam_opts){.lr = 0.1, .weight_decay = 2}, 1), 2.9, 1e-8);
    CHECK_CLOSE(after(true, DS_F64, (ds_adam_opts){.lr = 0.1, .weight_decay = 2}, 1), 3 * 0.8 - 0.1,
                1e-8);
    CHECK_CLOSE(after(false, DS_F64, (ds_adam_opts){.lr = 0.1, .eps = 4}, 1), 3 - 0.05, 1e-12);
    /* without correction: m = 0.1 g, v = 0.001 g^2 */
    CHECK_CLOSE(after(false, DS_F64, (ds_adam_opts){.lr = 0.1, .no_bias_correction = true}, 1),
                3 - 0.1 * 0.1 / sqrt(0.001), 1e-7);
}

static void sixteen_bits(void **state)
{
    (void)state;
    CHECK_CLOSE(after(false, DS_BF16, (ds_adam_opts){.lr = 0.25}, 2), 2.5, 0);
    CHECK_CLOSE(after(true, DS_F16, (ds_adam_opts){.lr = 0.25}, 2), 2.5, 0);
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_BF16);
    ds_optim *o = ds_optim_adam(m, 0.25);
    given_grad(given_w(m), 4);
    CHECK(ds_optim_step(o) == DS_OK);
    ds_state *s = ds_optim_state(o);
    CHECK(ds_dtype_of(ds_state_get(s, "exp_avg.w")) == DS_F32);
    ds_state_free(s);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

static void options(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    CHECK_REFUSED(ds_optim_adam(m, -1), "adam: lr is -1");
    CHECK_REFUSED(ds_optim_adamw(m, -1), "adamw: lr is -1");
    CHECK_REFUSED(ds_optim_adam(m, 0.1, .beta1 = 1),
                  "adam: beta1 is 1: expected 0 or more, and less than 1");
    CHECK_REFUSED(ds_optim_adam(m, 0.1, .beta2 = -0.5), "adam: beta2 is -0.5");
    CHECK_REFUSED(ds_optim_adam(m, 0.1, .eps = -1), "adam: eps is -1");
    CHECK_REFUSED(ds_optim_adamw(m, 0.1, .weight_decay = -1), "adamw: weight_decay is -1");
    ds_module_free(m);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(rules), cmocka_unit_test(sixteen_bits), cmocka_unit_test(options))
