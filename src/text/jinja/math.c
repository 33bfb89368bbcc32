/* text/jinja/math.c: operators on values, and slices.
 * SPDX-License-Identifier: MIT */
#include "scope.h"

#include "base/mem.h"
#include "text/unicode.h"

#include <math.h>
#include <string.h>

/* Python's // and % round down. */
static dsi_jvalue whole_math(dsi_jrun *r, int op, int64_t a, int64_t b)
{
    int64_t c = 0;
    bool over = false;
    switch (op) {
    case '+':
        over = __builtin_add_overflow(a, b, &c);
        break;
    case '-':
        over = __builtin_sub_overflow(a, b, &c);
        break;
    case '*':
        over = __builtin_mul_overflow(a, b, &c);
        break;
    case DSI_JOP_POW:
        if (b < 0) return dsi_jfloat(pow((double)a, (double)b));
        for (c = 1; b > 0 && !over && dsi_jstep(r, 1); b--) over = __builtin_mul_overflow(c, a, &c);
        break;
    case '/':
        return b ? dsi_jfloat((double)a / (double)b) : dsi_jfail(r, "division by zero");
    default:
        if (!b) return dsi_jfail(r, "division by zero");
        over = a == INT64_MIN && b == -1;
        if (!over) c = op == '%' ? a % b : a / b;
        if (!over && a % b && (a < 0) != (b < 0)) c += op == '%' ? b : -1;
    }
    return over ? dsi_jfail(r, "a number beyond 64 bits") : dsi_jint(c);
}

static dsi_jvalue real_math(dsi_jrun *r, int op, double a, double b)
{
    if ((op == '/' || op == '%' || op == DSI_JOP_DIV) && b == 0)
        return dsi_jfail(r, "division by zero");
    double m = op == '%' || op == DSI_JOP_DIV ? fmod(a, b) : 0;
    if (m != 0 && (m < 0) != (b < 0)) m += b;
    double quotient;
    switch (op) {
    case '+':
        return dsi_jfloat(a + b);
    case '-':
        return dsi_jfloat(a - b);
    case '*':
        return dsi_jfloat(a * b);
    case '/':
        return dsi_jfloat(a / b);
    case '%':
        return dsi_jfloat(m != 0 ? m : copysign(0, b));
    case DSI_JOP_DIV:
        quotient = (a - m) / b;
        return dsi_jfloat(floor(quotient) + (quotient - floor(quotient) > 0.5));
    default:
        return a < 0 && b != floor(b) ? dsi_jfail(r, "a complex number") : dsi_jfloat(pow(a, b));
    }
}

/* Markup escapes the string that is added to it, on either side. */
static dsi_jvalue strings_add(dsi_jrun *r, dsi_jvalue a, dsi_jvalue b)
{
    dsi_text text = {0};
    bool markup = a.markup || b.markup;
    for (int i = 0; i < 2; i++) {
        dsi_jvalue s = i ? b : a;
        if (markup && !s.markup)
            dsi_jadd_escaped(r, &text, s);
        else
            dsi_jadd(r, &text, s.s, s.n);
    }
    dsi_jvalue sum = dsi_jstring_of(r, &text);
    sum.markup = markup;
    return sum;
}

static dsi_jvalue lists_add(dsi_jrun *r, dsi_jvalue a, dsi_jvalue b)
{
    dsi_jvalue sum = dsi_jlist_new(r, a.kind);
    for (int64_t i = 0; i < a.list->n && !r->failed; i++) dsi_jlist_add(r, sum, a.list->at[i]);
    for (int64_t i = 0; i < b.list->n && !r->failed; i++) dsi_jlist_add(r, sum, b.list->at[i]);
    return sum;
}

static dsi_jvalue repeat(dsi_jrun *r, dsi_jvalue of, int64_t times)
{
    dsi_text text = {0};
    dsi_jvalue list = dsi_jlist_new(r, of.kind);
    bool empty = of.kind == DSI_JSTRING ? !of.n : !of.list->n;
    if (of.kind == DSI_JSTRING && times > 0 && of.n > DSI_JINJA_MEMORY / (size_t)times)
        return dsi_jfail(r, "a text of more than 256 MiB");
    for (; times > 0 && !empty && dsi_jstep(r, 1); times--)
        if (of.kind == DSI_JSTRING)
            dsi_jadd(r, &text, of.s, of.n);
        else
            for (int64_t i = 0; i < of.list->n; i++) dsi_jlist_add(r, list, of.list->at[i]);
    if (of.kind != DSI_JSTRING) return list;
    dsi_jvalue s = dsi_jstring_of(r, &text);
    s.markup = of.markup;
    return s;
}

static const char *op_text(int op, char text[3])
{
    text[0] = (char)(op == DSI_JOP_POW ? '*' : op == DSI_JOP_DIV ? '/' : op);
    text[1] = op == DSI_JOP_POW || op == DSI_JOP_DIV ? text[0] : 0;
    text[2] = 0;
    return text;
}

dsi_jvalue dsi_jmath(dsi_jrun *r, int op, dsi_jvalue a, dsi_jvalue b)
{
    char text[3];
    bool sequence = a.kind == DSI_JSTRING || dsi_jis_list(a);
    if (a.kind == DSI_JUNDEFINED) return dsi_jfail_undefined(r, a);
    if (op == '%' && a.kind == DSI_JSTRING) return dsi_jpercent(r, a, b);
    if (b.kind == DSI_JUNDEFINED) return dsi_jfail_undefined(r, b);
    if (dsi_jis_whole(a) && dsi_jis_whole(b))
        return whole_math(r, op, dsi_jwhole(a), dsi_jwhole(b));
    if (dsi_jis_number(a) && dsi_jis_number(b)) return real_math(r, op, dsi_jreal(a), dsi_jreal(b));
    if (op == '+' && a.kind == DSI_JSTRING && b.kind == DSI_JSTRING) return strings_add(r, a, b);
    if (op == '+' && dsi_jis_list(a) && a.kind == b.kind) return lists_add(r, a, b);
    if (op == '*' && sequence && dsi_jis_whole(b)) return repeat(r, a, dsi_jwhole(b));
    if (op == '*' && dsi_jis_whole(a) && (b.kind == DSI_JSTRING || dsi_jis_list(b)))
        return repeat(r, b, dsi_jwhole(a));
    return dsi_jfail(r, "%s of %s and %s", op_text(op, text), dsi_jtype(a), dsi_jtype(b));
}

/* ---- slices ---- */

/* A bound of a slice of n elements, as Python's slice.indices clips it. */
static int64_t slice_bound(dsi_jrun *r, dsi_jvalue v, int64_t n, int64_t step, bool is_end)
{
    if (v.kind == DSI_JNONE)
        return (step > 0) != is_end ? (step > 0 ? 0 : -1) : step > 0 ? n : n - 1;
    if (!dsi_jis_whole(v)) {
        dsi_jfail(r, "a slice by a %s", dsi_jtype(v));
        return 0;
    }
    int64_t i = dsi_jwhole(v), low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    if (i < 0) i = i < -n ? low : i + n;
    return i < low ? low : i > high ? high : i;
}

dsi_jvalue dsi_jslice(dsi_jrun *r, dsi_jvalue of, const dsi_jvalue bound[3])
{
    if (of.kind == DSI_JUNDEFINED) return dsi_jfail_undefined(r, of);
    if (of.kind != DSI_JSTRING && !dsi_jis_list(of))
        return dsi_jfail(r, "a slice of a %s", dsi_jtype(of));
    bool whole = bound[2].kind == DSI_JNONE || dsi_jis_whole(bound[2]);
    int64_t n = dsi_jlength(r, of), step = bound[2].kind == DSI_JNONE ? 1 : dsi_jwhole(bound[2]);
    if (!whole || !step) return dsi_jfail(r, "the step of a slice is not a number, or 0");
    int64_t begin = slice_bound(r, bound[0], n, step, false);
    int64_t end = slice_bound(r, bound[1], n, step, true);
    if (of.kind == DSI_JSTRING && step == 1)
        return dsi_jcharacters_of(of, begin, end > begin ? end - begin : 0);
    bool text = of.kind == DSI_JSTRING;
    dsi_jvalue from = text ? dsi_jelements(r, of) : of;
    dsi_jvalue list = dsi_jlist_new(r, text ? DSI_JLIST : of.kind);
    for (int64_t i = begin; (step > 0 ? i < end : i > end) && !r->failed;) {
        dsi_jlist_add(r, list, from.list->at[i]);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return text ? dsi_jjoin_texts(r, list, dsi_jliteral("")) : list;
}
