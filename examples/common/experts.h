/* examples/common/experts.h: the mixture of experts of DeepSpeed's CIFAR-10 example: its options, its network, its
 * loss for balance, how busy the experts were.
 * SPDX-License-Identifier: MIT */
#ifndef EXAMPLES_EXPERTS_H
#define EXAMPLES_EXPERTS_H

#include <argp.h>
#include <deepspeed.h>

#define MOST_LAYERS 16

typedef struct Experts {
    bool on;
    int num_experts[MOST_LAYERS], layers; /* of each layer */
    ds_moe_opts opts;                     /* of all */
    double aux_loss_weight;
    const char *given;            /* an option that means nothing without --moe */
    bool listing;                 /* the last option was --num-experts */
    ds_tensor *load[MOST_LAYERS]; /* int64 [2, experts]: chosen, taken, on this rank; kept */
} Experts;

/* A child parser for argp; its input is an Experts. Takes loose arguments, which are numbers of experts. */
extern const struct argp experts_argp;

/* The tutorial's network, with layers of experts of 84-84 where fc3 is, and fc4 of 84-10. */
ds_module *experts_net(const Experts *x);

/* loss + the weight times the layers' losses for balance. */
ds_tensor *experts_loss(const Experts *x, ds_module *net, ds_tensor *loss);

/* After a call of the network: counts what its experts had to do. */
void experts_count(Experts *x, ds_module *net);
/* A line for each layer with what was counted on all ranks, which all call it; it begins anew. */
void experts_print(Experts *x, bool first);
void experts_free(Experts *x);

#endif
