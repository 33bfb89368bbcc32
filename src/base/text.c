/* base/text.c: a growable string; numbers as Python prints them; the nearest
 * word.
 *
 * The distance of two words is the number of letters to insert, delete, replace
 * or exchange with their neighbour (Damerau, CACM 7, 1964; the restricted form:
 * no letter is touched twice); less if they differ by whole parts between
 * underscores.
 * SPDX-License-Identifier: MIT */
#include "text.h"

#include "mem.h"

#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for n more bytes and the final 0. */
static void text_grow(dsi_text *t, size_t n)
{
    if (t->n + n + 1 <= t->room) return;
    t->room = t->room ? 2 * t->room : 64;
    if (t->room < t->n + n + 1) t->room = t->n + n + 1;
    t->s = dsi_realloc(t->s, t->room);
}

void dsi_text_add_args(dsi_text *t, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    if (n >= 0) {
        text_grow(t, (size_t)n);
        vsnprintf(t->s + t->n, (size_t)n + 1, format, again);
        t->n += (size_t)n;
    }
    va_end(again);
}

void dsi_text_add(dsi_text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    dsi_text_add_args(t, format, args);
    va_end(args);
}

dsi_text dsi_text_of(const char *format, ...)
{
    dsi_text t = {0};
    va_list args;
    va_start(args, format);
    dsi_text_add_args(&t, format, args);
    va_end(args);
    return t;
}

void dsi_text_add_bytes(dsi_text *t, const void *bytes, size_t n)
{
    text_grow(t, n);
    if (n) memcpy(t->s + t->n, bytes, n);
    t->n += n;
    t->s[t->n] = 0;
}

void dsi_text_free(dsi_text *t)
{
    dsi_free(t->s);
    *t = (dsi_text){0};
}

bool dsi_is_utf8(const void *bytes, size_t n)
{
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000}; /* of 1, 2, 3, 4 bytes */
    const uint8_t *p = bytes;
    for (size_t i = 0; i < n;) {
        uint8_t c = p[i++];
        int more = c < 0x80 ? 0 : c >> 5 == 6 ? 1 : c >> 4 == 14 ? 2 : c >> 3 == 30 ? 3 : -1;
        if (more < 0 || (size_t)more > n - i) return false;
        uint32_t code = more ? c & (0x3fu >> more) : c;
        for (int k = 0; k < more; k++) {
            if (p[i] >> 6 != 2) return false;
            code = code << 6 | (p[i++] & 0x3f);
        }
        if (code < least[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
            return false;
    }
    return true;
}

void dsi_make_printable(char *text)
{
    for (char *c = text; *c; c++) {
        unsigned char byte = (unsigned char)*c;
        if (byte < ' ' || byte == 127) *c = byte == '\t' ? ' ' : '?';
        if (byte < 0x80) continue;
        size_t n = 2, left = strnlen(c, 4);
        while (n <= left && !dsi_is_utf8(c, n)) n++;
        bool control = byte == 0xc2 && (unsigned char)c[1] < 0xa0; /* U+0080 to U+009F */
        if (n > left || control)
            *c = '?';
        else
            c += n - 1;
    }
}

bool dsi_ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

bool dsi_has_word(const char *words, const char *word, size_t n)
{
    for (size_t k; *(words += strspn(words, " ,")); words += k) {
        k = strcspn(words, " ,");
        if (k == n && !memcmp(words, word, n)) return true;
    }
    return false;
}

/* ---- numbers ------------------------------------------------------------------------------------- */

/* The decimal number 0.d1 d2 ... dn times 10^point. */
typedef struct Decimal {
    char digits[24];
    int n, point;
} Decimal;

/* x > 0 with n digits, rounded to the nearest. */
static Decimal decimal_of(double x, int n)
{
    char s[40];
    Decimal d = {.n = 0};
    snprintf(s, sizeof s, "%.*e", n - 1, x);
    const char *p = s;
    for (; *p != 'e'; p++) /* all but the decimal point, which the locale chooses */
        if (isdigit((unsigned char)*p)) d.digits[d.n++] = *p;
    d.point = atoi(p + 1) + 1;
    return d;
}

static bool decimal_reads_as(const Decimal *d, double x)
{
    char s[40]; /* without a decimal point: that is the locale's */
    snprintf(s, sizeof s, "%.*se%d", d->n, d->digits, d->point - d->n);
    return strtod(s, NULL) == x;
}

/* One more in the last digit. */
static void decimal_count_up(Decimal *d)
{
    int i = d->n - 1;
    for (; i >= 0 && d->digits[i] == '9'; i--) d->digits[i] = '0';
    if (i < 0) { /* 999 becomes 1000, of which 100 are kept */
        i = 0;
        d->digits[0] = '0';
        d->point++;
    }
    d->digits[i]++;
}

/* The fewest digits that read back as x > 0, and of those the nearest, by
 * trying. A decimal of up to 15 digits survives the way through a normal
 * double, so 15 find all the shorter ones, followed by zeros. Below a power of
 * two doubles lie closer than above it: there the nearest decimal may read as
 * another double when the next one above, a little farther away, does not. */
static Decimal decimal_shortest_by_trying(double x)
{
    int exponent;
    bool power_of_two = frexp(x, &exponent) == 0.5;
    Decimal d;
    for (int n = x < DBL_MIN ? 1 : DBL_DIG; n <= 17; n++) {
        d = decimal_of(x, n);
        if (decimal_reads_as(&d, x)) break;
        if (!power_of_two) continue;
        decimal_count_up(&d);
        if (decimal_reads_as(&d, x)) break;
    }
    return d;
}

#ifdef __SIZEOF_INT128__
__extension__ typedef unsigned __int128 Wide;

/* The same by exact arithmetic, without a print and a read, for x of ordinary
 * size, no power of two; false for others. x = m / 2^shift; q, of 17 digits,
 * and rest are those of x 10^k:
 *     m 10^k = q 2^shift + rest
 * What reads back is no farther from x than half the distance of doubles, 1 /
 * 2^(shift + 1). */
static bool shortest_exactly(double x, Decimal *d)
{
    if (x < 1e-6 || x > 1e15) return false;
    int exponent, k = 16 - (int)floor(log10(x));
    uint64_t m = (uint64_t)(frexp(x, &exponent) * 0x1p53);
    int shift = 53 - exponent;
    Wide scale = 1;
    for (int i = 0; i < k; i++) scale *= 10;
    Wide scaled = m * scale; /* below 2^53 10^22 < 2^127 */
    uint64_t q = (uint64_t)(scaled >> shift), digits = q;
    Wide rest = scaled - ((Wide)q << shift);
    if (m == (uint64_t)1 << 52 || q < 10000000000000000 || q >= 100000000000000000) return false;
    for (uint64_t unit = 100; unit; unit /= 10) { /* 15, 16, 17 digits */
        Wide whole = (Wide)unit << shift, above = ((Wide)(q % unit) << shift) + rest;
        digits = q - q % unit;
        bool up = 2 * above > whole || (2 * above == whole && digits / unit % 2);
        Wide off = up ? whole - above : above;
        if (up) digits += unit;
        if (2 * off < scale || (2 * off == scale && m % 2 == 0)) break;
    }
    d->n = snprintf(d->digits, sizeof d->digits, "%llu", (unsigned long long)digits);
    d->point = d->n - k;
    return true;
}
#else
static bool shortest_exactly(double x, Decimal *d) { return (void)x, (void)d, false; }
#endif

static Decimal decimal_shortest(double x)
{
    Decimal d;
    if (!shortest_exactly(x, &d)) d = decimal_shortest_by_trying(x);
    while (d.n > 1 && d.digits[d.n - 1] == '0') d.n--;
    return d;
}

void dsi_text_add_double(dsi_text *t, double x)
{
    if (isnan(x)) {
        dsi_text_add(t, "nan");
        return;
    }
    if (signbit(x)) dsi_text_add(t, "-");
    if (isinf(x) || x == 0) {
        dsi_text_add(t, x == 0 ? "0.0" : "inf");
        return;
    }
    Decimal d = decimal_shortest(fabs(x));
    if (d.point > 16 || d.point < -3) {
        dsi_text_add(t, "%c%s%.*se%+03d", d.digits[0], d.n > 1 ? "." : "", d.n - 1, d.digits + 1,
                     d.point - 1);
    } else if (d.point <= 0) {
        dsi_text_add(t, "0.%.*s%.*s", -d.point, "000", d.n, d.digits);
    } else if (d.point >= d.n) {
        dsi_text_add(t, "%.*s%.*s.0", d.n, d.digits, d.point - d.n, "0000000000000000");
    } else {
        dsi_text_add(t, "%.*s.%.*s", d.point, d.digits, d.n - d.point, d.digits + d.point);
    }
}

void dsi_text_add_rounded(dsi_text *t, double x, int decimals)
{
    char s[400]; /* the largest double has 309 digits */
    snprintf(s, sizeof s, "%.*f", decimals, x);
    dsi_text_add_double(t, strtod(s, NULL));
}

/* ---- base64 -------------------------------------------------------------------------------------- */

static int base64_value(char digit)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    const char *at = digit ? strchr(digits, digit) : NULL;
    return at ? (int)(at - digits) : digit == '+' ? 62 : digit == '/' ? 63 : -1;
}

char *dsi_base64_decode(const char *text, size_t *n)
{
    size_t length = strlen(text), body = length;
    while (body && length - body < 2 && text[body - 1] == '=') body--;
    char *out = body && length % 4 == 0 ? dsi_alloc(length / 4 * 3 + 1) : NULL;
    unsigned bits = 0;
    *n = 0;
    for (size_t i = 0; out && i < body; i++) {
        int value = base64_value(text[i]);
        bits = bits << 6 | (unsigned)value;
        if (i % 4) out[(*n)++] = (char)(bits >> (6 - 2 * (i % 4)) & 0xFF);
        if (value >= 0) continue;
        dsi_free(out);
        out = NULL;
    }
    return out;
}

/* ---- the nearest word ---------------------------------------------------------------------------- */

#define LONGEST 64 /* letters of a word that are looked at */

static int int_min(int a, int b) { return a < b ? a : b; }

static bool letters_same(char a, char b)
{
    if (a == '-') a = '_'; /* both spellings of an option are one */
    if (b == '-') b = '_';
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Distance of a and b, row by row of the table of their beginnings; three rows
 * are enough. */
static int word_distance(const char *a, const char *b)
{
    int na = (int)strnlen(a, LONGEST), nb = (int)strnlen(b, LONGEST);
    int rows[3][LONGEST + 1], *before = rows[0], *above = rows[1], *row = rows[2];
    for (int j = 0; j <= nb; j++) above[j] = j;
    for (int i = 1; i <= na; i++) {
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            int replaced = above[j - 1] + !letters_same(a[i - 1], b[j - 1]);
            row[j] = int_min(replaced, 1 + int_min(above[j], row[j - 1]));
            if (i > 1 && j > 1 && letters_same(a[i - 1], b[j - 2]) &&
                letters_same(a[i - 2], b[j - 1]))
                row[j] = int_min(row[j], before[j - 2] + 1);
        }
        int *free = before;
        before = above;
        above = row;
        row = free;
    }
    return above[nb];
}

/* How many parts b has ("reduce_bucket_size" has three) besides those of a,
 * which all occur in it in their order; LONGEST if they do not. */
static int word_parts_more(const char *a, const char *b)
{
    int more = 0;
    while (*b) {
        size_t na = strcspn(a, "_-"), nb = strcspn(b, "_-"), k = 0;
        while (k < na && k < nb && letters_same(a[k], b[k])) k++;
        if (na > 0 && k == na && k == nb)
            a += na + (a[na] != 0);
        else
            more++;
        b += nb + (b[nb] != 0);
    }
    return *a ? LONGEST : more;
}

const char *dsi_nearest(const char *to, const char *const *words, int n)
{
    const char *best = NULL;
    /* near: a third of the letters, and one; of three letters one */
    int letters = (int)strnlen(to, LONGEST);
    int least_distance = letters == 3 ? 2 : letters / 3 + 2;
    for (int i = 0; i < n; i++) {
        /* letters; where whole parts are left out or put in, one, and one for each */
        int parts = int_min(word_parts_more(to, words[i]), word_parts_more(words[i], to));
        int d = int_min(word_distance(to, words[i]), 1 + parts);
        if (d < least_distance) {
            least_distance = d;
            best = words[i];
        }
    }
    return best;
}
