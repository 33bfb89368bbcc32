/* bench/half.c: a training step in float32, bfloat16 and float16: bytes and time, of the tutorial network at
 * batch 16 and of a wide MLP at batch 256.
 *
 * parameters: of the model. peak: the most in use during forward and backward above the model and the
 * batch, gradients of parameters included. No optimizer runs: it works on float32 masters in any case.
 * Each time is the best of several steps.
 * SPDX-License-Identifier: MIT */
#include "classify.h"

#include <stdio.h>
#include <time.h>

static const ds_device cpu = {DS_CPU, 0};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static ds_module *wide_new(void)
{
    ds_module *m = ds_nn_sequential(NULL, "mlp");
    ds_nn_linear(m, "0", 1024, 4096);
    ds_nn_relu(m, "1");
    ds_nn_linear(m, "2", 4096, 4096);
    ds_nn_relu(m, "3");
    ds_nn_linear(m, "4", 4096, 10);
    return m;
}

typedef struct Work {
    const char *name;
    ds_module *(*build)(void);
    ds_dims x;
    int steps;
} Work;

static void run(const Work *work, ds_dtype dtype)
{
    ds_seed(1);
    ds_scope *scope = ds_scope_open();
    ds_module *m = work->build();
    ds_module_to(m, dtype);
    ds_tensor *x = ds_cast(ds_randn(DS_F32, work->x), dtype);
    ds_tensor *y = ds_zeros(DS_I64, ds_shape(work->x.d[0]));
    size_t before = ds_memory_allocated(cpu), peak = 0;
    double best = 1e9;
    for (int i = 0; i < work->steps && !ds_error(); i++) {
        double begin = now();
        ds_scope *step = ds_scope_open();
        ds_module_zero_grad(m);
        ds_memory_reset_peak(cpu);
        ds_backward(ds_cross_entropy(ds_call(m, x), y));
        ds_scope_close(step);
        peak = ds_memory_peak(cpu) - before;
        double seconds = now() - begin;
        if (seconds < best) best = seconds;
    }
    double parameters = (double)ds_module_numel(m) * (double)ds_dtype_size(dtype);
    printf("%-14s %-9s %12.1f %12.1f %12.1f\n", work->name, ds_dtype_name(dtype), parameters / 1024,
           (double)peak / 1024, 1e6 * best);
    ds_module_free(m);
    ds_scope_close(scope);
}

int main(void)
{
    const Work works[] = {
        {"tutorial, 16", net_new, ds_shape(16, 3, 32, 32), 400},
        {"MLP 4096, 256", wide_new, ds_shape(256, 1024), 8},
    };
    const ds_dtype dtypes[] = {DS_F32, DS_BF16, DS_F16};
    printf("%-14s %-9s %12s %12s %12s\n", "", "", "params KiB", "peak KiB", "us/step");
    for (int w = 0; w < 2; w++)
        for (int d = 0; d < 3; d++) run(&works[w], dtypes[d]);
    if (ds_error()) fprintf(stderr, "bench_half: %s\n", ds_error());
    return ds_error() != NULL;
}
