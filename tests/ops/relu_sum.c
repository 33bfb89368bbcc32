/* tests/ops/relu_sum.c: ReLU's gradient where its result has several readers,
 * as in a residual network: of two gradients one kernel makes the sum and
 * ReLU's gradient, with the bits of both ops. Devices without it run the same
 * checks.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "gpu/emulated.h"
#include "tensor/tensor.h"

typedef ds_tensor *form(ds_tensor *y);

static ds_dtype dtype;
static bool last;
static ds_dims planes;

/* Fresh, in the layout of this test. */
static ds_tensor *image(ds_tensor *x)
{
    if (!last) return ds_scale(x, 1);
    x = ds_scale(ds_contiguous(ds_permute(x, ds_shape(0, 2, 3, 1))), 1);
    return ds_permute(x, ds_shape(0, 3, 1, 2));
}

/* Random, as y is. */
static ds_tensor *random_like(const ds_tensor *y)
{
    ds_tensor *w = ds_cast(ds_randn(DS_F32, y->shape), dtype);
    return dsi_same_shape(y->shape, planes) ? image(w) : w;
}

static ds_tensor *weighted(ds_tensor *y) { return ds_mul(y, random_like(y)); }

/* ---- readers of y --------------------------------------------------------------------------------------- */

static ds_tensor *two(ds_tensor *y) { return ds_add(weighted(y), weighted(y)); }
static ds_tensor *three(ds_tensor *y) { return ds_add(two(y), weighted(y)); }
static ds_tensor *four(ds_tensor *y) { return ds_add(two(y), two(y)); }
static ds_tensor *residual(ds_tensor *y) { return ds_relu(ds_add(weighted(y), y)); }
static ds_tensor *with_itself(ds_tensor *y) { return ds_add(y, y); }
static ds_tensor *other_layout(ds_tensor *y)
{
    ds_tensor *t = ds_contiguous(ds_permute(y, ds_shape(3, 1, 0, 2)));
    return ds_add(weighted(y), ds_permute(weighted(t), ds_shape(2, 1, 3, 0)));
}
static ds_tensor *halves(ds_tensor *y)
{
    int64_t half = planes.d[1] / 2;
    return ds_add(ds_slice(y, 1, 0, half), ds_scale(ds_slice(y, 1, half, 2 * half), 3));
}
/* Slices add to what others gave, and others to what slices gave. */
static ds_tensor *slices_before(ds_tensor *y) { return ds_add(ds_sum(halves(y)), ds_sum(two(y))); }
static ds_tensor *slices_behind(ds_tensor *y)
{
    ds_tensor *sum = ds_sum(two(y));
    return ds_add(sum, ds_sum(halves(y)));
}
static ds_tensor *pooled(ds_tensor *y)
{
    return ds_add(ds_sum(weighted(y)), ds_sum(weighted(ds_max_pool2d(y, 2))));
}

static form *const forms[] = {two,          three,         four,          residual, with_itself,
                              other_layout, slices_before, slices_behind, pooled};
/* The first of these: the fusion saves one launch, the last addition. */
enum { SAVE_ONE = 5 };

/* The gradient of x; `launches` of the backward pass. */
static ds_tensor *gradient(form *f, bool fusions, long *launches)
{
    dsi_device_set_fusions(DSI_FUSIONS_ON);
    ds_seed(7);
    ds_tensor *x = ds_require_grad(ds_cast(ds_randn(DS_F32, planes), dtype), true);
    ds_tensor *z = f(ds_relu(image(x)));
    ds_tensor *dz = random_like(z);
    dsi_device_set_fusions(fusions ? DSI_FUSIONS_ON : DSI_FUSIONS_OFF);
    long before = emulator_count("fake_cuda_launches");
    CHECK_INT(ds_backward_from(z, dz), DS_OK);
    CHECK(ds_data(ds_grad(x)));
    *launches = emulator_count("fake_cuda_launches") - before;
    dsi_device_set_fusions(DSI_FUSIONS_ON);
    return ds_grad(x);
}

static void forms_have_the_same_bits(void **state)
{
    (void)state;
    static const ds_dims sizes[] = {{4, {2, 6, 5, 4}}, {4, {4, 32, 32, 18}}}; /* in vectors */
    for (int size = 0; size < 2; size++)
        for (dtype = DS_F32; dtype <= DS_BF16; dtype++)
            for (int layout = 0; layout < 2; layout++)
                for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
                    planes = sizes[size], last = layout;
                    if (quick() && size && (dtype == DS_F64 || i > 3)) continue;
                    ds_scope *s = ds_scope_open();
                    long fused, composed;
                    ds_tensor *got = gradient(forms[i], true, &fused);
                    ds_tensor *want = gradient(forms[i], false, &composed);
                    bool has = dsi_fusion(got->device, relu_dx_of_sum) && emulated();
                    size_t bytes = (size_t)ds_numel(got) * ds_dtype_size(dtype);
                    if (memcmp(ds_data(got), ds_data(want), bytes) != 0)
                        fail_msg("form %zu of %s differs", i, ds_dtype_name(dtype));
                    if (has && i < SAVE_ONE) CHECK_INT(composed - fused, 1);
                    ds_scope_close(s);
                }
}

/* The gradient that comes first is not written if the caller has it. */
static void the_callers_gradient_stays(void **state)
{
    (void)state;
    dtype = DS_F32, planes = (ds_dims){4, {2, 3, 4, 5}}, last = false;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = ds_require_grad(ds_randn(DS_F32, planes), true), *dz = ds_randn(DS_F32, planes);
    ds_tensor *kept = ds_clone(dz);
    CHECK_INT(ds_backward_from(with_itself(ds_relu(image(x))), dz), DS_OK);
    CHECK(!memcmp(ds_data(dz), ds_data(kept), (size_t)ds_numel(dz) * sizeof(float)));
    ds_scope_close(s);
}

/* A pass that fails at any of its allocations leaves nothing behind. */
static void passes_fail(void **state)
{
    (void)state;
    dtype = DS_F32, planes = (ds_dims){4, {2, 3, 4, 5}}, last = false;
    int64_t before = ds_live_tensors();
    bool failed = true;
    for (int64_t n = 1; failed; n++) {
        ds_scope *s = ds_scope_open();
        ds_tensor *x = ds_require_grad(ds_randn(DS_F32, planes), true);
        ds_tensor *z = ds_sum(three(residual(ds_relu(image(x)))));
        dsi_cache_fail(n, false);
        failed = ds_backward(z) != DS_OK;
        dsi_cache_fail(0, false);
        ds_error_clear();
        CHECK(failed || n > 3);
        ds_scope_close(s);
        CHECK_INT(ds_live_tensors(), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(forms_have_the_same_bits),
                                       cmocka_unit_test(the_callers_gradient_stays),
                                       cmocka_unit_test(passes_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
