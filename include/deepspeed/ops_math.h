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
/* x + value a b, and x + value a / b; operands promote as those of ds_add */
DS_API ds_tensor *ds_addcmul(ds_tensor *x, ds_tensor *a, ds_tensor *b, double value);
DS_API ds_tensor *ds_addcdiv(ds_tensor *x, ds_tensor *a, ds_tensor *b, double value);

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
