/* bench/gpu.c: the tutorial network's training step on cuda:0: samples a second
 * as a CUDA graph, as one without launch fusions (DS_FUSIONS=alone), kernel by
 * kernel, and as a graph without one of them; the time from the program's start
 * to the end of its first step, and the host's memory. Without a GPU: one line.
 *
 *     bench_gpu [STEPS [BATCH]]   steps that are timed, at each batch size (2000), or at
 *                                 this one, with all launch fusions
 *
 * Samples are random bytes of CIFAR-10's size, in a data set on the GPU.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "classify.h"
#include "losses.h"

#include "base/mem.h"
#include "data/resident.h"
#include "device/device.h"

#include <deepspeed.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { PIXELS = 3072, IMAGES = 10000, WARM_UP = 20 };

static int64_t images_len(void *self)
{
    (void)self;
    return IMAGES;
}

static ds_status images_get(void *self, int64_t i, void **field)
{
    (void)self;
    for (int k = 0; k < PIXELS; k++)
        ((uint8_t *)field[0])[k] = (uint8_t)(((uint64_t)i * PIXELS + (uint64_t)k) * 2654435761u >>
                                             24);
    *(int64_t *)field[1] = i % 10;
    return DS_OK;
}

static const float *images_table(void *self)
{
    (void)self;
    return NULL;
}

static ds_dataset *images_new(void)
{
    static const ds_dataset_type type = {"Images", 1, images_len, images_get, NULL};
    static const dsi_byte_form bytes = {images_get, images_table};
    ds_field fields[] = {{DS_U8, ds_shape(3, 32, 32), "image"}, {DS_I64, {0}, "label"}};
    ds_dataset *d = ds_dataset_new(&type, 2, fields);
    float half = 0.5f;
    dsi_dataset_set_byte_form(d, &bytes);
    return ds_transform_normalize(ds_transform_to_float(d), 1, &half, &half);
}

typedef struct Training {
    ds_module *net;
    ds_optim *sgd;
} Training;

static ds_tensor *train_step(void *self, ds_tensor *const *in, int n)
{
    Training *t = self;
    (void)n;
    ds_optim_zero_grad(t->sgd);
    ds_tensor *loss = ds_cross_entropy(ds_call(t->net, in[0]), in[1]);
    if (ds_backward(loss) == DS_OK) ds_optim_step(t->sgd);
    return loss;
}

/* Seconds of `steps` steps; *first: of the first one. Losses are read as the
 * tutorial does. */
static double train(int64_t batch, int steps, bool graph, double *first)
{
    Training t = {.net = net_new()};
    t.sgd = ds_optim_sgd(t.net, 0.001, .momentum = 0.9);
    ds_step_graph *g = graph ? ds_step_graph_new(train_step, &t) : NULL;
    ds_loader *l = ds_loader_new(images_new(), batch, .shuffle = true, .drop_last = true);
    ds_batch b;
    double begun = 0;
    Losses losses;
    losses_begin(&losses, false);
    for (int i = 0; i < WARM_UP + steps && !ds_error();) {
        if (!ds_loader_next(l, &b)) continue; /* the next epoch begins */
        if (i == WARM_UP) begun = dsi_now();
        ds_tensor *in[] = {b.x, b.y};
        losses_add(&losses, g ? ds_step_graph_run(g, in, 2) : train_step(&t, in, 2));
        if (losses_due(&losses) || i < WARM_UP) losses_read(&losses);
        if (i++ == 0 && first) *first = dsi_now();
    }
    losses_read(&losses);
    double seconds = dsi_now() - begun;
    losses_end(&losses);
    ds_loader_free(l);
    ds_step_graph_free(g);
    ds_optim_free(t.sgd);
    ds_module_free(t.net);
    return seconds;
}

/* At batch 4, without one launch fusion each. */
static void launch_fusions_measure(int steps)
{
#define NAME(member, name) #name,
    static const char *const names[] = {DSI_LAUNCH_FUSIONS(NAME)};
    for (int i = 0; i < DSI_N_LAUNCH_FUSIONS && !ds_error(); i++) {
        dsi_device_disable_launch_fusions(1 << i);
        double n = 4.0 * steps, without = train(4, steps, true, NULL);
        dsi_device_disable_launch_fusions(0);
        printf("batch 4 without %-14s %10.0f, with it %10.0f\n", names[i], n / without,
               n / train(4, steps, true, NULL));
    }
}

int main(int argc, char **argv)
{
    static const int64_t batches[] = {4, 16, 32, 128};
    double start = dsi_now(), first = 0;
    int steps = argc > 1 ? atoi(argv[1]) : 2000, only = argc > 2 ? atoi(argv[2]) : 0;
    ds_device gpu;
    if (ds_device_parse("cuda:0", &gpu) != DS_OK || ds_set_device(gpu) != DS_OK) {
        printf("bench_gpu: no figures: %s\n", ds_error());
        return 0;
    }
    if (steps < 1) {
        fprintf(stderr, "bench_gpu: %s steps, expected at least 1\n", argv[1]);
        return 2;
    }
    printf("samples/s\n%6s %14s %14s %18s\n", "batch", "graph", "alone", "kernel by kernel");
    for (int k = 0; k < (only ? 1 : 4) && !ds_error(); k++) {
        int64_t batch = only ? only : batches[k];
        double n = (double)batch * steps, with = train(batch, steps, true, k ? NULL : &first);
        double without = train(batch, steps, false, NULL);
        dsi_device_set_fusions(DSI_FUSIONS_ALONE);
        double alone = train(batch, steps, true, NULL);
        dsi_device_set_fusions(DSI_FUSIONS_ON);
        printf("%6lld %14.0f %14.0f %18.0f\n", (long long)batch, n / with, n / alone, n / without);
    }
    if (!only) launch_fusions_measure(steps);
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    if (!ds_error())
        printf("start to the end of the first step: %.2f s; host memory: %ld MB\n", first - start,
               use.ru_maxrss / 1024);
    ds_perror("bench_gpu");
    return ds_error() != NULL;
}
