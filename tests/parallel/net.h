/* tests/parallel/net.h: a net of a convolution and odd sizes but one, and its
 * data: what tests of this folder train.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "ranks.h"

#define MOST 96   /* samples at a time */
#define ROOM 8192 /* elements of all parameters, at most */

typedef struct Net {
    ds_module *conv, *fc1, *fc2;
} Net;

static inline ds_tensor *net_forward(void *self, ds_tensor *x)
{
    Net *net = self;
    x = ds_max_pool2d(ds_relu(ds_call(net->conv, x)), 2); /* [B,5,4,4] */
    x = ds_relu(ds_call(net->fc1, ds_flatten(x, 1)));
    return ds_call(net->fc2, x);
}

static inline ds_module *net_new(void)
{
    static const ds_module_type type = {"Net", sizeof(Net), .forward = net_forward};
    ds_seed(7);
    ds_module *m = ds_module_new(NULL, "net", &type);
    Net *net = ds_self(m);
    net->conv = ds_nn_conv2d(m, "conv", 3, 5, 3, .padding = 1);
    net->fc1 = ds_nn_linear(m, "fc1", 80, 32);
    net->fc2 = ds_nn_linear(m, "fc2", 32, 7);
    return m;
}

/* n samples, of which the first is number `from`, and their labels: the same on
 * every rank. */
static inline ds_tensor *samples(ds_dtype dtype, int64_t from, int n, ds_tensor **labels)
{
    float x[MOST][3 * 8 * 8];
    int64_t y[MOST];
    for (int i = 0; i < n; i++) {
        uint64_t state = (uint64_t)(from + i) * 6364136223846793005u + 1442695040888963407u;
        y[i] = (from + i) * 5 % 7;
        for (int k = 0; k < 3 * 8 * 8; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            x[i][k] = (float)(state >> 40) / (1 << 23) - 1 + (k % 7 == y[i]);
        }
    }
    *labels = ds_from_data(DS_I64, ds_shape(n), y);
    return ds_cast(ds_from_data(DS_F32, ds_shape(n, 3, 8, 8), x), dtype);
}

static inline ds_tensor *loss_of(ds_module *net, ds_dtype dtype, int64_t from, int n)
{
    ds_tensor *labels, *x = samples(dtype, from, n, &labels);
    return ds_cross_entropy(ds_cast(ds_call(net, x), DS_F32), labels);
}

/* All parameters of the net as floats. */
static inline int values(ds_module *net, float *to, int room)
{
    int n = 0, count = ds_module_params(net);
    ds_tensor *params[16];
    for (int i = 0; i < count; i++) params[i] = ds_module_param_at(net, i, NULL);
    if (ds_gathered(params, count) != DS_OK) return -1;
    for (int i = 0; i < count; i++) {
        ds_tensor *p = ds_cast(ds_detach(params[i]), DS_F32);
        if (n + ds_numel(p) > room) return -1;
        memcpy(to + n, ds_data(p), (size_t)ds_numel(p) * sizeof(float));
        n += (int)ds_numel(p);
    }
    return ds_gathered_end(params, count, -1) == DS_OK ? n : -1;
}
