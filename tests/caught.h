/* tests/caught.h: what a function prints.
 * SPDX-License-Identifier: MIT */
#pragma once

/* The text on stdout while fn runs on a thread of its own, which reads DS_LOG
 * (level; NULL: it is not set) again. Valid until the next call. */
const char *caught_of(const char *level, void (*fn)(void));

/* Whether s is like the pattern, where 0 stands for any digit. */
int is_like(const char *s, const char *pattern);

/* The text of the n-th line (from 0) without the prefix of the log, in a buffer
 * of its own that the next call overwrites; "" if there are fewer lines. */
const char *text_of_line(const char *s, int n);
