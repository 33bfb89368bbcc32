/* tests/ops/attention_window.c: attention to the last keys alone, beside a mask
 * that says the same, and capped scores beside single ops: values and gradients;
 * their memory.
 * SPDX-License-Identifier: MIT */
#include "check.h"

#include <deepspeed/autograd.h>

/* bool [L,S]: query i sees keys i - window + 1 to i. */
static ds_tensor *window_mask(int64_t length, int64_t keys, int64_t window)
{
    uint8_t *p = malloc((size_t)(length * keys));
    for (int64_t i = 0; i < length; i++)
        for (int64_t j = 0; j < keys; j++) p[i * keys + j] = j <= i && j > i - window;
    ds_tensor *mask = ds_from_data(DS_BOOL, ds_shape(length, keys), p);
    free(p);
    return mask;
}

static double largest(ds_tensor *x)
{
    return ds_item(ds_max(ds_reshape(ds_abs(ds_cast(x, DS_F32)), ds_shape(-1)), 0, false));
}

static double softcap;

static void check_window(int64_t length, int64_t keys, int64_t window, ds_dtype dtype,
                         double tolerance)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *x[2][3], *y[2];
    const ds_dims shape[] = {ds_shape(2, 4, length, 8), ds_shape(2, 2, keys, 8),
                             ds_shape(2, 2, keys, 6)};
    ds_attention_opts o[] = {
        {.mask = window_mask(length, keys, window),
         .scale = 0.5,
         .softcap = softcap,
         .enable_gqa = true},
        {.causal = true, .window = window, .scale = 0.5, .softcap = softcap, .enable_gqa = true}};
    if (softcap > 0) { /* terms are added to capped scores by single ops */
        ds_tensor *none = ds_full(dtype, ds_shape(1), -INFINITY);
        o[0].mask = ds_where(o[0].mask, ds_zeros(dtype, ds_shape(1)), none);
    }
    for (int k = 0; k < 2; k++) {
        ds_seed(7);
        for (int i = 0; i < 3; i++)
            x[k][i] = ds_require_grad(ds_clone(ds_cast(ds_randn(DS_F32, shape[i]), dtype)), true);
        y[k] = ds_attention_with(x[k][0], x[k][1], x[k][2], o[k]);
        CHECK(y[k] != NULL);
        CHECK_INT(ds_backward(ds_sum(ds_mul(y[k], y[k]))), DS_OK);
    }
    CHECK_CLOSE(largest(ds_sub(y[0], y[1])), 0, tolerance);
    for (int i = 0; i < 3; i++)
        CHECK_CLOSE(largest(ds_sub(ds_grad(x[0][i]), ds_grad(x[1][i]))), 0, 4 * tolerance);
    ds_scope_close(scope);
}

static void as_with_a_mask(void **state)
{
    (void)state;
    check_window(300, 300, 40, DS_F32, 1e-5);
    check_window(129, 129, 1, DS_F32, 1e-5);
    check_window(256, 256, 255, DS_F64, 1e-12);
    check_window(140, 10, 5, DS_F32, 1e-5); /* most queries see no key */
    check_window(5, 9, 20, DS_F32, 1e-5);
    check_window(200, 200, 64, DS_BF16, 0.05);
    softcap = 0.7;
    check_window(300, 300, 40, DS_F32, 1e-5);
    check_window(300, 300, 999, DS_F32, 1e-5);
    check_window(150, 150, 149, DS_F64, 1e-12);
    check_window(140, 10, 5, DS_F32, 1e-5);
    check_window(200, 200, 64, DS_BF16, 0.05);
    softcap = 0;
}

/* Neither direction stores scores, [4,512,512]. */
static void stores_no_scores(void **state)
{
    (void)state;
    const ds_attention_opts o[] = {{.causal = true, .window = 100},
                                   {.causal = true, .softcap = 2},
                                   {.softcap = 2, .mask = window_mask(512, 512, 512)}};
    ds_device cpu = {DS_CPU, 0};
    ds_tensor *x = ds_require_grad(ds_randn(DS_F32, ds_shape(4, 512, 16)), true);
    for (size_t i = 0; i < sizeof o / sizeof *o; i++) {
        ds_memory_reset_peak(cpu);
        ds_scope *scope = ds_scope_open();
        CHECK_INT(ds_backward(ds_sum(ds_attention_with(x, x, x, o[i]))), DS_OK);
        ds_scope_close(scope);
        CHECK(ds_memory_peak(cpu) < 3u << 20);
    }
}

static void refused(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_zeros(DS_F32, ds_shape(1, 4, 4));
    CHECK(!ds_attention_with(x, x, x, (ds_attention_opts){.window = 2}));
    CHECK_ERROR("attention: window is 2: expected 1 or more, with causal");
    CHECK(!ds_attention_with(x, x, x, (ds_attention_opts){.window = -2, .causal = true}));
    CHECK_ERROR("attention: window is -2");
    CHECK(!ds_attention_with(x, x, x, (ds_attention_opts){.softcap = -2}));
    CHECK_ERROR("attention: softcap is -2: expected 0 or more");
    CHECK(!ds_attention_with(x, x, x, (ds_attention_opts){.softcap = INFINITY}));
    CHECK_ERROR("attention: softcap is inf: expected 0 or more, finite");
    ds_scope_close(scope);
}

/* softcap tanh(s / softcap) is s for a large cap, and below softcap for large s:
 * the largest weight of three is then e^2c / (e^2c + 1 + 1) or less. */
static void softcap_bounds_scores(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *q = ds_randn(DS_F32, ds_shape(2, 5, 8)), *v = ds_randn(DS_F32, ds_shape(2, 5, 8));
    ds_tensor *plain = ds_attention_with(q, q, v, (ds_attention_opts){.causal = true});
    ds_tensor *large = ds_attention_with(q, q, v,
                                         (ds_attention_opts){.causal = true, .softcap = 1e4});
    CHECK_CLOSE(ds_item(ds_sum(ds_abs(ds_sub(plain, large)))), 0, 1e-4);
    ds_tensor *key = ds_from_data(DS_F32, ds_shape(3, 1), ((float[]){1000, -1000, -1000}));
    ds_tensor *value = ds_from_data(DS_F32, ds_shape(3, 1), ((float[]){1, 0, 0}));
    ds_tensor *y = ds_attention_with(ds_ones(DS_F32, ds_shape(1, 1)), key, value,
                                     (ds_attention_opts){.softcap = 2});
    CHECK_CLOSE(ds_item(y), exp(4) / (exp(4) + 2), 1e-6);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(softcap_bounds_scores), cmocka_unit_test(as_with_a_mask),
          cmocka_unit_test(stores_no_scores), cmocka_unit_test(refused))
