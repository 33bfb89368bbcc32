/* examples/common/experts.h: the mixture of experts of DeepSpeed's CIFAR-10
 * example: options, network, load-balancing loss, load of the experts.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <argp.h>
#include <deepspeed.h>

#define MOST_LAYERS 16

typedef struct Experts {
    bool on;
    int num_experts[MOST_LAYERS], layers; /* of each layer */
    ds_moe_opts opts;                     /* of all */
    double aux_loss_weight;
    const char *given;            /* an option that was given and needs --moe */
    bool listing;                 /* the last option was --num-experts */
    ds_tensor *load[MOST_LAYERS]; /* int64 [2, experts]: tokens chosen, accepted, on this rank */
} Experts;

/* A child parser for argp; its input is an Experts. It takes arguments without
 * an option as numbers of experts. */
extern const struct argp experts_argp;

/* The tutorial's network with MoE layers of 84-84 instead of fc3, and fc4 of
 * 84-10. */
ds_module *experts_net(const Experts *x);

/* loss + aux_loss_weight times the layers' load-balancing losses. */
ds_tensor *experts_loss(const Experts *x, ds_module *net, ds_tensor *loss);

/* Adds the expert counts of the last call of net. */
void experts_count(Experts *x, ds_module *net);
/* Prints a line for each layer with the sum of all ranks' counts, if first;
 * resets the counts. All ranks call it. */
void experts_print(Experts *x, bool first);
void experts_free(Experts *x);
