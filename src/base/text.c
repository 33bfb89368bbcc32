/* base/text.c: a growable string; the nearest word, for "did you mean".
 *
 * The distance of two words is the number of letters to insert, delete, replace or exchange with their
 * neighbour (Damerau, CACM 7, 1964; the restricted form: no letter is touched twice).
 * SPDX-License-Identifier: MIT */
#include "text.h"

#include "mem.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Room for n more bytes and the final 0. */
static void grow(dsi_text *t, size_t n)
{
    if (t->n + n + 1 <= t->room) return;
    t->room = t->room ? 2 * t->room : 64;
    if (t->room < t->n + n + 1) t->room = t->n + n + 1;
    t->s = dsi_realloc(t->s, t->room);
}

void dsi_text_add(dsi_text *t, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    if (n >= 0) {
        grow(t, (size_t)n);
        vsnprintf(t->s + t->n, (size_t)n + 1, format, again);
        t->n += (size_t)n;
    }
    va_end(again);
    va_end(args);
}

void dsi_text_add_bytes(dsi_text *t, const void *bytes, size_t n)
{
    grow(t, n);
    if (n) memcpy(t->s + t->n, bytes, n);
    t->n += n;
    t->s[t->n] = 0;
}

void dsi_text_free(dsi_text *t)
{
    dsi_free(t->s);
    *t = (dsi_text){0};
}

/* ---- the nearest word ---------------------------------------------------------------------------- */

#define LONGEST 64 /* letters of a word that are looked at */

static int least(int a, int b) { return a < b ? a : b; }

static bool same(char a, char b)
{
    if (a == '-') a = '_'; /* both spellings of an option are one */
    if (b == '-') b = '_';
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Distance of a and b, row by row of the table of their beginnings; three rows are enough. */
static int distance(const char *a, const char *b)
{
    int na = (int)strnlen(a, LONGEST), nb = (int)strnlen(b, LONGEST);
    int rows[3][LONGEST + 1], *before = rows[0], *above = rows[1], *row = rows[2];
    for (int j = 0; j <= nb; j++) above[j] = j;
    for (int i = 1; i <= na; i++) {
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            int replaced = above[j - 1] + !same(a[i - 1], b[j - 1]);
            row[j] = least(replaced, 1 + least(above[j], row[j - 1]));
            if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
                row[j] = least(row[j], before[j - 2] + 1);
        }
        int *free = before;
        before = above;
        above = row;
        row = free;
    }
    return above[nb];
}

const char *dsi_nearest(const char *to, const char *const *words, int n)
{
    const char *best = NULL;
    int least_distance = (int)strnlen(to, LONGEST) / 3 +
                         2; /* near: a third of the letters, and one */
    for (int i = 0; i < n; i++) {
        int d = distance(to, words[i]);
        if (d < least_distance) {
            least_distance = d;
            best = words[i];
        }
    }
    return best;
}
