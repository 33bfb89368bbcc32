/* tests/autograd/grad_hook.c: ds_grad_hook: a hook sees the whole gradient of
 * its tensor, replaces it, keeps it, or fails; also in an activation
 * checkpoint.
 * SPDX-License-Identifier: MIT */
#include "check.h"

typedef struct Seen {
    int calls;
    double first; /* element 0 of the gradient */
    ds_tensor *kept;
} Seen;

static void note(Seen *s, ds_tensor *grad)
{
    s->calls++;
    s->first = ds_item(ds_select(ds_flatten(grad, 0), 0, 0));
}

static ds_tensor *look(void *arg, ds_tensor *grad) { return note(arg, grad), NULL; }
static ds_tensor *turn(void *arg, ds_tensor *grad) { return note(arg, grad), ds_neg(grad); }
static ds_tensor *same(void *arg, ds_tensor *grad) { return note(arg, grad), grad; }

static ds_tensor *keep(void *arg, ds_tensor *grad)
{
    ((Seen *)arg)->kept = ds_keep(grad);
    return NULL;
}

static ds_tensor *other_shape(void *arg, ds_tensor *grad)
{
    (void)arg;
    return ds_sum(grad);
}

static ds_tensor *fails(void *arg, ds_tensor *grad)
{
    (void)arg, (void)grad;
    return ds_fail(DS_ESTATE, "the hook's own message"), NULL;
}

static ds_tensor *leaf(void) { return ds_require_grad(ds_full(DS_F32, ds_shape(3), 2), true); }
static double grad_of(ds_tensor *x) { return ds_item(ds_select(ds_grad(x), 0, 0)); }

/* y is used twice: the hook is called once, with the sum. */
static void replaces(void **state)
{
    (void)state;
    ds_grad_hook_fn *const hooks[] = {look, turn, same};
    for (int i = 0; i < 3; i++) {
        ds_scope *scope = ds_scope_open();
        Seen seen = {0};
        ds_tensor *x = leaf(), *y = ds_grad_hook(ds_scale(x, 5), hooks[i], &seen);
        CHECK_CLOSE(ds_item(ds_select(y, 0, 0)), 10, 0);
        CHECK_INT(ds_backward(ds_sum(ds_add(ds_mul(y, y), y))), DS_OK);
        CHECK_INT(seen.calls, 1);
        CHECK_CLOSE(seen.first, 21, 0);
        CHECK_CLOSE(grad_of(x), i == 1 ? -105 : 105, 0);
        ds_scope_close(scope);
    }
}

/* The kept gradient stays as it was while x gets more. */
static void keeps(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    Seen seen = {0};
    ds_tensor *x = leaf();
    ds_tensor *y = ds_grad_hook(x, keep, &seen);
    CHECK_INT(ds_backward(ds_sum(ds_add(ds_scale(y, 3), ds_mul(x, x)))), DS_OK);
    CHECK_CLOSE(grad_of(x), 7, 0);
    CHECK(seen.kept && ds_numel(seen.kept) == 3);
    CHECK_CLOSE(ds_item(ds_select(seen.kept, 0, 0)), 3, 0);
    ds_drop(seen.kept);
    ds_scope_close(scope);
}

static ds_tensor *part(void *arg, ds_tensor **in, int n)
{
    (void)n;
    return ds_mul(ds_grad_hook(ds_scale(in[0], 5), turn, arg), in[0]);
}

/* x (5 x), whose first factor's gradient is turned: 5 x - 5 x. */
static void in_a_checkpoint(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    Seen seen = {0};
    ds_tensor *x = leaf();
    CHECK_INT(ds_backward(ds_sum(ds_checkpoint(part, &seen, &x, 1))), DS_OK);
    CHECK_INT(seen.calls, 1);
    CHECK_CLOSE(grad_of(x), 0, 0);
    ds_scope_close(scope);
}

static void without_gradients(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    Seen seen = {0};
    ds_tensor *y = ds_grad_hook(ds_ones(DS_F32, ds_shape(2)), look, &seen);
    CHECK(y && !ds_requires_grad(y));
    bool was = ds_set_grad(false);
    y = ds_grad_hook(leaf(), look, &seen);
    ds_set_grad(was);
    CHECK(y && !ds_requires_grad(y) && !seen.calls);
    ds_scope_close(scope);
}

static void refusals(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = leaf();
    CHECK(!ds_grad_hook(NULL, look, NULL));
    CHECK_ERROR("grad_hook");
    CHECK(!ds_grad_hook(x, NULL, NULL));
    CHECK_ERROR("grad_hook");
    CHECK_INT(ds_backward(ds_sum(ds_grad_hook(x, other_shape, NULL))), DS_EINVAL);
    CHECK_ERROR("grad_hook: the hook returned float32 [] on ");
    CHECK_INT(ds_backward(ds_sum(ds_grad_hook(x, fails, NULL))), DS_ESTATE);
    CHECK_ERROR("the hook's own message");
    CHECK(!ds_grad(x));
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(replaces), cmocka_unit_test(keeps), cmocka_unit_test(in_a_checkpoint),
          cmocka_unit_test(without_gradients), cmocka_unit_test(refusals))
