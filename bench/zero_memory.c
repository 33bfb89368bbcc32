/* bench/zero_memory.c: the memory of each ZeRO stage on each rank, compared
 * with the formulas and with ds_estimate_memory: an MLP of 50 million
 * parameters, trained by the engine for some steps with Adam. Ranks are threads
 * of this process, or those of mpirun.
 *
 * The model state is reported by the parts of the engine; the peak is the
 * allocator's maximum during the last step; "numbers" is the estimate from
 * numbers alone, "model" that from a pass of the model, and "held" the
 * allocator's memory at the end, free blocks included. All are of the rank that
 * has most, in MB. "sent" is the data sent in a step, in units of F P (N-1)/N.
 * With P parameters of F bytes and N ranks:
 *
 *     stage   parameters   gradients   optimizer (moments; masters of 16 bits)
 *     0       F P          F P         8 P, 12 P
 *     1       F P          F P         8 P/N, 12 P/N
 *     2       F P          F P/N       8 P/N, 12 P/N
 *     3       F P/N        F P/N       8 P/N, 12 P/N
 *
 * Fails if the model state is off by more than 5 %, or the peak by more than 10
 * %.
 * SPDX-License-Identifier: MIT */
#include "engine/engine.h"
#include "mlp.h"

#include <deepspeed.h>

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ds_device cpu = {DS_CPU, 0};

typedef struct Options {
    int ranks, width, layers, batch, steps, stage; /* stage -1: all */
    int64_t bucket;
    const char *dtype; /* NULL: all */
    bool offload;
} Options;

static const struct argp_option options[] = {
    {"ranks", 'n', "N", 0, "ranks, without mpirun (4)", 0},
    {"width", 'w', "N", 0, "of a layer (2048)", 0},
    {"layers", 'l', "N", 0, "of width x width (12: 50 million parameters)", 0},
    {"batch", 'b', "N", 0, "samples of a rank (4)", 0},
    {"steps", 's', "N", 0, "steps (3)", 0},
    {"bucket", 'k', "N", 0, "elements of the buckets, and gathered ahead (5000000)", 0},
    {"stage", 'z', "N", 0, "only this one", 0},
    {"dtype", 'd', "TYPE", 0, "only this one: fp32, fp16, bf16", 0},
    {"offload", 'o', NULL, 0, "optimizer state in host memory", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Options *o = state->input;
    int *const number = key == 'n'   ? &o->ranks
                        : key == 'w' ? &o->width
                        : key == 'l' ? &o->layers
                        : key == 'b' ? &o->batch
                        : key == 's' ? &o->steps
                        : key == 'z' ? &o->stage
                                     : NULL;
    if (number) {
        *number = atoi(arg);
        if (*number < (key != 'z')) argp_error(state, "-%c %s: expected a number", key, arg);
    } else if (key == 'k') {
        o->bucket = atoll(arg);
    } else if (key == 'd') {
        o->dtype = arg;
    } else if (key == 'o') {
        o->offload = true;
    } else {
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- one configuration ----------------------------------------------------------------------------------- */

typedef struct Run {
    const Options *o;
    int stage;
    const char *dtype;
    char config[800];
} Run;

static bool offloads(const Run *r) { return r->o->offload && r->stage; }

static void write_config(Run *r, int ranks)
{
    const char *form =
        "{\"train_batch_size\": %d, \"gradient_clipping\": 1.0,"
        " \"fp16\": {\"enabled\": %s, \"initial_scale_power\": 4}, \"bf16\": {\"enabled\": %s},"
        " \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.0001}},"
        " \"zero_optimization\": {\"stage\": %d, \"reduce_bucket_size\": %lld,"
        " \"allgather_bucket_size\": %lld, \"stage3_prefetch_bucket_size\": %lld,"
        " \"stage3_max_live_parameters\": %lld, \"stage3_max_reuse_distance\": %lld,"
        " \"overlap_comm\": true, \"offload_optimizer\": {\"device\": \"%s\"}}}";
    long long bucket = r->o->bucket;
    snprintf(r->config, sizeof r->config, form, r->o->batch * ranks,
             strcmp(r->dtype, "fp16") ? "false" : "true",
             strcmp(r->dtype, "bf16") ? "false" : "true", r->stage, bucket, bucket, bucket,
             2 * bucket, bucket, r->o->offload && r->stage ? "cpu" : "none");
}

static int64_t count(const Options *o) { return (int64_t)o->layers * o->width * (o->width + 1); }

static void train_step(ds_engine *e, const Options *o)
{
    ds_scope *turn = ds_scope_open();
    ds_tensor *x = ds_randn(ds_engine_dtype(e), ds_shape(o->batch, o->width));
    ds_tensor *y = ds_engine_forward(e, x);
    ds_engine_backward(e, ds_mean(ds_mul(y, y)));
    ds_engine_step(e);
    ds_scope_close(turn);
}

enum { PARAMETERS, GRADIENTS, OPTIMIZER, PEAK, NUMBERS, MODEL, HELD, SENT, COLUMNS };

/* The largest value over the ranks. */
static ds_status largest(int64_t *value)
{
    ds_tensor *t = ds_from_data(DS_I64, ds_shape(COLUMNS), value);
    if (ds_all_reduce(NULL, t, DS_REDUCE_MAX) != DS_OK) return ds_error_status();
    memcpy(value, ds_data(t), COLUMNS * sizeof *value);
    return DS_OK;
}

static bool near(double x, double expected, double by)
{
    return x < (1 + by) * expected && x > (1 - by) * expected;
}

static bool print_row(const Run *r, int ranks, const int64_t *v)
{
    double psi = (double)count(r->o), size = strcmp(r->dtype, "fp32") ? 2 : 4;
    double part = psi / ranks, moments = size == 4 && !offloads(r) ? 8 : 12;
    double expected = size * (r->stage == 3 ? part : psi) + size * (r->stage >= 2 ? part : psi) +
                      moments * (r->stage ? part : psi);
    double state = (double)(v[PARAMETERS] + v[GRADIENTS] + v[OPTIMIZER]), peak = (double)v[PEAK];
    double numbers = (double)v[NUMBERS], model = (double)v[MODEL];
    bool close = near(state, expected, 0.05) && near(numbers, peak, 0.1) && near(model, peak, 0.1);
    printf("%-5s %5d %10.1f %9.1f %9.1f %9.1f %9.1f %6.3f %9.1f %9.1f %6.3f %9.1f %6.3f %9.1f "
           "%6.3f%s\n",
           r->dtype, r->stage, 1e-6 * (double)v[PARAMETERS], 1e-6 * (double)v[GRADIENTS],
           1e-6 * (double)v[OPTIMIZER], 1e-6 * state, 1e-6 * expected, state / expected,
           1e-6 * peak, 1e-6 * numbers, numbers / peak, 1e-6 * model, model / peak,
           1e-6 * (double)v[HELD],
           ranks > 1 ? (double)v[SENT] / (size * psi * (1 - 1.0 / ranks)) : 0, close ? "" : "  <-");
    return close;
}

/* Prints the estimates, on rank 0. */
static void estimate(const Run *r, int ranks, int64_t *value)
{
    const Options *o = r->o;
    ds_memory_estimate numbers, model;
    ds_scope *scope = ds_scope_open();
    ds_module *m = mlp_new(o->layers, o->width, ds_nn_relu);
    ds_estimate_memory(&numbers, .config = r->config, .world_size = ranks, .params = count(o),
                       .largest = (int64_t)o->width * o->width);
    ds_estimate_memory(&model, .config = r->config, .world_size = ranks, .model = m,
                       .input = ds_randn(DS_F32, ds_shape(o->batch, o->width)));
    value[NUMBERS] = numbers.peak;
    value[MODEL] = model.peak;
    ds_module_free(m);
    ds_scope_close(scope);
    dsi_cache_empty(dsi_device_get(cpu));
}

static ds_status run_one(Run *r, bool *close)
{
    int ranks = ds_comm_size(ds_world());
    bool first = ds_comm_rank(ds_world()) == 0;
    int64_t value[COLUMNS] = {0};
    double sent = 0;
    write_config(r, ranks);
    ds_scope *scope = ds_scope_open();
    ds_seed(1);
    if (first) estimate(r, ranks, value);
    ds_engine *e = ds_initialize(.model = mlp_new(r->o->layers, r->o->width, ds_nn_relu),
                                 .config = r->config);
    for (int i = 0; i < r->o->steps && !ds_error(); i++) {
        ds_memory_reset_peak(cpu);
        sent = dsi_comm_volume(ds_world());
        train_step(e, r->o);
    }
    dsi_zero_bytes b = dsi_zero_memory(e ? e->zero : NULL);
    dsi_device *d = dsi_device_get(cpu);
    value[PARAMETERS] = b.parameters;
    value[GRADIENTS] = b.gradients;
    value[OPTIMIZER] = b.optimizer;
    value[PEAK] = (int64_t)ds_memory_peak(cpu);
    value[HELD] = (int64_t)dsi_cache_use(d).held;
    value[SENT] = (int64_t)(dsi_comm_volume(ds_world()) - sent);
    if (!ds_error() && largest(value) == DS_OK && first)
        *close = print_row(r, ranks, value) && *close;
    ds_engine_free(e);
    ds_scope_close(scope);
    dsi_cache_empty(d);
    return ds_error_status();
}

static ds_status run_all(void *arg)
{
    static const char *const dtypes[] = {"fp32", "fp16", "bf16"};
    const Options *o = arg;
    bool close = true, first = ds_comm_rank(ds_world()) == 0;
    if (first)
        printf("%lld parameters, %d ranks, %d samples each; MB of the rank that has most\n"
               "%-5s %5s %10s %9s %9s %9s %9s %6s %9s %9s %6s %9s %6s %9s %6s\n",
               (long long)count(o), ds_comm_size(ds_world()), o->batch, "dtype", "stage",
               "parameters", "gradients", "optimizer", "state", "formula", "", "peak", "numbers",
               "", "model", "", "held", "sent");
    for (int d = 0; d < 3 && !ds_error(); d++)
        for (int stage = 0; stage < 4 && !ds_error(); stage++) {
            Run r = {.o = o, .stage = stage, .dtype = dtypes[d]};
            if (o->dtype && strcmp(o->dtype, dtypes[d])) continue;
            if (o->stage < 0 || o->stage == stage) run_one(&r, &close);
            fflush(stdout);
        }
    if (ds_error()) return ds_error_status();
    return close ? DS_OK : ds_fail(DS_ESTATE, "the memory is not what was said: lines with <-");
}

int main(int argc, char **argv)
{
    static const struct argp argp = {options, parse, NULL, "Memory of ZeRO's stages, measured.",
                                     NULL,    NULL,  NULL};
    Options o = {4, 2048, 12, 4, 3, -1, 5000000, NULL, false};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return 2;
    ds_init_distributed();
    if (ds_comm_size(ds_world()) > 1)
        run_all(&o);
    else
        ds_run_ranks(o.ranks, run_all, &o);
    if (ds_error()) fprintf(stderr, "bench_zero_memory: %s\n", ds_error());
    int status = ds_error() != NULL;
    ds_destroy_process_group();
    return status;
}
