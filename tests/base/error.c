/* tests/base/error.c: the thread's last failure.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "check.h"

#include <pthread.h>

static void stays_until_cleared(void **state)
{
    (void)state;
    CHECK(!ds_error());
    CHECK_INT(dsi_fail(DS_EIO, "file %s: gone", "x"), DS_EIO);
    CHECK(!dsi_null_operand("op")); /* keeps what there is */
    CHECK(!strcmp(ds_error(), "file x: gone"));
    CHECK_INT(ds_error_status(), DS_EIO);
    CHECK(!dsi_refuse("fresh %d", 2));
    CHECK(!strcmp(ds_error(), "fresh 2"));
    ds_error_clear();
    CHECK(!ds_error());
    CHECK(!dsi_null_operand("relu"));
    CHECK_ERROR("relu: an operand is NULL");
}

static void may_quote_itself(void **state)
{
    (void)state;
    dsi_fail(DS_EIO, "first");
    dsi_fail(DS_EIO, "second after %s", ds_error());
    CHECK_ERROR("second after first");
}

static void long_texts_are_cut(void **state)
{
    (void)state;
    dsi_fail(DS_EIO, "%2000d", 7);
    CHECK_INT((int64_t)strlen(ds_error()), 1023);
    ds_error_clear();
}

static void *other_thread(void *arg)
{
    dsi_fail(DS_EIO, "mine");
    return arg;
}

static void belongs_to_a_thread(void **state)
{
    (void)state;
    pthread_t t;
    pthread_create(&t, NULL, other_thread, NULL);
    pthread_join(t, NULL);
    CHECK(!ds_error());
}

static void write_net(const void *what, char *text, size_t room)
{
    snprintf(text, room, "%s", (const char *)what);
}

static void begins_with_the_path(void **state)
{
    (void)state;
    dsi_error_context here = {write_net, "net.fc1"};
    const dsi_error_context *was = dsi_error_context_enter(&here);
    dsi_refuse("linear: no");
    CHECK(!strcmp(ds_error(), "net.fc1: linear: no"));
    dsi_error_context_leave(was);
    dsi_refuse("linear: no");
    CHECK(!strcmp(ds_error(), "linear: no"));
    ds_error_clear();
}

TEST_MAIN(cmocka_unit_test(stays_until_cleared), cmocka_unit_test(may_quote_itself),
          cmocka_unit_test(long_texts_are_cut), cmocka_unit_test(belongs_to_a_thread),
          cmocka_unit_test(begins_with_the_path))
