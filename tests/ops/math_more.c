/* tests/ops/math_more.c: functions of ops_math.h of two tensors, along a
 * dimension, by index and of matrices, at special values and of integers: what
 * PyTorch 2.15 gives; what is refused. Gradients, strides and 16 bits: rows of
 * cases_math.h.
 * SPDX-License-Identifier: MIT */
#include "check.h"

#include <deepspeed/ops_math.h>

static ds_tensor *floats(int64_t n, const float *x) { return ds_from_data(DS_F32, ds_shape(n), x); }
static ds_tensor *ints(int64_t n, const int64_t *x) { return ds_from_data(DS_I64, ds_shape(n), x); }
#define FLOATS(...) \
    floats(sizeof((float[]){__VA_ARGS__}) / sizeof(float), (const float[]){__VA_ARGS__})
#define INTS(...) \
    ints(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (const int64_t[]){__VA_ARGS__})

/* x has these elements in row-major order; the scope of the caller owns all. */
static void has(ds_tensor *x, int n, const double *want)
{
    CHECK(x && ds_numel(x) == n);
    ds_tensor *line = ds_reshape(ds_cast(x, DS_F64), ds_shape(n));
    for (int i = 0; i < n; i++) {
        double got = ds_item(ds_select(line, 0, i));
        bool good = isnan(want[i])   ? isnan(got)
                    : isinf(want[i]) ? got == want[i]
                                     : fabs(got - want[i]) <= 2e-6 * fmax(1, fabs(want[i]));
        if (!good) fail_msg("element %d is %.9g: expected %.9g", i, got, want[i]);
    }
}
#define HAS(x, ...) \
    has(x, sizeof((double[]){__VA_ARGS__}) / sizeof(double), (const double[]){__VA_ARGS__})

static void pairs(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = FLOATS(0, -0.0f, INFINITY, NAN, -3), *y = FLOATS(-1, -1, -INFINITY, 1, 0);
    HAS(ds_atan2(x, y), 3.14159265, -3.14159265, 2.35619449, NAN, -1.57079633);
    HAS(ds_hypot(FLOATS(3e30f, INFINITY, 0, NAN), FLOATS(4e30f, NAN, 0, 1)), 5e30, INFINITY, 0,
        NAN);
    HAS(ds_xlogy(FLOATS(0, 0, 2, 1), FLOATS(-1, NAN, 3, 0)), 0, NAN, 2.19722458, -INFINITY);
    HAS(ds_pow_tensors(FLOATS(0, -8, -2, 0), FLOATS(0, 0.5f, 3, -1)), 1, NAN, -8, INFINITY);
    HAS(ds_pow_tensors(INTS(2, 3, -1, 5, 0), INTS(62, -1, -3, 0, -1)), 4611686018427387904.0, 0, -1,
        1, 0);
    HAS(ds_fmod(FLOATS(-5.5f, 5.5f, 1), FLOATS(2, -2, 0)), -1.5, 1.5, NAN);
    HAS(ds_fmod(INTS(-7, 7, INT64_MIN), INTS(3, -3, -1)), -1, 1, 0);
    HAS(ds_remainder(ds_cast(INTS(9, 6), DS_U8), ds_full(DS_I64, (ds_dims){0}, -7)), 9, 6);
    HAS(ds_atan2(INTS(1), INTS(1)), 0.785398163);
    CHECK(ds_dtype_of(ds_xlogy(INTS(1), INTS(1))) == DS_F32);
    HAS(ds_bitwise_and(INTS(12, -1), INTS(10, INT64_MIN)), 8, (double)INT64_MIN);
    HAS(ds_bitwise_or(INTS(12, -8), INTS(10, 3)), 14, -5);
    HAS(ds_bitwise_xor(ds_cast(INTS(12, 255), DS_U8), ds_cast(INTS(10, 1), DS_U8)), 6, 254);
    HAS(ds_bitwise_not(INTS(0, -5)), -1, 4);
    HAS(ds_bitwise_xor(ds_isnan(x), ds_isinf(x)), 0, 0, 1, 1, 0);
    HAS(ds_bitwise_left_shift(INTS(3, 3, 3), INTS(2, 64, -1)), 12, 0, 0);
    HAS(ds_bitwise_right_shift(INTS(-9, -9, 9, INT64_MIN), INTS(1, -1, 70, 63)), -5, -1, 0, -1);
    ds_scope_close(scope);
}

static void inverses(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = FLOATS(-2, -1, 0, 1e-20f, 1, INFINITY);
    HAS(ds_asin(x), NAN, -1.57079633, 0, 1e-20, 1.57079633, NAN);
    HAS(ds_acos(x), NAN, 3.14159265, 1.57079633, 1.57079633, 0, NAN);
    HAS(ds_atan(x), -1.10714872, -0.785398163, 0, 1e-20, 0.785398163, 1.57079633);
    HAS(ds_asinh(x), -1.44363548, -0.881373587, 0, 1e-20, 0.881373587, INFINITY);
    HAS(ds_asinh(FLOATS(-1e30f, 1e-8f)), -69.7707028, 1e-8);
    HAS(ds_acosh(FLOATS(-3, 0.5f, 1, 2, 1e30f, INFINITY)), NAN, NAN, 0, 1.3169579, 69.7707028,
        INFINITY);
    HAS(ds_atanh(x), NAN, -INFINITY, 0, 1e-20, INFINITY, NAN);
    HAS(ds_erfinv(x), NAN, -INFINITY, 0, 0, INFINITY, NAN);
    HAS(ds_erfinv(FLOATS(0.5f, -0.999f)), 0.476936276, -2.32675377);
    HAS(ds_logit(FLOATS(0.25f, 0, 2), 0), -1.09861229, -INFINITY, NAN);
    HAS(ds_logit(FLOATS(0.25f, 0, 2), 0.1), -1.09861229, -2.19722458, 2.19722458);
    HAS(ds_exp2(INTS(3, -1)), 8, 0.5);
    HAS(ds_frac(FLOATS(-1.25f, 2)), -0.25, 0);
    ds_tensor *zero = ds_require_grad(ds_zeros(DS_F32, ds_shape(1)), true);
    CHECK_INT(ds_backward(ds_sum(ds_add(ds_asinh(zero), ds_atanh(zero)))), DS_OK);
    HAS(ds_grad(zero), 2);
    ds_scope_close(scope);
}

static void series(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *at = NULL, *x = FLOATS(1, 3, 3, NAN, 5);
    HAS(ds_cummax(x, 0, &at), 1, 3, 3, NAN, NAN);
    HAS(at, 0, 1, 2, 3, 3);
    HAS(ds_cummin(INTS(4, 6, 4, 5), 0, &at), 4, 4, 4, 4);
    HAS(at, 0, 0, 2, 2);
    HAS(ds_logcumsumexp(FLOATS(-INFINITY, 1000, 1000), 0), -INFINITY, 1000, 1000.6931472);
    HAS(ds_mode(FLOATS(2, 7, 2, 7, 1), 0, false, &at), 2);
    HAS(at, 2);
    HAS(ds_mode(ds_scalar(DS_F32, 4), 0, true, &at), 4);
    HAS(ds_diff(INTS(1, 4, 9, 16), 2, 0), 2, 2);
    HAS(ds_diff(ds_isnan(x), 1, 0), 0, 0, 1, 1);
    CHECK(ds_numel(ds_diff(INTS(1), 3, 0)) == 0);
    HAS(ds_trapezoid(FLOATS(1, 2, 3), NULL, 0.5, 0), 2);
    HAS(ds_trapezoid(INTS(1, 2, 3), FLOATS(0, 1, 4), 1, 0), 9);
    ds_tensor *sorted = FLOATS(1, 3, 3, 7);
    HAS(ds_searchsorted(sorted, FLOATS(3, 0, 8, NAN), false), 1, 0, 4, 4);
    HAS(ds_searchsorted(sorted, FLOATS(3, 0, 8, NAN), true), 3, 0, 4, 4);
    HAS(ds_searchsorted(ds_reshape(INTS(1, 2, 5, 6), ds_shape(2, 2)),
                        ds_reshape(INTS(2, 2), ds_shape(2, 1)), true),
        2, 0);
    HAS(ds_bucketize(FLOATS(7, 2), sorted, false), 3, 1);
    HAS(ds_isin(x, FLOATS(3, NAN)), 0, 1, 1, 0, 0);
    HAS(ds_isin(INTS(2, 3), ds_zeros(DS_F32, ds_shape(0))), 0, 0);
    HAS(ds_histc(FLOATS(1, 2, 1, 4), 3, 0, 0), 2, 1, 1);
    HAS(ds_histc(x, 2, 0, 4), 1, 2);
    HAS(ds_histc(FLOATS(2, 2), 2, 0, 0), 0, 2);
    ds_scope_close(scope);
}

static void by_index(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = FLOATS(1, 2, 3), *at = INTS(0, 0, 2, 0), *src = FLOATS(4, NAN, 5, 6);
    HAS(ds_scatter_reduce(x, 0, at, src, DS_SCATTER_AMAX, false), NAN, 2, 5);
    HAS(ds_scatter_reduce(x, 0, at, src, DS_SCATTER_AMIN, true), NAN, 2, 5);
    src = FLOATS(4, 2, 5, 6);
    HAS(ds_scatter_reduce(x, 0, at, src, DS_SCATTER_SUM, true), 12, 2, 5);
    HAS(ds_scatter_reduce(x, 0, at, src, DS_SCATTER_MEAN, true), 4, 2, 5);
    HAS(ds_scatter_reduce(x, 0, at, src, DS_SCATTER_MEAN, false), 3.25, 2, 4);
    HAS(ds_scatter_reduce(x, 0, at, src, DS_SCATTER_PROD, false), 48, 2, 15);
    HAS(ds_scatter_reduce(INTS(-1, 2), 0, INTS(0), INTS(-2), DS_SCATTER_MEAN, false), -2, 2);
    HAS(ds_scatter_reduce(INTS(-1, 2), 0, INTS(0), INTS(-2), DS_SCATTER_AMIN, false), -2, 2);
    HAS(ds_index_copy(x, 0, INTS(2, 0), FLOATS(8, 9)), 9, 2, 8);
    HAS(ds_index_fill(x, 0, INTS(-1, 0), 7), 7, 2, 7);
    ds_tensor *grid = ds_reshape(ds_arange(DS_I64, 0, 6, 1), ds_shape(2, 3));
    ds_tensor *both[] = {INTS(1, 0), INTS(-1, 0)}, *mask[] = {ds_gt(grid, INTS(3))};
    HAS(ds_index(grid, both, 2), 5, 0);
    HAS(ds_index(grid, both, 1), 3, 4, 5, 0, 1, 2);
    HAS(ds_index(grid, mask, 1), 4, 5);
    HAS(ds_index_put(grid, mask, 1, INTS(9), false), 0, 1, 2, 3, 9, 9);
    ds_tensor *twice[] = {INTS(0, 0)};
    HAS(ds_index_put(grid, twice, 1, INTS(1), true), 2, 3, 4, 3, 4, 5);
    HAS(ds_take(grid, INTS(-1, 2)), 5, 2);
    HAS(ds_take_along_dim(grid, ds_reshape(INTS(2), ds_shape(1, 1)), 1), 2, 5);
    HAS(ds_masked_scatter(grid, mask[0], INTS(7, 8, 9)), 0, 1, 2, 3, 7, 8);
    ds_scope_close(scope);
}

static void matrices(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_reshape(ds_arange(DS_I64, 0, 6, 1), ds_shape(2, 3));
    HAS(ds_kron(INTS(1, 2), INTS(3, 4)), 3, 4, 6, 8);
    HAS(ds_rot90(x, 1, 0, 1), 2, 5, 1, 4, 0, 3);
    HAS(ds_rot90(x, -2, 0, 1), 5, 4, 3, 2, 1, 0);
    HAS(ds_tril_indices(2, 3, 0), 0, 1, 1, 0, 0, 1);
    HAS(ds_triu_indices(2, 3, 1), 0, 0, 1, 1, 2, 2);
    HAS(ds_vander(INTS(2, 3), 3, false), 4, 2, 1, 9, 3, 1);
    HAS(ds_vander(FLOATS(2), 3, true), 1, 2, 4);
    ds_tensor *a = ds_reshape(FLOATS(0, 0, 3, 4), ds_shape(2, 2));
    HAS(ds_cdist(a, a, 0), 0, 5, 5, 0);
    HAS(ds_cdist(a, a, INFINITY), 0, 4, 4, 0);
    HAS(ds_cdist(a, a, DS_ZERO), 0, 2, 2, 0);
    HAS(ds_tensordot(a, a, ds_shape(0, 1), ds_shape(0, 1)), 25);
    HAS(ds_cov(FLOATS(1, 2, 4), 0), 2.33333333);
    HAS(ds_corrcoef(ds_reshape(FLOATS(1, 2, 2, 1), ds_shape(2, 2))), 1, -1, -1, 1);
    ds_scope_close(scope);
}

#define REFUSED(call, part) \
    do { \
        CHECK(!(call)); \
        CHECK_ERROR(part); \
    } while (0)

static void refusals(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = FLOATS(1, 2, 3), *n = INTS(1, 2, 3), *yes = ds_isnan(x), *i[] = {INTS(3)};
    REFUSED(ds_atan2(x, FLOATS(1, 2)), "atan2: shapes [3] and [2] do not broadcast");
    REFUSED(ds_pow_tensors(yes, yes), "pow: both operands are bool");
    REFUSED(ds_hypot(n, n), "hypot: operands are int64 and int64");
    REFUSED(ds_fmod(n, INTS(0)), "fmod: remainder: an element of b [1] is 0");
    REFUSED(ds_frac(n), "frac: x is int64 [3]");
    REFUSED(ds_bitwise_and(x, n), "bitwise_and: operands are float32 and int64");
    REFUSED(ds_bitwise_left_shift(yes, yes), "bitwise_left_shift: operands are bool and bool");
    REFUSED(ds_logit(x, 0.7), "logit: eps is 0.7: expected 0 to 0.5");
    REFUSED(ds_cummax(x, 1, NULL), "cummax: dimension 1 of x [3]: expected -1 to 0");
    REFUSED(ds_logcumsumexp(n, 0), "logcumsumexp: x is int64 [3]");
    REFUSED(ds_mode(ds_zeros(DS_F32, ds_shape(0)), 0, false, NULL), "mode: dimension 0 of x [0]");
    REFUSED(ds_diff(ds_scalar(DS_F32, 1), 1, 0), "diff: x is []: expected a dimension");
    REFUSED(ds_trapezoid(x, FLOATS(1, 2), 1, 0), "trapezoid: x is [2], dimension 0 of y [3]");
    REFUSED(ds_searchsorted(x, n, false), "searchsorted: operands are float32 [3] and int64 [3]");
    REFUSED(ds_bucketize(x, ds_scalar(DS_F32, 1), false), "bucketize: boundaries are []");
    REFUSED(ds_histc(x, 0, 0, 1), "histc: 0 bins: expected at least 1");
    REFUSED(ds_histc(x, 2, 3, 1), "histc: from 3 to 1: expected finite numbers in order");
    REFUSED(ds_scatter_reduce(x, 0, INTS(5), x, DS_SCATTER_AMAX, false), "scatter_reduce: ");
    REFUSED(ds_scatter_reduce(x, 0, n, n, DS_SCATTER_SUM, false), "scatter_reduce: operands are");
    REFUSED(ds_scatter_reduce(x, 0, INTS(0, 1, 2, 0), x, DS_SCATTER_AMAX, false),
            "scatter_reduce: the index is [4], src [3]: expected an index that is not larger");
    REFUSED(ds_index_copy(x, 0, n, FLOATS(1, 2)), "index_copy: the index is [3], source [2]");
    REFUSED(ds_index(x, i, 1), "index: an index is outside of -3 to 2");
    REFUSED(ds_index(x, &x, 1), "index: an index is float32: expected int64");
    REFUSED(ds_index_put(x, i, 1, n, false), "index_put: an index is outside of -3 to 2");
    REFUSED(ds_take(x, i[0]), "take: index: an index is outside of -3 to 2");
    REFUSED(ds_masked_scatter(x, ds_logical_not(yes), FLOATS(1)), "masked_scatter: source [1] has");
    REFUSED(ds_masked_scatter(x, x, x), "masked_scatter: the mask is float32: expected bool");
    ds_dims five = ds_shape(1, 1, 1, 1, 1);
    REFUSED(ds_kron(ds_ones(DS_F32, five), x), "kron: a is [1, 1, 1, 1, 1], b [3]");
    REFUSED(ds_tensordot(x, FLOATS(1, 2), ds_shape(0), ds_shape(0)), "tensordot: a is [3] in");
    REFUSED(ds_cdist(x, x, 2), "cdist: a is [3], b [3], p 2: expected [...,P,M]");
    REFUSED(ds_cov(n, 1), "cov: x is int64 [3]");
    REFUSED(ds_rot90(x, 1, 0, 0), "rot90: x is [3], dim0 and dim1 are both 0");
    REFUSED(ds_tril_indices(-1, 2, 0), "tril_indices: -1 rows, 2 columns");
    REFUSED(ds_vander(ds_ones(DS_F32, ds_shape(2, 2)), 2, true), "vander: x is [2, 2]");
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(pairs), cmocka_unit_test(inverses), cmocka_unit_test(series),
          cmocka_unit_test(by_index), cmocka_unit_test(matrices), cmocka_unit_test(refusals))
