/* tests/optim/variants.c: Adamax, NAdam, RAdam after eight steps, beside
 * PyTorch's values in float64, whose NAdam keeps a factor in float32.
 * SPDX-License-Identifier: MIT */
#include "optim/given.h"

/* w[0], which was 1; takes o and m. */
static double eight_steps(ds_optim *o, ds_module *m)
{
    const double g[] = {4, -1, 0.5, 0, 2, 2, 2, -3};
    CHECK(o != NULL);
    for (int t = 0; t < 8; t++) {
        given_grad(given_w(m), g[t]);
        CHECK(ds_optim_step(o) == DS_OK);
    }
    double w = given_at(given_w(m), 0);
    ds_optim_free(o);
    ds_module_free(m);
    return w;
}

static void as_torch(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F64);
    CHECK_CLOSE(eight_steps(ds_optim_adamax(m, 0.1), m), 0.712203275223966, 1e-8);
    m = given_new(DS_F64);
    CHECK_CLOSE(eight_steps(ds_optim_adamax(m, 0.1, .beta1 = 0.8, .beta2 = 0.9, .eps = 0.01,
                                            .weight_decay = 0.5, .maximize = true),
                            m),
                1.236154825409134, 1e-8);
    m = given_new(DS_F64);
    CHECK_CLOSE(eight_steps(ds_optim_nadam(m, 0.1), m), 0.7570189742679296, 1e-14);
    m = given_new(DS_F64);
    CHECK_CLOSE(eight_steps(ds_optim_nadam(m, 0.1, .beta1 = 0.8, .beta2 = 0.9, .eps = 0.01,
                                           .weight_decay = 0.5, .momentum_decay = 0.1),
                            m),
                0.6370711411926903, 1e-14);
    m = given_new(DS_F64);
    CHECK_CLOSE(eight_steps(ds_optim_nadam(m, 0.1, .weight_decay = 0.5, .decoupled = true), m),
                0.47151613436289647, 1e-14);
    m = given_new(DS_F64);
    CHECK_CLOSE(eight_steps(ds_optim_radam(m, 0.1), m), 0.1741029632951674, 1e-8);
    m = given_new(DS_F64);
    CHECK_CLOSE(eight_steps(ds_optim_radam(m, 0.1, .beta1 = 0.8, .beta2 = 0.9, .eps = 0.01,
                                           .weight_decay = 0.5),
                            m),
                0.008702168642717896, 1e-8);
    m = given_new(DS_F64);
    CHECK_CLOSE(
        eight_steps(
            ds_optim_radam(m, 0.1, .weight_decay = 0.5, .decoupled = true, .maximize = true), m),
        1.279664887851237, 1e-8);
    ds_scope_close(scope);
}

/* 16-bit parameters; NAdam's product for parameters that are not at the same
 * step. */
static void odd_cases(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_BF16);
    CHECK_CLOSE(eight_steps(ds_optim_nadam(m, 0.1), m), 0.757, 0.02);
    m = given_new(DS_F64);
    ds_optim *o = ds_optim_nadam(m, 0.1);
    given_grad(given_b(m), 1);
    for (int t = 0; t < 3; t++) CHECK(ds_optim_step(o) == DS_OK);
    CHECK_CLOSE(eight_steps(o, m), 0.7570189742679296, 1e-14);
    ds_scope_close(scope);
}

static void options(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    CHECK_REFUSED(ds_optim_adamax(m, -1), "adamax: lr is -1");
    CHECK_REFUSED(ds_optim_adamax(m, 1, .decoupled = true), "adamax: its weight decay");
    CHECK_REFUSED(ds_optim_nadam(m, 1, .momentum_decay = -1), "nadam: momentum_decay is -1");
    CHECK_REFUSED(ds_optim_nadam(m, 1, .beta1 = 1), "nadam: beta1 is 1");
    CHECK_REFUSED(ds_optim_radam(m, 1, .eps = -1), "radam: eps is -1");
    CHECK_REFUSED(ds_optim_radam(m, 1, .weight_decay = -1), "radam: weight_decay is -1");
    CHECK_REFUSED(ds_optim_radam(m, 1, .beta2 = 1), "radam: beta2 is 1");
    ds_module_free(m);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(as_torch), cmocka_unit_test(odd_cases), cmocka_unit_test(options))
