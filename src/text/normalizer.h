/* text/normalizer.h: the "normalizer" of tokenizer.json: steps that change the
 * text before it is split.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"
#include "base/text.h"
#include "regex.h"

typedef enum dsi_normalizer_kind {
    DSI_NORMALIZE_FORM,    /* NFC, NFD, NFKC, NFKD: form, options of utf8proc */
    DSI_NORMALIZE_PREPEND, /* content before a text that is not empty */
    DSI_NORMALIZE_REPLACE, /* content in place of each match of pattern */
    DSI_NORMALIZE_STRIP,   /* white space at the ends */
    DSI_NORMALIZE_LOWERCASE,
    DSI_NORMALIZE_STRIP_ACCENTS /* without marks */
} dsi_normalizer_kind;

typedef struct dsi_normalizer_step {
    dsi_normalizer_kind kind;
    int form;
    char *content; /* owned */
    dsi_regex *pattern;
    bool left, right;
} dsi_normalizer_step;

typedef struct dsi_normalizer {
    DSI_LIST(dsi_normalizer_step)
} dsi_normalizer;

/* Frees the steps, not *n itself. */
void dsi_normalizer_free(dsi_normalizer *n);

/* Applies all steps to *text, valid UTF-8, in place. DS_ENOMEM, DS_EFORMAT or
 * DS_EIO with a message; *text then has any value. */
ds_status dsi_normalize(const dsi_normalizer *n, dsi_text *text);

/* Bytes that n bytes of text may become. The forms of Unicode make at most 33
 * times as much; steps that replace again what others have put in could fill any
 * memory. */
static inline size_t dsi_text_most(size_t n) { return 1024 * n + (1 << 20); }

/* Appends s[0..n) to *to, each match of pattern replaced by content, which is
 * plain text without references to groups. DS_EFORMAT if the pattern exceeds
 * its limits, or the result is longer than `most` bytes. */
ds_status dsi_replace_all(const dsi_regex *pattern, const char *content, const char *s, size_t n,
                          size_t most, dsi_text *to);
