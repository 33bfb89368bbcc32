/* tools/selftest/graph.c: steps of training as a graph beside the same steps
 * kernel by kernel: a network with dropout, Adam, a learning rate that changes.
 * SPDX-License-Identifier: MIT */
#include "graph.h"

#include <deepspeed.h>

#include <stdio.h>
#include <string.h>

enum { WIDTH = 64, CLASSES = 10, BATCH = 32, STEPS = 8 };

typedef struct Training {
    ds_module *net;
    ds_optim *optim;
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

static bool train(Training *t, bool with_graph)
{
    ds_seed(7);
    t->net = ds_nn_sequential(NULL, "net");
    ds_nn_linear(t->net, "a", WIDTH, WIDTH);
    ds_nn_relu(t->net, "b");
    ds_nn_dropout(t->net, "c", 0.1);
    ds_nn_linear(t->net, "d", WIDTH, CLASSES);
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

bool selftest_graph(ds_device gpu, char *why, size_t room)
{
    Training plain = {0}, graph = {0};
    ds_device now = ds_current_device();
    ds_scope *scope = ds_scope_open();
    bool ran = ds_set_device(gpu) == DS_OK && train(&plain, false) && train(&graph, true);
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
