/* tests/gpu/startup.c: the first steps of a program on the GPU: how often the
 * driver is asked for memory, and the host waits for the GPU.
 * SPDX-License-Identifier: MIT */
#include "base/mem.h"
#include "check.h"
#include "classify.h"
#include "emulated.h"
#include "folder.h"

#include <deepspeed/data.h>

enum { BATCH = 4, STEPS = 4 }; /* the third is recorded */

static const char *folder; /* where the sample is unpacked */
static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};

typedef struct Counts {
    long allocs, waits, event_waits;
} Counts;

/* Since *before. */
static Counts counted(const Counts *before)
{
    Counts now = {emulator_count("fake_cuda_allocs"), emulator_count("fake_cuda_syncs"),
                  emulator_count("fake_cuda_event_syncs")};
    if (before) {
        now.allocs -= before->allocs;
        now.waits -= before->waits;
        now.event_waits -= before->event_waits;
    }
    return now;
}

/* A sanitizer has each block from the driver. */
static void check_counts(const char *what, Counts got, Counts most)
{
    printf("# %s: memory is asked for %ld times, the host waits %ld times, and %ld times for an "
           "earlier copy\n",
           what, got.allocs, got.waits, got.event_waits);
    CHECK(DSI_SANITIZED || got.allocs <= most.allocs);
    CHECK(got.waits <= most.waits && got.event_waits <= most.event_waits);
}

static ds_dataset *images(void)
{
    return ds_cifar10_with(folder, DS_TRAIN, (ds_cifar10_opts){.sample = true, .quiet = true});
}

typedef struct Training {
    ds_module *net;
    ds_optim *optim;
    ds_engine *engine;
} Training;

static ds_tensor *tutorial_step(void *self, ds_tensor *const *batch, int n)
{
    Training *t = self;
    CHECK_INT(n, 2);
    ds_optim_zero_grad(t->optim);
    ds_tensor *loss = ds_cross_entropy(ds_call(t->net, batch[0]), batch[1]);
    if (ds_backward(loss) == DS_OK) ds_optim_step(t->optim);
    return loss;
}

static ds_tensor *engine_step(void *self, ds_tensor *const *batch, int n)
{
    Training *t = self;
    CHECK_INT(n, 2);
    ds_tensor *loss = ds_cross_entropy(ds_engine_forward(t->engine, batch[0]), batch[1]);
    if (ds_engine_backward(t->engine, loss) == DS_OK) ds_engine_step(t->engine);
    return loss;
}

static void steps_run(ds_loader *l, ds_step_graph *g)
{
    ds_batch b;
    for (int i = 0; i < STEPS && ds_loader_next(l, &b); i++)
        CHECK(ds_step_graph_run(g, (ds_tensor *[]){b.x, b.y}, 2));
    CHECK(ds_step_graph_replays(g) && !ds_error());
}

/* Of a step that keeps its loss, calls of the driver: its graph, with its
 * batch, and the copy of the loss of the step before it. */
static void step_costs_one_launch(ds_loader *l, ds_step_graph *g)
{
    enum { WARM_UP = 2, KEPT = 6 };
    static const char *const counts[] = {"fake_cuda_launches", "fake_cuda_copies",
                                         "fake_cuda_syncs", "fake_cuda_graph_launches"};
    long before[4] = {0};
    ds_batch b;
    ds_tensor *kept = ds_keep(ds_zeros(DS_F32, ds_shape(KEPT)));
    for (int i = 0; i < KEPT; i++) {
        for (int k = 0; k < 4 && i == WARM_UP; k++) before[k] = emulator_count(counts[k]);
        CHECK(ds_loader_next(l, &b));
        ds_tensor *loss = ds_step_graph_run(g, (ds_tensor *[]){b.x, b.y}, 2);
        CHECK_INT(ds_copy(ds_select(kept, 0, i), ds_detach(loss)), DS_OK);
    }
    for (int k = DSI_SANITIZED ? 3 : 0; k < 4; k++) /* there each block is allocated and freed */
        CHECK_INT(emulator_count(counts[k]) - before[k], k == 3 ? KEPT - WARM_UP : 0);
    ds_drop(kept);
}

/* One wait for an earlier copy for each megabyte of images: 3900 of them are
 * 12. An optimizer looks for faults before a step that is not recorded. */
static void the_tutorial(void **state)
{
    (void)state;
    Counts begun = counted(NULL);
    CHECK_INT(ds_set_device(gpu), DS_OK);
    Training t = {.net = net_new()};
    t.optim = ds_optim_sgd(t.net, 0.001, .momentum = 0.9);
    check_counts("tutorial, the network", counted(&begun), (Counts){2, 0, 0});
    ds_loader *l = ds_loader_new(images(), BATCH, .shuffle = true);
    ds_step_graph *g = ds_step_graph_new(tutorial_step, &t);
    steps_run(l, g);
    check_counts("tutorial, 4 steps", counted(&begun), (Counts){5, 2, 12});
    step_costs_one_launch(l, g);
    ds_step_graph_free(g);
    ds_loader_free(l);
    ds_optim_free(t.optim);
    ds_module_free(t.net);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* After each step its loss, norm and decision are read. */
static void the_engine(void **state)
{
    (void)state;
    Counts begun = counted(NULL);
    CHECK_INT(ds_set_device(gpu), DS_OK);
    Training t = {
        .engine = ds_initialize(
                .model = net_new(), .training_data = images(),
                .config = "{\"train_batch_size\": 16, \"optimizer\": {\"type\": \"Adam\"}, "
                          "\"gradient_clipping\": 1}")};
    CHECK(t.engine);
    check_counts("engine, the network", counted(&begun), (Counts){2, 0, 0});
    ds_step_graph *g = ds_engine_step_graph_new(t.engine, engine_step, &t);
    steps_run(ds_engine_loader(t.engine), g);
    check_counts("engine, 4 steps", counted(&begun), (Counts){5, STEPS, 12});
    ds_step_graph_free(g);
    ds_engine_free(t.engine);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

int main(void)
{
    int skip = skip_without_emulator();
    if (skip) return skip;
    setenv("DS_CIFAR10_SAMPLE", DS_SOURCE_DIR "/assets/cifar10-sample.tar.xz", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_tutorial),
                                       cmocka_unit_test(the_engine)};
    folder = folder_make();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    folder_remove();
    return failed;
}
