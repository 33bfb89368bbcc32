/* tests/ops/edges.c: ops at infinite operands, at 0, and where a window is
 * larger than its input: what PyTorch 2.15 gives.
 * SPDX-License-Identifier: MIT */
#include "check.h"

static ds_tensor *floats(ds_dims shape, const float *x)
{
    return ds_require_grad(ds_from_data(DS_F32, shape, x), true);
}

static void norms(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = floats(ds_shape(2), (const float[]){INFINITY, -INFINITY});
    CHECK(isinf(ds_item(ds_norm_with(x, (ds_norm_opts){.p = -1}))));
    ds_tensor *z = floats(ds_shape(3), (const float[]){0, -2, NAN});
    ds_tensor *count = ds_norm_with(z, (ds_norm_opts){.p = DS_ZERO});
    CHECK_CLOSE(ds_item(count), 2, 0);
    CHECK_INT(ds_backward(count), DS_OK);
    for (int i = 0; i < 3; i++) CHECK_CLOSE(ds_item(ds_select(ds_grad(z), 0, i)), 0, 0);
    ds_scope_close(scope);
}

/* Reflected infinite coordinates are those of element 0. */
static void grids(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = floats(ds_shape(1, 1, 2, 2), (const float[]){1, 2, 3, 4});
    ds_tensor *grid = floats(ds_shape(1, 1, 1, 2), (const float[]){INFINITY, -INFINITY});
    ds_grid_sample_opts o = {.padding_mode = DS_GRID_REFLECTION};
    ds_tensor *y = ds_grid_sample_with(x, grid, o);
    CHECK_CLOSE(ds_item(y), 1, 0);
    ds_scope_close(scope);
}

/* With ceil_mode a window may reach beyond the volume and its padding. */
static void volumes(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_ones(DS_F32, ds_shape(1, 5, 1, 6)), *at = NULL;
    ds_tensor *y = ds_max_pool3d(x, ds_shape(2, 3, 1), .stride = ds_shape(4, 4, 2),
                                 .padding = ds_shape(1, 0, 0), .ceil_mode = true);
    CHECK(y && ds_shape_of(y).d[1] == 2 && ds_shape_of(y).d[2] == 1 && ds_shape_of(y).d[3] == 3);
    y = ds_max_pool3d(ds_ones(DS_F32, ds_shape(0, 2, 4, 4, 4)), ds_shape(2), .indices = &at);
    CHECK(y && at && ds_shape_of(at).d[0] == 0 && ds_shape_of(at).d[4] == 2);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(norms), cmocka_unit_test(grids), cmocka_unit_test(volumes))
