/* text/added_tokens.c: finds added tokens in a text.
 *
 * A match is tried at each byte of the text. first[byte] leaves few tokens to
 * compare, often none, so ordinary text costs one table look-up per byte.
 * SPDX-License-Identifier: MIT */
#include "added_tokens.h"

#include "unicode.h"
#include "vocab.h"

#include <stdlib.h>
#include <string.h>

/* By first byte; then longer ones first, so that the first that fits is the
 * longest; then by content, so that the order does not depend on the file. */
static int compare_tokens(const void *pa, const void *pb)
{
    const dsi_added_token *a = pa, *b = pb;
    int byte = (int)(unsigned char)a->content[0] - (int)(unsigned char)b->content[0];
    if (byte) return byte;
    return a->n < b->n ? 1 : a->n > b->n ? -1 : memcmp(a->content, b->content, a->n);
}

static int compare_ids(const void *pa, const void *pb)
{
    uint32_t a = ((const struct dsi_added_place *)pa)->id,
             b = ((const struct dsi_added_place *)pb)->id;
    return (a > b) - (a < b);
}

const dsi_added_token *dsi_added_token_find(const dsi_added_tokens *a, uint32_t id)
{
    struct dsi_added_place key = {.id = id}, *found = NULL;
    if (a->n) found = bsearch(&key, a->by_id, (size_t)a->n, sizeof key, compare_ids);
    return found ? &a->at[found->at] : NULL;
}

void dsi_added_tokens_sort(dsi_added_tokens *a)
{
    if (a->n) qsort(a->at, (size_t)a->n, sizeof *a->at, compare_tokens);
    for (int c = 0; c < 256; c++) a->first[c] = -1;
    for (int i = a->n - 1; i >= 0; i--) a->first[(unsigned char)a->at[i].content[0]] = i;
    a->by_id = dsi_alloc((size_t)a->n * sizeof *a->by_id);
    for (int i = 0; i < a->n; i++) a->by_id[i] = (struct dsi_added_place){a->at[i].id, i};
    if (a->n) qsort(a->by_id, (size_t)a->n, sizeof *a->by_id, compare_ids);
}

void dsi_added_tokens_free(dsi_added_tokens *a)
{
    for (int i = 0; i < a->n; i++) dsi_free(a->at[i].content);
    dsi_free(a->by_id);
    dsi_list_free(a);
}

/* Returns the longest token that s, of n bytes, begins with; NULL if there is
 * none. */
static const dsi_added_token *token_at(const dsi_added_tokens *a, const char *s, size_t n)
{
    unsigned char byte = (unsigned char)*s;
    for (int i = a->first[byte]; i >= 0 && i < a->n; i++) {
        const dsi_added_token *t = &a->at[i];
        if ((unsigned char)t->content[0] != byte) break;
        if (t->n <= n && !memcmp(s, t->content, t->n)) return t;
    }
    return NULL;
}

/* Decodes the character that ends before s[at], at > 0, into *c. Returns the
 * index of its first byte. */
static size_t char_before(const char *s, size_t at, uint32_t *c)
{
    size_t begin = at - 1;
    while (begin > 0 && ((unsigned char)s[begin] & 0xC0) == 0x80) begin--;
    dsi_utf8_decode(s + begin, at - begin, c);
    return begin;
}

/* Whether a character of a word touches s[begin, end), so that a single_word
 * token there is a part of a longer word. The text's ends touch nothing. */
static bool word_touches(const char *s, size_t n, size_t begin, size_t end)
{
    uint32_t c;
    if (begin > 0 && (char_before(s, begin, &c), dsi_is_word(c))) return true;
    return end < n && (dsi_utf8_decode(s + end, n - end, &c), dsi_is_word(c));
}

/* Searches the next token from it->search on and puts its section, with the
 * white space that lstrip and rstrip add, into it->token. Returns false, and
 * moves search to the end, if there is none. */
static bool token_find(dsi_section_iterator *it)
{
    const char *s = it->s;
    for (size_t i = it->search; i < it->n;) {
        const dsi_added_token *t = token_at(it->tokens, s + i, it->n - i);
        if (!t) {
            i++;
            continue;
        }
        size_t begin = i, end = i + t->n;
        i = it->search = end;
        if (t->single_word && word_touches(s, it->n, begin, end)) continue;
        uint32_t c;
        while (t->lstrip && begin > it->at) {
            size_t before = char_before(s, begin, &c);
            if (!dsi_is_space(c)) break;
            begin = before;
        }
        while (t->rstrip && end < it->n) {
            int length = dsi_utf8_decode(s + end, it->n - end, &c);
            if (!dsi_is_space(c)) break;
            end += (size_t)length;
        }
        /* White space that the previous token took stays with that token; a
         * token that has nothing left, and would take more, is not there. */
        if (t->lstrip && end <= it->at) continue;
        it->token = (dsi_section){begin > it->at ? begin : it->at, end, t->id};
        return true;
    }
    it->search = it->n;
    return false;
}

bool dsi_section_next(dsi_section_iterator *it, dsi_section *out)
{
    if (!it->has_token) {
        if (it->at >= it->n && it->search >= it->n) return false;
        it->has_token = token_find(it);
        /* The text before the token comes first; the token is handed out by the
         * next call. */
        size_t end = it->has_token ? it->token.begin : it->n;
        if (end > it->at) {
            *out = (dsi_section){it->at, end, DSI_NO_TOKEN};
            it->at = end;
            return true;
        }
        if (!it->has_token) return false;
    }
    *out = it->token;
    it->at = it->token.end;
    it->has_token = false;
    return true;
}
