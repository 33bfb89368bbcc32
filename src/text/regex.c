/* text/regex.c: patterns of tokenizer.json, by PCRE2.
 *
 * \s and \w mean different sets in Oniguruma, in Rust and in PCRE2 (whose \s
 * has U+180E, and whose \w has no marks), so they are written out as sets of
 * Unicode before PCRE2 sees them. \p{..} and (?i:..) agree.
 *
 * Invariants: code is read only after dsi_regex_new; data and context are
 * scratch memory of dsi_regex_find, so two threads may not use one pattern at a
 * time.
 * SPDX-License-Identifier: MIT */
#include "regex.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"
#include "libraries.h"

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
#define WORD        "\\p{L}\\p{M}\\p{Nd}\\p{Pc}"
#define MATCH_LIMIT 100000000 /* steps; a split of ordinary text takes tens */

struct dsi_regex {
    const dsi_pcre2 *lib;
    pcre2_code_8 *code;
    pcre2_match_data_8 *data;
    pcre2_match_context_8 *context;
};

/* Returns what replaces \X, X being `letter`, inside or outside of [..]; NULL
 * if PCRE2's own meaning is right, or if there is no replacement. */
static const char *escape_meaning(char letter, bool in_class)
{
    switch (letter) {
    case 's':
        return in_class ? SPACE : "[" SPACE "]";
    case 'S':
        return in_class ? NOT_SPACE : "[^" SPACE "]";
    case 'w':
        return in_class ? WORD : "[" WORD "]";
    case 'W':
        return in_class ? NULL : "[^" WORD "]";
    }
    return NULL;
}

/* Returns the pattern in PCRE2's syntax, to be freed. A literal is quoted by
 * \Q..\E. */
static dsi_text pattern_translate(const char *pattern, bool literal)
{
    dsi_text t = {0};
    bool in_class = false;
    if (literal) dsi_text_add(&t, "\\Q");
    for (const char *p = pattern; *p; p++) {
        const char *meaning = !literal && *p == '\\' ? escape_meaning(p[1], in_class) : NULL;
        if (literal && !strncmp(p, "\\E", 2)) {
            /* A \E within the literal: end the quotation, write an escaped \E,
             * and quote again. */
            dsi_text_add(&t, "\\E\\\\E\\Q");
            p++;
        } else if (meaning) {
            dsi_text_add(&t, "%s", meaning);
            p++;
        } else if (!literal && *p == '\\' && p[1]) {
            dsi_text_add_bytes(&t, p++, 2);
        } else {
            if (!literal && *p == '[') in_class = true;
            if (!literal && *p == ']') in_class = false;
            dsi_text_add_bytes(&t, p, 1);
        }
    }
    if (literal) dsi_text_add(&t, "\\E");
    return t;
}

dsi_regex *dsi_regex_new(const char *what, const char *pattern, bool literal)
{
    const dsi_pcre2 *lib = dsi_pcre2_open();
    if (!lib) return NULL;
    if (literal && !*pattern) return dsi_refuse("%s: the pattern is empty", what);
    dsi_text text = pattern_translate(pattern, literal);
    int error = 0;
    PCRE2_SIZE place = 0;
    pcre2_code_8 *code = lib->compile((PCRE2_SPTR8)text.s, text.n,
                                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error,
                                      &place, NULL);
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

/* NO_UTF_CHECK: s was checked once, when the text came. NOTEMPTY: callers
 * advance by each match. */
bool dsi_regex_find(const dsi_regex *r, const char *s, size_t n, size_t from, size_t *begin,
                    size_t *end, ds_status *status)
{
    *status = DS_OK;
    if (from >= n) return false;
    int found = r->lib->match(r->code, (PCRE2_SPTR8)s, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY,
                              r->data, r->context);
    if (found == PCRE2_ERROR_NOMATCH) return false;
    if (found < 0) {
        PCRE2_UCHAR8 why[128] = "?";
        r->lib->get_error_message(found, why, sizeof why);
        *status = dsi_fail(DS_EFORMAT, "tokenizer: splitting the text at byte %zu: %s", from,
                           (const char *)why);
        return false;
    }
    const PCRE2_SIZE *place = r->lib->get_ovector_pointer(r->data);
    *begin = place[0];
    *end = place[1];
    return true;
}
