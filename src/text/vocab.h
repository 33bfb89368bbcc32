/* text/vocab.h: tokens and their ids.
 *
 * A token has two forms: `text`, as tokenizer.json writes it, and `bytes`, what
 * it stands for in a text. They differ for byte-level models, whose texts use
 * one printable character for each byte ("Ġthe" stands for " the").
 *
 * Invariants: `at` is indexed by id; entries of ids that do not exist are all
 * 0. `slots` hashes bytes to ids, open addressing, at most half full; if two
 * tokens stand for the same bytes it holds the one that was added last.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/map.h"

#include <deepspeed/types.h>

#define DSI_NO_TOKEN UINT32_MAX

typedef struct dsi_token {
    char *text, *bytes; /* owned; bytes may hold 0 */
    uint32_t n_bytes;
    uint32_t text_bytes;
    bool added, special; /* an added token; one that decoding leaves out */
} dsi_token;

typedef struct dsi_vocab {
    dsi_token *at; /* [n] */
    uint32_t n;
    uint32_t *slots; /* [n_slots]: id + 1; 0: free */
    size_t n_slots;  /* a power of 2 */
    dsi_map by_text; /* text -> &at[id] is not stable, so the value is id + 1 */
} dsi_vocab;

/* Makes an empty vocabulary for ids 0 to n - 1. */
void dsi_vocab_init(dsi_vocab *v, uint32_t n);
void dsi_vocab_free(dsi_vocab *v);
/* Adds a token, id < n. byte_level: `text` is in the byte-level alphabet. An
 * added token is not found by its bytes, only by its text. */
void dsi_vocab_add(dsi_vocab *v, uint32_t id, const char *text, bool byte_level, bool added);
/* Sets the text that an added token becomes when it is decoded. */
void dsi_vocab_set_decoded(dsi_vocab *v, uint32_t id, const char *text, bool byte_level);
/* The id of n bytes; DSI_NO_TOKEN if no token of the model stands for them. */
uint32_t dsi_vocab_find(const dsi_vocab *v, const char *bytes, size_t n);
/* Returns the id of the token that tokenizer.json writes as text; DSI_NO_TOKEN
 * if there is none. */
uint32_t dsi_vocab_find_text(const dsi_vocab *v, const char *text);

/* FNV-1a over n bytes, mixed. */
uint64_t dsi_hash_bytes(const char *s, size_t n);
