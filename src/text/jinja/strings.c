/* text/jinja/strings.c: the methods of Python's str that templates call.
 *
 * Upper and lower case are Unicode's simple mappings, one character for one;
 * only the upper case of U+00DF is two, as in Python.
 * SPDX-License-Identifier: MIT */
#include "builtins.h"

#include "base/mem.h"
#include "text/libraries.h"
#include "text/unicode.h"

#include <string.h>

/* The result of a method of a string, which is markup if that is. */
static dsi_jvalue like(dsi_jvalue of, dsi_jvalue result)
{
    result.markup = of.markup;
    return result;
}

/* An argument that is a string; `otherwise` if it is not given or None. */
static dsi_jvalue text_argument(dsi_jrun *r, dsi_jvalue v, const char *otherwise)
{
    bool given = dsi_jhas_value(v);
    if (given && v.kind != DSI_JSTRING) dsi_jfail(r, "expected a string, not a %s", dsi_jtype(v));
    return given && v.kind == DSI_JSTRING ? v : dsi_jliteral(otherwise);
}

static int64_t count_argument(dsi_jrun *r, dsi_jvalue v)
{
    if (!dsi_jhas_value(v)) return -1;
    if (!dsi_jis_whole(v)) dsi_jfail(r, "expected an int, not a %s", dsi_jtype(v));
    return dsi_jis_whole(v) ? dsi_jwhole(v) : -1;
}

static uint32_t character(dsi_jvalue s, size_t at)
{
    uint32_t c = 0;
    dsi_utf8_decode(s.s + at, s.n - at, &c);
    return c;
}

/* ---- strip ---- */

static bool is_stripped(dsi_jvalue s, size_t at, dsi_jvalue chars, bool blanks)
{
    if (blanks) return dsi_jis_blank(character(s, at));
    return dsi_jfind(chars, dsi_jstring(s.s + at, dsi_utf8_length(s.s + at)), 0) >= 0;
}

static dsi_jvalue strip(dsi_jrun *r, dsi_jvalue of, dsi_jvalue arg, bool left, bool right)
{
    bool blanks = !dsi_jhas_value(arg);
    dsi_jvalue chars = text_argument(r, arg, "");
    dsi_jstep(r, of.n / 16);
    while (left && of.n && is_stripped(of, 0, chars, blanks)) {
        size_t n = dsi_utf8_length(of.s);
        of.s += n, of.n -= n;
    }
    while (right && of.n) {
        size_t at = of.n - 1;
        while (at && ((unsigned char)of.s[at] & 0xC0) == 0x80) at--;
        if (!is_stripped(of, at, chars, blanks)) break;
        of.n = at;
    }
    return of;
}

dsi_jvalue dsi_jstrip(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    return strip(r, dsi_jstr(r, of), args->at[0], true, true);
}

static dsi_jvalue lstrip(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    return strip(r, of, args->at[0], true, false);
}

static dsi_jvalue rstrip(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    return strip(r, of, args->at[0], false, true);
}

/* ---- split ---- */

/* The end of the word or the run of blanks at `at`. */
static size_t run_end(dsi_jvalue s, size_t at, bool blanks)
{
    while (at < s.n && dsi_jis_blank(character(s, at)) == blanks) at += dsi_utf8_length(s.s + at);
    return at;
}

static dsi_jvalue split_words(dsi_jrun *r, dsi_jvalue s, int64_t most)
{
    dsi_jvalue list = dsi_jlist_new(r, DSI_JLIST);
    for (size_t at = run_end(s, 0, true); at < s.n && !r->failed;) {
        bool rest = most >= 0 && list.list->n == most;
        size_t end = rest ? s.n : run_end(s, at, false);
        dsi_jlist_add(r, list, like(s, dsi_jstring(s.s + at, end - at)));
        at = run_end(s, end, true);
    }
    return list;
}

static dsi_jvalue split(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    int64_t most = count_argument(r, args->at[1]);
    dsi_jstep(r, of.n / 16);
    if (!dsi_jhas_value(args->at[0])) return split_words(r, of, most);
    dsi_jvalue by = text_argument(r, args->at[0], ""), list = dsi_jlist_new(r, DSI_JLIST);
    if (!by.n) return dsi_jfail(r, "split: an empty separator");
    size_t at = 0;
    for (int64_t end; (most < 0 || list.list->n < most) && !r->failed; at = (size_t)end + by.n) {
        if ((end = dsi_jfind(of, by, at)) < 0) break;
        dsi_jlist_add(r, list, like(of, dsi_jstring(of.s + at, (size_t)end - at)));
    }
    dsi_jlist_add(r, list, like(of, dsi_jstring(of.s + at, of.n - at)));
    return list;
}

/* The last place of `what` that ends at `end` or before; -1. */
static int64_t find_last(dsi_jvalue s, dsi_jvalue what, size_t end)
{
    for (size_t at = end + 1; at-- > 0;)
        if (at + what.n <= end && !memcmp(s.s + at, what.s, what.n)) return (int64_t)at;
    return -1;
}

static dsi_jvalue rsplit(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    int64_t most = count_argument(r, args->at[1]);
    if (most < 0) return split(r, of, args);
    dsi_jvalue by = text_argument(r, args->at[0], ""), parts = dsi_jlist_new(r, DSI_JLIST);
    if (!by.n) return dsi_jfail(r, "rsplit: without a separator it is not implemented");
    size_t end = of.n;
    for (int64_t at; parts.list->n < most && dsi_jstep(r, 1 + of.n / 16); end = (size_t)at) {
        if ((at = find_last(of, by, end)) < 0) break;
        size_t from = (size_t)at + by.n;
        dsi_jlist_add(r, parts, like(of, dsi_jstring(of.s + from, end - from)));
    }
    dsi_jvalue list = dsi_jlist_new(r, DSI_JLIST);
    dsi_jlist_add(r, list, like(of, dsi_jstring(of.s, end)));
    for (int64_t i = parts.list->n; i-- > 0;) dsi_jlist_add(r, list, parts.list->at[i]);
    return list;
}

static bool ends_line(uint32_t c)
{
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

dsi_jvalue dsi_jsplitlines(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    bool keep = dsi_jtrue(r, args->at[0]);
    dsi_jvalue list = dsi_jlist_new(r, DSI_JLIST);
    for (size_t at = 0, end; at < of.n && dsi_jstep(r, 1); at = end) {
        end = at;
        while (end < of.n && !ends_line(character(of, end))) end += dsi_utf8_length(of.s + end);
        size_t text = end;
        if (end < of.n && of.s[end] == '\r' && end + 1 < of.n && of.s[end + 1] == '\n')
            end += 2;
        else if (end < of.n)
            end += dsi_utf8_length(of.s + end);
        dsi_jlist_add(r, list, like(of, dsi_jstring(of.s + at, (keep ? end : text) - at)));
    }
    return list;
}

/* (before, sep, after); without sep (of, "", ""). */
static dsi_jvalue partition(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    dsi_jvalue by = text_argument(r, args->at[0], ""), list = dsi_jlist_new(r, DSI_JTUPLE);
    if (!by.n) return dsi_jfail(r, "partition: an empty separator");
    int64_t at = dsi_jfind(of, by, 0);
    size_t begin = at < 0 ? of.n : (size_t)at, end = at < 0 ? of.n : begin + by.n;
    dsi_jlist_add(r, list, like(of, dsi_jstring(of.s, begin)));
    dsi_jlist_add(r, list, at < 0 ? dsi_jliteral("") : by);
    dsi_jlist_add(r, list, like(of, dsi_jstring(of.s + end, of.n - end)));
    return list;
}

/* ---- search ---- */

/* Whether `of` begins, or ends, with an argument, or one of a tuple of them. */
static dsi_jvalue has_affix(dsi_jrun *r, dsi_jvalue of, dsi_jvalue affix, bool at_end)
{
    if (affix.kind == DSI_JTUPLE) {
        for (int64_t i = 0; i < affix.list->n && dsi_jstep(r, 1); i++)
            if (dsi_jtrue(r, has_affix(r, of, affix.list->at[i], at_end))) return dsi_jbool(true);
        return dsi_jbool(false);
    }
    dsi_jvalue a = text_argument(r, affix, "");
    bool fits = a.n <= of.n;
    return dsi_jbool(fits && !memcmp(of.s + (at_end ? of.n - a.n : 0), a.s, a.n));
}

static dsi_jvalue starts_with(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    return has_affix(r, of, args->at[0], false);
}

static dsi_jvalue ends_with(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    return has_affix(r, of, args->at[0], true);
}

static dsi_jvalue remove_prefix(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    size_t n = dsi_jtrue(r, has_affix(r, of, args->at[0], false)) ? args->at[0].n : 0;
    return like(of, dsi_jstring(of.s + n, of.n - n));
}

static dsi_jvalue remove_suffix(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    size_t n = dsi_jtrue(r, has_affix(r, of, args->at[0], true)) ? args->at[0].n : 0;
    return like(of, dsi_jstring(of.s, of.n - n));
}

static dsi_jvalue find(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    dsi_jstep(r, of.n / 16);
    int64_t at = dsi_jfind(of, text_argument(r, args->at[0], ""), 0);
    return dsi_jint(at < 0 ? -1 : dsi_jcharacters(dsi_jstring(of.s, (size_t)at)));
}

static dsi_jvalue rfind(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    dsi_jstep(r, of.n / 16);
    int64_t at = find_last(of, text_argument(r, args->at[0], ""), of.n);
    return dsi_jint(at < 0 ? -1 : dsi_jcharacters(dsi_jstring(of.s, (size_t)at)));
}

static dsi_jvalue string_index(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    dsi_jvalue at = find(r, of, args);
    return at.i < 0 ? dsi_jfail(r, "index: there is no such text") : at;
}

static dsi_jvalue count(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    dsi_jvalue what = text_argument(r, args->at[0], "");
    int64_t n = what.n ? 0 : dsi_jcharacters(of) + 1;
    dsi_jstep(r, of.n / 16);
    for (int64_t at = 0; what.n && (at = dsi_jfind(of, what, (size_t)at)) >= 0;
         at += (int64_t)what.n)
        n++;
    return dsi_jint(n);
}

dsi_jvalue dsi_jreplace(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    dsi_jvalue old = text_argument(r, args->at[0], ""), by = text_argument(r, args->at[1], "");
    int64_t most = count_argument(r, args->at[2]);
    dsi_text text = {0};
    size_t at = 0;
    for (int64_t n = 0, end; (most < 0 || n < most) && dsi_jstep(r, 1); n++) {
        end = dsi_jfind(of, old, old.n || !n || at >= of.n ? at : at + dsi_utf8_length(of.s + at));
        if (end < 0 || (!old.n && n && at >= of.n)) break;
        dsi_jadd(r, &text, of.s + at, (size_t)end - at);
        dsi_jadd(r, &text, by.s, by.n);
        at = (size_t)end + old.n;
    }
    dsi_jadd(r, &text, of.s + at, of.n - at);
    return like(of, dsi_jstring_of(r, &text));
}

/* ---- case ---- */

static void append_upper(dsi_text *to, uint32_t c)
{
    const dsi_utf8proc *u = c < 0x80 ? NULL : dsi_utf8proc_open();
    if (c == 0xDF) {
        dsi_text_add(to, "SS");
        return;
    }
    if (c >= 'a' && c <= 'z') c -= 32;
    dsi_utf8_append(to, u ? (uint32_t)u->toupper((utf8proc_int32_t)c) : c);
}

typedef enum Case { LOWER, UPPER, FIRST_UPPER, TITLE } Case;

/* TITLE: as jinja2's filter title, a word begins behind a blank, - or a
 * bracket. */
static dsi_jvalue change_case(dsi_jrun *r, dsi_jvalue of, Case to)
{
    dsi_text text = {0};
    dsi_jvalue s = dsi_jstr(r, of);
    dsi_jstep(r, s.n / 8);
    bool begins = true;
    for (size_t i = 0; i < s.n; i += dsi_utf8_length(s.s + i)) {
        uint32_t c = character(s, i);
        bool upper = to == UPPER || (to == FIRST_UPPER && !i) || (to == TITLE && begins);
        if (upper)
            append_upper(&text, c);
        else
            dsi_append_lower(&text, c);
        begins = dsi_jis_blank(c) || (c < 0x80 && strchr("-({[<", (int)c));
    }
    return like(s, dsi_jstring_of(r, &text));
}

dsi_jvalue dsi_jupper(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)args;
    return change_case(r, of, UPPER);
}

dsi_jvalue dsi_jlower(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)args;
    return change_case(r, of, LOWER);
}

dsi_jvalue dsi_jcapitalize(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)args;
    return change_case(r, of, FIRST_UPPER);
}

dsi_jvalue dsi_jtitle(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)args;
    return change_case(r, of, TITLE);
}

/* ---- classes of characters ---- */

static utf8proc_category_t category(uint32_t c)
{
    const dsi_utf8proc *u = dsi_utf8proc_open();
    return u ? u->category((utf8proc_int32_t)c) : UTF8PROC_CATEGORY_CN;
}

static bool is_letter(uint32_t c)
{
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

static bool is_digit(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
static bool is_letter_or_number(uint32_t c)
{
    utf8proc_category_t k = category(c);
    return is_letter(c) || (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}

/* Whether all characters are of a class, and there is one. */
static dsi_jvalue all_are(dsi_jrun *r, dsi_jvalue of, bool (*is)(uint32_t c))
{
    dsi_jstep(r, of.n / 8);
    for (size_t i = 0; i < of.n; i += dsi_utf8_length(of.s + i))
        if (!is(character(of, i))) return dsi_jbool(false);
    return dsi_jbool(of.n > 0);
}

static dsi_jvalue is_alpha(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)args;
    return all_are(r, of, is_letter);
}

static dsi_jvalue is_digits(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)args;
    return all_are(r, of, is_digit);
}

static dsi_jvalue is_alnum(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)args;
    return all_are(r, of, is_letter_or_number);
}

static dsi_jvalue is_space(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)args;
    return all_are(r, of, dsi_jis_blank);
}

/* Whether there are letters of one case alone. */
static dsi_jvalue has_case(dsi_jrun *r, dsi_jvalue of, utf8proc_category_t wanted)
{
    dsi_jvalue s = dsi_jstr(r, of);
    bool there = false;
    dsi_jstep(r, s.n / 8);
    for (size_t i = 0; i < s.n; i += dsi_utf8_length(s.s + i)) {
        utf8proc_category_t k = category(character(s, i));
        bool cased = k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LT;
        if (cased && k != wanted) return dsi_jbool(false);
        there |= cased;
    }
    return dsi_jbool(there);
}

dsi_jvalue dsi_jis_lower(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)args;
    return has_case(r, of, UTF8PROC_CATEGORY_LL);
}

dsi_jvalue dsi_jis_upper(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    (void)args;
    return has_case(r, of, UTF8PROC_CATEGORY_LU);
}

/* ---- join ---- */

dsi_jvalue dsi_jjoin_texts(dsi_jrun *r, dsi_jvalue list, dsi_jvalue between)
{
    dsi_text text = {0};
    for (int64_t i = 0; i < list.list->n && dsi_jstep(r, 1); i++) {
        if (i) dsi_jadd(r, &text, between.s, between.n);
        dsi_jadd_str(r, &text, list.list->at[i]);
    }
    return dsi_jstring_of(r, &text);
}

static dsi_jvalue join(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    dsi_jvalue list = dsi_jelements(r, args->at[0]);
    for (int64_t i = 0; i < list.list->n && !r->failed; i++)
        if (list.list->at[i].kind != DSI_JSTRING)
            return dsi_jfail(r, "join: expected strings, not a %s", dsi_jtype(list.list->at[i]));
    return like(of, dsi_jjoin_texts(r, list, of));
}

/* ---- format ---- */

/* The argument of a field {}, {2} or {name}; counts {} in *next. */
static dsi_jvalue field_value(dsi_jrun *r, dsi_jvalue field, const dsi_jargs *args, int64_t *next)
{
    int64_t i;
    bool digits = dsi_jdigits(field.s, field.n, &i);
    if (digits && !field.n) i = (*next)++;
    if (digits && i < args->list.list->n) return args->list.list->at[i];
    dsi_jvalue *named = digits ? NULL : dsi_jdict_get(r, args->named, field);
    if (named) return *named;
    return dsi_jfail(r, "format: there is no argument for {%.*s}, or it has more than a name",
                     (int)field.n, field.s);
}

/* str.format of fields without a format of their own. */
static dsi_jvalue format(dsi_jrun *r, dsi_jvalue of, const dsi_jargs *args)
{
    dsi_text text = {0};
    int64_t next = 0;
    if (of.markup) return dsi_jfail(r, "format of a safe string is not implemented");
    for (size_t i = 0; i < of.n && dsi_jstep(r, 1); i++) {
        char c = of.s[i];
        if ((c == '{' || c == '}') && i + 1 < of.n && of.s[i + 1] == c) {
            i++;
        } else if (c == '{') {
            const char *end = memchr(of.s + i, '}', of.n - i);
            if (!end) return dsi_text_free(&text), dsi_jfail(r, "format: { without }");
            dsi_jvalue field = dsi_jstring(of.s + i + 1, (size_t)(end - of.s) - i - 1);
            dsi_jadd_str(r, &text, field_value(r, field, args, &next));
            i = (size_t)(end - of.s);
            continue;
        } else if (c == '}') {
            return dsi_text_free(&text), dsi_jfail(r, "format: } without {");
        }
        dsi_jadd(r, &text, of.s + i, 1);
    }
    return dsi_jstring_of(r, &text);
}

void dsi_jadd_escaped(dsi_jrun *r, dsi_text *to, dsi_jvalue s)
{
    for (size_t i = 0; i < s.n && dsi_jstep(r, 1); i++) {
        const char *as = s.s[i] == '&'    ? "&amp;"
                         : s.s[i] == '<'  ? "&lt;"
                         : s.s[i] == '>'  ? "&gt;"
                         : s.s[i] == '\'' ? "&#39;"
                         : s.s[i] == '"'  ? "&#34;"
                                          : NULL;
        dsi_jadd(r, to, as ? as : s.s + i, as ? strlen(as) : 1);
    }
}

const dsi_jbuiltin dsi_jinja_string_methods[] = {{"strip", "chars", dsi_jstrip},
                                                 {"lstrip", "chars", lstrip},
                                                 {"rstrip", "chars", rstrip},
                                                 {"split", "sep maxsplit", split},
                                                 {"rsplit", "sep maxsplit", rsplit},
                                                 {"splitlines", "keepends", dsi_jsplitlines},
                                                 {"partition", "!sep", partition},
                                                 {"startswith", "!prefix", starts_with},
                                                 {"endswith", "!suffix", ends_with},
                                                 {"removeprefix", "!prefix", remove_prefix},
                                                 {"removesuffix", "!suffix", remove_suffix},
                                                 {"find", "!sub", find},
                                                 {"rfind", "!sub", rfind},
                                                 {"index", "!sub", string_index},
                                                 {"count", "!sub", count},
                                                 {"replace", "!old !new count", dsi_jreplace},
                                                 {"upper", "", dsi_jupper},
                                                 {"lower", "", dsi_jlower},
                                                 {"capitalize", "", dsi_jcapitalize},
                                                 {"isalpha", "", is_alpha},
                                                 {"isdigit", "", is_digits},
                                                 {"isalnum", "", is_alnum},
                                                 {"isspace", "", is_space},
                                                 {"islower", "", dsi_jis_lower},
                                                 {"isupper", "", dsi_jis_upper},
                                                 {"join", "!iterable", join},
                                                 {"format", "*", format},
                                                 {0}};
