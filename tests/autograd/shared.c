/* tests/autograd/shared.c: gradients of leaves that share the memory of the
 * result's gradient (Note [Shared gradients] of tensor/shared.c): a change of
 * one of them changes no other values.
 * SPDX-License-Identifier: MIT */
#include "check.h"

#include "device/device.h"
#include "tensor/tensor.h"

#include <deepspeed/nn.h>
#include <deepspeed/optim.h>

enum { N = 6 };

typedef struct Two {
    ds_tensor *leaf[2], *dy;
} Two;

/* After a backward pass of y = stack(a, b), dy = 1, 2, ... */
static Two two_stacked(void)
{
    Two t;
    for (int i = 0; i < 2; i++) t.leaf[i] = ds_require_grad(ds_full(DS_F32, ds_shape(N), i), true);
    t.dy = ds_add(ds_reshape(ds_arange(DS_F32, 0, 2 * N, 1), ds_shape(2, N)), ds_scalar(DS_F32, 1));
    CHECK_INT(ds_backward_from(ds_stack(t.leaf, 2, 0), t.dy), DS_OK);
    return t;
}

/* x is first, first + 1, ..., times factor */
static void check_values(ds_tensor *x, double first, double factor)
{
    const float *p = ds_data(x);
    CHECK(p);
    for (int64_t i = 0; p && i < ds_numel(x); i++)
        CHECK_CLOSE((double)p[i], (first + (double)i) * factor, 0);
}

static void check_all(const Two *t, double factor_a, double factor_b, double factor_dy)
{
    check_values(ds_grad(t->leaf[0]), 1, factor_a);
    check_values(ds_grad(t->leaf[1]), 1 + N, factor_b);
    check_values(t->dy, 1, factor_dy);
}

static void both_are_in_the_memory_of_dy(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    Two t = two_stacked();
    for (int i = 0; i < 2; i++) {
        const ds_tensor *g = t.leaf[i]->grad;
        CHECK(g->shares && g->storage == t.dy->storage);
    }
    check_all(&t, 1, 1, 1);
    for (int i = 0; i < 2; i++)
        CHECK(!t.leaf[i]->grad->shares && t.leaf[i]->grad->storage != t.dy->storage);
    ds_scope_close(s);
}

static void a_later_gradient_is_added_to_the_leaf_alone(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    Two t = two_stacked();
    CHECK_INT(ds_backward_from(ds_stack(t.leaf, 2, 0), t.dy), DS_OK);
    check_all(&t, 2, 2, 1);
    CHECK_INT(ds_backward_from(ds_scale(t.leaf[0], 3), ds_select(t.dy, 0, 0)), DS_OK);
    check_all(&t, 5, 2, 1);
    ds_scope_close(s);
}

static void a_change_of_dy_is_of_dy_alone(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) {
        ds_scope *s = ds_scope_open();
        Two t = two_stacked();
        if (way == 0) {
            CHECK_INT(ds_copy(t.dy, ds_scale(t.dy, 2)), DS_OK);
        } else if (way == 1) {
            for (int i = 0; i < 2; i++) {
                ds_tensor *part = ds_select(t.dy, 0, i);
                CHECK_INT(ds_copy(part, ds_scale(part, 2)), DS_OK);
            }
        } else {
            float *p = ds_data_mut(t.dy);
            for (int i = 0; i < 2 * N; i++) p[i] *= 2;
        }
        check_all(&t, 1, 1, 2);
        ds_scope_close(s);
    }
}

static void a_change_of_one_is_of_it_alone(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    Two t = two_stacked();
    ds_tensor *view = ds_slice(t.leaf[0]->grad, 0, 0, N); /* makes it own */
    CHECK(!t.leaf[0]->grad->shares);
    CHECK_INT(ds_copy(view, ds_scale(view, 4)), DS_OK);
    check_all(&t, 4, 1, 1);
    CHECK_INT(ds_copy(ds_grad(t.leaf[1]), ds_scale(ds_grad(t.leaf[1]), 2)), DS_OK);
    check_all(&t, 4, 2, 1);
    ds_scope_close(s);
}

/* An address that was given out for writing may be written to at any time. */
static void written_memory_is_not_shared(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    Two t = two_stacked();
    float *p = ds_data_mut(t.dy);
    for (int i = 0; i < 2; i++) ds_set_grad_of(t.leaf[i], NULL);
    CHECK_INT(ds_backward_from(ds_stack(t.leaf, 2, 0), t.dy), DS_OK);
    for (int i = 0; i < 2 * N; i++) p[i] *= 2;
    check_all(&t, 1, 1, 2);
    ds_scope_close(s);
}

/* Each of the three handles may be the first to go; the last one has the
 * memory. */
static void any_may_end_first(void **state)
{
    (void)state;
    for (int first = 0; first < 3; first++) {
        ds_scope *outer = ds_scope_open(), *s = ds_scope_open();
        Two t = two_stacked();
        for (int i = 0; i < 2; i++)
            if (i != first) ds_keep(t.leaf[i]);
        if (first != 2) ds_keep(t.dy);
        ds_scope_close(s);
        if (first == 2) {
            const dsi_storage *was = t.leaf[0]->grad->storage;
            ds_set_grad_of(t.leaf[1], NULL);
            CHECK(t.leaf[0]->grad->storage->refs == 1);
            check_values(ds_grad(t.leaf[0]), 1, 1);
            CHECK(t.leaf[0]->grad->storage == was); /* without a copy */
        } else {
            check_values(t.dy, 1, 1);
            check_values(ds_grad(t.leaf[!first]), first ? 1 : 1 + N, 1);
        }
        for (int i = 0; i < 2; i++)
            if (i != first) ds_drop(t.leaf[i]);
        if (first != 2) ds_drop(t.dy);
        ds_scope_close(outer);
    }
}

static void without_memory(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    Two t = two_stacked();
    dsi_cache_fail(1, true);
    CHECK(!ds_grad(t.leaf[0]));
    CHECK(!ds_slice(t.leaf[1]->grad, 0, 0, 2));
    CHECK(!dsi_fill(t.dy, 0));
    dsi_cache_fail(0, false);
    check_all(&t, 1, 1, 1);
    ds_scope_close(s);
}

static ds_tensor *sum_forward(void *self, ds_tensor *x)
{
    ds_tensor *const *w = self;
    return ds_add(x, ds_add(w[0], w[1]));
}

/* Both parameters have dy as their gradient, which clipping and a step read. */
static void clipping_and_a_step(void **state)
{
    (void)state;
    static const ds_module_type type = {"Sum", 2 * sizeof(ds_tensor *), .forward = sum_forward};
    ds_scope *s = ds_scope_open();
    ds_module *m = ds_module_new(NULL, "sum", &type);
    ds_tensor **w = ds_self(m), *dy = ds_full(DS_F32, ds_shape(N), 2);
    for (int i = 0; i < 2; i++)
        w[i] = ds_module_param(m, i ? "b" : "a", ds_zeros(DS_F32, ds_shape(N)));
    ds_optim *sgd = ds_optim_sgd(m, 0.5);
    CHECK_INT(ds_backward_from(ds_call(m, ds_zeros(DS_F32, ds_shape(N))), dy), DS_OK);
    CHECK(w[0]->grad->storage == w[1]->grad->storage);
    CHECK_INT(ds_optim_step(sgd), DS_OK);
    CHECK_CLOSE(ds_item(ds_clip_grad_norm(m, sqrt(2 * N), 2)), 2 * sqrt(2 * N), 1e-5);
    for (int i = 0; i < 2; i++) {
        CHECK_CLOSE(ds_item(ds_sum(ds_detach(w[i]))), -N, 0);
        CHECK_CLOSE(ds_item(ds_sum(ds_grad(w[i]))), N, 1e-5);
    }
    CHECK_CLOSE(ds_item(ds_sum(dy)), 2 * N, 0);
    ds_optim_free(sgd);
    ds_module_free(m);
    ds_scope_close(s);
}

TEST_MAIN(cmocka_unit_test(both_are_in_the_memory_of_dy),
          cmocka_unit_test(a_later_gradient_is_added_to_the_leaf_alone),
          cmocka_unit_test(a_change_of_dy_is_of_dy_alone),
          cmocka_unit_test(a_change_of_one_is_of_it_alone),
          cmocka_unit_test(written_memory_is_not_shared), cmocka_unit_test(any_may_end_first),
          cmocka_unit_test(without_memory), cmocka_unit_test(clipping_and_a_step))
