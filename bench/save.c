/* bench/save.c: the cost of a checkpoint: saving and loading in MB/s,
 * additional memory; and for an asynchronous save, how long the call takes and
 * how much slower steps are meanwhile.
 *
 * The model has layers of hidden x hidden, AdamW: its state is 12 bytes a
 * parameter (1 GB: --hidden 5400). One line of JSON. For comparison: dd
 * if=/dev/zero of=DIR/x bs=1M count=1024 conv=fsync
 * SPDX-License-Identifier: MIT */
#include "args.h"
#include "base/clock.h"
#include "median.h"

#include <deepspeed.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

typedef struct Options {
    int64_t hidden, layers, saves;
    const char *dir, *dtype;
} Options;

static const struct argp_option options[] = {
    {"hidden", 'w', "N", 0, "features of a layer (2048)", 0},
    {"layers", 'l', "N", 0, "(3)", 0},
    {"saves", 'n', "N", 0, "of each kind; the median counts (5)", 0},
    {"dir", 'd', "DIR", 0, "where (bench_save in the current folder)", 0},
    {"dtype", 't', "TYPE", 0, "fp32, bf16 (fp32)", 0},
    {0}};

static const ArgsField fields[] = {ARGS_WHOLE('w', Options, hidden, 1, ARGS_COUNT),
                                   ARGS_WHOLE('l', Options, layers, 1, ARGS_COUNT),
                                   ARGS_WHOLE('n', Options, saves, 1, ARGS_COUNT),
                                   ARGS_TEXT('d', Options, dir),
                                   ARGS_TEXT('t', Options, dtype),
                                   {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    return args_store(state, options, fields, key, arg, state->input);
}

static double peak_mb(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)r.ru_maxrss / 1024;
}

static ds_engine *engine_of(const Options *o, bool behind)
{
    char config[400], name[16];
    snprintf(config, sizeof config,
             "{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": "
             "0.001}},"
             "\"bf16\": {\"enabled\": %s}, \"checkpoint\": {\"async\": %s, \"keep_last\": 2}}",
             strcmp(o->dtype, "bf16") ? "false" : "true", behind ? "true" : "false");
    ds_module *m = ds_nn_sequential(NULL, "net");
    for (int i = 0; i < o->layers; i++) {
        snprintf(name, sizeof name, "%d", i);
        ds_nn_linear(m, name, o->hidden, o->hidden);
    }
    return ds_initialize(.model = m, .config = config);
}

/* Seconds of a step. */
static double step(ds_engine *e, int hidden)
{
    double begin = dsi_now();
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_full(ds_engine_dtype(e), ds_shape(4, hidden), 0.5);
    ds_engine_backward(e, ds_mean(ds_engine_forward(e, x)));
    ds_engine_step(e);
    ds_scope_close(scope);
    return dsi_now() - begin;
}

#define MOST 100

static void at_once(const Options *o, double mb)
{
    double save[MOST], load[MOST];
    ds_engine *e = engine_of(o, false);
    step(e, o->hidden);
    double before = peak_mb();
    for (int i = 0; i < o->saves && !ds_error(); i++) {
        double begin = dsi_now();
        ds_engine_save(e, o->dir);
        save[i] = dsi_now() - begin;
        step(e, o->hidden);
    }
    double extra = peak_mb() - before;
    before = peak_mb();
    for (int i = 0; i < o->saves && !ds_error(); i++) {
        double begin = dsi_now();
        ds_engine_load(e, o->dir);
        load[i] = dsi_now() - begin;
    }
    if (!ds_error())
        printf("\"save_mb_s\": %.0f, \"load_mb_s\": %.0f, \"save_extra_mb\": %.1f, "
               "\"load_extra_mb\": %.1f, ",
               mb / median(save, o->saves), mb / median(load, o->saves), extra, peak_mb() - before);
    ds_engine_free(e);
}

/* Steps go on while the last checkpoint is written: those until it is there
 * count as "during". */
static void behind(const Options *o)
{
    double call[MOST], plain[MOST], during[MOST], all[MOST];
    ds_engine *e = engine_of(o, true);
    step(e, o->hidden);
    for (int i = 0; i < o->saves && !ds_error(); i++) {
        plain[i] = step(e, o->hidden);
        double begin = dsi_now();
        ds_engine_save(e, o->dir);
        call[i] = dsi_now() - begin;
        during[i] = step(e, o->hidden);
        ds_engine_save_wait(e);
        all[i] = dsi_now() - begin;
    }
    if (!ds_error())
        printf("\"behind_call_ms\": %.1f, \"step_ms\": %.1f, \"step_meanwhile_ms\": %.1f, "
               "\"behind_all_ms\": %.1f}\n",
               1e3 * median(call, o->saves), 1e3 * median(plain, o->saves),
               1e3 * median(during, o->saves), 1e3 * median(all, o->saves));
    ds_engine_free(e);
}

int main(int argc, char **argv)
{
    const struct argp argp = {options, parse, NULL, "The cost of checkpoints.", NULL, NULL, NULL};
    Options o = {2048, 3, 5, "bench_save", "fp32"};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o)) return 2;
    if (o.saves > MOST) o.saves = MOST;
    double bytes = strcmp(o.dtype, "bf16")
                       ? 12
                       : 14; /* float32: weights, two moments; bf16: weights beside */
    double mb = bytes * o.layers * ((double)o.hidden * o.hidden + o.hidden) / 1e6;
    printf("{\"bench\": \"save\", \"state_mb\": %.0f, \"dtype\": \"%s\", ", mb, o.dtype);
    at_once(&o, mb);
    if (!ds_error()) behind(&o);
    if (ds_error()) fprintf(stderr, "bench_save: %s\n", ds_error());
    return ds_error() != NULL;
}
