/* tests/gpu/data.c: a data set on the GPU beside the loader of the CPU: the
 * same batches, to the bit, in the same order; which data sets are not there;
 * batches as inputs of a step that is a graph.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "emulated.h"
#include "folder.h"

#include "base/mem.h"
#include "device/device.h"

#include <deepspeed/data.h>

enum { BATCH = 7, SAMPLES = 40 };

static const char *folder;
static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};

typedef enum Kind { PLAIN, TORCHVISION, FLIPPED, BF16, FP16 } Kind;

static ds_dataset *images(Kind kind)
{
    static const float mean[] = {0.49f, 0.48f, 0.45f}, std[] = {0.25f, 0.24f, 0.26f};
    ds_dataset *d = ds_cifar10_with(
        folder, DS_TRAIN, (ds_cifar10_opts){.sample = true, .quiet = true, .raw = kind != PLAIN});
    d = ds_subset(d, 11, SAMPLES);
    if (kind != PLAIN) d = ds_transform_normalize(ds_transform_to_float(d), 3, mean, std);
    if (kind == FLIPPED) d = ds_transform_random_flip(d, 0.5, 3);
    if (kind >= BF16) d = ds_transform_cast(d, kind == BF16 ? DS_BF16 : DS_F16);
    return d;
}

/* All batches of two epochs, [2 SAMPLES, 3, 32, 32] and the labels behind them;
 * the caller frees them. */
static float *batches(ds_device device, Kind kind, bool shuffle, size_t *bytes)
{
    enum { IMAGE = 3 * 32 * 32 };
    *bytes = (size_t)2 * SAMPLES * (IMAGE + 1) * sizeof(float);
    float *all = malloc(*bytes), *x = all, *y = all + (ptrdiff_t)2 * SAMPLES * IMAGE;
    CHECK_INT(ds_set_device(device), DS_OK);
    ds_seed(5);
    ds_loader *l = ds_loader_new(images(kind), BATCH, .shuffle = shuffle);
    ds_batch b;
    for (int epoch = 0; epoch < 2; epoch++)
        while (ds_loader_next(l, &b)) {
            CHECK(ds_device_of(b.x).kind == device.kind && ds_device_of(b.y).kind == device.kind);
            const int64_t *labels = ds_data(b.y);
            memcpy(x, ds_data(ds_cast(b.x, DS_F32)), (size_t)b.size * IMAGE * sizeof *x);
            x += b.size * IMAGE;
            for (int64_t i = 0; i < b.size; i++) *y++ = (float)labels[i];
        }
    CHECK(!ds_error() && x == all + (ptrdiff_t)2 * SAMPLES * IMAGE);
    ds_loader_free(l);
    CHECK_INT(ds_set_device(cpu), DS_OK);
    return all;
}

static void the_same_batches(void **state)
{
    (void)state;
    size_t n, before = ds_memory_allocated(gpu);
    for (int kind = PLAIN; kind <= FP16; kind++) {
        float *want = batches(cpu, kind, kind != TORCHVISION, &n);
        float *got = batches(gpu, kind, kind != TORCHVISION, &n);
        CHECK(!memcmp(want, got, n));
        free(want);
        free(got);
    }
    CHECK_INT(ds_memory_allocated(gpu), before);
}

/* Once an epoch has begun, a batch makes the host wait for nothing. */
static void batches_wait_for_nothing(void **state)
{
    (void)state;
    ds_batch b;
    CHECK_INT(ds_set_device(gpu), DS_OK);
    for (int half = 0; half < 2; half++) {
        ds_loader *l = ds_loader_new(images(half ? BF16 : PLAIN), BATCH, .shuffle = true);
        CHECK(ds_loader_next(l, &b));
        long before = emulator_count("fake_cuda_syncs");
        for (int i = 0; i < 3; i++) CHECK(ds_loader_next(l, &b));
        CHECK_INT(emulator_count("fake_cuda_syncs") - before, 0);
        ds_loader_free(l);
    }
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* Batches that are kept and read when the loader is gone. */
static void kept_batches_have_values(void **state)
{
    (void)state;
    enum { KEPT = 3, IMAGE = 3 * 32 * 32 };
    size_t bytes, before = ds_memory_allocated(gpu);
    int64_t tensors = ds_live_tensors();
    float *want = batches(cpu, PLAIN, true, &bytes), *labels = want + 2 * SAMPLES * IMAGE;
    ds_tensor *x[KEPT], *y[KEPT];
    ds_batch b;
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_seed(5);
    ds_loader *l = ds_loader_new(images(PLAIN), BATCH, .shuffle = true);
    for (int i = 0; i < KEPT && ds_loader_next(l, &b); i++)
        x[i] = ds_keep(b.x), y[i] = ds_keep(b.y);
    ds_loader_free(l);
    for (int i = 0; i < KEPT; i++) {
        ds_scope *scope = ds_scope_open();
        const int64_t *label = ds_data(y[i]);
        CHECK(!memcmp(ds_data(x[i]), want + i * BATCH * IMAGE, sizeof *want * BATCH * IMAGE));
        for (int k = 0; k < BATCH; k++) CHECK((float)label[k] == labels[i * BATCH + k]);
        ds_scope_close(scope);
        ds_drop(x[i]);
        ds_drop(y[i]);
    }
    free(want);
    CHECK_INT(ds_set_device(cpu), DS_OK);
    CHECK_INT(ds_memory_allocated(gpu), before);
    CHECK_INT(ds_live_tensors(), tensors);
}

/* ---- as inputs of a step graph -------------------------------------------------------------------------- */

/* How a loop uses a batch beside the step. */
typedef enum Use { NOTHING, READ_BEFORE, READ_AFTER, CHANGED, KEPT, TWICE, N_USES } Use;

static ds_tensor *sums(void *self, ds_tensor *const *in, int n)
{
    ds_tensor *const *hidden = self; /* a batch's tensor that is no input */
    ds_tensor *y = ds_add(ds_sum(in[0]), ds_sum(ds_cast(in[1], DS_F32)));
    if (n > 2) y = ds_add(y, ds_sum(ds_scale(in[2], 3)));
    return hidden && *hidden ? ds_add(y, ds_sum(*hidden)) : y;
}

/* Sums of the steps of two epochs, and of images after them; returns how many. */
static int sums_run(ds_step_graph *g, Use use, double *out)
{
    enum { MOST = 2 * (SAMPLES / BATCH + 1) };
    ds_tensor *kept[MOST];
    ds_batch b;
    int n = 0, keeps = 0;
    ds_seed(5);
    ds_loader *l = ds_loader_new(images(PLAIN), BATCH, .shuffle = true);
    for (int epoch = 0; epoch < 2; epoch++)
        while (ds_loader_next(l, &b)) {
            ds_tensor *in[] = {b.x, b.y, b.x};
            if (use == READ_BEFORE) out[n++] = ds_item(ds_sum(b.x));
            if (use == CHANGED) CHECK_INT(ds_copy(b.x, ds_scale(b.x, 2)), DS_OK);
            if (use == KEPT) kept[keeps++] = ds_keep(b.x);
            int inputs = use == TWICE ? 3 : 2;
            out[n++] = ds_item(g ? ds_step_graph_run(g, in, inputs) : sums(NULL, in, inputs));
            if (use == READ_AFTER || use == CHANGED) out[n++] = ds_item(ds_sum(b.x));
        }
    ds_loader_free(l);
    for (int i = 0; i < keeps; i++) {
        out[n++] = ds_item(ds_sum(kept[i]));
        ds_drop(kept[i]);
    }
    CHECK(!ds_error());
    return n;
}

static void step_graphs_take_batches(void **state)
{
    (void)state;
    double want[100], got[100];
    size_t before = ds_memory_allocated(gpu);
    CHECK_INT(ds_set_device(gpu), DS_OK);
    for (int use = NOTHING; use < N_USES; use++) {
        ds_scope *scope = ds_scope_open();
        ds_step_graph *g = ds_step_graph_new(sums, NULL);
        int n = sums_run(NULL, (Use)use, want);
        CHECK_INT(sums_run(g, (Use)use, got), n);
        CHECK(ds_step_graph_replays(g));
        for (int i = 0; i < n; i++) CHECK_CLOSE(got[i], want[i], 0);
        ds_step_graph_free(g);
        ds_scope_close(scope);
    }
    CHECK_INT(ds_set_device(cpu), DS_OK);
    CHECK_INT(ds_memory_allocated(gpu), before);
}

typedef struct Calls {
    long launches, copies, waits, graphs;
} Calls;

static Calls calls(void)
{
    return (Calls){emulator_count("fake_cuda_launches"), emulator_count("fake_cuda_copies"),
                   emulator_count("fake_cuda_syncs"), emulator_count("fake_cuda_graph_launches")};
}

/* Nothing in a graph, which makes it; a launch without launch fusions, and when
 * it is read. */
static void what_a_batch_costs(void **state)
{
    (void)state;
    ds_batch b;
    CHECK_INT(ds_set_device(gpu), DS_OK);
    for (int round = 0; round < 3; round++) {
        dsi_device_set_fusions(round == 2 ? DSI_FUSIONS_ALONE : DSI_FUSIONS_ON);
        ds_step_graph *g = ds_step_graph_new(sums, NULL);
        ds_loader *l = ds_loader_new(images(round ? BF16 : PLAIN), 2, .shuffle = true);
        Calls before = calls();
        for (int i = 0; i < 6; i++) {
            CHECK(ds_loader_next(l, &b));
            if (i == 3) before = calls();
            CHECK(ds_step_graph_run(g, (ds_tensor *[]){b.x, b.y}, 2));
        }
        Calls after = calls();
        if (emulated()) {
            CHECK_INT(after.launches - before.launches, round == 2 ? 3 : 0);
            CHECK_INT(after.copies - before.copies, 0);
            CHECK_INT(after.waits - before.waits, 0);
            CHECK_INT(after.graphs - before.graphs, 3);
        }
        CHECK(ds_loader_next(l, &b));
        long launches = emulator_count("fake_cuda_launches");
        CHECK(ds_data(b.x) && ds_data(b.y));
        if (emulated()) CHECK_INT(emulator_count("fake_cuda_launches") - launches, 1);
        ds_loader_free(l);
        ds_step_graph_free(g);
    }
    dsi_device_set_fusions(DSI_FUSIONS_ON);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* Where a step's inputs come from. */
typedef enum From { LOADER, OTHER_LOADER, TENSORS, LEFT_OUT, BEGINNING, NOT_LAUNCHED } From;

static const From mixed[] = {
    LOADER,  LOADER,    LOADER, LOADER,   LOADER,       OTHER_LOADER, OTHER_LOADER, LOADER,
    TENSORS, TENSORS,   LOADER, LEFT_OUT, LOADER,       LOADER,       NOT_LAUNCHED, LOADER,
    LOADER,  BEGINNING, LOADER, LEFT_OUT, NOT_LAUNCHED, OTHER_LOADER, TENSORS,      LOADER};
enum { MIXED = sizeof mixed / sizeof *mixed };

/* A step on the batch of a loader; its result is copied to kept[i]. */
static void mixed_step(ds_step_graph *g, ds_loader *l, From from, ds_tensor *kept, int i)
{
    ds_batch b;
    if (from == LEFT_OUT) CHECK(ds_loader_next(l, &b));
    if (from == BEGINNING) CHECK_INT(ds_loader_seek(l, (ds_loader_position){1, 0, 5}), DS_OK);
    CHECK(ds_loader_next(l, &b));
    ds_tensor *in[] = {b.x, b.y};
    if (from == TENSORS) in[0] = ds_scale(b.x, 0.5), in[1] = ds_clone(b.y);
    if (from == NOT_LAUNCHED && g && emulated()) {
        setenv("FAKE_CUDA_FAIL", "cuGraphLaunch=2", 1);
        CHECK(!ds_step_graph_run(g, in, 2) && ds_error());
        ds_error_clear();
        unsetenv("FAKE_CUDA_FAIL");
    }
    ds_tensor *out = g ? ds_step_graph_run(g, in, 2) : sums(NULL, in, 2);
    CHECK(out && ds_copy(ds_select(kept, 0, i), ds_detach(out)) == DS_OK);
}

/* A graph that makes its batches, with inputs from elsewhere in between, and
 * launches that fail. */
static void batches_come_from_anywhere(void **state)
{
    (void)state;
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_scope *scope = ds_scope_open();
    ds_tensor *kept[] = {ds_zeros(DS_F32, ds_shape(MIXED)), ds_zeros(DS_F32, ds_shape(MIXED))};
    for (int graph = 0; graph < 2; graph++) {
        ds_seed(9);
        ds_step_graph *g = graph ? ds_step_graph_new(sums, NULL) : NULL;
        ds_loader *l = ds_loader_new(images(PLAIN), 2, .shuffle = true);
        ds_loader *other = ds_loader_new(ds_subset(images(PLAIN), 3, SAMPLES / 2), 2);
        for (int i = 0; i < MIXED; i++)
            mixed_step(g, mixed[i] == OTHER_LOADER ? other : l, mixed[i], kept[graph], i);
        if (g) CHECK(ds_step_graph_replays(g));
        ds_loader_free(l);
        ds_loader_free(other);
        ds_step_graph_free(g);
    }
    const float *want = ds_data(kept[0]), *got = ds_data(kept[1]);
    for (int i = 0; i < MIXED; i++) CHECK_CLOSE(got[i], want[i], 0);
    ds_scope_close(scope);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* ---- an engine, whose micro steps are of three kinds ---------------------------------------------------- */

static ds_tensor *engine_step(void *self, ds_tensor *const *in, int n)
{
    ds_engine *e = self;
    CHECK_INT(n, 2);
    ds_tensor *loss = ds_cross_entropy(ds_engine_forward(e, in[0]), in[1]);
    if (ds_engine_backward(e, loss) == DS_OK) ds_engine_step(e);
    return loss;
}

/* Losses of micro steps; a batch is read, and is not trained on. */
static int engine_run(bool graph, double *loss)
{
    ds_batch b;
    int n = 0;
    ds_seed(4);
    ds_module *net = ds_nn_sequential(NULL, "net");
    ds_nn_flatten(net, "flatten");
    ds_nn_linear(net, "linear", 3072, 10);
    ds_engine *e = ds_initialize(
            .model = net, .training_data = images(PLAIN),
            .config = "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 3, "
                      "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.01}}}");
    ds_loader *l = ds_engine_loader(e);
    ds_step_graph *g = graph ? ds_engine_step_graph_new(e, engine_step, e) : NULL;
    for (int i = 0; i < 15 && ds_loader_next(l, &b); i++) {
        if (i == 12) CHECK(ds_loader_next(l, &b) && ds_data(b.x));
        ds_tensor *in[] = {b.x, b.y};
        loss[n++] = ds_item(g ? ds_step_graph_run(g, in, 2) : engine_step(e, in, 2));
    }
    CHECK(!ds_error() && (!g || ds_step_graph_replays(g)));
    ds_step_graph_free(g);
    ds_engine_free(e);
    return n;
}

static void engines_take_batches(void **state)
{
    (void)state;
    double want[15], got[15];
    CHECK_INT(ds_set_device(gpu), DS_OK);
    CHECK_INT(engine_run(false, want), 15);
    CHECK_INT(engine_run(true, got), 15);
    for (int i = 0; i < 15; i++) CHECK_CLOSE(got[i], want[i], 0);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* The copy of a step's result waits for the next batch, and is no launch then. */
static void keeping_a_result_costs_nothing(void **state)
{
    (void)state;
    enum { STEPS = 8, FROM = 4 };
    ds_batch b;
    double want[STEPS];
    long launches = 0, copies = 0;
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_scope *scope = ds_scope_open();
    ds_tensor *kept = ds_zeros(DS_F32, ds_shape(2, STEPS));
    for (int read = 1; read >= 0; read--) {
        ds_seed(9);
        ds_step_graph *g = ds_step_graph_new(sums, NULL);
        ds_loader *l = ds_loader_new(images(PLAIN), 2, .shuffle = true);
        for (int i = 0; i < STEPS; i++) {
            CHECK(ds_loader_next(l, &b));
            ds_tensor *out = ds_step_graph_run(g, (ds_tensor *[]){b.x, b.y}, 2);
            CHECK(out);
            if (read) want[i] = ds_item(out);
            CHECK_INT(ds_copy(ds_select(ds_select(kept, 0, read), 0, i), ds_detach(out)), DS_OK);
            if (i == FROM) launches = emulator_count("fake_cuda_launches");
            if (i == FROM) copies = emulator_count("fake_cuda_copies");
        }
        if (emulated() && !read && !DSI_SANITIZED) {
            CHECK_INT(emulator_count("fake_cuda_launches") - launches, 0);
            CHECK_INT(emulator_count("fake_cuda_copies") - copies, 0);
        }
        ds_loader_free(l);
        ds_step_graph_free(g);
    }
    for (int i = 0; i < 2 * STEPS; i++)
        CHECK_CLOSE(ds_item(ds_select(ds_select(kept, 0, i / STEPS), 0, i % STEPS)),
                    want[i % STEPS], 0);
    ds_scope_close(scope);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* A float is copied, and then a batch of 4 samples of 4 bytes and a float is
 * gathered, all in `memory`; apart: the device is asked for something else in
 * between. */
enum {
    ROWS = 6,
    TAKEN = 4,
    TABLE = 0,
    INDEX = 256,
    DATA = 264,
    LABELS = 270,
    IMAGES_OUT = 276,
    LABELS_OUT = 292,
    SPARE = 296,
    MEMORY = 304
}; /* in floats */
static void copy_and_gather(const float *before, float *after, int from, int to, bool apart)
{
    dsi_device *d = dsi_device_get(gpu);
    dsi_stream *s = &d->stream;
    float *p = dsi_cache_alloc(d, MEMORY * sizeof *p);
    CHECK(p && d->type->copy_in(s, p, before, MEMORY * sizeof *p) == DS_OK);
    dsi_view one = {.p = p + from}, other = {.p = p + to},
             index = {p + INDEX, DS_I64, 1, {TAKEN}, {1}},
             table = {p + TABLE, DS_F32, 2, {1, 256}, {256, 1}},
             x[] = {{p + DATA, DS_U8, 3, {ROWS, 1, 4}, {4, 4, 1}},
                    {p + LABELS, DS_F32, 3, {ROWS, 1, 1}, {1, 1, 1}}},
             y[] = {{p + IMAGES_OUT, DS_F32, 3, {TAKEN, 1, 4}, {4, 4, 1}},
                    {p + LABELS_OUT, DS_F32, 3, {TAKEN, 1, 1}, {1, 1, 1}}};
    CHECK_INT(d->own_kernels->copy(s, one, other), DS_OK);
    if (apart) CHECK_INT(d->type->copy_out(s, after, p, sizeof *p), DS_OK);
    CHECK_INT(d->own_fusions->gather_batch(s, index, table, 2, x, y), DS_OK);
    CHECK_INT(d->type->copy_out(s, after, p, MEMORY * sizeof *p), DS_OK);
    dsi_cache_free(d, p, MEMORY * sizeof *p);
}

static void a_copy_keeps_its_place_before_a_batch(void **state)
{
    (void)state;
    static const int64_t index[TAKEN] = {5, 0, 3, 3};
    float before[MEMORY], want[MEMORY], got[MEMORY];
    for (int i = 0; i < MEMORY; i++) before[i] = (float)i;
    memcpy(before + INDEX, index, sizeof index);
    for (int to = 0; to < MEMORY; to++)
        for (int from = SPARE; from >= 0; from -= SPARE - IMAGES_OUT - 2) {
            if (to >= INDEX && to < DATA && to % 2) continue; /* not the upper half of an index */
            before[SPARE] = to >= INDEX && to < DATA ? 2.8e-45f : 7; /* the bits of 2 */
            copy_and_gather(before, want, from, to, true);
            copy_and_gather(before, got, from, to, false);
            if (memcmp(want, got, sizeof got)) fail_msg("a copy of float %d to %d", from, to);
        }
}

/* labels: the images are an input, and the step reads the batch's labels. */
static void check_hidden(bool labels)
{
    const char *want = "it reads a loader's batch that is not among its inputs";
    ds_tensor *hidden = NULL;
    ds_batch b;
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_step_graph *g = ds_step_graph_new(sums, &hidden);
    ds_loader *l = ds_loader_new(images(PLAIN), BATCH);
    for (int i = 0; i < 4; i++) {
        CHECK(ds_loader_next(l, &b));
        hidden = labels ? b.y : b.x;
        ds_tensor *x = ds_ones(DS_F32, ds_shape(BATCH)), *in[] = {labels ? b.x : x, x};
        CHECK(ds_step_graph_run(g, in, 2) && !ds_error());
    }
    CHECK(ds_step_graph_why_not(g) && !strcmp(ds_step_graph_why_not(g), want));
    ds_loader_free(l);
    ds_step_graph_free(g);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static void a_batch_that_is_no_input_is_not_recorded(void **state)
{
    (void)state;
    check_hidden(false);
    check_hidden(true);
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    setenv("DS_CIFAR10_SAMPLE", DS_SOURCE_DIR "/assets/cifar10-sample.tar.xz", 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_batches),
                                       cmocka_unit_test(batches_wait_for_nothing),
                                       cmocka_unit_test(kept_batches_have_values),
                                       cmocka_unit_test(step_graphs_take_batches),
                                       cmocka_unit_test(what_a_batch_costs),
                                       cmocka_unit_test(batches_come_from_anywhere),
                                       cmocka_unit_test(engines_take_batches),
                                       cmocka_unit_test(keeping_a_result_costs_nothing),
                                       cmocka_unit_test(a_copy_keeps_its_place_before_a_batch),
                                       cmocka_unit_test(a_batch_that_is_no_input_is_not_recorded)};
    folder = folder_make();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    folder_remove();
    return failed;
}
