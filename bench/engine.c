/* bench/engine.c: the cost of the engine over the plain loop: the tutorial's
 * network, AdamW, clipping at 1.0; forward, loss, backward, step, both written
 * as in a user's program, on the same batch.
 *
 * Both run in alternating blocks of steps, so that load of the machine affects
 * both; the result is the median of the blocks. Prints one line of JSON.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "classify.h"
#include "median.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct Options {
    int batch, steps, blocks;
    const char *dtype;
} Options;

static const struct argp_option options[] = {
    {"batch", 'b', "N", 0, "samples a step (4)", 0},
    {"steps", 's', "N", 0, "steps of a block (200)", 0},
    {"blocks", 'n', "N", 0, "blocks of each of the two (41)", 0},
    {"dtype", 'd', "TYPE", 0, "of the engine's model: fp32, fp16, bf16 (fp32)", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Options *o = state->input;
    if (key == 'd') {
        o->dtype = arg;
        return 0;
    }
    if (key != 'b' && key != 's' && key != 'n') return ARGP_ERR_UNKNOWN;
    int n = atoi(arg);
    if (n < 1) argp_error(state, "\"%s\": expected a number of 1 or more", arg);
    *(key == 'b' ? &o->batch : key == 's' ? &o->steps : &o->blocks) = n;
    return 0;
}

static double plain_block(ds_module *net, ds_optim *adamw, ds_tensor *x, ds_tensor *y, int steps)
{
    double begin = dsi_now();
    for (int i = 0; i < steps; i++) {
        ds_scope *turn = ds_scope_open();
        ds_optim_zero_grad(adamw);
        ds_tensor *loss = ds_cross_entropy(ds_call(net, x), y);
        ds_backward(loss);
        ds_clip_grad_norm(net, 1.0, 2);
        ds_optim_step(adamw);
        ds_item(loss);
        ds_scope_close(turn);
    }
    return (dsi_now() - begin) / steps;
}

static double engine_block(ds_engine *engine, ds_tensor *x, ds_tensor *y, int steps)
{
    double begin = dsi_now();
    for (int i = 0; i < steps; i++) {
        ds_scope *turn = ds_scope_open();
        ds_tensor *loss = ds_cross_entropy(ds_engine_forward(engine, x), y);
        ds_engine_backward(engine, loss);
        ds_engine_step(engine);
        ds_item(loss);
        ds_scope_close(turn);
    }
    return (dsi_now() - begin) / steps;
}

static ds_engine *make_engine(const Options *o)
{
    char config[512];
    snprintf(config, sizeof config,
             "{\"train_batch_size\": %d, \"gradient_clipping\": 1.0, \"fp16\": {\"enabled\": %s},"
             " \"bf16\": {\"enabled\": %s}, \"optimizer\": {\"type\": \"Adam\", \"params\": "
             "{\"lr\": 0.001,"
             " \"betas\": [0.8, 0.999], \"eps\": 1e-8, \"weight_decay\": 3e-7}}}",
             o->batch, o->dtype[0] == 'f' && o->dtype[2] == '1' ? "true" : "false",
             o->dtype[0] == 'b' ? "true" : "false");
    return ds_initialize(.model = net_new(), .config = config);
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        options, parse, NULL, "Cost of the engine over the plain loop.", NULL, NULL, NULL};
    Options o = {4, 200, 41, "fp32"};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return 2;
    ds_module *net = net_new();
    ds_optim *adamw = ds_optim_adamw(net, 0.001, .beta1 = 0.8, .beta2 = 0.999,
                                     .weight_decay = 3e-7);
    ds_engine *engine = make_engine(&o);
    double *plain = calloc((size_t)o.blocks, sizeof *plain),
           *with = calloc((size_t)o.blocks, sizeof *with);
    ds_tensor *x = ds_keep(ds_rand(DS_F32, ds_shape(o.batch, 3, 32, 32)));
    ds_tensor *cast = ds_keep(engine ? ds_cast(x, ds_engine_dtype(engine)) : NULL);
    ds_tensor *y = ds_keep(ds_randint(DS_I64, 0, 10, ds_shape(o.batch)));
    for (int k = -1; k < o.blocks && plain && with && !ds_error();
         k++) { /* the first is a warm-up */
        double a = plain_block(net, adamw, x, y, o.steps),
               b = engine_block(engine, cast, y, o.steps);
        if (k >= 0) plain[k] = a, with[k] = b;
    }
    if (ds_error()) {
        fprintf(stderr, "bench_engine: %s\n", ds_error());
    } else {
        double a = 1e6 * median(plain, o.blocks), b = 1e6 * median(with, o.blocks);
        printf("{\"bench\": \"engine\", \"batch\": %d, \"dtype\": \"%s\", \"plain_us\": %.2f, "
               "\"engine_us\": %.2f, "
               "\"ratio\": %.4f}\n",
               o.batch, o.dtype, a, b, b / a);
    }
    free(plain);
    free(with);
    ds_drop(x), ds_drop(cast), ds_drop(y);
    ds_engine_free(engine);
    ds_optim_free(adamw);
    ds_module_free(net);
    return ds_error() != NULL;
}
