/* deepspeed/ops.h: every op, torch.nn.functional in C. A formula and the shapes stand above each.
 *
 * An op returns a new tensor in the current scope, or NULL: if an operand is NULL (the message stays
 * that of whoever failed first) or if it refuses (shapes, dtypes). Operands of one op have the same
 * dtype and device. 16-bit operands are computed in float32 and rounded once. Every op has a
 * gradient unless it says "no gradient". dim < 0 counts from the last dimension.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_OPS_H
#define DEEPSPEED_OPS_H

#include <deepspeed/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- pointwise, with broadcasting as in numpy ----------------------------------------------------- */

DS_API ds_tensor *ds_add(ds_tensor *a, ds_tensor *b);                      /* a + b */
DS_API ds_tensor *ds_add_scaled(ds_tensor *a, ds_tensor *b, double alpha); /* a + alpha b */
DS_API ds_tensor *ds_sub(ds_tensor *a, ds_tensor *b);                      /* a - b */
DS_API ds_tensor *ds_mul(ds_tensor *a, ds_tensor *b);                      /* a b */
DS_API ds_tensor *ds_div(ds_tensor *a, ds_tensor *b);                      /* a / b */
DS_API ds_tensor *ds_scale(ds_tensor *x, double factor);                   /* factor x */
DS_API ds_tensor *ds_shift(ds_tensor *x, double term);                     /* x + term */
DS_API ds_tensor *ds_pow(ds_tensor *x, double exponent);                   /* x^exponent */
/* condition ? a : b */
DS_API ds_tensor *ds_where(ds_tensor *condition, ds_tensor *a, ds_tensor *b);
DS_API ds_tensor *ds_neg(ds_tensor *x);
DS_API ds_tensor *ds_abs(ds_tensor *x);
DS_API ds_tensor *ds_exp(ds_tensor *x);
DS_API ds_tensor *ds_log(ds_tensor *x);
DS_API ds_tensor *ds_sqrt(ds_tensor *x);
DS_API ds_tensor *ds_eq(ds_tensor *a, ds_tensor *b); /* bool: a == b; no gradient */
DS_API ds_tensor *ds_lt(ds_tensor *a, ds_tensor *b); /* bool: a < b; no gradient */

DS_API ds_tensor *ds_relu(ds_tensor *x);      /* max(0, x); NaN stays NaN */
DS_API ds_tensor *ds_gelu(ds_tensor *x);      /* x (1 + erf(x / sqrt 2)) / 2 */
DS_API ds_tensor *ds_gelu_tanh(ds_tensor *x); /* x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2 */
DS_API ds_tensor *ds_sigmoid(ds_tensor *x);   /* 1 / (1 + exp(-x)) */
DS_API ds_tensor *ds_tanh(ds_tensor *x);

/* ---- products ------------------------------------------------------------------------------------- */

/* torch.matmul: [n] [n] -> []; [m,k] [k] -> [m]; [k] [k,n] -> [n]; [...,m,k] [...,k,n] -> [...,m,n] with the
 * leading dimensions broadcast. */
DS_API ds_tensor *ds_matmul(ds_tensor *a, ds_tensor *b);

/* y = x w^T + b: x [..., in], w [out, in], b [out] or NULL -> [..., out]. */
DS_API ds_tensor *ds_linear(ds_tensor *x, ds_tensor *w, ds_tensor *b);

/* ---- convolution and pooling ---------------------------------------------------------------------- */

/* Members named _w are the horizontal value where it differs from the vertical one: 0 means "the
 * same", -1 means none (0). */
typedef struct ds_conv2d_opts {
    ds_tensor *bias;          /* [K] or NULL */
    int stride, stride_w;     /* 0: 1 */
    int padding, padding_w;   /* zeros on each side */
    int dilation, dilation_w; /* 0: 1 */
    int groups;               /* 0: 1 */
} ds_conv2d_opts;

/* Convolution as torch.nn.functional.conv2d (a cross-correlation).
 *   x [N,C,H,W], w [K,C/groups,R,S], .bias [K] or NULL -> [N,K,P,Q]
 *   P = (H + 2 padding - dilation (R-1) - 1) / stride + 1, Q likewise
 * Refuses if x has not 4 dimensions, or its channels are not w's times groups. */
#define ds_conv2d(x, w, ...) ds_conv2d_with(x, w, (ds_conv2d_opts){.bias = __VA_ARGS__})
DS_API ds_tensor *ds_conv2d_with(ds_tensor *x, ds_tensor *w, ds_conv2d_opts opts);

typedef struct ds_pool2d_opts {
    int kernel, kernel_w;
    int stride, stride_w;     /* 0: as the kernel */
    int padding, padding_w;   /* at most half the kernel; -inf for max, 0 for the average */
    int dilation, dilation_w; /* max only; 0: 1 */
    /* P rounded up; a window must begin inside the input or its left padding */
    bool ceil_mode;
    ds_tensor **indices; /* max: *indices = int64 [N,C,P,Q], h W + w of each maximum */
    bool exclude_pad;    /* average: count_include_pad = False */
    int divisor;         /* average: divisor_override; 0: the size of the window */
} ds_pool2d_opts;

/* x [N,C,H,W] or [C,H,W] -> P x Q windows: the maximum (the first of equal ones; a NaN wins) or the average.
 *   P = (H + 2 padding - dilation (kernel-1) - 1) / stride + 1, Q likewise */
#define ds_max_pool2d(x, ...) ds_max_pool2d_with(x, (ds_pool2d_opts){.kernel = __VA_ARGS__})
DS_API ds_tensor *ds_max_pool2d_with(ds_tensor *x, ds_pool2d_opts opts);
#define ds_avg_pool2d(x, ...) ds_avg_pool2d_with(x, (ds_pool2d_opts){.kernel = __VA_ARGS__})
DS_API ds_tensor *ds_avg_pool2d_with(ds_tensor *x, ds_pool2d_opts opts);

/* Averages over windows [floor(i H / h), ceil((i+1) H / h)): x [N,C,H,W] -> [N,C,h,w]. */
DS_API ds_tensor *ds_adaptive_avg_pool2d(ds_tensor *x, int64_t h, int64_t w);

/* ---- softmax and losses --------------------------------------------------------------------------- */

DS_API ds_tensor *ds_softmax(ds_tensor *x, int dim);     /* exp(x - max) / sum exp(x - max) */
DS_API ds_tensor *ds_log_softmax(ds_tensor *x, int dim); /* x - max - log sum exp(x - max) */

typedef enum ds_reduction { DS_MEAN = 0, DS_SUM, DS_NONE } ds_reduction;

typedef struct ds_cross_entropy_opts {
    ds_tensor *weight;      /* [C] weights of the classes, or NULL */
    double label_smoothing; /* in [0, 1] */
    int64_t ignore_index;   /* with .ignore = true; else -100 */
    bool ignore;
    ds_reduction reduction;
} ds_cross_entropy_opts;

/* -log softmax(logits)[label], torch.nn.functional.cross_entropy.
 *   logits [N,C] or [N,C,d1,...], labels int64 [N] or [N,d1,...] -> [] (or the labels' shape for DS_NONE)
 * The mean is over the labels that are not ignored, weighted by .weight; NaN if there is none.
 * Refuses labels outside 0..C-1. */
DS_API ds_tensor *ds_cross_entropy(ds_tensor *logits, ds_tensor *labels);
DS_API ds_tensor *ds_cross_entropy_with(ds_tensor *logits, ds_tensor *labels,
                                        ds_cross_entropy_opts opts);

DS_API ds_tensor *ds_mse_loss(ds_tensor *x, ds_tensor *y); /* mean of (x - y)^2 -> [] */
DS_API ds_tensor *ds_mse_loss_with(ds_tensor *x, ds_tensor *y, ds_reduction reduction);

/* ---- normalisation -------------------------------------------------------------------------------- */

typedef struct ds_batch_norm_opts {
    ds_tensor *weight, *bias;              /* [C], or NULL */
    ds_tensor *running_mean, *running_var; /* [C], or NULL; changed in place when training */
    bool training;                         /* or no running statistics: use the batch's own */
    double momentum;                       /* 0: 0.1 */
    double eps;                            /* 0: 1e-5 */
} ds_batch_norm_opts;

/* y = (x - mean) / sqrt(var + eps) weight + bias per channel; x [N,C,...].
 * running = (1 - momentum) running + momentum batch (with the unbiased variance). */
DS_API ds_tensor *ds_batch_norm_with(ds_tensor *x, ds_batch_norm_opts opts);

/* The same over the last n_dims dimensions of each row; weight, bias have their shape, or are NULL. eps 0: 1e-5. */
DS_API ds_tensor *ds_layer_norm(ds_tensor *x, int n_dims, ds_tensor *weight, ds_tensor *bias,
                                double eps);

/* ---- reductions ----------------------------------------------------------------------------------- */

typedef struct ds_reduce_opts {
    ds_dims dims; /* over these; n = 0: over all */
    bool keepdim;
} ds_reduce_opts;

/* Of floating-point tensors: a sum of comparisons is ds_sum(ds_cast(ds_eq(a, b), DS_F32)). */
DS_API ds_tensor *ds_sum(ds_tensor *x); /* of all elements -> [] */
DS_API ds_tensor *ds_sum_with(ds_tensor *x, ds_reduce_opts opts);
DS_API ds_tensor *ds_mean(ds_tensor *x);
DS_API ds_tensor *ds_mean_with(ds_tensor *x, ds_reduce_opts opts);

/* NaN wins; gradient to the first maximum */
DS_API ds_tensor *ds_max(ds_tensor *x, int dim, bool keepdim);
/* int64, first of equal; no gradient */
DS_API ds_tensor *ds_argmax(ds_tensor *x, int dim);

/* ---- shape ---------------------------------------------------------------------------------------- */

/* one -1 is found; a view where it can be */
DS_API ds_tensor *ds_reshape(ds_tensor *x, ds_dims shape);
DS_API ds_tensor *ds_flatten(ds_tensor *x, int from_dim); /* from_dim and all after it become one */
DS_API ds_tensor *ds_flatten_range(ds_tensor *x, int from_dim, int to_dim);    /* inclusive */
DS_API ds_tensor *ds_permute(ds_tensor *x, ds_dims order);                     /* view */
DS_API ds_tensor *ds_transpose(ds_tensor *x, int dim0, int dim1);              /* view */
DS_API ds_tensor *ds_slice(ds_tensor *x, int dim, int64_t begin, int64_t end); /* view */
/* view, dim gone */
DS_API ds_tensor *ds_select(ds_tensor *x, int dim, int64_t index);
DS_API ds_tensor *ds_expand(ds_tensor *x, ds_dims shape); /* view */
DS_API ds_tensor *ds_unsqueeze(ds_tensor *x, int dim);    /* view */
DS_API ds_tensor *ds_squeeze(ds_tensor *x, int dim);      /* view */
DS_API ds_tensor *ds_cat(ds_tensor **x, int n, int dim);
DS_API ds_tensor *ds_stack(ds_tensor **x, int n, int dim);

/* ---- by index, at random, attention --------------------------------------------------------------- */

/* rows of weight [V,D] named by indices int64 [...] -> [...,D]. The row padding_idx gets no gradient; -1: none. */
DS_API ds_tensor *ds_embedding(ds_tensor *weight, ds_tensor *indices, int64_t padding_idx);
/* torch.gather: y[i][k] = x[i][index[i][k]] along dim; index int64, of x's shape but for dim. */
DS_API ds_tensor *ds_gather(ds_tensor *x, int dim, ds_tensor *index);
/* int64 [...] -> int64 [...,classes]; no gradient */
DS_API ds_tensor *ds_one_hot(ds_tensor *labels, int64_t classes);

/* In training each element is 0 with probability p, else divided by 1 - p; x itself otherwise. */
DS_API ds_tensor *ds_dropout(ds_tensor *x, double p, bool training);

typedef struct ds_attention_opts {
    /* broadcasts to [...,L,S]: bool, true = attend; or of q's dtype: added to the scores */
    ds_tensor *mask;
    bool causal;  /* query i sees keys 0..i */
    double scale; /* 0: 1/sqrt(D) */
} ds_attention_opts;

/* softmax(q k^T scale + mask) v, torch's scaled_dot_product_attention.
 *   q [...,L,D], k [...,S,D], v [...,S,E] -> [...,L,E] */
DS_API ds_tensor *ds_attention(ds_tensor *q, ds_tensor *k, ds_tensor *v);
DS_API ds_tensor *ds_attention_with(ds_tensor *q, ds_tensor *k, ds_tensor *v,
                                    ds_attention_opts opts);

/* ---- mixture of experts: rows to places, to other ranks, and back (ds_nn_moe is made of these) -------- */

/* x [S,D], slots int64 [S,k] -> y [rows,D]: y[slots[s][j]] = x[s]; 0 in rows that nobody is sent to. A slot below
 * 0 sends nothing. Refuses slots that are named twice. */
DS_API ds_tensor *ds_dispatch(ds_tensor *x, ds_tensor *slots, int64_t rows);
/* The way back: x [N,D], slots [S,k], weights [S,k] or NULL (1) -> y [S,D], the sum over j of
 * weights[s][j] x[slots[s][j]]. weights are float32 beside a 16-bit x, else of x's dtype. */
DS_API ds_tensor *ds_combine(ds_tensor *x, ds_tensor *slots, ds_tensor *weights);

/* ds_all_to_all_rows with a gradient, torch.distributed.nn.functional.all_to_all_single: the first to[0] rows of x
 * go to rank 0, the next to[1] to rank 1, ...; y has from[0] rows of rank 0, from[1] of rank 1, ... All ranks of c
 * (NULL: ds_world()) call it, and run the backward. */
DS_API ds_tensor *ds_exchange_rows(ds_tensor *x, ds_comm *c, const int64_t *to,
                                   const int64_t *from);

#ifdef __cplusplus
}
#endif
#endif
