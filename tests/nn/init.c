/* tests/nn/init.c: initial values: their spread for each rule and rank, and
 * what is refused. tests/reference/sampler.c compares values with PyTorch's.
 * SPDX-License-Identifier: MIT */
#include "check.h"

/* Root of the mean square, and the largest absolute value. */
static double spread(ds_tensor *x, double *largest)
{
    CHECK(x != NULL);
    const float *v = ds_data(ds_cast(x, DS_F32));
    int64_t n = ds_numel(x);
    double squares = 0, most = 0;
    for (int64_t i = 0; i < n; i++) {
        squares += (double)v[i] * (double)v[i];
        most = fmax(most, fabs((double)v[i]));
    }
    if (largest) *largest = most;
    return sqrt(squares / (double)n);
}

static const ds_dims shapes[] = {{2, {300, 200}}, {3, {60, 50, 20}}, {4, {40, 30, 5, 7}}};

static void fans_count_the_kernel(void **state)
{
    (void)state;
    ds_seed(1);
    for (int k = 0; k < 3; k++) {
        double kernel = 1, most;
        for (int i = 2; i < shapes[k].n; i++) kernel *= (double)shapes[k].d[i];
        double in = (double)shapes[k].d[1] * kernel, out = (double)shapes[k].d[0] * kernel;
        ds_tensor *x = ds_zeros(DS_F32, shapes[k]);

        double std = 1 / sqrt(in);
        CHECK_CLOSE(spread(ds_init_kaiming_normal(x, 0, DS_FAN_IN, DS_GAIN_LINEAR), NULL), std,
                    0.03 * std);
        std = sqrt(2 / out);
        CHECK_CLOSE(spread(ds_init_kaiming_uniform(x, 0, DS_FAN_OUT, DS_GAIN_RELU), &most), std,
                    0.03 * std);
        CHECK(most <= sqrt(3) * std * (1 + 1e-6) && most > sqrt(3) * std * 0.99);
        std = 1.5 * sqrt(2 / (in + out));
        CHECK_CLOSE(spread(ds_init_xavier_normal(x, 1.5), NULL), std, 0.03 * std);
        CHECK_CLOSE(spread(ds_init_xavier_uniform(x, 1.5), &most), std, 0.03 * std);
        CHECK(most <= sqrt(3) * std * (1 + 1e-6));
    }
}

static void gains_are_pytorchs(void **state)
{
    (void)state;
    static const double want[] = {1.2649110640673518 /* sqrt(2 / 1.25) */, 1.4142135623730951, 1,
                                  5.0 / 3, 0.75};
    ds_tensor *x = ds_zeros(DS_F32, ds_shape(400, 400));
    for (int g = DS_GAIN_LEAKY_RELU; g <= DS_GAIN_SELU; g++) {
        double std = want[g] / sqrt(400);
        CHECK_CLOSE(spread(ds_init_kaiming_normal(x, 0.5, DS_FAN_IN, (ds_gain)g), NULL), std,
                    0.02 * std);
    }
}

static void plain_rules_fill(void **state)
{
    (void)state;
    ds_tensor *x = ds_zeros(DS_F32, ds_shape(30000));
    double most;
    CHECK_CLOSE(spread(ds_init_constant(x, -2), NULL), 2, 0);
    CHECK_CLOSE(spread(ds_init_uniform(x, -3, 3), &most), sqrt(3), 0.05);
    CHECK(most <= 3);
    CHECK_CLOSE(spread(ds_init_normal(x, 0, 0.1), NULL), 0.1, 0.003);
    ds_tensor *d = ds_init_normal(ds_zeros(DS_F64, ds_shape(30000)), 5, 0.1);
    CHECK_CLOSE(spread(d, NULL), 5.001, 0.003);
    ds_tensor *h = ds_init_uniform(ds_zeros(DS_BF16, ds_shape(300)), 2, 3);
    CHECK_CLOSE(spread(h, &most), 2.51, 0.05);
}

/* Mean and bounds, also where nearly all normal values would miss. */
static void truncation_keeps_the_bounds(void **state)
{
    (void)state;
    static const double cases[][6] = {
        /* mean, std, low, high, mean and std between the bounds */
        {0, 1, -2, 2, 0, 0.8796},           {0, 0.02, -2, 2, 0, 0.02},
        {1, 2, 0, 1, 0.5103, 0.2874},       {0, 1, 4, 5, 4.2168, 0.1957},
        {0, 1, -1000, -5, -5.1865, 0.1808}, {0, 1, 6, 6.0001, 6.00005, 2.887e-5}};
    enum { N = 20000 };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const double *c = cases[k];
        ds_tensor *x = ds_init_trunc_normal(ds_zeros(DS_F32, ds_shape(N)), c[0], c[1], c[2], c[3]);
        const float *v = ds_data(x);
        double sum = 0, squares = 0;
        for (int i = 0; i < N; i++) {
            CHECK(v[i] >= (float)c[2] && v[i] <= (float)c[3]);
            sum += (double)v[i];
            squares += ((double)v[i] - c[4]) * ((double)v[i] - c[4]);
        }
        CHECK_CLOSE(sum / N, c[4], 5 * c[5] / sqrt(N) + 1e-6);
        CHECK_CLOSE(sqrt(squares / N), c[5], 0.05 * c[5]);
    }
}

/* Rows or columns, those that are fewer, have the length gain and are at right
 * angles; in every dtype. */
static void orthogonal_is_orthogonal(void **state)
{
    (void)state;
    static const ds_dims sizes[] = {{2, {40, 17}}, {2, {17, 40}}, {3, {6, 3, 4}}, {2, {9, 9}}};
    for (int k = 0; k < 4; k++)
        for (ds_dtype dtype = DS_F32; dtype <= DS_BF16; dtype++) {
            ds_tensor *x = ds_init_orthogonal(ds_zeros(dtype, sizes[k]), 2);
            CHECK(x != NULL);
            ds_tensor *w = ds_reshape(ds_cast(x, DS_F64), ds_shape(sizes[k].d[0], -1));
            bool tall = ds_size(w, 0) > ds_size(w, 1);
            ds_tensor *t = ds_transpose(w, 0, 1), *g = tall ? ds_matmul(t, w) : ds_matmul(w, t);
            int64_t n = ds_size(g, 0);
            const double *p = ds_data(g);
            double near = dtype == DS_F32 ? 1e-5 : dtype == DS_F64 ? 1e-12 : 0.05;
            for (int64_t i = 0; i < n * n; i++) CHECK_CLOSE(p[i], i % (n + 1) ? 0 : 4, near);
        }
}

static void wrong_ones_are_refused(void **state)
{
    (void)state;
    ds_tensor *flat = ds_zeros(DS_F32, ds_shape(4)), *x = ds_zeros(DS_F32, ds_shape(4, 4));
    ds_tensor *whole = ds_zeros(DS_I64, ds_shape(4, 4));
    CHECK(!ds_init_kaiming_uniform(flat, 0, DS_FAN_IN, DS_GAIN_RELU));
    CHECK_ERROR("init_kaiming_uniform: x is [4]: fans need at least 2 dimensions");
    CHECK(!ds_init_xavier_normal(flat, 1));
    CHECK_ERROR("init_xavier_normal: x is [4]");
    CHECK(!ds_init_kaiming_normal(x, 0, (ds_fan)7, DS_GAIN_RELU));
    CHECK_ERROR("no fan number 7");
    CHECK(!ds_init_kaiming_normal(x, 0, DS_FAN_IN, (ds_gain)9));
    CHECK_ERROR("no gain number 9");
    CHECK(!ds_init_orthogonal(flat, 1));
    CHECK_ERROR("init_orthogonal: x is float32 [4]: expected floats of at least 2 dimensions");
    CHECK(!ds_init_uniform(x, 2, 1));
    CHECK_ERROR("init_uniform: no uniform values from 2 to 1");
    CHECK(!ds_init_uniform(x, NAN, 1));
    CHECK_ERROR("init_uniform");
    CHECK(!ds_init_normal(x, 0, -1));
    CHECK_ERROR("init_normal: std is -1");
    CHECK(!ds_init_normal(whole, 0, 1));
    CHECK_ERROR("x is int64");
    CHECK(!ds_init_trunc_normal(x, 0, 1, 2, 2));
    CHECK_ERROR("the bounds are 2 and 2");
    CHECK(!ds_init_trunc_normal(x, 0, 0, -2, 2));
    CHECK_ERROR("std is 0");
    CHECK(!ds_init_trunc_normal(whole, 0, 1, -2, 2));
    CHECK_ERROR("x is int64");
}

static void null_is_passed(void **state)
{
    (void)state;
    CHECK(!ds_init_constant(NULL, 1) && !ds_init_uniform(NULL, 0, 1) &&
          !ds_init_normal(NULL, 0, 1));
    CHECK(!ds_init_trunc_normal(NULL, 0, 1, -2, 2) && !ds_init_xavier_uniform(NULL, 1));
    CHECK(!ds_init_kaiming_uniform(NULL, 0, DS_FAN_IN, DS_GAIN_RELU));
    CHECK_ERROR("init_constant");
}

TEST_MAIN(cmocka_unit_test(fans_count_the_kernel), cmocka_unit_test(gains_are_pytorchs),
          cmocka_unit_test(plain_rules_fill), cmocka_unit_test(truncation_keeps_the_bounds),
          cmocka_unit_test(orthogonal_is_orthogonal), cmocka_unit_test(wrong_ones_are_refused),
          cmocka_unit_test(null_is_passed))
