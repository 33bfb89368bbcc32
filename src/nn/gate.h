/* nn/gate.h: top-k gating: which expert takes which token.
 *
 * Note [Gate] For each of S tokens a gate gives E probabilities, softmax(x
 * wg^T), in float32 for every dtype of the model. A token is routed to its k
 * most probable experts; an expert takes at most `capacity` tokens:
 *
 *     capacity = max(ceil(S / E * factor * k), min_capacity), or without dropping
 *                the largest number of tokens that chose one expert
 *
 *             which tokens an expert takes             weight of its output
 *     k = 1   the first ones; in training, random      its probability p
 *     k = 2   first choices before second ones         p / sum of p of the experts
 *                                                      that took the token
 *     k > 2   the most probable ones of each expert    as for k = 2
 *
 * The others are dropped: their weight is 0. The loss for balance,
 *     aux = E sum over e of mean(p_e) f_e      (for k > 2 divided by k),
 * is 1 if all experts are chosen equally often. f_e, the fraction of tokens
 * that chose e (as first choice, for k = 2), is counted before dropping and has
 * no gradient.
 *
 * On a device that routes tokens itself (ops/route.h) nothing of this is known
 * to the host but the capacity, so each expert has as many rows, or as the
 * largest capacity of the ranks that share it; those without a token are 0.
 * Without dropping there are as many rows as choices, sorted by expert.
 * Random numbers there are the device's.
 *
 * Noise, in training: Jitter multiplies x by U(0.99, 1.01); RSample (k = 1)
 * adds Gumbel noise to the logits that choose; with k = 2 the second expert is
 * sampled from the others by its probability, with Gumbel noise too.
 * Source: GShard, arXiv 2006.16668; Switch Transformers, arXiv 2101.03961; DeepSpeed's TopKGate.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "ops/groups.h"
#include "ops/route.h"

#include <deepspeed/nn.h>

typedef struct dsi_gate dsi_gate;

/* The routes of one batch. All tensors are int64, in the memory of the device
 * that routes the tokens: theirs, if it can and the host does not need the
 * counts; else the host, to which probabilities are copied. */
typedef struct dsi_routes {
    ds_tensor *expert; /* [S,k]: the choices */
    ds_tensor *place;  /* [S,k]: row of the expert's batch, 0 .. taken-1; -1: dropped */
    ds_tensor *chosen; /* [E]: tokens that chose e, before dropping (exp_counts) */
    ds_tensor *first;  /* [E]: those that count in f */
    ds_tensor *taken;  /* [E]: tokens that it takes */
    ds_tensor *slot;   /* [S,k]: expert rows + place, or -1; NULL: without dropping, or
                          routed on the host */
    dsi_groups groups; /* of all choices, routed on the device without dropping; else NULL */
    int64_t capacity;  /* -1: the largest of `taken`, which the device alone knows */
    int64_t rows;      /* of each expert, where there is a slot: the same on all ranks */
} dsi_routes;

/* p, logits: float32 [S,E]; used: NULL or int64 [S], 0 for tokens that go
 * nowhere (k = 1), all where they are routed. Fills r, whose tensors are there
 * and 0 on the host, and NULL elsewhere; false with the message. */
typedef bool dsi_route_fn(const dsi_gate *g, ds_tensor *logits, ds_tensor *p, ds_tensor *used,
                          dsi_routes *r);

struct dsi_gate {
    ds_moe_opts o;
    bool training;
    bool jitter, rsample;
    bool grouped; /* experts take rows that the device alone counts, and there is no used_token */
    dsi_row_agreement *ranks; /* of the ranks that share the experts; NULL: this one alone */
    ds_module *wg;
    dsi_route_fn *route; /* a test may set another one */
};

/* Sets all but wg; false, with the message, which begins with the layer's name,
 * for options that cannot be. */
bool dsi_gate_open(dsi_gate *g, const char *name, const ds_moe_opts *o);
/* The module "wg" of the gate. */
void dsi_gate_make_wg(dsi_gate *g, ds_module *parent, int64_t hidden);

/* x [S,hidden], used NULL or [S] -> routes, the weights [S,k] and the loss for
 * balance []; false with the message. */
bool dsi_gate_run(dsi_gate *g, ds_tensor *x, ds_tensor *used, dsi_routes *r, ds_tensor **weights,
                  ds_tensor **aux);
