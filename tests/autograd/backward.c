/* tests/autograd/backward.c: the graph: order, accumulation, release, own ops,
 * gradient check.
 * SPDX-License-Identifier: MIT */
#include "check.h"

static ds_tensor *leaf(double value) { return ds_require_grad(ds_scalar(DS_F64, value), true); }

static void chain_and_reuse(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = leaf(3), *y = ds_mul(x, x); /* x used twice, y used twice */
    ds_tensor *loss = ds_add(ds_mul(y, y), y); /* x^4 + x^2 */
    CHECK_INT(ds_backward(loss), DS_OK);
    CHECK_CLOSE(ds_item(ds_grad(x)), 4 * 27 + 6, 1e-12);
    CHECK(ds_backward(loss) != DS_OK);
    CHECK_ERROR("was passed before");
    CHECK_INT(ds_backward(ds_mul(x, x)), DS_OK); /* adds to what is there */
    CHECK_CLOSE(ds_item(ds_grad(x)), 4 * 27 + 6 + 6, 1e-12);
    ds_scope_close(s);
}

static void one_gradient_for_two_leaves(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *a = leaf(1), *b = leaf(2);
    CHECK_INT(ds_backward(ds_add(a, b)), DS_OK);
    CHECK_INT(ds_backward(ds_add(a, a)), DS_OK);
    CHECK_CLOSE(ds_item(ds_grad(a)), 3, 0);
    CHECK_CLOSE(ds_item(ds_grad(b)), 1, 0);
    ds_scope_close(s);
}

/* The gradient of a leaf by itself is what was given, which stays its giver's. */
static void a_leaf_is_its_own_result(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = leaf(1), *dy = ds_scalar(DS_F64, 5);
    CHECK_INT(ds_backward_from(x, dy), DS_OK);
    CHECK_INT(ds_backward_from(x, dy), DS_OK);
    CHECK_INT(ds_backward(x), DS_OK);
    CHECK_CLOSE(ds_item(ds_grad(x)), 11, 0);
    CHECK_CLOSE(ds_item(dy), 5, 0);
    ds_scope_close(s);
}

static void modes(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = leaf(3);
    bool was = ds_set_grad(false);
    CHECK(was);
    ds_tensor *y = ds_mul(x, x);
    CHECK(!ds_requires_grad(y));
    ds_set_grad(was);
    CHECK(ds_backward(y) != DS_OK);
    CHECK_ERROR("has no graph");
    CHECK(!ds_requires_grad(ds_detach(ds_mul(x, x))));
    CHECK_INT(ds_backward(ds_mul(x, ds_detach(ds_mul(x, x)))), DS_OK);
    CHECK_CLOSE(ds_item(ds_grad(x)), 9, 0);
    CHECK(!ds_require_grad(ds_mul(x, x), true));
    CHECK_ERROR("is no leaf");
    CHECK(!ds_require_grad(ds_scalar(DS_I64, 1), true));
    CHECK_ERROR("only floating-point tensors have gradients");
    CHECK(ds_backward(ds_scalar(DS_I64, 1)) != DS_OK);
    CHECK_ERROR("backward: x [] has no graph: nothing it was computed from requires a gradient");
    CHECK(!ds_requires_grad(ds_cast(ds_mul(x, x), DS_I64)));
    CHECK(ds_backward(ds_mul(x, ds_ones(DS_F64, ds_shape(2)))) != DS_OK);
    CHECK_ERROR("the loss is [2]: expected one element");
    CHECK(ds_backward(NULL) != DS_OK);
    ds_error_clear();
    ds_scope_close(s);
}

static void a_million_nodes(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = leaf(1), *y = ds_keep(x);
    for (int i = 0; i < 1000000; i++) {
        ds_scope *turn = ds_scope_open();
        ds_tensor *next = ds_keep(ds_shift(y, 1));
        ds_drop(y);
        y = next;
        ds_scope_close(turn);
    }
    CHECK_CLOSE(ds_item(y), 1000001, 0);
    CHECK_INT(ds_backward(y), DS_OK);
    CHECK_CLOSE(ds_item(ds_grad(x)), 1, 0);
    ds_drop(y);
    ds_scope_close(s);
}

static void nothing_stays_alive(void **state)
{
    (void)state;
    int64_t before = ds_live_tensors();
    for (int i = 0; i < 2; i++) {
        ds_scope *s = ds_scope_open();
        ds_tensor *x = leaf(2), *loss = ds_sigmoid(ds_mul(x, x)); /* sigmoid saves its own output */
        if (i) ds_backward(loss);
        ds_scope_close(s);
        CHECK_INT(ds_live_tensors(), before);
    }
}

/* ---- a custom op --------------------------------------------------------------------------------------- */

static ds_tensor *swish_forward(ds_ctx *ctx, ds_tensor **in, int n)
{
    (void)n;
    ds_tensor *s = ds_sigmoid(in[0]);
    ds_ctx_save(ctx, in[0]);
    ds_ctx_save(ctx, s);
    return ds_mul(in[0], s);
}

static void swish_backward(ds_ctx *ctx, ds_tensor *grad, ds_tensor **grad_in)
{
    ds_tensor *x = ds_ctx_saved(ctx, 0), *s = ds_ctx_saved(ctx, 1);
    /* (x s)' = s + x s (1 - s) */
    grad_in[0] = ds_mul(grad, ds_add(s, ds_mul(ds_mul(x, s), ds_sub(ds_like(s, 1), s))));
}

static const ds_op swish_op = {"swish", swish_forward, swish_backward};

static ds_tensor *swish(void *arg, ds_tensor **in, int n)
{
    (void)arg;
    return ds_apply(&swish_op, in, n);
}

static ds_tensor *random_leaf(ds_dims shape)
{
    return ds_require_grad(ds_randn(DS_F64, shape), true);
}

static void own_op(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = random_leaf(ds_shape(3, 4));
    CHECK_INT(ds_gradcheck(swish, NULL, &x, 1, (ds_gradcheck_opts){0}), DS_OK);
    ds_scope_close(s);
}

static void wrong_backward(ds_ctx *ctx, ds_tensor *grad, ds_tensor **grad_in)
{
    (void)ctx;
    grad_in[0] = grad; /* forgets the derivative */
}

static ds_tensor *wrong(void *arg, ds_tensor **in, int n)
{
    static const ds_op op = {"wrong", swish_forward, wrong_backward};
    (void)arg;
    return ds_apply(&op, in, n);
}

static void gives_nothing(ds_ctx *ctx, ds_tensor *grad, ds_tensor **grad_in)
{
    (void)ctx, (void)grad, (void)grad_in;
}

static void gives_other_shape(ds_ctx *ctx, ds_tensor *grad, ds_tensor **grad_in)
{
    (void)ctx;
    grad_in[0] = ds_sum(grad);
}

static void takes_too_many(ds_ctx *ctx, ds_tensor *grad, ds_tensor **grad_in)
{
    grad_in[0] = ds_mul(grad, ds_ctx_saved(ctx, 9));
}

static ds_tensor *gives_no_result(ds_ctx *ctx, ds_tensor **in, int n)
{
    (void)ctx, (void)in, (void)n;
    return NULL;
}

static void own_ops_that_err(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = random_leaf(ds_shape(3));
    CHECK(ds_gradcheck(wrong, NULL, &x, 1, (ds_gradcheck_opts){0}) != DS_OK);
    CHECK_ERROR("gradcheck: input 0, element 0: backward says");
    static const ds_op none = {"none", swish_forward, gives_nothing};
    CHECK(ds_backward(ds_sum(ds_apply(&none, &x, 1))) != DS_OK);
    CHECK_ERROR("none: its backward gave no gradient for input 0");
    static const ds_op other = {"other", swish_forward, gives_other_shape};
    CHECK(ds_backward(ds_sum(ds_apply(&other, &x, 1))) != DS_OK);
    CHECK_ERROR("other: its backward gave a gradient of shape [] for input 0 of shape [3]");
    static const ds_op beyond = {"beyond", swish_forward, takes_too_many};
    CHECK(ds_backward(ds_sum(ds_apply(&beyond, &x, 1))) != DS_OK);
    CHECK_ERROR("ctx_saved: there is no tensor 9: forward saved");
    static const ds_op absent = {"absent", gives_no_result, gives_nothing};
    CHECK(!ds_apply(&absent, &x, 1));
    CHECK_ERROR("absent: its forward returned NULL");
    ds_tensor *constant = ds_ones(DS_F64, ds_shape(3));
    CHECK(ds_gradcheck(wrong, NULL, &constant, 1, (ds_gradcheck_opts){0}) != DS_OK);
    CHECK_ERROR("gradcheck: no input requires a gradient");
    ds_scope_close(s);
}

TEST_MAIN(cmocka_unit_test(chain_and_reuse), cmocka_unit_test(one_gradient_for_two_leaves),
          cmocka_unit_test(a_leaf_is_its_own_result), cmocka_unit_test(modes),
          cmocka_unit_test(a_million_nodes), cmocka_unit_test(nothing_stays_alive),
          cmocka_unit_test(own_op), cmocka_unit_test(own_ops_that_err))
