/* text/jinja/value.c: makes values, and compares and counts them as Python
 * does.
 * SPDX-License-Identifier: MIT */
#include "value.h"

#include "base/error.h"
#include "base/mem.h"
#include "text/unicode.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

/* ---- memory ---- */

#define BLOCK_BYTES 16384

struct dsi_jarena_block {
    dsi_jarena_block *before;
    size_t used, room;
    _Alignas(16) char bytes[];
};

void *dsi_jarena_get(dsi_jarena *a, size_t bytes)
{
    bytes = (bytes + 15) & ~(size_t)15;
    dsi_jarena_block *b = a->last;
    if (!b || b->room - b->used < bytes) {
        size_t room = bytes > BLOCK_BYTES / 4 ? bytes : BLOCK_BYTES;
        b = dsi_alloc(sizeof *b + room);
        b->room = room;
        b->before = a->last;
        /* A large block is full at once: the one before it stays in use. */
        if (a->last && room == bytes)
            b->before = a->last->before, a->last->before = b;
        else
            a->last = b;
        a->used += sizeof *b + room;
    }
    void *p = b->bytes + b->used;
    b->used += bytes;
    return p;
}

void dsi_jarena_free(dsi_jarena *a)
{
    for (dsi_jarena_block *b = a->last, *before; b; b = before) {
        before = b->before;
        dsi_free(b);
    }
    *a = (dsi_jarena){0};
}

/* ---- failures and limits ---- */

static void run_fail(dsi_jrun *r, ds_status status, const char *format, va_list args)
    DS_PRINTF(3, 0);
static void run_fail(dsi_jrun *r, ds_status status, const char *format, va_list args)
{
    dsi_text text = {0};
    dsi_text_add_args(&text, format, args);
    if (!r->failed) dsi_jinja_wrong_with(r->t, r->line, status, "%s", text.s ? text.s : "");
    r->failed = true;
    dsi_text_free(&text);
}

dsi_jvalue dsi_jfail(dsi_jrun *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    run_fail(r, DS_EFORMAT, format, args);
    va_end(args);
    return (dsi_jvalue){DSI_JUNDEFINED, .s = ""};
}

dsi_jvalue dsi_jfail_with(dsi_jrun *r, ds_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    run_fail(r, status, format, args);
    va_end(args);
    return (dsi_jvalue){DSI_JUNDEFINED, .s = ""};
}

bool dsi_jstep(dsi_jrun *r, size_t n)
{
    r->steps += (int64_t)(n < DSI_JINJA_STEPS ? n : DSI_JINJA_STEPS);
    if (r->steps >= DSI_JINJA_STEPS) dsi_jfail(r, "more than %d steps", DSI_JINJA_STEPS);
    if (r->arena.used > DSI_JINJA_MEMORY) dsi_jfail(r, "more than 256 MiB of values");
    return !r->failed;
}

/* Memory of a size that the template chooses; NULL after a failure. */
static void *run_get(dsi_jrun *r, size_t bytes)
{
    if (bytes > DSI_JINJA_MEMORY || !dsi_jstep(r, 1 + bytes / 64)) {
        dsi_jfail(r, "more than 256 MiB of values");
        return NULL;
    }
    return dsi_jarena_get(&r->arena, bytes);
}

void dsi_jadd(dsi_jrun *r, dsi_text *to, const char *s, size_t n)
{
    if (to->n + n > DSI_JINJA_MEMORY)
        dsi_jfail(r, "a text of more than 256 MiB");
    else if (n && dsi_jstep(r, n / 64))
        dsi_text_add_bytes(to, s, n);
}

bool dsi_jdigits(const char *s, size_t n, int64_t *i)
{
    bool digits = n < 10;
    *i = 0;
    for (size_t k = 0; k < n && digits; k++) {
        digits = s[k] >= '0' && s[k] <= '9';
        *i = 10 * *i + (s[k] - '0');
    }
    return digits;
}

/* ---- making values ---- */

dsi_jvalue dsi_jblanks(dsi_jrun *r, int64_t n)
{
    dsi_text text = {0};
    for (; n > 0 && !r->failed; n--) dsi_jadd(r, &text, " ", 1);
    return dsi_jstring_of(r, &text);
}

dsi_jvalue dsi_jstring(const char *s, size_t n)
{
    return (dsi_jvalue){DSI_JSTRING, .n = n, .s = s};
}

dsi_jvalue dsi_jliteral(const char *s) { return dsi_jstring(s, strlen(s)); }

dsi_jvalue dsi_jstring_copy(dsi_jrun *r, const char *s, size_t n)
{
    char *copy = n ? run_get(r, n) : NULL;
    if (!copy) return dsi_jstring("", 0);
    memcpy(copy, s, n);
    return dsi_jstring(copy, n);
}

dsi_jvalue dsi_jstring_of(dsi_jrun *r, dsi_text *text)
{
    dsi_jvalue v = dsi_jstring_copy(r, text->s, text->n);
    dsi_text_free(text);
    return v;
}

dsi_jvalue dsi_jundefined(dsi_jrun *r, const char *format, ...)
{
    dsi_text text = {0};
    va_list args;
    va_start(args, format);
    dsi_text_add_args(&text, format, args);
    va_end(args);
    dsi_jvalue v = dsi_jstring_of(r, &text);
    v.kind = DSI_JUNDEFINED;
    return v;
}

dsi_jvalue dsi_jlist_new(dsi_jrun *r, dsi_jkind kind)
{
    return (dsi_jvalue){kind, .list = dsi_jarena_get(&r->arena, sizeof(dsi_jlist))};
}

void dsi_jlist_add(dsi_jrun *r, dsi_jvalue list, dsi_jvalue v)
{
    dsi_jlist *l = list.list;
    if (!dsi_jstep(r, 1)) return;
    if (l->n == l->room) {
        int64_t room = l->room ? 2 * l->room : 8;
        dsi_jvalue *at = run_get(r, (size_t)room * sizeof *at);
        if (!at) return;
        if (l->n) memcpy(at, l->at, (size_t)l->n * sizeof *at);
        l->at = at, l->room = room;
    }
    l->at[l->n++] = v;
}

dsi_jvalue dsi_jpair_of(dsi_jrun *r, dsi_jvalue a, dsi_jvalue b)
{
    dsi_jvalue pair = dsi_jlist_new(r, DSI_JTUPLE);
    dsi_jlist_add(r, pair, a);
    dsi_jlist_add(r, pair, b);
    return pair;
}

dsi_jvalue dsi_jdict_new(dsi_jrun *r)
{
    return (dsi_jvalue){DSI_JDICT, .dict = dsi_jarena_get(&r->arena, sizeof(dsi_jdict))};
}

dsi_jvalue *dsi_jdict_get(dsi_jrun *r, const dsi_jdict *d, dsi_jvalue key)
{
    dsi_jstep(r, (size_t)d->n / 8);
    for (int64_t i = 0; i < d->n; i++)
        if (dsi_jequal(r, d->at[i].key, key)) return &d->at[i].value;
    return NULL;
}

void dsi_jdict_set(dsi_jrun *r, dsi_jdict *d, dsi_jvalue key, dsi_jvalue value)
{
    dsi_jvalue *old = dsi_jdict_get(r, d, key);
    if (key.kind == DSI_JLIST || key.kind == DSI_JDICT)
        dsi_jfail(r, "a %s as a key", dsi_jtype(key));
    if (old) *old = value;
    if (old || !dsi_jstep(r, 1)) return;
    if (d->n == d->room) {
        int64_t room = d->room ? 2 * d->room : 8;
        dsi_jpair *at = run_get(r, (size_t)room * sizeof *at);
        if (!at) return;
        if (d->n) memcpy(at, d->at, (size_t)d->n * sizeof *at);
        d->at = at, d->room = room;
    }
    d->at[d->n++] = (dsi_jpair){key, value};
}

dsi_jvalue dsi_jitems(dsi_jrun *r, const dsi_jdict *d)
{
    dsi_jvalue list = dsi_jlist_new(r, DSI_JLIST);
    for (int64_t i = 0; i < d->n; i++)
        dsi_jlist_add(r, list, dsi_jpair_of(r, d->at[i].key, d->at[i].value));
    return list;
}

/* Jansson's reader limits how deep values nest. */
dsi_jvalue dsi_jvalue_of_json(dsi_jrun *r, const json_t *json)
{
    dsi_jvalue v = dsi_jnone();
    const char *key;
    const json_t *item;
    size_t i;
    switch (json ? json_typeof(json) : JSON_NULL) {
    case JSON_OBJECT:
        v = dsi_jdict_new(r);
        json_object_foreach((json_t *)(uintptr_t)json, key, item) dsi_jdict_set(
            r, v.dict, dsi_jstring_copy(r, key, strlen(key)), dsi_jvalue_of_json(r, item));
        return v;
    case JSON_ARRAY:
        v = dsi_jlist_new(r, DSI_JLIST);
        json_array_foreach(json, i, item) dsi_jlist_add(r, v, dsi_jvalue_of_json(r, item));
        return v;
    case JSON_STRING:
        return dsi_jstring_copy(r, json_string_value(json), json_string_length(json));
    case JSON_INTEGER:
        return dsi_jint(json_integer_value(json));
    case JSON_REAL:
        return dsi_jfloat(json_real_value(json));
    case JSON_TRUE:
    case JSON_FALSE:
        return dsi_jbool(json_is_true(json));
    default:
        return v;
    }
}

/* ---- reading values ---- */

int64_t dsi_jwhole(dsi_jvalue v) { return v.kind == DSI_JBOOL ? v.b : v.i; }

double dsi_jreal(dsi_jvalue v) { return v.kind == DSI_JFLOAT ? v.f : (double)dsi_jwhole(v); }

bool dsi_jis_text(dsi_jvalue v, const char *s)
{
    return v.kind == DSI_JSTRING && v.n == strlen(s) && !memcmp(v.s, s, v.n);
}

const char *dsi_jtype(dsi_jvalue v)
{
    static const char *const names[] = {[DSI_JUNDEFINED] = "undefined",
                                        [DSI_JNONE] = "None",
                                        [DSI_JBOOL] = "bool",
                                        [DSI_JINT] = "int",
                                        [DSI_JFLOAT] = "float",
                                        [DSI_JSTRING] = "str",
                                        [DSI_JLIST] = "list",
                                        [DSI_JTUPLE] = "tuple",
                                        [DSI_JDICT] = "dict",
                                        [DSI_JITERATOR] = "generator",
                                        [DSI_JNAMESPACE] = "namespace",
                                        [DSI_JMACRO] = "macro",
                                        [DSI_JMETHOD] = "method",
                                        [DSI_JFUNCTION] = "function",
                                        [DSI_JLOOP] = "loop"};
    return names[v.kind];
}

bool dsi_jtrue(dsi_jrun *r, dsi_jvalue v)
{
    (void)r;
    switch (v.kind) {
    case DSI_JUNDEFINED:
    case DSI_JNONE:
        return false;
    case DSI_JBOOL:
        return v.b;
    case DSI_JINT:
        return v.i != 0;
    case DSI_JFLOAT:
        return v.f != 0;
    case DSI_JSTRING:
        return v.n > 0;
    case DSI_JLIST:
    case DSI_JTUPLE:
        return v.list->n > 0;
    case DSI_JDICT:
        return v.dict->n > 0;
    default:
        return true;
    }
}

int64_t dsi_jlength(dsi_jrun *r, dsi_jvalue v)
{
    switch (v.kind) {
    case DSI_JUNDEFINED:
        return 0;
    case DSI_JSTRING:
        dsi_jstep(r, v.n / 64);
        return dsi_jcharacters(v);
    case DSI_JLIST:
    case DSI_JTUPLE:
        return v.list->n;
    case DSI_JDICT:
        return v.dict->n;
    default:
        dsi_jfail(r, "a %s has no length", dsi_jtype(v));
        return 0;
    }
}

static bool strings_equal(dsi_jvalue a, dsi_jvalue b)
{
    return a.n == b.n && (!a.n || !memcmp(a.s, b.s, a.n));
}

static bool numbers_equal(dsi_jvalue a, dsi_jvalue b)
{
    if (dsi_jis_whole(a) && dsi_jis_whole(b)) return dsi_jwhole(a) == dsi_jwhole(b);
    return dsi_jreal(a) == dsi_jreal(b);
}

static bool lists_equal(dsi_jrun *r, const dsi_jlist *a, const dsi_jlist *b)
{
    if (a->n != b->n) return false;
    for (int64_t i = 0; i < a->n; i++)
        if (!dsi_jequal(r, a->at[i], b->at[i])) return false;
    return true;
}

static bool dicts_equal(dsi_jrun *r, const dsi_jdict *a, const dsi_jdict *b)
{
    if (a->n != b->n) return false;
    for (int64_t i = 0; i < a->n; i++) {
        dsi_jvalue *v = dsi_jdict_get(r, b, a->at[i].key);
        if (!v || !dsi_jequal(r, a->at[i].value, *v)) return false;
    }
    return true;
}

/* Values nest less deep than DSI_JINJA_DEPTH: json's limit, and that of loops
 * that wrap a value again and again. */
bool dsi_jequal(dsi_jrun *r, dsi_jvalue a, dsi_jvalue b)
{
    if (dsi_jis_number(a) && dsi_jis_number(b)) return numbers_equal(a, b);
    if (a.kind != b.kind) return false;
    if (a.kind == DSI_JSTRING) return strings_equal(a, b);
    if (a.kind == DSI_JUNDEFINED || a.kind == DSI_JNONE) return true;
    if (!dsi_jis_list(a) && a.kind != DSI_JDICT) return a.dict == b.dict;
    if (++r->depth > 4 * DSI_JINJA_DEPTH) dsi_jfail(r, "values nest too deep");
    bool equal = dsi_jstep(r, 1) && (a.kind == DSI_JDICT ? dicts_equal(r, a.dict, b.dict)
                                                         : lists_equal(r, a.list, b.list));
    r->depth--;
    return equal;
}

static int strings_order(dsi_jvalue a, dsi_jvalue b)
{
    size_t n = a.n < b.n ? a.n : b.n;
    int order = n ? memcmp(a.s, b.s, n) : 0;
    return order ? (order > 0) - (order < 0) : (a.n > b.n) - (a.n < b.n);
}

static int lists_order(dsi_jrun *r, const dsi_jlist *a, const dsi_jlist *b)
{
    if (++r->depth > 4 * DSI_JINJA_DEPTH) dsi_jfail(r, "values nest too deep");
    int order = 0;
    int64_t i = 0;
    for (; !order && i < a->n && i < b->n && dsi_jstep(r, 1); i++)
        if (!dsi_jequal(r, a->at[i], b->at[i])) order = dsi_jorder(r, a->at[i], b->at[i]);
    r->depth--;
    return order ? order : (a->n > b->n) - (a->n < b->n);
}

int dsi_jorder(dsi_jrun *r, dsi_jvalue a, dsi_jvalue b)
{
    if (dsi_jis_whole(a) && dsi_jis_whole(b))
        return (dsi_jwhole(a) > dsi_jwhole(b)) - (dsi_jwhole(a) < dsi_jwhole(b));
    if (dsi_jis_number(a) && dsi_jis_number(b))
        return (dsi_jreal(a) > dsi_jreal(b)) - (dsi_jreal(a) < dsi_jreal(b));
    if (a.kind == DSI_JSTRING && b.kind == DSI_JSTRING) return strings_order(a, b);
    if (a.kind == b.kind && dsi_jis_list(a)) return lists_order(r, a.list, b.list);
    if (a.kind == DSI_JUNDEFINED || b.kind == DSI_JUNDEFINED)
        dsi_jfail_undefined(r, a.kind == DSI_JUNDEFINED ? a : b);
    dsi_jfail(r, "%s and %s have no order", dsi_jtype(a), dsi_jtype(b));
    return 0;
}

bool dsi_jcontains(dsi_jrun *r, dsi_jvalue in, dsi_jvalue v)
{
    switch (in.kind) {
    case DSI_JUNDEFINED:
        return false;
    case DSI_JSTRING:
        if (v.kind != DSI_JSTRING) dsi_jfail(r, "a %s is looked for in a string", dsi_jtype(v));
        return dsi_jstep(r, 1 + in.n / 64) && dsi_jfind(in, v, 0) >= 0;
    case DSI_JLIST:
    case DSI_JTUPLE:
        for (int64_t i = 0; i < in.list->n && dsi_jstep(r, 1); i++)
            if (dsi_jequal(r, in.list->at[i], v)) return true;
        return false;
    case DSI_JITERATOR:
        while (in.list->n && dsi_jstep(r, 1)) {
            in.list->n--;
            if (dsi_jequal(r, *in.list->at++, v)) return true;
        }
        return false;
    case DSI_JDICT:
        return dsi_jdict_get(r, in.dict, v) != NULL;
    default:
        dsi_jfail(r, "a %s has no elements", dsi_jtype(in));
        return false;
    }
}

dsi_jvalue dsi_jelements(dsi_jrun *r, dsi_jvalue v)
{
    if (v.kind == DSI_JLIST) return v;
    dsi_jvalue list = dsi_jlist_new(r, DSI_JLIST);
    switch (v.kind) {
    case DSI_JUNDEFINED:
        break;
    case DSI_JSTRING:
        for (size_t at = 0, n; at < v.n && !r->failed; at += n) {
            n = dsi_utf8_length(v.s + at);
            dsi_jlist_add(r, list, dsi_jstring(v.s + at, n));
        }
        break;
    case DSI_JTUPLE:
        for (int64_t i = 0; i < v.list->n; i++) dsi_jlist_add(r, list, v.list->at[i]);
        break;
    case DSI_JITERATOR:
        *list.list = *v.list;
        *v.list = (dsi_jlist){0};
        break;
    case DSI_JDICT:
        for (int64_t i = 0; i < v.dict->n; i++) dsi_jlist_add(r, list, v.dict->at[i].key);
        break;
    default:
        dsi_jfail(r, "a %s has no elements", dsi_jtype(v));
    }
    return list;
}
