/* bench/save.c: the cost of a checkpoint: saving and loading in MB/s,
 * additional memory; and for an asynchronous save, how long the call takes and
 * how much slower steps are meanwhile.
 *
 * The model has layers of hidden x hidden, AdamW: its state is 12 bytes a
 * parameter (1 GB: --hidden 5400). One line of JSON. For comparison: dd
 * if=/dev/zero of=DIR/x bs=1M count=1024 conv=fsync
 *
 * --each_step: a small model is saved after each step, with an overhead_limit of 2
 * %. Its steps take turns with those of a model that is not saved; the numbers
 * are processor time of all threads, which other processes hardly change.
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
#include <time.h>

typedef struct Options {
    int64_t hidden, layers, saves;
    const char *dir, *dtype;
    bool each_step;
} Options;

static const struct argp_option options[] = {
    {"hidden", 'w', "N", 0, "features of a layer (2048)", 0},
    {"layers", 'l', "N", 0, "(3)", 0},
    {"saves", 'n', "N", 0, "of each kind; the median counts (5)", 0},
    {"dir", 'd', "DIR", 0, "where (bench_save in the current folder)", 0},
    {"dtype", 't', "TYPE", 0, "fp32, bf16 (fp32)", 0},
    {"each_step", 'e', 0, 0, "save after each step (--saves: turns; --hidden 100)", 0},
    {0}};

static const ArgsField fields[] = {ARGS_WHOLE('w', Options, hidden, 1, ARGS_COUNT),
                                   ARGS_WHOLE('l', Options, layers, 1, ARGS_COUNT),
                                   ARGS_WHOLE('n', Options, saves, 1, ARGS_COUNT),
                                   ARGS_TEXT('d', Options, dir),
                                   ARGS_TEXT('t', Options, dtype),
                                   {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    if (key == 'e') ((Options *)state->input)->each_step = true;
    if (key == 'e') return 0;
    return args_store(state, options, fields, key, arg, state->input);
}

static double peak_mb(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)r.ru_maxrss / 1024;
}

static ds_engine *engine_of(const Options *o, bool behind, double limit)
{
    char config[500], name[16];
    snprintf(config, sizeof config,
             "{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": "
             "0.001}},"
             "\"bf16\": {\"enabled\": %s}, \"checkpoint\": {\"async\": %s, \"keep_last\": 2, "
             "\"overhead_limit\": %g}}",
             strcmp(o->dtype, "bf16") ? "false" : "true", behind ? "true" : "false", limit);
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
    ds_engine *e = engine_of(o, false, 0);
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
    ds_engine *e = engine_of(o, true, 0);
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

static double process_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { STEPS = 4000 };

/* Processor seconds of STEPS steps and of saves after each; those made. */
static double steps(ds_engine *e, const Options *o, int *made)
{
    double begun = process_time();
    for (int i = 0; i < STEPS && !ds_error(); i++) {
        bool left_out = true;
        step(e, o->hidden);
        if (made) ds_engine_save(e, o->dir, .left_out = &left_out);
        if (made) *made += !left_out;
    }
    return process_time() - begun;
}

/* The limit counts this thread's time, half of which is the other model's. */
static void each_step(const Options *o)
{
    double with[MOST], without[MOST], ratio[MOST], all_with = 0, all_without = 0;
    ds_engine *saved = engine_of(o, true, 0.01), *plain = engine_of(o, true, 0);
    int made = 0;
    for (int i = -1; i < o->saves && !ds_error(); i++) { /* the first turn warms up */
        int n = 0;
        double a = steps(saved, o, &n), b = steps(plain, o, NULL);
        if (i < 0) continue;
        made += n;
        with[i] = a, without[i] = b, ratio[i] = a / b;
        all_with += a, all_without += b;
    }
    if (!ds_error())
        printf("\"turns\": %d, \"saves\": %d, \"step_us\": %.1f, \"step_saved_us\": %.1f, "
               "\"percent\": %.2f, \"percent_of_sums\": %.2f}\n",
               (int)o->saves, made, 1e6 * median(without, (int)o->saves) / STEPS,
               1e6 * median(with, (int)o->saves) / STEPS, 100 * (median(ratio, (int)o->saves) - 1),
               100 * (all_with / all_without - 1));
    ds_engine_free(saved);
    ds_engine_free(plain);
}

int main(int argc, char **argv)
{
    const struct argp argp = {options, parse, NULL, "The cost of checkpoints.", NULL, NULL, NULL};
    Options o = {0, 3, 5, "bench_save", "fp32", false};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o)) return 2;
    if (!o.hidden) o.hidden = o.each_step ? 100 : 2048;
    if (o.saves > MOST) o.saves = MOST;
    double bytes = strcmp(o.dtype, "bf16")
                       ? 12
                       : 14; /* float32: weights, two moments; bf16: weights beside */
    double mb = bytes * o.layers * ((double)o.hidden * o.hidden + o.hidden) / 1e6;
    printf("{\"bench\": \"save\", \"state_mb\": %.0f, \"dtype\": \"%s\", ", mb, o.dtype);
    if (o.each_step) {
        each_step(&o);
    } else {
        at_once(&o, mb);
        if (!ds_error()) behind(&o);
    }
    if (ds_error()) fprintf(stderr, "bench_save: %s\n", ds_error());
    return ds_error() != NULL;
}
