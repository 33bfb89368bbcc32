/* tests/nn/profile.c: ds_profile_begin to ds_profile_print: which kernels ran,
 * how often, in which module; and that nothing else changes.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "ranks.h"

enum { BATCH = 6, IN = 8, HIDDEN = 5, OUT = 3, MOST = 100 };

static ds_module *net_new(void)
{
    ds_seed(1);
    ds_module *net = ds_nn_sequential(NULL, "net");
    ds_nn_linear(net, "fc1", IN, HIDDEN);
    ds_nn_relu(net, "act");
    ds_nn_linear(net, "fc2", HIDDEN, OUT);
    return net;
}

/* The loss of the second of two steps with Adam. */
static double train(ds_module *net)
{
    ds_optim *adam = ds_optim_adam(net, 0.01);
    double loss = 0;
    for (int i = 0; i < 2; i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *x = ds_ones(DS_F32, ds_shape(BATCH, IN));
        ds_tensor *label = ds_zeros(DS_I64, ds_shape(BATCH)), *mean;
        ds_optim_zero_grad(adam);
        mean = ds_cross_entropy(ds_call(net, x), label);
        ds_backward(mean);
        ds_optim_step(adam);
        loss = ds_item(mean);
        ds_scope_close(scope);
    }
    ds_optim_free(adam);
    CHECK(!ds_error());
    return loss;
}

static double profiled_train(void)
{
    ds_module *net = net_new();
    CHECK_INT(ds_profile_begin(), DS_OK);
    double loss = train(net);
    CHECK_INT(ds_profile_end(), DS_OK);
    ds_module_free(net);
    return loss;
}

/* The row of that name and module; fails if there is none. */
static ds_profile_row row_of(bool by_module, const char *name, const char *module)
{
    ds_profile_row rows[MOST];
    int n = ds_profile_rows(rows, MOST, (ds_profile_opts){.by_module = by_module});
    CHECK(n <= MOST);
    for (int i = 0; i < n; i++)
        if (!strcmp(rows[i].name, name) && !strcmp(rows[i].module, module)) return rows[i];
    fail_msg("no row %s %s", name, module);
    return rows[0];
}

/* The kernel of dw; on a GPU that of dw and db. */
static const char *weight_gradient(void)
{
    return on_gpu() ? "linear_backward: matmul_sums" : "linear_backward: matmul";
}

static void counts_calls_operations_and_bytes(void **state)
{
    (void)state;
    profiled_train();
    ds_profile_row all = row_of(false, "matmul", ""), fc1 = row_of(true, "matmul", "net.fc1");
    CHECK_INT(all.calls, 4);
    CHECK_CLOSE(all.flops, 2 * 2.0 * BATCH * (IN * HIDDEN + HIDDEN * OUT), 0);
    CHECK_INT(fc1.calls, 2);
    CHECK_CLOSE(fc1.flops, 2 * 2.0 * BATCH * IN * HIDDEN, 0);
    CHECK_CLOSE(fc1.bytes, 2 * 4.0 * (BATCH * IN + IN * HIDDEN + HIDDEN + BATCH * HIDDEN), 0);
    /* dw of both, dx of fc2 alone */
    CHECK_INT(row_of(true, weight_gradient(), "net.fc1").calls, 2);
    CHECK_INT(row_of(true, "linear_backward: matmul", "net.fc2").calls, on_gpu() ? 2 : 4);
    CHECK_INT(row_of(true, "relu_backward: relu_dx", "net.act").calls, 2);
    CHECK_INT(row_of(false, "cross_entropy", "").calls, 2);
    CHECK_CLOSE(row_of(false, "adam", "").calls, 2, 0);
    CHECK(row_of(false, "adam", "").bytes > 0);
}

static void times_are_parts_of_the_whole(void **state)
{
    (void)state;
    profiled_train();
    ds_profile_row rows[MOST];
    int n = ds_profile_rows(rows, MOST, (ds_profile_opts){.by_module = true});
    double sum = 0;
    for (int i = 0; i < n; i++) {
        CHECK(rows[i].seconds >= 0 && rows[i].calls > 0);
        CHECK(i == 0 || rows[i].seconds <= rows[i - 1].seconds);
        sum += rows[i].seconds;
    }
    CHECK(sum > 0 && sum <= ds_profile_seconds());
    CHECK_INT(ds_profile_rows(NULL, 0, (ds_profile_opts){.by_module = true}), n);
}

static void changes_no_value(void **state)
{
    (void)state;
    ds_module *net = net_new();
    double plain = train(net);
    ds_module_free(net);
    CHECK_CLOSE(profiled_train(), plain, 0);
    net = net_new();
    CHECK_CLOSE(train(net), plain, 0); /* afterwards, too */
    ds_module_free(net);
}

static void begins_and_ends_in_turn(void **state)
{
    (void)state;
    CHECK_INT(ds_profile_end(), DS_ESTATE);
    CHECK_ERROR("no profile of this thread runs");
    CHECK_INT(ds_profile_begin(), DS_OK);
    CHECK_INT(ds_profile_begin(), DS_ESTATE);
    CHECK_ERROR("end it first");
    CHECK_INT(ds_profile_end(), DS_OK);
    CHECK_INT(ds_profile_rows(NULL, 0, (ds_profile_opts){0}), 0);
}

/* A graph that was recorded before the profile has rows without modules. */
static void takes_a_graph_from_before(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *net = net_new();
    ds_tensor *loss = ds_mean(ds_call(net, ds_ones(DS_F32, ds_shape(2, IN))));
    CHECK_INT(ds_profile_begin(), DS_OK);
    CHECK_INT(ds_backward(loss), DS_OK);
    CHECK_INT(ds_profile_end(), DS_OK);
    CHECK_INT(row_of(true, weight_gradient(), "").calls, on_gpu() ? 2 : 3);
    ds_module_free(net);
    ds_scope_close(scope);
}

static void prints_a_table(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    profiled_train();
    ds_profile_print(to, .by_module = true);
    ds_profile_print(to, .rows = 2);
    fclose(to);
    static const char *const parts[] = {"name",
                                        "calls",
                                        "share",
                                        "GF/s",
                                        "matmul  net.fc1",
                                        "linear_backward: matmul  net.fc2",
                                        "other rows",
                                        "outside of kernels"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(text, parts[i])) fail_msg("no \"%s\" in\n%s", parts[i], text);
    free(text);
}

static ds_status reduce_profiled(void *arg)
{
    (void)arg;
    ds_tensor *x = ds_ones(DS_F32, ds_shape(100));
    RANK_CHECK(ds_profile_begin() == DS_OK);
    RANK_CHECK(ds_all_reduce(NULL, x, DS_REDUCE_SUM) == DS_OK);
    RANK_CHECK(ds_profile_end() == DS_OK);
    ds_profile_row row;
    RANK_CHECK(ds_profile_rows(&row, 1, (ds_profile_opts){0}) >= 1);
    for (int i = 0, n = ds_profile_rows(NULL, 0, (ds_profile_opts){0}); i < n; i++) {
        ds_profile_row rows[MOST];
        ds_profile_rows(rows, MOST, (ds_profile_opts){0});
        if (!strcmp(rows[i].name, "wait: all_reduce") && rows[i].bytes == 400) return DS_OK;
    }
    return ds_fail(DS_ESTATE, "no row of the all_reduce");
}

static void counts_communication(void **state)
{
    (void)state;
    TEST_RANKS(reduce_profiled, NULL);
}

TEST_MAIN(cmocka_unit_test(counts_calls_operations_and_bytes),
          cmocka_unit_test(times_are_parts_of_the_whole), cmocka_unit_test(changes_no_value),
          cmocka_unit_test(begins_and_ends_in_turn), cmocka_unit_test(takes_a_graph_from_before),
          cmocka_unit_test(prints_a_table), cmocka_unit_test(counts_communication))
