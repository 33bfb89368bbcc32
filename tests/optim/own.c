/* tests/optim/own.c: custom optimizers, made of ds_optim_type, and put on
 * masters.
 * SPDX-License-Identifier: MIT */
#include "optim/given.h"

#include "optim/optim.h"

/* Heavy ball, element by element: m = momentum m + g; p -= lr m; refuses
 * gradients whose sum is above `limit`. */
typedef struct Ball {
    double limit;
    int *freed;
} Ball;

static ds_status ball_step(void *self, const ds_optim_values *v, const ds_optim_update *x)
{
    Ball *b = self;
    ds_tensor *m = ds_add_scaled(x->grad, x->moment[0], v->momentum);
    if (b->limit != 0 && ds_item(ds_sum(x->grad)) > b->limit)
        return ds_fail(DS_EINVAL, "ball: the gradient of %s is too large", x->path);
    ds_status status = ds_copy(x->moment[0], m);
    if (status != DS_OK) return status;
    return ds_copy(x->p, ds_add_scaled(x->p, m, -v->lr));
}

static void ball_free(void *self)
{
    Ball *b = self;
    if (b->freed) ++*b->freed;
}

static const ds_optim_type ball = {.name = "ball",
                                   .self_size = sizeof(Ball),
                                   .moment = {"speed"},
                                   .step = ball_step,
                                   .free = ball_free,
                                   .has_momentum = true};

/* It is SGD's rule: the same values, per group, and through a state dict. */
static void as_built_in(void **state)
{
    (void)state;
    int freed = 0;
    ds_scope *scope = ds_scope_open();
    ds_module *a = given_new(DS_F64), *b = given_new(DS_F64);
    ds_optim *oa = ds_optim_new(a, &ball, (ds_optim_values){.lr = 0.25, .momentum = 0.5});
    ds_optim *ob = ds_optim_sgd(b, 0.25, .momentum = 0.5);
    ((Ball *)ds_optim_self(oa))->freed = &freed;
    CHECK(!strcmp(ds_optim_name(oa), "ball"));
    for (int i = 0; i < 3; i++) {
        given_grad(given_w(a), i + 1), given_grad(given_w(b), i + 1);
        CHECK(ds_optim_step(oa) == DS_OK && ds_optim_step(ob) == DS_OK);
        for (int k = 0; k < 6; k++)
            CHECK_CLOSE(given_at(given_w(a), k), given_at(given_w(b), k), 0);
    }
    ds_state *s = ds_optim_state(oa);
    CHECK_CLOSE(ds_item(ds_state_get(s, "step.w")), 3, 0);
    CHECK_CLOSE(given_at(ds_state_get(s, "speed.w"), 0), 3 + 0.5 * (2 + 0.5), 0);
    CHECK(ds_optim_load(oa, s) == DS_OK);
    ds_state_free(s);
    CHECK(ds_requires_grad(given_w(a)));
    ds_optim_free(oa), ds_optim_free(ob);
    CHECK_INT(freed, 1);
    ds_module_free(a), ds_module_free(b);
    ds_scope_close(scope);
}

/* Of 16-bit gradients, scales and copies it sees nothing. */
static void on_masters(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F16);
    ds_optim *o = ds_optim_new(m, &ball, (ds_optim_values){.lr = 1, .momentum = 0.5});
    ds_tensor *part = ds_ones(DS_F32, ds_shape(4)), *low = ds_zeros(DS_F16, ds_shape(2, 2));
    CHECK(dsi_optim_set_param(o, 0, part, low) == DS_OK);
    ds_tensor *g = ds_full(DS_F16, ds_shape(4), 8);
    ds_set_grad_of(part, g);
    CHECK(dsi_optim_step_scaled(o, 1.0 / 64) == DS_OK);
    CHECK_CLOSE(given_at(part, 3), 1 - 0.125, 0);
    CHECK_CLOSE(given_at(low, 3), 1 - 0.125, 0);
    CHECK_CLOSE(given_at(g, 3), 8, 0);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* A step that a parameter refuses leaves its count, and those after it. */
static void failing_step(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    ds_optim *o = ds_optim_new(m, &ball, (ds_optim_values){.lr = 1});
    ((Ball *)ds_optim_self(o))->limit = 100;
    given_grad(given_w(m), 1), given_grad(given_b(m), 1000);
    CHECK(ds_optim_step(o) == DS_EINVAL);
    CHECK_ERROR("ball: the gradient of b is too large");
    CHECK(ds_grad_enabled());
    ds_state *s = ds_optim_state(o);
    CHECK_CLOSE(ds_item(ds_state_get(s, "step.w")), 1, 0);
    CHECK(!ds_state_get(s, "step.b"));
    ds_state_free(s);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* Sign descent over all parameters at once, on plain memory. */
static ds_status sign_step(void *self, const ds_optim_values *v, const ds_optim_update *x, int n)
{
    (void)self;
    for (int i = 0; i < n; i++) {
        float *p = ds_data_mut(x[i].p);
        const float *g = ds_data(x[i].grad);
        if (!p || !g) return ds_error_status();
        for (int64_t k = 0; k < ds_numel(x[i].p); k++) p[k] -= (float)(g[k] > 0 ? v->lr : -v->lr);
    }
    return DS_OK;
}

static void all_at_once(void **state)
{
    (void)state;
    static const ds_optim_type sign = {.name = "sign", .step_n = sign_step, .whole = true};
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    ds_optim *o = ds_optim_new(m, &sign, (ds_optim_values){.lr = 0.5});
    CHECK(dsi_optim_needs_whole(o));
    given_grad(given_w(m), 7), given_grad(given_b(m), -7);
    CHECK(ds_optim_step(o) == DS_OK);
    CHECK_CLOSE(given_at(given_w(m), 0), 0.5, 0);
    CHECK_CLOSE(given_at(given_b(m), 0), 1, 0);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

static ds_status silent_step(void *self, const ds_optim_values *v, const ds_optim_update *x)
{
    (void)self, (void)v, (void)x;
    return DS_EIO;
}

static void step_without_a_message(void **state)
{
    (void)state;
    static const ds_optim_type type = {.name = "silent", .step = silent_step};
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    ds_optim *o = ds_optim_new(m, &type, (ds_optim_values){.lr = 1});
    ds_tensor *p = ds_module_param_at(m, 0, NULL);
    CHECK_INT(ds_set_grad_of(p, ds_like(p, 1)), DS_OK);
    CHECK_INT(ds_optim_step(o), DS_EIO);
    CHECK_ERROR("silent: its step failed and did not say why");
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

static void refusals(void **state)
{
    (void)state;
    static const ds_optim_type nameless = {.step = ball_step}, idle = {.name = "idle"};
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    ds_optim_values v = {.lr = 1};
    CHECK_REFUSED(ds_optim_new(m, &nameless, v), "optim_new: the type has no name");
    CHECK_REFUSED(ds_optim_new(m, &idle, v), "idle: the type has no step");
    CHECK_REFUSED(ds_optim_new(m, NULL, v), "optim_new");
    CHECK_REFUSED(ds_optim_new(NULL, &ball, v), "ball");
    CHECK(!ds_optim_self(NULL) && !ds_optim_name(NULL));
    ds_module_free(m);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(as_built_in), cmocka_unit_test(on_masters),
          cmocka_unit_test(failing_step), cmocka_unit_test(all_at_once),
          cmocka_unit_test(step_without_a_message), cmocka_unit_test(refusals))
