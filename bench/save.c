/* bench/save.c: the cost of a checkpoint: saving and loading in MB/s,
 * additional memory; and for an asynchronous save, how long the call takes and
 * how much slower steps are meanwhile.
 *
 * The model has layers of hidden x hidden, AdamW: its state is 12 bytes a
 * parameter (1 GB: --hidden 5400). One line of JSON. For comparison: dd
 * if=/dev/zero of=DIR/x bs=1M count=1024 conv=fsync
 *
 * --each_step: ds_engine_save is called after each step of a small model, with
 * an overhead_limit of 2 % (--limit; 0: each one is made). A longer --batch makes
 * its steps longer. "percent": what saves cost, in processor time of the steps
 * between them: that of the calls, and of the threads that write, as they count
 * it themselves. "percent_in_turns": that of the process, beside a model that is
 * not saved, the median of the turns; a busy machine moves it by more than the
 * saves do.
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
    int64_t hidden, layers, saves, batch;
    double limit;
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
    {"batch", 'b', "N", 0, "(4)", 0},
    {"limit", 'm', "SHARE", 0, "of --each_step: checkpoint.overhead_limit (0.02)", 0},
    {0}};

static const ArgsField fields[] = {ARGS_WHOLE('w', Options, hidden, 1, ARGS_COUNT),
                                   ARGS_WHOLE('l', Options, layers, 1, ARGS_COUNT),
                                   ARGS_WHOLE('n', Options, saves, 1, ARGS_COUNT),
                                   ARGS_WHOLE('b', Options, batch, 1, ARGS_COUNT),
                                   ARGS_REAL('m', Options, limit),
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
             "{\"train_batch_size\": %d, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": "
             "0.001}},"
             "\"bf16\": {\"enabled\": %s}, \"checkpoint\": {\"async\": %s, \"keep_last\": 2, "
             "\"overhead_limit\": %g}}",
             (int)o->batch, strcmp(o->dtype, "bf16") ? "false" : "true", behind ? "true" : "false",
             limit);
    ds_module *m = ds_nn_sequential(NULL, "net");
    for (int i = 0; i < o->layers; i++) {
        snprintf(name, sizeof name, "%d", i);
        ds_nn_linear(m, name, o->hidden, o->hidden);
    }
    return ds_initialize(.model = m, .config = config);
}

/* Seconds of a step. */
static double step(ds_engine *e, const Options *o)
{
    double begin = dsi_now();
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_full(ds_engine_dtype(e), ds_shape(o->batch, o->hidden), 0.5);
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
    step(e, o);
    double before = peak_mb();
    for (int i = 0; i < o->saves && !ds_error(); i++) {
        double begin = dsi_now();
        ds_engine_save(e, o->dir);
        save[i] = dsi_now() - begin;
        step(e, o);
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
    step(e, o);
    for (int i = 0; i < o->saves && !ds_error(); i++) {
        plain[i] = step(e, o);
        double begin = dsi_now();
        ds_engine_save(e, o->dir);
        call[i] = dsi_now() - begin;
        during[i] = step(e, o);
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

/* ---- a save after each step --------------------------------------------------------------------------- */

static double clock_seconds(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds that asking for this thread's time takes: a system call. */
static double clock_cost(void)
{
    enum { TIMES = 20000 };
    double begun = dsi_thread_time();
    for (int i = 0; i < TIMES; i++) dsi_thread_time();
    return (dsi_thread_time() - begun) / TIMES;
}

/* Processor seconds of a turn. */
typedef struct Turn {
    int steps, made;
    double all, call, writing;
} Turn;

/* Steps for TURN_S of this thread's time; each is saved where `dir` is given. */
static Turn turn(ds_engine *e, const Options *o, const char *dir)
{
    const double TURN_S = 0.2, asked = clock_cost();
    Turn t = {0};
    double all = clock_seconds(CLOCK_PROCESS_CPUTIME_ID), own = dsi_thread_time();
    while (!ds_error() && dsi_thread_time() < own + TURN_S) {
        bool left_out = true;
        step(e, o);
        t.steps++;
        if (!dir) continue;
        double call = dsi_thread_time();
        ds_engine_save(e, dir, .left_out = &left_out);
        t.call += dsi_thread_time() - call;
        t.made += !left_out;
    }
    if (dir) ds_engine_save_wait(e);
    t.all = clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - all;
    t.writing = t.all - (dsi_thread_time() - own);
    t.call -= dir ? t.steps * asked : 0;
    t.all -= t.steps * asked * (dir ? 3 : 1);
    return t;
}

static void each_step(const Options *o)
{
    double ratio[MOST];
    Turn sum = {0};
    /* the limit counts this thread's time, half of which is the other model's */
    ds_engine *saved = engine_of(o, true, o->limit / 2), *plain = engine_of(o, true, 0);
    for (int i = -1; i < o->saves && !ds_error(); i++) { /* the first turn warms up */
        Turn a = turn(saved, o, o->dir), b = turn(plain, o, NULL);
        if (i < 0) continue;
        ratio[i] = a.all / a.steps / (b.all / b.steps);
        sum = (Turn){sum.steps + a.steps, sum.made + a.made, sum.all + a.all, sum.call + a.call,
                     sum.writing + a.writing};
    }
    double cost = sum.call + sum.writing, made = sum.made ? sum.made : 1;
    if (!ds_error())
        printf("\"step_us\": %.1f, \"steps\": %d, \"saves\": %d, \"call_us\": %.0f, "
               "\"writing_us\": %.0f, \"percent\": %.2f, "
               "\"percent_in_turns\": %.2f}\n",
               1e6 * (sum.all - cost) / sum.steps, sum.steps, sum.made, 1e6 * sum.call / made,
               1e6 * sum.writing / made, 100 * cost / (sum.all - cost),
               100 * (median(ratio, (int)o->saves) - 1));
    ds_engine_free(saved);
    ds_engine_free(plain);
}

int main(int argc, char **argv)
{
    const struct argp argp = {options, parse, NULL, "The cost of checkpoints.", NULL, NULL, NULL};
    Options o = {0, 3, 5, 4, 0.02, "bench_save", "fp32", false};
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
