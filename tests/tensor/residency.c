/* tests/tensor/residency.c: operands whose values are not in memory when an op
 * starts: gradients in pooled form, lazy tensors, deferred ReLUs. An op either
 * reads their values or fails with a message; it never reads anything else.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "tensor/tensor.h"

#include "autograd/node.h"
#include "parallel/norm.h"

#include <deepspeed/comm.h>
#include <deepspeed/nn.h>
#include <deepspeed/ops.h>

/* ---- gradients in pooled form ------------------------------------------------------------------------ */

/* The gradient of 2x2 max-pooling in a [1,1,4,4] plane: 1, 2, 3, 4 at elements
 * 0, 3, 9, 14, elsewhere 0. */
static ds_tensor *pooled(void)
{
    static const float value[] = {1, 2, 3, 4}, max[] = {9, 9, 9, 9};
    static const int32_t index[] = {0, 3, 9, 14};
    ds_dims shape = ds_shape(1, 1, 2, 2);
    return dsi_new_pooled(ds_from_data(DS_F32, shape, value), ds_from_data(DS_F32, shape, max),
                          ds_from_data(DS_I32, shape, index), ds_shape(1, 1, 4, 4));
}

/* x's elements are `factor` times those of pooled(). */
static void check_values(ds_tensor *x, float factor)
{
    float want[16] = {[0] = 1, [3] = 2, [9] = 3, [14] = 4};
    const float *p = ds_data(x);
    CHECK(p != NULL);
    for (int i = 0; i < 16; i++) CHECK_CLOSE(p[i], factor * want[i], 0);
}

static void ops_read_pooled_gradients(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *y = ds_full(DS_F32, ds_shape(1, 1, 4, 4), 7);
    CHECK_INT(dsi_copy(y, pooled()), DS_OK);
    check_values(y, 1);
    check_values(ds_add(pooled(), pooled()), 2);
    check_values(ds_scale(pooled(), 3), 3);
    check_values(ds_clone(pooled()), 1);
    check_values(ds_cast(ds_cast(pooled(), DS_F64), DS_F32), 1);
    CHECK_CLOSE(ds_item(ds_sum(pooled())), 10, 0);
    CHECK_CLOSE(ds_item(ds_sum(ds_matmul(pooled(), pooled()))), 23, 0);
    ds_scope_close(s);
}

static void views_of_pooled_gradients(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    check_values(ds_reshape(pooled(), ds_shape(16)), 1);
    check_values(ds_flatten(pooled(), 0), 1);
    check_values(ds_detach(pooled()), 1);
    check_values(ds_transpose(ds_clone(ds_transpose(pooled(), 2, 3)), 2, 3), 1);
    CHECK_CLOSE(ds_item(ds_slice(ds_flatten(pooled(), 0), 0, 9, 10)), 3, 0);
    ds_scope_close(s);
}

static void one_element_in_pooled_form(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_dims one = ds_shape(1, 1, 1, 1);
    ds_tensor *value = ds_full(DS_F32, one, 5), *index = ds_zeros(DS_I32, one);
    CHECK_CLOSE(ds_item(dsi_new_pooled(value, value, index, one)), 5, 0);
    ds_scope_close(s);
}

static void norms_of_pooled_gradients(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = ds_nn_sequential(NULL, "m");
    ds_tensor *w = ds_module_param(m, "w", ds_zeros(DS_F32, ds_shape(1, 1, 4, 4)));
    CHECK_INT(ds_set_grad_of(w, pooled()), DS_OK);
    CHECK_CLOSE(ds_grad_norm(m), sqrt(30), 1e-6);
    CHECK_INT(ds_set_grad_of(w, pooled()), DS_OK);
    CHECK_CLOSE(ds_item(ds_clip_grad_norm(m, 1, 2)), sqrt(30), 1e-6);
    ds_tensor *g = pooled();
    double norm = NAN;
    dsi_view line = dsi_norm_line(g);
    CHECK_INT(dsi_norm_of(g, 1, &line, &norm), DS_OK);
    CHECK_CLOSE(norm, sqrt(30), 1e-6);
    ds_module_free(m);
    ds_scope_close(s);
}

static void gradients_add_up(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *leaf = ds_require_grad(ds_zeros(DS_F32, ds_shape(1, 1, 4, 4)), true);
    CHECK_INT(ds_backward_from(leaf, pooled()), DS_OK);
    CHECK_INT(ds_backward_from(leaf, pooled()), DS_OK);
    check_values(ds_grad(leaf), 2);
    ds_scope_close(s);
}

/* ---- lazy tensors ------------------------------------------------------------------------------------ */

typedef struct Lazy {
    double value;
    int fetched;
    bool refuse;
    ds_tensor *other; /* evicted by the fetch, unless an op reads it */
} Lazy;

static ds_status fetch(void *arg, ds_tensor *x)
{
    Lazy *l = arg;
    l->fetched++;
    if (l->refuse) return ds_fail(DS_EIO, "the disk is gone");
    if (l->other && !dsi_is_acquired(l->other)) dsi_release_storage(l->other);
    ds_tensor *y = ds_full(ds_dtype_of(x), ds_shape_of(x), l->value);
    if (!y) return ds_error_status();
    dsi_tensor_set_data(x, y);
    return DS_OK;
}

static ds_tensor *lazy(Lazy *l, ds_dims shape)
{
    return dsi_new_lazy(dsi_device_current(), DS_F32, shape, fetch, l);
}

static void ops_read_lazy_tensors(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    Lazy a = {.value = 3}, b = {.value = 4};
    CHECK_CLOSE(ds_item(ds_mul(lazy(&a, ds_shape(1)), lazy(&b, ds_shape(1)))), 12, 0);
    ds_tensor *y = ds_zeros(DS_F32, ds_shape(2));
    CHECK_INT(dsi_copy(y, lazy(&a, ds_shape(2))), DS_OK);
    CHECK_CLOSE(ds_item(ds_sum(y)), 6, 0);
    CHECK_CLOSE(ds_item(ds_sum(ds_detach(lazy(&a, ds_shape(2))))), 6, 0);
    CHECK_CLOSE(ds_item(ds_sum(ds_expand(lazy(&a, ds_shape(1)), ds_shape(5)))), 15, 0);
    ds_tensor *x = lazy(&a, ds_shape(2));
    CHECK(ds_init_constant(x, 5));
    CHECK_CLOSE(((const float *)ds_data(x))[1], 5, 0);
    ds_scope_close(s);
}

/* Materializing one operand must not evict another one of the same op. */
static void operands_of_an_op_stay(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    Lazy a = {.value = 3}, b = {.value = 4};
    ds_tensor *x = lazy(&a, ds_shape(2)), *y = lazy(&b, ds_shape(2));
    b.other = x;
    CHECK_CLOSE(ds_item(ds_sum(ds_add(x, y))), 14, 0);
    CHECK_INT(a.fetched, 1);
    CHECK(x->storage && !dsi_is_acquired(x));
    dsi_release_storage(y);
    CHECK_CLOSE(ds_item(ds_sum(y)), 8, 0); /* x may be evicted now */
    CHECK(!x->storage);
    ds_scope_close(s);
}

static void failures_have_a_message(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    Lazy l = {.refuse = true};
    ds_tensor *x = lazy(&l, ds_shape(2)), *y = ds_ones(DS_F32, ds_shape(2));
    CHECK(!ds_add(x, y) && !ds_detach(x) && !ds_data(x));
    CHECK_ERROR("the disk is gone");
    CHECK(!ds_init_constant(x, 1));
    CHECK_ERROR("the disk is gone");
    CHECK(dsi_copy(y, x) != DS_OK && dsi_copy(x, y) != DS_OK);
    CHECK_ERROR("the disk is gone");
    CHECK_CLOSE(ds_item(ds_sum(y)), 2, 0); /* it was not written to */
    CHECK(ds_all_reduce(ds_world(), x, DS_REDUCE_SUM) != DS_OK);
    CHECK_ERROR("the disk is gone");
    CHECK(ds_broadcast(ds_world(), x, 0) != DS_OK);
    CHECK_ERROR("the disk is gone");
    ds_scope_close(s);
}

/* A saved tensor that is not there for backward: backward fails, and no kernel
 * has run on other values. */
static void saved_tensors_that_are_gone(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    Lazy l = {.value = 2};
    ds_tensor *w = ds_require_grad(lazy(&l, ds_shape(3, 2)), true);
    ds_tensor *x = ds_require_grad(ds_ones(DS_F32, ds_shape(4, 2)), true);
    ds_tensor *loss = ds_sum(ds_linear(x, w, NULL));
    CHECK_CLOSE(ds_item(loss), 48, 0);
    dsi_release_storage(w);
    l.refuse = true;
    CHECK(ds_backward(loss) != DS_OK);
    CHECK_ERROR("the disk is gone");
    CHECK(!ds_grad(x) && !ds_grad(w));
    ds_scope_close(s);
}

/* A parameter that no wanted gradient reads is not materialized: the first
 * layer's weight. */
static void only_what_a_backward_reads(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    Lazy l = {.value = 2};
    ds_tensor *w = ds_require_grad(lazy(&l, ds_shape(3, 2)), true);
    ds_tensor *loss = ds_sum(ds_linear(ds_ones(DS_F32, ds_shape(4, 2)), w, NULL));
    dsi_release_storage(w);
    CHECK_INT(ds_backward(loss), DS_OK);
    CHECK_INT(l.fetched, 1);
    CHECK_CLOSE(ds_item(ds_sum(ds_grad(w))), 24, 0);
    ds_scope_close(s);
}

/* ---- deferred ReLUs ---------------------------------------------------------------------------------- */

/* Values that are written to x after y = relu(x) are not y's. */
static void writing_flushes_a_deferred_relu(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_dims shape = ds_shape(1, 1, 2, 2);
    ds_tensor *x = ds_full(DS_F32, shape, 3), *y = ds_relu(x);
    CHECK(ds_init_constant(x, 5));
    CHECK_CLOSE(((const float *)ds_data(y))[3], 3, 0);
    x = ds_full(DS_F32, shape, 3), y = ds_relu(x);
    CHECK(ds_init_uniform(x, 7, 8));
    CHECK_CLOSE(((const float *)ds_data(y))[3], 3, 0);
    x = ds_full(DS_F32, shape, 3), y = ds_relu(x);
    CHECK_INT(ds_copy(x, ds_zeros(DS_F32, shape)), DS_OK);
    CHECK_CLOSE(ds_item(ds_sum(y)), 12, 0);
    ds_scope_close(s);
}

/* Nor are those of another storage that x gets. */
static void other_storage_leaves_the_old_one(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_dims shape = ds_shape(1, 1, 2, 2);
    ds_tensor *x = ds_full(DS_F32, shape, 3), *y = ds_relu(x);
    dsi_tensor_set_data(x, ds_full(DS_F32, shape, 5));
    CHECK_CLOSE(ds_item(ds_sum(y)), 12, 0);
    CHECK_CLOSE(ds_item(ds_sum(x)), 20, 0);
    x = ds_full(DS_F32, shape, 3), y = ds_relu(x);
    dsi_release_storage(x);
    CHECK_CLOSE(ds_item(ds_sum(y)), 12, 0);
    x = ds_full(DS_F32, shape, 3), y = ds_relu(x);
    dsi_release_storage(x);
    ds_scope_close(s); /* y is never read */
}

/* The gradient of a slice is added where earlier gradients are: in the tensor
 * that ds_grad has returned, however it is laid out, once y has been
 * computed. */
static void slices_add_in_place(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    for (int permuted = 0; permuted < 2; permuted++) {
        ds_tensor *x = ds_ones(DS_F32, ds_shape(2, 3, 4, 4));
        if (permuted) x = ds_detach(ds_permute(x, ds_shape(0, 3, 1, 2)));
        ds_require_grad(x, true);
        CHECK_INT(ds_backward(ds_sum(ds_mul(x, x))), DS_OK);
        ds_tensor *g = ds_keep(ds_grad(x)), *y = ds_relu(g);
        CHECK_INT(ds_backward(ds_sum(ds_slice(x, 0, 1, 2))), DS_OK);
        CHECK(ds_grad(x) == g);
        CHECK_CLOSE(ds_item(ds_sum(g)), 2 * 96 + 48, 0);
        CHECK_CLOSE(ds_item(ds_sum(y)), 2 * 96, 0);
        ds_drop(g);
    }
    ds_scope_close(s);
}

TEST_MAIN(cmocka_unit_test(ops_read_pooled_gradients), cmocka_unit_test(views_of_pooled_gradients),
          cmocka_unit_test(one_element_in_pooled_form), cmocka_unit_test(norms_of_pooled_gradients),
          cmocka_unit_test(gradients_add_up), cmocka_unit_test(ops_read_lazy_tensors),
          cmocka_unit_test(operands_of_an_op_stay), cmocka_unit_test(failures_have_a_message),
          cmocka_unit_test(saved_tensors_that_are_gone),
          cmocka_unit_test(only_what_a_backward_reads),
          cmocka_unit_test(writing_flushes_a_deferred_relu),
          cmocka_unit_test(other_storage_leaves_the_old_one), cmocka_unit_test(slices_add_in_place))
