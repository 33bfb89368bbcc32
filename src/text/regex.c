/* text/regex.c: patterns of tokenizer.json, by PCRE2.
 *
 * The patterns are Oniguruma's, in Ruby's syntax. Where PCRE2 means another
 * thing by the same characters, the pattern is translated before PCRE2 sees it:
 * - \s and \w: other sets (PCRE2's \s has U+180E, its \w has no marks);
 * - \b and \B: between such characters; \h, \H: hexadecimal digits;
 * - ^ and $: at each line; (?m): the dot matches a line's end;
 * - X{1,3}+: several times X{1,3}, not a possessive X{1,3}; X{,3}: from 0.
 * Sets within sets and their intersection (&&) are refused. \p{..} and (?i:..)
 * agree.
 *
 * Invariants: code is read only after dsi_regex_new; data and context are
 * scratch memory of dsi_regex_next, so two threads may not use one pattern at a
 * time.
 * SPDX-License-Identifier: MIT */
#include "regex.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"
#include "libraries.h"
#include "unicode.h"

#include <stdlib.h>
#include <string.h>

/* Property White_Space, and what is between its characters. */
#define SPACE \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
    "\\x{205f}\\x{3000}"
#define NOT_SPACE \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{" \
    "1fff}" \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{" \
    "d7ff}" \
    "\\x{e000}-\\x{10ffff}"
/* Outside of a set, Oniguruma's table of Latin-1 has these too. */
#define LATIN       "\\xb2\\xb3\\xb9\\xbc-\\xbe"
#define ONE         "[" DSI_WORD_SET LATIN "]" /* \w, which begins and ends words */
#define HEX         "0-9A-Fa-f"
#define MATCH_LIMIT 100000000 /* steps; a split of ordinary text takes tens */

struct dsi_regex {
    const dsi_pcre2 *lib;
    pcre2_code_8 *code;
    pcre2_match_data_8 *data;
    pcre2_match_context_8 *context;
};

/* Returns what replaces \X, X being `letter`, inside or outside of [..]; NULL
 * if PCRE2's own meaning is right. */
static const char *escape_meaning(char letter, bool in_set)
{
    static const struct {
        char letter;
        const char *in_set, *outside;
    } meanings[] = {
        {'s', SPACE, "[" SPACE "]"},
        {'S', NOT_SPACE, "[^" SPACE "]"},
        {'w', DSI_WORD_SET, ONE},
        {'W', "", "[^" DSI_WORD_SET LATIN "]"}, /* in a set: pattern_set */
        {'h', HEX, "[" HEX "]"},
        {'H', "\\x{0}-/:-@G-`g-\\x{10ffff}", "[^" HEX "]"},
        {'b', NULL, "(?:(?<=" ONE ")(?!" ONE ")|(?<!" ONE ")(?=" ONE "))"},
        {'B', NULL, "(?:(?<=" ONE ")(?=" ONE ")|(?<!" ONE ")(?!" ONE "))"},
    };
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (meanings[i].letter == letter) return in_set ? meanings[i].in_set : meanings[i].outside;
    return NULL;
}

/* Appends the escape at p, which begins with a backslash; returns what follows
 * it. */
static const char *escape_translate(dsi_text *to, const char *p, bool in_set)
{
    const char *meaning = escape_meaning(p[1], in_set);
    if (meaning)
        dsi_text_add(to, "%s", meaning);
    else if (p[1] == 'u' && strspn(p + 2, "0123456789abcdefABCDEF") >= 4)
        return dsi_text_add(to, "\\x{%.4s}", p + 2), p + 6;
    else
        dsi_text_add_bytes(to, p, p[1] ? 2 : 1);
    return p + (p[1] ? 2 : 1);
}

/* Appends the set [..] at p; returns what follows it, or NULL if it has a set
 * within it or an intersection. A \W in it becomes an alternative: its
 * characters are no union of categories. */
static const char *set_translate(dsi_text *to, const char *p)
{
    dsi_text set = {0};
    bool no_word = false, inverted = *++p == '^';
    const char *begin = p += inverted;
    bool known = true;
    while (known && *p && (*p != ']' || p == begin)) {
        const char *end = !strncmp(p, "[:", 2) ? strstr(p, ":]") : NULL;
        known = (*p != '[' || end) && strncmp(p, "&&", 2) != 0;
        if (*p == '\\') {
            no_word |= p[1] == 'W';
            p = escape_translate(&set, p, true);
        } else {
            size_t n = end ? (size_t)(end + 2 - p) : 1;
            dsi_text_add_bytes(&set, p, n), p += n;
        }
    }
    const char *rest = set.n ? set.s : "";
    if (!no_word)
        dsi_text_add(to, inverted ? "[^%s%s" : "[%s%s", rest, *p ? "]" : "");
    else if (!set.n)
        dsi_text_add(to, inverted ? "[" DSI_WORD_SET "]" : "[^" DSI_WORD_SET "]");
    else
        dsi_text_add(
            to, inverted ? "(?:(?![%s])[" DSI_WORD_SET "])" : "(?:[%s]|[^" DSI_WORD_SET "])", rest);
    dsi_text_free(&set);
    return !known ? NULL : *p ? p + 1 : p;
}

/* Appends the quantifier {n}, {n,}, {n,m} or {,m} at p, and a plus behind it;
 * returns what follows it. NULL: p is no quantifier, or its plus has no
 * equivalent. */
static const char *interval_translate(dsi_text *to, const char *p)
{
    size_t low = strspn(p + 1, "0123456789"), high = 0;
    const char *end = p + 1 + low;
    bool comma = *end == ',';
    if (comma) high = strspn(++end, "0123456789"), end += high;
    if (*end != '}' || low + high == 0 || low > 6 || high > 6) return NULL;
    long from = strtol(p + 1, NULL, 10);
    if (end[1] != '+') {
        if (low)
            dsi_text_add_bytes(to, p, (size_t)(end + 1 - p));
        else
            dsi_text_add(to, "{0%.*s}", (int)high + 1, end - high - 1);
        return end + 1;
    }
    if (from > 1) return NULL;
    dsi_text_add(to, from ? "+" : "*");
    return end + 2;
}

/* Appends the flags of (?imx) or (?imx: at p; returns what follows them. */
static const char *flags_translate(dsi_text *to, const char *p)
{
    dsi_text_add(to, "(?");
    for (p += 2; strchr("imx-", *p) && *p; p++) dsi_text_add_bytes(to, *p == 'm' ? "s" : p, 1);
    return p;
}

/* Writes the pattern in PCRE2's syntax, to be freed; NULL: where it has no
 * equivalent, else *bad. A literal is quoted by \Q..\E. */
static dsi_text pattern_translate(const char *pattern, bool literal, const char **bad)
{
    dsi_text t = {0};
    *bad = NULL;
    if (literal) dsi_text_add(&t, "\\Q");
    for (const char *p = pattern; *p;) {
        const char *from = p;
        if (literal && !strncmp(p, "\\E", 2)) {
            /* A \E within the literal: end the quotation, write an escaped \E,
             * and quote again. */
            dsi_text_add(&t, "\\E\\\\E\\Q");
            p += 2;
        } else if (!literal && *p == '\\') {
            p = escape_translate(&t, p, false);
        } else if (!literal && *p == '[') {
            p = set_translate(&t, p);
        } else if (!literal && *p == '{' && strspn(p + 1, "0123456789,") > 0) {
            p = interval_translate(&t, p);
        } else if (!literal && !strncmp(p, "(?", 2) && p[2] && strchr("imx-", p[2])) {
            p = flags_translate(&t, p);
        } else {
            dsi_text_add_bytes(&t, p++, 1);
        }
        if (p) continue;
        *bad = from;
        break;
    }
    if (literal) dsi_text_add(&t, "\\E");
    return t;
}

dsi_regex *dsi_regex_new(const char *what, const char *pattern, bool literal)
{
    const dsi_pcre2 *lib = dsi_pcre2_open();
    if (!lib) return NULL;
    if (literal && !*pattern) return dsi_refuse("%s: the pattern is empty", what);
    const char *bad;
    dsi_text text = pattern_translate(pattern, literal, &bad);
    if (bad) {
        dsi_text_free(&text);
        dsi_fail(DS_EINVAL,
                 "%s: the pattern %.200s: at \"%.20s\": sets of sets, && and {n,m}+ are "
                 "not implemented",
                 what, pattern, bad);
        return NULL;
    }
    int error = 0;
    PCRE2_SIZE place = 0;
    pcre2_code_8 *code = lib->compile(
        (PCRE2_SPTR8)text.s, text.n,
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &place, NULL);
    dsi_text_free(&text);
    if (!code) {
        PCRE2_UCHAR8 why[128] = "?";
        lib->get_error_message(error, why, sizeof why);
        dsi_fail(DS_EFORMAT, "%s: the pattern %.200s: %s", what, pattern, (const char *)why);
        return NULL;
    }
    lib->jit_compile(code, PCRE2_JIT_COMPLETE); /* without it matches are slower, and the same */
    dsi_regex *r = dsi_alloc(sizeof *r);
    r->lib = lib;
    r->code = code;
    r->data = lib->match_data_create(1, NULL);
    r->context = lib->match_context_create(NULL);
    if (!r->data || !r->context) {
        dsi_regex_free(r);
        dsi_fail(DS_ENOMEM, "%s: no memory for a pattern", what);
        return NULL;
    }
    lib->set_match_limit(r->context, MATCH_LIMIT);
    return r;
}

void dsi_regex_free(dsi_regex *r)
{
    if (!r) return;
    r->lib->match_data_free(r->data);
    r->lib->match_context_free(r->context);
    r->lib->code_free(r->code);
    dsi_free(r);
}

/* NO_UTF_CHECK: s was checked once, when the text came. An empty match right
 * behind the last match does not count: the search continues behind the next
 * character. Source: FindMatches of the crate onig. */
bool dsi_regex_next(const dsi_regex *r, const char *s, size_t n, dsi_match *m, ds_status *status)
{
    *status = DS_OK;
    while (m->from <= n) {
        int found = r->lib->match(r->code, (PCRE2_SPTR8)s, n, m->from, PCRE2_NO_UTF_CHECK, r->data,
                                  r->context);
        if (found == PCRE2_ERROR_NOMATCH) break;
        if (found < 0) {
            PCRE2_UCHAR8 why[128] = "?";
            r->lib->get_error_message(found, why, sizeof why);
            *status = dsi_fail(DS_EFORMAT, "tokenizer: splitting the text at byte %zu: %s", m->from,
                               (const char *)why);
            break;
        }
        const PCRE2_SIZE *place = r->lib->get_ovector_pointer(r->data);
        bool repeated = place[0] == place[1] && m->any && m->end == place[1];
        if (repeated) {
            m->from += m->from < n ? dsi_utf8_length(s + m->from) : 1;
            continue;
        }
        *m = (dsi_match){.begin = place[0], .end = place[1], .from = place[1], .any = true};
        return true;
    }
    m->from = n + 1;
    return false;
}
