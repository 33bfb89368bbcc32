/* text/jinja/eval.c: the values of expressions.
 * SPDX-License-Identifier: MIT */
#include "scope.h"

#include <string.h>

/* ---- variables ---- */

dsi_jscope *dsi_jscope_new(dsi_jrun *r, dsi_jscope *outer)
{
    dsi_jscope *s = dsi_jarena_get(&r->arena, sizeof *s);
    s->outer = outer;
    return s;
}

static dsi_jvariable *variable_find(const dsi_jscope *scope, dsi_jvalue name)
{
    for (dsi_jvariable *v = scope->first; v; v = v->next)
        if (v->name.n == name.n && !memcmp(v->name.s, name.s, name.n)) return v;
    return NULL;
}

void dsi_jset(dsi_jrun *r, dsi_jscope *scope, dsi_jvalue name, dsi_jvalue value)
{
    dsi_jvariable *v = variable_find(scope, name);
    if (!v) {
        v = dsi_jarena_get(&r->arena, sizeof *v);
        v->name = name;
        v->next = scope->first;
        scope->first = v;
    }
    v->value = value;
}

const dsi_jvalue *dsi_jget(dsi_jrun *r, dsi_jvalue name)
{
    for (const dsi_jscope *s = r->scope; s; s = s->outer) {
        const dsi_jvariable *v = variable_find(s, name);
        if (v) return &v->value;
    }
    return NULL;
}

static dsi_jvalue name_eval(dsi_jrun *r, const dsi_jnode *n)
{
    const dsi_jvalue *v = dsi_jget(r, n->value);
    if (v) return *v;
    const dsi_jbuiltin *f = dsi_jinja_function_find(n->value);
    if (!f) return dsi_jundefined(r, "'%.*s' is undefined", (int)n->value.n, n->value.s);
    dsi_jmethod *m = dsi_jarena_get(&r->arena, sizeof *m);
    m->builtin = f;
    return (dsi_jvalue){DSI_JFUNCTION, .method = m};
}

/* ---- attributes and elements ---- */

static dsi_jvalue loop_attribute(dsi_jrun *r, const dsi_jloop *l, dsi_jvalue name)
{
    int64_t n = l->list->n;
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"index", l->i + 1},         {"index0", l->i}, {"revindex", n - l->i},
                   {"revindex0", n - l->i - 1}, {"length", n},    {"depth", l->depth},
                   {"depth0", l->depth - 1}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (dsi_jis_text(name, numbers[i].name)) return dsi_jint(numbers[i].value);
    if (dsi_jis_text(name, "first")) return dsi_jbool(l->i == 0);
    if (dsi_jis_text(name, "last")) return dsi_jbool(l->i == n - 1);
    bool before = dsi_jis_text(name, "previtem");
    if (!before && !dsi_jis_text(name, "nextitem"))
        return dsi_jfail(r, "loop.%.*s is not implemented", (int)name.n, name.s);
    int64_t at = l->i + (before ? -1 : 1);
    if (at >= 0 && at < n) return l->list->at[at];
    return dsi_jundefined(r, before ? "there is no previous item" : "there is no next item");
}

static dsi_jvalue no_attribute(dsi_jrun *r, dsi_jvalue of, dsi_jvalue name)
{
    return dsi_jundefined(r, "'%s object' has no attribute '%.*s'", dsi_jtype(of), (int)name.n,
                          name.s);
}

/* A method, as a value. */
static dsi_jvalue method_of(dsi_jrun *r, dsi_jvalue of, dsi_jvalue name)
{
    const dsi_jbuiltin *b = dsi_jinja_method_find(r, of, name);
    if (!b) return no_attribute(r, of, name);
    dsi_jmethod *m = dsi_jarena_get(&r->arena, sizeof *m);
    m->of = of;
    m->builtin = b;
    return (dsi_jvalue){DSI_JMETHOD, .method = m};
}

dsi_jvalue dsi_jattribute(dsi_jrun *r, dsi_jvalue of, dsi_jvalue name)
{
    if (of.kind == DSI_JUNDEFINED) return dsi_jfail_undefined(r, of);
    bool is_loop = of.kind == DSI_JLOOP;
    if (is_loop && !dsi_jis_text(name, "cycle")) return loop_attribute(r, of.loop, name);
    dsi_jvalue method = of.kind == DSI_JNAMESPACE ? (dsi_jvalue){0} : method_of(r, of, name);
    if (method.kind == DSI_JMETHOD || r->failed) return method;
    dsi_jvalue *v = of.kind == DSI_JDICT || of.kind == DSI_JNAMESPACE
                        ? dsi_jdict_get(r, of.dict, name)
                        : NULL;
    return v ? *v : no_attribute(r, of, name);
}

dsi_jvalue dsi_jitem(dsi_jrun *r, dsi_jvalue of, dsi_jvalue key)
{
    if (of.kind == DSI_JUNDEFINED) return dsi_jfail_undefined(r, of);
    if (of.kind == DSI_JDICT) {
        dsi_jvalue *v = dsi_jdict_get(r, of.dict, key);
        if (v) return *v;
    }
    bool sequence = of.kind == DSI_JSTRING || dsi_jis_list(of);
    if (sequence && dsi_jis_whole(key)) {
        int64_t n = dsi_jlength(r, of), i = dsi_jwhole(key);
        if (i < 0) i += n;
        if (i < 0 || i >= n)
            return dsi_jundefined(r, "a %s of %lld elements has no element %lld", dsi_jtype(of),
                                  (long long)n, (long long)dsi_jwhole(key));
        return of.kind == DSI_JSTRING ? dsi_jcharacters_of(of, i, 1) : of.list->at[i];
    }
    if (key.kind == DSI_JSTRING) return dsi_jattribute(r, of, key);
    return dsi_jundefined(r, "a %s has no element %s", dsi_jtype(of), dsi_jtype(key));
}

static dsi_jvalue item_eval(dsi_jrun *r, const dsi_jnode *n)
{
    dsi_jvalue of = dsi_jeval(r, n->a);
    if (n->b && n->b->kind == DSI_JN_SLICE) {
        dsi_jvalue bound[3];
        const dsi_jnode *from[3] = {n->b->a, n->b->b, n->b->c};
        for (int i = 0; i < 3; i++) bound[i] = from[i] ? dsi_jeval(r, from[i]) : dsi_jnone();
        return r->failed ? of : dsi_jslice(r, of, bound);
    }
    dsi_jvalue key = dsi_jeval(r, n->b);
    return r->failed ? of : dsi_jitem(r, of, key);
}

/* ---- calls ---- */

static void spread(dsi_jrun *r, dsi_jargs *args, dsi_jvalue v, bool named)
{
    if (!named) {
        dsi_jvalue list = dsi_jelements(r, v);
        for (int64_t i = 0; i < list.list->n; i++) dsi_jlist_add(r, args->list, list.list->at[i]);
    } else if (v.kind != DSI_JDICT) {
        dsi_jfail(r, "** of a %s", dsi_jtype(v));
    } else {
        for (int64_t i = 0; i < v.dict->n; i++)
            dsi_jdict_set(r, args->named, v.dict->at[i].key, v.dict->at[i].value);
    }
}

dsi_jargs dsi_jeval_arguments(dsi_jrun *r, const dsi_jnode *first)
{
    dsi_jargs args = {.list = dsi_jlist_new(r, DSI_JLIST), .named = dsi_jdict_new(r).dict};
    for (const dsi_jnode *n = first; n && !r->failed; n = n->next) {
        dsi_jvalue v = dsi_jeval(r, n->a);
        if (n->op)
            spread(r, &args, v, n->op == DSI_JOP_POW);
        else if (n->value.kind == DSI_JSTRING)
            dsi_jdict_set(r, args.named, n->value, v);
        else
            dsi_jlist_add(r, args.list, v);
    }
    return args;
}

dsi_jvalue dsi_jcall(dsi_jrun *r, dsi_jvalue callee, dsi_jargs *args)
{
    if (r->failed) return callee;
    switch (callee.kind) {
    case DSI_JFUNCTION:
    case DSI_JMETHOD:
        return dsi_jbuiltin_run(r, callee.method->builtin, callee.method->of, args);
    case DSI_JMACRO:
        return dsi_jmacro_run(r, callee.macro, args);
    case DSI_JUNDEFINED:
        return dsi_jfail_undefined(r, callee);
    default:
        return dsi_jfail(r, "a %s is called", dsi_jtype(callee));
    }
}

static dsi_jvalue call_eval(dsi_jrun *r, const dsi_jnode *n)
{
    dsi_jvalue callee = dsi_jeval(r, n->a);
    dsi_jargs args = dsi_jeval_arguments(r, n->b);
    r->line = n->line;
    return dsi_jcall(r, callee, &args);
}

/* A filter or a test that is not known, b NULL, fails when it is reached: in
 * jinja2, too, one may be behind a condition. */
static dsi_jvalue builtin_eval(dsi_jrun *r, const dsi_jnode *n, const dsi_jbuiltin *b)
{
    dsi_jvalue of = n->a ? dsi_jeval(r, n->a) : r->block;
    dsi_jargs args = dsi_jeval_arguments(r, n->b);
    r->line = n->line;
    if (!b)
        return dsi_jfail(r, "the %s \"%.*s\" is not implemented",
                         n->kind == DSI_JN_FILTER ? "filter" : "test", (int)n->value.n, n->value.s);
    return r->failed ? of : dsi_jbuiltin_run(r, b, of, &args);
}

/* ---- operators ---- */

static bool compare(dsi_jrun *r, int op, dsi_jvalue a, dsi_jvalue b)
{
    switch (op) {
    case DSI_JOP_EQ:
        return dsi_jequal(r, a, b);
    case DSI_JOP_NE:
        return !dsi_jequal(r, a, b);
    case DSI_JOP_IN:
        return dsi_jcontains(r, b, a);
    case DSI_JOP_NOT_IN:
        return !dsi_jcontains(r, b, a);
    case '<':
        return dsi_jorder(r, a, b) < 0;
    case '>':
        return dsi_jorder(r, a, b) > 0;
    case DSI_JOP_LE:
        return dsi_jorder(r, a, b) <= 0;
    default:
        return dsi_jorder(r, a, b) >= 0;
    }
}

/* a < b < c. */
static dsi_jvalue compare_eval(dsi_jrun *r, const dsi_jnode *n)
{
    dsi_jvalue a = dsi_jeval(r, n->a);
    for (const dsi_jnode *o = n->b; o && !r->failed; o = o->next) {
        dsi_jvalue b = dsi_jeval(r, o->a);
        if (r->failed || !compare(r, o->op, a, b)) return dsi_jbool(false);
        a = b;
    }
    return dsi_jbool(true);
}

static dsi_jvalue list_eval(dsi_jrun *r, const dsi_jnode *n)
{
    dsi_jvalue list = dsi_jlist_new(r, n->kind == DSI_JN_TUPLE ? DSI_JTUPLE : DSI_JLIST);
    for (const dsi_jnode *i = n->a; i && !r->failed; i = i->next)
        dsi_jlist_add(r, list, dsi_jeval(r, i));
    return list;
}

static dsi_jvalue dict_eval(dsi_jrun *r, const dsi_jnode *n)
{
    dsi_jvalue d = dsi_jdict_new(r);
    for (const dsi_jnode *i = n->a; i && !r->failed; i = i->next) {
        dsi_jvalue key = dsi_jeval(r, i->a), value = dsi_jeval(r, i->b);
        dsi_jdict_set(r, d.dict, key, value);
    }
    return d;
}

static dsi_jvalue concat_eval(dsi_jrun *r, const dsi_jnode *n)
{
    return dsi_jjoin_texts(r, list_eval(r, n), dsi_jliteral(""));
}

static dsi_jvalue sign_eval(dsi_jrun *r, const dsi_jnode *n)
{
    dsi_jvalue v = dsi_jeval(r, n->a);
    if (r->failed) return v;
    if (!dsi_jis_number(v)) return dsi_jfail(r, "a sign before a %s", dsi_jtype(v));
    if (n->kind == DSI_JN_POS) return v.kind == DSI_JFLOAT ? v : dsi_jint(dsi_jwhole(v));
    if (v.kind == DSI_JFLOAT) return dsi_jfloat(-v.f);
    return dsi_jmath(r, '-', dsi_jint(0), v);
}

static dsi_jvalue condition_eval(dsi_jrun *r, const dsi_jnode *n)
{
    bool yes = dsi_jtrue(r, dsi_jeval(r, n->a));
    if (yes) return dsi_jeval(r, n->b);
    if (n->c) return dsi_jeval(r, n->c);
    return dsi_jundefined(r, "the inline if-expression evaluated to false and no else section was "
                             "defined");
}

static dsi_jvalue node_eval(dsi_jrun *r, const dsi_jnode *n)
{
    dsi_jvalue a;
    switch (n->kind) {
    case DSI_JN_CONST:
        return n->value;
    case DSI_JN_NAME:
        return name_eval(r, n);
    case DSI_JN_LIST:
    case DSI_JN_TUPLE:
        return list_eval(r, n);
    case DSI_JN_DICT:
        return dict_eval(r, n);
    case DSI_JN_ATTR:
        a = dsi_jeval(r, n->a);
        return r->failed ? a : dsi_jattribute(r, a, n->value);
    case DSI_JN_ITEM:
        return item_eval(r, n);
    case DSI_JN_CALL:
        return call_eval(r, n);
    case DSI_JN_FILTER:
        return builtin_eval(r, n, dsi_jinja_filter_find(n->value));
    case DSI_JN_TEST:
        return builtin_eval(r, n, dsi_jinja_test_find(n->value));
    case DSI_JN_NOT:
        return dsi_jbool(!dsi_jtrue(r, dsi_jeval(r, n->a)));
    case DSI_JN_NEG:
    case DSI_JN_POS:
        return sign_eval(r, n);
    case DSI_JN_MATH: {
        dsi_jvalue left = dsi_jeval(r, n->a), right = dsi_jeval(r, n->b);
        return r->failed ? left : dsi_jmath(r, n->op, left, right);
    }
    case DSI_JN_CONCAT:
        return concat_eval(r, n);
    case DSI_JN_COMPARE:
        return compare_eval(r, n);
    case DSI_JN_AND:
        a = dsi_jeval(r, n->a);
        return dsi_jtrue(r, a) ? dsi_jeval(r, n->b) : a;
    case DSI_JN_OR:
        a = dsi_jeval(r, n->a);
        return dsi_jtrue(r, a) ? a : dsi_jeval(r, n->b);
    case DSI_JN_COND:
        return condition_eval(r, n);
    default:
        return dsi_jfail(r, "an expression that is not implemented");
    }
}

dsi_jvalue dsi_jeval(dsi_jrun *r, const dsi_jnode *n)
{
    dsi_jvalue none = {DSI_JUNDEFINED, .s = ""};
    if (!n || !dsi_jstep(r, 1)) return none;
    if (++r->depth > 4 * DSI_JINJA_DEPTH) dsi_jfail(r, "expressions nest too deep");
    r->line = n->line;
    dsi_jvalue v = r->failed ? none : node_eval(r, n);
    r->depth--;
    return v;
}
