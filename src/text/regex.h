/* text/regex.h: patterns of tokenizer.json, which are Oniguruma's, by PCRE2.
 *
 * Invariants: a pattern has scratch memory of its own, so one thread uses it at
 * a time, as a tokenizer does. Places are bytes, counted from the beginning of
 * s, also with `from`: what is before it counts for look-behind.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/types.h>

typedef struct dsi_regex dsi_regex;

/* Compiles a pattern; literal: the pattern is plain text. NULL with a message,
 * which begins with `what`, if it is no pattern or PCRE2 is not installed. */
dsi_regex *dsi_regex_new(const char *what, const char *pattern, bool literal);
void dsi_regex_free(dsi_regex *r);

/* The next match of at least one byte in s[from..n), valid UTF-8: its place ->
 * *begin, *end. *status is DS_OK, also when there is none; or DS_EFORMAT with a
 * message if the pattern exceeds its limits on this text. */
bool dsi_regex_find(const dsi_regex *r, const char *s, size_t n, size_t from, size_t *begin,
                    size_t *end, ds_status *status);
