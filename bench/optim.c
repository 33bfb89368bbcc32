/* bench/optim.c: one step of each optimizer's kernel: microseconds, and GB/s
 * read and written, for the tutorial network's 62006 parameters and for 8
 * million, compared with a pass that only copies.
 *
 * DS_CPU chooses the instruction set. Each figure is the best of 15 runs.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "device/cpu/cpu.h"
#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Bench {
    const dsi_kernels *kernels;
    dsi_stream *stream;
    dsi_span x;
} Bench;

static void copy(const Bench *b) { memcpy(b->x.m, b->x.g, (size_t)b->x.n * sizeof(float)); }

static void sgd(const Bench *b)
{
    static const dsi_optimizer c = {.rule = DSI_SGD, .sgd = {.lr = 1e-3}};
    b->kernels->optimizer(b->stream, &c, 1, &b->x);
}

static void momentum(const Bench *b)
{
    static const dsi_optimizer c = {.rule = DSI_SGD, .sgd = {.lr = 1e-3, .momentum = 0.9}};
    b->kernels->optimizer(b->stream, &c, 1, &b->x);
}

static void adamw(const Bench *b)
{
    static const dsi_optimizer c = {
        .rule = DSI_ADAM, .adam = {1e-3, 0.9, 0.999, 1e-8, 0.01, true, false, false, true}};
    b->kernels->optimizer(b->stream, &c, 1, &b->x);
}

static void adagrad(const Bench *b)
{
    static const dsi_optimizer c = {.rule = DSI_ADAGRAD, .adagrad = {.lr = 1e-3, .eps = 1e-10}};
    b->kernels->optimizer(b->stream, &c, 1, &b->x);
}

static void rmsprop(const Bench *b)
{
    static const dsi_optimizer c = {.rule = DSI_RMSPROP,
                                    .rmsprop = {.lr = 1e-3, .alpha = 0.99, .eps = 1e-8}};
    b->kernels->optimizer(b->stream, &c, 1, &b->x);
}

static void lion(const Bench *b)
{
    static const dsi_optimizer c = {.rule = DSI_LION, .lion = {1e-3, 0.9, 0.99, 0.01}};
    b->kernels->optimizer(b->stream, &c, 1, &b->x);
}

static void lamb(const Bench *b)
{
    static const dsi_optimizer c = {.rule = DSI_LAMB,
                                    .lamb = {1e-3, 0.9, 0.999, 1e-8, 0.01, 10, 0.01, true, false}};
    b->kernels->optimizer(b->stream, &c, 1, &b->x);
}

/* floats read and written an element */
static const struct {
    const char *name;
    void (*run)(const Bench *b);
    int floats;
} rows[] = {{"copy", copy, 2},   {"sgd", sgd, 3},         {"sgd momentum", momentum, 5},
            {"adamw", adamw, 7}, {"adagrad", adagrad, 5}, {"rmsprop", rmsprop, 5},
            {"lion", lion, 5},   {"lamb", lamb, 12}};

static double seconds(const Bench *b, void (*run)(const Bench *b))
{
    double best = dsi_now();
    run(b);
    best = dsi_now() - best;
    int times = 1 + (int)(0.003 / (best + 1e-7));
    for (int i = 0; i < 15; i++) {
        double t = dsi_now();
        for (int k = 0; k < times; k++) run(b);
        t = (dsi_now() - t) / times;
        if (t < best) best = t;
    }
    return best;
}

int main(void)
{
    static const int64_t sizes[] = {62006, 8 << 20};
    const char *isa = dsi_cpu_isa();
    if (!isa) return fprintf(stderr, "%s\n", ds_error()), 1;
    Bench b = {&dsi_cpu_table_of(isa)->kernels,
               &dsi_device_current()->stream,
               {.dtype = DS_F32, .step = 2, .g_scale = 1}};
    float *memory[4];
    for (int i = 0; i < 4; i++) {
        memory[i] = aligned_alloc(64, (size_t)sizes[1] * sizeof(float));
        if (!memory[i]) return fprintf(stderr, "no memory\n"), 1;
        for (int64_t k = 0; k < sizes[1]; k++) memory[i][k] = 0.5f;
    }
    b.x.p = memory[0], b.x.g = memory[1], b.x.m = memory[2], b.x.v = memory[3];
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        printf("%s, %lld elements\n", isa, (long long)sizes[s]);
        b.x.n = sizes[s];
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            double t = seconds(&b, rows[i].run);
            printf("  %-13s %10.2f us %7.1f GB/s\n", rows[i].name, t * 1e6,
                   4.0 * rows[i].floats * (double)b.x.n / t / 1e9);
        }
    }
    for (int i = 0; i < 4; i++) free(memory[i]);
    return 0;
}
