/* tests/monitor/monitor.c: fan-out, custom sinks, sinks that fail.
 * SPDX-License-Identifier: MIT */
#include "check.h"

#include <time.h>

/* A sink that counts what is done to it, outside of itself: it is freed with
 * its monitor. */
typedef struct Counts {
    int writes, flushes, frees;
    double value;
    int64_t step;
    char tag[64];
    int fail_write, fail_flush; /* the n-th; 0: never */
    bool silent;                /* fails without a message */
} Counts;

typedef struct Counter {
    Counts *counts;
} Counter;

static ds_status failed(const Counts *c)
{
    return c->silent ? DS_EIO : ds_fail(DS_EIO, "the wire is cut");
}

static ds_status counter_write(void *self, const char *tag, double value, int64_t step)
{
    Counts *c = ((Counter *)self)->counts;
    if (++c->writes == c->fail_write) return failed(c);
    c->value = value;
    c->step = step;
    snprintf(c->tag, sizeof c->tag, "%s", tag);
    return DS_OK;
}

static ds_status counter_flush(void *self)
{
    Counts *c = ((Counter *)self)->counts;
    return ++c->flushes == c->fail_flush ? failed(c) : DS_OK;
}

static void counter_free(void *self) { ((Counter *)self)->counts->frees++; }

static const ds_sink_type counter_type = {"counter", sizeof(Counter), counter_write, counter_flush,
                                          counter_free};

static void add_counter(ds_monitor *m, Counts *counts)
{
    Counter *c = ds_monitor_add(m, &counter_type);
    CHECK(c);
    c->counts = counts;
}

static void all_sinks_get_all(void **state)
{
    (void)state;
    Counts a = {0}, b = {0};
    ds_monitor *m = ds_monitor_new();
    CHECK_INT(ds_monitor_write(m, "x", 1, 1), DS_OK); /* no sink */
    add_counter(m, &a);
    add_counter(m, &b);
    for (int i = 0; i < 10; i++)
        CHECK_INT(ds_monitor_write(m, "Train/loss", i / 4.0, 16 * i), DS_OK);
    CHECK(a.writes == 10 && b.writes == 10);
    CHECK_CLOSE(b.value, 2.25, 0);
    CHECK_INT(b.step, 144);
    assert_string_equal(a.tag, "Train/loss");
    CHECK(a.flushes == 0 || a.flushes == b.flushes); /* more than a second may have passed */
    int before = a.flushes;
    CHECK_INT(ds_monitor_flush(m), DS_OK);
    CHECK(a.flushes == before + 1 && b.flushes == before + 1 && !a.frees);
    ds_monitor_free(m);
    CHECK(a.flushes == before + 2 && a.frees == 1 && b.frees == 1);
    CHECK(!ds_error());
}

static void a_second_is_the_longest_wait(void **state)
{
    (void)state;
    Counts a = {0};
    ds_monitor *m = ds_monitor_new();
    add_counter(m, &a);
    ds_monitor_write(m, "x", 1, 1);
    nanosleep(&(struct timespec){1, 50000000}, NULL);
    ds_monitor_write(m, "x", 2, 2);
    CHECK(a.flushes >= 1);
    ds_monitor_free(m);
}

static void a_sink_that_fails_is_closed(void **state)
{
    (void)state;
    Counts good = {0}, bad = {.fail_write = 3}, late = {.fail_flush = 1};
    ds_monitor *m = ds_monitor_new();
    add_counter(m, &bad);
    add_counter(m, &good);
    add_counter(m, &late);
    for (int i = 1; i <= 2; i++) CHECK_INT(ds_monitor_write(m, "x", i, i), DS_OK);
    CHECK_INT(ds_monitor_write(m, "x", 3, 3), DS_EIO);
    CHECK_ERROR("monitor: counter is closed: the wire is cut");
    CHECK(bad.frees == 1 && !good.frees && good.writes == 3 && late.writes == 3);
    CHECK_INT(ds_monitor_write(m, "x", 4, 4), DS_OK); /* told once */
    CHECK(bad.writes == 3 && good.writes == 4);
    CHECK_INT(ds_monitor_flush(m), DS_EIO);
    CHECK_ERROR("the wire is cut");
    CHECK_INT(ds_monitor_flush(m), DS_OK);
    CHECK(late.frees == 1 && good.flushes == 2);
    ds_monitor_free(m);
    CHECK(bad.frees == 1 && late.frees == 1 && good.frees == 1);
    CHECK(!ds_error());
}

static void all_that_fail_are_named(void **state)
{
    (void)state;
    Counts a = {.fail_write = 1, .silent = true}, b = {.fail_write = 1};
    ds_monitor *m = ds_monitor_new();
    add_counter(m, &a);
    add_counter(m, &b);
    ds_error_clear();
    CHECK_INT(ds_monitor_write(m, "x", 1, 1), DS_EIO);
    CHECK_ERROR("monitor: counter is closed: the wire is cut; counter is closed: it returned -3");
    CHECK_INT(ds_monitor_write(m, "x", 1, 1), DS_OK);
    ds_monitor_free(m);
    m = ds_monitor_new();
    a = (Counts){.fail_flush = 1, .silent = true};
    add_counter(m, &a);
    CHECK_INT(ds_monitor_flush(m), DS_EIO);
    CHECK_ERROR("counter is closed: it returned -3");
    ds_monitor_free(m);
}

static ds_status write_only(void *self, const char *tag, double value, int64_t step)
{
    (void)self, (void)tag, (void)value, (void)step;
    return DS_OK;
}

static void the_least_sink_is_a_function(void **state)
{
    (void)state;
    static const ds_sink_type type = {.name = "least", .write = write_only};
    ds_monitor *m = ds_monitor_new();
    CHECK(ds_monitor_add(m, &type));
    CHECK_INT(ds_monitor_write(m, "x", 1, 1), DS_OK);
    CHECK_INT(ds_monitor_flush(m), DS_OK);
    ds_monitor_free(m);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    static const ds_sink_type no_write = {.name = "x"}, no_name = {.write = write_only};
    ds_monitor *m = ds_monitor_new();
    CHECK(!ds_monitor_add(m, &no_write));
    CHECK_ERROR("monitor_add: a sink needs a name and a write function");
    CHECK(!ds_monitor_add(m, &no_name));
    CHECK_ERROR("monitor_add: a sink needs");
    CHECK(!ds_monitor_add(m, NULL) && !ds_monitor_add(NULL, &no_write));
    CHECK_ERROR("an operand is NULL");
    CHECK_INT(ds_monitor_write(NULL, "x", 1, 1), DS_EINVAL);
    CHECK_ERROR("monitor_write");
    CHECK_INT(ds_monitor_write(m, NULL, 1, 1), DS_EINVAL);
    CHECK_ERROR("monitor_write");
    CHECK_INT(ds_monitor_write(m, "", 1, 1), DS_EINVAL);
    CHECK_ERROR("the tag is empty");
    CHECK_INT(ds_monitor_flush(NULL), DS_EINVAL);
    CHECK_ERROR("monitor_flush");
    CHECK_INT(ds_monitor_csv(NULL, "", ""), DS_EINVAL);
    CHECK_ERROR("monitor_csv");
    CHECK_INT(ds_monitor_tensorboard(NULL, "", ""), DS_EINVAL);
    CHECK_ERROR("monitor_tensorboard");
    ds_monitor_free(m);
    ds_monitor_free(NULL);
}

static void tags_are_utf8(void **state)
{
    (void)state;
    static const char *const good[] = {
        "a",     "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf",
        "a b\tc"};
    static const char *const bad[] = {"\xff",
                                      "\x80",
                                      "\xc3",
                                      "\xc0\xaf",
                                      "\xe0\x80\xaf",
                                      "\xed\xa0\x80",
                                      "\xf0\x80\x80\xaf",
                                      "\xf4\x90\x80\x80",
                                      "\xe2\x82",
                                      "x\xf0\x9f\x98"};
    Counts a = {0};
    ds_monitor *m = ds_monitor_new();
    add_counter(m, &a);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK_INT(ds_monitor_write(m, good[i], 1, 1), DS_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_INT(ds_monitor_write(m, bad[i], 1, 1), DS_EINVAL);
        CHECK_ERROR("is not UTF-8");
    }
    CHECK_INT(a.writes, (int64_t)(sizeof good / sizeof *good)); /* and the sink is still there */
    ds_monitor_free(m);
}

TEST_MAIN(cmocka_unit_test(all_sinks_get_all), cmocka_unit_test(a_second_is_the_longest_wait),
          cmocka_unit_test(a_sink_that_fails_is_closed), cmocka_unit_test(all_that_fail_are_named),
          cmocka_unit_test(the_least_sink_is_a_function),
          cmocka_unit_test(bad_arguments_are_refused), cmocka_unit_test(tags_are_utf8))
