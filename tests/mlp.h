/* tests/mlp.h: a network of equal layers, for tests and benchmarks of what
 * layers do not matter to.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/nn.h>

#include <stdio.h>

/* fc0, act0, fc1, ...: width x width each, behind it an activation (ds_nn_relu,
 * ds_nn_gelu). */
static inline ds_module *mlp_new(int layers, int64_t width,
                                 ds_module *(*activation)(ds_module *parent, const char *name))
{
    ds_module *m = ds_nn_sequential(NULL, "mlp");
    for (int i = 0; i < layers; i++) {
        char name[2][16];
        snprintf(name[0], sizeof *name, "fc%d", i);
        snprintf(name[1], sizeof *name, "act%d", i);
        ds_nn_linear(m, name[0], width, width);
        activation(m, name[1]);
    }
    return m;
}
