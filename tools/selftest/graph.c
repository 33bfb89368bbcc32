/* tools/selftest/graph.c: steps of training as a graph beside the same steps
 * kernel by kernel: a network with dropout, Adam, a learning rate that changes;
 * and an engine in fp16 with clipping, accumulation, a schedule and averages.
 * SPDX-License-Identifier: MIT */
#include "graph.h"

#include <deepspeed.h>

#include <stdio.h>
#include <string.h>

enum { WIDTH = 64, CLASSES = 10, BATCH = 32, STEPS = 12 };

typedef struct Training {
    ds_module *net;
    ds_optim *optim;
    ds_engine *engine;
    ds_step_graph *graph;
    bool recorded;
    double loss[STEPS];
} Training;

static ds_tensor *train_step(void *self, ds_tensor *const *in, int n)
{
    Training *t = self;
    (void)n;
    ds_optim_zero_grad(t->optim);
    ds_tensor *loss = ds_cross_entropy(ds_call(t->net, in[0]), in[1]);
    if (ds_backward(loss) == DS_OK) ds_optim_step(t->optim);
    return loss;
}

static ds_module *network(void)
{
    ds_seed(7);
    ds_module *net = ds_nn_sequential(NULL, "net");
    ds_nn_linear(net, "a", WIDTH, WIDTH);
    ds_nn_relu(net, "b");
    ds_nn_dropout(net, "c", 0.1);
    ds_nn_linear(net, "d", WIDTH, CLASSES);
    return net;
}

static bool train(Training *t, bool with_graph)
{
    t->net = network();
    t->optim = ds_optim_adamw(t->net, 0.01);
    t->graph = with_graph ? ds_step_graph_new(train_step, t) : NULL;
    for (int i = 0; i < STEPS && !ds_error(); i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *in[] = {ds_randn(DS_F32, ds_shape(BATCH, WIDTH)),
                           ds_randint(DS_I64, 0, CLASSES, ds_shape(BATCH))};
        ds_optim_set_lr(t->optim, 0.01 / (1 + i));
        t->loss[i] = ds_item(with_graph ? ds_step_graph_run(t->graph, in, 2)
                                        : train_step(t, in, 2));
        ds_scope_close(scope);
    }
    t->recorded = ds_step_graph_replays(t->graph);
    ds_step_graph_free(t->graph);
    ds_optim_free(t->optim);
    ds_module_free(t->net);
    return !ds_error();
}

static ds_tensor *engine_step(void *self, ds_tensor *const *in, int n)
{
    Training *t = self;
    (void)n;
    ds_tensor *y = ds_cast(ds_engine_forward(t->engine, in[0]), DS_F32);
    ds_tensor *loss = ds_cross_entropy(y, in[1]);
    if (ds_engine_backward(t->engine, loss) == DS_OK) ds_engine_step(t->engine);
    return loss;
}

static bool train_engine(Training *t, bool with_graph)
{
    static const char config[] =
        "{\"train_micro_batch_size_per_gpu\": 32, \"gradient_accumulation_steps\": 2,"
        " \"steps_per_print\": 0, \"gradient_clipping\": 0.5,"
        " \"fp16\": {\"enabled\": true, \"initial_scale_power\": 6, \"loss_scale_window\": 2},"
        " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}},"
        " \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 4}}}";
    t->engine = ds_initialize(.model = network(), .config = config);
    ds_engine_use_ema(t->engine, 0.9);
    t->graph = with_graph ? ds_engine_step_graph_new(t->engine, engine_step, t) : NULL;
    for (int i = 0; i < STEPS && !ds_error(); i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *in[] = {ds_cast(ds_randn(DS_F32, ds_shape(BATCH, WIDTH)), DS_F16),
                           ds_randint(DS_I64, 0, CLASSES, ds_shape(BATCH))};
        t->loss[i] = ds_item(with_graph ? ds_step_graph_run(t->graph, in, 2)
                                        : engine_step(t, in, 2));
        if (i % 2) t->loss[i] += ds_engine_global_grad_norm(t->engine);
        ds_scope_close(scope);
    }
    t->recorded = ds_step_graph_replays(t->graph);
    ds_step_graph_free(t->graph);
    ds_engine_free(t->engine);
    return !ds_error();
}

static bool compare(bool (*run)(Training *t, bool with_graph), ds_device gpu, char *why,
                    size_t room)
{
    Training plain = {0}, graph = {0};
    ds_device now = ds_current_device();
    ds_scope *scope = ds_scope_open();
    bool ran = ds_set_device(gpu) == DS_OK && run(&plain, false) && run(&graph, true);
    bool same = ran;
    for (int i = 0; i < STEPS; i++) same = same && plain.loss[i] == graph.loss[i];
    if (!ran)
        snprintf(why, room, "%s", ds_error() ? ds_error() : "no message");
    else if (!graph.recorded)
        snprintf(why, room, "no step was recorded");
    else if (!same)
        snprintf(why, room, "the losses differ");
    ds_scope_close(scope);
    ds_set_device(now);
    return same && graph.recorded;
}

bool selftest_graph(ds_device gpu, char *why, size_t room)
{
    return compare(train, gpu, why, room);
}

bool selftest_engine_graph(ds_device gpu, char *why, size_t room)
{
    return compare(train_engine, gpu, why, room);
}
