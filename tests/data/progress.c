/* tests/data/progress.c: the line looks like tqdm's.
 * SPDX-License-Identifier: MIT */
#include "data/progress.h"
#include "check.h"

static const char *line(int width, int64_t done, int64_t total, double seconds, int64_t since)
{
    static char text[1024];
    dsi_progress_line(text, sizeof text, width, done, total, seconds, since);
    return text;
}

static void the_line_is_tqdms(void **state)
{
    (void)state;
    assert_string_equal(line(51, 76725000, 170500000, 5, 76725000),
                        " 45%|████▌     | 76.7M/170M [00:05<00:06, 15.3MB/s]");
    assert_string_equal(line(50, 170500000, 170500000, 11, 170500000),
                        "100%|██████████| 170M/170M [00:11<00:00, 15.5MB/s]");
    assert_string_equal(line(30, 0, 1000, 0, 0), "  0%|| 0/1.00k [00:00<?, ?B/s]");
}

/* Of a resumed download only the new bytes count for the rate. */
static void the_rate_is_that_of_this_run(void **state)
{
    (void)state;
    CHECK(strstr(line(60, 900, 1000, 10, 100), "[00:10<00:10, 10B/s]") != NULL);
}

static void an_unknown_end_has_no_bar(void **state)
{
    (void)state;
    assert_string_equal(line(60, 12345, 0, 3723, 12345), "12.3kB [1:02:03, 3B/s]");
}

static void a_terminal_of_no_width_is_survived(void **state)
{
    (void)state;
    for (int width = 0; width < 200; width += 7)
        CHECK(strstr(line(width, 5, 10, 1, 5), "50%|") != NULL);
    char small[8];
    dsi_progress_line(small, sizeof small, 80, 5, 10, 1, 5);
    CHECK(strlen(small) < sizeof small);
}

TEST_MAIN(cmocka_unit_test(the_line_is_tqdms), cmocka_unit_test(the_rate_is_that_of_this_run),
          cmocka_unit_test(an_unknown_end_has_no_bar),
          cmocka_unit_test(a_terminal_of_no_width_is_survived))
