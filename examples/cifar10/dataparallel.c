/* examples/cifar10/dataparallel.c: the tutorial with DataParallel: one process
 * divides each batch among replicas of the network. With --device cuda each GPU
 * has one (--device-ids: some of them); on the CPU each id is a replica with
 * its own threads.
 * SPDX-License-Identifier: MIT */
#include "args.h"
#include "training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((__visibility__("default")))
const char *argp_program_version = "cifar10_dataparallel (deepspeed.c) " DS_VERSION;

#define MAX_IDS 64

typedef struct Program {
    Training t; /* first member: parse gets its address as the program's */
    const char *device;
    int ids[MAX_IDS], replicas; /* 0: without --device-ids */
    ds_data_parallel *parallel;
} Program;

/* ---- options ----------------------------------------------------------------------------------------- */

enum { DEVICE_IDS = TRAINING_OWN_KEYS, LOCAL_RANK, DEVICE };

/* Reads a list such as "0,1": different integers. */
static void read_ids(struct argp_state *state, const char *list, Program *p)
{
    bool used[MAX_IDS] = {false};
    p->replicas = 0;
    for (const char *at = list; p->replicas == 0 || *at++ == ',';) {
        char *end;
        long id = strtol(at, &end, 10);
        bool number = *at >= '0' && *at <= '9' && (!*end || *end == ',');
        if (!number || id >= MAX_IDS || used[id])
            argp_error(state,
                       "--device-ids: \"%s\": expected different numbers below %d, such as 0,1",
                       list, MAX_IDS);
        used[id] = true;
        p->ids[p->replicas++] = (int)id;
        at = end;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Program *p = state->input;
    if (key == LOCAL_RANK) return args_local_rank(state, arg, "cifar10_ddp or cifar10_deepspeed");
    if (key == DEVICE_IDS)
        read_ids(state, arg, p);
    else if (key == DEVICE)
        p->device = arg;
    else
        return ARGP_ERR_UNKNOWN;
    return 0;
}

static const struct argp_option options[] = {
    {"device", DEVICE, "NAME", 0, "cpu, or cuda: the GPUs of --device-ids (cpu)", 2},
    {"device-ids", DEVICE_IDS, "LIST", 0,
     "devices that share each batch, such as 0,1,2 (all GPUs); on a CPU only their number matters "
     "(0,1)",
     2},
    ARGS_LOCAL_RANK(LOCAL_RANK),
    {0}};

static const TrainingUsage usage = {
    .about = "Train the tutorial's network on CIFAR-10 with DataParallel: one process, several "
             "replicas.",
    .batch_size = "images in a batch, over all devices (4)",
    .threads = "threads of the kernels, divided among the devices (one each)",
    .more = options,
    .parse = parse};

/* ---- training ---------------------------------------------------------------------------------------- */

static ds_module *make_replica(void *arg)
{
    (void)arg;
    return net_new();
}

static double step(void *program, const ds_batch *b)
{
    Program *p = program;
    ds_optim_zero_grad(p->t.sgd);
    ds_tensor *loss = ds_cross_entropy(ds_data_parallel_call(p->parallel, b->x), b->y);
    ds_backward(loss);
    if (!ds_error()) ds_optim_step(p->t.sgd);
    return ds_item(loss);
}

/* The model, its batches and its optimizer are on the first GPU. */
static ds_status choose_devices(Program *p)
{
    ds_device device;
    bool gpus = !strcmp(p->device, "cuda");
    if (!gpus && ds_device_parse(p->device, &device) != DS_OK) return ds_error_status();
    if (!gpus && device.kind == DS_CUDA)
        return ds_fail(DS_EINVAL, "--device %s: expected cpu or cuda; --device-ids chooses GPUs",
                       p->device);
    if (!p->replicas) {
        p->replicas = gpus ? ds_device_count(DS_CUDA) : 2;
        for (int i = 0; i < p->replicas && i < MAX_IDS; i++) p->ids[i] = i;
    }
    return gpus ? ds_set_device((ds_device){DS_CUDA, p->ids[0]}) : DS_OK;
}

static void run(Program *p)
{
    Training *t = &p->t;
    if (ds_set_threads((int)t->threads) != DS_OK || training_check(t) != DS_OK ||
        choose_devices(p) != DS_OK)
        return;
    ds_seed((uint64_t)t->seed);
    t->train = ds_loader_new(source_open(&t->source, DS_TRAIN, t->quiet), t->batch_size,
                             .shuffle = !t->source.no_shuffle, .workers = (int)t->source.workers,
                             .seed = (uint64_t)t->seed);
    if (!t->no_eval && !ds_error())
        t->test = ds_loader_new(source_open(&t->source, DS_TEST, true), 100);
    if (ds_error()) return;
    t->net = net_new();
    bool gpus = ds_current_device().kind == DS_CUDA;
    if (gpus && p->replicas > 1 && !t->quiet) printf("Let's use %d GPUs!\n", p->replicas);
    p->parallel = ds_data_parallel_new_with(
        t->net, p->replicas, make_replica, NULL,
        (ds_data_parallel_opts){.device_ids = gpus ? p->ids : NULL});
    t->sgd = ds_optim_sgd(t->net, t->lr, .momentum = t->momentum);
    training_load(t);
    if (!ds_error()) training_run(t, step, p);
    training_test(t);
}

int main(int argc, char **argv)
{
    Program p = {.device = "cpu"};
    training_options(&p.t, &usage, argc, argv);
    run(&p);
    ds_data_parallel_free(p.parallel);
    return training_end(&p.t, "cifar10_dataparallel");
}
