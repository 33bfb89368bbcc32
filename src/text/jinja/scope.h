/* text/jinja/scope.h: variables, and what a macro and a loop are.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "builtins.h"

typedef struct dsi_jvariable dsi_jvariable;
struct dsi_jvariable {
    dsi_jvalue name, value;
    dsi_jvariable *next;
};

/* The variables of the template, of a turn of a loop, of a macro's call, of a
 * block. `set` changes those of the innermost scope; `if` has no scope. */
struct dsi_jscope {
    dsi_jscope *outer;
    dsi_jvariable *first;
};

struct dsi_jmacro {
    const dsi_jnode *node; /* DSI_JN_MACRO, DSI_JN_CALLER */
    dsi_jscope *scope;     /* where it was defined */
};

struct dsi_jloop {
    const dsi_jlist *list;
    int64_t i, depth;
};

/* Opens a scope within `outer`; the caller sets r->scope back at its end. */
dsi_jscope *dsi_jscope_new(dsi_jrun *r, dsi_jscope *outer);
void dsi_jset(dsi_jrun *r, dsi_jscope *scope, dsi_jvalue name, dsi_jvalue value);
/* NULL: there is no such variable. */
const dsi_jvalue *dsi_jget(dsi_jrun *r, dsi_jvalue name);

/* The value of an expression (eval.c). */
dsi_jvalue dsi_jeval(dsi_jrun *r, const dsi_jnode *n);
/* The arguments of a call; a slice (eval.c, math.c). */
dsi_jargs dsi_jeval_arguments(dsi_jrun *r, const dsi_jnode *first);
dsi_jvalue dsi_jslice(dsi_jrun *r, dsi_jvalue of, const dsi_jvalue bound[3]);
/* The text of a macro's call (render.c). */
dsi_jvalue dsi_jmacro_run(dsi_jrun *r, const dsi_jmacro *m, const dsi_jargs *args);
dsi_jvalue dsi_jcall(dsi_jrun *r, dsi_jvalue callee, dsi_jargs *args);
