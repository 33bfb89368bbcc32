/* tests/launcher/argv.c: words as a shell splits and quotes them, and as JSON.
 * SPDX-License-Identifier: MIT */
#include "check.h"

#include "argv.h"

#include "base/mem.h"

#include <jansson.h>

static const char *const nasty[] = {
    "",      " ",         "a b",   "it's",  "\"q\"",     "$HOME `id`", "a;b|c&d<e>f",
    "*?[x]", "line\nend", "\\",    "a\\'b", "-n",        "--x=y z",    "%s%n",
    "~",     "#",         "{a,b}", "tab\t", "h\xc3\xa9", "!!",         "a=b"};
enum { NASTY = sizeof nasty / sizeof *nasty };

static void check_split(const char *text, int n, const char *const *want)
{
    argv_list w = {0};
    CHECK_INT(argv_split(&w, "--launcher_args", text), DS_OK);
    CHECK_INT(w.n, n);
    for (int i = 0; i < n; i++)
        if (strcmp(w.at[i], want[i]) != 0) fail_msg("%s: word %d is %s", text, i, w.at[i]);
    argv_list_free(&w);
}

static void split(void **state)
{
    (void)state;
    check_split("", 0, NULL);
    check_split("  \t\n ", 0, NULL);
    check_split(" --mca  btl tcp\t", 3, (const char *const[]){"--mca", "btl", "tcp"});
    check_split("a 'b c' \"d 'e' $f\" g\\ h", 4,
                (const char *const[]){"a", "b c", "d 'e' $f", "g h"});
    check_split("'' \"\" x''y", 3, (const char *const[]){"", "", "xy"});
    check_split("'\\' \"\\\\ \\\" \\n\"", 2, (const char *const[]){"\\", "\\ \" \\n"});
    check_split("$(id) `id` *", 3, (const char *const[]){"$(id)", "`id`", "*"});

    argv_list w = {0};
    CHECK_INT(argv_split(&w, "--launcher_args", "a 'b"), DS_EINVAL);
    CHECK_ERROR("--launcher_args: a quote");
    CHECK_INT(argv_split(&w, "--launcher_args", "a\\"), DS_EINVAL);
    CHECK_ERROR("backslash at the end");
    argv_list_free(&w);
}

/* Words that are quoted and split again are the same, here and in the system's
 * shell. */
static void quoting(void **state)
{
    (void)state;
    dsi_text line = {0}, command = {0};
    for (int i = 0; i < NASTY; i++) {
        if (i) dsi_text_add(&line, " ");
        text_add_shell(&line, nasty[i]);
    }
    check_split(line.s, NASTY, nasty);
    dsi_text_add(&command, "printf '%%s\\001' %s", line.s);
    FILE *shell = popen(command.s, "r");
    CHECK(shell != NULL);
    char said[1000] = "", *s = said;
    size_t n = fread(said, 1, sizeof said - 1, shell);
    CHECK_INT(pclose(shell), 0);
    for (int i = 0; i < NASTY; i++) {
        size_t length = strcspn(s, "\001");
        if (strlen(nasty[i]) != length || memcmp(s, nasty[i], length) != 0)
            fail_msg("the shell makes %.*s of %s", (int)length, s, nasty[i]);
        s += length + 1;
    }
    CHECK(s == said + n);
    dsi_text_free(&line);
    dsi_text_free(&command);
}

static void bare(void **state)
{
    (void)state;
    dsi_text t = {0};
    text_add_shell(&t, "--mca");
    text_add_shell(&t, "/a/b.c,d=e:f@g%h+");
    CHECK(!strcmp(t.s, "--mca/a/b.c,d=e:f@g%h+"));
    dsi_text_free(&t);
}

static void json(void **state)
{
    (void)state;
    for (int i = 0; i < NASTY; i++) {
        dsi_text t = {0};
        text_add_json(&t, nasty[i]);
        json_t *back = json_loads(t.s, JSON_DECODE_ANY, NULL);
        if (!back || strcmp(json_string_value(back), nasty[i]) != 0)
            fail_msg("%s: %s", nasty[i], t.s);
        for (size_t k = 0; k < t.n; k++) CHECK(t.s[k] >= ' ' && t.s[k] < 127);
        json_decref(back);
        dsi_text_free(&t);
    }
    static const char *const cases[][2] = {
        {"h\xc3\xa9te", "\"h\\u00e9te\""},
        {"\xf0\x9f\x98\x80", "\"\\ud83d\\ude00\""},
        {"\x7f\x01", "\"\\u007f\\u0001\""},
        {"\xff", "\"\\udcff\""}, /* not UTF-8: as Python's surrogateescape */
        {"\xc3", "\"\\udcc3\""},
        {"\xe2\x82", "\"\\udce2\\udc82\""},
        {"\xed\xa0\x80", "\"\\udced\\udca0\\udc80\""},
        {"\xc0\xaf", "\"\\udcc0\\udcaf\""},
        {"\xf5\x80\x80\x80", "\"\\udcf5\\udc80\\udc80\\udc80\""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dsi_text t = {0};
        text_add_json(&t, cases[i][0]);
        if (strcmp(t.s, cases[i][1]) != 0) fail_msg("%s, want %s", t.s, cases[i][1]);
        dsi_text_free(&t);
    }
}

static void vectors(void **state)
{
    (void)state;
    argv_list w = {0};
    char **argv = argv_detach(&w);
    CHECK(argv && !*argv);
    w = argv_attach(argv);
    argv_add(&w, "%d", 7);
    argv_add_all(&w, (char *const[]){(char *)"a", (char *)"", NULL});
    argv = argv_detach(&w);
    w = argv_attach(argv);
    CHECK_INT(w.n, 3);
    argv_add(&w, "%s", "last");
    CHECK(!strcmp(w.at[0], "7") && !strcmp(w.at[2], "") && !strcmp(w.at[3], "last") && !w.at[4]);
    argv_list_free(&w);
    argv_free(NULL);
}

TEST_MAIN(cmocka_unit_test(split), cmocka_unit_test(quoting), cmocka_unit_test(bare),
          cmocka_unit_test(json), cmocka_unit_test(vectors))
