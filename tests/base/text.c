/* tests/base/text.c: growable strings; numbers as Python prints them; the
 * nearest word.
 * SPDX-License-Identifier: MIT */
#include "base/text.h"
#include "check.h"

#include <locale.h>

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

static void check_double(double x, const char *want)
{
    dsi_text t = {0};
    dsi_text_add_double(&t, x);
    assert_string_equal(t.s, want);
    dsi_text_free(&t);
}

/* The right column is what Python 3 prints. */
static void doubles_are_printed_as_python_does(void **state)
{
    (void)state;
    static const struct {
        double x;
        const char *repr;
    } rows[] = {
        {0.0, "0.0"},
        {-0.0, "-0.0"},
        {1, "1.0"},
        {-1.5, "-1.5"},
        {0.1, "0.1"},
        {0.1 + 0.2, "0.30000000000000004"},
        {1.0 / 3, "0.3333333333333333"},
        {0.001, "0.001"},
        {0.0001, "0.0001"},
        {0.00001, "1e-05"},
        {0.00012345, "0.00012345"},
        {1e-8, "1e-08"},
        {3e-7, "3e-07"},
        {1.25e-10, "1.25e-10"},
        {123456789, "123456789.0"},
        {1e15, "1000000000000000.0"},
        {9007199254740993.0, "9007199254740992.0"},
        {9999999999999998.0, "9999999999999998.0"},
        {1e16, "1e+16"},
        {1.5e16, "1.5e+16"},
        {1e22, "1e+22"},
        {1e23, "1e+23"},
        {1.2345678901234567e300, "1.2345678901234567e+300"},
        {1.7976931348623157e308, "1.7976931348623157e+308"},
        {2.2250738585072014e-308, "2.2250738585072014e-308"},
        {2.225073858507201e-308, "2.225073858507201e-308"},
        {5e-324, "5e-324"},
        {1e-323, "1e-323"},
        {0x1p-44, "5.684341886080802e-14"}, /* ...801 is nearer, and another double */
        {0x1p-24, "5.960464477539063e-08"},
        {0x1p89, "6.189700196426902e+26"},
        {0x1p-1074, "5e-324"},
        {0x1p-1022, "2.2250738585072014e-308"},
        {(double)0.1f, "0.10000000149011612"},
        {65536, "65536.0"},
        {4294967296, "4294967296.0"},
        {INFINITY, "inf"},
        {-INFINITY, "-inf"},
        {NAN, "nan"},
        {-NAN, "nan"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check_double(rows[i].x, rows[i].repr);
}

static void doubles_are_rounded_as_python_does(void **state)
{
    (void)state;
    static const struct {
        double x;
        int decimals;
        const char *printed;
    } rows[] = {{0, 2, "0.0"},       {0.004, 2, "0.0"},   {1.005, 2, "1.0"},   {2.675, 2, "2.67"},
                {0.125, 2, "0.12"},  {0.375, 2, "0.38"},  {1.1, 2, "1.1"},     {12.34, 1, "12.3"},
                {99.96, 1, "100.0"}, {-0.001, 2, "-0.0"}, {1e300, 2, "1e+300"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        dsi_text t = {0};
        dsi_text_add_rounded(&t, rows[i].x, rows[i].decimals);
        assert_string_equal(t.s, rows[i].printed);
        dsi_text_free(&t);
    }
}

/* Digits of a number as printed, without leading and trailing zeros. */
static int digits_of(const char *s)
{
    int n = 0, zeros = 0;
    for (; *s && *s != 'e'; s++) {
        if (*s < '0' || *s > '9') continue;
        zeros = *s == '0' ? zeros + (n > 0) : 0;
        n += n > 0 || *s != '0';
    }
    return n - zeros;
}

/* It reads back, and nothing shorter does. */
static void check_shortest(double x)
{
    dsi_text t = {0};
    char s[40];
    int n = 1;
    do snprintf(s, sizeof s, "%.*e", n - 1, x);
    while (n++ < 17 && strtod(s, NULL) != x);
    dsi_text_add_double(&t, x);
    CHECK_CLOSE(strtod(t.s, NULL), x, 0);
    if (digits_of(t.s) > digits_of(s)) fail_msg("%s is longer than %s", t.s, s);
    dsi_text_free(&t);
}

static void doubles_read_back(void **state)
{
    (void)state;
    uint64_t bits = 1;
    for (int i = 0; i < 20000; i++) {
        double x;
        bits = bits * 6364136223846793005u + 1442695040888963407u;
        memcpy(&x, &bits, sizeof x);
        if (!isnan(x)) check_shortest(x);
        check_shortest(ldexp((double)(bits >> 11), -i % 75)); /* of ordinary size */
        check_shortest((double)ldexpf((float)(bits >> 40), -i % 45));
    }
}

/* A program may have chosen a locale with a decimal comma; files are not
 * written in it. */
static void doubles_know_no_locale(void **state)
{
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "nl_NL.UTF-8"};
    bool found = false;
    for (size_t i = 0; i < sizeof names / sizeof *names && !found; i++)
        found = setlocale(LC_NUMERIC, names[i]) != NULL;
    if (!found) skip(); /* the machine has no such locale */
    check_double(0.001, "0.001");
    check_double(1.0 / 3, "0.3333333333333333");
    setlocale(LC_NUMERIC, "C");
}

static void nearest_word_is_found(void **state)
{
    (void)state;
    static const char *const words[] = {
        "zero_optimization", "optimizer", "scheduler", "fp16", "bf16", "lr", "batch_size", "aio"};
    enum { N = sizeof words / sizeof *words };
    assert_string_equal(dsi_nearest("zero_optimisation", words, N), "zero_optimization");
    assert_string_equal(dsi_nearest("Optimiser", words, N), "optimizer");
    assert_string_equal(dsi_nearest("batch-size", words, N), "batch_size");
    assert_string_equal(dsi_nearest("bacth_size", words, N), "batch_size");
    assert_string_equal(dsi_nearest("fp61", words, N), "fp16");
    assert_string_equal(dsi_nearest("rl", words, N), "lr");
    CHECK(!dsi_nearest("gradient_clipping", words, N));
    CHECK(!dsi_nearest("qqqqqqqq", words, N));
    assert_string_equal(dsi_nearest("aik", words, N), "aio");
    CHECK(!dsi_nearest("foo", words, N));
    CHECK(!dsi_nearest("lr", words, 0));
    char lengthy[1000];
    memset(lengthy, 'x', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = 0;
    CHECK(!dsi_nearest(lengthy, words, N));
}

static void parts_of_names_may_be_left_out(void **state)
{
    (void)state;
    static const char *const words[] = {"warmup_type", "warmup_num_steps", "warmup_max_lr",
                                        "reduce_bucket_size", "stage"};
    enum { N = sizeof words / sizeof *words };
    assert_string_equal(dsi_nearest("warmup_steps", words, N), "warmup_num_steps");
    assert_string_equal(dsi_nearest("max_lr", words, N), "warmup_max_lr");
    assert_string_equal(dsi_nearest("Bucket-Size", words, N), "reduce_bucket_size");
    assert_string_equal(dsi_nearest("zero_optimization_stage", words, N), "stage");
    assert_string_equal(dsi_nearest("warmup_typ", words, N), "warmup_type");
    CHECK(!dsi_nearest("steps_num", words, N)); /* another order */
    CHECK(!dsi_nearest("lr", words, N));        /* too little to go by */
    CHECK(!dsi_nearest("", words, N));
    CHECK(!dsi_nearest("__", words, N));
}

TEST_MAIN(cmocka_unit_test(text_grows_and_keeps_bytes), cmocka_unit_test(empty_text_ends_with_0),
          cmocka_unit_test(doubles_are_printed_as_python_does),
          cmocka_unit_test(doubles_are_rounded_as_python_does), cmocka_unit_test(doubles_read_back),
          cmocka_unit_test(doubles_know_no_locale), cmocka_unit_test(nearest_word_is_found),
          cmocka_unit_test(parts_of_names_may_be_left_out))
