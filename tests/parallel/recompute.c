/* tests/parallel/recompute.c: checkpoints under every stage of ZeRO: the
 * parameters that there are without them, bit for bit. Stage 3 gathers for the
 * second run, and a layer used twice is reduced once.
 * SPDX-License-Identifier: MIT */
#include "net.h"

#include "parallel/zero.h"

#define RANKS 3
#define BATCH 8

typedef struct Deep {
    ds_module *conv, *fc1, *twice, *fc2;
    bool checkpoints;
} Deep;

static ds_tensor *front(void *arg, ds_tensor **in, int n)
{
    Deep *net = arg;
    (void)n;
    return ds_flatten(ds_max_pool2d(ds_relu(ds_call(net->conv, in[0])), 2), 1);
}

static ds_tensor *middle(void *arg, ds_tensor **in, int n)
{
    Deep *net = arg;
    (void)n;
    ds_tensor *y = ds_tanh(ds_call(net->twice, ds_relu(ds_call(net->fc1, in[0]))));
    return ds_dropout(y, 0.2, true);
}

static ds_tensor *deep_forward(void *self, ds_tensor *x)
{
    Deep *net = self;
    ds_tensor *y = net->checkpoints ? ds_checkpoint(front, net, &x, 1) : front(net, &x, 1);
    y = net->checkpoints ? ds_checkpoint(middle, net, &y, 1) : middle(net, &y, 1);
    y = ds_relu(net->checkpoints ? ds_checkpoint_call(net->twice, y) : ds_call(net->twice, y));
    return ds_call(net->fc2, y);
}

static ds_module *deep_new(bool checkpoints)
{
    static const ds_module_type type = {"Deep", sizeof(Deep), .forward = deep_forward};
    ds_seed(7);
    ds_module *m = ds_module_new(NULL, "deep", &type);
    Deep *net = ds_self(m);
    net->conv = ds_nn_conv2d(m, "conv", 3, 5, 3, .padding = 1);
    net->fc1 = ds_nn_linear(m, "fc1", 80, 33);
    net->twice = ds_nn_linear(m, "twice", 33, 33);
    net->fc2 = ds_nn_linear(m, "fc2", 33, 7);
    net->checkpoints = checkpoints;
    return m;
}

typedef struct Run {
    dsi_zero_opts o;
    bool checkpoints;
    float x[ROOM];
    int n;
} Run;

static ds_status train(void *arg)
{
    Run *run = arg;
    int rank = ds_comm_rank(ds_world()), ranks = ds_comm_size(ds_world());
    ds_module *net = deep_new(run->checkpoints);
    ds_optim *optim = ds_optim_adamw(net, 1e-2, .weight_decay = 0.01);
    dsi_zero *z = dsi_zero_new(net, optim, ds_world(), &run->o);
    ds_status status = z ? DS_OK : ds_error_status();
    for (int i = 0; status == DS_OK && i < 6; i++) {
        ds_scope *turn = ds_scope_open();
        int from = (i * ranks + rank) * BATCH;
        status = dsi_zero_backward(z, loss_of(net, run->o.dtype, from, BATCH), 1, true);
        if (status == DS_OK) status = dsi_zero_step(z, 1, 1, false, false, NULL);
        ds_scope_close(turn);
    }
    static _Thread_local float mine[ROOM];
    int n = status == DS_OK ? values(net, mine, ROOM) : 0;
    if (rank == 0) run->n = n, memcpy(run->x, mine, sizeof mine);
    dsi_zero_free(z);
    ds_optim_free(optim);
    ds_module_free(net);
    return status;
}

static void every_stage(void **state)
{
    (void)state;
    static Run plain, other;
    static const ds_dtype dtypes[] = {DS_F32, DS_BF16};
    for (int k = 0; k < 16; k++) {
        if (quick_gpu() && k % 5) continue; /* each stage once */
        ds_dtype t = dtypes[k / 4 % 2];
        dsi_zero_opts o = {.stage = k % 4,
                           .dtype = t,
                           .accum_dtype = DS_F32,
                           .comm_dtype = t,
                           .overlap_comm = k >= 8,
                           .reduce_scatter = true,
                           .reduce_bucket = k >= 8 ? 1000 : 0};
        plain.o = other.o = o;
        other.checkpoints = true;
        CHECK_INT(run_ranks(RANKS, train, &plain), DS_OK);
        CHECK_INT(run_ranks(RANKS, train, &other), DS_OK);
        CHECK(plain.n > 3000);
        CHECK_INT(other.n, plain.n);
        if (memcmp(plain.x, other.x, (size_t)plain.n * sizeof(float)))
            fail_msg("stage %d, %s: other parameters", o.stage, ds_dtype_name(t));
    }
}

TEST_MAIN(cmocka_unit_test(every_stage))
