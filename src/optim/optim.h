/* optim/optim.h: what optim.c needs to know of an optimizer: its kernel, its options, its moments.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_OPTIM_OPTIM_H
#define DSI_OPTIM_OPTIM_H

#include "tensor/tensor.h"

#include <deepspeed/autograd.h>
#include <deepspeed/optim.h>

#define DSI_MOMENTS 3 /* m, v, vmax of dsi_span */

/* The kernel's options; each begins with the learning rate, which a schedule changes. */
typedef union dsi_optim_options {
    double lr;
    dsi_sgd sgd;
    dsi_adam adam;
    dsi_adagrad adagrad;
    dsi_rmsprop rmsprop;
    dsi_lion lion;
    dsi_lamb lamb;
} dsi_optim_options;

typedef struct dsi_optim_rule {
    const char *name; /* "sgd": of the kernel, and in front of messages */
    /* Runs the kernel on the device of p, the first parameter. */
    ds_status (*run)(const ds_tensor *p, const dsi_optim_options *o, int n, const dsi_span *x);
    const char *moment[DSI_MOMENTS]; /* PyTorch's names of m, v, vmax; NULL: unused */
    double initial[DSI_MOMENTS];     /* what a moment begins with */
    dsi_optim_options options;
    bool needs_whole; /* not element by element */
} dsi_optim_rule;

/* An optimizer of model's parameters; NULL passes. Copies the rule. */
ds_optim *dsi_optim_new(ds_module *model, const dsi_optim_rule *rule);

/* ---- for who keeps the parameters that are updated (masters, parts of a rank) ---------------------------- */

int dsi_optim_params(const ds_optim *o); /* in the order of ds_module_param_at */

/* From now on parameter i is updated in place of `p`: a float32 master, or a rank's part of it, of any
 * shape; its gradient is ds_grad(p), of p's dtype or, if p is float32, of 16 bits. NULL: steps leave it
 * out. low, or NULL: 16-bit, of p's number of elements, written after each step. Moments begin anew. */
ds_status dsi_optim_set_param(ds_optim *o, int i, ds_tensor *p, ds_tensor *low);

/* Whether the rule asks for more than one element at a time (LAMB's norms): parts will not do. */
bool dsi_optim_needs_whole(const ds_optim *o);

/* ds_optim_step with each gradient times g_scale. */
ds_status dsi_optim_step_scaled(ds_optim *o, double g_scale);

/* Option checks: false, with the message, unless value >= 0, or 0 <= value < 1. NaN is refused. */
bool dsi_optim_not_negative(const char *optim, const char *option, double value);
bool dsi_optim_is_beta(const char *optim, const char *option, double value);

static inline double dsi_optim_default(double value, double otherwise)
{
    return value == 0 ? otherwise : value;
}

#endif
