/* tests/tensor/create.c: tensors from nothing, from memory, from the generator;
 * what is refused.
 * SPDX-License-Identifier: MIT */
#include "base/crc.h"
#include "check.h"
#include "tensor/tensor.h"

static const ds_dtype dtypes[] = {DS_F32, DS_F64, DS_F16, DS_BF16, DS_I64,
                                  DS_I32, DS_I16, DS_I8,  DS_U8,   DS_BOOL};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static double at(ds_tensor *x, int64_t i)
{
    return ((const double *)ds_data(ds_cast(x, DS_F64)))[i];
}

static void constants_fill_every_dtype(void **state)
{
    (void)state;
    for (int k = 0; k < DTYPES; k++) {
        ds_tensor *x[] = {ds_zeros(dtypes[k], ds_shape(2, 3)), ds_ones(dtypes[k], ds_shape(2, 3)),
                          ds_full(dtypes[k], ds_shape(2, 3), 7)};
        double want[] = {0, 1, dtypes[k] == DS_BOOL ? 1 : 7};
        for (int t = 0; t < 3; t++) {
            CHECK(ds_dtype_of(x[t]) == dtypes[k] && ds_ndim(x[t]) == 2 && ds_numel(x[t]) == 6);
            for (int i = 0; i < 6; i++) CHECK_CLOSE(at(x[t], i), want[t], 0);
        }
    }
    ds_tensor *s = ds_scalar(DS_F32, 2.5), *e = ds_empty(DS_F32, ds_shape(0, 4));
    CHECK(ds_ndim(s) == 0 && ds_item(s) == 2.5);
    CHECK_INT(ds_numel(e), 0);
    ds_tensor *l = ds_like(ds_transpose(ds_zeros(DS_F64, ds_shape(2, 3)), 0, 1), -1);
    CHECK(ds_dtype_of(l) == DS_F64 && ds_size(l, 0) == 3 && ds_size(l, 1) == 2 && at(l, 5) == -1);
}

static void impossible_shapes_are_refused(void **state)
{
    (void)state;
    CHECK(!ds_zeros(DS_F32, ds_shape(2, -1)));
    CHECK_ERROR("[2, -1]");
    CHECK(!ds_ones((ds_dtype)55, ds_shape(2)));
    CHECK_ERROR("55");
    CHECK(!ds_full(DS_F32, ds_shape(INT64_MAX, INT64_MAX), 1));
    CHECK_INT(ds_error_status(), DS_ENOMEM);
    ds_error_clear();
    CHECK(!ds_randn(DS_F32, ds_shape(-1)));
    CHECK_ERROR("[-1]");
    CHECK(!ds_like(NULL, 1));
    CHECK_ERROR("NULL");
}

static void check_arange(double begin, double end, double step, int64_t n, double last)
{
    for (int k = 0; k < DTYPES - 1; k++) {
        ds_tensor *x = ds_arange(dtypes[k], begin, end, step);
        CHECK_INT(ds_numel(x), n);
        if (n && (last == floor(last) || dtypes[k] <= DS_F64))
            CHECK_CLOSE(at(x, n - 1), last, 1e-6 * fabs(last));
    }
}

static void ranges_end_before_their_end(void **state)
{
    (void)state;
    check_arange(0, 5, 1, 5, 4);
    check_arange(2, 5.5, 1, 4, 5);
    check_arange(5, 0, -2, 3, 1);
    check_arange(1, 1, 1, 0, 0);
    check_arange(0, 1, 0.25, 4, 0.75);
    CHECK(!ds_arange(DS_F32, 0, 5, 0));
    CHECK_ERROR("arange: no way from 0 to 5 in steps of 0");
    CHECK(!ds_arange(DS_F32, 0, 5, -1));
    CHECK_ERROR("steps of -1");
    CHECK(!ds_arange(DS_F32, 0, NAN, 1));
    CHECK_ERROR("arange");
    CHECK(!ds_arange(DS_F32, 0, INFINITY, 1));
    CHECK_ERROR("arange");
}

static void memory_is_copied(void **state)
{
    (void)state;
    int32_t values[] = {1, 2, 3, 4, 5, 6};
    ds_tensor *x = ds_from_data(DS_I32, ds_shape(2, 3), values);
    values[0] = 99;
    CHECK(at(x, 0) == 1 && at(x, 5) == 6);
    CHECK_INT(ds_numel(ds_from_data(DS_I32, ds_shape(0), NULL)), 0);
    CHECK(!ds_from_data(DS_I32, ds_shape(2), NULL));
    CHECK_ERROR("from_data: data is NULL, shape [2]");
}

/* The stream does not hang on the dtype among float32, float16 and bfloat16,
 * nor on the layout. */
static void random_values_follow_the_seed(void **state)
{
    (void)state;
    ds_seed(42);
    ds_tensor *a = ds_rand(DS_F32, ds_shape(3, 7)), *b = ds_randn(DS_F32, ds_shape(3, 7));
    ds_seed(42);
    ds_tensor *c = ds_rand(DS_BF16, ds_shape(3, 7)), *d = ds_randn(DS_F16, ds_shape(3, 7));
    for (int i = 0; i < 21; i++) {
        CHECK_CLOSE(at(c, i), at(a, i), 0.004);
        CHECK_CLOSE(at(d, i), at(b, i), 0.002);
    }
    ds_seed(42);
    ds_tensor *e = ds_transpose(ds_zeros(DS_F32, ds_shape(7, 3)), 0, 1); /* [3, 7], column-major */
    CHECK(dsi_fill_uniform("test", e, 0, 1) == e);
    for (int i = 0; i < 21; i++) CHECK(at(e, i) == at(a, i));
    CHECK_CLOSE(at(a, 0), 0.88226926, 1e-8); /* torch.manual_seed(42); torch.rand(1) */
}

static void integers_stay_in_range(void **state)
{
    (void)state;
    for (int k = 0; k < DTYPES - 1; k++) {
        ds_tensor *x = ds_randint(dtypes[k], 3, 9, ds_shape(500));
        int seen[10] = {0};
        for (int i = 0; i < 500; i++) seen[(int)at(x, i)]++;
        for (int v = 0; v < 10; v++) CHECK(v < 3 || v > 8 ? !seen[v] : seen[v] > 30);
    }
    CHECK_INT(ds_numel(ds_randint(DS_BOOL, 0, 2, ds_shape(9))), 9);
    CHECK(!ds_randint(DS_I64, 4, 4, ds_shape(1)));
    CHECK_ERROR("randint: no integers from 4 to below 4");
    CHECK(!ds_randint(DS_U8, 0, 257, ds_shape(1)));
    CHECK_ERROR("uint8 does not hold 0 to 256");
    CHECK(!ds_randint(DS_I8, -129, 5, ds_shape(1)));
    CHECK_ERROR("int8 does not hold -129 to 4");
    CHECK(!ds_randint(DS_BOOL, 0, 3, ds_shape(1)));
    CHECK_ERROR("bool");
}

static void permutations_are_whole(void **state)
{
    (void)state;
    ds_tensor *x = ds_randperm(50);
    int seen[50] = {0};
    for (int i = 0; i < 50; i++) seen[(int)at(x, i)]++;
    for (int i = 0; i < 50; i++) CHECK_INT(seen[i], 1);
    CHECK_INT(ds_numel(ds_randperm(0)), 0);
    CHECK(!ds_randperm(-2));
    CHECK_ERROR("randperm: n is -2");
}

static void floats_are_for_floats(void **state)
{
    (void)state;
    CHECK(!ds_rand(DS_I64, ds_shape(2)));
    CHECK_ERROR("rand: x is int64, expected a floating dtype");
    CHECK(!ds_randn(DS_BOOL, ds_shape(2)));
    CHECK_ERROR("randn: x is bool");
}

/* Wherever an allocation fails, the answer is NULL and nothing stays behind. */
static void failed_allocations_are_passed(void **state)
{
    (void)state;
    dsi_device *cpu = dsi_device_get((ds_device){DS_CPU, 0});
    size_t before = dsi_cache_live(cpu);
    for (int n = 1; n <= 3; n++)
        for (int k = 0; k < 5; k++) {
            ds_scope *here = ds_scope_open();
            dsi_cache_fail(n, true);
            ds_tensor *x = k == 0   ? ds_arange(DS_I8, 0, 5, 1)
                           : k == 1 ? ds_randn(DS_BF16, ds_shape(40))
                           : k == 2 ? ds_randint(DS_I32, 0, 5, ds_shape(4))
                           : k == 3 ? ds_ones(DS_F32, ds_shape(4))
                                    : ds_randperm(9);
            dsi_cache_fail(0, false);
            CHECK(x ? !ds_error() : ds_error_status() == DS_ENOMEM);
            CHECK(n > 1 || !x);
            ds_error_clear();
            ds_scope_close(here);
        }
    CHECK_INT((int64_t)dsi_cache_live(cpu), (int64_t)before);
}

/* CRC-32C of the bytes of torch.get_rng_state() after the same calls in PyTorch
 * 2. */
static void check_state(uint32_t want)
{
    ds_tensor *state = ds_rng_state();
    CHECK_INT(ds_numel(state), 5056);
    CHECK_INT(dsi_crc32c(0, ds_data(state), 5056), want);
}

static void the_generator_has_pytorchs_bytes(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_seed(42);
    check_state(0x16d5abf7);
    ds_rand(DS_F32, ds_shape(3));
    check_state(0x840a709a);
    ds_rand(DS_F32, ds_shape(621)); /* the last word of a block */
    check_state(0x9503b439);
    ds_rand(DS_F32, ds_shape(1));
    check_state(0xd8aa11d4);
    ds_randn(DS_F32, ds_shape(3)); /* one of a pair waits */
    check_state(0xf20515d8);
    ds_randn(DS_F32, ds_shape(16));
    check_state(0xc9f43687);
    ds_randperm(10);
    check_state(0xf34203aa);
    ds_seed(((uint64_t)1 << 40) + 7);
    check_state(0x6ff37203);
    ds_scope_close(s);
}

static void the_generator_goes_on(void **state)
{
    (void)state;
    static const int64_t drawn[] = {0, 1, 623, 624, 625};
    for (size_t k = 0; k < sizeof drawn / sizeof *drawn; k++) {
        ds_scope *s = ds_scope_open();
        ds_seed(42);
        ds_rand(DS_F32, ds_shape(drawn[k]));
        ds_randn(DS_F32, ds_shape(k % 2 ? 5 : 4));
        ds_tensor *here = ds_rng_state(), *want = ds_randn(DS_F32, ds_shape(3));
        ds_rand(DS_F32, ds_shape(1000));
        CHECK_INT(ds_set_rng_state(here), DS_OK);
        ds_tensor *got = ds_randn(DS_F32, ds_shape(3));
        CHECK(!memcmp(ds_data(got), ds_data(want), 12));
        CHECK_INT(ds_set_rng_state(here), DS_OK);
        CHECK(!memcmp(ds_data(ds_rng_state()), ds_data(here), 5056));
        ds_scope_close(s);
    }
}

static void what_is_no_state_is_refused(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *good = ds_rng_state(), *bad = ds_zeros(DS_U8, ds_shape(5056));
    CHECK(ds_set_rng_state(NULL) != DS_OK);
    ds_error_clear();
    CHECK(ds_set_rng_state(ds_zeros(DS_U8, ds_shape(5048))) != DS_OK);
    CHECK_ERROR("set_rng_state: the state is uint8 [5048]: expected uint8 [5056]");
    CHECK(ds_set_rng_state(ds_zeros(DS_F32, ds_shape(5056))) != DS_OK);
    CHECK_ERROR("float32 [5056]");
    CHECK(ds_set_rng_state(bad) != DS_OK);
    CHECK_ERROR("no state of PyTorch's CPU generator");
    bad = ds_clone(good);
    ((uint8_t *)ds_data_mut(bad))[17] = 5; /* next: 1280 and more */
    CHECK(ds_set_rng_state(bad) != DS_OK);
    ds_error_clear();
    CHECK(!memcmp(ds_data(ds_rng_state()), ds_data(good), 5056));
    ds_scope_close(s);
}

TEST_MAIN(cmocka_unit_test(constants_fill_every_dtype),
          cmocka_unit_test(impossible_shapes_are_refused),
          cmocka_unit_test(ranges_end_before_their_end), cmocka_unit_test(memory_is_copied),
          cmocka_unit_test(random_values_follow_the_seed), cmocka_unit_test(integers_stay_in_range),
          cmocka_unit_test(permutations_are_whole), cmocka_unit_test(floats_are_for_floats),
          cmocka_unit_test(the_generator_has_pytorchs_bytes),
          cmocka_unit_test(the_generator_goes_on), cmocka_unit_test(what_is_no_state_is_refused),
          cmocka_unit_test(failed_allocations_are_passed))
