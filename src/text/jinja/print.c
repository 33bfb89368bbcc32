/* text/jinja/print.c: strings of values: str, repr, characters.
 * SPDX-License-Identifier: MIT */
#include "value.h"

#include "base/mem.h"
#include "text/libraries.h"
#include "text/unicode.h"

#include <math.h>
#include <string.h>

/* ---- characters ---- */

bool dsi_jis_blank(uint32_t c) { return dsi_is_space(c) || (c >= 0x1C && c <= 0x1F); }

int64_t dsi_jcharacters(dsi_jvalue s)
{
    int64_t n = 0;
    for (size_t i = 0; i < s.n; i++) n += ((unsigned char)s.s[i] & 0xC0) != 0x80;
    return n;
}

size_t dsi_jcharacter_at(dsi_jvalue s, int64_t i)
{
    size_t at = 0;
    for (; i > 0 && at < s.n; i--) at += dsi_utf8_length(s.s + at);
    return at;
}

dsi_jvalue dsi_jcharacters_of(dsi_jvalue s, int64_t i, int64_t n)
{
    size_t begin = dsi_jcharacter_at(s, i);
    dsi_jvalue rest = s;
    rest.s = s.s + begin, rest.n = s.n - begin;
    rest.n = dsi_jcharacter_at(rest, n);
    return rest;
}

int64_t dsi_jfind(dsi_jvalue s, dsi_jvalue what, size_t from)
{
    if (!what.n) return from <= s.n ? (int64_t)from : -1;
    const char *at = from < s.n ? memmem(s.s + from, s.n - from, what.s, what.n) : NULL;
    return at ? at - s.s : -1;
}

/* str.isprintable. */
static bool is_printable(uint32_t c)
{
    if (c < 0x7F) return c >= ' ';
    const dsi_utf8proc *u = dsi_utf8proc_open();
    utf8proc_category_t k = u ? u->category((utf8proc_int32_t)c) : UTF8PROC_CATEGORY_LO;
    return k != UTF8PROC_CATEGORY_CN && k < UTF8PROC_CATEGORY_ZS;
}

/* ---- repr ---- */

static void add_character(dsi_jrun *r, dsi_text *to, const char *s, size_t n, char quote)
{
    uint32_t c = 0;
    dsi_utf8_decode(s, n, &c);
    if (c == (unsigned char)quote || c == '\\')
        dsi_text_add(to, "\\%c", (char)c);
    else if (c == '\n' || c == '\r' || c == '\t')
        dsi_text_add(to, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    else if (is_printable(c))
        dsi_jadd(r, to, s, n);
    else
        dsi_text_add(to, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
}

static void add_string_repr(dsi_jrun *r, dsi_text *to, dsi_jvalue v)
{
    char quote = v.n && memchr(v.s, '\'', v.n) && !memchr(v.s, '"', v.n) ? '"' : '\'';
    if (v.markup) dsi_text_add(to, "Markup(");
    dsi_text_add(to, "%c", quote);
    dsi_jstep(r, v.n / 8);
    for (size_t i = 0, n; i < v.n && !r->failed; i += n) {
        n = dsi_utf8_length(v.s + i);
        add_character(r, to, v.s + i, n, quote);
    }
    dsi_text_add(to, v.markup ? "%c)" : "%c", quote);
}

static void add_list_repr(dsi_jrun *r, dsi_text *to, dsi_jvalue v)
{
    bool tuple = v.kind == DSI_JTUPLE;
    dsi_jadd(r, to, tuple ? "(" : "[", 1);
    for (int64_t i = 0; i < v.list->n && !r->failed; i++) {
        if (i) dsi_jadd(r, to, ", ", 2);
        dsi_jadd_repr(r, to, v.list->at[i]);
    }
    if (tuple && v.list->n == 1) dsi_jadd(r, to, ",", 1);
    dsi_jadd(r, to, tuple ? ")" : "]", 1);
}

static void add_dict_repr(dsi_jrun *r, dsi_text *to, dsi_jvalue v)
{
    dsi_jadd(r, to, "{", 1);
    for (int64_t i = 0; i < v.dict->n && !r->failed; i++) {
        if (i) dsi_jadd(r, to, ", ", 2);
        dsi_jadd_repr(r, to, v.dict->at[i].key);
        dsi_jadd(r, to, ": ", 2);
        dsi_jadd_repr(r, to, v.dict->at[i].value);
    }
    dsi_jadd(r, to, "}", 1);
}

void dsi_jadd_repr(dsi_jrun *r, dsi_text *to, dsi_jvalue v)
{
    if (!dsi_jstep(r, 1)) return;
    if (++r->depth > 4 * DSI_JINJA_DEPTH) dsi_jfail(r, "values nest too deep");
    if (r->failed)
        ;
    else if (v.kind == DSI_JSTRING)
        add_string_repr(r, to, v);
    else if (v.kind == DSI_JUNDEFINED)
        dsi_jadd(r, to, "Undefined", 9);
    else if (dsi_jis_list(v))
        add_list_repr(r, to, v);
    else if (v.kind == DSI_JDICT)
        add_dict_repr(r, to, v);
    else
        dsi_jadd_str(r, to, v);
    r->depth--;
}

void dsi_jadd_str(dsi_jrun *r, dsi_text *to, dsi_jvalue v)
{
    switch (v.kind) {
    case DSI_JUNDEFINED:
        break;
    case DSI_JNONE:
        dsi_jadd(r, to, "None", 4);
        break;
    case DSI_JBOOL:
        dsi_jadd(r, to, v.b ? "True" : "False", v.b ? 4 : 5);
        break;
    case DSI_JINT:
        dsi_text_add(to, "%lld", (long long)v.i);
        break;
    case DSI_JFLOAT:
        dsi_text_add_double(to, v.f);
        break;
    case DSI_JSTRING:
        dsi_jadd(r, to, v.s, v.n);
        break;
    case DSI_JLIST:
    case DSI_JTUPLE:
    case DSI_JDICT:
        dsi_jadd_repr(r, to, v);
        break;
    default:
        dsi_jfail(r, "a %s is printed", dsi_jtype(v));
    }
}

dsi_jvalue dsi_jstr(dsi_jrun *r, dsi_jvalue v)
{
    if (v.kind == DSI_JSTRING) return v;
    dsi_text text = {0};
    dsi_jadd_str(r, &text, v);
    return dsi_jstring_of(r, &text);
}
