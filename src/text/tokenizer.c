/* text/tokenizer.c: text to ids and back.
 * SPDX-License-Identifier: MIT */
#include "tokenizer.h"

#include "base/error.h"
#include "base/mem.h"
#include "unicode.h"

#include <stdlib.h>
#include <string.h>

/* Patterns and lists are owned by their components. */
void ds_tokenizer_free(ds_tokenizer *t)
{
    if (!t) return;
    dsi_bpe_free(&t->bpe);
    dsi_normalizer_free(&t->normalizer);
    dsi_pre_tokenizer_free(&t->pre_tokenizer);
    dsi_added_tokens_free(&t->raw);
    dsi_added_tokens_free(&t->normalized);
    dsi_decoder_free(&t->decoder);
    ds_tokens_free(&t->before);
    ds_tokens_free(&t->after);
    dsi_free(t->words);
    dsi_free(t);
}

void ds_tokens_free(ds_tokens *tokens)
{
    if (!tokens) return;
    dsi_free(tokens->ids);
    *tokens = (ds_tokens){0};
}

/* ---- the vocabulary ---- */

int64_t ds_tokenizer_vocab_size(const ds_tokenizer *t) { return t ? t->bpe.vocab.n : 0; }

int64_t ds_token_to_id(const ds_tokenizer *t, const char *token)
{
    uint32_t id = t && token ? dsi_vocab_find_text(&t->bpe.vocab, token) : DSI_NO_TOKEN;
    return id == DSI_NO_TOKEN ? -1 : (int64_t)id;
}

const char *ds_id_to_token(const ds_tokenizer *t, int64_t id)
{
    return t && id >= 0 && id < t->bpe.vocab.n ? t->bpe.vocab.at[id].text : NULL;
}

/* ---- encode ---- */

typedef struct Encoding {
    ds_tokenizer *t;
    ds_tokens *out;
} Encoding;

/* Encodes one word of the pre-tokenizer, or copies its ids from the cache. Each
 * cache place holds the last word that hashed to it. */
static ds_status word_encode(void *arg, const char *word, size_t n)
{
    Encoding *e = arg;
    ds_tokenizer *t = e->t;
    if (n > DSI_CACHED_BYTES) {
        dsi_bpe_encode(&t->bpe, word, n, e->out);
        return DS_OK;
    }
    dsi_cached_word *c = &t->words[dsi_hash_bytes(word, n) & (DSI_CACHED_WORDS - 1)];
    if (c->n == n && !memcmp(c->word, word, n)) {
        for (int i = 0; i < c->n_ids; i++) dsi_tokens_add(e->out, c->ids[i]);
        return DS_OK;
    }
    int64_t before = e->out->n;
    dsi_bpe_encode(&t->bpe, word, n, e->out);
    int64_t n_ids = e->out->n - before;
    if (!n_ids || n_ids > DSI_CACHED_IDS) return DS_OK;
    c->n = (uint16_t)n;
    c->n_ids = (uint16_t)n_ids;
    memcpy(c->word, word, n);
    memcpy(c->ids, e->out->ids + before, (size_t)n_ids * sizeof *c->ids);
    return DS_OK;
}

/* Encodes s[0..n), the text between added tokens of the raw text: normalizes
 * it, finds the added tokens that are matched after normalization, and encodes
 * the words between those. */
static ds_status section_encode(Encoding *e, const char *s, size_t n, bool at_start)
{
    ds_tokenizer *t = e->t;
    dsi_text text = {0};
    ds_status status = DS_OK;
    if (t->normalizer.n) {
        dsi_text_add_bytes(&text, s, n);
        status = dsi_normalize(&t->normalizer, &text);
        s = text.s, n = text.n;
    }
    dsi_section_iterator it = {.tokens = &t->normalized, .s = s, .n = n};
    dsi_section part;
    while (status == DS_OK && dsi_section_next(&it, &part)) {
        if (part.id != DSI_NO_TOKEN)
            dsi_tokens_add(e->out, part.id);
        else
            status = dsi_pre_tokenize(&t->pre_tokenizer, s + part.begin, part.end - part.begin,
                                      at_start && part.begin == 0, word_encode, e);
    }
    dsi_text_free(&text);
    return status;
}

/* A whole text, valid UTF-8: tokens that are looked for in the raw text divide
 * it, and only what is between them is normalized. */
static ds_status text_encode(Encoding *e, const char *s, size_t n)
{
    dsi_section_iterator it = {.tokens = &e->t->raw, .s = s, .n = n};
    dsi_section part;
    ds_status status = DS_OK;
    while (status == DS_OK && dsi_section_next(&it, &part)) {
        if (part.id != DSI_NO_TOKEN)
            dsi_tokens_add(e->out, part.id);
        else
            status = section_encode(e, s + part.begin, part.end - part.begin, part.begin == 0);
    }
    return status;
}

/* Replaces invalid UTF-8 by U+FFFD first, so the components get valid text. */
ds_status ds_encode(ds_tokenizer *t, const char *text, size_t bytes, ds_tokens *out,
                    ds_encode_opts opts)
{
    if (!t || !text || !out) return dsi_null_argument("encode");
    Encoding e = {t, out};
    int64_t before = out->n;
    dsi_text repaired = {0};
    if (!dsi_utf8_is_valid(text, bytes)) {
        dsi_utf8_append_repaired(&repaired, text, bytes);
        text = repaired.s, bytes = repaired.n;
    }
    for (int64_t i = 0; i < t->before.n && !opts.no_special_tokens; i++)
        dsi_tokens_add(out, t->before.ids[i]);
    ds_status status = text_encode(&e, text, bytes);
    for (int64_t i = 0; i < t->after.n && !opts.no_special_tokens; i++)
        dsi_tokens_add(out, t->after.ids[i]);
    /* A failure appends nothing. */
    if (status != DS_OK) out->n = before;
    dsi_text_free(&repaired);
    return status;
}

/* ---- decode ---- */

static bool decodes_bytes(const ds_tokenizer *t)
{
    return t->decoder.n && t->decoder.at[0].kind == DSI_DECODE_BYTE_LEVEL;
}

void dsi_token_add_text(const ds_tokenizer *t, int64_t id, dsi_text *to)
{
    const dsi_token *token = id >= 0 && id < t->bpe.vocab.n ? &t->bpe.vocab.at[id] : NULL;
    if (!token || !token->text) return;
    if (decodes_bytes(t))
        dsi_text_add_bytes(to, token->bytes, token->n_bytes);
    else
        dsi_decode_token(&t->decoder, token->text, token->text_bytes, to);
}

/* Appends the text of n ids to *to. A decoder that begins with ByteLevel gets
 * one text of all bytes: a character may be divided among tokens. */
static void tokens_decode(const ds_tokenizer *t, const uint32_t *ids, int64_t n, bool keep_special,
                          dsi_text *to)
{
    bool bytes = decodes_bytes(t);
    dsi_texts texts = {0};
    for (int64_t i = 0; i < n; i++) {
        const dsi_token *token = ids[i] < t->bpe.vocab.n ? &t->bpe.vocab.at[ids[i]] : NULL;
        if (!token || !token->text || (token->special && !keep_special)) continue;
        if (!texts.n || !bytes) dsi_list_add(&texts, (dsi_text){0}); /* bytes are one text */
        dsi_text_add_bytes(&texts.at[texts.n - 1], bytes ? token->bytes : token->text,
                           bytes ? token->n_bytes : token->text_bytes);
    }
    dsi_decode_tokens(&t->decoder, &texts, to);
}

/* One thread at a time: patterns of the decoder have scratch memory. */
char *ds_decode(const ds_tokenizer *t, const uint32_t *ids, int64_t n, ds_decode_opts opts)
{
    if (!t || (!ids && n > 0)) return dsi_null_operand("decode");
    dsi_text text = {0};
    tokens_decode(t, ids, n, opts.keep_special_tokens, &text);
    if (opts.bytes) *opts.bytes = text.n;
    return text.s ? text.s : dsi_strdup("");
}

/* ids[0 .. read) are context: their text, `prefix`, was returned already. A
 * token's text can depend on the token before it, so the new text is what the
 * text of all ids has beyond `prefix`. ids[read ..] have not been returned yet:
 * they may end within a character. `out` holds the text that was returned last
 * and is valid until the next call. Source: DecodeStream of the crate
 * tokenizers. */
struct ds_decode_stream {
    const ds_tokenizer *t;
    bool keep_special;
    ds_tokens ids;
    int64_t read;
    dsi_text prefix, text, out;
};

ds_decode_stream *ds_decode_stream_new(const ds_tokenizer *t, bool keep_special_tokens)
{
    if (!t) return dsi_null_operand("decode_stream_new");
    ds_decode_stream *s = dsi_alloc(sizeof *s);
    s->t = t;
    s->keep_special = keep_special_tokens;
    return s;
}

/* Whether the text ends with U+FFFD: probably a character whose last bytes are
 * still to come. If they never come, later text brings the U+FFFD out. */
static bool ends_incomplete(const dsi_text *t)
{
    return t->n >= 3 && !memcmp(t->s + t->n - 3, "\xEF\xBF\xBD", 3);
}

const char *ds_decode_stream_step(ds_decode_stream *s, uint32_t id)
{
    if (!s) return dsi_null_operand("decode_stream_step");
    dsi_tokens_add(&s->ids, id);
    s->text.n = s->out.n = 0;
    tokens_decode(s->t, s->ids.ids, s->ids.n, s->keep_special, &s->text);
    if (s->text.n <= s->prefix.n || ends_incomplete(&s->text)) return "";
    dsi_text_add_bytes(&s->out, s->text.s + s->prefix.n, s->text.n - s->prefix.n);
    /* The ids returned now are the context of the next step; older ones are
     * removed. */
    memmove(s->ids.ids, s->ids.ids + s->read, (size_t)(s->ids.n - s->read) * sizeof *s->ids.ids);
    s->ids.n -= s->read;
    s->read = s->ids.n;
    s->prefix.n = 0;
    tokens_decode(s->t, s->ids.ids, s->ids.n, s->keep_special, &s->prefix);
    return s->out.s;
}

void ds_decode_stream_free(ds_decode_stream *s)
{
    if (!s) return;
    ds_tokens_free(&s->ids);
    dsi_text_free(&s->prefix);
    dsi_text_free(&s->text);
    dsi_text_free(&s->out);
    dsi_free(s);
}
