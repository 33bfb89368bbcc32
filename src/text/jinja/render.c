/* text/jinja/render.c: the statements of a template, and its text.
 * SPDX-License-Identifier: MIT */
#include "scope.h"

#include "base/error.h"

#include <string.h>

typedef enum Flow { NEXT, BREAK, CONTINUE } Flow;

static Flow body_run(dsi_jrun *r, const dsi_jnode *first);

/* The text of a body in a scope of its own, within `outer`. */
static dsi_jvalue body_text(dsi_jrun *r, const dsi_jnode *body, dsi_jscope *scope)
{
    dsi_text text = {0}, *out = r->out;
    dsi_jscope *before = r->scope;
    r->out = &text;
    r->scope = scope;
    body_run(r, body);
    r->out = out;
    r->scope = before;
    return dsi_jstring_of(r, &text);
}

/* ---- assignments ---- */

static void assign(dsi_jrun *r, const dsi_jnode *target, dsi_jvalue v)
{
    if (target->kind == DSI_JN_NAME) {
        dsi_jset(r, r->scope, target->value, v);
    } else if (target->kind == DSI_JN_ATTR) {
        const dsi_jvalue *of = dsi_jget(r, target->a->value);
        bool hidden = target->value.n && target->value.s[0] == '_';
        if (!of || of->kind != DSI_JNAMESPACE || hidden)
            dsi_jfail(r, "set: cannot assign to an attribute of what is no namespace, or to one "
                         "that begins with _");
        else
            dsi_jdict_set(r, of->dict, target->value, v);
    } else {
        dsi_jvalue list = dsi_jelements(r, v);
        const dsi_jnode *t = target->a;
        for (int64_t i = 0; i < list.list->n && t && !r->failed; i++, t = t->next)
            assign(r, t, list.list->at[i]);
        int64_t n = 0;
        for (const dsi_jnode *i = target->a; i; i = i->next) n++;
        if (n != list.list->n)
            dsi_jfail(r, "%lld values for %lld names", (long long)list.list->n, (long long)n);
    }
}

/* ---- macros ---- */

/* Arguments without a parameter: varargs, kwargs, caller, or an error. */
static void rest_bind(dsi_jrun *r, const dsi_jmacro *m, const dsi_jargs *args, int64_t n_params,
                      dsi_jscope *scope)
{
    int uses = m->node->op;
    dsi_jvalue varargs = dsi_jlist_new(r, DSI_JTUPLE), kwargs = dsi_jdict_new(r);
    for (int64_t i = n_params; i < args->list.list->n; i++)
        dsi_jlist_add(r, varargs, args->list.list->at[i]);
    for (int64_t i = 0; i < args->named->n; i++) {
        dsi_jpair p = args->named->at[i];
        bool known = false;
        for (const dsi_jnode *n = m->node->b; n; n = n->next)
            known |= dsi_jequal(r, n->value, p.key);
        bool caller = dsi_jis_text(p.key, "caller");
        if (caller && (uses & DSI_JUSES_CALLER)) dsi_jset(r, scope, p.key, p.value);
        if (!known && !caller) dsi_jdict_set(r, kwargs.dict, p.key, p.value);
        if (caller && !known && !(uses & DSI_JUSES_CALLER))
            dsi_jfail(r, "the macro was called from {%% call %%}, and does not call caller()");
    }
    if (varargs.list->n && !(uses & DSI_JUSES_VARARGS))
        dsi_jfail(r, "a macro takes no more than %lld arguments", (long long)n_params);
    if (kwargs.dict->n && !(uses & DSI_JUSES_KWARGS))
        dsi_jfail(r, "a macro has no parameter \"%.*s\"", (int)kwargs.dict->at[0].key.n,
                  kwargs.dict->at[0].key.s);
    if (uses & DSI_JUSES_VARARGS) dsi_jset(r, scope, dsi_jliteral("varargs"), varargs);
    if (uses & DSI_JUSES_KWARGS) dsi_jset(r, scope, dsi_jliteral("kwargs"), kwargs);
}

dsi_jvalue dsi_jmacro_run(dsi_jrun *r, const dsi_jmacro *m, const dsi_jargs *args)
{
    dsi_jscope *scope = dsi_jscope_new(r, m->scope), *before = r->scope;
    int64_t i = 0;
    if (r->depth + 20 > 4 * DSI_JINJA_DEPTH) return dsi_jfail(r, "macros call each other too deep");
    r->depth += 20;
    for (const dsi_jnode *p = m->node->b; p && !r->failed; p = p->next, i++) {
        dsi_jvalue *named = dsi_jdict_get(r, args->named, p->value), v;
        bool in_list = i < args->list.list->n;
        if (in_list && named) dsi_jfail(r, "%.*s is given twice", (int)p->value.n, p->value.s);
        r->scope = scope; /* a default may name parameters before it */
        v = in_list ? args->list.list->at[i]
            : named ? *named
            : p->a  ? dsi_jeval(r, p->a)
                    : dsi_jundefined(r, "parameter '%.*s' was not provided", (int)p->value.n,
                                     p->value.s);
        r->scope = before;
        dsi_jset(r, scope, p->value, v);
    }
    rest_bind(r, m, args, i, scope);
    dsi_jvalue text = r->failed ? dsi_jliteral("") : body_text(r, m->node->c, scope);
    r->depth -= 20;
    return text;
}

static dsi_jvalue macro_value(dsi_jrun *r, const dsi_jnode *n)
{
    dsi_jmacro *m = dsi_jarena_get(&r->arena, sizeof *m);
    m->node = n;
    m->scope = r->scope;
    return (dsi_jvalue){DSI_JMACRO, .macro = m};
}

/* {% call(...) macro(...) %}: the body is the macro's caller(). */
static void caller_run(dsi_jrun *r, const dsi_jnode *n)
{
    dsi_jvalue callee = dsi_jeval(r, n->a->a);
    dsi_jargs args = dsi_jeval_arguments(r, n->a->b);
    dsi_jdict_set(r, args.named, dsi_jliteral("caller"), macro_value(r, n));
    r->line = n->line;
    dsi_jadd_str(r, r->out, dsi_jcall(r, callee, &args));
}

/* ---- loops ---- */

static dsi_jvalue loop_list(dsi_jrun *r, const dsi_jnode *n)
{
    dsi_jvalue from = dsi_jeval(r, n->b);
    if (r->failed) return dsi_jlist_new(r, DSI_JLIST);
    from = dsi_jelements(r, from);
    if (!n->e) return from;
    dsi_jvalue list = dsi_jlist_new(r, DSI_JLIST);
    dsi_jscope *outer = r->scope;
    for (int64_t i = 0; i < from.list->n && !r->failed; i++) {
        r->scope = dsi_jscope_new(r, outer);
        assign(r, n->a, from.list->at[i]);
        if (dsi_jtrue(r, dsi_jeval(r, n->e))) dsi_jlist_add(r, list, from.list->at[i]);
    }
    r->scope = outer;
    return list;
}

/* As in jinja2, else is for a loop of which no turn came to its end: break and
 * continue leave it before that. */
static void for_run(dsi_jrun *r, const dsi_jnode *n)
{
    dsi_jvalue list = loop_list(r, n);
    dsi_jscope *outer = r->scope;
    Flow flow = NEXT;
    bool ended = false;
    for (int64_t i = 0; i < list.list->n && !r->failed && flow != BREAK; i++) {
        dsi_jloop *loop = dsi_jarena_get(&r->arena, sizeof *loop);
        *loop = (dsi_jloop){list.list, i, 1};
        r->scope = dsi_jscope_new(r, outer);
        dsi_jset(r, r->scope, dsi_jliteral("loop"), (dsi_jvalue){DSI_JLOOP, .loop = loop});
        assign(r, n->a, list.list->at[i]);
        flow = body_run(r, n->c);
        ended |= flow == NEXT;
    }
    r->scope = outer;
    if (!ended && n->d && !r->failed) {
        r->scope = dsi_jscope_new(r, outer);
        body_run(r, n->d);
        r->scope = outer;
    }
}

/* ---- other blocks ---- */

static Flow if_run(dsi_jrun *r, const dsi_jnode *n)
{
    for (; !r->failed; n = n->c) {
        if (dsi_jtrue(r, dsi_jeval(r, n->a))) return body_run(r, n->b);
        if (!n->c || !n->c->op) break; /* op: it is an elif */
    }
    return r->failed ? NEXT : body_run(r, n->c);
}

static dsi_jvalue filtered_text(dsi_jrun *r, const dsi_jnode *n)
{
    dsi_jvalue before = r->block, text = body_text(r, n->c, dsi_jscope_new(r, r->scope));
    if (!n->b || r->failed) return text;
    r->block = text;
    text = dsi_jeval(r, n->b);
    r->block = before;
    return text;
}

static Flow with_run(dsi_jrun *r, const dsi_jnode *n)
{
    dsi_jscope *outer = r->scope, *scope = dsi_jscope_new(r, outer);
    for (const dsi_jnode *s = n->b; s && !r->failed; s = s->next)
        dsi_jset(r, scope, s->a->value, dsi_jeval(r, s->b));
    r->scope = scope;
    Flow flow = body_run(r, n->c);
    r->scope = outer;
    return flow;
}

/* As transformers does, the span begins behind the text that the template has
 * written by itself: within a macro that is the text before its call. */
static void generation_run(dsi_jrun *r, const dsi_jnode *n)
{
    dsi_jvalue text = body_text(r, n->c, dsi_jscope_new(r, r->scope));
    size_t begin = r->root->n - r->root_begin;
    if (r->spans && !r->failed) dsi_list_add(r->spans, (dsi_jinja_span){begin, begin + text.n});
    dsi_jadd_str(r, r->out, text);
}

static Flow statement_run(dsi_jrun *r, const dsi_jnode *n)
{
    dsi_jvalue v;
    switch (n->kind) {
    case DSI_JN_DATA:
        dsi_jadd(r, r->out, n->value.s, n->value.n);
        return NEXT;
    case DSI_JN_PRINT:
        v = dsi_jeval(r, n->a);
        if (!r->failed) dsi_jadd_str(r, r->out, v);
        return NEXT;
    case DSI_JN_IF:
        return if_run(r, n);
    case DSI_JN_FOR:
        for_run(r, n);
        return NEXT;
    case DSI_JN_SET:
        v = dsi_jeval(r, n->b);
        if (!r->failed) assign(r, n->a, v);
        return NEXT;
    case DSI_JN_TEXT_OF:
        v = filtered_text(r, n);
        if (!r->failed) assign(r, n->a, v);
        return NEXT;
    case DSI_JN_FILTERED:
        v = filtered_text(r, n);
        if (!r->failed) dsi_jadd_str(r, r->out, v);
        return NEXT;
    case DSI_JN_MACRO:
        dsi_jset(r, r->scope, n->value, macro_value(r, n));
        return NEXT;
    case DSI_JN_CALLER:
        caller_run(r, n);
        return NEXT;
    case DSI_JN_WITH:
        return with_run(r, n);
    case DSI_JN_GENERATION:
        generation_run(r, n);
        return NEXT;
    default:
        return n->kind == DSI_JN_BREAK ? BREAK : CONTINUE;
    }
}

static Flow body_run(dsi_jrun *r, const dsi_jnode *first)
{
    Flow flow = NEXT;
    if (++r->depth > 4 * DSI_JINJA_DEPTH) dsi_jfail(r, "blocks nest too deep");
    for (const dsi_jnode *n = first; n && flow == NEXT && dsi_jstep(r, 1); n = n->next) {
        r->line = n->line;
        flow = statement_run(r, n);
    }
    r->depth--;
    return flow;
}

ds_status dsi_jinja_render(const dsi_jinja *t, const json_t *variables, dsi_text *out,
                           dsi_jinja_spans *spans)
{
    dsi_jrun r = {.t = t, .out = out, .root = out, .root_begin = out->n, .spans = spans, .line = 1};
    const char *name;
    json_t *value;
    r.scope = dsi_jscope_new(&r, NULL);
    json_object_foreach((json_t *)(uintptr_t)variables, name, value) dsi_jset(
        &r, r.scope, dsi_jstring_copy(&r, name, strlen(name)), dsi_jvalue_of_json(&r, value));
    /* The template's own variables. */
    r.scope = dsi_jscope_new(&r, r.scope);
    body_run(&r, t->body);
    dsi_jarena_free(&r.arena);
    return r.failed ? ds_error_status() : DS_OK;
}
