/* launcher/argv.c: argument vectors; words split and quoted as a shell does,
 * and as JSON.
 * SPDX-License-Identifier: MIT */
#include "argv.h"

#include "base/error.h"

#include <stdarg.h>
#include <stdint.h>
#include <string.h>

/* ---- argument vectors ---------------------------------------------------------- */

/* Takes ownership of the word; keeps at[n] NULL. */
static void argv_push(argv_list *w, char *word)
{
    dsi_list_add(w, word);
    dsi_list_add(w, NULL);
    w->n--;
}

void argv_add(argv_list *w, const char *format, ...)
{
    dsi_text t = {0};
    va_list args;
    va_start(args, format);
    dsi_text_add_args(&t, format, args);
    va_end(args);
    argv_push(w, t.s ? t.s : dsi_strdup(""));
}

void argv_add_all(argv_list *w, char *const *argv)
{
    for (; argv && *argv; argv++) argv_push(w, dsi_strdup(*argv));
}

char **argv_detach(argv_list *w)
{
    char **argv = w->at ? w->at : dsi_alloc(sizeof *argv);
    *w = (argv_list){0};
    return argv;
}

argv_list argv_attach(char **argv)
{
    argv_list w = {.at = argv};
    while (argv && argv[w.n]) w.n++;
    w.room = w.n ? w.n + 1 : argv != NULL;
    return w;
}

void argv_list_free(argv_list *w)
{
    for (int i = 0; i < w->n; i++) dsi_free(w->at[i]);
    dsi_list_free(w);
}

void argv_free(char **argv)
{
    for (char **a = argv; a && *a; a++) dsi_free(*a);
    dsi_free(argv);
}

/* ---- shell words ---------------------------------------------------------------- */

/* Reads one word from *at, which is moved past it. false: a quote is not
 * closed. */
static bool argv_split_word(dsi_text *word, const char **at)
{
    const char *s = *at;
    char quote = 0;
    dsi_text_add_bytes(word, "", 0);
    for (; *s && (quote || !strchr(" \t\n\r", *s)); s++) {
        if (quote ? *s == quote : *s == '\'' || *s == '"') {
            quote = quote ? 0 : *s;
            continue;
        }
        if (*s == '\\' && quote != '\'') {
            /* within "" a backslash only quotes what is special there */
            if (!s[1]) return false;
            if (!quote || strchr("\\\"$`\n", s[1])) s++;
        }
        dsi_text_add_bytes(word, s, 1);
    }
    *at = s;
    return !quote;
}

ds_status argv_split(argv_list *w, const char *what, const char *text)
{
    for (const char *s = text;;) {
        s += strspn(s, " \t\n\r");
        if (!*s) return DS_OK;
        dsi_text word = {0};
        if (!argv_split_word(&word, &s)) {
            dsi_text_free(&word);
            return dsi_fail(DS_EINVAL, "%s: a quote or a backslash at the end of: %s", what, text);
        }
        argv_push(w, word.s);
    }
}

void text_add_shell(dsi_text *t, const char *word)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
    if (*word && !word[strspn(word, plain)]) {
        dsi_text_add(t, "%s", word);
        return;
    }
    dsi_text_add(t, "'");
    for (const char *s = word; *s; s++) {
        if (*s == '\'')
            dsi_text_add(t, "'\\''");
        else
            dsi_text_add_bytes(t, s, 1);
    }
    dsi_text_add(t, "'");
}

/* ---- JSON ------------------------------------------------------------------------ */

/* The character at s, and its length in *bytes. A byte that is not UTF-8 gives
 * 0xdc00 + byte, as Python's surrogateescape does. */
static uint32_t utf8_decode(const unsigned char *s, int *bytes)
{
    int n = s[0] < 0x80 ? 1 : s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : 4;
    uint32_t c = n == 1 ? s[0] : s[0] & (0xffU >> (n + 1));
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    *bytes = n;
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            c = UINT32_MAX;
            break;
        }
        c = c << 6 | (s[i] & 0x3f);
    }
    bool good = (s[0] < 0x80 || (s[0] >= 0xc2 && s[0] < 0xf5)) && c >= least[n] && c < 0x110000 &&
                (c & ~0x7ffU) != 0xd800;
    if (good) return c;
    *bytes = 1;
    return 0xdc00U + s[0];
}

void text_add_json(dsi_text *t, const char *text)
{
    static const char named[] = "\"\\\n\r\t\f\b", letter[] = "\"\\nrtfb";
    dsi_text_add(t, "\"");
    const unsigned char *s = (const unsigned char *)text;
    for (int bytes; *s; s += bytes) {
        uint32_t c = utf8_decode(s, &bytes);
        const char *name = c < 0x80 ? strchr(named, (int)c) : NULL;
        if (name)
            dsi_text_add(t, "\\%c", letter[name - named]);
        else if (c >= 0x20 && c < 0x7f)
            dsi_text_add(t, "%c", (int)c);
        else if (c < 0x10000)
            dsi_text_add(t, "\\u%04x", c);
        else
            dsi_text_add(t, "\\u%04x\\u%04x", 0xd7c0 + (c >> 10), 0xdc00 + (c & 0x3ff));
    }
    dsi_text_add(t, "\"");
}
