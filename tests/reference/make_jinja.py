#!/usr/bin/env python3
"""Writes tests/golden/lm/jinja.json: texts of templates, as jinja2 renders them
in the way of transformers, for tests/text/jinja.c.

    make_jinja.py tests/golden/lm/jinja.json

SPDX-License-Identifier: MIT
"""
import json
import sys

import jinja2
import transformers
from transformers.utils import chat_template_utils

VARIABLES = {
    "s": "Grüße, 你好 🎉!", "e": "", "sp": "  a b\tc \n", "q": "it's \"x\" <b> & \\ \u00ad\x07",
    "n": 7, "z": 0, "m": -3, "f": 2.5, "big": 1e22, "t": True, "no": False, "nil": None,
    "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "el": [], "d": {"b": 1, "A": [1, {"x": None}], "c": "é"},
    "ed": {}, "items": [{"name": "x", "v": 1, "ok": True}, {"name": "y", "v": 3}, {"name": "z", "v": 2, "ok": False}],
    "lines": "one\n\ntwo\r\nthree", "csv": "a,b,,c", "nested": [[1, 2], [3], []],
    "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi\n"},
                 {"role": "assistant", "content": "Hello", "tool_calls": [
                     {"function": {"name": "f", "arguments": {"x": 1.5, "y": ["ü", None, True]}}}]}],
}

EXPRESSIONS = r"""
1 + 2 * 3 - 4 / 2
7 // 2, -7 // 2, 7 // -2, 7 % 3, -7 % 3, 7 % -3
7.5 // 2, -7.5 % 2, 2 ** 10, 2 ** -1, -2 ** 2
1 < 2 < 3, 1 < 3 < 2, 1 == 1.0, true == 1, "a" < "b", [1, 2] < [1, 3], (1,) == (1,), none == false
"a" "b" ~ 1 ~ none ~ true ~ 2.0
"x" * 3 ~ [1] * 2
[1] + [2]
not true or false and true
1 if z else 2
(1 if z) is defined
s[0], s[-2], s[1:3], s[::-1], s[-3:], s[:-1:2]
l[0], l[-1], l[1:], l[::-1], l[5] is defined
d.b, d["A"], d.A[1].x, d.zz is defined
n in l, 3 in l, 3 not in l, "b" in d, "ü" in s, "" in s
{"a": 1, 2: [none, true], "q": "it's"}
[1, "two", 3.0, none, (4, 5), (6,), ()]
q, [q], {q: q}
big, 1e-7, 1.0, 1e16, 123456789.123, 0.1 + 0.2
1_000 + 2, "\u00e9\x41\n\q\\"
d.items() | list
d.keys() | list, d.values() | list
d.get("b"), d.get("zz"), d.get("zz", 5)
ls | sort, l | sort(reverse=true), ls | sort(case_sensitive=true)
items | sort(attribute="v") | map(attribute="name") | list
d | dictsort, d | dictsort(true), {"x": 2, "y": 1} | dictsort(by="value"), {"x": 2, "y": 1} | dictsort(reverse=true)
items | selectattr("ok") | map(attribute="name") | join(", ")
items | selectattr("v", "gt", 1) | list | length
items | rejectattr("ok", "defined") | list
l | select("odd") | list, l | reject("odd") | list
ls | map("upper") | join("-")
items | map(attribute="ok", default="?") | list
l | sum, items | sum(attribute="v"), l | min, l | max, ls | max
ls | unique | list, l | first, l | last, el | first is defined
s | length, l | count, d | length, e | length, nope | length
s | upper, s | lower, "straße" | upper, "hELLO wORLD" | capitalize, "hello wo-rld (x" | title
sp | trim, sp.strip(), sp.lstrip(), sp.rstrip(), "xxaxx".strip("x"), "[a]" | trim("[]")
csv.split(","), csv.split(",", 1), sp.split(), csv.rsplit(",", 1), " a  b c ".split(none, 1)
lines.splitlines(), lines | indent(2), lines | indent("> ", true, true)
"abc".replace("b", "xx"), "aaa".replace("a", "b", 2), "aaa" | replace("a", ""), "ab".replace("", "-")
"abc".startswith("ab"), "abc".endswith(("x", "c")), "abc".find("c"), "abc".find("z"), "abcb".rfind("b"), "a-b".partition("-"), "abc".removeprefix("a"), "abc".removesuffix("c")
"<{}|{}>".format(n, s), "{1}{0}{x}{{}}".format(1, "b", x=nil), "abc".isalpha(), "12".isdigit(), "a1".isalnum(), " ".isspace(), "aB".islower(), "AB".isupper(), "aXbX".count("X"), "-".join(ls), "abc".index("b")
nope | default("x"), e | default("x"), e | default("x", true), nil | default("x"), none | d(1, boolean=true)
"3" | int, "3.7" | int, "x" | int, "x" | int(9), 3.9 | int, "2.5" | float, "x" | float(1.5), m | abs, 2.567 | round(2), 2.5 | round, 2.1 | round(0, "ceil"), n | round
"<a>" | e, "<a>" | safe, "<" + ("<b>" | safe), ("<b>" | safe) + "&", ("<b>" | safe) ~ "<", ["<" | e]
l | reverse | list, s | reverse, l | string, 5 | string ~ 1, s | list
d | tojson, q | tojson, s | tojson(ensure_ascii=true), d | tojson(indent=2), {} | tojson(indent=2), [] | tojson, nested | tojson(indent=1), d | tojson(separators=(",", ":")), {"b": 1, "a": 2} | tojson(sort_keys=true), big | tojson, nil | tojson, {1: 2, none: 3, true: 4} | tojson
n is odd, n is even, n is divisibleby 7, n is divisibleby(2), s is string, n is number, t is number, t is integer, n is integer, f is float, t is boolean, t is true, no is false, nil is none
l is iterable, s is iterable, d is mapping, l is mapping, d is sequence, n is iterable, nope is defined, nope is undefined, nope is iterable, nope is sequence, "a" is lower, "A" is upper, n is in [7], n is eq 7, n is gt(3), n is not lt 3, nil is sameas none, range is callable
range(3) | list, range(1, 10, 3) | list, range(3, 0, -1) | list, dict(a=1, **{"b": 2}), dict([("x", 1)]), namespace(a=1).a
nope, nope ~ "x", [nope]
not nope, nope == nope, nope == none
"%s"
s.upper().lower()
messages[0].role ~ messages[-1]["content"]
messages[1:][0].content | trim
messages | map(attribute="role") | list
items | map(attribute="name") | map("upper") | list
{"a": {"b": [5, 6]}}.a.b[1]
d.A.1.x is none
l | join("|") | length
(l | length > 2) and (s | length) < 20
-n | abs, +n, - f
t + t, t * 3
[[1, 2], [3, 4]] | map("join", "+") | list
[[1], []] | map("first") | list | length
"a" in ["a"] and "b" not in ["a"]
[1, 2, 3][1:] + [4], (1, 2) + (3,)
""".strip().split("\n")

BODIES = [
    "{% for x in l %}{{ loop.index }}/{{ loop.length }}:{{ x }}{% if not loop.last %}, {% endif %}{% else %}none{% endfor %}",
    "{% for x in el %}x{% else %}none{% endfor %}|{% for c in 'ab' %}[{{ c }}]{% endfor %}|{% for k in d %}{{ k }} {% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ x }} {% endfor %}",
    "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x > 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem | default('end') }}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(n=0, l=[]) %}{% for i in l %}{% set ns.n = ns.n + i %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.n }}{{ ns.l }}",
    "{% if no %}a{% elif z %}b{% elif n %}{% if t %}c{% endif %}d{% else %}e{% endif %}",
    "{% if no %}a{% else %}{% if no %}b{% endif %}c{% endif %}",
    "{% if t %}{% set y = 4 %}{% endif %}{{ y }}{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}",
    "{% set x %} text {{ n }} {% set inner = 1 %}{% endset %}[{{ x }}]{{ inner is defined }}{% set y | upper | trim %} abc {% endset %}[{{ y }}]",
    "{% macro m(a, b=2, c=a) %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=5) }} {{ m(b=1, a=9) }} {{ m() }}",
    "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }} {{ m(*[5, 6], **{'z': 7}) }}",
    "{% macro box(t) %}[{{ t }}: {{ caller(3) }}]{% endmacro %}{% call(n) box('T') %}body {{ n }}{% endcall %}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}|{% set g = f %}{{ g(2) | length }}",
    "{% macro o() %}{{ later }}{% endmacro %}{% set later = 'L' %}{{ o() }}{% for later in [1] %}{{ o() }}{% endfor %}",
    "{% filter upper | replace('A', 'x') %}abc {{ n }}{% endfilter %}{% with a = 1, b = n %}{{ a + b }}{% endwith %}{{ a is defined }}",
    "{% raw %}{{ x }} {% if %}{% endraw %}|{%- raw -%}  {{ y }}  {%- endraw -%}  |",
    "a\n  {% if t %}\n    b\n  {% endif %}\nc\n  {{ n }}\n{# comment\n#}\nd {# x #} e\n",
    "a  \n {%- if t -%} \n b \n {%- endif -%} \n c {{- n -}} \n d {#- c -#} e\n\n",
    "x\n  {%+ if t %}\n y {% endif +%}\nz\n{% set v = 1 %}\n\nend\n\n",
    "\r\n{% if t %}\r\na\r\n{% endif %}\r\nb\r",
    "{{ '{{' }}{{ \"}}\" }}{{ {'a': {'b': 1}}['a'] }}{{ '%}' }}{% set d2 = {'k': {'z': [1, {}]}} %}{{ d2 }}",
    "{% print n, s %}{%- for m in messages %}\n<|{{ m.role }}|>{{ m['content'] | trim }}{% endfor %}",
    "{% for m in messages %}{% generation %}{{ m.content }}é{% endgeneration %}|{% endfor %}",
    "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function | tojson(indent=4) }}{% endfor %}{% endif %}{% endfor %}",
    "{% macro g(x) %}{% generation %}{{ x }}{% endgeneration %}{% endmacro %}ab{{ g('q') }}{{ g('w') }}",
    "{% for a in nested %}{% for b in a %}{{ loop.index }}{{ b }}{% if b == 1 %}{% break %}{% endif %}{% endfor %};{% endfor %}",
    "{% set ns = namespace() %}{% set ns.a = [] %}{{ ns.a }}{{ ns.b is defined }}{% set d3 = dict(d, z=1) %}{{ d3 }}",
    "{% for x in l %}{% set ns2 = namespace(v=x) %}{% set ns2.v = ns2.v * 2 %}{{ ns2.v }}{% endfor %}",
    "{% if no %}{{ s | from_json }}{{ s is unknown }}{% endif %}{{ '' if t else s | from_json }}",
    "{% for x in l %}{% break %}{% else %}else{% endfor %}{% for x in l %}{{ x }}{% continue %}{% else %}else{% endfor %}",
    "{% set g = l | select('odd') %}{% if el | select %}true{% endif %}{{ g | first }}{{ g | list }}{{ g | list }}{{ nil | map('x') | list }}",
    "{% set g = items | map(attribute='v') %}{{ 1 in g }}{{ g | join(',') }}{% for k, v in d | items %}{{ k }}{% endfor %}{{ g is iterable }}{{ g is sequence }}",
    "{% set x = 'a' %}{% macro p() %}{% set x = 'b' %}{{ x }}{% endmacro %}{{ p() }}{{ x }}",
]

REFUSED = [
    "{{ raise_exception('no ' ~ n) }}", "{{ nope.x }}", "{{ nope + 1 }}", "{{ nope() }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ l.append(1) }}",
    "{{ d.update({}) }}", "{{ s.__class__.x }}", "{{ n.x.y }}", "{{ 1 < 'a' }}", "{{ x | nofilter }}", "{{ x is notest }}", "{% if %}", "{% if t %}",
    "{% endfor %}", "{% for x in n %}{% endfor %}", "{{ (1 }}", "{{ 1 ", "{% unknown %}", "{{ range(1000000) }}", "{% set n.x = 1 %}", "{# open",
    "{% raw %}x", "{{ 'open }}", "{% break %}", "{{ messages | tojson(indent='x', foo=1) }}", "{{ nope | tojson }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "{{ d.get() }}", "{{ [1, 2] | join(',', foo=1) }}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{{ 'a' in 5 }}", "{{ 5 in 'a' }}", "{{ n | length }}", "{{ 1 ~ }}", "{{ }}", "{{ a b }}", "{% set x %}", "{{ namespace(_a=1) }}",
    "{{ items | map(attribute='v') | length }}", "{{ l | select | last }}", "{{ l | select | tojson }}", "{{ n[1:] }}", "{{ n | indent }}", "{{ nope | int }}", "{{ '{}{}'.format(1) }}", "{{ '{'.format(1) }}", "{{ '}'.format(1) }}", "{{ '{a}'.format(b=1) }}",
]


def render(template):
    compiled = chat_template_utils._cached_compile_jinja_template(template)
    variables = json.loads(json.dumps(VARIABLES))
    text, spans = chat_template_utils._render_with_assistant_indices(
        compiled, variables.pop("messages"), None, None, False, **variables)
    return text, [[len(text[:i].encode()) for i in span] for span in spans]


def main():
    cases = []
    for template in BODIES + ["{{ %s }}" % x for x in EXPRESSIONS]:
        text, spans = render(template)
        cases.append({"template": template, "text": text, **({"spans": spans} if spans else {})})
    for template in REFUSED:
        try:
            render(template)
        except Exception:
            continue
        raise SystemExit(f"not refused: {template}")
    file = {"jinja2": jinja2.__version__, "transformers": transformers.__version__, "variables": VARIABLES,
            "cases": cases, "refused": REFUSED}
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        json.dump(file, f, ensure_ascii=False, indent=0)
        f.write("\n")


if __name__ == "__main__":
    main()
