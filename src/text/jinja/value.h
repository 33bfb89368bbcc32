/* text/jinja/value.h: a render, and its values: as Python's str, int, float,
 * list, tuple and dict.
 *
 * A failure sticks: `failed` is set and the message is reported, once; further
 * calls return undefined values, and loops end.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "node.h"

#define DSI_JINJA_STEPS  20000000          /* of a render: nodes, and 64 bytes of work each */
#define DSI_JINJA_MEMORY ((size_t)1 << 28) /* bytes of a render's values, and of a text */

typedef struct dsi_jscope dsi_jscope;

typedef struct dsi_jrun {
    const dsi_jinja *t;
    dsi_jarena arena;
    dsi_jscope *scope;
    dsi_text *out;        /* receives text now */
    const dsi_text *root; /* the template's own text */
    size_t root_begin;    /* what it had before */
    dsi_jinja_spans *spans;
    dsi_jvalue block; /* the text that a filter without an operand takes */
    int64_t steps;
    int line, depth;
    bool failed;
} dsi_jrun;

/* Reports the failure with template and line; returns an undefined value. */
dsi_jvalue dsi_jfail(dsi_jrun *r, const char *format, ...) DS_PRINTF(2, 3);
dsi_jvalue dsi_jfail_with(dsi_jrun *r, ds_status status, const char *format, ...) DS_PRINTF(3, 4);
/* Fails with the message of an undefined value. */
static inline dsi_jvalue dsi_jfail_undefined(dsi_jrun *r, dsi_jvalue v)
{
    return dsi_jfail(r, "%.*s", (int)v.n, v.s);
}
/* Counts steps; false after a failure. */
bool dsi_jstep(dsi_jrun *r, size_t n);

/* ---- making values ---- */

dsi_jvalue dsi_jundefined(dsi_jrun *r, const char *format, ...) DS_PRINTF(2, 3);
static inline dsi_jvalue dsi_jnone(void) { return (dsi_jvalue){DSI_JNONE, .i = 0}; }
static inline dsi_jvalue dsi_jbool(bool b) { return (dsi_jvalue){DSI_JBOOL, .b = b}; }
static inline dsi_jvalue dsi_jint(int64_t i) { return (dsi_jvalue){DSI_JINT, .i = i}; }
static inline dsi_jvalue dsi_jfloat(double f) { return (dsi_jvalue){DSI_JFLOAT, .f = f}; }
/* A string of bytes that live as long as the render, and a copy of bytes. */
dsi_jvalue dsi_jstring(const char *s, size_t n);
dsi_jvalue dsi_jstring_copy(dsi_jrun *r, const char *s, size_t n);
/* The string of *text, which is freed. */
dsi_jvalue dsi_jstring_of(dsi_jrun *r, dsi_text *text);
dsi_jvalue dsi_jblanks(dsi_jrun *r, int64_t n);        /* none if n is below 1 */
dsi_jvalue dsi_jliteral(const char *s);                /* of a string constant */
dsi_jvalue dsi_jlist_new(dsi_jrun *r, dsi_jkind kind); /* a list or a tuple */
void dsi_jlist_add(dsi_jrun *r, dsi_jvalue list, dsi_jvalue v);
dsi_jvalue dsi_jpair_of(dsi_jrun *r, dsi_jvalue a, dsi_jvalue b); /* a tuple */
dsi_jvalue dsi_jdict_new(dsi_jrun *r);
void dsi_jdict_set(dsi_jrun *r, dsi_jdict *d, dsi_jvalue key, dsi_jvalue value);
dsi_jvalue dsi_jitems(dsi_jrun *r, const dsi_jdict *d); /* its pairs, a list of tuples */
dsi_jvalue dsi_jvalue_of_json(dsi_jrun *r, const json_t *json);

/* Appends bytes to a text, unless it becomes too long. */
void dsi_jadd(dsi_jrun *r, dsi_text *to, const char *s, size_t n);

/* ---- reading values ---- */

/* Whether s[0..n) is digits, at most 9; *i: their number, 0 of none. */
bool dsi_jdigits(const char *s, size_t n, int64_t *i);

static inline bool dsi_jis_list(dsi_jvalue v)
{
    return v.kind == DSI_JLIST || v.kind == DSI_JTUPLE;
}
static inline bool dsi_jis_number(dsi_jvalue v)
{
    return v.kind == DSI_JINT || v.kind == DSI_JFLOAT || v.kind == DSI_JBOOL;
}
static inline bool dsi_jis_whole(dsi_jvalue v) { return v.kind == DSI_JINT || v.kind == DSI_JBOOL; }
int64_t dsi_jwhole(dsi_jvalue v); /* of an int or a bool */
double dsi_jreal(dsi_jvalue v);   /* of a number */
bool dsi_jis_text(dsi_jvalue v, const char *s);

const char *dsi_jtype(dsi_jvalue v); /* as Python names it */
bool dsi_jtrue(dsi_jrun *r, dsi_jvalue v);
/* The number of elements, characters or pairs; fails for other values. */
int64_t dsi_jlength(dsi_jrun *r, dsi_jvalue v);
/* NULL: the dict has no such key. */
dsi_jvalue *dsi_jdict_get(dsi_jrun *r, const dsi_jdict *d, dsi_jvalue key);
bool dsi_jequal(dsi_jrun *r, dsi_jvalue a, dsi_jvalue b);
/* -1, 0, 1; fails if Python does not compare them. */
int dsi_jorder(dsi_jrun *r, dsi_jvalue a, dsi_jvalue b);
bool dsi_jcontains(dsi_jrun *r, dsi_jvalue in, dsi_jvalue v);
/* The elements, characters or keys as a list; fails for other values. */
dsi_jvalue dsi_jelements(dsi_jrun *r, dsi_jvalue v);
/* Appends Python's str and repr. */
void dsi_jadd_str(dsi_jrun *r, dsi_text *to, dsi_jvalue v);
void dsi_jadd_repr(dsi_jrun *r, dsi_text *to, dsi_jvalue v);
dsi_jvalue dsi_jstr(dsi_jrun *r, dsi_jvalue v);

/* ---- strings ---- */

/* Characters; the byte at which character i begins, at most n. */
int64_t dsi_jcharacters(dsi_jvalue s);
size_t dsi_jcharacter_at(dsi_jvalue s, int64_t i);
/* Characters [i, i + n) of s. */
dsi_jvalue dsi_jcharacters_of(dsi_jvalue s, int64_t i, int64_t n);
bool dsi_jis_blank(uint32_t c); /* str.isspace */
/* The byte of s at which `what` begins, from byte `from` on; -1: nowhere. */
int64_t dsi_jfind(dsi_jvalue s, dsi_jvalue what, size_t from);
