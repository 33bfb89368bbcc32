/* text/vocab.c: tokens and their ids.
 * SPDX-License-Identifier: MIT */
#include "vocab.h"

#include "base/map.h"
#include "base/mem.h"
#include "unicode.h"

#include <string.h>

/* FNV-1a; the last step mixes high bits into the low ones, which select the
 * slot. */
uint64_t dsi_hash_bytes(const char *s, size_t n)
{
    uint64_t h = dsi_fnv1a(DSI_FNV1A, s, n);
    return h ^ h >> 29;
}

/* The number of slots is a power of 2, so that a mask replaces the division. */
void dsi_vocab_init(dsi_vocab *v, uint32_t n)
{
    *v = (dsi_vocab){.n = n, .n_slots = 16};
    while (v->n_slots < 2 * (size_t)n) v->n_slots *= 2;
    v->at = dsi_alloc(n * sizeof *v->at);
    v->slots = dsi_alloc(v->n_slots * sizeof *v->slots);
}

void dsi_vocab_free(dsi_vocab *v)
{
    for (uint32_t i = 0; i < v->n; i++) {
        dsi_free(v->at[i].text);
        dsi_free(v->at[i].bytes);
    }
    dsi_free(v->at);
    dsi_free(v->slots);
    dsi_map_free(&v->by_text);
    *v = (dsi_vocab){0};
}

/* Appends the bytes that text, in the byte-level alphabet, means; false if a
 * character of it is not in that alphabet. */
static bool byte_level_bytes(dsi_text *to, const char *text)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < n;) {
        uint32_t c;
        int length = dsi_utf8_decode(text + i, n - i, &c);
        int byte = length > 0 ? dsi_char_to_byte(c) : -1;
        if (byte < 0) return false;
        dsi_text_add_bytes(to, &(char){(char)byte}, 1);
        i += (size_t)length;
    }
    return true;
}

/* Linear probing; a token with the same bytes is replaced. */
static void slot_insert(dsi_vocab *v, uint32_t id)
{
    const dsi_token *t = &v->at[id];
    size_t i = dsi_hash_bytes(t->bytes, t->n_bytes) & (v->n_slots - 1);
    while (v->slots[i]) {
        const dsi_token *other = &v->at[v->slots[i] - 1];
        if (other->n_bytes == t->n_bytes && !memcmp(other->bytes, t->bytes, t->n_bytes)) break;
        i = (i + 1) & (v->n_slots - 1);
    }
    v->slots[i] = id + 1;
}

/* Sets the token's text and its bytes; whether these are those that the text
 * means in the byte-level alphabet. */
static bool token_set_text(dsi_token *t, const char *text, bool byte_level)
{
    dsi_text bytes = {0};
    bool is_bytes = byte_level && byte_level_bytes(&bytes, text);
    if (!is_bytes) {
        dsi_text_free(&bytes);
        dsi_text_add_bytes(&bytes, text, strlen(text));
    }
    dsi_free(t->text);
    dsi_free(t->bytes);
    t->text = dsi_strdup(text);
    t->text_bytes = (uint32_t)strlen(text);
    t->bytes = bytes.s ? bytes.s : dsi_strdup("");
    t->n_bytes = (uint32_t)bytes.n;
    return is_bytes;
}

/* A token of a byte-level vocabulary that is not in its alphabet keeps its
 * text, and is not entered by bytes. */
void dsi_vocab_add(dsi_vocab *v, uint32_t id, const char *text, bool byte_level, bool added)
{
    dsi_token *t = &v->at[id];
    bool is_bytes = token_set_text(t, text, byte_level);
    t->added = added;
    dsi_map_set(&v->by_text, text, (void *)((uintptr_t)id + 1));
    if (!added && (is_bytes || !byte_level)) slot_insert(v, id);
}

void dsi_vocab_set_decoded(dsi_vocab *v, uint32_t id, const char *text, bool byte_level)
{
    dsi_token *t = &v->at[id];
    if (!t->added || !strcmp(t->text, text)) return;
    token_set_text(t, text, byte_level);
    t->special = false; /* it is known as special by its own text */
}

uint32_t dsi_vocab_find(const dsi_vocab *v, const char *bytes, size_t n)
{
    size_t i = dsi_hash_bytes(bytes, n) & (v->n_slots - 1);
    for (; v->slots[i]; i = (i + 1) & (v->n_slots - 1)) {
        const dsi_token *t = &v->at[v->slots[i] - 1];
        if (t->n_bytes == n && !memcmp(t->bytes, bytes, n)) return v->slots[i] - 1;
    }
    return DSI_NO_TOKEN;
}

/* The map has 1 + id, as 0 would look like a missing text. */
uint32_t dsi_vocab_find_text(const dsi_vocab *v, const char *text)
{
    uintptr_t found = (uintptr_t)dsi_map_get(&v->by_text, text);
    return found ? (uint32_t)(found - 1) : DSI_NO_TOKEN;
}
