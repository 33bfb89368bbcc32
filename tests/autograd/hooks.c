/* tests/autograd/hooks.c: hooks of leaves: once a pass, in order, with the
 * whole gradient; after use; scaled
 * seeds.
 * SPDX-License-Identifier: MIT */
#include "check.h"

#include "autograd/node.h"

typedef struct Log {
    char names[32]; /* of leaves in the order of their hooks */
    double grad[32];
    int n;
} Log;

typedef struct Leaf {
    Log *log;
    ds_tensor *x;
    char name;
} Leaf;

static void note(void *arg, ds_tensor *leaf)
{
    Leaf *l = arg;
    CHECK(leaf == l->x);
    ds_zeros(DS_F32, ds_shape(3)); /* ends with the hook */
    l->log->grad[l->log->n] = ds_grad(leaf) ? ds_item(ds_grad(leaf)) : NAN;
    l->log->names[l->log->n++] = l->name;
}

static Leaf hooked(Log *log, char name, double value)
{
    return (Leaf){log, ds_require_grad(ds_scalar(DS_F64, value), true), name};
}

static void watch(Leaf *l) { dsi_set_grad_ready_hook(l->x, note, l); }

#define CHECK_ORDER(log, want) \
    CHECK(!strncmp((log).names, want, sizeof want) && (log).n == sizeof want - 1)

/* c is used last, b next, a in three places of which the first op is one. */
static void they_fire_in_the_order_of_completion(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    Log log = {0};
    Leaf a = hooked(&log, 'a', 2), b = hooked(&log, 'b', 3), c = hooked(&log, 'c', 5);
    watch(&a), watch(&b), watch(&c);
    for (int pass = 1; pass <= 2; pass++) {
        ds_tensor *y = ds_mul(a.x, a.x);         /* a^2 */
        y = ds_mul(y, b.x);                      /* a^2 b */
        y = ds_add(ds_mul(y, c.x), ds_neg(a.x)); /* a^2 b c - a */
        CHECK_INT(ds_backward(y), DS_OK);
        CHECK_ORDER(log, "cba");
        CHECK_CLOSE(log.grad[0], pass * 12, 0); /* of the pass before and of this one */
        CHECK_CLOSE(log.grad[1], pass * 20, 0);
        CHECK_CLOSE(log.grad[2], pass * 59, 0);
        memset(&log, 0, sizeof log);
    }
    dsi_set_grad_ready_hook(b.x, NULL, NULL);
    CHECK_INT(ds_backward(ds_mul(b.x, a.x)), DS_OK);
    CHECK_ORDER(log, "a");
    ds_scope_close(s);
}

static void who_is_not_reached_stays_silent(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    Log log = {0};
    Leaf a = hooked(&log, 'a', 2), b = hooked(&log, 'b', 3);
    watch(&a), watch(&b);
    ds_tensor *unused = ds_mul(a.x, b.x);
    CHECK_INT(ds_backward(ds_mul(b.x, b.x)), DS_OK);
    CHECK_ORDER(log, "b");
    CHECK_INT(ds_backward(unused), DS_OK);
    CHECK_ORDER(log, "bab");
    CHECK_INT(ds_backward(a.x), DS_OK); /* a leaf that is the loss */
    CHECK_ORDER(log, "baba");
    ds_scope_close(s);
}

/* ---- failures ------------------------------------------------------------------------------------------ */

static ds_tensor *twice(ds_ctx *ctx, ds_tensor **in, int n)
{
    (void)ctx, (void)n;
    return ds_scale(in[0], 2);
}

static bool broken;

static void twice_backward(ds_ctx *ctx, ds_tensor *grad, ds_tensor **grad_in)
{
    (void)ctx;
    if (!broken) grad_in[0] = ds_scale(grad, 2);
    if (broken) ds_fail(DS_EIO, "twice: out of luck");
}

static const ds_op twice_op = {"twice", twice, twice_backward};

/* a is complete before the failure, b would be after it, c has one use on each
 * side. */
static ds_tensor *around_a_failure(const Leaf *a, const Leaf *b, const Leaf *c)
{
    ds_tensor *y = ds_mul(b->x, c->x);
    y = ds_apply(&twice_op, &y, 1);
    return ds_mul(ds_mul(y, c->x), a->x);
}

static void a_failure_leaves_no_trace(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    Log log = {0};
    Leaf a = hooked(&log, 'a', 2), b = hooked(&log, 'b', 3), c = hooked(&log, 'c', 5);
    watch(&a), watch(&b), watch(&c);
    broken = true;
    CHECK(ds_backward(around_a_failure(&a, &b, &c)) != DS_OK);
    CHECK_ERROR("out of luck");
    CHECK_ORDER(log, "a");
    broken = false;
    memset(&log, 0, sizeof log);
    ds_set_grad_of(a.x, NULL), ds_set_grad_of(c.x, NULL);
    CHECK_INT(ds_backward(around_a_failure(&a, &b, &c)), DS_OK);
    CHECK_ORDER(log, "abc");
    CHECK_CLOSE(log.grad[0], 150, 0); /* 2 b c^2 */
    CHECK_CLOSE(log.grad[1], 100, 0); /* 2 a c^2 */
    CHECK_CLOSE(log.grad[2], 120, 0); /* 4 a b c */
    ds_scope_close(s);
}

/* ---- where gradients are written ------------------------------------------------------------------------ */

typedef struct Shelf {
    ds_tensor *place; /* NULL: none */
    int asked, copies;
} Shelf;

static ds_tensor *shelf_place(void *arg, ds_tensor *leaf)
{
    Shelf *shelf = arg;
    CHECK(!ds_grad(leaf)); /* there is one to be added to */
    shelf->asked++;
    return shelf->place ? dsi_alias(shelf->place) : NULL;
}

static void shelf_ready(void *arg, ds_tensor *leaf)
{
    Shelf *shelf = arg;
    if (!shelf->place || ds_grad(leaf)->storage != shelf->place->storage) shelf->copies++;
}

/* w is used by two ops: the first writes to its place, the second adds to it
 * there. */
static void a_gradient_is_written_to_its_place(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *w = ds_require_grad(ds_full(DS_F32, ds_shape(3, 2), 1.5), true);
    ds_tensor *x = ds_full(DS_F32, ds_shape(4, 2), 2.0);
    Shelf shelf = {dsi_new(w, w->shape), 0, 0};
    dsi_set_grad_ready_hook(w, shelf_ready, &shelf);
    dsi_set_grad_buffer_hook(w, shelf_place);
    for (int pass = 1; pass <= 3; pass++) {
        bool placed = pass < 3;
        if (!placed) shelf.place = NULL;
        ds_tensor *y = ds_add(ds_linear(x, w, NULL), ds_linear(x, w, NULL));
        CHECK_INT(ds_backward(ds_sum(y)), DS_OK);
        CHECK_INT(shelf.asked, pass);
        CHECK_INT(shelf.copies, !placed);
        CHECK_CLOSE(((const float *)ds_data(ds_grad(w)))[5], 16, 0); /* 2 ops x 4 rows x 2 */
        if (placed) CHECK(dsi_v(ds_grad(w)).p == dsi_v(shelf.place).p);
        ds_set_grad_of(w, NULL);
    }
    ds_scope_close(s);
}

static void take_away(void *arg, ds_tensor *leaf)
{
    *(double *)arg += ds_item(ds_grad(leaf));
    ds_set_grad_of(leaf, NULL);
}

static void a_hook_may_take_the_gradient(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    double taken = 0;
    ds_tensor *x = ds_require_grad(ds_scalar(DS_F64, 3), true);
    dsi_set_grad_ready_hook(x, take_away, &taken);
    for (int i = 0; i < 3; i++) CHECK_INT(ds_backward(ds_mul(x, x)), DS_OK);
    CHECK_CLOSE(taken, 18, 0);
    CHECK(!ds_grad(x));
    ds_scope_close(s);
}

/* ---- parameters that come and go (ZeRO-3) ---------------------------------------------------------------- */

typedef struct Guest {
    ds_tensor *values;
    char *log; /* "+" for each materialization, "-" for each release */
} Guest;

static ds_status come(void *arg, ds_tensor *x)
{
    Guest *g = arg;
    strcat(g->log, "+");
    dsi_tensor_set_data(x, g->values);
    return DS_OK;
}

static void go(void *arg, ds_tensor *x)
{
    Guest *g = arg;
    if (!x->storage) return;
    strcat(g->log, "-");
    dsi_release_storage(x);
}

static void used_tensors_are_told_of(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    char log[64] = "";
    ds_tensor *w = ds_require_grad(ds_randn(DS_F64, ds_shape(3, 3)), true);
    ds_tensor *frozen = ds_randn(DS_F64, ds_shape(3, 3)), *x = ds_randn(DS_F64, ds_shape(2, 3));
    Guest g = {ds_clone(ds_detach(w)), log}, f = {ds_clone(frozen), log};
    dsi_set_materialize_hook(w, come, &g), dsi_set_after_use_hook(w, go, &g);
    dsi_set_materialize_hook(frozen, come, &f), dsi_set_after_use_hook(frozen, go, &f);
    ds_tensor *y = ds_linear(ds_linear(ds_linear(x, w, NULL), frozen, NULL), w, NULL);
    go(&g, w), go(&f, frozen);
    strcat(log, "|");
    CHECK_INT(ds_backward(ds_sum(y)), DS_OK);
    /* twice w, in between frozen; for the first layer's weight gradient its
     * values are not read */
    CHECK(!strcmp(log, "--|+-+-"));
    dsi_set_after_use_hook(w, NULL, NULL);
    ds_scope_close(s);
}

static void the_seed_is_the_factor(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = ds_require_grad(ds_scalar(DS_F64, 3), true);
    CHECK_INT(dsi_backward_scaled(ds_mul(x, x), 0.25), DS_OK);
    CHECK_CLOSE(ds_item(ds_grad(x)), 1.5, 0);
    ds_tensor *h = ds_require_grad(ds_scalar(DS_F16, 3), true);
    CHECK_INT(dsi_backward_scaled(ds_mul(h, h), 1024), DS_OK);
    CHECK_CLOSE(ds_item(ds_grad(h)), 6144, 0);
    CHECK_INT(dsi_backward_scaled(ds_mul(h, h), 65536), DS_OK); /* more than float16 holds */
    CHECK(isinf(ds_item(ds_grad(h))));
    CHECK(dsi_backward_scaled(ds_ones(DS_F32, ds_shape(2)), 1) != DS_OK);
    CHECK_ERROR("the loss is [2]: expected one element");
    ds_scope_close(s);
}

TEST_MAIN(cmocka_unit_test(they_fire_in_the_order_of_completion),
          cmocka_unit_test(who_is_not_reached_stays_silent),
          cmocka_unit_test(a_failure_leaves_no_trace),
          cmocka_unit_test(a_gradient_is_written_to_its_place),
          cmocka_unit_test(a_hook_may_take_the_gradient),
          cmocka_unit_test(used_tensors_are_told_of), cmocka_unit_test(the_seed_is_the_factor))
