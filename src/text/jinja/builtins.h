/* text/jinja/builtins.h: the filters, tests, functions and methods that
 * templates may use.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "value.h"

#define DSI_JINJA_ARGUMENTS 6

/* The arguments of a call. */
typedef struct dsi_jargs {
    dsi_jvalue list;                    /* those without a name */
    dsi_jdict *named;                   /* not NULL */
    dsi_jvalue at[DSI_JINJA_ARGUMENTS]; /* in the order of a builtin's parameters; DSI_JUNDEFINED
                                           with s NULL: not given */
} dsi_jargs;

static inline bool dsi_jgiven(dsi_jvalue v) { return v.kind != DSI_JUNDEFINED || v.s; }
/* Whether an argument was given, and is not None. */
static inline bool dsi_jhas_value(dsi_jvalue v) { return dsi_jgiven(v) && v.kind != DSI_JNONE; }

/* `of`: the operand of a filter or a test, the object of a method. */
typedef dsi_jvalue (*dsi_jbuiltin_call)(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args);

typedef struct dsi_jbuiltin {
    const char *name;
    const char *parameters; /* separated by blanks, needed ones begin with '!'; "*": any */
    dsi_jbuiltin_call call;
} dsi_jbuiltin;

struct dsi_jmethod {
    dsi_jvalue of;
    const dsi_jbuiltin *builtin;
};

/* NULL: there is none of that name. */
const dsi_jbuiltin *dsi_jinja_filter_find(dsi_jvalue name);
const dsi_jbuiltin *dsi_jinja_test_find(dsi_jvalue name);
const dsi_jbuiltin *dsi_jinja_function_find(dsi_jvalue name);
/* Fails for a method of Python's that is not implemented or changes `of`. */
const dsi_jbuiltin *dsi_jinja_method_find(dsi_jrun *r, dsi_jvalue of, dsi_jvalue name);
const dsi_jbuiltin *dsi_jbuiltin_find(const dsi_jbuiltin *rows, dsi_jvalue name);
extern const dsi_jbuiltin dsi_jinja_string_methods[];

/* Fills args->at, checks names and numbers of arguments, and calls. */
dsi_jvalue dsi_jbuiltin_run(dsi_jrun *r, const dsi_jbuiltin *b, dsi_jvalue of, dsi_jargs *args);

/* of.name, of[key]: undefined if there is none (eval.c). */
dsi_jvalue dsi_jattribute(dsi_jrun *r, dsi_jvalue of, dsi_jvalue name);
dsi_jvalue dsi_jitem(dsi_jrun *r, dsi_jvalue of, dsi_jvalue key);
dsi_jvalue dsi_jmath(dsi_jrun *r, int op, dsi_jvalue a, dsi_jvalue b); /* a op b */

/* The pairs in the order of their keys, equal ones as they were (builtins.c). */
dsi_jpair *dsi_jsorted(dsi_jrun *r, const dsi_jpair *at, int64_t n, bool reverse);

/* of % values, of a string; the filter of it (percent.c). */
dsi_jvalue dsi_jpercent(dsi_jrun *r, dsi_jvalue of, dsi_jvalue values);
dsi_jvalue dsi_jformat(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args);
/* json.dumps (tojson.c). */
dsi_jvalue dsi_jtojson(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args);
/* Methods of strings that filters are, too (strings.c). */
dsi_jvalue dsi_jstrip(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args);
dsi_jvalue dsi_jreplace(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args);
dsi_jvalue dsi_jupper(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args);
dsi_jvalue dsi_jlower(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args);
dsi_jvalue dsi_jcapitalize(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args);
dsi_jvalue dsi_jtitle(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args);
dsi_jvalue dsi_jis_lower(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args);
dsi_jvalue dsi_jis_upper(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args);
dsi_jvalue dsi_jsplitlines(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args);
/* The texts of a list, `between` between them. */
dsi_jvalue dsi_jjoin_texts(dsi_jrun *r, dsi_jvalue list, dsi_jvalue between);
/* Appends s with &, <, >, ' and " as entities. */
void dsi_jadd_escaped(dsi_jrun *r, dsi_text *to, dsi_jvalue s);
