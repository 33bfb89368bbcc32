/* text/jinja/builtins.c: functions, tests, and methods of lists and dicts; how
 * arguments reach them.
 * SPDX-License-Identifier: MIT */
#include "builtins.h"

#include <string.h>
#include <time.h>

/* ---- calls ---- */

const dsi_jbuiltin *dsi_jbuiltin_find(const dsi_jbuiltin *rows, dsi_jvalue name)
{
    for (; rows->name; rows++)
        if (dsi_jis_text(name, rows->name)) return rows;
    return NULL;
}

/* Puts the arguments at the places of the parameters; returns how many were
 * used, -1 after a failure. */
static int64_t arguments_place(dsi_jrun *r, const dsi_jbuiltin *b, dsi_jargs *args)
{
    int64_t used = 0;
    const char *p = b->parameters;
    for (int i = 0; *p && i < DSI_JINJA_ARGUMENTS; i++) {
        bool needed = *p == '!';
        p += needed;
        size_t n = strcspn(p, " ");
        dsi_jvalue *named = dsi_jdict_get(r, args->named, dsi_jstring(p, n));
        bool in_list = i < args->list.list->n;
        if (in_list && named) dsi_jfail(r, "%s: %.*s is given twice", b->name, (int)n, p);
        if (needed && !in_list && !named) dsi_jfail(r, "%s needs %.*s", b->name, (int)n, p);
        if (in_list) args->at[i] = args->list.list->at[i];
        if (named) args->at[i] = *named;
        /* An undefined value that was given has a text. */
        used += in_list || named;
        p += n + (p[n] == ' ');
    }
    return r->failed ? -1 : used;
}

dsi_jvalue dsi_jbuiltin_run(dsi_jrun *r, const dsi_jbuiltin *b, dsi_jvalue of, dsi_jargs *args)
{
    if (strcmp(b->parameters, "*") != 0) {
        int64_t used = arguments_place(r, b, args);
        if (!r->failed && used != args->list.list->n + args->named->n)
            dsi_jfail(r, "%s takes the arguments (%s)", b->name, b->parameters);
    }
    return r->failed ? (dsi_jvalue){DSI_JUNDEFINED, .s = ""} : b->call(r, of, args);
}

/* Merges neighbours of `width` sorted pairs. */
static void merge(dsi_jrun *r, dsi_jpair *from, dsi_jpair *to, int64_t n, int64_t width,
                  bool reverse)
{
    for (int64_t at = 0; at < n; at += 2 * width) {
        int64_t i = at, middle = at + width < n ? at + width : n, j = middle;
        int64_t end = at + 2 * width < n ? at + 2 * width : n;
        for (int64_t k = at; k < end; k++) {
            bool left = j >= end;
            if (!left && i < middle && dsi_jstep(r, 1)) {
                int order = dsi_jorder(r, from[i].key, from[j].key);
                left = reverse ? order >= 0 : order <= 0;
            }
            to[k] = left ? from[i++] : from[j++];
        }
    }
}

dsi_jpair *dsi_jsorted(dsi_jrun *r, const dsi_jpair *at, int64_t n, bool reverse)
{
    dsi_jpair *from = dsi_jarena_get(&r->arena, (size_t)(n + 1) * sizeof *from);
    dsi_jpair *to = dsi_jarena_get(&r->arena, (size_t)(n + 1) * sizeof *to);
    if (n) memcpy(from, at, (size_t)n * sizeof *at);
    for (int64_t width = 1; width < n && !r->failed; width *= 2) {
        merge(r, from, to, n, width, reverse);
        dsi_jpair *other = from;
        from = to, to = other;
    }
    return from;
}

/* ---- functions ---- */

static dsi_jvalue raise_exception(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)of;
    dsi_jvalue text = dsi_jstr(r, args->at[0]);
    return dsi_jfail_with(r, DS_EINVAL, "the template refuses the conversation: %.*s", (int)text.n,
                          text.s);
}

static dsi_jvalue strftime_now(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)of;
    char format[128], text[512];
    dsi_jvalue f = args->at[0];
    if (f.kind != DSI_JSTRING || f.n >= sizeof format || (f.n && memchr(f.s, 0, f.n)))
        return dsi_jfail(r, "strftime_now: expected a format of less than 128 bytes");
    if (!f.n) return f;
    memcpy(format, f.s, f.n);
    format[f.n] = 0;
    time_t now = time(NULL);
    struct tm tm;
    localtime_r(&now, &tm);
    return dsi_jstring_copy(r, text, strftime(text, sizeof text, format, &tm));
}

/* A dict of the arguments: of a dict or pairs, then of names. */
static dsi_jvalue dict_of(dsi_jrun *r, const dsi_jargs *args)
{
    dsi_jvalue d = dsi_jdict_new(r);
    const dsi_jlist *list = args->list.list;
    if (list->n > 1) return dsi_jfail(r, "dict: more than one argument without a name");
    if (list->n && list->at[0].kind != DSI_JDICT) {
        dsi_jvalue pairs = dsi_jelements(r, list->at[0]);
        for (int64_t i = 0; i < pairs.list->n && !r->failed; i++) {
            dsi_jvalue pair = dsi_jelements(r, pairs.list->at[i]);
            if (pair.list->n != 2) return dsi_jfail(r, "dict: expected pairs");
            dsi_jdict_set(r, d.dict, pair.list->at[0], pair.list->at[1]);
        }
    } else if (list->n) {
        const dsi_jdict *from = list->at[0].dict;
        for (int64_t i = 0; i < from->n; i++)
            dsi_jdict_set(r, d.dict, from->at[i].key, from->at[i].value);
    }
    for (int64_t i = 0; i < args->named->n; i++)
        dsi_jdict_set(r, d.dict, args->named->at[i].key, args->named->at[i].value);
    return d;
}

static dsi_jvalue new_dict(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)of;
    return dict_of(r, args);
}

static dsi_jvalue new_namespace(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)of;
    dsi_jvalue d = dict_of(r, args);
    for (int64_t i = 0; d.kind == DSI_JDICT && i < d.dict->n; i++)
        if (d.dict->at[i].key.kind == DSI_JSTRING && d.dict->at[i].key.n &&
            d.dict->at[i].key.s[0] == '_')
            return dsi_jfail(r, "namespace: a name that begins with _");
    if (d.kind == DSI_JDICT) d.kind = DSI_JNAMESPACE;
    return d;
}

/* The sandbox of jinja2 allows 100000 numbers. */
static dsi_jvalue range(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)of;
    bool one = !dsi_jgiven(args->at[1]);
    for (int i = 0; i < 3; i++)
        if ((dsi_jgiven(args->at[i]) || !i) && !dsi_jis_whole(args->at[i]))
            return dsi_jfail(r, "range: expected whole numbers");
    int64_t begin = one ? 0 : dsi_jwhole(args->at[0]), end = dsi_jwhole(args->at[one ? 0 : 1]);
    int64_t step = dsi_jgiven(args->at[2]) ? dsi_jwhole(args->at[2]) : 1;
    if (!step) return dsi_jfail(r, "range: a step of 0");
    dsi_jvalue list = dsi_jlist_new(r, DSI_JLIST);
    for (int64_t i = begin; (step > 0 ? i < end : i > end) && !r->failed;) {
        if (list.list->n == 100000) return dsi_jfail(r, "range: more than 100000 numbers");
        dsi_jlist_add(r, list, dsi_jint(i));
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return list;
}

static dsi_jvalue absent(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)of, (void)args;
    return dsi_jfail(r, "cycler, joiner and lipsum are not implemented");
}

const dsi_jbuiltin *dsi_jinja_function_find(dsi_jvalue name)
{
    static const dsi_jbuiltin rows[] = {{"raise_exception", "!message", raise_exception},
                                        {"strftime_now", "!format", strftime_now},
                                        {"namespace", "*", new_namespace},
                                        {"dict", "*", new_dict},
                                        {"range", "!start stop step", range},
                                        {"cycler", "*", absent},
                                        {"joiner", "*", absent},
                                        {"lipsum", "*", absent},
                                        {0}};
    return dsi_jbuiltin_find(rows, name);
}

/* ---- methods of lists and dicts ---- */

static dsi_jvalue dict_get(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    dsi_jvalue *v = dsi_jdict_get(r, of.dict, args->at[0]);
    return v ? *v : dsi_jgiven(args->at[1]) ? args->at[1] : dsi_jnone();
}

static dsi_jvalue dict_items(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)args;
    return dsi_jitems(r, of.dict);
}

static dsi_jvalue dict_keys(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)args;
    return dsi_jelements(r, of);
}

static dsi_jvalue dict_values(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)args;
    dsi_jvalue list = dsi_jlist_new(r, DSI_JLIST);
    for (int64_t i = 0; i < of.dict->n; i++) dsi_jlist_add(r, list, of.dict->at[i].value);
    return list;
}

static dsi_jvalue copy(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)r, (void)args;
    return of; /* neither changes */
}

static dsi_jvalue list_index(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    for (int64_t i = 0; i < of.list->n && dsi_jstep(r, 1); i++)
        if (dsi_jequal(r, of.list->at[i], args->at[0])) return dsi_jint(i);
    return dsi_jfail(r, "index: the list has no such element");
}

static dsi_jvalue list_count(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    int64_t n = 0;
    for (int64_t i = 0; i < of.list->n && dsi_jstep(r, 1); i++)
        n += dsi_jequal(r, of.list->at[i], args->at[0]);
    return dsi_jint(n);
}

/* cycle of a loop. */
static dsi_jvalue loop_cycle(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    const dsi_jlist *l = args->list.list;
    int64_t index0 = dsi_jattribute(r, of, dsi_jliteral("index0")).i;
    return l->n ? l->at[index0 % l->n] : dsi_jfail(r, "cycle: no values");
}

/* Methods of Python's that templates may not call, or that are not here. */
static const char refused_of_strings[] =
    "casefold center encode expandtabs format_map isascii isdecimal isidentifier isnumeric "
    "isprintable istitle ljust maketrans rindex rjust rpartition swapcase title translate zfill";
static const char refused_of_lists[] = "append clear extend insert pop remove reverse sort";
static const char refused_of_dicts[] = "clear fromkeys pop popitem setdefault update";

const dsi_jbuiltin *dsi_jinja_method_find(dsi_jrun *r, dsi_jvalue of, dsi_jvalue name)
{
    static const dsi_jbuiltin dicts[] = {
        {"get", "!key default", dict_get}, {"items", "", dict_items}, {"keys", "", dict_keys},
        {"values", "", dict_values},       {"copy", "", copy},        {0}};
    static const dsi_jbuiltin lists[] = {
        {"index", "!value", list_index}, {"count", "!value", list_count}, {"copy", "", copy}, {0}};
    static const dsi_jbuiltin loops[] = {{"cycle", "*", loop_cycle}, {0}};
    static const dsi_jbuiltin none[] = {{0}};
    const dsi_jbuiltin *b = dsi_jbuiltin_find(of.kind == DSI_JSTRING ? dsi_jinja_string_methods
                                              : dsi_jis_list(of)     ? lists
                                              : of.kind == DSI_JDICT ? dicts
                                              : of.kind == DSI_JLOOP ? loops
                                                                     : none,
                                              name);
    const char *refused = of.kind == DSI_JSTRING ? refused_of_strings
                          : dsi_jis_list(of)     ? refused_of_lists
                          : of.kind == DSI_JDICT ? refused_of_dicts
                                                 : "";
    if (!b && dsi_has_word(refused, name.s, name.n))
        dsi_jfail(r, "the method \"%.*s\" of a %s is not implemented, or changes it", (int)name.n,
                  name.s, dsi_jtype(of));
    return b;
}

/* ---- tests ---- */

#define TEST(name, ...) \
    static dsi_jvalue test_##name(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args) \
    { \
        (void)r, (void)args; \
        return dsi_jbool(__VA_ARGS__); \
    }

static bool has_elements(dsi_jvalue v)
{
    return v.kind == DSI_JSTRING || dsi_jis_list(v) || v.kind == DSI_JDICT ||
           v.kind == DSI_JUNDEFINED;
}

/* x % by == rest. */
static bool leaves(dsi_jrun *r, dsi_jvalue x, dsi_jvalue by, int64_t rest)
{
    return dsi_jequal(r, dsi_jmath(r, '%', x, by), dsi_jint(rest));
}

/* Python's `is`: the same object; of numbers and strings it is not known. */
static bool is_same(dsi_jrun *r, dsi_jvalue a, dsi_jvalue b)
{
    if (a.kind != b.kind) return false;
    if (a.kind == DSI_JNONE) return true;
    if (a.kind == DSI_JBOOL) return a.b == b.b;
    if (a.kind == DSI_JINT || a.kind == DSI_JFLOAT || a.kind == DSI_JSTRING)
        dsi_jfail(r, "sameas: a %s", dsi_jtype(a));
    return a.dict == b.dict;
}

TEST(odd, leaves(r, of, dsi_jint(2), 1))
TEST(even, leaves(r, of, dsi_jint(2), 0))
TEST(divisibleby, leaves(r, of, args->at[0], 0))
TEST(defined, of.kind != DSI_JUNDEFINED)
TEST(undefined, of.kind == DSI_JUNDEFINED)
TEST(none, of.kind == DSI_JNONE)
TEST(boolean, of.kind == DSI_JBOOL)
TEST(true, of.kind == DSI_JBOOL && of.b)
TEST(false, of.kind == DSI_JBOOL && !of.b)
TEST(integer, of.kind == DSI_JINT)
TEST(float, of.kind == DSI_JFLOAT)
TEST(number, dsi_jis_number(of))
TEST(string, of.kind == DSI_JSTRING)
TEST(mapping, of.kind == DSI_JDICT)
TEST(sequence, has_elements(of))
TEST(iterable, has_elements(of) || of.kind == DSI_JLOOP || of.kind == DSI_JITERATOR)
TEST(callable, of.kind == DSI_JUNDEFINED || of.kind == DSI_JMACRO || of.kind == DSI_JMETHOD ||
                   of.kind == DSI_JFUNCTION)
TEST(sameas, is_same(r, of, args->at[0]))
TEST(in, dsi_jcontains(r, args->at[0], of))
TEST(eq, dsi_jequal(r, of, args->at[0]))
TEST(ne, !dsi_jequal(r, of, args->at[0]))
TEST(gt, dsi_jorder(r, of, args->at[0]) > 0)
TEST(ge, dsi_jorder(r, of, args->at[0]) >= 0)
TEST(lt, dsi_jorder(r, of, args->at[0]) < 0)
TEST(le, dsi_jorder(r, of, args->at[0]) <= 0)

const dsi_jbuiltin *dsi_jinja_test_find(dsi_jvalue name)
{
    static const dsi_jbuiltin rows[] = {{"odd", "", test_odd},
                                        {"even", "", test_even},
                                        {"defined", "", test_defined},
                                        {"undefined", "", test_undefined},
                                        {"none", "", test_none},
                                        {"boolean", "", test_boolean},
                                        {"true", "", test_true},
                                        {"false", "", test_false},
                                        {"integer", "", test_integer},
                                        {"float", "", test_float},
                                        {"number", "", test_number},
                                        {"string", "", test_string},
                                        {"mapping", "", test_mapping},
                                        {"sequence", "", test_sequence},
                                        {"iterable", "", test_iterable},
                                        {"callable", "", test_callable},
                                        {"lower", "", dsi_jis_lower},
                                        {"upper", "", dsi_jis_upper},
                                        {"sameas", "!other", test_sameas},
                                        {"in", "!seq", test_in},
                                        {"divisibleby", "!num", test_divisibleby},
                                        {"eq", "!other", test_eq},
                                        {"equalto", "!other", test_eq},
                                        {"ne", "!other", test_ne},
                                        {"gt", "!other", test_gt},
                                        {"greaterthan", "!other", test_gt},
                                        {"ge", "!other", test_ge},
                                        {"lt", "!other", test_lt},
                                        {"lessthan", "!other", test_lt},
                                        {"le", "!other", test_le},
                                        {0}};
    static const dsi_jbuiltin signs[] = {{"==", "!other", test_eq},
                                         {"!=", "!other", test_ne},
                                         {">", "!other", test_gt},
                                         {">=", "!other", test_ge},
                                         {"<", "!other", test_lt},
                                         {"<=", "!other", test_le},
                                         {0}};
    const dsi_jbuiltin *b = dsi_jbuiltin_find(rows, name);
    return b ? b : dsi_jbuiltin_find(signs, name);
}
