/* examples/cifar10/ddp.c: the tutorial with DistributedDataParallel: one
 * process a rank, each with a part of the images. Gradients are averaged while
 * backward runs.
 *
 *     mpirun -n 4 cifar10_ddp --epochs 2
 *     deepspeed --num_gpus 2 cifar10_ddp --device cuda
 *
 * SPDX-License-Identifier: MIT */
#include "args.h"
#include "training.h"

__attribute__((__visibility__("default")))
const char *argp_program_version = "cifar10_ddp (deepspeed.c) " DS_VERSION;

typedef struct Program {
    Training t;
    ds_ddp *ddp;
    ds_step_graph *graph; /* of train_step */
    const char *device;
} Program;

/* ---- options ----------------------------------------------------------------------------------------- */

enum { LOCAL_RANK = TRAINING_OWN_KEYS, DEVICE };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Training *t = state->input; /* the first member of a Program */
    if (key == DEVICE)
        ((Program *)t)->device = arg;
    else if (key == LOCAL_RANK)
        args_int(state, "local-rank", arg, -1, 1000000);
    else
        return ARGP_ERR_UNKNOWN;
    return 0;
}

static const struct argp_option options[] = {
    {"device", DEVICE, "NAME", 0,
     "cpu, cuda (the GPU with the number of the local rank) or cuda:N (cpu)", 2},
    {"local-rank", LOCAL_RANK, "N", 0,
     "appended by launchers, and ignored: the communicator has it", 2},
    {0}};

static const TrainingUsage usage = {
    .about = "Train the tutorial's network on CIFAR-10 with DistributedDataParallel, under mpirun "
             "or alone.",
    .batch_size = "images in a batch of one rank (4)",
    .threads = "threads of the kernels, of one rank (1)",
    .more = options,
    .parse = parse};

/* ---- training ---------------------------------------------------------------------------------------- */

static ds_loader *load_data(const Training *t, ds_split split, int64_t batch)
{
    bool train = split == DS_TRAIN;
    ds_comm *world = ds_world();
    return ds_loader_new(source_open_on_ranks(&t->source, split, t->quiet || !train), batch,
                         .shuffle = train && !t->source.no_shuffle,
                         .workers = train ? (int)t->source.workers : 0, .rank = ds_comm_rank(world),
                         .ranks = ds_comm_size(world), .seed = (uint64_t)t->seed);
}

/* Forward, backward, update: the loss. On a GPU with NCCL, ds_step_graph_run
 * records it and launches it as one graph, with the sums over the ranks. */
static ds_tensor *train_step(void *program, ds_tensor *const *batch, int n)
{
    Program *p = program;
    (void)n;
    ds_optim_zero_grad(p->t.sgd);
    ds_tensor *loss = ds_cross_entropy(ds_ddp_call(p->ddp, batch[0]), batch[1]);
    if (ds_ddp_backward(p->ddp, loss) == DS_OK) ds_optim_step(p->t.sgd);
    return loss;
}

static double step(void *program, const ds_batch *b)
{
    Program *p = program;
    return ds_item(ds_step_graph_run(p->graph, (ds_tensor *const[]){b->x, b->y}, 2));
}

static void run(Program *p)
{
    Training *t = &p->t;
    ds_device device;
    if (ds_init_distributed() != DS_OK) return;
    t->first = ds_comm_rank(ds_world()) == 0;
    ds_status status = ds_set_threads((int)t->threads);
    if (status == DS_OK) status = ds_device_parse(p->device, &device);
    if (status == DS_OK) status = ds_set_device(device);
    if (status == DS_OK) status = training_check(t);
    if (ds_comm_sync_status(NULL, status) != DS_OK) return;
    ds_seed((uint64_t)t->seed);
    t->train = load_data(t, DS_TRAIN, t->batch_size);
    if (!t->no_eval && !ds_error()) t->test = load_data(t, DS_TEST, 100);
    if (ds_error()) return;
    t->net = net_new();
    p->ddp = ds_ddp_new(t->net);
    p->graph = ds_step_graph_new(train_step, p);
    t->sgd = ds_optim_sgd(t->net, t->lr, .momentum = t->momentum);
    training_load(t);
    if (ds_comm_sync_status(NULL, ds_error_status()) == DS_OK) training_run(t, step, p);
    training_test(t);
}

int main(int argc, char **argv)
{
    Program p = {.device = "cpu"};
    training_options(&p.t, &usage, argc, argv);
    run(&p);
    ds_step_graph_free(p.graph);
    ds_ddp_free(p.ddp);
    int status = training_end(&p.t, "cifar10_ddp");
    ds_destroy_process_group();
    return status;
}
