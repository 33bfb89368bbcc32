/* tests/gpu/nccl.c: ranks that exchange tensors by NCCL (fake_nccl) on emulated
 * GPUs: groups, waits of the host, overlap, and each failure. A case is a process
 * of its own, as NCCL is opened once; cases mostly wait, and run side by side.
 * SPDX-License-Identifier: MIT */
#include "apart.h"
#include "nets.h"

#include "caught.h"
#include "folder.h"

enum { N = 12, BATCH = 4 };

static bool use_own_gpu(void)
{
    return ds_set_device((ds_device){DS_CUDA, ds_comm_rank(NULL)}) == DS_OK;
}

/* ---- failures ------------------------------------------------------------------------------------------ */

/* Three sums, read by the host after each: 1, 3, 9 .. times the ranks' first sum. */
static ds_status three_sums(void *arg)
{
    int ranks = ds_comm_size(NULL), at = ds_comm_rank(NULL);
    (void)arg;
    if (!use_own_gpu()) return ds_error_status();
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_full(DS_F32, ds_shape(N), at + 1);
    double want = ranks * (ranks + 1) / 2.0;
    for (int i = 0; i < 3 && ds_all_reduce(NULL, x, DS_REDUCE_SUM) == DS_OK; i++) {
        double got = ds_item(ds_select(x, 0, N - 1));
        if (!ds_error()) CHECK_CLOSE(got, want, 0);
        want *= ranks;
    }
    ds_scope_close(scope);
    return ds_error_status();
}

static void run_sums(const char *message)
{
    CHECK_INT(ds_run_ranks(2, three_sums, NULL), message ? DS_ECOMM : DS_OK);
    if (message) CHECK_ERROR(message);
}

static void goes_on(void **state)
{
    (void)state;
    run_sums(NULL);
}

#define FAILS(name, message) \
    static void name(void **state) \
    { \
        (void)state; \
        run_sums(message); \
    }
FAILS(no_library, "NCCL: /nowhere/libnccl.so.2 cannot be opened (")
FAILS(no_path, "DS_NCCL=yes: expected on, off, or the path of libnccl.so.2")
FAILS(no_id, "NCCL says: unhandled system error (ncclSystemError)")
FAILS(no_start, "NCCL says: unhandled system error (ncclSystemError)")
FAILS(lost, "s (DS_TIMEOUT) in NCCL, on this rank or another one")
FAILS(refused, "all_reduce(sum) of 12 float32, number 0 on cuda:")
FAILS(remote,
      "rank 1: all_reduce(sum) of 12 float32, number 1 on cuda:1: NCCL says: remote process "
      "exited or there was a network error (ncclRemoteError): an error of the fake")
FAILS(stuck, "all_reduce(sum) of 12 float32, number 2 on cuda:")

static void failures(void **state)
{
    (void)state;
    apart_begin(goes_on, NULL, NULL, NULL);
    apart_begin(goes_on, "DS_NCCL=off", NULL, NULL);
    apart_begin(no_library, "DS_NCCL=/nowhere/libnccl.so.2", NULL, NULL);
    apart_begin(no_path, "DS_NCCL=yes", NULL, NULL);
    apart_begin(no_id, "FAKE_NCCL_FAIL=ncclGetUniqueId=2", NULL, NULL);
    apart_begin(no_start, "FAKE_NCCL_FAIL=ncclCommInitRankConfig=2", NULL, NULL);
    apart_begin(lost, "FAKE_NCCL_LOST=1", "DS_TIMEOUT=1", NULL);
    apart_begin(refused, "FAKE_NCCL_FAIL=ncclAllReduce=5", NULL, NULL);
    apart_begin(remote, "FAKE_NCCL_ERROR=1:2:6", NULL, NULL);
    apart_begin(stuck, "FAKE_NCCL_HANG=1:3", "DS_TIMEOUT=1", NULL);
    apart_end();
}

static void two_ranks_add(void) { run_sums(NULL); }

/* Through the host instead, with the same values; the reason is a warning. */
static void host_because(const char *why)
{
    const char *log = caught_of(NULL, two_ranks_add);
    if (!strstr(log, why)) print_error("%s", log);
    CHECK(strstr(log, why));
    CHECK(strstr(log, "2 ranks exchange tensors on GPUs by thread through pinned host memory"));
}

#define BY_HOST(name, why) \
    static void name(void **state) \
    { \
        (void)state; \
        host_because(why); \
    }
BY_HOST(old, "libnccl.so.2 is NCCL 2.8.4, and 2.18 or newer is needed: install a newer package")
BY_HOST(one_gpu, "ranks 0 and 1 are on one GPU, and NCCL needs one a rank")

/* A rank that fails or leaves while the other one waits for its GPU. */
static ds_status rank_1_leaves(void *fails)
{
    if (!use_own_gpu()) return ds_error_status();
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_ones(DS_F32, ds_shape(N));
    CHECK_INT(ds_all_reduce(NULL, x, DS_REDUCE_SUM), DS_OK);
    CHECK_CLOSE(ds_item(ds_select(x, 0, 0)), 2, 0);
    bool waits = ds_comm_rank(NULL) == 0;
    if (waits) CHECK_INT(ds_all_reduce(NULL, x, DS_REDUCE_SUM), DS_OK); /* queued */
    CHECK_INT(ds_barrier(NULL), DS_OK); /* rank 0 has read the first sum */
    if (waits)
        CHECK(isnan(ds_item(ds_select(x, 0, 0))));
    else if (fails)
        ds_reshape(x, ds_shape(5));
    ds_scope_close(scope);
    return ds_error_status();
}

static void leaves(void **state)
{
    (void)state;
    CHECK_INT(ds_run_ranks(2, rank_1_leaves, NULL), DS_ECOMM);
    CHECK_ERROR("all_reduce(sum) of 12 float32, number 1 on cuda:0: rank 1 ended without it");
}

static void fails(void **state)
{
    CHECK(ds_run_ranks(2, rank_1_leaves, state) != DS_OK);
    CHECK_ERROR("rank 1: reshape: ");
}

/* Rank 1 returns at once from what takes longer than the time after which ranks
 * that have ended are missed. */
static ds_status rank_1_returns(void *arg)
{
    (void)arg;
    if (!use_own_gpu()) return ds_error_status();
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_ones(DS_F32, ds_shape(N));
    CHECK_INT(ds_all_reduce(NULL, x, DS_REDUCE_SUM), DS_OK);
    if (ds_comm_rank(NULL) == 0) CHECK_CLOSE(ds_item(ds_select(x, 0, 0)), 2, 0);
    ds_scope_close(scope);
    return ds_error_status();
}

static void returns(void **state)
{
    (void)state;
    CHECK_INT(ds_run_ranks(2, rank_1_returns, NULL), DS_OK);
}

static ds_status other_sizes(void *arg)
{
    (void)arg;
    if (!use_own_gpu()) return ds_error_status();
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_ones(DS_F32, ds_shape(N + ds_comm_rank(NULL)));
    if (ds_all_reduce(NULL, x, DS_REDUCE_SUM) == DS_OK) ds_item(ds_select(x, 0, 0));
    ds_scope_close(scope);
    return ds_error_status();
}

static void sizes_differ(void **state)
{
    (void)state;
    CHECK_INT(ds_run_ranks(2, other_sizes, NULL), DS_ECOMM);
    CHECK_ERROR(getenv("DS_DEBUG")
                    ? "ranks do not agree: rank 0 calls all_reduce(sum) of 12 float32"
                    : "the ranks call different collectives");
}

static ds_status other_gpu(void *arg)
{
    ds_status status = three_sums(arg);
    ds_set_device((ds_device){DS_CUDA, 2 + ds_comm_rank(NULL)});
    return status == DS_OK ? ds_all_reduce(NULL, ds_ones(DS_F32, ds_shape(N)), DS_REDUCE_SUM)
                           : status;
}

static void changes_gpu(void **state)
{
    (void)state;
    CHECK_INT(ds_run_ranks(2, other_gpu, NULL), DS_ECOMM);
    CHECK_ERROR("but this rank's NCCL communicator is on another GPU: use one GPU a rank, or "
                "DS_NCCL=off");
}

static void others(void **state)
{
    (void)state;
    apart_begin(old, "FAKE_NCCL_VERSION=2804", NULL, NULL);
    apart_begin(one_gpu, "FAKE_CUDA_BUS=1", NULL, NULL);
    apart_begin(leaves, NULL, NULL, NULL);
    apart_begin(fails, NULL, NULL, NULL);
    apart_begin(returns, "FAKE_NCCL_DELAY=2300000", NULL, NULL);
    apart_begin(sizes_differ, NULL, NULL, NULL);
    apart_begin(sizes_differ, "DS_DEBUG=comm", NULL, NULL);
    apart_begin(changes_gpu, NULL, NULL, NULL);
    apart_end();
}

/* ---- messages ------------------------------------------------------------------------------------------ */

static ds_tensor *of_rank(int rank) { return ds_full(DS_F32, ds_shape(N), rank + 1); }

static bool is_of_rank(ds_tensor *x, int rank)
{
    return ds_item(ds_sum(ds_abs(ds_sub(x, of_rank(rank))))) == 0;
}

/* Each to each, before and after the first collective of tensors on GPUs, across
 * it, and with messages of the host in between. */
static ds_status send_to_all(void *arg)
{
    enum { MOST = 4, ROUNDS = 3 };
    int rank = ds_comm_rank(NULL), size = ds_comm_size(NULL);
    ds_message *sent[MOST], *coming[MOST];
    ds_tensor *got[MOST];
    (void)arg;
    if (!use_own_gpu()) return ds_error_status();
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = of_rank(rank), *host = ds_to(x, (ds_device){DS_CPU, 0}, DS_F32);
    for (int round = 0; round < ROUNDS; round++) {
        bool joins = round == 1;
        for (int q = 0; q < size; q++)
            if (q != rank) sent[q] = ds_isend(NULL, round == 2 && q == 0 ? host : x, q);
        if (joins && rank % 2) ds_all_reduce(NULL, of_rank(0), DS_REDUCE_SUM);
        for (int q = 0; q < size; q++) {
            got[q] = ds_clone(round == 2 && rank == 0 ? host : x);
            if (q != rank) coming[q] = ds_irecv(NULL, got[q], q);
        }
        if (joins && rank % 2 == 0) ds_all_reduce(NULL, of_rank(0), DS_REDUCE_SUM);
        long syncs = emulator_count("fake_cuda_syncs");
        for (int q = 0; q < size; q++)
            if (q != rank) ds_message_wait(coming[q]), ds_message_wait(sent[q]);
        /* the host waits for nothing */
        if (round == 2 && size == 2 && rank) CHECK_INT(emulator_count("fake_cuda_syncs"), syncs);
        ds_barrier(NULL);
        for (int q = 0; q < size; q++)
            if (q != rank) CHECK(is_of_rank(ds_to(got[q], ds_current_device(), DS_F32), q));
        ds_barrier(NULL);
    }
    ds_scope_close(scope);
    return ds_error_status();
}

static void messages_arrive(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        CHECK_INT(ds_run_ranks(ranks, send_to_all, NULL), DS_OK);
}

/* Rank 1 answers by a message of the host when it has read rank 0's of the GPU,
 * for which rank 0 waits later. */
static ds_status send_and_be_answered(void *arg)
{
    (void)arg;
    int rank = ds_comm_rank(NULL);
    if (!use_own_gpu()) return ds_error_status();
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = of_rank(rank), *host = ds_to(x, (ds_device){DS_CPU, 0}, DS_F32);
    CHECK_INT(ds_all_reduce(NULL, ds_ones(DS_F32, ds_shape(1)), DS_REDUCE_SUM), DS_OK);
    ds_message *sent = rank ? NULL : ds_isend(NULL, x, 1);
    if (rank) {
        CHECK(ds_recv(NULL, x, 0) == DS_OK && is_of_rank(x, 0));
        CHECK_INT(ds_send(NULL, host, 0), DS_OK);
    } else {
        CHECK(ds_recv(NULL, host, 1) == DS_OK && ds_message_wait(sent) == DS_OK);
    }
    ds_scope_close(scope);
    return ds_error_status();
}

static void an_answer_comes(void **state)
{
    (void)state;
    CHECK_INT(ds_run_ranks(2, send_and_be_answered, NULL), DS_OK);
}

/* Rank 1 receives `more` elements more; rank 0 leaves if that is -1. */
static ds_status send_once(void *more)
{
    int rank = ds_comm_rank(NULL), n = N + *(int *)more;
    if (!use_own_gpu()) return ds_error_status();
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_ones(DS_F32, ds_shape(rank && n > N ? n : N));
    CHECK_INT(ds_all_reduce(NULL, ds_ones(DS_F32, ds_shape(1)), DS_REDUCE_SUM), DS_OK);
    if (rank == 0 && n >= N) ds_send(NULL, x, 1);
    if (rank == 1) ds_recv(NULL, x, 0);
    if (!ds_error()) ds_item(ds_select(x, 0, 0));
    ds_scope_close(scope);
    return ds_error_status();
}

static void send_fails(int more, const char *message, const char *end)
{
    CHECK_INT(ds_run_ranks(2, send_once, &more), DS_ECOMM);
    CHECK(strstr(ds_error(), end));
    CHECK_ERROR(message);
}

static void other_size(void **state)
{
    (void)state;
    send_fails(3, "rank 1: recv of 15 float32 from rank 0, number 0 on cuda:1: NCCL says: ", "");
}

static void no_sender(void **state)
{
    (void)state;
    send_fails(-1, "recv of 12 float32 from rank 0, number 0 on cuda:1: rank 0 ended without it",
               "");
}

static void no_send(void **state)
{
    (void)state;
    send_fails(0, "send of 12 float32 to rank 1, number 0 on cuda:0: NCCL says: unhandled system",
               "");
}

static void send_is_stuck(void **state)
{
    (void)state;
    send_fails(0, "float32 from rank 0, number 0 on cuda:1: stuck for 1",
               " s (DS_TIMEOUT) in NCCL");
}

static void messages(void **state)
{
    (void)state;
    apart_begin(messages_arrive, NULL, NULL, NULL);
    apart_begin(messages_arrive, "FAKE_NCCL_DELAY=3000", "FAKE_CUDA_LAZY=1", NULL);
    apart_begin(messages_arrive, "FAKE_CUDA_LAZY=2", NULL, NULL);
    apart_begin(an_answer_comes, "DS_TIMEOUT=20", NULL, NULL);
    apart_begin(other_size, NULL, NULL, NULL);
    apart_begin(no_sender, NULL, NULL, NULL);
    apart_begin(no_send, "FAKE_NCCL_FAIL=ncclSend=2", NULL, NULL);
    apart_begin(send_is_stuck, "FAKE_NCCL_HANG=1:2", "DS_TIMEOUT=1", NULL);
    apart_end();
}

/* ---- groups ------------------------------------------------------------------------------------------- */

/* Ranks 0, 2 and 1, 3; and all, meanwhile. */
static ds_status use_groups(void *arg)
{
    (void)arg;
    int rank = ds_comm_rank(NULL);
    if (!use_own_gpu()) return ds_error_status();
    ds_comm *half = ds_comm_split(NULL, rank % 2, rank);
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_full(DS_F32, ds_shape(N), rank), *y = ds_clone(x),
              *all = ds_zeros(DS_F32, ds_shape(2, N));
    CHECK_INT(ds_all_reduce(half, x, DS_REDUCE_SUM), DS_OK);
    CHECK_INT(ds_all_reduce(NULL, y, DS_REDUCE_SUM), DS_OK);
    CHECK_INT(ds_all_gather(half, all, x), DS_OK);
    CHECK_CLOSE(ds_item(ds_select(x, 0, 1)), rank % 2 ? 4 : 2, 0);
    CHECK_CLOSE(ds_item(ds_select(y, 0, 1)), 6, 0);
    CHECK_CLOSE(ds_item(ds_sum(all)), 2 * N * (rank % 2 ? 4 : 2), 0);
    ds_scope_close(scope);
    ds_comm_free(half);
    return ds_error_status();
}

static void four_in_groups(void **state)
{
    (void)state;
    CHECK_INT(ds_run_ranks(4, use_groups, NULL), DS_OK);
}

static void groups(void **state)
{
    (void)state;
    apart_begin(four_in_groups, NULL, NULL, NULL);
    apart_begin(four_in_groups, "FAKE_NCCL_DELAY=3000", NULL, NULL);
    apart_begin(four_in_groups, "FAKE_CUDA_LAZY=2", NULL, NULL);
    apart_end();
}

/* ---- a step: waits of the host, overlap ---------------------------------------------------------------- */

typedef struct Steps {
    int stage;       /* -1: DistributedDataParallel */
    bool reads_loss; /* the engine ends on a NaN */
    long syncs, overlapped;
} Steps;

enum { LAYERS = 6, WARM_UP = 3, STEPS = 4 };

static ds_module *deep_net(void)
{
    char name[8];
    ds_seed(5);
    ds_module *net = ds_nn_sequential(NULL, "net");
    for (int i = 0; i < LAYERS; i++) {
        snprintf(name, sizeof name, "l%d", i);
        ds_nn_linear(net, name, WIDTH, WIDTH);
    }
    return net;
}

/* A barrier of the host before and after the steps that are counted. */
static void count_begin(Steps *s, bool begin)
{
    int sign = begin ? -1 : 1;
    CHECK_INT(ds_barrier(NULL), DS_OK);
    if (ds_comm_rank(NULL) == 0) {
        s->syncs += sign * emulator_count("fake_cuda_syncs");
        s->overlapped += sign * emulator_count("fake_cuda_overlapped");
    }
    CHECK_INT(ds_barrier(NULL), DS_OK);
}

static ds_tensor *loss_of(ds_tensor *y) { return ds_mean(ds_mul(y, y)); }

static void step_ddp(ds_ddp *ddp, ds_optim *optim, ds_tensor *x)
{
    ds_scope *scope = ds_scope_open();
    ds_optim_zero_grad(optim);
    ds_ddp_backward(ddp, loss_of(ds_ddp_call(ddp, x)));
    ds_optim_step(optim);
    ds_scope_close(scope);
}

static ds_status steps_ddp(Steps *s, ds_tensor *x)
{
    ds_module *net = deep_net();
    ds_ddp *ddp = ds_ddp_new_with(net, (ds_ddp_opts){.bucket_bytes = WIDTH * WIDTH * 4});
    ds_optim *optim = ds_optim_sgd(net, 0.01);
    for (int i = 0; i < WARM_UP + STEPS; i++) {
        if (i == WARM_UP) count_begin(s, true);
        step_ddp(ddp, optim, x);
    }
    count_begin(s, false);
    ds_optim_free(optim);
    ds_ddp_free(ddp);
    ds_module_free(net);
    return ds_error_status();
}

static ds_status steps_engine(Steps *s, ds_tensor *x)
{
    char config[500];
    snprintf(config, sizeof config,
             "{\"train_batch_size\": %d, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": "
             "0.001}}, \"on_nan\": \"%s\", \"gradient_clipping\": 1, \"zero_optimization\": "
             "{\"stage\": %d, "
             "\"reduce_bucket_size\": %d, \"overlap_comm\": true, "
             "\"stage3_param_persistence_threshold\": 0}}",
             BATCH * ds_comm_size(NULL), s->reads_loss ? "error" : "continue", s->stage,
             WIDTH * WIDTH);
    ds_engine *e = ds_initialize(.model = deep_net(), .config = config);
    for (int i = 0; e && i < WARM_UP + STEPS; i++) {
        if (i == WARM_UP) count_begin(s, true);
        ds_scope *scope = ds_scope_open();
        ds_engine_backward(e, loss_of(ds_engine_forward(e, x)));
        ds_engine_step(e);
        ds_scope_close(scope);
    }
    if (e) count_begin(s, false);
    ds_engine_free(e);
    return ds_error_status();
}

static ds_status run_steps(void *arg)
{
    Steps *s = arg;
    if (!use_own_gpu()) return ds_error_status();
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_randn(DS_F32, ds_shape(BATCH, WIDTH));
    ds_status status = s->stage < 0 ? steps_ddp(s, x) : steps_engine(s, x);
    ds_scope_close(scope);
    return status;
}

static void wait_once(int ranks, Steps s)
{
    CHECK_INT(ds_run_ranks(ranks, run_steps, &s), DS_OK);
    print_message("%d ranks, stage %d%s: %g waits a step and rank, %g kernels beside collectives\n",
                  ranks, s.stage, s.reads_loss ? ", loss read" : "",
                  (double)s.syncs / (ranks * STEPS), (double)s.overlapped / (ranks * STEPS));
    CHECK_INT(s.syncs, ranks * STEPS);
    if (emulator_overlaps()) CHECK(s.overlapped >= STEPS);
}

/* Once: for the norm, with which the loss comes if the engine is to end on a NaN;
 * or for faults before the optimizer. */
static void steps_wait_once(void **state)
{
    (void)state;
    int stage = atoi(getenv("STAGE"));
    wait_once(2, (Steps){.stage = stage});
    if (stage >= 0) wait_once(2, (Steps){.stage = stage, .reads_loss = true});
    wait_once(4, (Steps){.stage = stage});
}

static void steps_ddp_and_3(void **state)
{
    (void)state;
    for (int stage = -1; stage <= 3; stage += 4) {
        Steps s = {.stage = stage};
        CHECK_INT(ds_run_ranks(stage < 0 ? 2 : 4, run_steps, &s), DS_OK);
    }
}

typedef struct Request { /* of the trace, under way */
    char id[32], tid[16];
    int spans; /* that its thread has begun meanwhile, other than waits */
} Request;

static void line_word(const char *line, const char *key, char *to, size_t room)
{
    const char *at = strstr(line, key);
    snprintf(to, room, "%.*s", at ? (int)strcspn(at + strlen(key), ",}") : 0,
             at ? at + strlen(key) : "");
}

/* How many requests of that name in the trace had ops of their rank begin between
 * their start and their end. */
static int trace_overlaps(const char *path, const char *name)
{
    enum { MOST = 64 };
    Request open[MOST];
    char line[512], id[32], tid[16], begins[64];
    int n = 0, overlaps = 0;
    FILE *f = fopen(path, "r");
    CHECK(f);
    snprintf(begins, sizeof begins, "\"name\":\"%s", name);
    while (fgets(line, sizeof line, f)) {
        line_word(line, "\"id\":", id, sizeof id);
        line_word(line, "\"tid\":", tid, sizeof tid);
        int k = 0;
        while (k < n && strcmp(open[k].id, id) != 0) k++;
        if (strstr(line, "\"ph\":\"b\"") && strstr(line, begins) && n < MOST) {
            snprintf(open[n].id, sizeof open[n].id, "%s", id);
            snprintf(open[n].tid, sizeof open[n].tid, "%s", tid);
            open[n++].spans = 0;
        } else if (strstr(line, "\"ph\":\"e\"") && k < n) {
            overlaps += open[k].spans > 0;
            open[k] = open[--n];
        } else if (strstr(line, "\"ph\":\"B\"") && !strstr(line, "wait for others")) {
            for (int i = 0; i < n; i++) open[i].spans += !strcmp(open[i].tid, tid);
        }
    }
    fclose(f);
    return overlaps;
}

static void steps(void **state)
{
    (void)state;
    char trace[256];
    static const char *const stages[] = {"STAGE=-1", "STAGE=0", "STAGE=1", "STAGE=2", "STAGE=3"};
    for (int i = 0; i < 5; i++)
        apart_begin(steps_wait_once, "FAKE_NCCL_DELAY=2000", stages[i], NULL);
    folder_make();
    snprintf(trace, sizeof trace, "DS_TRACE=%s", folder_path("trace.json"));
    apart_begin(steps_ddp_and_3, trace, "FAKE_NCCL_DELAY=2000", NULL);
    apart_end();
    const char *path = trace + strlen("DS_TRACE=");
    int reduced = trace_overlaps(path, "all_reduce"), gathered = trace_overlaps(path, "all_gather");
    print_message("%d reductions and %d gathers beside ops\n", reduced, gathered);
    CHECK(reduced >= 2 * STEPS && gathered >= 2 * STEPS);
    folder_remove();
}

int main(void)
{
    int skip = skip_without_emulator();
    if (skip) return skip;
    const struct CMUnitTest tests[] = {cmocka_unit_test(failures), cmocka_unit_test(others),
                                       cmocka_unit_test(messages), cmocka_unit_test(groups),
                                       cmocka_unit_test(steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
