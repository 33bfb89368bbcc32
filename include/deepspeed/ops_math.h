/* deepspeed/ops_math.h: functions of torch that are made of other ops: numbers,
 * tests of values, order, selection, small matrices. See ops.h for operands,
 * results and failures of all ops.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_OPS_MATH_H
#define DEEPSPEED_OPS_MATH_H

#include <deepspeed/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- element by element -------------------------------------------------------------- */

/* Of integers float32, but square and trunc keep the dtype. */
DS_API ds_tensor *ds_square(ds_tensor *x);     /* x^2; any dtype but bool */
DS_API ds_tensor *ds_reciprocal(ds_tensor *x); /* 1 / x */
DS_API ds_tensor *ds_tan(ds_tensor *x);        /* sin x / cos x */
DS_API ds_tensor *ds_sinh(ds_tensor *x);       /* (e^x - e^-x) / 2 */
DS_API ds_tensor *ds_cosh(ds_tensor *x);       /* (e^x + e^-x) / 2 */
DS_API ds_tensor *ds_log2(ds_tensor *x);
DS_API ds_tensor *ds_log10(ds_tensor *x);
DS_API ds_tensor *ds_trunc(ds_tensor *x); /* towards 0; the gradient is 0 */

/* These broadcast. ds_lerp and ds_logaddexp take one floating-point dtype: */
DS_API ds_tensor *ds_lerp(ds_tensor *a, ds_tensor *b, double weight); /* a + weight (b - a) */
DS_API ds_tensor *ds_logaddexp(ds_tensor *a, ds_tensor *b); /* ln(e^a + e^b), without overflow */
/* x + value a b, and x + value a / b; operands promote as those of ds_add;
 * addcdiv refuses integers */
DS_API ds_tensor *ds_addcmul(ds_tensor *x, ds_tensor *a, ds_tensor *b, double value);
DS_API ds_tensor *ds_addcdiv(ds_tensor *x, ds_tensor *a, ds_tensor *b, double value);

/* Inverse functions; of integers float32. NaN where there is none. */
DS_API ds_tensor *ds_asin(ds_tensor *x);   /* -pi/2 to pi/2 */
DS_API ds_tensor *ds_acos(ds_tensor *x);   /* 0 to pi */
DS_API ds_tensor *ds_atan(ds_tensor *x);   /* -pi/2 to pi/2 */
DS_API ds_tensor *ds_asinh(ds_tensor *x);  /* ln(x + sqrt(x^2 + 1)) */
DS_API ds_tensor *ds_acosh(ds_tensor *x);  /* ln(x + sqrt(x^2 - 1)) */
DS_API ds_tensor *ds_atanh(ds_tensor *x);  /* ln((1 + x) / (1 - x)) / 2 */
DS_API ds_tensor *ds_erfinv(ds_tensor *x); /* of ds_erf */
/* ln(x / (1 - x)); of x between eps and 1 - eps, if eps is not 0 */
DS_API ds_tensor *ds_logit(ds_tensor *x, double eps);
DS_API ds_tensor *ds_exp2(ds_tensor *x); /* 2^x; of integers float32 */
DS_API ds_tensor *ds_frac(ds_tensor *x); /* x - trunc x; floating-point x */

/* These broadcast, and promote as ds_add does; atan2 and xlogy of integers are
 * float32, hypot refuses them. */
DS_API ds_tensor *ds_atan2(ds_tensor *a, ds_tensor *b); /* the angle of (b, a), -pi to pi */
DS_API ds_tensor *ds_hypot(ds_tensor *a, ds_tensor *b); /* sqrt(a^2 + b^2), without overflow */
DS_API ds_tensor *ds_xlogy(ds_tensor *a, ds_tensor *b); /* a ln b; 0 where a is 0 */
/* a - b trunc(a / b), of a's sign; of integers as ds_remainder */
DS_API ds_tensor *ds_fmod(ds_tensor *a, ds_tensor *b);
/* torch.pow with tensors, x^exponent; of integers 0 or 1 or -1 where the
 * exponent is below 0. Refuses two bools. */
DS_API ds_tensor *ds_pow_tensors(ds_tensor *x, ds_tensor *exponent);

/* Of integers, which promote, and, except for shifts, of bools. A shift by less
 * than 0, or by the dtype's bits and more, leaves 0, to the right the sign. */
DS_API ds_tensor *ds_bitwise_and(ds_tensor *a, ds_tensor *b);
DS_API ds_tensor *ds_bitwise_or(ds_tensor *a, ds_tensor *b);
DS_API ds_tensor *ds_bitwise_xor(ds_tensor *a, ds_tensor *b);
DS_API ds_tensor *ds_bitwise_not(ds_tensor *x);
DS_API ds_tensor *ds_bitwise_left_shift(ds_tensor *a, ds_tensor *b);
DS_API ds_tensor *ds_bitwise_right_shift(ds_tensor *a, ds_tensor *b);

typedef struct ds_nan_to_num_opts {
    double nan;    /* in place of NaN */
    double posinf; /* in place of INFINITY; 0: the dtype's largest number; DS_ZERO: 0 */
    double neginf; /* in place of -INFINITY; 0: its smallest; DS_ZERO: 0 */
} ds_nan_to_num_opts;

/* torch.nan_to_num; the gradient is 0 where a number was replaced. */
#define ds_nan_to_num(x, ...) ds_nan_to_num_with(x, (ds_nan_to_num_opts){.nan = __VA_ARGS__})
DS_API ds_tensor *ds_nan_to_num_with(ds_tensor *x, ds_nan_to_num_opts opts);

/* ---- tests of values ----------------------------------------------------------------- */

/* bool, of x's shape; no gradient. */
DS_API ds_tensor *ds_isnan(ds_tensor *x);
DS_API ds_tensor *ds_isinf(ds_tensor *x);
DS_API ds_tensor *ds_isfinite(ds_tensor *x); /* neither */

/* bool: whether any element, or each, differs from 0, as NaN does; of all
 * elements -> [], or over dimensions as ds_sum_with. ds_count_nonzero: int64,
 * how many do. */
DS_API ds_tensor *ds_any(ds_tensor *x);
DS_API ds_tensor *ds_any_with(ds_tensor *x, ds_reduce_opts opts);
DS_API ds_tensor *ds_all(ds_tensor *x);
DS_API ds_tensor *ds_all_with(ds_tensor *x, ds_reduce_opts opts);
DS_API ds_tensor *ds_count_nonzero(ds_tensor *x);
DS_API ds_tensor *ds_count_nonzero_with(ds_tensor *x, ds_reduce_opts opts);

typedef struct ds_close_opts {
    double rtol; /* relative to |b|; 0: 1e-5 */
    double atol; /* 0: 1e-8 */
    bool equal_nan;
} ds_close_opts;

/* torch.isclose: |a - b| <= atol + rtol |b|, or a == b; bool; a and b
 * broadcast. */
DS_API ds_tensor *ds_isclose(ds_tensor *a, ds_tensor *b, ds_close_opts opts);

/* Whether all elements are; whether shapes and all elements are equal. The host
 * waits for the device. False also if a call fails, with ds_error() set. */
DS_API bool ds_allclose(ds_tensor *a, ds_tensor *b, ds_close_opts opts);
DS_API bool ds_equal(ds_tensor *a, ds_tensor *b);

/* ---- order --------------------------------------------------------------------------- */

/* The minimum along dim, and the index of the first one; as ds_max and
 * ds_argmax. */
DS_API ds_tensor *ds_min(ds_tensor *x, int dim, bool keepdim);
DS_API ds_tensor *ds_argmin(ds_tensor *x, int dim);
/* int64: the places that ds_sort finds */
DS_API ds_tensor *ds_argsort(ds_tensor *x, int dim, bool descending);

/* The k-th smallest along dim, k from 1; the median, of two the lower one, NaN
 * if there is one. With a gradient. indices: NULL, or *indices becomes int64,
 * their places. Of all elements: of ds_flatten(x, 0). On the host, as
 * ds_sort. */
DS_API ds_tensor *ds_kthvalue(ds_tensor *x, int64_t k, int dim, bool keepdim, ds_tensor **indices);
DS_API ds_tensor *ds_median(ds_tensor *x, int dim, bool keepdim, ds_tensor **indices);

/* torch.mode: the most frequent along dim, of several the smallest, and the
 * last of its places. Each NaN is a value of its own. As ds_median. */
DS_API ds_tensor *ds_mode(ds_tensor *x, int dim, bool keepdim, ds_tensor **indices);

/* torch.cummax and cummin: the largest up to each element along dim; *indices,
 * unless NULL, its place, of equal ones and of NaNs the last.
 * torch.logcumsumexp: ln of the running sums of e^x, without overflow;
 * floating-point x. All in log2 K
 * passes. */
DS_API ds_tensor *ds_cummax(ds_tensor *x, int dim, ds_tensor **indices);
DS_API ds_tensor *ds_cummin(ds_tensor *x, int dim, ds_tensor **indices);
DS_API ds_tensor *ds_logcumsumexp(ds_tensor *x, int dim);

/* torch.diff: each element along dim less the one before it, n times; of bools
 * whether they differ. torch.trapezoid: the integral along dim of y at x, [K]
 * or a shape that broadcasts with y's; NULL: at distances dx. Of integers
 * float32. */
DS_API ds_tensor *ds_diff(ds_tensor *x, int64_t n, int dim);
DS_API ds_tensor *ds_trapezoid(ds_tensor *y, ds_tensor *x, double dx, int dim);

/* torch.searchsorted: int64 of x's shape, how many of sorted [M], ascending, or
 * of its row for x [...,K] and sorted [...,M], are smaller than each x; right:
 * not larger. torch.bucketize: the same of boundaries [M]. */
DS_API ds_tensor *ds_searchsorted(ds_tensor *sorted, ds_tensor *x, bool right);
DS_API ds_tensor *ds_bucketize(ds_tensor *x, ds_tensor *boundaries, bool right);

/* torch.isin: bool of x's shape, whether test, of any shape, has the element.
 * They promote; no NaN is in test. torch.histc: [bins], how many elements are
 * in each of `bins` equal parts of low to high, both 0: of the smallest to the
 * largest element, which the host reads; others do not count. Floating-point
 * x. */
DS_API ds_tensor *ds_isin(ds_tensor *x, ds_tensor *test);
DS_API ds_tensor *ds_histc(ds_tensor *x, int64_t bins, double low, double high);

/* torch.quantile of one q, 0 to 1, along dim: between two elements in
 * proportion. NaN if there is one. Floating-point x. */
DS_API ds_tensor *ds_quantile(ds_tensor *x, double q, int dim, bool keepdim);

/* ---- selection ----------------------------------------------------------------------- */

/* The size of these results depends on values, which the host reads, so a call
 * waits for the device, and a step with one cannot be recorded as a graph. */

/* int64 [K,n]: the places of elements that are not 0, in row-major order, for x
 * of n dimensions. Rows of x by a mask [N]:
 * ds_index_select(x, 0, ds_select(ds_nonzero(mask), 1, 0)). */
DS_API ds_tensor *ds_nonzero(ds_tensor *x);
/* x[mask], [K]: the elements where mask, bool, is true; both broadcast. */
DS_API ds_tensor *ds_masked_select(ds_tensor *x, ds_tensor *mask);
/* torch.unique: the values of x in ascending order, [K], without a gradient.
 * inverse, counts: NULL, or *inverse becomes int64 of x's shape, the place of
 * each element's value, and *counts int64 [K], how often it is there. Each NaN
 * is a value of its own. */
DS_API ds_tensor *ds_unique(ds_tensor *x, ds_tensor **inverse, ds_tensor **counts);
/* torch.bincount: int64 [max(minlength, largest + 1)], how often each number is
 * in x: integers [N], none below 0. */
DS_API ds_tensor *ds_bincount(ds_tensor *x, int64_t minlength);

/* ---- by index ------------------------------------------------------------------------ */

typedef enum ds_scatter_reduction {
    DS_SCATTER_SUM = 0,
    DS_SCATTER_PROD,
    DS_SCATTER_MEAN, /* of integers rounded down */
    DS_SCATTER_AMAX, /* NaN wins; equal ones share the gradient */
    DS_SCATTER_AMIN
} ds_scatter_reduction;

/* torch.scatter_reduce: of the elements of src that index, int64, sends to one
 * place of x along dim, and of x's own, unless exclude_self
 * (include_self=False), the sum, product, ...; operands as of ds_scatter_add.
 * The host orders src for amax and amin, and reads the index for products. */
DS_API ds_tensor *ds_scatter_reduce(ds_tensor *x, int dim, ds_tensor *index, ds_tensor *src,
                                    ds_scatter_reduction how, bool exclude_self);

/* torch.index_copy and index_fill: x with the slices that index, int64 [K],
 * names along dim from source, of x's shape with K slices; or all that
 * number. */
DS_API ds_tensor *ds_index_copy(ds_tensor *x, int dim, ds_tensor *index, ds_tensor *source);
DS_API ds_tensor *ds_index_fill(ds_tensor *x, int dim, ds_tensor *index, double value);

/* x[i0, i1, ...] of n indices of the first dimensions: integers, which
 * broadcast and, below 0, count from the end; or a bool mask of as many
 * dimensions as it has. torch.index_put: x with values, which broadcast to
 * that, in these places, or added to them. The host reads the indices, to
 * refuse those outside. */
DS_API ds_tensor *ds_index(ds_tensor *x, ds_tensor **indices, int n);
DS_API ds_tensor *ds_index_put(ds_tensor *x, ds_tensor **indices, int n, ds_tensor *values,
                               bool accumulate);

/* torch.take: the elements at places of x in row-major order, of index's shape.
 * torch.take_along_dim: ds_gather whose operands broadcast but along dim. */
DS_API ds_tensor *ds_take(ds_tensor *x, ds_tensor *index);
DS_API ds_tensor *ds_take_along_dim(ds_tensor *x, ds_tensor *index, int dim);

/* torch.masked_scatter: x, with elements of source, in order, where mask, bool,
 * is true; x and mask broadcast. Refuses a source of too few, for which the
 * host
 * waits. */
DS_API ds_tensor *ds_masked_scatter(ds_tensor *x, ds_tensor *mask, ds_tensor *source);

/* ---- matrices and shapes ------------------------------------------------------------- */

DS_API ds_tensor *ds_eye(ds_dtype dtype, int64_t n, int64_t m); /* [n,m]: 1 where i = j */
/* [steps]: from begin to end, both of them */
DS_API ds_tensor *ds_linspace(ds_dtype dtype, double begin, double end, int64_t steps);
/* torch.diag: of x [N] the matrix [N+|k|,N+|k|] with x on its k-th diagonal; of
 * a matrix that diagonal. */
DS_API ds_tensor *ds_diag(ds_tensor *x, int64_t k);
/* torch.diagonal: the elements whose places along dim1 and dim2 differ by
 * offset, as the last dimension. A copy. */
DS_API ds_tensor *ds_diagonal(ds_tensor *x, int64_t offset, int dim1, int dim2);
DS_API ds_tensor *ds_trace(ds_tensor *x);               /* of a matrix -> [] */
DS_API ds_tensor *ds_outer(ds_tensor *a, ds_tensor *b); /* [N], [M] -> [N,M] */
DS_API ds_tensor *ds_dot(ds_tensor *a, ds_tensor *b);   /* [N], [N] -> [] */
/* torch.kron: [a0 b0, a1 b1, ...], each element of a times b; up to 4
 * dimensions. torch.tensordot: sums over dimensions dims_a of a and dims_b of
 * b, as many, in this order, of equal sizes; a's others, then b's stay.
 * torch.vander: [K,n] of x [K]: powers n - 1 to 0, or 0 to n - 1. */
DS_API ds_tensor *ds_kron(ds_tensor *a, ds_tensor *b);
DS_API ds_tensor *ds_tensordot(ds_tensor *a, ds_tensor *b, ds_dims dims_a, ds_dims dims_b);
DS_API ds_tensor *ds_vander(ds_tensor *x, int64_t n, bool increasing);
/* torch.cdist: [...,P,R] of a [...,P,M] and b [...,R,M]: the p-norms of the
 * differences of each two rows, p 0: 2, DS_ZERO: 0. The gradient at 0 is 0.
 * Needs P R M elements of memory, P R where p is 2 and P or R above 25: then it
 * is less exact, by a product of matrices, as in PyTorch. */
DS_API ds_tensor *ds_cdist(ds_tensor *a, ds_tensor *b, double p);
/* torch.cov of N variables, x [N,K] -> [N,N], or [K] -> []; divided by K -
 * correction, 0: 1, DS_ZERO: 0. torch.corrcoef: the same over their roots. */
DS_API ds_tensor *ds_cov(ds_tensor *x, double correction);
DS_API ds_tensor *ds_corrcoef(ds_tensor *x);
/* torch.rot90: k quarter turns from dim0 to dim1. */
DS_API ds_tensor *ds_rot90(ds_tensor *x, int k, int dim0, int dim1);
/* torch.tril_indices and triu_indices: int64 [2,N], the rows and the columns of
 * the triangle below (above) the diagonal that begins in column `offset`. */
DS_API ds_tensor *ds_tril_indices(int64_t rows, int64_t columns, int64_t offset);
DS_API ds_tensor *ds_triu_indices(int64_t rows, int64_t columns, int64_t offset);
/* View: dimension `from` is at `to`, the others keep their order. */
DS_API ds_tensor *ds_movedim(ds_tensor *x, int from, int to);
/* Views: out[i] = x at place i along dim -> their number, at most `most`; 0
 * with a message. */
DS_API int ds_unbind(ds_tensor *x, int dim, ds_tensor **out, int most);
/* torch.meshgrid(indexing='ij'): views out[i] [N0,N1,...] of n vectors x[i]
 * [Ni]. False with a message. */
DS_API bool ds_meshgrid(ds_tensor **x, int n, ds_tensor **out);

#ifdef __cplusplus
}
#endif
#endif
