/* config/syntax.c: the text of a configuration as strict JSON, which jansson parses.
 *
 * DeepSpeed reads its files as Hjson (hjson.github.io/syntax.html), so that comments, keys and strings
 * without quotes, single quotes, missing or trailing commas and missing outer braces pass. This file goes
 * once over such a text and writes the same document as JSON; every token remembers where it came from,
 * and every key what it stands in, so that all messages speak of the user's lines. As in Hjson:
 *
 *   - a value without quotes is true, false, null or a number if it ends, as one, at , } ] # // or the
 *     end of the line; else it is a string up to the end of the line, commas and all;
 *   - a text that begins with neither { nor [ is the inside of an object;
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
static void place(const dsi_syntax *s, size_t at, int *line, int *column)
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
static bool wrong_at(scan *c, size_t at, const char *format, ...) DS_PRINTF(3, 4);
static bool wrong_at(scan *c, size_t at, const char *format, ...)
{
    int line, column;
    va_list args;
    place(c->s, at, &line, &column);
    dsi_text_add(c->error, "line %d column %d: ", line, column);
    va_start(args, format);
    dsi_text_add_args(c->error, format, args);
    va_end(args);
    return false;
}

static void token(scan *c, size_t at)
{
    dsi_list_add(&c->s->tokens, (dsi_syntax_token){c->s->json.n, at});
}

/* Where that byte of the JSON came from. */
static size_t origin(const dsi_syntax *s, size_t json)
{
    int i = s->tokens.n - 1;
    while (i > 0 && s->tokens.at[i].json > json) i--;
    if (i < 0) return 0;
    size_t at = s->tokens.at[i].text + (json - s->tokens.at[i].json);
    size_t next = i + 1 < s->tokens.n ? s->tokens.at[i + 1].text : s->n;
    return at < next ? at : next;
}

/* ---- bytes --------------------------------------------------------------------------------------- */

static int peek(const scan *c, size_t ahead)
{
    return c->at + ahead < c->s->n ? (unsigned char)c->s->text[c->at + ahead] : -1;
}

static bool is_space(int ch) { return ch == ' ' || ch == '\t' || ch == '\n' || ch == '\r'; }
static bool is_end_of_line(int ch) { return ch == '\n' || ch == '\r' || ch < 0; }

static bool comment_begins(const scan *c, size_t ahead)
{
    int ch = peek(c, ahead), next = peek(c, ahead + 1);
    return ch == '#' || (ch == '/' && (next == '/' || next == '*'));
}

/* Over white space and comments. */
static bool skip(scan *c)
{
    for (;;) {
        while (is_space(peek(c, 0))) c->at++;
        if (!comment_begins(c, 0)) return true;
        if (peek(c, 0) == '/' && peek(c, 1) == '*') {
            const char *rest = c->s->text + c->at + 2;
            const char *end = memmem(rest, c->s->n - c->at - 2, "*/", 2);
            if (!end) return wrong_at(c, c->at, "a comment that does not end");
            c->at = (size_t)(end + 2 - c->s->text);
        } else {
            while (!is_end_of_line(peek(c, 0))) c->at++;
        }
    }
}

static void put(scan *c, const char *s) { dsi_text_add_bytes(&c->s->json, s, strlen(s)); }

/* One byte of the inside of a JSON string. */
static void put_byte(scan *c, char ch)
{
    if (ch == '"' || ch == '\\')
        dsi_text_add(&c->s->json, "\\%c", ch);
    else if ((unsigned char)ch < 0x20)
        dsi_text_add(&c->s->json, "\\u%04x", ch);
    else
        dsi_text_add_bytes(&c->s->json, &ch, 1);
}

static void put_string(scan *c, size_t from, size_t upto)
{
    token(c, from);
    put(c, "\"");
    for (size_t i = from; i < upto; i++) put_byte(c, c->s->text[i]);
    put(c, "\"");
}

/* ---- strings ------------------------------------------------------------------------------------- */

/* "..." or '...': escapes are jansson's to check, but for \', which JSON does not have. */
static bool quoted(scan *c)
{
    size_t begin = c->at;
    char quote = c->s->text[c->at++];
    token(c, begin);
    put(c, "\"");
    for (int ch; (ch = peek(c, 0)) != quote; c->at++) {
        if (is_end_of_line(ch)) return wrong_at(c, begin, "a string without its closing %c", quote);
        if (ch == '\\' && peek(c, 1) == '\'') {
            put(c, "'");
            c->at++;
        } else if (ch == '\\' && peek(c, 1) >= 0x20) {
            token(c, c->at);
            dsi_text_add_bytes(&c->s->json, c->s->text + c->at, 2);
            c->at++;
        } else if (ch < 0x20) {
            return wrong_at(c, c->at, "a control character (%d) inside a string", ch);
        } else {
            put_byte(c, (char)ch);
        }
    }
    c->at++;
    token(c, c->at - 1);
    put(c, "\"");
    return true;
}

static void skip_indent(scan *c, size_t most)
{
    for (int ch; most && ((ch = peek(c, 0)) == ' ' || ch == '\t' || ch == '\r'); most--) c->at++;
}

/* '''...''': lines as they are, less the indent of the opening quotes and the last end of line. */
static bool multi_line(scan *c)
{
    size_t begin = c->at, indent = 0;
    while (indent < begin && c->s->text[begin - indent - 1] != '\n') indent++;
    dsi_text body = {0};
    c->at += 3;
    skip_indent(c, SIZE_MAX);
    if (peek(c, 0) == '\n') {
        c->at++;
        skip_indent(c, indent);
    }
    bool closed = false;
    while (!closed && peek(c, 0) >= 0) {
        int ch = peek(c, 0);
        closed = ch == '\'' && peek(c, 1) == '\'' && peek(c, 2) == '\'';
        if (!closed && ch != '\r') dsi_text_add_bytes(&body, &c->s->text[c->at], 1);
        c->at += closed ? 3 : 1;
        if (ch == '\n') skip_indent(c, indent);
    }
    if (body.n && body.s[body.n - 1] == '\n') body.n--;
    token(c, begin);
    put(c, "\"");
    for (size_t i = 0; i < body.n; i++) put_byte(c, body.s[i]);
    put(c, "\"");
    dsi_text_free(&body);
    return closed || wrong_at(c, begin, "a string without its closing '''");
}

/* ---- values without quotes ----------------------------------------------------------------------- */

static size_t digits(const char *s, size_t n, size_t i)
{
    while (i < n && s[i] >= '0' && s[i] <= '9') i++;
    return i;
}

/* Whether s is a JSON number: -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)? */
static bool is_number(const char *s, size_t n, bool *integer)
{
    size_t i = n && s[0] == '-', from = i;
    i = digits(s, n, i);
    if (i == from || (s[from] == '0' && i > from + 1)) return false;
    *integer = i == n;
    if (i < n && s[i] == '.') {
        from = ++i;
        i = digits(s, n, i);
        if (i == from) return false;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i++;
        if (i < n && (s[i] == '+' || s[i] == '-')) i++;
        from = i;
        i = digits(s, n, i);
        if (i == from) return false;
    }
    return i == n;
}

static bool fits_64_bits(const char *s, size_t n)
{
    static const char *const limits[] = {"9223372036854775807", "9223372036854775808"};
    bool minus = s[0] == '-';
    size_t count = n - minus;
    return count < 19 || (count == 19 && memcmp(s + minus, limits[minus], 19) <= 0);
}

/* Writes s if it is true, false, null or a number. An integer beyond 64 bits goes on as a real number:
 * that it is too large is for the key that it belongs to. */
static bool literal(scan *c, size_t from, size_t upto)
{
    const char *s = c->s->text + from;
    size_t n = upto - from;
    bool integer = false;
    bool word = (n == 4 && (!memcmp(s, "true", 4) || !memcmp(s, "null", 4))) ||
                (n == 5 && !memcmp(s, "false", 5));
    if (!word && !is_number(s, n, &integer)) return false;
    token(c, from);
    dsi_text_add_bytes(&c->s->json, s, n);
    if (integer && !fits_64_bits(s, n)) put(c, "e0");
    return true;
}

static bool bare(scan *c)
{
    size_t begin = c->at;
    int first = peek(c, 0);
    if (first < 0) return wrong_at(c, c->at, "a value is missing at the end of the text");
    if (strchr("{}[],:", first))
        return wrong_at(c, c->at, "found '%c' where a value is expected", first);
    for (;; c->at++) {
        int ch = peek(c, 0);
        if (!is_end_of_line(ch) && ch != ',' && ch != '}' && ch != ']' && !comment_begins(c, 0))
            continue;
        size_t upto = c->at;
        while (upto > begin && (unsigned char)c->s->text[upto - 1] <= ' ') upto--;
        if (literal(c, begin, upto)) return true;
        if (!is_end_of_line(ch)) continue;
        put_string(c, begin, upto);
        c->open_ended = begin + 1;
        return true;
    }
}

/* ---- structure ----------------------------------------------------------------------------------- */

static bool object(scan *c, bool braces);
static bool array(scan *c);

static bool value(scan *c)
{
    int ch = peek(c, 0);
    if (ch == '\'' && peek(c, 1) == '\'' && peek(c, 2) == '\'') return multi_line(c);
    if (ch == '"' || ch == '\'') return quoted(c);
    if (ch != '{' && ch != '[') return bare(c);
    if (c->depth == DEEPEST) return wrong_at(c, c->at, "nested deeper than %d levels", DEEPEST);
    c->depth++;
    bool ok = ch == '{' ? object(c, true) : array(c);
    c->depth--;
    return ok;
}

/* The text ends too early: points at the value that may have taken the rest of a line with it. */
static bool ended(scan *c, const char *close)
{
    wrong_at(c, c->s->n, "the text ends before the closing '%s'", close);
    if (!c->open_ended) return false;
    int line, column;
    place(c->s, c->open_ended - 1, &line, &column);
    dsi_text_add(c->error,
                 " (the value at line %d column %d has no quotes: it goes to the end of its line)",
                 line, column);
    return false;
}

/* A key, with or without quotes, and its colon. */
static bool key_name(scan *c)
{
    dsi_syntax_key key = {c->key, c->at, c->s->json.n + 1, 0};
    int first = peek(c, 0);
    if (first == '"' || first == '\'') {
        if (!quoted(c)) return false;
    } else {
        size_t begin = c->at;
        for (int ch; (ch = peek(c, 0)) != ':' && !is_space(ch); c->at++) {
            if (ch < 0) return ended(c, "}");
            if (strchr("{}[],", ch))
                return wrong_at(c, begin, "found '%c' where a key is expected", ch);
        }
        if (c->at == begin) return wrong_at(c, begin, "a key is missing before ':'");
        put_string(c, begin, c->at);
    }
    key.upto = c->s->json.n - 1;
    size_t after = c->at;
    bool quotes = first == '"' || first == '\''; /* a bare key goes on until the colon */
    while (is_space(peek(c, 0))) c->at++;
    if (quotes && !skip(c)) return false;
    if (peek(c, 0) != ':') return wrong_at(c, after, "':' is missing after the key");
    c->at++;
    put(c, ":");
    dsi_list_add(&c->s->keys, key);
    return true;
}

/* A comma is optional before the next member, and allowed before the end. */
static bool comma(scan *c)
{
    if (!skip(c)) return false;
    if (peek(c, 0) != ',') return true;
    c->at++;
    return skip(c);
}

static bool object(scan *c, bool braces)
{
    int parent = c->key;
    c->at += braces;
    put(c, "{");
    if (!skip(c)) return false;
    for (int n = 0; braces ? peek(c, 0) != '}' : peek(c, 0) >= 0; n++) {
        if (peek(c, 0) < 0) return ended(c, "}");
        if (n) put(c, ",");
        if (!key_name(c)) return false;
        c->key = c->s->keys.n - 1;
        bool ok = skip(c) && value(c) && comma(c);
        c->key = parent;
        if (!ok) return false;
    }
    c->at += braces;
    put(c, "}");
    return true;
}

static bool array(scan *c)
{
    c->at++;
    put(c, "[");
    if (!skip(c)) return false;
    for (int n = 0; peek(c, 0) != ']'; n++) {
        if (peek(c, 0) < 0) return ended(c, "]");
        if (n) put(c, ",");
        if (!value(c) || !comma(c)) return false;
    }
    c->at++;
    put(c, "]");
    return true;
}

static bool document(scan *c)
{
    const char *zero = memchr(c->s->text, 0, c->s->n);
    if (zero && c->s->n > 2 &&
        (!memcmp(c->s->text, "\xFF\xFE", 2) || !memcmp(c->s->text, "\xFE\xFF", 2)))
        return wrong_at(c, 0, "the text is UTF-16; expected UTF-8");
    if (zero) return wrong_at(c, (size_t)(zero - c->s->text), "a byte that is 0; this is no text");
    if (c->s->n >= 3 && !memcmp(c->s->text, "\xEF\xBB\xBF", 3)) c->at = 3;
    if (!skip(c)) return false;
    bool closed = peek(c, 0) == '{' || peek(c, 0) == '[';
    if (!(closed ? value(c) : object(c, false))) return false;
    if (!skip(c)) return false;
    return c->at == c->s->n || wrong_at(c, c->at, "something follows after the end");
}

/* ---- the whole ----------------------------------------------------------------------------------- */

/* "zero_optimization.stage" */
static void add_path(dsi_text *t, const dsi_syntax *s, int key)
{
    const dsi_syntax_key *k = &s->keys.at[key];
    if (k->parent >= 0) {
        add_path(t, s, k->parent);
        dsi_text_add_bytes(t, ".", 1);
    }
    dsi_text_add_bytes(t, s->json.s + k->from, k->upto - k->from);
}

/* jansson's words for what is about its own options, or is not what a user sees; NULL: as they stand. */
static const char *plainly(const json_error_t *e)
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

/* What jansson found, in places of the user's text. Its position is that of the next byte it would read; its
 * own text may end with bytes of the JSON, with quotes and escapes that the user did not write. */
static void explain(scan *c, const json_error_t *e)
{
    const dsi_syntax *s = c->s;
    size_t json = e->position > 0 ? (size_t)e->position - 1 : 0;
    if (plainly(e)) {
        wrong_at(c, origin(s, json), "%s", plainly(e));
        return;
    }
    if (json_error_code(e) != json_error_duplicate_key) {
        /* bytes that may be cut inside of a character */
        const char *near = strstr(e->text, " near '");
        int n = near ? (int)(near - e->text) : (int)strlen(e->text);
        wrong_at(c, origin(s, json), "%.*s", n, e->text);
        return;
    }
    int last = -1; /* the last key that had been read */
    for (int i = 0; i < s->keys.n && s->keys.at[i].from <= json; i++) last = i;
    if (last < 0) return;
    dsi_text path = {0};
    add_path(&path, s, last);
    wrong_at(c, s->keys.at[last].at, "the key \"%s\" stands here a second time", path.s);
    dsi_text_free(&path);
}

json_t *dsi_syntax_parse(dsi_syntax *s, const char *text, size_t n, dsi_text *error)
{
    *s = (dsi_syntax){.text = text, .n = n};
    scan c = {s, .key = -1, .error = error};
    if (!document(&c)) return NULL;
    json_error_t e;
    json_t *parsed = json_loadb(s->json.s, s->json.n, JSON_REJECT_DUPLICATES, &e);
    if (!parsed) explain(&c, &e);
    return parsed;
}

void dsi_syntax_free(dsi_syntax *s)
{
    dsi_text_free(&s->json);
    dsi_list_free(&s->keys);
    dsi_list_free(&s->tokens);
}

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
    if (parent >= 0) place(s, s->keys.at[parent].at, &line, &column);
    return line;
}
