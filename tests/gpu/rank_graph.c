/* tests/gpu/rank_graph.c: steps of several ranks as CUDA graphs, with their
 * collectives (NCCL), beside the same steps kernel by kernel, equal to the bit;
 * what a step costs; failures; what is not recorded.
 * SPDX-License-Identifier: MIT */
#include "apart.h"
#include "nets.h"

#include "device/device.h"

enum { BATCH = 4, RANKS = 4, MOST = 40 };

/* A training on several ranks; what is seen is that of each rank. */
typedef struct Run {
    const char *config; /* of the engine, behind the batch sizes; NULL: DistributedDataParallel */
    int accumulate, steps;
    int other_batch; /* a step with fewer samples on all ranks; on rank 1 alone: the next one */
    int decay_at;    /* there and one step later rank 1 alone changes its weight decay */
    int full_at;     /* there rank 1 alone gets no memory */
    int overflow_at; /* of rank 1's gradients */
    int stray_at;    /* before it, a forward pass of its own on all ranks */
    int experts;     /* of each token, of 4, which 2 ranks have; 0: a network without them */
    bool more;       /* other_batch has more samples, not fewer */
    bool keeps_grads, count;
    bool reads; /* rank 1 reads the loss in its step */
    bool graph;
    long launches, graphs, syncs, overlapped; /* of the last two steps, of all ranks */
    double loss[RANKS][MOST], norm[RANKS][MOST];
    int64_t skipped[RANKS];
    float *values[RANKS];
    size_t bytes[RANKS];
    char why[200]; /* rank 0: there is no graph */
    bool monitored;
    double losses; /* sum of what a sink of rank 0 got */
} Run;

typedef struct Rank {
    const Run *run;
    ds_module *net;
    ds_ddp *ddp;
    ds_optim *optim;
    ds_engine *engine;
} Rank;

static ds_module *expert_new(ds_module *parent, const char *name, void *arg)
{
    (void)arg;
    return ds_nn_linear(parent, name, WIDTH, WIDTH);
}

/* Buckets of one parameter and of several, dropout, and buffers. Of 3, 4 and 5
 * tokens an expert takes as many, if k is 2. */
static ds_module *deep_net(int k)
{
    ds_seed(5);
    ds_module *net = ds_nn_sequential(NULL, "net");
    ds_nn_linear(net, "a", WIDTH, WIDTH);
    ds_nn_batch_norm1d(net, "n", WIDTH);
    ds_nn_relu(net, "b");
    ds_nn_dropout(net, "d", 0.25);
    if (k)
        ds_nn_moe(net, "e", WIDTH, expert_new, .num_experts = 4, .ep_size = 2, .k = k,
                  .capacity_factor = 2, .min_capacity = -1, .noisy_gate_policy = "RSample");
    else
        ds_nn_linear(net, "e", WIDTH, WIDTH);
    ds_nn_linear(net, "c", WIDTH, 10);
    return net;
}

static ds_tensor *rank_step(void *self, ds_tensor *const *in, int n)
{
    const Rank *r = self;
    CHECK_INT(n, 2);
    if (r->engine) {
        ds_tensor *y = ds_cast(ds_engine_forward(r->engine, in[0]), DS_F32);
        ds_tensor *loss = ds_cross_entropy(y, in[1]);
        if (ds_engine_backward(r->engine, loss) != DS_OK) return NULL;
        return ds_engine_step(r->engine) == DS_OK ? loss : NULL;
    }
    if (!r->run->keeps_grads) ds_optim_zero_grad(r->optim);
    ds_tensor *loss = ds_cross_entropy(ds_ddp_call(r->ddp, in[0]), in[1]);
    if (r->run->reads && ds_comm_rank(NULL) == 1) CHECK(ds_item(loss) > 0);
    if (ds_ddp_backward(r->ddp, loss) != DS_OK) return NULL;
    return ds_optim_step(r->optim) == DS_OK ? loss : NULL;
}

typedef struct Losses {
    double *sum;
} Losses;

static ds_status losses_write(void *self, const char *tag, double value, int64_t step)
{
    const Losses *l = self;
    (void)step;
    if (strstr(tag, "train_loss")) *l->sum += value;
    return DS_OK;
}

static void rank_monitor(const Rank *r, double *sum)
{
    static const ds_sink_type type = {"losses", sizeof(Losses), .write = losses_write};
    ((Losses *)ds_monitor_add(ds_engine_monitor(r->engine), &type))->sum = sum;
}

static void rank_begin(Rank *r)
{
    char config[900];
    if (!r->run->config) {
        r->net = deep_net(r->run->experts);
        r->ddp = ds_ddp_new_with(r->net, (ds_ddp_opts){.bucket_bytes = WIDTH * WIDTH * 4,
                                                       .no_broadcast_buffers = r->run->count});
        r->optim = ds_optim_adamw(r->net, 0.01);
        return;
    }
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d, "
             "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}%s}",
             BATCH, r->run->accumulate ? r->run->accumulate : 1, r->run->config);
    r->engine = ds_initialize(.model = deep_net(r->run->experts), .config = config);
    r->net = ds_engine_module(r->engine);
    CHECK(r->engine);
}

static void rank_end(Rank *r)
{
    if (!r->engine) ds_module_free(r->net);
    ds_ddp_free(r->ddp);
    ds_optim_free(r->optim);
    ds_engine_free(r->engine);
}

static void rank_inputs(const Rank *r, int step, ds_tensor *in[2])
{
    const Run *run = r->run;
    int rank = ds_comm_rank(NULL);
    bool other = run->other_batch &&
                 (step == run->other_batch || (step == run->other_batch + 1 && rank == 1));
    int64_t labels[BATCH + 1], batch = !other ? BATCH : run->more ? BATCH + 1 : BATCH - 1;
    for (int i = 0; i < batch; i++) labels[i] = (step * 7 + i * 3 + rank) % 10;
    ds_seed((uint64_t)(step * RANKS + rank));
    bool overflow = run->overflow_at && step == run->overflow_at && rank == 1;
    ds_tensor *x = ds_scale(ds_randn(DS_F32, ds_shape(batch, WIDTH)), overflow ? NAN : 1);
    in[0] = ds_cast(x, r->engine ? ds_engine_dtype(r->engine) : DS_F32);
    in[1] = ds_from_data(DS_I64, ds_shape(batch), labels);
}

/* A barrier of the host before and after the steps that are counted. */
static void run_count(Run *run, int sign)
{
    CHECK_INT(ds_barrier(NULL), DS_OK);
    if (ds_comm_rank(NULL) == 0) {
        run->launches += sign * emulator_count("fake_cuda_launches");
        run->graphs += sign * emulator_count("fake_cuda_graph_launches");
        run->syncs += sign * emulator_count("fake_cuda_syncs");
        run->overlapped += sign * emulator_count("fake_cuda_overlapped");
    }
    CHECK_INT(ds_barrier(NULL), DS_OK);
}

static void rank_steps(Run *run, Rank *r, ds_step_graph *graph)
{
    int rank = ds_comm_rank(NULL);
    ds_tensor *in[2];
    rank_inputs(r, 0, in);
    for (int i = 0; i < run->steps && !ds_error(); i++) {
        if (run->count && i == run->steps - 2) run_count(run, -1);
        ds_scope *scope = ds_scope_open();
        if (!run->count) rank_inputs(r, i, in);
        if (run->stray_at && i == run->stray_at) CHECK(ds_engine_forward(r->engine, in[0]));
        bool changes = run->decay_at && (i == run->decay_at || i == run->decay_at + 1);
        if (changes && rank == 1) ds_optim_set_group_weight_decay(r->optim, 0, 0.1 * i);
        if (run->full_at && rank == 1) dsi_cache_fail(i == run->full_at, false);
        ds_tensor *loss = graph ? ds_step_graph_run(graph, in, 2) : rank_step(r, in, 2);
        if (!run->count || r->engine || i == run->steps - 1) run->loss[rank][i] = ds_item(loss);
        if (r->engine) run->norm[rank][i] = ds_engine_global_grad_norm(r->engine);
        ds_scope_close(scope);
    }
    if (run->count) run_count(run, 1);
}

static ds_status run_rank(void *arg)
{
    Run *run = arg;
    Rank r = {.run = run};
    int rank = ds_comm_rank(NULL);
    if (ds_set_device((ds_device){DS_CUDA, rank}) != DS_OK) return ds_error_status();
    rank_begin(&r);
    if (run->monitored) rank_monitor(&r, &run->losses);
    ds_step_graph *graph = !run->graph ? NULL
                           : r.engine  ? ds_engine_step_graph_new(r.engine, rank_step, &r)
                                       : ds_step_graph_new(rank_step, &r);
    ds_scope *scope = ds_scope_open();
    rank_steps(run, &r, graph);
    ds_scope_close(scope);
    ds_tensor *all[16];
    int n = ds_module_params(r.net);
    for (int i = 0; i < n; i++) all[i] = ds_module_param_at(r.net, i, NULL);
    if (r.engine) ds_gathered(all, n);
    if (!ds_error()) values_add(r.net, &run->values[rank], &run->bytes[rank]);
    if (r.engine) ds_gathered_end(all, n, -1);
    if (r.engine) run->skipped[rank] = ds_engine_skipped_steps(r.engine);
    const char *why = graph ? ds_step_graph_why_not(graph) : NULL;
    if (why && !rank) snprintf(run->why, sizeof run->why, "%s", why);
    if (graph && !why && !ds_error()) CHECK(ds_step_graph_replays(graph));
    ds_step_graph_free(graph);
    rank_end(&r);
    return ds_error_status();
}

static bool same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

/* The same with graphs and without, to the bit. */
static void compare(Run run, int ranks)
{
    Run plain = run, graph = run;
    graph.graph = true;
    CHECK_INT(ds_run_ranks(ranks, run_rank, &plain), DS_OK);
    CHECK_INT(ds_run_ranks(ranks, run_rank, &graph), DS_OK);
    if (*graph.why) fail_msg("{%s}: %s", run.config, graph.why);
    for (int r = 0; r < ranks; r++) {
        for (int i = 0; i < run.steps; i++)
            if (!same(plain.loss[r][i], graph.loss[r][i]) ||
                !same(plain.norm[r][i], graph.norm[r][i]))
                fail_msg("{%s}: rank %d of %d, step %d: loss %.9g, norm %.17g; without a graph "
                         "%.9g, %.17g",
                         run.config ? run.config : "DDP", r, ranks, i, graph.loss[r][i],
                         graph.norm[r][i], plain.loss[r][i], plain.norm[r][i]);
        CHECK_INT(graph.skipped[r], plain.skipped[r]);
        CHECK(plain.bytes[r] == graph.bytes[r] && plain.bytes[r] > 0);
        if (memcmp(plain.values[r], graph.values[r], plain.bytes[r]) != 0)
            fail_msg("{%s}: the values differ", run.config ? run.config : "DDP");
        free(plain.values[r]), free(graph.values[r]);
    }
    if (run.overflow_at) CHECK(plain.skipped[0] > 0);
    CHECK_CLOSE(graph.losses, plain.losses, 0);
    CHECK(!run.monitored || plain.losses > 0);
}

#define STAGE(n) \
    ", \"zero_optimization\": {\"stage\": " #n ", \"reduce_bucket_size\": 600, \"overlap_comm\": " \
    "true}"
#define STAGE3 \
    ", \"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": 600, " \
    "\"stage3_param_persistence_threshold\": 0}"
#define STAGE3_AGAIN /* what backward uses is gathered again */ \
    ", \"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 0, " \
    "\"stage3_max_reuse_distance\": 0}"
#define CLIP ", \"gradient_clipping\": 0.5"
#define BF16 ", \"bf16\": {\"enabled\": true}"
#define FP16 \
    ", \"fp16\": {\"enabled\": true, \"initial_scale_power\": 8, \"loss_scale_window\": 3, " \
    "\"hysteresis\": 1}"

static void ddp_steps(void **state)
{
    (void)state;
    compare((Run){.steps = 9, .other_batch = 6}, 2);
    compare((Run){.steps = 9, .other_batch = 1}, 2); /* rank 1 is ready to record later */
    compare((Run){.steps = 14, .decay_at = 5}, 2);   /* rank 1 drops its record alone */
    if (!quick()) compare((Run){.steps = 6}, RANKS);
}

static void engine_steps(void **state)
{
    (void)state;
    compare((Run){.config = STAGE(0) CLIP, .steps = 9, .other_batch = 6}, 2);
    compare((Run){.config = STAGE(1) FP16 CLIP, .steps = 9, .overflow_at = 5}, 2);
    compare((Run){.config = STAGE(2) BF16 CLIP, .steps = 6, .monitored = true}, RANKS);
    compare((Run){.config = STAGE3 FP16 CLIP, .steps = 12, .overflow_at = 5, .other_batch = 8}, 2);
    compare((Run){.config = STAGE3_AGAIN, .steps = 16, .stray_at = 9, .other_batch = 9}, 2);
    if (quick()) return;
    compare((Run){.config = STAGE3 CLIP, .steps = 6}, RANKS);
    compare((Run){.config = STAGE(1) BF16, .steps = 6}, RANKS);
    compare((Run){.config = STAGE(2) FP16, .steps = 9, .overflow_at = 6}, 2);
}

/* Their hosts agree on the rows of an expert: rank 1 alone has fewer tokens than
 * rank 0, which replays, or more, so that this replay does not hold. */
static void experts_of_other_ranks(void **state)
{
    (void)state;
    for (int k = 1; k <= 2; k++)
        for (int more = 0; more <= 1; more++)
            compare((Run){.experts = k, .more = more, .steps = 12, .other_batch = 6}, 2);
    compare((Run){.experts = 2, .config = STAGE(1) BF16 CLIP, .steps = 9, .other_batch = 6}, 2);
    compare((Run){.experts = 2, .config = STAGE3, .steps = 12, .other_batch = 7, .more = true}, 2);
    if (quick()) return;
    compare((Run){.experts = 2, .config = STAGE(2) CLIP, .steps = 12, .accumulate = 3}, 2);
    compare((Run){.experts = 2, .config = STAGE(2) CLIP, .steps = 6}, RANKS);
}

static void accumulation(void **state)
{
    (void)state;
    compare((Run){.config = STAGE(2) CLIP, .steps = 12, .accumulate = 3}, 2);
    compare((Run){.config = STAGE3 CLIP, .steps = 21, .accumulate = 3, .other_batch = 14}, 2);
    if (quick()) return;
    compare((Run){.config = STAGE(0) BF16 CLIP, .steps = 12, .accumulate = 3}, 2);
    compare((Run){.config = STAGE3 FP16, .steps = 15, .accumulate = 2, .overflow_at = 11}, RANKS);
}

/* ---- what a step costs ------------------------------------------------------------------------------- */

/* A launch a rank and micro step, collectives beside kernels; the host of an engine waits
 * once, of DDP when it reads the loss. */
static void one_launch(void **state)
{
    (void)state;
    static const char *const configs[] = {NULL,          STAGE(0) CLIP, STAGE(1) CLIP,
                                          STAGE(2) CLIP, STAGE3 CLIP,   STAGE3 CLIP};
    long plain = 0;
    for (int i = 0; i < 9; i++) { /* 7, 8: without a graph; 6, 8: experts of other ranks */
        Run run = {.steps = 6, .graph = i < 7, .count = true, .experts = i == 6 || i == 8};
        if (i < 6) run.config = configs[i];
        if (i == 5) run.accumulate = 3, run.steps = 12;
        CHECK_INT(ds_run_ranks(2, run_rank, &run), DS_OK);
        CHECK(!*run.why);
        CHECK_INT(run.graphs, run.graph ? 2 * 2 : 0);
        if (i == 7) plain = run.syncs;
        CHECK_INT(run.syncs, !run.graph ? plain : run.config ? 2 * 2 : 2);
        print_message("%s: %g kernels beside collectives a micro step\n",
                      run.config ? run.config : "DDP", (double)run.overlapped / 4);
        if (emulator_overlaps() && run.graph) CHECK(run.overlapped > 0);
        for (int r = 0; r < 2; r++) free(run.values[r]);
    }
}

static void costs(void **state)
{
    (void)state;
    apart(one_launch, "FAKE_NCCL_DELAY=2000", NULL, NULL);
}

/* ---- failures ---------------------------------------------------------------------------------------- */

static void fails_with(const char *message)
{
    Run run = {.config = STAGE(0) CLIP, .steps = 12, .graph = true};
    CHECK_INT(ds_run_ranks(2, run_rank, &run), DS_ECOMM);
    CHECK(ds_error() && strstr(ds_error(), "(the first of a recorded step), number "));
    CHECK_ERROR(message);
}

static void remote(void **state)
{
    (void)state;
    fails_with("NCCL says: remote process exited or there was a network error (ncclRemoteError)");
}

static void stuck(void **state)
{
    (void)state;
    fails_with("s (DS_TIMEOUT) in NCCL, on this rank or another one");
}

/* The 40th collective is one of a replay. */
static void failures(void **state)
{
    (void)state;
    apart(remote, "FAKE_NCCL_ERROR=1:40:6", NULL, NULL);
    apart(stuck, "FAKE_NCCL_HANG=1:40", "DS_TIMEOUT=1", NULL);
}

/* The others would wait for it. */
static void full(void **state)
{
    (void)state;
    Run run = {.steps = 6, .full_at = 2, .graph = true}; /* it is recorded there */
    CHECK_INT(ds_run_ranks(2, run_rank, &run), DS_ECOMM);
    CHECK_ERROR("rank 1: no memory for ");
}

/* ---- what is not recorded ------------------------------------------------------------------------------ */

static void is_refused(Run run, const char *why)
{
    run.steps = 2;
    run.graph = true;
    CHECK_INT(ds_run_ranks(2, run_rank, &run), DS_OK);
    for (int r = 0; r < 2; r++) free(run.values[r]);
    if (strncmp(run.why, why, strlen(why)) != 0) fail_msg("%s: %s", why, run.why);
}

static void without_nccl(void **state)
{
    (void)state;
    is_refused((Run){0}, "it exchanges tensors with other ranks through host memory");
    is_refused((Run){.config = STAGE(0)}, "it exchanges ");
}

static void what_cannot_be_recorded(void **state)
{
    (void)state;
    apart(without_nccl, "DS_NCCL=off", NULL, NULL);
    is_refused((Run){.reads = true}, "on another rank it cannot be recorded, as a line of that");
    is_refused((Run){.keeps_grads = true}, "it adds to gradients of an earlier pass");
    is_refused((Run){.config = STAGE(0) ", \"comms_logger\": {\"enabled\": true}"},
               "its collectives are timed or compared");
}

typedef struct Groups {
    ds_comm *row, *column;
} Groups;

static ds_tensor *groups_step(void *self, ds_tensor *const *in, int n)
{
    const Groups *g = self;
    CHECK_INT(n, 1);
    ds_tensor *x = ds_clone(in[0]);
    if (ds_all_reduce(g->row, x, DS_REDUCE_SUM) != DS_OK) return NULL;
    return ds_all_reduce(g->column, x, DS_REDUCE_SUM) == DS_OK ? x : NULL;
}

/* No vote in one of them would be one of all. */
static ds_status groups_rank(void *arg)
{
    (void)arg;
    int rank = ds_comm_rank(NULL);
    if (ds_set_device((ds_device){DS_CUDA, rank}) != DS_OK) return ds_error_status();
    ds_scope *scope = ds_scope_open();
    Groups g = {ds_comm_split(NULL, rank / 2, rank), ds_comm_split(NULL, rank % 2, rank)};
    ds_step_graph *graph = ds_step_graph_new(groups_step, &g);
    for (int i = 0; i < 4; i++) {
        ds_tensor *x = ds_full(DS_F32, ds_shape(WIDTH), rank);
        CHECK_CLOSE(ds_item(ds_select(ds_step_graph_run(graph, &x, 1), 0, 0)), 6, 0);
    }
    const char *why = ds_step_graph_why_not(graph);
    CHECK(why && !strncmp(why, "it exchanges tensors in several groups of ranks", 47));
    ds_step_graph_free(graph);
    ds_comm_free(g.row), ds_comm_free(g.column);
    ds_scope_close(scope);
    return ds_error_status();
}

static void groups_without_all(void **state)
{
    (void)state;
    CHECK_INT(ds_run_ranks(RANKS, groups_rank, NULL), DS_OK);
}

int main(void)
{
    int skip = skip_without_emulator();
    if (skip) return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs),
        cmocka_unit_test(failures),
        cmocka_unit_test(what_cannot_be_recorded), /* begins with a process of its own, too */
        cmocka_unit_test(full),
        cmocka_unit_test(groups_without_all),
        cmocka_unit_test(ddp_steps),
        cmocka_unit_test(engine_steps),
        cmocka_unit_test(accumulation),
        cmocka_unit_test(experts_of_other_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
