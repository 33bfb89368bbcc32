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
    for (int i = 0; i < (quick() ? 100 : 150000); i++) {
        ds_scope *scope = ds_scope_open();
        CHECK(ds_empty(DS_F32, ds_shape(1)));
        ds_scope_close(scope);
    }
    CHECK(!ds_error());
}

int main(void)
{
    setenv("DS_CHECK_HANDLES", "1", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropped_twice),        cmocka_unit_test(dropped_after_its_end),
        cmocka_unit_test(used_after_its_scope), cmocka_unit_test(memory_is_not_reused_soon),
        cmocka_unit_test(the_oldest_leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
