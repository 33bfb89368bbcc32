/* bench/ddp.c: a training step on several ranks: DistributedDataParallel and
 * the stages of ZeRO, in samples a second over all ranks. Ranks are threads of
 * this process, or those of mpirun.
 *
 *     --net cifar    the tutorial's network (62 thousand parameters), SGD with momentum
 *     --net mlp      four layers of 1600 x 1600 (10 million), AdamW
 *
 * The kinds run in alternating blocks of steps, so that load of the machine
 * affects all; the result is the median of the blocks. "plain" is the loop
 * without any reduction, on as many ranks; the difference to it is the cost of
 * communication. "deterministic" is stage 2 with that key. Prints a line of
 * JSON for each kind.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "classify.h"
#include "median.h"
#include "mlp.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Options {
    int ranks, batch, steps, blocks;
    const char *net, *dtype;
} Options;

static const struct argp_option options[] = {
    {"ranks", 'r', "N", 0, "without mpirun (2)", 0},
    {"batch", 'b', "N", 0, "samples of a rank (4)", 0},
    {"steps", 's', "N", 0, "of a block (100)", 0},
    {"blocks", 'n', "N", 0, "of each kind (11)", 0},
    {"net", 'm', "NET", 0, "cifar or mlp (cifar)", 0},
    {"dtype", 'd', "TYPE", 0, "of the engines: fp32, fp16, bf16 (fp32)", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Options *o = state->input;
    int *const number = key == 'r'   ? &o->ranks
                        : key == 'b' ? &o->batch
                        : key == 's' ? &o->steps
                        : key == 'n' ? &o->blocks
                                     : NULL;
    if (key == 'm')
        o->net = arg;
    else if (key == 'd')
        o->dtype = arg;
    else if (!number)
        return ARGP_ERR_UNKNOWN;
    else if ((*number = atoi(arg)) < 1)
        argp_error(state, "\"%s\": expected a number of 1 or more", arg);
    return 0;
}

/* ---- networks ---------------------------------------------------------------------------------------------- */

enum { WIDTH = 1600, LAYERS = 4 };

static bool is_mlp(const Options *o) { return !strcmp(o->net, "mlp"); }

static ds_module *make_net(const Options *o)
{
    if (!is_mlp(o)) return net_new();
    ds_module *m = mlp_new(LAYERS - 1, WIDTH, ds_nn_relu);
    ds_nn_linear(m, "last", WIDTH, WIDTH);
    return m;
}

static ds_optim *make_optim(ds_module *m, const Options *o)
{
    return is_mlp(o) ? ds_optim_adamw(m, 1e-4) : ds_optim_sgd(m, 0.001, .momentum = 0.9);
}

/* ---- kinds ------------------------------------------------------------------------------------------------- */

enum { PLAIN, DDP, STAGE_0, FIXED = STAGE_0 + 4, KINDS };
static const char *const kind_name[KINDS] = {"plain",   "ddp",     "stage 0",      "stage 1",
                                             "stage 2", "stage 3", "deterministic"};

typedef struct Kind {
    ds_module *net; /* of plain and ddp */
    ds_optim *optim;
    ds_ddp *ddp;
    ds_engine *engine;
    double *seconds; /* [blocks], of a step */
} Kind;

static ds_engine *make_engine(const Options *o, int stage, bool deterministic)
{
    const char *form =
        "{\"train_batch_size\": %d, \"gradient_clipping\": 0, \"on_nan\": \"continue\","
        " \"zero_allow_untested_optimizer\": true, \"fp16\": {\"enabled\": %s},"
        " \"bf16\": {\"enabled\": %s}, \"optimizer\": {\"type\": \"%s\", \"params\": %s},"
        " \"zero_optimization\": {\"stage\": %d, \"overlap_comm\": true, \"deterministic\": %s,"
        " \"reduce_bucket_size\": 6553600, \"allgather_bucket_size\": 6553600}}";
    char config[1000];
    snprintf(config, sizeof config, form, o->batch * ds_comm_size(ds_world()),
             strcmp(o->dtype, "fp16") ? "false" : "true",
             strcmp(o->dtype, "bf16") ? "false" : "true", is_mlp(o) ? "AdamW" : "SGD",
             is_mlp(o) ? "{\"lr\": 0.0001}" : "{\"lr\": 0.001, \"momentum\": 0.9}", stage,
             deterministic ? "true" : "false");
    return ds_initialize(.model = make_net(o), .config = config);
}

static void make_kind(Kind *k, int kind, const Options *o)
{
    k->seconds = calloc((size_t)o->blocks, sizeof *k->seconds);
    if (kind >= STAGE_0) {
        k->engine = make_engine(o, kind == FIXED ? 2 : kind - STAGE_0, kind == FIXED);
        return;
    }
    k->net = make_net(o);
    if (kind == DDP) k->ddp = ds_ddp_new(k->net);
    k->optim = make_optim(k->net, o);
}

static void free_kind(Kind *k)
{
    free(k->seconds);
    ds_engine_free(k->engine);
    ds_ddp_free(k->ddp);
    ds_optim_free(k->optim);
    ds_module_free(k->net);
}

static void step(const Kind *k, ds_tensor *x, ds_tensor *y)
{
    ds_scope *turn = ds_scope_open();
    if (k->engine) {
        x = ds_cast(x, ds_engine_dtype(k->engine));
        ds_engine_backward(k->engine, ds_cross_entropy(ds_engine_forward(k->engine, x), y));
        ds_engine_step(k->engine);
    } else {
        ds_optim_zero_grad(k->optim);
        ds_tensor *out = k->ddp ? ds_ddp_call(k->ddp, x) : ds_call(k->net, x);
        ds_tensor *loss = ds_cross_entropy(out, y);
        if (k->ddp)
            ds_ddp_backward(k->ddp, loss);
        else
            ds_backward(loss);
        ds_optim_step(k->optim);
    }
    ds_scope_close(turn);
}

static double block(const Kind *k, ds_tensor *x, ds_tensor *y, int steps)
{
    ds_barrier(NULL);
    double begin = dsi_now();
    for (int i = 0; i < steps && !ds_error(); i++) step(k, x, y);
    ds_barrier(NULL);
    return (dsi_now() - begin) / steps;
}

/* ---- all of it ----------------------------------------------------------------------------------------------- */

static void print(Kind *kinds, const Options *o)
{
    int ranks = ds_comm_size(ds_world());
    double ddp = 0;
    for (int k = 0; k < KINDS; k++) {
        double middle = median(kinds[k].seconds, o->blocks);
        if (k == DDP) ddp = middle;
        printf("{\"bench\": \"ddp\", \"kind\": \"%s\", \"net\": \"%s\", \"dtype\": \"%s\","
               " \"backend\": \"%s\", \"ranks\": %d, \"batch\": %d, \"us_per_step\": %.1f,"
               " \"samples_per_s\": %.0f, \"beside_ddp\": %.3f}\n",
               kind_name[k], o->net, k < STAGE_0 ? "fp32" : o->dtype, ds_comm_backend(ds_world()),
               ranks, o->batch, 1e6 * middle, o->batch * ranks / middle,
               ddp > 0 ? middle / ddp : 0);
    }
}

static ds_status run(void *arg)
{
    const Options *o = arg;
    Kind kinds[KINDS] = {{0}};
    ds_scope *scope = ds_scope_open();
    ds_seed(1);
    for (int k = 0; k < KINDS && !ds_error(); k++) make_kind(&kinds[k], k, o);
    ds_tensor *x = is_mlp(o) ? ds_rand(DS_F32, ds_shape(o->batch, WIDTH))
                             : ds_rand(DS_F32, ds_shape(o->batch, 3, 32, 32));
    ds_tensor *y = ds_randint(DS_I64, 0, 10, ds_shape(o->batch));
    for (int i = -1; i < o->blocks && !ds_error(); i++) /* the first is a warm-up */
        for (int k = 0; k < KINDS && !ds_error(); k++) {
            double t = block(&kinds[k], x, y, o->steps);
            if (i >= 0) kinds[k].seconds[i] = t;
        }
    if (!ds_error() && ds_comm_rank(ds_world()) == 0) print(kinds, o);
    for (int k = 0; k < KINDS; k++) free_kind(&kinds[k]);
    ds_scope_close(scope);
    return ds_error_status();
}

int main(int argc, char **argv)
{
    static const struct argp argp = {options, parse, NULL, "DDP and ZeRO on several ranks, timed.",
                                     NULL,    NULL,  NULL};
    Options o = {2, 4, 100, 11, "cifar", "fp32"};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return 2;
    ds_init_distributed();
    if (ds_comm_size(ds_world()) > 1)
        run(&o);
    else
        ds_run_ranks(o.ranks, run, &o);
    if (ds_error()) fprintf(stderr, "bench_ddp: %s\n", ds_error());
    int status = ds_error() != NULL;
    ds_destroy_process_group();
    return status;
}
