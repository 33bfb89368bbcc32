/* text/bpe.h: byte pair encoding of one word.
 *
 * Sennrich, Haddow, Birch: Neural Machine Translation of Rare Words with
 * Subword Units, 2016: of all neighbours that have a merge, the pair of lowest
 * rank, leftmost first, becomes one token, until no pair has a merge.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"
#include "vocab.h"

#include <deepspeed/text.h>

/* A slot of the table of merges: the pair left, right becomes the token id.
 * rank is the merge's place in tokenizer.json. left DSI_NO_TOKEN: a free
 * slot. */
typedef struct dsi_merge {
    uint32_t left, right, rank, id;
} dsi_merge;

/* One token of a word that is being merged. */
typedef struct dsi_symbol {
    uint32_t id;
    uint32_t rank;       /* of the merge with the next one; DSI_NO_TOKEN: none */
    uint32_t merged;     /* the id that merge gives */
    uint32_t prev, next; /* indices; DSI_NO_TOKEN: none; used for long words */
} dsi_symbol;

typedef struct dsi_bpe {
    dsi_vocab vocab; /* of the model and of added tokens */
    dsi_merge *merges;
    size_t n_merge_slots;     /* a power of 2, at least twice the merges */
    uint32_t byte_token[256]; /* byte-level: id of each byte; else of <0xNN> */
    bool byte_level;          /* the first symbols are bytes, not characters */
    bool byte_fallback;       /* a character that is no token becomes <0xNN> */
    bool fuse_unk, ignore_merges;
    uint32_t unk; /* DSI_NO_TOKEN: unknown characters are left out */
    struct {      /* scratch memory of dsi_bpe_encode */
        DSI_LIST(dsi_symbol)
    } symbols;
    struct {
        DSI_LIST(uint64_t)
    } heap;
} dsi_bpe;

/* Allocates the table for n merges; call dsi_bpe_add_merge n times afterwards,
 * in order of rank. */
void dsi_bpe_init_merges(dsi_bpe *b, size_t n);
void dsi_bpe_add_merge(dsi_bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
/* Frees all it holds, its vocabulary too; *b is empty afterwards. */
void dsi_bpe_free(dsi_bpe *b);

/* Appends the ids of one word, n > 0 bytes of valid UTF-8, to *out. A character
 * that is no token becomes its bytes <0xNN> (byte_fallback), the unknown token,
 * or nothing. */
void dsi_bpe_encode(dsi_bpe *b, const char *word, size_t n, ds_tokens *out);

/* Appends one id; *tokens, {0} at first, grows. */
void dsi_tokens_add(ds_tokens *tokens, uint32_t id);
