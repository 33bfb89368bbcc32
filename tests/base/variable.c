/* tests/base/variable.c: what environment variables say, and what is said of
 * what they cannot.
 * SPDX-License-Identifier: MIT */
#include "base/env.h"

#include "caught.h"
#include "check.h"

static const dsi_env number = {"DS_X", "a number, from -1 to 4", .least = -1, .most = 4},
                     whole = {"DS_X", "a whole number, from 0", .most = 1e15, .whole = true};

static double read_as(const dsi_env *v, const char *text)
{
    double x = 77;
    text ? setenv(v->name, text, 1) : unsetenv(v->name);
    return dsi_env_number(v, &x) == DS_OK ? x : -77;
}

static void numbers(void **state)
{
    (void)state;
    CHECK_CLOSE(read_as(&number, "2.5"), 2.5, 0);
    CHECK_CLOSE(read_as(&number, "-1"), -1, 0);
    CHECK_CLOSE(read_as(&whole, "1e3"), 1000, 0);
    CHECK_CLOSE(read_as(&number, ""), 77, 0);
    CHECK_CLOSE(read_as(&number, NULL), 77, 0);
    static const char *const wrong[] = {"soon", "4.01", "2 s", "nan", "inf", "-1.5"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char message[80];
        snprintf(message, sizeof message, "DS_X=%s: expected a number, from -1 to 4", wrong[i]);
        CHECK_CLOSE(read_as(&number, wrong[i]), -77, 0);
        CHECK_ERROR(message);
    }
    CHECK_CLOSE(read_as(&whole, "1.5"), -77, 0);
    CHECK_ERROR("DS_X=1.5: expected a whole number, from 0");
}

static const char *const ways[] = {"one", "other", "third", NULL};

static void words(void **state)
{
    (void)state;
    int which = 7;
    setenv("DS_X", "third", 1);
    CHECK_INT(dsi_env_word("DS_X", ways, &which), DS_OK);
    CHECK_INT(which, 2);
    setenv("DS_X", "Third", 1);
    CHECK_INT(dsi_env_word("DS_X", ways, &which), DS_EINVAL);
    CHECK_ERROR("DS_X=Third: expected one, other or third");
    CHECK_INT(which, 2);
}

static void warn(void)
{
    setenv("DS_X", "soon", 1);
    CHECK_CLOSE(dsi_env_number_or(&number, 3), 3, 0);
    CHECK_CLOSE(dsi_env_number_or(&number, 3), 3, 0);
    setenv("DS_Y", "both", 1);
    CHECK_INT(dsi_env_word_or("DS_Y", ways, 1, "other is used"), 1);
    CHECK(!ds_error());
}

static void warnings(void **state)
{
    (void)state;
    const char *s = caught_of(NULL, warn);
    CHECK(strstr(s, "DS_X=soon: expected a number, from -1 to 4; 3 is used\n"));
    CHECK(strstr(s, "DS_Y=both: expected one, other or third; other is used\n"));
    CHECK(!*text_of_line(s, 2)); /* each once */
}

TEST_MAIN(cmocka_unit_test(numbers), cmocka_unit_test(words), cmocka_unit_test(warnings))
