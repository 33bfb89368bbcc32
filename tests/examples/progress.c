/* tests/examples/progress.c: the programs' progress bar fits every width, and
 * leaves out parts that do not fit.
 * SPDX-License-Identifier: MIT */
#include "progress.h"

#include "check.h"

#include <string.h>

/* Columns of a line of UTF-8. */
static int columns(const char *line)
{
    int n = 0;
    for (; *line; line++) n += ((unsigned char)*line & 0xC0) != 0x80;
    return n;
}

static const Progress half = {
    .unit = "it", .title = "[ 003 / 30 ]", .total = 93750, .done = 46875, .loss = 1.2345};

static void fits(void **state)
{
    (void)state;
    char line[512];
    for (int utf8 = 0; utf8 < 2; utf8++)
        for (int width = 20; width < 200; width++) {
            progress_line(&half, 40, width, utf8, line, sizeof line);
            if (columns(line) > width) fail_msg("%d columns: %s", width, line);
        }
}

static void forms(void **state)
{
    (void)state;
    char line[512];
    progress_line(&half, 40, 80, false, line, sizeof line);
    assert_string_equal(line,
                        "[ 003 / 30 ]:  50%|#####      | 46875/93750 [00:40<00:40, 1172 it/s, "
                        "loss=1.234]");
    progress_line(&half, 40, 60, true, line, sizeof line);
    assert_string_equal(line, "[ 003 / 30 ]:  50%|███████       | [00:40<00:40, loss=1.234]");
    progress_line(&half, 40, 39, true, line, sizeof line);
    assert_string_equal(line, "[ 003 / 30 ]:  50% 00:40<00:40 1.234");
    progress_line(&half, 40, 20, true, line, sizeof line);
    assert_string_equal(line, "[ 003 / 30 ]:  50%");
}

/* At a constant speed, the time that is left falls and ends at 0. */
static void time_left(void **state)
{
    (void)state;
    Progress p = half;
    int last = 1 << 30, s, m;
    for (p.done = 1; p.done <= 10; p.done++) {
        char line[512];
        p.total = 10;
        progress_line(&p, 6.0 * (double)p.done, 100, false, line, sizeof line);
        assert_int_equal(sscanf(strchr(line, '<'), "<%d:%d", &m, &s), 2);
        assert_true(60 * m + s < last);
        last = 60 * m + s;
    }
    assert_int_equal(last, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fits), cmocka_unit_test(forms),
                                       cmocka_unit_test(time_left)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
