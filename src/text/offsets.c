/* text/offsets.c: the bytes of a text that its ids are of: the tokens follow
 * each other in the text.
 * SPDX-License-Identifier: MIT */
#include "offsets.h"

#include "base/error.h"
#include "tokenizer.h"
#include "unicode.h"

#include <string.h>

typedef struct Aligner {
    const ds_tokenizer *t;
    const char *text; /* [n] */
    size_t n, at;     /* at: the end of the token before */
    bool starts;      /* it was an added token, or there was none */
    bool prepends;    /* each text between added tokens begins with a blank more */
} Aligner;

static size_t blanks_end(const Aligner *a, size_t at)
{
    uint32_t c = 0;
    for (int n; at < a->n; at += (size_t)n) {
        n = dsi_utf8_decode(a->text + at, a->n - at, &c);
        if (n <= 0 || !dsi_is_space(c)) break;
    }
    return at;
}

static bool looks_at(const Aligner *a, size_t at, const char *s, size_t n)
{
    return at + n <= a->n && !memcmp(a->text + at, s, n);
}

/* An added token, with the blanks that it takes in; false: it is not there. */
static bool added_align(Aligner *a, const dsi_added_token *t, dsi_jinja_span *span)
{
    size_t at = t->lstrip ? blanks_end(a, a->at) : a->at;
    if (!looks_at(a, at, t->content, t->n)) return false;
    *span = (dsi_jinja_span){a->at, at + t->n};
    if (t->rstrip) span->end = blanks_end(a, span->end);
    a->at = span->end;
    a->starts = true;
    return true;
}

/* A token of the byte-level alphabet is its bytes. */
static bool bytes_align(Aligner *a, const dsi_token *token, dsi_jinja_span *span)
{
    if (!looks_at(a, a->at, token->bytes, token->n_bytes)) return false;
    *span = (dsi_jinja_span){a->at, a->at + token->n_bytes};
    a->at = span->end;
    if (!a->t->trim_offsets) return true;
    bool first = !span->begin && span->begin < span->end && a->text[0] == ' ';
    size_t begin = span->begin + first; /* the blank before the first word stays */
    while (begin < span->end && a->text[begin] == ' ') begin++;
    span->begin = first && begin == 1 ? 0 : begin;
    while (span->end > span->begin && a->text[span->end - 1] == ' ') span->end--;
    return true;
}

/* A token whose blanks are U+2581; one in front of a text may have been added. */
static bool pieces_align(Aligner *a, const dsi_token *token, dsi_jinja_span *span)
{
    static const char blank[] = "\xE2\x96\x81";
    unsigned byte = 0;
    size_t at = a->at;
    if (sscanf(token->text, "<0x%2X>", &byte) == 1 && token->text_bytes == 6) {
        char c = (char)byte;
        if (!looks_at(a, at, &c, 1)) return false;
        *span = (dsi_jinja_span){at, at + 1};
        a->at = span->end;
        return true;
    }
    for (size_t i = 0, n; i < token->text_bytes; i += n) {
        n = dsi_utf8_length(token->text + i);
        bool is_blank = n == 3 && !memcmp(token->text + i, blank, 3);
        bool is_added = is_blank && a->starts && a->prepends && !i;
        if (is_added) continue;
        if (is_blank && looks_at(a, at, " ", 1))
            at++;
        else if (looks_at(a, at, token->text + i, n))
            at += n;
        else if (!is_blank || !a->starts || at > a->at)
            return false;
    }
    *span = (dsi_jinja_span){a->at, at > a->at ? at : a->at + 1};
    a->at = at;
    return true;
}

static bool is_inside(const Aligner *a, size_t at)
{
    return at < a->n && ((unsigned char)a->text[at] & 0xC0) == 0x80;
}

/* A part of a character has the offsets of the whole. */
static void characters_cover(const Aligner *a, dsi_jinja_span *span)
{
    while (span->begin && is_inside(a, span->begin)) span->begin--;
    while (is_inside(a, span->end)) span->end++;
}

ds_status dsi_token_offsets(const ds_tokenizer *t, const char *text, size_t n, const uint32_t *ids,
                            int64_t count, dsi_jinja_span *at)
{
    Aligner a = {.t = t, .text = text, .n = n, .starts = true};
    for (int i = 0; i < t->normalizer.n; i++)
        a.prepends |= t->normalizer.at[i].kind == DSI_NORMALIZE_PREPEND;
    for (int64_t i = 0; i < count; i++) {
        const dsi_token *token = &t->bpe.vocab.at[ids[i]];
        const dsi_added_token *added = dsi_added_token_find(&t->raw, ids[i]);
        if (!added) added = dsi_added_token_find(&t->normalized, ids[i]);
        bool byte_level = t->decoder.n && t->decoder.at[0].kind == DSI_DECODE_BYTE_LEVEL;
        bool fits = added && added_align(&a, added, &at[i]);
        if (!fits) /* also an added token of the normalized text, such as two blanks */
            fits = byte_level ? bytes_align(&a, token, &at[i]) : pieces_align(&a, token, &at[i]);
        if (!fits)
            return dsi_fail(DS_EINVAL,
                            "the tokenizer changes the text, so that the place of the token "
                            "\"%s\" in it is not known",
                            token->text);
        if (!added) a.starts = false;
        characters_cover(&a, &at[i]);
    }
    return DS_OK;
}
