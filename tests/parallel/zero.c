/* tests/parallel/zero.c: what updates a model's parameters, beside plain loops.
 * SPDX-License-Identifier: MIT */
#include "net.h"

#include "parallel/zero.h"

#define BATCH 8

/* ---- one rank -------------------------------------------------------------------------------------------- */

/* float32 is the plain loop, bit for bit. */
static void float32_is_the_plain_loop(void **state)
{
    (void)state;
    static float want[ROOM], got[ROOM];
    for (int stage = 0; stage <= 3; stage++) {
        ds_scope *scope = ds_scope_open();
        ds_module *a = net_new(), *b = net_new();
        ds_optim *oa = ds_optim_adamw(a, 1e-2, .weight_decay = 0.1);
        ds_optim *ob = ds_optim_adamw(b, 1e-2, .weight_decay = 0.1);
        dsi_zero_opts o = {.stage = stage};
        dsi_zero *z = dsi_zero_new(b, ob, NULL, &o);
        CHECK(z != NULL);
        for (int i = 0; i < 20; i++) {
            ds_optim_zero_grad(oa);
            CHECK_INT(ds_backward(loss_of(a, DS_F32, i * BATCH, BATCH)), DS_OK);
            CHECK_INT(ds_optim_step(oa), DS_OK);
            CHECK_INT(dsi_zero_backward(z, loss_of(b, DS_F32, i * BATCH, BATCH), 1, true), DS_OK);
            CHECK_INT(dsi_zero_step(z, 1, 0, false, false, NULL), DS_OK);
        }
        int n = values(a, want, ROOM);
        CHECK_INT(values(b, got, ROOM), n);
        assert_memory_equal(want, got, (size_t)n * sizeof *got);
        dsi_zero_free(z);
        ds_optim_free(oa), ds_optim_free(ob);
        ds_module_free(a), ds_module_free(b);
        ds_scope_close(scope);
    }
}

/* The same norm as ds_clip_grad_norm, and nearly the same parameters: the
 * factor is not rounded twice. */
static void clips_as_torch(void **state)
{
    (void)state;
    static float want[ROOM], got[ROOM];
    ds_scope *scope = ds_scope_open();
    ds_module *a = net_new(), *b = net_new();
    ds_optim *oa = ds_optim_sgd(a, 0.1, .momentum = 0.9),
             *ob = ds_optim_sgd(b, 0.1, .momentum = 0.9);
    dsi_zero *z = dsi_zero_new(b, ob, NULL, &(dsi_zero_opts){0});
    for (int i = 0; i < 20; i++) {
        dsi_zero_step_result r;
        ds_optim_zero_grad(oa);
        CHECK_INT(ds_backward(loss_of(a, DS_F32, i * BATCH, BATCH)), DS_OK);
        double norm = ds_item(ds_clip_grad_norm(a, 0.25, 2));
        CHECK_INT(ds_optim_step(oa), DS_OK);
        CHECK_INT(dsi_zero_backward(z, loss_of(b, DS_F32, i * BATCH, BATCH), 8, true), DS_OK);
        CHECK_INT(dsi_zero_step(z, 8, 0.25, true, false, &r), DS_OK);
        CHECK_CLOSE(r.norm, norm, 1e-5 * norm);
        CHECK(!r.overflow && !r.bad_param_path);
    }
    int n = values(a, want, ROOM);
    values(b, got, ROOM);
    for (int i = 0; i < n; i++) CHECK_CLOSE(got[i], want[i], 1e-5);
    dsi_zero_free(z);
    ds_optim_free(oa), ds_optim_free(ob);
    ds_module_free(a), ds_module_free(b);
    ds_scope_close(scope);
}

/* 16 bits: a plain loop with masters of its own, AdamW on float32, gradients
 * widened by hand. */
static void has_float32_masters(void **state)
{
    (void)state;
    static float want[ROOM], got[ROOM];
    static const ds_dtype dtypes[] = {DS_BF16, DS_F16};
    for (int k = 0; k < 2; k++) {
        ds_dtype t = dtypes[k];
        double scale = t == DS_F16 ? 1024 : 1;
        ds_scope *scope = ds_scope_open();
        ds_module *a = net_new(), *b = net_new(), *master = net_new();
        CHECK_INT(ds_module_to(a, t), DS_OK);
        ds_optim *oa = ds_optim_adamw(master, 1e-3), *ob = ds_optim_adamw(b, 1e-3);
        for (int p = 0; p < ds_module_params(a); p++)
            ds_copy(ds_module_param_at(master, p, NULL), ds_module_param_at(a, p, NULL));
        dsi_zero_opts o = {.dtype = t, .accum_dtype = t, .comm_dtype = t};
        dsi_zero *z = dsi_zero_new(b, ob, NULL, &o);
        CHECK(z != NULL);
        for (int i = 0; i < 20; i++) {
            ds_module_zero_grad(a);
            CHECK_INT(
                ds_backward(ds_mul(loss_of(a, t, i * BATCH, BATCH), ds_scalar(DS_F32, scale))),
                DS_OK);
            for (int p = 0; p < ds_module_params(a); p++) {
                ds_tensor *g = ds_cast(ds_grad(ds_module_param_at(a, p, NULL)), DS_F32);
                ds_set_grad_of(ds_module_param_at(master, p, NULL),
                               ds_mul(g, ds_scalar(DS_F32, 1 / scale)));
            }
            CHECK_INT(ds_optim_step(oa), DS_OK);
            for (int p = 0; p < ds_module_params(a); p++)
                ds_copy(ds_module_param_at(a, p, NULL), ds_module_param_at(master, p, NULL));
            CHECK_INT(dsi_zero_backward(z, loss_of(b, t, i * BATCH, BATCH), scale, true), DS_OK);
            CHECK_INT(dsi_zero_step(z, scale, 0, true, false, NULL), DS_OK);
        }
        int n = values(a, want, ROOM);
        values(b, got, ROOM);
        assert_memory_equal(want, got, (size_t)n * sizeof *got);
        dsi_zero_bytes bytes = dsi_zero_memory(z);
        CHECK_INT(bytes.parameters, 2 * n);
        /* moments, and masters or what they are beside the parameters */
        CHECK(bytes.optimizer >= (t == DS_BF16 ? 10 : 12) * n);
        dsi_zero_free(z);
        ds_optim_free(oa), ds_optim_free(ob);
        ds_module_free(a), ds_module_free(b), ds_module_free(master);
        ds_scope_close(scope);
    }
}

/* bfloat16 gradients of four passes, added up in float32 as by hand; or in
 * bfloat16, as backward does. */
static void adds_up_in_the_dtype_asked_for(void **state)
{
    (void)state;
    static float want[ROOM], got[ROOM];
    for (int wide = 0; wide < 2; wide++) {
        ds_scope *scope = ds_scope_open();
        ds_module *a = net_new(), *b = net_new(), *master = net_new();
        CHECK_INT(ds_module_to(a, DS_BF16), DS_OK);
        ds_optim *oa = ds_optim_sgd(master, 0.1), *ob = ds_optim_sgd(b, 0.1);
        dsi_zero_opts o = {.dtype = DS_BF16, .accum_dtype = wide ? DS_F32 : DS_BF16};
        dsi_zero *z = dsi_zero_new(b, ob, NULL, &o);
        CHECK(z != NULL);
        int count = ds_module_params(a);
        for (int p = 0; p < count; p++)
            ds_copy(ds_module_param_at(master, p, NULL), ds_module_param_at(a, p, NULL));
        for (int i = 0; i < 5; i++) {
            for (int k = 0; k < 4; k++) {
                ds_tensor *loss = loss_of(a, DS_BF16, (4 * i + k) * BATCH, BATCH);
                CHECK_INT(ds_backward(ds_mul(loss, ds_scalar(DS_F32, 0.25))), DS_OK);
                for (int p = 0; p < count; p++) {
                    ds_tensor *x = ds_module_param_at(a, p, NULL);
                    ds_tensor *m = ds_module_param_at(master, p, NULL);
                    ds_tensor *g = ds_cast(ds_grad(x), DS_F32);
                    ds_set_grad_of(m, wide && k ? ds_add(ds_grad(m), g) : g);
                    if (wide || k == 3) ds_set_grad_of(x, NULL);
                }
                loss = loss_of(b, DS_BF16, (4 * i + k) * BATCH, BATCH);
                CHECK_INT(dsi_zero_backward(z, loss, 0.25, k == 3), DS_OK);
            }
            CHECK_INT(ds_optim_step(oa), DS_OK);
            for (int p = 0; p < count; p++)
                ds_copy(ds_module_param_at(a, p, NULL), ds_module_param_at(master, p, NULL));
            CHECK_INT(dsi_zero_step(z, 1, 0, false, false, NULL), DS_OK);
        }
        int n = values(a, want, ROOM);
        CHECK_INT(values(b, got, ROOM), n);
        assert_memory_equal(want, got, (size_t)n * sizeof *got);
        dsi_zero_free(z);
        ds_optim_free(oa), ds_optim_free(ob);
        ds_module_free(a), ds_module_free(b), ds_module_free(master);
        ds_scope_close(scope);
    }
}

/* An inf in a gradient changes nothing, and the parameter is named. */
static void skips_on_overflow(void **state)
{
    (void)state;
    static float before[ROOM], after[ROOM];
    ds_scope *scope = ds_scope_open();
    ds_module *m = net_new();
    ds_optim *optim = ds_optim_adamw(m, 1e-3);
    dsi_zero_opts o = {.dtype = DS_F16, .accum_dtype = DS_F16, .comm_dtype = DS_F16};
    dsi_zero *z = dsi_zero_new(m, optim, NULL, &o);
    dsi_zero_step_result r;
    int n = values(m, before, ROOM);
    CHECK_INT(dsi_zero_backward(z, loss_of(m, DS_F16, 0, BATCH), 1e8, true), DS_OK);
    CHECK_INT(dsi_zero_step(z, 1e8, 1, true, false, &r), DS_OK);
    CHECK(r.overflow && !isfinite(r.norm));
    CHECK(r.bad_param_path && !strcmp(r.bad_param_path, "conv.weight"));
    values(m, after, ROOM);
    assert_memory_equal(before, after, (size_t)n * sizeof *after);
    CHECK(!ds_grad(ds_module_param_at(m, 0, NULL)));
    CHECK_INT(dsi_zero_backward(z, loss_of(m, DS_F16, 0, BATCH), 1024, true), DS_OK);
    CHECK_INT(dsi_zero_step(z, 1024, 1, true, false, &r), DS_OK);
    CHECK(!r.overflow && !r.bad_param_path);
    dsi_zero_free(z);
    ds_optim_free(optim);
    ds_module_free(m);
    ds_scope_close(scope);
}

static void refuses(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = net_new();
    ds_optim *optim = ds_optim_adamw(m, 1e-3);
    CHECK(!dsi_zero_new(m, optim, NULL, &(dsi_zero_opts){.stage = 4}));
    CHECK_ERROR("stage is 4");
    CHECK(!dsi_zero_new(m, optim, NULL, &(dsi_zero_opts){.dtype = DS_I64}));
    CHECK_ERROR("dtype is int64");
    CHECK(!dsi_zero_new(m, optim, NULL, &(dsi_zero_opts){.dtype = DS_F32, .accum_dtype = DS_F16}));
    CHECK_ERROR("added up in float16");
    for (int i = 0; i < ds_module_params(m); i++)
        ds_require_grad(ds_module_param_at(m, i, NULL), false);
    CHECK(!dsi_zero_new(m, optim, NULL, &(dsi_zero_opts){0}));
    CHECK_ERROR("no parameter of net requires a gradient");
    ds_optim_free(optim);
    ds_module_free(m);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(float32_is_the_plain_loop), cmocka_unit_test(clips_as_torch),
          cmocka_unit_test(has_float32_masters), cmocka_unit_test(adds_up_in_the_dtype_asked_for),
          cmocka_unit_test(skips_on_overflow), cmocka_unit_test(refuses))
