/* tests/ops/math.c: functions of ops_math.h at special values, of integers and
 * where the host decides: what PyTorch 2.15 gives; what is refused. Gradients,
 * strides and 16 bits: rows of cases_more.h.
 * SPDX-License-Identifier: MIT */
#include "check.h"

#include <deepspeed/ops_math.h>

#include <float.h>

static ds_tensor *floats(int64_t n, const float *x) { return ds_from_data(DS_F32, ds_shape(n), x); }
static ds_tensor *ints(int64_t n, const int64_t *x) { return ds_from_data(DS_I64, ds_shape(n), x); }

/* x is [n] with these elements; the scope of the caller owns all. */
static void has(ds_tensor *x, int n, const double *want)
{
    CHECK(x && ds_numel(x) == n);
    ds_tensor *line = ds_reshape(ds_cast(x, DS_F64), ds_shape(n));
    for (int i = 0; i < n; i++) {
        double got = ds_item(ds_select(line, 0, i));
        if (isnan(want[i]))
            CHECK(isnan(got));
        else if (isinf(want[i]))
            CHECK(got == want[i]);
        else
            CHECK_CLOSE(got, want[i], 1e-6);
    }
}
#define HAS(x, ...) \
    has(x, sizeof((double[]){__VA_ARGS__}) / sizeof(double), (const double[]){__VA_ARGS__})

static void special_values(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = floats(5, (const float[]){NAN, INFINITY, -INFINITY, -1.5f, 0});
    HAS(ds_isnan(x), 1, 0, 0, 0, 0);
    HAS(ds_isinf(x), 0, 1, 1, 0, 0);
    HAS(ds_isfinite(x), 0, 0, 0, 1, 1);
    HAS(ds_trunc(x), NAN, INFINITY, -INFINITY, -1, 0);
    HAS(ds_nan_to_num(x, 0), 0, FLT_MAX, -FLT_MAX, -1.5, 0);
    HAS(ds_nan_to_num(x, 7, .posinf = 8, .neginf = DS_ZERO), 7, 8, 0, -1.5, 0);
    HAS(ds_nan_to_num(ds_cast(x, DS_F16), 0), 0, 65504, -65504, -1.5, 0);
    HAS(ds_logaddexp(x, ds_scalar(DS_F32, INFINITY)), NAN, INFINITY, INFINITY, INFINITY, INFINITY);
    HAS(ds_logaddexp(x, ds_scalar(DS_F32, -INFINITY)), NAN, INFINITY, -INFINITY, -1.5, 0);
    HAS(ds_reciprocal(ints(2, (const int64_t[]){0, 4})), INFINITY, 0.25);
    HAS(ds_trunc(ints(1, (const int64_t[]){-3})), -3);
    HAS(ds_log2(ints(2, (const int64_t[]){8, 0})), 3, -INFINITY);
    CHECK(ds_dtype_of(ds_sinh(ints(1, (const int64_t[]){1}))) == DS_F32);
    HAS(ds_shift(ds_scale(ints(2, (const int64_t[]){-3, 4}), 5), 1), -14, 21);
    HAS(ds_scale(ds_cast(ints(2, (const int64_t[]){100, 3}), DS_I8), 2), -56, 6);
    CHECK(ds_dtype_of(ds_scale(ds_isnan(x), 1)) == DS_I64);
    HAS(ds_isfinite(ints(1, (const int64_t[]){-3})), 1);
    HAS(ds_isinf(ints(1, (const int64_t[]){-3})), 0);
    HAS(ds_lerp(ds_scalar(DS_F32, 0.1f), ds_scalar(DS_F32, 1e8), 1), 1e8);
    ds_scope_close(scope);
}

/* All three operands decide. */
static void promoted(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *half = ds_full(DS_F16, ds_shape(1), 2), *single = ds_full(DS_F32, ds_shape(1), 3),
              *brain = ds_full(DS_BF16, ds_shape(1), 5), *whole = ds_full(DS_I64, ds_shape(1), 7);
    CHECK(ds_dtype_of(ds_addcmul(half, single, half, 1)) == DS_F32);
    CHECK(ds_dtype_of(ds_addcdiv(half, half, single, 1)) == DS_F32);
    CHECK(ds_dtype_of(ds_addcmul(half, brain, brain, 1)) == DS_F32);
    CHECK(ds_dtype_of(ds_addcmul(half, whole, ds_scalar(DS_F64, 1), 1)) == DS_F16);
    CHECK(ds_dtype_of(ds_addcdiv(whole, whole, half, 1)) == DS_F16);
    HAS(ds_addcmul(whole, whole, whole, 2), 105);
    CHECK(!ds_addcdiv(whole, whole, whole, 1));
    CHECK_ERROR("addcdiv: operands are int64: expected a floating-point one");
    ds_scope_close(scope);
}

static void tests_of_values(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_reshape(floats(6, (const float[]){0, NAN, 0, 0, 1, -2}), ds_shape(3, 2));
    ds_reduce_opts rows = {.dims = ds_shape(1)};
    HAS(ds_any(x), 1);
    HAS(ds_any_with(x, rows), 1, 0, 1);
    HAS(ds_all_with(x, rows), 0, 0, 1);
    HAS(ds_count_nonzero(x), 3);
    HAS(ds_count_nonzero_with(x, rows), 1, 0, 2);
    HAS(ds_all(ds_zeros(DS_BOOL, ds_shape(0))), 1);
    HAS(ds_any(ds_zeros(DS_BOOL, ds_shape(0))), 0);
    ds_tensor *a = floats(4, (const float[]){1, INFINITY, NAN, 100});
    ds_tensor *b = floats(4, (const float[]){1.000001f, INFINITY, NAN, 101});
    HAS(ds_isclose(a, b, (ds_close_opts){0}), 1, 1, 0, 0);
    HAS(ds_isclose(a, b, (ds_close_opts){.rtol = 0.1, .equal_nan = true}), 1, 1, 1, 1);
    CHECK(ds_allclose(a, b, (ds_close_opts){.rtol = 0.1, .equal_nan = true}));
    CHECK(!ds_allclose(a, b, (ds_close_opts){.equal_nan = true}));
    CHECK(!ds_equal(a, a)); /* a NaN is not equal to itself */
    CHECK(ds_equal(ints(2, (const int64_t[]){1, 2}), ints(2, (const int64_t[]){1, 2})));
    CHECK(!ds_equal(ds_ones(DS_F32, ds_shape(2)), ds_ones(DS_F32, ds_shape(1, 2))));
    CHECK(!ds_error());
    ds_scope_close(scope);
}

static void order(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *at = NULL, *x = floats(5, (const float[]){3, -1, 7, -1, 2});
    ds_tensor *lowest = ints(3, (const int64_t[]){INT64_MAX, INT64_MIN, 0});
    HAS(ds_min(x, 0, false), -1);
    HAS(ds_argmin(x, 0), 1);
    HAS(ds_argmin(lowest, 0), 1);
    HAS(ds_argmin(ds_cast(x, DS_U8), 0), 4); /* -1 is 255 there */
    HAS(ds_min(ds_gt(x, ds_scalar(DS_F32, 0)), 0, true), 0);
    HAS(ds_argsort(x, 0, false), 1, 3, 4, 0, 2);
    HAS(ds_kthvalue(x, 4, 0, false, &at), 3);
    HAS(at, 0);
    HAS(ds_median(x, 0, true, &at), 2);
    HAS(at, 4);
    HAS(ds_median(floats(4, (const float[]){4, 1, 3, 2}), 0, false, NULL), 2);
    HAS(ds_median(floats(3, (const float[]){4, NAN, 3}), 0, false, &at), NAN);
    HAS(at, 1);
    HAS(ds_quantile(x, 0.4, 0, false), 0.8);
    HAS(ds_quantile(floats(3, (const float[]){4, NAN, 3}), 0, 0, false), NAN);
    HAS(ds_min(floats(3, (const float[]){4, NAN, 3}), 0, false), NAN);
    HAS(ds_median(ds_scalar(DS_F32, 5), 0, true, &at), 5);
    CHECK(at && ds_shape_of(at).n == 0);
    ds_scope_close(scope);
}

static void selection(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *inverse, *counts;
    ds_tensor *x = ds_reshape(floats(6, (const float[]){0, 3, 0, -1, 3, NAN}), ds_shape(2, 3));
    ds_tensor *places = ds_nonzero(x);
    CHECK(places && ds_size(places, 0) == 4 && ds_size(places, 1) == 2);
    HAS(places, 0, 1, 1, 0, 1, 1, 1, 2);
    CHECK(ds_size(ds_nonzero(ds_zeros(DS_I64, ds_shape(3, 2))), 0) == 0);
    CHECK(ds_size(ds_nonzero(ds_scalar(DS_F32, 2)), 0) == 1);
    HAS(ds_masked_select(x, ds_gt(x, ds_scalar(DS_F32, 0))), 3, 3);
    HAS(ds_masked_select(x, ds_gt(floats(3, (const float[]){1, 0, 1}), ds_scalar(DS_F32, 0))), 0, 0,
        -1, NAN);
    HAS(ds_unique(x, &inverse, &counts), -1, 0, 3, NAN);
    HAS(inverse, 1, 2, 1, 0, 2, 3);
    HAS(counts, 1, 2, 2, 1);
    CHECK(ds_shape_of(inverse).n == 2);
    CHECK(ds_numel(ds_unique(ds_zeros(DS_F32, ds_shape(0)), &inverse, &counts)) == 0);
    CHECK(ds_numel(inverse) == 0 && ds_numel(counts) == 0);
    HAS(ds_bincount(ints(4, (const int64_t[]){1, 3, 1, 0}), 6), 1, 2, 0, 1, 0, 0);
    HAS(ds_bincount(ds_cast(ints(2, (const int64_t[]){2, 2}), DS_U8), 0), 0, 0, 2);
    ds_scope_close(scope);
}

static void matrices(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    HAS(ds_eye(DS_F16, 2, 3), 1, 0, 0, 0, 1, 0);
    HAS(ds_linspace(DS_F32, -1, 1, 5), -1, -0.5, 0, 0.5, 1);
    HAS(ds_linspace(DS_I64, 0, 10.9, 4), 0, 3, 6, 10);
    HAS(ds_linspace(DS_F32, 3, 9, 1), 3);
    HAS(ds_diag(floats(2, (const float[]){INFINITY, 2}), 1), 0, INFINITY, 0, 0, 0, 2, 0, 0, 0);
    ds_tensor *x = ds_reshape(ds_arange(DS_I64, 0, 6, 1), ds_shape(2, 3));
    HAS(ds_diag(x, 1), 1, 5);
    HAS(ds_trace(x), 4);
    CHECK(ds_numel(ds_diagonal(x, 7, 0, 1)) == 0);
    HAS(ds_outer(ints(2, (const int64_t[]){1, 2}), ints(2, (const int64_t[]){3, 4})), 3, 4, 6, 8);
    HAS(ds_dot(ints(2, (const int64_t[]){1, 2}), ints(2, (const int64_t[]){3, 4})), 11);
    HAS(ds_movedim(x, 0, 1), 0, 3, 1, 4, 2, 5);
    ds_tensor *out[3], *axes[] = {ints(2, (const int64_t[]){1, 2}), ints(1, (const int64_t[]){3})};
    CHECK_INT(ds_unbind(x, 1, out, 3), 3);
    HAS(out[2], 2, 5);
    CHECK(ds_meshgrid(axes, 2, out));
    HAS(out[0], 1, 2);
    HAS(out[1], 3, 3);
    CHECK(ds_shape_of(out[1]).d[0] == 2 && ds_shape_of(out[1]).d[1] == 1);
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
    ds_tensor *x = floats(3, (const float[]){1, 2, 3}), *out[2];
    ds_tensor *n = ints(2, (const int64_t[]){1, -1});
    REFUSED(ds_square(NULL), "square");
    REFUSED(ds_square(ds_isnan(x)), "square: x is bool: expected numbers");
    REFUSED(ds_lerp(x, ds_cast(x, DS_F16), 1), "lerp");
    REFUSED(ds_lerp(x, ds_ones(DS_F32, ds_shape(2)), 1), "lerp: shapes [3] and [2]");
    REFUSED(ds_logaddexp(x, ds_ones(DS_F32, ds_shape(2))), "logaddexp: shapes [3] and [2]");
    REFUSED(ds_isclose(x, ds_ones(DS_F32, ds_shape(2)), (ds_close_opts){0}), "isclose: shapes [3]");
    REFUSED(ds_isclose(x, n, (ds_close_opts){0}), "isclose: a is float32, b int64");
    REFUSED(ds_isclose(x, x, (ds_close_opts){.atol = -1}), "isclose: rtol is 1e-05, atol -1");
    REFUSED(ds_kthvalue(x, 4, 0, false, NULL), "kthvalue: k is 4: expected 1 to 3");
    REFUSED(ds_median(ds_zeros(DS_F32, ds_shape(2, 0)), 1, false, NULL), "expected elements in");
    REFUSED(ds_min(x, 1, false), "min: ");
    REFUSED(ds_min(ds_zeros(DS_F32, ds_shape(0)), 0, false), "min: dimension 0 of x [0] is empty");
    REFUSED(ds_argmin(ds_zeros(DS_F32, ds_shape(0)), 0), "argmin: dimension 0 of x [0] is empty");
    REFUSED(ds_argsort(x, 1, false), "argsort: dimension 1");
    ds_reduce_opts second = {.dims = ds_shape(1)};
    REFUSED(ds_any_with(x, second), "any: dimension 1 of x [3]: expected -1 to 0");
    REFUSED(ds_all_with(x, second), "all: dimension 1 of x [3]");
    REFUSED(ds_count_nonzero_with(x, second), "count_nonzero: dimension 1 of x [3]");
    REFUSED(ds_quantile(x, 1.5, 0, false), "quantile: q is 1.5: expected 0 to 1");
    REFUSED(ds_masked_select(x, x), "masked_select: the mask is float32: expected bool");
    REFUSED(ds_bincount(n, 0), "bincount: element 1 is -1");
    REFUSED(ds_bincount(x, 0), "bincount: x is float32 [3]: expected integers [N]");
    REFUSED(ds_eye(DS_F32, -1, 2), "eye: the shape is [-1,2]");
    REFUSED(ds_linspace(DS_F32, 0, 1, -1), "linspace: steps is -1");
    REFUSED(ds_diag(ds_scalar(DS_F32, 1), 0), "diag: x is []: expected a vector or a matrix");
    REFUSED(ds_eye(DS_F32, INT64_C(1) << 32, INT64_C(1) << 32), "tensor: shape [4294967296, 4294");
    REFUSED(ds_diag(x, INT64_MIN), "diag: k is -9223372036854775808: expected -2^31 to 2^31");
    REFUSED(ds_diag(x, INT32_MAX), "larger than any memory");
    CHECK(ds_numel(ds_diagonal(ds_eye(DS_F32, 2, 2), INT64_MIN, 0, 1)) == 0);
    REFUSED(ds_diagonal(ds_eye(DS_F32, 2, 2), 0, 1, -1), "dim1 and dim2 are both 1");
    REFUSED(ds_trace(x), "trace: x is [3]: expected a matrix");
    REFUSED(ds_outer(x, ds_eye(DS_F32, 2, 2)), "outer: a is [3], b [2, 2]: expected vectors");
    REFUSED(ds_dot(x, ds_ones(DS_F32, ds_shape(2))), "dot: a has 3 elements, b 2");
    REFUSED(ds_unbind(x, 0, out, 2), "unbind: dimension 0 of x [3]: expected at most 2 elements");
    REFUSED(ds_meshgrid(&x, 0, out), "meshgrid: 0 vectors: expected 1 to 8");
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(special_values), cmocka_unit_test(tests_of_values),
          cmocka_unit_test(promoted), cmocka_unit_test(order), cmocka_unit_test(selection),
          cmocka_unit_test(matrices), cmocka_unit_test(refusals))
