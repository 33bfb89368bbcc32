/* config/syntax.c: the text of a configuration as strict JSON, which jansson
 * parses.
 *
 * DeepSpeed reads its files as Hjson (hjson.github.io/syntax.html), so that
 * comments, keys and strings without quotes, single quotes, missing or trailing
 * commas and missing outer braces are accepted. This file reads such a text
 * once and writes the same document as
 * JSON.
 *
 * Invariants: every token of the JSON has its place in the text, and every key
 * the key that contains it, so that all messages have the user's lines; both
 * lists are in the order of the text. As in Hjson:
 *
 *   - a value without quotes is true, false, null or a number if it ends, as one, at , } ] # // or the
 *     end of the line; else it is a string up to the end of the line, commas and all;
 *   - a text that begins with neither { nor [ is the inside of an object, or one value;
 *   - what no Hjson parser can tell from a mistake (a value NaN without quotes takes the closing brace
 *     with it) is an error when the end is missing, and the message points at the value.
 *
 * SPDX-License-Identifier: MIT */
#include "syntax.h"

#include <string.h>

#define DEEPEST 64 /* levels of braces; DeepSpeed's own keys need 7 */

typedef struct scan {
    dsi_syntax *s;
    size_t at; /* next byte of the text */
    int depth;
    int key;           /* whose value is being read */
    size_t open_ended; /* the last string that went to the end of its line, plus 1; 0: none */
    dsi_text *error;
} scan;

/* ---- places -------------------------------------------------------------------------------------- */

/* Line and column, from 1, of a byte; columns count characters, as editors do. */
static void text_place(const dsi_syntax *s, size_t at, int *line, int *column)
{
    *line = *column = 1;
    for (size_t i = 0; i < at && i < s->n; i++) {
        char c = s->text[i];
        bool ends = c == '\n' || (c == '\r' && !(i + 1 < s->n && s->text[i + 1] == '\n'));
        if (ends) {
            ++*line;
            *column = 1;
        } else if ((c & 0xC0) != 0x80) {
            ++*column;
        }
    }
}

/* Adds "line 3 column 7: ..." once, and returns false. */
static bool scan_error(scan *c, size_t at, const char *format, ...) DS_PRINTF(3, 4);
static bool scan_error(scan *c, size_t at, const char *format, ...)
{
    int line, column;
    va_list args;
    text_place(c->s, at, &line, &column);
    dsi_text_add(c->error, "line %d column %d: ", line, column);
    va_start(args, format);
    dsi_text_add_args(c->error, format, args);
    va_end(args);
    return false;
}

/* The next byte of the JSON comes from that byte of the text. */
static void scan_add_token(scan *c, size_t at)
{
    dsi_list_add(&c->s->tokens, (dsi_syntax_token){c->s->json.n, at});
}

/* Where that byte of the JSON came from. */
static size_t json_origin(const dsi_syntax *s, size_t json)
{
    int i = s->tokens.n - 1;
    while (i > 0 && s->tokens.at[i].json > json) i--;
    if (i < 0) return 0;
    size_t at = s->tokens.at[i].text + (json - s->tokens.at[i].json);
    size_t next = i + 1 < s->tokens.n ? s->tokens.at[i + 1].text : s->n;
    return at < next ? at : next;
}

/* ---- bytes --------------------------------------------------------------------------------------- */

/* The byte that many bytes ahead; -1 at the end. */
static int scan_peek(const scan *c, size_t ahead)
{
    return c->at + ahead < c->s->n ? (unsigned char)c->s->text[c->at + ahead] : -1;
}

static bool is_space(int ch) { return ch == ' ' || ch == '\t' || ch == '\n' || ch == '\r'; }
static bool is_end_of_line(int ch) { return ch == '\n' || ch == '\r' || ch < 0; }

/* Whether a comment begins there, in the form of a shell, of C or of C++; also
 * after a value on its line. */
static bool scan_at_comment(const scan *c, size_t ahead)
{
    int ch = scan_peek(c, ahead), next = scan_peek(c, ahead + 1);
    return ch == '#' || (ch == '/' && (next == '/' || next == '*'));
}

/* Over white space and comments. */
static bool scan_skip_space(scan *c)
{
    for (;;) {
        while (is_space(scan_peek(c, 0))) c->at++;
        if (!scan_at_comment(c, 0)) return true;
        if (scan_peek(c, 0) == '/' && scan_peek(c, 1) == '*') {
            const char *rest = c->s->text + c->at + 2;
            const char *end = memmem(rest, c->s->n - c->at - 2, "*/", 2);
            if (!end) return scan_error(c, c->at, "a comment that does not end");
            c->at = (size_t)(end + 2 - c->s->text);
        } else {
            while (!is_end_of_line(scan_peek(c, 0))) c->at++;
        }
    }
}

/* Bytes of JSON's own: braces, commas, quotes. They need no token: an error at
 * one is placed by the token before. */
static void scan_put(scan *c, const char *s) { dsi_text_add_bytes(&c->s->json, s, strlen(s)); }

/* One byte of the inside of a JSON string. */
static void scan_put_byte(scan *c, char ch)
{
    if (ch == '"' || ch == '\\')
        dsi_text_add(&c->s->json, "\\%c", ch);
    else if ((unsigned char)ch < 0x20)
        dsi_text_add(&c->s->json, "\\u%04x", ch);
    else
        dsi_text_add_bytes(&c->s->json, &ch, 1);
}

/* Bytes [from, upto) of the text as a JSON string. */
static void scan_put_string(scan *c, size_t from, size_t upto)
{
    scan_add_token(c, from);
    scan_put(c, "\"");
    for (size_t i = from; i < upto; i++) scan_put_byte(c, c->s->text[i]);
    scan_put(c, "\"");
}

/* ---- strings ------------------------------------------------------------------------------------- */

/* "..." or '...': jansson checks escapes, except \', which JSON does not
 * have. */
static bool scan_quoted(scan *c)
{
    size_t begin = c->at;
    char quote = c->s->text[c->at++];
    scan_add_token(c, begin);
    scan_put(c, "\"");
    for (int ch; (ch = scan_peek(c, 0)) != quote; c->at++) {
        if (is_end_of_line(ch))
            return scan_error(c, begin, "a string without its closing %c", quote);
        if (ch == '\\' && scan_peek(c, 1) == '\'') {
            scan_put(c, "'");
            c->at++;
        } else if (ch == '\\' && scan_peek(c, 1) >= 0x20) {
            scan_add_token(c, c->at);
            dsi_text_add_bytes(&c->s->json, c->s->text + c->at, 2);
            c->at++;
        } else if (ch < 0x20) {
            return scan_error(c, c->at, "a control character (%d) inside a string", ch);
        } else {
            scan_put_byte(c, (char)ch);
        }
    }
    c->at++;
    scan_add_token(c, c->at - 1);
    scan_put(c, "\"");
    return true;
}

/* Over at most `most` bytes of indent, never over the end of a line. */
static void scan_skip_indent(scan *c, size_t most)
{
    for (int ch; most && ((ch = scan_peek(c, 0)) == ' ' || ch == '\t' || ch == '\r'); most--)
        c->at++;
}

/* '''...''': lines as they are, less the indent of the opening quotes and the
 * last end of line. */
static bool scan_multi_line(scan *c)
{
    size_t begin = c->at, indent = 0;
    while (indent < begin && c->s->text[begin - indent - 1] != '\n') indent++;
    dsi_text body = {0};
    c->at += 3;
    scan_skip_indent(c, SIZE_MAX);
    if (scan_peek(c, 0) == '\n') {
        c->at++;
        scan_skip_indent(c, indent);
    }
    bool closed = false;
    while (!closed && scan_peek(c, 0) >= 0) {
        int ch = scan_peek(c, 0);
        closed = ch == '\'' && scan_peek(c, 1) == '\'' && scan_peek(c, 2) == '\'';
        if (!closed && ch != '\r') dsi_text_add_bytes(&body, &c->s->text[c->at], 1);
        c->at += closed ? 3 : 1;
        if (ch == '\n') scan_skip_indent(c, indent);
    }
    if (body.n && body.s[body.n - 1] == '\n') body.n--;
    scan_add_token(c, begin);
    scan_put(c, "\"");
    for (size_t i = 0; i < body.n; i++) scan_put_byte(c, body.s[i]);
    scan_put(c, "\"");
    dsi_text_free(&body);
    return closed || scan_error(c, begin, "a string without its closing '''");
}

/* ---- values without quotes ----------------------------------------------------------------------- */

/* The place after the digits that begin at i; i itself if there are none. */
static size_t number_skip_digits(const char *s, size_t n, size_t i)
{
    while (i < n && s[i] >= '0' && s[i] <= '9') i++;
    return i;
}

/* Whether s is a JSON number: -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]?
 * [0-9]+)? */
static bool number_is_json(const char *s, size_t n, bool *integer)
{
    size_t i = n && s[0] == '-', from = i;
    i = number_skip_digits(s, n, i);
    if (i == from || (s[from] == '0' && i > from + 1)) return false;
    *integer = i == n;
    if (i < n && s[i] == '.') {
        from = ++i;
        i = number_skip_digits(s, n, i);
        if (i == from) return false;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i++;
        if (i < n && (s[i] == '+' || s[i] == '-')) i++;
        from = i;
        i = number_skip_digits(s, n, i);
        if (i == from) return false;
    }
    return i == n;
}

/* Whether the digits of an integer are in the range of int64_t; compared as
 * text, so that nothing overflows. */
static bool number_fits_64_bits(const char *s, size_t n)
{
    static const char *const limits[] = {"9223372036854775807", "9223372036854775808"};
    bool minus = s[0] == '-';
    size_t count = n - minus;
    return count < 19 || (count == 19 && memcmp(s + minus, limits[minus], 19) <= 0);
}

/* Writes s if it is true, false, null or a number. An integer beyond 64 bits
 * becomes a real number: its key refuses it if it is too large. */
static bool scan_literal(scan *c, size_t from, size_t upto)
{
    const char *s = c->s->text + from;
    size_t n = upto - from;
    bool integer = false;
    bool word = (n == 4 && (!memcmp(s, "true", 4) || !memcmp(s, "null", 4))) ||
                (n == 5 && !memcmp(s, "false", 5));
    if (!word && !number_is_json(s, n, &integer)) return false;
    scan_add_token(c, from);
    dsi_text_add_bytes(&c->s->json, s, n);
    if (integer && !number_fits_64_bits(s, n)) scan_put(c, "e0");
    return true;
}

/* A value without quotes: a literal if it ends as one, else a string up to
 * the end of its line. */
static bool scan_bare(scan *c)
{
    size_t begin = c->at;
    int first = scan_peek(c, 0);
    if (first < 0) return scan_error(c, c->at, "a value is missing at the end of the text");
    if (strchr("{}[],:", first))
        return scan_error(c, c->at, "found '%c' where a value is expected", first);
    for (;; c->at++) {
        int ch = scan_peek(c, 0);
        if (!is_end_of_line(ch) && ch != ',' && ch != '}' && ch != ']' && !scan_at_comment(c, 0))
            continue;
        size_t upto = c->at;
        while (upto > begin && (unsigned char)c->s->text[upto - 1] <= ' ') upto--;
        if (scan_literal(c, begin, upto)) return true;
        if (!is_end_of_line(ch)) continue;
        scan_put_string(c, begin, upto);
        c->open_ended = begin + 1;
        return true;
    }
}

/* ---- structure ----------------------------------------------------------------------------------- */

static bool scan_object(scan *c, bool braces);
static bool scan_array(scan *c);

/* Objects and arrays count levels, so that a hostile file cannot exhaust the
 * stack. */
static bool scan_value(scan *c)
{
    int ch = scan_peek(c, 0);
    if (ch == '\'' && scan_peek(c, 1) == '\'' && scan_peek(c, 2) == '\'') return scan_multi_line(c);
    if (ch == '"' || ch == '\'') return scan_quoted(c);
    if (ch != '{' && ch != '[') return scan_bare(c);
    if (c->depth == DEEPEST) return scan_error(c, c->at, "nested deeper than %d levels", DEEPEST);
    c->depth++;
    bool ok = ch == '{' ? scan_object(c, true) : scan_array(c);
    c->depth--;
    return ok;
}

/* The text ends too early: points at the value that may have taken the rest of
 * a line with it. */
static bool scan_ended_early(scan *c, const char *close)
{
    scan_error(c, c->s->n, "the text ends before the closing '%s'", close);
    if (!c->open_ended) return false;
    int line, column;
    text_place(c->s, c->open_ended - 1, &line, &column);
    dsi_text_add(c->error,
                 " (the value at line %d column %d has no quotes: it ends at the end of its line)",
                 line, column);
    return false;
}

/* A key, with or without quotes, and its colon. */
static bool scan_key(scan *c)
{
    dsi_syntax_key key = {c->key, c->at, c->s->json.n + 1, 0};
    int first = scan_peek(c, 0);
    if (first == '"' || first == '\'') {
        if (!scan_quoted(c)) return false;
    } else {
        size_t begin = c->at;
        for (int ch; (ch = scan_peek(c, 0)) != ':' && !is_space(ch); c->at++) {
            if (ch < 0) return scan_ended_early(c, "}");
            if (strchr("{}[],", ch))
                return scan_error(c, begin, "found '%c' where a key is expected", ch);
        }
        if (c->at == begin) return scan_error(c, begin, "a key is missing before ':'");
        scan_put_string(c, begin, c->at);
    }
    key.upto = c->s->json.n - 1;
    size_t after = c->at;
    bool quotes = first == '"' || first == '\''; /* a bare key ends at the colon */
    while (is_space(scan_peek(c, 0))) c->at++;
    if (quotes && !scan_skip_space(c)) return false;
    if (scan_peek(c, 0) != ':') return scan_error(c, after, "':' is missing after the key");
    c->at++;
    scan_put(c, ":");
    dsi_list_add(&c->s->keys, key);
    return true;
}

/* A comma is optional before the next member, and allowed before the end. */
static bool scan_comma(scan *c)
{
    if (!scan_skip_space(c)) return false;
    if (scan_peek(c, 0) != ',') return true;
    c->at++;
    return scan_skip_space(c);
}

/* Without braces (the whole document) the members end with the text. */
static bool scan_object(scan *c, bool braces)
{
    int parent = c->key;
    c->at += braces;
    scan_put(c, "{");
    if (!scan_skip_space(c)) return false;
    for (int n = 0; braces ? scan_peek(c, 0) != '}' : scan_peek(c, 0) >= 0; n++) {
        if (scan_peek(c, 0) < 0) return scan_ended_early(c, "}");
        if (n) scan_put(c, ",");
        if (!scan_key(c)) return false;
        c->key = c->s->keys.n - 1;
        bool ok = scan_skip_space(c) && scan_value(c) && scan_comma(c);
        c->key = parent;
        if (!ok) return false;
    }
    c->at += braces;
    scan_put(c, "}");
    return true;
}

/* Elements may be separated by commas or ends of lines. */
static bool scan_array(scan *c)
{
    c->at++;
    scan_put(c, "[");
    if (!scan_skip_space(c)) return false;
    for (int n = 0; scan_peek(c, 0) != ']'; n++) {
        if (scan_peek(c, 0) < 0) return scan_ended_early(c, "]");
        if (n) scan_put(c, ",");
        if (!scan_value(c) || !scan_comma(c)) return false;
    }
    c->at++;
    scan_put(c, "]");
    return true;
}

/* Whether the rest is one line without ':': "null" or "abc", of which no member
 * of an object can be read. */
static bool scan_is_lone_value(const scan *c)
{
    const char *rest = c->s->text + c->at;
    size_t n = c->s->n - c->at;
    while (n && strchr(" \t\r\n", rest[n - 1])) n--;
    return n && !memchr(rest, ':', n) && !memchr(rest, '\n', n) && !memchr(rest, '\r', n);
}

/* The whole text: a byte order mark, white space, one value or the members
 * of an object, and nothing after it. */
static bool scan_document(scan *c)
{
    const char *zero = memchr(c->s->text, 0, c->s->n);
    if (zero && c->s->n > 2 &&
        (!memcmp(c->s->text, "\xFF\xFE", 2) || !memcmp(c->s->text, "\xFE\xFF", 2)))
        return scan_error(c, 0, "the text is UTF-16; expected UTF-8");
    if (zero)
        return scan_error(c, (size_t)(zero - c->s->text), "a byte that is 0; this is no text");
    if (c->s->n >= 3 && !memcmp(c->s->text, "\xEF\xBB\xBF", 3)) c->at = 3;
    if (!scan_skip_space(c)) return false;
    bool closed = scan_peek(c, 0) == '{' || scan_peek(c, 0) == '[' || scan_is_lone_value(c);
    if (!(closed ? scan_value(c) : scan_object(c, false))) return false;
    if (!scan_skip_space(c)) return false;
    return c->at == c->s->n || scan_error(c, c->at, "something follows after the end");
}

/* ---- the whole ----------------------------------------------------------------------------------- */

/* "zero_optimization.stage" */
static void key_add_path(dsi_text *t, const dsi_syntax *s, int key)
{
    const dsi_syntax_key *k = &s->keys.at[key];
    if (k->parent >= 0) {
        key_add_path(t, s, k->parent);
        dsi_text_add_bytes(t, ".", 1);
    }
    dsi_text_add_bytes(t, s->json.s + k->from, k->upto - k->from);
}

/* jansson's words for what is about its own options, or is not what a user
 * sees; NULL: unchanged. */
static const char *error_in_plain_words(const json_error_t *e)
{
    switch (json_error_code(e)) {
    case json_error_null_character:
    case json_error_null_byte_in_key:
        return "\\u0000 cannot be in a string";
    case json_error_numeric_overflow:
        return "the number is too large";
    case json_error_invalid_utf8:
        return "a byte that is not UTF-8";
    default:
        return NULL;
    }
}

/* Reports jansson's error in places of the user's text. Its position is that of
 * the next byte it would read; its own text may end with bytes of the JSON,
 * with quotes and escapes that the user did not write. */
static void error_explain(scan *c, const json_error_t *e)
{
    const dsi_syntax *s = c->s;
    size_t json = e->position > 0 ? (size_t)e->position - 1 : 0;
    if (error_in_plain_words(e)) {
        scan_error(c, json_origin(s, json), "%s", error_in_plain_words(e));
        return;
    }
    if (json_error_code(e) != json_error_duplicate_key) {
        /* bytes that may be cut inside of a character */
        const char *near = strstr(e->text, " near '");
        int n = near ? (int)(near - e->text) : (int)strlen(e->text);
        scan_error(c, json_origin(s, json), "%.*s", n, e->text);
        return;
    }
    int last = -1; /* the last key that had been read */
    for (int i = 0; i < s->keys.n && s->keys.at[i].from <= json; i++) last = i;
    if (last < 0) return;
    dsi_text path = {0};
    key_add_path(&path, s, last);
    scan_error(c, s->keys.at[last].at, "the key \"%s\" occurs here a second time", path.s);
    dsi_text_free(&path);
}

/* text is borrowed and must live as long as s: places are computed from it when
 * a message needs one. */
json_t *dsi_syntax_parse(dsi_syntax *s, const char *text, size_t n, dsi_text *error)
{
    *s = (dsi_syntax){.text = text, .n = n};
    scan c = {s, .key = -1, .error = error};
    if (!scan_document(&c)) return NULL;
    json_error_t e;
    json_t *parsed = json_loadb(s->json.s, s->json.n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (!parsed) error_explain(&c, &e);
    return parsed;
}

void dsi_syntax_free(dsi_syntax *s)
{
    dsi_text_free(&s->json);
    dsi_list_free(&s->keys);
    dsi_list_free(&s->tokens);
}

/* Looks each name of the path up among the keys of the group before it. */
int dsi_syntax_line(const dsi_syntax *s, const char *path)
{
    int line = 0, column, parent = -1;
    for (const char *name = path; *name;) {
        size_t length = strcspn(name, ".");
        int found = -1;
        for (int i = 0; i < s->keys.n && found < 0; i++) {
            const dsi_syntax_key *k = &s->keys.at[i];
            if (k->parent == parent && k->upto - k->from == length &&
                !memcmp(s->json.s + k->from, name, length))
                found = i;
        }
        if (found < 0) return 0;
        parent = found;
        name += length + (name[length] == '.');
    }
    if (parent >= 0) text_place(s, s->keys.at[parent].at, &line, &column);
    return line;
}
