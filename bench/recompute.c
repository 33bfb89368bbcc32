/* bench/recompute.c: a training step with and without checkpoints: bytes at its
 * peak (above model and gradients) and time, for a deep MLP and a residual
 * convolutional network, cut into more or fewer parts.
 *
 * "parts 0" is without checkpoints. Each time is the best of 7 steps.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"

#include <deepspeed.h>

#include <stdio.h>

static const ds_device cpu = {DS_CPU, 0};

/* ---- networks: a list of layers of equal cost --------------------------------------------------------- */

enum { LAYERS = 32 };

static ds_module *mlp_layer(ds_module *m, const char *name)
{
    ds_module *layer = ds_nn_sequential(m, name);
    ds_nn_linear(layer, "0", 256, 256);
    ds_nn_gelu(layer, "1");
    return layer;
}

static ds_tensor *residual_forward(void *self, ds_tensor *x)
{
    ds_module *m = ds_module_of(self);
    ds_tensor *y = x;
    for (int i = 0; i < ds_module_children(m); i++) y = ds_call(ds_module_child(m, i), y);
    return ds_add(x, y);
}

static ds_module *conv_layer(ds_module *m, const char *name)
{
    static const ds_module_type type = {"Residual", 0, .forward = residual_forward};
    ds_module *layer = ds_module_new(m, name, &type);
    ds_nn_conv2d(layer, "0", 32, 32, 3, .padding = 1);
    ds_nn_batch_norm2d(layer, "1", 32);
    ds_nn_relu(layer, "2");
    return layer;
}

typedef struct Net {
    const char *name;
    ds_module *(*layer)(ds_module *m, const char *name);
    ds_dims in;
} Net;

static ds_module *build(const Net *net)
{
    ds_module *m = ds_nn_sequential(NULL, net->name);
    for (int i = 0; i < LAYERS; i++) {
        char name[12];
        snprintf(name, sizeof name, "%d", i);
        net->layer(m, name);
    }
    return m;
}

/* ---- a step -------------------------------------------------------------------------------------------- */

typedef struct Part {
    ds_module *m;
    int begin, end; /* layers */
} Part;

static ds_tensor *run_part(void *arg, ds_tensor **in, int n)
{
    Part *part = arg;
    ds_tensor *x = in[0];
    for (int i = part->begin; n == 1 && i < part->end; i++)
        x = ds_call(ds_module_child(part->m, i), x);
    return x;
}

static ds_status step(ds_module *m, ds_tensor *x, int parts)
{
    Part part[LAYERS];
    ds_scope *s = ds_scope_open();
    ds_tensor *y = x;
    for (int i = 0, n = parts ? parts : 1; i < n; i++) {
        part[i] = (Part){m, LAYERS * i / n, LAYERS * (i + 1) / n};
        y = parts ? ds_checkpoint(run_part, &part[i], &y, 1) : run_part(&part[i], &y, 1);
    }
    ds_status status = ds_backward(ds_mean(y));
    ds_scope_close(s);
    return status;
}

static bool measure(const Net *net, int parts, double *plain_ms)
{
    ds_scope *s = ds_scope_open();
    ds_module *m = build(net);
    ds_tensor *x = ds_randn(DS_F32, net->in);
    ds_status status = step(m, x, parts); /* gradients exist from here on */
    size_t before = ds_memory_allocated(cpu);
    ds_memory_reset_peak(cpu);
    double best = 1e9;
    for (int i = 0; i < 7 && status == DS_OK; i++) {
        double start = dsi_now();
        status = step(m, x, parts);
        double t = 1e3 * (dsi_now() - start);
        if (t < best) best = t;
    }
    if (!parts) *plain_ms = best;
    printf("  parts %2d: peak %7.2f MB, %8.2f ms, time x %.2f\n", parts,
           (double)(ds_memory_peak(cpu) - before) / 1e6, best, best / *plain_ms);
    ds_module_free(m);
    ds_scope_close(s);
    return status == DS_OK;
}

int main(void)
{
    static const int parts[] = {0, 2, 4, 6, 8, 16, 32};
    const Net nets[] = {{"mlp", mlp_layer, ds_shape(256, 256)},
                        {"conv", conv_layer, ds_shape(16, 32, 16, 16)}};
    double plain_ms = 0;
    for (size_t n = 0; n < sizeof nets / sizeof *nets; n++) {
        printf("%s, %d layers\n", nets[n].name, LAYERS);
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            if (!measure(&nets[n], parts[i], &plain_ms))
                return fprintf(stderr, "%s\n", ds_error()), 1;
    }
    return 0;
}
