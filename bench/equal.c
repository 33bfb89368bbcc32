/* bench/equal.c: compares training on several ranks with one rank: each ZeRO
 * stage, for some steps on the same global batches. Prints the largest
 * difference of a parameter, relative to the largest parameter. Ranks are
 * threads of this process, or those of mpirun.
 *
 * "plain": the mean over ranks is rounded in another place than on one rank,
 * and later steps amplify that; all stages have the same bits. "deterministic"
 * (the key of zero_optimization): 1, 2, 4, 8, ... ranks have the same bits.
 * Fails if a stage has other bits than it should, if plain differs by more than
 * --most, or if deterministic differs on a power of two of ranks. With several
 * micro steps, stages 2 and 3 add sums over ranks, while stages 0 and 1 add
 * micro steps first, which rounds differently; stage 3 is then compared with
 * stage 2.
 * SPDX-License-Identifier: MIT */
#include <deepspeed.h>

#include <argp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTH = 48,
    HIDDEN = 40,
    CLASSES = 10,
    ROOM = WIDTH * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES
};

typedef struct Options {
    int ranks, steps, global;
    const char *optim, *device;
    double most;
} Options;

static const struct argp_option options[] = {
    {"ranks", 'n', "N", 0, "without mpirun (4)", 0},
    {"steps", 's', "N", 0, "steps (100)", 0},
    {"global", 'g', "N", 0, "samples of a global batch (192)", 0},
    {"device", 'd', "DEVICE", 0, "cpu, cuda (a GPU a rank), or cuda:0, which all ranks share (cpu)",
     0},
    {"optim", 'o', "TYPE", 0, "SGD or AdamW (SGD)", 0},
    {"most", 'm', "X", 0, "difference that plain may have (1e-6)", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Options *o = state->input;
    int *const number = key == 'n'   ? &o->ranks
                        : key == 's' ? &o->steps
                        : key == 'g' ? &o->global
                                     : NULL;
    if (number && (*number = atoi(arg)) < 1)
        argp_error(state, "-%c %s: expected a number", key, arg);
    if (key == 'd') o->device = arg;
    if (key == 'o') o->optim = arg;
    if (key == 'm') o->most = atof(arg);
    return number || key == 'd' || key == 'o' || key == 'm' ? 0 : ARGP_ERR_UNKNOWN;
}

static ds_module *net_new(void)
{
    ds_seed(7);
    ds_module *net = ds_nn_sequential(NULL, "net");
    ds_nn_linear(net, "fc1", WIDTH, HIDDEN);
    ds_nn_relu(net, "relu");
    ds_nn_linear(net, "fc2", HIDDEN, CLASSES);
    return net;
}

static ds_dataset *samples(const Options *o)
{
    ds_seed(3);
    ds_tensor *x[] = {ds_randn(DS_F32, ds_shape(4 * o->global, WIDTH)),
                      ds_randint(DS_I64, 0, CLASSES, ds_shape(4 * o->global))};
    return ds_tensor_dataset(x, 2);
}

static ds_engine *engine_new(const Options *o, ds_comm *comm, int micro, int stage,
                             bool deterministic)
{
    char config[1000];
    snprintf(
        config, sizeof config,
        "{\"train_batch_size\": %d, \"train_micro_batch_size_per_gpu\": %d, "
        "\"gradient_clipping\": 1.0, \"zero_allow_untested_optimizer\": true, "
        "\"optimizer\": {\"type\": \"%s\", \"params\": {\"lr\": %s}}, "
        "\"zero_optimization\": {\"stage\": %d, \"deterministic\": %s, \"overlap_comm\": true, "
        "\"reduce_bucket_size\": 1000, \"stage3_param_persistence_threshold\": 100}}",
        o->global, micro, o->optim, strcmp(o->optim, "SGD") ? "0.001" : "0.05", stage,
        deterministic ? "true" : "false");
    return ds_initialize(.model = net_new(), .config = config, .comm = comm,
                         .training_data = samples(o));
}

/* The parameters after the steps, in x on every rank. */
static ds_status train(const Options *o, ds_comm *comm, int micro, int stage, bool deterministic,
                       float *x)
{
    ds_scope *scope = ds_scope_open();
    ds_engine *e = engine_new(o, comm, micro, stage, deterministic);
    ds_loader *loader = e ? ds_engine_loader(e) : NULL;
    ds_batch batch;
    while (loader && !ds_error() && ds_engine_global_steps(e) < o->steps) {
        if (!ds_loader_next(loader, &batch)) continue; /* the next epoch */
        ds_tensor *y = ds_engine_forward(e, batch.x);
        if (ds_engine_backward(e, ds_cross_entropy(y, batch.y)) == DS_OK) ds_engine_step(e);
    }
    ds_state *state = e && !ds_error() ? ds_engine_state(e, true) : NULL;
    for (int i = 0, n = 0; i < ds_state_len(state); i++) {
        ds_tensor *p = ds_state_at(state, i);
        memcpy(x + n, ds_data(p), (size_t)ds_numel(p) * sizeof *x);
        n += (int)ds_numel(p);
    }
    ds_state_free(state);
    ds_engine_free(e);
    ds_scope_close(scope);
    return ds_error_status();
}

static double difference(const float *a, const float *b)
{
    double most = 0, largest = 0;
    for (int i = 0; i < ROOM; i++) {
        most = fmax(most, fabs((double)a[i] - b[i]));
        largest = fmax(largest, fabs(b[i]));
    }
    return most / largest;
}

/* "cuda" of a rank that is a thread is the GPU of its number too. */
static ds_status rank_device(const Options *o)
{
    ds_device device;
    if (ds_device_parse(o->device, &device) != DS_OK) return ds_error_status();
    bool thread = !strcmp(ds_comm_backend(ds_world()), "thread");
    if (thread && !strcmp(o->device, "cuda")) device.index = ds_comm_rank(NULL);
    return ds_set_device(device);
}

static ds_status run(void *arg)
{
    const Options *o = arg;
    if (rank_device(o) != DS_OK) return ds_error_status();
    ds_comm *world = ds_world(), *alone = ds_comm_split(world, ds_comm_rank(world), 0);
    int ranks = ds_comm_size(world), micro = o->global / 64 < 1 || o->global % 64 || 64 % ranks
                                                 ? o->global / ranks
                                                 : o->global / 64;
    bool two = !(ranks & (ranks - 1)), good = o->global % (micro * ranks) == 0;
    static _Thread_local float want[ROOM], first[ROOM], got[ROOM];
    if (!good) ds_fail(DS_EINVAL, "%d samples are not equal parts of %d ranks", o->global, ranks);
    for (int fixed = 0, kind = 0; fixed < 2 && !ds_error(); fixed++) {
        train(o, alone, micro, 0, fixed, want);
        for (int stage = 0; stage <= 3 && !ds_error(); stage++) {
            bool begins = stage == 0 || (stage == 2 && !fixed && micro * ranks < o->global);
            train(o, world, micro, stage, fixed, got);
            if (begins) memcpy(first, got, sizeof got), kind = stage;
            double d = difference(got, want);
            bool same = difference(got, first) == 0;
            good = good && same && (fixed ? !two || d == 0 : d <= o->most);
            if (ds_comm_rank(world) == 0 && !ds_error())
                printf("%-14s %2d ranks (%s)  stage %d  %d steps  beside one rank %-10.3g %s %d\n",
                       fixed ? "deterministic" : "plain", ranks, ds_comm_backend(world), stage,
                       o->steps, d, same ? "bits of stage" : "other bits than stage", kind);
        }
    }
    ds_comm_free(alone);
    if (!good && !ds_error()) ds_fail(DS_ESTATE, "ranks do not train as one does");
    return ds_error_status();
}

int main(int argc, char **argv)
{
    static const struct argp argp = {options, parse, NULL, "Whether many ranks train as one.",
                                     NULL,    NULL,  NULL};
    Options o = {
        .ranks = 4, .steps = 100, .global = 192, .optim = "SGD", .device = "cpu", .most = 1e-6};
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    setenv("DS_LOG", "error", 0);
    ds_status joined = ds_init_distributed();
    if (joined == DS_OK && ds_comm_size(ds_world()) > 1)
        run(&o);
    else if (joined == DS_OK)
        ds_run_ranks(o.ranks, run, &o);
    if (ds_error()) fprintf(stderr, "bench_equal: %s\n", ds_error());
    int status = ds_error() != NULL;
    ds_destroy_process_group();
    return status;
}
