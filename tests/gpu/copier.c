/* tests/gpu/copier.c: batches that the host makes, and that are copied to the
 * GPU while it computes: the right values, to the bit, whenever the emulator
 * does queued work; each wait left out; overlap and waits of the host counted;
 * failures.
 * SPDX-License-Identifier: MIT */
#include "caught.h"
#include "check.h"
#include "emulated.h"

#include "base/mem.h"
#include "device/device.h"

#include <stdatomic.h>
#include <unistd.h>

/* A batch has 96 KiB, an epoch 6 batches, the last of which is short. */
enum { WIDTH = 512, BATCH = 48, SAMPLES = 5 * BATCH + 17, BATCHES = 6, MOST = 3 * SAMPLES };
enum { BATCH_BYTES = BATCH * (WIDTH * 4 + 8) };

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

/* Late or early work shows that each wait is needed. With a sanitizer no memory
 * is used again, so a wait for memory is not. */
static void each_wait_is_needed(void **state)
{
    (void)state;
    for (int wait = DSI_SANITIZED ? FOR_COPY : FOR_MEMORY; wait < WAITS; wait++) {
        int seen = 0;
        for (int m = 1; m < MODES; m++) {
            Run run = run_of(modes[m], 0, false, (Wait)wait);
            CHECK(run.times[wait] > 0);
            seen += run.wrong > 0;
        }
        if (!seen) fail_msg("wait %d was left out, and no batch was wrong", wait);
    }
}

/* ---- overlap, and waits of the host ----------------------------------------------------------------------- */

/* GPU work of one epoch, done only when the host waits; the newest stream's
 * first. `reads`: the host reads a value at each step, as an engine does, and
 * workers have filled the next batch before that step. */
typedef struct Epoch {
    int workers;
    bool reads, no_pin_memory;
    long beside, waits; /* copies beside steps; the host's */
} Epoch;

static ds_status epoch_thread(void *arg)
{
    Epoch *e = arg;
    ds_batch b;
    if (ds_set_device(gpu) != DS_OK) return ds_error_status();
    ds_dataset *d = rows_new(-1);
    const Rows *rows = ds_dataset_self(d);
    ds_loader *l = ds_loader_new(d, BATCH, .workers = e->workers,
                                 .no_pin_memory = e->no_pin_memory);
    ds_scope *scope = ds_scope_open();
    Seen *s = seen_new();
    ds_item(ds_sum(s->x[0])); /* what was queued so far is done */
    long waits = emulator_count("fake_cuda_syncs") + emulator_count("fake_cuda_event_syncs");
    long beside = emulator_count("fake_cuda_copied_beside");
    for (int i = 0; i < BATCHES && ds_loader_next(l, &b); i++) {
        while (e->reads && e->workers && rows->gets < SAMPLES) usleep(1000);
        seen_add(s, NULL, 0, &b);
        if (e->reads) ds_item(ds_sum(b.x));
    }
    e->waits = emulator_count("fake_cuda_syncs") + emulator_count("fake_cuda_event_syncs") - waits;
    ds_loader_free(l);
    int wrong = seen_wrong(s);
    e->beside = emulator_count("fake_cuda_copied_beside") - beside;
    ds_scope_close(scope);
    return wrong ? ds_fail(DS_ESTATE, "%d rows are wrong", wrong) : ds_error_status();
}

static Epoch epoch_of(const char *lazy, Epoch e)
{
    setenv("FAKE_CUDA_LAZY", lazy, 1);
    CHECK_INT(ds_run_ranks(1, epoch_thread, &e), DS_OK);
    unsetenv("FAKE_CUDA_LAZY");
    return e;
}

/* Two fields a batch. The first copy has no step beside it; where the host
 * reads at each step, the second one neither: it was begun when the first batch
 * was handed out, at the earliest. */
static void copies_run_beside_steps(void **state)
{
    (void)state;
    CHECK_INT(epoch_of("2", (Epoch){.no_pin_memory = true}).beside, 0);
    CHECK_INT(epoch_of("2", (Epoch){.workers = 2, .no_pin_memory = true, .reads = true}).beside, 0);
    CHECK(epoch_of("2", (Epoch){0}).beside >= 2 * (BATCHES - 2));
    CHECK(epoch_of("2", (Epoch){.workers = 2}).beside >= 2 * (BATCHES - 2));
    CHECK(epoch_of("2", (Epoch){.workers = 1, .reads = true}).beside >= 2 * (BATCHES - 3));
}

/* A host that is more than two batches ahead of the GPU waits without workers;
 * with them, if it is ahead by all of their slots. */
static void the_host_does_not_wait_for_a_batch(void **state)
{
    (void)state;
    CHECK_INT(epoch_of("0", (Epoch){0}).waits, 0);
    CHECK_INT(epoch_of("0", (Epoch){.workers = 2}).waits, 0);
    CHECK_INT(epoch_of("1", (Epoch){.workers = 2}).waits, 0);
    CHECK(epoch_of("1", (Epoch){0}).waits <= BATCHES / 2);
}

/* ---- other uses ------------------------------------------------------------------------------------------- */

/* body in a thread of its own, in each mode; all that it took of the driver is
 * given back. */
static void in_each_mode(int ranks, ds_status (*body)(void *arg), void *arg)
{
    char value[8];
    for (int m = 0; m < MODES; m++) {
        int live = (int)emulator_count("fake_cuda_live");
        snprintf(value, sizeof value, "%d", modes[m]);
        setenv("FAKE_CUDA_LAZY", value, 1);
        CHECK_INT(ds_run_ranks(ranks, body, arg), DS_OK);
        unsetenv("FAKE_CUDA_LAZY");
        CHECK_INT((int)emulator_count("fake_cuda_live"), live);
    }
}

/* Two loaders by turns, one of which is freed in the midst of its epoch; on as
 * many ranks, which share the GPU. */
static ds_status two_loaders(void *arg)
{
    ds_batch b, c;
    (void)arg;
    if (ds_set_device(gpu) != DS_OK) return ds_error_status();
    ds_scope *scope = ds_scope_open();
    ds_seed((uint64_t)ds_comm_rank(NULL));
    Seen *s = seen_new(), *t = seen_new();
    ds_loader *k = ds_loader_new(rows_new(-1), BATCH, .shuffle = true),
              *l = ds_loader_new(rows_new(-1), 2 * BATCH, .shuffle = true, .workers = 2);
    for (int i = 0; ds_loader_next(k, &b); i++) {
        seen_add(s, NULL, 0, &b);
        if (i < 2 && ds_loader_next(l, &c)) seen_add(t, NULL, 0, &c);
        if (i == 2) ds_loader_free(l);
    }
    bool all = s->n == SAMPLES && t->n == 4 * BATCH;
    ds_loader_free(k);
    int wrong = seen_wrong(s) + seen_wrong(t);
    ds_scope_close(scope);
    if (wrong || !all) return ds_fail(DS_ESTATE, "%d rows are wrong", wrong);
    return ds_error_status();
}

static void loaders_and_ranks_beside_each_other(void **state)
{
    (void)state;
    in_each_mode(1, two_loaders, NULL);
    in_each_mode(3, two_loaders, NULL);
}

/* Two without workers; with 2 workers all 6 of an epoch. */
static void one_of_pinned_batches(void)
{
    ds_batch b;
    CHECK_INT(ds_set_device(gpu), DS_OK);
    for (int i = 0; i < 3; i++) {
        ds_loader *l = ds_loader_new(rows_new(-1), BATCH, .workers = i, .prefetch = i == 1 ? 3 : 0);
        CHECK(l && ds_loader_next(l, &b));
        ds_loader_free(l);
    }
}

static void what_is_pinned_is_logged(void **state)
{
    (void)state;
    const char *text = caught_of("debug", one_of_pinned_batches);
    const char *const want[] = {"2 batches", "4 batches", "6 batches"};
    for (int i = 0; i < 3; i++) {
        char line[200];
        snprintf(line, sizeof line,
                 "loader of Rows: %d bytes of host memory are pinned for cuda:0: %s of %d bytes",
                 atoi(want[i]) * BATCH_BYTES, want[i], BATCH_BYTES);
        if (!strstr(text, line)) fail_msg("%s: not in %s", line, text);
    }
}

/* Three epochs of one batch, which has one slot with workers. */
static ds_status one_batch(void *arg)
{
    const int *workers = arg;
    ds_batch b;
    if (ds_set_device(gpu) != DS_OK) return ds_error_status();
    ds_scope *scope = ds_scope_open();
    Seen *s = seen_new();
    ds_loader *l = ds_loader_new(rows_new(-1), 2 * SAMPLES, .shuffle = true, .workers = *workers);
    for (int64_t epoch = 0; epoch < 3; epoch++)
        while (ds_loader_next(l, &b)) seen_add(s, NULL, epoch, &b);
    bool all = s->n == 3 * SAMPLES;
    ds_loader_free(l);
    int wrong = seen_wrong(s);
    ds_scope_close(scope);
    if (wrong || !all) return ds_fail(DS_ESTATE, "%d rows are wrong", wrong);
    return ds_error_status();
}

static void epochs_of_one_batch(void **state)
{
    (void)state;
    for (int workers = 0; workers < 3; workers += 2) in_each_mode(1, one_batch, &workers);
}

/* Whether x [rows, WIDTH] has the samples from `begin` on of an epoch that is
 * not shuffled. */
static bool has_rows(ds_tensor *x, int64_t epoch, int64_t begin)
{
    const float *p = ds_data(x);
    bool good = p != NULL;
    for (int64_t i = 0; good && i < ds_size(x, 0); i++)
        for (int k = 0; k < WIDTH; k++)
            good = good && p[i * WIDTH + k] == row_value(epoch, begin + i, k);
    return good;
}

/* Batches that are kept outlive their turns and their loader, which moves
 * within an epoch, and to another device and back. */
static ds_status kept_and_moved(void *arg)
{
    const int *workers = arg;
    ds_batch b;
    ds_tensor *kept[BATCHES];
    if (ds_set_device(gpu) != DS_OK) return ds_error_status();
    size_t before = ds_memory_allocated(gpu);
    int64_t tensors = ds_live_tensors();
    ds_loader *l = ds_loader_new(rows_new(-1), BATCH, .workers = *workers);
    bool good = ds_loader_next(l, &b) && ds_loader_next(l, &b);
    good = good && ds_loader_seek(l, (ds_loader_position){.epoch = 2, .batch = 3}) == DS_OK;
    good = good && ds_loader_next(l, &b) && has_rows(b.x, 2, 3 * BATCH);
    ds_loader_set_epoch(l, 0);
    for (int i = 0; good && i < BATCHES; i++) {
        good = ds_loader_next(l, &b);
        if (good) kept[i] = ds_keep(b.x);
    }
    good = good && ds_set_device((ds_device){DS_CPU, 0}) == DS_OK && !ds_loader_next(l, &b);
    for (int i = 0; good && i < 2; i++)
        good = ds_loader_next(l, &b) && ds_device_of(b.x).kind == DS_CPU &&
               has_rows(b.x, 1, i * BATCH);
    ds_loader_stop(l);
    good = good && ds_set_device(gpu) == DS_OK && ds_loader_next(l, &b) && has_rows(b.x, 2, 0);
    good = good && ds_set_device((ds_device){DS_CPU, 0}) == DS_OK && ds_loader_next(l, &b) &&
           ds_device_of(b.x).kind == DS_CPU && has_rows(b.x, 2, BATCH);
    ds_loader_free(l);
    for (int i = 0; good && i < BATCHES; i++) {
        ds_scope *scope = ds_scope_open();
        good = has_rows(kept[i], 0, i * BATCH);
        ds_scope_close(scope);
        ds_drop(kept[i]);
    }
    if (ds_memory_allocated(gpu) != before || ds_live_tensors() != tensors) good = false;
    return good ? ds_error_status() : ds_fail(DS_ESTATE, "%d workers: a batch", *workers);
}

static void batches_are_kept_and_loaders_move(void **state)
{
    (void)state;
    for (int workers = 0; workers < 4; workers += 3) in_each_mode(1, kept_and_moved, &workers);
}

/* ---- failures ---------------------------------------------------------------------------------------------- */

/* A failure in one call of ds_loader_next, that of batch 2. All other batches
 * are
 * right. */
typedef struct Failure {
    const char *driver; /* for FAKE_CUDA_FAIL */
    int64_t bad;        /* a sample that cannot be read; -1: none */
    int64_t memory;     /* allocations that succeed; -1: all do */
    int workers;
    bool first;       /* at batch 0 */
    const char *says; /* ""; the loader works on, and the user sees no failure */
} Failure;

static ds_status failure_thread(void *arg)
{
    const Failure *f = arg;
    ds_batch b;
    char says[600] = "";
    bool good = true;
    int at = f->first ? 0 : 2;
    if (ds_set_device(gpu) != DS_OK) return ds_error_status();
    size_t before = ds_memory_allocated(gpu);
    ds_dataset *d = rows_new(f->bad);
    ds_loader *l = ds_loader_new(d, BATCH, .workers = f->workers);
    const Rows *rows = ds_dataset_self(d);
    int64_t batches = 0, end = 0;
    for (int i = 0; good && i < BATCHES + f->first; i++) {
        /* the worker has filled the batch behind it */
        while (f->workers && i == at && !f->first && rows->gets <= 4 * BATCH) usleep(1000);
        if (i == at && f->driver) setenv("FAKE_CUDA_FAIL", f->driver, 1);
        if (i == at && f->memory >= 0) dsi_cache_fail(f->memory + 1, true);
        bool next = ds_loader_next(l, &b);
        dsi_cache_fail(0, false);
        unsetenv("FAKE_CUDA_FAIL");
        if (!next) {
            if (ds_error()) snprintf(says, sizeof says, "%s", ds_error());
            ds_error_clear();
            good = i == at || i >= BATCHES - 1; /* or the end */
            if (i > at) break;
            continue;
        }
        batches++;
        good = has_rows(b.x, 0, b.index[0]) && b.index[0] >= end;
        end = b.index[0] + b.size;
    }
    ds_loader_free(l);
    if (ds_memory_allocated(gpu) != before) good = false;
    if (*f->says ? !strstr(says, f->says) : *says != 0) good = false;
    if (batches < BATCHES - (*f->says != 0)) good = false;
    return good && !ds_error() ? DS_OK
                               : ds_fail(DS_ESTATE, "%s, %lld batches: %s",
                                         f->driver ? f->driver : f->says, (long long)batches, says);
}

static void failures_are_reported_once(void **state)
{
    (void)state;
    static const Failure failures[] = {
        {"cuMemHostAlloc=2", -1, -1, 1, true, .says = ""},
        {"cuMemHostAlloc=2", -1, -1, 0, true, .says = ""},
        {"cuStreamCreate=2", -1, -1, 1, true, .says = "cuda:0: a stream: "},
        {"cuMemcpyHtoDAsync=700", -1, -1, 1, .says = "cuda:0: copying to it: "},
        {"cuMemcpyHtoDAsync=700", -1, -1, 0, .says = "cuda:0: copying to it: "},
        {"cuStreamWaitEvent=700", -1, -1, 1, .says = "cuda:0: waiting for an event: "},
        {"cuStreamWaitEvent=700", -1, -1, 0, .says = "cuda:0: waiting for an event: "},
        {"cuEventQuery=700", -1, -1, 1, .says = "cuda:0: looking at an event: "},
        {"cuEventCreate=2", -1, -1, 1, true, .says = "cuda:0: an event: "},
        {NULL, 2 * BATCH + 5, -1, 1, .says = "sample 101 of Rows: row 101 is torn"},
        {NULL, 2 * BATCH + 5, -1, 0, .says = "sample 101 of Rows: row 101 is torn"},
        {NULL, -1, 0, 1, .says = ""}, /* no memory for the batch ahead */
        {NULL, -1, 1, 1, .says = ""},
        {NULL, -1, 0, 0, .says = ""},
        {NULL, -1, 0, 1, true, .says = "no memory for 98304 bytes (float32 [48, 512]) on cuda:0"},
        {NULL, -1, 1, 0, true, .says = "no memory for 384 bytes (int64 [48]) on cuda:0"},
    };
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++)
        in_each_mode(1, failure_thread, (void *)&failures[i]);
}

static ds_tensor *next_step(void *self, ds_tensor *const *in, int n)
{
    ds_batch b;
    (void)n;
    return ds_loader_next(self, &b) ? ds_add(ds_sum(b.x), ds_sum(in[0])) : NULL;
}

/* A step that takes the next batch itself is not recorded. */
static ds_status hidden_thread(void *arg)
{
    const char *why = "it copies from host memory (a loader's batch)";
    (void)arg;
    if (ds_set_device(gpu) != DS_OK) return ds_error_status();
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_ones(DS_F32, ds_shape(1));
    ds_loader *l = ds_loader_new(rows_new(-1), BATCH);
    ds_step_graph *g = ds_step_graph_new(next_step, l);
    bool good = true;
    for (int i = 0; good && i < 5; i++) {
        double want = 1 + BATCH * WIDTH *
                              ((double)row_value(0, i * BATCH, 0) +
                               row_value(0, i * BATCH + BATCH - 1, WIDTH - 1)) /
                              2;
        ds_tensor *y = ds_step_graph_run(g, &x, 1);
        good = y && fabs(ds_item(y) - want) < 1e-6 * want;
    }
    const char *said = ds_step_graph_why_not(g);
    good = good && said && !strcmp(said, why);
    ds_step_graph_free(g);
    ds_loader_free(l);
    ds_scope_close(scope);
    return good ? ds_error_status() : ds_fail(DS_ESTATE, "said: %s", said ? said : "nothing");
}

static void a_step_that_takes_the_batch_is_not_recorded(void **state)
{
    (void)state;
    in_each_mode(1, hidden_thread, NULL);
}

int main(void)
{
    int skip = skip_without_emulator();
    if (skip) return skip;
    device_type = dsi_cuda;
    device_type.wait = wait_or_not;
    device_type.reached = reached_or_not;
    device_type.sync = sync_or_not;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_right_batches),
        cmocka_unit_test(each_wait_is_needed),
        cmocka_unit_test(copies_run_beside_steps),
        cmocka_unit_test(the_host_does_not_wait_for_a_batch),
        cmocka_unit_test(what_is_pinned_is_logged),
        cmocka_unit_test(loaders_and_ranks_beside_each_other),
        cmocka_unit_test(epochs_of_one_batch),
        cmocka_unit_test(batches_are_kept_and_loaders_move),
        cmocka_unit_test(failures_are_reported_once),
        cmocka_unit_test(a_step_that_takes_the_batch_is_not_recorded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
