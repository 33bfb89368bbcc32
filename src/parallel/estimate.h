/* parallel/estimate.h: the memory of one rank under ZeRO, worked out before
 * anything is made.
 *
 * Note [Estimate] Model state follows from the table in zero.h. Temporary
 * memory is largest at some moment of a backward pass, when activations, a
 * gradient that was just made, buckets, and at stage 3 gathered parameters
 * exist
 * together:
 *
 *     buckets    stages 0, 1: they are the gradients; stages 2, 3: one that fills, one on its way
 *     gathered   stage 3: the longest of one parameter, what is gathered ahead, and what a backward finds
 *                because it will be used again soon; max_live at most
 *
 * With a model the moments of a real pass are known (dsi_pass_event), and
 * buckets are followed through them as reduce.c opens and frees them; without
 * one everything is taken to be there at once.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "zero.h"

typedef struct dsi_estimate {
    int64_t parameters, gradients, optimizer; /* bytes, as dsi_zero_memory counts them */
    int64_t passing; /* activations, a gradient, buckets: at the worst moment of a pass */
    int64_t gathered;
    int64_t peak;
    int64_t file; /* bytes on disk, of which `optimizer` is what is in memory; else 0 */
} dsi_estimate;

/* Sizes that the model state depends on, besides the options. */
typedef struct dsi_estimate_sizes {
    int ranks, moments;  /* tensors of the optimizer beside each parameter */
    bool accumulates;    /* over several passes */
    bool takes_halves;   /* dsi_optim_takes_halves */
    int64_t params;      /* elements */
    int64_t largest;     /* elements of the largest parameter; 0: no larger than a bucket */
    int64_t activations; /* bytes */
} dsi_estimate_sizes;

dsi_estimate dsi_estimate_sizes_only(const dsi_zero_opts *o, const dsi_estimate_sizes *s);

/* Backward has completed the gradient of parameter i of a layout. Bytes above
 * what there was before the forward, without the gradients of earlier
 * events. */
typedef struct dsi_pass_event {
    int i;
    bool
        placed; /* its op asked where to write it (dsi_new_grad), for which there is a bucket on several ranks */
    int64_t before; /* then: the peak until it asked, */
    int64_t peak;   /* since the event before, or the pass's begin, or since it asked */
    int64_t live;   /* now, with this gradient */
} dsi_pass_event;

/* f: the layout (dsi_zero_layout) of the model, of which a pass had these
 * events. s->params, largest and activations are not looked at. */
dsi_estimate dsi_estimate_pass(const dsi_zero_opts *o, const dsi_estimate_sizes *s,
                               const dsi_flat *f, const dsi_pass_event *e, int n);
