/* tests/autograd/recompute.c: checkpoints: the gradients that there are without
 * them, bit for bit; less memory; hooks, random numbers and statistics as if
 * the function ran once; failures.
 * SPDX-License-Identifier: MIT */
#include "check.h"

#include "autograd/node.h"
#include "device/device.h"

/* ---- the same gradients -------------------------------------------------------------------------------- */

/* Two blocks with everything whose second run could differ: batch statistics,
 * dropout, pooled gradients. */
typedef struct Net {
    ds_module *front, *block[2], *head;
    bool checkpoints, nested;
} Net;

static ds_tensor *call(void *module, ds_tensor **in, int n) { return ds_call_n(module, in, n); }

/* x + block(x): x has uses outside of the checkpoint, before it in time and
 * after it. */
static ds_tensor *residual(void *arg, ds_tensor **in, int n)
{
    (void)n;
    Net *net = arg;
    ds_tensor *y = net->nested ? ds_checkpoint(call, net->block[0], in, 1)
                               : ds_call(net->block[0], in[0]);
    y = ds_add(in[0], y);
    return ds_mul(ds_call(net->block[1], y), in[0]);
}

static ds_tensor *net_forward(void *self, ds_tensor *x)
{
    Net *net = self;
    ds_tensor *in = net->checkpoints ? ds_checkpoint_call(net->front, x) : ds_call(net->front, x);
    ds_tensor *y = net->checkpoints ? ds_checkpoint(residual, net, &in, 1) : residual(net, &in, 1);
    y = ds_add(ds_scale(in, 0.5), y);
    return ds_call(net->head, ds_flatten(y, 1));
}

static ds_module *block(ds_module *m, const char *name, int64_t channels)
{
    ds_module *b = ds_nn_sequential(m, name);
    ds_nn_conv2d(b, "0", channels, channels, 3, .padding = 1);
    ds_nn_batch_norm2d(b, "1", channels);
    ds_nn_relu(b, "2");
    ds_nn_dropout(b, "3", 0.3);
    return b;
}

static ds_module *net_new(bool checkpoints, bool nested)
{
    static const ds_module_type type = {"Net", sizeof(Net), .forward = net_forward};
    ds_seed(7);
    ds_module *m = ds_module_new(NULL, "net", &type);
    Net *net = ds_self(m);
    *net = (Net){.checkpoints = checkpoints, .nested = nested};
    net->front = ds_nn_sequential(m, "front");
    ds_nn_conv2d(net->front, "0", 3, 6, 5);
    ds_nn_relu(net->front, "1");
    ds_nn_max_pool2d(net->front, "2", (ds_pool2d_opts){.kernel = 2});
    net->block[0] = block(m, "a", 6);
    net->block[1] = block(m, "b", 6);
    net->head = ds_nn_linear(m, "head", 6 * 4 * 4, 5);
    return m;
}

static ds_status two_passes(ds_module *m, ds_dtype dtype)
{
    ds_seed(11);
    ds_tensor *label = ds_randint(DS_I64, 0, 5, ds_shape(4));
    for (int i = 0; i < 2; i++) { /* the second adds to gradients, and continues the generator */
        ds_tensor *x = ds_cast(ds_randn(DS_F32, ds_shape(4, 3, 12, 12)), dtype);
        ds_tensor *y = ds_call(m, x);
        if (ds_backward(ds_cross_entropy(y, label)) != DS_OK) return ds_error_status();
    }
    return DS_OK;
}

static void check_same(ds_tensor *a, ds_tensor *b)
{
    CHECK(a && b && ds_numel(a) == ds_numel(b) && ds_dtype_of(a) == ds_dtype_of(b));
    CHECK(!memcmp(ds_data(a), ds_data(b), (size_t)ds_numel(a) * ds_dtype_size(ds_dtype_of(a))));
}

static void check_same_modules(ds_module *a, ds_module *b)
{
    ds_state *of_a = ds_module_state(a), *of_b = ds_module_state(b);
    for (int i = 0; i < ds_module_params(a); i++)
        check_same(ds_grad(ds_module_param_at(a, i, NULL)),
                   ds_grad(ds_module_param_at(b, i, NULL)));
    for (int i = 0; i < ds_state_len(of_a); i++) /* statistics and counts of batches among them */
        check_same(ds_state_at(of_a, i), ds_state_at(of_b, i));
    ds_state_free(of_a);
    ds_state_free(of_b);
}

static void a_net_learns_the_same(void **state)
{
    (void)state;
    static const ds_dtype dtypes[] = {DS_F32, DS_F64, DS_F16, DS_BF16};
    for (size_t k = 0; k < 8; k++) {
        ds_scope *s = ds_scope_open();
        ds_dtype dtype = dtypes[k / 2];
        ds_module *plain = net_new(false, false), *other = net_new(true, k % 2);
        CHECK_INT(ds_module_to(plain, dtype), DS_OK);
        CHECK_INT(ds_module_to(other, dtype), DS_OK);
        CHECK_INT(two_passes(plain, dtype), DS_OK);
        ds_tensor *next = ds_rand(DS_F32, ds_shape(4));
        CHECK_INT(two_passes(other, dtype), DS_OK);
        check_same_modules(plain, other);
        check_same(next, ds_rand(DS_F32, ds_shape(4))); /* the same state of the generator */
        ds_module_free(plain);
        ds_module_free(other);
        ds_scope_close(s);
    }
}

/* Inputs of which some are integers, some want nothing; one from outside that
 * is no input. */
typedef struct Outside {
    ds_tensor *w, *hidden;
} Outside;

static ds_tensor *several(void *arg, ds_tensor **in, int n)
{
    (void)n;
    Outside *o = arg;
    ds_tensor *rows = ds_embedding(o->w, in[0], -1);
    return ds_mul(ds_add(ds_mul(rows, in[1]), in[2]), o->hidden);
}

static void inputs_of_all_kinds(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *grads[2][3];
    for (int k = 0; k < 2; k++) {
        ds_seed(3);
        ds_tensor *w = ds_require_grad(ds_randn(DS_F64, ds_shape(9, 4)), true);
        ds_tensor *x = ds_require_grad(ds_randn(DS_F64, ds_shape(4)), true);
        ds_tensor *h = ds_require_grad(ds_randn(DS_F64, ds_shape(6, 4)), true);
        Outside o = {w, ds_tanh(h)};
        ds_tensor *in[] = {ds_randint(DS_I64, 0, 9, ds_shape(6)), x,
                           ds_randn(DS_F64, ds_shape(6, 4))};
        ds_tensor *y = k ? ds_checkpoint(several, &o, in, 3) : several(&o, in, 3);
        CHECK(ds_requires_grad(y));
        CHECK_INT(ds_backward(ds_sum(ds_mul(y, o.hidden))), DS_OK);
        CHECK(!ds_grad(in[2]));
        grads[k][0] = ds_grad(w), grads[k][1] = ds_grad(x), grads[k][2] = ds_grad(h);
    }
    for (int i = 0; i < 3; i++) check_same(grads[0][i], grads[1][i]);
    ds_scope_close(s);
}

static ds_tensor *square(void *arg, ds_tensor **in, int n)
{
    (void)n;
    if (arg) ++*(int *)arg;
    return ds_mul(in[0], in[0]);
}

static ds_tensor *first(void *arg, ds_tensor **in, int n) { return (void)arg, (void)n, in[0]; }

static ds_tensor *detached(void *arg, ds_tensor **in, int n)
{
    return ds_detach(square(arg, in, n));
}

static void nothing_to_run_again(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    int runs = 0;
    ds_tensor *x = ds_scalar(DS_F64, 3);
    ds_tensor *y = ds_checkpoint(square, &runs, &x, 1); /* nothing wants a gradient */
    CHECK_CLOSE(ds_item(y), 9, 0);
    CHECK(!ds_requires_grad(y));
    ds_require_grad(x, true);
    bool was = ds_set_grad(false);
    CHECK(!ds_requires_grad(ds_checkpoint(square, &runs, &x, 1)));
    ds_set_grad(was);
    CHECK(!ds_requires_grad(ds_checkpoint(detached, &runs, &x, 1)));
    CHECK(ds_checkpoint(first, NULL, &x, 1) == x);
    CHECK_INT(runs, 3);
    CHECK_INT(ds_backward(ds_checkpoint(square, &runs, &x, 1)), DS_OK);
    CHECK_INT(runs, 5);
    CHECK_CLOSE(ds_item(ds_grad(x)), 6, 0);
    ds_scope_close(s);
}

static ds_tensor *cubed(ds_ctx *ctx, ds_tensor **in, int n)
{
    (void)n;
    ds_ctx_save(ctx, in[0]);
    return ds_pow(in[0], 3);
}

static void cubed_backward(ds_ctx *ctx, ds_tensor *grad, ds_tensor **grad_in)
{
    grad_in[0] = ds_mul(grad, ds_scale(ds_pow(ds_ctx_saved(ctx, 0), 2), 3));
}

static ds_tensor *own_op(void *arg, ds_tensor **in, int n)
{
    static const ds_op op = {"cubed", cubed, cubed_backward};
    (void)arg;
    return ds_neg(ds_apply(&op, in, n));
}

static void ops_of_ones_own(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = ds_require_grad(ds_scalar(DS_F64, 2), true);
    CHECK_INT(ds_backward(ds_checkpoint(own_op, NULL, &x, 1)), DS_OK);
    CHECK_CLOSE(ds_item(ds_grad(x)), -12, 0);
    ds_scope_close(s);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static ds_module *deep(int depth, int64_t width)
{
    ds_seed(5);
    ds_module *m = ds_nn_sequential(NULL, "deep");
    for (int i = 0; i < depth; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        ds_module *part = ds_nn_sequential(m, name);
        ds_nn_linear(part, "0", width, width);
        ds_nn_gelu(part, "1");
        ds_nn_linear(part, "2", width, width);
        ds_nn_tanh(part, "3");
    }
    return m;
}

/* Bytes above those of model and gradients at the highest point of a step. */
static int64_t peak_of_step(ds_module *m, ds_tensor *x, bool checkpoints)
{
    int64_t before = (int64_t)ds_memory_allocated(ds_current_device());
    ds_scope *s = ds_scope_open();
    ds_memory_reset_peak(ds_current_device());
    ds_tensor *y = x;
    for (int i = 0; i < ds_module_children(m); i++) {
        ds_module *part = ds_module_child(m, i);
        y = checkpoints ? ds_checkpoint_call(part, y) : ds_call(part, y);
    }
    CHECK_INT(ds_backward(ds_mean(y)), DS_OK);
    ds_scope_close(s);
    return (int64_t)ds_memory_peak(ds_current_device()) - before;
}

static void memory_is_that_of_one_part(void **state)
{
    (void)state;
    enum { DEPTH = 8, WIDTH = 16, BATCH = 2048 };
    ds_scope *s = ds_scope_open();
    ds_module *a = deep(DEPTH, WIDTH), *b = deep(DEPTH, WIDTH);
    ds_tensor *x = ds_randn(DS_F32, ds_shape(BATCH, WIDTH));
    int64_t one = BATCH * WIDTH * 4;
    int64_t all = peak_of_step(a, x, false), few = peak_of_step(b, x, true);
    check_same_modules(a, b);
    CHECK(all >= 3 * DEPTH * one);
    /* the inputs of the parts, one part's activations, and a gradient or two */
    CHECK(few <= (DEPTH + 8) * one);
    ds_module_free(a);
    ds_module_free(b);
    ds_scope_close(s);
}

static void graphs_leave_nothing(void **state)
{
    (void)state;
    int64_t before = ds_live_tensors();
    for (int pass = 0; pass < 2; pass++) {
        ds_scope *s = ds_scope_open();
        ds_module *m = net_new(true, true);
        ds_tensor *y = ds_call(m, ds_randn(DS_F32, ds_shape(4, 3, 12, 12)));
        if (pass) CHECK_INT(ds_backward(ds_mean(y)), DS_OK);
        ds_module_free(m);
        ds_scope_close(s);
        CHECK_INT(ds_live_tensors(), before);
    }
}

/* ---- hooks of leaves ----------------------------------------------------------------------------------- */

typedef struct Log {
    char names[16];
    double grad[16];
    int n;
} Log;

static Log fired;

static void note(void *name, ds_tensor *leaf)
{
    fired.grad[fired.n] = ds_item(ds_grad(leaf));
    fired.names[fired.n++] = *(const char *)name;
}

typedef struct Leaves {
    ds_tensor *a, *b;
} Leaves;

static ds_tensor *uses_both(void *arg, ds_tensor **in, int n)
{
    (void)n;
    Leaves *l = arg;
    return ds_mul(ds_mul(ds_mul(in[0], l->b), l->a), l->a); /* x b a^2 */
}

/* a is used in two checkpoints and between them, b in one: each fires once,
 * when it is complete. */
static void hooks_wait_for_the_last_use(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = ds_require_grad(ds_scalar(DS_F64, 1), true);
    Leaves l = {ds_require_grad(ds_scalar(DS_F64, 2), true),
                ds_require_grad(ds_scalar(DS_F64, 3), true)};
    static char a[] = "a", b[] = "b", of_x[] = "x";
    dsi_set_grad_ready_hook(l.a, note, a), dsi_set_grad_ready_hook(l.b, note, b),
        dsi_set_grad_ready_hook(x, note, of_x);
    for (int pass = 1; pass <= 2; pass++) {
        memset(&fired, 0, sizeof fired);
        ds_tensor *y = ds_checkpoint(square, NULL, &l.a, 1);                /* a^2 */
        y = ds_mul(ds_mul(y, x), l.a);                                      /* x a^3 */
        CHECK_INT(ds_backward(ds_checkpoint(uses_both, &l, &y, 1)), DS_OK); /* x a^5 b */
        CHECK(!strcmp(fired.names, "bxa"));
        CHECK_CLOSE(fired.grad[0], pass * 32, 0);
        CHECK_CLOSE(fired.grad[1], pass * 96, 0);
        CHECK_CLOSE(fired.grad[2], pass * 240, 0);
    }
    ds_scope_close(s);
}

/* ---- failures ------------------------------------------------------------------------------------------ */

typedef struct Fickle {
    enum { FAILS = 1, GROWS, FORGETS, LOOKS_ELSEWHERE } how;
    int runs;
    ds_tensor *elsewhere;
} Fickle;

static ds_tensor *fickle(void *arg, ds_tensor **in, int n)
{
    Fickle *f = arg;
    ds_tensor *y = square(NULL, in, n);
    if (++f->runs == 1) return y;
    switch (f->how) {
    case FAILS:
        ds_fail(DS_EIO, "fickle: not again");
        return NULL;
    case GROWS:
        return ds_reshape(y, ds_shape(1));
    case FORGETS:
        return ds_detach(y);
    case LOOKS_ELSEWHERE:
        return ds_mul(y, f->elsewhere);
    }
    return NULL;
}

static void a_second_run_that_differs_is_named(void **state)
{
    (void)state;
    static const char *const want[] = {
        NULL, "fickle: not again",
        "checkpoint: the function gave float64 [1] when it ran again, float64 [] before",
        "checkpoint: what the function gave when it ran again has no graph",
        "checkpoint: the function used a tensor when it ran again that it did not use before"};
    ds_scope *s = ds_scope_open();
    ds_tensor *x = ds_require_grad(ds_scalar(DS_F64, 3), true);
    static char name[] = "x";
    dsi_set_grad_ready_hook(x, note, name);
    for (int how = FAILS; how <= LOOKS_ELSEWHERE; how++) {
        memset(&fired, 0, sizeof fired);
        Fickle f = {.how = how, .elsewhere = ds_mul(x, x)};
        CHECK(ds_backward(ds_mul(ds_checkpoint(fickle, &f, &x, 1), x)) != DS_OK);
        CHECK_ERROR(want[how]);
        CHECK_INT(fired.n, 0);
        ds_set_grad_of(x, NULL);
        CHECK_INT(ds_backward(ds_checkpoint(square, NULL, &x, 1)), DS_OK);
        CHECK_INT(fired.n, 1);
        CHECK_CLOSE(fired.grad[0], 6, 0);
        ds_set_grad_of(x, NULL);
    }
    ds_scope_close(s);
}

static ds_tensor *never(void *arg, ds_tensor **in, int n)
{
    (void)arg, (void)in, (void)n;
    ds_fail(DS_EIO, "never: no");
    return NULL;
}

static ds_tensor *leaks(void *arg, ds_tensor **in, int n)
{
    ds_tensor **kept = arg, *y = square(NULL, in, n);
    if (!*kept) *kept = ds_keep(y);
    return ds_scale(y, 2);
}

static void refusals(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = ds_require_grad(ds_scalar(DS_F64, 3), true), *none = NULL, *many[33];
    for (int i = 0; i < 33; i++) many[i] = x;
    CHECK(!ds_checkpoint(NULL, NULL, &x, 1));
    CHECK_ERROR("checkpoint: the function is NULL");
    CHECK(!ds_checkpoint(square, NULL, many, 33));
    CHECK_ERROR("checkpoint: 33 inputs: expected at most 32");
    CHECK(!ds_checkpoint(square, NULL, &none, 1));
    CHECK_ERROR("checkpoint: an operand is NULL");
    CHECK(!ds_checkpoint(never, NULL, &x, 1));
    CHECK_ERROR("never: no");
    CHECK(!ds_checkpoint_call(NULL, x));
    CHECK_ERROR("checkpoint_call: an operand is NULL");
    ds_tensor *y = ds_mul(x, x);
    CHECK_INT(ds_backward(y), DS_OK); /* no watch was left behind */

    ds_tensor *inner = NULL;
    y = ds_checkpoint(leaks, &inner, &x, 1);
    CHECK(ds_backward(ds_mul(y, inner)) != DS_OK);
    CHECK_ERROR("made inside of a checkpoint");
    ds_drop(inner);

    y = ds_checkpoint(square, NULL, &x, 1);
    CHECK_INT(ds_backward(y), DS_OK);
    CHECK(ds_backward(y) != DS_OK);
    CHECK_ERROR("checkpoint was passed before");
    ds_scope_close(s);
}

static int completed;

static void count(void *arg, ds_tensor *leaf)
{
    (void)arg;
    completed++;
    if (!ds_grad(leaf)) fail_msg("a hook without a gradient");
}

/* Each allocation of a step fails in turn: one message, nothing left behind,
 * and the next step is whole. */
/* ---- outputs beside the result ------------------------------------------------------------------------- */

/* y = x^2, and exp(x) by name, `forgets` it the second time. */
typedef struct Two {
    ds_tensor *other; /* kept, of the first run */
    bool forgets;
} Two;

static ds_tensor *two(void *arg, ds_tensor **in, int n)
{
    (void)n;
    Two *t = arg;
    ds_tensor *other = ds_exp(in[0]);
    if (!ds_recomputing() || !t->forgets) ds_checkpoint_output(other);
    if (!ds_recomputing()) t->other = ds_keep(other);
    return other ? ds_mul(in[0], in[0]) : NULL;
}

/* d/dx (f y + g other) at 3; `f` or `g` 0: not used. */
static ds_status two_backward(Two *t, ds_tensor *x, double f, double g)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *y = ds_checkpoint(two, t, &x, 1), *loss = NULL;
    if (f != 0) loss = ds_scale(y, f);
    if (g != 0) loss = loss ? ds_add_scaled(loss, t->other, g) : ds_scale(t->other, g);
    ds_status status = ds_backward(loss);
    ds_drop(t->other);
    t->other = NULL;
    ds_scope_close(scope);
    return status;
}

static void named_outputs(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = ds_require_grad(ds_scalar(DS_F64, 3), true);
    CHECK(ds_checkpoint_output(x) == x && !ds_checkpoint_output(NULL));
    ds_error_clear();
    for (int how = 1; how < 4; how++) {
        Two t = {0};
        double f = how & 1 ? 2 : 0, g = how & 2 ? 5 : 0;
        ds_set_grad_of(x, NULL);
        CHECK_INT(two_backward(&t, x, f, g), DS_OK);
        CHECK_CLOSE(ds_item(ds_grad(x)), f * 6 + g * exp(3), 1e-12);
        for (int64_t n = 1, used = n; used >= n; n++) {
            int64_t tensors = ds_live_tensors();
            dsi_cache_empty(dsi_device_get(ds_current_device()));
            dsi_cache_fail(n, false);
            ds_set_grad_of(x, NULL);
            bool good = two_backward(&t, x, f, g) == DS_OK;
            used = dsi_cache_fail(0, false);
            CHECK(good == (used < n));
            ds_error_clear();
            ds_set_grad_of(x, NULL);
            CHECK(ds_live_tensors() <= tensors);
        }
        t.forgets = true;
        CHECK(two_backward(&t, x, f, g) != DS_OK);
        CHECK_ERROR("checkpoint: the function named 0 outputs when it ran again, 1 before");
    }
    ds_scope_close(s);
}

static void no_memory_anywhere(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = net_new(true, true);
    ds_tensor *x = ds_randn(DS_F32, ds_shape(4, 3, 12, 12));
    int params = ds_module_params(m);
    for (int i = 0; i < params; i++)
        dsi_set_grad_ready_hook(ds_module_param_at(m, i, NULL), count, NULL);
    for (int64_t n = 1;; n++) {
        ds_module_zero_grad(m);
        completed = 0;
        int64_t tensors = ds_live_tensors();
        ds_scope *turn = ds_scope_open();
        dsi_cache_empty(dsi_device_get(ds_current_device()));
        dsi_cache_fail(n, false);
        ds_status status = ds_backward(ds_mean(ds_call(m, x)));
        int64_t allocations = dsi_cache_fail(0, false);
        ds_scope_close(turn);
        ds_module_zero_grad(m);
        CHECK_INT(ds_live_tensors(), tensors);
        CHECK(completed <= params && (status == DS_OK) == (allocations < n));
        ds_error_clear();

        completed = 0;
        turn = ds_scope_open();
        CHECK_INT(ds_backward(ds_mean(ds_call(m, x))), DS_OK);
        ds_scope_close(turn);
        CHECK_INT(completed, params);
        if (status == DS_OK) break;
    }
    ds_module_free(m);
    ds_scope_close(s);
}

static void configuration(void **state)
{
    (void)state;
    CHECK(!ds_checkpoint_is_configured());
    CHECK_INT(ds_checkpoint_configure((ds_checkpoint_opts){.cpu_checkpointing = true,
                                                           .synchronize_checkpoint_boundary = true,
                                                           .number_checkpoints = 4}),
              DS_OK);
    CHECK(ds_checkpoint_is_configured());
    CHECK(ds_checkpoint_configure((ds_checkpoint_opts){.contiguous_memory_optimization = true}) !=
          DS_OK);
    CHECK_ERROR("set partition_activations too");
    CHECK(ds_checkpoint_configure((ds_checkpoint_opts){.contiguous_memory_optimization = true,
                                                       .partition_activations = true}) != DS_OK);
    CHECK_ERROR("needs number_checkpoints");
    CHECK(ds_checkpoint_configure((ds_checkpoint_opts){.number_checkpoints = -1}) != DS_OK);
    CHECK_ERROR("number_checkpoints is -1");
    CHECK_INT(ds_checkpoint_configure((ds_checkpoint_opts){.partition_activations = true,
                                                           .contiguous_memory_optimization = true,
                                                           .number_checkpoints = 4,
                                                           .profile = true}),
              DS_OK);
    ds_scope *s = ds_scope_open();
    ds_tensor *x = ds_require_grad(ds_scalar(DS_F64, 3), true);
    CHECK_INT(ds_backward(ds_checkpoint(square, NULL, &x, 1)), DS_OK);
    ds_scope_close(s);
    CHECK_INT(ds_checkpoint_configure((ds_checkpoint_opts){0}), DS_OK);
}

TEST_MAIN(cmocka_unit_test(a_net_learns_the_same), cmocka_unit_test(inputs_of_all_kinds),
          cmocka_unit_test(nothing_to_run_again), cmocka_unit_test(ops_of_ones_own),
          cmocka_unit_test(memory_is_that_of_one_part), cmocka_unit_test(graphs_leave_nothing),
          cmocka_unit_test(hooks_wait_for_the_last_use),
          cmocka_unit_test(a_second_run_that_differs_is_named), cmocka_unit_test(refusals),
          cmocka_unit_test(named_outputs), cmocka_unit_test(no_memory_anywhere),
          cmocka_unit_test(configuration))
