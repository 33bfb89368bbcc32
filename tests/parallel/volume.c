/* tests/parallel/volume.c: bytes that a rank sends in a step, as the
 * communicator counts them: with P bytes of parameters in N ranks 2 P (N-1)/N
 * in stages 0 to 2, and 3 P (N-1)/N in stage 3, which gathers twice (the last
 * layer once: backward begins with it).
 * SPDX-License-Identifier: MIT */
#include "mlp.h"
#include "ranks.h"

#include "comm/comm.h"
#include "parallel/zero.h"

enum { BATCH = 4 };

static int width(void) { return quick() ? 64 : 128; }
static int layers(void) { return quick_gpu() ? 4 : 24; }

static ds_status step(dsi_zero *z, ds_module *m, ds_dtype dtype, int passes)
{
    ds_scope *scope = ds_scope_open();
    for (int i = 0; i < passes; i++) {
        ds_tensor *x = ds_cast(ds_randn(DS_F32, ds_shape(BATCH, width())), dtype);
        dsi_zero_backward(z, ds_mean(ds_call(m, x)), 1, i == passes - 1);
    }
    dsi_zero_step(z, 1, 0, false, false, NULL);
    ds_scope_close(scope);
    return ds_error_status();
}

typedef struct Case {
    int stage, passes;
    ds_dtype dtype;
    double times; /* the parameters' bytes */
    bool all_reduce;
} Case;

/* Of the third step: the first learns what stage 3 gathers ahead, the second
 * does so. */
static ds_status counted(void *arg)
{
    const Case *c = arg;
    int ranks = ds_comm_size(ds_world());
    int64_t params = layers() * width() * (width() + 1);
    double bytes = (double)params * (double)ds_dtype_size(c->dtype) * (ranks - 1) / ranks;
    double before = 0;
    ds_scope *scope = ds_scope_open();
    ds_module *m = mlp_new(layers(), width(), ds_nn_gelu);
    ds_optim *optim = ds_optim_adamw(m, 1e-3);
    dsi_zero_opts o = {.stage = c->stage,
                       .dtype = c->dtype,
                       .accum_dtype = c->dtype,
                       .comm_dtype = c->dtype,
                       .overlap_comm = true,
                       .reduce_scatter = !c->all_reduce,
                       .reduce_bucket = params / 4,
                       .persistence_threshold = 1000,
                       .model_persistence_threshold = INT64_MAX,
                       .prefetch_bucket = params / 20,
                       .max_live = params / 8};
    dsi_zero *z = dsi_zero_new(m, optim, ds_world(), &o);
    for (int i = 0; i < 3 && !ds_error(); i++) {
        before = dsi_comm_volume(ds_world());
        step(z, m, c->dtype, c->passes);
    }
    double sent = dsi_comm_volume(ds_world()) - before;
    dsi_zero_free(z);
    ds_optim_free(optim);
    ds_module_free(m);
    ds_scope_close(scope);
    RANK_CHECK(!ds_error());
    double times = c->stage == 3 ? c->times - 1.0 / layers() : c->times;
    if (fabs(sent - times * bytes) <= 0.02 * times * bytes) return DS_OK;
    return ds_fail(DS_ESTATE, "stage %d, %s: sent %.3f times the parameters, want %.3f within 2 %%",
                   c->stage, ds_dtype_name(c->dtype), sent / bytes, times);
}

static void run(Case c) { TEST_RANKS(counted, &c); }

static void twice_the_parameters(void **state)
{
    (void)state;
    for (int stage = 0; stage < 3; stage++) {
        run((Case){stage, 1, DS_F32, 2, false});
        run((Case){stage, 1, DS_BF16, 2, false});
    }
}

static void three_times_where_they_are_divided(void **state)
{
    (void)state;
    run((Case){3, 1, DS_F32, 3, false});
    run((Case){3, 1, DS_F16, 3, false});
}

/* Stages 0 and 1 reduce once a step; those that keep no whole gradients in each
 * pass. */
static void passes_that_add_up(void **state)
{
    (void)state;
    run((Case){0, 3, DS_F32, 2, false});
    run((Case){1, 3, DS_F32, 2, false});
    run((Case){2, 3, DS_F32, 4, false});
}

static void without_reduce_scatter(void **state)
{
    (void)state;
    run((Case){1, 1, DS_F32, 3, true});
    run((Case){2, 1, DS_F32, 3, true});
}

TEST_MAIN(cmocka_unit_test(twice_the_parameters),
          cmocka_unit_test(three_times_where_they_are_divided),
          cmocka_unit_test(passes_that_add_up), cmocka_unit_test(without_reduce_scatter))
