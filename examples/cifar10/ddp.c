/* examples/cifar10/ddp.c: the tutorial with DistributedDataParallel: one process a rank, each with its share of
 * the images, gradients averaged while backward runs.
 *
 *     mpirun -n 4 cifar10_ddp --epochs 2
 *
 * SPDX-License-Identifier: MIT */
#include "args.h"
#include "classify.h"
#include "source.h"
#include "trace.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *argp_program_version = "cifar10_ddp (deepspeed.c) " DS_VERSION;

typedef struct Options {
    Source source;
    const char *trace, *folder;
    int64_t epochs, batch_size, threads, max_steps, log_interval, save_step_interval;
    double lr, momentum;
    uint64_t seed;
    bool no_eval, quiet;
} Options;

/* ---- options ----------------------------------------------------------------------------------------- */

enum {
    EPOCHS = 256,
    BATCH_SIZE,
    LR,
    MOMENTUM,
    SEED,
    THREADS,
    MAX_STEPS,
    SAVE_STEP_INTERVAL,
    SAVE_DIR,
    NO_EVAL,
    TRACE,
    LOG_INTERVAL,
    LOCAL_RANK,
    QUIET
};

static const struct argp_option options[] = {
    {0, 0, 0, 0, "Training:", 2},
    {"epochs", EPOCHS, "N", 0, "passes over the training images (2)", 0},
    {"batch-size", BATCH_SIZE, "N", 0, "images in a batch of one rank (4)", 0},
    {"lr", LR, "X", 0, "learning rate of SGD (0.001)", 0},
    {"momentum", MOMENTUM, "X", 0, "momentum of SGD (0.9)", 0},
    {"seed", SEED, "N", 0, "seed of initial weights and shuffling (0)", 0},
    {"max-steps", MAX_STEPS, "N", 0, "stop after N steps", 0},
    {"threads", THREADS, "N", 0, "threads of the kernels, of one rank (1)", 0},
    {"local-rank", LOCAL_RANK, "N", 0, "which launchers append: the communicator knows it", 0},
    {0, 0, 0, 0, "Results:", 3},
    {"save-step-interval", SAVE_STEP_INTERVAL, "N", 0,
     "write cifar_net_step_K.safetensors every N steps, on rank 0", 0},
    {"save-dir", SAVE_DIR, "DIR", 0, "where (the current folder)", 0},
    {"no-eval", NO_EVAL, 0, 0, "only train, without testing", 0},
    {"trace", TRACE, "FILE", 0, "write step,loss,lr,grad_norm of every step of rank 0 (.csv)", 0},
    {"log-interval", LOG_INTERVAL, "N", 0, "print the mean loss every N steps (2000)", 0},
    {"quiet", QUIET, 0, 0, "print only the accuracy", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Options *o = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->source;
        return 0;
    case EPOCHS:
        o->epochs = args_int(state, "epochs", arg, 0, 1000000000);
        return 0;
    case BATCH_SIZE:
        o->batch_size = args_int(state, "batch-size", arg, 1, 1000000000);
        return 0;
    case LR:
        o->lr = args_double(state, "lr", arg, 0, HUGE_VAL);
        return 0;
    case MOMENTUM:
        o->momentum = args_double(state, "momentum", arg, 0, HUGE_VAL);
        return 0;
    case SEED:
        o->seed = (uint64_t)args_int(state, "seed", arg, 0, INT64_MAX);
        return 0;
    case THREADS:
        o->threads = args_int(state, "threads", arg, 1, 1024);
        return 0;
    case MAX_STEPS:
        o->max_steps = args_int(state, "max-steps", arg, 0, INT64_MAX);
        return 0;
    case SAVE_STEP_INTERVAL:
        o->save_step_interval = args_int(state, "save-step-interval", arg, 1, INT64_MAX);
        return 0;
    case SAVE_DIR:
        o->folder = arg;
        return 0;
    case LOG_INTERVAL:
        o->log_interval = args_int(state, "log-interval", arg, 1, INT64_MAX);
        return 0;
    case LOCAL_RANK:
        args_int(state, "local-rank", arg, -1, 1000000);
        return 0;
    case TRACE:
        o->trace = arg;
        return 0;
    case NO_EVAL:
        o->no_eval = true;
        return 0;
    case QUIET:
        o->quiet = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument \"%s\"", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static Options read_options(int argc, char **argv)
{
    static const struct argp_child children[] = {{&source_argp, 0, "Data:", 1}, {0}};
    static const struct argp argp = {options,
                                     parse,
                                     NULL,
                                     "Train the tutorial's network on CIFAR-10 with "
                                     "DistributedDataParallel, under mpirun or alone.",
                                     children,
                                     NULL,
                                     NULL};
    Options o = {.epochs = 2,
                 .batch_size = 4,
                 .lr = 0.001,
                 .momentum = 0.9,
                 .threads = 1,
                 .max_steps = -1,
                 .log_interval = 2000,
                 .folder = "."};
    if (args_parse(&argp, argc, argv, &o) != 0) exit(2);
    return o;
}

/* ---- one program ------------------------------------------------------------------------------------- */

typedef struct Program {
    Options o;
    ds_loader *train, *test;
    ds_module *net;
    ds_ddp *ddp;
    ds_optim *sgd;
    FILE *trace;
    bool first; /* rank 0, which prints and saves */
    int64_t step;
} Program;

/* Rank 0 fetches the data while the others wait; they find it there. */
static ds_loader *load_data(const Program *p, ds_split split, int64_t batch)
{
    ds_comm *world = ds_world();
    if (!p->first && ds_barrier(world) != DS_OK) return NULL;
    ds_dataset *d = source_open(&p->o.source, split, p->o.quiet || !p->first);
    if (d && p->first && ds_barrier(world) != DS_OK) {
        ds_dataset_free(d);
        return NULL;
    }
    bool train = split == DS_TRAIN;
    return ds_loader_new(d, batch, .shuffle = train && !p->o.source.no_shuffle,
                         .workers = train ? (int)p->o.source.workers : 0,
                         .rank = ds_comm_rank(world), .ranks = ds_comm_size(world),
                         .seed = p->o.seed);
}

/* cifar_net_step_K: what a run needs to go on: epoch, loss, weights, the optimizer's state. */
static void save_step(const Program *p, int64_t epoch, double loss)
{
    char path[4096], name[512];
    ds_scope *scope = ds_scope_open();
    ds_state *all = ds_state_new(), *net = ds_module_state(p->net), *sgd = ds_optim_state(p->sgd);
    ds_state_set(all, "epoch", ds_scalar(DS_I64, (double)epoch));
    ds_state_set(all, "loss", ds_scalar(DS_F64, loss));
    for (int i = 0; i < ds_state_len(net); i++) {
        snprintf(name, sizeof name, "model_state_dict.%s", ds_state_name(net, i));
        ds_state_set(all, name, ds_state_at(net, i));
    }
    for (int i = 0; i < ds_state_len(sgd); i++) {
        snprintf(name, sizeof name, "optimizer_state_dict.%s", ds_state_name(sgd, i));
        ds_state_set(all, name, ds_state_at(sgd, i));
    }
    snprintf(path, sizeof path, "%s/cifar_net_step_%lld.safetensors", p->o.folder,
             (long long)p->step);
    if (!ds_error() && ds_save(all, path) == DS_OK && !p->o.quiet) printf("Saved %s\n", path);
    ds_state_free(all), ds_state_free(net), ds_state_free(sgd);
    ds_scope_close(scope);
}

/* ---- training ------------------------------------------------------------------------------------------ */

static bool more_steps(const Program *p) { return p->o.max_steps < 0 || p->step < p->o.max_steps; }

static double train_step(Program *p, const ds_batch *b, int64_t epoch)
{
    ds_optim_zero_grad(p->sgd);
    ds_tensor *loss = ds_cross_entropy(ds_ddp_call(p->ddp, b->x), b->y);
    ds_ddp_backward(p->ddp, loss);
    double value = ds_item(loss);
    p->step++;
    if (p->trace)
        fprintf(p->trace, "%lld,%.9g,%.9g,%.9g\n", (long long)p->step, value, ds_optim_lr(p->sgd),
                ds_grad_norm(p->net));
    if (!ds_error()) ds_optim_step(p->sgd);
    if (p->first && p->o.save_step_interval && p->step % p->o.save_step_interval == 0 &&
        !ds_error())
        save_step(p, epoch, value);
    return value;
}

static void train_epoch(Program *p, int64_t epoch)
{
    double running = 0;
    ds_batch b;
    for (int64_t i = 0; more_steps(p) && ds_loader_next(p->train, &b); i++) {
        running += train_step(p, &b, epoch);
        if (i % p->o.log_interval != p->o.log_interval - 1) continue;
        if (p->first && !p->o.quiet)
            printf("[%lld, %5lld] loss: %.3f\n", (long long)epoch + 1, (long long)i + 1,
                   running / (double)p->o.log_interval);
        fflush(stdout);
        running = 0;
    }
}

static void train(Program *p)
{
    if (p->first) p->trace = trace_open(p->o.trace, "step,loss,lr,grad_norm");
    for (int64_t epoch = 0; epoch < p->o.epochs && more_steps(p) && !ds_error(); epoch++)
        train_epoch(p, epoch);
    ds_loader_stop(p->train);
    trace_close(p->trace, p->o.trace);
    if (!ds_error() && p->first && !p->o.quiet) printf("Finished Training\n");
}

static void test(Program *p)
{
    if (p->o.no_eval || ds_error()) return;
    Accuracy a = evaluate(p->net, p->test);
    if (ds_error() || !p->first) return;
    print_accuracy(&a);
    print_accuracy_by_class(&a);
}

static void run(Program *p)
{
    if (ds_init_distributed() != DS_OK || ds_set_threads((int)p->o.threads) != DS_OK) return;
    p->first = ds_comm_rank(ds_world()) == 0;
    ds_seed(p->o.seed);
    p->train = load_data(p, DS_TRAIN, p->o.batch_size);
    if (!p->o.no_eval && !ds_error()) p->test = load_data(p, DS_TEST, 100);
    if (ds_error()) return;
    p->net = net_new();
    p->ddp = ds_ddp_new(p->net);
    p->sgd = ds_optim_sgd(p->net, p->o.lr, .momentum = p->o.momentum);
    if (!ds_error()) train(p);
    test(p);
}

int main(int argc, char **argv)
{
    Program p = {.o = read_options(argc, argv)};
    run(&p);
    if (fflush(stdout) != 0 && !ds_error()) ds_fail(DS_EIO, "standard output: %s", strerror(errno));
    if (ds_error()) fprintf(stderr, "cifar10_ddp: %s\n", ds_error());
    ds_ddp_free(p.ddp);
    ds_optim_free(p.sgd);
    ds_module_free(p.net);
    ds_loader_free(p.train);
    ds_loader_free(p.test);
    int status = ds_error() != NULL;
    ds_destroy_process_group();
    return status;
}
