/* tests/parallel/ddp.c: DistributedDataParallel on ranks that are threads.
 * SPDX-License-Identifier: MIT */
#include "net.h"

#define GLOBAL 24
#define RANKS  4

typedef struct Run {
    int64_t bucket_bytes;
    int accumulate;
    float x[RANKS][ROOM];
    int n;
} Run;

static ds_status train(void *arg)
{
    Run *run = arg;
    int rank = ds_comm_rank(ds_world()), ranks = ds_comm_size(ds_world());
    int count = GLOBAL / ranks / run->accumulate;
    ds_module *net = net_new();
    if (rank) ds_init_constant(ds_module_param_at(net, 1, NULL), 5);
    ds_ddp *ddp = ds_ddp_new_with(net, (ds_ddp_opts){.bucket_bytes = run->bucket_bytes});
    ds_optim *sgd = ds_optim_sgd(net, 0.05, .momentum = 0.9);
    ds_status status = ddp ? DS_OK : ds_error_status();
    for (int i = 0; status == DS_OK && i < 10; i++) {
        ds_scope *scope = ds_scope_open();
        ds_optim_zero_grad(sgd);
        for (int m = 0; status == DS_OK && m < run->accumulate; m++) {
            bool was = ds_ddp_set_sync(ddp, m == run->accumulate - 1);
            int from = i * GLOBAL + (rank * run->accumulate + m) * count;
            ds_tensor *loss = loss_of(ds_ddp_module(ddp), DS_F32, from, count);
            status = ds_ddp_backward(ddp, ds_mul(loss, ds_scalar(DS_F32, 1.0 / run->accumulate)));
            ds_ddp_set_sync(ddp, was);
        }
        if (status == DS_OK) status = ds_optim_step(sgd);
        ds_scope_close(scope);
    }
    ds_scope *scope = ds_scope_open();
    int n = status == DS_OK ? values(net, run->x[rank], ROOM) : 0;
    if (rank == 0) run->n = n;
    ds_scope_close(scope);
    ds_ddp_free(ddp);
    ds_optim_free(sgd);
    ds_module_free(net);
    return status;
}

static void as_a_single_process(void **state)
{
    (void)state;
    static const int64_t bytes[] = {0, 1, 4000};
    Run *want = calloc(1, sizeof *want), *got = calloc(1, sizeof *got);
    want->accumulate = 1;
    CHECK_INT(run_ranks(1, train, want), DS_OK);
    CHECK(want->n > 2900);
    for (int ranks = 2; ranks <= RANKS; ranks++)
        for (int k = 0; k < 3; k++)
            for (int accumulate = 1; accumulate <= 2; accumulate++) {
                got->bucket_bytes = bytes[k];
                got->accumulate = accumulate;
                CHECK_INT(run_ranks(ranks, train, got), DS_OK);
                for (int i = 0; i < want->n; i++) CHECK_CLOSE(got->x[0][i], want->x[0][i], 1e-6);
                for (int r = 1; r < ranks; r++)
                    assert_memory_equal(got->x[r], got->x[0], sizeof(float) * (size_t)got->n);
            }
    free(want), free(got);
}

/* ---- what a rank does not use, buffers --------------------------------------------------------------------- */

typedef struct Branches {
    ds_module *left, *right;
    ds_tensor *count; /* a buffer: [1] */
} Branches;

/* Ranks above 0 never use `right`, no rank uses `none`. */
static ds_tensor *branches_forward(void *self, ds_tensor *x)
{
    Branches *b = self;
    x = ds_call(b->left, x);
    return ds_comm_rank(ds_world()) ? x : ds_call(b->right, x);
}

static ds_status use_some(void *arg)
{
    static const ds_module_type type = {"Branches", sizeof(Branches), .forward = branches_forward};
    (void)arg;
    ds_seed(3);
    int ranks = ds_comm_size(ds_world()), rank = ds_comm_rank(ds_world());
    ds_module *m = ds_module_new(NULL, "branches", &type);
    Branches *b = ds_self(m);
    ds_scope *scope = ds_scope_open();
    b->left = ds_nn_linear(m, "left", 4, 4);
    b->right = ds_nn_linear(m, "right", 4, 4);
    ds_tensor *none = ds_module_param(m, "none", ds_ones(DS_F32, ds_shape(3)));
    b->count = ds_module_buffer(m, "count", ds_full(DS_F32, ds_shape(1), rank + 1));
    ds_ddp *ddp = ds_ddp_new(m);
    bool right = ddp && ds_item(b->count) == 1;
    for (int i = 0; right && i < 3; i++) {
        ds_module_zero_grad(m);
        ds_init_constant(b->count, 10 * rank + i);
        ds_tensor *y = ds_ddp_call(ddp, ds_full(DS_F32, ds_shape(2, 4), rank + 1));
        right &= ds_item(b->count) == i;
        right &= ds_ddp_backward(ddp, ds_sum(y)) == DS_OK;
        /* d sum / d bias of right is 2 on rank 0 and nothing elsewhere */
        const float *g = ds_data(ds_grad(ds_module_param_at(b->right, 1, NULL)));
        right &= g && fabsf(g[0] - 2.0f / (float)ranks) < 1e-6f;
        const float *zero = ds_data(ds_grad(none));
        right &= zero && zero[0] == 0 && zero[2] == 0;
    }
    /* a pass that is not told is a plain one, and adds to what is there */
    right &= ds_backward(ds_sum(ds_call(m, ds_ones(DS_F32, ds_shape(2, 4))))) == DS_OK;
    const float *g = ds_data(ds_grad(ds_module_param_at(b->right, 1, NULL)));
    right &= g && fabsf(g[0] - 2.0f / (float)ranks - (rank ? 0 : 2)) < 1e-6f;
    ds_ddp_free(ddp);
    ds_scope_close(scope);
    ds_module_free(m);
    return right ? DS_OK : ds_fail(DS_ESTATE, "rank %d saw something else: %s", rank, ds_error());
}

static void unused_parameters_and_buffers(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= RANKS; ranks++) CHECK_INT(run_ranks(ranks, use_some, NULL), DS_OK);
}

/* ---- gradients that the program keeps ---------------------------------------------------------------------- */

/* As on one rank, a gradient that is kept over zero_grad is not written to
 * again. */
static ds_status keep_one(void *arg)
{
    (void)arg;
    ds_module *net = net_new();
    ds_ddp *ddp = ds_ddp_new(net);
    ds_tensor *kept = NULL, *last = ds_module_param_at(net, 5, NULL); /* fc2.bias */
    float was = 0;
    bool right = true;
    for (int i = 0; ddp && i < 2; i++) {
        ds_scope *scope = ds_scope_open();
        ds_module_zero_grad(net);
        right &= ds_ddp_backward(ddp, loss_of(net, DS_F32, 8 * i, 8)) == DS_OK;
        const float *g = ds_data(ds_grad(last));
        if (i == 0) {
            kept = ds_keep(ds_grad(last));
            was = g ? *g : 0;
        }
        right &= g && (i == 0 || *g != was);
        ds_scope_close(scope);
    }
    right &= kept && was != 0 && *(const float *)ds_data(kept) == was;
    ds_drop(kept);
    ds_ddp_free(ddp);
    ds_module_free(net);
    return right ? DS_OK : ds_fail(DS_ESTATE, "a kept gradient has changed: %s", ds_error());
}

static void kept_gradients_stay(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++) CHECK_INT(run_ranks(ranks, keep_one, NULL), DS_OK);
}

/* ---- failures ---------------------------------------------------------------------------------------------- */

static ds_status one_fails(void *arg)
{
    (void)arg;
    ds_module *net = net_new();
    ds_ddp *ddp = ds_ddp_new(net);
    ds_scope *scope = ds_scope_open();
    ds_tensor *loss = loss_of(net, DS_F32, 0, 8);
    if (ds_comm_rank(ds_world()) == 1) loss = ds_ones(DS_F32, ds_shape(3));
    ds_status status = ddp ? ds_ddp_backward(ddp, loss) : ds_error_status();
    ds_scope_close(scope);
    ds_ddp_free(ddp);
    ds_module_free(net);
    return status;
}

/* A ReLU of a gradient that waits has the values of its step, though the next
 * one writes to the same bucket. */
static ds_status waiting_reader(void *arg)
{
    (void)arg;
    ds_module *net = net_new();
    ds_ddp *ddp = ds_ddp_new(net);
    ds_tensor *w = ds_module_param_at(net, 0, NULL);
    ds_scope *s = ds_scope_open();
    for (int again = 0; again < 2; again++) {
        CHECK_INT(ds_ddp_backward(ddp, loss_of(ds_ddp_module(ddp), DS_F32, 0, 8)), DS_OK);
        double want = ds_item(ds_sum(ds_relu(ds_clone(ds_grad(w)))));
        ds_tensor *y = ds_relu(ds_grad(w));
        if (again) ds_module_zero_grad(net);
        CHECK_INT(ds_ddp_backward(ddp, loss_of(ds_ddp_module(ddp), DS_F32, 8, 8)), DS_OK);
        CHECK_CLOSE(ds_item(ds_sum(y)), want, 1e-7);
        CHECK(fabs(ds_item(ds_sum(ds_relu(ds_grad(w)))) - want) > 1e-4);
    }
    ds_scope_close(s);
    ds_ddp_free(ddp);
    ds_module_free(net);
    return DS_OK;
}

static void readers_keep_the_values_of_their_step(void **state)
{
    (void)state;
    CHECK_INT(run_ranks(2, waiting_reader, NULL), DS_OK);
}

static void a_failure_is_everybodys(void **state)
{
    (void)state;
    CHECK(run_ranks(3, one_fails, NULL) != DS_OK);
    CHECK_ERROR("the loss is [3]");
    CHECK(!ds_ddp_new(NULL));
    CHECK_ERROR("ddp");
}

/* Under mpirun, without ds_init_distributed: each process would train alone. */
static void no_world_yet(void **state)
{
    (void)state;
    ds_module *net = net_new();
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    ds_ddp *ddp = ds_ddp_new(net);
    unsetenv("OMPI_COMM_WORLD_SIZE");
    CHECK(!ddp);
    CHECK_ERROR("call ds_init_distributed() first");
    ds_module_free(net);
}

TEST_MAIN(cmocka_unit_test(as_a_single_process), cmocka_unit_test(unused_parameters_and_buffers),
          cmocka_unit_test(kept_gradients_stay),
          cmocka_unit_test(readers_keep_the_values_of_their_step),
          cmocka_unit_test(a_failure_is_everybodys), cmocka_unit_test(no_world_yet))
