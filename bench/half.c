/* bench/half.c: savings and costs of 16-bit floats: training steps of the
 * engine in float32, bf16 and fp16, of the tutorial network (batch 16) and of a
 * wide MLP, 1024-4096-4096-10 (batch 256), with AdamW and clipping.
 *
 * Columns: bytes of parameters, gradients and optimizer state (moments; master
 * weights of 16-bit parameters), as the engine reports them; "kept": saved
 * tensors after forward; "peak": additional memory during forward and backward,
 * gradients included; the median step in milliseconds.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "classify.h"
#include "engine/engine.h"
#include "median.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ds_device cpu = {DS_CPU, 0};

typedef struct Options {
    int steps;
    bool quick; /* the tutorial network alone */
} Options;

static const struct argp_option options[] = {
    {"steps", 's', "N", 0,
     "timed steps of the MLP; the tutorial network gets 50 times as many (11)", 0},
    {"quick", 'q', NULL, 0, "the tutorial network alone", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Options *o = state->input;
    if (key == 'q') {
        o->quick = true;
        return 0;
    }
    if (key != 's') return ARGP_ERR_UNKNOWN;
    if ((o->steps = atoi(arg)) < 1)
        argp_error(state, "\"%s\": expected a number of 1 or more", arg);
    return 0;
}

/* ---- networks ------------------------------------------------------------------------------------------ */

static ds_module *wide_mlp(void)
{
    ds_module *m = ds_nn_sequential(NULL, "mlp");
    ds_nn_linear(m, "fc1", 1024, 4096);
    ds_nn_relu(m, "relu1");
    ds_nn_linear(m, "fc2", 4096, 4096);
    ds_nn_relu(m, "relu2");
    ds_nn_linear(m, "fc3", 4096, 10);
    return m;
}

typedef struct Net {
    const char *name;
    ds_module *(*make)(void);
    ds_dims in;
    int times; /* as many steps */
} Net;

/* ---- a run --------------------------------------------------------------------------------------------- */

typedef struct Row {
    dsi_zero_bytes state;
    int64_t kept, peak;
    double ms;
} Row;

static int64_t allocated(void) { return (int64_t)ds_memory_allocated(cpu); }

/* A step; what it takes -> *row, where wanted. */
static void step(ds_engine *e, ds_tensor *x, ds_tensor *y, Row *row)
{
    ds_scope *turn = ds_scope_open();
    int64_t before = allocated();
    ds_memory_reset_peak(cpu);
    ds_tensor *loss = ds_cross_entropy(ds_engine_forward(e, x), y);
    int64_t kept = allocated() - before;
    ds_engine_backward(e, loss);
    if (row) {
        row->kept = kept;
        row->state = dsi_zero_memory(e->zero);
        row->peak = (int64_t)ds_memory_peak(cpu) - before;
    }
    ds_engine_step(e);
    ds_scope_close(turn);
}

static ds_engine *engine_of(const Net *net, const char *dtype)
{
    char config[512];
    snprintf(config, sizeof config,
             "{\"train_batch_size\": %d, \"gradient_clipping\": 1.0, \"fp16\": {\"enabled\": %s, "
             "\"initial_scale_power\": 8},"
             " \"bf16\": {\"enabled\": %s}, \"optimizer\": {\"type\": \"Adam\"}}",
             (int)net->in.d[0], strcmp(dtype, "fp16") ? "false" : "true",
             strcmp(dtype, "bf16") ? "false" : "true");
    ds_seed(1);
    return ds_initialize(.model = net->make(), .config = config);
}

static void measure(const Net *net, const char *dtype, int steps)
{
    ds_scope *scope = ds_scope_open();
    Row row = {.ms = 0};
    double *ms = calloc((size_t)steps, sizeof *ms);
    ds_engine *e = ms ? engine_of(net, dtype) : NULL;
    ds_tensor *x = e ? ds_cast(ds_rand(DS_F32, net->in), ds_engine_dtype(e)) : NULL;
    ds_tensor *y = ds_randint(DS_I64, 0, 10, ds_shape(net->in.d[0]));
    for (int i = -2; i < steps && e && !ds_error(); i++) { /* the first two are a warm-up */
        double begin = dsi_now();
        step(e, x, y, i == -1 ? &row : NULL);
        if (i >= 0) ms[i] = 1e3 * (dsi_now() - begin);
    }
    if (e && !ds_error()) {
        printf("%-9s %-5s %12lld %12lld %12lld %12lld %12lld %10.3f\n", net->name, dtype,
               (long long)row.state.parameters, (long long)row.state.gradients,
               (long long)row.state.optimizer, (long long)row.kept, (long long)row.peak,
               median(ms, steps));
        fflush(stdout);
    }
    free(ms);
    ds_engine_free(e);
    ds_scope_close(scope);
}

int main(int argc, char **argv)
{
    static const struct argp argp = {options, parse, NULL, "Savings and costs of 16-bit floats.",
                                     NULL,    NULL,  NULL};
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    const Net nets[] = {{"tutorial", net_new, ds_shape(16, 3, 32, 32), 50},
                        {"mlp", wide_mlp, ds_shape(256, 1024), 1}};
    Options o = {11, false};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return 2;
    printf("%-9s %-5s %12s %12s %12s %12s %12s %10s\n", "net", "dtype", "parameters", "gradients",
           "optimizer", "kept", "peak", "step ms");
    for (int n = 0; n < (o.quick ? 1 : 2); n++)
        for (int d = 0; d < 3 && !ds_error(); d++)
            measure(&nets[n], dtypes[d], nets[n].times * o.steps);
    if (ds_error()) fprintf(stderr, "bench_half: %s\n", ds_error());
    return ds_error() != NULL;
}
