/* tests/ops/attention_dropout.c: dropout of attention's weights on the CPU: the
 * numbers of F.scaled_dot_product_attention there, which are drawn for
 * [N,H,L,S] in order, whatever the window and the groups of heads.
 * SPDX-License-Identifier: MIT */
#include "check.h"

#include <deepspeed/autograd.h>

enum { LENGTH = 9, HEADS = 4, WINDOW = 3 };

/* The same of single ops, with a mask in place of causal and window. */
static ds_tensor *composed(ds_tensor *const *x, ds_tensor *mask, double scale, double p)
{
    ds_tensor *in[3] = {x[0]};
    for (int i = 1; i < 3; i++) {
        ds_dims each = ds_shape_of(ds_unsqueeze(x[i], 2));
        each.d[2] = HEADS / each.d[1];
        in[i] = ds_flatten_range(ds_expand(ds_unsqueeze(x[i], 2), each), 1, 2);
    }
    ds_tensor *scores = ds_scale(ds_matmul(in[0], ds_transpose(in[1], -2, -1)), scale);
    scores = ds_where(mask, scores, ds_full(DS_F32, (ds_dims){0}, -INFINITY));
    return ds_matmul(ds_dropout(ds_softmax(scores, -1), p, true), in[2]);
}

static ds_tensor *mask_of(int64_t window)
{
    uint8_t p[LENGTH * LENGTH];
    for (int i = 0; i < LENGTH * LENGTH; i++)
        p[i] = i % LENGTH <= i / LENGTH && i % LENGTH > i / LENGTH - window;
    return ds_from_data(DS_BOOL, ds_shape(LENGTH, LENGTH), p);
}

static void compare(ds_attention_opts o, ds_tensor *mask)
{
    ds_tensor *x[2][3], *y[2];
    for (int k = 0; k < 2; k++) {
        ds_seed(7);
        for (int i = 0; i < 3; i++)
            x[k][i] = ds_require_grad(ds_randn(DS_F32, ds_shape(2, i ? 2 : HEADS, LENGTH, 5)),
                                      true);
        ds_seed(8);
        y[k] = k ? composed(x[k], mask, 0.5, o.dropout_p)
                 : ds_attention_with(x[k][0], x[k][1], x[k][2], o);
        CHECK(y[k] != NULL);
        CHECK_INT(ds_backward(ds_sum(ds_mul(y[k], y[k]))), DS_OK);
    }
    CHECK(!memcmp(ds_data(y[0]), ds_data(y[1]), (size_t)ds_numel(y[0]) * sizeof(float)));
    for (int i = 0; i < 3; i++) {
        const float *a = ds_data(ds_grad(x[0][i])), *b = ds_data(ds_grad(x[1][i]));
        for (int64_t e = 0; e < ds_numel(x[0][i]); e++) CHECK_CLOSE(a[e], b[e], 1e-5);
    }
}

static void as_single_ops(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_attention_opts o = {.causal = true, .scale = 0.5, .enable_gqa = true, .dropout_p = 0.4};
    compare(o, mask_of(LENGTH));
    o.window = WINDOW;
    compare(o, mask_of(WINDOW));
    o = (ds_attention_opts){
        .mask = mask_of(WINDOW), .scale = 0.5, .enable_gqa = true, .dropout_p = 0.2};
    compare(o, o.mask);
    o.dropout_p = 1;
    compare(o, o.mask);
    ds_scope_close(scope);
}

/* Without dropout nothing is drawn. */
static void zero_draws_nothing(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_seed(3);
    ds_tensor *want = ds_randn(DS_F32, ds_shape(1)), *x = ds_zeros(DS_F32, ds_shape(1, 4, 4));
    ds_seed(3);
    CHECK(ds_attention_with(x, x, x, (ds_attention_opts){.causal = true}) != NULL);
    CHECK_CLOSE(ds_item(ds_randn(DS_F32, ds_shape(1))), ds_item(want), 0);
    ds_scope_close(scope);
}

/* A query that sees no key: 0, and no gradient, with dropout as without. */
static void no_key(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *mask = ds_zeros(DS_BOOL, ds_shape(3, 3));
    ds_tensor *x = ds_require_grad(ds_randn(DS_F32, ds_shape(1, 2, 3, 4)), true);
    ds_tensor *y = ds_attention_with(x, x, x, (ds_attention_opts){.mask = mask, .dropout_p = 0.1});
    CHECK_CLOSE(ds_item(ds_sum(ds_abs(y))), 0, 0);
    CHECK_INT(ds_backward(ds_sum(y)), DS_OK);
    CHECK_CLOSE(ds_item(ds_sum(ds_abs(ds_grad(x)))), 0, 0);
    ds_scope_close(scope);
}

static void refused(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_zeros(DS_F32, ds_shape(1, 4, 6));
    const double wrong[] = {1.5, -0.1, NAN};
    for (int i = 0; i < 3; i++) {
        ds_attention_opts o = {.dropout_p = wrong[i]};
        CHECK(!ds_attention_with(x, x, x, o));
        CHECK_ERROR("expected 0 to 1");
        CHECK(!ds_attention_qkvpacked(x, 1, o));
        CHECK_ERROR("attention: dropout_p is ");
    }
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(as_single_ops), cmocka_unit_test(zero_draws_nothing),
          cmocka_unit_test(no_key), cmocka_unit_test(refused))
