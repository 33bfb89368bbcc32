/* tests/parallel/tree.c: the same bits on every number of ranks that is a power
 * of two.
 * SPDX-License-Identifier: MIT */
#include "net.h"

#include "parallel/zero.h"

#define MICRO_BATCHES 8
#define MICRO_BATCH   6
#define RANKS         8

typedef struct Run {
    dsi_zero_opts o;
    int steps;
    double clip;
    float x[RANKS][ROOM];
    int n;
} Run;

/* Micro batch c = micro step * ranks + rank. */
static ds_status train(void *arg)
{
    Run *run = arg;
    int rank = ds_comm_rank(ds_world()), ranks = ds_comm_size(ds_world());
    int passes = MICRO_BATCHES / ranks;
    ds_module *net = net_new();
    ds_optim *adam = ds_optim_adamw(net, 1e-3, .weight_decay = 0.01);
    dsi_zero *z = dsi_zero_new(net, adam, ds_world(), &run->o);
    ds_status status = z ? DS_OK : ds_error_status();
    for (int i = 0; status == DS_OK && i < run->steps; i++) {
        ds_scope *scope = ds_scope_open();
        for (int k = 0; status == DS_OK && k < passes; k++) {
            int c = i * MICRO_BATCHES + k * ranks + rank;
            ds_tensor *loss = loss_of(net, run->o.dtype, c * MICRO_BATCH, MICRO_BATCH);
            status = dsi_zero_backward(z, loss, 1.0 / passes, k == passes - 1);
        }
        if (status == DS_OK) status = dsi_zero_step(z, 1, run->clip, false, false, NULL);
        ds_scope_close(scope);
    }
    ds_scope *scope = ds_scope_open();
    int n = status == DS_OK ? values(net, run->x[rank], ROOM) : 0;
    if (rank == 0) run->n = n;
    ds_scope_close(scope);
    dsi_zero_free(z);
    ds_optim_free(adam);
    ds_module_free(net);
    return status;
}

static void compare(dsi_zero_opts o, double clip, int steps)
{
    Run *want = calloc(1, sizeof *want), *got = calloc(1, sizeof *got);
    o.deterministic = true;
    want->o = o;
    want->clip = clip;
    bool few = quick_gpu();
    want->steps = few ? 2 : quick() ? 4 : steps;
    CHECK_INT(run_ranks(1, train, want), DS_OK);
    CHECK(want->n > 2900);
    for (int ranks = few ? 2 : 1; ranks <= (few ? 4 : RANKS); ranks *= 2)
        for (int stage = 0; stage <= 3; stage += few ? 2 : 1) {
            memcpy(got, want, offsetof(Run, x));
            got->o.stage = stage;
            got->o.overlap_comm = stage % 2;
            got->o.reduce_bucket = 400 * stage;
            CHECK_INT(run_ranks(ranks, train, got), DS_OK);
            for (int r = 0; r < ranks; r++)
                if (memcmp(got->x[r], want->x[0], (size_t)want->n * sizeof(float)))
                    fail_msg("stage %d on %d ranks differs from one rank", stage, ranks);
        }
    free(want), free(got);
}

static void ranks_change_no_bit(void **state)
{
    (void)state;
    static const ds_dtype dtypes[] = {DS_F32, DS_BF16, DS_F16};
    for (int k = 0; k < 3; k++) {
        dsi_zero_opts o = {.dtype = dtypes[k], .comm_dtype = dtypes[k]};
        compare(o, 0, 10);
        compare(o, 0.5, 10);
    }
    if (quick_gpu()) return;
    compare((dsi_zero_opts){.comm_dtype = DS_F32}, 0.5, 100);
    compare((dsi_zero_opts){.comm_dtype = DS_BF16, .prescale = true}, 0, 10);
    compare((dsi_zero_opts){.comm_dtype = DS_F32, .predivide = 2}, 0, 10);
}

/* Three ranks are no power of two: near, and equal on all. */
static ds_status on_three(void *arg)
{
    Run *run = arg;
    int rank = ds_comm_rank(ds_world());
    ds_module *net = net_new();
    ds_optim *sgd = ds_optim_sgd(net, 0.1);
    dsi_zero *z = dsi_zero_new(net, sgd, ds_world(), &run->o);
    ds_status status = z ? DS_OK : ds_error_status();
    for (int i = 0; status == DS_OK && i < 3; i++) {
        ds_scope *scope = ds_scope_open();
        for (int k = 0; status == DS_OK && k < 5; k++)
            status = dsi_zero_backward(z, loss_of(net, DS_F32, 4 * (15 * i + 3 * k + rank), 4), 0.2,
                                       k == 4);
        if (status == DS_OK) status = dsi_zero_step(z, 1, 0, false, false, NULL);
        ds_scope_close(scope);
    }
    ds_scope *scope = ds_scope_open();
    int n = status == DS_OK ? values(net, run->x[rank], ROOM) : 0;
    if (rank == 0) run->n = n;
    ds_scope_close(scope);
    dsi_zero_free(z);
    ds_optim_free(sgd);
    ds_module_free(net);
    return status;
}

static void other_numbers_are_near(void **state)
{
    (void)state;
    Run *want = calloc(1, sizeof *want), *got = calloc(1, sizeof *got);
    want->o = got->o = (dsi_zero_opts){.stage = 2, .reduce_scatter = true};
    got->o.deterministic = true;
    CHECK_INT(run_ranks(1, on_three, want), DS_OK);
    CHECK_INT(run_ranks(3, on_three, want), DS_OK);
    CHECK_INT(run_ranks(3, on_three, got), DS_OK);
    for (int i = 0; i < want->n; i++) {
        CHECK_CLOSE(got->x[0][i], want->x[0][i], 1e-6);
        CHECK(got->x[0][i] == got->x[1][i] && got->x[0][i] == got->x[2][i]);
    }
    free(want), free(got);
}

TEST_MAIN(cmocka_unit_test(ranks_change_no_bit), cmocka_unit_test(other_numbers_are_near))
