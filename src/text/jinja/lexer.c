/* text/jinja/lexer.c: a template into tokens, with the blanks that its tags
 * remove.
 *
 * Source: jinja2/lexer.py. trim_blocks: the newline behind a tag of statements
 * or a comment is not text. lstrip_blocks: neither are the blanks between the
 * beginning of a line and such a tag.
 * SPDX-License-Identifier: MIT */
#include "node.h"

#include "base/error.h"
#include "base/mem.h"
#include "text/unicode.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct Lexer {
    dsi_jinja *t;
    const char *s; /* [n]: newlines are \n */
    size_t n, at;
    int line;
    bool line_starts; /* what was read last ended a line */
    dsi_jtokens *out;
    dsi_text open; /* brackets of a tag that are not closed yet */
} Lexer;

static void token_add(Lexer *l, dsi_jtoken_kind kind, int op, dsi_jvalue value)
{
    dsi_list_add(l->out, (dsi_jtoken){kind, l->line, op, value});
}

static dsi_jvalue text_value(Lexer *l, const char *s, size_t n)
{
    char *copy = dsi_jarena_get(&l->t->arena, n + 1);
    memcpy(copy, s, n);
    return (dsi_jvalue){DSI_JSTRING, .n = n, .s = copy};
}

/* Moves on to `end`, and counts lines. */
static void lexer_skip(Lexer *l, size_t end)
{
    for (; l->at < end; l->at++) l->line += l->s[l->at] == '\n';
    l->line_starts = end && l->s[end - 1] == '\n';
}

static bool looks_at(const Lexer *l, size_t at, const char *what)
{
    size_t n = strlen(what);
    return at + n <= l->n && !memcmp(l->s + at, what, n);
}

/* The bytes of the blank character at `at`; 0: it is none. */
static size_t blank_at(const Lexer *l, size_t at)
{
    uint32_t c = 0;
    int n = at < l->n ? dsi_utf8_decode(l->s + at, l->n - at, &c) : 0;
    return n > 0 && (dsi_is_space(c) || (c >= 0x1C && c <= 0x1F)) ? (size_t)n : 0;
}

static size_t blanks_end(const Lexer *l, size_t at)
{
    for (size_t n; (n = blank_at(l, at)) > 0;) at += n;
    return at;
}

/* Where the blanks that end at `end` begin, not before `from`. */
static size_t blanks_begin(const Lexer *l, size_t from, size_t end)
{
    while (end > from) {
        size_t at = end - 1;
        while (at > from && ((unsigned char)l->s[at] & 0xC0) == 0x80) at--;
        if (at + blank_at(l, at) != end) break;
        end = at;
    }
    return end;
}

/* Text up to a tag at `end`, whose sign is '-', '+' or another character. */
static void data_add(Lexer *l, size_t end, char sign, bool prints)
{
    size_t to = end, from = l->at;
    if (sign == '-') {
        to = blanks_begin(l, from, end);
    } else if (sign != '+' && !prints) {
        size_t begin = end;
        while (begin > from && l->s[begin - 1] != '\n') begin--;
        if ((begin > from || l->line_starts) && blanks_end(l, begin) >= end) to = begin;
    }
    if (to > from) token_add(l, DSI_JT_DATA, 0, text_value(l, l->s + from, to - from));
    lexer_skip(l, end);
}

/* The end of a tag, `close`, at `at`: what follows it that is not text; 0: it
 * is not there. A print tag has no '+' and keeps its newline. */
static size_t tag_end(const Lexer *l, size_t at, const char *close)
{
    bool prints = *close == '}';
    if (looks_at(l, at, "-") && looks_at(l, at + 1, close)) return blanks_end(l, at + 3);
    if (!prints && looks_at(l, at, "+") && looks_at(l, at + 1, close)) return at + 3;
    if (!looks_at(l, at, close)) return 0;
    return at + 2 + (!prints && looks_at(l, at + 2, "\n"));
}

/* ---- inside of tags ---- */

static bool is_digit(const Lexer *l, size_t at)
{
    return at < l->n && isdigit((unsigned char)l->s[at]);
}

/* Digits, with single _ between them. */
static size_t digits_end(const Lexer *l, size_t at)
{
    while (is_digit(l, at) || (at < l->n && l->s[at] == '_' && is_digit(l, at + 1))) at++;
    return at;
}

static ds_status number_read(Lexer *l)
{
    size_t end = digits_end(l, l->at);
    bool real = false, octal = l->s[l->at] == '0' && end < l->n && strchr("xXoObB", l->s[end]);
    if (looks_at(l, end, ".") && is_digit(l, end + 1)) real = true, end = digits_end(l, end + 1);
    if (end < l->n && (l->s[end] | 32) == 'e') {
        size_t sign = end + 1 < l->n && strchr("+-", l->s[end + 1]) ? 2 : 1;
        if (is_digit(l, end + sign)) real = true, end = digits_end(l, end + sign);
    }
    dsi_text digits = dsi_text_of("%s", "");
    for (size_t i = l->at; i < end; i++)
        if (l->s[i] != '_') dsi_text_add_bytes(&digits, l->s + i, 1);
    errno = 0;
    dsi_jvalue v = {real ? DSI_JFLOAT : DSI_JINT, .n = 0, .i = 0};
    if (real)
        v.f = strtod(digits.s, NULL);
    else
        v.i = strtoll(digits.s, NULL, 10);
    bool wrong = octal || (!real && (errno || (digits.n > 1 && *digits.s == '0' && v.i)));
    dsi_text_free(&digits);
    if (wrong)
        return dsi_jinja_wrong(l->t, l->line,
                               "a number that is not decimal or does not fit into 64 bits");
    token_add(l, DSI_JT_NUMBER, 0, v);
    lexer_skip(l, end);
    return DS_OK;
}

/* A character that is written with digits: \xNN, \uNNNN, \UNNNNNNNN, \NNN. */
static size_t coded_character(const char *s, size_t n, size_t at, dsi_text *to)
{
    char kind = s[at];
    bool octal = kind >= '0' && kind <= '7';
    size_t most = octal ? 3 : kind == 'x' ? 2 : kind == 'u' ? 4 : 8, from = octal ? at : at + 1;
    uint32_t c = 0;
    size_t i = 0;
    for (; i < most && from + i < n; i++) {
        char d = s[from + i];
        if (octal ? d < '0' || d > '7' : !isxdigit((unsigned char)d)) break;
        c = c * (octal ? 8 : 16) +
            (uint32_t)(isdigit((unsigned char)d) ? d - '0' : (d | 32) - 'a' + 10);
    }
    if ((!octal && i < most) || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return 0;
    dsi_utf8_append(to, c);
    return from + i;
}

/* The text of s[0..n), the inside of a string literal, with Python's escapes;
 * false if one is wrong. */
static bool unescape(const char *s, size_t n, dsi_text *to)
{
    static const char from[] = "\\'\"abfnrtv", as[] = "\\'\"\a\b\f\n\r\t\v";
    for (size_t i = 0; i < n;) {
        const char *known = s[i] == '\\' ? strchr(from, s[i + 1]) : NULL;
        if (s[i] != '\\') {
            dsi_text_add_bytes(to, s + i++, 1);
        } else if (s[i + 1] == '\n') {
            i += 2;
        } else if (known && *known) {
            dsi_text_add_bytes(to, as + (known - from), 1), i += 2;
        } else if (strchr("xuU01234567", s[i + 1])) {
            i = coded_character(s, n, i + 1, to);
            if (!i) return false;
        } else if (s[i + 1] == 'N') {
            return false;
        } else {
            dsi_text_add_bytes(to, s + i++, 1); /* an unknown escape is its text */
        }
    }
    return true;
}

static ds_status string_read(Lexer *l)
{
    char quote = l->s[l->at];
    size_t end = l->at + 1;
    while (end < l->n && l->s[end] != quote) end += l->s[end] == '\\' ? 2 : 1;
    if (end >= l->n) return dsi_jinja_wrong(l->t, l->line, "a string without its end");
    dsi_text text = {0};
    bool fine = unescape(l->s + l->at + 1, end - l->at - 1, &text);
    if (fine) token_add(l, DSI_JT_STRING, 0, text_value(l, text.s ? text.s : "", text.n));
    dsi_text_free(&text);
    if (!fine)
        return dsi_jinja_wrong(l->t, l->line, "a string with an escape that is not Python's");
    lexer_skip(l, end + 1);
    return DS_OK;
}

/* Operators, and whether brackets are in pairs. */
static ds_status operator_read(Lexer *l)
{
    static const struct {
        char text[3];
        int op;
    } two[] = {{"**", DSI_JOP_POW}, {"//", DSI_JOP_DIV}, {"==", DSI_JOP_EQ},
               {"!=", DSI_JOP_NE},  {"<=", DSI_JOP_LE},  {">=", DSI_JOP_GE}};
    int op = 0;
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (looks_at(l, l->at, two[i].text)) op = two[i].op;
    size_t n = op ? 2 : 1;
    char c = l->s[l->at];
    if (!op && c && strchr("+-*/%~[](){}<>=.:|,;", c)) op = (unsigned char)c;
    if (!op) return dsi_jinja_wrong(l->t, l->line, "unexpected character 0x%02x", (unsigned char)c);
    if (n == 1 && strchr("([{", c)) dsi_text_add_bytes(&l->open, &c, 1);
    if (n == 1 && strchr(")]}", c)) {
        char wanted = c == ')' ? '(' : c == ']' ? '[' : '{';
        if (!l->open.n || l->open.s[l->open.n - 1] != wanted)
            return dsi_jinja_wrong(l->t, l->line, "unexpected '%c'", c);
        l->open.n--;
    }
    token_add(l, DSI_JT_OP, op, (dsi_jvalue){0});
    lexer_skip(l, l->at + n);
    return DS_OK;
}

static size_t name_end(const Lexer *l, size_t at)
{
    for (uint32_t c; at < l->n; at += dsi_utf8_length(l->s + at))
        if (dsi_utf8_decode(l->s + at, l->n - at, &c) <= 0 || !dsi_is_word(c)) break;
    return at;
}

/* The inside of a tag, up to its end. */
static ds_status tag_read(Lexer *l, const char *close, dsi_jtoken_kind end_kind)
{
    ds_status status = DS_OK;
    l->open.n = 0;
    while (status == DS_OK) {
        lexer_skip(l, blanks_end(l, l->at));
        if (l->at >= l->n) return dsi_jinja_wrong(l->t, l->line, "a tag without its end");
        size_t end = l->open.n ? 0 : tag_end(l, l->at, close);
        if (end) {
            token_add(l, end_kind, 0, (dsi_jvalue){0});
            lexer_skip(l, end);
            return DS_OK;
        }
        char c = l->s[l->at];
        size_t word = name_end(l, l->at);
        if (is_digit(l, l->at)) {
            status = number_read(l);
        } else if (word > l->at) {
            token_add(l, DSI_JT_NAME, 0, text_value(l, l->s + l->at, word - l->at));
            lexer_skip(l, word);
        } else {
            status = c == '"' || c == '\'' ? string_read(l) : operator_read(l);
        }
    }
    return status;
}

/* ---- tags ---- */

static ds_status comment_skip(Lexer *l)
{
    for (size_t at = l->at + 2; at < l->n; at++) {
        size_t end = tag_end(l, at, "#}");
        if (!end) continue;
        lexer_skip(l, end);
        return DS_OK;
    }
    return dsi_jinja_wrong(l->t, l->line, "a comment without its end");
}

/* Whether a tag of statements at `at` has this word alone: the end of the word. */
static size_t word_tag(const Lexer *l, size_t at, const char *word, char *sign)
{
    if (!looks_at(l, at, "{%")) return 0;
    at += 2;
    *sign = at < l->n ? l->s[at] : 0;
    if (*sign == '-' || *sign == '+') at++;
    at = blanks_end(l, at);
    return looks_at(l, at, word) ? blanks_end(l, at + strlen(word)) : 0;
}

/* Behind {% raw %}: text up to {% endraw %}. */
static ds_status raw_read(Lexer *l)
{
    for (size_t at = l->at; at < l->n; at++) {
        char sign = 0;
        size_t word = word_tag(l, at, "endraw", &sign), end = word ? tag_end(l, word, "%}") : 0;
        if (!end) continue;
        data_add(l, at, sign, false);
        lexer_skip(l, end);
        return DS_OK;
    }
    return dsi_jinja_wrong(l->t, l->line, "{%% raw %%} without {%% endraw %%}");
}

/* The end of {% raw %}, which keeps its newline; 0: it is another tag. */
static size_t raw_begins(const Lexer *l, size_t at)
{
    char sign = 0;
    size_t end = word_tag(l, at, "raw", &sign);
    if (end && looks_at(l, end, "%}")) return end + 2;
    return end && looks_at(l, end, "-%}") ? blanks_end(l, end + 3) : 0;
}

static ds_status tag_or_comment(Lexer *l)
{
    char kind = l->s[l->at + 1];
    if (kind == '#') return comment_skip(l);
    size_t raw = raw_begins(l, l->at);
    if (raw) {
        lexer_skip(l, raw);
        return raw_read(l);
    }
    bool prints = kind == '{', signs = l->at + 2 < l->n && strchr("+-", l->s[l->at + 2]);
    token_add(l, prints ? DSI_JT_PRINT_BEGIN : DSI_JT_BLOCK_BEGIN, 0, (dsi_jvalue){0});
    lexer_skip(l, l->at + 2 + signs);
    return tag_read(l, prints ? "}}" : "%}", prints ? DSI_JT_PRINT_END : DSI_JT_BLOCK_END);
}

static ds_status template_read(Lexer *l)
{
    ds_status status = DS_OK;
    while (status == DS_OK && l->at < l->n) {
        size_t at = l->at;
        while (at < l->n && !(l->s[at] == '{' && at + 1 < l->n && strchr("{%#", l->s[at + 1])))
            at++;
        char sign = at + 2 < l->n ? l->s[at + 2] : 0;
        if (at < l->n) {
            data_add(l, at, sign, l->s[at + 1] == '{');
            status = tag_or_comment(l);
        } else {
            data_add(l, at, '+', false);
        }
    }
    token_add(l, DSI_JT_END, 0, (dsi_jvalue){0});
    return status;
}

ds_status dsi_jinja_tokens(dsi_jinja *t, const char *source, size_t bytes, dsi_jtokens *out)
{
    dsi_text text = {0};
    for (size_t i = 0; i < bytes; i++) {
        if (source[i] == '\r' && i + 1 < bytes && source[i + 1] == '\n') continue;
        dsi_text_add_bytes(&text, source[i] == '\r' ? "\n" : source + i, 1);
    }
    if (text.n && text.s[text.n - 1] == '\n') text.n--;
    Lexer l = {.t = t, .s = text.s, .n = text.n, .line = 1, .line_starts = true, .out = out};
    bool utf8 = dsi_is_utf8(text.s ? text.s : "", text.n);
    ds_status status = utf8 ? template_read(&l) : dsi_jinja_wrong(t, 1, "text that is not UTF-8");
    dsi_text_free(&text);
    dsi_text_free(&l.open);
    return status;
}
