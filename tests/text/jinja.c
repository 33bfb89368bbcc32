/* tests/text/jinja.c: templates: texts of jinja2 (tests/golden/lm/jinja.json,
 * by tests/reference/make_jinja.py), what is refused, and limits.
 * SPDX-License-Identifier: MIT */
#include "text/jinja/jinja.h"
#include "base/text.h"
#include "check.h"

static json_t *golden_read(void)
{
    json_t *j = json_load_file(DS_GOLDEN "/lm/jinja.json", JSON_ALLOW_NUL, NULL);
    CHECK(j);
    return j;
}

/* NULL after a failure. */
static char *render(const char *template, size_t n, const json_t *variables, dsi_jinja_spans *spans)
{
    dsi_text out = {0};
    dsi_jinja *t = dsi_jinja_parse(template, n, "chat");
    ds_status status = t ? dsi_jinja_render(t, variables, &out, spans) : DS_EINVAL;
    dsi_jinja_free(t);
    dsi_text_add_bytes(&out, "", 0);
    if (status == DS_OK) return out.s;
    dsi_text_free(&out);
    return NULL;
}

static void check_case(const json_t *c, const json_t *variables)
{
    const json_t *template = json_object_get(c, "template"), *want = json_object_get(c, "text");
    dsi_jinja_spans spans = {0};
    char *text = render(json_string_value(template), json_string_length(template), variables,
                        &spans);
    if (!text) {
        fail_msg("%s: %s", json_string_value(template), ds_error());
        return;
    }
    if (strcmp(text, json_string_value(want)) != 0)
        fail_msg("%s: got \"%s\", want \"%s\"", json_string_value(template), text,
                 json_string_value(want));
    const json_t *wanted = json_object_get(c, "spans");
    CHECK_INT(spans.n, json_array_size(wanted));
    for (int i = 0; i < spans.n; i++) {
        const json_t *span = json_array_get(wanted, (size_t)i);
        CHECK_INT(spans.at[i].begin, json_integer_value(json_array_get(span, 0)));
        CHECK_INT(spans.at[i].end, json_integer_value(json_array_get(span, 1)));
    }
    dsi_list_free(&spans);
    free(text);
}

static void texts_are_those_of_jinja2(void **state)
{
    (void)state;
    json_t *golden = golden_read(), *c;
    size_t i;
    json_array_foreach(json_object_get(golden, "cases"), i, c)
        check_case(c, json_object_get(golden, "variables"));
    json_decref(golden);
}

/* Texts of jinja2 3.1. */
static void strings_are_formatted(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{{ '%s and %r' % ('a', 'b') }}", "a and 'b'"},
        {"{{ '%s' % 'x' }}{{ '%s' % [1, 'y'] }}{{ '%s%%' % 5 }}", "x[1, 'y']5%"},
        {"{{ '%05.1f|%+d|%-4d|% d|%3s|%.2s' % (-2.25, 7, 3, 5, 'ab', 'xyz') }}",
         "-02.2|+7|3   | 5| ab|xy"},
        {"{{ '%x %X %o %.3d %5.1e %g' % (-255, 255, 8, 5, 12345, 0.0001) }}",
         "-ff FF 10 005 1.2e+04 0.0001"},
        {"{{ '%(n)s is %(v)03d' % {'n': 'x', 'v': 4} }}", "x is 004"},
        {"{{ '%s: %d' | format('a', 3.9) }}{{ '%(k)s' | format(k=1) }}", "a: 31"},
        {"{{ 'none' % {} }}{{ 'none' % () }}{{ '%s' % (none,) }}{{ '%d' % true }}",
         "nonenoneNone1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = render(cases[i][0], strlen(cases[i][0]), NULL, NULL);
        if (!text) fail_msg("%s: %s", cases[i][0], ds_error());
        assert_string_equal(text, cases[i][1]);
        free(text);
    }
}

/* Templates that jinja2 refuses. */
static void the_same_is_refused(void **state)
{
    (void)state;
    json_t *golden = golden_read(), *t;
    size_t i;
    json_array_foreach(json_object_get(golden, "refused"), i, t)
    {
        ds_error_clear();
        char *text = render(json_string_value(t), json_string_length(t),
                            json_object_get(golden, "variables"), NULL);
        if (text) fail_msg("%s: not refused, \"%s\"", json_string_value(t), text);
        if (!ds_error() || strncmp(ds_error(), "chat: line 1: ", 14) != 0)
            fail_msg("%s: %s", json_string_value(t), ds_error());
    }
    json_decref(golden);
}

static void refused_with(const char *template, const char *message)
{
    json_t *variables = json_pack("{s:s}", "x", "text");
    ds_error_clear();
    char *text = render(template, strlen(template), variables, NULL);
    CHECK(!text);
    assert_string_equal(ds_error(), message);
    json_decref(variables);
}

static void messages_name_the_line(void **state)
{
    (void)state;
    refused_with("a\n{{ raise_exception('roles must alternate') }}",
                 "chat: line 2: the template refuses the conversation: roles must alternate");
    refused_with("{% for x in [1] %}\n\n{{ x.a.b }}{% endfor %}",
                 "chat: line 3: 'int object' has no attribute 'a'");
    refused_with("{{ x | urlize }}", "chat: line 1: the filter \"urlize\" is not implemented");
    refused_with("{{ x is escaped }}", "chat: line 1: the test \"escaped\" is not implemented");
    refused_with(
        "\n{% include 'x' %}",
        "chat: line 2: the statement \"include\" is not implemented, or has no place here");
    refused_with("{{ x.encode() }}", "chat: line 1: the method \"encode\" of a str is not "
                                     "implemented, or changes it");
    refused_with("{{ x.nothing() }}", "chat: line 1: 'str object' has no attribute 'nothing'");
    refused_with("{{ '%d' % x }}", "chat: line 1: %d of a str");
    refused_with("{{ '%s %s' % x }}", "chat: line 1: %: not enough arguments for the format");
    refused_with("{{ '%s' % (x, x) }}", "chat: line 1: %: not all arguments are in the format");
    refused_with("{{ '%(a)s' % {'b': x} }}", "chat: line 1: %: the dict has no \"a\"");
    refused_with("{{ '%*d' % (3, 4) }}", "chat: line 1: %: a field with \"*\" is not implemented");
    refused_with("{{ '%5' % x }}", "chat: line 1: %: the format ends within a field");
    refused_with("{{ '%d' % 1e19 }}", "chat: line 1: %d of a number that has no 64 bits");
    refused_with("{% if x %}", "chat: line 1: the template ends before {% elif else endif %}");
    refused_with("\xff", "chat: line 1: text that is not UTF-8");
    refused_with("{{ 9223372036854775807 + 1 }}", "chat: line 1: a number beyond 64 bits");
}

/* A template that would run for long, or take much memory. */
static void limits_hold(void **state)
{
    (void)state;
    refused_with("{{ 'x' * 1000000000000 }}", "chat: line 1: a text of more than 256 MiB");
    refused_with("{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}"
                 "{% endfor %}",
                 "chat: line 1: more than 256 MiB of values");
    refused_with("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
                 "chat: line 1: macros call each other too deep");
    refused_with("{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = [n.l] %}"
                 "{% endfor %}{{ n.l }}",
                 "chat: line 1: values nest too deep");
    dsi_text deep = {0};
    for (int i = 0; i < 100000; i++) dsi_text_add(&deep, "{{ (");
    refused_with(deep.s, "chat: line 1: a tag without its end");
    deep.n = 0;
    dsi_text_add(&deep, "{{ ");
    for (int i = 0; i < 100000; i++) dsi_text_add(&deep, "(");
    for (int i = 0; i < 100000; i++) dsi_text_add(&deep, ")");
    dsi_text_add(&deep, " }}");
    refused_with(deep.s, "chat: line 1: more than 250 levels of nesting");
    dsi_text_free(&deep);
    if (quick()) return;
    refused_with(
        "{% set r = range(100000) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
        "chat: line 1: more than 256 MiB of values");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_those_of_jinja2), cmocka_unit_test(strings_are_formatted),
        cmocka_unit_test(the_same_is_refused), cmocka_unit_test(messages_name_the_line),
        cmocka_unit_test(limits_hold)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
