/* tests/base/text.c: growable strings; the nearest word.
 * SPDX-License-Identifier: MIT */
#include "base/text.h"
#include "check.h"

static void text_grows_and_keeps_bytes(void **state)
{
    (void)state;
    dsi_text t = {0};
    size_t n = 0;
    for (int i = 0; i < 1000; i++) {
        dsi_text_add(&t, "%d,", i);
        n += (size_t)snprintf(NULL, 0, "%d,", i);
        CHECK_INT((int64_t)t.n, (int64_t)n);
        CHECK_INT((int64_t)strlen(t.s), (int64_t)n);
    }
    CHECK(!strncmp(t.s, "0,1,2,", 6) && !strcmp(t.s + t.n - 8, "998,999,"));
    dsi_text_add_bytes(&t, "a\0b", 3);
    CHECK_INT((int64_t)t.n, (int64_t)n + 3);
    CHECK(t.s[n] == 'a' && !t.s[n + 1] && t.s[n + 2] == 'b' && !t.s[n + 3]);
    dsi_text_free(&t);
    CHECK(!t.s && !t.n);
    dsi_text_free(&t);
}

static void empty_text_ends_with_0(void **state)
{
    (void)state;
    dsi_text t = {0};
    dsi_text_add_bytes(&t, NULL, 0);
    assert_string_equal(t.s, "");
    dsi_text_add(&t, "%s", "");
    assert_string_equal(t.s, "");
    dsi_text_free(&t);
}

static void nearest_word_is_found(void **state)
{
    (void)state;
    static const char *const words[] = {
        "zero_optimization", "optimizer", "scheduler", "fp16", "bf16", "lr", "batch_size"};
    enum { N = sizeof words / sizeof *words };
    assert_string_equal(dsi_nearest("zero_optimisation", words, N), "zero_optimization");
    assert_string_equal(dsi_nearest("Optimiser", words, N), "optimizer");
    assert_string_equal(dsi_nearest("batch-size", words, N), "batch_size");
    assert_string_equal(dsi_nearest("bacth_size", words, N), "batch_size");
    assert_string_equal(dsi_nearest("fp61", words, N), "fp16");
    assert_string_equal(dsi_nearest("rl", words, N), "lr");
    CHECK(!dsi_nearest("gradient_clipping", words, N));
    CHECK(!dsi_nearest("qqqqqqqq", words, N));
    CHECK(!dsi_nearest("lr", words, 0));
    char lengthy[1000];
    memset(lengthy, 'x', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = 0;
    CHECK(!dsi_nearest(lengthy, words, N));
}

TEST_MAIN(cmocka_unit_test(text_grows_and_keeps_bytes), cmocka_unit_test(empty_text_ends_with_0),
          cmocka_unit_test(nearest_word_is_found))
