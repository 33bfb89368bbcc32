/* tests/ops/empty.c: tensors without elements go through every family, forward
 * and backward.
 * SPDX-License-Identifier: MIT */
#include "check.h"

static ds_tensor *x(ds_dims shape) { return ds_require_grad(ds_ones(DS_F32, shape), true); }

/* y, of that many elements, has a gradient that runs. */
static void check_size(ds_tensor *y, int64_t n)
{
    CHECK(y);
    CHECK_INT(ds_numel(y), n);
    if (ds_requires_grad(y)) CHECK_INT(ds_backward_from(y, ds_like(y, 1)), DS_OK);
}

static void no_samples(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *planes = x(ds_shape(0, 3, 8, 8)), *rows = x(ds_shape(0, 5));
    ds_tensor *w = x(ds_shape(8, 3, 3, 3)), *b = x(ds_shape(8)), *m = x(ds_shape(4, 5));
    check_size(ds_max_pool2d(ds_relu(ds_conv2d(planes, w, b)), 2), 0);
    check_size(ds_avg_pool2d(planes, 2), 0);
    check_size(ds_linear(rows, m, x(ds_shape(4))), 0);
    check_size(ds_add(rows, x(ds_shape(5))), 0);
    check_size(ds_gelu(rows), 0);
    check_size(ds_softmax(rows, 1), 0);
    check_size(ds_log_softmax(rows, 0), 0);
    check_size(ds_layer_norm(rows, 1, x(ds_shape(5)), NULL, 0), 0);
    check_size(ds_reshape(rows, ds_shape(5, 0)), 0);
    check_size(ds_flatten(planes, 1), 0);
    check_size(ds_max(rows, 1, false), 0);
    check_size(ds_dropout(rows, 0.5, true), 0);
    check_size(ds_embedding(m, ds_empty(DS_I64, ds_shape(0)), -1), 0);
    check_size(ds_embedding_bag(m, ds_empty(DS_I64, ds_shape(0, 3)), -1, NULL, .mode = DS_BAG_MAX),
               0);
    check_size(ds_attention(x(ds_shape(2, 0, 4)), x(ds_shape(2, 3, 4)), x(ds_shape(2, 3, 4))), 0);
    for (int i = 0; i < 5; i++) CHECK_CLOSE(((const float *)ds_data(ds_grad(m)))[i], 0, 0);
    ds_tensor *v = x(ds_shape(64, 64, 3, 3)), *images = x(ds_shape(0, 64, 8, 8));
    check_size(ds_conv2d(ds_conv2d(images, v, x(ds_shape(64))), v, NULL), 0);
    CHECK_CLOSE(ds_item(ds_sum(ds_grad(v))), 0, 0);
    ds_tensor *parts[] = {rows, m};
    check_size(ds_cat(parts, 2, 0), 20);
    ds_scope_close(scope);
}

static void attention_of_no_width(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *q = x(ds_shape(2, 9, 4)), *k = x(ds_shape(2, 3, 4)), *v = x(ds_shape(2, 3, 4));
    ds_tensor *none = x(ds_shape(2, 9, 0)), *no_keys = x(ds_shape(2, 3, 0));
    check_size(ds_attention(q, k, no_keys), 0);
    CHECK_CLOSE(ds_item(ds_sum(ds_grad(q))), 0, 0);
    check_size(ds_attention(none, no_keys, v), 72);
    ds_scope_close(scope);
}

/* Padding alone makes the output, whose gradient is in pooled form. */
/* As PyTorch: keys that no query sees have gradient 0. */
static void attention_of_no_heads(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *q = x(ds_shape(1, 0, 2, 4)), *k = x(ds_shape(1, 2, 300, 4)),
              *v = x(ds_shape(1, 2, 300, 4));
    check_size(ds_attention_with(q, k, v, (ds_attention_opts){.enable_gqa = true}), 0);
    CHECK_CLOSE(ds_item(ds_sum(ds_abs(ds_grad(k)))), 0, 0);
    CHECK_CLOSE(ds_item(ds_sum(ds_abs(ds_grad(v)))), 0, 0);
    ds_scope_close(scope);
}

static void images_without_rows(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *w = x(ds_shape(1, 1, 1, 1)), *b = x(ds_shape(1));
    ds_tensor *y = ds_conv2d(x(ds_shape(1, 1, 0, 4)), w, b, .padding = 1);
    check_size(ds_max_pool2d(ds_relu(y), 2), 3);
    CHECK_CLOSE(ds_item(ds_sum(ds_grad(w))), 0, 0);
    CHECK_CLOSE(ds_item(ds_sum(ds_grad(b))), 3, 0);
    ds_scope_close(scope);
}

static void nothing_to_sum(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *none = x(ds_shape(3, 0));
    CHECK_CLOSE(ds_item(ds_sum(none)), 0, 0);
    CHECK_CLOSE(ds_item(ds_mean(none)), NAN, 0);
    ds_tensor *y = ds_matmul(none, x(ds_shape(0, 4)));
    check_size(y, 12);
    for (int i = 0; i < 12; i++) CHECK_CLOSE(((const float *)ds_data(y))[i], 0, 0);
    ds_tensor *loss = ds_cross_entropy(x(ds_shape(0, 4)), ds_empty(DS_I64, ds_shape(0)));
    CHECK_CLOSE(ds_item(loss), NAN, 0);
    check_size(loss, 1);
    ds_scope_close(scope);
}

/* Both columns of the window are in padding, one on each side. The index is
 * PyTorch's, which is outside; no gradient is written there. */
static void windows_of_padding(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    for (int channels = 1; channels < 20; channels += 18) {
        ds_tensor *in = x(ds_shape(1, channels, 1, 1)), *at;
        if (channels > 1) in = ds_contiguous(ds_permute(in, ds_shape(0, 2, 3, 1)));
        if (channels > 1)
            in = ds_require_grad(ds_permute(ds_detach(in), ds_shape(0, 3, 1, 2)), true);
        ds_tensor *y = ds_max_pool2d(in, 2, .stride = 1, .padding = 1, .dilation = 2,
                                     .indices = &at);
        check_size(y, channels);
        for (int i = 0; i < channels; i++) {
            CHECK(((const float *)ds_data(y))[i] == -INFINITY);
            CHECK_INT(((const int64_t *)ds_data(at))[i], 2);
            CHECK_CLOSE(((const float *)ds_data(ds_grad(in)))[i], 0, 0);
        }
    }
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(no_samples), cmocka_unit_test(attention_of_no_width),
          cmocka_unit_test(attention_of_no_heads), cmocka_unit_test(images_without_rows),
          cmocka_unit_test(nothing_to_sum), cmocka_unit_test(windows_of_padding))
