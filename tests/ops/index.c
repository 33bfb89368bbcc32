/* tests/ops/index.c: places: argmax, one-hot, comparisons; what has no
 * gradient; NaN; the order of sort and topk.
 * SPDX-License-Identifier: MIT */
#include "check.h"

static ds_tensor *floats(ds_dims shape, const float *p) { return ds_from_data(DS_F32, shape, p); }

static void maxima(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = floats(ds_shape(3, 3),
                          (float[]){1, 3, 3, -1, NAN, 5, -INFINITY, -INFINITY, -INFINITY});
    const int64_t *at = ds_data(ds_argmax(x, 1));
    CHECK_INT(at[0], 1); /* the first of equal ones */
    CHECK_INT(at[1], 1); /* a NaN wins */
    CHECK_INT(at[2], 0);
    const float *most = ds_data(ds_max(x, -1, false));
    CHECK_CLOSE(most[0], 3, 0);
    CHECK(isnan(most[1]));
    CHECK_CLOSE(most[2], -INFINITY, 0);
    CHECK_INT(ds_ndim(ds_max(x, 0, true)), 2);
    CHECK_INT(*(const int64_t *)ds_data(ds_argmax(ds_scalar(DS_F32, 7), 0)), 0);

    ds_tensor *half = ds_cast(x, DS_BF16);
    CHECK_INT(((const int64_t *)ds_data(ds_argmax(half, 1)))[0], 1);
    ds_scope_close(scope);
}

static void one_hot(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *labels = ds_from_data(DS_I64, ds_shape(2, 2), (int64_t[]){2, 0, 1, 2});
    ds_tensor *y = ds_one_hot(labels, 3);
    CHECK_INT(ds_dtype_of(y), DS_I64);
    CHECK_INT(ds_ndim(y), 3);
    const int64_t *p = ds_data(y), *l = ds_data(labels);
    for (int64_t i = 0; i < 12; i++) CHECK_INT(p[i], l[i / 3] == i % 3);
    ds_scope_close(scope);
}

static void comparisons(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *a = ds_require_grad(floats(ds_shape(4), (float[]){1, 2, NAN, -0.0f}), true);
    ds_tensor *b = floats(ds_shape(2, 4), (float[]){1, 1, NAN, 0, 2, 2, 2, 2});
    ds_tensor *same = ds_eq(a, b), *less = ds_lt(a, b);
    CHECK_INT(ds_dtype_of(same), DS_BOOL);
    CHECK(!ds_requires_grad(same) && !ds_requires_grad(less));
    const uint8_t *s = ds_data(same), *l = ds_data(less);
    const uint8_t equal[] = {1, 0, 0, 1, 0, 1, 0, 0}, smaller[] = {0, 0, 0, 0, 1, 0, 0, 1};
    for (int i = 0; i < 8; i++) {
        CHECK_INT(s[i], equal[i]);
        CHECK_INT(l[i], smaller[i]);
    }
    ds_tensor *labels = ds_from_data(DS_I64, ds_shape(2), (int64_t[]){3, INT64_MAX});
    const uint8_t *e = ds_data(ds_eq(labels, ds_from_data(DS_I64, ds_shape(2), (int64_t[]){3, 4})));
    CHECK(e[0] && !e[1]);
    ds_scope_close(scope);
}

/* A row that the index names several times gets the sum of its gradients, the
 * padding row none. */
static void rows(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *w = ds_require_grad(ds_ones(DS_F32, ds_shape(4, 2)), true);
    ds_tensor *i = ds_from_data(DS_I64, ds_shape(5), (int64_t[]){1, 3, 1, 0, 1});
    CHECK_INT(ds_backward(ds_sum(ds_embedding(w, i, 3))), DS_OK);
    const float *g = ds_data(ds_grad(w)), want[] = {1, 1, 3, 3, 0, 0, 0, 0};
    for (int k = 0; k < 8; k++) CHECK_CLOSE(g[k], want[k], 0);
    ds_scope_close(scope);
}

/* F.embedding(i, w, padding_idx=4, scale_grad_by_freq=True), and
 * F.embedding_bag(i, w, mode='mean', scale_grad_by_freq=True), of PyTorch. */
static void rows_by_frequency(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    static const float each[] = {5, 6, 0, 0, 4, 5, 0, 0, 0, 0},
                       mean[] = {1, 4 / 3.F, 0, 0, 2 / 3.F, 1, 0, 0, 2, 7 / 3.F};
    ds_tensor *i = ds_from_data(DS_I64, ds_shape(2, 3), (int64_t[]){0, 2, 2, 2, 4, 0});
    ds_tensor *dy = ds_reshape(ds_arange(DS_F32, 0, 12, 1), ds_shape(2, 3, 2));
    for (int bag = 0; bag < 2; bag++) {
        ds_tensor *w = ds_require_grad(ds_ones(DS_F32, ds_shape(5, 2)), true);
        ds_tensor *y = bag ? ds_embedding_bag(w, i, -1, NULL, .scale_grad_by_freq = true)
                           : ds_embedding_with(w, i, 4, (ds_embedding_opts){true});
        CHECK_INT(ds_backward_from(y, bag ? ds_select(dy, 1, 0) : dy), DS_OK);
        const float *g = ds_data(ds_grad(w));
        for (int k = 0; k < 10; k++) CHECK_CLOSE(g[k], bag ? mean[k] : each[k], 1e-6);
    }
    ds_scope_close(scope);
}

/* Few of many elements are not found as all of them are: the same ones, also
 * among equal ones, and NaN. */
static void topk_begins_as_sort(void **state)
{
    (void)state;
    const int64_t ks[] = {1, 2, 7, 49, 50, 51, 200};
    float values[2 * 200];
    for (int i = 0; i < 400; i++)
        values[i] = (float)(i * 7919 % 31 - 15); /* each about six times a line */
    values[3] = values[77] = values[250] = NAN;
    values[5] = INFINITY, values[205] = -INFINITY, values[10] = -0.0f;
    for (int i = 0; i < 14; i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *x = floats(ds_shape(2, 200), values), *place, *all_places;
        bool smallest = i % 2;
        int64_t k = ks[i / 2];
        ds_tensor *y = ds_topk(x, k, 1, smallest, &place);
        ds_tensor *all = ds_slice(ds_sort(x, 1, !smallest, &all_places), 1, 0, k);
        const float *a = ds_data(y), *b = ds_data(ds_contiguous(all));
        const int64_t *p = ds_data(place);
        const int64_t *q = ds_data(ds_contiguous(ds_slice(all_places, 1, 0, k)));
        CHECK(a && b && p && q && !memcmp(a, b, (size_t)(2 * k) * sizeof *a));
        CHECK(!memcmp(p, q, (size_t)(2 * k) * sizeof *p));
        ds_scope_close(scope);
    }
}

/* torch.manual_seed(0); torch.multinomial(torch.tensor([1., 2, 3, 4, 5]), ...);
 * torch.rand(1) */
static void drawn_as_by_pytorch(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = floats(ds_shape(5), (float[]){1, 2, 3, 4, 5});
    ds_seed(0);
    const int64_t *y = ds_data(ds_multinomial(x, 3, false));
    assert_memory_equal(y, ((int64_t[]){2, 4, 1}), 3 * sizeof *y);
    CHECK_CLOSE(ds_item(ds_rand(DS_F32, ds_shape(1))), 0.3489, 5e-5);
    ds_seed(0);
    y = ds_data(ds_multinomial(x, 6, true));
    assert_memory_equal(y, ((int64_t[]){4, 4, 3, 4, 3, 4}), 6 * sizeof *y);
    CHECK_CLOSE(ds_item(ds_rand(DS_F32, ds_shape(1))), 0.0223, 5e-5);
    ds_seed(0); /* one draw is one without replacement */
    CHECK_INT(*(const int64_t *)ds_data(ds_multinomial(x, 1, true)), 2);
    CHECK_CLOSE(ds_item(ds_rand(DS_F32, ds_shape(1))), 0.3489, 5e-5);
    ds_scope_close(scope);
}

/* Long and short lines, with many equal elements: each follows the one before
 * it, or is equal and has the larger index. */
static void sorting_is_stable(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 31, 32, 33, 1000};
    static const ds_dtype dtypes[] = {DS_F32, DS_F64, DS_BF16, DS_I64, DS_U8};
    ds_scope *scope = ds_scope_open();
    for (int run = 0; run < 5 * 5 * 2; run++) {
        int64_t n = lengths[run % 5], seen = 0;
        ds_dtype dtype = dtypes[run / 5 % 5];
        bool descending = run >= 25;
        ds_tensor *x = ds_cast(ds_scale(ds_rand(DS_F64, ds_shape(n)), 100), DS_I64), *places;
        x = ds_cast(dtype == DS_U8 ? x : ds_add_scaled(x, ds_ones(DS_I64, ds_shape(n)), -50),
                    dtype);
        const double *y = ds_data(ds_cast(ds_sort(x, 0, descending, &places), DS_F64));
        const int64_t *at = ds_data(places);
        const double *from = ds_data(ds_cast(x, DS_F64));
        for (int64_t i = 0; i < n; seen += at[i++]) {
            CHECK_CLOSE(y[i], from[at[i]], 0);
            if (i && y[i] == y[i - 1]) CHECK(at[i] > at[i - 1]);
            if (i) CHECK(descending ? y[i] <= y[i - 1] : y[i] >= y[i - 1]);
        }
        CHECK_INT(seen, n * (n - 1) / 2);
    }
    float special[] = {NAN, 0, -INFINITY, -0.0f, INFINITY, -NAN, -1};
    ds_tensor *places;
    ds_sort(ds_from_data(DS_F32, ds_shape(7), special), 0, false, &places);
    assert_memory_equal(ds_data(places), ((int64_t[]){2, 6, 1, 3, 4, 0, 5}), 7 * sizeof(int64_t));
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(maxima), cmocka_unit_test(one_hot), cmocka_unit_test(comparisons),
          cmocka_unit_test(rows), cmocka_unit_test(rows_by_frequency),
          cmocka_unit_test(sorting_is_stable), cmocka_unit_test(topk_begins_as_sort),
          cmocka_unit_test(drawn_as_by_pytorch))
