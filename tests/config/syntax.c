/* tests/config/syntax.c: the syntax of a configuration, the places that errors
 * name, and the sources of the text.
 * SPDX-License-Identifier: MIT */
#include "config/syntax.h"
#include "base/mem.h"
#include "check.h"
#include "config/config.h"
#include "folder.h"

#include <sys/stat.h>
#include <unistd.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

static char *compact(const char *text, size_t n, dsi_text *error)
{
    dsi_syntax s;
    json_t *parsed = dsi_syntax_parse(&s, text, n, error);
    char *out = parsed ? json_dumps(parsed, JSON_COMPACT) : NULL;
    json_decref(parsed);
    dsi_syntax_free(&s);
    return out;
}

/* ---- what passes --------------------------------------------------------------------------------- */

static void hjson(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{\"a\": 1}", "{\"a\":1}"},
        {"\xEF\xBB\xBF{\"a\": 1}", "{\"a\":1}"},
        {"{a: 1,}", "{\"a\":1}"},
        {"{a: 1 # one\n b: 2 // two\n /* three */ c: 3}", "{\"a\":1,\"b\":2,\"c\":3}"},
        {"a: 1\nb: [1, 2,]\n", "{\"a\":1,\"b\":[1,2]}"},
        {"a:1\r\nb:2\rc:3", "{\"a\":1,\"b\":2,\"c\":3}"},
        {"{'a': 'it\\'s', \"b\": \"q'q\\\"\"}", "{\"a\":\"it's\",\"b\":\"q'q\\\"\"}"},
        {"{a: some text, with a comma\n}", "{\"a\":\"some text, with a comma\"}"},
        {"{a: true\n b: truely\n c: -1\n d: - 1\n}",
         "{\"a\":true,\"b\":\"truely\",\"c\":-1,\"d\":\"- 1\"}"},
        {"{a: 04\n b: 1.\n c: .5\n d: 0x10\n e: NaN\n}",
         "{\"a\":\"04\",\"b\":\"1.\",\"c\":\".5\",\"d\":\"0x10\",\"e\":\"NaN\"}"},
        {"{\"a\":\"x\" \"b\":[\"y\" \"z\"]}", "{\"a\":\"x\",\"b\":[\"y\",\"z\"]}"},
        {"{a: '''\n   one\n   two\n   '''\n}", "{\"a\":\"one\\ntwo\"}"},
        {"{\n  a:\n  '''\n  one\n   two\n  '''\n}", "{\"a\":\"one\\n two\"}"},
        {"{a: null, b: {}, c: [], d: \"\"}", "{\"a\":null,\"b\":{},\"c\":[],\"d\":\"\"}"},
        {"{\"\\u0041\": \"\\u00e9\"}", "{\"A\":\"\xC3\xA9\"}"},
        {"# nothing but a comment", "{}"},
        {"[1, 2]", "[1,2]"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        dsi_text error = {0};
        char *got = compact(cases[i][0], strlen(cases[i][0]), &error);
        if (!got) fail_msg("%s: %s", cases[i][0], error.s);
        assert_string_equal(got, cases[i][1]);
        free(got);
    }
}

/* ---- where errors point -------------------------------------------------------------------------- */

static void places(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{\"a\": 4", "line 1 column 8: the text ends before the closing '}'"},
        {"{\"a\": NaN}",
         "(the value at line 1 column 7 has no quotes: it ends at the end of its line)"},
        {"{\n  \"a\": [1,\n", "line 3 column 1: the text ends before the closing ']'"},
        {"{\"a\": 4} more", "line 1 column 10: something follows after the end"},
        {"{\"a\" 4}", "line 1 column 5: ':' is missing after the key"},
        {"{\n a b: 4}", "line 2 column 3: ':' is missing after the key"},
        {"{\n : 4}", "line 2 column 2: a key is missing before ':'"},
        {"{a: 1,, b: 2}", "line 1 column 7: found ',' where a key is expected"},
        {"{a: , b: 2}", "line 1 column 5: found ',' where a value is expected"},
        {"{a:", "line 1 column 4: a value is missing at the end of the text"},
        {"a\nb", "line 1 column 2: ':' is missing after the key"},
        {"{\"a\": \"x\n\"}", "line 1 column 7: a string without its closing \""},
        {"{\"a\": 'x}", "a string without its closing '"},
        {"{\"a\": \"x\ty\"}", "line 1 column 9: a control character (9) inside a string"},
        {"{a: '''x", "line 1 column 5: a string without its closing '''"},
        {"{a: 1 /* x}", "line 1 column 7: a comment that does not end"},
        {"{\"\xC3\xA9\": 1, \"b\" 2}",
         "line 1 column 13: ':' is missing"}, /* characters, not bytes */
        {"{\"a\": \"\\q\"}", "line 1 column 9: invalid escape"},
        {"{\"a\": \"\\ud800\"}", "line 1 column"},
        {"{\"a\": \"\\u0000\"}", "line 1 column 14: \\u0000 cannot be in a string"},
        {"{\n\"a\": \"\xFF\"}", "line 2 column 6: a byte that is not UTF-8"},
        {"{\"a\": 1e999}", "line 1 column 11: the number is too large"},
        {"{\"a\": {\"b\": 1,\n \"b\": 2}}",
         "line 2 column 2: the key \"a.b\" occurs here a second time"},
        {"{a: 1\n 'a': 2}", "line 2 column 2: the key \"a\" occurs here a second time"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        dsi_text error = {0};
        char *got = compact(cases[i][0], strlen(cases[i][0]), &error);
        if (got) fail_msg("%s passes as %s", cases[i][0], got);
        if (!strstr(error.s, cases[i][1]))
            fail_msg("%s: \"%s\", want \"%s\"", cases[i][0], error.s, cases[i][1]);
        dsi_text_free(&error);
    }
}

static void zero_bytes_and_depth(void **state)
{
    (void)state;
    dsi_text error = {0};
    CHECK(!compact("{\"a\":\n 1\0}", 10, &error));
    CHECK(strstr(error.s, "line 2 column 3: a byte that is 0"));
    dsi_text_free(&error);
    CHECK(!compact("\xFF\xFE{\0}\0", 6, &error));
    CHECK(strstr(error.s, "the text is UTF-16; expected UTF-8"));
    dsi_text_free(&error);

    char deep[2000];
    memset(deep, '[', sizeof deep);
    CHECK(!compact(deep, sizeof deep, &error));
    CHECK(strstr(error.s, "column 65: nested deeper than 64 levels"));
    dsi_text_free(&error);
}

static void lines_of_keys(void **state)
{
    (void)state;
    const char *text = "{\n fp16: {enabled: 1},\n\n a: {\n b: [{enabled: 2}] } }";
    dsi_syntax s;
    dsi_text error = {0};
    json_t *parsed = dsi_syntax_parse(&s, text, strlen(text), &error);
    CHECK(parsed != NULL);
    CHECK_INT(dsi_syntax_line(&s, "fp16.enabled"), 2);
    CHECK_INT(dsi_syntax_line(&s, "a"), 4);
    CHECK_INT(dsi_syntax_line(&s, "a.b"), 5);
    CHECK_INT(dsi_syntax_line(&s, "b"), 0);
    json_decref(parsed);
    dsi_syntax_free(&s);
}

/* ---- where the text comes from ------------------------------------------------------------------- */

static const char *file_of(const char *name, const char *text)
{
    const char *path = folder_path(name);
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
    return path;
}

static void check_read(const char *config, int64_t train)
{
    dsi_config *c = dsi_config_read(config, 1);
    CHECK(c != NULL);
    CHECK_INT(c->train_batch_size, train);
    dsi_config_free(c);
}

static void check_refused(const char *config, const char *part)
{
    CHECK(!dsi_config_read(config, 1));
    CHECK_ERROR(part);
}

static void sources(void **state)
{
    (void)state;
    folder_make();
    check_read(file_of("a.json", "{\"train_batch_size\": 5}"), 5);
    check_read(file_of("b.hjson", "train_batch_size: 6"), 6);
    check_read("  {\"train_batch_size\": 7}", 7);
    check_read("train_batch_size: 8\n", 8);
    check_read("eyJ0cmFpbl9iYXRjaF9zaXplIjogOX0=", 9);          /* {"train_batch_size": 9} */
    check_read("eyJ0cmFpbl9iYXRjaF9zaXplIjogMTAsIH0jPz8_", 10); /* ... 10, }#??? with a '_' */

    check_refused(file_of("c.json", "{\"train_batch_size\": }"),
                  "c.json: line 1 column 22: found '}'");
    CHECK(!dsi_config_read(folder_path("c.json"), 1) && ds_error_status() == DS_EFORMAT);
    ds_error_clear();
    check_refused(file_of("d.json", ""), "d.json is empty");
    check_refused(file_of("e.json", "[1, 2]"), "expected an object { ... } of keys, found a list");
    check_refused(file_of("f.json", "null\n"), "expected an object { ... } of keys, found null");
    check_refused(file_of("g.json", "'abc'"), "{ ... } of keys, found the string \"abc\"");
    check_refused(folder_path("no.json"), "No such file or directory; expected the path of a file");
    check_refused(folder_path(""), "is a directory");
    check_refused("/dev/zero", "neither a file nor a pipe");
    check_refused("", "the path of the file is empty");
    check_refused("dsconfig", "No such file"); /* which is base64 of nothing sensible */
    check_refused("eyJ0cmFpbl9iYXRjaF9zaXplIjogOX0", "No such file"); /* cut */
    check_refused(NULL, "neither a file nor a text");
    if (geteuid()) { /* root reads everything */
        CHECK(chmod(folder_path("a.json"), 0) == 0);
        check_refused(folder_path("a.json"), "Permission denied");
    }
    folder_remove();
}

TEST_MAIN(cmocka_unit_test(hjson), cmocka_unit_test(places), cmocka_unit_test(zero_bytes_and_depth),
          cmocka_unit_test(lines_of_keys), cmocka_unit_test(sources))
