/* bench/dataparallel.c: the speed-up by DataParallel: the tutorial's network,
 * SGD with momentum, the same total batch on one thread and divided among
 * replicas, one thread each.
 *
 *     DS_BENCH_CORE=2,3 bench/run dataparallel
 *
 * Both run in alternating blocks of steps, so that load of the machine affects
 * both; the result is the median of the blocks. Prints a line of JSON for each
 * batch size.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "classify.h"
#include "median.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct Options {
    int batch, replicas, samples, blocks;
} Options;

static const struct argp_option options[] = {
    {"batch", 'b', "N", 0, "samples a step, in all (64, then 256)", 0},
    {"replicas", 'r', "N", 0, "replicas (2)", 0},
    {"samples", 's', "N", 0, "samples of a block (6400)", 0},
    {"blocks", 'n', "N", 0, "blocks of each of the two (21)", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Options *o = state->input;
    if (key != 'b' && key != 'r' && key != 's' && key != 'n') return ARGP_ERR_UNKNOWN;
    int n = atoi(arg);
    if (n < 1) argp_error(state, "\"%s\": expected a number of 1 or more", arg);
    *(key == 'b'   ? &o->batch
      : key == 'r' ? &o->replicas
      : key == 's' ? &o->samples
                   : &o->blocks) = n;
    return 0;
}

static ds_module *make_replica(void *arg)
{
    (void)arg;
    return net_new();
}

typedef struct Side {
    ds_module *net;
    ds_optim *sgd;
    ds_data_parallel *dp; /* NULL: the plain loop */
    double *rate;         /* samples a second, of each block */
} Side;

static Side side_new(int replicas, int blocks)
{
    Side s = {.net = net_new(), .rate = calloc((size_t)blocks, sizeof(double))};
    if (replicas > 1) s.dp = ds_data_parallel_new(s.net, replicas, make_replica, NULL);
    s.sgd = ds_optim_sgd(s.net, 0.001, .momentum = 0.9);
    return s;
}

static void side_free(Side *s)
{
    ds_data_parallel_free(s->dp);
    ds_optim_free(s->sgd);
    ds_module_free(s->net);
    free(s->rate);
}

static double block(const Side *s, ds_tensor *x, ds_tensor *y, int samples)
{
    int steps = samples / (int)ds_size(x, 0) + 1;
    double begin = dsi_now();
    for (int i = 0; i < steps; i++) {
        ds_scope *turn = ds_scope_open();
        ds_optim_zero_grad(s->sgd);
        ds_tensor *out = s->dp ? ds_data_parallel_call(s->dp, x) : ds_call(s->net, x);
        ds_backward(ds_cross_entropy(out, y));
        ds_optim_step(s->sgd);
        ds_scope_close(turn);
    }
    return steps * (double)ds_size(x, 0) / (dsi_now() - begin);
}

static void compare(const Options *o, int batch)
{
    Side one = side_new(1, o->blocks), many = side_new(o->replicas, o->blocks);
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_rand(DS_F32, ds_shape(batch, 3, 32, 32));
    ds_tensor *y = ds_randint(DS_I64, 0, 10, ds_shape(batch));
    for (int k = -1; k < o->blocks && !ds_error(); k++) { /* the first is a warm-up */
        double a = block(&one, x, y, o->samples), b = block(&many, x, y, o->samples);
        if (k >= 0) one.rate[k] = a, many.rate[k] = b;
    }
    ds_scope_close(scope);
    double a = median(one.rate, o->blocks), b = median(many.rate, o->blocks);
    if (!ds_error())
        printf(
            "{\"bench\": \"dataparallel\", \"batch\": %d, \"one_samples_s\": %.0f, \"replicas\": "
            "%d, \"samples_s\": %.0f, \"ratio\": %.3f}\n",
            batch, a, o->replicas, b, b / a);
    side_free(&one), side_free(&many);
}

int main(int argc, char **argv)
{
    static const struct argp argp = {options, parse, NULL, "Speed-up of replicas over one thread.",
                                     NULL,    NULL,  NULL};
    Options o = {0, 2, 6400, 21};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return 2;
    compare(&o, o.batch ? o.batch : 64);
    if (!o.batch) compare(&o, 256);
    if (ds_error()) fprintf(stderr, "bench_dataparallel: %s\n", ds_error());
    return ds_error() != NULL;
}
