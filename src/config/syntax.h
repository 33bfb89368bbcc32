/* config/syntax.h: the text of a configuration as strict JSON, with the origin
 * of every byte.
 *
 * Invariants: text is borrowed, and must be there as long as lines are asked
 * for. A place is a byte, counted from 0; lines and columns are computed when a
 * message needs them. A token's place in the JSON is that of its first byte;
 * bytes between two tokens belong to the one before. A parent comes before its
 * children, so indices into keys only grow.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"
#include "base/shared.h"
#include "base/text.h"

#include <jansson.h>

/* A key of the text. */
typedef struct dsi_syntax_key {
    int parent;        /* the key whose value contains it, or -1 */
    size_t at;         /* in the text */
    size_t from, upto; /* its name without quotes, in the JSON */
} dsi_syntax_key;

typedef struct dsi_syntax_token {
    size_t json, text; /* its place in the one and in the other */
} dsi_syntax_token;

typedef struct dsi_syntax {
    const char *text; /* borrowed */
    size_t n;
    dsi_text json;
    struct {
        DSI_LIST(dsi_syntax_key)
    } keys;
    struct {
        DSI_LIST(dsi_syntax_token)
    } tokens; /* in their order */
} dsi_syntax;

/* Parses n bytes of text. NULL with "line 3 column 7: ..." added to error. The
 * syntax serves for places afterwards; free it in any case. */
json_t *dsi_syntax_parse(dsi_syntax *s, const char *text, size_t n, dsi_text *error);
DSI_SHARED void dsi_syntax_free(dsi_syntax *s);

/* The line, from 1, of the key with that path ("fp16.enabled"), or 0 if the
 * text does not have it. */
int dsi_syntax_line(const dsi_syntax *s, const char *path);
