/* tests/optim/others.c: Adagrad, RMSprop, Adadelta, Lion and LAMB: first steps
 * by hand, and bad options.
 * SPDX-License-Identifier: MIT */
#include "optim/given.h"

/* w[0], which was 1, after one step with gradient `grad` everywhere; takes o
 * and m. */
static double step(ds_optim *o, ds_module *m, double grad)
{
    given_grad(given_w(m), grad);
    CHECK(ds_optim_step(o) == DS_OK);
    double w = given_at(given_w(m), 0);
    ds_optim_free(o);
    ds_module_free(m);
    return w;
}

static void adagrad(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F64);
    CHECK_CLOSE(step(ds_optim_adagrad(m, 0.1), m, 4), 0.9, 1e-9);
    m = given_new(DS_F64);
    CHECK_CLOSE(step(ds_optim_adagrad(m, 0.1, .initial_accumulator_value = 9), m, 4),
                1 - 0.1 * 4 / 5, 1e-9);
    m = given_new(DS_F64);
    CHECK_REFUSED(ds_optim_adagrad(m, -1), "adagrad: lr is -1");
    CHECK_REFUSED(ds_optim_adagrad(m, 1, .lr_decay = -1), "adagrad: lr_decay is -1");
    CHECK_REFUSED(ds_optim_adagrad(m, 1, .weight_decay = -1), "adagrad: weight_decay is -1");
    CHECK_REFUSED(ds_optim_adagrad(m, 1, .initial_accumulator_value = -1),
                  "adagrad: initial_accumulator_value is -1");
    CHECK_REFUSED(ds_optim_adagrad(m, 1, .eps = -1), "adagrad: eps is -1");
    ds_module_free(m);
    ds_scope_close(scope);
}

static void rmsprop(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F64);
    CHECK_CLOSE(step(ds_optim_rmsprop(m, 0.1), m, 4), 1 - 0.1 / sqrt(0.01), 1e-7);
    m = given_new(DS_F64);
    CHECK_CLOSE(step(ds_optim_rmsprop(m, 0.1, .alpha = 0.75, .centered = true), m, 4),
                1 - 0.1 * 4 / sqrt(0.25 * 16 - 1), 1e-7);
    m = given_new(DS_F64);
    CHECK_REFUSED(ds_optim_rmsprop(m, -1), "rmsprop: lr is -1");
    CHECK_REFUSED(ds_optim_rmsprop(m, 1, .eps = -1), "rmsprop: eps is -1");
    CHECK_REFUSED(ds_optim_rmsprop(m, 1, .momentum = -1), "rmsprop: momentum is -1");
    CHECK_REFUSED(ds_optim_rmsprop(m, 1, .weight_decay = -1), "rmsprop: weight_decay is -1");
    CHECK_REFUSED(ds_optim_rmsprop(m, 1, .alpha = -1), "rmsprop: alpha is -1");
    ds_module_free(m);
    ds_scope_close(scope);
}

static void adadelta(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F64);
    CHECK_CLOSE(step(ds_optim_adadelta(m, 0.5), m, 4), 1 - 0.5 * sqrt(1e-6) / sqrt(1.6 + 1e-6) * 4,
                1e-15);
    m = given_new(DS_F64);
    CHECK_CLOSE(step(ds_optim_adadelta(m, 1, .rho = 0.5, .eps = 1, .weight_decay = 2), m, 4),
                1 - 1 / sqrt(18 + 1) * 6, 1e-15);
    m = given_new(DS_F64);
    CHECK_REFUSED(ds_optim_adadelta(m, -1), "adadelta: lr is -1");
    CHECK_REFUSED(ds_optim_adadelta(m, 1, .eps = -1), "adadelta: eps is -1");
    CHECK_REFUSED(ds_optim_adadelta(m, 1, .weight_decay = -1), "adadelta: weight_decay is -1");
    CHECK_REFUSED(ds_optim_adadelta(m, 1, .rho = 1.5), "adadelta: rho is 1.5: expected 0 to 1");
    ds_module_free(m);
    ds_scope_close(scope);
}

static void lion(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F64);
    CHECK_CLOSE(step(ds_optim_lion(m, 0.1), m, -4), 1.1, 1e-15);
    m = given_new(DS_F64);
    CHECK_CLOSE(step(ds_optim_lion(m, 0.1, .weight_decay = 0.5), m, 0), 0.95 - 0.1,
                1e-15); /* sign(0) = 1 */
    m = given_new(DS_F64);
    CHECK_REFUSED(ds_optim_lion(m, -1), "lion: lr is -1");
    CHECK_REFUSED(ds_optim_lion(m, 1, .beta1 = 1.5), "lion: beta1 is 1.5");
    CHECK_REFUSED(ds_optim_lion(m, 1, .beta2 = 1), "lion: beta2 is 1");
    CHECK_REFUSED(ds_optim_lion(m, 1, .weight_decay = -1), "lion: weight_decay is -1");
    ds_module_free(m);
    ds_scope_close(scope);
}

/* The first u is 0.1 g / (sqrt(0.001) |g|) = sqrt(10), and the correction of
 * the rate 1 / sqrt(10). |w| is sqrt(91), |u| sqrt(60). The trust ratio is
 * bounded. */
static void lamb(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F64);
    CHECK_CLOSE(step(ds_optim_lamb(m, 0.1), m, 4), 1 - 0.1 * sqrt(91.0 / 60), 1e-7);
    m = given_new(DS_F64);
    CHECK_CLOSE(step(ds_optim_lamb(m, 0.1, .no_bias_correction = true), m, 4),
                1 - 0.1 * sqrt(91.0 / 6), 1e-7);
    m = given_new(DS_F64);
    CHECK_CLOSE(step(ds_optim_lamb(m, 0.1, .max_coeff = 0.5), m, 4), 1 - 0.1 * 0.5, 1e-7);
    m = given_new(DS_F64);
    CHECK_CLOSE(step(ds_optim_lamb(m, 0.1, .min_coeff = 5), m, 4), 1 - 0.1 * 5, 1e-7);
    m = given_new(DS_F64); /* both eps make u small, and the ratio its bound */
    CHECK_CLOSE(step(ds_optim_lamb(m, 0.1, .eps = 4), m, 4),
                1 - 0.1 / sqrt(10) * 10 * 0.4 / (0.4 / sqrt(10) + 4), 1e-7);
    m = given_new(DS_F64);
    CHECK_CLOSE(step(ds_optim_lamb(m, 0.1, .eps = 4, .eps_inside_sqrt = true), m, 4),
                1 - 0.1 / sqrt(10) * 10 * 0.4 / sqrt(0.016 + 4), 1e-7);
    m = given_new(DS_F64);
    CHECK_CLOSE(step(ds_optim_lamb(m, 0.1), m, 0), 1, 0); /* u is 0: the ratio is 1 */
    m = given_new(DS_F64);
    CHECK_REFUSED(ds_optim_lamb(m, -1), "lamb: lr is -1");
    CHECK_REFUSED(ds_optim_lamb(m, 1, .beta1 = 1), "lamb: beta1 is 1");
    CHECK_REFUSED(ds_optim_lamb(m, 1, .beta2 = 1), "lamb: beta2 is 1");
    CHECK_REFUSED(ds_optim_lamb(m, 1, .eps = -1), "lamb: eps is -1");
    CHECK_REFUSED(ds_optim_lamb(m, 1, .weight_decay = -1), "lamb: weight_decay is -1");
    CHECK_REFUSED(ds_optim_lamb(m, 1, .min_coeff = -1), "lamb: min_coeff is -1");
    CHECK_REFUSED(ds_optim_lamb(m, 1, .min_coeff = 20),
                  "lamb: min_coeff is 20, which is more than max_coeff 10");
    ds_module_free(m);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(adagrad), cmocka_unit_test(rmsprop), cmocka_unit_test(adadelta),
          cmocka_unit_test(lion), cmocka_unit_test(lamb))
