/* tests/gpu/waits.c: the waits between streams of two ranks that train: each is
 * left out in turn, and a mode of the emulator must then give other parameters,
 * of steps as graphs and without.
 *
 * Work of NCCL's stream is in order, so a wait is not needed if the device's
 * stream was given nothing between it and a wait beside it of the same kind. In
 * stage 2 one more is not: what the device is given there belongs to another
 * bucket.
 * SPDX-License-Identifier: MIT */
#include "apart.h"
#include "nets.h"

#include "device/device.h"

#include <sys/mman.h>

enum { RANKS = 2, BATCH = 4, STEPS = 5, MOST = 32, CONFIGS = 2 };

/* By the device's stream for NCCL's, or by that one for the device's. */
enum { BY_DEVICE, BY_NCCL, KINDS };

static const char *const configs[CONFIGS] =
    {/* behind "stage" */
     "2, \"reduce_bucket_size\": 30, \"overlap_comm\": true",
     "3, \"reduce_bucket_size\": 30, \"stage3_param_persistence_threshold\": 0"};

typedef struct Run {
    const char *zero;
    bool graph;
    int kind, without;       /* that wait of each step, from 0; -1: none */
    int waits[KINDS];        /* of rank 0's last step that was not a replay */
    long given[KINDS][MOST]; /* to the device's stream, before each */
    float *values[RANKS];
    size_t bytes[RANKS];
} Run;

typedef struct Rank {
    Run *run;
    ds_engine *engine;
} Rank;

/* For each wait: needed, and which modes saw that it was left out. */
typedef struct Seen {
    bool needed;
    int by;
} Seen;
enum { LATE = 1, EARLY = 2, DRAWN = 4 }; /* by FAKE_CUDA_LAZY=1, 2, more */
typedef Seen Table[CONFIGS][2][KINDS][MOST];
static Table *table;     /* shared by processes */
static bool only_unseen; /* those that a mode saw are not left out again */

static dsi_device_type device_type;
static _Thread_local Run *thread_run; /* NULL: not in a step */
static _Thread_local int waits[KINDS];

static ds_status wait_or_not(dsi_stream *s, dsi_event *e)
{
    Run *run = thread_run;
    int kind = s == &s->device->stream ? BY_DEVICE : BY_NCCL;
    if (!run) return dsi_cuda.wait(s, e);
    int i = waits[kind]++;
    CHECK(i < MOST);
    if (!ds_comm_rank(NULL)) run->given[kind][i] = emulator_count("fake_cuda_given");
    return i == run->without && kind == run->kind ? DS_OK : dsi_cuda.wait(s, e);
}

static ds_tensor *rank_step(void *self, ds_tensor *const *in, int n)
{
    const Rank *r = self;
    CHECK_INT(n, 1);
    memset(waits, 0, sizeof waits);
    thread_run = r->run;
    ds_tensor *y = ds_engine_forward(r->engine, in[0]), *loss = ds_mean(ds_mul(y, y));
    bool done = ds_engine_backward(r->engine, loss) == DS_OK && ds_engine_step(r->engine) == DS_OK;
    thread_run = NULL;
    if (!ds_comm_rank(NULL)) memcpy(r->run->waits, waits, sizeof waits);
    return done ? loss : NULL;
}

static void rank_train(Rank *r)
{
    ds_step_graph *graph = r->run->graph ? ds_engine_step_graph_new(r->engine, rank_step, r) : NULL;
    for (int i = 0; i < STEPS && !ds_error(); i++) {
        ds_scope *scope = ds_scope_open();
        ds_seed((uint64_t)(i * RANKS + ds_comm_rank(NULL)));
        ds_tensor *x = ds_cast(ds_randn(DS_F32, ds_shape(BATCH, WIDTH)), DS_BF16);
        ds_tensor *loss = graph ? ds_step_graph_run(graph, &x, 1) : rank_step(r, &x, 1);
        CHECK(loss);
        ds_scope_close(scope);
    }
    if (graph) CHECK(ds_step_graph_replays(graph));
    ds_step_graph_free(graph);
}

/* No update depends on whether a gradient has inf, of which the ranks may
 * disagree without a wait. */
static ds_status run_rank(void *arg)
{
    char config[600];
    Rank r = {.run = arg};
    int rank = ds_comm_rank(NULL);
    ds_tensor *all[16];
    snprintf(config, sizeof config,
             "{\"train_batch_size\": %d, \"on_nan\": \"continue\", \"gradient_clipping\": 0.5, "
             "\"bf16\": {\"enabled\": true, \"check_grad_overflow\": false}, "
             "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}, "
             "\"zero_optimization\": {\"stage\": %s}}",
             BATCH * RANKS, r.run->zero);
    dsi_device_pretend(&device_type);
    if (ds_set_device((ds_device){DS_CUDA, rank}) != DS_OK) return ds_error_status();
    r.engine = ds_initialize(.model = small_net(), .config = config);
    CHECK(r.engine);
    rank_train(&r);
    ds_module *net = ds_engine_module(r.engine);
    int n = ds_module_params(net);
    for (int i = 0; i < n; i++) all[i] = ds_module_param_at(net, i, NULL);
    ds_gathered(all, n);
    values_add(net, &r.run->values[rank], &r.run->bytes[rank]);
    ds_gathered_end(all, n, -1);
    ds_engine_free(r.engine);
    return ds_error_status();
}

static Run run_of(int config, bool graph, int kind, int without)
{
    Run run = {.zero = configs[config], .graph = graph, .kind = kind, .without = without};
    CHECK_INT(ds_run_ranks(RANKS, run_rank, &run), DS_OK);
    return run;
}

static bool is_needed(const Run *run, int kind, int i)
{
    const long *given = run->given[kind];
    if (kind == BY_NCCL) return !i || given[i] > given[i - 1];
    return i + 1 == run->waits[kind] || given[i] < given[i + 1];
}

/* The driver itself refuses a capture without its first and last wait. */
static bool is_refused(const Run *run, int kind, int i)
{
    return run->graph && (kind == BY_NCCL ? !i : i + 1 == run->waits[kind]);
}

static bool same_values(const Run *a, const Run *b)
{
    bool same = true;
    for (int r = 0; r < RANKS; r++)
        same = same && a->bytes[r] == b->bytes[r] &&
               !memcmp(a->values[r], b->values[r], a->bytes[r]);
    return same;
}

static void run_free(Run *run)
{
    for (int r = 0; r < RANKS; r++) free(run->values[r]);
}

static void leave_out_each(int config, bool graph, int mode)
{
    Run right = run_of(config, graph, 0, -1), again = run_of(config, graph, 0, -1);
    CHECK(right.bytes[0] > 0 && same_values(&right, &again));
    run_free(&again);
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < right.waits[kind]; i++) {
            Seen *seen = &(*table)[config][graph][kind][i];
            if (!is_needed(&right, kind, i) || is_refused(&right, kind, i)) continue;
            if (only_unseen && seen->by) continue;
            Run wrong = run_of(config, graph, kind, i);
            seen->needed = true;
            if (!same_values(&right, &wrong)) seen->by |= mode;
            run_free(&wrong);
        }
    run_free(&right);
}

static void leave_out_all(void **state)
{
    int lazy = atoi(getenv("FAKE_CUDA_LAZY"));
    (void)state;
    for (int c = 0; c < CONFIGS; c++)
        for (int graph = 0; graph < 2; graph++)
            leave_out_each(c, graph, lazy < DRAWN ? lazy : DRAWN);
}

/* A mode sees a little more or less as the ranks' threads run earlier or later:
 * those that neither late nor early work shows are tried again. */
static void each_is_seen(void **state)
{
    (void)state;
    static const char *const modes[] = {"1", "2", "4", "5", "1", "2"};
    int needed = 0, seen_by[8] = {0};
    char lazy[32];
    table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(table != MAP_FAILED);
    const Seen *seen = &(*table)[0][0][0][0];
    for (int m = 0; m < 6 && (m < 2 || seen_by[0] > 1); m++) {
        only_unseen = m >= 2;
        snprintf(lazy, sizeof lazy, "FAKE_CUDA_LAZY=%s", modes[m]);
        apart(leave_out_all, lazy, NULL, NULL);
        memset(seen_by, 0, sizeof seen_by);
        needed = 0;
        for (size_t i = 0; i < sizeof *table / sizeof *seen; i++) {
            needed += seen[i].needed;
            seen_by[seen[i].by] += seen[i].needed;
        }
    }
    print_message(
        "of %d waits left out: seen late alone %d, early alone %d, in both %d, only in drawn "
        "turns %d, never %d\n",
        needed, seen_by[LATE], seen_by[EARLY], seen_by[LATE | EARLY], seen_by[DRAWN], seen_by[0]);
    CHECK(needed >= 20 && seen_by[0] <= 1);
    munmap(table, sizeof *table);
}

int main(void)
{
    int skip = skip_without_emulator();
    if (skip) return skip;
    device_type = dsi_cuda;
    device_type.wait = wait_or_not;
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_is_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
