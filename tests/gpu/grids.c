/* tests/gpu/grids.c: shapes of more batches, heads, groups and tiles than a
 * grid has blocks along y and z, which are 65535 at most: values and gradients
 * beside the CPU. The emulator refuses larger grids as NVIDIA's driver does;
 * its limit is small here, so that shapes are, too.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "emulated.h"

#include <deepspeed.h>
#include <math.h>

static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};

enum { OPERANDS = 3 };

static int64_t most = 65535; /* blocks along y, and along z */

typedef struct Call {
    const char *name;
    ds_dtype dtype;
    ds_dims shape[OPERANDS];
    ds_tensor *(*op)(ds_tensor *const *x);
} Call;

static ds_tensor *attention(ds_tensor *const *x)
{
    return ds_attention_with(x[0], x[1], x[2], (ds_attention_opts){.enable_gqa = true});
}

static ds_tensor *causal(ds_tensor *const *x)
{
    return ds_attention_with(x[0], x[1], x[2], (ds_attention_opts){.causal = true});
}

static ds_tensor *masked(ds_tensor *const *x)
{
    ds_tensor *mask = ds_slice(x[0], -1, 0, 1);
    return ds_attention_with(ds_detach(x[0]), x[1], x[2], (ds_attention_opts){.mask = mask});
}

static ds_tensor *product(ds_tensor *const *x) { return ds_matmul(x[0], x[1]); }

static ds_tensor *convolution(ds_tensor *const *x)
{
    return ds_conv2d(x[0], x[1], NULL,
                     .groups = (int)(ds_shape_of(x[0]).d[1] / ds_shape_of(x[1]).d[1]));
}

#define SHAPE(...) \
    { \
        .n = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .d = { __VA_ARGS__ } \
    }

static ds_tensor *values(ds_dtype dtype, ds_dims shape, int salt)
{
    ds_tensor *x = ds_empty(DS_F32, shape);
    float *p = ds_data_mut(x);
    for (int64_t i = 0; i < ds_numel(x); i++) p[i] = (float)((i * 37 + salt * 11) % 41 - 20) / 16;
    return ds_cast(x, dtype);
}

static void compare(const char *name, ds_tensor *got, ds_tensor *want, double tol)
{
    if (!got || !want) printf("# %s: %s\n", name, ds_error());
    CHECK(got && want);
    got = ds_to(ds_detach(got), cpu, DS_F64), want = ds_to(ds_detach(want), cpu, DS_F64);
    const double *a = ds_data(ds_contiguous(got)), *b = ds_data(ds_contiguous(want));
    CHECK_INT(ds_numel(got), ds_numel(want));
    for (int64_t i = 0; i < ds_numel(got); i++)
        if (!(fabs(a[i] - b[i]) <= tol * fmax(1, fabs(b[i])))) {
            printf("# %s: element %lld\n", name, (long long)i);
            CHECK_CLOSE(a[i], b[i], tol * fmax(1, fabs(b[i])));
        }
}

static void call_run(const Call *c)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *y[2], *x[2][OPERANDS] = {{NULL}};
    for (int k = 0; k < 2; k++) {
        ds_device device = k ? cpu : gpu;
        for (int i = 0; i < OPERANDS && c->shape[i].n; i++)
            x[k][i] = ds_require_grad(ds_to(values(c->dtype, c->shape[i], i), device, c->dtype),
                                      true);
        y[k] = c->op(x[k]);
        if (!y[k]) printf("# %s: %s\n", c->name, ds_error());
        CHECK(y[k] != NULL);
        ds_tensor *dy = ds_to(values(c->dtype, ds_shape_of(y[k]), 5), device, c->dtype);
        CHECK_INT(ds_backward_from(y[k], dy), DS_OK);
    }
    double tol = c->dtype == DS_BF16 ? 2e-2 : c->dtype == DS_F16 ? 3e-3 : 1e-5;
    compare(c->name, y[0], y[1], tol);
    for (int i = 0; i < OPERANDS && x[0][i]; i++)
        compare(c->name, ds_grad(x[0][i]), ds_grad(x[1][i]), tol);
    ds_scope_close(scope);
}

/* A row in place of several: what counts is the number of blocks. */
static void attention_of_many(void **state)
{
    (void)state;
    const int64_t many = most + 3, half = most / 2 + 2, group = most / 3;
    static const ds_dtype dtypes[] = {DS_F32, DS_F64, DS_F16, DS_BF16};
    for (int i = 0; i < 4; i++) {
        ds_dtype dtype = dtypes[i];
        call_run(&(Call){"heads",
                         dtype,
                         {SHAPE(2, many, 2, 8), SHAPE(2, many, 2, 8), SHAPE(2, many, 2, 8)},
                         causal});
        call_run(&(Call){"batches",
                         dtype,
                         {SHAPE(half, 2, 2, 8), SHAPE(half, 1, 3, 8), SHAPE(half, 1, 3, 8)},
                         attention});
        call_run(&(Call){"groups",
                         dtype,
                         {SHAPE(1, 4 * group, 2, 8), SHAPE(1, 4, 3, 8), SHAPE(1, 4, 3, 8)},
                         attention});
        call_run(&(Call){"one group",
                         dtype,
                         {SHAPE(2, many, 1, 8), SHAPE(2, 1, 3, 8), SHAPE(2, 1, 3, 8)},
                         attention});
        call_run(&(Call){"no queries",
                         dtype,
                         {SHAPE(1, 0, 2, 8), SHAPE(1, 2, 2, 8), SHAPE(1, 2, 2, 8)},
                         attention});
        call_run(&(Call){"mask",
                         dtype,
                         {SHAPE(2, many, 2, 4), SHAPE(2, many, 3, 4), SHAPE(2, many, 3, 4)},
                         masked});
    }
}

static void products_of_many(void **state)
{
    (void)state;
    const int64_t many = most + 3;
    call_run(&(Call){"batches", DS_F32, {SHAPE(many, 2, 3), SHAPE(many, 3, 2)}, product});
    call_run(&(Call){"large batches", DS_F32, {SHAPE(many, 70, 70), SHAPE(many, 70, 70)}, product});
    call_run(&(Call){"rows", DS_F32, {SHAPE(1, 64 * many, 3), SHAPE(1, 3, 2)}, product});
    call_run(&(Call){"16 bits", DS_BF16, {SHAPE(many, 64, 64), SHAPE(many, 64, 64)}, product});
}

static void convolutions_of_many(void **state)
{
    (void)state;
    const int64_t many = most + 3;
    call_run(
        &(Call){"depthwise", DS_F32, {SHAPE(1, many, 1, 2), SHAPE(many, 1, 1, 1)}, convolution});
    call_run(&(Call){
        "groups", DS_F32, {SHAPE(1, 8 * many, 1, 2), SHAPE(8 * many, 8, 1, 1)}, convolution});
    call_run(
        &(Call){"channels", DS_F32, {SHAPE(1, 3, 1, 2), SHAPE(64 * many, 3, 1, 1)}, convolution});
    call_run(&(Call){"channels in",
                     DS_BF16,
                     {SHAPE(1, 64 * many, 1, 2), SHAPE(3, 64 * many, 1, 1)},
                     convolution});
}

int main(void)
{
    if (emulated()) setenv("FAKE_CUDA_MOST_YZ", "40", 1), most = 40;
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {cmocka_unit_test(attention_of_many),
                                       cmocka_unit_test(products_of_many),
                                       cmocka_unit_test(convolutions_of_many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
