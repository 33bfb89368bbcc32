/* bench/offload.c: the cost of optimizer state in a file: the time of a step
 * with master weights and moments in memory, separate from the parameters in
 * memory, and in a file; the bytes per second to and from the disk, compared
 * with plain reads and writes of as many bytes (like dd with O_DIRECT); and the
 * allocator's peak memory in a step.
 *
 *     bench_offload [--path FOLDER] [--width N] [--layers N] [--steps N] [--buffers N] [--dtype fp32|bf16]
 *         [--params]
 *
 * One rank trains an MLP of width x width layers with Adam. A step reads and
 * writes the whole file.
 * SPDX-License-Identifier: MIT */
#include "base/aio.h"
#include "base/clock.h"
#include "engine/engine.h"

#include <deepspeed.h>

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Options {
    int width, layers, steps, buffers;
    const char *path, *dtype;
    bool params;
} Options;

static const struct argp_option options[] = {
    {"path", 'p', "FOLDER", 0, "on the disk to measure (.)", 0},
    {"width", 'w', "N", 0, "of a layer (2048)", 0},
    {"layers", 'l', "N", 0, "of width x width (6: 25 million parameters)", 0},
    {"steps", 's', "N", 0, "steps, of which the fastest counts (5)", 0},
    {"buffers", 'b', "N", 0, "buffer_count of the last rows (4)", 0},
    {"dtype", 'd', "TYPE", 0, "fp32 or bf16 (bf16)", 0},
    {"params", 'P', NULL, 0, "parameters in a file too, in the last row", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Options *o = state->input;
    int *const number = key == 'w'   ? &o->width
                        : key == 'l' ? &o->layers
                        : key == 's' ? &o->steps
                        : key == 'b' ? &o->buffers
                                     : NULL;
    if (number && (*number = atoi(arg)) < 1)
        argp_error(state, "-%c %s: expected a number", key, arg);
    if (key == 'p') o->path = arg;
    if (key == 'd') o->dtype = arg;
    if (key == 'P') o->params = true;
    return number || strchr("pdP", key) ? 0 : ARGP_ERR_UNKNOWN;
}

static ds_module *net_new(const Options *o)
{
    ds_module *net = ds_nn_sequential(NULL, "net");
    char name[16];
    for (int i = 0; i < o->layers; i++) {
        snprintf(name, sizeof name, "fc%d", i);
        ds_nn_linear(net, name, o->width, o->width);
        snprintf(name, sizeof name, "relu%d", i);
        ds_nn_relu(net, name);
    }
    return net;
}

typedef struct Result {
    double step_ms, peak_mb, state_mb, file_mb;
} Result;

/* zero: the keys of zero_optimization other than stage, as JSON. */
static Result train(const Options *o, int stage, const char *zero)
{
    char config[2000];
    bool half = !strcmp(o->dtype, "bf16");
    snprintf(config, sizeof config,
             "{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": "
             "1e-4}}, \"bf16\": {\"enabled\": %s}, \"zero_optimization\": {\"stage\": %d%s}}",
             half ? "true" : "false", stage, zero);
    Result r = {.step_ms = 1e9};
    ds_scope *all = ds_scope_open();
    ds_engine *e = ds_initialize(.model = net_new(o), .config = config);
    dsi_device *cpu = dsi_device_current();
    for (int i = 0; e && i < o->steps; i++) {
        ds_scope *scope = ds_scope_open();
        dsi_cache_restart_peaks(cpu);
        ds_tensor *x = ds_randn(DS_F32, ds_shape(4, o->width));
        ds_tensor *loss = ds_mean(ds_engine_forward(e, ds_cast(x, ds_engine_dtype(e))));
        ds_engine_backward(e, loss);
        double begun = dsi_now();
        ds_engine_step(e);
        double ms = 1e3 * (dsi_now() - begun);
        if (ms < r.step_ms) r.step_ms = ms;
        r.peak_mb = 1e-6 * (double)dsi_cache_use(cpu).peak_live;
        ds_scope_close(scope);
    }
    if (ds_error()) {
        fprintf(stderr, "%s\n", ds_error());
        exit(1);
    }
    dsi_zero_bytes bytes = dsi_zero_memory(e->zero);
    r.state_mb = 1e-6 * (double)bytes.optimizer;
    r.file_mb = 1e-6 * (double)bytes.file;
    ds_engine_free(e);
    ds_scope_close(all);
    dsi_cache_empty(cpu);
    return r;
}

/* MB/s of plain requests of 1 MiB, one after the other, written and read. */
static double plain_rate(const Options *o, double mb)
{
    const size_t block = 1 << 20;
    int64_t bytes = (int64_t)(mb * 1e6 / (double)block) * (int64_t)block;
    char folder[1000];
    dsi_aio_file file;
    snprintf(folder, sizeof folder, "%s/bench_offload", o->path);
    void *p = aligned_alloc(DSI_AIO_ALIGN, block);
    if (!p || dsi_aio_file_open(&file, "bench", folder, "plain", bytes) != DS_OK) return 0;
    memset(p, 1, block);
    double best = 0;
    for (int turn = 0; turn < 2; turn++) { /* the first writes where nothing was */
        double begun = dsi_now();
        for (int64_t at = 0; at < bytes; at += (int64_t)block)
            if (pread(file.fd, p, block, at) != (ssize_t)block ||
                pwrite(file.fd, p, block, at) != (ssize_t)block)
                return 0;
        best = 2e-6 * (double)bytes / (dsi_now() - begun);
    }
    dsi_aio_file_close(&file);
    free(p);
    return best;
}

static void print(const char *name, Result r)
{
    printf("%-22s %10.1f %12.1f %12.1f %10.1f", name, r.step_ms, r.state_mb, r.peak_mb, r.file_mb);
    if (r.file_mb > 0) printf(" %12.0f", 2 * r.file_mb / r.step_ms * 1e3);
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    Options o = {
        .width = 2048, .layers = 6, .steps = 5, .buffers = 4, .path = ".", .dtype = "bf16"};
    const struct argp argp = {options, parse, NULL, "Time of a step with optimizer state on disk.",
                              NULL,    NULL,  NULL};
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    char slow[1000], fast[1100], both[2300];
    snprintf(slow, sizeof slow,
             ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"", o.path);
    snprintf(fast, sizeof fast,
             "%s, \"buffer_count\": %d, \"pipeline_read\": true, \"pipeline_write\": true}", slow,
             o.buffers);
    strcat(slow, "}");
    snprintf(
        both, sizeof both,
        "%s, \"offload_param\": {\"device\": \"nvme\", \"max_in_cpu\": 0, \"nvme_path\": \"%s\"}",
        fast, o.path);
    setenv("DS_LOG", "error", 0);
    printf("%s, %lld parameters, Adam\n", o.dtype, (long long)o.layers * o.width * (o.width + 1));
    printf("%-22s %10s %12s %12s %10s %12s\n", "optimizer state", "step ms", "in memory MB",
           "peak MB", "file MB", "disk MB/s");
    print("memory", train(&o, 1, ""));
    print("cpu", train(&o, 1, ", \"offload_optimizer\": {\"device\": \"cpu\"}"));
    print("nvme", train(&o, 1, slow));
    Result r = train(&o, 1, fast);
    print("nvme, pipeline", r);
    if (o.params) print("and parameters", train(&o, 3, both));
    printf("%-22s %10s %12s %12s %10.1f %12.0f\n", "plain, 1 MiB", "", "", "", r.file_mb,
           plain_rate(&o, r.file_mb));
    return 0;
}
