/* text/jinja/filters.c: the filters of jinja2 that templates use.
 *
 * Source: jinja2/filters.py. The elements of iterators are computed at once, so
 * that a failure of one comes earlier.
 * SPDX-License-Identifier: MIT */
#include "builtins.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILTER(name) \
    static dsi_jvalue filter_##name(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)

/* The list as the iterator that the filter gives in jinja2. */
static dsi_jvalue iterator(dsi_jvalue list)
{
    if (list.kind == DSI_JLIST) list.kind = DSI_JITERATOR;
    return list;
}

static bool flag(dsi_jrun *r, dsi_jvalue v, bool otherwise)
{
    return dsi_jgiven(v) ? dsi_jtrue(r, v) : otherwise;
}

/* ---- values ---- */

FILTER(default)
{
    bool empty = of.kind == DSI_JUNDEFINED || (dsi_jtrue(r, args->at[1]) && !dsi_jtrue(r, of));
    if (!empty) return of;
    return dsi_jgiven(args->at[0]) ? args->at[0] : dsi_jliteral("");
}

FILTER(length)
{
    (void)args;
    return dsi_jint(dsi_jlength(r, of));
}

FILTER(string)
{
    (void)args;
    return dsi_jstr(r, of);
}

FILTER(safe)
{
    (void)args;
    dsi_jvalue s = dsi_jstr(r, of);
    s.markup = true;
    return s;
}

FILTER(escape)
{
    (void)args;
    dsi_jvalue s = dsi_jstr(r, of);
    if (s.markup) return s;
    dsi_text text = {0};
    dsi_jadd_escaped(r, &text, s);
    s = dsi_jstring_of(r, &text);
    s.markup = true;
    return s;
}

/* The number that a string is, with Python's blanks around it; false: none. */
static bool read_number(dsi_jrun *r, dsi_jvalue s, dsi_jvalue *whole, double *real)
{
    char text[64], *end;
    dsi_jargs none = {0};
    s = dsi_jstrip(r, s, &none);
    if (!s.n || s.n >= sizeof text) return false;
    memcpy(text, s.s, s.n);
    text[s.n] = 0;
    if (strspn(text, "+-0123456789.eEinfatyINFATY") != s.n) return false;
    long long i = strtoll(text, &end, 10);
    if (!*end && end > text && s.n < 19) *whole = dsi_jint(i);
    *real = strtod(text, &end);
    return !*end && end > text;
}

FILTER(int)
{
    dsi_jvalue whole = {0}, otherwise = dsi_jhas_value(args->at[0]) ? args->at[0] : dsi_jint(0);
    double real = 0;
    if (dsi_jgiven(args->at[1])) return dsi_jfail(r, "int: another base is not implemented");
    if (dsi_jis_whole(of)) return dsi_jint(dsi_jwhole(of));
    if (of.kind == DSI_JUNDEFINED) return dsi_jfail_undefined(r, of);
    if (of.kind == DSI_JFLOAT)
        real = of.f;
    else if (of.kind != DSI_JSTRING || !read_number(r, of, &whole, &real))
        return otherwise;
    if (whole.kind == DSI_JINT) return whole;
    if (isnan(real) || isinf(real)) return otherwise;
    if (fabs(real) >= 9e18) return dsi_jfail(r, "int: a number beyond 64 bits");
    return dsi_jint((int64_t)real);
}

FILTER(float)
{
    dsi_jvalue whole = {0};
    double real = 0;
    if (dsi_jis_number(of)) return dsi_jfloat(dsi_jreal(of));
    if (of.kind == DSI_JUNDEFINED) return dsi_jfail_undefined(r, of);
    if (of.kind == DSI_JSTRING && read_number(r, of, &whole, &real)) return dsi_jfloat(real);
    return dsi_jgiven(args->at[0]) ? args->at[0] : dsi_jfloat(0);
}

FILTER(abs)
{
    (void)args;
    if (of.kind == DSI_JFLOAT) return dsi_jfloat(fabs(of.f));
    if (!dsi_jis_whole(of) || dsi_jwhole(of) == INT64_MIN)
        return dsi_jfail(r, "abs: a %s", dsi_jtype(of));
    return dsi_jint(llabs(dsi_jwhole(of)));
}

FILTER(round)
{
    dsi_jvalue method = args->at[1];
    int64_t digits = dsi_jis_whole(args->at[0]) ? dsi_jwhole(args->at[0]) : 0;
    char text[400];
    if (!dsi_jis_number(of) || digits < 0 || digits > 15)
        return dsi_jfail(r, "round: expected a number, and 0 to 15 digits");
    if (!dsi_jgiven(method) || dsi_jis_text(method, "common")) {
        if (dsi_jis_whole(of)) return dsi_jint(dsi_jwhole(of));
        snprintf(text, sizeof text, "%.*f", (int)digits, of.f);
        return dsi_jfloat(strtod(text, NULL));
    }
    double scale = pow(10, (double)digits), x = dsi_jreal(of) * scale;
    if (dsi_jis_text(method, "ceil")) return dsi_jfloat(ceil(x) / scale);
    if (dsi_jis_text(method, "floor")) return dsi_jfloat(floor(x) / scale);
    return dsi_jfail(r, "round: this method is not implemented");
}

/* ---- lists ---- */

/* of.path, whose parts are separated by dots; of itself without a path. */
static dsi_jvalue by_path(dsi_jrun *r, dsi_jvalue of, dsi_jvalue path)
{
    if (!dsi_jhas_value(path)) return of;
    if (path.kind == DSI_JINT) return dsi_jitem(r, of, path);
    dsi_jvalue rest = dsi_jstr(r, path);
    while (!r->failed) {
        const char *dot = rest.n ? memchr(rest.s, '.', rest.n) : NULL;
        size_t n = dot ? (size_t)(dot - rest.s) : rest.n;
        int64_t index = 0;
        bool digits = n && dsi_jdigits(rest.s, n, &index);
        of = dsi_jitem(r, of, digits ? dsi_jint(index) : dsi_jstring(rest.s, n));
        if (!dot) break;
        rest.s += n + 1, rest.n -= n + 1;
    }
    return of;
}

/* The key by which elements are compared: an attribute, strings in lower case. */
static dsi_jvalue sort_key(dsi_jrun *r, dsi_jvalue v, dsi_jvalue path, bool with_case)
{
    dsi_jvalue key = by_path(r, v, path);
    return key.kind == DSI_JSTRING && !with_case ? dsi_jlower(r, key, NULL) : key;
}

FILTER(list)
{
    (void)args;
    return dsi_jelements(r, of);
}

FILTER(first)
{
    (void)args;
    dsi_jvalue list = of.kind == DSI_JITERATOR ? of : dsi_jelements(r, of);
    if (!list.list->n) return dsi_jundefined(r, "No first item, sequence was empty.");
    if (of.kind != DSI_JITERATOR) return list.list->at[0];
    list.list->n--;
    return *list.list->at++;
}

FILTER(last)
{
    (void)args;
    if (of.kind == DSI_JITERATOR) return dsi_jfail(r, "last: a generator has no end yet");
    dsi_jvalue list = dsi_jelements(r, of);
    if (list.list->n) return list.list->at[list.list->n - 1];
    return dsi_jundefined(r, "No last item, sequence was empty.");
}

FILTER(join)
{
    dsi_jvalue from = dsi_jelements(r, of), list = dsi_jlist_new(r, DSI_JLIST);
    for (int64_t i = 0; i < from.list->n && !r->failed; i++)
        dsi_jlist_add(r, list, by_path(r, from.list->at[i], args->at[1]));
    dsi_jvalue between = dsi_jgiven(args->at[0]) ? dsi_jstr(r, args->at[0]) : dsi_jliteral("");
    return dsi_jjoin_texts(r, list, between);
}

FILTER(reverse)
{
    (void)args;
    dsi_jvalue from = dsi_jelements(r, of), list = dsi_jlist_new(r, DSI_JLIST);
    for (int64_t i = from.list->n; i-- > 0 && !r->failed;) dsi_jlist_add(r, list, from.list->at[i]);
    return of.kind == DSI_JSTRING ? dsi_jjoin_texts(r, list, dsi_jliteral("")) : iterator(list);
}

FILTER(items)
{
    (void)args;
    if (of.kind == DSI_JUNDEFINED) return iterator(dsi_jlist_new(r, DSI_JLIST));
    if (of.kind != DSI_JDICT) return dsi_jfail(r, "items: a %s", dsi_jtype(of));
    return iterator(dsi_jitems(r, of.dict));
}

/* The elements of `of`, sorted by their keys. */
static dsi_jvalue sorted_by(dsi_jrun *r, dsi_jvalue of, dsi_jvalue path, bool with_case,
                            bool reverse)
{
    dsi_jvalue from = dsi_jelements(r, of), list = dsi_jlist_new(r, DSI_JLIST);
    dsi_jpair *pairs = dsi_jarena_get(&r->arena, (size_t)(from.list->n + 1) * sizeof *pairs);
    for (int64_t i = 0; i < from.list->n && !r->failed; i++)
        pairs[i] = (dsi_jpair){sort_key(r, from.list->at[i], path, with_case), from.list->at[i]};
    dsi_jpair *sorted = r->failed ? pairs : dsi_jsorted(r, pairs, from.list->n, reverse);
    for (int64_t i = 0; i < from.list->n && !r->failed; i++)
        dsi_jlist_add(r, list, sorted[i].value);
    return list;
}

FILTER(sort)
{
    if (dsi_jhas_value(args->at[2]) && args->at[2].kind == DSI_JSTRING &&
        memchr(args->at[2].s, ',', args->at[2].n))
        return dsi_jfail(r, "sort: several attributes are not implemented");
    return sorted_by(r, of, args->at[2], flag(r, args->at[1], false), flag(r, args->at[0], false));
}

FILTER(dictsort)
{
    bool by_value = dsi_jis_text(args->at[1], "value");
    if (of.kind != DSI_JDICT) return dsi_jfail(r, "dictsort: a %s", dsi_jtype(of));
    if (dsi_jgiven(args->at[1]) && !by_value && !dsi_jis_text(args->at[1], "key"))
        return dsi_jfail(r, "dictsort: by is \"key\" or \"value\"");
    return sorted_by(r, dsi_jitems(r, of.dict), dsi_jint(by_value), flag(r, args->at[0], false),
                     flag(r, args->at[2], false));
}

FILTER(unique)
{
    dsi_jvalue from = dsi_jelements(r, of), list = dsi_jlist_new(r, DSI_JLIST);
    dsi_jvalue keys = dsi_jlist_new(r, DSI_JLIST);
    for (int64_t i = 0; i < from.list->n && !r->failed; i++) {
        dsi_jvalue key = sort_key(r, from.list->at[i], args->at[1], flag(r, args->at[0], false));
        if (dsi_jcontains(r, keys, key)) continue;
        dsi_jlist_add(r, keys, key);
        dsi_jlist_add(r, list, from.list->at[i]);
    }
    return iterator(list);
}

static dsi_jvalue extreme(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args, bool largest)
{
    dsi_jvalue from = dsi_jelements(r, of), best = {0};
    bool with_case = flag(r, args->at[0], false);
    for (int64_t i = 0, at = 0; i < from.list->n && !r->failed; i++) {
        dsi_jvalue key = sort_key(r, from.list->at[i], args->at[1], with_case);
        int order = i ? dsi_jorder(r, key, best) : 0;
        if (!i || (largest ? order > 0 : order < 0)) best = key, at = i;
        if (i + 1 == from.list->n) return from.list->at[at];
    }
    return dsi_jundefined(r, "No aggregated item, sequence was empty.");
}

FILTER(min) { return extreme(r, of, args, false); }
FILTER(max) { return extreme(r, of, args, true); }

FILTER(sum)
{
    dsi_jvalue from = dsi_jelements(r, of);
    dsi_jvalue sum = dsi_jgiven(args->at[1]) ? args->at[1] : dsi_jint(0);
    for (int64_t i = 0; i < from.list->n && !r->failed; i++)
        sum = dsi_jmath(r, '+', sum, by_path(r, from.list->at[i], args->at[0]));
    return sum;
}

/* ---- map and select ---- */

/* The arguments behind the first `n`. */
static dsi_jargs arguments_behind(dsi_jrun *r, const dsi_jargs *args, int64_t n)
{
    dsi_jargs rest = {.list = dsi_jlist_new(r, DSI_JLIST), .named = args->named};
    for (int64_t i = n; i < args->list.list->n; i++)
        dsi_jlist_add(r, rest.list, args->list.list->at[i]);
    return rest;
}

/* A builtin for each element, with the arguments behind the name of the first. */
static const dsi_jbuiltin *named_builtin(dsi_jrun *r, const dsi_jargs *args, int64_t at,
                                         const dsi_jbuiltin *(*find)(dsi_jvalue name))
{
    dsi_jvalue name = at < args->list.list->n ? args->list.list->at[at] : (dsi_jvalue){0};
    const dsi_jbuiltin *b = name.kind == DSI_JSTRING ? find(name) : NULL;
    if (!b) dsi_jfail(r, "there is no filter or test \"%.*s\"", (int)name.n, name.n ? name.s : "");
    return b;
}

FILTER(map)
{
    if (!dsi_jtrue(r, of)) return iterator(dsi_jlist_new(r, DSI_JLIST));
    dsi_jvalue from = dsi_jelements(r, of), list = dsi_jlist_new(r, DSI_JLIST);
    dsi_jvalue *path = dsi_jdict_get(r, args->named, dsi_jliteral("attribute"));
    dsi_jvalue *otherwise = dsi_jdict_get(r, args->named, dsi_jliteral("default"));
    const dsi_jbuiltin *b = path ? NULL : named_builtin(r, args, 0, dsi_jinja_filter_find);
    if (path && (args->list.list->n || args->named->n != 1 + (otherwise != NULL)))
        return dsi_jfail(r, "map: arguments beside attribute and default");
    for (int64_t i = 0; i < from.list->n && !r->failed; i++) {
        dsi_jargs rest = arguments_behind(r, args, 1);
        dsi_jvalue v = path ? by_path(r, from.list->at[i], *path)
                            : dsi_jbuiltin_run(r, b, from.list->at[i], &rest);
        dsi_jlist_add(r, list, path && otherwise && v.kind == DSI_JUNDEFINED ? *otherwise : v);
    }
    return iterator(list);
}

/* Elements for which a test, or the element itself, is true, or is not. */
static dsi_jvalue selected(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args, bool by_attribute,
                           bool wanted)
{
    if (!dsi_jtrue(r, of)) return iterator(dsi_jlist_new(r, DSI_JLIST));
    dsi_jvalue from = dsi_jelements(r, of), list = dsi_jlist_new(r, DSI_JLIST), path = {0};
    int64_t at = by_attribute;
    if (by_attribute && !args->list.list->n) return dsi_jfail(r, "selectattr needs an attribute");
    if (by_attribute) path = args->list.list->at[0];
    bool has_test = args->list.list->n > at;
    const dsi_jbuiltin *test = has_test ? named_builtin(r, args, at, dsi_jinja_test_find) : NULL;
    for (int64_t i = 0; i < from.list->n && !r->failed; i++) {
        dsi_jargs rest = arguments_behind(r, args, at + 1);
        dsi_jvalue v = by_attribute ? by_path(r, from.list->at[i], path) : from.list->at[i];
        if (test) v = dsi_jbuiltin_run(r, test, v, &rest);
        if (dsi_jtrue(r, v) == wanted) dsi_jlist_add(r, list, from.list->at[i]);
    }
    return iterator(list);
}

FILTER(select) { return selected(r, of, args, false, true); }
FILTER(reject) { return selected(r, of, args, false, false); }
FILTER(selectattr) { return selected(r, of, args, true, true); }
FILTER(rejectattr) { return selected(r, of, args, true, false); }

/* ---- texts ---- */

FILTER(replace)
{
    dsi_jargs texts = *args;
    for (int i = 0; i < 2; i++) texts.at[i] = dsi_jstr(r, args->at[i]);
    return dsi_jreplace(r, dsi_jstr(r, of), &texts);
}

/* The blanks, or the text, by which lines are indented. */
static dsi_jvalue indentation(dsi_jrun *r, dsi_jvalue width)
{
    if (width.kind == DSI_JSTRING) return width;
    return dsi_jblanks(r, dsi_jis_whole(width) ? dsi_jwhole(width) : 4);
}

FILTER(indent)
{
    dsi_jvalue by = indentation(r, args->at[0]), s = of;
    if (s.kind != DSI_JSTRING) return dsi_jfail(r, "indent: a %s", dsi_jtype(s));
    bool first = dsi_jtrue(r, args->at[1]), blank = dsi_jtrue(r, args->at[2]);
    dsi_text text = {0};
    dsi_jadd(r, &text, s.s, s.n);
    dsi_jadd(r, &text, "\n", 1);
    dsi_jargs none = {0};
    dsi_jvalue lines = dsi_jsplitlines(r, dsi_jstring_of(r, &text), &none);
    for (int64_t i = 0; i < lines.list->n && !r->failed; i++) {
        dsi_jvalue line = lines.list->at[i];
        if (i) dsi_jadd(r, &text, "\n", 1);
        if (i ? blank || line.n : first) dsi_jadd(r, &text, by.s, by.n);
        dsi_jadd(r, &text, line.s, line.n);
    }
    return dsi_jstring_of(r, &text);
}

const dsi_jbuiltin *dsi_jinja_filter_find(dsi_jvalue name)
{
    static const dsi_jbuiltin rows[] = {
        {"abs", "", filter_abs},
        {"capitalize", "", dsi_jcapitalize},
        {"count", "", filter_length},
        {"d", "default_value boolean", filter_default},
        {"default", "default_value boolean", filter_default},
        {"dictsort", "case_sensitive by reverse", filter_dictsort},
        {"e", "", filter_escape},
        {"escape", "", filter_escape},
        {"first", "", filter_first},
        {"float", "default", filter_float},
        {"format", "*", dsi_jformat},
        {"indent", "width first blank", filter_indent},
        {"int", "default base", filter_int},
        {"items", "", filter_items},
        {"join", "d attribute", filter_join},
        {"last", "", filter_last},
        {"length", "", filter_length},
        {"list", "", filter_list},
        {"lower", "", dsi_jlower},
        {"map", "*", filter_map},
        {"max", "case_sensitive attribute", filter_max},
        {"min", "case_sensitive attribute", filter_min},
        {"reject", "*", filter_reject},
        {"rejectattr", "*", filter_rejectattr},
        {"replace", "!old !new count", filter_replace},
        {"reverse", "", filter_reverse},
        {"round", "precision method", filter_round},
        {"safe", "", filter_safe},
        {"select", "*", filter_select},
        {"selectattr", "*", filter_selectattr},
        {"sort", "reverse case_sensitive attribute", filter_sort},
        {"string", "", filter_string},
        {"sum", "attribute start", filter_sum},
        {"title", "", dsi_jtitle},
        {"tojson", "ensure_ascii indent separators sort_keys", dsi_jtojson},
        {"trim", "chars", dsi_jstrip},
        {"unique", "case_sensitive attribute", filter_unique},
        {"upper", "", dsi_jupper},
        {0}};
    return dsi_jbuiltin_find(rows, name);
}
