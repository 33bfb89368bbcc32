/* bench/models.c: training steps of the networks of models_networks.h: float32
 * by an optimizer (SGD with momentum for ResNet, AdamW for the others),
 * bfloat16 by the engine (AdamW on float32 master weights, gradients clipped).
 *
 *     bench_models [--threads N] [--device D] [word ...]
 *                                                  rows whose name holds one of the words
 *     bench_models [--threads N] --ask NAME DIR    for bench/peer_models.py: writes weights and data to
 *                                                  DIR/init.pth and data.pth, prints an empty line; then for
 *                                                  each number n on its input runs n steps and prints
 *                                                  their medians of processor and wall time in seconds, the peak
 *                                                  of tensor memory in MiB, and the last loss
 *
 * Data are random: ids or images, and labels, in BATCHES batches. On a GPU batches
 * are GPU_TIMES as large, and a step is a graph: DS_GRAPHS=off for kernel by
 * kernel. bench/peer_models.py --device cuda has the same steps in PyTorch.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "median.h"
#include "models_networks.h"

#include <string.h>
#include <time.h>

#define BATCHES   4
#define GPU_TIMES 16
#define MAX_STEPS 64

static ds_device device; /* of weights and data */

typedef struct Row {
    const char *name;
    ds_module *(*make)(void);
    int batch, context, classes; /* context 0: images [batch,3,32,32] */
    bool sgd, bf16;
} Row;

static const Row rows[] = {
    {"gpt2-124m", gpt2_new, 2, 256, 50257, false, false},
    {"gpt2-124m-bf16", gpt2_new, 2, 256, 50257, false, true},
    {"gpt-small", gpt_small_new, 8, 256, 8192, false, false},
    {"gpt-small-bf16", gpt_small_new, 8, 256, 8192, false, true},
    {"vit-tiny", vit_new, 32, 0, 10, false, false},
    {"vit-tiny-bf16", vit_new, 32, 0, 10, false, true},
    {"resnet18-32", resnet_new, 32, 0, 10, true, false},
    {"resnet18-32-bf16", resnet_new, 32, 0, 10, false, true},
    {"resnet18-128", resnet_new, 128, 0, 10, true, false},
    {"resnet18-128-bf16", resnet_new, 128, 0, 10, false, true},
};

static const char config[] = "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_clipping\": 1.0,"
                             " \"bf16\": {\"enabled\": true}, \"optimizer\": {\"type\": \"AdamW\","
                             " \"params\": {\"lr\": 3e-4, \"weight_decay\": 0.01}}}";

typedef struct Training {
    const Row *row;
    ds_module *net;
    ds_optim *optim;   /* float32 */
    ds_engine *engine; /* bfloat16 */
    ds_step_graph *graph;
    ds_tensor *x, *y; /* [BATCHES,B,...] */
    int steps;        /* so far */
} Training;

static double processor_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static ds_status training_save(const Training *t, const char *folder)
{
    char path[512];
    ds_state *init = ds_module_state(t->net), *data = ds_state_new();
    snprintf(path, sizeof path, "%s/init.pth", folder);
    ds_status status = ds_save(init, path);
    snprintf(path, sizeof path, "%s/data.pth", folder);
    if (!status) status = ds_state_set(data, "x", t->x);
    if (!status) status = ds_state_set(data, "y", t->y);
    if (!status) status = ds_save(data, path);
    ds_state_free(init);
    ds_state_free(data);
    return status;
}

/* One step, of in = {x, y}; returns the loss. */
static ds_tensor *train_step(void *self, ds_tensor *const *in, int n)
{
    Training *t = self;
    ds_tensor *x = in[0];
    (void)n;
    if (t->engine && ds_dtype_of(x) == DS_F32) x = ds_cast(x, DS_BF16);
    x = t->engine ? ds_engine_forward(t->engine, x) : ds_call(t->net, x);
    ds_tensor *logits = ds_reshape(x, ds_shape(-1, t->row->classes));
    ds_tensor *loss = ds_cross_entropy(logits, ds_flatten(in[1], 0));
    if (t->engine) {
        ds_engine_backward(t->engine, loss);
        ds_engine_step(t->engine);
    } else {
        ds_optim_zero_grad(t->optim);
        ds_backward(loss);
        ds_optim_step(t->optim);
    }
    return loss;
}

/* Its data belong to the scope that is open. folder: NULL, or where weights and
 * data are written before training changes them. */
static ds_status training_begin(Training *t, const Row *row, const char *folder)
{
    *t = (Training){.row = row};
    ds_seed(0);
    t->net = row->make();
    int64_t b = (int64_t)row->batch * (device.kind == DS_CPU ? 1 : GPU_TIMES);
    if (row->context) {
        t->x = ds_randint(DS_I64, 0, row->classes, ds_shape(BATCHES, b, row->context));
        t->y = ds_randint(DS_I64, 0, row->classes, ds_shape(BATCHES, b, row->context));
    } else {
        t->x = ds_randn(DS_F32, ds_shape(BATCHES, b, 3, 32, 32));
        t->y = ds_randint(DS_I64, 0, row->classes, ds_shape(BATCHES, b));
    }
    if (folder && training_save(t, folder)) return ds_error_status();
    if (row->bf16)
        t->engine = ds_initialize(.model = t->net, .config = config);
    else if (row->sgd)
        t->optim = ds_optim_sgd(t->net, 0.01, .momentum = 0.9);
    else
        t->optim = ds_optim_adamw(t->net, 3e-4, .weight_decay = 0.01);
    if (device.kind != DS_CPU)
        t->graph = t->engine ? ds_engine_step_graph_new(t->engine, train_step, t)
                             : ds_step_graph_new(train_step, t);
    return ds_error_status();
}

static void training_end(Training *t)
{
    ds_step_graph_free(t->graph);
    ds_engine_free(t->engine);
    ds_optim_free(t->optim);
    if (!t->engine) ds_module_free(t->net);
}

/* The next step; returns the loss. */
static double training_step(Training *t)
{
    ds_scope *scope = ds_scope_open();
    int at = t->steps++ % BATCHES;
    ds_tensor *in[] = {ds_select(t->x, 0, at), ds_select(t->y, 0, at)};
    double loss = ds_item(t->graph ? ds_step_graph_run(t->graph, in, 2) : train_step(t, in, 2));
    ds_scope_close(scope);
    return loss;
}

/* n steps -> medians of the seconds of a step; returns the last loss. */
static double training_run(Training *t, int n, double *processor, double *wall)
{
    double loss = 0, took[2][MAX_STEPS];
    for (int i = 0; i < n; i++) {
        double cpu = processor_time(), now = dsi_now();
        loss = training_step(t);
        took[0][i] = processor_time() - cpu;
        took[1][i] = dsi_now() - now;
    }
    *processor = median(took[0], n), *wall = median(took[1], n);
    return loss;
}

static double peak_mib(void) { return (double)ds_memory_peak(device) / 1048576; }

static int failed(void) { return ds_error() ? fprintf(stderr, "%s\n", ds_error()), 1 : 0; }

/* See the head of this file. */
static int answer(const char *name, const char *folder)
{
    const Row *row = NULL;
    int n;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(rows[i].name, name)) row = &rows[i];
    if (!row) return fprintf(stderr, "bench_models: no row %s\n", name), 2;
    ds_scope *scope = ds_scope_open();
    Training t;
    training_begin(&t, row, folder);
    printf("\n");
    fflush(stdout);
    while (!failed() && scanf("%d", &n) == 1 && n > 0 && n <= MAX_STEPS) {
        double cpu, wall, loss = training_run(&t, n, &cpu, &wall);
        printf("%.6f %.6f %.1f %.9g\n", cpu, wall, peak_mib(), loss);
        fflush(stdout);
    }
    training_end(&t);
    ds_scope_close(scope);
    return ds_error() ? 1 : 0;
}

static int bench(const Row *row)
{
    ds_scope *scope = ds_scope_open();
    Training t;
    double cpu, wall;
    training_begin(&t, row, NULL);
    for (int i = 0; i < (t.graph ? 3 : 1); i++) training_step(&t);
    training_run(&t, t.graph ? 20 : 5, &cpu, &wall);
    if (!ds_error())
        printf("%-20s %10.2f ms %10.2f ms %10.0f MiB\n", row->name, cpu * 1e3, wall * 1e3,
               peak_mib());
    fflush(stdout);
    training_end(&t);
    ds_scope_close(scope);
    return failed();
}

int main(int argc, char **argv)
{
    int at = 1, bad = 0;
    for (; at + 1 < argc; at += 2) {
        if (!strcmp(argv[at], "--threads") && !ds_set_threads(atoi(argv[at + 1]))) continue;
        if (strcmp(argv[at], "--device") != 0) break;
        if (ds_device_parse(argv[at + 1], &device) || ds_set_device(device)) break;
    }
    if (failed()) return 2;
    if (argc == at + 3 && !strcmp(argv[at], "--ask")) return answer(argv[at + 1], argv[at + 2]);
    printf("%-20s %13s %13s %14s\n", "a training step", "processor", "wall", "peak so far");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool wanted = at == argc;
        for (int k = at; k < argc; k++) wanted |= strstr(rows[i].name, argv[k]) != NULL;
        if (wanted) bad += bench(&rows[i]);
    }
    return bad > 0;
}
