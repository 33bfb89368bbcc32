/* device/optimizer.h: what an optimizer's kernel gets: parameters, the rule
 * with its numbers, and what a recorded step decides on the device.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "operations.h"

#include <deepspeed/types.h>

/* One parameter's memory, n contiguous elements: what an optimizer updates. p
 * is floating, g of its dtype, or of 16 bits beside a float32 p (master
 * weights); moments have p's dtype, but float32 for the 16-bit ones. Unused
 * moments are NULL. A float32 p that has a bfloat16 copy is untied
 * (base/half.h), in memory or in two halves, with the same results. */
typedef struct dsi_span {
    ds_dtype dtype;
    void *p;
    const void *g;
    void *m, *v, *vmax;
    int64_t n;
    int64_t step; /* 1 at the first update of this parameter */
    ds_dtype g_dtype;
    double g_scale; /* g is multiplied by it: unscaling and clipping need no pass
                       of their own */
    void *low;      /* optional, beside a float32 p: a 16-bit copy of p, written
                       after the update */
    ds_dtype low_dtype;
    int16_t *rest; /* optional, beside a bfloat16 p: both are the halves of a
                      float32 that is updated; g is of 16 bits or float32 */
} dsi_span;

typedef struct dsi_sgd {
    double lr, momentum, dampening, weight_decay;
    bool nesterov, maximize;
} dsi_sgd;

typedef struct dsi_adam {
    double lr, beta1, beta2, eps, weight_decay;
    bool decoupled; /* AdamW */
    bool amsgrad, maximize, bias_correction;
} dsi_adam;

typedef struct dsi_adagrad {
    double lr, lr_decay, weight_decay, eps;
    bool maximize;
} dsi_adagrad;

typedef struct dsi_rmsprop {
    double lr, alpha, eps, weight_decay, momentum;
    bool centered, maximize;
} dsi_rmsprop;

typedef struct dsi_adadelta {
    double lr, rho, eps, weight_decay;
    bool maximize;
} dsi_adadelta;

typedef struct dsi_lion {
    double lr, beta1, beta2, weight_decay;
} dsi_lion;

typedef struct dsi_lamb {
    double lr, beta1, beta2, eps, weight_decay, max_coeff, min_coeff;
    bool bias_correction, eps_inside_sqrt;
} dsi_lamb;

/* Numbers that change from step to step, in device memory: a step that was
 * recorded once can be replayed after these were written. */
typedef struct dsi_step_scalars {
    double lr;       /* in place of the rule's */
    double momentum; /* the same: momentum of SGD and RMSprop, beta1 of Adam, Lion and LAMB; 0
                        exactly if the rule's is */
    int64_t steps;   /* added to each span's step */
} dsi_step_scalars;

/* The results and decisions of a step, in device memory: the kernel step_result
 * writes them, optimizers read them, and the host reads them after the step. */
typedef struct dsi_step_result {
    double loss;     /* NaN: there is none */
    double norm;     /* of the unscaled gradients; NaN: there is none */
    double g_factor; /* by which gradients are unscaled and clipped */
    double skip;     /* 1: nothing is updated; else 0 */
    double fault;    /* op of the device's fault flag; 0: none */
} dsi_step_result;

typedef struct dsi_step_limits {
    double max_norm;               /* gradients are clipped to it; 0: they are not */
    bool finite_loss, finite_norm; /* the update is skipped if it is inf or NaN */
} dsi_step_limits;

/* torch.amp.GradScaler's, which kernel loss_scale updates in device memory. */
typedef struct dsi_loss_scale {
    double scale;   /* a float32 above 0 */
    double inverse; /* 1 / scale, rounded to float32 */
    double good;    /* updates in a row without a skipped step */
    double skips;   /* of steps since the last update */
    double one;     /* 1, by which gradients count that are unscaled already */
} dsi_loss_scale;

typedef struct dsi_scale_rule {
    double growth, backoff;
    int64_t interval; /* updates without a skipped step until the scale grows */
} dsi_scale_rule;

typedef struct dsi_optimizer {
    dsi_rule rule; /* which member of the union counts; lr is the first field of each */
    union {
        dsi_sgd sgd;
        dsi_adam adam;
        dsi_adagrad adagrad;
        dsi_rmsprop rmsprop;
        dsi_adadelta adadelta;
        dsi_lion lion;
        dsi_lamb lamb;
    };
    /* in device memory, each optional */
    const dsi_step_scalars *scalars; /* NULL: all is as given by value */
    const double *g_factor;          /* multiplies each span's g_scale */
    const double *skip;              /* not 0: nothing is written */
} dsi_optimizer;
