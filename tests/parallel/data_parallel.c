/* tests/parallel/data_parallel.c: DataParallel: replicas on threads beside one
 * process with the whole batch.
 * SPDX-License-Identifier: MIT */
#include "autograd/node.h"
#include "probe.h"

#define MOST_REPLICAS 4

/* ---- as one process -------------------------------------------------------------------------------------- */

static const int batches[] = {24, 24, 25, 7, 3, 2, 1, 5}; /* uneven, smaller than the replicas */

/* A step with n samples: by dp, or, if it is NULL, plainly. Returns the loss. */
static double step(ds_data_parallel *dp, ds_module *net, ds_optim *optim, int64_t from, int n)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *labels, *x = samples(DS_F32, from, n, &labels);
    ds_optim_zero_grad(optim);
    ds_tensor *y = dp ? ds_data_parallel_call(dp, x) : ds_call(net, x);
    ds_tensor *loss = ds_cross_entropy(y, labels);
    ds_backward(loss);
    ds_optim_step(optim);
    double value = ds_item(loss);
    ds_scope_close(scope);
    return value;
}

typedef struct Trained {
    double loss[20];
    float w[ROOM];
    int n;
} Trained;

/* replicas 0: without DataParallel */
static void train(Trained *t, int replicas)
{
    ds_module *net = net_new();
    ds_data_parallel *dp = replicas ? ds_data_parallel_new(net, replicas, same_net, NULL) : NULL;
    CHECK(!replicas || dp);
    CHECK(!dp || ds_data_parallel_module(dp) == net);
    ds_optim *sgd = ds_optim_sgd(net, 0.05, .momentum = 0.9);
    for (int i = 0; i < 20; i++) t->loss[i] = step(dp, net, sgd, 100 * i, batches[i % 8]);
    t->n = values(net, t->w, ROOM);
    CHECK(!ds_error());
    ds_optim_free(sgd);
    ds_data_parallel_free(dp);
    ds_module_free(net);
}

static void as_one_process(void **state)
{
    (void)state;
    Trained *want = calloc(1, sizeof *want), *got = calloc(1, sizeof *got);
    Trained *again = calloc(1, sizeof *again);
    train(want, 0);
    for (int replicas = 1; replicas <= MOST_REPLICAS; replicas++) {
        train(got, replicas);
        CHECK_INT(got->n, want->n);
        for (int i = 0; i < 20; i++) CHECK_CLOSE(got->loss[i], want->loss[i], 1e-6);
        for (int i = 0; i < want->n; i++) CHECK_CLOSE(got->w[i], want->w[i], 1e-6);
        ds_set_threads(1 + replicas);
        train(again, replicas);
        ds_set_threads(1);
        assert_memory_equal(again->w, got->w, sizeof(float) * (size_t)got->n);
        assert_memory_equal(again->loss, got->loss, sizeof got->loss);
    }
    free(want), free(got), free(again);
}

/* Outputs, and the gradients of parameters and inputs, in the middle of a
 * graph. */
static void gradients(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    for (int replicas = 1; replicas <= MOST_REPLICAS; replicas++) {
        ds_module *one = net_new(), *net = net_new();
        ds_data_parallel *dp = ds_data_parallel_new(net, replicas, same_net, NULL);
        ds_tensor *labels, *x = samples(DS_F32, 5, 11, &labels);
        ds_tensor *a = ds_require_grad(ds_clone(x), true), *b = ds_require_grad(ds_clone(x), true);
        ds_tensor *want = ds_call(one, ds_tanh(a));
        ds_tensor *got = ds_data_parallel_call(dp, ds_tanh(b));
        CHECK_INT(ds_size(got, 0), 11);
        for (int i = 0; i < 77; i++)
            CHECK_CLOSE(((const float *)ds_data(got))[i], ((const float *)ds_data(want))[i], 1e-6);
        CHECK_INT(ds_backward(ds_cross_entropy(ds_tanh(want), labels)), DS_OK);
        CHECK_INT(ds_backward(ds_cross_entropy(ds_tanh(got), labels)), DS_OK);
        for (int i = 0; i < ds_module_params(net); i++) {
            const char *path;
            ds_tensor *p = ds_module_param_at(net, i, &path);
            const float *g = ds_data(ds_grad(p)),
                        *w = ds_data(ds_grad(ds_module_param_at(one, i, NULL)));
            for (int k = 0; k < ds_numel(p); k++)
                CHECK_CLOSE(g[k], w[k], 1e-6 * fabsf(w[k]) + 1e-8);
        }
        const float *g = ds_data(ds_grad(b)), *w = ds_data(ds_grad(a));
        for (int k = 0; k < ds_numel(a); k++) CHECK_CLOSE(g[k], w[k], 1e-6 * fabsf(w[k]) + 1e-9);
        ds_data_parallel_free(dp);
        ds_module_free(one), ds_module_free(net);
    }
    ds_scope_close(scope);
}

static ds_module *conv_new(void *arg)
{
    (void)arg;
    return ds_nn_conv2d(NULL, "conv", 3, 5, 3, .padding = 1);
}

/* Planes in and out, in any memory order. */
static void planes(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *one = conv_new(NULL), *net = conv_new(NULL);
    ds_state *weights = ds_module_state(one);
    CHECK_INT(ds_module_load(net, weights), DS_OK);
    ds_state_free(weights);
    ds_data_parallel *dp = ds_data_parallel_new(net, 3, conv_new, NULL);
    ds_tensor *labels, *x = ds_require_grad(samples(DS_F32, 0, 7, &labels), true);
    ds_tensor *want = ds_call(one, x), *y = ds_data_parallel_call(dp, x);
    CHECK_INT(ds_backward(ds_sum(ds_mul(want, want))), DS_OK);
    ds_tensor *dx = ds_keep(ds_grad(x));
    ds_set_grad_of(x, NULL);
    CHECK_INT(ds_backward(ds_sum(ds_mul(y, y))), DS_OK);
    const float *a = ds_data(ds_detach(y)), *b = ds_data(ds_detach(want));
    for (int i = 0; i < ds_numel(y); i++) CHECK_CLOSE(a[i], b[i], 1e-6);
    const float *g = ds_data(ds_grad(x)), *w = ds_data(dx);
    for (int i = 0; i < ds_numel(x); i++) CHECK_CLOSE(g[i], w[i], 1e-5);
    ds_drop(dx);
    ds_data_parallel_free(dp);
    ds_module_free(one), ds_module_free(net);
    ds_scope_close(scope);
}

/* ---- what replicas are given -------------------------------------------------------------------------------- */

static void chunks_as_torch(void **state)
{
    (void)state;
    static const int want[][8] = {{1, 0},    {1, 1},    {1, 1, 1},    {1, 1, 1, 1},
                                  {2, 2, 1}, {2, 2, 2}, {2, 2, 2, 1}, {2, 2, 2, 2}};
    ds_scope *scope = ds_scope_open();
    ds_module *m = probe_new(NULL);
    ds_data_parallel *dp = ds_data_parallel_new(m, 4, probe_new, NULL);
    what = ROWS;
    for (int n = 1; n <= 8; n++) {
        ds_tensor *y = ds_data_parallel_call(dp, column(n, one_to_8));
        CHECK_INT(ds_numel(y), n);
        int row = 0;
        for (int part = 0; part < 4; part++)
            for (int k = 0; k < want[n - 1][part]; k++) CHECK_INT(at(y, row++), want[n - 1][part]);
        CHECK_INT(row, n);
    }
    ds_tensor *empty = ds_data_parallel_call(dp, ds_zeros(DS_F32, ds_shape(0, 1)));
    CHECK_INT(ds_size(empty, 0), 0);
    CHECK(empty && !ds_error());
    ds_data_parallel_free(dp);
    ds_module_free(m);
    ds_scope_close(scope);
}

static void inputs_and_values(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = probe_new(NULL);
    Probe *p = ds_self(m);
    ds_data_parallel *dp = ds_data_parallel_new(m, 2, probe_new, NULL);
    what = PRODUCT;
    ds_tensor *a = ds_require_grad(column(3, one_to_8), true), *b = column(3, one_to_8 + 1);
    ds_tensor *y = ds_data_parallel_call(dp, a, b);
    for (int i = 0; i < 3; i++) CHECK_CLOSE(at(y, i), 3 * (i + 1) * (i + 2), 0);
    CHECK_INT(ds_backward(ds_sum(y)), DS_OK);
    for (int i = 0; i < 3; i++) CHECK_CLOSE(at(ds_grad(a), i), 3 * (i + 2), 0);
    CHECK_CLOSE(at(ds_grad(p->w), 0), 2 + 6 + 12, 0);
    CHECK_CLOSE(at(ds_grad(p->unused), 1), 0, 0); /* zeros, as torch gives */

    /* what a module was given, returned */
    what = SAME;
    ds_set_grad_of(a, NULL);
    y = ds_data_parallel_call(dp, a);
    CHECK_CLOSE(at(y, 2), 3, 0);
    CHECK_INT(ds_backward(ds_sum(ds_mul(y, y))), DS_OK);
    for (int i = 0; i < 3; i++) CHECK_CLOSE(at(ds_grad(a), i), 2 * (i + 1), 0);

    /* a value of each replica: a vector; two calls, gradients that add up */
    what = VALUE;
    ds_tensor *one = ds_data_parallel_call(dp, a), *two = ds_data_parallel_call(dp, b);
    CHECK_INT(ds_ndim(one), 1);
    CHECK_INT(ds_numel(one), 2);
    CHECK_CLOSE(at(one, 0), 4.5, 0);
    CHECK_CLOSE(at(one, 1), 9, 0);
    CHECK_INT(ds_backward(ds_add(ds_sum(one), ds_sum(two))), DS_OK);
    CHECK_CLOSE(at(ds_grad(p->w), 0), 20 + 1.5 + 3 + 2.5 + 4, 1e-5);
    CHECK_INT(ds_backward(ds_sum(one)), DS_ESTATE);
    CHECK_ERROR("passed before");

    /* a frozen parameter, which is not trained */
    ds_module_zero_grad(m);
    ds_require_grad(p->w, false);
    CHECK_INT(ds_backward(ds_sum(ds_data_parallel_call(dp, a))), DS_OK);
    CHECK(!ds_grad(p->w));
    CHECK(!ds_requires_grad(ds_data_parallel_call(dp, b)));
    ds_data_parallel_free(dp);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* ---- modes, buffers, dtypes ---------------------------------------------------------------------------------- */

static void follows_the_module(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = probe_new(NULL);
    Probe *p = ds_self(m);
    ds_data_parallel *dp = ds_data_parallel_new(m, 2, probe_new, NULL);
    what = MODES;
    ds_tensor *x = column(4, one_to_8);
    CHECK_CLOSE(at(ds_data_parallel_call(dp, x), 3), 1 + 10 + 200, 0);
    bool was = ds_set_grad(false);
    ds_module_train(m, false);
    /* the buffer of replica 0 stays, and is where each replica begins */
    ds_tensor *y = ds_data_parallel_call(dp, x);
    CHECK_CLOSE(at(y, 0), 400, 0);
    CHECK_CLOSE(at(y, 3), 400, 0);
    CHECK_CLOSE(ds_item(p->seen), 4, 0);
    ds_module_train(m, true);
    ds_set_grad(was);
    CHECK_CLOSE(at(ds_data_parallel_call(dp, x), 3), 1 + 10 + 600, 0);

    what = PRODUCT;
    ds_init_constant(p->w, 5);
    CHECK_CLOSE(at(ds_data_parallel_call(dp, x), 3), 20, 0);
    ds_data_parallel_free(dp);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* 16-bit parameters: converted after the replicas were made; gradients are
 * added in float32. */
static void half_precision(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *one = net_new(), *net = net_new();
    ds_data_parallel *dp = ds_data_parallel_new(net, 3, same_net, NULL);
    CHECK_INT(ds_module_to(one, DS_BF16), DS_OK);
    CHECK_INT(ds_module_to(net, DS_BF16), DS_OK);
    ds_tensor *labels, *x = samples(DS_BF16, 0, 24, &labels);
    ds_tensor *y = ds_data_parallel_call(dp, x), *want = ds_call(one, x);
    CHECK_INT(ds_dtype_of(y), DS_BF16);
    CHECK_INT(ds_backward(ds_cross_entropy(ds_cast(y, DS_F32), labels)), DS_OK);
    CHECK_INT(ds_backward(ds_cross_entropy(ds_cast(want, DS_F32), labels)), DS_OK);
    for (int i = 0; i < 24 * 7; i++) CHECK_CLOSE(at(y, i), at(want, i), 0);
    ds_tensor *g = ds_grad(ds_module_param_at(net, 1, NULL)),
              *w = ds_grad(ds_module_param_at(one, 1, NULL));
    CHECK_INT(ds_dtype_of(g), DS_BF16);
    for (int i = 0; i < ds_numel(g); i++)
        CHECK_CLOSE(at(g, i), at(w, i), 2e-2 * fabs(at(w, i)) + 1e-4);
    ds_data_parallel_free(dp);
    ds_module_free(one), ds_module_free(net);
    ds_scope_close(scope);
}

static ds_module *norm_new(void *arg)
{
    (void)arg;
    ds_module *m = ds_nn_sequential(NULL, "seq");
    ds_nn_batch_norm2d(m, "0", 3);
    ds_nn_flatten(m, "1");
    ds_nn_linear(m, "2", 192, 7);
    return m;
}

/* Statistics are those of each replica's samples; those of the first replica
 * are kept. */
static void batch_norm(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *net = norm_new(NULL), *one = norm_new(NULL);
    ds_state *weights = ds_module_state(net);
    CHECK_INT(ds_module_load(one, weights), DS_OK);
    ds_data_parallel *dp = ds_data_parallel_new(net, 2, norm_new, NULL);
    ds_tensor *labels, *x = samples(DS_F32, 3, 10, &labels);
    ds_tensor *y = ds_data_parallel_call(dp, x);
    ds_tensor *parts[] = {ds_call(one, ds_slice(x, 0, 0, 5)), NULL};
    ds_state *after = ds_module_state(one);
    for (int i = 0; i < ds_state_len(after); i++) {
        ds_tensor *got = ds_state_at(weights, i), *want = ds_state_at(after, i);
        for (int k = 0; k < ds_numel(want); k++) CHECK_CLOSE(at(got, k), at(want, k), 0);
    }
    parts[1] = ds_call(one, ds_slice(x, 0, 5, 10));
    for (int i = 0; i < 70; i++) CHECK_CLOSE(at(y, i), at(parts[i / 35], i % 35), 0);
    CHECK_INT(ds_backward(ds_cross_entropy(y, labels)), DS_OK);
    CHECK_INT(ds_backward(ds_cross_entropy(ds_cat(parts, 2, 0), labels)), DS_OK);
    for (int i = 0; i < ds_module_params(net); i++) {
        ds_tensor *g = ds_grad(ds_module_param_at(net, i, NULL)),
                  *w = ds_grad(ds_module_param_at(one, i, NULL));
        for (int k = 0; k < ds_numel(w); k++) CHECK_CLOSE(at(g, k), at(w, k), 1e-6);
    }
    /* in evaluation all use the module's: as one process */
    ds_module_train(net, false);
    CHECK_INT(ds_module_load(one, weights), DS_OK);
    ds_module_train(one, false);
    bool was = ds_set_grad(false);
    ds_tensor *got = ds_data_parallel_call(dp, x), *want = ds_call(one, x);
    for (int i = 0; i < 70; i++) CHECK_CLOSE(at(got, i), at(want, i), 1e-6);
    ds_set_grad(was);
    ds_state_free(weights), ds_state_free(after);
    ds_data_parallel_free(dp);
    ds_module_free(net), ds_module_free(one);
    ds_scope_close(scope);
}

static ds_tensor *checkpointed(void *dp, ds_tensor **in, int n)
{
    return ds_data_parallel_call_n(dp, in, n);
}

static void random_numbers(void **state)
{
    (void)state;
    enum { N = 64 };
    ds_scope *scope = ds_scope_open();
    ds_module *m = probe_new(NULL);
    Probe *p = ds_self(m);
    ds_data_parallel *dp = ds_data_parallel_new(m, 2, probe_new, NULL);
    what = NOISE;
    ds_tensor *x = ds_ones(DS_F32, ds_shape(2 * N, 1));
    ds_seed(11);
    ds_tensor *first = ds_data_parallel_call(dp, x), *second = ds_data_parallel_call(dp, x);
    ds_tensor *stands = ds_rng_state(), *third = ds_data_parallel_call(dp, x);
    ds_seed(11);
    ds_tensor *again = ds_data_parallel_call(dp, x);
    CHECK_INT(ds_set_rng_state(stands), DS_OK);
    ds_tensor *again3 = ds_data_parallel_call(dp, x);
    ds_seed(11);
    ds_tensor *alone = ds_call(m, ds_slice(x, 0, 0, N)); /* replica 0 draws as the caller */
    int apart = 0, changed = 0;
    for (int i = 0; i < 2 * N; i++) {
        CHECK_CLOSE(at(again, i), at(first, i), 0);
        CHECK_CLOSE(at(again3, i), at(third, i), 0);
        if (i < N) CHECK_CLOSE(at(alone, i), at(first, i), 0);
        if (i < N) apart += at(first, i) != at(first, i + N);
        if (i >= N) changed += at(first, i) != at(second, i);
    }
    CHECK(apart > N / 4 && changed > N / 4);

    /* in a checkpoint: what runs again draws the same */
    ds_seed(11);
    CHECK_INT(ds_backward(ds_sum(first)), DS_OK);
    double want = at(ds_grad(p->w), 0);
    ds_module_zero_grad(m);
    ds_seed(11);
    CHECK_INT(ds_backward(ds_sum(ds_checkpoint(checkpointed, dp, &x, 1))), DS_OK);
    CHECK_CLOSE(at(ds_grad(p->w), 0), want, 0);
    ds_data_parallel_free(dp);
    ds_module_free(m);
    ds_scope_close(scope);
}

static void count_hook(void *count, ds_tensor *leaf) { *(int *)count += ds_grad(leaf) != NULL; }

/* A hook on a parameter runs when the sum is there; DistributedDataParallel
 * lives on it. */
static void hooks(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = probe_new(NULL);
    Probe *p = ds_self(m);
    int count = 0;
    ds_data_parallel *dp = ds_data_parallel_new(m, 3, probe_new, NULL);
    dsi_set_grad_ready_hook(p->w, count_hook, &count);
    what = PRODUCT;
    ds_tensor *x = column(6, one_to_8);
    ds_tensor *y = ds_add(ds_sum(ds_data_parallel_call(dp, x)), ds_sum(p->w));
    CHECK_INT(ds_backward(y), DS_OK);
    CHECK_INT(count, 1);
    CHECK_CLOSE(at(ds_grad(p->w), 0), 22, 0);
    dsi_set_grad_ready_hook(p->w, NULL, NULL);
    ds_data_parallel_free(dp);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* ---- in ranks ------------------------------------------------------------------------------------------------ */

/* Ranks that have replicas each: gradients of all are averaged. */
static ds_status replicas_in_ranks(void *arg)
{
    (void)arg;
    ds_module *m = probe_new(NULL);
    Probe *p = ds_self(m);
    ds_scope *scope = ds_scope_open();
    ds_ddp *ddp = ds_ddp_new(m);
    ds_data_parallel *dp = ds_data_parallel_new(m, 2, probe_new, NULL);
    ds_tensor *x = ds_full(DS_F32, ds_shape(4, 1), ds_comm_rank(ds_world()) + 1);
    ds_ddp_backward(ddp, ds_sum(ds_data_parallel_call(dp, x)));
    if (!ds_error() && ds_item(ds_grad(p->w)) != 6)
        ds_fail(DS_ESTATE, "the mean gradient is %g, not 6", ds_item(ds_grad(p->w)));
    ds_status status = ds_error_status();
    ds_scope_close(scope);
    ds_data_parallel_free(dp);
    ds_ddp_free(ddp);
    ds_module_free(m);
    return status;
}

static void in_ranks(void **state)
{
    (void)state;
    what = PRODUCT;
    CHECK_INT(run_ranks(2, replicas_in_ranks, NULL), DS_OK);
}

static ds_tensor *twice_forward(void *self, ds_tensor *x)
{
    ds_tensor *const *w = self;
    return ds_scale(ds_add(x, ds_add(w[0], w[1])), 2);
}

static ds_module *twice_make(void *arg)
{
    (void)arg;
    static const ds_module_type type = {"Twice", 2 * sizeof(ds_tensor *), .forward = twice_forward};
    ds_module *m = ds_module_new(NULL, "twice", &type);
    ds_tensor **w = ds_self(m);
    for (int i = 0; i < 2; i++)
        w[i] = ds_module_param(m, i ? "b" : "a", ds_zeros(DS_F32, ds_shape(4)));
    return m;
}

/* Both parameters have the same gradient. Where replica 1 lacks memory, the
 * step fails, or the gradients are whole. */
static void replica_without_memory(void **state)
{
    (void)state;
    int whole = 0;
    dsi_cache_fail(0, false); /* this thread has memory */
    for (int n = 7; n < 14; n++) {
        char text[16];
        snprintf(text, sizeof text, "%d", n);
        setenv("DS_FAIL_ALLOC", text, 1);
        ds_scope *s = ds_scope_open();
        ds_module *m = twice_make(NULL);
        ds_data_parallel *dp = ds_data_parallel_new(m, 2, twice_make, NULL);
        ds_tensor *y = dp ? ds_data_parallel_call(dp, ds_zeros(DS_F32, ds_shape(2, 4))) : NULL;
        bool done = y && ds_backward(ds_sum(y)) == DS_OK;
        for (int i = 0; done && i < 2; i++)
            CHECK_CLOSE(ds_item(ds_sum(ds_grad(ds_module_param_at(m, i, NULL)))), 16, 0);
        whole += done;
        ds_data_parallel_free(dp);
        ds_module_free(m);
        ds_scope_close(s);
    }
    unsetenv("DS_FAIL_ALLOC");
    CHECK(whole > 0);
}

TEST_MAIN(cmocka_unit_test(as_one_process), cmocka_unit_test(gradients), cmocka_unit_test(planes),
          cmocka_unit_test(chunks_as_torch), cmocka_unit_test(inputs_and_values),
          cmocka_unit_test(follows_the_module), cmocka_unit_test(half_precision),
          cmocka_unit_test(batch_norm), cmocka_unit_test(random_numbers), cmocka_unit_test(hooks),
          cmocka_unit_test(in_ranks), cmocka_unit_test(replica_without_memory))
