/* tests/ops/cast.c: what casts give back, keep, and cut off from the graph.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "tensor/tensor.h"

static void nothing_to_do(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_ones(DS_F32, ds_shape(2, 3));
    CHECK(ds_cast(x, DS_F32) == x);
    CHECK(ds_to(x, ds_device_of(x), DS_F32) == x);
    CHECK(!ds_to(x, (ds_device){DS_CUDA, 63}, DS_F32));
    CHECK_ERROR("cuda:63");
    ds_scope_close(scope);
}

static void order_and_graph(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_require_grad(ds_ones(DS_F32, ds_shape(2, 3)), true);
    ds_tensor *t = ds_transpose(x, 0, 1), *wide = ds_cast(t, DS_F64);
    CHECK_INT(wide->stride[0], 1); /* the transposed order of memory stays */
    CHECK(!ds_requires_grad(ds_cast(x, DS_I64)));
    CHECK_INT(ds_backward(ds_sum(ds_mul(wide, wide))), DS_OK);
    CHECK_INT(ds_dtype_of(ds_grad(x)), DS_F32);
    CHECK_CLOSE(((const float *)ds_data(ds_grad(x)))[5], 2, 0);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(nothing_to_do), cmocka_unit_test(order_and_graph))
