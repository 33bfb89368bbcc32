/* tests/optim/sgd.c: SGD's rule by hand, and options that torch.optim.SGD
 * refuses too.
 * SPDX-License-Identifier: MIT */
#include "optim/given.h"

static double after(ds_sgd_opts opts, int steps)
{
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F64);
    ds_optim *o = ds_optim_sgd_with(m, opts);
    for (int i = 0; i < steps; i++) {
        given_grad(given_w(m), i + 1);
        CHECK(ds_optim_step(o) == DS_OK);
    }
    double w = given_at(given_w(m), 0); /* was 1 */
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
    return w;
}

static void rules(void **state)
{
    (void)state;
    CHECK_CLOSE(after((ds_sgd_opts){.lr = 0.1}, 2), 1 - 0.1 - 0.2, 1e-15);
    CHECK_CLOSE(after((ds_sgd_opts){.lr = 0.1, .maximize = true}, 1), 1.1, 1e-15);
    CHECK_CLOSE(after((ds_sgd_opts){.lr = 0.1, .weight_decay = 0.5}, 1), 1 - 0.1 * 1.5, 1e-15);
    CHECK_CLOSE(after((ds_sgd_opts){.lr = 0.1, .momentum = 0.5}, 2), 0.9 - 0.1 * 2.5, 1e-15);
    CHECK_CLOSE(after((ds_sgd_opts){.lr = 0.1, .momentum = 0.5, .dampening = 0.25}, 2),
                0.9 - 0.1 * (0.5 + 0.75 * 2), 1e-15); /* the first step is not dampened */
    CHECK_CLOSE(after((ds_sgd_opts){.lr = 0.1, .momentum = 0.5, .nesterov = true}, 2),
                1 - 0.1 * 1.5 - 0.1 * (2 + 0.5 * 2.5), 1e-15);
}

static void options(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    CHECK_REFUSED(ds_optim_sgd(m, -0.1), "sgd: lr is -0.1: expected 0 or more");
    CHECK_REFUSED(ds_optim_sgd(m, NAN), "sgd: lr is");
    CHECK_REFUSED(ds_optim_sgd(m, 0.1, .momentum = -1), "sgd: momentum is -1");
    CHECK_REFUSED(ds_optim_sgd(m, 0.1, .weight_decay = -1), "sgd: weight_decay is -1");
    CHECK_REFUSED(ds_optim_sgd(m, 0.1, .nesterov = true), "sgd: nesterov needs a momentum");
    CHECK_REFUSED(ds_optim_sgd(m, 0.1, .momentum = 0.9, .dampening = 0.1, .nesterov = true),
                  "sgd: nesterov needs a momentum and no dampening, but they are 0.9 and 0.1");
    ds_optim *o = ds_optim_sgd(m, 0); /* a learning rate of 0 is one */
    CHECK(o);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* Rounded to nearest, 0.9 times the smallest denormal is itself: a momentum
 * would never end. */
static void a_momentum_without_gradients_ends(void **state)
{
    (void)state;
#ifdef __SSE__
    ds_scope *scope = ds_scope_open();
    ds_module *m = ds_module_new(NULL, "m", &(ds_module_type){.name = "M"});
    ds_tensor *p = ds_module_param(m, "p", ds_ones(DS_F32, ds_shape(100)));
    ds_optim *o = ds_optim_sgd(m, 0.1, .momentum = 0.9);
    ds_set_grad_of(p, ds_like(p, 1));
    ds_optim_step(o);
    ds_set_grad_of(p, ds_like(p, 0));
    for (int i = 0; i < 1200; i++) ds_optim_step(o);
    ds_state *d = ds_optim_state(o);
    const float *momentum = ds_data(ds_state_get(d, "momentum_buffer.p"));
    CHECK(momentum && momentum[0] == 0 && momentum[99] == 0);
    volatile float tiny = 1e-38f; /* and the caller's arithmetic keeps its denormals */
    CHECK(tiny / 8 > 0);
    ds_state_free(d);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
#endif
}

TEST_MAIN(cmocka_unit_test(rules), cmocka_unit_test(options),
          cmocka_unit_test(a_momentum_without_gradients_ends))
