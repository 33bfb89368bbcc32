/* tests/ops/linear_cross_entropy.c: beside linear and cross_entropy, and its
 * memory.
 * SPDX-License-Identifier: MIT */
#include "check.h"

typedef struct Sizes {
    int64_t n, d, v;
} Sizes;

static ds_tensor *labels_of(Sizes s)
{
    ds_tensor *y = ds_randint(DS_I64, 0, s.v, ds_shape(s.n));
    set_element(y, 1, -100);
    return y;
}

/* |a - b| against the largest element of b */
static void check_near(ds_tensor *a, ds_tensor *b, double tolerance)
{
    a = ds_cast(a, DS_F32), b = ds_cast(b, DS_F32);
    ds_tensor *off = ds_abs(ds_sub(a, b)), *size = ds_abs(b);
    int64_t n = ds_numel(b);
    double most = ds_item(ds_max(ds_reshape(off, ds_shape(n)), 0, false));
    double scale = ds_item(ds_max(ds_reshape(size, ds_shape(n)), 0, false));
    CHECK(scale > 0);
    CHECK_CLOSE(most / scale, 0, tolerance);
}

/* softcap 0: none */
static void check_composition(Sizes s, ds_dtype dtype, double softcap, double tolerance)
{
    ds_scope *scope = ds_scope_open();
    ds_seed(3);
    ds_tensor *y = labels_of(s), *leaf[4], *loss[2];
    for (int i = 0; i < 2; i++) {
        ds_tensor *value = ds_cast(ds_randn(DS_F32, i ? ds_shape(s.v, s.d) : ds_shape(s.n, s.d)),
                                   dtype);
        leaf[i] = ds_require_grad(ds_clone(value), true);
        leaf[2 + i] = ds_require_grad(
            ds_cast(value, DS_F32) == value ? ds_clone(value) : ds_cast(value, DS_F32), true);
    }
    loss[0] = ds_linear_cross_entropy_with(leaf[0], leaf[1], y,
                                           (ds_linear_cross_entropy_opts){.softcap = softcap});
    ds_tensor *logits = ds_linear(leaf[2], leaf[3], NULL);
    if (softcap > 0) logits = ds_scale(ds_tanh(ds_scale(logits, 1 / softcap)), softcap);
    loss[1] = ds_cross_entropy(logits, y);
    CHECK_INT(ds_dtype_of(loss[0]), DS_F32);
    CHECK_CLOSE(ds_item(loss[0]), ds_item(loss[1]), 1e-5 * ds_item(loss[1]));
    for (int i = 0; i < 2; i++) CHECK_INT(ds_backward(ds_scale(loss[i], 0.5)), DS_OK);
    for (int i = 0; i < 2; i++) check_near(ds_grad(leaf[i]), ds_grad(leaf[2 + i]), tolerance);
    ds_scope_close(scope);
}

/* Logits that are kept, and such that are computed twice, in several blocks. */
static void equals_linear_and_cross_entropy(void **state)
{
    (void)state;
    for (int capped = 0; capped < 2; capped++) {
        double cap = capped ? 3 : 0;
        check_composition((Sizes){37, 24, 150}, DS_F32, cap, 1e-5);
        check_composition((Sizes){37, 24, 150}, DS_BF16, cap, 1e-2);
        if (quick()) continue;
        check_composition((Sizes){90, 16, 48001}, DS_F32, cap, 1e-5);
        check_composition((Sizes){90, 16, 48001}, DS_BF16, cap, 1e-2);
        check_composition((Sizes){340, 2, 50003}, DS_F32, cap, 1e-5); /* in blocks on a GPU too */
    }
}

/* The parts of a batch, divided by all labels over the parts: their mean is the
 * batch's loss, and so are the gradients. A part without labels is 0, not NaN. */
static void items_divide(void **state)
{
    (void)state;
    ds_seed(4);
    const int64_t ends[] = {0, 3, 4, 9};
    ds_tensor *x = ds_randn(DS_F32, ds_shape(9, 5)), *whole[2], *part[2], *sum = NULL;
    ds_tensor *w = ds_randn(DS_F32, ds_shape(7, 5)), *y = ds_randint(DS_I64, 0, 7, ds_shape(9));
    for (int64_t i = 0; i < 9; i++)
        if (i < 2 || i == 3) set_element(y, i, -100);
    for (int i = 0; i < 2; i++) {
        whole[i] = ds_require_grad(ds_clone(i ? w : x), true);
        part[i] = ds_require_grad(ds_clone(i ? w : x), true);
    }
    ds_tensor *loss = ds_linear_cross_entropy(whole[0], whole[1], y);
    for (int i = 0; i < 3; i++) {
        ds_tensor *items = ds_scalar(i == 1 ? DS_F64 : DS_F32, 6.0 / 3);
        ds_tensor *one = ds_linear_cross_entropy_with(
            ds_slice(part[0], 0, ends[i], ends[i + 1]), part[1],
            ds_slice(y, 0, ends[i], ends[i + 1]), (ds_linear_cross_entropy_opts){.items = items});
        if (i == 1) CHECK_CLOSE(ds_item(one), 0, 0);
        sum = i ? ds_add(sum, one) : one;
    }
    ds_tensor *mean = ds_scale(sum, 1.0 / 3);
    CHECK_CLOSE(ds_item(mean), ds_item(loss), 1e-6);
    CHECK_INT(ds_backward(loss), DS_OK);
    CHECK_INT(ds_backward(mean), DS_OK);
    for (int i = 0; i < 2; i++) check_near(ds_grad(part[i]), ds_grad(whole[i]), 1e-5);
    CHECK(!ds_linear_cross_entropy_with(
        x, w, y, (ds_linear_cross_entropy_opts){.items = ds_slice(y, 0, 0, 1)}));
    CHECK_ERROR("items is [1] on ");
    ds_tensor *learned = ds_require_grad(ds_scalar(DS_F32, 2), true);
    CHECK(!ds_linear_cross_entropy_with(x, w, y, (ds_linear_cross_entropy_opts){.items = learned}));
    CHECK_ERROR("items has no gradient here");
}

/* Vocabulary 50,000, 2,048 positions, bf16: less than 80 MB beside x, w and
 * their gradients; on a GPU 150, with a library's memory for products. */
static void peak_memory(void **state)
{
    (void)state;
    const Sizes s = {2048, 16, 50000};
    if (quick()) return;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_require_grad(ds_zeros(DS_BF16, ds_shape(s.n, s.d)), true);
    ds_tensor *w = ds_require_grad(ds_zeros(DS_BF16, ds_shape(s.v, s.d)), true), *y = labels_of(s);
    size_t before = ds_memory_allocated(ds_current_device());
    ds_memory_reset_peak(ds_current_device());
    ds_tensor *loss = ds_linear_cross_entropy(x, w, y);
    CHECK_INT(ds_backward(loss), DS_OK);
    size_t gradients = (size_t)(ds_numel(x) + ds_numel(w)) * 2;
    CHECK(ds_memory_peak(ds_current_device()) - before - gradients <
          (ds_current_device().kind == DS_CPU ? 80000000 : 150000000));
    ds_scope_close(scope);
}

static void refusals(void **state)
{
    (void)state;
    ds_tensor *x = ds_zeros(DS_F32, ds_shape(4, 3)), *w = ds_zeros(DS_F32, ds_shape(5, 3));
    CHECK(!ds_linear_cross_entropy(x, ds_zeros(DS_F32, ds_shape(5, 2)),
                                   ds_zeros(DS_I64, ds_shape(4))));
    CHECK_ERROR("[5, 2]");
    CHECK(!ds_linear_cross_entropy(x, w, ds_zeros(DS_I32, ds_shape(4))));
    CHECK_ERROR("int32");
    CHECK(!ds_data(ds_linear_cross_entropy(x, w, ds_full(DS_I64, ds_shape(4), 5))));
    CHECK_ERROR("5");
    CHECK(!ds_linear_cross_entropy_with(x, w, ds_zeros(DS_I64, ds_shape(4)),
                                        (ds_linear_cross_entropy_opts){.softcap = -1}));
    CHECK_ERROR("softcap is -1");
    CHECK(!ds_linear_cross_entropy_with(x, w, ds_zeros(DS_I64, ds_shape(4)),
                                        (ds_linear_cross_entropy_opts){.softcap = INFINITY}));
    CHECK_ERROR("softcap is inf");
    CHECK(isnan(ds_item(ds_linear_cross_entropy(x, w, ds_full(DS_I64, ds_shape(4), -100)))));
}

TEST_MAIN(cmocka_unit_test(equals_linear_and_cross_entropy), cmocka_unit_test(items_divide),
          cmocka_unit_test(peak_memory), cmocka_unit_test(refusals))
