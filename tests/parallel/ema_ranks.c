/* tests/parallel/ema_ranks.c: averages on several ranks, which are threads,
 * with every stage of ZeRO: each rank averages its own parts, and all of them
 * evaluate with what one process has.
 * SPDX-License-Identifier: MIT */
#include "net.h"

#include "parallel/ema.h"
#include "parallel/zero.h"

#define GLOBAL 24 /* samples of a step, on all ranks */
#define RANKS  3
#define STEPS  6

typedef struct Run {
    dsi_zero_opts o;
    float averages[RANKS][ROOM], before[RANKS][ROOM], after[RANKS][ROOM];
    int n;
} Run;

static ds_tensor *part(void *z, int i) { return dsi_zero_shard(z, i); }
static ds_status publish(void *z) { return dsi_zero_publish(z); }

static ds_status one_step(const Run *run, dsi_zero *z, ds_module *net, int step)
{
    int ranks = ds_comm_size(ds_world()), count = GLOBAL / ranks;
    int from = step * GLOBAL + ds_comm_rank(ds_world()) * count;
    ds_scope *scope = ds_scope_open();
    ds_status status = dsi_zero_backward(z, loss_of(net, run->o.dtype, from, count), 1, true);
    if (status == DS_OK) status = dsi_zero_step(z, 1, 0, false, false, NULL);
    ds_scope_close(scope);
    return status;
}

/* Trains, and looks at the parameters before, while and after the averages are
 * in their place. */
static ds_status follow(Run *run, dsi_zero *z, ds_module *net, dsi_ema *e)
{
    int rank = ds_comm_rank(ds_world());
    ds_status status = DS_OK;
    for (int i = 0; status == DS_OK && i < STEPS; i++) {
        status = one_step(run, z, net, i);
        if (status == DS_OK) status = dsi_ema_update(e);
    }
    if (status != DS_OK) return status;
    int n = values(net, run->before[rank], ROOM);
    if ((status = dsi_ema_swap(e)) != DS_OK) return status;
    values(net, run->averages[rank], ROOM);
    if ((status = dsi_ema_swap(e)) != DS_OK) return status;
    values(net, run->after[rank], ROOM);
    if (rank == 0) run->n = n;
    return one_step(run, z, net, STEPS); /* training continues */
}

static ds_status body(void *arg)
{
    Run *run = arg;
    ds_scope *scope = ds_scope_open();
    ds_module *net = net_new();
    ds_optim *optim = ds_optim_adamw(net, 1e-2);
    dsi_zero *z = dsi_zero_new(net, optim, ds_world(), &run->o);
    const dsi_ema_shards parts = {z, part, publish, NULL};
    dsi_ema *e = z ? dsi_ema_new(net, 0.6, &parts) : NULL;
    ds_status status = e ? follow(run, z, net, e) : ds_error_status();
    dsi_ema_free(e);
    dsi_zero_free(z);
    ds_optim_free(optim);
    ds_module_free(net);
    ds_scope_close(scope);
    return status;
}

/* Every stage averages what stage 0 does, to the bit. */
static void stages(ds_dtype dtype)
{
    static Run runs[4];
    for (int stage = 0; stage <= 3; stage++) {
        Run *run = &runs[stage];
        *run = (Run){.o = {.stage = stage, .dtype = dtype, .reduce_scatter = stage > 1}};
        CHECK_INT(run_ranks(RANKS, body, run), DS_OK);
        CHECK(run->n > 2900);
        size_t bytes = (size_t)run->n * sizeof(float);
        for (int r = 0; r < RANKS; r++) {
            assert_memory_equal(run->after[r], run->before[r], bytes);
            assert_memory_equal(run->averages[r], runs[0].averages[0], bytes);
        }
        CHECK(memcmp(run->averages[0], run->before[0], bytes) != 0);
    }
}

static void float32(void **state)
{
    (void)state;
    stages(DS_F32);
}

static void bfloat16(void **state)
{
    (void)state;
    stages(DS_BF16);
}

/* Three ranks have the averages of one process, except for the order of sums. */
static void one_process(void **state)
{
    (void)state;
    static Run one, three;
    one = three = (Run){.o = {.stage = 2, .dtype = DS_F32, .reduce_scatter = true}};
    CHECK_INT(run_ranks(1, body, &one), DS_OK);
    CHECK_INT(run_ranks(3, body, &three), DS_OK);
    for (int i = 0; i < one.n; i++) CHECK_CLOSE(three.averages[2][i], one.averages[0][i], 1e-4);
}

TEST_MAIN(cmocka_unit_test(float32), cmocka_unit_test(bfloat16), cmocka_unit_test(one_process))
