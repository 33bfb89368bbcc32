/* tests/gpu/ranks.c: ranks with a GPU each, emulated: every collective gives the
 * bits that it gives on the CPU; DDP and the engine's stages train there as on
 * the CPU. With fewer GPUs than ranks, ranks share them.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "emulated.h"
#include "nets.h"

enum { RANKS = 4, N = 12, BATCH = 4, STEPS = 3 };

typedef struct Run {
    ds_device_kind kind;
    int stage;
    bool offload;
    const char *precision;
    float seen[RANKS][4096]; /* what each rank got */
    int count[RANKS];
    double loss[STEPS]; /* of rank 0 */
} Run;

static ds_status use_own_device(const Run *run)
{
    int rank = ds_comm_rank(NULL), gpus = ds_device_count(DS_CUDA);
    return ds_set_device((ds_device){run->kind, run->kind == DS_CUDA ? rank % gpus : 0});
}

/* Notes the elements of x. */
static void see(Run *run, ds_tensor *x)
{
    int rank = ds_comm_rank(NULL);
    ds_tensor *host = ds_to(x, (ds_device){DS_CPU, 0}, DS_F32);
    int64_t n = ds_numel(host);
    CHECK(host && run->count[rank] + n <= 4096);
    memcpy(run->seen[rank] + run->count[rank], ds_data(host), (size_t)n * sizeof(float));
    run->count[rank] += (int)n;
}

/* [n] with other values on each rank. */
static ds_tensor *values(ds_dtype dtype, int64_t n)
{
    float v[RANKS * N];
    for (int64_t i = 0; i < n; i++) v[i] = (float)((i * 37 + ds_comm_rank(NULL) * 11) % 23) / 8 - 1;
    return ds_cast(ds_from_data(DS_F32, ds_shape(n), v), dtype);
}

static void reductions(Run *run, ds_dtype dtype)
{
    ds_tensor *x = values(dtype, N), *part = ds_zeros(dtype, ds_shape(N));
    CHECK_INT(ds_all_reduce(NULL, x, DS_REDUCE_SUM), DS_OK);
    see(run, x);
    x = values(dtype, N);
    CHECK_INT(ds_reduce_to(NULL, x, DS_REDUCE_MAX, 1), DS_OK);
    see(run, x); /* elsewhere it stays */
    CHECK_INT(ds_reduce_scatter(NULL, part, values(dtype, RANKS * N), DS_REDUCE_SUM), DS_OK);
    see(run, part);
    x = values(dtype, N);
    CHECK_INT(ds_all_reduce(NULL, x, DS_REDUCE_MIN), DS_OK);
    see(run, x);
    CHECK_INT(ds_reduce_scatter(NULL, part, values(dtype, RANKS * N), DS_REDUCE_MIN), DS_OK);
    see(run, part);
}

/* A NaN of one rank is one for all. */
static void nan_stays(ds_dtype dtype)
{
    for (int min = 0; min < 2; min++) {
        ds_tensor *x = ds_full(dtype, ds_shape(N), ds_comm_rank(NULL) == 1 ? NAN : 1);
        CHECK_INT(ds_all_reduce(NULL, x, min ? DS_REDUCE_MIN : DS_REDUCE_MAX), DS_OK);
        CHECK(isnan(ds_item(ds_select(x, 0, N - 1))));
    }
}

static void moves(Run *run, ds_dtype dtype)
{
    int rank = ds_comm_rank(NULL);
    ds_tensor *x = values(dtype, N), *all = ds_zeros(dtype, ds_shape(RANKS * N));
    CHECK_INT(ds_broadcast(NULL, x, 2), DS_OK);
    see(run, x);
    CHECK_INT(ds_all_gather(NULL, all, values(dtype, N)), DS_OK);
    see(run, all);
    CHECK_INT(ds_gather_to(NULL, rank == 1 ? all : NULL, x, 1), DS_OK);
    see(run, all);
    CHECK_INT(ds_scatter_from(NULL, x, rank == 0 ? values(dtype, RANKS * N) : NULL, 0), DS_OK);
    see(run, x);
    CHECK_INT(ds_all_to_all(NULL, all, values(dtype, RANKS * N)), DS_OK);
    see(run, all);
}

/* Rank r sends r + 1 rows to rank 0, and keeps none. */
static void rows_and_messages(Run *run)
{
    int rank = ds_comm_rank(NULL);
    int64_t to[RANKS] = {rank + 1}, from[RANKS] = {0};
    for (int r = 0; r < RANKS && rank == 0; r++) from[r] = r + 1;
    ds_tensor *in = ds_reshape(values(DS_F32, 2 * (rank + 1)), ds_shape(rank + 1, 2));
    ds_tensor *out = ds_zeros(DS_F32, ds_shape(rank ? 0 : RANKS * (RANKS + 1) / 2, 2));
    CHECK_INT(ds_all_to_all_rows(NULL, out, from, in, to), DS_OK);
    see(run, out);
    ds_tensor *got = ds_zeros(DS_F32, ds_shape(N)), *mine = values(DS_F32, N);
    ds_message *sent = ds_isend(NULL, mine, (rank + 1) % RANKS);
    CHECK_INT(ds_recv(NULL, got, (rank + RANKS - 1) % RANKS), DS_OK);
    CHECK_INT(ds_message_wait(sent), DS_OK);
    see(run, got);
    /* every other column: not contiguous, so received by way of a copy */
    ds_tensor *wide = ds_reshape(values(DS_F32, 2 * N), ds_shape(N, 2));
    CHECK_INT(ds_all_reduce(NULL, ds_slice(wide, 1, 0, 1), DS_REDUCE_AVG), DS_OK);
    see(run, wide);
}

static ds_status run_collectives(void *arg)
{
    Run *run = arg;
    if (use_own_device(run) != DS_OK) return ds_error_status();
    ds_scope *scope = ds_scope_open();
    static const ds_dtype dtypes[] = {DS_F32, DS_BF16, DS_I64, DS_I16};
    for (int k = 0; k < 4; k++) {
        reductions(run, dtypes[k]);
        if (k < 2) nan_stays(dtypes[k]);
        moves(run, dtypes[k]);
    }
    rows_and_messages(run);
    ds_scope_close(scope);
    return DS_OK;
}

static void collectives_are_those_of_the_cpu(void **state)
{
    (void)state;
    static Run want, got;
    want.kind = DS_CPU;
    got.kind = DS_CUDA;
    CHECK_INT(ds_run_ranks(RANKS, run_collectives, &want), DS_OK);
    CHECK_INT(ds_run_ranks(RANKS, run_collectives, &got), DS_OK);
    for (int r = 0; r < RANKS; r++) {
        CHECK_INT(got.count[r], want.count[r]);
        CHECK(want.count[r] > 0 &&
              !memcmp(got.seen[r], want.seen[r], (size_t)want.count[r] * sizeof(float)));
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------- */

static ds_status mix_devices(void *arg)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = values(DS_F32, N);
    CHECK_INT(use_own_device(arg), DS_OK);
    CHECK_INT(ds_all_gather(NULL, ds_zeros(DS_F32, ds_shape(2 * N)), x), DS_EINVAL);
    CHECK_ERROR("all_gather: operands are on cpu and cuda:");
    ds_error_clear();
    ds_scope_close(scope);
    return DS_OK;
}

static void refuses_two_devices(void **state)
{
    (void)state;
    Run run = {.kind = DS_CUDA};
    CHECK_INT(ds_run_ranks(2, mix_devices, &run), DS_OK);
}

/* ---- training ---------------------------------------------------------------------------------------- */

static ds_tensor *batch(int step)
{
    ds_seed((uint64_t)(step * RANKS + ds_comm_rank(NULL)));
    return ds_randn(DS_F32, ds_shape(BATCH, WIDTH));
}

static ds_tensor *loss_of(ds_tensor *y)
{
    y = ds_cast(y, DS_F32);
    return ds_mean(ds_mul(y, y));
}

static ds_status train_ddp(void *arg)
{
    Run *run = arg;
    if (use_own_device(run) != DS_OK) return ds_error_status();
    ds_module *net = small_net();
    ds_ddp *ddp = ds_ddp_new(net);
    ds_optim *sgd = ds_optim_sgd(net, 0.1, .momentum = 0.9);
    for (int i = 0; i < STEPS && !ds_error(); i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *loss = loss_of(ds_ddp_call(ddp, batch(i)));
        ds_ddp_backward(ddp, loss);
        ds_optim_step(sgd);
        ds_optim_zero_grad(sgd);
        if (!ds_comm_rank(NULL)) run->loss[i] = ds_item(loss);
        ds_scope_close(scope);
    }
    ds_optim_free(sgd);
    ds_ddp_free(ddp);
    ds_module_free(net);
    return ds_error_status();
}

static ds_status train_engine(void *arg)
{
    Run *run = arg;
    char config[600];
    snprintf(config, sizeof config,
             "{\"train_batch_size\": %d, \"gradient_accumulation_steps\": 2, "
             "\"gradient_clipping\": 0.5, \"optimizer\": {\"type\": \"AdamW\", \"params\": "
             "{\"lr\": 0.01}}, %s\"zero_optimization\": {\"stage\": %d%s}}",
             2 * BATCH * ds_comm_size(NULL), run->precision, run->stage,
             run->offload ? ", \"offload_optimizer\": {\"device\": \"cpu\"}" : "");
    if (use_own_device(run) != DS_OK) return ds_error_status();
    ds_engine *e = ds_initialize(.model = small_net(), .config = config);
    for (int i = 0; e && i < 2 * STEPS && !ds_error(); i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *loss = loss_of(ds_engine_forward(e, ds_cast(batch(i), ds_engine_dtype(e))));
        ds_engine_backward(e, loss);
        ds_engine_step(e);
        if (!ds_comm_rank(NULL)) run->loss[i / 2] = ds_item(loss);
        ds_scope_close(scope);
    }
    ds_engine_free(e);
    return ds_error_status();
}

static void compare(ds_status (*train)(void *arg), int ranks, int stage, const char *precision,
                    double tolerance)
{
    Run want = {.kind = DS_CPU, .stage = stage, .precision = precision};
    CHECK_INT(ds_run_ranks(ranks, train, &want), DS_OK);
    CHECK(want.loss[0] > 0);
    for (int offload = 0; offload <= (stage > 0); offload++) {
        Run got = {.kind = DS_CUDA, .stage = stage, .precision = precision, .offload = offload};
        CHECK_INT(ds_run_ranks(ranks, train, &got), DS_OK);
        for (int i = 0; i < STEPS; i++) CHECK_CLOSE(got.loss[i], want.loss[i], tolerance);
    }
}

static void ddp_trains(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= RANKS; ranks++) compare(train_ddp, ranks, 0, "", 1e-6);
}

static void every_stage_trains(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        compare(train_engine, 2, stage, "", 1e-6);
        compare(train_engine, RANKS, stage, "\"bf16\": {\"enabled\": true}, ", 2e-2);
    }
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_are_those_of_the_cpu), cmocka_unit_test(refuses_two_devices),
        cmocka_unit_test(ddp_trains), cmocka_unit_test(every_stage_trains)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
