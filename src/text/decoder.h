/* text/decoder.h: the "decoder" of tokenizer.json: steps from tokens to text.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"
#include "base/text.h"
#include "regex.h"

typedef enum dsi_decoder_kind {
    DSI_DECODE_BYTE_LEVEL,    /* tokens are bytes; what is not UTF-8 becomes U+FFFD */
    DSI_DECODE_REPLACE,       /* in each token, content for each match of pattern */
    DSI_DECODE_BYTE_FALLBACK, /* runs of <0xNN> become characters */
    DSI_DECODE_FUSE,          /* all tokens become one */
    DSI_DECODE_STRIP,         /* of each token up to start and stop times content */
    DSI_DECODE_METASPACE      /* as REPLACE; in the first token, if start, nothing for each match */
} dsi_decoder_kind;

typedef struct dsi_decoder_step {
    dsi_decoder_kind kind;
    dsi_regex *pattern;
    char *content; /* owned */
    int start, stop;
} dsi_decoder_step;

typedef struct dsi_decoder {
    DSI_LIST(dsi_decoder_step)
    bool join_by_space; /* the file has no decoder: tokens are joined by " " */
} dsi_decoder;

/* Frees the steps, not *d itself. */
void dsi_decoder_free(dsi_decoder *d);

/* A list of texts, which it owns. */
typedef struct dsi_texts {
    DSI_LIST(dsi_text)
} dsi_texts;
void dsi_texts_free(dsi_texts *texts);

/* Runs the steps over the tokens' texts, which it takes, and appends the
 * result. */
void dsi_decode_tokens(const dsi_decoder *d, dsi_texts *tokens, dsi_text *to);
/* Appends the bytes that a token's text adds to a text behind other tokens: of
 * "<0xNN>" the byte. Not for ByteLevel, whose tokens are bytes. */
void dsi_decode_token(const dsi_decoder *d, const char *token, size_t n, dsi_text *to);
