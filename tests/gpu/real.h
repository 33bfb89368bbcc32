/* tests/gpu/real.h: what memory, copies, streams and events of a GPU must do:
 * with the driver that is here (real.c), and with one that pretends (driver.c).
 * SPDX-License-Identifier: MIT */
#pragma once

#include "check.h"

#include "base/mem.h"
#include "device/device.h"

enum { N = 100003 };

static float *numbers(void)
{
    float *x = malloc(N * sizeof *x);
    for (int i = 0; i < N; i++) x[i] = (float)i * 0.5f;
    return x;
}

/* [N] on a device; the same numbers every time */
static ds_tensor *given(ds_device device)
{
    float *x = numbers();
    CHECK_INT(ds_set_device(device), DS_OK);
    ds_tensor *t = ds_from_data(DS_F32, ds_shape(N), x);
    CHECK_INT(ds_set_device((ds_device){DS_CPU, 0}), DS_OK);
    free(x);
    CHECK(t && ds_device_of(t).kind == device.kind && ds_device_of(t).index == device.index);
    return t;
}

static void check_given(ds_tensor *t)
{
    float *x = numbers();
    const float *got = ds_data(t);
    CHECK(got && !memcmp(got, x, N * sizeof *x));
    free(x);
}

static void tensors_go_everywhere(void **state)
{
    (void)state;
    int n = ds_device_count(DS_CUDA);
    ds_device cpu = {DS_CPU, 0}, first = {DS_CUDA, 0}, last = {DS_CUDA, n - 1};
    size_t before = ds_memory_allocated(first);
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = given(first);
    check_given(x);
    check_given(ds_to(given(cpu), first, DS_F32));
    check_given(ds_to(x, cpu, DS_F32));
    check_given(ds_clone(x));
    check_given(ds_to(ds_to(x, last, DS_F32), cpu, DS_F32));
    CHECK_CLOSE(ds_item(ds_select(x, 0, 77)), 38.5, 0);
    CHECK(ds_memory_allocated(first) >= before + 3 * N * sizeof(float));
    ds_scope_close(scope);
    CHECK_INT(ds_memory_allocated(first), before);
}

/* A block that was freed is taken again, and what is not used can be given
 * back. */
static void blocks_are_kept(void **state)
{
    (void)state;
    dsi_device *d = dsi_device_get((ds_device){DS_CUDA, 0});
    void *p = dsi_cache_alloc(d, 12345);
    CHECK(p && (uintptr_t)p % 64 == 0);
    dsi_cache_free(d, p, 12345);
    void *q = dsi_cache_alloc(d, 12344);
    CHECK(q == p || DSI_SANITIZED);
    dsi_cache_free(d, q, 12344);
    dsi_cache_empty(d);
    CHECK_INT(dsi_cache_use(d).held, 0);
}

static void pinned_memory(void **state)
{
    (void)state;
    dsi_device *d = dsi_device_get((ds_device){DS_CUDA, 0});
    int *p = d->type->alloc_host(d, 4096), *q = d->type->alloc_host(d, 4096);
    void *there = dsi_cache_alloc(d, 4096);
    CHECK(p && q && there);
    for (int i = 0; i < 1024; i++) p[i] = i, q[i] = 0;
    CHECK_INT(d->type->copy_in(&d->stream, there, p, 4096), DS_OK);
    CHECK_INT(d->type->copy_out(&d->stream, q, there, 4096), DS_OK);
    CHECK(!memcmp(p, q, 4096));
    d->type->free_host(d, p);
    d->type->free_host(d, q);
    dsi_cache_free(d, there, 4096);
}

/* More than what is on its way at a time: the host's memory is written again
 * right after each copy, and the values are those of before. */
static void copies_take_values(void **state)
{
    (void)state;
    enum { COPIES = 60, MOST = 300000 };
    ds_scope *scope = ds_scope_open();
    ds_tensor *x[COPIES];
    float *host = malloc(MOST * sizeof *host);
    CHECK_INT(ds_set_device((ds_device){DS_CUDA, 0}), DS_OK);
    for (int i = 0; i < COPIES; i++) {
        int64_t n = i % 3 ? 1 + i * 7001 % MOST : MOST - i;
        for (int64_t k = 0; k < n; k++) host[k] = (float)(i + k % 1000);
        CHECK((x[i] = ds_from_data(DS_F32, ds_shape(n), host)));
        memset(host, 0, MOST * sizeof *host);
    }
    CHECK_INT(ds_set_device((ds_device){DS_CPU, 0}), DS_OK);
    for (int i = 0; i < COPIES; i++) {
        const float *got = ds_data(x[i]);
        CHECK(got);
        for (int64_t k = 0; k < ds_numel(x[i]); k++) CHECK(got[k] == (float)(i + k % 1000));
    }
    free(host);
    ds_scope_close(scope);
}

static void events_order_streams(void **state)
{
    (void)state;
    dsi_device *d = dsi_device_get((ds_device){DS_CUDA, 0});
    dsi_event e = {0};
    CHECK_INT(d->type->wait(&d->stream, &e), DS_OK); /* never recorded: nothing to wait for */
    for (int i = 0; i < 3; i++) {
        CHECK_INT(d->type->record(&d->stream, &e), DS_OK);
        CHECK(e.handle);
        CHECK_INT(d->type->wait(&d->stream, &e), DS_OK);
    }
    CHECK_INT(d->type->sync(&d->stream), DS_OK);
    d->type->free_event(d, &e);
    CHECK(!e.handle);
}

static void what_it_is(void **state)
{
    (void)state;
    char text[200];
    size_t unused = 0, all = 0;
    dsi_device *d = dsi_device_get((ds_device){DS_CUDA, 0});
    CHECK_INT(dsi_device_describe((ds_device){DS_CUDA, 0}, text, sizeof text), DS_OK);
    CHECK(strstr(text, " GB, compute capability "));
    CHECK_INT(d->type->room(d, &unused, &all), DS_OK);
    CHECK(unused <= all && all > 0);
    CHECK(dsi_device_describe((ds_device){DS_CUDA, 15}, text, sizeof text) != DS_OK);
    CHECK_ERROR("device cuda:15: there ");
}

static void more_than_it_has(void **state)
{
    (void)state;
    char text[100];
    size_t unused, all;
    dsi_device *d = dsi_device_get((ds_device){DS_CUDA, 0});
    CHECK_INT(d->type->room(d, &unused, &all), DS_OK);
    CHECK(!dsi_cache_alloc(d, 2 * all));
    CHECK_INT(ds_error_status(), DS_ENOMEM);
    snprintf(text, sizeof text, " of its %zu are free", all);
    CHECK(strstr(ds_error(), text));
    snprintf(text, sizeof text, "no memory for %zu bytes on cuda:0", 2 * all);
    CHECK_ERROR(text);
    void *p = dsi_cache_alloc(d, 64); /* and continues */
    CHECK(p);
    dsi_cache_free(d, p, 64);
}

/* A kernel, in both ways in which it can be stored. */
static void ops_compute(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    const ds_dtype dtypes[] = {DS_F32, DS_BF16};
    for (int k = 0; k < 2; k++) {
        ds_tensor *y = ds_relu(ds_shift(ds_cast(given((ds_device){DS_CUDA, 0}), dtypes[k]), -2));
        const float *got = ds_data(ds_to(ds_cast(y, DS_F32), (ds_device){DS_CPU, 0}, DS_F32));
        CHECK(got && got[3] == 0 && got[4] == 0 && got[5] == 0.5f && got[200] == 98);
    }
    ds_scope_close(scope);
}

/* clang-format off */
#define GPU_TESTS \
    cmocka_unit_test(tensors_go_everywhere), cmocka_unit_test(blocks_are_kept), \
    cmocka_unit_test(pinned_memory), cmocka_unit_test(copies_take_values), \
    cmocka_unit_test(events_order_streams), cmocka_unit_test(what_it_is), cmocka_unit_test(more_than_it_has), \
    cmocka_unit_test(ops_compute)
/* clang-format on */
