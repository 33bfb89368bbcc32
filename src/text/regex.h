/* text/regex.h: patterns of tokenizer.json, which are Oniguruma's, by PCRE2.
 *
 * Invariants: a pattern has scratch memory of its own, so one thread uses it at
 * a time, as a tokenizer does. Places are bytes, counted from the beginning of
 * s; what is before a match counts for look-behind.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/types.h>

/* Inside of [..]: Unicode's alphabetic characters, marks, decimal digits and
 * connectors, \w of Oniguruma and of Rust (dsi_is_word). */
#define DSI_WORD_SET \
    "\\p{L}\\p{M}\\p{Nl}\\p{Nd}\\p{Pc}\\x{24b6}-\\x{24e9}" \
    "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"

typedef struct dsi_regex dsi_regex;

/* Compiles a pattern; literal: the pattern is plain text. NULL with a message,
 * which begins with `what`, if it is no pattern or PCRE2 is not installed. */
dsi_regex *dsi_regex_new(const char *what, const char *pattern, bool literal);
void dsi_regex_free(dsi_regex *r);

/* Where a match is, and where the next is looked for; all 0 before the first. */
typedef struct dsi_match {
    size_t begin, end, from;
    bool any; /* there was one */
} dsi_match;

/* The next match in s[0..n), valid UTF-8. It may be empty. *status is DS_OK,
 * also when there is none; or DS_EFORMAT with a message if the pattern exceeds
 * its limits on this text. */
bool dsi_regex_next(const dsi_regex *r, const char *s, size_t n, dsi_match *m, ds_status *status);
