/* tests/checkpoint/value.c: nested values: made, asked by key and path, freed;
 * what is wrong has a message.
 * SPDX-License-Identifier: MIT */
#include "check.h"

#include "checkpoint/value.h"

static ds_value *checkpoint(void)
{
    ds_value *v = ds_value_dict(), *optim = ds_value_dict(), *groups = ds_value_list();
    ds_value *group = ds_value_dict(), *betas = ds_value_tuple(), *state = ds_value_dict();
    ds_value_append(betas, ds_value_float(0.9));
    ds_value_append(betas, ds_value_float(0.999));
    ds_value_set(group, "lr", ds_value_float(0.1));
    ds_value_set(group, "betas", betas);
    ds_value_append(groups, group);
    ds_value_set_int(state, 0, ds_value_tensor(ds_scalar(DS_F32, 3)));
    ds_value_set_int(state, -5, ds_value_int(7));
    ds_value_set(optim, "state", state);
    ds_value_set(optim, "param_groups", groups);
    ds_value_set(v, "epoch", ds_value_int(12));
    ds_value_set(v, "name", ds_value_string("net"));
    ds_value_set(v, "best", ds_value_bool(true));
    ds_value_set(v, "optimizer", optim);
    return v;
}

static void asked(void **unused)
{
    (void)unused;
    ds_value *v = checkpoint();
    int64_t i = 0;
    double x = 0;
    bool b = false;
    const char *s = NULL;
    ds_tensor *t = NULL;
    CHECK_INT(ds_value_len(v), 4);
    CHECK(!strcmp(ds_value_text(ds_value_key_at(v, 1)), "name"));
    CHECK_INT(ds_value_read_int(v, "epoch", &i), DS_OK);
    CHECK_INT(i, 12);
    CHECK_INT(ds_value_read_float(v, "epoch", &x), DS_OK);
    CHECK_CLOSE(x, 12, 0);
    CHECK_INT(ds_value_read_bool(v, "best", &b), DS_OK);
    CHECK(b);
    CHECK_INT(ds_value_read_string(v, "name", &s), DS_OK);
    CHECK(!strcmp(s, "net"));
    CHECK_INT(ds_value_read_float(v, "optimizer/param_groups/0/betas/1", &x), DS_OK);
    CHECK_CLOSE(x, 0.999, 0);
    CHECK_INT(ds_value_read_int(v, "optimizer/state/-5", &i), DS_OK);
    CHECK_INT(i, 7);
    CHECK_INT(ds_value_read_int(v, "optimizer/state/0", &i), DS_OK); /* a tensor of one element */
    CHECK_INT(i, 3);
    CHECK_INT(ds_value_read_tensor(v, "optimizer/state/0", &t), DS_OK);
    CHECK_CLOSE(ds_item(t), 3, 0);
    CHECK(ds_value_find(v, "") == v);
    CHECK(!ds_value_find(v, "optimizer/param_groups/1"));
    CHECK(!ds_value_get(v, "nothing") && !ds_value_at(v, 4) && !ds_value_at(v, -1));
    CHECK(!ds_value_get(ds_value_get(v, "epoch"), "x") && !ds_value_get_int(v, 0));
    CHECK(!strcmp(ds_value_class(ds_value_get(v, "name")), "str"));
    CHECK(!ds_error());
    ds_value_free(v);
}

static void messages(void **unused)
{
    (void)unused;
    ds_value *v = checkpoint();
    int64_t i = 0;
    bool b = false;
    const char *s = NULL;
    ds_tensor *t = NULL;
    CHECK_INT(ds_value_read_int(v, "optimiser/state", &i), DS_EINVAL);
    CHECK_ERROR("there is no optimiser/state; what was given holds epoch, name, best, optimizer");
    CHECK_INT(ds_value_read_int(v, "optimizer/param_groups/0/rate", &i), DS_EINVAL);
    CHECK_ERROR("optimizer/param_groups/0 holds lr, betas");
    CHECK_INT(ds_value_read_int(v, "optimizer/param_groups/7", &i), DS_EINVAL);
    CHECK_ERROR("optimizer/param_groups holds 1 items");
    CHECK_INT(ds_value_read_int(v, "epoch/more", &i), DS_EINVAL);
    CHECK_ERROR("epoch holds a value of class int");
    CHECK_INT(ds_value_read_int(v, "name", &i), DS_EINVAL);
    CHECK_ERROR("name is of class str: expected an int");
    CHECK_INT(ds_value_read_bool(v, "epoch", &b), DS_EINVAL);
    CHECK_ERROR("epoch is of class int: expected a bool");
    CHECK_INT(ds_value_read_string(v, "epoch", &s), DS_EINVAL);
    CHECK_ERROR("expected a str");
    CHECK_INT(ds_value_read_tensor(v, "epoch", &t), DS_EINVAL);
    CHECK_ERROR("expected a tensor");
    CHECK_INT(ds_value_read_int(NULL, "epoch", &i), DS_EINVAL);
    CHECK_ERROR("an operand is NULL");
    CHECK(!ds_state_of_value(v));
    CHECK_ERROR("no dict of tensors: epoch is of class int");
    CHECK(!ds_state_of_value(ds_value_get(v, "epochs")));
    CHECK_ERROR("state_of_value: the value is NULL: ds_value_get returns that where there is no");
    CHECK(!ds_state_of_value(ds_value_get(v, "epoch")));
    CHECK_ERROR("expected a dict of tensors");
    ds_value_free(v);
}

/* A call that fails frees what it was given: there is nothing to see but leaks. */
static void taken(void **unused)
{
    (void)unused;
    ds_value *i = ds_value_int(1), *dict = ds_value_dict(), *tuple = ds_value_tuple();
    CHECK_INT(ds_value_append(i, ds_value_string("x")), DS_EINVAL);
    CHECK_ERROR("to a value of class int: expected a list or tuple");
    CHECK_INT(ds_value_append(NULL, ds_value_string("x")), DS_EINVAL);
    CHECK_ERROR("an operand is NULL");
    CHECK_INT(ds_value_append(tuple, NULL), DS_EINVAL);
    ds_error_clear();
    CHECK_INT(ds_value_set(i, "k", ds_value_string("x")), DS_EINVAL);
    CHECK_ERROR("to a value of class int: expected a dict");
    CHECK_INT(ds_value_set(dict, NULL, ds_value_string("x")), DS_EINVAL);
    ds_error_clear();
    CHECK_INT(ds_value_set(dict, "k", ds_value_tensor(NULL)), DS_EINVAL);
    ds_error_clear();
    CHECK_INT(dsi_value_put(dict, ds_value_list(), ds_value_int(1)), DS_EINVAL);
    CHECK_ERROR("a value of class list cannot be a key");
    for (int deep = 1; deep < 12; deep++) { /* tuples in tuples */
        ds_value *outer = ds_value_tuple();
        ds_value_append(outer, tuple);
        tuple = outer;
        bool fits = deep < 8;
        CHECK_INT(dsi_value_put(dict, dsi_value_ref(tuple), ds_value_int(1)),
                  fits ? DS_OK : DS_EINVAL);
        if (!fits) CHECK_ERROR("cannot be a key");
    }
    ds_value_free(tuple);
    CHECK_INT(ds_value_len(dict), 7);
    ds_value_free(i);
    ds_value_free(dict);
    ds_value_free(NULL);
}

static void many_keys(void **unused)
{
    (void)unused;
    ds_value *v = ds_value_dict();
    char name[24];
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "layer%d.weight", i);
        CHECK_INT(ds_value_set(v, name, ds_value_int(i)), DS_OK);
        CHECK_INT(ds_value_set_int(v, i, ds_value_int(-i)), DS_OK);
    }
    CHECK_INT(ds_value_set(v, "layer77.weight", ds_value_int(1)), DS_OK); /* replaces */
    CHECK_INT(ds_value_len(v), 10000);
    int64_t x = 0;
    for (int i = 0; i < 5000; i += 77) {
        snprintf(name, sizeof name, "layer%d.weight", i);
        CHECK_INT(ds_value_read_int(ds_value_get(v, name), "", &x), DS_OK);
        CHECK_INT(x, i == 77 ? 1 : i);
        CHECK_INT(ds_value_read_int(ds_value_get_int(v, i), "", &x), DS_OK);
        CHECK_INT(x, -i);
    }
    CHECK_INT(ds_value_read_int(ds_value_at(v, 154), "", &x), DS_OK); /* in its old place */
    CHECK_INT(x, 1);
    ds_value_free(v);
}

/* Freed without recursion, refused for saving. */
static void deep(void **unused)
{
    (void)unused;
    ds_value *v = ds_value_list();
    for (int i = 0; i < 200000; i++) {
        ds_value *outer = ds_value_list();
        ds_value_append(outer, v);
        v = outer;
    }
    CHECK_INT(ds_value_save(v, "/nowhere/x.pth"), DS_EINVAL);
    CHECK_ERROR("lists lie in lists more than 500 deep");
    ds_value_free(v);
}

static ds_status read_source(void *arg, int64_t offset, void *to, size_t bytes)
{
    if (*(int *)arg) return ds_fail(DS_EIO, "source: told to fail");
    for (size_t i = 0; i < bytes / 4; i++) ((float *)to)[i] = (float)(offset / 4) + (float)i;
    return DS_OK;
}

static void sources(void **unused)
{
    (void)unused;
    int fails = 0;
    const int64_t shape[] = {2, 3};
    ds_tensor *x = NULL;
    ds_value *v = dsi_value_reader(DS_F32, shape, 2, read_source, &fails);
    CHECK_INT(ds_value_read_tensor(v, "", &x), DS_OK);
    CHECK_INT(ds_size(x, 1), 3);
    CHECK_CLOSE(((const float *)ds_data(x))[5], 5, 0);
    ds_value_free(v);
    fails = 1;
    v = dsi_value_reader(DS_F32, shape, 2, read_source, &fails);
    CHECK_INT(ds_value_read_tensor(v, "", &x), DS_EIO);
    CHECK_ERROR("told to fail");
    ds_value_free(v);
}

TEST_MAIN(cmocka_unit_test(asked), cmocka_unit_test(messages), cmocka_unit_test(taken),
          cmocka_unit_test(many_keys), cmocka_unit_test(deep), cmocka_unit_test(sources))
