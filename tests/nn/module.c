/* tests/nn/module.c: the tree of modules: names, ownership, call, state dicts, bad input.
 * SPDX-License-Identifier: MIT */
#include "check.h"

typedef struct Pair {
    ds_module *a, *b;
} Pair;

static ds_tensor *pair_forward(void *self, ds_tensor *x)
{
    Pair *p = self;
    return ds_call(p->b, ds_relu(ds_call(p->a, x)));
}

static ds_module *pair(const char *second, int width)
{
    static const ds_module_type type = {"Pair", sizeof(Pair), .forward = pair_forward};
    ds_module *m = ds_module_new(NULL, "net", &type);
    Pair *p = ds_self(m);
    p->a = ds_nn_linear(m, "a", 5, 4);
    p->b = ds_nn_linear(m, second, width, 3, .no_bias = true);
    return m;
}

static void names_and_numbers(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = pair("b", 4);
    const char *path;
    CHECK_INT(ds_module_params(m), 3);
    CHECK_INT(ds_module_numel(m), 5 * 4 + 4 + 4 * 3);
    ds_tensor *w = ds_module_param_at(m, 2, &path);
    CHECK(!strcmp(path, "b.weight") && ds_requires_grad(w));
    CHECK(!ds_module_param_at(m, 3, &path) && !path);
    ds_state *d = ds_module_state(m);
    CHECK_INT(ds_state_len(d), 3);
    CHECK(!strcmp(ds_state_name(d, 1), "a.bias"));
    CHECK(ds_state_at(d, 2) == w);
    ds_state_free(d);
    CHECK(ds_module_of(ds_self(m)) == m);
    ds_module_free(m);
    ds_scope_close(s);
}

static void call_leaves_one_tensor(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = pair("b", 4);
    ds_tensor *x = ds_ones(DS_F32, ds_shape(2, 5));
    bool was = ds_set_grad(false);
    int64_t before = ds_live_tensors();
    ds_tensor *y = ds_call(m, x);
    CHECK_INT(ds_live_tensors() - before, 1);
    CHECK(ds_size(y, 0) == 2 && ds_size(y, 1) == 3);
    ds_set_grad(was);
    ds_module_free(m);
    ds_scope_close(s);
}

static void a_wrong_width_names_the_module(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = pair("b", 7);
    CHECK(!ds_call(m, ds_ones(DS_F32, ds_shape(2, 5))));
    CHECK(!strncmp(ds_error(), "net.b: linear: ", 15));
    ds_error_clear();
    CHECK(!ds_call(m, NULL));
    ds_error_clear();
    CHECK(!ds_call(m, ds_ones(DS_F32, ds_shape(2, 5)), ds_ones(DS_F32, ds_shape(2, 5))));
    CHECK_ERROR("net: Pair takes one tensor: it was given 2");
    ds_module_free(m);
    ds_scope_close(s);
}

static void bad_names(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = pair("a", 4);
    CHECK_ERROR("net: \"a\" cannot be a name here: a child has it already");
    ds_module_free(m);
    m = pair("b.c", 4);
    CHECK_ERROR("expected one word without a dot");
    ds_module_free(m);
    m = pair("b", 4);
    ds_nn_linear(m, "c", 0, 3);
    CHECK_ERROR("Linear c: in = 0, out = 3");
    ds_nn_conv2d(m, "d", 3, 6, 5, .groups = 2);
    CHECK_ERROR("Conv2d d:");
    ds_module_free(m);
    ds_scope_close(s);
}

static void loading_is_all_or_nothing(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = pair("b", 4);
    ds_state *d = ds_state_new();
    ds_state_set(d, "a.weight", ds_ones(DS_F32, ds_shape(4, 5)));
    ds_state_set(d, "a.bias", ds_ones(DS_F32, ds_shape(9)));
    ds_state_set(d, "x", ds_ones(DS_F32, ds_shape(1)));
    CHECK(ds_module_load(m, d) != DS_OK);
    CHECK(strstr(ds_error(), "a.bias is [9], expected [4]"));
    CHECK(strstr(ds_error(), "missing b.weight [3, 4]") && strstr(ds_error(), "unknown x"));
    ds_error_clear();
    ds_state *mine = ds_module_state(m);
    CHECK(((const float *)ds_data(ds_state_get(mine, "a.weight")))[0] != 1);
    ds_module *other = pair("b", 4);
    CHECK_INT(ds_module_load(other, mine), DS_OK);
    ds_state_free(mine);
    ds_state_free(d);
    ds_module_free(m);
    ds_module_free(other);
    ds_scope_close(s);
}

static void modes_reach_all(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = ds_nn_sequential(NULL, "net");
    ds_nn_batch_norm2d(m, "0", 3);
    ds_nn_dropout(m, "1", 0.5);
    ds_tensor *x = ds_randn(DS_F32, ds_shape(4, 3, 2, 2));
    CHECK(ds_call(m, x));
    ds_module_train(m, false);
    CHECK(!ds_module_training(ds_module_child(m, 1)));
    ds_tensor *y = ds_call(m, x), *z = ds_call(m, x);
    CHECK(!memcmp(ds_data(y), ds_data(z), 48 * sizeof(float)));
    ds_state *d = ds_module_state(m);
    CHECK_CLOSE(ds_item(ds_state_get(d, "0.num_batches_tracked")), 1, 0);
    CHECK_INT(ds_state_len(d), 5);
    CHECK_INT(ds_module_params(m), 2);
    ds_state_free(d);
    ds_module_free(m);
    ds_scope_close(s);
}

TEST_MAIN(cmocka_unit_test(names_and_numbers), cmocka_unit_test(call_leaves_one_tensor),
          cmocka_unit_test(a_wrong_width_names_the_module), cmocka_unit_test(bad_names),
          cmocka_unit_test(loading_is_all_or_nothing), cmocka_unit_test(modes_reach_all))
