/* text/pre_tokenizer.h: the "pre_tokenizer" of tokenizer.json: steps that split
 * a text into the words that the model encodes one by one.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"
#include "regex.h"

/* The treatment of a match of the pattern, by tokenizers' names. */
typedef enum dsi_split_behavior {
    DSI_SPLIT_REMOVED,
    DSI_SPLIT_ISOLATED, /* a piece of its own */
    DSI_SPLIT_MERGED_WITH_PREVIOUS,
    DSI_SPLIT_MERGED_WITH_NEXT,
    DSI_SPLIT_CONTIGUOUS /* matches in a row are one piece */
} dsi_split_behavior;

typedef enum dsi_prepend_scheme {
    DSI_PREPEND_ALWAYS,
    DSI_PREPEND_FIRST, /* only at the start of the whole text */
    DSI_PREPEND_NEVER
} dsi_prepend_scheme;

/* One step. It first adds a prefix or replaces spaces, and then splits by
 * pattern. */
typedef struct dsi_pre_tokenizer_step {
    dsi_regex *pattern; /* NULL: no split */
    dsi_split_behavior behavior;
    bool invert;       /* what the pattern does not match counts as the match */
    bool prefix_space; /* ByteLevel: " " before a piece that does not begin with one */
    char *replacement; /* Metaspace: in place of " ", and before a piece; owned, or NULL */
    dsi_prepend_scheme scheme;
} dsi_pre_tokenizer_step;

typedef struct dsi_pre_tokenizer {
    DSI_LIST(dsi_pre_tokenizer_step)
    int alphabet_from; /* steps from this one on split text in the byte-level alphabet; 0: none */
} dsi_pre_tokenizer;

/* Frees the steps, not *p itself. */
void dsi_pre_tokenizer_free(dsi_pre_tokenizer *p);

/* Takes one word, n > 0 bytes, valid during the call. */
typedef ds_status dsi_word_fn(void *arg, const char *word, size_t n);

/* Splits s, n > 0 bytes of valid UTF-8, and calls fn for each word in order.
 * at_start: s begins the whole text. Stops at the first failure. */
ds_status dsi_pre_tokenize(const dsi_pre_tokenizer *p, const char *s, size_t n, bool at_start,
                           dsi_word_fn *fn, void *arg);
