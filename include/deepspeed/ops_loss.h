/* deepspeed/ops_loss.h: softmax and losses; what holds for all
 * ops is in ops.h, which includes this file.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_OPS_LOSS_H
#define DEEPSPEED_OPS_LOSS_H

#include <deepspeed/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* torch.nn.functional.softmax and log_softmax along dim; the shape is x's. */
DS_API ds_tensor *ds_softmax(ds_tensor *x, int dim);     /* exp(x - max) / sum exp(x - max) */
DS_API ds_tensor *ds_log_softmax(ds_tensor *x, int dim); /* x - max - log sum exp(x - max) */

/* Of the losses of all elements: their mean, their sum, or each one. */
typedef enum ds_reduction { DS_MEAN = 0, DS_SUM, DS_NONE } ds_reduction;

typedef struct ds_cross_entropy_opts {
    ds_tensor *weight;      /* [C] weights of the classes, without a gradient; NULL: all 1 */
    double label_smoothing; /* 0 to 1 */
    int64_t ignore_index;   /* the label that is left out, if .ignore; else -100 is */
    bool ignore;
    ds_reduction reduction;
} ds_cross_entropy_opts;

/* torch.nn.functional.cross_entropy: -log softmax(logits)[label].
 *   logits [N,C] or [N,C,d1,...], labels int64 (or uint8) [N] or [N,d1,...], or
 *   probabilities of the logits' shape and dtype; or logits [C], a label []
 *   -> [], or [N] or [N,d1,...] for DS_NONE
 * Beside probabilities t it is -sum over c of weight[c] t[c] log softmax[c],
 * the mean is over N and d1,..., and .ignore_index is refused. The mean is over
 * the labels that are not ignored, weighted by .weight; NaN if there are none.
 * Refuses labels outside 0 to C - 1. */
DS_API ds_tensor *ds_cross_entropy(ds_tensor *logits, ds_tensor *labels);
DS_API ds_tensor *ds_cross_entropy_with(ds_tensor *logits, ds_tensor *labels,
                                        ds_cross_entropy_opts opts);

typedef struct ds_linear_cross_entropy_opts {
    double softcap; /* logits become softcap tanh(logits / softcap); 0: they do not */
    /* [] of any dtype, above 0, without a gradient: what the sum of the losses
     * is divided by, in place of the number of labels that count; NULL: that
     * number */
    ds_tensor *items;
} ds_linear_cross_entropy_opts;

/* cross_entropy(x w^T, labels), mean, for the head of a language model: the
 * logits [N,V] are never in memory, but for small ones.
 *   x [N,D], w [V,D], labels int64 [N], -100: ignored -> [], float32 beside
 *   16-bit x and w
 * NaN if all labels are ignored, unless .items says what to divide by. */
DS_API ds_tensor *ds_linear_cross_entropy(ds_tensor *x, ds_tensor *w, ds_tensor *labels);
DS_API ds_tensor *ds_linear_cross_entropy_with(ds_tensor *x, ds_tensor *w, ds_tensor *labels,
                                               ds_linear_cross_entropy_opts opts);

/* torch.nn.functional.mse_loss: the mean of (x - y)^2 -> [], or as reduction
 * says; for DS_NONE the shape is x's. x and y have the same shape. */
DS_API ds_tensor *ds_mse_loss(ds_tensor *x, ds_tensor *y);
DS_API ds_tensor *ds_mse_loss_with(ds_tensor *x, ds_tensor *y, ds_reduction reduction);

/* torch.nn.functional.nll_loss: -weight[label] x[label] of log probabilities x
 * [N,C,...] or [C]; labels, options and result as for cross_entropy, without
 * .label_smoothing. */
DS_API ds_tensor *ds_nll_loss(ds_tensor *x, ds_tensor *labels);
DS_API ds_tensor *ds_nll_loss_with(ds_tensor *x, ds_tensor *labels, ds_cross_entropy_opts opts);

/* torch.nn.functional.l1_loss: |x - y|. smooth_l1_loss: d = |x - y|, d < beta ?
 * d^2 / (2 beta) : d - beta / 2; beta 0: 1, DS_ZERO: l1_loss. huber_loss: d <
 * delta ? d^2 / 2 : delta (d - delta / 2); delta 0: 1. x and y broadcast. */
DS_API ds_tensor *ds_l1_loss(ds_tensor *x, ds_tensor *y);
DS_API ds_tensor *ds_l1_loss_with(ds_tensor *x, ds_tensor *y, ds_reduction reduction);
DS_API ds_tensor *ds_smooth_l1_loss(ds_tensor *x, ds_tensor *y, double beta,
                                    ds_reduction reduction);
DS_API ds_tensor *ds_huber_loss(ds_tensor *x, ds_tensor *y, double delta, ds_reduction reduction);

typedef struct ds_binary_cross_entropy_opts {
    ds_tensor *weight;     /* of the losses; broadcasts; without a gradient; NULL: 1 */
    ds_tensor *pos_weight; /* with logits: of the targets' part; broadcasts; NULL: 1 */
    ds_reduction reduction;
} ds_binary_cross_entropy_opts;

/* torch.nn.functional.binary_cross_entropy: -(t log x + (1 - t) log(1 - x)) of
 * probabilities x, logarithms at least -100; and of logits x, with sigmoid(x)
 * in place of x. The target t has x's shape. The first refuses an x or t
 * outside of 0 to 1, for which it waits for the device. */
DS_API ds_tensor *ds_binary_cross_entropy(ds_tensor *x, ds_tensor *target);
DS_API ds_tensor *ds_binary_cross_entropy_with(ds_tensor *x, ds_tensor *target,
                                               ds_binary_cross_entropy_opts opts);
DS_API ds_tensor *ds_binary_cross_entropy_with_logits(ds_tensor *x, ds_tensor *target,
                                                      ds_binary_cross_entropy_opts opts);

typedef struct ds_kl_div_opts {
    ds_reduction reduction;
    bool batchmean;  /* in place of .reduction: the sum, divided by x's first size */
    bool log_target; /* the target is a logarithm too */
} ds_kl_div_opts;

/* torch.nn.functional.kl_div: t (log t - x), x being log probabilities; 0 where
 * t is 0. */
DS_API ds_tensor *ds_kl_div(ds_tensor *x, ds_tensor *target, ds_kl_div_opts opts);

/* torch.nn.functional.cosine_similarity: x1 x2 / (|x1| |x2|) along dim, each
 * norm at least eps (0: 1e-8). x1 and x2 broadcast. */
DS_API ds_tensor *ds_cosine_similarity(ds_tensor *x1, ds_tensor *x2, int dim, double eps);

#ifdef __cplusplus
}
#endif

#endif
