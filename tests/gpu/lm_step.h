/* tests/gpu/lm_step.h: a step of training of a language model, for step graphs.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed.h>

typedef struct Training {
    ds_module *net;
    ds_optim *optim;
} Training;

/* in[0]: ids, which are their own labels. Returns the loss. */
static inline ds_tensor *training_step(void *self, ds_tensor *const *in, int n)
{
    Training *t = self;
    (void)n;
    ds_tensor *loss = ds_call(t->net, in[0], in[0]);
    ds_optim_zero_grad(t->optim);
    ds_backward(loss);
    ds_optim_step(t->optim);
    return loss;
}
