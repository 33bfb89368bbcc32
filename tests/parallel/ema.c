/* tests/parallel/ema.c: averages of parameters: PyTorch's values, swapping in
 * and out bit for bit, parts that are kept apart from the module, refusals.
 * SPDX-License-Identifier: MIT */
#include "parallel/ema.h"
#include "check.h"
#include "device/device.h"
#include "parallel/zero.h"

#define N     3
#define STEPS 5

static ds_module *net_new(ds_dtype dtype)
{
    static const ds_module_type type = {.name = "Net"};
    ds_module *m = ds_module_new(NULL, "net", &type);
    ds_module_param(m, "w", ds_full(dtype, ds_shape(1, N), 9));
    ds_module_param(m, "b", ds_full(dtype, ds_shape(2), -1));
    return m;
}

static ds_tensor *w_of(const ds_module *m) { return ds_module_param_at(m, 0, NULL); }

static void set(ds_tensor *x, const float *values)
{
    CHECK(ds_copy(x, ds_from_data(DS_F32, ds_shape_of(x), values)) == DS_OK);
}

static void check_values(ds_tensor *x, const float *want, double rtol)
{
    const float *got = ds_data(ds_cast(x, DS_F32));
    for (int64_t i = 0; i < ds_numel(x); i++)
        CHECK_CLOSE(got[i], want[i], rtol * fabs((double)want[i]));
}

static const float values[STEPS][N] = {
    {1, -2, 3}, {0.5f, 0.25f, -7}, {100, 1e-3f, 2.5f}, {-3, 4, 1e-8f}, {2, 2, 2}};

/* torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(decay), PyTorch
 * 2.15. */
static const struct {
    double decay;
    float average[STEPS][N];
} torchs[] = {
    {0.999,
     {{1.0f, -2.0f, 3.0f},
      {0.9994999766349792f, -1.9977500438690186f, 2.990000009536743f},
      {1.0985004901885986f, -1.9957512617111206f, 2.9895100593566895f},
      {1.0944019556045532f, -1.9897555112838745f, 2.986520528793335f},
      {1.0953075885772705f, -1.985765814781189f, 2.9855339527130127f}}},
    {0.3,
     {{1.0f, -2.0f, 3.0f},
      {0.6499999761581421f, -0.42500001192092896f, -4.0f},
      {70.19499969482422f, -0.12680000066757202f, 0.5499999523162842f},
      {18.958499908447266f, 2.761960029602051f, 0.16500000655651093f},
      {7.087550163269043f, 2.228588104248047f, 1.4494999647140503f}}},
};

static void torchs_averages(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof torchs / sizeof *torchs; k++) {
        ds_scope *scope = ds_scope_open();
        ds_module *m = net_new(DS_F32);
        dsi_ema *e = dsi_ema_new(m, torchs[k].decay == 0.999 ? 0 : torchs[k].decay, NULL);
        for (int i = 0; i < STEPS; i++) {
            set(w_of(m), values[i]);
            CHECK(dsi_ema_update(e) == DS_OK);
            check_values(dsi_ema_average(e, 0), torchs[k].average[i], 1e-6);
        }
        dsi_ema_free(e);
        ds_module_free(m);
        ds_scope_close(scope);
    }
}

/* Bit for bit, even what no arithmetic keeps. */
static void swapping(void **state)
{
    (void)state;
    const ds_dtype dtypes[] = {DS_F32, DS_BF16, DS_F16, DS_F64};
    for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes; k++) {
        ds_scope *scope = ds_scope_open();
        ds_module *m = net_new(dtypes[k]);
        dsi_ema *e = dsi_ema_new(m, 0.5, NULL);
        set(w_of(m), (float[]){1, 2, 3});
        CHECK(dsi_ema_update(e) == DS_OK);
        set(w_of(m), (float[]){3, 4, 7});
        CHECK(dsi_ema_update(e) == DS_OK);
        set(w_of(m), (float[]){-0.0f, NAN, 1e-7f});
        size_t bytes = N * ds_dtype_size(dtypes[k]);
        char before[64];
        memcpy(before, ds_data(w_of(m)), bytes);
        CHECK(dsi_ema_swap(e) == DS_OK && dsi_ema_swapped(e));
        check_values(w_of(m), (float[]){2, 3, 5}, 0);
        CHECK(dsi_ema_update(e) == DS_ESTATE);
        CHECK_ERROR("ema_update: the averages are in the place of the parameters");
        CHECK(dsi_ema_swap(e) == DS_OK && !dsi_ema_swapped(e));
        CHECK(memcmp(before, ds_data(w_of(m)), bytes) == 0);
        dsi_ema_free(e);
        ds_module_free(m);
        ds_scope_close(scope);
    }
}

static void before_the_first_update(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = net_new(DS_F32);
    dsi_ema *e = dsi_ema_new(m, 0, NULL);
    set(w_of(m), values[0]);
    CHECK(dsi_ema_swap(e) == DS_OK);
    check_values(w_of(m), (float[]){9, 9, 9}, 0);
    dsi_ema_free(e);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* ---- parts -------------------------------------------------------------------------------------------- */

/* A float32 master of the second half of w, flat; nothing of b. */
typedef struct Keeper {
    ds_module *m;
    ds_tensor *master; /* [2] */
    int published;
    bool fails;
} Keeper;

static ds_tensor *keeper_part(void *arg, int i) { return i == 0 ? ((Keeper *)arg)->master : NULL; }

static ds_status keeper_publish(void *arg)
{
    Keeper *k = arg;
    float w[N] = {9, 0, 0};
    if (k->fails && !k->published) return k->published++, ds_fail(DS_ECOMM, "publish: no");
    memcpy(w + 1, ds_data(k->master), 2 * sizeof *w);
    set(w_of(k->m), w);
    k->published++;
    return DS_OK;
}

static void parts_of_a_rank(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    Keeper k = {net_new(DS_BF16), ds_zeros(DS_F32, ds_shape(2)), 0, false};
    const dsi_ema_shards parts = {&k, keeper_part, keeper_publish, NULL};
    dsi_ema *e = dsi_ema_new(k.m, 0.5, &parts);
    set(k.master, (float[]){1.001f, 2});
    CHECK(dsi_ema_update(e) == DS_OK);
    set(k.master, (float[]){1.003f, 4});
    CHECK(dsi_ema_update(e) == DS_OK);
    CHECK(!dsi_ema_average(e, 1));
    const float *average = ds_data(dsi_ema_average(e, 0));
    CHECK_CLOSE(average[0], 1.002, 1e-6); /* more than bfloat16 tells apart */
    CHECK(dsi_ema_swap(e) == DS_OK);
    check_values(w_of(k.m), (float[]){9, 1, 3}, 0.01);
    CHECK(dsi_ema_swap(e) == DS_OK);
    check_values(k.master, (float[]){1.003f, 4}, 0);
    check_values(w_of(k.m), (float[]){9, 1, 4}, 0.01);
    CHECK_INT(k.published, 2);
    dsi_ema_free(e);
    ds_module_free(k.m);
    ds_scope_close(scope);
}

static void a_swap_that_fails_changes_nothing(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    Keeper k = {net_new(DS_F32), ds_ones(DS_F32, ds_shape(2)), 0, true};
    const dsi_ema_shards parts = {&k, keeper_part, keeper_publish, NULL};
    dsi_ema *e = dsi_ema_new(k.m, 0.5, &parts);
    set(k.master, (float[]){5, 6});
    CHECK(dsi_ema_swap(e) == DS_ECOMM);
    CHECK_ERROR("publish: no");
    CHECK(!dsi_ema_swapped(e));
    check_values(w_of(k.m), (float[]){9, 5, 6}, 0);
    k.master = ds_ones(DS_F32, ds_shape(4));
    CHECK(dsi_ema_update(e) == DS_EINVAL);
    CHECK_ERROR("ema: w was [2], and is [4] now");
    dsi_ema_free(e);
    ds_module_free(k.m);
    ds_scope_close(scope);
}

static ds_tensor *zero_part(void *arg, int i) { return dsi_zero_shard(arg, i); }
static ds_status zero_publish(void *arg) { return dsi_zero_publish(arg); }

static ds_status zero_release(void *arg, int i, bool changed)
{
    return dsi_zero_release(arg, i, changed);
}

/* bfloat16 with masters: what is averaged is finer than the model, and comes
 * back as it was. */
static void masters_of_zero(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = net_new(DS_F32);
    ds_optim *o = ds_optim_sgd(m, 1e-3);
    dsi_zero *z = dsi_zero_new(m, o, NULL, &(dsi_zero_opts){.dtype = DS_BF16});
    CHECK(z);
    const dsi_ema_shards parts = {z, zero_part, zero_publish, zero_release};
    dsi_ema *e = dsi_ema_new(m, 0.5, &parts);
    for (int i = 0; i < 2; i++) {
        CHECK(dsi_zero_backward(z, ds_cast(ds_sum(w_of(m)), DS_F32), 1, true) == DS_OK);
        CHECK(dsi_zero_step(z, 1, 0, true, false, NULL) == DS_OK);
        CHECK(dsi_ema_update(e) == DS_OK);
    }
    check_values(dsi_ema_average(e, 0), (float[]){8.9985f, 8.9985f, 8.9985f}, 4e-7);
    ds_tensor *master = dsi_zero_shard(z, 0), *before = ds_clone(master);
    uint16_t w = *(const uint16_t *)ds_data(w_of(m));
    CHECK(dsi_ema_swap(e) == DS_OK);
    check_values(master, (float[]){8.9985f, 8.9985f, 8.9985f}, 4e-7);
    CHECK(dsi_ema_swap(e) == DS_OK);
    CHECK(!memcmp(ds_data(before), ds_data(master), N * sizeof(float)));
    CHECK_INT(*(const uint16_t *)ds_data(w_of(m)), w);
    dsi_ema_free(e);
    dsi_zero_free(z);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* ---- refusals ---------------------------------------------------------------------------------- */

static void refused(void **state)
{
    (void)state;
    ds_module *m = net_new(DS_F32);
    CHECK(!dsi_ema_new(m, 1.5, NULL));
    CHECK_ERROR("ema: decay is 1.5: expected 0 to 1");
    CHECK(!dsi_ema_new(m, NAN, NULL));
    CHECK_ERROR("ema: decay is nan");
    CHECK(!dsi_ema_new(NULL, 0, NULL));
    CHECK_ERROR("ema");
    CHECK(dsi_ema_update(NULL) == DS_EINVAL && dsi_ema_swap(NULL) == DS_EINVAL);
    CHECK(!dsi_ema_swapped(NULL));
    dsi_ema_free(NULL);
    ds_error_clear();
    ds_module_free(m);
}

/* Without memory for the n-th tensor: a message, no average where a parameter
 * should be, nothing lost. */
static void memory_that_ends(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = net_new(DS_F32);
    set(w_of(m), values[0]);
    int64_t live = ds_live_tensors(), n = 1;
    for (bool all = false; !all; n++) {
        dsi_cache_fail(n, true);
        dsi_ema *e = dsi_ema_new(m, 0.5, NULL);
        all = e && dsi_ema_update(e) == DS_OK;
        if (all) all = dsi_ema_swap(e) == DS_OK && dsi_ema_swap(e) == DS_OK;
        dsi_cache_fail(0, false);
        CHECK(all || ds_error_status() == DS_ENOMEM);
        CHECK(!dsi_ema_swapped(e));
        ds_error_clear();
        dsi_ema_free(e);
        CHECK_INT(ds_live_tensors(), live);
        check_values(w_of(m), values[0], 0);
    }
    CHECK(n > 4); /* two averages, two copies */
    ds_module_free(m);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(torchs_averages), cmocka_unit_test(swapping),
          cmocka_unit_test(before_the_first_update), cmocka_unit_test(parts_of_a_rank),
          cmocka_unit_test(masters_of_zero), cmocka_unit_test(refused),
          cmocka_unit_test(a_swap_that_fails_changes_nothing), cmocka_unit_test(memory_that_ends))
