/* tests/device/cache.c: the caching allocator, scratch, fault injection, device
 * names.
 * SPDX-License-Identifier: MIT */
#include "base/mem.h"
#include "check.h"
#include "device/cpu/cpu.h"
#include "device/device.h"

static dsi_device *cpu(void) { return dsi_device_get((ds_device){DS_CPU, 0}); }

static void blocks_come_back(void **state)
{
    (void)state;
    dsi_device *d = cpu();
    void *p = dsi_cache_alloc(d, 1000);
    CHECK(p && (uintptr_t)p % 64 == 0);
    size_t live = dsi_cache_live(d);
    dsi_cache_free(d, p, 1000);
    CHECK_INT((int64_t)dsi_cache_live(d), (int64_t)live - 1000);
    CHECK(dsi_cache_peak(d) >= 1000);
    void *q = dsi_cache_alloc(d, 1010); /* the same class */
    CHECK(DSI_SANITIZED || q == p);
    dsi_cache_free(d, q, 1010);
    dsi_cache_empty(d);
}

static void usage_is_counted(void **state)
{
    (void)state;
    dsi_device *d = cpu();
    dsi_cache_empty(d);
    dsi_cache_usage before = dsi_cache_use(d), u;
    void *p[64];
    for (int i = 0; i < 64; i++) p[i] = dsi_cache_alloc(d, (size_t)1 << (i / 4) << 6);
    u = dsi_cache_use(d);
    CHECK_INT((int64_t)(u.live - before.live), 4 * 64 * ((1 << 16) - 1));
    CHECK_INT((int64_t)(u.held - before.held), (int64_t)(u.live - before.live));
    for (int i = 0; i < 64; i++) dsi_cache_free(d, p[i], (size_t)1 << (i / 4) << 6);
    u = dsi_cache_use(d);
    CHECK_INT((int64_t)u.live, (int64_t)before.live);
    CHECK(u.peak_live >= before.live + 1000000 && u.peak_held >= u.peak_live);
    for (size_t bytes = 1; bytes < 100000; bytes += 777) {
        void *odd = dsi_cache_alloc(d, bytes);
        dsi_cache_free(d, odd, bytes);
    }
    dsi_cache_empty(d);
    dsi_cache_restart_peaks(d);
    u = dsi_cache_use(d);
    CHECK_INT((int64_t)u.held, (int64_t)before.held);
    CHECK_INT((int64_t)u.peak_held, (int64_t)before.held);
    CHECK_INT((int64_t)u.peak_live, (int64_t)before.live);
    CHECK(dsi_cache_peak(d) >= 1000000);
}

static void all_sizes_are_usable(void **state)
{
    (void)state;
    for (size_t bytes = 0; bytes < 5000; bytes += bytes < 300 ? 1 : 37) {
        char *p = dsi_cache_alloc(cpu(), bytes);
        CHECK(p);
        memset(p, 7, bytes);
        dsi_cache_free(cpu(), p, bytes);
    }
}

static void too_much_is_refused(void **state)
{
    (void)state;
    CHECK(!dsi_cache_alloc(cpu(), SIZE_MAX / 2));
    CHECK_INT(ds_error_status(), DS_ENOMEM);
    CHECK_ERROR("no memory for");
    CHECK(!dsi_cache_alloc(cpu(), SIZE_MAX / 8));
    CHECK_ERROR("are in use, the most so far was");
}

static void the_nth_fails(void **state)
{
    (void)state;
    dsi_cache_fail(2, false);
    void *a = dsi_cache_alloc(cpu(), 64), *b = dsi_cache_alloc(cpu(), 64),
         *c = dsi_cache_alloc(cpu(), 64);
    CHECK(a && !b && c);
    CHECK_ERROR("no memory for 64 bytes");
    CHECK_INT(dsi_cache_fail(0, false), 3);
    dsi_cache_free(cpu(), a, 64);
    dsi_cache_free(cpu(), c, 64);
}

static void scratch_is_a_stack(void **state)
{
    (void)state;
    dsi_stream *s = &cpu()->stream;
    char *a = dsi_scratch(s, 1000), *b = dsi_scratch(s, 3 << 20), *c = dsi_scratch(s, 100);
    CHECK(a && b && c);
    memset(a, 1, 1000);
    memset(b, 2, 3 << 20);
    memset(c, 3, 100);
    CHECK(a[999] == 1 && b[0] == 2 && b[(3 << 20) - 1] == 2);
    dsi_scratch_release(s, c);
    dsi_scratch_release(s, b);
    dsi_scratch_release(s, a);
    char *again = dsi_scratch(s, 1000);
    CHECK(again && (uintptr_t)again % 64 == 0);
    dsi_scratch_release(s, again);
}

static void names_of_devices(void **state)
{
    (void)state;
    ds_device d = {DS_CUDA, 7};
    CHECK_INT(ds_device_parse("cpu", &d), DS_OK);
    CHECK(d.kind == DS_CPU && d.index == 0);
    CHECK(!strcmp(ds_device_name(d), "cpu"));
    CHECK(!strcmp(ds_device_name((ds_device){DS_CUDA, 1}), "cuda:1"));
    CHECK(ds_device_parse("tpu", &d) != DS_OK);
    CHECK_ERROR("expected cpu, cuda or cuda:N");
    CHECK(ds_device_parse("cuda:x", &d) != DS_OK);
    CHECK_ERROR("expected cpu, cuda or cuda:N");
    CHECK(ds_device_parse("cpu:1", &d) != DS_OK);
    CHECK_ERROR("device cpu:1: there is 1 cpu device here, which has index 0");
    if (!ds_device_count(DS_CUDA)) {
        CHECK(ds_device_parse("cuda", &d) != DS_OK);
        CHECK_ERROR("cuda");
        CHECK(ds_set_device((ds_device){DS_CUDA, 0}) != DS_OK);
        CHECK_ERROR("cuda");
    }
}

static void an_instruction_set_is_chosen(void **state)
{
    (void)state;
    const char *was = getenv("DS_CPU");
    char keep[32] = "";
    if (was) snprintf(keep, sizeof keep, "%s", was);
    setenv("DS_CPU", "generic", 1);
    CHECK(!strcmp(dsi_cpu_isa(), "generic"));
    setenv("DS_CPU", "mmx", 1);
    CHECK(!dsi_cpu_isa());
    CHECK_ERROR("DS_CPU=mmx: expected generic, avx2, avx512, avx512_bf16 or amx");
    if (was)
        setenv("DS_CPU", keep, 1);
    else
        unsetenv("DS_CPU");
    CHECK(dsi_cpu_table_of("generic") && !dsi_cpu_table_of("mmx"));
}

TEST_MAIN(cmocka_unit_test(blocks_come_back), cmocka_unit_test(usage_is_counted),
          cmocka_unit_test(all_sizes_are_usable), cmocka_unit_test(too_much_is_refused),
          cmocka_unit_test(the_nth_fails), cmocka_unit_test(scratch_is_a_stack),
          cmocka_unit_test(names_of_devices), cmocka_unit_test(an_instruction_set_is_chosen))
