/* text/jinja/tojson.c: values as JSON, as Python's json.dumps writes them.
 * SPDX-License-Identifier: MIT */
#include "builtins.h"

#include "text/unicode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Writer {
    dsi_jrun *r;
    dsi_text text;
    bool ascii, sorted, indented;
    dsi_jvalue indent, item, key; /* a level's blanks; what separates items, and keys */
    int level;
} Writer;

static void put(Writer *w, const char *s) { dsi_jadd(w->r, &w->text, s, strlen(s)); }

static void put_code(Writer *w, uint32_t c) { dsi_text_add(&w->text, "\\u%04x", c); }

static void put_string(Writer *w, dsi_jvalue v)
{
    static const char from[] = "\"\\\n\r\t\b\f", as[] = "\"\\nrtbf";
    put(w, "\"");
    for (size_t i = 0, n; i < v.n && !w->r->failed; i += n) {
        uint32_t c = 0;
        n = dsi_utf8_length(v.s + i);
        dsi_utf8_decode(v.s + i, n, &c);
        const char *known = c && c < 0x80 ? strchr(from, (int)c) : NULL;
        if (known)
            dsi_text_add(&w->text, "\\%c", as[known - from]);
        else if (c < ' ' || (w->ascii && c > 0x7E && c < 0x10000))
            put_code(w, c);
        else if (w->ascii && c >= 0x10000)
            put_code(w, 0xD800 + ((c - 0x10000) >> 10)), put_code(w, 0xDC00 + (c & 0x3FF));
        else
            dsi_jadd(w->r, &w->text, v.s + i, n);
    }
    put(w, "\"");
}

static void put_newline(Writer *w)
{
    if (!w->indented) return;
    put(w, "\n");
    for (int i = 0; i < w->level && !w->r->failed; i++)
        dsi_jadd(w->r, &w->text, w->indent.s, w->indent.n);
}

static void put_scalar(Writer *w, dsi_jvalue v)
{
    if (v.kind == DSI_JSTRING)
        put_string(w, v);
    else if (v.kind == DSI_JNONE)
        put(w, "null");
    else if (v.kind == DSI_JBOOL)
        put(w, v.b ? "true" : "false");
    else if (v.kind == DSI_JFLOAT && !isfinite(v.f))
        put(w, isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity");
    else if (dsi_jis_number(v))
        dsi_jadd_str(w->r, &w->text, v);
    else
        dsi_jfail(w->r, "tojson: a value that is %s", dsi_jtype(v));
}

static void put_value(Writer *w, dsi_jvalue v);

static void put_key(Writer *w, dsi_jvalue key)
{
    bool text = key.kind == DSI_JSTRING;
    if (dsi_jis_list(key)) dsi_jfail(w->r, "tojson: a %s as a key", dsi_jtype(key));
    if (!text) put(w, "\"");
    put_scalar(w, key);
    if (!text) put(w, "\"");
}

static void put_dict(Writer *w, const dsi_jdict *d)
{
    dsi_jdict sorted = *d;
    if (w->sorted) sorted.at = dsi_jsorted(w->r, d->at, d->n, false);
    put(w, "{");
    for (int64_t i = 0; i < d->n && !w->r->failed; i++) {
        if (i) dsi_jadd(w->r, &w->text, w->item.s, w->item.n);
        put_newline(w);
        put_key(w, sorted.at[i].key);
        dsi_jadd(w->r, &w->text, w->key.s, w->key.n);
        put_value(w, sorted.at[i].value);
    }
    w->level--;
    if (d->n) put_newline(w);
    put(w, "}");
}

static void put_list(Writer *w, const dsi_jlist *l)
{
    put(w, "[");
    for (int64_t i = 0; i < l->n && !w->r->failed; i++) {
        if (i) dsi_jadd(w->r, &w->text, w->item.s, w->item.n);
        put_newline(w);
        put_value(w, l->at[i]);
    }
    w->level--;
    if (l->n) put_newline(w);
    put(w, "]");
}

static void put_value(Writer *w, dsi_jvalue v)
{
    if (!dsi_jstep(w->r, 1)) return;
    if (v.kind != DSI_JDICT && !dsi_jis_list(v)) {
        put_scalar(w, v);
        return;
    }
    if (++w->level > DSI_JINJA_DEPTH)
        dsi_jfail(w->r, "tojson: values nest too deep");
    else if (v.kind == DSI_JDICT)
        put_dict(w, v.dict);
    else
        put_list(w, v.list);
}

/* The blanks of `indent`, which is a number or a text. */
static dsi_jvalue blanks_of(dsi_jrun *r, dsi_jvalue indent)
{
    if (indent.kind == DSI_JSTRING) return indent;
    if (!dsi_jis_whole(indent)) dsi_jfail(r, "tojson: indent is a %s", dsi_jtype(indent));
    return dsi_jblanks(r, dsi_jwhole(indent));
}

dsi_jvalue dsi_jtojson(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    dsi_jvalue indent = args->at[1], separators = args->at[2];
    Writer w = {.r = r, .item = dsi_jliteral(", "), .key = dsi_jliteral(": ")};
    w.ascii = dsi_jtrue(r, args->at[0]);
    w.sorted = dsi_jtrue(r, args->at[3]);
    w.indented = dsi_jhas_value(indent);
    if (w.indented) w.item = dsi_jliteral(","), w.indent = blanks_of(r, indent);
    if (dsi_jhas_value(separators)) {
        bool pair = dsi_jis_list(separators) && separators.list->n == 2;
        for (int i = 0; i < 2 && pair; i++) pair = separators.list->at[i].kind == DSI_JSTRING;
        if (!pair) return dsi_jfail(r, "tojson: separators: expected two texts");
        w.item = separators.list->at[0], w.key = separators.list->at[1];
    }
    put_value(&w, of);
    return dsi_jstring_of(r, &w.text);
}
