/* bench/cifar10.c: the training speed of the tutorial's network, through the
 * public headers, written as in a user's program: forward, loss, backward, SGD
 * with momentum.
 *
 * Prints one line of JSON a batch size: samples per second, microseconds a
 * step, seconds from process start to the end of the first step, peak memory.
 * Batches are ready in memory, or come from the loader.
 * SPDX-License-Identifier: MIT */
#include "classify.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static double step(ds_module *net, ds_optim *sgd, ds_tensor *x, ds_tensor *y)
{
    ds_optim_zero_grad(sgd);
    ds_tensor *loss = ds_cross_entropy(ds_call(net, x), y);
    ds_backward(loss);
    ds_optim_step(sgd);
    return ds_item(loss);
}

/* ---- options ---------------------------------------------------------------------------------------- */

typedef struct Options {
    const char *data;
    int batch, steps, warm, threads, workers;
    bool loader;
} Options;

static const struct argp_option options[] = {
    {"data", 'd', "DIR", 0, "CIFAR-10; without it there, the built-in sample (data)", 0},
    {"batch", 'b', "N", 0, "samples a step (4)", 0},
    {"steps", 's', "N", 0, "steps that are timed (2000)", 0},
    {"warm", 'w', "N", 0, "steps before them (100)", 0},
    {"threads", 't', "N", 0, "threads of a kernel (1)", 0},
    {"loader", 'l', NULL, 0, "batches come from the loader, shuffled", 0},
    {"workers", 'j', "N", 0, "the loader's threads (0)", 0},
    {0}};

static int number(const char *text, int least, struct argp_state *state)
{
    char *end;
    long n = strtol(text, &end, 10);
    if (*end || end == text || n < least || n > 1000000)
        argp_error(state, "%s is not a number from %d to 1000000", text, least);
    return (int)n;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Options *o = state->input;
    switch (key) {
    case 'd':
        o->data = arg;
        return 0;
    case 'b':
        o->batch = number(arg, 1, state);
        return 0;
    case 's':
        o->steps = number(arg, 1, state);
        return 0;
    case 'w':
        o->warm = number(arg, 1, state);
        return 0;
    case 't':
        o->threads = number(arg, 1, state);
        return 0;
    case 'l':
        o->loader = true;
        return 0;
    case 'j':
        o->workers = number(arg, 0, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- the clock -------------------------------------------------------------------------------------- */

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* When the kernel started this process, on CLOCK_BOOTTIME, to a hundredth of a
 * second. */
static double process_start(void)
{
    FILE *f = fopen("/proc/self/stat", "r");
    unsigned long long ticks = 0;
    if (!f) return now(CLOCK_BOOTTIME);
    /* "pid (name) state ...": start is the 22nd field, the 20th behind the
     * name, which has no blanks here */
    if (fscanf(f,
               "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d "
               "%*d %llu",
               &ticks) != 1)
        ticks = 0;
    fclose(f);
    return (double)ticks / 100; /* USER_HZ */
}

typedef struct Timing {
    double first; /* seconds from process start to the end of step 0 */
    double begin; /* CLOCK_MONOTONIC after the warm-up */
    double seconds;
    int64_t samples; /* in them */
    int done;        /* steps, with those of the warm-up */
} Timing;

/* To be called after each step; false when all are done. */
static bool count(Timing *t, const Options *o, int64_t size)
{
    if (t->done == 0) t->first = now(CLOCK_BOOTTIME) - process_start();
    if (t->done >= o->warm) t->samples += size;
    t->done++;
    if (t->done == o->warm) t->begin = now(CLOCK_MONOTONIC);
    if (t->done < o->warm + o->steps) return true;
    t->seconds = now(CLOCK_MONOTONIC) - t->begin;
    return false;
}

/* ---- the two ways --------------------------------------------------------------------------------- */

static void run_loader(ds_module *net, ds_optim *sgd, ds_loader *loader, const Options *o,
                       Timing *t)
{
    ds_batch b;
    while (!ds_error()) { /* a turn is an epoch */
        while (ds_loader_next(loader, &b)) {
            step(net, sgd, b.x, b.y);
            if (!count(t, o, b.size)) return;
        }
    }
}

#define READY 200 /* batches, and not more than 8192 samples */

static void run_ready(ds_module *net, ds_optim *sgd, ds_loader *loader, const Options *o, Timing *t)
{
    ds_tensor *x[READY], *y[READY];
    int n = 0, most = 8192 / o->batch > 0 ? 8192 / o->batch : 1;
    ds_batch b;
    while (n < READY && n < most && ds_loader_next(loader, &b)) {
        x[n] = ds_keep(b.x);
        y[n++] = ds_keep(b.y);
    }
    ds_loader_stop(loader);
    for (int i = 0; n && !ds_error(); i++) {
        ds_scope *turn = ds_scope_open();
        step(net, sgd, x[i % n], y[i % n]);
        ds_scope_close(turn);
        if (!count(t, o, ds_size(x[i % n], 0))) break;
    }
    for (int i = 0; i < n; i++) {
        ds_drop(x[i]);
        ds_drop(y[i]);
    }
}

static void print(const Options *o, const Timing *t)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    printf("{\"engine\": \"deepspeed.c\", \"batch_size\": %d, \"threads\": %d, \"loader\": %s, "
           "\"samples_per_s\": %.1f, \"us_per_step\": %.2f, \"start_to_first_step_s\": %.2f, "
           "\"peak_rss_mib\": %.1f}\n",
           o->batch, o->threads, o->loader ? "true" : "false", (double)t->samples / t->seconds,
           1e6 * t->seconds / o->steps, t->first, (double)use.ru_maxrss / 1024);
}

int main(int argc, char **argv)
{
    Options o = {.data = "data", .batch = 4, .steps = 2000, .warm = 100, .threads = 1};
    static const struct argp argp = {
        options, parse, NULL, "Times training of the tutorial network.", NULL, NULL, NULL};
    argp_parse(&argp, argc, argv, 0, NULL, &o);

    ds_seed(1);
    ds_set_threads(o.threads);
    ds_dataset *images = ds_cifar10_with(o.data, DS_TRAIN,
                                         (ds_cifar10_opts){.fallback_sample = true, .quiet = true});
    ds_loader *loader = ds_loader_new(images, o.batch, .shuffle = true, .drop_last = true,
                                      .workers = o.workers);
    ds_module *net = net_new();
    ds_optim *sgd = ds_optim_sgd(net, 0.001, .momentum = 0.9);
    Timing t = {.begin = now(CLOCK_MONOTONIC)};
    if (loader && ds_loader_len(loader) == 0)
        ds_fail(DS_EINVAL, "a batch of %d is larger than the data set", o.batch);
    if (!ds_error()) (o.loader ? run_loader : run_ready)(net, sgd, loader, &o, &t);
    if (!ds_error()) print(&o, &t);
    ds_optim_free(sgd);
    ds_module_free(net);
    ds_loader_free(loader);
    if (ds_error()) fprintf(stderr, "bench_cifar10: %s\n", ds_error());
    return ds_error() != NULL;
}
