/* tests/ops/shape.c: which shapes are views, and the place of every element.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "tensor/tensor.h"

/* 0, 1, 2, ... as float32 */
static ds_tensor *counting(ds_dims shape)
{
    return ds_reshape(ds_arange(DS_F32, 0, (double)dsi_numel(shape), 1), shape);
}

static void check_values(ds_tensor *x, ds_dims shape, const float *want)
{
    CHECK(x);
    if (!dsi_same_shape(ds_shape_of(x), shape))
        fail_msg("shape %s, want %s", dsi_shape_text(ds_shape_of(x)), dsi_shape_text(shape));
    const float *got = ds_data(x);
    for (int64_t i = 0; i < ds_numel(x); i++) CHECK_CLOSE(got[i], want[i], 0);
}

#define VALUES(x, shape, ...) check_values(x, shape, (const float[]){__VA_ARGS__})

static void views(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = counting(ds_shape(2, 3, 2));
    ds_tensor *all[] = {ds_reshape(x, ds_shape(3, 4)),
                        ds_flatten(x, 1),
                        ds_permute(x, ds_shape(2, 0, 1)),
                        ds_transpose(x, 0, -1),
                        ds_slice(x, 1, 1, 3),
                        ds_select(x, 0, 1),
                        ds_unsqueeze(x, -1),
                        ds_squeeze(ds_unsqueeze(x, 0), 0),
                        ds_expand(ds_select(x, 0, 0), ds_shape(4, 3, 2)),
                        ds_reshape(ds_slice(x, 0, 1, 2), ds_shape(6)),
                        ds_reshape(ds_slice(x, 2, 0, 1), ds_shape(3, 2))};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CHECK(all[i]);
        if (all[i]->storage != x->storage) fail_msg("number %zu is no view", i);
    }
    ds_tensor *copy = ds_reshape(ds_transpose(x, 0, 1), ds_shape(12));
    CHECK(copy && copy->storage != x->storage);
    CHECK(ds_contiguous(x) == x);
    CHECK(ds_clone(x)->storage != x->storage);
    ds_scope_close(scope);
}

static void elements(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = counting(ds_shape(2, 3)), *pair[] = {x, ds_neg(x)};
    VALUES(ds_transpose(x, 0, 1), ds_shape(3, 2), 0, 3, 1, 4, 2, 5);
    VALUES(ds_reshape(ds_transpose(x, 0, 1), ds_shape(2, -1)), ds_shape(2, 3), 0, 3, 1, 4, 2, 5);
    VALUES(ds_slice(x, -1, 1, 3), ds_shape(2, 2), 1, 2, 4, 5);
    VALUES(ds_slice(x, 0, 1, 1), ds_shape(0, 3), 0);
    VALUES(ds_select(x, 1, -1), ds_shape(2), 2, 5);
    VALUES(ds_expand(ds_select(x, 0, 1), ds_shape(2, -1)), ds_shape(2, 3), 3, 4, 5, 3, 4, 5);
    VALUES(ds_cat(pair, 2, -1), ds_shape(2, 6), 0, 1, 2, -0., -1, -2, 3, 4, 5, -3, -4, -5);
    VALUES(ds_stack(pair, 2, 1), ds_shape(2, 2, 3), 0, 1, 2, -0., -1, -2, 3, 4, 5, -3, -4, -5);
    VALUES(ds_flatten(ds_select(ds_select(x, 0, 0), 0, 1), 0), ds_shape(1), 1);
    VALUES(ds_squeeze(x, 0), ds_shape(2, 3), 0, 1, 2, 3, 4, 5);
    ds_scope_close(scope);
}

/* Channels-last memory under an NCHW face: flatten gives PyTorch's order, and
 * pointwise ops, pooling and gradients keep that of memory. */
static void memory_orders(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = counting(ds_shape(2, 3, 4, 4));
    ds_tensor *w = ds_require_grad(ds_ones(DS_F32, ds_shape(24, 3, 1, 1)), true);
    ds_tensor *y = ds_conv2d(x, w, NULL);
    CHECK(dsi_is_channels_last(y));
    ds_tensor *z = ds_max_pool2d(ds_relu(y), 2);
    CHECK(dsi_is_channels_last(z));
    ds_tensor *flat = ds_flatten(z, 1);
    const float *p = ds_data(flat);
    CHECK(dsi_is_contiguous(flat));
    for (int64_t i = 0; i < 4; i++) CHECK_CLOSE(p[4 + i], p[i], 0); /* channels 0 and 1 are equal */
    CHECK_CLOSE(p[0], 5 + 21 + 37, 0);
    CHECK_INT(ds_backward(ds_sum(flat)), DS_OK);
    CHECK(dsi_is_contiguous(ds_grad(w)));

    ds_tensor *few = ds_conv2d(x, ds_ones(DS_F32, ds_shape(6, 3, 1, 1)), NULL);
    CHECK(dsi_is_contiguous(few));
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(views), cmocka_unit_test(elements), cmocka_unit_test(memory_orders))
