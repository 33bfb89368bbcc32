/* tests/base/error.c: the thread's first failure, the latest, and how many.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "check.h"

#include <pthread.h>

static void the_first_stays_until_cleared(void **state)
{
    (void)state;
    CHECK(!ds_error() && !dsi_error_latest());
    CHECK_INT(dsi_fail(DS_EIO, "file %s: gone", "x"), DS_EIO);
    CHECK(!dsi_null_operand("op")); /* a consequence, which is not counted */
    CHECK_INT(dsi_null_argument("op"), DS_EIO);
    CHECK(!strcmp(ds_error(), "file x: gone"));
    CHECK(!dsi_refuse("fresh %d", 2));
    CHECK(!strcmp(ds_error(), "file x: gone (and 1 more failure)"));
    CHECK(!strcmp(dsi_error_latest(), "fresh 2"));
    CHECK_INT(ds_fail(DS_ECOMM, "fresh 2"), DS_ECOMM); /* the same text again is another failure */
    CHECK(!strcmp(ds_error(), "file x: gone (and 2 more failures)"));
    CHECK_INT(ds_error_status(), DS_EIO);
    ds_error_clear();
    CHECK(!ds_error() && !dsi_error_latest());
    CHECK_INT(ds_error_status(), DS_OK);
    CHECK(!dsi_null_operand("relu"));
    CHECK_ERROR("relu: an operand is NULL");
    CHECK_INT(dsi_null_argument("relu"), DS_EINVAL);
    CHECK_INT(ds_fail(DS_OK, "no status"), DS_ESTATE);
    ds_error_clear();
}

/* A failure that quotes another one counts as the same. */
static void a_quote_adds_context(void **state)
{
    (void)state;
    dsi_fail(DS_EIO, "a.json: gone");
    dsi_fail(DS_EFORMAT, "config: %s", dsi_error_latest());
    CHECK(!strcmp(ds_error(), "config: a.json: gone"));
    CHECK_INT(ds_error_status(), DS_EFORMAT);
    dsi_fail(DS_EIO, "b.json: gone");
    CHECK_INT(dsi_fail_in("load", DS_EIO), DS_EIO);
    CHECK_INT(dsi_fail_in("load", DS_EIO), DS_EIO); /* is there */
    CHECK(!strcmp(dsi_error_latest(), "load: b.json: gone"));
    CHECK(!strcmp(ds_error(), "config: a.json: gone (and 1 more failure)"));
    ds_fail(DS_EIO, "mine: %s", ds_error()); /* as a user may write */
    CHECK(!strcmp(ds_error(), "mine: config: a.json: gone (and 1 more failure)"));
    ds_error_clear();

    char path[301] = {0}; /* a quote may be cut */
    memset(path, 'x', 300);
    dsi_fail(DS_EIO, "%s: gone", path);
    dsi_fail(DS_EIO, "load: %.250s", ds_error());
    CHECK(!strncmp(ds_error(), "load: xxx", 9) && !strstr(ds_error(), "more"));
    ds_error_clear();
}

static void what_has_another_way_is_forgotten(void **state)
{
    (void)state;
    int before = dsi_error_count();
    dsi_fail(DS_EIO, "no ring");
    dsi_error_forget(before);
    CHECK(!ds_error());
    dsi_fail(DS_EIO, "first");
    before = dsi_error_count();
    dsi_fail(DS_EIO, "one way");
    dsi_fail(DS_EIO, "another way");
    dsi_error_forget(before);
    CHECK(!strcmp(ds_error(), "first") && !strcmp(dsi_error_latest(), "first"));
    dsi_error_forget(before);
    CHECK_ERROR("first");
}

static void long_texts_are_cut(void **state)
{
    (void)state;
    dsi_fail(DS_EIO, "%2000d", 7);
    CHECK_INT((int64_t)strlen(ds_error()), 1023);
    ds_error_clear();
}

static void bytes_of_files_are_printable(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"a\33[31m\nb\tc\177", "a?[31m?b c?"},
        {"caf\303\251 \344\270\255 \360\237\230\200", "caf\303\251 \344\270\255 \360\237\230\200"},
        {"\303", "?"},
        {"\233m \302\233m \302\240", "?m ??m \302\240"}, /* U+009B begins a sequence, too */
        {"\344\270x \360\237\230", "??x ???"},
        {"\300\257 \355\240\200 \377", "?? ??? ?"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dsi_fail(DS_EIO, "%s", cases[i][0]);
        assert_string_equal(ds_error(), cases[i][1]);
        ds_error_clear();
    }
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
    ds_error_clear();
    dsi_refuse("linear: no");
    CHECK(!strcmp(ds_error(), "linear: no"));
    ds_error_clear();
}

TEST_MAIN(cmocka_unit_test(the_first_stays_until_cleared), cmocka_unit_test(a_quote_adds_context),
          cmocka_unit_test(what_has_another_way_is_forgotten),
          cmocka_unit_test(bytes_of_files_are_printable), cmocka_unit_test(long_texts_are_cut),
          cmocka_unit_test(belongs_to_a_thread), cmocka_unit_test(begins_with_the_path))
