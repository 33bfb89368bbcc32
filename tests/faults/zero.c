/* tests/faults/zero.c: on one of two ranks every storage allocation fails in
 * turn: both ranks end with its message, none hangs, nothing stays allocated.
 * The same where a rank ends early.
 * SPDX-License-Identifier: MIT */
#include "parallel/net.h"

#include "device/device.h"
#include "parallel/zero.h"

enum { ON_GPU = 83 }; /* there each 83rd allocation: a step takes long on the emulator */

typedef struct Fault {
    dsi_zero_opts o;
    int64_t at;     /* which allocation fails on rank 1; 0: none */
    int64_t count;  /* how many rank 1 made */
    bool init;      /* the model is made divided */
    int ends_after; /* steps that rank 1 takes, less than the others; 0: all */
    bool left[2];   /* something stayed allocated */
} Fault;

static ds_status program(const Fault *f, int rank)
{
    if (f->init) ds_zero_init();
    ds_module *net = net_new();
    if (f->init) ds_zero_init_end();
    ds_optim *optim = ds_optim_adamw(net, 1e-2);
    dsi_zero *z = ds_error() ? NULL : dsi_zero_new(net, optim, ds_world(), &f->o);
    ds_status status = z ? DS_OK : ds_error_status();
    for (int i = 0; status == DS_OK && i < 3; i++) {
        if (rank == 1 && f->ends_after && i == f->ends_after) break;
        ds_scope *scope = ds_scope_open();
        for (int m = 0; status == DS_OK && m < 2; m++) {
            ds_tensor *loss = loss_of(net, f->o.dtype, 16 * i + 8 * m + 4 * rank, 4);
            status = dsi_zero_backward(z, loss, 0.5, m == 1);
        }
        if (status == DS_OK) status = dsi_zero_step(z, 1, 1, true, true, NULL);
        ds_scope_close(scope);
    }
    dsi_zero_free(z);
    ds_optim_free(optim);
    ds_module_free(net);
    return status;
}

static ds_status body(void *arg)
{
    Fault *f = arg;
    int rank = ds_comm_rank(ds_world());
    int64_t tensors = ds_live_tensors();
    if (rank == 1) dsi_cache_fail(f->at, false);
    ds_scope *scope = ds_scope_open();
    ds_status status = program(f, rank);
    ds_scope_close(scope);
    if (rank == 1) f->count = dsi_cache_fail(0, false);
    f->left[rank] = ds_live_tensors() != tensors ||
                    ds_memory_allocated((ds_device){DS_CPU, 0}) != 0 ||
                    ds_memory_allocated(ds_current_device()) != 0;
    return status;
}

static const dsi_zero_opts some[] = {
    {.stage = 0, .overlap_comm = true, .reduce_bucket = 1000},
    {.stage = 1, .reduce_bucket = 1000},
    {.stage = 2, .overlap_comm = true, .reduce_scatter = true, .reduce_bucket = 1000},
    {.stage = 3,
     .overlap_comm = true,
     .reduce_scatter = true,
     .prefetch_bucket = 4000,
     .max_live = 5000,
     .max_reuse_distance = 2000},
    {.stage = 2, .deterministic = true, .reduce_bucket = 1000},
};

#define SOME (int)(sizeof some / sizeof *some)

static void each_fails(Fault f)
{
    CHECK_INT(run_ranks(2, body, &f), DS_OK);
    CHECK(!f.left[0] && !f.left[1]);
    int64_t count = f.count;
    CHECK(count > 50);
    for (int64_t n = 1; n <= count; n += on_gpu() ? ON_GPU : quick() ? 3 : 1) {
        f.at = n;
        ds_status status = run_ranks(2, body, &f);
        if (status == DS_OK || f.left[0] || f.left[1])
            fail_msg("stage %d: allocation %lld of %lld failed: %s%s%s", f.o.stage, (long long)n,
                     (long long)count, status == DS_OK ? "nobody noticed" : ds_error(),
                     f.left[0] ? "; rank 0 keeps memory" : "",
                     f.left[1] ? "; rank 1 keeps memory" : "");
        CHECK_ERROR("bytes");
    }
}

static void each_allocation_fails(void **state)
{
    (void)state;
    for (int i = 0; i < SOME; i++) {
        each_fails((Fault){.o = some[i]});
        if (some[i].stage >= 2) each_fails((Fault){.o = some[i], .init = true});
    }
}

static void a_rank_may_end_early(void **state)
{
    (void)state;
    for (int i = 0; i < SOME; i += on_gpu() ? 3 : 1) { /* 2 s each by NCCL */
        Fault f = {.o = some[i], .ends_after = 2};
        CHECK(run_ranks(2, body, &f) != DS_OK);
        CHECK(!f.left[0] && !f.left[1]);
        CHECK_ERROR("rank");
    }
}

TEST_MAIN(cmocka_unit_test(each_allocation_fails), cmocka_unit_test(a_rank_may_end_early))
