/* tests/gpu/copier.c: batches that the host makes, and that are copied to the
 * GPU while it computes: the right values, to the bit, whenever the emulator
 * does queued work; each wait left out; overlap and waits of the host counted;
 * failures.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "emulated.h"

#include "base/mem.h"
#include "device/device.h"

#include <stdatomic.h>
#include <unistd.h>

/* A batch has 96 KiB, an epoch 6 batches, the last of which is short. */
enum { WIDTH = 512, BATCH = 48, SAMPLES = 5 * BATCH + 17, BATCHES = 6, MOST = 4 * SAMPLES };

static const ds_device gpu = {DS_CUDA, 0};

/* Sample i: x [WIDTH] and a label, both made of i and the epoch. */
typedef struct Rows {
    int64_t epoch, bad; /* sample `bad` fails */
    _Atomic int gets;
} Rows;

static int64_t rows_len(void *self)
{
    (void)self;
    return SAMPLES;
}

static float row_value(int64_t epoch, int64_t i, int k)
{
    return (float)((epoch * SAMPLES + i) * WIDTH + k);
}

static ds_status rows_get(void *self, int64_t i, void **field)
{
    Rows *d = self;
    atomic_fetch_add(&d->gets, 1);
    if (i == d->bad) return ds_fail(DS_EIO, "row %lld is torn", (long long)i);
    for (int k = 0; k < WIDTH; k++) ((float *)field[0])[k] = row_value(d->epoch, i, k);
    *(int64_t *)field[1] = d->epoch * SAMPLES + i;
    return DS_OK;
}

static void rows_epoch(void *self, int64_t epoch) { ((Rows *)self)->epoch = epoch; }

static ds_dataset *rows_new(int64_t bad)
{
    static const ds_dataset_type type = {"Rows", sizeof(Rows), rows_len, rows_get, NULL};
    ds_dataset *d = ds_dataset_new(
        &type, 2, (ds_field[]){{DS_F32, ds_shape(WIDTH), "row"}, {DS_I64, {0}, "label"}});
    ((Rows *)ds_dataset_self(d))->bad = bad;
    ds_dataset_on_epoch(d, rows_epoch);
    return d;
}

/* ---- what steps see ------------------------------------------------------------------------------------ */

/* All that steps have read of batches, on the GPU: x twice, before and after
 * other kernels; and what it should be. */
typedef struct Seen {
    ds_tensor *x[2], *y; /* [MOST, WIDTH], [MOST] */
    ds_tensor *in[2];    /* of a step graph: [BATCH, WIDTH], [BATCH] */
    int64_t n, index[MOST], epoch[MOST];
} Seen;

static Seen *seen_new(void)
{
    Seen *s = calloc(1, sizeof *s);
    for (int i = 0; i < 2; i++) s->x[i] = ds_zeros(DS_F32, ds_shape(MOST, WIDTH));
    s->y = ds_zeros(DS_I64, ds_shape(MOST));
    s->in[0] = ds_zeros(DS_F32, ds_shape(BATCH, WIDTH));
    s->in[1] = ds_zeros(DS_I64, ds_shape(BATCH));
    return s;
}

static ds_tensor *seen_step(void *self, ds_tensor *const *in, int n)
{
    Seen *s = self;
    (void)n;
    for (int i = 0; i < 2; i++) ds_copy(ds_slice(s->in[i], 0, 0, ds_size(in[i], 0)), in[i]);
    return ds_sum(in[0]);
}

/* A step without a wait of the host. */
static void seen_add(Seen *s, ds_step_graph *g, int64_t epoch, const ds_batch *b)
{
    int64_t end = s->n + b->size;
    ds_tensor *x = b->x, *y = b->y;
    memcpy(s->index + s->n, b->index, (size_t)b->size * sizeof *s->index);
    for (int64_t i = s->n; i < end; i++) s->epoch[i] = epoch;
    if (g && ds_step_graph_run(g, (ds_tensor *[]){x, y}, 2))
        x = ds_slice(s->in[0], 0, 0, b->size), y = ds_slice(s->in[1], 0, 0, b->size);
    ds_copy(ds_slice(s->x[0], 0, s->n, end), x);
    ds_sum(ds_mul(x, x));
    ds_copy(ds_slice(s->y, 0, s->n, end), y);
    ds_copy(ds_slice(s->x[1], 0, s->n, end), x);
    s->n = end;
}

/* Rows that steps read wrongly; frees s. */
static int seen_wrong(Seen *s)
{
    int wrong = 0;
    const float *x = ds_data(s->x[0]), *again = ds_data(s->x[1]);
    const int64_t *y = ds_data(s->y);
    for (int64_t i = 0; x && again && y && i < s->n; i++) {
        bool good = y[i] == s->epoch[i] * SAMPLES + s->index[i];
        for (int k = 0; k < WIDTH; k++) {
            float want = row_value(s->epoch[i], s->index[i], k);
            good = good && x[i * WIDTH + k] == want && again[i * WIDTH + k] == want;
        }
        wrong += !good;
    }
    free(s);
    return wrong;
}

/* ---- two epochs, of which the first is stopped ----------------------------------------------------------- */

typedef enum Wait { FOR_MEMORY, FOR_COPY, FOR_SLOT, FOR_STOP, WAITS, NO_WAIT = WAITS } Wait;

typedef struct Run {
    int workers;
    bool graph;
    Wait without;
    int wrong, times[WAITS]; /* how often each was left out */
    long beside;             /* copies beside steps */
} Run;

static dsi_device_type device_type; /* of runs without a wait */
static _Thread_local Run *thread_run;
static _Thread_local bool stops;

static bool is_left_out(Wait which)
{
    if (thread_run) thread_run->times[which]++;
    return thread_run && thread_run->without == which;
}

static ds_status wait_or_not(dsi_stream *s, dsi_event *e)
{
    bool own = s != &s->device->stream;
    return is_left_out(own ? FOR_MEMORY : FOR_COPY) ? DS_OK : dsi_cuda.wait(s, e);
}

static ds_status reached_or_not(dsi_stream *s, const dsi_event *e, bool *out)
{
    *out = true;
    return is_left_out(FOR_SLOT) ? DS_OK : dsi_cuda.reached(s, e, out);
}

static ds_status sync_or_not(dsi_stream *s)
{
    return stops && is_left_out(FOR_STOP) ? DS_OK : dsi_cuda.sync(s);
}

static ds_status run_thread(void *arg)
{
    Run *run = arg;
    ds_batch b;
    dsi_device_pretend(&device_type);
    if (ds_set_device(gpu) != DS_OK) return ds_error_status();
    ds_scope *scope = ds_scope_open();
    ds_seed(3);
    Seen *s = seen_new();
    ds_loader *l = ds_loader_new(rows_new(-1), BATCH, .shuffle = true, .workers = run->workers);
    ds_step_graph *g = run->graph ? ds_step_graph_new(seen_step, s) : NULL;
    long beside = emulator_count("fake_cuda_copied_beside");
    thread_run = run;
    for (int i = 0; i < 3 && ds_loader_next(l, &b); i++) seen_add(s, g, 0, &b);
    stops = true;
    ds_loader_stop(l);
    stops = false;
    for (int64_t epoch = 1; epoch < 3; epoch++)
        while (ds_loader_next(l, &b)) seen_add(s, g, epoch, &b);
    thread_run = NULL;
    run->beside = emulator_count("fake_cuda_copied_beside") - beside;
    bool replays = !g || ds_step_graph_replays(g), all = s->n == 3 * BATCH + 2 * SAMPLES;
    ds_step_graph_free(g);
    ds_loader_free(l);
    run->wrong = seen_wrong(s);
    ds_scope_close(scope);
    if (!replays || !all) return ds_fail(DS_ESTATE, "the run was not the one of the test");
    return ds_error_status();
}

/* In a thread of its own, whose device is closed at its end. */
static Run run_of(int lazy, int workers, bool graph, Wait without)
{
    Run run = {.workers = workers, .graph = graph, .without = without};
    char value[8];
    int live = (int)emulator_count("fake_cuda_live");
    snprintf(value, sizeof value, "%d", lazy);
    setenv("FAKE_CUDA_LAZY", value, 1);
    CHECK_INT(ds_run_ranks(1, run_thread, &run), DS_OK);
    unsetenv("FAKE_CUDA_LAZY");
    CHECK_INT((int)emulator_count("fake_cuda_live"), live);
    return run;
}

static const int modes[] = {0, 1, 2, 4, 5}; /* of FAKE_CUDA_LAZY */
enum { MODES = sizeof modes / sizeof *modes };

static void the_right_batches(void **state)
{
    (void)state;
    for (int m = 0; m < MODES; m++)
        for (int workers = 0; workers < 4; workers += workers ? 2 : 1)
            for (int graph = 0; graph < 2; graph++)
                CHECK_INT(run_of(modes[m], workers, graph, NO_WAIT).wrong, 0);
}

/* Late or early work shows that each wait is needed. */
static void each_wait_is_needed(void **state)
{
    (void)state;
    for (int wait = 0; wait < WAITS; wait++) {
        int seen = 0;
        for (int m = 1; m < MODES; m++) {
            Run run = run_of(modes[m], 0, false, (Wait)wait);
            CHECK(run.times[wait] > 0);
            seen += run.wrong > 0;
        }
        if (!seen) fail_msg("wait %d was left out, and no batch was wrong", wait);
    }
}

int main(void)
{
    int skip = skip_without_emulator();
    if (skip) return skip;
    device_type = dsi_cuda;
    device_type.wait = wait_or_not;
    device_type.reached = reached_or_not;
    device_type.sync = sync_or_not;
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_right_batches),
                                       cmocka_unit_test(each_wait_is_needed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
