/* tests/ops/norm_relu.c: batch norm, the addition behind it, and ReLU in one pass
 * (ops/norm_relu.c) have the bits of the three ops. Devices without the fusion
 * run the same checks, but wait for nothing.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "tensor/tensor.h"

#include <deepspeed/profile.h>

static const ds_dims small = {4, {4, 16, 5, 3}};
static ds_dims planes = {4, {4, 16, 5, 3}};

typedef struct Net {
    ds_tensor *x, *r, *weight, *bias; /* leaves */
    ds_tensor *mean, *var;            /* running */
    ds_tensor *in, *add;              /* of x and r: results whose address was not given out */
} Net;

static ds_dtype dtype;
static bool last, affine;

static ds_dims channels(void) { return ds_shape(planes.d[1]); }

static bool waits(const ds_tensor *y) { return y->storage && y->storage->deferred; }

static ds_tensor *leaf(ds_dims shape, double spread, double mean)
{
    return ds_require_grad(
        ds_cast(ds_shift(ds_scale(ds_randn(DS_F32, shape), spread), mean), dtype), true);
}

/* Fresh, in the layout of this test. */
static ds_tensor *image(ds_tensor *x)
{
    if (!last) return ds_scale(x, 1);
    x = ds_scale(ds_contiguous(ds_permute(x, ds_shape(0, 2, 3, 1))), 1);
    return ds_permute(x, ds_shape(0, 3, 1, 2));
}

static Net net_new(void)
{
    Net n = {.x = leaf(planes, 2, 1), .r = leaf(planes, 1, 0)};
    ds_seed(3);
    n.mean = ds_zeros(DS_F32, channels()), n.var = ds_ones(DS_F32, channels());
    if (affine) n.weight = leaf(channels(), 1, 0.5), n.bias = leaf(channels(), 0.5, 0);
    n.in = image(n.x), n.add = image(n.r);
    return n;
}

static ds_tensor *norm(Net *n)
{
    return ds_batch_norm_with(n->in, (ds_batch_norm_opts){.weight = n->weight,
                                                          .bias = n->bias,
                                                          .running_mean = n->mean,
                                                          .running_var = n->var,
                                                          .training = true});
}

/* Without waiting: its first reader is a view. */
static ds_tensor *now(ds_tensor *y)
{
    CHECK(dsi_acquire(y) && !waits(y));
    return y;
}

static bool equal(ds_tensor *a, ds_tensor *b)
{
    if (!a || !b) return !a && !b;
    return dsi_same_shape(a->shape, b->shape) &&
           !memcmp(ds_data(a), ds_data(b), (size_t)ds_numel(a) * ds_dtype_size(a->dtype));
}

static bool near(ds_tensor *a, ds_tensor *b)
{
    if (!a || !b) return !a && !b;
    double off = ds_item(ds_norm(ds_sub(ds_cast(a, DS_F64), ds_cast(b, DS_F64)))),
           size = ds_item(ds_norm(ds_cast(b, DS_F64)));
    return off <= size * (dtype == DS_F32 ? 1e-6 : 4e-3);
}

/* Backward of y weighted by numbers of both signs. */
static void backward(ds_tensor *y)
{
    ds_seed(5);
    CHECK_INT(ds_backward_from(y, ds_cast(ds_randn(DS_F32, y->shape), dtype)), DS_OK);
}

static void same_gradients(const Net *a, const Net *b)
{
    CHECK(near(ds_grad(a->x), ds_grad(b->x)) && near(ds_grad(a->r), ds_grad(b->r)));
    if (affine)
        CHECK(near(ds_grad(a->weight), ds_grad(b->weight)) &&
              near(ds_grad(a->bias), ds_grad(b->bias)));
    CHECK(equal(a->mean, b->mean) && equal(a->var, b->var));
}

/* ---- what is computed --------------------------------------------------------------------------------- */

typedef ds_tensor *form(Net *n, ds_tensor *(*as)(ds_tensor *y));

static ds_tensor *plain(Net *n, ds_tensor *(*as)(ds_tensor *y)) { return ds_relu(as(norm(n))); }
static ds_tensor *residual(Net *n, ds_tensor *(*as)(ds_tensor *y))
{
    return ds_relu(as(ds_add(as(norm(n)), n->add)));
}
static ds_tensor *residual_first(Net *n, ds_tensor *(*as)(ds_tensor *y))
{
    return ds_relu(as(ds_add(n->add, as(norm(n)))));
}
static ds_tensor *sum_alone(Net *n, ds_tensor *(*as)(ds_tensor *y))
{
    return as(ds_add(as(norm(n)), n->add));
}
static ds_tensor *twice(Net *n, ds_tensor *(*as)(ds_tensor *y))
{
    ds_tensor *y = as(norm(n));
    return ds_mul(ds_relu(y), ds_add(y, ds_relu(y)));
}
/* Both operands wait. */
static ds_tensor *two_norms(Net *n, ds_tensor *(*as)(ds_tensor *y))
{
    ds_tensor *y = as(norm(n)), *in = n->in;
    n->in = n->add;
    ds_tensor *z = as(norm(n));
    n->in = in;
    return ds_relu(as(ds_add(y, z)));
}
static ds_tensor *with_itself(Net *n, ds_tensor *(*as)(ds_tensor *y))
{
    ds_tensor *y = as(norm(n));
    return ds_relu(ds_add(y, y));
}
/* A view's gradient comes by a node of its own. */
static ds_tensor *through_a_view(Net *n, ds_tensor *(*as)(ds_tensor *y))
{
    return ds_relu(ds_permute(ds_permute(as(norm(n)), ds_shape(1, 0, 2, 3)), ds_shape(1, 0, 2, 3)));
}
static ds_tensor *pooled(Net *n, ds_tensor *(*as)(ds_tensor *y))
{
    return ds_max_pool2d(ds_relu(as(norm(n))), 2);
}
static ds_tensor *detached(Net *n, ds_tensor *(*as)(ds_tensor *y))
{
    ds_tensor *y = as(norm(n));
    return ds_add(ds_relu(ds_detach(y)), y);
}

static form *const forms[] = {plain,     residual,    residual_first, sum_alone, twice,
                              two_norms, with_itself, through_a_view, pooled,    detached};

static ds_tensor *keep(ds_tensor *y) { return y; }

/* The first n. */
static void check_forms(size_t n)
{
    for (size_t i = 0; i < n; i++) {
        ds_scope *s = ds_scope_open();
        ds_seed(1);
        Net a = net_new();
        ds_seed(1);
        Net b = net_new();
        ds_tensor *y = forms[i](&a, keep), *want = forms[i](&b, now);
        CHECK(equal(y, want));
        backward(y), backward(want);
        same_gradients(&a, &b);
        ds_scope_close(s);
    }
}

static void forms_have_the_same_bits(void **state)
{
    (void)state;
    for (dtype = DS_F32; dtype <= DS_BF16; dtype++)
        for (int k = 0; k < 4; k++) {
            last = k & 1, affine = k & 2;
            if (dtype != DS_F64) check_forms(sizeof forms / sizeof *forms);
        }
    dtype = DS_F32, last = affine = true;
}

/* More channels, and larger planes, than the CPU's kernels take at a time. */
static void in_pieces(void **state)
{
    (void)state;
    static const ds_dims many[] = {{4, {3, 131, 2, 3}}, {4, {2, 64, 9, 5}}, {4, {2, 3, 47, 47}}};
    for (int i = 0; i < 3; i++)
        for (dtype = DS_F32; dtype <= DS_BF16; dtype++)
            for (int k = 0; k < 2; k++) {
                planes = many[i], last = k;
                if (dtype != DS_F64) check_forms(2);
            }
    planes = small, dtype = DS_F32, last = true;
}

/* ---- when it waits ------------------------------------------------------------------------------------- */

static void recorded_results_wait(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    Net n = net_new();
    bool fused = dsi_fusion(n.x->device, batch_norm_relu);
    ds_tensor *y = norm(&n), *sum = ds_add(y, n.add);
    CHECK(waits(y) == fused && waits(sum) == fused);
    ds_relu(sum);
    CHECK(waits(y) == fused && waits(sum) == fused); /* they were not read */
    ds_set_grad(false);
    CHECK(!waits(norm(&n))); /* it would keep x */
    ds_set_grad(true);
    n = net_new();
    n.in = ds_reshape(n.in, ds_shape(4, 16, -1));
    CHECK(!waits(norm(&n)));
    n = net_new();
    ds_batch_norm_opts eval = {.running_mean = n.mean, .running_var = n.var};
    CHECK(!waits(ds_batch_norm_with(n.in, eval)));
    ds_scope_close(s);
}

/* Values that are written between the ops do not count: x, weight, the addend. */
static void writing_comes_too_late(void **state)
{
    (void)state;
    for (int what = 0; what < 4; what++) {
        ds_scope *s = ds_scope_open();
        ds_seed(1);
        Net a = net_new();
        ds_seed(1);
        Net b = net_new();
        ds_tensor *y = norm(&a), *want = now(norm(&b));
        if (what) y = ds_add(y, a.add), want = now(ds_add(want, b.add));
        ds_tensor *to[] = {a.in, a.in, a.add, a.weight};
        CHECK_INT(dsi_copy(to[what], ds_like(to[what], 7)), DS_OK);
        if (what == 3) CHECK_INT(dsi_copy(a.bias, ds_like(a.bias, 7)), DS_OK);
        CHECK(equal(ds_relu(y), ds_relu(want)) && equal(y, want));
        ds_scope_close(s);
    }
}

/* An optimizer updates weight and bias between forward and backward of a second
 * result, whose mask stays that of its values. */
static void an_optimizer_steps_between(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = ds_nn_sequential(NULL, "m");
    ds_module *layer = ds_nn_batch_norm2d(m, "0", 16);
    ds_seed(1);
    Net n = net_new();
    ds_optim *o = ds_optim_sgd(m, 1.0);
    CHECK_INT(ds_backward(ds_sum(ds_mul(ds_call(layer, n.in), n.add))), DS_OK);
    ds_tensor *y = ds_call(layer, n.in), *want = now(ds_clone(ds_call(layer, n.in)));
    CHECK_INT(ds_optim_step(o), DS_OK);
    CHECK(equal(ds_relu(y), ds_relu(want)) && equal(y, want));
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(s);
}

static void it_outlives_its_source(void **state)
{
    (void)state;
    int64_t before = ds_live_tensors();
    ds_scope *s = ds_scope_open();
    ds_seed(1);
    Net a = net_new();
    ds_seed(1);
    Net b = net_new();
    ds_tensor *want = sum_alone(&b, now);
    ds_scope *inner = ds_scope_open();
    ds_tensor *y = ds_keep(sum_alone(&a, keep));
    ds_scope_close(inner);
    ds_relu(y);
    CHECK(equal(y, want));
    ds_drop(y);
    ds_scope_close(s);
    CHECK_INT(ds_live_tensors() - before, 0);
}

static void a_detached_result_holds_no_graph(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    Net n = net_new();
    int64_t before = ds_live_tensors();
    ds_scope *inner = ds_scope_open();
    ds_tensor *y = ds_keep(ds_detach(norm(&n)));
    ds_scope_close(inner);
    CHECK_INT(ds_live_tensors() - before, 1);
    ds_drop(y);
    ds_scope_close(s);
}

/* Gradients are those of the leaves that were trained when batch norm was called,
 * also if its result is read later. */
static void leaves_change_between(void **state)
{
    (void)state;
    for (int what = 0; what < 2; what++)
        for (int read = 0; read < 2; read++) {
            ds_scope *s = ds_scope_open();
            Net n = net_new();
            n.in = ds_randn(DS_F32, planes);
            ds_tensor *y = norm(&n);
            if (read) now(y);
            ds_require_grad(what ? n.in : n.weight, what);
            CHECK_INT(ds_backward(ds_sum(ds_relu(y))), DS_OK);
            CHECK(ds_grad(n.weight) && ds_grad(n.bias) && !ds_grad(n.in));
            ds_scope_close(s);
        }
}

static ds_tensor *relu_again(void *unused, ds_tensor **in, int n)
{
    (void)unused, (void)n;
    return ds_relu(in[0]);
}

/* A part that is computed again has a batch norm's result as its input, which is
 * read after it. */
static void a_part_is_computed_again(void **state)
{
    (void)state;
    for (int read = 0; read < 2; read++) {
        ds_scope *s = ds_scope_open();
        ds_seed(1);
        Net a = net_new();
        ds_seed(1);
        Net b = net_new();
        ds_tensor *y = norm(&a), *z = ds_checkpoint(relu_again, NULL, &y, 1);
        if (read) now(y);
        backward(z);
        backward(ds_relu(now(norm(&b))));
        same_gradients(&a, &b);
        ds_scope_close(s);
    }
}

/* Calls of batch norm's backward kernels. */
static int64_t norms_backward(ds_tensor *y)
{
    ds_profile_row row[40];
    int64_t calls = 0;
    CHECK_INT(ds_profile_begin(), DS_OK);
    backward(y);
    CHECK_INT(ds_profile_end(), DS_OK);
    int n = ds_profile_rows(row, 40, (ds_profile_opts){0});
    for (int i = 0; i < n && i < 40; i++)
        if (strstr(row[i].name, ": batch_norm_dx") || strstr(row[i].name, ": batch_norm_relu_dx"))
            calls += row[i].calls;
    return calls;
}

/* Batch norm has one backward, of the sum of both gradients, in the bits of the
 * three ops; and alone, each way does. */
static void another_op_reads_it_too(void **state)
{
    (void)state;
    static form *const of[] = {twice, plain, sum_alone};
    for (dtype = DS_F32; dtype <= DS_BF16; dtype++)
        for (int i = 0; i < 3 && dtype != DS_F64; i++) {
            ds_scope *s = ds_scope_open();
            ds_seed(1);
            Net a = net_new();
            ds_seed(1);
            Net b = net_new();
            CHECK_INT(norms_backward(of[i](&a, keep)), 1);
            CHECK_INT(norms_backward(of[i](&b, now)), 1);
            same_gradients(&a, &b);
            if (i == 0) CHECK(equal(ds_grad(a.x), ds_grad(b.x)));
            if (i == 0) CHECK(equal(ds_grad(a.weight), ds_grad(b.weight)));
            ds_scope_close(s);
        }
    dtype = DS_F32;
}

/* Two losses, of which the first reaches the ReLU alone. */
static void a_pass_for_each_reader(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_seed(1);
    Net a = net_new();
    ds_seed(1);
    Net b = net_new();
    a.in = ds_detach(a.in), b.in = ds_detach(b.in); /* their node would be passed twice */
    ds_tensor *y = norm(&a), *z = ds_relu(y), *other = ds_scale(y, 3);
    if (!dsi_fusion(y->device, batch_norm_relu)) {
        ds_scope_close(s); /* there, both readers pass the one node of y */
        skip();
    }
    CHECK_INT(norms_backward(z), 1);
    CHECK_INT(norms_backward(other), 1);
    backward(ds_relu(now(norm(&b))));
    backward(ds_scale(now(norm(&b)), 3));
    CHECK(near(ds_grad(a.weight), ds_grad(b.weight)) && near(ds_grad(a.bias), ds_grad(b.bias)));
    ds_scope_close(s);
}

/* A gradient of planes is added to while a ReLU of it waits. */
static void a_gradient_is_a_source(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *w = ds_require_grad(ds_ones(DS_F32, small), true);
    CHECK_INT(ds_backward(ds_sum(ds_scale(w, 3))), DS_OK);
    ds_tensor *y = ds_relu(ds_grad(w));
    CHECK_INT(ds_backward(ds_sum(ds_scale(w, 3))), DS_OK);
    CHECK_CLOSE(ds_item(ds_mean(y)), 3, 1e-6);
    CHECK_CLOSE(ds_item(ds_mean(ds_grad(w))), 6, 2e-6);
    ds_scope_close(s);
}

static ds_tensor *weighted(ds_tensor **in)
{
    ds_batch_norm_opts o = {.weight = in[1], .bias = in[2], .training = true};
    return ds_sum(ds_mul(ds_relu(ds_batch_norm_with(image(in[0]), o)), in[3]));
}

/* No value is so near 0 that the difference quotient would cross it. */
static void gradients_are_those_of_differences(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        last = k;
        ds_scope *s = ds_scope_open();
        ds_seed(11);
        ds_tensor *in[] = {ds_randn(DS_F32, ds_shape(2, 4, 2, 2)), ds_full(DS_F32, ds_shape(4), 2),
                           ds_full(DS_F32, ds_shape(4), 0.3),
                           ds_randn(DS_F32, ds_shape(2, 4, 2, 2))};
        for (int i = 0; i < 3; i++) ds_require_grad(in[i], true);
        CHECK_INT(ds_backward(weighted(in)), DS_OK);
        for (int i = 0; i < 3; i++)
            for (int64_t e = 0; e < ds_numel(in[i]); e += i ? 1 : 5) {
                double value[2], was = ds_item(ds_select(ds_flatten(in[i], 0), 0, (int)e));
                for (int side = 0; side < 2; side++) {
                    set_element(in[i], e, was + (side ? 2e-3 : -2e-3));
                    value[side] = ds_item(weighted(in));
                }
                set_element(in[i], e, was);
                double got = ds_item(ds_select(ds_flatten(ds_grad(in[i]), 0), 0, (int)e));
                CHECK_CLOSE(got, (value[1] - value[0]) / 4e-3, 2e-2);
            }
        ds_scope_close(s);
    }
}

TEST_MAIN(cmocka_unit_test(forms_have_the_same_bits), cmocka_unit_test(in_pieces),
          cmocka_unit_test(recorded_results_wait), cmocka_unit_test(writing_comes_too_late),
          cmocka_unit_test(an_optimizer_steps_between), cmocka_unit_test(it_outlives_its_source),
          cmocka_unit_test(a_detached_result_holds_no_graph),
          cmocka_unit_test(leaves_change_between), cmocka_unit_test(a_part_is_computed_again),
          cmocka_unit_test(another_op_reads_it_too), cmocka_unit_test(a_pass_for_each_reader),
          cmocka_unit_test(a_gradient_is_a_source),
          cmocka_unit_test(gradients_are_those_of_differences))
