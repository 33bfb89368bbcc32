/* text/decoder.c: from tokens to text.
 *
 * Source: the decoders of the crate tokenizers (tokenizers/src/decoders).
 *
 * Invariants: a step may change how many texts there are (ByteFallback, Fuse,
 * ByteLevel) or only what is in them; the list is always complete between two
 * steps. A pattern has scratch memory, so one thread decodes at a time, as a
 * tokenizer is used.
 * SPDX-License-Identifier: MIT */
#include "decoder.h"

#include "normalizer.h"
#include "unicode.h"

#include <string.h>

void dsi_decoder_free(dsi_decoder *d)
{
    for (int i = 0; i < d->n; i++) {
        dsi_regex_free(d->at[i].pattern);
        dsi_free(d->at[i].content);
    }
    dsi_list_free(d);
}

/* Frees the texts and the list; *texts is empty afterwards. */
void dsi_texts_free(dsi_texts *texts)
{
    for (int i = 0; i < texts->n; i++) dsi_text_free(&texts->at[i]);
    dsi_list_free(texts);
}

/* Returns the byte that the token "<0xNN>" means; -1 if t is no such token. */
static int fallback_byte(const dsi_text *t)
{
    if (t->n != 6 || memcmp(t->s, "<0x", 3) != 0 || t->s[5] != '>') return -1;
    int byte = 0;
    for (int i = 3; i < 5; i++) {
        const char *digits = "0123456789ABCDEF", *lower = "0123456789abcdef";
        const char *at = strchr(digits, t->s[i]), *small = strchr(lower, t->s[i]);
        if (!t->s[i] || (!at && !small)) return -1;
        byte = byte * 16 + (int)(at ? at - digits : small - lower);
    }
    return byte;
}

/* Ends a run of fallback bytes: appends its characters to *out, or, if the run
 * is not valid UTF-8, one U+FFFD for each byte. Empties the run. */
static void run_end(dsi_text *run, dsi_texts *out)
{
    if (!run->n) return;
    dsi_text text = {0};
    if (dsi_utf8_is_valid(run->s, run->n))
        dsi_text_add_bytes(&text, run->s, run->n);
    else
        for (size_t i = 0; i < run->n; i++) dsi_utf8_append(&text, 0xFFFD);
    dsi_list_add(out, text);
    run->n = 0;
}

/* ByteFallback: tokens that are not bytes stay as they are; a run of bytes
 * becomes one text. */
static void decode_byte_fallback(dsi_texts *tokens)
{
    dsi_texts out = {0};
    dsi_text run = {0};
    for (int i = 0; i < tokens->n; i++) {
        int byte = fallback_byte(&tokens->at[i]);
        if (byte >= 0) {
            dsi_text_add_bytes(&run, &(char){(char)byte}, 1);
            dsi_text_free(&tokens->at[i]);
        } else {
            run_end(&run, &out);
            dsi_list_add(&out, tokens->at[i]);
        }
    }
    run_end(&run, &out);
    dsi_text_free(&run);
    dsi_list_free(tokens);
    *tokens = out;
}

/* Fuse: also for no tokens, so that there is one text afterwards. */
static void decode_fuse(dsi_texts *tokens)
{
    dsi_text all = {0};
    for (int i = 0; i < tokens->n; i++) dsi_text_add_bytes(&all, tokens->at[i].s, tokens->at[i].n);
    dsi_texts_free(tokens);
    dsi_list_add(tokens, all);
}

/* Strip: up to start times content from the front, up to stop times from the
 * end; it ends at the first place where content is missing. */
static void decode_strip(const dsi_decoder_step *step, dsi_text *t)
{
    size_t n = strlen(step->content), begin = 0, end = t->n;
    for (int k = 0; k < step->start && end - begin >= n; k++) {
        if (memcmp(t->s + begin, step->content, n) != 0) break;
        begin += n;
    }
    for (int k = 0; k < step->stop && end - begin >= n; k++) {
        if (memcmp(t->s + end - n, step->content, n) != 0) break;
        end -= n;
    }
    if (end - begin == t->n) return;
    memmove(t->s, t->s + begin, end - begin);
    t->n = end - begin;
    t->s[t->n] = 0;
}

/* Replace: *t with content for each match. The pattern is plain text or
 * was accepted at load; if it exceeds its limits, or the text would be longer
 * than `most`, the rest stays as it is. */
static void decode_replace(const dsi_regex *pattern, const char *content, size_t most, dsi_text *t)
{
    dsi_text changed = {0};
    if (t->n) dsi_replace_all(pattern, content, t->s, t->n, most, &changed);
    dsi_text_free(t);
    *t = changed;
}

/* ByteLevel: the tokens are bytes already (dsi_token), so what remains is to
 * make UTF-8 of them. */
static void decode_byte_level(dsi_texts *tokens)
{
    dsi_text text = {0};
    decode_fuse(tokens);
    dsi_utf8_append_repaired(&text, tokens->at[0].s, tokens->at[0].n);
    dsi_text_free(&tokens->at[0]);
    tokens->at[0] = text;
}

/* Steps that look at one token by itself run over all of them; the others take
 * the list. */
static void decoder_step_apply(const dsi_decoder_step *step, size_t most, dsi_texts *tokens)
{
    switch (step->kind) {
    case DSI_DECODE_BYTE_LEVEL:
        decode_byte_level(tokens);
        break;
    case DSI_DECODE_BYTE_FALLBACK:
        decode_byte_fallback(tokens);
        break;
    case DSI_DECODE_FUSE:
        decode_fuse(tokens);
        break;
    case DSI_DECODE_REPLACE:
    case DSI_DECODE_STRIP:
    case DSI_DECODE_METASPACE:
        for (int i = 0; i < tokens->n; i++) {
            /* Metaspace: the "▁" that encoding put before the text is removed,
             * not replaced. */
            bool start = i == 0 && step->kind == DSI_DECODE_METASPACE && step->start;
            if (step->kind == DSI_DECODE_STRIP)
                decode_strip(step, &tokens->at[i]);
            else
                decode_replace(step->pattern, start ? "" : step->content, most, &tokens->at[i]);
        }
        break;
    }
}

/* Steps change the list in place; what is left is joined. */
void dsi_decode_tokens(const dsi_decoder *d, dsi_texts *tokens, dsi_text *to)
{
    size_t n = 0;
    for (int i = 0; i < tokens->n; i++) n += tokens->at[i].n;
    for (int i = 0; i < d->n; i++) decoder_step_apply(&d->at[i], dsi_text_most(n), tokens);
    for (int i = 0; i < tokens->n; i++) {
        if (d->join_by_space && i) dsi_text_add_bytes(to, " ", 1);
        dsi_text_add_bytes(to, tokens->at[i].s, tokens->at[i].n);
    }
    dsi_texts_free(tokens);
}

/* Behind another token, steps that change the beginning of a text leave this
 * one as it is. */
void dsi_decode_token(const dsi_decoder *d, const char *token, size_t n, dsi_text *to)
{
    dsi_text text = {0}, whole = {0};
    dsi_text_add_bytes(&text, token, n);
    int byte = fallback_byte(&text);
    for (int i = 0; i < d->n && byte >= 0; i++)
        if (d->at[i].kind == DSI_DECODE_BYTE_FALLBACK) {
            dsi_text_add_bytes(to, &(char){(char)byte}, 1);
            dsi_text_free(&text);
            return;
        }
    dsi_texts texts = {0};
    dsi_list_add(&texts, dsi_text_of("a"));
    dsi_list_add(&texts, text);
    dsi_decode_tokens(d, &texts, &whole);
    if (whole.n > 1) dsi_text_add_bytes(to, whole.s + 1, whole.n - 1);
    dsi_text_free(&whole);
}
