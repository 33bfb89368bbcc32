/* text/tokenizer.h: a tokenizer: the components of tokenizer.json.
 *
 *     text -> sections between added tokens -> normalized -> sections again
 *          -> words -> ids -> with the template's special tokens
 *
 * Invariants: words[i].n is 0 or the entry is complete; a word is only looked
 * for at the place that its hash gives. The components do not change after the
 * load. Scratch memory of `bpe`, of patterns, and `words` change, so a
 * tokenizer serves one thread at a time.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "added_tokens.h"
#include "bpe.h"
#include "decoder.h"
#include "normalizer.h"
#include "pre_tokenizer.h"

#define DSI_CACHED_WORDS 32768 /* a power of 2 */
#define DSI_CACHED_BYTES 40    /* longer words are encoded each time */
#define DSI_CACHED_IDS   12

/* A word that was encoded before. */
typedef struct dsi_cached_word {
    uint16_t n, n_ids; /* bytes; 0: free */
    char word[DSI_CACHED_BYTES];
    uint32_t ids[DSI_CACHED_IDS];
} dsi_cached_word;

struct ds_tokenizer {
    dsi_bpe bpe;
    dsi_normalizer normalizer;
    dsi_pre_tokenizer pre_tokenizer;
    dsi_added_tokens raw, normalized; /* looked for before and after the normalizer */
    dsi_decoder decoder;
    ds_tokens before, after; /* special tokens of the template */
    bool trim_offsets;       /* blanks around a word are not of its offsets (offsets.c) */
    dsi_cached_word *words;  /* [DSI_CACHED_WORDS] */
};

/* The tokenizer.json at `path`, or in that folder; where a folder has none, one
 * that is made of its vocab.json and merges.txt. *name, which the caller frees,
 * receives the file's path, for messages. To be freed with dsi_free; NULL with
 * the message. */
DSI_SHARED char *dsi_tokenizer_text(const char *path, dsi_text *name, size_t *bytes);

/* Appends the bytes that a token adds to a text behind other tokens; of special
 * tokens their text, of unknown ids nothing. */
void dsi_token_add_text(const ds_tokenizer *t, int64_t id, dsi_text *to);
