/* tests/base/log.c: form and levels of lines, ranks as threads; stdout is
 * caught in a file.
 * SPDX-License-Identifier: MIT */
#include "base/log.h"
#include "base/clock.h"
#include "caught.h"
#include "check.h"

#include <pthread.h>

static int lines(const char *s)
{
    int n = 0;
    for (; *s; s++) n += *s == '\n';
    return n;
}

/* ---- the form ------------------------------------------------------------------------------------ */

static int line_of_it;

static void say_one(void)
{
    line_of_it = __LINE__ + 1;
    dsi_log(DSI_WARNING, "scale is %d, not %s", 7, "eight");
}

static void form_is_deepspeeds(void **state)
{
    (void)state;
    const char *s = caught_of(NULL, say_one);
    char want[200];
    snprintf(want, sizeof want, " [WARNING] [log.c:%d:say_one] [Rank 0] scale is 7, not eight\n",
             line_of_it);
    CHECK(is_like(s, "[0000-00-00 00:00:00,000]"));
    assert_string_equal(s + strlen("[2026-11-21 12:05:41,123]"), want);
}

static void say_after_printf(void)
{
    printf("first ");
    dsi_log(DSI_ERROR, "second");
    printf("third\n");
}

static void order_is_the_programs(void **state)
{
    (void)state;
    const char *s = caught_of(NULL, say_after_printf);
    const char *first = strstr(s, "first "), *second = strstr(s, "second\n");
    CHECK(first == s && second && strstr(s, "third\n") > second);
}

static void say_long(void)
{
    char text[5000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    dsi_log(DSI_WARNING, "%s", text);
}

static void long_lines_are_whole(void **state)
{
    (void)state;
    const char *s = caught_of(NULL, say_long);
    CHECK(strspn(strchr(s, 'x'), "x") == 4999 && lines(s) == 1);
}

/* ---- levels -------------------------------------------------------------------------------------- */

static void say_all(void)
{
    dsi_log(DSI_DEBUG, "a debug line");
    dsi_log(DSI_INFO, "an info line");
    dsi_log(DSI_WARNING, "a warning line");
    dsi_log(DSI_ERROR, "an error line");
    dsi_log(DSI_REQUESTED, "an asked line");
}

static void say_all_as_rank_3(void)
{
    dsi_log_set_rank(3);
    say_all();
}

static void check_all(const char *level, void (*fn)(void), const char *want)
{
    const char *s = caught_of(level, fn);
    static const char *const texts[] = {"[DEBUG]", "[INFO]", "[WARNING]", "[ERROR]"};
    static const char *const what[] = {"a debug", "an info", "a warning", "an error", "an asked"};
    char got[6] = "";
    for (int i = 0, n = 0; i < 5; i++)
        if (strstr(s, what[i])) got[n++] = "diwea"[i];
    assert_string_equal(got, want);
    CHECK_INT(lines(s), (int64_t)strlen(want));
    for (int i = 0; i < 4; i++)
        if (strchr(want, "diwe"[i])) CHECK(strstr(s, texts[i]));
    if (strchr(want, 'a')) CHECK(strstr(s, "[INFO]"));
}

static void levels_choose_lines(void **state)
{
    (void)state;
    check_all(NULL, say_all, "wea");
    check_all("", say_all, "wea");
    check_all("debug", say_all, "diwea");
    check_all("info", say_all, "iwea");
    check_all("warning", say_all, "wea");
    check_all("error", say_all, "ea");
}

static void other_ranks_only_warn(void **state)
{
    (void)state;
    check_all(NULL, say_all_as_rank_3, "we");
    check_all("debug", say_all_as_rank_3, "we");
    check_all("error", say_all_as_rank_3, "e");
    CHECK(strstr(caught_of("error", say_all_as_rank_3), "[Rank 3] an error line"));
}

static void an_unknown_level_is_named(void **state)
{
    (void)state;
    const char *s = caught_of("verbose", say_all);
    CHECK(strstr(s, "DS_LOG=verbose: expected debug, info, warning or error; warning is used"));
    CHECK_INT(lines(s), 4);
    CHECK(!strstr(s, "an info"));
}

static void say_if_on(void)
{
    printf("%d%d%d%d%d", dsi_log_on(DSI_DEBUG), dsi_log_on(DSI_INFO), dsi_log_on(DSI_WARNING),
           dsi_log_on(DSI_ERROR), dsi_log_on(DSI_REQUESTED));
}

static void levels_can_be_asked_for(void **state)
{
    (void)state;
    assert_string_equal(caught_of(NULL, say_if_on), "00111");
    assert_string_equal(caught_of("info", say_if_on), "01111");
    assert_string_equal(caught_of("error", say_if_on), "00011");
}

static void say_thrice(void)
{
    for (int i = 0; i < 3; i++) {
        dsi_log_once(DSI_WARNING, "one");
        dsi_log_once(DSI_WARNING, "two");
    }
}

static void once_is_once_a_thread(void **state)
{
    (void)state;
    CHECK_INT(lines(caught_of(NULL, say_thrice)), 2);
    CHECK_INT(lines(caught_of(NULL, say_thrice)), 2);
}

/* ---- threads ------------------------------------------------------------------------------------- */

enum { RANKS = 6, LINES = 200 };

static void *say_as_rank(void *arg)
{
    int rank = *(int *)arg;
    char text[300];
    memset(text, 'a' + rank, sizeof text - 1);
    text[sizeof text - 1] = 0;
    dsi_log_set_rank(rank);
    for (int i = 0; i < LINES; i++) dsi_log(DSI_WARNING, "%s.", text);
    return NULL;
}

static void say_as_ranks(void)
{
    pthread_t t[RANKS];
    int rank[RANKS];
    for (int i = 0; i < RANKS; i++) rank[i] = i, pthread_create(&t[i], NULL, say_as_rank, &rank[i]);
    for (int i = 0; i < RANKS; i++) pthread_join(t[i], NULL);
}

static void lines_of_ranks_do_not_mix(void **state)
{
    (void)state;
    const char *s = caught_of(NULL, say_as_ranks);
    CHECK_INT(lines(s), RANKS * LINES);
    for (int n = 0; *s; n++, s = strchr(s, '\n') + 1) {
        char want[2] = "";
        const char *rank = strstr(s, "[Rank ");
        CHECK(rank && is_like(s, "[0000-00-00 00:00:00,000] [WARNING] [log.c:"));
        want[0] = (char)('a' + rank[6] - '0');
        CHECK_INT((int64_t)strspn(rank + 9, want), 299);
        CHECK(!strncmp(rank + 9 + 299, ".\n", 2));
    }
}

static void clocks_go_forward(void **state)
{
    (void)state;
    double a = dsi_now(), w = dsi_wall_time(), t = dsi_thread_time(), began = a;
    for (int i = 0; i < 1000; i++) {
        double b = dsi_now();
        CHECK(b >= a);
        a = b;
    }
    t = dsi_thread_time() - t; /* no more than passed, except for the clock's resolution */
    CHECK(t >= 0 && t <= a - began + 0.02);
    CHECK(w > 1.7e9 && dsi_wall_time() >= w);
}

TEST_MAIN(cmocka_unit_test(form_is_deepspeeds), cmocka_unit_test(order_is_the_programs),
          cmocka_unit_test(long_lines_are_whole), cmocka_unit_test(levels_choose_lines),
          cmocka_unit_test(other_ranks_only_warn), cmocka_unit_test(an_unknown_level_is_named),
          cmocka_unit_test(levels_can_be_asked_for), cmocka_unit_test(once_is_once_a_thread),
          cmocka_unit_test(lines_of_ranks_do_not_mix), cmocka_unit_test(clocks_go_forward))
