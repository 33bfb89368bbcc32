/* tests/tensor/tensor.c: handles, scopes, views, copies, state dicts.
 * SPDX-License-Identifier: MIT */
#include "tensor/tensor.h"
#include "caught.h"
#include "check.h"

#include <pthread.h>

static const float six[] = {1, 2, 3, 4, 5, 6};

static void scopes_own_what_is_made(void **state)
{
    (void)state;
    int64_t before = ds_live_tensors();
    size_t bytes = ds_memory_allocated((ds_device){DS_CPU, 0});
    ds_scope *outer = ds_scope_open();
    ds_tensor *x = ds_zeros(DS_F32, ds_shape(10, 10));
    ds_scope *inner = ds_scope_open();
    ds_tensor *y = ds_keep(ds_zeros(DS_F32, ds_shape(3)));
    ds_zeros(DS_F32, ds_shape(4));
    CHECK_INT(ds_live_tensors() - before, 3);
    ds_scope_close(inner);
    CHECK_INT(ds_live_tensors() - before, 2); /* x, and the kept y */
    CHECK_CLOSE(((const float *)ds_data(y))[2], 0, 0);
    CHECK_INT(ds_numel(x), 100);
    ds_scope_close(outer);
    ds_drop(y);
    CHECK_INT(ds_live_tensors(), before);
    CHECK_INT((int64_t)ds_memory_allocated((ds_device){DS_CPU, 0}), (int64_t)bytes);
}

static void closing_closes_those_inside(void **state)
{
    (void)state;
    int64_t before = ds_live_tensors();
    ds_scope *a = ds_scope_open();
    ds_scope *b = ds_scope_open();
    ds_ones(DS_F32, ds_shape(2));
    ds_scope_close(a);
    CHECK_INT(ds_live_tensors(), before);
    ds_scope_close(b);
    CHECK_ERROR("scope_close: this scope is not open");
}

static void make_many(void)
{
    ds_tensor *x = ds_ones(DS_F32, ds_shape(1));
    for (int i = 0; i < 100100; i++) ds_detach(x);
}

static void make_many_in_scopes(void)
{
    ds_tensor *x = ds_ones(DS_F32, ds_shape(1));
    ds_scope *turn = NULL;
    for (int i = 0; i < 100100; i++) {
        if (i % 100 == 0) {
            ds_scope_close(turn);
            turn = ds_scope_open();
        }
        ds_detach(x);
    }
}

/* A program's loop without a scope gets a warning, once. */
static void a_loop_without_scopes(void **state)
{
    (void)state;
    const char *said = caught_of(NULL, make_many),
               *first = strstr(said, "100000 tensors were made outside of any scope");
    CHECK(first && strstr(first, "ds_scope_open()"));
    CHECK(first && !strstr(first + 1, "100000 tensors were made"));
    CHECK(!*caught_of(NULL, make_many_in_scopes));
}

static void result_moves_outside(void **state)
{
    (void)state;
    ds_scope *outer = ds_scope_open();
    int64_t before = ds_live_tensors();
    ds_scope *inner = ds_scope_open();
    ds_tensor *x = ds_ones(DS_F32, ds_shape(2));
    ds_ones(DS_F32, ds_shape(5));
    x = dsi_scope_return(inner, dsi_ref(x));
    CHECK_INT(ds_live_tensors() - before, 1);
    CHECK_INT(x->refs, 1);
    ds_scope_close(outer);
}

static void views_share_memory(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = ds_from_data(DS_F32, ds_shape(2, 3), six);
    int64_t turned[] = {1, 3};
    ds_tensor *t = dsi_view_of(x, ds_shape(3, 2), turned, 0);
    CHECK(!dsi_is_contiguous(t) && dsi_is_dense(t));
    const float *p = ds_data(t); /* a copy, in row-major order */
    CHECK(p[0] == 1 && p[1] == 4 && p[2] == 2 && p[5] == 6);
    CHECK(!ds_data_mut(t));
    CHECK_ERROR("data_mut: x [3, 2] is not contiguous");
    ((float *)ds_data_mut(x))[0] = 9;
    CHECK_CLOSE(((const float *)ds_data(t))[0], 9, 0);
    ds_tensor *like = dsi_new_like(t);
    CHECK(like->stride[0] == 1 && like->stride[1] == 3);
    ds_scope_close(s);
}

static void channels_last_is_an_order(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = dsi_new_channels_last(ds_zeros(DS_F32, ds_shape(1)), ds_shape(2, 3, 4, 5));
    CHECK(dsi_is_channels_last(x) && dsi_is_dense(x) && !dsi_is_contiguous(x));
    CHECK(!dsi_is_channels_last(ds_zeros(DS_F32, ds_shape(2, 3, 4, 5))));
    ds_scope_close(s);
}

static void items(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    static const ds_dtype all[] = {DS_F32, DS_F64, DS_F16, DS_BF16, DS_I64,
                                   DS_I32, DS_I16, DS_I8,  DS_U8,   DS_BOOL};
    for (int i = 0; i < DS_DTYPES; i++) CHECK_CLOSE(ds_item(ds_scalar(all[i], 1)), 1, 0);
    CHECK(isnan(ds_item(NULL)));
    CHECK(isnan(ds_item(ds_zeros(DS_F32, ds_shape(2)))));
    CHECK_ERROR("item: x is [2]: expected one element");
    ds_scope_close(s);
}

static void copies_convert_and_broadcast(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = ds_from_data(DS_F32, ds_shape(2, 3), six);
    ds_tensor *wide = ds_zeros(DS_F64, ds_shape(4, 2, 3));
    CHECK_INT(ds_copy(wide, x), DS_OK);
    CHECK_CLOSE(((const double *)ds_data(wide))[23], 6, 0);
    CHECK(ds_copy(ds_zeros(DS_F32, ds_shape(2, 2)), x) != DS_OK);
    CHECK_ERROR("copy: [2, 3] does not broadcast to [2, 2]");
    ds_scope_close(s);
}

static void shapes_that_are_none(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    CHECK(!ds_zeros(DS_F32, ds_shape(2, -1)));
    CHECK_ERROR("negative");
    CHECK(!ds_zeros(DS_F32, ds_shape(INT64_MAX, INT64_MAX)));
    CHECK_ERROR("larger than any memory");
    CHECK(!ds_zeros((ds_dtype)77, ds_shape(2)));
    CHECK_ERROR("no dtype number 77");
    CHECK(ds_zeros(DS_F32, ds_shape(0, INT64_MAX)));
    CHECK(ds_numel(ds_zeros(DS_F32, ds_shape(0, 5))) == 0);
    ds_scope_close(s);
}

static void state_dicts_keep_order(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_state *d = ds_state_new();
    CHECK_INT(ds_state_set(d, "b", ds_scalar(DS_F32, 1)), DS_OK);
    CHECK_INT(ds_state_set(d, "a", ds_scalar(DS_F32, 2)), DS_OK);
    CHECK_INT(ds_state_set(d, "b", ds_scalar(DS_F32, 3)), DS_OK);
    ds_scope_close(s);
    CHECK_INT(ds_state_len(d), 2);
    CHECK(!strcmp(ds_state_name(d, 0), "b"));
    CHECK_CLOSE(ds_item(ds_state_get(d, "b")), 3, 0);
    CHECK(!ds_state_get(d, "c") && !ds_state_at(d, 2) && !ds_state_name(d, -1));
    CHECK(ds_state_set(d, "", ds_state_at(d, 0)) != DS_OK);
    CHECK_ERROR("state_set: the name is empty");
    ds_state_free(d);
}

static void one_becomes_another(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = ds_require_grad(ds_ones(DS_F32, ds_shape(2, 3)), true);
    ds_tensor *flat = ds_arange(DS_F64, 0, 10, 1);
    dsi_tensor_set_data(x, ds_reshape(ds_slice(flat, 0, 4, 10), ds_shape(2, 3)));
    CHECK_INT(ds_dtype_of(x), DS_F64);
    CHECK(ds_requires_grad(x));
    ((double *)ds_data_mut(flat))[9] = 42;
    CHECK_CLOSE(((const double *)ds_data(x))[5], 42, 0);
    CHECK_CLOSE(((const double *)ds_data(x))[0], 4, 0);

    /* a ReLU that waits for its source keeps the source's old values */
    ds_tensor *from = ds_full(DS_F32, ds_shape(1, 1, 2, 2), -1), *y = ds_relu(from);
    dsi_tensor_set_data(from, ds_ones(DS_F32, ds_shape(1, 1, 2, 2)));
    CHECK_CLOSE(((const float *)ds_data(y))[0], 0, 0);
    CHECK_CLOSE(((const float *)ds_data(from))[0], 1, 0);
    ds_scope_close(s);
}

static void *make_and_leave(void *arg)
{
    (void)arg;
    ds_scope_open();
    ds_zeros(DS_F32, ds_shape(1000));
    ds_scope_open();
    ds_ones(DS_F32, ds_shape(10));
    return NULL;
}

static void a_thread_leaves_nothing(void **state)
{
    (void)state;
    pthread_t t;
    pthread_create(&t, NULL, make_and_leave, NULL);
    pthread_join(t, NULL); /* the leak checker of the sanitized build looks at the rest */
}

/* Memory of somebody else: read and written there, and left there. */
static void borrowed_memory(void **state)
{
    (void)state;
    float other[6];
    memcpy(other, six, sizeof other);
    size_t bytes = ds_memory_allocated((ds_device){DS_CPU, 0});
    ds_scope *scope = ds_scope_open();
    dsi_view v = {.p = other, .dtype = DS_F32, .n = 2, .d = {2, 3}, .s = {1, 2}};
    ds_tensor *x = dsi_borrow(dsi_device_current(), v);
    CHECK_INT((int64_t)ds_memory_allocated((ds_device){DS_CPU, 0}), (int64_t)bytes);
    CHECK_CLOSE(((const float *)ds_data(x))[1], 3, 0); /* x[0][1] */
    CHECK_INT(ds_copy(dsi_alias(x), ds_zeros(DS_F32, ds_shape(3))), DS_OK);
    ds_scope_close(scope);
    for (int i = 0; i < 6; i++) CHECK_CLOSE(other[i], 0, 0);
    CHECK_INT((int64_t)ds_memory_allocated((ds_device){DS_CPU, 0}), (int64_t)bytes);
}

TEST_MAIN(cmocka_unit_test(borrowed_memory), cmocka_unit_test(scopes_own_what_is_made),
          cmocka_unit_test(closing_closes_those_inside), cmocka_unit_test(a_loop_without_scopes),
          cmocka_unit_test(result_moves_outside), cmocka_unit_test(views_share_memory),
          cmocka_unit_test(channels_last_is_an_order), cmocka_unit_test(items),
          cmocka_unit_test(copies_convert_and_broadcast), cmocka_unit_test(shapes_that_are_none),
          cmocka_unit_test(state_dicts_keep_order), cmocka_unit_test(one_becomes_another),
          cmocka_unit_test(a_thread_leaves_nothing))
