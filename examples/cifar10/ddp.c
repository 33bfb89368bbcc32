/* examples/cifar10/ddp.c: the tutorial with DistributedDataParallel: one process a rank, each with its share of
 * the images, gradients averaged while backward runs.
 *
 *     mpirun -n 4 cifar10_ddp --epochs 2
 *
 * SPDX-License-Identifier: MIT */
#include "args.h"
#include "training.h"

#include <stdlib.h>

const char *argp_program_version = "cifar10_ddp (deepspeed.c) " DS_VERSION;

typedef struct Program {
    Training t;
    ds_ddp *ddp;
} Program;

/* ---- options ----------------------------------------------------------------------------------------- */

enum { BATCH_SIZE = 256, THREADS, LOCAL_RANK };

static const struct argp_option options[] = {
    {"batch-size", BATCH_SIZE, "N", 0, "images in a batch of one rank (4)", 2},
    {"threads", THREADS, "N", 0, "threads of the kernels, of one rank (1)", 2},
    {"local-rank", LOCAL_RANK, "N", 0, "which launchers append: the communicator knows it", 2},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Program *p = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &p->t;
        return 0;
    case BATCH_SIZE:
        p->t.batch_size = args_int(state, "batch-size", arg, 1, 1000000000);
        return 0;
    case THREADS:
        p->t.threads = args_int(state, "threads", arg, 1, 1024);
        return 0;
    case LOCAL_RANK:
        args_int(state, "local-rank", arg, -1, 1000000);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument \"%s\"", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&training_argp, 0, NULL, 0}, {0}};
static const struct argp argp = {options,
                                 parse,
                                 NULL,
                                 "Train the tutorial's network on CIFAR-10 with "
                                 "DistributedDataParallel, under mpirun or alone.",
                                 children,
                                 NULL,
                                 NULL};

/* ---- training ---------------------------------------------------------------------------------------- */

static ds_loader *load_data(const Training *t, ds_split split, int64_t batch)
{
    bool train = split == DS_TRAIN;
    ds_comm *world = ds_world();
    return ds_loader_new(source_open_on_ranks(&t->source, split, t->quiet || !train), batch,
                         .shuffle = train && !t->source.no_shuffle,
                         .workers = train ? (int)t->source.workers : 0, .rank = ds_comm_rank(world),
                         .ranks = ds_comm_size(world), .seed = t->seed);
}

static double step(void *program, const ds_batch *b)
{
    Program *p = program;
    ds_optim_zero_grad(p->t.sgd);
    ds_tensor *loss = ds_cross_entropy(ds_ddp_call(p->ddp, b->x), b->y);
    ds_ddp_backward(p->ddp, loss);
    if (!ds_error()) ds_optim_step(p->t.sgd);
    return ds_item(loss);
}

static void run(Program *p)
{
    Training *t = &p->t;
    if (ds_init_distributed() != DS_OK || ds_set_threads((int)t->threads) != DS_OK) return;
    t->first = ds_comm_rank(ds_world()) == 0;
    ds_seed(t->seed);
    t->train = load_data(t, DS_TRAIN, t->batch_size);
    if (!t->no_eval && !ds_error()) t->test = load_data(t, DS_TEST, 100);
    if (ds_error()) return;
    t->net = net_new();
    p->ddp = ds_ddp_new(t->net);
    t->sgd = ds_optim_sgd(t->net, t->lr, .momentum = t->momentum);
    if (!ds_error()) training_run(t, step, p);
    training_test(t);
}

int main(int argc, char **argv)
{
    Program p = {.ddp = NULL};
    if (args_parse(&argp, argc, argv, &p) != 0) exit(2);
    run(&p);
    ds_ddp_free(p.ddp);
    int status = training_end(&p.t, "cifar10_ddp");
    ds_destroy_process_group();
    return status;
}
