/* examples/cifar10/dataparallel.c: the tutorial with DataParallel: one process
 * divides each batch among replicas of the network. --device_ids lists devices;
 * on the CPU each id is a replica with its own threads.
 * SPDX-License-Identifier: MIT */
#include "args.h"
#include "training.h"

#include <stdlib.h>

const char *argp_program_version = "cifar10_dataparallel (deepspeed.c) " DS_VERSION;

typedef struct Program {
    Training t; /* first member: parse gets its address as the program's */
    int replicas;
    ds_data_parallel *parallel;
} Program;

/* ---- options ----------------------------------------------------------------------------------------- */

enum { DEVICE_IDS = TRAINING_OWN_KEYS, LOCAL_RANK };

#define MAX_IDS 64

/* The number of ids in a list such as "0,1": different integers. */
static int count_ids(struct argp_state *state, const char *list)
{
    bool used[MAX_IDS] = {false};
    int n = 0;
    for (const char *at = list; n == 0 || *at++ == ',';) {
        char *end;
        long id = strtol(at, &end, 10);
        bool number = *at >= '0' && *at <= '9' && (!*end || *end == ',');
        if (!number || id >= MAX_IDS || used[id])
            argp_error(state,
                       "--device-ids: \"%s\": expected different numbers below %d, such as 0,1",
                       list, MAX_IDS);
        used[id] = true;
        n++;
        at = end;
    }
    return n;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Program *p = state->input;
    if (key == LOCAL_RANK) return args_local_rank(state, arg, "cifar10_ddp or cifar10_deepspeed");
    if (key != DEVICE_IDS) return ARGP_ERR_UNKNOWN;
    p->replicas = count_ids(state, arg);
    return 0;
}

static const struct argp_option options[] = {
    {"device-ids", DEVICE_IDS, "LIST", 0,
     "devices that share each batch, such as 0,1,2 (0,1); on a CPU only their number matters", 2},
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

static void run(Program *p)
{
    Training *t = &p->t;
    if (ds_set_threads((int)t->threads) != DS_OK || training_check_save(t) != DS_OK) return;
    ds_seed((uint64_t)t->seed);
    t->train = ds_loader_new(source_open(&t->source, DS_TRAIN, t->quiet), t->batch_size,
                             .shuffle = !t->source.no_shuffle, .workers = (int)t->source.workers,
                             .seed = (uint64_t)t->seed);
    if (!t->no_eval && !ds_error())
        t->test = ds_loader_new(source_open(&t->source, DS_TEST, true), 100);
    if (ds_error()) return;
    t->net = net_new();
    p->parallel = ds_data_parallel_new(t->net, p->replicas, make_replica, NULL);
    t->sgd = ds_optim_sgd(t->net, t->lr, .momentum = t->momentum);
    training_load(t);
    if (!ds_error()) training_run(t, step, p);
    training_test(t);
}

int main(int argc, char **argv)
{
    Program p = {.replicas = 2};
    training_options(&p.t, &usage, argc, argv);
    run(&p);
    ds_data_parallel_free(p.parallel);
    return training_end(&p.t, "cifar10_dataparallel");
}
