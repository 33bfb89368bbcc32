/* tests/parallel/data_parallel_faults.c: what DataParallel refuses; replicas
 * that fail, without memory, in a fork; what outlives it.
 * SPDX-License-Identifier: MIT */
#include "probe.h"

#include <sys/wait.h>
#include <unistd.h>

static void refusals(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = probe_new(NULL);
    CHECK(!ds_data_parallel_new(NULL, 2, probe_new, NULL));
    CHECK_ERROR("data_parallel: an operand is NULL");
    CHECK(!ds_data_parallel_new(m, 0, probe_new, NULL));
    CHECK_ERROR("data_parallel: 0 replicas: expected 1 to 64");
    CHECK(!ds_data_parallel_new(m, 2, NULL, NULL));
    CHECK_ERROR("make is NULL");
    static const char *const why[] = {"replica 1: make gave w [2] where the module has w [1]",
                                      "make gave a module of 4 parameters and buffers: expected 3",
                                      "replica 1: probe: \"w\" cannot be a name here",
                                      "replica 1: make gave no module"};
    for (int i = 1; i <= 4; i++) {
        CHECK(!ds_data_parallel_new(m, 3, probe_new, &i));
        CHECK_ERROR(why[i - 1]);
    }
    ds_data_parallel *dp = ds_data_parallel_new(m, 3, probe_new, NULL);
    what = PRODUCT;
    CHECK(!ds_data_parallel_call(NULL, ds_ones(DS_F32, ds_shape(3, 1))));
    CHECK_ERROR("data_parallel_call: an operand is NULL");
    CHECK(!ds_data_parallel_call(dp, NULL));
    CHECK_ERROR("data_parallel: an operand is NULL");
    CHECK(!ds_data_parallel_call_n(dp, NULL, 0));
    CHECK_ERROR("0 inputs: expected 1 to 16");
    CHECK(!ds_data_parallel_call(dp, ds_scalar(DS_F32, 1)));
    CHECK_ERROR("input 0 is []");
    CHECK(!ds_data_parallel_call(dp, column(4, one_to_8), column(3, one_to_8)));
    CHECK_ERROR("input 1 is [3, 1], input 0 [4, 1]: expected as many samples");
    what = UNEVEN;
    CHECK(!ds_data_parallel_call(dp, column(3, one_to_8)));
    CHECK_ERROR("replica 0 gave float32 [1, 3], replica 2 float32 [1, 2]");
    ds_data_parallel_free(dp);
    ds_data_parallel_free(NULL);
    CHECK(!ds_data_parallel_module(NULL));
    ds_module_free(m);
    ds_scope_close(scope);
}

/* A replica fails: the caller hears which and why; the next call is as if
 * nothing had been. */
static void failing_replicas(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = probe_new(NULL);
    ds_data_parallel *dp = ds_data_parallel_new(m, 3, probe_new, NULL);
    what = PRODUCT;
    for (int bad = 0; bad < 3; bad++) {
        float x[] = {1, 2, 3};
        char want[64];
        x[bad] = -1;
        if (bad == 1) x[2] = -2; /* two fail: the first is named */
        snprintf(want, sizeof want,
                 "data_parallel: replica %d: probe: probe: a negative sample, -1", bad);
        CHECK(!ds_data_parallel_call(dp, column(3, x)));
        CHECK_ERROR(want);
        CHECK_INT(ds_backward(ds_sum(ds_data_parallel_call(dp, column(3, one_to_8)))), DS_OK);
    }
    ds_data_parallel_free(dp);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* An outer scope may hold results longer than the DataParallel lives. */
static void freed_before(void **state)
{
    (void)state;
    int64_t before = ds_live_tensors();
    ds_scope *scope = ds_scope_open();
    ds_module *m = probe_new(NULL);
    ds_data_parallel *dp = ds_data_parallel_new(m, 2, probe_new, NULL);
    what = PRODUCT;
    ds_scope *inner = ds_scope_open();
    ds_data_parallel_call(dp, column(3, one_to_8)); /* never has a backward */
    ds_scope_close(inner);
    ds_tensor *y = ds_data_parallel_call(dp, column(3, one_to_8)),
              *z = ds_data_parallel_call(dp, column(2, one_to_8));
    CHECK_INT(ds_backward(ds_sum(z)), DS_OK);
    ds_data_parallel_free(dp);
    CHECK_CLOSE(at(y, 2), 9, 0);
    CHECK_INT(ds_backward(ds_sum(y)), DS_ESTATE);
    CHECK_ERROR("data_parallel: it was freed before the backward");
    ds_scope_close(scope);
    ds_module_free(m);
    CHECK_INT(ds_live_tensors(), before);
}

/* In a fork there are no replicas' threads: a call fails with a message, and
 * does not wait for them. */
static void in_a_fork(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = probe_new(NULL);
    ds_data_parallel *dp = ds_data_parallel_new(m, 3, probe_new, NULL);
    what = PRODUCT;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        ds_tensor *y = ds_data_parallel_call(dp, column(3, one_to_8));
        bool right = !y && ds_error() && strstr(ds_error(), "replica 1: its thread did not come");
        ds_data_parallel_free(dp);
        _exit(right ? 0 : 1);
    }
    int status = 0;
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_CLOSE(at(ds_data_parallel_call(dp, column(3, one_to_8)), 2), 9, 0);
    ds_data_parallel_free(dp);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* Every allocation of the caller fails once; then one of a replica. */
static void without_memory(void **state)
{
    (void)state;
    float w[ROOM];
    ds_module *net = net_new();
    ds_data_parallel *dp = ds_data_parallel_new(net, 2, same_net, NULL);
    int64_t seen = 1;
    for (int64_t n = 1; n <= seen; n++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *labels, *x = samples(DS_F32, 0, 6, &labels);
        ds_module_zero_grad(net);
        dsi_cache_fail(n, false);
        ds_status status = ds_backward(ds_cross_entropy(ds_data_parallel_call(dp, x), labels));
        seen = dsi_cache_fail(0, false);
        CHECK_INT(ds_error_status(), n <= seen ? DS_ENOMEM : DS_OK);
        CHECK_INT(status != DS_OK, n <= seen);
        if (n <= seen) CHECK_ERROR("no memory for");
        seen = n <= seen ? n + 1 : 0;
        ds_scope_close(scope);
    }
    CHECK(values(net, w, ROOM) > 0 && !ds_error());
    ds_data_parallel_free(dp);
    ds_module_free(net);

    ds_scope *scope = ds_scope_open();
    ds_module *m = probe_new(NULL);
    dp = ds_data_parallel_new(m, 3, probe_new, NULL);
    what = NO_MEMORY;
    CHECK(!ds_data_parallel_call(dp, column(3, one_to_8)));
    CHECK_ERROR("data_parallel: replica 2: probe: no memory for 4 bytes (float32 [1, 1]) on cpu");
    ds_data_parallel_free(dp);
    ds_module_free(m);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(refusals), cmocka_unit_test(failing_replicas),
          cmocka_unit_test(freed_before), cmocka_unit_test(in_a_fork),
          cmocka_unit_test(without_memory))
