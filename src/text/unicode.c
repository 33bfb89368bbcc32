/* text/unicode.c: UTF-8 and classes of characters.
 *
 * Source: the Unicode Standard, table 3-7 (well-formed UTF-8), and its property
 * White_Space. A wrong sequence ends before the first byte that cannot continue
 * it, and becomes one U+FFFD: the practice that Unicode recommends, and Rust's
 * from_utf8_lossy.
 * SPDX-License-Identifier: MIT */
#include "unicode.h"

#include "libraries.h"

int dsi_utf8_decode(const char *s, size_t n, uint32_t *c)
{
    const unsigned char *u = (const unsigned char *)s;
    *c = u[0];
    if (u[0] < 0x80) return 1;
    int length = u[0] >= 0xC2 && u[0] < 0xE0   ? 2
                 : u[0] >= 0xE0 && u[0] < 0xF0 ? 3
                 : u[0] >= 0xF0 && u[0] < 0xF5 ? 4
                                               : 0;
    if (!length) return -1;
    *c = u[0] & (0xFFu >> (length + 1));
    for (int i = 1; i < length; i++) {
        unsigned low = 0x80, high = 0xBF; /* the second byte's range excludes overlong forms, */
        if (i == 1 && u[0] == 0xE0) low = 0xA0;
        if (i == 1 && u[0] == 0xED) high = 0x9F; /* surrogates, */
        if (i == 1 && u[0] == 0xF0) low = 0x90;
        if (i == 1 && u[0] == 0xF4) high = 0x8F; /* and what follows U+10FFFF */
        if ((size_t)i >= n || u[i] < low || u[i] > high) return -i;
        *c = *c << 6 | (u[i] & 0x3F);
    }
    return length;
}

/* The first byte's high bits are the length of the character. */
void dsi_utf8_append(dsi_text *to, uint32_t c)
{
    char b[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char first[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n - 1; i > 0; i--, c >>= 6) b[i] = (char)(0x80 | (c & 0x3F));
    b[0] = (char)(first[n] | c);
    dsi_text_add_bytes(to, b, n);
}

bool dsi_utf8_is_valid(const char *s, size_t n)
{
    uint32_t c;
    for (size_t i = 0; i < n;) {
        int length = (unsigned char)s[i] < 0x80 ? 1 : dsi_utf8_decode(s + i, n - i, &c);
        if (length < 0) return false;
        i += (size_t)length;
    }
    return true;
}

/* Valid bytes are copied in runs, not by character. */
void dsi_utf8_append_repaired(dsi_text *to, const char *s, size_t n)
{
    uint32_t c;
    size_t good = 0; /* where the valid bytes that are not copied yet begin */
    for (size_t i = 0; i < n;) {
        int length = dsi_utf8_decode(s + i, n - i, &c);
        if (length > 0) {
            i += (size_t)length;
            continue;
        }
        dsi_text_add_bytes(to, s + good, i - good);
        dsi_utf8_append(to, 0xFFFD);
        i += (size_t)-length;
        good = i;
    }
    dsi_text_add_bytes(to, n ? s + good : "", n - good); /* without bytes s may be NULL */
}

/* White_Space, all of it: it has been the same set since Unicode 6.3. */
bool dsi_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

/* ASCII and the joiners U+200C and U+200D are decided here, the rest by
 * utf8proc. */
bool dsi_is_word(uint32_t c)
{
    if (c < 0x80) return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_';
    if (c == 0x200C || c == 0x200D) return true;
    if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
        (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189))
        return true; /* symbols that are alphabetic: letters in circles and squares */
    const dsi_utf8proc *u = dsi_utf8proc_open();
    if (!u) return false;
    utf8proc_category_t k = u->category((utf8proc_int32_t)c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) || k == UTF8PROC_CATEGORY_PC;
}

bool dsi_is_mark(uint32_t c)
{
    const dsi_utf8proc *u = c < 0x80 ? NULL : dsi_utf8proc_open();
    utf8proc_category_t k = u ? u->category((utf8proc_int32_t)c) : UTF8PROC_CATEGORY_CN;
    return k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME;
}

/* Of one character only the lower case is two: U+0130 has a dot above
 * (SpecialCasing.txt), which utf8proc's simple mapping loses. */
void dsi_append_lower(dsi_text *to, uint32_t c)
{
    const dsi_utf8proc *u = c < 0x80 ? NULL : dsi_utf8proc_open();
    if (c < 0x80) c |= c >= 'A' && c <= 'Z' ? 32 : 0;
    dsi_utf8_append(to, u ? (uint32_t)u->tolower((utf8proc_int32_t)c) : c);
    if (c == 0x130) dsi_utf8_append(to, 0x307);
}

/* GPT-2 maps bytes that print in Latin-1 to themselves, and the others, in
 * order, to the characters from U+0100 on (bytes_to_unicode in its
 * encoder.py). */
static bool byte_prints(unsigned b) { return (b > 32 && b < 127) || (b > 160 && b != 173); }

int dsi_char_to_byte(uint32_t c)
{
    if (c < 256) return byte_prints(c) ? (int)c : -1;
    for (unsigned b = 0, at = 256; b < 256; b++)
        if (!byte_prints(b) && at++ == c) return (int)b;
    return -1;
}

uint32_t dsi_byte_to_char(unsigned char byte)
{
    uint32_t c = 256;
    if (byte_prints(byte)) return byte;
    for (unsigned b = 0; b < byte; b++) c += !byte_prints(b);
    return c;
}
