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
 * logits [N,V] are never in memory, except small ones.
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

/* torch.nn.functional.pairwise_distance: the p-norm (0: 2) of x1 - x2 + eps (0:
 * 1e-6) along the last dimension, which stays with size 1 if keepdim. x1 and x2
 * broadcast. */
DS_API ds_tensor *ds_pairwise_distance(ds_tensor *x1, ds_tensor *x2, double p, double eps,
                                       bool keepdim);

/* ---- margins: y is 1 for what is alike (or comes first), -1 for what is not; of x's
 * dtype, or integers. A margin of 0 selects the default in brackets. ------------------- */

/* torch.nn.functional.hinge_embedding_loss: x where y is 1, max(0, margin [1] -
 * x) where it is -1. x and y broadcast. */
DS_API ds_tensor *ds_hinge_embedding_loss(ds_tensor *x, ds_tensor *y, double margin,
                                          ds_reduction reduction);
/* torch.nn.functional.margin_ranking_loss: max(0, margin [0] - y (x1 - x2));
 * all
 * broadcast. */
DS_API ds_tensor *ds_margin_ranking_loss(ds_tensor *x1, ds_tensor *x2, ds_tensor *y, double margin,
                                         ds_reduction reduction);
/* torch.nn.functional.cosine_embedding_loss: c = x1 x2 / (|x1| |x2|), 1 - c
 * where y is 1, max(0, c - margin [0]) where it is -1. x1, x2 [N,D], y [N]; or
 * [D], []. */
DS_API ds_tensor *ds_cosine_embedding_loss(ds_tensor *x1, ds_tensor *x2, ds_tensor *y,
                                           double margin, ds_reduction reduction);
/* torch.nn.functional.soft_margin_loss: log(1 + exp(-y x)), of one shape. */
DS_API ds_tensor *ds_soft_margin_loss(ds_tensor *x, ds_tensor *y, ds_reduction reduction);

typedef struct ds_triplet_margin_loss_opts {
    double margin; /* above 0; 0: 1 */
    double p, eps; /* as of ds_pairwise_distance */
    bool swap;     /* the smaller one of the negative's distances to the anchor and positive */
    ds_reduction reduction;
} ds_triplet_margin_loss_opts;

/* torch.nn.functional.triplet_margin_loss: max(0, margin + d(anchor, positive)
 * - d(anchor, negative)), d = ds_pairwise_distance; [N,D] -> [N] before the
 * reduction. */
DS_API ds_tensor *ds_triplet_margin_loss(ds_tensor *anchor, ds_tensor *positive,
                                         ds_tensor *negative, ds_triplet_margin_loss_opts opts);

typedef struct ds_multi_margin_loss_opts {
    int p;             /* 1 or 2; 0: 1 */
    double margin;     /* 0: 1 */
    ds_tensor *weight; /* [C], without a gradient; NULL: all 1 */
    ds_reduction reduction;
} ds_multi_margin_loss_opts;

/* torch.nn.functional.multi_margin_loss: weight[l] / C, l the label, times the
 * sum over j != l of max(0, margin - x[l] + x[j])^p. x [N,C], labels int64 [N];
 * or [C], []. */
DS_API ds_tensor *ds_multi_margin_loss(ds_tensor *x, ds_tensor *labels,
                                       ds_multi_margin_loss_opts opts);
/* torch.nn.functional.multilabel_margin_loss: the sum over labels l and classes
 * j that are none of max(0, 1 - x[l] + x[j]) / C. x [N,C], labels int64 [N,C],
 * of which those before a row's first -1 count; or [C], [C]. */
DS_API ds_tensor *ds_multilabel_margin_loss(ds_tensor *x, ds_tensor *labels,
                                            ds_reduction reduction);
/* torch.nn.functional.multilabel_soft_margin_loss: the mean over classes, the
 * last dimension, of binary cross entropies of logits x and y, 0 or 1, times
 * weight, which broadcasts, has no gradient, and may be NULL. */
DS_API ds_tensor *ds_multilabel_soft_margin_loss(ds_tensor *x, ds_tensor *y, ds_tensor *weight,
                                                 ds_reduction reduction);

/* ---- distributions -------------------------------------------------------------------- */

typedef struct ds_gaussian_nll_loss_opts {
    bool full;  /* with log(2 pi) / 2 */
    double eps; /* the least variance; 0: 1e-6 */
    ds_reduction reduction;
} ds_gaussian_nll_loss_opts;

/* torch.nn.functional.gaussian_nll_loss: (log var + (x - target)^2 / var) / 2.
 * var has x's shape, or 1 in its last dimension, or lacks it. Refuses a var
 * below 0, for which it waits for the device. */
DS_API ds_tensor *ds_gaussian_nll_loss(ds_tensor *x, ds_tensor *target, ds_tensor *var,
                                       ds_gaussian_nll_loss_opts opts);

typedef struct ds_poisson_nll_loss_opts {
    bool no_log_input; /* x is the rate itself: x - target log(x + eps) */
    bool full;         /* with Stirling's log(target!) of targets above 1 */
    double eps;        /* 0: 1e-8 */
    ds_reduction reduction;
} ds_poisson_nll_loss_opts;

/* torch.nn.functional.poisson_nll_loss: exp(x) - target x, x being the rate's
 * logarithm. */
DS_API ds_tensor *ds_poisson_nll_loss(ds_tensor *x, ds_tensor *target,
                                      ds_poisson_nll_loss_opts opts);

typedef struct ds_ctc_loss_opts {
    int64_t blank;      /* the class between labels */
    bool zero_infinity; /* 0, without a gradient, for targets that do not fit their input */
    ds_reduction reduction;
} ds_ctc_loss_opts;

/* torch.nn.functional.ctc_loss, Graves et al., ICML 2006: -log of the sum of
 * all alignments' probabilities.
 *   log_probs [T,N,C], targets int64 [N,S] (or all in a row, [sum of target_lengths]),
 *   input_lengths and target_lengths int64 [N]; or [T,C], [S], [], []
 * The mean is over samples of loss / max(target length, 1). Lengths are read by
 * the host, which waits for a GPU. The gradient is that of log_probs
 * themselves, where PyTorch's is right behind a log_softmax only. A target that
 * does not fit its input has an infinite loss, without a gradient, where
 * PyTorch's is NaN; see .zero_infinity. Refuses a target that is blank, or no
 * class. */
DS_API ds_tensor *ds_ctc_loss(ds_tensor *log_probs, ds_tensor *targets, ds_tensor *input_lengths,
                              ds_tensor *target_lengths, ds_ctc_loss_opts opts);

#ifdef __cplusplus
}
#endif

#endif
