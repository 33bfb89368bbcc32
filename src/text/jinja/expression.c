/* text/jinja/expression.c: parses the expressions of templates.
 *
 * Source: jinja2/parser.py, whose order of operators this is: if, or, and, not,
 * comparisons, + -, ~, * / // %, **, signs, then . [] () | is.
 * SPDX-License-Identifier: MIT */
#include "parser.h"
#include "value.h"

#include "base/error.h"

#include <stdarg.h>
#include <string.h>

/* ---- tokens ---- */

dsi_jnode *dsi_jparse_node(dsi_jparser *p, dsi_jnode_kind kind)
{
    dsi_jnode *n = dsi_jarena_get(&p->t->arena, sizeof *n);
    n->kind = kind;
    n->line = p->at->line;
    return n;
}

void *dsi_jparse_fail(dsi_jparser *p, const char *format, ...)
{
    if (p->failed) return NULL;
    dsi_text text = {0};
    va_list args;
    va_start(args, format);
    dsi_text_add_args(&text, format, args);
    va_end(args);
    dsi_jinja_wrong(p->t, p->at->line, "%s", text.s);
    dsi_text_free(&text);
    p->failed = true;
    return NULL;
}

bool dsi_jparse_enter(dsi_jparser *p)
{
    if (++p->depth > DSI_JINJA_DEPTH)
        dsi_jparse_fail(p, "more than %d levels of nesting", DSI_JINJA_DEPTH);
    return !p->failed;
}

static void next(dsi_jparser *p)
{
    if (p->at->kind != DSI_JT_END) p->at++;
}

bool dsi_jparse_is_op(const dsi_jparser *p, int op)
{
    return !p->failed && p->at->kind == DSI_JT_OP && p->at->op == op;
}

static bool token_is_name(const dsi_jtoken *t, const char *name)
{
    return t->kind == DSI_JT_NAME && dsi_jis_text(t->value, name);
}

bool dsi_jparse_is_name(const dsi_jparser *p, const char *name)
{
    return !p->failed && token_is_name(p->at, name);
}

bool dsi_jparse_skip_op(dsi_jparser *p, int op)
{
    bool there = dsi_jparse_is_op(p, op);
    if (there) next(p);
    return there;
}

bool dsi_jparse_skip_name(dsi_jparser *p, const char *name)
{
    bool there = dsi_jparse_is_name(p, name);
    if (there) next(p);
    return there;
}

/* The next token, for messages. */
static const char *token_text(const dsi_jparser *p, char text[64])
{
    const dsi_jtoken *t = p->at;
    const char *s = t->kind == DSI_JT_END         ? "the end of the template"
                    : t->kind == DSI_JT_BLOCK_END ? "%}"
                    : t->kind == DSI_JT_PRINT_END ? "}}"
                    : t->kind == DSI_JT_OP        ? "an operator"
                    : t->kind == DSI_JT_NUMBER    ? "a number"
                                                  : "text";
    if (t->kind == DSI_JT_OP && t->op < 'A')
        snprintf(text, 64, "'%c'", t->op);
    else if (t->kind == DSI_JT_NAME)
        snprintf(text, 64, "\"%.*s\"", (int)(t->value.n < 50 ? t->value.n : 50), t->value.s);
    else
        snprintf(text, 64, "%s", s);
    return text;
}

void dsi_jparse_expect_op(dsi_jparser *p, int op)
{
    char text[64];
    if (!dsi_jparse_skip_op(p, op))
        dsi_jparse_fail(p, "expected '%c', not %s", op, token_text(p, text));
}

dsi_jvalue dsi_jparse_expect_name(dsi_jparser *p)
{
    char text[64];
    dsi_jvalue name = p->at->value;
    if (p->failed || p->at->kind != DSI_JT_NAME) {
        dsi_jparse_fail(p, "expected a name, not %s", token_text(p, text));
        return (dsi_jvalue){DSI_JSTRING, .s = ""};
    }
    next(p);
    return name;
}

/* Appends to a list of nodes whose last `next` is *end. */
static dsi_jnode **list_add(dsi_jnode **end, dsi_jnode *node)
{
    *end = node;
    return node ? &node->next : end;
}

/* ---- primaries ---- */

static dsi_jnode *constant(dsi_jparser *p, dsi_jvalue value)
{
    dsi_jnode *n = dsi_jparse_node(p, DSI_JN_CONST);
    n->value = value;
    return n;
}

static dsi_jnode *name_read(dsi_jparser *p)
{
    static const struct {
        const char *name;
        dsi_jvalue value;
    } words[] = {{"true", {DSI_JBOOL, .b = true}},   {"True", {DSI_JBOOL, .b = true}},
                 {"false", {DSI_JBOOL, .b = false}}, {"False", {DSI_JBOOL, .b = false}},
                 {"none", {DSI_JNONE, .i = 0}},      {"None", {DSI_JNONE, .i = 0}}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (dsi_jparse_skip_name(p, words[i].name)) return constant(p, words[i].value);
    if (dsi_jparse_is_name(p, "varargs")) p->uses |= DSI_JUSES_VARARGS;
    if (dsi_jparse_is_name(p, "kwargs")) p->uses |= DSI_JUSES_KWARGS;
    if (dsi_jparse_is_name(p, "caller")) p->uses |= DSI_JUSES_CALLER;
    dsi_jnode *n = dsi_jparse_node(p, DSI_JN_NAME);
    n->value = dsi_jparse_expect_name(p);
    return n;
}

/* String literals next to each other are one. */
static dsi_jnode *string_read(dsi_jparser *p)
{
    dsi_text text = {0};
    dsi_jvalue v = p->at->value;
    bool several = p->at[1].kind == DSI_JT_STRING;
    for (; p->at->kind == DSI_JT_STRING; next(p))
        if (several) dsi_text_add_bytes(&text, p->at->value.s, p->at->value.n);
    if (several) {
        char *copy = dsi_jarena_get(&p->t->arena, text.n + 1);
        if (text.n) memcpy(copy, text.s, text.n);
        v = (dsi_jvalue){DSI_JSTRING, .n = text.n, .s = copy};
    }
    dsi_text_free(&text);
    return constant(p, v);
}

static dsi_jnode *list_read(dsi_jparser *p)
{
    dsi_jnode *n = dsi_jparse_node(p, DSI_JN_LIST), **end = &n->a;
    dsi_jparse_expect_op(p, '[');
    while (!p->failed && !dsi_jparse_is_op(p, ']')) {
        end = list_add(end, dsi_jparse_expression(p));
        if (!dsi_jparse_is_op(p, ']')) dsi_jparse_expect_op(p, ',');
    }
    dsi_jparse_expect_op(p, ']');
    return n;
}

static dsi_jnode *dict_read(dsi_jparser *p)
{
    dsi_jnode *n = dsi_jparse_node(p, DSI_JN_DICT), **end = &n->a;
    dsi_jparse_expect_op(p, '{');
    while (!p->failed && !dsi_jparse_is_op(p, '}')) {
        dsi_jnode *pair = dsi_jparse_node(p, DSI_JN_PAIR);
        pair->a = dsi_jparse_expression(p);
        dsi_jparse_expect_op(p, ':');
        pair->b = dsi_jparse_expression(p);
        end = list_add(end, pair);
        if (!dsi_jparse_is_op(p, '}')) dsi_jparse_expect_op(p, ',');
    }
    dsi_jparse_expect_op(p, '}');
    return n;
}

/* ( ), a tuple, or an expression in parentheses. */
static dsi_jnode *parentheses_read(dsi_jparser *p)
{
    dsi_jparse_expect_op(p, '(');
    dsi_jnode *n = dsi_jparse_is_op(p, ')') ? dsi_jparse_node(p, DSI_JN_TUPLE)
                                            : dsi_jparse_tuple(p, true);
    dsi_jparse_expect_op(p, ')');
    return n;
}

dsi_jnode *dsi_jparse_primary(dsi_jparser *p)
{
    char text[64];
    if (p->failed) return NULL;
    switch (p->at->kind) {
    case DSI_JT_NAME:
        return name_read(p);
    case DSI_JT_STRING:
        return string_read(p);
    case DSI_JT_NUMBER: {
        dsi_jvalue v = p->at->value;
        next(p);
        return constant(p, v);
    }
    default:
        if (dsi_jparse_is_op(p, '(')) return parentheses_read(p);
        if (dsi_jparse_is_op(p, '[')) return list_read(p);
        if (dsi_jparse_is_op(p, '{')) return dict_read(p);
        return dsi_jparse_fail(p, "expected an expression, not %s", token_text(p, text));
    }
}

/* ---- what follows primaries ---- */

static dsi_jnode *arguments_read(dsi_jparser *p)
{
    dsi_jnode *first = NULL, **end = &first;
    dsi_jparse_expect_op(p, '(');
    while (!p->failed && !dsi_jparse_is_op(p, ')')) {
        dsi_jnode *arg = dsi_jparse_node(p, DSI_JN_ARG);
        if (dsi_jparse_skip_op(p, '*')) {
            arg->op = '*';
        } else if (dsi_jparse_skip_op(p, DSI_JOP_POW)) {
            arg->op = DSI_JOP_POW;
        } else if (p->at->kind == DSI_JT_NAME && p->at[1].kind == DSI_JT_OP && p->at[1].op == '=') {
            arg->value = dsi_jparse_expect_name(p);
            next(p);
        }
        arg->a = dsi_jparse_expression(p);
        end = list_add(end, arg);
        if (!dsi_jparse_is_op(p, ')')) dsi_jparse_expect_op(p, ',');
    }
    dsi_jparse_expect_op(p, ')');
    return first;
}

/* begin : end : step, or an expression. */
static dsi_jnode *subscript_read(dsi_jparser *p)
{
    dsi_jnode *begin = dsi_jparse_is_op(p, ':') ? NULL : dsi_jparse_expression(p);
    if (!dsi_jparse_skip_op(p, ':')) return begin;
    dsi_jnode *slice = dsi_jparse_node(p, DSI_JN_SLICE);
    slice->a = begin;
    if (!dsi_jparse_is_op(p, ']') && !dsi_jparse_is_op(p, ':')) slice->b = dsi_jparse_expression(p);
    if (dsi_jparse_skip_op(p, ':') && !dsi_jparse_is_op(p, ']'))
        slice->c = dsi_jparse_expression(p);
    return slice;
}

static dsi_jnode *attribute_read(dsi_jparser *p, dsi_jnode *of)
{
    dsi_jnode *n = dsi_jparse_node(p, DSI_JN_ATTR);
    n->a = of;
    if (p->at->kind == DSI_JT_NUMBER && p->at->value.kind == DSI_JINT) {
        n->kind = DSI_JN_ITEM;
        n->b = dsi_jparse_primary(p);
    } else {
        n->value = dsi_jparse_expect_name(p);
    }
    return n;
}

static dsi_jnode *call_read(dsi_jparser *p, dsi_jnode *callee)
{
    dsi_jnode *n = dsi_jparse_node(p, DSI_JN_CALL);
    n->a = callee;
    n->b = arguments_read(p);
    return n;
}

static dsi_jnode *postfix_read(dsi_jparser *p, dsi_jnode *node)
{
    while (!p->failed) {
        if (dsi_jparse_is_op(p, '(')) {
            node = call_read(p, node);
        } else if (dsi_jparse_skip_op(p, '.')) {
            node = attribute_read(p, node);
        } else if (dsi_jparse_skip_op(p, '[')) {
            dsi_jnode *n = dsi_jparse_node(p, DSI_JN_ITEM);
            n->a = node;
            n->b = subscript_read(p);
            dsi_jparse_expect_op(p, ']');
            node = n;
        } else {
            break;
        }
    }
    return node;
}

dsi_jnode *dsi_jparse_filters(dsi_jparser *p, dsi_jnode *node, bool begins_with_name)
{
    while (!p->failed && (begins_with_name || dsi_jparse_skip_op(p, '|'))) {
        begins_with_name = false;
        dsi_jnode *n = dsi_jparse_node(p, DSI_JN_FILTER);
        n->value = dsi_jparse_expect_name(p);
        n->a = node;
        if (dsi_jparse_is_op(p, '(')) n->b = arguments_read(p);
        node = n;
    }
    return node;
}

/* Whether an argument without parentheses follows a test: x is divisibleby 3. */
static bool test_has_argument(const dsi_jparser *p)
{
    if (p->failed) return false;
    if (dsi_jparse_is_op(p, '[') || dsi_jparse_is_op(p, '{')) return true;
    if (p->at->kind == DSI_JT_STRING || p->at->kind == DSI_JT_NUMBER) return true;
    return p->at->kind == DSI_JT_NAME && !dsi_jparse_is_name(p, "else") &&
           !dsi_jparse_is_name(p, "or") && !dsi_jparse_is_name(p, "and");
}

static dsi_jnode *test_read(dsi_jparser *p, dsi_jnode *of)
{
    bool negated = dsi_jparse_skip_name(p, "not");
    dsi_jnode *n = dsi_jparse_node(p, DSI_JN_TEST);
    n->a = of;
    n->value = dsi_jparse_expect_name(p);
    if (dsi_jparse_is_op(p, '(')) {
        n->b = arguments_read(p);
    } else if (test_has_argument(p)) {
        if (dsi_jparse_is_name(p, "is")) return dsi_jparse_fail(p, "two tests in a row");
        n->b = dsi_jparse_node(p, DSI_JN_ARG);
        n->b->a = postfix_read(p, dsi_jparse_primary(p));
    }
    if (!negated) return n;
    dsi_jnode *not = dsi_jparse_node(p, DSI_JN_NOT);
    not ->a = n;
    return not ;
}

/* ---- operators ---- */

static dsi_jnode *two(dsi_jparser *p, dsi_jnode_kind kind, int op, dsi_jnode *a, dsi_jnode *b)
{
    dsi_jnode *n = dsi_jparse_node(p, kind);
    n->op = op;
    n->a = a;
    n->b = b;
    return n;
}

static dsi_jnode *unary_read(dsi_jparser *p, bool with_filters)
{
    dsi_jnode *n = NULL;
    if (!dsi_jparse_enter(p)) return NULL;
    if (dsi_jparse_skip_op(p, '-'))
        n = two(p, DSI_JN_NEG, 0, unary_read(p, false), NULL);
    else if (dsi_jparse_skip_op(p, '+'))
        n = two(p, DSI_JN_POS, 0, unary_read(p, false), NULL);
    else
        n = dsi_jparse_primary(p);
    n = postfix_read(p, n);
    while (with_filters && !p->failed) {
        if (dsi_jparse_is_op(p, '|'))
            n = dsi_jparse_filters(p, n, false);
        else if (dsi_jparse_skip_name(p, "is"))
            n = test_read(p, n);
        else if (dsi_jparse_is_op(p, '('))
            n = call_read(p, n);
        else
            break;
    }
    p->depth--;
    return n;
}

static dsi_jnode *power_read(dsi_jparser *p)
{
    dsi_jnode *n = unary_read(p, true);
    while (dsi_jparse_skip_op(p, DSI_JOP_POW))
        n = two(p, DSI_JN_MATH, DSI_JOP_POW, n, unary_read(p, true));
    return n;
}

static dsi_jnode *product_read(dsi_jparser *p)
{
    static const int ops[] = {'*', '/', DSI_JOP_DIV, '%'};
    dsi_jnode *n = power_read(p);
    for (size_t i = 0; i < 4; i++)
        if (dsi_jparse_skip_op(p, ops[i])) {
            n = two(p, DSI_JN_MATH, ops[i], n, power_read(p));
            i = (size_t)-1;
        }
    return n;
}

static dsi_jnode *concat_read(dsi_jparser *p)
{
    dsi_jnode *first = product_read(p);
    if (!dsi_jparse_is_op(p, '~')) return first;
    dsi_jnode *n = two(p, DSI_JN_CONCAT, 0, first, NULL), **end = list_add(&n->a, first);
    while (dsi_jparse_skip_op(p, '~')) end = list_add(end, product_read(p));
    return n;
}

static dsi_jnode *sum_read(dsi_jparser *p)
{
    dsi_jnode *n = concat_read(p);
    while (dsi_jparse_is_op(p, '+') || dsi_jparse_is_op(p, '-')) {
        int op = p->at->op;
        next(p);
        n = two(p, DSI_JN_MATH, op, n, concat_read(p));
    }
    return n;
}

/* The comparison that is next, read; 0: none. */
static int comparison(dsi_jparser *p)
{
    static const int ops[] = {DSI_JOP_EQ, DSI_JOP_NE, DSI_JOP_LE, DSI_JOP_GE, '<', '>'};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (dsi_jparse_skip_op(p, ops[i])) return ops[i];
    if (dsi_jparse_skip_name(p, "in")) return DSI_JOP_IN;
    if (!dsi_jparse_is_name(p, "not") || !token_is_name(p->at + 1, "in")) return 0;
    next(p);
    next(p);
    return DSI_JOP_NOT_IN;
}

static dsi_jnode *compare_read(dsi_jparser *p)
{
    dsi_jnode *n = sum_read(p), *compare = NULL, **end = NULL;
    for (int op; (op = comparison(p)) != 0;) {
        if (!compare) compare = two(p, DSI_JN_COMPARE, 0, n, NULL), end = &compare->b;
        end = list_add(end, two(p, DSI_JN_OPERAND, op, sum_read(p), NULL));
    }
    return compare ? compare : n;
}

static dsi_jnode *not_read(dsi_jparser *p)
{
    if (!dsi_jparse_is_name(p, "not")) return compare_read(p);
    if (!dsi_jparse_enter(p)) return NULL;
    next(p);
    dsi_jnode *n = two(p, DSI_JN_NOT, 0, NULL, NULL);
    n->a = not_read(p);
    p->depth--;
    return n;
}

static dsi_jnode *and_read(dsi_jparser *p)
{
    dsi_jnode *n = not_read(p);
    while (dsi_jparse_skip_name(p, "and")) n = two(p, DSI_JN_AND, 0, n, not_read(p));
    return n;
}

dsi_jnode *dsi_jparse_or(dsi_jparser *p)
{
    dsi_jnode *n = and_read(p);
    while (dsi_jparse_skip_name(p, "or")) n = two(p, DSI_JN_OR, 0, n, and_read(p));
    return n;
}

dsi_jnode *dsi_jparse_expression(dsi_jparser *p)
{
    if (!dsi_jparse_enter(p)) return NULL;
    dsi_jnode *n = dsi_jparse_or(p);
    while (dsi_jparse_skip_name(p, "if")) {
        n = two(p, DSI_JN_COND, 0, NULL, n);
        n->a = dsi_jparse_or(p);
        if (dsi_jparse_skip_name(p, "else")) n->c = dsi_jparse_expression(p);
    }
    p->depth--;
    return n;
}

/* Whether a tuple ends here, behind a comma. */
static bool tuple_ends(const dsi_jparser *p)
{
    return p->at->kind == DSI_JT_PRINT_END || p->at->kind == DSI_JT_BLOCK_END ||
           dsi_jparse_is_op(p, ')') || p->failed;
}

dsi_jnode *dsi_jparse_tuple(dsi_jparser *p, bool with_if)
{
    dsi_jnode *first = with_if ? dsi_jparse_expression(p) : dsi_jparse_or(p);
    if (!dsi_jparse_is_op(p, ',')) return first;
    dsi_jnode *n = two(p, DSI_JN_TUPLE, 0, NULL, NULL), **end = list_add(&n->a, first);
    while (dsi_jparse_skip_op(p, ',') && !tuple_ends(p))
        end = list_add(end, with_if ? dsi_jparse_expression(p) : dsi_jparse_or(p));
    return n;
}
