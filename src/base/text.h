/* base/text.h: a growable string; numbers as Python prints them; the nearest
 * word, for "did you mean".
 * SPDX-License-Identifier: MIT */
#pragma once

#include "shared.h"

#include <deepspeed/types.h>

#include <stdarg.h>

typedef struct dsi_text {
    char *s; /* ends with 0; NULL when nothing was added */
    size_t n, room;
} dsi_text;

DSI_SHARED dsi_text dsi_text_of(const char *format, ...) DS_PRINTF(1, 2); /* a new one; free it */
DSI_SHARED void dsi_text_add(dsi_text *t, const char *format, ...) DS_PRINTF(2, 3);
DSI_SHARED void dsi_text_add_args(dsi_text *t, const char *format, va_list args) DS_PRINTF(2, 0);
DSI_SHARED void dsi_text_add_bytes(dsi_text *t, const void *bytes, size_t n);
DSI_SHARED void dsi_text_free(dsi_text *t);

/* As Python's repr: the fewest digits that read back as x. 0.001, 1.0, 1e-08,
 * 1.5e+16, inf, nan. The program's locale has no say. */
DSI_SHARED void dsi_text_add_double(dsi_text *t, double x);
void dsi_text_add_rounded(dsi_text *t, double x, int decimals); /* print(round(x, decimals)) */

/* Whether n bytes are UTF-8: no stray, missing or overlong bytes, no
 * surrogates, nothing above U+10FFFF. */
DSI_SHARED bool dsi_is_utf8(const void *bytes, size_t n);

/* Makes text one line of UTF-8 that a terminal only prints: other bytes and
 * control characters become '?', a tab a blank. */
DSI_SHARED void dsi_make_printable(char *text);
DSI_SHARED bool dsi_ends_with(const char *text, const char *end);
/* Whether one of the words, separated by blanks and commas, is word[0..n). */
DSI_SHARED bool dsi_has_word(const char *words, const char *word, size_t n);

/* The bytes and a final 0, to be freed with dsi_free; NULL if the text is not
 * base64 (RFC 4648, in the alphabet of section 4 or 5, padded). */
DSI_SHARED char *dsi_base64_decode(const char *text, size_t *n);

/* The word of words[0..n-1] that is nearest to `to`, by letters or by parts
 * ("bucket_size" is near to "reduce_bucket_size"), or NULL if none is near. */
DSI_SHARED const char *dsi_nearest(const char *to, const char *const *words, int n);
