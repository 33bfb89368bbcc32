/* tests/tensor/handles.c: misuse of handles gives one message (Note [Handle
 * checks] in base/handle.h). DS_CHECK_HANDLES is set before the first call.
 * SPDX-License-Identifier: MIT */
#include "check.h"

static void dropped_twice(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_keep(ds_zeros(DS_F32, ds_shape(2, 3)));
    ds_drop(x); /* the scope still holds it */
    ds_drop(x);
    CHECK_ERROR("drop: float32 [2, 3] is not kept: each ds_drop(x) ends one ds_keep(x)");
    ds_scope_close(scope);
}

static void dropped_after_its_end(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_keep(ds_ones(DS_F32, ds_shape(4)));
    ds_scope_close(scope);
    ds_drop(x);
    ds_drop(x);
    CHECK_ERROR("drop: this tensor float32 [4] has ended: freed by ds_drop; made by ones");
}

static void used_after_its_scope(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_full(DS_F32, ds_shape(5), 7);
    ds_tensor *view = ds_detach(x);
    ds_scope_close(scope);
    CHECK_INT(ds_numel(x), 0);
    CHECK_ERROR("numel: this tensor float32 [5] has ended: freed by the end of its scope; made by "
                "full");
    CHECK(!ds_data(view));
    CHECK_ERROR("data: this tensor float32 [5] has ended: freed by the end of its scope; made by "
                "detach");
    CHECK(isnan(ds_item(x)));
    CHECK_ERROR("; ds_keep(x) keeps a tensor until ds_drop(x)");
    CHECK(!ds_grad(x));
    ds_error_clear();
    CHECK_INT(ds_backward(x), DS_ESTATE);
    CHECK_ERROR("backward: this tensor");
    CHECK(!ds_relu(x));
    CHECK_ERROR("relu: this tensor");
    CHECK(!ds_add(ds_ones(DS_F32, ds_shape(5)), x));
    CHECK_ERROR("add: this tensor");
    CHECK(!ds_keep(x));
    CHECK_ERROR("keep: this tensor");
}

/* A freed address is not given to another tensor while it is in quarantine. */
static void memory_is_not_reused_soon(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_zeros(DS_F32, ds_shape(1));
    ds_scope_close(scope);
    for (int i = 0; i < (quick() ? 100 : 10000); i++) {
        scope = ds_scope_open();
        CHECK(ds_zeros(DS_F32, ds_shape(1)) != x);
        ds_scope_close(scope);
    }
    CHECK(!ds_data(x));
    CHECK_ERROR("data: this tensor");
}

/* The quarantine has an end: its memory is bounded. */
static void the_oldest_leave(void **state)
{
    (void)state;
    for (int i = 0; i < (quick() ? 100 : 70000); i++) {
        ds_scope *scope = ds_scope_open();
        CHECK(ds_empty(DS_F32, ds_shape(1)));
        ds_scope_close(scope);
    }
    CHECK(!ds_error());
}

static void scopes(void **state)
{
    (void)state;
    ds_scope *outer = ds_scope_open(), *inner = ds_scope_open();
    ds_scope_close(outer);
    CHECK(!ds_error());
    ds_scope_close(inner);
    CHECK_ERROR("scope_close: this scope has ended: freed by ds_scope_close; made by scope_open");
    ds_scope_close(inner);
    CHECK_ERROR("; closing a scope closes those that were opened in it");
    ds_scope_close(outer);
    CHECK_ERROR("scope_close: this scope has ended");
}

static void state_dicts(void **state)
{
    (void)state;
    ds_state *s = ds_state_new();
    ds_state_free(s);
    CHECK(!ds_error());
    ds_state_free(s);
    CHECK_ERROR("state_free: this state dict has ended: freed by ds_state_free; made by state_new");
    CHECK_INT(ds_state_len(s), 0);
    CHECK_ERROR("state_len: this state dict");
    CHECK(!ds_state_get(s, "w") && !ds_state_at(s, 0) && !ds_state_name(s, 0));
    CHECK_ERROR("state_get: this state dict");
    CHECK_INT(ds_state_set(s, "w", ds_zeros(DS_F32, ds_shape(1))), DS_ESTATE);
    CHECK_ERROR("state_set: this state dict");
}

static void communicators(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_zeros(DS_F32, ds_shape(2)), *y = ds_zeros(DS_F32, ds_shape(2));
    ds_comm *c = ds_comm_split(NULL, 0, 0);
    CHECK_INT(ds_all_reduce(c, x, DS_REDUCE_SUM), DS_OK);
    ds_comm_free(c);
    CHECK(!ds_error());
    ds_comm_free(c);
    CHECK_ERROR("comm_free: this communicator of 1 rank has ended: freed by ds_comm_free; made by "
                "comm_split");
    CHECK_INT(ds_all_reduce(c, x, DS_REDUCE_SUM), DS_ESTATE);
    CHECK_ERROR("all_reduce: this communicator");
    CHECK_INT(ds_all_gather(c, y, x), DS_ESTATE);
    CHECK_ERROR("all_gather: this communicator");
    CHECK_INT(ds_barrier(c), DS_ESTATE);
    CHECK_ERROR("barrier: this communicator");
    CHECK(!ds_comm_split(c, 0, 0));
    CHECK_ERROR("comm_split: this communicator");
    CHECK_INT(ds_comm_size(c), 1);
    ds_scope_close(scope);
}

int main(void)
{
    setenv("DS_CHECK_HANDLES", "1", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropped_twice),        cmocka_unit_test(dropped_after_its_end),
        cmocka_unit_test(used_after_its_scope), cmocka_unit_test(memory_is_not_reused_soon),
        cmocka_unit_test(the_oldest_leave),     cmocka_unit_test(scopes),
        cmocka_unit_test(state_dicts),          cmocka_unit_test(communicators),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
