/* tests/gpu/nets.h: the small network and the optimizers that the tests of this
 * folder train.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 24 }; /* inputs of the small network */

static inline ds_module *small_net(void)
{
    ds_seed(5);
    ds_module *net = ds_nn_sequential(NULL, "net");
    ds_nn_linear(net, "a", WIDTH, WIDTH);
    ds_nn_relu(net, "b");
    ds_nn_linear(net, "c", WIDTH, 1);
    return net;
}

/* One optimizer of each rule, by number. */
enum { RULES = 8 };
static inline ds_optim *optimizer_new(int rule, ds_module *net)
{
    switch (rule) {
    case 0:
        return ds_optim_sgd(net, 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01);
    case 1:
        return ds_optim_adam(net, 0.01, .amsgrad = true, .weight_decay = 0.01);
    case 2:
        return ds_optim_adamw(net, 0.01, .weight_decay = 0.1);
    case 3:
        return ds_optim_adagrad(net, 0.1, .lr_decay = 0.1);
    case 4:
        return ds_optim_rmsprop(net, 0.01, .centered = true, .momentum = 0.5);
    case 5:
        return ds_optim_adadelta(net, 1);
    case 6:
        return ds_optim_lion(net, 0.01, .weight_decay = 0.1);
    default:
        return ds_optim_lamb(net, 0.01, .weight_decay = 0.1);
    }
}

/* Appends the values of all parameters, as float32: *values (NULL at first, to be
 * freed) grows, and *bytes. */
static inline void values_add(ds_module *net, float **values, size_t *bytes)
{
    ds_scope *scope = ds_scope_open();
    int n = ds_module_params(net);
    for (int i = 0; i < n; i++) {
        ds_tensor *p = ds_to(ds_module_param_at(net, i, NULL), (ds_device){DS_CPU, 0}, DS_F32);
        size_t more = (size_t)ds_numel(p) * sizeof(float);
        *values = realloc(*values, *bytes + more);
        memcpy((char *)*values + *bytes, ds_data(p), more);
        *bytes += more;
    }
    ds_scope_close(scope);
}
