/* tests/optim/group.c: parameter groups: who is in them, and values of their
 * own.
 * SPDX-License-Identifier: MIT */
#include "optim/given.h"

static bool is_bias(void *arg, const char *path, const ds_tensor *p)
{
    (void)arg;
    return !strcmp(path, "b") && ds_ndim(p) == 1;
}

static bool nothing(void *arg, const char *path, const ds_tensor *p)
{
    (void)arg, (void)path, (void)p;
    return false;
}

/* Biases without weight decay, and at a rate of their own. */
static void by_path(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F64);
    ds_optim *o = ds_optim_sgd(m, 0.5, .weight_decay = 0.5);
    CHECK_INT(ds_optim_groups(o), 1);
    CHECK_INT(ds_optim_add_group(o, is_bias, NULL), 1);
    CHECK_INT(ds_optim_groups(o), 2);
    CHECK_INT(ds_optim_group_of(o, "w"), 0);
    CHECK_INT(ds_optim_group_of(o, "b"), 1);
    CHECK_INT(ds_optim_group_of(o, "c"), -1);
    CHECK_CLOSE(ds_optim_group_lr(o, 1), 0.5, 0);
    ds_optim_set_group_lr(o, 1, 0.25);
    CHECK_CLOSE(ds_optim_group_weight_decay(o, 1), 0.5, 0);
    ds_optim_set_group_weight_decay(o, 1, 0);
    given_grad(given_w(m), 1), given_grad(given_b(m), 1);
    CHECK(ds_optim_step(o) == DS_OK);
    CHECK_CLOSE(given_at(given_w(m), 0), 1 - 0.5 * 1.5, 0);
    CHECK_CLOSE(given_at(given_b(m), 0), 0.25, 0);
    CHECK_CLOSE(ds_optim_lr(o), 0.5, 0);
    ds_optim_set_lr(o, 2);
    CHECK_CLOSE(ds_optim_group_lr(o, 0), 2, 0);
    CHECK_CLOSE(ds_optim_group_lr(o, 1), 2, 0);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* A state dict has no groups: one of an optimizer with groups is loaded by one
 * without. */
static void states(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *a = given_new(DS_F32), *b = given_new(DS_F32);
    ds_optim *oa = ds_optim_adam(a, 0.5), *ob = ds_optim_adam(b, 0.5);
    CHECK_INT(ds_optim_add_group_of(oa, (ds_tensor *[]){given_w(a)}, 1), 1);
    given_grad(given_w(a), 1), given_grad(given_b(a), 1);
    given_grad(given_w(b), 1), given_grad(given_b(b), 1);
    CHECK(ds_optim_step(oa) == DS_OK && ds_optim_step(ob) == DS_OK);
    ds_state *s = ds_optim_state(oa);
    CHECK_INT(ds_state_len(s), 6);
    CHECK(ds_optim_load(ob, s) == DS_OK);
    CHECK(ds_optim_step(oa) == DS_OK && ds_optim_step(ob) == DS_OK);
    for (int i = 0; i < 6; i++) CHECK_CLOSE(given_at(given_w(b), i), given_at(given_w(a), i), 0);
    ds_state_free(s);
    ds_optim_free(oa), ds_optim_free(ob);
    ds_module_free(a), ds_module_free(b);
    ds_scope_close(scope);
}

/* Momentum may come later, as a schedule gives it; rules without one say so. */
static void momentum_and_betas(void **state)
{
    (void)state;
    double betas[2], momentum = -1;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F64);
    ds_optim *o = ds_optim_sgd(m, 1);
    CHECK(!ds_optim_group_betas(o, 0, betas) && !ds_optim_set_group_betas(o, 0, betas));
    CHECK(ds_optim_group_momentum(o, 0, &momentum));
    CHECK_CLOSE(momentum, 0, 0);
    given_grad(given_w(m), 1);
    CHECK(ds_optim_step(o) == DS_OK);
    CHECK(ds_optim_set_group_momentum(o, 0, 0.5));
    for (int i = 0; i < 2; i++) CHECK(ds_optim_step(o) == DS_OK);
    CHECK_CLOSE(given_at(given_w(m), 0), 1 - 1 - 1 - 1.5, 0);
    ds_state *s = ds_optim_state(o);
    CHECK(ds_state_get(s, "momentum_buffer.w"));
    CHECK(ds_optim_load(o, s) == DS_OK);
    ds_state_free(s);
    ds_optim_free(o);

    o = ds_optim_adam(m, 1, .beta1 = 0.8);
    CHECK(!ds_optim_group_momentum(o, 0, &momentum) && !ds_optim_set_group_momentum(o, 0, 1));
    CHECK(ds_optim_group_betas(o, 0, betas));
    CHECK_CLOSE(betas[0], 0.8, 0);
    CHECK_CLOSE(betas[1], 0.999, 0);
    betas[0] = 0.25;
    CHECK(ds_optim_set_group_betas(o, 0, betas));
    CHECK(ds_optim_step(o) == DS_OK);
    s = ds_optim_state(o);
    CHECK_CLOSE(given_at(ds_state_get(s, "exp_avg.w"), 0), 0.75, 1e-15);
    ds_state_free(s);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

static void refusals(void **state)
{
    (void)state;
    double x[2];
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32), *other = given_new(DS_F32);
    ds_optim *o = ds_optim_sgd(m, 1);
    ds_tensor *w = given_w(m);
    CHECK_INT(ds_optim_add_group(o, nothing, NULL), -1);
    CHECK_ERROR("sgd: none of group 0 was picked");
    CHECK_INT(ds_optim_add_group_of(o, (ds_tensor *[]){w, given_w(other)}, 2), -1);
    CHECK_ERROR("sgd: element 1 of the list is not a parameter");
    CHECK_INT(ds_optim_add_group_of(o, (ds_tensor *[]){w, w}, 2), -1);
    CHECK_ERROR("sgd: w is in the list twice");
    CHECK_INT(ds_optim_add_group_of(o, &w, 0), -1);
    CHECK_ERROR("sgd: 0 parameters");
    CHECK_INT(ds_optim_groups(o), 1);
    CHECK_INT(ds_optim_add_group_of(o, &w, 1), 1);
    CHECK_INT(ds_optim_add_group_of(o, &w, 1), -1);
    CHECK_ERROR("sgd: w is in group 1 already");
    CHECK_INT(ds_optim_add_group(NULL, nothing, NULL), -1);
    CHECK_ERROR("optim_add_group");
    CHECK_INT(ds_optim_add_group_of(NULL, &w, 1), -1);
    CHECK_ERROR("optim_add_group_of");
    CHECK_CLOSE(ds_optim_group_lr(o, 2), 0, 0);
    ds_optim_set_group_lr(o, -1, 3);
    ds_optim_set_group_weight_decay(o, 7, 3);
    CHECK_CLOSE(ds_optim_group_weight_decay(o, 7), 0, 0);
    CHECK(!ds_optim_group_momentum(o, 2, x) && !ds_optim_group_betas(NULL, 0, x));
    CHECK_INT(ds_optim_groups(NULL), 0);
    ds_optim_free(o);
    ds_module_free(m), ds_module_free(other);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(by_path), cmocka_unit_test(states), cmocka_unit_test(momentum_and_betas),
          cmocka_unit_test(refusals))
