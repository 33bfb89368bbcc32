/* text/jinja/parser.c: parses a template: its text and statements.
 * SPDX-License-Identifier: MIT */
#include "parser.h"

#include "base/error.h"
#include "base/mem.h"

#include <stdarg.h>
#include <string.h>

/* ---- the template ---- */

ds_status dsi_jinja_wrong_with(const dsi_jinja *t, int line, ds_status status, const char *format,
                               ...)
{
    dsi_text text = {0};
    va_list args;
    va_start(args, format);
    dsi_text_add_args(&text, format, args);
    va_end(args);
    dsi_fail(status, "%s: line %d: %s", t->name, line, text.s ? text.s : "");
    dsi_text_free(&text);
    return status;
}

void dsi_jinja_free(dsi_jinja *t)
{
    if (!t) return;
    dsi_jarena_free(&t->arena);
    dsi_free(t->name);
    dsi_free(t);
}

bool dsi_jinja_has_generation(const dsi_jinja *t) { return t->has_generation; }

/* ---- parts of statements ---- */

/* Text and statements up to a tag that begins with one of the words, which are
 * separated by blanks; the parser is then at that word. NULL words: up to the
 * end of the template. */
static dsi_jnode *body_read(dsi_jparser *p, const char *words);

/* Behind the tag of a body: its statements, and the end tag's word. */
static dsi_jnode *block_read(dsi_jparser *p, const char *end)
{
    if (!p->failed && p->at->kind != DSI_JT_BLOCK_END) return dsi_jparse_fail(p, "expected %%}");
    if (!p->failed) p->at++;
    dsi_jnode *body = body_read(p, end);
    if (!p->failed) p->at++;
    return body;
}

/* Behind a comma, which may be the last. */
static bool target_follows(const dsi_jparser *p)
{
    return dsi_jparse_is_op(p, '(') || (p->at->kind == DSI_JT_NAME && !dsi_jparse_is_name(p, "in"));
}

/* A name, targets in parentheses, or namespace.name. */
static dsi_jnode *targets_read(dsi_jparser *p, bool with_namespace);

static dsi_jnode *target_read(dsi_jparser *p, bool with_namespace)
{
    if (dsi_jparse_skip_op(p, '(')) {
        dsi_jnode *inner = targets_read(p, with_namespace);
        dsi_jparse_expect_op(p, ')');
        return inner;
    }
    dsi_jnode *n = dsi_jparse_node(p, DSI_JN_NAME);
    n->value = dsi_jparse_expect_name(p);
    if (!with_namespace || !dsi_jparse_skip_op(p, '.')) return n;
    dsi_jnode *attribute = dsi_jparse_node(p, DSI_JN_ATTR);
    attribute->a = n;
    attribute->value = dsi_jparse_expect_name(p);
    return attribute;
}

/* A target, or several, which are a tuple. */
static dsi_jnode *targets_read(dsi_jparser *p, bool with_namespace)
{
    if (!dsi_jparse_enter(p)) return NULL;
    dsi_jnode *first = target_read(p, with_namespace), *last = first;
    p->depth--;
    if (!dsi_jparse_is_op(p, ',')) return first;
    dsi_jnode *tuple = dsi_jparse_node(p, DSI_JN_TUPLE);
    tuple->a = first;
    while (last && dsi_jparse_skip_op(p, ',') && target_follows(p))
        last = last->next = target_read(p, with_namespace);
    return tuple;
}

/* The parameters of a macro, in parentheses. */
static dsi_jnode *parameters_read(dsi_jparser *p)
{
    dsi_jnode *first = NULL, **end = &first;
    bool defaults = false;
    dsi_jparse_expect_op(p, '(');
    while (!p->failed && !dsi_jparse_is_op(p, ')')) {
        dsi_jnode *n = *end = dsi_jparse_node(p, DSI_JN_PARAM);
        n->value = dsi_jparse_expect_name(p);
        if (dsi_jparse_skip_op(p, '='))
            n->a = dsi_jparse_expression(p), defaults = true;
        else if (defaults)
            dsi_jparse_fail(p, "a parameter without default behind one that has one");
        end = &n->next;
        if (!dsi_jparse_is_op(p, ')')) dsi_jparse_expect_op(p, ',');
    }
    dsi_jparse_expect_op(p, ')');
    return first;
}

/* A body that is called: loops around it are not its own. */
static dsi_jnode *function_body(dsi_jparser *p, const char *end, int *uses)
{
    int loops = p->loops, outer = p->uses;
    p->loops = p->uses = 0;
    dsi_jnode *body = block_read(p, end);
    if (uses) *uses = p->uses;
    p->loops = loops;
    p->uses = outer | (uses ? 0 : p->uses);
    return body;
}

/* ---- statements ---- */

static dsi_jnode *if_read(dsi_jparser *p)
{
    dsi_jnode *first = dsi_jparse_node(p, DSI_JN_IF), *n = first;
    n->a = dsi_jparse_tuple(p, false);
    n->b = block_read(p, "elif else endif");
    while (!p->failed) {
        const dsi_jtoken *word = p->at - 1;
        if (word->value.n == 5) break; /* endif */
        if (word->value.s[2] == 's') { /* else */
            n->c = block_read(p, "endif");
            break;
        }
        n = n->c = dsi_jparse_node(p, DSI_JN_IF);
        n->op = 'e';
        n->a = dsi_jparse_tuple(p, false);
        n->b = block_read(p, "elif else endif");
    }
    return first;
}

static dsi_jnode *for_read(dsi_jparser *p)
{
    dsi_jnode *n = dsi_jparse_node(p, DSI_JN_FOR);
    n->a = targets_read(p, false);
    if (!dsi_jparse_skip_name(p, "in")) return dsi_jparse_fail(p, "for: expected \"in\"");
    n->b = dsi_jparse_tuple(p, false);
    if (dsi_jparse_skip_name(p, "if")) n->e = dsi_jparse_expression(p);
    if (dsi_jparse_is_name(p, "recursive"))
        return dsi_jparse_fail(p, "recursive loops are not implemented");
    p->loops++;
    n->c = block_read(p, "else endfor");
    p->loops--;
    if (!p->failed && (p->at - 1)->value.n == 4) n->d = block_read(p, "endfor");
    return n;
}

static dsi_jnode *set_read(dsi_jparser *p)
{
    dsi_jnode *n = dsi_jparse_node(p, DSI_JN_SET);
    n->a = targets_read(p, true);
    if (dsi_jparse_skip_op(p, '=')) {
        n->b = dsi_jparse_tuple(p, true);
        return n;
    }
    n->kind = DSI_JN_TEXT_OF;
    n->b = dsi_jparse_filters(p, NULL, false);
    n->c = function_body(p, "endset", NULL);
    return n;
}

static dsi_jnode *macro_read(dsi_jparser *p)
{
    dsi_jnode *n = dsi_jparse_node(p, DSI_JN_MACRO);
    n->value = dsi_jparse_expect_name(p);
    n->b = parameters_read(p);
    n->c = function_body(p, "endmacro", &n->op);
    return n;
}

static dsi_jnode *call_read(dsi_jparser *p)
{
    dsi_jnode *n = dsi_jparse_node(p, DSI_JN_CALLER);
    if (dsi_jparse_is_op(p, '(')) n->b = parameters_read(p);
    n->a = dsi_jparse_expression(p);
    if (!p->failed && n->a->kind != DSI_JN_CALL)
        return dsi_jparse_fail(p, "call: expected the call of a macro");
    n->c = function_body(p, "endcall", &n->op);
    return n;
}

static dsi_jnode *filter_read(dsi_jparser *p)
{
    dsi_jnode *n = dsi_jparse_node(p, DSI_JN_FILTERED);
    n->b = dsi_jparse_filters(p, NULL, true);
    n->c = function_body(p, "endfilter", NULL);
    return n;
}

static dsi_jnode *with_read(dsi_jparser *p)
{
    dsi_jnode *n = dsi_jparse_node(p, DSI_JN_WITH), **end = &n->b;
    while (!p->failed && p->at->kind != DSI_JT_BLOCK_END) {
        dsi_jnode *set = *end = dsi_jparse_node(p, DSI_JN_SET);
        set->a = dsi_jparse_node(p, DSI_JN_NAME);
        set->a->value = dsi_jparse_expect_name(p);
        dsi_jparse_expect_op(p, '=');
        set->b = dsi_jparse_expression(p);
        end = &set->next;
        if (!p->failed && p->at->kind != DSI_JT_BLOCK_END) dsi_jparse_expect_op(p, ',');
    }
    n->c = block_read(p, "endwith");
    return n;
}

static dsi_jnode *generation_read(dsi_jparser *p)
{
    dsi_jnode *n = dsi_jparse_node(p, DSI_JN_GENERATION);
    n->c = function_body(p, "endgeneration", NULL);
    p->t->has_generation = true;
    return n;
}

static dsi_jnode *leave_read(dsi_jparser *p)
{
    bool breaks = (p->at - 1)->value.s[0] == 'b';
    if (!p->loops) return dsi_jparse_fail(p, "%s outside of a loop", breaks ? "break" : "continue");
    return dsi_jparse_node(p, breaks ? DSI_JN_BREAK : DSI_JN_CONTINUE);
}

static dsi_jnode *print_read(dsi_jparser *p)
{
    dsi_jnode *first = NULL, **end = &first;
    while (!p->failed && p->at->kind != DSI_JT_BLOCK_END) {
        dsi_jnode *n = *end = dsi_jparse_node(p, DSI_JN_PRINT);
        n->a = dsi_jparse_expression(p);
        end = &n->next;
        if (!p->failed && p->at->kind != DSI_JT_BLOCK_END) dsi_jparse_expect_op(p, ',');
    }
    return first;
}

static dsi_jnode *statement_read(dsi_jparser *p)
{
    static const struct {
        const char *word;
        dsi_jnode *(*read)(dsi_jparser *p);
    } statements[] = {{"if", if_read},       {"for", for_read},
                      {"set", set_read},     {"macro", macro_read},
                      {"call", call_read},   {"filter", filter_read},
                      {"with", with_read},   {"generation", generation_read},
                      {"break", leave_read}, {"continue", leave_read},
                      {"print", print_read}};
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (dsi_jparse_skip_name(p, statements[i].word)) return statements[i].read(p);
    dsi_jvalue name = dsi_jparse_expect_name(p);
    return dsi_jparse_fail(p, "the statement \"%.*s\" is not implemented, or has no place here",
                           (int)name.n, name.s);
}

/* ---- bodies ---- */

/* Whether the parser is at one of the words; NULL: at none. */
static bool at_word(const dsi_jparser *p, const char *words)
{
    return words && p->at->kind == DSI_JT_NAME &&
           dsi_has_word(words, p->at->value.s, p->at->value.n);
}

/* {{ ... }} */
static dsi_jnode *output_read(dsi_jparser *p)
{
    dsi_jnode *n = dsi_jparse_node(p, DSI_JN_PRINT);
    p->at++;
    n->a = dsi_jparse_tuple(p, true);
    if (!p->failed && p->at->kind != DSI_JT_PRINT_END) return dsi_jparse_fail(p, "expected }}");
    if (!p->failed) p->at++;
    return n;
}

static dsi_jnode *body_read(dsi_jparser *p, const char *words)
{
    dsi_jnode *first = NULL, **end = &first;
    if (!dsi_jparse_enter(p)) return NULL;
    while (!p->failed && p->at->kind != DSI_JT_END) {
        dsi_jnode *n = NULL;
        if (p->at->kind == DSI_JT_DATA) {
            n = dsi_jparse_node(p, DSI_JN_DATA);
            n->value = p->at++->value;
        } else if (p->at->kind == DSI_JT_PRINT_BEGIN) {
            n = output_read(p);
        } else { /* DSI_JT_BLOCK_BEGIN */
            p->at++;
            if (at_word(p, words)) {
                p->depth--;
                return first;
            }
            n = statement_read(p);
            if (!p->failed && p->at->kind != DSI_JT_BLOCK_END) dsi_jparse_fail(p, "expected %%}");
            if (!p->failed) p->at++;
        }
        *end = n;
        while (*end) end = &(*end)->next;
    }
    if (words) return dsi_jparse_fail(p, "the template ends before {%% %s %%}", words);
    p->depth--;
    return first;
}

dsi_jinja *dsi_jinja_parse(const char *source, size_t bytes, const char *name)
{
    dsi_jinja *t = dsi_alloc(sizeof *t);
    t->name = dsi_strdup(name);
    dsi_jtokens tokens = {0};
    ds_status status = dsi_jinja_tokens(t, source, bytes, &tokens);
    dsi_jparser p = {.t = t, .at = tokens.at};
    if (status == DS_OK) t->body = body_read(&p, NULL);
    dsi_list_free(&tokens);
    if (status == DS_OK && !p.failed) return t;
    dsi_jinja_free(t);
    return NULL;
}
