/* text/unicode.h: UTF-8 and the classes of characters that tokenizers ask for.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/text.h"

/* Length in bytes of the valid UTF-8 character at s, which has n > 0 bytes
 * left; writes its code point to *c. If there is none: minus the length of the
 * maximal subpart (Unicode, section 3.9), which one U+FFFD replaces. */
int dsi_utf8_decode(const char *s, size_t n, uint32_t *c);

/* Appends c, at most 0x10FFFF, to *to. */
void dsi_utf8_append(dsi_text *to, uint32_t c);

/* Bytes of the character that begins at s, valid UTF-8. */
static inline size_t dsi_utf8_length(const char *s)
{
    unsigned char c = (unsigned char)*s;
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

/* True if all n bytes are valid UTF-8. */
bool dsi_utf8_is_valid(const char *s, size_t n);
/* Appends s with U+FFFD in place of what is not valid. */
void dsi_utf8_append_repaired(dsi_text *to, const char *s, size_t n);

/* Unicode's property White_Space: 25 characters. */
bool dsi_is_space(uint32_t c);
/* \w of Rust's regex crate: letters, marks, decimal and letter numbers,
 * connectors, joiners. */
bool dsi_is_word(uint32_t c);

/* Marks, Unicode's category M: accents and the like. */
bool dsi_is_mark(uint32_t c);
/* Appends the lower case of c alone, Rust's char::to_lowercase: a final sigma
 * is not told from others. */
void dsi_append_lower(dsi_text *to, uint32_t c);

/* The byte whose character in the byte-level alphabet of GPT-2 is c; -1 if c is
 * not in that alphabet, which has a printable character for each byte. */
int dsi_char_to_byte(uint32_t c);
uint32_t dsi_byte_to_char(unsigned char byte);
