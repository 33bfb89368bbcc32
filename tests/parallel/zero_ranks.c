/* tests/parallel/zero_ranks.c: stages, buckets, overlap, accumulation, clipping
 * on several ranks, which are threads: the same bits whatever the setting, and
 * a single process' parameters.
 * SPDX-License-Identifier: MIT */
#include "net.h"

#include "parallel/zero.h"

#define RANKS 8

/* Samples of a step, on all ranks: the same number on each, in each of four micro
 * batches; if quick, of 8 ranks in one. */
static int samples_a_step(void) { return quick_gpu() ? 16 : quick() ? 48 : 96; }

typedef struct Plan {
    dsi_zero_opts o;
    int steps, accumulate;
    double clip;
    bool adam;
} Plan;

typedef struct Run {
    Plan plan;
    float x[RANKS][ROOM]; /* every rank's parameters after the last step */
    double norm[RANKS];   /* and its last gradient norm */
    int n;
} Run;

static ds_optim *optim_of(const Run *run, ds_module *m)
{
    return run->plan.adam ? ds_optim_adamw(m, 1e-3, .weight_decay = 0.01)
                          : ds_optim_sgd(m, 0.05, .momentum = 0.9);
}

static ds_status one_step(const Run *run, dsi_zero *z, ds_module *net, int step,
                          dsi_zero_step_result *result)
{
    int rank = ds_comm_rank(ds_world()), ranks = ds_comm_size(ds_world());
    int count = samples_a_step() / ranks / run->plan.accumulate;
    ds_status status = DS_OK;
    ds_scope *scope = ds_scope_open();
    for (int m = 0; status == DS_OK && m < run->plan.accumulate; m++) {
        int from = step * samples_a_step() + (rank * run->plan.accumulate + m) * count;
        status = dsi_zero_backward(z, loss_of(net, run->plan.o.dtype, from, count),
                                   1.0 / run->plan.accumulate, m == run->plan.accumulate - 1);
    }
    if (status == DS_OK) status = dsi_zero_step(z, 1, run->plan.clip, false, true, result);
    ds_scope_close(scope);
    return status;
}

static ds_status train(void *arg)
{
    Run *run = arg;
    int rank = ds_comm_rank(ds_world());
    dsi_zero_step_result result = {0};
    ds_module *net = net_new();
    ds_scope *scope = ds_scope_open();
    if (rank) /* what rank 0 has counts */
        ds_init_constant(ds_module_param_at(net, 0, NULL), 1);
    ds_optim *optim = optim_of(run, net);
    dsi_zero *z = dsi_zero_new(net, optim, ds_world(), &run->plan.o);
    ds_status status = z ? DS_OK : ds_error_status();
    for (int i = 0; status == DS_OK && i < run->plan.steps; i++)
        status = one_step(run, z, net, i, &result);
    int n = status == DS_OK ? values(net, run->x[rank], ROOM) : 0;
    run->norm[rank] = result.norm;
    if (rank == 0) run->n = n;
    dsi_zero_free(z);
    ds_optim_free(optim);
    ds_scope_close(scope);
    ds_module_free(net);
    return status;
}

/* Trains on `ranks`; all of them end with the same parameters. */
static void run_on(int ranks, Run *run)
{
    CHECK_INT(run_ranks(ranks, train, run), DS_OK);
    CHECK(run->n > 2900);
    for (int r = 1; r < ranks; r++) {
        CHECK(run->norm[r] == run->norm[0] || (isnan(run->norm[r]) && isnan(run->norm[0])));
        assert_memory_equal(run->x[r], run->x[0], (size_t)run->n * sizeof(float));
    }
}

/* The largest difference, as a part of the largest value. */
static double difference(const Run *a, const Run *b)
{
    double most = 0, largest = 0;
    for (int i = 0; i < a->n; i++) {
        most = fmax(most, fabs((double)a->x[0][i] - b->x[0][i]));
        largest = fmax(largest, fabs(b->x[0][i]));
    }
    return most / largest;
}

static const dsi_zero_opts settings[] = {
    {.stage = 0, .reduce_scatter = true},
    {.stage = 0, .overlap_comm = true, .reduce_bucket = 1000},
    {.stage = 1, .reduce_scatter = true},
    {.stage = 1, .overlap_comm = true, .reduce_bucket = 1},
    {.stage = 1, .allgather_bucket = 100},
    {.stage = 1, .offload_optimizer = true},
    {.stage = 2, .reduce_scatter = true},
    {.stage = 2, .reduce_scatter = true, .overlap_comm = true, .reduce_bucket = 500},
    {.stage = 2, .overlap_comm = true, .reduce_bucket = 2700},
    {.stage = 3, .reduce_scatter = true, .overlap_comm = true, .reduce_bucket = 500},
    {.stage = 3, .max_live = 4000, .prefetch_bucket = 3000, .max_reuse_distance = 100},
    {.stage = 3,
     .max_live = INT64_MAX,
     .prefetch_bucket = INT64_MAX,
     .overlap_comm = true,
     .max_reuse_distance = INT64_MAX},
    {.stage = 3,
     .persistence_threshold = 100,
     .model_persistence_threshold = INT64_MAX,
     .max_live = 100},
    {.stage = 3,
     .persistence_threshold = 100,
     .model_persistence_threshold = 40,
     .offload_optimizer = true,
     .prefetch_bucket = 300,
     .max_live = INT64_MAX},
};

#define FIRST_OF_STAGE_2 6
#define SETTINGS         (int)(sizeof settings / sizeof *settings)

/* All settings on `ranks`, beside the first one of their kind; `like` has the
 * rest. With accumulation stages 2 and 3 add the sums of ranks, 0 and 1 sum
 * over ranks what was added: other roundings. */
static void compare(int ranks, Plan like)
{
    Run *want = calloc(1, sizeof *want), *got = calloc(1, sizeof *got);
    bool few = quick_gpu();
    for (int i = 0; i < SETTINGS; i += few ? 3 : 1) {
        bool first = i == 0 || (like.accumulate > 1 && i == FIRST_OF_STAGE_2);
        Run *run = first ? want : got;
        run->plan = like;
        run->plan.o = settings[i];
        run->plan.steps = few ? 2 : quick() ? 4 : like.steps;
        run->plan.o.dtype = like.o.dtype;
        run->plan.o.accum_dtype = like.o.accum_dtype;
        run->plan.o.comm_dtype = like.o.comm_dtype;
        run->plan.o.prescale = like.o.prescale;
        run->plan.o.predivide = like.o.predivide;
        run_on(ranks, run);
        if (memcmp(want->x[0], run->x[0], (size_t)want->n * sizeof(float)))
            fail_msg("%d ranks, %s, accumulation %d, clip %g: setting %d differs by %g", ranks,
                     ds_dtype_name(like.o.dtype), like.accumulate, like.clip, i,
                     difference(run, want));
    }
    free(want), free(got);
}

static const Plan plain = {.steps = 10, .accumulate = 1, .adam = true};
static const Plan clipped = {.steps = 10, .accumulate = 1, .clip = 0.5};
static const Plan added_up = {.steps = 10, .accumulate = 4, .clip = 0.5, .adam = true};

static void settings_change_no_bit(void **state)
{
    (void)state;
    static const int all[] = {1, 2, 3, 4, 8}, gpus[] = {2, 4};
    const int *sizes = on_gpu() ? gpus : all;
    for (int i = 0; i < (on_gpu() ? 2 : quick() ? 3 : 5); i++) {
        compare(sizes[i], plain);
        compare(sizes[i], clipped);
        compare(sizes[i], added_up);
    }
    if (quick_gpu()) return;
    Plan longer = added_up;
    longer.steps = quick() ? 4 : 100;
    compare(4, longer);
}

static void in_16_bits_too(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 4; k++) {
            int ranks = i ? some_ranks() : 2;
            if (quick_gpu() && k != 1) continue;
            Plan run = k % 2 ? added_up : plain;
            run.o.dtype = run.o.accum_dtype = run.o.comm_dtype = k < 2 ? DS_BF16 : DS_F16;
            compare(ranks, run);
            run.o.accum_dtype = DS_F32;
            compare(ranks, run);
            if (i) run.o.comm_dtype = DS_F32, compare(ranks, run);
        }
}

/* However the mean is taken, all stages take it so. */
static void means(void **state)
{
    (void)state;
    Plan run = added_up;
    run.o.prescale = true;
    compare(some_ranks(), run);
    run.o.prescale = false, run.o.predivide = 2;
    compare(some_ranks(), run);
    run.o.comm_dtype = DS_BF16;
    compare(4, run);
    run.o.dtype = DS_BF16;
    compare(4, run);
}

/* A single process with the same global batch: the mean is rounded elsewhere,
 * no more. */
static void as_a_single_process(void **state)
{
    (void)state;
    static const int sizes[] = {2, 4, 3, 8};
    Run *want = calloc(1, sizeof *want), *got = calloc(1, sizeof *got);
    want->plan = (Plan){.steps = on_gpu() ? 3 : 10, .accumulate = 1, .clip = 1};
    run_on(1, want);
    for (int i = 0; i < (on_gpu() ? 2 : 4); i++)
        for (int stage = 0; stage <= 3; stage++)
            for (int accumulate = 1; accumulate <= 4; accumulate += 3) {
                if (samples_a_step() % (sizes[i] * accumulate)) continue;
                got->plan = (Plan){.steps = want->plan.steps, .accumulate = accumulate, .clip = 1};
                got->plan.o = (dsi_zero_opts){
                    .stage = stage, .overlap_comm = true, .reduce_bucket = 700};
                run_on(sizes[i], got);
                CHECK_CLOSE(difference(got, want), 0, 1e-6);
            }
    free(want), free(got);
}

TEST_MAIN(cmocka_unit_test(settings_change_no_bit), cmocka_unit_test(in_16_bits_too),
          cmocka_unit_test(means), cmocka_unit_test(as_a_single_process))
