/* tests/ops/edges.c: ops at infinite operands, at 0, and where a window is
 * larger than its input: what PyTorch 2.15 gives; and sizes beyond any memory.
 * SPDX-License-Identifier: MIT */
#include "check.h"

static ds_tensor *floats(ds_dims shape, const float *x)
{
    return ds_require_grad(ds_from_data(DS_F32, shape, x), true);
}

static void norms(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = floats(ds_shape(2), (const float[]){INFINITY, -INFINITY});
    CHECK(isinf(ds_item(ds_norm_with(x, (ds_norm_opts){.p = -1}))));
    ds_tensor *z = floats(ds_shape(3), (const float[]){0, -2, NAN});
    ds_tensor *count = ds_norm_with(z, (ds_norm_opts){.p = DS_ZERO});
    CHECK_CLOSE(ds_item(count), 2, 0);
    CHECK_INT(ds_backward(count), DS_OK);
    for (int i = 0; i < 3; i++) CHECK_CLOSE(ds_item(ds_select(ds_grad(z), 0, i)), 0, 0);
    ds_scope_close(scope);
}

/* Reflected infinite coordinates are those of element 0. */
static void grids(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = floats(ds_shape(1, 1, 2, 2), (const float[]){1, 2, 3, 4});
    ds_tensor *grid = floats(ds_shape(1, 1, 1, 2), (const float[]){INFINITY, -INFINITY});
    ds_grid_sample_opts o = {.padding_mode = DS_GRID_REFLECTION};
    ds_tensor *y = ds_grid_sample_with(x, grid, o);
    CHECK_CLOSE(ds_item(y), 1, 0);
    ds_scope_close(scope);
}

/* With ceil_mode a window may reach beyond the volume and its padding. */
static void volumes(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_ones(DS_F32, ds_shape(1, 5, 1, 6)), *at = NULL;
    ds_tensor *y = ds_max_pool3d(x, ds_shape(2, 3, 1), .stride = ds_shape(4, 4, 2),
                                 .padding = ds_shape(1, 0, 0), .ceil_mode = true);
    CHECK(y && ds_shape_of(y).d[1] == 2 && ds_shape_of(y).d[2] == 1 && ds_shape_of(y).d[3] == 3);
    y = ds_max_pool3d(ds_ones(DS_F32, ds_shape(0, 2, 4, 4, 4)), ds_shape(2), .indices = &at);
    CHECK(y && at && ds_shape_of(at).d[0] == 0 && ds_shape_of(at).d[4] == 2);
    ds_scope_close(scope);
}

/* The place of the last NaN of a window, and of the first of equal maxima.
 * Windows of 5 elements for 2 places: 0 to 2 and 2 to 4. */
static void adaptive_maxima(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = floats(ds_shape(1, 5), (const float[]){NAN, 1, NAN, 4, 4}), *at = NULL;
    ds_tensor *y = ds_adaptive_max_pool1d(x, 2, &at);
    CHECK(y && isnan(ds_item(ds_select(y, 1, 0))) && isnan(ds_item(ds_select(y, 1, 1))));
    CHECK_CLOSE(ds_item(ds_select(at, 1, 0)), 2, 0);
    CHECK_CLOSE(ds_item(ds_select(at, 1, 1)), 2, 0);
    CHECK_INT(ds_backward(ds_sum(y)), DS_OK);
    for (int i = 0; i < 5; i++)
        CHECK_CLOSE(ds_item(ds_select(ds_grad(x), 1, i)), i == 2 ? 2 : 0, 0);
    x = floats(ds_shape(1, 5, 1), (const float[]){4, 4, 1, 0, 1});
    y = ds_adaptive_max_pool2d(ds_unsqueeze(x, 0), 2, 1, &at);
    CHECK(y && at);
    CHECK_CLOSE(ds_item(ds_select(ds_select(at, 2, 0), 2, 0)), 0, 0);
    CHECK_CLOSE(ds_item(ds_select(ds_select(at, 2, 1), 2, 0)), 2, 0);
    ds_scope_close(scope);
}

/* The gradient of sum(y) for x, which is a leaf, at each element. */
static void has_gradient(ds_tensor *y, ds_tensor *x, const double *want)
{
    CHECK_INT(ds_backward(ds_sum(y)), DS_OK);
    for (int i = 0; i < ds_numel(x); i++) {
        double got = ds_item(ds_select(ds_reshape(ds_grad(x), ds_shape(-1)), 0, i));
        CHECK(isnan(want[i]) ? isnan(got) : got == want[i]);
    }
}

/* Of a line with a NaN; where a variance is infinite; at NaN and -0. */
static void endless_gradients(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    const float nan_line[] = {1, NAN, 3}, ends[] = {NAN, -0.0f, -INFINITY};
    ds_tensor *x = floats(ds_shape(3), nan_line);
    has_gradient(ds_amax(x), x, (const double[]){NAN, NAN, NAN});
    x = floats(ds_shape(3), nan_line);
    has_gradient(ds_amin(x), x, (const double[]){NAN, NAN, NAN});
    x = floats(ds_shape(3), nan_line);
    has_gradient(ds_norm_with(x, (ds_norm_opts){.p = INFINITY}), x, (const double[]){0, 0, 0});
    const float line[] = {1, 2, 3};
    ds_var_opts all = {.correction = 5}, named = {.dims = ds_shape(0), .correction = 5};
    x = floats(ds_shape(3), line);
    has_gradient(ds_var_with(x, all), x, (const double[]){INFINITY, NAN, INFINITY});
    x = floats(ds_shape(3), line);
    has_gradient(ds_var_with(x, named), x, (const double[]){1, 0, -1});
    x = floats(ds_shape(3), line);
    has_gradient(ds_std_with(x, all), x, (const double[]){NAN, NAN, NAN});
    x = floats(ds_shape(3), ends);
    has_gradient(ds_elu(x, 2), x, (const double[]){1, 2, 0});
    x = floats(ds_shape(3), ends);
    has_gradient(ds_celu(x, 2), x, (const double[]){1, 1, 0});
    x = floats(ds_shape(3), ends);
    has_gradient(ds_pow(x, 0.5), x, (const double[]){NAN, -INFINITY, NAN});
    CHECK_CLOSE(ds_item(ds_pow(floats(ds_shape(1), ends + 1), -0.5)), -INFINITY, 0);
    ds_scope_close(scope);
}

/* As PyTorch: pools to size 0, and the mode that is made of them; topk of 0 of
 * a
 * number. */
static void nothing_wanted(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_require_grad(ds_ones(DS_F32, ds_shape(2, 3, 5, 5)), true), *at = NULL;
    ds_tensor *y = ds_adaptive_max_pool2d(x, 0, 2, &at);
    CHECK(y && ds_size(y, 2) == 0 && ds_size(y, 3) == 2 && at && ds_numel(at) == 0);
    CHECK_INT(ds_backward(ds_add(ds_sum(y), ds_sum(ds_adaptive_avg_pool2d(x, 2, 0)))), DS_OK);
    CHECK_CLOSE(ds_item(ds_sum(ds_abs(ds_grad(x)))), 0, 0);
    y = ds_adaptive_avg_pool3d(x, 2, 0, 1);
    CHECK(y && ds_shape_of(y).n == 4 && ds_size(y, 2) == 0);
    CHECK(ds_adaptive_max_pool3d(ds_unsqueeze(x, 0), 0, 2, 1, &at) && ds_size(at, 4) == 1);
    CHECK(ds_size(ds_adaptive_avg_pool1d(ds_select(x, 0, 0), 0), 2) == 0);
    CHECK(ds_size(ds_interpolate(x, .scale_factor = 0.1, .mode = DS_AREA), 3) == 0);
    CHECK(!ds_interpolate(x, .scale_factor = 0.1));
    CHECK_ERROR("interpolate: dimension 2 of x [2, 3, 5, 5] would be 0 long");
    CHECK(!ds_adaptive_avg_pool2d(x, -1, 2));
    CHECK_ERROR("adaptive_avg_pool2d: the output's size is [-1, 2]: expected at least 0");
    CHECK_CLOSE(ds_item(ds_topk(ds_scalar(DS_F32, 7), 0, 0, false, &at)), 7, 0);
    ds_reduce_opts many = {.dims = {.n = 9}}, far = {.dims = ds_shape((int64_t)1 << 40)};
    CHECK(!ds_any_with(x, many));
    CHECK_ERROR("any: 9 dimensions of x [2, 3, 5, 5]: expected 0 to 4");
    CHECK(!ds_amax_with(x, far));
    CHECK_ERROR("amax: dimension 1099511627776 of x [2, 3, 5, 5]: expected -4 to 3");
    ds_scope_close(scope);
}

static void integers(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *byte = ds_full(DS_U8, (ds_dims){0}, 3), *minus = ds_neg(byte);
    CHECK(minus && ds_dtype_of(minus) == DS_U8);
    CHECK_CLOSE(ds_item(minus), 253, 0); /* wraps around */
    CHECK_CLOSE(ds_item(ds_abs(minus)), 253, 0);
    CHECK_CLOSE(ds_item(ds_abs(ds_full(DS_I64, ds_shape(1), -7))), 7, 0);
    /* an index smaller than x: elements outside of it stay */
    ds_tensor *x = ds_ones(DS_I64, ds_shape(3, 4)), *at = ds_zeros(DS_I64, ds_shape(2, 3));
    ds_tensor *y = ds_scatter_add(x, 1, at, ds_full(DS_I64, ds_shape(3, 3), 5));
    CHECK(y);
    CHECK_CLOSE(ds_item(ds_sum(y)), 12 + 2 * 15, 0);
    CHECK_CLOSE(ds_item(ds_select(ds_select(y, 0, 1), 0, 0)), 16, 0);
    CHECK_CLOSE(ds_item(ds_sum(x)), 12, 0);
    y = ds_scatter_add(ds_transpose(x, 0, 1), 0, at, at); /* not contiguous */
    CHECK(y && ds_item(ds_sum(y)) == 12);
    y = ds_scatter_add(x, 0, ds_zeros(DS_I64, ds_shape(2, 0)), ds_ones(DS_I64, ds_shape(2, 1)));
    CHECK(y && ds_item(ds_sum(y)) == 12);
    ds_scope_close(scope);
}

/* The call makes nothing, and its message holds both parts. */
#define REFUSES(call, part1, part2) \
    do { \
        CHECK(!(call)); \
        if (ds_error() && !strstr(ds_error(), part2)) CHECK_ERROR(part2); \
        CHECK_ERROR(part1); \
    } while (0)

/* Sizes whose products have more than 63 bits. */
static void huge_sizes(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    const int64_t far = (int64_t)1 << 40;
    ds_tensor *in = ds_ones(DS_F32, ds_shape(1, 4, 4)), *image = ds_unsqueeze(in, 0);
    REFUSES(ds_max_unpool(image, ds_zeros(DS_I64, ds_shape(1, 1, 4, 4)), ds_shape(far, far)),
            "max_unpool: the output's size is [1099511627776, 1099511627776]", "2^31 places");
    REFUSES(ds_fold(in, far, far, 2), "fold: the output's size is", "2^31 places");
    REFUSES(ds_unfold(image, 2, .padding = INT32_MAX), "unfold: an image has 4294967298 x", "2^31");
    REFUSES(ds_adaptive_max_pool2d(in, far, far, NULL), "adaptive_max_pool2d: ", "2^31 places");
    REFUSES(ds_adaptive_avg_pool1d(in, far), "adaptive_avg_pool1d: the output's", "2^31 places");
    REFUSES(ds_adaptive_avg_pool1d(ds_ones(DS_F32, ds_shape(2, 0)), 2), "adaptive_avg_pool1d: x is",
            "not empty");
    REFUSES(ds_max_pool3d(image, ds_shape(2), .stride = ds_shape(far)),
            "max_pool3d: stride is 1099511627776", "1 to 2147483647");
    REFUSES(ds_expand(ds_ones(DS_F32, ds_shape(1)), ds_shape(far, far)), "expand: [1099511627776",
            "2^63 - 1");
    REFUSES(ds_pad(in, ds_shape(INT64_MAX, INT64_MAX)), "pad: by 9223372036854775807", "more");
    REFUSES(ds_pad(in, ds_shape(INT64_MIN, 0)), "pad: by -9223372036854775808", "less than");
    REFUSES(ds_interpolate(image, .scale_factor = 1e30), "interpolate: dimension 2", "4e+30 long");
    REFUSES(
        ds_dispatch(ds_ones(DS_F32, ds_shape(2, 3)), ds_zeros(DS_I64, ds_shape(2, 1)), INT64_MAX),
        "tensor: shape", "any memory");
    const int64_t sizes[] = {INT64_MAX, INT64_MAX, 6}; /* 4 in all, modulo 2^64 */
    ds_tensor *part[3] = {NULL};
    REFUSES(ds_split_sizes(in, 3, sizes, 1, part), "split: size 0 is 9223372036854775807",
            "0 to 4");
    CHECK_INT(ds_split_size(in, INT64_MAX, 1, part, 3), 1);
    CHECK(part[0] && ds_size(part[0], 1) == 4);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(norms), cmocka_unit_test(grids), cmocka_unit_test(volumes),
          cmocka_unit_test(adaptive_maxima), cmocka_unit_test(huge_sizes),
          cmocka_unit_test(endless_gradients), cmocka_unit_test(nothing_wanted),
          cmocka_unit_test(integers))
