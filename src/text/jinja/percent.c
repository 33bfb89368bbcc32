/* text/jinja/percent.c: "..." % values, Python's formatting of printf's kind,
 * and the filter that is made of it.
 *
 *     %[(name)][flags][width][.precision]type
 *
 * Types are s, r, d, i, u, x, X, o, e, E, f, F, g and G, flags -, 0, + and a
 * blank. "*", "#", "a" and "c" are refused.
 * SPDX-License-Identifier: MIT */
#include "builtins.h"

#include "base/int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MOST_DIGITS 300 /* of a precision */

typedef struct Field {
    bool left, zeros, plus, blank;
    int64_t width, precision; /* precision -1: none */
    char type;
} Field;

/* Values of the fields: a tuple's elements, or one value, which may be a
 * dict. */
typedef struct Values {
    dsi_jvalue of;
    int64_t n, next;
} Values;

/* 0 is in no set. */
static bool is_in(const char *set, char c) { return c && strchr(set, c); }

static dsi_jvalue value_next(dsi_jrun *r, Values *v)
{
    if (v->next >= v->n) return dsi_jfail(r, "%%: not enough arguments for the format");
    v->next++;
    return v->of.kind == DSI_JTUPLE ? v->of.list->at[v->next - 1] : v->of;
}

/* The value of a field that begins with "(name)", which *s is behind then. */
static dsi_jvalue value_named(dsi_jrun *r, const char **s, const char *end, const Values *v)
{
    const char *name = *s + 1, *close = memchr(name, ')', (size_t)(end - name));
    if (!close) return dsi_jfail(r, "%%: ( without )");
    if (v->of.kind != DSI_JDICT) return dsi_jfail(r, "%%: a name needs a dict");
    dsi_jvalue key = dsi_jstring(name, (size_t)(close - name));
    dsi_jvalue *value = dsi_jdict_get(r, v->of.dict, key);
    *s = close + 1;
    return value ? *value : dsi_jfail(r, "%%: the dict has no \"%.*s\"", (int)key.n, key.s);
}

/* A number at *s, which is behind it then; of more than 9 digits -1. */
static int64_t digits_read(const char **s, const char *end)
{
    const char *from = *s;
    int64_t n;
    while (*s < end && **s >= '0' && **s <= '9') ++*s;
    return dsi_jdigits(from, (size_t)(*s - from), &n) ? n : -1;
}

/* The rest of a field, behind its name; *s is behind it then. */
static Field field_read(dsi_jrun *r, const char **s, const char *end)
{
    Field f = {.precision = -1};
    for (; *s < end && is_in("-0+ ", **s); ++*s) {
        f.left |= **s == '-', f.zeros |= **s == '0';
        f.plus |= **s == '+', f.blank |= **s == ' ';
    }
    f.width = digits_read(s, end);
    if (*s < end && **s == '.') ++*s, f.precision = digits_read(s, end);
    while (*s < end && is_in("hlL", **s)) ++*s;
    if (*s == end)
        dsi_jfail(r, "%%: the format ends within a field");
    else if (!is_in("srdiuxXoeEfFgG", **s) || f.width < 0 || f.precision > MOST_DIGITS)
        dsi_jfail(r, "%%: a field with \"%.1s\" is not implemented", *s);
    else
        f.type = *(*s)++;
    return f;
}

/* Appends n blanks or zeros. */
static void add_times(dsi_jrun *r, dsi_text *to, const char *c, int64_t n)
{
    for (; n > 0 && dsi_jstep(r, 1); n--) dsi_jadd(r, to, c, 1);
}

/* Appends a text, which numbers begin with a sign of `sign` bytes. */
static void add_padded(dsi_jrun *r, dsi_text *to, const Field *f, dsi_jvalue s, size_t sign)
{
    int64_t pad = f->width - dsi_jcharacters(s);
    bool zeros = f->zeros && !f->left && !is_in("sr", f->type);
    if (!f->left && !zeros) add_times(r, to, " ", pad);
    dsi_jadd(r, to, s.s, sign);
    if (zeros) add_times(r, to, "0", pad);
    dsi_jadd(r, to, s.s + sign, s.n - sign);
    if (f->left) add_times(r, to, " ", pad);
}

/* The digits of a number without its sign. */
static void number_print(const Field *f, dsi_jvalue v, char *text, size_t room)
{
    int precision = (int)dsi_max(1, f->precision);
    bool real = is_in("eEfFgG", f->type);
    unsigned long long whole = 0;
    if (dsi_jis_whole(v)) {
        int64_t i = dsi_jwhole(v);
        whole = i < 0 ? 0 - (unsigned long long)i : (unsigned long long)i;
    } else if (!real) {
        whole = (unsigned long long)fabs(dsi_jreal(v));
    }
    if (real) {
        char format[] = {'%', '.', '*', f->type, 0};
        precision = (int)(f->precision < 0 ? 6 : f->precision);
        snprintf(text, room, format, precision, fabs(dsi_jreal(v)));
    } else if (f->type == 'x') {
        snprintf(text, room, "%.*llx", precision, whole);
    } else if (f->type == 'X') {
        snprintf(text, room, "%.*llX", precision, whole);
    } else {
        snprintf(text, room, f->type == 'o' ? "%.*llo" : "%.*llu", precision, whole);
    }
}

static void add_number(dsi_jrun *r, dsi_text *to, const Field *f, dsi_jvalue v)
{
    char text[MOST_DIGITS + 350]; /* the largest double has 309 digits */
    bool whole = dsi_jis_whole(v), real = is_in("eEfFgG", f->type);
    if (!dsi_jis_number(v) || (!whole && is_in("xXo", f->type))) {
        dsi_jfail(r, "%%%c of a %s", f->type, dsi_jtype(v));
        return;
    }
    if (!whole && !real && !(fabs(dsi_jreal(v)) < 0x1p63)) {
        dsi_jfail(r, "%%%c of a number that has no 64 bits", f->type);
        return;
    }
    bool truncated = !whole && !real;
    bool negative = whole       ? dsi_jwhole(v) < 0
                    : truncated ? dsi_jreal(v) <= -1
                                : signbit(dsi_jreal(v)) && !isnan(dsi_jreal(v));
    text[0] = negative ? '-' : f->plus ? '+' : ' ';
    size_t sign = negative || f->plus || f->blank;
    number_print(f, v, text + sign, sizeof text - sign);
    add_padded(r, to, f, dsi_jstring(text, strlen(text)), sign);
}

static void add_field(dsi_jrun *r, dsi_text *to, const Field *f, dsi_jvalue v)
{
    if (!is_in("sr", f->type)) {
        add_number(r, to, f, v);
        return;
    }
    dsi_text text = {0};
    if (f->type == 'r')
        dsi_jadd_repr(r, &text, v);
    else
        dsi_jadd_str(r, &text, v);
    dsi_jvalue s = dsi_jstring_of(r, &text);
    if (f->precision >= 0) s = dsi_jcharacters_of(s, 0, f->precision);
    add_padded(r, to, f, s, 0);
}

dsi_jvalue dsi_jpercent(dsi_jrun *r, dsi_jvalue of, dsi_jvalue values)
{
    if (of.markup) return dsi_jfail(r, "%% of a safe string is not implemented");
    Values v = {values, values.kind == DSI_JTUPLE ? values.list->n : 1, 0};
    dsi_text text = {0};
    const char *end = of.s + of.n;
    for (const char *s = of.s; s < end && dsi_jstep(r, 1);) {
        const char *mark = memchr(s, '%', (size_t)(end - s));
        dsi_jadd(r, &text, s, (size_t)((mark ? mark : end) - s));
        if (!mark) break;
        s = mark + 1;
        if (s < end && *s == '%') {
            dsi_jadd(r, &text, s++, 1);
            continue;
        }
        bool named = s < end && *s == '(';
        dsi_jvalue value = named ? value_named(r, &s, end, &v) : dsi_jnone();
        Field f = r->failed ? (Field){0} : field_read(r, &s, end);
        if (!r->failed && !named) value = value_next(r, &v);
        if (!r->failed) add_field(r, &text, &f, value);
    }
    bool left = v.next < v.n && values.kind != DSI_JDICT && values.kind != DSI_JLIST &&
                values.kind != DSI_JUNDEFINED;
    if (left && !r->failed) dsi_jfail(r, "%%: not all arguments are in the format");
    return dsi_jstring_of(r, &text);
}

dsi_jvalue dsi_jformat(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    dsi_jvalue values = args->list;
    if (args->named->n && values.list->n)
        return dsi_jfail(r, "format: expected values with names, or without, not both");
    values.kind = DSI_JTUPLE;
    if (args->named->n) values = (dsi_jvalue){DSI_JDICT, .dict = args->named};
    return dsi_jpercent(r, dsi_jstr(r, of), values);
}
