/* deepspeed/ops.h: the ops, torch.nn.functional in C, each with its formula and
 * the shapes of its operands.
 *
 * For all of them: an op returns a new tensor, which belongs to the current
 * scope. It returns NULL if an operand is NULL, and if it refuses the shapes,
 * dtypes or devices (DS_EINVAL; ds_error() names the op and what it got); the
 * memory that is not there is DS_ENOMEM. Operands are borrowed. They have the
 * same floating-point dtype and the same device, where no other dtype is named.
 * 16-bit operands are computed in float32, and the result is rounded once. An
 * op has a gradient for each floating-point operand unless it says "no
 * gradient". A dimension dim < 0 counts from the last one. "View": the result
 * shares x's memory. Convolution and pooling are in ops_conv.h, softmax and
 * losses in ops_loss.h.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_OPS_H
#define DEEPSPEED_OPS_H

#include <deepspeed/comm.h>
#include <deepspeed/ops_conv.h>
#include <deepspeed/ops_loss.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- pointwise ------------------------------------------------------------------- */

/* Element by element, with broadcasting as in NumPy: sizes are equal or 1,
 * counted from the last dimension. torch.add, torch.add(alpha=), sub, mul, div,
 * maximum, minimum, floor_divide, remainder.
 *
 * Operands of several dtypes promote as PyTorch's do (torch.result_type): the
 * higher kind of bool, integer, float decides, then the wider dtype; a tensor
 * of shape {} (ds_scalar) decides only if its kind is higher, and may be on the
 * CPU beside a tensor on another device. Integers wrap around; add and sub of
 * integers take an integer alpha; div of integers is float32. */
DS_API ds_tensor *ds_add(ds_tensor *a, ds_tensor *b);                      /* a + b */
DS_API ds_tensor *ds_add_scaled(ds_tensor *a, ds_tensor *b, double alpha); /* a + alpha b */
DS_API ds_tensor *ds_sub(ds_tensor *a, ds_tensor *b);                      /* a - b */
DS_API ds_tensor *ds_mul(ds_tensor *a, ds_tensor *b);                      /* a b */
DS_API ds_tensor *ds_div(ds_tensor *a, ds_tensor *b);                      /* a / b */

/* The larger and the smaller; NaN if either is. Where they are equal each gets
 * half of the gradient. */
DS_API ds_tensor *ds_maximum(ds_tensor *a, ds_tensor *b);
DS_API ds_tensor *ds_minimum(ds_tensor *a, ds_tensor *b);

/* floor(a / b), without a gradient; a - b floor(a / b), which has b's sign.
 * Refuse bools and, of integers, a divisor 0, for which the call waits for the
 * device. */
DS_API ds_tensor *ds_floor_divide(ds_tensor *a, ds_tensor *b);
DS_API ds_tensor *ds_remainder(ds_tensor *a, ds_tensor *b);

/* With a number; the shape is x's. torch.mul, torch.add, torch.pow. Of integers
 * the factor and the term are integers, and so is the result, int64 of bools;
 * x^exponent is of floating-point x alone. */
DS_API ds_tensor *ds_scale(ds_tensor *x, double factor); /* factor x */
DS_API ds_tensor *ds_shift(ds_tensor *x, double term);   /* x + term */
DS_API ds_tensor *ds_pow(ds_tensor *x, double exponent); /* x^exponent */

/* torch.clamp with numbers: min(max(x, low), high); -INFINITY and INFINITY are
 * no bounds. No gradient at a bound. NaN stays. Integers beside a bound that is
 * none become float32. */
DS_API ds_tensor *ds_clamp(ds_tensor *x, double low, double high);
/* torch.clamp with tensors, which broadcast with x; NULL: no bound. Where x is
 * equal to a bound each gets half of the gradient. Refuses two NULLs. */
DS_API ds_tensor *ds_clamp_tensors(ds_tensor *x, ds_tensor *low, ds_tensor *high);

/* a where condition (bool) is true, b elsewhere; all three broadcast
 * (torch.where). a and b have any dtypes, and promote. */
DS_API ds_tensor *ds_where(ds_tensor *condition, ds_tensor *a, ds_tensor *b);

/* value where mask (bool) is true, x elsewhere; both broadcast; the dtype is
 * x's (torch.masked_fill). Refuses a value that the dtype cannot hold: -1e9 in
 * float16, which has -INFINITY. */
DS_API ds_tensor *ds_masked_fill(ds_tensor *x, ds_tensor *mask, double value);

/* torch.neg, abs, exp, ...; the shape is x's. Integers become float32, except
 * in neg, abs, sign and the roundings. The gradient of |x| at 0 is 0, and that
 * of sign and the roundings everywhere. */
DS_API ds_tensor *ds_neg(ds_tensor *x);   /* -x */
DS_API ds_tensor *ds_abs(ds_tensor *x);   /* |x| */
DS_API ds_tensor *ds_exp(ds_tensor *x);   /* e^x */
DS_API ds_tensor *ds_expm1(ds_tensor *x); /* e^x - 1, exact near 0 */
DS_API ds_tensor *ds_log(ds_tensor *x);   /* ln x; -inf at 0, NaN below */
DS_API ds_tensor *ds_log1p(ds_tensor *x); /* ln(1 + x), exact near 0 */
DS_API ds_tensor *ds_sqrt(ds_tensor *x);  /* NaN below 0 */
DS_API ds_tensor *ds_rsqrt(ds_tensor *x); /* 1 / sqrt x */
DS_API ds_tensor *ds_sin(ds_tensor *x);
DS_API ds_tensor *ds_cos(ds_tensor *x);
DS_API ds_tensor *ds_erf(ds_tensor *x);   /* 2/sqrt(pi) integral of exp(-t^2) from 0 to x */
DS_API ds_tensor *ds_sign(ds_tensor *x);  /* -1, 0, 1; 0 of NaN */
DS_API ds_tensor *ds_floor(ds_tensor *x); /* the integer at or below x */
DS_API ds_tensor *ds_ceil(ds_tensor *x);  /* the integer at or above x */
DS_API ds_tensor *ds_round(ds_tensor *x); /* the nearest integer, of two the even one */

/* bool, broadcast (torch.eq, ne, lt, le, gt, ge); operands promote; no
 * gradient. With a number: ds_gt(x, ds_scalar(DS_F32, 0.5)). */
DS_API ds_tensor *ds_eq(ds_tensor *a, ds_tensor *b); /* a == b */
DS_API ds_tensor *ds_ne(ds_tensor *a, ds_tensor *b); /* a != b */
DS_API ds_tensor *ds_lt(ds_tensor *a, ds_tensor *b); /* a < b */
DS_API ds_tensor *ds_le(ds_tensor *a, ds_tensor *b); /* a <= b */
DS_API ds_tensor *ds_gt(ds_tensor *a, ds_tensor *b); /* a > b */
DS_API ds_tensor *ds_ge(ds_tensor *a, ds_tensor *b); /* a >= b */

/* bool, broadcast (torch.logical_and, ...): an element that is not 0 is true;
 * no
 * gradient. */
DS_API ds_tensor *ds_logical_and(ds_tensor *a, ds_tensor *b);
DS_API ds_tensor *ds_logical_or(ds_tensor *a, ds_tensor *b);
DS_API ds_tensor *ds_logical_xor(ds_tensor *a, ds_tensor *b);
DS_API ds_tensor *ds_logical_not(ds_tensor *x);

/* Activations, torch.nn.functional; the shape is x's. A parameter 0 selects the
 * default in brackets, DS_ZERO requests 0. */
DS_API ds_tensor *ds_relu(ds_tensor *x);       /* max(0, x); NaN stays NaN */
DS_API ds_tensor *ds_gelu(ds_tensor *x);       /* x (1 + erf(x / sqrt 2)) / 2 */
DS_API ds_tensor *ds_gelu_tanh(ds_tensor *x);  /* x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2 */
DS_API ds_tensor *ds_silu(ds_tensor *x);       /* x / (1 + exp(-x)) */
DS_API ds_tensor *ds_sigmoid(ds_tensor *x);    /* 1 / (1 + exp(-x)) */
DS_API ds_tensor *ds_tanh(ds_tensor *x);       /* (e^x - e^-x) / (e^x + e^-x) */
DS_API ds_tensor *ds_logsigmoid(ds_tensor *x); /* -ln(1 + exp(-x)) */
DS_API ds_tensor *ds_hardsigmoid(ds_tensor *x); /* min(max(x + 3, 0), 6) / 6 */
DS_API ds_tensor *ds_hardswish(ds_tensor *x);   /* x min(max(x + 3, 0), 6) / 6 */
DS_API ds_tensor *ds_mish(ds_tensor *x);        /* x tanh(ln(1 + exp(x))) */
DS_API ds_tensor *ds_selu(ds_tensor *x);        /* 1.0507 elu(x, 1.6733); arXiv:1706.02515 */

/* x > 0 ? x : negative_slope x [0.01] */
DS_API ds_tensor *ds_leaky_relu(ds_tensor *x, double negative_slope);
/* x > 0 ? x : alpha (exp(x) - 1) [1] */
DS_API ds_tensor *ds_elu(ds_tensor *x, double alpha);
/* x > 0 ? x : alpha (exp(x / alpha) - 1) [1] */
DS_API ds_tensor *ds_celu(ds_tensor *x, double alpha);
/* ln(1 + exp(beta x)) / beta [1]; x where beta x > threshold [20] */
DS_API ds_tensor *ds_softplus(ds_tensor *x, double beta, double threshold);
/* torch.nn.functional.prelu: x > 0 ? x : weight x; weight [1], or [C] for x
 * [N,C,...] */
DS_API ds_tensor *ds_prelu(ds_tensor *x, ds_tensor *weight);

/* a sigmoid(b), a and b the halves of x along dim: half of its size is left */
DS_API ds_tensor *ds_glu(ds_tensor *x, int dim);
DS_API ds_tensor *ds_softmin(ds_tensor *x, int dim); /* softmax(-x) */
DS_API ds_tensor *ds_softsign(ds_tensor *x);         /* x / (1 + |x|) */
DS_API ds_tensor *ds_tanhshrink(ds_tensor *x);       /* x - tanh x */
/* x where |x| > lambda [0.5], else 0; and x nearer to 0 by lambda, or 0 */
DS_API ds_tensor *ds_hardshrink(ds_tensor *x, double lambda);
DS_API ds_tensor *ds_softshrink(ds_tensor *x, double lambda);
/* x where x > threshold, else value; here 0 is 0 */
DS_API ds_tensor *ds_threshold(ds_tensor *x, double threshold, double value);

/* ---- products ------------------------------------------------------------------------------------- */

/* torch.matmul:
 *     [n] [n] -> []        [m,k] [k] -> [m]        [k] [k,n] -> [n]
 *     [...,m,k] [...,k,n] -> [...,m,n], leading dimensions broadcast */
DS_API ds_tensor *ds_matmul(ds_tensor *a, ds_tensor *b);

/* torch.einsum of x[0..n-1], n at most 8: "bij,bjk->bik" names the dimensions
 * of each operand and of the result by letters; those that the result lacks are
 * summed. A letter twice in an operand is its diagonal; "..." stands for
 * dimensions that broadcast; without "->" the result has the letters that occur
 * once, sorted. Operands are multiplied from the left to the right. */
DS_API ds_tensor *ds_einsum(const char *equation, ds_tensor **x, int n);

/* torch.nn.functional.linear: y = x w^T + b.
 *   x [...,in], w [out,in], b [out] or NULL -> [...,out] */
DS_API ds_tensor *ds_linear(ds_tensor *x, ds_tensor *w, ds_tensor *b);

/* torch.addmm: input + a b, a [...,M,K], b [K,N], input broadcast to [...,M,N].
 * A bias [N] is added by the product's kernel, before the sum is rounded. */
DS_API ds_tensor *ds_addmm(ds_tensor *input, ds_tensor *a, ds_tensor *b);

/* torch.nn.functional.bilinear: y[...,o] = sum over i, j of x1[...,i] w[o,i,j]
 * x2[...,j] + b[o].
 *   x1 [...,I], x2 [...,J] with equal leading sizes, w [O,I,J], b [O] or NULL -> [...,O] */
DS_API ds_tensor *ds_bilinear(ds_tensor *x1, ds_tensor *x2, ds_tensor *w, ds_tensor *b);

/* ---- normalisation -------------------------------------------------------------------------------- */

typedef struct ds_batch_norm_opts {
    ds_tensor *weight, *bias;              /* [C], or NULL */
    ds_tensor *running_mean, *running_var; /* [C], or NULL; changed in place when training */
    bool training;                         /* use the batch's statistics; else the running ones */
    double momentum;                       /* 0: 0.1 */
    double eps;                            /* 0: 1e-5 */
} ds_batch_norm_opts;

/* torch.nn.functional.batch_norm, for each channel of x [N,C,...]:
 *   y = (x - mean) / sqrt(var + eps) weight + bias
 *   running = (1 - momentum) running + momentum batch, of the unbiased variance
 * Refuses, in training, one value for a channel. */
DS_API ds_tensor *ds_batch_norm_with(ds_tensor *x, ds_batch_norm_opts opts);

/* torch.nn.SyncBatchNorm: ds_batch_norm_with, in training with the mean and the
 * variance over the samples of all ranks of c (NULL: the world). Each rank has
 * its own x [N,C,...], N may be 0. Collective, as is its backward: the gradient
 * of the sum of the ranks' losses. Made of other ops: on one rank, and not in
 * training, it is ds_batch_norm_with. */
DS_API ds_tensor *ds_sync_batch_norm_with(ds_tensor *x, ds_batch_norm_opts opts, ds_comm *c);

/* torch.nn.functional.layer_norm: the same formula with the mean and variance
 * of each row, which is the last n_dims dimensions. weight and bias have the
 * row's shape, or are NULL. eps 0: 1e-5. */
DS_API ds_tensor *ds_layer_norm(ds_tensor *x, int n_dims, ds_tensor *weight, ds_tensor *bias,
                                double eps);

/* torch.nn.functional.rms_norm: y = x / sqrt(mean(x^2) + eps) weight over rows
 * of the last n_dims dimensions. weight has the row's shape, or is NULL. eps 0:
 * 2^-23 (float64: 2^-52). Zhang and Sennrich, arXiv:1910.07467. */
DS_API ds_tensor *ds_rms_norm(ds_tensor *x, int n_dims, ds_tensor *weight, double eps);

/* torch.nn.functional.group_norm: the same formula with the mean and variance
 * of each sample's `groups` groups of neighbouring channels. x [N,C,...],
 * weight and bias [C] or NULL, eps 0: 1e-5. Wu and He, arXiv:1803.08494.
 * Refuses groups that do not divide C, and one sample of one value a group. */
DS_API ds_tensor *ds_group_norm(ds_tensor *x, int64_t groups, ds_tensor *weight, ds_tensor *bias,
                                double eps);

/* torch.nn.functional.instance_norm: the same with the mean and variance of
 * each channel of each sample; the options are batch_norm's. x [N,C,...].
 * Running statistics take the mean over samples. Without .training they are
 * used, if there are any: torch's use_input_stats=False, which refuses none.
 * Ulyanov et al., arXiv:1607.08022. Refuses one value for a channel of a
 * sample. */
DS_API ds_tensor *ds_instance_norm_with(ds_tensor *x, ds_batch_norm_opts opts);

/* torch.nn.functional.normalize: x / max(its p-norm along dim, eps); p 0: 2,
 * eps 0:
 * 1e-12. */
DS_API ds_tensor *ds_normalize(ds_tensor *x, double p, int dim, double eps);

typedef struct ds_local_response_norm_opts {
    int size;              /* channels, at least 1 */
    double alpha, beta, k; /* 0: 1e-4, 0.75, 1 */
} ds_local_response_norm_opts;

/* torch.nn.functional.local_response_norm: x (k + alpha m)^-beta, m the mean of
 * x^2 over .size channels around each of x [N,C,...], zeros beyond the first
 * and the last one. Krizhevsky et al., NIPS 2012. */
#define ds_local_response_norm(x, ...) \
    ds_local_response_norm_with(x, (ds_local_response_norm_opts){.size = __VA_ARGS__})
DS_API ds_tensor *ds_local_response_norm_with(ds_tensor *x, ds_local_response_norm_opts opts);

/* ---- reductions ----------------------------------------------------------------------------------- */

typedef struct ds_reduce_opts {
    ds_dims dims; /* .d: the dimensions to reduce, .n of them; 0: all */
    bool keepdim; /* they stay, with size 1 */
} ds_reduce_opts;

/* torch.sum and torch.mean: of all elements -> [], or over dimensions. The sum
 * of integers and bools is int64, so ds_sum(ds_eq(a, b)) counts; their mean is
 * refused. */
DS_API ds_tensor *ds_sum(ds_tensor *x);
DS_API ds_tensor *ds_sum_with(ds_tensor *x, ds_reduce_opts opts);
DS_API ds_tensor *ds_mean(ds_tensor *x);
DS_API ds_tensor *ds_mean_with(ds_tensor *x, ds_reduce_opts opts);

/* The maximum along dim (the values of torch.max; ds_argmax has the places). A
 * NaN wins; the first maximum gets the gradient. Integers have none. */
DS_API ds_tensor *ds_max(ds_tensor *x, int dim, bool keepdim);

/* torch.amax and torch.amin: of all elements -> [] (torch.max(x)), or over
 * dimensions. A NaN wins; equal maxima share the gradient. */
DS_API ds_tensor *ds_amax(ds_tensor *x);
DS_API ds_tensor *ds_amax_with(ds_tensor *x, ds_reduce_opts opts);
DS_API ds_tensor *ds_amin(ds_tensor *x);
DS_API ds_tensor *ds_amin_with(ds_tensor *x, ds_reduce_opts opts);

/* int64: the index of the first maximum along dim, which is removed
 * (torch.argmax); no gradient. */
DS_API ds_tensor *ds_argmax(ds_tensor *x, int dim);

typedef struct ds_var_opts {
    ds_dims dims;      /* .n of them; 0: all */
    bool keepdim;      /* they stay, with size 1 */
    double correction; /* 0: 1, the unbiased estimate; DS_ZERO: 0 */
} ds_var_opts;

/* torch.var and torch.std: sum (x - mean)^2 / max(n - correction, 0), and its
 * root. The gradient of the root of 0 is 0. */
DS_API ds_tensor *ds_var(ds_tensor *x);
DS_API ds_tensor *ds_var_with(ds_tensor *x, ds_var_opts opts);
DS_API ds_tensor *ds_std(ds_tensor *x);
DS_API ds_tensor *ds_std_with(ds_tensor *x, ds_var_opts opts);

typedef struct ds_norm_opts {
    double p; /* 0: 2; INFINITY, -INFINITY: largest, smallest |x|; DS_ZERO: how many are not 0 */
    ds_dims dims; /* .n of them; 0: all */
    bool keepdim; /* they stay, with size 1 */
} ds_norm_opts;

/* torch.linalg.vector_norm: (sum |x|^p)^(1/p). The gradient at zeros is 0;
 * equal maxima share it. */
DS_API ds_tensor *ds_norm(ds_tensor *x);
DS_API ds_tensor *ds_norm_with(ds_tensor *x, ds_norm_opts opts);

/* torch.logsumexp: log sum exp(x), over opts.dims; none: over all, where
 * PyTorch refuses dim=[]. */
DS_API ds_tensor *ds_logsumexp(ds_tensor *x, ds_reduce_opts opts);

/* torch.cumsum: y[k] = x[0] + ... + x[k] along dim; of integers and bools
 * int64, without a gradient. */
DS_API ds_tensor *ds_cumsum(ds_tensor *x, int dim);

/* torch.prod: of all elements -> [], or over dimensions; 1 of none.
 * torch.cumprod: y[k] = x[0] ... x[k] along dim, in log2 K passes. Gradients do
 * not divide, so zeros are no special case. Of integers and bools int64,
 * without a gradient. */
DS_API ds_tensor *ds_prod(ds_tensor *x);
DS_API ds_tensor *ds_prod_with(ds_tensor *x, ds_reduce_opts opts);
DS_API ds_tensor *ds_cumprod(ds_tensor *x, int dim);

/* ---- shape ------------------------------------------------------------------------- */

/* x.reshape(shape): the same elements in row-major order; one size may be -1,
 * which is computed. A view where the memory allows it, else a copy. */
DS_API ds_tensor *ds_reshape(ds_tensor *x, ds_dims shape);

/* x.flatten: dimensions from_dim to to_dim (inclusive; the last) become one. */
DS_API ds_tensor *ds_flatten(ds_tensor *x, int from_dim);
DS_API ds_tensor *ds_flatten_range(ds_tensor *x, int from_dim, int to_dim);
/* torch.unflatten: dim becomes dimensions of those sizes, one of which may be
 * -1. */
DS_API ds_tensor *ds_unflatten(ds_tensor *x, int dim, ds_dims sizes);

/* Views. x.permute: dimension i of the result is order.d[i] of x. x.transpose:
 * the two dimensions change places. */
DS_API ds_tensor *ds_permute(ds_tensor *x, ds_dims order);
DS_API ds_tensor *ds_transpose(ds_tensor *x, int dim0, int dim1);

/* Views: x[begin:end] along dim, as in Python: a negative bound counts from the
 * end, bounds outside are those of x, and nothing is left where begin >= end;
 * DS_END is x's end. x[index] along dim, which is removed; index < 0 counts
 * from the end. */
#define DS_END INT64_MAX
DS_API ds_tensor *ds_slice(ds_tensor *x, int dim, int64_t begin, int64_t end);
DS_API ds_tensor *ds_select(ds_tensor *x, int dim, int64_t index);

/* Views. x.expand: dimensions of size 1 repeat. x.unsqueeze: a dimension of
 * size 1 is put in at dim. x.squeeze: dim is removed if its size is 1, else the
 * result is x. */
DS_API ds_tensor *ds_expand(ds_tensor *x, ds_dims shape);
DS_API ds_tensor *ds_unsqueeze(ds_tensor *x, int dim);
DS_API ds_tensor *ds_squeeze(ds_tensor *x, int dim);

/* torch.cat and torch.stack of x[0..n-1]: along dim, in which alone sizes may
 * differ; along a new dimension dim, all shapes being equal. n >= 1. */
DS_API ds_tensor *ds_cat(ds_tensor **x, int n, int dim);
DS_API ds_tensor *ds_stack(ds_tensor **x, int n, int dim);

/* Views of x along dim -> out[0..]; returns the number of parts, 0 after a
 * failure. torch.split with a size: parts of `size`, the last one smaller; more
 * than `most` of them are refused. torch.split with sizes: n of them, which
 * make the dimension. torch.chunk: at most `chunks` equal parts, the last one
 * smaller. */
DS_API int ds_split_size(ds_tensor *x, int64_t size, int dim, ds_tensor **out, int most);
DS_API int ds_split_sizes(ds_tensor *x, int n, const int64_t *sizes, int dim, ds_tensor **out);
DS_API int ds_chunk(ds_tensor *x, int chunks, int dim, ds_tensor **out);

/* Copies of x in another order. torch.flip: dimensions dims backwards.
 * torch.roll: dims.d[i] by shifts.d[i] places, what leaves at the end comes in
 * at the begin; without dims, of all elements in row-major order.
 * x.repeat: dimension i as a whole, repeats.d[i] times; new dimensions in front
 * if repeats has more. torch.repeat_interleave: each element along dim. */
DS_API ds_tensor *ds_flip(ds_tensor *x, ds_dims dims);
DS_API ds_tensor *ds_roll(ds_tensor *x, ds_dims shifts, ds_dims dims);
DS_API ds_tensor *ds_repeat(ds_tensor *x, ds_dims repeats);
DS_API ds_tensor *ds_repeat_interleave(ds_tensor *x, int64_t repeats, int dim);
/* Slice k of dimension dim repeats[k] times; repeats is int64 [size] or [1],
 * and none is below 0. The host reads repeats, which waits for a GPU. */
DS_API ds_tensor *ds_repeat_interleave_tensor(ds_tensor *x, ds_tensor *repeats, int dim);

typedef enum ds_pad_mode {
    DS_PAD_CONSTANT = 0, /* .value */
    DS_PAD_REFLECT,      /* c b | a b c | b a */
    DS_PAD_REPLICATE,    /* a a | a b c | c c */
    DS_PAD_CIRCULAR      /* b c | a b c | a b */
} ds_pad_mode;

typedef struct ds_pad_opts {
    ds_pad_mode mode;
    double value;
} ds_pad_opts;

/* torch.nn.functional.pad: pad has pairs [before, after], of the last
 * dimension, then of the one before it, ...; a negative number cuts off.
 * ds_pad: zeros. Other modes than constant take pairs for all dimensions of x
 * but [N,C], or
 * [C]. */
DS_API ds_tensor *ds_pad(ds_tensor *x, ds_dims pad);
DS_API ds_tensor *ds_pad_with(ds_tensor *x, ds_dims pad, ds_pad_opts opts);

/* torch.tril and torch.triu: x [...,M,N] with 0 above (below) the diagonal,
 * which begins in column `diagonal` of row 0. */
DS_API ds_tensor *ds_tril(ds_tensor *x, int64_t diagonal);
DS_API ds_tensor *ds_triu(ds_tensor *x, int64_t diagonal);

/* ---- by index, at random, attention --------------------------------------------------------------- */

/* torch.nn.functional.embedding: the rows of weight [V,D] that indices, int64
 * [...], name -> [...,D]. Row padding_idx gets no gradient; -1: each row does.
 * Refuses indices outside 0 to V - 1. */
DS_API ds_tensor *ds_embedding(ds_tensor *weight, ds_tensor *indices, int64_t padding_idx);

typedef struct ds_embedding_opts {
    bool scale_grad_by_freq; /* a row's gradient / how often indices name the row */
} ds_embedding_opts;

DS_API ds_tensor *ds_embedding_with(ds_tensor *weight, ds_tensor *indices, int64_t padding_idx,
                                    ds_embedding_opts opts);

typedef enum ds_bag_mode { DS_BAG_MEAN = 0, DS_BAG_SUM, DS_BAG_MAX } ds_bag_mode;

typedef struct ds_embedding_bag_opts {
    ds_tensor *offsets; /* int64 [B]: where bags begin, ascending from 0; NULL: rows are bags */
    ds_tensor
        *per_sample_weights; /* factors of the rows, of indices' shape; with .mode DS_BAG_SUM */
    ds_bag_mode mode;
    bool include_last_offset; /* with offsets: the last is the end of the last of B - 1 bags */
    bool scale_grad_by_freq;  /* as in ds_embedding_opts; not with DS_BAG_MAX */
} ds_embedding_bag_opts;

/* torch.nn.functional.embedding_bag: of each bag of indices the mean, sum or
 * largest of the rows of weight [V,D]; 0 of an empty bag. indices int64 [B,L],
 * or [M] with .offsets -> [B,D]. Row padding_idx (-1: none) counts in none of
 * them, and gets no gradient; of equal largest the first gets it. The host
 * reads offsets, which waits for a GPU. */
#define ds_embedding_bag(weight, indices, padding_idx, ...) \
    ds_embedding_bag_with(weight, indices, padding_idx, \
                          (ds_embedding_bag_opts){.offsets = __VA_ARGS__})
DS_API ds_tensor *ds_embedding_bag_with(ds_tensor *weight, ds_tensor *indices, int64_t padding_idx,
                                        ds_embedding_bag_opts opts);

/* torch.gather: y[i][k] = x[i][index[i][k]] along dim = 1, likewise along
 * others. x: any dtype. index: int64 or int32, no larger than x except along
 * dim; its values are 0 to size - 1. */
DS_API ds_tensor *ds_gather(ds_tensor *x, int dim, ds_tensor *index);

/* torch.index_select: the slices of x, of any dtype, that index, int64 or int32
 * [K], names along dim. Refuses indices outside 0 to size - 1. */
DS_API ds_tensor *ds_index_select(ds_tensor *x, int dim, ds_tensor *index);

/* torch.index_add: x, with alpha source[k] added to slice index[k] along dim:
 * source has x's shape and dtype, with K slices. Repeated indices add up.
 * Integers, which the host adds, have no gradient. */
DS_API ds_tensor *ds_index_add(ds_tensor *x, int dim, ds_tensor *index, ds_tensor *source,
                               double alpha);

/* torch.scatter, torch.scatter_add and torch.scatter(reduce='multiply'): x,
 * with x[i][index[i][k]] = (+=, *=) src[i][k] along dim = 1, likewise along
 * others. index: int64, no larger than src, nor than x but along dim. Of a
 * place that scatter's index names twice the last counts. All take any dtype;
 * integers are added on the host, which reads the index of scatter_multiply, on
 * a GPU also scatter's. */
DS_API ds_tensor *ds_scatter(ds_tensor *x, int dim, ds_tensor *index, ds_tensor *src);
DS_API ds_tensor *ds_scatter_add(ds_tensor *x, int dim, ds_tensor *index, ds_tensor *src);
DS_API ds_tensor *ds_scatter_multiply(ds_tensor *x, int dim, ds_tensor *index, ds_tensor *src);

/* torch.sort, stable, and torch.topk, sorted: along dim; of x's dtype, with a
 * gradient. NaN is larger than all numbers. indices: NULL, or *indices becomes
 * int64, the places in x. The host finds the order: for a tensor on a GPU the
 * call waits for the device. */
DS_API ds_tensor *ds_sort(ds_tensor *x, int dim, bool descending, ds_tensor **indices);
DS_API ds_tensor *ds_topk(ds_tensor *x, int64_t k, int dim, bool smallest, ds_tensor **indices);

/* torch.multinomial: int64 [draws] or [N,draws], classes drawn with the weights
 * x [C] or [N,C], which need not add up to 1; each once, unless `replacement`.
 * Draws from this thread's generator, on the host, PyTorch's numbers for
 * float32 and float64 x. No gradient. */
DS_API ds_tensor *ds_multinomial(ds_tensor *x, int64_t draws, bool replacement);

/* torch.nn.functional.one_hot: labels int64 [...], 0 to classes - 1 -> int64
 * [...,classes]; no gradient. */
DS_API ds_tensor *ds_one_hot(ds_tensor *labels, int64_t classes);

/* torch.nn.functional.dropout: in training each element is 0 with probability
 * p, 0 <= p <= 1, and is divided by 1 - p otherwise; else x itself. Draws from
 * this thread's generator. */
DS_API ds_tensor *ds_dropout(ds_tensor *x, double p, bool training);

/* torch.nn.functional.dropout2d: the same with whole planes x[n,c,...] of x
 * [N,C,...], as neighbouring elements say the same. Tompson et al.,
 * arXiv:1411.4280. */
DS_API ds_tensor *ds_dropout2d(ds_tensor *x, double p, bool training);

/* torch.nn.functional.alpha_dropout, for networks of selu: what is dropped
 * becomes selu's lower limit, and mean and variance stay; of whole planes of x
 * [N,C,...]: feature_alpha_dropout. Klambauer et al., arXiv:1706.02515. */
DS_API ds_tensor *ds_alpha_dropout(ds_tensor *x, double p, bool training);
DS_API ds_tensor *ds_feature_alpha_dropout(ds_tensor *x, double p, bool training);

typedef struct ds_attention_opts {
    /* NULL, or broadcasts to [...,L,S]: bool, true: attend; or of q's dtype,
     * which is added to the scores. */
    ds_tensor *mask;
    bool causal; /* query i attends to keys 0 to i */
    /* with .causal: to the last `window` of those alone, so to i - window + 1
     * to i (Beltagy et al., arXiv:2004.05150); 0: to all of them */
    int64_t window;
    double scale; /* 0: 1/sqrt(D) */
    /* scores become softcap tanh(scores / softcap) before the mask (Gemma 2,
     * arXiv:2408.00118); 0: they do not */
    double softcap;
    /* k and v have fewer heads: H of q are a multiple of theirs, and each of
     * theirs serves the heads of q that follow each other. */
    bool enable_gqa;
    /* dropout of the weights: 0 <= dropout_p <= 1; 0 unless training */
    double dropout_p;
} ds_attention_opts;

/* torch.nn.functional.scaled_dot_product_attention:
 * softmax(q k^T scale + mask) v, the softmax dropped out by dropout_p.
 *   q [...,L,D], k [...,S,D], v [...,S,E] -> [...,L,E]; leading dimensions
 *   broadcast
 * No copies of views whose rows have no gaps, such as the heads of a projection
 * [N,L,H,D]. With .enable_gqa: q [...,H,L,D], k [...,G,S,D], v [...,G,S,E], G
 * divides H (Ainslie et al., arXiv:2305.13245). */
DS_API ds_tensor *ds_attention(ds_tensor *q, ds_tensor *k, ds_tensor *v);
DS_API ds_tensor *ds_attention_with(ds_tensor *q, ds_tensor *k, ds_tensor *v,
                                    ds_attention_opts opts);

/* Attention with several heads: q, k, v of width E = heads D side by side, as a
 * Linear of 3E outputs makes them (GPT-2's c_attn, a ViT's qkv); the heads'
 * results side by side: qkv [...,L,3E] -> [...,L,E]. */
DS_API ds_tensor *ds_attention_qkvpacked(ds_tensor *qkv, int64_t heads, ds_attention_opts opts);

/* Rotary position embedding (Su et al., arXiv:2104.09864): of each row of x,
 * the pairs (x[i], x[i + R]), 0 <= i < R, or (x[2i], x[2i + 1]) if interleaved,
 * turn by the angles whose cosines and sines are given:
 *   x [...,D], cos, sin [...,R] broadcast over x's leading dimensions, 2R <= D
 *   y[i] = x[i] cos[i] - x[i + R] sin[i], y[i + R] = x[i + R] cos[i] + x[i] sin[i]
 * Elements from 2R on stay. cos and sin are float32 beside a 16-bit x, else of
 * x's dtype; no gradient for them. */
DS_API ds_tensor *ds_rotary_embedding(ds_tensor *x, ds_tensor *cos, ds_tensor *sin,
                                      bool interleaved);

/* ---- mixture of experts (ds_nn_moe is made of these) ------------------------------- */

/* y[slots[s][j]] = x[s]: x [S,D], slots int64 [S,k] -> y [rows,D]. Other rows
 * of y are 0; a slot below 0 sends nothing. Refuses a slot that is named twice,
 * and slots from `rows` on. */
DS_API ds_tensor *ds_dispatch(ds_tensor *x, ds_tensor *slots, int64_t rows);

/* The way back, y[s] = sum over j of weights[s][j] x[slots[s][j]]: x [N,D],
 * slots int64 [S,k], weights [S,k] or NULL (all 1) -> y [S,D]. A slot below 0
 * adds nothing. weights are float32 beside a 16-bit x, else of x's dtype. */
DS_API ds_tensor *ds_combine(ds_tensor *x, ds_tensor *slots, ds_tensor *weights);

/* torch.distributed.nn.functional.all_to_all_single, ds_all_to_all_rows with a
 * gradient: the first to[0] rows of x go to rank 0, the next to[1] to rank 1,
 * ...; the first from[0] rows of y are rank 0's, the next from[1] rank 1's, ...
 * to and from have an entry for each rank. A collective: all ranks of c (NULL:
 * ds_world()) call it, and run the backward; it waits for them. */
DS_API ds_tensor *ds_exchange_rows(ds_tensor *x, ds_comm *c, const int64_t *to,
                                   const int64_t *from);

/* The sum over the ranks of c (NULL: the world) of x, a new tensor, where
 * ds_all_reduce changes x; the gradient is the sum over ranks of dy
 * (torch.distributed.nn.functional.all_reduce). Collective, as is its
 * backward. */
DS_API ds_tensor *ds_all_reduce_sum(ds_tensor *x, ds_comm *c);

#ifdef __cplusplus
}
#endif
#endif
